"""AADs byte by byte, as PME 4.4.2 spells them."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from modcrypt.aad import (
    MAX_BLOCK_INDEX,
    MAX_ORDINAL,
    ChunkAads,
    block_aad,
    module_aad,
    ordinal_bytes,
)
from modcrypt.errors import LimitError
from modcrypt.module_ids import BlockId, ModuleId, ModuleType
from modcrypt.parquet.format.idl import decode
from tests.support.cases import each_case
from tests.support.keys import FOOTER_KEY

PREFIX_AND_UNIQUE = b"tester\x01\x02\x03\x04\x05\x06\x07\x08"

# PME 4.4.2: "Module type (1 byte)"; "row group ordinal (2 byte short, little endian), all modules
# except footer"; column ordinal likewise; "page ordinal ... data page and header only".
# Here with row group 1, column 0x0203 and page 0x7fff.
SUFFIXES = {
    ModuleType.FOOTER: "00",
    ModuleType.COLUMN_METADATA: "01 0100 0302",
    ModuleType.DATA_PAGE: "02 0100 0302 ff7f",
    ModuleType.DICTIONARY_PAGE: "03 0100 0302",
    ModuleType.DATA_PAGE_HEADER: "04 0100 0302 ff7f",
    ModuleType.DICTIONARY_PAGE_HEADER: "05 0100 0302",
    ModuleType.COLUMN_INDEX: "06 0100 0302",
    ModuleType.OFFSET_INDEX: "07 0100 0302",
    ModuleType.BLOOM_FILTER_HEADER: "08 0100 0302",
    ModuleType.BLOOM_FILTER_BITSET: "09 0100 0302",
}
WITH_PAGE = {ModuleType.DATA_PAGE, ModuleType.DATA_PAGE_HEADER}


def address(kind: ModuleType, row_group: int, column: int, page: int) -> ModuleId:
    if kind is ModuleType.FOOTER:
        return ModuleId(kind)
    return ModuleId(kind, row_group, column, page if kind in WITH_PAGE else None)


def test_the_ten_types_of_the_specification_are_there() -> None:
    assert list(ModuleType) == list(SUFFIXES)
    assert [int(kind) for kind in ModuleType] == list(range(10))


@each_case("kind", ModuleType)
def test_each_type_has_the_exact_bytes_of_the_specification(kind: ModuleType) -> None:
    aad = module_aad(PREFIX_AND_UNIQUE, address(kind, 1, 0x0203, 0x7FFF))
    assert aad == PREFIX_AND_UNIQUE + bytes.fromhex(SUFFIXES[kind])


def test_the_aads_of_a_chunk_are_those_of_its_modules() -> None:
    aads = ChunkAads(PREFIX_AND_UNIQUE, 1, 0x0203)
    for kind in ModuleType:
        if kind is not ModuleType.FOOTER and not kind.has_page:
            assert aads.of_type(kind) == module_aad(PREFIX_AND_UNIQUE, address(kind, 1, 0x0203, 0))
    assert aads.of_page(0x7FFF) == tuple(
        module_aad(PREFIX_AND_UNIQUE, address(kind, 1, 0x0203, 0x7FFF))
        for kind in (ModuleType.DATA_PAGE_HEADER, ModuleType.DATA_PAGE)
    )
    for place in ((32_768, 0), (0, 32_768)):
        with pytest.raises(LimitError, match="ordinal 32768"):
            ChunkAads(PREFIX_AND_UNIQUE, *place)


@each_case("kind", ModuleType)
def test_ordinals_that_do_not_fit_the_type_are_refused(kind: ModuleType) -> None:
    right = address(kind, 0, 0, 0)
    right_ones = (right.row_group, right.column, right.page)
    for given_ones in itertools.product((None, 0), repeat=3):
        if given_ones == right_ones:
            module_aad(b"", right)
            continue
        row_group, column, page = given_ones
        with pytest.raises(ValueError, match="ordinals do not fit"):
            module_aad(b"", ModuleId(kind, row_group, column, page))


@each_case("ordinal", [-1, 32_768, 65_536, 2**31, -32_768])
@each_case("place", range(3))
def test_ordinals_beyond_int16_are_refused_and_never_wrap(place: int, ordinal: int) -> None:
    row_group, column, page = (ordinal if place == i else 0 for i in range(3))
    with pytest.raises(LimitError, match="int16"):
        module_aad(b"", ModuleId(ModuleType.DATA_PAGE, row_group, column, page))


def test_the_ends_of_the_ordinal_range() -> None:
    assert MAX_ORDINAL == 0x7FFF
    assert ordinal_bytes(0) == b"\x00\x00"
    assert ordinal_bytes(32_767) == b"\xff\x7f"


ORDINALS = st.integers(0, MAX_ORDINAL)
ADDRESSES = st.builds(address, st.sampled_from(ModuleType), ORDINALS, ORDINALS, ORDINALS)


@given(ADDRESSES, ADDRESSES, st.binary(max_size=20))
def test_two_addresses_of_a_file_have_two_aads(a: ModuleId, b: ModuleId, file_aad: bytes) -> None:
    assert (module_aad(file_aad, a) == module_aad(file_aad, b)) == (a == b)


def test_no_two_of_many_neighbouring_addresses_share_an_aad() -> None:
    """Ordinals whose bytes look like each other's: 0, 1, 256, 257 and the largest."""
    near = (0, 1, 255, 256, 257, MAX_ORDINAL)
    addresses = {
        address(kind, *ordinals)
        for kind in ModuleType
        for ordinals in itertools.product(near, repeat=3)
    }
    assert len({module_aad(b"file", address) for address in addresses}) == len(addresses)


@given(ADDRESSES)
def test_the_path_is_for_messages_and_not_for_the_aad(module: ModuleId) -> None:
    named = ModuleId(module.type, module.row_group, module.column, module.page, "a.b")
    assert module_aad(b"x", named) == module_aad(b"x", module)


def test_an_address_reads_like_a_sentence() -> None:
    page = ModuleId(ModuleType.DATA_PAGE, 0, 3, 17, "address.zip")
    assert str(page) == "data page, row group 0, column address.zip, page 17"
    assert str(ModuleId(ModuleType.OFFSET_INDEX, 2, 5)) == "offset index, row group 2, column 5"
    assert str(ModuleId(ModuleType.FOOTER)) == "footer"


def test_the_aads_open_what_pyarrow_sealed() -> None:
    """Without modcrypt's ciphers: our AADs, plain AESGCM, and a file of Arrow C++."""
    sink = pa.BufferOutputStream()
    properties = pe.create_encryption_properties(
        footer_key=FOOTER_KEY, aad_prefix=b"tester", store_aad_prefix=True
    )
    pq.write_table(pa.table({"a": ["x", "y", "x"]}), sink, encryption_properties=properties)
    data = sink.getvalue().to_pybytes()

    tail = data[-8 - int.from_bytes(data[-8:-4], "little") : -8]
    crypto, end = decode("FileCryptoMetaData", tail)
    file_aad = b"tester" + crypto.encryption_algorithm.AES_GCM_V1.aad_file_unique

    def open_at(buffer: bytes, at: int, module: ModuleId) -> tuple[bytes, int]:
        stop = at + 4 + int.from_bytes(buffer[at : at + 4], "little")
        nonce, sealed = buffer[at + 4 : at + 16], buffer[at + 16 : stop]
        return AESGCM(FOOTER_KEY).decrypt(nonce, sealed, module_aad(file_aad, module)), stop

    footer, stop = open_at(tail, end, ModuleId(ModuleType.FOOTER))
    assert stop == len(tail)
    assert decode("FileMetaData", footer)[0].num_rows == 3
    at = 4
    for module in (
        ModuleId(ModuleType.DICTIONARY_PAGE_HEADER, 0, 0),
        ModuleId(ModuleType.DICTIONARY_PAGE, 0, 0),
        ModuleId(ModuleType.DATA_PAGE_HEADER, 0, 0, 0),
        ModuleId(ModuleType.DATA_PAGE, 0, 0, 0),
    ):
        _, at = open_at(data, at, module)


# --- blocks of an AGS1 stream --------------------------------------------------------------------


@each_case(
    ("index", "spelt"),
    [
        (0, "00000000"),
        (1, "01000000"),
        (256, "00010000"),
        (0x01020304, "04030201"),
        (2**31 - 1, "ffffff7f"),
    ],
)
@each_case("prefix", [b"", b"prefix"])
def test_the_aad_of_a_block_is_the_prefix_and_its_index(
    index: int, spelt: str, prefix: bytes
) -> None:
    assert block_aad(prefix, index) == prefix + bytes.fromhex(spelt)


@pytest.mark.parametrize("index", [-1, 2**31, 2**32, 2**64])
def test_block_indexes_beyond_int32_are_refused_and_never_wrap(index: int) -> None:
    assert MAX_BLOCK_INDEX == 2**31 - 1
    with pytest.raises(LimitError, match="int32"):
        block_aad(b"", index)


def test_a_blocks_address_is_a_value() -> None:
    assert str(BlockId(17)) == "block 17"
    assert BlockId(17) == BlockId(17) != BlockId(18)
    assert len({BlockId(17), BlockId(17)}) == 1

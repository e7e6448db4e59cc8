"""Truncated, random and hostile bytes: a result or a ModcryptError, at small cost.

Half of the files here are made behind the lock: sealed or signed with the right key, as a
hostile key holder can. Authentication does not stop them, so the checks after it must.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import random
import signal
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import modcrypt
from modcrypt import FileDecryptionProperties, FileEncryptionProperties, ModcryptError
from modcrypt.errors import (
    FormatError,
    IntegrityError,
    LimitError,
    TagMismatchError,
    TruncationError,
    UnsupportedFormatError,
)
from modcrypt.parquet.format.compact import MAX_LIST, MAX_STRUCTS
from modcrypt.parquet.format.idl import ThriftStruct, decode, encode, new, varint, zigzag
from tests.support import forging
from tests.support.cases import each_case, one_in
from tests.support.forging import (
    SMALL_FILTER,
    bloom_header,
    decrypt_bytes,
    encrypt_bytes,
    plain_file,
)
from tests.support.keys import FOOTER_KEY
from tests.support.randomness import dice
from tests.support.resident_memory import forget_peak, resident_memory
from tools import fuzz
from tools.fuzz_targets import INTERESTING

WRITER = FileEncryptionProperties(footer_key=FOOTER_KEY)
LEVELS_WRITER = FileEncryptionProperties(footer_key=FOOTER_KEY, data_page_v2_levels="plaintext")
READER = FileDecryptionProperties(footer_key=FOOTER_KEY)
ANY = FileDecryptionProperties(footer_key=FOOTER_KEY, require_encrypted=False)
TABLE = pa.table({"a": [1, 1, 2, None], "b": ["x", "y", "x", "y"]})
PLAIN = plain_file(
    TABLE, write_page_index=True, bloom_filter_options={"a": SMALL_FILTER, "b": SMALL_FILTER}
)
SEALED = encrypt_bytes(PLAIN, WRITER)
SIGNED = encrypt_bytes(
    PLAIN, FileEncryptionProperties(footer_key=FOOTER_KEY, plaintext_footer=True)
)

SMALL = 50 << 20
"""Peak of memory for a file under 1 MB, in bytes: what the interpreter's objects for a legal
footer of that size may take, and far below what a hostile length or count asks for."""

HANGS_AFTER = 120
"""Seconds after which a run counts as hanging; each takes well below one."""

I32, I64 = 2**31 - 1, 2**63 - 1


@contextlib.contextmanager
def bound_resources(most: int = SMALL) -> Iterator[None]:
    """Fail on a run that hangs or that takes much memory."""

    def hang(_signal: int, _frame: FrameType | None) -> None:
        raise AssertionError(f"still running after {HANGS_AFTER} seconds")

    previous = signal.signal(signal.SIGALRM, hang)
    signal.alarm(HANGS_AFTER)
    before = forget_peak()
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    peak = resident_memory("VmHWM") - before
    assert peak < most, f"{peak >> 20} MB"


def outcome(run: Callable[[], bytes]) -> bytes | ModcryptError:
    """Return the result or the ModcryptError; anything else fails the test."""
    with bound_resources():
        try:
            return run()
        except ModcryptError as error:
            return error


def check_refusal(run: Callable[[], bytes], *kinds: type[ModcryptError]) -> ModcryptError:
    error = outcome(run)
    assert isinstance(error, kinds or ModcryptError), error
    return error


# --- tails ----------------------------------------------------------------------------------------


@each_case("magic", [b"PAR1", b"PARE"])
@each_case("length", [0, 1, 27, 28, 29, 500, 2**31 - 1, 2**31, 2**32 - 1])
@each_case("size", [0, 4, 8, 12, 40, 400])
def test_any_declared_footer_length_is_an_error_in_a_file_of_zeros(
    magic: bytes, length: int, size: int
) -> None:
    data = magic + bytes(size) + length.to_bytes(4, "little") + magic
    check_refusal(lambda: encrypt_bytes(data, WRITER), FormatError)
    check_refusal(lambda: decrypt_bytes(data, READER), FormatError, IntegrityError)


@each_case("size", range(13))
def test_a_file_of_a_few_bytes_is_an_error(size: int) -> None:
    for data in ((b"PAR1" * 4)[:size], (b"PARE" * 4)[:size], bytes(size)):
        check_refusal(lambda data=data: encrypt_bytes(data, WRITER), FormatError)  # type: ignore[misc]  # mypy sees no default
        check_refusal(lambda data=data: decrypt_bytes(data, READER), FormatError)  # type: ignore[misc]  # mypy sees no default


@pytest.mark.seeded
def test_random_bytes_between_good_magics_are_an_error() -> None:
    rng = dice(7)
    for _ in range(300):
        magic = rng.choice((b"PAR1", b"PARE"))
        tail = rng.randbytes(rng.randrange(200))
        data = forging.join_tail(magic + rng.randbytes(rng.randrange(50)), tail, magic)
        check_refusal(lambda data=data: encrypt_bytes(data, WRITER), FormatError)  # type: ignore[misc]  # mypy sees no default
        check_refusal(lambda data=data: decrypt_bytes(data, READER), FormatError, IntegrityError)  # type: ignore[misc]  # mypy sees no default


HUGE = varint(2**63 - 1)
FOOTERS = {
    "a list of 2**63-1 elements": b"\x29\xfc" + HUGE,
    "a list of 2**31-1 elements": b"\x29\xfc" + varint(I32),
    "a list count that never ends": b"\x29\xfc" + b"\xff" * 1000,
    "a binary of 2**63-1 bytes": b"\x68" + HUGE,
    "a binary of 4 GB": b"\x68" + varint(2**32 - 1),
    "an unknown list of 2**63-1 booleans": b"\xf9\xf1" + HUGE,
    "an unknown map of 2**63-1 entries": b"\xfb" + HUGE + b"\x33",
    "an unknown set of 2**63-1 binaries": b"\xfa\xf8" + HUGE,
    "structs 100,000 deep": b"\xfc" + b"\x1c" * 100_000,
    "lists 100,000 deep": b"\xf9" + b"\x19" * 100_000,
    "maps 100,000 deep": b"\xfb" + b"\x01\xbb" * 100_000,
    "a varint that never ends": b"\x15" + b"\xff" * 100_000,
    "a field id that never ends": b"\x05" + b"\xff" * 100_000,
    "a wire type that does not exist": b"\x1f",
    "nothing": b"",
    "an empty struct": b"\x00",
}


@each_case("name", FOOTERS)
@each_case("filler", [b"", bytes(1000), b"\x00" * 500_000], ids=["0", "1e3", "5e5"])
def test_a_hostile_footer_is_an_error_where_it_is_read_first(name: str, filler: bytes) -> None:
    """Before any key is used: plaintext footers and FileCryptoMetaData."""
    tail = FOOTERS[name] + filler
    for magic in (b"PAR1", b"PARE"):
        data = forging.join_tail(magic, tail, magic)
        check_refusal(lambda data=data: encrypt_bytes(data, WRITER), FormatError)  # type: ignore[misc]  # mypy sees no default
        check_refusal(lambda data=data: decrypt_bytes(data, READER), FormatError, IntegrityError)  # type: ignore[misc]  # mypy sees no default


@each_case("name", FOOTERS)
def test_a_hostile_footer_is_an_error_behind_the_lock(name: str) -> None:
    body, _, magic = forging.split_tail(SEALED)
    file = forging.open_file(SEALED, FOOTER_KEY)
    module = forging.seal(FOOTER_KEY, FOOTERS[name], file.file_aad + b"\x00")
    check_refusal(
        lambda: decrypt_bytes(forging.join_tail(body, file.crypto + module, magic), READER),
        FormatError,
    )


# --- lists that are small on disk and large in memory ---------------------------------------------


def many(struct: str, count: int, **fields: object) -> list[ThriftStruct]:
    return [new(struct, **fields)] * count  # one object: only what is read back takes memory


def _column_orders(md: ThriftStruct, part: int = 1) -> None:
    md.column_orders = many("ColumnOrder", 300_000 // part, TYPE_ORDER=new("TypeDefinedOrder"))


def _key_values(md: ThriftStruct, part: int = 1) -> None:
    md.key_value_metadata = many("KeyValue", 300_000 // part, key=b"")


def _schema(md: ThriftStruct, part: int = 1) -> None:
    md.schema = many("SchemaElement", 300_000 // part, name=b"")


def _row_groups(md: ThriftStruct, part: int = 1) -> None:
    md.row_groups = many("RowGroup", 120_000 // part, columns=[], total_byte_size=0, num_rows=0)


def _columns(md: ThriftStruct, part: int = 1) -> None:
    md.row_groups[0].columns = many("ColumnChunk", 250_000 // part, file_offset=0)


def _sorting(md: ThriftStruct, part: int = 1) -> None:
    md.row_groups[0].sorting_columns = many(
        "SortingColumn", 100_000 // part, column_idx=0, descending=True, nulls_first=True
    )


def _encodings(md: ThriftStruct, part: int = 1) -> None:
    md.row_groups[0].columns[0].meta_data.encodings = [0] * (900_000 // part)


def _unknown(md: ThriftStruct, part: int = 1) -> None:
    md._unknown = [(20 + n % 30_000, 1, b"") for n in range(250_000 // part)]


BOMBS = [
    _column_orders, _key_values, _schema, _row_groups, _columns, _sorting, _encodings, _unknown
]  # fmt: skip


@pytest.mark.parametrize(
    ("bomb", "part"),
    [(_columns, 1), (_unknown, 2), *((bomb, 10) for bomb in BOMBS[:-1])],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_list_that_is_larger_in_memory_than_on_disk_stays_small(
    bomb: Callable[[ThriftStruct, int], None], part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limits, sizes and memory are the real ones or a tenth of them, which takes less time."""
    _divide_limits(monkeypatch, part)
    data = forging.edit_plain(PLAIN, lambda metadata: bomb(metadata, part))
    assert len(data) < 1_000_000 // part
    with bound_resources(SMALL // part), contextlib.suppress(ModcryptError):
        encrypt_bytes(data, WRITER)


def _divide_limits(monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    monkeypatch.setattr("modcrypt.parquet.format.compact.MAX_STRUCTS", MAX_STRUCTS // part)
    monkeypatch.setattr("modcrypt.parquet.format.compact.MAX_LIST", MAX_LIST // part)


@each_case("bomb", BOMBS, ids=lambda bomb: bomb.__name__)
def test_a_signed_footer_is_not_unfolded_before_its_signature_is_checked(
    bomb: Callable[[ThriftStruct, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Limits, sizes and memory are a tenth of the real ones."""
    _divide_limits(monkeypatch, 10)
    file = forging.open_file(SIGNED, FOOTER_KEY)
    bomb(file.metadata, 10)
    data = forging.join_tail(file.body, encode(file.metadata) + bytes(28), b"PAR1")
    with bound_resources(SMALL // 10), pytest.raises(IntegrityError):
        decrypt_bytes(data, READER)


# --- numbers of the footer ------------------------------------------------------------------------


@dataclass(frozen=True)
class Field:
    """One number of the footer and how wide it is."""

    where: str  # "metadata", "row group", "chunk" or "column metadata"
    name: str
    largest: int = I64

    def set(self, metadata: ThriftStruct, value: int) -> None:
        chunk = metadata.row_groups[0].columns[1]
        target = {
            "metadata": metadata,
            "row group": metadata.row_groups[0],
            "chunk": chunk,
            "column metadata": chunk.meta_data,
        }[self.where]
        setattr(target, self.name, value)

    def values(self, size: int) -> list[int]:
        edges = [0, 1, 3, 4, 5, size // 2, size - 8, size, 2**31 - 1, 2**31, 2**32, self.largest]
        return [v for n in edges for v in (n, -n, -n - 1) if -self.largest - 1 <= v <= self.largest]


FIELDS = [
    Field("metadata", "version", I32),
    Field("metadata", "num_rows"),
    Field("row group", "total_byte_size"),
    Field("row group", "num_rows"),
    Field("row group", "file_offset"),
    Field("row group", "total_compressed_size"),
    Field("row group", "ordinal", 2**15 - 1),
    Field("chunk", "file_offset"),
    Field("chunk", "column_index_offset"),
    Field("chunk", "column_index_length", I32),
    Field("chunk", "offset_index_offset"),
    Field("chunk", "offset_index_length", I32),
    Field("column metadata", "num_values"),
    Field("column metadata", "codec", I32),
    Field("column metadata", "total_uncompressed_size"),
    Field("column metadata", "total_compressed_size"),
    Field("column metadata", "data_page_offset"),
    Field("column metadata", "index_page_offset"),
    Field("column metadata", "dictionary_page_offset"),
    Field("column metadata", "bloom_filter_offset"),
    Field("column metadata", "bloom_filter_length", I32),
]


def name_field(value: object) -> str | None:
    return value.name if isinstance(value, Field) else None


@each_case(
    ("plaintext_columns", "field"), product([(), ("b",)], FIELDS), ids=name_field, quick=one_in(2)
)
def test_any_number_in_a_plaintext_footer_is_refused_or_survives_both_ways(
    field: Field, plaintext_columns: tuple[str, ...]
) -> None:
    writer = FileEncryptionProperties(footer_key=FOOTER_KEY, plaintext_columns=plaintext_columns)
    for value in field.values(len(PLAIN)):
        data = forging.edit_plain(PLAIN, lambda md, value=value: field.set(md, value))  # type: ignore[misc]  # mypy sees no default
        sealed = outcome(lambda data=data: encrypt_bytes(data, writer))  # type: ignore[misc]  # mypy sees no default
        if isinstance(sealed, bytes):
            # What was taken must come back: a file that can't be opened again is lost.
            forging.read_plain_footer(decrypt_bytes(sealed, READER))


@each_case(
    ("mode", "field"),
    product(["sealed", "signed", "plaintext column"], FIELDS),
    ids=name_field,
    quick=one_in(2),
)
def test_any_number_in_a_footer_behind_the_lock_is_refused_or_gives_a_readable_file(
    field: Field, mode: str
) -> None:
    base = {
        "sealed": SEALED,
        "signed": SIGNED,
        "plaintext column": encrypt_bytes(
            PLAIN, FileEncryptionProperties(footer_key=FOOTER_KEY, plaintext_columns=["b"])
        ),
    }[mode]

    def change(metadata: ThriftStruct, value: int) -> None:
        if mode == "signed":  # there the copy that counts is the sealed one
            _change_sealed_metadata(file, value)
        field.set(metadata, value)

    def _change_sealed_metadata(file: forging.Opened, value: int) -> None:
        aad = file.file_aad + forging.module_suffix(1, 0, 1)
        chunk = file.metadata.row_groups[0].columns[1]
        raw = forging.open_module(FOOTER_KEY, chunk.encrypted_column_metadata, aad)
        metadata, _ = decode("ColumnMetaData", raw)
        if field.where == "column metadata":
            setattr(metadata, field.name, value)
        chunk.encrypted_column_metadata = forging.seal(FOOTER_KEY, encode(metadata), aad)

    for value in field.values(len(base)):
        file = forging.open_file(base, FOOTER_KEY)
        change(file.metadata, value)
        data = file.seal_footer(FOOTER_KEY)
        plain = outcome(lambda data=data: decrypt_bytes(data, READER))  # type: ignore[misc]  # mypy sees no default
        if isinstance(plain, bytes):
            forging.read_plain_footer(plain)


def check_left_out(plain: bytes, writer: FileEncryptionProperties | None = None) -> None:
    """Check that a file is encrypted without its unusable parts, and read with and without them."""
    sealed = encrypt_bytes(plain, writer or WRITER)
    assert modcrypt.verify_parquet(sealed, READER).findings == ()
    assert decrypt_bytes(sealed, READER) == plain
    for data in (sealed, decrypt_bytes(sealed, READER, exact=False), plain):
        for filters in (None, HALF):
            wanted = pq.read_table(io.BytesIO(PLAIN), filters=filters)
            assert modcrypt.read_table(data, ANY, filters=filters).equals(wanted)
    left_out = decrypt_bytes(sealed, READER, exact=False)
    assert pq.read_table(io.BytesIO(left_out)).equals(TABLE)


# --- places that overlap --------------------------------------------------------------------------


def _same_pages(md: ThriftStruct) -> None:
    one, two = (chunk.meta_data for chunk in md.row_groups[0].columns)
    for name in ("data_page_offset", "dictionary_page_offset", "total_compressed_size"):
        setattr(two, name, getattr(one, name))


def _pages_reach_into_the_next(md: ThriftStruct) -> None:
    md.row_groups[0].columns[0].meta_data.total_compressed_size += 1


def _index_in_pages(md: ThriftStruct) -> None:
    md.row_groups[0].columns[0].column_index_offset = 10


def _one_index_for_two(md: ThriftStruct) -> None:
    one, two = md.row_groups[0].columns
    two.offset_index_offset, two.offset_index_length = (
        one.offset_index_offset,
        one.offset_index_length,
    )


def _bloom_in_index(md: ThriftStruct) -> None:
    chunk = md.row_groups[0].columns[0]
    chunk.meta_data.bloom_filter_offset = chunk.column_index_offset


def _bloom_in_footer(md: ThriftStruct) -> None:
    chunk = md.row_groups[0].columns[1]
    chunk.meta_data.bloom_filter_offset = chunk.offset_index_offset + chunk.offset_index_length


def _pages_in_magic(md: ThriftStruct) -> None:
    chunk = md.row_groups[0].columns[0].meta_data
    chunk.dictionary_page_offset, chunk.total_compressed_size = 3, chunk.total_compressed_size + 1


def _row_group_twice(md: ThriftStruct) -> None:
    md.row_groups = md.row_groups * 2
    for row_group in md.row_groups:
        row_group.ordinal = None


def _row_group_ten_thousand_times(md: ThriftStruct) -> None:
    """One chunk of pages for all: small on disk, a terabyte when it is written out."""
    md.row_groups = md.row_groups * 300
    for row_group in md.row_groups:
        row_group.ordinal = None


OVERLAPS = [
    _same_pages, _pages_reach_into_the_next, _index_in_pages, _one_index_for_two, _bloom_in_index,
    _bloom_in_footer, _pages_in_magic, _row_group_twice, _row_group_ten_thousand_times,
]  # fmt: skip


OPTIONAL = _index_in_pages, _one_index_for_two, _bloom_in_index, _bloom_in_footer


@each_case("change", OVERLAPS, ids=lambda change: change.__name__)
def test_places_that_overlap_are_refused(change: forging.Change) -> None:
    """Or left out, if readers of a plaintext file ignore them."""
    plain = forging.edit_plain(PLAIN, change)
    if change in OPTIONAL:
        check_left_out(plain)
    else:
        check_refusal(lambda: encrypt_bytes(plain, WRITER), FormatError)
    check_refusal(
        lambda: decrypt_bytes(forging.change_footer(SEALED, FOOTER_KEY, change), READER),
        FormatError,
    )


# --- schemas --------------------------------------------------------------------------------------


def _nest_groups(depth: int) -> forging.Change:
    def change(md: ThriftStruct) -> None:
        groups = [new("SchemaElement", name=b"g", num_children=1) for _ in range(depth)]
        md.schema = [md.schema[0], *groups, new("SchemaElement", name=b"leaf", type=1)]
        md.schema[0].num_children = 1

    return change


def _root_alone(md: ThriftStruct) -> None:
    md.schema[0].num_children = 0
    del md.schema[1:]


def _children(count: int) -> forging.Change:
    return lambda md: setattr(md.schema[0], "num_children", count)


SCHEMAS = {
    "empty": lambda md: md.schema.clear(),
    "a root alone, but chunks": _root_alone,
    "more children than elements": _children(3),
    "2**31-1 children": _children(I32),
    "-1 children": _children(-1),
    "fewer children than elements": _children(1),
    "a leaf with children": lambda md: setattr(md.schema[1], "num_children", 1),
    "a name that is not UTF-8": lambda md: setattr(md.schema[1], "name", b"\xff\xfe"),
    "another name than the chunk's": lambda md: setattr(md.schema[1], "name", b"z"),
    "groups 250 deep": _nest_groups(250),
    "groups 20,000 deep": _nest_groups(20_000),
    "chunks missing": lambda md: md.row_groups[0].columns.pop(),
    "chunks too many": lambda md: md.row_groups[0].columns.append(md.row_groups[0].columns[0]),
    "no chunks": lambda md: md.row_groups[0].columns.clear(),
    "no column metadata": lambda md: setattr(md.row_groups[0].columns[0], "meta_data", None),
    "a chunk in another file": lambda md: setattr(
        md.row_groups[0].columns[0], "file_path", b"/etc/passwd"
    ),
}  # fmt: skip


@each_case("name", SCHEMAS)
def test_a_schema_that_does_not_fit_the_chunks_is_refused(name: str) -> None:
    change = SCHEMAS[name]
    check_refusal(lambda: encrypt_bytes(forging.edit_plain(PLAIN, change), WRITER), FormatError)
    check_refusal(
        lambda: decrypt_bytes(forging.change_footer(SEALED, FOOTER_KEY, change), READER),
        FormatError,
    )


# --- pages of a plaintext source ------------------------------------------------------------------

V1 = {"data_page_header": new(
    "DataPageHeader", num_values=4, encoding=0,
    definition_level_encoding=3, repetition_level_encoding=3,
)}  # fmt: skip
DICTIONARY = {"dictionary_page_header": new("DictionaryPageHeader", num_values=1, encoding=0)}


def page_header(kind: int, size: int, plain_size: int | None = None, **fields: object) -> bytes:
    return encode(
        new(
            "PageHeader",
            type=kind,
            uncompressed_page_size=size if plain_size is None else plain_size,
            compressed_page_size=size,
            **fields,
        )
    )


def v2_header(definition: int, repetition: int, **fields: object) -> dict[str, ThriftStruct]:
    header = new(
        "DataPageHeaderV2", num_values=4, num_nulls=0, num_rows=4, encoding=0,
        definition_levels_byte_length=definition, repetition_levels_byte_length=repetition,
        **fields,
    )  # fmt: skip
    return {"data_page_header_v2": header}


def with_chunk(pages: bytes, dictionary: bool = False, codec: int = 1) -> bytes:
    """Return a plaintext file whose only chunk holds these bytes."""
    base = plain_file(pa.table({"a": [1, 2, 3, 4]}), use_dictionary=False)
    _, tail, magic = forging.split_tail(base)
    metadata, _ = decode("FileMetaData", tail)
    md = metadata.row_groups[0].columns[0].meta_data
    md.data_page_offset, md.total_compressed_size, md.codec = 4, len(pages), codec
    md.dictionary_page_offset = 4 if dictionary else None
    md.encoding_stats = None
    return forging.join_tail(magic + pages, encode(metadata), magic)


GOOD = page_header(0, 8, **V1) + bytes(8)
PAGES = {
    "good": (GOOD, None),
    "a body of 2**31-1 bytes": (page_header(0, I32, **V1), FormatError),
    "a negative body": (page_header(0, -1, **V1) + bytes(8), FormatError),
    "a negative plain size": (page_header(0, 8, -1, **V1) + bytes(8), FormatError),
    "a body one byte too long": (page_header(0, 9, **V1) + bytes(8), FormatError),
    "a byte after the last page": (GOOD + b"\x15", FormatError),
    "zeros": (bytes(200), FormatError),
    "a type of 99": (page_header(99, 8, **V1) + bytes(8), UnsupportedFormatError),
    "a type of -1": (page_header(-1, 8, **V1) + bytes(8), FormatError),
    "an index page": (page_header(1, 8) + bytes(8), UnsupportedFormatError),
    "two dictionaries": (
        (page_header(2, 8, **DICTIONARY) + bytes(8)) * 2 + GOOD, UnsupportedFormatError
    ),
    "a wrong checksum": (page_header(0, 8, crc=1, **V1) + bytes(8), IntegrityError),
    "no sizes": (b"\x15\x00\x5c\x15\x08\x15\x00\x15\x06\x15\x06\x00\x00" + bytes(8), FormatError),
    "a header that never ends": (b"\x15\x00\x15\x10\x15\x10" + b"\x15\x01" * 200_000, FormatError),
    "structs 100,000 deep": (b"\x15\x00\x15\x10\x15\x10" + b"\x2c" * 100_000, FormatError),
    "statistics of 4 GB": (
        b"\x15\x00\x15\x10\x15\x10\x2c\x18" + varint(2**32 - 1) + bytes(100), FormatError
    ),
    "a V2 page without its header": (page_header(3, 8) + bytes(8), None),
}  # fmt: skip


@each_case("threads", [None, 1])
@each_case("name", PAGES)
def test_a_hostile_page_in_a_plaintext_source(name: str, threads: int | None) -> None:
    pages, error = PAGES[name]
    data = with_chunk(pages, dictionary=pages[1] == 4)
    source: Any = data if threads is None else memoryview(data)  # in memory, or through a window
    if error is None:
        assert isinstance(outcome(lambda: encrypt_bytes(source, WRITER)), bytes | FormatError)
    else:
        check_refusal(lambda: encrypt_bytes(source, WRITER), error)


def test_a_page_header_over_the_limit_is_refused_without_reading_on() -> None:
    """17 MB of one header: the limit is 16, as in Arrow C++."""
    long = b"\x15\x00\x15\x10\x15\x10\x2c\x18" + varint(17 << 20) + bytes((17 << 20) + 40)
    with pytest.raises(FormatError):
        encrypt_bytes(memoryview(with_chunk(long)), WRITER)  # type: ignore[arg-type]  # any buffer will do


@pytest.mark.parametrize(
    ("definition", "repetition"),
    [(-1, 0), (0, -1), (I32, 0), (I32, I32), (9, 0), (4, 5), (-4, 8)],
)
def test_level_lengths_that_pass_the_page_are_refused_where_levels_are_apart(
    definition: int, repetition: int
) -> None:
    page = page_header(3, 8, **v2_header(definition, repetition)) + bytes(8)
    check_refusal(lambda: encrypt_bytes(with_chunk(page), LEVELS_WRITER), FormatError)


@pytest.mark.parametrize("size", [2**31 - 1, 2**31 - 32])
def test_a_page_whose_module_passes_two_gibibytes_is_refused_before_it_is_loaded(
    size: int,
) -> None:
    """A page of zeros takes no memory until someone reads or writes it."""
    header = page_header(0, size, **V1)
    shell = with_chunk(header)
    tail = forging.split_tail(shell)[1]
    metadata, _ = decode("FileMetaData", tail)
    metadata.row_groups[0].columns[0].meta_data.total_compressed_size = len(header) + size
    closing = forging.join_tail(b"", encode(metadata), b"PAR1")
    data = memoryview(mmap.mmap(-1, 4 + len(header) + size + len(closing)))
    data[: 4 + len(header)] = b"PAR1" + header
    data[-len(closing) :] = closing
    with bound_resources(), pytest.raises(LimitError):
        encrypt_bytes(data, WRITER)  # type: ignore[arg-type]  # any buffer will do


# --- sealed modules of a hostile key holder -------------------------------------------------------


def sealed_chunk(
    *modules: tuple[int, int | None, bytes], raw: bytes = b"", dictionary: bool = False,
    codec: int = 1,
) -> bytes:  # fmt: skip
    """Return an encrypted file whose only chunk holds these (type, page ordinal, plaintext)."""
    file = forging.open_file(encrypt_bytes(with_chunk(GOOD), WRITER, exact=False), FOOTER_KEY)
    pages = b"".join(
        forging.seal(FOOTER_KEY, plain, file.file_aad + forging.module_suffix(kind, 0, 0, page))
        for kind, page, plain in modules
    )
    md = file.metadata.row_groups[0].columns[0].meta_data
    md.data_page_offset, md.total_compressed_size, md.codec = 4, len(pages + raw), codec
    md.dictionary_page_offset = 4 if dictionary else None
    file.body = b"PARE" + pages + raw
    return file.seal_footer(FOOTER_KEY)


HEADER, BODY, DICTIONARY_HEADER, DICTIONARY_BODY = 4, 2, 5, 3
OPEN = page_header(0, 40, 8, **V1)


def test_the_sealed_chunk_of_these_tests_is_taken_when_it_is_honest() -> None:
    data = sealed_chunk((HEADER, 0, OPEN), (BODY, 0, bytes(8)))
    plain = forging.read_plain_footer(decrypt_bytes(data, READER))
    assert plain.row_groups[0].columns[0].meta_data.total_compressed_size == len(GOOD)


SEALED_CHUNKS: dict[str, tuple[bytes, tuple[type[ModcryptError], ...]]] = {
    "an empty header": (sealed_chunk((HEADER, 0, b"")), (FormatError,)),
    "a header of zeros": (sealed_chunk((HEADER, 0, bytes(100))), (FormatError,)),
    "a header that never ends": (
        sealed_chunk((HEADER, 0, b"\x15\x00" + b"\x15\xff" * 100)), (FormatError,)
    ),
    "a header of structs 100,000 deep": (
        sealed_chunk((HEADER, 0, b"\x15\x00\x15\x00\x15\x00" + b"\x2c" * 100_000)), (FormatError,)
    ),
    "a body of 0 bytes": (
        sealed_chunk((HEADER, 0, page_header(0, 0, **V1)), (BODY, 0, b"")), (FormatError,)
    ),
    "a body of 31 bytes": (
        sealed_chunk((HEADER, 0, page_header(0, 31, **V1)), (BODY, 0, b"")), (FormatError,)
    ),
    "a body of -1 bytes": (
        sealed_chunk((HEADER, 0, page_header(0, -1, **V1)), (BODY, 0, b"")), (FormatError,)
    ),
    "a body of 2**31-1 bytes": (
        sealed_chunk((HEADER, 0, page_header(0, I32, **V1)), (BODY, 0, b"")), (FormatError,)
    ),
    "a body shorter than its module": (
        sealed_chunk((HEADER, 0, page_header(0, 39, **V1)), (BODY, 0, bytes(8))), (TruncationError,)
    ),
    "a dictionary where data should be": (
        sealed_chunk((HEADER, 0, page_header(2, 40, 8, **DICTIONARY)), (BODY, 0, bytes(8))),
        (UnsupportedFormatError,),
    ),
    "data where a dictionary should be": (
        sealed_chunk(
            (DICTIONARY_HEADER, None, OPEN), (DICTIONARY_BODY, None, bytes(8)), dictionary=True
        ),
        (FormatError,),
    ),
    "no page where a dictionary should be": (
        sealed_chunk((HEADER, 0, OPEN), (BODY, 0, bytes(8)), dictionary=True), (TagMismatchError,)
    ),
    "a page ordinal left out": (
        sealed_chunk((HEADER, 1, OPEN), (BODY, 1, bytes(8))), (TagMismatchError,)
    ),
    "a page twice": (
        sealed_chunk(*((HEADER, 0, OPEN), (BODY, 0, bytes(8))) * 2), (TagMismatchError,)
    ),
    "an index page": (
        sealed_chunk((HEADER, 0, page_header(1, 40, 8)), (BODY, 0, bytes(8))),
        (UnsupportedFormatError,),
    ),
    "an uncompressed page of another size": (
        sealed_chunk(
            (HEADER, 0, page_header(0, 40, 9, **V1)), (BODY, 0, bytes(8)), codec=0
        ),
        (FormatError,),
    ),
    "a V2 page without its header": (
        sealed_chunk((HEADER, 0, page_header(3, 40, 9)), (BODY, 0, bytes(8)), codec=0),
        (FormatError,),
    ),
    "a header module of 0 bytes": (sealed_chunk(raw=bytes(40)), (TruncationError,)),
    "a header module of 27 bytes": (sealed_chunk(raw=b"\x1b" + bytes(40)), (TruncationError,)),
    "a header module of 4 GB": (sealed_chunk(raw=b"\xff" * 40), (TruncationError,)),
    "a chunk of 1 byte": (sealed_chunk(raw=b"\x1c"), (TruncationError,)),
    "bytes after the last page": (
        sealed_chunk((HEADER, 0, OPEN), (BODY, 0, bytes(8)), raw=b"\x00"), (TruncationError,)
    ),
}  # fmt: skip


@each_case("name", SEALED_CHUNKS)
def test_hostile_pages_behind_the_lock_are_refused(name: str) -> None:
    data, errors = SEALED_CHUNKS[name]
    check_refusal(lambda: decrypt_bytes(data, READER), *errors)
    error = outcome(lambda: decrypt_bytes(memoryview(data), READER))  # type: ignore[arg-type]  # any buffer will do
    assert isinstance(error, errors)


@each_case(
    ("definition", "repetition"),
    [(-1, 0), (0, -1), (I32, 0), (I32, I32), (41, 0), (9, 0), (8, 1), (40, 0)],
)
@each_case("compressed", [True, False])
def test_level_lengths_that_pass_the_page_are_refused_behind_the_lock(
    definition: int, repetition: int, compressed: bool
) -> None:
    """The module's own length field is broken, so the reader must look for levels in clear."""
    header = page_header(3, 40, 8, **v2_header(definition, repetition, is_compressed=compressed))
    sealed = sealed_chunk((HEADER, 0, header))
    start = len(forging.split_tail(sealed)[0])
    file = forging.open_file(sealed, FOOTER_KEY)
    file.body += b"\xee" * 40
    file.metadata.row_groups[0].columns[0].meta_data.total_compressed_size += 40
    assert len(file.body) == start + 40
    check_refusal(
        lambda: decrypt_bytes(file.seal_footer(FOOTER_KEY), READER), FormatError, TagMismatchError
    )


def with_module(part: str, plain: bytes) -> bytes:
    """Put another plaintext into an index or bloom filter module of column a, sealed rightly."""
    file = forging.open_file(SEALED, FOOTER_KEY)
    chunk = file.metadata.row_groups[0].columns[0]
    kind = {"column_index": 6, "offset_index": 7, "bloom": 8}[part]
    module = forging.seal(FOOTER_KEY, plain, file.file_aad + forging.module_suffix(kind, 0, 0))
    place = len(file.body)
    if part == "bloom":
        bitset = forging.seal(FOOTER_KEY, bytes(32), file.file_aad + forging.module_suffix(9, 0, 0))
        module += bitset
        chunk.meta_data.bloom_filter_offset = place
        chunk.meta_data.bloom_filter_length = len(module)
    else:
        setattr(chunk, f"{part}_offset", place)
        setattr(chunk, f"{part}_length", len(module))
    file.body += module
    return file.seal_footer(FOOTER_KEY)


def locations(count: int) -> bytes:
    """Return an offset index of so many equal locations, without an object for each."""
    location = encode(new("PageLocation", offset=4, compressed_page_size=1, first_row_index=0))
    return b"\x19\xfc" + varint(count) + location * count + b"\x00"


def test_locations_are_those_of_an_offset_index() -> None:
    assert len(decode("OffsetIndex", locations(20))[0].page_locations) == 20


MODULES = {
    "an empty column index": with_module("column_index", b""),
    "a column index that never ends": with_module("column_index", b"\x19\xf8" + HUGE),
    "a column index of structs 100,000 deep": with_module("column_index", b"\x1c" * 100_000),
    "an empty offset index": with_module("offset_index", b""),
    "an offset index without pages": with_module("offset_index", locations(0)),
    "an offset index of other pages": with_module("offset_index", locations(1)),
    "an offset index of 100,000 pages": with_module("offset_index", locations(100_000)),
    "an offset index of 2**63-1 pages": with_module("offset_index", b"\x19\xfc" + HUGE),
    "a bloom filter of -1 bytes": with_module("bloom", encode(bloom_header(-1))),
    "a bloom filter of 2**31-1 bytes": with_module("bloom", encode(bloom_header(I32))),
    "a bloom filter of 31 bytes": with_module("bloom", encode(bloom_header(31))),
    "an empty bloom filter header": with_module("bloom", b""),
}


def test_the_honest_twin_of_the_hostile_modules_is_taken() -> None:
    assert isinstance(decrypt_bytes(with_module("bloom", encode(bloom_header(32))), READER), bytes)


@each_case("name", MODULES)
def test_hostile_indexes_and_bloom_filters_behind_the_lock_are_refused(name: str) -> None:
    check_refusal(lambda: decrypt_bytes(MODULES[name], READER), FormatError)


@each_case("length", [None, 0, 1, 3, 4, 31, 32, 63])
@each_case("declared", [0, 27, 28, 2**31, 2**32 - 1])
def test_a_bloom_filter_s_own_length_field_is_not_believed(
    length: int | None, declared: int
) -> None:
    """Without bloom_filter_length (older writers) the length fields are all there is."""
    file = forging.open_file(SEALED, FOOTER_KEY)
    md = file.metadata.row_groups[0].columns[0].meta_data
    md.bloom_filter_offset, md.bloom_filter_length = len(file.body), length
    file.body += declared.to_bytes(4, "little") + bytes(64)
    check_refusal(
        lambda: decrypt_bytes(file.seal_footer(FOOTER_KEY), READER), FormatError, IntegrityError
    )


@each_case("size", range(36))
def test_sealed_column_metadata_cut_to_any_length_is_refused(size: int) -> None:
    file = forging.open_file(SIGNED, FOOTER_KEY)
    chunk = file.metadata.row_groups[0].columns[0]
    cut = chunk.encrypted_column_metadata[:size]
    for stored in (cut, max(size - 4, 0).to_bytes(4, "little") + cut[4:]):
        chunk.encrypted_column_metadata = stored
        check_refusal(lambda: decrypt_bytes(file.seal_footer(FOOTER_KEY), READER), IntegrityError)


@each_case("name", FOOTERS)
def test_hostile_column_metadata_behind_the_lock_is_refused(name: str) -> None:
    file = forging.open_file(SIGNED, FOOTER_KEY)
    module = forging.seal(FOOTER_KEY, FOOTERS[name], file.file_aad + forging.module_suffix(1, 0, 0))
    file.metadata.row_groups[0].columns[0].encrypted_column_metadata = module
    check_refusal(lambda: decrypt_bytes(file.seal_footer(FOOTER_KEY), READER), FormatError)


@pytest.mark.parametrize("size", [0, 1, 7, 65_536, 65_537, 900_000])
def test_any_length_of_file_unique_is_taken_or_refused(size: int) -> None:
    """The spec names no length; 64 KiB is modcrypt's limit, and no AAD at all is refused."""
    unique = os.urandom(size)
    file = forging.open_file(SEALED, FOOTER_KEY)
    crypto, _ = decode("FileCryptoMetaData", file.crypto)
    crypto.encryption_algorithm.AES_GCM_V1.aad_file_unique = unique
    file.crypto, file.file_aad = encode(crypto), unique
    error = check_refusal(lambda: decrypt_bytes(file.seal_footer(FOOTER_KEY), READER))
    assert isinstance(error, LimitError) == (size > 65_536)


# --- sources that the writer must not seal blindly ------------------------------------------------


@each_case("junk", [0x00, 0x1C, 0x1F, 0x80, 0xFF], ids=hex)
@each_case("field", ["column_index", "offset_index", "bloom_filter"])
def test_an_index_or_bloom_filter_that_could_not_be_opened_again_is_not_sealed(
    field: str, junk: int
) -> None:
    """Readers ignore it, and so does modcrypt."""
    chunk = forging.read_plain_footer(PLAIN).row_groups[0].columns[0]
    owner = chunk.meta_data if field == "bloom_filter" else chunk
    start = getattr(owner, f"{field}_offset")
    end = start + getattr(owner, f"{field}_length")
    check_left_out(PLAIN[:start] + bytes((junk,)) * (end - start) + PLAIN[end:])


@pytest.mark.parametrize("columns", [[], ["b"]])
def test_bytes_after_an_index_are_not_copied_in_plaintext(columns: list[str]) -> None:
    """Not into the file's plaintext columns either: nothing says what they are."""
    chunk = forging.read_plain_footer(PLAIN).row_groups[0].columns[-1]
    end = chunk.column_index_offset + chunk.column_index_length

    def lengthen(metadata: ThriftStruct) -> None:
        for chunk in metadata.row_groups[0].columns:
            chunk.offset_index_offset += 4
        metadata.row_groups[0].columns[-1].column_index_length += 4

    data = forging.edit_plain(PLAIN[:end] + b"more" + PLAIN[end:], lengthen)
    writer = FileEncryptionProperties(footer_key=FOOTER_KEY, plaintext_columns=columns)
    check_left_out(data, writer)
    file = encrypt_bytes(data, writer)
    assert b"more" not in file
    assert decrypt_bytes(file, READER) == data
    assert b"more" not in decrypt_bytes(file, READER, exact=False)


def test_an_uncompressed_page_of_two_sizes_is_not_sealed() -> None:
    """Its header would say after sealing that the opened page has another size."""
    data = with_chunk(page_header(0, 8, 9, **V1) + bytes(8), codec=0)
    check_refusal(lambda: encrypt_bytes(data, WRITER), FormatError)


def test_a_checksum_is_held_against_the_page_in_both_directions() -> None:
    good = with_chunk(page_header(0, 8, crc=_to_signed(zlib.crc32(bytes(8))), **V1) + bytes(8))
    assert decrypt_bytes(encrypt_bytes(good, WRITER), READER)[: 4 + 8] == good[: 4 + 8]


def _to_signed(value: int) -> int:
    return value - 2**32 if value >> 31 else value


# --- random edits ---------------------------------------------------------------------------------

BASES = fuzz.bases()
PLAIN_BASES = [base.data for base in BASES if base.plain]
SEALED_BASES = [base.data for base in BASES if not base.plain]
NUMBERS = st.one_of(
    st.sampled_from(INTERESTING).map(varint),
    st.integers(-(2**63), 2**63 - 1).map(zigzag).map(varint),
    st.sampled_from(INTERESTING).map(lambda n: (n & (2**32 - 1)).to_bytes(4, "little")),
)
# Where (in thousandths of the file), how many bytes go, and what comes in their place.
SPLICES = st.lists(
    st.tuples(st.integers(0, 1000), st.integers(0, 40), st.one_of(st.binary(max_size=20), NUMBERS)),
    min_size=1,
    max_size=6,
)


def splice(data: bytes, splices: list[tuple[int, int, bytes]]) -> bytes:
    for share, size, replacement in splices:
        at = len(data) * share // 1000
        data = data[:at] + replacement + data[at + size :]
    return data


@given(base=st.sampled_from(PLAIN_BASES), splices=SPLICES)
@example(base=PLAIN_BASES[0], splices=[(1000, 0, b"")])
def test_a_spliced_plaintext_file_gives_a_result_or_a_modcrypt_error(
    base: bytes, splices: list[tuple[int, int, bytes]]
) -> None:
    fuzz.check(splice(base, splices))


@given(base=st.sampled_from(PLAIN_BASES), splices=SPLICES)
def test_a_spliced_plaintext_footer_gives_a_result_or_a_modcrypt_error(
    base: bytes, splices: list[tuple[int, int, bytes]]
) -> None:
    """With a closing length that fits, the edit gets past the first check."""
    body, tail, magic = forging.split_tail(base)
    fuzz.check(forging.join_tail(body, splice(tail, splices), magic))


@given(base=st.sampled_from(SEALED_BASES), splices=SPLICES)
@example(base=SEALED_BASES[0], splices=[(1000, 0, b"")])
def test_a_spliced_encrypted_file_gives_a_result_or_a_modcrypt_error(
    base: bytes, splices: list[tuple[int, int, bytes]]
) -> None:
    fuzz.check(splice(base, splices))


@given(base=st.sampled_from(SEALED_BASES), splices=SPLICES)
def test_a_spliced_footer_behind_the_lock_gives_a_result_or_a_modcrypt_error(
    base: bytes, splices: list[tuple[int, int, bytes]]
) -> None:
    file = forging.open_file(base, FOOTER_KEY)
    body, tail, magic = forging.split_tail(base)
    aad = file.file_aad + forging.FOOTER_SUFFIX
    if magic == b"PAR1":
        footer = splice(tail[:-28], splices)
        data = footer + forging.sign(FOOTER_KEY, footer, aad)
    else:
        plain = forging.open_module(FOOTER_KEY, tail[len(file.crypto) :], aad)
        data = file.crypto + forging.seal(FOOTER_KEY, splice(plain, splices), aad)
    fuzz.check(forging.join_tail(body, data, magic))


@given(st.binary(max_size=300))
def test_any_bytes_give_a_modcrypt_error(data: bytes) -> None:
    for magic in (b"", b"PAR1", b"PARE"):
        fuzz.check(magic + data + magic)
        fuzz.check(forging.join_tail(magic, data, magic))


def test_the_fuzz_driver_s_first_rounds_pass() -> None:
    for number, data in fuzz.rounds(seed=0, files=BASES):
        fuzz.check(data)
        if number == 400:
            break


# --- sizes and places of indexes and bloom filters ------------------------------------------------

HOLE = 200 << 20
"""Size in bytes of a hole in the file, so that lengths over modcrypt's limits fit in the file."""

WITH_PLAINTEXT = FileEncryptionProperties(footer_key=FOOTER_KEY, plaintext_columns=["b"])
SIGNED_PLAINTEXT = FileEncryptionProperties(
    footer_key=FOOTER_KEY, plaintext_columns=["b"], plaintext_footer=True
)
PARTS = {
    "bloom_filter": 128 << 20,
    "column_index": 64 << 20,
    "offset_index": 64 << 20,
}  # longest of each, in bytes, without headers
NEW_KEY = FileEncryptionProperties(footer_key=bytes(range(16)))
HALF = [("b", "=", "x")]

USES: dict[str, Callable[[Path], object]] = {
    "read": lambda path: modcrypt.read_table(path, READER).equals(TABLE),
    "filter": lambda path: modcrypt.read_table(path, READER, filters=HALF).num_rows == 2,
    "view": lambda path: _read_view(path),
    "decrypt": lambda path: modcrypt.decrypt_parquet(path, io.BytesIO(), READER),
    "rekey": lambda path: modcrypt.rekey_parquet(path, io.BytesIO(), READER, NEW_KEY),
    "share": lambda path: modcrypt.share_parquet(path, io.BytesIO(), READER, NEW_KEY, ["b"]),
    "mask": lambda path: modcrypt.mask_parquet(path, io.BytesIO(), READER, null=["a"]),
    "verify": lambda path: modcrypt.verify_parquet(path, READER),
    "inspect": lambda path: modcrypt.inspect_parquet(path, READER, pages=True),
}  # fmt: skip


def _read_view(path: Path) -> bool:
    with modcrypt.open_parquet(path, READER) as view:
        return bool(pq.read_table(view).equals(TABLE))


def with_hole(data: bytes) -> Callable[[Path], None]:
    """Return a function that writes a file with a hole between its modules and its footer."""
    body, tail, magic = forging.split_tail(data)

    def write(path: Path) -> None:
        with path.open("wb") as file:
            file.write(body)
            file.seek(HOLE, os.SEEK_CUR)
            file.write(forging.join_tail(b"", tail, magic))

    return write


def hostile_place(rng: random.Random, limit: int, size: int, taken: list[int]) -> tuple[int, int]:
    """Return an offset and a length; one of them, or both together, are impossible."""
    inside, fits = rng.choice(taken), rng.randrange(1, 100)
    return rng.choice([
        (inside, 0),
        (inside, -rng.randrange(1, I32)),
        (inside, I32),
        (inside, rng.randrange(1, size)),
        (-rng.randrange(1, I64), fits),
        (0, fits),
        (size + HOLE + rng.randrange(1 << 40), fits),
        (I64, I32),
        (size, rng.randrange(limit + 4096, HOLE)),
        (size, rng.randrange(HOLE, I32)),
        (size + HOLE - 1, fits),
    ])  # fmt: skip


def set_place(md: ThriftStruct, part: str, offset: int, length: int) -> None:
    chunk = md.row_groups[0].columns[1]
    owner = chunk.meta_data if part == "bloom_filter" else chunk
    setattr(owner, f"{part}_offset", offset)
    setattr(owner, f"{part}_length", length)


def hostile_change(rng: random.Random, size: int) -> forging.Change:
    """Return a change of the places of one to three parts of column b."""
    changed = rng.sample(list(PARTS), rng.randrange(1, 4))

    def change(md: ThriftStruct) -> None:
        taken = [4, *(chunk.meta_data.data_page_offset for chunk in md.row_groups[0].columns)]
        taken += [chunk.offset_index_offset for chunk in md.row_groups[0].columns]
        for part in changed:
            set_place(md, part, *hostile_place(rng, PARTS[part], size, taken))

    return change


@pytest.mark.seeded
@pytest.mark.parametrize("mode", ["sealed", "plaintext column", "signed"])
def test_hostile_places_of_indexes_and_bloom_filters_cost_little(mode: str, tmp_path: Path) -> None:
    writer = {"sealed": WRITER, "plaintext column": WITH_PLAINTEXT, "signed": SIGNED_PLAINTEXT}
    base, path, rng = (
        encrypt_bytes(PLAIN, writer[mode]),
        tmp_path / "t.parquet",
        dice(f"places {mode}"),
    )
    for _ in range(20):
        change = hostile_change(rng, len(base))
        with_hole(forging.change_footer(base, FOOTER_KEY, change))(path)
        refusals = set()
        for name, use in USES.items():
            with bound_resources():
                try:
                    assert use(path) is not False, name
                except ModcryptError:
                    refusals.add(name)
        assert refusals.isdisjoint({"verify", "inspect"})
        if "decrypt" in refusals:
            assert not modcrypt.verify_parquet(path, READER).ok


@pytest.mark.seeded
def test_hostile_places_in_a_plaintext_file_cost_little(tmp_path: Path) -> None:
    path, rng = tmp_path / "t.parquet", dice("plaintext places")
    for _ in range(30):
        change = hostile_change(rng, len(PLAIN))
        with_hole(forging.edit_plain(PLAIN, change))(path)
        with bound_resources():
            with contextlib.suppress(FormatError):
                modcrypt.encrypt_parquet(path, io.BytesIO(), WRITER)
            modcrypt.verify_parquet(path)
            modcrypt.inspect_parquet(path, pages=True)


@each_case("part", PARTS)
def test_lengths_over_the_limit_are_refused_before_they_are_read(part: str, tmp_path: Path) -> None:
    base, path = encrypt_bytes(PLAIN, WITH_PLAINTEXT), tmp_path / "t.parquet"

    def change(md: ThriftStruct) -> None:
        set_place(md, part, len(base), PARTS[part] + 4096)

    with_hole(forging.change_footer(base, FOOTER_KEY, change))(path)
    for name in ("read", "view", "decrypt", "rekey", "share"):
        with bound_resources(), pytest.raises(LimitError, match="at most"):
            USES[name](path)
    with bound_resources():
        assert "limit" in {
            finding.word for finding in modcrypt.verify_parquet(path, READER).findings
        }


# --- what is encrypted can be decrypted ----------------------------------------------------------


@pytest.mark.parametrize("mask", [0x0F, 0xF0])  # field numbers are in the upper half
@pytest.mark.parametrize("keyed", [False, True], ids=["uniform", "a key of its own"])
def test_what_encryption_takes_from_a_damaged_footer_decryption_returns(
    keyed: bool, mask: int
) -> None:
    """Encryption copies statistics unread, so decryption must not judge them."""
    column = {"a.list.element": bytes(range(16))} if keyed else {}
    writer = FileEncryptionProperties(footer_key=FOOTER_KEY, column_keys=column)
    reader = FileDecryptionProperties(footer_key=FOOTER_KEY, column_keys=column)
    plain = plain_file(pa.table({"a": [[1, 2], [], None]}))
    start = len(plain) - 8 - int.from_bytes(plain[-8:-4], "little")
    accepted = 0
    for at in range(start, len(plain) - 8):
        damaged = bytearray(plain)
        damaged[at] ^= mask
        try:
            sealed = encrypt_bytes(bytes(damaged), writer)
        except ModcryptError:
            continue
        decrypt_bytes(sealed, reader)
        accepted += 1
    assert accepted > 20


def test_what_encryption_takes_from_damaged_levels_decryption_returns() -> None:
    """Levels in plaintext are checked against the page header, on encryption as on decryption."""
    writer = FileEncryptionProperties(footer_key=FOOTER_KEY, data_page_v2_levels="plaintext")
    reader = FileDecryptionProperties(footer_key=FOOTER_KEY)
    plain = plain_file(pa.table({"a": [[1, 2], [], None]}), data_page_version="2.0")
    end, refused = len(plain) - 8 - int.from_bytes(plain[-8:-4], "little"), 0
    for at, mask in product(range(4, end), (0x0F, 0xF0)):
        damaged = bytearray(plain)
        damaged[at] ^= mask
        try:
            sealed = encrypt_bytes(bytes(damaged), writer)
        except ModcryptError as error:
            refused += "readers would refuse" in str(error)
            continue
        decrypt_bytes(sealed, reader)
    assert refused > 2

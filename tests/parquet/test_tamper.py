"""Every byte of an encrypted file is flipped, cut off or exchanged, and the reader notices.

What it can't notice is said by name: `_carries_nothing` and the tests called `..._unseen`.
Files exchanged and rearranged as a whole are in tests/interop/test_tamper_matrix.py.
"""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from modcrypt import (
    FileDecryptionProperties,
    FileEncryptionProperties,
    ModcryptError,
    decrypt_parquet,
    read_table,
)
from modcrypt.errors import (
    AadPrefixError,
    ChecksumError,
    FooterSignatureError,
    FormatError,
    IntegrityError,
    PlaintextError,
    TagMismatchError,
    TruncationError,
    UnsupportedFormatError,
)
from modcrypt.parquet import ModuleId, ModuleType
from modcrypt.parquet.format.idl import ThriftStruct, decode, encode, new
from tests.support import forging
from tests.support.file_kinds import BOTH, CASES, CRC, KEYED_READER, PF, READER, TABLE, Case
from tests.support.forging import decrypt_bytes, encrypt_bytes, plain_file
from tests.support.keys import COLUMN_KEY, FOOTER_KEY
from tests.support.module_spans import list_modules
from tests.support.randomness import SEED
from tests.support.shared_vectors import shared_vectors

UNIFORM = [case for case in CASES if "uniform" in case.name]
MIXES = [case for case in CASES if "mixed" in case.name]


def by_name(case: Case) -> str:
    return case.name


class Flipper:
    """Decrypts altered copies of one file, one in `TO_A_FILE` into a folder.

    The folder must stay empty on failure. To publish a file costs more than to decrypt it.
    """

    TO_A_FILE = 16

    def __init__(self, data: bytes, reader: FileDecryptionProperties, folder: Path) -> None:
        self.data, self.reader = data, reader
        self.folder = folder / "out"
        self.folder.mkdir()
        self.tries = itertools.count()
        self.untouched = decrypt_bytes(data, reader)

    def try_bytes(self, data: bytes) -> ModcryptError | bytes:
        """Return the plaintext of the altered file, or the error."""
        if next(self.tries) % self.TO_A_FILE:
            sink = io.BytesIO()
            try:
                decrypt_parquet(data, sink, self.reader, threads=1)
            except ModcryptError as error:
                return error
            return sink.getvalue()
        destination = self.folder / "plain.parquet"
        try:
            decrypt_parquet(data, destination, self.reader, threads=1)
        except ModcryptError as error:
            failure = error
        else:
            result = destination.read_bytes()
            destination.unlink()
            return result
        assert list(self.folder.iterdir()) == [], f"{failure} left a file"
        return failure

    def flip(self, position: int, mask: int) -> ModcryptError | bytes:
        data = bytearray(self.data)
        data[position] ^= mask
        return self.try_bytes(bytes(data))


# --- which byte belongs to what -------------------------------------------------------------------


def _crypto_span(data: bytes) -> range:
    """Return the bytes of FileCryptoMetaData; none in plaintext footer mode."""
    body, tail, magic = forging.split_tail(data)
    if magic == b"PAR1":
        return range(0)
    return range(len(body), len(body) + decode("FileCryptoMetaData", tail)[1])


def _plaintext_spans(data: bytes, column: int) -> list[range]:
    """Return the pages, indexes and bloom filters of a column that is left in plaintext."""
    spans = []
    for row_group in forging.open_file(data, FOOTER_KEY).metadata.row_groups:
        chunk = row_group.columns[column]
        md = chunk.meta_data
        start = md.dictionary_page_offset or md.data_page_offset
        for offset, length in (
            (start, md.total_compressed_size),
            (md.bloom_filter_offset, md.bloom_filter_length),
            (chunk.column_index_offset, chunk.column_index_length),
            (chunk.offset_index_offset, chunk.offset_index_length),
        ):
            spans.append(range(offset, offset + length))
    return spans


def _clear_levels(data: bytes, reader: FileDecryptionProperties) -> list[range]:
    """Return the levels that parquet-java's layout of a data page V2 leaves in clear.

    The header is sealed, so their length is known from the plaintext file: one byte of
    definition levels per run here, and what precedes the module's own length field.
    """
    spans = []
    for span in list_modules(data, reader):
        if span.module.type is ModuleType.DATA_PAGE:
            stored = data[span.start : span.end]
            clear = next(
                n
                for n in range(len(stored) - 3)
                if int.from_bytes(stored[n : n + 4], "little") == len(stored) - n - 4
            )
            spans.append(range(span.start, span.start + clear))
    return spans


def _carries_nothing(data: bytes) -> dict[str, set[int]]:
    """Name the bytes of FileCryptoMetaData that may change without changing what is read.

    - `supply_aad_prefix` is False, which is also its meaning when the field is not there: its
      field head may turn into that of a field that no reader knows.
    - Key metadata is there for a key retriever; a reader that was given the key ignores it.
    """
    crypto = _crypto_span(data)
    if not crypto:
        return {}
    raw = data[crypto.start : crypto.stop]
    # 0x12 is the head of a boolean False one field after aad_file_unique, which ends there.
    struct = decode("FileCryptoMetaData", raw)[0].encryption_algorithm.AES_GCM_V1
    unique = raw.index(struct.aad_file_unique)
    supply = unique + len(struct.aad_file_unique)
    assert raw[supply] == 0x12
    named = {"supply_aad_prefix": {crypto.start + supply}}
    if b"\x18\x02kf" in raw:
        head = raw.index(b"\x18\x02kf")
        named["key metadata"] = {crypto.start + head + n for n in (0, 2, 3)}
    return named


# --- flips ----------------------------------------------------------------------------------------


def _all_modules(data: bytes, reader: FileDecryptionProperties) -> dict[int, tuple[ModuleId, int]]:
    """Return the module of every byte in a module, and the byte's index in it."""
    owners = {}
    for span in list_modules(data, reader):
        for position in range(span.start, span.end):
            assert position not in owners
            owners[position] = span.module, position - span.start
    return owners


@pytest.mark.seeded
@pytest.mark.parametrize("case", UNIFORM, ids=by_name)
def test_every_flipped_byte_of_a_uniform_file_is_noticed(case: Case, tmp_path: Path) -> None:
    """Bytes that are parsed before they are authenticated are flipped in two ways.

    Of ciphertexts, `make test` flips every eighth byte, some of each nonce and tag among them, and
    `make test-random` all.
    """
    data = case.write("ab")
    owners = _all_modules(data, case.reader)
    flipper = Flipper(data, case.reader, tmp_path)
    unseen = set()
    for position in range(len(data)):
        owner = owners.get(position)
        if _is_left_out(position, owner, data):
            continue
        for mask in (0x01,) if _is_ciphertext(owner, data) else (0x01, 0x80):
            result = flipper.flip(position, mask)
            if isinstance(result, bytes):
                assert result == flipper.untouched
                unseen.add(position)
            else:
                _check_blame(result, owner, data)
    allowed = set().union(*_carries_nothing(data).values())
    assert unseen <= allowed
    outside = set(range(len(data))) - owners.keys()
    # Magic, FileCryptoMetaData, closing length and magic: no gap hides between the modules.
    assert outside == {*range(4), *_crypto_span(data), *range(len(data) - 8, len(data))}


def _is_ciphertext(owner: tuple[ModuleId, int] | None, data: bytes) -> bool:
    """Return whether a byte is only ever decrypted: its bits are then all alike to a reader."""
    if owner is None:
        return False
    module, index = owner
    signed = module.type is ModuleType.FOOTER and data[:4] == b"PAR1"
    return index >= 4 and not signed


def _is_left_out(position: int, owner: tuple[ModuleId, int] | None, data: bytes) -> bool:
    return SEED is None and position % 8 > 0 and _is_ciphertext(owner, data)


def _check_blame(error: ModcryptError, owner: tuple[ModuleId, int] | None, data: bytes) -> None:
    """Hold the error against the module whose byte was flipped."""
    if owner is None:
        return
    module, index = owner
    if module.type is ModuleType.FOOTER and data[:4] == b"PAR1":
        # A signed footer is parsed before its signature can be found.
        assert isinstance(error, FooterSignatureError | FormatError | PlaintextError)
    elif index < 4:
        assert isinstance(error, TruncationError | TagMismatchError | FormatError)
        if isinstance(error, TagMismatchError):
            assert error.module == module
    else:
        assert isinstance(error, TagMismatchError)
        assert error.module == module
        assert str(module) in str(error)


@pytest.mark.seeded
@pytest.mark.parametrize("case", MIXES, ids=by_name)
def test_only_the_plaintext_column_of_a_mixed_file_may_change_unseen(
    case: Case, tmp_path: Path
) -> None:
    data = case.write()
    owners = _all_modules(data, case.reader)
    plaintext = set(itertools.chain.from_iterable(_plaintext_spans(data, column=2)))
    named = {
        "pages, indexes and bloom filters of the plaintext column": plaintext,
        "levels in clear": set(itertools.chain.from_iterable(_clear_levels(data, case.reader))),
        **_carries_nothing(data),
    }
    assert plaintext.isdisjoint(owners)
    assert bool(named["levels in clear"]) == ("levels-plaintext" in case.name)
    flipper = Flipper(data, case.reader, tmp_path)
    unseen = set()
    for position in range(len(data)):
        if _is_left_out(position, owners.get(position), data):
            continue
        if SEED is None and position % 4 and position in plaintext:  # a read of the rest for each
            continue
        result = flipper.flip(position, 0x01)
        if isinstance(result, bytes):
            unseen.add(position)
            if position in plaintext:
                _check_confined(result, flipper.untouched)
            elif position in named["levels in clear"]:
                assert (
                    sum(new != old for new, old in zip(result, flipper.untouched, strict=True)) == 1
                )
            else:
                assert result == flipper.untouched
        elif position not in plaintext | named["levels in clear"]:
            _check_blame(result, owners.get(position), data)
    assert unseen <= set().union(*named.values())
    covered = owners.keys() | plaintext | set(_crypto_span(data))
    assert set(range(len(data))) - covered == {*range(4), *range(len(data) - 8, len(data))}


def _check_confined(result: bytes, untouched: bytes) -> None:
    """Check that a flip in an unauthenticated byte reached nothing of the sealed columns."""
    sealed = ["a", "b"]
    assert pq.read_table(io.BytesIO(result), columns=sealed) == TABLE.select(sealed)
    if len(result) == len(untouched):  # else a number of an offset index changed its width
        pairs = zip(result, untouched, strict=True)
        changed = [position for position, (new, old) in enumerate(pairs) if new != old]
        assert changed[-1] - changed[0] < 3  # one byte, or one relocated offset


def test_file_crypto_metadata_gives_the_same_plaintext_or_an_error_whatever_its_bytes(
    tmp_path: Path,
) -> None:
    """Nothing authenticates these bytes, so all 255 other values of each are tried."""
    data = CASES[0].write()
    flipper = Flipper(data, READER, tmp_path)
    allowed = set().union(*_carries_nothing(data).values())
    for position in _crypto_span(data):
        for mask in range(1, 256):
            result = flipper.flip(position, mask)
            if isinstance(result, bytes):
                assert position in allowed
                assert result == flipper.untouched


@pytest.mark.parametrize("case", [CASES[0], CASES[5], CASES[7]], ids=by_name)
def test_a_file_cut_short_anywhere_is_an_error(case: Case, tmp_path: Path) -> None:
    data = case.write()
    flipper = Flipper(data, case.reader, tmp_path)
    for length in range(len(data)):
        assert isinstance(flipper.try_bytes(data[:length]), ModcryptError), length


@pytest.mark.seeded
@pytest.mark.parametrize("case", [CASES[0], CASES[5]], ids=by_name)
def test_a_byte_taken_out_or_put_in_anywhere_is_an_error(case: Case, tmp_path: Path) -> None:
    """Offsets are sealed or signed, so nothing may shift."""
    data = case.write("ab")
    flipper = Flipper(data, case.reader, tmp_path)
    crypto = _crypto_span(data)
    gap = len(forging.split_tail(data)[0])
    padded = data[:gap] + b"\x00" + data[gap:]  # the format allows unused bytes before the footer
    for position in range(len(data)):
        if position in crypto[1:]:  # length fields may be changed along with it
            continue
        if SEED is None and position % 4 and abs(position - gap) > 8:
            continue  # shifts of ciphertexts are alike; `make test-random` tries all
        shorter = data[:position] + data[position + 1 :]
        longer = data[:position] + b"\x00" + data[position:]
        assert isinstance(flipper.try_bytes(shorter), ModcryptError), position
        result = flipper.try_bytes(longer)
        if longer == padded:  # at the gap, and before a tag that ends in zero bytes
            assert result == flipper.untouched
        else:
            assert isinstance(result, ModcryptError), position


@pytest.mark.parametrize("name", ["enc/aad_none_gcm_pf.parquet", "enc/aad_unstored_gcm_ef.parquet"])
def test_sealed_bytes_of_parquet_java_are_guarded_padding_included(
    name: str, tmp_path: Path
) -> None:
    """Every eleventh byte, and each module's first and last."""
    folder = shared_vectors() / "parquet-java"
    entries = json.loads((folder / "manifest.json").read_text())["entries"]
    (entry,) = (entry for entry in entries if entry["file"] == name)
    prefix = entry["enc"]["aad_prefix"]
    reader = FileDecryptionProperties(
        footer_key=bytes.fromhex(entry["enc"]["footer_key"]),
        column_keys={
            path: bytes.fromhex(column["key"])
            for path, column in (entry["enc"]["columns"] or {}).items()
            if column["key"] is not None
        },
        aad_prefix=None if prefix is None else prefix.encode(),
    )
    data = (folder / name).read_bytes()
    flipper = Flipper(data, reader, tmp_path)
    for span in list_modules(data, reader):
        for position in {*range(span.start, span.end, 11), span.start, span.end - 1}:
            error = flipper.flip(position, 0x01)
            assert isinstance(error, ModcryptError), (span, position)
            _check_blame(error, (span.module, position - span.start), data)


def test_column_metadata_is_guarded_by_its_own_seal_when_the_signature_is_not_checked(
    tmp_path: Path,
) -> None:
    data = Case("", properties=PF | {"column_keys": {"b": COLUMN_KEY}}).write()
    unchecked = FileDecryptionProperties(
        footer_key=FOOTER_KEY, column_keys={"b": COLUMN_KEY}, check_footer_integrity=False
    )
    flipper = Flipper(data, unchecked, tmp_path)
    for r, row_group in enumerate(forging.open_file(data, FOOTER_KEY).metadata.row_groups):
        for c, chunk in enumerate(row_group.columns):
            sealed = chunk.encrypted_column_metadata
            start = data.index(sealed)
            module = ModuleId(ModuleType.COLUMN_METADATA, r, c, path="abc"[c])
            for position in range(start, start + len(sealed)):
                error = flipper.flip(position, 0x01)
                if position < start + 4:
                    assert isinstance(error, TruncationError)
                else:
                    assert isinstance(error, TagMismatchError)
                    assert error.module == module


# --- modules moved or exchanged -------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_exchanging_two_modules_of_one_size_is_an_error(case: Case, tmp_path: Path) -> None:
    data = case.write()
    flipper = Flipper(data, case.reader, tmp_path)
    exchanged = 0
    for first, second in itertools.combinations(list_modules(data, case.reader), 2):
        if first.end - first.start != second.end - second.start:
            continue
        swapped = bytearray(data)
        swapped[first.start : first.end] = data[second.start : second.end]
        swapped[second.start : second.end] = data[first.start : first.end]
        error = flipper.try_bytes(bytes(swapped))
        assert isinstance(error, TagMismatchError)
        assert error.module in (first.module, second.module)
        exchanged += 1
    assert exchanged > 10


def test_a_module_of_another_file_under_the_same_key_is_an_error(tmp_path: Path) -> None:
    """The two differ in their file-unique alone: same table, key and layout."""
    data, other = CASES[2].write(), CASES[2].write()
    flipper = Flipper(data, READER, tmp_path)
    spans = list_modules(data, READER)
    assert spans == list_modules(other, READER)
    for span in spans:
        mixed = bytearray(data)
        mixed[span.start : span.end] = other[span.start : span.end]
        error = flipper.try_bytes(bytes(mixed))
        assert isinstance(error, TagMismatchError)
        assert error.module == span.module


# --- the algorithm's name -------------------------------------------------------------------------


def _relabel(data: bytes) -> bytes:
    """Rename AES_GCM_V1 to AES_GCM_CTR_V1, as anyone can in an encrypted-footer file."""

    def change(crypto: ThriftStruct) -> None:
        gcm = crypto.encryption_algorithm.AES_GCM_V1
        ctr = new(
            "AesGcmCtrV1",
            aad_file_unique=gcm.aad_file_unique,
            supply_aad_prefix=gcm.supply_aad_prefix,
        )
        crypto.encryption_algorithm = new("EncryptionAlgorithm", AES_GCM_CTR_V1=ctr)

    return forging.edit_crypto(data, change)


def _forge_pages(data: bytes, reader: FileDecryptionProperties, flips: int) -> bytes:
    """Turn GCM page modules into CTR ones of the same size, and flip bits of their plaintext.

    GCM encrypts from counter 2 on, PME's CTR from 1: sixteen bytes put before the ciphertext
    move it to its keystream, and dropping the tag makes room for them.
    """
    forged = bytearray(data)
    for span in list_modules(data, reader):
        if span.module.type in (ModuleType.DATA_PAGE, ModuleType.DICTIONARY_PAGE):
            body = bytes(byte ^ flips for byte in data[span.start + 16 : span.end - 16])
            forged[span.start + 16 : span.end] = bytes(16) + body
    return bytes(forged)


def _uniform(**options: Any) -> bytes:
    source = plain_file(TABLE, store_schema=False, **options)
    return encrypt_bytes(source, FileEncryptionProperties(footer_key=FOOTER_KEY))


ACCEPTS_BOTH = FileDecryptionProperties(footer_key=FOOTER_KEY, accept_algorithms=BOTH)


@pytest.mark.parametrize("forge", [False, True], ids=["relabelled", "relabelled-and-forged"])
@pytest.mark.parametrize("options", [{}, CRC, {"compression": "none"}], ids=str)
def test_a_file_relabelled_as_ctr_is_refused_by_default(
    options: dict[str, Any], forge: bool
) -> None:
    data = _uniform(**options)
    if forge:
        data = _forge_pages(data, READER, 0)
    with pytest.raises(UnsupportedFormatError, match=r'accept_algorithms=\["AES_GCM_CTR_V1"\]'):
        decrypt_bytes(_relabel(data), READER)


@pytest.mark.parametrize(
    ("options", "forge", "error"),
    [
        # The size is wrong under CTR, and the tag that matches says why.
        ({"compression": "none"}, False, FormatError),
        ({"compression": "none"}, True, FormatError),
        # The checksum is over the stored bytes: it finds forged ones, not misread ones.
        (CRC, True, ChecksumError),
    ],
    ids=["uncompressed-relabelled", "uncompressed-forged", "crc-forged"],
)
def test_relabelling_is_noticed_where_ctr_is_accepted_by_page_sizes_or_checksums(
    options: dict[str, Any], forge: bool, error: type[ModcryptError]
) -> None:
    data = _uniform(**options)
    if forge:
        data = _forge_pages(data, READER, 0)
    with pytest.raises(error):
        decrypt_bytes(_relabel(data), ACCEPTS_BOTH)


@pytest.mark.parametrize("options", [{}, {"data_page_version": "2.0"}], ids=str)
def test_a_relabelled_compressed_page_is_refused_by_its_tag_where_ctr_is_accepted(
    options: dict[str, Any],
) -> None:
    """The page sizes of a header say nothing about a compressed page; its tag still matches."""
    data = _relabel(_uniform(compression="snappy", **options))
    for way in (decrypt_bytes, read_table):
        with pytest.raises(IntegrityError, match="it has a tag, and the tag matches"):
            way(data, ACCEPTS_BOTH)


def test_a_forged_compressed_page_without_checksum_is_unseen_where_ctr_is_accepted() -> None:
    """Why AES_GCM_CTR_V1 must be accepted by name: the attacker's bit flips come out."""
    data = _uniform(compression="snappy")
    forged = decrypt_bytes(_relabel(_forge_pages(data, READER, 0x40)), ACCEPTS_BOTH)
    (page,) = _first_page_bodies(decrypt_bytes(data, READER), 1)
    assert bytes(byte ^ 0x40 for byte in page) in forged


def _first_page_bodies(plain: bytes, count: int) -> list[bytes]:
    """Return the bodies of the first pages of a plaintext file."""
    bodies, at = [], 4
    for _ in range(count):
        header, at = decode("PageHeader", plain, at)
        bodies.append(plain[at : at + header.compressed_page_size])
        at += header.compressed_page_size
    return bodies


def test_page_headers_stay_sealed_in_a_relabelled_file() -> None:
    data = _uniform(compression="snappy")
    header = list_modules(data, READER)[0]
    flipped = bytearray(_relabel(data))
    flipped[header.start + 20] ^= 1
    with pytest.raises(TagMismatchError) as raised:
        decrypt_bytes(bytes(flipped), ACCEPTS_BOTH)
    assert raised.value.module == header.module


# --- the border between AAD prefix and file-unique ------------------------------------------------


def _move_border(data: bytes, count: int) -> bytes:
    """Move the prefix's last bytes to the front of the file-unique: no AAD changes by that."""

    def change(crypto: ThriftStruct) -> None:
        gcm = crypto.encryption_algorithm.AES_GCM_V1
        gcm.aad_file_unique = gcm.aad_prefix[-count:] + gcm.aad_file_unique
        gcm.aad_prefix = gcm.aad_prefix[:-count]

    return forging.edit_crypto(data, change)


def test_a_prefix_whose_border_was_moved_is_refused_when_a_prefix_is_expected() -> None:
    source = plain_file(TABLE)
    data = encrypt_bytes(
        source, FileEncryptionProperties(footer_key=FOOTER_KEY, aad_prefix=b"part.10")
    )
    moved = _move_border(data, 1)
    expecting = FileDecryptionProperties(footer_key=FOOTER_KEY, aad_prefix=b"part.1")
    with pytest.raises(AadPrefixError, match="9 bytes, not 8"):
        decrypt_bytes(moved, expecting)
    # The AADs are the same, so only the length gives it away: whoever names 9 accepts it.
    lax = FileDecryptionProperties(
        footer_key=FOOTER_KEY, aad_prefix=b"part.1", aad_file_unique_size=9
    )
    assert decrypt_bytes(moved, lax) == decrypt_bytes(data, READER)


# --- signature stripped ---------------------------------------------------------------------------


@pytest.mark.parametrize("check", [True, False], ids=["checked", "unchecked"])
@pytest.mark.parametrize("mixed", [True, False], ids=["mixed", "all-plaintext"])
def test_a_footer_whose_signature_was_stripped_is_no_encrypted_file(
    mixed: bool, check: bool
) -> None:
    """PyArrow's CryptoFactory and Polars read such a file as plaintext."""
    names = ["c"] if mixed else ["a", "b", "c"]
    data = encrypt_bytes(
        plain_file(TABLE),
        FileEncryptionProperties(
            footer_key=FOOTER_KEY, plaintext_columns=names, plaintext_footer=True
        ),
    )
    body, tail, magic = forging.split_tail(data)
    metadata, _ = decode("FileMetaData", tail)
    metadata.encryption_algorithm = metadata.footer_signing_key_metadata = None
    metadata.row_groups[0].columns[2].meta_data.statistics.max_value = b"forged!!"
    stripped = forging.join_tail(body, encode(metadata), magic)
    assert pq.ParquetFile(io.BytesIO(stripped)).read(["c"]).num_rows == TABLE.num_rows
    reader = FileDecryptionProperties(footer_key=FOOTER_KEY, check_footer_integrity=check)
    with pytest.raises(PlaintextError):
        decrypt_bytes(stripped, reader)


# --- what a holder of the footer key alone can do -------------------------------------------------


def _encrypt_with_keys(**properties: Any) -> bytes:
    """Write two row groups whose column b has a key that the attacker lacks."""
    return encrypt_bytes(
        plain_file(TABLE, row_group_size=2, store_schema=False),
        FileEncryptionProperties(
            footer_key=FOOTER_KEY, column_keys={"b": COLUMN_KEY}, **properties
        ),
    )


MODES = pytest.mark.parametrize("mode", [{}, PF], ids=["ef", "pf"])


@pytest.mark.parametrize("ordinal", [1, 2, -1, 32767, -32768])
def test_a_row_group_ordinal_unlike_its_position_is_refused(ordinal: int) -> None:
    def change(metadata: ThriftStruct) -> None:
        metadata.row_groups[0].ordinal = ordinal

    with pytest.raises(FormatError, match="ordinal"):
        decrypt_bytes(forging.change_footer(_encrypt_with_keys(), FOOTER_KEY, change), KEYED_READER)


def test_a_column_that_takes_another_s_place_is_refused() -> None:
    """The schema's columns exchanged, or their chunks: keys and AADs go by name and position."""

    def exchange_schema(metadata: ThriftStruct) -> None:
        schema = metadata.schema
        schema[1], schema[2] = schema[2], schema[1]

    def exchange_chunks(metadata: ThriftStruct) -> None:
        for row_group in metadata.row_groups:
            columns = row_group.columns
            columns[0], columns[1] = columns[1], columns[0]

    def exchange_both(metadata: ThriftStruct) -> None:
        exchange_schema(metadata)
        exchange_chunks(metadata)

    for change in (exchange_schema, exchange_chunks):
        with pytest.raises(FormatError):
            decrypt_bytes(
                forging.change_footer(_encrypt_with_keys(), FOOTER_KEY, change), KEYED_READER
            )
    with pytest.raises(TagMismatchError):
        decrypt_bytes(
            forging.change_footer(_encrypt_with_keys(), FOOTER_KEY, exchange_both), KEYED_READER
        )


def test_a_chunk_of_one_row_group_repeated_in_another_is_refused() -> None:
    def change(metadata: ThriftStruct) -> None:
        first, second = metadata.row_groups
        second.columns[1] = first.columns[1]

    with pytest.raises((FormatError, TagMismatchError)):
        decrypt_bytes(forging.change_footer(_encrypt_with_keys(), FOOTER_KEY, change), KEYED_READER)


def _true_metadata(data: bytes, row_group: int, column: int) -> ThriftStruct:
    """Return a chunk's ColumnMetaData as its sealed twin has it."""
    file = forging.open_file(data, FOOTER_KEY)
    chunk = file.metadata.row_groups[row_group].columns[column]
    aad = file.file_aad + forging.module_suffix(1, row_group, column)
    raw = forging.open_module(COLUMN_KEY, chunk.encrypted_column_metadata, aad)
    return decode("ColumnMetaData", raw)[0]


@MODES
def test_column_metadata_that_should_be_sealed_and_is_not_is_refused(
    mode: dict[str, Any],
) -> None:
    """PME 5.3 seals it under the column's own key, which the footer-key holder lacks."""
    data = _encrypt_with_keys(**mode)

    def change(metadata: ThriftStruct) -> None:
        chunk = metadata.row_groups[0].columns[1]
        chunk.meta_data = _true_metadata(data, 0, 1)
        chunk.meta_data.statistics = new("Statistics", max_value=b"forged", min_value=b"forged")
        chunk.encrypted_column_metadata = None

    with pytest.raises((FormatError, IntegrityError)):
        decrypt_bytes(forging.change_footer(data, FOOTER_KEY, change), KEYED_READER)

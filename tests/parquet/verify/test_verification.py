"""`verify_parquet` and `verify_dataset`: every fault is found, named and placed; none is made up.

Files come from PyArrow, parquet-java, Arrow C++ and DuckDB as well as from modcrypt, and are
altered by hands that don't use modcrypt's own ciphers.
"""

from __future__ import annotations

import io
import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from hypothesis import given, settings
from hypothesis import strategies as st

import modcrypt as mc
from modcrypt import FileDecryptionProperties, FileEncryptionProperties
from modcrypt.errors import FormatError
from modcrypt.io.places import Place
from modcrypt.io.sources import FileSource, open_source_at
from modcrypt.jobs import dataset_verification
from modcrypt.jobs.dataset_verification import verify_dataset
from modcrypt.parquet import ModuleType
from modcrypt.parquet.crypto.algorithm_labels import looks_like_ctr
from modcrypt.parquet.datasets.write_notes import NOTES
from modcrypt.parquet.format.findings import MAX_CHUNK_FINDINGS, MAX_FINDINGS
from modcrypt.parquet.format.idl import ThriftStruct, decode, encode, new
from modcrypt.parquet.format.page_header_scan import scan
from modcrypt.parquet.verify.file_verification import verify_parquet
from modcrypt.parquet.verify.verification_results import Verification
from tests.support import forging
from tests.support.cases import each_case
from tests.support.file_kinds import BOTH, CASES, KEYED_READER, READER, RICH, TABLE, Case
from tests.support.forging import SMALL_FILTER, change_footer, encrypt_bytes, plain_file
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.module_spans import list_modules
from tests.support.paths import ROOT
from tests.support.randomness import examples
from tests.support.shared_vectors import entry_params, shared_vectors, tampered_reader
from tests.support.tables import small_table
from tests.support.thrift_judge import WRITERS
from tools import fuzz

PF: dict[str, Any] = {"plaintext_footer": True}
MODES = pytest.mark.parametrize("mode", [{}, PF], ids=["ef", "pf"])


def by_name(case: Case) -> str:
    return case.name


def words(verification: Verification) -> list[str]:
    return [finding.word for finding in verification.findings]


def joined_messages(verification: Verification) -> str:
    return "\n".join(finding.message for finding in verification.findings)


def open_to_alteration(verification: Verification) -> set[tuple[str, str | None]]:
    return {(entry.what, entry.path) for entry in verification.not_authenticated}


# --- files as they were written ------------------------------------------------------------------


@each_case(("folder", "entry"), entry_params("entries"))
def test_nothing_is_found_in_files_of_other_writers(folder: str, entry: dict[str, Any]) -> None:
    path = shared_vectors() / folder / entry["file"]
    checked = verify_parquet(path, FileDecryptionProperties(**tampered_reader(entry)), regions=True)

    assert checked.findings == ()
    assert checked.num_rows == pq.read_metadata(shared_vectors() / folder / entry["twin"]).num_rows
    assert checked.row_groups == entry["row_groups"]
    assert sum(region.size for region in checked.regions) == path.stat().st_size
    missing = open_to_alteration(checked)
    enc = entry["enc"]
    has_pages = checked.num_rows != 0
    assert (("pages", None) in missing) == (enc["algorithm"] == "AES_GCM_CTR_V1" and has_pages)
    in_plaintext = {path for what, path in missing if what == "column"}
    sealed = set(checked.columns if enc["columns"] is None else enc["columns"])
    if has_pages:
        assert in_plaintext == set(checked.columns) - sealed
    expected_levels = "levels in the clear" in (entry.get("v2_levels") or ())
    assert any(what == "levels" for what, _ in missing) == expected_levels


@each_case(("folder", "entry"), entry_params("entries"))
def test_modules_counted_are_those_that_the_manifest_counts(
    folder: str, entry: dict[str, Any]
) -> None:
    path = shared_vectors() / folder / entry["file"]
    if "empty" in entry["file"]:
        pytest.skip("the manifest does not count the dictionaries of empty row groups")
    checked = verify_parquet(path, FileDecryptionProperties(**tampered_reader(entry)))
    counted = {name: n for name, n in entry["modules"].items() if "plain" not in name}
    if entry["enc"]["algorithm"] == "AES_GCM_CTR_V1":  # page bodies have no tag
        counted = {n: c for n, c in counted.items() if n not in ("DataPage", "DictPage")}
    signature = entry["enc"]["footer_mode"] == "plaintext"
    assert checked.modules == sum(counted.values()) + signature


@each_case("keys", [None, {}, {"footer_key"}], ids=["nothing", "none", "footer key"])
@each_case(("folder", "entry"), entry_params("entries"))
def test_nothing_is_made_up_where_keys_are_missing(
    folder: str, entry: dict[str, Any], keys: set[str] | None
) -> None:
    path, reader = shared_vectors() / folder / entry["file"], tampered_reader(entry)
    given = None
    if keys is not None:
        kept = {"accept_algorithms", *keys} | ({"aad_prefix"} if keys else set())
        given = FileDecryptionProperties(**{k: v for k, v in reader.items() if k in kept})
    checked = verify_parquet(path, given)
    assert checked.ok, joined_messages(checked)
    if not keys:
        assert not checked.complete
        assert checked.modules == 0
        assert {what for what, _ in open_to_alteration(checked)} & {"file", "footer"}


# --- tampered files ------------------------------------------------------------------------------

WORD_OF = {
    "downgrade": {"plaintext"},
    "footer": {"signature"},
    "crypto_prefix_added": {"aad-prefix"},
    "crypto_unique": {"tag"},
    "truncate": {"format"},
    "reader:swapped_column_keys": {"tag"},
    "reader:empty_prefix": {"aad-prefix"},
    "swap": {"tag"},
    "dup": {"tag"},
    "page_from_other_file": {"tag"},
    "flip_DataPage_verifycrc": {"checksum"},
    "flip_ColumnIndex_length": {"truncation"},
    "flip": {"tag"},
    "substitute": {"plaintext"},
}


@each_case(("folder", "entry"), entry_params("tampered"))
def test_every_tampering_that_can_be_seen_is_seen(folder: str, entry: dict[str, Any]) -> None:
    path = shared_vectors() / folder / entry["file"]
    reader = FileDecryptionProperties(**tampered_reader(entry))
    checked = verify_parquet(path, reader)
    start = next(start for start in WORD_OF if entry["tamper"].startswith(start))
    if entry["expect"] == "undetectable" and start != "substitute":
        assert checked.ok
        assert ("pages", None) in open_to_alteration(checked)
        return
    assert words(checked)[0] in WORD_OF[start]
    columns = entry["scope"].rpartition(" ")[2].split(",")
    if entry["scope"].startswith("column"):
        found = {finding.module.path for finding in checked.findings if finding.module is not None}
        assert found <= set(columns)
    # The rest of the file was looked at all the same.
    if start in ("flip", "swap", "dup", "page_from_other_file"):
        base = verify_parquet(shared_vectors() / folder / entry["base"], reader)
        assert checked.modules + len(checked.findings) >= base.modules


@pytest.mark.parametrize(
    ("tamper", "hint"),
    [
        ("gcm_ef__swap_pagedata_in_chunk", "It is the data page of page 2 of the same column"),
        ("cpp_gcm_ef__swap_pagedata_in_chunk", "It is the data page of page 2 of the same column"),
        ("gcm_pf__swap_pagedata_between_cols", "of row group 0, column w: modules were swapped"),
        ("gcm_ef__swap_dictdata_between_rgs", "of row group 1, column name: modules were swapped"),
        ("gcm_pf__dup_page_in_chunk", "It is the data page header of page 1"),
        ("gcm_pf__footer_created_by", "so the footer was altered"),
        ("gcm_ef__crypto_prefix_added", "authenticates without an AAD prefix"),
    ],
)
def test_what_was_done_is_reported_where_it_can_be_found_out(tamper: str, hint: str) -> None:
    folder = shared_vectors() / "parquet-java"
    entries = json.loads((folder / "manifest.json").read_text())["tampered"]
    file = f"tampered/{tamper}.parquet"
    (entry,) = (entry for entry in entries if entry["file"] == file)
    checked = verify_parquet(folder / file, FileDecryptionProperties(**tampered_reader(entry)))
    assert hint in joined_messages(checked)


@pytest.mark.parametrize(
    ("name", "algorithm", "prefix"),
    [
        ("uniform_encryption", "AES_GCM_V1", None),
        ("encrypt_columns_and_footer", "AES_GCM_V1", None),
        ("encrypt_columns_plaintext_footer", "AES_GCM_V1", None),
        ("encrypt_columns_and_footer_aad", "AES_GCM_V1", b"tester"),
        ("encrypt_columns_and_footer_disable_aad_storage", "AES_GCM_V1", b"tester"),
        ("encrypt_columns_and_footer_ctr", "AES_GCM_CTR_V1", None),
    ],
)
def test_the_published_files_are_as_they_must_be(
    name: str, algorithm: str, prefix: bytes | None
) -> None:
    path = shared_vectors() / "parquet-testing" / f"{name}.parquet.encrypted"
    keys = {"double_field": COLUMN_KEY, "float_field": OTHER_KEY}
    if name == "uniform_encryption":
        keys = {}
    reader = FileDecryptionProperties(
        footer_key=FOOTER_KEY, column_keys=keys, accept_algorithms=[algorithm], aad_prefix=prefix
    )
    checked = verify_parquet(path, reader, expected_rows=50)
    assert checked.findings == ()
    other = verify_parquet(path, FileDecryptionProperties(footer_key=OTHER_KEY))
    assert not other.ok


def of_pyarrow(path: Path, **options: Any) -> Path:
    keys = pe.create_encryption_properties(footer_key=FOOTER_KEY)
    pq.write_table(small_table(500), path, encryption_properties=keys, **options)
    return path


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"write_page_index": True, "data_page_size": 500, "write_batch_size": 16},
        {"data_page_version": "2.0", "write_page_index": True, "max_rows_per_page": 20},
        {"compression": "zstd", "write_page_checksum": True, "row_group_size": 100},
        {"compression": "none", "use_dictionary": False, "write_statistics": False},
    ],
    ids=str,
)
def test_files_of_pyarrow_are_complete(options: dict[str, Any], tmp_path: Path) -> None:
    checked = verify_parquet(of_pyarrow(tmp_path / "a.parquet", **options), READER)
    assert checked.findings == ()
    assert checked.ok
    assert checked.complete
    assert open_to_alteration(checked) == {("file crypto metadata", None)}
    assert checked.num_rows == 500
    assert checked.columns == ("id", "name", "price", "score", "day", "flag", "address.zip",
                               "address.city", "tags.list.element")  # fmt: skip
    # All bytes but magics, closing length and file crypto metadata.
    size = checked.size
    assert size - 80 < checked.authenticated_bytes <= size - 12


@pytest.mark.parametrize("writer", WRITERS)
def test_no_fault_is_made_up_in_what_others_write_and_we_encrypt(
    writer: str, tmp_path: Path
) -> None:
    plain = WRITERS[writer](tmp_path)
    checked = verify_parquet(plain)
    assert checked.ok, joined_messages(checked)
    # Polars leaves a copy of the column metadata after each chunk.
    assert bool(checked.findings) == (writer == "polars")
    assert len(checked.findings) < 12
    for mode in ({}, PF):
        data = encrypt_bytes(plain, FileEncryptionProperties(footer_key=FOOTER_KEY, **mode))
        assert verify_parquet(data, READER).findings == ()
        assert verify_parquet(data, READER).complete
        assert verify_parquet(data).findings == ()


def test_a_plaintext_file_is_checked_and_not_taken_for_an_encrypted_one() -> None:
    data = plain_file(small_table(), **RICH_PLAIN)
    checked = verify_parquet(data)
    assert checked.ok
    assert not checked.complete
    assert not checked.encrypted
    assert (checked.footer_mode, checked.algorithm, checked.modules) == ("plaintext", None, 0)
    assert open_to_alteration(checked) == {("file", None)}
    insisting = verify_parquet(data, READER)
    assert words(insisting) == ["plaintext"]
    lax = FileDecryptionProperties(require_encrypted=False)
    assert verify_parquet(data, lax).ok
    demanding = FileDecryptionProperties(require_encrypted=False, aad_prefix=b"x")
    assert words(verify_parquet(data, demanding)) == ["plaintext"]


RICH_PLAIN: dict[str, Any] = {
    "write_page_index": True,
    "write_page_checksum": True,
    "max_rows_per_page": 10,
    "bloom_filter_options": {"id": SMALL_FILTER},
}


# --- flips in every module ------------------------------------------------------------------------


def flip_bits(data: bytes, position: int, mask: int = 1) -> bytes:
    out = bytearray(data)
    out[position] ^= mask
    return bytes(out)


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_a_flip_in_any_module_is_reported_with_its_address_and_place(case: Case) -> None:
    data = case.write()
    base = verify_parquet(data, case.reader)
    assert base.findings == ()
    clear = case.properties.get("data_page_v2_levels") == "plaintext"
    for span in list_modules(data, case.reader):
        size = span.end - span.start
        # In turn, one byte of the ciphertext, of the tag and of the nonce.
        other = (span.end - 1 - size // 3, span.end - 1, span.start + 5)[span.start % 3]
        positions = {span.start, other}
        if clear and span.module.type is ModuleType.DATA_PAGE:
            positions = {span.end - 17, span.end - 1}  # the rest may be levels in clear
        for position in positions:
            checked = verify_parquet(flip_bits(data, position), case.reader)
            first = next(finding for finding in checked.findings if finding.severity == "fault")
            if span.module.type is ModuleType.FOOTER and case.properties.get("plaintext_footer"):
                words = ("signature", "format", "limit", "plaintext", "unsupported")
                assert first.word in words
            else:
                assert first.word in ("tag", "truncation"), (span, first)
                assert first.module == span.module
            assert first.start is not None
            assert first.end is not None
            assert first.start <= position < first.end
            if span.module.type is not ModuleType.FOOTER and not clear:
                # One module is lost; a page whose header is lost still has its body checked.
                # Where a page's body, or a bitset, begins is in its header's length field.
                is_header = span.module.type.name.endswith("_HEADER")
                lost = 2 if is_header and position == span.start else 1
                assert 1 <= len(checked.findings) <= lost
                assert checked.modules == base.modules - lost
                with pytest.raises(mc.ModcryptError):
                    checked.raise_for_faults()


@each_case("case", CASES, ids=by_name)
def test_a_flip_in_sealed_column_metadata_is_placed(case: Case) -> None:
    if not case.properties.get("plaintext_footer"):
        pytest.skip("column metadata lies in the sealed footer")
    data = case.write()
    for r, row_group in enumerate(forging.open_file(data, FOOTER_KEY).metadata.row_groups):
        for c, chunk in enumerate(row_group.columns):
            sealed = chunk.encrypted_column_metadata
            if sealed is None:
                continue
            position = data.index(sealed) + 30
            checked = verify_parquet(flip_bits(data, position), case.reader)
            assert words(checked) == ["signature", "tag"]
            finding = checked.findings[1]
            assert finding.module == mc.parquet.ModuleId(
                ModuleType.COLUMN_METADATA, r, c, None, "abc"[c]
            )
            assert (finding.start, finding.end) == (position - 30, position - 30 + len(sealed))
            # Its pages were found by the copy for legacy readers.
            # That copy names no bloom filter, which has two modules.
            assert checked.modules == verify_parquet(data, case.reader).modules - 4


def test_flips_everywhere_at_once_are_all_reported() -> None:
    data = CASES[0].write()
    spans = [s for s in list_modules(data, READER) if s.module.type is not ModuleType.FOOTER]
    out = bytearray(data)
    for span in spans:
        out[span.end - 1] ^= 1
    checked = verify_parquet(bytes(out), READER)
    assert {finding.module for finding in checked.findings} == {span.module for span in spans}
    assert checked.modules == 1  # the footer


def test_crypto_metadata_is_not_sealed_and_still_hardly_alterable() -> None:
    case = CASES[0]
    data = case.write()
    body, tail, _ = forging.split_tail(data)
    end = len(body) + decode("FileCryptoMetaData", tail)[1]
    unseen = [p for p in range(len(body), end) if verify_parquet(flip_bits(data, p), READER).ok]
    # Key metadata, for a reader that was given the key; and supply_aad_prefix = False.
    assert len(unseen) <= 4


@pytest.mark.parametrize("case", [CASES[0], CASES[5]], ids=by_name)
def test_a_file_cut_short_anywhere_has_a_fault(case: Case) -> None:
    data = case.write()
    for length in range(0, len(data), 7):
        checked = verify_parquet(data[:length], case.reader)
        assert not checked.ok
        assert checked.size == length


# --- faults that a tag does not show --------------------------------------------------------------


def encrypt_with_keys(mode: dict[str, Any], **options: Any) -> bytes:
    return encrypt_bytes(
        plain_file(TABLE, **(RICH | options)),
        FileEncryptionProperties(footer_key=FOOTER_KEY, column_keys={"b": COLUMN_KEY}, **mode),
    )


@MODES
def test_reordered_row_groups_are_one_fault(mode: dict[str, Any]) -> None:
    data = change_footer(encrypt_with_keys(mode), FOOTER_KEY, lambda md: md.row_groups.reverse())
    checked = verify_parquet(data, KEYED_READER)
    assert set(words(checked)) == {"format"}
    assert "row groups were reordered or removed" in joined_messages(checked)
    assert checked.modules == verify_parquet(encrypt_with_keys(mode), KEYED_READER).modules


@MODES
def test_renumbered_row_groups_are_recognised(mode: dict[str, Any]) -> None:
    def change(metadata: ThriftStruct) -> None:
        metadata.row_groups.reverse()
        for position, row_group in enumerate(metadata.row_groups):
            row_group.ordinal = position

    checked = verify_parquet(
        change_footer(encrypt_with_keys(mode), FOOTER_KEY, change), KEYED_READER
    )
    assert "tag" in words(checked)
    assert "of row group 1, column a: modules were swapped between row groups" in joined_messages(
        checked
    )


@MODES
def test_a_dropped_row_group_shows_in_the_rows_and_in_the_bytes(mode: dict[str, Any]) -> None:
    def change(metadata: ThriftStruct) -> None:
        metadata.num_rows -= metadata.row_groups.pop().num_rows

    data = change_footer(encrypt_with_keys(mode), FOOTER_KEY, change)
    checked = verify_parquet(data, KEYED_READER)
    assert checked.ok  # nothing in the format counts them
    assert any("belong to no module" in finding.message for finding in checked.findings)
    assert ("bytes", None) in open_to_alteration(checked)
    counted = verify_parquet(data, KEYED_READER, expected_rows=4)
    assert "truncation" in words(counted)
    assert verify_parquet(encrypt_with_keys(mode), KEYED_READER, expected_rows=4).findings == ()


def test_rows_that_do_not_add_up() -> None:
    def change(metadata: ThriftStruct) -> None:
        metadata.num_rows += 1

    checked = verify_parquet(change_footer(encrypt_with_keys({}), FOOTER_KEY, change), KEYED_READER)
    assert words(checked) == ["format"]
    assert "5 rows, but its row groups have 4" in joined_messages(checked)


def test_a_forged_copy_for_legacy_readers_is_a_fault() -> None:
    """Who holds the footer key can mislead readers without the column's key."""

    def change(metadata: ThriftStruct) -> None:
        metadata.row_groups[0].columns[1].meta_data.num_values = 77

    checked = verify_parquet(change_footer(encrypt_with_keys(PF), FOOTER_KEY, change), KEYED_READER)
    assert words(checked) == ["integrity"]
    assert "differs from the encrypted metadata in num_values" in joined_messages(checked)


def test_sealed_metadata_that_is_left_out_is_a_fault() -> None:
    def change(metadata: ThriftStruct) -> None:
        chunk = metadata.row_groups[0].columns[1]
        chunk.encrypted_column_metadata = None

    checked = verify_parquet(change_footer(encrypt_with_keys(PF), FOOTER_KEY, change), KEYED_READER)
    assert words(checked) == ["format"]
    assert "its column metadata is not" in joined_messages(checked)


@each_case(
    ("change", "message"),
    [
        (lambda md: setattr(_chunk(md), "offset_index_offset", 4), "inside"),
        (lambda md: setattr(_chunk(md), "column_index_offset", 1 << 40), "do not lie between"),
        (lambda md: setattr(_chunk(md).meta_data, "bloom_filter_length", -1), "length -1"),
        (lambda md: setattr(_chunk(md).meta_data, "data_page_offset", -4), "is negative"),
        (lambda md: setattr(_chunk(md).meta_data, "num_values", 3), "3 values"),
        (lambda md: setattr(_chunk(md).meta_data, "data_page_offset", 9), "first data page is at"),
        (lambda md: _chunk(md).meta_data.encoding_stats.pop(), "encoding_stats count"),
        (lambda md: setattr(md.row_groups[0], "num_rows", 3), "row"),
        (lambda md: md.row_groups[0].columns.pop(), "2 column chunks, but the schema has 3"),
        (lambda md: setattr(_chunk(md), "file_path", b"/etc/passwd"), "another file"),
        (lambda md: setattr(md.schema[0], "num_children", 7), "more children"),
    ],
)
def test_what_a_footer_says_is_held_against_the_file(
    change: Callable[[ThriftStruct], Any], message: str
) -> None:
    data = encrypt_bytes(plain_file(TABLE, **RICH), FileEncryptionProperties(footer_key=FOOTER_KEY))
    assert verify_parquet(data, READER).findings == ()
    checked = verify_parquet(change_footer(data, FOOTER_KEY, change), READER)
    assert not checked.ok
    assert message in joined_messages(checked)
    if message != "more children":  # the other chunks were checked
        assert checked.modules > 10


def _chunk(metadata: ThriftStruct) -> ThriftStruct:
    return metadata.row_groups[0].columns[0]


# --- indexes, bloom filters, checksums ------------------------------------------------------------

PAGED = pa.table({"n": list(range(40)), "t": [f"{n:03}" for n in range(40)]})
PAGES: dict[str, Any] = {
    "max_rows_per_page": 10,
    "write_page_index": True,
    "bloom_filter_options": {"n": SMALL_FILTER},
}


def reseal_module(kind: ModuleType, struct: str, change: Callable[[ThriftStruct], object]) -> bytes:
    """Alter a module of column n as a key holder can; its size must stay."""
    data = encrypt_bytes(
        plain_file(PAGED, **PAGES), FileEncryptionProperties(footer_key=FOOTER_KEY)
    )
    (span,) = (
        s for s in list_modules(data, READER) if s.module.type is kind and s.module.column == 0
    )
    aad = forging.open_file(data, FOOTER_KEY).file_aad + forging.module_suffix(kind, 0, 0)
    plain = forging.open_module(FOOTER_KEY, data[span.start : span.end], aad)
    value, _ = decode(struct, plain)
    change(value)
    spelt = encode(value)
    assert len(spelt) <= len(plain)
    sealed = forging.seal(FOOTER_KEY, spelt.ljust(len(plain), b"\0"), aad)
    return data[: span.start] + sealed + data[span.end :]


def _set(name: str, value: Any) -> Callable[[ThriftStruct], object]:
    return lambda struct: setattr(struct, name, value)


def _put(name: str, at: int, value: Any) -> Callable[[ThriftStruct], object]:
    def change(struct: ThriftStruct) -> None:
        getattr(struct, name)[at] = value

    return change


LOW = (0).to_bytes(8, "little")
BOUNDS = {"n": ((39).to_bytes(8, "little"), (57).to_bytes(8, "little")), "t": (b"039", b"099")}


@each_case(
    ("kind", "change", "message"),
    [
        ("OffsetIndex", lambda i: i.page_locations.pop(), "3 page locations, the chunk 4"),
        ("OffsetIndex", lambda i: _set("offset", 5)(i.page_locations[1]), "ascending order"),
        ("OffsetIndex", lambda i: _set("first_row_index", 11)(i.page_locations[1]), "with row 10"),
        ("OffsetIndex", lambda i: _set("first_row_index", 0)(i.page_locations[3]), "goes backward"),
        ("OffsetIndex", lambda i: _set("first_row_index", 1)(i.page_locations[0]), "with row 1"),
        ("OffsetIndex", lambda i: _set("compressed_page_size", 99)(i.page_locations[2]), "not 99"),
        ("ColumnIndex", _put("null_counts", 0, 1), "counts 1 nulls, the chunk's statistics 0"),
        ("ColumnIndex", lambda i: i.null_counts.pop(), "3 null_counts for 4 pages"),
        ("ColumnIndex", lambda i: i.min_values.pop(), "3 min_values for 4 pages"),
        ("ColumnIndex", _put("max_values", 3, BOUNDS["n"][1]), "do not add up to the chunk's"),
        ("ColumnIndex", _put("max_values", 0, b""), "not a value of the column's type"),
        ("ColumnIndex", _put("min_values", 3, LOW), "not in the order"),
        ("ColumnIndex", _put("max_values", 3, LOW), "minimum is above its maximum"),
    ],
)
def test_indexes_are_held_against_the_pages(
    kind: str, change: Callable[[ThriftStruct], object], message: str
) -> None:
    types = {"OffsetIndex": ModuleType.OFFSET_INDEX, "ColumnIndex": ModuleType.COLUMN_INDEX}
    checked = verify_parquet(reseal_module(types[kind], kind, change), READER)
    assert set(words(checked)) == {"format"}
    assert message in joined_messages(checked)
    first = checked.findings[0]
    assert first.module is not None
    assert (first.module.type, first.module.path) == (types[kind], "n")


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds_of_pages_are_held_against_the_statistics_of_the_chunk(name: str) -> None:
    """In clear, as the column is in plaintext: an edit that keeps the order and the sizes."""
    old, raised = BOUNDS[name]
    writer = FileEncryptionProperties(footer_key=FOOTER_KEY, plaintext_columns=["n", "t"])
    data = encrypt_bytes(plain_file(PAGED, **PAGES), writer)
    chunk = forging.open_file(data, FOOTER_KEY).metadata.row_groups[0].columns["nt".index(name)]
    start, end = chunk.column_index_offset, chunk.column_index_offset + chunk.column_index_length
    index, _ = decode("ColumnIndex", data, start)
    assert index.max_values[-1] == old
    index.max_values[-1] = raised
    checked = verify_parquet(data[:start] + encode(index) + data[end:], READER)
    assert words(checked) == ["format"]
    assert "the chunk's" in joined_messages(checked)


def test_a_bloom_filter_that_was_emptied_is_found_out() -> None:
    """It would hide rows from every reader that asks it."""
    data = plain_file(PAGED, **PAGES)
    md = forging.read_plain_footer(data).row_groups[0].columns[0].meta_data
    header, start = decode("BloomFilterHeader", data, md.bloom_filter_offset)
    emptied = data[:start] + bytes(header.numBytes) + data[start + header.numBytes :]
    for plaintext in ([], ["n"]):
        writer = FileEncryptionProperties(footer_key=FOOTER_KEY, plaintext_columns=plaintext)
        checked = verify_parquet(encrypt_bytes(emptied, writer), READER)
        assert words(checked) == ["format"]
        assert "lacks a value of the statistics" in joined_messages(checked)


def test_null_pages_are_held_against_the_values() -> None:
    table = pa.table({"n": [None] * 10 + [1] * 10})
    data = plain_file(table, max_rows_per_page=10, write_page_index=True, store_schema=False)
    chunk = forging.read_plain_footer(data).row_groups[0].columns[0]
    start = chunk.column_index_offset
    index, end = decode("ColumnIndex", data, start)
    assert verify_parquet(data).ok
    index.null_counts[1], index.null_counts[0] = 10, 0
    altered = data[:start] + encode(index) + data[end:]
    assert len(altered) == len(data)
    assert "nulls" in joined_messages(verify_parquet(altered))


@pytest.mark.parametrize(
    ("change", "word", "message"),
    [
        (_set("numBytes", 31), "format", "declares 31 bytes"),
        (lambda h: _unknown(h, "algorithm"), "unsupported", "does not know"),
    ],
)
def test_bloom_filters_are_held_against_their_header(
    change: Callable[[ThriftStruct], object], word: str, message: str
) -> None:
    altered = reseal_module(ModuleType.BLOOM_FILTER_HEADER, "BloomFilterHeader", change)
    checked = verify_parquet(altered, READER)
    assert word in words(checked)
    assert message in joined_messages(checked)


def _unknown(header: ThriftStruct, name: str) -> None:
    union = new("BloomFilterAlgorithm")
    union._unknown = [(2, 12, b"\0")]
    setattr(header, name, union)


def test_checksums_of_plaintext_columns_are_checked() -> None:
    data = CASES[3].write()  # column c is in plaintext, and its pages have checksums
    md = forging.open_file(data, FOOTER_KEY).metadata.row_groups[0].columns[2].meta_data
    last = md.data_page_offset + md.total_compressed_size - 1
    start = md.dictionary_page_offset or md.data_page_offset
    checked = verify_parquet(flip_bits(data, start + md.total_compressed_size - 1), KEYED_READER)
    assert words(checked) == ["checksum"]
    assert checked.findings[0].module == mc.parquet.ModuleId(ModuleType.DATA_PAGE, 0, 2, 0, "c")
    assert last
    assert ("column", "c") in open_to_alteration(checked)


@pytest.mark.parametrize("algorithm", BOTH)
def test_clear_levels_are_reported_and_held_against_counts_and_checksums(algorithm: str) -> None:
    writer = FileEncryptionProperties(
        footer_key=FOOTER_KEY, data_page_v2_levels="plaintext", encryption_algorithm=algorithm
    )
    reader = FileDecryptionProperties(footer_key=FOOTER_KEY, accept_algorithms=[algorithm])
    table = pa.table({"n": [1, None, 3, 4, None, 6, 7, 8]})
    for checksum in (False, True):
        plain = plain_file(table, data_page_version="2.0", write_page_checksum=checksum)
        data = encrypt_bytes(plain, writer)
        checked = verify_parquet(data, reader)
        assert checked.findings == ()
        assert ("levels", "n") in open_to_alteration(checked)
        assert not checked.complete
        (page,) = (s for s in list_modules(data, reader) if s.module.type is ModuleType.DATA_PAGE)
        assert data[page.start : page.start + 2] == bytes((3, 0b11101101))  # eight levels, packed
        one_more = verify_parquet(flip_bits(data, page.start + 1, 0b1), reader)
        assert "integrity" in words(one_more)
        assert "its plaintext levels make 3 nulls, its header says 2" in joined_messages(one_more)
        moved = verify_parquet(flip_bits(data, page.start + 1, 0b11), reader)
        assert words(moved) == (["checksum"] if checksum else [])  # nothing in the format shows it


def test_a_lost_header_before_clear_levels_does_not_end_the_chunk() -> None:
    writer = FileEncryptionProperties(footer_key=FOOTER_KEY, data_page_v2_levels="plaintext")
    plain = plain_file(PAGED, data_page_version="2.0", max_rows_per_page=5, use_dictionary=False)
    data = encrypt_bytes(plain, writer)
    headers = [
        s for s in list_modules(data, READER)
        if s.module.type is ModuleType.DATA_PAGE_HEADER and s.module.column == 0
    ]  # fmt: skip
    checked = verify_parquet(flip_bits(data, headers[3].end - 1), READER, regions=True)
    assert [finding.module for finding in checked.findings] == [headers[3].module]
    # Where the body begins behind its levels is in the lost header alone.
    assert checked.modules == verify_parquet(data, READER).modules - 2
    assert sum(region.size for region in checked.regions) == len(data)
    # Nor does a length field that is lost.
    cut = verify_parquet(flip_bits(data, headers[3].start + 1, 0x40), READER)
    assert words(cut) == ["truncation"]
    assert cut.modules == verify_parquet(data, READER).modules - 2


# --- algorithms -----------------------------------------------------------------------------------


def _relabel(data: bytes) -> bytes:
    def change(crypto: ThriftStruct) -> None:
        gcm = crypto.encryption_algorithm.AES_GCM_V1
        ctr = new("AesGcmCtrV1", aad_file_unique=gcm.aad_file_unique, supply_aad_prefix=False)
        crypto.encryption_algorithm = new("EncryptionAlgorithm", AES_GCM_CTR_V1=ctr)

    return forging.edit_crypto(data, change)


def test_a_gcm_file_that_is_labelled_ctr_is_found_out() -> None:
    data = _relabel(
        encrypt_bytes(plain_file(TABLE), FileEncryptionProperties(footer_key=FOOTER_KEY))
    )
    lax = FileDecryptionProperties(footer_key=FOOTER_KEY, accept_algorithms=BOTH)
    checked = verify_parquet(data, lax)
    assert set(words(checked)) == {"integrity"}
    assert "its label was changed to AES_GCM_CTR_V1" in joined_messages(checked)
    assert words(verify_parquet(data, READER))[0] == "unsupported"


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd"])
def test_ctr_pages_that_are_labelled_gcm_are_recognised(compression: str) -> None:
    """As one line of Arrow C++ wrote them."""
    table = pa.table({"a": list(range(100)), "b": ["x" * 10] * 100})
    data = encrypt_bytes(
        plain_file(table, compression=compression),
        FileEncryptionProperties(
            footer_key=FOOTER_KEY, plaintext_footer=True, encryption_algorithm="AES_GCM_CTR_V1"
        ),
    )

    def change(metadata: ThriftStruct) -> None:
        ctr = metadata.encryption_algorithm.AES_GCM_CTR_V1
        gcm = new("AesGcmV1", aad_file_unique=ctr.aad_file_unique, supply_aad_prefix=False)
        metadata.encryption_algorithm = new("EncryptionAlgorithm", AES_GCM_V1=gcm)

    checked = verify_parquet(change_footer(data, FOOTER_KEY, change), READER)
    assert not checked.ok
    if compression == "none":
        assert "decrypts to" in joined_messages(checked)
    else:
        assert "some versions of Arrow C++ wrote AES_GCM_V1" in joined_messages(checked)


@pytest.mark.parametrize(
    ("start", "likely"),
    [
        (b"\x09\x20", True),
        (b"\x09\xf0\x08", True),  # the literal's length in a byte of its own
        (b"\x09\x24", False),  # ten bytes of nine
        (b"\x09\x21", False),  # a copy of bytes that are not there yet
        (b"\x08\x20", False),
    ],
)
def test_snappy_begins_with_a_length_and_a_literal(start: bytes, likely: bool) -> None:
    iv = bytes(12) + b"\0\0\0\1"
    body = Cipher(AES(FOOTER_KEY), CTR(iv)).encryptor().update(start.ljust(40))
    header = encode(new("PageHeader", type=0, uncompressed_page_size=9, compressed_page_size=56))
    page = memoryview((52).to_bytes(4, "little") + bytes(12) + body)
    scanned = scan(header, 0, len(header))
    assert looks_like_ctr(mc.Key(FOOTER_KEY), scanned, page, codec=1) == likely


def test_a_moved_page_is_recognised_even_if_it_looks_like_ctr(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Random bytes rarely do, and a found reason counts more than a guess."""
    data = bytearray(
        encrypt_bytes(plain_file(PAGED, **PAGES), FileEncryptionProperties(footer_key=FOOTER_KEY))
    )
    first, second = (
        slice(span.start, span.end)
        for span in list_modules(data, READER)
        if span.module.type is ModuleType.DATA_PAGE and span.module.page in (1, 2)
        if span.module.path == "n"
    )
    data[first], data[second] = data[second], data[first]
    monkeypatch.setattr("modcrypt.parquet.crypto.algorithm_labels.looks_like_ctr", lambda *_: True)
    text = joined_messages(verify_parquet(bytes(data), READER))
    assert "It is the data page of page 2 of the same column chunk" in text


def test_a_file_of_duckdb_is_named(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "duckdb.parquet"
    with duckdb.connect() as connection:
        connection.execute("SET force_mbedtls_unsafe = 'true'")
        connection.execute(f"PRAGMA add_parquet_key('k', '{FOOTER_KEY.decode()}')")
        connection.execute(
            f"COPY (SELECT 1 AS a) TO '{path}' (ENCRYPTION_CONFIG {{footer_key: 'k'}})"
        )
    checked = verify_parquet(path, READER)
    assert words(checked) == ["unsupported"]
    assert "DuckDB" in joined_messages(checked)


# --- keys and prefixes ----------------------------------------------------------------------------


@MODES
def test_a_wrong_column_key_is_reported_once_a_chunk_and_not_for_every_page(
    mode: dict[str, Any],
) -> None:
    table = pa.table({"a": list(range(400)), "b": [str(n) for n in range(400)]})
    plain = plain_file(table, max_rows_per_page=4, use_dictionary=False)
    writer = FileEncryptionProperties(footer_key=FOOTER_KEY, column_keys={"b": COLUMN_KEY}, **mode)
    data = encrypt_bytes(plain, writer)
    wrong = FileDecryptionProperties(footer_key=FOOTER_KEY, column_keys={"b": OTHER_KEY})
    checked = verify_parquet(data, wrong)
    assert {finding.module.path for finding in checked.findings if finding.module is not None} == {
        "b"
    }
    assert set(words(checked)) == {"tag"}
    assert len(checked.findings) <= MAX_CHUNK_FINDINGS + 2
    assert "cannot tell which" in joined_messages(checked)
    if mode:
        assert "188 more faults in row group 0, column b, not listed" in joined_messages(checked)
    missing = verify_parquet(data, READER)
    assert missing.ok
    assert ("column", "b") in open_to_alteration(missing)
    assert missing.modules == checked.modules


def test_findings_are_bounded_for_a_file(tmp_path: Path) -> None:
    table = pa.table({f"c{n}": [n, n + 1] for n in range(60)})
    plain = plain_file(table, row_group_size=1, use_dictionary=False)
    keys = dict.fromkeys(table.column_names, COLUMN_KEY)
    writer = FileEncryptionProperties(footer_key=FOOTER_KEY, column_keys=keys, **PF)
    big = plain_file(pa.concat_tables([table] * 5), row_group_size=1, use_dictionary=False)
    wrong = dict.fromkeys(keys, OTHER_KEY)
    reader = FileDecryptionProperties(footer_key=FOOTER_KEY, column_keys=wrong)
    checked = verify_parquet(encrypt_bytes(big, writer), reader)
    assert len(checked.findings) == MAX_FINDINGS + 1
    assert "more faults in the file" in checked.findings[-1].message
    assert len(verify_parquet(encrypt_bytes(plain, writer), reader).findings) < MAX_FINDINGS


def test_keys_that_were_exchanged_are_recognised() -> None:
    writer = FileEncryptionProperties(
        footer_key=FOOTER_KEY, column_keys={"a": COLUMN_KEY, "b": OTHER_KEY}
    )
    data = encrypt_bytes(plain_file(TABLE), writer)
    exchanged = FileDecryptionProperties(
        footer_key=FOOTER_KEY, column_keys={"a": OTHER_KEY, "b": COLUMN_KEY}
    )
    text = joined_messages(verify_parquet(data, exchanged))
    assert "It opens with the key of column b" in text
    assert "It opens with the key of column a" in text


@MODES
def test_a_module_of_another_type_is_recognised(mode: dict[str, Any]) -> None:
    """As of a writer that numbers module types in its own way."""
    data = encrypt_bytes(
        plain_file(TABLE, use_dictionary=False),
        FileEncryptionProperties(footer_key=FOOTER_KEY, **mode),
    )
    span = next(
        s for s in list_modules(data, READER) if s.module.type is ModuleType.DATA_PAGE_HEADER
    )
    file_aad = forging.open_file(data, FOOTER_KEY).file_aad
    aad = file_aad + forging.module_suffix(ModuleType.DATA_PAGE_HEADER, 0, 0, 0)
    plain = forging.open_module(FOOTER_KEY, data[span.start : span.end], aad)
    other = forging.seal(FOOTER_KEY, plain, file_aad + forging.module_suffix(2, 0, 0, 0))
    checked = verify_parquet(data[: span.start] + other + data[span.end :], READER)
    assert words(checked) == ["tag"]
    assert "It opens as a module of type 2 (data page)" in joined_messages(checked)


@MODES
def test_no_keys_still_check_what_is_to_be_seen(mode: dict[str, Any]) -> None:
    data = encrypt_with_keys(mode)
    checked = verify_parquet(data)
    assert checked.ok
    assert checked.encrypted
    assert checked.modules == 0
    assert checked.algorithm == "AES_GCM_V1"
    what = {entry for entry, _ in open_to_alteration(checked)}
    if not mode:
        assert checked.columns == ()
        assert checked.num_rows is None
        assert "file" in what
        return
    assert checked.columns == ("a", "b", "c")
    assert what == {"footer", "column"}
    for span in list_modules(data, KEYED_READER):
        if span.module.type in (ModuleType.DATA_PAGE_HEADER, ModuleType.OFFSET_INDEX):
            broken = verify_parquet(flip_bits(data, span.start + 2, 0x40))
            assert words(broken) == ["truncation"]


@MODES
def test_column_keys_without_a_footer_key(mode: dict[str, Any]) -> None:
    data = encrypt_with_keys(mode)
    reader = FileDecryptionProperties(column_keys={"b": COLUMN_KEY})
    checked = verify_parquet(data, reader)
    assert checked.ok
    assert (checked.modules > 0) == bool(mode)
    assert {("footer", None), ("file", None)} & open_to_alteration(checked)


@MODES
@pytest.mark.parametrize("stored", [True, False])
def test_prefixes(mode: dict[str, Any], stored: bool) -> None:
    writer = FileEncryptionProperties(
        footer_key=FOOTER_KEY, aad_prefix=b"part.1", store_aad_prefix=stored, **mode
    )
    data = encrypt_bytes(plain_file(TABLE), writer)

    def check(**how: Any) -> list[str]:
        reader = FileDecryptionProperties(footer_key=FOOTER_KEY, **how)
        return words(verify_parquet(data, reader))

    assert check(aad_prefix=b"part.1") == []
    wrong = check(aad_prefix=b"part.2")
    if stored:
        assert check() == []
        assert wrong == ["aad-prefix"]  # and nothing else: the file is as it was written
        assert check(aad_prefix_verifier=lambda prefix: prefix == b"part.1") == []
        assert check(aad_prefix_verifier=lambda _: False) == ["aad-prefix"]
    else:
        assert check() == ["aad-prefix"]
        assert wrong[0] == ("signature" if mode else "tag")
        assert check(aad_prefix_verifier=lambda _: True) == ["aad-prefix"]
        without = verify_parquet(data)
        assert without.ok
    bare = encrypt_bytes(plain_file(TABLE), FileEncryptionProperties(footer_key=FOOTER_KEY, **mode))
    unneeded: list[dict[str, Any]] = [
        {"aad_prefix": b"x"}, {"aad_prefix_verifier": lambda _: True}
    ]  # fmt: skip
    for demand in unneeded:
        reader = FileDecryptionProperties(footer_key=FOOTER_KEY, **demand)
        assert words(verify_parquet(bare, reader)) == ["aad-prefix"]


def test_a_moved_border_is_seen_where_a_prefix_is_expected() -> None:
    data = encrypt_bytes(
        plain_file(TABLE), FileEncryptionProperties(footer_key=FOOTER_KEY, aad_prefix=b"part.10")
    )

    def change(crypto: ThriftStruct) -> None:
        gcm = crypto.encryption_algorithm.AES_GCM_V1
        gcm.aad_prefix, gcm.aad_file_unique = b"part.1", b"0" + gcm.aad_file_unique

    expecting = FileDecryptionProperties(footer_key=FOOTER_KEY, aad_prefix=b"part.1")
    checked = verify_parquet(forging.edit_crypto(data, change), expecting)
    assert words(checked) == ["aad-prefix"]
    assert "9 bytes, not 8" in joined_messages(checked)


@MODES
def test_columns_must_be_encrypted_as_the_caller_says(mode: dict[str, Any]) -> None:
    data = encrypt_bytes(
        plain_file(TABLE),
        FileEncryptionProperties(
            footer_key=FOOTER_KEY,
            column_keys={"b": COLUMN_KEY},
            plaintext_columns=["c"],
            **mode,
        ),
    )

    def check(**how: Any) -> list[str]:
        keys = {"b": COLUMN_KEY} | how.pop("column_keys", {})
        reader = FileDecryptionProperties(footer_key=FOOTER_KEY, column_keys=keys, **how)
        return words(verify_parquet(data, reader))

    assert check() == []
    assert check(require_encrypted=["a", "b"]) == []
    assert check(require_encrypted=["c"]) == ["plaintext"]
    assert check(require_encrypted=["nothing"]) == ["plaintext"]
    assert check(column_keys={"c": OTHER_KEY}) == ["plaintext"]
    assert "plaintext" in check(column_keys={"a": OTHER_KEY}, require_encrypted=["a"])


def test_why_a_key_could_not_be_had_is_reported() -> None:
    data = encrypt_bytes(
        plain_file(TABLE),
        FileEncryptionProperties(
            footer_key=FOOTER_KEY,
            column_keys={"b": COLUMN_KEY},
            column_key_metadata={"b": b"kb"},
        ),
    )

    def check(error: Exception) -> Verification:
        def retrieve(metadata: bytes) -> bytes:
            raise error

        reader = FileDecryptionProperties(footer_key=FOOTER_KEY, key_retriever=retrieve)
        return verify_parquet(data, reader)

    assert check(KeyError("x")).ok
    assert check(PermissionError("x")).ok
    assert words(check(mc.errors.KeyMaterialError("the wrapped key is cut short"))) == [
        "key-material"
    ]
    unavailable = check(mc.errors.KmsUnavailableError("no answer"))
    assert unavailable.ok
    assert words(unavailable) == ["unavailable"]
    for error in (KeyError("x"), mc.errors.KmsUnavailableError("no answer")):
        assert ("column", "b") in open_to_alteration(check(error))


# --- any source, any bytes ------------------------------------------------------------------------


def test_every_kind_of_source_gives_the_same(tmp_path: Path) -> None:
    data = flip_bits(CASES[0].write(), 100)
    path = tmp_path / "a.parquet"
    path.write_bytes(data)
    fsspec.filesystem("memory").pipe("/verify/a.parquet", data)
    sources: list[Any] = [
        data, bytearray(data), memoryview(data), path, str(path), io.BytesIO(data),
        "memory://verify/a.parquet",
    ]  # fmt: skip
    results = [verify_parquet(source, READER, regions=True) for source in sources]
    assert len({result.findings for result in results}) == 1
    assert len({result.regions for result in results}) == 1
    assert words(results[0]) == ["tag"]


def test_threads_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modcrypt.parquet.verify.file_verification.BATCH", 1)
    monkeypatch.setattr("modcrypt.parquet.verify.file_verification.LARGE_MODULE", 1)
    data = CASES[7].write()
    spans = list_modules(data, KEYED_READER)
    for span in spans[3], spans[9]:
        data = flip_bits(data, span.end - 1)
    checked = verify_parquet(data, KEYED_READER, threads=1, regions=True)
    assert len(checked.findings) >= 2
    assert verify_parquet(data, KEYED_READER, threads=4, regions=True) == checked


def test_progress_is_reported_in_the_calling_thread(tmp_path: Path) -> None:
    path = of_pyarrow(tmp_path / "a.parquet", row_group_size=50)
    calls: list[tuple[int, int]] = []
    verify_parquet(
        path, READER, threads=2,
        progress=lambda done: calls.append((done, threading.get_ident())),
    )  # fmt: skip
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert calls[-1][0] == path.stat().st_size
    assert {thread for _, thread in calls} == {threading.get_ident()}


@pytest.mark.parametrize(
    "data", [b"", b"PAR1", b"PAR1PAR1", b"PARE" * 9, b"a text file\n" * 100, bytes(1000)]
)
def test_what_is_no_parquet_file_is_reported(data: bytes) -> None:
    checked = verify_parquet(data, READER, regions=True)
    assert checked.footer_mode == "none" or data[:4] == b"PARE"
    assert words(checked)[0] in ("format", "limit")
    assert not checked.ok
    assert open_to_alteration(checked) >= {("file", None)}
    assert sum(region.size for region in checked.regions) == len(data)


def test_the_callers_own_mistakes_are_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        verify_parquet(tmp_path / "nothing.parquet")
    with pytest.raises(ValueError, match="threads"):
        verify_parquet(b"", threads=0)
    with pytest.raises(ValueError, match="expected_rows"):
        verify_parquet(b"", expected_rows=-1)
    with pytest.raises(TypeError):
        verify_parquet(b"", [FOOTER_KEY])  # type: ignore[arg-type]  # a list of keys
    with pytest.raises(TypeError):
        verify_parquet(7)  # type: ignore[arg-type]  # no source


def test_regions_say_what_every_byte_is() -> None:
    for case in CASES:
        data = case.write()
        checked = verify_parquet(data, case.reader, regions=True)
        reached = 0
        for region in checked.regions:
            assert region.start == reached
            reached = region.end
        assert reached == len(data)
        assert {region.kind for region in checked.regions}.isdisjoint({"gap"})
        authentic = sum(r.size for r in checked.regions if r.state == "authentic")
        # Column metadata lies in the footer's bytes, which are counted once.
        assert checked.authenticated_bytes == authentic
        assert verify_parquet(data, case.reader).regions == ()
    page = mc.report.render_html(verify_parquet(CASES[3].write(), KEYED_READER, regions=True))
    assert page.startswith("<!DOCTYPE html>")


@MODES
def test_what_a_missing_key_hides_is_no_gap(mode: dict[str, Any]) -> None:
    data = encrypt_with_keys(mode)
    for reader in (READER, None):
        checked = verify_parquet(data, reader, regions=True)
        assert "gap" not in {region.kind for region in checked.regions}
        locked = sum(region.size for region in checked.regions if region.state == "locked")
        plaintext = sum(region.size for region in checked.regions if region.state == "plaintext")
        assert locked > 300
        assert plaintext < 100 or (mode and reader is None)  # the unchecked footer
    assert not [
        finding for finding in verify_parquet(data, READER).findings if "belong" in finding.message
    ]


def test_keys_are_called_by_their_master_keys_or_by_a_column() -> None:
    keys = {"a": COLUMN_KEY, "b": OTHER_KEY, "c": COLUMN_KEY}
    data = encrypt_bytes(
        plain_file(TABLE), FileEncryptionProperties(footer_key=FOOTER_KEY, column_keys=keys)
    )
    reader = FileDecryptionProperties(footer_key=FOOTER_KEY, column_keys=keys)
    regions = verify_parquet(data, reader, regions=True).regions
    assert {(region.path, region.key) for region in regions if region.path} == {
        ("a", "column key of a"), ("b", "column key of b"), ("c", "column key of a"),
    }  # fmt: skip
    assert "footer key" in {region.key for region in regions}


def test_keys_of_the_key_tools_are_called_by_their_master_keys() -> None:
    folder = shared_vectors() / "parquet-java"
    entries = json.loads((folder / "manifest.json").read_text())["tampered"]
    (entry,) = (entry for entry in entries if "gcm_ef__flip_OffsetIndex_nonce" in entry["file"]
                and entry["file"].startswith("tampered/gcm"))  # fmt: skip
    reader = FileDecryptionProperties(**tampered_reader(entry))
    regions = verify_parquet(folder / entry["file"], reader, regions=True).regions
    assert {region.key for region in regions} == {None, "kf", "kc1", "kc2"}


def test_facts_are_for_people(tmp_path: Path) -> None:
    path = tmp_path / "secret-folder-name" / "a.parquet"
    path.parent.mkdir()
    path.write_bytes(flip_bits(CASES[0].write(), 100))
    checked = verify_parquet(path, READER, regions=True)
    assert ("Result", "1 fault, 0 warnings") in checked.facts()
    page = mc.report.render_html(checked)
    assert "a.parquet" in page
    assert "secret-folder-name" not in page
    assert checked.findings[0].fields()["module"] == {
        "type": "data page header", "row_group": 0, "column": 0, "page": 0, "path": "a",
    }  # fmt: skip


def test_nothing_of_the_data_is_shown() -> None:
    secret = "Rumpelstilzchen"  # a value of the table, to be looked for
    table = pa.table({"a": [f"{secret}{n}" for n in range(9)]})
    plain = plain_file(table, write_page_index=True, max_rows_per_page=3, compression="none")
    writer = FileEncryptionProperties(footer_key=FOOTER_KEY, aad_prefix=b"p")
    data = encrypt_bytes(plain, writer)
    for span in list_modules(data, READER):
        checked = verify_parquet(flip_bits(data, span.end - 1), READER, regions=True)
        text = json.dumps(checked.fields()) + mc.report.render_html(checked) + repr(checked)
        assert secret not in text
        assert FOOTER_KEY.decode() not in text
        assert FOOTER_KEY.hex() not in text


def test_faults_are_raised_as_reading_raises_them() -> None:
    data = CASES[0].write()
    verify_parquet(data, READER).raise_for_faults()
    for span in list_modules(data, READER):
        altered = flip_bits(data, span.end - 1)
        with pytest.raises(mc.errors.TagMismatchError) as caught:
            verify_parquet(altered, READER).raise_for_faults()
        assert caught.value.module == span.module
    with pytest.raises(mc.errors.AadPrefixError):
        verify_parquet(
            data, FileDecryptionProperties(footer_key=FOOTER_KEY, aad_prefix=b"x")
        ).raise_for_faults()
    with pytest.raises(mc.errors.PlaintextError):
        verify_parquet(plain_file(TABLE), READER).raise_for_faults()
    with pytest.raises(mc.errors.FormatError):
        verify_parquet(b"").raise_for_faults()


FUZZED = fuzz.bases()
FUZZ_READERS = [
    None,
    *fuzz.READERS,
    FileDecryptionProperties(aad_prefix=b"part", footer_key=FOOTER_KEY, require_encrypted=["s"]),
]


def check_verdict(data: bytes, reader: FileDecryptionProperties | None) -> None:
    """Any bytes give a verification; and what decrypting refuses is a fault, or not known."""
    checked = verify_parquet(data, reader, regions=True)
    json.dumps(checked.fields())
    if reader is None:
        return
    refused: Exception | None = None
    try:
        forging.decrypt_bytes(data, reader)
    except (mc.ModcryptError, ValueError) as error:  # ValueError: a column is not there
        refused = error
    if isinstance(refused, mc.errors.KeyNotFoundError):
        assert not checked.complete
    elif refused is not None:
        assert not checked.ok, refused


@settings(max_examples=examples(300))
@given(
    st.sampled_from(FUZZED),
    st.sampled_from(FUZZ_READERS),
    st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 40), st.binary(max_size=40)),
             min_size=1, max_size=4),
)  # fmt: skip
def test_any_mutation_gives_a_verification(
    base: fuzz.Base,
    reader: FileDecryptionProperties | None,
    splices: list[tuple[int, int, bytes]],
) -> None:
    data = base.data
    for at, length, new_bytes in splices:
        at %= len(data) + 1
        data = data[:at] + new_bytes + data[at + length :]
    check_verdict(data, reader)


def test_edits_behind_the_lock_give_a_verification() -> None:
    for number, data in fuzz.rounds(seed=6, files=FUZZED):
        if number == 300:
            break
        check_verdict(data, FUZZ_READERS[number % len(FUZZ_READERS)])


@given(st.binary(max_size=300))
def test_any_bytes_between_magics_give_a_verification(data: bytes) -> None:
    for magic in (b"PAR1", b"PARE"):
        for reader in FUZZ_READERS:
            verify_parquet(magic + data + magic, reader, regions=True)
            verify_parquet(forging.join_tail(magic, data, magic), reader, regions=True)


# --- sets of files --------------------------------------------------------------------------------

TEMPLATE = "people.part{i}"


def part_of(number: int, **how: Any) -> bytes:
    plain = plain_file(pa.table({"part": [number] * 3, "ssn": ["a", "b", "c"]}))
    properties: dict[str, Any] = {
        "footer_key": FOOTER_KEY,
        "aad_prefix": b"people.part%d" % number,
    }
    return encrypt_bytes(plain, FileEncryptionProperties(**(properties | how)))


HOWS = [{}, {"store_aad_prefix": False}, PF, PF | {"store_aad_prefix": False}]


@pytest.fixture(params=HOWS, ids=["stored", "unstored", "pf", "pf-unstored"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    for number in range(4):
        (tmp_path / f"part-{number:05}.parquet").write_bytes(part_of(number, **request.param))
    return tmp_path


def check_set(folder: Path, **how: Any) -> tuple[list[str], str]:
    arguments: dict[str, Any] = {"aad_prefix_template": TEMPLATE, "expected_parts": 4} | how
    checked = verify_dataset(folder, arguments.pop("properties", READER), **arguments)
    assert checked.ok == (
        all(file.ok for file in checked.files)
        and not any(finding.severity == "fault" for finding in checked.findings)
    )
    json.dumps(checked.fields())
    return (
        [finding.word for finding in checked.findings],
        "\n".join(finding.message for finding in checked.findings),
    )


def test_a_whole_set_is_complete(folder: Path) -> None:
    checked = verify_dataset(
        folder, READER, aad_prefix_template=TEMPLATE, expected_parts=4, expected_rows=12
    )
    assert checked.findings == ()
    assert checked.ok
    assert checked.complete
    assert [Path(file.name).name for file in checked.files] == [
        f"part-{number:05}.parquet" for number in range(4)
    ]
    uncounted = verify_dataset(folder, READER, aad_prefix_template=TEMPLATE)
    assert uncounted.ok
    assert not uncounted.complete  # the last parts may be missing


def test_a_missing_part_is_named(folder: Path) -> None:
    (folder / "part-00002.parquet").unlink()
    found, text = check_set(folder)
    assert found == ["aad-prefix"]
    assert "1 of 4 parts are missing: b'people.part2'" in text
    assert (
        "1 part missing before the last one: b'people.part2'"
        in (check_set(folder, expected_parts=None)[1])
    )


def test_a_copy_is_named_as_a_part_and_as_a_file(folder: Path) -> None:
    shutil.copy(folder / "part-00001.parquet", folder / "part-00009.parquet")
    found, text = check_set(folder)
    assert "occurs 2 times" in text
    assert "copies of one file" in text
    assert "integrity" in found


def test_a_copy_is_named_without_a_template(folder: Path) -> None:
    shutil.copy(folder / "part-00001.parquet", folder / "part-00009.parquet")
    reader = FileDecryptionProperties(footer_key=FOOTER_KEY)
    checked = verify_dataset(folder, reader)
    faults = [finding for finding in checked.findings if finding.severity == "fault"]
    assert [fault.word for fault in faults] == ["integrity"]
    assert "part-00001.parquet" in faults[0].message
    assert "part-00009.parquet" in faults[0].message
    assert not checked.ok
    with pytest.raises(mc.errors.IntegrityError):
        checked.raise_for_faults()


def _write_with_one_object(folder: Path, how: str, rows: dict[int, int]) -> None:
    """Have PyArrow write a file for each number of rows, with one properties object."""
    keys = [key for key, count in rows.items() for _ in range(count)]
    table = pa.table({"a": range(len(keys)), "p": keys})
    properties = pe.create_encryption_properties(
        FOOTER_KEY, plaintext_footer=how.endswith("plaintext footer")
    )
    if how.startswith("pandas"):
        frame = table.to_pandas()
        frame.to_parquet(folder, partition_cols=["p"], encryption_properties=properties)
    elif how.startswith("dataset"):
        pq.write_to_dataset(table, folder, partition_cols=["p"], encryption_properties=properties)
    else:
        folder.mkdir()
        for key, count in rows.items():
            piece = table.slice(0, count)
            pq.write_table(piece, folder / f"{key}.parquet", encryption_properties=properties)


WAYS = ("pandas", "dataset", "loop", "dataset, plaintext footer")


@pytest.mark.parametrize("how", WAYS)
def test_files_of_one_properties_object_are_no_copies(how: str, tmp_path: Path) -> None:
    _write_with_one_object(tmp_path / "set", how, {1: 2, 2: 5, 3: 30})
    checked = verify_dataset(tmp_path / "set", READER)
    assert checked.ok
    (finding,) = checked.findings
    assert (finding.word, finding.severity) == ("integrity", "warning")
    assert "used one properties object for several files" in finding.message
    assert "can be exchanged for each other undetected" in finding.message
    assert "properties of its own, or re-key" in finding.message
    assert "so they are not copies" in finding.message


@pytest.mark.parametrize("how", WAYS)
def test_files_that_could_be_versions_of_one_are_faults_that_name_both(
    how: str, tmp_path: Path
) -> None:
    _write_with_one_object(tmp_path / "set", how, {1: 3, 2: 3})
    checked = verify_dataset(tmp_path / "set", READER)
    assert not checked.ok
    (finding,) = checked.findings
    assert (finding.word, finding.severity) == ("integrity", "fault")
    assert "versions of" in finding.message
    assert "used one properties object for several files" in finding.message
    assert "do not tell which" in finding.message


def test_a_copy_among_files_of_one_properties_object_is_a_fault(tmp_path: Path) -> None:
    _write_with_one_object(tmp_path / "set", "loop", {1: 2, 2: 5})
    shutil.copy(tmp_path / "set/1.parquet", tmp_path / "set/3.parquet")
    checked = verify_dataset(tmp_path / "set", READER)
    assert not checked.ok
    assert "copies of one file" in checked.findings[0].message


@pytest.mark.parametrize("how", ["loop", "loop, plaintext footer"])
def test_rows_that_nothing_authenticates_prove_nothing(how: str, tmp_path: Path) -> None:
    _write_with_one_object(tmp_path / "set", how, {1: 2, 2: 5})
    for reader in (None, FileDecryptionProperties()):
        (finding,) = verify_dataset(tmp_path / "set", reader).findings
        assert finding.severity == "fault"


def test_an_older_version_beside_the_file_is_a_fault(tmp_path: Path) -> None:
    """A re-keyed file that keeps pages keeps its `aad_file_unique`."""
    (tmp_path / "set").mkdir()
    own = FileEncryptionProperties(footer_key=FOOTER_KEY, column_keys={"b": COLUMN_KEY})
    table = pa.table({"a": [1, 2, 3], "b": ["x", "y", "z"]})
    old, new = tmp_path / "set/old.parquet", tmp_path / "set/new.parquet"
    mc.encrypt_parquet(plain_file(table), old, own)
    again = FileEncryptionProperties(footer_key=OTHER_KEY, column_keys={"b": COLUMN_KEY})
    reader = FileDecryptionProperties(footer_key=FOOTER_KEY, column_keys={"b": COLUMN_KEY})
    mc.rekey_parquet(old, new, reader, again, keep_unchanged=True)
    keys = {str(old): FOOTER_KEY, str(new): OTHER_KEY}
    checked = verify_dataset(
        tmp_path / "set",
        lambda path: FileDecryptionProperties(footer_key=keys[path], column_keys={"b": COLUMN_KEY}),
    )
    assert [finding.severity for finding in checked.findings] == ["fault"]


def test_files_that_took_each_others_names_are_named(folder: Path) -> None:
    one, two = folder / "part-00001.parquet", folder / "part-00002.parquet"
    data = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(data)
    found, text = check_set(folder)
    assert found == ["aad-prefix", "aad-prefix"]
    assert "part-00001.parquet is b'people.part2' by its AAD prefix, and part 1 by its name" in text


def test_a_foreign_file_is_named(folder: Path) -> None:
    foreign = part_of(0, aad_prefix=b"salaries.part3")
    (folder / "part-00003.parquet").write_bytes(foreign)
    found, text = check_set(folder)
    assert set(found) == {"aad-prefix"}
    assert "part-00003.parquet" in text
    assert "foreign file" in text
    (folder / "part-00003.parquet").write_bytes(plain_file(TABLE))
    assert "plaintext file" in check_set(folder)[1]


def test_one_prefix_in_two_files_is_a_warning(tmp_path: Path) -> None:
    for number in range(2):
        data = part_of(number, aad_prefix=b"people")
        (tmp_path / f"{number}.parquet").write_bytes(data)
    checked = verify_dataset(tmp_path, READER)
    assert [(finding.word, finding.severity) for finding in checked.findings] == [
        ("aad-prefix", "warning")
    ]
    assert checked.ok


def test_without_keys_stored_prefixes_are_taken_at_their_word(tmp_path: Path) -> None:
    for number in (0, 2):
        (tmp_path / f"{number}.parquet").write_bytes(part_of(number))
    checked = verify_dataset(tmp_path, aad_prefix_template=TEMPLATE, expected_parts=3)
    assert "1 of 3 parts are missing" in checked.findings[0].message
    assert any(
        "stored AAD prefixes are unverified" in entry.why for entry in checked.not_authenticated
    )
    unstored = part_of(1, store_aad_prefix=False)
    (tmp_path / "1.parquet").write_bytes(unstored)
    again = verify_dataset(tmp_path, aad_prefix_template=TEMPLATE, expected_parts=3)
    assert any(
        "no footer key to identify the part" in entry.why for entry in again.not_authenticated
    )


def test_a_part_of_a_huge_number_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(part_of(0, aad_prefix=b"people.part9999999999"))
    _, text = check_set(tmp_path, expected_parts=None)
    assert "and 9999999979 more" in text


def test_rows_are_counted_over_all_files(folder: Path) -> None:
    assert verify_dataset(folder, expected_rows=12, decryption=_named_prefix).ok
    found, text = check_set(folder, expected_rows=13)
    assert found == ["truncation"]
    assert "12 rows, but 13 are expected" in text


def _named_prefix(path: str) -> FileDecryptionProperties:
    number = int(Path(path).stem.split("-")[1])
    return FileDecryptionProperties(footer_key=FOOTER_KEY, aad_prefix=b"people.part%d" % number)


def test_properties_may_depend_on_the_path(folder: Path) -> None:
    assert verify_dataset(folder, _named_prefix).ok
    (folder / "part-00001.parquet").rename(folder / "part-00007.parquet")
    checked = verify_dataset(folder, _named_prefix)
    assert [file.ok for file in checked.files] == [True, True, True, False]


def test_faults_of_files_are_those_of_the_set_too(folder: Path) -> None:
    path = folder / "part-00001.parquet"
    path.write_bytes(flip_bits(path.read_bytes(), 60))
    checked = verify_dataset(folder, READER, aad_prefix_template=TEMPLATE, jobs=2)
    assert not checked.ok
    assert [file.ok for file in checked.files] == [True, False, True, True]
    with pytest.raises(mc.errors.TagMismatchError):
        checked.raise_for_faults()


def test_a_set_is_found_in_lists_folders_and_stores(folder: Path) -> None:
    paths = sorted(folder.iterdir())
    memory = fsspec.filesystem("memory")
    for path in paths:
        memory.pipe(f"/set/{path.name}", path.read_bytes())
    (folder / "_SUCCESS").write_bytes(b"")
    (folder / ".part-00000.parquet.crc").write_bytes(b"x")
    arguments: dict[str, Any] = {"aad_prefix_template": TEMPLATE, "expected_parts": 4}
    assert verify_dataset(paths, READER, **arguments).complete
    assert verify_dataset(folder, READER, **arguments).complete
    assert verify_dataset("/set", READER, filesystem=memory, **arguments).complete
    memory.rm("/set", recursive=True)


def test_a_file_that_cannot_be_read_does_not_hide_the_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "part-00001.parquet"

    def refuse(place: Place, name: str) -> Any:
        if place.name == path.name:
            raise PermissionError(13, "Permission denied", place.path)
        return open_source_at(place, name)

    monkeypatch.setattr(dataset_verification, "open_source_at", refuse)
    checked = verify_dataset(folder, READER, aad_prefix_template=TEMPLATE, expected_rows=12)
    assert [file.ok for file in checked.files] == [True, False, True, True]
    (finding,) = checked.files[1].findings
    assert finding.word == "file"
    assert "could not be read: Permission denied" in finding.message
    assert not checked.ok
    assert checked.num_rows is None
    assert "rows" in {entry.what for entry in checked.not_authenticated}
    with pytest.raises(OSError, match="Permission denied"):
        checked.files[1].raise_for_faults()


def test_mistakes_about_sets_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no files"):
        verify_dataset(tmp_path)
    with pytest.raises(FileNotFoundError):
        verify_dataset(tmp_path / "nothing")
    with pytest.raises(ValueError, match="aad_prefix_template"):
        verify_dataset(tmp_path, expected_parts=3)
    with pytest.raises(ValueError, match="not both"):
        verify_dataset(
            tmp_path,
            FileDecryptionProperties(aad_prefix=b"x"),
            aad_prefix_template=TEMPLATE,
        )
    with pytest.raises(TypeError):
        verify_dataset(tmp_path, [FOOTER_KEY])  # type: ignore[arg-type]  # a list of keys


# --- notes about writes ---------------------------------------------------------------------------


@pytest.fixture
def noted_folder(tmp_path: Path) -> Path:
    """A folder of two parts, and a note, which needs no key, that hides the second one."""
    for part in range(2):
        properties = mc.FileEncryptionProperties(
            footer_key=FOOTER_KEY, aad_prefix=b"p/%d" % part, store_aad_prefix=False
        )
        mc.write_table(pa.table({"id": [part]}), tmp_path / f"part-{part}.parquet", properties)
    (tmp_path / NOTES).mkdir()
    put_note(tmp_path, hidden=["part-1.parquet"])
    return tmp_path


def put_note(folder: Path, **fields: Any) -> None:
    text = json.dumps({"host": "h", "time": 0, **fields})
    (folder / NOTES / "job.json").write_text(text)


def test_files_that_a_note_hides_from_readers_are_not_counted(noted_folder: Path) -> None:
    keys = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
    template: dict[str, Any] = {"aad_prefix_template": "p/{i}"}
    found = mc.verify_dataset(noted_folder, keys, **template, expected_parts=2)
    assert not found.ok
    assert "missing" in found.findings[0].message
    assert not mc.verify_dataset(noted_folder, keys, **template, expected_rows=2).ok
    unknown = mc.verify_dataset(noted_folder, keys, **template, expected_parts=1)
    assert (unknown.ok, unknown.complete) == (True, False)
    (note,) = [entry for entry in unknown.not_authenticated if entry.what == "files"]
    assert "part-1.parquet from readers" in note.why
    (noted_folder / NOTES / "job.json").unlink()
    assert mc.verify_dataset(noted_folder, keys, **template, expected_parts=2, expected_rows=2).ok


@pytest.mark.parametrize("hidden", [["../x"], ["/etc/passwd"], [1], "a", None])
def test_a_damaged_note_is_a_format_error_for_everyone(noted_folder: Path, hidden: Any) -> None:
    keys = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
    put_note(noted_folder, hidden=hidden)
    for act in (mc.read_table, mc.verify_dataset):
        with pytest.raises(FormatError, match="not a note of a write"):
            act(noted_folder, keys)


def test_pages_of_chunks_side_by_side_are_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pa.table({f"c{n}": [n] * 40 for n in range(20)})
    path = tmp_path / "sealed"
    uniform = FileEncryptionProperties(footer_key=FOOTER_KEY)
    path.write_bytes(encrypt_bytes(plain_file(rows, row_group_size=10), uniform))
    reads, read_into = [], FileSource.read_into

    def note_read(self: FileSource, offset: int, view: memoryview) -> None:
        reads.append(len(view))
        read_into(self, offset, view)

    monkeypatch.setattr(FileSource, "read_into", note_read)
    verified = verify_parquet(path, READER)
    assert (verified.findings, verified.modules) == ((), 1 + 4 * 20 * 2 * 2)
    assert len(reads) == 1  # of all pages; the tail is read as bytes


def test_lists_of_arrow_rs_are_no_fault() -> None:
    """It flags a page of lists with as many nulls as rows as one of nulls."""
    data = (ROOT / "spec-vectors/by-writer/arrow-rs-lists.parquet").read_bytes()
    keys = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
    found = mc.verify_parquet(data, keys)
    assert found.ok
    (finding,) = found.findings
    assert "arrow-rs 60 writes such indexes" in finding.message
    rows = [{"lst": row} for row in ([None, 1], [None, 2], [3])]
    assert mc.read_table(data, keys).to_pylist() == rows

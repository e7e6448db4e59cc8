"""Bugs of writers are found in their files, and not in files of writers that have none."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt.io.sources import open_source
from modcrypt.parquet.format.idl import decode, encode
from modcrypt.parquet.verify.encrypted_quirks import DETECTORS, find_encrypted_quirks
from modcrypt.parquet.writers.detection import DEPTHS, find_quirks
from modcrypt.parquet.writers.plain_view import PlainView
from modcrypt.parquet.writers.quirk import (
    MAX_PLACES,
    TABLES,
    FoundQuirk,
    Place,
    load_quirks,
    load_table,
)
from modcrypt.parquet.writers.repair import MENDS
from tests.support import forging
from tests.support.cases import each_case
from tests.support.keys import FOOTER_KEY
from tests.support.paths import ROOT
from tools.writer_vectors import FILES, FOLDER, list_files, load_file, read_manifest

NAMES = list_files()
OF_PLAINTEXT = [quirk.name for table in TABLES[:-1] for quirk in load_table(table)]


def find(data: bytes | str, **depth: Any) -> tuple[FoundQuirk, ...]:
    with open_source(data) as source:
        return find_quirks(PlainView.of(source), **depth)


def test_the_table_has_at_least_40_rows_and_each_has_a_file() -> None:
    assert len(OF_PLAINTEXT) >= 40
    assert {row for rows in NAMES.values() for row in rows} == {*OF_PLAINTEXT}
    assert {path.name for path in FOLDER.glob("*.parquet")} == {*read_manifest()}
    assert all(len(load_file(name)) < 4096 for name in NAMES)


def test_rows_are_complete() -> None:
    for quirk in load_quirks().values():
        assert (quirk.harm == "none") == (not quirk.risk), quirk.name
        assert bool(quirk.mend) == bool(quirk.repair), quirk.name
        assert not quirk.mend or quirk.mend in MENDS, quirk.name
        assert quirk.risk == "" or quirk.risk.endswith("."), quirk.name
    assert {quirk.mend for quirk in load_quirks().values()} - {""} == {*MENDS}


@each_case("name", NAMES)
def test_the_bugs_of_a_file_are_found(name: str) -> None:
    found = find(load_file(name))
    assert [bug.quirk for bug in found] == NAMES[name]
    for bug in found:
        assert 0 < len(bug.places) <= min(bug.count, MAX_PLACES)
        assert bug.quirk in str(bug)
        assert bug.places[0] in str(bug)
        assert bug.fields()["quirk"] == bug.quirk
        assert ("possible" in str(bug)) == (not bug.certain)


@each_case("row", FILES)
def test_the_patches_make_files_with_the_bug(row: str) -> None:
    assert row in [bug.quirk for bug in find(FILES[row]())]


CLEAN = pa.table({"id": [1, 2, 3, None], "name": ["a", "b", None, "a"], "f": [1.0, 2.0, 3.0, 4.0]})
MORE = pa.table(
    {
        "zero": [0.0, -0.0, float("nan"), None],
        "nan": [float("nan")] * 4,
        "null": pa.array([None] * 4, pa.string()),
        "list": [[1], [], None, [2, 3]],
        "map": pa.array([[("a", 1)], [], None, [("b", None)]], pa.map_(pa.string(), pa.int64())),
        "time": pa.array([1, 2, 3, None], pa.timestamp("us")),
        "decimal": pa.array([1, 2, 3, None], pa.decimal128(20, 2)),
        "unsigned": pa.array([1, 2**32 - 1, 3, None], pa.uint32()),
    }
)
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {}, "v2": {"data_page_version": "2.0"}, "plain": {"use_dictionary": False},
    "index": {"write_page_index": True}, "lz4": {"compression": "lz4"},
    "gzip": {"compression": "gzip", "row_group_size": 2},
    "bloom": {"bloom_filter_options": {"list.list.element": {"ndv": 10}}},
}  # fmt: skip


@each_case("name", OPTIONS)
def test_nothing_is_found_in_files_of_pyarrow(name: str) -> None:
    for table in (CLEAN, MORE):
        options = {} if table is CLEAN and name == "bloom" else OPTIONS[name]
        assert [bug.quirk for bug in find(forging.plain_file(table, **options))] == []


def test_little_is_found_in_files_of_other_current_writers(tmp_path: Path) -> None:
    pl, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    path = str(tmp_path / "file.parquet")
    pl.from_arrow(CLEAN).write_parquet(path)
    assert {bug.quirk for bug in find(path)} <= {"metadata-copies"}  # Polars still writes them
    duckdb.register("clean", CLEAN)
    duckdb.sql(f"copy (select * from clean) to '{path}' (format parquet)")
    assert find(path) == ()


def test_less_is_read_for_less_depth() -> None:
    data = load_file("polars-2.0-nan.parquet")
    names = [{bug.quirk for bug in find(data, depth=depth)} for depth in DEPTHS]
    assert names[0] < names[1] <= names[2]
    assert "nan-bounds" in names[1]


def test_places_are_counted_but_not_all_listed() -> None:
    quirk = load_quirks()["file-offset"]
    found = FoundQuirk.of(quirk, [Place(n, 0, "name") for n in range(9)])
    assert (found.count, len(found.places)) == (9, MAX_PLACES)
    assert "and 4 more places" in str(found)


@pytest.mark.parametrize("cut", range(0, 200, 7))
def test_a_damaged_file_gives_findings_or_an_error(cut: int) -> None:
    for name in ("pyarrow-10-v2-lists.parquet", "duckdb-2.0-deltas.parquet"):
        data = bytearray(load_file(name))
        if cut + 4 < len(data) - 8:
            data[cut + 4] ^= 0x55
        try:
            find(bytes(data))
        except mc.errors.ModcryptError:
            continue


def test_levels_longer_than_their_page_are_not_decompressed() -> None:
    out, numbers = io.BytesIO(), pa.table({"n": pa.array([1000] * 40 + [7] * 41, pa.int32())})
    pq.write_table(
        numbers, out, compression="gzip", data_page_version="2.0", use_dictionary=False,
        column_encoding={"n": "DELTA_BINARY_PACKED"}, write_statistics=False,
    )  # fmt: skip
    data = out.getvalue()
    header, size = decode("PageHeader", data[4:])
    v2, header.uncompressed_page_size = header.data_page_header_v2, 64
    v2.definition_levels_byte_length = v2.repetition_levels_byte_length = 63
    assert len(changed := encode(header)) == size
    assert find(data[:4] + changed + data[4 + size :]) == ()


# --- inspection and verification -----------------------------------------------------------------


@each_case("name", NAMES)
def test_no_error_that_was_handled_stays_the_current_one(name: str) -> None:
    """Compiled code could leave one, with its frames, to its caller."""
    mc.inspect_parquet(load_file(name))
    mc.verify_parquet(load_file(name))
    assert sys.exception() is None


@each_case("name", NAMES)
def test_inspection_and_verification_name_the_bugs(name: str) -> None:
    data, rows = load_file(name), NAMES[name]
    quirks = mc.inspect_parquet(data, pages=True).quirks
    assert [q.partition(":")[0] for q in quirks if q.partition(":")[0] in rows] == rows
    verified = mc.verify_parquet(data)
    assert [bug.quirk for bug in verified.quirks] == rows
    assert [bug["quirk"] for bug in verified.fields()["quirks"]] == rows
    refused = {"short-chunks", "row-group-ordinals"}  # by reading, too
    assert verified.ok or refused & {*rows}, verified.findings


def test_bugs_of_encrypted_files_are_named_as_far_as_keys_open_them() -> None:
    data = forging.encrypt_bytes(
        load_file("duckdb-2.0-zeros.parquet"), mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
    )
    reader = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
    assert any(q.startswith("zero-bounds") for q in mc.inspect_parquet(data, reader).quirks)
    assert not any(q.startswith("zero-bounds") for q in mc.inspect_parquet(data).quirks)
    assert mc.verify_parquet(data, reader).quirks == ()  # nothing to explain


def test_bugs_of_writers_of_encrypted_files_are_found() -> None:
    assert {*DETECTORS} < {quirk.name for quirk in load_table("encrypted")}
    by_writer = ROOT / "spec-vectors/by-writer"
    keys = mc.FileDecryptionProperties(
        footer_key=b"0123456789012345", column_keys={"name": b"1234567890123450"}
    )
    for footer in ("encrypted", "plaintext"):
        with open_source(by_writer / f"parquet-go-{footer}-footer.parquet") as source:
            assert [bug.quirk for bug in find_encrypted_quirks(source, keys)] == ["module-types"]
    plain = forging.plain_file(CLEAN, data_page_version="2.0")
    reader = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
    cases: list[tuple[Literal["plaintext", "encrypted"], list[str]]] = [
        ("plaintext", ["clear-levels"]), ("encrypted", [])
    ]  # fmt: skip
    for levels, rows in cases:
        encryption = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, data_page_v2_levels=levels)
        with open_source(forging.encrypt_bytes(plain, encryption)) as source:
            assert [bug.quirk for bug in find_encrypted_quirks(source, reader)] == rows


def test_encryption_of_duckdb_is_named(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "file.parquet"
    with duckdb.connect() as connection:
        connection.execute("set force_mbedtls_unsafe = 'true'")
        connection.execute(f"pragma add_parquet_key('k', '{FOOTER_KEY.decode()}')")
        how = "format parquet, encryption_config {footer_key: 'k'}"
        connection.execute(f"copy (select 1 as n) to '{path}' ({how})")
    with open_source(path) as source:
        assert [bug.quirk for bug in find_encrypted_quirks(source, None)] == ["no-aad"]


def test_sentences_hold_no_values() -> None:
    secret = 123_456_789.25
    table = pa.table({"f": [0.0, secret]})
    body = forging.plain_file(table)
    data = forging.edit_plain(
        body, lambda m: setattr(m.row_groups[0].columns[0].meta_data.statistics, "min_value", b"")
    )
    text = io.StringIO()
    print(*map(str, find(data)), file=text)
    assert "bounds-of-another-size" in text.getvalue()
    assert str(secret) not in text.getvalue()

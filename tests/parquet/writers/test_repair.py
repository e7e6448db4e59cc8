"""Repairing what misleads other readers, while a file is encrypted."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt.io.sources import open_source
from modcrypt.parquet.writers.detection import find_quirks
from modcrypt.parquet.writers.plain_view import PlainView
from modcrypt.parquet.writers.quirk import FoundQuirk, load_quirks
from tests.support import forging
from tests.support.cases import each_case
from tests.support.keys import COLUMN_KEY, FOOTER_KEY
from tools.writer_vectors import FILES, list_files, load_file

UNIFORM = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
READER = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
TABLE = load_quirks()

REPAIRED = {
    name: rows
    for name, found in list_files().items()
    if (rows := [row for row in found if TABLE[row].mend])
}
"""The bugs that are repaired, by the file."""


def repair(data: bytes, **options: Any) -> tuple[bytes, tuple[FoundQuirk, ...]]:
    out = io.BytesIO()
    repaired = mc.encrypt_parquet(data, out, UNIFORM, repair=True, **options)
    return out.getvalue(), repaired


def find(data: bytes) -> list[str]:
    with open_source(data) as source:
        return [bug.quirk for bug in find_quirks(PlainView.of(source))]


def test_every_repair_has_a_file() -> None:
    rows = {row for rows in REPAIRED.values() for row in rows}
    assert rows == {name for name, quirk in TABLE.items() if quirk.mend}


@each_case("name", REPAIRED)
def test_a_repaired_file_has_no_such_bug_and_is_restored(name: str) -> None:
    data = load_file(name)
    file, repaired = repair(data)
    assert [bug.quirk for bug in repaired] == REPAIRED[name]
    assert mc.verify_parquet(file, READER).ok
    assert forging.decrypt_bytes(file, READER) == data
    file, _ = repair(data, exact=False)
    plain = forging.decrypt_bytes(file, READER, exact=False)
    assert {*find(plain)}.isdisjoint(REPAIRED[name])


@each_case("name", REPAIRED)
def test_repair_changes_no_row(name: str) -> None:
    data = load_file(name)
    try:
        table = pq.read_table(io.BytesIO(data))
    except (pa.ArrowException, OSError):  # a type that PyArrow lacks, or a bug that is repaired
        table = None
    file, _ = repair(data, exact=False)
    plain = forging.decrypt_bytes(file, READER, exact=False)
    if table is not None:
        again = pq.read_table(io.BytesIO(plain))
        assert repr(again.to_pylist()) == repr(table.to_pylist())  # NaN equals itself
        assert mc.read_table(file, READER).num_rows == table.num_rows


def test_filters_of_others_find_rows_after_repair() -> None:
    data = load_file("polars-2.0-nan.parquet")
    predicate = [("value", ">", 4.0)]
    assert pq.read_table(io.BytesIO(data), filters=predicate).num_rows == 3
    low = [("value", "<", 1.5)]
    file, _ = repair(data, exact=False)
    plain = forging.decrypt_bytes(file, READER, exact=False)
    for wanted in (predicate, low):
        expected = pq.read_table(io.BytesIO(data)).filter(pq.filters_to_expression(wanted))
        assert pq.read_table(io.BytesIO(plain), filters=wanted).num_rows == expected.num_rows


def test_sizes_that_old_parquet_mr_wrote_are_corrected_without_a_repair() -> None:
    data = load_file("parquet-mr-1.2.8.parquet")  # names its writer without a version
    file = forging.encrypt_bytes(data, UNIFORM)
    assert mc.read_table(file, READER)["name"].to_pylist() == [b"name0", b"name1"] * 2
    assert forging.decrypt_bytes(file, READER) == data


def test_a_file_that_encryption_refuses_is_repaired() -> None:
    data = FILES["short-chunks"]()
    with pytest.raises(mc.errors.FormatError):
        forging.encrypt_bytes(data, UNIFORM)
    named = forging.edit_plain(
        data, lambda m: setattr(m, "created_by", b"parquet-mr version 1.2.8")
    )
    for source in (data, named):  # the sizes of the latter are corrected in any case
        file, repaired = repair(source)
        assert "short-chunks" in [bug.quirk for bug in repaired]
        assert mc.read_table(file, READER)["n"].to_pylist() == list(range(300))
        assert forging.decrypt_bytes(file, READER) == source


def test_nothing_changes_without_bugs_or_without_repair() -> None:
    clean = forging.plain_file(pa.table({"n": [1, 2]}))
    file, repaired = repair(clean)
    assert repaired == ()
    assert len(file) == len(forging.encrypt_bytes(clean, UNIFORM))
    data = load_file("duckdb-2.0-zeros.parquet")
    out = io.BytesIO()
    assert mc.encrypt_parquet(data, out, UNIFORM) == ()
    statistics = mc.ParquetFile(out.getvalue(), READER).metadata.row_group(0).column(0).statistics
    assert str(statistics.min) == "0.0"
    file, _ = repair(data)
    statistics = mc.ParquetFile(file, READER).metadata.row_group(0).column(0).statistics
    assert str(statistics.min) == "-0.0"


@pytest.mark.parametrize("plaintext_footer", [False, True])
def test_repair_works_with_column_keys(plaintext_footer: bool) -> None:
    data = load_file("fastparquet-2026.9.parquet")
    keys = {"name": COLUMN_KEY}
    encryption = mc.FileEncryptionProperties(
        footer_key=FOOTER_KEY, column_keys=keys, plaintext_footer=plaintext_footer
    )
    reader = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, column_keys=keys)
    out = io.BytesIO()
    assert mc.encrypt_parquet(data, out, encryption, repair=True)
    assert mc.verify_parquet(out.getvalue(), reader).ok
    assert forging.decrypt_bytes(out.getvalue(), reader) == data

"""Tables of Iceberg's Java that are kept with the project: read wherever there is no Java.

What they are, and how they were made, says spec-vectors/by-writer/iceberg-java/README.md.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from modcrypt.iceberg import IcebergTable, open_table
from modcrypt.iceberg.rotate.table_rotation import rotate_table
from modcrypt.iceberg.verify.table_verification import verify_table
from tests.support.iceberg.java_judge import Judge, plain_rows
from tests.support.iceberg.java_vector import LOCATION, REFS, STOCK
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.paths import ROOT

FOLDER = ROOT / "spec-vectors" / "by-writer" / "iceberg-java"
ROWS: dict[str, list[dict[str, Any]]] = json.loads((FOLDER / "rows.json").read_text())
STOCK_ROWS: list[dict[str, Any]] = json.loads((FOLDER / "stock.json").read_text())["main"]


@pytest.fixture
def vector(kms: SampleKms) -> IcebergTable:
    return open_table(FOLDER / "people", kms)


@pytest.mark.parametrize("ref", REFS)
def test_the_rows_are_those_that_java_reads(vector: IcebergTable, ref: str) -> None:
    assert plain_rows(vector.scan(ref)) == ROWS[ref]
    assert len(ROWS[ref]) > 7


def test_the_current_rows(vector: IcebergTable) -> None:
    assert plain_rows(vector.scan()) == ROWS["main"]
    assert sorted(row["id"] for row in ROWS["main"]) == [0, 1, 2, 7, 9, 11, 12, 13, 2**40]


@pytest.mark.parametrize("ref", REFS)
def test_java_still_reads_it(java: Judge, vector: IcebergTable, ref: str) -> None:
    reported = java.read(vector.place.path, {LOCATION: FOLDER / "people"}, ref=ref)
    assert reported == ROWS[ref]


@pytest.mark.parametrize(
    ("text", "keep"),
    [
        ("id > 11", lambda row: row["id"] > 11),
        ("title = 'name-9'", lambda row: row["title"] == "name-9"),
        ("title is null", lambda row: row["title"] is None),
        ("town = 'Ulm'", lambda row: row["town"] == "Ulm"),
        ("town is null and score < 0.3", lambda row: row["town"] is None and row["score"] < 0.3),
        ("born >= '2011-02-28'", lambda row: row["born"] >= "2011-02-28"),
    ],
)
def test_filters(vector: IcebergTable, text: str, keep: Any) -> None:
    """Over partitions of two specs, columns that were renamed, promoted and added."""
    for ref in ("main", "audit"):
        expected = [row for row in ROWS[ref] if keep(row)]
        assert plain_rows(vector.scan(ref, filters=text)) == expected != []


def test_columns(vector: IcebergTable) -> None:
    found = vector.scan("audit", columns=["town", "id"]).to_pylist()
    by_id = sorted((row["id"], row["town"]) for row in found)
    assert by_id == sorted((row["id"], row["town"]) for row in ROWS["audit"])
    assert set(found[0]) == {"id", "town"}


@pytest.mark.parametrize("what", ["mek", "kek", "dek"])
def test_its_rows_after_a_rotation(kms: SampleKms, tmp_path: Path, what: Any) -> None:
    shutil.copytree(FOLDER / "people", tmp_path / "people")
    rotated = rotate_table(open_table(tmp_path / "people", kms), what).table
    for ref in REFS:
        assert plain_rows(rotated.scan(ref)) == ROWS[ref]
    assert verify_table(rotated).ok


def test_all_of_it_verifies(vector: IcebergTable) -> None:
    found = verify_table(vector)
    assert (found.ok, found.complete) == (True, True)


def test_its_files(vector: IcebergTable) -> None:
    """Without these shapes it would not be worth keeping."""
    rows = vector.files("audit").to_pylist()
    assert all(row["encrypted"] for row in rows)
    assert Counter((row["kind"], row["file_format"]) for row in rows) == {
        ("manifest list", "AVRO"): 1,
        ("manifest", "AVRO"): 2,
        ("delete manifest", "AVRO"): 2,
        ("data", "PARQUET"): 4,
        ("data", "AVRO"): 2,
        ("position deletes", "PARQUET"): 2,
        ("position deletes", "AVRO"): 1,
        ("deletion vector", "PUFFIN"): 3,
    }


def test_its_keys(vector: IcebergTable, kms: SampleKms) -> None:
    rows = vector.keys().to_pylist()
    keks = [row for row in rows if row["kind"] == "KEK"]
    assert [row["snapshots"] for row in keks] == [1, 2]
    assert (keks[1]["created_at"] - keks[0]["created_at"]).days == 800
    assert len([row for row in rows if not row["snapshots"]]) == 5  # of snapshots that are gone
    for ref in REFS:
        vector.scan(ref).to_arrow()
    assert kms.calls == [("unwrap", "keyA")] * 2


def test_keys_of_16_bytes_and_of_32(vector: IcebergTable) -> None:
    snapshot = vector.metadata.current
    assert snapshot is not None
    lengths = {
        len(keys.key)
        for manifest in vector.walk.manifests(snapshot)
        for entry in vector.walk.entries(manifest)
        if (keys := vector.walk.file_keys(entry)) is not None
    }
    assert lengths == {16, 32}


# --- equality deletes ----------------------------------------------------------------------------


@pytest.fixture
def stock_table(kms: SampleKms) -> IcebergTable:
    return open_table(FOLDER / "stock", kms)


def test_rows_that_no_equality_delete_is_for(stock_table: IcebergTable) -> None:
    assert plain_rows(stock_table.scan()) == STOCK_ROWS
    assert sorted(row["item"] for row in STOCK_ROWS) == [1, 6, 7, 11, 12, 15, 17, 19, 20]
    assert stock_table.scan(columns=["paint"]).num_rows == 9
    assert stock_table.scan(columns=["item"], filters="paint = 'red'").num_rows == 3
    assert verify_table(stock_table).ok


def test_java_still_reads_equality_deletes(stock_table: IcebergTable, java: Judge) -> None:
    assert java.read(stock_table.place.path, {STOCK: FOLDER / "stock"}) == STOCK_ROWS


def test_files_of_equality_deletes(stock_table: IcebergTable) -> None:
    rows = stock_table.files().to_pylist()
    assert Counter((row["kind"], row["file_format"]) for row in rows if "delet" in row["kind"]) == {
        ("delete manifest", "AVRO"): 2,
        ("deletion vector", "PUFFIN"): 2,
        ("equality deletes", "AVRO"): 1,
        ("equality deletes", "PARQUET"): 4,
    }

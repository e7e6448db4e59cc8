"""Tables of stock Spark on Hive that are kept with the project: read wherever there is no Spark.

What they are, and how they were made, says spec-vectors/by-writer/iceberg-spark/README.md.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from modcrypt.iceberg import IcebergTable, open_table, rotate_table, verify_table
from tests.support.cases import each_case
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.paths import ROOT

FOLDER = ROOT / "spec-vectors" / "by-writer" / "iceberg-spark"
ROWS: dict[str, list[dict[str, Any]]] = json.loads((FOLDER / "rows.json").read_text())
FILES = {
    "orders": {("data", "PARQUET"): 6, ("deletion vector", "PUFFIN"): 2},
    "people": {("data", "PARQUET"): 2, ("data", "AVRO"): 3, ("deletion vector", "PUFFIN"): 2},
}
"""Without these shapes they would not be worth keeping."""


def find_metadata(name: str, folder: Path = FOLDER) -> Path:
    (metadata,) = (folder / name / "metadata").glob("*.metadata.json")
    return metadata


def open_vector(name: str) -> IcebergTable:
    return open_table(find_metadata(name), SampleKms())


def rows_of(table: IcebergTable) -> Any:
    """Return rows as Spark's `str` and JSON have them, in UTC."""
    rows = table.scan().sort_by("id").to_pylist(maps_as_pydicts="strict")
    return json.loads(json.dumps(rows, default=str).replace("+00:00", ""))


@each_case("name", FILES)
def test_the_rows_are_those_that_spark_reads(name: str) -> None:
    assert rows_of(open_vector(name)) == ROWS[name]


@pytest.mark.parametrize(
    ("name", "text", "ids"),
    [
        ("orders", "id > 30", [40, 5000000000]),
        ("orders", "country is null", []),  # its only row is deleted
        ("orders", "note = 'changed'", [4, 9]),
        ("orders", "country = 'SE' and amount < 6.0", [1, 3]),
        ("people", "title = 'Kay'", [6]),
        ("people", "born is null and salary > 0", [1]),
    ],
)
def test_filters(name: str, text: str, ids: list[int]) -> None:
    """Over partitions of several specs, and columns that were renamed, promoted and added."""
    assert sorted(open_vector(name).scan(filters=text)["id"].to_pylist()) == ids


def test_earlier_versions() -> None:
    table = open_vector("people")
    snapshots = table.snapshots().sort_by("snapshot_id")["snapshot_id"].to_pylist()
    counts = sorted(table.scan(snapshot).num_rows for snapshot in snapshots)
    assert counts == [3, 3, 4, 5]


@each_case("name", FILES)
def test_all_of_it_verifies(name: str) -> None:
    table = open_vector(name)
    found = verify_table(table)
    assert (found.ok, found.complete, found.orphans) == (True, True, ())
    rows = table.files().to_pylist()
    assert all(row["encrypted"] for row in rows)
    kinds = Counter((row["kind"], row["file_format"]) for row in rows)
    assert FILES[name].items() <= kinds.items()


@each_case("what", ["mek", "kek", "dek"])
@each_case("name", FILES)
def test_its_rows_after_a_rotation(name: str, what: Any, tmp_path: Path) -> None:
    """In a folder of its own, where the newest version counts: no catalog is here."""
    folder = tmp_path / what / name
    shutil.copytree(FOLDER / name, folder)
    metadata = find_metadata(name, folder.parent)
    metadata.rename(metadata.with_name("v1.metadata.json"))
    rotated = rotate_table(open_table(folder, SampleKms()), what).table
    assert rows_of(rotated) == ROWS[name]
    assert verify_table(rotated).ok


def test_they_are_small() -> None:
    for name in FILES:
        assert sum(path.stat().st_size for path in (FOLDER / name).rglob("*.*")) < 100_000

"""A table of Iceberg's Java with deletes, a branch and a tag, and the files that it needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modcrypt.iceberg import IcebergTable, open_table
from tests.support.iceberg.builder import field, struct
from tests.support.iceberg.java_judge import Judge
from tests.support.iceberg.java_tables import partition_spec
from tests.support.iceberg.sample_kms import SampleKms

SCHEMA = struct(field(1, "id", "long"), field(2, "kind", "string"))
BY_KIND = partition_spec((2, "identity", "kind"))


def rows(*ids: int) -> list[dict[str, Any]]:
    return [{"id": id_, "kind": "even" if id_ % 2 == 0 else "odd"} for id_ in ids]


@pytest.fixture
def lake(tmp_path: Path, java: Judge) -> IcebergTable:
    """A partitioned table with deletes, a compaction, a branch and a tag, written by Java."""
    folder = tmp_path / "lake"
    metadata = java.create(folder, SCHEMA, spec=BY_KIND)
    metadata = java.commit(metadata, {"do": "append", "rows": rows(1, 2, 3)})
    first = java.snapshots(metadata)["current"]
    metadata = java.commit(
        metadata,
        {"do": "tag", "name": "first", "snapshot": first},
        {"do": "append", "rows": rows(4, 5, 6)},
        {"do": "append", "rows": rows(7, 8)},
        {"do": "delete", "column": "id", "values": [1, 4]},
    )
    second = java.snapshots(metadata)["current"]
    metadata = java.commit(
        metadata,
        {"do": "branch", "name": "audit", "snapshot": second},
        {"do": "compact"},
        {"do": "append", "rows": rows(9)},
    )
    return open_table(folder, SampleKms())


def files_needed(java: Judge, metadata: Path) -> set[str]:
    """Return the files that Java reads for the snapshots of a metadata.json."""
    found = set()
    for snapshot in json.loads(metadata.read_bytes())["snapshots"]:
        found.add(snapshot["manifest-list"])
        reported = json.dumps(java.files(metadata, snapshot=snapshot["snapshot-id"]))
        found |= {part for part in reported.split('"') if part.startswith("/") and "." in part}
    return found


def table_files(folder: Path) -> set[str]:
    names = {str(path) for path in folder.rglob("*") if path.is_file()}
    return {name for name in names if not name.endswith((".crc", "version-hint.text"))}


def folder_of(table: IcebergTable) -> Path:
    return Path(table.place.path).parents[1]

"""The table of the shared vectors, which Iceberg's Java wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from modcrypt.iceberg import IcebergTable, open_table
from tests.support.iceberg.sample_kms import SampleKms


def both(folder: Path) -> dict[str, str]:
    """Map the two beginnings of locations that the shared table has."""
    return {"/warehouse/t16": str(folder), "wh:/t16": str(folder)}


def expected_rows(ids: list[int]) -> list[dict[str, object]]:
    return [
        {"id": id_, "name": None if id_ % 7 == 0 else f"name-{id_}", "salary": id_ * 1.5}
        for id_ in ids
    ]


FIRST, SECOND = list(range(100, 170)), list(range(200, 270))
DELETED = {103, 105, 149}
SNAPSHOTS = (1001, 1002, 1003)


def reopen(folder: Path, kms: Any = None, **more: Any) -> IcebergTable:
    return open_table(folder, kms or SampleKms(), location_map=both(folder), **more)


def all_rows(table: IcebergTable) -> dict[int, list[dict[str, Any]]]:
    return {snapshot: table.scan(snapshot).sort_by("id").to_pylist() for snapshot in SNAPSHOTS}

"""Tables that Iceberg's Java writes: schemas, partition specs, rows and commits."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from modcrypt.iceberg import IcebergTable, open_table
from tests.support.iceberg.java_judge import Judge, as_json, plain_rows
from tests.support.iceberg.sample_kms import SampleKms

Row: TypeAlias = dict[str, Any]


def schema(*fields: tuple[str, Any]) -> dict[str, Any]:
    """Return a schema as metadata.json has it; the first field is required."""
    numbered = [
        {"id": n, "name": name, "type": kind, "required": n == 1}
        for n, (name, kind) in enumerate(fields, 1)
    ]
    return {"type": "struct", "schema-id": 0, "fields": numbered}


def partition_spec(*fields: tuple[int, str, str]) -> dict[str, Any]:
    """Return a partition spec: the id of a column, a transform, a name."""
    numbered = [
        {"source-id": source, "field-id": 1000 + n, "transform": transform, "name": name}
        for n, (source, transform, name) in enumerate(fields)
    ]
    return {"spec-id": 0, "fields": numbered}


PEOPLE = schema(("id", "long"), ("name", "string"), ("joined", "timestamptz"))


def people(*ids: int) -> list[Row]:
    start = datetime.datetime(2026, 1, 1, 10, tzinfo=datetime.UTC)
    return [
        {
            "id": n,
            "name": None if n % 7 == 0 else f"name-{n % 5}",
            "joined": as_json(start + datetime.timedelta(hours=9 * (n % 10), microseconds=n)),
        }
        for n in ids
    ]


def append(*ids: int, **options: str) -> Row:
    return {"do": "append", "rows": people(*ids), **options}


def delete(*ids: int, **options: Any) -> Row:
    return {"do": "delete", "column": "id", "values": ids, **options}


class Both:
    """A table in a folder, which Java writes and reads, and modcrypt reads."""

    def __init__(self, java: Judge, kms: SampleKms, folder: Path) -> None:
        self.java, self.kms, self.folder = java, kms, folder
        self.metadata = folder / "none"

    def create(self, of: Mapping[str, Any], **options: Any) -> Both:
        self.metadata = self.java.create(self.folder, of, **options)
        return self

    def commit(self, *steps: Mapping[str, Any], **options: Any) -> Both:
        self.metadata = self.java.commit(self.metadata, *steps, **options)
        return self

    def table(self) -> IcebergTable:
        return open_table(self.metadata, self.kms)

    def agree(self) -> list[Row]:
        """Compare all snapshots, branches and tags; return the current rows."""
        table, reported = self.table(), self.java.snapshots(self.metadata)
        for snapshot in [entry["id"] for entry in reported["snapshots"]]:
            found = plain_rows(table.scan(snapshot))
            assert found == self.java.read(self.metadata, snapshot=snapshot)
        current = self.java.read(self.metadata)
        for ref in reported["refs"]:
            expected = current if ref == "main" else self.java.read(self.metadata, ref=ref)
            assert plain_rows(table.scan(ref)) == expected
        assert plain_rows(table.scan()) == current
        return current

    def formats(self) -> list[str]:
        """Return content and format of the live files, as Java has them."""
        names = ("data", "position deletes", "equality deletes")
        files = self.java.files(self.metadata)["files"]
        return sorted(f"{names[file['content']]} {file['format']}" for file in files)


@pytest.fixture
def both(java: Judge, kms: SampleKms, tmp_path: Path) -> Both:
    return Both(java, kms, tmp_path / "table")


def ids(rows: Sequence[Row]) -> list[int]:
    return sorted(row["id"] for row in rows)


ALL_TYPES = schema(
    ("id", "int"),
    ("flag", "boolean"),
    ("large", "long"),
    ("small_real", "float"),
    ("real", "double"),
    ("price", "decimal(12, 2)"),
    ("huge", "decimal(38, 10)"),
    ("day", "date"),
    ("clock", "time"),
    ("local", "timestamp"),
    ("moment", "timestamptz"),
    ("text", "string"),
    ("key", "uuid"),
    ("fixed", "fixed[5]"),
    ("raw", "binary"),
)
FULL: Row = {
    "id": 1, "flag": True, "large": -(2**63), "small_real": 1.5, "real": -2.5e-300,
    "price": "-1234567890.05", "huge": "1234567890123456789012345678.0123456789",
    "day": "1969-12-31", "clock": "23:59:59.999999", "local": "1969-12-31T23:59:59.999999",
    "moment": "2026-10-25T01:30:00.000001+00:00", "text": "Stra\N{LATIN SMALL LETTER SHARP S}e \0",
    "key": "f81d4fae-7dec-11d0-a765-00a0c91e6bf6", "fixed": "0001feff80", "raw": "",
}  # fmt: skip
PARTITIONED = {
    "identity": partition_spec((2, "identity", "name")),
    "bucket": partition_spec((1, "bucket[4]", "id_bucket")),
    "day": partition_spec((3, "day", "joined_day")),
    "truncate": partition_spec((2, "truncate[5]", "name_trunc")),
    "two": partition_spec((3, "month", "joined_month"), (2, "identity", "name")),
}

"""Scans as pyiceberg has them: what they choose, when they read, and in which forms."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.expressions import IsNaN, Reference

from modcrypt.errors import ModcryptError
from modcrypt.iceberg import IcebergTable, create_table, open_table
from tests.support.cases import each_case
from tests.support.iceberg.sample_kms import SampleKms

BY_NAN = IsNaN(term=Reference("f"))
ROWS = pa.table({"id": [1, 2, 3], "Name": ["a", None, "c"], "f": [0.5, float("nan"), None]})


@pytest.fixture
def lake(kms: SampleKms, tmp_path: Path) -> IcebergTable:
    table = create_table(tmp_path / "t", ROWS.schema, kms, master_key_id="keyA")
    return table.append(ROWS.slice(1)).append(ROWS.slice(0, 1))  # newest files come first


def test_forms(lake: IcebergTable) -> None:
    scan = lake.scan(selected_fields=("id", "Name"))
    rows = ROWS.select(["id", "Name"])
    assert scan.to_arrow().equals(rows.slice(0))
    assert scan.to_arrow_batch_reader().read_all() == rows == scan
    assert pa.table(scan) == rows  # by the interface of streams
    assert scan.to_pandas()["id"].tolist() == [1, 2, 3]
    assert scan.to_polars()["Name"].to_list() == pl.DataFrame(scan)["Name"].to_list()
    found = scan.to_duckdb("orders").sql('select sum(id), count("Name") from orders').fetchall()
    assert found == [(6, 2)]
    assert (len(scan), scan.num_rows, scan["id"].to_pylist()) == (3, 3, [1, 2, 3])
    assert scan.column_names == scan.schema.names == ["id", "Name"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"row_filter": "id > 1"}, [2, 3]),
        ({"row_filter": BY_NAN}, [2]),
        ({"row_filter": "NAME is null", "case_sensitive": False}, [2]),
        ({"row_filter": "ID > 1", "selected_fields": ("iD",), "case_sensitive": False}, [2, 3]),
        ({"limit": 0}, []),
        ({"limit": 2}, [1, 2]),
        ({"limit": 2, "row_filter": "f is nan"}, [2]),
    ],
)  # fmt: skip
def test_choices(lake: IcebergTable, arguments: dict[str, Any], expected: list[int]) -> None:
    scan = lake.scan(**arguments)
    assert scan.column(0).to_pylist() == expected
    assert scan.count() == len(expected)
    assert scan.to_arrow_batch_reader().read_all().num_rows == len(expected)


def test_a_scan_is_narrowed(lake: IcebergTable) -> None:
    scan = lake.scan().select("id", "Name").filter("id >= 2").filter("Name is not null")
    assert scan.to_pylist() == [{"id": 3, "Name": "c"}]
    assert lake.scan().select(["id"]).filter(pc.field("id") == 1).to_pylist() == [{"id": 1}]
    assert lake.scan().use_ref("main").count() == 3
    assert lake.scan().select("*").schema == lake.scan().schema
    assert scan.select("*").column_names == ["id", "Name"]
    loose = lake.scan(case_sensitive=False).select("ID", "NAME").filter("Id = 3")
    assert loose.select("nAME").to_pylist() == [{"Name": "c"}]
    assert (loose.count(), loose.use_ref("main").count()) == (1, 1)
    with pytest.raises(ValueError, match="no columns 'f'"):
        scan.select("f")
    with pytest.raises(ValueError, match="already has a snapshot"):
        lake.scan(snapshot_id=lake.metadata.snapshots[0].id).use_ref("main")


def test_time_travel(lake: IcebergTable) -> None:
    first, second = lake.metadata.snapshots
    for when in (
        first.timestamp_ms,
        datetime.datetime.fromtimestamp(first.timestamp_ms / 1000, datetime.UTC),
    ):
        assert lake.scan(as_of=when).count() == 2
    assert lake.scan(as_of=second.timestamp_ms).count() == 3
    assert lake.scan(snapshot_id=first.id).num_rows == 2
    assert lake.snapshot_as_of_timestamp(first.timestamp_ms, inclusive=False) is None
    assert lake.snapshot_as_of_timestamp(second.timestamp_ms) == second
    assert lake.history()["snapshot_id"].to_pylist() == [first.id, second.id]
    assert lake.refs().to_pylist() == [
        {"name": "main", "type": "branch", "snapshot_id": second.id}
    ]  # fmt: skip


@each_case(
    "arguments, message",
    [
        ({"filters": "id > 1", "row_filter": "id > 1"}, "only one of filters"),
        ({"columns": ["id"], "selected_fields": ("id",)}, "only one of columns"),
        ({"snapshot": "main", "snapshot_id": 1}, "only one of snapshot"),
        ({"selected_fields": "id"}, "list of names"),
        ({"columns": ["id", 1]}, "must be names, not of type int"),
        ({"limit": -1}, "limit must be"),
        ({"limit": True}, "limit must be"),
        ({"as_of": datetime.datetime(2026, 11, 28)}, "time zone"),
        ({"as_of": 5}, "no snapshot as old"),
        ({"row_filter": "NAME is null"}, "no column 'NAME'"),
        ({"row_filter": "x is null", "case_sensitive": False}, "no column 'x'"),
        ({"columns": ["x"], "case_sensitive": False}, "no column 'x'"),
        ({"snapshot_id": 7}, "does not exist"),
    ],
)
def test_wrong_arguments(lake: IcebergTable, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lake.scan(**arguments)


def test_rows_are_read_when_needed(lake: IcebergTable, tmp_path: Path) -> None:
    files = [path for path in (tmp_path / "t" / "data").iterdir() if path.suffix == ".parquet"]
    for path in files:
        path.write_bytes(b"PARE" + path.read_bytes()[4:-40] + bytes(40))
    scan = open_table(tmp_path / "t", SampleKms()).scan()
    assert scan.schema == ROWS.schema
    assert scan.count() == 3  # the manifests know
    assert "Name" in repr(scan)
    assert "ROWS" not in repr(scan)
    with pytest.raises(ModcryptError):
        scan.to_arrow()
    with pytest.raises(ModcryptError):
        scan.to_arrow_batch_reader().read_all()
    with pytest.raises(AttributeError, match="neither a scan nor"):
        _ = scan.nothing


def test_counts_under_restrictions(lake: IcebergTable, tmp_path: Path) -> None:
    less = {"type": "lt", "left": {"type": "reference", "id": 1}, "right": 3}
    restrictions = {"required-row-filter": less}
    restricted = open_table(tmp_path / "t", SampleKms(), read_restrictions=restrictions)
    assert restricted.scan().count() == 2 == restricted.scan().num_rows

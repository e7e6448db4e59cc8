"""Rows come into the partition of their own value, once, whatever the value."""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    UUIDType,
)

from modcrypt.errors import UnsupportedFormatError
from modcrypt.iceberg import IcebergTable, encrypt_table
from tests.support.cases import each_case
from tests.support.iceberg.builder import Builder, arrow, field, struct
from tests.support.iceberg.built_tables import ids, open_built, spec
from tests.support.iceberg.made_tables import make_table
from tests.support.iceberg.sample_kms import SampleKms

NAN = float("nan")
UUIDS = [uuid.UUID(int=n << 64 | n) for n in (1, 2, 1 << 63)]


def create(folder: Path, kind: IcebergType, transform: Transform[Any, Any]) -> IcebergTable:
    schema = Schema(NestedField(1, "k", kind), NestedField(2, "id", LongType()))
    spec = PartitionSpec(PartitionField(1, 1000, transform, "part"))
    return make_table(folder, schema, partition_spec=spec)


def data_files(table: IcebergTable) -> int:
    files = table.files()
    return int(files.filter(pc.equal(files["kind"], "data")).num_rows)


@pytest.mark.parametrize(("kind", "arrow"), [(DoubleType(), "double"), (FloatType(), "float")])
def test_zeros_and_nans(tmp_path: Path, kind: IcebergType, arrow: str) -> None:
    values = [0.0, -0.0, NAN, 1.0, -0.0, None, NAN]
    rows = pa.table({"k": pa.array(values, arrow), "id": range(len(values))})
    table = create(tmp_path / "t", kind, IdentityTransform()).append(rows)
    found = table.scan().sort_by("id")
    assert found["id"].to_pylist() == list(range(len(values)))
    assert [str(value) for value in found["k"].to_pylist()] == [str(value) for value in values]
    assert data_files(table) == 5  # 0.0, -0.0, NaN, 1.0, null


@pytest.mark.parametrize("transform", [IdentityTransform(), BucketTransform(4)])
def test_uuids(tmp_path: Path, transform: Transform[Any, Any]) -> None:
    storage = pa.array([value.bytes for value in [*UUIDS, UUIDS[0]]] + [None], pa.binary(16))
    rows = pa.table({"k": pa.ExtensionArray.from_storage(pa.uuid(), storage), "id": range(5)})
    table = create(tmp_path / "t", UUIDType(), transform).append(rows)
    found = table.scan().sort_by("id")
    assert found["id"].to_pylist() == list(range(5))
    assert [value and bytes(value.bytes) for value in found["k"].to_pylist()] == storage.to_pylist()
    assert data_files(table) >= 2


def test_partitions_of_one_name_in_manifests_are_refused(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    fields = (PartitionField(n, 999 + n, IdentityTransform(), name)
              for n, name in enumerate(("a b", "a_x20b"), 1))  # fmt: skip
    table = make_table(tmp_path / "t", schema, partition_spec=PartitionSpec(*fields))
    with pytest.raises(UnsupportedFormatError, match="'a b' and 'a_x20b' have the same"):
        table.append(pa.table([[1], [2]], schema))


def test_a_field_of_a_struct_that_is_null(tmp_path: Path) -> None:
    inner = StructType(NestedField(3, "a.b", StringType()))
    schema = Schema(NestedField(1, "s", inner), NestedField(2, "id", LongType()))
    spec = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "part"))
    table = make_table(tmp_path / "t", schema, partition_spec=spec)
    values = [{"a.b": "x"}, None, {"a.b": None}, {"a.b": "x"}]
    kind = pa.struct([("a.b", pa.string())])
    table = table.append(pa.table({"s": pa.array(values, kind), "id": range(4)}))
    assert table.scan().sort_by("id")["s"].to_pylist() == values
    assert data_files(table) == 2


@pytest.mark.parametrize("values", [[NAN, 0.5], [NAN, 0.5, None], [NAN, NAN], [NAN, 0.5, 0.7]])
def test_statistics_that_leave_nan_out_rule_no_row_out(
    tmp_path: Path, values: list[float | None]
) -> None:
    """A row group of NaN and one number has that number for both of its bounds."""
    schema = pa.schema([("id", pa.int64()), ("k", pa.float64())])
    table = make_table(tmp_path / "t", schema)
    table = table.append(pa.table({"id": range(len(values)), "k": values}, schema=schema))
    cases: tuple[tuple[str, Callable[[Any], bool]], ...] = (
        ("k is nan", lambda value: value is not None and math.isnan(value)),
        ("k != 0.5", lambda value: value is not None and value != 0.5),
        ("k not in (0.5, 0.7)", lambda value: value not in (0.5, 0.7)),
        ("k > 0.6", lambda value: value is not None and value > 0.6),
        ("k <= 0.5", lambda value: value is not None and value <= 0.5),
        ("k is null", lambda value: value is None),
    )
    for filters, keeps in cases:
        wanted = [number for number, value in enumerate(values) if keeps(value)]
        assert table.scan(filters=filters)["id"].to_pylist() == wanted, filters


@each_case("other", [None, NAN])
def test_rows_are_not_deleted_by_a_partition_that_lacks_them(
    tmp_path: Path, other: float | None
) -> None:
    """pyiceberg adds a file to the partition of its bounds, which leave out nulls and NaN."""
    rows = pa.table({"id": [1, 2], "f": [7.0, other]})
    with SqlCatalog("c", uri="sqlite://", warehouse=str(tmp_path)) as catalog:
        catalog.create_namespace("n")
        old = catalog.create_table("n.old", rows.schema, location=str(tmp_path / "old"))
        with old.update_spec() as spec:
            spec.add_identity("f")
        pq.write_table(rows, tmp_path / "old" / "rows.parquet")
        old.add_files([str(tmp_path / "old" / "rows.parquet")])
        table = encrypt_table(old, tmp_path / "new", SampleKms(), master_key_id="keyA")
    assert table.delete("f = 7").scan()["id"].to_pylist() == [2]


def test_rows_are_not_deleted_by_a_partition_without_a_count_of_nulls(tmp_path: Path) -> None:
    columns = struct(field(1, "id", "long"), field(2, "part", "long"))
    avro = [{"name": "part", "type": "long", "field-id": 1000}]
    builder = Builder(tmp_path, columns, spec=spec("identity", 2), partition=avro)
    arrows = arrow([(1, "id", pa.int64()), (2, "part", pa.int64())])
    rows = pa.table({"id": [1, 2], "part": [7, None]}, schema=arrows)
    data = builder.parquet("a.parquet", rows, partition={"part": 7})
    data["value_counts"] = [{"key": 2, "value": 2}]
    builder.snapshot([builder.manifest([data])])
    assert ids(open_built(builder).delete("part = 7").scan()) == [2]


BEFORE_1970 = (-1, -500_000, -1_000_000, -86_400_000_001, -86_400_999_999, -86_401_000_000)
"""Times in microseconds, some of them in the last second of a day."""


@pytest.mark.parametrize("kind", [TimestampType(), TimestampNanoType()])
@pytest.mark.parametrize(
    "transform",
    [BucketTransform(1000), HourTransform(), DayTransform(), MonthTransform(), YearTransform()],
)
def test_times_before_1970(
    tmp_path: Path, kind: IcebergType, transform: Transform[Any, Any]
) -> None:
    """pyiceberg's Rust rounds them up where it should round down: filters did not find them."""
    factor, unit = (1000, "ns") if isinstance(kind, TimestampNanoType) else (1, "us")
    values = [us * factor + fraction for us in BEFORE_1970 for fraction in {0, factor - 1}]
    times = pa.array(values, pa.int64()).cast(pa.timestamp(unit))
    table = create(tmp_path / "t", kind, transform)
    table = table.append(pa.table({"k": times, "id": range(len(values))}))
    function = transform.transform(TimestampType())
    expected = {function(value // factor) for value in values}
    assert set(partitions(table)) == expected
    if unit == "us":
        for id_, time in enumerate(times.to_pylist()):
            assert ids(table.scan(filters=f"k = '{time.isoformat()}'")) == [id_]


def partitions(table: IcebergTable) -> list[Any]:
    """Return the values of the only partition field, of each data file."""
    current = table.metadata.current
    assert current is not None
    return [
        entry.partition["part"]
        for manifest in table.walk.manifests(current)
        for entry in table.walk.entries(manifest)
    ]


def test_a_decimal_without_a_multiple_of_the_width_below_it(tmp_path: Path) -> None:
    """Java writes no such partition, either."""
    table = create(tmp_path / "t", DecimalType(3, 1), TruncateTransform(50))
    rows = pa.table({"k": pa.array([Decimal("-97.5")], pa.decimal128(3, 1)), "id": [1]})
    message = "part has a value whose truncate[50] has more digits than decimal(3, 1)"
    with pytest.raises(ValueError, match=re.escape(message)):
        table.append(rows)
    kept = rows.set_column(0, "k", pa.array([Decimal("-95.0")], pa.decimal128(3, 1)))
    assert table.append(kept).scan(filters="k < -90").num_rows == 1


@pytest.mark.parametrize("kept", [1, 0])
def test_a_dropped_column_of_a_removed_partition_field(tmp_path: Path, kept: int) -> None:
    """In version 1, removed fields remain as `void`; `kept` schemas have the column."""
    fields = [*spec("void", 2), {**spec("identity")[0], "name": "id", "field-id": 1001}]
    avro = [{"name": f["name"], "type": "long", "field-id": f["field-id"]} for f in fields]
    builder = Builder(tmp_path, struct(field(1, "id", "long")), spec=fields, partition=avro)
    file = builder.parquet("a.parquet", pa.table([[1]], arrow([(1, "id", pa.int64())])))
    builder.snapshot([builder.manifest([{**file, "partition": {"part": None, "id": 1}}])])
    before = struct(field(1, "id", "long"), field(2, "gone", "long"), schema_id=1)
    builder.document["schemas"] += [before] * kept
    table = open_built(builder).append(pa.table({"id": [2, 3]})).delete("id = 2")
    assert ids(table.scan(filters="id > 0")) == [1, 3]

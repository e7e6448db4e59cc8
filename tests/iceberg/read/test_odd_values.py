"""Values that do not equal themselves, equal others, have no bound, or must not get about."""

from __future__ import annotations

import datetime
import json
import pickle
import re
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.expressions import (
    BooleanExpression,
    EqualTo,
    GreaterThan,
    In,
    LessThan,
    LessThanOrEqual,
    NotIn,
)
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
)
from pyiceberg.types import DateType, IcebergType, NestedField, TimestampType

from modcrypt.errors import UnsupportedFormatError
from modcrypt.iceberg import IcebergTable, open_table
from modcrypt.iceberg.read.file_pruning import SpecFilter
from tests.support.cases import each_case
from tests.support.iceberg.builder import Builder, arrow, field, struct
from tests.support.iceberg.built_tables import ids, open_built, position_deletes, spec
from tests.support.iceberg.java_judge import Judge, plain_rows
from tests.support.iceberg.java_tables import Both, delete, schema
from tests.support.iceberg.made_tables import make_table
from tests.support.iceberg.sample_kms import SampleKms


def create(folder: Path, *columns: pa.Table) -> IcebergTable:
    """Make a table of the columns; each Arrow table is a commit, and so a file."""
    table = make_table(folder / "t", columns[0].schema)
    for column in columns:
        table = table.append(column)
    return table


def test_position_deletes_by_partition_apply_where_that_is_nan(tmp_path: Path) -> None:
    columns = struct(field(1, "id", "long"), field(2, "part", "double"))
    avro = [{"name": "part", "type": "double", "field-id": 1000}]
    builder = Builder(tmp_path, columns, spec=spec("identity", 2), partition=avro)
    rows = pa.table(
        {"id": [1, 2], "part": [float("nan")] * 2},
        schema=arrow([(1, "id", pa.int64()), (2, "part", pa.float64())]),
    )
    nan = {"part": float("nan")}
    data = builder.parquet("a.parquet", rows, partition=nan)
    deletes = position_deletes(builder, "d", [(data["file_path"], 0)], "parquet", partition=nan)
    builder.snapshot([builder.manifest([data]), builder.manifest([deletes], content=1)])
    assert ids(open_built(builder).scan()) == [2]


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_both_zeros_are_in_a_set_with_one_of_them(tmp_path: Path, zero: float) -> None:
    schema = pa.schema([("id", pa.int64()), ("f", pa.float64())])
    values = [0.0, -0.0, 1.5, None, float("nan"), 2.5]
    both = pa.table({"id": range(6), "f": values}, schema=schema)
    table = create(tmp_path, both, both.slice(0, 1), both.slice(1, 1))

    def find_ids(expression: str) -> list[int]:
        return sorted(table.scan(columns=["id"], filters=expression)["id"].to_pylist())

    assert find_ids(f"f in ({zero}, 1.5)") == [0, 0, 1, 1, 2]
    assert find_ids(f"f not in ({zero}, 1.5)") == [3, 4, 5]
    assert find_ids(f"f not in ({zero}, 1.5, 2.5)") == [3, 4]


def test_a_text_is_cut_before_what_no_text_follows(tmp_path: Path) -> None:
    """The upper bound of a text that is cut has its last character counted up: to a surrogate."""
    texts = ["a" * 15 + "\ud7ff" + "b", "a" * 15 + "\U0010ffff" * 2, "a" * 16 + "b"]
    schema = pa.schema([("s", pa.string())])
    for number, text in enumerate(texts):
        table = create(tmp_path / str(number), pa.table({"s": [text]}, schema=schema))
        for expression in (f"s >= '{text}'", f"s = '{text}'", f"s like '{text[:16]}%'"):
            assert table.scan(filters=expression)["s"].to_pylist() == [text]


def test_a_struct_is_null_though_a_field_of_it_is_required(java: Judge, tmp_path: Path) -> None:
    """Null, or left out: what Arrow has for the field within is null, and Parquet stores none."""
    inner = pa.struct([pa.field("x", pa.int64(), nullable=False), ("y", pa.string())])
    schema = pa.schema([("id", pa.int64()), ("s", inner), ("l", pa.list_(inner))])
    rows: list[dict[str, Any]] = [
        {"id": 1},
        {"id": 2, "s": {"x": 5, "y": None}, "l": [{"x": 6, "y": None}, None]},
    ]
    table = create(tmp_path, pa.Table.from_pylist(rows, schema)).append(pa.table({"id": [3]}))
    whole = [{"s": None, "l": None, **row} for row in (*rows, {"id": 3})]
    assert sorted(table.scan().to_pylist(), key=lambda row: row["id"]) == whole
    assert java.read(table.place.path) == plain_rows(table.scan())
    assert find_ids(table, "s.x is null") == [1, 3]
    assert find_ids(table, "s.x is not null") == [2]
    assert find_ids(table, "not (s.x is null) and id < 9") == [2]


def test_a_null_of_a_required_field(tmp_path: Path) -> None:
    inner = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    schema = pa.schema([("s", inner)])
    table = create(tmp_path, pa.Table.from_pylist([{"s": {"x": 1}}], schema))
    lies = pa.StructArray.from_arrays([pa.array([None, 1], pa.int64())], fields=list(inner))
    with pytest.raises(ValueError, match="x is required, but null in the data"):
        table.append(pa.table([lies], schema))
    assert table.refreshed().scan().num_rows == 1


def test_texts_too_long_for_statistics_have_no_bounds(java: Judge, tmp_path: Path) -> None:
    """Arrow keeps none of texts over 4096 bytes: those of other row groups are not the file's."""
    table = make_table(
        tmp_path / "t", pa.schema([("id", pa.int64()), ("s", pa.string())]),
        properties={"write.parquet.row-group-limit": "1"},
    )  # fmt: skip
    texts = ["b", "a" * 5000, "c" * 5000]
    table = table.append(pa.table({"id": [1, 2, 3], "s": texts}))
    for number, text in enumerate(texts, 1):
        assert find_ids(table, EqualTo("s", text)) == [number]  # type: ignore[call-arg, arg-type]  # as its guide has it
        reported = {"type": "eq", "term": "s", "value": text}
        assert [row["id"] for row in java.read(table.place.path, filter=reported)] == [number]


@pytest.mark.parametrize("kind", [pa.timestamp("ns"), pa.timestamp("ns", "UTC")])
def test_bounds_of_nanoseconds(java: Judge, tmp_path: Path, kind: pa.DataType) -> None:
    """Not of microseconds: the least of one in them may be too much, the greatest too little."""
    moments = pa.array([1700000000123456789, -1001, None], pa.int64()).cast(kind)
    table = create(tmp_path, *(pa.table({"at": moments.slice(n, 1)}) for n in range(3)))
    zone = "" if kind.tz is None else "+00:00"
    for text in ("2023-11-14T22:13:20.123456789", "1969-12-31T23:59:59.999998999"):
        reported = {"type": "eq", "term": "at", "value": text + zone}
        assert len(java.read(table.place.path, filter=reported)) == 1
    with pytest.raises(ValueError, match="the filter does not fit the table"):
        table.scan(filters="at > '2023-11-14T22:13:20'").to_arrow()


@each_case(("text", "why"), [
    ("tags.element = 'a'", "'tags.element' is in a list or map"),
    ("pairs.value is null", "'pairs.value' is in a list or map"),
    ("tags = 'a'", "'a' is not a value of the type list<string>"),
    ("at = 1", "filters do not compare the type timestamp_ns"),
])  # fmt: skip
def test_what_no_filter_compares_is_named(text: str, why: str, tmp_path: Path) -> None:
    schema = pa.schema({
        "tags": pa.list_(pa.string()), "pairs": pa.map_(pa.string(), pa.int64()),
        "at": pa.timestamp("ns"),
    })  # fmt: skip
    with pytest.raises(ValueError, match=f"the filter does not fit the table: {why}"):
        make_table(tmp_path / "t", schema).scan(filters=text).to_arrow()


NANO = "1970-01-01T00:00:00.000000001"


@pytest.mark.parametrize(
    ("kind", "transform", "first"),
    [
        (pa.time64("us"), BucketTransform(4), "00:00:00.000001"),
        (pa.time64("us"), IdentityTransform(), "00:00:00.000001"),
        (pa.timestamp("ns"), BucketTransform(4), NANO),
        (pa.timestamp("ns", "UTC"), HourTransform(), NANO + "+00:00"),
    ],
)
def test_partitions_of_times(
    java: Judge,
    tmp_path: Path,
    kms: SampleKms,
    kind: pa.DataType,
    transform: Transform[Any, Any],
    first: str,
) -> None:
    values = pa.array([1, 2, 86399999999, None], pa.int64()).cast(kind)
    rows = pa.table({"id": range(4), "at": values})
    spec = PartitionSpec(PartitionField(2, 1000, transform, "part"))
    table = make_table(tmp_path / "t", rows.schema, partition_spec=spec).append(rows)
    assert table.scan().sort_by("id") == rows.cast(table.scan().schema)
    # By the partitions, in which Java looks for it.
    reported = {"type": "eq", "term": "at", "value": first}
    read = java.read(table.place.path, filter=reported, columns=["id"])
    assert [row["id"] for row in read] == [0]
    metadata = java.commit(table.place.path, delete(1))
    assert open_table(metadata, kms).scan().sort_by("id")["id"].to_pylist() == [0, 2, 3]


@pytest.mark.parametrize(("kind", "bits"), [(pa.int32(), 31), (pa.int64(), 63)])
def test_the_least_number_is_found_though_it_can_not_be_cut(
    java: Judge, tmp_path: Path, kind: pa.DataType, bits: int
) -> None:
    """Cut to a multiple of 5 it would be less: to Java, and Rust, it is one of the greatest."""
    rows = pa.table({"id": range(3), "n": pa.array([-(2**bits), 2**bits - 1, 0], kind)})
    spec = PartitionSpec(PartitionField(2, 1000, TruncateTransform(5), "part"))
    table = make_table(tmp_path / "t", rows.schema, partition_spec=spec).append(rows)
    assert find_ids(table, f"n = -{2**bits}") == [0]
    assert find_ids(table, "n < -5") == [0]
    assert find_ids(table, "n > 0") == [1]
    reported = {"type": "eq", "term": "n", "value": -(2**bits)}
    assert [row["id"] for row in java.read(table.place.path, filter=reported)] == [0]


def test_the_least_ints_are_found_after_they_became_longs(tmp_path: Path) -> None:
    """Their partition stays the one to which the ints were wrapped."""
    rows = pa.table({"id": range(3), "n": pa.array([-(2**31), 5, 2**31 - 1], pa.int32())})
    spec = PartitionSpec(PartitionField(2, 1000, TruncateTransform(5), "part"))
    table = make_table(tmp_path / "t", rows.schema, partition_spec=spec)
    for number in range(3):  # a manifest each
        table = table.append(rows.slice(number, 1))
    metadata = Path(table.place.path)
    document = json.loads(metadata.read_text())
    longs = json.loads(json.dumps(document["schemas"][0]).replace('"int"', '"long"'))
    document["schemas"].append({**longs, "schema-id": 1})
    metadata.write_text(json.dumps({**document, "current-schema-id": 1}))
    table = open_table(metadata, SampleKms()).append(pa.table({"id": [3], "n": [2**40]}))
    assert find_ids(table, f"n = -{2**31}") == find_ids(table, "n < -5") == [0]
    assert find_ids(table, "n > 5") == [2, 3]
    assert find_ids(table.delete("n < 0"), "n is not null") == [1, 2, 3]


@each_case("kind, may_match", [(DateType(), False), (TimestampType(), True)])
def test_dates_before_1970_are_in_their_own_partition(kind: IcebergType, may_match: bool) -> None:
    """Unlike times, of which pyiceberg puts the last second into the next day."""
    schema = Schema(NestedField(1, "x", kind))
    by_day = PartitionSpec(PartitionField(1, 1000, DayTransform(), "day"))
    row_filter = predicate(EqualTo, "x", "1969-12-25" + "T00:00:00" * may_match)
    assert SpecFilter(by_day, schema, row_filter).partition_may_match({1000: -1}) is may_match
    assert SpecFilter(by_day, schema, row_filter).partition_may_match({1000: -7})


@each_case("transform", [DayTransform(), TruncateTransform(2**30)])
def test_partitions_of_nulls_are_pruned_at_once(
    tmp_path: Path, transform: Transform[Any, Any]
) -> None:
    kind = pa.timestamp("us") if isinstance(transform, DayTransform) else pa.int32()
    rows = pa.table({"id": [1, 2], "x": pa.array([None, 5], kind)})
    spec = PartitionSpec(PartitionField(2, 1000, transform, "part"))
    table = make_table(tmp_path / "t", rows.schema, partition_spec=spec).append(rows)
    started = time.process_time()
    found = [find_ids(table, condition) for condition in ("x is null", "x is not null")]
    assert found == [[1], [2]]
    assert time.process_time() - started < 5


def test_filters_beyond_the_dates_of_python(tmp_path: Path) -> None:
    """Partitions are looked for by months: of the day before the first one, too."""
    days = [datetime.date.min, datetime.date(2026, 2, 28), datetime.date.max]
    rows = pa.table({"id": range(3), "day": days})
    spec = PartitionSpec(PartitionField(2, 1000, MonthTransform(), "part"))
    table = make_table(tmp_path / "t", rows.schema, partition_spec=spec).append(rows)
    assert find_ids(table, "day < '0001-01-01'") == find_ids(table, "day > '9999-12-31'") == []
    assert find_ids(table, "not (day < '0001-01-01')") == [0, 1, 2]
    assert find_ids(table, "day > '9999-12-30' or day < '0001-01-02'") == [0, 2]


def test_partitions_by_nanoseconds(java: Judge, tmp_path: Path) -> None:
    """Not read by Java: its reader of records has no constants of this type."""
    rows = pa.table({"at": pa.array([1, 2, -1001], pa.int64()).cast(pa.timestamp("ns"))})
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "at"))
    table = make_table(tmp_path / "t", rows.schema, partition_spec=spec).append(rows)
    assert table.scan().sort_by("at").equals(rows.sort_by("at"))
    places = {file["partition"] for file in java.files(table.place.path)["files"]}
    assert places == {
        "at=1970-01-01T00%3A00%3A00.000000001",
        "at=1970-01-01T00%3A00%3A00.000000002",
        "at=1969-12-31T23%3A59%3A59.999998999",
    }


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_a_struct_without_fields(
    java: Judge, kms: SampleKms, tmp_path: Path, file_format: str
) -> None:
    """All of them were dropped: what is left of the struct is whether it is null."""
    inner = struct(field(3, "x", "int"))
    both = Both(java, kms, tmp_path / "t").create(schema(("id", "long"), ("s", inner)))
    rows = [{"id": 1, "s": {"x": 1}}, {"id": 2, "s": None}]
    both.commit({"do": "append", "rows": rows, "format": file_format})
    both.commit({"do": "schema", "drop": ["s.x"]})
    assert plain_rows(both.table().scan()) == [{"id": 1, "s": {}}, {"id": 2, "s": None}]
    with pytest.raises(UnsupportedFormatError, match="of only unknown fields"):
        both.table().append(both.table().scan().slice(0, 1))


def test_unknown_fields_are_not_stored(java: Judge, kms: SampleKms, tmp_path: Path) -> None:
    inner = struct(field(11, "x", "int"), field(12, "none", "unknown"))
    other = struct(field(14, "x", "int"), field(15, "none", "unknown"))
    listed = {"type": "list", "element-id": 13, "element": other, "element-required": False}
    both = Both(java, kms, tmp_path / "t").create(
        schema(("id", "long"), ("s", inner), ("l", listed))
    )
    x = {"x": 1, "none": None}
    rows = [{"id": 1, "s": x, "l": [x, None]}, {"id": 2, "s": None, "l": None}]
    table = both.table().append(pa.Table.from_pylist(rows, both.table().scan().schema))
    assert plain_rows(table.scan()) == rows == java.read(table.place.path)


def find_ids(table: IcebergTable, filters: Any) -> list[int]:
    """Return the ids of the rows that a filter finds."""
    return sorted(table.scan(columns=["id"], filters=filters)["id"].to_pylist())


def test_rows_of_manifests_are_not_pickled(tmp_path: Path) -> None:
    """They hold the keys of files in the clear."""
    table = create(tmp_path, pa.table({"id": [1]}))
    current = table.metadata.current
    assert current is not None
    (manifest,) = table.walk.manifests(current)
    for stored in (manifest, *table.walk.entries(manifest)):
        with pytest.raises(TypeError, match="can't be pickled"):
            pickle.dumps(stored)


def predicate(kind: Any, *arguments: Any) -> BooleanExpression:
    """Return a predicate; pyiceberg's types describe its arguments as keyword-only."""
    made: BooleanExpression = kind(*arguments)
    return made


LITERALS: tuple[tuple[str | BooleanExpression, list[int]], ...] = (
    ("n < 3000000000", [2, 3]),
    ("n != -3000000000", [2, 3]),
    ("not n > 3000000000", [2, 3]),
    ("n in (3000000000, 5)", [2]),
    ("n in (3000000000, 4000000000)", []),
    ("n not in (3000000000, 5)", [1, 3]),
    ("n not in (3000000000, 4, 5)", [1, 3]),
    ("n >= 3000000000", []),
    (predicate(EqualTo, "f", float("inf")), [2]),
    (predicate(In, "f", {-float("inf"), 1.0}), [3]),
    (predicate(GreaterThan, "f", -float("inf")), [2]),
    (predicate(LessThanOrEqual, "f", -1e300), [3]),
)
"""Filters, and the rows that they find among (1: null), (2: 5, inf) and (3: greatest, -inf)."""


@pytest.mark.parametrize("is_partition", [False, True])
@pytest.mark.parametrize("others", [(), (0.05, 7.0)])
def test_numbers_are_rounded_for_a_column_of_floats(
    tmp_path: Path, is_partition: bool, others: tuple[float, ...]
) -> None:
    """Wherever they are compared: with rows, bounds and partitions."""
    values = [0.1, *others, None]
    rows = pa.table({"id": range(len(values)), "f": pa.array(values, pa.float32())})
    fields = [PartitionField(2, 1000, IdentityTransform(), "p")] * is_partition
    table = make_table(tmp_path / "t", rows.schema, partition_spec=PartitionSpec(*fields))
    table = table.append(rows)
    for literal in (0.1, "0.1", Decimal("0.1")):
        assert find_ids(table, predicate(EqualTo, "f", literal)) == [0]
        assert find_ids(table, predicate(In, "f", {literal, 9.0})) == [0]
        assert 0 in find_ids(table, predicate(LessThanOrEqual, "f", literal))
        assert 0 not in find_ids(table, predicate(GreaterThan, "f", literal))
    both = {0.1, 0.1 + 1e-12}  # one number, rounded
    assert find_ids(table, predicate(NotIn, "f", both)) == list(range(1, len(rows)))
    assert find_ids(table, "f > 0.1 or f < 0.1") == find_ids(table, "f != 0.1")
    assert find_ids(table.delete("f = 0.1"), "id >= 0") == list(range(1, len(rows)))


@pytest.mark.parametrize("partition", [None, "n", "f"])
def test_literals_beyond_the_range_of_a_type(tmp_path: Path, partition: str | None) -> None:
    """pyiceberg takes them for the last value of the type, or for one that nulls satisfy, too."""
    columns = [("id", pa.int64()), ("n", pa.int32()), ("f", pa.float32())]
    rows = pa.table(
        [[1, 2, 3], [None, 5, 2**31 - 1], [None, float("inf"), -float("inf")]],
        schema=pa.schema(columns),
    )
    source = {"n": 2, "f": 3}.get(partition or "", 0)
    fields = [PartitionField(source, 1000, IdentityTransform(), "p")] if source else []
    table = make_table(tmp_path / "t", rows.schema, partition_spec=PartitionSpec(*fields))
    table = table.append(rows)
    for condition, found in LITERALS:
        assert sorted(ids(table.scan(filters=condition))) == found, condition
    condition, found = LITERALS[("n", "f", None).index(partition) * 4]
    assert sorted(ids(table.delete(condition).scan())) == sorted({1, 2, 3} - set(found))


NOON = datetime.datetime(2026, 2, 28, 12)


@pytest.mark.parametrize(
    ("condition", "wrong"),
    [
        ("n >= 2.5", "2.5 is not a whole number, as int is"),
        ("n in (2.5, 3.5)", ".5 is not a whole number"),
        (
            predicate(LessThan, "d", Decimal("100000.00")),
            "100000.00 has more digits than decimal(5, 2)",
        ),
        ("d > 1.505", "Could not convert 1.505 into a decimal(5, 2)"),
        ("d > '1e99999'", "Could not convert"),
        ("mm = 1", "the table has no column 'mm'; did you mean m_m?"),
        (predicate(EqualTo, "d", 1.505), "Could not convert 1.505 into a decimal(5, 2)"),
        (predicate(In, "d", {1.505, 2.0}), "Could not convert 1.505 into a decimal(5, 2)"),
        (predicate(LessThan, "d", float("inf")), "inf is not a value of decimal(5, 2)"),
        (predicate(LessThan, "f", 10**400), "int too large to convert to float"),
        (predicate(LessThan, "day", NOON), "a date with a time is not a value of the type date"),
        (predicate(EqualTo, "at", NOON), "a date with a time is not a value of the type time"),
        ("at = '12:00:00.1234567'", "12:00:00.1234567 is not a time such as 12:30:00.000001"),
        ("at = '12:00:00+02:00'", "12:00:00+02:00 is not a time such as 12:30:00.000001"),
    ],
)
def test_literals_that_are_no_values_of_a_column(
    tmp_path: Path, condition: str | BooleanExpression, wrong: str
) -> None:
    columns = [
        ("n", pa.int32()), ("m_m", pa.int64()), ("d", pa.decimal128(5, 2)), ("f", pa.float64()),
        ("day", pa.date32()), ("at", pa.time64("us")),
    ]  # fmt: skip
    table = make_table(tmp_path / "t", pa.schema(columns))
    with pytest.raises(ValueError, match=re.escape(wrong)):
        table.scan(filters=condition)


def test_decimals_with_fewer_digits_than_their_column(tmp_path: Path) -> None:
    columns = pa.schema([("id", pa.int64()), ("d", pa.decimal128(38, 2))])
    values = [Decimal("1.50"), Decimal("2.00"), Decimal(10**35) + Decimal("0.00"), None]
    table = make_table(tmp_path / "t", columns)
    table = table.append(pa.table([[1, 2, 3, 4], values], schema=columns))
    assert ids(table.scan(filters="d = 1.5")) == [1]
    assert ids(table.scan(filters="d in (2.0, 1.50000)")) == [1, 2]
    assert ids(table.scan(filters=predicate(EqualTo, "d", Decimal(10**35)))) == [3]
    assert ids(table.scan(filters=predicate(In, "d", {1.5, 2.0}))) == [1, 2]


def test_literals_of_another_type_with_a_value_of_the_column(tmp_path: Path) -> None:
    columns = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("at", pa.time64("us"))])
    days = [datetime.date(2026, 2, 27), datetime.date(2026, 2, 28)]
    times = [datetime.time(12), datetime.time(12, 0, 0, 1)]
    table = make_table(tmp_path / "t", columns).append(pa.table([[1, 2], days, times], columns))
    midnight = datetime.datetime(2026, 2, 28)
    assert find_ids(table, predicate(GreaterThan, "day", midnight)) == []
    assert find_ids(table, predicate(EqualTo, "day", midnight)) == [2]
    for text, found in (("12:00", 1), ("12:00:00", 1), ("12:00:00.000001", 2)):
        assert find_ids(table, f"at = '{text}'") == [found]

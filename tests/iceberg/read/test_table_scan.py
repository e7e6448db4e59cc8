"""Scans of tables that are made from outside: rows, pruning, deletes, evolved schemas, Avro."""

from __future__ import annotations

import datetime
import decimal
import itertools
import subprocess
import sys
import textwrap
import threading
import uuid
from collections.abc import Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet.encryption as pe
import pytest
from pyiceberg.conversions import to_bytes
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.table.name_mapping import parse_mapping_from_json
from pyiceberg.types import DateType, DoubleType, IntegerType, LongType, StringType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from modcrypt import ModcryptError
from modcrypt.errors import FormatError, UnsupportedFormatError
from modcrypt.iceberg import IcebergTable, open_table
from modcrypt.iceberg.read import data_files
from modcrypt.iceberg.read import pyarrow_decryption as native_parquet
from modcrypt.iceberg.read.ordered_threads import MAX_AHEAD, run_in_order
from modcrypt.iceberg.read.schema_projection import field_id, with_field_ids
from modcrypt.kms.key_tools import KeyTools
from tests.support.cases import each_case
from tests.support.iceberg.builder import Builder, arrow, field, optional, struct
from tests.support.iceberg.built_tables import arrow_schema, ids, open_built, position_deletes, spec
from tests.support.iceberg.java_judge import Judge, plain_rows
from tests.support.iceberg.sample_kms import SampleKms

Rows = list[dict[str, Any]]

ORDERS = struct(field(1, "id", "long"), field(2, "name", "string"), field(3, "price", "double"))
ORDERS_ARROW = arrow_schema(ORDERS)


def orders(ids: Sequence[int]) -> pa.Table:
    names = [None if id_ % 3 == 0 else f"name-{id_}" for id_ in ids]
    prices = [float("nan") if id_ % 5 == 0 else id_ / 2 for id_ in ids]
    return pa.table([list(ids), names, prices], schema=ORDERS_ARROW)


# --- what is asked for ---------------------------------------------------------------------------


def test_a_table_without_a_snapshot_has_no_rows_and_a_schema(tmp_path: Path) -> None:
    table = open_built(Builder(tmp_path, ORDERS))
    assert table.scan().num_rows == 0
    assert table.scan().column_names == ["id", "name", "price"]
    assert table.scan(columns=["name"]).schema.types == [pa.string()]
    assert list(table.scan_batches()) == []


def test_rows_of_snapshots_branches_and_tags(tmp_path: Path) -> None:
    builder = Builder(tmp_path, ORDERS)
    first = builder.manifest([builder.parquet("a.parquet", orders(range(3)))])
    one = builder.snapshot([first])
    second = builder.manifest([builder.parquet("b.parquet", orders(range(3, 5)))])
    two = builder.snapshot([first, second])
    builder.document["refs"]["old"] = {"snapshot-id": one, "type": "tag"}
    builder.document["refs"]["side"] = {"snapshot-id": one, "type": "branch"}
    table = open_built(builder)
    older: list[int | str] = [one, "old", "side"]
    newest: list[int | str | None] = [None, two, "main"]
    assert [ids(table.scan(which)) for which in older] == [[0, 1, 2]] * 3
    assert [ids(table.scan(which)) for which in newest] == [[0, 1, 2, 3, 4]] * 3
    for missing in (7, "nobody"):
        with pytest.raises(ValueError, match="does not exist"):
            table.scan(missing).to_arrow()


def test_snapshots_and_tags_have_the_schema_of_their_time_and_branches_the_current(
    tmp_path: Path,
) -> None:
    builder = Builder(tmp_path, ORDERS)
    one = builder.snapshot([builder.manifest([builder.parquet("a.parquet", orders([1, 2]))])])
    builder.document["refs"]["old"] = {"snapshot-id": one, "type": "tag"}
    newer = struct(field(2, "label", "string"), field(9, "new", "int"), schema_id=1)
    builder.document["schemas"].append(newer)
    builder.document["current-schema-id"] = 1  # no snapshot since
    table = open_built(builder)
    old: list[int | str] = [one, "old"]
    for which in old:
        assert table.scan(which).column_names == ["id", "name", "price"]
        assert ids(table.scan(which, filters="id = 2")) == [2]
    expected = [{"label": "name-1", "new": None}, {"label": "name-2", "new": None}]
    assert table.scan().to_pylist() == table.scan("main").to_pylist() == expected


NESTED = struct(
    field(1, "id", "long"),
    field(2, "place", struct(field(3, "town", "string"), field(4, "zip", "int"))),
    field(5, "dotted.name", "int"),
)
NESTED_ROWS: Rows = [
    {"id": 1, "place": {"town": "x", "zip": 10}, "dotted.name": 1},
    {"id": 2, "place": None, "dotted.name": 2},
    {"id": 3, "place": {"town": None, "zip": 30}, "dotted.name": None},
]


@pytest.fixture
def nested_table(tmp_path: Path) -> IcebergTable:
    builder = Builder(tmp_path, NESTED)
    rows = pa.Table.from_pylist(NESTED_ROWS, arrow_schema(NESTED))
    builder.snapshot([builder.manifest([builder.parquet("a.parquet", rows)])])
    return open_built(builder)


def test_columns_are_named_with_dots_within_structs(nested_table: IcebergTable) -> None:
    assert nested_table.scan().to_pylist() == NESTED_ROWS
    assert nested_table.scan(columns=["place.zip"]).to_pylist() == [
        {"place": {"zip": 10}}, {"place": None}, {"place": {"zip": 30}}
    ]  # fmt: skip
    assert nested_table.scan(columns=["id"]).column_names == ["id"]
    with pytest.raises(ValueError, match="nobody"):
        nested_table.scan(columns=["nobody"]).to_arrow()


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ("place.zip > 10", [3]),
        ("place.zip is null", [2]),
        ("place.town is null", [2, 3]),
        ("place.town = 'x' or place.zip = 30", [1, 3]),
        ("not (place.zip = 10)", [3]),
    ],
)
def test_filters_reach_into_structs(
    nested_table: IcebergTable, filters: str, expected: list[int]
) -> None:
    assert ids(nested_table.scan(filters=filters)) == expected
    assert nested_table.scan(columns=["dotted.name"], filters=filters).num_rows == len(expected)


def test_a_dot_in_a_name_is_no_struct(nested_table: IcebergTable) -> None:
    from pyiceberg import expressions

    more: Any = expressions.GreaterThan  # whose types mypy takes for those of a model
    expression = more("dotted.name", 1)
    assert ids(nested_table.scan(filters=expression)) == [2]


# --- filters: pyiceberg's scan of the same table in plaintext says what they mean ---------------


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> tuple[IcebergTable, StaticTable]:
    made = []
    for encrypted in (True, False):
        folder = tmp_path_factory.mktemp("twin")
        builder = Builder(
            folder,
            ORDERS,
            encrypted=encrypted,
            version=3 if encrypted else 2,
            location=str(folder),
        )
        files = [
            builder.parquet("a.parquet", orders(range(40)), row_group=10),
            builder.parquet("b.parquet", orders(range(40, 60))),
        ]
        builder.snapshot([builder.manifest(files)])
        made.append(builder.write())
    return open_table(made[0], SampleKms()), StaticTable.from_metadata(str(made[1]))


FILTERS = [
    "id = 7", "id != 7", "id > 7 and id <= 41", "id in (1, 2, 99)", "id not in (1, 2)",
    "name = 'name-7'", "name != 'name-7'", "name in ('name-7', 'x')", "name not in ('name-7')",
    "name is null", "name is not null", "name like 'name-1%'", "name not like 'name-1%'",
    "not name = 'name-7'", "not (name = 'name-7' or id < 50)", "price is nan", "price is not nan",
    "price > 3 and name is not null", "price = 3.5 or name is null", "true", "false",
    "id = 7 or price is nan", "id < 5 or (name like 'name-4%' and not id = 43)",
]  # fmt: skip


@each_case("filters", FILTERS)
def test_filters_mean_what_they_mean_to_pyiceberg(
    twins: tuple[IcebergTable, StaticTable], filters: str
) -> None:
    if filters in ("true", "false"):
        from pyiceberg.expressions import AlwaysFalse, AlwaysTrue

        expression: Any = AlwaysTrue() if filters == "true" else AlwaysFalse()
    else:
        expression = filters
    ours, theirs = twins
    expected = theirs.scan(expression).to_arrow()
    found = ours.scan(filters=expression)
    assert ids(found) == ids(expected)
    assert found.column_names == expected.column_names
    assert ids(ours.scan(columns=["id"], filters=expression)) == ids(expected)


@pytest.mark.parametrize("filters", ["id >", "nobody = 3", "id = 'x'"])
def test_a_filter_that_is_none_is_the_callers_mistake(
    twins: tuple[IcebergTable, StaticTable], filters: str
) -> None:
    with pytest.raises(ValueError, match=r"filter is no|nobody|convert") as caught:
        twins[0].scan(filters=filters).to_arrow()
    assert not isinstance(caught.value, ModcryptError)
    assert len(str(caught.value)) < 300


# --- pruning: what is not opened may as well not be there ----------------------------------------


def day(text: str) -> int:
    return (datetime.date.fromisoformat(text) - datetime.date(1970, 1, 1)).days


PARTITIONED = struct(field(1, "id", "long"), field(2, "name", "string"), field(3, "day", "date"))
PARTITIONED_ARROW = arrow_schema(PARTITIONED)


def partition_rows(number: int) -> pa.Table:
    when = datetime.date(2024, 1 + number, 1)
    return pa.table([[number], [f"name-{number}"], [when]], schema=PARTITIONED_ARROW)


PRUNED = [
    # transform, its source, the Avro type, values of the partitions, a filter, files wanted
    ("identity", 1, "long", [0, 1, 2], "id = 1", {1}),
    ("identity", 2, "string", ["name-0", "name-1", "name-2"], "name > 'name-0'", {1, 2}),
    ("identity", 3, {"type": "int", "logicalType": "date"},
     [day("2024-01-01"), day("2024-02-01"), day("2024-03-01")], "day < '2024-02-01'", {0}),
    ("bucket[32]", 1, "int", None, "id = 2", {2}),
    ("truncate[6]", 2, "string", ["name-0", "name-1", "name-2"], "name = 'name-2'", {2}),
    ("day", 3, {"type": "int", "logicalType": "date"},
     [day("2024-01-01"), day("2024-02-01"), day("2024-03-01")], "day >= '2024-02-01'", {1, 2}),
    ("month", 3, "int", [648, 649, 650], "day = '2024-03-01'", {2}),
    ("year", 3, "int", [54, 54, 54], "day = '2023-03-01'", set()),
    ("void", 1, "long", [None, None, None], "id = 1", {0, 1, 2}),
]  # fmt: skip


@each_case("case", PRUNED, ids=lambda case: f"{case[0]}-{case[1]}")
def test_files_of_other_partitions_are_not_opened(tmp_path: Path, case: Any) -> None:
    transform, source, kind, values, filters, wanted = case
    if values is None:
        from pyiceberg.transforms import parse_transform

        hashed = parse_transform(transform).transform(LongType())
        values = [hashed(value) for value in range(3)]
        assert len(set(values)) == 3
    avro = [{"name": "part", "type": kind, "field-id": 1000}]
    builder = Builder(tmp_path, PARTITIONED, spec=spec(transform, source), partition=avro)
    files = [
        builder.parquet(f"{n}.parquet", partition_rows(n), partition={"part": value})
        for n, value in enumerate(values)
    ]
    builder.snapshot([builder.manifest(files)])
    table = open_built(builder)
    whole = ids(table.scan(filters=filters))
    for number in {0, 1, 2} - wanted:
        (tmp_path / "data" / f"{number}.parquet").unlink()
    assert ids(table.scan(filters=filters)) == whole
    for number in wanted:  # so that the test can fail
        (tmp_path / "data" / f"{number}.parquet").unlink()
        with pytest.raises(FileNotFoundError):
            table.scan(filters=filters).to_arrow()
        break


def test_manifests_of_other_partitions_are_not_opened(tmp_path: Path) -> None:
    avro = [{"name": "part", "type": "long", "field-id": 1000}]
    builder = Builder(tmp_path, PARTITIONED, spec=spec("identity"), partition=avro)
    manifests = []
    for number in range(3):
        file = builder.parquet(
            f"{number}.parquet", partition_rows(number), partition={"part": number}
        )
        bound = to_bytes(LongType(), number)
        summary = {"contains_null": False, "lower_bound": bound, "upper_bound": bound}
        manifests.append(builder.manifest([file], partitions=[summary]))
    builder.snapshot(manifests)
    table = open_built(builder)
    for number in (1, 3):
        (tmp_path / "metadata" / f"m{number}.avro").unlink()
    assert ids(table.scan(filters="id = 1")) == [1]
    with pytest.raises(FileNotFoundError):
        table.scan(filters="id = 2").to_arrow()


def test_manifests_are_read_when_a_scan_needs_their_files(tmp_path: Path) -> None:
    builder = Builder(tmp_path, ORDERS)
    files = [builder.parquet(f"{n}.parquet", orders([n])) for n in range(40)]
    builder.snapshot([builder.manifest([file]) for file in files])
    table = open_built(builder)
    last = max(tmp_path.glob("metadata/m*.avro"), key=lambda path: int(path.stem[1:]))
    last.unlink()
    batches = table.scan_batches()
    assert ids(pa.Table.from_batches([next(batches)])) == [0]
    with pytest.raises(FileNotFoundError):
        list(batches)


def test_deletes_of_partitions_that_are_equal_numbers_but_other_values(tmp_path: Path) -> None:
    avro = [{"name": "part", "type": "double", "field-id": 1000}]
    schema = struct(field(1, "id", "long"), field(2, "ratio", "double"))
    builder = Builder(tmp_path, schema, spec=spec("identity", 2), partition=avro)
    columns = arrow([(1, "id", pa.int64()), (2, "ratio", pa.float64())])
    files = []
    for number, ratio in enumerate([0.0, -0.0]):
        rows = pa.table([[number], [ratio]], schema=columns)
        name = f"{number}.parquet"
        files.append(builder.parquet(name, rows, partition={"part": ratio}))
    positions = [(file["file_path"], 0) for file in files]
    deletes = position_deletes(builder, "d", positions, "parquet", partition={"part": -0.0})
    builder.snapshot([builder.manifest(files), builder.manifest([deletes], content=1)])
    assert ids(open_built(builder).scan()) == [0]


def test_files_of_several_specs_are_pruned_each_by_its_own(tmp_path: Path) -> None:
    builder = Builder(tmp_path, PARTITIONED)
    builder.document["partition-specs"].append({"spec-id": 1, "fields": spec("identity")})
    later = [{"name": "day_month", "transform": "month", "source-id": 3, "field-id": 1001}]
    builder.document["partition-specs"].append({"spec-id": 2, "fields": spec("void") + later})
    # Avro can't spell all names, so that they are others in a manifest: ids count.
    builder.partitions[1] = [{"name": "part_x20", "type": "long", "field-id": 1000}]
    builder.partitions[2] = [
        {"name": "m", "type": "int", "field-id": 1001},
        {"name": "part", "type": "long", "field-id": 1000},
    ]
    manifests = [
        builder.manifest([builder.parquet("0.parquet", partition_rows(0))]),
        builder.manifest(
            [builder.parquet("1.parquet", partition_rows(1), partition={"part_x20": 1})], spec_id=1
        ),
        builder.manifest(
            [builder.parquet("2.parquet", partition_rows(2), partition={"m": 650})], spec_id=2
        ),
    ]
    builder.snapshot(manifests)
    table = open_built(builder)
    assert ids(table.scan()) == [0, 1, 2]
    (tmp_path / "data" / "1.parquet").unlink()
    assert ids(table.scan(filters="id = 2")) == [2]
    (tmp_path / "data" / "2.parquet").unlink()
    assert ids(table.scan(filters="id = 0 and day < '2024-02-01'")) == [0]
    with pytest.raises(FileNotFoundError):
        table.scan(filters="id = 0").to_arrow()


@pytest.mark.parametrize("deletes", [False, True])
def test_partitions_of_several_specs_that_look_equal(tmp_path: Path, *, deletes: bool) -> None:
    """A name of a removed partition field may be used again, for another column."""
    schema = struct(field(1, "id", "long"), field(2, "a", "long"), field(3, "b", "long"))
    avro = [{"name": "part", "type": "long", "field-id": 1000}]
    builder = Builder(tmp_path, schema, spec=spec("identity", 2), partition=avro)
    later = [{"name": "part", "transform": "identity", "source-id": 3, "field-id": 1001}]
    builder.document["partition-specs"].append({"spec-id": 1, "fields": later})
    builder.partitions[1] = [{**avro[0], "field-id": 1001}]
    manifests, columns = [], arrow([(1, "id", pa.int64())])  # as of Hive, without the others
    for n in range(2):
        rows = pa.table([[n, 7]], schema=columns)
        file = builder.parquet(f"{n}.parquet", rows, partition={"part": 5})
        manifests.append(builder.manifest([file], spec_id=n))
        if deletes:
            name = f"d{n}"
            removed = position_deletes(
                builder, name, [(file["file_path"], 1)], "parquet", partition={"part": 5}
            )
            manifests.append(builder.manifest([removed], content=1, spec_id=n))
    builder.snapshot(manifests)
    found = open_built(builder).scan().to_pylist()
    wanted = [{"id": 0, "a": 5, "b": None}, {"id": 1, "a": None, "b": 5}]
    assert [row for row in found if row["id"] < 7] == wanted
    assert len(found) == (2 if deletes else 4)


def test_a_file_that_does_not_show_its_partition_may_match(tmp_path: Path) -> None:
    builder = Builder(tmp_path, PARTITIONED, spec=spec("identity"))  # no Avro field of it
    builder.snapshot([builder.manifest([builder.parquet("0.parquet", partition_rows(7))])])
    assert ids(open_built(builder).scan(filters="id = 7")) == [7]


def test_partition_of_a_dropped_column_still_reads(tmp_path: Path) -> None:
    avro = [{"name": "part", "type": "long", "field-id": 1000}]
    builder = Builder(tmp_path, PARTITIONED, spec=spec("identity"), partition=avro)
    file = builder.parquet("0.parquet", partition_rows(0), partition={"part": 0})
    builder.snapshot([builder.manifest([file])])
    builder.document["schemas"].append(struct(field(2, "name", "string"), schema_id=1))
    builder.document["current-schema-id"] = 1
    assert open_built(builder).scan(filters="name = 'name-0'").to_pylist() == [{"name": "name-0"}]


def bounds(**reported: tuple[Any, Any, Any]) -> dict[str, Any]:
    """Statistics of columns 1, 2, ...: type, least and greatest value."""
    each = list(enumerate(reported.values(), 1))
    return {
        "lower_bounds": [{"key": n, "value": to_bytes(t, low)} for n, (t, low, _) in each],
        "upper_bounds": [{"key": n, "value": to_bytes(t, high)} for n, (t, _, high) in each],
        "value_counts": [{"key": n, "value": 10} for n, _ in each],
        "null_value_counts": [{"key": n, "value": 0} for n, _ in each],
    }


def test_files_whose_statistics_rule_it_out_are_not_opened(tmp_path: Path) -> None:
    builder = Builder(tmp_path, ORDERS)
    files = []
    for number in range(3):
        reported = bounds(
            id=(LongType(), number * 10, number * 10 + 9),
            name=(StringType(), f"name-{number}", f"name-{number}9"),
            price=(DoubleType(), number * 5.0, number * 5 + 4.5),
        )
        rows = pa.table(
            [
                list(range(number * 10, number * 10 + 10)),
                [f"name-{number}{n}" for n in range(10)],
                [id_ / 2 for id_ in range(number * 10, number * 10 + 10)],
            ],
            schema=ORDERS_ARROW,
        )
        files.append(builder.parquet(f"{number}.parquet", rows, **reported))
    builder.snapshot([builder.manifest(files)])
    table = open_built(builder)
    for number in (0, 2):
        (tmp_path / "data" / f"{number}.parquet").unlink()
    middle = list(range(10, 20))
    for filters in ("id >= 10 and id < 20", "name like 'name-1%'", "price > 4.5 and price < 10.0"):
        assert ids(table.scan(filters=filters)) == middle
    assert table.scan(filters="name is null").num_rows == 0
    with pytest.raises(FileNotFoundError):
        table.scan(filters="id >= 10").to_arrow()


def test_statistics_from_before_a_column_was_widened(tmp_path: Path) -> None:
    builder = Builder(tmp_path, struct(field(1, "id", "int")))
    reported = bounds(id=(IntegerType(), 1, 3))
    rows = pa.table([pa.array([1, 2, 3], pa.int32())], schema=arrow([(1, "id", pa.int32())]))
    builder.snapshot([builder.manifest([builder.parquet("a.parquet", rows, **reported)])])
    builder.document["schemas"].append(struct(field(1, "id", "long"), schema_id=1))
    builder.document["current-schema-id"] = 1
    table = open_built(builder)
    assert ids(table.scan(filters="id > 1")) == [2, 3]
    assert ids(table.scan(filters="id < 5000000000")) == [1, 2, 3]
    (tmp_path / "data" / "a.parquet").unlink()
    assert ids(table.scan(filters="id > 5000000000")) == []


def test_bounds_of_dates_that_became_timestamps(tmp_path: Path) -> None:
    builder = Builder(tmp_path, struct(field(1, "id", "date")))
    rows = pa.table([pa.array([-1, 0, 1], pa.date32())], schema=arrow([(1, "id", pa.date32())]))
    file = builder.parquet("a.parquet", rows, **bounds(id=(DateType(), -1, 1)))
    builder.snapshot([builder.manifest([file])])
    builder.document["schemas"].append(struct(field(1, "id", "timestamp"), schema_id=1))
    builder.document["current-schema-id"] = 1
    table = open_built(builder)
    day, sets = "1970-01-0{}T00:00:00", "id in ('1970-01-0{}T00:00:00', '1971-01-01T00:00:00')"
    for within in (f"id >= '{day.format(2)}'", sets.format(2)):
        assert table.scan(filters=within).num_rows == 1
    (tmp_path / "data" / "a.parquet").unlink()
    for beyond in (f"id > '{day.format(2)}'", sets.format(3)):
        assert table.scan(filters=beyond).num_rows == 0
    assert table.delete("id > '1969-12-30T23:00:00'").scan().num_rows == 0


# --- schemas that have changed -------------------------------------------------------------------

OLD = struct(
    field(1, "id", "int"),
    field(2, "gone", "string"),
    field(3, "ratio", "float"),
    field(4, "amount", "decimal(9, 2)"),
    field(5, "day", "date"),
    field(6, "place", struct(field(7, "a", "int"), field(8, "b", "string"))),
    field(9, "tags", {"type": "list", "element-id": 10, "element-required": False,
                      "element": struct(field(11, "x", "int"), field(12, "y", "string"))}),
    field(13, "by_key", {"type": "map", "key-id": 14, "key": "string", "value-id": 15,
                         "value-required": False, "value": struct(field(16, "z", "int"))}),
    field(17, "numbers", {"type": "list", "element-id": 18, "element-required": False,
                          "element": "int"}),
)  # fmt: skip
OLD_ROWS: Rows = [
    {
        "id": 1, "gone": "x", "ratio": 0.1, "amount": decimal.Decimal("1.25"),
        "day": datetime.date(2024, 5, 1), "place": {"a": 1, "b": "b"},
        "tags": [{"x": 1, "y": "y"}, None], "by_key": [("k", {"z": 1}), ("l", None)],
        "numbers": [1, None, 3],
    },
    dict.fromkeys(["id", "gone", "ratio", "amount", "day", "place", "tags", "by_key", "numbers"]),
    {
        "id": 3, "gone": None, "ratio": 0.5, "amount": decimal.Decimal("-7.00"),
        "day": datetime.date(1969, 12, 31), "place": {"a": None, "b": None},
        "tags": [], "by_key": [], "numbers": [],
    },
]  # fmt: skip
NEW = struct(
    field(9, "labels", {"type": "list", "element-id": 10, "element-required": False,
                        "element": struct(field(12, "why", "string"), field(11, "x", "long"),
                                          field(20, "w", "int", **{"initial-default": 5}))}),
    field(6, "where", struct(field(8, "b", "string"), field(7, "a", "long"),
                             field(21, "c", "string", **{"initial-default": "c"}))),
    field(1, "key", "long"),
    field(3, "ratio", "double"),
    field(4, "amount", "decimal(20, 2)"),
    field(5, "day", "timestamp"),
    field(13, "by_key", {"type": "map", "key-id": 14, "key": "string", "value-id": 15,
                         "value-required": False,
                         "value": struct(field(16, "zed", "long"), field(22, "n", "int"))}),
    field(17, "numbers", {"type": "list", "element-id": 18, "element-required": False,
                          "element": "long"}),
    field(23, "added", "string"),
    field(24, "since", "date", **{"initial-default": "2020-02-03"}),
    field(25, "must", "long", required=True, **{"initial-default": 7}),
    schema_id=1,
)  # fmt: skip


def small(value: float) -> float:
    return float(pa.scalar(value, pa.float32()).as_py())


def new_rows() -> Rows:
    added = {"added": None, "since": datetime.date(2020, 2, 3), "must": 7}
    midnight = datetime.time()
    return [
        {
            "labels": [{"why": "y", "x": 1, "w": 5}, None], "where": {"b": "b", "a": 1, "c": "c"},
            "key": 1, "ratio": small(0.1), "amount": decimal.Decimal("1.25"),
            "day": datetime.datetime.combine(datetime.date(2024, 5, 1), midnight),
            "by_key": [("k", {"zed": 1, "n": None}), ("l", None)], "numbers": [1, None, 3], **added,
        },
        {**dict.fromkeys([field["name"] for field in NEW["fields"]]), **added},
        {
            "labels": [], "where": {"b": None, "a": None, "c": "c"}, "key": 3, "ratio": 0.5,
            "amount": decimal.Decimal("-7.00"), "day": datetime.datetime(1969, 12, 31),
            "by_key": [], "numbers": [], **added,
        },
    ]  # fmt: skip


AVRO_OLD = {
    "type": "record",
    "name": "table",
    "fields": [
        {"name": "id", **optional("int"), "field-id": 1},
        {"name": "gone", **optional("string"), "field-id": 2},
        {"name": "ratio", **optional("float"), "field-id": 3},
        {"name": "amount", "field-id": 4, **optional(
            {"type": "fixed", "size": 4, "name": "decimal_9_2", "logicalType": "decimal",
             "precision": 9, "scale": 2})},
        {"name": "day", **optional({"type": "int", "logicalType": "date"}), "field-id": 5},
        {"name": "place", "field-id": 6, **optional({"type": "record", "name": "r6", "fields": [
            {"name": "a", **optional("int"), "field-id": 7},
            {"name": "b", **optional("string"), "field-id": 8}]})},
        {"name": "tags", "field-id": 9, **optional({"type": "array", "element-id": 10, "items": [
            "null", {"type": "record", "name": "r10", "fields": [
                {"name": "x", **optional("int"), "field-id": 11},
                {"name": "y", **optional("string"), "field-id": 12}]}]})},
        {"name": "by_key", "field-id": 13, **optional(
            {"type": "map", "key-id": 14, "value-id": 15, "values": [
                "null", {"type": "record", "name": "r15", "fields": [
                    {"name": "z", **optional("int"), "field-id": 16}]}]})},
        {"name": "numbers", "field-id": 17, **optional(
            {"type": "array", "element-id": 18, "items": ["null", "int"]})},
    ],
}  # fmt: skip


def evolve_table(folder: Path, form: str) -> IcebergTable:
    builder = Builder(folder, OLD)
    if form == "parquet":
        rows = pa.Table.from_pylist(OLD_ROWS, arrow_schema(OLD))
        file = builder.parquet("a.parquet", rows, row_group=2)
    else:
        as_dicts = [
            {**row, "by_key": None if row["by_key"] is None else dict(row["by_key"])}
            for row in OLD_ROWS
        ]
        file = builder.avro("a.avro", AVRO_OLD, as_dicts)
    builder.snapshot([builder.manifest([file])])
    builder.document["schemas"].append(NEW)
    builder.document["current-schema-id"] = 1
    return open_built(builder)


@pytest.mark.parametrize("form", ["parquet", "avro"])
def test_a_file_of_an_older_schema_is_read_by_field_ids(tmp_path: Path, form: str) -> None:
    table = evolve_table(tmp_path, form)
    assert table.scan().to_pylist() == new_rows()
    old = [{**row, "ratio": row["ratio"] and small(row["ratio"])} for row in OLD_ROWS]
    assert table.scan(1001).to_pylist() == old
    for name in table.scan().column_names:
        assert table.scan(columns=[name]).to_pylist() == [{name: row[name]} for row in new_rows()]


@each_case("form", ["parquet", "avro"])
@each_case(
    ("filters", "keys"),
    [
        ("key = 1", [1]),
        ("ratio > 0.1", [1, 3]),  # 0.1 as a float is more than 0.1 as a double
        ("ratio = 0.1", []),
        ("day < '2024-05-01T12:00:00'", [1, 3]),
        ("must = 7 and key is not null", [1, 3]),
        ("must = 8", []),
        ("since = '2020-02-03' and key = 3", [3]),
        ("added is null and key = 3", [3]),
        ("added is not null", []),
        ("where.c = 'c'", [1, 3]),  # null in a struct that is null
        ("where.c is null", [None]),
        ("where.a > 0", [1]),
        ("amount < 0", [3]),
        ("key > 5000000000", []),
    ],
)
def test_filters_are_of_the_rows_as_the_table_has_them(
    tmp_path: Path, form: str, filters: str, keys: list[Any]
) -> None:
    found = evolve_table(tmp_path, form).scan(columns=["key"], filters=filters)
    assert found.column("key").to_pylist() == keys


def test_a_file_with_a_type_that_the_column_never_had_is_refused(tmp_path: Path) -> None:
    builder = Builder(tmp_path, struct(field(1, "id", "int")))
    rows = pa.table([pa.array(["secret"])], schema=arrow([(1, "id", pa.string())]))
    builder.snapshot([builder.manifest([builder.parquet("a.parquet", rows)])])
    with pytest.raises(FormatError, match="never had") as caught:
        open_built(builder).scan().to_arrow()
    assert "secret" not in str(caught.value)


def test_a_required_column_that_a_file_lacks_is_refused(tmp_path: Path) -> None:
    builder = Builder(tmp_path, ORDERS)
    builder.document["schemas"][0]["fields"].append(field(8, "must", "int", required=True))
    builder.snapshot([builder.manifest([builder.parquet("a.parquet", orders([1]))])])
    with pytest.raises(FormatError, match="required"):
        open_built(builder).scan().to_arrow()


def test_files_without_field_ids_are_read_by_the_name_mapping(tmp_path: Path) -> None:
    avro = [{"name": "part", "type": "string", "field-id": 1000}]
    builder = Builder(tmp_path, ORDERS, spec=spec("identity", 2), partition=avro)
    # As Hive has them: a partition is a path. The mapping lacks a column and a field.
    rows = pa.table({"ID": [1, 2], "price": [0.5, 1.5], "more": [[{"x": 1}]] * 2})
    file = builder.parquet("a.parquet", rows, partition={"part": "from the path"})
    builder.snapshot([builder.manifest([file])])
    with pytest.raises(FormatError, match="name mapping"):
        open_built(builder).scan().to_arrow()
    builder.document["properties"]["schema.name-mapping.default"] = (
        '[{"field-id": 1, "names": ["id", "ID"]}, {"field-id": 3, "names": ["price"]}]'
    )
    table = open_built(builder)
    assert table.scan().to_pylist() == [
        {"id": 1, "name": "from the path", "price": 0.5},
        {"id": 2, "name": "from the path", "price": 1.5},
    ]
    assert ids(table.scan(filters="name = 'from the path' and id = 2")) == [2]
    assert ids(table.scan(filters="name = 'x'")) == []


def test_a_name_mapping_has_ids_of_fields_within_others() -> None:
    inner = '{"field-id": 3, "names": ["x"]}'
    within = ("element", "value")
    mapping = parse_mapping_from_json(
        f'[{{"field-id": 1, "names": ["s"], "fields": [{inner}, {{"names": ["no_id"]}}]}}, '
        + ", ".join(
            f'{{"field-id": {id_}, "names": ["{id_}"], "fields": '
            f'[{{"field-id": {id_ + 1}, "names": ["{name}"], "fields": [{inner}]}}]}}'
            for id_, name in zip((10, 20), within, strict=True)
        )
        + "]"
    )
    struct_type = pa.struct([("x", pa.int32()), ("no_id", pa.int32()), ("other", pa.int32())])
    columns = [
        ("s", struct_type), ("10", pa.list_(pa.field("item", struct_type))),
        ("20", pa.map_(pa.string(), struct_type)),
    ]  # fmt: skip
    found = with_field_ids(pa.schema(columns), mapping, "a file")
    structs = [found.field(0), found.field(1).type.value_field, found.field(2).type.item_field]
    assert [field_id(each) for each in structs] == [1, 11, 21]
    assert field_id(found.field(2).type.key_field) is None
    for each in structs:
        assert [field_id(part) for part in each.type] == [3, None, None]


# --- Avro ----------------------------------------------------------------------------------------

EVERY = struct(
    field(1, "flag", "boolean"), field(2, "i", "int"), field(3, "l", "long"),
    field(4, "f", "float"), field(5, "d", "double"), field(6, "dec", "decimal(38, 10)"),
    field(7, "day", "date"), field(8, "at", "time"), field(9, "ts", "timestamp"),
    field(10, "tz", "timestamptz"), field(11, "text", "string"), field(12, "u", "uuid"),
    field(13, "fixed", "fixed[3]"), field(14, "bytes", "binary"), field(15, "ns", "timestamp_ns"),
    field(16, "m", {"type": "map", "key-id": 17, "key": "int", "value-id": 18, "value": "string",
                    "value-required": True}),
)  # fmt: skip
EVERY_AVRO = AvroSchemaConversion().iceberg_to_avro(Schema.model_validate(EVERY), "table")
EVERY_RAW = {
    "flag": True, "i": -5, "l": 1 << 60, "f": 0.5, "d": 0.1,
    "dec": (-12345678901234567890123456789).to_bytes(16, "big", signed=True),
    "day": 19000, "at": 3_600_000_001, "ts": -1, "tz": 1_700_000_000_123_456, "text": "é",
    "u": uuid.UUID(int=5).bytes, "fixed": b"abc", "bytes": b"\x00\xff", "ns": 1_700_000_000_123_456,
    "m": [{"key": 1, "value": "one"}, {"key": 2, "value": "two"}],
}  # fmt: skip
EPOCH = datetime.datetime(1970, 1, 1)
EVERY_ROW = {
    "flag": True, "i": -5, "l": 1 << 60, "f": 0.5, "d": 0.1,
    "dec": decimal.Decimal("-1234567890123456789.0123456789"),
    "day": datetime.date(2022, 1, 8), "at": datetime.time(1, 0, 0, 1),
    "ts": EPOCH - datetime.timedelta(microseconds=1),
    "tz": datetime.datetime.fromtimestamp(1_700_000_000, datetime.UTC).replace(microsecond=123456),
    "text": "é", "u": uuid.UUID(int=5), "fixed": b"abc", "bytes": b"\x00\xff",
    "ns": 1_700_000_000_123_456, "m": [(1, "one"), (2, "two")],
}  # fmt: skip


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_avro_data_files_of_every_type(tmp_path: Path, codec: str) -> None:
    builder = Builder(tmp_path, EVERY)
    nothing = dict.fromkeys(EVERY_RAW)
    file = builder.avro("a.avro", EVERY_AVRO, [EVERY_RAW, nothing], codec)
    builder.snapshot([builder.manifest([file])])
    rows = open_built(builder).scan()
    number = rows.schema.get_field_index("ns")
    rows = rows.set_column(number, "ns", rows.column("ns").cast(pa.int64()))
    assert rows.to_pylist() == [EVERY_ROW, nothing]
    assert rows.schema.field("tz").type == pa.timestamp("us", "UTC")
    assert open_built(builder).scan(filters="ts < '1970-01-01T00:00:00' and i = -5").num_rows == 1


def test_times_that_no_datetime_of_python_can_have(tmp_path: Path) -> None:
    builder = Builder(tmp_path, EVERY)
    far = {**dict.fromkeys(EVERY_RAW), "ts": 1 << 60, "day": 5_000_000}
    builder.snapshot([builder.manifest([builder.avro("a.avro", EVERY_AVRO, [far])])])
    rows = open_built(builder).scan(columns=["ts", "day"])
    assert rows.column("ts").cast(pa.int64()).to_pylist() == [1 << 60]
    assert rows.column("day").cast(pa.int32()).to_pylist() == [5_000_000]


def test_many_avro_rows_in_many_blocks(tmp_path: Path) -> None:
    builder = Builder(tmp_path, struct(field(1, "id", "long"), field(2, "text", "string")))
    schema = {
        "type": "record", "name": "t", "fields": [
            {"name": "id", "type": "long", "field-id": 1},
            {"name": "text", "type": "string", "field-id": 2}]}  # fmt: skip
    rows = [{"id": n, "text": f"text-{n}" * 20} for n in range(60_000)]
    file = builder.avro("a.avro", schema, rows)
    deletes = builder.vectors("dv.puffin", {f"{builder.location}/data/a.avro": [0, 31_000, 59_999]})
    builder.snapshot([builder.manifest([file]), builder.manifest(deletes, content=1)])
    table = open_built(builder)
    batches = list(table.scan_batches(columns=["id"]))
    assert len(batches) > 1
    found = list(itertools.chain.from_iterable(batch.column("id").to_pylist() for batch in batches))
    assert found == [n for n in range(60_000) if n not in (0, 31_000, 59_999)]


# --- deletes -------------------------------------------------------------------------------------


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    return Builder(tmp_path, ORDERS)


def two_files(builder: Builder) -> tuple[dict[str, Any], str, str]:
    files = [
        builder.parquet("a.parquet", orders(range(30)), row_group=10),
        builder.parquet("b.parquet", orders(range(30, 40))),
    ]
    return builder.manifest(files), files[0]["file_path"], files[1]["file_path"]


@pytest.mark.parametrize("form", ["parquet", "avro"])
def test_position_deletes(builder: Builder, form: str) -> None:
    data, a, b = two_files(builder)
    rows = [(a, 0), (a, 9), (a, 10), (a, 29), (a, 29), (b, 5)]
    deletes = builder.manifest([position_deletes(builder, "d", rows, form)], content=1)
    builder.snapshot([data, deletes])
    table = open_built(builder)
    left = [n for n in range(40) if n not in (0, 9, 10, 29, 35)]
    assert table.scan().column("id").to_pylist() == left
    assert ids(table.scan(filters="id >= 9 and id < 12")) == [11]
    assert ids(table.scan(columns=["id"], filters="name is null")) == [
        n for n in left if n % 3 == 0
    ]


@pytest.mark.parametrize("form", ["parquet", "avro"])
def test_several_position_delete_files_of_one_data_file(builder: Builder, form: str) -> None:
    data, a, _ = two_files(builder)
    files = [
        position_deletes(builder, "d1", [(a, 3), (a, 1)], form),
        position_deletes(builder, "d2", [(a, 1), (a, 2)], form, referenced_data_file=a),
    ]
    builder.snapshot([data, builder.manifest(files, content=1)])
    assert ids(open_built(builder).scan()) == [n for n in range(40) if n not in (1, 2, 3)]


def test_several_deletion_vectors_in_one_file(builder: Builder) -> None:
    data, a, b = two_files(builder)
    vectors = builder.vectors("dv.puffin", {a: [0, 15, 16], b: [9]})
    builder.snapshot([data, builder.manifest(vectors, content=1)])
    table = open_built(builder)
    assert ids(table.scan()) == [n for n in range(40) if n not in (0, 15, 16, 39)]
    assert ids(table.scan(filters="id < 17 and id > 13")) == [14]
    assert table.files().column("kind").to_pylist().count("deletion vector") == 2


def test_a_deletion_vector_takes_the_place_of_position_deletes(builder: Builder) -> None:
    data, a, b = two_files(builder)
    older = position_deletes(builder, "d", [(a, 1), (b, 1)], "parquet")
    vector = builder.vectors("dv.puffin", {a: [2]})
    deletes = [builder.manifest([older], content=1), builder.manifest(vector, content=1)]
    builder.snapshot([data, *deletes])
    assert ids(open_built(builder).scan()) == [n for n in range(40) if n not in (2, 31)]


@pytest.mark.parametrize("form", ["parquet", "vector"])
def test_deletes_apply_to_data_of_their_commit_and_before_alone(
    builder: Builder, form: str
) -> None:
    first, a, _ = two_files(builder)
    location = f"{builder.location}/data/c.parquet"
    rows = [(a, 0), (location, 0)]
    if form == "parquet":
        files = [position_deletes(builder, "d", rows, "parquet")]
    else:
        files = builder.vectors("dv.puffin", {path: [position] for path, position in rows})
    deletes = builder.manifest(files, content=1)
    builder.snapshot([first, deletes])
    later = builder.manifest([builder.parquet("c.parquet", orders([100, 101]))])
    builder.snapshot([first, deletes, later])
    assert ids(open_built(builder).scan()) == [*range(1, 40), 100, 101]


def test_deletes_of_another_partition_do_not_apply(tmp_path: Path) -> None:
    avro = [{"name": "part", "type": "long", "field-id": 1000}]
    builder = Builder(tmp_path, PARTITIONED, spec=spec("identity"), partition=avro)
    files = [
        builder.parquet(f"{n}.parquet", partition_rows(n), partition={"part": n}) for n in range(2)
    ]
    rows = [(file["file_path"], 0) for file in files]
    deletes = position_deletes(builder, "d.parquet", rows, "parquet", partition={"part": 1})
    builder.snapshot([builder.manifest(files), builder.manifest([deletes], content=1)])
    assert ids(open_built(builder).scan()) == [0]


@pytest.mark.parametrize("form", ["parquet", "avro", "vector"])
def test_deletes_that_spell_a_location_otherwise(builder: Builder, form: str) -> None:
    data, a, _ = two_files(builder)
    other = a.replace(builder.location, "s3a://bucket/orders")
    if form == "vector":
        files = builder.vectors("dv.puffin", {other: [4]})
    else:
        files = [position_deletes(builder, "d", [(other, 4)], form)]
    builder.snapshot([data, builder.manifest(files, content=1)])
    table = open_built(builder, location_map={"s3a://bucket/orders": builder.folder})
    assert ids(table.scan()) == [n for n in range(40) if n != 4]
    with pytest.raises(FormatError, match="outside of the table"):
        open_built(builder).scan().to_arrow()


def test_all_rows_of_a_file_are_deleted(builder: Builder) -> None:
    data, a, b = two_files(builder)
    vectors = builder.vectors("dv.puffin", {a: range(30), b: range(10)})
    builder.snapshot([data, builder.manifest(vectors, content=1)])
    assert open_built(builder).scan().num_rows == 0


def test_removed_files_are_not_read(builder: Builder) -> None:
    kept = builder.parquet("a.parquet", orders([1]))
    gone = {**kept, "file_path": f"{builder.location}/data/gone.parquet"}
    entries = [
        {"status": 0, "snapshot_id": 1, "sequence_number": 1, "data_file": kept},
        {"status": 2, "snapshot_id": 1, "sequence_number": 1, "data_file": gone},
    ]
    builder.snapshot([builder.manifest(entries)])
    assert ids(open_built(builder).scan()) == [1]


# --- two readers of Parquet ----------------------------------------------------------------------


def test_pyarrow_decrypts_what_iceberg_writes(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not hasattr(pe, "create_decryption_properties"):
        pytest.skip("this PyArrow takes no key")
    two = two_files(builder)[0]
    builder.snapshot([two])
    with monkeypatch.context() as patched:
        patched.setattr(data_files, "PlaintextView", None)
        assert ids(open_built(builder).scan(filters="id > 5")) == list(range(6, 40))


@pytest.mark.parametrize("good", [0, 1, 2])
def test_what_pyarrow_refuses_is_read_all_the_same(
    builder: Builder, monkeypatch: pytest.MonkeyPatch, good: int
) -> None:
    """From the row group on that it can't read; no row comes twice."""
    data, a, _ = two_files(builder)
    vector = builder.manifest(builder.vectors("dv.puffin", {a: [12, 25]}), content=1)
    builder.snapshot([data, vector])
    read = native_parquet.Readable.parquet
    count = itertools.count()

    class Failing:
        def __init__(self, file: Any) -> None:
            self._file = file

        def __getattr__(self, name: str) -> Any:
            if name == "read_row_group" and next(count) >= good:
                raise OSError("no")
            return getattr(self._file, name)

    def parquet(self: Any) -> Any:
        return read(self) if self.properties is None else Failing(read(self))

    monkeypatch.setattr(native_parquet.Readable, "parquet", parquet)
    expected = [n for n in range(40) if n not in (12, 25)]
    assert open_built(builder).scan().column("id").to_pylist() == expected


# --- plaintext tables ----------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2, 3])
def test_tables_in_plaintext_are_read_when_they_may_be(tmp_path: Path, version: int) -> None:
    builder = Builder(tmp_path, ORDERS, encrypted=False, version=version)
    if version == 1:
        document = builder.document
        document["schema"] = document.pop("schemas")[0]
        document["partition-spec"] = document.pop("partition-specs")[0]["fields"]
        del document["current-schema-id"]
        document["schemas"] = [document["schema"]]
        document["current-schema-id"] = 0
    rows = builder.parquet("a.parquet", orders([1, 2, 3]), row_group=2)
    manifests = [builder.manifest([rows])]
    if version == 2:
        deletes = position_deletes(builder, "d", [(rows["file_path"], 1)], "parquet")
        manifests.append(builder.manifest([deletes], content=1))
    if version == 3:
        vector = builder.vectors("dv.puffin", {rows["file_path"]: [1]})
        manifests.append(builder.manifest(vector, content=1))
    builder.snapshot(manifests)
    if version == 1:
        del builder.document["schemas"], builder.document["current-schema-id"]
    expected = [1, 2, 3] if version == 1 else [1, 3]
    assert ids(open_built(builder, require_encrypted=False).scan()) == expected
    with pytest.raises(ModcryptError, match="not encrypted"):
        open_built(builder)


@pytest.mark.parametrize("encrypted", [True, False])
def test_times_of_int96_have_any_year(tmp_path: Path, java: Judge, encrypted: bool) -> None:
    """Hive and Spark wrote times so, also those beyond the years of nanoseconds."""
    moments = struct(field(1, "id", "long"), field(2, "at", "timestamptz"))
    times = [datetime.datetime(year, 12, 31, 23, 59, tzinfo=datetime.UTC) for year in (1, 9999)]
    rows = pa.table([[1, 2], times], schema=arrow_schema(moments))
    builder = Builder(tmp_path, moments, encrypted=encrypted)
    builder.snapshot([builder.manifest([builder.parquet("a.parquet", rows, int96=True)])])
    table = open_built(builder, require_encrypted=encrypted)
    assert table.scan().to_arrow()["at"].to_pylist() == times
    assert ids(table.scan(filters="at > '9999-01-01T00:00:00+00:00'")) == [2]
    assert java.read(builder.write(), {builder.location: builder.folder}) == plain_rows(
        table.scan().to_arrow()
    )


def test_nanoseconds_are_rounded_down(tmp_path: Path) -> None:
    """A microsecond before 1970 stays before 1970, as its partition does."""
    moments = struct(field(1, "id", "long"), field(2, "at", "timestamp"))
    at = pa.array([-1, 1999], pa.timestamp("ns"))
    rows = pa.table([[1, 2], at], names=["id", "at"]).cast(
        arrow_schema(moments).set(1, arrow_schema(moments).field("at").with_type(at.type))
    )
    builder = Builder(tmp_path, moments)
    builder.snapshot([builder.manifest([builder.parquet("a.parquet", rows, row_group=1)])])
    scan = open_built(builder).scan
    assert scan().to_arrow()["at"].cast(pa.int64()).to_pylist() == [-1, 1]
    assert ids(scan(filters="at < '1970-01-01T00:00:00'")) == [1]
    assert ids(scan(filters="at = '1970-01-01T00:00:00.000001'")) == [2]


@pytest.mark.parametrize("kind", ["variant", "geometry", "geography(OGC:CRS84)"])
def test_types_that_are_not_read_are_named(tmp_path: Path, kind: str) -> None:
    listed = {"type": "list", "element-id": 22, "element": kind}
    odd = field(20, "odd", struct(field(21, "x", listed), field(23, "y", "int")))
    builder = Builder(tmp_path, struct(*ORDERS["fields"], odd))
    builder.snapshot([builder.manifest([builder.parquet("a.parquet", orders([1]))])])
    table = open_built(builder)
    for columns in (None, ["odd"], ["id", "odd.x"]):
        with pytest.raises(UnsupportedFormatError, match=kind.partition("(")[0]):
            table.scan(columns=columns).to_arrow()
    with pytest.raises(UnsupportedFormatError, match="select others"):
        table.append(orders([2]))
    rows = table.scan(columns=["id", "odd.y"], filters="name = 'name-1'").to_arrow().to_pylist()
    assert rows == [{"id": 1, "odd": None}]
    assert table.scan(columns=["ID"], case_sensitive=False).to_arrow()["id"].to_pylist() == [1]


@pytest.mark.parametrize(("kind", "value"), [("timestamp_ns", "2026-01-01T00:00:00"), (ORDERS, {})])
def test_defaults_that_are_not_read_are_named(tmp_path: Path, kind: Any, value: Any) -> None:
    odd = field(20, "odd", kind, **{"initial-default": value})
    with pytest.raises(UnsupportedFormatError, match="with a default are not supported"):
        open_built(Builder(tmp_path, struct(odd))).scan()


# --- many files, few in memory -------------------------------------------------------------------


class _Result:
    def __init__(self, number: int, nbytes: int) -> None:
        self.number, self.nbytes = number, nbytes


def test_lanes_keep_the_order_and_stay_near_the_reader() -> None:
    made: list[int] = []
    closed: list[int] = []

    def source(lane: int) -> Generator[_Result]:
        try:
            for number in range(50):
                made.append(lane)
                yield _Result(lane * 50 + number, MAX_AHEAD // 4)
        finally:
            closed.append(lane)

    sources = [partial(source, lane) for lane in range(9)]
    found = run_in_order(sources, 3)
    numbers = [next(found).number for _ in range(10)]
    assert numbers == list(range(10))
    assert len(made) <= 10 + 4 * 7
    assert set(made) <= {0, 1, 2, 3}
    found.close()
    assert sorted(closed) == sorted(set(made))
    assert [source.number for source in run_in_order(sources, 3)] == list(range(450))


def test_an_error_of_a_lane_comes_in_its_place() -> None:
    def source(lane: int) -> Generator[_Result]:
        yield _Result(lane, 1)
        if lane == 2:
            raise OSError("gone")

    found = run_in_order([partial(source, lane) for lane in range(5)], 2)
    assert [next(found).number for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="gone"):
        next(found)


def test_a_reader_that_goes_away_without_a_word_holds_nobody_up() -> None:
    """The interpreter waits for its threads before it lets go of what a script has left open."""
    script = f"""
        from modcrypt.iceberg.read.ordered_threads import run_in_order

        class Result:
            nbytes = {MAX_AHEAD}

        def source():
            for number in range(9):
                yield Result()

        found = run_in_order([source] * 4, 2)
        next(found)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], timeout=60, check=False)
    assert done.returncode == 0


def test_a_stream_of_batches_holds_a_few_files_at_a_time(builder: Builder) -> None:
    """Of 60 files with 1 MB each, decoded."""
    rows = orders(range(25_000))
    each = rows.nbytes
    file = builder.parquet("a.parquet", rows)
    builder.snapshot([builder.manifest([file] * 60)])
    most = count = 0
    before = pa.total_allocated_bytes()
    for batch in open_built(builder).scan_batches():
        count += batch.num_rows
        most = max(most, pa.total_allocated_bytes() - before)
    assert count == 1_500_000
    assert most < 0.7 * 60 * each


def test_batches_of_many_files_come_in_their_order(builder: Builder) -> None:
    files = [builder.parquet(f"{n}.parquet", orders(range(n * 10, n * 10 + 10))) for n in range(25)]
    builder.snapshot([builder.manifest(files[:20]), builder.manifest(files[20:])])
    table = open_built(builder)
    assert table.scan().column("id").to_pylist() == list(range(250))
    batches = table.scan_batches(columns=["id"])
    assert next(batches).column("id").to_pylist() == list(range(10))
    del batches  # the threads end
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("modcrypt-scan")]


# --- what is imported ----------------------------------------------------------------------------


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


def test_opening_a_table_imports_no_library_that_takes_long(builder: Builder) -> None:
    path = builder.write()
    code = (
        "import sys, modcrypt.iceberg as i\n"
        "class Kms: wrap = unwrap = None\n"
        f"t = i.open_table({str(path)!r}, Kms()); t.snapshot()\n"
        "print(sorted({'pyiceberg', 'fastavro', 'pyroaring'} & set(sys.modules)))"
    )
    assert run(code) == "[]"


def test_a_missing_library_is_named_with_its_extra(builder: Builder) -> None:
    path, libraries = builder.write(), ("pyiceberg", "fastavro", "pyroaring")
    code = (
        "import importlib.util as u, sys\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == missing else find(name, *a)\n"
        "import modcrypt.iceberg as i\n"
        "class Kms: wrap = unwrap = None\n"
        f"for missing in {libraries}:\n"
        f"    try: i.open_table({str(path)!r}, Kms())\n"
        "    except ModuleNotFoundError as error: print(error)"
    )
    assert run(code).splitlines() == [
        f'the package {name} needs an extra: pip install "modcrypt[iceberg]"' for name in libraries
    ]


def test_ids_of_master_keys_are_no_single_text(builder: Builder) -> None:
    with pytest.raises(ValueError, match="collection of ids"):
        open_built(builder, master_key_ids="keyA-old")


def test_key_tools_may_not_bind_keys_to_what_tables_do_not_keep(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = KeyTools(SampleKms())
    builder.snapshot([builder.manifest([builder.parquet("a.parquet", orders([1]))])])
    assert ids(open_table(builder.write(), tools).scan()) == [1]
    monkeypatch.setattr(tools.wrapper, "aad", b"tenant 7")
    with pytest.raises(ValueError, match="kms_aad"):
        open_table(builder.write(), tools)


def test_no_columns_are_so_many_rows(builder: Builder) -> None:
    builder.snapshot([builder.manifest([builder.parquet("a.parquet", orders(range(7)))])])
    batches = list(open_built(builder).scan_batches(columns=[], filters="id > 2"))
    assert [(batch.num_columns, batch.num_rows) for batch in batches] == [(0, 4)]

"""Which rows a filter can match, judged by what PyArrow keeps of the same rows."""

from __future__ import annotations

import datetime as dt
import io
import math
import random
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt.io.sources import Source
from modcrypt.parquet.arrow.filters import Filters, as_filter, bind_filter
from modcrypt.parquet.arrow.scanning import file_scan
from modcrypt.parquet.arrow.scanning import row_group_pruning as pruning
from modcrypt.parquet.arrow.scanning.plan_parts import PlanParts
from modcrypt.parquet.arrow.scanning.row_group_pruning import Ranges, find_candidate_rows
from modcrypt.parquet.crypto.file_plan import ReadPlan
from modcrypt.parquet.format.idl import ThriftStruct, copy, decode, new
from tests.support.cases import each_case, one_in
from tests.support.keys import FOOTER_KEY
from tests.support.randomness import dice, examples

NAN = float("nan")
f = pc.field


class File:
    """A plaintext file, and which of its parts were asked for."""

    def __init__(self, data: bytes) -> None:
        length = int.from_bytes(data[-8:-4], "little")
        self.data = data
        self.metadata, _ = decode("FileMetaData", data[-8 - length : -8])
        self.schema = pq.read_schema(pa.BufferReader(data))
        self.asked: list[tuple[str, int, int]] = []

    def _ask(self, what: str, row_group: int, column: int) -> ThriftStruct:
        assert (what, row_group, column) not in self.asked, "asked twice"
        self.asked.append((what, row_group, column))
        return self.metadata.row_groups[row_group].columns[column]

    def read_column_index(self, row_group: int, column: int) -> ThriftStruct | None:
        chunk = self._ask("column index", row_group, column)
        return decode("ColumnIndex", self.data, chunk.column_index_offset)[0]

    def read_offset_index(self, row_group: int, column: int) -> ThriftStruct | None:
        chunk = self._ask("offset index", row_group, column)
        return decode("OffsetIndex", self.data, chunk.offset_index_offset)[0]

    def read_bloom_filter(self, row_group: int, column: int) -> tuple[ThriftStruct, bytes] | None:
        chunk = self._ask("bloom filter", row_group, column)
        header, end = decode("BloomFilterHeader", self.data, chunk.meta_data.bloom_filter_offset)
        return header, self.data[end : end + header.numBytes]

    def candidates(self, filters: Filters, **how: Any) -> dict[int, Ranges]:
        self.asked.clear()
        how = {"row_groups": range(len(self.metadata.row_groups)), **how}
        row_filter = as_filter(filters)
        assert row_filter is not None
        row_filter = bind_filter(row_filter, how.get("schema") or self.schema)
        return find_candidate_rows(self.metadata, row_filter, self, **how)


def write_file(table: pa.Table, **options: Any) -> File:
    """Write a table with PyArrow: pages of ten rows, and their index."""
    wanted = {"write_page_index": True, "write_batch_size": 10, "data_page_size": 1}
    sink = io.BytesIO()
    pq.write_table(table, sink, **(wanted | options))
    return File(sink.getvalue())


def lost_rows(table: pa.Table, file: File, found: dict[int, Ranges], filters: Filters) -> list[int]:
    """Return the rows that PyArrow keeps of a table and the candidates leave out."""
    numbered = table.append_column("row number", pa.array(range(table.num_rows), pa.int64()))
    wanted = filter_rows(numbered, filters)["row number"].to_pylist()
    starts = [0]
    for row_group in file.metadata.row_groups:
        starts.append(starts[-1] + row_group.num_rows)
    covered = {
        starts[r] + row for r, ranges in found.items() for a, b in ranges for row in range(a, b)
    }
    return [row for row in wanted if row not in covered]


def filter_rows(table: pa.Table, filters: Filters) -> pa.Table:
    """Return the rows that PyArrow keeps."""
    row_filter = as_filter(filters)
    assert row_filter is not None
    return table.filter(row_filter.expression)


def read_fields(filters: Filters, *names: str) -> set[tuple[str, ...]] | None:
    """Return the fields that a filter reads, of those with these names; None if not known."""
    row_filter = as_filter(filters)
    assert row_filter is not None
    bound = bind_filter(row_filter, pa.schema([(name, pa.int64()) for name in names]))
    return {p.path for p in bound.predicates} if bound.alternatives else None


def check_shape(file: File, found: dict[int, Ranges]) -> None:
    for r, ranges in found.items():
        borders = [border for interval in ranges for border in interval]
        assert borders == sorted(set(borders)), "not sorted, empty, overlapping or not merged"
        assert borders[0] >= 0
        assert borders[-1] <= file.metadata.row_groups[r].num_rows


# --- nothing that matches is left out ------------------------------------------------------------

DAY = dt.date(2026, 1, 1)
POOLS: dict[str, tuple[Any, list[Any]]] = {
    "i": (pa.int32(), [-3, -1, 0, 1, 2, 5, 9]),
    "u": (pa.uint64(), [0, 1, 7, 2**63, 2**64 - 1]),
    "s": (pa.string(), ["", "a", "ab", "b", "é", "z" * 70]),
    "x": (pa.float64(), [-1.5, -0.0, 0.0, 1.0, 2.5, NAN, math.inf]),
    "h": (pa.float32(), [-1.5, 0.0, 1.0, 2.5, NAN]),
    "t": (pa.timestamp("us"), [dt.datetime(2026, 1, 1, hour) for hour in (0, 3, 7)]),
    "m": (pa.decimal128(8, 2), [Decimal("-1.25"), Decimal("0.00"), Decimal("7.50")]),
    "d": (pa.date32(), [DAY, DAY + dt.timedelta(2), DAY + dt.timedelta(9)]),
    "b": (pa.bool_(), [True, False]),
    "k": (pa.dictionary(pa.int32(), pa.string()), ["a", "b", "z"]),
    "f": (pa.binary(2), [b"aa", b"ab", b"zz"]),
    "l": (pa.list_(pa.int32()), [[], [1], [1, None, 9]]),
    "o": (
        pa.struct({"a": pa.int32(), "x": pa.float64()}),
        [{"a": 1, "x": NAN}, {"a": 5, "x": 1.0}, {"a": None, "x": 2.5}],
    ),
}
FIELDS: dict[str | tuple[str, ...], tuple[Any, list[Any]]] = {
    ("o", "a"): (pa.int32(), [0, 1, 3, 5]),
    ("o", "x"): (pa.float64(), [0.0, 1.0, 2.0, NAN]),
}
FIELDS.update(POOLS)
FIELDS["k"] = pa.string(), ["a", "b", "c", "z"]
NUMBERS = ["i", "x", "h", ("o", "a"), ("o", "x")]
COMPARED = [name for name in FIELDS if name not in ("l", "o")]
COMPARISONS = [pc.equal, pc.not_equal, pc.less, pc.less_equal, pc.greater, pc.greater_equal]


def random_table(chance: random.Random) -> pa.Table:
    """Return up to forty rows with a few different values a column, so that bounds part pages."""
    rows = chance.randint(0, 40)
    columns = {}
    for name, (kind, pool) in POOLS.items():
        some = chance.choices([None, *pool], k=chance.randint(1, 3))
        columns[name] = pa.array(chance.choices(some, k=rows), kind)
    return pa.table(columns)


def random_filters(chance: random.Random) -> Filters:
    """Return an expression, or tuples with all operators and constants of any kind."""
    if chance.random() < 0.5:
        return random_expression(chance, 3)
    return [[random_term(chance) for _ in range(chance.randint(1, 3))] for _ in range(2)]


def random_term(chance: random.Random) -> tuple[Any, str, Any]:
    name = chance.choice(COMPARED)
    kind, pool = FIELDS[name]
    how = chance.choice(["=", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "is null"])
    if how == "is null":
        return name, chance.choice([how, "is not null"]), None
    if how.endswith("in"):
        values = chance.choices([None, *pool], k=chance.randint(1, 3))
        return name, how, pa.array(values, scalar(kind, None).type)
    return name, how, scalar(kind, chance.choice(pool))


def random_expression(chance: random.Random, depth: int) -> pc.Expression:
    """Return ands and ors and nots of what can be asked, and now and then something odd."""
    if depth == 0 or chance.random() < 0.3:
        return random_atom(chance)
    one, other = (random_expression(chance, depth - 1) for _ in range(2))
    odd: list[Callable[[], pc.Expression]] = [
        lambda: pc.and_(one, other),
        lambda: pc.xor(one, other),
        lambda: one == other,
        lambda: pc.coalesce(one, other),
        lambda: one.is_null(),
        lambda: one.is_valid(),
        lambda: one.isin([None, False]),
    ]
    usual: list[Callable[[], pc.Expression]] = [
        lambda: one & other,
        lambda: one | other,
        lambda: ~one,
    ]
    return chance.choice(chance.choice([usual, usual, usual, odd]))()


def random_atom(chance: random.Random) -> pc.Expression:
    name = chance.choice(COMPARED)
    kind, pool = FIELDS[name]
    field = f(name) if isinstance(name, str) else f(*name)
    literal = pa.scalar(chance.choice([*pool, *pool, None]), kind)
    compare = chance.choice([pc.equal, *COMPARISONS])
    values = pa.array(chance.choices([*pool, *pool, None], k=chance.randint(0, 3)), kind)
    anything = f(chance.choice(list(POOLS)))
    ways: list[Callable[[], pc.Expression]] = [
        lambda: compare(field, literal),
        lambda: compare(pc.scalar(literal), field),
        lambda: pc.is_in(field, value_set=values, skip_nulls=chance.random() < 0.3),
        lambda: chance.choice([field, anything]).is_valid(),
        lambda: chance.choice([field, anything]).is_null(nan_is_null=chance.random() < 0.5),
        lambda: compare(f("x"), f(chance.choice(["h", "i"]))),
        lambda: random_arithmetic(chance, compare),
    ]
    return chance.choices(ways, [4, 2, 3, 1, 1, 1, 2])[0]()


def random_arithmetic(chance: random.Random, compare: Any) -> pc.Expression:
    name = chance.choice(NUMBERS)
    field = f(name) if isinstance(name, str) else f(*name)
    by = chance.choice([-1, 1, 2])
    changed = [
        field + by,
        field * by,
        pc.negate(field),
        pc.divide(pc.scalar(1.0), field),
        field.cast(pa.float64()),
        field.cast(pa.string()),
        pc.coalesce(field, by),
        pc.if_else(field > by, field, by),
    ]
    if chance.random() < 0.1:
        return pc.is_nan(field.cast(pa.float64()))
    return compare(chance.choice(changed), chance.choice([-1, 0, 1, 2, 2.5]))


@pytest.mark.seeded
@each_case("seed", range(examples(150)))
def test_every_row_that_matches_is_a_candidate(seed: int) -> None:
    chance = dice(seed)
    table = random_table(chance)
    file = write_file(
        table,
        row_group_size=chance.choice([4, 15, 100]),
        write_batch_size=chance.choice([1, 3]),
        use_dictionary=chance.choice([True, False]),
        data_page_version=chance.choice(["1.0", "2.0"]),
        bloom_filter_options=chance.choice([None, {name: {"ndv": 50} for name in "iusxhtdf"}]),
    )
    for _ in range(20):
        filters = random_filters(chance)
        found = file.candidates(filters)
        check_shape(file, found)
        try:
            assert not lost_rows(table, file, found, filters), filters
        except pa.ArrowException:
            continue  # a cast, or two types, that PyArrow itself can't do


def test_alternatives_read_the_bloom_filter_of_a_column_once() -> None:
    file = write_file(pa.table({"i": [1, 9]}), bloom_filter_options={"i": {"ndv": 50}})
    file.candidates([[("i", "==", 5)], [("i", "==", 7)]])  # `File` accepts no second question


# Where PyArrow's own pruning is wrong, or would be with bounds that leave out the nulls.
FLOATS = {"x": [1.0, NAN, 3.0], "c": [1.0, NAN, 1.0], "z": [0.0, -0.0, 0.0], "y": [1.0, 2.0, None]}
FLOATS["w"] = [-0.0, 5.0, -3.0]
SPECIAL = [
    ~(f("x") <= 5),
    ~(f("x") * 2 <= 50),
    f("c") != 1,
    ~(f("c") == 1),
    f("c") * 3 != 3,
    f("c").is_nan(),
    f("x").is_null(nan_is_null=True),
    ~f("x").is_valid() | f("c").is_null(nan_is_null=True),
    f("x").isin([NAN]),
    f("c").isin([NAN, 7.0]),
    ~f("x").isin([1.0, 3.0]),
    ~f("c").isin([1.0]),
    f("w") == 0.0,
    f("z").isin([0.0]),
    f("z").isin([-0.0]),
    pc.divide(pc.scalar(1.0), f("z")) < 0,
    pc.divide(pc.scalar(1.0), f("z")) > 0,
    f("y").is_null(),
    ~f("y").is_valid(),
    ~f("y").isin([1.0, 2.0]),
    f("y").isin([None, 9.0]),
    (f("y") > 10).is_null(),
    ~((f("y") > 10).is_valid()),
    pc.coalesce(f("y") > 10, True),
    pc.coalesce(f("y"), 50.0) > 10,
    pc.if_else(f("y").is_valid(), f("y"), 50.0) > 10,
    pc.xor(f("y").is_valid(), True),
    (f("y") < 10).is_valid() == False,  # noqa: E712 (an expression)
    pc.is_in(f("y") > 10, value_set=pa.array([None], pa.bool_())),
    f("c").cast(pa.string()) == "nan",
    f("c").cast(pa.string()).isin(["nan"]),
    [("c", "!=", 1)],
    [("x", "in", [NAN])],
    [("c", "in", [NAN, 7.0])],
    [("x", "not in", [1.0, 3.0])],
    [("c", "not in", [1.0])],
    [("w", "=", 0.0)],
    [("z", "in", [0.0])],
    [("z", "in", [-0.0])],
    [("y", "is null", None)],
    [("y", "not in", [1.0, 2.0])],
    [("y", "in", [None, 9.0])],
]


@each_case("filters", SPECIAL, ids=str)
@each_case("pages", [1, 10])
def test_nulls_nan_and_zeros_outside_of_bounds_are_not_pruned(filters: Filters, pages: int) -> None:
    table = pa.table({name: pa.array(values) for name, values in FLOATS.items()})
    blooms = {name: {"ndv": 10} for name in FLOATS}
    file = write_file(table, write_batch_size=pages, bloom_filter_options=blooms)
    assert filter_rows(table, filters).num_rows
    assert not lost_rows(table, file, file.candidates(filters), filters)


# --- pruning happens -----------------------------------------------------------------------------


def sorted_table(rows: int = 1000) -> pa.Table:
    """Return columns that rise with the row, half of them with nulls in every page."""
    numbers = range(rows)
    some = [None if n % 5 == 0 else n for n in numbers]
    start = dt.datetime(2026, 1, 1)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "some": pa.array(some, pa.int32()),
            "text": pa.array([None if n is None else f"{n:05}" for n in some]),
            "label": pa.array([f"{n:05}" for n in numbers]).dictionary_encode(),
            "price": pa.array([None if n is None else n / 2 for n in some]),
            "time": pa.array([start + dt.timedelta(hours=n) for n in numbers]),
            "day": pa.array([start.date() + dt.timedelta(days=n) for n in numbers]),
            "cost": pa.array([Decimal(n) / 4 for n in numbers], pa.decimal128(9, 2)),
            "inner": pa.array([None if n is None else {"zip": n} for n in some]),
            "list": pa.array([[n] for n in numbers]),
        }
    )


START = dt.datetime(2026, 1, 1)
POINTS = [
    [("id", "=", 333)],
    [("id", "in", [333, 5000])],
    [("id", ">", 331), ("id", "<", 334)],
    [("some", "==", 333)],
    [("some", "in", [333])],
    [("some", "=", 333), ("some", "is not null", None)],
    [("text", "=", "00333")],
    [("label", "=", "00333")],
    [("price", "=", 166.5)],
    [("price", ">", 166), ("price", "<", 167)],
    [("time", "=", START + dt.timedelta(hours=333))],
    [("day", "=", START.date() + dt.timedelta(days=333))],
    [("cost", "=", Decimal("83.25"))],
    [(("inner", "zip"), "=", 333)],
    [[("id", "=", 333), ("list", "is not null", None)], [("id", "=", 333), ("price", "<", 3)]],
    [("id", ">=", 330), ("text", "<", "00334")],
    [[("id", "=", 333)], [("id", "in", {333, 334}), ("some", "<", 0)]],
    f("id") == 333,
    pc.scalar(333) == f("id"),
    f("id").isin([333, 5000]),
    (f("id") > 331) & (f("id") < 334),
    ~(f("id") != 333),
    f("time") == START + dt.timedelta(hours=333),
    f("day") == START.date() + dt.timedelta(days=333),
    f("cost") == Decimal("83.25"),
    (f("id") == 333) & (f("list").is_valid() | (f("price") < 3)),
]
"""Filters for one row; expressions prune by columns without nulls that are not of floats."""


@each_case("filters", POINTS, ids=str)
def test_of_many_pages_one_is_left(filters: Filters) -> None:
    file = write_file(sorted_table(), row_group_size=200)
    assert file.candidates(filters) == {1: [(130, 140)]}
    assert {row_group for _, row_group, _ in file.asked} == {1}, "the others need no index"


def test_pages_of_columns_that_part_rows_differently_are_judged_together() -> None:
    table = pa.table({"a": range(100), "s": [f"{n:03}" * 40 for n in range(100)]})
    sink = io.BytesIO()
    pq.write_table(
        table, sink, write_page_index=True, write_batch_size=5, data_page_size=300,
        use_dictionary=False, compression="none",
    )  # fmt: skip
    file = File(sink.getvalue())
    starts = [
        [page.first_row_index for page in (file.read_offset_index(0, c) or new("")).page_locations]
        for c in (0, 1)
    ]
    assert starts[0] != starts[1]
    (ranges,) = file.candidates((f("a") == 42) & (f("s") < "044")).values()
    assert ranges == [(40, 45)]
    (ranges,) = file.candidates((f("a") < 3) | (f("s") > "099")).values()
    assert ranges == [(0, starts[0][1]), (95, 100)]


def test_null_pages_are_found_and_left_out() -> None:
    values = [1] * 10 + [None] * 10 + [3] * 10
    file = write_file(pa.table({"a": pa.array(values, pa.int64())}))
    assert file.candidates([("a", "is null", None)]) == {0: [(10, 20)]}
    assert file.candidates([("a", "is not null", None)]) == {0: [(0, 10), (20, 30)]}
    assert file.candidates([("a", ">=", 0)]) == {0: [(0, 10), (20, 30)]}


def test_only_row_groups_asked_for_are_judged() -> None:
    file = write_file(sorted_table(), row_group_size=200)
    assert file.candidates([("id", ">=", 0)], row_groups=[3, 1]) == {3: [(0, 200)], 1: [(0, 200)]}
    assert file.candidates([("id", ">=", 0)], row_groups=[]) == {}


def test_without_indexes_statistics_judge_alone() -> None:
    file = write_file(sorted_table(), row_group_size=200, write_page_index=False)
    assert file.candidates([("some", "=", 333)]) == {1: [(0, 200)]}
    assert not file.asked


def test_a_filter_of_other_columns_opens_nothing() -> None:
    file = write_file(sorted_table(), row_group_size=200)
    file.candidates(f("list").is_valid())
    assert not file.asked


@pytest.mark.parametrize(
    "expression", [f(0) == 333, f("id") == "text", f("id").cast("bool")], ids=str
)
def test_what_is_not_understood_prunes_nothing(expression: pc.Expression) -> None:
    file = write_file(sorted_table(), row_group_size=500)
    assert file.candidates(expression) == {0: [(0, 500)], 1: [(0, 500)]}


@pytest.mark.parametrize("filters", ["id = 3", 3, {"id": 3}], ids=str)
def test_a_filter_of_another_type_is_a_type_error(filters: Any) -> None:
    with pytest.raises(TypeError, match="pyarrow expression or tuples, not"):
        as_filter(filters)


WRONG = [
    [], [[]], [("id", "=")], ["id"], [("id", "~", 3)], [("id", "is null", 3)],
    [[("id", "=", 1)], []],
]  # fmt: skip


@pytest.mark.parametrize("filters", WRONG, ids=str)
def test_tuples_that_make_no_condition_are_an_error(filters: Any) -> None:
    with pytest.raises(ValueError, match="filters"):
        as_filter(filters)


def test_partitions_and_missing_fields_take_their_types_from_the_schema() -> None:
    file = write_file(sorted_table(), row_group_size=200)
    own = pq.read_schema(pa.BufferReader(file.data))
    schema = own.append(pa.field("year", pa.int32())).append(pa.field("new", pa.string()))
    wanted = [("year", "=", 2026), ("id", "=", 333)]
    one_page = {1: [(130, 140)]}
    how: dict[str, Any] = {"schema": schema, "partition": f("year") == 2026}
    assert file.candidates(wanted, **how) == one_page
    assert file.candidates([*wanted, ("new", "is null", None)], **how) == one_page
    assert file.candidates(wanted, schema=schema, partition=f("year") == 2025) == {}
    assert len(file.candidates(wanted)) == 5  # types unknown
    other = pa.schema([pa.field("id", pa.float64()), pa.field("year", pa.int32())])
    assert len(file.candidates(wanted, schema=other)) == 5  # another type than the file's


# --- bloom filters -------------------------------------------------------------------------------

EVEN: dict[str, tuple[pa.DataType, Any]] = {
    "i8": (pa.int8(), lambda n: n % 120 - 60),
    "u32": (pa.uint32(), lambda n: n * 40_000_000),
    "u64": (pa.uint64(), lambda n: n << 57),
    "i64": (pa.int64(), lambda n: n - 50),
    "f32": (pa.float32(), lambda n: n + 0.5),
    "f64": (pa.float64(), lambda n: n / 10 - 3),
    "text": (pa.string(), lambda n: f"v{n:03}"),
    "large": (pa.large_binary(), lambda n: b"v%03d" % n),
    "view": (pa.string_view(), lambda n: f"v{n:03}"),
    "fixed": (pa.binary(4), lambda n: b"v%03d" % n),
    "label": (pa.dictionary(pa.int8(), pa.string()), lambda n: f"v{n:03}"),
    "day": (pa.date32(), lambda n: DAY + dt.timedelta(n)),
    "clock": (pa.time32("ms"), lambda n: dt.time(n // 60, n % 60)),
    "fine": (pa.time64("ns"), lambda n: dt.time(n // 60, n % 60)),
    "time": (pa.timestamp("ns"), lambda n: dt.datetime(2026, 1, 1, n // 60, n % 60)),
    "zone": (pa.timestamp("ms", "Europe/Berlin"), lambda n: dt.datetime(2026, 1, 1, n // 60)),
}


def scalar(kind: pa.DataType, value: Any) -> Any:
    """Return a constant of a column's type, or of its dictionary's."""
    return pa.scalar(value, kind.value_type if pa.types.is_dictionary(kind) else kind)


@each_case("name", EVEN, quick=one_in(2))
def test_a_bloom_filter_prunes_what_is_absent_and_nothing_that_is_there(name: str) -> None:
    kind, value = EVEN[name]
    even = [value(n) for n in range(0, 100, 2)] if name != "zone" else [value(n) for n in (0, 120)]
    odd = [value(n) for n in range(1, 99, 2)] if name != "zone" else [value(60)]
    values = pa.array(even, scalar(kind, even[0]).type).cast(kind)
    table = pa.table({"a": values})
    file = write_file(table, bloom_filter_options={"a": {"ndv": 1000, "fpp": 0.0001}})
    for there in even:
        assert file.candidates([("a", "=", scalar(kind, there))]), there
        assert file.candidates([("a", "in", [scalar(kind, there), scalar(kind, odd[0])])])
    absent = [not file.candidates([("a", "=", scalar(kind, other))]) for other in odd]
    assert all(absent), "bounds don't tell, so the filter did"
    assert file.asked == [("bloom filter", 0, 0)], "no page index after it"
    assert not file.candidates([("a", "=", scalar(kind, odd[0])), ("a", "is not null", None)])
    if name != "view":  # PyArrow can't look for these in a set
        assert not file.candidates([("a", "in", [scalar(kind, other) for other in odd])])


def even_file(**options: Any) -> File:
    table = pa.table({"a": pa.array(range(0, 100, 2), pa.int64()), "b": ["x", "z"] * 25})
    return write_file(
        table, bloom_filter_options={"a": {"ndv": 1000}, "b": {"ndv": 1000}}, **options
    )


A, B = ("a", "=", 33), ("b", "=", "y")  # absent, and bounds don't show it
BLOOM_ANSWERS: list[tuple[Filters, bool]] = [
    ([A, ("b", "=", "x")], False),
    ([("a", "=", 34), B], False),
    ([[A], [B]], False),
    ([[A], [("b", "=", "x")]], True),
    ([[A], [("b", "is not null", None)]], True),
    ([("a", "!=", 33)], True),
    ([("a", "not in", [33])], True),
    ([[("a", "in", [34])], [A]], True),
    ([("a", "=", 33.0)], True),  # its encoding is no matter of course
    ([("a", "in", [33, None])], True),
    (f("a") == 33, True),  # PyArrow does not expose the constant
]


@each_case(("filters", "passes"), BLOOM_ANSWERS, ids=str)
def test_bloom_filters_answer_where_the_filter_lets_them(filters: Filters, passes: bool) -> None:
    assert bool(even_file().candidates(filters)) == passes


def test_bloom_filters_are_not_asked_where_bounds_have_judged() -> None:
    file = even_file(row_group_size=10)
    assert len(file.candidates([("a", "=", 34)])) == 1
    assert [ask for ask in file.asked if ask[0] == "bloom filter"] == [("bloom filter", 1, 0)]
    one = pa.table({"a": [7] * 20})
    file = write_file(one, bloom_filter_options={"a": {"ndv": 10}})
    assert file.candidates([("a", "=", 7)])
    assert ("bloom filter", 0, 0) not in file.asked


@pytest.mark.parametrize("change", ["algorithm", "hash", "compression", 0, 31, 33])
def test_a_bloom_filter_of_an_unknown_kind_or_of_torn_blocks_prunes_nothing(
    change: str | int,
) -> None:
    class Changed(File):
        def read_bloom_filter(
            self, row_group: int, column: int
        ) -> tuple[ThriftStruct, bytes] | None:
            found = super().read_bloom_filter(row_group, column)
            assert found is not None
            if isinstance(change, int):
                return found[0], bytes(change)
            setattr(found[0], change, copy(getattr(found[0], change), keep=()))
            return found

    assert not even_file().candidates([A])
    assert Changed(even_file().data).candidates([A])


def test_duckdb_and_this_hash_alike(tmp_path: Path) -> None:
    path = tmp_path / "duck.parquet"
    types = ["SMALLINT", "INTEGER", "BIGINT", "UINTEGER", "UBIGINT", "DOUBLE", "FLOAT"]
    numbers = ", ".join(f"(2 * (i % 50))::{t} AS {t}" for t in types)
    duckdb.sql(
        f"COPY (SELECT {numbers}, 'v' || (2 * (i % 50)) AS VARCHAR, "
        "date '2026-01-01' + (2 * (i % 50))::INT AS DATE, "
        "timestamp '2026-01-01' + to_hours((2 * (i % 50))::INT) AS TIMESTAMP "
        f"FROM range(5000) r(i)) TO '{path}' (FORMAT parquet)"
    )
    file = File(path.read_bytes())
    table = pq.read_table(path)
    for name in table.column_names:
        kind = table.schema.field(name).type
        present = set(table[name].to_pylist())
        if name == "VARCHAR":
            absent = [f"v{n}" for n in range(1, 99, 2)]
        elif name in ("DATE", "TIMESTAMP"):
            step = dt.timedelta(1) if name == "DATE" else dt.timedelta(hours=1)
            absent = [value + step for value in sorted(present)[:-1]]
        else:
            absent = [value + 1 for value in sorted(present)[:-1]]
        for value in present:
            assert file.candidates([(name, "=", pa.scalar(value, kind))]), (name, value)
        pruned = [not file.candidates([(name, "=", pa.scalar(value, kind))]) for value in absent]
        assert sum(pruned) > 40, name


@pytest.mark.seeded
@each_case("seed", range(examples(50)))
def test_page_indexes_of_polars_lose_no_row(seed: int, tmp_path: Path) -> None:
    chance = dice(seed)
    table = pa.concat_tables([random_table(chance) for _ in range(5)])
    frame = pl.from_arrow(table.drop_columns(["k", "f"]))
    assert isinstance(frame, pl.DataFrame)
    path = tmp_path / "polars.parquet"
    frame.write_parquet(path, row_group_size=chance.choice([7, 50]), data_page_size=30)
    file, table = File(path.read_bytes()), pq.read_table(path)
    for _ in range(20):
        filters = random_filters(chance)
        try:
            found = file.candidates(filters)
        except ValueError as error:
            assert re.search(r"does not exist: .*Name\([kf]\)", str(error))  # noqa: PT017
            continue
        try:
            assert not lost_rows(table, file, found, filters), filters
        except pa.ArrowException:
            continue  # a cast, or two types, that PyArrow itself can't do


def test_page_indexes_of_polars_prune(tmp_path: Path) -> None:
    path = tmp_path / "polars.parquet"
    frame = pl.DataFrame({"text": [f"{n:05}" for n in range(1000)]})
    frame.write_parquet(path, row_group_size=500, data_page_size=100)
    file = File(path.read_bytes())
    ((row_group, ranges),) = file.candidates(f("text") == "00777").items()
    assert row_group == 1
    assert sum(stop - start for start, stop in ranges) < 100


# --- bytes that make no sense --------------------------------------------------------------------


class Damaged(File):
    """A file whose indexes are altered on the way."""

    def __init__(self, data: bytes, struct: str, change: Callable[[Any], None]) -> None:
        super().__init__(data)
        self.struct, self.change = struct, change

    def read_column_index(self, row_group: int, column: int) -> ThriftStruct | None:
        return self._apply_change("ColumnIndex", super().read_column_index(row_group, column))

    def read_offset_index(self, row_group: int, column: int) -> ThriftStruct | None:
        return self._apply_change("OffsetIndex", super().read_offset_index(row_group, column))

    def _apply_change(self, struct: str, value: ThriftStruct) -> ThriftStruct:
        if struct == self.struct:
            self.change(value)
        return value


def set_row(page: int, row: int) -> Callable[[Any], None]:
    return lambda index: setattr(index.page_locations[page], "first_row_index", row)


DAMAGES: dict[str, tuple[str, Callable[[Any], None]]] = {
    "a page less": ("OffsetIndex", lambda i: i.page_locations.pop()),
    "no page": ("OffsetIndex", lambda i: i.page_locations.clear()),
    "no first row": ("OffsetIndex", set_row(0, 1)),
    "negative rows": ("OffsetIndex", set_row(3, -5)),
    "rows backwards": ("OffsetIndex", set_row(3, 15)),
    "rows twice": ("OffsetIndex", set_row(3, 20)),
    "past the end": ("OffsetIndex", set_row(-1, 1000)),
    "bounds of a page more": ("ColumnIndex", lambda i: i.max_values.append(b"")),
    "bounds of a page less": ("ColumnIndex", lambda i: i.min_values.pop()),
    "null pages": ("ColumnIndex", lambda i: i.null_pages.clear()),
    "null counts": ("ColumnIndex", lambda i: i.null_counts.clear()),
}


@each_case("damage", DAMAGES.values(), ids=DAMAGES)
def test_an_index_of_other_pages_prunes_nothing(
    damage: tuple[str, Callable[[Any], None]],
) -> None:
    """Readers ignore an index that they cannot use."""
    file = Damaged(write_file(sorted_table()).data, *damage)
    assert file.candidates(f("id") == 333) == {0: [(0, 1000)]}


@each_case("name", ["id", "some", "price", "time", "day", "cost", "inner"])
@each_case("size", [0, 3, 9, 40])
def test_bounds_of_a_wrong_length_crash_nothing(name: str, size: int) -> None:
    """PyArrow decodes bounds where no exception is caught."""

    def change(index: Any) -> None:
        index.min_values = [bytes(size)] * len(index.min_values)
        index.max_values = [b"\xff" * size] * len(index.max_values)

    table = sorted_table()
    file = Damaged(write_file(table).data, "ColumnIndex", change)
    for md in (chunk.meta_data for chunk in file.metadata.row_groups[0].columns):
        md.statistics.min_value = md.statistics.min = bytes(size)
        md.statistics.max_value = md.statistics.max = b"\xff" * size
    field = (name, "zip") if name == "inner" else name
    values = table.flatten()["inner.zip" if name == "inner" else name]
    filters = [(field, "=", values[333])]
    assert not lost_rows(table, file, file.candidates(filters), filters)


@pytest.mark.parametrize("count", [-1, 1001, 1000, 0])
def test_null_counts_that_contradict_bounds_hide_no_row(count: int) -> None:
    table = sorted_table()
    file = write_file(table)
    for chunk in file.metadata.row_groups[0].columns:
        chunk.meta_data.statistics.null_count = count
    for name, value in {"some": 333, "text": "00333", "id": 333}.items():
        for filters in ([(name, "=", value)], f(name) == value):
            assert not lost_rows(table, file, file.candidates(filters), filters)


def test_a_chunk_of_another_type_than_its_schema_is_not_judged() -> None:
    file = write_file(sorted_table())
    file.metadata.row_groups[0].columns[0].meta_data.type = 6
    assert file.candidates(f("id") == 333) == {0: [(0, 1000)]}
    assert file.candidates(f("id") == 3333) == {0: [(0, 1000)]}


def test_a_row_group_of_too_many_intervals_is_taken_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_file(sorted_table())
    assert file.candidates(f("id") == 333) == {0: [(330, 340)]}
    monkeypatch.setattr(pruning, "MAX_EVALUATIONS", 99)
    assert file.candidates(f("id") == 333) == {0: [(0, 1000)]}


# --- reading expressions -------------------------------------------------------------------------


ODD_NAMES = [
    "",
    "a.b",
    "it's",
    'say "x"',
    "two\nlines",
    "tab\t",
    "é",
    "数",
    "end",
    "call",
    "a" * 9999,
]


@each_case("name", ODD_NAMES)
def test_fields_of_any_name_are_found(name: str) -> None:
    table = pa.table({name: range(100), "other": range(100), "third": range(100)})
    for filters in ((f(name) == 42) & f("other").is_valid(), [(name, "=", 42), ("other", ">", 0)]):
        assert read_fields(filters, name, "other", "third") == {(name,), ("other",)}
        assert write_file(table).candidates(filters) == {0: [(40, 50)]}
    assert read_fields(pc.scalar(name) == name, name) == set()
    assert read_fields([((name, "inner"), "=", 1)]) == {(name, "inner")}


def test_fields_are_found_wherever_they_stand() -> None:
    expression = pc.if_else(
        f("a").isin(range(1000)), f("b").cast(pa.int32()) + f("c"), pc.scalar(None)
    )
    assert read_fields(expression == f("e"), *"abcde") == {("a",), ("b",), ("c",), ("e",)}


@pytest.mark.parametrize("expression", [f(0) == 1, f(("a", 0)) == 1], ids=str)
def test_fields_by_position_are_not_known(expression: pc.Expression) -> None:
    assert read_fields(expression, "a", "b") is None


def test_long_chains_prune_and_deep_nesting_is_read() -> None:
    chain = f("id") == 0
    for n in range(2000):
        chain = chain | (f("id") == n)
    assert read_fields(chain, "id", "i") == {("id",)}
    file = write_file(sorted_table(2500), row_group_size=500)
    assert file.candidates(chain) == {r: [(0, 500)] for r in range(4)}
    terms = [[("id", "=", n)] for n in range(2000)]
    assert file.candidates(terms) == {r: [(0, 500)] for r in range(4)}


def test_choosing_rows_touches_only_the_columns_of_the_filter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A footer of thousands of columns would be copied, and a schema of them built one by one."""
    noted: list[object] = []
    make_judge = pruning._make_judge

    def note_chunks(source: Source, plan: ReadPlan) -> PlanParts:
        noted.append(len(plan.chunks))
        return PlanParts(source, plan)

    def note_fields(*args: Any) -> Any:
        judge = make_judge(*args)
        assert judge is not None
        noted.append(judge.schema.names)
        return judge

    monkeypatch.setattr(file_scan, "PlanParts", note_chunks)
    monkeypatch.setattr(pruning, "_make_judge", note_fields)
    table = pa.table({f"c{n}": [1, 2] for n in range(40)})
    table = table.append_column("s", pa.array([{"x": 1, "y": 2}] * 2))
    out = io.BytesIO()
    mc.write_table(table, out, FOOTER_KEY, row_group_size=1)
    for wanted, chunks, name in ((pc.field("c3") == 2, 2, "c3"), (pc.field("s", "x") == 1, 4, "s")):
        found = mc.read_table(out.getvalue(), FOOTER_KEY, filters=wanted)
        assert found == table.filter(wanted)
        assert noted == [chunks, [name]]
        noted.clear()

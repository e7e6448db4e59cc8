"""Filters: neither loses a row by the bounds and partitions that the other one has written.

Values are never null here: to the evaluator of Iceberg's generic reader null is the least value,
to SQL, Spark and modcrypt it is no value at all.
"""

from __future__ import annotations

import datetime
import decimal
import random
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg import expressions as py

from tests.support.cases import each_case, one_in
from tests.support.iceberg.java_judge import as_json, plain_rows
from tests.support.iceberg.java_tables import Both, both, delete, partition_spec, schema
from tests.support.randomness import dice

__all__ = ["both"]  # a fixture

Filter: TypeAlias = tuple[Any, dict[str, Any], pc.Expression]
"""One filter as pyiceberg, Java and PyArrow have it."""

COLUMNS = schema(
    ("id", "long"),
    ("name", "string"),
    ("score", "double"),
    ("day", "date"),
    ("price", "decimal(9, 2)"),
    ("at", "timestamptz"),
    ("flag", "boolean"),
)
SPECS: Mapping[str, dict[str, Any] | None] = {
    "none": None,
    "identity": partition_spec((2, "identity", "name")),
    "bucket": partition_spec((1, "bucket[3]", "id_bucket")),
    "year and truncate": partition_spec((4, "year", "day_year"), (2, "truncate[2]", "name_trunc")),
    "day": partition_spec((6, "day", "at_day")),
    "decimals": partition_spec((5, "truncate[10]", "price_trunc")),
}
SMALL_PAGES = {
    "write.parquet.row-group-check-min-record-count": "10",
    "write.parquet.page-row-limit": "5",
}


def value(column: str, draw: random.Random) -> Any:
    n = draw.randrange(40)
    return {
        "id": n,
        "name": draw.choice(["", "a", f"abcdefghijklmnopqrstuvwxyz{n}", f"\xe9{n % 3}"]),
        "score": draw.choice((1, -1)) * (1 + n / 2),
        "day": datetime.date(2020 + n % 5, n % 9 + 1, n % 20 + 1),
        "price": decimal.Decimal(n * 101 - 2000).scaleb(-2),
        "at": datetime.datetime(2026, 1, n % 9 + 1, n % 10, tzinfo=datetime.UTC),
        "flag": n % 2 == 0,
    }[column]


def some_rows(draw: random.Random, partitioned: bool) -> list[dict[str, Any]]:
    """Return rows for several pages of a file, or for a few files of a partitioned table."""
    names = [field["name"] for field in COLUMNS["fields"]]
    count = draw.randrange(5, 10) if partitioned else draw.randrange(10, 25)
    return [{name: value(name, draw) for name in names} for _ in range(count)]


COMPARED = {
    "eq": (py.EqualTo, lambda a, b: a == b),
    "not-eq": (py.NotEqualTo, lambda a, b: a != b),
    "lt": (py.LessThan, lambda a, b: a < b),
    "lt-eq": (py.LessThanOrEqual, lambda a, b: a <= b),
    "gt": (py.GreaterThan, lambda a, b: a > b),
    "gt-eq": (py.GreaterThanOrEqual, lambda a, b: a >= b),
}


def some_filter(draw: random.Random, depth: int = 0) -> Filter:
    if depth < 3 and draw.random() < 0.4:
        left, right = some_filter(draw, depth + 1), some_filter(draw, depth + 1)
        both = {"left": left[1], "right": right[1]}
        if draw.random() < 0.5:
            return py.And(left[0], right[0]), {"type": "and", **both}, left[2] & right[2]
        return py.Or(left[0], right[0]), {"type": "or", **both}, left[2] | right[2]
    if depth < 3 and draw.random() < 0.1:
        child = some_filter(draw, depth + 1)
        return py.Not(child[0]), {"type": "not", "child": child[1]}, ~child[2]
    column = draw.choice([field["name"] for field in COLUMNS["fields"]])
    kind = draw.choice(["eq", "not-eq"] if column == "flag" else list(COMPARED))
    ours, arrow = COMPARED[kind]
    literal = value(column, draw)
    reported = {"type": kind, "term": column, "value": as_json(literal)}
    return ours(column, literal), reported, arrow(pc.field(column), pa.scalar(literal))  # type: ignore[no-untyped-call]  # one lambda for all


SLOW = pytest.mark.slow  # Java reads for each filter; `test_java_writes` reads both writers' files


@pytest.mark.seeded
@pytest.mark.parametrize("writer", ["java", pytest.param("modcrypt", marks=SLOW)])
@each_case("name", SPECS, quick=one_in(2))
def test_filters_find_the_same_rows(both: Both, name: str, writer: str) -> None:
    draw = dice(f"{name} {writer}")
    both.create(COLUMNS, spec=SPECS[name], properties=SMALL_PAGES if writer == "java" else {})
    for file_format in ("parquet", "avro", "parquet"):
        rows = some_rows(draw, SPECS[name] is not None)
        if writer == "java":
            both.commit({"do": "append", "rows": rows, "format": file_format})
        else:
            table = both.table()
            table = table.append(pa.Table.from_pylist(rows, table.scan().schema))
            both.metadata = Path(table.place.path)
    both.commit(delete(*range(0, 40, 9)))
    table = both.table()
    everything = table.scan()
    found = 0
    for _ in range(5):
        ours, theirs, arrow = some_filter(draw)
        expected = plain_rows(everything.filter(arrow))
        assert plain_rows(table.scan(filters=ours)) == expected, theirs
        assert both.java.read(both.metadata, filter=theirs) == expected, theirs
        found += 0 < len(expected) < everything.num_rows
    assert found > 1


UUIDS = [uuid.UUID(int=n) for n in (0, 2**127, 2**127 - 1, (5 << 64) + 2**63, (5 << 64) + 1)]


@pytest.mark.parametrize("writer", ["java", "modcrypt"])
def test_uuids_that_rows_are_partitioned_by(both: Both, writer: str) -> None:
    """Java orders them as signed numbers, others as bytes: either has bounds of its own."""
    both.create(schema(("id", "long"), ("u", "uuid")), spec=partition_spec((2, "identity", "u")))
    for some in (UUIDS[:3], UUIDS[3:]):
        rows = [{"id": identifier.int % 1000, "u": str(identifier)} for identifier in some]
        if writer == "java":
            both.commit({"do": "append", "rows": rows})
        else:
            keys = pa.array([identifier.bytes for identifier in some], pa.binary(16))
            data = [pa.array([row["id"] for row in rows]), keys.cast(pa.uuid())]
            shape = pa.schema([pa.field("id", pa.int64(), nullable=False), ("u", pa.uuid())])
            table = both.table().append(pa.table(data, shape))
            both.metadata = Path(table.place.path)
    for identifier in UUIDS:
        reported = {"type": "eq", "term": "u", "value": str(identifier)}
        expected = [{"id": identifier.int % 1000, "u": str(identifier)}]
        assert both.java.read(both.metadata, filter=reported) == expected
        assert plain_rows(both.table().scan(filters=f"u = '{identifier}'")) == expected
        least = both.table().scan(filters=f"u >= '{identifier}'")
        assert least.num_rows == sum(other.int >= identifier.int for other in UUIDS)

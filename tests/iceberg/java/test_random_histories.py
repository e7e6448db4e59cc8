"""Random histories of a table, made by Java and modcrypt in turns: both find the rows there are.

Which these are a model here knows: rows by their ids, with values as `plain_rows` spells them.
"""

from __future__ import annotations

import datetime
import decimal
import json
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import pyarrow as pa
import pytest
from pyiceberg import expressions as py

from modcrypt.iceberg import IcebergTable, rotate_table, verify_table
from tests.support.iceberg.builder import field, struct
from tests.support.iceberg.java_judge import Judge, plain_rows
from tests.support.iceberg.java_tables import Both, delete, ids, schema
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.randomness import dice

INNER = struct(field(101, "x", "int", required=True), field(102, "y", "string"))
COLUMNS = schema(
    ("id", "long"),
    ("n", "int"),
    ("f", "float"),
    ("price", "decimal(9, 2)"),
    ("u", "uuid"),
    ("name", "string"),
    ("day", "date"),
    ("at", "timestamp_ns"),
    ("s", INNER),
)
UUIDS = [str(uuid.UUID(int=n)) for n in (0, 5, 2**63, 2**127, 2**128 - 1)]
VALUES: Mapping[str, list[Any]] = {
    "n": [None, 0, -1, 2**31 - 1],
    "f": [None, 0.5, -1.5, "NaN", "Infinity"],
    "price": [None, "0.00", "-0.01", "9999999.99", "-1.28"],
    "u": [None, *UUIDS],
    "name": [None, "", "a", "\N{LATIN SMALL LETTER E WITH ACUTE}", "z" * 30],
    "day": [None, "1969-12-31", "2026-02-28"],
    "at": [None, "1969-12-31T23:59:59.999999", "2026-02-28T12:00:00.000001"],
    "s": [None, {"x": 1, "y": None}, {"x": -2, "y": "b"}],
    "extra": [None, 7, 8],
}
CHANGES: list[dict[str, Any]] = [
    {"promote": [["n", "long"]]},
    {"promote": [["f", "double"]]},
    {"promote": [["price", "decimal(12, 2)"]]},
    {"rename": [["name", "title"]]},
    {"drop": ["day"]},
    {"add": [["extra", "long", 7]]},  # the default of what is left out, too
    {"first": ["s"]},
]
PARTITIONS: list[dict[str, Any]] = [
    {"add": [["u", "identity"]]},
    {"add": [["price", "identity"]]},
    {"add": [["n", "identity"]]},
    {"add": [["id", "bucket", 3]]},
    {"remove": ["u"]},
]
WHAT: Sequence[Literal["mek", "kek", "dek"]] = ("dek", "dek", "kek", "mek")
ARROW: Mapping[str, Callable[[str], Any]] = {
    "price": decimal.Decimal,
    "u": lambda text: uuid.UUID(text).bytes,
    "day": datetime.date.fromisoformat,
    "at": datetime.datetime.fromisoformat,
    "f": float,
}


class History:
    """A table, and what it should have."""

    def __init__(self, both: Both, draw: random.Random) -> None:
        self.both, self.draw, self.next = both.create(COLUMNS), draw, 0
        self.rows: dict[int, dict[str, Any]] = {}
        self.names = {field["name"]: field["name"] for field in COLUMNS["fields"]}
        self.changes = draw.sample(CHANGES, len(CHANGES))
        self.partitions = PARTITIONS[:2] + draw.sample(PARTITIONS[2:], len(PARTITIONS) - 2)

    def new_rows(self) -> dict[int, dict[str, Any]]:
        made = {}
        for _ in range(self.draw.randint(1, 6)):
            reported = {name: self.draw.choice(VALUES[name]) for name in self.names if name != "id"}
            made[self.next] = {"id": self.next, **reported}
            self.next += 1
        return made

    def to_json(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return {now: row[name] for name, now in self.names.items()}

    # --- what is done ---------------------------------------------------------------------------

    def java_appends(self) -> None:
        new = self.new_rows()
        rows, form = (
            [self.to_json(row) for row in new.values()],
            self.draw.choice(["parquet", "avro"]),
        )
        self.both.commit({"do": "append", "rows": rows, "format": form})
        self.rows |= new

    def modcrypt_appends(self) -> None:
        new, table = self.new_rows(), self.both.table()
        left = self.draw.sample(sorted(self.names.keys() - {"id"}), self.draw.randint(0, 3))
        for row in new.values():
            row |= {name: 7 if name == "extra" else None for name in left}
        reported = {self.names[name] for name in left}
        kinds = pa.schema([field for field in table.scan().schema if field.name not in reported])
        rows = [self.to_json({k: _arrow(k, v) for k, v in row.items()}) for row in new.values()]
        columns = [pa.array([row[field.name] for row in rows], field.type) for field in kinds]
        table = table.append(pa.table(columns, kinds))
        self.both.metadata = Path(table.place.path)
        self.rows |= new

    def modcrypt_deletes(self) -> None:
        before, lineage = self.both.table(), self.lineage()
        gone = self.draw.sample(sorted(self.rows), min(2, len(self.rows)))
        condition: py.BooleanExpression = py.AlwaysFalse()
        for id_ in gone:
            condition = py.Or(condition, equal("id", id_))
        self.changed(before.delete(condition), lineage, gone)
        for id_ in gone:
            del self.rows[id_]

    def modcrypt_overwrites(self) -> None:
        name = self.draw.choice(sorted(self.names.keys() - {"id", "s", "at", "f"}))
        lineage, new, table = self.lineage(), self.new_rows(), self.both.table()
        condition = py.IsNull(term=py.Reference(self.names[name]))
        gone = [id_ for id_, row in self.rows.items() if row[name] is None]
        self.changed(table.overwrite(self.arrow(new, table), condition), lineage, gone)
        self.rows = {id_: row for id_, row in self.rows.items() if id_ not in gone} | new

    def modcrypt_upserts(self) -> None:
        lineage, new, table = self.lineage(), self.new_rows(), self.both.table()
        old = self.draw.sample(sorted(self.rows), min(2, len(self.rows)))
        for id_, row in zip(old, list(new.values()), strict=False):
            del new[row["id"]]
            new[id_] = {**row, "id": id_}
        done = table.upsert(self.arrow(new, table), ["id"])
        same = [id_ for id_ in old if id_ in new and self.rows[id_] == new[id_]]
        assert done.rows_inserted == len(new) - len([id_ for id_ in old if id_ in new])
        updated = [id_ for id_ in old if id_ in new and id_ not in same]
        self.changed(done.table, lineage, updated, {id_: lineage[id_][0] for id_ in updated})
        self.rows |= new

    def lineage(self) -> dict[int, tuple[int, int]]:
        """Return the row ids and last changes of the rows, as Java has them."""
        found = self.both.java.read(self.both.metadata, lineage=True)
        both = ("_row_id", "_last_updated_sequence_number")
        return {row["id"]: (row[both[0]], row[both[1]]) for row in found}

    def changed(
        self,
        table: IcebergTable,
        before: Mapping[int, tuple[int, int]],
        gone: Sequence[int],
        updated: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        """Compare the lineage of rows that stay, and the ids of those that were updated."""
        self.both.metadata = Path(table.place.path)
        after = self.lineage()
        kept = {id_: old for id_, old in before.items() if id_ not in gone}
        assert kept.items() <= after.items()
        assert {id_: after[id_][0] for id_ in updated} == updated

    def arrow(self, rows: Mapping[int, Mapping[str, Any]], table: IcebergTable) -> pa.Table:
        kinds = table.scan().schema
        reported = [
            self.to_json({k: _arrow(k, v) for k, v in row.items()}) for row in rows.values()
        ]
        columns = [pa.array([row[field.name] for row in reported], field.type) for field in kinds]
        return pa.table(columns, kinds)

    def java_deletes(self) -> None:
        gone = self.draw.sample(sorted(self.rows), min(2, len(self.rows)))
        if gone:
            self.both.commit(delete(*gone))
        self.rows = {id_: row for id_, row in self.rows.items() if id_ not in gone}

    def modcrypt_rotates(self) -> None:
        before = self.both.java.read(self.both.metadata, lineage=True)
        table = rotate_table(self.both.table(), self.draw.choice(WHAT)).table
        self.both.metadata = Path(table.place.path)
        assert self.both.java.read(self.both.metadata, lineage=True) == before

    def change_schema(self) -> None:
        if self.changes:
            change = self.changes.pop()
            self.both.commit({"do": "schema", **change})
            for old, new in change.get("rename", []):
                self.names[old] = new
            for name in change.get("drop", []):
                del self.names[name]
            for name, _, default in change.get("add", []):
                self.names[name] = name
                self.rows = {id_: {**row, name: default} for id_, row in self.rows.items()}

    def change_partitions(self) -> None:
        if self.partitions:
            self.both.commit({"do": "spec", **self.partitions.pop(0)})

    def rewrite_manifests(self) -> None:
        if self.rows:
            self.both.commit({"do": self.draw.choice(["rewrite-manifests", "compact"])})

    # --- the check -----------------------------------------------------------------------------

    def check(self) -> None:
        table = self.both.table()
        expected = [self.to_json(row) for row in self.rows.values()]
        for found in (plain_rows(table.scan()), self.both.java.read(self.both.metadata)):
            assert sorted(found, key=_key) == sorted(expected, key=_key)
        name = self.draw.choice(sorted(self.names.keys() - {"id", "s", "at"}))
        value = self.draw.choice(
            [value for value in VALUES[name] if value not in (None, "NaN", "Infinity")]
        )
        here = [id_ for id_, row in self.rows.items() if row[name] == value]
        literal = uuid.UUID(value) if name == "u" else _arrow(name, value)
        same = py.EqualTo(self.names[name], literal)  # type: ignore[call-arg, arg-type]  # as its guide has it
        assert ids(plain_rows(table.scan(filters=same))) == here
        if name != "u":  # Java's bounds of columns and its comparison don't fit each other
            reported = {"type": "eq", "term": self.names[name], "value": value}
            assert ids(self.both.java.read(self.both.metadata, filter=reported)) == here
        nulls = [id_ for id_, row in self.rows.items() if row["s"] is None]
        assert ids(plain_rows(table.scan(columns=["id"], filters="s.x is null"))) == nulls


def equal(name: str, value: Any) -> py.BooleanExpression:
    return py.EqualTo(name, value)  # type: ignore[call-arg, arg-type]  # as its guide has it


def _arrow(name: str, value: Any) -> Any:
    return ARROW[name](value) if name in ARROW and value is not None else value


def _key(row: Mapping[str, Any]) -> str:
    return json.dumps(row, sort_keys=True)


STEPS: list[Callable[[History], None]] = [
    History.java_appends,
    History.modcrypt_appends,
    History.modcrypt_appends,
    History.java_deletes,
    History.modcrypt_deletes,
    History.modcrypt_overwrites,
    History.modcrypt_upserts,
    History.modcrypt_rotates,
    History.change_schema,
    History.change_schema,
    History.change_partitions,
    History.rewrite_manifests,
]


SLOW = pytest.mark.slow  # Java reads after each step


@pytest.mark.seeded
@pytest.mark.parametrize(  # each of which has found something
    "seed", [3, pytest.param(5, marks=SLOW), pytest.param(10, marks=SLOW)]
)
def test_histories(java: Judge, kms: SampleKms, tmp_path: Path, seed: int) -> None:
    draw = dice(seed)
    history = History(Both(java, kms, tmp_path / "table"), draw)
    for step in (History.change_partitions, *draw.choices(STEPS, k=12)):
        step(history)
        history.check()
    history.both.agree()  # in all snapshots
    assert verify_table(history.both.table()).ok

"""The operations that a judge chooses from: one table for each engine.

An operation is a name, the draw of a change, and what carries it out. The draws are JSON, so that
another process can repeat them. Those of modcrypt that this version lacks are left out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import pyarrow as pa

from modcrypt.iceberg import (
    IcebergTable,
    expire_history,
    prune_keys,
    remove_orphan_files,
    rotate_table,
)
from tests.support.iceberg.java_judge import Judge
from tests.support.iceberg.sample_kms import MASTERS
from tests.support.iceberg.table_races import NamedTable
from tests.support.spark.iceberg_spark import IcebergSpark
from tools.lake_judge.model import FIRST_COLUMNS, Change, Row, State

COUNTRIES = ["NO", "SE", "\N{LATIN CAPITAL LETTER O WITH STROKE}", "", "a b", None]
PRICES = [None, 0.0, -1.5, 2.5e300, 1e-300]
NOTES = [None, "", "x", "\N{LATIN SMALL LETTER U WITH DIAERESIS}" * 20]
MAX_COLUMNS = 6
BRANCH = "side"

TYPES = {"id": pa.int64(), "country": pa.string(), "price": pa.float64()}
SCHEMA = pa.schema(list(TYPES.items()))

Draw: TypeAlias = Callable[[State, random.Random], Change | None]
"""Returns None if the operation has nothing to work on."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """An operation of one engine.

    Attributes:
        name: Its engine and what it does.
        draw: Chooses the change that it makes.
        run: Makes the change, by the engine.
        may_race: Whether it may run while another writer is at work.
        may_fail: Whether the state of the table may forbid it.
    """

    name: str
    draw: Draw
    run: Callable[[Any, Change], object]
    may_race: bool = True
    may_fail: bool = False


# --- draws ---------------------------------------------------------------------------------------


def draw_nothing(state: State, dice: random.Random) -> Change:
    return Change(number=dice.randrange(1 << 32))


def draw_work(state: State, dice: random.Random) -> Change | None:
    return draw_nothing(state, dice) if state.rows else None


def draw_rows(state: State, dice: random.Random) -> Change:
    return Change(adds=_make_rows(state, dice))


def draw_ids(state: State, dice: random.Random) -> Change:
    return Change(removes={"ids": _choose_ids(state, dice)})


def draw_condition(state: State, dice: random.Random) -> Change:
    """Choose rows by their ids, or by their partition."""
    country = dice.choice([name for name in COUNTRIES if name])
    return dice.choice([draw_ids(state, dice), Change(removes={"country": country})])


def draw_replacement(state: State, dice: random.Random) -> Change:
    return Change(removes=draw_condition(state, dice).removes, adds=_make_rows(state, dice))


def draw_upsert(state: State, dice: random.Random) -> Change:
    """Choose new values for rows with some ids, and new rows."""
    ids = [id_ for id_ in _choose_ids(state, dice) if id_ in state.rows]
    changed = [_make_row(id_, state, dice) for id_ in ids]
    return Change(removes={"ids": ids}, adds=[*changed, *_make_rows(state, dice)])


def draw_truncation(state: State, dice: random.Random) -> Change:
    return Change(removes={"all": True})


def draw_column(state: State, dice: random.Random) -> Change:
    """Add a column, or drop one where there are many."""
    added = [name for name in state.columns if name not in FIRST_COLUMNS]
    if len(state.columns) >= MAX_COLUMNS:
        return Change(old_column=dice.choice(added))
    return Change(new_column=f"note{dice.randrange(1 << 32)}")


def draw_branch(state: State, dice: random.Random) -> Change | None:
    """Make the branch, or drop it."""
    if state.branch is None:
        return Change(makes_branch=True) if state.rows else None
    return Change(drops_branch=True) if dice.random() < 0.2 else None


def draw_publication(state: State, dice: random.Random) -> Change | None:
    return None if state.branch is None else Change(publishes_branch=True)


def draw_branch_rows(state: State, dice: random.Random) -> Change | None:
    return None if state.branch is None else replace(draw_rows(state, dice), branch=True)


def draw_branch_ids(state: State, dice: random.Random) -> Change | None:
    return None if state.branch is None else replace(draw_ids(state.of_branch(), dice), branch=True)


def _make_rows(state: State, dice: random.Random) -> list[Row]:
    return [_make_row(dice.randrange(1 << 40), state, dice) for _ in range(dice.randint(1, 6))]


def _make_row(id_: int, state: State, dice: random.Random) -> Row:
    values = {"country": dice.choice(COUNTRIES), "price": dice.choice(PRICES)}
    notes = {name: dice.choice(NOTES) for name in state.columns[len(FIRST_COLUMNS) :]}
    return {"id": id_, **values, **notes}


def _choose_ids(state: State, dice: random.Random) -> list[int]:
    """Return some ids that exist, as far as possible, and one that does not."""
    known = sorted(state.rows)
    return [*dice.sample(known, min(len(known), dice.randint(1, 3))), dice.randrange(1 << 40)]


# --- modcrypt ------------------------------------------------------------------------------------


def to_arrow(rows: Sequence[Row]) -> pa.Table:
    kinds = [(name, TYPES.get(name, pa.string())) for name in rows[0]]
    return pa.Table.from_pylist(list(rows), pa.schema(kinds))


def _change_master(table: IcebergTable, change: Change) -> object:
    (other,) = MASTERS.keys() - {table.metadata.master_key_id}
    return rotate_table(table, "mek", new_master_key_id=other)


def _overwrite(table: Any, change: Change) -> object:
    return table.overwrite(to_arrow(change.adds), overwrite_filter=change.condition)


def _upsert(table: Any, change: Change) -> object:
    return table.upsert(to_arrow(change.adds), join_cols=["id"])


_MODCRYPT: Sequence[tuple[str, Draw, Callable[[Any, Change], object]]] = (
    ("append", draw_rows, lambda table, change: table.append(to_arrow(change.adds))),
    ("overwrite", draw_replacement, _overwrite),
    ("delete", draw_condition, lambda table, change: table.delete(change.condition)),
    ("upsert", draw_upsert, _upsert),
    ("append to branch", draw_branch_rows,
     lambda table, change: table.append(to_arrow(change.adds), branch=BRANCH)),
    ("delete from branch", draw_branch_ids,
     lambda table, change: table.delete(change.condition, branch=BRANCH)),
    ("rotate mek", draw_nothing, lambda table, change: rotate_table(table, "mek")),
    ("rotate mek to another", draw_nothing, _change_master),
    ("rotate kek", draw_nothing, lambda table, change: rotate_table(table, "kek")),
    ("rotate dek", draw_nothing, lambda table, change: rotate_table(table, "dek")),
    ("prune", draw_nothing, lambda table, change: prune_keys(table)),
    ("expire", draw_nothing, lambda table, change: expire_history(table)),
    ("remove orphans", draw_nothing,
     lambda table, change: remove_orphan_files(table, older_than_days=0)),
)  # fmt: skip
_OF_NEWER_VERSIONS = {"overwrite", "delete", "upsert", "append to branch", "delete from branch"}

MODCRYPT: Sequence[Operation] = [
    Operation(name=f"modcrypt {name}", draw=draw, run=run, may_race=name != "remove orphans")
    for name, draw, run in _MODCRYPT
    if name not in _OF_NEWER_VERSIONS or hasattr(IcebergTable, "delete")
]
BY_NAME = {operation.name: operation for operation in MODCRYPT}


# --- stock Spark and Iceberg ---------------------------------------------------------------------


@dataclass(frozen=True)
class SparkTable:
    """A table in a catalog of Spark's."""

    spark: IcebergSpark
    catalog: str
    name: str

    @property
    def path(self) -> str:
        """The name with that of the catalog."""
        return f"{self.catalog}.{self.name}"

    def sql(self, query: str) -> list[Row]:
        """Run a query in which `{t}` is the table."""
        return self.spark.sql(query.replace("{t}", self.path))

    def call(self, procedure: str, arguments: str = "") -> list[Row]:
        """Call a procedure of Iceberg's on the table."""
        called = f"CALL {self.catalog}.system.{procedure}(table => '{self.name}'{arguments})"
        return self.spark.sql(called)

    def read(self, branch: str | None = None) -> list[Row]:
        """Return all rows, with their row ids, of main or of a branch."""
        return self.sql(f"SELECT *, _row_id FROM {{t}}{f'.branch_{branch}' if branch else ''}")


def _spell(value: object) -> str:
    if value is None:
        return "NULL"
    return f"CAST('{value}' AS DOUBLE)" if isinstance(value, float) else repr(value)


def _spell_rows(rows: Sequence[Row]) -> str:
    values = ", ".join(f"({', '.join(map(_spell, row.values()))})" for row in rows)
    return f"({', '.join(rows[0])}) VALUES {values}"


def _insert(table: SparkTable, change: Change) -> object:
    branch = f".branch_{BRANCH}" if change.branch else ""
    return table.sql(f"INSERT INTO {{t}}{branch} {_spell_rows(change.adds)}")


def _delete(table: SparkTable, change: Change) -> object:
    return table.sql(f"DELETE FROM {{t}} WHERE {change.condition}")


def _merge(table: SparkTable, change: Change) -> object:
    names = list(change.adds[0])
    rows = " UNION ALL ".join(
        "SELECT " + ", ".join(f"{_spell(row[name])} AS {name}" for name in names)
        for row in change.adds
    )
    sets = ", ".join(f"t.{name} = s.{name}" for name in names[1:])
    return table.sql(
        f"MERGE INTO {{t}} t USING ({rows}) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET {sets} "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) "
        f"VALUES ({', '.join(f's.{name}' for name in names)})"
    )


def _alter_columns(table: SparkTable, change: Change) -> object:
    if change.new_column:
        return table.sql(f"ALTER TABLE {{t}} ADD COLUMN {change.new_column} string")
    return table.sql(f"ALTER TABLE {{t}} DROP COLUMN {change.old_column}")


def _alter_partitions(table: SparkTable, change: Change) -> object:
    return table.sql(
        f"ALTER TABLE {{t}} ADD PARTITION FIELD bucket({change.number % 30_000 + 2}, id) "
        f"AS b{change.number}"
    )


def _set_property(table: SparkTable, change: Change) -> object:
    return table.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('judge'='{change.number}')")


def _tag(table: SparkTable, change: Change) -> object:
    return table.sql(f"ALTER TABLE {{t}} CREATE OR REPLACE TAG judge{change.number % 3}")


def _alter_branch(table: SparkTable, change: Change) -> object:
    verb = "CREATE" if change.makes_branch else "DROP"
    return table.sql(f"ALTER TABLE {{t}} {verb} BRANCH {BRANCH}")


def _publish_branch(table: SparkTable, change: Change) -> object:
    return table.call("fast_forward", f", branch => 'main', to => '{BRANCH}'")


SPARK_SCHEMA: Sequence[Operation] = (
    Operation(name="Spark changes columns", draw=draw_column, run=_alter_columns),
    Operation(name="Spark changes partitions", draw=draw_nothing, run=_alter_partitions),
    Operation(name="Spark sets a property", draw=draw_nothing, run=_set_property),
    Operation(name="Spark tags", draw=draw_nothing, run=_tag),
    Operation(name="Spark makes or drops a branch", draw=draw_branch, run=_alter_branch),
    *[Operation(name="Spark publishes the branch", draw=draw_publication, run=_publish_branch,
                may_fail=True)] * 2,
)  # fmt: skip
"""What stock Spark can do to an encrypted table in a REST catalog."""

SPARK: Sequence[Operation] = (
    *[Operation(name="Spark inserts", draw=draw_rows, run=_insert)] * 3,
    Operation(name="Spark inserts into branch", draw=draw_branch_rows, run=_insert),
    *[Operation(name="Spark deletes", draw=draw_condition, run=_delete)] * 2,
    Operation(name="Spark merges", draw=draw_upsert, run=_merge),
    Operation(name="Spark truncates", draw=draw_truncation,
              run=lambda table, change: table.sql("TRUNCATE TABLE {t}")),
    Operation(name="Spark rewrites manifests", draw=draw_work,
              run=lambda table, change: table.call("rewrite_manifests")),
    Operation(name="Spark compacts", draw=draw_work,
              run=lambda table, change: table.call(
                  "rewrite_data_files", ", options => map('rewrite-all', 'true')")),
    Operation(name="Spark expires snapshots", draw=draw_nothing,
              run=lambda table, change: table.call(
                  "expire_snapshots", ", older_than => now(), retain_last => 1")),
    *SPARK_SCHEMA,
)  # fmt: skip


# --- stock Iceberg's Java, on tables in folders --------------------------------------------------


@dataclass(frozen=True)
class JavaTable:
    """A table of which Java is told the newest metadata.json; in a folder, Java commits too."""

    java: Judge
    named: NamedTable

    @property
    def metadata(self) -> str:
        """The path of the newest metadata.json."""
        place = self.named.load(master_key_ids=list(MASTERS)).place
        return urlsplit(place.path).path

    def commit(self, **step: Any) -> object:
        """Commit one step of `Judge.commit`."""
        return self.java.commit(self.metadata, step)

    def read(self, branch: str | None = None) -> list[Row]:
        """Return all rows, with their row ids, of main or of a branch."""
        rows = self.java.read(self.metadata, lineage=True, ref=branch)
        return [{k: row[k] for k in row if k != "_last_updated_sequence_number"} for row in rows]


def _java_columns(table: JavaTable, change: Change) -> object:
    if change.new_column:
        return table.commit(do="schema", add=[[change.new_column, "string"]])
    return table.commit(do="schema", drop=[change.old_column])


def _java_delete(table: JavaTable, change: Change) -> object:
    return table.commit(do="delete", column="id", values=change.removes["ids"])


def _java_branch(table: JavaTable, change: Change) -> object:
    return table.commit(do="branch", name=BRANCH)


def draw_first_branch(state: State, dice: random.Random) -> Change | None:
    return Change(makes_branch=True) if state.rows and state.branch is None else None


JAVA: Sequence[Operation] = (
    *[Operation(name="Java appends", draw=draw_rows,
                run=lambda table, change: table.commit(do="append", rows=change.adds))] * 2,
    Operation(name="Java appends to branch", draw=draw_branch_rows,
              run=lambda table, change: table.commit(
                  do="append", rows=change.adds, branch=BRANCH)),
    Operation(name="Java makes a branch", draw=draw_first_branch, run=_java_branch),
    Operation(name="Java deletes", draw=draw_ids, run=_java_delete),
    Operation(name="Java changes columns", draw=draw_column, run=_java_columns),
    Operation(name="Java rewrites manifests", draw=draw_work,
              run=lambda table, change: table.commit(do="rewrite-manifests")),
    Operation(name="Java compacts", draw=draw_work,
              run=lambda table, change: table.commit(do="compact")),
)  # fmt: skip

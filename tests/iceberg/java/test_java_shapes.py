"""Tables in every shape that Java makes: after all that modcrypt does, Java reads the same rows."""

from __future__ import annotations

import datetime
import decimal
import json
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from modcrypt.iceberg import IcebergTable, encrypt_table
from modcrypt.iceberg.rotate.expiry import expire_history
from modcrypt.iceberg.rotate.table_rotation import rotate_table
from modcrypt.iceberg.verify.table_verification import verify_table
from tests.support.iceberg.java_judge import plain_rows
from tests.support.iceberg.java_tables import (
    ALL_TYPES,
    FULL,
    PARTITIONED,
    PEOPLE,
    Both,
    Row,
    append,
    both,
    delete,
    ids,
    partition_spec,
    people,
    schema,
)
from tests.support.iceberg.sample_kms import SampleKms

__all__ = ["both"]  # a fixture

Build: TypeAlias = Callable[[Both], None]
Change: TypeAlias = Callable[[IcebergTable], IcebergTable]


# --- shapes --------------------------------------------------------------------------------------


def change_partitions(both: Both) -> None:
    both.create(PEOPLE, spec=PARTITIONED["identity"])
    both.commit(
        append(*range(8)),
        {"do": "spec", "remove": ["name"], "add": [["joined", "day"]]},
        append(*range(8, 12), format="avro"),
        {"do": "spec", "add": [["id", "bucket", 2]]},
        append(*range(12, 16)),
        delete(1, 9, 13),
    )


def change_schema(both: Both) -> None:
    both.create(PEOPLE).commit(append(*range(4)), append(*range(4, 6), format="avro"))
    both.commit(
        {"do": "schema", "rename": [["name", "title"]], "drop": ["joined"], "first": ["name"]},
        {"do": "schema", "add": [["joined", "timestamptz"], ["name", "string"]]},
        append(7),
        delete(2, 5),
    )


def delete_positions(both: Both) -> None:
    plain = {"format-version": "2", "encryption.key-id": None}
    both.create(PEOPLE, spec=PARTITIONED["bucket"], properties=plain, key_id="keyA")
    both.commit(
        append(*range(10)),
        append(*range(10, 14), format="avro"),
        delete(3, 12),
        delete(5, 13, format="avro"),
        {"do": "set", "properties": {"format-version": "3", "encryption.key-id": "keyA"}},
        delete(7, 10),
        key_id="keyA",
    )


def merge_and_compact(both: Both) -> None:
    both.create(PEOPLE, properties={"commit.manifest.min-count-to-merge": "2"})
    both.commit(append(1, 2), append(3), append(4, 5), delete(2), append(6))
    both.commit({"do": "compact"}, append(7, 8), delete(4, 8), {"do": "rewrite-manifests"})


def branch(both: Both) -> None:
    both.create(PEOPLE).commit(append(1, 2), {"do": "tag", "name": "t"}, delete(1))
    both.commit({"do": "branch", "name": "b"}, append(3), append(4, 5, branch="b"))
    both.commit(delete(2), {"do": "overwrite", "rows": people(9), "branch": "b"})


SHAPES: dict[str, Build] = {
    make.__name__: make
    for make in (change_partitions, change_schema, delete_positions, merge_and_compact, branch)
}


def append_people(table: IcebergTable) -> IcebergTable:
    now = datetime.datetime(2026, 1, 2, 3, tzinfo=datetime.UTC)
    wanted: dict[str, list[Any]] = {
        "id": [1000, 1001],
        "joined": [now, None],
        "name": ["new", None],
    }
    schema = table.scan().schema
    if "title" in schema.names:
        wanted["title"] = ["t", "u"]
    return table.append(pa.table({name: wanted[name] for name in schema.names}, schema))


CHANGES: dict[str, Change] = {  # those that make files; the others are in test_java_reads
    "append": append_people,
    "dek": lambda table: rotate_table(table, "dek").table,
    "expire": lambda table: expire_history(table).table,
}


QUICK = {delete_positions}  # Java reads each table some ten times


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(build, id=name, marks=[] if build in QUICK else pytest.mark.slow)
        for name, build in SHAPES.items()
    ],
)
def test_java_reads_every_shape_after_every_change(
    both: Both, build: Build, subtests: pytest.Subtests
) -> None:
    build(both)
    rows, before = both.agree(), both.java.read(both.metadata, lineage=True)
    refs = {ref: both.java.read(both.metadata, ref=ref) for ref in ("b", "t") if build is branch}
    built = both.folder.with_name("built"), both.metadata
    shutil.copytree(both.folder, built[0])
    for name, change in CHANGES.items():
        with subtests.test(name):
            shutil.rmtree(both.folder)
            shutil.copytree(built[0], both.folder)
            both.metadata = built[1]
            _check_change(both, change, rows, before, refs)


def _check_change(
    both: Both, change: Change, rows: list[Row], before: list[Row], refs: dict[str, list[Row]]
) -> None:
    table = change(both.table())
    both.metadata = Path(table.place.path)
    after = both.agree()
    lineage = both.java.read(both.metadata, lineage=True)
    if change is append_people:
        assert [row for row in after if row["id"] < 1000] == rows
        assert len(after) == len(rows) + 2
        assert [row for row in lineage if row["id"] < 1000] == before
    else:
        assert after == rows
        assert lineage == before
    given = [row["_row_id"] for row in lineage if row["_row_id"] is not None]
    assert len(set(given)) == len(given)
    for ref, expected in refs.items():
        assert both.java.read(both.metadata, ref=ref) == expected
    assert verify_table(table).ok
    # Java goes on from there, and so does modcrypt.
    both.commit(delete(*ids(after)[:1]), {"do": "rewrite-manifests"})
    both.metadata = Path(change(both.table()).place.path)
    assert len(both.agree()) == len(after) - 1 + 2 * (change is append_people)


# --- partitions of columns that were widened -----------------------------------------------------

WIDENED = schema(("id", "long"), ("n", "int"), ("f", "float"), ("price", "decimal(9, 0)"))
BY_WIDENED = partition_spec((2, "identity", "n"), (3, "identity", "f"), (4, "truncate[2]", "price"))


def wide(number: int) -> dict[str, Any]:
    return {"id": number, "n": -number, "f": number / 2, "price": str(-number)}


@pytest.mark.parametrize("sealed", [True, False], ids=["dek", "encrypt_table"])
def test_partitions_of_columns_that_were_widened(
    both: Both, kms: SampleKms, tmp_path: Path, sealed: bool
) -> None:
    """Manifests written anew have wider values; rows of older snapshots have the older types."""
    both.create(WIDENED, spec=BY_WIDENED, properties={} if sealed else {"encryption.key-id": None})
    both.commit({"do": "append", "rows": [wide(1), wide(2)]}, {"do": "tag", "name": "old"})
    for name, kind in (("n", "long"), ("f", "double"), ("price", "decimal(11, 0)")):
        both.commit({"do": "schema", "promote": [[name, kind]]})
    both.commit({"do": "append", "rows": [wide(3), {**wide(4), "price": "-12345678901"}]})
    if sealed:
        table = rotate_table(both.table(), "dek").table
    else:
        table = encrypt_table(
            both.metadata, tmp_path / "sealed", kms, master_key_id="keyA", history=True
        )
    both.metadata = Path(table.place.path)
    assert ids(both.agree()) == [1, 2, 3, 4]
    for filters in ("n = -2", "f = 1.0", "price = -2", "n < -1 and f > 0.6 and price < -1"):
        assert ids(plain_rows(table.scan("old", filters=filters))) == [2]
    assert ids(plain_rows(table.scan(filters="price < -3"))) == [4]


# --- places and numbers ---------------------------------------------------------------------------


def test_metadata_goes_where_java_has_set_it(both: Both) -> None:
    """To a folder that nobody has made yet."""
    both.create(PEOPLE).commit(append(1, 2))
    elsewhere = str(both.folder / "elsewhere")
    both.commit({"do": "set", "properties": {"write.metadata.path": elsewhere}})
    both.metadata = Path(rotate_table(append_people(both.table()), "dek").table.place.path)
    assert len(both.agree()) == 4
    reported = both.java.files(both.metadata)
    manifests = [manifest["path"] for manifest in reported["manifests"]]
    assert all(path.startswith(f"{elsewhere}/") for path in [reported["manifest_list"], *manifests])


def test_totals_are_those_of_java(both: Both) -> None:
    """A deletion vector counts for its own part of a file, and for a file of its own."""
    both.create(PEOPLE).commit(append(1, 2, 3), append(4, 5), delete(1, 2, 4))
    before = both.java.snapshots(both.metadata)["snapshots"][-1]["summary"]
    both.metadata = Path(rotate_table(both.table(), "dek").table.place.path)
    after = both.java.snapshots(both.metadata)["snapshots"][-1]["summary"]
    counts = ["total-records", "total-data-files", "total-delete-files", "total-position-deletes"]
    assert [after[name] for name in counts] == [before[name] for name in counts]
    assert [after[name] for name in counts] == ["5", "2", "2", "3"]
    assert after["added-delete-files"] == after["removed-delete-files"] == "2"
    assert after["total-files-size"] == after["added-files-size"]


# --- values that modcrypt writes -----------------------------------------------------------------

FILTERS: Sequence[Mapping[str, Any]] = [
    {"type": "eq", "term": name, "value": value}
    for name, value in FULL.items()
    if name not in ("fixed", "raw")
] + [
    {"type": "lt", "term": "id", "value": 2},
    {"type": "gt", "term": "text", "value": "A"},
    {"type": "not-null", "term": "raw"},
    {"type": "starts-with", "term": "text", "value": "Stra"},
]


def all_types() -> pa.Table:
    """Return the row of `FULL`, and one of nulls, as Arrow."""
    values: dict[str, Any] = {
        **FULL,
        "price": decimal.Decimal(FULL["price"]),
        "huge": decimal.Decimal(FULL["huge"]),
        "day": datetime.date.fromisoformat(FULL["day"]),
        "clock": datetime.time.fromisoformat(FULL["clock"]),
        "local": datetime.datetime.fromisoformat(FULL["local"]),
        "moment": datetime.datetime.fromisoformat(FULL["moment"]),
        "key": uuid.UUID(FULL["key"]).bytes,
        "fixed": bytes.fromhex(FULL["fixed"]),
        "raw": bytes.fromhex(FULL["raw"]),
    }
    arrow = schema_to_pyarrow(Schema.model_validate(ALL_TYPES), include_field_ids=False)
    return pa.Table.from_pylist([values, {"id": 2}], arrow)


def test_java_finds_all_types_that_modcrypt_appended(both: Both) -> None:
    """By equality, too: by the bounds that modcrypt has given it of each column."""
    table = both.create(ALL_TYPES).table().append(all_types())
    both.metadata = Path(table.place.path)
    rows = both.agree()
    assert rows == sorted([FULL, {**dict.fromkeys(FULL), "id": 2}], key=json.dumps)
    for condition in FILTERS:
        assert both.java.read(both.metadata, filter=condition) == [FULL], condition
    # So does modcrypt, by the bounds that Java has given.
    both.commit({"do": "append", "rows": [FULL]})
    row = all_types().to_pylist()[0]
    for name in ("id", "large", "real", "price", "huge", "text"):
        same = EqualTo(name, row[name])  # type: ignore[call-arg, arg-type]  # as its guide has it
        found = both.table().scan(filters=same)
        assert plain_rows(found) == [FULL, FULL], name

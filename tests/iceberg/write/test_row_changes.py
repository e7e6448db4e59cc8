"""Rows that are deleted, overwritten and upserted: as Iceberg's Java then reads them."""

from __future__ import annotations

import datetime
import decimal
import json
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import DayTransform, IdentityTransform, Transform, TruncateTransform

from modcrypt.errors import CommitConflictError, UnsupportedFormatError
from modcrypt.iceberg import IcebergTable, KeyPolicy, open_table, rotate_table, verify_table
from modcrypt.iceberg.read import data_files
from tests.support.cases import each_case, one_in
from tests.support.iceberg.concurrent_commits import with_rival_commits
from tests.support.iceberg.java_judge import Judge, plain_rows
from tests.support.iceberg.java_tables import PEOPLE, Both, append, both, ids, partition_spec
from tests.support.iceberg.java_tables import delete as java_delete
from tests.support.iceberg.made_tables import make_table
from tests.support.iceberg.sample_kms import SampleKms

__all__ = ["both"]  # a fixture

NAN = float("nan")
DAY = datetime.date(2026, 2, 28)
NOON = datetime.datetime(2026, 2, 28, 12, tzinfo=datetime.UTC)
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("n", pa.int32()),
        ("f", pa.float64()),
        ("price", pa.decimal128(9, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("text", pa.string()),
        ("u", pa.uuid()),
        ("s", pa.struct([("x", pa.int32()), ("y", pa.string())])),
    ]
)


def make_row(id_: int, **values: Any) -> dict[str, Any]:
    return {"id": id_, **dict.fromkeys(SCHEMA.names[1:]), **values}


ROWS = pa.Table.from_pylist(
    [
        make_row(1, n=1, f=0.5, price=decimal.Decimal("1.50"), text="a", s={"x": 1, "y": None}),
        make_row(2, n=None, f=NAN, day=DAY, text=None),
        make_row(3, n=-3, price=decimal.Decimal("-1.50"), text="b", s={"x": None, "y": "q"}),
        make_row(4, n=4, f=-0.0, at=NOON, text=""),
        make_row(5, n=4, f=float("inf"), u=uuid.UUID(int=2**127), text="a"),
    ],
    SCHEMA,
)  # fmt: skip


@pytest.fixture
def lake(tmp_path: Path) -> IcebergTable:
    table = make_table(tmp_path / "t", SCHEMA)
    return table.append(ROWS.slice(2)).append(ROWS.slice(0, 2))


def by_id(table: IcebergTable | pa.Table, *, scan: Any = None) -> list[dict[str, Any]]:
    rows = plain_rows(table.scan(scan) if isinstance(table, IcebergTable) else table)
    return sorted(rows, key=lambda row: row["id"])


def found_ids(table: IcebergTable, snapshot: Any = None) -> list[int]:
    return sorted(table.scan(snapshot)["id"].to_pylist())


def check(java: Judge, table: IcebergTable) -> dict[int, tuple[int, int]]:
    """Compare with Java, verify; return row ids and commits of rows by their ids."""
    found = java.read(table.place.path, lineage=True)
    lineage = {row["id"]: (row.pop("_row_id"), row.pop("_last_updated_sequence_number"))
               for row in found}  # fmt: skip
    assert sorted(found, key=lambda row: row["id"]) == by_id(table)
    assert len({row_id for row_id, _ in lineage.values()}) == len(found)
    assert verify_table(table).ok
    return lineage


FILTERS = [
    "id = 1", "id > 3", "id != 3", "not id = 3", "n = 4", "n != 4", "not n = 4", "n is null",
    "n is not null", "n in (1, 4)", "n not in (1, 4)", "n not in (1)", "f is nan", "f is not nan",
    "f > 0", "f = 0", "f < 1 or n is null", "price < 0", "price = '1.50'", "not price < 0",
    "day = '2026-02-28'", "day is not null", "at > '2026-02-28T00:30:00+00:00'",
    "text like 'a%'", "text not like 'a%'", "text = ''", "text is null", "s.x is null", "s.x = 1",
    "not s.y = 'q'", f"u = '{uuid.UUID(int=2**127)}'", "true", "false", "id < 0",
]  # fmt: skip


@each_case("condition", FILTERS, quick=one_in(3))
def test_a_delete_removes_what_a_scan_finds(condition: str, lake: IcebergTable) -> None:
    gone = lake.scan(filters=condition)["id"].to_pylist()
    left = [row for row in by_id(lake) if row["id"] not in gone]
    done = lake.delete(condition)
    assert json.dumps(by_id(done)) == json.dumps(left)
    if not gone:
        assert done.place == lake.place
    assert len(by_id(done, scan=lake.metadata.current and lake.metadata.current.id)) == 5


def test_java_reads_what_is_left(java: Judge, lake: IcebergTable) -> None:
    before = check(java, lake)
    table = lake.delete("id in (1, 4)")
    after = check(java, table)
    assert after == {id_: before[id_] for id_ in (2, 3, 5)}
    assert table.snapshot().operation == "overwrite"  # type: ignore[union-attr]
    again = table.delete("n is null")  # the whole file
    assert again.snapshot().operation == "delete"  # type: ignore[union-attr]
    assert check(java, again) == {id_: before[id_] for id_ in (3, 5)}
    rotated = rotate_table(again, "dek").table
    assert check(java, rotated) == {id_: before[id_] for id_ in (3, 5)}
    last = rotated.delete("id = 3")  # from a file that stores row ids
    assert check(java, last) == {5: before[5]}
    assert found_ids(last.delete("true")) == []


def test_the_snapshot_is_as_java_writes_it(java: Judge, kms: SampleKms, tmp_path: Path) -> None:
    both = Both(java, kms, tmp_path / "table").create(PEOPLE)
    both.commit(append(1, 2, 3), append(4, 5))
    paths = [
        file["location"] for file in both.table().files().to_pylist() if file["kind"] == "data"
    ]
    ours = open_table(both.metadata, kms).delete("id >= 4")
    document = ours.metadata.document["snapshots"][-1]
    assert document["summary"] == {
        "operation": "delete", "deleted-data-files": "1", "deleted-records": "2",
        "removed-files-size": document["summary"]["removed-files-size"],
        "changed-partition-count": "1", "manifests-created": "1", "manifests-kept": "1",
        "manifests-replaced": "1", "total-records": "3", "total-data-files": "1",
        "total-files-size": document["summary"]["total-files-size"], "total-delete-files": "0",
        "total-position-deletes": "0", "total-equality-deletes": "0",
    }  # fmt: skip
    assert len(paths) == 2


def test_deletes_of_java_are_applied_and_those_of_removed_files_dropped(
    java: Judge, both: Both
) -> None:
    both.create(PEOPLE).commit(append(*range(1, 6)), append(*range(6, 11)), java_delete(2, 7))
    equal = {"by": ["id"], "rows": [{"id": 3}]}
    both.commit({"do": "delete-equal", "files": [equal]})
    assert ids(plain_rows(both.table().scan())) == [1, 4, 5, 6, 8, 9, 10]
    before = check(java, both.table())
    table = both.table().delete("id = 4")
    assert check(java, table) == {id_: old for id_, old in before.items() if id_ != 4}
    kept = [file for file in table.files().to_pylist() if file["kind"] != "manifest"]
    vectors = [file for file in kept if file["file_format"] == "PUFFIN"]
    assert len(vectors) == 1  # that of the file that stays
    summary = table.snapshot().document["summary"]  # type: ignore[union-attr]
    assert (summary["removed-dvs"], summary["removed-position-deletes"]) == ("1", "1")
    both.metadata = Path(table.place.path)
    both.commit(java_delete(6), append(11))
    assert ids(both.agree()) == [1, 5, 8, 9, 10, 11]


PARTITIONS: list[tuple[str, Transform[Any, Any]]] = [
    ("n", IdentityTransform()),
    ("text", IdentityTransform()),
    ("f", IdentityTransform()),
    ("day", DayTransform()),
    ("id", TruncateTransform(2)),
]


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda pair: f"{pair[0]} {pair[1]}")
def test_partitions(java: Judge, tmp_path: Path, partition: Any) -> None:
    name, transform = partition
    field = PartitionField(SCHEMA.names.index(name) + 1, 1000, transform, "p")
    table = make_table(tmp_path / "t", SCHEMA, partition_spec=PartitionSpec(field)).append(ROWS)
    conditions = [text for text in FILTERS if text.split()[0] in (name, "id")]
    for number, condition in enumerate(conditions):
        gone = table.scan(filters=condition)["id"].to_pylist()
        done = table.delete(condition, branch=f"b{number}")
        left = [id_ for id_ in range(1, 6) if id_ not in gone]
        assert found_ids(done, f"b{number}" if gone else None) == left, condition
    check(java, done.delete("id = 2"))


@pytest.mark.parametrize("kek_per", ["partition", "files", "day"])
def test_the_policy_protects_rewritten_files(
    tmp_path: Path, kek_per: Literal["partition", "files", "day"]
) -> None:
    field = PartitionField(SCHEMA.names.index("n") + 1, 1000, IdentityTransform(), "p")
    table = make_table(
        tmp_path / "t", SCHEMA, partition_spec=PartitionSpec(field),
        policy=KeyPolicy(kek_per=kek_per, files=2),
    ).append(ROWS)  # fmt: skip
    done = table.delete("id = 4")
    assert found_ids(done) == [1, 2, 3, 5]
    keks = {key["key_id"]: key["scope"] for key in done.keys().to_pylist() if key["kind"] == "KEK"}
    data = [file for file in done.files().to_pylist() if file["kind"] == "data"]
    new = [file for file in data if file["sequence_number"] == 2]
    scopes = {"partition": "partition=p=4", "files": "files", "day": None}
    assert [keks.get(file["sealed_by"]) for file in new] == [scopes[kek_per]]
    assert verify_table(done).ok


def test_files_that_match_as_a_whole_are_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    field = PartitionField(SCHEMA.names.index("text") + 1, 1000, IdentityTransform(), "p")
    table = make_table(tmp_path / "t", SCHEMA, partition_spec=PartitionSpec(field)).append(ROWS)
    opened: list[str] = []
    monkeypatch.setattr(data_files, "open_natively", lambda source, _: opened.append(source.name))
    table = table.delete("text = 'a'")
    table = table.delete("id <= 2")  # by the statistics of the file with 2 alone
    assert opened == []
    table = table.overwrite(ROWS.slice(0, 1), "true")
    assert opened == []
    assert found_ids(table) == [1]


def test_nulls_are_not_deleted_by_statistics(tmp_path: Path) -> None:
    """pyiceberg takes a file without a number of nulls for one without nulls."""
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64())])
    properties = {"write.metadata.metrics.default": "none"}
    for number, options in enumerate([{}, {"properties": properties}]):
        folder = tmp_path / str(number)
        table = make_table(folder, schema, **options)
        table = table.append(pa.table({"id": [1, 2], "n": [5, None]}))
        assert found_ids(table.delete("n < 6")) == [2]
        assert found_ids(table.delete("n != 6")) == [2]


# --- overwrite -----------------------------------------------------------------------------------


def test_overwrite(java: Judge, lake: IcebergTable) -> None:
    before = check(java, lake)
    new = pa.Table.from_pylist([make_row(9, text="new")], SCHEMA)
    table = lake.overwrite(new, "id <= 3", snapshot_properties={"job": "nightly"})
    after = check(java, table)
    assert found_ids(table) == [4, 5, 9]
    assert {id_: after[id_] for id_ in (4, 5)} == {id_: before[id_] for id_ in (4, 5)}
    summary = table.snapshot().document["summary"]  # type: ignore[union-attr]
    assert (summary["operation"], summary["job"]) == ("overwrite", "nightly")
    assert len(table.metadata.snapshots) == 3  # in one commit
    table = table.overwrite(new.to_reader())
    assert found_ids(table) == [9]
    table = table.overwrite(new.slice(0, 0), AlwaysFalse())
    assert len(table.metadata.snapshots) == 4
    table = table.overwrite(ROWS, AlwaysFalse())
    assert table.snapshot().operation == "append"  # type: ignore[union-attr]
    assert found_ids(table.overwrite(ROWS.slice(0, 0), AlwaysTrue())) == []


def test_wrong_arguments_change_nothing(lake: IcebergTable) -> None:
    wrong: list[Callable[[], Any]] = [
        lambda: lake.delete("none = 1"),
        lambda: lake.delete("id is"),
        lambda: lake.delete(None),  # type: ignore[arg-type]
        lambda: lake.delete("ID = 1"),
        lambda: lake.delete("id = 1", branch="no\0tag", snapshot_properties={"a": 1}),  # type: ignore[dict-item]
        lambda: lake.delete("id = 1", snapshot_properties={"operation": "append"}),
        lambda: lake.overwrite(pa.table({"none": [1]}), "id = 1"),
        lambda: lake.upsert(ROWS),
        lambda: lake.upsert(ROWS, ["none"]),
        lambda: lake.upsert(ROWS, ["s"]),
        lambda: lake.upsert(ROWS, "id"),
        lambda: lake.upsert(ROWS, ["id", "id"]),
        lambda: lake.upsert(ROWS.select(["n"]), ["id"]),
        lambda: lake.upsert(ROWS, ["n"]),
        lambda: lake.upsert(pa.concat_tables([ROWS, ROWS]), ["id"]),
        lambda: lake.upsert(ROWS, ["id"], False, False),
    ]
    for attempt in wrong:
        with pytest.raises(ValueError):  # noqa: PT011  # all kinds
            attempt()
    assert found_ids(lake.delete("ID = 1", case_sensitive=False)) == [2, 3, 4, 5]


def test_names_that_differ_only_by_case(tmp_path: Path) -> None:
    """pyiceberg takes the last of these columns: other rows would be deleted."""
    rows = pa.table({"id": [1, 2], "Key": [None, 4], "key": [3, 4]})
    schema = rows.schema.set(2, pa.field("key", pa.int64(), nullable=False))
    table = make_table(tmp_path / "t", schema).append(rows.cast(schema))
    wrong: list[Callable[[], Any]] = [
        lambda: table.delete("id = 1 and KEY = 4", case_sensitive=False),
        lambda: table.delete("Key is null", case_sensitive=False),
        lambda: table.scan(filters="key = 3", case_sensitive=False),
        lambda: table.scan(columns=["Key"], case_sensitive=False),
        lambda: table.upsert(rows.cast(schema), ["KEY"], case_sensitive=False),
    ]
    for attempt in wrong:
        with pytest.raises(ValueError, match="'Key' and 'key' differ only by case"):
            attempt()
    assert found_ids(table.delete("ID = 1", case_sensitive=False)) == [2]
    assert table.upsert(rows.cast(schema), ["ID"], case_sensitive=False).rows_inserted == 1


def test_restrictions_are_not_circumvented(lake: IcebergTable, tmp_path: Path) -> None:
    less = {"type": "lt", "left": {"type": "reference", "id": 1}, "right": 3}
    restricted = open_table(
        tmp_path / "t", SampleKms(), read_restrictions={"required-row-filter": less}
    )
    changes: list[Callable[[], Any]] = [
        lambda: restricted.delete("id = 4"),
        lambda: restricted.overwrite(ROWS),
        lambda: restricted.upsert(ROWS, ["id"]),
        lambda: replace(lake, restrictions={"required-row-filter": less}).delete("true"),
    ]
    for change in changes[:3]:
        with pytest.raises(UnsupportedFormatError, match="read restrictions"):
            change()
    assert found_ids(open_table(tmp_path / "t", SampleKms())) == [1, 2, 3, 4, 5]
    assert restricted.append(ROWS.slice(0, 1)).scan().num_rows == 3


# --- upsert --------------------------------------------------------------------------------------


def test_upsert(java: Judge, lake: IcebergTable) -> None:
    before = check(java, lake)
    new = pa.Table.from_pylist(
        [ROWS.slice(0, 1).to_pylist()[0], make_row(4, n=40, text="x"), make_row(6)], SCHEMA
    )
    done = lake.upsert(new, ["id"])
    assert (done.rows_updated, done.rows_inserted) == (1, 1)
    after = check(java, done.table)
    number = done.table.metadata.last_sequence_number
    assert after[4] == (before[4][0], number)
    assert {id_: after[id_] for id_ in (1, 2, 3, 5)} == {id_: before[id_] for id_ in (1, 2, 3, 5)}
    assert after[6][1] == number
    assert done.table.scan(filters="id = 4", columns=["n", "f"]).to_pylist() == [
        {"n": 40, "f": None}
    ]  # fmt: skip
    again = done.table.upsert(new, ["ID"], case_sensitive=False)
    assert (again.rows_updated, again.rows_inserted) == (0, 0)
    assert again.table.place == done.table.place


def test_upsert_with_only_some_columns_and_rows(lake: IcebergTable) -> None:
    new = pa.table({"id": [3, 9], "text": ["c", "new"]})
    inserted = lake.upsert(new, ["id"], when_matched_update_all=False)
    assert (inserted.rows_updated, inserted.rows_inserted) == (0, 1)
    full = pa.Table.from_pylist([make_row(3, text="c"), make_row(10)], SCHEMA)
    updated = inserted.table.upsert(full, ["id"], when_not_matched_insert_all=False)
    assert (updated.rows_updated, updated.rows_inserted) == (1, 0)
    assert found_ids(updated.table) == [1, 2, 3, 4, 5, 9]


def test_upsert_loses_no_values_of_columns_that_the_data_lacks(lake: IcebergTable) -> None:
    inner = pa.array([{"x": 5}], pa.struct([("x", pa.int32())]))
    new = pa.Table.from_pylist([make_row(1, n=7)], SCHEMA)
    for lacking, data in (
        ("price", new.drop_columns(["price"])),
        ("s.y", new.set_column(SCHEMA.get_field_index("s"), "s", inner)),
    ):
        with pytest.raises(ValueError, match=f"lacks the column '{lacking}'"):
            lake.upsert(data, ["id"])
    assert by_id(lake.refreshed()) == by_id(lake)


@each_case(
    "names, same",
    [
        (["id", "text"], [1, 3, 4, 5]),  # the null key of the table matches nothing
        (["text", "n"], [1, 3, 4, 5]),
        (["f"], [1, 4, 5]),
        (["price"], [1, 3]),
        (["u"], [5]),
        (["day"], [2]),
        (["at"], [4]),
    ],
)
def test_keys_of_upserts(names: list[str], same: list[int], lake: IcebergTable) -> None:
    mine = [row for row in ROWS.to_pylist() if row["id"] in same]
    new = pa.Table.from_pylist([{**row, "s": {"x": 99, "y": "new"}} for row in mine], SCHEMA)
    done = lake.upsert(new, names)
    assert (done.rows_updated, done.rows_inserted) == (len(same), 0)
    found = {row["id"]: row["s"] for row in by_id(done.table)}
    assert [id_ for id_, value in found.items() if value == {"x": 99, "y": "new"}] == same


@each_case(
    "kind, values",
    [
        (pa.timestamp("ns"), [1, 2, 1234567890123456789]),  # which Python cannot represent
        (pa.time64("us"), [1, 2]),
        (pa.binary(5), [b"aaaaa", b"\xff" * 5]),
        (pa.binary(), [b"", b"b"]),
        (pa.bool_(), [True, False]),
        (pa.decimal128(38, 10), [decimal.Decimal(1), decimal.Decimal("-2.5")]),
        (pa.float32(), [-0.0, 1.5]),
        (pa.large_string(), ["", "c"]),
        (pa.int64(), list(range(1000))),  # more than statistics are asked for
    ],
)
def test_keys_of_many_types(kind: pa.DataType, values: list[Any], tmp_path: Path) -> None:
    rows = pa.table({"k": pa.array(values, kind), "v": pa.nulls(len(values), pa.int64())})
    table = make_table(tmp_path / "t", rows.schema).append(rows)
    new = rows.set_column(1, "v", pa.array(range(len(values)), pa.int64()))
    done = table.upsert(new, ["k"])
    assert (done.rows_updated, done.rows_inserted) == (len(values), 0)
    assert done.table.scan().column("k") == table.scan().column("k")
    assert done.table.upsert(new, ["k"]).table.place == done.table.place


def test_two_rows_of_the_table_with_a_key(lake: IcebergTable) -> None:
    table = lake.append(ROWS.slice(0, 1))
    with pytest.raises(ValueError, match="two rows of the table"):
        table.upsert(pa.Table.from_pylist([make_row(1)], SCHEMA), ["id"])
    others = table.upsert(pa.Table.from_pylist([make_row(2, n=7)], SCHEMA), ["id"])
    assert others.rows_updated == 1


# --- branches ------------------------------------------------------------------------------------


def test_branches(java: Judge, lake: IcebergTable) -> None:
    current = lake.snapshot()
    table = lake.append(pa.Table.from_pylist([make_row(6)], SCHEMA), branch="audit")
    assert (found_ids(table), found_ids(table, "audit")) == ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6])
    table = table.delete("id < 3", branch="audit").delete("id = 5")
    table = table.upsert(
        pa.Table.from_pylist([make_row(3, n=30)], SCHEMA), ["id"], branch="audit"
    ).table
    table = table.overwrite(pa.Table.from_pylist([make_row(7)], SCHEMA), "id = 4", branch="audit")
    assert (found_ids(table), found_ids(table, "audit")) == ([1, 2, 3, 4], [3, 5, 6, 7])
    path = table.place.path
    assert ids(java.read(path, ref="audit")) == [3, 5, 6, 7]
    assert ids(java.read(path)) == [1, 2, 3, 4]
    assert verify_table(table).ok
    assert table.history().num_rows == 3  # branches do not change the current snapshot
    document = json.loads(Path(path).read_text())
    document["refs"]["tag"] = {"type": "tag", "snapshot-id": current.id}  # type: ignore[union-attr]
    Path(path).write_text(json.dumps(document))
    tagged = open_table(Path(path).parent.parent, SampleKms())
    changes: list[Callable[[], Any]] = [
        lambda: tagged.append(ROWS, branch="tag"),
        lambda: tagged.delete("true", branch="tag"),
    ]
    for change in changes:
        with pytest.raises(ValueError, match="tag"):
            change()


# --- other writers, and failures -----------------------------------------------------------------


def test_rows_of_other_writers_are_changed_too(java: Judge, lake: IcebergTable) -> None:
    """A delete takes effect after the commits that came between, as if they had come first."""
    seven = pa.Table.from_pylist([make_row(7, n=4), make_row(8)], SCHEMA)
    rival = with_rival_commits(lake, lambda: lake.refreshed().append(seven), 1)
    table = rival.delete("n = 4")
    assert found_ids(table) == [1, 2, 3, 8]
    check(java, open_table(Path(table.place.path).parent.parent, SampleKms()))
    fresh = open_table(Path(table.place.path).parent.parent, SampleKms())
    rival = with_rival_commits(fresh, lambda: fresh.refreshed().delete("id = 1"), 1)
    done = rival.upsert(pa.Table.from_pylist([make_row(1, n=100)], SCHEMA), ["id"])
    assert (done.rows_updated, done.rows_inserted) == (0, 1)
    fresh = open_table(Path(table.place.path).parent.parent, SampleKms())
    rival = with_rival_commits(fresh, lambda: rotate_table(fresh, "dek"), 1)
    assert found_ids(rival.delete("id = 2")) == [1, 3, 8]
    check(java, open_table(Path(table.place.path).parent.parent, SampleKms()))


def test_nothing_is_left_of_what_others_have_done_already(
    lake: IcebergTable, tmp_path: Path
) -> None:
    rival = with_rival_commits(lake, lambda: lake.refreshed().delete("id = 1"), 1)
    done = rival.delete("id = 1")
    assert found_ids(done) == [2, 3, 4, 5]
    assert len(done.metadata.snapshots) == 3
    assert verify_table(open_table(tmp_path / "t", SampleKms())).orphans == ()


def test_a_failed_change_leaves_nothing(lake: IcebergTable, tmp_path: Path) -> None:
    before = {path for path in (tmp_path / "t").rglob("*") if path.is_file()}
    again = with_rival_commits(lake, lambda: lake.refreshed().append(ROWS), 100)
    with pytest.raises(CommitConflictError):
        again.overwrite(ROWS.slice(0, 1), "id = 1")
    table = open_table(tmp_path / "t", SampleKms())
    assert verify_table(table).orphans == ()
    assert before <= {path for path in (tmp_path / "t").rglob("*") if path.is_file()}


def test_schemas_that_have_changed(java: Judge, both: Both) -> None:
    both.create(PEOPLE, spec=partition_spec((2, "identity", "name"))).commit(
        append(*range(1, 8)),
        {"do": "schema", "add": [["extra", "long", 7]], "rename": [["joined", "since"]]},
        {"do": "spec", "add": [["id", "bucket", 3]]},
        append(20),
    )  # fmt: skip
    before = check(java, both.table())
    table = both.table().delete("extra = 7 and id in (2, 3)")
    after = check(java, table)
    assert after == {id_: old for id_, old in before.items() if id_ not in (2, 3)}
    assert set(table.scan(filters="id < 10")["extra"].to_pylist()) == {7}


def test_a_column_with_a_reserved_name(tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2], "_row_id": [5, 6]})
    table = make_table(tmp_path / "t", rows.schema).append(rows)
    with pytest.raises(UnsupportedFormatError, match="reserves this name"):
        table.delete("id = 1")

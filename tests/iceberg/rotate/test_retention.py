"""Which snapshots an expiry keeps, as Iceberg's Java decides it; staged ones always."""

from __future__ import annotations

import json
import random
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from modcrypt.errors import FormatError, IntegrityError
from modcrypt.iceberg import IcebergTable, expire_history, open_table
from tests.support.cases import each_case
from tests.support.iceberg.branched_table import SCHEMA, rows
from tests.support.iceberg.java_judge import Judge
from tests.support.iceberg.made_tables import make_table
from tests.support.iceberg.sample_kms import SampleKms

DAY = 24 * 60 * 60 * 1000
AGES = (9, 8, 7, 6, 5.5, 4, 3, 2)
"""Ages in days of the snapshots of `aged`, the oldest first."""


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with a snapshot for each age."""
    folder = tmp_path_factory.mktemp("aged") / "t"
    table = make_table(folder)
    for number in range(len(AGES)):
        table = table.append(pa.table({"id": [number]}))
    return folder


@pytest.fixture
def aged(made: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "t"
    shutil.copytree(made, folder)
    return folder


def newest(folder: Path) -> Path:
    return max(
        (folder / "metadata").glob("v*.json"), key=lambda path: int(path.name[1:].split(".")[0])
    )


def alter(folder: Path, properties: dict[str, str], refs: dict[str, Any]) -> list[int]:
    """Give snapshots their ages, and the table properties and refs; return the snapshots' ids."""
    path, now = newest(folder), int(time.time() * 1000)
    document = json.loads(path.read_bytes())
    ids = [snapshot["snapshot-id"] for snapshot in document["snapshots"]]
    times = {id_: now - int(age * DAY) for id_, age in zip(ids, AGES, strict=True)}
    for entry in (*document["snapshots"], *document["snapshot-log"]):
        entry["timestamp-ms"] = times[entry["snapshot-id"]]
    document["properties"] |= properties
    document["metadata-log"] = []
    for name, ref in refs.items():
        known = document["refs"].get(name, {"type": "branch"})
        id_ = ids[ref.pop("at")] if "at" in ref else known["snapshot-id"]
        if "begins" in ref:  # the last snapshot then follows an older one
            document["snapshots"][-1]["parent-snapshot-id"] = ids[ref.pop("begins")]
        document["refs"][name] = {**known, "snapshot-id": id_, **ref}
    path.write_text(json.dumps(document))
    return ids


def kept_numbers(folder: Path, ids: list[int], **options: Any) -> list[int]:
    done = expire_history(open_located(folder), dry_run=True, **options)
    return sorted(ids.index(id_) for id_ in done.kept)


def open_located(folder: Path) -> IcebergTable:
    return open_table(folder, SampleKms(), location_map={"wh:/t": str(folder)})


CASES: dict[str, tuple[dict[str, str], dict[str, Any], dict[str, Any], list[int]]] = {
    "nothing stated": ({}, {}, {}, [7]),
    "age": ({}, {}, {"older_than": timedelta(days=5)}, [5, 6, 7]),
    "time": ({}, {}, {"older_than": datetime(2000, 1, 1, tzinfo=UTC)}, list(range(8))),
    "count, and Java's 5 days": ({}, {}, {"keep_last": 2}, [5, 6, 7]),
    "count": ({}, {}, {"keep_last": 5}, [3, 4, 5, 6, 7]),
    "age and count": ({}, {}, {"older_than": timedelta(days=1), "keep_last": 2}, [6, 7]),
    "properties": (
        {"history.expire.max-snapshot-age-ms": str(int(3.5 * DAY)),
         "history.expire.min-snapshots-to-keep": "3"}, {}, {}, [5, 6, 7]),
    "arguments before properties": (
        {"history.expire.max-snapshot-age-ms": str(99 * DAY),
         "history.expire.min-snapshots-to-keep": "7"}, {},
        {"older_than": timedelta(0), "keep_last": 1}, [7]),
    "a branch's own": (
        {}, {"audit": {"at": 4, "min-snapshots-to-keep": 3}}, {}, [2, 3, 4, 7]),
    "a branch's own age before the arguments": (
        {}, {"main": {"max-snapshot-age-ms": int(2.5 * DAY)}},
        {"older_than": timedelta(days=30)}, [7]),
    "a tag": ({}, {"first": {"at": 0, "type": "tag"}}, {}, [0, 7]),
    "young snapshots before a tag": (
        {}, {"main": {"begins": 3}, "first": {"at": 6, "type": "tag"}},
        {"older_than": timedelta(days=5)}, [5, 6, 7]),
    "an old tag": (
        {}, {"first": {"at": 0, "type": "tag", "max-ref-age-ms": 8 * DAY}}, {}, [7]),
    "the table's age of refs, but not of main": (
        {"history.expire.max-ref-age-ms": str(DAY)}, {"audit": {"at": 6}}, {}, [7]),
    "forced": (
        {}, {"audit": {"at": 4, "min-snapshots-to-keep": 3}}, {"force": True, "keep_last": 1,
        "older_than": timedelta(0)}, [7]),
}  # fmt: skip


@each_case("case", CASES.values(), list(CASES))
def test_what_stays(aged: Path, case: Any) -> None:
    properties, refs, options, expected = case
    ids = alter(aged, properties, json.loads(json.dumps(refs)))
    assert kept_numbers(aged, ids, **options) == expected


def test_java_keeps_the_same(aged: Path, tmp_path: Path, java: Judge) -> None:
    """Random settings of the table, its branches and tags, and of the call."""
    chance = random.Random(45)
    for number in range(12):
        folder = tmp_path / f"java{number}"
        shutil.copytree(aged, folder)
        properties = {
            f"history.expire.{name}": str(chance.randint(*between))
            for name, between in (
                ("max-snapshot-age-ms", (DAY, 9 * DAY)), ("min-snapshots-to-keep", (1, 4)),
                ("max-ref-age-ms", (2 * DAY, 10 * DAY)),
            )
            if chance.random() < 0.4
        }  # fmt: skip
        refs: dict[str, Any] = {"main": {"begins": chance.choice([6, 6, 4])}}
        for name in ("audit", "tag"):
            refs[name] = {"at": chance.randrange(8), "type": "tag" if name == "tag" else "branch"}
        for name, ref in refs.items():
            if chance.random() < 0.4 and name != "tag":
                ref["min-snapshots-to-keep"] = chance.randint(1, 5)
            if chance.random() < 0.4 and name != "tag":
                ref["max-snapshot-age-ms"] = chance.randint(DAY, 9 * DAY)
            if chance.random() < 0.3:
                ref["max-ref-age-ms"] = chance.randint(2 * DAY, 10 * DAY)
        ids = alter(folder, properties, refs)
        last = chance.choice([None, 1, 3])
        older = datetime.now(UTC) - timedelta(days=chance.choice([1.5, 3.5, 6.5]))
        planned = expire_history(
            open_located(folder), older_than=older, keep_last=last, dry_run=True
        )
        step = {"do": "expire", "older": int(older.timestamp() * 1000), "last": last}
        after = json.loads(Path(java.commit(newest(folder), step)).read_bytes())
        left = {snapshot["snapshot-id"] for snapshot in after["snapshots"]}
        assert left == set(planned.kept), (number, properties, refs, older, last)
        assert set(after["refs"]) == {"main", "audit", "tag"} - set(planned.refs)
        assert ids


@each_case(
    "case",
    [
        {"keep_last": 0}, {"older_than": timedelta(days=-1)},
        {"older_than": datetime(2026, 1, 1)},
    ],
)  # fmt: skip
def test_arguments_that_mean_nothing_are_refused(aged: Path, case: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"keep_last|older_than"):
        expire_history(open_located(aged), **case)


@pytest.mark.parametrize("value", [0, -1, True, "3", 1.5])
def test_settings_that_java_refuses_are_refused(aged: Path, value: Any) -> None:
    alter(aged, {}, {"main": {"min-snapshots-to-keep": value}})
    with pytest.raises(FormatError, match="min-snapshots-to-keep of 'main' is not"):
        expire_history(open_located(aged))


def test_parents_in_a_circle_end(aged: Path) -> None:
    ids = alter(aged, {}, {})
    path = newest(aged)
    document = json.loads(path.read_bytes())
    document["snapshots"][0]["parent-snapshot-id"] = ids[-1]
    path.write_text(json.dumps(document))
    assert kept_numbers(aged, ids, keep_last=99) == list(range(8))


# --- staged snapshots ----------------------------------------------------------------------------


@pytest.fixture
def staged(tmp_path: Path, java: Judge) -> tuple[IcebergTable, int]:
    """A table with a snapshot that Java has staged, and the id of that."""
    metadata = java.create(tmp_path / "s", SCHEMA)
    metadata = java.commit(metadata, {"do": "append", "rows": rows(1)})
    metadata = java.commit(metadata, {"do": "append", "rows": rows(2)})
    metadata = java.commit(metadata, {"do": "append", "rows": rows(3), "stage": "load-7"})
    table = open_table(tmp_path / "s", SampleKms())
    assert table.scan().num_rows == 2
    return table, table.metadata.snapshots[-1].id


def test_staged_rows_stay_and_can_be_published(
    staged: tuple[IcebergTable, int], java: Judge
) -> None:
    table, id_ = staged
    done = expire_history(table, older_than=timedelta(0))
    assert done.kept[id_] == "staged, wap.id load-7"
    assert len(done.kept) == 2
    assert [snapshot.sequence_number for snapshot in done.snapshots] == [1]
    metadata = java.commit(done.table.place.path, {"do": "publish", "snapshot": id_})
    assert len(java.read(metadata)) == 3
    # Once it is published, the staged snapshot goes, and its rows stay.
    again = expire_history(done.table.refreshed())
    assert list(again.kept.values()) == ["current"]
    assert again.table.scan().num_rows == 3


def test_a_copy_of_staged_rows_that_was_published_goes(
    staged: tuple[IcebergTable, int], java: Judge
) -> None:
    table, id_ = staged
    metadata = java.commit(table.place.path, {"do": "append", "rows": rows(9)})
    java.commit(metadata, {"do": "publish", "snapshot": id_})  # as another snapshot
    done = expire_history(table.refreshed())
    assert list(done.kept.values()) == ["current"]
    assert done.table.scan().num_rows == 4


def test_staged_rows_are_lost_only_if_the_caller_says_so_twice(
    staged: tuple[IcebergTable, int],
) -> None:
    table, id_ = staged
    with pytest.raises(IntegrityError, match=r"staged rows.*keep=\[.*rule newest-stays"):
        expire_history(table, force=True)
    assert table.metadata.current is not None
    done = expire_history(table, force=True, keep=[table.metadata.current.id])
    assert id_ in {snapshot.id for snapshot in done.snapshots}
    assert done.table.scan().num_rows == 2

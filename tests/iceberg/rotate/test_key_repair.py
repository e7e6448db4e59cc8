"""Keys that a table has lost: found in older versions, or given up with their snapshots."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modcrypt.errors import KeyMaterialError, KeyNotFoundError
from modcrypt.iceberg import (
    IcebergTable,
    expire_history,
    open_table,
    repair_table,
    rotate_table,
    verify_table,
)
from tests.support.iceberg.made_tables import make_table
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.iceberg.table_changes import ids, rows


@pytest.fixture
def three(tmp_path: Path) -> IcebergTable:
    """Make a table of three snapshots."""
    table = make_table(tmp_path / "t")
    for id_ in (1, 2, 3):
        table = table.append(rows(id_))
    return table


def lose(table: IcebergTable, which: Callable[[dict[str, Any]], bool]) -> IcebergTable:
    """Commit a version without some of the keys, as Java 1.11 does."""
    keys = [key for key in table.metadata.document["encryption-keys"] if not which(key)]
    table.versions.commit(table.place, table.metadata.with_members(encryption_keys=keys))
    return open_table(Path(table.place.path).parent.parent, SampleKms())


def lose_newest(table: IcebergTable) -> IcebergTable:
    newest = table.metadata.snapshots[-1].key_id
    return lose(table, lambda key: key["key-id"] == newest)


def test_a_key_is_found_in_an_older_version(three: IcebergTable) -> None:
    table = lose_newest(three)
    with pytest.raises(KeyNotFoundError):
        table.scan().to_arrow()
    newest = three.metadata.snapshots[-1]
    planned = repair_table(table, dry_run=True)
    assert (planned.restored, planned.lost) == ((newest.key_id,), ())
    assert planned.table.place == table.place
    done = repair_table(table).table
    assert ids(done) == [1, 2, 3]
    assert verify_table(done).ok
    assert repair_table(done).restored == ()
    assert repair_table(done).table.place == done.place
    assert rotate_table(done, "kek").table.scan().num_rows == 3


@pytest.mark.parametrize("what", ["mek", "kek"])
def test_a_rotation_refuses_a_lost_key(three: IcebergTable, what: Any) -> None:
    """The older version's KEK would be dropped, and with it the way to repair the table."""
    table = lose_newest(three)
    with pytest.raises(KeyNotFoundError, match="repair_table"):
        rotate_table(table, what)
    assert table.refreshed().place == table.place


@pytest.mark.parametrize("new_id", ["keyA", "keyB"])
def test_a_lost_kek_moves_to_the_tables_master_key(three: IcebergTable, new_id: str) -> None:
    """The older version has it under the master key of that time."""
    table = rotate_table(three, "mek", new_master_key_id=new_id).table
    properties = {**table.metadata.properties, "encryption.key-id": new_id}
    keks = set(three.metadata.kek_ids())
    keys = [key.document() for id_, key in table.metadata.keys.items() if id_ not in keks]
    place, _ = table.versions.commit(
        table.place, table.metadata.with_members(encryption_keys=keys, properties=properties)
    )
    Path(table.place.path).unlink()
    folder = Path(place.path).parent.parent
    if new_id != "keyA":  # only an unsigned file says that the table was under keyA
        with pytest.raises(KeyMaterialError, match=r"master_key_ids=\['keyB', 'keyA'\]"):
            repair_table(open_table(folder, SampleKms()), drop_lost=True)
        alone = open_table(folder, SampleKms(), master_key_ids=[new_id])
        assert repair_table(alone, dry_run=True).restored == ()
    done = repair_table(open_table(folder, SampleKms(), master_key_ids=["keyA", new_id])).table
    assert ids(done) == [1, 2, 3]
    assert {done.metadata.keys[id_].encrypted_by for id_ in keks} == {new_id}


def test_a_snapshot_without_a_key_is_dropped_on_request(three: IcebergTable) -> None:
    second = expire_history(three).table.append(rows(4))
    table = lose_newest(second)
    for path in Path(table.place.path).parent.glob("v[0-9]*.metadata.json"):
        if path != Path(table.place.path):
            path.unlink()
    lost, intact = second.metadata.snapshots[-1].id, second.metadata.snapshots[0].id
    found = repair_table(table)
    assert (found.lost, found.newest_intact, found.dropped) == ((lost,), intact, False)
    assert found.table.place == table.place
    done = repair_table(table, drop_lost=True)
    assert done.dropped
    assert ids(done.table) == [1, 2, 3]
    opened = open_table(Path(table.place.path).parent.parent, SampleKms())
    assert opened.metadata.refs["main"]["snapshot-id"] == intact
    assert verify_table(opened).ok
    assert ids(opened.append(rows(5))) == [1, 2, 3, 5]


def test_a_table_does_not_go_back_to_the_rows_of_another_branch(three: IcebergTable) -> None:
    first, second, third = three.metadata.snapshots
    refs = {
        "main": {"snapshot-id": second.id, "type": "branch"},
        "audit": {"snapshot-id": third.id, "type": "branch"},
    }
    moved = three.metadata.with_members(current_snapshot_id=second.id, refs=refs)
    three.versions.commit(three.place, moved)
    opened = open_table(Path(three.place.path).parent.parent, SampleKms())
    table = lose(opened, lambda key: key["key-id"] == second.key_id)
    for path in Path(table.place.path).parent.glob("v[0-9]*.metadata.json"):
        if path != Path(table.place.path):
            path.unlink()
    done = repair_table(table, drop_lost=True)
    assert (done.lost, done.newest_intact) == ((second.id,), first.id)
    assert ids(done.table) == [1]
    assert sorted(done.table.scan("audit")["id"].to_pylist()) == [1, 2, 3]


def test_a_planted_key_is_not_taken(three: IcebergTable) -> None:
    """Nothing signs an older metadata.json, but the KEK authenticates a key in it."""
    table = lose_newest(three)
    newest = three.metadata.snapshots[-1].key_id
    for path in Path(table.place.path).parent.glob("v[0-9]*.metadata.json"):
        document = json.loads(path.read_bytes())
        for key in document.get("encryption-keys") or ():
            if key["key-id"] == newest:
                key["encrypted-key-metadata"] = "A" * 100
        if path != Path(table.place.path):
            path.write_text(json.dumps(document))
    assert repair_table(table).restored == ()
    assert repair_table(table).lost == (three.metadata.snapshots[-1].id,)


def test_a_table_without_any_intact_snapshot(three: IcebergTable) -> None:
    table = lose(three, lambda key: True)
    for path in Path(table.place.path).parent.glob("v[0-9]*.metadata.json"):
        if path != Path(table.place.path):
            path.unlink()
    assert repair_table(table, dry_run=True).newest_intact is None
    with pytest.raises(KeyNotFoundError, match="no snapshot"):
        repair_table(table, drop_lost=True)

"""Keys that no snapshot uses are dropped, and no others."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from modcrypt.iceberg import IcebergTable
from modcrypt.iceberg.format.table_metadata import EncryptedKey
from modcrypt.iceberg.rotate.key_pruning import prune_keys
from tests.support.folder_contents import files
from tests.support.iceberg.builder import field, struct
from tests.support.iceberg.by_hand import document, manifest_lists
from tests.support.iceberg.concurrent_commits import with_rival_commits
from tests.support.iceberg.java_judge import Judge
from tests.support.iceberg.resealed_tables import reseal, sealer_under
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.iceberg.shared_table import all_rows, reopen


def without_snapshots(table: IcebergTable, *gone: int) -> IcebergTable:
    """Drop snapshots as Iceberg's Java does it: their keys stay."""
    stay = [snapshot.document for snapshot in table.metadata.snapshots if snapshot.id not in gone]
    return table.at(
        table.versions.commit(table.place, table.metadata.with_members(snapshots=stay))[0]
    )


def key_ids(folder: Path) -> list[str]:
    return [key["key-id"] for key in document(folder)["encryption-keys"]]


def test_entries_of_dropped_snapshots_go_and_keks_that_seal_nothing_more(
    t16: Path, table: IcebergTable, kms: SampleKms
) -> None:
    resolver, metadata = table.walk.resolver, table.metadata
    unused, of_first = resolver.masters.new_keks("keyA", 16, ["", ""])
    first = metadata.snapshots[0]
    opened = resolver.decrypt_entry(metadata.keys[first.key_id or ""], metadata)
    entry = replace(resolver.encrypt_entry(opened, of_first), id=first.key_id or "")
    keys = {**metadata.keys, entry.id: entry}
    new = [unused.key.entry(), of_first.key.entry(), *keys.values()]
    table = table.at(table.versions.commit(table.place, metadata.with_keys(new))[0])
    everything = prune_keys(table)
    assert everything.keks == (unused.key.id,)

    table = without_snapshots(everything.table, 1001)
    before, rows, size = key_ids(t16), table.scan().num_rows, len(files(t16))
    kms.calls.clear()
    planned = prune_keys(table, dry_run=True)
    assert key_ids(t16) == before
    done = prune_keys(table)

    assert kms.calls == []
    assert (done.keks, done.entries, done.kept) == ((of_first.key.id,), (first.key_id,), 3)
    assert (planned.keks, planned.entries, planned.saved) == (done.keks, done.entries, done.saved)
    assert (planned.dry_run, done.dry_run) == (True, False)
    assert planned.table is table
    assert key_ids(t16) == [id_ for id_ in before if id_ not in (of_first.key.id, first.key_id)]
    assert len(files(t16)) == size + 1
    old, new_file = (t16 / "metadata" / f"v{n}.metadata.json" for n in (4, 5))
    assert old.name in done.older_versions[-1]
    shorter = len(old.read_bytes()) - len(new_file.read_bytes())
    log = len(json.dumps(document(t16)["metadata-log"][-1], separators=(",", ":"))) + 1
    assert shorter == done.saved - log
    assert manifest_lists(t16).keys() == {1002, 1003}
    assert done.table.scan().num_rows == rows
    assert set(done.fields()) == {
        "dry_run", "keks", "entries", "kept", "saved", "older_versions",
    }  # fmt: skip


def test_a_table_without_unused_keys_stays_as_it_is(t16: Path, table: IcebergTable) -> None:
    before = files(t16)
    done = prune_keys(table)
    assert (done.keks, done.entries, done.kept, done.saved) == ((), (), 4, 0)
    assert done.table is table
    assert files(t16) == before


@pytest.mark.parametrize("scope", ["partition=a", "files"])
def test_keks_that_seal_keys_in_manifests_stay(t16: Path, table: IcebergTable, scope: str) -> None:
    rows = all_rows(table)
    table = reseal(table, sealer_under(scope))
    more = table.walk.resolver.masters.new_keks("keyA", 16, [scope])[0].key.entry()
    keys = [*table.metadata.keys.values(), more]
    table = table.at(table.versions.commit(table.place, table.metadata.with_keys(keys))[0])
    done = prune_keys(table)
    assert done.keks == (more.id,)
    assert all_rows(reopen(t16)) == rows


def test_what_somebody_else_commits_meanwhile_is_looked_at_again(
    t16: Path, table: IcebergTable
) -> None:
    """Another entry, unused when this began, is that of a snapshot by now."""
    metadata = table.metadata
    entry = metadata.keys[metadata.snapshots[-1].key_id or ""]
    spare = EncryptedKey("spare", entry.encrypted, entry.encrypted_by)
    gone = EncryptedKey("gone", os.urandom(60), entry.encrypted_by)
    keys = [*metadata.keys.values(), spare, gone]
    table = table.at(table.versions.commit(table.place, metadata.with_keys(keys))[0])

    def use_it() -> None:
        now = reopen(t16)
        *older, last = (snapshot.document for snapshot in now.metadata.snapshots)
        now.versions.commit(
            now.place, now.metadata.with_members(snapshots=[*older, {**last, "key-id": "spare"}])
        )

    done = prune_keys(with_rival_commits(table, use_it, 1))
    assert done.entries == (entry.id, "gone")
    assert "spare" in key_ids(t16)
    assert reopen(t16).scan().num_rows == 137


def test_many_keys_that_java_left_go(tmp_path: Path, java: Judge) -> None:
    from modcrypt.iceberg import open_table

    metadata = java.create(tmp_path, struct(field(1, "id", "long")))
    for n in range(4):
        metadata = java.commit(metadata, {"do": "append", "rows": [{"id": n}]})
    metadata = java.commit(metadata, {"do": "expire"})
    rows = java.read(metadata)
    assert len(rows) == 4
    table = open_table(tmp_path, SampleKms())
    assert len(table.metadata.keys) == 5
    done = prune_keys(table)
    assert (len(done.keks), len(done.entries), done.kept) == (0, 3, 2)
    assert java.read(done.table.place.path) == rows
    again = java.commit(done.table.place.path, {"do": "append", "rows": [{"id": 9}]})
    assert len(java.read(again)) == 5

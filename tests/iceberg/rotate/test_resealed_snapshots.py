"""Rotate KEKs of manifests where snapshots cannot be changed, as in REST catalogs.

Most tests use a folder whose versions say the same, so that no server has to start.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modcrypt.errors import KeyRetrievalError
from modcrypt.iceberg import (
    IcebergTable,
    KeyPolicy,
    SqliteKeyStore,
    expire_history,
    open_table,
    prune_keys,
    rotate_table,
    set_policy,
    verify_table,
)
from modcrypt.iceberg.format.manifest_rows.file_entries import ADDED, EXISTING
from modcrypt.iceberg.format.table_versions import FolderVersions
from modcrypt.iceberg.rotate.manifests.wrapped_in_manifests import encrypting_keys
from modcrypt.iceberg.tables import rest_requests
from tests.support.iceberg.concurrent_commits import with_rival_commits
from tests.support.iceberg.made_tables import make_table
from tests.support.iceberg.partitioned_table import BY_KIND, KINDS, some
from tests.support.iceberg.rest_catalog import RestTable
from tests.support.iceberg.sample_kms import Refusing, SampleKms

POLICIES = {
    "partition": KeyPolicy(kek_per="partition"),
    "files": KeyPolicy(kek_per="files", files=1),
    "single": KeyPolicy(kek_per="files", wrapping="single"),
    "store": KeyPolicy(kek_per="partition", store="key-store"),
}

Open = Callable[..., IcebergTable]


def ids(table: IcebergTable, snapshot: Any = None) -> list[int]:
    found: list[int] = table.scan(snapshot)["id"].to_pylist()
    return sorted(found)


@pytest.fixture(params=["folder", pytest.param("rest", marks=pytest.mark.slow)])
def make(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[KeyPolicy], Open]:
    """A function that makes a table with a policy and returns how to open it."""
    store = SqliteKeyStore.create(tmp_path / "keks.db")
    uri = request.getfixturevalue("server") if request.param == "rest" else None

    def make_and_open(policy: KeyPolicy) -> Open:
        own: dict[str, Any] = {"key_store": store} if policy.store == "key-store" else {}
        made = {"policy": policy, "partition_spec": BY_KIND, **own}
        if uri is not None:
            table = RestTable.make(uri, KINDS, **made)
            return lambda kms=None, **more: table.load(kms, **own, **more)
        monkeypatch.setattr(FolderVersions, "merges", True)
        make_table(tmp_path / "t", KINDS, **made)
        return lambda kms=None, **more: open_table(
            tmp_path / "t", kms or SampleKms(), **own, **more
        )

    return make_and_open


def sealed_by(table: IcebergTable, ref: Any = None) -> set[str]:
    """Return the ids of the keys that encrypt key metadata in the manifests of a snapshot."""
    snapshot = table.snapshot(ref or "main")
    assert snapshot is not None
    walk = table.walk
    entries = [entry for each in walk.manifests(snapshot) for entry in walk.entries(each)]
    return {id_ for id_, _ in encrypting_keys(entry for entry in entries if entry.is_live)}


@pytest.mark.parametrize("name", POLICIES)
def test_heads_get_new_keys_and_older_snapshots_keep_theirs(
    make: Callable[[KeyPolicy], Open], name: str
) -> None:
    opened = make(POLICIES[name])
    table = opened().append(some(1, 2)).append(some(3)).delete("id = 2")
    first, numbers = table.snapshot("main"), entries_of(table)
    assert first is not None
    planned = rotate_table(table, "kek", new_master_key_id="keyB", dry_run=True)
    done = rotate_table(table, "kek", new_master_key_id="keyB")
    table = opened()
    assert ids(table) == ids(table, first.id) == [1, 3]
    assert entries_of(table) == numbers
    for number in ("manifests", "keks", "new_keks", "older_snapshots", "kms_calls"):
        assert getattr(done, number) == getattr(planned, number), number
    assert done.older_snapshots
    assert "contain" in (done.advice or "")
    assert sealed_by(table).isdisjoint(sealed_by(table, first.id))
    assert table.snapshot("main").operation == "replace"  # type: ignore[union-attr]
    assert table.metadata.master_key_id == "keyB"
    assert verify_table(table).ok
    again = rotate_table(table, "kek").table
    assert ids(again.append(some(4))) == [1, 3, 4]
    expire_history(opened())
    assert ids(opened(Refusing("keyA"))) == [1, 3, 4]
    assert prune_keys(opened()).keks == ()
    assert verify_table(opened(Refusing("keyA"))).ok


def entries_of(table: IcebergTable) -> list[tuple[Any, ...]]:
    """Return the numbers of the live files of the current snapshot."""
    snapshot = table.snapshot("main")
    assert snapshot is not None
    found = [
        (entry.location, entry.snapshot_id, entry.sequence_number, entry.file_sequence_number)
        for manifest in table.walk.manifests(snapshot)
        for entry in table.walk.entries(manifest)
        if entry.is_live
    ]
    return sorted(found)


def test_branches_and_tags_follow(make: Callable[[KeyPolicy], Open]) -> None:
    opened = make(POLICIES["partition"])
    table = opened().append(some(1, 2))
    table = table.append(some(3), branch="ahead").refreshed()
    table = table.append(some(4), branch="ahead").refreshed().delete("id = 1", branch="ahead")
    before = {ref: sealed_by(table, ref) for ref in ("main", "ahead")}
    done = rotate_table(table, "kek")
    table = opened()
    assert ids(table) == [1, 2]
    assert ids(table, "ahead") == [2, 3, 4]
    for ref, keys in before.items():
        assert sealed_by(table, ref).isdisjoint(keys)
    ahead, main = table.snapshot("ahead"), table.snapshot("main")
    assert ahead is not None
    assert main is not None
    assert ahead.parent == main.id
    assert len(done.older_snapshots) == 4
    walk = table.walk
    statuses = [
        entry.status
        for snapshot in (main, ahead)
        for manifest in walk.manifests(snapshot)
        for entry in walk.entries(manifest)
        if entry.is_live and entry.snapshot_id != ahead.id
    ]
    assert set(statuses) == {EXISTING}
    added = [
        entry
        for manifest in walk.manifests(ahead)
        for entry in walk.entries(manifest)
        if entry.status == ADDED
    ]
    assert {entry.snapshot_id for entry in added} == {ahead.id}
    assert verify_table(table).ok
    expire_history(table)
    assert ids(opened(), "ahead") == [2, 3, 4]
    assert ids(opened()) == [1, 2]


def test_manifests_without_wrapped_keys_stay(make: Callable[[KeyPolicy], Open]) -> None:
    opened = make(KeyPolicy())
    table = opened().append(some(1))
    plain = table.walk.manifests(table.snapshot("main"))  # type: ignore[arg-type]
    table = set_policy(table, POLICIES["partition"]).append(some(2))
    rotate_table(table, "kek")
    table = opened()
    after = table.walk.manifests(table.snapshot("main"))  # type: ignore[arg-type]
    assert plain[0].location in {manifest.location for manifest in after}
    assert ids(table) == [1, 2]
    assert verify_table(table).ok
    table = expire_history(set_policy(table, KeyPolicy())).table
    table = rotate_table(table, "dek").table  # the heads have no wrapped keys, older ones do
    count = len(table.metadata.snapshots)
    done = rotate_table(table, "kek")
    assert len(done.table.metadata.snapshots) == count
    assert (done.manifests, len(done.older_snapshots)) == (0, 1)
    assert ids(opened()) == [1, 2]
    assert ids(opened(), done.older_snapshots[0]) == [1, 2]


@pytest.mark.parametrize("name", POLICIES)
def test_a_rival_append_is_not_lost(make: Callable[[KeyPolicy], Open], name: str) -> None:
    opened = make(POLICIES[name])
    table = opened().append(some(1, 2))
    table = with_rival_commits(table, lambda: opened().append(some(3)), 1)
    rotate_table(table, "kek", new_master_key_id="keyB")
    table = opened()
    assert ids(table) == [1, 2, 3]
    assert ids(opened().append(some(4))) == [1, 2, 3, 4]
    assert verify_table(opened()).ok
    expire_history(opened())
    assert ids(opened(Refusing("keyA"))) == [1, 2, 3, 4]


def test_a_retry_moves_no_kek_again(make: Callable[[KeyPolicy], Open]) -> None:
    opened, wraps = make(POLICIES["partition"]), []
    opened().append(some(1, 2)).append(some(3))
    for rivals in (0, 1):
        kms, target = SampleKms(), f"key{'BA'[rivals]}"
        table = with_rival_commits(opened(kms), lambda: opened().append(some(4)), rivals)
        rotate_table(table, "kek", new_master_key_id=target)
        wraps.append(sum(call == ("wrap", target) for call in kms.calls))
        assert verify_table(expire_history(opened()).table).ok
    assert wraps == [5, 5]  # two that older snapshots need, and three new ones


def test_a_staged_snapshot_is_mentioned(make: Callable[[KeyPolicy], Open]) -> None:
    opened = make(POLICIES["partition"])
    table = opened().append(some(1)).append(some(2), branch="audit").refreshed()
    staged = table.append(some(3), branch="wap", snapshot_properties={"wap.id": "x"})
    refs = {name: ref for name, ref in staged.metadata.refs.items() if name != "wap"}
    keys = staged.metadata.keys.values()
    staged.versions.commit(staged.place, staged.metadata.with_keys(keys, refs=refs))
    assert "1 staged snapshot (wap.id)" in (rotate_table(opened(), "kek").advice or "")


def test_without_the_old_master_key_nothing_changes(make: Callable[[KeyPolicy], Open]) -> None:
    opened = make(POLICIES["partition"])
    table = opened().append(some(1))
    place = table.place
    with pytest.raises(KeyRetrievalError):
        rotate_table(opened(Refusing("keyB")), "kek", new_master_key_id="keyB")
    assert opened().place.path == place.path
    assert ids(opened()) == [1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rival"),
    [*(("partition", rival) for rival in ("mek", "kek", "dek")), ("single", "kek"),
     ("single", "dek")],
)  # fmt: skip
def test_a_rival_rotation_at_the_server(
    server: str, monkeypatch: pytest.MonkeyPatch, name: str, rival: Any
) -> None:
    named = RestTable.make(server, KINDS, policy=POLICIES[name], partition_spec=BY_KIND)
    both = {"master_key_ids": ["keyA", "keyB"]}
    table = named.load(**both).append(some(1, 2)).append(some(3))
    real = rest_requests.commit

    def commit(*arguments: Any) -> Any:
        monkeypatch.setattr(rest_requests, "commit", real)
        new_id = None if rival == "dek" else "keyB"
        rotate_table(named.load(**both), rival, new_master_key_id=new_id)
        return real(*arguments)

    monkeypatch.setattr(rest_requests, "commit", commit)
    rotate_table(table, "kek")
    after = named.load(**both)
    assert ids(after) == [1, 2, 3]
    assert all(ids(after, old.id) for old in after.metadata.snapshots)
    assert verify_table(after).ok
    expire_history(after.append(some(4)))
    master = after.metadata.master_key_id
    other = "keyB" if master == "keyA" else "keyA"
    assert ids(named.load(Refusing(other), **both)) == [1, 2, 3, 4]

"""KEKs in a key store: what rotation and expiry leave there, whoever else is at work meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import modcrypt as mc
from modcrypt.iceberg import (
    IcebergTable,
    KeyPolicy,
    SqliteKeyStore,
    expire_history,
    open_table,
    rotate_table,
    set_policy,
    verify_table,
)
from modcrypt.iceberg.keys.wrapping_keys import TABLE
from modcrypt.iceberg.rotate import expiry
from modcrypt.iceberg.write import commit as committing
from modcrypt.iceberg.write.new_files import NewFiles
from tests.support.cases import each_case
from tests.support.iceberg.concurrent_commits import with_rival_commits
from tests.support.iceberg.made_tables import make_table
from tests.support.iceberg.partitioned_table import BY_KIND, KINDS, some
from tests.support.iceberg.sample_kms import Refusing, SampleKms
from tests.support.iceberg.table_changes import ids

PER = ("partition", "files")


class Lake:
    """A table of two snapshots, with KEKs for its files in a store."""

    def __init__(self, folder: Path, per: Any) -> None:
        self.folder = folder
        self.store = SqliteKeyStore.create(folder / "keks.db")
        policy = KeyPolicy(kek_per=per, files=1, store="key-store")
        self.table = (
            make_table(
                folder / "t", KINDS, partition_spec=BY_KIND, policy=policy, key_store=self.store
            )
            .append(some(1, 2))
            .append(some(3, 4))
        )

    def open(self, *refused: str) -> IcebergTable:
        return open_table(self.folder / "t", Refusing(*refused), key_store=self.store)

    def kek_ids(self) -> set[str]:
        return set(self.store.keys())


OF_C = pa.table({"id": [5], "kind": ["c"]}, schema=KINDS)


def spare(lake: Lake) -> str:
    """Put a KEK for a partition without files into the store; return its id."""
    masters, table = lake.table.walk.resolver.masters, lake.table.metadata.uuid
    made = masters.new_kek("keyA", 16, "partition=kind=c", table=table)
    lake.store.replace([made.key])
    return made.key.id


@pytest.fixture(params=PER)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(tmp_path, request.param)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committing, "FIRST_PAUSE", 0)


# --- what stays, and how long --------------------------------------------------------------------


def test_old_keks_stay_for_older_versions_until_the_history_is_dropped(lake: Lake) -> None:
    before, older = lake.kek_ids(), lake.table.place.path
    rotate_table(lake.open(), "kek")
    assert lake.kek_ids() > before
    # Somebody has the old version open.
    assert open_table(older, SampleKms(), key_store=lake.store).scan().num_rows == 4
    planned = expire_history(lake.open(), dry_run=True)
    assert lake.kek_ids() > before
    done = expire_history(lake.open())
    assert set(planned.keys) == set(done.keys) >= before
    assert (done.unreadable, done.left) == ((), ())
    assert len(done.manifest_lists) == 3
    assert before.isdisjoint(lake.kek_ids())
    report = verify_table(done.table)
    assert report.ok
    assert not report.orphans
    assert ids(lake.table) == [1, 2, 3, 4]
    again = expire_history(lake.open())
    assert again.table.place == done.table.place
    assert again.keys == ()


def test_a_kek_that_nothing_was_under_is_used_no_more(tmp_path: Path) -> None:
    """Of a partition without files, say: its KEK is as old as the others."""
    lake = Lake(tmp_path, "partition")
    old = spare(lake)
    table = rotate_table(lake.open(), "kek").table.append(OF_C)
    assert old not in set(table.files()["sealed_by"].to_pylist())
    assert old in expire_history(table).keys


def test_a_clock_that_was_fast_makes_no_kek_stay_in_use(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "partition")
    masters, uuid = lake.table.walk.resolver.masters, lake.table.metadata.uuid
    later = int(time.time() * 1000) + 3600_000
    ahead = masters.new_kek("keyA", 16, "partition=kind=b", table=uuid, now_ms=later).key
    lake.store.replace([ahead])
    table = lake.open().append(some(5))
    assert ahead.id in set(table.files()["sealed_by"].to_pylist())
    table = rotate_table(table, "kek").table.append(some(7))
    assert ahead.id not in set(table.files()["sealed_by"].to_pylist())
    assert ids(table) == [1, 2, 3, 4, 5, 7]


def test_a_rotation_by_a_fast_clock_makes_no_kek_for_each_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, real = Lake(tmp_path, "partition"), time.time
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: real() + 3600)
        rotate_table(lake.open(), "kek")
    before = lake.kek_ids()
    for _ in range(3):
        lake.open().append(OF_C)
    assert len(lake.kek_ids() - before) == 1


def test_a_time_of_new_keks_that_is_none_is_an_error(tmp_path: Path) -> None:
    table = rotate_table(Lake(tmp_path, "partition").open(), "kek").table
    properties = {**table.metadata.properties, "modcrypt.keks-since": "soon"}
    table.versions.commit(table.place, table.metadata.with_members(properties=properties))
    with pytest.raises(mc.errors.FormatError, match="keks-since"):
        table.append(OF_C)


def test_a_store_that_the_policy_has_left_is_left_empty(lake: Lake) -> None:
    table = set_policy(lake.open(), KeyPolicy())
    done = expire_history(rotate_table(table, "dek").table)
    assert lake.kek_ids() == set()
    assert ids(open_table(lake.folder / "t", SampleKms())) == [1, 2, 3, 4]
    assert verify_table(done.table).ok


def test_a_kek_that_names_no_table_may_be_anothers(lake: Lake) -> None:
    (made,) = lake.table.walk.resolver.masters.new_keks("keyA", 16, ["partition=kind=a"])
    lake.store.replace([made.key])
    expire_history(rotate_table(lake.open(), "kek").table)
    assert made.key.id in lake.kek_ids()
    assert TABLE not in made.key.properties


def test_keks_stay_while_something_cannot_be_deleted(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = lake.kek_ids()
    rotate_table(lake.open(), "kek")
    with monkeypatch.context() as patch:
        patch.setattr(expiry, "remove_files", lambda files: [location for location, _ in files])
        done = expire_history(lake.open())
    assert set(done.left) >= before
    assert lake.kek_ids() >= before
    done = expire_history(lake.open())
    assert (done.unreadable, done.left) == ((), ())
    assert before.isdisjoint(lake.kek_ids())
    assert not verify_table(done.table).orphans


def test_a_store_that_fails_is_reported_and_asked_again(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = lake.kek_ids()
    rotate_table(lake.open(), "kek")

    def full(*_: object) -> None:
        raise OSError("full")

    with monkeypatch.context() as patch:
        patch.setattr(SqliteKeyStore, "replace", full)
        assert set(expire_history(lake.open()).left) >= before
    assert expire_history(lake.open()).left == ()
    assert before.isdisjoint(lake.kek_ids())
    assert ids(lake.table) == [1, 2, 3, 4]


def test_a_service_that_is_away_for_a_moment_has_nothing_dropped(lake: Lake) -> None:
    """Otherwise files that only its answer reveals would stay for ever."""

    class Away(SampleKms):
        def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
            if master_key_id == "keyA":
                raise mc.errors.KmsUnavailableError("away")
            return super().unwrap(wrapped, master_key_id, aad=aad)

    rotate_table(lake.open(), "kek", new_master_key_id="keyB")
    before = sorted(lake.folder.rglob("*"))
    with pytest.raises(mc.errors.KmsUnavailableError):
        expire_history(open_table(lake.folder / "t", Away(), key_store=lake.store))
    assert sorted(lake.folder.rglob("*")) == before
    assert len(expire_history(lake.open()).manifest_lists) == 3


def test_a_lost_master_key_of_old_keks_keeps_no_rotation_up(lake: Lake) -> None:
    before = lake.kek_ids()
    rotate_table(lake.open(), "kek", new_master_key_id="keyB")
    done = rotate_table(lake.open("keyA"), "mek")
    assert set(done.left) == before
    assert "expire_history" in str(done.advice)
    assert rotate_table(lake.open(), "mek").left == ()
    assert {key.master_key_id for key in lake.store.keys().values()} == {"keyB"}


def test_an_empty_table_has_nothing_to_rotate(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", KINDS)
    done = rotate_table(table, "kek")
    assert (done.committed, done.table.place) == (False, table.place)
    assert rotate_table(table, "kek", new_master_key_id="keyB").master_key_id == "keyB"


# --- others at work meanwhile --------------------------------------------------------------------


def rotate(lake: Lake, others: Callable[[], object], times: int = 1) -> None:
    rotate_table(with_rival_commits(lake.open(), others, times), "kek")


def test_rows_that_come_just_before_the_commit_keep_their_keks(lake: Lake) -> None:
    """They are under the rotation's own new KEKs, which are in the store by then."""
    rotate(lake, lambda: lake.open().append(some(5, 6)), 2)
    assert ids(lake.table) == [1, 2, 3, 4, 5, 5, 6, 6]
    assert ids(expire_history(lake.open()).table) == [1, 2, 3, 4, 5, 5, 6, 6]


def test_rows_under_the_new_keks_of_a_rotation_that_fails_stay(lake: Lake) -> None:
    with pytest.raises(mc.errors.CommitConflictError):
        rotate(lake, lambda: lake.open().append(some(5)), committing.ATTEMPTS)
    assert ids(lake.table) == [1, 2, 3, 4, *[5] * committing.ATTEMPTS]


def test_rows_that_come_right_after_the_commit_keep_their_keks(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a new partition, whose KEK is in the store before."""
    real = NewFiles.finish
    spare(lake)

    def finish(files: NewFiles) -> None:
        monkeypatch.undo()
        lake.open().append(OF_C)
        real(files)

    monkeypatch.setattr(NewFiles, "finish", finish)
    rotate_table(lake.open(), "kek")
    assert ids(lake.table) == [1, 2, 3, 4, 5]
    assert ids(expire_history(lake.open()).table) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("what", ["append", "kek", "dek"])
def test_expiry_drops_no_kek_that_somebody_is_about_to_commit(what: Any, lake: Lake) -> None:
    rotate_table(lake.open(), "kek")
    slow = with_rival_commits(lake.open(), lambda: expire_history(lake.open()), 2)
    _ = slow.append(some(5, 6)) if what == "append" else rotate_table(slow, what)
    assert ids(lake.table) == [1, 2, 3, 4, *([5, 6] if what == "append" else [])]


@each_case("what", ["append", "kek", "dek", "expire"])
def test_whoever_commits_during_an_expiry_keeps_his_keks(what: Any, lake: Lake) -> None:
    rotate_table(lake.open(), "kek")

    def others() -> None:
        if what == "append":
            lake.open().append(some(5, 6))
        elif what == "expire":
            expire_history(lake.open())
        else:
            rotate_table(lake.open(), what)

    done = expire_history(with_rival_commits(lake.open(), others, 2))
    more = [5, 5, 6, 6] if what == "append" else []
    assert ids(lake.table) == [1, 2, 3, 4, *more]
    assert ids(done.table.append(some(7))) == [1, 2, 3, 4, *more, 7]
    assert verify_table(lake.open()).ok

"""Tables of a real Hive metastore: changed as tables in folders are, under the metastore's lock."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from modcrypt.errors import CommitConflictError, IntegrityError
from modcrypt.iceberg import verify_table
from modcrypt.iceberg.format.java_metadata import hash_as_java
from modcrypt.iceberg.tables import hive_locks
from modcrypt.iceberg.tables.hive_pointer import HivePointer
from tests.support.iceberg.catalog_tables import (
    CATALOG_CHECKS,
    append_in_processes,
    check_encryption,
)
from tests.support.iceberg.cli_runs import Run, check_changes, check_seals, run
from tests.support.iceberg.hive_catalog import HiveTable, lost_answers
from tests.support.iceberg.made_tables import make_table
from tests.support.iceberg.table_changes import CHANGES, ids, rows

__all__ = ["run"]  # a fixture

pytestmark = pytest.mark.slow  # a metastore takes seconds to start


@pytest.fixture
def hive(metastore: str) -> HiveTable:
    return HiveTable.make(metastore)


@pytest.mark.parametrize("check", CATALOG_CHECKS)
def test_what_holds_in_every_catalog(hive: HiveTable, check: Any) -> None:
    check(hive)


def test_every_change_of_a_folders_table(hive: HiveTable) -> None:
    table = hive.load().append(rows(1)).append(rows(2))
    for name, change in CHANGES.items():
        before = hive.entry().parameters["metadata_location"]
        table = change(hive.load())
        parameters = hive.entry().parameters
        if name != "prune":  # without another writer nothing is left to drop
            if name != "upsert":  # which is two changes
                assert parameters["previous_metadata_location"] == before, name
            assert parameters["metadata_location"].endswith(table.place.name), name
        assert parameters["metadata_hash"] == hash_as_java(table.metadata), name
        assert parameters["encryption.key-id"] == table.metadata.master_key_id, name
        assert ids(hive.load()) == [1, 2, 9], name
        assert verify_table(hive.load()).ok, name
    assert hive.entry().parameters["encryption.key-id"] == "keyB"
    assert hive.entry().parameters["numRows"] == "3"
    assert hive.locks() == []


def test_a_plaintext_table_is_encrypted_into_a_metastore(hive: HiveTable, tmp_path: Path) -> None:
    check_encryption(hive, tmp_path)


def test_the_command_line_opens_a_metastore_by_its_uri(
    hive: HiveTable, run: Run, tmp_path: Path
) -> None:
    check_changes(run, tmp_path, hive.uri, hive)
    assert hive.entry().parameters["encryption.key-id"] == "keyB"


def test_seals(hive: HiveTable, run: Run, tmp_path: Path) -> None:
    check_seals(run, tmp_path, hive.uri, hive.name)


def test_names_are_taken_once(hive: HiveTable) -> None:
    with pytest.raises(FileExistsError, match="already has a table"):
        make_table(None, catalog=hive.catalog, identifier=hive.name)
    with pytest.raises(ValueError, match="the catalog has no table"):
        HiveTable(hive.uri, "nowhere.orders").load()


def test_a_metastore_that_refuses_is_an_error_of_the_file_system(
    hive: HiveTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hive_metastore.ThriftHiveMetastore import Client
    from hive_metastore.ttypes import MetaException

    table = hive.load()

    def alter(self: Any, *arguments: Any) -> None:
        raise MetaException("no such type")

    monkeypatch.setattr(Client, "alter_table_with_environment_context", alter)
    with pytest.raises(OSError, match="the Hive metastore failed: MetaException"):
        table.append(rows(1))
    monkeypatch.undo()
    assert hive.locks() == []
    assert ids(table.append(rows(2))) == [2]


@pytest.mark.parametrize("change", ["append", "mek", "kek", "dek"])
@pytest.mark.parametrize("done", [True, False])
def test_the_metastore_is_asked_when_its_answer_is_lost(
    hive: HiveTable, change: str, done: bool
) -> None:
    """The request may still be under way: no file that it names is removed."""
    table = hive.load().append(rows(1))
    with lost_answers(done=done):
        try:
            CHANGES[change](table)
        except OSError:
            assert not done
    table = hive.load()
    assert ids(table) == ([1, 9] if change == "append" and done else [1])
    assert verify_table(table).ok
    assert hive.locks() == []


@pytest.mark.parametrize("change", ["append", "mek", "kek", "dek"])
def test_a_request_that_the_metastore_repeats_is_no_conflict(hive: HiveTable, change: str) -> None:
    """Its second try finds the location that the first has set (HIVE-26882)."""
    from hive_metastore.ttypes import MetaException

    table = hive.load().append(rows(1))
    modified = MetaException("The table has been modified. The parameter value for key ...")
    with lost_answers(done=True, error=modified):
        CHANGES[change](table)
    assert ids(hive.load()) == ([1, 9] if change == "append" else [1])
    assert verify_table(hive.load()).ok
    with lost_answers(done=False, error=modified), pytest.raises(CommitConflictError):
        table.versions.commit(hive.load().place, hive.load().metadata)


def test_a_request_that_arrives_late_finds_its_files(
    hive: HiveTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hive_metastore.ThriftHiveMetastore import Client

    table = hive.load().append(rows(1))
    late: list[Any] = []

    def alter(self: Any, *arguments: Any) -> None:
        late.extend(arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Client, "alter_table_with_environment_context", alter)
        with pytest.raises(KeyboardInterrupt):
            table.append(rows(2))
    with hive.catalog._client as client:
        client.alter_table_with_environment_context(*late)
    assert ids(hive.load()) == [1, 2]
    assert verify_table(hive.load()).ok


def test_a_late_request_does_not_undo_others(
    hive: HiveTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock has expired, and another writer has committed: the metastore compares."""
    table = hive.load()
    real = hive_locks.HeldLock.ensure_held

    def others_first(self: hive_locks.HeldLock) -> None:
        monkeypatch.setattr(hive_locks.HeldLock, "ensure_held", real)
        real(self)
        hive.change(metadata_location=other.entry().parameters["metadata_location"])

    other = HiveTable.make(hive.uri)
    monkeypatch.setattr(hive_locks.HeldLock, "ensure_held", others_first)
    with pytest.raises(CommitConflictError):
        table.versions.commit(table.place, table.metadata)


def test_a_lock_that_has_expired_is_a_conflict(
    hive: HiveTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hive_metastore.ttypes import UnlockRequest

    table = hive.load()
    real = hive_locks.HeldLock.ensure_held

    def expired(self: hive_locks.HeldLock) -> None:
        monkeypatch.setattr(hive_locks.HeldLock, "ensure_held", real)
        self.client.unlock(UnlockRequest(lockid=self.id))
        real(self)

    monkeypatch.setattr(hive_locks.HeldLock, "ensure_held", expired)
    before = set(Path(table.place.path).parent.iterdir())
    with pytest.raises(CommitConflictError, match="expired"):
        table.versions.commit(table.place, table.metadata)
    assert set(Path(table.place.path).parent.iterdir()) == before
    assert ids(table.append(rows(1))) == [1]


_HOLD = """
import sys, time
from modcrypt.iceberg.tables.hive_locks import table_lock
from pyiceberg.catalog.hive import HiveCatalog
catalog = HiveCatalog("hive", uri=sys.argv[1])
with table_lock(lambda: HiveCatalog._create_hive_client(catalog.properties), *sys.argv[2:]):
    print("held", flush=True)
    time.sleep(600)
"""


@contextmanager
def held_lock(hive: HiveTable) -> Iterator[None]:
    """Have another process hold the lock of a table, until it is killed at the end."""
    command = [sys.executable, "-c", _HOLD, hive.uri, *hive.name.split(".")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield
        holder.kill()


def test_the_lock_of_a_killed_process_is_released(
    hive: HiveTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = hive.load()
    monkeypatch.setattr(hive_locks, "PATIENCE", 0.5)
    with held_lock(hive), pytest.raises(CommitConflictError, match="another writer holds"):
        table.versions.commit(table.place, table.metadata)
    assert len(hive.locks()) == 1
    monkeypatch.undo()
    assert ids(table.append(rows(1))) == [1]
    assert hive.locks() == []


def test_the_lock_of_another_machine_is_left(
    hive: HiveTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = hive.load()
    with held_lock(hive):
        pass
    monkeypatch.setattr(hive_locks, "PATIENCE", 0.5)
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    with pytest.raises(CommitConflictError, match="another writer holds"):
        table.versions.commit(table.place, table.metadata)
    assert len(hive.locks()) == 1


def test_processes_of_others_may_be_hidden(
    hive: HiveTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine with `hidepid` shows only a user's own processes, and a user may have no name."""

    def fail() -> str:
        raise OSError("No username set in the environment")

    monkeypatch.setattr("getpass.getuser", fail)
    with hive_locks.table_lock(lambda: hive.catalog._client, *hive.name.split(".")):
        (lock,) = hive.locks()
        assert lock.user == str(os.getuid())
        assert not hive_locks._is_abandoned(lock)
        monkeypatch.setattr(hive_locks, "_read_status", lambda process: [])
        assert not hive_locks._is_abandoned(lock)
        lock.agentInfo = lock.agentInfo.replace(f" {os.getpid()} ", " 999999999 ")
        assert hive_locks._is_abandoned(lock)
        lock.agentInfo = lock.agentInfo.replace(" 999999999 ", f" {10**30} ")
        assert not hive_locks._is_abandoned(lock)


def test_metadata_that_was_altered_is_refused(hive: HiveTable) -> None:
    table = hive.load().append(rows(1))
    data = Path(table.place.path).read_bytes()
    altered = data.replace(b'"total-records":"1"', b'"total-records":"7"')
    assert altered != data
    Path(table.place.path).write_bytes(altered)
    for use in (hive.load, partial(table.append, rows(2))):
        with pytest.raises(IntegrityError, match="another hash"):
            use()
    Path(table.place.path).write_bytes(data)
    assert ids(table.append(rows(2))) == [1, 2]


def test_an_entry_that_is_half_old_is_read_again(
    hive: HiveTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metastore's database may return one row before a commit, and another one after it."""
    hive.load().append(rows(1))
    find, reads = HivePointer.find, list[Any]()

    def find_half_old(pointer: HivePointer) -> Any:
        found = find(pointer)
        assert found is not None
        reads.append(found._replace(digest=f"old {len(reads)}") if len(reads) < 2 else found)
        return reads[-1]

    monkeypatch.setattr(HivePointer, "find", find_half_old)
    assert ids(hive.load()) == [1]
    assert [entry.digest for entry in reads[:2]] == ["old 0", "old 1"]


def test_a_table_without_a_hash_gets_one(hive: HiveTable) -> None:
    """Java 1.11 and pyiceberg store none."""
    hive.change(metadata_hash="")
    table = hive.load().append(rows(1))
    assert hive.entry().parameters["metadata_hash"] == hash_as_java(table.metadata)


def test_a_table_without_a_hash_keeps_its_master_key(hive: HiveTable) -> None:
    table = hive.load()
    hive.change(metadata_hash="")
    place = Path(table.place.path)
    place.write_bytes(place.read_bytes().replace(b'"keyA"', b'"keyB"'))
    with pytest.raises(IntegrityError, match=r"has the master key 'keyA' .* the file 'keyB'"):
        hive.load()


def test_two_processes_append_at_once(hive: HiveTable) -> None:
    append_in_processes(lambda rows: hive.load().append(rows))
    table = hive.load()
    assert ids(table) == [*range(5), *range(100, 105)]
    assert len(list(Path(table.place.path).parent.glob("*.json"))) == 11  # no lost one is left
    assert verify_table(table).ok

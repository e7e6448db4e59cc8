"""Dropping a table with its files and keys: nothing of others goes, and kills can be resumed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from modcrypt.errors import CommitConflictError, FormatError, IntegrityError
from modcrypt.iceberg import (
    FileKeyStore,
    IcebergTable,
    KeyPolicy,
    open_table,
    purge_table,
    remove_orphan_files,
    rotate_table,
)
from modcrypt.iceberg.format import table_versions
from modcrypt.iceberg.rotate.expiry import Expiry
from modcrypt.iceberg.tables import sql_pointer
from modcrypt.io.places import Place
from tests.support.folder_contents import files
from tests.support.iceberg.branched_table import SCHEMA as BRANCHED
from tests.support.iceberg.branched_table import rows as java_rows
from tests.support.iceberg.catalog_tables import check_purge_before_the_drop
from tests.support.iceberg.concurrent_commits import with_rival_commits
from tests.support.iceberg.java_judge import Judge
from tests.support.iceberg.local_tables import (
    SqlTable,
    make_folder_table,
    make_sql_table,
    table_files,
)
from tests.support.iceberg.made_tables import make_table
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.iceberg.table_changes import rows


@pytest.fixture(params=["folder", "sql"])
def named(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A table with history, whose keys have been rotated."""
    make = make_folder_table if request.param == "folder" else make_sql_table
    named = make(tmp_path / "here")
    table = named.load().append(rows(1)).append(rows(2))
    rotate_table(rotate_table(table, "dek").table, "kek")
    return named


def test_all_files_go(named: Any, tmp_path: Path) -> None:
    table = named.load()
    before = files(tmp_path)
    planned = purge_table(table, dry_run=True)
    assert files(tmp_path) == before
    assert planned.dry_run
    assert named.load().scan().num_rows == 2
    done = purge_table(table)
    assert table_files(tmp_path) == set()
    assert (done.left, done.deleted.unreadable) == ((), ())
    assert done.master_key_id == "keyA"
    assert {**done.fields(), "dry_run": True} | {
        name: value for name, value in planned.fields().items() if name == "metadata_json"
    } == planned.fields()
    with pytest.raises((FileNotFoundError, ValueError)):
        named.load()


def test_a_new_table_can_have_the_name(named: Any, tmp_path: Path) -> None:
    purge_table(named.load())
    if isinstance(named, SqlTable):
        make_table(None, catalog=named.catalog, identifier=named.name)
    else:
        make_table(named.uri)
    assert named.load().append(rows(5)).scan().num_rows == 1


def test_a_table_whose_files_others_may_need_is_refused(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", properties={"gc.enabled": "false"}).append(rows(1))
    (tmp_path / "t/metadata" / f"{table.place.name}.purge").touch()  # of an interrupted purge
    before = files(tmp_path)
    for options in ({}, {"dry_run": True}, {"unregistered": True}):
        with pytest.raises(ValueError, match=r"rule gc\.enabled"):
            purge_table(table, **options)
    assert files(tmp_path) == before


def test_files_of_others_stay(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t").append(rows(1))
    other = make_table(tmp_path / "t/data/other").append(rows(2))
    foreign = tmp_path / "t/legacy/part.parquet"
    foreign.parent.mkdir()
    foreign.write_bytes(b"PAR1")
    purge_table(table)
    assert foreign.exists()
    assert other.refreshed().scan().num_rows == 1
    assert not list((tmp_path / "t/metadata").iterdir())


def test_its_keks_go_from_a_key_store(tmp_path: Path) -> None:
    store = FileKeyStore.create(tmp_path / "keks.json")
    policy = KeyPolicy(store="key-store")
    made = [
        make_table(tmp_path / name, key_store=store, policy=policy).append(rows(1))
        for name in ("a", "b")
    ]  # fmt: skip
    assert len(store.keys()) == 2
    done = purge_table(made[0])
    assert len(done.deleted.keys) >= 1
    assert len(store.keys()) == 1
    assert made[1].scan().num_rows == 1


# --- others, and failures ------------------------------------------------------------------------


def test_a_commit_before_the_purge_is_purged_with_it(tmp_path: Path) -> None:
    table = make_folder_table(tmp_path / "t").load().append(rows(1))
    rival = with_rival_commits(table, lambda: table.append(rows(2)), 1)
    done = purge_table(rival)
    assert len(done.deleted.data_files) == 2
    assert table_files(tmp_path) == set()


def test_a_commit_to_a_catalog_before_the_purge_stops_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = make_sql_table(tmp_path / "c")
    table = named.load().append(rows(1))
    real = sql_pointer.SqlPointer.drop

    def drop(self: Any, old: str) -> bool:
        named.load().append(rows(2))
        return real(self, old)

    monkeypatch.setattr(sql_pointer.SqlPointer, "drop", drop)
    with pytest.raises(CommitConflictError, match="another writer has committed"):
        purge_table(table)
    assert named.load().scan().num_rows == 2
    monkeypatch.undo()
    purge_table(table)
    assert not list(Path(table.place.path).parent.iterdir())


def rename(named: SqlTable) -> SqlTable:
    """Rename a table, as another process would."""
    new = f"{named.name}_renamed"
    named.catalog.rename_table(named.name, new)
    return SqlTable(named.uri, new)


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_table_that_is_renamed_before_the_drop_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    named = make_sql_table(tmp_path / "c")
    table = named.load().append(rows(1))
    moved, real = list[SqlTable](), sql_pointer.SqlPointer.drop

    def drop(self: Any, old: str) -> bool:
        moved.append(rename(named))
        dropped = real(self, old)
        if is_lost:
            raise OSError("the answer was lost")
        return dropped

    monkeypatch.setattr(sql_pointer.SqlPointer, "drop", drop)
    with pytest.raises(
        OSError if is_lost else CommitConflictError, match=r"lost|if it was renamed"
    ):
        purge_table(table)
    monkeypatch.undo()
    assert moved[0].load().scan().num_rows == 1
    with pytest.raises(ValueError, match="the catalog has this table"):
        purge_table(moved[0].load(), unregistered=True)
    assert purge_table(moved[0].load()).left == ()
    assert table_files(tmp_path) == set()


def test_a_drop_that_a_gateway_repeats_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_sql_table(tmp_path / "c").load().append(rows(1))
    real = sql_pointer.SqlPointer.drop
    monkeypatch.setattr(
        sql_pointer.SqlPointer, "drop", lambda self, old: real(self, old) and real(self, old)
    )
    with pytest.raises(CommitConflictError, match="unregistered=True"):
        purge_table(table)
    purge_table(open_table(table.place.path, SampleKms()), unregistered=True)
    assert table_files(tmp_path) == set()


def test_a_drop_whose_answer_is_lost_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_sql_table(tmp_path / "c").load().append(rows(1))
    real = sql_pointer.SqlPointer.drop

    def drop(self: Any, old: str) -> bool:
        real(self, old)
        raise OSError("the answer was lost")

    monkeypatch.setattr(sql_pointer.SqlPointer, "drop", drop)
    purge_table(table)
    assert table_files(tmp_path) == set()


def test_a_table_that_a_catalog_may_have_is_not_unregistered(named: Any, tmp_path: Path) -> None:
    table, before = named.load(), files(tmp_path)
    for dry_run in (True, False):
        with pytest.raises(ValueError, match="nothing was deleted: if none has it"):
            purge_table(
                open_table(table.place.path, SampleKms()), unregistered=True, dry_run=dry_run
            )
    assert files(tmp_path) == before
    assert named.load().scan().num_rows == 2


def test_a_commit_that_stops_a_purge_leaves_no_marker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = make_sql_table(tmp_path / "c")
    monkeypatch.setattr(sql_pointer.SqlPointer, "drop", lambda *_: False)
    with pytest.raises(CommitConflictError):
        purge_table(named.load())
    assert not list(tmp_path.rglob("*.purge"))


def test_a_marker_beside_a_live_table_is_stale(tmp_path: Path) -> None:
    check_purge_before_the_drop(make_sql_table(tmp_path / "c"))


def test_a_marker_stays_where_no_catalog_says_that_the_table_is_whole(tmp_path: Path) -> None:
    """A table in a folder, whose newest version a catalog had under its name there."""
    table = make_folder_table(tmp_path / "t").load().append(rows(1))
    marker = Path(f"{table.place.path}.purge")
    marker.write_bytes(b"of an interrupted purge")
    for foreign in (False, True):
        kept = remove_orphan_files(table, older_than_days=0, foreign=foreign)
        assert (kept.files, kept.rules) == ((), {str(marker): "purge"})
    purge_table(table)
    assert table_files(tmp_path) == set()


def test_only_checksums_of_hadoop_go_with_a_file(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t").append(rows(1))
    one, other = (
        path.with_name(f".{path.name}.crc")
        for path in (Path(table.place.path), *(tmp_path / "t/data").rglob("*.parquet"))
    )
    one.write_bytes(b"crc\0\0\0\2\0")
    other.write_bytes(b"notes of somebody")
    purge_table(table)
    assert table_files(tmp_path) == {str(other)}


def test_a_catalog_that_drops_a_newer_version_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a REST catalog does, which compares nothing."""
    named = make_sql_table(tmp_path / "c")
    table = named.load().append(rows(1))
    pointers, real = [], sql_pointer.SqlPointer.drop

    def drop(self: Any, old: str) -> bool:
        newest = named.load().append(rows(2))
        pointers.append((self, newest))
        return real(self, f"file://{newest.place.path}")

    monkeypatch.setattr(sql_pointer.SqlPointer, "drop", drop)
    with pytest.raises(CommitConflictError, match="nothing was deleted: register it"):
        purge_table(table)
    ((pointer, newest),) = pointers
    for place in (table.place, newest.place):
        with pytest.raises(ValueError, match="this marker of an interrupted purge does not exist"):
            purge_table(open_table(place.path, SampleKms()), unregistered=True)
    pointer.register(f"file://{newest.place.path}", newest.metadata)
    assert named.load().scan().num_rows == 2


def test_a_writer_that_comes_too_late_finds_no_table(tmp_path: Path) -> None:
    table = make_folder_table(tmp_path / "t").load().append(rows(1))

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Expiry, "delete", stop)
        with pytest.raises(KeyboardInterrupt):
            purge_table(table)
    with pytest.raises(IntegrityError, match="names none"):
        open_table(tmp_path / "t", SampleKms())
    with pytest.raises((IntegrityError, FormatError)):
        table.append(rows(2))


@pytest.mark.parametrize("stored", [(), (1,)])
def test_a_writer_cannot_continue_a_table_that_is_being_purged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: tuple[int, ...]
) -> None:
    """An empty table, too: its purge has nothing to drop, and ends it all the same."""
    named = make_folder_table(tmp_path)
    table = named.load(master_key_ids=["keyA"])
    table = table.append(rows(*stored)) if stored else table
    delete, seen = Expiry.delete, []

    def append_before(expiry: Expiry, last: IcebergTable) -> tuple[str, ...]:
        with pytest.raises(
            (FileNotFoundError, IntegrityError), match=r"purged|older state"
        ) as caught:
            table.append(rows(2))
        seen.append(caught.value)
        return delete(expiry, last)

    monkeypatch.setattr(Expiry, "delete", append_before)
    assert purge_table(table).left == ()
    assert seen
    assert table_files(tmp_path) == set()


def test_a_version_that_another_program_commits_after_the_end_is_left(tmp_path: Path) -> None:
    table = make_folder_table(tmp_path).load().append(rows(1))
    later = Path(table.place.path).with_name("v4.metadata.json")
    delete = Expiry.delete

    def commit_before(expiry: Expiry, last: IcebergTable) -> tuple[str, ...]:
        later.write_bytes(b"{}")
        return delete(expiry, last)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Expiry, "delete", commit_before)
        assert purge_table(table).left == (str(later),)
    assert later.exists()


@pytest.mark.parametrize("failing_at", range(0, 16, 3))
def test_an_interrupted_purge_is_resumed(
    named: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing_at: int
) -> None:
    table: IcebergTable = named.load()
    last, calls, real = table.place.path, 0, os.unlink

    def unlink(path: Any, **options: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > failing_at:
            raise KeyboardInterrupt
        real(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", unlink)
        with pytest.raises(KeyboardInterrupt):
            purge_table(table)
    left = table_files(tmp_path)
    assert left
    known: Any = {"master_key_ids": ["keyA"]}
    if not isinstance(named, SqlTable):
        done = purge_table(open_table(named.uri, SampleKms(), **known))
    elif named.catalog.table_exists(named.name):  # it was stopped before the drop
        done = purge_table(named.load())
    else:
        done = purge_table(open_table(last, SampleKms(), **known), unregistered=True)
    assert done.left == ()
    # An unfinished file of a writer that was stopped while it removed it is nobody's.
    assert {name for name in table_files(tmp_path) if not name.endswith(".tmp")} == set()


def test_what_can_not_be_deleted_is_left_with_the_way_to_it(
    named: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.unlink

    def refuse(path: Any, **options: Any) -> None:
        if str(path).endswith(".parquet"):
            raise PermissionError(13, "refused", path)
        real(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        done = purge_table(named.load())
    assert {Path(name).suffix for name in done.left} >= {".parquet", ".avro"}
    assert Path(done.metadata_json).exists()
    again = open_table(done.metadata_json, SampleKms(), master_key_ids=["keyA"])
    assert purge_table(again, unregistered=isinstance(named, SqlTable)).left == ()
    assert table_files(tmp_path) == set()


def test_plaintext_files_that_were_registered_from_elsewhere_stay(
    tmp_path: Path, java: Judge
) -> None:
    """As those of a Hive table that `add_files` has registered."""
    hive = tmp_path / "hive"
    reported: Any = {"encryption.key-id": None, "write.data.path": str(hive)}
    metadata = java.create(tmp_path / "plain", BRANCHED, properties=reported)
    java.commit(metadata, {"do": "append", "rows": java_rows(1, 2)})
    (data,) = hive.rglob("*.parquet")
    places = {str(tmp_path / "plain"): str(tmp_path / "plain"), str(hive): str(hive)}
    table = open_table(
        tmp_path / "plain", SampleKms(), require_encrypted=False, location_map=places
    )
    assert table.scan().num_rows == 2
    done = purge_table(table)
    assert data.exists()
    assert done.deleted.rules == {str(data): "outside"}


def test_a_writer_overtaken_by_a_whole_purge_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of the version that it is about to create has become free again."""
    table = make_folder_table(tmp_path).load().append(rows(1))
    create_once = table_versions.create_once

    def create_after_purge(place: Place, data: bytes) -> None:
        monkeypatch.undo()
        purge_table(table)
        create_once(place, data)

    monkeypatch.setattr(table_versions, "create_once", create_after_purge)
    with pytest.raises(FileNotFoundError, match="not a table") as caught:
        table.append(rows(2))
    assert isinstance(caught.value.__cause__, CommitConflictError)
    assert table_files(tmp_path) == set()

"""Commits whose outcome is not known, and others that go on meanwhile: no file that counts goes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import fsspec
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from modcrypt.iceberg import (
    IcebergTable,
    KeyPolicy,
    encrypt_table,
    expire_history,
    load_table,
    open_table,
    rotate_table,
    verify_table,
)
from modcrypt.iceberg.format import table_versions as versions
from modcrypt.iceberg.tables import catalog_versions
from modcrypt.iceberg.tables.sql_pointer import SqlPointer
from modcrypt.io.destinations import open_sink_at
from modcrypt.io.places import Place
from tests.support.iceberg.made_tables import make_table
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.iceberg.table_changes import ids, rows

FOR_FILES = KeyPolicy(kek_per="files", files=1)

Change = Callable[[IcebergTable], object]
KINDS: tuple[Literal["kek", "dek"], ...] = ("kek", "dek")


def run_after(
    owner: Any, name: str, monkeypatch: pytest.MonkeyPatch, after: Callable[[], None]
) -> None:
    """Call `after` when a function of a module or class returns for the first time."""
    real = getattr(owner, name)

    def call_and_run(*arguments: Any) -> Any:
        monkeypatch.setattr(owner, name, real)
        result = real(*arguments)
        after()
        return result

    monkeypatch.setattr(owner, name, call_and_run)


@pytest.fixture
def lake(tmp_path: Path) -> IcebergTable:
    table = make_table(tmp_path / "t", policy=FOR_FILES)
    return table.append(rows(1))


@pytest.mark.parametrize("kind", ["append", *KINDS])
def test_a_commit_whose_answer_is_lost_keeps_its_files(
    lake: IcebergTable, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others append, and expire the snapshot that was committed: its files are still needed."""

    def others() -> None:
        expire_history(lake.append(rows(3)))
        raise OSError("timed out")

    run_after(versions.FolderVersions, "commit", monkeypatch, others)
    with pytest.raises(OSError, match="timed out"):
        _ = lake.append(rows(2)) if kind == "append" else rotate_table(lake, kind)
    assert ids(lake) == ([1, 2, 3] if kind == "append" else [1, 3])


@pytest.mark.parametrize("kind", ["append", *KINDS])
@pytest.mark.parametrize("error", [FileExistsError(17, "there"), TimeoutError(110, "timed out")])
def test_a_version_that_is_there_was_created_whatever_the_answer(
    lake: IcebergTable, kind: Any, error: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store, or a network file system, did what was asked; the request was made again, unseen."""

    def answer() -> None:
        raise error

    run_after(versions, "_create", monkeypatch, answer)
    done = lake.append(rows(2)) if kind == "append" else rotate_table(lake, kind).table
    assert done.place.name == "v3.metadata.json"
    assert ids(lake) == ([1, 2] if kind == "append" else [1])
    assert verify_table(lake.refreshed()).ok


def test_a_table_that_is_there_was_created_whatever_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer() -> None:
        raise FileExistsError(17, "there")

    run_after(versions, "_create", monkeypatch, answer)
    table = make_table(tmp_path / "t")
    assert ids(table.append(rows(1))) == [1]
    with pytest.raises(FileExistsError):
        make_table(tmp_path / "t")


def test_a_version_that_is_gone_may_have_been_created(
    lake: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others went on from it, and dropped the history, before the second request was answered."""

    def others() -> None:
        expire_history(lake.append(rows(3)))
        raise FileExistsError(17, "there")

    run_after(versions, "_create", monkeypatch, others)
    with pytest.raises(OSError, match="the file may have been created"):
        lake.append(rows(2))
    assert ids(lake) == [1, 2, 3]


def test_a_committed_version_is_not_read_again(
    lake: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error then would have the rows appended twice."""

    def fail_reading() -> None:
        def read(place: Place) -> Any:
            raise OSError("broken")

        monkeypatch.setattr("modcrypt.iceberg.read.table_version.read_metadata", read)

    run_after(versions.FolderVersions, "commit", monkeypatch, fail_reading)
    done = lake.append(rows(2))
    monkeypatch.undo()
    assert (done.place.name, done.metadata.name) == ("v3.metadata.json", done.place.path)
    assert ids(done) == [1, 2]
    assert ids(done) == [1, 2]


@pytest.mark.parametrize("kind", ["append", *KINDS])
def test_expiry_leaves_what_is_about_to_be_taken_back(
    lake: IcebergTable, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A late writer takes a number that an expiry has freed; the next is before he finds out.

    He makes his commit anew, with the files that he has written.
    """
    real = versions._create
    expired = []

    def create(place: Place, data: bytes) -> None:
        monkeypatch.setattr(versions, "_create", real)
        newest = lake.append(rows(3))
        newest = expire_history(newest.append(rows(4))).table
        Path(place.path).unlink(missing_ok=True)
        real(place, data)
        expired.append(expire_history(newest))

    monkeypatch.setattr(versions, "_create", create)
    with contextlib.suppress(OSError):  # or nobody can know: then nothing is removed, either
        _ = lake.append(rows(2)) if kind == "append" else rotate_table(lake, kind)
    assert ids(lake)[:3] in ([1, 2, 3], [1, 3, 4])
    assert verify_table(lake.refreshed()).ok
    assert expired[0].unreadable


@pytest.mark.parametrize("kind", ["append", "encrypt", *KINDS])
@pytest.mark.parametrize("error", [TimeoutError(110, "timed out"), KeyboardInterrupt()])
def test_a_store_may_create_a_version_when_nobody_waits_for_it_any_more(
    kms: SampleKms, kind: Any, error: BaseException, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    memory = fsspec.filesystem("memory", skip_instance_cache=True)
    memory.store, memory.pseudo_dirs = {}, [""]  # its own, not those of all others
    real, asked = versions._create, list[tuple[Place, bytes]]()

    def under_way(place: Place, data: bytes) -> None:
        asked.append((place, data))
        raise error

    change: Callable[[], object]
    if kind == "encrypt":
        plain = SqlCatalog("plain", uri=f"sqlite:///{tmp_path}/c.db", warehouse=str(tmp_path))
        plain.create_namespace("n")
        source = plain.create_table("n.t", rows(1).schema)
        source.append(rows(1))
        memory.put(f"{tmp_path}/n", f"{tmp_path}/n", recursive=True)
        change = partial(
            encrypt_table, source, "lake/t", kms, master_key_id="keyA", filesystem=memory
        )
    else:
        made = make_table("lake/t", policy=FOR_FILES, filesystem=memory).append(rows(1))
        change = (
            partial(made.append, rows(2)) if kind == "append" else partial(rotate_table, made, kind)
        )
    monkeypatch.setattr(versions, "_create", under_way)
    with pytest.raises(type(error)):
        change()
    real(*asked[0])
    made = open_table("lake/t", kms, filesystem=memory)
    assert ids(made) == ([1, 2] if kind == "append" else [1])
    assert verify_table(made).ok


@pytest.mark.parametrize("kind", ["append", *KINDS])
def test_a_commit_that_fails_leaves_no_file(
    lake: IcebergTable, kind: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail_reading(place: Place, data: bytes) -> None:
        raise OSError("full")

    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(versions, "_create", fail_reading)
    with pytest.raises(OSError, match="full"):
        _ = lake.append(rows(2)) if kind == "append" else rotate_table(lake, kind)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_version_that_others_went_on_from_is_not_taken_back(
    lake: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log of the newest version has it no more, since the history was dropped."""

    def others() -> None:
        expire_history(lake.append(rows(3)))

    run_after(versions, "_create", monkeypatch, others)
    with pytest.raises(OSError, match="this commit may be lost"):
        lake.append(rows(2))
    assert ids(lake) == [1, 2, 3]


def test_a_log_of_one_version_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = {"write.metadata.previous-versions-max": "0"}
    table = make_table(tmp_path / "t", properties=short)

    def others() -> None:
        table.append(rows(2)).append(rows(3))

    run_after(versions, "_create", monkeypatch, others)
    assert ids(table.append(rows(1))) == [1, 2, 3]


# --- in a catalog --------------------------------------------------------------------------------


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    found = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/c.db", warehouse=str(tmp_path))
    found.create_namespace("n")
    return found


@pytest.fixture
def in_catalog(tmp_path: Path, catalog: SqlCatalog) -> IcebergTable:
    return make_table(tmp_path / "t", policy=FOR_FILES, catalog=catalog, identifier="n.t").append(
        rows(1)
    )


@pytest.mark.parametrize("kind", ["append", *KINDS])
def test_expiry_leaves_what_a_catalog_is_asked_to_take(
    in_catalog: IcebergTable,
    catalog: SqlCatalog,
    kms: SampleKms,
    kind: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A writer waits for the catalog; others commit twice and drop the history; he tries again."""
    expired = []

    def others() -> None:
        newest = in_catalog.append(rows(3)).append(rows(4))
        expired.append(expire_history(newest))

    run_after(catalog_versions, "create_once", monkeypatch, others)
    _ = in_catalog.append(rows(2)) if kind == "append" else rotate_table(in_catalog, kind)
    found = load_table(catalog, "n.t", kms)
    assert ids(found) == ([1, 2, 3, 4] if kind == "append" else [1, 3, 4])
    (waiting,) = expired[0].unreadable
    assert waiting.endswith(".metadata.json")


@pytest.mark.parametrize("kind", ["append", *KINDS])
@pytest.mark.parametrize("done", [True, False])
def test_a_catalog_is_asked_when_its_answer_is_lost(
    in_catalog: IcebergTable, kind: Any, done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SqlPointer.swap

    def was_swapped(self: Any, *arguments: Any) -> bool:
        monkeypatch.setattr(SqlPointer, "swap", real)
        if done:
            real(self, *arguments)
        raise OSError("the connection is lost")

    monkeypatch.setattr(SqlPointer, "swap", was_swapped)
    try:
        _ = in_catalog.append(rows(2)) if kind == "append" else rotate_table(in_catalog, kind)
    except OSError:
        assert not done
    assert ids(in_catalog) == ([1, 2] if kind == "append" and done else [1])
    assert verify_table(in_catalog.refreshed()).ok
    if not done or kind != "kek":  # older versions need what that replaces
        assert verify_table(in_catalog.refreshed()).orphans == ()


@pytest.mark.parametrize("repeated", [True, False])
def test_a_commit_is_found_below_that_of_another_writer(
    in_catalog: IcebergTable, repeated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer was lost, or the request was repeated, and the second try found a change."""
    real = SqlPointer.swap

    def was_swapped(self: Any, *arguments: Any) -> bool:
        monkeypatch.setattr(SqlPointer, "swap", real)
        real(self, *arguments)
        in_catalog.append(rows(3))
        if repeated:
            return False
        raise OSError("the connection is lost")

    monkeypatch.setattr(SqlPointer, "swap", was_swapped)
    in_catalog.append(rows(2))
    assert ids(in_catalog) == [1, 2, 3]
    assert verify_table(in_catalog.refreshed()).ok


@pytest.mark.parametrize("done", [True, False])
def test_a_table_is_registered_once_whatever_the_answer(
    tmp_path: Path,
    catalog: SqlCatalog,
    done: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = Session.commit

    def make() -> IcebergTable:
        return make_table(tmp_path / "t", catalog=catalog, identifier="n.t")

    def commit(self: Session) -> None:
        monkeypatch.setattr(Session, "commit", real)
        if done:
            real(self)
        raise SQLAlchemyError("the connection is lost")

    monkeypatch.setattr(Session, "commit", commit)
    if not done:
        with pytest.raises(OSError, match="database"):
            make()
        assert not list((tmp_path / "t" / "metadata").iterdir())
    assert ids(make().append(rows(1))) == [1]


def test_what_a_catalog_never_took_stays_and_is_reported(
    in_catalog: IcebergTable, catalog: SqlCatalog, kms: SampleKms
) -> None:
    table = in_catalog
    hours_ago = table.metadata.document["last-updated-ms"] - 2 * 60 * 60 * 1000
    left = table.place.beside("00000-11111111-2222-3333-4444-555555555555.metadata.json")
    with open_sink_at(left) as sink:
        sink.append(table.metadata.with_members(last_updated_ms=hours_ago).encode())
    done = expire_history(table.append(rows(2)))
    assert done.unreadable == (str(left.path),)
    assert left.stamp() is not None
    assert ids(load_table(catalog, "n.t", kms)) == [1, 2]

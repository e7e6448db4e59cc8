"""Versions of a table in a folder: one writer succeeds, and what was there stays readable."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.fs
import pytest

from modcrypt.errors import CommitConflictError, FormatError
from modcrypt.iceberg import IcebergTable, expire_history, open_table, verify_table
from modcrypt.iceberg.format.table_versions import (
    FolderVersions,
    file_names,
    has_versions,
    read_metadata,
    version_number,
)
from modcrypt.iceberg.write.commit import commit, latest
from modcrypt.io.places import Place
from tests.support.iceberg.concurrent_commits import check_commits_between
from tests.support.iceberg.java_judge import Judge
from tests.support.iceberg.local_tables import make_folder_table, make_sql_table
from tests.support.iceberg.made_tables import make_table
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.object_store import object_store


@pytest.fixture
def lake(tmp_path: Path) -> IcebergTable:
    return make_table(tmp_path / "t")


def set_note(table: IcebergTable, text: str = "yes") -> Any:
    return table.metadata.with_members(properties={**table.metadata.properties, "note": text})


@pytest.mark.parametrize("make", [make_folder_table, make_sql_table])
def test_commits_just_before_another(make: Any, tmp_path: Path) -> None:
    check_commits_between(make(tmp_path / "lake"))


def test_versions_are_counted(lake: IcebergTable, tmp_path: Path) -> None:
    second = commit(lake, set_note)
    third = commit(lake, set_note)  # from an old version: made of the current one
    assert [table.place.name for table in (second, third)] == [
        "v2.metadata.json",
        "v3.metadata.json",
    ]
    assert (tmp_path / "t/metadata/version-hint.text").read_text() == "3"
    log = third.metadata.document["metadata-log"]
    assert [entry["metadata-file"] for entry in log] == [lake.place.path, second.place.path]
    assert [entry["timestamp-ms"] for entry in log] == [
        table.metadata.document["last-updated-ms"] for table in (lake, second)
    ]


def test_java_finds_the_version(java: Judge, lake: IcebergTable, tmp_path: Path) -> None:
    found = commit(commit(lake, set_note), set_note)
    java.commit(found.place.path, {"do": "append", "rows": [{"id": 1}]})
    assert lake.refreshed().place.name == "v4.metadata.json"
    assert commit(lake, set_note).scan().num_rows == 1


def test_a_conflict_is_not_overwritten(lake: IcebergTable) -> None:
    other = set_note(lake, "other")
    lake.versions.commit(lake.place, other)
    with pytest.raises(CommitConflictError, match="no longer the table's current version"):
        lake.versions.commit(lake.place, set_note(lake, "ours"))
    assert lake.refreshed().metadata.properties["note"] == "other"


def test_of_two_that_look_at_once_one_succeeds(
    lake: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both see v1 as the current version; the file system lets one of them create v2."""
    stale = lake.place
    monkeypatch.setattr(FolderVersions, "current", lambda self: stale)
    lake.versions.commit(lake.place, set_note(lake, "first"))
    with pytest.raises(CommitConflictError):
        lake.versions.commit(lake.place, set_note(lake, "second"))
    monkeypatch.undo()
    assert lake.refreshed().metadata.properties["note"] == "first"


def pass_over(made: IcebergTable, monkeypatch: pytest.MonkeyPatch, *, drop_log: bool) -> None:
    """Have others commit v2 and v3, and remove v1 and v2, just before ours becomes v2."""
    import modcrypt.iceberg.format.table_versions as room

    real = room._create
    folder = Path(made.place.path).parent

    def create(place: Place, data: bytes) -> None:
        monkeypatch.setattr(room, "_create", real)
        theirs = commit(commit(made, set_note), set_note)
        for name in ("v1.metadata.json", "v2.metadata.json"):
            (folder / name).unlink()
        if drop_log:
            document = json.loads(Path(theirs.place.path).read_bytes()) | {"metadata-log": []}
            Path(theirs.place.path).write_text(json.dumps(document))
        real(place, data)

    monkeypatch.setattr(room, "_create", create)


def test_a_commit_into_a_gap_is_none(
    lake: IcebergTable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Old metadata.json files may be removed: a free number is no proof of being the next."""
    pass_over(lake, monkeypatch, drop_log=False)
    with pytest.raises(CommitConflictError):
        lake.versions.commit(lake.place, set_note(lake, "lost"))
    assert file_names(Place(None, str(tmp_path / "t/metadata"))).count("v2.metadata.json") == 0
    assert lake.refreshed().place.name == "v3.metadata.json"


def test_a_commit_of_unknown_outcome_is_no_conflict(
    lake: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be made again, and its files be removed, though others may need them."""
    pass_over(lake, monkeypatch, drop_log=True)
    with pytest.raises(OSError, match="this commit may be lost"):
        lake.versions.commit(lake.place, set_note(lake, "lost"))
    assert lake.refreshed().place.name == "v3.metadata.json"


def test_a_commit_that_others_go_on_from_stands(
    lake: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    import modcrypt.iceberg.format.table_versions as room

    real = room._create

    def create(place: Place, data: bytes) -> None:
        monkeypatch.setattr(room, "_create", real)
        real(place, data)
        commit(lake, set_note)  # v3, from ours

    monkeypatch.setattr(room, "_create", create)
    ours = lake.metadata.with_members(last_updated_ms=lake.metadata.document["last-updated-ms"] + 1)
    assert lake.versions.commit(lake.place, ours)[0].name == "v2.metadata.json"
    assert lake.refreshed().place.name == "v3.metadata.json"


def test_a_commit_is_made_again_of_the_newer_version(lake: IcebergTable) -> None:
    calls: list[str] = []

    def change(table: IcebergTable) -> Any:
        if not calls:
            lake.versions.commit(lake.place, set_note(lake, "other"))
        calls.append(table.place.name)
        return table.metadata.with_members(properties={**table.metadata.properties, "ours": "yes"})

    found = commit(lake, change)
    assert calls == ["v1.metadata.json", "v2.metadata.json"]
    assert found.metadata.properties["note"] == "other"
    assert found.metadata.properties["ours"] == "yes"


@pytest.mark.parametrize("times", [1, 2])
def test_a_version_that_goes_before_it_is_read_is_not_missed(
    lake: IcebergTable, kms: SampleKms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Others commit and drop the history between a look for the newest version and reading it."""
    real: Callable[[Any], Place] = FolderVersions.current
    left = [0]

    def current(self: FolderVersions) -> Place:
        found = real(self)
        if left[0]:
            left[0] -= 1
            again, left[0] = left[0], 0
            expire_history(commit(lake, set_note))
            left[0] = again
        return found

    monkeypatch.setattr(FolderVersions, "current", current)
    gets: list[Callable[[], IcebergTable]] = [
        lake.refreshed, lambda: open_table(tmp_path / "t", kms), lambda: latest(lake)
    ]  # fmt: skip
    for get in gets:
        left[0] = times
        before = real(lake.versions)
        assert get().place == real(lake.versions) != before
    Path(lake.refreshed().place.path).unlink()
    monkeypatch.setattr(FolderVersions, "current", lambda self: lake.place)
    with pytest.raises(FileNotFoundError):
        lake.refreshed()


def test_what_is_gone_meanwhile_is_looked_for_in_the_newer_version(lake: IcebergTable) -> None:
    """Others drop the history that a change was being made of."""
    calls: list[str] = []

    def change(table: IcebergTable) -> Any:
        calls.append(table.place.name)
        if len(calls) == 1:
            expire_history(commit(lake, set_note))
        raise FileNotFoundError(2, "gone")

    with pytest.raises(FileNotFoundError, match="gone"):  # that is not why
        commit(lake, change)
    assert calls == ["v1.metadata.json", "v2.metadata.json"]


def test_a_hint_that_cannot_be_written_is_no_failure(lake: IcebergTable, tmp_path: Path) -> None:
    hint = tmp_path / "t/metadata/version-hint.text"
    hint.unlink()
    hint.mkdir()
    assert commit(lake, set_note).place.name == "v2.metadata.json"


def test_paths_as_callers_spell_them(
    lake: IcebergTable, kms: SampleKms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path / "t" / "metadata")
    newest = "v1.metadata.json"
    for spelt in (newest, f"./{newest}", f"../metadata//{newest}"):
        open_table(spelt, kms).refreshed()
    for number, spelt in enumerate(["..", "../", f"{tmp_path}//t"], 2):
        table = open_table(spelt, kms, location_map={str(tmp_path / "t"): tmp_path / "t"})
        assert commit(table, set_note).place.name == f"v{number}.metadata.json"


def test_another_file_system(kms: SampleKms, tmp_path: Path) -> None:
    """Not one that is declared local: listed and written by its own functions."""
    memory = fsspec.filesystem("memory", skip_instance_cache=True)
    memory.store = {}  # its own, not that of all others
    memory.pseudo_dirs = [""]
    table = make_table("lake/t", filesystem=memory)
    done = table.append(pa.table({"id": [1, 2]})).append(pa.table({"id": [3]}))
    assert done.scan().num_rows == 3
    assert done.place.name == "v3.metadata.json"
    assert open_table("lake/t", kms, filesystem=memory).scan().num_rows == 3
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_that_would_lose_a_commit_is_refused(kms: SampleKms, tmp_path: Path) -> None:
    memory = pyarrow.fs._MockFileSystem()
    lost = "would lose one of two simultaneous commits: keep the table in a SQL catalog"
    with pytest.raises(ValueError, match=lost):
        make_table("lake/t", filesystem=memory)
    everything = pyarrow.fs.FileSelector("", recursive=True)
    assert memory.get_file_info(everything) == []
    made = make_table(tmp_path / "t", location="lake/t")
    memory.create_dir("lake/t/metadata")
    with memory.open_output_stream("lake/t/metadata/v1.metadata.json") as copy:
        copy.write(Path(made.place.path).read_bytes())
    table = open_table("lake/t", kms, filesystem=memory)
    with pytest.raises(ValueError, match=lost):
        table.append(pa.table({"id": [1, 2]}))
    assert open_table("lake/t", kms, filesystem=memory).scan().num_rows == 0
    files = {info.base_name for info in memory.get_file_info(everything) if info.is_file}
    assert files == {"v1.metadata.json"}


def test_two_writers_to_a_store_lose_nothing(kms: SampleKms) -> None:
    """Each with a cache of its own of what is listed."""
    with object_store() as store:
        store.judge().create_bucket(Bucket="lake")
        make_table("lake/t", filesystem=store.s3fs())

        def write(number: int) -> None:
            filesystem = store.s3fs()
            for step in range(2):
                rows = pa.table({"id": [number * 10 + step]})
                while True:
                    try:
                        open_table("lake/t", kms, filesystem=filesystem).append(rows)
                        break
                    except CommitConflictError:
                        continue

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(write, range(2)))
        table = open_table("lake/t", kms, filesystem=store.s3fs())
        assert sorted(table.scan().column(0).to_pylist()) == [0, 1, 10, 11]
        assert len(table.metadata.snapshots) == 4


def test_a_reader_that_has_listed_the_table_sees_what_others_commit(kms: SampleKms) -> None:
    """fsspec keeps listings for good, and an instance of a file system for the whole process."""
    with object_store() as store:
        store.judge().create_bucket(Bucket="listed")
        ours, theirs = store.s3fs(), store.s3fs()
        make_table("listed/t", filesystem=theirs)
        table = open_table("listed/t", kms, filesystem=ours)
        for number in (1, 2):
            new = pa.table({"id": [number]})
            written = open_table("listed/t", kms, filesystem=theirs).append(new)
            assert table.refreshed().place.name == written.place.name
            assert verify_table(
                open_table("listed/t", kms, filesystem=ours)
            ).ok  # lists all folders
        expire_history(written)
        assert open_table("listed/t", kms, filesystem=ours).scan().num_rows == 2


def test_folders_without_a_table(tmp_path: Path) -> None:
    place = Place(None, str(tmp_path))
    assert not has_versions(place)
    with pytest.raises(FileNotFoundError, match=r"not a table: v1\.metadata\.json does not exist"):
        FolderVersions(place.below("metadata")).current()
    (tmp_path / "metadata").mkdir()
    name = "00003-8b19a876-2225-48ad-a5f4-1c191de63807.metadata.json"
    (tmp_path / "metadata" / name).write_text("{}")
    assert has_versions(place)
    with pytest.raises(FormatError, match="a catalog knows which"):
        FolderVersions(place.below("metadata")).current()


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("v12.metadata.json", 12),
        ("v3.gz.metadata.json", 3),
        ("00042-8b19a876-2225-48ad-a5f4-1c191de63807.metadata.json", 42),
        ("snap-1.avro", None),
        ("v1.metadata.json.tmp", None),
        ("v1\N{ARABIC-INDIC DIGIT ZERO}.metadata.json", None),
    ],
)
def test_numbers_of_versions(name: str, number: int | None) -> None:
    assert version_number(name) == number


def test_no_version_follows_the_greatest_number(lake: IcebergTable, tmp_path: Path) -> None:
    """One that is planted with it, or the next commit would be found by nobody."""
    planted = lake.place.beside(f"v{10**18 - 1}.metadata.json")
    Path(planted.path).write_bytes(Path(lake.place.path).read_bytes())
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(FormatError, match="no version can follow"):
        lake.append(pa.table({"id": pa.array([1], pa.int64())}))
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before
    Path(planted.path).unlink()
    assert lake.append(pa.table({"id": pa.array([1], pa.int64())})).scan().num_rows == 1


def test_a_catalogs_version_is_not_followed_in_the_folder(
    lake: IcebergTable, kms: SampleKms, tmp_path: Path
) -> None:
    name = "00003-8b19a876-2225-48ad-a5f4-1c191de63807.metadata.json"
    os.rename(lake.place.path, tmp_path / "t/metadata" / name)
    table = open_table(tmp_path / "t/metadata" / name, kms)
    assert table.scan().num_rows == 0
    with pytest.raises(ValueError, match="load_table"):
        table.append(pa.table({"id": [1]}))


def test_a_compressed_version_is_followed(lake: IcebergTable) -> None:
    import gzip

    path = Path(lake.place.path)
    path.with_name("v1.gz.metadata.json").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert read_metadata(lake.refreshed().place).uuid == lake.metadata.uuid
    assert commit(lake, set_note).place.name == "v2.metadata.json"


def test_a_link_in_the_place_of_the_hint_is_not_followed(
    lake: IcebergTable, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    hint = tmp_path / "t" / "metadata" / "version-hint.text"
    hint.unlink()
    hint.symlink_to(precious)
    commit(lake, set_note)
    assert precious.read_text() == "precious"
    assert not hint.is_symlink()
    assert hint.read_text() == "2"

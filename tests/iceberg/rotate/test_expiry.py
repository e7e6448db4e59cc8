"""History is dropped for good: what nobody needs goes, and nothing else."""

from __future__ import annotations

import errno
import gzip
import json
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import modcrypt as mc
from modcrypt.iceberg import IcebergTable, create_table, open_table, verify_table
from modcrypt.iceberg.rotate import expiry
from modcrypt.iceberg.rotate.expiry import Expired, expire_history
from modcrypt.iceberg.rotate.table_rotation import rotate_table
from modcrypt.iceberg.write.commit import commit
from tests.support.folder_contents import files
from tests.support.iceberg.branched_table import (
    SCHEMA,
    files_needed,
    folder_of,
    lake,
    rows,
    table_files,
)
from tests.support.iceberg.by_hand import document
from tests.support.iceberg.concurrent_commits import with_rival_commits
from tests.support.iceberg.java_judge import Judge
from tests.support.iceberg.resealed_tables import reseal, sealer_under
from tests.support.iceberg.sample_kms import Refusing, SampleKms
from tests.support.iceberg.shared_table import both, reopen

__all__ = ["lake"]  # a fixture


# --- what goes and what stays --------------------------------------------------------------------


def test_the_files_that_java_needs_stay_and_no_others(lake: IcebergTable, java: Judge) -> None:
    folder, before = folder_of(lake), table_files(folder_of(lake))
    current = java.read(lake.place.path)
    tagged = {name: java.read(lake.place.path, ref=name) for name in ("first", "audit")}

    done = expire_history(lake)

    metadata = Path(done.table.place.path)
    assert java.read(metadata) == current
    assert {name: java.read(metadata, ref=name) for name in tagged} == tagged
    assert table_files(folder) == files_needed(java, metadata) | {str(metadata)}
    gone = before - table_files(folder)
    assert gone == {
        *done.data_files, *done.delete_files, *done.manifests, *done.manifest_lists,
        *done.metadata_files,
    }  # fmt: skip
    assert sorted(done.kept.values()) == ["branch audit", "current", "tag first"]
    assert len(done.snapshots) == len(lake.metadata.snapshots) - 3
    assert [snapshot.sequence_number for snapshot in done.snapshots] == sorted(
        snapshot.sequence_number for snapshot in done.snapshots
    )
    assert (done.left, done.unreadable) == ((), ())
    assert len(done.keys) == len(lake.metadata.keys) - len(document(folder)["encryption-keys"])
    # Java goes on with it.
    again = java.commit(metadata, {"do": "append", "rows": rows(10)})
    assert len(java.read(again)) == len(current) + 1


def test_forced_only_the_current_snapshot_stays(lake: IcebergTable, java: Judge) -> None:
    folder, current = folder_of(lake), java.read(lake.place.path)
    done = expire_history(lake, force=True)
    metadata = Path(done.table.place.path)
    assert done.refs == ("first", "audit")
    assert list(done.kept.values()) == ["current"]
    assert java.read(metadata) == current
    assert table_files(folder) == files_needed(java, metadata) | {str(metadata)}
    assert set(java.snapshots(metadata)["refs"]) == {"main"}
    assert done.data_files
    assert done.delete_files
    assert done.manifests
    assert len(document(folder)["encryption-keys"]) == 2


def test_named_snapshots_stay(lake: IcebergTable, java: Judge) -> None:
    third = lake.metadata.snapshots[2].id
    before = java.read(lake.place.path, snapshot=third)
    done = expire_history(lake, keep=[third], force=True)
    assert set(done.kept.values()) == {"named", "current"}
    assert java.read(done.table.place.path, snapshot=third) == before
    metadata = Path(done.table.place.path)
    assert table_files(folder_of(lake)) == files_needed(java, metadata) | {str(metadata)}
    with pytest.raises(ValueError, match="snapshot 5 does not exist"):
        expire_history(done.table, keep=[5])


def test_a_dry_run_reports_exactly_what_would_go(lake: IcebergTable) -> None:
    before = files(folder_of(lake))
    planned = expire_history(lake, force=True, dry_run=True)
    assert files(folder_of(lake)) == before
    assert planned.table is lake
    reported = {**json.loads(json.dumps(planned.fields())), "dry_run": False}
    assert reported == expire_history(lake, force=True).fields()


def test_a_table_opened_by_a_relative_path_has_each_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = pa.table({"id": [1]})
    made = create_table("lake", data.schema, SampleKms(), master_key_id="keyA")
    made.append(data).append(data)
    done = expire_history(open_table("lake", SampleKms()))
    names = [Path(path).name for path in done.metadata_files]
    assert sorted(names) == ["v1.metadata.json", "v2.metadata.json", "v3.metadata.json"]
    left = {path.name for path in tmp_path.rglob("*.json")}
    assert left == {"v4.metadata.json"}


def test_again_there_is_nothing_to_do(lake: IcebergTable) -> None:
    table = expire_history(lake).table
    before = files(folder_of(lake))
    done = expire_history(table)
    assert files(folder_of(lake)) == before
    assert not any(
        value for name, value in done.fields().items() if name not in ("kept", "dry_run")
    )


def test_a_table_without_snapshots(tmp_path: Path, java: Judge) -> None:
    metadata = java.create(tmp_path / "empty", SCHEMA)
    done = expire_history(open_table(tmp_path / "empty", SampleKms()))
    assert (done.kept, done.metadata_files, done.table.place.path) == ({}, (), str(metadata))


# --- keys that were rotated ----------------------------------------------------------------------


def test_after_rotation_no_older_metadata_holds_the_old_keys(
    t16: Path, table: IcebergTable
) -> None:
    old = {key.id: key for key in table.metadata.keys.values()}
    for what in ("mek", "kek"):
        table = rotate_table(table, what, new_master_key_id="keyB").table
    without = Refusing("keyA")
    done = expire_history(reopen(t16, without), keep=[1001, 1002])
    assert set(without.calls) == {("unwrap", "keyB")}
    assert done.metadata_files == tuple(f"wh:/t16/metadata/v{n}.metadata.json" for n in (1, 2, 3))
    assert (done.snapshots, done.data_files, done.unreadable) == ((), (), ())
    assert [path.name for path in (t16 / "metadata").glob("*.json")] == ["v4.metadata.json"]
    text = (t16 / "metadata" / "v4.metadata.json").read_text()
    assert not [key for key in old.values() if key.document()["encrypted-key-metadata"] in text]
    assert reopen(t16, without).scan().num_rows == 137
    assert (t16 / "metadata" / "version-hint.text").read_text() == "4"


def test_manifests_that_a_rotation_replaced_go(t16: Path, table: IcebergTable) -> None:
    table = reseal(table, sealer_under("partition=a"))
    before = table_files(t16)
    table = rotate_table(table, "kek").table
    written = table_files(t16) - before
    done = expire_history(table, keep=[1001, 1002])
    assert (len(done.manifests), len(done.manifest_lists)) == (6, 6)  # Java's, and those resealed
    assert not done.data_files
    assert not done.snapshots
    (metadata,) = (t16 / "metadata").glob("*.json")
    old_metadata = {path for path in written if path.endswith(".json")}
    assert table_files(t16) == {
        *(written - old_metadata), str(metadata),
        *(str(path) for path in (t16 / "data").iterdir()),
    }  # fmt: skip
    assert done.table.scan(1001).num_rows == 70


def test_what_only_a_refused_key_opens_stays_and_is_reported(
    t16: Path, table: IcebergTable
) -> None:
    """A snapshot that was dropped long ago, and whose key only an older metadata.json has."""
    stay = [snapshot.document for snapshot in table.metadata.snapshots if snapshot.id != 1001]
    keys = [key for id_, key in table.metadata.keys.items()
            if id_ != table.metadata.snapshots[0].key_id]  # fmt: skip
    commit(table, lambda base: base.metadata.with_keys(keys, snapshots=stay))
    rotate_table(table, "mek", new_master_key_id="keyB")
    done = expire_history(reopen(t16, Refusing("keyA")))
    assert done.unreadable == ("/warehouse/t16/metadata/snap-1001.avro",)
    assert (t16 / "metadata" / "snap-1001.avro").exists()
    assert done.table.scan().num_rows == 137


# --- files of others, and lies -------------------------------------------------------------------


def test_only_this_tables_older_metadata_goes(t16: Path, table: IcebergTable) -> None:
    table = rotate_table(table, "kek").table
    table = rotate_table(table, "kek").table
    folder, ours = t16 / "metadata", (t16 / "metadata" / "v1.metadata.json").read_bytes()
    other = ours.replace(table.metadata.uuid.encode(), str(uuid.uuid4()).encode())
    orphans = {
        f"00000-{uuid.uuid4()}.metadata.json": ours,  # a catalog's, of this table
        f"00001-{uuid.uuid4()}.metadata.json": other,
        "v0.metadata.json": b"{}",
        f"00009-{uuid.uuid4()}.gz.metadata.json": gzip.compress(ours),
        "copy.metadata.json.gz": ours,
        "v3.gz.metadata.json": ours,  # counted as the current version
        "v9.metadata": ours,
        "backup.json": ours,
        "notes.txt": b"mine",
    }
    for name, data in orphans.items():
        (folder / name).write_bytes(data)
    done = expire_history(table, keep=[1001, 1002])
    left = {path.name for path in folder.iterdir()}
    assert left >= {*orphans, "v4.metadata.json"}
    assert left.isdisjoint({"v1.metadata.json", "v2.metadata.json", "v3.metadata.json"})
    unnamed = [name for name in orphans if ".metadata.json" in name and name[:2] != "v3"]
    assert set(done.unreadable) == {f"wh:/t16/metadata/{name}" for name in unnamed}
    (found,) = [
        finding
        for finding in verify_table(done.table).findings
        if "not in the log" in finding.message
    ]
    assert (found.word, found.severity) == ("integrity", "warning")
    assert all(name in found.message for name in list(orphans)[:3])


def claim_files(folder: Path, **members: Any) -> None:
    """Change the newest metadata.json in its place, as somebody with access to it could."""
    path = max((folder / "metadata").glob("v*.json"))
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **members}))


def test_nothing_outside_of_the_table_goes_whatever_metadata_says(
    tmp_path: Path, t16: Path
) -> None:
    outside = tmp_path / "outside"
    shutil.copytree(t16, outside / "other")
    theirs = outside / "other" / "metadata" / "v1.metadata.json"
    text = theirs.read_text().replace("8b19a876", "00000000")
    theirs.write_text(text)
    (outside / "statistics.puffin").write_bytes(b"x")
    elsewhere = [
        str(theirs), str(outside / "statistics.puffin"), "wh:/other/metadata/v1.metadata.json",
        "wh:/t16/../other/metadata/v1.metadata.json", "wh:/statistics.puffin", "/etc/hostname",
        "wh:/other/metadata/snap-1001.avro",
    ]  # fmt: skip
    claim_files(
        t16,
        **{
            "metadata-log": [{"timestamp-ms": 1, "metadata-file": path} for path in elsewhere],
            "statistics": [{"snapshot-id": 1001, "statistics-path": path} for path in elsewhere],
            "partition-statistics": [
                {"snapshot-id": 1001, "statistics-path": path} for path in elsewhere
            ],
        },
    )
    before = files(outside)
    where = {**both(t16), "wh:": str(outside)}
    done = expire_history(open_table(t16, SampleKms(), location_map=where))
    assert files(outside) == before
    assert (done.statistics, done.left) == ((), ())
    assert done.table.scan().num_rows == 137


def test_a_manifest_list_that_does_not_open_shows_nobody_what_to_delete(
    t16: Path, table: IcebergTable
) -> None:
    """Whoever can write metadata.json could name any file for one."""
    snapshots = [dict(snapshot.document) for snapshot in table.metadata.snapshots]
    snapshots[0]["manifest-list"] = "wh:/t16/data/p1.parquet"
    snapshots[1]["manifest-list"] = "wh:/t16/notes.txt"
    (t16 / "notes.txt").write_bytes(b"mine")
    claim_files(t16, snapshots=snapshots)
    done = expire_history(reopen(t16))
    assert done.manifest_lists == ()
    assert done.unreadable == ("wh:/t16/notes.txt",)
    assert (t16 / "notes.txt").exists()
    assert done.table.scan().num_rows == 137


def test_statistics_of_dropped_snapshots_go_and_those_of_others_stay(t16: Path) -> None:
    for name in ("old", "new", "shared"):
        (t16 / "metadata" / f"{name}.puffin").write_bytes(b"PFA1")

    def entry(snapshot: int, name: str) -> dict[str, Any]:
        return {
            "snapshot-id": snapshot,
            "statistics-path": f"wh:/t16/metadata/{name}.puffin",
            "file-size-in-bytes": 4,
            "file-footer-size-in-bytes": 4,
            "blob-metadata": [],
        }

    claim_files(
        t16,
        **{
            "statistics": [entry(1001, "old"), entry(1003, "new"), entry(1002, "shared")],
            "partition-statistics": [
                {"snapshot-id": 1003, "file-size-in-bytes": 4,
                 "statistics-path": "/warehouse/t16/metadata/shared.puffin"},
            ],
        },
    )  # fmt: skip
    done = expire_history(reopen(t16))
    assert done.statistics == ("wh:/t16/metadata/old.puffin",)
    assert {path.name for path in t16.rglob("*.puffin")} == {
        "new.puffin", "shared.puffin", "dv1.puffin",
    }  # fmt: skip
    assert [entry["snapshot-id"] for entry in document(t16)["statistics"]] == [1003]
    assert len(document(t16)["partition-statistics"]) == 1


def test_a_version_that_its_manifests_contradict_is_not_all_that_stays(t16: Path) -> None:
    """A newer one that somebody planted: the older ones are what the table is restored from."""
    changed = document(t16)
    fields = changed["schemas"][0]["fields"]
    fields[0]["name"], fields[1]["name"] = fields[1]["name"], fields[0]["name"]
    (t16 / "metadata" / "v2.metadata.json").write_text(json.dumps(changed))
    before = files(t16)
    with pytest.raises(mc.errors.IntegrityError, match="another schema"):
        expire_history(reopen(t16))
    assert files(t16) == before


@pytest.mark.parametrize("reported", ["false", "False ", "no"])  # to Java all of them mean false
def test_files_that_other_tables_may_share_stay(t16: Path, reported: str) -> None:
    claim_files(t16, properties={**document(t16)["properties"], "gc.enabled": reported})
    before = files(t16)
    with pytest.raises(ValueError, match=r"gc\.enabled"):
        expire_history(reopen(t16))
    assert files(t16) == before


@pytest.mark.parametrize("merges", [False, True])
def test_files_stay_that_other_tables_may_share_since_a_moment_ago(
    t16: Path, merges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbid() -> None:
        table = reopen(t16)
        properties = {**table.metadata.properties, "gc.enabled": "false"}
        keys = table.metadata.keys.values()
        table.versions.commit(table.place, table.metadata.with_keys(keys, properties=properties))

    before = {name for name in files(t16) if not name.endswith(".json")}
    table = reopen(t16) if merges else with_rival_commits(reopen(t16), forbid, 1)

    def merge(*arguments: Any, **options: Any) -> IcebergTable:
        made: IcebergTable = commit(*arguments, **options)
        forbid()
        return made.refreshed()

    if merges:  # as a REST catalog does it: the committed version has the property, too
        monkeypatch.setattr(expiry, "commit", merge)
    with pytest.raises(ValueError, match=r"gc\.enabled"):
        expire_history(table)
    assert before <= set(files(t16))


# --- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("damaged", ["snap-1003.avro", "m1.avro", "dm3.avro"])
def test_nothing_goes_where_it_is_not_known_what_is_needed(t16: Path, damaged: str) -> None:
    path = t16 / "metadata" / damaged
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    before = files(t16)
    with pytest.raises(mc.errors.IntegrityError):
        expire_history(reopen(t16))
    path.unlink()
    del before[f"metadata/{damaged}"]
    with pytest.raises(FileNotFoundError):
        expire_history(reopen(t16))
    assert files(t16) == before


def test_a_file_system_that_fails_for_a_moment_has_nothing_dropped(
    lake: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or files that nobody could look into just then would stay for ever."""
    planned, before = expire_history(lake, force=True, dry_run=True), files(folder_of(lake))
    real = os.open
    for kind in ("manifest_lists", "manifests"):
        stuck = getattr(planned, kind)[0]

        def fail_stat(path: Any, *rest: Any, stuck: str = stuck, **more: Any) -> int:
            if os.fspath(path) == stuck:
                raise OSError(errno.EIO, "broken", path)
            return real(path, *rest, **more)

        with monkeypatch.context() as patch:
            patch.setattr(os, "open", fail_stat)
            with pytest.raises(OSError, match="broken"):
                expire_history(lake, force=True)
    assert files(folder_of(lake)) == before
    assert not expire_history(lake, force=True).unreadable


def test_a_service_that_is_away_has_nothing_dropped(t16: Path) -> None:
    before = files(t16)
    with pytest.raises(mc.errors.KeyAccessDeniedError):
        expire_history(reopen(t16, Refusing(after=0)))
    assert files(t16) == before


def test_what_can_not_be_deleted_is_reported_and_goes_the_next_time(
    lake: IcebergTable, java: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, real = folder_of(lake), os.unlink
    planned = expire_history(lake, force=True, dry_run=True)
    stuck = ""

    def unlink(path: Any, *rest: Any, **more: Any) -> None:
        if os.fspath(path) == Path(stuck).name:  # in its folder, which is open
            raise OSError(errno.EACCES, "stuck", path)
        real(path, *rest, **more)

    for kind in ("data_files", "manifests", "manifest_lists", "metadata_files"):
        copy = folder.parent / kind
        shutil.copytree(folder, copy)
        where = {str(folder): str(copy)}
        (location, *_) = getattr(planned, kind)
        stuck = location.replace(str(folder), str(copy))
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", unlink)
            done = expire_history(open_table(copy, SampleKms(), location_map=where), force=True)
        assert done.left[0] == location
        assert Path(stuck).exists()
        assert done.table.scan().num_rows == lake.scan().num_rows
        assert not expire_history(done.table, force=True).left
        assert table_files(copy) == files_java_needs(java, done, where)


def files_java_needs(java: Judge, done: Expired, where: dict[str, str]) -> set[str]:
    ((folder, copy),) = where.items()
    metadata = Path(done.table.place.path)
    found = {str(metadata)}
    for snapshot in json.loads(metadata.read_bytes())["snapshots"]:
        found.add(snapshot["manifest-list"])
        reported = java.files(metadata, where, snapshot=snapshot["snapshot-id"])
        found |= {
            part
            for part in json.dumps(reported).split('"')
            if part.startswith(folder) and "." in part
        }
    return {path.replace(folder, copy) for path in found}


def test_the_hint_is_set_right_before_what_it_names_goes(t16: Path, table: IcebergTable) -> None:
    """Java finds no table where the hint names a version that isn't there."""
    table = rotate_table(table, "kek").table
    hint = t16 / "metadata" / "version-hint.text"
    hint.unlink()
    hint.mkdir()  # so that no commit can write it
    done = expire_history(table)
    assert done.left == done.metadata_files
    assert len(list((t16 / "metadata").glob("v*.json"))) == 3
    hint.rmdir()
    hint.write_text("1")
    done = expire_history(done.table)
    assert (done.left, hint.read_text()) == ((), "3")
    assert [path.name for path in (t16 / "metadata").glob("v*.json")] == ["v3.metadata.json"]


@pytest.mark.parametrize("reported", ["9" * 5000, "x" * 5000, "", "-1"])
def test_a_hint_may_say_anything(tmp_path: Path, kms: SampleKms, reported: str) -> None:
    rows = pa.table({"id": [1]})
    table = create_table(tmp_path / "t", rows.schema, kms, master_key_id="keyA").append(rows)
    table = expire_history(table).table
    (tmp_path / "t" / "metadata" / "version-hint.text").write_text(reported)
    assert expire_history(table).left == ()


def test_what_somebody_else_commits_meanwhile_stays(lake: IcebergTable, java: Judge) -> None:
    def append() -> None:
        java.commit(max((folder_of(lake) / "metadata").glob("v*.json"), key=number),
                    {"do": "append", "rows": rows(11)})  # fmt: skip

    def number(path: Path) -> int:
        return int(path.name[1:].partition(".")[0])

    count = len(java.read(lake.place.path))
    done = expire_history(with_rival_commits(lake, append, 2), force=True)
    metadata = Path(done.table.place.path)
    assert len(java.read(metadata)) == count + 2
    assert len(done.kept) == 1
    assert table_files(folder_of(lake)) == files_needed(java, metadata) | {str(metadata)}


def test_nothing_is_wrong_with_a_table_whose_history_is_gone(
    tmp_path: Path, kms: SampleKms
) -> None:
    rows = pa.table({"id": [1, 2]})
    table = create_table(tmp_path / "t", rows.schema, kms, master_key_id="keyA")
    table = table.append(rows).append(rows)
    assert verify_table(expire_history(table).table).findings == ()


def test_a_commit_that_writes_no_version_loses_none(
    lake: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A REST catalog writes no metadata.json if only the log would change."""
    lake = rotate_table(expire_history(lake).table, "mek").table
    lake = rotate_table(lake, "mek").table
    monkeypatch.setattr(type(lake.versions), "commit", lambda _, base, __: (base, lake.metadata))
    done = expire_history(lake)
    assert lake.place.path not in done.metadata_files
    assert done.metadata_files
    assert lake.refreshed().scan() == lake.scan()

"""New data keys for the files of the current snapshot: same rows, deletes, numbers; other keys."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

import modcrypt as mc
from modcrypt.iceberg import IcebergTable, encrypt_table, open_table, verify_table
from modcrypt.iceberg.rotate.expiry import expire_history
from modcrypt.iceberg.rotate.rotation_report import TableRotation
from modcrypt.iceberg.rotate.table_rotation import rotate_table
from tests.support.cases import each_case
from tests.support.folder_contents import files
from tests.support.iceberg.branched_table import (
    BY_KIND,
    SCHEMA,
    files_needed,
    folder_of,
    lake,
    rows,
    table_files,
)
from tests.support.iceberg.by_hand import document, open_ags1, parse_key_metadata
from tests.support.iceberg.concurrent_commits import with_rival_commits
from tests.support.iceberg.dry_runs import with_planned_values
from tests.support.iceberg.elsewhere import Elsewhere
from tests.support.iceberg.java_judge import Judge
from tests.support.iceberg.resealed_tables import reseal, seal_singly, sealer_under
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.iceberg.shared_table import all_rows, reopen

__all__ = ["lake"]


def live(table: IcebergTable) -> dict[str, Any]:
    """Return the files of the current snapshot, each with its key, sequence number and row id."""
    found = {}
    assert table.metadata.current is not None
    for manifest in table.walk.manifests(table.metadata.current):
        first = manifest.row.get("first_row_id")
        for entry in table.walk.entries(manifest):
            if not entry.is_live:
                continue
            keys = table.walk.file_keys(entry)
            assert keys is not None
            row_id = entry.file.get("first_row_id")
            if row_id is None and first is not None:
                row_id, first = first, first + entry.record_count
            found[entry.location] = (keys.key, entry.sequence_number, row_id, entry)
    return found


def numbers(table: IcebergTable) -> list[Any]:
    return sorted(
        (number, -1 if row_id is None else row_id, entry.content, entry.record_count)
        for _, number, row_id, entry in live(table).values()
    )


def test_every_file_has_another_key_and_place_and_the_rows_are_the_same(
    t16: Path, table: IcebergTable, kms: SampleKms
) -> None:
    before, old, rows_before = files(t16), live(table), all_rows(table)
    kms.calls.clear()

    done = rotate_table(table, "dek")

    assert (done.data_files, done.delete_files, done.manifests) == (4, 1, 3)
    assert done.kms_calls == len(kms.calls)
    assert Counter(kms.calls) == Counter({("unwrap", "keyA"): 2, ("wrap", "keyA"): 1})
    new = live(done.table)
    assert old.keys().isdisjoint(new)
    assert {key for key, *_ in old.values()}.isdisjoint(key for key, *_ in new.values())
    assert numbers(done.table) == numbers(table)
    for *_, entry in new.values():
        assert entry.file_sequence_number == 4
        assert (entry.file["first_row_id"] is None) == (entry.content != 0)
    assert done.table.scan().sort_by("id").to_pylist() == rows_before[1003]
    assert all_rows(done.table) == rows_before  # older snapshots keep their files
    after = files(t16)
    assert {name: after[name] for name in before} == before
    # Five files, three manifests, a list, a metadata.json and its hint.
    assert len(after.keys() - before.keys()) == 5 + 3 + 1 + 2
    metadata = document(t16)
    snapshot = metadata["snapshots"][-1]
    assert snapshot["summary"]["operation"] == "replace"
    assert snapshot["summary"]["added-data-files"] == "4"
    assert snapshot["summary"]["deleted-data-files"] == "4"
    assert snapshot["summary"]["added-records"] == snapshot["summary"]["deleted-records"] == "140"
    assert (snapshot["added-rows"], metadata["next-row-id"]) == (0, 140)
    assert metadata["last-sequence-number"] == snapshot["sequence-number"] == 4
    assert metadata["refs"]["main"]["snapshot-id"] == snapshot["snapshot-id"]


def test_what_was_written_opens_by_hand(t16: Path, table: IcebergTable) -> None:
    old = live(table)
    new = live(rotate_table(table, "dek").table)

    def plain(found: dict[str, Any], file_format: str) -> list[bytes]:
        entries = [entry for *_, entry in found.values() if entry.file_format == file_format]
        names = [entry.location.rpartition("/")[2] for entry in entries]
        data = [(t16 / "data" / name).read_bytes() for name in names]
        assert [len(file) for file in data] == [entry.size for entry in entries]
        return sorted(
            open_ags1(file, entry.key_metadata) for file, entry in zip(data, entries, strict=True)
        )

    assert plain(new, "AVRO") == plain(old, "AVRO")
    ((before,), (after,)) = plain(old, "PUFFIN"), plain(new, "PUFFIN")
    (vector,) = [entry for *_, entry in new.values() if entry.file_format == "PUFFIN"]
    start, size = vector.file["content_offset"], vector.file["content_size_in_bytes"]
    assert after[start : start + size] == before[start : start + size]
    target = vector.file["referenced_data_file"]
    assert target in new
    footer = json.loads(after[-12 - int.from_bytes(after[-12:-8], "little") : -12])
    assert footer["blobs"][0]["properties"]["referenced-data-file"] == target
    assert b"p1.parquet" not in after
    for *_, entry in new.values():
        if entry.file_format == "PARQUET":
            keys = parse_key_metadata(entry.key_metadata)
            path = t16 / "data" / entry.location.rpartition("/")[2]
            properties = pe.create_decryption_properties(
                footer_key=keys.key, aad_prefix=keys.aad_prefix
            )
            assert pq.read_table(path, decryption_properties=properties).num_rows == 50
            assert keys.length == path.stat().st_size


# --- Iceberg's Java ------------------------------------------------------------------------------


def lineage(java: Judge, table: IcebergTable) -> list[dict[str, Any]]:
    return java.read(table.place.path, lineage=True)


def test_java_reads_the_same_rows_with_the_same_row_ids(lake: IcebergTable, java: Judge) -> None:
    older = {
        snapshot.id: java.read(lake.place.path, snapshot=snapshot.id)
        for snapshot in lake.metadata.snapshots
    }
    before, old = lineage(java, lake), java.files(lake.place.path)
    table = rotate_table(lake, "dek").table
    assert lineage(java, table) == before
    assert {id_: java.read(table.place.path, snapshot=id_) for id_ in older} == older

    def data_keys(found: dict[str, Any]) -> set[str]:
        return set(json.dumps(found).split('"')) & {
            part for part in json.dumps(found).split('"') if len(part) == 64
        }

    assert data_keys(old)
    assert data_keys(old).isdisjoint(data_keys(java.files(table.place.path)))
    # Java deletes from files that were written anew, compacts, and appends.
    metadata = java.commit(
        table.place.path,
        {"do": "delete", "column": "id", "values": [6]},
        {"do": "append", "rows": rows(12)},
    )
    left = [row["id"] for row in java.read(metadata)]
    assert sorted(left) == [2, 3, 5, 7, 8, 9, 12]
    table = rotate_table(table, "dek").table
    assert [row["id"] for row in java.read(table.place.path)] == left
    metadata = java.commit(table.place.path, {"do": "compact"})
    assert [row["id"] for row in java.read(metadata)] == left


def test_then_the_old_keys_open_nothing_that_is_left(lake: IcebergTable, java: Judge) -> None:
    before = {path.read_bytes() for path in folder_of(lake).rglob("*.parquet")}
    current = java.read(lake.place.path)
    table = rotate_table(lake, "dek").table
    done = expire_history(table, force=True)
    assert java.read(done.table.place.path) == current
    assert before.isdisjoint(path.read_bytes() for path in folder_of(lake).rglob("*.parquet"))
    metadata = Path(done.table.place.path)
    assert table_files(folder_of(lake)) == files_needed(java, metadata) | {str(metadata)}
    assert done.left == ()


def test_a_puffin_file_with_vectors_of_several_files_is_written_once(
    tmp_path: Path, java: Judge
) -> None:
    metadata = java.create(tmp_path / "two", SCHEMA, spec=BY_KIND)
    metadata = java.commit(
        metadata,
        {"do": "append", "rows": rows(1, 2, 3, 4, 5, 6)},
        {"do": "delete", "column": "id", "values": [1, 4]},
    )
    table = open_table(tmp_path / "two", SampleKms())
    vectors = [row for row in table.files().to_pylist() if row["kind"] == "deletion vector"]
    assert len(vectors) == 2
    assert len({row["location"] for row in vectors}) == 1
    done = rotate_table(table, "dek")
    assert (done.data_files, done.delete_files) == (2, 1)
    assert [record["id"] for record in java.read(done.table.place.path)] == [2, 3, 5, 6]
    assert sorted(done.table.scan().column("id").to_pylist()) == [2, 3, 5, 6]


def test_position_deletes_name_the_new_locations(tmp_path: Path, java: Judge) -> None:
    """As version 2 has them: a table that was encrypted when it was there already."""
    reported: Any = {"format-version": "2", "encryption.key-id": None}
    plain = java.create(tmp_path / "plain", SCHEMA, spec=BY_KIND, properties=reported)
    plain = java.commit(
        plain,
        {"do": "append", "rows": rows(1, 2, 3, 4, 5, 6)},
        {"do": "append", "rows": rows(7, 8), "format": "avro"},
        {"do": "delete", "column": "id", "values": [1, 4, 7]},
    )
    table = encrypt_table(plain, tmp_path / "sealed", SampleKms(), master_key_id="keyA")
    deletes = [file for file in table.files().to_pylist() if file["kind"] == "position deletes"]
    assert deletes
    done = rotate_table(table, "dek")
    assert (done.data_files, done.delete_files) == (4, len(deletes))
    assert sorted(done.table.scan().column("id").to_pylist()) == [2, 3, 5, 6, 8]
    left = expire_history(done.table).table
    assert left.scan().num_rows == 5
    assert [row["id"] for row in java.read(left.place.path)] == [2, 3, 5, 6, 8]
    # What the files of deletes say of the locations in them is as true as before.
    for *_, entry in live(left).values():
        if entry.content == 1 and entry.file.get("lower_bounds"):
            bounds = [
                {bound["key"]: bound["value"] for bound in entry.file[name]}[2147483546].decode()
                for name in ("lower_bounds", "upper_bounds")
            ]
            assert set(bounds) <= live(left).keys()
            assert bounds[0] <= bounds[1]


def test_what_is_not_encrypted_gets_no_new_key(tmp_path: Path, java: Judge) -> None:
    reported: Any = {"encryption.key-id": None}
    plain = java.create(tmp_path / "plain", SCHEMA, properties=reported)
    plain = java.commit(plain, {"do": "append", "rows": rows(1, 2)})
    table = open_table(plain, SampleKms(), require_encrypted=False)
    before = files(tmp_path)
    for what in ("mek", "kek", "dek"):
        with pytest.raises(mc.errors.PlaintextError):
            rotate_table(table, what)
    assert files(tmp_path) == before


# --- key metadata that is sealed in manifests ----------------------------------------------------


@pytest.mark.parametrize("seal", [seal_singly, sealer_under("partition=a"), sealer_under("files")])
def test_key_metadata_that_was_sealed_is_in_the_clear_where_the_policy_has_it_so(
    t16: Path, table: IcebergTable, seal: Any
) -> None:
    rows_before = all_rows(table)
    table = reseal(table, seal)
    kms = SampleKms()
    planned = rotate_table(reopen(t16), "dek", dry_run=True)
    done = rotate_table(reopen(t16, kms), "dek")
    assert done.kms_calls == len(kms.calls)
    new_kek = not done.table.metadata.keys.keys() & table.walk.resolver.keks(table.metadata).keys()
    assert done.kms_calls == planned.kms_calls + new_kek
    after = [row for row in done.table.files().to_pylist() if "manifest" not in row["kind"]]
    assert {row["sealed_by"] for row in after} == {None}
    assert all_rows(done.table) == rows_before


# --- branches and tags ---------------------------------------------------------------------------


def read_refs(java: Judge, table: IcebergTable) -> dict[str, Any]:
    """Return the rows of each branch and tag as Java reads them, with their ids."""
    return {ref: java.read(table.place.path, ref=ref, lineage=True) for ref in table.metadata.refs}


def ancestors(table: IcebergTable, ref: str) -> list[int]:
    found, snapshot = list[int](), table.snapshot(ref)
    while snapshot is not None:
        found.append(snapshot.id)
        snapshot = None if snapshot.parent is None else table.snapshot(snapshot.parent)
    return found


def without_update_numbers(read: dict[str, Any]) -> dict[str, Any]:
    return {
        ref: [{k: v for k, v in row.items() if not k.startswith("_last")} for row in found]
        for ref, found in read.items()
    }


def test_branches_and_tags_get_new_keys_and_branches_stay_ahead(
    lake: IcebergTable, java: Judge
) -> None:
    metadata = java.commit(
        lake.place.path,
        {"do": "branch", "name": "wap"},
        {"do": "append", "rows": rows(30, 31), "branch": "wap"},
        {"do": "branch", "name": "deep"},
        {"do": "append", "rows": rows(40), "branch": "wap"},
    )
    second = json.loads(metadata.read_bytes())["refs"]["wap"]["snapshot-id"]
    java.commit(
        metadata,
        {"do": "tag", "name": "approved", "snapshot": second},
        {"do": "append", "rows": rows(50), "branch": "deep"},
        {"do": "delete", "column": "id", "values": [2, 9], "branch": "deep"},
    )
    table = lake.refreshed()
    retention = {"max-ref-age-ms": 86_400_000}
    refs = {name: dict(ref) for name, ref in table.metadata.refs.items()}
    refs["approved"] |= retention
    table = table.at(table.versions.commit(table.place, table.metadata.with_members(refs=refs))[0])
    before, keys_before = read_refs(java, table), {row["location"] for row in file_rows(table)}

    done = rotate_table(table, "dek")
    table = done.table
    assert without_update_numbers(read_refs(java, table)) == without_update_numbers(before)
    assert {row["location"] for row in file_rows(table)}.isdisjoint(keys_before)
    assert table.metadata.refs["approved"].items() >= {**retention, "type": "tag"}.items()
    assert done.behind_refs == ("audit",)
    heads = {name: ref["snapshot-id"] for name, ref in table.metadata.refs.items()}
    assert heads["approved"] == heads["wap"]
    assert set(done.older_snapshots).isdisjoint(heads.values())
    for ahead, operation in (("wap", "append"), ("deep", "overwrite")):
        assert ancestors(table, ahead)[:2] == [heads[ahead], heads["main"]]
        found = table.snapshot(ahead)
        assert found is not None
        assert found.operation == operation
    assert verify_table(table).ok

    metadata = java.commit(table.place.path, {"do": "fast-forward", "name": "main", "to": "deep"})
    rows_of_deep = without_update_numbers({"deep": java.read(metadata, lineage=True)})
    assert rows_of_deep["deep"] == without_update_numbers(before)["deep"]
    again = rotate_table(table.refreshed(), "dek")  # of two names for one snapshot
    assert without_update_numbers(read_refs(java, again.table))["main"] == rows_of_deep["deep"]
    expire_history(again.table)
    left = reopen(folder_of(lake))
    assert without_update_numbers(read_refs(java, left)) == {
        **without_update_numbers(before), "main": rows_of_deep["deep"]
    }  # fmt: skip
    assert verify_table(left).ok


def test_tags_share_their_new_manifests(lake: IcebergTable, java: Judge) -> None:
    metadata = Path(lake.place.path)
    for n in range(8):
        current = json.loads(metadata.read_bytes())["current-snapshot-id"]
        metadata = java.commit(
            metadata,
            {"do": "tag", "name": f"tag{n}", "snapshot": current},
            {"do": "append", "rows": rows(100 + n)},
        )
    table = lake.refreshed()
    before, folder = read_refs(java, table), folder_of(lake) / "metadata"
    known = {*folder.glob("*.avro")}
    done = rotate_table(table, "dek").table
    new = {*folder.glob("*.avro")} - known
    lists = [path for path in new if path.name.startswith("snap-")]
    current_snapshot = table.snapshot()
    assert current_snapshot is not None
    manifests = len(table.walk.manifests(current_snapshot))
    # main's, those of the tags, which share theirs, and those of branches ahead of main
    assert len(new) - len(lists) <= 2 * manifests + 4
    assert without_update_numbers(read_refs(java, done)) == without_update_numbers(before)
    refs = {name: ref for name, ref in done.metadata.refs.items() if name != "tag0"}
    done.versions.commit(done.place, done.metadata.with_members(refs=refs))
    expire_history(lake.refreshed())  # the tag whose snapshot the shared manifests name
    left = reopen(folder_of(lake))
    del before["tag0"]
    assert without_update_numbers(read_refs(java, left)) == without_update_numbers(before)
    assert verify_table(left).ok


def file_rows(table: IcebergTable) -> list[dict[str, Any]]:
    """Return the live data and delete files of all branches and tags."""
    found = [row for ref in table.metadata.refs for row in table.files(ref).to_pylist()]
    return [row for row in found if "manifest" not in row["kind"]]


def test_a_staged_append_can_be_published_after_a_rotation(lake: IcebergTable, java: Judge) -> None:
    before = [row["id"] for row in java.read(lake.place.path)]
    metadata = java.commit(lake.place.path, {"do": "append", "rows": rows(60), "wap": "w1"})
    staged = json.loads(metadata.read_bytes())["snapshots"][-1]
    done = rotate_table(lake.refreshed(), "dek")
    assert staged["snapshot-id"] in done.older_snapshots
    assert "1 staged snapshot (wap.id)" in (done.advice or "")
    pick = {"do": "cherry-pick", "snapshot": staged["snapshot-id"]}
    metadata = java.commit(done.table.place.path, pick)
    assert sorted(row["id"] for row in java.read(metadata)) == sorted([*before, 60])
    again = rotate_table(lake.refreshed(), "dek")
    assert "staged" not in (again.advice or "")
    assert again.table.scan().num_rows == len(before) + 1


def test_a_table_that_somebody_truncates_meanwhile(lake: IcebergTable, java: Judge) -> None:
    def truncate() -> None:
        java.commit(lake.refreshed().place.path, {"do": "overwrite", "rows": []})

    before = without_update_numbers(read_refs(java, lake))
    done = rotate_table(with_rival_commits(lake, truncate, 1), "dek")
    assert done.table.scan().num_rows == 0
    found = without_update_numbers(read_refs(java, reopen(folder_of(lake))))
    assert found == {**before, "main": []}
    assert verify_table(done.table).ok


def test_a_branch_that_somebody_replaces_or_drops_meanwhile(
    lake: IcebergTable, java: Judge
) -> None:
    def change() -> None:
        now = lake.refreshed()
        refs = {name: dict(ref) for name, ref in now.metadata.refs.items() if name != "first"}
        refs["audit"]["snapshot-id"] = refs["main"]["snapshot-id"]
        now.versions.commit(now.place, now.metadata.with_members(refs=refs))

    done = rotate_table(with_rival_commits(lake, change, 1), "dek")
    refs = done.table.metadata.refs
    assert refs.keys() == {"main", "audit"}
    assert refs["audit"]["snapshot-id"] == refs["main"]["snapshot-id"]
    assert done.behind_refs == ()


# --- others who commit meanwhile, and others who do the work -------------------------------------


def test_files_that_somebody_else_adds_meanwhile_get_new_keys_too(
    lake: IcebergTable, java: Judge
) -> None:
    folder, before = folder_of(lake), {file.name for file in folder_of(lake).rglob("*.parquet")}

    def change() -> None:
        now = lake.refreshed()
        java.commit(
            now.place.path,
            {"do": "append", "rows": rows(20)},
            {"do": "delete", "column": "id", "values": [9]},
        )

    done = rotate_table(with_rival_commits(lake, change, 2), "dek")
    ids = [row["id"] for row in java.read(done.table.place.path)]
    assert sorted(ids) == [2, 3, 5, 6, 7, 8, 20, 20]
    new = set[str]()
    for ref in done.table.metadata.refs:
        listed = done.table.files(ref).to_pylist()
        new |= {row["location"] for row in listed if row["kind"] == "data"}
    assert not {location.rpartition("/")[2] for location in new} & before
    assert done.data_files == len(new)
    # What the first attempts wrote and the last one did not need is gone.
    metadata = Path(done.table.place.path)
    orphans = table_files(folder) - files_needed(java, metadata)
    assert {Path(path).name[-13:] for path in orphans} == {"metadata.json"}


def test_a_conflict_without_end_leaves_nothing_behind(lake: IcebergTable, java: Judge) -> None:
    def change() -> None:
        java.commit(lake.refreshed().place.path, {"do": "append", "rows": rows(30)})

    with pytest.raises(mc.errors.CommitConflictError):
        rotate_table(with_rival_commits(lake, change, 99), "dek")
    metadata = Path(lake.refreshed().place.path)
    orphans = table_files(folder_of(lake)) - files_needed(java, metadata)
    assert {Path(path).name[-13:] for path in orphans} == {"metadata.json"}


def test_another_process_may_do_the_work_and_no_key_is_in_what_it_is_sent(
    t16: Path, table: IcebergTable
) -> None:
    before = all_rows(table)
    old = {parse_key_metadata(entry.key_metadata).key for *_, entry in live(table).values()}
    work = Elsewhere(twice=True)
    count = len(files(t16))
    done = rotate_table(table, "dek", run=work)
    assert all_rows(done.table) == before
    new = {parse_key_metadata(entry.key_metadata).key for *_, entry in live(done.table).values()}
    sent = b"".join(work.sent)
    assert work.items == 4
    for key in old | new:
        assert key not in sent
        assert key.hex().encode() not in sent
    assert len(files(t16)) == count + 5 + 3 + 1 + 2  # second attempts left nothing behind
    for call in work.sent:
        assert "sealed" not in repr(pickle.loads(call))


def test_each_file_is_written_once_however_often_the_commit_is_tried(
    t16: Path, table: IcebergTable
) -> None:
    def set_property() -> None:
        now = reopen(t16)
        reported = {**now.metadata.properties, "x": now.place.name}
        now.versions.commit(now.place, now.metadata.with_members(properties=reported))

    work, count = Elsewhere(), len(files(t16))
    done = rotate_table(with_rival_commits(table, set_property, 2), "dek", run=work)
    assert work.items == 4
    assert len(files(t16)) == count + 2 + 5 + 3 + 1 + 2  # and what somebody else has committed
    assert done.table.scan().num_rows == 137


def test_work_that_is_not_whole_is_refused(t16: Path, table: IcebergTable) -> None:
    before = files(t16)
    with pytest.raises(mc.errors.IntegrityError, match="exactly"):
        rotate_table(table, "dek", run=Elsewhere(forget=True))
    assert files(t16) == before
    with pytest.raises(ValueError, match="run is only for"):
        rotate_table(table, "kek", run=Elsewhere())
    with pytest.raises(ValueError, match="keeps the master key"):
        rotate_table(table, "dek", new_master_key_id="keyB")


# --- nothing half --------------------------------------------------------------------------------


def test_a_dry_run_writes_nothing(t16: Path, table: IcebergTable) -> None:
    before = files(t16)
    planned = rotate_table(table, "dek", dry_run=True)
    assert files(t16) == before
    done: TableRotation = rotate_table(table, "dek")
    assert with_planned_values(done, planned) == planned


def test_a_table_without_files_stays_as_it_is(tmp_path: Path, java: Judge) -> None:
    java.create(tmp_path / "empty", SCHEMA)
    table = open_table(tmp_path / "empty", SampleKms())
    before = files(tmp_path)
    done = rotate_table(table, "dek")
    assert (done.committed, done.data_files, files(tmp_path)) == (False, 0, before)


@each_case("name", ["p1.parquet", "a2.avro", "dv1.puffin"])
@each_case("how", ["flipped", "cut", "gone"])
def test_a_file_that_is_not_what_was_written_is_not_given_a_new_key(
    t16: Path, table: IcebergTable, name: str, how: str
) -> None:
    path = t16 / "data" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(data if how == "flipped" else data[:-1])
    before = files(t16)
    with pytest.raises((mc.errors.IntegrityError, FileNotFoundError)):
        rotate_table(table, "dek")
    assert files(t16) == before


# --- what it leaves ------------------------------------------------------------------------------


def test_what_stays_under_the_old_keys_is_reported_until_it_is_expired(
    t16: Path, table: IcebergTable
) -> None:
    refs = {
        "main": {"snapshot-id": 1003, "type": "branch"},
        "draft": {"snapshot-id": 1002, "type": "branch"},
        "eve": {"snapshot-id": 1001, "type": "tag"},
    }
    table = table.at(table.versions.commit(table.place, table.metadata.with_members(refs=refs))[0])
    rows_before = all_rows(table)
    planned = rotate_table(table, "dek", dry_run=True)
    done = rotate_table(table, "dek")
    assert done.older_snapshots == planned.older_snapshots == (1001, 1002, 1003)
    assert done.behind_refs == planned.behind_refs == ("draft",)
    assert "draft" in (done.advice or "")
    assert done.fields()["behind_refs"] == ["draft"]
    for name, snapshot in (("main", 1003), ("draft", 1002), ("eve", 1001)):
        assert done.table.scan(name).sort_by("id").to_pylist() == rows_before[snapshot]

    expire_history(done.table)
    left = rotate_table(reopen(t16), "dek", dry_run=True)
    assert len(left.older_snapshots) == 3  # those that it is to replace
    expire_history(reopen(t16), force=True)
    (only,) = reopen(t16).metadata.snapshots
    done = rotate_table(reopen(t16), "dek")
    assert (done.older_snapshots, done.behind_refs) == ((only.id,), ())
    assert rotate_table(done.table, "kek").older_snapshots == ()

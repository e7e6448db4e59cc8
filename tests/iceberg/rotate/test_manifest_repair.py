"""Repair of manifests that were written in plaintext, and what an attacker makes of these."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import modcrypt as mc
from modcrypt.errors import IntegrityError, ModcryptError, PlaintextError
from modcrypt.iceberg import (
    IcebergTable,
    expire_history,
    open_table,
    remove_orphan_files,
    repair_manifests,
    rotate_table,
    verify_table,
)
from modcrypt.iceberg.format.encrypted_files import decryption_properties
from modcrypt.keys import Secret
from tests.support.iceberg.fault_words import fault_words
from tests.support.iceberg.made_tables import make_table
from tests.support.iceberg.plaintext_manifests import Rows, rewrite_in_plaintext
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.iceberg.table_changes import ids, rows


def reopen(table: IcebergTable, **options: Any) -> IcebergTable:
    return open_table(Path(table.metadata.location), SampleKms(), **options)


def forget_all_but_current(table: IcebergTable) -> IcebergTable:
    """Expire the snapshots before, as Java does: the files stay."""
    current = table.metadata.current
    assert current is not None
    new = table.metadata.with_members(snapshots=[current.document], snapshot_log=[])
    table.versions.commit(table.place, new)
    return reopen(table)


@pytest.fixture
def three(tmp_path: Path) -> IcebergTable:
    """Make a table of three files in three manifests."""
    table = make_table(tmp_path / "t")
    for id_ in (1, 2, 3):
        table = table.append(rows(id_, -id_))
    return table


ALL = [-3, -2, -1, 1, 2, 3]


def test_a_table_without_plaintext_manifests_stays(three: IcebergTable) -> None:
    done = repair_manifests(three)
    assert (done.manifests, done.replaced, done.table.place) == ((), False, three.place)


@pytest.mark.parametrize("manifests", [1, 2])
def test_plaintext_manifests_are_encrypted(three: IcebergTable, manifests: int) -> None:
    table = rewrite_in_plaintext(three, manifests=manifests)
    with pytest.raises(PlaintextError):
        table.scan().to_arrow()
    planned = repair_manifests(table, dry_run=True)
    assert (len(planned.manifests), planned.files, planned.replaced) == (manifests, 3, True)
    assert reopen(table).place == table.place
    done = repair_manifests(table)
    assert (done.untrusted, done.replaced, done.dry_run) == ((), True, False)
    assert done.manifests == planned.manifests
    assert done.older_snapshots == (table.metadata.snapshots[-1].id,)
    repaired = reopen(table)
    assert ids(repaired) == ALL
    last = repaired.metadata.snapshots[-1]
    assert last.operation == "replace"
    assert last.parent == table.metadata.snapshots[-1].id
    files = repaired.files()
    assert all(files["encrypted"].to_pylist())
    assert repaired.append(rows(4)).scan().num_rows == 7


def lineage(table: IcebergTable) -> list[tuple[Any, ...]]:
    """Return what a rewrite of manifests must keep of each file."""
    current = table.metadata.current
    assert current is not None
    found = []
    for manifest in table.walk.manifests(current):
        for entry in table.walk.entries(manifest):
            assert entry.key_metadata is not None
            found.append((
                entry.location, entry.sequence_number, entry.file_sequence_number,
                entry.snapshot_id, entry.file["first_row_id"], entry.key_metadata,
            ))  # fmt: skip
    return sorted(found)


def test_sequence_numbers_row_ids_and_keys_stay(three: IcebergTable) -> None:
    repaired = repair_manifests(rewrite_in_plaintext(three)).table
    kept = lineage(repaired)
    assert [row[4] for row in kept if row[1] == 1] == [0]
    assert sorted(row[4] for row in kept) == [0, 2, 4]
    assert [(*row[:4], row[5]) for row in kept] == [(*row[:4], row[5]) for row in lineage(three)]
    assert repaired.metadata.document["next-row-id"] == 6


def test_the_repaired_table_is_rotated_and_expired(three: IcebergTable) -> None:
    """That is what takes the keys that were readable, and the plaintext manifests, away."""
    table = rewrite_in_plaintext(three)
    leaked = repair_manifests(table, dry_run=True).manifests
    repaired = repair_manifests(table).table
    done = expire_history(rotate_table(repaired, "dek").table, force=True).table
    assert remove_orphan_files(done, older_than_days=0).left == ()
    assert ids(done) == ALL
    assert verify_table(done).ok
    assert not any(Path(path).exists() for path in leaked)


def test_a_later_snapshot_and_a_second_rewrite_are_repaired(three: IcebergTable) -> None:
    table = rewrite_in_plaintext(three)
    table = append_beside(table, 4)
    table = rewrite_on_plaintext(table)
    done = repair_manifests(table)
    assert done.untrusted == ()
    assert ids(done.table) == [-4, *ALL, 4]


def append_beside(table: IcebergTable, id_: int) -> IcebergTable:
    """Append as Java 1.11 does, which keeps the plaintext manifests."""
    opened = reopen(table, require_encrypted=False)
    opened.append(rows(id_, -id_))
    return reopen(table)


def rewrite_on_plaintext(table: IcebergTable) -> IcebergTable:
    rewrite_in_plaintext(reopen(table, require_encrypted=False))
    return reopen(table)


# --- nothing vouches for the entries -------------------------------------------------------------


def test_entries_are_trusted_only_on_request(three: IcebergTable) -> None:
    table = forget_all_but_current(rewrite_in_plaintext(three))
    found = repair_manifests(table)
    assert (found.replaced, found.untrusted) == (False, found.manifests)
    assert "is no longer in the table" in found.reasons[0]
    assert reopen(table).place == table.place
    done = repair_manifests(table, trust_plaintext=True)
    assert done.replaced
    assert ids(reopen(table)) == ALL


def without_key(found: Rows) -> Rows:
    first, *others = found
    return [{**first, "data_file": {**first["data_file"], "key_metadata": None}}, *others]


def with_wrong_key(found: Rows) -> Rows:
    first, second, *others = found
    key = Secret(second["data_file"]["key_metadata"]())
    return [{**first, "data_file": {**first["data_file"], "key_metadata": key}}, second, *others]


def with_fewer_files(found: Rows) -> Rows:
    return found[:2]


def with_a_file_twice(found: Rows) -> Rows:
    return [found[0], found[0], *found[2:]]


def with_other_rows(found: Rows) -> Rows:
    files = [{**row["data_file"]} for row in found]
    files[0]["record_count"], files[1]["record_count"] = 1, 3
    return [{**row, "data_file": file} for row, file in zip(found, files, strict=True)]


@pytest.mark.parametrize(
    "alter", [without_key, with_wrong_key, with_fewer_files, with_a_file_twice, with_other_rows]
)
def test_trusted_entries_have_to_fit_their_files(
    three: IcebergTable, alter: Callable[[Rows], Rows]
) -> None:
    table = forget_all_but_current(rewrite_in_plaintext(three, alter=alter))
    with pytest.raises(ModcryptError):
        repair_manifests(table, trust_plaintext=True)
    assert reopen(table).place == table.place


# --- altered manifests ---------------------------------------------------------------------------


@pytest.mark.parametrize("alter", [with_fewer_files, with_a_file_twice])
def test_other_files_are_refused_even_if_trusted(
    three: IcebergTable, alter: Callable[[Rows], Rows]
) -> None:
    table = rewrite_in_plaintext(three, alter=alter)
    for trusted in (False, True):
        with pytest.raises(IntegrityError, match="altered"):
            repair_manifests(table, trust_plaintext=trusted)
    assert reopen(table).place == table.place


@pytest.mark.parametrize("alter", [without_key, with_wrong_key])
def test_altered_entries_are_replaced_by_authentic_ones(
    three: IcebergTable, alter: Callable[[Rows], Rows]
) -> None:
    table = rewrite_in_plaintext(three, alter=alter)
    assert lineage(repair_manifests(table).table)[0][5] == lineage(three)[0][5]
    assert ids(reopen(table)) == ALL


def test_a_file_that_was_deleted_before_does_not_come_back(three: IcebergTable) -> None:
    """An old file with as many rows, and its key, which older manifests have."""
    old = lineage(three)[0]
    table = rotate_table(three, "dek").table

    def bring_back(found: Rows) -> Rows:
        first, *others = found
        file = {**first["data_file"], "file_path": old[0], "key_metadata": Secret(old[5])}
        return [{**first, "data_file": file}, *others]

    table = rewrite_in_plaintext(table, alter=bring_back)
    with pytest.raises(IntegrityError, match="altered"):
        repair_manifests(table, trust_plaintext=True)


def test_metadata_json_does_not_choose_the_snapshot_before(three: IcebergTable) -> None:
    """The header of the encrypted manifest list names it."""

    def keep_two(found: Rows) -> Rows:
        return [row for row in found if row["sequence_number"] != 3]

    table = rewrite_in_plaintext(three, alter=keep_two)
    document = json.loads(Path(table.place.path).read_bytes())
    second = table.metadata.snapshots[1]
    document["snapshots"][-1]["parent-snapshot-id"] = second.id
    Path(table.place.path).write_text(json.dumps(document))
    with pytest.raises(IntegrityError, match="altered"):
        repair_manifests(reopen(table), trust_plaintext=True)


def test_entries_moved_between_manifests_need_trust(three: IcebergTable) -> None:
    """A later snapshot replaced one of two manifests: entries of it may have been moved here."""
    table = rewrite_in_plaintext(three, manifests=2)
    current = table.metadata.current
    assert current is not None
    opened = reopen(table, require_encrypted=False)
    first, second = opened.walk.manifests(current)
    found = repair_manifests(drop_manifest(table, second.location))
    assert (found.replaced, found.untrusted) == (False, (first.location,))
    assert "replaced another manifest of that rewrite" in found.reasons[0]


def drop_manifest(table: IcebergTable, location: str) -> IcebergTable:
    """Commit a snapshot without one of the manifests."""
    from modcrypt.iceberg.keys.key_policies import KeyPolicy, writing_keys
    from modcrypt.iceberg.write.new_files import NewFiles
    from modcrypt.iceberg.write.snapshot_writing import add_snapshot, new_snapshot_id

    current = table.metadata.current
    assert current is not None
    kept = [each.row for each in table.walk.manifests(current) if each.location != location]
    keys = writing_keys(table, KeyPolicy.of(table.metadata), [])
    new = add_snapshot(
        table, new_snapshot_id(table.metadata), kept, keys.of_list,
        NewFiles(table.walk.locations), operation="delete", summary={}, new_keys=keys.entries,
    )  # fmt: skip
    table.versions.commit(table.place, new)
    return reopen(table)


def test_a_plaintext_manifest_list_is_refused(three: IcebergTable) -> None:
    table = rewrite_in_plaintext(three)
    document = json.loads(Path(table.place.path).read_bytes())
    del document["snapshots"][-1]["key-id"]
    Path(table.place.path).write_text(json.dumps(document))
    with pytest.raises(PlaintextError):
        repair_manifests(reopen(table), trust_plaintext=True)


# --- plaintext manifests of plaintext files, as Spark's add_files writes them ---------------------


def decrypt_files(table: IcebergTable) -> Callable[[Rows], Rows]:
    """Return a function that decrypts the files of entries and takes away their keys."""

    def alter(entries: Rows) -> Rows:
        for row in entries:
            file, folder = row["data_file"], Path(table.metadata.location)
            path = folder / "data" / f"{Path(file['file_path']).name}.plain"
            keys = table.walk.resolver.open_metadata(file["key_metadata"](), table.metadata)
            mc.decrypt_parquet(file["file_path"], path, decryption_properties(keys))
            size = path.stat().st_size
            file |= {"file_path": str(path), "file_size_in_bytes": size, "key_metadata": None}
        return entries

    return alter


def test_files_of_plaintext_manifests_are_encrypted(three: IcebergTable) -> None:
    table = rewrite_in_plaintext(three, prepare=decrypt_files(three))
    assert not verify_table(table).ok
    with pytest.raises(PlaintextError, match="encrypt_plaintext=True"):
        rotate_table(table, "dek")
    rotate_table(table, "dek", encrypt_plaintext=True)
    assert ids(reopen(table)) == ALL
    expired = expire_history(reopen(table)).table
    assert fault_words(expired) == {"plaintext"}  # the manifests, for which no rule deletes
    remove_orphan_files(expired, older_than_days=0, foreign=True)
    assert verify_table(expired).ok


def test_plaintext_manifests_of_encrypted_files_are_repaired_before(three: IcebergTable) -> None:
    table = rewrite_in_plaintext(three)
    with pytest.raises(PlaintextError, match="repair_manifests"):
        rotate_table(table, "dek", encrypt_plaintext=True)
    assert reopen(table).place == table.place


@pytest.mark.parametrize("alter", [
    lambda entries: entries[1:],
    lambda entries: [{**row, "data_file": {**row["data_file"], "record_count": 7}}
                     for row in entries],
])  # fmt: skip
def test_altered_numbers_of_plaintext_manifests_are_refused(
    three: IcebergTable, alter: Callable[[Rows], Rows]
) -> None:
    table = rewrite_in_plaintext(three, prepare=decrypt_files(three), alter=alter)
    with pytest.raises(IntegrityError, match="altered"):
        rotate_table(table, "dek", encrypt_plaintext=True)


def test_plaintext_manifests_cannot_repeat_rows(three: IcebergTable) -> None:
    def name_twice(entries: Rows) -> Rows:
        first = entries[0]["data_file"]
        return [
            {
                **row,
                "data_file": {
                    **row["data_file"],
                    **{name: first[name] for name in ("file_path", "file_size_in_bytes")},
                },
            }
            for row in entries
        ]

    plain = decrypt_files(three)
    table = rewrite_in_plaintext(three, prepare=plain, alter=name_twice)
    with pytest.raises(IntegrityError, match="and so does another entry"):
        rotate_table(table, "dek", encrypt_plaintext=True)


def test_plaintext_manifests_show_no_files_of_branches(three: IcebergTable) -> None:
    three.append(rows(9), branch="other")
    table = three.refreshed()
    own = table.files("other")["location"].to_pylist()

    def name_own(entries: Rows) -> Rows:
        return [{**row, "data_file": {**row["data_file"], "file_path": path}}
                for row, path in zip(entries, own, strict=False)]  # fmt: skip

    altered = rewrite_in_plaintext(table, prepare=decrypt_files(table), alter=name_own)
    with pytest.raises(IntegrityError, match="and so does another entry"):
        rotate_table(altered, "dek", encrypt_plaintext=True)

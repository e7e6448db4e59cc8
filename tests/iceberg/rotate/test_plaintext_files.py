"""Files that were registered in plaintext, as by Spark's `add_files`, and their encryption."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import modcrypt as mc
from modcrypt.iceberg import IcebergTable, open_table, verify_table
from modcrypt.iceberg.format.encrypted_files import decryption_properties
from modcrypt.iceberg.format.manifest_rows.file_entries import EXISTING
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.keys.key_policies import KeyPolicy, writing_keys
from modcrypt.iceberg.rotate.expiry import expire_history
from modcrypt.iceberg.rotate.table_rotation import rotate_table
from modcrypt.iceberg.write.commit import commit
from modcrypt.iceberg.write.manifest_writing import (
    entry_row,
    first_row_ids,
    partition_values,
    write_manifest,
)
from modcrypt.iceberg.write.new_files import NewFiles
from modcrypt.iceberg.write.snapshot_writing import add_snapshot, new_snapshot_id
from tests.support.iceberg.java_judge import Judge
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.iceberg.shared_table import both


def current_rows(folder: Path, where: dict[str, str], **more: Any) -> list[dict[str, Any]]:
    """Return the rows of a table in a folder, whose locations `where` maps."""
    table = open_table(folder, SampleKms(), location_map=where, **more)
    return list(table.scan().sort_by("id").to_pylist())


def register_in_plaintext(
    table: IcebergTable, *, elsewhere: str = ""
) -> tuple[IcebergTable, list[str]]:
    """Commit a snapshot in which all Parquet data files are plaintext copies.

    `elsewhere` is the location of another folder for the copies.
    """
    files, copies = NewFiles(table.walk.locations), list[str]()

    def next_version(current: IcebergTable) -> TableMetadata:
        snapshot_id, rows = new_snapshot_id(current.metadata), list[Mapping[str, Any]]()
        assert current.metadata.current is not None
        for manifest in current.walk.manifests(current.metadata.current):
            if manifest.content:
                rows.append(manifest.row)
                continue
            entries, changed = current.walk.entries(manifest), []
            for entry, first in zip(entries, first_row_ids(manifest, entries), strict=True):
                if not entry.is_live:
                    continue
                changes: dict[str, Any] = {}
                if entry.file_format == "PARQUET":
                    changes = copy_in_plaintext(current, entry, elsewhere)
                    copies.append(changes["file_path"])
                changed.append(
                    entry_row(
                        entry, status=EXISTING, first_row_id=first,
                        partition=partition_values(current.metadata, entry), **changes,
                    )
                )  # fmt: skip
            row = write_manifest(
                current, manifest.spec_id, changed, files, content=0, snapshot_id=snapshot_id
            )
            rows.append({**row, "first_row_id": manifest.row.get("first_row_id")})
        keys = writing_keys(current, KeyPolicy.of(current.metadata), [])
        return add_snapshot(
            current, snapshot_id, rows, keys.of_list, files, operation="append", summary={},
            new_keys=keys.entries,
        )  # fmt: skip

    return commit(table, next_version, files=files), copies


def copy_in_plaintext(table: IcebergTable, entry: Any, elsewhere: str) -> dict[str, Any]:
    keys = table.walk.file_keys(entry)
    assert keys is not None
    location = f"{entry.location}.plain.parquet"
    if elsewhere:
        location = f"{elsewhere}/{location.rpartition('/')[2]}"
    target = table.walk.place(location).path
    mc.decrypt_parquet(table.walk.place(entry.location).path, target, decryption_properties(keys))
    size = Path(target).stat().st_size
    return {"file_path": location, "file_size_in_bytes": size, "key_metadata": None}


def test_registered_plaintext_is_found_and_encrypted(t16: Path, table: IcebergTable) -> None:
    table, copies = register_in_plaintext(table)
    before = current_rows(t16, both(t16), require_encrypted=False)
    assert copies
    verified = verify_table(table)
    found = [finding.location for finding in verified.findings if finding.word == "plaintext"]
    assert set(copies) <= set(found)
    with pytest.raises(mc.errors.PlaintextError, match="encrypt_plaintext=True"):
        rotate_table(table, "dek")
    dry = rotate_table(table, "dek", encrypt_plaintext=True, dry_run=True)
    assert not dry.committed
    done = rotate_table(table, "dek", encrypt_plaintext=True)
    assert done.committed
    assert current_rows(t16, both(t16)) == before
    current = done.table.metadata.current
    assert current is not None
    for manifest in done.table.walk.manifests(current):
        for entry in done.table.walk.entries(manifest):
            if entry.is_live:
                assert done.table.walk.file_keys(entry) is not None


def test_expiry_removes_the_plaintext(table: IcebergTable) -> None:
    table, copies = register_in_plaintext(table)
    done = rotate_table(table, "dek", encrypt_plaintext=True)
    expired = expire_history(done.table).table
    assert not any(Path(table.walk.place(copy).path).exists() for copy in copies)
    assert verify_table(expired).ok


def test_files_of_another_folder_are_encrypted_into_the_table(t16: Path, tmp_path: Path) -> None:
    (tmp_path / "landing").mkdir()
    where = {**both(t16), "file:/landing": str(tmp_path / "landing")}
    table = open_table(t16, SampleKms(), location_map=where)
    table, copies = register_in_plaintext(table, elsewhere="file:/landing")
    before = current_rows(t16, where, require_encrypted=False)
    assert len(copies) == len(list((tmp_path / "landing").iterdir()))
    rotate_table(table, "dek", encrypt_plaintext=True)
    assert current_rows(t16, both(t16)) == before  # without the other folder


def test_java_reads_what_was_encrypted(t16: Path, table: IcebergTable, java: Judge) -> None:
    table, _ = register_in_plaintext(table)
    done = rotate_table(table, "dek", encrypt_plaintext=True).table
    read = java.read(done.place.path, location_map=both(t16))
    assert sorted(row["id"] for row in read) == [row["id"] for row in current_rows(t16, both(t16))]


def test_a_replaced_copy_of_another_length_is_refused(table: IcebergTable) -> None:
    table, copies = register_in_plaintext(table)
    with Path(table.walk.place(copies[0]).path).open("ab") as file:
        file.write(b"x")
    with pytest.raises(mc.errors.TruncationError):
        rotate_table(table, "dek", encrypt_plaintext=True)


@pytest.mark.parametrize("what", ["mek", "kek"])
def test_only_data_keys_encrypt_files(table: IcebergTable, what: Any) -> None:
    with pytest.raises(ValueError, match="only for"):
        rotate_table(table, what, encrypt_plaintext=True)

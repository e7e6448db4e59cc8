"""Tables whose manifests were rewritten in plaintext, as Spark does it with Iceberg 1.11."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from modcrypt.iceberg import IcebergTable
from modcrypt.iceberg.format.manifest_rows.file_entries import EXISTING
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.keys.key_policies import KeyPolicy, writing_keys
from modcrypt.iceberg.write.commit import commit
from modcrypt.iceberg.write.manifest_writing import (
    entry_row,
    first_row_ids,
    partition_values,
    write_manifest,
)
from modcrypt.iceberg.write.new_files import NewFiles
from modcrypt.iceberg.write.snapshot_writing import add_snapshot, new_snapshot_id
from modcrypt.keys.metadata import StandardKeyMetadata

Rows: TypeAlias = list[dict[str, Any]]
Alter: TypeAlias = Callable[[Rows], Rows]


def rewrite_in_plaintext(
    table: IcebergTable, *, manifests: int = 1, alter: Alter | None = None,
    prepare: Alter | None = None,
) -> IcebergTable:  # fmt: skip
    """Commit a snapshot whose data manifests are `manifests` plaintext ones.

    Their writer has changed the entries by `prepare`, and then an attacker by `alter`, who kept the
    lengths.
    """
    files = NewFiles(table.walk.locations)

    def next_version(current: IcebergTable) -> TableMetadata:
        snapshot_id = new_snapshot_id(current.metadata)
        rows, kept = _rows(current)
        rows = rows if prepare is None else prepare(rows)
        made = [
            _write_in_plaintext(current, rows[at::manifests], snapshot_id, files, alter)
            for at in range(manifests)
        ]
        keys = writing_keys(current, KeyPolicy.of(current.metadata), [])
        return add_snapshot(
            current, snapshot_id, [*made, *kept], keys.of_list, files,
            operation="replace", summary={}, new_keys=keys.entries,
        )  # fmt: skip

    return commit(table, next_version, files=files)


def _rows(table: IcebergTable) -> tuple[Rows, Sequence[Any]]:
    """Return the live entries of data manifests as rows, and the other manifests."""
    current = table.metadata.current
    assert current is not None
    rows: Rows = []
    kept = []
    for manifest in table.walk.manifests(current):
        if manifest.content:
            kept.append(manifest.row)
            continue
        entries = table.walk.entries(manifest)
        rows += [
            entry_row(
                entry, status=EXISTING, first_row_id=first,
                partition=partition_values(table.metadata, entry),
            )
            for entry, first in zip(entries, first_row_ids(manifest, entries), strict=True)
            if entry.is_live
        ]  # fmt: skip
    return rows, kept


def _write_in_plaintext(
    table: IcebergTable, rows: Rows, snapshot_id: int, files: NewFiles, alter: Alter | None
) -> dict[str, Any]:
    made = write_manifest(table, 0, rows, files, content=0, snapshot_id=snapshot_id)
    altered = made
    if alter is not None:
        altered = write_manifest(table, 0, alter(rows), files, content=0, snapshot_id=snapshot_id)
    keys = StandardKeyMetadata.decode(altered["key_metadata"]())
    data = table.walk.read(altered["manifest_path"], keys)
    Path(table.walk.place(made["manifest_path"]).path).write_bytes(data)
    return {**made, "manifest_length": len(data), "key_metadata": None, "first_row_id": 0}

"""Append rows to a table: write data files, then commit a snapshot that adds them.

    data files -> a manifest -> a manifest list -> metadata.json

The files are written in this order, so readers see nothing before the last step. Data files are
written once. Manifest and manifest list are written again for each attempt, because sequence
numbers, row ids and keys depend on the version that the commit follows (Java's MergeAppend). Files
of a failed attempt are removed, unless it is unknown whether the attempt failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from modcrypt.errors import CommitConflictError, UnsupportedFormatError
from modcrypt.iceberg.format.manifest_rows.file_entries import ADDED, DATA
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.keys.key_policies import require_encrypted, writing_keys, writing_policy
from modcrypt.iceberg.keys.key_resolver import encrypt_for_manifest
from modcrypt.iceberg.keys.wrapping_keys import OpenKey
from modcrypt.iceberg.write.commit import Table, commit
from modcrypt.iceberg.write.data_writing import Data, DataWriter, NewDataFile
from modcrypt.iceberg.write.manifest_merging import Merges, existing_rows, plan_merges
from modcrypt.iceberg.write.manifest_writing import Row, partition_spec, write_manifest
from modcrypt.iceberg.write.new_files import NewFiles
from modcrypt.iceberg.write.snapshot_writing import MAIN, add_snapshot, branch_head, new_snapshot_id
from modcrypt.keys import Secret
from modcrypt.keys.metadata import StandardKeyMetadata
from modcrypt.parquet.arrow.arrow_streams import ArrowStream, open_stream

if TYPE_CHECKING:
    from modcrypt.iceberg.read.table_version import TableVersion


def append(
    table: Table,
    data: Data | ArrowStream,
    *,
    branch: str | None = MAIN,
    snapshot_properties: Mapping[str, str] | None = None,
) -> Table:
    """Append rows to a table, as a new snapshot on a branch.

    Args:
        table: Any version of the table; the rows are added to its current version.
        data: An Arrow table; or a reader of record batches or other provider of an Arrow stream
            (a frame of pandas or Polars, a DuckDB relation), of which the rows of one file are
            held in memory at a time. Columns are matched by name.
        branch: Name of the branch; one that does not exist begins at the current snapshot.
        snapshot_properties: Further members of the snapshot's summary.

    Returns:
        The table with the new rows; its current version if the data has no rows.

    Raises:
        TypeError, ValueError: The data is not Arrow data, or its columns do not fit the table;
            raised before anything is written.
        PlaintextError, UnsupportedFormatError: The table is not encrypted, or its format version
            has no encryption; or it declares cells, and has no subjects to encrypt them for.
        IntegrityError: The current version has another master key or policy than `table`, or is
            older than `table`.
        CommitConflictError: Other writers committed first at every attempt, or changed the
            partitioning.
        KeyRetrievalError: The key service refuses.
        ModcryptError, OSError: The table cannot be read or written; it is unchanged.
    """
    branch, properties = branch or MAIN, check_properties(snapshot_properties)
    current = open_for_writing(table, branch)
    with NewFiles(current.walk.locations) as new_files:
        writer = DataWriter(current, new_files)
        if not isinstance(data, pa.Table):
            data = open_stream(data)
        writer.check(data.schema)
        if not (files := writer.write(data)):
            return current
        addition = _Addition(
            files, writer.spec_id, current.metadata, table.metadata, new_files, branch, properties
        )
        return commit(current, addition.next_version, files=new_files)


def open_for_writing(table: Table, branch: str) -> Table:
    """Return a table's current version if rows can be written to a branch; raise as `append`."""
    current = table.refreshed()
    _check_encrypted(current.metadata)
    current.metadata.check_members()
    branch_head(current.metadata, branch)
    current.versions.check_writable()
    writing_policy(current.metadata, table.metadata)
    return current


def check_properties(properties: Mapping[str, str] | None) -> dict[str, str]:
    """Return members for a snapshot's summary; raise ValueError if they are not texts."""
    members = dict(properties or {})
    if not all(isinstance(text, str) for pair in members.items() for text in pair):
        raise ValueError("snapshot_properties must be texts by their names")
    if "operation" in members:
        raise ValueError("the property operation of a snapshot cannot be chosen")
    return members


def _check_encrypted(metadata: TableMetadata) -> None:
    require_encrypted(metadata)
    if metadata.format_version < 3:
        raise UnsupportedFormatError(
            f"{metadata.name}: Iceberg format version {metadata.format_version} "
            "has no encryption; upgrade the table to version 3"
        )


@dataclass
class _Addition:
    """The snapshot that adds files; written again for each attempt to commit it."""

    files: Sequence[NewDataFile]
    spec_id: int
    base: TableMetadata
    seen: TableMetadata
    new_files: NewFiles
    branch: str
    properties: Mapping[str, str]

    def next_version(self, table: TableVersion) -> TableMetadata:
        """Write the manifest and the manifest list; return the metadata that names them."""
        metadata = table.metadata
        check_same_spec(metadata, self.base, self.spec_id)
        parent = branch_head(metadata, self.branch)
        before = [] if parent is None else table.walk.manifests(parent)
        table.walk.check_specs(manifest for manifest in before if manifest.spec_id == self.spec_id)
        paths = [file.partition_path for file in self.files]
        keys = writing_keys(table, writing_policy(metadata, self.seen), paths)
        snapshot_id = new_snapshot_id(metadata)
        rows = added_rows(self.files, keys.of_files, snapshot_id)
        merges = plan_merges(metadata, self.spec_id, before)
        manifests = self._write_manifests(table, merges, rows, snapshot_id)
        return add_snapshot(
            table,
            snapshot_id,
            [*manifests, *(old.row for old in merges.kept)],
            keys.of_list,
            self.new_files,
            operation="append",
            summary={
                **self.properties,
                **count_added(self.files),
                "changed-partition-count": str(len(set(paths))),
            },
            replaced=merges.replaced,
            new_keys=keys.entries,
            parent=parent,
            refs=(self.branch,),
        )

    def _write_manifests(
        self, table: TableVersion, merges: Merges, new: Iterable[Row], snapshot_id: int
    ) -> list[Row]:
        """Write the manifest of the new files, and those into which others are merged."""
        spec = self.spec_id
        groups = [chain(new, existing_rows(table, spec, merges.with_new))]
        groups += (chain(existing_rows(table, spec, group)) for group in merges.others)
        return [
            write_manifest(table, spec, rows, self.new_files, content=DATA, snapshot_id=snapshot_id)
            for rows in groups
        ]


def check_same_spec(metadata: TableMetadata, base: TableMetadata, spec_id: int) -> None:
    """Raise CommitConflictError if files were written by another partition spec of this id."""
    if partition_spec(metadata, spec_id) != partition_spec(base, spec_id):
        raise CommitConflictError(f"{metadata.name}: another writer changed the partitioning")


def count_added(files: Iterable[NewDataFile]) -> dict[str, str]:
    """Return the members of a snapshot's summary that count added data files; none without any."""
    entries = [file.file for file in files]
    if not entries:
        return {}
    return {
        "added-data-files": str(len(entries)),
        "added-records": str(sum(entry["record_count"] for entry in entries)),
        "added-files-size": str(sum(entry["file_size_in_bytes"] for entry in entries)),
    }


def added_rows(
    files: Sequence[NewDataFile], of_files: Sequence[OpenKey | None], snapshot_id: int
) -> list[Row]:
    """Return rows of a manifest that add files; `of_files` is as for `encrypt_key_metadata`."""
    encrypted = encrypt_key_metadata([file.keys for file in files], of_files)
    return [
        {
            "status": ADDED,
            "snapshot_id": snapshot_id,
            "data_file": {**file.file, "key_metadata": key_metadata},
        }
        for file, key_metadata in zip(files, encrypted, strict=True)
    ]


def encrypt_key_metadata(
    metadata: Sequence[StandardKeyMetadata], of_files: Sequence[OpenKey | None]
) -> list[Secret[bytes]]:
    """Return the key metadata of new files as their manifest stores it.

    `of_files` has the key that encrypts the key metadata of each file; None leaves it as plaintext
    within the encrypted manifest.
    """
    encrypted: list[Any] = [None] * len(metadata)
    for key in {id(key): key for key in of_files}.values():
        at = [number for number, other in enumerate(of_files) if other is key]
        group = [metadata[number] for number in at]
        if key is None:
            of_group = [Secret(keys.encode()) for keys in group]
        else:
            of_group = [Secret(data) for data in encrypt_for_manifest(group, key)]
        for number, data in zip(at, of_group, strict=True):
            encrypted[number] = data
    return encrypted

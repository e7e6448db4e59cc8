"""Appending to a table: new data files, and a snapshot that has them besides those there are.

    data files -> a manifest -> a manifest list -> metadata.json

in this order, so that until the last step nobody sees anything of it. Data files are written once;
manifest and list again for each attempt, as sequence numbers, row ids and keys are those of the
version that the commit follows (Java's FastAppend). What a failed attempt wrote is removed, unless
it can't be told whether it failed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from modcrypt.errors import CommitConflictError, PlaintextError, UnsupportedFormatError
from modcrypt.iceberg.format.manifests import ADDED, DATA, ManifestFile
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.keys.key_policies import writing_keys, writing_policy
from modcrypt.iceberg.keys.key_resolver import seal_for_manifest
from modcrypt.iceberg.keys.wrapping_keys import OpenKey
from modcrypt.iceberg.rotate.deletion_rule import remove_written
from modcrypt.iceberg.write.commit import commit, surely_failed
from modcrypt.iceberg.write.data_writing import Data, DataWriter, NewFile
from modcrypt.iceberg.write.manifest_writing import partition_spec, write_manifest
from modcrypt.iceberg.write.snapshot_writing import add_snapshot, new_snapshot_id, with_totals
from modcrypt.key_metadata import StandardKeyMetadata

if TYPE_CHECKING:
    from modcrypt.iceberg.tables.table import IcebergTable
    from modcrypt.io.storage import Place

__all__ = ["append", "sealed_keys"]


def append(table: IcebergTable, data: Data) -> IcebergTable:
    """Append rows to a table, as a new snapshot on its main branch.

    Args:
        table: any version of it: rows are added to the current one.
        data: an Arrow table, or a reader of record batches, of which one file's worth is held in
            memory. Its columns are found by their names.

    Returns:
        The table with the rows. Without any, the current version of the table.

    Raises:
        TypeError, ValueError: the data is no such thing, or its columns are not those of the
            table: before anything is written.
        PlaintextError, UnsupportedFormatError: the table is not encrypted, or can't be.
        IntegrityError: the table is under another master key or policy than `table`, or is an
            older state.
        CommitConflictError: others were faster each time, or changed the partitioning.
        KeyRetrievalError: the key service refuses.
        ModcryptError, OSError: the table can't be read or written; it is as it was.
    """
    current = table.refreshed()
    _check_encrypted(current.metadata)
    current.metadata.check_members()
    writing_policy(current.metadata, table.metadata)
    writer = DataWriter(current)
    writer.check(data)
    addition: _Addition | None = None
    try:
        files = writer.write(data)
        if not files:
            return current
        addition = _Addition(files, writer.spec_id, current.metadata, table.metadata)
        return commit(current, addition.next_version)
    except BaseException as error:
        if addition is None or addition.has_failed(error, current):
            writer.abandon()
        raise


def _check_encrypted(metadata: TableMetadata) -> None:
    if not metadata.master_key_id:
        raise PlaintextError(
            f"{metadata.name}: the table is not encrypted: encrypt_table makes one of it that is"
        )
    if metadata.format_version < 3:
        raise UnsupportedFormatError(
            f"{metadata.name}: format version {metadata.format_version} has no encryption"
        )


@dataclass
class _Addition:
    """The snapshot that adds files, made anew for each attempt to commit it."""

    files: Sequence[NewFile]
    spec_id: int
    base: TableMetadata
    seen: TableMetadata
    snapshot_id: int | None = None
    written: list[str] = field(default_factory=list)
    offered: Place | None = None

    def next_version(self, table: IcebergTable) -> TableMetadata:
        """Write manifest and list, and give the metadata that names them."""
        self.offered = None
        self._remove_written(table)
        metadata = table.metadata
        if partition_spec(metadata, self.spec_id) != partition_spec(self.base, self.spec_id):
            raise CommitConflictError(f"{metadata.name}: somebody else changed the partitioning")
        parent = metadata.current
        before = [] if parent is None else table.walk.manifests(parent)
        table.walk.check_specs(one for one in before if one.spec_id == self.spec_id)
        paths = [one.partition_path for one in self.files]
        keys = writing_keys(table, writing_policy(metadata, self.seen), paths)
        sealed = sealed_keys([one.keys for one in self.files], keys.of_files)
        self.snapshot_id = new_snapshot_id(metadata)
        rows = (
            {
                "status": ADDED,
                "snapshot_id": self.snapshot_id,
                "data_file": {**one.file, "key_metadata": key_metadata},
            }
            for one, key_metadata in zip(self.files, sealed, strict=True)
        )
        manifest = write_manifest(
            table, self.spec_id, rows, content=DATA, snapshot_id=self.snapshot_id
        )
        self.written.append(manifest["manifest_path"])
        new = add_snapshot(
            table,
            self.snapshot_id,
            [manifest, *(one.row for one in before)],
            keys.of_list,
            operation="append",
            summary=with_totals(self._summary(before), parent),
            new_keys=keys.entries,
        )
        self.written.append(new.snapshot(self.snapshot_id).manifest_list)
        self.offered = table.place
        return new

    def _summary(self, before: Sequence[ManifestFile]) -> dict[str, str]:
        records = sum(one.file["record_count"] for one in self.files)
        return {
            "added-data-files": str(len(self.files)),
            "added-records": str(records),
            "added-files-size": str(sum(one.file["file_size_in_bytes"] for one in self.files)),
            "changed-partition-count": str(len({one.partition_path for one in self.files})),
            "manifests-created": "1",
            "manifests-kept": str(len(before)),
            "manifests-replaced": "0",
        }

    def has_failed(self, error: BaseException, table: IcebergTable) -> bool:
        """Remove the last attempt's manifests, and tell so, if the table surely does not have it.

        Args:
            error: that ended it.
            table: any version of it.
        """
        with contextlib.suppress(Exception):  # then it can't be told
            if surely_failed(error, table, self.offered):
                self._remove_written(table)
                return True
        return False

    def _remove_written(self, table: IcebergTable) -> None:
        remove_written(table.walk.locations, self.written)
        self.written.clear()


def sealed_keys(
    metadata: Sequence[StandardKeyMetadata], of_files: Sequence[OpenKey | None]
) -> list[bytes]:
    """Give the key metadata of new files as their manifest is to have it.

    Args:
        metadata: of each file.
        of_files: for each what seals it; None leaves it in the clear within the sealed manifest.

    Raises:
        KeyRetrievalError, KeyExhaustedError: as `seal_for_manifest`.
    """
    found: list[Any] = [None] * len(metadata)
    for opened in {id(one): one for one in of_files}.values():
        at = [number for number, one in enumerate(of_files) if one is opened]
        group = [metadata[number] for number in at]
        sealed = (
            [one.encode() for one in group] if opened is None else seal_for_manifest(group, opened)
        )
        for number, data in zip(at, sealed, strict=True):
            found[number] = data
    return found

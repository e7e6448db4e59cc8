"""Rewrite the files of a table's current snapshot under new data keys (DEKs), as a new snapshot.

    data, equality deletes      decrypted and encrypted again page by page, or block by block
    position deletes, vectors   the same, with the new locations of data files
    manifests                   one new manifest for each old one: it adds the new files and
                                deletes the old ones, with their sequence numbers and row ids, but
                                without the old keys

Rows and deleted rows do not change (operation `replace`). Older snapshots keep their files under
the old keys until `expire_history` drops them. The table's current policy decides which keys
protect the new keys.

Key metadata is passed to and from the processes that rewrite files. It is encrypted under a KEK
that is used only for this job, so every process that can use the table's master key can take part.
"""

from __future__ import annotations

import contextlib
import posixpath
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

from modcrypt.errors import PlaintextError
from modcrypt.iceberg.format.manifests import (
    ADDED,
    DATA,
    DELETED,
    EQUALITY_DELETES,
    POSITION_DELETES,
    FileEntry,
    ManifestFile,
)
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.keys.key_policies import KeyPolicy, writing_keys, writing_policy
from modcrypt.iceberg.keys.wrapping_keys import OpenKey
from modcrypt.iceberg.read.data_files import open_parquet_file
from modcrypt.iceberg.rotate.file_rekeying import (
    FreshDataKeys,
    Run,
    rewrite_files,
)
from modcrypt.iceberg.rotate.rotation_report import (
    CountingClient,
    TableRotation,
    target_of,
)
from modcrypt.iceberg.rotate.wrapped_in_manifests import sealing_keys
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.iceberg.tables.table_copying import Contents
from modcrypt.iceberg.write.append import encrypt_key_metadata
from modcrypt.iceberg.write.manifest_writing import (
    PartitionPaths,
    entry_row,
    first_row_ids,
    partition_values,
    write_manifest,
)
from modcrypt.iceberg.write.moved_deletes import MovedFile, write_moved
from modcrypt.iceberg.write.new_files import NewFiles
from modcrypt.iceberg.write.snapshot_writing import MAIN, add_snapshot, add_totals, new_snapshot_id
from modcrypt.keys import Secret


class _Files(Contents):
    """The files of a version's current snapshot."""

    @classmethod
    def encrypted(cls, table: IcebergTable) -> _Files:
        """Read the files of a current snapshot; raise PlaintextError for one in plaintext."""
        files = cls.of(table)
        for entry in files.live_entries:
            if entry.key_metadata is None:
                raise PlaintextError(
                    f"{entry.location}: the file is in plaintext and has no key to rotate"
                )
        return files

    @property
    def by_manifest(self) -> list[tuple[ManifestFile, Sequence[FileEntry]]]:
        """The entries of each manifest, in order."""
        manifests = (self.manifests[snapshot.id] for snapshot in self.snapshots)
        return [(each, self.entries[each.location]) for each in chain.from_iterable(manifests)]

    @property
    def with_live(self) -> list[tuple[ManifestFile, Sequence[FileEntry]]]:
        """The manifests with live entries, which are rewritten, with all of their entries."""
        return [pair for pair in self.by_manifest if any(entry.is_live for entry in pair[1])]

    @property
    def live_entries(self) -> list[FileEntry]:
        """The live entries, in order; of a Puffin file one for each vector."""
        return [entry for _, entries in self.by_manifest for entry in entries if entry.is_live]

    def partition_paths(self, metadata: TableMetadata) -> list[str]:
        """Return the partition of each live entry, in order, as the paths of files contain it."""
        live = self.live_entries
        paths = {id_: PartitionPaths(metadata, id_) for id_ in {entry.spec_id for entry in live}}
        return [paths[entry.spec_id].path(partition_values(metadata, entry)) for entry in live]

    def kms_calls(self, table: IcebergTable) -> int:
        """Return the number of KMS calls to rewrite the files, without new KEKs of the policy."""
        by = sealing_keys(self.live.values())
        opened = sum(single for _, single in by) + len({id_ for id_, single in by if not single})
        policy = KeyPolicy.of(table.metadata)
        wraps = 1
        if policy.wrapping != "double":
            wraps += 1 + (len(self.live_entries) if policy.kek_per == "files" else 0)
        return wraps + opened + table.resolver.masters.proof.expected_calls(wraps)

    def report(self, table: IcebergTable, *, replaced: bool) -> TableRotation:
        """Return what is rotated, and what stays under the old keys.

        If the current snapshot will be `replaced`, it counts as an older one.
        """
        data, current = sum(entry.content == DATA for entry in self.live.values()), table.snapshot()
        older = [old.id for old in table.metadata.snapshots if replaced or old is not current]
        refs = table.metadata.refs.items()
        old_refs = [name for name, ref in refs if name != MAIN and ref.get("snapshot-id") in older]
        return TableRotation(
            what="dek", table=table, data_files=data, delete_files=len(self.live) - data,
            manifests=len(self.with_live),
            manifest_lists=int(bool(self.live)), older_snapshots=tuple(older),
            older_refs=tuple(old_refs),
        )  # fmt: skip


@dataclass
class DekRotation:
    """The making of the next version; a retry reuses the files that are already rewritten."""

    seen: TableMetadata = field(repr=False)
    new_files: NewFiles
    run: Run
    # Files of the version on which the latest attempt is based.
    files: _Files = field(init=False, repr=False)
    job: OpenKey | None = field(default=None, init=False, repr=False)
    # Rewritten files, by the paths of the old files.
    moved: dict[str, MovedFile] = field(default_factory=dict, repr=False)
    snapshot_id: int | None = None
    # See `MekRotation`.
    has_work: bool = True
    in_table: bool = True

    def plan(self, table: IcebergTable, target: str, client: CountingClient) -> TableRotation:
        """Return what would be done; a table without files has nothing to rotate."""
        del target  # it is the table's own
        writing_policy(table.metadata, self.seen)
        self.files = _Files.encrypted(table)
        self.has_work = bool(self.files.live)
        calls = client.calls + (self.files.kms_calls(table) if self.has_work else 0)
        return replace(self.files.report(table, replaced=self.has_work), kms_calls=calls)

    def finish(self, table: IcebergTable) -> TableRotation:
        """Return what was done."""
        return self.files.report(table, replaced=False)

    def next_version(self, table: IcebergTable) -> TableMetadata:
        """Write missing files and return the metadata of the next version."""
        if table.place != self.files.place:
            self.files = _Files.encrypted(table)
        self._rekey_files(table)
        self._move_deletes(table)
        metadata, self.snapshot_id = table.metadata, new_snapshot_id(table.metadata)
        policy = writing_policy(metadata, self.seen)
        keys = writing_keys(table, policy, self.files.partition_paths(metadata))
        of_files = iter(keys.of_files)
        rows = [
            self._write_manifest(table, manifest, entries, of_files)
            for manifest, entries in self.files.with_live
        ]
        self.new_files.used = [self.moved[path].location for path in self.files.live]
        return add_snapshot(
            table,
            self.snapshot_id,
            rows,
            keys.of_list,
            self.new_files,
            operation="replace",
            summary=add_totals(self._summary(), metadata.current),
            new_keys=keys.entries,
        )

    # --- files ----------------------------------------------------------------------------------

    def _rekey_files(self, table: IcebergTable) -> None:
        """Rewrite data files and equality delete files."""
        resolver, length = table.resolver, table.metadata.key_length
        if self.job is None:
            self.job = resolver.cache_key(resolver.masters.new_kek(target_of(table, None), length))
        left = {
            path: entry
            for path, entry in self.files.live.items()
            if entry.content != POSITION_DELETES and path not in self.moved
        }
        for entry in self.files.live.values():
            self.new_files.note_folder(posixpath.dirname(entry.location))
        files = [
            (entry.location, entry.file_format, entry.size, keys)
            for entry in left.values()
            if (keys := table.walk.file_keys(entry)) is not None
        ]
        rewrite = FreshDataKeys(name=self.new_files.name, key_length=length)
        done = rewrite_files(self.run, table, self.job, rewrite, files)
        for path, (location, keys) in zip(left, done, strict=True):
            self.moved[path] = MovedFile(location, keys)

    def _move_deletes(self, table: IcebergTable) -> None:
        """Rewrite position delete files with the new locations of data files."""
        for path, entry in self.files.live.items():
            if entry.content == POSITION_DELETES and path not in self.moved:
                self.moved[path] = self._move_delete_file(table, entry)

    def _move_delete_file(self, table: IcebergTable, entry: FileEntry) -> MovedFile:
        walk, length = table.walk, table.metadata.key_length
        folder, _, base = entry.location.rpartition("/")
        location = f"{folder}/{uuid.uuid4()}{posixpath.splitext(base)[1]}"
        if entry.file_format == "PARQUET":
            with open_parquet_file(walk, entry) as file:
                data = file.read()
        else:
            data = walk.read(entry.location, walk.file_keys(entry), entry.size)
        rename = self._make_rename(table)
        keys, changes = write_moved(self.new_files, location, entry, data, rename, length)
        return MovedFile(location, keys, changes)

    def _make_rename(self, table: IcebergTable) -> Callable[[str], str]:
        def rename(location: str) -> str:
            with contextlib.suppress(ValueError):  # it is outside of the table
                moved = self.moved.get(table.walk.locations.key(location))
                return location if moved is None else moved.location
            return location

        return rename

    # --- manifests ------------------------------------------------------------------------------

    def _write_manifest(
        self,
        table: IcebergTable,
        manifest: ManifestFile,
        entries: Sequence[FileEntry],
        of_files: Iterator[OpenKey | None],
    ) -> dict[str, Any]:
        numbered = [
            (entry, first)
            for entry, first in zip(entries, first_row_ids(manifest, entries), strict=True)
            if entry.is_live
        ]
        keys = [self._find_rewritten(table, entry).keys for entry, _ in numbered]
        sealed = encrypt_key_metadata(keys, list(islice(of_files, len(keys))))
        rows = []
        for (entry, first), key_metadata in zip(numbered, sealed, strict=True):
            rows += self._rows(table, entry, first, key_metadata)
        assert self.snapshot_id is not None
        row = write_manifest(
            table, manifest.spec_id, rows, self.new_files, content=manifest.content,
            snapshot_id=self.snapshot_id,
        )  # fmt: skip
        # Its files have explicit row ids, except where the old manifest assigned none.
        return {**row, "first_row_id": manifest.row.get("first_row_id")}

    def _rows(
        self,
        table: IcebergTable,
        entry: FileEntry,
        first: int | None,
        key_metadata: Secret[bytes],
    ) -> list[dict[str, Any]]:
        """Return the rows of the new file and of the old file."""
        moved = self._find_rewritten(table, entry)
        members: dict[str, Any] = {
            "snapshot_id": self.snapshot_id,
            "first_row_id": first,
            "partition": partition_values(table.metadata, entry),
        }
        changes = {**moved.members, "key_metadata": key_metadata}
        if (target := entry.file.get("referenced_data_file")) is not None:
            changes["referenced_data_file"] = self._make_rename(table)(target)
        new = entry_row(entry, status=ADDED, **members, **changes)
        new["file_sequence_number"] = None  # inherited from the commit
        # Without the old key: only the older snapshots keep it.
        return [new, entry_row(entry, status=DELETED, **members, key_metadata=None)]

    def _find_rewritten(self, table: IcebergTable, entry: FileEntry) -> MovedFile:
        return self.moved[table.walk.locations.key(entry.location)]

    def _summary(self) -> dict[str, str]:
        """Count what is replaced, as Java does: added equals removed, except for bytes."""
        counts = Counter[str]()
        partitions = set()
        for _, entries in self.files.by_manifest:
            for entry in (entry for entry in entries if entry.is_live):
                partitions.add((entry.spec_id, repr(sorted(entry.partition_by_id.items()))))
                counts[_RECORDS[entry.content]] += entry.record_count
                if entry.file_format == "PUFFIN":  # counted once for each of its vectors
                    counts["delete-files"] += 1
                    for name in ("removed-files-size", "added-files-size"):
                        counts[name] += entry.file["content_size_in_bytes"]
        for path, entry in self.files.live.items():
            if entry.file_format != "PUFFIN":
                counts["data-files" if entry.content == DATA else "delete-files"] += 1
                counts["removed-files-size"] += entry.size
                counts["added-files-size"] += self.moved[path].keys.file_length or 0
        summary = {
            name: str(counts.pop(name)) for name in ("added-files-size", "removed-files-size")
        }
        for name, count in sorted(counts.items()):
            removed = "deleted" if name in ("data-files", "records") else "removed"
            summary |= {f"added-{name}": str(count), f"{removed}-{name}": str(count)}
        return {
            **summary,
            "changed-partition-count": str(len(partitions)),
            "manifests-created": str(len(self.files.with_live)),
            "manifests-kept": "0",
            "manifests-replaced": str(len(self.files.by_manifest)),
        }


_RECORDS = {
    DATA: "records", POSITION_DELETES: "position-deletes", EQUALITY_DELETES: "equality-deletes",
}  # fmt: skip

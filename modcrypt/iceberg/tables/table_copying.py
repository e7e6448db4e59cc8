"""Copy the contents of a plaintext table into an encrypted one.

Sequence numbers, snapshot ids, statuses, partitions and row ids are kept. A data manifest without
row ids gets them at its first occurrence in the order of the snapshots, as after an upgrade to
format version 3 (spec, "Row Lineage for Upgraded Tables").
"""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Self

from pyiceberg.schema import make_compatible_name

from modcrypt.errors import FormatError, UnsupportedFormatError
from modcrypt.iceberg.format.manifest_rows.file_entries import (
    DATA,
    DELETED,
    POSITION_DELETES,
    FileEntry,
)
from modcrypt.iceberg.format.manifests import ManifestFile
from modcrypt.iceberg.format.table_metadata import EncryptedKey, Snapshot, TableMetadata
from modcrypt.iceberg.keys.key_policies import KeyPolicy, writing_keys
from modcrypt.iceberg.keys.wrapping_keys import OpenKey
from modcrypt.iceberg.read.table_walk import Walk
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.iceberg.write.append import encrypt_key_metadata
from modcrypt.iceberg.write.manifest_writing import (
    PartitionPaths,
    SnapshotFields,
    entry_row,
    first_row_ids,
    partition_spec,
    write_manifest,
    write_manifest_list,
)
from modcrypt.iceberg.write.moved_deletes import MovedFile, encrypt_file
from modcrypt.iceberg.write.new_files import NewFiles
from modcrypt.iceberg.write.snapshot_writing import MAIN
from modcrypt.io.places import Place
from modcrypt.keys import Secret
from modcrypt.runtime.fork_safety import cached_property

_THREADS = 4  # number of files copied concurrently: with an object store, threads mostly wait


@dataclass(frozen=True)
class Contents:
    """The contents of a table that are rewritten as other files."""

    place: Place
    walk: Walk
    snapshots: Sequence[Snapshot]  # snapshots to rewrite, the oldest first
    manifests: Mapping[int, Sequence[ManifestFile]]  # manifests of each snapshot, by its id
    entries: Mapping[str, Sequence[FileEntry]]  # entries of each manifest, by its location
    history: bool  # whether `snapshots` are all snapshots of the table

    @classmethod
    def of(
        cls, table: IcebergTable, *, history: bool = False,
        snapshots: Sequence[Snapshot] | None = None,
        read: Callable[[Walk, ManifestFile], Sequence[FileEntry]] = Walk.entries,
    ) -> Self:  # fmt: skip
        """Read all manifests of a table's current snapshot, or with `history` of all snapshots.

        `snapshots` selects others than the current one; `read` reads each manifest.

        Raise UnsupportedFormatError if Iceberg does not encrypt the format of a file.
        """
        walk, current = table.walk, table.metadata.current
        if history:
            order = sorted(
                table.metadata.snapshots,
                key=lambda snapshot: (snapshot.sequence_number, snapshot.timestamp_ms),
            )
        elif snapshots is not None:
            order = list(snapshots)
        else:
            order = [] if current is None else [current]
        manifests = {snapshot.id: walk.manifests(snapshot) for snapshot in order}
        by_location = {
            manifest.location: manifest
            for of_snapshot in manifests.values()
            for manifest in of_snapshot
        }
        entries = {location: read(walk, manifest) for location, manifest in by_location.items()}
        contents = cls(table.place, walk, order, manifests, entries, history)
        for entry in contents.live.values():
            vector = entry.content == POSITION_DELETES and entry.file_format == "PUFFIN"
            if entry.file_format not in ("PARQUET", "AVRO") and not vector:
                raise unsupported_error(entry.location, entry.file_format)
        return contents

    @cached_property
    def first_row_ids(self) -> dict[str, int]:
        """First row ids of manifests; lists written before an upgrade to version 3 have none."""
        return {
            manifest.location: manifest.row["first_row_id"]
            for of_snapshot in self.manifests.values()
            for manifest in of_snapshot
            if manifest.row.get("first_row_id") is not None
        }

    @cached_property
    def live(self) -> dict[str, FileEntry]:
        """The live files of all snapshots by normalised location; of vectors, one for each file.

        Erased files, whose keys are gone, are not among them.
        """
        return {
            self.walk.locations.key(entry.location): entry
            for entries in self.entries.values()
            for entry in entries
            if entry.is_live and not self.walk.is_left_out(entry)
        }


def unsupported_error(location: str, file_format: str) -> UnsupportedFormatError:
    """Return the error for a file in a format that Iceberg does not encrypt."""
    return UnsupportedFormatError(f"{location}: Iceberg does not encrypt files in {file_format}")


@dataclass(repr=False)
class Copy:
    """A copy of contents into a table that does not exist yet."""

    contents: Contents
    target: IcebergTable  # the new table, without any files
    files: NewFiles
    # New locations of files, by the normalised old locations.
    names: Mapping[str, str] = field(default_factory=dict)
    # Copied files, by the normalised old locations.
    copied: dict[str, MovedFile] = field(default_factory=dict)
    # Key metadata of each copied file, as manifests store it.
    key_metadata: dict[str, Secret[bytes]] = field(default_factory=dict)
    # First row ids of data files that had none, by their new locations.
    row_ids: dict[str, int] = field(default_factory=dict)
    next_row_id: int = 0
    # Rows of the manifests written, by the locations of the old manifests.
    manifests: dict[str, dict[str, Any] | None] = field(default_factory=dict)

    def write(self) -> TableMetadata:
        """Write all files and return the metadata that names them."""
        live = self.contents.live
        self.names = {key: self._new_location(entry) for key, entry in live.items()}
        self._copy_files(live)
        metadata = self.target.metadata
        if not self.contents.snapshots:
            return metadata
        spec_ids = {entry.spec_id for entry in live.values()}
        paths = {spec_id: PartitionPaths(metadata, spec_id) for spec_id in spec_ids}
        partitions = [paths[entry.spec_id].path(entry.partition) for entry in live.values()]
        keys = writing_keys(self.target, KeyPolicy.of(metadata), partitions)
        key_metadata = encrypt_key_metadata(
            [file.keys for file in self.copied.values()], keys.of_files
        )
        self.key_metadata = dict(zip(self.copied, key_metadata, strict=True))
        self.next_row_id = int(metadata.document["next-row-id"])
        snapshots, entries = [], list(keys.entries)
        for snapshot in self.contents.snapshots:
            document, of_list = self._write_snapshot(snapshot, keys.of_list)
            snapshots.append(document)
            entries.append(of_list)
        return metadata.with_keys(
            entries, snapshots=snapshots, next_row_id=self.next_row_id, **self._snapshot_members()
        )

    def _copy_files(self, live: Mapping[str, FileEntry]) -> None:
        pool = ThreadPoolExecutor(_THREADS)
        try:
            copied = pool.map(self._copy_file, live.values(), (self.names[key] for key in live))
            self.copied.update(zip(live, copied, strict=True))
        finally:
            pool.shutdown(cancel_futures=True)  # waits for files that are being written

    def _new_location(self, entry: FileEntry) -> str:
        """Return a new location for a file: in the same folder below `data/`, with a fresh name."""
        # Fresh names avoid conflicts with files that an interrupted copy left behind.
        old, location = f"{self.contents.walk.metadata.location}/data/", entry.location
        folder = posixpath.dirname(location.removeprefix(old)) if location.startswith(old) else ""
        name = f"{uuid.uuid4()}{posixpath.splitext(location)[1]}"
        return posixpath.join(self.target.metadata.location, "data", folder, name)

    def _rename(self, location: str) -> str:
        """Return the new location of a data file that a delete file names.

        Deletes may outlast their data file, as after a compaction: then nothing is there.
        """
        try:
            key = self.contents.walk.locations.key(location)
        except FormatError:  # it is outside of the table
            return location
        gone = posixpath.join(self.target.metadata.location, "data", posixpath.basename(location))
        return self.names.get(key, gone)

    def _copy_file(self, entry: FileEntry, name: str) -> MovedFile:
        length = self.target.metadata.key_length
        return encrypt_file(self.files, self.contents.walk, entry, name, self._rename, length)

    def _write_snapshot(
        self, snapshot: Snapshot, opened: OpenKey
    ) -> tuple[dict[str, Any], EncryptedKey]:
        """Write a snapshot's manifest list; return the snapshot's JSON and the list's key entry."""
        first = self.next_row_id
        rows = [self._copy_manifest(manifest) for manifest in self.contents.manifests[snapshot.id]]
        document = {
            "first-row-id": first,
            "added-rows": self.next_row_id - first,
            **{k: v for k, v in snapshot.document.items() if k != "manifests"},
        }
        fields = SnapshotFields(
            snapshot.id, snapshot.parent, snapshot.sequence_number, document["first-row-id"]
        )
        new_rows = [row for row in rows if row is not None]
        location, entry, _ = write_manifest_list(self.target, fields, new_rows, opened, self.files)
        return {**document, "manifest-list": location, "key-id": entry.id}, entry

    def _copy_manifest(self, old: ManifestFile) -> dict[str, Any] | None:
        """Write a manifest unless an older snapshot has it; return its row, None without files."""
        if old.location not in self.manifests:
            rows = self._rows(old)
            self.manifests[old.location] = self._write_manifest(old, rows) if rows else None
        return self.manifests[old.location]

    def _write_manifest(
        self, old: ManifestFile, rows: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        new = write_manifest(
            self.target, old.spec_id, rows, self.files, content=old.content,
            snapshot_id=old.added_snapshot_id, sequence_number=old.sequence_number,
        )  # fmt: skip
        if old.content == DATA:
            new["first_row_id"] = self.contents.first_row_ids.get(old.location)
            if new["first_row_id"] is None:
                new["first_row_id"] = self.next_row_id
                self._record_row_ids(rows)
                self.next_row_id += new["existing_rows_count"] + new["added_rows_count"]
        return new

    def _rows(self, old: ManifestFile) -> list[dict[str, Any]]:
        """Return the rows of a manifest's entries whose files were copied."""
        spec = partition_spec(self.target.metadata, old.spec_id)
        names = [make_compatible_name(field.name) for field in spec.fields]
        entries = self.contents.entries[old.location]
        numbered = replace(
            old, row={**old.row, "first_row_id": self.contents.first_row_ids.get(old.location)}
        )
        rows = []
        for entry, first in zip(entries, first_row_ids(numbered, entries), strict=True):
            key = self.contents.walk.locations.key(entry.location)
            copied = self.copied.get(key)
            if copied is None or not (entry.is_live or self.contents.history):
                continue
            target = entry.file.get("referenced_data_file")
            rows.append(
                entry_row(
                    entry,
                    status=entry.status,
                    first_row_id=self.row_ids.get(copied.location) if first is None else first,
                    partition=dict(zip(names, entry.partition.values(), strict=True)),
                    key_metadata=self.key_metadata[key],
                    referenced_data_file=None if target is None else self._rename(target),
                    **copied.members,
                )
            )
        return rows

    def _record_row_ids(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Record the row ids that readers will derive, for later manifests with the same files."""
        following = self.next_row_id
        for row in rows:
            file = row["data_file"]
            if file["first_row_id"] is None and row["status"] != DELETED:
                self.row_ids[file["file_path"]] = following
                following += file["record_count"]

    def _snapshot_members(self) -> dict[str, Any]:
        """Return the members of metadata.json that name snapshots."""
        source = self.contents.walk.metadata
        ids = {snapshot.id for snapshot in self.contents.snapshots}
        refs = {name: ref for name, ref in source.refs.items() if ref["snapshot-id"] in ids}
        log = [
            entry
            for entry in source.document.get("snapshot-log") or ()
            if entry["snapshot-id"] in ids
        ]
        if source.current is None:
            return {"refs": refs, "snapshot_log": log}
        main = {**refs.get(MAIN, {}), "snapshot-id": source.current.id, "type": "branch"}
        return {
            "refs": {**refs, MAIN: main},
            "snapshot_log": log,
            "current_snapshot_id": source.current.id,
        }

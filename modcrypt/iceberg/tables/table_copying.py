"""The contents of a table in plaintext, and how they get into an encrypted one.

Sequence numbers, snapshot ids, statuses and partitions stay. Row ids stay, too; a data manifest
that has none gets them where it is met first, in the order of the snapshots, as after an upgrade
to format version 3 (spec, "Row Lineage for Upgraded Tables").
"""

from __future__ import annotations

import contextlib
import posixpath
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from pyiceberg.schema import make_compatible_name

from modcrypt.errors import FormatError, UnsupportedFormatError
from modcrypt.fork_safety import cached_property
from modcrypt.iceberg.format.ags1_files import write_sealed
from modcrypt.iceberg.format.manifests import (
    DATA,
    DELETED,
    POSITION_DELETES,
    FileEntry,
    ManifestFile,
)
from modcrypt.iceberg.format.parquet_files import write_parquet
from modcrypt.iceberg.format.table_metadata import EncryptedKey, Snapshot, TableMetadata
from modcrypt.iceberg.keys.key_policies import KeyPolicy, writing_keys
from modcrypt.iceberg.keys.wrapping_keys import OpenKey
from modcrypt.iceberg.read.table_walk import Walk
from modcrypt.iceberg.rotate.deletion_rule import remove_written
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.iceberg.write.append import sealed_keys
from modcrypt.iceberg.write.manifest_writing import (
    PartitionPaths,
    SnapshotFields,
    entry_row,
    first_row_ids,
    partition_spec,
    write_manifest,
    write_manifest_list,
)
from modcrypt.iceberg.write.moved_deletes import moved_bounds, moved_deletes
from modcrypt.iceberg.write.snapshot_writing import MAIN
from modcrypt.io.storage import MemorySource, Source
from modcrypt.key_metadata import StandardKeyMetadata

__all__ = ["Contents", "Copy"]

_FORMATS = ("PARQUET", "AVRO", "PUFFIN")
_THREADS = 4
"""Files that are copied at once: in a store, most of it is waiting."""


@dataclass(frozen=True)
class Contents:
    """What is taken of a table.

    Attributes:
        walk: through it.
        snapshots: the oldest first.
        manifests: of each, by its id.
        entries: of each manifest, by its location.
        history: whether these are all snapshots.
    """

    walk: Walk
    snapshots: Sequence[Snapshot]
    manifests: Mapping[int, Sequence[ManifestFile]]
    entries: Mapping[str, Sequence[FileEntry]]
    history: bool

    @classmethod
    def of(cls, table: IcebergTable, history: bool) -> Contents:
        """Read all manifests of a table's current snapshot, or with `history` of all.

        Raises:
            UnsupportedFormatError: it has files that are not encrypted.
            ModcryptError, OSError: as `Walk.manifests`.
        """
        walk, current = table.walk, table.metadata.current
        if history:
            order = sorted(
                table.metadata.snapshots, key=lambda one: (one.sequence_number, one.timestamp_ms)
            )
        else:
            order = [] if current is None else [current]
        manifests = {one.id: walk.manifests(one) for one in order}
        found = {one.location: one for several in manifests.values() for one in several}
        entries = {name: walk.entries(one) for name, one in found.items()}
        contents = cls(walk, order, manifests, entries, history)
        for entry in contents.live().values():
            if entry.file_format not in _FORMATS:
                raise UnsupportedFormatError(
                    f"{entry.location}: Iceberg does not encrypt files in {entry.file_format}"
                )
        return contents

    @cached_property
    def first_row_ids(self) -> dict[str, int]:
        """The first row ids of manifests; lists of before an upgrade to version 3 have none."""
        return {
            one.location: one.row["first_row_id"]
            for several in self.manifests.values()
            for one in several
            if one.row.get("first_row_id") is not None
        }

    def live(self) -> dict[str, FileEntry]:
        """Give the files of all snapshots, each once, by what its spellings have in common."""
        return {
            self.walk.locations.key(entry.location): entry
            for entries in self.entries.values()
            for entry in entries
            if entry.is_live
        }


@dataclass(frozen=True, slots=True)
class _Copied:
    """A file of the source as the new table has it."""

    keys: StandardKeyMetadata = field(repr=False)
    changes: Mapping[str, Any]

    @property
    def location(self) -> str:
        return str(self.changes["file_path"])


@dataclass(repr=False)
class Copy:
    """Copies contents into a table that is not there yet.

    Attributes:
        contents: what is copied.
        target: the table; nothing of it is there.
        made: locations of what was written.
        names: new locations of files, by what the spellings of the old ones have in common.
        copied: the files, by the same.
        key_metadata: of each, as manifests are to have it.
        row_ids: of the first row of each data file that had none, by its new location.
        next_row_id: of the table.
        manifests: rows of those that were written, by the locations of the old ones.
    """

    contents: Contents
    target: IcebergTable
    made: list[str] = field(default_factory=list)
    names: Mapping[str, str] = field(default_factory=dict)
    copied: dict[str, _Copied] = field(default_factory=dict)
    key_metadata: dict[str, bytes] = field(default_factory=dict)
    row_ids: dict[str, int] = field(default_factory=dict)
    next_row_id: int = 0
    manifests: dict[str, dict[str, Any] | None] = field(default_factory=dict)

    def remove(self) -> None:
        """Remove all that was written."""
        remove_written(self.target.walk.locations, self.made)

    def filled(self) -> TableMetadata:
        """Write everything, and give the metadata that names it."""
        live = self.contents.live()
        self.names = {key: self._name(entry) for key, entry in live.items()}
        self._copy_all(live)
        metadata = self.target.metadata
        if not self.contents.snapshots:
            return metadata
        paths = {spec_id: PartitionPaths(metadata, spec_id) for spec_id in _specs(live.values())}
        partitions = [paths[entry.spec_id].path(entry.partition) for entry in live.values()]
        keys = writing_keys(self.target, KeyPolicy.of(metadata), partitions)
        sealed = sealed_keys([one.keys for one in self.copied.values()], keys.of_files)
        self.key_metadata = dict(zip(self.copied, sealed, strict=True))
        self.next_row_id = int(metadata.document["next-row-id"])
        snapshots, entries = [], list(keys.entries)
        for snapshot in self.contents.snapshots:
            document, of_list = self._snapshot(snapshot, keys.of_list)
            snapshots.append(document)
            entries.append(of_list)
        return metadata.with_keys(
            entries, snapshots=snapshots, next_row_id=self.next_row_id, **self._heads()
        )

    # --- files ----------------------------------------------------------------------------------

    def _copy_all(self, live: Mapping[str, FileEntry]) -> None:
        pool = ThreadPoolExecutor(_THREADS)
        try:
            copied = pool.map(self._copy, live.values(), (self.names[key] for key in live))
            self.copied.update(zip(live, copied, strict=True))
        finally:
            pool.shutdown(cancel_futures=True)  # and wait for those that are being written

    def _name(self, entry: FileEntry) -> str:
        """Give the location that a file is to have: below `data/` in the folder that it was in.

        Under a fresh name: what a copy left that was killed is in the way of no other.
        """
        old, location = f"{self.contents.walk.metadata.location}/data/", entry.location
        folder = posixpath.dirname(location.removeprefix(old)) if location.startswith(old) else ""
        name = f"{uuid.uuid4()}{posixpath.splitext(location)[1]}"
        return posixpath.join(self.target.metadata.location, "data", folder, name)

    def _renamed(self, location: str) -> str:
        """Give the new location of a data file that a delete file names."""
        with contextlib.suppress(FormatError):  # outside of the table: none of its files
            return self.names.get(self.contents.walk.locations.key(location), location)
        return location

    def _copy(self, entry: FileEntry, name: str) -> _Copied:
        walk, changes = self.contents.walk, dict[str, Any]()
        if entry.content == POSITION_DELETES:
            data = walk.read(entry.location, None, entry.size)
            moved = moved_deletes(data, entry.file_format, self._renamed, entry.location)
            changes |= moved_bounds(entry, moved.bounds)
            return self._written(entry, name, MemorySource(moved.data, entry.location), changes)
        with walk.opened(entry.location, entry.size) as source:
            return self._written(entry, name, source, changes)

    def _written(
        self, entry: FileEntry, name: str, source: Source, changes: dict[str, Any]
    ) -> _Copied:
        locations, length = self.target.walk.locations, self.target.metadata.key_length
        if entry.file_format == "PARQUET":
            sealed = write_parquet(locations, name, source, length)
            keys, changes["split_offsets"] = sealed.keys, sealed.split_offsets
        else:
            keys = write_sealed(locations, name, source.read_at(0, source.size), length)
        self.made.append(name)
        changes |= {"file_path": name, "file_size_in_bytes": keys.file_length}
        return _Copied(keys, changes)

    # --- manifests and snapshots ----------------------------------------------------------------

    def _snapshot(self, snapshot: Snapshot, opened: OpenKey) -> tuple[dict[str, Any], EncryptedKey]:
        """Write a snapshot's manifest list, and give what metadata.json says of it."""
        first = self.next_row_id
        rows = [self._manifest(one) for one in self.contents.manifests[snapshot.id]]
        told = {
            "first-row-id": first,
            "added-rows": self.next_row_id - first,
            **{k: v for k, v in snapshot.document.items() if k != "manifests"},
        }
        fields = SnapshotFields(
            snapshot.id, snapshot.parent, snapshot.sequence_number, told["first-row-id"]
        )
        kept = [row for row in rows if row is not None]
        location, entry, _ = write_manifest_list(self.target, fields, kept, opened)
        self.made.append(location)
        return {**told, "manifest-list": location, "key-id": entry.id}, entry

    def _manifest(self, old: ManifestFile) -> dict[str, Any] | None:
        """Write a manifest, unless an older snapshot had it; give its row, if it has files."""
        if old.location not in self.manifests:
            rows = self._rows(old)
            self.manifests[old.location] = self._new_manifest(old, rows) if rows else None
        return self.manifests[old.location]

    def _new_manifest(self, old: ManifestFile, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        new = write_manifest(
            self.target,
            old.spec_id,
            rows,
            content=old.content,
            snapshot_id=old.added_snapshot_id,
            sequence_number=old.sequence_number,
        )
        self.made.append(new["manifest_path"])
        if old.content == DATA:
            new["first_row_id"] = self.contents.first_row_ids.get(old.location)
            if new["first_row_id"] is None:
                new["first_row_id"] = self.next_row_id
                self._number(rows)
                self.next_row_id += new["existing_rows_count"] + new["added_rows_count"]
        return new

    def _rows(self, old: ManifestFile) -> list[dict[str, Any]]:
        """Give the entries of a manifest whose files were copied."""
        spec = partition_spec(self.target.metadata, old.spec_id)
        names = [make_compatible_name(one.name) for one in spec.fields]
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
                    referenced_data_file=None if target is None else self._renamed(target),
                    **copied.changes,
                )
            )
        return rows

    def _number(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Note the row ids that readers will find, for manifests that have the files later on."""
        following = self.next_row_id
        for row in rows:
            file = row["data_file"]
            if file["first_row_id"] is None and row["status"] != DELETED:
                self.row_ids[file["file_path"]] = following
                following += file["record_count"]

    def _heads(self) -> dict[str, Any]:
        """Give the members of metadata.json that say which snapshots are whose."""
        source = self.contents.walk.metadata
        kept = {one.id for one in self.contents.snapshots}
        refs = {name: one for name, one in source.refs.items() if one["snapshot-id"] in kept}
        log = [
            one for one in source.document.get("snapshot-log") or () if one["snapshot-id"] in kept
        ]
        if source.current is None:
            return {"refs": refs, "snapshot_log": log}
        main = {**refs.get(MAIN, {}), "snapshot-id": source.current.id, "type": "branch"}
        return {
            "refs": {**refs, MAIN: main},
            "snapshot_log": log,
            "current_snapshot_id": source.current.id,
        }


def _specs(entries: Iterable[FileEntry]) -> set[int]:
    return {entry.spec_id for entry in entries}

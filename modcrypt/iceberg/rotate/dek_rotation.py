"""The files of a table's current snapshot under new data keys (DEKs), as a new snapshot.

    data, equality deletes      opened and sealed again page by page, or block by block
    position deletes, vectors   the same, and they name the new locations of data files
    manifests                   for each old one a new one: the new files as added, the old ones as
                                deleted, with the sequence numbers and row ids that they have, but
                                no more with their keys

Rows, and what is deleted of them, stay what they are (operation `replace`). Older snapshots keep
their files, under the old keys, until `expire_history` drops them. What seals the new keys is what
the table's policy says by now.

The key metadata of files goes to whoever rewrites them, and comes back, sealed under a KEK that is
for this job alone: so other processes may do it that can use the table's master key.
"""

from __future__ import annotations

import contextlib
import posixpath
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, TypeAlias

from pyiceberg.schema import make_compatible_name

from modcrypt.ags1.reader import Ags1Reader
from modcrypt.ags1.writer import Ags1Writer
from modcrypt.errors import IntegrityError, PlaintextError, TruncationError, UnsupportedFormatError
from modcrypt.iceberg.format.ags1_files import write_sealed
from modcrypt.iceberg.format.locations import Locations
from modcrypt.iceberg.format.manifests import (
    ADDED,
    DATA,
    DELETED,
    EQUALITY_DELETES,
    POSITION_DELETES,
    FileEntry,
    ManifestFile,
)
from modcrypt.iceberg.format.parquet_files import write_parquet
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.format.table_versions import file_names
from modcrypt.iceberg.keys.key_policies import KeyPolicy, writing_keys, writing_policy
from modcrypt.iceberg.keys.key_resolver import (
    is_sealed_metadata,
    open_from_manifest,
    seal_for_manifest,
    sealed_by,
)
from modcrypt.iceberg.keys.wrapping_keys import IcebergKey, OpenKey
from modcrypt.iceberg.read.data_files import open_parquet_file
from modcrypt.iceberg.rotate.deletion_rule import remove_written
from modcrypt.iceberg.rotate.rotation_report import (
    TableRotation,
    counting,
    older_versions,
    target_of,
    with_resolver,
)
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.iceberg.write.append import sealed_keys
from modcrypt.iceberg.write.commit import commit, surely_failed
from modcrypt.iceberg.write.manifest_writing import (
    PartitionPaths,
    entry_row,
    first_row_ids,
    partition_spec,
    write_manifest,
)
from modcrypt.iceberg.write.moved_deletes import moved_bounds, moved_deletes
from modcrypt.iceberg.write.snapshot_writing import MAIN, add_snapshot, new_snapshot_id, with_totals
from modcrypt.io.buffers import usable_cores
from modcrypt.io.storage import MemorySource, Place
from modcrypt.key_metadata import StandardKeyMetadata
from modcrypt.parquet.crypto.properties import FileDecryptionProperties, FileEncryptionProperties
from modcrypt.parquet.rewrite.rekey import rekey_parquet

__all__ = ["RekeyItem", "RekeyedFile", "Run", "in_their_order", "rekey_file", "rotate_deks"]

_COPIED = 4 << 20
"""Bytes of plaintext at once."""


# --- one file, in any process --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RekeyItem:
    """A file that is to have another key; it can be pickled, and holds no secret.

    Attributes:
        location: of the file.
        file_format: `PARQUET` or `AVRO`.
        size: its trusted length in bytes.
        sealed: its key metadata, sealed under the KEK of the job.
    """

    location: str
    file_format: str
    size: int
    sealed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class RekeyedFile:
    """A file that was written anew; it can be pickled, and holds no secret.

    Attributes:
        old: location of the file before.
        location: of the new one.
        size: its length in bytes, as it is stored.
        sealed: its key metadata, sealed under the KEK of the job.
    """

    old: str
    location: str
    size: int
    sealed: bytes = field(repr=False)


Run: TypeAlias = Callable[
    [IcebergTable, IcebergKey, str, Sequence[RekeyItem]], Iterable[RekeyedFile]
]
"""Rewrites files by `rekey_file`, wherever: of a table, with the KEK of the job and its name."""


def rekey_file(
    locations: Locations, item: RekeyItem, job: OpenKey, name: str, key_length: int
) -> RekeyedFile:
    """Write a file anew, under a fresh key and a location of its own.

    Args:
        locations: say where files are.
        item: the file.
        job: the KEK of the job, which opens its key metadata.
        name: of the job: what the name of the new file begins with.
        key_length: bytes of the fresh key.

    Raises:
        UnsupportedFormatError: a format that Iceberg does not encrypt.
        TruncationError: the file has another length.
        ModcryptError, OSError: it is not what was written, or can't be.
    """
    old = open_from_manifest(item.sealed, job)
    new = StandardKeyMetadata.generate(key_length)
    folder, _, base = item.location.rpartition("/")
    # Drawn here: of two attempts at one file, each has its own.
    location = f"{folder}/{name}-{uuid.uuid4().hex}{posixpath.splitext(base)[1]}"
    source, target = locations.place(item.location), locations.place(location)
    with source.open() as opened:
        if opened.size != item.size:
            raise TruncationError(
                f"{item.location}: the file has {opened.size} bytes, its manifest says {item.size}"
            )
    if item.file_format == "PARQUET":
        size = _rekey_parquet(source, target, old, new)
    elif item.file_format == "AVRO":
        size = _rekey_ags1(source, target, old.with_length(item.size), new)
    else:
        raise _unsupported(item.location, item.file_format)
    (sealed,) = seal_for_manifest([new.with_length(size)], job)
    return RekeyedFile(item.location, location, size, sealed)


def in_their_order(
    items: Sequence[RekeyItem], done: Sequence[RekeyedFile]
) -> Iterator[RekeyedFile]:
    """Give what came of files in the order in which they were asked for.

    Raises:
        IntegrityError: it is not one for each of them, and no more.
    """
    found = {one.old: one for one in done}
    if len(found) != len(done) or found.keys() != {one.location for one in items}:
        raise IntegrityError(
            "the files that were written anew are not exactly those that were to be"
        )
    return (found[one.location] for one in items)


def _rekey_parquet(
    source: Place, target: Place, old: StandardKeyMetadata, new: StandardKeyMetadata
) -> int:
    rekey_parquet(
        source.path,
        target,
        FileDecryptionProperties(footer_key=old.key, aad_prefix=old.aad_prefix or None),
        FileEncryptionProperties(
            footer_key=new.key, aad_prefix=new.aad_prefix, store_aad_prefix=False
        ),
        filesystem=source.filesystem,
        overwrite=False,
        threads=1,  # several files are written at the same time
    )
    with target.open() as opened:
        return opened.size


def _rekey_ags1(
    source: Place, target: Place, old: StandardKeyMetadata, new: StandardKeyMetadata
) -> int:
    with (
        Ags1Reader(source.path, old, filesystem=source.filesystem) as reader,
        Ags1Writer(target, new, overwrite=False) as writer,
    ):
        shutil.copyfileobj(reader, writer, _COPIED)
    return writer.encrypted_length


def _unsupported(location: str, file_format: str) -> UnsupportedFormatError:
    return UnsupportedFormatError(f"{location}: Iceberg encrypts no files in {file_format}")


# --- a table -------------------------------------------------------------------------------------


def rotate_deks(table: IcebergTable, dry_run: bool, run: Run | None = None) -> TableRotation:
    """Give the files of the current snapshot new keys; as `rotate_table`."""
    counted, client = counting(table)
    target = target_of(counted, None)
    writing_policy(counted.metadata, table.metadata)
    files = _Files.of(counted)
    if dry_run or not files.live:
        return replace(
            files.report(counted), table=table, dry_run=dry_run, master_key_id=target,
            kms_calls=client.calls + (files.kms_calls(counted) if files.live else 0),
            older_versions=older_versions(counted), **_older(counted, replaced=bool(files.live)),
        )  # fmt: skip
    masters, length = counted.walk.resolver.masters, counted.metadata.key_length
    rekeying = _Rekeying(run, masters.new_kek(target, length), files, table.metadata)
    try:
        new = commit(counted, rekeying.next_version)
    except BaseException as error:
        rekeying.give_up(error, counted)
        raise
    rekeying.sweep(new)
    result = with_resolver(new, table.walk.resolver)
    return replace(
        rekeying.files.report(result), committed=True,
        master_key_id=result.metadata.master_key_id or "", kms_calls=client.calls,
        older_versions=older_versions(result), **_older(result, replaced=False),
    )  # fmt: skip


def _older(table: IcebergTable, *, replaced: bool) -> dict[str, Any]:
    """Tell the snapshots that keep their files, and the branches and tags that keep these.

    Args:
        table: whose snapshots are meant.
        replaced: whether the current one, too, is to become an older one.
    """
    current = table.metadata.current
    ids = [one.id for one in table.metadata.snapshots if replaced or one is not current]
    refs = table.metadata.refs.items()
    kept = [name for name, one in refs if name != MAIN and one.get("snapshot-id") in ids]
    return {"older_snapshots": tuple(ids), "older_refs": tuple(kept)}


@dataclass(frozen=True)
class _Files:
    """The files of a version's current snapshot.

    Attributes:
        place: of the version.
        entries: by manifest, in their order.
        live: those that the snapshot has, by path; of a Puffin file, one of its vectors.
    """

    place: Place
    entries: Sequence[tuple[ManifestFile, Sequence[FileEntry]]]
    live: Mapping[str, FileEntry]

    @classmethod
    def of(cls, table: IcebergTable) -> _Files:
        """Read them.

        Raises:
            UnsupportedFormatError: a format that is not encrypted.
            PlaintextError: a file in plaintext.
            ModcryptError, OSError: as `Walk.manifests`.
        """
        walk, snapshot = table.walk, table.metadata.current
        manifests = [] if snapshot is None else walk.manifests(snapshot)
        found = [(one, walk.entries(one)) for one in manifests]
        every = [entry for _, entries in found for entry in entries if entry.is_live]
        for entry in every:
            vector = entry.content == POSITION_DELETES and entry.file_format == "PUFFIN"
            if entry.file_format not in ("PARQUET", "AVRO") and not vector:
                raise _unsupported(entry.location, entry.file_format)
            if entry.key_metadata is None:
                raise PlaintextError(f"{entry.location}: the file is in plaintext: it has no key")
        live = {walk.locations.key(entry.location): entry for entry in every}
        return cls(table.place, found, live)

    def partition_paths(self, metadata: TableMetadata) -> list[str]:
        """Spell the partition of each live entry, in their order, as the paths of files do."""
        live = self._live()
        paths = {id_: PartitionPaths(metadata, id_) for id_ in {one.spec_id for one in live}}
        return [paths[one.spec_id].path(_partition(metadata, one)) for one in live]

    def _live(self) -> list[FileEntry]:
        return [one for _, entries in self.entries for one in entries if one.is_live]

    def kms_calls(self, table: IcebergTable) -> int:
        """Tell how many it takes to write them, but for KEKs that the table's policy wants new."""
        keys = [one.key_metadata for one in self.live.values() if one.key_metadata is not None]
        by = [sealed_by(one) for one in keys if is_sealed_metadata(one)]
        opened = sum(single for _, single in by) + len({id_ for id_, single in by if not single})
        policy = KeyPolicy.of(table.metadata)
        if policy.wrapping == "double":
            return 1 + opened
        return 1 + opened + 1 + (len(self._live()) if policy.kek_per == "files" else 0)

    def report(self, table: IcebergTable) -> TableRotation:
        data = sum(one.content == DATA for one in self.live.values())
        return TableRotation(
            what="dek", table=table, data_files=data, delete_files=len(self.live) - data,
            manifests=sum(any(one.is_live for one in entries) for _, entries in self.entries),
            manifest_lists=int(bool(self.live)),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Moved:
    """A file that was written anew: where it is, how it opens, and what else its entry says."""

    location: str
    keys: StandardKeyMetadata = field(repr=False)
    changes: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass
class _Rekeying:
    """Makes the next version; files that were written once serve again when it is tried again.

    Attributes:
        run: rewrites data files; None: threads of this process do.
        job: the KEK of the job.
        files: of the version that the newest attempt is made of.
        seen: The version that the caller has.
        name: of the job.
        moved: what was written, by the paths of the files before.
        folders: locations of the folders that files are written to.
        snapshot_id: of the newest attempt.
        written: locations of its manifests and manifest list.
        offered: the version that it is to follow, once it is complete.
    """

    run: Run | None
    job: OpenKey
    files: _Files = field(repr=False)
    seen: TableMetadata = field(repr=False)
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    moved: dict[str, _Moved] = field(default_factory=dict, repr=False)
    folders: set[str] = field(default_factory=set)
    snapshot_id: int | None = None
    written: list[str] = field(default_factory=list)
    offered: Place | None = None

    def next_version(self, table: IcebergTable) -> TableMetadata:
        """Write what is not written yet, and give the metadata of the next version."""
        self.offered = None
        self._remove_written(table)
        if table.place != self.files.place:
            self.files = _Files.of(table)
        self._rekey(table)
        self._move_deletes(table)
        metadata, self.snapshot_id = table.metadata, new_snapshot_id(table.metadata)
        policy = writing_policy(metadata, self.seen)
        keys = writing_keys(table, policy, self.files.partition_paths(metadata))
        of_files = iter(keys.of_files)
        rows = [
            self._write_manifest(table, manifest, entries, of_files)
            for manifest, entries in self.files.entries
            if any(one.is_live for one in entries)
        ]
        new = add_snapshot(
            table,
            self.snapshot_id,
            rows,
            keys.of_list,
            operation="replace",
            summary=with_totals(self._summary(), metadata.current),
            new_keys=keys.entries,
        )
        self.written.append(new.snapshot(self.snapshot_id).manifest_list)
        self.offered = table.place
        return new

    # --- files ----------------------------------------------------------------------------------

    def _rekey(self, table: IcebergTable) -> None:
        """Have data files, and those of equality deletes, written anew."""
        left = {
            path: entry
            for path, entry in self.files.live.items()
            if entry.content != POSITION_DELETES and path not in self.moved
        }
        self.folders |= {posixpath.dirname(one.location) for one in self.files.live.values()}
        items = [
            RekeyItem(entry.location, entry.file_format, entry.size, sealed)
            for entry, sealed in zip(left.values(), self._sealed(table, left), strict=True)
        ]
        done = self._here(table, items) if self.run is None else self._there(table, items)
        for path, new in zip(left, in_their_order(items, done), strict=True):
            keys = open_from_manifest(new.sealed, self.job)
            self.moved[path] = _Moved(new.location, keys.with_length(new.size))

    def _sealed(self, table: IcebergTable, left: Mapping[str, FileEntry]) -> list[bytes]:
        keys = [table.walk.file_keys(entry) for entry in left.values()]
        return seal_for_manifest([one for one in keys if one is not None], self.job)

    def _there(self, table: IcebergTable, items: Sequence[RekeyItem]) -> list[RekeyedFile]:
        assert self.run is not None
        return list(self.run(table, self.job.key, self.name, items)) if items else []

    def _here(self, table: IcebergTable, items: Sequence[RekeyItem]) -> list[RekeyedFile]:
        def work(item: RekeyItem) -> RekeyedFile:
            length = table.metadata.key_length
            return rekey_file(table.walk.locations, item, self.job, self.name, length)

        pool = ThreadPoolExecutor(usable_cores(), "modcrypt-iceberg")
        try:
            return list(pool.map(work, items))
        finally:
            pool.shutdown(cancel_futures=True)

    def _move_deletes(self, table: IcebergTable) -> None:
        """Write files of position deletes anew, with the new locations of data files in them."""
        for path, entry in self.files.live.items():
            if entry.content == POSITION_DELETES and path not in self.moved:
                self.moved[path] = self._moved_deletes(table, entry)

    def _moved_deletes(self, table: IcebergTable, entry: FileEntry) -> _Moved:
        walk, length = table.walk, table.metadata.key_length
        folder, _, base = entry.location.rpartition("/")
        location = f"{folder}/{self.name}-{uuid.uuid4().hex}{posixpath.splitext(base)[1]}"
        if entry.file_format == "PARQUET":
            with open_parquet_file(walk, entry) as file:
                data = file.read()
        else:
            data = walk.read(entry.location, walk.file_keys(entry), entry.size)
        moved = moved_deletes(data, entry.file_format, self._renamed(table), entry.location)
        changes = moved_bounds(entry, moved.bounds)
        if entry.file_format != "PARQUET":
            keys = write_sealed(walk.locations, location, moved.data, length)
            return _Moved(location, keys, changes)
        source = MemorySource(moved.data, entry.location)
        written = write_parquet(walk.locations, location, source, length)
        changes = {**changes, "split_offsets": written.split_offsets}
        return _Moved(location, written.keys, changes)

    def _renamed(self, table: IcebergTable) -> Callable[[str], str]:
        def rename(location: str) -> str:
            with contextlib.suppress(ValueError):  # outside of the table: no file of it
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
        keys = [self._of(table, entry).keys for entry, _ in numbered]
        sealed = sealed_keys(keys, list(islice(of_files, len(keys))))
        rows = []
        for (entry, first), key_metadata in zip(numbered, sealed, strict=True):
            rows += self._rows(table, entry, first, key_metadata)
        assert self.snapshot_id is not None
        row = write_manifest(
            table, manifest.spec_id, rows, content=manifest.content, snapshot_id=self.snapshot_id
        )
        self.written.append(row["manifest_path"])
        # All of its files have row ids of their own, unless the old manifest has given none.
        return {**row, "first_row_id": manifest.row.get("first_row_id")}

    def _rows(
        self, table: IcebergTable, entry: FileEntry, first: int | None, key_metadata: bytes
    ) -> list[dict[str, Any]]:
        """Give the entries of the new file and of the old one."""
        moved = self._of(table, entry)
        told: dict[str, Any] = {
            "snapshot_id": self.snapshot_id,
            "first_row_id": first,
            "partition": _partition(table.metadata, entry),
        }
        changes = {**moved.changes, "key_metadata": key_metadata}
        if (target := entry.file.get("referenced_data_file")) is not None:
            changes["referenced_data_file"] = self._renamed(table)(target)
        size = moved.keys.file_length
        new = entry_row(
            entry, status=ADDED, **told, file_path=moved.location, file_size_in_bytes=size,
            **changes,
        )  # fmt: skip
        new["file_sequence_number"] = None  # that of the commit
        # The old key goes with the snapshots that have the old file.
        return [new, entry_row(entry, status=DELETED, **told, key_metadata=None)]

    def _of(self, table: IcebergTable, entry: FileEntry) -> _Moved:
        return self.moved[table.walk.locations.key(entry.location)]

    def _summary(self) -> dict[str, str]:
        """Count what is replaced, as Java does: as much is added as is removed, but for bytes."""
        counts = Counter[str]()
        partitions = set()
        for _, entries in self.files.entries:
            for entry in (one for one in entries if one.is_live):
                partitions.add((entry.spec_id, repr(sorted(entry.partition_by_id.items()))))
                counts[_RECORDS[entry.content]] += entry.record_count
                if entry.file_format == "PUFFIN":  # which may have many vectors: each is counted
                    counts["delete-files"] += 1
                    for name in ("removed-files-size", "added-files-size"):
                        counts[name] += entry.file["content_size_in_bytes"]
        for path, entry in self.files.live.items():
            if entry.file_format != "PUFFIN":
                counts["data-files" if entry.content == DATA else "delete-files"] += 1
                counts["removed-files-size"] += entry.size
                counts["added-files-size"] += self.moved[path].keys.file_length or 0
        found = {name: str(counts.pop(name)) for name in ("added-files-size", "removed-files-size")}
        for name, count in sorted(counts.items()):
            removed = "deleted" if name in ("data-files", "records") else "removed"
            found |= {f"added-{name}": str(count), f"{removed}-{name}": str(count)}
        created = sum(any(one.is_live for one in entries) for _, entries in self.files.entries)
        return {
            **found,
            "changed-partition-count": str(len(partitions)),
            "manifests-created": str(created),
            "manifests-kept": "0",
            "manifests-replaced": str(len(self.files.entries)),
        }

    # --- the end --------------------------------------------------------------------------------

    def give_up(self, error: BaseException, table: IcebergTable) -> None:
        """Remove all that was written, if the table surely does not have it."""
        with contextlib.suppress(Exception):  # then it can't be told
            if surely_failed(error, table, self.offered):
                self._remove_written(table)
                self.moved.clear()
                self.sweep(table)

    def sweep(self, table: IcebergTable) -> None:
        """Remove files of the job that the new snapshot does not have."""
        walk = table.walk
        used = {walk.locations.key(self.moved[path].location) for path in self._paths()}
        for folder in self.folders:
            with contextlib.suppress(OSError, ValueError):  # what stays is named by nothing
                inside = walk.place(f"{folder}/{self.name}")
                names = file_names(Place(inside.filesystem, posixpath.dirname(inside.path)))
                own = [f"{folder}/{name}" for name in names if name.startswith(self.name)]
                unused = (one for one in own if walk.locations.key(one) not in used)
                remove_written(walk.locations, unused)

    def _paths(self) -> list[str]:
        return [path for path in self.files.live if path in self.moved] if self.moved else []

    def _remove_written(self, table: IcebergTable) -> None:
        remove_written(table.walk.locations, self.written)
        self.written.clear()


_RECORDS = {
    DATA: "records", POSITION_DELETES: "position-deletes", EQUALITY_DELETES: "equality-deletes",
}  # fmt: skip


def _partition(metadata: TableMetadata, entry: FileEntry) -> dict[str, Any]:
    """Give the partition of a file under the names and in the order of its spec."""
    values = entry.partition_by_id
    spec = partition_spec(metadata, entry.spec_id)
    return {make_compatible_name(one.name): values.get(one.field_id) for one in spec.fields}

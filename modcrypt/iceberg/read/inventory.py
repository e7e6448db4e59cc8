"""Take an inventory of what a table's snapshots reach: manifest lists, manifests and files.

Each is read or listed once, even if many snapshots share it. An item that cannot be read keeps its
error, and the inventory continues without what the item contains. Entries for deleted files are
skipped: an older snapshot still has the file, or none does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

from modcrypt.errors import (
    FormatError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
    ModcryptError,
)
from modcrypt.iceberg.format.avro_files import open_avro
from modcrypt.iceberg.format.manifests import (
    DATA,
    POSITION_DELETES,
    FileEntry,
    ManifestFile,
    read_manifest,
    read_manifest_list,
)
from modcrypt.iceberg.format.table_metadata import EncryptedKey, Snapshot
from modcrypt.iceberg.keys.key_resolver import WRAPPING, is_sealed_metadata, parse_sealing_key
from modcrypt.iceberg.read.table_walk import Walk
from modcrypt.io.threads import in_threads
from modcrypt.key_metadata import StandardKeyMetadata
from modcrypt.tracebacks import hide_frames

Failure: TypeAlias = ModcryptError | OSError

R = TypeVar("R")

Mark: TypeAlias = tuple[int, bytes]
"""A keyed hash of a data key, and its AAD prefix, which no two files may share."""


@dataclass(slots=True)
class ReachedList:
    """A manifest list.

    Attributes:
        snapshots: Snapshots that use it; one, unless metadata.json was altered.
        location, path: Its location in metadata.json, and the path of that location.
        key: Its entry in `encryption-keys`; None without one.
        size: Size in bytes according to its key metadata; None if that cannot be decrypted.
        blocks: Number of blocks with verified tags.
        block_length: Bytes of plaintext in each block except the last.
        header: Its Avro header, which is encrypted with the rest.
        manifests: Manifests that it names.
        error: Error that prevented reading it.
        mark: Mark of its data key.
    """

    snapshots: list[Snapshot]
    location: str
    path: str
    key: EncryptedKey | None
    size: int | None = None
    blocks: int = 0
    block_length: int | None = None
    header: Mapping[str, str] = field(default_factory=dict)
    manifests: list[ReachedManifest] = field(default_factory=list)
    error: Failure | None = None
    mark: Mark | None = field(default=None, repr=False)

    @property
    def is_single(self) -> bool:
        """True if a master key wraps its data key directly."""
        return self.key is not None and self.key.properties.get(WRAPPING) == "single"


@dataclass(slots=True)
class ReachedManifest:
    """A manifest.

    Attributes:
        manifest: Row of the first manifest list that names it.
        path: Path of the manifest.
        header: Members of its Avro header about the table, which are encrypted with the rest.
        contradicted: Whether another list gives it another length or other key metadata.
        blocks: Number of blocks with verified tags.
        block_length: Bytes of plaintext in each block except the last.
        counts: Numbers of files and rows by status, according to its entries.
        files: Its files, except deleted ones.
        error: Error that prevented reading it.
        mark: Mark of its data key.
    """

    manifest: ManifestFile
    path: str
    header: Mapping[str, str] = field(default_factory=dict, repr=False)
    contradicted: bool = False
    blocks: int = 0
    block_length: int | None = None
    counts: dict[int, tuple[int, int]] = field(default_factory=dict)
    files: list[ReachedFile] = field(default_factory=list)
    error: Failure | None = None
    mark: Mark | None = field(default=None, repr=False)

    @property
    def kind(self) -> str:
        """The name of its kind."""
        return "manifest" if self.manifest.content == DATA else "delete manifest"


@dataclass(slots=True)
class ReachedFile:
    """A data or delete file.

    Attributes:
        path: Path of the file; its location if that leads nowhere.
        entries: First entry that names it; for a Puffin file one entry for each deletion vector;
            and entries with another key or size than the first.
        error: Error that prevents locating it.
    """

    path: str
    entries: list[FileEntry]
    error: Failure | None = None

    @property
    def entry(self) -> FileEntry:
        """The first entry that names it."""
        return self.entries[0]

    @property
    def kind(self) -> str:
        """The name of its kind."""
        if self.entry.file_format == "PUFFIN":
            return "deletion vectors"
        if self.entry.content == DATA:
            return "data"
        position = self.entry.content == POSITION_DELETES
        return "position deletes" if position else "equality deletes"

    @property
    def sealed_by(self) -> tuple[str, bool] | None:
        """The id of the key that encrypts its key metadata, and whether it is a master key.

        None if its key metadata is in plaintext within the manifest, or cannot be read.
        """
        return sealing_key(self.entry.key_metadata)


@dataclass
class Inventory:
    """Everything that snapshots reach, in the order of discovery."""

    lists: list[ReachedList] = field(default_factory=list)
    manifests: list[ReachedManifest] = field(default_factory=list)
    files: list[ReachedFile] = field(default_factory=list)

    @property
    def kms_unavailable(self) -> bool:
        """True if the key service was unavailable for a manifest list or manifest."""
        errors = [x.error for x in self.lists] + [x.error for x in self.manifests]
        return any(isinstance(error, KmsUnavailableError) for error in errors)

    @property
    def is_whole(self) -> bool:
        """True if every manifest list and manifest could be read."""
        lists, manifests = self.lists, self.manifests
        return all(manifest_list.error is None for manifest_list in lists) and all(
            manifest.error is None for manifest in manifests
        )


class Keys:
    """A source of files' key metadata that asks an unavailable key service only once per key.

    Args:
        walk: Walk through the table.
        failed: Errors of keys that are unavailable, by the ids of the keys.
    """

    def __init__(self, walk: Walk, failed: Mapping[str, Failure]) -> None:
        self.walk = walk
        self._failed = dict(failed)

    def of_list(self, snapshot: Snapshot) -> StandardKeyMetadata | None:
        """Return the key metadata of a manifest list. Raises as `Walk.list_keys`."""
        entry = self.walk.metadata.keys.get(snapshot.key_id or "")
        return self._open_once(
            None if entry is None else entry.encrypted_by, lambda: self.walk.list_keys(snapshot)
        )

    def of_file(self, entry: FileEntry) -> StandardKeyMetadata | None:
        """Return the key metadata of a data or delete file. Raises as `Walk.file_keys`."""
        sealing = sealing_key(entry.key_metadata)
        return self._open_once(
            None if sealing is None else sealing[0], lambda: self.walk.file_keys(entry)
        )

    def is_lost(self, key_id: str, *, single: bool) -> bool:
        """True if a KEK is neither in the table's metadata nor in the key store."""
        if single:
            return False
        try:
            self.walk.resolver.find(key_id, self.walk.metadata)
        except KeyNotFoundError:
            return True
        except (ModcryptError, OSError):  # the KEK exists, or its existence is unknown
            return False
        return False

    def _open_once(self, key_id: str | None, call: Callable[[], R]) -> R:
        if key_id is not None and key_id in self._failed:
            raise self._failed[key_id]
        try:
            return call()
        except KmsUnavailableError as error:
            if key_id is not None:
                self._failed[key_id] = error
            raise
        except OSError as error:  # an error of the key store, not of the file
            reason = error.strerror or type(error).__name__
            raise KeyRetrievalError(f"the key store cannot be read: {reason}") from None


def take_inventory(
    keys: Keys,
    snapshots: Iterable[Snapshot],
    jobs: int,
    progress: Callable[[int], None] = lambda _: None,
) -> Inventory:
    """Read all manifest lists and manifests of snapshots, and list the files that they name.

    Args:
        keys: Source of the key metadata that opens them.
        snapshots: Snapshots whose files are listed.
        jobs: Number of files that are read in parallel.
        progress: Function that is called, in this thread, with the size of each file read.
    """
    collector = _Collector(keys.walk)
    collector.add_snapshots(snapshots)
    for manifest_list, rows in in_threads(partial(_read_list, keys), collector.lists, jobs):
        collector.add_manifests(manifest_list, rows)
        progress(manifest_list.size or 0)
    for manifest, entries in in_threads(partial(_read_manifest, keys), collector.manifests, jobs):
        collector.add_files(manifest, entries)
        progress(manifest.manifest.length)
    return Inventory(collector.lists, collector.manifests, collector.files)


def sealing_key(metadata: bytes | None) -> tuple[str, bool] | None:
    """Return which key encrypts key metadata in a manifest, and whether it is a master key.

    None if the key metadata is in plaintext within the encrypted manifest, or names no key.
    """
    if metadata is None or not is_sealed_metadata(metadata):
        return None
    try:
        return parse_sealing_key(metadata)
    except KeyMaterialError:
        return None


def sealed_part(metadata: bytes) -> bytes:
    """Return the encrypted part of key metadata in a manifest, which follows the key's id."""
    return metadata[3 + int.from_bytes(metadata[1:3], "big") :]


def mark_of(metadata: StandardKeyMetadata) -> Mark:
    """Return the mark of a file's data key; the hash is keyed, and the key is not kept."""
    return hash(metadata.key), metadata.aad_prefix or b""


# --- reading, in any thread ----------------------------------------------------------------------


def _read_list(keys: Keys, manifest_list: ReachedList) -> tuple[ReachedList, list[ManifestFile]]:
    rows: list[ManifestFile] = []
    try:
        metadata = keys.of_list(manifest_list.snapshots[0])
        manifest_list.mark = None if metadata is None else mark_of(metadata)
        manifest_list.size = None if metadata is None else metadata.file_length
        rows = _list_rows(keys.walk, manifest_list, metadata)
    except (ModcryptError, OSError) as error:
        manifest_list.error = error
    return manifest_list, rows


@hide_frames  # because the plaintext holds keys
def _list_rows(
    walk: Walk, manifest_list: ReachedList, metadata: StandardKeyMetadata | None
) -> list[ManifestFile]:
    data, manifest_list.blocks, manifest_list.block_length = _read(
        walk, manifest_list.location, metadata, None
    )
    manifest_list.size = manifest_list.size or len(data)
    manifest_list.header = _header(data, manifest_list.location)
    return read_manifest_list(data, manifest_list.location)


def _read_manifest(keys: Keys, reached: ReachedManifest) -> tuple[ReachedManifest, list[FileEntry]]:
    manifest, entries = reached.manifest, list[FileEntry]()
    try:
        metadata = keys.walk.manifest_keys(manifest)
        reached.mark = None if metadata is None else mark_of(metadata)
        entries = _manifest_rows(keys.walk, reached, metadata)
    except (ModcryptError, OSError) as error:
        reached.error = error
    return reached, entries


@hide_frames  # because the plaintext holds keys
def _manifest_rows(
    walk: Walk, reached: ReachedManifest, metadata: StandardKeyMetadata | None
) -> list[FileEntry]:
    location, length = reached.manifest.location, reached.manifest.length
    data, reached.blocks, reached.block_length = _read(walk, location, metadata, length)
    reached.header = _header(data, location)
    return read_manifest(data, reached.manifest, location)


def _read(
    walk: Walk, location: str, keys: StandardKeyMetadata | None, length: int | None
) -> tuple[bytes, int, int | None]:
    """Return the plaintext of a file, and the number and length of its blocks, if it has blocks."""
    if keys is None:
        return walk.read(location, None, length), 0, None
    with walk.reader(location, keys, length) as reader:
        blocks = max(1, -(-reader.size // reader.block_length))
        return reader.read(), blocks, reader.block_length


_HEADER_MEMBERS = (
    "snapshot-id",
    "sequence-number",
    "schema",
    "partition-spec",
    "partition-spec-id",
)


def _header(data: bytes, name: str) -> dict[str, str]:
    """Return the members of an Avro header about the table.

    Equal texts, which may be long, are shared.
    """
    metadata = open_avro(data, name).metadata
    return {key: sys.intern(metadata[key]) for key in _HEADER_MEMBERS if key in metadata}


# --- putting together, in one thread -------------------------------------------------------------

_NEEDED = ("referenced_data_file", "content_offset", "content_size_in_bytes")


class _Collector:
    """The items found so far, by path."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self.lists: list[ReachedList] = []
        self.manifests: list[ReachedManifest] = []
        self.files: list[ReachedFile] = []
        self._manifest_at: dict[str, ReachedManifest] = {}
        self._file_at: dict[str, ReachedFile] = {}

    def add_snapshots(self, snapshots: Iterable[Snapshot]) -> None:
        by_path: dict[tuple[str, str | None], ReachedList] = {}
        for snapshot in snapshots:
            path, error = self._path(snapshot.manifest_list)
            known = by_path.get((path, snapshot.key_id))
            if known is not None:
                known.snapshots.append(snapshot)
                continue
            entry = self._walk.metadata.keys.get(snapshot.key_id or "")
            manifest_list = ReachedList(
                [snapshot], snapshot.manifest_list, path, entry, error=error
            )
            by_path[path, snapshot.key_id] = manifest_list
            self.lists.append(manifest_list)

    def add_manifests(self, manifest_list: ReachedList, rows: Iterable[ManifestFile]) -> None:
        for row in rows:
            path, error = self._path(row.location)
            known = self._manifest_at.get(path)
            if known is None:
                known = self._manifest_at[path] = ReachedManifest(row, path, error=error)
                self.manifests.append(known)
            elif (row.length, row.key_metadata) != (
                known.manifest.length,
                known.manifest.key_metadata,
            ):
                known.contradicted = True
            manifest_list.manifests.append(known)

    def add_files(self, manifest: ReachedManifest, entries: Iterable[FileEntry]) -> None:
        counts = manifest.counts
        for entry in entries:
            files, rows = counts.get(entry.status, (0, 0))
            counts[entry.status] = files + 1, rows + entry.record_count
            if entry.is_live:
                manifest.files.append(self._file(_drop_statistics(entry)))
        manifest.files = list({id(file): file for file in manifest.files}.values())

    def _file(self, entry: FileEntry) -> ReachedFile:
        path, error = self._path(entry.location)
        known = self._file_at.get(path)
        if known is None:
            known = self._file_at[path] = ReachedFile(path, [entry], error)
            self.files.append(known)
        elif not any(_is_same_file(entry, other) for other in known.entries):
            known.entries.append(entry)
        return known

    def _path(self, location: str) -> tuple[str, Failure | None]:
        try:
            return self._walk.locations.key(location), None
        except FormatError as error:
            return location, error


def _drop_statistics(entry: FileEntry) -> FileEntry:
    """Return an entry without its statistics: a table may have a million entries."""
    needed: dict[str, Any] = {name: entry.file.get(name) for name in _NEEDED}
    return replace(entry, file=needed)


def _is_same_file(entry: FileEntry, other: FileEntry) -> bool:
    return (
        entry.size == other.size
        and entry.record_count == other.record_count
        and entry.key_metadata == other.key_metadata
        and entry.file_format == other.file_format
        and entry.file == other.file
    )

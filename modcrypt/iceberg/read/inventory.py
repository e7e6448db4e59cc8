"""What the snapshots of a table reach: manifest lists, manifests, data and delete files.

Each is read or listed once, however many snapshots share it. What can't be read ends nothing: it
keeps its error, and what lies beneath it stays unknown. Entries for deleted files are passed over:
an older snapshot still has the file, or nobody does.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
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
from modcrypt.iceberg.keys.key_resolver import WRAPPING, is_sealed_metadata, sealed_by
from modcrypt.iceberg.read.table_walk import Walk
from modcrypt.key_metadata import StandardKeyMetadata
from modcrypt.tracebacks import hide_frames

__all__ = [
    "Failure",
    "Inventory",
    "Keys",
    "Mark",
    "ReachedFile",
    "ReachedList",
    "ReachedManifest",
    "in_threads",
    "mark_of",
    "sealed_part",
    "sealing_key",
    "take_inventory",
]

AHEAD = 4
"""Pieces of work that are handed out ahead for each thread."""

Failure: TypeAlias = ModcryptError | OSError

T = TypeVar("T")
R = TypeVar("R")

Mark: TypeAlias = tuple[int, bytes]
"""A keyed hash of a data key, and its AAD prefix: what no two files may share."""


@dataclass(slots=True)
class ReachedList:
    """A manifest list.

    Attributes:
        snapshots: that have it; one, unless somebody meddled.
        location, path: as metadata.json names it, and where that is.
        key: its entry in `encryption-keys`; None if there is none.
        size: bytes, by its key metadata; None if that did not open.
        blocks: whose tags were verified.
        block_length: bytes of plaintext in each but the last.
        header: what its Avro header says, sealed with the rest.
        manifests: that it names.
        error: why it could not be read.
        mark: of its data key.
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
        """Whether a master key by itself wraps its key."""
        return self.key is not None and self.key.properties.get(WRAPPING) == "single"


@dataclass(slots=True)
class ReachedManifest:
    """A manifest.

    Attributes:
        manifest: the row of the first manifest list that named it.
        path: where it is.
        header: what of its Avro header tells of the table, sealed with the rest.
        contradicted: another list gives it another length or other key metadata.
        blocks: whose tags were verified.
        block_length: bytes of plaintext in each but the last.
        counts: files and rows by status, as its entries have them.
        files: that it has, but for those deleted.
        error: why it could not be read.
        mark: of its data key.
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
        """What it is called."""
        return "manifest" if self.manifest.content == DATA else "delete manifest"


@dataclass(slots=True)
class ReachedFile:
    """A data or delete file.

    Attributes:
        path: where it is; its location, where that leads nowhere.
        entries: the first that names it; of a Puffin file one for each deletion vector; and those
            that give it another key or size than the first.
        error: why it can't be looked for.
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
        """What it is called."""
        if self.entry.file_format == "PUFFIN":
            return "deletion vectors"
        if self.entry.content == DATA:
            return "data"
        position = self.entry.content == POSITION_DELETES
        return "position deletes" if position else "equality deletes"

    @property
    def sealed_by(self) -> tuple[str, bool] | None:
        """The id of the key that seals its key metadata, and whether it is a master key.

        None where its key metadata lies in the clear within its manifest, or can't be read.
        """
        return sealing_key(self.entry.key_metadata)


@dataclass
class Inventory:
    """Everything that snapshots reach, in the order in which it was found."""

    lists: list[ReachedList] = field(default_factory=list)
    manifests: list[ReachedManifest] = field(default_factory=list)
    files: list[ReachedFile] = field(default_factory=list)

    @property
    def kms_unavailable(self) -> bool:
        """True if the key service was unavailable for a manifest list or manifest."""
        errors = [one.error for one in self.lists] + [one.error for one in self.manifests]
        return any(isinstance(error, KmsUnavailableError) for error in errors)

    @property
    def is_whole(self) -> bool:
        """Whether every manifest list and manifest could be read."""
        lists, manifests = self.lists, self.manifests
        return all(one.error is None for one in lists) and all(
            one.error is None for one in manifests
        )


class Keys:
    """Opens the key metadata of files, and asks no key service again that has gone away.

    Args:
        walk: through the table.
        failed: why keys are not to be had, by their ids.
    """

    def __init__(self, walk: Walk, failed: Mapping[str, Failure]) -> None:
        self.walk = walk
        self._failed = dict(failed)

    def of_list(self, snapshot: Snapshot) -> StandardKeyMetadata | None:
        """Give the key metadata of a manifest list; raises as `Walk.list_keys`."""
        entry = self.walk.metadata.keys.get(snapshot.key_id or "")
        return self._asked(
            None if entry is None else entry.encrypted_by, lambda: self.walk.list_keys(snapshot)
        )

    def of_file(self, entry: FileEntry) -> StandardKeyMetadata | None:
        """Give the key metadata of a data or delete file; raises as `Walk.file_keys`."""
        by = sealing_key(entry.key_metadata)
        return self._asked(None if by is None else by[0], lambda: self.walk.file_keys(entry))

    def is_lost(self, key_id: str, *, single: bool) -> bool:
        """Whether a KEK is neither in the table's metadata nor in the key store."""
        if single:
            return False
        try:
            self.walk.resolver.find(key_id, self.walk.metadata)
        except KeyNotFoundError:
            return True
        except (ModcryptError, OSError):  # it is there, or nobody knows
            return False
        return False

    def _asked(self, key_id: str | None, call: Callable[[], R]) -> R:
        if key_id is not None and key_id in self._failed:
            raise self._failed[key_id]
        try:
            return call()
        except KmsUnavailableError as error:
            if key_id is not None:
                self._failed[key_id] = error
            raise
        except OSError as error:  # of the key store, not of the file
            reason = error.strerror or type(error).__name__
            raise KeyRetrievalError(f"the key store can't be read: {reason}") from None


def take_inventory(
    keys: Keys,
    snapshots: Iterable[Snapshot],
    jobs: int,
    progress: Callable[[int], None] = lambda _: None,
) -> Inventory:
    """Read all manifest lists and manifests of snapshots, and list the files that they name.

    Args:
        keys: by which they are opened.
        snapshots: whose files are wanted.
        jobs: how many are read at the same time.
        progress: called, in this thread, with the bytes of each that was read.
    """
    found = _Found(keys.walk)
    found.add_snapshots(snapshots)
    for one, rows in in_threads(partial(_read_list, keys), found.lists, jobs):
        found.add_manifests(one, rows)
        progress(one.size or 0)
    for manifest, entries in in_threads(partial(_read_manifest, keys), found.manifests, jobs):
        found.add_files(manifest, entries)
        progress(manifest.manifest.length)
    return Inventory(found.lists, found.manifests, found.files)


def sealing_key(metadata: bytes | None) -> tuple[str, bool] | None:
    """Give which key seals key metadata in a manifest, and whether it is a master key itself.

    None where it lies in the clear within the sealed manifest, or names no key.
    """
    if metadata is None or not is_sealed_metadata(metadata):
        return None
    try:
        return sealed_by(metadata)
    except KeyMaterialError:
        return None


def sealed_part(metadata: bytes) -> bytes:
    """Give what of key metadata in a manifest is sealed: what follows the key's id."""
    return metadata[3 + int.from_bytes(metadata[1:3], "big") :]


def mark_of(metadata: StandardKeyMetadata) -> Mark:
    """Give what tells a file's key from others; the key's own hash is keyed, and not kept."""
    return hash(metadata.key), metadata.aad_prefix or b""


def in_threads(work: Callable[[T], R], items: Iterable[T], jobs: int) -> Iterator[R]:
    """Do work for each item, some at the same time; give the results in the order of the items."""
    pool = ThreadPoolExecutor(jobs, "modcrypt-iceberg")
    waiting: deque[Future[R]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > AHEAD * jobs:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


# --- reading, in any thread ----------------------------------------------------------------------


def _read_list(keys: Keys, one: ReachedList) -> tuple[ReachedList, list[ManifestFile]]:
    rows: list[ManifestFile] = []
    try:
        metadata = keys.of_list(one.snapshots[0])
        one.mark = None if metadata is None else mark_of(metadata)
        one.size = None if metadata is None else metadata.file_length
        rows = _list_rows(keys.walk, one, metadata)
    except (ModcryptError, OSError) as error:
        one.error = error
    return one, rows


@hide_frames  # of the plaintext, which holds keys
def _list_rows(
    walk: Walk, one: ReachedList, metadata: StandardKeyMetadata | None
) -> list[ManifestFile]:
    data, one.blocks, one.block_length = _read(walk, one.location, metadata, None)
    one.size = one.size or len(data)
    one.header = _header(data, one.location)
    return read_manifest_list(data, one.location)


def _read_manifest(keys: Keys, one: ReachedManifest) -> tuple[ReachedManifest, list[FileEntry]]:
    manifest, entries = one.manifest, list[FileEntry]()
    try:
        metadata = keys.walk.manifest_keys(manifest)
        one.mark = None if metadata is None else mark_of(metadata)
        entries = _manifest_rows(keys.walk, one, metadata)
    except (ModcryptError, OSError) as error:
        one.error = error
    return one, entries


@hide_frames  # of the plaintext, which holds keys
def _manifest_rows(
    walk: Walk, one: ReachedManifest, metadata: StandardKeyMetadata | None
) -> list[FileEntry]:
    location, length = one.manifest.location, one.manifest.length
    data, one.blocks, one.block_length = _read(walk, location, metadata, length)
    one.header = _header(data, location)
    return read_manifest(data, one.manifest, location)


def _read(
    walk: Walk, location: str, keys: StandardKeyMetadata | None, length: int | None
) -> tuple[bytes, int, int | None]:
    """Give the plaintext of a file, and the number and length of its blocks; none in plaintext."""
    if keys is None:
        return walk.read(location, None, length), 0, None
    with walk.reader(location, keys, length) as reader:
        blocks = max(1, -(-reader.size // reader.block_length))
        return reader.read(), blocks, reader.block_length


_TELLING = ("snapshot-id", "sequence-number", "schema", "partition-spec", "partition-spec-id")


def _header(data: bytes, name: str) -> dict[str, str]:
    """Give what an Avro header tells of the table; of equal texts, which may be long, one."""
    found = open_avro(data, name).metadata
    return {key: sys.intern(found[key]) for key in _TELLING if key in found}


# --- putting together, in one thread -------------------------------------------------------------

_KEPT = ("referenced_data_file", "content_offset", "content_size_in_bytes")


class _Found:
    """What was found so far, by place."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self.lists: list[ReachedList] = []
        self.manifests: list[ReachedManifest] = []
        self.files: list[ReachedFile] = []
        self._manifest_at: dict[str, ReachedManifest] = {}
        self._file_at: dict[str, ReachedFile] = {}

    def add_snapshots(self, snapshots: Iterable[Snapshot]) -> None:
        at: dict[tuple[str, str | None], ReachedList] = {}
        for snapshot in snapshots:
            path, error = self._path(snapshot.manifest_list)
            known = at.get((path, snapshot.key_id))
            if known is not None:
                known.snapshots.append(snapshot)
                continue
            entry = self._walk.metadata.keys.get(snapshot.key_id or "")
            one = ReachedList([snapshot], snapshot.manifest_list, path, entry, error=error)
            at[path, snapshot.key_id] = one
            self.lists.append(one)

    def add_manifests(self, one: ReachedList, rows: Iterable[ManifestFile]) -> None:
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
            one.manifests.append(known)

    def add_files(self, manifest: ReachedManifest, entries: Iterable[FileEntry]) -> None:
        counts = manifest.counts
        for entry in entries:
            files, rows = counts.get(entry.status, (0, 0))
            counts[entry.status] = files + 1, rows + entry.record_count
            if entry.is_live:
                manifest.files.append(self._file(_slim(entry)))
        manifest.files = list({id(one): one for one in manifest.files}.values())

    def _file(self, entry: FileEntry) -> ReachedFile:
        path, error = self._path(entry.location)
        known = self._file_at.get(path)
        if known is None:
            known = self._file_at[path] = ReachedFile(path, [entry], error)
            self.files.append(known)
        elif not any(_tells_the_same(entry, one) for one in known.entries):
            known.entries.append(entry)
        return known

    def _path(self, location: str) -> tuple[str, Failure | None]:
        try:
            return self._walk.locations.key(location), None
        except FormatError as error:
            return location, error


def _slim(entry: FileEntry) -> FileEntry:
    """Leave out what statistics there are: a table may have a million entries."""
    kept: dict[str, Any] = {name: entry.file.get(name) for name in _KEPT}
    return replace(entry, file=kept)


def _tells_the_same(one: FileEntry, other: FileEntry) -> bool:
    return (
        one.size == other.size
        and one.record_count == other.record_count
        and one.key_metadata == other.key_metadata
        and one.file_format == other.file_format
        and one.file == other.file
    )

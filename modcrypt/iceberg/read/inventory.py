"""Take an inventory of what a table's snapshots reach: manifest lists, manifests and files.

Each is read or listed once, even if many snapshots share it. An item that cannot be read keeps its
error, and the inventory continues without what the item contains. Entries for deleted files are
skipped: an older snapshot still has the file, or none does.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias, TypeVar

from modcrypt.errors import (
    FormatError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
    ModcryptError,
)
from modcrypt.iceberg.format.avro_files import AvroRows
from modcrypt.iceberg.format.manifest_rows.entry_plan import Values
from modcrypt.iceberg.format.manifest_rows.file_entries import DATA, FileEntry, ManifestEntries
from modcrypt.iceberg.format.manifests import (
    FILE_KINDS,
    ManifestFile,
    open_manifest,
    read_list_rows,
    read_manifest_rows,
)
from modcrypt.iceberg.format.repeated_rows import RepeatedRows
from modcrypt.iceberg.format.repetition import make_once
from modcrypt.iceberg.format.table_metadata import EncryptedKey, Snapshot
from modcrypt.iceberg.keys.key_resolver import encrypting_key, is_encrypted_metadata
from modcrypt.iceberg.read.table_walk import KEYS_AHEAD, Walk
from modcrypt.io.threads import in_threads
from modcrypt.keys.metadata import StandardKeyMetadata
from modcrypt.runtime.tracebacks import hide_frames

Failure: TypeAlias = ModcryptError | OSError

T = TypeVar("T")
R = TypeVar("R")

_MAX_ROWS, _MAX_PATHS = 64 << 20, 1 << 14
"""Bytes of rows, and number of the paths of files, that are kept: manifests may repeat them."""

Mark: TypeAlias = tuple[int, bytes]
"""A keyed hash of a data key, and its AAD prefix, which no two files may share."""


@dataclass(slots=True, kw_only=True)
class Reached:
    """A file that snapshots reach."""

    number: int  # its number among manifest lists, manifests, or data and delete files, from 0
    # `manifest list`, `manifest`, `delete manifest`, `data`, `position deletes`, `equality deletes`
    # or `deletion vectors`.
    kind: str
    # Its location in the table, and the path of that location; the location again if that leads
    # nowhere.
    location: str
    path: str
    size: int | None = None  # size in bytes according to what names it; None if unknown
    encrypted: bool = False  # whether it has key metadata
    error: Failure | None = None  # error that prevented locating or reading it
    tags: int = 0  # number of tags verified
    mark: Mark | None = field(default=None, repr=False)  # mark of its data key, once that is known


@dataclass(slots=True, kw_only=True)
class ReachedTable(Reached):
    """A manifest list or manifest: a file whose rows name other files."""

    block_length: int | None = None  # bytes of plaintext in each block except the last
    # Members of its Avro header about the table, which are encrypted with the rest.
    header: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(slots=True, kw_only=True)
class ReachedList(ReachedTable):
    """A manifest list; its size is in its key metadata."""

    snapshots: list[Snapshot]  # snapshots that use it; one, unless metadata.json was altered
    key: EncryptedKey | None  # its entry in `encryption-keys`; None without one
    manifests: list[ReachedManifest] = field(default_factory=list)  # manifests that it names

    @property
    def encrypted_by(self) -> tuple[str, bool] | None:
        """The id of the key that encrypts its key metadata, and whether it is a master key."""
        return None if self.key is None else (self.key.encrypted_by, self.key.is_single)


@dataclass(slots=True, kw_only=True)
class ReachedManifest(ReachedTable):
    """A manifest."""

    manifest: ManifestFile  # row of the first manifest list that names it
    contradicted: bool = False  # whether another list gives it another length or other key metadata
    # Numbers of files and rows by status, according to its entries.
    counts: dict[int, tuple[int, int]] = field(default_factory=dict)
    files: list[ReachedFile] = field(default_factory=list)  # its files, except deleted ones


@dataclass(slots=True, kw_only=True)
class ReachedFile(Reached):
    """A data or delete file."""

    # First entry that names it; for a Puffin file one entry for each deletion vector; and entries
    # with another key or size than the first.
    entries: list[FileEntry]

    @property
    def entry(self) -> FileEntry:
        """The first entry that names it."""
        return self.entries[0]

    @property
    def records(self) -> int:
        """Number of rows or deleted rows according to its manifest."""
        return sum(entry.record_count for entry in self.entries)

    @property
    def encrypted_by(self) -> tuple[str, bool] | None:
        """The id of the key that encrypts its key metadata, and whether it is a master key.

        None if its key metadata is in plaintext within the manifest, or cannot be read.
        """
        return known_encrypting_key(self.entry.key_metadata)


class Inventory:
    """Everything that snapshots reach, in the order of discovery.

    It is filled from the top: manifest lists when it is made, then the manifests that each list
    names, then the files that each manifest names. Threads read; one thread alone adds. Items are
    told apart by their paths, because two locations may be spellings of one. The first row that
    names an item describes it, and rows that contradict it are kept for `verify`.
    """

    def __init__(self, walk: Walk, snapshots: Iterable[Snapshot]) -> None:
        self._walk = walk
        self._list_at: dict[tuple[str, str | None], ReachedList] = {}
        self._manifest_at: dict[str, ReachedManifest] = {}
        # Manifests by the ids of their rows, which manifest lists share, and these rows.
        self._manifest_of: dict[int, ReachedManifest] = {}
        self._rows: list[ManifestFile] = []
        self._file_at: dict[str, ReachedFile] = {}
        self._path_of: dict[str, tuple[str, Failure | None]] = {}  # by the latest locations
        for snapshot in snapshots:
            path, error = self._path(snapshot.manifest_list)
            if (known := self._list_at.get((path, snapshot.key_id))) is not None:
                known.snapshots.append(snapshot)
                continue
            self._list_at[path, snapshot.key_id] = ReachedList(
                number=len(self._list_at), kind="manifest list", location=snapshot.manifest_list,
                path=path, error=error, snapshots=[snapshot],
                key=walk.metadata.keys.get(snapshot.key_id or ""),
            )  # fmt: skip

    @property
    def lists(self) -> Collection[ReachedList]:
        """The manifest lists."""
        return self._list_at.values()

    @property
    def manifests(self) -> Collection[ReachedManifest]:
        """The manifests."""
        return self._manifest_at.values()

    @property
    def files(self) -> Collection[ReachedFile]:
        """The data and delete files."""
        return self._file_at.values()

    @property
    def tables(self) -> Iterator[ReachedTable]:
        """The manifest lists and manifests, which name all other files."""
        return chain(self.lists, self.manifests)

    @property
    def every(self) -> Iterator[Reached]:
        """All files."""
        return chain(self.lists, self.manifests, self.files)

    @property
    def kms_unavailable(self) -> bool:
        """True if the key service was unavailable for a manifest list or manifest."""
        return any(isinstance(reached.error, KmsUnavailableError) for reached in self.tables)

    @property
    def is_whole(self) -> bool:
        """True if every manifest list and manifest could be read."""
        return all(reached.error is None for reached in self.tables)

    def paths(self) -> set[str]:
        """Return the paths of all files, and of the statistics files that the version names."""
        statistics = map(self._path, self._walk.metadata.statistics())
        found = {path for path, error in statistics if error is None}
        return {*found, *(reached.path for reached in self.every)}

    # --- adding, in one thread ------------------------------------------------------------------

    def add_manifests(self, manifest_list: ReachedList, rows: list[ManifestFile]) -> None:
        """Add the manifests that a manifest list names."""
        known = self._manifest_of

        def add_rows(rows: list[ManifestFile]) -> list[ReachedManifest]:
            fresh = [row for row in rows if id(row) not in known]
            known.update((id(row), self._add_manifest(row)) for row in fresh)
            self._rows += fresh
            return list(map(known.__getitem__, map(id, rows)))

        manifest_list.manifests = make_once(rows, add_rows)

    def _add_manifest(self, row: ManifestFile) -> ReachedManifest:
        path, error = self._path(row.location)
        if (known := self._manifest_at.get(path)) is None:
            known = self._manifest_at[path] = ReachedManifest(
                number=len(self._manifest_at), error=error, manifest=row,
                kind="manifest" if row.content == DATA else "delete manifest",
                location=row.location, path=path, size=row.length,
                encrypted=row.key_metadata is not None,
            )  # fmt: skip
        elif (row.length, row.key_metadata) != (known.manifest.length, known.manifest.key_metadata):
            known.contradicted = True
        return known

    def add_files(self, manifest: ReachedManifest, entries: Iterable[FileEntry]) -> None:
        """Add the files that a manifest names."""
        files = [self._file(entry) for entry in entries if entry.is_live]
        manifest.files = list({id(file): file for file in files}.values())

    def _file(self, entry: FileEntry) -> ReachedFile:
        path, error = self._path(entry.location)
        if (known := self._file_at.get(path)) is None:
            vectors = entry.file_format == "PUFFIN"
            kind = "deletion vectors" if vectors else FILE_KINDS[entry.content]
            known = self._file_at[path] = ReachedFile(
                number=len(self._file_at), kind=kind, location=entry.location, path=path,
                size=entry.size, encrypted=entry.key_metadata is not None, error=error,
                entries=[entry],
            )  # fmt: skip
        elif not any(_is_same_file(entry, other) for other in known.entries):
            known.entries.append(entry)
        return known

    def _path(self, location: str) -> tuple[str, Failure | None]:
        if (known := self._path_of.get(location)) is None:
            if len(self._path_of) >= _MAX_PATHS:
                self._path_of.clear()
            try:
                path = self._walk.locations.key(location)
                known = location if path == location else path, None  # one text saves memory
            except FormatError as error:
                known = location, error
            self._path_of[location] = known
        return known


class Keys:
    """A source of files' key metadata that asks an unavailable key service only once per key."""

    def __init__(self, walk: Walk, failed: Mapping[str, Failure]) -> None:
        self.walk = walk
        self._failed = dict(failed)

    def of_list(self, snapshot: Snapshot) -> StandardKeyMetadata | None:
        """Return the key metadata of a manifest list. Raises the errors of `Walk.list_keys`."""
        entry = self.walk.metadata.keys.get(snapshot.key_id or "")
        key_id = None if entry is None else entry.encrypted_by
        return self._open_once(key_id, lambda: self.walk.list_keys(snapshot))

    def of_file(self, entry: FileEntry) -> StandardKeyMetadata | None:
        """Return the key metadata of a data or delete file. See `Walk.file_keys`."""
        key_id, _ = known_encrypting_key(entry.key_metadata) or (None, False)
        return self._open_once(key_id, lambda: self.walk.file_keys(entry))

    def fetch_lists(self, lists: Iterable[ReachedList]) -> None:
        """Have the keys of manifest lists unwrapped together; `of_list` reports failures."""
        entries = (reached.key for reached in lists if reached.key is not None)
        with contextlib.suppress(KmsUnavailableError):
            self.walk.resolver.fetch_entries(entries, self.walk.metadata)

    def fetch_files(self, files: Iterable[ReachedFile]) -> Iterator[ReachedFile]:
        """Yield files after their keys were unwrapped together; `of_file` reports failures."""
        left = iter(files)
        while group := list(itertools.islice(left, KEYS_AHEAD)):
            with contextlib.suppress(KmsUnavailableError):
                self.walk.fetch_file_keys(file.entry for file in group)
            yield from group

    def is_lost(self, encrypted_by: tuple[str, bool] | None) -> bool:
        """True if a key that encrypts key metadata is missing, which the table should have.

        `encrypted_by` has the key's id, and whether it is a master key; None if none is named.
        """
        if encrypted_by is None or encrypted_by[1]:
            return encrypted_by is None
        try:
            self.walk.resolver.find(encrypted_by[0], self.walk.metadata)
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
    keys: Keys, snapshots: Iterable[Snapshot], jobs: int,
    progress: Callable[[int], None] = lambda _: None, known: Container[str] = (),
) -> Inventory:  # fmt: skip
    """Read all manifest lists and manifests of snapshots, and list the files that they name.

    `jobs` files are read in parallel; this thread calls `progress` with the size of each file read.
    Manifests whose paths are `known` are listed, but not read.
    """
    inventory = Inventory(keys.walk, snapshots)
    for manifest, entries in read_manifests(keys, inventory, jobs, progress, known):
        inventory.add_files(manifest, entries)
    return inventory


def read_manifests(
    keys: Keys, inventory: Inventory, jobs: int, progress: Callable[[int], None] = lambda _: None,
    known: Container[str] = (),
) -> Iterator[tuple[ReachedManifest, ManifestEntries]]:  # fmt: skip
    """Read the manifest lists of an inventory; yield each manifest that they name, with its rows.

    For the arguments see `take_inventory`.
    """
    if not inventory.lists:  # as for nearly all older versions of an expiry
        return
    keys.fetch_lists(inventory.lists)
    known_lists, known_files = RepeatedRows[ManifestFile](), RepeatedRows[Values](_MAX_ROWS)

    def read_list(reached: ReachedList) -> tuple[ReachedList, list[ManifestFile]]:
        snapshot = reached.snapshots[0]
        return reached, _read_rows(
            keys.walk, reached, lambda: keys.of_list(snapshot),
            lambda avro: read_list_rows(avro, known_lists), [],
        )  # fmt: skip

    def read_manifest(reached: ReachedManifest) -> tuple[ReachedManifest, ManifestEntries]:
        manifest = reached.manifest
        return reached, _read_rows(
            keys.walk, reached, lambda: keys.walk.manifest_keys(manifest),
            lambda avro: read_manifest_rows(avro, manifest, known_files), ManifestEntries([]),
        )  # fmt: skip

    singly = any(item.key is not None and item.key.is_single for item in inventory.lists)
    for manifest_list, rows in _apply(keys.walk, read_list, inventory.lists, jobs, late=singly):
        inventory.add_manifests(manifest_list, rows)
        progress(manifest_list.size or 0)
    unread = [manifest for manifest in inventory.manifests if manifest.path not in known]
    for manifest, entries in _apply(keys.walk, read_manifest, unread, jobs):
        manifest.counts = entries.counts()
        yield manifest, entries
        progress(manifest.size or 0)


def _apply(
    walk: Walk, read: Callable[[T], R], items: Iterable[T], jobs: int, *, late: bool = False
) -> Iterator[R]:
    """Apply a function to items, in threads if the table's store or key service answers late.

    Decoding takes longer than reading a local file, and holds the interpreter's lock. The key
    service has to be asked for each item (`late`) only in single wrapping.
    """
    local = all(folder.filesystem is None for folder in walk.locations.folders.values())
    return map(read, items) if local and not late else in_threads(read, items, jobs)


def known_encrypting_key(metadata: bytes | None) -> tuple[str, bool] | None:
    """Return `encrypting_key`, or None for key metadata that names no key."""
    if metadata is not None and is_encrypted_metadata(metadata):
        with contextlib.suppress(KeyMaterialError):
            return encrypting_key(metadata)
    return None


def encrypted_part(metadata: bytes) -> bytes:
    """Return the encrypted part of key metadata in a manifest, which follows the key's id."""
    return metadata[3 + int.from_bytes(metadata[1:3], "big") :]


def mark_of(metadata: StandardKeyMetadata) -> Mark:
    """Return the mark of a file's data key; the hash is keyed, and the key is not kept."""
    return hash(metadata.key), metadata.aad_prefix or b""


# --- reading, in any thread ----------------------------------------------------------------------


def _read_rows(
    walk: Walk, reached: ReachedTable, find_keys: Callable[[], StandardKeyMetadata | None],
    parse: Callable[[AvroRows], R], nothing: R,
) -> R:  # fmt: skip
    """Read a manifest list or manifest; an error is kept with it, which then has nothing."""
    try:
        if (keys := find_keys()) is not None:
            reached.mark, reached.encrypted = mark_of(keys), True
            reached.size = reached.size or keys.file_length
        return _decrypt_rows(walk, reached, keys, parse)
    except (ModcryptError, OSError) as error:
        reached.error = error
    return nothing


@hide_frames  # because the plaintext holds keys
def _decrypt_rows(
    walk: Walk, reached: ReachedTable, keys: StandardKeyMetadata | None,
    parse: Callable[[AvroRows], R],
) -> R:  # fmt: skip
    location = reached.location
    if keys is None:
        data = walk.read(location, None, reached.size)
    else:
        with walk.reader(location, keys, reached.size) as reader:
            reached.tags = max(1, -(-reader.size // reader.block_length))
            reached.block_length = reader.block_length
            data = reader.read()
    reached.size = reached.size or len(data)
    avro = open_manifest(data, location)
    # Equal texts, which may be long, are shared.
    reached.header = {
        key: sys.intern(avro.metadata[key]) for key in _HEADER_MEMBERS if key in avro.metadata
    }
    return parse(avro)


_HEADER_MEMBERS = (
    "snapshot-id", "sequence-number", "schema", "partition-spec", "partition-spec-id",
)  # fmt: skip


def _is_same_file(entry: FileEntry, other: FileEntry) -> bool:
    return (
        entry.size == other.size
        and entry.record_count == other.record_count
        and entry.key_metadata == other.key_metadata
        and entry.file_format == other.file_format
        and entry.file == other.file
    )

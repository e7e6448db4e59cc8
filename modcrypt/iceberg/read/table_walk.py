"""Walk through a table: metadata.json, manifest list, manifests, data files.

    metadata.json -> a snapshot's key-id -> encryption-keys -> KEK -> key service
      -> key metadata of the manifest list -> manifest list (AGS1)
      -> its field 519 -> manifest (AGS1) -> its field 131 -> Parquet (PME), Avro, Puffin (AGS1)

Each step yields the keys of the next, and its trusted length: a file with another length is refused
before it is read. Plaintext after an encrypted step is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import attrgetter

from modcrypt.ags1.layout import MAGIC
from modcrypt.ags1.reader import Ags1Reader
from modcrypt.errors import (
    FormatError,
    KeyMaterialError,
    KeyNotFoundError,
    LimitError,
    PlaintextError,
    TruncationError,
)
from modcrypt.iceberg.format.library_errors import as_format_errors
from modcrypt.iceberg.format.locations import Locations
from modcrypt.iceberg.format.manifest_rows.file_entries import FileEntry
from modcrypt.iceberg.format.manifests import (
    Choose,
    ManifestFile,
    read_manifest,
    read_manifest_list,
)
from modcrypt.iceberg.format.table_metadata import Snapshot, TableMetadata
from modcrypt.iceberg.keys.key_resolver import KeyResolver
from modcrypt.io.places import Place
from modcrypt.io.sources import Source, open_source_at
from modcrypt.keys.metadata import StandardKeyMetadata
from modcrypt.runtime.tracebacks import hide_frames

_LOST = " (Iceberg 1.11 encrypts deletion vectors and loses their keys: read an older snapshot)"

KEYS_AHEAD = 200
"""Number of files whose wrapped keys are requested together, as many as Vault unwraps at once."""

MAX_READ = 2 << 30
"""Maximum size in bytes of plaintext that is read into memory: a manifest, or an Avro data file."""


@dataclass(frozen=True)
class Walk:
    """A walk through one version of a table.

    The keys of a file come from what names it, and are found before the file is opened. A file
    without keys must be allowed to be in plaintext, and must not begin as an encrypted one does.
    Its length is compared with what names it before a byte is decrypted.
    """

    metadata: TableMetadata
    locations: Locations
    resolver: KeyResolver
    encrypted: bool = True  # whether everything must be encrypted; False accepts plaintext
    # Function that returns whether readers leave a data or delete file out, because it is erased:
    # its key is gone on purpose. None for none.
    leaves_out: Callable[[FileEntry], bool] | None = None

    def through(self, metadata: TableMetadata) -> Walk:
        """Return a walk through another version of the same table."""
        return replace(self, metadata=metadata)

    def is_left_out(self, entry: FileEntry) -> bool:
        """Return whether a data or delete file is erased, so that its key is gone on purpose."""
        return self.leaves_out is not None and self.leaves_out(entry)

    def list_keys(self, snapshot: Snapshot) -> StandardKeyMetadata | None:
        """Return the key metadata of a snapshot's manifest list; None if it is in plaintext.

        Raise PlaintextError if the manifest list is in plaintext and must not be; and
        KeyRetrievalError if its key is not available.
        """
        if snapshot.key_id is None:
            self._check_plaintext_allowed(f"snapshot {snapshot.id} has no key-id")
            return None
        if (entry := self.metadata.keys.get(snapshot.key_id)) is None:
            raise KeyNotFoundError(
                f"snapshot {snapshot.id}: its key {snapshot.key_id} is not in encryption-keys"
            )
        return self.resolver.decrypt_entry(entry, self.metadata)

    def manifest_keys(self, manifest: ManifestFile) -> StandardKeyMetadata | None:
        """Return the key metadata of a manifest with its trusted length. See `list_keys`."""
        if manifest.key_metadata is None:
            self._check_plaintext_allowed(f"{manifest.location}: the manifest has no key metadata")
            return None
        found = _decode_key_metadata(manifest.key_metadata, manifest.location)
        return _with_length(found, manifest.length, manifest.location)

    def file_keys(self, entry: FileEntry) -> StandardKeyMetadata | None:
        """Return the key metadata of a data or delete file. Raises the errors of `list_keys`."""
        if entry.key_metadata is None:
            vector = entry.file_format == "PUFFIN"
            self._check_plaintext_allowed(
                f"{entry.location}: the file has no key metadata{_LOST * vector}"
            )
            return None
        try:
            found = self.resolver.open_metadata(entry.key_metadata, self.metadata)
        except FormatError as error:
            raise KeyMaterialError(f"{entry.location}: {error}") from None
        return _with_length(found, entry.size, entry.location)

    def fetch_file_keys(self, entries: Iterable[FileEntry]) -> None:
        """Have the keys of files unwrapped together, so that `file_keys` takes them."""
        data = (entry.key_metadata for entry in entries)
        self.resolver.fetch_metadata((item for item in data if item is not None), self.metadata)

    def _check_plaintext_allowed(self, what: str) -> None:
        if self.encrypted:
            raise PlaintextError(
                f"{what}, but this table must be encrypted: it was written without a key, or "
                "its key was removed so that plaintext is read"
            )

    def manifests(self, snapshot: Snapshot) -> list[ManifestFile]:
        """Read a snapshot's manifest list.

        Raise ModcryptError if the file is not available, or is not what was written.
        """
        return self.manifests_by(self.list_keys(snapshot), snapshot)

    @hide_frames
    def manifests_by(
        self, keys: StandardKeyMetadata | None, snapshot: Snapshot
    ) -> list[ManifestFile]:
        """Read a manifest list with known key metadata. Raises the errors of `manifests`."""
        data = self.read(snapshot.manifest_list, keys)
        encrypted = keys is not None  # or its header says what anybody likes
        return read_manifest_list(data, snapshot.manifest_list, snapshot if encrypted else None)

    def entries(self, manifest: ManifestFile) -> list[FileEntry]:
        """Read a manifest.

        Raises:
            IntegrityError: The table's metadata has another schema or partition spec than the one
                that the manifest was written with.
            ModcryptError: The manifest is not available, or is not what was written.
        """
        return list(self.entries_where(manifest, None))

    @hide_frames
    def entries_where(self, manifest: ManifestFile, choose: Choose | None) -> Iterator[FileEntry]:
        """Read a manifest and check it; return the entries of rows that `choose` returns.

        They are made when they are needed. Raises the errors of `entries`.
        """
        keys = self.manifest_keys(manifest)
        data = self.read(manifest.location, keys, manifest.length)
        encrypted = keys is not None  # or its header says what anybody likes
        metadata = self.metadata if encrypted else None
        return read_manifest(data, manifest, manifest.location, metadata, choose)

    def all_entries(self) -> Iterator[FileEntry]:
        """Yield the entries of the files of all snapshots; each manifest is read once."""
        lists = map(self.manifests, self.metadata.snapshots)
        manifests = {each.location: each for found in lists for each in found}
        for manifest in manifests.values():
            yield from filter(attrgetter("is_live"), self.entries(manifest))

    def check_specs(self, manifests: Iterable[ManifestFile]) -> None:
        """Check partition specs by reading the newest manifest of each. See `entries`."""
        by_age = sorted(manifests, key=lambda manifest: manifest.sequence_number)
        for newest in {manifest.spec_id: manifest for manifest in by_age}.values():
            self.entries(newest)

    def read(
        self, location: str, keys: StandardKeyMetadata | None, length: int | None = None, *,
        start: int = 0, size: int | None = None,
    ) -> bytes:  # fmt: skip
        """Return the plaintext of an AGS1 file or of a file in plaintext, completely or in part.

        `keys` is None for a file in plaintext; `length` is its trusted length, if `keys` has none.
        `start` and `size` are in bytes of plaintext; None for the rest.

        Raises:
            LimitError: The part exceeds the size limit.
            FormatError: The file has no such part.
            ModcryptError: The file is not available, or is not what was written.
        """
        with as_format_errors(location):
            if keys is None:
                with self.open_stored(location, length) as source:
                    magic = source.read_at(0, min(len(MAGIC), source.size))
                    check_not_encrypted(magic, MAGIC, location)
                    return source.read_at(start, _part_size(source.size, start, size, location))
            with self.reader(location, keys, length) as reader:
                return reader.read_at(start, _part_size(reader.size, start, size, location))

    def reader(
        self, location: str, keys: StandardKeyMetadata, length: int | None = None
    ) -> Ags1Reader:
        """Open an AGS1 file; its plaintext is a seekable file object."""
        if keys.file_length is None and length is None:
            raise KeyMaterialError(
                f"{location}: its key metadata has no length, so that truncation of the file "
                "could not be detected"
            )
        keys = keys if keys.file_length is not None else keys.with_length(length or 0)
        place = self.locations.place(location)
        return Ags1Reader(place.path, keys, filesystem=place.filesystem)

    @contextmanager
    def open_stored(self, location: str, length: int | None) -> Iterator[Source]:
        """Open a file as stored; raise TruncationError if it has another length."""
        with open_source_at(self.place(location)) as source:
            if length is not None and source.size != length:
                raise TruncationError(
                    f"{location}: the file has {source.size} bytes, its manifest says {length}"
                )
            yield source

    def place(self, location: str) -> Place:
        """Return the place of a file."""
        return self.locations.place(location)


def _part_size(whole: int, start: int, size: int | None, name: str) -> int:
    """Return the size of a part of a file; raise if the file has no such part."""
    if size is None:
        size = whole - start
    if not 0 <= start <= whole - size or size < 0:
        raise FormatError(f"{name}: the file has no part at this offset with this size")
    if size > MAX_READ:
        raise LimitError(f"{name}: more than {MAX_READ} bytes would be read into memory")
    return size


@hide_frames
def _decode_key_metadata(data: bytes, name: str) -> StandardKeyMetadata:
    try:
        return StandardKeyMetadata.decode(data)
    except FormatError as error:
        raise KeyMaterialError(f"{name}: {error}") from None


def _with_length(keys: StandardKeyMetadata, length: int, name: str) -> StandardKeyMetadata:
    """Return key metadata with the manifest's length; both are authenticated, and must agree."""
    if keys.file_length is not None and keys.file_length != length:
        raise TruncationError(
            f"{name}: its key metadata says {keys.file_length} bytes, its manifest {length}"
        )
    return keys if keys.file_length is not None else keys.with_length(length)


def check_not_encrypted(magic: bytes, encrypted: bytes, name: str) -> None:
    """Raise if the magic bytes of a file without key metadata are those of an encrypted one."""
    if magic == encrypted:
        raise KeyNotFoundError(
            f"{name}: the file is encrypted, but the table has no key metadata for it"
        )

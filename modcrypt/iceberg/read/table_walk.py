"""The walk through a table: metadata.json, manifest list, manifests, data files.

    metadata.json -> a snapshot's key-id -> encryption-keys -> KEK -> key service
      -> key metadata of the manifest list -> manifest list (AGS1)
      -> its field 519 -> manifest (AGS1) -> its field 131 -> Parquet (PME), Avro, Puffin (AGS1)

Each step gives the keys of the next, and its trusted length: a file that is longer or shorter is
refused before it is read. What is in plaintext where the step before was sealed is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

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
from modcrypt.iceberg.format.manifests import (
    FileEntry,
    ManifestFile,
    read_manifest,
    read_manifest_list,
)
from modcrypt.iceberg.format.table_metadata import Snapshot, TableMetadata
from modcrypt.iceberg.keys.key_resolver import KeyResolver
from modcrypt.io.storage import Place, Source
from modcrypt.key_metadata import StandardKeyMetadata
from modcrypt.tracebacks import hide_frames

__all__ = ["Walk"]

_LOST = " (Iceberg 1.11 seals deletion vectors and loses their keys: read an older snapshot)"

MAX_READ = 2 << 30
"""Bytes of plaintext that are read into memory at once: of a manifest, or an Avro data file."""


@dataclass(frozen=True)
class Walk:
    """Walks one version of a table.

    Attributes:
        metadata: the version.
        locations: where its files are.
        resolver: opens what seals their keys.
        encrypted: whether everything must be; False takes plaintext for what it is.
    """

    metadata: TableMetadata
    locations: Locations
    resolver: KeyResolver
    encrypted: bool = True

    def through(self, metadata: TableMetadata) -> Walk:
        """Give the walk through another version of the same table."""
        return replace(self, metadata=metadata)

    # --- keys -----------------------------------------------------------------------------------

    def list_keys(self, snapshot: Snapshot) -> StandardKeyMetadata | None:
        """Give the key metadata of a snapshot's manifest list; None if it is in plaintext.

        Raises:
            PlaintextError: it is, and must not be.
            KeyRetrievalError: its key can't be had.
        """
        if snapshot.key_id is None:
            self._may_be_plain(f"snapshot {snapshot.id} has no key-id")
            return None
        entry = self.metadata.keys.get(snapshot.key_id)
        if entry is None:
            raise KeyNotFoundError(
                f"snapshot {snapshot.id}: its key {snapshot.key_id} is not among encryption-keys"
            )
        return self.resolver.open_entry(entry, self.metadata)

    def manifest_keys(self, manifest: ManifestFile) -> StandardKeyMetadata | None:
        """Give the key metadata of a manifest, with its trusted length; raises as `list_keys`."""
        if manifest.key_metadata is None:
            self._may_be_plain(f"{manifest.location}: the manifest has no key metadata")
            return None
        found = _decoded(manifest.key_metadata, manifest.location)
        return _with_length(found, manifest.length, manifest.location)

    def file_keys(self, entry: FileEntry) -> StandardKeyMetadata | None:
        """Give the key metadata of a data or delete file; raises as `list_keys`."""
        if entry.key_metadata is None:
            vector = entry.file_format == "PUFFIN"
            self._may_be_plain(f"{entry.location}: the file has no key metadata{_LOST * vector}")
            return None
        try:
            found = self.resolver.open_metadata(entry.key_metadata, self.metadata)
        except FormatError as error:
            raise KeyMaterialError(f"{entry.location}: {error}") from None
        return _with_length(found, entry.size, entry.location)

    def _may_be_plain(self, what: str) -> None:
        if self.encrypted:
            raise PlaintextError(
                f"{what}, and this table is to be encrypted: it was made so, or somebody took the "
                "key away to have plaintext read"
            )

    # --- files ----------------------------------------------------------------------------------

    def manifests(self, snapshot: Snapshot) -> list[ManifestFile]:
        """Read a snapshot's manifest list.

        Raises:
            ModcryptError: it can't be had, or is not what was written.
            OSError: from the file system.
        """
        return self.manifests_by(self.list_keys(snapshot), snapshot)

    @hide_frames
    def manifests_by(
        self, keys: StandardKeyMetadata | None, snapshot: Snapshot
    ) -> list[ManifestFile]:
        """Read a manifest list whose key metadata is known; raises as `manifests`."""
        data = self.read(snapshot.manifest_list, keys)
        sealed = keys is not None  # or its header says what anybody likes
        return read_manifest_list(data, snapshot.manifest_list, snapshot if sealed else None)

    @hide_frames
    def entries(self, manifest: ManifestFile) -> list[FileEntry]:
        """Read a manifest.

        Raises:
            IntegrityError: the table's metadata has another schema or partition spec than the
                manifest was written under.
            ModcryptError, OSError: as `manifests`.
        """
        keys = self.manifest_keys(manifest)
        data = self.read(manifest.location, keys, manifest.length)
        sealed = keys is not None  # or its header says what anybody likes
        return read_manifest(data, manifest, manifest.location, self.metadata if sealed else None)

    def check_specs(self, manifests: Iterable[ManifestFile]) -> None:
        """Check the partition specs of manifests by reading one of each, the newest.

        Raises:
            ModcryptError, OSError: as `entries`.
        """
        by_age = sorted(manifests, key=lambda one: one.sequence_number)
        for newest in {one.spec_id: one for one in by_age}.values():
            self.entries(newest)

    def read(
        self,
        location: str,
        keys: StandardKeyMetadata | None,
        length: int | None = None,
        *,
        start: int = 0,
        size: int | None = None,
    ) -> bytes:
        """Give the plaintext of an AGS1 file, or of a file in plaintext: all of it, or a part.

        Args:
            location: of the file.
            keys: its key metadata; None for a file in plaintext.
            length: the trusted length, if the key metadata has none.
            start, size: of the part, in bytes of plaintext; None for the rest.

        Raises:
            LimitError: it is larger than any that is read at once.
            FormatError: it has no such part.
            ModcryptError: it can't be had, or is not what was written.
            OSError: from the file system.
        """
        with as_format_errors(location):
            if keys is None:
                with self.opened(location, length) as source:
                    _check_plain(source, location)
                    return source.read_at(start, _part(source.size, start, size, location))
            with self.reader(location, keys, length) as reader:
                return reader.read_at(start, _part(reader.size, start, size, location))

    def reader(
        self, location: str, keys: StandardKeyMetadata, length: int | None = None
    ) -> Ags1Reader:
        """Open an AGS1 file; its plaintext is a seekable file object."""
        if keys.file_length is None and length is None:
            raise KeyMaterialError(
                f"{location}: its key metadata has no length, so that nobody can tell whether "
                "the file was cut short"
            )
        keys = keys if keys.file_length is not None else keys.with_length(length or 0)
        place = self.locations.place(location)
        return Ags1Reader(place.path, keys, filesystem=place.filesystem)

    @contextmanager
    def opened(self, location: str, length: int | None) -> Iterator[Source]:
        """Open a file as it is stored.

        Raises:
            TruncationError: it has another length.
        """
        with self.place(location).open() as source:
            if length is not None and source.size != length:
                raise TruncationError(
                    f"{location}: the file has {source.size} bytes, its manifest says {length}"
                )
            yield source

    def place(self, location: str) -> Place:
        """Give the place of a file; raises as `Locations.place`."""
        return self.locations.place(location)


def _part(whole: int, start: int, size: int | None, name: str) -> int:
    """Give the size of a part of a file, if it has that."""
    if size is None:
        size = whole - start
    if not 0 <= start <= whole - size or size < 0:
        raise FormatError(f"{name}: a part of it is named that it does not have")
    if size > MAX_READ:
        raise LimitError(f"{name}: more than {MAX_READ} bytes")
    return size


@hide_frames
def _decoded(data: bytes, name: str) -> StandardKeyMetadata:
    try:
        return StandardKeyMetadata.decode(data)
    except FormatError as error:
        raise KeyMaterialError(f"{name}: {error}") from None


def _with_length(keys: StandardKeyMetadata, length: int, name: str) -> StandardKeyMetadata:
    """Hold the length that key metadata has against that of the manifest; both are sealed."""
    if keys.file_length is not None and keys.file_length != length:
        raise TruncationError(
            f"{name}: its key metadata says {keys.file_length} bytes, its manifest {length}"
        )
    return keys if keys.file_length is not None else keys.with_length(length)


def _check_plain(source: Source, name: str) -> None:
    """Say what is wrong with a file that is sealed, and has no key metadata."""
    if source.size >= len(MAGIC) and source.read_at(0, len(MAGIC)) == MAGIC:
        raise KeyNotFoundError(f"{name}: the file is encrypted, and no key metadata is kept for it")

"""The nodes of a key tree: keys of a table and the files that they decrypt. It contains no keys."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from modcrypt.iceberg.verify.table_findings import TableKek
from modcrypt.runtime.fork_safety import cached_property


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeKek(TableKek):
    """A KEK of the tree."""

    version: str | None  # version of its master key, if the wrapped key contains it
    lists: int  # number of manifest lists whose keys it encrypts
    error: str | None  # reason why the key service did not unwrap it; None if it did


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeList:
    """A manifest list."""

    # Location and size of the file; the size is None if it cannot be read.
    location: str
    size: int | None
    snapshots: tuple[int, ...]  # ids of the snapshots that have this list
    # Sequence number and time of the first of these snapshots.
    sequence_number: int
    timestamp_ms: int
    current: bool  # whether the current snapshot is among them
    key_id: str | None  # id of its entry in `encryption-keys`; None in plaintext
    # Id of the KEK that encrypts its key metadata, or of the master key if `single`.
    sealed_by: str | None
    single: bool  # whether a master key wraps its key directly
    version: str | None  # version of that master key, if known
    manifests: tuple[int, ...] = field(repr=False)  # numbers of its manifests in the tree
    error: str | None  # reason why it could not be read; None if it could


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeManifest:
    """A manifest."""

    kind: str  # `manifest` or `delete manifest`
    # Location and size of the file.
    location: str
    size: int
    encrypted: bool  # whether the manifest is encrypted
    files: tuple[int, ...] = field(repr=False)  # numbers of its files in the tree
    error: str | None  # reason why it could not be read; None if it could


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeFile:
    """A data or delete file."""

    kind: str  # kind of file; see `ReachedFile`
    # Location, size and number of records of the file.
    location: str
    size: int
    records: int
    encrypted: bool  # whether the file has key metadata
    # Id of the KEK or master key that encrypts its key metadata in the manifest; None for plaintext
    # key metadata.
    sealed_by: str | None
    single: bool  # whether that key is a master key
    version: str | None  # version of that master key, if known


@dataclass(frozen=True, kw_only=True)
class KeyTreeNodes:
    """The keys of a table, and the files that they decrypt."""

    # Location and UUID of the table.
    location: str
    uuid: str
    master_key_id: str | None  # id of the master key for new keys
    # Nodes of the tree; lists refer to manifests, and manifests to files, by number.
    keks: tuple[TreeKek, ...] = field(repr=False)
    lists: tuple[TreeList, ...] = field(repr=False)
    manifests: tuple[TreeManifest, ...] = field(repr=False)
    files: tuple[TreeFile, ...] = field(repr=False)
    unused: tuple[str, ...] = field(repr=False)  # ids of `encryption-keys` that nothing uses
    whole: bool  # whether every manifest list and manifest could be read
    kms_unavailable: bool = False  # whether reading failed because the key service was unavailable

    @cached_property
    def master_key_ids(self) -> tuple[str, ...]:
        """Ids of all master keys in use, the table's own first."""
        ids = dict.fromkeys([self.master_key_id] if self.master_key_id else [])
        ids |= dict.fromkeys(kek.master_key_id for kek in self.keks)
        single: list[TreeList | TreeFile] = [*self.lists, *self.files]
        ids |= dict.fromkeys(
            item.sealed_by for item in single if item.single and item.sealed_by is not None
        )
        return tuple(ids)

    def beneath(self, lists: Iterable[TreeList]) -> tuple[set[int], set[int]]:
        """Return the numbers of the manifests and files that manifest lists lead to."""
        manifests = {number for manifest_list in lists for number in manifest_list.manifests}
        return manifests, {file for number in manifests for file in self.manifests[number].files}

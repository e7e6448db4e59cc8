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
    """A manifest list.

    Attributes:
        location, size: Location and size of the file; the size is None if it cannot be read.
        snapshots: Ids of the snapshots that have this list.
        sequence_number, timestamp_ms: Sequence number and time of the first of these snapshots.
        current: Whether the current snapshot is among them.
        key_id: Id of its entry in `encryption-keys`; None in plaintext.
        sealed_by: Id of the KEK that encrypts its key metadata, or of the master key if `single`.
        single: Whether a master key wraps its key directly.
        version: Version of that master key, if known.
        manifests: Numbers of its manifests in the tree.
        error: Reason why it could not be read; None if it could.
    """

    location: str
    size: int | None
    snapshots: tuple[int, ...]
    sequence_number: int
    timestamp_ms: int
    current: bool
    key_id: str | None
    sealed_by: str | None
    single: bool
    version: str | None
    manifests: tuple[int, ...] = field(repr=False)
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeManifest:
    """A manifest.

    Attributes:
        kind: `manifest` or `delete manifest`.
        location, size: Location and size of the file.
        encrypted: Whether the manifest is encrypted.
        files: Numbers of its files in the tree.
        error: Reason why it could not be read; None if it could.
    """

    kind: str
    location: str
    size: int
    encrypted: bool
    files: tuple[int, ...] = field(repr=False)
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeFile:
    """A data or delete file.

    Attributes:
        kind: Kind of file; see `ReachedFile`.
        location, size, records: Location, size and number of records of the file.
        encrypted: Whether the file has key metadata.
        sealed_by: Id of the KEK or master key that encrypts its key metadata in the manifest; None
            for plaintext key metadata.
        single: Whether that key is a master key.
        version: Version of that master key, if known.
    """

    kind: str
    location: str
    size: int
    records: int
    encrypted: bool
    sealed_by: str | None
    single: bool
    version: str | None


@dataclass(frozen=True, kw_only=True)
class KeyTreeNodes:
    """The keys of a table, and the files that they decrypt.

    Attributes:
        location, uuid: Location and UUID of the table.
        master_key_id: Id of the master key for new keys.
        keks, lists, manifests, files: Nodes of the tree; lists refer to manifests, and manifests to
            files, by number.
        unused: Ids of `encryption-keys` that nothing uses.
        whole: Whether every manifest list and manifest could be read.
        kms_unavailable: Whether reading failed because the key service was unavailable.
    """

    location: str
    uuid: str
    master_key_id: str | None
    keks: tuple[TreeKek, ...] = field(repr=False)
    lists: tuple[TreeList, ...] = field(repr=False)
    manifests: tuple[TreeManifest, ...] = field(repr=False)
    files: tuple[TreeFile, ...] = field(repr=False)
    unused: tuple[str, ...] = field(repr=False)
    whole: bool
    kms_unavailable: bool = False

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

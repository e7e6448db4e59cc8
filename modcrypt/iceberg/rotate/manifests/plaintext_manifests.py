"""Find manifests of an encrypted table that are in plaintext, and what vouches for their entries.

Spark's action that rewrites manifests writes such ones with Iceberg 1.11 (apache/iceberg#17991).
The encrypted manifest list authenticates their location, length, numbers of files and rows, and the
snapshot that added them, but not their content: anyone who can write to the table's folder can put
other entries, with keys of their own, in their place.

Rewriting manifests changes no file. So the entries are those of the snapshot before, in manifests
that are encrypted, or in plaintext manifests for which a still older snapshot vouches. Entries are
taken from there; a plaintext manifest only says which of them it groups. The id of the snapshot
before comes from the header of the encrypted manifest list, and not from metadata.json, which
nothing signs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeAlias

from modcrypt.errors import (
    FormatError,
    IntegrityError,
    KmsUnavailableError,
    ModcryptError,
    PlaintextError,
)
from modcrypt.iceberg.format.avro_files import open_avro
from modcrypt.iceberg.format.manifest_rows.file_entries import DATA, FileEntry
from modcrypt.iceberg.format.manifests import ManifestFile
from modcrypt.iceberg.format.table_metadata import Snapshot
from modcrypt.iceberg.read.table_walk import Walk
from modcrypt.iceberg.write.manifest_writing import LiveEntry, live_entries

_FileId: TypeAlias = tuple[str, int | None, int]
"""Path of a file, offset of a deletion vector in it, and partition spec."""


class NotVouchedError(Exception):
    """Nothing authentic says which entries a plaintext manifest has."""


def is_plaintext(manifest: ManifestFile) -> bool:
    """Return whether a manifest has no key in the manifest list."""
    return manifest.row.get("key_metadata") is None


def read_registered(walk: Walk, manifest: ManifestFile) -> list[FileEntry]:
    """Read a manifest, or one in plaintext whose files are all data files in plaintext.

    Spark's `add_files` writes such ones with Iceberg 1.12: nothing but their location, length and
    numbers is authentic, as nothing of their files is; see `check_registered`. Raise PlaintextError
    if a manifest in plaintext names other files, and as `Walk.entries` and `Vouching.read_claims`.
    """
    if not is_plaintext(manifest):
        return walk.entries(manifest)
    entries = replace(walk, encrypted=False).entries(manifest)
    _check_counts(manifest, live_entries(manifest, entries))
    if any(entry.key_metadata is not None or entry.content != DATA for entry in entries):
        raise PlaintextError(
            f"{manifest.location}: the manifest is in plaintext, but its files are encrypted, or "
            "delete rows; repair_manifests (modcrypt iceberg admin repair) encrypts it"
        )
    return entries


def check_registered(
    walk: Walk,
    snapshots: Iterable[Sequence[ManifestFile]],
    entries: Mapping[str, Sequence[FileEntry]],
) -> None:
    """Raise IntegrityError if a plaintext manifest names an encrypted file, or one of its snapshot.

    Otherwise anyone who can write to the folder could repeat rows, or show those of a branch
    elsewhere. `snapshots` has the manifests of each, `entries` those of each manifest.
    """
    key = walk.locations.key
    live = {place: [entry for entry in found if entry.is_live] for place, found in entries.items()}
    encrypted = {
        key(entry.location) for entry in chain(*live.values()) if entry.key_metadata is not None
    }
    for manifests in snapshots:
        count = Counter(key(e.location) for each in manifests for e in live[each.location])
        for each in filter(is_plaintext, manifests):
            for path in (key(entry.location) for entry in live[each.location]):
                if count[path] > 1 or path in encrypted:
                    raise IntegrityError(
                        f"{path}: a plaintext manifest names this file, and so does another entry: "
                        "the manifest was altered, or the file was registered twice"
                    )


@dataclass
class Vouching:
    """A search for the entries of plaintext manifests in encrypted ones; reads each file once."""

    walk: Walk
    _lists: dict[int, list[ManifestFile]] = field(default_factory=dict, repr=False)
    _claims: dict[str, list[LiveEntry]] = field(default_factory=dict, repr=False)
    _live: dict[int, dict[_FileId, LiveEntry]] = field(default_factory=dict, repr=False)
    _checked: set[int] = field(default_factory=set, repr=False)

    def __post_init__(self) -> None:
        self.walk = replace(self.walk, encrypted=True)

    def manifests(self, snapshot: Snapshot) -> list[ManifestFile]:
        """Return the manifests of a snapshot. Raises as `Walk.manifests`."""
        if snapshot.id not in self._lists:
            self._lists[snapshot.id] = self.walk.manifests(snapshot)
        return self._lists[snapshot.id]

    def read_claims(self, manifest: ManifestFile) -> list[LiveEntry]:
        """Return the live entries of a plaintext manifest, for which nothing vouches.

        Raise IntegrityError if the manifest list, which is encrypted, has other numbers.
        """
        if manifest.location not in self._claims:
            live = _live_entries(replace(self.walk, encrypted=False), manifest)
            _check_counts(manifest, live)
            self._claims[manifest.location] = live
        return self._claims[manifest.location]

    def find_entries(
        self, manifest: ManifestFile, beside: Sequence[ManifestFile]
    ) -> list[LiveEntry]:
        """Return the entries of a plaintext manifest as encrypted manifests have them.

        `beside` are the manifests of the snapshot that is read, `manifest` among them. Raise
        NotVouchedError if nothing authentic says which entries the manifest has, and IntegrityError
        if the manifest was altered.
        """
        added = self._find_snapshot(manifest.added_snapshot_id)
        names = {other.location for other in beside}
        for other in self.manifests(added):
            # Entries could be moved between manifests, from one that has been replaced since.
            own = other.added_snapshot_id == added.id
            if is_plaintext(other) and own and other.location not in names:
                raise NotVouchedError("a later snapshot replaced another manifest of that rewrite")
        before = self._read_live(self._parent(added))
        if added.id not in self._checked:
            self._check_same_files(added, before)
            self._checked.add(added.id)
        return [before[self._id(entry)] for entry, _ in self.read_claims(manifest)]

    def _check_same_files(self, added: Snapshot, before: dict[_FileId, LiveEntry]) -> None:
        """Raise IntegrityError if a rewrite of manifests has other files than the snapshot before.

        An entry moved to a manifest that the rewrite did not make is also detected: encrypted
        manifests count with their own entries, plaintext ones with what they claim.
        """
        if self._count_files(added) != Counter(before.keys()):
            raise IntegrityError(
                f"snapshot {added.id}: its plaintext manifests name other files than the snapshot "
                "before it: they were altered, or the snapshot is not a rewrite of manifests"
            )

    def check_unique(self, snapshot: Snapshot) -> None:
        """Raise IntegrityError if the manifests of a snapshot name a file twice."""
        twice = [path for (path, *_), count in self._count_files(snapshot).items() if count > 1]
        if twice:
            raise IntegrityError(
                f"{twice[0]}: two entries of snapshot {snapshot.id} name this file: a plaintext "
                "manifest was altered"
            )

    def _count_files(self, snapshot: Snapshot) -> Counter[_FileId]:
        """Count the live entries of each file; those of plaintext manifests are only claims."""
        files = Counter[_FileId]()
        for manifest in self.manifests(snapshot):
            plain = is_plaintext(manifest)
            live = self.read_claims(manifest) if plain else _live_entries(self.walk, manifest)
            files.update(self._id(entry) for entry, _ in live)
        return files

    def _read_live(self, snapshot: Snapshot) -> dict[_FileId, LiveEntry]:
        """Return the live entries of a snapshot, all of them vouched for."""
        if snapshot.id not in self._live:
            live: dict[_FileId, LiveEntry] = {}
            try:
                for manifest in self.manifests(snapshot):
                    for entry in self._read_vouched(manifest, self.manifests(snapshot)):
                        live[self._id(entry[0])] = entry
            except (IntegrityError, KmsUnavailableError):
                raise
            except (ModcryptError, FileNotFoundError) as error:
                raise NotVouchedError(f"snapshot {snapshot.id} cannot be read: {error}") from None
            self._live[snapshot.id] = live
        return self._live[snapshot.id]

    def _read_vouched(
        self, manifest: ManifestFile, beside: Sequence[ManifestFile]
    ) -> list[LiveEntry]:
        if is_plaintext(manifest):
            return self.find_entries(manifest, beside)
        return _live_entries(self.walk, manifest)

    def _parent(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot before another, as the header of its manifest list has it."""
        data = self.walk.read(snapshot.manifest_list, self.walk.list_keys(snapshot))
        named = open_avro(data, snapshot.manifest_list).metadata.get("parent-snapshot-id", "")
        if not named.isdecimal():
            raise NotVouchedError("its manifest list names no snapshot before it")
        parent = self._find_snapshot(int(named))
        if parent.sequence_number >= snapshot.sequence_number:
            raise NotVouchedError(f"snapshot {parent.id} is not older than snapshot {snapshot.id}")
        return parent

    def _find_snapshot(self, snapshot_id: int) -> Snapshot:
        try:
            return self.walk.metadata.snapshot(snapshot_id)
        except FormatError:
            raise NotVouchedError(f"snapshot {snapshot_id} is no longer in the table") from None

    def _id(self, entry: FileEntry) -> _FileId:
        path = self.walk.locations.key(entry.location)
        return path, entry.file.get("content_offset"), entry.spec_id


def _live_entries(walk: Walk, manifest: ManifestFile) -> list[LiveEntry]:
    return live_entries(manifest, walk.entries(manifest))


def _check_counts(manifest: ManifestFile, live: Sequence[LiveEntry]) -> None:
    """Compare what a plaintext manifest claims with its row in the encrypted manifest list."""
    row = manifest.row
    files = (row.get("added_files_count") or 0) + (row.get("existing_files_count") or 0)
    rows = (row.get("added_rows_count") or 0) + (row.get("existing_rows_count") or 0)
    if (files, rows) != (len(live), sum(entry.record_count for entry, _ in live)):
        raise IntegrityError(
            f"{manifest.location}: the manifest has other numbers of files or rows than the "
            "manifest list says: it was altered"
        )

"""Find manifests of a table that contain encrypted key metadata, and the keys that encrypt it.

Tables whose KEKs encrypt only keys of manifest lists, such as those of Java, have no such
manifests; their manifests are not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from modcrypt.iceberg.format.manifest_rows.file_entries import FileEntry
from modcrypt.iceberg.format.manifests import ManifestFile
from modcrypt.iceberg.format.table_metadata import EncryptedKey, Snapshot, TableMetadata
from modcrypt.iceberg.keys.key_policies import FILES_SCOPE, KEKS_SINCE, SINGLES, partition_scope
from modcrypt.iceberg.keys.key_resolver import encrypting_key, wrapped_by_master
from modcrypt.iceberg.keys.wrapping_keys import IcebergKey
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.io.threads import in_threads
from modcrypt.keys.metadata import StandardKeyMetadata
from modcrypt.runtime.tracebacks import hide_frames

THREADS = 16
"""Number of files or keys processed concurrently: single wrapping waits for the key service."""


@dataclass(frozen=True)
class KeyManifest:
    """A manifest that contains encrypted key metadata."""

    manifest: ManifestFile
    keks: frozenset[str]  # ids of the KEKs that encrypt key metadata in it
    # Ids of master keys, and the data keys of files that they wrap themselves.
    singles: tuple[tuple[str, bytes], ...] = field(repr=False)


@dataclass(frozen=True)
class KeyManifests:
    """The manifests with encrypted key metadata in snapshots of a table."""

    manifests: Mapping[str, KeyManifest]
    # The locations of the manifests that a manifest list names, by its location; only of lists that
    # name some.
    lists: Mapping[str, frozenset[str]]

    @property
    def keks(self) -> frozenset[str]:
        """Ids of all KEKs that encrypt key metadata in the manifests."""
        return frozenset().union(*(manifest.keks for manifest in self.manifests.values()))

    def of(self, snapshots: Iterable[Snapshot]) -> KeyManifests:
        """Return those of some of the snapshots."""
        named = {old.manifest_list for old in snapshots} & self.lists.keys()
        lists = {name: self.lists[name] for name in self.lists if name in named}
        inside = frozenset[str]().union(*lists.values())
        kept = {place: held for place, held in self.manifests.items() if place in inside}
        return KeyManifests(kept, lists)


Opened: TypeAlias = "MutableMapping[tuple[str, bytes], StandardKeyMetadata]"
"""Key metadata of manifest lists by `place_of`: with single wrapping each costs a KMS call."""


def find_key_manifests(table: IcebergTable, opened: Opened | None = None) -> KeyManifests:
    """Find the manifests of all snapshots with encrypted key metadata; unwrap no file keys.

    `opened` has known key metadata of manifest lists; new ones are added. Raise as `Walk.manifests`
    does.
    """
    results: dict[str, KeyManifest | None] = {}
    lists, known = dict[str, frozenset[str]](), {} if opened is None else opened
    snapshots = table.metadata.snapshots if _may_hold_any(table) else ()
    keys = table.metadata.keys
    entries = {old.key_id: keys[old.key_id] for old in snapshots if old.key_id in keys}
    table.resolver.fetch_entries(
        (entry for entry in entries.values() if place_of(entry) not in known), table.metadata
    )
    read = in_threads(
        lambda old: (old, table.walk.manifests_by(list_keys(table, old, known), old)),
        snapshots, THREADS,
    )  # fmt: skip
    for snapshot, manifests in read:
        fresh = [manifest for manifest in manifests if manifest.location not in results]
        read_keys = in_threads(partial(_read_keys, table), fresh, THREADS)
        results |= {new.location: held for new, held in zip(fresh, read_keys, strict=True)}
        places = (manifest.location for manifest in manifests)
        if named := frozenset(place for place in places if results[place] is not None):
            lists[snapshot.manifest_list] = named
    held = {location: result for location, result in results.items() if result is not None}
    return KeyManifests(held, lists)


def list_keys(
    table: IcebergTable, snapshot: Snapshot, opened: Opened
) -> StandardKeyMetadata | None:
    """Return the key metadata of a manifest list, decrypted once; raises as `Walk.list_keys`."""
    entry = table.metadata.keys.get(snapshot.key_id or "")
    if entry is None or (keys := opened.get(place_of(entry))) is None:
        keys = table.walk.list_keys(snapshot)
        if entry is not None and keys is not None:
            opened[place_of(entry)] = keys
    return keys


def place_of(entry: EncryptedKey) -> tuple[str, bytes]:
    """Return a key that identifies an entry across versions of the table."""
    return entry.id, entry.encrypted


def _may_hold_any(table: IcebergTable) -> bool:
    """Return whether the keys of the table indicate manifests with encrypted key metadata."""
    # They do if a KEK is made for files, or has another scope than the whole table and encrypts no
    # key of a manifest list: then only manifests can need it.
    keks = table.resolver.keks(table.metadata).values()
    used = {entry.encrypted_by for entry in table.metadata.keys.values()}
    single = _has_single_entries(table.metadata) or SINGLES in table.metadata.properties
    if table.resolver.store is None and KEKS_SINCE in table.metadata.properties:
        return True  # KEKs may be in a key store that is not given
    return single or any(encrypts_files(kek) or (kek.scope and kek.id not in used) for kek in keks)


def has_singles(table: IcebergTable) -> bool:
    """Return whether the master key itself wraps file keys; raises as `find_key_manifests`."""
    if _has_single_entries(table.metadata):
        return True
    is_recorded = SINGLES in table.metadata.properties
    return is_recorded and any(
        manifest.singles for manifest in find_key_manifests(table).manifests.values()
    )


def _has_single_entries(metadata: TableMetadata) -> bool:
    return any(entry.is_single for entry in metadata.keys.values())


def check_store(table: IcebergTable) -> None:
    """Check that a table opened without a key store has no KEKs in one: a rotation would miss them.

    Raise KeyNotFoundError if the table needs KEKs of a key store.
    """
    metadata, resolver = table.metadata, table.resolver
    if resolver.store is not None:
        return
    keks = set(metadata.kek_ids())
    lists = [
        entry for id_, entry in metadata.keys.items() if id_ not in keks and not entry.is_single
    ]
    needed = {entry.encrypted_by for entry in lists}
    if KEKS_SINCE in metadata.properties:
        needed |= find_key_manifests(table).keks
    for missing in sorted(needed - keks):
        resolver.find(missing, metadata)


def lost_keys(table: IcebergTable) -> tuple[str, ...]:
    """Return the ids of keys that snapshots need, but neither the table nor its key store has.

    Iceberg's Java 1.11 commits such snapshots (apache/iceberg#17989).
    """
    keys = table.metadata.keys
    named = {old.key_id for old in table.metadata.snapshots if old.key_id is not None}
    by = {keys[id_].encrypted_by for id_ in named & keys.keys() if not keys[id_].is_single}
    keks = table.resolver.keks(table.metadata)
    return tuple(sorted((named - keys.keys()) | (by - keks.keys())))


@hide_frames  # plaintext key metadata contains data keys
def encrypting_keys(entries: Iterable[FileEntry]) -> list[tuple[str, bool]]:
    """Return the keys that encrypt the key metadata of files, as `encrypting_key`; skip plaintext.

    Raise KeyMaterialError if encrypted key metadata names no key.
    """
    keys = (encrypting_key(entry.key_metadata) for entry in entries)
    return [key for key in keys if key is not None]


def encrypts_files(key: IcebergKey) -> bool:
    """Return whether a KEK is made for key metadata in manifests."""
    return key.scope == FILES_SCOPE or key.scope.startswith(partition_scope(""))


def _read_keys(table: IcebergTable, manifest: ManifestFile) -> KeyManifest | None:
    entries = table.walk.entries(manifest)
    if not (by := encrypting_keys(entries)):
        return None
    keks = frozenset(id_ for id_, single in by if not single)
    metadata = (entry.key_metadata for entry in entries)
    singles = (wrapped_by_master(data) for data in metadata if data is not None)
    return KeyManifest(manifest, keks, tuple(single for single in singles if single))

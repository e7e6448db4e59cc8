"""Which manifests of a table hold key metadata that is sealed, and under which keys.

Tables all of whose KEKs seal manifest lists alone, as those that Java makes, have none: no manifest
of them is read.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from modcrypt.iceberg.format.manifests import ManifestFile
from modcrypt.iceberg.format.table_metadata import EncryptedKey, Snapshot, TableMetadata
from modcrypt.iceberg.keys.key_policies import FILES_SCOPE, KEKS_SINCE, SINGLES, partition_scope
from modcrypt.iceberg.keys.key_resolver import WRAPPING, is_sealed_metadata, sealed_by
from modcrypt.iceberg.keys.wrapping_keys import IcebergKey
from modcrypt.iceberg.read.inventory import in_threads
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.key_metadata import StandardKeyMetadata

__all__ = [
    "Opened",
    "SealedManifest",
    "SealedManifests",
    "check_store",
    "has_singles",
    "list_keys",
    "lost_keys",
    "place_of",
    "sealed_manifests",
    "seals_files",
]

THREADS = 16
"""Files or keys at once: in single wrapping each waits for the key service."""


@dataclass(frozen=True)
class SealedManifest:
    """A manifest that holds sealed key metadata.

    Attributes:
        manifest: it.
        keks: ids of the KEKs.
        single: how many files' key metadata the master key itself wraps.
    """

    manifest: ManifestFile
    keks: frozenset[str]
    single: int


@dataclass(frozen=True)
class SealedManifests:
    """Those of all snapshots.

    Attributes:
        manifests: by location.
        lists: locations of the manifest lists that name one of them.
    """

    manifests: Mapping[str, SealedManifest]
    lists: frozenset[str]

    @property
    def keks(self) -> frozenset[str]:
        """Ids of all KEKs that seal key metadata in them."""
        return frozenset().union(*(one.keks for one in self.manifests.values()))


Opened: TypeAlias = "MutableMapping[tuple[str, bytes], StandardKeyMetadata]"
"""Key metadata of manifest lists, by `place_of`: in single wrapping each costs a call."""


def sealed_manifests(table: IcebergTable, opened: Opened | None = None) -> SealedManifests:
    """Find the manifests of all snapshots that hold sealed key metadata; no key of a file is asked.

    Args:
        table: whose snapshots are looked at.
        opened: what is known of manifest lists, and is added to.

    Raises:
        ModcryptError, OSError: as `Walk.manifests`.
    """
    found: dict[str, SealedManifest | None] = {}
    lists, known = set[str](), {} if opened is None else opened
    snapshots = table.metadata.snapshots if _may_hold_any(table) else ()
    read = in_threads(lambda one: (one, _manifests(table, one, known)), snapshots, THREADS)
    for snapshot, manifests in read:
        fresh = [one for one in manifests if one.location not in found]
        sealed = in_threads(partial(_sealed, table), fresh, THREADS)
        found |= {one.location: held for one, held in zip(fresh, sealed, strict=True)}
        if any(found[one.location] is not None for one in manifests):
            lists.add(snapshot.manifest_list)
    held = {location: one for location, one in found.items() if one is not None}
    return SealedManifests(held, frozenset(lists))


def list_keys(
    table: IcebergTable, snapshot: Snapshot, opened: Opened
) -> StandardKeyMetadata | None:
    """Give the key metadata of a manifest list, opened once; raises as `Walk.list_keys`."""
    entry = table.metadata.keys.get(snapshot.key_id or "")
    if entry is None or (found := opened.get(place_of(entry))) is None:
        found = table.walk.list_keys(snapshot)
        if entry is not None and found is not None:
            opened[place_of(entry)] = found
    return found


def place_of(entry: EncryptedKey) -> tuple[str, bytes]:
    """Give what tells an entry from others, also of another version of the table."""
    return entry.id, entry.encrypted


def _manifests(table: IcebergTable, snapshot: Snapshot, opened: Opened) -> list[ManifestFile]:
    return table.walk.manifests_by(list_keys(table, snapshot, opened), snapshot)


def _may_hold_any(table: IcebergTable) -> bool:
    """Tell by the keys of the table whether it is worth looking.

    It is for KEKs that are made for files, and for any other that is not for the whole table and
    seals no manifest list: nobody else could need it.
    """
    keks = table.walk.resolver.keks(table.metadata).values()
    sealing = {one.encrypted_by for one in table.metadata.keys.values()}
    single = _has_single_entries(table.metadata) or SINGLES in table.metadata.properties
    if table.walk.resolver.store is None and KEKS_SINCE in table.metadata.properties:
        return True  # there are KEKs that nobody sees
    return single or any(seals_files(one) or (one.scope and one.id not in sealing) for one in keks)


def has_singles(table: IcebergTable) -> bool:
    """Tell whether the master key itself wraps keys of files; raises as `sealed_manifests`."""
    if _has_single_entries(table.metadata):
        return True
    told = SINGLES in table.metadata.properties
    return told and any(one.single for one in sealed_manifests(table).manifests.values())


def _has_single_entries(metadata: TableMetadata) -> bool:
    return any(map(_is_single, metadata.keys.values()))


def _is_single(entry: EncryptedKey) -> bool:
    return entry.properties.get(WRAPPING) == "single"


def check_store(table: IcebergTable) -> None:
    """Check that a table opened without a key store has no KEKs in one: a rotation would miss them.

    Raises:
        KeyNotFoundError: it has.
        ModcryptError, OSError: as `sealed_manifests`.
    """
    metadata, resolver = table.metadata, table.walk.resolver
    if resolver.store is not None:
        return
    keks = set(metadata.kek_ids())
    lists = [one for id_, one in metadata.keys.items() if id_ not in keks and not _is_single(one)]
    needed = {one.encrypted_by for one in lists}
    if KEKS_SINCE in metadata.properties:
        needed |= sealed_manifests(table).keks
    for missing in sorted(needed - keks):
        resolver.find(missing, metadata)


def lost_keys(table: IcebergTable) -> tuple[str, ...]:
    """Return the ids of keys that snapshots need, and that neither the table nor its key store has.

    Iceberg's Java 1.11 commits such snapshots (apache/iceberg#17989).

    Raises:
        ModcryptError, OSError: from the key store.
    """
    keys = table.metadata.keys
    named = {one.key_id for one in table.metadata.snapshots if one.key_id is not None}
    by = {keys[id_].encrypted_by for id_ in named & keys.keys() if not _is_single(keys[id_])}
    keks = table.walk.resolver.keks(table.metadata)
    return tuple(sorted((named - keys.keys()) | (by - keks.keys())))


def seals_files(key: IcebergKey) -> bool:
    """Tell whether a KEK is made for key metadata in manifests."""
    return key.scope == FILES_SCOPE or key.scope.startswith(partition_scope(""))


def _sealed(table: IcebergTable, manifest: ManifestFile) -> SealedManifest | None:
    told = [one.key_metadata for one in table.walk.entries(manifest)]
    by = [sealed_by(one) for one in told if one is not None and is_sealed_metadata(one)]
    if not by:
        return None
    keks = frozenset(id_ for id_, single in by if not single)
    return SealedManifest(manifest, keks, sum(single for _, single in by))

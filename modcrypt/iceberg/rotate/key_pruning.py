"""Drop keys that no snapshot uses from a table's metadata.json (apache/iceberg#16352).

Iceberg's Java drops snapshots and keeps their keys. The entry of a manifest list is dropped when no
snapshot names it; a KEK when no remaining key is encrypted under it. KEKs by partition or by number
of files encrypt key metadata in manifests: if a table has such KEKs, its manifests are read. KEKs
in a key store are kept: a concurrent commit may have added them, and older versions may need them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from modcrypt.iceberg.format.table_metadata import EncryptedKey, TableMetadata
from modcrypt.iceberg.keys.key_policies import retired_kek_ids
from modcrypt.iceberg.keys.wrapping_keys import TABLE, IcebergKey
from modcrypt.iceberg.rotate.manifests.wrapped_in_manifests import find_key_manifests
from modcrypt.iceberg.rotate.rotation_report import older_versions
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.iceberg.write.commit import commit, latest
from modcrypt.report.json_fields import JsonFields


@dataclass(frozen=True, kw_only=True)
class Pruned(JsonFields):
    """The result of `prune_keys`: what was dropped, or in a dry run would be dropped.

    Attributes:
        table: The table at its new version; unchanged in a dry run or without changes.
        dry_run: Whether it was a dry run, which changes nothing.
        keks: Ids of the dropped KEKs.
        entries: Ids of the dropped entries of manifest lists.
        kept: Number of keys kept.
        saved: Number of bytes by which metadata.json gets shorter.
        older_versions: Locations of older metadata.json files, which still contain the keys.
    """

    table: IcebergTable = field(repr=False)
    dry_run: bool = False
    keks: tuple[str, ...] = ()
    entries: tuple[str, ...] = ()
    kept: int = 0
    saved: int = 0
    older_versions: tuple[str, ...] = ()

    _without = ("table",)


def prune_keys(table: IcebergTable, *, dry_run: bool = False) -> Pruned:
    """Drop the keys of a table's metadata that no snapshot uses.

    The key service is called only if manifests have to be read.

    Args:
        table: Any version of the table; the current version is pruned.
        dry_run: Whether to change nothing and only return what would be dropped.

    Raises:
        CommitConflictError: Another writer committed first at every attempt.
        ModcryptError, OSError: Manifests have to be read, but cannot be.
    """
    before = latest(table)
    result, _ = _plan_pruning(before)
    if dry_run or not (result.keks or result.entries):
        return replace(result, table=table, dry_run=dry_run)

    def next_version(current: IcebergTable) -> TableMetadata:
        nonlocal result
        result, kept = _plan_pruning(current)
        return current.metadata.with_keys(kept)

    new = commit(before, next_version)
    return replace(result, table=new, older_versions=older_versions(new))


def used_keys(table: IcebergTable) -> list[EncryptedKey]:
    """Return the keys of a table's metadata that its snapshots use."""
    keys = table.metadata.keys
    named = {snapshot.key_id for snapshot in table.metadata.snapshots}
    encrypting = {entry.encrypted_by for id_, entry in keys.items() if id_ in named}
    used = named | encrypting | find_key_manifests(table).keks
    return [entry for id_, entry in keys.items() if id_ in used]


def own_keks(table: IcebergTable) -> tuple[str, ...]:
    """Return the ids of all KEKs in the key store that were made for a table."""
    store, uuid = table.resolver.store, table.metadata.uuid
    held = {} if store is None else store.keys()
    return tuple(sorted(id_ for id_, kek in held.items() if kek.properties.get(TABLE) == uuid))


def retired_keks(table: IcebergTable) -> tuple[str, ...]:
    """Return the ids of a table's own KEKs in the key store that will never be needed again.

    No snapshot needs them, and no commit after this version would encrypt keys under them. The
    metadata.json is not signed and could be an old copy; so no KEK is returned that is newer than
    all KEKs that the snapshots need.
    """
    metadata, store = table.metadata, table.resolver.store
    held = {} if store is None else store.keys()
    held = {id_: kek for id_, kek in held.items() if kek.properties.get(TABLE) == metadata.uuid}
    if not (retired_ids := retired_kek_ids(held.values(), metadata)):
        return ()
    listing = {entry.encrypted_by for entry in metadata.keys.values()}
    needed = listing | find_key_manifests(table).keks
    known = [held[id_] for id_ in needed if id_ in held]
    # The time of a KEK in metadata.json is authenticated if the KEK encrypts a list's key.
    known += [IcebergKey.of(metadata.keys[id_]) for id_ in metadata.kek_ids() if id_ in listing]
    newest = max((kek.timestamp_ms for kek in known), default=-1)
    return tuple(sorted(id_ for id_ in retired_ids - needed if held[id_].timestamp_ms <= newest))


def _plan_pruning(table: IcebergTable) -> tuple[Pruned, Sequence[EncryptedKey]]:
    kept, keks = used_keys(table), set(table.metadata.kek_ids())
    stay = {entry.id for entry in kept}
    dropped = [entry for id_, entry in table.metadata.keys.items() if id_ not in stay]
    texts = [json.dumps(entry.document(), separators=(",", ":")) for entry in dropped]
    return Pruned(
        table=table,
        keks=tuple(entry.id for entry in dropped if entry.id in keks),
        entries=tuple(entry.id for entry in dropped if entry.id not in keks),
        kept=len(kept),
        saved=sum(len(text) + 1 for text in texts),
        older_versions=older_versions(table),
    ), kept

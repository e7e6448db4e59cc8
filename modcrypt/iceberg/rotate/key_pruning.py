"""Keys that no snapshot uses, dropped from a table's metadata.json (apache/iceberg#16352).

Iceberg's Java drops snapshots and keeps their keys. An entry of a manifest list goes when no
snapshot names it; a KEK when it seals nothing that is left. KEKs by partition or by number of files
seal key metadata in manifests: where a table has such, its manifests are read. What is in a key
store stays: whoever is about to commit may have put it there, and older versions may need it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from modcrypt.iceberg.format.table_metadata import EncryptedKey, TableMetadata
from modcrypt.iceberg.keys.key_policies import retired
from modcrypt.iceberg.keys.wrapping_keys import TABLE
from modcrypt.iceberg.rotate.rotation_report import latest, older_versions
from modcrypt.iceberg.rotate.wrapped_in_manifests import sealed_manifests
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.iceberg.write.commit import commit

__all__ = ["Pruned", "prune_keys", "retired_keks", "used_keys"]


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """What `prune_keys` has done; in a dry run, what it would do.

    Attributes:
        table: at its new version; in a dry run, and where nothing was to be done, as it was.
        dry_run: whether nothing was changed.
        keks: ids of the KEKs that go.
        entries: ids of the entries of manifest lists that go.
        kept: how many keys stay.
        saved: bytes by which metadata.json gets shorter.
        older_versions: locations of older metadata.json files, which keep the keys.
    """

    table: IcebergTable = field(repr=False)
    dry_run: bool = False
    keks: tuple[str, ...] = ()
    entries: tuple[str, ...] = ()
    kept: int = 0
    saved: int = 0
    older_versions: tuple[str, ...] = ()

    def fields(self) -> dict[str, Any]:
        """Give it as what JSON takes, without the table."""
        return {
            "dry_run": self.dry_run,
            "keks": list(self.keks),
            "entries": list(self.entries),
            "kept": self.kept,
            "saved": self.saved,
            "older_versions": list(self.older_versions),
        }


def prune_keys(table: IcebergTable, *, dry_run: bool = False) -> Pruned:
    """Drop the keys of a table's metadata that no snapshot uses.

    The key service is asked only where manifests have to be read.

    Args:
        table: the current version is pruned, also if `table` is an older one.
        dry_run: change nothing, and say what would be dropped.

    Raises:
        CommitConflictError: somebody else was faster again and again.
        ModcryptError, OSError: manifests have to be read, and can't be.
    """
    before = latest(table)
    found = _pruned(before, used_keys(before))
    if dry_run or not (found.keks or found.entries):
        return replace(found, table=table, dry_run=dry_run)

    def next_version(current: IcebergTable) -> TableMetadata:
        nonlocal found
        kept = used_keys(current)
        found = _pruned(current, kept)
        return current.metadata.with_keys(kept)

    new = commit(before, next_version)
    return replace(found, table=new, older_versions=older_versions(new))


def used_keys(table: IcebergTable) -> list[EncryptedKey]:
    """Give the keys of a table's metadata that its snapshots use.

    Raises:
        ModcryptError, OSError: as `sealed_manifests`.
    """
    keys = table.metadata.keys
    named = {one.key_id for one in table.metadata.snapshots}
    sealing = {one.encrypted_by for id_, one in keys.items() if id_ in named}
    used = named | sealing | sealed_manifests(table).keks
    return [one for id_, one in keys.items() if id_ in used]


def retired_keks(table: IcebergTable) -> tuple[str, ...]:
    """Give the ids of a table's own KEKs in the key store that nothing needs, nor will.

    No snapshot does, and no commit on top of this version would seal under them.

    Raises:
        ModcryptError, OSError: as `sealed_manifests`; or from the key store.
    """
    metadata, store = table.metadata, table.walk.resolver.store
    held = () if store is None else store.keys().values()
    found = retired((one for one in held if one.properties.get(TABLE) == metadata.uuid), metadata)
    if found:
        found -= {one.encrypted_by for one in metadata.keys.values()}
        found -= sealed_manifests(table).keks
    return tuple(sorted(found))


def _pruned(table: IcebergTable, kept: Sequence[EncryptedKey]) -> Pruned:
    metadata = table.metadata
    stay, keks = {one.id for one in kept}, set(metadata.kek_ids())
    gone = [one for id_, one in metadata.keys.items() if id_ not in stay]
    return Pruned(
        table=table,
        keks=tuple(one.id for one in gone if one.id in keks),
        entries=tuple(one.id for one in gone if one.id not in keks),
        kept=len(kept),
        saved=sum(len(json.dumps(one.document(), separators=(",", ":"))) + 1 for one in gone),
        older_versions=older_versions(table),
    )

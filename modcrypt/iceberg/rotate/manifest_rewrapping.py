"""A manifest written anew, the key metadata of files in it sealed under other keys; in any process.

Nothing else of it changes: entries, Avro schema and header stay as they are, and the files that it
names. Other processes get the manifest's own key sealed under a KEK that is for one job alone, as
in `dek_rotation`, and KEKs as their master key has wrapped them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from modcrypt.iceberg.format.locations import Locations
from modcrypt.iceberg.keys.key_resolver import (
    KeyResolver,
    is_sealed_metadata,
    open_from_manifest,
    seal_for_manifest,
    sealed_by,
)
from modcrypt.iceberg.keys.wrapping_keys import IcebergKey, OpenKey
from modcrypt.iceberg.rotate.dek_rotation import RekeyedFile, RekeyItem
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.iceberg.write.manifest_writing import rewrite_manifest
from modcrypt.key_metadata import StandardKeyMetadata

__all__ = ["Exchange", "Reseal", "reseal_item", "reseal_manifest"]


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """Which keys take the places of which; it can be pickled, and holds no secret.

    Attributes:
        old: the KEKs that there are, by id.
        new: what takes the place of each.
        single: what takes the place of a master key that wraps by itself.
        folder: location of the folder that manifests are written to.
        name: what their names begin with.
        key_length: bytes of their own keys.
    """

    old: Mapping[str, IcebergKey]
    new: Mapping[str, IcebergKey]
    single: IcebergKey
    folder: str
    name: str
    key_length: int

    def keys(self, by: tuple[str, bool]) -> tuple[IcebergKey, IcebergKey] | None:
        """Give what seals key metadata, as `sealed_by` tells it, and what is to.

        None of a KEK that is nowhere, as of a partition that was shredded.
        """
        id_, single = by
        if single:
            return IcebergKey.single(id_), self.single
        return (self.old[id_], self.new[id_]) if id_ in self.old else None


Reseal: TypeAlias = Callable[
    [IcebergTable, IcebergKey, Exchange, Sequence[RekeyItem]], Iterable[RekeyedFile]
]
"""Writes manifests anew by `reseal_item`, wherever: of a table, with the KEK of the job."""


def reseal_manifest(
    locations: Locations,
    location: str,
    keys: StandardKeyMetadata,
    exchange: Exchange,
    resolver: KeyResolver,
) -> tuple[str, StandardKeyMetadata]:
    """Write a manifest anew.

    Args:
        locations: say where files are.
        location: of the manifest.
        keys: its key metadata, with its trusted length.
        exchange: which keys take the places of which.
        resolver: opens these.

    Returns:
        Location and key metadata of the new one.

    Raises:
        ModcryptError, OSError: it is not what was written, or a key can't be had.
    """

    def change(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        found = [row["data_file"].get("key_metadata") for row in rows]
        changed = _resealed(found, exchange, resolver)
        return [
            {**row, "data_file": {**row["data_file"], "key_metadata": metadata}}
            for row, metadata in zip(rows, changed, strict=True)
        ]

    target = f"{exchange.folder}/{exchange.name}-{uuid.uuid4()}-m0.avro"
    length = exchange.key_length
    return target, rewrite_manifest(locations, location, keys, change, target, length)


def _resealed(
    found: Sequence[bytes | None], exchange: Exchange, resolver: KeyResolver
) -> list[bytes | None]:
    """Seal key metadata anew, that of one key all at once.

    What is in the clear stays so, and what nobody can open any more stays as it is.
    """
    by_key: dict[tuple[str, bool], list[bytes]] = {}
    for one in found:
        if one is not None and is_sealed_metadata(one):
            by_key.setdefault(sealed_by(one), []).append(one)
    changed: dict[bytes | None, bytes] = {}
    for by, before in by_key.items():
        if (keys := exchange.keys(by)) is None:
            continue
        old, new = (resolver.opened(one) for one in keys)
        opened = [open_from_manifest(one, old) for one in before]
        changed.update(zip(before, seal_for_manifest(opened, new), strict=True))
    return [changed.get(one, one) for one in found]


def reseal_item(
    locations: Locations, item: RekeyItem, job: OpenKey, exchange: Exchange, resolver: KeyResolver
) -> RekeyedFile:
    """Write a manifest anew that another process asks for; as `reseal_manifest`."""
    keys = open_from_manifest(item.sealed, job).with_length(item.size)
    location, new = reseal_manifest(locations, item.location, keys, exchange, resolver)
    assert new.file_length is not None
    (sealed,) = seal_for_manifest([new], job)
    return RekeyedFile(item.location, location, new.file_length, sealed)

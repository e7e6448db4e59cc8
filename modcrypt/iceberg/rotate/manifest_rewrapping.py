"""Rewrite a manifest with the key metadata of its files encrypted under other keys.

Nothing else changes: entries, Avro schema, header and the named files stay the same. It works in
any process. Other processes get the manifest's own key encrypted under a KEK that is used for only
one job, as in `dek_rotation`, and KEKs wrapped by their master key.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from modcrypt.iceberg.format.locations import Locations
from modcrypt.iceberg.keys.key_resolver import (
    KeyResolver,
    fetch_from_manifest,
    open_from_manifest,
    seal_for_manifest,
    sealing_key,
)
from modcrypt.iceberg.keys.wrapping_keys import IcebergKey, OpenKey
from modcrypt.iceberg.rotate.file_rekeying import RekeyedFile, RekeyItem
from modcrypt.iceberg.write.manifest_writing import rewrite_manifest
from modcrypt.keys.metadata import StandardKeyMetadata


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """A mapping of old keys to new keys, and a `Rewrite` of the manifests that contain them."""

    old: Mapping[str, IcebergKey]  # old KEKs by id
    new: Mapping[str, IcebergKey]  # new KEKs by the id of the KEK that they replace
    single: IcebergKey  # replacement of a master key that wraps data keys directly
    folder: str
    name: str
    key_length: int

    def keys(self, by: tuple[str, bool]) -> tuple[IcebergKey, IcebergKey] | None:
        """Return the old and the new key for key metadata; `by` is the result of `sealed_by`.

        Return None for a missing KEK, for example of a partition that was shredded.
        """
        id_, single = by
        if single:
            return IcebergKey.single(id_), self.single
        return (self.old[id_], self.new[id_]) if id_ in self.old else None

    def __call__(
        self, locations: Locations, item: RekeyItem, job: OpenKey, resolver: KeyResolver
    ) -> RekeyedFile:
        """Rewrite a manifest for another process; see `Rewrite`."""
        keys = open_from_manifest(item.sealed, job).with_length(item.size)
        location, new = reseal_manifest(locations, item.location, keys, self, resolver)
        assert new.file_length is not None
        (sealed,) = seal_for_manifest([new], job)
        return RekeyedFile(item.location, location, new.file_length, sealed)


def reseal_manifest(
    locations: Locations,
    location: str,
    keys: StandardKeyMetadata,
    exchange: Exchange,
    resolver: KeyResolver,
) -> tuple[str, StandardKeyMetadata]:
    """Rewrite a manifest with key metadata encrypted under other keys, which `resolver` unwraps.

    `keys` must have the trusted length of the manifest. Return the location and key metadata of the
    new one. Raise ModcryptError if the manifest is not authentic, or a key is not available.
    """

    def change(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        before = [row["data_file"].get("key_metadata") for row in rows]
        changed = reseal_metadata(before, exchange, resolver)
        return [
            {**row, "data_file": {**row["data_file"], "key_metadata": metadata}}
            for row, metadata in zip(rows, changed, strict=True)
        ]

    target = f"{exchange.folder}/{exchange.name}-{uuid.uuid4()}-m0.avro"
    length = exchange.key_length
    return target, rewrite_manifest(locations, location, keys, change, target, length)


def reseal_metadata(
    metadata: Sequence[bytes | None], exchange: Exchange, resolver: KeyResolver
) -> list[bytes | None]:
    """Encrypt key metadata of manifests under the new keys, grouped by the old key.

    Plaintext key metadata, and key metadata whose KEK is missing, is unchanged.
    """
    by_key: dict[tuple[str, bool], list[bytes]] = {}
    for data in metadata:
        if data is not None and (by := sealing_key(data)) is not None:
            by_key.setdefault(by, []).append(data)
    changed: dict[bytes | None, bytes] = {}
    for by, before in by_key.items():
        if (keys := exchange.keys(by)) is None:
            continue
        old, new = (resolver.open_key(key) for key in keys)
        fetch_from_manifest(before, old)
        opened = [open_from_manifest(data, old) for data in before]
        changed.update(zip(before, seal_for_manifest(opened, new), strict=True))
    return [changed.get(data, data) for data in metadata]

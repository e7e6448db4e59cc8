"""Rewrite manifests with the key metadata of their files encrypted under other keys.

Nothing else changes: entries, Avro schema, header and the named files stay the same. A table that
keeps its snapshots (all but those of REST catalogs) gets new manifests first, and then new manifest
lists, which have their locations, lengths and keys: the lists' own new keys go into the entries of
the next version. Until that is committed, nothing names any of these files.

A manifest can be rewritten in any process. Other processes get the manifest's own key encrypted
under a KEK that is used for only one job, as in `dek_rotation`, and KEKs wrapped by their master
key.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from modcrypt.errors import FormatError, PlaintextError
from modcrypt.iceberg.format.avro_files import read_avro, write_avro
from modcrypt.iceberg.format.encrypted_files import write_ags1
from modcrypt.iceberg.format.locations import Locations
from modcrypt.iceberg.format.manifest_rows.file_entries import FileEntry
from modcrypt.iceberg.format.manifests import ManifestFile
from modcrypt.iceberg.format.table_metadata import Snapshot
from modcrypt.iceberg.keys.key_resolver import (
    KeyResolver,
    encrypt_for_manifest,
    encrypting_key,
    fetch_from_manifest,
    open_from_manifest,
)
from modcrypt.iceberg.keys.wrapping_keys import IcebergKey, OpenKey
from modcrypt.iceberg.rotate.file_rekeying import RekeyedFile, RekeyItem, Run, rewrite_files
from modcrypt.iceberg.rotate.manifests.wrapped_in_manifests import (
    THREADS,
    KeyManifests,
    Opened,
    list_keys,
)
from modcrypt.iceberg.rotate.rotated_snapshots import FileId, NewFile, file_id
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.iceberg.write.manifest_writing import metadata_folder, rewrite_manifest
from modcrypt.iceberg.write.new_files import NewFiles
from modcrypt.io.threads import in_threads
from modcrypt.keys import Secret
from modcrypt.keys.metadata import StandardKeyMetadata
from modcrypt.runtime.tracebacks import hide_frames

KEYS_TOGETHER = 200  # number of keys that a rotation moves together, as many as Vault wraps at once

_PATH, _LENGTH, _KEY_METADATA = 500, 501, 519
"""Ids of fields of a manifest list (spec, "Manifest Lists")."""


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
        """Return the old and the new key for key metadata; `by` is the result of `encrypting_key`.

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
        keys = open_from_manifest(item.encrypted, job).with_length(item.size)
        location, new = rewrap_manifest(locations, item.location, keys, self, resolver)
        assert new.file_length is not None
        (encrypted,) = encrypt_for_manifest([new], job)
        return RekeyedFile(item.location, location, new.file_length, encrypted)


def rewrap_manifest(
    locations: Locations, location: str, keys: StandardKeyMetadata, exchange: Exchange,
    resolver: KeyResolver,
) -> tuple[str, StandardKeyMetadata]:  # fmt: skip
    """Rewrite a manifest with key metadata encrypted under other keys, which `resolver` unwraps.

    `keys` must have the trusted length of the manifest. Return the location and key metadata of the
    new one. Raise ModcryptError if the manifest is not authentic, or a key is not available.
    """

    def change(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        before = [row["data_file"].get("key_metadata") for row in rows]
        changed = rewrap_metadata(before, exchange, resolver)
        return [
            {**row, "data_file": {**row["data_file"], "key_metadata": metadata}}
            for row, metadata in zip(rows, changed, strict=True)
        ]

    target = f"{exchange.folder}/{exchange.name}-{uuid.uuid4()}-m0.avro"
    length = exchange.key_length
    return target, rewrite_manifest(locations, location, keys, change, target, length)


def rewrap_metadata(
    metadata: Sequence[bytes | None], exchange: Exchange, resolver: KeyResolver
) -> list[bytes | None]:
    """Encrypt key metadata of manifests under the new keys, grouped by the old key.

    Plaintext key metadata, and key metadata whose KEK is missing, is unchanged.
    """
    by_key: dict[tuple[str, bool], list[bytes]] = {}
    for data in metadata:
        if data is not None and (by := encrypting_key(data)) is not None:
            by_key.setdefault(by, []).append(data)
    changed: dict[bytes | None, bytes] = {}
    for by, before in by_key.items():
        if (keys := exchange.keys(by)) is None:
            continue
        old, new = (resolver.open_key(key) for key in keys)
        fetch_from_manifest(before, old)
        opened = [open_from_manifest(data, old) for data in before]
        changed.update(zip(before, encrypt_for_manifest(opened, new), strict=True))
    return [changed.get(data, data) for data in metadata]


@dataclass
class Rewrapping:
    """The rewriting of manifests for one rotation; a retry of its commit reuses what is made.

    What is made depends on the new keys: `clear` forgets it where the next attempt has others.
    """

    # New files of the job: those that are no longer used after the commit are removed.
    files: NewFiles
    run: Run | None = None
    # Rows for the manifest list of rewritten manifests, by the old locations.
    manifests: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)
    # Locations and key metadata of rewritten manifest lists, by the old locations.
    lists: dict[str, tuple[str, StandardKeyMetadata]] = field(default_factory=dict, repr=False)
    # Key metadata of the files in manifests, for new snapshots, by the manifests' locations.
    entries: dict[str, list[Secret[bytes] | None]] = field(default_factory=dict, repr=False)

    def clear(self) -> None:
        """Forget what was made for other keys; the commit removes its files."""
        for made in (self.manifests, self.lists, self.entries):
            made.clear()

    def rewrite(
        self, table: IcebergTable, within: KeyManifests, exchange: Exchange, opened: Opened
    ) -> None:
        """Rewrite manifests, and the lists that name them, for the snapshots that have them."""
        left = [
            found.manifest
            for location, found in within.manifests.items()
            if location not in self.manifests
        ]
        if left:
            self.files.note_folder(exchange.folder)
        for manifest, (location, keys) in zip(
            left, self._rewrite_manifests(table, within, left, exchange), strict=True
        ):
            self.manifests[manifest.location] = {
                **manifest.row, "manifest_path": location, "manifest_length": keys.file_length,
                "key_metadata": Secret(keys.encode()),
            }  # fmt: skip
        lists = {old.manifest_list: old for old in table.metadata.snapshots}
        waiting = [lists[name] for name in within.lists if name not in self.lists]
        for _ in in_threads(lambda old: self._rewrite_list(table, old, opened), waiting, THREADS):
            pass
        manifests = [self.manifests[location]["manifest_path"] for location in within.manifests]
        self.files.used = [*manifests, *(self.lists[location][0] for location in within.lists)]

    def _rewrite_manifests(
        self, table: IcebergTable, within: KeyManifests, manifests: Sequence[ManifestFile],
        exchange: Exchange,
    ) -> Iterator[tuple[str, StandardKeyMetadata]]:  # fmt: skip
        """Yield the location and key metadata of each new manifest, in order."""
        resolver = table.resolver
        if self.run is not None and manifests:
            masters = resolver.masters
            job = masters.new_kek(exchange.single.master_key_id, exchange.key_length)
            items = [(m.location, "AVRO", m.length, _keys_of(table, m)) for m in manifests]
            yield from rewrite_files(self.run, table, job, exchange, items)
            return

        def work(manifest: ManifestFile) -> tuple[str, StandardKeyMetadata]:
            keys, locations = _keys_of(table, manifest), table.walk.locations
            return rewrap_manifest(locations, manifest.location, keys, exchange, resolver)

        for group in _group_by_keys(within, manifests):
            _fetch_singles(resolver, within, group, exchange)
            yield from in_threads(work, group, THREADS)

    @hide_frames
    def _rewrite_list(self, table: IcebergTable, snapshot: Snapshot, opened: Opened) -> None:
        """Rewrite a manifest list with the new locations, lengths and keys of its manifests."""
        walk, before = table.walk, snapshot.manifest_list
        if (keys := list_keys(table, snapshot, opened)) is None:
            raise FormatError(
                f"{before}: the manifest list is in plaintext, but its manifests are encrypted"
            )
        avro = read_avro(walk.read(before, keys), before)
        names = {field.get("field-id"): field["name"] for field in avro.schema["fields"]}
        rows = []
        for row in avro.records:
            new = self.manifests.get(row[names[_PATH]])
            rows.append(row if new is None else {
                **row, names[_PATH]: new["manifest_path"],
                names[_LENGTH]: new["manifest_length"],
                names[_KEY_METADATA]: new["key_metadata"],
            })  # fmt: skip
        folder = metadata_folder(table.metadata)
        location = f"{folder}/snap-{snapshot.id}-1-{uuid.uuid4()}.avro"
        data = write_avro(avro.schema, rows, avro.metadata)
        length = table.metadata.key_length
        self.files.note(location, once=True)
        self.lists[before] = location, write_ags1(walk.locations, location, data, length)

    @hide_frames  # key metadata in plaintext contains data keys
    def rewrap(
        self, table: IcebergTable, within: KeyManifests, entries: Mapping[str, Sequence[FileEntry]],
        exchange: Exchange,
    ) -> dict[FileId, NewFile]:  # fmt: skip
        """Return the files of manifests with their key metadata under the new keys.

        `entries` has those of each manifest, by its location; no file is written.
        """
        resolver = table.resolver

        def work(manifest: ManifestFile) -> list[Secret[bytes] | None]:
            before = [entry.key_metadata for entry in entries[manifest.location]]
            after = rewrap_metadata(before, exchange, resolver)
            return [None if data is None else Secret(data) for data in after]

        left = [f.manifest for place, f in within.manifests.items() if place not in self.entries]
        for group in _group_by_keys(within, left):
            _fetch_singles(resolver, within, group, exchange)
            done = in_threads(work, group, THREADS)
            self.entries.update(zip((each.location for each in group), done, strict=True))
        return {
            file_id(table, entry): NewFile({}, new)
            for location in within.manifests
            for entry, new in zip(entries[location], self.entries[location], strict=True)
            if entry.is_live and new is not None and new() != entry.key_metadata
        }


def _fetch_singles(
    resolver: KeyResolver,
    within: KeyManifests,
    manifests: Iterable[ManifestFile],
    exchange: Exchange,
) -> None:
    """Have the data keys moved together that the master key wraps in manifests."""
    by_master: dict[str, list[bytes]] = {}
    for manifest in manifests:
        for old_id, wrapped in within.manifests[manifest.location].singles:
            by_master.setdefault(old_id, []).append(wrapped)
    for old_id, group in by_master.items():
        resolver.masters.fetch_moves(group, old_id, exchange.single.master_key_id)


def _group_by_keys(
    within: KeyManifests, manifests: Iterable[ManifestFile]
) -> Iterator[list[ManifestFile]]:
    """Yield groups of manifests with at least `KEYS_TOGETHER` keys that a master key wraps."""
    group, count = list[ManifestFile](), 0
    for manifest in manifests:
        group.append(manifest)
        count += len(within.manifests[manifest.location].singles)
        if count >= KEYS_TOGETHER:
            yield group
            group, count = [], 0
    if group:
        yield group


def _keys_of(table: IcebergTable, manifest: ManifestFile) -> StandardKeyMetadata:
    """Return the key metadata of a manifest whose entries have encrypted key metadata."""
    if (keys := table.walk.manifest_keys(manifest)) is None:
        raise PlaintextError(
            f"{manifest.location}: the manifest is in plaintext, but keys in it are encrypted"
        )
    return keys

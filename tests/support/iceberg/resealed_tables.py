"""Tables whose key metadata is encrypted in ways that Iceberg's Java never uses."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from modcrypt.iceberg import IcebergTable
from modcrypt.iceberg.format.manifests import ManifestFile
from modcrypt.iceberg.keys.key_resolver import encrypt_for_manifest
from modcrypt.iceberg.keys.wrapping_keys import IcebergKey
from modcrypt.iceberg.write import commit as committing
from modcrypt.iceberg.write.manifest_writing import (
    SnapshotFields,
    metadata_folder,
    rewrite_manifest,
    write_manifest_list,
)
from modcrypt.iceberg.write.new_files import NewFiles
from modcrypt.keys import Secret


def write_changed_manifest(
    table: IcebergTable, manifest: ManifestFile, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """Write a manifest again with changed entries; return its row for a manifest list."""
    target = f"{metadata_folder(table.metadata)}/{uuid.uuid4()}-m0.avro"
    old = table.walk.manifest_keys(manifest)
    assert old is not None
    keys = rewrite_manifest(
        table.walk.locations, manifest.location, old, lambda rows: [change(row) for row in rows],
        target, table.metadata.key_length,
    )  # fmt: skip
    made = {"manifest_path": target, "manifest_length": keys.file_length}
    return {**manifest.row, **made, "key_metadata": Secret(keys.encode())}


def reseal(table: IcebergTable, seal: Callable[[IcebergTable], Any]) -> IcebergTable:
    """Seal the key metadata of all files, and of manifest lists, as no Java does."""
    walk, metadata, resolver = table.walk, table.metadata, table.walk.resolver
    of_lists, of_files, keys = seal(table)
    done: dict[str, Any] = {}
    snapshots, entries = [], []
    for snapshot in metadata.snapshots:
        rows = []
        for manifest in walk.manifests(snapshot):
            if manifest.location not in done:

                def change(row: dict[str, Any]) -> dict[str, Any]:
                    file = row["data_file"]
                    if file["key_metadata"] is None:  # of one that new data keys took the place of
                        return row
                    plain = resolver.open_metadata(file["key_metadata"], metadata)
                    (sealed,) = encrypt_for_manifest([plain], of_files)
                    return {**row, "data_file": {**file, "key_metadata": sealed}}

                done[manifest.location] = write_changed_manifest(table, manifest, change)
            rows.append(done[manifest.location])
        reported = snapshot.document
        fields = SnapshotFields(
            snapshot.id, snapshot.parent, snapshot.sequence_number, reported["first-row-id"]
        )
        files = NewFiles(table.walk.locations)
        location, entry, _ = write_manifest_list(table, fields, rows, of_lists, files)
        snapshots.append({**reported, "manifest-list": location, "key-id": entry.id})
        entries.append(entry)
    new = metadata.with_keys([*keys, *entries], snapshots=snapshots)
    return table.at(table.versions.commit(table.place, committing.successor(new, of=table))[0])


def seal_singly(table: IcebergTable) -> Any:
    key = table.walk.resolver.open_key(IcebergKey.single("keyA"))
    return key, key, []


def sealer_under(scope: str) -> Callable[[IcebergTable], Any]:
    def seal(table: IcebergTable) -> Any:
        made = table.walk.resolver.masters.new_keks("keyA", 16, ["", scope])
        return made[0], made[1], [kek.key.entry() for kek in made]

    return seal


def file_keys(table: IcebergTable) -> dict[str, tuple[bytes, bytes]]:
    """Return each file's key metadata as its manifest has it, and the key that it opens to."""
    found = {}
    for snapshot in table.metadata.snapshots:
        for manifest in table.walk.manifests(snapshot):
            for entry in table.walk.entries(manifest):
                keys = table.walk.file_keys(entry)
                assert entry.key_metadata is not None
                assert keys is not None
                found[entry.location] = (entry.key_metadata, keys.encode())
    return found

"""List the snapshots, keys and files of a table as Arrow tables."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa

from modcrypt.iceberg.format.library_errors import as_format_errors
from modcrypt.iceberg.format.manifest_rows.file_entries import DATA, FileEntry
from modcrypt.iceberg.format.manifests import FILE_KINDS, ManifestFile
from modcrypt.iceberg.format.table_metadata import Snapshot, TableMetadata
from modcrypt.iceberg.keys.key_resolver import KeyResolver, encrypting_key
from modcrypt.iceberg.read.table_walk import Walk

_TIME = pa.timestamp("ms", tz="UTC")

_SNAPSHOTS = pa.schema(
    [
        ("snapshot_id", pa.int64()), ("parent_id", pa.int64()), ("sequence_number", pa.int64()),
        ("committed_at", _TIME), ("operation", pa.string()), ("manifest_list", pa.string()),
        ("key_id", pa.string()), ("kek_id", pa.string()), ("current", pa.bool_()),
    ]
)  # fmt: skip
_HISTORY = pa.schema(
    [("made_current_at", _TIME), ("snapshot_id", pa.int64()), ("parent_id", pa.int64())]
)
_REFS = pa.schema([("name", pa.string()), ("type", pa.string()), ("snapshot_id", pa.int64())])
_KEYS = pa.schema(
    [
        ("key_id", pa.string()), ("kind", pa.string()), ("encrypted_by", pa.string()),
        ("wrapping", pa.string()), ("created_at", _TIME), ("scope", pa.string()),
        ("store", pa.string()), ("snapshots", pa.int64()),
    ]
)  # fmt: skip
_FILES = pa.schema(
    [
        ("kind", pa.string()), ("location", pa.string()), ("file_format", pa.string()),
        ("bytes", pa.int64()), ("records", pa.int64()), ("encrypted", pa.bool_()),
        ("sealed_by", pa.string()), ("sequence_number", pa.int64()), ("manifest", pa.string()),
    ]
)  # fmt: skip


def list_snapshots(metadata: TableMetadata) -> pa.Table:
    """List the snapshots of a table as in metadata.json, one row for each.

    Raise FormatError if a number is outside the range of 64 bits.
    """
    current, keys = metadata.document.get("current-snapshot-id"), metadata.keys
    rows = [
        {
            "snapshot_id": snapshot.id,
            "parent_id": snapshot.parent,
            "sequence_number": snapshot.sequence_number,
            "committed_at": snapshot.timestamp_ms,
            "operation": snapshot.operation,
            "manifest_list": snapshot.manifest_list,
            "key_id": snapshot.key_id,
            "kek_id": keys[snapshot.key_id].encrypted_by if snapshot.key_id in keys else None,
            "current": snapshot.id == current,
        }
        for snapshot in metadata.snapshots
    ]
    return _build_table(rows, _SNAPSHOTS, metadata)


def list_history(metadata: TableMetadata) -> pa.Table:
    """List the snapshots that were current, with the times from which they were."""
    parents = {snapshot.id: snapshot.parent for snapshot in metadata.snapshots}
    rows = [
        {
            "made_current_at": entry["timestamp-ms"],
            "snapshot_id": entry["snapshot-id"],
            "parent_id": parents.get(entry["snapshot-id"]),
        }
        for entry in metadata.history()
    ]
    return _build_table(rows, _HISTORY, metadata)


def list_refs(metadata: TableMetadata) -> pa.Table:
    """List the branches and tags of a table; raise FormatError if one is malformed."""
    rows = [
        {"name": name, "type": ref.get("type"), "snapshot_id": ref.get("snapshot-id")}
        for name, ref in metadata.refs.items()
    ]
    return _build_table(rows, _REFS, metadata)


def _build_table(
    rows: list[dict[str, Any]], schema: pa.Schema, metadata: TableMetadata
) -> pa.Table:
    with as_format_errors(metadata.name):  # numbers may exceed 64 bits
        return pa.Table.from_pylist(rows, schema)


def list_keys(metadata: TableMetadata, resolver: KeyResolver) -> pa.Table:
    """List the keys of a table: KEKs, and the encrypted key metadata of manifest lists.

    The column `snapshots` counts the snapshots that need a key. No key is unwrapped.
    """
    of_lists = Counter(
        snapshot.key_id for snapshot in metadata.snapshots if snapshot.key_id is not None
    )
    of_keks = Counter[str]()
    for key_id, count in of_lists.items():
        if (entry := metadata.keys.get(key_id)) is not None:
            of_keks[entry.encrypted_by] += count
    keks = resolver.keks(metadata)
    rows = [
        {
            "key_id": kek.id,
            "kind": "KEK",
            "encrypted_by": kek.master_key_id,
            "wrapping": "master key",
            "created_at": kek.timestamp_ms,
            "scope": kek.scope or "table",
            "store": "table" if kek.id in metadata.keys else "key store",
            "snapshots": of_keks[kek.id],
        }
        for kek in keks.values()
    ]
    rows += [
        {
            "key_id": entry.id,
            "kind": "manifest list",
            "encrypted_by": entry.encrypted_by,
            "wrapping": "single" if entry.is_single else "double",
            "store": "table",
            "snapshots": of_lists[entry.id],
        }
        for entry in metadata.keys.values()
        if entry.id not in keks
    ]
    return _build_table(rows, _KEYS, metadata)


def list_files(walk: Walk, snapshot: Snapshot | None) -> pa.Table:
    """List a snapshot's files: its manifest list, manifests, and live data and delete files."""
    rows: list[dict[str, Any]] = []
    if snapshot is not None:
        rows.append(_list_row(walk, snapshot))
        for manifest in walk.manifests(snapshot):
            rows.append(_manifest_row(manifest, snapshot))
            live = (entry for entry in walk.entries(manifest) if entry.is_live)
            rows.extend(_file_row(entry, manifest) for entry in live)
    return _build_table(rows, _FILES, walk.metadata)


def _list_row(walk: Walk, snapshot: Snapshot) -> dict[str, Any]:
    entry = walk.metadata.keys.get(snapshot.key_id or "")
    return {
        "kind": "manifest list",
        "location": snapshot.manifest_list,
        "file_format": "AVRO",
        "encrypted": snapshot.key_id is not None,
        "sealed_by": None if entry is None else entry.encrypted_by,
        "sequence_number": snapshot.sequence_number,
    }


def _manifest_row(manifest: ManifestFile, snapshot: Snapshot) -> dict[str, Any]:
    return {
        "kind": "manifest" if manifest.content == DATA else "delete manifest",
        "location": manifest.location,
        "file_format": "AVRO",
        "bytes": manifest.length,
        "encrypted": manifest.key_metadata is not None,
        "sequence_number": manifest.sequence_number,
        "manifest": snapshot.manifest_list,
    }


def _file_row(entry: FileEntry, manifest: ManifestFile) -> dict[str, Any]:
    vector = entry.file_format == "PUFFIN"
    by = encrypting_key(entry.key_metadata)
    return {
        "kind": "deletion vector" if vector else FILE_KINDS[entry.content],
        "location": entry.location,
        "file_format": entry.file_format,
        "bytes": entry.size,
        "records": entry.record_count,
        "encrypted": entry.key_metadata is not None,
        "sealed_by": None if by is None else by[0],
        "sequence_number": entry.sequence_number,
        "manifest": manifest.location,
    }

"""Add a snapshot to a table: write its manifest list and make the metadata.json that names it.

Members and numbers match Iceberg's Java (SnapshotProducer, SnapshotSummary, TableMetadata).
"""

from __future__ import annotations

import re
import secrets
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from modcrypt.iceberg.format.manifest_rows.file_entries import (
    DATA,
    EQUALITY_DELETES,
    POSITION_DELETES,
    FileEntry,
)
from modcrypt.iceberg.format.table_metadata import EncryptedKey, Snapshot, TableMetadata
from modcrypt.iceberg.write.manifest_writing import SnapshotFields, write_manifest_list

if TYPE_CHECKING:
    from modcrypt.iceberg.keys.wrapping_keys import OpenKey
    from modcrypt.iceberg.read.table_version import TableVersion
    from modcrypt.iceberg.write.new_files import NewFiles

MAIN = "main"  # the branch whose newest snapshot is the table's current one


def new_snapshot_id(metadata: TableMetadata) -> int:
    """Return a random positive id of 63 bits that the table does not use yet."""
    taken = {0, *(snapshot.id for snapshot in metadata.snapshots)}
    while (snapshot_id := secrets.randbits(63)) in taken:
        pass
    return snapshot_id


def branch_head(metadata: TableMetadata, branch: str) -> Snapshot | None:
    """Return the snapshot that a commit to a branch follows: of a new branch, the current one.

    Raise ValueError if the name is that of a tag, or empty.
    """
    ref = metadata.refs.get(branch)
    if not isinstance(branch, str) or not branch:
        raise ValueError("branch must be the name of a branch")
    if branch == MAIN or ref is None:
        return metadata.current
    if ref.get("type") != "branch":
        raise ValueError(f"{branch!r} is a tag; rows can only be written to a branch")
    return metadata.snapshot(ref["snapshot-id"])


def ancestors(id_: int | None, by_id: Mapping[int, Snapshot]) -> Iterator[Snapshot]:
    """Yield a snapshot and those before it, as far as the table has them."""
    # A forged history may be a circle.
    seen = set[int]()
    while id_ is not None and id_ in by_id and id_ not in seen:
        seen.add(id_)
        yield by_id[id_]
        id_ = by_id[id_].parent


def names_any(entry: Any, snapshots: Collection[int]) -> bool:
    """Return whether an entry of a log, a branch or a file of statistics is of these snapshots."""
    return isinstance(entry, dict) and entry.get("snapshot-id") in snapshots


def add_snapshot(
    table: TableVersion, snapshot_id: int, rows: Iterable[Mapping[str, Any]], opened: OpenKey,
    files: NewFiles, *, operation: str, summary: Mapping[str, str], replaced: int = 0,
    new_keys: Sequence[EncryptedKey] = (), parent: Snapshot | None = None,
    refs: Sequence[str] = (MAIN,), schema_id: int | None = None,
) -> TableMetadata:  # fmt: skip
    """Write the manifest list of a new snapshot; return the table's metadata to commit.

    Args:
        snapshot_id: Id from `new_snapshot_id`.
        rows: Rows of all manifests of the snapshot, the new ones first, as in Java.
        operation: `append`, `replace`, `overwrite` or `delete`.
        summary: Other members of the snapshot's summary, but for numbers of manifests and totals.
        replaced: Number of manifests that others replace.
        parent: Snapshot that it follows; None for the current one.
        refs: Branches and tags that name it from now on; they keep their retention.
        schema_id: Id of its schema; None for the current one.
    """
    base, rows = table.metadata, list(rows)
    parent = parent or base.current
    created = sum(row["added_snapshot_id"] == snapshot_id for row in rows)
    numbers = {"created": created, "kept": len(rows) - created, "replaced": replaced}
    summary = {**summary, **{f"manifests-{name}": str(n) for name, n in numbers.items()}}
    fields = SnapshotFields(
        snapshot_id,
        None if parent is None else parent.id,
        base.last_sequence_number + 1,
        int(base.document.get("next-row-id") or 0),
    )
    location, entry, next_row_id = write_manifest_list(table, fields, rows, opened, files)
    now = max(int(time.time() * 1000), int(base.document.get("last-updated-ms") or 0))
    document: dict[str, Any] = {"sequence-number": fields.sequence_number, "snapshot-id": fields.id}
    if parent is not None:
        document["parent-snapshot-id"] = parent.id
    document |= {
        "timestamp-ms": now,
        "summary": {"operation": operation, **_add_totals(summary, parent)},
        "manifest-list": location,
        "schema-id": base.document["current-schema-id"] if schema_id is None else schema_id,
        "first-row-id": fields.first_row_id,
        "added-rows": next_row_id - fields.first_row_id,
        "key-id": entry.id,
    }
    moved = {
        name: {"type": "branch", **base.refs.get(name, {}), "snapshot-id": fields.id}
        for name in refs
    }
    members: dict[str, Any] = {}
    if MAIN in refs:
        logged = {"timestamp-ms": now, "snapshot-id": fields.id}
        log = [*(base.document.get("snapshot-log") or []), logged]
        members = {"current_snapshot_id": fields.id, "snapshot_log": log}
    return base.with_keys(
        [*base.keys.values(), *new_keys, entry], last_sequence_number=fields.sequence_number,
        last_updated_ms=now, next_row_id=next_row_id, refs={**base.refs, **moved},
        snapshots=[*(base.document.get("snapshots") or []), document], **members,
    )  # fmt: skip


_RECORDS = {
    DATA: "records", POSITION_DELETES: "position-deletes", EQUALITY_DELETES: "equality-deletes",
}  # fmt: skip


def count_file(
    counts: Counter[str], entry: FileEntry, verb: str, of_deletes: str, size: int
) -> None:
    """Add a file to the counts of a summary; Java counts each deletion vector as a file."""
    is_data = entry.content == DATA
    counts[f"{of_deletes}-files-size"] += size
    counts[f"{verb}-data-files" if is_data else f"{of_deletes}-delete-files"] += 1
    counts[f"{verb if is_data else of_deletes}-{_RECORDS[entry.content]}"] += entry.record_count


def stored_size(entry: FileEntry, otherwise: int | None = None) -> int:
    """Return the bytes of a file, or of a deletion vector alone; `otherwise` overrides a file's."""
    if entry.file_format == "PUFFIN":
        return int(entry.file["content_size_in_bytes"])
    return entry.size if otherwise is None else otherwise


_TOTAL = re.compile(r"[0-9]{1,18}")
_TOTALS = (
    ("total-records", "added-records", "deleted-records"),
    ("total-files-size", "added-files-size", "removed-files-size"),
    ("total-data-files", "added-data-files", "deleted-data-files"),
    ("total-delete-files", "added-delete-files", "removed-delete-files"),
    ("total-position-deletes", "added-position-deletes", "removed-position-deletes"),
    ("total-equality-deletes", "added-equality-deletes", "removed-equality-deletes"),
)


def _add_totals(summary: Mapping[str, str], parent: Snapshot | None) -> dict[str, str]:
    """Return a snapshot's summary with totals: those of its parent plus the snapshot's changes."""
    # Totals that the parent lacks, or has in another form than a number, are omitted.
    before = {} if parent is None else parent.document.get("summary") or {}
    totals = dict(summary)
    for total, added, removed in _TOTALS:
        old = "0" if parent is None else before.get(total)
        if isinstance(old, str) and _TOTAL.fullmatch(old):
            new = int(old) + int(summary.get(added, "0")) - int(summary.get(removed, "0"))
            if new >= 0:
                totals[total] = str(new)
    return totals

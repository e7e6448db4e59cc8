"""A new snapshot of a table: its manifest list, and what metadata.json says of it.

Members and numbers are those of Iceberg's Java (SnapshotProducer, SnapshotSummary, TableMetadata).
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from modcrypt.iceberg.format.table_metadata import EncryptedKey, Snapshot, TableMetadata
from modcrypt.iceberg.write.manifest_writing import SnapshotFields, write_manifest_list

if TYPE_CHECKING:
    from modcrypt.iceberg.keys.wrapping_keys import OpenKey
    from modcrypt.iceberg.tables.table import IcebergTable

__all__ = ["MAIN", "add_snapshot", "new_snapshot_id", "with_totals"]

MAIN = "main"
"""The branch whose newest snapshot is the table's current one."""


def new_snapshot_id(metadata: TableMetadata) -> int:
    """Give a fresh random id: positive, of 63 bits, and none that the table has."""
    taken = {0, *(one.id for one in metadata.snapshots)}
    while (found := secrets.randbits(63)) in taken:
        pass
    return found


def add_snapshot(
    table: IcebergTable,
    snapshot_id: int,
    rows: Iterable[Mapping[str, Any]],
    opened: OpenKey,
    *,
    operation: str,
    summary: Mapping[str, str],
    new_keys: Sequence[EncryptedKey] = (),
) -> TableMetadata:
    """Write the manifest list of a new current snapshot, and give the table's next metadata.

    Args:
        table: at the version that the next one follows.
        snapshot_id: as `new_snapshot_id` gives it.
        rows: of all its manifests, the new ones first, as Java has it.
        opened: the key under which the list's key metadata is sealed.
        operation: `append`, `replace`, `overwrite` or `delete`.
        summary: what else the snapshot's summary says.
        new_keys: KEKs that the table's `encryption-keys` are to have besides those they have.

    Returns:
        Metadata to be committed; the caller removes its manifest list if it is not.

    Raises:
        ValueError, FormatError, KeyRetrievalError, OSError: as `write_manifest_list`.
    """
    base = table.metadata
    parent = base.current
    fields = SnapshotFields(
        snapshot_id,
        None if parent is None else parent.id,
        base.last_sequence_number + 1,
        int(base.document.get("next-row-id") or 0),
    )
    location, entry, next_row_id = write_manifest_list(table, fields, rows, opened)
    now = max(int(time.time() * 1000), int(base.document.get("last-updated-ms") or 0))
    document: dict[str, Any] = {"sequence-number": fields.sequence_number, "snapshot-id": fields.id}
    if parent is not None:
        document["parent-snapshot-id"] = parent.id
    document |= {
        "timestamp-ms": now,
        "summary": {"operation": operation, **summary},
        "manifest-list": location,
        "schema-id": base.document["current-schema-id"],
        "first-row-id": fields.first_row_id,
        "added-rows": next_row_id - fields.first_row_id,
        "key-id": entry.id,
    }
    refs = base.refs
    main = {**refs.get(MAIN, {}), "snapshot-id": fields.id, "type": "branch"}
    logged = {"timestamp-ms": now, "snapshot-id": fields.id}
    return base.with_keys(
        [*base.keys.values(), *new_keys, entry],
        last_sequence_number=fields.sequence_number,
        last_updated_ms=now,
        current_snapshot_id=fields.id,
        next_row_id=next_row_id,
        refs={**refs, MAIN: main},
        snapshots=[*(base.document.get("snapshots") or []), document],
        snapshot_log=[*(base.document.get("snapshot-log") or []), logged],
    )


_TOTAL = re.compile(r"[0-9]{1,18}")
_TOTALS = (
    ("total-records", "added-records", "deleted-records"),
    ("total-files-size", "added-files-size", "removed-files-size"),
    ("total-data-files", "added-data-files", "deleted-data-files"),
    ("total-delete-files", "added-delete-files", "removed-delete-files"),
    ("total-position-deletes", "added-position-deletes", "removed-position-deletes"),
    ("total-equality-deletes", "added-equality-deletes", "removed-equality-deletes"),
)


def with_totals(summary: Mapping[str, str], parent: Snapshot | None) -> dict[str, str]:
    """Add the totals to a snapshot's summary: those of its parent, and what it changes.

    A total that the parent does not tell, or not as a number, is left out.
    """
    before = {} if parent is None else parent.document.get("summary") or {}
    found = dict(summary)
    for total, added, removed in _TOTALS:
        old = "0" if parent is None else before.get(total)
        if isinstance(old, str) and _TOTAL.fullmatch(old):
            new = int(old) + int(summary.get(added, "0")) - int(summary.get(removed, "0"))
            if new >= 0:
                found[total] = str(new)
    return found

"""What manifest lists and manifests say of the table, held against what metadata.json says.

Nothing signs metadata.json; but the Avro headers of manifest lists and manifests are sealed with
the rest, and name the snapshot, the schema and the partition spec that they were written for. So
another snapshot's list, or columns that exchanged their names, are found.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from modcrypt.iceberg.inventory import ReachedList, ReachedManifest
from modcrypt.iceberg.manifests import ADDED, DELETED, EXISTING, misplaced
from modcrypt.iceberg.table_findings import TableReport
from modcrypt.iceberg.table_metadata import TableMetadata

__all__ = ["check_list", "check_manifest"]


def check_list(one: ReachedList, report: TableReport) -> None:
    """Hold a manifest list against its snapshots: its header, which is sealed, names its own."""
    for snapshot in one.snapshots:
        for name in ("snapshot-id", "sequence-number"):
            if name not in one.header:
                report.note("snapshot", one.location, f"it does not say its {name}")
        for what in misplaced(one.header, snapshot):
            report.tell("integrity", what, one.location)
        newer = [m for m in one.manifests if m.manifest.sequence_number > snapshot.sequence_number]
        if newer:
            report.tell(
                "integrity",
                f"{len(newer)} of its manifests are newer than snapshot {snapshot.id}",
                one.location,
            )


_SPEC_ID = re.compile(r"[0-9]{1,10}")
_STATUSES = ((ADDED, "added"), (EXISTING, "existing"), (DELETED, "deleted"))


def check_manifest(one: ReachedManifest, metadata: TableMetadata, report: TableReport) -> None:
    """Hold a manifest against what its manifest list and metadata.json say of it."""
    _check_counts(one, report)
    schema, spec = _own_schema(one.header), _own_spec(one.header)
    for what, differs in (
        ("schema", schema and _differs(metadata, "schemas", "schema-id", schema, _schema)),
        ("partition spec", spec and _differs(metadata, "partition-specs", "spec-id", spec, _spec)),
    ):
        if differs:
            report.tell(
                "integrity",
                f"metadata.json has another {what} under the id of the one that it was written "
                "under, by which its rows are read",
                one.manifest.location,
            )


def _check_counts(one: ReachedManifest, report: TableReport) -> None:
    """Hold what a manifest list says of a manifest against its entries."""
    row = one.manifest.row
    for status, name in _STATUSES:
        found = one.counts.get(status, (0, 0))
        for number, what in zip(found, ("files", "rows"), strict=True):
            said = row.get(f"{name}_{what}_count")
            if said is not None and said != number:
                report.tell(
                    "truncation",
                    f"it has {number} {name} {what}, the manifest list says {said}",
                    one.manifest.location,
                )


# --- schemas and partition specs -----------------------------------------------------------------

_NAMING = frozenset(
    ("id", "name", "required", "element-id", "element-required", "key-id", "value-id",
     "value-required")
)  # fmt: skip
"""What makes a field the one that it is; comments and defaults may be spelt otherwise."""

_INNER = ("fields", "element", "key", "value", "type")
"""What of a type has types within."""


def _differs(
    metadata: TableMetadata,
    member: str,
    id_name: str,
    own: tuple[int, Any],
    essence: Callable[[Any], Any],
) -> bool:
    """Whether metadata.json has something else under an id; nothing is no difference."""
    listed = metadata.document.get(member)
    same = [
        one
        for one in (listed if isinstance(listed, list) else ())
        if isinstance(one, dict) and one.get(id_name) == own[0]
    ]
    try:
        return any(essence(one) != essence(own[1]) for one in same)
    except RecursionError:
        return True


def _own_schema(header: Mapping[str, str]) -> tuple[int, Any] | None:
    """Give the schema that a manifest was written under, with its id, if it tells them."""
    found = _parsed(header.get("schema", ""))
    known = found.get("schema-id") if isinstance(found, dict) else None
    return (known, found) if isinstance(known, int) else None


def _own_spec(header: Mapping[str, str]) -> tuple[int, Any] | None:
    """Give the partition spec that a manifest was written under, with its id, if it tells them."""
    found, known = _parsed(header.get("partition-spec", "")), header.get("partition-spec-id", "")
    told = isinstance(found, list) and all(isinstance(one, dict) for one in found)
    # Old writers left the ids of the fields out.
    if not told or not _SPEC_ID.fullmatch(known) or any("field-id" not in one for one in found):
        return None
    return int(known), {"fields": found}


@lru_cache(maxsize=256)
def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _schema(schema: Any) -> Any:
    """Give what of a type decides how rows are read."""
    if isinstance(schema, list):
        return [_schema(one) for one in schema]
    if isinstance(schema, str):
        return schema.replace(" ", "")  # `decimal(9, 2)`
    if not isinstance(schema, dict):
        return schema
    kept = {name: value for name, value in schema.items() if name in _NAMING}
    return kept | {name: _schema(schema[name]) for name in _INNER if name in schema}


def _spec(spec: Any) -> Any:
    """Give what of a partition spec decides how values are made of columns."""
    fields = spec.get("fields")
    return [
        (one.get("field-id"), one.get("name"), one.get("transform"), _sources(one))
        for one in (fields if isinstance(fields, list) else ())
        if isinstance(one, dict)
    ]


def _sources(field: Mapping[str, Any]) -> Any:
    """Give the columns of a partition field, which version 3 may list."""
    return field.get("source-ids") or [field.get("source-id")]

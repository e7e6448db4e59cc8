"""Sealed headers of manifest lists and manifests, compared with metadata.json.

Nothing signs metadata.json. The Avro headers of manifest lists and manifests are encrypted with
the rest, and name the snapshot, the schema and the partition spec that the file was written for
(Iceberg spec, "Manifests"). So another snapshot's list is noticed, and a schema or spec that has
another meaning than it had. One under an id that no header has is taken for a newer one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from modcrypt.iceberg.format.table_metadata import Snapshot, TableMetadata

__all__ = ["misplaced", "redefined"]


def misplaced(header: Mapping[str, str], snapshot: Snapshot) -> Iterator[str]:
    """Tell what the header of a manifest list has otherwise than the snapshot that names it.

    It is sealed with the rest; nothing vouches for metadata.json, which may give a snapshot the
    list of another one, with its key.
    """
    for name, said in (
        ("snapshot-id", snapshot.id),
        ("sequence-number", snapshot.sequence_number),
    ):
        if (own := header.get(name, str(said))) != str(said):
            yield (
                f"its {name} is {own}, that of the snapshot which metadata.json gives it to "
                f"{said}: it was put in the place of another manifest list"
            )


def redefined(header: Mapping[str, str], metadata: TableMetadata) -> Sequence[str]:
    """Return what is wrong with the schema and the partition spec by which a manifest is read.

    Args:
        header: The manifest's Avro header.
        metadata: The table's metadata, which must not have others under their ids.

    Raises:
        FormatError: its schemas or partition specs are malformed.
    """
    key = tuple(header.get(name) for name in ("schema", "partition-spec", "partition-spec-id"))
    if key not in metadata.compared:  # one header is that of many manifests
        metadata.compared[key] = tuple(_redefined(header, metadata))
    return metadata.compared[key]


def _redefined(header: Mapping[str, str], metadata: TableMetadata) -> Iterator[str]:
    schema, spec = _own_schema(header), _own_spec(header)
    for what, differs in (
        ("schema", schema and _differs(metadata.schemas(), "schema-id", schema, _schema)),
        ("partition spec", spec and _differs(metadata.specs(), "spec-id", spec, _spec)),
    ):
        if differs:
            yield (
                f"metadata.json has another {what} under the id of the one that this manifest was "
                "written under: the file was altered; restore an older metadata.json"
            )


_SPEC_ID = re.compile(r"[0-9]{1,10}")

_NAMING = frozenset(
    ("id", "name", "required", "element-id", "element-required", "key-id", "value-id",
     "value-required")
)  # fmt: skip
"""Members that define a field, apart from its defaults; comments do not."""

_DEFAULTS = ("initial-default", "write-default")

_INNER = ("fields", "element", "key", "value", "type")
"""Members of a type that hold other types."""


def _differs(
    listed: Sequence[Mapping[str, Any]],
    id_name: str,
    own: tuple[int, Any],
    essence: Callable[[Any], Any],
) -> bool:
    """Return whether metadata.json has something else under an id; nothing is no difference."""
    try:
        return any(essence(one) != essence(own[1]) for one in listed if one.get(id_name) == own[0])
    except RecursionError:
        return True


def _own_schema(header: Mapping[str, str]) -> tuple[int, Any] | None:
    """Return the id and schema that a manifest was written under, if its header has them."""
    found = _parsed(header.get("schema", ""))
    known = found.get("schema-id") if isinstance(found, dict) else None
    return (known, found) if isinstance(known, int) else None


def _own_spec(header: Mapping[str, str]) -> tuple[int, Any] | None:
    """Return the id and partition spec that a manifest was written under, if it has them."""
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
    """Return the parts of a type that decide how rows are read."""
    if isinstance(schema, list):
        return [_schema(one) for one in schema]
    if isinstance(schema, str):
        return schema.replace(" ", "")  # `decimal(9, 2)`
    if not isinstance(schema, dict):
        return schema
    kept = {name: value for name, value in schema.items() if name in _NAMING}
    defaults = {name: schema[name] for name in _DEFAULTS if schema.get(name) is not None}
    return kept | defaults | {name: _schema(schema[name]) for name in _INNER if name in schema}


def _spec(spec: Any) -> Any:
    """Return the parts of a partition spec that decide how values follow from columns."""
    fields = spec.get("fields")
    return [
        (one.get("field-id"), one.get("name"), one.get("transform"), _sources(one))
        for one in (fields if isinstance(fields, list) else ())
        if isinstance(one, dict)
    ]


def _sources(field: Mapping[str, Any]) -> Any:
    """Return the columns of a partition field, which version 3 may list."""
    return field.get("source-ids") or [field.get("source-id")]

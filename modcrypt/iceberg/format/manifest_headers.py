"""Compare the encrypted headers of manifest lists and manifests with metadata.json.

Nothing signs metadata.json. The Avro headers of manifest lists and manifests are encrypted with
the rest, and name the snapshot, the schema and the partition spec that the file was written for
(Iceberg spec, "Manifests"). Comparing them detects a manifest list of another snapshot, and a
schema or spec whose meaning was changed. A schema or spec whose id no header has is considered new.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from modcrypt.iceberg.format.table_metadata import Snapshot, TableMetadata


def find_misplacements(header: Mapping[str, str], snapshot: Snapshot) -> Iterator[str]:
    """Describe the differences between a manifest list's header and the snapshot that names it.

    The header is encrypted with the rest. Nothing vouches for metadata.json, which may assign the
    manifest list of another snapshot, with its key, to this one.
    """
    stated = {"snapshot-id": snapshot.id, "sequence-number": snapshot.sequence_number}
    for name, value in stated.items():
        if (own := header.get(name, str(value))) != str(value):
            yield (
                f"its {name} is {own}, but {value} in the snapshot that metadata.json assigns it "
                "to: it was put in the place of another manifest list"
            )


def find_redefinitions(header: Mapping[str, str], metadata: TableMetadata) -> Sequence[str]:
    """Describe how metadata.json redefines the schema or partition spec of a manifest.

    The metadata must have no other ones under the ids in `header`, the manifest's Avro header.
    Raise FormatError if the schemas or partition specs of the metadata are malformed.
    """
    key = tuple(header.get(name) for name in ("schema", "partition-spec", "partition-spec-id"))
    if key not in metadata.compared:  # many manifests share one header
        schema, spec = _own_schema(header), _own_spec(header)
        redefined = {
            "schema": schema and _differs(metadata.schemas(), "schema-id", schema, _schema_essence),
            "partition spec": spec and _differs(metadata.specs(), "spec-id", spec, _spec_essence),
        }
        metadata.compared[key] = tuple(
            f"metadata.json has another {what} under the id of the one that this manifest was "
            "written with: metadata.json was altered; restore an older version of it"
            for what, differs in redefined.items()
            if differs
        )
    return metadata.compared[key]


_SPEC_ID = re.compile(r"[0-9]{1,10}")

_NAMING = frozenset(
    ("id", "name", "required", "element-id", "element-required", "key-id", "value-id",
     "value-required")
)  # fmt: skip
"""Members that define a field, apart from its defaults. Comments do not define it."""

_DEFAULTS = ("initial-default", "write-default")

_INNER = ("fields", "element", "key", "value", "type")  # members of a type that hold other types


def _differs(
    listed: Sequence[Mapping[str, Any]],
    id_name: str,
    own: tuple[int, Any],
    essence: Callable[[Any], Any],
) -> bool:
    """Return whether metadata.json has another definition under an id; a missing one is none."""
    try:
        return any(
            essence(definition) != essence(own[1])
            for definition in listed
            if definition.get(id_name) == own[0]
        )
    except RecursionError:
        return True


def _own_schema(header: Mapping[str, str]) -> tuple[int, Any] | None:
    """Return the id and schema that a manifest was written with, if its header has them."""
    schema = _parse_json(header.get("schema", ""))
    schema_id = schema.get("schema-id") if isinstance(schema, dict) else None
    return (schema_id, schema) if isinstance(schema_id, int) else None


def _own_spec(header: Mapping[str, str]) -> tuple[int, Any] | None:
    """Return the id and partition spec that a manifest was written with, if its header has them."""
    spec_id = header.get("partition-spec-id", "")
    fields = _parse_json(header.get("partition-spec", ""))
    if not isinstance(fields, list) or not _SPEC_ID.fullmatch(spec_id):
        return None
    if not all(isinstance(entry, dict) and "field-id" in entry for entry in fields):
        return None  # old writers omitted the ids of the fields
    return int(spec_id), {"fields": fields}


@lru_cache(maxsize=256)
def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _schema_essence(schema: Any) -> Any:
    """Return the parts of a type that decide how rows are read."""
    if isinstance(schema, list):
        return [_schema_essence(member) for member in schema]
    if isinstance(schema, str):
        return schema.replace(" ", "")  # `decimal(9, 2)`
    if not isinstance(schema, dict):
        return schema
    # pyiceberg also accepts the spelling `initial_default`.
    schema = {name.replace("_", "-"): value for name, value in schema.items()}
    naming = {name: value for name, value in schema.items() if name in _NAMING}
    defaults = _read_defaults(schema)
    inner = {name: _schema_essence(schema[name]) for name in _INNER if name in schema}
    return naming | defaults | inner


def _read_defaults(field: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of a field as values, because writers spell the same one differently."""
    given = {name: field[name] for name in _DEFAULTS if field.get(name) is not None}
    if not given:
        return given
    from pyiceberg.types import DoubleType, FloatType, NestedField

    try:
        read = NestedField.model_validate(field)
        values = {"initial-default": read.initial_default, "write-default": read.write_default}
        values = {name: values[name] for name in given}
        if isinstance(read.field_type, FloatType | DoubleType):  # 0.0 equals -0.0
            form = "<f" if isinstance(read.field_type, FloatType) else "<d"
            return {name: struct.pack(form, value) for name, value in values.items()}
    except Exception:  # nanoseconds, or a field that nobody can read
        return given
    return values


def _spec_essence(spec: Any) -> Any:
    """Return the parts of a partition spec that decide how partition values follow from columns."""
    fields = spec.get("fields")
    return [
        (field.get("field-id"), field.get("name"), field.get("transform"), _sources(field))
        for field in (fields if isinstance(fields, list) else ())
        if isinstance(field, dict)
    ]


def _sources(field: Mapping[str, Any]) -> Any:
    """Return the source columns of a partition field; version 3 allows a list of them."""
    # Readers disagree on a field that has both a single source and a list.
    single, listed = field.get("source-id"), field.get("source-ids")
    others = [source for source in listed if source != single] if isinstance(listed, list) else []
    return others if single is None else [single, *others]

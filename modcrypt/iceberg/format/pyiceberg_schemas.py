"""Return a table's schemas and partition specs as pyiceberg's classes; its metadata stays as it is.

Only the parts that a scan needs are converted: pyiceberg's class for the whole metadata applies its
own rules to snapshots and sort orders, and takes seconds for 10,000 snapshots.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping
from typing import Any, TypeVar

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import NameMapping, parse_mapping_from_json
from pyiceberg.typedef import IcebergBaseModel

from modcrypt.errors import FormatError, UnsupportedFormatError
from modcrypt.iceberg.format.library_errors import as_format_errors
from modcrypt.iceberg.format.table_metadata import TableMetadata

_UNREAD = ("variant", "geometry", "geography")
"""Types of format version 3 that pyiceberg does not have, or cannot convert to Arrow."""


def schema_of(
    metadata: TableMetadata, schema_id: int | None = None, columns: Collection[str] | None = None
) -> Schema:
    """Return the schema of a table with the given id, or the current one for None.

    With `columns`, fields of types that are not supported, such as `variant`, are left out unless
    they are in these. Otherwise raise UnsupportedFormatError for them; and FormatError if no such
    schema exists, or pyiceberg rejects it.
    """
    schemas = metadata.schemas()
    if schemas and not metadata.document.get("schemas"):  # format version 1
        return _parse_schema(schemas[0], metadata, columns)
    wanted = metadata.document.get("current-schema-id") if schema_id is None else schema_id
    for schema in schemas:
        if schema["schema-id"] == wanted:
            return _parse_schema(schema, metadata, columns)
    raise FormatError(f"{metadata.name}: schema {wanted!r} does not exist")


def schemas_of(metadata: TableMetadata) -> Iterator[Schema]:
    """Yield all schemas of a table: the current one first, then from the newest to the oldest.

    They lack fields of types that are not supported. Raises FormatError as `schema_of` when it
    reaches the schema.
    """
    yield schema_of(metadata, columns=())
    numbers = {schema["schema-id"] for schema in metadata.schemas()}
    for number in sorted((number for number in numbers if type(number) is int), reverse=True):
        yield schema_of(metadata, number, ())


def spec_of(metadata: TableMetadata, spec_id: int) -> PartitionSpec:
    """Return the partition spec of a table with the given id. Raises the errors of `schema_of`."""
    for spec in metadata.specs():
        if spec.get("spec-id") == spec_id:
            return _validate(PartitionSpec, spec, metadata)
    raise FormatError(f"{metadata.name}: partition spec {spec_id} does not exist")


def name_mapping(metadata: TableMetadata) -> NameMapping | None:
    """Return the name mapping for fields of files without field ids, if the table has one."""
    if (text := metadata.properties.get("schema.name-mapping.default")) is None:
        return None
    with as_format_errors(metadata.name):
        return parse_mapping_from_json(text)


def _parse_schema(
    document: Any, metadata: TableMetadata, columns: Collection[str] | None
) -> Schema:
    if columns is not None:
        used = {name.casefold() for name in columns}
        with as_format_errors(metadata.name):
            document = {**document, "fields": list(_drop_unread(document["fields"], used))}
        document.pop("identifier-field-ids", None)  # a field that was left out may be among them
    for kind in _unread_types(document):
        raise UnsupportedFormatError(
            f"{metadata.name}: columns of type {kind} are not supported; select others to read them"
        )
    return _validate(Schema, document, metadata)


def _drop_unread(fields: Any, used: Container[str], parent: str = "") -> Iterator[Any]:
    """Yield fields without those of types that are not supported, and are not among the used."""
    for field in fields:
        kind, name = field["type"], f"{parent}{field['name']}".casefold()
        if name in used or not any(_unread_types(field)):
            yield field
        elif isinstance(kind, dict) and "fields" in kind and not _has_default(field):
            yield {
                **field,
                "type": {**kind, "fields": [*_drop_unread(kind["fields"], used, f"{name}.")]},
            }


def _unread_types(document: Any) -> Iterator[str]:
    """Yield the types of a schema that pyiceberg cannot read, alone or with a default."""
    waiting = [document]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += node
        elif isinstance(node, dict):
            members = [
                node[name] for name in ("type", "fields", "element", "key", "value") if name in node
            ]
            texts = [text for text in members if isinstance(text, str)]
            yield from (text for text in texts if text.startswith(_UNREAD))
            kind = texts[0] if texts else "struct, list or map"
            if _has_default(node) and (not texts or kind.endswith("_ns")):
                yield f"{kind} with a default"
            waiting += members


def _has_default(field: Mapping[str, Any]) -> bool:
    return any(field.get(f"{when}-default") is not None for when in ("initial", "write"))


M = TypeVar("M", bound=IcebergBaseModel)


def _validate(kind: type[M], document: Any, metadata: TableMetadata) -> M:
    with as_format_errors(metadata.name):
        return kind.model_validate(document)

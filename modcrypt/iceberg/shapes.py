"""A table's schemas and partition specs, as pyiceberg has them; its metadata stays as it is.

Only what a scan needs is taken: pyiceberg's whole metadata has rules of its own for snapshots and
sort orders, and for 10,000 snapshots takes seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import NameMapping, parse_mapping_from_json
from pyiceberg.typedef import IcebergBaseModel

from modcrypt.errors import FormatError, UnsupportedFormatError
from modcrypt.iceberg.foreign import as_format_errors
from modcrypt.iceberg.table_metadata import TableMetadata

__all__ = ["name_mapping", "schema_of", "schemas_of", "spec_of"]

_UNREAD = ("variant", "geometry", "geography")
"""Types of format version 3 that pyiceberg doesn't have, or can't show as Arrow."""

_FIRST_PARTITION_ID = 1000


def schema_of(metadata: TableMetadata, schema_id: int | None = None) -> Schema:
    """Give a schema of a table by its id; None for the current one.

    Raises:
        UnsupportedFormatError: it has types that aren't read, such as `variant`.
        FormatError: there is none, or pyiceberg does not take it.
    """
    document = metadata.document
    found = _listed(metadata, "schemas")
    if not found and "schema" in document:  # of version 1
        return _schema(document["schema"], metadata)
    wanted = document.get("current-schema-id") if schema_id is None else schema_id
    for one in found:
        if one.get("schema-id", 0) == wanted:
            return _schema(one, metadata)
    raise FormatError(f"{metadata.name}: there is no schema {wanted!r}")


def schemas_of(metadata: TableMetadata) -> Iterator[Schema]:
    """Give all schemas of a table, the current one first, then from the newest to the oldest.

    Raises as `schema_of`, when it comes to the schema.
    """
    yield schema_of(metadata)
    numbers = {one.get("schema-id", 0) for one in _listed(metadata, "schemas")}
    for number in sorted((one for one in numbers if type(one) is int), reverse=True):
        yield schema_of(metadata, number)


def spec_of(metadata: TableMetadata, spec_id: int) -> PartitionSpec:
    """Give a partition spec of a table by its id; raises as `schema_of`."""
    found = _listed(metadata, "partition-specs")
    if not found and "partition-spec" in metadata.document:  # of version 1
        fields = [
            {"field-id": _FIRST_PARTITION_ID + number, **one}
            for number, one in enumerate(_listed(metadata, "partition-spec"))
        ]
        found = [{"spec-id": 0, "fields": fields}]
    for one in found:
        if one.get("spec-id") == spec_id:
            return _valid(PartitionSpec, one, metadata)
    raise FormatError(f"{metadata.name}: there is no partition spec {spec_id}")


def name_mapping(metadata: TableMetadata) -> NameMapping | None:
    """Give the names by which fields of files without field ids are found, if there are any."""
    text = metadata.properties.get("schema.name-mapping.default")
    if text is None:
        return None
    with as_format_errors(metadata.name):
        return parse_mapping_from_json(text)


def _listed(metadata: TableMetadata, name: str) -> list[dict[str, Any]]:
    found = metadata.document.get(name)
    if not (found is None or isinstance(found, list)) or any(
        not isinstance(one, dict) for one in found or ()
    ):
        raise FormatError(f"{metadata.name}: {name} is no list of objects")
    return found or []


def _schema(document: Any, metadata: TableMetadata) -> Schema:
    for kind in _texts(document):
        if kind.startswith(_UNREAD):
            raise UnsupportedFormatError(f"{metadata.name}: columns of type {kind} aren't read")
    return _valid(Schema, document, metadata)


def _texts(document: Any) -> Iterator[str]:
    """Give the types of a schema that are spelt by a word: values of these members alone are."""
    waiting = [document]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, dict):
            found = [
                one[name] for name in ("type", "fields", "element", "key", "value") if name in one
            ]
            yield from (text for text in found if isinstance(text, str))
            waiting += found


M = TypeVar("M", bound=IcebergBaseModel)


def _valid(kind: type[M], document: Any, metadata: TableMetadata) -> M:
    with as_format_errors(metadata.name):
        return kind.model_validate(document)

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
from modcrypt.iceberg.format.library_errors import as_format_errors
from modcrypt.iceberg.format.table_metadata import TableMetadata

__all__ = ["name_mapping", "schema_of", "schemas_of", "spec_of"]

_UNREAD = ("variant", "geometry", "geography")
"""Types of format version 3 that pyiceberg doesn't have, or can't show as Arrow."""


def schema_of(metadata: TableMetadata, schema_id: int | None = None) -> Schema:
    """Give a schema of a table by its id; None for the current one.

    Raises:
        UnsupportedFormatError: it has types that aren't read, such as `variant`.
        FormatError: there is none, or pyiceberg does not take it.
    """
    found = metadata.schemas()
    if found and not metadata.document.get("schemas"):  # format version 1
        return _schema(found[0], metadata)
    wanted = metadata.document.get("current-schema-id") if schema_id is None else schema_id
    for one in found:
        if one["schema-id"] == wanted:
            return _schema(one, metadata)
    raise FormatError(f"{metadata.name}: there is no schema {wanted!r}")


def schemas_of(metadata: TableMetadata) -> Iterator[Schema]:
    """Give all schemas of a table, the current one first, then from the newest to the oldest.

    Raises as `schema_of`, when it comes to the schema.
    """
    yield schema_of(metadata)
    numbers = {one["schema-id"] for one in metadata.schemas()}
    for number in sorted((one for one in numbers if type(one) is int), reverse=True):
        yield schema_of(metadata, number)


def spec_of(metadata: TableMetadata, spec_id: int) -> PartitionSpec:
    """Give a partition spec of a table by its id; raises as `schema_of`."""
    for one in metadata.specs():
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

"""The entry of a table in AWS Glue, as Iceberg's Java and pyiceberg write it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import EXTERNAL_TABLE, glue
from pyiceberg.table.metadata import TableMetadataUtil

from modcrypt.errors import FormatError
from modcrypt.iceberg.format.library_errors import as_format_errors
from modcrypt.iceberg.format.table_metadata import EMPTY_HISTORY, TableMetadata

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata as PyTableMetadata

MAX_COMMENT, MAX_DESCRIPTION = 255, 2048
"""Maximum bytes of a column's comment and of a table's description in Glue."""


def make_table_input(
    entry: Mapping[str, Any], metadata: TableMetadata, location: str, previous: str | None = None
) -> dict[str, Any]:
    """Return the entry of a table with this metadata as Java writes it.

    Of the former `entry`, its parameters, description and comments stay. Glue only shows columns;
    if pyiceberg does not know a type among them, those of the entry stay.
    """
    made: dict[str, Any] = {
        "Name": entry["Name"],
        "TableType": EXTERNAL_TABLE,
        "Parameters": glue._construct_parameters(location, entry, previous),
    }
    known = entry.get("StorageDescriptor") or {}
    kept = {name: known[name] for name in ("AdditionalLocations", "Columns") if name in known}
    made["StorageDescriptor"] = {**kept, "Location": metadata.location}
    with contextlib.suppress(FormatError), as_format_errors(metadata.name):
        parsed = TableMetadataUtil.parse_obj({**metadata.document, **EMPTY_HISTORY})
        made["StorageDescriptor"]["Columns"] = _columns(parsed, known.get("Columns") or ())
    if text := metadata.properties.get("comment") or entry.get("Description"):
        made["Description"] = _cut(text, MAX_DESCRIPTION)
    return made


def _columns(metadata: PyTableMetadata, known: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    comments = {column["Name"]: column.get("Comment") for column in known}
    columns = [dict(column) for column in glue._to_columns(metadata)]
    for column in columns:
        if text := column.get("Comment") or comments.get(column["Name"]):
            column["Comment"] = _cut(text, MAX_COMMENT)
    return columns


def _cut(text: str, limit: int) -> str:
    """Return the beginning of a text on one line, as Glue accepts it."""
    return " ".join(text.split()).encode()[:limit].decode(errors="ignore")

"""Notes of cells: which columns of a data file have values that are encrypted one by one.

A note is metadata of an Arrow field of the file. Cells are bound to the name of their column and to
their row's subject, so rows may move to other files of the table while both columns are there.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyiceberg.schema import Schema

from modcrypt.errors import FormatError, UnsupportedFormatError
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.read.schema_projection import field_id
from modcrypt.parquet.crypto.properties import CELLS, SubjectKeys

SUBJECT_COLUMNS = "modcrypt.subject-columns"
"""Table property with the ids of the fields that have cells, separated by commas."""

SUBJECT_TYPES = "modcrypt.subject-types"
"""Table property with the fields that have cells, and that of their subjects, as they were.

It is an Arrow schema in IPC form, in base64. Keys are chosen by the reader's own subjects.
"""

_ID = re.compile(r"[0-9]{1,10}")  # of 31 bits


def declared_ids(metadata: TableMetadata) -> frozenset[int]:
    """Return the ids of the fields that have cells, says the table; nothing signs this."""
    parts = metadata.properties.get(SUBJECT_COLUMNS, "").split(",")
    return frozenset(int(part) for part in parts if _ID.fullmatch(part))


def restore_notes(subjects: SubjectKeys | None, metadata: TableMetadata) -> SubjectKeys | None:
    """Return subjects that read cells without notes, too, which other engines drop.

    The subjects must name the columns, and the table their types; nothing signs these.
    """
    text = metadata.properties.get(SUBJECT_TYPES)
    if subjects is None or text is None:
        return subjects
    try:
        types = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (ValueError, OSError, pa.ArrowException):
        return subjects
    return subjects.restore(types)


def find_notes(schema: pa.Schema) -> dict[str, bytes]:
    """Return the notes of the fields of a schema, by name."""
    noted = {field.name: (field.metadata or {}).get(CELLS) for field in schema}
    return {name: note for name, note in noted.items() if note is not None}


def set_notes(schema: pa.Schema, notes: Mapping[str, bytes]) -> pa.Schema:
    """Return a schema with notes."""
    fields = [
        field.with_metadata({**(field.metadata or {}), CELLS: notes[field.name]})
        if field.name in notes
        else field
        for field in schema
    ]
    return pa.schema(fields, schema.metadata)


def keep_notes(noted: Mapping[str, bytes], stored: pa.Schema, table: Schema) -> dict[str, bytes]:
    """Return the notes of a file's cells for a file of a table's schema, to which its rows move.

    Args:
        stored: Its schema, with field ids.

    Raises:
        UnsupportedFormatError: A column with cells, or the column of their subjects, has another
            name in the table, or the latter is not there.
        FormatError: A note cannot be read.
    """
    names = {id_: table.find_column_name(id_) for id_ in table._lazy_id_to_field}
    notes = dict(noted)
    for column in noted:
        cells: dict[str, int | None]
        cells = {p: id_ for p, id_ in _leaves(stored.field(column)) if id_ in names}
        if not cells:
            del notes[column]  # the table has dropped it
            continue
        key = _parse_key(column, notes[column])
        number = stored.get_field_index(key)
        cells[key] = None if number < 0 else field_id(stored.field(number))
        for path, id_ in cells.items():
            if (name := None if id_ is None else names.get(id_)) != path:
                now = "dropped" if name is None else f"renamed to {name}"
                raise UnsupportedFormatError(
                    f"column {path}, on which the cells of column {column} depend, was {now}, so "
                    "rows with these cells cannot be rewritten; give the column its name back, or "
                    "choose rows that fill whole files, such as partitions"
                )
    return notes


def _leaves(field: pa.Field, above: str = "") -> Iterator[tuple[str, int | None]]:
    """Yield dotted path and id of a field, or of those in it if it is a struct."""
    path = f"{above}{field.name}"
    if not pa.types.is_struct(field.type):
        yield path, field_id(field)
        return
    for part in field.type:
        yield from _leaves(part, f"{path}.")


def _parse_key(column: str, note: bytes) -> str:
    """Return the name of the column with the subjects of a column's cells."""
    try:
        return str(json.loads(note)["key"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise FormatError(f"column {column}: the metadata of its cells is damaged") from None

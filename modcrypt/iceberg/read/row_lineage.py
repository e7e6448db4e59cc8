"""Read the lineage of rows: their ids, and the commits that changed them last.

Spec, "Row Lineage": both are columns of files whose rows were moved there, and null or missing in
other files, whose rows inherit them from the file's entry in a manifest. A writer that moves rows
to another file must store them.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from modcrypt.errors import UnsupportedFormatError
from modcrypt.iceberg.format.avro_rows import FIELD_ID
from modcrypt.iceberg.read.data_files import RowBatch
from modcrypt.iceberg.read.row_filter import row_numbers
from modcrypt.iceberg.read.scan_planning import PlannedFile
from modcrypt.iceberg.read.schema_projection import field_id

ROW_ID, LAST_UPDATED = "_row_id", "_last_updated_sequence_number"
"""Names of the columns (spec, "Reserved Field IDs")."""

_FIELDS = (
    NestedField(2147483540, ROW_ID, LongType(), required=False),
    NestedField(2147483539, LAST_UPDATED, LongType(), required=False),
)

_FILLED = ("modcrypt: row id", "modcrypt: last updated")
"""Names of the columns while a file is read, whose own columns may be null."""


def with_lineage(schema: Schema, name: str) -> Schema:
    """Return a schema with the columns of the lineage.

    Raise UnsupportedFormatError if a column has such a name; `name` is that of the table.
    """
    if taken := {field.name for field in schema.fields} & {ROW_ID, LAST_UPDATED}:
        raise UnsupportedFormatError(
            f"{name}: rows of a table with a column {min(taken)} cannot be rewritten, because "
            "Iceberg reserves this name"
        )
    return Schema(*schema.fields, *_FIELDS, schema_id=schema.schema_id)


class RowLineage:
    """The lineage of rows in files with one schema, whose fields have ids."""

    def __init__(self, schema: pa.Schema) -> None:
        names = {field_id(column): column.name for column in schema}
        self._stored = [names.get(field.field_id) for field in _FIELDS]
        others = [column for column in schema if column.name not in self._stored]
        filled = [
            pa.field(name, pa.int64(), metadata={FIELD_ID: str(field.field_id)})
            for name, field in zip(_FILLED, _FIELDS, strict=True)
        ]
        self.schema = pa.schema([*others, *filled])
        """The schema with columns of the lineage that are never missing."""

    def stored(self, columns: Iterable[str]) -> list[str]:
        """Return the columns of the file that are needed for columns of `schema`."""
        names = [name for name in columns if name not in _FILLED]
        return [*names, *(name for name in self._stored if name is not None)]

    def fill(self, batch: RowBatch, file: PlannedFile) -> RowBatch:
        """Return a batch of a file with the columns of the lineage, filled from its entry."""
        rows, first = batch.rows, file.first_row_id
        inherited = [pa.nulls(rows.num_rows, pa.int64())] * 2
        if first is not None:
            ids = pc.add(row_numbers(rows.num_rows), first + batch.start)
            number = pa.scalar(file.data.sequence_number or 0, pa.int64())
            inherited = [ids, pa.repeat(number, rows.num_rows)]
        filled = [
            own if name is None else pc.coalesce(rows.column(name).cast(pa.int64()), own)
            for name, own in zip(self._stored, inherited, strict=True)
        ]
        others = [name for name in rows.schema.names if name not in self._stored]
        columns = [*(rows.column(name) for name in others), *filled]
        fields = [rows.schema.field(name) for name in others]
        schema = pa.schema([*fields, *(self.schema.field(name) for name in _FILLED)])
        return RowBatch(pa.RecordBatch.from_arrays(columns, schema=schema), batch.start)

"""Columns with cells in new data files: values that are encrypted one by one.

A writer of cells, which `SubjectKeys.writer` returns, has the columns in `fields` by name, the
dotted paths of their leaves there, and the schema of the rows with cells.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import MetricModeTypes, MetricsMode, StatisticsCollector
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType

from modcrypt.errors import PlaintextError
from modcrypt.iceberg.format.pyiceberg_schemas import schema_of
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.read.cell_notes import (
    SUBJECT_COLUMNS,
    SUBJECT_TYPES,
    declared_ids,
    find_notes,
)
from modcrypt.iceberg.write.schema_fitting import check_fits, file_schema
from modcrypt.parquet.arrow.struct_leaves import iter_leaves
from modcrypt.parquet.crypto.properties import SubjectKeys


def plan_cells(subjects: SubjectKeys | None, schema: pa.Schema) -> Any:
    """Return the writer of the cells of rows; None without any.

    Raise ValueError if the rows lack a column of the subjects.
    """
    return None if subjects is None else subjects.writer(schema)


def declare_cells(cells: Any, schema: Schema, rows: pa.Schema | None) -> dict[str, str]:
    """Return the properties of a new table in whose schema some columns have cells.

    `rows` is the schema of the rows, if it is known.
    """
    ids = (schema.find_field(name).field_id for name in _names(cells))
    declared = {SUBJECT_COLUMNS: ",".join(map(str, sorted(ids)))}
    if rows is None:
        return declared
    keys = {field.key for field in cells.fields.values()}
    own = pa.schema([field for field in rows if field.name in keys | cells.fields.keys()])
    return declared | {SUBJECT_TYPES: base64.b64encode(own.serialize()).decode()}


def declared_names(metadata: TableMetadata) -> set[str]:
    """Return the names of the columns of a table's current schema that have such fields."""
    schema = schema_of(metadata)
    ids = declared_ids(metadata) & schema._lazy_id_to_field.keys()
    return {str(schema.find_column_name(id_)).partition(".")[0] for id_ in ids}


def check_declared(declared: frozenset[int], schema: Schema, cells: Any) -> None:
    """Raise PlaintextError if rows without some cells are written to a table that declares them.

    Args:
        declared: Ids of the fields that have cells.
        cells: Writer of the cells of the rows; None without one.
    """
    encrypted = set() if cells is None else set(_names(cells))
    names = map(schema.find_column_name, sorted(declared & schema._lazy_id_to_field.keys()))
    if missing := [name for name in names if name not in encrypted]:
        raise PlaintextError(
            f"the table's column {missing[0]} has values that are encrypted under the keys of "
            "their subjects, and this writer would not encrypt them; open the table with subjects "
            "that name the column, as by a policy with subject_columns"
        )


def check_cells(cells: Any, schema: Schema, spec: PartitionSpec) -> None:
    """Raise ValueError if rows with cells do not fit a table's schema and partition spec."""
    names = set(_names(cells))
    stored = file_schema(schema)
    for name in sorted(names & schema._name_to_id.keys()):
        if stored.find_column_name(schema.find_field(name).field_id) != name:
            raise ValueError(
                f"column {name} is in subject_columns, so its name may have only letters, digits "
                "and underscores"
            )
        if not isinstance(schema.find_type(name), BinaryType):
            raise ValueError(
                f"column {name} is in subject_columns, so it must be binary in the table, not "
                f"{schema.find_type(name)}"
            )
    for part in spec.fields:
        if schema.find_column_name(part.source_id) in names:
            raise ValueError(f"the partition field {part.name} is of a column in subject_columns")
    for name in check_fits(cells.schema, schema):
        if name.partition(".")[0] in cells.fields:
            raise ValueError(f"the data lacks {name}, which may be of subjects; add it")


def _names(cells: Any) -> Iterator[str]:
    for field in cells.fields.values():
        yield from map(".".join, field.paths)


def find_cells(schema: pa.Schema) -> set[tuple[str, ...]]:
    """Return the paths of the leaves that are cells: all binary ones in columns with notes."""
    return {
        path
        for name in find_notes(schema)
        for path, kind in iter_leaves(schema.field(name))
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    }


def leave_out_bounds(
    plan: Mapping[int, StatisticsCollector], cells: Collection[int]
) -> dict[int, StatisticsCollector]:
    """Return the plan of a file's statistics without those of its cells, which are random bytes."""
    none = MetricsMode(MetricModeTypes.NONE)
    return {id_: replace(s, mode=none) if id_ in cells else s for id_, s in plan.items()}

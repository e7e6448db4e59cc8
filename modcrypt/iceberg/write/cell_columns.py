"""Columns with cells in new data files: values that are encrypted one by one.

A writer of cells, which `SubjectKeys.writer` returns, has the columns in `fields` by name, the
dotted paths of their leaves there, and the schema of the rows with cells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import MetricModeTypes, MetricsMode, StatisticsCollector
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType

from modcrypt.errors import UnsupportedFormatError
from modcrypt.iceberg.write.schema_fitting import check_fits
from modcrypt.parquet.crypto.properties import CELLS, SubjectKeys


def plan_cells(subjects: SubjectKeys | None, schema: pa.Schema, *, rewriting: bool) -> Any:
    """Return the writer of the cells of rows; None without any.

    Args:
        subjects: Keys of subjects; None for none.
        schema: Schema of the rows.
        rewriting: Whether the rows replace others, which may have cells.

    Raises:
        ValueError: The rows lack a column of the subjects.
        UnsupportedFormatError: There are cells, and the rows replace others.
    """
    cells = None if subjects is None else subjects.writer(schema)
    if cells is not None and rewriting:
        raise UnsupportedFormatError(
            "rows of tables with subject_columns are not rewritten; append rows, and delete or "
            "overwrite whole files, such as partitions"
        )
    return cells


def check_cells(cells: Any, schema: Schema, spec: PartitionSpec) -> None:
    """Raise ValueError if rows with cells do not fit a table's schema and partition spec."""
    names = set(_names(cells))
    for name in sorted(names & schema._name_to_id.keys()):
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


def add_notes(rows: pa.Table, cells: Any) -> pa.Table:
    """Return a file's rows with the metadata that says which columns have cells."""
    if cells is None:
        return rows
    fields = [
        field.with_metadata(
            {**field.metadata, CELLS: cells.schema.field(field.name).metadata[CELLS]}
        )
        if field.name in cells.fields
        else field
        for field in rows.schema
    ]
    return pa.Table.from_arrays(rows.columns, schema=pa.schema(fields, rows.schema.metadata))


def leave_out_cells(
    plan: Mapping[int, StatisticsCollector], ids: Mapping[str, int], cells: Any
) -> dict[int, StatisticsCollector]:
    """Return the plan of a file's statistics without those of its cells, which are random bytes."""
    none = MetricsMode(MetricModeTypes.NONE)
    chosen = {ids[name] for name in _names(cells)}
    return {id_: replace(s, mode=none) if id_ in chosen else s for id_, s in plan.items()}

"""Rows of an encrypted table, as Arrow: pyiceberg's scan of files that are opened as it reads."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.parser import parse
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadataUtil

from modcrypt.iceberg.data_files import open_data_file
from modcrypt.iceberg.deletes import deleted_positions, positions_file
from modcrypt.iceberg.file_io import Opener, PlannedIO
from modcrypt.iceberg.planning import PlannedFile, Planner, as_data_file

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata as PyTableMetadata

    from modcrypt.iceberg.table_metadata import Snapshot, TableMetadata
    from modcrypt.iceberg.walk import Walk

__all__ = ["ScanOf", "as_expression"]


class ScanOf:
    """The rows of a snapshot.

    Args:
        walk: through the table.
        snapshot: None of a table that has none: no rows.
        columns: names, dotted for fields of structs; None for all.
        filters: which rows: text as pyiceberg parses it, or its expression; None for all.

    Raises:
        ValueError: a column that the table doesn't have, or a filter that is none.
    """

    def __init__(
        self,
        walk: Walk,
        snapshot: Snapshot | None,
        columns: Sequence[str] | None,
        filters: str | BooleanExpression | None,
    ) -> None:
        self._walk, self._snapshot = walk, snapshot
        self._table = pyiceberg_metadata(walk.metadata, snapshot)
        self._filter = as_expression(filters)
        schema = self._table.schema()
        self._projection: Schema = schema if columns is None else schema.select(*columns)
        self._openers: dict[str, Opener] = {}
        self._arrow = ArrowScan(
            self._table, PlannedIO(self._openers), self._projection, self._filter
        )

    def to_table(self) -> pa.Table:
        """Read all of them.

        Raises:
            ModcryptError: a file can't be had, or is not what was written.
            OSError: from the file system.
        """
        return self._arrow.to_table(self._tasks())

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Read them batch by batch; raises as `to_table`."""
        return self._arrow.to_record_batches(self._tasks())

    def _tasks(self) -> list[FileScanTask]:
        if self._snapshot is None:
            return []
        planned = Planner(self._walk, self._table, self._filter).files(self._snapshot)
        return [self._task(number, one) for number, one in enumerate(planned)]

    def _task(self, number: int, planned: PlannedFile) -> FileScanTask:
        """Give the task of reading a file, under a name that two spellings can't confuse."""
        name = f"{number}/{planned.data.location}"
        file = as_data_file(planned.data, name, "PARQUET")  # which all are shown as
        self._openers[name] = partial(open_data_file, self._walk, planned.data)
        deletes = {self._deletes(name, planned)} if planned.deletes else None
        return FileScanTask(file, delete_files=deletes)

    def _deletes(self, name: str, planned: PlannedFile) -> DataFile:
        positions = deleted_positions(self._walk, planned.data, planned.deletes)
        shown = positions_file(name, positions)
        self._openers[f"{name}#deletes"] = partial(io.BytesIO, shown)
        return DataFile.from_args(
            content=DataFileContent.POSITION_DELETES,
            file_path=f"{name}#deletes",
            file_format=FileFormat.PARQUET,
            record_count=len(positions),
            file_size_in_bytes=len(shown),
        )


def as_expression(filters: str | BooleanExpression | None) -> BooleanExpression:
    """Give the expression that is meant.

    Raises:
        ValueError: the text is none.
    """
    if filters is None:
        return AlwaysTrue()
    if not isinstance(filters, str):
        return filters
    try:
        return parse(filters)
    except Exception as error:  # pyparsing's, whose text repeats the filter's
        raise ValueError(f"the filter is no expression: {error}") from None


def pyiceberg_metadata(metadata: TableMetadata, snapshot: Snapshot | None) -> PyTableMetadata:
    """Give a table's metadata as pyiceberg has it, with the schema that was a snapshot's."""
    found = TableMetadataUtil.parse_raw(metadata.encode().decode())
    if snapshot is None or snapshot.schema_id is None:
        return found
    return found.model_copy(update={"current_schema_id": snapshot.schema_id})

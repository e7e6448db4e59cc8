"""Scan an encrypted table: return its rows as Arrow.

`scan_planning` first plans what to read. Then threads open the files, drop deleted rows, project
and filter; batches keep the order of the files (`ordered_threads`).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, IcebergType, NestedField, StructType

from modcrypt.errors import FormatError, UnsupportedFormatError
from modcrypt.iceberg.format.library_errors import as_format_errors
from modcrypt.iceberg.format.manifest_rows.file_entries import DATA, FileEntry
from modcrypt.iceberg.format.pyiceberg_schemas import name_mapping, schema_of
from modcrypt.iceberg.read.cell_notes import (
    declared_ids,
    find_notes,
    keep_notes,
    restore_notes,
    set_notes,
)
from modcrypt.iceberg.read.data_files import CellDataFile, DataFile, open_data_file
from modcrypt.iceberg.read.equality_deletes import DeletedKeys, KeysOfFile
from modcrypt.iceberg.read.ordered_threads import run_in_order
from modcrypt.iceberg.read.position_deletes import Positions, drop_positions
from modcrypt.iceberg.read.row_filter import (
    RowFilter,
    describe_missing,
    null_with_parents,
    parse_filter,
)
from modcrypt.iceberg.read.row_lineage import RowLineage, with_lineage
from modcrypt.iceberg.read.scan_planning import PlannedFile, Planner
from modcrypt.iceberg.read.schema_projection import (
    Filled,
    Projection,
    arrow_schema,
    leaf_types,
    with_field_ids,
)
from modcrypt.io.threads import usable_cores
from modcrypt.runtime.fork_safety import cached_property, fork_safe

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression

    from modcrypt.iceberg.format.table_metadata import Snapshot
    from modcrypt.iceberg.read.table_walk import Walk
    from modcrypt.parquet.arrow.parquet_file import ParquetFile

_MAX_THREADS = 16
_WAITING = 4


class TableScan:
    """A scan of the rows of a snapshot.

    For each file in this order: the keys and positions of its deletes; its batches, from which
    deleted rows are dropped while their positions in the file are known; the filter, on as few
    columns as it needs; and the wanted columns of what is left. Files whose schemas are equal share
    one `_Reader`, and all files the arrays of filled-in values.

    With `rewriting`, it reads the other rows, for which the filter is not true, and their lineage.
    Cells are decrypted by the subjects of the table's resolver, unless `decrypting` is False; the
    fields of rows to rewrite then have the notes of their cells. Raise ValueError if the table
    lacks a column, or the filter is invalid; and FormatError if the table has no such schema.
    """

    def __init__(
        self, walk: Walk, snapshot: Snapshot | None, schema_id: int | None,
        columns: Sequence[str] | None, filters: str | BooleanExpression | None, *,
        rewriting: bool = False, decrypting: bool = True,
    ) -> None:  # fmt: skip
        self._rewriting = rewriting
        self.walk, self._snapshot = walk, snapshot
        self._table = schema_of(walk.metadata, schema_id, columns)
        self._mapping = name_mapping(walk.metadata)
        self._wanted = self._table if columns is None else _select_columns(self._table, columns)
        if rewriting:
            self._wanted = with_lineage(self._wanted, walk.metadata.name)
        self._expression = parse_filter(filters)
        self._filtered = null_with_parents(self._table)
        self._filter = RowFilter(self._filtered, self._expression)
        self._positions = Positions(walk)
        self._keys = DeletedKeys(walk, self._mapping, self._threads)
        self._readers: dict[bytes, _Reader] = {}
        self._filled: Filled = {}
        self._lock = fork_safe(threading.Lock())
        binary = any(isinstance(kind, BinaryType) for _, kind in _leaves(self._wanted.fields))
        subjects = walk.resolver.subjects if binary and decrypting else None
        self._subjects = restore_notes(subjects, walk.metadata)
        self._declared = declared_ids(walk.metadata) if self._subjects is not None else frozenset()
        self._keeps_cells = rewriting and not decrypting

    @cached_property
    def schema(self) -> pa.Schema:
        """Schema of the rows."""
        return arrow_schema(self._wanted, self._value_types)

    @cached_property
    def _value_types(self) -> dict[int, pa.DataType]:
        """Types of values by field id, as in the first file that has the column in cells."""
        # Binary columns are looked for in the files until each was found, in cells, or not in cells
        # unless the table declares them.
        types: dict[int, pa.DataType] = {}
        if self._subjects is None or self._snapshot is None:
            return types
        leaves = _leaves(self._wanted.fields)
        missing = {id_ for id_, kind in leaves if isinstance(kind, BinaryType)}
        files = Planner(self.walk, self._filtered, AlwaysTrue()).files(self._snapshot)
        while missing and (planned := next(files, None)) is not None:
            found = self._find_value_types(planned)
            types |= {id_: found[id_] for id_ in missing & found.keys() if found[id_] is not None}
            missing -= types.keys() | (found.keys() - self._declared)
        return types

    def _find_value_types(self, planned: PlannedFile) -> dict[int, pa.DataType | None]:
        name = planned.data.location
        with (
            as_format_errors(name),
            open_data_file(self.walk, planned.data, self._subjects) as file,
        ):
            schema = with_field_ids(file.schema, self._mapping, name)
            return {
                id_: kind if column.name in file.cells else None
                for column in schema
                for id_, kind in leaf_types(column)
            }

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows batch by batch."""
        if self._snapshot is None:
            return iter(())
        planner = Planner(self.walk, self._filtered, self._expression)
        files, count = planner.files(self._snapshot), self._threads()
        first = list(itertools.islice(files, count))
        few = len(first) < count  # then threads decode columns of a file in parallel
        sources = (partial(self.rows, file, threads=few) for file in itertools.chain(first, files))
        return run_in_order(sources, count)

    def count(self) -> int:
        """Return the number of rows; of a file that has all of them by its manifest alone."""
        if self._snapshot is None:
            return 0
        planner = Planner(self.walk, self._filtered, self._expression)
        return sum(map(self.count_rows, planner.files(self._snapshot)))

    def count_rows(self, file: PlannedFile) -> int:
        """Return the number of rows of a file; pass no columns to `TableScan` for speed."""
        if self._filter.is_all and not (file.deletes or file.equality):
            return file.data.record_count
        return sum(batch.num_rows for batch in self.rows(file, threads=True))

    def _threads(self) -> int:
        """Return the number of threads; object stores get more, because threads wait for them."""
        folders = self.walk.locations.folders.values()
        waiting = 0 if all(folder.filesystem is None for folder in folders) else _WAITING
        return min(usable_cores() + waiting, _MAX_THREADS)

    def rows(self, planned: PlannedFile, *, threads: bool) -> Generator[pa.RecordBatch]:
        """Yield the rows of a file; `threads` permits decoding columns in parallel."""
        data = planned.data
        keys = [self._keys.of(deletes) for deletes in planned.equality]
        # Before the block, which would attribute errors of delete files to the data file.
        deleted = self._positions.of(data, planned.deletes) if planned.deletes else None
        with (
            as_format_errors(data.location),
            open_data_file(self.walk, data, self._subjects) as file,
        ):
            reader = self._reader(file, planned, self._find_null_columns(file, data.location))
            compared = [column.field_id for each in keys for column in each.columns]
            _check_comparable(file.cells, reader.schema, compared)
            gone = [KeysOfFile(key, data, reader.schema, planned.constants) for key in keys]
            columns = dict.fromkeys(itertools.chain(reader.columns, *(key.columns for key in gone)))
            lineage = reader.lineage
            stored = list(columns) if lineage is None else lineage.stored(columns)
            for read in file.batches(stored, reader.pushed, threads=threads):
                batch = read if lineage is None else lineage.fill(read, planned)
                kept = batch.rows if deleted is None else drop_positions(batch, deleted)
                for key in gone:
                    kept = key.drop_deleted(kept)
                for start in range(0, kept.num_rows, reader.at_once):
                    rows = reader.rows(kept.slice(start, reader.at_once))
                    if rows.num_rows:
                        yield rows

    def read(self, planned: PlannedFile) -> pa.Table:
        """Return the rows of a file."""
        batches = list(self.rows(planned, threads=True))
        return pa.Table.from_batches(batches, batches[0].schema if batches else self.schema)

    @contextmanager
    def open_cells(self, data: FileEntry) -> Iterator[ParquetFile | None]:
        """Open a file to read its values by its own names of columns; None if it has no cells.

        Raise FormatError if a column that the table declares as cells lacks the note of them.
        """
        if data.content != DATA:
            yield None
            return
        subjects = self._subjects or self.walk.resolver.subjects  # also for a dropped column
        with open_data_file(self.walk, data, subjects) as file:
            self._find_null_columns(file, data.location)
            yield file.parquet if isinstance(file, CellDataFile) else None

    def _find_null_columns(self, file: DataFile, name: str) -> set[str]:
        """Return the columns that the table declares as cells, but that are null in a file.

        Raise FormatError if such a column has neither nulls nor the note of its cells.
        """
        wanted = self._declared & {id_ for id_, _ in _leaves(self._wanted.fields)}
        columns = with_field_ids(file.schema, self._mapping, name) if wanted else ()
        unnoted = {
            column.name
            for column in columns
            if column.name not in file.cells and wanted & {id_ for id_, _ in leaf_types(column)}
        }
        for column in sorted(unnoted):
            for batch in file.batches([column], None, threads=False):
                if batch.rows.column(0).null_count < batch.rows.num_rows:
                    raise FormatError(
                        f"column {column}: the table declares values that are encrypted under the "
                        "keys of their subjects, but another engine has rewritten this file, "
                        "without the note of their type; open the table with subjects that name "
                        "this column, as by a policy with subject_columns; without subjects, to "
                        "see the bytes"
                    )
        return unnoted

    def _reader(self, file: DataFile, planned: PlannedFile, nulls: Set[str]) -> _Reader:
        """Return a reader for a file without some columns; files with the same schema share it."""
        schema = pa.schema([f for f in file.schema if f.name not in nulls], file.schema.metadata)
        values = self._value_types
        facts = repr((sorted(planned.constants.items()), sorted(file.cells)))
        key = schema.serialize().to_pybytes() + facts.encode()
        with self._lock:
            if key not in self._readers:
                name = planned.data.location
                with_ids = with_field_ids(schema, self._mapping, name)
                lineage = RowLineage(with_ids) if self._rewriting else None
                notes = find_notes(schema) if self._keeps_cells else {}
                notes = keep_notes(notes, with_ids, self._table)
                with_ids = with_ids if lineage is None else lineage.schema
                wanted, needed = (
                    Projection(with_ids, fields, planned.constants, name, self._filled, values)
                    for fields in (self._wanted, self._filter.schema)
                )
                ids = [id_ for id_, _ in _leaves(self._filter.schema.fields)]
                _check_comparable(file.cells, with_ids, ids)
                result = set_notes(wanted.schema, notes) if notes else None
                self._readers[key] = _Reader(
                    with_ids, self._filter, wanted, needed, lineage, result
                )
            return self._readers[key]


def _leaves(fields: Iterable[NestedField]) -> Iterator[tuple[int, IcebergType]]:
    """Yield the ids and types of fields, and of those in structs instead of the structs."""
    for field in fields:
        if isinstance(field.field_type, StructType):
            yield from _leaves(field.field_type.fields)
        else:
            yield field.field_id, field.field_type


def _check_comparable(cells: frozenset[str], schema: pa.Schema, ids: Iterable[int]) -> None:
    """Raise UnsupportedFormatError if a filter or equality deletes compare columns with cells."""
    for column in schema:
        leaves = {id_ for id_, _ in leaf_types(column)}
        if column.name in cells and not leaves.isdisjoint(ids):
            raise UnsupportedFormatError(
                f"column {column.name} cannot be compared, as its values are encrypted under the "
                "keys of their subjects; filter the rows after reading"
            )


class _Reader:
    def __init__(
        self, schema: pa.Schema, row_filter: RowFilter, wanted: Projection, needed: Projection,
        lineage: RowLineage | None, result: pa.Schema | None,
    ) -> None:  # fmt: skip
        self.schema, self.lineage, self._result = schema, lineage, result
        self._filter, self._wanted, self._needed = row_filter, wanted, needed
        self.columns = list(dict.fromkeys([*wanted.columns, *needed.columns]))
        self.pushed = row_filter.of_file(schema) if lineage is None else None
        self.at_once = min(wanted.at_once, needed.at_once)

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of the table."""
        if self.lineage is not None:
            batch = self._filter.drop(batch, self._needed.rows(batch))
        elif not self._filter.is_all:  # first, so that remaining rows share filled-in columns
            batch = self._filter.apply(batch, self._needed.rows(batch))
        rows = self._wanted.rows(batch)
        if self._result is None:
            return rows
        return pa.RecordBatch.from_arrays(rows.columns, schema=self._result)


def _select_columns(schema: Schema, columns: Sequence[str]) -> Schema:
    """Return the named columns of a schema; raise ValueError that lists missing ones."""
    if missing := sorted(set(columns) - schema._name_to_id.keys()):
        raise ValueError(describe_missing(schema, *missing))
    return schema.select(*columns)

"""Rows of an encrypted table, as Arrow.

What is to be read is planned first (`planning`). Then threads open file after file, leave out
deleted rows, project and filter; batches come in the order of the files (`lanes`).
"""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_left
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.schema import Schema

from modcrypt.fork_safety import fork_safe
from modcrypt.iceberg.format.library_errors import as_format_errors
from modcrypt.iceberg.format.pyiceberg_schemas import name_mapping, schema_of
from modcrypt.iceberg.read.data_files import Batch, open_data_file
from modcrypt.iceberg.read.equality_deletes import DeletedKeys
from modcrypt.iceberg.read.ordered_threads import in_order
from modcrypt.iceberg.read.position_deletes import Positions
from modcrypt.iceberg.read.row_filter import RowFilter, as_expression, null_with_parents
from modcrypt.iceberg.read.scan_planning import PlannedFile, Planner
from modcrypt.iceberg.read.schema_projection import Filled, Projection, arrow_schema, with_field_ids
from modcrypt.io.buffers import usable_cores

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression

    from modcrypt.iceberg.format.table_metadata import Snapshot
    from modcrypt.iceberg.read.table_walk import Walk

__all__ = ["ScanOf"]

_MAX_THREADS = 16
_WAITING = 4


class ScanOf:
    """The rows of a snapshot.

    Args:
        walk: through the table.
        snapshot: None of a table that has none: no rows.
        schema_id: of the schema that the rows are to have; None for the current one.
        columns: names, dotted for fields of structs; None for all.
        filters: which rows: text as pyiceberg parses it, or its expression; None for all.

    Raises:
        ValueError: a column that the table doesn't have, or a filter that is none.
        FormatError: the table has no such schema.
    """

    def __init__(
        self,
        walk: Walk,
        snapshot: Snapshot | None,
        schema_id: int | None,
        columns: Sequence[str] | None,
        filters: str | BooleanExpression | None,
    ) -> None:
        self._walk, self._snapshot = walk, snapshot
        self._table = schema_of(walk.metadata, schema_id)
        self._mapping = name_mapping(walk.metadata)
        self._wanted = self._table if columns is None else _selected(self._table, columns)
        self._expression = as_expression(filters)
        self._filtered = null_with_parents(self._table)
        self._filter = RowFilter(self._filtered, self._expression)
        self._positions = Positions(walk)
        self._keys = DeletedKeys(walk, self._mapping, self._threads)
        self._readers: dict[bytes, _Reader] = {}
        self._filled: Filled = {}
        self._lock = fork_safe(threading.Lock())
        self.schema = arrow_schema(self._wanted)
        """Of the rows."""

    def to_table(self) -> pa.Table:
        """Read all of them.

        Raises:
            ModcryptError: a file can't be had, or is not what was written.
            OSError: from the file system.
        """
        return pa.Table.from_batches(self.to_batches(), self.schema)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Read them batch by batch; raises as `to_table`."""
        if self._snapshot is None:
            return iter(())
        planner = Planner(self._walk, self._filtered, self._expression)
        files = planner.files(self._snapshot)
        count = self._threads()
        alone = len(files) < count  # so that columns are what threads can share
        return in_order([partial(self._rows, one, threads=alone) for one in files], count)

    def _threads(self) -> int:
        """Give the number of threads; some mostly wait for a store; of a local disk, none do."""
        folders = self._walk.locations.folders.values()
        waiting = 0 if all(one.filesystem is None for one in folders) else _WAITING
        return min(usable_cores() + waiting, _MAX_THREADS)

    def _rows(self, planned: PlannedFile, *, threads: bool) -> Generator[pa.RecordBatch]:
        data = planned.data
        keys = [self._keys.of(one) for one in planned.equality]
        # Before the block, which would give errors of delete files the name of the data file.
        deleted = self._positions.of(data, planned.deletes) if planned.deletes else None
        with as_format_errors(data.location), open_data_file(self._walk, data) as file:
            reader = self._reader(file.schema, planned)
            gone = [one.of_file(data, reader.schema, planned.constants) for one in keys]
            columns = dict.fromkeys(itertools.chain(reader.columns, *(one.columns for one in gone)))
            for batch in file.batches(list(columns), reader.pushed, threads=threads):
                kept = batch.rows if deleted is None else _kept(batch, deleted)
                for one in gone:
                    kept = one.kept(kept)
                for start in range(0, kept.num_rows, reader.at_once):
                    rows = reader.rows(kept.slice(start, reader.at_once))
                    if rows.num_rows:
                        yield rows

    def _reader(self, schema: pa.Schema, planned: PlannedFile) -> _Reader:
        """Give what makes rows of a file; files of one schema share it."""
        key = schema.serialize().to_pybytes() + repr(sorted(planned.constants.items())).encode()
        with self._lock:
            if key not in self._readers:
                name = planned.data.location
                with_ids = with_field_ids(schema, self._mapping, name)
                known = [
                    Projection(with_ids, one, planned.constants, name, self._filled)
                    for one in (self._wanted, self._filter.schema)
                ]
                self._readers[key] = _Reader(with_ids, self._filter, *known)
            return self._readers[key]


class _Reader:
    """Makes rows of the table of those of files with one schema."""

    def __init__(
        self, schema: pa.Schema, row_filter: RowFilter, wanted: Projection, needed: Projection
    ) -> None:
        self.schema = schema
        self._filter, self._wanted, self._needed = row_filter, wanted, needed
        self.columns = list(dict.fromkeys([*wanted.columns, *needed.columns]))
        self.pushed = row_filter.of_file(schema)
        self.at_once = min(wanted.at_once, needed.at_once)

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Give rows of the table."""
        if not self._filter.is_all:  # first: the rows that stay share what the file lacks
            batch = self._filter.apply(batch, self._needed.rows(batch))
        return self._wanted.rows(batch)


def _selected(schema: Schema, columns: Sequence[str]) -> Schema:
    """Give the columns of a schema that have these names.

    Raises:
        ValueError: it lacks some; the message names each.
    """
    if missing := sorted(set(columns) - schema._name_to_id.keys()):
        raise ValueError(f"the table has no columns {', '.join(map(repr, missing))}")
    return schema.select(*columns)


def _kept(batch: Batch, deleted: memoryview) -> pa.RecordBatch:
    """Leave out the rows at deleted positions, which are ascending."""
    rows, start = batch.rows, batch.start
    low = bisect_left(deleted, start)
    high = bisect_left(deleted, start + rows.num_rows, low)
    if low == high:
        return rows
    keep = bytearray(b"\x01") * rows.num_rows
    for position in deleted[low:high]:
        keep[position - start] = 0
    bits = pa.Array.from_buffers(pa.uint8(), rows.num_rows, [None, pa.py_buffer(keep)])
    return rows.filter(bits.cast(pa.bool_()))

"""Apply equality deletes: drop rows whose key columns match a delete.

Spec, "Equality Delete Files" and "Scan Planning". Values are equal if Iceberg's Java treats them as
equal: null equals null, NaN equals NaN, and -0.0 differs from 0.0. A field within a struct is null
if the struct is null. A column that the table has dropped since then still counts, a column that a
data file lacks has its default, and values are compared in the column's current type.

Delete files with the same columns that apply to the same data files are read once per scan and
combined into one table of keys, each with the sequence number of its newest delete. A row is
deleted if its key is in the table and that delete is newer than the row's file.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.types import IcebergType, NestedField, PrimitiveType, StructType

from modcrypt.errors import FormatError, LimitError
from modcrypt.iceberg.format.library_errors import as_format_errors
from modcrypt.iceberg.format.manifest_rows.file_entries import FileEntry
from modcrypt.iceberg.format.pyiceberg_schemas import schemas_of
from modcrypt.iceberg.read.data_files import open_data_file
from modcrypt.iceberg.read.ordered_threads import run_in_order
from modcrypt.iceberg.read.scan_planning import EqualityDeletes
from modcrypt.iceberg.read.schema_projection import Projection, field_id, with_field_ids
from modcrypt.iceberg.read.table_walk import Walk
from modcrypt.runtime.fork_safety import fork_safe

MAX_KEYS = 1 << 30
"""Maximum size in bytes of the keys that a scan holds, of all equality deletes together."""

WORTH_MERGING = 4 << 20
"""Size in bytes from which equal keys of a batch are merged at once: all may be one value."""

_NUMBER = "number"
_BITS = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}


class DeletedKeys:
    """The keys of deleted rows in the equality deletes of a scan; thread-safe.

    Each delete file is read once.
    """

    def __init__(self, walk: Walk, mapping: NameMapping | None, threads: Callable[[], int]) -> None:
        self._walk, self._mapping, self._threads = walk, mapping, threads
        self._lock = fork_safe(threading.Lock())
        self._known: dict[EqualityDeletes, KeysOfFiles] = {}
        self._bytes = 0

    def of(self, deletes: EqualityDeletes) -> KeysOfFiles:
        """Return the keys in some delete files.

        Raise ModcryptError if a file is not available, is not what was written, or lacks a column;
        or the keys exceed the limit of a scan.
        """
        with self._lock:
            if deletes not in self._known:
                self._known[deletes] = self._read(deletes)
            return self._known[deletes]

    def _read(self, deletes: EqualityDeletes) -> KeysOfFiles:
        columns = self._columns(deletes)
        sources = [partial(self._read_keys, file, columns) for file in deletes.files]
        batches, held = [], self._bytes
        with closing(run_in_order(sources, self._threads())) as read:
            for batch in read:
                keys = _merge_equal_keys([batch]) if batch.nbytes > WORTH_MERGING else batch
                batches.append(keys)
                held += keys.nbytes
                if held > MAX_KEYS:
                    raise LimitError(
                        f"{deletes.files[0].location}: including this file, the keys of equality "
                        f"deletes take more than {MAX_KEYS} bytes: compact the table"
                    )
        with as_format_errors(deletes.files[0].location):
            found = KeysOfFiles(columns, _merge_equal_keys(batches) if batches else None)
        self._bytes += found.nbytes
        return found

    def _columns(self, deletes: EqualityDeletes) -> list[NestedField]:
        """Return the columns of the keys; structs contain only the fields of the keys."""
        name, columns = deletes.files[0].location, []
        for id_ in deletes.ids:
            known = (_find_column(schema.fields, id_) for schema in schemas_of(self._walk.metadata))
            if (column := next((field for field in known if field is not None), None)) is None:
                raise FormatError(
                    f"{name}: equality deletes use the id {id_}, which is not a column of values"
                )
            columns.append(column)
        return columns

    def _read_keys(
        self, entry: FileEntry, columns: Sequence[NestedField]
    ) -> Generator[pa.RecordBatch]:
        """Yield the keys in a delete file, with its sequence number."""
        name = entry.location
        with as_format_errors(name), open_data_file(self._walk, entry) as file:
            schema = with_field_ids(file.schema, self._mapping, name)
            values = _Values(columns, schema, {}, name)
            if not set(entry.file["equality_ids"]) <= set(_ids(schema)):
                raise FormatError(f"{name}: equality deletes use a column that the file lacks")
            for batch in file.batches(values.columns, None, threads=False):
                count = batch.rows.num_rows
                number = pa.repeat(pa.scalar(entry.sequence_number or 0, pa.int64()), count)
                names = [f"k{place}" for place in range(len(columns))]
                yield pa.record_batch([*values.of(batch.rows), number], [*names, _NUMBER])


def _merge_equal_keys(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return each key once, with the greatest of its sequence numbers."""
    *names, _ = batches[0].schema.names
    grouped = pa.Table.from_batches(batches).group_by(names, use_threads=False)
    merged = grouped.aggregate([(_NUMBER, "max")]).select([*names, f"{_NUMBER}_max"])
    merged = merged.rename_columns([*names, _NUMBER])
    return pa.RecordBatch.from_struct_array(merged.to_struct_array().combine_chunks())


def _find_column(fields: Iterable[NestedField], id_: int) -> NestedField | None:
    """Return the column that contains a field, as an optional one; structs contain nothing else."""
    for field in fields:
        kind: IcebergType | None = None
        if isinstance(field.field_type, StructType):
            inner = _find_column(field.field_type.fields, id_)
            kind = None if inner is None else StructType(inner)
        elif field.field_id == id_ and isinstance(field.field_type, PrimitiveType):
            kind = field.field_type
        if kind is not None:
            default = field.initial_default if isinstance(kind, PrimitiveType) else None
            return NestedField(
                field.field_id, field.name, kind, required=False, initial_default=default
            )
    return None


def _ids(fields: Iterable[pa.Field]) -> Iterator[int | None]:
    for field in fields:
        yield field_id(field)
        if pa.types.is_struct(field.type):
            yield from _ids(field.type.field(number) for number in range(field.type.num_fields))


class _Values:
    def __init__(
        self, columns: Sequence[NestedField], schema: pa.Schema, constants: Mapping[int, Any],
        name: str,
    ) -> None:  # fmt: skip
        self._projections = [
            Projection(schema, Schema(column), constants, name) for column in columns
        ]
        # Two fields of a struct share one column.
        self.columns = list(
            dict.fromkeys(name for projection in self._projections for name in projection.columns)
        )

    def of(self, rows: pa.RecordBatch) -> list[pa.Array]:
        """Return an array for each column."""
        return [_flatten(projection.rows(rows).column(0)) for projection in self._projections]


def _flatten(array: pa.Array) -> pa.Array:
    while pa.types.is_struct(array.type):
        array = pc.struct_field(array, [0])  # null if the struct is null
    values = comparable(array)
    if pa.types.is_temporal(values.type):
        return values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())
    return values.cast(pa.binary()) if pa.types.is_string(values.type) else values


def comparable(values: pa.Array) -> pa.Array:
    """Return values that can be grouped and are equal if Iceberg's Java treats them as equal."""
    if isinstance(values, pa.ExtensionArray):  # uuid
        values = values.storage
    if (bits := _BITS.get(values.type)) is None:
        return values
    canonical_nan = pa.scalar(float("nan"), values.type)
    return pc.if_else(pc.is_nan(values), canonical_nan, values).view(bits)


class KeysOfFiles:
    """The keys in some delete files.

    `keys` has their values, a column for each, and the sequence number of the newest delete; each
    key occurs once. None stands for no keys.
    """

    def __init__(self, columns: Sequence[NestedField], keys: pa.RecordBatch | None) -> None:
        self.columns, self._keys = columns, keys
        if keys is not None:
            order = pc.sort_indices(keys, [(keys.schema.names[0], "ascending")])
            self._keys = keys.take(order)

    @property
    def nbytes(self) -> int:
        """The size of the keys in bytes."""
        return 0 if self._keys is None else self._keys.nbytes

    def newest(self, rows: Sequence[pa.Array]) -> pa.Array:
        """Return the sequence number of the newest delete of each row; null for rows without one.

        `rows` has an array for each column.
        """
        if self._keys is None:
            return pa.nulls(len(rows[0]), pa.int64())
        keys = _select_near_keys(self._keys, rows[0])
        for number, values in enumerate(rows):
            if keys.num_rows > len(values):  # a hash table of fewer keys is faster to build
                keys = keys.filter(pc.is_in(keys.column(number), value_set=values))
        *columns, numbers = keys.columns
        return numbers.take(_find_places(columns, rows))


def _select_near_keys(keys: pa.RecordBatch, values: pa.Array) -> pa.RecordBatch:
    """Select keys, sorted by their first column, within the range of values; nulls are last."""
    # Files mostly have a narrow range of values, so that only few of many keys are near.
    first = keys.column(0)
    known = range(len(first) - first.null_count)
    ends = pc.min_max(values)
    low, high = (ends[name].as_py() for name in ("min", "max"))
    start = stop = 0
    if low is not None:
        start = bisect_left(known, low, key=lambda place: first[place].as_py())
        stop = bisect_right(known, high, key=lambda place: first[place].as_py())
    near = keys.slice(start, stop - start)
    return pa.concat_batches([near, keys.slice(len(known))]) if values.null_count else near


def _find_places(keys: Sequence[pa.Array], rows: Sequence[pa.Array]) -> pa.Array:
    """Return the positions of rows among the distinct keys; null for a row that matches no key."""
    # Column by column: equal prefixes of keys get one number, in the order of the keys.
    key_places, row_places = pa.nulls(0), pa.nulls(0)
    for number, (key, row) in enumerate(zip(keys, rows, strict=True)):
        values = pc.unique(key)
        of_key, of_row = (pc.index_in(column, value_set=values) for column in (key, row))
        if number:
            of_key, of_row = (
                pc.add(pc.multiply(before.cast(pa.int64()), len(values)), place)
                for before, place in ((key_places, of_key), (row_places, of_row))
            )
            pairs = pc.unique(of_key)
            of_key, of_row = (pc.index_in(pair, value_set=pairs) for pair in (of_key, of_row))
        key_places, row_places = of_key, of_row
    return row_places


class KeysOfFile:
    """A filter that drops deleted rows of one data file.

    Raise FormatError if a field of the file has a type that its column never had.
    """

    def __init__(
        self, keys: KeysOfFiles, data: FileEntry, schema: pa.Schema, constants: Mapping[int, Any]
    ) -> None:
        self._keys, self._number = keys, data.sequence_number or 0
        self._values = _Values(keys.columns, schema, constants, data.location)
        self.columns = self._values.columns

    def drop_deleted(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that are not deleted."""
        newest = self._keys.newest(self._values.of(rows))
        deleted = pc.fill_null(pc.greater(newest, self._number), False)
        return rows.filter(pc.invert(deleted)) if pc.any(deleted).as_py() else rows

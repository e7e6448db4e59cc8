"""Rows that equality deletes are for: those that have, in some columns, the values of a delete.

Spec, "Equality Delete Files" and "Scan Planning". Values are equal where Iceberg's Java takes them
for equal: null is equal to null, NaN to NaN, and -0.0 is another than 0.0. A field within a struct
is null where the struct is. A column that the table has dropped since still counts, one that a data
file lacks has its default, and values are compared as what the column's type is now.

Delete files that go by the same columns and apply to the same data files are read once per scan,
and become one table: of keys, each with the sequence number of its newest delete. A row is deleted
if its key is there, and that delete is newer than its file.
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
from modcrypt.fork_safety import fork_safe
from modcrypt.iceberg.format.library_errors import as_format_errors
from modcrypt.iceberg.format.manifests import FileEntry
from modcrypt.iceberg.format.pyiceberg_schemas import schemas_of
from modcrypt.iceberg.read.data_files import open_data_file
from modcrypt.iceberg.read.ordered_threads import in_order
from modcrypt.iceberg.read.partitions import comparable
from modcrypt.iceberg.read.position_deletes import EqualityDeletes
from modcrypt.iceberg.read.schema_projection import Projection, field_id, with_field_ids
from modcrypt.iceberg.read.table_walk import Walk

__all__ = ["DeletedKeys", "KeysOfFile", "KeysOfFiles"]

MAX_KEYS = 1 << 30
"""Bytes of the keys that a scan holds at most, of all equality deletes together."""

_NUMBER = "number"


class DeletedKeys:
    """Keys of deleted rows, as the equality deletes of a scan name them.

    Each delete file is read once. Any number of threads may ask.

    Args:
        walk: through the table.
        mapping: names of columns, for files without field ids.
        threads: gives how many may read files side by side.
    """

    def __init__(self, walk: Walk, mapping: NameMapping | None, threads: Callable[[], int]) -> None:
        self._walk, self._mapping, self._threads = walk, mapping, threads
        self._lock = fork_safe(threading.Lock())
        self._known: dict[EqualityDeletes, KeysOfFiles] = {}
        self._bytes = 0

    def of(self, deletes: EqualityDeletes) -> KeysOfFiles:
        """Give the keys of some delete files.

        Raises:
            ModcryptError: one can't be had, is not what was written, or lacks a column; or there is
                more than a scan may hold.
            OSError: from the file system.
        """
        with self._lock:
            if deletes not in self._known:
                self._known[deletes] = self._read(deletes)
            return self._known[deletes]

    def _read(self, deletes: EqualityDeletes) -> KeysOfFiles:
        columns = self._columns(deletes)
        sources = [partial(self._keys, one, columns) for one in deletes.files]
        batches, held = [], self._bytes
        with closing(in_order(sources, self._threads())) as found:
            for one in found:
                batches.append(one)
                held += one.nbytes
                if held > MAX_KEYS:
                    raise LimitError(
                        f"{deletes.files[0].location}: with this, equality deletes have keys of "
                        f"more than {MAX_KEYS} bytes: have the table compacted"
                    )
        with as_format_errors(deletes.files[0].location):
            keys = KeysOfFiles(columns, _distinct(batches))
        self._bytes += keys.nbytes
        return keys

    def _columns(self, deletes: EqualityDeletes) -> list[NestedField]:
        """Give the columns in which the keys are, with nothing in them but those."""
        name, found = deletes.files[0].location, []
        for id_ in deletes.ids:
            known = (_column(one.fields, id_) for one in schemas_of(self._walk.metadata))
            column = next((one for one in known if one is not None), None)
            if column is None:
                raise FormatError(f"{name}: deletes by {id_}, which is no column of values")
            found.append(column)
        return found

    def _keys(self, entry: FileEntry, columns: Sequence[NestedField]) -> Generator[pa.RecordBatch]:
        """Read a delete file: its keys, and its sequence number."""
        name = entry.location
        with as_format_errors(name), open_data_file(self._walk, entry) as file:
            schema = with_field_ids(file.schema, self._mapping, name)
            values = _Values(columns, schema, {}, name)
            if not set(entry.file["equality_ids"]) <= set(_ids(schema)):
                raise FormatError(f"{name}: equality deletes by a column that they don't have")
            for batch in file.batches(values.columns, None, threads=False):
                count = batch.rows.num_rows
                number = pa.repeat(pa.scalar(entry.sequence_number or 0, pa.int64()), count)
                yield pa.record_batch([*values.of(batch.rows), number], _names(columns))


def _names(columns: Sequence[NestedField]) -> list[str]:
    return [*(f"k{number}" for number in range(len(columns))), _NUMBER]


def _distinct(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch | None:
    """Give each key once, with the greatest of its sequence numbers; None where there are none."""
    if not batches:
        return None
    *names, _ = batches[0].schema.names
    grouped = pa.Table.from_batches(batches).group_by(names, use_threads=False)
    found = grouped.aggregate([(_NUMBER, "max")]).select([*names, f"{_NUMBER}_max"])
    return pa.RecordBatch.from_struct_array(found.to_struct_array().combine_chunks())


def _column(fields: Iterable[NestedField], id_: int) -> NestedField | None:
    """Give the column in which a field is, with nothing else in it, and all of it optional."""
    for one in fields:
        kind: IcebergType | None = None
        if isinstance(one.field_type, StructType):
            inner = _column(one.field_type.fields, id_)
            kind = None if inner is None else StructType(inner)
        elif one.field_id == id_ and isinstance(one.field_type, PrimitiveType):
            kind = one.field_type
        if kind is not None:
            default = one.initial_default if isinstance(kind, PrimitiveType) else None
            return NestedField(
                one.field_id, one.name, kind, required=False, initial_default=default
            )
    return None


def _ids(fields: Iterable[pa.Field]) -> Iterator[int | None]:
    for one in fields:
        yield field_id(one)
        if pa.types.is_struct(one.type):
            yield from _ids(one.type.field(number) for number in range(one.type.num_fields))


class _Values:
    """Takes the values of keys out of the rows of a file."""

    def __init__(
        self,
        columns: Sequence[NestedField],
        schema: pa.Schema,
        constants: Mapping[int, Any],
        name: str,
    ) -> None:
        self._projections = [Projection(schema, Schema(one), constants, name) for one in columns]
        # Two fields of a struct come with one column.
        self.columns = list(
            dict.fromkeys(name for one in self._projections for name in one.columns)
        )

    def of(self, rows: pa.RecordBatch) -> list[pa.Array]:
        """Give an array for each column."""
        return [_flat(one.rows(rows).column(0)) for one in self._projections]


def _flat(array: pa.Array) -> pa.Array:
    while pa.types.is_struct(array.type):
        array = pc.struct_field(array, [0])  # null where the struct is
    found = comparable(array)
    if pa.types.is_temporal(found.type):
        return found.view(pa.int32() if found.type.bit_width == 32 else pa.int64())
    return found.cast(pa.binary()) if pa.types.is_string(found.type) else found


class KeysOfFiles:
    """Keys that some delete files name.

    Args:
        columns: in which they are.
        keys: the values, a column for each, and the sequence number of the newest delete; each
            key once. None where there are none.
    """

    def __init__(self, columns: Sequence[NestedField], keys: pa.RecordBatch | None) -> None:
        self._columns, self._keys = columns, keys
        if keys is not None:
            self._keys = keys.take(pc.sort_indices(keys, [(keys.schema.names[0], "ascending")]))

    @property
    def nbytes(self) -> int:
        """Bytes that they take."""
        return 0 if self._keys is None else self._keys.nbytes

    def of_file(
        self, data: FileEntry, schema: pa.Schema, constants: Mapping[int, Any]
    ) -> KeysOfFile:
        """Give what leaves deleted rows of a data file out.

        Args:
            data: the file.
            schema: of its columns, with field ids.
            constants: values of columns that it may lack, by their ids.

        Raises:
            FormatError: a field of the file has a type that its column never had.
        """
        values = _Values(self._columns, schema, constants, data.location)
        return KeysOfFile(self, values, data.sequence_number or 0)

    def newest(self, rows: Sequence[pa.Array]) -> pa.Array:
        """Give the sequence number of the newest delete of each row; null where there is none.

        Args:
            rows: their values, an array for each column.
        """
        if self._keys is None:
            return pa.nulls(len(rows[0]), pa.int64())
        keys = _between(self._keys, rows[0])
        for number, values in enumerate(rows):
            if keys.num_rows > len(values):  # a table of few keys is sooner made than one of many
                keys = keys.filter(pc.is_in(keys.column(number), value_set=values))
        *columns, numbers = keys.columns
        return numbers.take(_places(columns, rows))


def _between(keys: pa.RecordBatch, values: pa.Array) -> pa.RecordBatch:
    """Leave out keys, sorted by their first column, that are beyond all values; nulls are last.

    Files mostly have a narrow range of values: of many keys, only few are near.
    """
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


def _places(keys: Sequence[pa.Array], rows: Sequence[pa.Array]) -> pa.Array:
    """Give the places of rows among keys, of which no two are equal; null of those that no key is.

    Column by column: what is equal so far has one number, in the order in which the keys have it.
    """
    key_places, row_places = pa.nulls(0), pa.nulls(0)
    for number, (key, row) in enumerate(zip(keys, rows, strict=True)):
        values = pc.unique(key)
        of_key, of_row = (pc.index_in(one, value_set=values) for one in (key, row))
        if number:
            of_key, of_row = (
                pc.add(pc.multiply(before.cast(pa.int64()), len(values)), one)
                for before, one in ((key_places, of_key), (row_places, of_row))
            )
            pairs = pc.unique(of_key)
            of_key, of_row = (pc.index_in(one, value_set=pairs) for one in (of_key, of_row))
        key_places, row_places = of_key, of_row
    return row_places


class KeysOfFile:
    """Leaves deleted rows of one data file out.

    Attributes:
        columns: names of the columns that it needs.
    """

    def __init__(self, keys: KeysOfFiles, values: _Values, number: int) -> None:
        self._keys, self._values, self._number = keys, values, number
        self.columns = values.columns

    def kept(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Give the rows that are not deleted."""
        newest = self._keys.newest(self._values.of(rows))
        deleted = pc.fill_null(pc.greater(newest, self._number), False)
        return rows.filter(pc.invert(deleted)) if pc.any(deleted).as_py() else rows

"""The values of cells as columns of a plaintext file, for views.

Cells are values that are encrypted one by one. Their columns are encoded again, in memory, because
their values have other types and sizes. A view shows them in place of the cells.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from modcrypt.errors import LimitError
from modcrypt.io.sources import open_source
from modcrypt.parquet.arrow.field_metadata import ARROW_SCHEMA
from modcrypt.parquet.arrow.parquet_file import ParquetFile
from modcrypt.parquet.arrow.scanning.scan_session import Request
from modcrypt.parquet.crypto.file_plan import OpenFile, ReadPlan
from modcrypt.parquet.crypto.footer_opening import read_plain
from modcrypt.parquet.crypto.properties import SubjectKeys
from modcrypt.parquet.format.idl import ThriftStruct, copy
from modcrypt.parquet.format.schema import leaf_elements

MAX_VALUES = 1 << 30
"""Size limit of a view's cells, and of their values, in bytes: they stay in memory."""


@dataclass(frozen=True)
class CellValues:
    """A plaintext Parquet file that has the values of the cells of another file, and no more."""

    to_plain: Callable[[pa.Schema], pa.Schema]  # types of the values instead of those of cells
    chunks: frozenset[tuple[int, int]]  # row groups and columns of cells
    data: memoryview = field(repr=False)

    def put_into(self, metadata: ThriftStruct, start: int) -> None:
        """Change a view's footer: show this file's columns, at `start`, instead of the cells."""
        with open_source(self.data) as source:
            own = read_plain(source).metadata
        if [g.num_rows for g in own.row_groups] != [g.num_rows for g in metadata.row_groups]:
            raise LimitError(
                "a row group has more rows than PyArrow encodes at once; use read_table"
            )
        shown = leaf_elements(own.schema)
        numbers: dict[tuple[str, ...], list[int]] = {}
        for number, each in enumerate(shown):
            for length in range(1, len(each.path) + 1):
                numbers.setdefault(each.path[:length], []).append(number)
        metadata.schema = list(metadata.schema)
        leaves = [*enumerate(leaf_elements(metadata.schema))]
        for column, leaf in reversed(leaves):  # a list has more elements, and perhaps more leaves
            if inner := numbers.get(leaf.path, ()):
                first = shown[inner[0]].elements[len(leaf.path) - 1]
                elements = [copy(each) for each in own.schema[first : shown[inner[-1]].element + 1]]
                elements[0].field_id = metadata.schema[leaf.element].field_id
                metadata.schema[leaf.element : leaf.element + 1] = elements
                _replace_chunks(metadata, column, own, inner, start)
        metadata.key_value_metadata = [
            self._show_types(pair) for pair in metadata.key_value_metadata or ()
        ] or None

    def _show_types(self, pair: ThriftStruct) -> ThriftStruct:
        if pair.key != ARROW_SCHEMA:
            return pair
        stored = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(pair.value)))
        changed = copy(pair)
        changed.value = base64.b64encode(self.to_plain(stored).serialize())
        return changed


def _replace_chunks(
    metadata: ThriftStruct, column: int, own: ThriftStruct, numbers: Sequence[int], start: int
) -> None:
    """Show columns of the file `own`, which is at `start`, instead of a column of cells."""
    if metadata.column_orders is not None:
        orders = [own.column_orders[number] for number in numbers]
        metadata.column_orders = [*metadata.column_orders]
        metadata.column_orders[column : column + 1] = orders
    for shown, stored in zip(metadata.row_groups, own.row_groups, strict=True):
        old = shown.columns[column].meta_data
        chunks = [_move_chunk(stored.columns[number], start) for number in numbers]
        shown.columns = [*shown.columns[:column], *chunks, *shown.columns[column + 1 :]]
        mds = [chunk.meta_data for chunk in chunks]
        shown.total_byte_size += sum(md.total_uncompressed_size for md in mds)
        shown.total_byte_size -= old.total_uncompressed_size
        if shown.total_compressed_size is not None:
            shown.total_compressed_size += sum(md.total_compressed_size for md in mds)
            shown.total_compressed_size -= old.total_compressed_size
        shown.sorting_columns = None  # cells have no order


def _move_chunk(chunk: ThriftStruct, start: int) -> ThriftStruct:
    chunk = copy(chunk)
    chunk.meta_data = md = copy(chunk.meta_data)
    chunk.file_offset = 0
    md.data_page_offset += start
    if md.dictionary_page_offset is not None:
        md.dictionary_page_offset += start
    return chunk


def encode_values(file: OpenFile, plan: ReadPlan, subjects: SubjectKeys) -> CellValues | None:
    """Return the values of the cells in a plan's columns; None if these have no cells.

    Raise LimitError if the cells, or their values, exceed `MAX_VALUES`; and ModcryptError or
    ValueError as `ParquetFile.read`.
    """
    with ParquetFile.of_open_file(file, subjects) as reader:
        paths = reader.cell_paths
        cells = [c for c, path in enumerate(plan.leaves) if plan.keep[c] and path in paths]
        if not cells:
            return None
        chunks = frozenset((r, c) for r in plan.row_groups for c in cells)
        _check_size(sum(plan.chunks[place].meta_data.total_uncompressed_size for place in chunks))
        names = [".".join(plan.leaves[c]) for c in cells]
        return CellValues(reader.to_plain, chunks, _encode(reader, plan.row_groups, names))


def _encode(reader: ParquetFile, row_groups: Sequence[int], names: Sequence[str]) -> memoryview:
    """Return columns as a Parquet file with the same row groups."""
    schema, out = reader.types_of(Request(columns=names))[1], io.BytesIO()
    with pq.ParquetWriter(out, schema, store_schema=False) as writer:
        for number in row_groups:
            rows = reader.read(names, row_groups=[number]).cast(schema)
            writer.write_table(rows, row_group_size=max(1, rows.num_rows))
            _check_size(out.tell())
    return out.getbuffer()


def _check_size(size: int) -> None:
    if size > MAX_VALUES:
        raise LimitError(
            f"a view holds the values of cells in memory, and these take {size} bytes, more than "
            f"{MAX_VALUES}; show fewer columns, or read the file with iter_batches or read_table"
        )

"""Which rows of a plaintext Parquet file may match a filter, by what its metadata says of them.

First the statistics of row groups are asked, then bloom filters, then page indexes, and each only
where those before leave something: the last two cost a read and a decryption each.

PyArrow judges all bounds, as it knows the types. It prunes row groups alone, by statistics alone,
and so gets a footer to judge, never a page, in which a row group stands for what is to be judged:
a row group, or an interval of rows that no page border of the filter's columns parts.

What it would judge wrongly is kept from it (see `what_matters`): it takes bounds to hold for NaN as
well. What it would not judge, because there are nulls, or a dictionary, is told without them where
they make no difference.
"""

from __future__ import annotations

import base64
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from modcrypt.errors import FormatError
from modcrypt.parquet.arrow.bloom_probes import Probe, Values, find_probe, may_match
from modcrypt.parquet.arrow.expressions import Node, fields_of, read_expression, what_matters
from modcrypt.parquet.crypto.bloom_filters import may_hold
from modcrypt.parquet.crypto.column_projection import drop_columns
from modcrypt.parquet.crypto.index_checks import known_null_counts
from modcrypt.parquet.format.framing import MAGIC_PLAINTEXT, close_tail
from modcrypt.parquet.format.idl import ThriftStruct, copy, encode, new
from modcrypt.parquet.format.schema import Leaf, leaf_elements

__all__ = ["Parts", "Ranges", "candidate_rows"]

Ranges = list[tuple[int, int]]
"""Rows of a row group: [start, stop) each, sorted, with other rows between one and the next."""

MAX_QUESTIONS = 50_000
"""Most questions put for one row group, its intervals times the filter's terms: far more than its
pages are worth. Beyond, it is taken whole."""

_ARROW_SCHEMA = b"ARROW:schema"
_FLOAT, _DOUBLE, _FIXED = 4, 5, 7  # Type of the IDL
_WIDTHS = {0: 1, 1: 4, 2: 8, 3: 12, _FLOAT: 4, _DOUBLE: 8}  # of values, in bytes


class Parts(Protocol):
    """The parts of a file that are opened when they are asked for, each at most once."""

    def column_index(self, row_group: int, column: int) -> ThriftStruct | None:
        """Give a chunk's ColumnIndex, if it has one."""

    def offset_index(self, row_group: int, column: int) -> ThriftStruct | None:
        """Give a chunk's OffsetIndex, if it has one."""

    def bloom_filter(self, row_group: int, column: int) -> tuple[ThriftStruct, bytes] | None:
        """Give a chunk's bloom filter, header and bitset, if it has one."""


def candidate_rows(
    metadata: ThriftStruct,
    expression: pc.Expression,
    parts: Parts,
    *,
    row_groups: Sequence[int],
    partition: pc.Expression | None = None,
    schema: pa.Schema | None = None,
) -> dict[int, Ranges]:
    """Give the rows that may match a filter, by row group; row groups without any are absent.

    Args:
        metadata: FileMetaData of a plaintext file, all its columns readable.
        expression: the filter.
        parts: what is opened on demand; a column is an index among the leaves.
        row_groups: those that are asked for.
        partition: what is known of all rows, as of a file in a partitioned dataset.
        schema: types of the fields that the filter reads and the file lacks. Without it, a filter
            that reads such fields prunes nothing; nor does it where types differ from the file's.

    Raises:
        FormatError: the pages of an index are out of order, or a bloom filter has no whole blocks.
        TypeError: the filter is no expression.
    """
    tree = read_expression(expression)
    rows = {r: metadata.row_groups[r].num_rows for r in row_groups}
    whole = {r: [(0, count)] for r, count in rows.items() if count > 0}
    if tree is None or not whole:
        return whole
    columns = _columns(metadata, tree)
    terms = sum(1 for _ in fields_of(tree))
    judge = _judge(metadata, columns, expression, terms, partition, schema)
    if judge is None:
        return whole
    chunks = {r: [_of_chunk(metadata, r, column) for column in columns] for r in whole}
    groups = list(whole)
    left = [groups[index] for index in judge.passing(list(chunks.values()))]
    probe = find_probe(tree, {c.leaf.path: (c.index, c.element) for c in columns if c.filters})
    if probe is not None:
        left = [r for r in left if _passes_bloom(metadata, r, probe, parts)]
    ranges = {r: _matching_rows(metadata, r, columns, chunks[r], parts, judge) for r in left}
    return {r: found for r, found in ranges.items() if found}


# --- what is known of columns --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Column:
    """A leaf of a field that the filter reads."""

    index: int  # among the file's leaves
    leaf: Leaf
    element: ThriftStruct
    filters: bool  # the filter reads this leaf, and every row has one value or null there
    bounded: bool  # and bounds can judge it
    nulls_matter: bool

    def chunk(self, statistics: ThriftStruct | None = None) -> ThriftStruct:
        """Give a chunk of a single row, of which this is known."""
        md = new(
            "ColumnMetaData",
            type=self.element.type,
            encodings=[],
            path_in_schema=[name.encode() for name in self.leaf.path],
            codec=0,
            num_values=1,
            total_uncompressed_size=0,
            total_compressed_size=0,
            data_page_offset=len(MAGIC_PLAINTEXT),
            statistics=statistics,
        )
        return new("ColumnChunk", file_offset=0, meta_data=md)

    def known(self, bounds: dict[str, bytes | None], nulls: int | None, rows: int) -> ThriftStruct:
        """Say of a chunk of a single row what is known of many.

        Args:
            bounds: a lower and an upper one, by their names in Statistics.
            nulls: how many of the rows are null, if known.
            rows: how many there are.
        """
        if nulls == rows and not any(bounds.values()):  # with bounds, the count is wrong
            return self.chunk(new("Statistics", null_count=1))
        width = self.element.type_length if self.element.type == _FIXED else None
        width = _WIDTHS.get(self.element.type, width)
        values = [value for value in bounds.values() if value is not None]
        # A bound of another length is no value, though writers may cut FIXED_LEN_BYTE_ARRAY short.
        # PyArrow would throw where nothing catches it.
        if not self.bounded or any(width not in (None, len(value)) for value in values):
            return self.chunk()
        certain = nulls == 0 or not self.nulls_matter
        return self.chunk(new("Statistics", null_count=0 if certain else None, **bounds))


def _columns(metadata: ThriftStruct, tree: Node) -> list[_Column]:
    """Give the leaves of all top-level fields that the filter reads, whole: their types need it."""
    read = frozenset(fields_of(tree))
    names = {path[0] for path in read}
    nulls, nans = what_matters(tree)
    out = []
    for index, leaf in enumerate(leaf_elements(metadata.schema)):
        if leaf.path[0] not in names:
            continue
        element = metadata.schema[leaf.element]
        filters = leaf.path in read and not leaf.max_repetition
        bounded = filters and not (leaf.path in nans and _is_float(element))
        out.append(_Column(index, leaf, element, filters, bounded, leaf.path in nulls))
    return out


def _is_float(element: ThriftStruct) -> bool:
    half = element.logicalType is not None and element.logicalType.FLOAT16 is not None
    return half or element.type in (_FLOAT, _DOUBLE)


def _of_chunk(metadata: ThriftStruct, row_group: int, column: _Column) -> ThriftStruct:
    """Say what a chunk's statistics tell."""
    rows = metadata.row_groups[row_group].num_rows
    md = metadata.row_groups[row_group].columns[column.index].meta_data
    found = md.statistics
    if found is None or not column.filters or md.type != column.element.type:
        return column.chunk()
    names = ("min", "max", "min_value", "max_value")
    return column.known({name: getattr(found, name) for name in names}, found.null_count, rows)


# --- PyArrow's judgement -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Judge:
    """A filter that is bound to the file's types."""

    frame: ThriftStruct
    expression: pc.Expression
    terms: int  # how often it reads a field
    partition: pc.Expression | None
    schema: pa.Schema

    def passing(self, groups: list[list[ThriftStruct]]) -> list[int]:
        """Give the indexes of those row groups, lists of chunks, in which rows may match."""
        try:
            fragment = _fragment(self.frame, groups, self.partition)
            kept = fragment.subset(self.expression, schema=self.schema).row_groups
        except (pa.ArrowException, OSError):  # such as a cast that a bound of theirs does not allow
            return list(range(len(groups)))
        return [group.id for group in kept]


def _judge(
    metadata: ThriftStruct,
    columns: list[_Column],
    expression: pc.Expression,
    terms: int,
    partition: pc.Expression | None,
    schema: pa.Schema | None,
) -> _Judge | None:
    """Make the judge; None where PyArrow can't bind the filter."""
    frame = _frame(metadata, columns)
    try:
        nothing = _fragment(frame, [], None)
        bound = _with_missing(nothing.physical_schema, schema)
        if bound is None:
            return None
        nothing.subset(expression, schema=bound)
    except (pa.ArrowException, OSError):
        return None
    return _Judge(frame, expression, terms, partition, bound)


def _frame(metadata: ThriftStruct, columns: list[_Column]) -> ThriftStruct:
    """Give the footer of the filter's columns, without row groups."""
    bare = copy(metadata)
    bare.row_groups = []
    pairs = metadata.key_value_metadata or []
    bare.key_value_metadata = [pair for pair in pairs if pair.key == _ARROW_SCHEMA]
    kept = {column.index for column in columns}
    leaves = len(leaf_elements(metadata.schema))
    frame = drop_columns(bare, [index in kept for index in range(leaves)])
    frame.key_value_metadata = [_without_dictionaries(pair) for pair in frame.key_value_metadata]
    return frame


def _without_dictionaries(pair: ThriftStruct) -> ThriftStruct:
    """Let fields be of the type of their values: bounds judge these, not dictionaries."""
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(pair.value)))
    plain = pa.schema([_plain(field) for field in schema], schema.metadata)
    twin = copy(pair)
    twin.value = base64.b64encode(plain.serialize().to_pybytes())
    return twin


def _plain(field: pa.Field) -> pa.Field:
    dictionary = pa.types.is_dictionary(field.type)
    return field.with_type(field.type.value_type) if dictionary else field


def _with_missing(own: pa.Schema, schema: pa.Schema | None) -> pa.Schema | None:
    """Give the file's schema with the fields that it lacks; None where types differ."""
    for field in schema or ():
        if own.get_field_index(field.name) < 0:
            own = own.append(field)
        elif own.field(field.name).type != _plain(field).type:
            return None
    return own


def _fragment(
    frame: ThriftStruct, groups: list[list[ThriftStruct]], partition: pc.Expression | None
) -> ds.ParquetFileFragment:
    metadata = copy(frame)
    metadata.row_groups = [
        new("RowGroup", columns=chunks, total_byte_size=0, num_rows=1) for chunks in groups
    ]
    metadata.num_rows = len(groups)
    data = MAGIC_PLAINTEXT + close_tail(encode(metadata), MAGIC_PLAINTEXT)
    return ds.ParquetFileFormat().make_fragment(pa.py_buffer(data), partition_expression=partition)


# --- bloom filters -------------------------------------------------------------------------------


def _passes_bloom(metadata: ThriftStruct, row_group: int, probe: Probe, parts: Parts) -> bool:
    chunks = metadata.row_groups[row_group].columns

    def holds(values: Values) -> bool:
        md = chunks[values.column].meta_data
        if md.bloom_filter_offset is None or _is_constant(md.statistics):
            return True
        found = parts.bloom_filter(row_group, values.column)
        if found is None:
            return True
        try:
            return may_hold(*found, values.hashes)
        except FormatError as error:
            raise FormatError(f"{_place(row_group, md)}: {error}") from None

    return may_match(probe, holds)


def _is_constant(statistics: ThriftStruct | None) -> bool:
    """Say whether bounds have judged equality already."""
    return (
        statistics is not None
        and statistics.min_value is not None
        and statistics.min_value == statistics.max_value
    )


def _place(row_group: int, md: ThriftStruct) -> str:
    path = ".".join(name.decode(errors="replace") for name in md.path_in_schema)
    return f"row group {row_group}, column {path}"


# --- page indexes --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Pages:
    """The pages of a chunk: the rows they begin with, and what is known of each."""

    starts: list[int]
    known: list[ThriftStruct]

    def at(self, row: int) -> ThriftStruct:
        return self.known[bisect_right(self.starts, row) - 1]


def _matching_rows(
    metadata: ThriftStruct,
    row_group: int,
    columns: list[_Column],
    known: list[ThriftStruct],
    parts: Parts,
    judge: _Judge,
) -> Ranges:
    """Give the rows of a row group that may match, by its page indexes."""
    rows = metadata.row_groups[row_group].num_rows
    pages = [_pages(metadata, row_group, column, parts) for column in columns]
    starts = sorted({start for found in pages if found is not None for start in found.starts})
    if len(starts) <= 1 or len(starts) * judge.terms > MAX_QUESTIONS:
        return [(0, rows)]
    groups = [
        [
            chunk if found is None else found.at(row)
            for found, chunk in zip(pages, known, strict=True)
        ]
        for row in starts
    ]
    intervals = list(pairwise([*starts, rows]))
    return _merged([intervals[index] for index in judge.passing(groups)])


def _merged(intervals: Ranges) -> Ranges:
    out: Ranges = []
    for start, stop in intervals:
        joins = bool(out) and out[-1][1] == start
        out.append((out.pop()[0] if joins else start, stop))
    return out


def _pages(metadata: ThriftStruct, row_group: int, column: _Column, parts: Parts) -> _Pages | None:
    """Read a chunk's page index, where the filter can be judged by it.

    Raises:
        FormatError: it names other pages or other rows than there are.
    """
    chunk = metadata.row_groups[row_group].columns[column.index]
    offsets = chunk.column_index_offset, chunk.offset_index_offset
    if not column.bounded or chunk.meta_data.type != column.element.type or None in offsets:
        return None
    index = parts.column_index(row_group, column.index)
    places = None if index is None else parts.offset_index(row_group, column.index)
    if index is None or places is None:
        return None
    rows = metadata.row_groups[row_group].num_rows
    try:
        starts = _starts(places, rows)
        return _Pages(starts, _of_pages(index, [*starts, rows], column))
    except FormatError as error:
        raise FormatError(f"{_place(row_group, chunk.meta_data)}: {error}") from None


def _starts(places: ThriftStruct, rows: int) -> list[int]:
    starts = [location.first_row_index for location in places.page_locations]
    if starts[:1] != [0]:
        raise FormatError("the offset index does not begin with row 0")
    if any(start >= stop for start, stop in pairwise([*starts, rows])):
        raise FormatError(f"the offset index has pages out of order, or past the {rows} rows")
    return starts


def _of_pages(index: ThriftStruct, borders: list[int], column: _Column) -> list[ThriftStruct]:
    """Say what the column index tells of each page."""
    pages = len(borders) - 1
    lists = (index.null_pages, index.min_values, index.max_values, index.null_counts)
    if any(found is not None and len(found) != pages for found in lists):
        raise FormatError(f"the column index is not of the {pages} pages of the offset index")
    counts = known_null_counts(index)
    out = []
    for page, (start, stop) in enumerate(pairwise(borders)):
        bounds = {"min_value": index.min_values[page], "max_value": index.max_values[page]}
        nulls = counts[page]
        if index.null_pages[page]:
            bounds, nulls = {}, stop - start
        out.append(column.known(bounds, nulls, stop - start))
    return out

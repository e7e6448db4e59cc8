"""Find the rows of a plaintext Parquet file that may match a filter, using its metadata.

The statistics of row groups are checked first, then bloom filters, then page indexes. Each is used
only if the ones before leave rows, because the last two cost a read and a decryption each.

PyArrow judges all bounds, because it knows the types. It prunes only row groups, and only by
statistics. So it gets a footer without pages, in which each row group stands for a real row group,
or for an interval of rows that no page border of the filter's columns divides.

PyArrow assumes that bounds cover NaN, so bounds are hidden from it where NaN matters (see
`Predicate`). It does not prune columns with nulls or dictionaries, so these are
hidden where they make no difference.
"""

from __future__ import annotations

import base64
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from modcrypt.errors import FormatError
from modcrypt.parquet.arrow.chunk_loading import describe_pages
from modcrypt.parquet.arrow.filters import Filter
from modcrypt.parquet.arrow.scanning.bloom_probes import Probe, Values, find_probe
from modcrypt.parquet.crypto.bloom_filters import may_hold
from modcrypt.parquet.crypto.column_projection import drop_columns
from modcrypt.parquet.crypto.index_checks import (
    counts_all_nulls,
    has_doubtful_bounds,
    known_null_counts,
    null_pages_agree,
)
from modcrypt.parquet.format.framing import MAGIC_PLAINTEXT, close_tail
from modcrypt.parquet.format.idl import ThriftStruct, copy, encode, new
from modcrypt.parquet.format.schema import Leaf, count_leaves, leaf_elements

if TYPE_CHECKING:  # imports pandas where it is installed
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

Ranges = list[tuple[int, int]]
"""Rows of a row group: sorted [start, stop) ranges that neither touch nor overlap."""

MAX_EVALUATIONS = 50_000
"""Most evaluations for one row group: its intervals times the filter's terms. Beyond this limit,
pruning pages costs more than it saves, so the whole row group is read."""

_ARROW_SCHEMA = b"ARROW:schema"
_FLOAT, _DOUBLE, _BYTE_ARRAY, _FIXED = 4, 5, 6, 7  # Type of the IDL
_WIDTHS = {0: 1, 1: 4, 2: 8, 3: 12, _FLOAT: 4, _DOUBLE: 8}  # width of values in bytes


class Parts(Protocol):
    """The parts of a file that are decrypted on demand, each at most once."""

    def read_column_index(self, row_group: int, column: int) -> ThriftStruct | None:
        """Return a chunk's ColumnIndex, if it has one."""

    def read_offset_index(self, row_group: int, column: int) -> ThriftStruct | None:
        """Return a chunk's OffsetIndex, if it has one."""

    def read_bloom_filter(self, row_group: int, column: int) -> tuple[ThriftStruct, bytes] | None:
        """Return header and bitset of a chunk's bloom filter, if it has one."""


def find_candidate_rows(
    metadata: ThriftStruct, row_filter: Filter, parts: Parts, *, row_groups: Sequence[int],
    partition: pc.Expression | None = None, schema: pa.Schema | None = None,
) -> dict[int, Ranges]:  # fmt: skip
    """Return the rows that may match a filter, for each row group that has any.

    Args:
        metadata: FileMetaData of a plaintext file whose columns are all readable.
        parts: Indexes and bloom filters, read on demand; a column is an index among the leaves.
            Those that contradict themselves or each other are ignored, as other readers do.
        partition: Condition that holds for all rows, as for a file in a partitioned dataset.
        schema: Types of the fields that the filter reads and the file lacks. Without it, a filter
            that reads such fields prunes nothing; nor does it if types differ from the file's.
    """
    rows = {r: metadata.row_groups[r].num_rows for r in row_groups}
    whole = {r: [(0, count)] for r, count in rows.items() if count > 0}
    if not row_filter.alternatives or not whole:
        return whole
    columns = _find_filter_columns(metadata, row_filter)
    if (judge := _make_judge(metadata, columns, row_filter, partition, schema)) is None:
        return whole
    chunks = {
        r: [_summarize_chunk(metadata.row_groups[r], column) for column in columns] for r in whole
    }
    groups = list(whole)
    left = [groups[index] for index in judge.select_groups(list(chunks.values()))]
    probe = find_probe(
        row_filter, {c.leaf.path: (c.index, c.element) for c in columns if c.filters}
    )
    if probe is not None:
        left = [r for r in left if _passes_bloom_filter(metadata, r, probe, parts)]
    ranges = {r: _find_matching_rows(metadata, r, columns, chunks[r], parts, judge) for r in left}
    return {r: matching for r, matching in ranges.items() if matching}


@dataclass(frozen=True, slots=True)
class _Column:
    """A leaf of a field that the filter reads."""

    index: int  # among the file's leaves
    leaf: Leaf
    element: ThriftStruct
    filters: bool  # the filter reads this leaf, and every row has one value or null in it
    bounded: bool  # also, bounds suffice to judge it
    width: int | None  # of its values in bytes, None if it varies
    doubtful: bool  # bounds of the file's writer are not used
    counted: bool  # the file's writer counts all nulls
    nulls_matter: bool
    bare: ThriftStruct  # a chunk with a single row

    def make_chunk(self, statistics: ThriftStruct | None = None) -> ThriftStruct:
        """Return a chunk with a single row and these statistics."""
        chunk = describe_pages(self.bare)
        chunk.meta_data.statistics = statistics
        return chunk

    def summarize_rows(
        self, bounds: dict[str, bytes | None], nulls: int | None, rows: int
    ) -> ThriftStruct:
        """Return a chunk with a single row that has the statistics of many rows.

        `bounds` has both bounds by their names in Statistics; `nulls` is None if unknown.
        """
        is_optional = self.leaf.max_definition > 0
        if nulls == rows and is_optional and not any(bounds.values()):  # Bounds contradict it.
            return self.make_chunk(new("Statistics", null_count=1))
        # A bound of the wrong length is not a value, though writers may truncate
        # FIXED_LEN_BYTE_ARRAY. PyArrow would throw an exception that nothing catches.
        if not self.bounded or not self._have_width(bounds.values()):
            return self.make_chunk()
        certain = nulls == 0 or not self.nulls_matter
        return self.make_chunk(new("Statistics", null_count=0 if certain else None, **bounds))

    def _have_width(self, bounds: Iterable[bytes | None]) -> bool:
        return self.width is None or {self.width}.issuperset(
            [len(bound) for bound in bounds if bound is not None]
        )


def _find_filter_columns(metadata: ThriftStruct, row_filter: Filter) -> list[_Column]:
    """Return all leaves of the top-level fields that the filter reads; types need them all."""
    read = {predicate.path for predicate in row_filter.predicates}
    nulls = {predicate.path for predicate in row_filter.predicates if predicate.nulls_match}
    nans = {predicate.path for predicate in row_filter.predicates if predicate.nans_match}
    names = {path[0] for path in read}
    out = []
    for index, leaf in enumerate(leaf_elements(metadata.schema)):
        if leaf.path[0] not in names:
            continue
        element = metadata.schema[leaf.element]
        filters = leaf.path in read and not leaf.max_repetition
        bounded = filters and not (leaf.path in nans and _is_float(element))
        bare = _make_bare_chunk(leaf, element)
        width = _WIDTHS.get(element.type, element.type_length if element.type == _FIXED else None)
        doubtful = has_doubtful_bounds(metadata.created_by, element)
        counted = counts_all_nulls(metadata.created_by, leaf, element)
        matter = leaf.path in nulls
        column = _Column(
            index, leaf, element, filters, bounded, width, doubtful, counted, matter, bare
        )
        out.append(column)
    return out


def _make_bare_chunk(leaf: Leaf, element: ThriftStruct) -> ThriftStruct:
    md = new(
        "ColumnMetaData", type=element.type, encodings=[], path_in_schema=leaf.names, codec=0,
        num_values=1, total_uncompressed_size=0, total_compressed_size=0,
        data_page_offset=len(MAGIC_PLAINTEXT),
    )  # fmt: skip
    return new("ColumnChunk", file_offset=0, meta_data=md)


def _is_float(element: ThriftStruct) -> bool:
    half = element.logicalType is not None and element.logicalType.FLOAT16 is not None
    return half or element.type in (_FLOAT, _DOUBLE)


def _summarize_chunk(row_group: ThriftStruct, column: _Column) -> ThriftStruct:
    """Return a single-row chunk with the statistics of a chunk."""
    md = row_group.columns[column.index].meta_data
    statistics = md.statistics
    if statistics is None or not column.filters or md.type != column.element.type:
        return column.make_chunk()
    bounds: dict[str, bytes | None] = {}
    if not column.doubtful:
        bounds = {
            "min": statistics.min, "max": statistics.max,
            "min_value": statistics.min_value, "max_value": statistics.max_value,
        }  # fmt: skip
    nulls = statistics.null_count if column.counted else None
    return column.summarize_rows(bounds, nulls, row_group.num_rows)


@dataclass(frozen=True, slots=True)
class _Judge:
    """A filter that is bound to the file's types."""

    frame: ThriftStruct
    row_filter: Filter
    partition: pc.Expression | None
    schema: pa.Schema

    def select_groups(self, groups: list[list[ThriftStruct]]) -> list[int]:
        """Return the indexes of the row groups (lists of chunks) in which rows may match."""
        try:
            fragment = _make_fragment(self.frame, groups, self.partition)
            matching = fragment.subset(self.row_filter.expression, schema=self.schema).row_groups
        except (pa.ArrowException, OSError):  # For example, a bound may not allow a cast.
            return list(range(len(groups)))
        return [group.id for group in matching]


def _make_judge(
    metadata: ThriftStruct, columns: list[_Column], row_filter: Filter,
    partition: pc.Expression | None, schema: pa.Schema | None,
) -> _Judge | None:  # fmt: skip
    """Return the filter bound to the file's types; None if PyArrow cannot bind it."""
    frame = _make_frame(metadata, columns)
    try:
        nothing = _make_fragment(frame, [], None)
        bound = nothing.physical_schema
        read = {predicate.path[0] for predicate in row_filter.predicates}
        for field in schema or ():
            if field.name not in read:  # appending each of thousands would copy all before it
                continue
            if bound.get_field_index(field.name) < 0:
                bound = bound.append(field)
            elif bound.field(field.name).type != _remove_dictionary(field).type:
                return None
        nothing.subset(row_filter.expression, schema=bound)
    except (pa.ArrowException, OSError):
        return None
    return _Judge(frame, row_filter, partition, bound)


def _make_frame(metadata: ThriftStruct, columns: list[_Column]) -> ThriftStruct:
    """Return a footer with the filter's columns, without row groups."""
    bare = copy(metadata)
    bare.row_groups = []
    pairs = metadata.key_value_metadata or []
    bare.key_value_metadata = [pair for pair in pairs if pair.key == _ARROW_SCHEMA]
    kept = {column.index for column in columns}
    leaves = count_leaves(metadata.schema)
    frame = drop_columns(bare, [index in kept for index in range(leaves)])
    frame.key_value_metadata = list(map(copy, frame.key_value_metadata))
    for pair in frame.key_value_metadata:
        stored = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(pair.value)))
        plain = pa.schema(map(_remove_dictionary, stored), stored.metadata)
        pair.value = base64.b64encode(plain.serialize().to_pybytes())
    return frame


def _remove_dictionary(field: pa.Field) -> pa.Field:
    """Replace a dictionary type by the type of its values, which bounds can judge."""
    dictionary = pa.types.is_dictionary(field.type)
    return field.with_type(field.type.value_type) if dictionary else field


def _make_fragment(
    frame: ThriftStruct, groups: list[list[ThriftStruct]], partition: pc.Expression | None
) -> ds.ParquetFileFragment:
    from pyarrow.dataset import ParquetFileFormat

    metadata = copy(frame)
    metadata.row_groups = [
        new("RowGroup", columns=chunks, total_byte_size=0, num_rows=1) for chunks in groups
    ]
    metadata.num_rows = len(groups)
    data = MAGIC_PLAINTEXT + close_tail(encode(metadata), MAGIC_PLAINTEXT)
    return ParquetFileFormat().make_fragment(pa.py_buffer(data), partition_expression=partition)


def _passes_bloom_filter(
    metadata: ThriftStruct, row_group: int, probe: Probe, parts: Parts
) -> bool:
    """Return whether a row may match; a filter is read only where the outcome depends on it."""
    chunks = metadata.row_groups[row_group].columns

    @cache  # alternatives may ask for the same column
    def read(column: int) -> tuple[ThriftStruct, bytes] | None:
        return parts.read_bloom_filter(row_group, column)

    def holds(values: Values) -> bool:
        md, bounds = chunks[values.column].meta_data, chunks[values.column].meta_data.statistics
        if md.bloom_filter_offset is None:
            return True
        low = None if bounds is None else bounds.min_value
        if low is not None and low == bounds.max_value:
            return True  # the chunk has one value, so the bounds have judged equality already
        bloom = read(values.column)
        try:
            return bloom is None or may_hold(*bloom, values.hashes)
        except FormatError:  # The bitset is not made of whole blocks.
            return True

    return any(all(map(holds, conditions)) for conditions in probe)


@dataclass(frozen=True, slots=True)
class _Pages:
    """The pages of a chunk."""

    starts: list[int]  # first row of each page
    known: list[ThriftStruct]  # a single-row chunk for each page, with its statistics


def _find_matching_rows(
    metadata: ThriftStruct, row_group: int, columns: list[_Column], known: list[ThriftStruct],
    parts: Parts, judge: _Judge,
) -> Ranges:  # fmt: skip
    """Return the rows of a row group that may match, by its page indexes."""
    rows = metadata.row_groups[row_group].num_rows
    pages = [_read_pages(metadata, row_group, column, parts) for column in columns]
    starts = sorted({start for index in pages if index is not None for start in index.starts})
    if len(starts) <= 1 or len(starts) * judge.row_filter.terms > MAX_EVALUATIONS:
        return [(0, rows)]
    groups = [
        [
            chunk if index is None else index.known[bisect_right(index.starts, row) - 1]
            for index, chunk in zip(pages, known, strict=True)
        ]
        for row in starts
    ]
    intervals = list(pairwise([*starts, rows]))
    return _merge_ranges([intervals[index] for index in judge.select_groups(groups)])


def _merge_ranges(intervals: Ranges) -> Ranges:
    out: Ranges = []
    for start, stop in intervals:
        joins = bool(out) and out[-1][1] == start
        out.append((out.pop()[0] if joins else start, stop))
    return out


def _read_pages(
    metadata: ThriftStruct, row_group: int, column: _Column, parts: Parts
) -> _Pages | None:
    """Return the pages of a chunk from its page index; None if it cannot judge the filter."""
    chunk = metadata.row_groups[row_group].columns[column.index]
    offsets = chunk.column_index_offset, chunk.offset_index_offset
    if not column.bounded or chunk.meta_data.type != column.element.type or None in offsets:
        return None
    index = parts.read_column_index(row_group, column.index)
    places = None if index is None else parts.read_offset_index(row_group, column.index)
    if index is None or places is None:
        return None
    starts = [location.first_row_index for location in places.page_locations]
    borders = [*starts, metadata.row_groups[row_group].num_rows]
    lists = (index.null_pages, index.min_values, index.max_values, index.null_counts)
    if starts[:1] != [0] or any(start >= stop for start, stop in pairwise(borders)):
        return None
    if any(entries is not None and len(entries) != len(starts) for entries in lists):
        return None
    return _Pages(starts, _summarize_pages(index, borders, column))


def _summarize_pages(
    index: ThriftStruct, borders: list[int], column: _Column
) -> list[ThriftStruct]:
    """Return a single-row chunk for each page, with its statistics from the column index."""
    # A page about which the index contradicts itself has no statistics.
    out, counts = [], known_null_counts(index)
    agrees = null_pages_agree(index, [b - a for a, b in pairwise(borders)], column.leaf)
    for page, (start, stop) in enumerate(pairwise(borders)):
        bounds = {"min_value": index.min_values[page], "max_value": index.max_values[page]}
        if index.null_pages[page] and agrees[page]:
            out.append(column.summarize_rows({}, stop - start, stop - start))
        elif not agrees[page] or not any(bounds.values()):  # Two empty texts may be no bounds.
            out.append(column.make_chunk())
        else:
            nulls = counts[page] if column.counted else None
            out.append(column.summarize_rows(bounds, nulls, stop - start))
    return out

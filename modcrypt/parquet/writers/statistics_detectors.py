"""Detectors of bugs in statistics and indexes, by which readers skip rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

from modcrypt.errors import FormatError
from modcrypt.parquet.crypto.chunk_opening import Chunk
from modcrypt.parquet.crypto.index_checks import (
    bound_reader,
    claim_faults,
    column_index_faults,
    known_null_counts,
    wrong_null_pages,
)
from modcrypt.parquet.format.idl import ThriftStruct, copy
from modcrypt.parquet.format.modules import Part
from modcrypt.parquet.format.structs import SchemaElement
from modcrypt.parquet.writers.plain_view import PlainView
from modcrypt.parquet.writers.quirk import Place
from modcrypt.parquet.writers.versions import is_of, is_older

_INT32, _INT64, _INT96, _FLOAT, _DOUBLE, _BYTE_ARRAY, _FIXED = range(1, 8)  # Type of the IDL
_DECIMAL, _INTERVAL = 5, 21  # ConvertedType of the IDL
_UNSIGNED: Final = (11, 12, 13, 14)
_DICTIONARIES: Final = {2, 8}  # PLAIN_DICTIONARY and RLE_DICTIONARY, Encoding of the IDL


def statistics_of(chunk: Chunk) -> ThriftStruct | None:
    """Return the statistics of a chunk; None if there are none, or they are damaged."""
    try:
        return chunk.metadata.statistics
    except FormatError:
        return None


def bounds_of(statistics: ThriftStruct | None) -> list[bytes]:
    """Return all bounds, those of both names."""
    if statistics is None:
        return []
    names = ("min_value", "max_value", "min", "max")
    bounds = (getattr(statistics, name) for name in names)
    return [bound for bound in bounds if bound is not None]


def _numbers(chunk: Chunk) -> list[Any]:
    """Return the bounds as comparable values: none if one is no value of the type."""
    read = bound_reader(chunk.element)
    try:
        return [] if read is None else [read(bound) for bound in bounds_of(statistics_of(chunk))]
    except ValueError:
        return []


def nan_statistics(_: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find bounds that are NaN, which has no place in an order."""
    if any(isinstance(value, float) and math.isnan(value) for value in _numbers(chunk)):
        yield ""


def zero_bounds(_: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find a minimum of +0 or a maximum of -0: the zero of the other sign is not below or above."""
    statistics = statistics_of(chunk)
    if statistics is None or chunk.element.type not in (_FLOAT, _DOUBLE):
        return
    for name, sign in (("min_value", 1), ("min", 1), ("max_value", -1), ("max", -1)):
        if getattr(statistics, name) == zero_of(chunk.element, sign):
            yield f"{name} is {'+' if sign > 0 else '-'}0"


def zero_of(element: SchemaElement, sign: int) -> bytes:
    """Return the zero of a sign as a bound of a float or double."""
    size = 4 if element.type == _FLOAT else 8
    return bytes(size - 1) + (b"\0" if sign > 0 else b"\x80")


def bounds_of_another_size(_: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find bounds that are not values of the column's type."""
    if (read := bound_reader(chunk.element)) is None:
        return
    for bound in bounds_of(statistics_of(chunk)):
        try:
            read(bound)
        except ValueError:
            yield f"a bound of {len(bound)} bytes"
            return


def crossed_bounds(_: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find a minimum above the maximum."""
    if any("above the maximum" in fault for fault in claim_faults(chunk.metadata, chunk.element)):
        yield ""


def bounds_of_nulls(_: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find bounds of a chunk that has only nulls."""
    statistics = statistics_of(chunk)
    if statistics is None or not chunk.metadata.num_values or not bounds_of(statistics):
        return
    if statistics.null_count == chunk.metadata.num_values:
        yield ""


def _is_unsigned(chunk: Chunk) -> bool:
    """Return whether the order of a column's values differs from that of signed bytes."""
    element = chunk.element
    logical = element.logicalType
    if element.type in (_BYTE_ARRAY, _FIXED):
        decimal = None if logical is None else logical.DECIMAL
        return element.converted_type != _DECIMAL and decimal is None
    integer = None if logical is None else logical.INTEGER
    return element.converted_type in _UNSIGNED or (integer is not None and not integer.isSigned)


def deprecated_bounds(_: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find bounds under the old names alone, whose order is unknown where signs matter."""
    statistics = statistics_of(chunk)
    if statistics is None or None in (statistics.min, statistics.max):
        return
    named = (statistics.min_value, statistics.max_value) != (None, None)
    if not named and statistics.min != statistics.max and _is_unsigned(chunk):
        yield ""


def binary_bounds_of_mr(view: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find bounds of binaries in a file of parquet-mr before 1.8.0."""
    if not is_older(view.created_by, b"parquet-mr", (1, 8, 0)):
        return
    if chunk.element.type in (_BYTE_ARRAY, _FIXED) and bounds_of(statistics_of(chunk)):
        yield ""


def no_column_orders(view: PlainView) -> Iterator[Place]:
    """Find new bounds in a file that does not say which order they have."""
    if view.metadata.column_orders is not None:
        return
    for chunk in view.chunks:
        statistics = statistics_of(chunk)
        if statistics is not None and statistics.min_value is not None:
            yield Place(chunk.row_group, chunk.column, chunk.path)


def int96_bounds(_: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find bounds of INT96, whose order the format does not define."""
    if chunk.element.type == _INT96 and bounds_of(statistics_of(chunk)):
        yield ""


def interval_bounds(_: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find bounds of intervals, whose order the format does not define."""
    if chunk.element.converted_type == _INTERVAL and bounds_of(statistics_of(chunk)):
        yield ""


def zero_distinct_count(_: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find a count of 0 distinct values in a chunk that has values."""
    statistics = statistics_of(chunk)
    if statistics is None or statistics.distinct_count != 0:
        return
    if (statistics.null_count or 0) < chunk.metadata.num_values and bounds_of(statistics):
        yield ""


def too_many_nulls(_: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find more nulls than values."""
    statistics = statistics_of(chunk)
    nulls = None if statistics is None else statistics.null_count
    if nulls is not None and nulls > chunk.metadata.num_values:
        yield f"{nulls} nulls in {chunk.metadata.num_values} values"


def dictionary_null_counts(view: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find dictionaries without a null in a file of Arrow C++ before 5."""
    statistics = statistics_of(chunk)
    if statistics is None or statistics.null_count != 0 or not chunk.leaf.max_definition:
        return
    old = is_older(view.created_by, b"parquet-cpp-arrow", (5, 0, 0))
    old = old or is_older(view.created_by, b"parquet-cpp", (2, 0, 0))
    if old and _DICTIONARIES & {*chunk.metadata.encodings}:
        yield ""


def struct_null_counts(_: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find a null count below that of the definition levels, in columns without lists."""
    statistics, sizes, leaf = statistics_of(chunk), chunk.metadata.size_statistics, chunk.leaf
    if statistics is None or statistics.null_count is None or sizes is None or leaf.max_repetition:
        return
    nulls = sum((sizes.definition_level_histogram or [])[: leaf.max_definition])
    if nulls > statistics.null_count:
        yield f"the levels have {nulls}"


def _wrong_null_pages(view: PlainView, chunk: Chunk) -> list[int]:
    index, offsets = (view.index(chunk, part) for part in (Part.COLUMN_INDEX, Part.OFFSET_INDEX))
    return wrong_null_pages(index, offsets, chunk.leaf, chunk.rows)


def null_pages(view: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find pages that Polars flags as null although they have values."""
    wrong = _wrong_null_pages(view, chunk)
    if wrong and not is_of(view.created_by, b"parquet-mr"):
        yield f"page {wrong[0]}"


def null_pages_java(view: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find pages that parquet-mr flags as null although they have values."""
    wrong = _wrong_null_pages(view, chunk)
    if wrong and is_of(view.created_by, b"parquet-mr"):
        yield f"page {wrong[0]}"


def nan_bounds(view: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find bounds of numbers that leave out the pages which are flagged as null."""
    logical = chunk.element.logicalType
    half = logical is not None and logical.FLOAT16 is not None
    if chunk.element.type not in (_FLOAT, _DOUBLE) and not half:
        return
    if not bounds_of(statistics_of(chunk)) or not is_of(view.created_by, b"polars"):
        return
    if wrong := _wrong_null_pages(view, chunk):
        yield f"page {wrong[0]} is left out"


def string_bounds(view: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find bounds of a page that lie beyond the chunk's."""
    index = view.index(chunk, Part.COLUMN_INDEX)
    if index is None or chunk.element.type != _BYTE_ARRAY or index.null_pages is None:
        return
    known = copy(chunk.metadata)
    faults = column_index_faults(index, None, known, chunk.leaf, chunk.element, None)
    beyond = ("above the chunk's", "below the chunk's", "outside the chunk's")
    if any(fault.endswith(beyond) for fault in faults):
        yield ""


def categorical_bounds(view: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find pages that have bounds although they have only nulls."""
    index, offsets = (view.index(chunk, part) for part in (Part.COLUMN_INDEX, Part.OFFSET_INDEX))
    if index is None or offsets is None or chunk.leaf.max_repetition or not index.null_pages:
        return
    firsts = [location.first_row_index for location in offsets.page_locations]
    nulls = known_null_counts(index)
    if len(firsts) != len(index.null_pages) or len(nulls) != len(firsts):
        return
    for n, (first, after) in enumerate(pairwise([*firsts, chunk.rows])):
        if nulls[n] == after - first > 0 and not index.null_pages[n]:
            yield f"page {n}"


def negative_null_counts(view: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find null counts below 0."""
    index = view.index(chunk, Part.COLUMN_INDEX)
    if index is not None and any(count < 0 for count in index.null_counts or ()):
        yield ""


def page_rows(view: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find pages that all begin with the same row."""
    offsets = view.index(chunk, Part.OFFSET_INDEX)
    rows = [] if offsets is None else [page.first_row_index for page in offsets.page_locations]
    if len(rows) > 1 and len({*rows}) == 1 and chunk.rows > 1:
        yield f"{len(rows)} pages begin with row {rows[0]}"


def index_page_sizes(view: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find offset indexes that give the sizes of pages without their headers."""
    if (offsets := view.index(chunk, Part.OFFSET_INDEX)) is None:
        return
    pages = [page for page in view.pages(chunk) if page.is_data]
    if not pages or len(pages) != len(offsets.page_locations):
        return
    pairs = zip(pages, offsets.page_locations, strict=True)
    if all(page.header.compressed_page_size == place.compressed_page_size for page, place in pairs):
        yield ""


def _is_unreadable(view: PlainView, chunk: Chunk, part: Part) -> bool:
    data, struct = view.part(chunk, part)
    return bool(data) and struct is None


def no_null_pages(view: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find column indexes that lack a required field."""
    if _is_unreadable(view, chunk, Part.COLUMN_INDEX):
        yield ""


def no_bloom_algorithm(view: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find bloom filters whose header lacks a required field."""
    if _is_unreadable(view, chunk, Part.BLOOM_FILTER):
        yield ""

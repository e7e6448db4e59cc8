"""Checks of a chunk's column metadata and indexes against each other and its pages.

The checks do no IO. Each yields a sentence for each fault; no sentence contains a value of the
data. This file has more than 400 lines because it holds every rule about indexes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from struct import Struct
from typing import Any

from modcrypt.errors import FormatError
from modcrypt.parquet.crypto.page_facts import PageFacts
from modcrypt.parquet.format.idl import ThriftStruct, copy, decode
from modcrypt.parquet.format.modules import chunk_start
from modcrypt.parquet.format.page_header import DICTIONARY_PAGE
from modcrypt.parquet.format.schema import Leaf
from modcrypt.parquet.format.structs import ColumnMetaData, SchemaElement

_BOOLEAN, _INT32, _INT64, _INT96, _FLOAT, _DOUBLE, _BYTE_ARRAY = range(7)  # Type of the IDL
_LAYOUTS = {_BOOLEAN: "<?", _FLOAT: "<f", _DOUBLE: "<d"}
_DECIMAL, _INTERVAL = 5, 21  # ConvertedType of the IDL
_SIGNED = {None, 6, 7, 8, 9, 10, 15, 16, 17, 18}  # ConvertedTypes of integers in signed order
_UNSIGNED = {11, 12, 13, 14}  # and in unsigned order


def chunk_faults(md: ColumnMetaData, leaf: Leaf, rows: int, pages: PageFacts) -> list[str]:
    """Return the contradictions between column metadata and the pages."""
    # This runs per column chunk, so it makes a list: a generator takes as long as the comparisons.
    faults: list[str] = []
    numbers = pages.values
    values = sum(numbers)
    if values != md.num_values:
        faults.append(f"its pages have {values} values, its metadata says {md.num_values}")
    counted = pages.rows or ([] if leaf.max_repetition else numbers)
    if counted and sum(counted) != rows:
        faults.append(f"its pages have {sum(counted)} rows, its row group {rows}")
    first = pages.pages[0][0] if pages.pages else None
    # Some old writers point at the chunk's start where the dictionary is.
    if first is not None and md.data_page_offset not in (first, chunk_start(md)):
        faults.append(
            f"data_page_offset is {md.data_page_offset}, the first data page is at byte {first}"
        )
    if md.encoding_stats:
        counts = [0, 0]
        for entry in md.encoding_stats:
            counts[entry.page_type != DICTIONARY_PAGE] += entry.count
        if counts != [len(pages.dictionaries), len(pages.pages)]:
            faults.append(
                f"it has {len(pages.dictionaries)} dictionary and {len(pages.pages)} data pages, "
                f"its encoding_stats count {counts[0]} and {counts[1]}"
            )
    if (sizes := md.size_statistics) is not None:
        faults += _size_faults(sizes, md.num_values, leaf)
    return faults


_NO_VALUES = "the chunk's bounds are not values of the column's type"


def claim_faults(md: ColumnMetaData, element: SchemaElement) -> list[str]:
    """Return the contradictions within column metadata, and between it and the schema."""
    if md.type != element.type:
        return [f"its metadata is of physical type {md.type}, the schema's is {element.type}"]
    statistics = md.statistics
    if statistics is None:
        return []
    faults: list[str] = []
    nulls = statistics.null_count
    if nulls is not None and nulls > md.num_values:  # a negative number is unknown
        faults.append(f"its statistics count {nulls} nulls in {md.num_values} values")
    low, high = statistics.min_value, statistics.max_value
    if low is None or high is None:
        return faults
    read = bound_reader(element)
    if read is None:
        return faults
    try:
        if read(low) > read(high):  # which NaN never is
            faults.append("its statistics have a minimum above the maximum")
    except ValueError:
        faults.append(_NO_VALUES)
    return faults


def _size_faults(sizes: ThriftStruct, values: int, leaf: Leaf) -> list[str]:
    faults: list[str] = []
    for name, histogram, levels in (
        ("definition", sizes.definition_level_histogram, leaf.max_definition),
        ("repetition", sizes.repetition_level_histogram, leaf.max_repetition),
    ):
        if not histogram:
            continue
        if len(histogram) != levels + 1:
            counts = len(histogram)
            faults.append(f"its {name} level histogram has {counts} counts for {levels + 1} levels")
        elif sum(histogram) != values:
            faults.append(f"its {name} level histogram does not add up to its {values} values")
    return faults


# --- offset index --------------------------------------------------------------------------------


def offset_index_faults(
    index: ThriftStruct, md: ThriftStruct | None, leaf: Leaf, rows: int, pages: PageFacts | None
) -> Iterator[str]:
    """Yield the contradictions within an offset index, and between it and the pages.

    `md` and `pages` are None if they cannot be read; `rows` is the number in the row group.
    """
    locations = index.page_locations
    firsts = [location.first_row_index for location in locations]
    if firsts and firsts[0] != 0:
        yield f"its first page begins with row {firsts[0]}"
    if any(first > second for first, second in pairwise(firsts)):
        yield "first_row_index goes backwards"
    if firsts and not 0 <= firsts[-1] <= rows:
        yield f"a page begins with row {firsts[-1]} of {rows}"
    if any(first.offset >= second.offset for first, second in pairwise(locations)):
        yield "page offsets are not in ascending order"
    sizes = index.unencoded_byte_array_data_bytes
    if sizes:
        yield from _byte_size_faults(sizes, md, len(locations))
    if pages is not None:
        yield from _location_faults(locations, leaf, pages)


def _byte_size_faults(sizes: list[int], md: ThriftStruct | None, count: int) -> Iterator[str]:
    if len(sizes) != count:
        yield f"it has sizes of byte arrays for {len(sizes)} pages of {count}"
    total = None if md is None or md.size_statistics is None else md.size_statistics
    if total is not None and total.unencoded_byte_array_data_bytes not in (None, sum(sizes)):
        yield "its sizes of byte arrays do not add up to the chunk's"


def _location_faults(locations: list[ThriftStruct], leaf: Leaf, pages: PageFacts) -> Iterator[str]:
    if len(locations) != len(pages.pages):
        yield f"it has {len(locations)} page locations, the chunk {len(pages.pages)} data pages"
        return
    row = 0
    counted = pages.rows or (pages.values if not leaf.max_repetition else [])
    for number, (location, page) in enumerate(zip(locations, pages.pages, strict=True)):
        start, size = page[:2]
        if location.offset != start:
            yield f"page {number} is at byte {start}, not at {location.offset}"
            return  # later faults would only follow from this one
        if location.compressed_page_size != size:
            yield f"page {number} has {size} bytes, not {location.compressed_page_size}"
            return
        if counted and location.first_row_index != row:
            yield f"page {number} begins with row {row}, not with row {location.first_row_index}"
            return
        row += counted[number] if counted else 0


# --- column index --------------------------------------------------------------------------------


def column_index_faults(
    index: ThriftStruct, offset_index: ThriftStruct | None, md: ThriftStruct | None, leaf: Leaf,
    element: ThriftStruct, pages: PageFacts | None, *, counted: bool = True,
) -> Iterator[str]:  # fmt: skip
    """Yield the contradictions between a column index, the offset index, statistics and pages.

    `md` and `pages` are None if they cannot be read. The schema element determines the order of the
    column's values. Unless its writer `counted` all nulls, their numbers are not compared.
    """
    count = len(index.null_pages)
    lists = {"min_values": index.min_values, "max_values": index.max_values}
    if index.null_counts is not None:
        lists["null_counts"] = index.null_counts
    for name, values in lists.items():
        if len(values) != count:
            yield f"it has {len(values)} {name} for {count} pages"
            return
    if offset_index is not None and len(offset_index.page_locations) != count:
        yield (f"it lists {count} pages, the offset index lists {len(offset_index.page_locations)}")
        return
    yield from _histogram_faults(index, leaf, count)
    yield from _bound_faults(index, md, element)
    yield from _null_faults(index, md)
    if pages is not None:
        if len(pages.pages) != count:
            yield f"it lists {count} pages, the chunk has {len(pages.pages)}"
            return
        yield from _page_faults(index, leaf, element, pages, counted)


def _histogram_faults(index: ThriftStruct, leaf: Leaf, count: int) -> Iterator[str]:
    for name, histograms, levels in (
        ("definition", index.definition_level_histograms, leaf.max_definition),
        ("repetition", index.repetition_level_histograms, leaf.max_repetition),
    ):
        if histograms and len(histograms) != count * (levels + 1):
            yield f"its {name} level histograms do not fit {count} pages"


def known_null_counts(index: ThriftStruct) -> list[int | None]:
    """Return the number of nulls of each page; None for a page whose number is not stated.

    A snapshot of parquet-mr 1.13 wrote -1 for pages without statistics.
    """
    if index.null_counts is None:
        return [None] * len(index.null_pages)
    return [None if count < 0 else count for count in index.null_counts]


def counts_all_nulls(created_by: bytes | None, leaf: Leaf, element: ThriftStruct) -> bool:
    """Return whether a file's writer counts all nulls of a column."""
    writer = created_by or b""
    if len(leaf.path) > 1 and element.type == _BYTE_ARRAY and writer.startswith(_ARROW):
        return False
    return not _OLD_ARROW.match(writer)


_OLD_ARROW = re.compile(rb"parquet-cpp(-arrow)? version [0-6]\.")
"""Writers that count no nulls of dictionaries (Arrow C++ before 5, ARROW-12513), or not those of
structs around them (before 7, PARQUET-2067)."""

_ARROW = b"parquet-cpp-arrow "
"""Writer that counts no nulls of structs around dictionaries of text (measured: PyArrow 26.0.1)."""


def is_of_polars(created_by: bytes | None) -> bool:
    """Return whether Polars, which states no version, wrote a file."""
    return (created_by or b"").startswith(b"Polars")


def find_misleading_writer(created_by: bytes | None, leaf: Leaf) -> str:
    """Return the writer of a file if its column indexes may mislead; else an empty text."""
    if is_of_polars(created_by):
        return "Polars up to 2.0"
    of_rust = (created_by or b"").startswith(b"parquet-rs ")
    return "arrow-rs 60" if of_rust and leaf.max_repetition else ""


def has_doubtful_bounds(created_by: bytes | None, element: ThriftStruct) -> bool:
    """Return whether the bounds of a column's chunks may leave out values."""
    # Those of Polars leave out pages with NaN (1.28 to 2.0), and strings that begin as the bound of
    # another page (0.20.31 to 1.36).
    half = element.logicalType is not None and element.logicalType.FLOAT16 is not None
    doubtful = half or element.type in (_FLOAT, _DOUBLE, _BYTE_ARRAY)
    return doubtful and is_of_polars(created_by)


WHO_MISLEADS = (
    "so that readers who believe the flag lose rows; Polars 1.28 to 2.0 writes this for pages with "
    "NaN, arrow-rs 60 for lists, snapshots of parquet-mr 1.13 for pages without statistics"
)


def null_pages_agree(
    index: ThriftStruct, counts: Sequence[int], leaf: Leaf, *, of_rows: bool = False
) -> list[bool]:
    """Return, for each page, whether the index's flag and its number of nulls agree.

    A page of nulls has as many nulls as values, and only an optional column has one. Polars 1.28
    to 2.0 flags each page with a NaN, arrow-rs 60 a page of lists with as many nulls as rows, and
    snapshots of parquet-mr 1.13 each page without statistics: a reader that believes the flag loses
    the page's rows.

    `counts` are the numbers of values in the pages, or of rows: each row has at least one value.
    """
    at_least = of_rows and leaf.max_repetition > 0
    out, levels = [], leaf.max_definition + 1
    histograms = index.definition_level_histograms or []
    present = histograms[levels - 1 :: levels]  # values, as far as the index states them
    if len(histograms) != levels * len(index.null_pages):
        present = [0] * len(index.null_pages)
    entries = zip(index.null_pages, known_null_counts(index), counts, present, strict=True)
    for empty, nulls, count, values in entries:
        if nulls is None:
            agrees = not empty
        elif at_least:
            agrees = not empty or nulls >= count
        else:
            agrees = nulls <= count and empty == (nulls == count)
        out.append(agrees and not (empty and (values or not leaf.max_definition)))
    return out


def wrong_null_pages(
    index: ThriftStruct | None, offset_index: ThriftStruct | None, leaf: Leaf, rows: int
) -> list[int]:
    """Return the pages that a column index flags as null against its own counts.

    Without both indexes, or if they differ in the number of pages, none is known. `rows` is the
    number in the row group.
    """
    if index is None or offset_index is None or not any(index.null_pages or ()):
        return []
    firsts = [location.first_row_index for location in offset_index.page_locations]
    if len(firsts) != len(index.null_pages):
        return []
    counts = [after - first for first, after in pairwise([*firsts, rows])]
    agrees = null_pages_agree(index, counts, leaf, of_rows=True)
    return [n for n, fits in enumerate(agrees) if index.null_pages[n] and not fits]


def misleads_readers(
    index: ThriftStruct, md: ThriftStruct, leaf: Leaf, element: ThriftStruct,
    count: Callable[[], Sequence[int]], *, of_rows: bool = False,
) -> bool:  # fmt: skip
    """Return whether a column index contradicts itself or the chunk's statistics.

    Readers may lose rows by such an index. `count` returns the counts for `null_pages_agree`; it is
    called if a page is flagged as one of nulls.
    """
    known = copy(md)  # Decoding the original's statistics would change how it is encoded.
    try:
        faults = list(column_index_faults(index, None, known, leaf, element, None))
    except FormatError:  # The statistics are damaged.
        faults = list(column_index_faults(index, None, None, leaf, element, None))
    if faults:
        return True
    if not any(index.null_pages):
        return False
    counts = count()
    return len(counts) != len(index.null_pages) or not all(
        null_pages_agree(index, counts, leaf, of_rows=of_rows)
    )


def null_page_quirks(index: ThriftStruct, values: Sequence[int], leaf: Leaf) -> Iterator[str]:
    """Yield a sentence if pages are flagged as null against the index's own counts of nulls."""
    agrees = null_pages_agree(index, values, leaf)
    wrong = [n for n, fits in enumerate(agrees) if not fits and index.null_pages[n]]
    if wrong:
        more = f" and {len(wrong) - 1} others are" if len(wrong) > 1 else " is"
        what = "flagged as all null against the index's own counts"
        yield f"page {wrong[0]}{more} {what}, {WHO_MISLEADS}"


def _null_faults(index: ThriftStruct, md: ThriftStruct | None) -> Iterator[str]:
    counts = [count for count in known_null_counts(index) if count is not None]
    statistics = None if md is None else md.statistics
    known = None if statistics is None else statistics.null_count
    if known is None or sum(counts) == known:
        return
    if sum(counts) > known or len(counts) == len(index.null_pages):
        yield f"it counts {sum(counts)} nulls, the chunk's statistics {known}"


def _bound_faults(
    index: ThriftStruct, md: ThriftStruct | None, element: ThriftStruct
) -> Iterator[str]:
    """Yield the contradictions between bounds, their declared order and the chunk's statistics."""
    read = bound_reader(element)
    if read is None:
        return
    entries = zip(index.null_pages, index.min_values, index.max_values, strict=True)
    bounds = [(low, high) for empty, low, high in entries if not empty]
    known = _read_bounds(read, bounds)
    if known is None:
        yield "a bound is not a value of the column's type"
        return
    if any(map(_has_nan, known)):
        return  # NaN has no order; known writers leave it out of bounds
    if any(low > high for low, high in known):
        yield "a page's minimum is above its maximum"
    ascending = all(a <= c and b <= d for (a, b), (c, d) in pairwise(known))
    descending = all(a >= c and b >= d for (a, b), (c, d) in pairwise(known))
    if not {1: ascending, 2: descending}.get(index.boundary_order, True):  # BoundaryOrder
        yield "its bounds are not in the order that it declares"
    statistics = None if md is None else md.statistics
    if known and statistics is not None and not all(index.null_pages):
        yield from _chunk_bound_faults(bounds, known, statistics, read)


def _chunk_bound_faults(
    bounds: list[tuple[bytes, bytes]],
    known: list[tuple[Any, Any]],
    statistics: ThriftStruct,
    read: Callable[[bytes], Any],
) -> Iterator[str]:
    """Yield the contradictions between the pages' bounds and the chunk's, unless shortened."""
    low, high = statistics.min_value, statistics.max_value
    if low is None or high is None:
        return
    if False in (statistics.is_min_value_exact, statistics.is_max_value_exact):
        return
    chunk = _read_bounds(read, [(low, high)])
    if chunk is None:
        yield _NO_VALUES
        return
    if _has_nan(chunk[0]):
        return
    if read is not bytes:
        if (min(low for low, _ in known), max(high for _, high in known)) != chunk[0]:
            yield "the bounds of its pages do not add up to the chunk's"
        return
    if any(bound > high for bound, _ in bounds) or any(bound < low for _, bound in bounds):
        yield "a page's bounds are outside the chunk's"
    # A shortened minimum is a prefix; a shortened maximum has its last character raised.
    if any(bound < low and not low.startswith(bound) for bound, _ in bounds):
        yield "a page's minimum is below the chunk's"
    if any(bound > high and not _is_shortened(bound, high) for _, bound in bounds):
        yield "a page's maximum is above the chunk's"


def _is_shortened(bound: bytes, value: bytes) -> bool:
    """Return whether a bound may be the value's beginning with its last character raised."""
    # The comparison uses characters, because raising a character may change all of its bytes.
    try:
        shorter, longer = bound.decode(), value.decode()
    except UnicodeDecodeError:
        return len(bound) < len(value) and bound[:-1] == value[: len(bound) - 1]
    return len(shorter) < len(longer) and shorter[:-1] == longer[: len(shorter) - 1]


def _has_nan(values: tuple[Any, Any]) -> bool:
    return any(isinstance(value, float) and math.isnan(value) for value in values)


def bound_reader(element: SchemaElement) -> Callable[[bytes], Any] | None:
    """Return a function that makes bounds comparable; None if their order is not defined.

    It raises ValueError for bytes that are no value of the type.
    """
    kind, logical, converted = element.type, element.logicalType, element.converted_type
    is_decimal = converted == _DECIMAL or (logical is not None and logical.DECIMAL is not None)
    if kind in (_INT32, _INT64):
        integer = None if logical is None else logical.INTEGER
        unsigned = converted in _UNSIGNED or (integer is not None and not integer.isSigned)
        layout = "<i" if kind == _INT32 else "<q"
        known = is_decimal or unsigned or converted in _SIGNED
        return _number_reader(layout.upper() if unsigned else layout) if known else None
    if kind in _LAYOUTS:
        return _number_reader(_LAYOUTS[kind])
    if kind == _INT96 or converted == _INTERVAL:
        return None
    if is_decimal:
        return _read_decimal
    if logical is None or logical.STRING is not None:
        return bytes
    if logical.FLOAT16 is not None:
        return _number_reader("<e")
    names = logical.ENUM, logical.UUID, logical.JSON, logical.BSON
    return bytes if any(name is not None for name in names) else None


def _read_bounds(
    read: Callable[[bytes], Any], bounds: Iterable[tuple[bytes, bytes]]
) -> list[tuple[Any, Any]] | None:
    """Return bounds as values; None if some are not values of the type."""
    try:
        return [(read(low), read(high)) for low, high in bounds]
    except ValueError:
        return None


def _read_decimal(value: bytes) -> int:
    if not value:
        raise ValueError
    return int.from_bytes(value, "big", signed=True)


@cache
def _number_reader(layout: str) -> Callable[[bytes], Any]:
    packed = Struct(layout)

    def read(value: bytes) -> Any:
        if len(value) != packed.size:
            raise ValueError
        return packed.unpack(value)[0]

    return read


def _page_faults(
    index: ThriftStruct, leaf: Leaf, element: ThriftStruct, pages: PageFacts, counted: bool
) -> Iterator[str]:
    """Yield the contradictions between each page's entry and its header."""
    counts = known_null_counts(index)
    flat = not leaf.max_repetition
    for number, (_, _, values, nulls, _) in enumerate(pages.pages):
        empty, count = index.null_pages[number], counts[number]
        if counted and count is not None and nulls >= 0 and count != nulls:
            yield f"page {number} has {nulls} nulls, not {count}"
        elif count is not None and flat and count > values:
            yield f"it counts {count} nulls on page {number}, which has {values} values"
        elif flat and count is not None and count == values and values and not empty:
            yield f"page {number} is all nulls, but not marked as such"
        yield from _statistics_faults(index, element, number, count, pages.headers[number])


_NO_STATISTICS = 24  # longest header, in bytes, that is not decoded: a header with bounds is longer


def _statistics_faults(
    index: ThriftStruct, element: ThriftStruct, number: int, nulls: int | None, header: bytes
) -> Iterator[str]:
    if len(header) <= _NO_STATISTICS:
        return
    try:
        decoded = decode("PageHeader", header)[0]
    except FormatError:
        return
    details = decoded.data_page_header or decoded.data_page_header_v2
    statistics = None if details is None else details.statistics
    if statistics is None:
        return
    if nulls is not None and statistics.null_count not in (None, nulls):
        yield f"page {number} has {statistics.null_count} nulls, not {nulls}"
    if element.type == _BYTE_ARRAY or index.null_pages[number]:
        return  # the index may have shortened its bounds
    low, high = statistics.min_value, statistics.max_value
    if low is not None and high is not None:
        bounds = index.min_values[number], index.max_values[number]
        if bounds != (low, high) and not _are_zeros(element, (*bounds, low, high)):
            yield f"the bounds of page {number} are not those in its header"


def _are_zeros(element: ThriftStruct, bounds: tuple[bytes, ...]) -> bool:
    """Return whether bounds may differ in the sign of a zero, which writers may normalise."""
    return element.type in (_FLOAT, _DOUBLE) and any(
        not any(bound[:-1]) and bound[-1:] in (b"\0", b"\x80") for bound in bounds
    )

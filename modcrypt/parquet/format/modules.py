"""The positions of a file's modules: one span per column chunk, index and bloom filter.

The spans are computed from footer metadata and returned in file order. Each span must lie between
the magic and the footer, and no span may overlap another. In a plaintext file, indexes and bloom
filters at impossible places are ignored, as other readers do.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from modcrypt.aad import MAX_ORDINAL
from modcrypt.errors import FormatError, LimitError, UnsupportedFormatError
from modcrypt.io.sources import Source
from modcrypt.module_ids import in_words
from modcrypt.parquet.format.chunk_notes import drop_hidden, find_hidden_index
from modcrypt.parquet.format.framing import MAGIC_SIZE
from modcrypt.parquet.format.idl import ThriftStruct, decode
from modcrypt.parquet.format.page_header import DICTIONARY_PAGE
from modcrypt.parquet.format.report import Report
from modcrypt.parquet.format.schema import Leaf
from modcrypt.parquet.format.structs import ColumnChunk, ColumnMetaData
from modcrypt.runtime.log import log_ignored

if TYPE_CHECKING:
    from modcrypt.parquet.format.byte_map import Severity

MAX_COLUMNS = MAX_ORDINAL + 1
MAX_ROW_GROUPS = MAX_ORDINAL + 1
"""Most row groups of an encrypted file: ordinals are int16 and begin at 0 (PME 4.4.2)."""

MAX_ROWS = (1 << 31) - 1
"""Most rows of one row group: a page counts its values in an int32, and parquet-java its rows."""

MAX_BLOOM_HEADER = 1024
"""Longest bloom filter header read, in bytes; it has about 15, or 132 if parquet-java pads it."""

MAX_BLOOM_FILTER = (128 << 20) + 2 * MAX_BLOOM_HEADER
"""Longest bloom filter read, in bytes: parquet-java, Arrow C++ and arrow-rs write at most 128 MiB,
besides a header and the overhead of two modules."""

MAX_INDEX = 64 << 20
"""Longest column or offset index read, in bytes: enough for bounds of 1 KiB for each of 32,768
pages (PME 4.4.2); writers cut bounds at 64 bytes."""

MAX_PAGE_HEADER = 16 << 20
"""Longest page header read, in bytes; Arrow C++ has the same limit."""


class Part(IntEnum):
    """The kind of content of a span."""

    PAGES = 0
    COLUMN_INDEX = 1
    OFFSET_INDEX = 2
    BLOOM_FILTER = 3


STRUCTS = {
    Part.COLUMN_INDEX: "ColumnIndex",
    Part.OFFSET_INDEX: "OffsetIndex",
    Part.BLOOM_FILTER: "BloomFilterHeader",
}
"""The struct of the IDL that each index or bloom filter begins with."""


# Looking them up in the enum takes longer than a comparison.
_PAGES: Final = Part.PAGES
_COLUMN_INDEX: Final = Part.COLUMN_INDEX
_OFFSET_INDEX: Final = Part.OFFSET_INDEX
_PARTS: Final = tuple(Part)

_LIMITS: Final = (sys.maxsize, MAX_INDEX, MAX_INDEX, MAX_BLOOM_FILTER)
"""Longest part read, by `Part`, in bytes: pages are read one by one, each with its own limit."""


class Span(NamedTuple):
    """The bytes [start, end) of one part of one column chunk."""

    start: int
    end: int
    part: Part
    row_group: int
    column: int

    def __str__(self) -> str:
        name = in_words(self.part)
        return f"{name} of row group {self.row_group}, column {self.column}"


_new_tuple: Final[Any] = tuple.__new__  # calling a named tuple's class takes twice as long


def file_spans(metadata: ThriftStruct, body_end: int, source: Source) -> tuple[list[Span], int]:
    """Return every span of a plaintext file, sorted by position, and how many parts chunks lost.

    All chunks have their `meta_data`; they lose indexes and bloom filters at impossible places. The
    footer starts at `body_end`. The source is only read to measure bloom filters without a stored
    length. Raise FormatError if the pages of a chunk lie outside the body, or overlap others.
    """
    chunks: dict[tuple[int, int], ColumnChunk] = {}
    for r, row_group in enumerate(metadata.row_groups):
        for c, chunk in enumerate(row_group.columns):
            chunks[r, c] = chunk
    spans, _, lost = locate_parts(
        chunks, body_end, source, Report(strict=True), (), optional="warning"
    )
    return spans, lost


def chunk_spans(
    chunks: Mapping[tuple[int, int], ColumnChunk], body_end: int, source: Source, *,
    encrypted: bool = True,
) -> list[Span]:  # fmt: skip
    """Return the spans of some chunks, given by row group and column, sorted by position.

    In an encrypted file, indexes and bloom filters at impossible places are errors as well: the
    footer, which is authenticated, states them, so other bytes were altered.
    """
    optional: Severity = "fault" if encrypted else "warning"
    return locate_parts(chunks, body_end, source, Report(strict=True), (), optional)[0]


def locate_parts(
    chunks: Mapping[tuple[int, int], ColumnChunk], body_end: int, source: Source, report: Report,
    place: tuple[int, int] | tuple[()] = (), optional: Severity = "fault",
) -> tuple[list[Span], set[Span], int]:  # fmt: skip
    """Return the spans of chunks sorted by position, those that begin inside others, and a count.

    Spans at impossible places are reported, left out and counted; overlaps are reported. If the
    report is strict and no such index or bloom filter is a fault, chunks lose them instead, which
    are counted, and only the log mentions it.

    Args:
        chunks: ColumnChunks with their `meta_data`, by row group and column.
        body_end: Offset at which the footer starts.
        source: The file, read to measure bloom filters without a stored length.
        report: Report about the places; a strict one raises FormatError.
        place: Range of the bytes that state the places, for findings.
        optional: Severity of findings about indexes and bloom filters.
    """
    spans: list[Span] = []
    misplaced: list[FormatError] = []
    for (r, c), chunk in chunks.items():
        _add_spans(spans, misplaced, chunk, r, c, body_end, source, report, place, optional)
    spans.sort()
    drops = report.strict and optional == "warning"
    if drops:
        log_ignored(source.name, misplaced)
    overlaps, lost = list(_find_overlaps(spans)), len(misplaced)
    while drops and (dropped := {s for pair in overlaps for s in pair[:2] if s.part is not _PAGES}):
        for span in dropped:
            drop_part(chunks[span.row_group, span.column], span.part)
        lost += len(dropped)
        log_ignored(source.name, [f"{span} overlaps another part" for span in sorted(dropped)])
        spans = [span for span in spans if span not in dropped]
        overlaps = list(_find_overlaps(spans))
    for span, other, end in overlaps:
        error = FormatError(f"{span} starts at byte {span.start}, inside {other}")
        severity = "fault" if span.part is _PAGES is other.part else optional
        report.add_error(error, span.start, min(span.end, end), severity=severity)
    return spans, {span for span, _, _ in overlaps}, lost


def drop_part(chunk: ColumnChunk, part: Part) -> None:
    """Remove the place of an index or bloom filter from a chunk."""
    if part is _COLUMN_INDEX:
        chunk.column_index_offset = chunk.column_index_length = None
        drop_hidden(chunk.meta_data)
    elif part is _OFFSET_INDEX:
        chunk.offset_index_offset = chunk.offset_index_length = None
    else:
        chunk.meta_data.bloom_filter_offset = chunk.meta_data.bloom_filter_length = None


def _add_spans(
    spans: list[Span], misplaced: list[FormatError], chunk: ColumnChunk, row_group: int,
    column: int, body_end: int, source: Source, report: Report,
    place: tuple[int, int] | tuple[()], optional: Severity,
) -> None:  # fmt: skip
    """Append the spans of one chunk's parts, and an error for each at an impossible place."""
    for part in _PARTS:
        try:
            found = _find_part(part, chunk, source, body_end)
        except FormatError as error:
            where = f"row group {row_group}, column {column}"
            fault: FormatError | None = type(error)(f"{where}: {error}")
        else:
            if found is None:
                continue
            start, length = found
            end = start + length
            span: Span = _new_tuple(Span, (start, end, part, row_group, column))
            fault = None
            if start < MAGIC_SIZE or end < start or end > body_end:
                fault = FormatError(
                    f"{span}: bytes {start} to {end} do not lie between the magic and the footer "
                    f"at {body_end}"
                )
            elif length > _LIMITS[part]:
                fault = LimitError(f"{span} has {length} bytes; at most {_LIMITS[part]} are read")
        if fault is None:
            spans.append(span)
            continue
        misplaced.append(fault)
        if report.strict and optional == "warning" and part is not _PAGES:
            drop_part(chunk, part)
        else:
            low, high = place or (None, None)
            report.add_error(fault, low, high, severity="fault" if part is _PAGES else optional)


def _find_overlaps(spans: Iterable[Span]) -> Iterator[tuple[Span, Span, int]]:
    """Yield each span that begins inside an earlier one, that one, and where it ends."""
    reached, last = MAGIC_SIZE, None
    for span in spans:
        start, end, _, _, _ = span
        if last is not None and start < reached and end > start:
            yield span, last, reached
        if end > reached:
            reached, last = end, span


def check_shape(metadata: ThriftStruct, leaves: int, *, plain: bool = False) -> None:
    """Raise the first of `shape_faults`, which may be a LimitError."""
    for error in shape_faults(metadata, leaves, plain=plain):
        raise error


def shape_faults(
    metadata: ThriftStruct, leaves: int, *, plain: bool = False
) -> Iterator[FormatError]:
    """Yield an error unless every row group has a chunk for each leaf of the schema.

    The footer of a plaintext file (`plain`) may declare 0 rows whatever its row groups declare:
    parquet-rs 0.3 wrote that.
    """
    row_groups = metadata.row_groups
    if len(row_groups) > MAX_ROW_GROUPS or leaves > MAX_COLUMNS:
        yield LimitError(
            f"{len(row_groups)} row groups of {leaves} columns: ordinals are int16, so encrypted "
            f"files have at most {MAX_ROW_GROUPS} row groups and {MAX_COLUMNS} columns (PME 4.4.2)"
        )
        return
    rows = sum(row_group.num_rows for row_group in row_groups)
    if metadata.num_rows != rows and not (plain and metadata.num_rows == 0):
        yield FormatError(
            f"the footer declares {metadata.num_rows} rows, but its row groups have {rows}"
        )
    for r, row_group in enumerate(row_groups):
        rows, chunks = row_group.num_rows, len(row_group.columns)
        if rows < 0:
            yield FormatError(f"row group {r} declares {rows} rows")
        if rows > MAX_ROWS:
            yield LimitError(f"row group {r} declares {rows} rows; at most {MAX_ROWS} are read")
        if chunks != leaves:
            yield FormatError(
                f"row group {r} has {chunks} column chunks, but the schema has {leaves}"
            )


def check_file_path(chunk: ColumnChunk, row_group: int, column: int) -> None:
    """Raise UnsupportedFormatError if a column chunk lies in another file than its footer."""
    if chunk.file_path is not None:  # modcrypt never opens a path that a file names
        raise UnsupportedFormatError(
            f"row group {row_group}, column {column} lies in another file, as in a _metadata "
            "summary; use the data files"
        )


def ordinal_faults(metadata: ThriftStruct) -> Iterator[FormatError]:
    """Yield an error for each RowGroup.ordinal that differs from the row group's position.

    Readers may use the ordinal or the position for AADs (PME 5.2), so all readers interpret a file
    in the same way only if both agree.
    """
    for r, row_group in enumerate(metadata.row_groups):
        if row_group.ordinal not in (None, r):
            yield FormatError(
                f"row group {r} declares ordinal {row_group.ordinal}: row groups were reordered or "
                "removed"
            )


def check_column_metadata(md: ColumnMetaData | None, leaf: Leaf, row_group: int, rows: int) -> None:
    """Check that a chunk's ColumnMetaData exists and belongs to its column.

    `rows` is the number of rows in the row group.

    Raises:
        FormatError: The metadata is missing; or it names another column, so that its key would be
            the wrong one; or its number of values, by which readers allocate memory, does not fit
            the row group's rows.
    """
    if md is None:
        why = "the column metadata is missing"
    elif md.path_in_schema != leaf.names:
        why = "its column metadata names another column"
    elif md.num_values < rows or (md.num_values > rows and not leaf.max_repetition):
        why = f"{md.num_values} values in {rows} rows"
    elif (
        md.num_values < 0
        or md.total_uncompressed_size < 0
        or md.total_compressed_size < 0
        or md.data_page_offset < 0
    ):
        why = "a size, count or offset is negative"
    else:
        return
    raise FormatError(f"row group {row_group}, column {'.'.join(leaf.path)}: {why}")


def _find_part(
    part: Part, chunk: ColumnChunk, source: Source, body_end: int
) -> tuple[int, int] | None:
    """Return the offset and length of a part; None if the chunk does not have it."""
    if part is _PAGES:
        return _find_pages(chunk.meta_data)
    if part is _COLUMN_INDEX:
        offset, length = chunk.column_index_offset, chunk.column_index_length
        if offset is None and length is None:
            return find_hidden_index(chunk.meta_data)
        return _check_index("column_index", offset, length)
    if part is _OFFSET_INDEX:
        return _check_index("offset_index", chunk.offset_index_offset, chunk.offset_index_length)
    offset, length = chunk.meta_data.bloom_filter_offset, chunk.meta_data.bloom_filter_length
    if offset is None:
        return None
    if length is None:
        length = _measure_bloom_filter(chunk, source, body_end)
    if length <= 0:
        raise FormatError(f"bloom filter with length {length}")
    return offset, length


def _find_pages(md: ColumnMetaData) -> tuple[int, int] | None:
    size: int = md.total_compressed_size
    if not size:
        return None  # a chunk without pages has no position
    start = chunk_start(md)
    if md.data_page_offset > start + size:
        raise FormatError(
            f"data_page_offset {md.data_page_offset} lies outside the chunk, bytes "
            f"{start} to {start + size}"
        )
    return start, size


def _check_index(name: str, offset: int | None, length: int | None) -> tuple[int, int] | None:
    if offset is None and length is None:
        return None
    if offset is None or length is None or length <= 0:
        raise FormatError(f"{name} at {offset} with length {length}")
    return offset, length


def chunk_start(md: ColumnMetaData) -> int:
    """Return the offset of a chunk's first page: the dictionary page if it has one."""
    # `ColumnChunk.file_offset` is not reliable. A dictionary offset of 0 means that there is no
    # dictionary. PyArrow writes 0 as the offset of an empty chunk's data pages.
    dictionary: int | None = md.dictionary_page_offset
    data: int = md.data_page_offset
    return dictionary if dictionary and (dictionary < data or data <= 0) else data


_PLAIN_DICTIONARY, _RLE_DICTIONARY = 2, 8  # Encoding of the IDL


def names_dictionary(md: ColumnMetaData) -> bool | None:
    """Return whether a chunk's `encodings` make parquet-java treat its first page as a dictionary.

    Return None if `encoding_stats` determine it. Impala's chunks name a dictionary encoding without
    having a dictionary.
    """
    if md.encoding_stats is not None:
        return None
    return _PLAIN_DICTIONARY in md.encodings or _RLE_DICTIONARY in md.encodings


def _measure_bloom_filter(chunk: ColumnChunk, source: Source, body_end: int) -> int:
    """Return the length of a bloom filter whose writer stored none (before parquet-format 2.10)."""
    offset = chunk.meta_data.bloom_filter_offset
    if not MAGIC_SIZE <= offset < body_end:
        raise FormatError(f"a bloom filter at byte {offset} lies outside the file's modules")
    available = body_end - offset
    if chunk.crypto_metadata is None:
        return _measure_plain_bloom_filter(source, offset, available)
    first = 4 + int.from_bytes(source.read_at(offset, min(available, 4)), "little")
    if first + 4 > available:
        try:
            return _measure_plain_bloom_filter(source, offset, available)  # arrow-rs encrypts none
        except FormatError:
            what = f"a bloom filter header at byte {offset} declares {first} bytes"
            raise LimitError(what) from None
    return first + 4 + int.from_bytes(source.read_at(offset + first, 4), "little")


def _measure_plain_bloom_filter(source: Source, offset: int, available: int) -> int:
    data = source.read_at(offset, min(available, MAX_BLOOM_HEADER))
    header, size = decode("BloomFilterHeader", data)
    return size + int(header.numBytes)


def sort_for_writing(spans: list[Span]) -> list[Span]:
    """Return spans in file order, but with indexes that precede their chunk at the end.

    Indexes can only be written after their chunk. No known writer puts them before the chunk.
    """
    indexes = [span for span in spans if span[2] is _OFFSET_INDEX or span[2] is _COLUMN_INDEX]
    if not indexes:
        return spans
    starts = {(s.row_group, s.column): s.start for s in spans if s.part is _PAGES}
    early = [s for s in indexes if starts.get((s.row_group, s.column), -1) > s.start]
    if not early:
        return spans
    moved = set(early)
    return [span for span in spans if span not in moved] + early


def too_many_pages_error(where: str) -> LimitError:
    """Return the error for a chunk that has more pages than ordinals can number."""
    return LimitError(
        f"{where}: a column chunk has at most {MAX_ORDINAL + 1} data pages because their ordinals "
        "are int16 (PME 4.4.2); write larger pages or smaller row groups"
    )


def unexpected_page_error(where: str, kind: int) -> UnsupportedFormatError:
    """Return the error for a page whose kind has no module type, or which is out of place."""
    return UnsupportedFormatError(
        f"{where}: a page of type {kind} "
        + ("after the first" if kind == DICTIONARY_PAGE else "has no module type in the format")
    )

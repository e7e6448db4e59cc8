"""Where a file's modules lie: one span per column chunk, index and bloom filter.

Takes footer metadata, gives positions, in file order; every span is checked to lie between the
magic and the footer, and none may overlap another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from modcrypt.aad import MAX_ORDINAL
from modcrypt.errors import FormatError, LimitError, UnsupportedFormatError
from modcrypt.io.storage import Source
from modcrypt.parquet.format.framing import MAGIC_SIZE
from modcrypt.parquet.format.idl import ThriftStruct, decode
from modcrypt.parquet.format.page_header import DICTIONARY_PAGE
from modcrypt.parquet.format.schema import Leaf

__all__ = [
    "MAX_PAGE_HEADER",
    "STRUCTS",
    "Part",
    "Span",
    "check_column_metadata",
    "check_shape",
    "chunk_spans",
    "file_spans",
    "in_writing_order",
    "names_dictionary",
    "too_many_pages",
    "unexpected_page",
]

MAX_COLUMNS = MAX_ORDINAL + 1
MAX_ROW_GROUPS = 32_767
"""Ordinals are int16 (PME 4.4.2); Arrow C++ takes no row group ordinal of 32767."""

MAX_ROWS = (1 << 31) - 1
"""Rows of one row group; a page counts its values in an int32, and parquet-java its rows."""

MAX_BLOOM_HEADER = 1024
"""A bloom filter header is about 15 bytes, or 132 where parquet-java pads it."""


MAX_PAGE_HEADER = 16 << 20
"""Longest page header read, in bytes; Arrow C++ has the same limit."""


class Part(IntEnum):
    """What a span holds."""

    PAGES = 0
    COLUMN_INDEX = 1
    OFFSET_INDEX = 2
    BLOOM_FILTER = 3


STRUCTS = {
    Part.COLUMN_INDEX: "ColumnIndex",
    Part.OFFSET_INDEX: "OffsetIndex",
    Part.BLOOM_FILTER: "BloomFilterHeader",
}
"""The struct of the IDL that each of the small parts begins with."""


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """The bytes [start, end) of one part of one column chunk."""

    start: int
    end: int
    part: Part
    row_group: int
    column: int

    def __str__(self) -> str:
        name = self.part.name.lower().replace("_", " ")
        return f"{name} of row group {self.row_group}, column {self.column}"


def file_spans(metadata: ThriftStruct, body_end: int, source: Source) -> list[Span]:
    """List every span of the file, sorted by position.

    Args:
        metadata: FileMetaData whose chunks all have their `meta_data`.
        body_end: where the footer starts.

    Raises:
        FormatError: a span lies outside the body, or two overlap.
    """
    chunks = {
        (r, c): chunk
        for r, row_group in enumerate(metadata.row_groups)
        for c, chunk in enumerate(row_group.columns)
    }
    return chunk_spans(chunks, body_end, source)


def chunk_spans(
    chunks: Mapping[tuple[int, int], ThriftStruct], body_end: int, source: Source
) -> list[Span]:
    """List the spans of some chunks, by row group and column; the rest as `file_spans`."""
    spans = [
        span
        for (r, c), chunk in chunks.items()
        for span in _chunk_spans(chunk, r, c, source, body_end)
    ]
    spans.sort()
    reached, last = MAGIC_SIZE, None
    for span in spans:
        if span.start < MAGIC_SIZE or span.end < span.start or span.end > body_end:
            raise FormatError(
                f"{span}: bytes {span.start} to {span.end} do not lie between the magic and the "
                f"footer at {body_end}"
            )
        if span.start < reached and span.end > span.start:
            raise FormatError(f"{span} starts at byte {span.start}, inside {last}")
        reached, last = max(reached, span.end), span
    return spans


def check_shape(metadata: ThriftStruct, leaves: int, *, plain: bool = False) -> None:
    """Check that every row group has a chunk for each of the schema's leaves, in this file.

    A plaintext footer may say 0 rows whatever its row groups say: parquet-rs 0.3 wrote that.

    Raises:
        FormatError: a chunk is missing or superfluous, or a number of rows is negative.
        LimitError: more row groups or columns than an ordinal can number, or too many rows.
        UnsupportedFormatError: a chunk lies in another file.
    """
    row_groups = metadata.row_groups
    if len(row_groups) > MAX_ROW_GROUPS or leaves > MAX_COLUMNS:
        raise LimitError(
            f"{len(row_groups)} row groups of {leaves} columns: ordinals are int16, so encrypted "
            f"files have at most {MAX_ROW_GROUPS} row groups and {MAX_COLUMNS} columns (PME 4.4.2)"
        )
    unsaid = plain and metadata.num_rows == 0
    if not unsaid and metadata.num_rows != sum(row_group.num_rows for row_group in row_groups):
        raise FormatError(
            f"the footer declares {metadata.num_rows} rows, its row groups have another number"
        )
    for r, row_group in enumerate(row_groups):
        if row_group.num_rows < 0:
            raise FormatError(f"row group {r} declares {row_group.num_rows} rows")
        if row_group.num_rows > MAX_ROWS:
            raise LimitError(
                f"row group {r} declares {row_group.num_rows} rows; at most {MAX_ROWS} are read"
            )
        if len(row_group.columns) != leaves:
            raise FormatError(
                f"row group {r} has {len(row_group.columns)} column chunks, the schema {leaves}"
            )
        for c, chunk in enumerate(row_group.columns):
            if chunk.file_path is not None:  # never opened: a path from a file is not trusted
                raise UnsupportedFormatError(
                    f"row group {r}, column {c} lies in another file, as in a _metadata summary"
                )


def check_column_metadata(md: ThriftStruct | None, leaf: Leaf, row_group: int, rows: int) -> None:
    """Check that a chunk's ColumnMetaData is there and is that of its column.

    Raises:
        FormatError: it is missing, or names another column: its key would be the wrong one; or it
            has not as many values as the row group has rows, by which readers allocate.
    """
    where = f"row group {row_group}, column {'.'.join(leaf.path)}"
    if md is None:
        raise FormatError(f"{where}: the column metadata is missing")
    if md.path_in_schema != [name.encode() for name in leaf.path]:
        raise FormatError(f"{where}: its metadata is that of another column")
    if md.num_values < rows or (md.num_values > rows and not leaf.max_repetition):
        raise FormatError(f"{where}: {md.num_values} values in {rows} rows")
    numbers = (
        md.num_values,
        md.total_uncompressed_size,
        md.total_compressed_size,
        md.data_page_offset,
    )
    if min(numbers) < 0:
        raise FormatError(f"{where}: a size, count or offset is negative")


def _chunk_spans(
    chunk: ThriftStruct, row_group: int, column: int, source: Source, body_end: int
) -> list[Span]:
    md = chunk.meta_data
    start = chunk_start(md)
    spans = []
    if md.total_compressed_size:  # a chunk without pages has no place
        end = start + md.total_compressed_size
        if md.data_page_offset > end:
            raise FormatError(
                f"row group {row_group}, column {column}: data_page_offset {md.data_page_offset} "
                f"lies outside the chunk, bytes {start} to {end}"
            )
        spans.append(Span(start, end, Part.PAGES, row_group, column))
    for part, offset, length in (
        (Part.COLUMN_INDEX, chunk.column_index_offset, chunk.column_index_length),
        (Part.OFFSET_INDEX, chunk.offset_index_offset, chunk.offset_index_length),
    ):
        if offset is None and length is None:
            continue
        if offset is None or length is None or length <= 0:
            raise FormatError(
                f"row group {row_group}, column {column}: {part.name.lower()} at {offset} with "
                f"length {length}"
            )
        spans.append(Span(offset, offset + length, part, row_group, column))
    if md.bloom_filter_offset is not None:
        length = md.bloom_filter_length
        if length is None:
            length = _bloom_length(chunk, source, body_end)
        if length <= 0:
            raise FormatError(
                f"row group {row_group}, column {column}: bloom filter with length {length}"
            )
        start = md.bloom_filter_offset
        spans.append(Span(start, start + length, Part.BLOOM_FILTER, row_group, column))
    return spans


def chunk_start(md: ThriftStruct) -> int:
    """Give the offset of a chunk's first page: its dictionary's if it has one.

    `ColumnChunk.file_offset` says it in no reliable way. A dictionary offset of 0 means none;
    PyArrow gives the data pages of an empty chunk the offset 0.
    """
    dictionary: int | None = md.dictionary_page_offset
    data: int = md.data_page_offset
    return dictionary if dictionary and (dictionary < data or data <= 0) else data


_PLAIN_DICTIONARY, _RLE_DICTIONARY = 2, 8  # Encoding of the IDL


def names_dictionary(md: ThriftStruct) -> bool | None:
    """Return whether parquet-java takes a chunk's first page for a dictionary, by its `encodings`.

    Return None if `encoding_stats` say it. Impala's chunks name a dictionary that they don't have.
    """
    if md.encoding_stats is not None:
        return None
    return _PLAIN_DICTIONARY in md.encodings or _RLE_DICTIONARY in md.encodings


def _bloom_length(chunk: ThriftStruct, source: Source, body_end: int) -> int:
    """Measure a bloom filter whose writer stored no length (before parquet-format 2.10)."""
    offset = chunk.meta_data.bloom_filter_offset
    if not MAGIC_SIZE <= offset < body_end:
        raise FormatError(f"a bloom filter at byte {offset} lies outside the file's modules")
    room = body_end - offset
    if chunk.crypto_metadata is None:
        data = source.read_at(offset, min(room, MAX_BLOOM_HEADER))
        header, size = decode("BloomFilterHeader", data)
        return size + int(header.numBytes)
    first = 4 + int.from_bytes(source.read_at(offset, min(room, 4)), "little")
    if first + 4 > room:
        raise LimitError(f"a bloom filter header at byte {offset} declares {first} bytes")
    return first + 4 + int.from_bytes(source.read_at(offset + first, 4), "little")


def in_writing_order(spans: list[Span]) -> list[Span]:
    """Keep the file's order, but put offset indexes that come before their chunk to the end.

    No known writer puts one there, and its content is only known once its chunk is written.
    """
    starts = {(s.row_group, s.column): s.start for s in spans if s.part is Part.PAGES}
    early = [
        span for span in spans
        if span.part is Part.OFFSET_INDEX
        and starts.get((span.row_group, span.column), -1) > span.start
    ]  # fmt: skip
    if not early:
        return spans
    held = set(early)
    return [span for span in spans if span not in held] + early


def too_many_pages(where: str) -> LimitError:
    """Say that a chunk has more pages than an ordinal can number."""
    return LimitError(
        f"{where}: a column chunk has at most {MAX_ORDINAL + 1} data pages, their ordinals are "
        "int16 (PME 4.4.2); write larger pages or smaller row groups"
    )


def unexpected_page(where: str, kind: int) -> UnsupportedFormatError:
    """Say that a page is of a kind that has no module type, or stands in the wrong place."""
    return UnsupportedFormatError(
        f"{where}: a page of type {kind} "
        + ("after the first" if kind == DICTIONARY_PAGE else "has no module type in the format")
    )

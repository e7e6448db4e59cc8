"""Mapping of old positions in a file to new ones, for footers and offset indexes.

Encryption and decryption move every byte of a file. Both record here what they wrote, and obtain
the new row groups and page locations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from modcrypt.errors import FormatError
from modcrypt.parquet.format.framing import MAGIC_SIZE
from modcrypt.parquet.format.idl import ThriftStruct, copy
from modcrypt.parquet.format.modules import Part, Span


@dataclass(slots=True)
class ChunkMove:
    """The facts about one chunk's pages, collected while they are written.

    All pages of a chunk that was copied unchanged move by the same distance, so it has no details.
    """

    old_start: int
    new_start: int
    new_end: int = 0
    copied: bool = False
    has_dictionary: bool = False
    first_data_page: tuple[int, int] | None = None  # old and new offset
    header_growth: int = 0  # total growth of the page headers in bytes
    keep_pages: bool = False  # whether an offset index needs the locations
    pages: list[tuple[int, int, int]] = field(default_factory=list)  # old, new offset, new size
    encoding_stats: list[ThriftStruct] | None = None  # added because parquet-java needs them


class Relocation:
    """The moves of one file."""

    def __init__(self) -> None:
        self.chunks: dict[tuple[int, int], ChunkMove] = {}
        self._parts: dict[tuple[Part, int, int], tuple[int, int]] = {}  # new offset and length
        self._borders = {0: 0, MAGIC_SIZE: MAGIC_SIZE}  # old offset to new offset

    def add(self, span: Span, start: int, end: int) -> None:
        """Record that `span` now occupies the bytes [start, end)."""
        self._parts[span.part, span.row_group, span.column] = start, end - start
        self._borders[span.start] = start
        self._borders[span.end] = end

    def relocate_index(self, span: Span, index: ThriftStruct) -> None:
        """Update an offset index's page locations.

        Raises:
            FormatError: The locations are not those of the chunk's data pages.
        """
        move = self.chunks.get((span.row_group, span.column))
        locations = index.page_locations
        if move is None:
            if locations:
                raise FormatError(f"{span}: it has page locations, but its chunk has no pages")
        elif move.copied:
            for location in locations:
                location.offset += move.new_start - move.old_start
        else:
            if [page[0] for page in move.pages] != [location.offset for location in locations]:
                raise FormatError(f"{span}: its page locations are not those of the data pages")
            for location, (_, offset, size) in zip(locations, move.pages, strict=True):
                location.offset, location.compressed_page_size = offset, size

    def row_groups(self, old: list[ThriftStruct]) -> tuple[list[ThriftStruct], set[str]]:
        """Return copies of row groups with new offsets and sizes, and the names of added fields.

        Raises:
            FormatError: A chunk's page offsets are not those of its pages.
        """
        absent: set[str] = set()
        new = [self._move_row_group(row_group, r, absent) for r, row_group in enumerate(old)]
        if any(md.encoding_stats is not None for md in _all_metadata(old)):
            absent.discard(
                "encoding_stats"
            )  # else decryption would remove the existing ones as well
        return new, absent

    def _move_row_group(self, old: ThriftStruct, r: int, absent: set[str]) -> ThriftStruct:
        new = copy(old)
        new.columns = [
            chunk if chunk.meta_data is None else self._move_chunk(chunk, r, c, absent)
            for c, chunk in enumerate(old.columns)
        ]
        moves = [move for c in range(len(old.columns)) if (move := self.chunks.get((r, c)))]
        absent.update(
            f for f in ("file_offset", "total_compressed_size") if getattr(old, f) is None
        )
        new.total_byte_size += sum(move.header_growth for move in moves)
        new.total_compressed_size = sum(move.new_end - move.new_start for move in moves)
        # Split planners use this offset (parquet-java for chunks with encrypted metadata).
        if old.num_rows or old.file_offset != 0:  # PyArrow writes 0 for an empty row group
            nowhere = self._borders.get(old.file_offset, MAGIC_SIZE)
            new.file_offset = min((move.new_start for move in moves), default=nowhere)
        return new

    def _move_chunk(self, old: ThriftStruct, r: int, c: int, absent: set[str]) -> ThriftStruct:
        new = copy(old)
        md = new.meta_data = copy(old.meta_data)
        move = self.chunks.get((r, c))
        if move is not None:
            self._move_pages(md, move, f"row group {r}, column {c}")
            if md.encoding_stats is None and move.encoding_stats is not None:
                md.encoding_stats = move.encoding_stats
                absent.add("encoding_stats")
        else:
            md.data_page_offset = self._borders.get(md.data_page_offset, MAGIC_SIZE)
            if md.dictionary_page_offset is not None:
                md.dictionary_page_offset = self._borders.get(md.dictionary_page_offset, MAGIC_SIZE)
        if md.index_page_offset is not None:
            md.index_page_offset = self._borders.get(md.index_page_offset)
        new.file_offset = self._borders.get(old.file_offset, 0)  # readers don't rely on it
        if place := self._parts.get((Part.COLUMN_INDEX, r, c)):
            new.column_index_offset, new.column_index_length = place
        if place := self._parts.get((Part.OFFSET_INDEX, r, c)):
            new.offset_index_offset, new.offset_index_length = place
        if place := self._parts.get((Part.BLOOM_FILTER, r, c)):
            if md.bloom_filter_length is None:
                absent.add("bloom_filter_length")
            md.bloom_filter_offset, md.bloom_filter_length = place
        return new

    def _move_pages(self, md: ThriftStruct, move: ChunkMove, where: str) -> None:
        """Set sizes and page offsets, which must be those of the pages, or FormatError is raised.

        Arrow C++ and arrow-rs conclude from a dictionary offset that a dictionary exists, so the
        offset must be present exactly if the dictionary is.
        """
        md.total_compressed_size = move.new_end - move.new_start
        md.total_uncompressed_size += move.header_growth
        if move.copied:
            distance = move.new_start - move.old_start
            md.data_page_offset += distance if md.data_page_offset > 0 else 0
            if md.dictionary_page_offset:
                md.dictionary_page_offset += distance
            return
        if move.first_data_page is None:  # PyArrow gives an empty chunk's data pages offset 0
            md.data_page_offset = self._borders.get(md.data_page_offset, move.new_end)
        else:
            old, new = move.first_data_page
            # Some old writers give the chunk's start, where the dictionary is.
            if md.data_page_offset not in (old, move.old_start):
                raise FormatError(
                    f"{where}: data_page_offset is {md.data_page_offset}, the first data page is "
                    f"at byte {old}"
                )
            md.data_page_offset = new
        if move.has_dictionary:
            md.dictionary_page_offset = move.new_start
        elif md.dictionary_page_offset:
            raise FormatError(
                f"{where}: dictionary_page_offset is set, but the page is not a dictionary"
            )
        else:
            md.dictionary_page_offset = None  # some writers use 0 for none


def _all_metadata(row_groups: list[ThriftStruct]) -> Iterator[ThriftStruct]:
    for row_group in row_groups:
        yield from (chunk.meta_data for chunk in row_group.columns if chunk.meta_data is not None)

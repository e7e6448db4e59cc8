"""Where everything went: old positions to new ones, for footers and offset indexes.

Encrypting and decrypting move every byte of a file; both note here what they wrote and take
the new row groups and page locations from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from modcrypt.errors import FormatError
from modcrypt.parquet.format.framing import MAGIC_SIZE
from modcrypt.parquet.format.idl import ThriftStruct, copy
from modcrypt.parquet.format.modules import Part, Span

__all__ = ["ChunkMove", "Relocation"]


@dataclass(slots=True)
class ChunkMove:
    """What is learned about one chunk's pages while they are written.

    A chunk that was copied as it is has moved by one distance and has no details.
    """

    old_start: int
    new_start: int
    new_end: int = 0
    copied: bool = False
    has_dictionary: bool = False
    first_data_page: tuple[int, int] | None = None  # old and new offset
    header_growth: int = 0  # bytes by which the page headers grew
    keep_pages: bool = False  # whether an offset index needs the locations
    pages: list[tuple[int, int, int]] = field(default_factory=list)  # old, new offset, new size
    encoding_stats: list[ThriftStruct] | None = None  # that parquet-java needs


class Relocation:
    """The moves of one file."""

    def __init__(self) -> None:
        self.chunks: dict[tuple[int, int], ChunkMove] = {}
        self._parts: dict[tuple[Part, int, int], tuple[int, int]] = {}  # new offset and length
        self._borders = {0: 0, MAGIC_SIZE: MAGIC_SIZE}  # old offset to new offset

    def add(self, span: Span, start: int, end: int) -> None:
        """Note that `span` now takes the bytes [start, end)."""
        self._parts[span.part, span.row_group, span.column] = start, end - start
        self._borders[span.start] = start
        self._borders[span.end] = end

    def relocate_index(self, span: Span, index: ThriftStruct) -> None:
        """Move an offset index's page locations.

        Raises:
            FormatError: they are not those of the chunk's data pages.
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
        """Copy row groups with new offsets and sizes; name the fields that were not there.

        Raises:
            FormatError: a chunk's page offsets are not where its pages were.
        """
        absent: set[str] = set()
        new = [self._row_group(row_group, r, absent) for r, row_group in enumerate(old)]
        if any(md.encoding_stats is not None for md in _all_metadata(old)):
            absent.discard("encoding_stats")  # without them, decryption would remove those, too
        return new, absent

    def _row_group(self, old: ThriftStruct, r: int, absent: set[str]) -> ThriftStruct:
        new = copy(old)
        new.columns = [
            chunk if chunk.meta_data is None else self._chunk(chunk, r, c, absent)
            for c, chunk in enumerate(old.columns)
        ]
        moves = [move for c in range(len(old.columns)) if (move := self.chunks.get((r, c)))]
        absent.update(
            f for f in ("file_offset", "total_compressed_size") if getattr(old, f) is None
        )
        new.total_byte_size += sum(move.header_growth for move in moves)
        new.total_compressed_size = sum(move.new_end - move.new_start for move in moves)
        # Split planners go by this one (parquet-java for chunks whose metadata is sealed).
        if old.num_rows or old.file_offset != 0:  # PyArrow leaves 0 in an empty one
            nowhere = self._borders.get(old.file_offset, MAGIC_SIZE)
            new.file_offset = min((move.new_start for move in moves), default=nowhere)
        return new

    def _chunk(self, old: ThriftStruct, r: int, c: int, absent: set[str]) -> ThriftStruct:
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
        """Set sizes and page offsets.

        Readers take the presence of a dictionary's offset for the presence of a dictionary
        (Arrow C++, arrow-rs), so it must be true.
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
            # Some old writers point at the chunk's start where the dictionary is.
            if md.data_page_offset not in (old, move.old_start):
                raise FormatError(
                    f"{where}: data_page_offset is {md.data_page_offset}, the first data page is "
                    f"at byte {old}"
                )
            md.data_page_offset = new
        if move.has_dictionary:
            md.dictionary_page_offset = move.new_start
        elif md.dictionary_page_offset:
            raise FormatError(f"{where}: dictionary_page_offset is set, the page is no dictionary")
        else:
            md.dictionary_page_offset = None  # some writers say 0 for none


def _all_metadata(row_groups: list[ThriftStruct]) -> Iterator[ThriftStruct]:
    for row_group in row_groups:
        yield from (chunk.meta_data for chunk in row_group.columns if chunk.meta_data is not None)

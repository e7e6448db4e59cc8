"""Mapping of old positions in a file to new ones, for footers and offset indexes.

Encryption and decryption move every byte of a file. Both record here what they wrote, and then
update the row groups and page locations, which belong to the new file.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from modcrypt.errors import FormatError
from modcrypt.parquet.format.framing import MAGIC_SIZE
from modcrypt.parquet.format.idl import ThriftStruct
from modcrypt.parquet.format.modules import Part, Span
from modcrypt.parquet.format.structs import ColumnChunk, ColumnMetaData

if TYPE_CHECKING:
    from mypy_extensions import i64

_PAGES: Final = Part.PAGES  # reading it of the enum takes longer than a comparison


class ChunkMove:
    """The facts about one chunk's pages, collected while they are written.

    All pages of a chunk that was copied unchanged move by the same distance, so it has no details.
    """

    __slots__ = (
        "copied", "encoding_stats", "first_data_page", "has_dictionary", "header_growth",
        "is_plaintext", "new_end", "new_start", "old_end", "old_start", "pages", "respelt",
        "values",
    )  # fmt: skip

    def __init__(self, old_start: i64, old_end: i64, new_start: i64, keep_pages: bool) -> None:
        self.old_start: i64 = old_start
        self.old_end: i64 = old_end
        self.new_start: i64 = new_start
        self.new_end: i64 = 0
        self.copied: bool = False  # whether the chunk was copied unchanged
        self.is_plaintext: bool = False  # whether the chunk was plaintext in its source
        self.has_dictionary: bool = False
        # Old and new offset of the first data page.
        self.first_data_page: tuple[int, int] | None = None
        self.header_growth: i64 = 0  # total growth of the page headers in bytes
        # Old offset, new offset and new size of each data page; None if no offset index needs them.
        self.pages: list[tuple[int, int, int]] | None = [] if keep_pages else None
        # Number of values of each data page; empty unless they were encrypted and an offset index
        # needs their places.
        self.values: list[int] = []
        # Statistics that are added because parquet-java needs them.
        self.encoding_stats: list[ThriftStruct] | None = None
        # Page headers that decryption would not restore: the number of the page in the chunk, and
        # where its header begins and ends in the source.
        self.respelt: list[tuple[int, int, int]] = []


class Relocation:
    """The moves of one file with a number of row groups."""

    def __init__(self, row_groups: int) -> None:
        # Moves of chunks, by row group and column.
        self.chunks: list[dict[int, ChunkMove]] = [{} for _ in range(row_groups)]
        # Whether the reverse moves would give row groups the offsets and sizes that they had before
        # `update`.
        self.is_exact = True
        self.spans: list[tuple[Span, int, int]] = []  # with new start and end
        self._parts: dict[tuple[Part, int, int], tuple[int, int]] = {}  # new offset and length
        self._present: set[str] = set()  # fields that some row group or chunk had
        # Old offset to new offset, and back, made when they are needed.
        self._borders: dict[int, int] = {}
        self._back: dict[int, int] = {}

    def add(self, span: Span, start: int, end: int) -> None:
        """Record that `span` now occupies the bytes [start, end)."""
        _, _, part, row_group, column = span
        if part is not _PAGES:
            self._parts[part, row_group, column] = start, end - start
        self.spans.append((span, start, end))

    def _new_offset(self, old: int, default: int | None) -> int | None:
        """Return where the border of a span lies now; `default` for other offsets than borders."""
        if old == 0:
            return 0
        if not self._borders:
            borders, back = {MAGIC_SIZE: MAGIC_SIZE}, {MAGIC_SIZE: MAGIC_SIZE}
            for span, start, end in self.spans:
                borders[span.start], back[start] = start, span.start
                borders[span.end], back[end] = end, span.end
            self._borders, self._back = borders, back
        new = self._borders.get(old, default)
        if new is None or self._back.get(new) != old:
            self.is_exact = False
        return new

    def has_sizes(self, span: Span, index: ThriftStruct) -> bool:
        """Return whether an offset index has the sizes that its pages had before the move.

        xitongsys/parquet-go leaves out the page headers.
        """
        move = self.chunks[span.row_group].get(span.column)
        locations = index.page_locations
        return move is None or all(
            location.compressed_page_size == size
            for location, size in zip(locations, _list_sizes(move, locations), strict=True)
        )

    def relocate_index(
        self, span: Span, index: ThriftStruct, *, corrects_sizes: bool = False
    ) -> None:
        """Update an offset index's page locations.

        `corrects_sizes` adds the page headers to the sizes of pages that were copied, if they lack
        them: see `has_sizes`. Raise FormatError if the locations are not those of the chunk's data
        pages.
        """
        move = self.chunks[span.row_group].get(span.column)
        locations = index.page_locations
        if move is None:
            if locations:
                raise FormatError(f"{span}: it has page locations, but its chunk has no pages")
        elif move.copied:
            sizes = _list_sizes(move, locations)
            lacks_headers = corrects_sizes and all(
                location.compressed_page_size < size
                for location, size in zip(locations, sizes, strict=True)
            )
            for location, size in zip(locations, sizes, strict=True):
                location.offset += move.new_start - move.old_start
                if lacks_headers:
                    location.compressed_page_size = size
        else:
            pages = move.pages or []
            if [page[0] for page in pages] != [location.offset for location in locations]:
                raise FormatError(f"{span}: its page locations are not those of the data pages")
            for location, (_, offset, size) in zip(locations, pages, strict=True):
                location.offset, location.compressed_page_size = offset, size

    def update(self, row_groups: list[ThriftStruct]) -> set[str]:
        """Give row groups their new offsets and sizes; return the names of added fields.

        Raise FormatError if a chunk's page offsets are not those of its pages.
        """
        absent: set[str] = set()
        adds_stats = any(m.encoding_stats is not None for ms in self.chunks for m in ms.values())
        has_stats = adds_stats and any(
            chunk.meta_data is not None and chunk.meta_data.encoding_stats is not None
            for row_group in row_groups
            for chunk in row_group.columns
        )
        for r, row_group in enumerate(row_groups):
            self._update_row_group(row_group, r, absent)
        if has_stats:
            absent.discard("encoding_stats")  # else decryption would remove those of the source
            self.is_exact = False
        if absent & self._present:  # decryption removes an added field everywhere
            self.is_exact = False
        return absent

    def _update_row_group(self, row_group: ThriftStruct, r: int, absent: set[str]) -> None:
        moves = self.chunks[r]
        first: i64 = sys.maxsize
        old_first: i64 = sys.maxsize
        size: i64 = 0
        old_size: i64 = 0
        growth: i64 = 0
        columns: Sequence[ColumnChunk] = row_group.columns
        for c, chunk in enumerate(columns):
            move = moves.get(c)
            if chunk.meta_data is not None:
                self._update_chunk(chunk, move, r, c, absent)
            if move is not None:
                first = min(first, move.new_start)
                old_first = min(old_first, move.old_start)
                size += move.new_end - move.new_start
                old_size += move.old_end - move.old_start
                growth += move.header_growth
        for name in ("file_offset", "total_compressed_size"):
            (absent if getattr(row_group, name) is None else self._present).add(name)
        row_group.total_byte_size += growth
        if row_group.total_compressed_size not in (old_size, None):
            self.is_exact = False
        row_group.total_compressed_size = size
        # Split planners use this offset (parquet-java for chunks with encrypted metadata).
        old = row_group.file_offset
        if row_group.num_rows or old != 0:  # PyArrow writes 0 for an empty row group
            if not moves:
                row_group.file_offset = self._new_offset(old or MAGIC_SIZE, MAGIC_SIZE)
                return
            row_group.file_offset = first
            if old not in (old_first, None):
                self.is_exact = False

    def _update_chunk(
        self, chunk: ColumnChunk, move: ChunkMove | None, r: int, c: int, absent: set[str]
    ) -> None:
        md: ColumnMetaData = chunk.meta_data
        if move is not None:
            self._check_sizes(md, move)
            if md.encoding_stats is None and move.encoding_stats is not None:
                md.encoding_stats = move.encoding_stats
                absent.add("encoding_stats")
            self._move_pages(md, move, r, c)
        else:
            md.data_page_offset = self._new_offset(md.data_page_offset, MAGIC_SIZE)
            if md.dictionary_page_offset is not None:
                md.dictionary_page_offset = self._new_offset(md.dictionary_page_offset, MAGIC_SIZE)
        if md.index_page_offset is not None:
            md.index_page_offset = self._new_offset(md.index_page_offset, None)
        chunk.file_offset = self._new_offset(chunk.file_offset, 0)  # readers don't rely on it
        if chunk.offset_index_offset is not None or chunk.column_index_offset is not None:
            # Indexes that were left out lose their places.
            place = self._parts.get((Part.COLUMN_INDEX, r, c))
            self._check_place(place, chunk.column_index_offset, chunk.column_index_length)
            chunk.column_index_offset, chunk.column_index_length = place or (None, None)
            place = self._parts.get((Part.OFFSET_INDEX, r, c))
            self._check_place(place, chunk.offset_index_offset, chunk.offset_index_length)
            chunk.offset_index_offset, chunk.offset_index_length = place or (None, None)
        if md.bloom_filter_offset is not None:
            place = self._parts.get((Part.BLOOM_FILTER, r, c))
            if place is None:
                self.is_exact = False
            else:
                missing = md.bloom_filter_length is None
                (absent if missing else self._present).add("bloom_filter_length")
            md.bloom_filter_offset, md.bloom_filter_length = place or (None, None)

    def _check_sizes(self, md: ColumnMetaData, move: ChunkMove) -> None:
        """Note whether the reverse move would give a chunk its sizes and page offsets."""
        end = move.old_end - move.old_start
        if md.total_compressed_size != end or md.dictionary_page_offset == 0:
            self.is_exact = False
        if move.copied:
            return
        if move.has_dictionary and md.dictionary_page_offset != move.old_start:
            self.is_exact = False
        if move.first_data_page is not None and md.data_page_offset != move.first_data_page[0]:
            self.is_exact = False

    def _check_place(self, place: Any, offset: int | None, length: int | None) -> None:
        """Note whether an index keeps its place."""
        if (place is None) != (offset is None) or (offset is None) != (length is None):
            self.is_exact = False

    def _move_pages(self, md: ColumnMetaData, move: ChunkMove, r: int, c: int) -> None:
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
            md.data_page_offset = self._new_offset(md.data_page_offset, move.new_end)
        else:
            old, new = move.first_data_page
            # Some old writers give the chunk's start, where the dictionary is; DuckDB up to 0.10.0
            # forgets the dictionary's header and gives an offset inside that page.
            lax = move.is_plaintext and move.has_dictionary
            if md.data_page_offset != old and not (
                move.old_start <= md.data_page_offset < old
                if lax
                else md.data_page_offset == move.old_start
            ):
                raise FormatError(
                    f"row group {r}, column {c}: data_page_offset is {md.data_page_offset}, the "
                    f"first data page is at byte {old}"
                )
            md.data_page_offset = new
        if move.has_dictionary:
            md.dictionary_page_offset = move.new_start
        elif md.dictionary_page_offset:
            raise FormatError(
                f"row group {r}, column {c}: dictionary_page_offset is set, but the page is not a "
                "dictionary"
            )
        else:
            md.dictionary_page_offset = None  # some writers use 0 for none


def _list_sizes(move: ChunkMove, locations: Sequence[Any]) -> list[int]:
    """Return the sizes of a chunk's data pages, given their old places."""
    ends = [*(location.offset for location in locations[1:]), move.old_end]
    return [end - location.offset for location, end in zip(locations, ends, strict=False)]

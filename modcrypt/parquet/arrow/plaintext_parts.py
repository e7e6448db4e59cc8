"""Decrypt parts of an encrypted file to plaintext bytes of the same size and position.

Indexes and bloom filters are lengthened as pages are, see `padded_pages`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import pairwise

from modcrypt.errors import FormatError
from modcrypt.io.sources import Source
from modcrypt.parquet.arrow.padded_pages import overlay, pad_struct
from modcrypt.parquet.arrow.page_parts import (
    LAST_ID,
    PageReader,
    Pages,
    PartReader,
    PlainPages,
    Windows,
)
from modcrypt.parquet.crypto.bloom_filters import BLOCK, is_in_clear, open_part
from modcrypt.parquet.crypto.ciphers import ChunkCipher
from modcrypt.parquet.crypto.file_plan import ReadPlan
from modcrypt.parquet.crypto.index_checks import misleads_readers
from modcrypt.parquet.format.compact import last_field_id
from modcrypt.parquet.format.idl import ThriftStruct, copy, decode, encode, known_bytes
from modcrypt.parquet.format.modules import STRUCTS, Part, Span
from modcrypt.parquet.format.schema import Leaf, leaf_elements
from modcrypt.runtime.fork_safety import cached_property, fork_safe
from modcrypt.runtime.log import log_ignored


def make_part_readers(source: Source, plan: ReadPlan, spans: Iterable[Span]) -> list[PartReader]:
    """Return a reader for each of these spans of a plan."""
    windows, claims = Windows(source), _Claims(plan)
    readers = {span: _make_part_reader(windows, plan, span, claims) for span in spans}
    found = {(span.part, span.row_group, span.column): readers[span] for span in readers}

    def add_index(span: Span) -> PartReader:
        pages, offsets = (
            found.get((part, span.row_group, span.column))
            for part in (Part.PAGES, Part.OFFSET_INDEX)
        )
        if span.part not in _INDEXES or offsets is None or not isinstance(pages, Pages):
            return readers[span]
        return _IndexPart(readers[span], offsets, pages)

    for reader in readers.values():
        if isinstance(reader, _ColumnIndex):
            reader.offsets = found.get((Part.OFFSET_INDEX, *reader.span[3:]))
    return [add_index(span) for span in readers]


class _Claims:
    """The statements of a file's footer about its chunks."""

    def __init__(self, plan: ReadPlan) -> None:
        self.metadata, self.chunks = plan.footer.metadata, plan.chunks

    @cached_property
    def leaves(self) -> list[Leaf]:
        """The columns, listed when the first column index is read."""
        return leaf_elements(self.metadata.schema)


def _make_part_reader(windows: Windows, plan: ReadPlan, span: Span, claims: _Claims) -> PartReader:
    place = span.row_group, span.column
    cipher = plan.ciphers.get(place)
    if span.part is Part.COLUMN_INDEX:
        return _ColumnIndex(windows, span, cipher, claims)
    if cipher is None and span.part is Part.PAGES:
        return PlainPages(windows, span)
    if cipher is None:
        return PartReader(windows, span)
    if span.part is not Part.PAGES:
        return _SmallPart(windows, span, cipher)
    created_by = plan.footer.metadata.created_by
    return PageReader(windows, span, cipher, plan.chunks[place].meta_data, created_by)


class _SmallPart(PartReader):
    """An index or bloom filter, opened as a whole on its first read and kept.

    A part that its writer left in plaintext, although its column is encrypted, must not decide
    which rows a reader sees. Instead of such a bloom filter, readers get one that may hold any
    value, and instead of such an index, zeros: most read them without looking, and those that need
    the index fail.
    """

    def __init__(self, windows: Windows, span: Span, cipher: ChunkCipher | None) -> None:
        super().__init__(windows, span)
        self._cipher = cipher
        self._lock = fork_safe(threading.Lock())
        self._plain: bytes | None = None

    def read(self, offset: int, out: memoryview) -> None:
        with self._lock:
            if self._plain is None:
                self._plain = self._open(self._fetch(self.span))
        overlay(out, offset, self.span.start, self._plain)

    def _fetch(self, span: Span) -> bytes:
        return self._windows.source.read_at(span.start, span.end - span.start)

    def _open(self, data: bytes) -> bytes:
        if self._cipher is None:
            return data
        if is_in_clear(self.span, data):
            return self._replace(data, "is not encrypted although its column is")
        struct, bitset = open_part(self._cipher.copy_for_thread(), self.span, data)
        if not 0 < last_field_id(struct) <= LAST_ID:
            struct = known_bytes(STRUCTS[self.span.part], struct)
        return pad_struct(struct, len(data) - len(bitset)) + bitset

    def _replace(self, data: bytes, why: str) -> bytes:
        log_ignored(self._windows.source.name, [f"{self.span} {why}"])
        if self.span.part is not Part.BLOOM_FILTER:
            return bytes(len(data))
        header, size = decode("BloomFilterHeader", data)
        if header.numBytes <= 0 or header.numBytes % BLOCK:
            return bytes(len(data))
        return data[:size] + b"\xff" * int(header.numBytes)


class _ColumnIndex(_SmallPart):
    """A column index; readers get zeros if they would lose rows by it."""

    def __init__(
        self, windows: Windows, span: Span, cipher: ChunkCipher | None, claims: _Claims
    ) -> None:
        super().__init__(windows, span, cipher)
        self._claims = claims
        self.offsets: PartReader | None = None  # of the same chunk

    def _open(self, data: bytes) -> bytes:
        opened, claims = super()._open(data), self._claims
        try:
            index, _ = decode("ColumnIndex", opened)
        except FormatError:
            return opened
        leaf, md = claims.leaves[self.span.column], claims.chunks[self.span[3:]].meta_data
        element = claims.metadata.schema[leaf.element]
        if misleads_readers(index, md, leaf, element, self._count_rows, of_rows=True):
            return self._replace(data, "contradicts itself: re-key the file, which hides it")
        return opened

    def _count_rows(self) -> list[int]:
        """Return the number of rows of each page: each row has at least one value."""
        if self.offsets is None:
            return []
        try:
            locations = _read_struct(self.offsets).page_locations
        except FormatError:
            return []
        rows = self._claims.metadata.row_groups[self.span.row_group].num_rows
        return [b - a for a, b in pairwise([*(p.first_row_index for p in locations), rows])]


class _IndexPart(PartReader):
    """An index without the entries of pages that are hidden."""

    def __init__(self, part: PartReader, offsets: PartReader, pages: Pages) -> None:
        super().__init__(part._windows, part.span)
        self._part, self._offsets, self._pages = part, offsets, pages

    def read(self, offset: int, out: memoryview) -> None:
        self._part.read(offset, out)
        if self._replaced is not None:
            overlay(out, offset, self.span.start, self._replaced)

    @cached_property
    def _replaced(self) -> bytes | None:
        """The index without hidden pages; None if there are none, or if it is damaged."""
        with suppress(FormatError):
            if hidden := self._find_hidden(_read_struct(self._offsets).page_locations):
                self._pages.locate_all()
                index = _read_struct(self._part)
                drop = _drop_locations if self.span.part is Part.OFFSET_INDEX else _drop_entries
                drop(index, hidden)
                return pad_struct(encode(index), self.span.end - self.span.start)
        return None

    def _find_hidden(self, locations: Sequence[ThriftStruct]) -> set[int]:
        """Return the empty pages before a page with values."""
        firsts = [location.first_row_index for location in locations]
        if not any(first == second for first, second in pairwise(firsts)):
            return set()
        last = len(firsts) - 1
        hidden = {
            n
            for n, location in enumerate(locations)
            if (n == last or firsts[n] == firsts[n + 1])
            and self._pages.span.start <= location.offset < self._pages.span.end
            and self._pages.is_empty_at(n, location.offset)
        }
        while last in hidden:
            hidden.discard(last)
            last -= 1
        return hidden


def _read_struct(part: PartReader) -> ThriftStruct:
    name, data = STRUCTS[part.span.part], bytearray(part.span.end - part.span.start)
    part.read(part.span.start, memoryview(data))
    return decode(name, known_bytes(name, bytes(data)))[0]


def _drop_locations(index: ThriftStruct, hidden: set[int]) -> None:
    """Remove pages from an offset index; the pages after them begin where they began."""
    kept = []
    start, size = None, 0
    for number, location in enumerate(index.page_locations):
        if number in hidden:
            start = location.offset if start is None else start
            size += location.compressed_page_size
            continue
        moved = copy(location)
        if start is not None:
            moved.offset, moved.compressed_page_size = start, size + location.compressed_page_size
            start, size = None, 0
        kept.append(moved)
    _drop_entries(index, hidden)
    index.page_locations = kept


def _drop_entries(index: ThriftStruct, hidden: set[int]) -> None:
    """Remove pages from the lists of an index; histograms have several numbers for each page."""
    pages = len(index.null_pages if hasattr(index, "null_pages") else index.page_locations)
    for name in _LISTS:
        if values := getattr(index, name, None):
            each = max(1, len(values) // max(1, pages))
            setattr(index, name, [v for n, v in enumerate(values) if n // each not in hidden])


_INDEXES = Part.OFFSET_INDEX, Part.COLUMN_INDEX
_LISTS = (
    "null_pages", "min_values", "max_values", "null_counts", "nan_counts",
    "repetition_level_histograms", "definition_level_histograms", "unencoded_byte_array_data_bytes",
)  # fmt: skip

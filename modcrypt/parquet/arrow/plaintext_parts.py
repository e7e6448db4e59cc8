"""Decrypt parts of an encrypted file to plaintext bytes of the same size and position.

The plaintext of a page, index or bloom filter is shorter than its PME modules (separately encrypted
parts of the file) by their nonces, tags and lengths. So its Thrift header is lengthened by the same
amount, with a field that readers skip.

    encrypted   [header module      ][body module            ]
    plaintext   [header | filling   ][ body                  ]     the same bytes from start to end

A data page without values becomes filling too, because PyArrow takes it for the end of its chunk.
Indexes then do not list it.

    empty page and next one   [header ][body][header ][body                 ]
    plaintext                 [header | filling      ][body                 ]
"""

from __future__ import annotations

import threading
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice, pairwise
from operator import itemgetter
from typing import cast

from modcrypt.errors import FormatError, ModcryptError
from modcrypt.fork_safety import cached_property, fork_safe
from modcrypt.io.buffers import Window, open_window
from modcrypt.io.sources import Source
from modcrypt.io.threads import Lender
from modcrypt.parquet.crypto.bloom_filters import open_part
from modcrypt.parquet.crypto.ciphers import ChunkCipher
from modcrypt.parquet.crypto.encrypted_pages import (
    EncryptedPage,
    Page,
    drop_unknown_header_fields,
    open_and_check_crc,
    open_body,
    walk_pages,
)
from modcrypt.parquet.crypto.file_plan import ReadPlan
from modcrypt.parquet.format.idl import (
    ThriftStruct,
    copy,
    decode,
    encode,
    known_bytes,
    varint,
    zigzag,
)
from modcrypt.parquet.format.modules import MAX_PAGE_HEADER, STRUCTS, Part, Span
from modcrypt.parquet.format.page_header import UNCOMPRESSED, PageHeader, is_empty, splice
from modcrypt.parquet.format.page_header_scan import scan

# The head of a binary field whose id is fifteen above the struct's last one: 20 to 23 in a page
# header. The format reserves id 32767 for fields that readers skip, but that needs the long form
# of the head, and fastparquet reads only the short one.
_FILLING = b"\xf8"

_SHORT_HEADER = 1 << 10
"""Size in bytes up to which the header of a plaintext page is usually read."""

# The encoding of the ids 32705 to 32767; the format reserves the last for extensions. After the
# last fifteen, no id is left for the filling, so fields that the IDL does not know are removed
# from such structs.
_HIGH_ID = varint(zigzag(32_767))[1:]


def make_part_readers(source: Source, plan: ReadPlan, spans: Iterable[Span]) -> list[PartReader]:
    """Return a reader for each of these spans of a plan."""
    windows = Windows(source)
    readers = {span: _make_part_reader(windows, plan, span) for span in spans}
    found = {(span.part, span.row_group, span.column): readers[span] for span in readers}

    def add_index(span: Span) -> PartReader:
        pages, offsets = (
            found.get((part, span.row_group, span.column))
            for part in (Part.PAGES, Part.OFFSET_INDEX)
        )
        if span.part not in _INDEXES or offsets is None or not isinstance(pages, _Pages):
            return readers[span]
        return _IndexPart(readers[span], offsets, pages)

    return [add_index(span) for span in readers]


def _make_part_reader(windows: Windows, plan: ReadPlan, span: Span) -> PartReader:
    place = span.row_group, span.column
    cipher = plan.ciphers.get(place)
    if cipher is None and span.part is Part.PAGES:
        return _PlainPages(windows, span)
    if cipher is None:
        return PartReader(windows, span)
    if span.part is not Part.PAGES:
        return _SmallPart(windows, span, cipher)
    return PageReader(windows, span, cipher, plan.chunks[place].meta_data)


class Windows(Lender[Window]):
    """Windows on one source, one for each thread that reads it."""

    def __init__(self, source: Source) -> None:
        super().__init__(partial(open_window, source))
        self.source = source


class PartReader:
    """A reader of one part. This class reads plaintext parts unchanged."""

    def __init__(self, windows: Windows, span: Span) -> None:
        self.span = span
        self._windows = windows

    def read(self, offset: int, out: memoryview) -> None:
        """Put the part's bytes from `offset` on into `out`, which may begin before the part.

        Any thread may call this. Bytes of `out` outside the part stay unchanged. Raise
        ModcryptError if a module that is needed does not authenticate or breaks the format.
        """
        low = max(offset, self.span.start)
        high = min(offset + len(out), self.span.end)
        if low < high:
            self._windows.source.read_into(low, out[low - offset : high - offset])


class _EncryptedPart(PartReader):
    """An encrypted part, which one thread at a time decrypts."""

    def __init__(self, windows: Windows, span: Span, cipher: ChunkCipher) -> None:
        super().__init__(windows, span)
        self._of_chunk = cipher
        self._lock = fork_safe(threading.Lock())

    @cached_property
    def _cipher(self) -> ChunkCipher:
        """The chunk's cipher, for the thread that holds the lock."""
        return self._of_chunk.copy_for_thread()


class _SmallPart(_EncryptedPart):
    """An index or bloom filter, decrypted as a whole on its first read and kept."""

    def __init__(self, windows: Windows, span: Span, cipher: ChunkCipher) -> None:
        super().__init__(windows, span, cipher)
        self._plain: bytes | None = None

    def read(self, offset: int, out: memoryview) -> None:
        with self._lock:
            if self._plain is None:
                start, end = self.span.start, self.span.end
                self._plain = self._open(self._windows.source.read_at(start, end - start))
        overlay(out, offset, self.span.start, self._plain)

    def _open(self, data: bytes) -> bytes:
        struct, bitset = open_part(self._cipher, self.span, data)
        return _pad_struct(self._make_paddable(struct), len(data) - len(bitset)) + bitset

    def _make_paddable(self, struct: bytes) -> bytes:
        return known_bytes(STRUCTS[self.span.part], struct) if _HIGH_ID in struct else struct


class _Pages(PartReader):
    """The pages of a chunk, in which data pages without values are hidden."""

    def is_empty_at(self, ordinal: int, position: int) -> bool:
        """Return whether a data page has no values."""
        raise NotImplementedError

    def locate_all(self) -> None:
        """Prepare for reads of pages whose positions are known from an index."""


class _PlainPages(_Pages):
    """The pages of a plaintext chunk, for which nobody vouches.

    Reading in order locates the pages; bytes after a damaged header stay unchanged.
    """

    def __init__(self, windows: Windows, span: Span) -> None:
        super().__init__(windows, span)
        self._lock = fork_safe(threading.Lock())
        self._next = span.start  # start of the first page that is not located
        self._first: int | None = None  # start of the empty pages that end there
        self._fillings: list[tuple[int, bytes]] = []

    def read(self, offset: int, out: memoryview) -> None:
        super().read(offset, out)
        with self._lock:
            if offset <= self._next:
                self._locate(offset, out)
            first = bisect_right(self._fillings, offset, key=itemgetter(0))
            for start, filling in islice(self._fillings, max(0, first - 1), None):
                if start >= offset + len(out):
                    break
                overlay(out, offset, start, filling)

    def is_empty_at(self, ordinal: int, position: int) -> bool:
        header = self._scan(position, 0, memoryview(b""))
        return header is not None and is_empty(header)

    def locate_all(self) -> None:
        with self._lock:
            while self._next < self.span.end:
                self._locate(self._next, memoryview(b"."))

    def _locate(self, offset: int, out: memoryview) -> None:
        high = min(offset + len(out), self.span.end)
        while self._next < high or (self._first is not None and self._next < self.span.end):
            header = self._scan(self._next, offset, out)
            if header is None:
                self._next, self._first = self.span.end, None
            else:
                self._add_page(header)

    def _add_page(self, header: PageHeader) -> None:
        start, self._next = self._next, self._next + len(header.raw) + header.compressed_size
        if is_empty(header):
            self._first = start if self._first is None else self._first
        elif self._first is not None:
            size = start + len(header.raw) - self._first
            with suppress(FormatError):
                self._fillings.append((self._first, _lengthen_header(header.raw, size)))
            self._first = None

    def _scan(self, at: int, offset: int, out: memoryview) -> PageHeader | None:
        """Return the header of the page at a position; None if it is damaged."""
        end = self.span.end
        with suppress(FormatError):
            if offset <= at < offset + len(out):
                return scan(cast(bytes, out), at - offset, min(len(out), end - offset))
        for size in (_SHORT_HEADER, MAX_PAGE_HEADER):
            with suppress(FormatError):
                data = self._windows.source.read_at(at, max(0, min(size, end - at)))
                return scan(data, 0, len(data))
        return None


class PageReader(_EncryptedPart, _Pages):
    """The pages of one chunk.

    The reader opens headers to locate pages, and remembers the positions.
    """

    def __init__(self, windows: Windows, span: Span, cipher: ChunkCipher, md: ThriftStruct) -> None:
        super().__init__(windows, span, cipher)
        self._uncompressed = md.codec == UNCOMPRESSED
        self._has_dictionary = bool(md.dictionary_page_offset)
        self._starts = [span.start]  # of the pages located so far, and of the next one
        self._empty: set[int] = set()  # indexes of located pages without values

    def set_page_starts(self, starts: list[int]) -> None:
        """Set where pages begin and where the last one ends, so that no page is searched for.

        Reading checks these positions.
        """
        self._starts = starts

    def read(self, offset: int, out: memoryview) -> None:
        """Put the chunk's bytes from `offset` on into `out`; see `PartReader.read`."""
        with self._lock, self._windows.lend() as window:
            self._read_pages(window, offset, out)

    def _read_pages(self, window: Window, offset: int, out: memoryview) -> None:
        high = min(offset + len(out), self.span.end)
        index, until = self._find_pages(offset, high)
        is_dictionary = self._has_dictionary and index == 0
        first = Page(self._cipher, is_dictionary, index - (self._has_dictionary and index > 0))
        pages = walk_pages(
            window, self._starts[index], until, first, uncompressed=self._uncompressed
        )
        empty: int | None = None  # start of the empty pages before this one
        while (start := self._starts[index]) < high or (empty is not None and start < until):
            sealed = next(pages)
            self._set_end(index, start + sealed.total, sealed)
            if is_empty(sealed.header):
                self._empty.add(index)
                empty = start if empty is None else empty
            if start + sealed.total > offset:
                header, body = self._write_page(sealed, start, offset, out)
                if empty is not None and index not in self._empty:
                    overlay(out, offset, empty, _lengthen_header(header, body - empty))
                    empty = None
            index += 1

    def is_empty_at(self, ordinal: int, position: int) -> bool:  # noqa: D102
        with self._lock, self._windows.lend() as window, suppress(ModcryptError):
            page = Page(self._cipher, False, ordinal)
            end, uncompressed = self.span.end, self._uncompressed
            for sealed in walk_pages(window, position, end, page, uncompressed=uncompressed):
                return is_empty(sealed.header)
        return False

    def _find_pages(self, offset: int, high: int) -> tuple[int, int]:
        """Return the page to begin with, and the position before which reading ahead must end.

        That is the end of known pages. Empty pages are read together with the page after them.
        """
        index = max(0, bisect_right(self._starts, offset) - 1)
        while index - 1 in self._empty:
            index -= 1
        after = bisect_left(self._starts, high)
        while after - 1 in self._empty and after < len(self._starts):
            after += 1
        return index, self._starts[after] if after < len(self._starts) else self.span.end

    def _set_end(self, index: int, end: int, sealed: EncryptedPage) -> None:
        if index + 1 == len(self._starts):
            self._starts.append(end)
        elif end != self._starts[index + 1]:
            raise FormatError(
                f"{sealed.page.id()} ends at byte {end}, but according to the offset index at "
                f"byte {self._starts[index + 1]}"
            )

    def _write_page(
        self, sealed: EncryptedPage, start: int, offset: int, out: memoryview
    ) -> tuple[bytes, int]:
        """Put a page into `out`; return its plaintext header and where its body starts."""
        if _HIGH_ID in sealed.header.raw:
            drop_unknown_header_fields(sealed)
        cipher = self._cipher.page
        size = len(sealed.body) - cipher.overhead
        body = start + sealed.total - size
        inside = offset <= body and body + size <= offset + len(out)
        crc = None
        if sealed.header.crc is not None:
            opened = open_and_check_crc(sealed)
            crc = zlib.crc32(opened)
            overlay(out, offset, body, opened)
        elif inside and not cipher.slack:  # Most pages of a large read need no copy.
            open_body(sealed, out[body - offset : body - offset + size])
        else:
            opened = memoryview(bytearray(size + cipher.slack))
            open_body(sealed, opened)
            overlay(out, offset, body, opened[:size])
        header = splice(sealed.header, size, crc)
        overlay(out, offset, start, _pad_struct(header, body - start))
        return header, body


class _IndexPart(PartReader):
    """An index without the entries of pages that are hidden."""

    def __init__(self, part: PartReader, offsets: PartReader, pages: _Pages) -> None:
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
                return _pad_struct(encode(index), self.span.end - self.span.start)
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


# --- bytes --------------------------------------------------------------------------------------


def overlay(out: memoryview, offset: int, start: int, data: bytes | memoryview) -> None:
    """Copy the bytes of `data`, which begins at `start`, into `out`, which begins at `offset`."""
    low, high = max(offset, start), min(offset + len(out), start + len(data))
    if low < high:
        out[low - offset : high - offset] = data[low - start : high - start]


def _pad_struct(struct: bytes | bytearray, size: int) -> bytes:
    """Lengthen an encoded struct to `size` bytes with a field that readers skip."""
    missing = size - len(struct)
    if missing == 0:
        return bytes(struct)
    for digits in range(1, 6):  # Size of the length. All readers accept leading zeros.
        content = missing - len(_FILLING) - digits
        if 0 <= content < 1 << 7 * digits:
            length = bytes(content >> 7 * n & 127 | 128 for n in range(digits - 1))
            length += bytes((content >> 7 * (digits - 1),))
            return bytes(struct[:-1]) + _FILLING + length + bytes(content) + b"\0"
    raise FormatError(f"an encrypted header leaves {missing} bytes, which no field can fill")


def _lengthen_header(header: bytes, size: int) -> bytes:
    """Return the header of a data page, without statistics, lengthened to `size` bytes."""
    copied, _ = decode("PageHeader", known_bytes("PageHeader", header))
    if (page := copied.data_page_header or copied.data_page_header_v2) is not None:
        page.statistics = None
    return _pad_struct(encode(copied), size)

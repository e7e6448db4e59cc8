"""Readers of the pages of a chunk, which decrypt what is read of them; see `padded_pages`."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from operator import itemgetter

from modcrypt.errors import FormatError, ModcryptError
from modcrypt.io.buffers import Window, open_window
from modcrypt.io.sources import Source
from modcrypt.io.threads import Lender
from modcrypt.parquet.arrow.padded_pages import lengthen_header, overlay, write_page
from modcrypt.parquet.crypto.ciphers import ChunkCipher
from modcrypt.parquet.crypto.encrypted_pages import EncryptedPage, Page, walk_pages
from modcrypt.parquet.format.compact import MAX_FIELD_ID
from modcrypt.parquet.format.idl import ThriftStruct
from modcrypt.parquet.format.modules import MAX_PAGE_HEADER, Span
from modcrypt.parquet.format.page_header import PageHeader, is_empty, page_compression
from modcrypt.parquet.format.page_header_scan import scan
from modcrypt.runtime.fork_safety import cached_property, fork_safe

_SHORT_HEADER = 1 << 10  # size in bytes up to which the header of a page is usually read

# After the last fifteen ids, none is left for the filling, and after a negative one it could have
# the id of another field. So fields that the IDL does not know are removed from such structs.
LAST_ID = MAX_FIELD_ID - 15


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


class Pages(PartReader):
    """The pages of a chunk, in which data pages without values are hidden."""

    def is_empty_at(self, ordinal: int, position: int) -> bool:
        """Return whether a data page has no values."""
        raise NotImplementedError

    def iter_headers(self) -> Iterator[tuple[int, PageHeader]]:
        """Yield position and header of each page, without reading bodies.

        Raise ModcryptError if a header does not authenticate or breaks the format.
        """
        raise NotImplementedError

    def locate_all(self) -> None:
        """Prepare for reads of pages whose positions are known from an index."""


class PlainPages(Pages):
    """The pages of a plaintext chunk, for which nobody vouches.

    Reading in order locates the pages; bytes after a damaged header stay unchanged.
    """

    def __init__(self, windows: Windows, span: Span) -> None:
        super().__init__(windows, span)
        self._lock = fork_safe(threading.Lock())
        self._next = span.start  # start of the first page that is not located
        self._first: int | None = None  # start of the empty pages that end there
        self._fillings: list[tuple[int, bytes]] = []

    def read(self, offset: int, out: memoryview) -> None:  # noqa: D102
        super().read(offset, out)
        with self._lock:
            if offset <= self._next:
                self._locate(offset, out)
            first = bisect_right(self._fillings, offset, key=itemgetter(0))
            for start, filling in islice(self._fillings, max(0, first - 1), None):
                if start >= offset + len(out):
                    break
                overlay(out, offset, start, filling)

    def is_empty_at(self, ordinal: int, position: int) -> bool:  # noqa: D102
        header = self._scan(position, 0, memoryview(b""))
        return header is not None and is_empty(header)

    def iter_headers(self) -> Iterator[tuple[int, PageHeader]]:  # noqa: D102
        at = self.span.start
        while at < self.span.end:
            if (header := self._scan(at, 0, memoryview(b""))) is None:
                raise FormatError(f"{self.span}: the page header at byte {at} is damaged")
            yield at, header
            at += len(header.raw) + header.compressed_size

    def locate_all(self) -> None:  # noqa: D102
        with self._lock:
            while self._next < self.span.end:
                self._locate(self._next, memoryview(b"."))

    def _locate(self, offset: int, out: memoryview) -> None:
        high = min(offset + len(out), self.span.end)
        while self._next < high or (self._first is not None and self._next < self.span.end):
            if (header := self._scan(self._next, offset, out)) is None:
                self._next, self._first = self.span.end, None
                return
            start, self._next = self._next, self._next + len(header.raw) + header.compressed_size
            if is_empty(header):
                self._first = start if self._first is None else self._first
            elif self._first is not None:
                size = start + len(header.raw) - self._first
                with suppress(FormatError):
                    self._fillings.append((self._first, lengthen_header(header.raw, size)))
                self._first = None

    def _scan(self, at: int, offset: int, out: memoryview) -> PageHeader | None:
        """Return the header of the page at a position; None if it is damaged."""
        end = self.span.end
        with suppress(FormatError):
            if offset <= at < offset + len(out):
                return scan(out, at - offset, min(len(out), end - offset))
        for size in (_SHORT_HEADER, MAX_PAGE_HEADER):
            with suppress(FormatError):
                data = self._windows.source.read_at(at, max(0, min(size, end - at)))
                return scan(data, 0, len(data))
        return None


class PageReader(Pages):
    """The pages of one chunk, which one thread at a time decrypts.

    The reader opens headers to locate pages, and remembers the positions.
    """

    def __init__(
        self, windows: Windows, span: Span, cipher: ChunkCipher, md: ThriftStruct,
        created_by: bytes | None,
    ) -> None:  # fmt: skip
        super().__init__(windows, span)
        self._of_chunk = cipher
        self._lock = fork_safe(threading.Lock())
        self._compression = page_compression(md.codec, created_by)
        self._has_dictionary = bool(md.dictionary_page_offset)
        self._starts = [span.start]  # of the pages located so far, and of the next one
        self._empty: set[int] = set()  # indexes of located pages without values

    @cached_property
    def _cipher(self) -> ChunkCipher:
        """The chunk's cipher, for the thread that holds the lock."""
        return self._of_chunk.copy_for_thread()

    def set_page_starts(self, starts: list[int]) -> None:
        """Set where pages begin and the last one ends; reading checks this, and searches none."""
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
        pages = walk_pages(window, self._starts[index], until, first, compression=self._compression)
        empty: int | None = None  # start of the empty pages before this one
        while (start := self._starts[index]) < high or (empty is not None and start < until):
            encrypted = next(pages)
            self._set_end(index, start + encrypted.total, encrypted)
            if is_empty(encrypted.header):
                self._empty.add(index)
                empty = start if empty is None else empty
            if start + encrypted.total > offset:
                header, body = write_page(encrypted, offset, out)
                if empty is not None and index not in self._empty:
                    overlay(out, offset, empty, lengthen_header(header, body - empty))
                    empty = None
            index += 1

    def iter_headers(self) -> Iterator[tuple[int, PageHeader]]:  # noqa: D102
        window = Window(self._windows.source, _SHORT_HEADER)
        with self._lock:
            first = Page(self._cipher, self._has_dictionary, 0)
            start, end, compression = self.span.start, self.span.end, self._compression
            for page in walk_pages(
                window, start, end, first, compression=compression, headers_only=True
            ):
                yield page.position, page.header

    def is_empty_at(self, ordinal: int, position: int) -> bool:  # noqa: D102
        with self._lock, self._windows.lend() as window, suppress(ModcryptError):
            page = Page(self._cipher, False, ordinal)
            end, compression = self.span.end, self._compression
            for encrypted in walk_pages(window, position, end, page, compression=compression):
                return is_empty(encrypted.header)
        return False

    def _find_pages(self, offset: int, high: int) -> tuple[int, int]:
        """Return the page to begin with, and the position before which reading ahead must end."""
        # That is the end of known pages. Empty pages are read together with the page after them.
        index = max(0, bisect_right(self._starts, offset) - 1)
        while index - 1 in self._empty:
            index -= 1
        after = bisect_left(self._starts, high)
        while after - 1 in self._empty and after < len(self._starts):
            after += 1
        return index, self._starts[after] if after < len(self._starts) else self.span.end

    def _set_end(self, index: int, end: int, encrypted: EncryptedPage) -> None:
        if index + 1 == len(self._starts):
            self._starts.append(end)
        elif end != self._starts[index + 1]:
            raise FormatError(
                f"{encrypted.page.id()} ends at byte {end}, but according to the offset index at "
                f"byte {self._starts[index + 1]}"
            )

"""The parts of an encrypted file as the plaintext bytes that take their place in a view.

Every module keeps its place: the plaintext of a page, index or bloom filter is shorter than its
modules by their nonces, tags and lengths, and its Thrift header is lengthened by just as much,
with a field that readers skip.

    encrypted   [header module      ][body module            ]
    plaintext   [header | filling   ][ body                  ]     the same bytes from start to end
"""

from __future__ import annotations

import threading
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue

from modcrypt.aad import ModuleType
from modcrypt.errors import FormatError
from modcrypt.fork_safety import cached_property, fork_safe
from modcrypt.io.buffers import Window
from modcrypt.io.storage import Source
from modcrypt.parquet.crypto.bloom_filters import open_bloom_filter
from modcrypt.parquet.crypto.ciphers import ChunkCipher
from modcrypt.parquet.crypto.encrypted_pages import (
    EncryptedPage,
    Page,
    open_body,
    open_checked,
    open_header,
    with_known_header,
)
from modcrypt.parquet.crypto.file_plan import Plan
from modcrypt.parquet.format.idl import ThriftStruct, known_bytes, struct_end, varint, zigzag
from modcrypt.parquet.format.modules import STRUCTS, Part, Span
from modcrypt.parquet.format.page_header import UNCOMPRESSED, splice

__all__ = ["PageReader", "PartReader", "overlay", "part_readers"]

# The head of a binary field, fifteen ids after the struct's last one: 20 to 23 in a page header. In
# the short form, because fastparquet reads no other, and so not 32767, which the format reserves
# for what readers skip.
_FILLING = b"\xf8"

# How the ids from 32705 on are spelled, to 32767, which the format reserves for extensions. After
# the last fifteen there is no id left for the filling, so readers of a view see such structs
# without the fields that the IDL doesn't know.
_HIGH_ID = varint(zigzag(32_767))[1:]


def part_readers(source: Source, plan: Plan, spans: Iterable[Span]) -> list[PartReader]:
    """Give a reader for each of these spans of a plan."""
    windows = Windows(source)
    return [_reader(windows, plan, span) for span in spans]


def _reader(windows: Windows, plan: Plan, span: Span) -> PartReader:
    place = span.row_group, span.column
    cipher = plan.ciphers.get(place)
    if cipher is None:
        return PartReader(windows, span)
    if span.part is not Part.PAGES:
        return _SmallPart(windows, span, cipher)
    return PageReader(windows, span, cipher, plan.chunks[place].meta_data)


class Windows:
    """As many windows on one source as there are threads at work on it."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._idle: SimpleQueue[Window] = SimpleQueue()

    @contextmanager
    def one(self) -> Iterator[Window]:
        """Lend a window."""
        try:
            window = self._idle.get_nowait()
        except Empty:
            window = Window(self.source)
        try:
            yield window
        finally:
            self._idle.put(window)


class PartReader:
    """A part of a plaintext column: bytes as they are."""

    def __init__(self, windows: Windows, span: Span) -> None:
        self.span = span
        self._windows = windows

    def read(self, offset: int, out: memoryview) -> None:
        """Put the part's bytes from `offset` on into `out`, which may begin before it.

        From any thread. Bytes of `out` that are not the part's stay as they are.

        Raises:
            ModcryptError: a module that is needed does not authenticate or breaks the format.
        """
        low = max(offset, self.span.start)
        high = min(offset + len(out), self.span.end)
        if low < high:
            self._windows.source.read_into(low, out[low - offset : high - offset])


class _SealedPart(PartReader):
    """A part that is opened, by one thread at a time."""

    def __init__(self, windows: Windows, span: Span, cipher: ChunkCipher) -> None:
        super().__init__(windows, span)
        self._of_chunk = cipher
        self._lock = fork_safe(threading.Lock())

    @cached_property
    def _cipher(self) -> ChunkCipher:
        """The chunk's cipher, for the thread that holds the lock."""
        return self._of_chunk.apart()


class _SmallPart(_SealedPart):
    """An index or a bloom filter: opened whole, at its first reading, and kept."""

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
        cipher, part = self._cipher, self.span.part
        if part is not Part.BLOOM_FILTER:
            kind = ModuleType[part.name]
            plain = cipher.open(kind, data)
            return _filled(self._fillable(plain[: struct_end(plain)]), len(data))
        header, bitset, _ = open_bloom_filter(cipher, self.span, data)
        return _filled(self._fillable(header), len(data) - len(bitset)) + bitset

    def _fillable(self, struct: bytes) -> bytes:
        return known_bytes(STRUCTS[self.span.part], struct) if _HIGH_ID in struct else struct


class PageReader(_SealedPart):
    """The pages of one chunk. Where pages begin is found by opening headers, and remembered."""

    def __init__(self, windows: Windows, span: Span, cipher: ChunkCipher, md: ThriftStruct) -> None:
        super().__init__(windows, span, cipher)
        self._uncompressed = md.codec == UNCOMPRESSED
        self._has_dictionary = bool(md.dictionary_page_offset)
        self._starts = [span.start]  # of the pages found so far, and of the one after them

    def know(self, starts: list[int]) -> None:
        """Take over where pages begin, and where the last one ends, so that none is searched.

        That they are there is checked when they are read.
        """
        self._starts = starts

    def read(self, offset: int, out: memoryview) -> None:
        """Put the chunk's bytes from `offset` on into `out`; see `PartReader.read`."""
        with self._lock, self._windows.one() as window:
            self._read(window, offset, out)

    def _read(self, window: Window, offset: int, out: memoryview) -> None:
        high = min(offset + len(out), self.span.end)
        after = bisect_left(self._starts, high)  # what lies behind known pages is not read ahead
        until = self._starts[after] if after < len(self._starts) else self.span.end
        index = max(0, bisect_right(self._starts, offset) - 1)
        while (start := self._starts[index]) < high:
            known = index + 1 < len(self._starts)
            sealed = self._open_header(window, index, until)
            end = start + sealed.total
            if not known:
                self._starts.append(end)
            elif end != self._starts[index + 1]:
                raise FormatError(
                    f"{sealed.page.id()} ends at byte {end}, by the offset index at "
                    f"{self._starts[index + 1]}"
                )
            if end > offset:
                self._put(sealed, start, offset, out)
            index += 1

    def _open_header(self, window: Window, index: int, until: int) -> EncryptedPage:
        is_dictionary = self._has_dictionary and index == 0
        page = Page(self._cipher, is_dictionary, index - self._has_dictionary)
        return open_header(window, self._starts[index], until, page, self._uncompressed)

    def _put(self, sealed: EncryptedPage, start: int, offset: int, out: memoryview) -> None:
        if _HIGH_ID in sealed.plain:
            sealed = with_known_header(sealed)
        cipher = self._cipher.page
        size = len(sealed.body) - cipher.overhead
        body = start + sealed.total - size
        inside = offset <= body and body + size <= offset + len(out)
        crc = None
        if sealed.header.crc is not None:
            opened = open_checked(sealed)
            crc = zlib.crc32(opened)
            overlay(out, offset, body, opened)
        elif inside and not cipher.slack:  # most pages of a large read: without a copy
            open_body(sealed, out[body - offset : body - offset + size])
        else:
            opened = memoryview(bytearray(size + cipher.slack))
            open_body(sealed, opened)
            overlay(out, offset, body, opened[:size])
        header = splice(sealed.plain, 0, sealed.header, size, crc)
        overlay(out, offset, start, _filled(header, body - start))


# --- bytes --------------------------------------------------------------------------------------


def overlay(out: memoryview, offset: int, start: int, data: bytes | memoryview) -> None:
    """Put what `data`, which stands at `start`, has of the bytes from `offset` on into `out`."""
    low, high = max(offset, start), min(offset + len(out), start + len(data))
    if low < high:
        out[low - offset : high - offset] = data[low - start : high - start]


def _filled(struct: bytes | bytearray, size: int) -> bytes:
    """Lengthen a spelt struct to `size` bytes by a field that readers skip."""
    missing = size - len(struct)
    if missing == 0:
        return bytes(struct)
    for digits in range(1, 6):  # of the length, which may begin with zeros: read by all
        content = missing - len(_FILLING) - digits
        if 0 <= content < 1 << 7 * digits:
            length = bytes(content >> 7 * n & 127 | 128 for n in range(digits - 1))
            length += bytes((content >> 7 * (digits - 1),))
            return bytes(struct[:-1]) + _FILLING + length + bytes(content) + b"\0"
    raise FormatError(f"a sealed header leaves {missing} bytes to fill")

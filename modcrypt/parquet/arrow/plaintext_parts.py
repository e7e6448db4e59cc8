"""Decrypt parts of an encrypted file to plaintext bytes of the same size and position.

The plaintext of a page, index or bloom filter is shorter than its PME modules (separately encrypted
parts of the file) by their nonces, tags and lengths. So its Thrift header is lengthened by the same
amount, with a field that readers skip.

    encrypted   [header module      ][body module            ]
    plaintext   [header | filling   ][ body                  ]     the same bytes from start to end
"""

from __future__ import annotations

import threading
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from functools import partial
from itertools import pairwise

from modcrypt.errors import FormatError
from modcrypt.fork_safety import cached_property, fork_safe
from modcrypt.io.buffers import Window, open_window
from modcrypt.io.sources import Source
from modcrypt.io.threads import Lender
from modcrypt.parquet.crypto.bloom_filters import is_in_clear, open_part
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
from modcrypt.parquet.crypto.index_checks import misleads_readers
from modcrypt.parquet.format.compact import MAX_FIELD_ID, last_field_id
from modcrypt.parquet.format.idl import ThriftStruct, decode, known_bytes
from modcrypt.parquet.format.modules import STRUCTS, Part, Span, log_ignored
from modcrypt.parquet.format.page_header import page_compression, splice
from modcrypt.parquet.format.schema import leaf_elements

# The head of a binary field whose id is fifteen above the struct's last one: 20 to 23 in a page
# header. The format reserves id 32767 for fields that readers skip, but that needs the long form
# of the head, and fastparquet reads only the short one.
_FILLING = b"\xf8"

# After the last fifteen ids, none is left for the filling, and after a negative one it could have
# the id of another field. So fields that the IDL does not know are removed from such structs.
_LAST_ID = MAX_FIELD_ID - 15


def make_part_readers(source: Source, plan: ReadPlan, spans: Iterable[Span]) -> list[PartReader]:
    """Return a reader for each of these spans of a plan."""
    windows = Windows(source)
    return [_make_part_reader(windows, plan, span) for span in spans]


def _make_part_reader(windows: Windows, plan: ReadPlan, span: Span) -> PartReader:
    place = span.row_group, span.column
    cipher = plan.ciphers.get(place)
    if span.part is Part.COLUMN_INDEX:
        return _ColumnIndex(windows, span, cipher, plan)
    if cipher is None:
        return PartReader(windows, span)
    if span.part is not Part.PAGES:
        return _SmallPart(windows, span, cipher)
    created_by = plan.footer.metadata.created_by
    return PageReader(windows, span, cipher, plan.chunks[place].meta_data, created_by)


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
        return _pad_struct(self._make_paddable(struct), len(data) - len(bitset)) + bitset

    def _replace(self, data: bytes, why: str) -> bytes:
        log_ignored(self._windows.source.name, [f"{self.span} {why}"])
        if self.span.part is not Part.BLOOM_FILTER:
            return bytes(len(data))
        header, size = decode("BloomFilterHeader", data)
        return data[:size] + b"\xff" * int(header.numBytes)

    def _make_paddable(self, struct: bytes) -> bytes:
        usual = 0 < last_field_id(struct) <= _LAST_ID
        return struct if usual else known_bytes(STRUCTS[self.span.part], struct)


class _ColumnIndex(_SmallPart):
    """A column index; readers get zeros if they would lose rows by it."""

    def __init__(
        self, windows: Windows, span: Span, cipher: ChunkCipher | None, plan: ReadPlan
    ) -> None:
        super().__init__(windows, span, cipher)
        self._plan = plan

    def _open(self, data: bytes) -> bytes:
        opened, schema = super()._open(data), self._plan.footer.metadata.schema
        try:
            index, _ = decode("ColumnIndex", opened)
        except FormatError:
            return opened
        leaf, md = (
            leaf_elements(schema)[self.span.column],
            self._plan.chunks[self.span[3:]].meta_data,
        )
        element = schema[leaf.element]
        if misleads_readers(index, md, leaf, element, self._count_rows, of_rows=True):
            return self._replace(data, "contradicts itself: re-key the file, which hides it")
        return opened

    def _count_rows(self) -> list[int]:
        """Return the number of rows of each page: each row has at least one value."""
        _, _, _, r, c = self.span
        spans = (s for s in self._plan.spans if s[2:] == (Part.OFFSET_INDEX, r, c))
        span = next(spans, None)
        if span is None:
            return []
        data = self._fetch(span)
        if self._cipher is not None:
            data = open_part(self._cipher.copy_for_thread(), span, data).header
        locations = decode("OffsetIndex", data)[0].page_locations
        rows = self._plan.footer.metadata.row_groups[r].num_rows
        return [b - a for a, b in pairwise([*(p.first_row_index for p in locations), rows])]


class PageReader(PartReader):
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

    @cached_property
    def _cipher(self) -> ChunkCipher:
        """The chunk's cipher, for the thread that holds the lock."""
        return self._of_chunk.copy_for_thread()

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
        after = bisect_left(self._starts, high)  # Do not read ahead beyond known pages.
        until = self._starts[after] if after < len(self._starts) else self.span.end
        index = max(0, bisect_right(self._starts, offset) - 1)
        is_dictionary = self._has_dictionary and index == 0
        first = Page(self._cipher, is_dictionary, index - (self._has_dictionary and index > 0))
        pages = walk_pages(window, self._starts[index], until, first, compression=self._compression)
        while (start := self._starts[index]) < high:
            known = index + 1 < len(self._starts)
            sealed = next(pages)
            end = start + sealed.total
            if not known:
                self._starts.append(end)
            elif end != self._starts[index + 1]:
                raise FormatError(
                    f"{sealed.page.id()} ends at byte {end}, but according to the offset index at "
                    f"byte {self._starts[index + 1]}"
                )
            if end > offset:
                self._write_page(sealed, start, offset, out)
            index += 1

    def _write_page(self, sealed: EncryptedPage, start: int, offset: int, out: memoryview) -> None:
        if sealed.header.has_long_ids:
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

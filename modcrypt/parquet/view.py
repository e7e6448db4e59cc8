"""A read-only file object that *is* a plaintext Parquet file, decrypting only what is read.

Every module keeps its place: the plaintext of a page, index or bloom filter is shorter than its
modules by their nonces, tags and lengths, and its Thrift header is lengthened by just as much,
with a field that readers skip. So offsets and sizes in the footer and in offset indexes hold as
they are, nothing needs to be decrypted to know where something lies, and one page can be read
without those after it.

    encrypted   [header module      ][body module            ]
    view        [header | filling   ][ body                  ]     the same bytes from start to end
"""

from __future__ import annotations

import io
import os
import threading
import zlib
from contextlib import ExitStack
from typing import Any

from modcrypt.aad import ModuleType
from modcrypt.buffers import Window
from modcrypt.errors import FormatError
from modcrypt.parquet.bloom import open_bloom_filter
from modcrypt.parquet.ciphers import ChunkCipher
from modcrypt.parquet.decryptor import Plan, plain_metadata, plan_decryption
from modcrypt.parquet.framing import MAGIC_PLAINTEXT, close_tail
from modcrypt.parquet.idl import ThriftStruct, copy, encode, struct_end, varint
from modcrypt.parquet.modules import Part, Span
from modcrypt.parquet.page_header import UNCOMPRESSED, splice
from modcrypt.parquet.pages import EncryptedPage, Page, open_body, open_checked, open_header
from modcrypt.parquet.properties import FileDecryptionProperties
from modcrypt.storage import Source, SourceLike, open_source

__all__ = ["PlaintextView", "open_parquet"]

# The head of a binary field 32767, which the format reserves for what readers skip, in the long
# form: wire type 8, then the id as a zigzag varint.
_FILLING = b"\x08\xfe\xff\x03"


_GAP = 64 << 10
"""Zeros before the footer, in bytes. Readers begin with the last 64 KiB (PyArrow): without a gap
that would be pages, perhaps of an unwanted column, and all those before them in their chunk."""


def open_parquet(source: SourceLike, decryption: FileDecryptionProperties) -> PlaintextView:
    """Open an encrypted Parquet file as a plaintext one that any Parquet reader can read.

    Only the footer is read now; pages, indexes and bloom filters are opened when they are read,
    and authenticated before a byte of them is given out. The file that readers see has the rows,
    encodings and statistics of the encrypted one, but not the bytes that `decrypt_parquet` gives.

    Args:
        source: path, fsspec URL, bytes or seekable binary file object.
        decryption: keys, and what the caller insists on, as for `decrypt_parquet`. With
            `on_missing_key="drop"`, columns without a key are not there.

    Returns:
        A seekable, read-only binary file object, safe to use from several threads; close it, or
        use it in a `with` block.

    Raises:
        ModcryptError: as `decrypt_parquet`, for the footer now and for the rest on reading.
    """
    with ExitStack() as stack:
        opened = stack.enter_context(open_source(source))
        plan = plan_decryption(opened, decryption)
        return PlaintextView(opened, plan, stack.pop_all())


class PlaintextView(io.RawIOBase):
    """What `open_parquet` gives. `read_at` reads without the cursor, from any thread."""

    def __init__(self, source: Source, plan: Plan, resources: ExitStack) -> None:
        self._source, self._resources = source, resources
        self._window = Window(source)
        self._lock = threading.Lock()
        self._cursor = 0
        self._body_end = plan.footer.body_end
        metadata = plan.footer.metadata
        plain = plain_metadata(plan, _row_groups(metadata))
        self._tail = bytes(_GAP) + close_tail(encode(plain), MAGIC_PLAINTEXT)
        self.size = self._body_end + len(self._tail)
        self._parts = [_part(span, plan, metadata) for span in plan.spans]

    def read_at(self, offset: int, length: int) -> bytes:
        """Give up to `length` bytes from `offset`: fewer at the end of the file.

        Raises:
            ModcryptError: what is there does not authenticate or breaks the format.
            ValueError: the view is closed, or `offset` is negative.
        """
        if offset < 0:
            raise ValueError("an offset is not negative")
        length = max(0, min(length, self.size - offset))
        out = memoryview(bytearray(length))
        with self._lock:
            self._check_open()
            self._fill(offset, out)
        return bytes(out)

    def _fill(self, offset: int, out: memoryview) -> None:
        end = offset + len(out)
        _overlay(out, offset, 0, MAGIC_PLAINTEXT)
        _overlay(out, offset, self._body_end, self._tail)
        for part in self._parts:
            if part.span.end > offset and part.span.start < end:
                part.read(self._source, self._window, offset, out)

    # --- the file protocol ---------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("the view is closed")

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def seekable(self) -> bool:
        """Say that it can be sought."""
        return True

    def tell(self) -> int:
        """Give the cursor."""
        self._check_open()
        return self._cursor

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the cursor; give it."""
        self._check_open()
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._cursor, os.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise ValueError("a position is not negative")
        self._cursor = base + offset
        return self._cursor

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` from the cursor on; give the number of bytes."""
        view = memoryview(buffer).cast("B")
        size = max(0, min(len(view), self.size - self._cursor))
        with self._lock:
            self._check_open()
            self._fill(self._cursor, view[:size])
        self._cursor += size
        return size

    def readall(self) -> bytes:
        """Give the rest of the file."""
        data = self.read_at(self._cursor, self.size)
        self._cursor += len(data)
        return data

    def close(self) -> None:
        """Close the source, if it was opened here. Closing again does nothing."""
        if not self.closed:
            super().close()
            self._resources.close()


def _row_groups(metadata: ThriftStruct) -> list[ThriftStruct]:
    """Copy the row groups and chunks, which the plaintext footer changes."""
    copies = [copy(row_group) for row_group in metadata.row_groups]
    for row_group in copies:
        row_group.columns = [copy(chunk) for chunk in row_group.columns]
        for chunk in row_group.columns:
            if chunk.meta_data is not None:
                chunk.meta_data = copy(chunk.meta_data)
    return copies


def _overlay(out: memoryview, offset: int, start: int, data: bytes | memoryview) -> None:
    """Put what `data`, which stands at `start`, has of the bytes from `offset` on into `out`."""
    low, high = max(offset, start), min(offset + len(out), start + len(data))
    if low < high:
        out[low - offset : high - offset] = data[low - start : high - start]


def _filled(struct: bytes | bytearray, size: int) -> bytes:
    """Lengthen a spelt struct to `size` bytes by a field that readers skip."""
    missing = size - len(struct)
    if missing == 0:
        return bytes(struct)
    content = missing - len(_FILLING) - 1
    length = varint(max(content, 0))
    if len(length) == 2:
        content -= 1
        # One byte more than fits a one-byte length is spelt with a two-byte one: legal, and read
        # by all.
        length = bytes((content & 127 | 128, content >> 7))
    if content < 0 or len(length) > 2:
        raise FormatError(f"a sealed header leaves {missing} bytes to fill")
    return bytes(struct[:-1]) + _FILLING + length + bytes(content) + b"\0"


# --- the parts of a file -------------------------------------------------------------------------


def _part(span: Span, plan: Plan, metadata: ThriftStruct) -> _Part:
    cipher = plan.ciphers.get((span.row_group, span.column))
    if cipher is None:
        return _Part(span)
    if span.part is not Part.PAGES:
        return _SmallPart(span, cipher)
    return _Pages(span, cipher, metadata.row_groups[span.row_group].columns[span.column].meta_data)


class _Part:
    """A part of a plaintext column: bytes as they are."""

    def __init__(self, span: Span) -> None:
        self.span = span

    def read(self, source: Source, window: Window, offset: int, out: memoryview) -> None:
        """Put the part's bytes from `offset` on into `out`, which may begin before it."""
        low = max(offset, self.span.start)
        high = min(offset + len(out), self.span.end)
        source.read_into(low, out[low - offset : high - offset])


class _SmallPart(_Part):
    """An index or a bloom filter: opened whole, at its first reading, and kept."""

    def __init__(self, span: Span, cipher: ChunkCipher) -> None:
        super().__init__(span)
        self._cipher = cipher
        self._plain: bytes | None = None

    def read(self, source: Source, window: Window, offset: int, out: memoryview) -> None:
        if self._plain is None:
            start, end = self.span.start, self.span.end
            self._plain = self._open(source.read_at(start, end - start))
        _overlay(out, offset, self.span.start, self._plain)

    def _open(self, data: bytes) -> bytes:
        cipher, part = self._cipher, self.span.part
        if part is not Part.BLOOM_FILTER:
            kind = ModuleType[part.name]
            plain = cipher.open(kind, data)
            return _filled(plain[: struct_end(plain)], len(data))
        header, bitset, _ = open_bloom_filter(cipher, self.span, data)
        return _filled(header, len(data) - len(bitset)) + bitset


class _Pages(_Part):
    """The pages of one chunk. Where pages begin is found by opening headers, and remembered."""

    def __init__(self, span: Span, cipher: ChunkCipher, md: ThriftStruct) -> None:
        super().__init__(span)
        self._cipher = cipher
        self._uncompressed = md.codec == UNCOMPRESSED
        self._has_dictionary = bool(md.dictionary_page_offset)
        self._starts = [span.start]  # of the pages found so far, and of the one after them

    def read(self, source: Source, window: Window, offset: int, out: memoryview) -> None:
        high = min(offset + len(out), self.span.end)
        for index, start in enumerate(self._starts):  # grows while it is walked
            if start >= high:
                return
            known = index + 1 < len(self._starts)
            if known and self._starts[index + 1] <= offset:
                continue
            sealed = self._open_header(window, index)
            if not known:
                self._starts.append(start + sealed.total)
            if start + sealed.total > offset:
                self._put(sealed, start, offset, out)

    def _open_header(self, window: Window, index: int) -> EncryptedPage:
        is_dictionary = self._has_dictionary and index == 0
        page = Page(self._cipher, is_dictionary, index - self._has_dictionary)
        start, end = self._starts[index], self.span.end
        return open_header(window, start, end, page, self._uncompressed)

    def _put(self, sealed: EncryptedPage, start: int, offset: int, out: memoryview) -> None:
        cipher = self._cipher.page
        size = len(sealed.body) - cipher.overhead
        body = start + sealed.total - size
        inside = offset <= body and body + size <= offset + len(out)
        crc = None
        if sealed.header.crc is not None:
            opened = open_checked(sealed)
            crc = zlib.crc32(opened)
            _overlay(out, offset, body, opened)
        elif inside and not cipher.slack:  # most pages of a large read: without a copy
            open_body(sealed, out[body - offset : body - offset + size])
        else:
            opened = memoryview(bytearray(size + cipher.slack))
            open_body(sealed, opened)
            _overlay(out, offset, body, opened[:size])
        header = splice(sealed.plain, 0, sealed.header, size, crc)
        _overlay(out, offset, start, _filled(header, body - start))

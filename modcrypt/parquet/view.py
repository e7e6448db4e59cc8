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
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from concurrent.futures import wait
from contextlib import ExitStack
from typing import Any

from modcrypt.buffers import Shared, Threads, new_bytes, usable_cores
from modcrypt.parquet.framing import MAGIC_PLAINTEXT, close_tail
from modcrypt.parquet.idl import encode
from modcrypt.parquet.parts import PartReader, overlay, part_readers
from modcrypt.parquet.plain_footer import plain_metadata, selected_row_groups
from modcrypt.parquet.plan import OpenFile, Plan
from modcrypt.parquet.properties import FileDecryptionProperties
from modcrypt.parquet.schema import leaves_of
from modcrypt.storage import Source, SourceLike, open_source

__all__ = ["PlaintextView", "open_parquet"]

_GAP = 64 << 10
"""Zeros before the footer, in bytes. Readers begin with the last 64 KiB (PyArrow): without a gap
that would be pages, perhaps of an unwanted column, and all those before them in their chunk."""


_WORTH_THREADS = 4 << 20
"""Bytes of one read from which on its parts are opened by several threads."""

_MAX_THREADS = 8
"""Threads of one read; each has a buffer of at least a page."""


def open_parquet(
    source: SourceLike,
    decryption: FileDecryptionProperties,
    *,
    columns: Sequence[str] | None = None,
    filesystem: Any = None,
) -> PlaintextView:
    """Open an encrypted Parquet file as a plaintext one that any Parquet reader can read.

    Only the footer is read now; pages, indexes and bloom filters are opened when they are read,
    and authenticated before a byte of them is given out. The file that readers see has the rows,
    encodings and statistics of the encrypted one, but not the bytes that `decrypt_parquet` gives.

    Args:
        source: path, fsspec URL, bytes or seekable binary file object.
        decryption: keys, and what the caller insists on, as for `decrypt_parquet`.
        columns: names of columns or groups that the file is to show, None for all. The keys of
            the others are not looked for.
        filesystem: where a path is to be found: a filesystem of pyarrow or fsspec.

    Returns:
        A seekable, read-only binary file object, safe to use from several threads; close it, or
        use it in a `with` block.

    Raises:
        ValueError: the file doesn't have one of `columns`.
        ModcryptError: as `decrypt_parquet`, for the footer now and for the rest on reading.
    """
    with ExitStack() as stack:
        opened = stack.enter_context(open_source(source, filesystem=filesystem))
        file = OpenFile(opened, decryption)
        wanted = None if columns is None else leaves_of(file.leaves, columns)
        return PlaintextView(opened, file.select(wanted), stack.pop_all())


class PlaintextView(io.RawIOBase):
    """What `open_parquet` gives. `read_at` reads without the cursor, from any thread."""

    def __init__(self, source: Source, plan: Plan, resources: ExitStack | None = None) -> None:
        self._threads = Threads(min(usable_cores(), _MAX_THREADS), "modcrypt-view")
        resources = resources or ExitStack()
        resources.callback(self._threads.close)
        self._shared = Shared(resources)
        self._cursor = 0
        body_end = plan.footer.body_end
        metadata, nulls = plain_metadata(plan, selected_row_groups(plan), body_end + _GAP)
        tail = bytes(_GAP) + nulls + close_tail(encode(metadata), MAGIC_PLAINTEXT)
        self.size = body_end + len(tail)
        self._body_end, self._tail = body_end, tail
        self._parts = part_readers(source, plan, plan.spans)  # in file order, disjoint
        self._starts = [span.start for span in plan.spans]

    def read_at(self, offset: int, length: int) -> bytes:
        """Give up to `length` bytes from `offset`: fewer at the end of the file.

        Raises:
            ModcryptError: what is there does not authenticate or breaks the format.
            ValueError: the view is closed, or `offset` is negative.
        """
        length = self._clipped(offset, length)
        if not length:
            return b""
        whole, out = new_bytes(length)
        self._fill(offset, out)
        return whole

    def _clipped(self, offset: int, length: int) -> int:
        self._check_open()
        if offset < 0:
            raise ValueError("an offset is not negative")
        return max(0, min(length, self.size - offset))

    def _fill(self, offset: int, out: memoryview) -> None:
        end = offset + len(out)
        first = max(0, bisect_right(self._starts, offset) - 1)
        parts = self._parts[first : bisect_left(self._starts, end)]
        if parts and parts[0].span.end <= offset:
            del parts[0]
        reached = offset
        for part in parts:  # what lies between parts are zeros
            overlay(out, offset, reached, bytes(max(0, part.span.start - reached)))
            reached = max(reached, part.span.end)
        overlay(out, offset, reached, bytes(max(0, min(end, self._body_end) - reached)))
        overlay(out, offset, 0, MAGIC_PLAINTEXT)
        overlay(out, offset, self._body_end, self._tail)
        with self._shared.use():
            self._fill_parts(parts, offset, out)

    def _fill_parts(self, parts: list[PartReader], offset: int, out: memoryview) -> None:
        if len(out) < _WORTH_THREADS or len(parts) < 2 or usable_cores() < 2:
            for part in parts:
                part.read(offset, out)
            return
        # An error of one is raised when the others are done: they write into the same memory.
        work = [self._threads.submit(part.read, offset, out) for part in parts]
        wait(work)
        for done in work:
            done.result()

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
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._cursor, os.SEEK_END: self.size}.get(whence)
        if base is None:
            raise ValueError(f"there is no such whence: {whence}")
        if base + offset < 0:
            raise ValueError("a position is not negative")
        self._cursor = base + offset
        return self._cursor

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` from the cursor on; give the number of bytes."""
        view = memoryview(buffer).cast("B")
        size = self._clipped(self._cursor, len(view))
        self._fill(self._cursor, view[:size])
        self._cursor += size
        return size

    def read(self, size: int | None = -1) -> bytes:
        """Give up to `size` bytes from the cursor on, or the rest of the file."""
        length = self.size if size is None or size < 0 else size
        data = self.read_at(self._cursor, length)
        self._cursor += len(data)
        return data

    def readall(self) -> bytes:
        """Give the rest of the file."""
        return self.read()

    def read_buffer(self, size: int) -> Any:
        """Give a pyarrow Buffer of up to `size` bytes: pyarrow calls this where it is there."""
        import pyarrow as pa

        buffer = pa.allocate_buffer(self._clipped(self._cursor, size))
        self._fill(self._cursor, memoryview(buffer).cast("B"))
        self._cursor += buffer.size
        return buffer

    def close(self) -> None:
        """Close the source, if it was opened here, after the last read. Again, it does nothing."""
        super().close()
        self._shared.close()

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

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from concurrent.futures import wait
from contextlib import ExitStack
from typing import Any

from modcrypt.io.buffers import Shared, Threads, usable_cores
from modcrypt.io.seekable import SeekableFile
from modcrypt.io.storage import Source, SourceLike, open_source
from modcrypt.parquet.arrow.plaintext_parts import PartReader, overlay, part_readers
from modcrypt.parquet.crypto.file_plan import OpenFile, Plan
from modcrypt.parquet.crypto.plaintext_footer import plain_metadata, selected_row_groups
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.parquet.format.framing import MAGIC_PLAINTEXT, close_tail
from modcrypt.parquet.format.idl import encode
from modcrypt.parquet.format.schema import leaves_of

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


class PlaintextView(SeekableFile):
    """What `open_parquet` gives. `read_at` reads without the cursor, from any thread."""

    def __init__(self, source: Source, plan: Plan, resources: ExitStack | None = None) -> None:
        self._threads = Threads(min(usable_cores(), _MAX_THREADS), "modcrypt-view")
        resources = resources or ExitStack()
        resources.callback(self._threads.close)
        self._shared = Shared(resources)
        body_end = plan.footer.body_end
        metadata, nulls = plain_metadata(plan, selected_row_groups(plan), body_end + _GAP)
        tail = bytes(_GAP) + nulls + close_tail(encode(metadata), MAGIC_PLAINTEXT)
        self.size = body_end + len(tail)
        self._body_end, self._tail = body_end, tail
        self._parts = part_readers(source, plan, plan.spans)  # in file order, disjoint
        self._starts = [span.start for span in plan.spans]

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

    def read_buffer(self, size: int) -> Any:
        """Give a pyarrow Buffer of up to `size` bytes: pyarrow calls this where it is there."""
        import pyarrow as pa

        buffer = pa.allocate_buffer(self._clipped(self._cursor, size))
        self._advance(memoryview(buffer).cast("B"))
        return buffer

    def close(self) -> None:
        """Close the source, if it was opened here, after the last read. Again, it does nothing."""
        super().close()
        self._shared.close()

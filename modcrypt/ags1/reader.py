"""A seekable file object over an AGS1 stream that opens only the blocks that are read.

    read_at, readinto ──> blocks needed ──> in the cache? ──> if not: one request for all of them
                                                        whole blocks into the caller's memory,
                                                        parts of blocks by way of the cache

While the caller reads sequentially in small pieces, other threads fetch and open the next blocks.
No byte of a block is returned before the block's tag has been verified.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Container
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

from modcrypt.aead import BLOCK_OVERHEAD
from modcrypt.ags1.blocks import Workers, block_cipher, split_blocks
from modcrypt.ags1.layout import HEADER_SIZE, Layout, parse_header
from modcrypt.ags1.lengths import Ags1Key, TrustedLength, check_length, takes_key, trusted_length
from modcrypt.io.seekable import SeekableFile
from modcrypt.io.sources import FileSource, MemorySource, ObjectSource, SourceLike, open_source
from modcrypt.io.threads import SharedResources, check_threads
from modcrypt.runtime.fork_safety import fork_safe

CACHE_BYTES = 4 << 20
"""Bytes of plaintext in the cache: blocks of small reads and blocks opened ahead of them."""

MAX_CACHED_BLOCKS = 64

AHEAD_BYTES = 2 << 20  # bytes of plaintext opened ahead of small sequential reads
_LOCAL_REQUEST = 1 << 20  # one default block, which fits in the processor's cache
_REMOTE_REQUEST = 8 << 20
_NOTHING = memoryview(b"")


class Ags1Reader(SeekableFile):
    """The plaintext of an AGS1 stream as a read-only, seekable binary file object.

    `read_at` may be called from any thread; as with any file, only one thread may use the cursor.
    A read fetches the blocks that it needs in one request, without those at either end that are in
    the cache; from 8 MiB on, in several concurrent requests. `size` is the length of the plaintext
    in bytes.

    Args:
        source: Path, fsspec URL, bytes or seekable binary file object. A file object is not closed,
            and is only called in the thread that reads.
        key: Key of 16, 24 or 32 bytes, or Iceberg's `StandardKeyMetadata`.
        aad_prefix: Beginning of the block AADs; None and empty mean the same.
        length: Trusted length of the encrypted stream in bytes, as the writer reported it; or
            `UNVERIFIED` to accept a stream that may have lost its last blocks. Not needed if the
            key metadata contains it.
        filesystem: Filesystem of pyarrow or fsspec that contains the path.
        threads: Most threads that open blocks; by default the number of processors, up to 4.

    Raises:
        TypeError: `length` is missing.
        TruncationError: The stream does not have the trusted length, or cannot have its length.
        FormatError, LimitError, PlaintextError: The header is not that of a supported stream.
        TagMismatchError: The empty last block does not authenticate. Other blocks are opened when
            they are read; `.module` identifies the block.
    """

    _shared: SharedResources | None = None  # until the source is open

    @takes_key
    def __init__(
        self,
        source: SourceLike,
        key: Ags1Key,
        *,
        aad_prefix: bytes | None = None,
        length: TrustedLength | None = None,
        filesystem: Any = None,
        threads: int | None = None,
    ) -> None:
        self._cipher = block_cipher(key, aad_prefix)
        trusted = trusted_length(key, length)
        check_threads(threads)
        with ExitStack() as stack:
            opened = stack.enter_context(open_source(source, filesystem=filesystem))
            alone = isinstance(opened, ObjectSource)  # it has a cursor
            self._workers = Workers(1 if alone else threads, "modcrypt-ags1")
            check_length(opened.size, trusted, opened.name)
            header = opened.read_at(0, min(HEADER_SIZE, opened.size))
            block_length = parse_header(header, opened.name)
            self._layout = Layout.of(block_length, opened.size, opened.name)
            self.size = self._layout.plaintext_length
            self._source = opened
            self._memory = opened.view if isinstance(opened, MemorySource) else None
            self._request = _LOCAL_REQUEST if isinstance(opened, FileSource) else _REMOTE_REQUEST
            self._ahead: dict[int, Future[None]] = {}
            self._cache = _Cache(self._layout, self._ahead)
            self._scratch: list[memoryview] = []
            self._pid = os.getpid()
            self._expected = 0
            if self._layout.ends_empty:  # no read would ever touch this block
                last = self._layout.blocks - 1
                block, _ = self._fetch(range(last, last + 1))
                self._cipher.decrypt(block, last, memoryview(bytearray()))
            stack.callback(self._workers.close)
            self._shared = SharedResources(stack.pop_all())

    @property
    def encrypted_length(self) -> int:
        """Length of the stream in bytes."""
        return self._layout.encrypted_length

    @property
    def block_length(self) -> int:
        """Bytes of plaintext in each block but the last."""
        return self._layout.block_length

    def _fill(self, offset: int, out: memoryview) -> None:
        """Fill `out` with the plaintext from `offset` on, which is long enough."""
        assert self._shared is not None
        with self._shared:
            block_length = self._layout.block_length
            first = offset // block_length
            stop = (offset + len(out) - 1) // block_length + 1
            while first < stop and self._copy_opened(first, offset, out):
                first += 1
            while first < stop and self._copy_opened(stop - 1, offset, out):
                stop -= 1

            lots = self._lots(first, stop)
            self._workers.spread(lots, len(out), lambda lot: self._load(lot, offset, out))

    def _lots(self, first: int, stop: int) -> list[range]:
        """Split blocks into lots, each for one request."""
        frame = self._layout.block_length + BLOCK_OVERHEAD
        return split_blocks(first, stop, max(1, self._request // frame))

    def _copy_opened(self, index: int, offset: int, out: memoryview) -> bool:
        """Copy from a block if it is or is being opened. Workers must not call this: it waits."""
        if self._pid != os.getpid():  # the threads stayed with the parent
            self._ahead.clear()
            self._pid = os.getpid()
        if (ahead := self._ahead.pop(index, None)) is not None:
            ahead.exception()  # if it failed, the read itself tries again and raises the error
        start, end = self._layout.plaintext_span(index)
        low, high = max(start, offset), min(end, offset + len(out))
        return self._cache.copy(index, low - start, out[low - offset : high - offset])

    def _load(self, lot: range, offset: int = 0, out: memoryview = _NOTHING) -> None:
        """Decrypt blocks into `out`; those of which it needs only a part go through the cache."""
        fetched, scratch = self._fetch(lot)
        base = self._layout.span(lot.start, lot.stop)[0]
        for index in lot:
            low, high = self._layout.span(index, index + 1)
            block = fetched[low - base : high - base]
            start, end = self._layout.plaintext_span(index)
            if offset <= start and end <= offset + len(out):
                self._cipher.decrypt(block, index, out[start - offset : end - offset])
            else:
                plaintext = self._cache.take_buffer()
                self._cipher.decrypt(block, index, plaintext[: end - start])
                low, high = max(start, offset), min(end, offset + len(out))
                if low < high:
                    out[low - offset : high - offset] = plaintext[low - start : high - start]
                self._cache.keep(index, plaintext)
        if scratch is not None:
            self._scratch.append(scratch)

    def _fetch(self, lot: range) -> tuple[memoryview, memoryview | None]:
        """Return the stored bytes of blocks, and the buffer to reuse, if any."""
        start, end = self._layout.span(lot.start, lot.stop)
        if self._memory is not None:
            return self._memory[start:end], None
        if self._source.least_read:
            return memoryview(self._source.read_at(start, end - start)), None
        try:
            scratch = self._scratch.pop()
        except IndexError:
            scratch = memoryview(b"")
        if len(scratch) < end - start:
            scratch = memoryview(bytearray(end - start))
        self._source.read_into(start, scratch[: end - start])
        return scratch[: end - start], scratch

    def _look_ahead(self, offset: int, end: int) -> None:
        """Have other threads open the blocks that sequential small reads need next."""
        block_length = self._layout.block_length
        sequential, self._expected = offset == self._expected, end
        if not sequential:  # blocks opened ahead are no longer likelier to be read
            self._ahead.clear()
        crossed = end // block_length
        if not sequential or crossed == offset // block_length or self._workers.count < 2:
            return
        count = min(AHEAD_BYTES // block_length, self._cache.capacity - 2)
        if count < 1 or end - offset >= block_length:
            return
        # `crossed` is needed at once: this thread opens it, or it was opened ahead.
        stop = min(crossed + 1 + count, self._layout.blocks)
        wanted = [n for n in range(crossed + 1, stop) if n not in self._ahead]
        if wanted := [n for n in wanted if not self._cache.has(n)]:
            for lot in self._lots(wanted[0], wanted[-1] + 1):
                future = self._workers.threads.submit(self._load, lot)
                self._ahead.update(dict.fromkeys(lot, future))

    def _advance(self, out: memoryview) -> None:
        end = self._cursor + len(out)
        assert self._shared is not None
        with self._shared:
            self._look_ahead(self._cursor, end)
            self._fill(self._cursor, out)
        self._cursor = end

    def close(self) -> None:
        """Wait for running reads, then close the source if this reader opened it. Idempotent."""
        super().close()
        if self._shared is not None:
            self._shared.close()


@takes_key
def decrypt(
    data: SourceLike,
    key: Ags1Key,
    *,
    aad_prefix: bytes | None = None,
    length: TrustedLength | None = None,
) -> bytes:
    """Return the whole plaintext of a stream, if every block authenticates.

    Arguments and errors are those of `Ags1Reader`.
    """
    with Ags1Reader(data, key, aad_prefix=aad_prefix, length=length) as reader:
        return reader.read()


class _Cache:
    """A cache of the most recently used blocks, which reuses the buffers of evicted blocks.

    Copies are made under the lock: a copy holds the interpreter's lock anyway.
    """

    def __init__(self, layout: Layout, awaited: Container[int]) -> None:
        self._awaited = awaited  # opened ahead and not read yet: evicted last
        self._size = min(layout.block_length, layout.plaintext_length)
        self.capacity = max(1, min(MAX_CACHED_BLOCKS, CACHE_BYTES // layout.block_length))
        self._lock = fork_safe(threading.Lock())
        self._blocks: dict[int, memoryview] = {}  # in the order of their last use

    def has(self, index: int) -> bool:
        return index in self._blocks

    def copy(self, index: int, start: int, out: memoryview) -> bool:
        """Copy from `start` of a block into `out`; return False if the block is not cached."""
        with self._lock:
            if (block := self._blocks.pop(index, None)) is None:
                return False
            self._blocks[index] = block
            out[:] = block[start : start + len(out)]
            return True

    def take_buffer(self) -> memoryview:
        """Return a buffer for one more block, if need be that of the least recently used one."""
        with self._lock:
            if len(self._blocks) >= self.capacity:
                return self._blocks.pop(self._block_to_evict())
        return memoryview(bytearray(self._size))

    def keep(self, index: int, block: memoryview) -> None:
        with self._lock:
            self._blocks[index] = block
            while len(self._blocks) > self.capacity:
                del self._blocks[self._block_to_evict()]

    def _block_to_evict(self) -> int:
        oldest = next(iter(self._blocks))
        return next((n for n in self._blocks if n not in self._awaited), oldest)

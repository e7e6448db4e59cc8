"""A seekable file object over an AGS1 stream, opening only the blocks that are read.

    read_at, readinto ──> blocks touched ──> in the cache? ──> if not: one request for all of them
                                                         whole blocks into the caller's memory,
                                                         parts of blocks by way of the cache

Reading on from block to block in small pieces has the next ones fetched and opened by other
threads meanwhile. Nothing of a block is given out before its tag has been verified.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Container
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

from modcrypt.aead import BLOCK_OVERHEAD
from modcrypt.ags1.blocks import Workers, block_cipher, check_threads, part
from modcrypt.ags1.layout import HEADER_SIZE, Layout, parse_header
from modcrypt.ags1.lengths import (
    Ags1Key,
    TrustedLength,
    check_length,
    takes_key,
    trusted_length,
)
from modcrypt.fork_safety import fork_safe
from modcrypt.io.buffers import Shared
from modcrypt.io.seekable import SeekableFile
from modcrypt.io.storage import (
    FileSource,
    MemorySource,
    ObjectSource,
    Source,
    SourceLike,
    open_source,
)

__all__ = ["Ags1Reader", "open"]

CACHE_BYTES = 4 << 20
"""Plaintext kept, in bytes: what small reads return to, and what was opened ahead of them."""

MAX_CACHED_BLOCKS = 64

AHEAD_BYTES = 2 << 20
"""Plaintext opened ahead of small sequential reads, in bytes."""

_LOCAL_REQUEST = 1 << 20  # a block at a time stays in the processor's cache
_REMOTE_REQUEST = 8 << 20


class Ags1Reader(SeekableFile):
    """The plaintext of an AGS1 stream as a read-only, seekable binary file object.

    `read_at` may be called from any thread; the cursor, as that of any file, is one thread's. The
    blocks that a read touches take one request to a store, but for those at either end that are in
    the cache; from 8 MiB on, several at once. `size` is the length of the plaintext in bytes.

    Args:
        source: path, fsspec URL, bytes, or a seekable binary file object, which is not closed, and
            only called in the thread that reads.
        key: the key of 16, 24 or 32 bytes, or Iceberg's `StandardKeyMetadata`.
        aad_prefix: what the block AADs begin with; None and empty mean the same.
        length: the trusted length of the encrypted stream in bytes, as the writer reported it;
            or `UNVERIFIED`, and a stream that lost its last blocks is taken for whole. Not needed
            with key metadata that has it.
        filesystem: where a path is to be found: a filesystem of pyarrow or fsspec.
        threads: how many may open blocks; by default as many as there are processors, up to 4.

    Raises:
        TypeError: no `length`.
        TruncationError: the stream's length is not the trusted one, or none that a stream has.
        FormatError, LimitError, PlaintextError: the header is not that of a stream that is read.
        TagMismatchError: an empty last block does not authenticate. Others are opened when they
            are read; `.module` says which block it is.
    """

    _shared: Shared | None = None  # until the source is open

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
            alone = isinstance(opened, ObjectSource)  # has a cursor
            self._workers = Workers(1 if alone else threads, "modcrypt-ags1")
            self._layout = _read_layout(opened, trusted)
            self.size = self._layout.plaintext_length
            self._source = opened
            self._memory = opened.view if isinstance(opened, MemorySource) else None
            self._request = _LOCAL_REQUEST if isinstance(opened, FileSource) else _REMOTE_REQUEST
            self._ahead: dict[int, Future[None]] = {}
            self._cache = _Cache(self._layout, self._ahead)
            self._scratch: list[memoryview] = []
            self._pid = os.getpid()
            self._expected = 0
            if self._layout.ends_empty:  # no read would ever touch it
                self._open_alone(self._layout.blocks - 1)
            stack.callback(self._workers.close)
            self._shared = Shared(stack.pop_all())

    @property
    def encrypted_length(self) -> int:
        """Length of the stream in bytes."""
        return self._layout.encrypted_length

    @property
    def block_length(self) -> int:
        """Bytes of plaintext in each block but the last."""
        return self._layout.block_length

    # --- blocks --------------------------------------------------------------------------------

    def _fill(self, offset: int, out: memoryview) -> None:
        """Fill `out` from `offset`; there is at least a byte to be had for each of its."""
        assert self._shared is not None
        with self._shared.use():
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
        """Part blocks into what one request fetches."""
        frame = self._layout.block_length + BLOCK_OVERHEAD
        return part(first, stop, max(1, self._request // frame))

    def _copy_opened(self, index: int, offset: int, out: memoryview) -> bool:
        """Copy from a block that is opened, or about to be. Not for the workers: they'd wait."""
        if self._pid != os.getpid():  # the threads stayed with the parent
            self._ahead.clear()
            self._pid = os.getpid()
        if (ahead := self._ahead.pop(index, None)) is not None:
            ahead.exception()  # one that failed is tried again, where the error belongs
        start, end = self._layout.plaintext_span(index)
        low, high = max(start, offset), min(end, offset + len(out))
        return self._cache.copy(index, low - start, out[low - offset : high - offset])

    def _load(self, lot: range, offset: int, out: memoryview) -> None:
        """Open blocks into `out`, those that it wants in part by way of the cache."""
        fetched, scratch = self._fetch(lot)
        base = self._layout.span(lot.start, lot.stop)[0]
        for index in lot:
            low, high = self._layout.span(index, index + 1)
            block = fetched[low - base : high - base]
            start, end = self._layout.plaintext_span(index)
            if offset <= start and end <= offset + len(out):
                self._cipher.open(block, index, out[start - offset : end - offset])
            else:
                plaintext = self._open_spare(block, index)
                low, high = max(start, offset), min(end, offset + len(out))
                out[low - offset : high - offset] = plaintext[low - start : high - start]
                self._cache.keep(index, plaintext)
        if scratch is not None:
            self._scratch.append(scratch)

    def _open_spare(self, block: memoryview, index: int) -> memoryview:
        plaintext = self._cache.spare()
        self._cipher.open(block, index, plaintext[: len(block) - BLOCK_OVERHEAD])
        return plaintext

    def _open_alone(self, index: int) -> None:
        fetched, _ = self._fetch(range(index, index + 1))
        self._cipher.open(fetched, index, memoryview(bytearray(len(fetched) - BLOCK_OVERHEAD)))

    def _fetch(self, lot: range) -> tuple[memoryview, memoryview | None]:
        """Give the blocks as they are stored, and the buffer to be used again, if there is one."""
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

    # --- opening ahead -------------------------------------------------------------------------

    def _look_ahead(self, offset: int, end: int) -> None:
        """Have blocks opened that reading on in small pieces comes to next."""
        block_length = self._layout.block_length
        sequential, self._expected = offset == self._expected, end
        if not sequential:  # what was opened ahead is wanted no more than the rest
            self._ahead.clear()
        crossed = end // block_length
        if not sequential or crossed == offset // block_length or self._workers.count < 2:
            return
        count = min(AHEAD_BYTES // block_length, self._cache.capacity - 2)
        if count < 1 or end - offset >= block_length:
            return
        # `crossed` itself is needed at once: it is opened here, or was ahead.
        stop = min(crossed + 1 + count, self._layout.blocks)
        wanted = [n for n in range(crossed + 1, stop) if n not in self._ahead]
        wanted = [n for n in wanted if not self._cache.has(n)]
        if wanted:
            for lot in self._lots(wanted[0], wanted[-1] + 1):
                future = self._workers.threads.submit(self._load_ahead, lot)
                self._ahead.update(dict.fromkeys(lot, future))

    def _load_ahead(self, lot: range) -> None:
        fetched, scratch = self._fetch(lot)
        base = self._layout.span(lot.start, lot.stop)[0]
        for index in lot:
            low, high = self._layout.span(index, index + 1)
            block = fetched[low - base : high - base]
            self._cache.keep(index, self._open_spare(block, index))
        if scratch is not None:
            self._scratch.append(scratch)

    def _advance(self, out: memoryview) -> None:
        end = self._cursor + len(out)
        assert self._shared is not None
        with self._shared.use():
            self._look_ahead(self._cursor, end)
            self._fill(self._cursor, out)
        self._cursor = end

    def close(self) -> None:
        """Close the source, if it was opened here, after the last read. Again, it does nothing."""
        super().close()
        if self._shared is not None:
            self._shared.close()


@takes_key
def open(  # noqa: A001 (as in gzip and others)
    data: SourceLike,
    key: Ags1Key,
    *,
    aad_prefix: bytes | None = None,
    length: TrustedLength | None = None,
) -> bytes:
    """Give the whole plaintext of a stream; arguments and errors are those of `Ags1Reader`.

    Nothing is given unless every block authenticates.
    """
    with Ags1Reader(data, key, aad_prefix=aad_prefix, length=length) as reader:
        return reader.read()


def _read_layout(source: Source, trusted: int | None) -> Layout:
    check_length(source.size, trusted, source.name)
    header = source.read_at(0, min(HEADER_SIZE, source.size))
    return Layout.of(parse_header(header, source.name), source.size, source.name)


class _Cache:
    """The blocks last used, each in a buffer that is used again when another comes.

    Copying out happens under the lock: it holds the interpreter's own anyway.
    """

    def __init__(self, layout: Layout, awaited: Container[int]) -> None:
        self._awaited = awaited  # opened ahead and not read yet: not to be driven out
        self._size = min(layout.block_length, layout.plaintext_length)
        self.capacity = max(1, min(MAX_CACHED_BLOCKS, CACHE_BYTES // layout.block_length))
        self._lock = fork_safe(threading.Lock())
        self._blocks: dict[int, memoryview] = {}  # the one used last comes last

    def has(self, index: int) -> bool:
        return index in self._blocks

    def copy(self, index: int, start: int, out: memoryview) -> bool:
        """Fill `out` with what begins at `start` in a block; False if the block isn't here."""
        with self._lock:
            block = self._blocks.pop(index, None)
            if block is None:
                return False
            self._blocks[index] = block
            out[:] = block[start : start + len(out)]
            return True

    def spare(self) -> memoryview:
        """Give a buffer for one more block, taken from the one that was used longest ago."""
        with self._lock:
            if len(self._blocks) >= self.capacity:
                return self._blocks.pop(self._least_wanted())
        return memoryview(bytearray(self._size))

    def keep(self, index: int, block: memoryview) -> None:
        """Take in a block that authenticated."""
        with self._lock:
            self._blocks[index] = block
            while len(self._blocks) > self.capacity:
                del self._blocks[self._least_wanted()]

    def _least_wanted(self) -> int:
        oldest = next(iter(self._blocks))
        return next((n for n in self._blocks if n not in self._awaited), oldest)

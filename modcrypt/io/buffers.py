"""Buffers between files and ciphers: a window on the source, and an output that collects writes.

Both reuse their memory: at the speed of AES, allocating memory costs more than encrypting.
"""

from __future__ import annotations

import contextlib
import io
import os
import queue
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from modcrypt.errors import TruncationError
from modcrypt.io.destinations import Destination, open_sink
from modcrypt.io.places import Place
from modcrypt.io.sinks import Sink
from modcrypt.io.sources import FileSource, ObjectSource, Source
from modcrypt.io.threads import check_threads, usable_cores

if TYPE_CHECKING:
    from mypy_extensions import i64

BLOCK = 1 << 20  # bytes moved by one system call: small enough to stay in the processor's cache
_SMALL_BUFFER = 1 << 14
_FIRST_BUFFER = 1 << 16
"""Largest sizes of an output's first buffers in bytes, until they are full: zeroing a block takes a
tenth of the time of a small file, and drives the file out of the processor's first cache."""

WORTH_A_THREAD = 8 << 20  # source size in bytes above which a second thread writes


def fill_bytes(size: int, fill: Callable[[memoryview], object]) -> bytes:
    """Return `size` bytes that a function fills, without copying them; 0 bytes without calling it.

    `BytesIO` shares the memory of the bytes that it is made of and of those that it returns, as
    long as nothing else refers to them.
    """
    if not size:
        return b""
    file = io.BytesIO(bytes(size))
    with file.getbuffer() as view:
        fill(view)
    return file.getvalue()


class Window:
    """The part of a source that is in memory: `buffer[:stop]` contains the bytes from `base` on.

    All chunks of a file use one window, so its buffer is allocated once.
    """

    __slots__ = ("_source", "ahead", "base", "block", "buffer", "stop", "view")

    def __init__(self, source: Source, block: int = BLOCK) -> None:
        self._source = source
        self.block: i64 = block  # most bytes that are read ahead from a local file
        self.base: i64 = 0
        self.ahead: i64 = 0  # offset up to which the bytes will be needed next, so may be read
        self.buffer: bytes | bytearray = bytearray() if source.whole is None else source.whole
        self.view: memoryview = memoryview(self.buffer)
        self.stop: i64 = len(self.buffer)

    def fill(self, start: i64, need: i64, end: i64) -> None:
        """Read the source's bytes [start, need), and possibly more up to `end` or `ahead`."""
        if self._source.whole is not None:
            return
        have = self.base + self.stop
        if not self.base <= start <= have:
            self.base, self.stop, have = start, 0, start
        if need <= have:
            return
        if need - self.base > len(self.buffer):
            self._move(start, need - start)
        limit = min(max(end, self.ahead), have + self._block())
        until = min(max(need, limit), self.base + len(self.buffer))
        self._source.read_into(have, self.view[self.stop : until - self.base])
        self.stop = until - self.base

    @property
    def least_read(self) -> int:
        """The least number of bytes that the source should be asked for at once."""
        return self._source.least_read

    def _block(self) -> int:
        return max(self.block, self.least_read)

    def _move(self, start: i64, size: i64) -> None:
        """Move the bytes from `start` on to the front of a buffer of at least `size` bytes."""
        rest = self.view[start - self.base : self.stop]
        if size > len(self.buffer):
            block = min(self._block(), self._source.size)  # zeroing more costs small files time
            fresh = bytearray(max(block + (block >> 4), size + (size >> 4)))
            fresh[: len(rest)] = rest
            self.buffer, self.view = fresh, memoryview(fresh)
        else:
            self.view[: len(rest)] = bytes(rest)
        self.base, self.stop = start, len(rest)


class LentWindow(Window):
    """A window that shows parts of the file that its source has in memory, without a copy."""

    def fill(self, start: i64, need: i64, end: i64) -> None:
        """Show the part that contains `start`, which must contain all bytes up to `need`."""
        if self.base <= start and need <= self.base + self.stop:
            return
        self.base, self.buffer = self._source.lend(start)
        self.view, self.stop = memoryview(self.buffer), len(self.buffer)
        if need > self.base + self.stop:
            raise TruncationError(
                f"{self._source.name}: bytes {start} to {need} are not in one part of the file"
            )


def open_window(source: Source) -> Window:
    """Return a window on a source."""
    return LentWindow(source) if source.lends else Window(source)


class Scratch:
    """A buffer that grows and is used again, for one thread."""

    def __init__(self) -> None:
        self._view = memoryview(bytearray(_SMALL_BUFFER))

    def reserve(self, size: int) -> memoryview:
        """Return a view of `size` bytes of the buffer, which grows if needed."""
        if size > len(self._view):
            self._view = memoryview(bytearray(max(size + (size >> 3), _FIRST_BUFFER)))
        return self._view[:size]


class Output:
    """A sink with reused buffers, which a second thread may write.

    Write at `view[at:]` after `reserve`, then advance `at`; `size` is that of `view`, and
    `position` is the file's length so far. The thread pays off because a write to the page cache
    takes longer than AES on the same bytes. It starts when the first buffer is full, so a small
    file needs none.
    """

    def __init__(self, sink: Sink, *, background: bool) -> None:
        self._sink = sink
        self._written: i64 = 0
        self.progress: Callable[[int], None] | None = None
        self.at: i64 = 0
        self._usual_size: i64 = BLOCK + (BLOCK >> 3)
        self.view: memoryview = memoryview(bytearray(min(_SMALL_BUFFER, BLOCK + (BLOCK >> 3))))
        self.size: i64 = len(self.view)
        self._background = background
        self._writer: _Writer | None = None
        self._pid = os.getpid()

    def check_process(self) -> None:
        """Raise ValueError in a forked process: its parent has the threads, and writes the file."""
        if self._pid != os.getpid():
            raise ValueError("the file was opened before a fork; write it in the parent process")

    @property
    def position(self) -> i64:
        """Bytes written so far."""
        return self._written + self.at

    def reserve(self, size: i64) -> None:
        """Make room for `size` bytes at `view[at:]`; may change `view`, its `size` and `at`."""
        if self.at + size <= self.size:
            return
        if self.size < self._usual_size:
            self._grow(size)
            if self.at + size <= self.size:
                return
        self.flush()
        if size > self.size:
            self.view = memoryview(bytearray(size))
            self.size = size

    def _grow(self, size: i64) -> None:
        """Take the next larger buffer that has room for `size` more bytes, or the largest."""
        larger: i64 = self._usual_size
        if self.at + size <= _FIRST_BUFFER < larger:
            larger = _FIRST_BUFFER
        view = memoryview(bytearray(larger))
        view[: self.at] = self.view[: self.at]
        self.view, self.size = view, larger

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append a copy of `data`."""
        size: i64 = len(data)
        self.reserve(size)
        self.view[self.at : self.at + size] = data
        self.at += size

    def copy_from(self, source: Source, start: int, end: int) -> None:
        """Append the bytes [start, end) of a source."""
        while start < end:
            size = min(max(BLOCK, source.least_read), end - start)
            self.reserve(size)
            source.read_into(start, self.view[self.at : self.at + size])
            self.at += size
            start += size

    def tap(self, see: Callable[[memoryview], object]) -> None:
        """Show all bytes to a function in the thread that writes; call this before the first."""
        self._sink = _TappedSink(self._sink, see)

    def settle(self) -> None:
        """Pass on the collected bytes and wait until all of them are written."""
        self._pass_on()
        if self._writer is not None:
            self._writer.wait()

    def flush(self) -> None:
        """Pass the collected bytes to the sink or its thread."""
        if self.at and self._background and self._writer is None:
            self._writer = _Writer(self._sink)
        self._pass_on()

    def _pass_on(self) -> None:
        if not self.at:
            return
        if self._writer is None:
            self._sink.append(self.view[: self.at])
        else:
            self.view = self._writer.swap(self.view, self.at)
            self.size = len(self.view)
        self._written += self.at
        self.at = 0
        if self.progress is not None:
            self.progress(self._written)

    def close(self, *, complete: bool) -> None:
        """End the thread; for a complete file, write the rest and raise an error of the thread."""
        try:
            if complete:
                self._pass_on()
        finally:
            if self._writer is not None:
                self._writer.close(raise_error=complete)


@contextlib.contextmanager
def open_output(
    destination: Destination, source: Source | None, *, overwrite: bool, threads: int | None,
    filesystem: Any = None,
) -> Iterator[Output]:  # fmt: skip
    """Open a destination, published when the block ends without an error.

    A second thread writes if `threads` allows it: by default for files that take longer to write
    than a thread takes to start. modcrypt calls a caller's file object only in the caller's thread.
    `source` is the file that the block reads, if any. Raise as `open_sink`, and ValueError if
    `threads` is below 1 or the destination is a file object on the source.
    """
    check_threads(threads)
    if source is not None:
        check_apart(source, destination)
    is_path = isinstance(destination, str | os.PathLike | Place)
    if threads is None:
        small = source is not None and source.size <= WORTH_A_THREAD
        threads = 1 if small else usable_cores()
    with open_sink(destination, overwrite=overwrite, filesystem=filesystem) as sink:
        output = Output(sink, background=threads > 1 and is_path)
        complete = False
        try:
            yield output
            complete = True
        finally:
            output.close(complete=complete)


def check_apart(source: Source, destination: Destination) -> None:
    """Raise ValueError if the destination is a file object on the source and would overwrite it."""
    if isinstance(destination, str | os.PathLike | Place):
        return
    same = isinstance(source, ObjectSource) and source.file is destination
    with contextlib.suppress(AttributeError, OSError):  # not a file of the operating system
        if not same and isinstance(source, FileSource | ObjectSource):
            fd = source.fd if isinstance(source, FileSource) else source.file.fileno()
            same = os.path.sameopenfile(fd, destination.fileno())
    if same:
        raise ValueError("destination is a file object on the source itself")


class _TappedSink:
    """A sink whose bytes a function sees first."""

    def __init__(self, sink: Sink, see: Callable[[memoryview], object]) -> None:
        self._inner, self._see = sink, see

    def append(self, data: memoryview | bytes) -> None:
        self._see(memoryview(data))
        self._inner.append(data)


class _Writer:
    """A thread that appends full buffers to a sink, in order."""

    _BUFFERS = 3

    def __init__(self, sink: Sink) -> None:
        self._full: queue.SimpleQueue[tuple[memoryview, int] | None] = queue.SimpleQueue()
        self._idle: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._free: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
        for _ in range(self._BUFFERS - 1):
            self._free.put(None)
        self._error: BaseException | None = None
        self._worker = threading.Thread(
            target=self._run, args=(sink,), name="modcrypt-writer", daemon=True
        )
        self._worker.start()

    def _run(self, sink: Sink) -> None:
        while (item := self._full.get()) is not None:
            view, size = item
            if not size:
                self._idle.put(None)
                continue
            if self._error is None:
                try:
                    sink.append(view[:size])
                except BaseException as error:  # raised in the thread that fills the buffers
                    self._error = error
            self._free.put(view)

    def swap(self, view: memoryview, size: int) -> memoryview:
        """Queue a full buffer and return an empty one, possibly of another size."""
        self._full.put((view, size))
        empty = self._free.get()
        if self._error is not None:
            raise self._error
        return memoryview(bytearray(len(view))) if empty is None else empty

    def wait(self) -> None:
        self._full.put((memoryview(b""), 0))
        self._idle.get()
        if self._error is not None:
            raise self._error

    def close(self, *, raise_error: bool) -> None:
        self._full.put(None)
        self._worker.join()
        if raise_error and self._error is not None:
            raise self._error

"""What lies between files and ciphers: a window on the source, buffers on the way out.

Both are allocated once and reused: at the speed of AES, fresh memory is what costs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from modcrypt.fork_safety import fork_safe
from modcrypt.io.storage import (
    Destination,
    FileSource,
    ObjectSource,
    Place,
    Sink,
    Source,
    open_sink,
)

__all__ = [
    "WORTH_A_THREAD",
    "Output",
    "Shared",
    "Threads",
    "Window",
    "check_apart",
    "check_threads",
    "new_bytes",
    "open_output",
    "usable_cores",
]

BLOCK = 1 << 20
"""Bytes moved by one system call: small enough to stay in the processor's cache."""

WORTH_A_THREAD = 8 << 20
"""Source size in bytes above which writing gets a thread of its own."""


class Window:
    """The part of a source that is in memory: `buffer[:stop]` holds the bytes from `base` on.

    One window serves all chunks of a file, so its buffer is allocated once.
    """

    __slots__ = ("_source", "base", "buffer", "stop", "view")

    def __init__(self, source: Source) -> None:
        self._source = source
        self.base = 0
        self.buffer: bytes | bytearray = bytearray() if source.whole is None else source.whole
        self.view = memoryview(self.buffer)
        self.stop = len(self.buffer)

    def fill(self, start: int, need: int, end: int) -> None:
        """Make the source's bytes [start, need) present, reading ahead but not past `end`.

        Raises:
            TruncationError: the source is shorter than it was.
        """
        if self._source.whole is not None:
            return
        have = self.base + self.stop
        if not self.base <= start <= have:
            self.base, self.stop, have = start, 0, start
        if need <= have:
            return
        if need - self.base > len(self.buffer):
            self._move(start, need - start)
        until = min(max(need, min(end, have + self._block())), self.base + len(self.buffer))
        self._source.read_into(have, self.view[self.stop : until - self.base])
        self.stop = until - self.base

    def _block(self) -> int:
        return max(BLOCK, self._source.least_read)

    def _move(self, start: int, size: int) -> None:
        """Put the bytes from `start` on to the front, in a buffer of at least `size` bytes."""
        kept = self.view[start - self.base : self.stop]
        if size > len(self.buffer):
            block = self._block()
            fresh = bytearray(max(block + (block >> 4), size + (size >> 4)))
            fresh[: len(kept)] = kept
            self.buffer, self.view = fresh, memoryview(fresh)
        else:
            self.view[: len(kept)] = bytes(kept)
        self.base, self.stop = start, len(kept)


class Output:
    """Collects what is written in reused buffers; a second thread may do the writing.

    Write at `view[at:]` after `reserve`, then advance `at`; `position` is the file's length so
    far. The thread pays because a page-cache write costs more than AES on the same bytes; it is
    begun when the first buffer is full, so a small file never has one.
    """

    def __init__(self, sink: Sink, *, background: bool) -> None:
        self._sink = sink
        self._written = 0
        self.progress: Callable[[int], None] | None = None
        self.at = 0
        self.view = memoryview(bytearray(BLOCK + (BLOCK >> 3)))
        self._background = background
        self._writer: _Writer | None = None

    @property
    def position(self) -> int:
        """Bytes written so far."""
        return self._written + self.at

    def reserve(self, size: int) -> None:
        """Make room for `size` bytes at `view[at:]`; may change `view` and `at`."""
        if self.at + size <= len(self.view):
            return
        self.flush()
        if size > len(self.view):
            self.view = memoryview(bytearray(size))

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append a copy of `data`."""
        size = len(data)
        self.reserve(size)
        self.view[self.at : self.at + size] = data
        self.at += size

    def copy_from(self, source: Source, start: int, end: int) -> None:
        """Append the source's bytes [start, end) as they are."""
        while start < end:
            size = min(max(BLOCK, source.least_read), end - start)
            self.reserve(size)
            source.read_into(start, self.view[self.at : self.at + size])
            self.at += size
            start += size

    def flush(self) -> None:
        """Hand what is collected to the sink."""
        if self.at and self._background and self._writer is None:
            self._writer = _Writer(self._sink)
        self._hand_over()

    def _hand_over(self) -> None:
        if not self.at:
            return
        if self._writer is None:
            self._sink.append(self.view[: self.at])
        else:
            self.view = self._writer.swap(self.view, self.at)
        self._written += self.at
        self.at = 0
        if self.progress is not None:
            self.progress(self._written)

    def close(self, *, complete: bool) -> None:
        """Write the rest, if the file is complete, and end the thread. An error of it surfaces."""
        try:
            if complete:
                self._hand_over()
        finally:
            if self._writer is not None:
                self._writer.close(raise_error=complete)


@contextlib.contextmanager
def open_output(
    destination: Destination,
    source: Source | None,
    *,
    overwrite: bool,
    threads: int | None,
    filesystem: Any = None,
) -> Iterator[Output]:
    """Open the destination of what is made from `source`, published if the block succeeds.

    Writes go to a second thread when `threads` allows it: by default for files that take longer
    to write than a thread to start. A caller's own file object is only called in its thread.
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


def check_threads(threads: int | None) -> None:
    """Raise a ValueError for fewer threads than one."""
    if threads is not None and threads < 1:
        raise ValueError("threads is at least 1")


def check_apart(source: Source, destination: Destination) -> None:
    """Check that writing leaves the source alone.

    Raises:
        ValueError: the destination is a file object on the source.
    """
    if _same_file(source, destination):
        raise ValueError("the destination is a file object on the source itself")


def _same_file(source: Source, destination: Destination) -> bool:
    """Tell whether writing to a caller's file object would overwrite what is still to be read."""
    if isinstance(destination, str | os.PathLike | Place):
        return False
    if isinstance(source, ObjectSource) and source.file is destination:
        return True
    try:
        if isinstance(source, FileSource):
            return os.path.sameopenfile(source.fd, destination.fileno())
        if isinstance(source, ObjectSource):
            return os.path.sameopenfile(source.file.fileno(), destination.fileno())
        return False
    except (AttributeError, OSError):  # one of them is no file of the system
        return False


class _Writer:
    """Appends full buffers to a sink on a thread of its own, in order."""

    _BUFFERS = 3

    def __init__(self, sink: Sink) -> None:
        self._full: queue.SimpleQueue[tuple[memoryview, int] | None] = queue.SimpleQueue()
        self._free: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
        for _ in range(self._BUFFERS - 1):
            self._free.put(None)
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run, args=(sink,), name="modcrypt-writer", daemon=True
        )
        self._thread.start()

    def _run(self, sink: Sink) -> None:
        while (item := self._full.get()) is not None:
            view, size = item
            if self._error is None:
                try:
                    sink.append(view[:size])
                except BaseException as error:  # handed to the thread that fills the buffers
                    self._error = error
            self._free.put(view)

    def swap(self, view: memoryview, size: int) -> memoryview:
        """Queue a full buffer and give an empty one, perhaps of another size."""
        self._full.put((view, size))
        empty = self._free.get()
        if self._error is not None:
            raise self._error
        return memoryview(bytearray(len(view))) if empty is None else empty

    def close(self, *, raise_error: bool) -> None:
        self._full.put(None)
        self._thread.join()
        if raise_error and self._error is not None:
            raise self._error


class Shared:
    """Resources that several threads use: freed by `close`, or by the last use after it.

    A descriptor freed while it is read from may be another file's by then.
    """

    def __init__(self, resources: contextlib.ExitStack) -> None:
        self._resources = resources
        self._lock = fork_safe(threading.Lock())
        self._uses = 0
        self._closed = False

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        """Keep them for the length of the block.

        Raises:
            ValueError: they are closed.
        """
        with self._lock:
            if self._closed:
                raise ValueError("the file is closed")
            self._uses += 1
        try:
            yield
        finally:
            with self._lock:
                self._uses -= 1
                last = self._closed and not self._uses
            if last:
                self._resources.close()

    def close(self) -> None:
        """Let nobody begin to use them, and free them after the last use."""
        with self._lock:
            last = not self._closed and not self._uses
            self._closed = True
        if last:
            self._resources.close()


_pybytes_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)(
    ("PyBytes_FromStringAndSize", ctypes.pythonapi)
)
_pybytes_place = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(
    ("PyBytes_AsString", ctypes.pythonapi)
)


def new_bytes(size: int) -> tuple[bytes, memoryview]:
    """Make a bytes object that is filled afterwards, as C may do with a new one: without a copy."""
    whole: bytes = _pybytes_new(None, size)
    place = _pybytes_place(whole)
    assert place is not None
    array = (ctypes.c_char * size).from_address(place)
    array.owner = whole  # type: ignore[attr-defined]  # views may outlive an interrupted caller
    return whole, memoryview(array).cast("B")


T = TypeVar("T")


class Threads:
    """A pool of threads, begun when there is work, and anew in a forked process."""

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._lock = fork_safe(threading.Lock())
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._pool = ThreadPoolExecutor(self._count, self._name)

    def submit(self, call: Callable[..., T], *arguments: Any) -> Future[T]:
        """Have a thread call it.

        Raises:
            RuntimeError: the pool is closed.
        """
        with self._lock:
            if self._pid != os.getpid():  # the threads stayed with the parent
                self._begin()
            return self._pool.submit(call, *arguments)

    def close(self) -> None:
        """Wait for what is begun, and end the threads."""
        with contextlib.suppress(RuntimeError):  # one of them calls it: it can't wait for itself
            self._pool.shutdown()


def usable_cores() -> int:
    """Count the processors that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every platform
        return os.cpu_count() or 1

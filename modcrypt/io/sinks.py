"""Append to files and file objects."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable
from typing import IO, Protocol

from modcrypt.io.sources import FileSource, Source
from modcrypt.io.store_errors import add_path_to_errors

_COPY_BUFFER = 8 << 20  # bytes that `copy_range` copies at once


class Sink(Protocol):
    """A file that only grows."""

    def append(self, data: memoryview | bytes) -> None:
        """Write all of `data` at the end."""


class FdSink:
    """Appends to a file descriptor; errors name the destination, not the temporary file."""

    def __init__(self, fd: int, name: str) -> None:
        self.fd, self._name = fd, name

    def append(self, data: memoryview | bytes) -> None:
        """Write all of `data` at the end."""
        view = memoryview(data)
        with add_path_to_errors(self._name):
            while view:
                view = view[os.write(self.fd, view) :]


class ObjectSink:
    """Appends to a writable binary file object."""

    def __init__(
        self, file: IO[bytes], write: Callable[[bytes | memoryview], int | None] | None = None
    ) -> None:
        self._file, self._write = file, write or file.write

    def append(self, data: memoryview | bytes) -> None:
        """Write all of `data` at the end."""
        view = memoryview(data)
        # Only classes derived from `io` promise not to use the view after `write` returns.
        may_keep_view = not isinstance(self._file, io.IOBase)
        while view:
            written = self._write(bytes(view) if may_keep_view else view)
            if written is None and not isinstance(self._file, io.RawIOBase):
                return  # the caller's own class, which does not return a number
            if not written:
                raise BlockingIOError("destination accepts no more bytes at the moment")
            view = view[written:]


def copy_range(source: Source, sink: Sink, start: int, end: int) -> None:
    """Append the bytes [start, end) of a source, copied by the kernel if both are local files."""
    start = _copy_in_kernel(source, sink, start, end)
    buffer = memoryview(bytearray(min(_COPY_BUFFER, end - start)))
    while start < end:
        part = buffer[: end - start]
        source.read_into(start, part)
        sink.append(part)
        start += len(part)


def _copy_in_kernel(source: Source, sink: Sink, start: int, end: int) -> int:
    """Append as much of a range as the kernel can copy; return the offset after it."""
    copy = getattr(os, "copy_file_range", None)  # only on Linux
    if copy is not None and isinstance(source, FileSource) and isinstance(sink, FdSink):
        with contextlib.suppress(OSError):  # not every file system supports it
            while start < end:
                if not (copied := copy(source.fd, sink.fd, end - start, start)):
                    break
                start += copied
    return start

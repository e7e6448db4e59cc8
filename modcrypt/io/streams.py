"""Read a file or pipe once, from start to end."""

from __future__ import annotations

import contextlib
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import IO, Any

from modcrypt.io.addresses import local_path
from modcrypt.io.sources import Source, SourceLike, open_source

_PIPE_READ = 1 << 20
"""Bytes requested from a pipe at once: each read allocates that much."""


class Stream(ABC):
    """A file or pipe that is read once, from start to end."""

    name: str
    size: int | None
    """Length in bytes; None for pipes."""
    source: Source | None = None
    """The source that the stream reads; None for pipes."""

    @abstractmethod
    def readinto(self, view: memoryview) -> int:
        """Fill a buffer with the next bytes and return their number; fewer if the stream has ended.

        Raise BlockingIOError if a non-blocking pipe has no more bytes at the moment.
        """


class SourceStream(Stream):
    """A source, from its start to its end."""

    def __init__(self, source: Source) -> None:
        self.source: Source = source
        self._at = 0
        self.name, self.size = source.name, source.size
        self._window = memoryview(b"")  # bytes of the last request that are not returned yet

    def readinto(self, view: memoryview) -> int:
        """Fill `view` and return the number of bytes."""
        source = self.source
        size = min(len(view), source.size - self._at)
        done = 0
        while done < size:
            if not self._window and source.least_read > size - done:
                length = min(source.least_read, source.size - self._at)
                self._window = memoryview(source.read_at(self._at, length))
            if self._window:
                part = self._window[: size - done]
                view[done : done + len(part)] = part
                self._window = self._window[len(part) :]
            else:
                part = view[done:size]
                source.read_into(self._at, part)
            done += len(part)
            self._at += len(part)
        return done


class PipeStream(Stream):
    """A binary file object that is not seekable, such as a pipe."""

    def __init__(self, file: IO[bytes], name: str | None = None) -> None:
        self._file, self.size = file, None
        self.name = name or str(getattr(file, "name", "<file object>"))

    def readinto(self, view: memoryview) -> int:
        """Fill `view` and return the number of bytes."""
        done = 0
        while done < len(view):
            data = self._file.read(min(len(view) - done, _PIPE_READ))
            if data is None:
                raise BlockingIOError("source has no more bytes at the moment")
            if not data:
                break
            view[done : done + len(data)] = data
            done += len(data)
        return done


@contextlib.contextmanager
def open_stream(source: SourceLike, *, filesystem: Any = None) -> Iterator[Stream]:
    """Open a file, pipe or device to read it once.

    `source` is anything that `open_source` opens, the path of a pipe or character device, or a
    binary file object that is not seekable. Raise TypeError and ValueError as `locate`.
    """
    if filesystem is None and _is_pipe(source):
        if isinstance(source, str | os.PathLike):
            with open(local_path(source) or "", "rb", buffering=0) as pipe:
                yield PipeStream(pipe, os.fspath(source))
        else:
            yield PipeStream(source)  # type: ignore[arg-type]  # it is a file object
        return
    with open_source(source, filesystem=filesystem) as opened:
        yield SourceStream(opened)


def _is_pipe(source: SourceLike) -> bool:
    if isinstance(source, str | os.PathLike):
        with contextlib.suppress(OSError, ValueError):  # opening the source reports the error
            path = local_path(source)
            mode = os.stat(path).st_mode if path is not None else 0
            return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode)
        return False
    if not hasattr(source, "read"):
        return False
    return not (source.seekable() if hasattr(source, "seekable") else hasattr(source, "seek"))

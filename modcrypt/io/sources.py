"""Read files by position, from any thread, wherever they are; or once, as pipes are read."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import IO, Any, TypeAlias

from modcrypt.errors import TruncationError
from modcrypt.io.addresses import local_path
from modcrypt.io.places import Place, Stamp, make_stamp
from modcrypt.io.recorded_writes import check_source
from modcrypt.io.store_errors import add_url_to_errors
from modcrypt.io.stores import is_arrow, locate, open_stored
from modcrypt.runtime.fork_safety import fork_safe

SourceLike: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | IO[bytes]"
"""A path, an fsspec URL (`scheme://...`), bytes in memory, or a seekable binary file object."""


class Source(ABC):
    """Random access to the bytes of one file, from any thread."""

    name: str
    size: int
    whole: bytes | bytearray | None = None
    """The content of the file, if it is in memory already."""
    place: Place | None = None
    """Where the file is, to find the files beside it; None for bytes and file objects."""
    stamp: Stamp | None = None
    """Stamp of the file at the time when it was opened."""
    least_read = 0
    """Minimum number of bytes worth requesting: smaller reads take as long."""
    lends = False
    """True if `lend` returns parts of the file that are in memory."""

    def lend(self, offset: int) -> tuple[int, bytes]:
        """Return the part of the file that contains an offset, and where it begins."""
        raise NotImplementedError

    @abstractmethod
    def read_into(self, offset: int, view: memoryview) -> None:
        """Fill `view` from `offset`; raise TruncationError if the file has become shorter."""

    def read_at(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes; raise as `read_into`."""
        out = bytearray(length)
        self.read_into(offset, memoryview(out))
        return bytes(out)

    def _truncation_error(self, offset: int) -> TruncationError:
        return TruncationError(f"{self.name}: ended at byte {offset} while being read")


class FileSource(Source):
    """A local file, read by pread into reused buffers.

    That is faster than mapping the file (no page faults), and a concurrent truncation raises an
    error instead of a SIGBUS.
    """

    def __init__(self, path: str) -> None:
        self.name = path
        # O_NONBLOCK: don't wait for a writer if the path is a named pipe. Files ignore the flag.
        flags = os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
        self.fd = os.open(path, flags)
        status = os.fstat(self.fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(self.fd)
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, "is a folder; name a file in it", path)
            raise OSError(errno.EINVAL, "not a regular file", path)
        self.size = status.st_size
        self.stamp = make_stamp(status)

    def read_at(self, offset: int, length: int) -> bytes:
        """Return `length` bytes, which the kernel writes where they stay."""
        data = os.pread(self.fd, length, offset)
        return data if len(data) == length else super().read_at(offset, length)

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fill `view` from `offset`."""
        done = 0
        while done < len(view):
            if (n := os.preadv(self.fd, [view[done:]], offset + done)) == 0:
                raise self._truncation_error(offset + done)
            done += n

    def close(self) -> None:
        """Close the file."""
        os.close(self.fd)


class MemorySource(Source):
    """Bytes in memory."""

    def __init__(self, data: bytes | bytearray | memoryview, name: str = "<bytes>") -> None:
        self.name = name
        self.view = memoryview(data).cast("B")
        self.size = len(self.view)
        self.whole = None if isinstance(data, memoryview) else data

    def read_at(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes, copied once."""
        data = bytes(self.view[offset : offset + length])
        return data if len(data) == length else super().read_at(offset, length)

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fill `view` from `offset`."""
        part = self.view[offset : offset + len(view)]
        if len(part) < len(view):
            raise self._truncation_error(offset + len(part))
        view[:] = part


class ExtendedSource(Source):
    """A source followed by more bytes."""

    def __init__(self, source: Source, more: bytes) -> None:
        self.name, self.size = source.name, source.size + len(more)
        self.least_read = source.least_read
        self._source, self._more = source, MemorySource(more)

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fill `view` from `offset`; the range must not cross the end of the source."""
        border = self._source.size
        if offset < border:
            self._source.read_into(offset, view)
        else:
            self._more.read_into(offset - border, view)


class ObjectSource(Source):
    """A seekable binary file object; reading changes its position."""

    def __init__(self, file: IO[bytes], name: str | None = None) -> None:
        self.file = file
        self._lock = fork_safe(threading.Lock())  # all threads share the file's cursor
        self.name = name or str(getattr(file, "name", "<file object>"))
        file.seek(0, os.SEEK_END)
        self.size = file.tell()

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fill `view` from `offset`."""
        if offset + len(view) > self.size:  # some objects cannot even seek there
            raise self._truncation_error(self.size)
        with self._lock:
            self.file.seek(offset)
            done = 0
            while done < len(view):
                if not (data := self.file.read(len(view) - done)):
                    raise self._truncation_error(offset + done)
                view[done : done + len(data)] = data
                done += len(data)


class RangeSource(Source):
    """An object in a store: each read is one request for exactly its bytes."""

    least_read = 8 << 20  # a request takes as long as the transfer of some megabytes

    def __init__(self, fetch: Callable[[int, int], bytes], size: int, name: str) -> None:
        self._fetch, self.size, self.name = fetch, size, name

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fill `view` from `offset`."""
        view[:] = self.read_at(offset, len(view))

    def read_at(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes from `offset`."""
        end = offset + length
        if end > self.size:
            raise self._truncation_error(self.size)
        data = self._fetch(offset, end) if length else b""
        if len(data) < length:
            raise self._truncation_error(offset + len(data))
        return data


def open_source(
    source: SourceLike, *, filesystem: Any = None
) -> contextlib.AbstractContextManager[Source]:
    """Open a source for positional reads; close it at the end unless the caller opened it.

    Raise TypeError and ValueError as `locate`.
    """
    if filesystem is not None or isinstance(source, str | os.PathLike):
        place = Place(*locate(source, filesystem))
        name = os.fspath(source)  # type: ignore[arg-type]  # locate accepts only paths
        return open_source_at(place, name, stamped=False)
    if isinstance(source, bytes | bytearray | memoryview):
        return contextlib.nullcontext(MemorySource(source))
    is_text = isinstance(source, io.TextIOBase)
    if hasattr(source, "read") and hasattr(source, "seek") and not is_text:
        return contextlib.nullcontext(ObjectSource(source))
    try:
        view = memoryview(source)  # type: ignore[arg-type]  # or it is no buffer
    except TypeError:
        raise TypeError(
            "a source is a path, a URL, bytes or a seekable binary file object, not "
            f"{type(source).__name__}"
        ) from None
    return contextlib.nullcontext(MemorySource(view))


@contextlib.contextmanager
def open_source_at(
    place: Place, name: str | None = None, *, stamped: bool = True
) -> Iterator[Source]:
    """Open a file for positional reads; messages call it `name`, or by its path.

    Without `stamped`, which saves a request to a store, the source has no stamp.
    """
    opened: contextlib.AbstractContextManager[Source]
    stamp = None if place.filesystem is None or not stamped else place.stamp()
    if place.filesystem is None:
        opened = contextlib.closing(FileSource(place.path))
    else:
        opened = _open_remote(place.filesystem, place.path, name or place.address)
    with opened as source:
        source.place = place
        source.stamp = source.stamp or stamp
        check_source(place, source)
        yield source


@contextlib.contextmanager
def _open_remote(filesystem: Any, path: str, name: str) -> Iterator[Source]:
    add_url = add_url_to_errors(filesystem, path)
    if is_arrow(filesystem):
        with add_url(filesystem.open_input_file)(path) as file:
            read, size = add_url(file.read_at), add_url(file.size)()
            yield RangeSource(lambda start, end: read(end - start, start), size, name)
        return
    # An open file rather than `cat_file`: it makes s3fs insist, at every read, on the version that
    # it found first.
    with add_url(open_stored)(filesystem, path) as file:
        fetch = _uncached_fetch(filesystem, file)
        if isinstance(file, io.BytesIO):  # fsspec's memory files share one cursor between openers
            yield MemorySource(file.getvalue(), name)
        elif fetch is None:
            yield ObjectSource(file, name)
        else:
            yield RangeSource(add_url(fetch), file.size, name)


def _uncached_fetch(filesystem: Any, file: Any) -> Callable[[int, int], bytes] | None:
    """Return the method of an fsspec file that bypasses its cache, which may read 50 MB ahead."""
    # Only for asynchronous file systems: their requests run on a loop of their own, so that any
    # thread may make them, while others (FTP) have one connection. Not for file systems that cache
    # on purpose: only their type shows that they are not the file system below.
    asynchronous = getattr(type(filesystem), "async_impl", False)
    below = getattr(file, "fs", None)
    if asynchronous and getattr(below, "async_impl", False) and file.size is not None:
        return getattr(file, "_fetch_range", None)
    return None


_PIPE_READ = 1 << 20  # bytes requested from a pipe at once: each read allocates that much


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
            if (data := self._file.read(min(len(view) - done, _PIPE_READ))) is None:
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

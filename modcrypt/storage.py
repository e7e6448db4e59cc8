"""Where bytes come from and go to: positional sources, append-only sinks, atomic publishing.

A source is read by position, never by a shared cursor; a sink only grows. A destination given
as a path appears complete or not at all: temporary file beside it, fsync, rename.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import secrets
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import IO, Any, Protocol, TypeAlias

from modcrypt.errors import TruncationError

__all__ = [
    "Destination",
    "FileSource",
    "MemorySource",
    "ObjectSource",
    "Sink",
    "Source",
    "SourceLike",
    "open_sink",
    "open_source",
]

SourceLike: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | IO[bytes]"
"""A path, an fsspec URL (`scheme://...`), bytes in memory, or a seekable binary file object."""

Destination: TypeAlias = "str | os.PathLike[str] | IO[bytes]"
"""A path, an fsspec URL, or a writable binary file object."""


class Source(ABC):
    """Random access to the bytes of one file."""

    name: str
    size: int
    whole: bytes | bytearray | None = None
    """The file itself, where it is in memory already."""

    @abstractmethod
    def read_into(self, offset: int, view: memoryview) -> None:
        """Fill `view` from `offset`.

        Raises:
            TruncationError: the file is shorter than it was.
        """

    def read_at(self, offset: int, length: int) -> bytes:
        """Give exactly `length` bytes from `offset`; raises as `read_into`."""
        out = bytearray(length)
        self.read_into(offset, memoryview(out))
        return bytes(out)

    def _short(self, offset: int) -> TruncationError:
        return TruncationError(f"{self.name}: ended at byte {offset} while being read")


class Sink(Protocol):
    """Grows by `append`."""

    def append(self, data: memoryview | bytes) -> None:
        """Write all of `data` at the end."""


# --- sources -------------------------------------------------------------------------------


class FileSource(Source):
    """A local file, read by pread into buffers that are reused.

    That beats mapping it (no page faults), and a file that someone truncates meanwhile is an
    error instead of a SIGBUS.
    """

    def __init__(self, path: str) -> None:
        self.name = path
        self.fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        status = os.fstat(self.fd)
        if stat.S_ISDIR(status.st_mode):
            os.close(self.fd)
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(status.st_mode):
            os.close(self.fd)
            raise OSError(errno.EINVAL, "the source is no regular file", path)
        self.size = status.st_size

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fill `view` from `offset`."""
        done = 0
        while done < len(view):
            n = os.preadv(self.fd, [view[done:]], offset + done)
            if n == 0:
                raise self._short(offset + done)
            done += n

    def close(self) -> None:
        """Close the file."""
        os.close(self.fd)


class MemorySource(Source):
    """Bytes in memory."""

    name = "<bytes>"

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._view = memoryview(data).cast("B")
        self.size = len(self._view)
        self.whole = None if isinstance(data, memoryview) else data

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fill `view` from `offset`."""
        part = self._view[offset : offset + len(view)]
        if len(part) < len(view):
            raise self._short(offset + len(part))
        view[:] = part


class ObjectSource(Source):
    """A seekable binary file object; its position is not kept."""

    def __init__(self, file: IO[bytes], name: str | None = None) -> None:
        self.file = file
        self.name = name or str(getattr(file, "name", "<file object>"))
        file.seek(0, os.SEEK_END)
        self.size = file.tell()

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fill `view` from `offset`."""
        self.file.seek(offset)
        done = 0
        while done < len(view):
            data = self.file.read(len(view) - done)
            if not data:
                raise self._short(offset + done)
            view[done : done + len(data)] = data
            done += len(data)


_URL = re.compile(r"(?:[a-z][a-z0-9+.-]*::)*[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_LOCAL_URL = re.compile(r"(?:file|local)://", re.IGNORECASE)


def _local_path(where: str | os.PathLike[str]) -> str | None:
    """Give the local path that is meant; None for a URL of fsspec, which only a str can be."""
    if not isinstance(where, str):
        return os.fspath(where)
    if match := _LOCAL_URL.match(where):
        return where[match.end() :]
    return None if _URL.match(where) else where


def _fsspec(url: str) -> Any:
    try:
        import fsspec
    except ImportError:
        raise ValueError(
            f"{url}: reading and writing URLs needs fsspec: pip install fsspec"
        ) from None
    return fsspec


@contextlib.contextmanager
def open_source(source: SourceLike) -> Iterator[Source]:
    """Open a source for positional reads and close what was opened here."""
    if isinstance(source, bytes | bytearray | memoryview):
        yield MemorySource(source)
    elif isinstance(source, str | os.PathLike):
        path = _local_path(source)
        if path is None:
            url = os.fspath(source)
            with _fsspec(url).open(url, "rb") as opened:
                yield ObjectSource(opened, url)
            return
        file = FileSource(path)
        try:
            yield file
        finally:
            file.close()
    elif hasattr(source, "read") and hasattr(source, "seek"):
        yield ObjectSource(source)
    else:
        try:
            view = memoryview(source)  # type: ignore[arg-type]  # whatever has a buffer
        except TypeError:
            raise TypeError(
                "a source is a path, a URL, bytes or a seekable binary file object, not "
                f"{type(source).__name__}"
            ) from None
        yield MemorySource(view)


# --- sinks ---------------------------------------------------------------------------------


class FdSink:
    """Appends to a file descriptor; an error names the destination, not the temporary file."""

    def __init__(self, fd: int, name: str) -> None:
        self._fd, self._name = fd, name

    def append(self, data: memoryview | bytes) -> None:
        view = memoryview(data)
        with _naming(self._name):
            while view:
                view = view[os.write(self._fd, view) :]


@contextlib.contextmanager
def _naming(where: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, where) from error


class ObjectSink:
    """Appends to a writable binary file object."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def append(self, data: memoryview | bytes) -> None:
        view = memoryview(data)
        while view:
            # Buffered objects may keep the view they are given: hand them bytes of their own.
            written = self._file.write(bytes(view))
            if written is None and not isinstance(self._file, io.RawIOBase):
                return  # a writer of someone's own, which says nothing of its success
            if not written:
                raise BlockingIOError("the destination takes no more bytes at the moment")
            view = view[written:]


@contextlib.contextmanager
def open_sink(destination: Destination, *, overwrite: bool) -> Iterator[Sink]:
    """Open a sink; a path or URL is published when the block ends without an error.

    Raises:
        FileExistsError: the path exists and `overwrite` is False.
    """
    if not isinstance(destination, str | os.PathLike):
        if not hasattr(destination, "write"):
            raise TypeError(
                "a destination is a path, a URL or a writable binary file object, not "
                f"{type(destination).__name__}"
            )
        yield ObjectSink(destination)
        return
    path = _local_path(destination)
    sink = (
        _url_sink(os.fspath(destination), overwrite)
        if path is None
        else _path_sink(path, overwrite)
    )
    with sink as opened:
        yield opened


def _exists(where: str) -> FileExistsError:
    return FileExistsError(
        errno.EEXIST, "the destination exists; it is only replaced on request", where
    )


@contextlib.contextmanager
def _path_sink(where: str, overwrite: bool) -> Iterator[Sink]:
    target = os.path.realpath(where)  # a symbolic link keeps pointing at what we write
    if not overwrite and os.path.lexists(where):
        raise _exists(where)
    if os.path.isdir(target):
        raise IsADirectoryError(errno.EISDIR, "the destination is a directory", where)
    if os.path.exists(target) and not os.path.isfile(target):
        raise OSError(errno.EINVAL, "the destination is no regular file", where)
    folder = os.path.dirname(target)
    temporary = os.path.join(folder, _temporary_name())
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
    with _naming(where):
        fd = os.open(temporary, flags, 0o666)
    try:
        try:
            with contextlib.suppress(FileNotFoundError):  # who replaces a private file keeps it so
                os.fchmod(fd, stat.S_IMODE(os.stat(target).st_mode))
            yield FdSink(fd, where)
            with _naming(where):
                os.fsync(fd)
        finally:
            os.close(fd)
        with _naming(where):
            _publish(temporary, target, overwrite)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    _fsync_folder(folder)


def _temporary_name() -> str:
    return f".modcrypt-{secrets.token_hex(8)}.tmp"


def _publish(temporary: str, target: str, overwrite: bool) -> None:
    if overwrite:
        os.replace(temporary, target)
        return
    try:
        os.link(temporary, target)  # unlike rename, refuses a file that appeared meanwhile
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        if os.path.lexists(target):  # no hard links on this file system: look, then rename
            raise _exists(target) from None
        os.replace(temporary, target)
    else:
        os.unlink(temporary)


def _fsync_folder(folder: str) -> None:
    """Make the new name durable where the folder may be opened and synced.

    The file is published by now: a folder that can't be synced is no reason to call it a failure.
    """
    with contextlib.suppress(OSError):
        fd = os.open(folder or ".", os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


# Object stores make an object appear by one last request, which `autocommit=False` holds back.
_COMMITTING = frozenset({"s3", "s3a", "gs", "gcs"})


@contextlib.contextmanager
def _url_sink(url: str, overwrite: bool) -> Iterator[Sink]:
    filesystem, path = _fsspec(url).core.url_to_fs(url)
    if not overwrite and filesystem.exists(path):
        raise _exists(url)
    protocol = filesystem.protocol
    protocols = {protocol} if isinstance(protocol, str) else set(protocol)
    if protocols & _COMMITTING:
        file = filesystem.open(path, "wb", autocommit=False)
        publish, withdraw = file.commit, file.discard
    else:
        temporary = f"{filesystem._parent(path)}/{_temporary_name()}"
        file = filesystem.open(temporary, "wb")

        def publish() -> None:
            filesystem.mv(temporary, path)

        def withdraw() -> None:
            filesystem.rm_file(temporary)

    try:
        with file:
            yield ObjectSink(file)
        publish()
    except BaseException:
        withdraw()
        raise

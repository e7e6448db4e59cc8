"""Where bytes come from and go to: positional sources, append-only sinks, atomic publishing.

A source is read by position, never by a shared cursor, and from any thread; a sink only grows. A
destination given as a path appears complete or not at all: temporary file beside it, fsync,
rename. In a store it appears by the one request that completes its upload or moves it there.

File systems are those of pyarrow and of fsspec, told apart by what they can do. What they say is
local is read and written here; no URL is opened but the caller's.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import posixpath
import re
import secrets
import stat
import threading
import urllib.parse
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any, Protocol, TypeAlias

from modcrypt.errors import MAX_MESSAGE, TruncationError, printable
from modcrypt.fork_safety import fork_safe

__all__ = [
    "Destination",
    "FileSource",
    "MemorySource",
    "ObjectSource",
    "Place",
    "RangeSource",
    "Root",
    "Sink",
    "Source",
    "SourceLike",
    "Stream",
    "copy_range",
    "fsync_folder",
    "local_path",
    "locate",
    "naming",
    "naming_store",
    "open_sink",
    "open_source",
    "open_stream",
    "place_of",
    "publish",
]

SourceLike: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | IO[bytes]"
"""A path, an fsspec URL (`scheme://...`), bytes in memory, or a seekable binary file object."""

Destination: TypeAlias = "str | os.PathLike[str] | IO[bytes] | Place"
"""A path, an fsspec URL, or a writable binary file object; within modcrypt a `Place`, too."""


Root: TypeAlias = "str | os.PathLike[str] | Place"
"""A folder: a place, a URL, or a path in the file system that its files are in."""


class Source(ABC):
    """Random access to the bytes of one file, from any thread."""

    name: str
    size: int
    whole: bytes | bytearray | None = None
    """The file itself, where it is in memory already."""
    place: Place | None = None
    """Where it is, for what lies beside it; None for bytes and file objects."""
    stamp: tuple[int | str, ...] | None = None
    """What differs when the file is another one, as it was when it was opened."""
    least_read = 0
    """Bytes worth asking for at once, where a small read takes as long as a large one."""

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


# --- places --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """A path in a file system; None is the local one.

    Attributes:
        filesystem: File system of PyArrow or fsspec.
        path: Path in it.
        root: Folder that the caller named, where `path` was found or composed below it; None for a
            file named by itself. Writing and removing follow no symbolic link below `root`: anyone
            who may write there could point a link at files that only the process running modcrypt
            may change.
    """

    filesystem: Any
    path: str
    root: str | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return posixpath.basename(self.path)

    def inside(self, root: Root) -> str | None:
        """Return the path relative to a folder; None if it is not inside, or is the folder itself.

        Links inside the folder are not followed: one to a file is a file of it. The folder itself
        may be spelled in two ways, as by a link that leads to it.
        """
        if not isinstance(root, Place):
            is_url = isinstance(root, str) and _URL.match(root)
            root = Place(*locate(root, None if is_url else self.filesystem))
        base, path = (f"{one._spelling}/".lstrip("/") for one in (root, self))
        if not _is_same_store(root.filesystem, self.filesystem):
            return None
        if not path.startswith(base) and self.filesystem is None:
            base = _prefix_leading_to(root.path, path)
        return path[len(base) : -1] if path.startswith(base) and path != base else None

    @property
    def _spelling(self) -> str:
        """The path, absolute. In a store, any name between slashes is part of the key."""
        path = os.path.abspath(self.path) if self.filesystem is None else self.path
        return path.strip("/")

    def beside(self, name: str) -> Place:
        """Give the place of another file in the same folder."""
        path = posixpath.join(posixpath.dirname(self.path), name)
        return Place(self.filesystem, path, self.root)

    def below(self, inside: str) -> Place:
        """Return the place of a file below this folder; links in `inside` are not written through.

        Args:
            inside: Relative path, which may come from a file: `..` in it is refused on use.
        """
        root = self.path if self.root is None else self.root
        return Place(self.filesystem, posixpath.join(self.path, inside), root)

    def real(self) -> Place:
        """Return the place that symbolic links lead to; outside the root it is read-only."""
        if self.filesystem is not None:
            return self
        root = None if self.root is None else os.path.realpath(self.root)
        return Place(None, os.path.realpath(self.path), root)

    @property
    def is_linked(self) -> bool:
        """True if a symbolic link lies below the root on the way, so that `create` refuses it."""
        real = self.real()
        if real.filesystem is not None or real.root is None:
            return False
        return real.path != os.path.join(real.root, *_names_below(self))

    def check_writable(self) -> None:
        """Raise if `create` would refuse the place; `create` checks again, safe from races.

        Raises:
            OSError: with ELOOP, there is a symbolic link below the root.
        """
        if self.is_linked:
            raise _linked(self)

    def check_absent(self) -> None:
        """Refuse what is there already, as far as a look can tell: publishing looks again.

        Raises:
            FileExistsError: it is.
        """
        if self.filesystem is None and os.path.lexists(self.path):
            raise _exists(self.path)

    @contextlib.contextmanager
    def open(self) -> Iterator[Source]:
        """Open the file there as a source."""
        stamp = None if self.filesystem is None else self.stamp()
        with _stored_source(self.filesystem, self.path, self.path) as source:
            source.place = self
            source.stamp = source.stamp or stamp
            yield source

    def create(
        self, *, overwrite: bool = True, check: Callable[[], object] | None = None
    ) -> AbstractContextManager[Sink]:
        """Open a sink that is published there when the block ends without an error.

        Args:
            overwrite: Whether to replace what is there.
            check: called last before that, and may raise.

        Raises:
            FileExistsError: the path exists and `overwrite` is False.
            OSError: from the file system; ELOOP if there is a symbolic link below `root`.
        """
        if self.filesystem is None:
            return _path_sink(self, overwrite, check)
        return _checked_sink(_stored_sink(self.filesystem, self.path, self.path, overwrite), check)

    def make_folder(self) -> None:
        """Make the folders above a local file.

        Raises:
            OSError: from the file system; ELOOP if there is a symbolic link below `root`.
        """
        if self.filesystem is None:
            with _open_folder(self, make=True):
                pass

    def remove(self) -> None:
        """Remove the file there, if there is one; of a symbolic link, the link.

        Raises:
            OSError: from the file system; ELOOP if there is a symbolic link below `root` above it.
        """
        with contextlib.suppress(FileNotFoundError), naming_store(self.filesystem, self.path):
            if self.filesystem is None:
                with _open_folder(self) as (fd, name):
                    os.unlink(name, **_within(fd))
            elif _is_arrow(self.filesystem):
                self.filesystem.delete_file(self.path)
            else:
                self.filesystem.rm_file(self.path)

    @property
    def full_name(self) -> str:
        """The path, absolute, or in a store its URL: one spelling, whatever the caller typed."""
        if self.filesystem is None:
            return os.path.abspath(self.path)
        if _URL.match(self.path):  # fsspec's HTTP keeps the URL for a path
            return self.path
        protocol = getattr(self.filesystem, "type_name", None) or self.filesystem.protocol
        first = protocol if isinstance(protocol, str) else protocol[0]
        return f"{first}://{self.path.lstrip('/')}"

    def stamp(self) -> tuple[int | str, ...] | None:
        """Give what differs when the file is another one; None where there is none."""
        with contextlib.suppress(Exception):  # not there, a name that is too long, a store's own
            if self.filesystem is None:
                return _stamp(os.stat(self.path))
            if _is_arrow(self.filesystem):
                info = self.filesystem.get_file_info(self.path)
                return (info.size, info.mtime_ns) if info.is_file else None
            told = self.filesystem.info(self.path)
            names = ("size", "ETag", "etag", "mtime", "LastModified", "created")
            return tuple(str(told[name]) for name in names if name in told)
        return None

    def check_still(self, source: Source) -> None:
        """Check that the file there is the one that was opened, by size and time of change.

        Raises:
            OSError: it is another one by now.
        """
        if source.stamp is not None and self.stamp() != source.stamp:
            raise OSError(
                errno.ESTALE, "the file was changed by somebody else meanwhile", self.path
            )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep out whoever else locks a file of the same folder; in a store nobody is kept out."""
        if self.filesystem is not None:
            yield
            return
        fd = os.open(os.path.dirname(self.path) or ".", os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        try:
            with contextlib.suppress(OSError):  # of file systems without locks
                fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)  # for the copy in a process forked meanwhile, too
            os.close(fd)


# --- folders without links -----------------------------------------------------------------

_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | getattr(os, "O_CLOEXEC", 0)


@contextlib.contextmanager
def _open_folder(place: Place, *, make: bool = False) -> Iterator[tuple[int | None, str]]:
    """Open the folder of a local file, one by one those below the root, following no link.

    What is done by the descriptor stays in that folder, even if a link takes its place just then.

    Yields:
        The folder's descriptor, and the file's name in it. None and the path, if there is no root,
        or no folder below it.

    Raises:
        OSError: from the file system; ELOOP for a symbolic link below the root.
    """
    top = os.path.dirname(place.path) if place.root is None else place.root
    if make:
        os.makedirs(top or ".", exist_ok=True)
    *folders, name = _names_below(place) if place.root is not None else [place.path]
    if not folders:
        yield None, place.path
        return
    fd = os.open(top or ".", _FOLDER)
    try:
        for folder in folders:
            with naming(place.path):
                below = _open_below(fd, folder, place, make)
            os.close(fd)
            fd = below
        yield fd, name
    finally:
        os.close(fd)


def _within(at: int | None) -> dict[str, int]:
    """Return the argument that makes a name one in an open folder; none for a path."""
    return {} if at is None else {"dir_fd": at}


def _names_below(place: Place) -> list[str]:
    """Split the path below the root into names.

    Raises:
        OSError: it is not below the root.
    """
    root = posixpath.join(place.root or "", "")  # with a slash at its end, but for none
    inside = place.path.removeprefix(root)
    names = [name for name in inside.split("/") if name not in ("", ".")]
    if not place.path.startswith(root) or not names or ".." in names:
        raise OSError(errno.EINVAL, f"the path is not below {place.root}", place.path)
    return names


def _open_below(fd: int, folder: str, place: Place, make: bool) -> int:
    """Open a folder in another one, unless it is a link."""
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, dir_fd=fd)
    try:
        return os.open(folder, _FOLDER | os.O_NOFOLLOW, dir_fd=fd)
    except OSError as error:  # systems differ in what they say of a link
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        if stat.S_ISLNK(os.stat(folder, dir_fd=fd, follow_symlinks=False).st_mode):
            raise _linked(place) from None
        raise


def _linked(place: Place) -> OSError:
    return OSError(
        errno.ELOOP,
        f"nothing is written or removed through a symbolic link below {place.root}; "
        "name what the link leads to instead",
        place.path,
    )


def _stamp(status: os.stat_result) -> tuple[int | str, ...]:
    return status.st_ino, status.st_size, status.st_mtime_ns


def place_of(where: Any, filesystem: Any = None) -> Place | None:
    """Find the place that a source or destination names; None for bytes and file objects.

    Raises:
        TypeError, ValueError: as `locate`.
    """
    if isinstance(where, Place):
        return where
    if filesystem is None and not isinstance(where, str | os.PathLike):
        return None
    return Place(*locate(where, filesystem))


# --- sources -------------------------------------------------------------------------------


class FileSource(Source):
    """A local file, read by pread into buffers that are reused.

    That beats mapping it (no page faults), and a file that someone truncates meanwhile is an
    error instead of a SIGBUS.
    """

    def __init__(self, path: str) -> None:
        self.name = path
        # Not waiting for the other end of a named pipe, which is no source; files never wait.
        flags = os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
        self.fd = os.open(path, flags)
        status = os.fstat(self.fd)
        if stat.S_ISDIR(status.st_mode):
            os.close(self.fd)
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(status.st_mode):
            os.close(self.fd)
            raise OSError(errno.EINVAL, "source is not a regular file", path)
        self.size = status.st_size
        self.stamp = _stamp(status)  # as it was when it was opened

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

    def __init__(self, data: bytes | bytearray | memoryview, name: str = "<bytes>") -> None:
        self.name = name
        self.view = memoryview(data).cast("B")
        self.size = len(self.view)
        self.whole = None if isinstance(data, memoryview) else data

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fill `view` from `offset`."""
        part = self.view[offset : offset + len(view)]
        if len(part) < len(view):
            raise self._short(offset + len(part))
        view[:] = part


class ObjectSource(Source):
    """A seekable binary file object; its position is not kept."""

    def __init__(self, file: IO[bytes], name: str | None = None) -> None:
        self.file = file
        self._lock = fork_safe(threading.Lock())  # there is one cursor for all threads
        self.name = name or str(getattr(file, "name", "<file object>"))
        file.seek(0, os.SEEK_END)
        self.size = file.tell()

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fill `view` from `offset`."""
        if offset + len(view) > self.size:  # some objects don't even seek there
            raise self._short(self.size)
        with self._lock:
            self.file.seek(offset)
            done = 0
            while done < len(view):
                data = self.file.read(len(view) - done)
                if not data:
                    raise self._short(offset + done)
                view[done : done + len(data)] = data
                done += len(data)


class RangeSource(Source):
    """An object in a store: each read is one request, for just its bytes."""

    least_read = 8 << 20  # a request takes as long as some megabytes

    def __init__(self, fetch: Callable[[int, int], bytes], size: int, name: str) -> None:
        self._fetch, self.size, self.name = fetch, size, name

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fill `view` from `offset`."""
        view[:] = self.read_at(offset, len(view))

    def read_at(self, offset: int, length: int) -> bytes:
        """Give exactly `length` bytes from `offset`; raises as `read_into`."""
        end = offset + length
        if end > self.size:
            raise self._short(self.size)
        data = self._fetch(offset, end) if length else b""
        if len(data) < length:
            raise self._short(offset + len(data))
        return data


_COPIED = 8 << 20  # bytes at once


def copy_range(source: Source, sink: Sink, start: int, end: int) -> None:
    """Append a source's bytes [start, end) as they are, by the kernel where both are local files.

    Raises:
        TruncationError: the source is shorter than it was.
        OSError: from the file system.
    """
    copy = getattr(os, "copy_file_range", None)  # Linux has it
    if copy is not None and isinstance(source, FileSource) and isinstance(sink, FdSink):
        with contextlib.suppress(OSError):  # of file systems that can't: the loop goes on
            while start < end:
                copied = copy(source.fd, sink.fd, end - start, start)
                if not copied:
                    break
                start += copied
    buffer = memoryview(bytearray(min(_COPIED, end - start)))
    while start < end:
        part = buffer[: end - start]
        source.read_into(start, part)
        sink.append(part)
        start += len(part)


# --- streams -------------------------------------------------------------------------------


class Stream(ABC):
    """What is read once from start to end."""

    name: str
    size: int | None
    """Bytes in all, None where only the end will tell."""
    source: Source | None = None
    """What it comes from, where that is no pipe."""

    @abstractmethod
    def readinto(self, view: memoryview) -> int:
        """Fill `view`; fewer bytes than it has are the last ones. Give their number."""


class SourceStream(Stream):
    """A source, from its start to its end."""

    def __init__(self, source: Source) -> None:
        self.source: Source = source
        self._at = 0
        self.name, self.size = source.name, source.size
        self._window = memoryview(b"")  # what a store's request brought and is not given out yet

    def readinto(self, view: memoryview) -> int:
        """Fill `view`."""
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


_PIPE_READ = 1 << 20  # bytes asked of a pipe at once: it makes them anew each time


class PipeStream(Stream):
    """A binary file object that can't be sought, such as a pipe."""

    def __init__(self, file: IO[bytes], name: str | None = None) -> None:
        self._file, self.size = file, None
        self.name = name or str(getattr(file, "name", "<file object>"))

    def readinto(self, view: memoryview) -> int:
        """Fill `view`."""
        done = 0
        while done < len(view):
            data = self._file.read(min(len(view) - done, _PIPE_READ))
            if data is None:
                raise BlockingIOError("the source has no more bytes at the moment")
            if not data:
                break
            view[done : done + len(data)] = data
            done += len(data)
        return done


@contextlib.contextmanager
def open_stream(source: SourceLike, *, filesystem: Any = None) -> Iterator[Stream]:
    """Open what `open_source` opens, and pipes and devices too, to be read once.

    Raises as `open_source`.
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
        with contextlib.suppress(OSError, ValueError):  # opening it will say what is wrong
            path = local_path(source)
            mode = os.stat(path).st_mode if path is not None else 0
            return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode)
        return False
    if not hasattr(source, "read"):
        return False
    return not (source.seekable() if hasattr(source, "seekable") else hasattr(source, "seek"))


# --- which file system ---------------------------------------------------------------------

_SCHEME = r"[a-z][a-z0-9+.-]*"
_URL = re.compile(rf"(?:{_SCHEME}::)*{_SCHEME}://|(?:{_SCHEME}::)+/", re.IGNORECASE)
_LOCAL_URL = re.compile(r"(file|local)://", re.IGNORECASE)
_ONE_SLASH = re.compile(r"^([a-z][a-z0-9+.-]+):/(?!/)", re.IGNORECASE)
"""How Hadoop and Spark spell a URL that names no host (`file:/x`, `dbfs:/x`). The scheme has at
least two letters, as nobody registers shorter ones."""


def local_path(where: str | os.PathLike[str]) -> str | None:
    """Return the local path that is meant, or None for a URL of fsspec, which only a str can be.

    This alone decides what is local. A relative path whose first folder is named like a scheme
    (`name:/file`) has to begin with `./`.

    Raises:
        ValueError: A file URL has no absolute path.
    """
    if not isinstance(where, str):
        return os.fspath(where)
    if re.match("file:(?!/)", where, re.IGNORECASE):
        raise ValueError(f"{where}: a file URL needs an absolute path, as in file:///folder/file")
    where = _with_authority(where)
    if match := _LOCAL_URL.match(where):
        path = where[match.end() :]
        # A file URI is percent-encoded (RFC 8089): so pathlib writes and pyarrow reads it, though
        # fsspec does not. `local:` is fsspec's alone, and taken as fsspec takes it.
        return _unquoted(path) if match[1].lower() == "file" else path
    return None if _URL.match(where) else where


def _with_authority(url: str) -> str:
    """Spell a URL with one slash as fsspec does, with an empty authority (RFC 3986, 3.2)."""
    return _ONE_SLASH.sub(r"\1:///", url)


def _unquoted(path: str) -> str:
    return os.fsdecode(urllib.parse.unquote_to_bytes(os.fsencode(path)))


def _fsspec(url: str) -> Any:
    try:
        import fsspec
    except ImportError:
        raise ValueError(
            f"{url}: reading and writing URLs needs fsspec: pip install fsspec"
        ) from None
    return fsspec


def locate(where: Any, filesystem: Any) -> tuple[Any, str]:
    """Find the file system that is meant, None for the local one, and the path in it.

    Raises:
        TypeError: `where` is no path, or `filesystem` no file system.
        ValueError: a URL, and fsspec is not installed or does not know it; or as `local_path`.
    """
    if filesystem is not None:
        path = os.fspath(where) if isinstance(where, str | os.PathLike) else None
        if not isinstance(path, str):
            raise TypeError(f"with a filesystem, give a path in it, not {type(where).__name__}")
        return _unwrap(filesystem, path)
    local = local_path(where)
    if local is not None:
        return None, local
    if match := re.match("dbfs:/+", where, re.IGNORECASE):
        raise ValueError(
            f"{where}: dbfs URLs are Databricks' own; use the path /dbfs/{where[match.end() :]}, "
            "or a volume (/Volumes/...), or pass filesystem="
        )
    url_to_fs = _fsspec(where).core.url_to_fs
    try:
        with naming_store(None, where):
            return _unwrap(*url_to_fs(_with_authority(where)))
    except ValueError as error:
        if not str(error).startswith("Protocol not known"):
            raise
        raise ValueError(
            f"{where}: fsspec knows no such protocol; install the package that brings it (adlfs "
            "for abfss), use another URL of the same store, or pass filesystem="
        ) from None


def _unwrap(filesystem: Any, path: str) -> tuple[Any, str]:
    """Find the file system that does the work, None for the local one, and the path in it."""
    if hasattr(filesystem, "base_fs"):  # pyarrow's SubTreeFileSystem
        below = posixpath.join(filesystem.base_path, path.lstrip("/"))
        return _unwrap(filesystem.base_fs, below)
    if hasattr(filesystem, "handler") and hasattr(filesystem.handler, "fs"):  # FSSpecHandler
        return _unwrap(filesystem.handler.fs, path)
    if _is_arrow(filesystem):
        return (None if filesystem.type_name == "local" else filesystem), path
    if hasattr(filesystem, "open") and hasattr(filesystem, "protocol"):
        path = filesystem._strip_protocol(path)
        if _is_arrow(getattr(filesystem, "fs", None)):  # fsspec's ArrowFSWrapper
            return _unwrap(filesystem.fs, path)
        protocol = filesystem.protocol
        names = (protocol,) if isinstance(protocol, str) else protocol
        return (None if "file" in names else filesystem), path
    raise TypeError(
        f"a filesystem is one of pyarrow.fs or of fsspec, not {type(filesystem).__name__}"
    )


def _prefix_leading_to(folder: str, path: str) -> str:
    """Return the shortest prefix of a local path that leads to a folder; "/" if there is none.

    Args:
        folder: Path of the folder.
        path: Absolute path without its first slash, and with one at its end.
    """
    real = os.path.realpath(folder)
    ends = [found.end() for found in re.finditer("/", path)]
    return next((path[:end] for end in ends if os.path.realpath(f"/{path[:end]}") == real), "/")


def _is_same_store(one: Any, other: Any) -> bool:
    """Return whether two file systems are equal, or both are fsspec's with the same options.

    fsspec makes an instance for each thread, and these never compare equal.
    """
    if one == other:
        return True
    if type(one) is not type(other) or not hasattr(one, "storage_options"):
        return False
    options = [(fs.storage_args, fs.storage_options) for fs in (one, other)]
    return bool(options[0] == options[1])


def _is_arrow(filesystem: Any) -> bool:
    return hasattr(filesystem, "open_input_file")


# --- opening a source ----------------------------------------------------------------------


@contextlib.contextmanager
def open_source(source: SourceLike, *, filesystem: Any = None) -> Iterator[Source]:
    """Open a source for positional reads and close what was opened here.

    Args:
        source: path, fsspec URL, bytes or seekable binary file object; with a file system, a path
            in it.
        filesystem: a file system of pyarrow or fsspec.

    Raises:
        TypeError: `source` or `filesystem` is of another kind.
        ValueError: a URL, and fsspec is not installed.
    """
    if filesystem is not None or isinstance(source, str | os.PathLike):
        place, path = locate(source, filesystem)
        name = os.fspath(source)  # type: ignore[arg-type]  # locate takes nothing but paths
        with _stored_source(place, path, name) as stored:
            stored.place = Place(place, path)
            yield stored
    elif isinstance(source, bytes | bytearray | memoryview):
        yield MemorySource(source)
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


@contextlib.contextmanager
def _stored_source(filesystem: Any, path: str, name: str) -> Iterator[Source]:
    if filesystem is None:
        with contextlib.closing(FileSource(path)) as local:
            yield local
    elif _is_arrow(filesystem):
        named = naming_store(filesystem, path)
        with named(filesystem.open_input_file)(path) as file:
            read = named(file.read_at)
            yield RangeSource(lambda start, end: read(end - start, start), named(file.size)(), name)
    else:
        # An open file rather than `cat_file`: it makes s3fs insist, at every read, on the version
        # that it found at first.
        named = naming_store(filesystem, path)
        with named(filesystem.open)(path, "rb") as file:
            if isinstance(file, io.BytesIO):  # in fsspec's memory all openers share one cursor
                yield MemorySource(file.getvalue(), name)
                return
            fetch = _fetcher(filesystem, file)
            if fetch is None:
                yield ObjectSource(file, name)
            else:
                yield RangeSource(named(fetch), file.size, name)


def _fetcher(filesystem: Any, file: Any) -> Callable[[int, int], bytes] | None:
    """Give the way around the cache of an fsspec file, which may read 50 MB ahead.

    Only for asynchronous file systems: their requests run on a loop of their own, so that any
    thread may make them, while others (FTP) have one connection. And not for those that are there
    to cache: they pose as what is below, but for their type.
    """
    asynchronous = getattr(type(filesystem), "async_impl", False)
    below = getattr(file, "fs", None)
    if asynchronous and getattr(below, "async_impl", False) and file.size is not None:
        return getattr(file, "_fetch_range", None)
    return None


# --- sinks ---------------------------------------------------------------------------------


class FdSink:
    """Appends to a file descriptor; an error names the destination, not the temporary file."""

    def __init__(self, fd: int, name: str) -> None:
        self.fd, self._name = fd, name

    def append(self, data: memoryview | bytes) -> None:
        view = memoryview(data)
        with naming(self._name):
            while view:
                view = view[os.write(self.fd, view) :]


@contextlib.contextmanager
def naming(where: str) -> Iterator[None]:
    """Have the file system's errors name this path, and no temporary file."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, where) from error


_QUERY = re.compile(r"\?[^\s'\"]+")  # of a URL, where signatures are


@contextlib.contextmanager
def naming_store(filesystem: Any, path: str) -> Iterator[None]:
    """Have what goes wrong in a store be an OSError that names the URL; decorates calls, too.

    The clients of stores have classes of their own for missing credentials and for stores that
    cannot be reached, and many name no object. Python's own errors and modcrypt's stay as they are.
    """
    try:
        yield
    except OSError as error:
        if (filesystem is None and not _URL.match(path)) or error.filename is not None:
            raise
        code = error.errno or _ERRNO.get(type(error), errno.EIO)
        text = os.strerror(code) if code == errno.ENOENT else error.strerror or str(error)
        raise OSError(code, _hide_queries(text), _shown_url(filesystem, path)) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] in ("builtins", "modcrypt", "pyarrow"):
            raise
        text = _hide_queries(f"{type(error).__name__}: {error}")
        raise OSError(errno.EIO, text, _shown_url(filesystem, path)) from error


_ERRNO: dict[type[OSError], int] = {
    FileExistsError: errno.EEXIST,
    FileNotFoundError: errno.ENOENT,
    IsADirectoryError: errno.EISDIR,
    NotADirectoryError: errno.ENOTDIR,
    PermissionError: errno.EACCES,
    TimeoutError: errno.ETIMEDOUT,
}
"""Error numbers of the classes that clients of stores raise without a number."""


def _hide_queries(text: str) -> str:
    return printable(_QUERY.sub("?(hidden)", text), MAX_MESSAGE)


def _shown_url(filesystem: Any, path: str) -> str:
    return _hide_queries(path if filesystem is None else Place(filesystem, path).full_name)


class ObjectSink:
    """Appends to a writable binary file object."""

    def __init__(
        self, file: IO[bytes], write: Callable[[bytes | memoryview], int | None] | None = None
    ) -> None:
        self._file, self._write = file, write or file.write

    def append(self, data: memoryview | bytes) -> None:
        view = memoryview(data)
        # Only what is derived from `io` promises to be done with the view when `write` returns.
        keeps = not isinstance(self._file, io.IOBase)
        while view:
            written = self._write(bytes(view) if keeps else view)
            if written is None and not isinstance(self._file, io.RawIOBase):
                return  # a writer of someone's own, which says nothing of its success
            if not written:
                raise BlockingIOError("the destination takes no more bytes at the moment")
            view = view[written:]


@contextlib.contextmanager
def open_sink(
    destination: Destination, *, overwrite: bool, filesystem: Any = None
) -> Iterator[Sink]:
    """Open a sink; a path or URL is published when the block ends without an error.

    Args:
        destination: path, fsspec URL or writable binary file object; with a file system, a path
            in it.
        overwrite: whether to replace what is there.
        filesystem: a file system of pyarrow or fsspec.

    Raises:
        FileExistsError: the path exists and `overwrite` is False.
        TypeError: `destination` or `filesystem` is of another kind.
        ValueError: a URL, and fsspec is not installed.
    """
    if isinstance(destination, Place):
        with destination.create(overwrite=overwrite) as placed:
            yield placed
    elif filesystem is not None or isinstance(destination, str | os.PathLike):
        place, path = locate(destination, filesystem)
        name = os.fspath(destination)  # type: ignore[arg-type]  # locate takes nothing but paths
        with _stored_sink(place, path, name, overwrite) as stored:
            yield stored
    elif hasattr(destination, "write"):
        yield ObjectSink(destination)
    else:
        raise TypeError(
            "a destination is a path, a URL or a writable binary file object, not "
            f"{type(destination).__name__}"
        )


def _stored_sink(
    filesystem: Any, path: str, name: str, overwrite: bool
) -> AbstractContextManager[Sink]:
    if filesystem is None:
        return _path_sink(Place(None, path), overwrite)
    if _is_arrow(filesystem):
        return _arrow_sink(filesystem, path, name, overwrite)
    if getattr(filesystem, "writes_whole_files", False):
        return _whole_sink(filesystem, path, overwrite)
    if _commits(filesystem):
        return _committed_sink(filesystem, path, name, overwrite)
    return _fsspec_sink(filesystem, path, name, overwrite)


def _exists(where: str) -> FileExistsError:
    return FileExistsError(
        errno.EEXIST, "the destination exists; it is only replaced on request", where
    )


@contextlib.contextmanager
def _checked_sink(
    opened: AbstractContextManager[Sink], check: Callable[[], object] | None
) -> Iterator[Sink]:
    with opened as sink:
        yield sink
        if check is not None:
            check()


@contextlib.contextmanager
def _path_sink(
    place: Place, overwrite: bool, check: Callable[[], object] | None = None
) -> Iterator[Sink]:
    where = place.path
    if not overwrite and os.path.lexists(where):
        raise _exists(where)
    with _open_folder(place) as (at, name):
        # A symbolic link that the caller named keeps pointing at what we write.
        target = os.path.realpath(where) if place.root is None else name
        before = _check_replaceable(target, at, place)
        folder = os.path.dirname(target)
        temporary = os.path.join(folder, _temporary_name())
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
        with naming(where):
            fd = os.open(temporary, flags, 0o666, **_within(at))
    try:
        try:
            _keep_owner(fd, before)
            yield FdSink(fd, where)
            with naming(where):
                os.fsync(fd)
        finally:
            os.close(fd)
        with _open_folder(place) as (at, _):  # not kept open: a dataset has many files open
            # Hadoop's checksum of what was there would be held against what will be.
            with contextlib.suppress(OSError):  # not there, or its name would be too long
                os.unlink(os.path.join(folder, f".{os.path.basename(target)}.crc"), **_within(at))
            if check is not None:
                check()
            with naming(where):
                publish(temporary, target, overwrite, at)
            fsync_folder(folder, at)
    except BaseException:
        with contextlib.suppress(OSError), _open_folder(place) as (at, _):
            os.unlink(temporary, **_within(at))
        raise


def _check_replaceable(target: str, at: int | None, place: Place) -> os.stat_result | None:
    """Return the status of the file that is to be replaced; None if there is none.

    Raises:
        OSError: what is there is not a regular file; ELOOP for a symbolic link below the root.
    """
    try:
        found = os.stat(target, dir_fd=at, follow_symlinks=place.root is None)
    except OSError:  # creating the file tells why
        return None
    if stat.S_ISLNK(found.st_mode):
        raise _linked(place)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "the destination is a directory", place.path)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "destination is not a regular file", place.path)
    return found


def _keep_owner(fd: int, before: os.stat_result | None) -> None:
    """Copy owner and mode of the file that is replaced, so that a private file stays private."""
    if before is None:
        return
    if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
        with contextlib.suppress(PermissionError):  # root alone may give files away
            os.fchown(fd, before.st_uid, before.st_gid)
    os.fchmod(fd, stat.S_IMODE(before.st_mode))


def _temporary_name() -> str:
    return f".modcrypt-{secrets.token_hex(8)}.tmp"


def publish(temporary: str, target: str, overwrite: bool, at: int | None = None) -> None:
    """Give a finished file its name.

    Args:
        temporary: Path of the file.
        target: Its new path.
        overwrite: Whether to replace what is there.
        at: Descriptor of the folder that both are names in.

    Raises:
        FileExistsError: there is one, and `overwrite` is False.
        OSError: from the file system.
    """
    both = {} if at is None else {"src_dir_fd": at, "dst_dir_fd": at}
    if overwrite:
        os.replace(temporary, target, **both)
        return
    try:
        # Unlike rename, it refuses a file that appeared meanwhile.
        os.link(temporary, target, **both)  # type: ignore[arg-type]  # follow_symlinks is not in it
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        if _is_there(target, at):  # no hard links on this file system: look, then rename
            raise _exists(target) from None
        os.replace(temporary, target, **both)
    else:
        os.unlink(temporary, **_within(at))


def _is_there(target: str, at: int | None) -> bool:
    with contextlib.suppress(OSError):
        os.stat(target, dir_fd=at, follow_symlinks=False)
        return True
    return False


def fsync_folder(folder: str, at: int | None = None) -> None:
    """Make the new name durable where the folder may be opened and synced.

    The file is published by now: a folder that can't be synced is no reason to call it a failure.

    Args:
        folder: Path of the folder.
        at: Descriptor of the folder that the path begins at.
    """
    with contextlib.suppress(OSError):
        fd = os.open(folder or ".", os.O_RDONLY, **_within(at))
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _arrow_sink(
    filesystem: Any, path: str, name: str, overwrite: bool
) -> AbstractContextManager[Sink]:
    # pyarrow has no way to abandon an upload: closing the stream, or losing it, completes it.
    return _moved_sink(
        filesystem,
        path,
        name,
        posixpath.dirname(path),
        lambda: not overwrite and filesystem.get_file_info(path).type.name != "NotFound",
        create=lambda where: filesystem.open_output_stream(where, compression=None),
        move=filesystem.move,
        delete=filesystem.delete_file,
    )


def _fsspec_sink(
    filesystem: Any, path: str, name: str, overwrite: bool
) -> AbstractContextManager[Sink]:
    return _moved_sink(
        filesystem,
        path,
        name,
        filesystem._parent(path),
        lambda: not overwrite and filesystem.exists(path),
        create=lambda where: filesystem.open(where, "wb"),
        move=partial(_move, filesystem),
        delete=filesystem.rm_file,
    )


def _move(filesystem: Any, old: str, new: str) -> None:
    """Move a file; fsspec's own `mv` takes brackets and stars in a path for patterns."""
    from fsspec import AbstractFileSystem

    if type(filesystem).mv is AbstractFileSystem.mv:
        filesystem.cp_file(old, new)
        filesystem.rm_file(old)
    else:
        filesystem.mv(old, new)


@contextlib.contextmanager
def _moved_sink(
    filesystem: Any,
    path: str,
    name: str,
    folder: str,
    in_the_way: Callable[[], bool],
    *,
    create: Callable[[str], Any],
    move: Callable[[str, str], object],
    delete: Callable[[str], object],
) -> Iterator[Sink]:
    """Write beside the destination and move it there: what `_path_sink` does, in a store."""
    named = naming_store(filesystem, path)
    if named(in_the_way)():
        raise _exists(name)
    temporary = posixpath.join(folder, _temporary_name())
    try:
        with named(create)(temporary) as file:
            yield ObjectSink(file, named(file.write))
        if named(in_the_way)():  # by now
            raise _exists(name)
        named(move)(temporary, path)
    except BaseException:
        with contextlib.suppress(Exception):  # what went wrong first is what matters
            delete(temporary)
        raise


@contextlib.contextmanager
def _whole_sink(filesystem: Any, path: str, overwrite: bool) -> Iterator[Sink]:
    """Leave it to the file system: its files appear when they are closed, and not on an error."""
    named = naming_store(filesystem, path)
    with named(filesystem.open)(path, "wb" if overwrite else "xb") as file:
        yield ObjectSink(file, named(file.write))


def _commits(filesystem: Any) -> bool:
    """Tell whether its files can hold back the last request, which makes an object appear.

    All of fsspec's files have `commit` and `discard`, but few heed them.
    """
    packages = {cls.__module__.partition(".")[0] for cls in type(filesystem).__mro__}
    return not packages.isdisjoint({"s3fs", "gcsfs"})


@contextlib.contextmanager
def _committed_sink(filesystem: Any, path: str, name: str, overwrite: bool) -> Iterator[Sink]:
    named = naming_store(filesystem, path)
    filesystem.invalidate_cache(path)  # a listing of an hour ago says nothing of today
    if not overwrite and named(filesystem.exists)(path):
        raise _exists(name)
    file = named(_create)(filesystem, path, overwrite)
    try:
        yield ObjectSink(file, named(file.write))
        named(file.close)()
        try:
            named(file.commit)()
        except FileExistsError:  # the store has refused: somebody else was faster
            raise _exists(name) from None
    except BaseException:
        file.closed = True  # or losing the file would upload what is left of it
        with contextlib.suppress(Exception):  # what went wrong first is what matters
            file.discard()
        raise


def _create(filesystem: Any, path: str, overwrite: bool) -> Any:
    """Open an upload that only `commit` completes."""
    try:
        # The store itself refuses what appears meanwhile.
        file = filesystem.open(path, "wb" if overwrite else "xb", autocommit=True)
    except NotImplementedError:  # unknown to older releases
        file = filesystem.open(path, "wb", autocommit=True)
    # Not by `open(autocommit=False)`, which keeps the file in the file system's next transaction.
    file.autocommit = False
    return file

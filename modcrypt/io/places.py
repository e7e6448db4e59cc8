"""Where files are: a path in a file system, as an immutable value."""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from modcrypt.io.addresses import is_url
from modcrypt.io.folders import open_folder, relative_to, split_below, symbolic_link_error
from modcrypt.io.locks import LOCKS_FOLDERS, lock, unlock
from modcrypt.io.recorded_writes import note_removed
from modcrypt.io.store_errors import add_url_to_errors, format_url, redact_url
from modcrypt.io.stores import forget_listings, is_arrow, is_same_store, locate

Root: TypeAlias = "str | os.PathLike[str] | Place"
"""A folder: a place, a URL, or a path in the file system that its files are in."""

_STAMPED = ("size", "ETag", "etag", "mtime", "LastModified", "created", "modification_time")
"""Names in fsspec's file systems for facts that differ between a file and its successor."""

Stamp: TypeAlias = tuple[int | str, ...]
"""Values that differ between a file and the one that replaces it, such as size and time."""


@dataclass(frozen=True, slots=True)
class Place:
    """A path in a file system; None is the local one."""

    filesystem: Any
    path: str
    # Folder that the caller named, where `path` was found or composed below it; None for a file
    # named by itself. Writing and removing follow no symbolic link below `root`: anyone who may
    # write there could point a link at files that only the process running modcrypt may change.
    root: str | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return posixpath.basename(self.path)

    @property
    def full_name(self) -> str:
        """The absolute path or the store's URL: one spelling, whatever the caller typed."""
        if self.filesystem is None:
            return os.path.abspath(self.path)
        return format_url(self.filesystem, self.path)

    @property
    def listed_name(self) -> str:
        """The path as the caller spelled it, or the store's URL: the name of a file in results."""
        return self.path if self.filesystem is None else self.full_name

    @property
    def address(self) -> str:
        """The path as the caller spelled it, or the store's URL without its query, for messages."""
        return redact_url(self.filesystem, self.path)

    @property
    def _spelling(self) -> str:
        """The path, absolute. In a store, any name between slashes is part of the key."""
        path = os.path.abspath(self.path) if self.filesystem is None else self.path
        return path.strip("/")

    def inside(self, root: Root) -> str | None:
        """Return the path relative to a folder; None if it is not inside, or is the folder itself.

        Symbolic links inside the folder are not followed: a link to a file is a file of the folder.
        The folder itself may be spelled in two ways, for example by a link that leads to it.
        A root that is neither a URL nor a place is in this file system.
        """
        if not isinstance(root, Place):
            root = Place(
                *locate(root, None if isinstance(root, str) and is_url(root) else self.filesystem)
            )
        if not is_same_store(root.filesystem, self.filesystem):
            return None
        base, path = (f"{place._spelling}/".lstrip("/") for place in (root, self))
        if not path.startswith(base) and self.filesystem is None:
            base = _find_prefix(path, root.path)
        return path[len(base) : -1] if path.startswith(base) and path != base else None

    def beside(self, name: str) -> Place:
        """Return the place of another file in the same folder."""
        path = posixpath.join(posixpath.dirname(self.path), name)
        return Place(self.filesystem, path, self.root)

    def below(self, inside: str) -> Place:
        """Return the place of a file below this folder, where no symbolic link is followed.

        `inside` may come from a file: `..` in it is refused on use.
        """
        root = self.path if self.root is None else self.root
        return Place(self.filesystem, posixpath.join(self.path, inside), root)

    def resolve(self) -> Place:
        """Return the place that symbolic links lead to; outside the root it is read-only."""
        if self.filesystem is not None:
            return self
        root = None if self.root is None else os.path.realpath(self.root)
        return Place(None, os.path.realpath(self.path), root)

    @property
    def is_linked(self) -> bool:
        """True if the path contains a symbolic link below the root, so that writing is refused."""
        if self.filesystem is not None or self.root is None:
            return False
        names = split_below(self.path, self.root)
        return os.path.realpath(self.path) != os.path.join(os.path.realpath(self.root), *names)

    def check_writable(self) -> None:
        """Raise OSError (ELOOP) for a symbolic link below the root; opening a sink checks again."""
        if self.is_linked:
            raise symbolic_link_error(self.path, self.root)

    def check_absent(self) -> None:
        """Raise FileExistsError if a local file exists; publishing checks again atomically."""
        if self.filesystem is None and os.path.lexists(self.path):
            raise exists_error(self.path)

    def stamp(self) -> Stamp | None:
        """Return the stamp of the file; None if it does not exist or its status is unknown."""
        with contextlib.suppress(Exception):  # missing, a name that is too long, a store's own
            if self.filesystem is None:
                return make_stamp(os.stat(self.path))
            if is_arrow(self.filesystem):
                info = self.filesystem.get_file_info(self.path)
                return (info.size, info.mtime_ns) if info.is_file else None
            values = self.filesystem.info(self.path)
            return tuple(str(values[name]) for name in _STAMPED if name in values)
        return None

    def exists(self) -> bool:
        """Return whether there is a file; raise OSError if that is unknown, as for a failing store.

        For decisions that lose something if a file seems to be missing.
        """
        try:
            if self.filesystem is None:
                os.lstat(self.path)
            elif is_arrow(self.filesystem):
                return bool(self.filesystem.get_file_info(self.path).type.name != "NotFound")
            else:
                forget_listings(self.filesystem)  # an old one may lack the file
                self.filesystem.info(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:  # names beside files are longer than theirs
                raise
            return False
        return True

    def modified(self) -> float | None:
        """Return the time of change in seconds since 1970; None if the file system keeps none."""
        if self.filesystem is None:
            return os.stat(self.path).st_mtime_ns / 1e9
        with contextlib.suppress(NotImplementedError):
            if is_arrow(self.filesystem):
                time = self.filesystem.get_file_info(self.path).mtime
            else:
                time = self.filesystem.modified(self.path)
            return None if time is None else float(time.timestamp())
        return None

    def check_unchanged(self, stamp: Stamp | None) -> None:
        """Raise OSError if the file no longer has this stamp; None skips the check."""
        if stamp is not None and self.stamp() != stamp:
            raise OSError(errno.ESTALE, "file changed while it was being processed", self.address)

    def make_folder(self) -> None:
        """Make the folders above a local file; raise OSError (ELOOP) for a link below `root`."""
        if self.filesystem is None:
            with open_folder(self.path, self.root, make=True):
                pass

    def remove(self) -> None:
        """Remove the file if it exists; for a symbolic link, remove the link.

        Raise OSError if the file system refuses; ELOOP for a link below `root` above the file.
        """
        with contextlib.suppress(FileNotFoundError), add_url_to_errors(self.filesystem, self.path):
            if self.filesystem is None:
                with open_folder(self.path, self.root) as (fd, name):
                    os.unlink(name, **relative_to(fd))
            elif is_arrow(self.filesystem):
                self.filesystem.delete_file(self.path)
            else:
                self.filesystem.rm_file(self.path)
            note_removed(self)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep out other processes that lock a file of this folder; no effect in a store."""
        if self.filesystem is not None or not LOCKS_FOLDERS:
            yield
            return
        fd = os.open(os.path.dirname(self.path) or ".", os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        try:
            with contextlib.suppress(OSError):  # of file systems without locks
                lock(fd)
            yield
        finally:
            with contextlib.suppress(OSError):
                unlock(fd)
            os.close(fd)


def place_of(where: Any, filesystem: Any = None) -> Place | None:
    """Return the place that a source or destination names; None for bytes and file objects."""
    if isinstance(where, Place):
        return where
    if filesystem is None and not isinstance(where, str | os.PathLike):
        return None
    return Place(*locate(where, filesystem))


def make_stamp(status: os.stat_result) -> Stamp:
    """Return the stamp of a local file."""
    return status.st_ino, status.st_size, status.st_mtime_ns


def exists_error(path: str) -> FileExistsError:
    """Return the error for a destination that exists."""
    message = "destination exists; pass overwrite=True (or --force) to replace it"
    return FileExistsError(errno.EEXIST, message, path)


def _find_prefix(path: str, folder: str) -> str:
    """Return the shortest prefix of a local path that leads to a folder; "/" if none does."""
    # The path is absolute, without its first slash, and with one at its end.
    real = os.path.realpath(folder)
    ends = [found.end() for found in re.finditer("/", path)]
    return next((path[:end] for end in ends if os.path.realpath(f"/{path[:end]}") == real), "/")

"""Write local files that appear complete or not at all.

A file without a name is written and synced, and only then gets one, so that nothing remains of a
process that is killed before. Linux cannot replace a file by one without a name, so for the instant
before it is renamed the new file has a temporary name beside the destination. On file systems that
lack files without names, and on other systems than Linux, it has that name from the beginning.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from modcrypt.io.folders import open_folder, relative_to, symbolic_link_error
from modcrypt.io.places import Place, exists_error
from modcrypt.io.sinks import FdSink
from modcrypt.io.store_errors import add_path_to_errors

_DESCRIPTORS = "/proc/self/fd"  # folder of links to the files that this process has open

_CLOSE_ON_EXEC = getattr(os, "O_CLOEXEC", 0)

_NO_LINKS = (errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV, errno.ENOENT)
"""Errors by which systems refuse hard links."""

CHECKSUM_MAGIC = b"crc\0"
"""First bytes of the files of checksums that Hadoop writes beside local files."""


@contextlib.contextmanager
def open_local_sink(
    place: Place, *, overwrite: bool, check: Callable[[], object] | None = None
) -> Iterator[FdSink]:
    """Open a sink whose local file appears when the block ends without an error.

    `check` is called last before publication, and may raise. Raise as `open_sink_at`.
    """
    if not overwrite:
        place.check_absent()
    unfinished = _create_unfinished(place)
    try:
        _copy_owner(unfinished.before, unfinished.fd)
        yield FdSink(unfinished.fd, place.path)
        with add_path_to_errors(place.path):
            os.fsync(unfinished.fd)
        _publish_unfinished(unfinished, overwrite, check)
    except BaseException:
        with contextlib.suppress(OSError), open_folder(place.path, place.root) as (at, _):
            os.unlink(unfinished.temporary, **relative_to(at))
        raise
    finally:
        unfinished.close()


@dataclass
class _Unfinished:
    """A file that is being written; both paths are relative to its folder if it has a root."""

    place: Place
    temporary: str  # a name that is free, or that of the file if `named`
    target: str
    before: os.stat_result | None  # status of the file to replace
    fd: int
    named: bool

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def _create_unfinished(place: Place) -> _Unfinished:
    with open_folder(place.path, place.root) as (at, name):
        # A symbolic link that the caller named continues to point at the file.
        target = _find_target(place.path) if place.root is None else name
        before = _check_replaceable(target, at, place)
        folder = os.path.dirname(target)
        temporary = os.path.join(folder, temporary_name())
        fd = _create_unnamed(folder or ".", at)
        named = fd is None
        if fd is None:
            with add_path_to_errors(place.path):
                fd = _create_named(temporary, at)
    return _Unfinished(place, temporary, target, before, fd, named)


def _find_target(path: str) -> str:
    """Return an absolute path of a file, following a symbolic link in its last part.

    The system follows those of folders itself, in a tenth of the time.
    """
    if os.path.islink(path):
        return os.path.realpath(path)
    return path if os.path.isabs(path) else os.path.join(os.getcwd(), path)


def _create_unnamed(folder: str, at: int | None) -> int | None:
    """Return the descriptor of a new file without a name; None if they are not supported."""
    flag = getattr(os, "O_TMPFILE", 0)
    if not flag or not _lists_descriptors():
        return None
    try:
        return os.open(folder, flag | os.O_RDWR | _CLOSE_ON_EXEC, 0o666, **relative_to(at))
    except OSError:  # creating a file with a name reports all other errors
        return None


@functools.cache  # whether a system has /proc does not change
def _lists_descriptors() -> bool:
    return os.path.isdir(_DESCRIPTORS)


def _give_name(fd: int, name: str, at: int | None) -> None:
    """Give an unnamed file a name, which may be relative to an open folder, `at`."""
    # With a descriptor as `src_dir_fd`, although the path is absolute, Python follows the link.
    where = {} if at is None else {"dst_dir_fd": at}
    try:
        os.link(f"{_DESCRIPTORS}/{fd}", name, src_dir_fd=fd, **where)  # type: ignore[arg-type]
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _copy_to_name(fd, name, at)


def _copy_to_name(fd: int, name: str, at: int | None) -> None:
    """Copy an unnamed file to a new one: few file systems or security modules refuse links."""
    size = os.fstat(fd).st_size
    copy = _create_named(name, at)
    try:
        os.fchmod(copy, stat.S_IMODE(os.fstat(fd).st_mode))
        offset = 0
        while offset < size:
            offset += os.sendfile(copy, fd, offset, size - offset)
        os.fsync(copy)
    finally:
        os.close(copy)


def _create_named(name: str, at: int | None) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CLOSE_ON_EXEC
    try:
        return os.open(name, flags, 0o666, **relative_to(at))
    except FileNotFoundError as error:
        raise FileNotFoundError(error.errno, "its folder does not exist; create it", name) from None


def _publish_unfinished(
    unfinished: _Unfinished, overwrite: bool, check: Callable[[], object] | None
) -> None:
    """Publish the file; reopen its folder, closed because a dataset has many files open."""
    place, temporary, target = unfinished.place, unfinished.temporary, unfinished.target
    with open_folder(place.path, place.root) as (at, _):
        _remove_hadoop_checksum(target, at)
        with add_path_to_errors(place.path):
            if not unfinished.named:
                _give_name(unfinished.fd, temporary, at)
            unfinished.close()  # may fail, and some systems don't rename open files
        if check is not None:
            check()  # right before the renaming, as little as possible may happen in between
        with add_path_to_errors(place.path):
            publish(temporary, target, overwrite, at)
        fsync_folder(os.path.dirname(target), at)


def temporary_name() -> str:
    """Return a random name for an unfinished file."""
    return f".modcrypt-{os.urandom(8).hex()}.tmp"


def _check_replaceable(target: str, at: int | None, place: Place) -> os.stat_result | None:
    """Return the status of the file to replace; None if it does not exist.

    Raise OSError if the target is not a regular file; ELOOP for a symbolic link below the root.
    """
    try:
        found = os.stat(target, dir_fd=at, follow_symlinks=place.root is None)
    except OSError:  # creating the file reports the error
        return None
    if stat.S_ISLNK(found.st_mode):
        raise symbolic_link_error(place.path, place.root)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "destination is a directory", place.address)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "destination is not a regular file", place.address)
    return found


def _copy_owner(before: os.stat_result | None, fd: int) -> None:
    """Copy owner and mode of the replaced file, so that a private file stays private."""
    if before is None:
        return
    if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
        with contextlib.suppress(PermissionError):  # only root may change the owner
            os.fchown(fd, before.st_uid, before.st_gid)
    os.fchmod(fd, stat.S_IMODE(before.st_mode))


def _remove_hadoop_checksum(target: str, at: int | None) -> None:
    """Remove the checksum of the replaced file: Hadoop would compare it with the new one."""
    folder, name = os.path.split(target)
    path = os.path.join(folder, f".{name}.crc")
    flags = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | _CLOSE_ON_EXEC
    if not os.access(path, os.F_OK, dir_fd=at):
        return
    with contextlib.suppress(OSError):
        with open(os.open(path, os.O_RDONLY | flags, **relative_to(at)), "rb") as file:
            magic = file.read(len(CHECKSUM_MAGIC))
        if magic == CHECKSUM_MAGIC:  # otherwise it is another program's
            os.unlink(path, **relative_to(at))


def publish(temporary: str, target: str, overwrite: bool, at: int | None = None) -> None:
    """Rename a finished file to its final path; both may be relative to an open folder, `at`.

    Raise FileExistsError if the target exists, and `overwrite` is False.
    """
    both = {} if at is None else {"src_dir_fd": at, "dst_dir_fd": at}
    if overwrite:
        os.replace(temporary, target, **both)
        return
    try:
        # Unlike rename, link refuses a target that was created concurrently.
        os.link(temporary, target, **both)  # type: ignore[arg-type]  # follow_symlinks is not in it
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if _exists(target, at):  # the file system has no hard links: check, then rename
            raise exists_error(target) from None
        os.replace(temporary, target, **both)
    else:
        os.unlink(temporary, **relative_to(at))


def _exists(target: str, at: int | None) -> bool:
    with contextlib.suppress(OSError):
        os.stat(target, dir_fd=at, follow_symlinks=False)
        return True
    return False


def fsync_folder(folder: str, at: int | None = None) -> None:
    """Make a new name durable, if possible; the path may be relative to an open folder, `at`."""
    with contextlib.suppress(OSError):  # the file is published already
        fd = os.open(folder or ".", os.O_RDONLY, **relative_to(at))
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

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
from collections.abc import Callable

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


class open_local_sink:  # noqa: N801  # a block, as functions with `contextmanager`
    """Open a sink whose local file appears when the block ends without an error.

    `check` is called before the file has a name, and last before publication, and may raise. Raise
    as `open_sink_at`.
    """

    __slots__ = ("_check", "_overwrite", "_place", "_unfinished")

    def __init__(
        self, place: Place, *, overwrite: bool, check: Callable[[], object] | None = None
    ) -> None:
        self._place, self._overwrite, self._check = place, overwrite, check

    def __enter__(self) -> FdSink:
        if not self._overwrite:
            self._place.check_absent()
        self._unfinished = unfinished = _create_unfinished(self._place)
        try:
            _copy_owner(unfinished.before, unfinished.fd)
        except BaseException:
            unfinished.remove()
            raise
        return FdSink(unfinished.fd, self._place.path)

    def __exit__(self, kind: object, *_: object) -> None:
        unfinished = self._unfinished
        if kind is not None:
            unfinished.remove()
            return
        try:
            with add_path_to_errors(self._place.path):
                os.fsync(unfinished.fd)
            _publish_unfinished(unfinished, self._overwrite, self._check)
        except BaseException:
            unfinished.remove()
            raise


class _Unfinished:
    """A file that is being written; its paths are relative to its folder if it has a root.

    Attributes:
        target: The path that it will have, which is `name` in `folder`.
        temporary: A path in that folder that is free, or that of the file if `named`.
        before: Status of the file to replace.
    """

    __slots__ = ("_pid", "before", "fd", "folder", "name", "named", "place", "target", "temporary")

    def __init__(self, place: Place, at: int | None, name: str) -> None:
        self.place, self.fd, self._pid = place, -1, os.getpid()
        # A symbolic link that the caller named continues to point at the file.
        self.target, self.before = _find_target(name, at, place)
        self.folder, self.name = os.path.split(self.target)
        self.temporary = os.path.join(self.folder, temporary_name())
        fd = _create_unnamed(self.folder or ".", at)
        self.named = fd is None
        if fd is None:
            with add_path_to_errors(place.path):
                fd = _create_named(self.temporary, at)
        self.fd = fd

    def __del__(self) -> None:
        """Remove a file that nobody finished, such as that of a writer that is never closed."""
        if self.fd >= 0:
            self.remove()

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def remove(self) -> None:
        """Close the file and remove its temporary name, unless a forked process's parent has it."""
        place = self.place
        try:
            if self._pid == os.getpid():
                with contextlib.suppress(OSError), open_folder(place.path, place.root) as (at, _):
                    os.unlink(self.temporary, **relative_to(at))
        finally:
            self.close()


def _create_unfinished(place: Place) -> _Unfinished:
    with open_folder(place.path, place.root) as (at, name):
        return _Unfinished(place, at, name)


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
        _remove_hadoop_checksum(os.path.join(unfinished.folder, f".{unfinished.name}.crc"), at)
        if check is not None:
            check()  # may wait for a lock: a process that is killed meanwhile leaves no name
        with add_path_to_errors(place.path):
            if not unfinished.named:
                _give_name(unfinished.fd, temporary, at)
            unfinished.close()  # may fail, and some systems don't rename open files
        if check is not None:
            check()  # right before the renaming, as little as possible may happen in between
        with add_path_to_errors(place.path):
            publish(temporary, target, overwrite, at)
        fsync_folder(unfinished.folder, at)


def temporary_name() -> str:
    """Return a random name for an unfinished file."""
    return f".modcrypt-{os.urandom(8).hex()}.tmp"


def _find_target(path: str, at: int | None, place: Place) -> tuple[str, os.stat_result | None]:
    """Return the path to write, and the status of the file there; None if it does not exist.

    Without a root, the path is absolute, and a symbolic link in its last part is followed: the
    system follows those of folders itself, in a tenth of the time.

    Raise OSError if the target is not a regular file; ELOOP for a symbolic link below the root.
    """
    if place.root is None and not os.path.isabs(path):
        path = os.path.join(os.getcwd(), path)
    try:
        found = os.lstat(path, **relative_to(at))
        if stat.S_ISLNK(found.st_mode) and place.root is None:
            path = os.path.realpath(path)
            found = os.stat(path)
    except OSError:  # creating the file reports the error
        return path, None
    if stat.S_ISLNK(found.st_mode):
        raise symbolic_link_error(place.path, place.root)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "destination is a directory", place.address)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "destination is not a regular file", place.address)
    return path, found


def _copy_owner(before: os.stat_result | None, fd: int) -> None:
    """Copy owner and mode of the replaced file, so that a private file stays private."""
    if before is None:
        return
    if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
        with contextlib.suppress(PermissionError):  # only root may change the owner
            os.fchown(fd, before.st_uid, before.st_gid)
    os.fchmod(fd, stat.S_IMODE(before.st_mode))


def _remove_hadoop_checksum(path: str, at: int | None) -> None:
    """Remove the checksum of the replaced file: Hadoop would compare it with the new one."""
    if not os.access(path, os.F_OK, dir_fd=at):
        return
    flags = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | _CLOSE_ON_EXEC
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

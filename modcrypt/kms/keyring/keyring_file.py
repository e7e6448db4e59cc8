"""The file of a keyring: read, locked, and only ever replaced as a whole.

An update is locked, written beside, synced, renamed. So readers need no lock, and a process that is
killed leaves the old file or the new one. What an update leaves on the disk's free blocks, in
snapshots and in backups is still sealed under the old passphrase.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Iterator
from typing import TypeAlias

from modcrypt.errors import KeyMaterialError
from modcrypt.io.storage import FileSource, fsync_folder, naming, publish
from modcrypt.tracebacks import hide_frames

__all__ = ["Stamp", "check_absent", "create", "locked", "read", "replace", "stamp"]

MAX_FILE = 64 << 20
"""Bytes of the largest keyring file."""

Stamp: TypeAlias = tuple[int, int, int, int]
"""By what one sees that a file is another one now."""


def stamp(status: os.stat_result) -> Stamp:
    """Give the stamp of a file's status."""
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def read(path: str) -> tuple[bytes, os.stat_result]:
    """Read a file, and give the status of just that file.

    Raises:
        OSError: it is not there, no regular file, or can't be read.
        KeyMaterialError: it is too long.
    """
    with contextlib.closing(FileSource(path)) as source:
        if source.size > MAX_FILE:
            raise KeyMaterialError(f"it has more than {MAX_FILE >> 20} MiB")
        return source.read_at(0, source.size), os.fstat(source.fd)


@contextlib.contextmanager
def locked(path: str) -> Iterator[os.stat_result]:
    """Keep other updates out, of this process and others, and give the file's status.

    The lock is on the file itself, so nothing is left behind. Whoever waited for it may hold the
    lock of a file that was replaced meanwhile, and tries again.
    """
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)  # NFS locks only what is open for writing
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            try:
                status = os.fstat(fd)
                if os.path.samestat(status, os.stat(path)):
                    yield status
                    return
            finally:
                fcntl.flock(fd, fcntl.LOCK_UN)  # a fork may have copied the descriptor
        finally:
            os.close(fd)


@hide_frames  # of a document that may be in the clear
def replace(path: str, data: bytes, old: os.stat_result, *, private: bool) -> os.stat_result:
    """Replace a file whose lock is held; gives the new one's status.

    Args:
        path: of the file, and of no symbolic link to it.
        data: what it shall say.
        old: its status, of which owner and mode are kept.
        private: whether its group and others may do nothing with it any more.

    Raises:
        ValueError: it would be too long to be read again.
        OSError: from the file system, naming `path`; the file is as it was.
    """
    if len(data) > MAX_FILE:
        raise ValueError(f"{path}: a keyring has at most {MAX_FILE >> 20} MiB")
    mode = stat.S_IMODE(old.st_mode) & (0o700 if private else 0o777)
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.tmp")
    with naming(path):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)  # left by a process that was killed
        try:
            status = _write_private(temporary, data, old, mode)
            publish(temporary, path, overwrite=True)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
    fsync_folder(folder)
    return status


def check_absent(path: str) -> None:
    """Raise FileExistsError if there is a file, as far as a look can tell: `create` looks again."""
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)


@hide_frames
def create(path: str, data: bytes) -> None:
    """Write a new file, of mode 0600.

    Raises:
        FileExistsError: there is one.
        OSError: from the file system, naming `path`.
    """
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{secrets.token_hex(8)}.tmp")
    with naming(path):
        try:
            _write_private(temporary, data, None, 0o600)
            publish(temporary, path, overwrite=False)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
    fsync_folder(folder)


def _write_private(path: str, data: bytes, old: os.stat_result | None, mode: int) -> os.stat_result:
    """Write and sync a new file that nobody else can read before it is whole."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if old is not None:
            _keep_owner(fd, old, mode)
        os.fchmod(fd, mode)
        # Clocks of file systems are coarse, and inodes are used again: two updates in a row must
        # not look the same to who compares stamps.
        os.utime(fd, ns=(now := time.time_ns(), now))
        os.fsync(fd)
        return os.fstat(fd)
    finally:
        os.close(fd)


def _keep_owner(fd: int, old: os.stat_result, mode: int) -> None:
    status = os.fstat(fd)
    if status.st_uid != old.st_uid:  # root's; root's own updates never find another's
        os.fchown(fd, old.st_uid, -1)
    if mode & stat.S_IRWXG and status.st_gid != old.st_gid:
        os.fchown(fd, -1, old.st_gid)

"""Reading, locking and atomic replacement of a keyring's file.

An update locks the file, writes a temporary file beside it, syncs that and renames it. Readers
therefore need no lock, and a process that is killed leaves the old file or the new one. Free blocks
of the disk, snapshots and backups still contain the old file, encrypted under the old passphrase.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import time
from collections.abc import Iterator
from typing import TypeAlias

from modcrypt.errors import KeyMaterialError
from modcrypt.io.locks import lock, unlock
from modcrypt.io.private_files import has_owners
from modcrypt.io.publication import fsync_folder, publish
from modcrypt.io.sources import FileSource
from modcrypt.io.store_errors import add_path_to_errors
from modcrypt.runtime.tracebacks import hide_frames

_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)

MAX_FILE = 64 << 20
"""Size limit of a keyring file, in bytes."""

Stamp: TypeAlias = tuple[int, int, int, int]  # values that change when a file is replaced


def make_stamp(status: os.stat_result) -> Stamp:
    """Return the stamp for a file's status."""
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def read(path: str) -> tuple[bytes, os.stat_result]:
    """Return the content of a file, and the status of the same open file.

    Raise KeyMaterialError if it is too long, OSError if it is not a regular file.
    """
    with contextlib.closing(FileSource(path)) as source:
        if source.size > MAX_FILE:
            raise KeyMaterialError(f"the file is longer than {MAX_FILE >> 20} MiB")
        return source.read_at(0, source.size), os.fstat(source.fd)


@contextlib.contextmanager
def lock_file(path: str) -> Iterator[os.stat_result]:
    """Lock a file against updates by this and other processes, and yield the file's status.

    The lock is on the file itself, so no lock file remains. If the file was replaced during the
    wait, the loop locks the new one.
    """
    while True:
        fd = os.open(path, os.O_RDWR | _FLAGS)  # NFS locks only files open for writing
        try:
            lock(fd)
            try:
                status = os.fstat(fd)
                if os.path.samestat(status, os.stat(path)):
                    yield status
                    return
            finally:
                unlock(fd)
        finally:
            os.close(fd)


@hide_frames  # the document may be in plaintext
def replace(path: str, data: bytes, old: os.stat_result, *, private: bool) -> os.stat_result:
    """Replace a file whose lock the caller holds, and return the new file's status.

    `path` must not be a symbolic link. The new file gets the owner and mode of the old one;
    `private` removes all permissions of the group and others. Raise ValueError if the content would
    be too long to read again; after any error, the file is unchanged.
    """
    if len(data) > MAX_FILE:
        raise ValueError(f"{path}: a keyring has at most {MAX_FILE >> 20} MiB")
    mode = stat.S_IMODE(old.st_mode) & (0o700 if private else 0o777)
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.tmp")
    with add_path_to_errors(path):
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
    """Raise FileExistsError if the file exists; best effort, `create` checks again atomically."""
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)


@hide_frames
def create(path: str, data: bytes) -> None:
    """Write a new file of mode 0600; raise FileExistsError if it exists."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{secrets.token_hex(8)}.tmp")
    with add_path_to_errors(path):
        try:
            _write_private(temporary, data, None, 0o600)
            publish(temporary, path, overwrite=False)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
    fsync_folder(folder)


def _write_private(path: str, data: bytes, old: os.stat_result | None, mode: int) -> os.stat_result:
    """Write and sync a new file that no other user can read before it is complete."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if old is not None:
            status = os.fstat(fd)
            if status.st_uid != old.st_uid:  # only root replaces files of other users
                os.fchown(fd, old.st_uid, -1)
            if mode & stat.S_IRWXG and status.st_gid != old.st_gid:
                os.fchown(fd, -1, old.st_gid)
        if has_owners():
            os.fchmod(fd, mode)
        # File system clocks are coarse, and inodes are reused: without this time, two successive
        # updates could have the same stamp.
        os.utime(fd, ns=(now := time.time_ns(), now))
        os.fsync(fd)
        return os.fstat(fd)
    finally:
        os.close(fd)

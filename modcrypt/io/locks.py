"""Locks on open files against other processes: flock, or on Windows a lock on one byte."""

from __future__ import annotations

import errno
import os
import time
from typing import Any

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]

try:
    import msvcrt
except ModuleNotFoundError:  # everywhere else
    msvcrt = None  # type: ignore[assignment]

_msvcrt: Any = msvcrt  # types know its functions on Windows only

LOCKS_FOLDERS = fcntl is not None
"""True if folders can be opened and locked, which Windows does not support."""

_FAR = 1 << 62
"""Position of the byte that is locked on Windows, where a lock also keeps others from reading."""


def lock(fd: int, *, wait: bool = True) -> None:
    """Lock an open file; without `wait`, raise BlockingIOError if another process holds the lock.

    Raise OSError if the file system does not support locks.
    """
    if fcntl is not None:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        return
    while not _lock_byte(fd, _msvcrt.LK_NBLCK):
        if not wait:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))
        time.sleep(0.01)  # LK_LOCK itself gives up after ten seconds


def unlock(fd: int) -> None:
    """Release the lock of an open file, also for copies of its descriptor in other processes."""
    if fcntl is not None:
        fcntl.flock(fd, fcntl.LOCK_UN)
    else:
        _lock_byte(fd, _msvcrt.LK_UNLCK)


def _lock_byte(fd: int, mode: int) -> bool:
    """Lock or unlock one byte far behind the end; return whether it was free."""
    if _msvcrt is None:
        raise OSError(errno.ENOSYS, "this Python has no file locks")
    position = os.lseek(fd, 0, os.SEEK_CUR)
    try:
        os.lseek(fd, _FAR, os.SEEK_SET)
        _msvcrt.locking(fd, mode, 1)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EDEADLK, errno.EAGAIN):
            raise
        return False
    finally:
        os.lseek(fd, position, os.SEEK_SET)
    return True

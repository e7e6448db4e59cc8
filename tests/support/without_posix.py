"""Hide the modules that Windows lacks, and offer its own in their place; a plugin of pytest.

`msvcrt.locking` is played by fcntl, on the same byte and with the same errors.
"""

from __future__ import annotations

import asyncio  # these would take the module msvcrt for a sign of Windows
import errno
import fcntl
import getpass
import subprocess
import sys
from types import ModuleType

__all__ = ["asyncio", "getpass", "hide_modules", "subprocess"]


class _Msvcrt(ModuleType):
    LK_UNLCK, LK_LOCK, LK_NBLCK = 0, 1, 2

    @staticmethod
    def locking(fd: int, mode: int, nbytes: int) -> None:
        assert nbytes == 1
        how = fcntl.LOCK_UN if mode == 0 else fcntl.LOCK_EX | fcntl.LOCK_NB
        try:
            fcntl.flock(fd, how)
        except BlockingIOError:
            raise PermissionError(errno.EACCES, "Permission denied") from None


def hide_modules() -> None:
    """Let imports of fcntl and resource fail from now on."""
    for name in ("fcntl", "resource"):
        sys.modules[name] = None  # type: ignore[assignment]
    sys.modules["msvcrt"] = _Msvcrt("msvcrt")


hide_modules()

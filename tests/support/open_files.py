"""Files that this process has open, by name."""

from __future__ import annotations

import contextlib
import os


def open_files() -> list[str]:
    """Return what the file descriptors of this process lead to.

    A count of all descriptors would depend on what other threads and earlier tests open and close.
    """
    names = []
    for entry in os.scandir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            names.append(os.readlink(entry.path))
    return names

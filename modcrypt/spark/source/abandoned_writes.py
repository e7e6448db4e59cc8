"""Find out whether the driver of a job is gone, so that its leftovers may be removed.

The machine that a driver runs on knows its process: its number, when it was started, and when the
machine was. A process on another machine can't be looked at. What it writes is no sign of life for
sure, but a job that has changed nothing in its folder for a week counts as gone.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pyarrow.fs import FileSelector

from modcrypt.io.storage import Place
from modcrypt.parquet.datasets.discovery import as_arrow

__all__ = ["ABANDONED_AFTER", "is_gone", "this_driver", "this_host"]

ABANDONED_AFTER = 7 * 24 * 3600
"""Seconds without a change after which a job on another machine counts as gone."""

MAX_MARK = 4 << 10  # bytes of what tells of a driver


def this_driver() -> str:
    """Describe the driver that this process works for: Spark's JVM, which is above it on Linux."""
    driver = {"host": this_host(), "time": time.time()}
    for number in _above(os.getpid()):
        if _stat(number)[0] == "java":
            driver |= {"namespace": _namespace(), "process": number, "started": _stat(number)[2]}
            break
    return json.dumps(driver)


def is_gone(mark: Place, folder: Place) -> bool:
    """Return whether the driver of a job is gone.

    Args:
        mark: What `this_driver` said when the job began.
        folder: That of the job.

    Raises:
        OSError: From the file system.
    """
    driver = _read(mark)
    number, here = driver.get("process"), (this_host(), _namespace())
    if isinstance(number, int) and (driver.get("host"), driver.get("namespace")) == here:
        return _stat(number)[2] != driver.get("started")
    last = max(_changes(folder), default=None)
    return last is not None and time.time() - last > ABANDONED_AFTER


def this_host() -> str:
    """Return what tells this machine, since it was started, from others."""
    boot = ""
    with suppress(OSError):  # Linux has it
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return f"{socket.gethostname()}/{boot}"


def _read(mark: Place) -> dict[str, object]:
    with suppress(FileNotFoundError, ValueError), mark.open() as source:
        found = json.loads(source.read_at(0, min(source.size, MAX_MARK)))
        return found if isinstance(found, dict) else {}
    return {}


def _changes(folder: Place) -> Iterator[float]:
    """Yield when the files of a folder were changed, and the folders in it; nothing if unknown."""
    if folder.filesystem is None:
        for base, _, names in os.walk(folder.path):
            for path in (base, *(os.path.join(base, name) for name in names)):
                with suppress(FileNotFoundError):
                    yield os.lstat(path).st_mtime
        return
    filesystem = as_arrow(folder.filesystem)
    for info in filesystem.get_file_info(FileSelector(folder.path, recursive=True)):
        if info.is_file:
            known = info.mtime or folder.filesystem.modified(info.path)
            yield known.timestamp()


def _above(process: int) -> Iterator[int]:
    """Yield the processes that a process was started by."""
    while process > 1:
        process = _stat(process)[1]
        yield process


def _stat(process: int) -> tuple[str, int, str]:
    """Return the name of a process, the number of its parent and when it was started (proc(5))."""
    with suppress(OSError, ValueError, IndexError):
        text = Path(f"/proc/{process}/stat").read_text("utf-8", "replace")
        name, _, rest = text.partition("(")[2].rpartition(")")
        fields = rest.split()
        return name, int(fields[1]), fields[19]
    return "", 0, ""


def _namespace() -> str | None:
    """Return what tells process numbers of this container from others, None if nothing does."""
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return None

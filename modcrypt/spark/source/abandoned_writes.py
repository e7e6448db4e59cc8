"""Detection of jobs whose driver has ended, so that their leftovers can be removed.

On the machine of a driver, modcrypt checks the driver's process: its number, its start time, and
the boot of the machine. It can't check processes of other machines; a job there counts as gone if
it has changed nothing in its folder for a week.
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

from modcrypt.io.places import Place
from modcrypt.io.sources import open_source_at
from modcrypt.parquet.datasets.discovery import as_arrow

ABANDONED_AFTER = 7 * 24 * 3600
"""Seconds without a change after which a job on another machine counts as gone."""

MAX_MARK = 4 << 10  # maximum bytes of the description of a driver


def describe_driver() -> str:
    """Return a description of the driver of this process: Spark's JVM, its ancestor on Linux."""
    driver = {"host": identify_host(), "time": time.time()}
    for number in _list_ancestors(os.getpid()):
        if _read_process(number)[0] == "java":
            driver |= {
                "namespace": _read_namespace(),
                "process": number,
                "started": _read_process(number)[2],
            }
            break
    return json.dumps(driver)


def is_gone(mark: Place, folder: Place) -> bool:
    """Return whether the driver of a job is gone.

    `mark` is the file with the result of `describe_driver` at the start of the job.
    """
    driver = _read_mark(mark)
    number, here = driver.get("process"), (identify_host(), _read_namespace())
    if isinstance(number, int) and (driver.get("host"), driver.get("namespace")) == here:
        return _read_process(number)[2] != driver.get("started")
    last = max(_list_change_times(folder), default=None)
    return last is not None and time.time() - last > ABANDONED_AFTER


def identify_host() -> str:
    """Return an identifier of this machine and its current boot."""
    boot = ""
    with suppress(OSError):  # only Linux has this file
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return f"{socket.gethostname()}/{boot}"


def _read_mark(mark: Place) -> dict[str, object]:
    with suppress(FileNotFoundError, ValueError), open_source_at(mark) as source:
        driver = json.loads(source.read_at(0, min(source.size, MAX_MARK)))
        return driver if isinstance(driver, dict) else {}
    return {}


def _list_change_times(folder: Place) -> Iterator[float]:
    """Yield the times of change of the files and folders in a folder, as far as they are known."""
    if folder.filesystem is None:
        for base, _, names in os.walk(folder.path):
            for path in (base, *(os.path.join(base, name) for name in names)):
                with suppress(FileNotFoundError):
                    yield os.lstat(path).st_mtime
        return
    filesystem = as_arrow(folder.filesystem)
    for info in filesystem.get_file_info(FileSelector(folder.path, recursive=True)):
        if info.is_file:
            time_of_change = info.mtime or folder.filesystem.modified(info.path)
            yield time_of_change.timestamp()


def _list_ancestors(process: int) -> Iterator[int]:
    while process > 1:
        process = _read_process(process)[1]
        yield process


def _read_process(process: int) -> tuple[str, int, str]:
    """Return the name, the parent's number and the start time of a process (see proc(5))."""
    with suppress(OSError, ValueError, IndexError):
        text = Path(f"/proc/{process}/stat").read_text("utf-8", "replace")
        name, _, rest = text.partition("(")[2].rpartition(")")
        fields = rest.split()
        return name, int(fields[1]), fields[19]
    return "", 0, ""


def _read_namespace() -> str | None:
    """Return the PID namespace of this process, None if it is unknown."""
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return None

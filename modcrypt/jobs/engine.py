"""The engine of jobs on many files: threads, progress, and abandoned runs.

On Spark, each task runs the same job in threads on its share of the files.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias, TypeVar

from modcrypt.fork_safety import fork_safe
from modcrypt.io.threads import in_threads

Progress: TypeAlias = Callable[[int], None]
"""Function to call with the number of bytes of one file that have been processed."""

THREADS = 4
"""Default number of files processed concurrently; most of the time is spent waiting for IO."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileResult:
    """The result of a job for one file.

    Attributes:
        path: Path of the file.
        result: Outcome, or an error code.
        message: Message of the error.
    """

    path: str
    result: str
    message: str = ""

    @property
    def failed(self) -> bool:
        """Whether the job could not do its work on the file."""
        raise NotImplementedError

    def fields(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        fields = asdict(self)
        return {"file": fields.pop("path"), **fields}


class AbandonedError(Exception):
    """The run ends, and an unfinished file is left as it was."""


def process_files(
    places: list[T],
    work: Callable[[T], R],
    *,
    name: str,
    threads: int | None,
    progress: Callable[[R, int], object] | None,
) -> list[R]:
    """Return the result of `work` for each file, in order; an exception in `progress` ends it.

    `work` returns errors of a file as results. `threads` is the number of files processed
    concurrently; None for `THREADS`. The calling thread calls `progress` with each result and the
    number of files.
    """
    results: list[R] = []
    with closing(in_threads(work, places, threads or THREADS, name)) as mapped:
        for result in mapped:
            results.append(result)
            if progress is not None:
                progress(result, len(places))
    return results


class Meter:
    """A counter of the bytes and files that all threads have processed.

    Args:
        update: Function to call with the numbers of bytes and of files done.
    """

    def __init__(self, update: Callable[[int, int], None]) -> None:
        self._update = update
        self._lock = fork_safe(threading.Lock())
        self._files, self._finished = 0, 0  # finished files and their bytes
        self._running: dict[int, int] = {}  # bytes of the current file by thread
        self.stop = fork_safe(threading.Event())
        """Event that is set to abandon the files in progress."""

    def progress(self, done: int) -> None:
        """Note the bytes done of this thread's file; raise AbandonedError if the run ends."""
        if self.stop.is_set():
            raise AbandonedError
        self._show(done, None)

    def count_file(self, size: int) -> None:
        """Count the current file of this thread as finished, whatever its result."""
        self._show(0, size)

    def _show(self, done: int, finished: int | None) -> None:
        with self._lock:
            self._running[threading.get_ident()] = done
            if finished is not None:
                self._files, self._finished = self._files + 1, self._finished + finished
            self._update(self._finished + sum(self._running.values()), self._files)

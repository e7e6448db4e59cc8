"""The engine of jobs on many files: threads, progress, and abandoned runs.

On Spark, each task runs the same job with the same engine on its share of the files.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, Generic, NamedTuple, Never, Self, TypeAlias, TypeVar

from modcrypt.errors import printable
from modcrypt.io.places import Place
from modcrypt.io.threads import in_threads
from modcrypt.jobs.failures import describe_failure
from modcrypt.runtime.fork_safety import fork_safe
from modcrypt.runtime.log import LOGGER

Progress: TypeAlias = Callable[[int], None]
"""Function to call with the number of bytes of one file that have been processed."""

THREADS = 4
"""Default number of files processed concurrently; most of the time is spent waiting for IO."""

T = TypeVar("T")
R = TypeVar("R")


def raise_error(_file: object, error: Exception) -> Never:
    """Raise the error of a file, which ends the run."""
    raise error


class Job(NamedTuple, Generic[T, R]):
    """A job: the work on one file, when it is already done, and its result.

    A job has the keys of this process, so other processes make it from references to keys.
    """

    # Function that processes a file, unless it is already done, and returns its result.
    process: Callable[[T], R]
    # Function that returns the result of a file that failed; by default it raises the error, which
    # ends the run.
    fail: Callable[[T, Exception], R] = raise_error

    def run(self, file: T) -> R:
        """Return the result of a file, also of one that failed."""
        try:
            return self.process(file)
        except Exception as error:  # the run continues with the other files
            # Neither message nor traceback: those of other packages may show values of the file.
            name = printable(str(getattr(file, "name", "")))
            LOGGER.info("%s: failed with %s", name, type(error).__name__)
            return self.fail(file, error)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileResult:
    """The result of a job for one file."""

    path: str
    result: str  # outcome, or an error code
    message: str = ""  # message of the error

    @property
    def failed(self) -> bool:
        """True if the job could not do its work on the file."""
        raise NotImplementedError

    @classmethod
    def of_failure(cls, place: Place, error: Exception) -> Self:
        """Return the result of a file that failed; re-raise internal errors."""
        word, message = describe_failure(error)
        return cls(path=place.listed_name, result=word, message=message)

    def fields(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        fields = asdict(self)
        return {"file": fields.pop("path"), **fields}


class AbandonedError(BaseException):
    """The run ends, and an unfinished file is left as it was.

    It is no Exception, so that nothing takes it for an error of the file.
    """


def run_job(
    job: Job[T, R], files: Sequence[T], *, jobs: int | None = None, meter: Meter | None = None,
    progress: Callable[[R, int], object] | None = None,
    is_last: Callable[[R], bool] = lambda result: False,
) -> Generator[R]:  # fmt: skip
    """Yield the result of each file, in the order of the files, which threads process.

    Args:
        jobs: Number of files processed concurrently; None for `THREADS`.
        meter: Meter of the job's progress. If the generator is closed early, or the meter's event
            is set, files in progress are abandoned and have no result.
        progress: Function called in the calling thread with each result and the number of files; an
            exception ends the run.
        is_last: Function that returns whether to begin no more files after a result.
    """
    meter = meter or Meter(lambda done, files: None)
    ended = fork_safe(threading.Event())

    def run(file: T) -> R | None:
        if meter.stop.is_set() or ended.is_set():
            return None
        try:
            result = job.run(file)
        except AbandonedError:
            return None
        if is_last(result):
            ended.set()
        meter.count_file()
        return result

    results = in_threads(
        run, files, jobs or THREADS, "modcrypt-job", meter.stop.set, meter.show
    )  # fmt: skip
    with closing(results):
        for result in results:
            meter.show()
            if result is None:
                continue
            if progress is not None:
                progress(result, len(files))
            yield result


class Meter:
    """A counter of the bytes and files that all threads have processed.

    The calling thread of a run calls `update` with both numbers.
    """

    def __init__(self, update: Callable[[int, int], object]) -> None:
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
        with self._lock:
            self._running[threading.get_ident()] = done

    def count_file(self) -> None:
        """Count the current file of this thread as finished, whatever its result."""
        with self._lock:
            self._files += 1
            self._finished += self._running.pop(threading.get_ident(), 0)

    def show(self) -> None:
        """Call `update`."""
        with self._lock:
            done, files = self._finished + sum(self._running.values()), self._files
        self._update(done, files)

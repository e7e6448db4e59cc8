"""Thread pools that survive a fork, and resources that threads share."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from modcrypt.runtime.fork_safety import fork_safe

AHEAD = 4  # default number of items for each thread that are handed to the threads in advance
TICK = 0.2  # seconds after which a waiting thread shows the progress of others
T = TypeVar("T")
R = TypeVar("R")


def usable_cores() -> int:
    """Return the number of processors that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every platform
        return os.cpu_count() or 1


class StoppedError(BaseException):
    """The results of a thread are no longer needed, so it stops waiting.

    It is no Exception, so that nothing takes it for an error of a file.
    """


_worker = threading.local()  # `stops`: events that end the pauses of this thread


def pause(seconds: float) -> None:
    """Sleep; in a thread of `in_threads`, raise StoppedError as soon as its results are useless."""
    stops: tuple[threading.Event, ...] = getattr(_worker, "stops", ())
    if not stops:
        time.sleep(seconds)
        return
    end = time.monotonic() + seconds
    while not any(stop.is_set() for stop in stops):
        if (left := end - time.monotonic()) <= 0:
            return
        stops[-1].wait(min(left, TICK))
    raise StoppedError


def check_threads(threads: int | None, name: str = "threads") -> None:
    """Raise ValueError if a number of threads is below 1; None stands for the default."""
    if threads is not None and threads < 1:
        raise ValueError(f"{name} must be at least 1")


def in_threads(
    work: Callable[[T], R], items: Iterable[T], threads: int, name: str = "modcrypt",
    stop: Callable[[], object] = lambda: None, tick: Callable[[], object] | None = None,
    ahead: int = AHEAD,
) -> Generator[R]:  # fmt: skip
    """Apply a function to items in threads; yield the results in the order of the items.

    For each thread, at most `ahead` items wait while the result of an earlier one is used.
    If the generator is closed early, items that are not started are left. `stop` is called at the
    end, also for an exception, before threads are waited for. The calling thread calls `tick` from
    time to time while it waits for a result.
    """

    def take_first() -> R:
        while tick is not None and not wait([waiting[0]], TICK).done:
            tick()
        return waiting.popleft().result()

    ended = fork_safe(threading.Event())
    stops = (*getattr(_worker, "stops", ()), ended)
    pool = ThreadPoolExecutor(threads, name, lambda: setattr(_worker, "stops", stops))
    waiting: deque[Future[R]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > ahead * threads:
                yield take_first()
        while waiting:
            yield take_first()
    finally:
        ended.set()
        stop()
        end_pool(pool, waiting)


def end_pool(pool: ThreadPoolExecutor, calls: Iterable[Future[Any]]) -> None:
    """Cancel calls that have not begun; wait for the others, and for the end of the threads.

    In a collection of garbage, only calls are waited for: it may run in a thread that starts, and
    that holds a lock of `threading` which others need to end.
    """
    pool.shutdown(wait=not _is_collecting(), cancel_futures=True)
    wait([call for call in calls if not call.cancelled()])


_collecting: list[int] = []  # the thread that collects garbage


def _note_collection(phase: str, _: object) -> None:
    if phase == "start":
        _collecting.append(threading.get_ident())
    else:
        _collecting.clear()


gc.callbacks.append(_note_collection)


def _is_collecting() -> bool:
    """Return whether the garbage collector has called this thread's code."""
    return threading.get_ident() in _collecting


class Lender(Generic[T]):
    """Objects that one thread at a time uses, created when all others are lent."""

    def __init__(self, create: Callable[[], T]) -> None:
        self._create = create
        self._idle: SimpleQueue[T] = SimpleQueue()

    @contextlib.contextmanager
    def lend(self) -> Iterator[T]:
        """Lend an object to the calling thread."""
        try:
            item = self._idle.get_nowait()
        except Empty:
            item = self._create()
        try:
            yield item
        finally:
            self._idle.put(item)


# One lock for all pools and resources, since most never have work, or only one thread. A collection
# of garbage may close a pool while its thread holds the lock.
_lock = fork_safe(threading.RLock())


class ThreadPool:
    """A pool of threads, started when there is work, and again in a forked process.

    `count` is the number of threads; `of_cores` limits it to the number of processors.
    """

    def __init__(self, count: int, name: str, *, of_cores: bool = False) -> None:
        self._count, self._name, self._of_cores = count, name, of_cores
        self._pool: ThreadPoolExecutor | None = None  # until the first call, as many need none
        self._pid = 0
        self._closed = False

    def submit(self, call: Callable[..., T], *arguments: Any) -> Future[T]:
        """Call a function in a thread; raise RuntimeError if the pool is closed."""
        with _lock:
            if self._closed:
                raise RuntimeError("the pool is closed")
            if self._pool is None or self._pid != os.getpid():  # threads stay with the parent
                count = min(usable_cores(), self._count) if self._of_cores else self._count
                self._pool, self._pid = ThreadPoolExecutor(count, self._name), os.getpid()
            return self._pool.submit(call, *arguments)

    def run_all(self, call: Callable[[T], object], items: Iterable[T]) -> None:
        """Call a function with each item in the threads, wait, then raise the first error."""
        work = [self.submit(call, item) for item in items]
        wait(work)  # also after an error: calls may use memory of the caller
        for future in work:
            future.result()

    def close(self) -> None:
        """Wait for the calls that were submitted, and end the threads; see `end_pool`."""
        with _lock:
            self._closed, pool = True, self._pool
        if pool is not None:
            with contextlib.suppress(RuntimeError):  # a thread of the pool cannot wait for itself
                pool.shutdown(wait=not _is_collecting())


class SharedResources:
    """Resources that several threads use, freed by `close` or by the last use after it.

    A use is a `with` block: it keeps the resources until its end, and raises ValueError if they are
    closed. If a descriptor were freed while a thread reads from it, it might belong to another file
    then.
    """

    def __init__(self, resources: contextlib.ExitStack) -> None:
        self._resources = resources
        self._uses = 0
        self._closed = False

    def __enter__(self) -> None:
        with _lock:
            if self._closed:
                raise ValueError("the file is closed")
            self._uses += 1

    def __exit__(self, *_: object) -> None:
        with _lock:
            self._uses -= 1
            is_last = self._closed and not self._uses
        if is_last:
            self._resources.close()

    def close(self) -> None:
        """Refuse further uses, and free the resources after the last one."""
        with _lock:
            is_last = not self._closed and not self._uses
            self._closed = True
        if is_last:
            self._resources.close()

"""Run work in several threads and yield the results in order: each item of work is a lane.

A lane pauses when it is far ahead of the reader, so that only a small part of the results is in
memory.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import Generic, TypeVar

import pyarrow as pa

from modcrypt.io.threads import end_pool
from modcrypt.runtime.fork_safety import fork_safe

MAX_AHEAD = 64 << 20
"""Size in bytes of the results that a lane may hold ready; it may exceed this by one result."""


R = TypeVar("R", bound=pa.RecordBatch)
Source = Callable[[], Generator[R]]


def run_in_order(sources: Iterable[Source[R]], threads: int) -> Generator[R]:
    """Yield the results of each source, one source after the other.

    Threads call and iterate the sources, some in parallel; the caller's thread takes a source when
    it is needed. An error of a source is raised in its place in this order.
    """
    waiting = iter(sources)
    first = list(islice(waiting, 2))
    waiting = chain(first, waiting)
    if threads < 2 or len(first) < 2:
        for source in waiting:
            yield from source()
        return
    pool = ThreadPoolExecutor(threads, "modcrypt-scan")
    stop = fork_safe(threading.Event())
    lanes: deque[_Lane[R]] = deque()
    try:
        while True:
            for source in islice(waiting, threads + 1 - len(lanes)):
                lanes.append(_Lane(source, stop, pool))
            if not lanes:
                return
            yield from lanes[0].results()
            lanes.popleft()
    finally:
        stop.set()
        end_pool(pool, [lane.work for lane in lanes])
        for lane in lanes:
            lane.close()


class _Lane(Generic[R]):
    """The results of one source.

    No thread waits for the reader, which may have stopped without notice: at exit the interpreter
    waits for all threads.
    """

    def __init__(self, source: Source[R], stop: threading.Event, pool: ThreadPoolExecutor) -> None:
        self._source_results, self._stop, self._pool = source(), stop, pool
        self._changed = fork_safe(threading.Condition())
        self._ready: deque[R] = deque()
        self._bytes = 0
        self._ended = self._paused = False
        self.work: Future[None] = pool.submit(self._run)

    def _run(self) -> None:
        """Read until enough is ready; `_take` schedules the continuation."""
        try:
            for result in self._source_results:
                if not self._add_result(result):
                    return
        except BaseException:
            self._end()
            raise
        self._end()

    def _add_result(self, result: R) -> bool:
        """Add a result; return False if that is enough for now, or if the reader has stopped."""
        with self._changed:
            self._ready.append(result)
            self._bytes += result.nbytes
            self._paused = self._bytes > MAX_AHEAD
            self._changed.notify_all()
            return not (self._paused or self._stop.is_set())

    def _end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def results(self) -> Iterator[R]:
        """Yield the results as they become ready."""
        while (result := self._take()) is not None:
            yield result
        self.work.result()  # raises the error of the source

    def _take(self) -> R | None:
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._ended)
            if not self._ready:
                return None
            result = self._ready.popleft()
            self._bytes -= result.nbytes
            if self._paused and self._bytes <= MAX_AHEAD:
                self._paused = False
                self.work = self._pool.submit(self._run)
            return result

    def close(self) -> None:
        """Release the resources of the source; no thread may be reading it any more."""
        self._source_results.close()

"""Work of several threads, its results in order: each item of work is a lane of them.

A lane waits when it is far ahead of the reader, so that of however much work there is only a
little is in memory.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

from modcrypt.fork_safety import fork_safe

__all__ = ["in_order"]

MAX_AHEAD = 64 << 20
"""Bytes that a lane may have ready; one result more than that."""


class _Sized(Protocol):
    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""


R = TypeVar("R", bound=_Sized)
Source = Callable[[], Generator[R]]


def in_order(sources: Sequence[Source[R]], threads: int) -> Generator[R]:
    """Give the results of each source, one source after the other.

    Args:
        sources: each is called and read in a thread of its own; some at the same time.
        threads: how many.

    Raises:
        Exception: what a source raises, in its place.
    """
    if threads < 2 or len(sources) < 2:
        for source in sources:
            yield from source()
        return
    pool = ThreadPoolExecutor(min(threads, len(sources)), "modcrypt-scan")
    stop = fork_safe(threading.Event())
    lanes: deque[_Lane[R]] = deque()
    waiting = deque(sources)
    try:
        while waiting or lanes:
            while waiting and len(lanes) <= threads:
                lanes.append(_Lane(waiting.popleft(), stop, pool))
            yield from lanes[0].results()
            lanes.popleft()
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)
        for lane in lanes:
            lane.close()


class _Lane(Generic[R]):
    """One source.

    No thread waits for the reader, who may have gone without a word: at its end the interpreter
    waits for all threads.
    """

    def __init__(self, source: Source[R], stop: threading.Event, pool: ThreadPoolExecutor) -> None:
        self._found, self._stop, self._pool = source(), stop, pool
        self._changed = fork_safe(threading.Condition())
        self._ready: deque[R] = deque()
        self._bytes = 0
        self._ended = self._paused = False
        self._work: Future[None] = pool.submit(self._run)

    def _run(self) -> None:
        """Read until enough is ready; `_take` has it go on from there."""
        try:
            for one in self._found:
                if not self._put(one):
                    return
        except BaseException:
            self._end()
            raise
        self._end()

    def _put(self, one: R) -> bool:
        """Add a result; False if that is enough for now, or nobody wants them any more."""
        with self._changed:
            self._ready.append(one)
            self._bytes += one.nbytes
            self._paused = self._bytes > MAX_AHEAD
            self._changed.notify_all()
            return not (self._paused or self._stop.is_set())

    def _end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def results(self) -> Iterator[R]:
        """Take the results, as they come."""
        while (one := self._take()) is not None:
            yield one
        self._work.result()  # which raises what stopped it

    def _take(self) -> R | None:
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._ended)
            if not self._ready:
                return None
            one = self._ready.popleft()
            self._bytes -= one.nbytes
            if self._paused and self._bytes <= MAX_AHEAD:
                self._paused = False
                self._work = self._pool.submit(self._run)
            return one

    def close(self) -> None:
        """Let go of what the source holds; no thread may be reading it any more."""
        self._found.close()

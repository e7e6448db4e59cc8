"""Work of several threads, its results in order: each item of work is a lane of them.

A lane waits when it is far ahead of the reader, so that of however much work there is only a
little is in memory.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Generic, Protocol, TypeVar

__all__ = ["in_order"]

MAX_AHEAD = 64 << 20
"""Bytes that a lane may have ready; one result more than that."""


class _Sized(Protocol):
    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""


R = TypeVar("R", bound=_Sized)
Source = Callable[[], Iterator[R]]


def in_order(sources: Sequence[Source[R]], threads: int) -> Iterator[R]:
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
    stop = threading.Event()
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
        for lane in lanes:
            lane.wake()
        pool.shutdown(cancel_futures=True)


class _Lane(Generic[R]):
    def __init__(self, source: Source[R], stop: threading.Event, pool: ThreadPoolExecutor) -> None:
        self._source, self._stop = source, stop
        self._changed = threading.Condition()
        self._ready: deque[R] = deque()
        self._bytes = 0
        self._ended = False
        self._work: Future[None] = pool.submit(self._run)

    def _run(self) -> None:
        try:
            with closing(self._source()) as found:  # type: ignore[type-var]  # a generator
                for one in found:
                    if not self._put(one):
                        return
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _put(self, one: R) -> bool:
        """Add a result, and wait until some are taken; False if nobody wants them any more."""
        with self._changed:
            self._ready.append(one)
            self._bytes += one.nbytes
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._bytes <= MAX_AHEAD or self._stop.is_set())
        return not self._stop.is_set()

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
            self._changed.notify_all()
            return one

    def wake(self) -> None:
        """Have the thread look whether it is to stop."""
        with self._changed:
            self._changed.notify_all()

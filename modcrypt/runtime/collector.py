"""Pauses of Python's full garbage collections while many long-lived objects are created.

A wide file needs several objects for each column chunk. Full collections would traverse all of
them dozens of times and free nothing, which took a third of the time to encrypt such a file. Young
objects, including the garbage of other threads, are still collected, but rarely: what survives a
few collections counts towards the next full one, which took a third of the time to open many wide
files one after another.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_NEVER = 1 << 30  # number of collections of the middle generation before a full one

_MANY = 1_000_000
"""Number of new objects before a collection of the young ones; the default is 700 or 2,000. A file
of 20,000 column chunks needs about 600,000; collections of these took a fifth of the time to
decrypt it."""


class paused_collector:  # noqa: N801  # a block, or a decorator of a function
    """Pause full collections in this process until the block ends, or in calls of a function."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = _pause()

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            gc.set_threshold(*self._before)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return the function that pauses them in each call."""

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if (before := _pause()) is None:
                return function(*args, **kwargs)
            try:
                return function(*args, **kwargs)
            finally:
                gc.set_threshold(*before)

        return call


def _pause() -> tuple[int, int, int] | None:
    """Pause full collections; return the thresholds, or None if another call has paused them."""
    before = young, middle, full = gc.get_threshold()
    if full >= _NEVER:  # perhaps in another thread
        return None
    # A threshold of 0 switches the collector off.
    gc.set_threshold(young and max(young, _MANY), middle, _NEVER)
    return before

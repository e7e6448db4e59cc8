"""Pauses of Python's full garbage collections while many long-lived objects are created.

A wide file needs several objects for each column chunk. Full collections would traverse all of
them dozens of times and free nothing, which took a third of the time to encrypt such a file. Young
objects, including the garbage of other threads, are still collected, but rarely: what survives a
few collections counts towards the next full one, which took a third of the time to open many wide
files one after another.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_NEVER = 1 << 30
"""Number of collections of the middle generation before a full one."""

_MANY = 1_000_000
"""Number of new objects before a collection of the young ones; the default is 700 or 2,000. A file
of 20,000 column chunks needs about 600,000; collections of these took a fifth of the time to
decrypt it."""


@contextmanager
def paused_collector() -> Iterator[None]:
    """Pause full collections in this process until the block ends; also use as a decorator."""
    young, middle, full = gc.get_threshold()
    if full >= _NEVER:  # another call, perhaps of another thread, has paused them
        yield
        return
    # A threshold of 0 switches the collector off.
    gc.set_threshold(young and max(young, _MANY), middle, _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(young, middle, full)

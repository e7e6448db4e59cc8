"""Keep Python objects alive until PyArrow's threads release them (avoids an abort at exit).

A thread of PyArrow may be the last to hold a file object or a buffer, a moment after the work that
needed it is done. Releasing it requires the interpreter. If the interpreter is shutting down,
Python (before 3.14) ends the thread instead, which makes C++ abort the process: a script that has
read all its rows dies with SIGABRT.
"""

from __future__ import annotations

import atexit
import time
import weakref
from typing import Any, TypeVar

MAX_WAIT = 1.0
"""Maximum waiting time at exit, in seconds: objects that the script itself left open stay alive."""

_TRACKED: dict[int, weakref.ref[Any]] = {}

T = TypeVar("T")


def track_lifetime(thing: T) -> T:
    """Return an object for PyArrow, and wait at the interpreter's exit until it is released."""
    reference: weakref.ref[Any] = weakref.ref(thing, _forget)
    _TRACKED[id(reference)] = reference
    return thing


def _forget(reference: weakref.ref[Any]) -> None:
    _TRACKED.pop(id(reference), None)


@atexit.register
def _wait() -> None:
    end = time.monotonic() + MAX_WAIT
    while _TRACKED and time.monotonic() < end:
        time.sleep(0.001)

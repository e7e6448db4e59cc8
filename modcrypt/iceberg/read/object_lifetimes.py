"""What PyArrow's threads hold of Python's: the interpreter ends when they have let go of it.

A thread of PyArrow may be the last to hold a file object or a buffer that it was given, a moment
after what it was needed for is done. To let go, it needs the interpreter; if that is ending, Python
(before 3.14) ends the thread instead, and with that, C++ the process: a script that had all its
rows dies by SIGABRT.
"""

from __future__ import annotations

import atexit
import time
import weakref
from typing import Any, TypeVar

__all__ = ["lent"]

MAX_WAIT = 1.0
"""Seconds: what a script itself has left open is not let go of."""

_LENT: dict[int, weakref.ref[Any]] = {}

T = TypeVar("T")


def lent(thing: T) -> T:
    """Give what PyArrow is to have, and wait for its end at the end of the interpreter."""
    found: weakref.ref[Any] = weakref.ref(thing, _forget)
    _LENT[id(found)] = found
    return thing


def _forget(found: weakref.ref[Any]) -> None:
    _LENT.pop(id(found), None)


@atexit.register
def _wait() -> None:
    end = time.monotonic() + MAX_WAIT
    while _LENT and time.monotonic() < end:
        time.sleep(0.001)

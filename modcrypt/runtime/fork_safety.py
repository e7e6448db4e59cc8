"""Locks that are free in a forked child, even if a thread of the parent holds them.

`os.fork` copies locks, but not the threads that would release them: a child would wait forever.
"""

from __future__ import annotations

import functools
import os
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

T = TypeVar("T")

_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def fork_safe(lock: T) -> T:
    """Register a lock, condition or event of `threading` for reset in children, and return it."""
    _locks.add(lock)
    return lock


class cached_property(functools.cached_property[T]):  # noqa: N801  # as in the standard library
    """A `functools.cached_property` without the lock that only Python 3.11 has.

    All objects of a class share that lock: a thread that holds it would wait forever for another
    one that needs the property of another object, and so would a forked child. Its checks take
    longer than most of what is kept here.
    """

    if not TYPE_CHECKING:

        def __get__(self, instance: object, owner: type | None = None) -> Any:
            if instance is None:
                return self
            value = instance.__dict__[self.attrname] = self.func(instance)
            return value


def _reset_locks() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # as `threading` and `logging` do with their own


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_reset_locks)

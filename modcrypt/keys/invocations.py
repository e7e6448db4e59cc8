"""A count of the encryptions with each key in this process.

It is taken once per page, so mypyc compiles this module (`make native`).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from modcrypt.errors import KeyExhaustedError
from modcrypt.runtime.fork_safety import fork_safe

if TYPE_CHECKING:
    from mypy_extensions import i64

INVOCATION_LIMIT = 2**32
"""Limit of encryptions with one key and random 96-bit nonces (NIST SP 800-38D 8.3; PME 4.1.4)."""

WARN_WRAPS = INVOCATION_LIMIT // 2
"""Known number of keys wrapped under one key from which on it should be replaced.

Each process counts its own encryptions. What a master key or KEK has wrapped over the years is only
seen in files and tables, as far as they still exist: the number is a lower bound.
"""


_lock: Final = fork_safe(threading.Lock())  # of all counters: each holds it only for an addition


class InvocationCounter:
    """A counter of the encryptions with one key, shared by every `Key` of the same bytes."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count: i64 = 0

    def add(self, number: i64) -> None:
        """Count encryptions ahead; raise KeyExhaustedError beyond `INVOCATION_LIMIT`."""
        with _lock:
            if self.count + number > INVOCATION_LIMIT:
                raise KeyExhaustedError(
                    "this key has reached 2**32 encrypted modules in this process, the most that "
                    "NIST SP 800-38D 8.3 allows with random nonces; use a new key"
                )
            self.count += number

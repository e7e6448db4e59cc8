"""A cache of opened keys, each for a limited time, and of recent refusals of the key service.

The service receives one request per key, however many threads need the key. Threads that need other
keys do not wait.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
)
from modcrypt.runtime.fork_safety import fork_safe

MAX_CACHED = 100_000
"""Largest number of keys and refusals in a cache; when it is reached, the cache is emptied."""
REFUSAL_LIFETIME = 30.0
"""Seconds before a refused key is requested again: thousands of files may need the same one."""
UNAVAILABLE_LIFETIME = 1.0
"""Seconds before a key of an unavailable service is requested again, for waiting threads."""

V = TypeVar("V")


class KeyCache(Generic[V]):
    """A cache of opened keys by place, for any thread."""

    def __init__(self, lifetime: float, clock: Callable[[], float] | None = None) -> None:
        self._lifetime = lifetime
        self._clock = clock or (lambda: time.monotonic())  # noqa: PLW0108  # tests replace it
        self._known: dict[Hashable, tuple[V, float]] = {}
        self._refused: dict[Hashable, tuple[type[KeyRetrievalError], str, float]] = {}
        self._locks: dict[Hashable, threading.Lock] = {}
        self._guard = fork_safe(threading.Lock())

    def get(self, place: Hashable, request: Callable[[], V]) -> V:
        """Return the key of a place; if it is not cached, request it and cache it.

        Raise the KeyRetrievalError of `request`, or that of a moment ago, without a request.
        """
        if (key := self._find(place)) is None:
            with self._guard:
                lock = self._locks.setdefault(place, fork_safe(threading.Lock()))
            try:
                with lock, self.remember_refusal(place):
                    known = self._known  # `clear` discards what was requested before
                    key = self._find(place) or self._keep(place, request(), known)
            finally:
                with self._guard:
                    self._locks.pop(place, None)
        return key

    def put(self, place: Hashable, key: V) -> V:
        """Cache and return a key."""
        self._make_room()
        return self._keep(place, key, self._known)

    def _keep(self, place: Hashable, key: V, known: dict[Hashable, tuple[V, float]]) -> V:
        known[place] = key, self._clock() + self._lifetime
        return key

    def drop(self, place: Hashable) -> None:
        """Drop the key of a place, if it is cached."""
        self._known.pop(place, None)

    def has(self, place: Hashable) -> bool:
        """Return whether the key of a place is cached."""
        return self._find(place) is not None

    def clear(self) -> None:
        """Drop all keys and refusals."""
        self._known, self._refused = {}, {}

    def _find(self, place: Hashable) -> V | None:
        key, until = self._known.get(place, (None, 0.0))
        return key if until > self._clock() else None

    @contextlib.contextmanager
    def remember_refusal(self, place: Hashable) -> Iterator[None]:
        """Raise the refusal of a moment ago again, or remember the one that is raised now."""
        self._make_room()
        refused = self._refused
        kind, message, until = refused.get(place, (KeyRetrievalError, "", 0.0))
        if until > self._clock():
            raise kind(message)
        try:
            yield
        except (KeyAccessDeniedError, KeyNotFoundError, KmsUnavailableError) as error:
            temporary = isinstance(error, KmsUnavailableError)
            until = self._clock() + (UNAVAILABLE_LIFETIME if temporary else REFUSAL_LIFETIME)
            refused[place] = type(error), str(error), until
            raise

    def _make_room(self) -> None:
        if len(self._known) + len(self._refused) >= MAX_CACHED:
            self.clear()

"""Recognise parts that many files repeat in the same order: rows of Avro, or objects of JSON.

The bytes of a known part, where a part begins, are that part if its encoding shows where it ends.
In nearly all files the same parts follow as last time, and they are compared several at once.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

S = TypeVar("S", str, bytes)

STRETCH = 16
"""Number of parts that are compared at once."""


class Part(Generic[S]):
    """A part that was decoded; its data may contain keys."""

    __slots__ = ("_stretch", "begins_stretch", "data", "following", "value")

    def __init__(self, data: S, value: Any, number: int) -> None:
        self.data: S = data
        self.value = value
        self.begins_stretch = number % STRETCH == 0  # whether `find_stretch` may find any
        self.following: Part[S] | None = None  # the part that came after it last time
        self._stretch: Stretch[S] | None = None

    def find_stretch(self, data: S, at: int, between: S) -> Stretch[S] | None:
        """Return the parts at an offset if they are those that came after this one last time.

        `between` separates parts.
        """
        if self._stretch is None:
            self._stretch = self._make_stretch(between)
        stretch = self._stretch
        if stretch is None or data.startswith(stretch.data, at):
            return stretch
        self._stretch = None
        return None

    def _make_stretch(self, between: S) -> Stretch[S] | None:
        parts: list[Part[S]] = []
        part = self.following
        while part is not None and len(parts) < STRETCH:
            parts.append(part)
            part = part.following
        return Stretch(parts, between) if len(parts) == STRETCH else None


class Stretch(Generic[S]):
    """Parts that came after each other."""

    __slots__ = ("data", "last", "values")

    def __init__(self, parts: list[Part[S]], between: S) -> None:
        self.data: S = between.join(part.data for part in parts)
        self.values = [part.value for part in parts]
        self.last: Part[S] = parts[-1]

"""Recognise parts that many files repeat in the same order: rows of Avro, or objects of JSON.

The bytes of a known part, where a part begins, are that part if its encoding shows where it ends.
Nearly all files repeat a long run of the parts of another one, which is compared at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeVar

from modcrypt.runtime.fork_safety import cached_property

R = TypeVar("R")


class Products:
    """The results of a function for the values of a run; the run itself may contain keys."""

    def __init__(self, count: int) -> None:
        self.count = count  # number of the values
        self.made: list[Any] | None = None  # None until all are made


class Run:
    """The parts of one file in their order; its data may contain keys."""

    def __init__(self, data: bytes, starts: list[int], ends: list[int], values: list[Any]) -> None:
        self._data, self.size = memoryview(data), len(data)
        self.starts, self.ends = starts, ends  # offsets of the parts in the data
        self.values = values
        self.products = Products(len(values))

    def text_of(self, first: int, count: int) -> memoryview:
        """Return the data of parts from `first` on, with what separates them."""
        return self._data[self.starts[first] : self.ends[first + count - 1]]

    def count_within(self, first: int, size: int) -> int:
        """Return how many parts from `first` on fit into a number of bytes."""
        if first >= len(self.values):
            return 0
        return bisect_right(self.ends, self.starts[first] + size) - first

    @cached_property
    def next_of(self) -> dict[int, int]:
        """The number of the part after each part, by the id of its value."""
        return {id(value): number for number, value in enumerate(self.values, 1)}


class Slice(list[Any]):
    """The values of consecutive parts of a run."""

    def __init__(self, products: Products, first: int, values: list[Any]) -> None:
        super().__init__(values)
        self.products, self.first = products, first


def make_once(values: list[Any], make: Callable[[list[Any]], list[R]]) -> list[R]:
    """Return the results of `make` for values; those of a whole run are made only once."""
    if not isinstance(values, Slice):
        return make(values)
    products = values.products
    if products.made is not None:
        return products.made[values.first : values.first + len(values)]
    made = make(values)
    if len(values) == products.count:
        products.made = made
    return made


class Follower:
    """The parts of a file that is being read, as far as possible taken from a run."""

    def __init__(self, run: Run) -> None:
        self.values: list[Any] = []
        self.is_new = False  # whether the run lacks a part
        self._run = run
        self._next = 0  # number of the part of the run that is expected next
        # Parts in their order: numbers in the run and the offset of the first; or one part, with
        # -1 and the offsets of its beginning and end.
        self._pieces: list[tuple[int, int, int]] = []

    def count_within(self, size: int) -> int:
        """Return how many of the parts that are expected next fit into a number of bytes."""
        return self._run.count_within(self._next, size)

    def repeat(self, data: bytes, at: int, most: int, base: int = 0) -> int:
        """Add parts that begin at an offset of data and are those expected; return their size.

        At most `most` parts are compared at once. `base` is the offset of `data` in the file.
        """
        run, first = self._run, self._next
        whole = count = min(most, len(run.values) - first)
        if count < 1 or not data.startswith(run.text_of(first, 1), at):
            return 0
        while not data.startswith(part := run.text_of(first, count), at):
            count = count - 1 if count == whole else count // 2  # a log often lost its last part
        self.values += run.values[first : first + count]
        self._pieces.append((first, first + count, base + at))
        self._next += count
        return len(part)

    def add(self, value: Any, start: int, end: int) -> None:
        """Add a part that was decoded, with its offsets in the file."""
        self.values.append(value)
        if (number := self._run.next_of.get(id(value))) is None:
            self.is_new = True
            self._pieces.append((-1, start, end))
        else:
            self._next = number
            self._pieces.append((number - 1, number, start))

    def slice(self) -> Slice | None:
        """Return the values as a slice of the run; None if they are not one."""
        pieces = self._pieces
        if not pieces or self.is_new:
            return None
        if any(piece[0] != before[1] for before, piece in pairwise(pieces)):
            return None
        return Slice(self._run.products, pieces[0][0], self.values)

    def run(self, data: bytes) -> Run:
        """Return the parts as a run; `data` is that of the file."""
        starts, ends = list[int](), list[int]()
        for first, second, third in self._pieces:
            if first < 0:
                starts.append(second)
                ends.append(third)
            else:
                shift = third - self._run.starts[first]
                starts += [start + shift for start in self._run.starts[first:second]]
                ends += [end + shift for end in self._run.ends[first:second]]
        return Run(data, starts, ends, self.values)

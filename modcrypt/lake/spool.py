"""Any number of results in bounded memory: older blocks of a sequence are in a temporary file."""

from __future__ import annotations

import pickle
import tempfile
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import IO, Any, Generic, TypeVar, overload

BLOCK = 1000  # number of items in a block

MAX_KEPT = 10_000
"""Maximum number of values of a `Memo`: names of folders and columns may be hostile."""

T = TypeVar("T")


class Memo(Generic[T]):
    """Values that are made once for each key; if there are too many, all are forgotten."""

    def __init__(self) -> None:
        self._values: dict[Any, T] = {}

    def get(self, key: Any, make: Callable[[], T]) -> T:
        """Return the value of a key; make it if it is not known."""
        try:
            return self._values[key]
        except KeyError:
            value = make()
        if len(self._values) >= MAX_KEPT:
            self._values.clear()
        self._values[key] = value
        return value


class Spool(Sequence[T], Generic[T]):
    """A sequence that can only be appended to.

    The temporary file has no name, so no other program can open or alter it, and it disappears with
    this object. Items are results, which hold no keys.
    """

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._ends: list[int] = [0]  # of the blocks in the file
        self._last: list[T] = []
        self._file: IO[bytes] | None = None
        self.extend(items)

    def append(self, item: T) -> None:
        """Add an item at the end."""
        self._last.append(item)
        if len(self._last) == BLOCK:
            self._store_block()

    def extend(self, items: Iterable[T]) -> None:
        """Add items at the end."""
        for item in items:
            self.append(item)

    def _store_block(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as this
            weakref.finalize(self, self._file.close)
        data = zlib.compress(pickle.dumps(self._last, pickle.HIGHEST_PROTOCOL), 1)
        self._file.seek(self._ends[-1])
        self._file.write(data)
        self._ends.append(self._ends[-1] + len(data))
        self._last = []

    def _load_block(self, number: int) -> list[T]:
        if number == len(self._ends) - 1:
            return list(self._last)
        assert self._file is not None
        start, end = self._ends[number : number + 2]
        self._file.seek(start)
        items: list[T] = pickle.loads(zlib.decompress(self._file.read(end - start)))  # noqa: S301
        return items

    def blocks(self) -> Iterator[list[T]]:
        """Yield the items in lists of at most `BLOCK`."""
        for number in range(len(self._ends)):
            if block := self._load_block(number):
                yield block

    def __iter__(self) -> Iterator[T]:
        for block in self.blocks():
            yield from block

    def __len__(self) -> int:
        return (len(self._ends) - 1) * BLOCK + len(self._last)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(index)
        return self._load_block(number // BLOCK)[number % BLOCK]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Spool({len(self)} items)"


def take_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of at most `size` items."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch

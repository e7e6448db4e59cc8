"""Decode rows that many Avro files repeat once: a manifest list has nearly all rows of the last.

Given a schema, the encoding of Avro shows where a row ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar

from modcrypt.errors import FormatError
from modcrypt.iceberg.format.avro_files import AvroRows, block_decoder
from modcrypt.iceberg.format.repetition import Follower, Run, Slice
from modcrypt.runtime.tracebacks import hide_frames

T = TypeVar("T")

Decoder: TypeAlias = Callable[[AvroRows, bytes], Callable[[int], tuple[Any, int]]]
"""A function like `block_decoder`."""

_OBJECT, _NUMBERS = 1 << 10, 1 << 7
"""Estimated bytes of the object that is made of a row, and of what a run has for a row."""


class RepeatedRows(Generic[T]):
    """The rows of many files, decoded once; several threads may read files at the same time.

    Args:
        most: Number of bytes of rows and their objects after which all are forgotten.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._known: dict[bytes, _Known[T]] = {}

    @hide_frames
    def read(
        self, avro: AvroRows, make: Callable[[Any], T], decoder: Decoder = block_decoder
    ) -> list[T]:
        """Return the objects that `make` returns for the rows of a file; those of equal rows once.

        Files share rows if they have the same schema. `make` gets what the `decoder` returns, by
        default a dict. Raises the errors of `read_avro`, `make` and `decoder`.
        """
        self._make_room()
        text = avro.checked.text
        known = self._known.setdefault(text, _Known(len(text)))
        rows, blocks, base = Follower(known.run), list[bytes](), 0
        for count, data in avro.blocks:
            _read_block(avro, count, data, base, rows, known, make, decoder)
            blocks.append(data)
            base += len(data)
        if rows.is_new:
            known.run = run = rows.run(b"".join(blocks))
            return Slice(run.products, 0, rows.values)
        return rows.slice() or rows.values

    def _make_room(self) -> None:
        if self._most is not None:
            sizes = [known.size for known in list(self._known.values())]
            if sum(sizes) > self._most:
                self._known = {}


class _Known(Generic[T]):
    """The rows of one schema that were decoded before, and the objects made of them."""

    def __init__(self, size: int) -> None:
        self.values: dict[bytes, T] = {}  # the objects of all rows by their bytes
        self.run = Run(b"", [], [], [])  # the rows of the last file that had new ones
        self._size = size  # without the run

    @property
    def size(self) -> int:
        """Estimated bytes of everything."""
        return self._size + self.run.size + _NUMBERS * len(self.run.values)

    def add(self, row: bytes, value: T) -> T:
        """Return the object of a row, which is the given one unless another thread has added it."""
        self._size += len(row) + _OBJECT
        return self.values.setdefault(row, value)


def _read_block(
    avro: AvroRows, count: int, data: bytes, base: int, rows: Follower, known: _Known[T],
    make: Callable[[Any], T], decoder: Decoder,
) -> None:  # fmt: skip
    """Read the `count` rows of a block, which begins at the offset `base` of all rows."""
    at, end = 0, len(rows.values) + count
    decode = None
    while (missing := end - len(rows.values)) > 0:
        most = min(missing, rows.count_within(len(data) - at))
        if size := rows.repeat(data, at, most, base):
            at += size
            continue
        decode = decode or decoder(avro, data)
        row, stop = decode(at)
        own = data[at:stop]
        if (value := known.values.get(own)) is None:
            value = known.add(own, make(row))
        rows.add(value, base + at, base + stop)
        at = stop
    if at != len(data):
        raise FormatError(f"{avro.name}: a block of the Avro file is longer than its rows")

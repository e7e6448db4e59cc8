"""Decode rows that many Avro files repeat once: a manifest list has nearly all rows of the last.

Given a schema, the encoding of Avro shows where a row ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from modcrypt.errors import FormatError
from modcrypt.iceberg.format.avro_files import AvroRows, decode_row
from modcrypt.iceberg.format.repetition import STRETCH, Part
from modcrypt.tracebacks import hide_frames

T = TypeVar("T")


class RepeatedRows(Generic[T]):
    """The rows of many files, decoded once; several threads may read files at the same time."""

    def __init__(self) -> None:
        # Known rows by their bytes, by the writer's schema; an empty one stands before the first.
        self._by_schema: dict[bytes, dict[bytes, Part[bytes]]] = {}

    @hide_frames
    def read(self, avro: AvroRows, make: Callable[[dict[str, Any]], T]) -> list[T]:
        """Return the objects that `make` returns for the rows of a file; those of equal rows once.

        Raises the errors of `read_avro` and `make`.
        """
        known = self._by_schema.setdefault(avro.checked.text, {b"": Part(b"", None, 0)})
        row, values = known[b""], list[T]()
        for count, data in avro.blocks:
            at, end = 0, len(values) + count
            while len(values) < end:
                stretch = row.begins_stretch and row.find_stretch(data, at, b"")
                if stretch and len(values) + STRETCH <= end:
                    row, at = stretch.last, at + len(stretch.data)
                    values += stretch.values
                else:
                    row = _find_row(avro, data, at, row, known, make)
                    at += len(row.data)
                    values.append(row.value)
            if at != len(data):
                raise FormatError(f"{avro.name}: a block of the Avro file is longer than its rows")
        return values


def _find_row(
    avro: AvroRows, data: bytes, at: int, before: Part[bytes], known: dict[bytes, Part[bytes]],
    make: Callable[[dict[str, Any]], Any],
) -> Part[bytes]:  # fmt: skip
    """Return the row that begins at an offset of a block."""
    if (following := before.following) is not None and data.startswith(following.data, at):
        return following
    row, end = decode_row(avro, data, at)
    own = data[at:end]
    found = known.get(own) or known.setdefault(own, Part(own, make(row), len(known)))
    before.following = found
    return found

"""A read-only, seekable binary file object: all but where its bytes come from."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from functools import partial
from operator import index
from typing import Any, NoReturn

from modcrypt.io.buffers import new_bytes

__all__ = ["SeekableFile"]

_PEEK_BYTES = 256

_WORTH_NO_COPY = 64 << 10
"""Bytes of a read from which on making them without a copy takes less time than a copy."""


class SeekableFile(io.RawIOBase):
    """What a class of it reads by `_fill`; it has a `size`, and sets `_cursor` to 0.

    Reads give all that was asked for, up to the end: no `io.BufferedReader` is needed around it.
    """

    size: int
    """Length in bytes."""
    _cursor = 0

    def _fill(self, offset: int, out: memoryview) -> None:
        """Fill `out` from `offset`; the file has that much."""
        raise NotImplementedError

    def _advance(self, out: memoryview) -> None:
        """Fill `out` from the cursor, and move it."""
        self._fill(self._cursor, out)
        self._cursor += len(out)

    def read_at(self, offset: int, length: int) -> bytes:
        """Give up to `length` bytes from `offset`, without the cursor: fewer at the end.

        Raises:
            ModcryptError: what is there does not authenticate or breaks the format.
            ValueError: the file is closed, or a number is negative.
        """
        offset, length = index(offset), index(length)
        if offset < 0 or length < 0:
            raise ValueError("offset and length are not negative")
        return _filled(self._clipped(offset, length), partial(self._fill, offset))

    def _clipped(self, offset: int, length: int) -> int:
        self._check_open()
        return max(0, min(length, self.size - offset))

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("the file is closed")

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def seekable(self) -> bool:
        """Say that it can be sought."""
        return True

    def tell(self) -> int:
        """Give the cursor."""
        self._check_open()
        return self._cursor

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the cursor; give it. Beyond the end there is nothing to read."""
        self._check_open()
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._cursor, os.SEEK_END: self.size}.get(whence)
        if base is None:
            raise ValueError(f"there is no such whence: {whence}")
        position = base + index(offset)
        if position < 0:
            raise ValueError("a position is not negative")
        self._cursor = position
        return self._cursor

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` from the cursor on; give the number of bytes. Raises as `read_at`."""
        view = memoryview(buffer).cast("B")
        size = self._clipped(self._cursor, len(view))
        if size:
            self._advance(view[:size])
        return size

    def read(self, size: int | None = -1) -> bytes:
        """Give up to `size` bytes from the cursor on, or all the rest. Raises as `read_at`."""
        length = self.size if size is None or size < 0 else size
        return _filled(self._clipped(self._cursor, length), self._advance)

    def readall(self) -> bytes:
        """Give all the rest."""
        return self.read()

    def peek(self, size: int = 0) -> bytes:
        """Give some bytes from the cursor on without moving it; `readline` looks for them."""
        return self.read_at(self._cursor, max(size, _PEEK_BYTES))

    def write(self, data: Any) -> NoReturn:
        """Refuse to write."""
        raise io.UnsupportedOperation("not writable")

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} can't be pickled or copied: it has keys")


def _filled(size: int, fill: Callable[[memoryview], None]) -> bytes:
    """Give bytes that `fill` has filled."""
    if not size:
        return b""
    if size < _WORTH_NO_COPY:
        small = bytearray(size)
        fill(memoryview(small))
        return bytes(small)
    whole, out = new_bytes(size)
    fill(out)
    return whole

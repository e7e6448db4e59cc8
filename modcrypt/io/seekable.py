"""The base class of read-only, seekable binary file objects."""

from __future__ import annotations

import io
import os
from functools import partial
from operator import index
from typing import Any, NoReturn

from modcrypt.io.buffers import fill_bytes

_PEEK_BYTES = 256


class SeekableFile(io.RawIOBase):
    """A file object whose subclasses implement `_fill` and set `size`.

    Reads return as many bytes as requested, up to the end, so no `io.BufferedReader` is needed.
    """

    size: int
    """Length in bytes."""
    _cursor = 0

    def _fill(self, offset: int, out: memoryview) -> None:
        """Fill `out` from `offset`; the file contains these bytes."""
        raise NotImplementedError

    def _advance(self, out: memoryview) -> None:
        self._fill(self._cursor, out)
        self._cursor += len(out)

    def read_at(self, offset: int, length: int) -> bytes:
        """Return up to `length` bytes, fewer at the end; neither uses nor moves the cursor.

        Raises:
            ModcryptError: The bytes do not authenticate or violate the format.
            ValueError: The file is closed, or an argument is negative.
        """
        offset, length = index(offset), index(length)
        if offset < 0 or length < 0:
            raise ValueError("offset and length must not be negative")
        return fill_bytes(self._clip(offset, length), partial(self._fill, offset))

    def _clip(self, offset: int, length: int) -> int:
        self._check_open()
        return max(0, min(length, self.size - offset))

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("the file is closed")

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position of the cursor."""
        self._check_open()
        return self._cursor

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the cursor, possibly beyond the end, and return its position.

        Raise ValueError if the file is closed, `whence` is unknown, or the position is negative.
        """
        self._check_open()
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._cursor, os.SEEK_END: self.size}.get(whence)
        if base is None:
            raise ValueError(f"unknown whence: {whence}")
        position = base + index(offset)
        if position < 0:
            raise ValueError("position must not be negative")
        self._cursor = position
        return self._cursor

    def readinto(self, buffer: Any) -> int:
        """Read from the cursor into a buffer and return the number of bytes; raise as `read`."""
        view = memoryview(buffer).cast("B")
        if size := self._clip(self._cursor, len(view)):
            self._advance(view[:size])
        return size

    def read(self, size: int | None = -1) -> bytes:
        """Return bytes from the cursor on.

        Args:
            size: Maximum number of bytes; all up to the end if it is None or negative.

        Raises:
            ModcryptError: The bytes do not authenticate or violate the format.
            ValueError: The file is closed.
        """
        length = self.size if size is None or size < 0 else size
        return fill_bytes(self._clip(self._cursor, length), self._advance)

    def readall(self) -> bytes:
        """Return all bytes from the cursor on; raise as `read`."""
        return self.read()

    def peek(self, size: int = 0) -> bytes:
        """Return some bytes from the cursor on without moving it; `readline` uses them.

        Args:
            size: Number of bytes wanted; more may be returned, or fewer at the end.
        """
        return self.read_at(self._cursor, max(size, _PEEK_BYTES))

    def write(self, data: Any) -> NoReturn:
        """Raise io.UnsupportedOperation: the file is read-only."""
        raise io.UnsupportedOperation("not writable")

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} can't be pickled or copied: it has keys")

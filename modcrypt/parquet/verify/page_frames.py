"""Locate the modules of pages by their length fields, without opening any.

    [length | header] [length | body] [length | header] ...
    [length | header] [unencrypted levels] [length | values] ...  data pages V2 of parquet-java

Length fields are all that is readable of a page that does not open or has no key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from modcrypt.aead import CTR_OVERHEAD, GCM_OVERHEAD
from modcrypt.io.buffers import Window
from modcrypt.parquet.crypto.properties import GCM_V1
from modcrypt.parquet.format.modules import MAX_PAGE_HEADER

MAX_LEVELS = 64 << 10
"""Maximum number of unencrypted level bytes searched for the module that follows them."""

MAX_SEARCH = 4 << 20
"""Maximum number of bytes searched for a possible next page header."""

_BLOCK = 4 << 10
"""Number of bytes read at once: few, because most lengths are far from each other."""

_length = Struct("<I").unpack_from
_PERHAPS_LENGTH = re.compile(rb"(?=(?:[\x1c-\xff].|.[^\x00])\x00\x00)", re.DOTALL)


class Framed(NamedTuple):
    """The places of a page's two modules according to their length fields."""

    border: int  # end of the header's module
    body: int  # start of the body's module, after unencrypted levels, if any
    next: int


class Frames:
    """A reader of length fields; `algorithm` is that of the file, None if it names none."""

    def __init__(self, window: Window, algorithm: str | None) -> None:
        self.window, self._block = window, max(_BLOCK, window.least_read)
        self._least = GCM_OVERHEAD if algorithm == GCM_V1 else CTR_OVERHEAD

    def find(self, position: int, end: int, *, with_levels: bool = False) -> Framed | None:
        """Return the modules of the page at `position`, in a chunk that ends at `end`.

        `with_levels` looks for the body after unencrypted levels, too.
        """
        border = self.find_border(position, end)
        if border is None or border > end - 4:
            return None
        after = self.find_end(border, end)
        if after is not None and (after == end or self._looks_like_header(after, end)):
            return Framed(border, border, after)
        # If a module could start at the border, unencrypted levels would lie within it.
        last = min(border + MAX_LEVELS, end - 4, end if after is None else after - 1)
        for body in range(border + 1, last + 1) if with_levels else ():
            next_ = self.find_end(body, end)
            ends = next_ == end or (next_ is not None and self._looks_like_header(next_, end))
            if next_ is not None and ends and not self._ends_header(border, body):
                return Framed(border, body, next_)
        return None if after is None else Framed(border, border, after)

    def find_end(self, start: int, end: int) -> int | None:
        """Return where the module at `start` ends, if its length field is plausible."""
        if start + self._least > end:
            return None
        after = start + 4 + self.read_length(start, end)
        return after if start + self._least <= after <= end else None

    def _ends_header(self, start: int, body: int) -> bool:
        """Return whether a header's module ends at `body`, so that no levels precede it."""
        data = self.read(start, body)
        size = len(data)
        return any(at + 4 + _length(data, at)[0] == size for at in range(size - GCM_OVERHEAD))

    def find_border(self, position: int, end: int) -> int | None:
        """Return where the header's module ends, if its length field is plausible."""
        if end - position < GCM_OVERHEAD:
            return None
        border = position + 4 + self.read_length(position, end)
        return border if position + GCM_OVERHEAD < border <= end else None

    def find_possible_headers(self, position: int, end: int) -> Iterator[int]:
        """Yield positions of length fields below 64 KiB that may start a page header's module."""
        stop = min(end, position + MAX_SEARCH)
        while position < stop:
            data = self.read(position, min(stop, position + (1 << 16)))
            for match in _PERHAPS_LENGTH.finditer(data):
                if self._looks_like_header(position + match.start(), end):
                    yield position + match.start()
            if position + len(data) == stop:
                return
            position += len(data) - 3

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of the source."""
        self.window.fill(start, end, end)
        base = self.window.base
        return bytes(self.window.view[start - base : end - base])

    def _looks_like_header(self, position: int, end: int) -> bool:
        if not position < end - GCM_OVERHEAD:
            return False
        size = self.read_length(position, end)
        return GCM_OVERHEAD - 4 < size < min(end - position, MAX_PAGE_HEADER)

    def read_length(self, position: int, end: int) -> int:
        """Return the length at a position, at least four bytes before `end`."""
        self.window.fill(position, position + 4, min(end, position + self._block))
        value: int = _length(self.window.buffer, position - self.window.base)[0]
        return value

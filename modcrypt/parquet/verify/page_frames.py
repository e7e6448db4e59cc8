"""Where the modules of pages are by the length fields in front of them, without opening any.

    [length | header] [length | body] [length | header] ...
    [length | header] [levels in clear] [length | values] ...     data pages V2 of parquet-java

Of a page that does not open, or has no key, nothing else is to be seen.
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

__all__ = ["Framed", "Frames"]

MAX_LEVELS = 64 << 10
"""Most bytes of levels in clear that are searched for the module behind them."""

MAX_SEARCH = 4 << 20
"""Most bytes that are searched for what may be the next page header."""

_length = Struct("<I").unpack_from
_PERHAPS_LENGTH = re.compile(rb"(?=(?:[\x1c-\xff].|.[^\x00])\x00\x00)", re.DOTALL)


class Framed(NamedTuple):
    """Where length fields say that a page's two modules are."""

    border: int  # end of the header's module
    body: int  # start of the body's module: after levels in clear, if there are any
    next: int


class Frames:
    """Reads length fields.

    Args:
        algorithm: that the file names, if it does.
        with_levels: whether to look for bodies behind levels in clear.
    """

    def __init__(self, window: Window, algorithm: str | None, *, with_levels: bool) -> None:
        self._window = window
        self._least = GCM_OVERHEAD if algorithm == GCM_V1 else CTR_OVERHEAD
        self._levels = MAX_LEVELS if with_levels else 0

    def find(self, position: int, end: int) -> Framed | None:
        """Give the modules of the page at `position`, in a chunk that ends at `end`."""
        border = self.border(position, end)
        if border is None or border > end - 4:
            return None
        after = self._after(border, end)
        if after is not None and (after == end or self._like_header(after, end)):
            return Framed(border, border, after)
        # Where a module could be at once, levels would lie within it.
        last = min(border + self._levels, end - 4, end if after is None else after - 1)
        for body in range(border + 1, last + 1) if self._levels else ():
            next_ = self._after(body, end)
            ends = next_ == end or (next_ is not None and self._like_header(next_, end))
            if next_ is not None and ends and not self._ends_header(border, body):
                return Framed(border, body, next_)
        return None if after is None else Framed(border, border, after)

    def _after(self, body: int, end: int) -> int | None:
        """Give where the body's module ends, if there can be one."""
        after = body + 4 + self._u32(body)
        return after if body + self._least <= after <= end else None

    def _ends_header(self, start: int, body: int) -> bool:
        """Tell whether a header's module ends at `body`: what lies before it is no levels, then."""
        data = self.read(start, body)
        size = len(data)
        return any(at + 4 + _length(data, at)[0] == size for at in range(size - GCM_OVERHEAD))

    def border(self, position: int, end: int) -> int | None:
        """Give where the header's module ends, if there can be one."""
        if end - position < GCM_OVERHEAD:
            return None
        border = position + 4 + self._u32(position)
        return border if position + GCM_OVERHEAD < border <= end else None

    def perhaps_headers(self, position: int, end: int) -> Iterator[int]:
        """Give where a length field of less than 64 KiB stands, which may be a page header's."""
        stop = min(end, position + MAX_SEARCH)
        while position < stop:
            data = self.read(position, min(stop, position + (1 << 16)))
            for match in _PERHAPS_LENGTH.finditer(data):
                if self._like_header(position + match.start(), end):
                    yield position + match.start()
            if position + len(data) == stop:
                return
            position += len(data) - 3

    def read(self, start: int, end: int) -> bytes:
        """Give bytes of the source."""
        self._window.fill(start, end, end)
        base = self._window.base
        return bytes(self._window.view[start - base : end - base])

    def _like_header(self, position: int, end: int) -> bool:
        if not position < end - GCM_OVERHEAD:
            return False
        size = self._u32(position)
        return GCM_OVERHEAD - 4 < size < min(end - position, MAX_PAGE_HEADER)

    def _u32(self, position: int) -> int:
        self._window.fill(position, position + 4, position + 4)
        value: int = _length(self._window.buffer, position - self._window.base)[0]
        return value

"""Hash the parts of a file while it is written, in the thread that writes."""

from __future__ import annotations

from collections import deque
from typing import Any

from modcrypt.parquet.signatures.leaf_list import LeafPlace, start_leaf


class LeafHasher:
    """A function that sees all bytes of a file in order, and hashes its parts.

    The thread that makes the file calls `begin` and `end` before it passes the bytes on, so the
    thread that writes them knows where parts begin and end.
    """

    def __init__(self) -> None:
        self._borders: deque[tuple[int, LeafPlace | None]] = deque()
        self._at = 0  # bytes seen so far
        self._digest: Any = None
        self._place: LeafPlace | None = None
        self._start = 0
        self._hashes: dict[LeafPlace, bytes] = {}

    def begin(self, place: LeafPlace, position: int) -> None:
        """Note that a part begins at a position, where the part before it ends."""
        self._borders.append((position, place))

    def end(self, position: int) -> None:
        """Note that a part ends at a position, and none begins."""
        self._borders.append((position, None))

    def __call__(self, data: memoryview) -> None:
        """Hash the next bytes of the file."""
        end = self._at + len(data)
        while self._at < end:
            self._pass_borders()
            stop = min(end, self._borders[0][0]) if self._borders else end
            size = stop - self._at
            if self._digest is not None:
                self._digest.update(data[:size])
            data, self._at = data[size:], stop

    def finish(self) -> dict[LeafPlace, bytes]:
        """Return the hashes of all parts, when all bytes of them have been seen."""
        self._pass_borders()
        self._change_part(None)
        return self._hashes

    def _pass_borders(self) -> None:
        while self._borders and self._borders[0][0] <= self._at:
            self._change_part(self._borders.popleft()[1])

    def _change_part(self, place: LeafPlace | None) -> None:
        if self._place is not None and self._at > self._start:  # a reader sees no empty part
            self._hashes[self._place] = self._digest.digest()
        self._place, self._start = place, self._at
        self._digest = None if place is None else start_leaf(place)

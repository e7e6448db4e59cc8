"""A source that notes which of its bytes were read."""

from __future__ import annotations

import io


class Watched(io.BytesIO):
    """A source that notes which of its bytes were read."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.taken = bytearray(len(data))

    def read(self, size: int | None = -1) -> bytes:
        start = self.tell()
        data = super().read(size)
        self.taken[start : start + len(data)] = b"\1" * len(data)
        return data

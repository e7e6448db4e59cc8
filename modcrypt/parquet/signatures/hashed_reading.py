"""Hash a part of a signed file while a verification reads it, so that it is read once."""

from __future__ import annotations

from typing import Any

from modcrypt.io.buffers import BLOCK, Scratch
from modcrypt.io.sources import Source
from modcrypt.parquet.format.modules import Span
from modcrypt.parquet.signatures.leaf_list import start_leaf
from modcrypt.parquet.signatures.signed_source import compare_hash, place_of


class HashedReading(Source):
    """A source that hashes one part at a time, each byte when it is first read.

    Args:
        source: The file.
        entries: Its signed list, after verification.
    """

    def __init__(self, source: Source, entries: memoryview) -> None:
        self._source, self._entries = source, entries
        self.name, self.size, self.whole = source.name, source.size, source.whole
        self.place, self.stamp, self.least_read = source.place, source.stamp, source.least_read
        self._scratch = Scratch()
        self._digest: Any = None
        self._at = self._end = 0  # bytes of the part that are not hashed yet

    def begin(self, span: Span) -> None:
        """Hash a part from now on."""
        self._digest = start_leaf(place_of(span))
        self._at, self._end = span.start, span.end

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fill a buffer; raise as the file does."""
        self._source.read_into(offset, view)
        if self._at < self._end and offset + len(view) > self._at:
            self._read_until(offset)  # what a buffer had from before
            self._hash(view[self._at - offset : self._end - offset])

    def find_fault(self, span: Span) -> str | None:
        """Return what is wrong with the part, after the rest of it has been hashed."""
        self._read_until(self._end)
        return compare_hash(self._entries, span, place_of(span), self._digest.digest())

    def _read_until(self, end: int) -> None:
        end = min(end, self._end)
        while self._at < end:
            block = self._scratch.reserve(min(max(BLOCK, self.least_read), end - self._at))
            self._source.read_into(self._at, block)
            self._hash(block)

    def _hash(self, data: memoryview) -> None:
        self._digest.update(data)
        self._at += len(data)

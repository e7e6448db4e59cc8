"""Sources that compare the parts of a signed file with its signed list, after its verification.

`SignedSource` serves readers. It reads a part of a column chunk as a whole, hashes it and compares
it before it returns any of its bytes. The bytes stay in memory, and readers get those that were
hashed: between a hash and a second reading, anyone could exchange them.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from functools import partial
from typing import Any

from modcrypt.errors import WriterSignatureError
from modcrypt.io.buffers import BLOCK, Scratch, fill_bytes
from modcrypt.io.sources import Source
from modcrypt.parquet.format.modules import Span
from modcrypt.parquet.signatures.leaf_list import LeafPlace, find_hash, start_leaf
from modcrypt.runtime.fork_safety import fork_safe

KEPT_BYTES = 64 << 20
"""Most bytes of parts that stay in memory after they were hashed, besides one part of any size."""


def _place_of(span: Span) -> LeafPlace:
    return LeafPlace(span.row_group, span.column, int(span.part))


def _compare_hash(entries: memoryview, span: Span, found: bytes) -> str | None:
    """Return how the hash of a part differs from the signed list; None if it does not."""
    if (known := find_hash(entries, _place_of(span))) is None:
        return f"{span}: the signature of the file does not cover it"
    return None if found == known else f"{span}: its bytes are not those that the writer signed"


class SignedSource(Source):
    """The parts of a signed file, each of which is checked before any of its bytes is returned.

    `entries` is the signed list, after its verification.
    """

    lends = True

    def __init__(self, source: Source, entries: memoryview) -> None:
        self._source, self._entries = source, entries
        self.name, self.size, self.place = source.name, source.size, source.place
        self.stamp = source.stamp
        self._spans: list[Span] = []  # in file order, without overlaps
        self._starts: list[int] = []
        self._kept: OrderedDict[Span, bytes] = OrderedDict()
        self._size = 0
        self._lock = fork_safe(threading.Lock())

    def add(self, spans: Iterable[Span]) -> None:
        """Add parts that will be read; only these can be."""
        with self._lock:
            known = set(self._spans)
            if new := [span for span in spans if span not in known]:
                self._spans = sorted([*self._spans, *new])
                self._starts = [span.start for span in self._spans]

    def lend(self, offset: int) -> tuple[int, bytes]:
        """Return the part that contains an offset, and where it begins; raise as `read_into`."""
        span = self._find_span(offset)
        return span.start, self._load(span)

    def read_at(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes; raise as `read_into`."""
        if length:
            span = self._find_span(offset)
            if offset + length <= span.end:
                start = offset - span.start
                return self._load(span)[start : start + length]
        return super().read_at(offset, length)

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fill a buffer; raise WriterSignatureError for bytes that the signature does not cover."""
        end, out = offset + len(view), view
        while offset < end:
            span = self._find_span(offset)
            data = self._load(span)
            size = min(span.end, end) - offset
            out[:size] = memoryview(data)[offset - span.start : offset - span.start + size]
            offset, out = offset + size, out[size:]

    def _find_span(self, offset: int) -> Span:
        with self._lock:
            index = bisect_right(self._starts, offset) - 1
            span = self._spans[index] if index >= 0 else None
        if span is None or not span.start <= offset < span.end:
            raise WriterSignatureError(
                f"the signature of the file does not cover byte {offset}, which is to be read"
            )
        return span

    def _load(self, span: Span) -> bytes:
        with self._lock:
            if (data := self._kept.get(span)) is not None:
                self._kept.move_to_end(span)
                return data
        data = fill_bytes(span.end - span.start, partial(self._source.read_into, span.start))
        digest = start_leaf(_place_of(span))
        digest.update(data)
        if fault := _compare_hash(self._entries, span, digest.digest()):
            raise WriterSignatureError(fault)
        with self._lock:
            if span not in self._kept:
                self._kept[span] = data
                self._size += len(data)
            while self._size > KEPT_BYTES and len(self._kept) > 1:
                self._size -= len(self._kept.popitem(last=False)[1])
        return data


class HashedReading(Source):
    """A source that hashes one part at a time while a verification reads it, so that it reads once.

    Unlike `SignedSource`, it returns bytes before it has compared them: nothing may rely on a part
    before `find_fault` has returned None. `entries` is the signed list, after its verification.
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
        self._digest = start_leaf(_place_of(span))
        self._at, self._end = span.start, span.end

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fill a buffer; raise as the file does."""
        self._source.read_into(offset, view)
        if self._at < self._end and offset + len(view) > self._at:
            self._read_until(offset)  # what a buffer had from before
            self._hash(view[self._at - offset : self._end - offset])

    def find_fault(self, span: Span) -> str | None:
        """Hash the rest of the part; return its fault, or None."""
        self._read_until(self._end)
        return _compare_hash(self._entries, span, self._digest.digest())

    def _read_until(self, end: int) -> None:
        end = min(end, self._end)
        while self._at < end:
            block = self._scratch.reserve(min(max(BLOCK, self.least_read), end - self._at))
            self._source.read_into(self._at, block)
            self._hash(block)

    def _hash(self, data: memoryview) -> None:
        self._digest.update(data)
        self._at += len(data)

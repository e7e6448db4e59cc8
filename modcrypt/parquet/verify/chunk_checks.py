"""Verify one column chunk: open its indexes, walk its pages, and compare the two."""

from __future__ import annotations

from collections.abc import Iterator

from modcrypt.aad import ModuleId, ModuleType
from modcrypt.aead import GCM_OVERHEAD
from modcrypt.errors import FormatError, ModcryptError, TagMismatchError, TruncationError
from modcrypt.io.buffers import Window
from modcrypt.io.sources import Source
from modcrypt.parquet.crypto.chunk_opening import Chunk
from modcrypt.parquet.crypto.ciphers import FileCipher
from modcrypt.parquet.crypto.index_checks import (
    PageFacts,
    bloom_faults,
    chunk_faults,
    claim_faults,
    column_index_faults,
    missing_in_bloom,
    offset_index_faults,
)
from modcrypt.parquet.format.findings import Report
from modcrypt.parquet.format.idl import ThriftStruct, decode
from modcrypt.parquet.format.modules import Part, Span
from modcrypt.parquet.verify.chunk_report import ChunkReport
from modcrypt.parquet.verify.diagnosis import Detective
from modcrypt.parquet.verify.page_checks import PageWalk, Scratch
from modcrypt.parquet.verify.page_frames import Frames

__all__ = ["ChunkChecker"]


class ChunkChecker:
    """A checker that verifies chunks one after the other, in one thread."""

    def __init__(
        self,
        source: Source,
        cipher: FileCipher | None,
        detective: Detective | None,
        algorithm: str | None,
        *,
        regions: bool,
    ) -> None:
        self.source, self.scratch = source, Scratch()
        self.frames = Frames(Window(source), algorithm)
        self._cipher, self._detective, self._regions = cipher, detective, regions

    def check(self, chunk: Chunk) -> Report:
        """Return a report that holds every fault of a chunk."""
        cipher = None
        if chunk.cipher is not None and self._cipher is not None:
            cipher = chunk.cipher.copy_for_thread(self._cipher)
        report = ChunkReport(chunk, cipher, self._detective, regions=self._regions)
        try:
            _Check(self, chunk, report).run()
        except ModcryptError as error:  # the file was cut while it was being verified
            report.add_error(error)
        return report


class _Check:
    """The verification of one chunk."""

    def __init__(self, checker: ChunkChecker, chunk: Chunk, report: ChunkReport) -> None:
        self.checker, self.chunk, self.report = checker, chunk, report
        # Forged footers can place thousands of parts at the same bytes, which would take long.
        self.spans = {s.part: s for s in chunk.spans if s.part not in chunk.overlapping}

    def run(self) -> None:
        """Open the indexes first: they locate the pages after one that cannot be read."""
        offset_index = self._open_index(Part.OFFSET_INDEX, "OffsetIndex")
        column_index = self._open_index(Part.COLUMN_INDEX, "ColumnIndex")
        if Part.BLOOM_FILTER in self.spans:
            self._check_bloom_filter(self.spans[Part.BLOOM_FILTER])
        facts: PageFacts | None = PageFacts()  # of a chunk without pages
        if self.chunk.overlapping:
            facts = None
            self.report.add_note(
                "column", self.chunk.path, "parts of it overlap other parts of the file"
            )
        elif Part.PAGES in self.spans:
            checker = self.checker
            starts = [] if offset_index is None else offset_index.page_locations
            facts = PageWalk(
                self.report, checker.frames, checker.scratch,
                sorted(location.offset for location in starts),
                keep_headers=column_index is not None,
            ).walk(self.spans[Part.PAGES])  # fmt: skip
            facts = facts if facts.complete else None
        self._compare_with_pages(facts, offset_index, column_index)

    # --- indexes and bloom filters ---------------------------------------------------------------

    def _open_index(self, part: Part, name: str) -> ThriftStruct | None:
        """Open and decode an index; return None if it is absent or cannot be read."""
        span = self.spans.get(part)
        plain = (
            None if span is None else self._open_module(ModuleType[part.name], span.start, span.end)
        )
        if span is None or plain is None:
            return None
        try:
            return decode(name, plain)[0]
        except FormatError as error:
            module = self.chunk.id(ModuleType[part.name])
            message = f"{module}: {error}"
            self.report.add_fault(error.word, message, span.start, span.end, module)
            return None

    def _open_module(self, kind: ModuleType, start: int, end: int) -> bytes | None:
        """Return the plaintext of the module in [start, end); None if it cannot be opened."""
        report, cipher, module = self.report, self.report.cipher, self.chunk.id(kind)
        data = self.checker.source.read_at(start, end - start)
        if not self.chunk.encrypted:
            report.add_module_region(start, end, kind, "plaintext")
            return data
        if cipher is None:
            report.add_module_region(start, end, kind, "locked")
            if len(data) < GCM_OVERHEAD or int.from_bytes(data[:4], "little") != len(data) - 4:
                report.add_truncated(module, start, end)
            return None
        try:
            plain = cipher.open(kind, data)
        except (TagMismatchError, TruncationError) as error:
            report.add_unopened(error, module, start, end, memoryview(data))
            return None
        report.count_opened(module, start, end)
        return plain

    def _check_bloom_filter(self, span: Span) -> None:
        start, end, report = span.start, span.end, self.report
        module = self.chunk.id(ModuleType.BLOOM_FILTER_HEADER)
        if not self.chunk.encrypted:
            report.add_module_region(start, end, "bloom filter", "plaintext")
            data = self.checker.source.read_at(start, end - start)
            self._compare_bloom_filter(span, data, None)
            return
        head = self.checker.source.read_at(start, min(4, end - start))
        border = start + 4 + int.from_bytes(head, "little")
        if not start + GCM_OVERHEAD <= border <= end - GCM_OVERHEAD:
            report.add_module_region(start, end, "bloom filter", "fault")
            report.add_truncated(module, start, end)
            return
        header = self._open_module(ModuleType.BLOOM_FILTER_HEADER, start, border)
        bitset = self._open_module(ModuleType.BLOOM_FILTER_BITSET, border, end)
        if header is not None:
            self._compare_bloom_filter(span, header, bitset)

    def _compare_bloom_filter(self, span: Span, data: bytes, bitset: bytes | None) -> None:
        """Compare the header with the bitset, which follows it directly in plaintext."""
        module = self.chunk.id(ModuleType.BLOOM_FILTER_HEADER)
        try:
            header, size = decode("BloomFilterHeader", data)
        except FormatError as error:
            message = f"{module}: {error}"
            self.report.add_fault(error.word, message, span.start, span.end, module)
            return
        if not self.chunk.encrypted:
            bitset = data[size:]
        faults = list(bloom_faults(header, None if bitset is None else len(bitset)))
        for word, what, severity in faults:
            message = f"{self.chunk.where}: {what}"
            self.report.add_fault(word, message, span.start, span.end, module, severity)
        if not faults and bitset is not None:
            md, element = self.chunk.metadata, self.chunk.element
            if missing_in_bloom(header, bitset, md, element):
                message = f"{self.chunk.where}: the bloom filter lacks a value of the statistics"
                self.report.add_fault("format", message, span.start, span.end, module)

    # --- comparing metadata, indexes and pages ---------------------------------------------------

    def _compare_with_pages(
        self,
        facts: PageFacts | None,
        offset_index: ThriftStruct | None,
        column_index: ThriftStruct | None,
    ) -> None:
        """Compare column metadata and indexes with the pages, if all pages are known."""
        chunk, md = self.chunk, self.chunk.metadata
        pages = self.spans.get(Part.PAGES)
        self._add_faults(claim_faults(md, chunk.element), pages, None)
        if facts is not None:
            self._add_faults(chunk_faults(md, chunk.leaf, chunk.rows, facts), pages, None)
        if offset_index is not None:
            self._add_faults(
                offset_index_faults(offset_index, md, chunk.leaf, chunk.rows, facts),
                self.spans[Part.OFFSET_INDEX],
                chunk.id(ModuleType.OFFSET_INDEX),
            )
        if column_index is not None:
            self._add_faults(
                column_index_faults(
                    column_index, offset_index, md, chunk.leaf, chunk.element, facts
                ),
                self.spans[Part.COLUMN_INDEX],
                chunk.id(ModuleType.COLUMN_INDEX),
            )

    def _add_faults(
        self, messages: Iterator[str], span: Span | None, module: ModuleId | None
    ) -> None:
        start, end = (None, None) if span is None else (span.start, span.end)
        where = self.chunk.where if module is None else str(module)
        for message in messages:
            self.report.add_fault("format", f"{where}: {message}", start, end, module)

"""One column chunk that is verified: its indexes opened, its pages walked, and both compared."""

from __future__ import annotations

from collections.abc import Iterator

from modcrypt.aad import ModuleId, ModuleType
from modcrypt.aead import GCM_OVERHEAD
from modcrypt.errors import FormatError, ModcryptError, TagMismatchError, TruncationError
from modcrypt.io.buffers import Window
from modcrypt.io.storage import Source
from modcrypt.parquet.crypto.ciphers import ChunkCipher, FileCipher
from modcrypt.parquet.crypto.index_checks import (
    PageFacts,
    bloom_faults,
    chunk_faults,
    claim_faults,
    column_index_faults,
    missing_in_bloom,
    offset_index_faults,
)
from modcrypt.parquet.format.idl import ThriftStruct, decode
from modcrypt.parquet.format.levels import Levels
from modcrypt.parquet.format.modules import Part, Span
from modcrypt.parquet.verify.chunk_report import Chunk, ChunkReport
from modcrypt.parquet.verify.diagnosis import Detective
from modcrypt.parquet.verify.findings import Report
from modcrypt.parquet.verify.page_checks import PageWalk, Scratch

__all__ = ["ChunkChecker"]


class ChunkChecker:
    """Checks chunks one after the other; for one thread."""

    def __init__(
        self,
        source: Source,
        cipher: FileCipher | None,
        detective: Detective | None,
        algorithm: str | None,
        *,
        regions: bool,
    ) -> None:
        self.source, self.window, self.scratch = source, Window(source), Scratch()
        self.algorithm = algorithm
        self._cipher, self._detective, self._regions = cipher, detective, regions

    def check(self, chunk: Chunk) -> Report:
        """Check a chunk; every fault is in the report."""
        cipher = None
        if chunk.key is not None and self._cipher is not None:
            cipher = ChunkCipher(self._cipher, chunk.key, chunk.ordinal, chunk.column, chunk.path)
            cipher.levels = _levels(chunk)
        report = ChunkReport(chunk, cipher, self._detective, regions=self._regions)
        try:
            _Check(self, chunk, report).run()
        except ModcryptError as error:  # the file became shorter meanwhile
            report.error(error)
        return report


def _levels(chunk: Chunk) -> Levels:
    """Give what levels in clear are held against."""
    statistics = chunk.metadata.statistics
    counted = statistics is not None and statistics.null_count is not None
    return Levels(chunk.leaf.max_definition, chunk.leaf.max_repetition, counted)


class _Check:
    """One chunk that is being checked."""

    def __init__(self, checker: ChunkChecker, chunk: Chunk, report: ChunkReport) -> None:
        self.checker, self.chunk, self.report = checker, chunk, report
        # Thousands of parts in one place would be looked into as often.
        self.spans = {s.part: s for s in chunk.spans if s.part not in chunk.overlapping}

    def run(self) -> None:
        """Open the indexes first: they tell where pages are if one of them can't be read."""
        offset_index = self._index(Part.OFFSET_INDEX, "OffsetIndex")
        column_index = self._index(Part.COLUMN_INDEX, "ColumnIndex")
        if Part.BLOOM_FILTER in self.spans:
            self._check_bloom_filter(self.spans[Part.BLOOM_FILTER])
        facts: PageFacts | None = PageFacts()  # of a chunk without pages
        if self.chunk.overlapping:
            facts = None
            self.report.note("column", self.chunk.path, "parts of it lie in another one's place")
        elif Part.PAGES in self.spans:
            checker = self.checker
            starts = [] if offset_index is None else offset_index.page_locations
            facts = PageWalk(
                checker.source, checker.window, checker.scratch, self.report,
                sorted(one.offset for one in starts), checker.algorithm,
                keep_headers=column_index is not None,
            ).walk(self.spans[Part.PAGES])  # fmt: skip
        self._compare(facts, offset_index, column_index)

    # --- indexes and bloom filters ---------------------------------------------------------------

    def _index(self, part: Part, name: str) -> ThriftStruct | None:
        """Open and decode an index; None where there is none to be had."""
        span = self.spans.get(part)
        plain = None if span is None else self._open(ModuleType[part.name], span.start, span.end)
        if span is None or plain is None:
            return None
        try:
            return decode(name, plain)[0]
        except FormatError as error:
            module = self.chunk.id(ModuleType[part.name])
            message = f"{module}: {error}"
            self.report.fault(error.word, message, span.start, span.end, module)
            return None

    def _open(self, kind: ModuleType, start: int, end: int) -> bytes | None:
        """Give the plain bytes of a module that fills [start, end); None where it can't be had."""
        report, cipher, module = self.report, self.report.cipher, self.chunk.id(kind)
        data = self.checker.source.read_at(start, end - start)
        if not self.chunk.encrypted:
            report.module_region(start, end, kind, "plaintext")
            return data
        if cipher is None:
            report.module_region(start, end, kind, "locked")
            if len(data) < GCM_OVERHEAD or int.from_bytes(data[:4], "little") != len(data) - 4:
                report.truncated(module, start, end)
            return None
        try:
            plain = cipher.open(kind, data)
        except (TagMismatchError, TruncationError) as error:
            report.unopened(error, module, start, end, memoryview(data))
            return None
        report.opened(module, start, end)
        return plain

    def _check_bloom_filter(self, span: Span) -> None:
        start, end, report = span.start, span.end, self.report
        module = self.chunk.id(ModuleType.BLOOM_FILTER_HEADER)
        if not self.chunk.encrypted:
            report.module_region(start, end, "bloom filter", "plaintext")
            data = self.checker.source.read_at(start, end - start)
            self._judge_bloom_filter(span, data, None)
            return
        head = self.checker.source.read_at(start, min(4, end - start))
        border = start + 4 + int.from_bytes(head, "little")
        if not start + GCM_OVERHEAD <= border <= end - GCM_OVERHEAD:
            report.module_region(start, end, "bloom filter", "fault")
            report.truncated(module, start, end)
            return
        header = self._open(ModuleType.BLOOM_FILTER_HEADER, start, border)
        bitset = self._open(ModuleType.BLOOM_FILTER_BITSET, border, end)
        if header is not None:
            self._judge_bloom_filter(span, header, bitset)

    def _judge_bloom_filter(self, span: Span, data: bytes, bitset: bytes | None) -> None:
        """Hold the header against the size of the bitset; in plaintext it follows the header."""
        module = self.chunk.id(ModuleType.BLOOM_FILTER_HEADER)
        try:
            header, size = decode("BloomFilterHeader", data)
        except FormatError as error:
            message = f"{module}: {error}"
            self.report.fault(error.word, message, span.start, span.end, module)
            return
        if not self.chunk.encrypted:
            bitset = data[size:]
        found = list(bloom_faults(header, None if bitset is None else len(bitset)))
        for word, what, severity in found:
            message = f"{self.chunk.where}: {what}"
            self.report.fault(word, message, span.start, span.end, module, severity)
        if not found and bitset is not None:
            md, element = self.chunk.metadata, self.chunk.element
            if missing_in_bloom(header, bitset, md, element):
                message = f"{self.chunk.where}: its bloom filter lacks a value of its statistics"
                self.report.fault("format", message, span.start, span.end, module)

    # --- what belongs together -------------------------------------------------------------------

    def _compare(
        self,
        facts: PageFacts | None,
        offset_index: ThriftStruct | None,
        column_index: ThriftStruct | None,
    ) -> None:
        """Hold column metadata and indexes against the pages, where all of them are known."""
        chunk, md = self.chunk, self.chunk.metadata
        pages = self.spans.get(Part.PAGES)
        self._tell(claim_faults(md, chunk.element), pages, None)
        if facts is not None:
            self._tell(chunk_faults(md, chunk.leaf, chunk.rows, facts), pages, None)
        if offset_index is not None:
            self._tell(
                offset_index_faults(offset_index, md, chunk.leaf, chunk.rows, facts),
                self.spans[Part.OFFSET_INDEX],
                chunk.id(ModuleType.OFFSET_INDEX),
            )
        if column_index is not None:
            self._tell(
                column_index_faults(
                    column_index, offset_index, md, chunk.leaf, chunk.element, facts
                ),
                self.spans[Part.COLUMN_INDEX],
                chunk.id(ModuleType.COLUMN_INDEX),
            )

    def _tell(self, messages: Iterator[str], span: Span | None, module: ModuleId | None) -> None:
        start, end = (None, None) if span is None else (span.start, span.end)
        where = self.chunk.where if module is None else str(module)
        for message in messages:
            self.report.fault("format", f"{where}: {message}", start, end, module)

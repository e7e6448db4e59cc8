"""Verify one column chunk: open its indexes, walk its pages, and compare the two."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from modcrypt.errors import FormatError, ModcryptError, TagMismatchError, TruncationError
from modcrypt.io.buffers import Scratch, Window
from modcrypt.module_ids import ModuleId, ModuleType, in_words
from modcrypt.parquet.crypto.bloom_filters import (
    bloom_faults,
    is_in_clear,
    missing_in_bloom,
    part_modules,
)
from modcrypt.parquet.crypto.chunk_opening import Chunk
from modcrypt.parquet.crypto.ciphers import FileCipher, check_length
from modcrypt.parquet.crypto.column_kinds import FOOTER_KEY
from modcrypt.parquet.crypto.index_checks import (
    chunk_faults,
    claim_faults,
    column_index_faults,
    counts_all_nulls,
    find_misleading_writer,
    null_page_quirks,
    offset_index_faults,
)
from modcrypt.parquet.crypto.page_facts import PageFacts
from modcrypt.parquet.format.byte_map import Severity
from modcrypt.parquet.format.idl import ThriftStruct, copy, decode
from modcrypt.parquet.format.modules import STRUCTS, Part, Span
from modcrypt.parquet.format.report import Report
from modcrypt.parquet.signatures.signed_source import HashedReading
from modcrypt.parquet.verify.chunk_plan import ChunkPlan
from modcrypt.parquet.verify.chunk_report import ChunkReport
from modcrypt.parquet.verify.diagnosis import Detective
from modcrypt.parquet.verify.page_checks import check_pages
from modcrypt.parquet.verify.page_quirks import (
    counts_values_as_rows,
    describe_header_quirks,
    forgets_dictionary_header,
)
from modcrypt.parquet.verify.page_recovery import Frames

if TYPE_CHECKING:
    from mypy_extensions import i64

# Reading them of the enum takes longer than a comparison.
_PAGES: Final = Part.PAGES
_OFFSET_INDEX: Final = Part.OFFSET_INDEX
_COLUMN_INDEX: Final = Part.COLUMN_INDEX
_BLOOM_FILTER: Final = Part.BLOOM_FILTER


def split_batches(chunks: Sequence[Chunk], size: i64) -> list[list[Chunk]]:
    """Return lists of chunks in file order, each of about `size` bytes."""
    batches: list[list[Chunk]] = []
    left: i64 = 0
    for chunk in sorted(chunks, key=_start_of):
        if left <= 0:
            batches.append([])
            left = size
        batches[-1].append(chunk)
        left -= chunk.size
    return batches


def _start_of(chunk: Chunk) -> int:
    return chunk.spans[0].start if chunk.spans else 0


def merge_reports(report: Report, chunks: Sequence[Chunk], parts: Sequence[Report]) -> bool:
    """Add reports of chunks to that of the file; return whether the footer key opened a module."""
    key_works = False
    for chunk, part in zip(chunks, parts, strict=True):
        key_works = key_works or (chunk.kind == FOOTER_KEY and part.modules > 0)
        report.merge(part, chunk.where if part.findings else "")
    return key_works


class ChunkChecker:
    """A checker that verifies chunks one after the other, in one thread."""

    def __init__(self, plan: ChunkPlan) -> None:
        footer = plan.footer
        self.source, self.scratch = plan.source, Scratch()
        signed = footer.signed
        self.hashed = None if signed is None else HashedReading(plan.source, signed)
        self.frames = Frames(Window(self.hashed or plan.source), footer.algorithm_name)
        # Readers of a plaintext file, which no tag protects, ignore indexes that they cannot use.
        self.optional: Severity = "fault" if footer.encrypted else "warning"
        metadata = footer.metadata
        self.created_by = None if metadata is None else metadata.created_by
        self._cipher: FileCipher | None = None
        self._detective: Detective | None = None
        self._regions = plan.report.regions is not None
        if footer.has_cipher:
            self._cipher = FileCipher(footer.cipher.file_aad, footer.cipher.algorithm)
            self._detective = plan.make_detective(self._cipher)

    def check(self, chunks: Sequence[Chunk]) -> list[Report]:
        """Return a report for each of some chunks, in file order, that holds all its faults."""
        if self.hashed is None:  # else bytes belong to the chunk that is being read
            self.frames.window.ahead = _find_end_of_run(chunks)
        return [self._check_chunk(chunk) for chunk in chunks]

    def _check_chunk(self, chunk: Chunk) -> Report:
        cipher = None
        if chunk.cipher is not None and self._cipher is not None:
            cipher = chunk.cipher.copy_for_thread(self._cipher)
        report = ChunkReport(chunk, cipher, self._detective, regions=self._regions)
        try:
            _Check(self, chunk, report).run()
        except ModcryptError as error:  # the file was cut while it was being verified
            report.add_error(error)
        return report


def _find_end_of_run(chunks: Sequence[Chunk]) -> int:
    """Return where the last pages end if those of each chunk begin where others end; else 0."""
    end = 0
    for chunk in chunks:
        for span in chunk.spans:
            if span.part is _PAGES:
                if end and span.start != end:
                    return 0
                end = span.end
    return end


class _Check:
    """The verification of one chunk."""

    def __init__(self, checker: ChunkChecker, chunk: Chunk, report: ChunkReport) -> None:
        self.checker, self.chunk, self.report = checker, chunk, report
        # Forged footers can place thousands of parts at the same bytes, which would take long.
        self.spans = {s.part: s for s in chunk.spans if s.part not in chunk.overlapping}

    def run(self) -> None:
        """Open the indexes first: they locate the pages after one that cannot be read."""
        self._check_signed_parts()
        offset_index, _ = self._open_part(_OFFSET_INDEX)
        column_index, _ = self._open_part(_COLUMN_INDEX)
        self._check_bloom_filter()
        facts: PageFacts | None = None
        if self.chunk.overlapping:
            note = "parts of it overlap other parts of the file"
            self.report.add_note("column", self.chunk.path, note)
        elif _PAGES in self.spans:
            checker = self.checker
            starts = [] if offset_index is None else offset_index.page_locations
            pages = self.spans[_PAGES]
            if checker.hashed is not None:
                checker.hashed.begin(pages)
            facts = check_pages(
                pages, self.report, checker.frames, checker.scratch,
                sorted(location.offset for location in starts),
                keep_headers=column_index is not None,
            )  # fmt: skip
            self._finish_hash(pages)
            facts = facts if facts.complete else None
        else:
            facts = PageFacts()  # of a chunk without pages
        self._compare_with_pages(facts, offset_index, column_index)

    def _check_signed_parts(self) -> None:
        """Compare all parts of the chunk, opened or not, with what the file's writer signed."""
        # Pages that are read afterwards are hashed then, see `_finish_hash`.
        hashed = self.checker.hashed
        if hashed is None:
            return
        for span in self.chunk.spans:
            if span.part is not _PAGES or self.chunk.overlapping:
                hashed.begin(span)
                self._finish_hash(span)

    def _finish_hash(self, span: Span) -> None:
        hashed = self.checker.hashed
        fault = None if hashed is None else hashed.find_fault(span)
        if fault is not None:
            self.report.add_fault("writer-signature", fault, span.start, span.end)

    def _open_part(self, part: Part) -> tuple[ThriftStruct, bytes | None] | tuple[None, None]:
        """Open and decode an index, or the header of a bloom filter, and return it with the bitset.

        What is absent or cannot be read is None.
        """
        span, report = self.spans.get(part), self.report
        if span is None:
            return None, None
        data = self.checker.source.read_at(span.start, span.end - span.start)
        is_filter = part is _BLOOM_FILTER
        module = self.chunk.id(ModuleType["BLOOM_FILTER_HEADER" if is_filter else part.name])
        plain: list[bytes | None] = [data]
        if self.chunk.encrypted and is_in_clear(span, data):
            self._report_in_clear(span, module)
            return None, None
        try:
            if not self.chunk.encrypted:
                kind = "bloom filter" if is_filter else module
                report.add_module_region(span.start, span.end, kind, "plaintext")
            else:
                plain = [
                    self._open_module(kind, start, end, span, data)
                    for kind, start, end in part_modules(span, data)
                ]
            if plain[0] is None:
                return None, None
            struct, size = decode(STRUCTS[part], plain[0])
        except TruncationError as error:
            report.add_module_region(span.start, span.end, "bloom filter", "fault")
            report.add_error(error, span.start, span.end, module)
        except FormatError as error:
            message, severity = f"{module}: {error}", self.checker.optional
            report.add_fault(error.word, message, span.start, span.end, module, severity)
        else:
            return struct, plain[-1] if self.chunk.encrypted else data[size:]
        return None, None

    def _report_in_clear(self, span: Span, module: ModuleId) -> None:
        """Report a part that is not encrypted although its column is, and that readers ignore."""
        name = in_words(span.part)
        severity: Severity = "fault"
        who, then = "as no known writer leaves it", "leaves it out"
        if span.part is _BLOOM_FILTER:
            severity = "warning"
            who, then = "as arrow-rs writes it", "encrypts it if it holds all values"
        message = (
            f"{self.chunk.where}: its {name} is not encrypted although the column is, {who}; "
            f"modcrypt does not use it, and re-keying {then}"
        )
        self.report.add_fault("plaintext", message, span.start, span.end, module, severity)
        self.report.add_module_region(span.start, span.end, name, "plaintext")
        self.report.add_note("parts", self.chunk.path, f"its {name} is not encrypted")

    def _open_module(
        self, kind: ModuleType, start: int, end: int, span: Span, data: bytes
    ) -> bytes | None:
        """Return the plaintext of the module in [start, end) of a part; None if it stays closed."""
        report, cipher, module = self.report, self.report.cipher, self.chunk.id(kind)
        stored = memoryview(data)[start - span.start : end - span.start]
        if cipher is None:
            report.add_module_region(start, end, module, "locked")
            try:
                check_length(module, stored)
            except TruncationError as error:
                report.add_error(error, start, end, module)
            return None
        try:
            plain = cipher.decrypt(kind, stored)
        except (TagMismatchError, TruncationError) as error:
            report.add_unopened(error, module, start, end, stored)
            return None
        report.count_opened(module, start, end)
        return plain

    def _check_bloom_filter(self) -> None:
        header, bitset = self._open_part(_BLOOM_FILTER)
        if header is None:
            return
        span, module = self.spans[_BLOOM_FILTER], self.chunk.id(ModuleType.BLOOM_FILTER_HEADER)
        faults = list(bloom_faults(header, None if bitset is None else len(bitset)))
        for word, what, severity in faults:
            message = f"{self.chunk.where}: {what}"
            worst = self.checker.optional if severity == "fault" else severity
            self.report.add_fault(word, message, span.start, span.end, module, worst)
        if faults or bitset is None:
            return
        if missing_in_bloom(header, bitset, self.chunk.metadata, self.chunk.element):
            message = f"{self.chunk.where}: the bloom filter lacks a value of the statistics"
            severity = self.checker.optional
            self.report.add_fault("format", message, span.start, span.end, module, severity)

    def _compare_with_pages(
        self,
        facts: PageFacts | None,
        offset_index: ThriftStruct | None,
        column_index: ThriftStruct | None,
    ) -> None:
        """Compare column metadata and indexes with the pages, if all pages are known."""
        chunk, md = self.chunk, self.chunk.metadata
        pages = self.spans.get(_PAGES)
        wrong_type = md.type != chunk.element.type
        severity: Severity = "fault" if wrong_type else self.checker.optional
        self._add_faults(claim_faults(md, chunk.element), pages, None, severity)
        if facts is not None:
            md = self._set_quirks_aside(facts)
            self._add_faults(chunk_faults(md, chunk.leaf, chunk.rows, facts), pages, None)
        if offset_index is not None:
            self._add_faults(
                offset_index_faults(offset_index, md, chunk.leaf, chunk.rows, facts),
                self.spans[_OFFSET_INDEX],
                chunk.id(ModuleType.OFFSET_INDEX),
                self.checker.optional,
            )
        if column_index is not None:
            self._check_column_index(column_index, offset_index, facts)

    def _check_column_index(
        self, index: ThriftStruct, offset_index: ThriftStruct | None, facts: PageFacts | None
    ) -> None:
        """Compare a column index; one that encryption hid from readers can mislead nobody."""
        chunk = self.chunk
        span, module = self.spans[_COLUMN_INDEX], chunk.id(ModuleType.COLUMN_INDEX)
        hidden = chunk.struct.column_index_offset is None
        md, leaf, created_by = chunk.metadata, chunk.leaf, self.checker.created_by
        counted = counts_all_nulls(created_by, leaf, chunk.element)
        faults = list(
            column_index_faults(
                index, offset_index, md, leaf, chunk.element, facts, counted=counted
            )
        )
        severity: Severity = "warning" if hidden or not faults else self.checker.optional
        what = "; encryption has hidden it from readers" if hidden else ""
        if not faults and facts is not None:
            faults = list(null_page_quirks(index, facts.values, leaf))
        elif writer := find_misleading_writer(created_by, leaf):
            severity = "warning"
            what += f"; {writer} writes such indexes and bounds, by which readers lose rows"
        self._add_faults((fault + what for fault in faults), span, module, severity)

    def _set_quirks_aside(self, facts: PageFacts) -> ThriftStruct:
        """Report quirks of the file's writer; return metadata without them, to find faults."""
        chunk, md = self.chunk, self.chunk.metadata
        counts_values = counts_values_as_rows(chunk, facts)
        forgets = forgets_dictionary_header(chunk, facts)
        if counts_values or forgets:
            for quirk in describe_header_quirks(chunk, facts):
                self.report.add_warning("format", quirk)
        if forgets:
            md = copy(md)
            md.data_page_offset = facts.pages[0][0]
        facts.counts_values = counts_values
        return md

    def _add_faults(
        self, messages: Iterable[str], span: Span | None, module: ModuleId | None,
        severity: Severity = "fault",
    ) -> None:  # fmt: skip
        for message in messages:  # there are hardly any
            start, end = (None, None) if span is None else (span.start, span.end)
            where = self.chunk.where if module is None else str(module)
            self.report.add_fault("format", f"{where}: {message}", start, end, module, severity)

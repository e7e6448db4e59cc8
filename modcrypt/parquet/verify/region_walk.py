"""Map a file's bytes to regions, as far as its footer and the keys at hand reveal them.

Modules that the footer hides are distinguished only by the length that each begins with. This guess
ends at a plaintext column or at parquet-java's unencrypted levels.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import itemgetter

from modcrypt.errors import FormatError, ModcryptError, PlaintextError, TagMismatchError
from modcrypt.io.buffers import Window
from modcrypt.module_ids import in_words
from modcrypt.parquet.crypto.bloom_filters import open_part
from modcrypt.parquet.crypto.chunk_opening import Chunk
from modcrypt.parquet.crypto.ciphers import ChunkCipher, FileCipher
from modcrypt.parquet.crypto.index_checks import wrong_null_pages
from modcrypt.parquet.format.byte_map import Region, fill_gaps
from modcrypt.parquet.format.idl import ThriftStruct, decode, unknown_fields
from modcrypt.parquet.format.modules import MAX_INDEX, STRUCTS, Part, Span
from modcrypt.parquet.verify.chunk_plan import ChunkPlan
from modcrypt.parquet.verify.chunk_report import ChunkReport
from modcrypt.parquet.verify.footer_view import FooterView
from modcrypt.parquet.verify.page_checks import check_pages
from modcrypt.parquet.verify.page_quirks import PageProbe, describe_header_quirks, probe_pages
from modcrypt.parquet.verify.page_recovery import Frames

MAX_MODULES = 1 << 20
"""Maximum number of modules distinguished in bytes that a footer hides."""


@dataclass(slots=True)
class RegionWalk:
    """A walk over a file that maps every byte to a region."""

    view: FooterView
    plan: ChunkPlan
    # Whether to distinguish pages and their headers; headers are opened if there is a key.
    pages: bool
    # Regions from the first byte to the last, without overlaps.
    regions: list[Region] = field(default_factory=list)
    # Number of modules distinguished in bytes that the footer hides; None if there are no such
    # bytes, or they were not walked.
    hidden_modules: int | None = None
    hidden_rest: int = 0  # number of hidden bytes in which no modules could be distinguished
    # Encrypted columns whose "column index", "offset index" or "bloom filter" is not encrypted, by
    # these names.
    unencrypted_parts: defaultdict[str, dict[str, None]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    # Columns whose column index flags pages as null against its own counts.
    misleading: dict[str, None] = field(default_factory=dict)
    # Columns with unencrypted levels, as parquet-java writes them in data pages V2.
    clear_levels: dict[str, None] = field(default_factory=dict)
    # Encrypted columns without a key whose pages are not a sequence of modules.
    unframed: dict[str, None] = field(default_factory=dict)
    probe: PageProbe | None = None
    # Number of fields that the IDL does not know in plaintext columns, by struct; in page headers
    # only if pages were walked.
    unknown_fields: Counter[str] = field(default_factory=Counter)
    header_quirks: dict[str, None] = field(default_factory=dict)  # sentences about page headers
    faults: list[str] = field(default_factory=list)  # inconsistencies in the footer or in pages
    _frames: Frames = field(init=False)

    def run(self) -> None:
        """Walk over the file."""
        plan, window = self.plan, Window(self.plan.source)
        self._frames = Frames(window, self.view.footer.algorithm_name)
        self.regions += self.view.regions
        self.faults += self._list_footer_faults()
        parts = [(s, c) for c in plan.listed for s in c.spans if s.part not in c.overlapping]
        parts.sort(key=itemgetter(0))
        self._probe([(s, c) for s, c in parts if s.part is Part.PAGES and c.cipher is not None])
        for span, chunk in parts:
            report = ChunkReport(chunk, self._correct_cipher(chunk), None, regions=True)
            if span.part is not Part.PAGES:
                self._map_index(span, report)
            elif self.pages:
                self._walk_pages(span, report)
            else:
                report.add_module_region(span.start, span.end, "pages", report.unopened_state)
            self.regions += report.regions or ()
        if (kept := plan.kept) is not None:
            key = self.view.footer.key_name
            self.regions.append(
                Region(
                    start=kept.start, end=kept.end, kind="restoration", state="unchecked", key=key
                )
            )
        # A plaintext footer hides the places of bloom filters, an encrypted one hides everything.
        if self.view.footer.metadata is None or any(
            c.encrypted and not c.key_works for c in plan.listed
        ):
            self._add_hidden()
        self.regions = list(fill_gaps(self.regions, plan.source.size))

    def _list_footer_faults(self) -> Iterator[str]:
        """Yield the inconsistencies in a footer; keys and what the caller requires are none."""
        no_contradictions = (TagMismatchError.word, PlaintextError.word)
        for finding in self.plan.report.finish("the file"):
            about_key = finding.word in no_contradictions or finding.message in self.view.reasons
            if finding.severity == "fault" and not about_key:
                yield finding.message

    def _probe(self, parts: list[tuple[Span, Chunk]]) -> None:
        """Probe the first pages of one of these columns, preferably one with levels."""
        if not parts:
            return
        nested = (p for p in parts if p[1].leaf.max_definition + p[1].leaf.max_repetition)
        span, chunk = next(nested, parts[0])
        self.probe = probe_pages(self._frames.window, span, chunk)
        if self.probe.clear_levels:
            self.clear_levels[chunk.path] = None

    def _correct_cipher(self, seen: Chunk) -> ChunkCipher | None:
        """Return a chunk's cipher, with the real algorithm of its pages if the label is wrong."""
        # No cipher opens pages whose module types are numbered in another way.
        cipher, probe = seen.cipher, self.probe
        if probe is None or cipher is None or probe.is_parquet_go:
            return None
        if probe.bodies in (None, self.view.footer.algorithm_name):
            return cipher
        return cipher.copy_for_thread(FileCipher(cipher.file.file_aad, probe.bodies))

    def _map_index(self, span: Span, report: ChunkReport) -> None:
        kind, state = in_words(span.part), report.unopened_state
        border = span.start
        if state != "plaintext" and span.end - border >= 4:
            border += 4 + self._frames.read_length(span.start, span.end)
            end: int | None = border
            if span.part is Part.BLOOM_FILTER:
                end = self._frames.find_end(border, span.end)
            if end != span.end and self._decode(span) is not None:
                self.unencrypted_parts[kind][report.chunk.path] = None
                state, border = "plaintext", span.start
        if state == "plaintext" and self.pages:
            self._count_unknown_fields(self._decode(span))
        if span.part is Part.COLUMN_INDEX and not self.plan.source.least_read:
            self._check_null_pages(span, report)
        if self.pages and span.part is Part.BLOOM_FILTER and span.start < border < span.end:
            report.add_module_region(span.start, border, "bloom filter header", state)
            report.add_module_region(border, span.end, "bloom filter bitset", state)
        else:
            report.add_module_region(span.start, span.end, kind, state)

    def _check_null_pages(self, span: Span, report: ChunkReport) -> None:
        """Note a column index that flags pages as null against its own counts."""
        chunk = report.chunk
        if chunk.stored.column_index_offset is None:  # Readers do not see it.
            return
        index = self._open_index(span, report)
        if index is None or not any(index.null_pages):  # saves reading the other index
            return
        offsets = next((s for s in chunk.spans if s.part is Part.OFFSET_INDEX), None)
        locations = None if offsets is None else self._open_index(offsets, report)
        if wrong_null_pages(index, locations, chunk.leaf, chunk.rows):
            self.misleading[chunk.path] = None

    def _open_index(self, span: Span, report: ChunkReport) -> ThriftStruct | None:
        """Open and decode an index; return None if that is impossible."""
        if not report.chunk.encrypted or report.cipher is None:
            return self._decode(span)
        if span.end - span.start > MAX_INDEX:
            return None
        data = self.plan.source.read_at(span.start, span.end - span.start)
        try:
            return _try_to_decode(STRUCTS[span.part], open_part(report.cipher, span, data).header)
        except ModcryptError:
            return self._decode(span)

    def _decode(self, span: Span) -> ThriftStruct | None:
        """Decode an unencrypted index or bloom filter header; return None if it is none."""
        size = span.end - span.start
        if size > MAX_INDEX:
            return None
        return _try_to_decode(STRUCTS[span.part], self.plan.source.read_at(span.start, size))

    def _count_unknown_fields(self, value: ThriftStruct | None) -> None:
        """Count fields that the IDL does not know in a struct readable without keys."""
        if value is not None:
            self.unknown_fields.update(type(struct).__name__ for struct, _ in unknown_fields(value))

    def _walk_pages(self, span: Span, report: ChunkReport) -> None:
        """Add the regions of pages and their headers, which are opened if there is a key."""
        chunk = report.chunk
        facts = check_pages(span, report, self._frames, keep_headers=not chunk.encrypted)
        for header in () if chunk.encrypted else (*facts.dictionaries, *facts.headers):
            self._count_unknown_fields(_try_to_decode("PageHeader", header))
        self.header_quirks |= dict.fromkeys(describe_header_quirks(chunk, facts))
        if any(note.what == "levels" for note in report.notes.values()):
            self.clear_levels[chunk.path] = None
        if chunk.encrypted and report.cipher is None:
            if facts.has_unframed_bytes or report.faults:
                self.unframed[chunk.path] = None
        else:
            self.faults += [finding.message for finding in report.finish(chunk.where)]

    def _add_hidden(self) -> None:
        """Add regions for the modules in bytes that nothing known refers to."""
        body_end = self.view.footer.body_end
        source = self.plan.source
        all_gaps = [gap for gap in fill_gaps(self.regions, source.size) if gap.kind == "gap"]
        gaps = [gap for gap in all_gaps if gap.end <= body_end]
        if source.least_read and not self.pages:  # each length would take a request
            self.regions += [
                replace(gap, kind="modules", state="locked", key="hidden") for gap in gaps
            ]
            return
        self.hidden_modules = 0 if gaps else None
        for gap in gaps:
            self.regions += self._map_hidden(gap)

    def _map_hidden(self, gap: Region) -> Iterator[Region]:
        position, ends = gap.start, [gap.start]
        while position < gap.end and len(ends) <= MAX_MODULES:
            if (end := self._frames.find_end(position, gap.end)) is None:
                break
            ends.append(end)
            position = end
        self.hidden_modules = (self.hidden_modules or 0) + len(ends) - 1
        if not self.pages:
            ends = [gap.start, position][: len(ends)]
        for start, end in pairwise(ends):
            yield Region(start=start, end=end, kind="modules", state="locked", key="hidden")
        if position < gap.end:
            self.hidden_rest += gap.end - position
            yield Region(start=position, end=gap.end, kind="gap", state="unchecked")


def _try_to_decode(struct: str, data: bytes) -> ThriftStruct | None:
    try:
        return decode(struct, data)[0]
    except FormatError:
        return None

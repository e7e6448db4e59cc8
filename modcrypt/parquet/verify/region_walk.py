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

from modcrypt.errors import FormatError, PlaintextError, TagMismatchError
from modcrypt.io.buffers import Window
from modcrypt.io.sources import Source
from modcrypt.parquet.crypto.chunk_opening import Chunk
from modcrypt.parquet.crypto.ciphers import ChunkCipher, FileCipher
from modcrypt.parquet.format.byte_map import Region, fill_gaps
from modcrypt.parquet.format.idl import decode, unknown_fields
from modcrypt.parquet.format.modules import (
    MAX_INDEX,
    STRUCTS,
    Part,
    Span,
)
from modcrypt.parquet.verify.chunk_plan import ChunkPlan
from modcrypt.parquet.verify.chunk_report import ChunkReport
from modcrypt.parquet.verify.footer_view import FooterView
from modcrypt.parquet.verify.page_checks import PageWalk
from modcrypt.parquet.verify.page_frames import Frames
from modcrypt.parquet.verify.page_probe import PageProbe, probe_pages

__all__ = ["RegionWalk", "walk_regions"]

MAX_MODULES = 1 << 20
"""Maximum number of modules distinguished in bytes that a footer hides."""


@dataclass(slots=True)
class RegionWalk:
    """The result of a walk over a file.

    Attributes:
        regions: Regions from the first byte to the last, without overlaps.
        hidden_modules: Number of modules distinguished in bytes that the footer hides; None if
            there are no such bytes, or they were not walked.
        hidden_rest: Number of hidden bytes in which no modules could be distinguished.
        unencrypted_parts: Encrypted columns whose "column index", "offset index" or "bloom filter"
            is not encrypted, by these names.
        clear_levels: Columns with unencrypted levels, as parquet-java writes them in data pages V2.
        unframed: Encrypted columns without a key whose pages are not a sequence of modules.
        probe: Result of probing the first pages of one column.
        unknown_fields: Number of fields that the IDL does not know in plaintext columns, by struct;
            in page headers only if pages were walked.
        faults: Inconsistencies in the footer or in pages.
    """

    regions: list[Region] = field(default_factory=list)
    hidden_modules: int | None = None
    hidden_rest: int = 0
    unencrypted_parts: defaultdict[str, dict[str, None]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    clear_levels: dict[str, None] = field(default_factory=dict)
    unframed: dict[str, None] = field(default_factory=dict)
    probe: PageProbe | None = None
    unknown_fields: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def walk_regions(source: Source, view: FooterView, plan: ChunkPlan, *, pages: bool) -> RegionWalk:
    """Map every byte of a file to a region.

    Args:
        source: File to map.
        view: Footer of the file.
        plan: Column chunks of the file.
        pages: Whether to distinguish pages and their headers; headers are opened if there is a key.
    """
    walk = RegionWalk(regions=view.regions, faults=list(_list_faults(view, plan)))
    mapper = _Mapper(source, view, walk, pages)
    parts = sorted(
        ((span, c) for c in plan.listed for span in c.spans if span.part not in c.overlapping),
        key=itemgetter(0),
    )
    mapper.probe([(s, c) for s, c in parts if s.part is Part.PAGES and c.cipher is not None])
    for span, chunk in parts:
        mapper.add(span, chunk)
    # A plaintext footer hides the places of bloom filters, and an encrypted one hides everything.
    if view.metadata is None or any(c.encrypted and not c.key_works for c in plan.listed):
        mapper.add_hidden()
    walk.regions = list(fill_gaps(walk.regions, source.size))
    return walk


def _list_faults(view: FooterView, plan: ChunkPlan) -> Iterator[str]:
    """Yield the inconsistencies in a footer; keys and what the caller requires are none."""
    for finding in plan.report.finish("the file"):
        about_key = finding.word == TagMismatchError.word or finding.message in view.reasons
        if finding.severity == "fault" and not about_key and finding.word != PlaintextError.word:
            yield finding.message


# --- regions of parts ----------------------------------------------------------------------------


class _Mapper:
    """A mapper from the parts of chunks to regions."""

    def __init__(self, source: Source, view: FooterView, walk: RegionWalk, pages: bool) -> None:
        self._source, self._view, self._walk, self._pages = source, view, walk, pages
        self._window = Window(source)
        self._frames = Frames(self._window, view.footer.algorithm_name)

    def probe(self, parts: list[tuple[Span, Chunk]]) -> None:
        """Probe the first pages of one of these columns, preferably one with levels."""
        if not parts:
            return
        nested = (
            part for part in parts if part[1].leaf.max_definition + part[1].leaf.max_repetition
        )
        span, chunk = next(nested, parts[0])
        self._walk.probe = probe_pages(self._window, span, chunk)
        if self._walk.probe.clear_levels:
            self._walk.clear_levels[chunk.path] = None

    def add(self, span: Span, seen: Chunk) -> None:
        """Add the regions of one part."""
        report = ChunkReport(seen, self._correct_cipher(seen), None, regions=True)
        if span.part is not Part.PAGES:
            self._map_index(span, seen, report)
        elif self._pages:
            self._walk_pages(span, seen, report)
        else:
            report.add_module_region(span.start, span.end, "pages", report.unopened_state)
        self._walk.regions += report.regions or ()

    def _correct_cipher(self, seen: Chunk) -> ChunkCipher | None:
        """Return a chunk's cipher, with the real algorithm of its pages if the label is wrong.

        No cipher opens pages whose module types are numbered in another way.
        """
        cipher, probe = seen.cipher, self._walk.probe
        if probe is None or cipher is None or probe.numbering == "parquet-go":
            return None
        if probe.bodies in (None, self._view.footer.algorithm_name):
            return cipher
        return cipher.copy_for_thread(FileCipher(cipher.file.file_aad, probe.bodies))

    # --- indexes and bloom filters ---------------------------------------------------------------

    def _map_index(self, span: Span, seen: Chunk, report: ChunkReport) -> None:
        kind, state = span.part.name.lower().replace("_", " "), report.unopened_state
        is_filter = span.part is Part.BLOOM_FILTER
        if seen.encrypted and self._is_clear(span):
            self._walk.unencrypted_parts[kind][seen.path] = None
            state = "plaintext"
        size, border = span.end - span.start, span.start
        if state != "plaintext" and is_filter and self._pages:
            border += 4 + self._frames.read_length(span.start, span.end)
        elif state == "plaintext" and self._pages and size <= MAX_INDEX:
            self._add_unknown_fields(STRUCTS[span.part], self._source.read_at(span.start, size))
        if span.start < border < span.end:
            report.add_module_region(span.start, border, "bloom filter header", state)
            report.add_module_region(border, span.end, "bloom filter bitset", state)
        else:
            report.add_module_region(span.start, span.end, kind, state)

    def _add_unknown_fields(self, struct: str, data: bytes) -> None:
        """Count fields that the IDL does not know in a struct readable without keys."""
        try:
            value = decode(struct, data)[0]
        except FormatError:
            return  # reported elsewhere
        names = (type(struct).__name__ for struct, _ in unknown_fields(value))
        self._walk.unknown_fields.update(names)

    def _is_clear(self, span: Span) -> bool:
        """Return whether a part of an encrypted column is not encrypted, judging by its lengths."""
        size = span.end - span.start
        if size < 4:
            return True
        first = 4 + self._frames.read_length(span.start, span.end)
        if span.part is not Part.BLOOM_FILTER:
            return first != size and self._decodes(span, STRUCTS[span.part])
        border = span.start + first
        if self._frames.find_end(border, span.end) == span.end:
            return False
        return self._decodes(span, STRUCTS[span.part])

    def _decodes(self, span: Span, struct: str) -> bool:
        if span.end - span.start > MAX_INDEX:
            return False
        try:
            decode(struct, self._source.read_at(span.start, span.end - span.start))
        except FormatError:
            return False
        return True

    # --- pages -----------------------------------------------------------------------------------

    def _walk_pages(self, span: Span, seen: Chunk, report: ChunkReport) -> None:
        """Add the regions of pages and their headers, which are opened if there is a key."""
        walk = self._walk
        pages = PageWalk(self._window, report, self._frames, keep_headers=not seen.encrypted)
        facts = pages.walk(span)
        for header in () if seen.encrypted else (*facts.dictionaries, *facts.headers):
            self._add_unknown_fields("PageHeader", header)
        if any(note.what == "levels" for note in report.notes.values()):
            walk.clear_levels[seen.path] = None
        if seen.encrypted and report.cipher is None:
            if facts.has_unframed_bytes or report.faults:
                walk.unframed[seen.path] = None
        else:
            walk.faults += [finding.message for finding in report.finish(seen.where)]

    # --- modules that the footer hides -----------------------------------------------------------

    def add_hidden(self) -> None:
        """Add regions for the modules in bytes that nothing known refers to."""
        walk, body_end = self._walk, self._view.footer.tail.start
        all_gaps = [gap for gap in fill_gaps(walk.regions, self._source.size) if gap.kind == "gap"]
        gaps = [gap for gap in all_gaps if gap.end <= body_end]
        if self._source.least_read and not self._pages:  # each length would take a request
            walk.regions += [
                replace(gap, kind="modules", state="locked", key="hidden") for gap in gaps
            ]
            return
        walk.hidden_modules = 0 if gaps else None
        for gap in gaps:
            walk.regions += self._map_hidden(gap)

    def _map_hidden(self, gap: Region) -> Iterator[Region]:
        walk, position, ends = self._walk, gap.start, [gap.start]
        while position < gap.end and len(ends) <= MAX_MODULES:
            end = self._frames.find_end(position, gap.end)
            if end is None:
                break
            ends.append(end)
            position = end
        walk.hidden_modules = (walk.hidden_modules or 0) + len(ends) - 1
        if not self._pages:
            ends = [gap.start, position][: len(ends)]
        for start, end in pairwise(ends):
            yield Region(start=start, end=end, kind="modules", state="locked", key="hidden")
        if position < gap.end:
            walk.hidden_rest += gap.end - position
            yield Region(start=position, end=gap.end, kind="gap", state="unchecked")

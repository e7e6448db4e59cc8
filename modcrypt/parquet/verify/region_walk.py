"""Map a file's bytes to regions, as far as its footer and the keys at hand reveal them.

Modules that the footer hides are distinguished only by the length that each begins with. This guess
ends at a plaintext column or at parquet-java's unencrypted levels.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

from modcrypt.aad import MAX_ORDINAL
from modcrypt.errors import FormatError, ModcryptError, TagMismatchError
from modcrypt.io.buffers import Window
from modcrypt.io.sources import Source
from modcrypt.parquet.crypto.chunk_opening import Chunk
from modcrypt.parquet.crypto.ciphers import ChunkCipher, FileCipher
from modcrypt.parquet.crypto.encrypted_pages import Page, has_clear_levels, walk_pages
from modcrypt.parquet.crypto.plaintext_pages import load_header
from modcrypt.parquet.crypto.properties import GCM_CTR_V1
from modcrypt.parquet.format.byte_map import Region, State, fill_gaps
from modcrypt.parquet.format.findings import MAX_FINDINGS, Report
from modcrypt.parquet.format.framing import MAGIC_SIZE, SIGNATURE_SIZE
from modcrypt.parquet.format.idl import ThriftStruct, copy, decode, new, unknown_fields
from modcrypt.parquet.format.modules import (
    MAX_INDEX,
    STRUCTS,
    Part,
    Span,
    find_overlaps,
    overlap_error,
    part_spans,
)
from modcrypt.parquet.format.page_header import DICTIONARY_PAGE, UNCOMPRESSED
from modcrypt.parquet.verify.footer_view import FooterView
from modcrypt.parquet.verify.page_frames import Frames
from modcrypt.parquet.verify.page_probe import (
    PageProbe,
    opens_as_parquet_go,
    probe_pages,
)
from modcrypt.pkmt1.key_info import key_name

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


def walk_regions(
    source: Source, view: FooterView, chunks: list[Chunk], *, pages: bool
) -> RegionWalk:
    """Map every byte of a file to a region.

    Args:
        source: File to map.
        view: Footer of the file.
        chunks: Column chunks of the file.
        pages: Whether to distinguish pages and their headers; headers are opened if there is a key.
    """
    walk = RegionWalk()
    mapper = _Mapper(source, view, walk, pages)
    spans = _list_spans(source, view, chunks, walk)
    by_place = {(chunk.row_group, chunk.column): chunk for chunk in chunks}
    walk.regions += _list_frame_regions(view, source.size)
    mapper.probe(spans, by_place)
    for span in spans:
        mapper.add(span, by_place[span.row_group, span.column])
    # A plaintext footer hides the places of bloom filters, and an encrypted one hides everything.
    if view.metadata is None or any(seen.encrypted and not seen.key_works for seen in chunks):
        mapper.add_hidden()
    walk.regions = list(fill_gaps(walk.regions, source.size))
    return walk


def _list_frame_regions(view: FooterView, size: int) -> Iterator[Region]:
    """Yield the regions around the modules: magics, footer, signature and footer length."""
    tail, end = view.footer.tail, size - 8
    border = tail.start + view.struct_end
    key = key_name(view.footer.key_metadata, "footer key") if view.footer.encrypted else None

    def region(start: int, end: int, kind: str, state: State, key: str | None = None) -> Region:
        return Region(start=start, end=end, kind=kind, state=state, key=key)

    yield region(0, MAGIC_SIZE, "magic", "plaintext")
    if view.has_encrypted_footer:
        yield region(tail.start, border, "file crypto metadata", "plaintext")
        if border < end:
            yield region(border, end, "footer", view.state, key)
    else:
        signed = view.union is not None and end - border == SIGNATURE_SIZE
        of_footer: State = view.state if view.state in ("authentic", "fault") else "plaintext"
        yield region(tail.start, border, "footer", of_footer if signed else "plaintext")
        if signed:
            yield region(border, end, "footer signature", view.state, key)
    yield region(end, end + 4, "footer length", "plaintext")
    yield region(end + 4, size, "magic", "plaintext")


# --- places of parts -----------------------------------------------------------------------------


def _list_spans(
    source: Source, view: FooterView, chunks: list[Chunk], walk: RegionWalk
) -> list[Span]:
    """Return the parts of all chunks sorted by position, without those at invalid places."""
    report, body_end = Report(MAX_FINDINGS), view.footer.body_end
    nowhere = new("ColumnMetaData", total_compressed_size=0, data_page_offset=0)
    spans: list[Span] = []
    for seen in chunks:
        place = seen.row_group, seen.column, body_end
        spans += part_spans(_fill_metadata(seen, nowhere), *place, source, report)
    spans.sort()
    overlaps = {span: overlap_error(span, other) for span, other, _ in find_overlaps(spans)}
    walk.faults += [finding.message for finding in report.finish("the file")]
    walk.faults += map(str, overlaps.values())
    return [span for span in spans if span not in overlaps]


def _fill_metadata(seen: Chunk, nowhere: ThriftStruct) -> ThriftStruct:
    """Return a chunk with its decrypted ColumnMetaData; `nowhere` stands in for a hidden one."""
    if seen.struct is not None:
        return seen.struct
    struct = copy(seen.stored)
    struct.meta_data = nowhere if seen.metadata is None else seen.metadata
    return struct


# --- regions of parts ----------------------------------------------------------------------------


class _Mapper:
    """A mapper from the parts of chunks to regions."""

    def __init__(self, source: Source, view: FooterView, walk: RegionWalk, pages: bool) -> None:
        self._source, self._view, self._walk, self._pages = source, view, walk, pages
        self._window = Window(source)
        self._frames = Frames(self._window, view.footer.algorithm_name, with_levels=False)
        self._names: dict[tuple[bool, bytes | None], str] = {}

    def probe(self, spans: list[Span], chunks: dict[tuple[int, int], Chunk]) -> None:
        """Probe the first pages of one column, preferably one with levels."""
        best: tuple[Span, Chunk] | None = None
        for span in spans:
            seen = chunks[span.row_group, span.column]
            if span.part is not Part.PAGES or seen.cipher is None:
                continue
            has_levels = seen.leaf.max_definition + seen.leaf.max_repetition > 0
            if best is None or has_levels:
                best = span, seen
            if has_levels:
                break
        if best is not None:
            self._walk.probe = probe_pages(self._window, *best)
            if self._walk.probe.clear_levels:
                self._walk.clear_levels[best[1].path] = None

    def add(self, span: Span, seen: Chunk) -> None:
        """Add the regions of one part."""
        regions = self._walk.regions
        if span.part is not Part.PAGES:
            regions += self._map_index(span, seen)
            return
        whole = self._make_region(span.start, span.end, "pages", seen)
        if not self._pages:
            regions.append(whole)
        elif not seen.encrypted:
            regions += self._map_plaintext_pages(span, seen)
        elif seen.cipher is not None and not self._is_parquet_go:
            regions += self._map_opened_pages(span, seen)
        else:
            regions += self._map_framed_pages(span, seen) or [whole]

    @property
    def _is_parquet_go(self) -> bool:
        probe = self._walk.probe
        return probe is not None and probe.numbering == "parquet-go"

    def _make_region(
        self, start: int, end: int, kind: str, seen: Chunk, page: int | None = None,
        state: State | None = None,
    ) -> Region:  # fmt: skip
        plain = state == "plaintext" or not seen.encrypted
        return Region(
            start=start,
            end=end,
            kind=kind,
            state=state or self._find_state(seen),
            row_group=seen.row_group,
            column=seen.column,
            page=page,
            path=seen.path,
            key=None if plain else self._format_key_name(seen),
        )

    def _find_state(self, seen: Chunk) -> State:
        if not seen.encrypted:
            return "plaintext"
        has_key = seen.cipher is not None or self._view.unbound
        return "unchecked" if has_key else "locked"

    def _format_key_name(self, seen: Chunk) -> str:
        own = seen.has_own_key
        metadata = self._view.footer.key_metadata
        if own:
            metadata = seen.stored.crypto_metadata.ENCRYPTION_WITH_COLUMN_KEY.key_metadata
        question = own, metadata
        if question not in self._names:
            self._names[question] = key_name(metadata, "column key" if own else "footer key")
        return self._names[question]

    # --- indexes and bloom filters ---------------------------------------------------------------

    def _map_index(self, span: Span, seen: Chunk) -> Iterator[Region]:
        kind = span.part.name.lower().replace("_", " ")
        if not seen.encrypted or self._is_clear(span):
            if seen.encrypted:
                self._walk.unencrypted_parts[kind][seen.path] = None
            size = span.end - span.start
            if self._pages and size <= MAX_INDEX:
                self._add_unknown_fields(STRUCTS[span.part], self._source.read_at(span.start, size))
            yield self._make_region(span.start, span.end, kind, seen, state="plaintext")
        elif span.part is Part.BLOOM_FILTER and self._pages:
            border = span.start + 4 + self._frames.read_length(span.start, span.end)
            if not span.start < border < span.end:
                yield self._make_region(span.start, span.end, kind, seen)
                return
            yield self._make_region(span.start, border, "bloom filter header", seen)
            yield self._make_region(border, span.end, "bloom filter bitset", seen)
        else:
            yield self._make_region(span.start, span.end, kind, seen)

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

    def _map_opened_pages(self, span: Span, seen: Chunk) -> Iterator[Region]:
        """Yield the regions of pages and headers after opening the headers."""
        cipher, md = self._correct_cipher(seen), seen.metadata
        assert md is not None
        position, first = span.start, Page(cipher, bool(md.dictionary_page_offset), 0)
        pages = walk_pages(
            self._window, position, span.end, first, uncompressed=md.codec == UNCOMPRESSED
        )
        of_bodies: State = "unauthenticated" if cipher.file.algorithm == GCM_CTR_V1 else "unchecked"
        while position < span.end:
            try:
                position, sealed = next(pages)
            except ModcryptError as error:
                yield from self._map_unopened(span, seen, first, position, error)
                return
            page = sealed.page
            if has_clear_levels(sealed):
                self._walk.clear_levels[seen.path] = None
            border, end = position + sealed.total - len(sealed.body), position + sealed.total
            yield from self._make_page(
                position, border, end, seen, page.is_dictionary, page.ordinal,
                ("authentic", of_bodies),
            )  # fmt: skip
            position = end

    def _correct_cipher(self, seen: Chunk) -> ChunkCipher:
        """Return a chunk's cipher, with the real algorithm of its pages if the label is wrong."""
        cipher, probe = seen.cipher, self._walk.probe
        assert cipher is not None
        if probe is None or probe.bodies in (None, self._view.footer.algorithm_name):
            return cipher
        file = FileCipher(cipher.file.file_aad, probe.bodies)
        return ChunkCipher(file, cipher.key, cipher.row_group, cipher.column, cipher.path)

    def _map_unopened(
        self, span: Span, seen: Chunk, page: Page, position: int, error: ModcryptError
    ) -> list[Region]:
        """Return the remaining regions of a chunk in which a header does not open."""
        foreign = isinstance(error, TagMismatchError) and position == span.start
        if foreign and opens_as_parquet_go(self._window, span, page):
            whole = self._make_region(span.start, span.end, "pages", seen)
            return self._map_framed_pages(span, seen) or [whole]
        self._walk.faults.append(str(error))
        return [self._make_region(position, span.end, "pages", seen, state="fault")]

    def _map_framed_pages(self, span: Span, seen: Chunk) -> list[Region]:
        """Return the regions of pages by the lengths of their modules; empty if they do not fit."""
        assert seen.metadata is not None
        is_dictionary, ordinal, position = bool(seen.metadata.dictionary_page_offset), 0, span.start
        regions: list[Region] = []
        while position < span.end:
            framed = self._frames.find(position, span.end)
            if framed is None or ordinal > MAX_ORDINAL:
                self._walk.unframed[seen.path] = None
                return []
            regions += self._make_page(position, *framed[1:], seen, is_dictionary, ordinal)
            ordinal += not is_dictionary
            is_dictionary, position = False, framed.next
        return regions

    def _make_page(
        self, start: int, border: int, end: int, seen: Chunk, is_dictionary: bool, ordinal: int,
        states: tuple[State | None, State | None] = (None, None),
    ) -> Iterator[Region]:  # fmt: skip
        """Yield the regions of a page's header and body."""
        number = None if is_dictionary else ordinal
        header, body = _DICTIONARY if is_dictionary else _DATA
        yield self._make_region(start, border, header, seen, number, states[0])
        if end > border:
            yield self._make_region(border, end, body, seen, number, states[1])

    def _map_plaintext_pages(self, span: Span, seen: Chunk) -> Iterator[Region]:
        """Yield the regions of pages and headers of a plaintext column."""
        ordinal, position = 0, span.start
        while position < span.end:
            try:
                start, header = load_header(self._window, position, span.end)
            except FormatError as error:
                self._walk.faults.append(f"{span}, byte {position}: {error}")
                yield self._make_region(position, span.end, "pages", seen)
                return
            size = header.end - start
            self._add_unknown_fields("PageHeader", bytes(self._window.view[start : header.end]))
            is_dictionary = header.type == DICTIONARY_PAGE
            border, end = position + size, position + size + header.compressed_size
            yield from self._make_page(position, border, end, seen, is_dictionary, ordinal)
            ordinal += not is_dictionary
            position = end

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


_DATA = ("data page header", "data page")
_DICTIONARY = ("dictionary page header", "dictionary page")

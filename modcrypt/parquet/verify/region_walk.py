"""A file's bytes, region by region, as far as its footer and the keys at hand tell them.

What the footer hides is told apart by its framing alone: a module begins with its length. That is
a guess, which a plaintext column or parquet-java's clear levels end.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

from modcrypt.aad import MAX_ORDINAL, ModuleType
from modcrypt.aead import CTR_OVERHEAD, GCM_OVERHEAD
from modcrypt.errors import FormatError, ModcryptError, TagMismatchError
from modcrypt.io.buffers import Window
from modcrypt.io.storage import Source
from modcrypt.parquet.crypto.ciphers import ChunkCipher, FileCipher
from modcrypt.parquet.crypto.encrypted_pages import Page, open_header
from modcrypt.parquet.crypto.key_info import key_name
from modcrypt.parquet.crypto.properties import GCM_CTR_V1, GCM_V1
from modcrypt.parquet.format.byte_map import Region, State, complete
from modcrypt.parquet.format.framing import MAGIC_SIZE, SIGNATURE_SIZE
from modcrypt.parquet.format.idl import ThriftStruct, copy, decode, new, unknown_fields
from modcrypt.parquet.format.modules import MAX_PAGE_HEADER, STRUCTS, Part, Span, chunk_spans
from modcrypt.parquet.format.page_header import DICTIONARY_PAGE, UNCOMPRESSED, PageHeader, scan
from modcrypt.parquet.verify.footer_view import ChunkView, FooterView
from modcrypt.parquet.verify.page_probe import (
    PageProbe,
    has_clear_levels,
    opens_as_parquet_go,
    probe_pages,
)

__all__ = ["RegionWalk", "walk_regions"]

MAX_MODULES = 1 << 20
"""Most modules told apart in what a footer hides."""

MAX_INDEX = 64 << 20
"""Largest index or bloom filter that is looked into, in bytes."""

_BLOCK = 4 << 10


@dataclass(slots=True)
class RegionWalk:
    """What a walk over a file found.

    Attributes:
        regions: from the first byte to the last, without overlaps.
        hidden_modules: how many modules were told apart in bytes that the footer hides; None where
            there are none, or nobody looked.
        hidden_rest: bytes hidden in which no modules could be told apart.
        in_clear: "column index", "offset index" and "bloom filter" to the encrypted columns that
            have theirs in clear.
        clear_levels: columns with levels in clear, as parquet-java has them in data pages V2.
        unframed: encrypted columns without a key whose pages are no row of modules.
        probe: what the first pages of one column told.
        unknown_fields: Structs of plaintext columns with fields that the IDL doesn't know, where
            pages were looked into; with the number of such fields.
        faults: what in the footer, or in pages, does not fit.
    """

    regions: list[Region] = field(default_factory=list)
    hidden_modules: int | None = None
    hidden_rest: int = 0
    in_clear: defaultdict[str, dict[str, None]] = field(default_factory=lambda: defaultdict(dict))
    clear_levels: dict[str, None] = field(default_factory=dict)
    unframed: dict[str, None] = field(default_factory=dict)
    probe: PageProbe | None = None
    unknown_fields: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def walk_regions(
    source: Source, view: FooterView, chunks: list[ChunkView], *, pages: bool
) -> RegionWalk:
    """Name every byte of a file.

    Args:
        pages: tell pages and their headers apart, too; headers are opened where there is a key.
    """
    walk = RegionWalk()
    mapper = _Mapper(source, view, walk, pages)
    spans = list(_without_overlaps(_spans(source, view, chunks, walk), walk))
    by_place = {(chunk.row_group, chunk.column): chunk for chunk in chunks}
    walk.regions += _frame(view, source.size)
    mapper.probe(spans, by_place)
    for span in spans:
        mapper.add(span, by_place[span.row_group, span.column])
    # A plaintext footer tells no place of a bloom filter, and a sealed one nothing without its key.
    if view.metadata is None or any(one.own is not None and not one.opened for one in chunks):
        mapper.add_hidden()
    walk.regions = list(complete(walk.regions, source.size))
    return walk


def _frame(view: FooterView, size: int) -> Iterator[Region]:
    """Name what lies around the modules: magics, and what stands at the file's end."""
    tail, end = view.tail, size - 8
    border = tail.start + view.struct_end
    key = key_name(view.key_metadata, "footer key") if view.encrypted else None

    def region(start: int, end: int, kind: str, state: State, key: str | None = None) -> Region:
        return Region(start=start, end=end, kind=kind, state=state, key=key)

    yield region(0, MAGIC_SIZE, "magic", "plaintext")
    if view.sealed:
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


# --- where parts lie -----------------------------------------------------------------------------


def _spans(
    source: Source, view: FooterView, chunks: list[ChunkView], walk: RegionWalk
) -> list[Span]:
    """List the parts of all chunks, but those whose places make no sense, sorted by position."""
    body_end = view.tail.start
    nowhere = new("ColumnMetaData", total_compressed_size=0, data_page_offset=0)
    structs = {(one.row_group, one.column): _placed(one, nowhere) for one in chunks}
    try:
        return chunk_spans(structs, body_end, source)
    except FormatError:
        pass  # of one of them, or of two that overlap
    spans: list[Span] = []
    for place, struct in structs.items():
        try:
            spans += chunk_spans({place: struct}, body_end, source)
        except FormatError as error:
            walk.faults.append(str(error))
    return sorted(spans)


def _placed(seen: ChunkView, nowhere: ThriftStruct) -> ThriftStruct:
    """Give a chunk with what is known of its ColumnMetaData in its place."""
    if seen.md is seen.chunk.meta_data and seen.md is not None:
        return seen.chunk
    struct = copy(seen.chunk)
    struct.meta_data = nowhere if seen.md is None else seen.md
    return struct


def _without_overlaps(spans: list[Span], walk: RegionWalk) -> Iterator[Span]:
    reached, last = MAGIC_SIZE, None
    for span in spans:
        if span.start < reached:
            walk.faults.append(f"{span} starts at byte {span.start}, inside {last}")
            continue
        reached, last = span.end, span
        yield span


class _Peek:
    """Reads single lengths of a file, here and there."""

    def __init__(self, source: Source) -> None:
        self._source, self._base, self._data = source, 0, b""
        self._block = max(_BLOCK, source.least_read)

    def length(self, at: int) -> int:
        """Give the length at a position of the file, which has four bytes there."""
        start = at - self._base
        if not 0 <= start <= len(self._data) - 4:
            size = min(self._block, self._source.size - at)
            self._base, self._data, start = at, self._source.read_at(at, size), 0
        return int.from_bytes(self._data[start : start + 4], "little")


# --- what parts are ------------------------------------------------------------------------------


class _Mapper:
    """Turns the parts of chunks into regions."""

    def __init__(self, source: Source, view: FooterView, walk: RegionWalk, pages: bool) -> None:
        self._source, self._view, self._walk, self._pages = source, view, walk, pages
        self._window, self._peek = Window(source), _Peek(source)
        self._names: dict[tuple[bool, bytes | None], str] = {}
        self._least = (GCM_OVERHEAD if view.algorithm == GCM_V1 else CTR_OVERHEAD) - 4

    def probe(self, spans: list[Span], chunks: dict[tuple[int, int], ChunkView]) -> None:
        """Look into one column's first pages: one with levels, if there is one."""
        best: tuple[Span, ChunkView] | None = None
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

    def add(self, span: Span, seen: ChunkView) -> None:
        """Add the regions of one part."""
        regions = self._walk.regions
        if span.part is not Part.PAGES:
            regions += self._of_index(span, seen)
            return
        whole = self._region(span.start, span.end, "pages", seen)
        if not self._pages:
            regions.append(whole)
        elif seen.own is None:
            regions += self._plain_pages(span, seen)
        elif seen.cipher is not None and not self._numbered_otherwise:
            regions += self._opened_pages(span, seen)
        else:
            regions += self._framed_pages(span, seen) or [whole]

    @property
    def _numbered_otherwise(self) -> bool:
        probe = self._walk.probe
        return probe is not None and probe.numbering == "parquet-go"

    def _region(
        self, start: int, end: int, kind: str, seen: ChunkView, page: int | None = None,
        state: State | None = None,
    ) -> Region:  # fmt: skip
        plain = state == "plaintext" or seen.own is None
        return Region(
            start=start,
            end=end,
            kind=kind,
            state=state or self._state(seen),
            row_group=seen.row_group,
            column=seen.column,
            page=page,
            path=seen.path,
            key=None if plain else self._key(seen),
        )

    def _state(self, seen: ChunkView) -> State:
        if seen.own is None:
            return "plaintext"
        at_hand = seen.cipher is not None or self._view.unbound
        return "unchecked" if at_hand else "locked"

    def _key(self, seen: ChunkView) -> str:
        own = seen.own is True
        metadata = self._view.key_metadata
        if own:
            metadata = seen.chunk.crypto_metadata.ENCRYPTION_WITH_COLUMN_KEY.key_metadata
        question = own, metadata
        if question not in self._names:
            self._names[question] = key_name(metadata, "column key" if own else "footer key")
        return self._names[question]

    # --- indexes and bloom filters ---------------------------------------------------------------

    def _of_index(self, span: Span, seen: ChunkView) -> Iterator[Region]:
        kind = span.part.name.lower().replace("_", " ")
        if seen.own is None or self._is_clear(span):
            if seen.own is not None:
                self._walk.in_clear[kind][seen.path] = None
            size = span.end - span.start
            if self._pages and size <= MAX_INDEX:
                self._note_unknown(STRUCTS[span.part], self._source.read_at(span.start, size))
            yield self._region(span.start, span.end, kind, seen, state="plaintext")
        elif span.part is Part.BLOOM_FILTER and self._pages:
            border = span.start + 4 + self._peek.length(span.start)
            if not span.start < border < span.end:
                yield self._region(span.start, span.end, kind, seen)
                return
            yield self._region(span.start, border, _WORDS[ModuleType.BLOOM_FILTER_HEADER], seen)
            yield self._region(border, span.end, _WORDS[ModuleType.BLOOM_FILTER_BITSET], seen)
        else:
            yield self._region(span.start, span.end, kind, seen)

    def _note_unknown(self, struct: str, data: bytes) -> None:
        """Note fields that the IDL doesn't know, in what nobody needs a key for."""
        try:
            value = decode(struct, data)[0]
        except FormatError:
            return  # said elsewhere
        found = (type(struct).__name__ for struct, _ in unknown_fields(value))
        self._walk.unknown_fields.update(found)

    def _is_clear(self, span: Span) -> bool:
        """Tell whether a part of an encrypted column lies in clear, as its lengths say."""
        size = span.end - span.start
        if size < 4:
            return True
        first = 4 + self._peek.length(span.start)
        if span.part is not Part.BLOOM_FILTER:
            return first != size and self._decodes(span, STRUCTS[span.part])
        if first + 4 <= size and first + 4 + self._peek.length(span.start + first) == size:
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

    def _opened_pages(self, span: Span, seen: ChunkView) -> Iterator[Region]:
        """Tell pages apart by opening their headers."""
        cipher, md = self._true_cipher(seen), seen.md
        assert md is not None
        is_dictionary, ordinal, position = bool(md.dictionary_page_offset), 0, span.start
        uncompressed = md.codec == UNCOMPRESSED
        of_bodies: State = "unauthenticated" if cipher.file.algorithm == GCM_CTR_V1 else "unchecked"
        while position < span.end:
            page = Page(cipher, is_dictionary, ordinal)
            try:
                sealed = open_header(self._window, position, span.end, page, uncompressed)
            except ModcryptError as error:
                yield from self._unopened(span, seen, page, position, error)
                return
            if has_clear_levels(sealed):
                self._walk.clear_levels[seen.path] = None
            border, end = position + sealed.total - len(sealed.body), position + sealed.total
            number = None if is_dictionary else ordinal
            header, body = _WORDS[page.header_id().type], _WORDS[page.id().type]
            yield self._region(position, border, header, seen, number, "authentic")
            yield self._region(border, end, body, seen, number, of_bodies)
            ordinal += not is_dictionary
            is_dictionary = False
            position = end

    def _true_cipher(self, seen: ChunkView) -> ChunkCipher:
        """Give a chunk's cipher by what its pages are under, where that is not what they say."""
        cipher, probe = seen.cipher, self._walk.probe
        assert cipher is not None
        if probe is None or probe.bodies in (None, self._view.algorithm):
            return cipher
        file = FileCipher(cipher.file.file_aad, probe.bodies)
        return ChunkCipher(file, cipher.key, cipher.row_group, cipher.column, cipher.path)

    def _unopened(
        self, span: Span, seen: ChunkView, page: Page, position: int, error: ModcryptError
    ) -> list[Region]:
        """Give what is left of a chunk in which a header does not open."""
        foreign = isinstance(error, TagMismatchError) and position == span.start
        if foreign and opens_as_parquet_go(self._window, span, page):
            whole = self._region(span.start, span.end, "pages", seen)
            return self._framed_pages(span, seen) or [whole]
        self._walk.faults.append(str(error))
        return [self._region(position, span.end, "pages", seen, state="fault")]

    def _framed_pages(self, span: Span, seen: ChunkView) -> list[Region]:
        """Tell pages apart by the lengths of their modules; nothing where they don't fit."""
        assert seen.md is not None
        is_dictionary, ordinal, position = bool(seen.md.dictionary_page_offset), 0, span.start
        regions: list[Region] = []
        while position < span.end:
            border = self._module_end(position, span.end, GCM_OVERHEAD - 4)
            end = border and self._module_end(border, span.end, self._least)
            if not border or not end or ordinal > MAX_ORDINAL:
                self._walk.unframed[seen.path] = None
                return []
            number = None if is_dictionary else ordinal
            types = _DICTIONARY if is_dictionary else _DATA
            for start, stop, kind in zip((position, border), (border, end), types, strict=True):
                regions.append(self._region(start, stop, _WORDS[kind], seen, number))
            ordinal += not is_dictionary
            is_dictionary = False
            position = end
        return regions

    def _module_end(self, start: int, limit: int, least: int) -> int | None:
        """Give where the module at `start` ends by its length; None if that is not plausible."""
        if start + 4 + least > limit:
            return None
        length = self._peek.length(start)
        return start + 4 + length if least <= length <= limit - start - 4 else None

    def _plain_pages(self, span: Span, seen: ChunkView) -> Iterator[Region]:
        """Tell the pages of a plaintext column apart."""
        ordinal, position = 0, span.start
        while position < span.end:
            try:
                header, size = self._plain_header(position, span.end)
            except FormatError as error:
                self._walk.faults.append(f"{span}, byte {position}: {error}")
                yield self._region(position, span.end, "pages", seen)
                return
            begin = position - self._window.base
            self._note_unknown("PageHeader", bytes(self._window.view[begin : begin + size]))
            is_dictionary = header.type == DICTIONARY_PAGE
            number = None if is_dictionary else ordinal
            types = _DICTIONARY if is_dictionary else _DATA
            border, end = position + size, position + size + header.compressed_size
            yield self._region(position, border, _WORDS[types[0]], seen, number)
            if end > border:
                yield self._region(border, end, _WORDS[types[1]], seen, number)
            ordinal += not is_dictionary
            position = end

    def _plain_header(self, position: int, end: int) -> tuple[PageHeader, int]:
        """Give the page header at a position, and its size."""
        window, need = self._window, 1 << 10
        while True:
            window.fill(position, min(end, position + need), end)
            start = position - window.base
            stop = min(window.stop, end - window.base)
            try:
                header = scan(window.buffer, start, stop)
            except FormatError:
                need = 2 * max(need, stop - start)
                if window.base + stop < end and need <= 2 * MAX_PAGE_HEADER:
                    continue  # perhaps cut by the window's end
                raise
            size = header.end - start
            if position + size + header.compressed_size > end:
                raise FormatError("a page that ends beyond its chunk")
            return header, size

    # --- what the footer hides -------------------------------------------------------------------

    def add_hidden(self) -> None:
        """Tell modules apart in the bytes that nothing known refers to."""
        walk, body_end = self._walk, self._view.tail.start
        every = [one for one in complete(walk.regions, self._source.size) if one.kind == "gap"]
        gaps = [gap for gap in every if gap.end <= body_end]
        if self._source.least_read and not self._pages:  # each length would be a request
            walk.regions += [
                replace(gap, kind="modules", state="locked", key="hidden") for gap in gaps
            ]
            return
        walk.hidden_modules = 0 if gaps else None
        for gap in gaps:
            walk.regions += self._hidden(gap)

    def _hidden(self, gap: Region) -> Iterator[Region]:
        walk, position, ends = self._walk, gap.start, [gap.start]
        while position < gap.end and len(ends) <= MAX_MODULES:
            end = self._module_end(position, gap.end, self._least)
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


_WORDS = {kind: kind.name.lower().replace("_", " ") for kind in ModuleType}
_DATA = (ModuleType.DATA_PAGE_HEADER, ModuleType.DATA_PAGE)
_DICTIONARY = (ModuleType.DICTIONARY_PAGE_HEADER, ModuleType.DICTIONARY_PAGE)

"""A view of a plaintext file for the detectors of writers' bugs: footer, indexes and pages."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from modcrypt.errors import FormatError, ModcryptError
from modcrypt.io.buffers import Window
from modcrypt.io.sources import Source
from modcrypt.parquet.crypto.chunk_opening import Chunk
from modcrypt.parquet.crypto.footer import Footer
from modcrypt.parquet.crypto.footer_opening import read_plain
from modcrypt.parquet.crypto.plaintext_pages import walk_plaintext
from modcrypt.parquet.format.findings import MAX_FINDINGS
from modcrypt.parquet.format.idl import ThriftStruct, decode
from modcrypt.parquet.format.modules import STRUCTS, Part, Span, locate_parts
from modcrypt.parquet.format.page_header import DATA_PAGE, DATA_PAGE_V2, DICTIONARY_PAGE
from modcrypt.parquet.format.report import Report
from modcrypt.parquet.format.schema import Leaf, leaf_elements

MAX_PART = 16 << 20
"""Longest page body, index or filter that a detector reads, in bytes; larger ones are left out."""


_FORGOTTEN = 4096  # longest header of a dictionary page that is looked for behind a chunk, in bytes


class ViewedPage(NamedTuple):
    """A page: the offset of its header, the size of the header, and the decoded header."""

    position: int
    stored: int
    header: ThriftStruct

    @property
    def end(self) -> int:
        """Offset behind the page's body."""
        return self.position + self.stored + int(self.header.compressed_page_size)

    @property
    def is_dictionary(self) -> bool:
        """Return whether it is a dictionary page."""
        return bool(self.header.type == DICTIONARY_PAGE)

    @property
    def is_data(self) -> bool:
        """Return whether it is a data page."""
        return self.header.type in (DATA_PAGE, DATA_PAGE_V2)

    @property
    def details(self) -> ThriftStruct:
        """The header of a data page; None for other pages."""
        return self.header.data_page_header or self.header.data_page_header_v2


@dataclass(slots=True)
class PlainView:
    """A plaintext file; or, without a source, only the metadata that keys have opened."""

    metadata: ThriftStruct
    leaves: list[Leaf]
    chunks: list[Chunk]
    source: Source | None = None
    tail: bytes = b""
    body_end: int = 0
    spans: dict[tuple[Part, int, int], Span] = field(default_factory=dict)
    misplaced: list[str] = field(default_factory=list)  # parts that lie at impossible places
    _last: tuple[int, int] = (-1, -1)  # the chunk whose pages are known
    _pages: list[ViewedPage] = field(default_factory=list)
    # What was read last of each kind of part, as several detectors look at it.
    _parts: dict[Part, tuple[tuple[int, int], bytes, ThriftStruct | None]] = field(
        default_factory=dict
    )
    _starts: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, source: Source) -> PlainView:
        """Open a plaintext file.

        Raise UnsupportedFormatError if the file is encrypted; and FormatError if the file is not
        Parquet, or its footer is damaged.
        """
        return cls.of_footer(source, read_plain(source))

    @classmethod
    def of_footer(cls, source: Source, footer: Footer) -> PlainView:
        """View a plaintext file whose footer has been read.

        Raise FormatError if the schema is damaged.
        """
        metadata = footer.metadata
        view = cls(metadata, leaf_elements(metadata.schema), [], source, footer.tail.data)
        view.body_end = footer.body_end
        for r, row_group in enumerate(metadata.row_groups):
            for c, (chunk, leaf) in enumerate(zip(row_group.columns, view.leaves, strict=False)):
                if chunk.meta_data is not None and chunk.file_path is None:
                    path, rows = ".".join(leaf.path), row_group.num_rows
                    viewed = Chunk(
                        r, c, leaf, path, rows, chunk, r, metadata.schema, metadata.created_by
                    )
                    viewed.struct = chunk
                    view.chunks.append(viewed)
        view._locate(source)
        return view

    def _locate(self, source: Source) -> None:
        """Find the places of all parts; those at impossible places are noted."""
        report = Report(MAX_FINDINGS)
        chunks = {(chunk.row_group, chunk.column): chunk.struct for chunk in self.chunks}
        spans, overlapping, _ = locate_parts(
            chunks, self.body_end, source, report, optional="warning"
        )
        self.spans = {(s.part, s.row_group, s.column): s for s in spans if s not in overlapping}
        self.misplaced = [f.message for f in report.findings if f.severity == "warning"]

    @classmethod
    def of_opened(cls, metadata: ThriftStruct, chunks: Iterable[Chunk]) -> PlainView:
        """View what keys have opened of an encrypted file: its footer and metadata of columns."""
        known = [chunk for chunk in chunks if chunk.metadata is not None]
        readable = [chunk for chunk in known if chunk.struct.meta_data is chunk.metadata]
        return cls(metadata, leaf_elements(metadata.schema), readable)

    @property
    def created_by(self) -> bytes:
        """Name that the writer gave itself."""
        name: bytes = self.metadata.created_by or b""
        return name

    def span(self, chunk: Chunk, part: Part) -> Span | None:
        """Return where a part of a chunk lies; None if it has none."""
        return self.spans.get((part, chunk.row_group, chunk.column))

    def read(self, start: int, size: int) -> bytes:
        """Return bytes of the file; none if it is not at hand, or they are too many."""
        if self.source is None or not 0 < size <= MAX_PART or start < 0:
            return b""
        return self.source.read_at(start, min(size, self.source.size - start))

    def next_start(self, position: int) -> int:
        """Return where the part or the footer behind a position begins."""
        if not self._starts:
            self._starts = sorted(span.start for span in self.spans.values())
        after = bisect_left(self._starts, position)
        return self._starts[after] if after < len(self._starts) else self.body_end

    def part(self, chunk: Chunk, part: Part) -> tuple[bytes, ThriftStruct | None]:
        """Return the bytes of an index or a bloom filter, and its decoded struct or header.

        There are no bytes without such a part, and no struct if it is damaged.
        """
        place = chunk.row_group, chunk.column
        if part not in self._parts or self._parts[part][0] != place:
            self._parts[part] = (place, *self._read_part(self.span(chunk, part)))
        return self._parts[part][1:]

    def _read_part(self, span: Span | None) -> tuple[bytes, ThriftStruct | None]:
        if span is None:
            return b"", None
        data = self.read(span.start, span.end - span.start)
        try:
            return data, decode(STRUCTS[span.part], data)[0]
        except FormatError:
            return data, None

    def index(self, chunk: Chunk, part: Part) -> ThriftStruct | None:
        """Return an index or a bloom filter's header; None if there is none, or it is damaged."""
        return self.part(chunk, part)[1]

    def pages(self, chunk: Chunk) -> list[ViewedPage]:
        """Return the pages of a chunk, up to the first that is damaged."""
        if self._last != (chunk.row_group, chunk.column):
            self._last = chunk.row_group, chunk.column
            self._pages = list(self._walk(chunk))
        return self._pages

    def _walk(self, chunk: Chunk) -> Iterator[ViewedPage]:
        if (span := self.span(chunk, Part.PAGES)) is None or self.source is None:
            return
        # A page may end behind its chunk: parquet-mr before 1.2.9 forgot a header's size.
        wide = span._replace(end=min(self.body_end, span.end + _FORGOTTEN))
        try:
            for page in walk_plaintext(Window(self.source), wide, chunk.column, bodies=False):
                if page.position >= span.end:
                    return
                header = decode("PageHeader", page.header.raw)[0]
                yield ViewedPage(page.position, page.stored, header)
        except ModcryptError:
            return

    def body(self, page: ViewedPage) -> bytes:
        """Return the body of a page as it is stored; none if it is too large."""
        return self.read(page.position + page.stored, page.header.compressed_page_size)

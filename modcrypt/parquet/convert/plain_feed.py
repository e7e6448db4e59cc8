"""Supply the parts of a plaintext file for a file that is written."""

from __future__ import annotations

from typing import NamedTuple

from modcrypt.io.buffers import Output, open_window
from modcrypt.io.sources import Source
from modcrypt.parquet.convert.page_encryption import PageRules, encrypt_pages
from modcrypt.parquet.crypto.ciphers import ChunkCipher, ColumnKey
from modcrypt.parquet.crypto.page_facts import read_counts
from modcrypt.parquet.crypto.plaintext_pages import copy_pages, count_encodings, walk_plaintext
from modcrypt.parquet.crypto.relocation import ChunkMove
from modcrypt.parquet.format.idl import ThriftStruct
from modcrypt.parquet.format.modules import Part, Span
from modcrypt.parquet.format.page_header import DATA_PAGE, DATA_PAGE_V2


class SourceParts:
    """The parts of a source that are written to a new file, and the keys of its columns there.

    `partial` says that columns of the source are omitted or masked.
    """

    def __init__(
        self, metadata: ThriftStruct, leaves: list[tuple[str, ...]],
        columns: list[ColumnKey | None], spans: list[Span], *, partial: bool = False,
    ) -> None:  # fmt: skip
        self.metadata, self.leaves, self.columns = metadata, leaves, columns
        self.spans, self.partial = spans, partial


class Supplied(NamedTuple):
    """An index or a bloom filter of a source, and whether a tag authenticated it.

    `is_refused` says that it is not encrypted although its column is, and that nothing else vouches
    for it.
    """

    data: bytes
    authentic: bool = False
    is_refused: bool = False


class PlainFeed:
    """A supplier of the parts of a file that is rewritten: those of a plaintext source."""

    def __init__(self, source: Source) -> None:
        self._source, self.window, self.name = source, open_window(source), source.name

    def write_pages(
        self, span: Span, cipher: ChunkCipher | None, out: Output, move: ChunkMove, rules: PageRules
    ) -> None:
        """Append the pages of a chunk, encrypted by `cipher` or in plaintext, and update `move`."""
        move.is_plaintext = True
        if cipher is not None:
            pages = walk_plaintext(
                self.window, span, cipher.path,
                known_only=rules.known_only, compression=rules.compression,
                overhead=cipher.page.overhead,
            )  # fmt: skip
            encrypt_pages(pages, cipher, out, move, plain_levels=rules.plain_levels)
            named = rules.names_dictionary
            if named is not None and named != move.has_dictionary:
                move.encoding_stats = count_encodings(self.window, span)
        elif rules.known_only or rules.headers:
            copy_pages(self.window, span, out, move, rules.headers, known_only=rules.known_only)
        else:
            move.copied = True
            out.copy_from(self._source, span.start, span.end)

    def walks(self, span: Span) -> bool:
        """Return whether the pages of a chunk will be read through the window."""
        return span.part is Part.PAGES

    def read(self, span: Span) -> Supplied:
        """Return the plaintext of an index or a bloom filter."""
        return Supplied(self._source.read_at(span.start, span.end - span.start))

    def count_values(self, span: Span) -> list[int]:
        """Return the number of values of each data page of a chunk, from the pages' headers."""
        pages = walk_plaintext(self.window, span, span.column, bodies=False)
        headers = (page.header for page in pages)
        return [read_counts(h)[0] for h in headers if h.type in (DATA_PAGE, DATA_PAGE_V2)]

"""Supply the modules of an encrypted file, without decoding pages, for a file that is written.

Encrypted headers, length prefixes and chunk sizes must all agree; none is trusted alone. No page is
passed on before its tag is verified. One buffer holds the plaintext of a page between decryption
and encryption.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from modcrypt.io.buffers import Output, Scratch, Window
from modcrypt.io.sources import MemorySource, Source
from modcrypt.parquet.convert.encryptor import PlainFeed
from modcrypt.parquet.convert.page_encryption import PageRules, seal_pages
from modcrypt.parquet.crypto.bloom_filters import open_part
from modcrypt.parquet.crypto.ciphers import ChunkCipher
from modcrypt.parquet.crypto.encrypted_pages import (
    EncryptedPage,
    Page,
    check_crc,
    open_and_check_crc,
    open_body,
    walk_pages,
)
from modcrypt.parquet.crypto.plaintext_pages import PlainPage
from modcrypt.parquet.crypto.relocation import ChunkMove
from modcrypt.parquet.format.idl import ThriftStruct
from modcrypt.parquet.format.modules import Span
from modcrypt.parquet.format.page_header import UNCOMPRESSED, splice


class MaskedChunk(NamedTuple):
    """A chunk's new pages, in plaintext, and their metadata."""

    source: MemorySource
    span: Span
    metadata: ThriftStruct  # ColumnMetaData with offsets in `source`


MaskChunk: TypeAlias = "Callable[[int], MaskedChunk | None]"
"""A function that returns a column's masked chunk of a row group."""


class ExtendedSource(Source):
    """A source followed by more bytes."""

    def __init__(self, source: Source, more: bytes) -> None:
        self.name, self.size = source.name, source.size + len(more)
        self.least_read = source.least_read
        self._source, self._more = source, MemorySource(more)

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fill `view` from `offset`; the range must not cross the end of the source."""
        border = self._source.size
        if offset < border:
            self._source.read_into(offset, view)
        else:
            self._more.read_into(offset - border, view)


class EncryptedFeed(PlainFeed):
    """A supplier of the parts of an encrypted file, as plaintext or for another encryption.

    Ordinals are those of the new file.

    Args:
        source: Encrypted file.
        metadata: Metadata of its chunks.
        ciphers: Ciphers of its chunks, by row group and column.
        masks: Masks by column.
        kept: Columns whose pages are copied.
        nulls: Pages after the end of the source.
        keep_levels: Whether plaintext levels of data pages V2 stay in plaintext.
    """

    def __init__(
        self, source: Source, metadata: ThriftStruct,
        ciphers: Mapping[tuple[int, int], ChunkCipher],
        masks: Mapping[int, MaskChunk] | None = None, kept: Collection[int] = (),
        nulls: bytes = b"", *, keep_levels: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(ExtendedSource(source, nulls) if nulls else source)
        self.source, self.metadata, self.ciphers = source, metadata, ciphers
        self.masks, self.kept, self.keep_levels = masks or {}, kept, keep_levels
        self.scratch = Scratch()

    def write_pages(
        self, span: Span, cipher: ChunkCipher | None, out: Output, move: ChunkMove, rules: PageRules
    ) -> None:
        """Write the pages of a chunk: copy, decrypt, encrypt, re-encrypt or mask them."""
        old = self.ciphers.get((span.row_group, span.column))
        md = self.metadata.row_groups[span.row_group].columns[span.column].meta_data
        if span.column in self.masks:
            self._write_masked_pages(span, cipher, out, move, rules)
        elif span.column in self.kept:
            move.copied = True
            out.copy_from(self.source, span.start, span.end)
        elif old is None:
            super().write_pages(span, cipher, out, move, rules)
        elif cipher is None:
            _open_pages(self.window, span, old, out, move, md, known_only=rules.known_only)
        else:
            pages = self._decrypt_pages(span, old, md, rules)
            seal_pages(pages, cipher, out, move, plain_levels=rules.plain_levels)

    def walks(self, span: Span) -> bool:
        """Return whether the pages of a chunk will be read through the window."""
        column = span.column
        return super().walks(span) and column not in self.masks and column not in self.kept

    def read(self, span: Span) -> bytes:
        """Return the plaintext of an index or a bloom filter."""
        cipher = self.ciphers.get((span.row_group, span.column))
        data = super().read(span)
        return data if cipher is None else b"".join(open_part(cipher, span, data))

    def _write_masked_pages(
        self, span: Span, cipher: ChunkCipher | None, out: Output, move: ChunkMove, rules: PageRules
    ) -> None:
        masked = self.masks[span.column](span.row_group)
        row_group = self.metadata.row_groups[span.row_group]
        chunk = row_group.columns[span.column]
        if masked is None:
            return
        new = masked.metadata
        row_group.total_byte_size += new.total_uncompressed_size
        row_group.total_byte_size -= chunk.meta_data.total_uncompressed_size
        chunk.meta_data = new
        move.old_start, move.keep_pages = masked.span.start, False
        inner = replace(masked.span, row_group=span.row_group, column=span.column)
        rules = rules._replace(uncompressed=new.codec == UNCOMPRESSED)
        PlainFeed(masked.source).write_pages(inner, cipher, out, move, rules)

    def _decrypt_pages(
        self, span: Span, cipher: ChunkCipher, md: ThriftStruct, rules: PageRules
    ) -> Iterator[PlainPage]:
        """Yield the decrypted pages of one chunk; the next page overwrites the body of the last."""
        overhead, slack, scratch = cipher.page.overhead, cipher.page.slack, self.scratch
        keep_levels = self.keep_levels
        first = Page(cipher, bool(md.dictionary_page_offset), 0)
        for position, sealed in walk_pages(
            self.window, span.start, span.end, first,
            uncompressed=rules.uncompressed, known_only=rules.known_only,
        ):  # fmt: skip
            _, plain, header, body, _, total = sealed
            size = len(body) - overhead
            opened = scratch.reserve(size + slack)
            if header[6] is not None:
                check_crc(sealed)
            clear = open_body(sealed, opened)
            kept = clear if keep_levels else 0
            stored = total - len(body)
            yield position, plain, 0, header, opened[:size], stored, kept


# --- plaintext pages -----------------------------------------------------------------------------


def _open_pages(
    window: Window, span: Span, cipher: ChunkCipher, out: Output, move: ChunkMove,
    md: ThriftStruct, *, known_only: bool,
) -> None:  # fmt: skip
    """Decrypt the pages of one chunk: for each, the header module and the page module.

    `move` records the new positions of pages and how much the headers shrank. `known_only` removes
    fields that the IDL does not know from the headers.
    """
    # The AAD of the first page depends on whether it is a dictionary, so this must be known first.
    is_dictionary = move.has_dictionary = bool(md.dictionary_page_offset)
    uncompressed = md.codec == UNCOMPRESSED
    grown, first = 0, Page(cipher, is_dictionary, 0)
    for position, sealed in walk_pages(
        window, span.start, span.end, first, uncompressed=uncompressed, known_only=known_only
    ):
        _, is_dictionary, ordinal = sealed[0]
        before = out.position
        if not is_dictionary and not ordinal:
            move.first_data_page = position, before
        border = sealed[5] - len(sealed[3])
        grown += _write_page(out, sealed) - border
        if move.keep_pages and not is_dictionary:
            move.pages.append((position, before, out.position - before))
    move.header_growth = grown


def _write_page(out: Output, sealed: EncryptedPage) -> int:
    """Decrypt a page's body, append the page, and return the size of its new header."""
    page, plain, header, body, _, _ = sealed
    cipher = page.cipher.page
    plain_size = len(body) - cipher.overhead
    if header[6] is not None:
        return _write_page_with_crc(out, sealed, plain_size)
    new_header = splice(plain, 0, header, plain_size)
    header_size = len(new_header)
    space = plain_size + cipher.slack
    if out.at + header_size + space > len(out.view):
        out.reserve(header_size + space)
    at, view = out.at, out.view
    view[at : at + header_size] = new_header
    at += header_size
    open_body(sealed, view[at : at + space])
    out.at = at + plain_size
    return header_size


def _write_page_with_crc(out: Output, sealed: EncryptedPage, plain_size: int) -> int:
    """Decrypt and append a page with a CRC, and return the size of its new header."""
    opened = open_and_check_crc(sealed)
    new_header = splice(sealed.plain, 0, sealed.header, plain_size, zlib.crc32(opened))
    out.write(new_header)
    out.write(opened)
    return len(new_header)

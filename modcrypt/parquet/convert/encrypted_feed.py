"""Supply the modules of an encrypted file, without decoding pages, for a file that is written.

Encrypted headers, length prefixes and chunk sizes must all agree; none is trusted alone. No page is
passed on before its tag is verified. One buffer holds the plaintext of a page between decryption
and encryption.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from modcrypt.io.buffers import Output, Scratch
from modcrypt.io.sources import ExtendedSource, MemorySource, Source
from modcrypt.parquet.convert.page_decryption import decrypt_pages, open_pages
from modcrypt.parquet.convert.page_encryption import PageRules, encrypt_pages
from modcrypt.parquet.convert.plain_feed import PlainFeed, Supplied
from modcrypt.parquet.crypto.bloom_filters import is_in_clear, open_part
from modcrypt.parquet.crypto.ciphers import ChunkCipher
from modcrypt.parquet.crypto.encrypted_pages import EncryptedPage, Page, walk_pages
from modcrypt.parquet.crypto.page_facts import read_counts
from modcrypt.parquet.crypto.relocation import ChunkMove
from modcrypt.parquet.format.idl import ThriftStruct
from modcrypt.parquet.format.modules import Part, Span
from modcrypt.parquet.format.page_header import ALWAYS, page_compression
from modcrypt.parquet.format.structs import ColumnChunk, ColumnMetaData


class MaskedChunk(NamedTuple):
    """A chunk's new pages, in plaintext, and their metadata."""

    source: MemorySource
    span: Span
    metadata: ThriftStruct  # ColumnMetaData with offsets in `source`


MaskChunk: TypeAlias = "Callable[[int], MaskedChunk | None]"
"""A function that returns a column's masked chunk of a row group."""


class EncryptedFeed(PlainFeed):
    """A supplier of the parts of an encrypted file, as plaintext or for another encryption.

    Ordinals are those of the new file. The pages of `kept` columns are copied; `nulls` are pages
    after the end of the source. With `keep_levels`, plaintext levels of data pages V2 stay in
    plaintext. `confirm` returns whether an unencrypted bloom filter of an encrypted column (row
    group, column, bytes) holds the chunk's values; None leaves such filters out.
    """

    def __init__(
        self, source: Source, metadata: ThriftStruct,
        ciphers: dict[tuple[int, int], ChunkCipher],
        masks: Mapping[int, MaskChunk] | None = None, kept: Collection[int] = (),
        nulls: bytes = b"", *, keep_levels: bool = False,
        confirm: Callable[[int, int, bytes], bool] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(ExtendedSource(source, nulls) if nulls else source)
        self.source, self.ciphers = source, ciphers
        self._row_groups: list[ThriftStruct] = metadata.row_groups
        self.masks, self.kept, self.keep_levels = masks or {}, kept, keep_levels
        self.scratch, self._confirm = Scratch(), confirm

    def write_pages(
        self, span: Span, cipher: ChunkCipher | None, out: Output, move: ChunkMove, rules: PageRules
    ) -> None:
        """Write the pages of a chunk: copy, decrypt, encrypt, re-encrypt or mask them."""
        start, end, _, row_group, column = span
        old = self.ciphers.get((row_group, column))
        chunk: ColumnChunk = self._row_groups[row_group].columns[column]
        md: ColumnMetaData = chunk.meta_data
        if column in self.masks:
            self._write_masked_pages(span, cipher, out, move, rules)
        elif column in self.kept:
            move.copied = True
            out.copy_from(self.source, start, end)
        elif old is None:
            super().write_pages(span, cipher, out, move, rules)
        elif cipher is None:
            move.has_dictionary = bool(md.dictionary_page_offset)
            open_pages(self._walk(span, old, md, rules), out, move, rules.headers)
        else:
            pages = decrypt_pages(
                self._walk(span, old, md, rules), old, self.scratch, keep_levels=self.keep_levels
            )
            encrypt_pages(pages, cipher, out, move, plain_levels=rules.plain_levels)

    def _walk(
        self, span: Span, cipher: ChunkCipher, md: ColumnMetaData, rules: PageRules
    ) -> Iterator[EncryptedPage]:
        # The AAD of the first page depends on whether it is a dictionary: this must be known first.
        first = Page(cipher, bool(md.dictionary_page_offset), 0)
        return walk_pages(
            self.window, span[0], span[1], first,
            compression=rules.compression, known_only=rules.known_only,
        )  # fmt: skip

    def walks(self, span: Span) -> bool:
        """Return whether the pages of a chunk will be read through the window."""
        column = span.column
        return super().walks(span) and column not in self.masks and column not in self.kept

    def read(self, span: Span) -> Supplied:
        """Return the plaintext of an index or a bloom filter."""
        cipher = self.ciphers.get((span.row_group, span.column))
        data = super().read(span).data
        if cipher is None:
            return Supplied(data)
        if is_in_clear(span, data):
            confirm = self._confirm if span.part is Part.BLOOM_FILTER else None
            known = confirm is not None and confirm(span.row_group, span.column, data)
            return Supplied(data, is_refused=not known)
        return Supplied(b"".join(open_part(cipher, span, data)), authentic=True)

    def count_values(self, span: Span) -> list[int]:
        """Return the number of values of each data page of a chunk, from the pages' headers."""
        cipher = self.ciphers.get((span.row_group, span.column))
        if cipher is None:
            return super().count_values(span)
        md = self._row_groups[span.row_group].columns[span.column].meta_data
        first = Page(cipher, bool(md.dictionary_page_offset), 0)
        pages = walk_pages(self.window, span.start, span.end, first, compression=ALWAYS)
        return [read_counts(p.header)[0] for p in pages if not p.page.is_dictionary]

    def _write_masked_pages(
        self, span: Span, cipher: ChunkCipher | None, out: Output, move: ChunkMove, rules: PageRules
    ) -> None:
        masked = self.masks[span.column](span.row_group)
        row_group = self._row_groups[span.row_group]
        chunk = row_group.columns[span.column]
        if masked is None:
            return
        new = masked.metadata
        row_group.total_byte_size += new.total_uncompressed_size
        row_group.total_byte_size -= chunk.meta_data.total_uncompressed_size
        chunk.meta_data = new
        move.old_start, move.pages = masked.span.start, None
        inner = masked.span._replace(row_group=span.row_group, column=span.column)
        compression = page_compression(new.codec, None)
        rules = PageRules(compression, rules.plain_levels, rules.known_only, rules.names_dictionary)
        PlainFeed(masked.source).write_pages(inner, cipher, out, move, rules)

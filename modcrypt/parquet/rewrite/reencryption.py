"""Supply the modules of an encrypted file for re-encryption, without decoding pages.

One buffer holds the plaintext of a page between decryption and encryption.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from modcrypt.io.buffers import Output, Window
from modcrypt.io.sources import MemorySource, Source
from modcrypt.parquet.convert.decryptor import open_pages
from modcrypt.parquet.convert.encryptor import PlainFeed
from modcrypt.parquet.convert.page_encryption import PageRules, seal_pages
from modcrypt.parquet.crypto.bloom_filters import open_part
from modcrypt.parquet.crypto.ciphers import ChunkCipher
from modcrypt.parquet.crypto.encrypted_pages import (
    Page,
    check_crc,
    open_body,
    walk_pages,
)
from modcrypt.parquet.crypto.plaintext_pages import PlainPage
from modcrypt.parquet.crypto.relocation import ChunkMove
from modcrypt.parquet.format.idl import ThriftStruct
from modcrypt.parquet.format.modules import Span
from modcrypt.parquet.format.page_header import UNCOMPRESSED

if TYPE_CHECKING:  # PyArrow is loaded for masks alone
    from modcrypt.parquet.rewrite.masking import MaskedChunk

__all__ = ["EncryptedFeed", "ExtendedSource", "MaskChunk"]

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


@dataclass
class EncryptedFeed:
    """A supplier of the parts of an encrypted file for re-encryption.

    Ordinals are those of the new file.
    """

    source: Source
    metadata: ThriftStruct
    ciphers: Mapping[tuple[int, int], ChunkCipher]  # ciphers of the old file
    masks: Mapping[int, MaskChunk]
    kept: set[int]
    nulls: bytes  # pages after the end of the source
    keep_levels: bool
    plain: PlainFeed = field(init=False)
    window: Window = field(init=False)

    def __post_init__(self) -> None:
        self.plain = PlainFeed(
            ExtendedSource(self.source, self.nulls) if self.nulls else self.source
        )
        self.window = Window(self.source)
        self.scratch = memoryview(bytearray())

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
            self.plain.write_pages(span, cipher, out, move, rules)
        elif cipher is None:
            open_pages(self.window, span, old, out, move, md, known_only=rules.known_only)
        else:
            pages = self._open_pages(span, old, md, rules)
            seal_pages(pages, cipher, out, move, levels_plain=rules.levels_plain)

    def read(self, span: Span) -> bytes:
        """Return the plaintext of an index or a bloom filter."""
        cipher = self.ciphers.get((span.row_group, span.column))
        data = self.plain.read(span)
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

    def _open_pages(
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
            if len(scratch) < size + slack:
                scratch = self.scratch = memoryview(bytearray(size + (size >> 3) + slack))
            if header[6] is not None:
                check_crc(sealed)
            clear = open_body(sealed, scratch[: size + slack])
            kept = clear if keep_levels else 0
            stored = total - len(body)
            yield position, plain, 0, header, scratch[:size], stored, kept

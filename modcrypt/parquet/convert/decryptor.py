"""Decrypt Parquet files to plaintext Parquet without decoding pages.

This reverses the encryptor: every PME module (a separately encrypted part of the file) is decrypted
and appended in the order of the source. Encrypted headers, length prefixes, chunk sizes and offsets
must all agree; none is trusted alone. No page is passed on before its tag is verified.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from modcrypt.io.buffers import Output, Window, open_output
from modcrypt.io.destinations import Destination
from modcrypt.io.sources import Source, SourceLike, open_source
from modcrypt.parquet.crypto.bloom_filters import open_part
from modcrypt.parquet.crypto.ciphers import ChunkCipher
from modcrypt.parquet.crypto.encrypted_pages import (
    EncryptedPage,
    Page,
    open_and_check_crc,
    open_body,
    walk_pages,
)
from modcrypt.parquet.crypto.file_plan import OpenFile, Plan
from modcrypt.parquet.crypto.plaintext_footer import copy_row_groups, plain_metadata
from modcrypt.parquet.crypto.plaintext_pages import copy_known
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.parquet.crypto.relocation import ChunkMove, Relocation
from modcrypt.parquet.format.framing import MAGIC_PLAINTEXT, close_tail
from modcrypt.parquet.format.idl import ThriftStruct, decode, encode, known_bytes
from modcrypt.parquet.format.modules import STRUCTS, Part, Span, sort_for_writing
from modcrypt.parquet.format.page_header import UNCOMPRESSED, splice

__all__ = ["decrypt_parquet", "open_pages", "write_plaintext"]


def decrypt_parquet(
    source: SourceLike,
    destination: Destination,
    properties: FileDecryptionProperties,
    *,
    filesystem: Any = None,
    overwrite: bool = True,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
    keep_unknown_fields: bool = False,
) -> tuple[str, ...]:
    """Decrypt a Parquet file of any compliant writer, module by module, without decoding a value.

    The plaintext of a file from `encrypt_parquet` is restored byte for byte if it had no gaps and a
    canonical encoding, as files of PyArrow, parquet-java and DuckDB do. Otherwise it is restored
    module for module: the same pages, indexes and bloom filters in the same order, with new
    offsets. The README lists what is not restored ("When decryption restores a file byte for
    byte").

    Args:
        source: Path, fsspec URL, bytes or seekable binary file object.
        destination: Path or fsspec URL, at which the file appears complete or not at all; or a
            writable binary file object, which receives only authenticated bytes, but after an error
            not all.
        properties: Keys, and the caller's requirements.
        filesystem: Filesystem of pyarrow or fsspec in which source and destination are paths.
        overwrite: Replace an existing destination; if False, raise FileExistsError.
        threads: Number of threads: 1 does everything in the calling thread, 2 writes in a second
            thread; None chooses by the size of the file and the number of processors.
        progress: Function called from time to time, in the calling thread, with the number of bytes
            written so far; the final number is close to the source's size.
        keep_unknown_fields: Keep Thrift fields that modcrypt does not know if columns are omitted
            or null. Newer writers may put statistics of any column there, so by default such a file
            loses them; a file with all columns keeps them.

    Returns:
        The columns without a key, which were omitted or filled with nulls, depending on
            `properties.on_missing_key`.

    Raises:
        PlaintextError: The file is not encrypted, or its footer signature was removed.
        IntegrityError: A module does not authenticate; the subclass and the message give details.
        KeyRetrievalError: A key is missing or was refused.
        UnsupportedFormatError: The file's algorithm is not among `properties.algorithms`, or
            modcrypt does not support a known layout.
        FormatError, LimitError: The file breaks the format, or a limit.
        ValueError: `threads` is below 1, or the destination is a file object on the source.
        TypeError: An argument has the wrong type.
        FileExistsError, OSError: The file system reports an error.
    """
    with open_source(source, filesystem=filesystem) as opened:
        plan = OpenFile(opened, properties).select()
        with open_output(
            destination, opened, overwrite=overwrite, threads=threads, filesystem=filesystem
        ) as out:
            out.progress = progress
            write_plaintext(opened, out, plan, keep_unknown_fields=keep_unknown_fields)
    return plan.missing_names


def write_plaintext(
    source: Source, out: Output, plan: Plan, *, keep_unknown_fields: bool = False
) -> bytes:
    """Decrypt the modules of a plan, append the plaintext file, and return its encoded footer.

    Raises:
        ModcryptError: As `decrypt_parquet`.
    """
    known_only = bool(plan.missing) and not keep_unknown_fields
    return _Decryption(source, out, plan, known_only=known_only).run()


# --- one file ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Decryption:
    """One file that is being decrypted."""

    source: Source
    out: Output
    plan: Plan
    known_only: bool = False  # remove fields that the IDL does not know
    moves: Relocation = field(default_factory=Relocation)

    def run(self) -> bytes:
        out = self.out
        window = Window(self.source)
        out.write(MAGIC_PLAINTEXT)
        for span in sort_for_writing(self.plan.spans):
            start = out.position
            cipher = self.plan.ciphers.get((span.row_group, span.column))
            if span.part is Part.PAGES:
                self._write_pages(window, span, cipher)
            else:
                self._write_index_or_filter(span, cipher)
            self.moves.add(span, start, out.position)
        row_groups, _ = self.moves.row_groups(copy_row_groups(self.plan))
        metadata, nulls = plain_metadata(
            self.plan, row_groups, out.position, keep_unknown_fields=not self.known_only
        )
        if "num_rows" in self.plan.footer.absent:
            metadata.num_rows = 0
        out.write(nulls)
        tail = close_tail(encode(metadata), MAGIC_PLAINTEXT)
        out.write(tail)
        return tail

    def _write_pages(self, window: Window, span: Span, cipher: ChunkCipher | None) -> None:
        move = ChunkMove(span.start, self.out.position)
        chunk = self.plan.chunks[span.row_group, span.column]
        move.keep_pages = chunk.offset_index_offset is not None
        if cipher is not None:
            open_pages(
                window, span, cipher, self.out, move, chunk.meta_data, known_only=self.known_only
            )
        elif self.known_only:
            copy_known(window, span, self.out, move)
        else:
            move.copied = True
            self.out.copy_from(self.source, span.start, span.end)
        move.new_end = self.out.position
        self.moves.chunks[span.row_group, span.column] = move

    def _write_index_or_filter(self, span: Span, cipher: ChunkCipher | None) -> None:
        """Write an index or a bloom filter."""
        data = self.source.read_at(span.start, span.end - span.start)
        if cipher is not None:
            data = b"".join(open_part(cipher, span, data))
        if self.known_only:
            data = known_bytes(STRUCTS[span.part], data)
        if span.part is Part.OFFSET_INDEX:
            index, _ = decode("OffsetIndex", data)
            self.moves.relocate_index(span, index)
            data = encode(index)
        self.out.write(data)


# --- the page loop -------------------------------------------------------------------------------


def open_pages(
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

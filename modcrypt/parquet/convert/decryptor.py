"""Encrypted Parquet to plaintext Parquet, pages never decoded.

The reverse of the encryptor: every module is opened and appended in the order of the source.
Nothing that a sealed header, a length prefix, a chunk size or an offset says is taken alone:
they must all agree, and no page is passed on before its tag has been verified.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from modcrypt.aad import ModuleId, ModuleType
from modcrypt.io.buffers import Output, Window, open_output
from modcrypt.io.storage import Destination, Sink, Source, SourceLike, open_source
from modcrypt.parquet.crypto.bloom_filters import open_bloom_filter
from modcrypt.parquet.crypto.ciphers import ChunkCipher
from modcrypt.parquet.crypto.encrypted_pages import (
    EncryptedPage,
    Page,
    open_body,
    open_checked,
    open_header,
    with_known_header,
)
from modcrypt.parquet.crypto.file_plan import Plan, plan_decryption
from modcrypt.parquet.crypto.footer import FOOTER
from modcrypt.parquet.crypto.plaintext_footer import plain_metadata, selected_row_groups
from modcrypt.parquet.crypto.plaintext_pages import copy_known
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.parquet.crypto.relocation import ChunkMove, Relocation
from modcrypt.parquet.format.framing import MAGIC_PLAINTEXT, close_tail
from modcrypt.parquet.format.idl import ThriftStruct, decode, encode, known_bytes, struct_end
from modcrypt.parquet.format.modules import STRUCTS, Part, Span, in_writing_order
from modcrypt.parquet.format.page_header import UNCOMPRESSED, splice

__all__ = ["ModuleSpan", "decrypt_parquet", "list_modules", "write_plaintext"]


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

    A file that `encrypt_parquet` made comes back byte for byte where the plaintext file had no
    gaps and was spelt canonically, as those of PyArrow, parquet-java and DuckDB are; else module
    for module: the same pages, indexes and bloom filters in the same order, offsets set anew.
    The README lists what is not restored ("When decryption restores a file byte for byte").

    Args:
        source: path, fsspec URL, bytes or seekable binary file object.
        destination: path or fsspec URL, which appears complete or not at all, or a writable
            binary file object, which gets authenticated bytes only, but perhaps not all.
        properties: keys, and what the caller insists on.
        filesystem: of pyarrow or fsspec, in which both are paths.
        overwrite: replace an existing destination; otherwise it is a FileExistsError.
        threads: 1 does everything in the calling thread, 2 writes in a thread of its own; None
            chooses by the file's size and the processors.
        progress: called now and then, in the calling thread, with the bytes written so far; the
            end is close to the source's size.
        keep_unknown_fields: Keep Thrift fields that modcrypt does not know when columns are left
            out or null. Newer writers may put statistics of any column there, so the default
            leaves them out of such a file; a file with all columns keeps them.

    Returns:
        The columns without a key, which were left out or filled with nulls, as
        `properties.on_missing_key` says.

    Raises:
        PlaintextError: the file is not encrypted, or its footer signature was stripped.
        IntegrityError: something does not authenticate; its subclass and message say what.
        KeyRetrievalError: a key is missing or was refused.
        UnsupportedFormatError: the file's algorithm is not among `properties.algorithms`, or a
            layout is known but not handled.
        FormatError, LimitError: the bytes break the format, or a limit.
        ValueError: `threads` is below 1, or the destination is a file object on the source.
        TypeError: an argument is of another kind.
        FileExistsError, OSError: from the file system.
    """
    with open_source(source, filesystem=filesystem) as opened:
        plan = plan_decryption(opened, properties)
        with open_output(
            destination, opened, overwrite=overwrite, threads=threads, filesystem=filesystem
        ) as out:
            out.progress = progress
            write_plaintext(opened, out, plan, keep_unknown_fields=keep_unknown_fields)
    return plan.missing_names


def write_plaintext(
    source: Source, out: Output, plan: Plan, *, keep_unknown_fields: bool = False
) -> bytes:
    """Open the modules of a plan and append the plaintext file; give its footer, to its end.

    Raises:
        ModcryptError: as `decrypt_parquet`.
    """
    known_only = bool(plan.missing) and not keep_unknown_fields
    return _Decryption(source, out, plan, known_only=known_only).run()


@dataclass(frozen=True, slots=True)
class ModuleSpan:
    """One module and the bytes [start, end) that it takes in the file, framing included."""

    module: ModuleId
    start: int
    end: int


def list_modules(
    source: SourceLike, properties: FileDecryptionProperties, *, filesystem: Any = None
) -> list[ModuleSpan]:
    """Open every module of a file that the keys allow, and say where it is, in file order.

    Modules inside the footer (column metadata) are not listed: they have no place of their own.

    Raises:
        ModcryptError: as `decrypt_parquet`.
    """
    found: list[ModuleSpan] = []

    def note(module: ModuleId, start: int, end: int) -> None:
        found.append(ModuleSpan(module, start, end))

    with open_source(source, filesystem=filesystem) as opened:
        plan = plan_decryption(opened, properties)
        out = Output(_Nowhere(), background=False)
        _Decryption(opened, out, plan, note).run()
        if plan.footer.encrypted:
            found.append(ModuleSpan(FOOTER, plan.footer.module_start, opened.size - 8))
    return sorted(found, key=lambda span: span.start)


class _Nowhere(Sink):
    def append(self, data: memoryview | bytes) -> None:
        pass


Trace: TypeAlias = Callable[[ModuleId, int, int], None]


# --- the walk ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Decryption:
    """One file on its way from encrypted to plain."""

    source: Source
    out: Output
    plan: Plan
    trace: Trace | None = None
    known_only: bool = False  # whether fields that the IDL doesn't know are left out
    moves: Relocation = field(default_factory=Relocation)

    def run(self) -> bytes:
        out = self.out
        window = Window(self.source)
        out.write(MAGIC_PLAINTEXT)
        for span in in_writing_order(self.plan.spans):
            start = out.position
            cipher = self.plan.ciphers.get((span.row_group, span.column))
            if span.part is Part.PAGES:
                self._write_pages(window, span, cipher)
            else:
                self._write_small(span, cipher)
            self.moves.add(span, start, out.position)
        row_groups, _ = self.moves.row_groups(selected_row_groups(self.plan))
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
                window, span, cipher, self.out, move, chunk.meta_data, self.trace,
                known_only=self.known_only,
            )  # fmt: skip
        elif self.known_only:
            copy_known(window, span, self.out, move)
        else:
            move.copied = True
            self.out.copy_from(self.source, span.start, span.end)
        move.new_end = self.out.position
        self.moves.chunks[span.row_group, span.column] = move

    def _write_small(self, span: Span, cipher: ChunkCipher | None) -> None:
        """Write an index or a bloom filter."""
        data = self.source.read_at(span.start, span.end - span.start)
        if cipher is not None and span.part is Part.BLOOM_FILTER:
            data = self._open_bloom_filter(span, cipher, data)
        elif cipher is not None:
            data = self._open_index(span, cipher, data)
        if self.known_only:
            data = known_bytes(STRUCTS[span.part], data)
        if span.part is Part.OFFSET_INDEX:
            index, _ = decode("OffsetIndex", data)
            self.moves.relocate_index(span, index)
            data = encode(index)
        self.out.write(data)

    def _open_index(self, span: Span, cipher: ChunkCipher, data: bytes) -> bytes:
        kind = ModuleType[span.part.name]
        if self.trace is not None:
            self.trace(cipher.id(kind), span.start, span.end)
        plain = cipher.open(kind, data)
        return plain[: struct_end(plain)]

    def _open_bloom_filter(self, span: Span, cipher: ChunkCipher, data: bytes) -> bytes:
        opened = open_bloom_filter(cipher, span, data)
        if self.trace is not None:
            border = span.start + opened.border
            self.trace(cipher.id(ModuleType.BLOOM_FILTER_HEADER), span.start, border)
            self.trace(cipher.id(ModuleType.BLOOM_FILTER_BITSET), border, span.end)
        return opened.header + opened.bitset


# --- the page loop -------------------------------------------------------------------------------


def open_pages(
    window: Window, span: Span, cipher: ChunkCipher, out: Output, move: ChunkMove,
    md: ThriftStruct, trace: Trace | None, *, known_only: bool,
) -> None:  # fmt: skip
    """Open the pages of one chunk: header module, page module, for each.

    `move` learns where pages went and how much the headers shrank. `known_only` leaves fields that
    the IDL doesn't know out of the headers.
    """
    # Whether the first page is a dictionary decides its AAD, so it must be known beforehand.
    is_dictionary = move.has_dictionary = bool(md.dictionary_page_offset)
    uncompressed = md.codec == UNCOMPRESSED
    position, end = span.start, span.end
    ordinal, grown = 0, 0
    while position < end:
        page = Page(cipher, is_dictionary, ordinal)
        sealed = open_header(window, position, end, page, uncompressed)
        if known_only:
            sealed = with_known_header(sealed)
        total = sealed[5]
        before = out.position
        if not is_dictionary:
            if not ordinal:
                move.first_data_page = position, before
            ordinal += 1
        border = total - len(sealed[3])
        grown += _write_page(out, sealed) - border
        if trace is not None:
            trace(page.header_id(), position, position + border)
            trace(page.id(), position + border, position + total)
        if move.keep_pages and not is_dictionary:
            move.pages.append((position, before, out.position - before))
        is_dictionary = False
        position += total
    move.header_growth = grown


def _write_page(out: Output, sealed: EncryptedPage) -> int:
    """Open a page's body and append the page; give its new header's size."""
    page, plain, header, body, _, _ = sealed
    cipher = page.cipher.page
    plain_size = len(body) - cipher.overhead
    if header[6] is not None:
        return _write_checked(out, sealed, plain_size)
    new_header = splice(plain, 0, header, plain_size)
    header_size = len(new_header)
    room = plain_size + cipher.slack
    if out.at + header_size + room > len(out.view):
        out.reserve(header_size + room)
    at, view = out.at, out.view
    view[at : at + header_size] = new_header
    at += header_size
    open_body(sealed, view[at : at + room])
    out.at = at + plain_size
    return header_size


def _write_checked(out: Output, sealed: EncryptedPage, plain_size: int) -> int:
    """Do the same for a page with a CRC."""
    opened = open_checked(sealed)
    new_header = splice(sealed.plain, 0, sealed.header, plain_size, zlib.crc32(opened))
    out.write(new_header)
    out.write(opened)
    return len(new_header)

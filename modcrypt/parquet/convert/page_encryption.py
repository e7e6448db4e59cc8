"""Encrypt the pages of a chunk: the loop that runs for every page."""

from __future__ import annotations

import zlib
from typing import NamedTuple

from modcrypt.aead import GCM_OVERHEAD
from modcrypt.errors import ChecksumError, FormatError
from modcrypt.io.buffers import Output, Window
from modcrypt.parquet.crypto.ciphers import ChunkCipher
from modcrypt.parquet.crypto.plaintext_pages import read_page
from modcrypt.parquet.crypto.relocation import ChunkMove
from modcrypt.parquet.format.idl import known_bytes
from modcrypt.parquet.format.modules import Span, unexpected_page_error
from modcrypt.parquet.format.page_header import (
    DATA_PAGE,
    DATA_PAGE_V2,
    DICTIONARY_PAGE,
    PageHeader,
    contradicts,
    scan,
    splice,
    v2_layout,
)

__all__ = ["PageRules", "count_level_bytes", "seal_body", "seal_pages"]


class PageRules(NamedTuple):
    """Rules for the page loop, from a chunk's codec and the caller's options.

    Attributes:
        uncompressed: Whether pages are uncompressed.
        levels_plain: Whether the levels of data pages V2 stay in plaintext.
        known_only: Whether fields that the IDL does not know are removed from page headers.
        names_dictionary: Whether the metadata names a dictionary, as the function
            `names_dictionary` returns it.
    """

    uncompressed: bool
    levels_plain: bool
    known_only: bool
    names_dictionary: bool | None


def seal_pages(
    window: Window, span: Span, cipher: ChunkCipher, out: Output, move: ChunkMove, rules: PageRules
) -> None:
    """Encrypt the pages of one chunk: for each, the header module and the page module.

    `move` records the new positions of pages and how much the headers grew.
    """
    seal_header, seal_page = cipher.header.seal_into, cipher.page.seal_into
    overhead, slack = cipher.page.overhead, cipher.page.slack
    uncompressed, levels_plain, known_only, _ = rules
    position, end = span.start, span.end
    ordinal, grown = 0, 0
    keep = move.keep_pages
    place = cipher.row_group, cipher.path
    while position < end:
        start, header = read_page(window, position, end, place, overhead)
        body, kind, size = header[0], header[1], header[3]
        raw, at_raw = window.buffer, start
        if known_only:
            raw, at_raw = known_bytes("PageHeader", bytes(window.view[start:body])), 0
            header = scan(raw, 0, len(raw))
        if kind in (DATA_PAGE, DATA_PAGE_V2):
            header_aad, page_aad = cipher.page_aads(False, ordinal)
            if not ordinal:
                move.first_data_page = position, out.position
            ordinal += 1
        elif kind == DICTIONARY_PAGE and position == span.start:
            move.has_dictionary = True
            header_aad, page_aad = cipher.page_aads(True, 0)
        else:
            raise unexpected_page_error(f"row group {cipher.row_group}, column {cipher.path}", kind)
        if size != header[2] and contradicts(header, window.view[start:body], size, uncompressed):
            raise FormatError(
                f"row group {cipher.row_group}, column {cipher.path}: an uncompressed page has "
                f"{size} bytes, but its header declares {header[2]}"
            )
        if header[6] is not None or (levels_plain and kind == DATA_PAGE_V2):
            new_header, module = _seal_before_header(
                raw, at_raw, header, window.view[body : body + size], cipher, page_aad, levels_plain
            )
        else:
            new_header, module = splice(raw, at_raw, header, size + overhead), None
        header_size = len(new_header)
        total = GCM_OVERHEAD + header_size + overhead + size
        if out.at + total + slack > len(out.view):
            out.reserve(total + slack)
        at = out.at
        view = out.view
        after_header = seal_header(view, at, new_header, header_size, header_aad)
        if module is None:
            out.at = seal_page(view, after_header, window.view[body : body + size], size, page_aad)
        else:
            view[after_header : at + total] = module
            out.at = at + total
        if keep and kind != DICTIONARY_PAGE:
            move.pages.append((position, out.position - total, total))
        grown += GCM_OVERHEAD + header_size - (body - start)
        position += body - start + size
    move.header_growth = grown


def _seal_before_header(
    raw: bytes | bytearray, start: int, header: PageHeader, body: memoryview, cipher: ChunkCipher,
    aad: bytes, levels_plain: bool,
) -> tuple[bytes | bytearray, memoryview]:  # fmt: skip
    """Encrypt a page before its header; return the new header and the bytes that replace the page.

    This serves pages whose header needs the CRC of the encrypted bytes, and data pages V2 in
    parquet-java's layout: [levels in plaintext][module of the values].
    """
    if header.crc is not None and zlib.crc32(body) != header.crc:
        raise ChecksumError(
            f"row group {cipher.row_group}, column {cipher.path}: the CRC of a page does not match "
            "its bytes; the source is damaged, and encrypting it would hide that"
        )
    clear = 0
    if levels_plain and header.type == DATA_PAGE_V2:
        clear = count_level_bytes(raw[start : header.end], len(body))
    module = seal_body(cipher, body, clear, aad)
    crc = None if header.crc is None else zlib.crc32(module)
    return splice(raw, start, header, len(module), crc), module


def count_level_bytes(header: bytes | bytearray | memoryview, size: int) -> int:
    """Return how many of a data page V2's `size` plaintext bytes are levels, by its header.

    Raises:
        FormatError: The header declares more bytes than the page has.
    """
    clear = v2_layout(header).levels_size
    if clear > size:
        raise FormatError(f"a data page V2 declares {clear} bytes of levels in {size} bytes")
    return clear


def seal_body(cipher: ChunkCipher, body: memoryview, clear: int, aad: bytes) -> memoryview:
    """Return the bytes that replace a page: the first `clear` unchanged, the others encrypted."""
    page, size = cipher.page, len(body)
    out = memoryview(bytearray(size + page.overhead + page.slack))
    out[:clear] = body[:clear]
    page.seal_into(out, clear, body[clear:], size - clear, aad)
    return out[: size + page.overhead]

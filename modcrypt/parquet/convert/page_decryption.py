"""Decrypt the pages of a chunk: the loops that run for every page."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from modcrypt.io.buffers import Output, Scratch
from modcrypt.parquet.crypto.ciphers import ChunkCipher
from modcrypt.parquet.crypto.encrypted_pages import (
    EncryptedPage,
    check_crc,
    open_and_check_crc,
    open_body,
)
from modcrypt.parquet.crypto.plaintext_pages import PlainPage
from modcrypt.parquet.crypto.relocation import ChunkMove
from modcrypt.parquet.format.page_header import splice

if TYPE_CHECKING:
    from mypy_extensions import i64


def open_pages(pages: Iterator[EncryptedPage], out: Output, move: ChunkMove) -> None:
    """Append the plaintext pages of a chunk: for each, its header and its body.

    `move` records the new positions of pages and how much the headers shrank.
    """
    grown: i64 = 0
    for sealed in pages:
        page, before = sealed.page, out.position
        if not page.is_dictionary and not page.ordinal:
            move.first_data_page = sealed.position, before
        grown += _write_page(out, sealed) - (sealed.total - len(sealed.body))
        if move.pages is not None and not page.is_dictionary:
            move.pages.append((sealed.position, before, out.position - before))
    move.header_growth = grown


def _write_page(out: Output, sealed: EncryptedPage) -> i64:
    """Decrypt a page's body, append the page, and return the size of its new header."""
    header, cipher = sealed.header, sealed.page.cipher.page
    plain_size = len(sealed.body) - cipher.overhead
    if header.crc is not None:
        opened = open_and_check_crc(sealed)
        new_header = splice(header, plain_size, zlib.crc32(opened))
        out.write(new_header)
        out.write(opened)
        return len(new_header)
    new_header = splice(header, plain_size)
    header_size = len(new_header)
    space = plain_size + cipher.slack
    if out.at + header_size + space > out.size:
        out.reserve(header_size + space)
    view, body = out.view, out.at + header_size
    view[out.at : body] = new_header
    open_body(sealed, view[body : body + space])
    out.at = body + plain_size
    return header_size


def decrypt_pages(
    pages: Iterator[EncryptedPage], cipher: ChunkCipher, scratch: Scratch, *, keep_levels: bool
) -> Iterator[PlainPage]:
    """Yield the decrypted pages of a chunk; the next page overwrites the body of the last.

    `keep_levels` has plaintext levels of data pages V2 stay in plaintext.
    """
    overhead, slack = cipher.page.overhead, cipher.page.slack
    for sealed in pages:
        body = sealed.body
        size = len(body) - overhead
        opened = scratch.reserve(size + slack)
        if sealed.header.crc is not None:
            check_crc(sealed)
        clear = open_body(sealed, opened)
        yield PlainPage(
            sealed.position, sealed.header, opened[:size], sealed.total - len(body),
            clear if keep_levels else 0,
        )  # fmt: skip

"""Decrypt the pages of a chunk: the loops that run for every page."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
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


def open_pages(
    pages: Iterator[EncryptedPage], out: Output, move: ChunkMove, headers: Mapping[int, bytes]
) -> None:
    """Append the plaintext pages of a chunk: for each, its header and its body.

    `move` records the new positions of pages and how much the headers shrank. `headers` has the
    original headers of pages whose number, from 1, it has.
    """
    grown: i64 = 0
    for number, encrypted in enumerate(pages, 1):
        original = headers.get(number) if headers else None
        page, before = encrypted.page, out.position
        if not page.is_dictionary and not page.ordinal:
            move.first_data_page = encrypted.position, before
        grown += _write_page(out, encrypted, original) - (encrypted.total - len(encrypted.body))
        if move.pages is not None and not page.is_dictionary:
            move.pages.append((encrypted.position, before, out.position - before))
    move.header_growth = grown


def _write_page(out: Output, encrypted: EncryptedPage, original: bytes | None) -> i64:
    """Decrypt a page's body, append the page, and return the size of its new header."""
    # That is the original one, if there is one.
    header, cipher = encrypted.header, encrypted.page.cipher.page
    plain_size = len(encrypted.body) - cipher.overhead
    if header.crc is not None:
        opened = open_and_check_crc(encrypted)
        new_header = original or splice(header, plain_size, zlib.crc32(opened))
        out.write(new_header)
        out.write(opened)
        return len(new_header)
    new_header = original or splice(header, plain_size)
    header_size = len(new_header)
    space = plain_size + cipher.slack
    if out.at + header_size + space > out.size:
        out.reserve(header_size + space)
    view, body = out.view, out.at + header_size
    view[out.at : body] = new_header
    open_body(encrypted, view[body : body + space])
    out.at = body + plain_size
    return header_size


def decrypt_pages(
    pages: Iterator[EncryptedPage], cipher: ChunkCipher, scratch: Scratch, *, keep_levels: bool
) -> Iterator[PlainPage]:
    """Yield the decrypted pages of a chunk; the next page overwrites the body of the last.

    `keep_levels` has plaintext levels of data pages V2 stay in plaintext.
    """
    overhead, slack = cipher.page.overhead, cipher.page.slack
    for encrypted in pages:
        body = encrypted.body
        size = len(body) - overhead
        opened = scratch.reserve(size + slack)
        if encrypted.header.crc is not None:
            check_crc(encrypted)
        clear = open_body(encrypted, opened)
        yield PlainPage(
            encrypted.position, encrypted.header, opened[:size], encrypted.total - len(body),
            clear if keep_levels else 0,
        )  # fmt: skip

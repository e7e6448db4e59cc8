"""Encrypt the pages of a chunk: the loop that runs for every page."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from modcrypt.aead import GCM_OVERHEAD, encrypt_page_into
from modcrypt.errors import FormatError
from modcrypt.io.buffers import Output
from modcrypt.parquet.crypto.ciphers import ChunkCipher
from modcrypt.parquet.crypto.page_facts import read_counts
from modcrypt.parquet.crypto.plaintext_pages import PlainPage
from modcrypt.parquet.crypto.relocation import ChunkMove
from modcrypt.parquet.format.idl import decode, encode
from modcrypt.parquet.format.levels import Levels, count_rows, find_contradiction
from modcrypt.parquet.format.modules import unexpected_page_error
from modcrypt.parquet.format.page_header import (
    DATA_PAGE,
    DATA_PAGE_V2,
    DICTIONARY_PAGE,
    PageHeader,
    splice,
    v2_layout,
)
from modcrypt.parquet.format.page_header_scan import scan

if TYPE_CHECKING:
    from mypy_extensions import i64


class PageRules:
    """Rules for the page loop, from a chunk's codec and the caller's options."""

    __slots__ = ("compression", "headers", "known_only", "names_dictionary", "plain_levels")

    def __init__(
        self, compression: i64, plain_levels: Levels | None, known_only: bool,
        names_dictionary: bool | None, headers: Mapping[int, bytes] | None = None,
    ) -> None:  # fmt: skip
        self.compression: i64 = compression  # as `page_compression` returns it
        self.plain_levels: Levels | None = plain_levels  # if those of data pages V2 stay plaintext
        self.known_only: bool = known_only  # remove fields that the IDL lacks from page headers
        self.names_dictionary: bool | None = names_dictionary  # as the function of this name
        # Original headers to write in plaintext, by the number of the page in the chunk, from 1.
        self.headers: Mapping[int, bytes] = headers or {}


def encrypt_pages(
    pages: Iterable[PlainPage], cipher: ChunkCipher, out: Output, move: ChunkMove,
    *, plain_levels: Levels | None,
) -> None:  # fmt: skip
    """Encrypt the pages of one chunk: for each, the header module and the page module.

    `move` records the new positions of pages and how much the headers grew. With
    `plain_levels`, the levels of data pages V2 stay in plaintext.
    """
    header_cipher, page_cipher = cipher.header, cipher.page
    overhead, slack, places = page_cipher.overhead, page_cipher.slack, move.pages
    ordinal: i64 = 0
    grown: i64 = 0
    is_plaintext = move.is_plaintext
    for page in pages:
        header, body = page.header, page.body
        kind, size = header.type, len(body)
        if kind in (DATA_PAGE, DATA_PAGE_V2):
            header_aad, page_aad = cipher.page_aads(False, ordinal)
            if not ordinal:
                move.first_data_page = page.position, out.position
            ordinal += 1
        elif kind == DICTIONARY_PAGE and not (ordinal or move.has_dictionary):
            move.has_dictionary = True
            header_aad, page_aad = cipher.page_aads(True, 0)
        else:
            raise unexpected_page_error(f"row group {cipher.row_group}, column {cipher.path}", kind)
        clear = page.kept
        if plain_levels is not None and kind == DATA_PAGE_V2:
            header = _correct_rows(plain_levels, header, body)
            clear = _check_levels(plain_levels, cipher, header.raw, body)
        if is_plaintext and (
            page.stored != len(header.raw)
            or header.crc is not None
            or header is not page.header
            or not header.raw[header.size_end - 1]  # perhaps of a size in more bytes than needed
        ):
            _note_header(move, page, header, ordinal + move.has_dictionary)
        module: memoryview | None = None
        if clear or header.crc is not None:
            # A CRC in the header is that of the encrypted bytes.
            module = memoryview(bytearray(size + overhead + slack))
            module[:clear] = body[:clear]
            page_cipher.encrypt_into(module, clear, body[clear:], size - clear, page_aad)
            module = module[: size + overhead]
            new_header = splice(header, len(module), zlib.crc32(module))
        else:
            new_header = splice(header, size + overhead)
        header_size = len(new_header)
        total = GCM_OVERHEAD + header_size + overhead + size
        if out.at + total + slack > out.size:
            out.reserve(total + slack)
        at, view = out.at, out.view
        if module is None:
            out.at = encrypt_page_into(
                header_cipher, page_cipher, view, at, new_header, header_aad, body, size, page_aad
            )
        else:
            after_header = header_cipher.encrypt_into(view, at, new_header, header_size, header_aad)
            out.at = at + total
            view[after_header : at + total] = module
        if places is not None and kind != DICTIONARY_PAGE:
            places.append((page.position, out.position - total, total))
            move.values.append(read_counts(header)[0])
        grown += GCM_OVERHEAD + header_size - page.stored
    move.header_growth = grown


def _note_header(move: ChunkMove, page: PlainPage, header: PageHeader, number: i64) -> None:
    """Note a header that decryption would spell in another way, with the number of its page."""
    if page.stored != len(header.raw) or page.header.raw != splice(
        header, header.compressed_size, header.crc
    ):
        move.respelt.append((number, page.position, page.position + page.stored))


def _correct_rows(levels: Levels, header: PageHeader, body: memoryview) -> PageHeader:
    """Return the header of a data page V2 with its number of rows."""
    # Arrow C++ up to 11 and parquetjs state the number of values of lists instead. Plaintext levels
    # have no tag, so the encrypted header must count the rows that they make.
    if not levels.max_repetition:
        return header
    struct = decode("PageHeader", header.raw)[0]
    v2 = struct.data_page_header_v2
    if v2 is None or v2.num_rows != v2.num_values:
        return header
    try:
        v2.num_rows = count_rows(levels, v2, body)
    except (FormatError, IndexError):
        return header  # the levels are refused below
    raw = encode(struct)
    return header if v2.num_rows == v2.num_values else scan(raw, 0, len(raw))


def _check_levels(levels: Levels, cipher: ChunkCipher, header: bytes, body: memoryview) -> i64:
    """Return how many of a data page V2's plaintext bytes are levels, by its header.

    Raise FormatError if it declares more bytes than the page has, or the levels contradict it:
    readers would take the page for altered.
    """
    clear: i64 = v2_layout(header).levels_size
    if clear > len(body):
        raise FormatError(f"a data page V2 declares {clear} bytes of levels in {len(body)} bytes")
    if clear and (why := find_contradiction(levels, header, body[:clear])):
        where = f"row group {cipher.row_group}, column {cipher.path}"
        raise FormatError(f"{where}: readers would refuse a data page V2, because {why}")
    return clear

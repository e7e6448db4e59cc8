"""Walking over the pages of a plaintext column chunk; copying and counting them."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from typing import TypeAlias

from modcrypt.errors import ChecksumError, FormatError
from modcrypt.io.buffers import Output, Window
from modcrypt.parquet.crypto.relocation import ChunkMove
from modcrypt.parquet.format.idl import ThriftStruct, decode, known_bytes, new
from modcrypt.parquet.format.modules import MAX_PAGE_HEADER, Span
from modcrypt.parquet.format.page_header import (
    DICTIONARY_PAGE,
    PageHeader,
    check_size,
    contradicts,
    scan,
)

PlainPage: TypeAlias = "tuple[int, bytes | bytearray, int, PageHeader, memoryview, int, int]"
"""A plaintext page, as it was stored or after decryption: its offset in the file; the buffer with
its header, and where the header starts there; the scan of the header; the body; the stored size of
the header; and how many bytes of the body, its levels, encryption leaves in plaintext."""


def _load_header(window: Window, position: int, end: int) -> tuple[int, PageHeader]:
    """Load the page header at `position` into the window; return its index there and the header.

    The window grows until the header is whole; the page's body may lie outside.
    """
    size = 1
    while True:
        window.fill(position, min(end, position + size), end)
        start = position - window.base
        try:
            header = scan(window.buffer, start, min(window.stop, end - window.base))
        except FormatError:
            size = 2 * (window.stop - start)  # the header may continue after the window's end
            if window.base + window.stop >= end or size > 2 * MAX_PAGE_HEADER:
                raise
            continue
        page_end = position + header.end - start + header.compressed_size
        if page_end > end:
            raise FormatError(f"the page ends at {page_end}, its chunk at {end}")
        return start, header


def walk_plaintext(
    window: Window, span: Span, column: int | str, *, known_only: bool = False,
    uncompressed: bool | None = None, overhead: int = 0, bodies: bool = True,
) -> Iterator[PlainPage]:  # fmt: skip
    """Yield the pages of a plaintext chunk.

    Args:
        column: Name or ordinal of the column, for error messages.
        known_only: Whether fields that the IDL does not know are removed from the headers.
        uncompressed: Whether the column's codec is UNCOMPRESSED; None leaves sizes and CRCs
            unchecked.
        overhead: Bytes that encryption will add to each page.
        bodies: Whether the pages' bodies are loaded; without, pages may be of any size.

    Raises:
        FormatError: A header is damaged, a page exceeds its chunk, or has another size than its
            header declares.
        LimitError: A page would be too large with the overhead; it is not loaded.
        ChecksumError: A page's CRC does not match.
    """
    position, end, place = span.start, span.end, (span.row_group, column)
    while position < end:
        at, buffer, header = position - window.base, window.buffer, None
        if 0 <= at < window.stop:
            try:
                header = scan(buffer, at, window.stop)
            except FormatError:
                header = None  # it may continue after the window's end
        if header is None or header[0] + header[3] > min(window.stop, end - window.base):
            at, header = _load_page(window, position, end, place, overhead if bodies else None)
            buffer = window.buffer
        border, size = header[0], header[3]
        stored, body = border - at, window.view[border : border + size]
        if known_only:
            buffer, at = known_bytes("PageHeader", bytes(window.view[at:border])), 0
            header = scan(buffer, 0, len(buffer))
        if uncompressed is not None and (size != header[2] or header[6] is not None):
            _check_page(header, buffer[at : header[0]], body, place, uncompressed)
        yield position, buffer, at, header, body, stored, 0
        position += stored + size


def _load_page(
    window: Window, position: int, end: int, place: tuple[int, str | int], overhead: int | None
) -> tuple[int, PageHeader]:
    """Load the page at `position`, or without overhead only its header; return index and header."""
    try:
        start, header = _load_header(window, position, end)
    except FormatError as error:
        raise FormatError(
            f"row group {place[0]}, column {place[1]}, byte {position}: {error}"
        ) from None
    page_end = position + header.end - start + header.compressed_size
    if overhead is not None and page_end > window.base + window.stop:
        check_size(header.compressed_size + overhead)
        window.fill(position, page_end, end)
        start = position - window.base
        header = scan(window.buffer, start, window.stop)
    return start, header


def _check_page(
    header: PageHeader, raw: bytes | bytearray, body: memoryview, place: tuple[int, str | int],
    uncompressed: bool,
) -> None:  # fmt: skip
    where = f"row group {place[0]}, column {place[1]}"
    if contradicts(header, raw, len(body), uncompressed):
        raise FormatError(
            f"{where}: an uncompressed page has {len(body)} bytes, but its header declares "
            f"{header.uncompressed_size}"
        )
    if header.crc is not None and zlib.crc32(body) != header.crc:
        raise ChecksumError(
            f"{where}: the CRC of a page does not match its bytes; the source is damaged, and "
            "encrypting it would hide that"
        )


def copy_known(window: Window, span: Span, out: Output, move: ChunkMove) -> None:
    """Copy the pages of a plaintext chunk, without header fields that the IDL does not know."""
    for position, known, _, header, body, stored, _ in walk_plaintext(
        window, span, span.column, known_only=True
    ):
        at = out.position
        out.write(known)
        out.write(body)
        if header.type == DICTIONARY_PAGE:
            move.has_dictionary = True
        else:
            move.first_data_page = move.first_data_page or (position, at)
            if move.keep_pages:
                move.pages.append((position, at, out.position - at))
        move.header_growth += header.end - stored
    move.copied = not move.header_growth  # only then the footer's encoding stays unchanged as well


def count_encodings(window: Window, span: Span) -> list[ThriftStruct]:
    """Return the number of a plaintext chunk's pages by type and encoding."""
    counts: Counter[tuple[int, int]] = Counter()
    for _, buffer, at, header, *_ in walk_plaintext(window, span, span.column, bodies=False):
        page = decode("PageHeader", bytes(buffer[at : header.end]))[0]
        of_kind = page.data_page_header or page.data_page_header_v2 or page.dictionary_page_header
        if of_kind is not None:
            counts[page.type, of_kind.encoding] += 1
    return [
        new("PageEncodingStats", page_type=kind, encoding=encoding, count=count)
        for (kind, encoding), count in counts.items()
    ]

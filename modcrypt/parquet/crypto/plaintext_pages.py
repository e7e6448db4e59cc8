"""Walking over the pages of a plaintext column chunk; copying and counting them."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from modcrypt.errors import ChecksumError, FormatError
from modcrypt.io.buffers import Output, Window
from modcrypt.parquet.crypto.relocation import ChunkMove
from modcrypt.parquet.format.idl import ThriftStruct, decode, is_known, known_bytes, new
from modcrypt.parquet.format.modules import MAX_PAGE_HEADER, Span
from modcrypt.parquet.format.page_header import DICTIONARY_PAGE, PageHeader, check_size, contradicts
from modcrypt.parquet.format.page_header_scan import scan

if TYPE_CHECKING:
    from mypy_extensions import i64


class PlainPage:
    """A plaintext page, as it was stored or after decryption."""

    __slots__ = ("body", "header", "kept", "position", "stored")

    def __init__(
        self, position: i64, header: PageHeader, body: memoryview, stored: i64, kept: i64
    ) -> None:
        self.position: i64 = position  # where the page starts in the file
        self.header: PageHeader = header  # scan of the header
        self.body: memoryview = body  # view of the body
        self.stored: i64 = stored  # size of the header in the file, in bytes
        # How many bytes of the body, its levels, encryption leaves in plaintext.
        self.kept: i64 = kept


def _load_header(window: Window, position: i64, end: i64) -> PageHeader:
    """Load the page header at `position` into the window and return it."""
    # The window grows until the header is whole; the page's body may lie outside.
    size: i64 = 1
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
        page_end = position + len(header.raw) + header.compressed_size
        if page_end > end:
            raise FormatError(f"the page ends at {page_end}, its chunk at {end}")
        return header


def walk_plaintext(
    window: Window, span: Span, column: int | str, *, known_only: bool = False,
    compression: int | None = None, overhead: int = 0, bodies: bool = True,
) -> Iterator[PlainPage]:  # fmt: skip
    """Yield the pages of a plaintext chunk.

    Args:
        column: Name or ordinal of the column, for error messages.
        known_only: Whether fields that the IDL does not know are removed from the headers.
        compression: When pages are compressed, as `page_compression` returns it; None leaves sizes
            and CRCs unchecked.
        overhead: Bytes that encryption will add to each page.
        bodies: Whether the pages' bodies are loaded; without, pages may be of any size.

    Raises:
        FormatError: A header is damaged, a page exceeds its chunk, or has another size than its
            header declares.
        LimitError: A page would be too large with the overhead; it is not loaded.
        ChecksumError: A page's CRC does not match.
    """
    where = f"row group {span.row_group}, column {column}"
    position: i64 = span.start
    end: i64 = span.end
    while position < end:
        at, header = position - window.base, None
        if 0 <= at < window.stop:
            try:
                header = scan(window.buffer, at, window.stop)
            except FormatError:
                header = None  # it may continue after the window's end
        border: i64 = 0 if header is None else at + len(header.raw)
        if header is None or border + header.compressed_size > min(window.stop, end - window.base):
            header = _load_page(window, position, end, where, overhead if bodies else -1)
            border = position - window.base + len(header.raw)
        stored: i64 = len(header.raw)
        size = header.compressed_size
        body = window.view[border : border + size]
        if known_only and not is_known("PageHeader", header.raw):
            known = known_bytes("PageHeader", header.raw)
            header = scan(known, 0, len(known))
        if compression is not None and (size != header.uncompressed_size or header.crc is not None):
            _check_page(header, body, where, compression)
        yield PlainPage(position, header, body, stored, 0)
        position += stored + size


def _load_page(window: Window, position: i64, end: i64, where: str, overhead: i64) -> PageHeader:
    """Load the page at `position`, or with overhead -1 only its header; return the header."""
    try:
        header = _load_header(window, position, end)
    except FormatError as error:
        raise FormatError(f"{where}, byte {position}: {error}") from None
    page_end = position + len(header.raw) + header.compressed_size
    if overhead >= 0 and page_end > window.base + window.stop:
        check_size(header.compressed_size + overhead)
        window.fill(position, page_end, end)
    return header


def _check_page(header: PageHeader, body: memoryview, where: str, compression: int) -> None:
    if contradicts(header, len(body), compression):
        raise FormatError(
            f"{where}: an uncompressed page has {len(body)} bytes, but its header declares "
            f"{header.uncompressed_size}"
        )
    if header.crc is not None and zlib.crc32(body) != header.crc:
        raise ChecksumError(
            f"{where}: the CRC of a page does not match its bytes; the source is damaged, and "
            "encrypting it would hide that"
        )


def copy_pages(
    window: Window, span: Span, out: Output, move: ChunkMove, headers: Mapping[int, bytes], *,
    known_only: bool,
) -> None:  # fmt: skip
    """Copy the pages of a plaintext chunk with other headers.

    They are those in `headers`, by the number of the page from 1, or with `known_only` the page's
    own without fields that the IDL does not know.
    """
    pages = walk_plaintext(window, span, span.column, known_only=known_only)
    for number, page in enumerate(pages, 1):
        at, header = out.position, page.header
        raw = headers.get(number, header.raw)
        out.write(raw)
        out.write(page.body)
        if header.type == DICTIONARY_PAGE:
            move.has_dictionary = True
        else:
            move.first_data_page = move.first_data_page or (page.position, at)
            if move.pages is not None:
                move.pages.append((page.position, at, out.position - at))
        if len(raw) != page.stored:
            move.respelt.append((number, page.position, page.position + page.stored))
        move.header_growth += len(raw) - page.stored
    move.copied = not move.header_growth  # only then the footer's encoding stays unchanged as well


def count_encodings(window: Window, span: Span) -> list[ThriftStruct]:
    """Return the number of a plaintext chunk's pages by type and encoding."""
    counts: Counter[tuple[int, int]] = Counter()
    for plain in walk_plaintext(window, span, span.column, bodies=False):
        page = decode("PageHeader", plain.header.raw)[0]
        of_kind = page.data_page_header or page.data_page_header_v2 or page.dictionary_page_header
        if of_kind is not None:
            counts[page.type, of_kind.encoding] += 1
    return [
        new("PageEncodingStats", page_type=kind, encoding=encoding, count=count)
        for (kind, encoding), count in counts.items()
    ]

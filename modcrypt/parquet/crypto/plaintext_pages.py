"""Reading, copying and counting the pages of a plaintext column chunk."""

from __future__ import annotations

from collections import Counter

from modcrypt.errors import FormatError
from modcrypt.io.buffers import Output, Window
from modcrypt.parquet.crypto.relocation import ChunkMove
from modcrypt.parquet.format.idl import ThriftStruct, decode, known_bytes, new
from modcrypt.parquet.format.modules import MAX_PAGE_HEADER, Span
from modcrypt.parquet.format.page_header import DICTIONARY_PAGE, PageHeader, check_size, scan

__all__ = ["copy_known", "count_encodings", "load_header", "read_page"]


def read_page(
    window: Window, position: int, end: int, place: tuple[int, str | int], overhead: int = 0
) -> tuple[int, PageHeader]:
    """Load the whole page at `position` into the window; return its index there and its header.

    Args:
        window: Window of the file.
        position: Offset of the page in the file.
        end: Offset at which the page's chunk ends.
        place: Row group and column, for error messages.
        overhead: Bytes that encryption will add to the page.

    Raises:
        FormatError: The header is damaged, or the page exceeds its chunk.
        LimitError: The page would be too large with the overhead; it is not loaded.
    """
    start = position - window.base
    if 0 <= start < window.stop:
        try:
            header = scan(window.buffer, start, window.stop)
        except FormatError:
            pass  # the header may continue after the window's end
        else:
            if header[0] + header[3] <= min(window.stop, end - window.base):
                return start, header
    try:
        start, header = load_header(window, position, end)
    except FormatError as error:
        raise FormatError(
            f"row group {place[0]}, column {place[1]}, byte {position}: {error}"
        ) from None
    page_end = position + header.end - start + header.compressed_size
    if page_end > window.base + window.stop:
        check_size(header.compressed_size + overhead)
        window.fill(position, page_end, end)
        start = position - window.base
        header = scan(window.buffer, start, window.stop)
    return start, header


def load_header(window: Window, position: int, end: int) -> tuple[int, PageHeader]:
    """Load the page header at `position` into the window; return its index there and the header.

    The window grows until the header is whole; the page's body may lie outside.

    Args:
        window: Window of the file.
        position: Offset of the page in the file.
        end: Offset at which the page's chunk ends.

    Raises:
        FormatError: There is no valid header, or its page ends beyond the chunk.
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


def copy_known(window: Window, span: Span, out: Output, move: ChunkMove) -> None:
    """Copy the pages of a plaintext chunk, without header fields that the IDL does not know."""
    position, place = span.start, (span.row_group, span.column)
    while position < span.end:
        start, header = read_page(window, position, span.end, place)
        raw = bytes(window.view[start : header.end])
        known = known_bytes("PageHeader", raw)
        at, total = out.position, len(known) + header.compressed_size
        out.write(known)
        out.write(window.view[header.end : header.end + header.compressed_size])
        if header.type == DICTIONARY_PAGE:
            move.has_dictionary = True
        else:
            move.first_data_page = move.first_data_page or (position, at)
            if move.keep_pages:
                move.pages.append((position, at, total))
        move.header_growth += len(known) - len(raw)
        position += len(raw) + header.compressed_size
    move.copied = not move.header_growth  # only then the footer's encoding stays unchanged as well


def count_encodings(window: Window, span: Span) -> list[ThriftStruct]:
    """Return the number of a plaintext chunk's pages by type and encoding."""
    counts: Counter[tuple[int, int]] = Counter()
    position, place = span.start, (span.row_group, span.column)
    while position < span.end:
        start, header = read_page(window, position, span.end, place)
        page = decode("PageHeader", bytes(window.view[start : header.end]))[0]
        of_kind = page.data_page_header or page.data_page_header_v2 or page.dictionary_page_header
        if of_kind is not None:
            counts[page.type, of_kind.encoding] += 1
        position += header.end - start + header.compressed_size
    return [
        new("PageEncodingStats", page_type=kind, encoding=encoding, count=count)
        for (kind, encoding), count in counts.items()
    ]

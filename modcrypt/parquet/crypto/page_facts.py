"""Collect the facts in the headers of a chunk's pages, for comparison with metadata and indexes."""

from __future__ import annotations

from typing import Final

from modcrypt.errors import FormatError
from modcrypt.parquet.format.compact import read_int
from modcrypt.parquet.format.idl import decode
from modcrypt.parquet.format.page_header import DATA_PAGE, DATA_PAGE_V2, PageHeader


class PageFacts:
    """The facts from the headers of a chunk's pages; -1 for a number that a header lacks."""

    def __init__(self) -> None:
        # For each data page: start, stored size of header and body, values, nulls, rows.
        self.pages: list[tuple[int, int, int, int, int]] = []
        self.headers: list[bytes] = []  # of data pages, if `keep_headers`
        self.dictionaries: list[bytes] = []  # headers of dictionary pages
        self.keep_headers = False
        self.complete = True  # whether every header of the chunk was read
        self.has_unframed_bytes = False  # whether pages without a key are more than two modules
        self.counts_values = False  # whether pages V2 give their number of values as that of rows

    @property
    def values(self) -> list[int]:
        """Number of values of each data page."""
        return [page[2] for page in self.pages]

    @property
    def rows(self) -> list[int]:
        """Number of rows of each data page; empty unless all headers state it."""
        rows = [page[4] for page in self.pages]
        return [] if self.counts_values or -1 in rows else rows


_DETAILS: Final = {
    DATA_PAGE: 5,
    DATA_PAGE_V2: 8,
}  # field ids of the data page structs in PageHeader


def read_counts(header: PageHeader) -> tuple[int, int, int]:
    """Return the numbers of values, nulls and rows of a data page; -1 if a V1 header lacks one.

    The numbers come first in a struct that follows the sizes or the CRC, which allows a fast path.
    Raise FormatError if the header has no such struct.
    """
    kind, data = header.type, header.raw
    at, last = (header.size_end, 3) if header.crc is None else (header.crc_end, 4)
    if data[at] == (_DETAILS[kind] - last) << 4 | 12 and data[at + 1] == 0x15:
        byte, more = data[at + 2], data[at + 3]
        if kind == DATA_PAGE and more < 128 and not byte & 1:  # most numbers take one or two bytes
            return byte >> 1 if byte < 128 else (byte & 127 | more << 7) >> 1, -1, -1
        values, at = read_int(data, at + 2, 32)
        if kind == DATA_PAGE:
            return values, -1, -1
        if data[at] == 0x15:
            nulls, at = read_int(data, at + 1, 32)
            if data[at] == 0x15:
                return values, nulls, read_int(data, at + 1, 32)[0]
    decoded = decode("PageHeader", data)[0]
    v1, v2 = decoded.data_page_header, decoded.data_page_header_v2
    if kind == DATA_PAGE and v1 is not None:
        return v1.num_values, -1, -1
    if kind == DATA_PAGE_V2 and v2 is not None:
        return v2.num_values, v2.num_nulls, v2.num_rows
    raise FormatError("page header: the struct for its page type is missing")

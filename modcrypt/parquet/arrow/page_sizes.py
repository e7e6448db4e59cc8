"""Checks of the sizes that pages declare, before PyArrow allocates memory for them.

A page declares its size after decompression, and a decoder allocates that much at once. Each codec
has a largest possible expansion ratio. Some ratios are so large that an absolute limit applies too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from modcrypt.errors import FormatError, LimitError
from modcrypt.parquet.format.idl import ThriftStruct, decode
from modcrypt.parquet.format.page_header import (
    DATA_PAGE,
    DATA_PAGE_V2,
    DICTIONARY_PAGE,
    PageHeader,
    count_values,
)
from modcrypt.parquet.format.page_header_scan import scan
from modcrypt.parquet.format.structs import ColumnMetaData

if TYPE_CHECKING:
    from mypy_extensions import i64

_LARGEST_RATIO = {
    0: 1,  # UNCOMPRESSED
    1: 22,  # SNAPPY: a copy of 64 bytes takes 3
    2: 1032,  # GZIP: a match of 258 bytes takes 2 bits (RFC 1951 3.2.5)
    3: 256,  # LZO: as LZ4, a length grows by 255 with each byte
    5: 256,  # LZ4
    6: 32_768,  # ZSTD: a block of 128 KiB of one byte takes 4 (RFC 8878 3.1.1.2)
    7: 256,  # LZ4_RAW: a length grows by 255 with each byte
}
"""Largest expansion by CompressionCodec of the IDL. BROTLI has none: a copy of 16 MiB takes a few
bits (RFC 7932 5)."""

_LEAST = 1 << 10  # bytes that any page may expand to, because the ratios apply only to long pages

MAX_EXPANDED_PAGE = 128 << 20
"""Most bytes of a page that expands by more than 1,032 times, the most that gzip can.

Writers end pages at about 1 MiB, DuckDB at 100 MB. Larger pages are read if they store enough
bytes.
"""

_BYTE_ARRAY = 6  # Type of the IDL
_DELTA_BYTE_ARRAY = 7  # Encoding of the IDL

_LEAST_STRUCT = 10
"""Smallest size of a DataPageHeader in bytes: four required fields, field header and stop."""


class Dictionary(NamedTuple):
    """A dictionary page of byte arrays: where it is, its codec, and its size when expanded."""

    start: int
    codec: int
    size: int


class Longest(NamedTuple):
    """The most bytes of a value that pages can repeat for only a few bits each time."""

    dictionary: int = 0  # size of the largest dictionary; 0 without one
    # Size of the largest DELTA_BYTE_ARRAY page, where a value can repeat the previous one; 0
    # without one.
    delta: int = 0
    dictionaries: Sequence[Dictionary] = ()  # the dictionary pages

    @classmethod
    def of_column(cls, chunks: Sequence[Longest]) -> Longest:
        """Return the maximum over the chunks of one column."""
        if all(chunk is NO_LONG_VALUES for chunk in chunks):
            return NO_LONG_VALUES
        return cls(
            max((chunk.dictionary for chunk in chunks), default=0),
            max((chunk.delta for chunk in chunks), default=0),
            [page for chunk in chunks for page in chunk.dictionaries],
        )


NO_LONG_VALUES: Final = Longest()


class PageSizes:
    """The sizes that the pages of one chunk declare, which are checked as they are added.

    Errors name the chunk by `str(where)`.
    """

    __slots__ = ("_codec", "_delta", "_dictionaries", "_has_long_values", "where")

    def __init__(self, md: ColumnMetaData, where: object) -> None:
        self._codec: i64 = md.codec
        self._has_long_values: bool = md.type == _BYTE_ARRAY
        self.where = where
        self._delta: i64 = 0  # size of the largest DELTA_BYTE_ARRAY page
        self._dictionaries: list[Dictionary] = []

    def add(self, header: PageHeader, stored: i64, start: i64) -> None:
        """Add a page of `stored` bytes in plaintext, whose header begins at `start`.

        Raise LimitError if it declares more bytes than its codec can produce, or than the limit.
        """
        size = header.uncompressed_size
        if size > _LEAST:
            _check_size(size, stored, self._codec, self.where)
        if not self._has_long_values:
            return
        if header.type == DICTIONARY_PAGE:
            self._dictionaries.append(Dictionary(start, self._codec, size))
        elif size > max(_LEAST, self._delta) and _is_delta(header):
            self._delta = size

    @property
    def longest(self) -> Longest:
        """The largest possible sizes of a byte array; zeros for values of a fixed width."""
        if not self._dictionaries and not self._delta:
            return NO_LONG_VALUES
        largest = max((page.size for page in self._dictionaries), default=0)
        return Longest(largest, self._delta, self._dictionaries)


class CountedPages(PageSizes):
    """The sizes that the pages of one chunk declare, and the sums of their sizes and values.

    `expanded` is the number of bytes when decrypted and decompressed. `values` is negative if a
    header has its fields in another order than writers have them.
    """

    def __init__(self, md: ColumnMetaData, where: object) -> None:
        super().__init__(md, where)
        self.expanded: i64 = 0
        self.values: i64 = 0

    def add(self, header: PageHeader, stored: i64, start: i64) -> None:
        """Add a page as `PageSizes.add`, and to the sums."""
        super().add(header, stored, start)
        self.expanded += header.uncompressed_size
        if header.type != DICTIONARY_PAGE and self.values >= 0:
            count = count_values(header)
            self.values = -1 if count < 0 else self.values + count


def check_pages(data: memoryview, start: int, end: int, md: ThriftStruct, where: object) -> Longest:
    """Check the pages of a chunk as `PageSizes`; return the longest byte arrays.

    `data` is a plaintext file, in which `start` and `end` bound the pages. Raise FormatError if a
    page header is damaged, or its page exceeds the chunk's end.
    """
    sizes = PageSizes(md, where)
    add_pages(sizes, data, start, end, md)
    return sizes.longest


def add_pages(sizes: PageSizes, data: memoryview, start: int, end: int, md: ThriftStruct) -> None:
    """Add the pages of a chunk to `sizes`; the other arguments and errors as `check_pages`."""
    at = start
    while at < end:
        try:
            header = scan(data, at, end)
        except FormatError:
            if _has_all_values(data, start, at, md):
                break  # PyArrow stops here; old writers leave other bytes after the last page
            raise
        sizes.add(header, header.compressed_size, at)
        at += len(header.raw) + header.compressed_size
        if at > end:
            raise FormatError(f"{sizes.where}: a page exceeds the end of its chunk")


def _check_size(size: int, stored: int, codec: int, where: object) -> None:
    ratio = _LARGEST_RATIO.get(codec)
    if ratio is not None and size > ratio * stored:
        raise LimitError(
            f"{where}: a page of {stored} bytes declares {size} bytes, more than its compression "
            "can hold"
        )
    if size > max(MAX_EXPANDED_PAGE, _LARGEST_RATIO[2] * stored):
        raise LimitError(
            f"{where}: a page of {stored} bytes declares {size} bytes; at most "
            f"{MAX_EXPANDED_PAGE} are allowed for this stored size"
        )


def _is_delta(header: PageHeader) -> bool:
    """Return whether a page is a data page in DELTA_BYTE_ARRAY."""
    rest = header.raw[header.size_end :]
    if header.size_start < _LEAST_STRUCT and b"\x0e" not in rest and b"\x8e" not in rest:
        return False  # the encoding's varint is absent; decoding would take 20 times as long
    page_header = decode("PageHeader", header.raw)[0]
    page = page_header.data_page_header or page_header.data_page_header_v2
    return page is not None and page.encoding == _DELTA_BYTE_ARRAY


def _has_all_values(data: memoryview, start: int, end: int, md: ThriftStruct) -> bool:
    """Return whether the pages in [start, end), whose headers are intact, hold all values."""
    count = 0
    while start < end:
        scanned = scan(data, start, end)
        if scanned.type in (DATA_PAGE, DATA_PAGE_V2):
            header = decode("PageHeader", scanned.raw)[0]
            page = header.data_page_header or header.data_page_header_v2
            count += 0 if page is None else page.num_values
        start += len(scanned.raw) + scanned.compressed_size
    return bool(count >= md.num_values)

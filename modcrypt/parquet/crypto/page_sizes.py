"""Check what pages declare against what their bytes can hold, before PyArrow allocates memory.

A page declares its size after decompression, and a decoder allocates that much at once. No codec
can expand a page beyond its own largest ratio. Some ratios are so large that a limit is named too.
"""

from __future__ import annotations

from typing import NamedTuple, cast

from modcrypt.errors import FormatError, LimitError
from modcrypt.parquet.format.idl import ThriftStruct, decode
from modcrypt.parquet.format.page_header import DATA_PAGE, DATA_PAGE_V2, DICTIONARY_PAGE, scan

__all__ = ["MAX_EXPANDED_PAGE", "Longest", "check_pages"]

_LARGEST_RATIO = {
    0: 1,  # UNCOMPRESSED
    1: 22,  # SNAPPY: a copy of 64 bytes takes 3
    2: 1032,  # GZIP: a match of 258 bytes takes 2 bits (RFC 1951 3.2.5)
    3: 256,  # LZO: as LZ4, a length grows by 255 with each byte
    5: 256,  # LZ4
    6: 32_768,  # ZSTD: a block of 128 KiB of one byte takes 4 (RFC 8878 3.1.1.2)
    7: 256,  # LZ4_RAW: a length grows by 255 with each byte
}
"""By CompressionCodec of the IDL; not of BROTLI: a copy of 16 MiB takes a few bits (RFC 7932 5)."""

_LEAST = 1 << 10
"""Bytes that any page may expand to: the ratios are those of long pages."""

MAX_EXPANDED_PAGE = 128 << 20
"""Most bytes of a page that expands more than gzip can, 1,032 times.

Writers end pages at about 1 MiB, DuckDB at 100 MB. Larger pages are read if they hold enough bytes.
"""

_BYTE_ARRAY = 6  # Type of the IDL
_DELTA_BYTE_ARRAY = 7  # Encoding of the IDL


class Longest(NamedTuple):
    """The most bytes of a value that pages can repeat for a few bits each time.

    Attributes:
        dictionary: Of a dictionary; 0 without one.
        delta: Of DELTA_BYTE_ARRAY, where a value can repeat the one before; 0 without.
        dictionaries: Where the dictionary pages are, each with its codec.
    """

    dictionary: int = 0
    delta: int = 0
    dictionaries: tuple[tuple[int, int], ...] = ()

    def merge(self, other: Longest) -> Longest:
        """Return the longest of two chunks of one column."""
        return Longest(
            max(self.dictionary, other.dictionary),
            max(self.delta, other.delta),
            self.dictionaries + other.dictionaries,
        )


def check_pages(data: memoryview, start: int, end: int, md: ThriftStruct, where: str) -> Longest:
    """Check what the pages of a chunk declare.

    Args:
        data: A plaintext file.
        start: Where the chunk's pages start in it.
        end: Where they end.
        md: The chunk's ColumnMetaData.
        where: Name of the chunk, for errors.

    Returns:
        What a byte array may be long. Zeros for values of a fixed width.

    Raises:
        LimitError: A page declares more bytes than its codec can make of it, or than the limit.
        FormatError: A page header is damaged, or its page passes the chunk's end.
    """
    at, longest = start, Longest()
    while at < end:
        try:
            header = scan(cast(bytes, data), at, end)
        except FormatError:
            if _has_all_values(data, start, at, md):
                break  # PyArrow reads no further; old writers leave bytes there
            raise
        size, stored = header.uncompressed_size, header.compressed_size
        if size > _LEAST:
            _check_size(size, stored, md.codec, where)
        if md.type == _BYTE_ARRAY and header.type == DICTIONARY_PAGE:
            longest = longest.merge(Longest(size, 0, ((at, md.codec),)))
        elif (
            md.type == _BYTE_ARRAY
            and size > _LEAST
            and _encoding(data, at, header.end) == _DELTA_BYTE_ARRAY
        ):
            longest = longest.merge(Longest(0, size))
        at = header.end + stored
        if at > end:
            raise FormatError(f"{where}: a page passes the end of its chunk")
    return longest


def _check_size(size: int, stored: int, codec: int, where: str) -> None:
    ratio = _LARGEST_RATIO.get(codec)
    if ratio is not None and size > ratio * stored:
        raise LimitError(
            f"{where}: a page of {stored} bytes declares {size} bytes, more than its compression "
            "can hold"
        )
    if size > max(MAX_EXPANDED_PAGE, _LARGEST_RATIO[2] * stored):
        raise LimitError(
            f"{where}: a page of {stored} bytes declares {size} bytes; at most "
            f"{MAX_EXPANDED_PAGE} are expanded from so few"
        )


def _encoding(data: memoryview, start: int, end: int) -> int | None:
    """Return the encoding of a data page's values; None for a page of another kind."""
    header = decode("PageHeader", bytes(data[start:end]))[0]
    page = header.data_page_header or header.data_page_header_v2
    return None if page is None else int(page.encoding)


def _has_all_values(data: memoryview, start: int, end: int, md: ThriftStruct) -> bool:
    """Return whether the pages in [start, end), whose headers are intact, hold all values."""
    count = 0
    while start < end:
        found = scan(cast(bytes, data), start, end)
        if found.type in (DATA_PAGE, DATA_PAGE_V2):
            header = decode("PageHeader", bytes(data[start : found.end]))[0]
            page = header.data_page_header or header.data_page_header_v2
            count += 0 if page is None else page.num_values
        start = found.end + found.compressed_size
    return bool(count >= md.num_values)

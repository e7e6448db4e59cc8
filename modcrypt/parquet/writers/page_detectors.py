"""Detectors of bugs in pages, most of them by the headers of the pages."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

from modcrypt.errors import FormatError
from modcrypt.parquet.crypto.chunk_opening import Chunk
from modcrypt.parquet.format.compact import read_int
from modcrypt.parquet.writers.plain_view import PlainView, ViewedPage
from modcrypt.parquet.writers.versions import is_older

_UNCOMPRESSED, _GZIP, _LZ4 = 0, 2, 5  # CompressionCodec of the IDL
_BIT_PACKED, _DELTA_BINARY_PACKED, _DELTA_BYTE_ARRAY = 4, 5, 7  # Encoding of the IDL
_INT32: Final = 1  # Type of the IDL

MAX_INFLATED: Final = 64 << 20
"""Largest page that is decompressed to look at it, in bytes."""


def _data_pages(view: PlainView, chunk: Chunk) -> Iterator[ViewedPage]:
    return (page for page in view.pages(chunk) if page.is_data and page.details is not None)


def rows_of_v2(view: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find data pages V2 of lists that count values as rows, beyond the rows that exist."""
    if not chunk.leaf.max_repetition:
        return
    headers = [page.header.data_page_header_v2 for page in _data_pages(view, chunk)]
    if not headers or None in headers:
        return
    rows = sum(header.num_rows for header in headers)
    if rows > chunk.rows and rows == sum(header.num_values for header in headers):
        yield f"{rows} rows instead of {chunk.rows}"


def v2_not_compressed(view: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find compressed data pages V2 that say that they are not."""
    if chunk.metadata.codec == _UNCOMPRESSED:
        return
    for page in _data_pages(view, chunk):
        v2 = page.header.data_page_header_v2
        sizes = page.header.compressed_page_size, page.header.uncompressed_page_size
        if v2 is not None and v2.is_compressed is False and sizes[0] != sizes[1]:
            yield f"page at byte {page.position}"
            return


def empty_compressed_values(view: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find compressed data pages V2 of nothing but levels: no codec has an output of 0 bytes."""
    if chunk.metadata.codec == _UNCOMPRESSED:
        return
    for page in _data_pages(view, chunk):
        v2 = page.header.data_page_header_v2
        if v2 is None or v2.is_compressed is False:
            continue
        levels = v2.definition_levels_byte_length + v2.repetition_levels_byte_length
        if levels == page.header.compressed_page_size:
            yield f"page at byte {page.position}"
            return


def single_list_rows(view: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find a page without values before the first list."""
    if not chunk.leaf.max_repetition or not chunk.metadata.num_values:
        return
    first = next(_data_pages(view, chunk), None)
    if first is not None and first.details.num_values == 0:
        yield f"page at byte {first.position}"


def bit_packed_levels(view: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find levels in the deprecated encoding, where a column has levels."""
    for page in _data_pages(view, chunk):
        if (v1 := page.header.data_page_header) is None:
            return
        levels = (
            (chunk.leaf.max_definition, v1.definition_level_encoding),
            (chunk.leaf.max_repetition, v1.repetition_level_encoding),
        )
        if any(highest and encoding == _BIT_PACKED for highest, encoding in levels):
            yield f"page at byte {page.position}"
            return


def delta_byte_arrays(view: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find byte arrays by differences in a file of parquet-mr before 1.8.0."""
    old = is_older(view.created_by, b"parquet-mr", (1, 8, 0))
    if old and _DELTA_BYTE_ARRAY in chunk.metadata.encodings:
        yield ""


def gzip_members(view: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find pages of several gzip members, of which some readers read the first."""
    if chunk.metadata.codec != _GZIP:
        return
    for page in _data_pages(view, chunk):
        inflate = zlib.decompressobj(wbits=31)
        body = view.body(page)[_count_level_bytes(page) :]
        try:
            inflate.decompress(body, MAX_INFLATED)
        except zlib.error:
            continue
        if inflate.eof and inflate.unused_data[:2] == b"\x1f\x8b":
            yield f"page at byte {page.position}"
            return


def _count_level_bytes(page: ViewedPage) -> int:
    """Return how many bytes at the beginning of a page are not compressed."""
    if (v2 := page.header.data_page_header_v2) is None:
        return 0
    return int(v2.definition_levels_byte_length + v2.repetition_levels_byte_length)


_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"


def _find_lz4(view: PlainView, chunk: Chunk) -> tuple[str, int] | None:
    """Return how the first page under the deprecated LZ4 is framed, and where it lies."""
    if chunk.metadata.codec != _LZ4:
        return None
    for page in _data_pages(view, chunk):
        body = view.body(page)[_count_level_bytes(page) :]
        inner = page.header.uncompressed_page_size - _count_level_bytes(page)
        if len(body) < 9:
            continue
        if body[:4] == _LZ4_MAGIC:
            return "frame", page.position
        unpacked, packed = (int.from_bytes(body[n : n + 4], "big") for n in (0, 4))
        is_hadoop = packed <= len(body) - 8 and unpacked <= inner
        return "Hadoop" if is_hadoop else "block", page.position
    return None


def lz4_hadoop(view: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find blocks of LZ4 behind the sizes of Hadoop."""
    if (found := _find_lz4(view, chunk)) and found[0] == "Hadoop":
        yield f"page at byte {found[1]}"


def lz4_bare(view: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find LZ4 without the sizes of Hadoop."""
    if (found := _find_lz4(view, chunk)) and found[0] != "Hadoop":
        yield f"page at byte {found[1]}: a {found[0]}"


def wide_deltas(view: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find 32-bit integers whose first value or differences take more than 32 bits."""
    if chunk.element.type != _INT32 or _DELTA_BINARY_PACKED not in chunk.metadata.encodings:
        return
    for page in _data_pages(view, chunk):
        if page.details.encoding != _DELTA_BINARY_PACKED:
            continue
        if _has_wide_deltas(_unpack(view, chunk, page)):
            yield f"page at byte {page.position}"
            return


def _unpack(view: PlainView, chunk: Chunk, page: ViewedPage) -> bytes:
    """Return the values of a page of a flat column; nothing if they cannot be decompressed."""
    from pyarrow import ArrowException, decompress

    levels, size = _count_level_bytes(page), page.header.uncompressed_page_size
    body, v2 = view.body(page), page.header.data_page_header_v2
    codec = _CODECS.get(chunk.metadata.codec)
    if v2 is not None and v2.is_compressed is False:
        codec = None
    if not levels <= size <= MAX_INFLATED or (
        chunk.metadata.codec != _UNCOMPRESSED and codec is None and v2 is None
    ):
        return b""
    if codec is not None:
        try:
            inner = decompress(body[levels:], size - levels, codec, asbytes=True)
        except (ArrowException, OSError, ValueError):
            return b""
        body = body[:levels] + inner
    return bytes(body[levels:]) if v2 is not None else _skip_levels(body, chunk)


_CODECS: Final = {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}


def _skip_levels(body: bytes, chunk: Chunk) -> bytes:
    """Return the values behind the levels of a data page V1."""
    at = 0
    for highest in (chunk.leaf.max_repetition, chunk.leaf.max_definition):
        if highest:
            at += 4 + int.from_bytes(body[at : at + 4], "little")
    return body[at:]


def _has_wide_deltas(values: bytes) -> bool:
    """Return whether a page of DELTA_BINARY_PACKED has a number that 32 bits cannot hold."""
    try:
        return _read_blocks(values)
    except (FormatError, IndexError):
        return False


def _unsigned(value: int) -> int:
    """Return the varint of which `read_int` took the sign from its lowest bit."""
    return (value << 1) ^ (value >> 63)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value, end = read_int(data, at, 64)
    return _unsigned(value), end


def _read_blocks(data: bytes) -> bool:
    block, at = _read_varint(data, 0)
    parts, at = _read_varint(data, at)
    count, at = _read_varint(data, at)
    first, at = read_int(data, at, 64)
    if not -(1 << 31) <= first < 1 << 31:
        return True
    if not 0 < parts <= 512 or block % parts or block > 1 << 20:
        return False
    left = count - 1
    while left > 0:
        least, at = read_int(data, at, 64)
        widths = data[at : at + parts]
        if not -(1 << 31) <= least < 1 << 31 or any(width > 32 for width in widths):
            return True
        at += len(widths)
        for width in widths[: -(-min(left, block) // (block // parts))]:
            at += width * (block // parts) // 8
        left -= block
    return False

"""Make Parquet files with Thrift fields that no IDL has, in every struct.

A newer writer, or an experiment with another kind of footer, may put statistics of any column
into such fields: the extension 32767 ("Binary Protocol Extensions") or an id of its own.
"""

from __future__ import annotations

from typing import Any

from modcrypt.parquet.format.idl import decode, encode, set_fields, varint

BINARY, STRUCT = 8, 12  # wire types of the compact protocol
EXTENSION, UNUSED = 32_767, 99  # field ids
DICTIONARY_PAGE = 2  # PageType of the IDL
UNIONS = {
    "LogicalType", "TimeUnit", "ColumnOrder", "BloomFilterAlgorithm", "BloomFilterHash",
    "BloomFilterCompression",
}  # fmt: skip


def marker(struct: str) -> bytes:
    """Return the content of a struct's unknown fields."""
    return f"<unknown to {struct}>".encode()


def mark(value: Any, found: set[str]) -> None:
    """Add unknown fields to a struct and all structs in it; record their names."""
    for item in set_fields(value).values():
        for part in item if isinstance(item, list) else [item]:
            if hasattr(part, "_unknown"):
                mark(part, found)
    name = type(value).__name__
    if name in UNIONS:
        return  # they have one member
    found.add(name)
    text = varint(len(marker(name))) + marker(name)
    value._unknown = [(UNUSED, STRUCT, b"\x18" + text + b"\0"), (EXTENSION, BINARY, text)]


def with_unknown_fields(plain: bytes) -> tuple[bytes, set[str]]:
    """Return a plaintext file with unknown fields everywhere, and the structs that have them."""
    found: set[str] = set()
    footer_at = len(plain) - 8 - int.from_bytes(plain[-8:-4], "little")
    metadata, _ = decode("FileMetaData", plain, footer_at)
    out = bytearray(plain[:4])
    chunks = [chunk for row_group in metadata.row_groups for chunk in row_group.columns]
    locations = [_copy_pages(plain, out, chunk.meta_data, found) for chunk in chunks]
    for chunk, places in zip(chunks, locations, strict=True):
        _copy_indexes(plain, out, chunk, places, found)
    for row_group in metadata.row_groups:
        sizes = [chunk.meta_data.total_compressed_size for chunk in row_group.columns]
        row_group.total_compressed_size = sum(sizes)
        first = row_group.columns[0].meta_data
        row_group.file_offset = first.dictionary_page_offset or first.data_page_offset
    mark(metadata, found)
    footer = encode(metadata)
    return bytes(out) + footer + len(footer).to_bytes(4, "little") + plain[-4:], found


def _copy_pages(plain: bytes, out: bytearray, md: Any, found: set[str]) -> list[tuple[int, int]]:
    """Copy a chunk's pages; return offset and size of its data pages."""
    at = md.dictionary_page_offset or md.data_page_offset
    end, start, grown = at + md.total_compressed_size, len(out), 0
    places: list[tuple[int, int]] = []
    while at < end:
        header, body = decode("PageHeader", plain, at)
        after = body + header.compressed_page_size
        mark(header, found)
        offset, spelt = len(out), encode(header)
        out += spelt + plain[body:after]
        if header.type != DICTIONARY_PAGE:
            places.append((offset, len(out) - offset))
        grown += len(spelt) - (body - at)
        at = after
    if md.dictionary_page_offset:
        md.dictionary_page_offset = start
    md.data_page_offset = places[0][0]
    md.total_compressed_size += grown
    md.total_uncompressed_size += grown
    return places


def _copy_indexes(
    plain: bytes, out: bytearray, chunk: Any, places: list[tuple[int, int]], found: set[str]
) -> None:
    if chunk.column_index_offset is not None:
        index, _ = decode("ColumnIndex", plain, chunk.column_index_offset)
        mark(index, found)
        chunk.column_index_offset, chunk.column_index_length = _append(out, encode(index))
    if chunk.offset_index_offset is not None:
        index, _ = decode("OffsetIndex", plain, chunk.offset_index_offset)
        for location, (offset, size) in zip(index.page_locations, places, strict=True):
            location.offset, location.compressed_page_size = offset, size
        mark(index, found)
        chunk.offset_index_offset, chunk.offset_index_length = _append(out, encode(index))
    md = chunk.meta_data
    if md.bloom_filter_offset is not None:
        header, bits = decode("BloomFilterHeader", plain, md.bloom_filter_offset)
        mark(header, found)
        bitset = plain[bits : bits + header.numBytes]
        md.bloom_filter_offset, md.bloom_filter_length = _append(out, encode(header) + bitset)


def _append(out: bytearray, data: bytes) -> tuple[int, int]:
    out += data
    return len(out) - len(data), len(data)

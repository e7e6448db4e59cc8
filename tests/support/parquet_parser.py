"""A look into plaintext Parquet files, by the format's field ids alone.

It needs neither `modcrypt` nor its IDL, so that it can judge both.
"""

from __future__ import annotations

from typing import Any


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        number |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return number, at


def _value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind in (1, 2):  # booleans are in the field's type
        return kind == 1, at
    if kind in (4, 5, 6):  # i16, i32, i64
        number, at = _varint(data, at)
        return (number >> 1) ^ -(number & 1), at
    if kind == 8:  # binary
        size, at = _varint(data, at)
        return data[at : at + size], at + size
    if kind == 9:
        return _list(data, at)
    if kind == 12:
        return thrift_struct(data, at)
    size = {3: 1, 7: 8}[kind]  # byte, double
    return data[at : at + size], at + size


def _list(data: bytes, at: int) -> tuple[list[Any], int]:
    size, kind = data[at] >> 4, data[at] & 15
    at += 1
    if size == 15:
        size, at = _varint(data, at)
    values = []
    for _ in range(size):
        value, at = (data[at] == 1, at + 1) if kind in (1, 2) else _value(data, at, kind)
        values.append(value)
    return values, at


def thrift_struct(data: bytes, at: int = 0) -> tuple[dict[int, Any], int]:
    """Decode a struct of the compact protocol: field id to value, and where it ends."""
    fields: dict[int, Any] = {}
    number = 0
    while data[at]:
        delta, kind = data[at] >> 4, data[at] & 15
        at += 1
        if delta:
            number += delta
        else:
            number, at = _value(data, at, 4)
        fields[number], at = _value(data, at, kind)
    return fields, at + 1


def footer_of(plain: bytes) -> dict[int, Any]:
    """Decode the footer of a plaintext file."""
    assert plain[:4] == plain[-4:] == b"PAR1"
    size = int.from_bytes(plain[-8:-4], "little")
    return thrift_struct(plain, len(plain) - 8 - size)[0]


def modules_of(plain: bytes) -> dict[str, Any]:
    """Everything a plaintext file contains, without positions.

    The footer loses its offsets; every page, index and Bloom filter is there with its bytes,
    found through the offsets. So two files are module-identical exactly when these are equal.
    """
    footer = footer_of(plain)
    parts = {}
    for r, row_group in enumerate(footer[4]):
        row_group.pop(5, None)  # file_offset
        for c, chunk in enumerate(row_group[1]):
            parts[r, c] = _parts(plain, chunk)
    return {"footer": footer, "parts": parts}


def _parts(plain: bytes, chunk: dict[int, Any]) -> dict[str, Any]:
    """Take the parts of one chunk out of a file, and their offsets out of its metadata."""
    md = chunk[3]
    chunk.pop(2, None)  # file_offset, which no reader relies on
    data_offset, dictionary_offset = md.pop(9), md.pop(11, None)
    start = dictionary_offset or data_offset
    pages, offsets = _pages(plain, start, start + md[7])
    parts: dict[str, Any] = {"pages": pages, "dictionary": bool(dictionary_offset)}
    data_pages = [o for o, (header, _) in zip(offsets, pages, strict=True) if header[1] != 2]
    assert data_offset in data_pages[:1] or not data_pages
    if 4 in chunk:
        at = chunk.pop(4)
        index, end = thrift_struct(plain, at)
        assert end - at == chunk.pop(5)  # its length depends on the offsets in it
        assert [location.pop(1) for location in index[1]] == data_pages
        parts["offset index"] = index
    if 6 in chunk:
        at = chunk.pop(6)
        parts["column index"] = plain[at : at + chunk[7]]
    if 14 in md:
        at = md.pop(14)
        header, end = thrift_struct(plain, at)
        parts["bloom filter"] = plain[at : end + header[1]]
    return parts


def _pages(plain: bytes, at: int, end: int) -> tuple[list[tuple[dict[int, Any], bytes]], list[int]]:
    pages, offsets = [], []
    while at < end:
        offsets.append(at)
        header, body = thrift_struct(plain, at)
        at = body + header[3]
        pages.append((header, plain[body:at]))
    assert at == end
    return pages, offsets

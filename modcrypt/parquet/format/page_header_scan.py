"""Scanning of page headers for their end, size and CRC.

This hot path runs once per page, next to about a microsecond of AES. Compiled, it parses headers
field by field; in the interpreter, a regular expression matches the usual header in one call into
C, and only others (long statistics, deep nesting, unusual field order) are parsed, with the same
result.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from modcrypt.errors import FormatError
from modcrypt.parquet.format.compact import (
    BINARY,
    FALSE,
    I32,
    I64,
    INTERPRETED,
    STRUCT,
    TRUE,
    read_int,
    skip_field,
)
from modcrypt.parquet.format.idl import decode
from modcrypt.parquet.format.page_header import PageHeader
from modcrypt.parquet.format.patterns import usual_page_header

if TYPE_CHECKING:
    from mypy_extensions import i64

_SHORT_HEADER: Final = 1 << 8

_usual: Final = usual_page_header().match if INTERPRETED else None


def scan(buffer: bytes | bytearray | memoryview, start: i64, stop: i64) -> PageHeader:
    """Scan the page header that starts at `buffer[start]`, in a buffer that is filled up to `stop`.

    Raise FormatError if the bytes are not a page header, or end inside it.
    """
    match = None if _usual is None else _usual(buffer, start, stop)
    header = None if match is None else _read_match(match, buffer, start)
    return _scan_unusual(buffer, start, stop) if header is None else header


def _read_match(
    match: re.Match[bytes], buffer: bytes | bytearray | memoryview, start: int
) -> PageHeader | None:
    """Return the header that the pattern matched; None if a number is negative or too long."""
    kind, plain, stored, crc = match.groups()
    if len(plain) > 4 or len(stored) > 4 or kind[0] & 1:
        return None
    (_, end), _, _, (size_start, size_end), (crc_start, crc_end) = match.regs
    if crc is None:
        crc_start = crc_end = start - 1
    else:
        crc = read_int(bytes(crc), 0, 32)[0] & 0xFFFFFFFF
    # Each byte holds seven bits below a flag; the lowest bit of the number is zigzag's sign.
    size = int.from_bytes(plain, "little")
    plain_size = size & 127 | size >> 1 & 16256 | size >> 2 & 2080768 | size >> 3 & 266338304
    size = int.from_bytes(stored, "little")
    size = size & 127 | size >> 1 & 16256 | size >> 2 & 2080768 | size >> 3 & 266338304
    if (plain_size | size) & 1:  # negative
        return None
    return PageHeader(
        bytes(buffer[start:end]), kind[0] >> 1, plain_size >> 1, size >> 1,
        size_start - start, size_end - start, crc, crc_start - start, crc_end - start,
    )  # fmt: skip


def _scan_unusual(buffer: bytes | bytearray | memoryview, start: i64, stop: i64) -> PageHeader:
    """Scan any legal header; of other buffers than bytes, in copies of more and more bytes."""
    if isinstance(buffer, bytes):
        return _scan_fields(buffer, start, stop)
    size: i64 = _SHORT_HEADER  # few headers are long
    while size < stop - start:
        try:
            return _scan_fields(bytes(buffer[start : start + size]), 0, size)
        except FormatError:
            size *= 16
    return _scan_fields(bytes(buffer[start:stop]), 0, stop - start)


def _scan_fields(data: bytes, start: i64, stop: i64) -> PageHeader:
    kind: i64 = -1
    plain_size: i64 = -1
    size: i64 = -1
    size_start: i64 = -1
    size_end: i64 = -1
    crc: int | None = None
    crc_start: i64 = -1
    crc_end: i64 = -1
    at: i64 = start
    field_id: i64 = 0
    found: i64 = 0  # a bit for each of the first fields
    decodes = True
    has_long_ids = False
    try:
        head: i64 = data[at]
        while head != 0:
            at += 1
            if head > 15:
                field_id += head >> 4
            else:
                field_id, at = read_int(data, at, 16)
                decodes, has_long_ids = False, True
            if not 1 <= field_id <= 4:
                end = _skip_usual(field_id, head & 15, data, at)
                decodes = decodes and end > 0
                at = end if end > 0 else skip_field(head & 15, data, at, 1)
                head = data[at]
                continue
            if head & 15 != I32 or found >> field_id & 1:
                raise FormatError(f"page header: field {field_id} is not a single i32")
            found |= 1 << field_id
            begin = at
            value, at = read_int(data, at, 32)
            if field_id == 1:
                kind = value
            elif field_id == 2:
                plain_size = value
            elif field_id == 3:
                size, size_start, size_end = value, begin - start, at - start
            else:
                crc, crc_start, crc_end = value & 0xFFFFFFFF, begin - start, at - start
            head = data[at]
    except IndexError:
        at = stop
    if at >= stop:
        raise FormatError("page header: the bytes end inside it")
    if kind < 0 or plain_size < 0 or size < 0:
        raise FormatError("page header: type or a size is missing or negative")
    if not decodes:
        # Copies without unknown fields decode the header too, so it must be valid here already.
        decode("PageHeader", data, start)
    return PageHeader(
        data[start : at + 1], kind, plain_size, size, size_start, size_end, crc, crc_start, crc_end,
        has_long_ids,
    )  # fmt: skip


def _skip_usual(field_id: i64, wire: i64, data: bytes, at: i64) -> i64:
    """Return the position after the struct of a page's kind at `at`; -1 if it may not decode."""
    # Such structs begin with their required numbers: 4 for data pages (id 5), 2 for dictionary
    # pages (7), 6 for data pages V2 (8).
    numbers: i64 = 4 if field_id == 5 else 2 if field_id == 7 else 6
    if wire != STRUCT or not (5 <= field_id <= 8 and field_id != 6):
        return -1
    for _ in range(numbers):
        head: i64 = data[at]
        size: i64 = _varint_size(data, at + 1, 4)
        if head != 0x15 or size < 0:
            return -1
        at += 1 + size
    return _skip_flat(data, at, True)


def _skip_flat(data: bytes, at: i64, nested: bool) -> i64:
    """Return the position after a struct whose fields have ascending ids and decode as any type.

    That is so for booleans, numbers of at most 9 bytes, and binaries; with `nested`, also for
    structs of these. Return -1 for others, and for more than 64 fields.
    """
    for _ in range(64):
        head: i64 = data[at]
        wire = head & 15
        at += 1
        if head == 0:
            return at
        if head < 16:
            return -1
        if wire == BINARY:
            length: i64 = data[at]
            if length > 127:
                return -1
            at += 1 + length
        elif wire in (I32, I64):
            size: i64 = _varint_size(data, at, 5 if wire == I32 else 9)
            if size < 0:
                return -1
            at += size
        elif wire == STRUCT and nested:
            at = _skip_flat(data, at, False)
            if at < 0:
                return -1
        elif wire not in (TRUE, FALSE):
            return -1
    return -1


def _varint_size(data: bytes, at: i64, most: i64) -> i64:
    """Return the size of the varint at `at` in bytes; -1 if it exceeds `most`."""
    size: i64 = 1
    while data[at] > 127:
        if size == most:
            return -1
        size += 1
        at += 1
    return size

"""Scanning of page headers for their end, size and CRC, and replacing size and CRC in place.

    PageHeader   1 type (i32) | 2 uncompressed_page_size (i32) | 3 compressed_page_size (i32)
                 | 4 crc (i32, optional) | 5..8 one struct for the page's kind | ...

Encrypting a page changes only fields 3 and 4, so the rest of the header is copied unchanged, with
the writer's own fields and statistics. This hot path runs once per page, next to about a
microsecond of AES, so a regular expression matches the usual header in one call into C. Headers
that it does not match (long statistics, deep nesting, unusual field order) are parsed in Python,
with the same result.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from modcrypt.errors import FormatError, LimitError
from modcrypt.parquet.format.compact import I32, read_int, skip_field
from modcrypt.parquet.format.idl import decode, varint, zigzag

DATA_PAGE, INDEX_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = range(4)
"""PageType values of the IDL."""


UNCOMPRESSED = 0
"""CompressionCodec of the IDL."""


_SHORT_HEADER = 1 << 10


class PageHeader(NamedTuple):
    """The fields that a scan finds; positions refer to the scanned buffer."""

    end: int
    type: int
    uncompressed_size: int
    compressed_size: int
    size_start: int  # span of compressed_page_size's varint
    size_end: int
    crc: int | None  # as an unsigned 32-bit number
    crc_start: int  # span of crc's varint; -1 and -1 if there is no CRC
    crc_end: int


class V2Layout(NamedTuple):
    """The fields of data_page_header_v2 that determine which bytes of the body are levels."""

    levels_size: int
    is_compressed: bool


def _usual_header() -> re.Pattern[bytes]:
    """Compile a pattern for headers with ordered fields, two struct levels, binaries up to 64."""

    def heads(wire: int, first: int = 1) -> bytes:
        return b"[" + b"".join(b"\\x%x%x" % (delta, wire) for delta in range(first, 16)) + b"]"

    i32 = rb"[\x80-\xff]{0,4}+[\x00-\x7f]"
    i64 = rb"[\x80-\xff]{0,8}+[\x00-\x7f]"
    binary = b"|".join(b"\\x%02x.{%d}" % (n, n) for n in range(65))
    flat = b"(?:%s%s|%s%s|%s(?:%s)|%s|%s)" % (
        heads(6), i64, heads(5), i32, heads(8), binary, heads(1), heads(2),
    )  # fmt: skip
    inner = b"%s%s*+\\x00" % (heads(12), flat)
    sizes = rb"\x15([\x00-\x7f])\x15(%s)\x15(%s)" % (i32, i32)
    # The struct of the page's kind: data page (id 5), dictionary page (7) or data page V2 (8),
    # each with its required numbers, so that every header that matches here also decodes.
    number = rb"\x15[\x80-\xff]{0,3}+[\x00-\x7f]"
    v1, dictionary, v2 = (b"(?:%s){%d}+" % (number, count) for count in (4, 2, 6))
    with_crc = rb"\x15(%s)(?:\x1c%s|\x3c%s|\x4c%s)" % (i32, v1, dictionary, v2)
    without = rb"(?:\x2c%s|\x4c%s|\x5c%s)" % (v1, dictionary, v2)
    body = b"(?:%s|%s)*+\\x00" % (flat, inner)
    filling = rb"(?:\xf8(?:%s))?+" % binary  # written by views, fifteen ids after the struct
    return re.compile(
        sizes + rb"(?:%s|%s)" % (with_crc, without) + body + filling + rb"\x00", re.DOTALL
    )


_usual = _usual_header().match


def scan(buffer: bytes | bytearray | memoryview, start: int, stop: int) -> PageHeader:
    """Scan the page header that starts at `buffer[start]`, in a buffer that is filled up to `stop`.

    Raises:
        FormatError: The bytes are not a page header, or end inside it.
    """
    match = _usual(buffer, start, stop)
    if match is None:
        return _scan_unusual(buffer, start, stop)
    kind, plain, stored, crc = match.groups()
    if len(plain) > 4 or len(stored) > 4 or kind[0] & 1:
        return _scan_unusual(buffer, start, stop)
    (_, end), _, _, (size_start, size_end), (crc_start, crc_end) = match.regs
    if crc is not None:
        crc = read_int(bytes(crc), 0, 32)[0] & 0xFFFFFFFF
    # Each byte holds seven bits below a flag; the lowest bit of the number is zigzag's sign.
    size = int.from_bytes(plain, "little")
    plain_size = size & 127 | size >> 1 & 16256 | size >> 2 & 2080768 | size >> 3 & 266338304
    size = int.from_bytes(stored, "little")
    size = size & 127 | size >> 1 & 16256 | size >> 2 & 2080768 | size >> 3 & 266338304
    if (plain_size | size) & 1:
        raise FormatError("page header: a negative size")
    return _new_tuple(
        PageHeader,
        (
            end,
            kind[0] >> 1,
            plain_size >> 1,
            size >> 1,
            size_start,
            size_end,
            crc,
            crc_start,
            crc_end,
        ),
    )


_new_tuple = tuple.__new__  # takes half the time of PageHeader(...)


def _scan_unusual(buffer: bytes | bytearray | memoryview, start: int, stop: int) -> PageHeader:
    """Scan any legal header, in copies of more and more bytes: few headers are long."""
    size = _SHORT_HEADER
    while size < stop - start:
        try:
            return _scan_any(bytes(buffer[start : start + size]), start)
        except FormatError:
            size *= 16
    return _scan_any(bytes(buffer[start:stop]), start)


def _scan_any(data: bytes, start: int) -> PageHeader:
    """Scan any legal header, field by field; `start` is the position of `data` in the buffer."""
    numbers: dict[int, tuple[int, int, int]] = {}  # field id: value, start and end of its varint
    at, field_id = 0, 0
    try:
        while (head := data[at]) != 0:
            at += 1
            wire = head & 15
            if head > 15:
                field_id += head >> 4
            else:
                field_id, at = read_int(data, at, 16)
            if not 1 <= field_id <= 4:
                at = skip_field(wire, data, at, 1)
                continue
            if wire != I32 or field_id in numbers:
                raise FormatError(f"page header: field {field_id} is not a single i32")
            value, end = read_int(data, at, 32)
            numbers[field_id] = value, start + at, start + end
            at = end
    except IndexError:
        at = len(data)
    if at >= len(data):
        raise FormatError("page header: the bytes end inside it")
    if not numbers.keys() >= {1, 2, 3} or min(numbers[i][0] for i in (1, 2, 3)) < 0:
        raise FormatError("page header: type or a size is missing or negative")
    crc, crc_start, crc_end = numbers.get(4, (None, -1, -1))
    # Copies without unknown fields decode the header too, so it must be valid here already.
    decode("PageHeader", data)
    return PageHeader(
        start + at + 1, numbers[1][0], numbers[2][0], *numbers[3],
        None if crc is None else crc & 0xFFFFFFFF, crc_start, crc_end,
    )  # fmt: skip


def splice(
    buffer: bytes | bytearray, start: int, header: PageHeader, size: int, crc: int | None = None
) -> bytes | bytearray:
    """Return the header's bytes with a new compressed_page_size and, if it has one, a new crc.

    The header starts at `start` in the buffer that was scanned. `size` is not negative; `crc` is an
    unsigned 32-bit number, ignored if the header has none.

    Raises:
        LimitError: The new size does not fit the format.
    """
    raw = size << 1
    if 16383 < raw < 2097152:
        new_size = bytes((raw & 127 | 128, raw >> 7 & 127 | 128, raw >> 14))
    else:
        check_size(size)
        new_size = varint(raw)
    if header[6] is None or crc is None:
        return buffer[start : header[4]] + new_size + buffer[header[5] : header[0]]
    signed = crc - (1 << 32) if crc >> 31 else crc
    changes = [(*header[4:6], new_size), (*header[7:9], varint(zigzag(signed)))]
    out, at = bytearray(), start
    for begin, end, new in sorted(changes):
        out += buffer[at:begin] + new
        at = end
    return out + buffer[at : header.end]


def check_size(size: int) -> None:
    """Raise LimitError if a page of `size` bytes does not fit compressed_page_size, an i32."""
    if size >> 31:
        raise LimitError(
            f"a page of {size} bytes with its overhead exceeds the format's limit of 2 GiB"
        )


def contradicts(
    header: PageHeader, raw: bytes | bytearray | memoryview, size: int, uncompressed: bool
) -> bool:
    """Return whether an uncompressed page has a different size than its header declares.

    `size` is that of the plaintext page as it is stored, in bytes. `raw`, the bytes of the header,
    is read only for the flag of data pages V2.
    """
    if size == header[2]:
        return False
    return uncompressed or (header[1] == DATA_PAGE_V2 and not v2_layout(raw).is_compressed)


def v2_layout(header: bytes | bytearray | memoryview) -> V2Layout:
    """Read level lengths and is_compressed from the whole header of a data page V2.

    Raises:
        FormatError: They are missing or negative.
    """
    v2 = decode("PageHeader", bytes(header))[0].data_page_header_v2
    if v2 is None:
        raise FormatError("page header: a data page V2 without data_page_header_v2")
    definition, repetition = v2.definition_levels_byte_length, v2.repetition_levels_byte_length
    if definition < 0 or repetition < 0:
        raise FormatError("page header: a negative level length")
    return V2Layout(definition + repetition, v2.is_compressed is not False)

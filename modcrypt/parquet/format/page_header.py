"""Scanning of page headers for their end, size and CRC, and replacing size and CRC in place.

    PageHeader   1 type (i32) | 2 uncompressed_page_size (i32) | 3 compressed_page_size (i32)
                 | 4 crc (i32, optional) | 5..8 one struct for the page's kind | ...

Encrypting a page changes only fields 3 and 4, so the rest of the header is copied unchanged, with
the writer's own fields and statistics. This hot path runs once per page, next to about a
microsecond of AES. Compiled, it parses headers field by field; in the interpreter, a regular
expression matches the usual header in one call into C, and only others (long statistics, deep
nesting, unusual field order) are parsed, with the same result.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from modcrypt.errors import FormatError, LimitError
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
from modcrypt.parquet.format.idl import decode, varint, zigzag
from modcrypt.parquet.format.patterns import usual_page_header

if TYPE_CHECKING:
    from mypy_extensions import i64

DATA_PAGE: Final = 0
INDEX_PAGE: Final = 1
DICTIONARY_PAGE: Final = 2
DATA_PAGE_V2: Final = 3
"""PageType values of the IDL."""


UNCOMPRESSED: Final = 0
"""CompressionCodec of the IDL."""


_SHORT_HEADER: Final = 1 << 10


class PageHeader:
    """The fields that a scan finds; positions are those in `raw`.

    Attributes:
        raw: The header's bytes, up to its STOP.
        type: Type of the page.
        uncompressed_size: Size of the page in bytes, decrypted and decompressed.
        compressed_size: Size of the page in bytes as stored.
        size_start, size_end: Span of compressed_page_size's varint.
        crc: CRC as an unsigned 32-bit number; None if there is none.
        crc_start, crc_end: Span of crc's varint; -1 and -1 if there is no CRC.
    """

    __slots__ = (
        "compressed_size", "crc", "crc_end", "crc_start", "raw", "size_end", "size_start", "type",
        "uncompressed_size",
    )  # fmt: skip

    def __init__(
        self, raw: bytes, kind: i64, uncompressed_size: i64, compressed_size: i64,
        size_start: i64, size_end: i64, crc: int | None, crc_start: i64, crc_end: i64,
    ) -> None:  # fmt: skip
        self.raw: bytes = raw
        self.type: i64 = kind
        self.uncompressed_size: i64 = uncompressed_size
        self.compressed_size: i64 = compressed_size
        self.size_start: i64 = size_start
        self.size_end: i64 = size_end
        self.crc: int | None = crc
        self.crc_start: i64 = crc_start
        self.crc_end: i64 = crc_end

    def __repr__(self) -> str:
        return f"PageHeader(type={self.type}, {len(self.raw)} bytes)"


class V2Layout(NamedTuple):
    """The fields of data_page_header_v2 that determine which bytes of the body are levels."""

    levels_size: int
    is_compressed: bool


_usual: Final = usual_page_header().match if INTERPRETED else None


def scan(buffer: bytes | bytearray | memoryview, start: i64, stop: i64) -> PageHeader:
    """Scan the page header that starts at `buffer[start]`, in a buffer that is filled up to `stop`.

    Raises:
        FormatError: The bytes are not a page header, or end inside it.
    """
    match = None if _usual is None else _usual(buffer, start, stop)
    header = None if match is None else _read_match(match, buffer, start)
    return _scan_unusual(buffer, start, stop) if header is None else header


def _read_match(
    match: re.Match[bytes], buffer: bytes | bytearray | memoryview, start: int
) -> PageHeader | None:
    """Return the header that the pattern matched; None if a number is of unusual length."""
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
    if (plain_size | size) & 1:
        raise FormatError("page header: a negative size")
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
    """Scan any legal header, field by field."""
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
    try:
        head: i64 = data[at]
        while head != 0:
            at += 1
            if head > 15:
                field_id += head >> 4
            else:
                field_id, at = read_int(data, at, 16)
                decodes = False
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
        data[start : at + 1], kind, plain_size, size, size_start, size_end, crc, crc_start, crc_end
    )


def _skip_usual(field_id: i64, wire: i64, data: bytes, at: i64) -> i64:
    """Return the position after the struct of a page's kind at `at`; -1 if it may not decode.

    Such structs begin with their required numbers: 4 for data pages (id 5), 2 for dictionary pages
    (7), 6 for data pages V2 (8).
    """
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


def splice(header: PageHeader, size: i64, crc: int | None = None) -> bytes:
    """Return the header's bytes with a new compressed_page_size and, if it has one, a new crc.

    `size` is not negative; `crc` is an unsigned 32-bit number, ignored if the header has none.

    Raises:
        LimitError: The new size does not fit the format.
    """
    raw, coded = header.raw, size << 1
    if 16383 < coded < 2097152:
        low, middle, high = coded & 127 | 128, coded >> 7 & 127 | 128, coded >> 14
        new_size = _BYTES[low] + _BYTES[middle] + _BYTES[high]
    else:
        check_size(size)
        new_size = varint(coded)
    if header.crc is None or crc is None:
        return raw[: header.size_start] + new_size + raw[header.size_end :]
    signed = crc - (1 << 32) if crc >> 31 else crc
    changes = [
        (header.size_start, header.size_end, new_size),
        (header.crc_start, header.crc_end, varint(zigzag(signed))),
    ]
    out, at = b"", 0
    for begin, end, new in sorted(changes):
        out += raw[at:begin] + new
        at = end
    return out + raw[at:]


_BYTES: Final = [bytes((byte,)) for byte in range(256)]


def check_size(size: i64) -> None:
    """Raise LimitError if a page of `size` bytes does not fit compressed_page_size, an i32."""
    if size >> 31:
        raise LimitError(
            f"a page of {size} bytes with its overhead exceeds the format's limit of 2 GiB"
        )


def contradicts(header: PageHeader, size: i64, uncompressed: bool) -> bool:
    """Return whether an uncompressed page has a different size than its header declares.

    `size` is that of the plaintext page as it is stored, in bytes.
    """
    if size == header.uncompressed_size:
        return False
    if uncompressed:
        return True
    return header.type == DATA_PAGE_V2 and not v2_layout(header.raw).is_compressed


def v2_layout(header: bytes) -> V2Layout:
    """Read level lengths and is_compressed from the whole header of a data page V2.

    Raises:
        FormatError: They are missing or negative.
    """
    v2 = decode("PageHeader", header)[0].data_page_header_v2
    if v2 is None:
        raise FormatError("page header: a data page V2 without data_page_header_v2")
    definition, repetition = v2.definition_levels_byte_length, v2.repetition_levels_byte_length
    if definition < 0 or repetition < 0:
        raise FormatError("page header: a negative level length")
    return V2Layout(definition + repetition, v2.is_compressed is not False)

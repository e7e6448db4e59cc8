"""Page headers: what a scan finds in them, and replacing size and CRC in place.

    PageHeader   1 type (i32) | 2 uncompressed_page_size (i32) | 3 compressed_page_size (i32)
                 | 4 crc (i32, optional) | 5..8 one struct for the page's kind | ...

Encrypting a page changes only fields 3 and 4, so the rest of the header is copied unchanged, with
the writer's own fields and statistics.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from modcrypt.errors import FormatError, LimitError
from modcrypt.parquet.format.compact import STRUCT, read_int
from modcrypt.parquet.format.idl import decode, varint, zigzag

if TYPE_CHECKING:
    from mypy_extensions import i64

DATA_PAGE: Final = 0
DICTIONARY_PAGE: Final = 2
DATA_PAGE_V2: Final = 3  # pageType values of the IDL


UNCOMPRESSED: Final = 0  # compressionCodec of the IDL
BY_HEADER: Final = 0
NEVER: Final = 1
ALWAYS: Final = 2
"""When pages of a chunk are compressed: unless the header of a data page V2 denies it, or not, or
even then."""

_OLD_ARROW: Final = rb"(?s:parquet-cpp(?: version [01](?:[^0-9].*)?)?)"


def page_compression(codec: int, created_by: bytes | None) -> int:
    """Return when pages are compressed, given the chunk's codec and the name of the file's writer.

    Arrow C++ before 3.0, which called itself parquet-cpp 1.x, compressed data pages V2 and wrote
    into their headers that it did not (ARROW-10353). Arrow C++ recognises such files by that name.
    """
    if codec == UNCOMPRESSED:
        return NEVER
    if created_by is None or created_by[:12] not in (b"parquet-cpp", b"parquet-cpp "):
        return BY_HEADER
    return ALWAYS if re.fullmatch(_OLD_ARROW, created_by) else BY_HEADER


class PageHeader:
    """The fields that a scan finds; positions are those in `raw`."""

    __slots__ = (
        "compressed_size", "crc", "crc_end", "crc_start", "has_long_ids", "raw", "size_end",
        "size_start", "type", "uncompressed_size",
    )  # fmt: skip

    def __init__(
        self, raw: bytes, kind: i64, uncompressed_size: i64, compressed_size: i64,
        size_start: i64, size_end: i64, crc: int | None, crc_start: i64, crc_end: i64,
        has_long_ids: bool = False,
    ) -> None:  # fmt: skip
        self.raw: bytes = raw  # the header's bytes, up to its STOP
        self.type: i64 = kind  # type of the page
        # Size of the page in bytes, decrypted and decompressed.
        self.uncompressed_size: i64 = uncompressed_size
        self.compressed_size: i64 = compressed_size  # size of the page in bytes as stored
        # Span of compressed_page_size's varint.
        self.size_start: i64 = size_start
        self.size_end: i64 = size_end
        self.crc: int | None = crc  # CRC as an unsigned 32-bit number; None if there is none
        # Span of crc's varint; -1 and -1 if there is no CRC.
        self.crc_start: i64 = crc_start
        self.crc_end: i64 = crc_end
        # Whether a field has its id in the long form, as negative and high ones have.
        self.has_long_ids: bool = has_long_ids

    def __repr__(self) -> str:
        return f"PageHeader(type={self.type}, {len(self.raw)} bytes)"


class V2Layout(NamedTuple):
    """The fields of data_page_header_v2 that determine which bytes of the body are levels."""

    levels_size: int
    is_compressed: bool


def splice(header: PageHeader, size: i64, crc: int | None = None) -> bytes:
    """Return the header's bytes with a new compressed_page_size and, if it has one, a new crc.

    `size` is not negative; `crc` is an unsigned 32-bit number, ignored if the header has none.
    Raise LimitError if the new size does not fit the format.
    """
    raw, coded = header.raw, size << 1
    if coded < 128:
        new_size = _BYTES[coded]
    elif coded < 16384:
        new_size = _BYTES[coded & 127 | 128] + _BYTES[coded >> 7]
    elif coded < 2097152:
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


def is_empty(header: PageHeader) -> bool:
    """Return whether a header is that of a data page without values, in the usual field order.

    The struct of the page's kind follows size and CRC, and begins with num_values.
    """
    at: i64 = 1 + (header.size_end if header.crc is None else header.crc_end)
    return header.raw[at : at + 2] == _NO_VALUES and header.type != DICTIONARY_PAGE


_NO_VALUES: Final = b"\x15\x00"  # field 1, an i32 that is zero


_OF_DATA: Final = (DATA_PAGE, DATA_PAGE_V2)


def count_values(header: PageHeader) -> i64:
    """Return num_values of a data page whose fields are in the usual order; -1 for other pages."""
    has_crc = header.crc is not None
    at: i64 = header.crc_end if has_crc else header.size_end
    head: i64 = (4 if header.type == DATA_PAGE_V2 else 1) + (0 if has_crc else 1)  # from id 3 or 4
    if header.has_long_ids or header.type not in _OF_DATA:
        return -1
    if header.raw[at : at + 2] != _BYTES[head << 4 | STRUCT] + b"\x15":  # field 1, an i32
        return -1
    value, _ = read_int(header.raw, at + 2, 32)
    return value if value >= 0 else -1


def check_size(size: i64) -> None:
    """Raise LimitError if a page of `size` bytes does not fit compressed_page_size, an i32."""
    if size >> 31:
        raise LimitError(
            f"a page of {size} bytes with its overhead exceeds the format's limit of 2 GiB"
        )


def contradicts(header: PageHeader, size: i64, compression: i64) -> bool:
    """Return whether an uncompressed page has a different size than its header declares.

    `size` is that of the plaintext page as it is stored, in bytes, and `compression` what
    `page_compression` returns.
    """
    if size == header.uncompressed_size or compression == ALWAYS:
        return False
    if compression == NEVER:
        return True
    return header.type == DATA_PAGE_V2 and not v2_layout(header.raw).is_compressed


def v2_layout(header: bytes) -> V2Layout:
    """Read level lengths and is_compressed from the whole header of a data page V2.

    Raise FormatError if they are missing or negative.
    """
    v2 = decode("PageHeader", header)[0].data_page_header_v2
    if v2 is None:
        raise FormatError("page header: a data page V2 without data_page_header_v2")
    definition, repetition = v2.definition_levels_byte_length, v2.repetition_levels_byte_length
    if definition < 0 or repetition < 0:
        raise FormatError("page header: a negative level length")
    return V2Layout(definition + repetition, v2.is_compressed is not False)

"""Decrypt pages to plaintext bytes of the same size and position.

The plaintext of a page is shorter than its PME modules (separately encrypted parts of the file) by
their nonces, tags and lengths. So its Thrift header is lengthened by the same amount, with a field
that readers skip.

    encrypted   [header module      ][body module            ]
    plaintext   [header | filling   ][ body                  ]     the same bytes from start to end

A data page without values becomes filling too, because PyArrow takes it for the end of its chunk.
Indexes then do not list it.

    empty page and next one   [header ][body][header ][body                 ]
    plaintext                 [header | filling      ][body                 ]
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

from modcrypt.errors import FormatError
from modcrypt.io.buffers import Window
from modcrypt.parquet.arrow.page_sizes import PageSizes
from modcrypt.parquet.crypto.encrypted_pages import (
    EncryptedPage,
    Page,
    drop_unknown_header_fields,
    open_and_check_crc,
    open_body,
    walk_pages,
)
from modcrypt.parquet.format.idl import decode, encode, known_bytes
from modcrypt.parquet.format.page_header import is_empty, splice

if TYPE_CHECKING:
    from mypy_extensions import i64

# The head of a binary field whose id is fifteen above the struct's last one: 20 to 23 in a page
# header. The format reserves id 32767 for fields that readers skip, but that needs the long form
# of the head, and fastparquet reads only the short one.
_FILLING: Final = b"\xf8"

# Fillings and STOPs of 2 to 129 bytes, by size: nearly all pages of a file need the same one.
_SHORT_FILLINGS: Final = [
    b"", b"", *[_FILLING + bytes((size,)) + bytes(size) + b"\0" for size in range(128)]
]  # fmt: skip


def open_chunk(
    window: Window, start: i64, end: i64, first: Page, compression: i64, out: memoryview, at: i64,
    sizes: PageSizes,
) -> None:  # fmt: skip
    """Decrypt the pages of a whole chunk, at [start, end) of its file, into `out` from `at` on.

    `first` is the address of the first page. Raise ModcryptError as `walk_pages` and `open_body`,
    and as `sizes`, which gets all pages.
    """
    offset = start - at
    empty: i64 = -1  # start of the empty pages before a page
    for page in walk_pages(window, start, end, first, compression=compression):
        header, body = write_page(page, offset, out)
        sizes.add(page.header, page.position + page.total - body, page.position - offset)
        if is_empty(page.header):
            empty = page.position if empty < 0 else empty
        elif empty >= 0:
            overlay(out, offset, empty, lengthen_header(header, body - empty))
            empty = -1


def write_page(page: EncryptedPage, offset: i64, out: memoryview) -> tuple[bytes, i64]:
    """Decrypt a page into `out`, which begins at `offset` and may lack parts of the page.

    Return its plaintext header, and where its body starts.
    """
    if page.header.has_long_ids:
        drop_unknown_header_fields(page)
    cipher, header, start = page.page.cipher.page, page.header, page.position
    size = len(page.body) - cipher.overhead
    body = start + page.total - size
    crc: int | None = None
    if header.crc is not None:
        opened = open_and_check_crc(page)
        crc = zlib.crc32(opened)
        overlay(out, offset, body, opened)
    elif offset <= body and body + size <= offset + len(out) and not cipher.slack:
        open_body(page, out[body - offset : body - offset + size])  # without a copy
    else:
        opened = memoryview(bytearray(size + cipher.slack))
        open_body(page, opened)
        overlay(out, offset, body, opened[:size])
    spliced = splice(header, size, crc)
    overlay(out, offset, start, pad_struct(spliced, body - start))
    return spliced, body


def overlay(out: memoryview, offset: i64, start: i64, data: bytes | memoryview) -> None:
    """Copy the bytes of `data`, which begins at `start`, into `out`, which begins at `offset`."""
    low, high = max(offset, start), min(offset + len(out), start + len(data))
    if high - low == len(data):
        out[low - offset : high - offset] = data
    elif low < high:
        out[low - offset : high - offset] = data[low - start : high - start]


def pad_struct(struct: bytes | bytearray, size: i64) -> bytes:
    """Lengthen an encoded struct to `size` bytes with a field that readers skip."""
    missing = size - len(struct)
    if missing == 0:
        return bytes(struct)
    if 2 <= missing < len(_SHORT_FILLINGS):
        return bytes(struct[:-1]) + _SHORT_FILLINGS[missing]
    for digits in range(2, 6):  # Size of the length. All readers accept leading zeros.
        content = missing - len(_FILLING) - digits
        if 0 <= content < 1 << 7 * digits:
            length = bytes([content >> 7 * n & 127 | 128 for n in range(digits - 1)])
            length += bytes((content >> 7 * (digits - 1),))
            return bytes(struct[:-1]) + _FILLING + length + bytes(content) + b"\0"
    raise FormatError(f"an encrypted header leaves {missing} bytes, which no field can fill")


def lengthen_header(header: bytes, size: i64) -> bytes:
    """Return the header of a data page, without statistics, lengthened to `size` bytes."""
    copied, _ = decode("PageHeader", known_bytes("PageHeader", header))
    if (page := copied.data_page_header or copied.data_page_header_v2) is not None:
        page.statistics = None
    return pad_struct(encode(copied), size)

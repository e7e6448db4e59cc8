"""One encrypted page: where its two modules are, what they must agree on, and how they open.

    [length | nonce | sealed header | tag] [length | nonce | sealed body | tag]

The sealed header says how long the second module is. Decrypting a file and looking into one go
through here, so nothing that one refuses passes in the other.
"""

from __future__ import annotations

import zlib
from struct import Struct
from typing import NamedTuple

from modcrypt.aad import MAX_ORDINAL, ModuleId, ModuleType
from modcrypt.aead import GCM_OVERHEAD, CtrCipher, GcmCipher, TagError
from modcrypt.errors import (
    ChecksumError,
    FormatError,
    IntegrityError,
    TagMismatchError,
    TruncationError,
)
from modcrypt.io.buffers import Window
from modcrypt.parquet.crypto.ciphers import ChunkCipher
from modcrypt.parquet.format.idl import known_bytes
from modcrypt.parquet.format.levels import contradicting
from modcrypt.parquet.format.modules import MAX_PAGE_HEADER, too_many_pages, unexpected_page
from modcrypt.parquet.format.page_header import (
    DATA_PAGE,
    DATA_PAGE_V2,
    DICTIONARY_PAGE,
    PageHeader,
    contradicts,
    scan,
    v2_layout,
)

__all__ = [
    "EncryptedPage",
    "Page",
    "check_crc",
    "open_body",
    "open_checked",
    "open_header",
    "with_known_header",
]


class Page(NamedTuple):
    """The address of a page, spelt out only when an error or a trace needs it."""

    cipher: ChunkCipher
    is_dictionary: bool
    ordinal: int  # among the chunk's data pages

    def id(self) -> ModuleId:
        """Give the address of the page's body."""
        if self.is_dictionary:
            return self.cipher.id(ModuleType.DICTIONARY_PAGE)
        return self.cipher.id(ModuleType.DATA_PAGE, self.ordinal)

    def header_id(self) -> ModuleId:
        """Give the address of the page's header."""
        if self.is_dictionary:
            return self.cipher.id(ModuleType.DICTIONARY_PAGE_HEADER)
        return self.cipher.id(ModuleType.DATA_PAGE_HEADER, self.ordinal)


class EncryptedPage(NamedTuple):
    """A page whose header is open and whose body lies in the window."""

    page: Page
    plain: bytes  # the opened header
    header: PageHeader  # what a scan found in it
    body: memoryview  # the sealed body, perhaps after levels in clear
    aad: bytes  # of the body
    total: int  # bytes of both modules


_length = Struct("<I").unpack_from


def open_header(
    window: Window, position: int, end: int, page: Page, uncompressed: bool
) -> EncryptedPage:
    """Open the header of the page at `position` and bring its body into the window.

    Args:
        end: where the page's chunk ends.
        uncompressed: whether the column's codec is UNCOMPRESSED.

    Raises:
        TagMismatchError: the header does not authenticate.
        TruncationError: its length field does not fit the chunk.
        FormatError, LimitError, UnsupportedFormatError: sizes disagree, or the page is of an
            unexpected kind, or one too many.
    """
    cipher, is_dictionary, ordinal = page
    if is_dictionary:
        header_aad, body_aad = cipher.dictionary_header, cipher.dictionary
    else:
        if ordinal > MAX_ORDINAL:
            raise too_many_pages(str(page.id()))
        suffix = ordinal.to_bytes(2, "little")
        header_aad, body_aad = cipher.data_header + suffix, cipher.data + suffix
    start, middle = _header_module(window, position, end, page)
    try:
        plain = cipher.header.open(window.view[start:middle], header_aad)
    except TagError:
        raise TagMismatchError(page.header_id(), cipher.tag_hint) from None
    header = scan(plain, 0, len(plain))
    kind, size = header[1], header[3]
    if kind != (DICTIONARY_PAGE if is_dictionary else DATA_PAGE) and (
        is_dictionary or kind != DATA_PAGE_V2
    ):
        raise unexpected_page(str(page.id()), kind)
    overhead = cipher.page.overhead
    total = middle - start + size
    if size < overhead or position + total > end:
        raise FormatError(
            f"{page.id()}: its header says {size} bytes; a module has at least {overhead}, "
            f"and its chunk has {end - position - middle + start} left"
        )
    if start + total > window.stop:
        window.fill(position, position + total, end)
        middle += position - window.base - start
    if contradicts(header, plain, size - overhead, uncompressed):
        raise FormatError(
            f"{page.id()}: an uncompressed page of {header[2]} bytes opens to {size - overhead}"
        )
    return EncryptedPage(page, plain, header, window.view[middle : middle + size], body_aad, total)


def _header_module(window: Window, position: int, end: int, page: Page) -> tuple[int, int]:
    """Bring a page's header module into the window; give its span there."""
    if not window.base <= position <= window.base + window.stop - 4:
        window.fill(position, min(end, position + 4), end)
    start = position - window.base
    (length,) = _length(window.buffer, start) if end - position >= 4 else (0,)
    if length < GCM_OVERHEAD - 4 or length > MAX_PAGE_HEADER or position + 4 + length > end:
        raise TruncationError(
            f"{page.header_id()}: its length field says {length} bytes; a module has at least "
            f"{GCM_OVERHEAD - 4}, and its chunk has {end - position - 4} left"
        )
    if start + 4 + length > window.stop:
        window.fill(position, position + 4 + length, end)
        start = position - window.base
    return start, start + 4 + length


def with_known_header(sealed: EncryptedPage) -> EncryptedPage:
    """Leave fields that the IDL doesn't know out of a page's opened header."""
    plain = known_bytes("PageHeader", sealed.plain)
    return sealed._replace(plain=plain, header=scan(plain, 0, len(plain)))


def open_body(sealed: EncryptedPage, into: memoryview) -> int:
    """Open a page's body into `into`: its plain size, and the cipher's slack.

    Gives how many bytes of levels stood in clear before what is sealed.

    Data pages V2 come whole (Arrow C++, arrow-rs, Polars, arrow-go) or as parquet-java writes
    them, levels in clear before the module of the values. Length fields tell which; where both
    could be, the tag does.

    Raises:
        TagMismatchError: it does not authenticate.
        TruncationError: its length field and its header disagree.
        IntegrityError: levels in clear make other rows or nulls than the header says.
    """
    page, plain, header, body, aad, _ = sealed
    cipher, stored = page.cipher.page, len(body) - 4
    whole = _length(body)[0] == stored
    if whole and _opens(cipher, body, aad, into):
        return 0
    clear = v2_layout(plain).levels_size if header[1] == DATA_PAGE_V2 else 0
    if not clear and not whole:
        raise TruncationError(
            f"{page.id()}: its length field says {_length(body)[0]} bytes, its header {stored}"
        )
    values = body[clear:]
    fits = len(values) >= cipher.overhead and _length(values)[0] == stored - clear
    if not (clear and fits and _opens(cipher, values, aad, into[clear:])):
        raise TagMismatchError(page.id(), page.cipher.tag_hint)
    into[:clear] = body[:clear]
    levels = page.cipher.levels
    if levels is not None and (why := contradicting(levels, plain, body[:clear])):
        raise IntegrityError(f"{page.id()}: {why}: they were altered")
    return clear


def open_checked(sealed: EncryptedPage) -> memoryview:
    """Open the body of a page with a CRC; give the plain bytes; raises as what it calls."""
    check_crc(sealed)
    cipher = sealed.page.cipher.page
    plain_size = len(sealed.body) - cipher.overhead
    opened = memoryview(bytearray(plain_size + cipher.slack))
    open_body(sealed, opened)
    return opened[:plain_size]


def check_crc(sealed: EncryptedPage) -> None:
    """Hold the CRC of a page against its stored bytes, under CTR.

    There it is all there is to notice damage by. It is no tag: whoever alters a page on purpose
    can keep its CRC.

    Raises:
        ChecksumError: it does not fit.
    """
    page, body, crc = sealed.page, sealed.body, sealed.header.crc
    if page.cipher.page.overhead != GCM_OVERHEAD and zlib.crc32(body) != crc:
        raise ChecksumError(f"{page.id()}: the CRC in its header does not fit its stored bytes")


def _opens(cipher: GcmCipher | CtrCipher, module: memoryview, aad: bytes, into: memoryview) -> bool:
    try:
        cipher.open_into(module, aad, into)
    except TagError:
        return False
    return True

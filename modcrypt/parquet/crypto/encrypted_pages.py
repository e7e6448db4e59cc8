"""Reading of one encrypted page: locating, checking and decrypting its two modules.

    [length | nonce | encrypted header | tag] [length | nonce | encrypted body | tag]   (PME 5.1)

The encrypted header states the length of the second module. Decryption and inspection both use
this module, so inspection never accepts a page that decryption refuses.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from struct import Struct
from typing import TYPE_CHECKING, Final

from modcrypt.aead import CTR_OVERHEAD, GCM_OVERHEAD, ModuleCipher
from modcrypt.errors import (
    ChecksumError,
    FormatError,
    IntegrityError,
    TagError,
    TagMismatchError,
    TruncationError,
)
from modcrypt.io.buffers import Window
from modcrypt.module_ids import ModuleId, ModuleType
from modcrypt.parquet.crypto.algorithm_labels import (
    PERHAPS_WRONG_LABEL,
    RECOGNISED,
    WRONG_GCM_LABEL,
    looks_like_ctr,
)
from modcrypt.parquet.crypto.ciphers import ChunkCipher
from modcrypt.parquet.format.idl import is_known, known_bytes
from modcrypt.parquet.format.levels import Levels, find_contradiction
from modcrypt.parquet.format.modules import MAX_PAGE_HEADER, unexpected_page_error
from modcrypt.parquet.format.page_header import (
    DATA_PAGE,
    DATA_PAGE_V2,
    DICTIONARY_PAGE,
    UNCOMPRESSED,
    PageHeader,
    contradicts,
    v2_layout,
)
from modcrypt.parquet.format.page_header_scan import scan

if TYPE_CHECKING:
    from mypy_extensions import i64


class Page:
    """The address of a page, formatted only when an error needs it."""

    __slots__ = ("cipher", "is_dictionary", "ordinal")

    def __init__(self, cipher: ChunkCipher, is_dictionary: bool, ordinal: i64) -> None:
        self.cipher: ChunkCipher = cipher
        self.is_dictionary: bool = is_dictionary
        self.ordinal: i64 = ordinal  # among the chunk's data pages

    def next(self) -> Page:
        """Return the address of the page after this one."""
        return Page(self.cipher, False, self.ordinal + (0 if self.is_dictionary else 1))

    def id(self) -> ModuleId:
        """Return the address of the page's body."""
        if self.is_dictionary:
            return self.cipher.id(ModuleType.DICTIONARY_PAGE)
        return self.cipher.id(ModuleType.DATA_PAGE, self.ordinal)

    def header_id(self) -> ModuleId:
        """Return the address of the page's header."""
        if self.is_dictionary:
            return self.cipher.id(ModuleType.DICTIONARY_PAGE_HEADER)
        return self.cipher.id(ModuleType.DATA_PAGE_HEADER, self.ordinal)


class EncryptedPage:
    """A page whose header is decrypted and whose encrypted body lies in the window."""

    __slots__ = ("aad", "body", "header", "page", "position", "total")

    def __init__(
        self, page: Page, position: i64, header: PageHeader, body: memoryview, aad: bytes,
        total: i64,
    ) -> None:  # fmt: skip
        self.page: Page = page
        self.position: i64 = position  # where it starts in the file
        self.header: PageHeader = header
        # View of the encrypted body, perhaps preceded by plaintext levels.
        self.body: memoryview = body
        self.aad: bytes = aad  # AAD of the body
        self.total: i64 = total  # size of both modules in bytes


_NO_BODY: Final = memoryview(b"")

_length: Final = Struct("<I").unpack_from


def walk_pages(
    window: Window, position: i64, end: i64, page: Page, *, compression: i64,
    known_only: bool = False, headers_only: bool = False,
) -> Iterator[EncryptedPage]:  # fmt: skip
    """Yield the pages from a position on, as `open_header` returns them.

    `page` is the address of the first page: only a chunk's first page can be a dictionary. The
    chunk ends at `end`. `known_only` removes fields that the IDL does not know from the headers.
    `headers_only` leaves the bodies out, and does not check their sizes.
    """
    while position < end:
        opened = open_header(window, position, end, page, compression, headers_only)
        position += opened.total
        if known_only:
            drop_unknown_header_fields(opened)
        yield opened
        if position < end:
            page = page.next()


def open_header(
    window: Window, position: i64, end: i64, page: Page, compression: i64,
    headers_only: bool = False,
) -> EncryptedPage:  # fmt: skip
    """Decrypt the header of the page at `position` and load its body into the window.

    The page's chunk ends at `end`; `compression` is what `page_compression` returns.
    `headers_only` loads no body.

    Raises:
        TagMismatchError: The header does not authenticate.
        TruncationError: The header's length field does not fit the chunk.
        FormatError, LimitError, UnsupportedFormatError: Sizes disagree, the page has an
            unexpected kind, or the chunk has too many pages.
        IntegrityError: The page is a GCM module although the file declares CTR.
    """
    cipher, is_dictionary = page.cipher, page.is_dictionary
    header_aad, body_aad = cipher.page_aads(is_dictionary, page.ordinal)
    stored = _load_header_module(window, position, end, page)
    start = position - window.base
    try:
        plain = cipher.header.decrypt(window.view[start : start + stored], header_aad)
    except TagError:
        raise TagMismatchError(page.header_id(), cipher.tag_hint) from None
    header = scan(plain, 0, len(plain))
    kind, size = header.type, header.compressed_size
    if kind != (DICTIONARY_PAGE if is_dictionary else DATA_PAGE) and (
        is_dictionary or kind != DATA_PAGE_V2
    ):
        raise unexpected_page_error(str(page.id()), kind)
    overhead = cipher.page.overhead
    total = stored + size
    if size < overhead or position + total > end:
        hint = f". {WRONG_GCM_LABEL}" if CTR_OVERHEAD <= size < overhead else ""
        raise FormatError(
            f"{page.id()}: its header declares {size} bytes; a module has at least {overhead}, "
            f"and its chunk has {end - position - stored} left{hint}"
        )
    if headers_only:
        return EncryptedPage(page, position, header, _NO_BODY, body_aad, total)
    if start + total > window.stop:
        window.fill(position, position + total, end)
        start = position - window.base
    body = window.view[start + stored : start + total]
    opened = EncryptedPage(page, position, header, body, body_aad, total)
    if contradicts(header, size - overhead, compression):
        raise _size_error(opened)
    return opened


def _size_error(encrypted: EncryptedPage) -> FormatError:
    """Return the error for an uncompressed page whose body has another size than declared."""
    page, declared = encrypted.page, encrypted.header.uncompressed_size
    overhead = page.cipher.page.overhead
    hint = ""
    if overhead == GCM_OVERHEAD:
        hint = label_hint(encrypted)
    elif opens_as_gcm(page.cipher, encrypted.body[measure_levels(encrypted) :], encrypted.aad):
        return FormatError(str(_label_error(page)))
    return FormatError(
        f"{page.id()}: an uncompressed page of {declared} bytes decrypts to "
        f"{len(encrypted.body) - overhead}{hint and '. ' + hint}"
    )


def label_hint(encrypted: EncryptedPage) -> str:
    """Return a sentence if a body that is no GCM module may be one of CTR, or an empty text."""
    page, facts = encrypted.page, encrypted.page.cipher.level_facts
    codec = UNCOMPRESSED if facts is None else facts[1].codec
    if looks_like_ctr(page.cipher.key, encrypted.header, encrypted.body, codec):
        return WRONG_GCM_LABEL
    # After pages that opened, the label is right.
    first = page.is_dictionary or not page.ordinal
    return PERHAPS_WRONG_LABEL if first and codec not in RECOGNISED else ""


def _load_header_module(window: Window, position: i64, end: i64, page: Page) -> i64:
    """Load a page's header module into the window; return its size."""
    if not window.base <= position <= window.base + window.stop - 4:
        window.fill(position, min(end, position + 4), end)
    start = position - window.base
    length: i64 = _length(window.buffer, start)[0] if end - position >= 4 else 0
    if length < GCM_OVERHEAD - 4 or length > MAX_PAGE_HEADER or position + 4 + length > end:
        raise TruncationError(
            f"{page.header_id()}: its length field declares {length} bytes; a module has at least "
            f"{GCM_OVERHEAD - 4}, and its chunk has {end - position - 4} left"
        )
    if start + 4 + length > window.stop:
        window.fill(position, position + 4 + length, end)
    return 4 + length


def drop_unknown_header_fields(encrypted: EncryptedPage) -> None:
    """Remove the fields of a page's header that the IDL does not know."""
    if not is_known("PageHeader", encrypted.header.raw):
        plain = known_bytes("PageHeader", encrypted.header.raw)
        encrypted.header = scan(plain, 0, len(plain))


def open_body(encrypted: EncryptedPage, into: memoryview) -> int:
    """Decrypt a page's body into `into`; return the size of the plaintext levels before it.

    Data pages V2 are encrypted as a whole (Arrow C++, arrow-rs, Polars, arrow-go) or, by
    parquet-java, as plaintext levels followed by the module of the values. The length fields
    determine the layout; if both are possible, the tag decides. `into` has room for the page's
    plaintext and the cipher's slack.

    Raises:
        TagMismatchError: The body does not authenticate.
        TruncationError: The body's length field and the header disagree.
        IntegrityError: The plaintext levels make other rows or nulls than the header declares, or
            the page is a GCM module although the file declares CTR.
    """
    page, body, aad = encrypted.page, encrypted.body, encrypted.aad
    cipher = page.cipher.page
    length: i64 = _length(body)[0]
    whole = length == len(body) - 4
    if whole and _try_open(cipher, body, aad, into):
        check_label(encrypted, 0)
        return 0
    clear = measure_levels(encrypted)
    if not clear and not whole and not _declared_levels(encrypted):
        raise length_error(encrypted)
    if not clear or not _try_open(cipher, body[clear:], aad, into[clear:]):
        hints = [hint for hint in (page.cipher.tag_hint, label_hint(encrypted)) if hint]
        raise TagMismatchError(page.id(), ". ".join(hints))
    into[:clear] = body[:clear]
    check_label(encrypted, clear)
    check_levels(encrypted, clear)
    return clear


def length_error(encrypted: EncryptedPage) -> TruncationError:
    """Return the error for a body whose length field and header disagree."""
    declared, size = _length(encrypted.body)[0], len(encrypted.body) - 4
    return TruncationError(
        f"{encrypted.page.id()}: its length field declares {declared} bytes, its header {size}"
    )


def check_levels(encrypted: EncryptedPage, clear: int) -> None:
    """Raise IntegrityError if a body's plaintext levels contradict the header."""
    facts = encrypted.page.cipher.level_facts
    if not clear or facts is None:
        return
    if why := find_contradiction(Levels.of(*facts), encrypted.header.raw, encrypted.body[:clear]):
        raise IntegrityError(f"{encrypted.page.id()}: {why}: they were altered")


def check_label(encrypted: EncryptedPage, clear: int) -> None:
    """Raise IntegrityError if a chunk's first page is a GCM module although the file declares CTR.

    The label of a file with an encrypted footer is not authenticated. `clear` is the size of the
    plaintext levels.
    """
    page = encrypted.page
    if page.ordinal or page.cipher.page.overhead == GCM_OVERHEAD:
        return
    if opens_as_gcm(page.cipher, encrypted.body[clear:], encrypted.aad):
        raise _label_error(page)


def _label_error(page: Page) -> IntegrityError:
    return IntegrityError(
        f"{page.id()}: it has a tag, and the tag matches: the file was written with "
        "AES_GCM_V1, and its label was changed to AES_GCM_CTR_V1 to turn authentication off"
    )


def opens_as_gcm(cipher: ChunkCipher, module: memoryview, aad: bytes) -> bool:
    """Return whether bytes are a GCM module with this AAD."""
    if len(module) < GCM_OVERHEAD:
        return False
    try:
        cipher.header.decrypt(module, aad)
    except TagError:
        return False
    return True


def measure_levels(encrypted: EncryptedPage) -> int:
    """Return how many bytes of plaintext levels a body begins with if it has parquet-java's layout.

    Return 0 if the length field after the levels does not fit. Raise FormatError if the header of a
    data page V2 lacks the levels' lengths.
    """
    body, clear = encrypted.body, _declared_levels(encrypted)
    rest = len(body) - clear
    fits = rest >= encrypted.page.cipher.page.overhead and _length(body, clear)[0] == rest - 4
    return clear if fits else 0


def _declared_levels(encrypted: EncryptedPage) -> int:
    header = encrypted.header
    return v2_layout(header.raw).levels_size if header.type == DATA_PAGE_V2 else 0


def has_clear_levels(encrypted: EncryptedPage) -> bool:
    """Return whether a body begins with plaintext levels, judging by length fields alone."""
    body = encrypted.body
    try:
        return _length(body)[0] != len(body) - 4 and measure_levels(encrypted) > 0
    except FormatError:
        return False


def open_and_check_crc(encrypted: EncryptedPage) -> memoryview:
    """Return the body of a page with a CRC, checked by `check_crc` and decrypted by `open_body`."""
    check_crc(encrypted)
    cipher = encrypted.page.cipher.page
    plain_size = len(encrypted.body) - cipher.overhead
    opened = memoryview(bytearray(plain_size + cipher.slack))
    open_body(encrypted, opened)
    return opened[:plain_size]


def check_crc(encrypted: EncryptedPage) -> None:
    """Raise ChecksumError if the CRC of a page under CTR does not match its stored bytes."""
    # Under CTR, the CRC is the only means to detect damage. It does not authenticate: an attacker
    # can alter a page without changing its CRC.
    page, body, crc = encrypted.page, encrypted.body, encrypted.header.crc
    if page.cipher.page.overhead != GCM_OVERHEAD and zlib.crc32(body) != crc:
        raise ChecksumError(f"{page.id()}: the CRC in its header does not match its stored bytes")


def _try_open(cipher: ModuleCipher, module: memoryview, aad: bytes, into: memoryview) -> bool:
    try:
        cipher.decrypt_into(module, aad, into)
    except TagError:
        return False
    return True

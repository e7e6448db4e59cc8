"""What the first pages of a column chunk tell of the writer: layouts that no footer names.

- parquet-java leaves the levels of data pages V2 in clear, before the module of the values.
- parquet-go/parquet-go numbers its module types differently from the specification.
- Some versions of Arrow C++ wrote AES_GCM_V1 into footers of files whose pages are under
  AES_GCM_CTR_V1; and a forged label says CTR where pages are under GCM, so that nobody looks at
  their tags.

At most two pages are looked into, and nothing of them is given out.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Literal

from modcrypt.aad import ordinal_bytes
from modcrypt.aead import CTR_OVERHEAD, GCM_OVERHEAD, TagError
from modcrypt.errors import ModcryptError, TagMismatchError
from modcrypt.io.buffers import Window
from modcrypt.parquet.crypto.ciphers import ChunkCipher
from modcrypt.parquet.crypto.encrypted_pages import EncryptedPage, Page, open_header
from modcrypt.parquet.crypto.properties import GCM_CTR_V1, GCM_V1
from modcrypt.parquet.format.modules import MAX_PAGE_HEADER, Span
from modcrypt.parquet.format.page_header import DATA_PAGE_V2, UNCOMPRESSED, v2_layout
from modcrypt.parquet.verify.footer_view import ChunkView

__all__ = ["PageProbe", "has_clear_levels", "opens_as_parquet_go", "probe_pages"]

_length = Struct("<I").unpack_from

# Types of parquet-go/parquet-go (seen in 0.32): a header of a data page is 3 where the
# specification has 4, and that of a dictionary page has a page ordinal, 0.
_GO_DATA_PAGE_HEADER, _GO_DICTIONARY_PAGE_HEADER = 3, 5


@dataclass(frozen=True, slots=True)
class PageProbe:
    """What was found.

    Attributes:
        numbering: of the module types; None where the first header does not open.
        clear_levels: whether a data page V2 has its levels in clear; None where none was met.
        bodies: the algorithm that the body of the first page is under; None where that is unknown.
        refused: whether that body's GCM tag does not match, under the label AES_GCM_V1.
    """

    numbering: Literal["specification", "parquet-go"] | None = None
    clear_levels: bool | None = None
    bodies: str | None = None
    refused: bool = False


def probe_pages(window: Window, span: Span, seen: ChunkView) -> PageProbe:
    """Look into the first data page of a chunk, and its dictionary page where there is one."""
    assert seen.cipher is not None
    assert seen.md is not None
    has_dictionary = bool(seen.md.dictionary_page_offset)
    found = PageProbe()
    position = span.start
    for is_dictionary in (True, False) if has_dictionary else (False,):
        if position >= span.end:
            break
        page = Page(seen.cipher, is_dictionary, 0)
        try:
            # Its codec is judged below, without an error.
            sealed = open_header(window, position, span.end, page, uncompressed=False)
        except TagMismatchError:
            if found.numbering is None and opens_as_parquet_go(window, span, page):
                return PageProbe("parquet-go")
            return found
        except ModcryptError:
            return found
        bodies, refused = found.bodies, found.refused
        if found.numbering is None:
            bodies, refused = _judge(sealed, seen.md.codec == UNCOMPRESSED)
        levels = has_clear_levels(sealed) if sealed.header.type == DATA_PAGE_V2 else None
        found = PageProbe("specification", levels, bodies, refused)
        position += sealed.total
    return found


def has_clear_levels(sealed: EncryptedPage) -> bool:
    """Tell whether a page has levels in clear before the module of its values, by its lengths."""
    if sealed.header.type != DATA_PAGE_V2 or _length(sealed.body)[0] == len(sealed.body) - 4:
        return False
    clear = _levels(sealed)
    return clear > 0 and _length(sealed.body, clear)[0] == len(sealed.body) - clear - 4


def opens_as_parquet_go(window: Window, span: Span, page: Page) -> bool:
    """Tell whether a chunk's first header opens with the numbers of parquet-go/parquet-go."""
    cipher = page.cipher
    start = span.start - window.base  # where `open_header` has brought it
    size = 4 + _length(window.buffer, start)[0]
    if size > MAX_PAGE_HEADER or start + size > window.stop:
        return False
    module = window.view[start : start + size]
    kind = _GO_DICTIONARY_PAGE_HEADER if page.is_dictionary else _GO_DATA_PAGE_HEADER
    return _opens(cipher, module, _aad(cipher, kind))


def _aad(cipher: ChunkCipher, kind: int) -> bytes:
    ordinals = (cipher.row_group, cipher.column, 0)
    suffix = b"".join(ordinal_bytes(ordinal) for ordinal in ordinals)
    return cipher.file.file_aad + bytes((kind,)) + suffix


def _judge(sealed: EncryptedPage, uncompressed: bool) -> tuple[str | None, bool]:
    """Say which algorithm a page's body is under, and whether it is refused under its label."""
    cipher, body = sealed.page.cipher, sealed.body
    clear = _levels(sealed) if has_clear_levels(sealed) else 0
    if len(body) - clear >= GCM_OVERHEAD and _opens(cipher, body[clear:], sealed.aad):
        return GCM_V1, False
    label = cipher.file.algorithm
    sizes_fit = sealed.header.uncompressed_size == len(body) - CTR_OVERHEAD
    if uncompressed and sizes_fit:
        return GCM_CTR_V1, label == GCM_V1
    return None, label == GCM_V1


def _levels(sealed: EncryptedPage) -> int:
    """Give how many bytes of levels a data page V2 has, if its body has room for them."""
    if sealed.header.type != DATA_PAGE_V2:
        return 0
    try:
        size = v2_layout(sealed.plain).levels_size
    except ModcryptError:
        return 0
    return size if size + CTR_OVERHEAD <= len(sealed.body) else 0


def _opens(cipher: ChunkCipher, module: memoryview, aad: bytes) -> bool:
    try:
        cipher.header.open(module, aad)
    except TagError:
        return False
    return True

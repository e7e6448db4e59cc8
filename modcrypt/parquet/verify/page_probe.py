"""Probe the first pages of a column chunk for writer-specific layouts that no footer declares.

- parquet-java leaves the levels of data pages V2 unencrypted, before the module of the values.
- parquet-go/parquet-go numbers its module types differently from the specification.
- Some versions of Arrow C++ wrote AES_GCM_V1 into footers of files whose pages are under
  AES_GCM_CTR_V1. A forged label may also declare CTR for pages under GCM, so that readers ignore
  their tags.

At most two pages are probed, and none of their contents is returned.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Literal

from modcrypt.aad import ordinal_bytes
from modcrypt.aead import CTR_OVERHEAD, GCM_OVERHEAD, TagError
from modcrypt.errors import ModcryptError, TagMismatchError
from modcrypt.io.buffers import Window
from modcrypt.parquet.crypto.chunk_opening import Chunk
from modcrypt.parquet.crypto.ciphers import ChunkCipher
from modcrypt.parquet.crypto.encrypted_pages import (
    EncryptedPage,
    Page,
    has_clear_levels,
    measure_levels,
    open_header,
)
from modcrypt.parquet.crypto.properties import GCM_CTR_V1, GCM_V1
from modcrypt.parquet.format.modules import MAX_PAGE_HEADER, Span
from modcrypt.parquet.format.page_header import DATA_PAGE_V2, UNCOMPRESSED

__all__ = ["PageProbe", "opens_as_parquet_go", "probe_pages"]

_length = Struct("<I").unpack_from

# Types of parquet-go/parquet-go (seen in 0.32): a header of a data page is 3 where the
# specification has 4, and that of a dictionary page has a page ordinal, 0.
_GO_DATA_PAGE_HEADER, _GO_DICTIONARY_PAGE_HEADER = 3, 5


@dataclass(frozen=True, slots=True)
class PageProbe:
    """The result of probing a column chunk.

    Attributes:
        numbering: Numbering of the module types; None if the first header does not open.
        clear_levels: Whether a data page V2 has unencrypted levels; None if there was no such page.
        bodies: Algorithm of the first page's body; None if it is unknown.
        refused: Whether that body's GCM tag does not match although the label is AES_GCM_V1.
    """

    numbering: Literal["specification", "parquet-go"] | None = None
    clear_levels: bool | None = None
    bodies: str | None = None
    refused: bool = False


def probe_pages(window: Window, span: Span, seen: Chunk) -> PageProbe:
    """Probe the first data page of a chunk, and its dictionary page if there is one."""
    assert seen.cipher is not None
    assert seen.metadata is not None
    has_dictionary = bool(seen.metadata.dictionary_page_offset)
    result = PageProbe()
    position = span.start
    for is_dictionary in (True, False) if has_dictionary else (False,):
        if position >= span.end:
            break
        page = Page(seen.cipher, is_dictionary, 0)
        try:
            # The codec is checked below, without an error.
            sealed = open_header(window, position, span.end, page, uncompressed=False)
        except TagMismatchError:
            if result.numbering is None and opens_as_parquet_go(window, span, page):
                return PageProbe("parquet-go")
            return result
        except ModcryptError:
            return result
        bodies, refused = result.bodies, result.refused
        if result.numbering is None:
            bodies, refused = _identify_algorithm(sealed, seen.metadata.codec == UNCOMPRESSED)
        levels = has_clear_levels(sealed) if sealed.header.type == DATA_PAGE_V2 else None
        result = PageProbe("specification", levels, bodies, refused)
        position += sealed.total
    return result


def opens_as_parquet_go(window: Window, span: Span, page: Page) -> bool:
    """Return whether a chunk's first header opens with parquet-go/parquet-go's module types."""
    cipher = page.cipher
    start = span.start - window.base  # `open_header` loaded the header into the window
    size = 4 + _length(window.buffer, start)[0]
    if size > MAX_PAGE_HEADER or start + size > window.stop:
        return False
    module = window.view[start : start + size]
    kind = _GO_DICTIONARY_PAGE_HEADER if page.is_dictionary else _GO_DATA_PAGE_HEADER
    return _authenticates(cipher, module, _make_parquet_go_aad(cipher, kind))


def _make_parquet_go_aad(cipher: ChunkCipher, kind: int) -> bytes:
    ordinals = (cipher.row_group, cipher.column, 0)
    suffix = b"".join(ordinal_bytes(ordinal) for ordinal in ordinals)
    return cipher.file.file_aad + bytes((kind,)) + suffix


def _identify_algorithm(sealed: EncryptedPage, uncompressed: bool) -> tuple[str | None, bool]:
    """Return the algorithm of a page's body, and whether its tag fails under the file's label."""
    cipher, body = sealed.page.cipher, sealed.body
    clear = measure_levels(sealed) if has_clear_levels(sealed) else 0
    if len(body) - clear >= GCM_OVERHEAD and _authenticates(cipher, body[clear:], sealed.aad):
        return GCM_V1, False
    label = cipher.file.algorithm
    sizes_fit = sealed.header.uncompressed_size == len(body) - CTR_OVERHEAD
    if uncompressed and sizes_fit:
        return GCM_CTR_V1, label == GCM_V1
    return None, label == GCM_V1


def _authenticates(cipher: ChunkCipher, module: memoryview, aad: bytes) -> bool:
    try:
        cipher.header.open(module, aad)
    except TagError:
        return False
    return True

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
from itertools import islice
from struct import Struct
from typing import Literal

from modcrypt.aad import aad_of_type
from modcrypt.errors import ModcryptError, TagMismatchError
from modcrypt.io.buffers import Window
from modcrypt.parquet.crypto.chunk_opening import Chunk
from modcrypt.parquet.crypto.encrypted_pages import Page, has_clear_levels, walk_pages
from modcrypt.parquet.format.modules import MAX_PAGE_HEADER, Span
from modcrypt.parquet.format.page_header import DATA_PAGE_V2
from modcrypt.parquet.verify.diagnosis import identify_algorithm, opens_as_gcm

__all__ = ["PageProbe", "probe_pages"]

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
    """

    numbering: Literal["specification", "parquet-go"] | None = None
    clear_levels: bool | None = None
    bodies: str | None = None


def probe_pages(window: Window, span: Span, seen: Chunk) -> PageProbe:
    """Probe the first data page of a chunk, and its dictionary page if there is one."""
    assert seen.cipher is not None
    assert seen.metadata is not None
    first = Page(seen.cipher, bool(seen.metadata.dictionary_page_offset), 0)
    # The codec is checked below, without an error.
    pages = walk_pages(window, span.start, span.end, first, uncompressed=False)
    result = PageProbe()
    try:
        for _, sealed in islice(pages, 1 + first.is_dictionary):
            bodies = result.bodies
            if result.numbering is None:
                bodies = identify_algorithm(sealed, seen.metadata.codec)
            levels = has_clear_levels(sealed) if sealed.header.type == DATA_PAGE_V2 else None
            result = PageProbe("specification", levels, bodies)
    except TagMismatchError:
        if result.numbering is None and _opens_as_parquet_go(window, span, first):
            return PageProbe("parquet-go")
    except ModcryptError:
        pass
    return result


def _opens_as_parquet_go(window: Window, span: Span, page: Page) -> bool:
    """Return whether a chunk's first header opens with parquet-go/parquet-go's module types."""
    cipher = page.cipher
    start = span.start - window.base  # `open_header` loaded the header into the window
    size = 4 + _length(window.buffer, start)[0]
    if size > MAX_PAGE_HEADER or start + size > window.stop:
        return False
    kind = _GO_DICTIONARY_PAGE_HEADER if page.is_dictionary else _GO_DATA_PAGE_HEADER
    aad = aad_of_type(cipher.file.file_aad, kind, cipher.row_group, cipher.column, 0)
    return opens_as_gcm(cipher, window.view[start : start + size], aad)

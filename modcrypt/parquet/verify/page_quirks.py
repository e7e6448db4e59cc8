"""Recognise and describe layouts of pages by which writers deviate from each other.

No footer declares them; the first pages of a column chunk show them:

- parquet-java leaves the levels of data pages V2 unencrypted, before the module of the values;
  `encrypted_pages` opens both layouts.
- parquet-go/parquet-go numbers its module types differently from the specification.
- Some versions of Arrow C++ wrote AES_GCM_V1 into footers of files whose pages are under
  AES_GCM_CTR_V1 (`algorithm_labels`). A forged label may also declare CTR for pages under GCM, so
  that readers ignore their tags.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from struct import Struct
from typing import NamedTuple

from modcrypt.aad import aad_of_type
from modcrypt.errors import ModcryptError, TagMismatchError
from modcrypt.io.buffers import Window
from modcrypt.module_ids import GCM_CTR_V1, GCM_V1
from modcrypt.parquet.crypto.algorithm_labels import looks_like_ctr
from modcrypt.parquet.crypto.chunk_opening import Chunk
from modcrypt.parquet.crypto.encrypted_pages import (
    EncryptedPage,
    Page,
    has_clear_levels,
    measure_levels,
    opens_as_gcm,
    walk_pages,
)
from modcrypt.parquet.crypto.page_facts import PageFacts
from modcrypt.parquet.format.modules import MAX_PAGE_HEADER, Span, chunk_start
from modcrypt.parquet.format.page_header import ALWAYS, DATA_PAGE_V2

CLEAR_LEVELS = (
    "its data pages V2 have parquet-java's layout: repetition and definition levels are not "
    "encrypted, and no tag authenticates them; only rows and nulls are counted"
)
NO_TAGS = (
    "AES_GCM_CTR_V1 leaves page bodies without a tag: altered bodies decrypt to other values "
    "undetected"
)
"""The reports of verification about pages that have these layouts."""


class PageProbe(NamedTuple):
    """The result of probing a column chunk."""

    opens: bool = False  # whether the first header opens
    is_parquet_go: bool = False  # whether it opens only with parquet-go/parquet-go's module types
    # Whether a data page V2 has unencrypted levels; None if there was no such page.
    clear_levels: bool | None = None
    bodies: str | None = None  # algorithm of the first page's body; None if it is unknown


def probe_pages(window: Window, span: Span, chunk: Chunk) -> PageProbe:
    """Probe the first data page of a chunk, and its dictionary page if there is one."""
    assert chunk.cipher is not None
    first = Page(chunk.cipher, bool(chunk.metadata.dictionary_page_offset), 0)
    # The codec is checked below, without an error.
    pages = walk_pages(window, span.start, span.end, first, compression=ALWAYS)
    result = PageProbe()
    try:
        for encrypted in islice(pages, 1 + first.is_dictionary):
            bodies = result.bodies
            if not result.opens:
                bodies = _identify_algorithm(encrypted, chunk.metadata.codec)
            levels = has_clear_levels(encrypted) if encrypted.header.type == DATA_PAGE_V2 else None
            result = PageProbe(opens=True, clear_levels=levels, bodies=bodies)
    except TagMismatchError:
        if not result.opens and _opens_as_parquet_go(window, span, first):
            return PageProbe(is_parquet_go=True)
    except ModcryptError:
        pass
    return result


def describe_page_quirks(probe: PageProbe | None, algorithm: str | None) -> Iterator[str]:
    """Yield sentences about the layout of a file's pages, besides the bugs of its writer.

    The probe is None if there was no chunk to probe, and the algorithm if the footer names none.
    """
    if probe is None:
        return
    if probe.clear_levels is False:
        yield (
            "Data pages V2 are encrypted whole, levels included, as Arrow C++ and arrow-rs do; "
            "parquet-java does not read such pages."
        )
    if probe.opens and algorithm == GCM_V1 and probe.bodies != GCM_V1:
        is_ctr = probe.bodies == GCM_CTR_V1
        yield (
            "The footer says AES_GCM_V1, but the body of a page whose header opens "
            f"{'looks like one of AES_GCM_CTR_V1' if is_ctr else 'does not authenticate'}: "
            "the label or the body was altered."
        )
    elif algorithm == GCM_CTR_V1 and probe.bodies == GCM_V1:
        yield (
            "The file says AES_GCM_CTR_V1, but the body of a page authenticates as AES_GCM_V1: the "
            "label was forged to make readers skip the tags."
        )


def counts_values_as_rows(chunk: Chunk, facts: PageFacts) -> bool:
    """Return whether data pages V2 of lists state their number of values as that of rows."""
    if not chunk.leaf.max_repetition:
        return False
    rows = facts.rows
    return sum(rows) > chunk.rows and rows == facts.values


def forgets_dictionary_header(chunk: Chunk, facts: PageFacts) -> bool:
    """Return whether a plaintext chunk's data_page_offset lies inside its dictionary page."""
    if chunk.encrypted or not facts.dictionaries or not facts.pages:
        return False
    return bool(chunk_start(chunk.metadata) < chunk.metadata.data_page_offset < facts.pages[0][0])


def describe_header_quirks(chunk: Chunk, facts: PageFacts) -> Iterator[str]:
    """Yield sentences about headers and offsets that readers do not rely on."""
    if not facts.complete:
        return
    if counts_values_as_rows(chunk, facts):
        yield (
            f"Column {chunk.path}: data pages V2 state their number of values as their number of "
            "rows, as Arrow C++ up to 11 and parquetjs do for lists. Readers ignore that number, "
            "so the rows of each page were not compared with it."
        )
    if forgets_dictionary_header(chunk, facts):
        yield (
            f"Column {chunk.path}: data_page_offset lies inside the dictionary page, because "
            "DuckDB up to 0.10.0 forgets the header of that page. Readers begin at the "
            "dictionary; encryption corrects the offset."
        )


def _identify_algorithm(encrypted: EncryptedPage, codec: int) -> str | None:
    """Return the algorithm of a page's body, whatever the file's label says; None if unknown."""
    cipher, body = encrypted.page.cipher, encrypted.body
    clear = measure_levels(encrypted) if has_clear_levels(encrypted) else 0
    if opens_as_gcm(cipher, body[clear:], encrypted.aad):
        return GCM_V1
    return GCM_CTR_V1 if looks_like_ctr(cipher.key, encrypted.header, body, codec) else None


_length = Struct("<I").unpack_from

# Types of parquet-go/parquet-go (seen in 0.32): a header of a data page is 3 where the
# specification has 4, and that of a dictionary page has a page ordinal, 0.
_GO_DATA_PAGE_HEADER, _GO_DICTIONARY_PAGE_HEADER = 3, 5


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

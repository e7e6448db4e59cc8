"""Diagnose what modules and pages really are, whatever the footer says of them.

AES-GCM does not say why a tag does not match. But a module that opens under the address of another
one was moved, and one that opens with another column's key was encrypted with that key. The search
covers nearby addresses only, and ends when a file's budget is used up.

The first pages of a column chunk show layouts of writers that no footer declares:

- parquet-java leaves the levels of data pages V2 unencrypted, before the module of the values.
- parquet-go/parquet-go numbers its module types differently from the specification.
- Some versions of Arrow C++ wrote AES_GCM_V1 into footers of files whose pages are under
  AES_GCM_CTR_V1. A forged label may also declare CTR for pages under GCM, so that readers ignore
  their tags.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from struct import Struct
from typing import Literal, NamedTuple

from modcrypt.aad import MAX_ORDINAL, ModuleId, ModuleType, aad_of_type, module_aad
from modcrypt.aead import CTR_OVERHEAD, CTR_SLACK, GCM_OVERHEAD, CtrCipher, TagError
from modcrypt.errors import ModcryptError, TagMismatchError
from modcrypt.io.buffers import Window
from modcrypt.keys import Key
from modcrypt.parquet.crypto.chunk_opening import Chunk
from modcrypt.parquet.crypto.ciphers import ChunkCipher, FileCipher
from modcrypt.parquet.crypto.encrypted_pages import (
    EncryptedPage,
    Page,
    has_clear_levels,
    measure_levels,
    walk_pages,
)
from modcrypt.parquet.crypto.properties import GCM_CTR_V1, GCM_V1
from modcrypt.parquet.format.idl import varint
from modcrypt.parquet.format.modules import MAX_PAGE_HEADER, Span
from modcrypt.parquet.format.page_header import DATA_PAGE_V2, UNCOMPRESSED, PageHeader

NEIGHBOURS = 24
"""Number of pages, row groups and columns searched to either side, and from the first on."""

BUDGET = 64 << 20
"""Number of bytes decrypted for diagnoses in one file, per thread."""

ATTEMPT = 1024
"""Number of bytes that an attempt counts for in addition to the size of its module."""


class Cause(NamedTuple):
    """A diagnosis: a sentence, and the page of the chunk that the module is, if it is one."""

    hint: str
    page: int | None = None


@dataclass(slots=True)
class Detective:
    """A search for the reason why modules do not open, in one thread."""

    cipher: FileCipher
    keys: Mapping[int, Key]  # known keys by column ordinal
    footer_key: Key | None
    paths: list[str]
    row_groups: int
    budget: int = field(default=BUDGET)

    def explain(self, chunk: ChunkCipher, module: ModuleId, stored: memoryview) -> Cause | None:
        """Return what a GCM module really is that does not open in its place; None if unknown.

        Args:
            chunk: Cipher of the chunk in which the module lies.
            module: Address of the module's place.
            stored: Encrypted module from its length field to the end of its tag.
        """
        for aad, key, cause in self._list_suspects(chunk, module):
            if self.budget < len(stored) + ATTEMPT:
                return None
            self.budget -= len(stored) + ATTEMPT
            try:
                self.cipher.gcm(key).open(stored, aad)
            except TagError:
                continue
            return cause
        return None

    def _list_suspects(
        self, chunk: ChunkCipher, module: ModuleId
    ) -> Iterator[tuple[bytes, Key, Cause]]:
        file_aad, kind = self.cipher.file_aad, module.type
        r, c, page = chunk.row_group, chunk.column, module.page
        what = kind.name.lower().replace("_", " ")

        def make_aad(row_group: int, column: int, number: int | None) -> bytes:
            return module_aad(file_aad, ModuleId(kind, row_group, column, number))

        if page is not None:
            for other in _list_neighbours(page, MAX_ORDINAL + 1):
                hint = (
                    f"It is the {what} of page {other} of the same column chunk: pages were "
                    "swapped, repeated or left out"
                )
                yield make_aad(r, c, other), chunk.key, Cause(hint, other)
        of_page = "" if page is None else f" of page {page}"
        for other in _list_neighbours(r, self.row_groups):
            hint = (
                f"It is the {what}{of_page} of row group {other}, column {chunk.path}: modules "
                "were swapped between row groups"
            )
            yield make_aad(other, c, page), chunk.key, Cause(hint)
        for other in _list_neighbours(c, len(self.paths)):
            hint = (
                f"It is the {what}{of_page} of row group {r}, column {self.paths[other]}: modules "
                "were swapped between columns"
            )
            yield make_aad(r, other, page), self.keys.get(other, chunk.key), Cause(hint)
        yield from self._try_other_keys(chunk, make_aad(r, c, page))
        yield from _try_other_types(chunk, module, file_aad)
        yield (
            b"",
            chunk.key,
            Cause("It opens without any AAD, as DuckDB encrypts: nothing binds it to its place"),
        )

    def _try_other_keys(self, chunk: ChunkCipher, aad: bytes) -> Iterator[tuple[bytes, Key, Cause]]:
        """Yield the keys of the footer and of other columns, each once."""
        tried = {chunk.key}
        named = [(f"column {self.paths[c]}", key) for c, key in self.keys.items()]
        if self.footer_key is not None:
            named.insert(0, ("the footer", self.footer_key))
        for name, key in named:
            if key not in tried and len(tried) <= 2 * NEIGHBOURS:
                tried.add(key)
                yield aad, key, Cause(f"It opens with the key of {name}: keys were exchanged")


def _try_other_types(
    chunk: ChunkCipher, module: ModuleId, file_aad: bytes
) -> Iterator[tuple[bytes, Key, Cause]]:
    place = chunk.row_group, chunk.column
    pages: list[tuple[int, ...]] = [(), (0,)] if module.page is None else [(module.page,), ()]
    for kind in range(12):
        for page in pages:
            if kind == module.type and page == pages[0]:
                continue
            known = kind <= max(ModuleType)
            name = ModuleType(kind).name.lower().replace("_", " ") if known else "unknown"
            hint = (
                f"It opens as a module of type {kind} ({name}): it was moved, or its writer "
                "numbers module types in another way, as parquet-go/parquet-go does"
            )
            yield aad_of_type(file_aad, kind, *place, *page), chunk.key, Cause(hint)


def _list_neighbours(place: int, count: int) -> Iterator[int]:
    """Yield the ordinals near a place, nearest first, then those from 0 on."""
    for distance in range(1, NEIGHBOURS + 1):
        for other in (place - distance, place + distance):
            if 0 <= other < count:
                yield other
    for other in range(min(NEIGHBOURS, count, max(0, place - NEIGHBOURS))):
        yield other


# --- GCM or CTR ----------------------------------------------------------------------------------


def _identify_algorithm(sealed: EncryptedPage, codec: int) -> str | None:
    """Return the algorithm of a page's body, whatever the file's label says; None if unknown."""
    cipher, body = sealed.page.cipher, sealed.body
    clear = measure_levels(sealed) if has_clear_levels(sealed) else 0
    if opens_as_gcm(cipher, body[clear:], sealed.aad):
        return GCM_V1
    return GCM_CTR_V1 if looks_like_ctr(cipher.key, sealed.header, body, codec) else None


_SNAPPY, _GZIP, _ZSTD = 1, 2, 6  # CompressionCodec of the IDL
_MAGICS = {_GZIP: b"\x1f\x8b", _ZSTD: b"\x28\xb5\x2f\xfd"}


def looks_like_ctr(key: Key, header: PageHeader, body: memoryview, codec: int) -> bool:
    """Return whether a page body that is not a GCM module seems to be a CTR module.

    An uncompressed body is recognised by its size, a compressed one by the codec's first bytes. At
    most 16 bytes are decrypted, and none is returned.
    """
    size = len(body) - CTR_OVERHEAD
    if size == header.uncompressed_size and codec == UNCOMPRESSED:
        return True
    if header.type == DATA_PAGE_V2 or size < 8:
        return False
    plain = bytearray(16 + CTR_SLACK)
    CtrCipher(key).open_into(body[: CTR_OVERHEAD + min(size, 16)], b"", memoryview(plain))
    if codec == _SNAPPY:  # begins with the uncompressed length
        return plain.startswith(varint(header.uncompressed_size))
    return codec in _MAGICS and plain.startswith(_MAGICS[codec])


def opens_as_gcm(chunk: ChunkCipher, module: memoryview, aad: bytes) -> bool:
    """Return whether bytes are a GCM module with this AAD."""
    if len(module) < GCM_OVERHEAD:
        return False
    try:
        chunk.header.open(module, aad)
    except TagError:
        return False
    return True


# --- first pages ---------------------------------------------------------------------------------

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
                bodies = _identify_algorithm(sealed, seen.metadata.codec)
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

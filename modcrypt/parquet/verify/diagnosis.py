"""Why a module's tag does not match: where else, and under which other key, it would.

AES-GCM can't say what is wrong, but a module that opens under the address of another one was
moved, and one that opens with another column's key was sealed with it. Looked for only near by,
and only while a file's budget lasts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from modcrypt.aad import MAX_ORDINAL, ModuleId, ModuleType, module_aad, ordinal_bytes
from modcrypt.aead import CTR_OVERHEAD, CTR_SLACK, CtrCipher, TagError
from modcrypt.errors import ModcryptError
from modcrypt.keys import Key
from modcrypt.parquet.crypto.ciphers import ChunkCipher, FileCipher
from modcrypt.parquet.format.idl import varint
from modcrypt.parquet.format.page_header import DATA_PAGE_V2, UNCOMPRESSED, PageHeader

__all__ = ["Cause", "Detective", "looks_like_ctr", "opens_as_gcm"]

NEIGHBOURS = 24
"""How far pages, row groups and columns are searched, to either side and from the first on."""

BUDGET = 64 << 20
"""Bytes that are put to AES for diagnoses in one file, per thread."""

ATTEMPT = 1024
"""Bytes that an attempt counts for besides its module's."""


class Cause(NamedTuple):
    """What was found out: a sentence, and which page of the chunk the module is, if it is one."""

    hint: str
    page: int | None = None


@dataclass(slots=True)
class Detective:
    """Tries to open what does not open; for one thread."""

    cipher: FileCipher
    keys: Mapping[int, Key]  # by column, what keys are known
    footer_key: Key | None
    paths: list[str]
    row_groups: int
    left: int = field(default=BUDGET)

    def explain(self, chunk: ChunkCipher, module: ModuleId, sealed: memoryview) -> Cause | None:
        """Say what a GCM module is that does not open where it stands; None if that is unknown.

        Args:
            chunk: of the place where it stands.
            module: the address of that place.
            sealed: the module, from its length field to the end of its tag.
        """
        for aad, key, cause in self._suspects(chunk, module):
            if self.left < len(sealed) + ATTEMPT:
                return None
            self.left -= len(sealed) + ATTEMPT
            try:
                self.cipher.gcm(key).open(sealed, aad)
            except TagError:
                continue
            return cause
        return None

    def _suspects(self, chunk: ChunkCipher, module: ModuleId) -> Iterator[tuple[bytes, Key, Cause]]:
        file_aad, kind = self.cipher.file_aad, module.type
        r, c, page = chunk.row_group, chunk.column, module.page
        what = kind.name.lower().replace("_", " ")

        def at(row_group: int, column: int, number: int | None) -> bytes:
            return module_aad(file_aad, ModuleId(kind, row_group, column, number))

        if page is not None:
            for other in _around(page, MAX_ORDINAL + 1):
                hint = (
                    f"It is the {what} of page {other} of the same column chunk: pages were "
                    "swapped, repeated or left out"
                )
                yield at(r, c, other), chunk.key, Cause(hint, other)
        of_page = "" if page is None else f" of page {page}"
        for other in _around(r, self.row_groups):
            hint = (
                f"It is the {what}{of_page} of row group {other}, column {chunk.path}: modules "
                "were swapped between row groups"
            )
            yield at(other, c, page), chunk.key, Cause(hint)
        for other in _around(c, len(self.paths)):
            hint = (
                f"It is the {what}{of_page} of row group {r}, column {self.paths[other]}: modules "
                "were swapped between columns"
            )
            yield at(r, other, page), self.keys.get(other, chunk.key), Cause(hint)
        yield from self._other_keys(chunk, at(r, c, page))
        yield from _other_types(chunk, module, file_aad)
        yield (
            b"",
            chunk.key,
            Cause("It opens with no AAD at all, as DuckDB seals: nothing binds it to its place"),
        )

    def _other_keys(self, chunk: ChunkCipher, aad: bytes) -> Iterator[tuple[bytes, Key, Cause]]:
        """Give the keys of other columns, each once."""
        tried = {chunk.key}
        named = [(f"column {self.paths[c]}", key) for c, key in self.keys.items()]
        if self.footer_key is not None:
            named.insert(0, ("the footer", self.footer_key))
        for name, key in named:
            if key not in tried and len(tried) <= 2 * NEIGHBOURS:
                tried.add(key)
                yield aad, key, Cause(f"It opens with the key of {name}: keys were exchanged")


def _other_types(
    chunk: ChunkCipher, module: ModuleId, file_aad: bytes
) -> Iterator[tuple[bytes, Key, Cause]]:
    suffix = ordinal_bytes(chunk.row_group) + ordinal_bytes(chunk.column)
    pages = [b""] if module.page is None else [ordinal_bytes(module.page), b""]
    if module.page is None:
        pages.append(ordinal_bytes(0))
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
            yield file_aad + bytes((kind,)) + suffix + page, chunk.key, Cause(hint)


def _around(place: int, count: int) -> Iterator[int]:
    """Give the ordinals near a place, nearest first, then the first ones."""
    for distance in range(1, NEIGHBOURS + 1):
        for other in (place - distance, place + distance):
            if 0 <= other < count:
                yield other
    for other in range(min(NEIGHBOURS, count, max(0, place - NEIGHBOURS))):
        yield other


# --- GCM or CTR ----------------------------------------------------------------------------------

_SNAPPY, _GZIP, _ZSTD = 1, 2, 6  # CompressionCodec of the IDL
_MAGICS = {_GZIP: b"\x1f\x8b", _ZSTD: b"\x28\xb5\x2f\xfd"}


def looks_like_ctr(key: Key, header: PageHeader, body: memoryview, codec: int) -> bool:
    """Tell whether a page body that is no GCM module opens as a CTR one.

    By its size where it is not compressed, by how the codec begins where it is. Only some bytes
    are decrypted, and none is given out.
    """
    size = len(body) - CTR_OVERHEAD
    if size == header.uncompressed_size and codec == UNCOMPRESSED:
        return True
    if header.type == DATA_PAGE_V2 or size < 8:
        return False
    plain = bytearray(16 + CTR_SLACK)
    CtrCipher(key).open_into(body[: CTR_OVERHEAD + min(size, 16)], b"", memoryview(plain))
    if codec == _SNAPPY:  # begins with the length of what it holds
        return plain.startswith(varint(header.uncompressed_size))
    return codec in _MAGICS and plain.startswith(_MAGICS[codec])


def opens_as_gcm(chunk: ChunkCipher, body: memoryview, aad: bytes) -> bool:
    """Tell whether a page body of a file that says CTR is a GCM module."""
    try:
        chunk.header.open(body, aad)
    except (TagError, ModcryptError):
        return False
    return True

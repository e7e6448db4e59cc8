"""Diagnose what modules and pages really are, whatever the footer says of them.

AES-GCM does not say why a tag does not match. But a module that opens under the address of another
one was moved, and one that opens with another column's key was encrypted with that key. The search
covers nearby addresses only, and ends when a file's budget is used up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from modcrypt.aad import MAX_ORDINAL, aad_of_type, module_aad
from modcrypt.errors import TagError
from modcrypt.keys import Key
from modcrypt.module_ids import ModuleId, ModuleType, in_words
from modcrypt.parquet.crypto.ciphers import ChunkCipher, FileCipher

NEIGHBOURS = 24
"""Number of pages, row groups and columns searched to either side, and from the first on."""

BUDGET = 64 << 20  # number of bytes decrypted for diagnoses in one file, per thread
ATTEMPT = 1024  # number of bytes that an attempt counts for in addition to the size of its module


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
        """Return the cause why a GCM module does not open in its place; None if unknown.

        `stored` runs from the module's length field to the end of its tag, `module` is the address
        of its place, and `chunk` the cipher of the chunk that contains it.
        """
        for aad, key, cause in self._list_suspects(chunk, module):
            if self.budget < len(stored) + ATTEMPT:
                return None
            self.budget -= len(stored) + ATTEMPT
            try:
                self.cipher.gcm(key).decrypt(stored, aad)
            except TagError:
                continue
            return cause
        return None

    def _list_suspects(
        self, chunk: ChunkCipher, module: ModuleId
    ) -> Iterator[tuple[bytes, Key, Cause]]:
        file_aad, kind = self.cipher.file_aad, module.type
        r, c, page = chunk.row_group, chunk.column, module.page
        what = in_words(kind)

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
        yield from _try_other_types(chunk, module)
        hint = "It opens without any AAD, as DuckDB encrypts: nothing binds it to its place"
        yield b"", chunk.key, Cause(hint)

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


def _try_other_types(chunk: ChunkCipher, module: ModuleId) -> Iterator[tuple[bytes, Key, Cause]]:
    file_aad, place = chunk.file.file_aad, (chunk.row_group, chunk.column)
    pages: list[tuple[int, ...]] = [(), (0,)] if module.page is None else [(module.page,), ()]
    for kind in range(12):
        for page in pages:
            if kind == module.type and page == pages[0]:
                continue
            known = kind <= max(ModuleType)
            name = in_words(ModuleType(kind)) if known else "unknown"
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
    yield from range(min(NEIGHBOURS, count, max(0, place - NEIGHBOURS)))

"""Addresses of PME modules, AGS1 blocks and cells, and the names of algorithms."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import NamedTuple

GCM_V1 = "AES_GCM_V1"
GCM_CTR_V1 = "AES_GCM_CTR_V1"
ALGORITHMS = (GCM_V1, GCM_CTR_V1)
"""PME 4.2: all modules under GCM, or page bodies under CTR and the rest under GCM."""


def in_words(member: Enum) -> str:
    """Return the name of a type of modules, or of another member, in words."""
    return member.name.lower().replace("_", " ")


class ModuleType(IntEnum):
    """The ten module types (PME 4.4.2)."""

    FOOTER = 0
    COLUMN_METADATA = 1
    DATA_PAGE = 2
    DICTIONARY_PAGE = 3
    DATA_PAGE_HEADER = 4
    DICTIONARY_PAGE_HEADER = 5
    COLUMN_INDEX = 6
    OFFSET_INDEX = 7
    BLOOM_FILTER_HEADER = 8
    BLOOM_FILTER_BITSET = 9

    @property
    def has_page(self) -> bool:
        """True if the AAD suffix ends with a page ordinal, as for data pages and their headers."""
        return self in (ModuleType.DATA_PAGE, ModuleType.DATA_PAGE_HEADER)


class ModuleId(NamedTuple):
    """The address of a PME module in a file. `path` is the dotted leaf path, for messages only."""

    type: ModuleType
    row_group: int | None = None
    column: int | None = None
    page: int | None = None
    path: str | None = None

    def __str__(self) -> str:
        parts = [in_words(self.type)]
        if self.row_group is not None:
            parts.append(f"row group {self.row_group}")
        if self.column is not None:
            parts.append(f"column {self.column if self.path is None else self.path}")
        if self.page is not None:
            parts.append(f"page {self.page}")
        return ", ".join(parts)


class BlockId(NamedTuple):
    """The address of a block in an AGS1 stream, counted from 0."""

    index: int  # type: ignore[assignment]  # in place of the method of tuples

    def __str__(self) -> str:
        return f"block {self.index}"


class CellId(NamedTuple):
    """The address of a cell: the dotted path of its column, as several open at once."""

    path: str

    def __str__(self) -> str:
        return f"a cell of column {self.path}"

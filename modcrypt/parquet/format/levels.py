"""Levels that parquet-java leaves in clear in data pages V2, held against the sealed header.

    [repetition levels][definition levels][module of the values]

Whoever edits them can't change how many rows and nulls there are: the header is sealed, and says
it. Which of the rows are null they can, unseen (the format has nothing to tell it by).

Levels are runs (Parquet "RLE/Bit-Packing Hybrid"): a varint whose lowest bit tells the kind, then
one value for all, or groups of eight values, packed.
"""

from __future__ import annotations

from typing import NamedTuple

from modcrypt.errors import FormatError
from modcrypt.parquet.format.idl import decode

__all__ = ["Levels", "contradicting"]


class Levels(NamedTuple):
    """What is known of a column's levels.

    Attributes:
        max_definition, max_repetition: by the schema.
        counts_nulls: whether the writer counted nulls; with statistics off, parquet-java says 0.
    """

    max_definition: int
    max_repetition: int
    counts_nulls: bool


def contradicting(levels: Levels, header: bytes, clear: memoryview) -> str | None:
    """Say what of a page's levels its header contradicts; None for nothing.

    Args:
        levels: of the column.
        header: of a data page V2, authenticated.
        clear: repetition and definition levels.
    """
    v2 = decode("PageHeader", header)[0].data_page_header_v2
    border = v2.repetition_levels_byte_length
    try:
        if levels.max_repetition:
            rows = _count(bytes(clear[:border]), levels.max_repetition, v2.num_values, 0)
            if rows != v2.num_rows:
                return f"its levels in clear make {rows} rows, its header says {v2.num_rows}"
        if levels.max_definition and (levels.counts_nulls or v2.num_nulls > 0):
            highest = levels.max_definition
            there = _count(bytes(clear[border:]), highest, v2.num_values, highest)
            nulls = v2.num_values - there
            if nulls != v2.num_nulls:
                return f"its levels in clear make {nulls} nulls, its header says {v2.num_nulls}"
    except (FormatError, IndexError):
        return "its levels in clear are no levels"
    return None


def _count(data: bytes, highest: int, values: int, wanted: int) -> int:
    """Count how many of the levels are `wanted`.

    Raises:
        FormatError, IndexError: the bytes are not so many levels.
    """
    width = highest.bit_length()
    found = at = 0
    while values > 0:
        head, at = _varint(data, at)
        if head & 1:
            count = min(8 * (head >> 1), values)
            size = (head >> 1) * width
            if not count or at + size > len(data):
                raise FormatError("levels end inside a run")
            found += _count_packed(data[at : at + size], width, count, wanted)
        else:
            count = min(head >> 1, values)
            size = (width + 7) // 8
            if not count or at + size > len(data):
                raise FormatError("levels end inside a run")
            found += count * (int.from_bytes(data[at : at + size], "little") == wanted)
        at += size
        values -= count
    return found


def _count_packed(packed: bytes, width: int, count: int, wanted: int) -> int:
    """Count in C, on one long integer: a field is 0 where it was `wanted`."""
    groups = -(-count // 8)
    ones = sum(1 << (width * n) for n in range(8)).to_bytes(width, "little") * groups
    lowest = int.from_bytes(ones, "little") & ((1 << (width * count)) - 1)
    differing = int.from_bytes(packed, "little") ^ (lowest * wanted)
    folded = 0
    for bit in range(width):
        folded |= differing >> bit
    return count - (folded & lowest).bit_count()


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 35:
            raise FormatError("a run's length is no number")

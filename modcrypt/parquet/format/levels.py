"""Checks of the plaintext levels in parquet-java's data pages V2 against the encrypted header.

    [repetition levels][definition levels][module of the values]

An attacker who edits the levels cannot change the number of rows or nulls, because the encrypted
header states them. The attacker can change which rows are null: the format has no means to detect
that.

Levels are runs (Parquet "RLE/Bit-Packing Hybrid"): a varint whose lowest bit gives the kind of run,
then one value that repeats, or packed groups of eight values.
"""

from __future__ import annotations

from typing import NamedTuple

from modcrypt.errors import FormatError
from modcrypt.parquet.format.idl import ThriftStruct, decode
from modcrypt.parquet.format.schema import Leaf


class Levels(NamedTuple):
    """The facts about a column's levels."""

    # The largest levels that the schema allows.
    max_definition: int
    max_repetition: int
    counts_nulls: bool  # whether the writer counted nulls; parquet-java writes 0 without statistics

    @classmethod
    def of(cls, leaf: Leaf, metadata: ThriftStruct) -> Levels:
        """Return the facts about the levels of a chunk; damaged statistics count nothing."""
        try:
            statistics = metadata.statistics
        except FormatError:
            statistics = None
        counted = statistics is not None and statistics.null_count is not None
        return cls(leaf.max_definition, leaf.max_repetition, counted)


def find_contradiction(levels: Levels, header: bytes, clear: memoryview) -> str | None:
    """Return a sentence on how a page's levels contradict its header, or None if they agree.

    The header is that of a data page V2, and authenticated; `clear` has its levels.
    """
    v2 = decode("PageHeader", header)[0].data_page_header_v2
    border = v2.repetition_levels_byte_length
    try:
        if levels.max_repetition and (rows := count_rows(levels, v2, clear)) != v2.num_rows:
            return f"its plaintext levels make {rows} rows, its header says {v2.num_rows}"
        if levels.max_definition and (levels.counts_nulls or v2.num_nulls > 0):
            highest = levels.max_definition
            present = _count_levels(bytes(clear[border:]), highest, v2.num_values, highest)
            nulls = v2.num_values - present
            if nulls != v2.num_nulls:
                return f"its plaintext levels make {nulls} nulls, its header says {v2.num_nulls}"
    except (FormatError, IndexError):
        return "its plaintext levels cannot be decoded"
    return None


def count_rows(levels: Levels, v2: ThriftStruct, clear: memoryview) -> int:
    """Return the number of rows that a page's levels make.

    `v2` is the page's DataPageHeaderV2, and `clear` begins with its levels. Raise FormatError or
    IndexError if the levels cannot be decoded.
    """
    repetition = bytes(clear[: v2.repetition_levels_byte_length])
    return _count_levels(repetition, levels.max_repetition, v2.num_values, 0)


def _count_levels(data: bytes, highest: int, values: int, wanted: int) -> int:
    """Count the levels that equal `wanted`.

    Raise FormatError or IndexError if the bytes hold fewer levels than `values`.
    """
    width = highest.bit_length()
    matches = at = 0
    while values > 0:
        head, at = _read_run_head(data, at)
        is_packed, length = head & 1, head >> 1
        count = min(8 * length if is_packed else length, values)
        size = length * width if is_packed else (width + 7) // 8
        if not count or at + size > len(data):
            raise FormatError("levels end inside a run")
        run = data[at : at + size]
        if is_packed:
            matches += _count_packed(run, width, count, wanted)
        elif int.from_bytes(run, "little") == wanted:
            matches += count
        at += size
        values -= count
    return matches


def _count_packed(packed: bytes, width: int, count: int, wanted: int) -> int:
    """Count packed levels on one long integer, in C: a field becomes 0 where it is `wanted`."""
    groups = -(-count // 8)
    ones = sum(1 << (width * n) for n in range(8)).to_bytes(width, "little") * groups
    lowest = int.from_bytes(ones, "little") & ((1 << (width * count)) - 1)
    differing = int.from_bytes(packed, "little") ^ (lowest * wanted)
    folded = 0
    for bit in range(width):
        folded |= differing >> bit
    return count - (folded & lowest).bit_count()


def _read_run_head(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 35:
            raise FormatError("a run's length is not a valid varint")

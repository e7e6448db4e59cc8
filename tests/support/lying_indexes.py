"""Column and offset indexes of plaintext files that lie in every way that the file itself shows.

A reader who believes such an index loses rows. Lies that nothing in the file contradicts, such as
bounds that leave out a value, are not here: no reader can notice them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeAlias

from modcrypt.parquet.format.idl import ThriftStruct, decode, encode
from tests.support import forging

Lie: TypeAlias = Callable[[random.Random, Any, Any, ThriftStruct], None]
"""A change of a column index, an offset index and a ColumnChunk."""


def _page(rng: random.Random, index: Any) -> int:
    return rng.randrange(len(index.null_pages))


def _flag(nulls: Callable[[Any, int], object]) -> Lie:
    """Flag a page that has values as one of nulls, as Polars 1.28 to 2.0 does for NaN."""

    def lie(rng: random.Random, index: Any, offsets: Any, chunk: ThriftStruct) -> None:
        for page in {_page(rng, index) for _ in range(rng.choice((1, 3, 50)))}:
            if index.null_counts is not None and index.null_pages[page]:
                continue
            index.null_pages[page] = True
            index.min_values[page] = index.max_values[page] = rng.choice((b"", b"\0"))
            nulls(index, page)

    return lie


def _set_count(count: int) -> Callable[[Any, int], object]:
    def change(index: Any, page: int) -> None:
        if index.null_counts is not None:
            index.null_counts[page] = count

    return change


def _drop_counts(index: Any, page: int) -> None:
    index.null_counts = None


def _unflag(rng: random.Random, index: Any, offsets: Any, chunk: ThriftStruct) -> None:
    for page, empty in enumerate(index.null_pages):
        if empty:
            index.null_pages[page] = False


def _swap_bounds(rng: random.Random, index: Any, offsets: Any, chunk: ThriftStruct) -> None:
    index.min_values, index.max_values = index.max_values, index.min_values


def _empty_bounds(rng: random.Random, index: Any, offsets: Any, chunk: ThriftStruct) -> None:
    page = _page(rng, index)
    index.min_values[page] = index.max_values[page] = b""


def _claim_order(order: int) -> Lie:
    def lie(rng: random.Random, index: Any, offsets: Any, chunk: ThriftStruct) -> None:
        index.boundary_order = order

    return lie


def _shorten(name: str) -> Lie:
    def lie(rng: random.Random, index: Any, offsets: Any, chunk: ThriftStruct) -> None:
        owner = offsets if name == "page_locations" else index
        entries = getattr(owner, name)
        if entries:
            del entries[rng.randrange(len(entries))]

    return lie


def _move_row(rng: random.Random, index: Any, offsets: Any, chunk: ThriftStruct) -> None:
    """Let a page begin in the middle of another one."""
    locations = offsets.page_locations
    if len(locations) > 2:
        page = rng.randrange(1, len(locations) - 1)
        locations[page].first_row_index += rng.choice((-1, 1, 7))


def _reverse_rows(rng: random.Random, index: Any, offsets: Any, chunk: ThriftStruct) -> None:
    rows = [location.first_row_index for location in offsets.page_locations]
    for location, row in zip(offsets.page_locations, reversed(rows), strict=True):
        location.first_row_index = row


def _move_page(rng: random.Random, index: Any, offsets: Any, chunk: ThriftStruct) -> None:
    rng.choice(offsets.page_locations).offset += rng.choice((-3, 1, 1 << 40))


def _move_part(name: str, distance: int) -> Lie:
    def lie(rng: random.Random, index: Any, offsets: Any, chunk: ThriftStruct) -> None:
        setattr(chunk, f"{name}_offset", getattr(chunk, f"{name}_offset") + distance)

    return lie


def _set_length(name: str, length: int) -> Lie:
    def lie(rng: random.Random, index: Any, offsets: Any, chunk: ThriftStruct) -> None:
        setattr(chunk, f"{name}_length", length)

    return lie


LIES: dict[str, Lie] = {
    "null pages, no nulls": _flag(_set_count(0)),
    "null pages, unknown nulls": _flag(_set_count(-1)),
    "null pages, a null": _flag(_set_count(1)),
    "null pages, too many nulls": _flag(_set_count(1 << 40)),
    "null pages, no counts": _flag(_drop_counts),
    "null pages are not flagged": _unflag,
    "bounds exchanged": _swap_bounds,
    "bounds are empty": _empty_bounds,
    "ascending": _claim_order(1),
    "descending": _claim_order(2),
    "a flag less": _shorten("null_pages"),
    "a minimum less": _shorten("min_values"),
    "a maximum less": _shorten("max_values"),
    "a count less": _shorten("null_counts"),
    "a page less": _shorten("page_locations"),
    "a row later": _move_row,
    "rows backwards": _reverse_rows,
    "a page elsewhere": _move_page,
    "column index outside": _move_part("column_index", 1 << 40),
    "column index in pages": _move_part("column_index", -200),
    "offset index outside": _move_part("offset_index", 1 << 40),
    "offset index of another": _move_part("offset_index", -40),
    "column index cut": _set_length("column_index", 9),
    "offset index cut": _set_length("offset_index", 3),
    "no length": _set_length("column_index", 0),
}


def lie_about_pages(plain: bytes, names: list[str], rng: random.Random) -> bytes:
    """Return a plaintext file whose columns' indexes lie in some ways, written anew at its end."""
    body, footer, magic = forging.split_tail(plain)
    out, metadata = bytearray(body), decode("FileMetaData", footer)[0]
    for row_group in metadata.row_groups:
        for chunk in row_group.columns:
            if chunk.column_index_offset is None:
                continue
            index, _ = decode("ColumnIndex", body, chunk.column_index_offset)
            offsets, _ = decode("OffsetIndex", body, chunk.offset_index_offset)
            places = [lie for lie in names if lie.startswith(("column", "offset", "no length"))]
            others = [lie for lie in dict.fromkeys(names) if lie not in places]
            for name in sorted(others, key=lambda lie: lie.endswith(" less")):  # shortened last
                LIES[name](rng, index, offsets, chunk)
            for part, struct in (("column_index", index), ("offset_index", offsets)):
                data = encode(struct)
                setattr(chunk, f"{part}_offset", len(out))
                setattr(chunk, f"{part}_length", len(data))
                out += data
            for name in places:
                LIES[name](rng, index, offsets, chunk)
    return forging.join_tail(bytes(out), encode(metadata), magic)

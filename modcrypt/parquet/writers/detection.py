"""Find writers' bugs in a file, by the evidence in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, Literal, TypeAlias

from modcrypt.errors import FormatError
from modcrypt.io.sources import Source
from modcrypt.parquet.crypto.chunk_opening import Chunk
from modcrypt.parquet.crypto.footer import Footer
from modcrypt.parquet.writers import (
    footer_detectors,
    page_detectors,
    statistics_detectors,
    type_detectors,
)
from modcrypt.parquet.writers.plain_view import PlainView
from modcrypt.parquet.writers.quirk import FoundQuirk, Place, load_quirks

FileDetector: TypeAlias = Callable[[PlainView], Iterator[Place]]
"""A function that yields where a file has a bug."""

ChunkDetector: TypeAlias = Callable[[PlainView, Chunk], Iterator[str]]
"""A function that yields details for a chunk that has a bug."""

Depth: TypeAlias = Literal["footer", "indexes", "pages"]
"""How much of a file is read: its footer alone, indexes and bloom filters as well, or pages too."""

DEPTHS: Final[tuple[Depth, ...]] = ("footer", "indexes", "pages")

_FILE: Final[dict[str, FileDetector]] = {
    "empty-thrift-lists": footer_detectors.empty_lists,
    "no-rows-counted": footer_detectors.no_rows_counted,
    "other-field-type": footer_detectors.other_field_type,
    "negative-field-ids": footer_detectors.negative_field_ids,
    "no-columns": footer_detectors.no_columns,
    "parts-beyond-the-file": footer_detectors.parts_beyond_the_file,
    "row-group-ordinals": footer_detectors.row_group_ordinals,
    "row-group-offset": footer_detectors.row_group_offset,
    "no-row-group-size": footer_detectors.no_row_group_size,
    "no-column-orders": statistics_detectors.no_column_orders,
    "empty-groups": type_detectors.empty_groups,
    "no-repetition-type": type_detectors.no_repetition_type,
    "two-level-lists": type_detectors.two_level_lists,
    "unannotated-lists": type_detectors.unannotated_lists,
    "optional-map-keys": type_detectors.optional_map_keys,
    "map-key-value": type_detectors.map_key_value,
}
"""Detectors that look at a footer as a whole, by the name of the bug."""

_CHUNK: Final[dict[Depth, dict[str, ChunkDetector]]] = {
    "footer": {
        "file-offset": footer_detectors.file_offset,
        "data-offset-at-dictionary": footer_detectors.data_offset_at_dictionary,
        "zero-dictionary-offset": footer_detectors.zero_dictionary_offset,
        "no-bloom-length": footer_detectors.no_bloom_length,
        "nan-statistics": statistics_detectors.nan_statistics,
        "zero-bounds": statistics_detectors.zero_bounds,
        "bounds-of-another-size": statistics_detectors.bounds_of_another_size,
        "crossed-bounds": statistics_detectors.crossed_bounds,
        "bounds-of-nulls": statistics_detectors.bounds_of_nulls,
        "deprecated-bounds": statistics_detectors.deprecated_bounds,
        "binary-bounds-of-mr": statistics_detectors.binary_bounds_of_mr,
        "int96-bounds": statistics_detectors.int96_bounds,
        "interval-bounds": statistics_detectors.interval_bounds,
        "zero-distinct-count": statistics_detectors.zero_distinct_count,
        "too-many-nulls": statistics_detectors.too_many_nulls,
        "dictionary-null-counts": statistics_detectors.dictionary_null_counts,
        "struct-null-counts": statistics_detectors.struct_null_counts,
        "int96-timestamps": type_detectors.int96_timestamps,
        "unmarked-strings": type_detectors.unmarked_strings,
        "julian-dates": type_detectors.julian_dates,
        "int128": type_detectors.int128,
        "delta-byte-arrays": page_detectors.delta_byte_arrays,
    },
    "indexes": {
        "metadata-copies": footer_detectors.metadata_copies,
        "null-pages": statistics_detectors.null_pages,
        "null-pages-java": statistics_detectors.null_pages_java,
        "nan-bounds": statistics_detectors.nan_bounds,
        "string-bounds": statistics_detectors.string_bounds,
        "categorical-bounds": statistics_detectors.categorical_bounds,
        "negative-null-counts": statistics_detectors.negative_null_counts,
        "page-rows": statistics_detectors.page_rows,
        "no-null-pages": statistics_detectors.no_null_pages,
        "no-bloom-algorithm": statistics_detectors.no_bloom_algorithm,
    },
    "pages": {
        "index-page-sizes": statistics_detectors.index_page_sizes,
        "no-dictionary-offset": footer_detectors.no_dictionary_offset,
        "data-offset-too-low": footer_detectors.data_offset_too_low,
        "short-chunks": footer_detectors.short_chunks,
        "claimed-dictionary": footer_detectors.claimed_dictionary,
        "rows-of-v2": page_detectors.rows_of_v2,
        "v2-not-compressed": page_detectors.v2_not_compressed,
        "empty-compressed-values": page_detectors.empty_compressed_values,
        "single-list-rows": page_detectors.single_list_rows,
        "bit-packed-levels": page_detectors.bit_packed_levels,
        "gzip-members": page_detectors.gzip_members,
        "lz4-hadoop": page_detectors.lz4_hadoop,
        "lz4-bare": page_detectors.lz4_bare,
        "wide-deltas": page_detectors.wide_deltas,
    },
}
"""Detectors that look at one chunk after the other, by what they read and the name of the bug."""


def find_places(view: PlainView, depth: Depth = "pages") -> dict[str, list[Place]]:
    """Return where a file has which bug, in the order of the table.

    A detector ends where the file is damaged.
    """
    found: dict[str, list[Place]] = {}
    for name, of_file in _FILE.items():
        try:
            found.setdefault(name, []).extend(of_file(view))
        except FormatError:
            continue
    detectors: dict[str, ChunkDetector] = {}
    for reached in DEPTHS[: DEPTHS.index(depth) + 1]:
        detectors |= _CHUNK[reached]
    for chunk in view.chunks:
        for name, of_chunk in detectors.items():
            try:
                details = list(of_chunk(view, chunk))
            except FormatError:
                continue
            where = chunk.row_group, chunk.column, chunk.path
            found.setdefault(name, []).extend(Place(*where, detail) for detail in details)
    order = load_quirks() if any(found.values()) else ()  # reading the table takes longer
    return {name: places for name in order if (places := found.get(name))}


def find_plan_quirks(
    source: Source, footer: Footer, chunks: Iterable[Chunk], depth: Depth
) -> tuple[FoundQuirk, ...]:
    """Return the writers' bugs in an open file: of an encrypted one, in what keys have opened."""
    if footer.metadata is None:
        return ()
    try:
        if footer.encrypted:
            return find_quirks(PlainView.of_opened(footer.metadata, chunks), "footer")
        return find_quirks(PlainView.of_footer(source, footer), depth)
    except FormatError:
        return ()


def find_quirks(view: PlainView, depth: Depth = "pages") -> tuple[FoundQuirk, ...]:
    """Return the writers' bugs in a file."""
    found = find_places(view, depth)
    return tuple(FoundQuirk.of(load_quirks()[name], places) for name, places in found.items())

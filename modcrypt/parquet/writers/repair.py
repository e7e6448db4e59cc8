"""Repair what misleads other readers in the metadata of a plaintext file that is encrypted.

Bounds, counts and indexes that may be wrong are dropped, because readers do without them. Only
metadata changes: pages stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from modcrypt.errors import FormatError
from modcrypt.io.sources import Source
from modcrypt.parquet.crypto.footer import Footer
from modcrypt.parquet.format.idl import ThriftStruct, copy
from modcrypt.parquet.format.modules import Part, drop_part
from modcrypt.parquet.format.structs import ColumnChunk
from modcrypt.parquet.writers.detection import find_places
from modcrypt.parquet.writers.footer_detectors import missing_bytes
from modcrypt.parquet.writers.plain_view import PlainView
from modcrypt.parquet.writers.quirk import FoundQuirk, Place, load_quirks
from modcrypt.parquet.writers.statistics_detectors import zero_of


def repair_metadata(source: Source, metadata: ThriftStruct) -> tuple[FoundQuirk, ...]:
    """Repair the metadata of a source in place, and return what was repaired.

    Raise FormatError if the file is not Parquet, or its footer is damaged.
    """
    view, table = PlainView.of(source), load_quirks()
    mended: dict[str, list[Place]] = {}
    for name, places in find_places(view).items():
        if table[name].mend:
            mended[name] = places
            for place in places:
                MENDS[table[name].mend](metadata, view, place)
    return tuple(FoundQuirk.of(table[name], places) for name, places in mended.items())


def count_forgotten_headers(source: Source, footer: Footer) -> None:
    """Add the header of the dictionary page to the size of each chunk that lacks it (PARQUET-816).

    The footer of the plaintext source, whose structure was checked, is changed.
    """
    view = PlainView.of_footer(source, footer)
    for chunk in view.chunks:
        missing = missing_bytes(view, chunk)
        chunk.metadata.total_compressed_size += missing
        chunk.metadata.total_uncompressed_size += missing


def _chunk_at(metadata: ThriftStruct, place: Place) -> ColumnChunk:
    chunk: ColumnChunk = metadata.row_groups[place.row_group].columns[place.column]
    return chunk


_BOUNDS: Final = (
    "min", "max", "min_value", "max_value", "is_min_value_exact", "is_max_value_exact"
)  # fmt: skip


def _drop(
    metadata: ThriftStruct, _: PlainView, place: Place, *, names: Sequence[str], index: bool = False
) -> None:
    """Remove members of a chunk's statistics; with `index`, its column index, too."""
    chunk = _chunk_at(metadata, place)
    if index:
        drop_part(chunk, Part.COLUMN_INDEX)
    md = chunk.meta_data
    try:
        statistics = md.statistics
    except FormatError:
        return
    if statistics is None:
        return
    changed = copy(statistics)
    for name in names:
        setattr(changed, name, None)
    md.statistics = changed


def _correct_zeros(metadata: ThriftStruct, view: PlainView, place: Place) -> None:
    """Let the bounds include the zeros of both signs."""
    md = _chunk_at(metadata, place).meta_data
    element = next(c.element for c in view.chunks if c.column == place.column)
    changed = copy(md.statistics)
    for name, wrong in (("min_value", 1), ("min", 1), ("max_value", -1), ("max", -1)):
        if getattr(changed, name) == zero_of(element, wrong):
            setattr(changed, name, zero_of(element, -wrong))
    md.statistics = changed


def _correct_chunk_size(metadata: ThriftStruct, view: PlainView, place: Place) -> None:
    """Add the header of the dictionary page to the sizes of a chunk."""
    where = place.row_group, place.column
    chunk = next(c for c in view.chunks if (c.row_group, c.column) == where)
    md, missing = _chunk_at(metadata, place).meta_data, missing_bytes(view, chunk)
    # Encryption may have corrected them already, by the version of the writer.
    md.total_compressed_size = chunk.metadata.total_compressed_size + missing
    md.total_uncompressed_size = chunk.metadata.total_uncompressed_size + missing


def _set_row_group_size(metadata: ThriftStruct, _: PlainView, place: Place) -> None:
    row_group = metadata.row_groups[place.row_group]
    sizes = (chunk.meta_data.total_uncompressed_size for chunk in row_group.columns)
    row_group.total_byte_size = sum(sizes)


def _set_required(metadata: ThriftStruct, _: PlainView, __: Place) -> None:
    """Mark all elements without a repetition type as required, as readers take them."""
    schema = [metadata.schema[0]]
    for element in metadata.schema[1:]:
        changed = element
        if element.repetition_type is None:
            changed = copy(element)
            changed.repetition_type = 0
        schema.append(changed)
    metadata.schema = schema


Mend = Callable[[ThriftStruct, PlainView, Place], None]

MENDS: Final[dict[str, Mend]] = {
    "drop_bounds": partial(_drop, names=_BOUNDS),
    "drop_null_count": partial(_drop, names=["null_count"]),
    "drop_bounds_and_nulls": partial(_drop, names=[*_BOUNDS, "null_count"]),
    "drop_distinct_count": partial(_drop, names=["distinct_count"]),
    # Either the bounds or the index may be wrong.
    "drop_bounds_and_index": partial(_drop, names=[*_BOUNDS, "null_count"], index=True),
    "correct_zeros": _correct_zeros,
    "correct_chunk_size": _correct_chunk_size,
    "set_row_group_size": _set_row_group_size,
    "set_required": _set_required,
}
"""Functions that repair one place of a bug, by the name that the table gives."""

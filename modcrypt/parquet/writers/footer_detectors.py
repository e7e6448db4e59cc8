"""Detectors of bugs in footers: offsets, sizes, counts and the spelling of Thrift."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from modcrypt.errors import FormatError
from modcrypt.parquet.crypto.chunk_opening import Chunk
from modcrypt.parquet.format.idl import (
    ThriftStruct,
    decode,
    encode,
    has_foreign_types,
    unknown_fields,
)
from modcrypt.parquet.format.modules import Part, chunk_start, names_dictionary
from modcrypt.parquet.writers.plain_view import PlainView
from modcrypt.parquet.writers.quirk import Place

MAX_COPY = 1 << 20
"""Longest copy of a chunk's metadata that is looked at, in bytes."""

_SMALLEST_COPY = 8  # number of bytes between parts that hold no copy: some writers align parts


def empty_lists(view: PlainView) -> Iterator[Place]:
    """Find empty lists whose elements have no type: only the type differs from our spelling."""
    if not view.tail:
        return
    spelt: bytes = encode(view.metadata)
    if len(spelt) != len(view.tail) or spelt == view.tail:
        return
    pairs = [(old, new) for old, new in zip(view.tail, spelt, strict=True) if old != new]
    if all(old == 0 and new < 16 for old, new in pairs):
        yield Place(detail=f"{len(pairs)} lists without a type")


def no_rows_counted(view: PlainView) -> Iterator[Place]:
    """Find a footer that counts no rows, although row groups have some."""
    rows = sum(row_group.num_rows for row_group in view.metadata.row_groups)
    if rows and not view.metadata.num_rows:
        yield Place(detail=f"0 rows instead of {rows}")


def _all_structs(view: PlainView) -> Iterator[ThriftStruct]:
    yield view.metadata
    yield from view.metadata.row_groups
    for chunk in view.chunks:
        yield from (chunk.struct, chunk.metadata)


def other_field_type(view: PlainView) -> Iterator[Place]:
    """Find fields of another type than the format gives their numbers."""
    if number := sum(map(has_foreign_types, _all_structs(view))):
        yield Place(detail=f"in {number} structs")


def negative_field_ids(view: PlainView) -> Iterator[Place]:
    """Find fields with negative numbers."""
    if number := sum(field_id < 0 for _, field_id in unknown_fields(view.metadata)):
        yield Place(detail=f"{number} fields")


def no_columns(view: PlainView) -> Iterator[Place]:
    """Find a file without columns."""
    if not view.leaves:
        yield Place()


def parts_beyond_the_file(view: PlainView) -> Iterator[Place]:
    """Find indexes and bloom filters at impossible places."""
    return (Place(detail=message) for message in view.misplaced)


def row_group_ordinals(view: PlainView) -> Iterator[Place]:
    """Find row groups that are not at the place that their ordinals state."""
    for r, row_group in enumerate(view.metadata.row_groups):
        if row_group.ordinal not in (None, r):
            yield Place(r, detail=f"ordinal {row_group.ordinal}")


def row_group_offset(view: PlainView) -> Iterator[Place]:
    """Find row groups whose offset is not that of their first page."""
    starts: dict[int, int] = {}
    for (part, r, _), span in view.spans.items():
        if part is Part.PAGES:
            starts[r] = min(span.start, starts.get(r, span.start))
    for r, row_group in enumerate(view.metadata.row_groups):
        if r in starts and row_group.file_offset not in (None, 0, starts[r]):
            yield Place(r, detail=f"{row_group.file_offset} instead of {starts[r]}")


def no_row_group_size(view: PlainView) -> Iterator[Place]:
    """Find row groups of 0 bytes that have pages."""
    sums: Counter[int] = Counter()
    for chunk in view.chunks:
        sums[chunk.row_group] += chunk.metadata.total_uncompressed_size
    for r, row_group in enumerate(view.metadata.row_groups):
        if sums[r] and not row_group.total_byte_size:
            yield Place(r, detail=f"0 instead of {sums[r]} bytes")


def metadata_copies(view: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find a copy of a chunk's metadata, or of all of its footer entry, behind its pages."""
    if (span := view.span(chunk, Part.PAGES)) is None or view.source is None:
        return
    room = view.next_start(span.end) - span.end
    if room <= _SMALLEST_COPY:
        return
    data = view.read(span.end, min(room, MAX_COPY))
    for struct in ("ColumnMetaData", "ColumnChunk"):
        try:
            copy = decode(struct, data)[0]
        except FormatError:
            continue
        metadata = copy.meta_data if struct == "ColumnChunk" else copy
        if metadata is not None and metadata.path_in_schema == chunk.metadata.path_in_schema:
            yield f"at byte {span.end}"
            return


def file_offset(_: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find an offset of a chunk that lies inside it."""
    start, offset = chunk_start(chunk.metadata), chunk.struct.file_offset
    if start < offset < start + chunk.metadata.total_compressed_size:
        yield f"byte {offset} instead of {start}"


def no_dictionary_offset(view: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find a dictionary that the metadata does not mention."""
    if chunk.metadata.dictionary_page_offset is None:
        pages = view.pages(chunk)
        if pages and pages[0].is_dictionary:
            yield f"a dictionary at byte {pages[0].position}"


def data_offset_at_dictionary(_: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find an offset of data pages that is the dictionary's."""
    offset = chunk.metadata.dictionary_page_offset
    if offset and offset == chunk.metadata.data_page_offset:
        yield f"byte {offset}"


def data_offset_too_low(view: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find an offset of data pages that lies inside of the dictionary page."""
    offset, md = chunk.metadata.dictionary_page_offset, chunk.metadata
    if not offset or md.data_page_offset <= offset:
        return
    first = next((page.position for page in view.pages(chunk) if page.is_data), None)
    if first is not None and md.data_page_offset < first:
        yield f"byte {md.data_page_offset} instead of {first}"


def zero_dictionary_offset(_: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find a dictionary offset of 0, which is no place of a page."""
    if chunk.metadata.dictionary_page_offset == 0:
        yield ""


def short_chunks(view: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find chunks whose last page ends behind them, by less than a dictionary's header."""
    if missing := missing_bytes(view, chunk):
        yield f"{missing} bytes missing"


def missing_bytes(view: PlainView, chunk: Chunk) -> int:
    """Return how many bytes of its pages a chunk's size leaves out."""
    span, pages = view.span(chunk, Part.PAGES), view.pages(chunk)
    if span is None or not pages or not pages[0].is_dictionary:
        return 0
    missing = pages[-1].end - span.end
    return missing if 0 < missing <= pages[0].stored else 0


def claimed_dictionary(view: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find encodings that name a dictionary that does not exist."""
    if names_dictionary(chunk.metadata) and (pages := view.pages(chunk)) and pages[0].is_data:
        yield ""


def no_bloom_length(_: PlainView, chunk: Chunk) -> Iterator[str]:
    """Find bloom filters without a length."""
    if (
        chunk.metadata.bloom_filter_offset is not None
        and chunk.metadata.bloom_filter_length is None
    ):
        yield ""

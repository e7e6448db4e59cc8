"""Decrypt the column chunks or pages of a read into a small plaintext Parquet file in memory.

Each chunk is decrypted by one thread, several chunks at once, directly into the buffer that PyArrow
decodes. So no bytes are copied in between, and PyArrow does not call back into Python while it
decodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from modcrypt.errors import FormatError
from modcrypt.io.sources import Source
from modcrypt.io.threads import ThreadPool
from modcrypt.parquet.arrow.decoding import Loaded
from modcrypt.parquet.arrow.page_parts import PageReader, Pages, PartReader
from modcrypt.parquet.arrow.page_sizes import Longest, check_pages
from modcrypt.parquet.arrow.plaintext_parts import make_part_readers
from modcrypt.parquet.convert.plaintext_footer import copy_row_groups, plain_metadata
from modcrypt.parquet.crypto.file_plan import ReadPlan
from modcrypt.parquet.format.framing import MAGIC_PLAINTEXT, MAGIC_SIZE, close_tail
from modcrypt.parquet.format.idl import ThriftStruct, decode, encode, new
from modcrypt.parquet.format.modules import Part

_WORTH_THREADS = 1 << 20  # smallest size in bytes that several threads decrypt

_JOB_BYTES = 1 << 16  # least number of bytes that a thread decrypts before it takes the next job

_MAX_LOCATED_PAGES = 1 << 15
"""Most pages of a chunk that are located by their headers, as many as an encrypted chunk may have:
the headers of a plaintext chunk could be that of a page without a body again and again."""

_Slot: TypeAlias = "tuple[PartReader, int, memoryview]"
"""A part, an offset in the encrypted file, and the memory that receives the bytes from there."""


class _Piece(NamedTuple):
    """The bytes [start, start + size) of a part, and the offset in the new file where they go."""

    part: PartReader
    start: int
    size: int
    to: int


def make_footer_file(metadata: ThriftStruct) -> pa.Buffer:
    """Return a Parquet file that consists of a footer only."""
    return pa.py_buffer(MAGIC_PLAINTEXT + close_tail(encode(metadata), MAGIC_PLAINTEXT))


def load_chunks(source: Source, plan: ReadPlan, pool: ThreadPool | None) -> Loaded:
    """Decrypt the chunks of a plan, in parallel if there is a pool, into a plaintext file."""
    row_groups = copy_row_groups(plan)
    chunks = {
        (r, c): chunk
        for r, row_group in zip(plan.row_groups, row_groups, strict=True)
        for c, chunk in enumerate(row_group.columns)
        if chunk.meta_data is not None
    }
    for chunk in chunks.values():
        _remove_unloaded_parts(chunk)
    at = MAGIC_SIZE
    pieces = []
    spans = [span for span in plan.spans if span.part is Part.PAGES]
    for span, part in zip(spans, make_part_readers(source, plan, spans), strict=True):
        md = chunks[span.row_group, span.column].meta_data
        if md.data_page_offset > 0:  # PyArrow writes offset 0 for the data pages of an empty chunk.
            md.data_page_offset += at - span.start
        if md.dictionary_page_offset:
            md.dictionary_page_offset += at - span.start
        pieces.append(_Piece(part, span.start, span.end - span.start, at))
        at += span.end - span.start
    metadata, nulls = plain_metadata(plan, row_groups, at)
    file = _fill_file(at, pieces, nulls, metadata, pool)
    by_column: dict[int, list[Longest]] = {c: [] for c in plan.footer_leaves}
    view = memoryview(file).cast("B")
    for span, piece in zip(spans, pieces, strict=True):
        md = chunks[span.row_group, span.column].meta_data
        by_column[span.column].append(check_pages(view, piece.to, piece.to + piece.size, md, span))
    longest = [Longest.of_column(parts) for parts in by_column.values()]
    rows = sum(row_group.num_rows for row_group in row_groups)
    return Loaded(file, rows, metadata, longest)


def locate_pages(source: Source, plan: ReadPlan, row_group: int, column: int) -> ThriftStruct:
    """Return the offset index that a chunk without repetition should have, by its page headers.

    Each header is authenticated with its ordinal. Raise FormatError if the data pages do not have
    one value for each row, and ModcryptError as `Pages.iter_headers`.
    """
    place = Part.PAGES, row_group, column
    (span,) = (span for span in plan.spans if (span.part, span.row_group, span.column) == place)
    (part,) = make_part_readers(source, plan, [span])
    locations = []
    rows = 0
    for position, scanned in part.iter_headers() if isinstance(part, Pages) else ():
        header, _ = decode("PageHeader", scanned.raw)
        data_header = header.data_page_header or header.data_page_header_v2
        if data_header is not None:
            locations.append(
                new(
                    "PageLocation",
                    offset=position,
                    compressed_page_size=len(scanned.raw) + scanned.compressed_size,
                    first_row_index=rows,
                )
            )
            rows += data_header.num_values
        if len(locations) > _MAX_LOCATED_PAGES:
            raise FormatError(f"{span}: it has more than {_MAX_LOCATED_PAGES} pages")
    if rows != plan.footer.metadata.row_groups[row_group].num_rows:
        raise FormatError(f"{span}: its pages have {rows} values")
    return new("OffsetIndex", page_locations=locations)


def load_pages(
    source: Source, plan: ReadPlan, locations: Sequence[ThriftStruct], pages: Mapping[int, int]
) -> Loaded:
    """Decrypt some data pages of one chunk into a plaintext Parquet file.

    Args:
        plan: Plan for one row group and one column without repetition.
        locations: Page locations of the chunk's offset index.
        pages: Number of rows of each wanted page, by the page's index, in ascending order.
    """
    (span,) = (span for span in plan.spans if span.part is Part.PAGES)
    (part,) = make_part_readers(source, plan, [span])
    (row_group,) = copy_row_groups(plan)
    (chunk,) = (chunk for chunk in row_group.columns if chunk.meta_data is not None)
    md = chunk.meta_data
    borders = [location.offset for location in locations] + [span.end]
    dictionary = borders[0] - span.start  # bytes before the first data page
    in_order = all(a < b for a, b in pairwise(borders))
    if dictionary < 0 or not in_order or bool(dictionary) != bool(md.dictionary_page_offset):
        raise FormatError(f"{span}: the pages of the offset index do not cover the chunk in order")
    if isinstance(part, PageReader):
        part.set_page_starts([span.start, *borders] if dictionary else borders)
    wanted = [(span.start, borders[0]), *((borders[p], borders[p + 1]) for p in pages)]
    pieces: list[_Piece] = []
    places, at = [], MAGIC_SIZE
    for start, end in wanted:
        places.append(at)
        if pieces and pieces[-1].start + pieces[-1].size == start:  # Read neighbours at once.
            pieces[-1] = pieces[-1]._replace(size=end - pieces[-1].start)
        else:
            pieces.append(_Piece(part, start, end - start, at))
        at += end - start
    _remove_unloaded_parts(chunk)
    md.dictionary_page_offset = MAGIC_SIZE if dictionary else None
    md.data_page_offset = MAGIC_SIZE + dictionary
    md.total_compressed_size = at - MAGIC_SIZE
    md.num_values = row_group.num_rows = sum(pages.values())
    metadata, _ = plain_metadata(plan, [row_group], at)
    metadata.num_rows = row_group.num_rows
    file = _fill_file(at, pieces, b"", metadata, None)
    for (place, end), rows in zip(pairwise([*places[1:], at]), pages.values(), strict=True):
        _check_page_rows(f"{span}", bytes(memoryview(file)[place:end]), rows)
    view = memoryview(file).cast("B")
    longest = check_pages(view, MAGIC_SIZE, at, md, span)
    return Loaded(file, metadata.num_rows, metadata, [longest])


def _check_page_rows(where: str, page: bytes, rows: int) -> None:
    """Raise FormatError if a page header contradicts its offset index; PyArrow would not notice."""
    header, _ = decode("PageHeader", page)
    data_header = header.data_page_header or header.data_page_header_v2
    if data_header is None:
        raise FormatError(f"{where}: the offset index points to a page that is not a data page")
    if data_header.num_values != rows:
        count = data_header.num_values
        raise FormatError(f"{where}: a page has {count} values, but the offset index gives {rows}")


def _remove_unloaded_parts(chunk: ThriftStruct) -> None:
    """Remove parts that are not loaded, and statistics, from a chunk's metadata.

    With statistics, PyArrow would prune a second time, and it assumes that bounds cover NaN too.
    """
    chunk.column_index_offset = chunk.column_index_length = None
    chunk.offset_index_offset = chunk.offset_index_length = None
    md = chunk.meta_data
    md.bloom_filter_offset = md.bloom_filter_length = md.index_page_offset = None
    md.statistics = md.size_statistics = None


def _fill_file(
    at: int, pieces: Iterable[_Piece], nulls: bytes, metadata: ThriftStruct, pool: ThreadPool | None
) -> pa.Buffer:
    """Build a file of the pieces up to offset `at`, then the null columns and the footer."""
    tail = nulls + close_tail(encode(metadata), MAGIC_PLAINTEXT)
    # Touching fresh memory takes six times as long in PyArrow's own pool.
    buffer = pa.allocate_buffer(at + len(tail), memory_pool=pa.system_memory_pool())
    out = memoryview(buffer).cast("B")
    out[:MAGIC_SIZE] = MAGIC_PLAINTEXT
    out[at:] = tail
    slots = [(p.part, p.start, out[p.to : p.to + p.size]) for p in pieces]
    if pool is None or at < _WORTH_THREADS:
        _read_slots(slots)
        return buffer
    pool.run_all(_read_slots, _group_slots(slots))
    return buffer


def _group_slots(slots: Iterable[_Slot]) -> Iterator[list[_Slot]]:
    """Group neighbouring slots, so that a job takes much longer than handing it to a thread."""
    job: list[_Slot] = []
    size = 0
    for slot in slots:
        job.append(slot)
        size += len(slot[2])
        if size >= _JOB_BYTES:
            yield job
            job, size = [], 0
    yield job


def _read_slots(slots: Iterable[_Slot]) -> None:
    for part, start, out in slots:
        part.read(start, out)

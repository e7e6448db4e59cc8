"""The chunks, or single pages, that a read needs, as a small plaintext Parquet file in memory.

Chunks are opened side by side, each by one thread, right where PyArrow decodes them: there is no
copy in between, and no call back into Python while it decodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import wait
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa

from modcrypt.errors import FormatError
from modcrypt.io.buffers import Threads
from modcrypt.io.storage import Source
from modcrypt.parquet.arrow.decoding import Loaded
from modcrypt.parquet.arrow.plaintext_parts import PageReader, PartReader, part_readers
from modcrypt.parquet.crypto.file_plan import Plan
from modcrypt.parquet.crypto.page_sizes import Longest, check_pages
from modcrypt.parquet.crypto.plaintext_footer import plain_metadata, selected_row_groups
from modcrypt.parquet.format.framing import MAGIC_PLAINTEXT, MAGIC_SIZE, close_tail
from modcrypt.parquet.format.idl import ThriftStruct, decode, encode
from modcrypt.parquet.format.modules import Part

__all__ = ["footer_alone", "load_chunks", "load_pages"]


_WORTH_THREADS = 1 << 20
"""Bytes from which on several threads open them."""


class _Piece(NamedTuple):
    """The bytes [start, start + size) of a part, and where they go."""

    part: PartReader
    start: int
    size: int
    to: int


def footer_alone(metadata: ThriftStruct) -> pa.Buffer:
    """Give a Parquet file that is a footer and nothing else."""
    return pa.py_buffer(MAGIC_PLAINTEXT + close_tail(encode(metadata), MAGIC_PLAINTEXT))


def load_chunks(source: Source, plan: Plan, pool: Threads | None) -> Loaded:
    """Open the chunks of a plan, by a pool side by side; give a plaintext Parquet file of them.

    Raises:
        ModcryptError: a page does not authenticate or breaks the format.
    """
    row_groups = selected_row_groups(plan)
    chunks = {
        (r, c): chunk
        for r, row_group in zip(plan.row_groups, row_groups, strict=True)
        for c, chunk in enumerate(row_group.columns)
        if chunk.meta_data is not None
    }
    for chunk in chunks.values():
        _forget_parts(chunk)
    at = MAGIC_SIZE
    pieces = []
    spans = [span for span in plan.spans if span.part is Part.PAGES]
    for span, part in zip(spans, part_readers(source, plan, spans), strict=True):
        _move(chunks[span.row_group, span.column], at - span.start)
        pieces.append(_Piece(part, span.start, span.end - span.start, at))
        at += span.end - span.start
    metadata, nulls = plain_metadata(plan, row_groups, at)
    file = _file(at, pieces, nulls, metadata, pool)
    longest, view = dict.fromkeys(plan.shown, Longest()), memoryview(file).cast("B")
    for span, piece in zip(spans, pieces, strict=True):
        md = chunks[span.row_group, span.column].meta_data
        repeated = check_pages(view, piece.to, piece.to + piece.size, md, f"{span}")
        longest[span.column] = longest[span.column].merge(repeated)
    rows = sum(row_group.num_rows for row_group in row_groups)
    return Loaded(file, rows, list(longest.values()))


def load_pages(
    source: Source, plan: Plan, locations: Sequence[ThriftStruct], pages: Mapping[int, int]
) -> Loaded:
    """Open some data pages of one chunk; give a plaintext Parquet file of them.

    Args:
        plan: one row group, and one column without repetition.
        locations: the page locations of the chunk's offset index.
        pages: index of each page wanted, ascending, to its number of rows.

    Raises:
        ModcryptError: a page does not authenticate or breaks the format, or is not what the
            offset index says.
    """
    (span,) = (span for span in plan.spans if span.part is Part.PAGES)
    (part,) = part_readers(source, plan, [span])
    (row_group,) = selected_row_groups(plan)
    (chunk,) = (chunk for chunk in row_group.columns if chunk.meta_data is not None)
    md = chunk.meta_data
    borders = [location.offset for location in locations] + [span.end]
    dictionary = borders[0] - span.start  # bytes before the first data page
    in_order = all(a < b for a, b in pairwise(borders))
    if dictionary < 0 or not in_order or bool(dictionary) != bool(md.dictionary_page_offset):
        raise FormatError(f"{span}: the pages of its offset index don't fill it one after another")
    if isinstance(part, PageReader):
        part.know([span.start, *borders] if dictionary else borders)
    wanted = [(span.start, borders[0]), *((borders[p], borders[p + 1]) for p in pages)]
    pieces: list[_Piece] = []
    places, at = [], MAGIC_SIZE
    for start, end in wanted:
        places.append(at)
        if pieces and pieces[-1].start + pieces[-1].size == start:  # one read for neighbours
            pieces[-1] = pieces[-1]._replace(size=end - pieces[-1].start)
        else:
            pieces.append(_Piece(part, start, end - start, at))
        at += end - start
    _forget_parts(chunk)
    md.dictionary_page_offset = MAGIC_SIZE if dictionary else None
    md.data_page_offset = MAGIC_SIZE + dictionary
    md.total_compressed_size = at - MAGIC_SIZE
    md.num_values = row_group.num_rows = sum(pages.values())
    metadata, _ = plain_metadata(plan, [row_group], at)
    metadata.num_rows = row_group.num_rows
    file = _file(at, pieces, b"", metadata, None)
    for (place, end), rows in zip(pairwise([*places[1:], at]), pages.values(), strict=True):
        _check_rows(f"{span}", bytes(memoryview(file)[place:end]), rows)
    view = memoryview(file).cast("B")
    longest = check_pages(view, MAGIC_SIZE, at, md, f"{span}")
    return Loaded(file, metadata.num_rows, [longest])


def _check_rows(where: str, page: bytes, rows: int) -> None:
    """Hold a page's header against its offset index: PyArrow stops at the rows of the footer."""
    header, _ = decode("PageHeader", page)
    data_header = header.data_page_header or header.data_page_header_v2
    if data_header is None:
        raise FormatError(f"{where}: the offset index names a page that is no data page")
    if data_header.num_values != rows:
        found = data_header.num_values
        raise FormatError(f"{where}: a page of {found} values, by the offset index {rows}")


def _forget_parts(chunk: ThriftStruct) -> None:
    """Take what is not loaded out of a chunk's metadata, and what was judged already.

    PyArrow would prune by the statistics once more, and takes bounds to hold for NaN as well.
    """
    chunk.column_index_offset = chunk.column_index_length = None
    chunk.offset_index_offset = chunk.offset_index_length = None
    md = chunk.meta_data
    md.bloom_filter_offset = md.bloom_filter_length = md.index_page_offset = None
    md.statistics = md.size_statistics = None


def _move(chunk: ThriftStruct, distance: int) -> None:
    md = chunk.meta_data
    if md.data_page_offset > 0:  # PyArrow gives the data pages of an empty chunk the offset 0
        md.data_page_offset += distance
    if md.dictionary_page_offset:
        md.dictionary_page_offset += distance


def _file(
    at: int, pieces: Iterable[_Piece], nulls: bytes, metadata: ThriftStruct, pool: Threads | None
) -> pa.Buffer:
    """Fill a file: the pieces up to `at`, then null columns and footer."""
    tail = nulls + close_tail(encode(metadata), MAGIC_PLAINTEXT)
    # Not from PyArrow's pool: it takes six times as long to touch what it has not had before.
    buffer = pa.allocate_buffer(at + len(tail), memory_pool=pa.system_memory_pool())
    out = memoryview(buffer).cast("B")
    out[:MAGIC_SIZE] = MAGIC_PLAINTEXT
    out[at:] = tail
    slots = [(p.part, p.start, out[p.to : p.to + p.size]) for p in pieces]
    if pool is None or at < _WORTH_THREADS:
        for part, start, slot in slots:
            part.read(start, slot)
        return buffer
    work = [pool.submit(part.read, start, slot) for part, start, slot in slots]
    wait(work)  # before an error of one is raised: they write into the same memory
    for done in work:
        done.result()
    return buffer

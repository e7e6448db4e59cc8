"""Decrypt the column chunks or pages of a read into a small plaintext Parquet file in memory.

Each chunk is decrypted by one thread, several chunks at once, directly into the buffer that PyArrow
decodes. So no bytes are copied in between, and PyArrow does not call back into Python while it
decodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from modcrypt.errors import FormatError
from modcrypt.io.buffers import open_window
from modcrypt.io.sources import Source
from modcrypt.io.threads import ThreadPool
from modcrypt.parquet.arrow.decoding import Loaded
from modcrypt.parquet.arrow.padded_pages import open_chunk
from modcrypt.parquet.arrow.page_parts import PageReader, Pages, PlainPages, Windows
from modcrypt.parquet.arrow.page_sizes import (
    NO_LONG_VALUES,
    CountedPages,
    Longest,
    PageSizes,
    add_pages,
    check_pages,
)
from modcrypt.parquet.arrow.plaintext_parts import make_part_readers
from modcrypt.parquet.convert.plaintext_footer import copy_row_groups, plain_metadata
from modcrypt.parquet.crypto.ciphers import FileCipher
from modcrypt.parquet.crypto.encrypted_pages import Page
from modcrypt.parquet.crypto.file_plan import ReadPlan
from modcrypt.parquet.format.framing import MAGIC_PLAINTEXT, MAGIC_SIZE, close_tail
from modcrypt.parquet.format.idl import ThriftStruct, decode, encode, new
from modcrypt.parquet.format.modules import Part, Span
from modcrypt.parquet.format.page_header import page_compression
from modcrypt.parquet.format.structs import ColumnChunk, ColumnMetaData
from modcrypt.runtime.collector import paused_collector

if TYPE_CHECKING:
    from mypy_extensions import i64

_WORTH_THREADS = 1 << 20  # smallest size in bytes that several threads decrypt

_SMALL_CHUNK = 1 << 12
"""Mean size in bytes of chunks that one thread decrypts: their AES takes a microsecond of ten, and
for the rest threads would wait for each other."""

_JOB_BYTES = 1 << 16  # least number of bytes that a thread decrypts before it takes the next job

_MAX_LOCATED_PAGES = 1 << 15
"""Most pages of a chunk that are located by their headers, as many as an encrypted chunk may have:
the headers of a plaintext chunk could be that of a page without a body again and again."""

MAX_JOINED: Final = 1 << 20
"""Most bytes that the pages of a file declare which is joined with others, and most before the last
file is added."""

_PAGES: Final = Part.PAGES  # reading it of the enum takes longer than a comparison


class _Piece:
    """A chunk to decrypt, with its new metadata, and the offset in the new file where it goes."""

    __slots__ = ("at", "expanded", "longest", "md", "span", "values")

    def __init__(self, span: Span, md: ColumnMetaData, at: i64) -> None:
        self.span, self.md = span, md
        self.at: i64 = at
        self.longest: Longest = NO_LONG_VALUES  # once it is decrypted
        self.values: i64 = -1  # those of `CountedPages`, if they were counted
        self.expanded: i64 = 0


def make_footer_file(metadata: ThriftStruct) -> pa.Buffer:
    """Return a Parquet file that consists of a footer only."""
    return pa.py_buffer(MAGIC_PLAINTEXT + close_tail(encode(metadata), MAGIC_PLAINTEXT))


@paused_collector()
def load_chunks(source: Source, plan: ReadPlan, pool: ThreadPool | None) -> Loaded:
    """Decrypt the chunks of a plan, in parallel if there is a pool, into a plaintext file."""
    row_groups = _describe_row_groups(plan)
    pieces, at = _place_pieces(plan, row_groups, MAGIC_SIZE)
    metadata, nulls = plain_metadata(plan, row_groups, at)
    file, out = _make_file(at, nulls, metadata)
    if pool is None or at < max(_WORTH_THREADS, _SMALL_CHUNK * len(pieces)):
        _open_pieces(source, plan, out, pieces)
    else:
        pool.run_all(partial(_open_pieces, source, plan, out), _group_pieces(pieces))
    by_column: dict[int, list[Longest]] = {c: [] for c in plan.footer_leaves}
    for piece in pieces:
        by_column[piece.span.column].append(piece.longest)
    rows = sum(row_group.num_rows for row_group in row_groups)
    return Loaded(file, rows, metadata, list(map(Longest.of_column, by_column.values())))


def _place_pieces(
    plan: ReadPlan, row_groups: list[ThriftStruct], at: i64
) -> tuple[list[_Piece], i64]:
    """Return the chunks of a plan and where they end, if they begin at `at` in the new file.

    Their metadata, which is in `row_groups`, get the new offsets.
    """
    columns: dict[int, list[ColumnChunk]] = {
        r: row_group.columns for r, row_group in zip(plan.row_groups, row_groups, strict=True)
    }
    pieces: list[_Piece] = []
    for span in plan.spans:
        start, end, part, r, c = span
        if part is not _PAGES:
            continue
        md: ColumnMetaData = columns[r][c].meta_data
        if md.data_page_offset > 0:  # PyArrow writes offset 0 for the data pages of an empty chunk.
            md.data_page_offset += at - start
        if md.dictionary_page_offset:
            md.dictionary_page_offset += at - start
        pieces.append(_Piece(span, md, at))
        at += end - start
    return pieces, at


class JoinedFile:
    """A plaintext file with the row groups of several small files, whose schemas are equal.

    Their columns are not nested, so that every page has a value for each of its rows.
    """

    def __init__(self) -> None:
        self._parts: list[bytes | bytearray] = [MAGIC_PLAINTEXT]
        self._metadata: ThriftStruct | None = None
        self._longest: list[list[Longest]] = []
        self.size: i64 = MAGIC_SIZE  # number of bytes without a footer
        self.expanded: i64 = 0  # number of bytes that the pages declare, decrypted and decompressed
        self.rows: i64 = 0  # number of rows

    @paused_collector()
    def add(self, source: Source, plan: ReadPlan) -> bool:
        """Decrypt the chunks of a file.

        Return False, and add nothing, if its pages declare more than `MAX_JOINED` bytes, or if
        those of a chunk do not declare a value for each row: PyArrow would take the values of
        another file.
        """
        row_groups = _describe_row_groups(plan)
        pieces, end = _place_pieces(plan, row_groups, self.size)
        metadata, _ = plain_metadata(plan, row_groups, end)
        out = bytearray(end - self.size)
        for piece in pieces:
            piece.at -= self.size
        _open_pieces(source, plan, memoryview(out), pieces, counted=True)
        by_row_group = dict(zip(plan.row_groups, row_groups, strict=True))
        by_column: dict[int, list[Longest]] = {c: [] for c in plan.footer_leaves}
        expanded = sum([piece.expanded for piece in pieces])
        if expanded > MAX_JOINED or len(pieces) != len(row_groups) * len(by_column):
            return False
        for piece in pieces:
            rows = by_row_group[piece.span.row_group].num_rows
            if not piece.values == piece.md.num_values == rows:
                return False
            by_column[piece.span.column].append(piece.longest)
        if self._metadata is None:
            self._metadata, self._longest = metadata, [[] for _ in by_column]
        else:
            self._metadata.row_groups += metadata.row_groups
        for column, longest in zip(self._longest, by_column.values(), strict=True):
            column += [_move_longest(each, self.size) for each in longest]
        self._parts.append(out)
        self.size = end
        self.expanded += expanded
        self.rows += sum([row_group.num_rows for row_group in row_groups])
        return True

    def load(self) -> Loaded:
        """Return the file with its footer."""
        metadata = self._metadata
        assert metadata is not None
        metadata.num_rows = self.rows
        tail = close_tail(encode(metadata), MAGIC_PLAINTEXT)
        data = pa.py_buffer(b"".join([*self._parts, tail]))
        return Loaded(data, self.rows, metadata, list(map(Longest.of_column, self._longest)))


def _move_longest(longest: Longest, by: i64) -> Longest:
    if not longest.dictionaries:
        return longest
    moved = [page._replace(start=page.start + by) for page in longest.dictionaries]
    return longest._replace(dictionaries=moved)


def _describe_row_groups(plan: ReadPlan) -> list[ThriftStruct]:
    """Return the wanted row groups with what PyArrow needs to decode their pages."""
    # With statistics, it would prune a second time, and it assumes that bounds cover NaN too.
    row_groups = copy_row_groups(plan, share_chunks=True)
    for row_group in row_groups:
        row_group.columns = [describe_pages(chunk) for chunk in row_group.columns]
    return row_groups


def describe_pages(chunk: ColumnChunk) -> ColumnChunk:
    """Return a chunk without what `_describe_row_groups` leaves out."""
    of: ColumnMetaData | None = chunk.meta_data
    if of is None:  # it is left out
        return chunk
    md = ColumnMetaData()
    md.type, md.encodings, md.path_in_schema = of.type, of.encodings, of.path_in_schema
    md.codec, md.num_values, md.encoding_stats = of.codec, of.num_values, of.encoding_stats
    md.total_uncompressed_size = of.total_uncompressed_size
    md.total_compressed_size = of.total_compressed_size
    md.data_page_offset, md.dictionary_page_offset = of.data_page_offset, of.dictionary_page_offset
    described = ColumnChunk()
    described.file_offset, described.meta_data = chunk.file_offset, md
    return described


def _open_pieces(
    source: Source, plan: ReadPlan, out: memoryview, pieces: Sequence[_Piece], counted: bool = False
) -> None:
    """Decrypt some chunks, in file order, with one window and one cipher for each key.

    `counted` also counts the values that their pages declare.
    """
    window, file = open_window(source), None
    created_by: bytes | None = plan.footer.metadata.created_by
    codec: i64 = -1
    compression: i64 = -1
    if pieces and pieces[-1].span.end - pieces[0].span.start == _measure(pieces):  # without gaps
        window.ahead = pieces[-1].span.end
    for piece in pieces:
        start, end, _, r, c = piece.span
        cipher = plan.ciphers.get((r, c))
        counts = CountedPages(piece.md, piece.span) if counted else None
        sizes: PageSizes = counts or PageSizes(piece.md, piece.span)
        if cipher is None:
            after = piece.at + end - start
            PlainPages(Windows(source), piece.span).read(start, out[piece.at : after])
            add_pages(sizes, out, piece.at, after, piece.md)
        else:
            file = file or FileCipher(cipher.file.file_aad, cipher.file.algorithm)
            first = Page(cipher.copy_for_thread(file), bool(piece.md.dictionary_page_offset), 0)
            if piece.md.codec != codec:
                codec = piece.md.codec
                compression = page_compression(piece.md.codec, created_by)
            open_chunk(window, start, end, first, compression, out, piece.at, sizes)
        piece.longest = sizes.longest
        if counts is not None:
            piece.values, piece.expanded = counts.values, counts.expanded


def measure_chunks(
    chunks: Mapping[tuple[int, int], ColumnChunk], row_groups: Iterable[int],
    columns: Iterable[int],
) -> dict[int, int]:  # fmt: skip
    """Return the size in bytes of some columns in each of some row groups."""
    sizes: dict[int, int] = dict.fromkeys(row_groups, 0)
    wanted = frozenset(columns)
    for (r, c), chunk in chunks.items():
        if c in wanted and r in sizes:
            md: ColumnMetaData = chunk.meta_data
            sizes[r] += md.total_compressed_size
    return sizes


def _measure(pieces: Iterable[_Piece]) -> int:
    return sum([piece.span.end - piece.span.start for piece in pieces])


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
        pages: Number of rows of each wanted page, by the page's index, in ascending order.
    """
    (span,) = (span for span in plan.spans if span.part is Part.PAGES)
    (part,) = make_part_readers(source, plan, [span])
    (row_group,) = _describe_row_groups(plan)
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
    reads: list[tuple[int, int, int]] = []  # start and end, and where they go in the new file
    places, at = [], MAGIC_SIZE
    for start, end in wanted:
        places.append(at)
        if reads and reads[-1][1] == start:  # Read neighbours at once.
            reads[-1] = (reads[-1][0], end, reads[-1][2])
        else:
            reads.append((start, end, at))
        at += end - start
    md.dictionary_page_offset = MAGIC_SIZE if dictionary else None
    md.data_page_offset = MAGIC_SIZE + dictionary
    md.total_compressed_size = at - MAGIC_SIZE
    md.num_values = row_group.num_rows = sum(pages.values())
    metadata, _ = plain_metadata(plan, [row_group], at)
    metadata.num_rows = row_group.num_rows
    file, view = _make_file(at, b"", metadata)
    for start, end, to in reads:
        part.read(start, view[to : to + end - start])
    for (place, end), rows in zip(pairwise([*places[1:], at]), pages.values(), strict=True):
        _check_page_rows(f"{span}", bytes(view[place:end]), rows)
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


def _make_file(at: int, nulls: bytes, metadata: ThriftStruct) -> tuple[pa.Buffer, memoryview]:
    """Return a file that lacks its pages, up to offset `at`, and a view of it."""
    # The null columns and the footer follow.
    tail = nulls + close_tail(encode(metadata), MAGIC_PLAINTEXT)
    # Touching fresh memory takes six times as long in PyArrow's own pool.
    buffer = pa.allocate_buffer(at + len(tail), memory_pool=pa.system_memory_pool())
    out = memoryview(buffer).cast("B")
    out[:MAGIC_SIZE] = MAGIC_PLAINTEXT
    out[at:] = tail
    return buffer, out


def _group_pieces(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    """Group neighbouring chunks, so that a job takes much longer than handing it to a thread."""
    job: list[_Piece] = []
    for piece in pieces:
        job.append(piece)
        if piece.at + _measure([piece]) - job[0].at >= _JOB_BYTES:
            yield job
            job = []
    yield job

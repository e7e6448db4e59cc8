"""Open data files of a table: Parquet (PME) page by page while reading, Avro (AGS1) in row lots.

Both yield batches of columns with field ids, in the form of the file; `schema_projection` converts
them to rows of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO, Any, NamedTuple, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from modcrypt.errors import FormatError, UnsupportedFormatError
from modcrypt.iceberg.format.avro_files import AvroRows, open_avro
from modcrypt.iceberg.format.avro_rows import plan_columns
from modcrypt.iceberg.format.encrypted_files import decryption_properties
from modcrypt.iceberg.format.manifest_rows.file_entries import FileEntry
from modcrypt.iceberg.read.pyarrow_decryption import (
    INT96,
    HeldSource,
    Readable,
    StoredFile,
    load_if_small,
    open_natively,
)
from modcrypt.iceberg.read.table_walk import Walk, check_not_encrypted
from modcrypt.io.seekable import SeekableFile
from modcrypt.io.sources import Source
from modcrypt.io.threads import SharedResources
from modcrypt.keys.metadata import StandardKeyMetadata
from modcrypt.parquet.arrow.decoding import (
    count_fitting_rows,
    decoding_error,
    is_fault_of_bytes,
    merge_small,
    row_count_error,
)
from modcrypt.parquet.arrow.page_sizes import Longest, check_pages
from modcrypt.parquet.arrow.parquet_file import ParquetFile
from modcrypt.parquet.arrow.view import PlaintextView
from modcrypt.parquet.crypto.file_plan import OpenFile
from modcrypt.parquet.crypto.footer_opening import read_plain
from modcrypt.parquet.crypto.properties import CELLS, FileDecryptionProperties, SubjectKeys
from modcrypt.parquet.format.framing import MAGIC_ENCRYPTED
from modcrypt.parquet.format.idl import ThriftStruct
from modcrypt.parquet.format.modules import chunk_start
from modcrypt.runtime.fork_safety import cached_property

_BATCH_ROWS = 1 << 17


class RowBatch(NamedTuple):
    """Consecutive rows of a file; `start` is the position of the first row."""

    rows: pa.RecordBatch
    start: int


@contextmanager
def open_data_file(
    walk: Walk, entry: FileEntry, subjects: SubjectKeys | None = None
) -> Iterator[DataFile]:
    """Open a data file; with `subjects`, its cells are decrypted, also some without notes."""
    name, kind = entry.location, entry.file_format
    if kind not in ("PARQUET", "AVRO"):
        raise UnsupportedFormatError(f"{name}: files in {kind} are not supported")
    keys = walk.file_keys(entry)
    if kind == "AVRO":
        yield AvroDataFile(open_avro(walk.read(name, keys, entry.size), name), name)
        return
    with ExitStack() as stack:
        source = stack.enter_context(_hold_source(walk, entry))
        native, unchecked = (None, source) if keys is None else (open_natively(source, keys), None)
        file = ParquetDataFile(
            native, lambda: stack.enter_context(_open_plaintext(source, keys)), unchecked
        )
        if subjects is None or not (
            file.cells or subjects.restored.keys() & set(file.schema.names)
        ):
            yield file
        else:
            yield stack.enter_context(_open_cells(source, keys, subjects))


@contextmanager
def _open_cells(
    source: Source, keys: StandardKeyMetadata | None, subjects: SubjectKeys
) -> Iterator[CellDataFile]:
    opening = FileDecryptionProperties(require_encrypted=False)
    opening = opening if keys is None else decryption_properties(keys)
    stored = cast("IO[bytes]", StoredFile(source))
    with ParquetFile(stored, opening, subjects=subjects, **INT96) as file:
        yield CellDataFile(file)


@contextmanager
def open_parquet_file(walk: Walk, entry: FileEntry) -> Iterator[SeekableFile]:
    """Open a Parquet file as a file object with its plaintext."""
    keys = walk.file_keys(entry)
    with _hold_source(walk, entry) as source, _open_plaintext(source, keys) as file:
        if keys is None:
            UncheckedPages(source).check()
        yield file


def count_parquet_rows(walk: Walk, entry: FileEntry) -> int:
    """Return the number of rows in a Parquet file's footer."""
    with open_parquet_file(walk, entry) as file:
        return int(pq.ParquetFile(file).metadata.num_rows)


@contextmanager
def _hold_source(walk: Walk, entry: FileEntry) -> Iterator[Source]:
    """Open a file as stored, for PyArrow's threads that may still read it after the block ends."""
    with ExitStack() as stack:
        source = stack.enter_context(walk.open_stored(entry.location, entry.size))
        shared = SharedResources(stack.pop_all())
    try:
        yield HeldSource(source, shared)
    finally:
        shared.close()


def _open_plaintext(source: Source, keys: StandardKeyMetadata | None) -> SeekableFile:
    if keys is None:
        size = min(len(MAGIC_ENCRYPTED), source.size)
        magic = source.read_at(source.size - size, size)
        check_not_encrypted(magic, MAGIC_ENCRYPTED, source.name)
        return StoredFile(source)
    file = OpenFile(source, decryption_properties(keys))
    return PlaintextView(file.source, file.select(None))


class ParquetDataFile:
    """A Parquet file, read with PyArrow's decryption if possible, otherwise from its plaintext.

    Each read first tries `native`. If that fails once, all further reads take the plaintext, which
    is authenticated page by page and says what is wrong. Nothing vouches for the pages of a file
    that is stored in plaintext, so they are checked before PyArrow decodes them.
    """

    def __init__(
        self,
        native: Readable | None,
        plaintext: Callable[[], SeekableFile],
        unchecked: Source | None,
    ) -> None:
        self._native, self._plaintext = native, plaintext
        self._pages = None if unchecked is None else UncheckedPages(unchecked)
        self._opened: tuple[Readable, pq.ParquetFile] | None = None
        self.schema: pa.Schema = self._read_with_fallback(lambda _, parquet: parquet.schema_arrow)
        self.cells = frozenset(f.name for f in self.schema if CELLS in (f.metadata or {}))

    def batches(
        self, columns: Sequence[str], filters: pc.Expression | None, *, threads: bool
    ) -> Iterator[RowBatch]:
        """Yield the rows of the file; they may include rows that `filters` excludes.

        `threads` permits decoding columns in parallel.
        """
        metadata, start = self._read_with_fallback(lambda _, parquet: parquet.metadata), 0
        wanted: Collection[int] = range(metadata.num_row_groups)
        if filters is not None:
            wanted = self._read_with_fallback(
                lambda readable, _: readable.groups(filters, self.schema)
            )
        for number in range(metadata.num_row_groups):
            count = metadata.row_group(number).num_rows
            if number in wanted:
                first = start
                for rows in self._rows(number, columns, count, threads):
                    yield RowBatch(rows, first)
                    first += rows.num_rows
            start += count

    def _rows(
        self, number: int, columns: Sequence[str], count: int, threads: bool
    ) -> Iterator[pa.RecordBatch]:
        if not columns:
            yield pa.record_batch([pa.nulls(count)], names=["none"]).select([])
            return
        names = None if list(columns) == self.schema.names else list(columns)
        try:
            # PyArrow also reads columns whose dotted names begin with a wanted name.
            decoded = 0
            for batch in self._read_batches(number, names, threads):
                decoded += batch.num_rows
                yield batch.select(columns)
            _check_count(number, decoded, count)
        except Exception as error:
            if not is_fault_of_bytes(error):
                raise
            column = self._find_damaged_column(number, columns)
            raise decoding_error(f"column {column}", "pages", error) from None

    def _read_batches(
        self, number: int, names: Sequence[str] | None, threads: bool
    ) -> Iterator[pa.RecordBatch]:
        def read_whole(_: Readable, parquet: pq.ParquetFile) -> pa.Table:
            table = parquet.read_row_group(number, names, use_threads=threads)
            _check_count(number, table.num_rows, parquet.metadata.row_group(number).num_rows)
            return table

        if self._pages is None:
            return iter(self._read_with_fallback(read_whole).to_batches(_BATCH_ROWS))
        parquet = self._read_with_fallback(lambda _, parquet: parquet)
        rows = min(_BATCH_ROWS, self._pages.rows_at_once(parquet, number, names))
        options = {"row_groups": [number], "columns": names, "use_threads": threads}
        batches: Iterator[pa.RecordBatch] = parquet.iter_batches(rows, **options)
        return batches if rows == _BATCH_ROWS else merge_small(batches, _BATCH_ROWS)

    def _find_damaged_column(self, number: int, columns: Sequence[str]) -> str:
        for name in columns:
            try:
                for _ in self._read_batches(number, [name], False):
                    pass
            except Exception as error:
                if not is_fault_of_bytes(error):
                    raise
                return name
        return ", ".join(columns)

    def _read_with_fallback(self, work: Callable[[Readable, pq.ParquetFile], Any]) -> Any:
        """Read with PyArrow's decryption; if that fails, from the plaintext, which explains it."""
        if self._native is not None:
            try:
                return work(*self._open(self._native))
            except Exception:
                self._native = self._opened = None
        if self._opened is None:
            return work(*self._open(Readable(load_if_small(self._plaintext()))))
        return work(*self._opened)

    def _open(self, readable: Readable) -> tuple[Readable, pq.ParquetFile]:
        if self._opened is None:
            self._opened = readable, readable.parquet()
        return self._opened


def _check_count(number: int, decoded: int, declared: int) -> None:
    if decoded != declared:
        raise row_count_error(f"row group {number}", decoded, declared)


class UncheckedPages:
    """The pages of a plaintext file, whose declared sizes nobody vouches for."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def check(self) -> None:
        """Check the pages of all columns with `check_pages`."""
        for number, group in enumerate(self._metadata.row_groups):
            for column in range(len(group.columns)):
                self._check_chunk(number, column)

    def rows_at_once(
        self, parquet: pq.ParquetFile, number: int, names: Sequence[str] | None
    ) -> int:
        """Check the pages of a row group; return how many of its rows may be decoded at once.

        Only the columns with these names are read and checked; None for all. Raise FormatError or
        LimitError if a page is malformed or too large.
        """
        paths = [parquet.schema.column(n).path for n in range(parquet.metadata.num_columns)]
        wanted = [
            column
            for column, path in enumerate(paths)
            if names is None or any(path == name or path.startswith(f"{name}.") for name in names)
        ]
        chunks = (self._check_chunk(number, column) for column in wanted)
        return count_fitting_rows(self._metadata, chunks)

    @cached_property
    def _metadata(self) -> ThriftStruct:
        return read_plain(self._source).metadata

    def _check_chunk(self, number: int, column: int) -> tuple[int, Longest, pa.Buffer]:
        where = f"{self._source.name}: row group {number}, column {column}"
        chunks = self._metadata.row_groups[number].columns
        md = chunks[column].meta_data if column < len(chunks) else None
        if md is None:
            raise FormatError(f"{where}: the footer has no metadata for the column chunk")
        start, size = chunk_start(md), md.total_compressed_size
        if not 0 <= start <= self._source.size or not 0 <= size <= self._source.size - start:
            raise FormatError(f"{where}: the column chunk lies outside the file")
        data = pa.py_buffer(self._source.read_at(start, size))
        return column, check_pages(memoryview(data).cast("B"), 0, size, md, where), data


class CellDataFile:
    """A Parquet file with cells, which are read as values; `cells` has the names of columns."""

    def __init__(self, file: ParquetFile) -> None:
        self.parquet = file
        self.schema, self.cells = file.schema_arrow, file.cell_names

    def batches(
        self, columns: Sequence[str], filters: pc.Expression | None, *, threads: bool
    ) -> Iterator[RowBatch]:
        """Yield all rows of the file; arguments are those of `ParquetDataFile.batches`."""
        del filters  # all rows are read
        start = 0
        for rows in self.parquet.iter_batches(_BATCH_ROWS, columns=columns, use_threads=threads):
            yield RowBatch(rows.select(list(columns)), start)
            start += rows.num_rows


class AvroDataFile:
    """An Avro file, whose rows are read in lots."""

    cells: frozenset[str] = frozenset()

    def __init__(self, rows: AvroRows, name: str) -> None:
        self._rows = rows
        self.schema, self._convert = plan_columns(rows.row, name)

    def batches(
        self, columns: Sequence[str], filters: pc.Expression | None, *, threads: bool
    ) -> Iterator[RowBatch]:
        """Yield all rows of the file; arguments are those of `ParquetDataFile.batches`."""
        del filters, threads  # all rows are read
        start = 0
        for lot in self._rows.lots:
            batch = self._convert(lot).select(list(columns))
            yield RowBatch(batch, start)
            start += len(lot)


DataFile: TypeAlias = ParquetDataFile | CellDataFile | AvroDataFile

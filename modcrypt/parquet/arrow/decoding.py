"""Plaintext Parquet in memory to Arrow: PyArrow decodes it, in batches of bounded size.

What PyArrow raises for bytes of a file becomes a FormatError that names the file and the column.
Its own text is dropped: it may repeat values.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from modcrypt.errors import ChecksumError, FormatError, LimitError, ModcryptError
from modcrypt.parquet.crypto.page_sizes import Longest
from modcrypt.parquet.format.framing import MAGIC_PLAINTEXT, MAGIC_SIZE, close_tail
from modcrypt.parquet.format.idl import decode, encode, new
from modcrypt.parquet.format.page_header import DATA_PAGE, scan

__all__ = ["Decoder", "Loaded", "is_fault_of_bytes"]

BATCH_BYTES = 64 << 20
"""Most bytes of Arrow memory that the rows decoded at once are planned to need.

A page can repeat one long value for a few bits each time, so rows are counted by the longest value.
"""

_MERGED_BYTES = 4 << 20
"""Most bytes of Arrow memory in batches that are merged, which needs as much again."""

_VALUE_BYTES = 16
"""Arrow memory of a value of fixed width, or of the offsets and bits of another; at most."""

_FEW = 4096
"""Rows at once from which on it costs little time that there are no more."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A plaintext Parquet file in memory, its pages checked.

    Attributes:
        data: The file.
        rows: Number of rows that its footer declares.
        longest: For each column, the most bytes of a value that its pages can repeat.
    """

    data: pa.Buffer
    rows: int
    longest: Sequence[Longest]


@dataclass(frozen=True)
class Decoder:
    """Decodes files in memory that are parts of one encrypted file.

    Attributes:
        name: Of the encrypted file, for errors.
        options: As of `pyarrow.parquet.ParquetFile`.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def batches(
        self, loaded: Loaded, batch_size: int, *, use_threads: bool = True
    ) -> Iterator[pa.RecordBatch]:
        """Decode all rows, at most `batch_size` at once, and no further than they are asked for.

        Raises:
            FormatError, ChecksumError, LimitError: as `explained`; or there are too few rows.
        """
        count = 0
        with self.explained(loaded.data), closing(self._open(loaded.data)) as file:
            rows = max(1, min(batch_size, self._rows_at_once(loaded)))
            decoded = file.iter_batches(rows, use_threads=use_threads)
            for batch in decoded if rows == batch_size else _merged(decoded, batch_size):
                count += batch.num_rows
                yield batch
        self.check_rows(loaded, count)

    def check_rows(self, loaded: Loaded, count: int) -> None:
        """Raise a FormatError if fewer or more rows were decoded than are declared."""
        if count != loaded.rows:
            raise FormatError(f"{self.name}: {count} rows are decoded, of {loaded.rows} declared")

    def repeats_long_values(self, loaded: Loaded) -> bool:
        """Return whether a few bytes may become so many that no more rows fit than are few."""
        return any(map(_repeats, loaded.longest)) and self._rows_at_once(loaded) < min(
            _FEW, loaded.rows
        )

    def rows(self, loaded: Loaded, ranges: Sequence[tuple[int, int]]) -> pa.Table:
        """Decode the rows in some ranges, which ascend, and none behind the last of them."""
        kept: list[pa.RecordBatch] = []
        at, end = 0, ranges[-1][1]
        for batch in self.batches(loaded, min(1 << 16, end)):
            after = at + batch.num_rows
            for start, stop in ranges:
                if start < after and at < stop:
                    first = max(start, at)
                    kept.append(batch.slice(first - at, min(stop, after) - first))
            at = after
            if at >= end:
                break
        return pa.Table.from_batches(kept)

    def table(self, data: pa.Buffer) -> pa.Table:
        """Decode all rows at once; raise as `explained`."""
        with self.explained(data):
            return self._open(data).read()

    @contextmanager
    def explained(self, data: pa.Buffer) -> Iterator[None]:
        """Make PyArrow's errors about the bytes of a file those of modcrypt.

        Raises:
            ChecksumError: The CRC of a page does not fit.
            LimitError: It needs more memory than there is.
            FormatError: It can't be decoded.
        """
        try:
            yield
        except Exception as error:
            if not is_fault_of_bytes(error):
                raise
            raise self.error(error, data) from None

    def error(self, error: Exception, data: pa.Buffer) -> ModcryptError:
        """Return the error to raise for one of PyArrow's, which names the column."""
        column = self._damaged_column(data)
        where = self.name if column is None else f"{self.name}: column {column}"
        if "CRC checksum verification failed" in str(error):
            return ChecksumError(f"{where}: the CRC of a page does not fit its bytes")
        if isinstance(error, MemoryError):
            return LimitError(f"{where}: its values need more memory than there is")
        what = "schema" if column is None else "pages"
        return FormatError(f"{where}: PyArrow can't decode its {what} ({type(error).__name__})")

    def is_damaged(self, data: pa.Buffer) -> bool:
        """Return whether a file can't be decoded, whatever is done with its rows."""
        try:
            return self._damaged_column(data) is not None
        except Exception as error:
            if not is_fault_of_bytes(error):
                raise
            return True

    def _damaged_column(self, data: pa.Buffer) -> str | None:
        """Return the first column that can't be decoded; None if each of them can."""
        try:
            file = self._open(data)
        except Exception as error:
            if not is_fault_of_bytes(error):
                raise
            return None
        for number in range(file.metadata.num_columns):
            path = str(file.schema.column(number).path)
            count = 0
            try:
                for batch in file.iter_batches(1024, columns=[path], use_threads=False):
                    count += batch.num_rows
            except Exception as error:
                if not is_fault_of_bytes(error):
                    raise
                return path
            if count != file.metadata.num_rows:
                return path
        return None

    def open(self, data: pa.Buffer) -> pq.ParquetFile:
        """Open a file in memory with PyArrow; raise as `explained`."""
        with self.explained(data):
            return self._open(data)

    def _open(self, data: pa.Buffer, **more: Any) -> pq.ParquetFile:
        return pq.ParquetFile(pa.BufferReader(data), **{**self.options, **more})

    def _rows_at_once(self, loaded: Loaded) -> int:
        """Return how many rows fit into `BATCH_BYTES`, whichever values they repeat."""
        with closing(self._open(loaded.data)) as file:
            columns = [file.schema.column(n) for n in range(file.metadata.num_columns)]
            values = [
                _values_in_row(file.metadata, n) if most.dictionary or most.delta else 1
                for n, most in enumerate(loaded.longest)
            ]
        fixed = sum(max(_VALUE_BYTES, column.length) for column in columns) or _VALUE_BYTES
        rows = int(BATCH_BYTES // (fixed + _row_bytes(loaded.longest, values)))
        if rows >= _FEW:
            return rows
        found = [_look_into_dictionaries(loaded.data, longest) for longest in loaded.longest]
        return int(BATCH_BYTES // (fixed + _row_bytes(found, values)))


def _values_in_row(metadata: pq.FileMetaData, column: int) -> int:
    """Return how many values of a column a row has on average, rounded up."""
    if not metadata.schema.column(column).max_repetition_level:
        return 1
    groups = (metadata.row_group(group) for group in range(metadata.num_row_groups))
    values = sum(group.column(column).num_values for group in groups)
    return int(max(1, -(-values // max(1, metadata.num_rows))))


def _row_bytes(longest: Sequence[Longest], values: Sequence[int]) -> int:
    """Return the most bytes of repeated values in an average row."""
    return sum(_repeats(most) * count for most, count in zip(longest, values, strict=True))


def _merged(batches: Iterator[pa.RecordBatch], batch_size: int) -> Iterator[pa.RecordBatch]:
    """Merge neighbours that turn out to be small: each batch costs those who read it time."""
    few: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if few and (rows + batch.num_rows > batch_size or size + batch.nbytes > _MERGED_BYTES):
            yield from _concatenated(few)
            few, rows, size = [], 0, 0
        few.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if size > _MERGED_BYTES:  # not kept while the next one is decoded
            yield from _concatenated(few)
            few, rows, size = [], 0, 0
    yield from _concatenated(few)


def _concatenated(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2:
        return batches
    try:
        return [pa.concat_batches(batches)]
    except pa.ArrowNotImplementedError:  # dictionaries within other types
        return batches


def _repeats(longest: Longest) -> int:
    return max(longest.dictionary, longest.delta)


def _look_into_dictionaries(data: pa.Buffer, longest: Longest) -> Longest:
    """Return what the values in dictionaries are long, at most, instead of all of them together."""
    lengths = (_longest_value(data, *place) for place in longest.dictionaries)
    return longest._replace(dictionary=min(longest.dictionary, max(lengths, default=0)))


def _longest_value(data: pa.Buffer, at: int, codec: int) -> int:
    """Return the length of the longest value of the dictionary page at `at`.

    PyArrow decodes it as the one data page of a file: both hold plain values.
    """
    view = memoryview(data).cast("B")
    found = scan(cast(bytes, view), at, len(view))
    page, _ = decode("PageHeader", bytes(view[at : found.end]))
    count = page.dictionary_page_header.num_values if page.dictionary_page_header else -1
    if not 0 <= count <= page.uncompressed_page_size // _LENGTH_SIZE:
        return _UNKNOWN  # PyArrow reserves memory for as many as are declared
    kind = new(
        "DataPageHeader", num_values=count, encoding=_PLAIN, definition_level_encoding=_RLE,
        repetition_level_encoding=_RLE,
    )  # fmt: skip
    header = new(
        "PageHeader", type=DATA_PAGE, uncompressed_page_size=page.uncompressed_page_size,
        compressed_page_size=page.compressed_page_size, data_page_header=kind,
    )  # fmt: skip
    body = view[found.end : found.end + found.compressed_size]
    file = _one_page_file(encode(header) + bytes(body), codec, count)
    try:
        values = pq.ParquetFile(pa.BufferReader(file)).read(use_threads=False).column(0)
    except Exception as error:
        if not is_fault_of_bytes(error):
            raise
        return _UNKNOWN
    return int(pc.max(pc.binary_length(values)).as_py() or 0)


def _one_page_file(page: bytes, codec: int, count: int) -> pa.Buffer:
    """Return a file of one required column of byte arrays, in one page."""
    schema = [
        new("SchemaElement", name=b"root", num_children=1),
        new("SchemaElement", name=b"value", type=_BYTE_ARRAY, repetition_type=_REQUIRED),
    ]
    md = new(
        "ColumnMetaData", type=_BYTE_ARRAY, encodings=[_PLAIN], path_in_schema=[b"value"],
        codec=codec, num_values=count, total_uncompressed_size=len(page),
        total_compressed_size=len(page), data_page_offset=MAGIC_SIZE,
    )  # fmt: skip
    chunk = new("ColumnChunk", file_offset=0, meta_data=md)
    group = new("RowGroup", columns=[chunk], total_byte_size=len(page), num_rows=count)
    footer = new("FileMetaData", version=1, schema=schema, num_rows=count, row_groups=[group])
    return pa.py_buffer(MAGIC_PLAINTEXT + page + close_tail(encode(footer), MAGIC_PLAINTEXT))


_PLAIN, _RLE = 0, 3  # Encoding of the IDL
_BYTE_ARRAY, _REQUIRED = 6, 0  # Type and FieldRepetitionType of the IDL

_LENGTH_SIZE = 4
"""Bytes before each plain value of a byte array."""

_UNKNOWN = 1 << 62


def is_fault_of_bytes(error: BaseException) -> bool:
    """Return whether an exception of PyArrow, or of decoding, comes from the bytes of a file.

    An OSError of the operating system has a number. PyArrow also raises OSErrors without one, for
    bytes that it has in memory.
    """
    if isinstance(error, ModcryptError | pa.ArrowCancelled):
        return False
    if isinstance(error, OSError):
        return error.errno is None
    kinds = (pa.ArrowException, MemoryError, OverflowError, UnicodeDecodeError, struct.error)
    return isinstance(error, kinds)

"""Decode plaintext Parquet in memory to Arrow, in batches of bounded size.

PyArrow decodes. If the bytes of a file make it fail, modcrypt raises a FormatError that names the
file and the column, and drops PyArrow's own message because it may contain values.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pyarrow as pa
import pyarrow.parquet as pq

from modcrypt.errors import ChecksumError, FormatError, LimitError, ModcryptError
from modcrypt.parquet.arrow.page_sizes import NO_LONG_VALUES, Dictionary, Longest
from modcrypt.parquet.convert.null_chunks import encode_page_header
from modcrypt.parquet.format.framing import MAGIC_PLAINTEXT, MAGIC_SIZE, close_tail
from modcrypt.parquet.format.idl import ThriftStruct, decode, encode, new
from modcrypt.parquet.format.page_header_scan import scan
from modcrypt.runtime.fork_safety import cached_property

if TYPE_CHECKING:  # imports pandas where it is installed
    import pyarrow.dataset as ds

BATCH_BYTES = 64 << 20
"""Planned maximum of Arrow memory, in bytes, for the rows that are decoded at once.

A page can repeat a long value for a few bits each time, so the plan assumes the longest value.
"""

DECODER = f"PyArrow {pa.__version__}"  # the decoder as errors name it

_ADVICE = (
    ". Pages under AES-GCM were authenticated before, so the decoder may be at fault; Polars and "
    "DuckDB may read the file through open_parquet"
)

_MERGED_BYTES = 4 << 20
"""Most Arrow memory, in bytes, of batches that are merged. Merging needs as much again."""

_SMALL_BUFFERS = 64 << 10
"""Size in bytes up to which whole buffers count, although a batch may use a part of them only."""

_VALUE_BYTES = 16
"""Most Arrow memory of a fixed-width value, or of the offsets and bits of any other value."""

_FEW = 4096  # number of rows at which larger batches stop saving time


class Loaded(NamedTuple):
    """A plaintext Parquet file in memory whose pages are checked."""

    data: pa.Buffer
    rows: int  # number of rows that its row groups declare
    metadata: ThriftStruct
    # For each column, the longest value in bytes that its pages can repeat.
    longest: Sequence[Longest]


class Decoder:
    """A decoder for files in memory that are parts of one encrypted file."""

    def __init__(self, name: str, options: Mapping[str, Any] = MappingProxyType({})) -> None:
        self.name, self.options = name, options

    @cached_property
    def format(self) -> ds.ParquetFileFormat:
        """The same options for PyArrow's datasets."""
        from pyarrow.dataset import ParquetFileFormat

        options = dict(self.options)
        if "read_dictionary" in options:
            options["dictionary_columns"] = options.pop("read_dictionary")
        return ParquetFileFormat(**options)

    def decode_batches(
        self, loaded: Loaded, batch_size: int, *, use_threads: bool = True
    ) -> Iterator[pa.RecordBatch]:
        """Decode all rows lazily, at most `batch_size` at once."""
        count = 0
        with self.translate_errors(loaded.data), closing(self._open_file(loaded.data)) as file:
            rows = max(1, min(batch_size, self._count_rows_at_once(loaded)))
            decoded = (
                batch
                for row_groups in _group_row_groups(file)
                for batch in file.iter_batches(rows, row_groups, use_threads=use_threads)
            )
            for batch in decoded if rows == batch_size else merge_small(decoded, batch_size):
                count += batch.num_rows
                yield batch
        self.check_rows(loaded, count)

    def check_rows(self, loaded: Loaded, count: int) -> None:
        """Raise FormatError if the number of decoded rows differs from the declared one."""
        if count != loaded.rows:
            raise row_count_error(self._locate_damage(loaded.data), count, loaded.rows)

    def repeats_long_values(self, loaded: Loaded) -> bool:
        """Return whether long values may repeat so often that only small batches fit."""
        long = [most for most in loaded.longest if most is not NO_LONG_VALUES]
        return any(map(_longest_repeated, long)) and self._count_rows_at_once(loaded) < min(
            _FEW, loaded.rows
        )

    def decode_rows(self, loaded: Loaded, ranges: Sequence[tuple[int, int]]) -> pa.Table:
        """Decode the rows in some ascending ranges, and none after the last range."""
        wanted: list[pa.RecordBatch] = []
        at, end = 0, ranges[-1][1]
        for batch in self.decode_batches(loaded, min(1 << 16, end)):
            after = at + batch.num_rows
            parts = [
                batch.slice(max(start, at) - at, min(stop, after) - max(start, at))
                for start, stop in ranges
                if start < after and at < stop
            ]
            if parts and parts[0].num_rows < batch.num_rows:
                # Two parts are copied; a slice alone would keep all of its batch in memory.
                parts = _concat_batches([*parts, batch.slice(0, 0)])
            wanted += parts
            at = after
            if at >= end:
                break
        return pa.Table.from_batches(wanted)

    def decode_table(self, loaded: Loaded, *, use_threads: bool = True) -> pa.Table:
        """Decode all rows at once."""
        try:
            file = self._open_file(loaded.data)
            tables = [
                file.read_row_groups(lot, use_threads=use_threads)
                for lot in _group_row_groups(file)
            ]
        except Exception as error:
            if not is_fault_of_bytes(error):
                raise
            raise self.translate_error(error, loaded.data) from None
        # Concatenating loses the number of rows if there are no columns.
        table = tables[0] if len(tables) == 1 else pa.concat_tables(tables)
        self.check_rows(loaded, table.num_rows)
        return table

    @contextmanager
    def translate_errors(self, data: pa.Buffer) -> Iterator[None]:
        """Translate PyArrow's errors about the bytes of a file into modcrypt's."""
        try:
            yield
        except Exception as error:
            if not is_fault_of_bytes(error):
                raise
            raise self.translate_error(error, data) from None

    def translate_error(self, error: Exception, data: pa.Buffer) -> ModcryptError:
        """Return modcrypt's error for an error of PyArrow, naming the damaged column."""
        where = self._locate_damage(data)
        if "CRC checksum verification failed" in str(error):
            return ChecksumError(f"{where}: the CRC of a page does not match its bytes")
        if isinstance(error, MemoryError):
            return LimitError(f"{where}: its values need more memory than is available")
        return decoding_error(where, "schema" if where == self.name else "pages", error)

    def _locate_damage(self, data: pa.Buffer) -> str:
        """Return the file's name, with the first column that cannot be decoded."""
        column = self._find_damaged_column(data)
        return self.name if column is None else f"{self.name}: column {column}"

    def is_damaged(self, data: pa.Buffer) -> bool:
        """Return whether a file cannot be decoded, whatever is done with its rows."""
        with _ignore_faults_of_bytes():
            return self._find_damaged_column(data) is not None
        return True

    def _find_damaged_column(self, data: pa.Buffer) -> str | None:
        file = None
        with _ignore_faults_of_bytes():
            file = self._open_file(data)
        for number in range(file.metadata.num_columns) if file is not None else ():
            path = str(file.schema.column(number).path)
            with _ignore_faults_of_bytes():
                batches = file.iter_batches(1024, columns=[path], use_threads=False)
                if sum(batch.num_rows for batch in batches) == file.metadata.num_rows:
                    continue
            return path
        return None

    def open(self, data: pa.Buffer) -> pq.ParquetFile:
        """Open a file in memory with PyArrow."""
        with self.translate_errors(data):
            return self._open_file(data)

    def _open_file(self, data: pa.Buffer, **more: Any) -> pq.ParquetFile:
        options = {**self.options, **more}
        if names := options.get("read_dictionary"):
            # PyArrow raises KeyError for columns that are not among those in the memory.
            options["read_dictionary"] = None
            there = {
                column.path for column in pq.ParquetFile(pa.BufferReader(data), **options).schema
            }
            options["read_dictionary"] = [name for name in names if name in there]
        return pq.ParquetFile(pa.BufferReader(data), **options)

    def _count_rows_at_once(self, loaded: Loaded) -> int:
        """Return how many rows fit into `BATCH_BYTES`, whichever values the pages repeat."""
        leaves = (element for element in loaded.metadata.schema if not element.num_children)
        fixed = sum(max(_VALUE_BYTES, leaf.type_length or 0) for leaf in leaves) or _VALUE_BYTES
        values = [
            _count_values_in_row(loaded.metadata, loaded.rows, n) if _longest_repeated(most) else 1
            for n, most in enumerate(loaded.longest)
        ]
        rows = int(BATCH_BYTES // (fixed + _count_row_bytes(loaded.longest, values)))
        if rows >= min(_FEW, loaded.rows):
            return rows
        longest = [_look_into_dictionaries(loaded.data, most) for most in loaded.longest]
        return int(BATCH_BYTES // (fixed + _count_row_bytes(longest, values)))


def row_count_error(where: str, count: int, declared: int) -> FormatError:
    """Return the error for a decoder that returns another number of rows than a footer declares."""
    return FormatError(f"{where}: {DECODER} decoded {count} of {declared} rows{_ADVICE}")


def decoding_error(where: str, part: str, error: Exception) -> FormatError:
    """Return the error for a part that PyArrow cannot decode, without PyArrow's message."""
    advice = "" if part == "schema" else _ADVICE
    kind = type(error).__name__
    return FormatError(f"{where}: {DECODER} cannot decode its {part} ({kind}){advice}")


def _group_row_groups(file: pq.ParquetFile) -> list[list[int]]:
    """Return the row groups that PyArrow can read at once, in order."""
    # It cannot merge the dictionaries of several row groups inside a nested type.
    ordinals = list(range(file.num_row_groups))
    if len(ordinals) < 2 or not any(map(_has_inner_dictionary, file.schema_arrow.types)):
        return [ordinals]
    return [[ordinal] for ordinal in ordinals]


def _has_inner_dictionary(kind: pa.DataType) -> bool:
    inner = [kind.field(number).type for number in range(kind.num_fields)]
    return any(pa.types.is_dictionary(one) or _has_inner_dictionary(one) for one in inner)


def _count_values_in_row(metadata: ThriftStruct, rows: int, column: int) -> int:
    """Return the average number of values of a column in a row, rounded up."""
    chunks = (row_group.columns[column] for row_group in metadata.row_groups)
    values = sum(chunk.meta_data.num_values for chunk in chunks)
    return int(max(1, -(-values // max(1, rows))))


def _count_row_bytes(longest: Sequence[Longest], values: Sequence[int]) -> int:
    return sum(_longest_repeated(most) * count for most, count in zip(longest, values, strict=True))


def count_fitting_rows(
    metadata: ThriftStruct, chunks: Iterable[tuple[int, Longest, pa.Buffer]]
) -> int:
    """Return how many rows fit into `BATCH_BYTES`; chunks are column, longest values and bytes."""
    size, leaves = 0, [element for element in metadata.schema if not element.num_children]
    for column, longest, data in chunks:
        is_long = _longest_repeated(longest) > BATCH_BYTES // _FEW
        repeated = _look_into_dictionaries(data, longest) if is_long else longest
        size += max(_VALUE_BYTES, leaves[column].type_length or 0)
        size += _longest_repeated(repeated) * _count_values_in_row(
            metadata, metadata.num_rows, column
        )
    return max(1, BATCH_BYTES // max(1, size))


def merge_small(
    batches: Iterator[pa.RecordBatch], batch_size: int, most_bytes: int = _MERGED_BYTES
) -> Iterator[pa.RecordBatch]:
    """Merge neighbouring batches that are small, because each batch costs its reader time."""
    small: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if (more := batch.get_total_buffer_size()) >= _SMALL_BUFFERS:
            more = batch.nbytes  # without what other batches use of the buffers, which takes longer
        if small and (rows + batch.num_rows > batch_size or size + more > most_bytes):
            yield from _concat_batches(small)
            small, rows, size = [], 0, 0
        small.append(batch)
        rows, size = rows + batch.num_rows, size + more
        if size > most_bytes:  # Do not keep it while the next batch is decoded.
            yield from _concat_batches(small)
            small, rows, size = [], 0, 0
    yield from _concat_batches(small)


def _concat_batches(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2:
        return batches
    try:
        return [pa.concat_batches(batches)]
    except pa.ArrowNotImplementedError:  # dictionaries inside other types
        return batches


def _longest_repeated(longest: Longest) -> int:
    return max(longest.dictionary, longest.delta)


def _look_into_dictionaries(data: pa.Buffer, longest: Longest) -> Longest:
    """Replace the total size of dictionaries by the length of their longest value."""
    lengths = (
        _measure_longest_value(data, pages) for pages in _group_small_pages(longest.dictionaries)
    )
    return longest._replace(dictionary=min(longest.dictionary, max(lengths, default=0)))


def _group_small_pages(pages: Sequence[Dictionary]) -> Iterator[list[Dictionary]]:
    """Group neighbouring pages of one codec that are small together: a file per page costs time."""
    group: list[Dictionary] = []
    size = 0
    for page in pages:
        if group and (size + page.size > _MERGED_BYTES or page.codec != group[0].codec):
            yield group
            group, size = [], 0
        group.append(page)
        size += page.size
    if group:
        yield group


def _measure_longest_value(data: pa.Buffer, dictionaries: Sequence[Dictionary]) -> int:
    """Return the length of the longest value in some dictionary pages of one codec."""
    # PyArrow decodes them as the data pages of a file, since both hold plain values.
    import pyarrow.compute as pc  # takes a third of the time of importing PyArrow

    view = memoryview(data).cast("B")
    pages: list[bytes | memoryview] = []
    count = 0
    for dictionary in dictionaries:
        header, body, number = _convert_to_data_page(view, dictionary.start)
        if number < 0:
            return _UNKNOWN
        if number:  # PyArrow stops at a page without values.
            pages += [header, body]
            count += number
    with _ignore_faults_of_bytes():
        file = _make_one_column_file(pages, dictionaries[0].codec, count)
        values = pq.ParquetFile(pa.BufferReader(file)).read(use_threads=False).column(0)
        if len(values) == count:
            return int(pc.max(pc.binary_length(values)).as_py() or 0)
    return _UNKNOWN


def _convert_to_data_page(view: memoryview, at: int) -> tuple[bytes, memoryview, int]:
    """Return the dictionary page at `at` as header and body of a data page, and its value count."""
    # The count is negative if it cannot be true: PyArrow reserves memory for as many values.
    scanned = scan(cast(bytes, view), at, len(view))
    page, _ = decode("PageHeader", scanned.raw)
    count = page.dictionary_page_header.num_values if page.dictionary_page_header else -1
    if count > page.uncompressed_page_size // _LENGTH_SIZE:
        count = -1
    header = encode_page_header(count, page.uncompressed_page_size, page.compressed_page_size)
    body = at + len(scanned.raw)
    return header, view[body : body + scanned.compressed_size], count


def _make_one_column_file(pages: Sequence[bytes | memoryview], codec: int, count: int) -> pa.Buffer:
    size = sum(map(len, pages))
    schema = [
        new("SchemaElement", name=b"root", num_children=1),
        new("SchemaElement", name=b"value", type=_BYTE_ARRAY, repetition_type=_REQUIRED),
    ]
    md = new(
        "ColumnMetaData", type=_BYTE_ARRAY, encodings=[_PLAIN], path_in_schema=[b"value"],
        codec=codec, num_values=count, total_uncompressed_size=size,
        total_compressed_size=size, data_page_offset=MAGIC_SIZE,
    )  # fmt: skip
    chunk = new("ColumnChunk", file_offset=0, meta_data=md)
    group = new("RowGroup", columns=[chunk], total_byte_size=size, num_rows=count)
    footer = new("FileMetaData", version=1, schema=schema, num_rows=count, row_groups=[group])
    tail = close_tail(encode(footer), MAGIC_PLAINTEXT)
    return pa.py_buffer(b"".join((MAGIC_PLAINTEXT, *pages, tail)))


_PLAIN = 0  # Encoding of the IDL
_BYTE_ARRAY, _REQUIRED = 6, 0  # Type and FieldRepetitionType of the IDL

_LENGTH_SIZE = 4  # size in bytes of the length before each plain value of a byte array

_UNKNOWN = 1 << 62


@contextmanager
def _ignore_faults_of_bytes() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not is_fault_of_bytes(error):
            raise


def is_fault_of_bytes(error: BaseException) -> bool:
    """Return whether an exception of PyArrow, or of decoding, is caused by the bytes of a file.

    An OSError of the operating system has a number. PyArrow also raises OSErrors without one, for
    bytes in memory.
    """
    if isinstance(error, ModcryptError | pa.ArrowCancelled):
        return False
    if isinstance(error, OSError):
        return error.errno is None
    kinds = (pa.ArrowException, MemoryError, OverflowError, UnicodeDecodeError, struct.error)
    return isinstance(error, kinds)

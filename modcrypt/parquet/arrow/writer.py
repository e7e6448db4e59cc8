"""Write Arrow tables as encrypted Parquet: encode on several threads, encrypt in order.

PyArrow encodes a file on one thread, but row groups are independent. A separate writer encodes each
row group into a small Parquet file in memory. The calling thread encrypts the finished row groups,
in order, into one file while others are being encoded.

    tables -> slices of row_group_size rows -> encoded, `threads` at a time -> encrypted -> file
    batches -> gathered ---^

Small row groups are encoded several at a time, because a PyArrow writer and its footer cost more
than such a row group.

Plaintext exists only in the caller's tables and in PyArrow's own buffers.
"""

from __future__ import annotations

import functools
import inspect
import io
import math
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from modcrypt.errors import LimitError
from modcrypt.io.buffers import WORTH_A_THREAD, open_output
from modcrypt.io.destinations import Destination
from modcrypt.io.places import Place, place_of
from modcrypt.io.sources import MemorySource
from modcrypt.io.threads import check_threads, usable_cores
from modcrypt.keys import hide_keys
from modcrypt.parquet.arrow.arrow_streams import ArrowStream, is_frame, open_stream
from modcrypt.parquet.arrow.dictionary_columns import prepare_dictionaries
from modcrypt.parquet.convert.encryption_plan import EncryptionPlan, plan_encryption
from modcrypt.parquet.convert.encryptor import Encryption, encrypt_source
from modcrypt.parquet.convert.plain_feed import PlainFeed
from modcrypt.parquet.crypto.properties import AnyEncryption, SubjectKeys, as_encryption
from modcrypt.parquet.crypto.properties import Encryption as EncryptionLike
from modcrypt.parquet.format.idl import copy
from modcrypt.parquet.format.modules import MAX_ROW_GROUPS

if TYPE_CHECKING:
    import polars

ROW_GROUP_ROWS = 1 << 20  # default number of rows of a row group, as in PyArrow

FRAME_ROW_GROUP_ROWS = 1 << 18
"""Default number of rows of a row group that Polars encodes, as in Polars."""

MAX_ROW_GROUP_ROWS = 64 << 20
"""Maximum number of rows of a row group, as in PyArrow."""

GATHERED_BYTES = 96 << 20
"""Arrow memory, in bytes, at which the gathered batches become a row group."""

ENCODED_TOGETHER = 1 << 20  # Arrow memory, in bytes, at which small row groups are encoded together

MAX_THREADS = 4
"""Maximum default number of threads; each holds a row group in memory."""

_UNSUPPORTED_OPTIONS = {
    "encryption_properties": "pass modcrypt's FileEncryptionProperties as `encryption`",
    "metadata_collector": "read the file's metadata from its footer after closing the file",
}


@hide_keys
def write_table(
    table: pa.Table | polars.DataFrame | ArrowStream,
    where: Destination,
    encryption: AnyEncryption,
    *,
    row_group_size: int | None = None,
    filesystem: Any = None,
    overwrite: bool = True,
    threads: int | None = None,
    subjects: SubjectKeys | None = None,
    **options: Any,
) -> None:
    """Write an Arrow table, or a frame of any library, as an encrypted Parquet file (PME 4, 5).

    From a table, the file has the same pages, row groups and statistics as with
    `pyarrow.parquet.write_table`.
    From a Polars frame, it has the types and pages that Polars writes. Polars knows the options
    `compression`, `compression_level`, `data_page_size` and `write_statistics`; with any other
    option, or with `threads=1`, the frame is converted and PyArrow encodes it.

    Args:
        table: Table, Polars frame or other provider of an Arrow stream (a pandas frame, a DuckDB
            relation, a RecordBatchReader). Streams are written in bounded memory, in row groups of
            at most 96 MiB of Arrow memory.
        where: Path, URL or writable binary file object. A file at a path or URL appears complete or
            not at all.
        encryption: `Key`, its bytes or hex text, `Recipient` or several, `Policy` or its path, or
            `Settings`; `FileEncryptionProperties` with keys, footer mode, algorithm and AAD prefix;
            or the result of `KeyTools.encryption`, which makes fresh keys for the file.
        row_group_size: Number of rows of a row group, by default 1 Mi, or 256 Ki if Polars encodes.
        filesystem: Filesystem of pyarrow or fsspec in which `where` is a path.
        overwrite: Replace an existing destination; if False, raise FileExistsError.
        threads: Number of row groups that are encoded at once; memory holds `threads + 1`. With 1,
            the calling thread does everything. The default is the number of processors, at most 4.
        subjects: `modcrypt.subjects.Subjects`, to encrypt values of some columns one by one, under
            the keys of their subjects; None for those of `encryption`, if any.
        options: Options of `pyarrow.parquet.ParquetWriter` (`compression`, `use_dictionary`,
            `data_page_version`, `write_page_index`, ...).

    Raises:
        ValueError: `encryption` names columns that the table does not have, or the value of an
            option is invalid.
        TypeError: PyArrow does not know an option, or an argument has the wrong type.
        LimitError: There are more row groups, columns or pages than ordinals can number (PME
            4.4.2).
        KeyExhaustedError: A key has been used for 2**32 encryptions.
        pyarrow.ArrowException: PyArrow cannot encode the table.
        polars.exceptions.PolarsError: Polars cannot encode the frame.
        FileExistsError, OSError: The file system reports an error.
    """
    encryption = as_encryption(encryption)
    subjects = subjects or encryption.subjects
    if is_frame(table):
        from modcrypt.parquet.arrow.polars_frames import polars_options, write_frame

        polars_names = polars_options(options) if subjects is None else None
        if polars_names is not None and threads != 1:
            size = _choose_row_group_size(row_group_size, FRAME_ROW_GROUP_ROWS)
            _check_row_group_count(-(-table.height // size))
            write_frame(
                table, where, encryption, polars_names, row_group_size=size,
                encoded_together=ENCODED_TOGETHER, filesystem=filesystem, overwrite=overwrite,
                threads=_choose_threads(threads),
            )  # fmt: skip
            return
        table = table.to_arrow()
    if not isinstance(table, pa.Table):
        table = open_stream(table)
    elif subjects is None and (small := _split_small(table, row_group_size)):
        _check_options(options, threads)
        # Calls of Python's file objects take an eighth of the time to encode so little.
        source = MemorySource(_encode(small, table.schema, options, out=pa.BufferOutputStream()))
        encrypt_source(
            source, where, encryption, filesystem=filesystem, overwrite=overwrite, threads=1,
            hold_indexes=True,
        )  # fmt: skip
        return
    elif threads is None and table.nbytes <= WORTH_A_THREAD:
        threads = 1
    with ParquetWriter(
        where,
        table.schema,
        encryption,
        row_group_size=row_group_size,
        filesystem=filesystem,
        overwrite=overwrite,
        threads=threads,
        subjects=subjects,
        **options,
    ) as writer:
        writer.write(table)


class ParquetWriter:
    """A writer that builds an encrypted Parquet file in steps (PME 4, 5), for one thread at a time.

    Memory holds `threads + 1` row groups, and batches for one more. The end of the `with` block
    publishes the file. An exception in the block or in a write leaves no file; nor does a writer
    that is never closed.

    Args:
        where: Path, URL or writable binary file object.
        schema: Schema of all tables and batches.
        encryption: Keys, footer mode, algorithm and AAD prefix; columns are named as in the file.
        row_group_size: Number of rows of a row group, 1 Mi by default.
        filesystem, overwrite, threads, subjects, options: As for `write_table`.

    Raises:
        ValueError, TypeError, LimitError, FileExistsError, OSError: As `write_table`.
    """

    @hide_keys
    def __init__(
        self,
        where: Destination,
        schema: pa.Schema,
        encryption: AnyEncryption,
        *,
        row_group_size: int | None = None,
        filesystem: Any = None,
        overwrite: bool = True,
        threads: int | None = None,
        subjects: SubjectKeys | None = None,
        **options: Any,
    ) -> None:
        encryption = as_encryption(encryption)
        threads = self._threads = _check_options(options, threads)
        self._row_group_size = _choose_row_group_size(row_group_size, ROW_GROUP_ROWS)
        self._schema, self._stored, self._options = schema, schema, options
        subjects = subjects or encryption.subjects
        self._cells = None if subjects is None else subjects.writer(schema)
        if self._cells is not None:
            from modcrypt.parquet.arrow.field_metadata import leave_out_statistics

            self._stored = self._cells.schema
            cells = {path for field in self._cells.fields.values() for path in field.paths}
            self._options = leave_out_statistics(options, self._stored, cells)
        self._key_values: list[Any] = []
        # Raise for invalid options and column names before making a key or a file.
        place = place_of(where, filesystem)
        self._empty = self._plan_footer(encryption, place, overwrite=overwrite)
        self._properties = self._empty.properties
        self._withdrawn = False
        self._row_group_count = 0  # number of row groups, encoded or not
        self._batches = _Batches()
        self._small: list[pa.Table] = []  # row groups to encode together with the next
        self._small_size = 0
        self._in_flight: deque[Future[memoryview]] = deque()
        with ExitStack() as stack:
            self._complete_companion = stack.enter_context(self._properties.companion())
            out = stack.enter_context(
                open_output(
                    where, None, overwrite=overwrite, threads=threads, filesystem=filesystem
                )
            )
            self._output, self._encryption = out, Encryption(out, self._properties)
            self._pool = ThreadPoolExecutor(threads, "modcrypt-encoder") if threads > 1 else None
            if self._pool is not None:
                # Do not wait: after a failure, the results of the encoders are not needed.
                stack.callback(self._pool.shutdown, wait=False, cancel_futures=True)
            # If the garbage collector closes the writer, it acts as after an error.
            self._open: ExitStack | None = stack.pop_all()

    def write_table(self, table: pa.Table, row_group_size: int | None = None) -> None:
        """Write a table in row groups of its own.

        Args:
            table: Table to write.
            row_group_size: Number of rows of each row group (the last may have fewer); by default
                the writer's.

        Raises:
            ValueError: The writer is closed, or the table has another schema.
            LimitError, KeyExhaustedError, pyarrow.ArrowException, OSError: As the function
                `write_table`; the writer is then closed. A later call may raise the error of an
                encoding thread.
        """
        if not isinstance(table, pa.Table):
            raise TypeError(f"table must be a pyarrow.Table, not {type(table).__name__}")
        size = self._check_write(table.schema, row_group_size)
        with self._withdraw_on_error():
            self._flush()
            # PyArrow writes an empty row group for an empty table.
            starts = range(0, max(table.num_rows, 1), size)
            _check_row_group_count(self._row_group_count + len(starts))
            for start in starts:
                self._begin_row_group(table.slice(start, size))
            self._encode_small()

    def write_batch(self, batch: pa.RecordBatch, row_group_size: int | None = None) -> None:
        """Write a batch. Unlike PyArrow, this gathers batches into row groups.

        A row group ends after `row_group_size` rows (by default the writer's) or 96 MiB of Arrow
        memory, before a table, and at the end of the file. Raise as `write_table`.
        """
        if not isinstance(batch, pa.RecordBatch):
            raise TypeError(f"batch must be a pyarrow.RecordBatch, not {type(batch).__name__}")
        size = self._check_write(batch.schema, row_group_size)
        with self._withdraw_on_error():
            while self._batches.rows + batch.num_rows >= size:
                missing = max(0, size - self._batches.rows)
                self._batches.add(batch.slice(0, missing))
                self._flush()
                batch = batch.slice(missing)
            self._batches.add(batch)
            if self._batches.size >= GATHERED_BYTES:
                self._flush()

    def write(
        self,
        table_or_batch: pa.Table | pa.RecordBatch | ArrowStream,
        row_group_size: int | None = None,
    ) -> None:
        """Write a table, a batch, or the batches of any other provider of an Arrow stream.

        Raise TypeError if the data provides none, and as `write_table`.
        """
        if isinstance(table_or_batch, pa.RecordBatch):
            self.write_batch(table_or_batch, row_group_size)
        elif isinstance(table_or_batch, pa.Table):
            self.write_table(table_or_batch, row_group_size)
        else:
            for batch in open_stream(table_or_batch):
                self.write_batch(batch, row_group_size)

    @property
    def waiting(self) -> int:
        """Arrow memory, in bytes, of the batches that wait for their row group to fill."""
        return self._batches.size

    def flush(self) -> None:
        """End the row group of the waiting batches and free them; raise as `write_table`."""
        self._check_open()
        with self._withdraw_on_error():
            self._flush()
            self._encode_small()

    def add_key_value_metadata(self, key_value_metadata: Mapping[Any, Any]) -> None:
        """Add str or bytes to the file's key-value metadata, replacing equal keys."""
        self._check_open()
        self._key_values.append(pa.KeyValueMetadata(key_value_metadata))

    def close(self) -> None:
        """Write the remaining rows and the footer, and publish the file. Idempotent.

        Raise as `write_table`, and ValueError if an earlier error closed the writer, unless an
        exception propagates; no file is left then.
        """
        if self._open is None:
            if sys.exception() is None:
                self._check_complete()
            return
        self._check_open()
        with self._withdraw_on_error():
            self._flush()
            self._encode_small()
            while self._in_flight:
                self._encrypt_oldest()
            last = self._plan_footer(self._properties) if self._key_values else self._empty
            footer = copy(last.metadata)
            footer.num_rows = sum(row_group.num_rows for row_group in self._encryption.row_groups)
            self._encryption.close(footer)
            if self._complete_companion is not None:
                self._complete_companion()
            self._detach_resources().close()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self._withdraw(error)
        else:
            self._check_complete()
            self.close()

    # --- row groups in order -------------------------------------------------------------------

    def _check_open(self) -> ExitStack:
        if self._open is None:
            raise ValueError("the writer is closed")
        self._output.check_process()
        return self._open

    def _check_complete(self) -> None:
        if self._withdrawn:
            raise ValueError("an earlier error closed the writer; no file was written")

    def _check_write(self, schema: pa.Schema, row_group_size: int | None) -> int:
        """Check the arguments of a write, and return the number of rows of its row groups."""
        self._check_open()
        if not schema.equals(self._schema, check_metadata=False):
            raise ValueError(
                "the schema differs from the writer's schema:\n"
                f"{_format_fields(schema)}\ninstead of:\n{_format_fields(self._schema)}"
            )
        return _choose_row_group_size(row_group_size, self._row_group_size)

    @contextmanager
    def _withdraw_on_error(self) -> Iterator[None]:
        """Close the writer and leave no file if the block fails."""
        try:
            yield
        except BaseException as error:
            self._withdrawn = True
            self._withdraw(error)
            raise

    def _withdraw(self, error: BaseException) -> None:
        """Close the writer, if it is still open, so that no file appears."""
        if self._open is not None:
            self._detach_resources().__exit__(type(error), error, error.__traceback__)

    def _detach_resources(self) -> ExitStack:
        """Stop accepting data, and return the resources that are still open."""
        resources, self._open = self._open, None
        assert resources is not None  # callers check
        self._in_flight.clear()
        self._batches, self._small = _Batches(), []
        return resources

    def _flush(self) -> None:
        if self._batches.rows:
            batches, self._batches = self._batches, _Batches()
            self._begin_row_group(pa.Table.from_batches(batches.batches))

    def _begin_row_group(self, rows: pa.Table) -> None:
        _check_row_group_count(self._row_group_count + 1)
        self._row_group_count += 1
        if self._cells is not None:
            rows = self._cells.encrypt(rows)
        self._small.append(rows)
        self._small_size += rows.nbytes
        if self._small_size >= ENCODED_TOGETHER:
            self._encode_small()

    def _encode_small(self) -> None:
        """Encode the pending row groups; encrypt those that are encoded, or too many in flight."""
        tables, self._small, self._small_size = self._small, [], 0
        if not tables:
            return
        if self._pool is None:
            self._encrypt(_encode(tables, self._stored, self._options))
            return
        while self._in_flight and (
            len(self._in_flight) > self._threads or self._in_flight[0].done()
        ):
            self._encrypt_oldest()
        self._in_flight.append(self._pool.submit(_encode, tables, self._stored, self._options))

    def _encrypt_oldest(self) -> None:
        self._encrypt(self._in_flight.popleft().result())

    def _encrypt(self, encoded: memoryview) -> None:
        source = MemorySource(encoded)
        first = len(self._encryption.row_groups)
        plan = plan_encryption(source, self._properties, first)
        self._encryption.add(PlainFeed(source), plan, hold_indexes=True)

    def _plan_footer(
        self, encryption: EncryptionLike, place: Place | None = None, *, overwrite: bool = True
    ) -> EncryptionPlan:
        """Return a plan with PyArrow's footer of a file without rows."""
        encoded = _encode([], self._stored, self._options, self._key_values)
        source = MemorySource(encoded)
        return plan_encryption(source, encryption, place=place, overwrite=overwrite)


class _Batches:
    """Batches that are gathered into one row group."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.rows = 0
        self.size = 0  # bytes of their data
        self._buffers: dict[int, int] = {}  # size by address, of buffers that slices refer to

    def add(self, batch: pa.RecordBatch) -> None:
        """Append a batch."""
        # A slice keeps its whole buffers in memory. This costs nothing if one slice follows another
        # in the same buffers, but a few rows of each of many large batches are copied.
        if not batch.num_rows:
            return
        self.batches.append(batch)
        self.rows += batch.num_rows
        size = batch.nbytes  # This includes whole dictionaries and the buffers of views.
        self.size += size
        if batch.get_total_buffer_size() <= 2 * size:
            return
        buffers = {b.address: b.size for c in batch.columns for b in c.buffers() if b}
        if buffers.keys() <= self._buffers.keys():
            return
        self._buffers |= buffers
        if sum(self._buffers.values()) > 2 * GATHERED_BYTES and len(self.batches) > 1:
            self.batches = [pa.concat_batches(self.batches[:-1]), self.batches[-1]]
            self._buffers = buffers


@functools.cache  # Reading signatures takes a third of the time of a small file.
def _list_known_options() -> frozenset[str]:
    functions = (pq.ParquetWriter, pq.write_table)
    known = {name for function in functions for name in inspect.signature(function).parameters}
    return frozenset(known | {"memory_pool", "overwrite", "threads"})


def _split_small(table: pa.Table, row_group_size: int | None) -> list[pa.Table]:
    """Return the row groups of a table whose rows are encoded together; none of a larger one."""
    size = _choose_row_group_size(row_group_size, ROW_GROUP_ROWS)
    starts = range(0, max(table.num_rows, 1), size)  # PyArrow writes an empty row group, too
    _check_row_group_count(len(starts))
    if len(starts) == 1 and _bound_size(table) < ENCODED_TOGETHER:
        return [table]
    small: list[pa.Table] = []
    total = 0
    for start in starts:
        small.append(table.slice(start, size))
        total += small[-1].nbytes  # with the whole dictionaries, which each row group has
        if total >= ENCODED_TOGETHER:
            return []
    return small


def _bound_size(table: pa.Table) -> float:
    """Return a number of bytes that `nbytes` does not exceed, which takes longer to find."""
    # It is infinite where chunks or nested fields may share buffers. Columns may share them, too.
    if len(table.to_batches()) > 1 or any(kind.num_fields for kind in table.schema.types):
        return math.inf
    bound = table.get_total_buffer_size() * table.num_columns
    if bound >= ENCODED_TOGETHER:
        bound = sum(column.get_total_buffer_size() for column in table.columns)
    return float(bound)


def _check_options(options: Mapping[str, Any], threads: int | None) -> int:
    """Return the number of threads; raise for an option that PyArrow or modcrypt does not have."""
    for name in _UNSUPPORTED_OPTIONS.keys() & options.keys():
        raise TypeError(f"option {name} is not supported: {_UNSUPPORTED_OPTIONS[name]}")
    _check_option_names(options)
    threads = _choose_threads(threads)
    check_threads(threads)
    return threads


def _check_option_names(options: Mapping[str, Any]) -> None:
    """Raise TypeError for an option that PyArrow does not have, and suggest a similar name."""
    known = _list_known_options()
    for name in sorted(options.keys() - known):
        from modcrypt.report.suggestions import suggest

        hint = suggest(name, sorted(known - _UNSUPPORTED_OPTIONS.keys()))
        raise TypeError(f"unknown option {name}{hint}")


def _encode(
    row_groups: list[pa.Table], schema: pa.Schema, options: Mapping[str, Any], key_values: Any = (),
    out: Any = None,
) -> memoryview:  # fmt: skip
    """Return a plaintext file, encoded into `out`, by default in little memory."""
    if out is None:
        out = io.BytesIO()  # Arrow's own buffer doubles, which takes three times as much.
    with pq.ParquetWriter(out, schema, **options) as writer:
        for metadata in key_values:
            writer.add_key_value_metadata(metadata)
        for rows in row_groups:
            prepared = prepare_dictionaries(rows)
            writer.write_table(prepared, row_group_size=rows.num_rows or None)
    return out.getbuffer() if isinstance(out, io.BytesIO) else memoryview(out.getvalue())


def _format_fields(schema: pa.Schema) -> str:
    """Format a schema without its metadata, which is encrypted in the file."""
    return str(schema.to_string(show_schema_metadata=False, show_field_metadata=False))


def _check_row_group_count(count: int) -> None:
    """Raise LimitError for too many row groups, before the first of them is encoded."""
    if count > MAX_ROW_GROUPS:
        raise LimitError(
            f"a file can have at most {MAX_ROW_GROUPS} row groups, because their ordinals are "
            f"int16 (PME 4.4.2); this file would have {count}; write larger ones"
        )


def _choose_threads(threads: int | None) -> int:
    return min(usable_cores(), MAX_THREADS) if threads is None else threads


def _choose_row_group_size(row_group_size: int | None, default: int) -> int:
    if row_group_size is None:
        return default
    if row_group_size < 1:
        raise ValueError("row_group_size must be at least 1")
    return min(row_group_size, MAX_ROW_GROUP_ROWS)

"""Arrow tables to encrypted Parquet: encoded on several threads, sealed in order.

PyArrow encodes on one thread, but row groups are independent: each is encoded by a writer of its
own into a small Parquet file in memory. The calling thread seals the finished ones, in order,
into the one encrypted file while others are being encoded.

    tables -> slices of row_group_size rows -> encoded, `threads` at a time -> sealed -> file
    batches -> gathered ---^

Small row groups are encoded several at a time: a writer of PyArrow's and its footer cost more than
such a row group.

Nothing of the plaintext but PyArrow's own buffers is ever outside the caller's tables.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import io
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from modcrypt.errors import LimitError
from modcrypt.io.buffers import WORTH_A_THREAD, check_threads, open_output, usable_cores
from modcrypt.io.storage import Destination, MemorySource, Place, place_of
from modcrypt.parquet.convert.encryptor import Encryption, PlainFeed, Plan, plan_encryption
from modcrypt.parquet.crypto.properties import Encryption as EncryptionLike
from modcrypt.parquet.crypto.properties import check_encryption
from modcrypt.parquet.format.idl import copy
from modcrypt.parquet.format.modules import MAX_ROW_GROUPS

__all__ = ["ParquetWriter", "write_table"]

ROW_GROUP_ROWS = 1 << 20
"""Rows of a row group where the caller says nothing, as in PyArrow."""

MAX_ROW_GROUP_ROWS = 64 << 20
"""Most rows of a row group, as in PyArrow."""

GATHERED_BYTES = 96 << 20
"""Arrow memory of the batches that are gathered into one row group, in bytes."""

ENCODED_TOGETHER = 1 << 20
"""Arrow memory of small row groups that are encoded into one file in memory, in bytes."""

MAX_THREADS = 4
"""Threads where the caller says nothing: each holds a row group in memory."""

_REFUSED = {
    "encryption_properties": "pass FileEncryptionProperties of modcrypt as `encryption`",
    "metadata_collector": "the file's metadata is in its footer: read it when the file is closed",
}


def write_table(
    table: pa.Table,
    where: Destination,
    encryption: EncryptionLike,
    *,
    row_group_size: int | None = None,
    filesystem: Any = None,
    overwrite: bool = True,
    threads: int | None = None,
    **options: Any,
) -> None:
    """Write an Arrow table as an encrypted Parquet file (PME 4, 5).

    The pages, row groups and statistics are those of `pyarrow.parquet.write_table`.

    Args:
        table: what to write.
        where: path, URL or writable binary file object. A path or URL appears complete or not
            at all.
        encryption: keys, footer mode, algorithm and AAD prefix; or what `KeyTools.encryption`
            gives, which makes fresh keys for the file.
        row_group_size: rows of a row group, 1 Mi by default.
        filesystem: of pyarrow or fsspec, in which `where` is a path.
        overwrite: replace an existing destination; otherwise it is a FileExistsError.
        threads: encode so many row groups at once, with `threads + 1` of them in memory; 1 does
            everything in the calling thread; by default the processors, at most 4.
        options: PyArrow's own, as `pyarrow.parquet.ParquetWriter` takes them (`compression`,
            `use_dictionary`, `data_page_version`, `write_page_index`, ...).

    Raises:
        ValueError: `encryption` names columns that the table doesn't have, or an option's value
            is a wrong one.
        TypeError: an option that PyArrow doesn't know, or an argument of another kind.
        LimitError: more row groups, columns or pages than ordinals can number (PME 4.4.2).
        KeyExhaustedError: a key has done 2**32 seals.
        pyarrow.ArrowException: PyArrow can't encode the table.
        FileExistsError, OSError: from the file system.
    """
    if not isinstance(table, pa.Table):
        raise TypeError(f"a table is a pyarrow.Table, not {type(table).__name__}")
    if threads is None and table.nbytes <= WORTH_A_THREAD:
        threads = 1
    with ParquetWriter(
        where,
        table.schema,
        encryption,
        row_group_size=row_group_size,
        filesystem=filesystem,
        overwrite=overwrite,
        threads=threads,
        **options,
    ) as writer:
        writer.write_table(table)


class ParquetWriter:
    """Writes an encrypted Parquet file bit by bit (PME 4, 5). One thread at a time may use it.

    Memory holds `threads + 1` row groups, and batches for one more. At the end of the `with`
    block the file is published; an exception in it, or in a write, leaves no file; so does a
    writer that is never closed.

    Args:
        where: path, URL or writable binary file object.
        schema: of the tables and batches to come.
        encryption: keys, footer mode, algorithm and AAD prefix; columns by their names in the
            file.
        row_group_size: rows of a row group, 1 Mi by default.
        filesystem, overwrite, threads, options: as for `write_table`.

    Raises:
        ValueError, TypeError, LimitError, FileExistsError, OSError: as `write_table`.
    """

    def __init__(
        self,
        where: Destination,
        schema: pa.Schema,
        encryption: EncryptionLike,
        *,
        row_group_size: int | None = None,
        filesystem: Any = None,
        overwrite: bool = True,
        threads: int | None = None,
        **options: Any,
    ) -> None:
        check_encryption(encryption)
        for name in _REFUSED.keys() & options.keys():
            raise TypeError(f"{name} is not taken: {_REFUSED[name]}")
        _check_names(options)
        if threads is None:
            threads = min(usable_cores(), MAX_THREADS)
        self._threads = threads
        self._row_group_size = _rows(row_group_size, ROW_GROUP_ROWS)
        self._schema, self._options = schema, options
        self._key_values: list[Any] = []
        # Raises for options and column names before a key is made or a file is there.
        check_threads(threads)
        place = place_of(where, filesystem)
        self._properties = self._footer(encryption, place, overwrite=overwrite).properties
        self._withdrawn = False
        self._begun = 0  # row groups, encoded or not
        self._batches = _Batches()
        self._small: list[pa.Table] = []  # row groups that are encoded together with the next
        self._small_size = 0
        self._in_flight: deque[Future[memoryview]] = deque()
        with ExitStack() as stack:
            self._sealed = stack.enter_context(self._properties.companion())
            out = stack.enter_context(
                open_output(
                    where, None, overwrite=overwrite, threads=threads, filesystem=filesystem
                )
            )
            self._encryption = Encryption(out, self._properties)
            self._pool = ThreadPoolExecutor(threads, "modcrypt-encoder") if threads > 1 else None
            if self._pool is not None:
                # Not waited for: what an encoder still does after a failure is nobody's concern.
                stack.callback(self._pool.shutdown, wait=False, cancel_futures=True)
            # Left to the garbage collector, it unwinds as after an error.
            self._open: ExitStack | None = stack.pop_all()

    def write_table(self, table: pa.Table, row_group_size: int | None = None) -> None:
        """Write a table in row groups of its own.

        Args:
            row_group_size: rows of each, the last may have fewer; by default the writer's.

        Raises:
            ValueError: the writer is closed, or the table has another schema.
            LimitError, KeyExhaustedError, pyarrow.ArrowException, OSError: as the function
                `write_table`; the writer is closed then. What an encoding thread raises may come
                from a later call.
        """
        if not isinstance(table, pa.Table):
            raise TypeError(f"a table is a pyarrow.Table, not {type(table).__name__}")
        size = self._check(table.schema, row_group_size)
        with self._or_withdrawn():
            self._flush()
            # PyArrow writes a row group of no rows for a table of no rows.
            starts = range(0, max(table.num_rows, 1), size)
            self._check_number(len(starts))
            for start in starts:
                self._begin(table.slice(start, size))
            self._encode_small()

    def write_batch(self, batch: pa.RecordBatch, row_group_size: int | None = None) -> None:
        """Write a batch. Unlike in PyArrow, batches are gathered into row groups.

        A row group ends after `row_group_size` rows or 96 MiB of Arrow memory, before a table
        and at the end of the file.

        Args:
            row_group_size: rows of a row group, by default the writer's.

        Raises:
            as `write_table`.
        """
        if not isinstance(batch, pa.RecordBatch):
            raise TypeError(f"a batch is a pyarrow.RecordBatch, not {type(batch).__name__}")
        size = self._check(batch.schema, row_group_size)
        with self._or_withdrawn():
            while self._batches.rows + batch.num_rows >= size:
                room = max(0, size - self._batches.rows)
                self._batches.add(batch.slice(0, room))
                self._flush()
                batch = batch.slice(room)
            self._batches.add(batch)
            if self._batches.size >= GATHERED_BYTES:
                self._flush()

    def write(
        self, table_or_batch: pa.Table | pa.RecordBatch, row_group_size: int | None = None
    ) -> None:
        """Write a table or a batch; raises as `write_table` and `write_batch`."""
        if isinstance(table_or_batch, pa.RecordBatch):
            self.write_batch(table_or_batch, row_group_size)
        else:
            self.write_table(table_or_batch, row_group_size)

    @property
    def waiting(self) -> int:
        """Arrow memory of the batches that wait for their row group to fill, in bytes."""
        return self._batches.size

    def flush(self) -> None:
        """End the row group of the batches that wait, and free them; raises as `write_table`."""
        self._check_open()
        with self._or_withdrawn():
            self._flush()
            self._encode_small()

    def add_key_value_metadata(self, key_value_metadata: Mapping[Any, Any]) -> None:
        """Add to the file's key-value metadata, over what is there under the same keys.

        Raises:
            ValueError: the writer is closed.
            TypeError: keys or values are neither str nor bytes.
        """
        self._check_open()
        self._key_values.append(pa.KeyValueMetadata(key_value_metadata))

    def close(self) -> None:
        """Write what is left and the footer, and publish the file. Closing again does nothing.

        Raises:
            as `write_table`; there is no file then.
        """
        if self._open is None:
            return
        with self._or_withdrawn():
            self._flush()
            self._encode_small()
            while self._in_flight:
                self._seal_oldest()
            footer = copy(self._footer(self._properties).metadata)
            footer.num_rows = sum(row_group.num_rows for row_group in self._encryption.row_groups)
            self._encryption.close(footer)
            if self._sealed is not None:
                self._sealed()
            self._close().close()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self._withdraw(error)
        elif self._withdrawn:
            raise ValueError("an earlier error closed the writer: there is no file")
        else:
            self.close()

    # --- one after the other -------------------------------------------------------------------

    def _check_open(self) -> ExitStack:
        if self._open is None:
            raise ValueError("the writer is closed")
        return self._open

    def _check(self, schema: pa.Schema, row_group_size: int | None) -> int:
        """Check what a write is called with; give the rows of its row groups."""
        self._check_open()
        if not schema.equals(self._schema, check_metadata=False):
            raise ValueError(
                "the schema is not the one that the writer was made with:\n"
                f"{_fields(schema)}\ninstead of:\n{_fields(self._schema)}"
            )
        return _rows(row_group_size, self._row_group_size)

    @contextmanager
    def _or_withdrawn(self) -> Iterator[None]:
        """Close the writer and leave no file if the block fails."""
        try:
            yield
        except BaseException as error:
            self._withdrawn = True
            self._withdraw(error)
            raise

    def _withdraw(self, error: BaseException) -> None:
        """Close the writer, if it is open still, so that no file appears."""
        if self._open is not None:
            self._close().__exit__(type(error), error, error.__traceback__)

    def _close(self) -> ExitStack:
        """Take no more; give what is open still."""
        resources = self._check_open()
        self._open = None
        self._in_flight.clear()
        self._batches, self._small = _Batches(), []
        return resources

    def _flush(self) -> None:
        """Begin a row group of the batches that are gathered."""
        if self._batches.rows:
            batches, self._batches = self._batches, _Batches()
            self._begin(pa.Table.from_batches(batches.batches))

    def _check_number(self, more: int) -> None:
        """Refuse too many row groups before the first of them is encoded."""
        if self._begun + more > MAX_ROW_GROUPS:
            raise LimitError(
                f"a file has at most {MAX_ROW_GROUPS} row groups, their ordinals are int16 (PME "
                f"4.4.2), and this would be {self._begun + more}; write larger ones"
            )

    def _begin(self, rows: pa.Table) -> None:
        """Add a row group to those that are encoded next."""
        self._check_number(1)
        self._begun += 1
        self._small.append(rows)
        self._small_size += rows.nbytes
        if self._small_size >= ENCODED_TOGETHER:
            self._encode_small()

    def _encode_small(self) -> None:
        """Have row groups encoded; seal finished ones, and the oldest to make room."""
        tables, self._small, self._small_size = self._small, [], 0
        if not tables:
            return
        if self._pool is None:
            self._seal(_encode(tables, self._schema, self._options))
            return
        while self._in_flight and (
            len(self._in_flight) > self._threads or self._in_flight[0].done()
        ):
            self._seal_oldest()
        self._in_flight.append(self._pool.submit(_encode, tables, self._schema, self._options))

    def _seal_oldest(self) -> None:
        self._seal(self._in_flight.popleft().result())

    def _seal(self, encoded: memoryview) -> None:
        source = MemorySource(encoded)
        first = len(self._encryption.row_groups)
        plan = plan_encryption(source, self._properties, first)
        self._encryption.add(PlainFeed(source), plan, hold_indexes=True)

    def _footer(
        self, encryption: EncryptionLike, place: Place | None = None, *, overwrite: bool = True
    ) -> Plan:
        """Give PyArrow's footer of a file of no rows: schema, key-value metadata and the like."""
        encoded = _encode([], self._schema, self._options, self._key_values)
        source = MemorySource(encoded)
        return plan_encryption(source, encryption, place=place, overwrite=overwrite)


class _Batches:
    """Batches on their way into one row group."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.rows = 0
        self.size = 0  # of their data, in bytes
        self._buffers: dict[int, int] = {}  # address to size, of those that are there in slices

    def add(self, batch: pa.RecordBatch) -> None:
        """Append a batch.

        Slices keep the whole of their buffers in memory. That costs nothing where one follows the
        other in the same buffers; but few rows of each of many large batches are copied.
        """
        if not batch.num_rows:
            return
        self.batches.append(batch)
        self.rows += batch.num_rows
        size = batch.nbytes  # whole dictionaries and the buffers of views included
        self.size += size
        if batch.get_total_buffer_size() > 2 * size:
            self._keep_small({b.address: b.size for c in batch.columns for b in c.buffers() if b})

    def _keep_small(self, buffers: dict[int, int]) -> None:
        """Note the last batch's buffers, address to size; copy earlier slices out of theirs."""
        if buffers.keys() <= self._buffers.keys():
            return
        self._buffers |= buffers
        if sum(self._buffers.values()) > 2 * GATHERED_BYTES and len(self.batches) > 1:
            self.batches = [pa.concat_batches(self.batches[:-1]), self.batches[-1]]
            self._buffers = buffers


@functools.cache  # signatures take as long as a third of a small file
def _known_options() -> frozenset[str]:
    """Return the names of PyArrow's options for writing, and of our own."""
    functions = (pq.ParquetWriter, pq.write_table)
    known = {name for function in functions for name in inspect.signature(function).parameters}
    return frozenset(known | {"memory_pool", "overwrite", "threads"})


def _check_names(options: Mapping[str, Any]) -> None:
    """Raise TypeError if PyArrow has no option of a name, with the name it is most like."""
    known = _known_options()
    for name in sorted(options.keys() - known):
        near = difflib.get_close_matches(name, sorted(known - _REFUSED.keys()), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise TypeError(f"unknown option {name}{hint}")


def _encode(
    row_groups: list[pa.Table], schema: pa.Schema, options: Mapping[str, Any], key_values: Any = ()
) -> memoryview:
    """Encode a Parquet file in memory."""
    out = io.BytesIO()  # grows in small steps: Arrow's own doubles, which takes three times as much
    with pq.ParquetWriter(out, schema, **options) as writer:
        for metadata in key_values:
            writer.add_key_value_metadata(metadata)
        for rows in row_groups:
            writer.write_table(rows, row_group_size=rows.num_rows or None)
    return out.getbuffer()


def _fields(schema: pa.Schema) -> str:
    """Spell a schema without its metadata, which is sealed in the file."""
    return str(schema.to_string(show_schema_metadata=False, show_field_metadata=False))


def _rows(row_group_size: int | None, default: int) -> int:
    if row_group_size is None:
        return default
    if row_group_size < 1:
        raise ValueError("row_group_size is at least 1")
    return min(row_group_size, MAX_ROW_GROUP_ROWS)

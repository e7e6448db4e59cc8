"""Data files of a table, opened: Parquet (PME) page by page as it is read, Avro (AGS1) by rows.

Either gives batches of columns with field ids, as the file has them; `projection` makes rows of the
table of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from modcrypt.errors import FormatError, KeyNotFoundError, UnsupportedFormatError
from modcrypt.iceberg.format.avro_files import AvroRows, open_avro
from modcrypt.iceberg.format.avro_rows import ColumnsOf, columns_of
from modcrypt.iceberg.format.manifests import FileEntry
from modcrypt.iceberg.read.pyarrow_decryption import (
    HeldSource,
    Readable,
    StoredFile,
    open_natively,
    whole_if_small,
)
from modcrypt.iceberg.read.table_walk import Walk
from modcrypt.io.buffers import Shared
from modcrypt.io.seekable import SeekableFile
from modcrypt.io.storage import Source
from modcrypt.key_metadata import StandardKeyMetadata
from modcrypt.parquet.arrow.decoding import is_fault_of_bytes
from modcrypt.parquet.arrow.view import PlaintextView
from modcrypt.parquet.crypto.file_plan import OpenFile
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.parquet.format.framing import MAGIC_ENCRYPTED

__all__ = ["Batch", "DataFile", "open_data_file", "open_parquet_file"]


_BATCH_ROWS = 1 << 17


class Batch(NamedTuple):
    """Rows that follow each other in a file; `start` is the position of the first."""

    rows: pa.RecordBatch
    start: int


class DataFile(Protocol):
    """A file that is open."""

    schema: pa.Schema
    """Of its columns, with field ids."""

    def batches(
        self, columns: Sequence[str], filters: pc.Expression | None, *, threads: bool
    ) -> Iterator[Batch]:
        """Give rows.

        Args:
            columns: names.
            filters: which rows are wanted; others may come, too.
            threads: whether columns are to be decoded side by side.
        """


@contextmanager
def open_data_file(walk: Walk, entry: FileEntry) -> Iterator[DataFile]:
    """Open a data file.

    Raises:
        UnsupportedFormatError: it is ORC, which Iceberg does not encrypt.
        ModcryptError: its key can't be had, or it is not what was written.
        OSError: from the file system.
    """
    if entry.file_format == "PARQUET":
        with ExitStack() as stack:
            yield _parquet(walk, entry, stack)
    elif entry.file_format == "AVRO":
        data = walk.read(entry.location, walk.file_keys(entry), entry.size)
        avro = open_avro(data, entry.location)
        yield _Avro(avro, columns_of(avro.schema, entry.location))
    else:
        raise UnsupportedFormatError(f"{entry.location}: files in {entry.file_format} aren't read")


@contextmanager
def open_parquet_file(walk: Walk, entry: FileEntry) -> Iterator[SeekableFile]:
    """Open a Parquet file as a file object with its plaintext; raises as `open_data_file`."""
    keys = walk.file_keys(entry)
    with _held(walk, entry) as source, _plaintext(source, keys) as file:
        yield file


@contextmanager
def _held(walk: Walk, entry: FileEntry) -> Iterator[Source]:
    """Open a file as it is stored; PyArrow's threads may still read it when the block is left."""
    with ExitStack() as stack:
        source = stack.enter_context(walk.opened(entry.location, entry.size))
        shared = Shared(stack.pop_all())
    try:
        yield HeldSource(source, shared)
    finally:
        shared.close()


def _parquet(walk: Walk, entry: FileEntry, stack: ExitStack) -> _Parquet:
    keys = walk.file_keys(entry)
    source = stack.enter_context(_held(walk, entry))
    native = None if keys is None else open_natively(source, keys)
    return _Parquet(native, lambda: stack.enter_context(_plaintext(source, keys)))


def _plaintext(source: Source, keys: StandardKeyMetadata | None) -> SeekableFile:
    if keys is None:
        _check_plain(source, source.name)
        return StoredFile(source)
    return PlaintextView(source, OpenFile(source, _properties(keys)).select(None))


def _properties(keys: StandardKeyMetadata) -> FileDecryptionProperties:
    """Give what opens a file of Iceberg's Java: uniform encryption, the AAD prefix not stored."""
    return FileDecryptionProperties(footer_key=keys.key, aad_prefix=keys.aad_prefix or None)


def _check_plain(source: Source, name: str) -> None:
    size = len(MAGIC_ENCRYPTED)
    if source.size >= size and source.read_at(source.size - size, size) == MAGIC_ENCRYPTED:
        raise KeyNotFoundError(f"{name}: the file is encrypted, and no key metadata is kept for it")


class _Parquet:
    """A Parquet file: as PyArrow decrypts it, as far as that goes, and then by its plaintext."""

    def __init__(self, native: Readable | None, plaintext: Callable[[], SeekableFile]) -> None:
        self._native, self._plaintext = native, plaintext
        self._opened: tuple[Readable, pq.ParquetFile] | None = None
        self.schema: pa.Schema = self._do(lambda _, parquet: parquet.schema_arrow)

    def batches(
        self, columns: Sequence[str], filters: pc.Expression | None, *, threads: bool
    ) -> Iterator[Batch]:
        metadata, start = self._do(lambda _, parquet: parquet.metadata), 0
        wanted = None
        if filters is not None:
            wanted = self._do(lambda readable, _: readable.groups(filters, self.schema))
        for number in range(metadata.num_row_groups):
            count = metadata.row_group(number).num_rows
            if wanted is None or number in wanted:
                for one in self._rows(number, columns, count, threads):
                    yield Batch(one, start)
                    start += one.num_rows
            else:
                start += count

    def _rows(
        self, number: int, columns: Sequence[str], count: int, threads: bool
    ) -> Iterable[pa.RecordBatch]:
        if not columns:
            return [pa.record_batch([pa.nulls(count)], names=["none"]).select([])]
        names = None if list(columns) == self.schema.names else list(columns)
        try:
            rows = self._read(number, names, threads)
        except Exception as error:
            if not is_fault_of_bytes(error):
                raise
            column = self._damaged(number, columns)
            kind = type(error).__name__
            raise FormatError(f"column {column}: PyArrow can't decode its pages ({kind})") from None
        # A name may be the beginning of another that has a dot: that came, too.
        batches: list[pa.RecordBatch] = rows.select(columns).to_batches(_BATCH_ROWS)
        return batches

    def _read(self, number: int, names: Sequence[str] | None, threads: bool) -> pa.Table:
        return self._do(
            lambda _, parquet: parquet.read_row_group(number, names, use_threads=threads)
        )

    def _damaged(self, number: int, columns: Sequence[str]) -> str:
        """Return the first column of a row group that can't be decoded."""
        for name in columns:
            try:
                self._read(number, [name], False)
            except Exception as error:
                if not is_fault_of_bytes(error):
                    raise
                return name
        return ", ".join(columns)

    def _do(self, work: Callable[[Readable, pq.ParquetFile], Any]) -> Any:
        """Do it by PyArrow's decryption; where that fails, by the plaintext, which says why."""
        if self._native is not None:
            try:
                return work(*self._open(self._native))
            except Exception:
                self._native = self._opened = None
        if self._opened is None:
            return work(*self._open(Readable(whole_if_small(self._plaintext()))))
        return work(*self._opened)

    def _open(self, readable: Readable) -> tuple[Readable, pq.ParquetFile]:
        if self._opened is None:
            self._opened = readable, readable.parquet()
        return self._opened


class _Avro:
    def __init__(self, rows: AvroRows, columns: ColumnsOf) -> None:
        self._rows, self._columns = rows, columns
        self.schema = columns.schema

    def batches(
        self, columns: Sequence[str], filters: pc.Expression | None, *, threads: bool
    ) -> Iterator[Batch]:
        del filters, threads  # all rows come
        start = 0
        for lot in self._rows.lots:
            batch = self._columns.convert(lot).select(list(columns))
            yield Batch(batch, start)
            start += len(lot)

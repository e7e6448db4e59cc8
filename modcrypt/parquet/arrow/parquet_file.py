"""Encrypted Parquet to Arrow: `ParquetFile`."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from modcrypt.fork_safety import fork_safe
from modcrypt.io.buffers import Shared, Threads, usable_cores
from modcrypt.io.storage import SourceLike, open_source
from modcrypt.parquet.arrow.chunk_loading import footer_alone
from modcrypt.parquet.arrow.decoding import Decoder
from modcrypt.parquet.arrow.file_scan import Request, Scan, Session, joined, schema_file
from modcrypt.parquet.crypto.file_identity import FileIdentity
from modcrypt.parquet.crypto.file_plan import OpenFile
from modcrypt.parquet.crypto.plaintext_footer import plain_metadata, selected_row_groups
from modcrypt.parquet.crypto.properties import FileDecryptionProperties

__all__ = ["Filters", "ParquetFile", "as_expression", "limited"]

Filters: TypeAlias = "pc.Expression | list[Any]"
"""A pyarrow expression, or tuples as pyarrow.parquet takes them (disjunctive normal form)."""

TABLE_BYTES = 64 << 20
"""Sealed bytes of a lot when a table is read; two lots are read at once."""

BATCH_BYTES = 32 << 20
"""The same for batches: one lot is decoded while the next one is opened."""

_MAX_THREADS = 8


class ParquetFile:
    """An encrypted Parquet file, to be read as Arrow data; safe to use from several threads.

    The footer is read now. Keys are looked for, and chunks read and opened, when they are needed.

    Args:
        source: path, URL, bytes or seekable binary file object.
        decryption: keys, and what the caller insists on.
        filesystem: where a path is to be found: a filesystem of pyarrow or fsspec.
        expected: Version of the file that it must be, if it was opened before; None for any.
        options: how PyArrow is to decode: `read_dictionary`, `coerce_int96_timestamp_unit`,
            `binary_type`, `list_type`, `page_checksum_verification`, `arrow_extensions_enabled`.

    Raises:
        ModcryptError: as `decrypt_parquet`, for the footer now and for the rest on reading.
        OSError: From the file system, or the file is another one than `expected`.
    """

    def __init__(
        self,
        source: SourceLike,
        decryption: FileDecryptionProperties,
        *,
        filesystem: Any = None,
        expected: FileIdentity | None = None,
        **options: Any,
    ) -> None:
        usual = {"pre_buffer": False, "arrow_extensions_enabled": True}  # as pyarrow.parquet has it
        options = usual | options
        of_format = dict(options)
        if "read_dictionary" in options:
            of_format["dictionary_columns"] = of_format.pop("read_dictionary")
        layout = ds.ParquetFileFormat(**of_format)
        threads = min(usable_cores(), _MAX_THREADS)
        with ExitStack() as stack:
            opened = stack.enter_context(open_source(source, filesystem=filesystem))
            self._session = Session(
                file=OpenFile(opened, decryption, expected),
                format=layout,
                decoder=Decoder(opened.name, options),
                pool=stack.enter_context(closing(Threads(threads, "modcrypt-open"))),
                ahead=stack.enter_context(closing(Threads(2, "modcrypt-ahead"))),
                lock=fork_safe(threading.Lock()),
                shared=Shared(stack.pop_all()),
            )

    # --- what is there ---------------------------------------------------------------------------

    @property
    def opened(self) -> OpenFile:
        """What the footer says, opened and checked."""
        return self._session.file

    @property
    def num_row_groups(self) -> int:
        """Number of row groups."""
        return len(self._session.file.metadata.row_groups)

    @property
    def num_rows(self) -> int:
        """Number of rows, as the footer says."""
        return int(self._session.file.metadata.num_rows)

    @property
    def schema(self) -> pq.ParquetSchema:
        """The Parquet schema, for which the footer key is enough."""
        return self._session.decoder.open(self._schema_file()).schema

    @property
    def schema_arrow(self) -> pa.Schema:
        """The Arrow schema, for which the footer key is enough."""
        return self._session.decoder.open(self._schema_file()).schema_arrow

    def _schema_file(self) -> pa.Buffer:
        file = self._session.file
        return schema_file(file.metadata, range(len(file.leaves)), ())

    @property
    def metadata(self) -> pq.FileMetaData:
        """The metadata of the columns whose keys are there, with offsets in the encrypted file.

        Raises:
            KeyNotFoundError: a key is missing, and `on_missing_key` is "error".
        """
        plan = self._session.select(None, None)
        metadata, _ = plain_metadata(plan, selected_row_groups(plan), plan.footer.body_end)
        return self._session.decoder.open(footer_alone(metadata)).metadata

    # --- reading ---------------------------------------------------------------------------------

    def read(
        self,
        columns: Sequence[str] | None = None,
        *,
        filters: Filters | None = None,
        row_groups: Sequence[int] | None = None,
        use_threads: bool = True,
    ) -> pa.Table:
        """Read columns and rows as a table.

        Args:
            columns: names of columns or groups, in the order wanted; None for all.
            filters: rows to keep. Row groups and pages that can't have any are not opened.
            row_groups: ordinals; None for all.
            use_threads: decode on several threads.

        Raises:
            ValueError: the file doesn't have a column or row group.
            KeyNotFoundError: a key is missing, and `on_missing_key` is "error"; or the filter
                reads a column whose key is missing.
            ModcryptError: something does not authenticate or breaks the format.
        """
        request = Request(columns=columns, filter=as_expression(filters), row_groups=row_groups)
        return self.read_request(request, use_threads=use_threads)

    def read_row_group(self, i: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Read one row group as a table; raises as `read`."""
        return self.read(columns, row_groups=[i])

    def iter_batches(
        self,
        batch_size: int = 65536,
        *,
        columns: Sequence[str] | None = None,
        filters: Filters | None = None,
        row_groups: Sequence[int] | None = None,
        limit: int | None = None,
        use_threads: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        """Read batches of at most `batch_size` rows, in order; raises as `read`.

        With `limit`, so many rows are given; without a filter, no page is opened that has none of
        them, where a page index tells.

        In memory are at most two lots of 32 MiB of the file, or two row groups where those are
        larger, and what PyArrow makes of one.
        """
        request = Request(
            columns=columns, filter=as_expression(filters), row_groups=row_groups, limit=limit
        )
        batches = self.batches_of_request(request, batch_size=batch_size, use_threads=use_threads)
        return limited(batches, limit)

    def types_of(self, request: Request) -> tuple[pa.Schema, pa.Schema]:
        """Give the schema of all that a request reads, and of what it gives out."""
        scan = self._scan(request)
        return scan.schema, scan.result

    def read_request(self, request: Request, **options: Any) -> pa.Table:
        """Do what `read` does, for a file of a dataset."""
        scan = self._scan(request)
        with scan.explained():
            return joined(scan.tables(TABLE_BYTES, **options), scan.result)

    def batches_of_request(self, request: Request, **options: Any) -> Iterator[pa.RecordBatch]:
        """Do what `iter_batches` does, for a file of a dataset."""
        return _batches(self._scan(request), options)  # planned now: a mistake shows at once

    def _scan(self, request: Request) -> Scan:
        with self._session.shared.use():
            return Scan(self._session, request)

    # --- closing ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the source, if it was opened here, after the last read. Again, it does nothing."""
        self._session.shared.close()

    def __enter__(self) -> ParquetFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _batches(scan: Scan, options: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    with scan.explained():
        yield from scan.batches(BATCH_BYTES, **options)


def limited(batches: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """Give the batches up to a number of rows.

    Raises:
        ValueError: the number is negative.
    """
    if limit is None:
        return batches
    if limit < 0:
        raise ValueError("limit is 0 or more")
    return _first(batches, limit)


def _first(batches: Iterator[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    while limit > 0 and (batch := next(batches, None)) is not None:
        yield batch.slice(0, limit)
        limit -= batch.num_rows


def as_expression(filters: Filters | None) -> pc.Expression | None:
    """Give what pyarrow.parquet's filters mean, as an expression."""
    if isinstance(filters, str):
        raise TypeError("filters are a pyarrow expression or tuples, not a string")
    if isinstance(filters, list):
        filters = [_with_narrow_numbers(part) for part in filters]
    return None if filters is None else pq.filters_to_expression(filters)


def _with_narrow_numbers(part: Any) -> Any:
    """Convert numbers in a filter's tuples to the narrowest unsigned type that holds them.

    PyArrow takes them for int64, and casts columns of uint64 and decimals, whose values need not
    fit.
    """
    if isinstance(part, list):
        return [_with_narrow_numbers(one) for one in part]
    if not (isinstance(part, tuple) and len(part) == 3 and type(part[2]) is int):
        return part
    kinds = (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
    fitting = (kind for kind in kinds if 0 <= part[2] < 1 << kind.bit_width)
    kind = next(fitting, None)
    return part if kind is None else (*part[:2], pa.scalar(part[2], kind))

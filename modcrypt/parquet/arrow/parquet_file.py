"""`ParquetFile`: read an encrypted Parquet file as Arrow data."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from modcrypt.io.sources import SourceLike, open_source
from modcrypt.io.threads import SharedResources, ThreadPool
from modcrypt.keys import hide_keys
from modcrypt.parquet.arrow.chunk_loading import make_footer_file
from modcrypt.parquet.arrow.decoding import Decoder
from modcrypt.parquet.arrow.filters import Filters, as_filter
from modcrypt.parquet.arrow.scanning.file_scan import Scan, concatenate_tables
from modcrypt.parquet.arrow.scanning.scan_session import Request, Session, as_columns
from modcrypt.parquet.arrow.schema_files import SchemaFile
from modcrypt.parquet.convert.plaintext_footer import plain_metadata
from modcrypt.parquet.crypto.file_plan import OpenFile
from modcrypt.parquet.crypto.properties import AnyDecryption, SubjectKeys
from modcrypt.parquet.format.framing import FileIdentity
from modcrypt.report.fact_sheet import FactSheet
from modcrypt.runtime.collector import paused_collector

TABLE_BYTES = 64 << 20  # encrypted bytes of a lot when a table is read; two lots are read at once

BATCH_BYTES = 32 << 20
"""Encrypted bytes of a lot when batches are read; one is decoded while the next is decrypted."""

_MAX_THREADS = 8

_DECODING = {"pre_buffer": False, "arrow_extensions_enabled": True}  # as in pyarrow.parquet


class ParquetFile(FactSheet):
    """An encrypted Parquet file, read as Arrow data; safe to use from several threads.

    The constructor reads the footer. Keys are retrieved, and chunks read and decrypted, on demand.

    Args:
        source: Path, URL, bytes or seekable binary file object.
        decryption: Keys, and the caller's requirements, as for `decrypt_parquet`.
        filesystem: Filesystem of pyarrow or fsspec that contains the path.
        expected: Version that the file must have, if it was opened before; None for any.
        subjects: `modcrypt.subjects.Subjects`, to decrypt values that are encrypted one by one;
            None for those of the properties, if any.
        options: PyArrow's options for decoding: `read_dictionary`, `coerce_int96_timestamp_unit`,
            `binary_type`, `list_type`, `page_checksum_verification`, `arrow_extensions_enabled`.

    Raises:
        ModcryptError: As `decrypt_parquet`, for the footer now and for the rest on reading.
        OSError: The file system reports an error, or the file is not the version `expected`.
    """

    @hide_keys
    def __init__(
        self,
        source: SourceLike,
        decryption: AnyDecryption,
        *,
        filesystem: Any = None,
        expected: FileIdentity | None = None,
        subjects: SubjectKeys | None = None,
        **options: Any,
    ) -> None:
        decoding = _DECODING | options
        if options:  # PyArrow checks them
            _ = Decoder("", decoding).format
        with ExitStack() as stack:
            opened = stack.enter_context(open_source(source, filesystem=filesystem))
            file = OpenFile(opened, decryption, expected)
            self._start(file, Decoder(opened.name, decoding), stack, subjects)

    @classmethod
    def of_open_file(cls, file: OpenFile, subjects: SubjectKeys | None) -> ParquetFile:
        """Return a reader of an open file, whose source is not closed with it."""
        made = cls.__new__(cls)
        with ExitStack() as stack:
            made._start(file, Decoder(file.raw.name, _DECODING), stack, subjects)
        return made

    def _start(
        self, file: OpenFile, decoder: Decoder, resources: ExitStack, subjects: SubjectKeys | None
    ) -> None:
        """Take over the resources of an open file, to close them after the last read."""
        pool = ThreadPool(_MAX_THREADS, "modcrypt-open", of_cores=True)
        ahead = ThreadPool(2, "modcrypt-ahead")
        resources.callback(_close_pools, pool, ahead)
        self._session = Session(file, decoder, pool, ahead, SharedResources(resources.pop_all()))
        subjects = subjects or file.properties.subjects
        self._cells = None if subjects is None else subjects.reader(self._session)

    def facts(self) -> list[tuple[str, str]]:
        """Return labels and values for a terminal or notebook."""
        return [
            ("File", self._session.decoder.name),
            ("Rows", f"{self.num_rows:,}"),
            ("Row groups", f"{self.num_row_groups:,}"),
            ("Columns", f"{self.open_file.leaf_count:,}"),
        ]

    @property
    def open_file(self) -> OpenFile:
        """The opened and checked footer, with its keys."""
        return self._session.file

    @property
    def decoder(self) -> Decoder:
        """The decoder, with PyArrow's options."""
        return self._session.decoder

    @property
    def num_row_groups(self) -> int:
        """Number of row groups."""
        return len(self._session.file.metadata.row_groups)

    @property
    def num_rows(self) -> int:
        """Number of rows according to the footer."""
        return int(self._session.file.metadata.num_rows)

    @property
    def schema(self) -> pq.ParquetSchema:
        """The Parquet schema. Reading it needs only the footer key."""
        return self.open_schema(range(self.open_file.leaf_count)).schema

    @property
    def schema_arrow(self) -> pa.Schema:
        """The Arrow schema. Reading it needs only the footer key."""
        return self.to_plain(self.open_schema(range(self.open_file.leaf_count)).schema_arrow)

    @property
    def frozen_schema(self) -> Hashable:
        """All parts of the footer that affect the schema, as a value to compare."""
        return self._session.frozen_schema

    def open_schema(self, leaves: Collection[int]) -> SchemaFile:
        """Return a file without rows with the schema of some leaves, given by their ordinals."""
        return self._session.open_schema(leaves)

    def to_plain(self, schema: pa.Schema) -> pa.Schema:
        """Return a schema of this file in which cells have the types of the values they read as."""
        plain: pa.Schema = schema if self._cells is None else self._cells.to_plain(schema)
        return plain

    @property
    def cell_names(self) -> frozenset[str]:
        """Names of the columns with values that are encrypted one by one, and read as values."""
        return frozenset(path[0] for path in self.cell_paths)

    @property
    def cell_paths(self) -> frozenset[tuple[str, ...]]:
        """Paths of the leaves with such values."""
        return frozenset(path for field in self.cell_fields.values() for path in field.paths)

    @property
    def cell_fields(self) -> Mapping[str, Any]:
        """The columns with such values by name, as `modcrypt.subjects` describes them."""
        return {} if self._cells is None else self._cells.fields

    @property
    def metadata(self) -> pq.FileMetaData:
        """The metadata of the columns whose keys are available, with offsets in the encrypted file.

        Raise KeyNotFoundError if a key is missing and `on_missing_key` is "error".
        """
        plan = self._session.select(None, None)
        metadata, _ = plain_metadata(plan, None, plan.footer.body_end)
        return self._session.decoder.open(make_footer_file(metadata)).metadata

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
            columns: Names of columns or groups, in the order wanted; None for all.
            filters: Condition for the rows to keep. Row groups and pages that cannot contain such
                rows are not decrypted.
            row_groups: Ordinals of row groups; None for all.
            use_threads: Decode on several threads.

        Raises:
            ValueError: The file does not have a column or row group.
            KeyNotFoundError: A key is missing, and `on_missing_key` is "error"; or the filter reads
                a column whose key is missing.
            ModcryptError: A module does not authenticate or breaks the format.
        """
        request = Request(
            columns=as_columns(columns),
            filter=as_filter(filters),
            row_groups=None if row_groups is None else list(row_groups),
        )
        return self.read_request(request, use_threads=use_threads)

    def read_row_group(self, i: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Read one row group as a table; raise as `read`."""
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
        """Yield batches of at most `batch_size` rows, in order; raise as `read`.

        `limit` is the maximum number of rows. Without a filter, and if the file has page indexes,
        pages beyond the limit are not decrypted.

        Memory holds at most two lots of 32 MiB of the file, or two row groups if those are larger,
        and the decoded rows of one.
        """
        if batch_size < 1:
            raise ValueError("batch_size must be at least 1")
        request = Request(
            columns=as_columns(columns),
            filter=as_filter(filters),
            row_groups=None if row_groups is None else list(row_groups),
            limit=limit,
        )
        batches = self.batches_of_request(request, batch_size=batch_size, use_threads=use_threads)
        return limit_rows(batches, limit)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return all rows as an Arrow stream, for Polars, DuckDB, pandas and others.

        The consumer reads it in bounded memory, and reports errors as its own, with their text.
        """
        request = Request()
        _, schema = self.types_of(request)
        batches = self.batches_of_request(request, batch_size=65536, use_threads=True)
        reader = pa.RecordBatchReader.from_batches(schema, batches)
        return reader.__arrow_c_stream__(requested_schema)

    def types_of(self, request: Request) -> tuple[pa.Schema, pa.Schema]:
        """Return the schemas of the fields that a request reads and of those that it returns."""
        scan = self._make_scan(request)
        return scan.schema, scan.result

    @paused_collector()
    def read_request(self, request: Request, **options: Any) -> pa.Table:
        """Read a table as `read`, for a file of a dataset."""
        scan = self._make_scan(request)
        try:
            return concatenate_tables(scan.read_tables(TABLE_BYTES, **options), scan.result)
        except pa.ArrowInvalid:
            scan.explain_cast_error()
            raise

    def batches_of_request(self, request: Request, **options: Any) -> Iterator[pa.RecordBatch]:
        """Return batches as `iter_batches`, for a file of a dataset."""
        # The scan is planned now, so that mistakes are reported at once.
        return _read_batches(self._make_scan(request), options)

    def _make_scan(self, request: Request) -> Scan:
        with self._session.shared:
            if self._cells is None:
                return Scan(self._session, request)
            scan: Scan = self._cells.scan(request)
            return scan

    def close(self) -> None:
        """Close the source, if it was opened here, after the last read. Idempotent."""
        self._session.shared.close()

    def __enter__(self) -> ParquetFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _close_pools(*pools: ThreadPool) -> None:
    for pool in pools:
        pool.close()


def _read_batches(scan: Scan, options: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    try:
        yield from scan.read_batches(BATCH_BYTES, **options)
    except pa.ArrowInvalid:
        scan.explain_cast_error()
        raise


def limit_rows(batches: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """Return the batches up to a number of rows; raise ValueError if the number is negative."""
    if limit is None:
        return batches
    if limit < 0:
        raise ValueError("limit must be 0 or more")
    return _take_rows(batches, limit)


def _take_rows(batches: Iterator[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    while limit > 0 and (batch := next(batches, None)) is not None:
        yield batch.slice(0, limit)
        limit -= batch.num_rows

"""`read_table` and `iter_batches`: read one encrypted Parquet file, or a dataset, as Arrow data.

Each file of a dataset is read like a single file, with its own keys. All files share the types,
which come from the first file, and the fields that folder names contain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.fs as pafs

from modcrypt.errors import FormatError
from modcrypt.io.store_errors import name_path_in_errors
from modcrypt.io.threads import in_threads, usable_cores
from modcrypt.keys import hide_keys
from modcrypt.parquet.arrow.filters import Filters, as_filter, fit_filter
from modcrypt.parquet.arrow.parquet_file import ParquetFile, limit_rows
from modcrypt.parquet.arrow.scanning.file_scan import concatenate_tables
from modcrypt.parquet.arrow.scanning.scan_session import Request, as_columns
from modcrypt.parquet.crypto.properties import (
    AnyDecryption,
    FileDecryptionProperties,
    for_dataset,
    required_seal,
)
from modcrypt.parquet.datasets.aad_prefixes import MAX_THREADS, check_expected_parts, find_parts
from modcrypt.parquet.datasets.discovery import DataFile, discover, is_dataset, leave_out_erased
from modcrypt.parquet.format.framing import FileIdentity
from modcrypt.runtime.collector import paused_collector

Decryption: TypeAlias = AnyDecryption | Callable[[str], AnyDecryption]
"""The properties of all files, or a function that returns the properties for a path."""


@hide_keys
@paused_collector()  # until the file is closed: its column chunks are freed then
def read_table(
    source: Any,
    decryption: Decryption,
    *,
    columns: Sequence[str] | None = None,
    filters: Filters | None = None,
    row_groups: Sequence[int] | None = None,
    filesystem: Any = None,
    partitioning: Any = "hive",
    aad_prefix_template: str | None = None,
    expected_parts: int | None = None,
    use_threads: bool = True,
    **options: Any,
) -> pa.Table:
    """Read an encrypted Parquet file, or a dataset of such files, as a table.

    modcrypt reads the footer, and the column chunks or pages that are needed; it retrieves only the
    keys of the requested columns.

    Args:
        source: Path, URL, bytes or seekable binary file object; or a folder, or a list of paths.
        decryption: Keys, and the caller's requirements, as for `decrypt_parquet`; for a dataset
            also a function that returns them for each file's path.
        columns: Names of columns or groups, in the order wanted; None for all.
        filters: Condition for the rows to keep, as in pyarrow.parquet. Row groups are skipped by
            their statistics and, for equality, their bloom filters; pages by the page index.
        row_groups: Ordinals of row groups, for a single file.
        filesystem: Filesystem of pyarrow or fsspec that contains the paths.
        partitioning: Partitioning of a dataset: "hive", a pyarrow.dataset.Partitioning with a
            schema, or None.
        aad_prefix_template: Template of the AAD prefixes: each file must have a prefix of its own,
            which is the template with a number in the place of `{i}`, whether the file stores it or
            not.
        expected_parts: Number of parts: the dataset must have the parts 0 to `expected_parts` - 1
            of the template.
        use_threads: Decode on several threads.
        options: PyArrow's options for decoding; see `ParquetFile`.

    Raises:
        ValueError: A column, row group or file does not exist, or arguments contradict each other.
        KeyNotFoundError: A key is missing, and `on_missing_key` is "error"; or the filter reads a
            column whose key is missing.
        AadPrefixError: Parts of the dataset are missing, duplicated or foreign.
        PlaintextError: A file or column is not encrypted, but must be.
        ModcryptError: A module does not authenticate or breaks the format.
    """
    prefixes = aad_prefix_template, expected_parts
    with closing(
        _open(source, decryption, filesystem, partitioning, prefixes, row_groups, options)
    ) as opened:
        if isinstance(opened, _DatasetReader):
            return opened.read(columns, filters, use_threads=use_threads)
        return opened.read(columns, filters=filters, row_groups=row_groups, use_threads=use_threads)


@hide_keys
def iter_batches(
    source: Any,
    decryption: Decryption,
    *,
    batch_size: int = 65536,
    columns: Sequence[str] | None = None,
    filters: Filters | None = None,
    row_groups: Sequence[int] | None = None,
    filesystem: Any = None,
    partitioning: Any = "hive",
    aad_prefix_template: str | None = None,
    expected_parts: int | None = None,
    limit: int | None = None,
    use_threads: bool = True,
    **options: Any,
) -> Iterator[pa.RecordBatch]:
    """Read an encrypted Parquet file, or a dataset of such files, batch by batch.

    This works as `read_table`, but in bounded memory: one file after the other, in the order of
    their paths. No batch has more than `batch_size` rows. `limit` is the maximum number of rows;
    files that are not needed for them are not decrypted.

    Raises:
        ModcryptError, ValueError: As `read_table`; for keys and parts at once, otherwise during
            iteration.
    """
    scan: dict[str, Any] = {"batch_size": batch_size, "use_threads": use_threads}
    prefixes = aad_prefix_template, expected_parts
    opened = _open(source, decryption, filesystem, partitioning, prefixes, row_groups, options)
    with ExitStack() as stack:  # Plan now, so that mistakes are reported at once.
        stack.enter_context(closing(opened))
        if isinstance(opened, _DatasetReader):
            batches = opened.iter_batches(columns, filters, limit, scan)
        else:
            batches = opened.iter_batches(
                columns=columns, filters=filters, row_groups=row_groups, limit=limit, **scan
            )
        return _close_after(stack.pop_all(), batches)


@contextmanager
def open_first(
    source: Any, decryption: Decryption, *, filesystem: Any = None, partitioning: Any = "hive",
    aad_prefix_template: str | None = None, expected_parts: int | None = None,
) -> Iterator[tuple[ParquetFile, pa.Schema, int]]:  # fmt: skip
    """Open a file, or the first file of a dataset; the footer key suffices.

    Yield the file, the fields that folder names contain, and the number of files; raise as
    `read_table`.
    """
    prefixes = aad_prefix_template, expected_parts
    with closing(_open(source, decryption, filesystem, partitioning, prefixes, None, {})) as opened:
        if isinstance(opened, ParquetFile):
            yield opened, pa.schema([]), 1
            return
        files = opened.dataset.files
        with name_path_in_errors(files[0].path), opened.open_file(files[0]) as file:
            yield file, opened.dataset.partition_schema, len(files)


def _open(
    source: Any, decryption: Decryption, filesystem: Any, partitioning: Any,
    prefixes: tuple[str | None, int | None], row_groups: Sequence[int] | None,
    options: dict[str, Any],
) -> ParquetFile | _DatasetReader:  # fmt: skip
    check_expected_parts(*prefixes)
    if prefixes[0] is None and not isinstance(source, list | tuple):
        if not callable(decryption):
            try:  # asking a store whether the path is a folder takes a request
                return ParquetFile(source, decryption, filesystem=filesystem, **options)
            except (OSError, LookupError, ValueError, FormatError):
                if not is_dataset(source, filesystem):
                    raise
        elif not is_dataset(source, filesystem):
            raise TypeError(
                "decryption is a function, which is for datasets; pass what it returns for this "
                "file"
            )
    if row_groups is not None:
        raise ValueError("row_groups applies to a single file only; remove it to read a dataset")
    return _DatasetReader(source, decryption, filesystem, partitioning, prefixes, options)


class _DatasetReader:
    """The files of a dataset, and what is needed to open them."""

    def __init__(
        self, source: Any, decryption: Decryption, filesystem: Any, partitioning: Any,
        prefixes: tuple[str | None, int | None], options: dict[str, Any],
    ) -> None:  # fmt: skip
        template, expected = prefixes
        named = source if is_dataset(source, filesystem) else [source]
        self.dataset = discover(named, filesystem, partitioning)
        self._options = options
        self._decryption = decryption
        # By path if `decryption` is a function of it; else those of all files.
        self._properties: dict[str, FileDecryptionProperties] = {}
        self._open_files: dict[str, ParquetFile] = {}  # files that are already open
        self._parts: dict[str, tuple[bytes, FileIdentity]] = {}  # AAD prefixes and checked versions
        self.result = pa.schema([])  # schema of the returned data
        files = self.dataset.files
        if files or not callable(decryption):
            first = self._find_properties(files[0].path if files else "")
            self.dataset.check_complete(required_seal(first))
        self.dataset.check_files()
        if not callable(decryption):
            self.dataset = leave_out_erased(self.dataset, first)
        if template is not None:
            known = [(file.path, self._find_properties(file.path)) for file in self.dataset.files]
            self._parts = find_parts(known, self.dataset.filesystem, template, expected)

    def _find_properties(self, path: str) -> FileDecryptionProperties:
        given, part = self._decryption, self._parts.get(path)
        key = path if callable(given) else ""
        if key not in self._properties:
            given = given(path) if callable(given) else given
            self._properties[key] = for_dataset(given, self.dataset.root)
        properties = self._properties[key]
        return properties if part is None else replace(properties, aad_prefix=part[0])

    def open_file(self, file: DataFile) -> ParquetFile:
        if (opened := self._open_files.pop(file.path, None)) is not None:
            return opened
        where, properties = self.dataset.filesystem, self._find_properties(file.path)
        _, version = self._parts.get(file.path, (b"", None))
        return ParquetFile(
            file.path, properties, filesystem=where, expected=version, **self._options
        )

    def read(
        self, columns: Sequence[str] | None, filters: Filters | None, *, use_threads: bool
    ) -> pa.Table:
        request = self.make_request(columns, filters)

        def read(file: DataFile) -> pa.Table:
            with name_path_in_errors(file.path), self.open_file(file) as opened:
                of_file = request._replace(partition=file.partition)
                return opened.read_request(of_file, use_threads=use_threads)

        files, threads = self.select_files(request), min(usable_cores(), MAX_THREADS)
        return concatenate_tables(in_threads(read, files, threads, "modcrypt-file"), self.result)

    def close(self) -> None:
        for file in self._open_files.values():
            file.close()

    def make_request(self, columns: Sequence[str] | None, filters: Filters | None) -> Request:
        """Return the request to each file, with the types of the first file."""
        request = Request(
            columns=as_columns(columns),
            filter=as_filter(filters),
            partition_schema=self.dataset.partition_schema,
        )
        first = self.dataset.files[0]
        with name_path_in_errors(first.path):
            opened = self._open_files[first.path] = self.open_file(first)
            schema, self.result = opened.types_of(request)
        fitting = request.filter and fit_filter(request.filter, schema)
        return request._replace(schema=schema, result=self.result, filter=fitting)

    def select_files(self, request: Request) -> list[DataFile]:
        """Return the files whose folders do not rule out that a row matches the filter."""
        files = self.dataset.files
        if request.filter is None:
            return files
        import pyarrow.dataset as ds  # imports pandas where it is installed

        # PyArrow judges fragments by their partition expressions, and never opens them.
        layout, nowhere = ds.ParquetFileFormat(), pafs.LocalFileSystem()
        fragments = [
            layout.make_fragment(str(number), nowhere, file.partition)
            for number, file in enumerate(files)
        ]
        known = ds.FileSystemDataset(fragments, request.schema, layout, nowhere)
        return [
            files[int(fragment.path)] for fragment in known.get_fragments(request.filter.expression)
        ]

    def iter_batches(
        self, columns: Sequence[str] | None, filters: Filters | None, limit: int | None,
        scan: dict[str, Any],
    ) -> Iterator[pa.RecordBatch]:  # fmt: skip
        """Read one file after the other; plan them now."""
        request = self.make_request(columns, filters)._replace(limit=limit)
        files = self.select_files(request)

        def read() -> Iterator[pa.RecordBatch]:
            for file in files:
                with name_path_in_errors(file.path), self.open_file(file) as opened:
                    of_file = request._replace(partition=file.partition)
                    yield from opened.batches_of_request(of_file, **scan)

        return limit_rows(read(), limit)


def _close_after(
    resources: ExitStack, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    with resources:
        yield from batches

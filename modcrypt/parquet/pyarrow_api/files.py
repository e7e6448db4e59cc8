"""`ParquetFile`, `read_metadata` and `read_schema` as in `pyarrow.parquet`."""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from modcrypt.io.sources import SourceLike
from modcrypt.parquet.arrow import parquet_file
from modcrypt.parquet.arrow.scanning.file_scan import replace_metadata
from modcrypt.parquet.format.schema import childless_fields
from modcrypt.parquet.pyarrow_api.arguments import (
    DecryptionProperties,
    add_index_columns,
    map_decoding_options,
    map_filesystem,
    map_source,
    stand_in_for,
    take_arguments_of,
)
from modcrypt.runtime.fork_safety import cached_property


@stand_in_for(pq.ParquetFile)
class ParquetFile:
    """A reader of one file, as `pyarrow.parquet.ParquetFile`.

    Without properties, or with PyArrow's own, the result is a `pyarrow.parquet.ParquetFile`.
    Otherwise the constructor reads the footer, and a column's key is retrieved when it is read.

    Args:
        source: Path, URL, bytes or seekable binary file object.
        decryption_properties: Properties of modcrypt, Settings or properties of PyArrow; None for a
            plaintext file.
        filesystem: Filesystem of pyarrow or fsspec that contains the path.
        options: PyArrow's other options. `memory_map`, `buffer_size` and `pre_buffer` have no
            effect on encrypted files. `metadata` and `common_metadata` are refused, because
            modcrypt authenticates the file's own footer.

    Raises:
        TypeError: An option is unknown or cannot be honoured.
        ModcryptError: As `modcrypt.ParquetFile`.
        OSError: The file system reports an error.

    Example:
        >>> import pyarrow as pa, modcrypt.parquet as pq
        >>> key = bytes(range(16))
        >>> encryption = pq.FileEncryptionProperties(footer_key=key)
        >>> decryption = pq.FileDecryptionProperties(footer_key=key)
        >>> pq.write_table(pa.table({"n": [1, 2]}), "n.parquet", encryption_properties=encryption)
        >>> with pq.ParquetFile("n.parquet", decryption_properties=decryption) as file:
        ...     file.num_row_groups, file.read().num_rows
        (1, 2)
    """

    common_metadata: pq.FileMetaData | None = None

    @take_arguments_of(pq.ParquetFile, after=1)
    def __init__(
        self, source: SourceLike, *, decryption_properties: Any = None, filesystem: Any = None,
        **options: Any,
    ) -> None:  # fmt: skip
        self._object = None if isinstance(source, str | os.PathLike) else source
        self._file = parquet_file.ParquetFile(
            map_source(source),
            decryption_properties,
            filesystem=map_filesystem(filesystem, source),
            **map_decoding_options(options),
        )
        self._closed = False

    @cached_property
    def metadata(self) -> pq.FileMetaData:
        """The metadata, which needs the keys of all columns; offsets are of the encrypted file."""
        return self._file.metadata

    @property
    def schema(self) -> pq.ParquetSchema:
        """The Parquet schema, for which the footer key suffices."""
        known = self.__dict__.get("metadata")
        return self._file.schema if known is None else known.schema

    @property
    def schema_arrow(self) -> pa.Schema:
        """The Arrow schema, for which the footer key suffices."""
        return self._file.schema_arrow

    @property
    def num_row_groups(self) -> int:
        """Number of row groups."""
        return self._file.num_row_groups

    def read(
        self,
        columns: Collection[str] | None = None,
        use_threads: bool = True,
        use_pandas_metadata: bool = False,
    ) -> pa.Table:
        """Read columns as a table.

        Args:
            columns: Names of columns or groups, in the order wanted; None for all. As in PyArrow,
                names that the file does not have are ignored.
            use_threads: Decode on several threads.
            use_pandas_metadata: Also read the columns of a pandas frame's index.

        Raises:
            KeyNotFoundError: The key of a column is missing.
            ModcryptError: A module does not authenticate or breaks the format.
        """
        names = self._select(columns, use_pandas_metadata)
        return self._add_pairs(self._file.read(names, use_threads=use_threads))

    def read_row_group(
        self, i: int, columns: Collection[str] | None = None, use_threads: bool = True,
        use_pandas_metadata: bool = False,
    ) -> pa.Table:  # fmt: skip
        """Read one row group as a table; arguments and errors are those of `read`."""
        return self.read_row_groups([i], columns, use_threads, use_pandas_metadata)

    def read_row_groups(
        self, row_groups: Sequence[int], columns: Collection[str] | None = None,
        use_threads: bool = True, use_pandas_metadata: bool = False,
    ) -> pa.Table:  # fmt: skip
        """Read some row groups as a table; arguments and errors are those of `read`."""
        names = self._select(columns, use_pandas_metadata)
        return self._add_pairs(
            self._file.read(names, row_groups=row_groups, use_threads=use_threads)
        )

    def iter_batches(
        self, batch_size: int = 65536, row_groups: Sequence[int] | None = None,
        columns: Collection[str] | None = None, use_threads: bool = True,
        use_pandas_metadata: bool = False,
    ) -> Iterator[pa.RecordBatch]:  # fmt: skip
        """Yield batches of at most `batch_size` rows; arguments and errors are those of `read`."""
        batches = self._file.iter_batches(
            batch_size,
            columns=self._select(columns, use_pandas_metadata),
            row_groups=row_groups,
            use_threads=use_threads,
        )
        return map(self._add_pairs, batches)

    def scan_contents(self, columns: Collection[str] | None = None, batch_size: int = 65536) -> int:
        """Read the columns without keeping them, and return the number of rows."""
        return sum(batch.num_rows for batch in self.iter_batches(batch_size, columns=columns))

    def _select(self, columns: Collection[str] | None, with_index: bool) -> list[str] | None:
        """Return the names that the file has, as they are given, and those of a pandas index."""
        leaves = self._file.open_file.leaves
        if columns is None:  # PyArrow leaves out groups without leaves; datasets have nulls there
            childless = childless_fields(self._file.open_file.metadata.schema)
            return list(dict.fromkeys(path[0] for path in leaves)) if childless else None
        names = list(columns)
        if with_index:
            names = add_index_columns(names, self.schema_arrow)
        there = {".".join(path[: n + 1]) for path in leaves for n in range(len(path))}
        return [name for name in dict.fromkeys(names) if name in there]

    def _add_pairs(self, rows: Any) -> Any:
        """Return rows with all pairs of the file in their metadata, as PyArrow shows them."""
        # Pairs about columns that are dropped for want of a key stay hidden.
        if self._file.open_file.properties.on_missing_key != "error":
            return rows
        return replace_metadata(rows, self._pairs)

    @cached_property
    def _pairs(self) -> dict[bytes, bytes] | None:
        return self._file.open_schema(()).pairs

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return all rows as an Arrow stream; raise as `read`."""
        return self._file.__arrow_c_stream__(requested_schema)

    def close(self, force: bool = False) -> None:
        """Close the file if it was opened here; with `force`, also the caller's file object."""
        self._closed = True
        self._file.close()
        if force and isinstance(self._object, io.IOBase | pa.NativeFile):
            self._object.close()

    @property
    def closed(self) -> bool:
        """True if the caller's file object is closed, or the file that was opened here."""
        return bool(getattr(self._object, "closed", self._closed))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@take_arguments_of(pq.read_metadata)
def read_metadata(
    where: SourceLike,
    memory_map: bool = False,
    decryption_properties: DecryptionProperties = None,
    filesystem: Any = None,
    **options: Any,
) -> pq.FileMetaData:
    """Read the metadata of a file, as `pyarrow.parquet.read_metadata`.

    Args:
        where: Path, URL, bytes or seekable binary file object.
        memory_map: Map a plaintext file into memory; has no effect on encrypted files.
        decryption_properties: As for `ParquetFile`.
        filesystem: Filesystem of pyarrow or fsspec that contains the path.
        options: PyArrow's other options, such as `arrow_extensions_enabled`.

    Returns:
        The metadata; row groups and columns have their offsets in the encrypted file.

    Raises:
        KeyNotFoundError: The key of a column is missing; `read_schema` needs only the footer key.
        ModcryptError, TypeError, OSError: As `ParquetFile`.

    Example:
        >>> import pyarrow as pa, modcrypt.parquet as pq
        >>> key = bytes(range(16))
        >>> encryption = pq.FileEncryptionProperties(footer_key=key)
        >>> pq.write_table(pa.table({"n": [1, 2]}), "n.parquet", encryption_properties=encryption)
        >>> decryption = pq.FileDecryptionProperties(footer_key=key)
        >>> pq.read_metadata("n.parquet", decryption_properties=decryption).num_rows
        2
    """
    with ParquetFile(
        where, decryption_properties=decryption_properties, filesystem=filesystem, **options
    ) as file:
        return file.metadata


@take_arguments_of(pq.read_schema)
def read_schema(
    where: SourceLike,
    memory_map: bool = False,
    decryption_properties: DecryptionProperties = None,
    filesystem: Any = None,
    **options: Any,
) -> pa.Schema:
    """Read the Arrow schema of a file, as `pyarrow.parquet.read_schema`.

    The footer key suffices; arguments are those of `read_metadata`.

    Raises:
        ModcryptError, TypeError, OSError: As `ParquetFile`.

    Example:
        >>> import pyarrow as pa, modcrypt.parquet as pq
        >>> key = bytes(range(16))
        >>> encryption = pq.FileEncryptionProperties(footer_key=key)
        >>> pq.write_table(pa.table({"n": [1, 2]}), "n.parquet", encryption_properties=encryption)
        >>> decryption = pq.FileDecryptionProperties(footer_key=key)
        >>> pq.read_schema("n.parquet", decryption_properties=decryption).names
        ['n']
    """
    with ParquetFile(
        where, decryption_properties=decryption_properties, filesystem=filesystem, **options
    ) as file:
        return file.schema_arrow

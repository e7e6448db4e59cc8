"""`write_table`, `ParquetWriter`, `write_to_dataset` and `write_metadata` of `pyarrow.parquet`."""

from __future__ import annotations

import secrets
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from modcrypt.io.destinations import Destination
from modcrypt.io.places import Place
from modcrypt.io.sources import open_source_at
from modcrypt.io.stores import locate
from modcrypt.parquet.arrow import writer
from modcrypt.parquet.arrow.arrow_streams import as_table
from modcrypt.parquet.datasets.dataset_writer import write_dataset
from modcrypt.parquet.pyarrow_api.arguments import (
    EncryptionProperties,
    map_filesystem,
    map_row_group_size,
    map_source,
    stand_in_for,
    take_arguments_of,
)


@take_arguments_of(pq.write_table)
def write_table(
    table: Any,
    where: Destination,
    row_group_size: int | None = None,
    *,
    encryption_properties: EncryptionProperties = None,
    filesystem: Any = None,
    **options: Any,
) -> None:
    """Write a table as a Parquet file, as `pyarrow.parquet.write_table`.

    Args:
        table: Table to write, or a frame or other provider of an Arrow stream.
        where: Path, URL or writable binary file object. An encrypted file at a path or URL appears
            complete or not at all.
        row_group_size: Number of rows of a row group, by default 1 Mi.
        encryption_properties: Properties of modcrypt, Settings, the result of `KeyTools.encryption`
            or properties of PyArrow; None for a plaintext file.
        filesystem: Filesystem of pyarrow or fsspec in which `where` is a path.
        options: PyArrow's other options.

    Raises:
        ModcryptError, ValueError, TypeError, OSError: As `modcrypt.write_table`.

    Example:
        >>> import pyarrow as pa, modcrypt.parquet as pq
        >>> key = bytes(range(16))
        >>> encryption = pq.FileEncryptionProperties(footer_key=key)
        >>> pq.write_table(pa.table({"n": [1, 2]}), "n.parquet", encryption_properties=encryption)
        >>> from pathlib import Path
        >>> Path("n.parquet").read_bytes()[:4]
        b'PARE'
    """
    encryption: Any = encryption_properties
    size = map_row_group_size(options.pop("chunk_size", row_group_size))
    filesystem = map_filesystem(filesystem, where)
    writer.write_table(
        table, map_source(where), encryption, row_group_size=size,
        filesystem=filesystem, **options,
    )  # fmt: skip


@stand_in_for(pq.ParquetWriter)
class ParquetWriter(writer.ParquetWriter):
    """A writer of one file, as `pyarrow.parquet.ParquetWriter`.

    Without properties, or with PyArrow's own, the result is a `pyarrow.parquet.ParquetWriter`.
    Otherwise an exception in the `with` block leaves no file.

    Args:
        where: Path, URL or writable binary file object.
        schema: Schema of all tables and batches.
        filesystem: Filesystem of pyarrow or fsspec in which `where` is a path.
        encryption_properties: As for `write_table`.
        options: PyArrow's other options, except `metadata_collector`.

    Raises:
        ModcryptError, ValueError, TypeError, OSError: As `modcrypt.ParquetWriter`.

    Example:
        >>> import pyarrow as pa, modcrypt.parquet as pq
        >>> encryption = pq.FileEncryptionProperties(footer_key=bytes(range(16)))
        >>> table = pa.table({"n": [1, 2]})
        >>> with pq.ParquetWriter(
        ...     "n.parquet", table.schema, encryption_properties=encryption
        ... ) as writer:
        ...     writer.write_table(table)
    """

    @take_arguments_of(pq.ParquetWriter, after=1)
    def __init__(
        self, where: Destination, schema: pa.Schema, filesystem: Any = None, *,
        encryption_properties: Any = None, **options: Any,
    ) -> None:  # fmt: skip
        where, filesystem = map_source(where), map_filesystem(filesystem, where)
        self.where, self.schema = where, schema
        super().__init__(where, schema, encryption_properties, filesystem=filesystem, **options)

    @property
    def is_open(self) -> bool:
        """True until the writer is closed."""
        return self._open is not None

    def write_table(self, table: pa.Table, row_group_size: int | None = None) -> None:
        """Write a table in row groups of its own; raise as `write_table`."""
        super().write_table(table, map_row_group_size(row_group_size))

    def write_batch(self, batch: pa.RecordBatch, row_group_size: int | None = None) -> None:
        """Write a batch as row groups of its own, as PyArrow does; raise as `write_table`."""
        if not isinstance(batch, pa.RecordBatch):
            raise TypeError(f"batch must be a pyarrow.RecordBatch, not {type(batch).__name__}")
        self.write_table(pa.Table.from_batches([batch]), row_group_size)


@take_arguments_of(pq.write_to_dataset)
def write_to_dataset(
    table: Any,
    root_path: Any,
    partition_cols: list[str] | None = None,
    filesystem: Any = None,
    schema: pa.Schema | None = None,
    partitioning: Any = None,
    basename_template: str | None = None,
    use_threads: bool | None = None,
    file_visitor: Any = None,
    existing_data_behavior: Any = None,
    *,
    encryption_properties: EncryptionProperties = None,
    **options: Any,
) -> None:
    """Write a table as a folder of Parquet files, as `pyarrow.parquet.write_to_dataset`.

    Args:
        table: Table to write, or a frame or other provider of an Arrow stream.
        root_path: Path or URL of the folder.
        partition_cols: Names of columns whose values become folders in Hive's form. Everybody can
            read them.
        filesystem: Filesystem of pyarrow or fsspec in which `root_path` is a path.
        schema: Schema of the files, to which the table is cast.
        partitioning: A pyarrow.dataset.Partitioning with a schema, or names of columns, instead of
            `partition_cols`.
        basename_template: Template of file names with `{i}`; by default a random name.
        use_threads: Encode on several threads.
        file_visitor: Function called with a `pyarrow.dataset.WrittenFile` for each file, after all
            are complete. It has no metadata if the files are encrypted.
        existing_data_behavior: "overwrite_or_ignore" (the default) or "error".
        encryption_properties: As for `write_table`.
        options: PyArrow's other options. `metadata_collector` is supported for plaintext only;
            `create_dir`, `max_open_files` and `preserve_order` have no effect on encrypted files.

    Raises:
        ValueError, TypeError: An argument cannot be honoured, or as `modcrypt.write_dataset`.
        ModcryptError, OSError: As `modcrypt.write_dataset`.

    Example:
        >>> import pyarrow as pa, modcrypt.parquet as pq
        >>> encryption = pq.FileEncryptionProperties(footer_key=bytes(range(16)))
        >>> table = pa.table({"year": [2025, 2026], "n": [1, 2]})
        >>> pq.write_to_dataset(table, "years", ["year"], encryption_properties=encryption)
    """
    table = as_table(table)
    if partition_cols is not None and partitioning is not None:
        raise ValueError("pass partition_cols or partitioning, not both")
    if options.pop("metadata_collector", None) is not None:
        raise TypeError("metadata_collector is not supported for encrypted files; remove it")
    encryption: Any = encryption_properties
    names = ("row_group_size", "chunk_size", "max_rows_per_group")
    sizes = [options.pop(name) for name in names if name in options]
    options["row_group_size"] = map_row_group_size(sizes[0]) if sizes else None
    flavor = options.pop("partitioning_flavor", None)
    if isinstance(partitioning, list | tuple):  # names of columns
        fields = [table.schema.field(name) for name in partitioning]
        partitioning = ds.partitioning(pa.schema(fields), flavor=flavor)
    elif flavor is not None:
        raise ValueError("partitioning_flavor needs names of columns in partitioning; remove it")
    where, filesystem = map_source(root_path), map_filesystem(filesystem, root_path)
    paths = write_dataset(
        table if schema is None else table.cast(schema),
        where,
        encryption,
        partitioning=partition_cols or partitioning,
        basename_template=basename_template or f"{secrets.token_hex(16)}-{{i}}.parquet",
        existing_data_behavior=existing_data_behavior or "overwrite_or_ignore",
        filesystem=filesystem,
        threads=1 if use_threads is False else None,
        **{name: value for name, value in options.items() if name not in _IRRELEVANT},
    )
    if file_visitor is not None:
        folder = Place(*locate(where, filesystem))
        for place in map(folder.below, paths):
            with open_source_at(place) as source:
                file_visitor(ds.WrittenFile(place.path, None, source.size))


_IRRELEVANT = {"create_dir", "max_open_files", "preserve_order"}
"""Options that choose how PyArrow writes; modcrypt makes folders, and keeps the order of rows."""


@take_arguments_of(pq.write_metadata)
def write_metadata(
    schema: pa.Schema,
    where: Destination,
    metadata_collector: Any = None,
    filesystem: Any = None,
    *,
    encryption_properties: EncryptionProperties = None,
    **options: Any,
) -> None:
    """Write a file without rows, as `pyarrow.parquet.write_metadata`.

    Args:
        schema: Schema of the file.
        where: Path, URL or writable binary file object.
        metadata_collector: Metadata of other files; supported for plaintext only.
        filesystem: Filesystem of pyarrow or fsspec in which `where` is a path.
        encryption_properties: As for `write_table`.
        options: PyArrow's other options for writing.

    Raises:
        ModcryptError, ValueError, TypeError, OSError: As `write_table`.

    Example:
        >>> import pyarrow as pa, modcrypt.parquet as pq
        >>> encryption = pq.FileEncryptionProperties(footer_key=bytes(range(16)))
        >>> schema = pa.schema([("n", pa.int64())])
        >>> pq.write_metadata(schema, "n.parquet", encryption_properties=encryption)
    """
    if metadata_collector is not None:
        raise TypeError("metadata_collector is not supported for encrypted files; remove it")
    ParquetWriter(
        where, schema, filesystem, encryption_properties=encryption_properties, **options
    ).close()

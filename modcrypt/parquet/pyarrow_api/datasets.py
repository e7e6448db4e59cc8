"""`ParquetDataset`, `read_table` and `read_pandas` as in `pyarrow.parquet`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from modcrypt.io.places import Place
from modcrypt.io.stores import locate
from modcrypt.parquet.arrow.decoding import row_count_error
from modcrypt.parquet.arrow.filters import as_filter
from modcrypt.parquet.arrow.view import open_parquet
from modcrypt.parquet.crypto.properties import KeySettings, as_decryption
from modcrypt.parquet.datasets import dataset_reader
from modcrypt.parquet.datasets.discovery import discover, is_dataset
from modcrypt.parquet.pyarrow_api.arguments import (
    add_index_columns,
    map_decoding_options,
    map_filesystem,
    map_source,
    stand_in_for,
    take_arguments_of,
)
from modcrypt.parquet.pyarrow_api.plaintext_views import ViewHandler
from modcrypt.runtime.fork_safety import cached_property


@stand_in_for(pq.ParquetDataset)
class ParquetDataset:
    """A file, a folder or a list of files, as `pyarrow.parquet.ParquetDataset`.

    Without properties, or with PyArrow's own, the result is a `pyarrow.parquet.ParquetDataset`.

    `read` retrieves only the keys of the columns that it needs. `schema`, `fragments` and the
    argument `schema` need the keys of all columns, unless `on_missing_key` permits otherwise.

    Args:
        path_or_paths: Path or URL of a file or folder, a list of paths of files, or a file object.
        filesystem: Filesystem of pyarrow or fsspec that contains the paths.
        schema: Schema of the data; columns that a file does not have are null.
        filters: Condition for the rows to keep, as in PyArrow.
        partitioning: Partitioning of the folders, as in PyArrow.
        ignore_prefixes: Beginnings of the names of files to ignore.
        decryption_properties: As for `ParquetFile`; for several files also a function that returns
            the properties of each path.
        options: PyArrow's other options.

    Raises:
        TypeError: An option is unknown or cannot be honoured.
        ModcryptError, ValueError, OSError: As `modcrypt.read_table`.

    Example:
        >>> import pyarrow as pa, modcrypt.parquet as pq
        >>> key = bytes(range(16))
        >>> encryption = pq.FileEncryptionProperties(footer_key=key)
        >>> table = pa.table({"year": [2025, 2026], "n": [1, 2]})
        >>> pq.write_to_dataset(table, "years", ["year"], encryption_properties=encryption)
        >>> decryption = pq.FileDecryptionProperties(footer_key=key)
        >>> dataset = pq.ParquetDataset(
        ...     "years", filters=[("year", "=", 2026)], decryption_properties=decryption
        ... )
        >>> dataset.read(["n"])["n"].to_pylist()
        [2]
    """

    @take_arguments_of(pq.ParquetDataset, after=1)
    def __init__(
        self,
        path_or_paths: Any,
        filesystem: Any = None,
        schema: pa.Schema | None = None,
        *,
        filters: Any = None,
        partitioning: Any = "hive",
        ignore_prefixes: Sequence[str] | None = None,
        decryption_properties: Any = None,
        **options: Any,
    ) -> None:
        self._source, self._filesystem = (
            map_source(path_or_paths),
            map_filesystem(filesystem, path_or_paths),
        )
        as_filter(filters)  # raises for invalid ones
        self._schema, self._filters = schema, filters
        self._partitioning, self._ignored = partitioning, ignore_prefixes
        given = decryption_properties
        is_resolved_later = callable(given) or isinstance(given, KeySettings)
        self._decryption = given if is_resolved_later else as_decryption(given)
        self._options = map_decoding_options(options)

    def read(
        self,
        columns: Sequence[str] | Mapping[str, pc.Expression] | None = None,
        use_threads: bool = True,
        use_pandas_metadata: bool = False,
    ) -> pa.Table:
        """Read the files as one table.

        Args:
            columns: Names of columns or fields of structs, in the order wanted; None for all. Or
                names with expressions, which need the keys of all columns.
            use_threads: Decode on several threads.
            use_pandas_metadata: Also read the columns of a pandas frame's index.

        Raises:
            KeyNotFoundError: The key of a column is missing.
            ModcryptError: A module does not authenticate or breaks the format.
        """
        if isinstance(columns, str):
            raise ValueError("columns must be a list of names, not one string")
        if columns is not None and not isinstance(columns, Mapping):
            columns = list(columns)
        if self._needs_views or isinstance(columns, Mapping):  # of names to expressions
            return self._read_views(columns, use_threads, use_pandas_metadata)
        fields = own = pa.schema([])
        if use_pandas_metadata or self._is_folder:  # otherwise the footer is read only once
            with dataset_reader.open_first(
                self._source,
                self._decryption,
                filesystem=self._filesystem,
                partitioning=self._partitioning,
            ) as (file, fields, _):
                own = file.schema_arrow
        if use_pandas_metadata and b"pandas" not in (own.metadata or {}) and self._is_folder:
            return self._read_views(columns, use_threads, True)  # from the file _common_metadata
        if use_pandas_metadata and columns is not None:
            columns = add_index_columns(columns, own)
        table = dataset_reader.read_table(
            self._source, self._decryption,
            columns=None if columns is None else list(dict.fromkeys(columns)),
            filters=self._filters, filesystem=self._filesystem, partitioning=self._partitioning,
            use_threads=use_threads, **self._options,
        )  # fmt: skip
        if self._partitioning == "hive":  # PyArrow has dictionaries for fields that folders name
            for number, name in enumerate(table.schema.names):
                if name in fields.names:
                    table = table.set_column(number, name, table[name].dictionary_encode())
        return table if columns in (None, table.column_names) else _select_fields(table, columns)

    def read_pandas(self, **kwargs: Any) -> pa.Table:
        """Read with the columns of a pandas frame's index; arguments and errors are as for `read`.

        `table.to_pandas()` makes the frame.
        """
        return self.read(use_pandas_metadata=True, **kwargs)

    def _read_views(self, columns: Any, use_threads: bool, with_index: bool) -> pa.Table:
        """Let PyArrow read the files, and check the number of rows if there is no filter."""
        table = self._views.read(columns, use_threads, with_index)
        if self._filters is None:
            declared = sum(fragment.count_rows() for fragment in self.fragments)
            if table.num_rows != declared:
                raise row_count_error("dataset", table.num_rows, declared)
        return table

    @property
    def schema(self) -> pa.Schema:
        """Schema of the data, with the fields that folders name."""
        return self._views.schema

    @property
    def fragments(self) -> list[ds.Fragment]:
        """The files as fragments, which PyArrow reads as plaintext."""
        return list(self._views.fragments)

    @property
    def files(self) -> list[str]:
        """Paths of the files."""
        return list(self._views.files)

    @property
    def filesystem(self) -> Any:
        """Read-only file system of PyArrow that shows the files as plaintext."""
        return self._views.filesystem

    @property
    def partitioning(self) -> Any:
        """Partitioning of the folders, if there is any."""
        return self._views.partitioning

    def equals(self, other: ParquetDataset) -> bool:
        """Return whether two datasets have the same schema and files."""
        if not isinstance(other, ParquetDataset):
            raise TypeError(f"other must be a ParquetDataset, not {type(other).__name__}")
        return bool(self.schema == other.schema) and self.files == other.files

    def __eq__(self, other: object) -> bool:
        return self.equals(other) if isinstance(other, ParquetDataset) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as PyArrow's

    def __reduce__(self) -> tuple[Any, ...]:
        build = partial(
            ParquetDataset, filters=self._filters, partitioning=self._partitioning,
            ignore_prefixes=self._ignored, decryption_properties=self._decryption, **self._options,
        )  # fmt: skip
        return build, (self._source, self._filesystem, self._schema)

    @property
    def _is_folder(self) -> bool:
        return is_dataset(self._source, self._filesystem)

    @property
    def _needs_views(self) -> bool:
        """True if PyArrow finds the files or the types, which modcrypt's reader cannot."""
        known = self._partitioning in (None, "hive") or isinstance(
            self._partitioning, ds.Partitioning
        )
        return self._schema is not None or self._ignored is not None or not known

    @cached_property
    def _views(self) -> pq.ParquetDataset:
        """PyArrow's dataset of the files, which it reads as plaintext."""
        options = {
            "schema": self._schema, "filters": self._filters, "partitioning": self._partitioning,
            "ignore_prefixes": self._ignored, **self._options,
        }  # fmt: skip
        source: Any = self._source
        if not isinstance(source, str | os.PathLike | list | tuple):
            return pq.ParquetDataset(open_parquet(source, self._decryption), **options)
        if isinstance(source, list | tuple):
            listed = discover(source, self._filesystem, None)
            listed.check_files()
            paths: Any = [file.path for file in listed.files]
            place = Place(listed.filesystem, paths[0])
        else:
            place = Place(*locate(source, self._filesystem))
            paths = place.path
        views = pafs.PyFileSystem(ViewHandler(place, self._decryption))
        return pq.ParquetDataset(paths, views, **options)


def _select_fields(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return columns as PyArrow's datasets do: fields of structs by themselves."""
    # Columns without a key may be left out.
    found = [found for name in names if (found := _find_field(table, name)) is not None]
    schema = pa.schema([field for field, _ in found], table.schema.metadata)
    return pa.Table.from_arrays([values for _, values in found], schema=schema)


def _find_field(table: pa.Table, name: str) -> tuple[pa.Field, pa.ChunkedArray] | None:
    """Return a column, or a field of structs in it; for what is in a list, the column."""
    top = name
    while top and top not in table.column_names:
        top = top.rpartition(".")[0]
    if top not in table.column_names:
        return None
    field, values = table.schema.field(top), table[top]
    for inner in name[len(top) + 1 :].split(".") if top != name else ():
        if not pa.types.is_struct(values.type):
            return table.schema.field(top), table[top]
        if values.type.get_field_index(inner) < 0:
            return None
        field, values = values.type.field(inner), pc.struct_field(values, inner)
    return field, values


@take_arguments_of(pq.read_table)
def read_table(
    source: Any,
    *,
    columns: Sequence[str] | None = None,
    use_threads: bool = True,
    use_pandas_metadata: bool = False,
    decryption_properties: Any = None,
    **options: Any,
) -> pa.Table:
    """Read a file or a dataset as a table, as `pyarrow.parquet.read_table`.

    Args:
        source: Path or URL of a file or folder, a list of paths, bytes or a file object.
        columns: Names of columns, in the order wanted; None for all.
        use_threads: Decode on several threads.
        use_pandas_metadata: Also read the columns of a pandas frame's index.
        decryption_properties: Properties of modcrypt, Settings or properties of PyArrow, or a
            function that returns them for a path; None for plaintext.
        options: Arguments of `ParquetDataset`: `filters`, `filesystem`, `partitioning`, `schema`
            and PyArrow's other options.

    Returns:
        The table. Only the keys of the columns that it needs are retrieved.

    Raises:
        TypeError: An option is unknown or cannot be honoured.
        ModcryptError, ValueError, OSError: As `modcrypt.read_table`.

    Example:
        >>> import pyarrow as pa, modcrypt.parquet as pq
        >>> key = bytes(range(16))
        >>> encryption = pq.FileEncryptionProperties(footer_key=key)
        >>> pq.write_table(pa.table({"n": [1, 2]}), "n.parquet", encryption_properties=encryption)
        >>> decryption = pq.FileDecryptionProperties(footer_key=key)
        >>> pq.read_table("n.parquet", decryption_properties=decryption)["n"].to_pylist()
        [1, 2]
    """
    dataset = ParquetDataset(source, decryption_properties=decryption_properties, **options)
    return dataset.read(columns, use_threads, use_pandas_metadata)


@take_arguments_of(pq.read_pandas)
def read_pandas(source: Any, columns: Sequence[str] | None = None, **options: Any) -> pa.Table:
    """Read a table with the columns of a pandas frame's index, as `pyarrow.parquet.read_pandas`.

    `options` are those of `read_table`, which raises the same errors.

    Example:
        >>> import pandas as pd, modcrypt.parquet as pq, pyarrow as pa
        >>> key = bytes(range(16))
        >>> table = pa.Table.from_pandas(pd.DataFrame({"n": [1, 2]}, index=["a", "b"]))
        >>> encryption = pq.FileEncryptionProperties(footer_key=key)
        >>> pq.write_table(table, "n.parquet", encryption_properties=encryption)
        >>> decryption = pq.FileDecryptionProperties(footer_key=key)
        >>> frame = pq.read_pandas("n.parquet", ["n"], decryption_properties=decryption).to_pandas()
        >>> list(frame.index)
        ['a', 'b']
    """
    return read_table(source, columns=columns, use_pandas_metadata=True, **options)

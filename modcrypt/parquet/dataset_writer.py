"""Arrow data to a dataset of encrypted Parquet files: `write_dataset`.

Each row goes to the file of its partition, and each file has a number of its own, which its name
and its AAD prefix take up.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from operator import and_
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from modcrypt.parquet.discovery import Folder
from modcrypt.parquet.prefixes import PrefixTemplate
from modcrypt.parquet.properties import FileEncryptionProperties
from modcrypt.parquet.writer import ParquetWriter

__all__ = ["write_dataset"]

EncryptionOf: TypeAlias = "FileEncryptionProperties | Callable[[str], FileEncryptionProperties]"
"""The properties of all files, or a function that gives those of the file with a path."""

_GATHERED_BYTES = 256 << 20
"""Arrow memory of rows that wait, in all files together."""


def write_dataset(
    data: Any,
    base_dir: Any,
    encryption: EncryptionOf,
    *,
    schema: pa.Schema | None = None,
    partitioning: Any = None,
    basename_template: str = "part-{i}.parquet",
    aad_prefix_template: str | None = None,
    max_rows_per_file: int | None = None,
    existing_data_behavior: Literal["error", "overwrite_or_ignore"] = "error",
    filesystem: Any = None,
    threads: int | None = None,
    **options: Any,
) -> list[str]:
    """Write Arrow data as a folder of encrypted Parquet files (PME 4, 5).

    Files appear when they are complete; an exception leaves none of this call. Partition values
    stand in the names of folders, readable to all.

    Args:
        data: Table, RecordBatch, RecordBatchReader, Dataset, or batches with `schema`.
        base_dir: the folder: path or URL.
        encryption: keys, footer mode and algorithm; or a function that gives them for the path of
            each file inside `base_dir`.
        schema: of `data`, where it is an iterable of batches.
        partitioning: names of columns, whose values become folders as Hive names them; or a
            pyarrow.dataset.Partitioning.
        basename_template: names of files; `{i}` is the number of the file.
        aad_prefix_template: AAD prefix of each file, with its number in the place of `{i}`: what
            `read_table` checks, with the number of files as `expected_parts`.
        max_rows_per_file: rows after which another file is begun.
        existing_data_behavior: `"error"` refuses a folder with files in it; `"overwrite_or_ignore"`
            replaces those with the same names.
        filesystem: of pyarrow or fsspec, in which `base_dir` is a path.
        threads: as for `write_table`; partitioned data is encoded in the calling thread.
        options: PyArrow's own and `row_group_size`, as `ParquetWriter` takes them.

    Returns:
        The paths of the files inside `base_dir`, by their numbers.

    Raises:
        ValueError: arguments that don't go together, or properties that name other columns.
        FileExistsError: there are files in the folder.
        ModcryptError, TypeError, OSError: as `write_table`.
    """
    batches, schema = _batches(data, schema)
    folder = Folder(base_dir, filesystem)
    if existing_data_behavior not in ("error", "overwrite_or_ignore"):
        raise ValueError('existing_data_behavior is "error" or "overwrite_or_ignore"')
    scheme = _scheme(partitioning, schema)
    if scheme is not None:
        threads = 1
    naming = _Naming(encryption, PrefixTemplate(basename_template), aad_prefix_template)
    options |= {"threads": threads, "filesystem": folder.filesystem}
    if existing_data_behavior == "error":
        folder.check_empty()
    with _Files(folder, naming, _file_schema(schema, scheme), max_rows_per_file, options) as files:
        for batch in batches:
            for where, rows in _split(batch, scheme):
                files.write(where, rows)
        if scheme is None and not files.paths:
            files.write("", pa.RecordBatch.from_pylist([], schema))
    return files.paths


def _batches(data: Any, schema: pa.Schema | None) -> tuple[Iterable[pa.RecordBatch], pa.Schema]:
    """Give the batches of whatever holds them, and their schema."""
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if hasattr(data, "to_batches"):  # a Table, Dataset or Scanner
        return data.to_batches(), getattr(data, "projected_schema", None) or data.schema
    schema = getattr(data, "schema", schema)
    if schema is None:
        raise ValueError("give the schema of these batches")
    return data, schema


# --- the files of one call -----------------------------------------------------------------------


@dataclass(frozen=True)
class _Naming:
    """What a file's number makes of its name and its properties."""

    encryption: EncryptionOf
    basename: PrefixTemplate
    aad_prefix_template: str | None

    def path(self, folder: str, number: int) -> str:
        return posixpath.join(folder, self.basename.prefix(number).decode())

    def properties(self, path: str, number: int) -> FileEncryptionProperties:
        given = self.encryption
        properties = given if isinstance(given, FileEncryptionProperties) else given(path)
        if self.aad_prefix_template is None:
            return properties
        if properties.aad_prefix is not None:
            raise ValueError("give aad_prefix_template or an aad_prefix, not both")
        prefix = PrefixTemplate(self.aad_prefix_template).prefix(number)
        return replace(properties, aad_prefix=prefix)


class _Files:
    """Files under way, one for each folder; those that are finished are remembered."""

    def __init__(
        self,
        folder: Folder,
        naming: _Naming,
        schema: pa.Schema,
        max_rows: int | None,
        options: dict[str, Any],
    ) -> None:
        if max_rows is not None and max_rows < 1:
            raise ValueError("max_rows_per_file is at least 1")
        self._folder, self._naming, self._schema = folder, naming, schema
        self._max_rows, self._options = max_rows, options
        self._open: dict[str, _File] = {}
        self._finished: list[str] = []
        self.paths: list[str] = []

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if error is not None:
            self._withdraw(error)
            return
        try:
            for folder in list(self._open):
                self._finish(folder)
        except BaseException as late:
            self._withdraw(late)
            raise

    def write(self, folder: str, rows: pa.RecordBatch) -> None:
        """Append rows to the file of a folder, or to several, one after the other."""
        while True:
            file = self._open.get(folder) or self._begin(folder)
            room = rows.num_rows if self._max_rows is None else self._max_rows - file.rows
            file.add(rows.slice(0, room))
            if file.rows == self._max_rows:
                self._finish(folder)
            rows = rows.slice(room)
            if not rows.num_rows:
                break
        while sum(file.writer.waiting for file in self._open.values()) > _GATHERED_BYTES:
            max(self._open.values(), key=lambda file: file.writer.waiting).writer.flush()

    def _begin(self, folder: str) -> _File:
        number = len(self.paths)
        path = self._naming.path(folder, number)
        properties = self._naming.properties(path, number)
        self.paths.append(path)
        where = self._folder.place(path)
        file = _File(path, ParquetWriter(where, self._schema, properties, **self._options))
        self._open[folder] = file
        return file

    def _finish(self, folder: str) -> None:
        file = self._open.pop(folder)
        file.writer.close()
        self._finished.append(file.path)

    def _withdraw(self, error: BaseException) -> None:
        """Leave no file of this call."""
        for file in self._open.values():
            file.writer.__exit__(type(error), error, error.__traceback__)
        self._folder.remove(self._finished)


@dataclass
class _File:
    """A file under way."""

    path: str
    writer: ParquetWriter
    rows: int = 0

    def add(self, rows: pa.RecordBatch) -> None:
        self.writer.write_batch(rows)
        self.rows += rows.num_rows


# --- partitions ----------------------------------------------------------------------------------


def _scheme(partitioning: Any, schema: pa.Schema) -> ds.Partitioning | None:
    if partitioning is None or isinstance(partitioning, ds.Partitioning):
        scheme = partitioning
    elif isinstance(partitioning, str):
        raise ValueError("partitioning takes names of columns, or a pyarrow.dataset.Partitioning")
    else:
        names = list(partitioning)
        if unknown := sorted(set(names) - set(schema.names)):
            raise ValueError(f"columns that the data doesn't have: {', '.join(unknown)}")
        fields = [schema.field(name) for name in names]
        scheme = ds.partitioning(pa.schema(fields), flavor="hive") if names else None
    if scheme is not None and len(scheme.schema) == len(schema):
        raise ValueError("no columns are left to write: all are in the names of folders")
    return scheme


def _file_schema(schema: pa.Schema, scheme: ds.Partitioning | None) -> pa.Schema:
    """Give the schema of the files: partition fields stand in the names of folders alone."""
    if scheme is None:
        return schema
    fields = [field for field in schema if field.name not in scheme.schema.names]
    return pa.schema(fields, schema.metadata)


def _split(
    batch: pa.RecordBatch, scheme: ds.Partitioning | None
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Give the rows of each partition, in their order, and its folder."""
    if scheme is None or not batch.num_rows:
        yield "", batch
        return
    names = scheme.schema.names
    codes = np.zeros(batch.num_rows, np.int64)
    for name in names:
        values = pc.dictionary_encode(batch[name], null_encoding="encode")
        values = values if isinstance(values, pa.DictionaryArray) else values.combine_chunks()
        codes = codes * len(values.dictionary) + values.indices.to_numpy(zero_copy_only=False)
        codes = np.unique(codes, return_inverse=True)[1]  # small again, whatever comes next
    order = np.argsort(codes, kind="stable")
    borders = np.flatnonzero(np.diff(codes[order])) + 1
    by_partition = batch.take(pa.array(order))
    rest = by_partition.select([name for name in batch.schema.names if name not in names])
    for start, stop in pairwise([0, *borders.tolist(), batch.num_rows]):
        known = [_equals(name, by_partition[name][start]) for name in names]
        folder, _ = scheme.format(reduce(and_, known))
        yield folder, rest.slice(start, stop - start)


def _equals(name: str, value: pa.Scalar) -> pc.Expression:
    return pc.field(name) == value if value.is_valid else pc.field(name).is_null()

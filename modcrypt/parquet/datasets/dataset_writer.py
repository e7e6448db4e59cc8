"""`write_dataset`: write Arrow data to a dataset of encrypted Parquet files.

Each row goes to the file of its partition. Each file has a number of its own, which occurs in its
name and in its AAD prefix.

    batches -> blocks -> rows of each partition, gathered -> its file, when memory is short or
                                                             at the end

So a file is begun late, gets large row groups, and rarely stays open beside many others.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import and_
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from modcrypt.io.threads import check_threads
from modcrypt.keys import hide_keys
from modcrypt.parquet.arrow.arrow_streams import open_stream
from modcrypt.parquet.arrow.writer import ParquetWriter
from modcrypt.parquet.crypto.path_prefix import PathPrefix, shared_prefix_error
from modcrypt.parquet.crypto.properties import (
    AnyEncryption,
    Encryption,
    FileEncryptionProperties,
    as_encryption,
    set_prefix_root,
)
from modcrypt.parquet.datasets.aad_prefixes import PrefixTemplate, check_no_prefix
from modcrypt.parquet.datasets.discovery import DatasetFolder
from modcrypt.pkmt1.material import external_name

EncryptionOf: TypeAlias = AnyEncryption | Callable[[str], AnyEncryption]
"""The properties of all files, or a function that returns the properties for a path."""

_BLOCK_BYTES = 16 << 20
"""Arrow memory, in bytes, of the rows that are divided among partitions at once."""

_GATHERED_BYTES = 256 << 20
"""Arrow memory, in bytes, of the rows of all partitions that wait for their files."""

_OPEN_FILES = 200  # maximum number of open files; each has a buffer of about a megabyte


@hide_keys
def write_dataset(
    data: Any,
    base_dir: Any,
    encryption: EncryptionOf,
    *,
    schema: pa.Schema | None = None,
    partitioning: Any = None,
    basename_template: str = "part-{i}.parquet",
    aad_prefix_template: str | None = None,
    shared_aad_prefix: bool = False,
    max_rows_per_file: int | None = None,
    existing_data_behavior: Literal["error", "overwrite_or_ignore"] = "error",
    filesystem: Any = None,
    threads: int | None = None,
    **options: Any,
) -> list[str]:
    """Write Arrow data as a folder of encrypted Parquet files (PME 4, 5).

    A file appears when it is complete; an exception removes the files of this call. Partition
    values occur in the names of folders, where everybody can read them.

    A partition has one file. It has several after `max_rows_per_file` rows, or if much data comes
    in random order for more than 200 partitions. Without partitioning, data without rows results in
    a file without rows.

    Args:
        data: Table, RecordBatch, RecordBatchReader, Dataset, Scanner or other provider of an Arrow
            stream (pandas, Polars, DuckDB); or batches with `schema`.
        base_dir: Path or URL of the folder.
        encryption: Keys, footer mode and algorithm; or a function that returns them for the path of
            each file inside `base_dir`.
        schema: Schema of `data`, if it is an iterable of batches.
        partitioning: Names of columns, whose values become folders in Hive's form; or a
            pyarrow.dataset.Partitioning with a schema.
        basename_template: Template of file names; `{i}` is the number of the file.
        aad_prefix_template: Template of AAD prefixes, with each file's number in the place of
            `{i}`. `read_table` checks them, given the number of files as `expected_parts`.
        shared_aad_prefix: Allow several files with the same AAD prefix. Anyone who can write to the
            folder can then put one in the place of another.
        max_rows_per_file: Number of rows after which another file is begun.
        existing_data_behavior: `"error"` refuses a folder that contains files;
            `"overwrite_or_ignore"` replaces files with the same names, irreversibly even if the
            call fails, and keeps the others, which `read_table` then reads as part of the dataset.
        filesystem: Filesystem of pyarrow or fsspec in which `base_dir` is a path.
        threads: As for `write_table`; partitioned data is encoded in the calling thread.
        options: PyArrow's options and `row_group_size`, as for `ParquetWriter`.

    Returns:
        The paths of the files inside `base_dir`, in the order of their numbers.

    Raises:
        ValueError: Arguments contradict each other, properties name columns that do not exist or
            that occur in the names of folders, a path cannot represent a partition value, or a file
            would get the AAD prefix of another.
        FileExistsError: The folder contains files.
        ModcryptError, TypeError, OSError: As `write_table`.
    """
    batches, schema = open_batches(data, schema)
    scheme = _make_partitioning(partitioning, schema)
    if existing_data_behavior not in ("error", "overwrite_or_ignore"):
        raise ValueError('existing_data_behavior must be "error" or "overwrite_or_ignore"')
    if max_rows_per_file is not None and max_rows_per_file < 1:
        raise ValueError("max_rows_per_file must be at least 1")
    check_threads(threads)
    file_schema = schema
    if scheme is not None:  # partition fields occur only in the names of folders
        fields = [field for field in schema if field.name not in scheme.schema.names]
        file_schema = pa.schema(fields, schema.metadata)
    overwrite = existing_data_behavior != "error"
    folder = DatasetFolder(base_dir, filesystem)
    plan = _Plan(
        encryption,
        PrefixTemplate(basename_template),
        None if aad_prefix_template is None else PrefixTemplate(aad_prefix_template),
        scheme.schema.names if scheme else [],
        folder,
        shared_aad_prefix,
        partial(
            ParquetWriter,
            schema=file_schema,
            overwrite=overwrite,
            threads=threads if scheme is None else 1,
            **options,
        ),
    )
    folder.check_visible(plan.make_path("", 0))
    if not overwrite:
        folder.check_empty()
    with _Files(plan, max_rows_per_file) as files:
        if scheme is None:
            files.append("", pa.RecordBatch.from_pylist([], schema))
            for batch in batches:
                files.append("", batch)
        else:
            for block in _gather_blocks(batches):
                for where, rows, size in _split_by_partition(block, scheme):
                    files.gather(where, rows, size)
    return files.paths


def open_batches(data: Any, schema: pa.Schema | None) -> tuple[Iterable[pa.RecordBatch], pa.Schema]:
    """Return the batches of the data, and their schema."""
    if isinstance(data, ds.Dataset):
        data = data.scanner()
    if isinstance(data, ds.Scanner):
        data = data.to_reader()
    elif hasattr(data, "__arrow_c_stream__"):
        data = open_stream(data)
    own = getattr(data, "schema", schema)
    if not isinstance(own, pa.Schema):
        raise ValueError("the data has no schema; pass schema with the schema of its batches")
    if schema is not None and not own.equals(schema):
        raise ValueError("the data's schema differs from the argument schema")
    return (_check_batch(batch, own) for batch in data), own


def _check_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if not isinstance(batch, pa.RecordBatch):
        raise TypeError(f"each batch must be a pyarrow.RecordBatch, not {type(batch).__name__}")
    if not batch.schema.equals(schema):
        raise ValueError(f"a batch's schema differs:\n{batch.schema}\ninstead of:\n{schema}")
    return batch


# --- the files of one call -----------------------------------------------------------------------


@dataclass(frozen=True)
class _Plan:
    """A plan that derives a file's name, properties and writer from its number and partition."""

    encryption: EncryptionOf
    basename: PrefixTemplate
    aad_prefix: PrefixTemplate | None
    partition_names: list[str]
    folder: DatasetFolder
    shared_aad_prefix: bool
    writer: Callable[..., ParquetWriter]

    def __post_init__(self) -> None:
        if "/" in self.make_path("", 0):
            raise ValueError("basename_template must be a file name without folders")
        if not callable(self.encryption):
            object.__setattr__(self, "encryption", self._check(self.encryption))

    def make_path(self, where: str, number: int) -> str:
        return where + self.basename.prefix(number).decode()

    def make_properties(self, path: str, number: int) -> Encryption:
        encryption = self.encryption
        if callable(encryption):
            encryption = self._check(encryption(path))
        untyped: Any = encryption  # Both kinds are dataclasses with this field.
        if self.aad_prefix is None:
            with_root: Encryption = set_prefix_root(untyped, self.folder.root)
            return with_root
        with_prefix: Encryption = replace(untyped, aad_prefix=self.aad_prefix.prefix(number))
        return with_prefix

    def _check(self, given: AnyEncryption) -> Encryption:
        """Return properties; raise for invalid ones before a key, file or folder is made."""
        properties = encryption = as_encryption(given)
        if not isinstance(properties, FileEncryptionProperties):
            properties = properties.for_check()
        check_no_prefix(self.aad_prefix, properties)
        named = {*properties.column_keys, *properties.plaintext_columns}
        if public := sorted(named & set(self.partition_names)):
            raise ValueError(
                "keys and plaintext_columns must not name partition columns, whose values "
                f"everybody can read in the names of folders: {', '.join(public)}"
            )
        self.writer(pa.BufferOutputStream(), encryption=replace(properties, companion=nullcontext))
        return encryption


@dataclass
class _Waiting:
    """The rows of a partition that are not yet in a file."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    size: int = 0  # bytes of Arrow memory


@dataclass
class _File:
    """A file that is being written."""

    path: str
    writer: ParquetWriter
    keyed: bool  # its key material may be stored beside it
    rows: int = 0


class _Files:
    """The files that are being written, by the beginnings of their paths, and the finished ones."""

    def __init__(self, plan: _Plan, max_rows: int | None) -> None:
        self._folder, self._plan, self._max_rows = plan.folder, plan, max_rows
        self._prefixes: dict[bytes, str] = {}  # path of the file with each prefix
        self._waiting: dict[str, _Waiting] = {}
        self._gathered = 0
        self._open: dict[str, _File] = {}  # least recently used first
        self._finished: list[str] = []
        self.paths: list[str] = []

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if error is not None:
            self._withdraw(error)
            return
        try:
            for where in dict.fromkeys([*self._open, *self._waiting]):
                self._write_waiting(where)
                self._finish(where)
        except BaseException as late:
            self._withdraw(late)
            raise

    def gather(self, where: str, rows: pa.RecordBatch, size: int) -> None:
        """Let rows wait for their file, and write some rows if too many wait."""
        if where not in self._waiting:
            self._folder.check_visible(self._plan.make_path(where, 0))
        waiting = self._waiting.setdefault(where, _Waiting())
        waiting.batches.append(rows)
        waiting.size += size
        self._gathered += size
        if self._gathered > _GATHERED_BYTES:
            self._free_memory()

    def append(self, where: str, rows: pa.RecordBatch) -> None:
        """Append rows to the file of a partition, or to several, one after the other."""
        while True:
            file = self._get_file(where)
            left = rows.num_rows if self._max_rows is None else self._max_rows - file.rows
            file.writer.write_batch(rows.slice(0, left))
            file.rows += min(left, rows.num_rows)
            rows = rows.slice(left)
            if not rows.num_rows:
                return
            self._finish(where)

    def _get_file(self, where: str) -> _File:
        """Return the open file of a partition; begin one if there is none."""
        if (file := self._open.pop(where, None)) is None:
            if len(self._open) == _OPEN_FILES:
                self._finish(next(iter(self._open)))  # the least recently used one
            file = self._begin_file(where)
        self._open[where] = file
        return file

    def _begin_file(self, where: str) -> _File:
        number = len(self.paths)
        path = self._plan.make_path(where, number)
        properties = self._plan.make_properties(path, number)
        self._check_prefix(path, properties)
        place = self._folder.place(path)
        writer = self._plan.writer(place, encryption=properties, filesystem=self._folder.filesystem)
        self.paths.append(path)
        return _File(path, writer, not isinstance(properties, FileEncryptionProperties))

    def _check_prefix(self, path: str, properties: Encryption) -> None:
        prefix: Any = getattr(properties, "aad_prefix", None)
        if isinstance(prefix, PathPrefix):
            prefix = prefix.of(self._folder.root.below(path))
        if prefix is None or self._plan.shared_aad_prefix:
            return
        if prefix in self._prefixes:
            raise shared_prefix_error(self._prefixes[prefix], path)
        self._prefixes[prefix] = path

    def _free_memory(self) -> None:
        """Write the waiting rows of the largest partitions until half of the memory is free."""
        for where in sorted(self._waiting, key=lambda where: -self._waiting[where].size):
            if self._gathered <= _GATHERED_BYTES // 2:
                break
            self._write_waiting(where)
            self._open[where].writer.flush()

    def _write_waiting(self, where: str) -> None:
        waiting = self._waiting.pop(where, _Waiting())
        self._gathered -= waiting.size
        for rows in waiting.batches:
            self.append(where, rows)

    def _finish(self, where: str) -> None:
        file = self._open[where]
        file.writer.close()
        del self._open[where]
        self._finished.append(file.path)
        if file.keyed:  # Its key material may be a file of its own.
            folder, name = posixpath.split(file.path)
            self._finished.append(posixpath.join(folder, external_name(name)))

    def _withdraw(self, error: BaseException) -> None:
        """Remove the files of this call, ignoring further errors: the first one matters."""
        for file in self._open.values():
            with contextlib.suppress(Exception):
                file.writer.__exit__(type(error), error, error.__traceback__)
        for path in self._finished:
            with contextlib.suppress(Exception):
                self._folder.root.below(path).remove()


# --- partitions ----------------------------------------------------------------------------------


def _make_partitioning(partitioning: Any, schema: pa.Schema) -> ds.Partitioning | None:
    """Return the partitioning, whose fields must all be columns of the data; None for none."""
    if partitioning is None or isinstance(partitioning, ds.Partitioning):
        scheme = partitioning
    elif isinstance(partitioning, str | ds.PartitioningFactory):
        raise ValueError(
            "partitioning must be names of columns, or a pyarrow.dataset.Partitioning with a schema"
        )
    else:
        names = list(partitioning)
        _check_names(names, schema)
        fields = [(name, _choose_partition_type(schema.field(name).type)) for name in names]
        scheme = ds.HivePartitioning(pa.schema(fields)) if names else None
    if scheme is not None:
        _check_names(scheme.schema.names, schema)
        if len(scheme.schema) == len(schema):
            raise ValueError("all columns are partition columns; leave at least one to be written")
    return scheme


def _check_names(names: list[str], schema: pa.Schema) -> None:
    if wrong := sorted({n for n in names if names.count(n) > 1 or schema.names.count(n) != 1}):
        raise ValueError(f"columns do not exist or occur twice: {', '.join(wrong)}")


def _choose_partition_type(kind: pa.DataType) -> pa.DataType:
    """Return a type with the same values that partitionings support."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.string() if kind == pa.string_view() else kind


def _gather_blocks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows in blocks that are worth dividing and small enough to be copied."""
    block: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        step = max(1, batch.num_rows * _BLOCK_BYTES // max(batch.nbytes, 1))
        for start in range(0, batch.num_rows, step):
            block.append(batch.slice(start, step))
            size += block[-1].nbytes
            if size >= _BLOCK_BYTES:
                yield pa.concat_batches(block)
                block, size = [], 0
    if block:
        yield pa.concat_batches(block)


def _split_by_partition(
    block: pa.RecordBatch, scheme: ds.Partitioning
) -> Iterator[tuple[str, pa.RecordBatch, int]]:
    """Yield, for each partition, the beginning of its paths, its rows and their Arrow memory."""
    names = scheme.schema.names
    keys = [block[field.name].cast(field.type) for field in scheme.schema]
    rest = block.select([n for n, name in enumerate(block.schema.names) if name not in names])
    size = rest.nbytes
    columns = [str(number) for number in range(len(keys))]
    rows = pa.array(range(block.num_rows), pa.int64())
    groups = (
        pa.table([*keys, rows], names=[*columns, "rows"])
        .group_by(columns, use_threads=False)
        .aggregate([("rows", "list"), ("rows", "min")])
        .sort_by("rows_min")  # Numbers of files must not depend on PyArrow's hash table.
    )
    for group, indices in enumerate(groups["rows_list"]):
        where = _format_partition(scheme, [groups[column][group] for column in columns])
        # Copy the rows: a slice would keep the whole block in memory.
        part = rest.take(indices.values)
        yield where, part, size * part.num_rows // block.num_rows


def _format_partition(scheme: ds.Partitioning, values: list[pa.Scalar]) -> str:
    """Return the beginning of a partition's paths, from which readers recover its values."""
    known = [
        pc.field(name) == value if value.is_valid else pc.field(name).is_null()
        for name, value in zip(scheme.schema.names, values, strict=True)
    ]
    not_null = [condition for condition, value in zip(known, values, strict=True) if value.is_valid]
    try:
        folder, name = scheme.format(reduce(and_, known))
        where: str = posixpath.join(folder, name)
        parsed = scheme.parse(where + "file")
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        parsed = None
    # Some kinds of partitioning omit a field that is null.
    if parsed is None or not any(
        parsed.equals(reduce(and_, terms or [pc.scalar(True)])) for terms in (known, not_null)
    ):
        raise ValueError(
            "a path cannot represent a value of the partition columns "
            f"{', '.join(scheme.schema.names)}; cast them to a type whose values it can represent"
        )
    return where

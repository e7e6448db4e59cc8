"""Arrow data to a dataset of encrypted Parquet files: `write_dataset`.

Each row goes to the file of its partition, and each file has a number of its own, which its name
and its AAD prefix take up.

    batches -> blocks -> rows of each partition, gathered -> its file, when memory is short or
                                                             at the end

So a file is begun late, gets large row groups, and seldom stands open beside many others.
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

from modcrypt.parquet.arrow.writer import ParquetWriter
from modcrypt.parquet.crypto.path_prefix import PathPrefix, shared_prefix_error
from modcrypt.parquet.crypto.properties import (
    Encryption,
    FileEncryptionProperties,
    check_encryption,
    rooted,
)
from modcrypt.parquet.datasets.aad_prefixes import PrefixTemplate
from modcrypt.parquet.datasets.discovery import Folder
from modcrypt.pkmt1.material import external_name

__all__ = ["write_dataset"]

EncryptionOf: TypeAlias = "Encryption | Callable[[str], Encryption]"
"""The properties of all files, or a function that gives those of the file with a path."""

_BLOCK_BYTES = 16 << 20
"""Arrow memory of the rows that are divided among partitions at once."""

_GATHERED_BYTES = 256 << 20
"""Arrow memory of rows that wait for their files, in all partitions together."""

_OPEN_FILES = 200
"""Most files that are open at once; each has a buffer of about a megabyte."""


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

    A file appears when it is complete; an exception removes those of this call. Partition values
    stand in the names of folders, readable to all.

    A partition has one file, or several: after `max_rows_per_file` rows; or where much data comes
    in random order for more than 200 partitions. Where nothing is partitioned, data without rows
    gives a file without rows.

    Args:
        data: Table, RecordBatch, RecordBatchReader, Dataset, Scanner or what else gives an Arrow
            stream (Polars); or batches with `schema`.
        base_dir: the folder: path or URL.
        encryption: keys, footer mode and algorithm; or a function that gives them for the path of
            each file inside `base_dir`.
        schema: of `data`, where it is an iterable of batches.
        partitioning: names of columns, whose values become folders as Hive names them; or a
            pyarrow.dataset.Partitioning with a schema.
        basename_template: names of files; `{i}` is the number of the file.
        aad_prefix_template: AAD prefix of each file, with its number in the place of `{i}`: what
            `read_table` checks, with the number of files as `expected_parts`.
        shared_aad_prefix: Allow several files with the same AAD prefix. Whoever can write the
            folder can then put one in the place of another.
        max_rows_per_file: rows after which another file is begun.
        existing_data_behavior: `"error"` refuses a folder with files in it; `"overwrite_or_ignore"`
            replaces those with the same names, for good even if the call fails, and keeps the
            others, which `read_table` then takes for part of the dataset.
        filesystem: of pyarrow or fsspec, in which `base_dir` is a path.
        threads: as for `write_table`; partitioned data is encoded in the calling thread.
        options: PyArrow's own and `row_group_size`, as `ParquetWriter` takes them.

    Returns:
        The paths of the files inside `base_dir`, by their numbers.

    Raises:
        ValueError: arguments that don't go together, properties that name other columns or those
            in the names of folders, a partition value that a path can't spell, or a second file
            with the AAD prefix of a first.
        FileExistsError: there are files in the folder.
        ModcryptError, TypeError, OSError: as `write_table`.
    """
    batches, schema = _batches(data, schema)
    scheme = _scheme(partitioning, schema)
    if existing_data_behavior not in ("error", "overwrite_or_ignore"):
        raise ValueError('existing_data_behavior is "error" or "overwrite_or_ignore"')
    if max_rows_per_file is not None and max_rows_per_file < 1:
        raise ValueError("max_rows_per_file is at least 1")
    if threads is not None and threads < 1:
        raise ValueError("threads is at least 1")
    overwrite = existing_data_behavior != "error"
    folder = Folder(base_dir, filesystem)
    plan = _Plan(
        encryption,
        PrefixTemplate(basename_template),
        None if aad_prefix_template is None else PrefixTemplate(aad_prefix_template),
        scheme.schema.names if scheme else [],
        folder,
        shared_aad_prefix,
        partial(
            ParquetWriter,
            schema=_file_schema(schema, scheme),
            overwrite=overwrite,
            threads=threads if scheme is None else 1,
            **options,
        ),
    )
    folder.check_visible(plan.path("", 0))
    if not overwrite:
        folder.check_empty()
    with _Files(plan, max_rows_per_file) as files:
        if scheme is None:
            files.append("", pa.RecordBatch.from_pylist([], schema))
            for batch in batches:
                files.append("", batch)
        else:
            for block in _blocks(batches):
                for where, rows, size in _split(block, scheme):
                    files.gather(where, rows, size)
    return files.paths


def _batches(data: Any, schema: pa.Schema | None) -> tuple[Iterable[pa.RecordBatch], pa.Schema]:
    """Give the batches of whatever holds them, and their schema."""
    if isinstance(data, ds.Dataset):
        data = data.scanner()
    if isinstance(data, ds.Scanner):
        data = data.to_reader()
    elif hasattr(data, "__arrow_c_stream__") and not isinstance(data, pa.RecordBatchReader):
        data = pa.RecordBatchReader.from_stream(data)
    found = getattr(data, "schema", schema)
    if not isinstance(found, pa.Schema):
        raise ValueError("give the schema of these batches")
    if schema is not None and not found.equals(schema):
        raise ValueError("the data has another schema")
    return (_checked(batch, found) for batch in data), found


def _checked(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if not isinstance(batch, pa.RecordBatch):
        raise TypeError(f"a batch is a pyarrow.RecordBatch, not {type(batch).__name__}")
    if not batch.schema.equals(schema):
        raise ValueError(f"a batch has another schema:\n{batch.schema}\ninstead of:\n{schema}")
    return batch


# --- the files of one call -----------------------------------------------------------------------


@dataclass(frozen=True)
class _Plan:
    """What a file's number and its partition make of its name, properties and writer."""

    encryption: EncryptionOf
    basename: PrefixTemplate
    aad_prefix: PrefixTemplate | None
    partition_names: list[str]
    folder: Folder
    shared_aad_prefix: bool
    writer: Callable[..., ParquetWriter]

    def __post_init__(self) -> None:
        if "/" in self.path("", 0):
            raise ValueError("basename_template is a name of files, without folders")
        if not callable(self.encryption):
            self._check(self.encryption)

    def path(self, where: str, number: int) -> str:
        return where + self.basename.prefix(number).decode()

    def properties(self, path: str, number: int) -> Encryption:
        found = self.encryption
        if callable(found):
            found = found(path)
            self._check(found)
        found_any: Any = found  # both kinds are dataclasses with this field
        if self.aad_prefix is None:
            rooted_one: Encryption = rooted(found_any, self.folder.root)
            return rooted_one
        with_prefix: Encryption = replace(found_any, aad_prefix=self.aad_prefix.prefix(number))
        return with_prefix

    def _check(self, properties: Encryption) -> None:
        """Refuse what is wrong before a key, file or folder is made."""
        check_encryption(properties)
        if not isinstance(properties, FileEncryptionProperties):
            properties = properties.for_check()
        if self.aad_prefix is not None and properties.aad_prefix is not None:
            raise ValueError("give aad_prefix_template or an aad_prefix, not both")
        named = {*properties.column_keys, *properties.plaintext_columns}
        if public := sorted(named & set(self.partition_names)):
            raise ValueError(
                "no key and no declaration is for columns whose values stand in the names of "
                f"folders, readable to all: {', '.join(public)}"
            )
        self.writer(pa.BufferOutputStream(), encryption=replace(properties, companion=nullcontext))


@dataclass
class _Waiting:
    """The rows of a partition that are not in a file yet."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    size: int = 0  # their share of Arrow memory, in bytes


@dataclass
class _File:
    """A file under way."""

    path: str
    writer: ParquetWriter
    keyed: bool  # its key material may lie beside it
    rows: int = 0


class _Files:
    """Files under way, by what their paths begin with; finished ones are remembered."""

    def __init__(self, plan: _Plan, max_rows: int | None) -> None:
        self._folder, self._plan, self._max_rows = plan.folder, plan, max_rows
        self._prefixes: dict[bytes, str] = {}  # to the path of the file with it
        self._waiting: dict[str, _Waiting] = {}
        self._gathered = 0
        self._open: dict[str, _File] = {}  # last used, last in it
        self._finished: list[str] = []
        self.paths: list[str] = []

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if error is not None:
            self._withdraw(error)
            return
        try:
            self._complete()
        except BaseException as late:
            self._withdraw(late)
            raise

    def gather(self, where: str, rows: pa.RecordBatch, size: int) -> None:
        """Have rows wait for their file, and make room where too much waits."""
        if where not in self._waiting:
            self._folder.check_visible(self._plan.path(where, 0))
        waiting = self._waiting.setdefault(where, _Waiting())
        waiting.batches.append(rows)
        waiting.size += size
        self._gathered += size
        if self._gathered > _GATHERED_BYTES:
            self._make_room()

    def append(self, where: str, rows: pa.RecordBatch) -> None:
        """Append rows to the file of a partition, or to several, one after the other."""
        while True:
            file = self._file(where)
            room = rows.num_rows if self._max_rows is None else self._max_rows - file.rows
            file.writer.write_batch(rows.slice(0, room))
            file.rows += min(room, rows.num_rows)
            rows = rows.slice(room)
            if not rows.num_rows:
                return
            self._finish(where)

    def _file(self, where: str) -> _File:
        """Give the open file of a partition; begin one where there is none."""
        file = self._open.pop(where, None)
        if file is None:
            if len(self._open) == _OPEN_FILES:
                self._finish(next(iter(self._open)))  # not used for longest
            file = self._begin(where)
        self._open[where] = file
        return file

    def _begin(self, where: str) -> _File:
        number = len(self.paths)
        path = self._plan.path(where, number)
        properties = self._plan.properties(path, number)
        self._check_prefix(path, properties)
        place = self._folder.place(path)
        writer = self._plan.writer(place, encryption=properties, filesystem=self._folder.filesystem)
        self.paths.append(path)
        return _File(path, writer, not isinstance(properties, FileEncryptionProperties))

    def _check_prefix(self, path: str, properties: Encryption) -> None:
        """Raise if a file before this one has its AAD prefix."""
        prefix: Any = getattr(properties, "aad_prefix", None)
        if isinstance(prefix, PathPrefix):
            prefix = prefix.of(self._folder.file(path))
        if prefix is None or self._plan.shared_aad_prefix:
            return
        if prefix in self._prefixes:
            raise shared_prefix_error(self._prefixes[prefix], path)
        self._prefixes[prefix] = path

    def _make_room(self) -> None:
        """Write what waits of the largest partitions, until half is left."""
        for where in sorted(self._waiting, key=lambda one: -self._waiting[one].size):
            if self._gathered <= _GATHERED_BYTES // 2:
                break
            self._write(where)
            self._open[where].writer.flush()

    def _write(self, where: str) -> None:
        """Write what waits of a partition."""
        waiting = self._waiting.pop(where, _Waiting())
        self._gathered -= waiting.size
        for rows in waiting.batches:
            self.append(where, rows)

    def _complete(self) -> None:
        for where in dict.fromkeys([*self._open, *self._waiting]):
            self._write(where)
            self._finish(where)

    def _finish(self, where: str) -> None:
        file = self._open[where]
        file.writer.close()
        del self._open[where]
        self._finished.append(file.path)
        if file.keyed:  # perhaps by a key that stands beside it
            self._finished.append(_beside(file.path))

    def _withdraw(self, error: BaseException) -> None:
        """Leave no file of this call. What went wrong first is what matters."""
        for file in self._open.values():
            with contextlib.suppress(Exception):
                file.writer.__exit__(type(error), error, error.__traceback__)
        for path in self._finished:
            with contextlib.suppress(Exception):
                self._folder.remove(path)


def _beside(path: str) -> str:
    """Give the path of the external key material of a file."""
    return posixpath.join(posixpath.dirname(path), external_name(posixpath.basename(path)))


# --- partitions ----------------------------------------------------------------------------------


def _scheme(partitioning: Any, schema: pa.Schema) -> ds.Partitioning | None:
    """Give the partitioning, or None for none; all of its fields are columns of the data."""
    if partitioning is None or isinstance(partitioning, ds.Partitioning):
        scheme = partitioning
    elif isinstance(partitioning, str | ds.PartitioningFactory):
        raise ValueError(
            "partitioning takes names of columns, or a pyarrow.dataset.Partitioning with a schema"
        )
    else:
        names = list(partitioning)
        _check_names(names, schema)
        fields = [(name, _spelt(schema.field(name).type)) for name in names]
        scheme = ds.HivePartitioning(pa.schema(fields)) if names else None
    if scheme is not None:
        _check_names(scheme.schema.names, schema)
        if len(scheme.schema) == len(schema):
            raise ValueError("no columns are left to write: all are in the names of folders")
    return scheme


def _check_names(names: list[str], schema: pa.Schema) -> None:
    if wrong := sorted({n for n in names if names.count(n) > 1 or schema.names.count(n) != 1}):
        raise ValueError(f"columns that are not there, or there twice: {', '.join(wrong)}")


def _spelt(kind: pa.DataType) -> pa.DataType:
    """Give the type of the same values that a partitioning can spell."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.string() if kind == pa.string_view() else kind


def _file_schema(schema: pa.Schema, scheme: ds.Partitioning | None) -> pa.Schema:
    """Give the schema of the files: partition fields stand in the names of folders alone."""
    if scheme is None:
        return schema
    fields = [field for field in schema if field.name not in scheme.schema.names]
    return pa.schema(fields, schema.metadata)


def _blocks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give the rows in blocks: worth dividing, and no burden when they are there twice."""
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


def _split(
    block: pa.RecordBatch, scheme: ds.Partitioning
) -> Iterator[tuple[str, pa.RecordBatch, int]]:
    """Give what the paths of each partition begin with, its rows, and their share of memory."""
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
        .sort_by("rows_min")  # numbers of files don't hang on PyArrow's hash table
    )
    for group, indices in enumerate(groups["rows_list"]):
        where = _where(scheme, [groups[column][group] for column in columns])
        # Copies: a slice would keep all of the block in memory.
        part = rest.take(indices.values)
        yield where, part, size * part.num_rows // block.num_rows


def _where(scheme: ds.Partitioning, values: list[pa.Scalar]) -> str:
    """Give what the paths of a partition begin with: its folder, or part of a name.

    Raises:
        ValueError: a reader would not find the values in it.
    """
    known = [
        pc.field(name) == value if value.is_valid else pc.field(name).is_null()
        for name, value in zip(scheme.schema.names, values, strict=True)
    ]
    said = [one for one, value in zip(known, values, strict=True) if value.is_valid]
    try:
        folder, name = scheme.format(reduce(and_, known))
        where: str = posixpath.join(folder, name)
        found = scheme.parse(where + "file")
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        found = None
    # Some kinds of partitioning say null by leaving the field out.
    if found is None or not any(
        found.equals(reduce(and_, one or [pc.scalar(True)])) for one in (known, said)
    ):
        raise ValueError(
            "a path can't spell a value of the partition columns "
            f"{', '.join(scheme.schema.names)}: cast them to a type, or values, that it can"
        )
    return where

"""Reading encrypted Parquet files in Spark: the assignment of row groups to tasks, and batches.

    driver     list files -> schema from one footer -> split large files, group small ones in tasks
    executor   resolve keys in read() only -> row groups -> batches in Spark's form

Spark sends executors only paths and references to keys. Several tasks read a large file, each a
range of its row groups. The ranges are only valid for one version of the file: the driver
identifies it without a key, and a task that finds another version fails.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, product
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.types as pt
from pyspark.sql import datasource as spark
from pyspark.sql.types import StructType

from modcrypt.errors import ModcryptError
from modcrypt.io.places import Place
from modcrypt.io.sources import open_source
from modcrypt.io.stores import locate
from modcrypt.kms.settings import Settings
from modcrypt.parquet.arrow.decoding import Decoder
from modcrypt.parquet.arrow.file_scan import make_schema_file
from modcrypt.parquet.arrow.filters import as_filter
from modcrypt.parquet.arrow.parquet_file import ParquetFile
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.parquet.datasets.discovery import as_arrow, discover, is_dataset, parse_partition
from modcrypt.parquet.format.file_identity import FileIdentity
from modcrypt.parquet.format.schema import leaves_of
from modcrypt.spark.source.arrow_types import (
    check_types,
    conform,
    to_common_schema,
    to_spark_arrow_schema,
    to_spark_schema,
)
from modcrypt.spark.source.options import Alternatives, ReadOptions

FILES_PER_TASK = 500
LEAST_TASK_BYTES = 32 << 20  # row groups of large files are seldom smaller
FEWEST_TASKS = 32  # unless there is too little to read
OPENING_BYTES = 256 << 10
"""Cost of opening a file, as the number of bytes read in the same time."""

BATCH_ROWS = 1 << 16

_OPENED_AT_ONCE = 16  # files that the driver opens concurrently

_HOW = {"arrow_extensions_enabled": False, "coerce_int96_timestamp_unit": "us"}
"""Options of PyArrow: no types that Spark lacks, and support for years after 2262."""


# --- files and tasks -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of a table.

    Attributes:
        path: Path or URL.
        size: Size in bytes.
        values: Values of columns that the names of its folders state.
    """

    path: str
    size: int
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Piece:
    """A file, or share number `split` of `splits` equal shares of its row groups.

    Raises:
        ValueError: The piece is a share but does not identify the version of the file.
    """

    path: str
    values: Mapping[str, Any]
    split: int = 0
    splits: int = 1
    identity: FileIdentity | None = None

    def __post_init__(self) -> None:
        if self.splits > 1 and self.identity is None:
            raise ValueError(f"{self.path}: a share of a file needs the file's identity")


class Pieces(spark.InputPartition):
    """The pieces that one task reads."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(None)
        self.pieces = tuple(pieces)

    def __repr__(self) -> str:
        return f"Pieces(files={len(self.pieces)})"


def find_files(options: ReadOptions, schema: StructType) -> list[TableFile]:
    """List the files of a table, in the order of their paths.

    Args:
        options: Options with the paths of the table.
        schema: Schema with the types of the fields in folder names.

    Raises:
        ValueError: There are no files.
        FileNotFoundError: A file or folder does not exist.
    """
    return [file for path in options.paths for file in _list_files_at(path, schema)]


def _list_files_at(path: str, schema: StructType) -> Iterator[TableFile]:
    if not is_dataset(path, None):
        filesystem, inside = locate(path, None)
        (size,) = _read_sizes(filesystem, [inside])
        yield TableFile(Place(filesystem, inside).full_name, size)
        return
    dataset = discover(path, None, None)
    paths = [file.path for file in dataset.files]
    start = 0 if dataset.root is None else len(dataset.root.path)
    below = {file: file[start:].lstrip("/") for file in paths}
    values = parse_folder_values(below.values(), schema)
    for file, size in zip(paths, _read_sizes(dataset.filesystem, paths), strict=True):
        yield TableFile(Place(dataset.filesystem, file).full_name, size, values[below[file]])


_HIVE = r"(?:^|/)([^/=]+)="


def parse_folder_values(names: Iterable[str], schema: StructType) -> dict[str, dict[str, Any]]:
    """Return the values that the folder names of each file state, in the types of the schema.

    Args:
        names: Paths of the files in the folder of their table.
        schema: Schema of the table; "007" may be text.

    Raises:
        ValueError: A name is not UTF-8, or a value is not of its type.
    """
    names, types = list(names), {f.name: f.type for f in to_spark_arrow_schema(schema)}
    folders = {os.path.dirname(name) for name in names}
    keys = {key for folder in folders for key in re.findall(_HIVE, folder)}
    fields = [(key, types.get(key, pa.string())) for key in sorted(keys)]
    scheme = ds.partitioning(pa.schema(fields), flavor="hive")
    return {name: ds.get_partition_keys(parse_partition(scheme, name)) for name in names}


def _read_sizes(filesystem: Any, paths: list[str]) -> list[int]:
    if filesystem is None:
        return [os.stat(path).st_size for path in paths]  # raises if a file does not exist
    infos = as_arrow(filesystem).get_file_info(paths)
    if missing := [info.path for info in infos if not info.is_file]:
        raise FileNotFoundError(f"file does not exist: {missing[0]}")
    return [info.size for info in infos]


def _survey(options: ReadOptions) -> tuple[str, pa.Schema]:
    """Return the first file of a table, and the fields that the names of its folders state."""
    first: list[str] = []
    folder_fields: dict[str, pa.DataType] = {}
    for path in options.paths:
        if is_dataset(path, None):
            dataset = discover(path, None, "hive")
            folder_fields |= {field.name: field.type for field in dataset.partition_schema}
            first.append(Place(dataset.filesystem, dataset.files[0].path).full_name)
        else:
            first.append(path)
    return first[0], pa.schema(list(folder_fields.items()))


def assign_pieces(files: Iterable[TableFile], split_bytes: int) -> list[Pieces]:
    """Divide files, in the order of reading, among tasks: split large files and group small ones.

    A task has at most `split_bytes`. Tasks are smaller if there is little to read, so that there
    are enough of them.

    Raises:
        FormatError, LimitError: A large file is not a Parquet file.
    """
    files = list(files)
    share = sum(file.size + OPENING_BYTES for file in files) // FEWEST_TASKS
    most = min(split_bytes, max(share, LEAST_TASK_BYTES))
    identities = _read_identities(file.path for file in files if file.size > most)
    tasks: list[list[Piece]] = []
    remaining = -1  # bytes that the last task can still take
    for file in files:
        splits = -(-file.size // most)
        if splits > 1:
            cut = partial(Piece, file.path, file.values, identity=identities[file.path])
            tasks += [[cut(split=n, splits=splits)] for n in range(splits)]
            remaining = -1
            continue
        if remaining < file.size or len(tasks[-1]) == FILES_PER_TASK:
            tasks.append([])
            remaining = most
        tasks[-1].append(Piece(file.path, file.values))
        remaining -= file.size + OPENING_BYTES
    return [Pieces(pieces) for pieces in tasks]


def _read_identities(paths: Iterable[str]) -> dict[str, FileIdentity]:
    """Read the identities of files to split, concurrently, as stores answer slowly."""

    def read_identity(path: str) -> FileIdentity:
        with _add_path_to_errors(path), open_source(path) as source:
            return FileIdentity.of(source)

    large = list(dict.fromkeys(paths))
    with ThreadPoolExecutor(_OPENED_AT_ONCE, "modcrypt-plan") as pool:
        return dict(zip(large, pool.map(read_identity, large), strict=True))


# --- the schema ----------------------------------------------------------------------------------


def table_schema(settings: Settings, options: ReadOptions) -> StructType:
    """Return the schema of a table: that of its first file, with the fields of folder names.

    The footer key is enough, unless columns without a key are to be dropped.

    Raises:
        ValueError: There are no files, a column does not exist, or Spark does not support a type.
    """
    path, folder_fields = _survey(options)
    names = options.columns
    if names is not None:
        names = tuple(name for name in names if name not in folder_fields.names)
    with _add_path_to_errors(path), _open_file(path, settings.decryption()) as file:
        leaves = _select_leaves(file, names)
        if settings.on_missing_key == "drop":
            missing = set(file.open_file.select(leaves, None, partial_groups=True).missing)
            leaves = [leaf for leaf in leaves if leaf not in missing]
        own = _read_common_schema(file, leaves)
        _check_folders({leaf[0] for leaf in file.open_file.leaves}, folder_fields.names)
    both = pa.schema([*own, *folder_fields])
    if not both.names:
        raise ValueError(f"{path}: no column has an available key")
    if options.columns is not None:
        tops = {
            name: own_name
            for own_name in both.names
            for name in _select_names(own_name, names or ())
        }
        order = [tops.get(name, name) for name in options.columns]
        both = pa.schema([both.field(name) for name in dict.fromkeys(order) if name in both.names])
    return to_spark_schema(both)


def _select_names(top: str, names: Iterable[str]) -> Iterator[str]:
    """Yield the names of a top-level field and of fields within it."""
    yield from (name for name in names if name == top or name.startswith(f"{top}."))


def _open_file(
    path: str, decryption: FileDecryptionProperties, expected: FileIdentity | None = None
) -> ParquetFile:
    return ParquetFile(path, decryption, expected=expected, **_HOW)


def _select_leaves(file: ParquetFile, names: Iterable[str] | None) -> list[int]:
    leaves = file.open_file.leaves
    return list(range(len(leaves))) if names is None else leaves_of(leaves, names)


def _read_common_schema(file: ParquetFile, leaves: Sequence[int]) -> pa.Schema:
    """Return the schema that Spark uses for some leaves of a file."""
    if not leaves:
        return pa.schema([])
    footer = make_schema_file(file.open_file.metadata, leaves, ())
    alone = Decoder(file.open_file.source.name, _HOW).open(footer)
    return to_common_schema(alone.schema_arrow, alone.schema)


def _check_folders(own: Iterable[str], folder_fields: Iterable[str]) -> None:
    """Raise ValueError if folders name a column of the file, as anyone may rename a folder."""
    if both := sorted(set(own) & set(folder_fields)):
        raise ValueError(
            f"{', '.join(both)}: both a column of the file and the name of a folder, which is not "
            "authenticated; rename the folder"
        )


# --- on the executors ----------------------------------------------------------------------------


def read_pieces(
    settings: Settings,
    pieces: Iterable[Piece],
    schema: StructType,
    terms: Sequence[Alternatives] = (),
) -> Iterator[pa.RecordBatch]:
    """Read files, or shares of them, as batches of a schema; this resolves the keys.

    A column that a file lacks is null. Memory use is that of `ParquetFile.iter_batches`.

    Raises:
        KeyNotFoundError: A key is missing, and columns without a key are not read as nulls.
        ValueError: The columns of a file don't fit the schema.
        ModcryptError: Data is not authentic or violates the format.
        OSError: The file is not the version that was divided into shares.
    """
    if settings.on_missing_key == "drop":  # columns of the schema were not dropped
        settings = settings.evolve(on_missing_key="error")
    target = to_spark_arrow_schema(schema)
    decryption = settings.decryption()
    for piece in pieces:
        with (
            _add_path_to_errors(piece.path),
            _open_file(piece.path, decryption, piece.identity) as file,
        ):
            yield from _read_batches(file, piece, target, terms)


def _read_batches(
    file: ParquetFile, piece: Piece, target: pa.Schema, terms: Sequence[Alternatives]
) -> Iterator[pa.RecordBatch]:
    count = file.num_row_groups
    first, after = (count * n // piece.splits for n in (piece.split, piece.split + 1))
    if first == after:
        return
    here = {".".join(path[:n]) for path in file.open_file.leaves for n in range(1, len(path) + 1)}
    _check_folders({path[0] for path in file.open_file.leaves}, piece.values)
    in_file = pa.schema([field for field in target if field.name not in piece.values])
    _check_spelling(in_file.names, here)
    names = [name for field in in_file for name in _expand_names(field.name, field.type, here)]
    own = _read_common_schema(file, _select_leaves(file, names)) if names else pa.schema([])
    check_types(own, in_file)
    file_filter, batch_filter = _split_terms(terms, own, target, file)
    if names:
        batches = file.iter_batches(
            BATCH_ROWS, columns=names, row_groups=range(first, after), filters=file_filter
        )
    else:
        batches = _make_empty_rows(file, first, after)
    for batch in batches:
        out = conform(_add_folder_values(batch, piece, target), target)
        yield out if batch_filter is None else out.filter(batch_filter)


def _expand_names(name: str, kind: pa.DataType, here: set[str]) -> Iterator[str]:
    """Yield the names of the parts of a field that a file has; structs are expanded."""
    if pt.is_struct(kind):
        parts = [
            n for child in kind for n in _expand_names(f"{name}.{child.name}", child.type, here)
        ]
        if parts:
            yield from parts
            return
    if name in here:
        yield name


def _check_spelling(wanted: Iterable[str], here: set[str]) -> None:
    """Raise ValueError for a name that differs from a column only in case, and would be null."""
    folded = {name.lower(): name for name in here}
    for name in wanted:
        actual = folded.get(name.lower(), name)
        if name not in here and actual != name:
            raise ValueError(f"there is no column {name}, but {actual}; names are case-sensitive")


def _add_folder_values(batch: pa.RecordBatch, piece: Piece, target: pa.Schema) -> pa.RecordBatch:
    """Add the columns of folder names to a batch."""
    for name, value in piece.values.items():
        if name in target.names:
            kind = target.field(name).type
            batch = batch.append_column(name, pa.repeat(pa.scalar(value, kind), batch.num_rows))
    return batch


def _make_empty_rows(file: ParquetFile, first: int, after: int) -> Iterator[pa.RecordBatch]:
    """Yield rows without columns of the file, for columns of folder names only."""
    rows = sum(group.num_rows for group in file.open_file.metadata.row_groups[first:after])
    for start in range(0, rows, BATCH_ROWS):
        yield pa.record_batch([pa.nulls(min(BATCH_ROWS, rows - start))], names=[""])


@contextmanager
def _add_path_to_errors(path: str) -> Iterator[None]:
    """Add the path of the file to the message of an error."""
    try:
        yield
    except (ModcryptError, ValueError) as error:
        if path not in str(error):
            error.args = (f"{path}: {error}", *error.args[1:])
        raise


# --- filters -------------------------------------------------------------------------------------


def filter_terms(filters: Alternatives, target: pa.Schema) -> list[Alternatives]:
    """Return filters that all hold for the selected rows, with values of the columns' types.

    Raises:
        ValueError: A column is not read, or its type can't represent a value.
    """
    alternatives = [[_convert_condition(term, target) for term in terms] for terms in filters]
    if len(alternatives) == 1:
        return [(condition,) for condition in alternatives[0]]
    return [tuple(tuple(chain(*terms)) for terms in alternatives)] if alternatives else []


def _convert_condition(condition: tuple[str, str, Any], target: pa.Schema) -> tuple[Any, ...]:
    """Return a condition as terms of `as_filter` that all hold."""
    name, how, value = condition
    if name not in target.names:
        raise ValueError(f"filters: column {name} is not read; name it in columns, too")
    kind = target.field(name).type
    try:
        if isinstance(value, list):
            values = pa.array([pa.scalar(v).cast(kind) for v in value if v is not None], kind)
            valid = [(name, "is not null", None)] if how == "not in" else []
            return (name, how, values), *valid
        if value is None:
            how = {"=": "is null", "!=": "is not null"}[how.replace("==", "=")]
            return ((name, how, None),)
        terms = ((name, how, pa.scalar(value).cast(kind)),)
        as_filter(terms)
    except (pa.ArrowException, KeyError, TypeError, ValueError):
        # The error's message would contain the value.
        raise ValueError(f"filters: {name} is {kind}; {how} needs a value of that type") from None
    return terms


def _split_terms(
    terms: Sequence[Alternatives], own: pa.Schema, target: pa.Schema, file: ParquetFile
) -> tuple[Alternatives | None, pc.Expression | None]:
    """Return the filter that the file applies, and the filter to apply to the batches.

    The file applies conditions on columns that have the same type in the file and the table.
    """
    here = file.schema_arrow if terms else pa.schema([])
    same = {
        field.name
        for field in own
        if terms and field.type == target.field(field.name).type == here.field(field.name).type
    }
    early = [term for term in terms if _names(term) <= same]
    late = as_filter(_combine([term for term in terms if not _names(term) <= same]))
    return _combine(early), None if late is None else late.expression


def _names(term: Alternatives) -> set[str]:
    return {name for conditions in term for name, _, _ in conditions}


def _combine(terms: Sequence[Alternatives]) -> Alternatives | None:
    """Return one filter for terms that all hold; None for none."""
    return tuple(tuple(chain(*choice)) for choice in product(*terms)) if terms else None


def _drop_unmatched_files(
    files: list[TableFile], terms: Sequence[Alternatives], target: pa.Schema
) -> list[TableFile]:
    """Return the files without those whose folder names show that no row matches."""
    for term in terms:
        names, condition = _names(term), as_filter(term)
        if files and condition and all(names <= file.values.keys() for file in files):
            columns = {
                name: pa.array([file.values[name] for file in files], target.field(name).type)
                for name in names
            }
            table = pa.table({**columns, "": pa.array(range(len(files)))})
            files = [files[n] for n in table.filter(condition.expression)[""].to_pylist()]
    return files


# --- Spark's interface ---------------------------------------------------------------------------


class Reader(spark.DataSourceReader):
    """A reader of a table; picklable, it holds only paths and references to keys."""

    def __init__(self, settings: Settings, options: ReadOptions, schema: StructType) -> None:
        self._settings, self._options, self._schema = settings, options, schema
        self._terms = filter_terms(options.filters, to_spark_arrow_schema(schema))

    def partitions(self) -> list[Pieces]:
        """Divide the files among tasks."""
        files = find_files(self._options, self._schema)
        files = _drop_unmatched_files(files, self._terms, to_spark_arrow_schema(self._schema))
        return assign_pieces(files, self._options.split_bytes) or [Pieces(())]

    def read(self, partition: spark.InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the pieces of one task; raises as `read_pieces`."""
        assert isinstance(partition, Pieces)
        return read_pieces(self._settings, partition.pieces, self._schema, self._terms)

"""Encrypted Parquet files to Spark: which files and row groups a task reads, and their batches.

    driver     list files -> schema from one footer -> cut large files, gather small ones into tasks
    executor   keys, in read() alone -> row groups -> batches as Spark demands them

What is sent to executors are paths and references to keys. Of a large file's row groups, each of
`splits` tasks reads its share by their number. These are numbers of one footer: the driver reads
which one, without a key, and a task that finds another version of the file fails.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import and_, eq, ge, gt, le, lt, ne, or_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.types as pt
from pyspark.sql import datasource as spark
from pyspark.sql.types import StructType

from modcrypt.errors import ModcryptError
from modcrypt.io.storage import Place, locate, open_source
from modcrypt.parquet.arrow.decoding import Decoder
from modcrypt.parquet.arrow.file_scan import schema_file
from modcrypt.parquet.arrow.parquet_file import ParquetFile
from modcrypt.parquet.crypto.file_identity import FileIdentity
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.parquet.datasets.discovery import as_arrow, discover, is_dataset
from modcrypt.parquet.format.schema import leaves_of
from modcrypt.spark.settings import Settings
from modcrypt.spark.source.arrow_types import (
    check_types,
    conform,
    demanded,
    in_common,
    spark_schema,
)
from modcrypt.spark.source.options import Alternatives, ReadOptions

__all__ = [
    "Found",
    "Piece",
    "Pieces",
    "Reader",
    "Term",
    "filter_terms",
    "find_files",
    "pack",
    "read_pieces",
    "table_schema",
]

FILES_PER_TASK = 500
LEAST_TASK_BYTES = 32 << 20  # row groups are seldom smaller where files are large
FEWEST_TASKS = 32  # where there is enough to read for so many
OPENING_BYTES = 256 << 10
"""What opening a file costs, as bytes read in that time."""

BATCH_ROWS = 1 << 16

_OPENED_AT_ONCE = 16  # files by the driver

_HOW = {"arrow_extensions_enabled": False, "coerce_int96_timestamp_unit": "us"}
"""PyArrow's options: nothing that Spark has no type for, and the years after 2262."""


# --- which files ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """A file of a table: its path or URL, its size in bytes, and what its folders say."""

    path: str
    size: int
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Piece:
    """A file, or the `split`-th of so many equal shares of its row groups.

    Raises:
        ValueError: The piece is a share, and does not say of which version of the file.
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
    """What one task reads."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(None)
        self.pieces = tuple(pieces)

    def __repr__(self) -> str:
        return f"Pieces(files={len(self.pieces)})"


def find_files(options: ReadOptions, schema: StructType | None = None) -> list[Found]:
    """List the files of a table, in the order of their paths.

    Args:
        options: where they are.
        schema: with the types of the fields in the names of folders, where they are known.

    Raises:
        ValueError: there are none.
        FileNotFoundError: a file or folder is not there.
    """
    wanted = {} if schema is None else {one.name: one.type for one in demanded(schema)}
    return [file for path in options.paths for file in _files_at(path, wanted)]


def _files_at(path: str, wanted: Mapping[str, pa.DataType]) -> Iterator[Found]:
    if not is_dataset(path, None):
        filesystem, inside = locate(path, None)
        (size,) = _sizes(filesystem, [inside])
        yield Found(Place(filesystem, inside).full_name, size)
        return
    dataset = discover(path, None, "hive")
    types = [wanted.get(one.name, one.type) for one in dataset.partition_schema]
    if types != dataset.partition_schema.types:  # "007" may be text
        fields = zip(dataset.partition_schema.names, types, strict=True)
        scheme = ds.partitioning(pa.schema(list(fields)), flavor="hive")
        dataset = discover(path, None, scheme)
    sizes = _sizes(dataset.filesystem, [file.path for file in dataset.files])
    for file, size in zip(dataset.files, sizes, strict=True):
        values = ds.get_partition_keys(file.partition)
        yield Found(Place(dataset.filesystem, file.path).full_name, size, values)


def _sizes(filesystem: Any, paths: list[str]) -> list[int]:
    if filesystem is None:
        return [os.stat(path).st_size for path in paths]  # raises for what is not there
    found = as_arrow(filesystem).get_file_info(paths)
    if missing := [info.path for info in found if not info.is_file]:
        raise FileNotFoundError(f"there is no file {missing[0]}")
    return [info.size for info in found]


def _surveyed(options: ReadOptions) -> tuple[str, pa.Schema]:
    """Give the first file of a table, and the fields that the names of its folders spell."""
    first: list[str] = []
    spelt: dict[str, pa.DataType] = {}
    for path in options.paths:
        if is_dataset(path, None):
            dataset = discover(path, None, "hive")
            spelt |= {one.name: one.type for one in dataset.partition_schema}
            first.append(Place(dataset.filesystem, dataset.files[0].path).full_name)
        else:
            first.append(path)
    return first[0], pa.schema(list(spelt.items()))


def pack(files: Iterable[Found], split_bytes: int) -> list[Pieces]:
    """Divide files among tasks: large ones are cut, small ones gathered.

    Args:
        files: in the order in which they are to be read.
        split_bytes: most bytes of a task. Where there is little to read, tasks are smaller, so that
            there are enough of them.

    Raises:
        FormatError, LimitError: A large file is no Parquet file.
        OSError: From the file system.
    """
    files = list(files)
    share = sum(file.size + OPENING_BYTES for file in files) // FEWEST_TASKS
    most = min(split_bytes, max(share, LEAST_TASK_BYTES))
    identities = _identities(file.path for file in files if file.size > most)
    tasks: list[list[Piece]] = []
    room = -1  # in the last one
    for file in files:
        splits = -(-file.size // most)
        if splits > 1:
            cut = partial(Piece, file.path, file.values, identity=identities[file.path])
            tasks += [[cut(split=n, splits=splits)] for n in range(splits)]
            room = -1
            continue
        if room < file.size or len(tasks[-1]) == FILES_PER_TASK:
            tasks.append([])
            room = most
        tasks[-1].append(Piece(file.path, file.values))
        room -= file.size + OPENING_BYTES
    return [Pieces(pieces) for pieces in tasks]


def _identities(paths: Iterable[str]) -> dict[str, FileIdentity]:
    """Read the ends of files that are to be cut, several at once: a store answers slowly."""

    def identity(path: str) -> FileIdentity:
        with _naming(path), open_source(path) as source:
            return FileIdentity.of(source)

    large = list(dict.fromkeys(paths))
    with ThreadPoolExecutor(_OPENED_AT_ONCE, "modcrypt-plan") as pool:
        return dict(zip(large, pool.map(identity, large), strict=True))


# --- the schema ----------------------------------------------------------------------------------


def table_schema(settings: Settings, options: ReadOptions) -> StructType:
    """Give the schema of a table: that of its first file, and the fields that folders spell.

    The footer key is enough, but where columns without a key are to be dropped.

    Raises:
        ValueError: there are no files, or no such columns, or Spark has no such type.
        ModcryptError: as `ParquetFile`, for the footer.
    """
    path, spelt = _surveyed(options)
    names = options.columns
    if names is not None:
        names = tuple(name for name in names if name not in spelt.names)
    with _naming(path), _opened(path, settings.decryption()) as file:
        leaves = _leaves(file, names)
        if settings.on_missing_key == "drop":
            missing = set(file.opened.select(leaves, None, partial_groups=True).missing)
            leaves = [leaf for leaf in leaves if leaf not in missing]
        own = _types(file, leaves)
        _check_folders({one[0] for one in file.opened.leaves}, spelt.names)
    both = pa.schema([*own, *spelt])
    if not both.names:
        raise ValueError(f"{path}: there is no column whose key is there")
    if options.columns is not None:
        tops = {name: own_name for own_name in both.names for name in _named(own_name, names or ())}
        order = [tops.get(name, name) for name in options.columns]
        both = pa.schema([both.field(name) for name in dict.fromkeys(order) if name in both.names])
    return spark_schema(both)


def _named(top: str, names: Iterable[str]) -> Iterator[str]:
    """Give the names that mean a top-level field, or something inside of it."""
    yield from (name for name in names if name == top or name.startswith(f"{top}."))


def _opened(
    path: str, decryption: FileDecryptionProperties, expected: FileIdentity | None = None
) -> ParquetFile:
    return ParquetFile(path, decryption, expected=expected, **_HOW)


def _leaves(file: ParquetFile, names: Iterable[str] | None) -> list[int]:
    leaves = file.opened.leaves
    return list(range(len(leaves))) if names is None else leaves_of(leaves, names)


def _types(file: ParquetFile, leaves: Sequence[int]) -> pa.Schema:
    """Give the form that Spark has for some leaves of a file."""
    if not leaves:
        return pa.schema([])
    footer = schema_file(file.opened.metadata, leaves, ())
    alone = Decoder(file.opened.source.name, _HOW).open(footer)
    return in_common(alone.schema_arrow, alone.schema)


def _check_folders(own: Iterable[str], spelt: Iterable[str]) -> None:
    """Refuse folders that name a column: anyone may rename a folder."""
    if both := sorted(set(own) & set(spelt)):
        raise ValueError(
            f"{', '.join(both)}: a column of the file, and the name of a folder around it, which "
            "is not authenticated"
        )


# --- on the executors ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Term:
    """What holds for the rows that are wanted, and the columns that it reads."""

    names: frozenset[str]
    expression: pc.Expression


def read_pieces(
    settings: Settings, pieces: Iterable[Piece], schema: StructType, terms: Sequence[Term] = ()
) -> Iterator[pa.RecordBatch]:
    """Read files, or shares of them, as batches of a schema; keys are looked for here.

    A column that a file doesn't have is null. In memory is what `ParquetFile.iter_batches` has.

    Raises:
        KeyNotFoundError: a key is missing, and columns without are not to be null.
        ValueError: a file's columns don't fit the schema.
        ModcryptError: something does not authenticate or breaks the format.
        OSError: A file is not the version that was cut into shares.
    """
    if settings.on_missing_key == "drop":  # what is in the schema was not dropped
        settings = dataclasses.replace(settings, on_missing_key="error")
    target = demanded(schema)
    decryption = settings.decryption()
    for piece in pieces:
        with (
            _naming(piece.path),
            _opened(piece.path, decryption, piece.identity) as file,
        ):
            yield from _batches(file, piece, target, terms)


def _batches(
    file: ParquetFile, piece: Piece, target: pa.Schema, terms: Sequence[Term]
) -> Iterator[pa.RecordBatch]:
    count = file.num_row_groups
    first, after = (count * n // piece.splits for n in (piece.split, piece.split + 1))
    if first == after:
        return
    here = {".".join(path[:n]) for path in file.opened.leaves for n in range(1, len(path) + 1)}
    _check_folders({path[0] for path in file.opened.leaves}, piece.values)
    in_file = pa.schema([one for one in target if one.name not in piece.values])
    _check_spelling(in_file.names, here)
    names = [name for one in in_file for name in _names(one.name, one.type, here)]
    own = _types(file, _leaves(file, names)) if names else pa.schema([])
    check_types(own, in_file)
    asked, left = _divided(terms, own, target, file)
    if names:
        found = file.iter_batches(
            BATCH_ROWS, columns=names, row_groups=range(first, after), filters=asked
        )
    else:
        found = _rows_alone(file, first, after)
    for batch in found:
        out = conform(_with_values(batch, piece, target), target)
        yield out if left is None else out.filter(left)


def _names(name: str, kind: pa.DataType, here: set[str]) -> Iterator[str]:
    """Give the names of what a file has of a field, structs by their parts."""
    if pt.is_struct(kind):
        parts = [n for one in kind for n in _names(f"{name}.{one.name}", one.type, here)]
        if parts:
            yield from parts
            return
    if name in here:
        yield name


def _check_spelling(wanted: Iterable[str], here: set[str]) -> None:
    """Refuse what is meant for a column of the file, and would be null."""
    folded = {name.lower(): name for name in here}
    for name in wanted:
        meant = folded.get(name.lower(), name)
        if name not in here and meant != name:
            raise ValueError(f"there is no column {name}, but {meant}: spell it as the file does")


def _with_values(batch: pa.RecordBatch, piece: Piece, target: pa.Schema) -> pa.RecordBatch:
    """Add the columns that folders spell."""
    for name, value in piece.values.items():
        if name in target.names:
            kind = target.field(name).type
            batch = batch.append_column(name, pa.repeat(pa.scalar(value, kind), batch.num_rows))
    return batch


def _rows_alone(file: ParquetFile, first: int, after: int) -> Iterator[pa.RecordBatch]:
    """Give the rows of which only folders say something."""
    rows = sum(group.num_rows for group in file.opened.metadata.row_groups[first:after])
    for start in range(0, rows, BATCH_ROWS):
        yield pa.record_batch([pa.nulls(min(BATCH_ROWS, rows - start))], names=[""])


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Say which file an error is about."""
    try:
        yield
    except (ModcryptError, ValueError) as error:
        if path not in str(error):
            error.args = (f"{path}: {error}", *error.args[1:])
        raise


# --- filters -------------------------------------------------------------------------------------


def filter_terms(filters: Alternatives, target: pa.Schema) -> list[Term]:
    """Give terms that all hold for the rows that are wanted, as PyArrow compares values.

    Raises:
        ValueError: a column that is not read, or a value that its type doesn't have.
    """
    if not filters:
        return []
    alternatives = [[_term(one, target) for one in terms] for terms in filters]
    if len(alternatives) == 1:
        return alternatives[0]
    names = frozenset().union(*(term.names for terms in alternatives for term in terms))
    each = [reduce(and_, [term.expression for term in terms]) for terms in alternatives]
    return [Term(names, reduce(or_, each))]


def _term(one: tuple[str, str, Any], target: pa.Schema) -> Term:
    name, how, value = one
    if name not in target.names:
        raise ValueError(f"filters: column {name} is not read: name it in columns, too")
    column, kind = pc.field(name), target.field(name).type
    try:
        if isinstance(value, list):
            values = pa.array([pa.scalar(v).cast(kind) for v in value if v is not None], kind)
            expression = column.isin(values)
            expression = ~expression & column.is_valid() if how == "not in" else expression
        elif value is None:
            expression = {"=": column.is_null(), "!=": column.is_valid()}[how.replace("==", "=")]
        else:
            expression = _COMPARED[how](column, pa.scalar(value).cast(kind))
    except (pa.ArrowException, KeyError, TypeError, ValueError):  # which would tell the value
        raise ValueError(f"filters: {name} is {kind}, and {how} takes another value") from None
    return Term(frozenset([name]), expression)


_COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "=": eq, "==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge,
}  # fmt: skip


def _divided(
    terms: Sequence[Term], own: pa.Schema, target: pa.Schema, file: ParquetFile
) -> tuple[pc.Expression | None, pc.Expression | None]:
    """Give what of a filter the file can be asked, and what is left to be judged afterwards.

    Asked is what reads columns that are in the file just as they are in the table.
    """
    here = file.schema_arrow if terms else pa.schema([])
    same = {
        one.name
        for one in own
        if terms and one.type == target.field(one.name).type == here.field(one.name).type
    }
    asked = [term.expression for term in terms if term.names <= same]
    left = [term.expression for term in terms if not term.names <= same]
    return (reduce(and_, asked) if asked else None), (reduce(and_, left) if left else None)


def _matching(files: list[Found], terms: Sequence[Term], target: pa.Schema) -> list[Found]:
    """Leave out the files whose folders say that no row matches."""
    for term in terms:
        if files and all(term.names <= file.values.keys() for file in files):
            columns = {
                name: pa.array([file.values[name] for file in files], target.field(name).type)
                for name in term.names
            }
            table = pa.table({**columns, "": pa.array(range(len(files)))})
            files = [files[n] for n in table.filter(term.expression)[""].to_pylist()]
    return files


# --- what Spark calls ----------------------------------------------------------------------------


class Reader(spark.DataSourceReader):
    """Reads a table; pickled, it holds paths and references to keys."""

    def __init__(self, settings: Settings, options: ReadOptions, schema: StructType) -> None:
        self._settings, self._options, self._schema = settings, options, schema
        self._terms = filter_terms(options.filters, demanded(schema))

    def partitions(self) -> list[Pieces]:
        """Divide the files among tasks."""
        files = find_files(self._options, self._schema)
        files = _matching(files, self._terms, demanded(self._schema))
        return pack(files, self._options.split_bytes) or [Pieces(())]

    def read(self, partition: spark.InputPartition) -> Iterator[pa.RecordBatch]:
        """Read what one task is to read; raises as `read_pieces`."""
        assert isinstance(partition, Pieces)
        return read_pieces(self._settings, partition.pieces, self._schema, self._terms)

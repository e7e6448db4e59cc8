"""Reading encrypted Parquet files in Spark: the assignment of row groups to tasks, and batches.

    driver     list files -> schema from one footer -> split large files, group small ones in tasks
    executor   resolve keys in read() only -> row groups -> batches in Spark's form

Spark sends executors only paths and references to keys. Several tasks read a large file, each a
range of its row groups. The ranges are only valid for one version of the file: the driver
identifies it without a key, and a task that finds another version fails.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain
from typing import Any, TypeAlias

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
from modcrypt.parquet.arrow.column_masks import restriction_error
from modcrypt.parquet.arrow.decoding import merge_small
from modcrypt.parquet.arrow.parquet_file import ParquetFile
from modcrypt.parquet.arrow.scanning.scan_session import Request
from modcrypt.parquet.arrow.scanning.small_files import SMALL_FILE, SmallFiles
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.parquet.datasets.discovery import (
    as_arrow,
    discover,
    is_dataset,
    list_hive_fields,
    parse_partition,
)
from modcrypt.parquet.format.framing import FileIdentity
from modcrypt.runtime.tracebacks import shorten_errors
from modcrypt.spark.source.arrow_types import (
    check_types,
    conform,
    find_field,
    to_spark_arrow_schema,
)
from modcrypt.spark.source.filter_terms import filter_terms, find_matches, split_terms
from modcrypt.spark.source.options import Alternatives, ReadOptions, ReadSettings
from modcrypt.spark.source.restrictions import FileRestrictions, Restrictions, make_restrictions
from modcrypt.spark.source.table_schema import (
    OPENED_AT_ONCE,
    ROW_COUNTS,
    Spellings,
    add_path_to_errors,
    check_folders,
    open_file,
    read_common_schema,
    select_leaves,
)

FILES_PER_TASK = 500
LEAST_TASK_BYTES = 32 << 20  # row groups of large files are seldom smaller
FEWEST_TASKS = 32  # unless there is too little to read
OPENING_BYTES = 256 << 10  # cost of opening a file, as the number of bytes read in the same time
BATCH_ROWS = 1 << 16
MERGED_BYTES = 1 << 20
"""Most bytes of batches of small files that are merged: Spark takes longer for a batch than for
copying them."""


# --- files and tasks -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of a table."""

    path: str
    size: int
    # Values of columns that the names of its folders state.
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Piece:
    """A file, or share number `split` of `splits` equal shares of its row groups.

    Raise ValueError if the piece is a share but does not identify the version of the file.
    """

    path: str
    values: Mapping[str, Any]
    split: int = 0
    splits: int = 1
    identity: FileIdentity | None = None
    is_small: bool = False  # whether it is a whole file that is read with others

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


def find_files(
    options: ReadOptions, schema: StructType, settings: ReadSettings | None = None
) -> list[TableFile]:
    """List the files of a table, in the order of their paths.

    `settings` say which seal each folder must have, and which files are erased.

    Raises:
        IntegrityError: Files are missing that the seal names.
        ValueError: There are no files.
        FileNotFoundError: A file or folder does not exist.
    """
    files = (file for path in options.paths for file in _list_files_at(path, schema, settings))
    return [file for file in files if options.includes(file.path)]


def _list_files_at(
    path: str, schema: StructType, settings: ReadSettings | None
) -> Iterator[TableFile]:
    if not is_dataset(path, None):
        filesystem, inside = locate(path, None)
        (size,) = _read_sizes(filesystem, [inside])
        yield TableFile(Place(filesystem, inside).full_name, size)
        return
    dataset = discover(path, None, None)
    dataset.check_complete(None if settings is None else settings.required_seal)
    dataset.check_files()
    if settings is not None:
        dataset = settings.leave_out_erased(dataset)
    paths = [file.path for file in dataset.files]
    start = 0 if dataset.root is None else len(dataset.root.path)
    below = {file: file[start:].lstrip("/") for file in paths}
    values = parse_folder_values(below.values(), schema)
    for file, size in zip(paths, _read_sizes(dataset.filesystem, paths), strict=True):
        yield TableFile(Place(dataset.filesystem, file).full_name, size, values[below[file]])


def parse_folder_values(names: Iterable[str], schema: StructType) -> dict[str, dict[str, Any]]:
    """Return the values that the folder names of each file state, in the types of the schema.

    `names` has the paths of the files in the folder of their table. Columns are found regardless of
    case, as in Spark. Raise ValueError if a name is not UTF-8, or a value is not of its type.
    """
    names, own = list(names), to_spark_arrow_schema(schema)
    keys = sorted(list_hive_fields({os.path.dirname(name) for name in names}))
    places = {key: find_field(own, key) for key in keys}
    fields = {
        key: own.field(n) if n >= 0 else pa.field(key, pa.string()) for key, n in places.items()
    }
    types = {key: pa.string() if pt.is_decimal(f.type) else f.type for key, f in fields.items()}
    scheme = ds.partitioning(pa.schema(list(types.items())), flavor="hive")
    return {name: _parse_folders(name, scheme, fields) for name in names}


def _parse_folders(name: str, scheme: Any, fields: Mapping[str, pa.Field]) -> dict[str, Any]:
    """Return the values in a path; `fields` are those of the table for the names of folders."""
    try:
        found = ds.get_partition_keys(parse_partition(scheme, name)).items()
        pairs = [(fields[key].name, _convert(value, fields[key].type)) for key, value in found]
    except pa.ArrowException as error:
        raise ValueError(f"{name}: {error}") from None
    if len(values := dict(pairs)) < len(pairs):
        raise ValueError(f"{name}: names of folders differ only by case; rename one of them")
    return values


def _convert(value: Any, kind: pa.DataType) -> Any:
    return pa.scalar(value, pa.string()).cast(kind).as_py() if pt.is_decimal(kind) else value


def _read_sizes(filesystem: Any, paths: list[str]) -> list[int]:
    if filesystem is None:
        return [os.stat(path).st_size for path in paths]  # raises if a file does not exist
    infos = as_arrow(filesystem).get_file_info(paths)
    if missing := [info.path for info in infos if not info.is_file]:
        raise FileNotFoundError(f"file does not exist: {missing[0]}")
    return [info.size for info in infos]


def assign_pieces(
    files: Iterable[TableFile], split_bytes: int, fewest_tasks: int | None = None
) -> list[Pieces]:
    """Divide files, in the order of reading, among tasks: split large files and group small ones.

    A task has at most `split_bytes`. Tasks are smaller if there is little to read, so that there
    are enough of them, or about `fewest_tasks` if that is given. Raise FormatError or LimitError if
    a large file is not a Parquet file.
    """
    files = list(files)
    share = sum(file.size + OPENING_BYTES for file in files) // (fewest_tasks or FEWEST_TASKS)
    least = LEAST_TASK_BYTES if fewest_tasks is None else OPENING_BYTES
    most = min(split_bytes, max(share, least))
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
        is_small = file.size <= SMALL_FILE
        tasks[-1].append(Piece(file.path, file.values, is_small=is_small))
        remaining -= file.size + OPENING_BYTES
    return [Pieces(pieces) for pieces in tasks]


def _read_identities(paths: Iterable[str]) -> dict[str, FileIdentity]:
    """Read the identities of files to split, concurrently, as stores answer slowly."""

    def read_identity(path: str) -> FileIdentity:
        with add_path_to_errors(path), open_source(path) as source:
            return FileIdentity.of(source)

    large = list(dict.fromkeys(paths))
    with ThreadPoolExecutor(OPENED_AT_ONCE, "modcrypt-plan") as pool:
        return dict(zip(large, pool.map(read_identity, large), strict=True))


# --- on the executors ----------------------------------------------------------------------------


def read_pieces(
    settings: ReadSettings, pieces: Iterable[Piece], schema: StructType,
    terms: Sequence[Alternatives] = (), restrictions: Restrictions | None = None,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """Read files, or shares of them, as batches of a schema; this resolves the keys.

    A column that a file lacks is null. `terms` apply to what `restrictions` leave of the rows.
    Memory use is that of `ParquetFile.iter_batches`.

    Raises:
        UnsupportedFormatError: The restrictions can't be applied to a file.
        KeyNotFoundError: A key is missing, and columns without a key are not read as nulls.
        ValueError: The columns of a file don't fit the schema.
        ModcryptError: Data is not authentic or violates the format.
        OSError: The file is not the version that was divided into shares.
    """
    if settings.on_missing_key == "drop":  # columns of the schema were not dropped
        settings = settings.evolve(on_missing_key="error")
    table = _Table(to_spark_arrow_schema(schema), terms, restrictions)
    yield from merge_small(_read_all(settings, pieces, table), BATCH_ROWS, MERGED_BYTES)


def _read_all(
    settings: ReadSettings, pieces: Iterable[Piece], table: _Table
) -> Iterator[pa.RecordBatch]:
    decryption = cache(settings.decryption)
    joined: list[Piece] = []
    for piece in pieces:
        small = table.small(piece)
        if joined and (small is None or small.is_full or piece.values != joined[0].values):
            yield from _read_joined(joined, decryption, table)
            joined = []
        with add_path_to_errors(piece.path):
            if small is not None and small.add(piece.path, decryption(), piece.identity):
                joined.append(piece)
                continue
        if joined:
            yield from _read_joined(joined, decryption, table)
            joined = []
        yield from _read_alone(piece, decryption, table)
    if joined:
        yield from _read_joined(joined, decryption, table)


_Decryption: TypeAlias = Callable[[], FileDecryptionProperties]


def _read_joined(
    pieces: Sequence[Piece], decryption: _Decryption, table: _Table
) -> Iterator[pa.RecordBatch]:
    """Read small files that were added to those of the table's last schema."""
    batches: list[pa.RecordBatch] | None = None
    with suppress(ModcryptError, ValueError):  # reading them alone names the file
        batches = table.take(pieces[0])
    if batches is not None:
        yield from batches
        return
    for piece in pieces:
        yield from _read_alone(piece, decryption, table)


def _read_alone(piece: Piece, decryption: _Decryption, table: _Table) -> Iterator[pa.RecordBatch]:
    with (
        add_path_to_errors(piece.path),
        open_file(piece.path, decryption(), piece.identity) as file,
    ):
        yield from _read_batches(file, piece, table)


def _read_batches(file: ParquetFile, piece: Piece, table: _Table) -> Iterator[pa.RecordBatch]:
    count = file.num_row_groups
    first, after = (count * n // piece.splits for n in (piece.split, piece.split + 1))
    if first == after:
        return
    columns = table.find_columns(file, frozenset(piece.values))
    if columns.names:
        batches = file.iter_batches(
            BATCH_ROWS,
            columns=columns.names,
            row_groups=range(first, after),
            filters=columns.file_filter,
            use_threads=False,
        )
    else:
        batches = _make_empty_rows(file, first, after)
    yield from columns.finish(batches, piece, table.schema)


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns of a file that a table needs, and the filters on the file and on its batches."""

    names: list[str]
    file_filter: Alternatives | None
    batch_filter: pc.Expression | None
    restrictions: FileRestrictions
    small: SmallFiles | None  # None if files are filtered, or no column is read

    def finish(
        self, batches: Iterable[pa.RecordBatch], piece: Piece, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Return batches of a file as rows of the table."""
        for batch in map(self.restrictions.filter, batches):
            rows = conform(_add_folder_values(batch, piece, schema), schema)
            out = self.restrictions.mask(rows)
            yield out if self.batch_filter is None else out.filter(self.batch_filter)


class _Table:
    """The schema and filters of a table, and what they require of its files.

    Most files have the schema of the one before, so its columns are kept.
    """

    def __init__(
        self, schema: pa.Schema, terms: Sequence[Alternatives], restrictions: Restrictions | None
    ) -> None:
        self.schema = schema
        self._terms, self._restrictions = terms, restrictions
        self._last: tuple[tuple[object, frozenset[str]], _Columns] | None = None

    def small(self, piece: Piece) -> SmallFiles | None:
        """Return what reads a small file if it has the schema of the last one; None if nothing."""
        if not piece.is_small or self._last is None or self._last[0][1] != piece.values.keys():
            return None
        return self._last[1].small

    def take(self, piece: Piece) -> list[pa.RecordBatch] | None:
        """Return the rows of the small files that were added, which have the values of a piece."""
        assert self._last is not None
        columns = self._last[1]
        batches = None if columns.small is None else columns.small.take()
        return None if batches is None else list(columns.finish(batches, piece, self.schema))

    def find_columns(self, file: ParquetFile, folder_fields: frozenset[str]) -> _Columns:
        """Return the columns to read; raise ValueError if they don't fit the table's schema."""
        place = file.frozen_schema, folder_fields
        if self._last is None or self._last[0] != place:
            self._last = place, self._choose_columns(file, folder_fields)
        return self._last[1]

    def _choose_columns(self, file: ParquetFile, folder_fields: Collection[str]) -> _Columns:
        spellings = Spellings(file.open_file.leaves)
        check_folders({path[0] for path in file.open_file.leaves}, folder_fields)
        in_file = pa.schema([field for field in self.schema if field.name not in folder_fields])
        parts = (_expand_names(field.name, field.type, spellings) for field in in_file)
        names = list(chain.from_iterable(parts))
        own = read_common_schema(file, select_leaves(file, names)) if names else pa.schema([])
        check_types(own, in_file)
        restricted = FileRestrictions({}, None)
        if self._restrictions is not None:
            restricted = self._restrictions.for_file(file, self.schema, folder_fields)
        late = {*restricted.masks, *file.cell_names}
        filters = split_terms(self._terms, own, self.schema, file, late)
        if restricted.row_filter is not None:
            names = list(dict.fromkeys([*names, *restricted.row_filter.columns.names]))
        small = None
        if names and filters[0] is None:
            small = SmallFiles(file, names, file.types_of(Request(columns=names))[1])
        return _Columns(names, *filters, restricted, small)


def _expand_names(name: str, kind: pa.DataType, here: Spellings) -> Iterator[str]:
    """Yield the names of the parts of a field that a file has; structs are expanded."""
    if pt.is_struct(kind):
        parts = [
            n for child in kind for n in _expand_names(f"{name}.{child.name}", child.type, here)
        ]
        if parts:
            yield from parts
            return
    if (own := here.find(name)) is not None:
        yield own


def _add_folder_values(batch: pa.RecordBatch, piece: Piece, target: pa.Schema) -> pa.RecordBatch:
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


# --- Spark's interface ---------------------------------------------------------------------------


class PieceReader:
    """A reader of the pieces of a table; picklable, it holds only paths and references to keys."""

    def __init__(self, settings: ReadSettings, options: ReadOptions, schema: StructType) -> None:
        self._settings, self._options, self._schema = settings, options, schema
        self._terms = filter_terms(options.filters, to_spark_arrow_schema(schema))
        self._restrictions = make_restrictions(options)

    @shorten_errors
    def read(self, partition: spark.InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the pieces of one task; raises as `read_pieces`."""
        assert isinstance(partition, Pieces)
        return read_pieces(
            self._settings, partition.pieces, self._schema, self._terms, self._restrictions
        )


class Reader(PieceReader, spark.DataSourceReader):
    """A reader of a table."""

    @shorten_errors
    def partitions(self) -> list[Pieces]:
        """Divide the files among tasks."""
        files = find_files(self._options, self._schema, self._settings)
        if self._restrictions is None:
            target = to_spark_arrow_schema(self._schema)
            values = [file.values for file in files]
            files = [files[n] for n in find_matches(values, self._terms, target)]
        else:  # the names of folders may state the values of a masked column
            self._restrictions.check_known(self._settings, [file.path for file in files])
        options = self._options
        return assign_pieces(files, options.split_bytes, options.fewest_tasks) or [Pieces(())]


class RowCounter(spark.DataSourceReader):
    """A reader of the number of rows of each file, which opens only footers; picklable."""

    def __init__(self, settings: ReadSettings, options: ReadOptions) -> None:
        self._settings, self._options = settings, options
        self._restrictions = make_restrictions(options)
        if self._restrictions is not None and self._restrictions.has_row_filter:
            raise ValueError("rowCounts counts all rows of files, but readRestrictions filter rows")

    @shorten_errors
    def partitions(self) -> list[Pieces]:
        """Divide the files among tasks."""
        files = find_files(self._options, StructType(), self._settings)
        masks = self._restrictions is not None and self._restrictions.actions
        if masks and any(file.values for file in files):
            raise restriction_error(
                "rowCounts shows paths, and names of folders may state masked values; count the "
                "rows of a column instead"
            )
        size = min(FILES_PER_TASK, -(-len(files) // (self._options.fewest_tasks or FEWEST_TASKS)))
        pieces = [Piece(file.path, file.values) for file in files]
        return [Pieces(pieces[n : n + size]) for n in range(0, len(pieces), size)]

    @shorten_errors
    def read(self, partition: spark.InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the footers of one task's files; raises as `read_pieces`."""
        assert isinstance(partition, Pieces)
        target = to_spark_arrow_schema(ROW_COUNTS)
        for piece in partition.pieces:
            decryption = self._settings.decryption_of(piece.path)
            with add_path_to_errors(piece.path), open_file(piece.path, decryption) as file:
                yield pa.record_batch([[piece.path], [file.num_rows]], schema=target)

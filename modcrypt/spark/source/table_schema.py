"""The schema of a table in Spark: that of its first file, or of all of its files together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial, reduce
from typing import Any

import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructType

from modcrypt.errors import ModcryptError
from modcrypt.io.places import Place
from modcrypt.parquet.arrow.parquet_file import ParquetFile
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.parquet.datasets.discovery import discover, is_dataset
from modcrypt.parquet.format.framing import FileIdentity
from modcrypt.parquet.format.schema import leaves_of
from modcrypt.spark.source.arrow_types import merge_schemas, to_common_schema, to_spark_schema
from modcrypt.spark.source.options import ReadOptions, ReadSettings

OPENED_AT_ONCE = 16  # files that the driver opens concurrently, as stores answer slowly

ROW_COUNTS = StructType().add("file", StringType()).add("rows", LongType())
"""The schema of a read with the option `rowCounts`."""

_HOW: dict[str, Any] = {"arrow_extensions_enabled": False, "coerce_int96_timestamp_unit": "us"}
"""Options of PyArrow: no types that Spark lacks, and support for years after 2262."""


class Spellings:
    """The names of a file's columns and groups, found regardless of case, as Spark does."""

    def __init__(self, leaves: Iterable[tuple[str, ...]]) -> None:
        self._folded: dict[str, list[str]] = {}
        for path in sorted({leaf[:n] for leaf in leaves for n in range(1, len(leaf) + 1)}):
            name = ".".join(path)
            self._folded.setdefault(name.lower(), []).append(name)

    def find(self, name: str) -> str | None:
        """Return the file's own spelling of a name, or None if the file lacks the column."""
        found = self._folded.get(name.lower(), [])
        found = [own for own in found if own == name] or found
        if len(found) > 1:
            shown = ", ".join(found)
            raise ValueError(f"column {name}: the file has {shown}; name one of these or rename it")
        return found[0] if found else None


def table_schema(settings: ReadSettings, options: ReadOptions) -> StructType:
    """Return the schema of a table: that of its first file, with the fields of folder names.

    With the option `mergeSchema`, it has the columns of all files. The footer key is enough, unless
    columns without a key are to be dropped.
    """
    if options.row_counts:
        return ROW_COUNTS
    paths, folder_fields = _survey(options, settings)
    folders = {name.lower() for name in folder_fields.names}
    read = partial(_read_schema, settings, options, folders)
    if options.merge_schema:
        with ThreadPoolExecutor(OPENED_AT_ONCE, "modcrypt-plan") as pool:
            own = reduce(merge_schemas, pool.map(read, paths))
    else:
        own = read(paths[0])
    both = pa.schema([*own, *folder_fields])
    if not both.names:
        raise ValueError(f"{paths[0]}: no column has an available key")
    return to_spark_schema(both if options.columns is None else _order(both, options.columns))


def _read_schema(
    settings: ReadSettings, options: ReadOptions, folders: Collection[str], path: str
) -> pa.Schema:
    """Return the schema that Spark uses for the wanted columns of a file."""
    with add_path_to_errors(path), open_file(path, settings.decryption_of(path)) as file:
        check_folders({leaf[0] for leaf in file.open_file.leaves}, folders)
        leaves = select_leaves(file, _wanted_names(file, options, folders))
        if settings.on_missing_key == "drop":
            missing = set(file.open_file.select(leaves, None, partial_groups=True).missing)
            leaves = [leaf for leaf in leaves if leaf not in missing]
        return read_common_schema(file, leaves)


def _wanted_names(
    file: ParquetFile, options: ReadOptions, folders: Collection[str]
) -> list[str] | None:
    """Return the file's spelling of the columns to read; of a merged schema, only those it has.

    `folders` has the names of fields that folders state, in lower case.
    """
    if options.columns is None:
        return None
    here = Spellings(file.open_file.leaves)
    names = [(here.find(name), name) for name in options.columns if name.lower() not in folders]
    return [own or name for own, name in names if own or not options.merge_schema]


def _order(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """Return a schema in the order in which columns, or parts of them, are named."""
    order: dict[str, None] = {}
    for name in columns:
        inside = f"{name}.".lower()
        tops = [top for top in schema.names if inside.startswith(f"{top}.".lower())]
        if not tops:
            raise ValueError(f"no file has the column {name}")
        order[tops[0]] = None
    return pa.schema([schema.field(name) for name in order])


def open_file(
    path: str, decryption: FileDecryptionProperties, expected: FileIdentity | None = None
) -> ParquetFile:
    """Open a file of a table, without types that Spark lacks."""
    return ParquetFile(path, decryption, expected=expected, **_HOW)


def select_leaves(file: ParquetFile, names: Iterable[str] | None) -> list[int]:
    """Return the indexes of the leaves with these names, or of all; raise ValueError if unknown."""
    leaves = file.open_file.leaves
    return list(range(len(leaves))) if names is None else leaves_of(leaves, names)


def read_common_schema(file: ParquetFile, leaves: Sequence[int]) -> pa.Schema:
    """Return the schema that Spark uses for some leaves of a file."""
    if not leaves:
        return pa.schema([])
    alone = file.open_schema(leaves)
    return to_common_schema(file.to_plain(alone.schema_arrow), alone.schema)


def check_folders(own: Iterable[str], folder_fields: Iterable[str]) -> None:
    """Raise ValueError if folders name a column of the file, as anyone may rename a folder."""
    folders = {name.lower() for name in folder_fields}
    if both := sorted(name for name in set(own) if name.lower() in folders):
        raise ValueError(
            f"{', '.join(both)}: both a column of the file and the name of a folder, which is not "
            "authenticated; rename the folder"
        )


def _survey(options: ReadOptions, settings: ReadSettings) -> tuple[list[str], pa.Schema]:
    """Return the files of a table, and the fields that the names of its folders state."""
    # The reader compares its own list of files with the seal, but no reader is made without a
    # schema. Raise IntegrityError if there are no files, but the seal names some; and ValueError if
    # there are no files.
    files: list[str] = []
    folder_fields: dict[str, pa.Field] = {}  # by names in lower case
    for path in options.paths:
        if is_dataset(path, None):
            dataset = discover(path, None, "hive")
            if not dataset.files:
                dataset.check_complete(settings.required_seal)
            dataset.check_files()
            dataset = settings.leave_out_erased(dataset)
            for field in dataset.partition_schema:
                known = folder_fields.setdefault(field.name.lower(), field)
                if known.type != field.type:  # there are only integers and texts
                    folder_fields[field.name.lower()] = known.with_type(pa.string())
            paths = filter(options.includes, (file.path for file in dataset.files))
            files += [Place(dataset.filesystem, path).full_name for path in paths]
        else:
            files.append(path)
    if not files:
        raise ValueError(f"no file matches {options.include!r}, the files of the dataset")
    return files, pa.schema(folder_fields.values())


@contextmanager
def add_path_to_errors(path: str) -> Iterator[None]:
    """Add the path of the file to the message of an error."""
    try:
        yield
    except (ModcryptError, ValueError) as error:
        if path not in str(error):
            error.args = (f"{path}: {error}", *error.args[1:])
        raise

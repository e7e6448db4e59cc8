"""Iceberg's read restrictions on the files of a table: rows that are skipped, and masked columns.

    file -> row filter -> masks -> the option `filters` -> Spark

The row filter sees the values of the file; everything after the masks sees masked values, so that
no condition reveals what they hide. Restrictions name columns by field ids. What can't be applied
to a file, or might leave a column unmasked, is an error.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from os import urandom
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from modcrypt.parquet.arrow.column_masks import (
    SALT_SIZE,
    Mask,
    find_actions,
    make_mask,
    restriction_error,
    split_restrictions,
)
from modcrypt.parquet.arrow.parquet_file import ParquetFile
from modcrypt.parquet.format.schema import leaf_elements
from modcrypt.parquet.rewrite.file_rewrite import find_masked
from modcrypt.runtime.extras import missing_extra
from modcrypt.runtime.fork_safety import cached_property
from modcrypt.spark.source.arrow_types import conform
from modcrypt.spark.source.options import ReadOptions, ReadSettings
from modcrypt.spark.source.table_schema import (
    Spellings,
    add_path_to_errors,
    open_file,
    read_common_schema,
)

if TYPE_CHECKING:
    from modcrypt.iceberg.read.row_filter import RowFilter

_ROW_FILTER = "required-row-filter"


@dataclass(frozen=True)
class Restrictions:
    """Read restrictions of one query; picklable, with the salt that its tasks share.

    Raise UnsupportedFormatError if an action or a member is unknown, and ModuleNotFoundError for a
    row filter without pyiceberg.
    """

    document: Mapping[str, Any] = field(repr=False)
    salt: bytes = field(default_factory=lambda: urandom(SALT_SIZE), repr=False)

    def __post_init__(self) -> None:
        self.actions  # noqa: B018  # to be checked before a file is opened
        if self.has_row_filter and find_spec("pyiceberg") is None:
            raise missing_extra("a row filter in readRestrictions", "iceberg")

    @cached_property
    def actions(self) -> dict[int, str]:
        """The action on each masked column, by field ids."""
        rest = {name: value for name, value in self.document.items() if name != _ROW_FILTER}
        return find_actions(rest)

    @property
    def has_row_filter(self) -> bool:
        """True if the document restricts rows, not only values of columns."""
        return split_restrictions(self.document)[0] is not None

    def check_known(self, settings: ReadSettings, paths: Collection[str]) -> None:
        """Raise UnsupportedFormatError if none of some files has one of the masked columns.

        It opens files until all columns are found, most often the first one alone.
        """
        missing = set(self.actions)
        for path in paths:
            if missing:
                decryption = settings.decryption_of(path)
                with add_path_to_errors(path), open_file(path, decryption) as file:
                    missing -= _read_field_ids(file).keys()
        if missing and paths:
            raise restriction_error(f"no file has columns with the field ids {sorted(missing)}")

    def for_file(
        self, file: ParquetFile, target: pa.Schema, folder_fields: Any
    ) -> FileRestrictions:
        """Return the restrictions on a file of a table with the schema `target`.

        Raise UnsupportedFormatError if they cannot be applied to this file.
        """
        if self.actions and (stated := [name for name in target.names if name in folder_fields]):
            raise restriction_error(  # of Iceberg's partitions, name_trunc=Ad
                f"names of folders may state masked values; read columns without {stated}"
            )
        masked = find_masked(file.open_file.metadata, self.actions)
        if folder_fields and self.actions.keys() - _read_field_ids(file).keys():
            raise restriction_error("a masked column may be in the names of the file's folders")
        names = {file.open_file.leaves[leaf][0]: action for leaf, action in masked.items()}
        here = Spellings(file.open_file.leaves)
        masks = {
            column.name: make_mask(action, column.type, nullable=column.nullable, salt=self.salt)
            for column in target
            if (action := names.get(here.find(column.name) or ""))
        }
        condition, _ = split_restrictions(self.document)
        row_filter = None if condition is None else FileRowFilter.parse(condition, file)
        return FileRestrictions(masks, row_filter)


def make_restrictions(options: ReadOptions) -> Restrictions | None:
    """Return the restrictions of a query; each call chooses a salt.

    Raise errors as `Restrictions`.
    """
    return None if options.restrictions is None else Restrictions(options.restrictions)


@dataclass(frozen=True)
class FileRestrictions:
    """The restrictions on one file."""

    masks: Mapping[str, Mask]  # masks by the names of columns in the table
    row_filter: FileRowFilter | None  # filter on the rows of the file; None for all rows

    def filter(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch of the file that may be read."""
        return batch if self.row_filter is None else self.row_filter.apply(batch)

    def mask(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Mask the columns of a batch in the schema of the table."""
        if not self.masks:
            return batch
        columns = [
            self.masks[column.name](values) if column.name in self.masks else values
            for column, values in zip(batch.schema, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


@dataclass(frozen=True)
class FileRowFilter:
    """A row filter that is bound to the columns of a file."""

    columns: pa.Schema  # names and types of the columns that it needs
    bound: RowFilter

    @classmethod
    def parse(cls, condition: Any, file: ParquetFile) -> FileRowFilter:
        """Bind a filter to a file; raise UnsupportedFormatError if that is impossible."""
        from modcrypt.iceberg.read.read_restrictions import bind_row_filter

        bound = bind_row_filter(condition, _read_columns(file))
        leaves = {path[0]: leaf for leaf, path in enumerate(file.open_file.leaves)}
        needed = [leaves[column.name] for column in bound.schema.fields]
        if file.open_file.select(needed, None, partial_groups=True).missing:
            raise restriction_error("the row filter needs a column without an available key")
        return cls(read_common_schema(file, needed), bound)

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch of the file that may be read."""
        try:
            needed = conform(batch, self.columns)
        except (pa.ArrowException, ValueError):  # the message may contain values
            raise restriction_error("a column does not fit the row filter") from None
        return self.bound.apply(batch, needed)


def _read_field_ids(file: ParquetFile) -> dict[int | None, str]:
    """Return the field ids of a file's top-level columns; None is the id of those without one."""
    schema = file.open_file.metadata.schema
    tops = {leaf.field: leaf.path[0] for leaf in leaf_elements(schema)}
    return {schema[index].field_id: name for index, name in tops.items()}


def _read_columns(file: ParquetFile) -> pa.Schema:
    """Return the columns that a row filter may name, with their field ids: no groups."""
    schema = file.open_file.metadata.schema
    columns = []
    for number, leaf in enumerate(leaf_elements(schema)):
        id_ = schema[leaf.element].field_id
        if len(leaf.path) == 1 and not leaf.max_repetition and id_ is not None:
            with suppress(ValueError):  # a type that Spark lacks
                (column,) = read_common_schema(file, [number])
                columns.append(column.with_metadata({"PARQUET:field_id": str(id_)}))
    return pa.schema(columns)

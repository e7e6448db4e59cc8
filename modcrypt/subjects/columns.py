"""Columns with cells: which they are, what their metadata says, and their conversion.

A field of the top level that has cells has in its metadata, under `modcrypt.subjects`, a JSON
object of `version`, 1; `dataset`, the name that its cells are bound to; `key`, the name of the
column with the subjects; `columns`, the paths of its leaves that are cells; and `field`, the field
as it was, as an Arrow schema in IPC form, in base64.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import pyarrow as pa

from modcrypt.errors import FormatError, UnsupportedFormatError, list_names
from modcrypt.parquet.arrow.field_metadata import get_arrow_schema, parse_field_metadata
from modcrypt.parquet.arrow.struct_leaves import (
    Path,
    cover_leaves,
    iter_leaves,
    map_leaf_fields,
    map_leaves,
    stored_paths,
)
from modcrypt.parquet.arrow.value_bytes import readable_type
from modcrypt.parquet.crypto.properties import CELLS
from modcrypt.parquet.format.idl import ThriftStruct
from modcrypt.parquet.format.schema import leaves_of
from modcrypt.runtime.fork_safety import cached_property
from modcrypt.subjects.values import CellColumn, cell_type, find_owners
from modcrypt.subjects.vault import SubjectVault

VERSION = 1
LEAST_ROWS, MOST_ROWS, BATCH_BYTES = 1 << 16, 1 << 20, 256 << 20
"""Limits of a batch that is encrypted at once: more rows need fewer expansions of keys."""

Convert: TypeAlias = Callable[..., pa.Array]  # of a column, values and their owners


@dataclass(frozen=True, slots=True)
class CellField:
    """A field of the top level with cells."""

    dataset: str  # name of the dataset that the cells are bound to
    key: str  # name of the column with the subjects
    paths: frozenset[Path]  # paths of the leaves that are cells
    field: pa.Field  # the field as it was before its values became cells

    def stored_field(self, field: pa.Field | None = None) -> pa.Field:
        """Return the field of the cells of a field: this one, or the same in a dataset."""
        stored = map_leaf_fields(field or self.field, self._find_stored_leaf)
        note = {
            "version": VERSION,
            "dataset": self.dataset,
            "key": self.key,
            "columns": sorted(map(list, self.paths)),
            "field": base64.b64encode(pa.schema([self.field]).serialize()).decode(),
        }
        return stored.with_metadata({**(stored.metadata or {}), CELLS: json.dumps(note).encode()})

    def _find_stored_leaf(self, path: Path, leaf: pa.Field) -> pa.Field:
        return leaf.with_type(cell_type(leaf.type, ".".join(path))) if path in self.paths else leaf

    def leaf_types(self) -> dict[Path, pa.DataType]:
        """Return the types that the values of the cells are read as, by the leaves' paths."""
        leaves = iter_leaves(self.field)
        return {path: readable_type(kind) for path, kind in leaves if path in self.paths}


def parse_cell_fields(metadata: ThriftStruct) -> dict[str, CellField]:
    """Return the fields with cells in the file of a footer, by name.

    Raises:
        UnsupportedFormatError: Another version of this form has written them.
        FormatError: Their metadata cannot be read.
    """
    noted = parse_field_metadata(get_arrow_schema(metadata))
    notes = {path: values.get(CELLS.decode()) for path, values in noted.items()}
    found = {path[0]: _parse_note(path[0], n) for path, n in notes.items() if n and len(path) == 1}
    for name, cells in found.items():
        if cells.key in found:
            raise FormatError(f"column {name}: the subjects of its cells would be cells, too")
    return found


def _parse_note(name: str, text: str) -> CellField:
    try:
        note = json.loads(text)
        version = note["version"]
        if version == VERSION:
            stored = base64.b64decode(note["field"], validate=True)
            (original,) = pa.ipc.read_schema(pa.py_buffer(stored))
            paths = frozenset(tuple(map(str, path)) for path in note["columns"])
            names = str(note["dataset"]), str(note["key"])
            "".join(names).encode()  # raises if they are not text
            if paths <= dict(iter_leaves(original)).keys():
                return CellField(*names, paths, original)
            raise ValueError
    except (ValueError, KeyError, TypeError, OSError, RecursionError, pa.ArrowException):
        raise FormatError(f"column {name}: the metadata of its cells is damaged") from None
    raise UnsupportedFormatError(
        f"column {name} has cells of version {str(version)[:20]}, and this modcrypt reads "
        f"version {VERSION}; use a newer one"
    )


def choose_fields(
    schema: pa.Schema, dataset: str, key: str, columns: Sequence[str]
) -> dict[str, CellField]:
    """Return the fields whose values are to become cells, by name; the arguments of `Subjects`.

    Raises:
        ValueError: The schema lacks the key column or one of the columns, or the key is among them;
            or several columns have the same name.
        UnsupportedFormatError: Values of a type cannot be encrypted one by one.
    """
    if repeated := sorted(name for name, n in Counter(schema.names).items() if n > 1):
        raise ValueError(
            f"subject_columns: several columns have the same name: {list_names(repeated)}; rename "
            "them"
        )
    if schema.get_field_index(key) < 0:
        raise ValueError(
            f"subject_key: there is no column {key} in the file; add it, and do not partition by it"
        )
    leaves = {field.name: stored_paths(field) for field in schema}
    every = [path for own in leaves.values() for paths in own.values() for path in paths]
    try:
        chosen = select_leaves(every, columns)
    except ValueError as error:
        raise ValueError(f"subject_columns: {error}; do not partition by them") from None
    if any(path[0] == key for path in chosen):
        raise ValueError(f"subject_columns names the key column {key}; remove it")
    cells = {name: cover_leaves(own, chosen, "subject_columns") for name, own in leaves.items()}
    return {f.name: CellField(dataset, key, own, f) for f in schema if (own := cells[f.name])}


def select_leaves(leaves: list[Path], columns: Sequence[str]) -> set[Path]:
    """Return the leaves that names of columns or groups cover; raise ValueError as `leaves_of`."""
    return {leaves[n] for n in leaves_of(leaves, [name.removesuffix(".*") for name in columns])}


# --- rows ----------------------------------------------------------------------------------------


def convert_batch(
    batch: pa.RecordBatch, fields: Mapping[str, CellField], vault: SubjectVault, convert: Convert,
    schema: pa.Schema, *, create: bool = False,
) -> pa.RecordBatch:  # fmt: skip
    """Return a batch, with its key columns, whose leaves `convert` encrypts or decrypts.

    `create` is as for `find_owners`; `schema` is that of the result.
    """
    there = [name for name in batch.schema.names if name in fields]
    keys = dict.fromkeys(fields[name].key for name in there)
    owners = {key: find_owners(vault, batch.column(key), create=create) for key in keys}
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    for name in there:
        field = fields[name]
        leaves = {
            path: partial(convert, CellColumn(field.dataset, path, kind), owners=owners[field.key])
            for path, kind in field.leaf_types().items()
        }
        columns[name] = map_leaves(columns[name], schema.field(name), leaves)
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)


@dataclass(frozen=True)
class CellWriter:
    """A writer of the cells of one file."""

    fields: Mapping[str, CellField]  # the fields with cells, by name
    open_vault: Callable[[], SubjectVault]  # called before the first value is encrypted
    plain: pa.Schema  # schema of the rows

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the rows with cells."""
        stored = {name: cells.stored_field() for name, cells in self.fields.items()}
        return pa.schema([stored.get(f.name, f) for f in self.plain], self.plain.metadata)

    def encrypt(self, rows: pa.Table) -> pa.Table:
        """Return rows with cells; raise as `CellColumn.encrypt`."""
        vault, convert = self.open_vault(), CellColumn.encrypt
        fitting = rows.num_rows * BATCH_BYTES // max(rows.nbytes, 1)
        size = min(max(fitting, LEAST_ROWS), MOST_ROWS)
        made = [
            convert_batch(batch, self.fields, vault, convert, self.schema, create=True)
            for batch in rows.to_batches(max_chunksize=size)
        ]
        return pa.Table.from_batches(made, self.schema)

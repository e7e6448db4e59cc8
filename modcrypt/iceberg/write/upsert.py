"""Update the rows of a table that have the keys of new rows, and insert the other new rows."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysFalse, And, BooleanExpression, In
from pyiceberg.expressions.visitors import bind
from pyiceberg.schema import Schema

from modcrypt.errors import UnsupportedFormatError
from modcrypt.iceberg.format.pyiceberg_schemas import schema_of
from modcrypt.iceberg.read.cell_notes import declared_ids, find_notes
from modcrypt.iceberg.read.row_filter import match_name
from modcrypt.iceberg.read.row_lineage import LAST_UPDATED, ROW_ID
from modcrypt.iceberg.read.scan_planning import PlannedFile
from modcrypt.iceberg.read.table_scan import TableScan
from modcrypt.iceberg.write.append import check_properties
from modcrypt.iceberg.write.cell_columns import check_declared, plan_cells
from modcrypt.iceberg.write.commit import Table
from modcrypt.iceberg.write.row_changes import Choice, change_rows
from modcrypt.iceberg.write.row_selection import ALL_ROWS, Candidates, is_top_level
from modcrypt.iceberg.write.schema_fitting import check_fits, fit_rows
from modcrypt.iceberg.write.snapshot_writing import MAIN, branch_head
from modcrypt.parquet.arrow.arrow_streams import ArrowStream, open_stream

if TYPE_CHECKING:
    from modcrypt.iceberg.read.table_version import TableVersion

MAX_PRUNING_KEYS = 200
"""Number of keys up to which pyiceberg compares a set with statistics."""


@dataclass(frozen=True, kw_only=True)
class Upserted(Generic[Table]):
    """The result of an upsert.

    Attributes:
        table: The table with the rows.
        rows_updated: Number of rows that were replaced, because a value differs.
        rows_inserted: Number of rows that were added.
    """

    table: Table
    rows_updated: int
    rows_inserted: int


def upsert(
    table: Table,
    data: pa.Table | ArrowStream,
    join_cols: Sequence[str] | None = None,
    when_matched_update_all: bool = True,
    when_not_matched_insert_all: bool = True,
    case_sensitive: bool = True,
    branch: str | None = MAIN,
    snapshot_properties: Mapping[str, str] | None = None,
) -> Upserted[Table]:
    """Update the rows of a table that have the keys of new rows, and insert the other new rows.

    Both is one snapshot. A row whose values are all equal stays as it is; updated rows keep their
    row ids.

    Args:
        table: Any version of the table; its current version is changed.
        data: The new rows, as for `modcrypt.iceberg.append`; they are held in memory. To update
            rows, they must have all columns of the table.
        join_cols: Columns of the key; by default the identifier fields of the table's schema.
        when_matched_update_all: Whether to update rows.
        when_not_matched_insert_all: Whether to insert rows.
        case_sensitive: Whether `join_cols` must have the table's case.
        branch: Name of the branch; one that does not exist begins at the current snapshot.
        snapshot_properties: Further members of the snapshot's summary.

    Raises:
        ValueError: The data does not fit the table, no columns make a key, a key is null, or two
            rows of the data or of the table have the same key.
        UnsupportedFormatError: Read restrictions apply to the table, it has no encryption, or it
            has cells, and lacks the subjects that encrypt and decrypt their values.
        ModcryptError, OSError: As `modcrypt.iceberg.append`.
    """
    if not (when_matched_update_all or when_not_matched_insert_all):
        raise ValueError("an upsert must update or insert; both are switched off")
    rows = data if isinstance(data, pa.Table) else open_stream(data).read_all()
    if isinstance(join_cols, str):  # a text would be taken for a list of its letters
        raise ValueError(f"join_cols must be a list of names; pass [{join_cols!r}]")
    cells = plan_cells(table.walk.resolver.subjects, rows.schema)
    request = _Request(
        rows, cells, join_cols, case_sensitive, when_matched_update_all, when_not_matched_insert_all
    )
    request.on(table.metadata)  # raises before anything is written
    branch, properties = branch or MAIN, check_properties(snapshot_properties)
    changed, notes = change_rows(
        table, partial(_KeyedRows.find, request), branch=branch, properties=properties
    )
    updated = sum(len(note.updated) for note in notes)
    unmatched = rows.num_rows - sum(len(note.rows) for note in notes)
    inserted = unmatched if when_not_matched_insert_all else 0
    return Upserted(table=changed, rows_updated=updated, rows_inserted=inserted)


@dataclass(frozen=True)
class _Request:
    """The rows of an upsert and how it applies them."""

    rows: pa.Table = field(repr=False)
    cells: Any  # writer of the rows' cells; None for none
    join_cols: Sequence[str] | None
    case_sensitive: bool
    updates: bool
    inserts: bool

    def on(self, metadata: Any) -> _Source:
        """Return the rows with the columns of a table's current schema; raise as `upsert`."""
        schema = schema_of(metadata)
        if self.cells is None:
            check_declared(declared_ids(metadata), schema, None)
        lacking = check_fits((self.cells or self.rows).schema, schema)
        if lacking and self.updates:
            raise ValueError(
                f"the data lacks the column {lacking[0]!r}, whose values an update would lose; add "
                "it, or pass when_matched_update_all=False to only insert rows"
            )
        keys = self._keys(schema)
        if missing := [name for name in keys if name not in self.rows.column_names]:
            raise ValueError(f"the data lacks the key column {missing[0]!r}")
        source = _Source(self._fit(schema), keys)
        source.check()
        return source

    def _fit(self, schema: Schema) -> pa.Table:
        """Return the rows with the table's columns; those with cells have their values."""
        if self.cells is None:
            return fit_rows(self.rows, schema)
        cells = self.cells.fields
        others = [field for field in schema.fields if field.name not in cells]
        fitted = fit_rows(self.rows.drop_columns(list(cells)), Schema(*others))
        names = [field.name for field in schema.fields]
        return pa.table(
            {name: (self.rows if name in cells else fitted).column(name) for name in names}
        )

    def _keys(self, schema: Schema) -> list[str]:
        if (names := self.join_cols) is None:
            found = (schema.find_column_name(id_) for id_ in schema.identifier_field_ids)
            names = [name for name in found if name is not None]
        if not self.case_sensitive:
            names = [match_name(schema, name) for name in names]
        if not names:
            raise ValueError("name the columns of the key in join_cols: the table has none itself")
        if len(set(names)) < len(names):
            raise ValueError("join_cols names a column twice")
        for name in names:
            if not is_top_level(schema, name):
                raise ValueError(f"the table has no column {name!r} that could be a key")
            if self.cells is not None and name in self.cells.fields:
                raise ValueError(f"{name!r} cannot be a key: equal values have different cells")
            if not schema.find_field(name).field_type.is_primitive:
                raise ValueError(f"{name!r} cannot be a key: it is a struct, list or map")
        return list(names)


@dataclass(frozen=True)
class _Source:
    """New rows, with all columns of the table."""

    rows: pa.Table = field(repr=False)
    keys: Sequence[str]

    def check(self) -> None:
        """Raise ValueError unless the keys are unique and have no nulls."""
        for name in self.keys:
            column = _plain(self.rows.column(name))
            is_float = pa.types.is_floating(column.type)
            if column.null_count or (is_float and pc.any(pc.is_nan(column)).as_py()):
                raise ValueError(f"the key column {name!r} of the data has nulls or NaN")
        found = self.match(self.rows)
        if len(pc.unique(found)) < self.rows.num_rows:
            raise ValueError("two rows of the data have the same key")

    def match(self, rows: pa.Table) -> pa.Array:
        """Return the number of the first new row with the key of each row; null without one."""
        here, there = pa.nulls(self.rows.num_rows, pa.int64()), pa.nulls(rows.num_rows, pa.int64())
        here, there = pc.fill_null(here, 0), pc.fill_null(there, 0)
        for name in self.keys:
            ours, theirs = _plain(self.rows.column(name)), _plain(rows.column(name))
            values = pc.unique(ours)
            count = max(1, len(values))  # the numbers are below the square of the number of rows
            here = pc.add(pc.multiply(here, count), _number(ours, values))
            there = pc.add(pc.multiply(there, count), _number(theirs, values))
            known = pc.unique(here)
            here, there = _number(here, known), _number(there, known)
        return _number(there, here)

    def row_filter(self, schema: Schema) -> BooleanExpression:
        """Return a condition that all rows with the keys meet; by it files are skipped."""
        # Keys that pyiceberg cannot compare, such as nanoseconds, are left out.
        condition = ALL_ROWS
        for name in self.keys:
            values = pc.unique(_plain(self.rows.column(name)))
            if len(values) <= MAX_PRUNING_KEYS and not pa.types.is_floating(values.type):
                with contextlib.suppress(TypeError, ValueError):
                    member: Any = In  # which its types describe as keyword-only
                    among = member(name, values.to_pylist())
                    bind(schema, among, case_sensitive=True)
                    condition = And(condition, among)
        return condition

    def differing(self, numbers: pa.Array, rows: pa.Table) -> pa.Array:
        """Return which of the given new rows differ from the table's rows beside them."""
        differs = pc.fill_null(pa.nulls(len(numbers), pa.bool_()), False)
        for name in self.rows.column_names:
            if name not in self.keys:
                ours = self.rows.column(name).take(numbers).combine_chunks()
                differs = pc.or_(differs, _differs(ours, rows.column(name).combine_chunks()))
        return differs


@dataclass(frozen=True)
class _Found:
    """The rows of a file that have keys of new rows: numbers of new rows, and ids of rows."""

    rows: pa.Array = field(repr=False)  # all new rows with a match
    updated: pa.Array = field(repr=False)  # those of them that replace a row
    row_ids: pa.Array = field(repr=False)  # ids of the replaced rows


@dataclass(frozen=True)
class _KeyedRows:
    """The rows of a version that have the keys of new rows, as they are replaced."""

    candidates: Candidates
    source: _Source
    request: _Request
    keys: TableScan
    stored: TableScan
    values: TableScan  # with the values of cells

    @classmethod
    def find(cls, request: _Request, table: TableVersion, branch: str) -> Choice:
        """Find the files that may have such rows in a version."""
        source, head = request.on(table.metadata), branch_head(table.metadata, branch)
        condition = source.row_filter(schema_of(table.metadata))
        candidates = Candidates.find(table.walk, head, condition)
        scan = partial(TableScan, table.walk, head, None, filters=AlwaysFalse(), rewriting=True)
        keys = scan(columns=source.keys, decrypting=False)
        stored, values = scan(columns=None, decrypting=False), scan(columns=None)
        return cls(candidates, source, request, keys, stored, values)

    def others(self, file: PlannedFile) -> tuple[pa.Table | None, _Found]:
        """Return the rows of a file that are not updated."""
        keys = self.keys.read(file)
        if noted := find_notes(keys.schema):
            name = min(noted)
            raise ValueError(f"{name!r} cannot be a key: equal values have different cells")
        found = self.source.match(keys)
        nothing = pa.array([], pa.int64())
        if found.null_count == len(found):
            return None, _Found(nothing, nothing, nothing)
        numbers = found.drop_null()
        if not self.request.updates:
            return None, _Found(numbers, nothing, nothing)
        rows = self.stored.read(file)
        matched = self._read_values(file, rows).filter(pc.is_valid(found))
        differs = self.source.differing(numbers, matched)
        updated = numbers.filter(differs)
        ids = matched.column(ROW_ID).combine_chunks().filter(differs)
        if not len(updated):
            return None, _Found(numbers, nothing, nothing)
        stays = pc.invert(pc.is_in(found, value_set=updated))
        return rows.filter(stays), _Found(numbers, updated, ids)

    def _read_values(self, file: PlannedFile, rows: pa.Table) -> pa.Table:
        """Return rows of a file, as stored, with the values of their cells."""
        if not (noted := find_notes(rows.schema)):
            return rows
        cells = () if self.request.cells is None else self.request.cells.fields
        if unknown := sorted(noted.keys() - set(cells)):
            raise UnsupportedFormatError(
                f"{file.data.location}: column {unknown[0]} has values that are encrypted under "
                "the keys of their subjects; open the table with subjects that name this column, "
                "as by a policy with subject_columns"
            )
        return self.values.read(file)

    def additions(self, notes: Sequence[_Found]) -> pa.Table | None:
        """Return the updated rows with their row ids, and the rows to insert."""
        none = [pa.array([], pa.int64())]
        matched = pa.concat_arrays([*(note.rows for note in notes), *none])
        if len(pc.unique(matched)) < len(matched):
            raise ValueError("two rows of the table have the same key as a row of the data")
        numbers = pa.concat_arrays([*(note.updated for note in notes), *none])
        ids = pa.concat_arrays([*(note.row_ids for note in notes), *none])
        if self.request.inserts:
            every = pa.array(range(self.source.rows.num_rows), pa.int64())
            new = every.filter(pc.invert(pc.is_in(every, value_set=matched)))
            numbers = pa.concat_arrays([numbers, new])
            ids = pa.concat_arrays([ids, pa.nulls(len(new), pa.int64())])
        rows = self.source.rows.take(numbers)
        never = pa.nulls(len(numbers), pa.int64())  # inherited from the commit
        return rows.append_column(ROW_ID, ids).append_column(LAST_UPDATED, never)


def _plain(column: pa.ChunkedArray) -> pa.Array:
    """Return values that Arrow can look up: of uuids their bytes, and -0.0 as 0.0."""
    values = column.combine_chunks()
    if isinstance(values, pa.ChunkedArray):  # without chunks
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    return pc.add(values, 0.0) if pa.types.is_floating(values.type) else values


def _number(values: pa.Array, known: pa.Array) -> pa.Array:
    """Return the place of each value in an array; null where it is not there, or is null."""
    places = pc.index_in(values, value_set=known).cast(pa.int64())
    return pc.if_else(pc.is_valid(values), places, pa.scalar(None, pa.int64()))


def _differs(ours: pa.Array, theirs: pa.Array) -> pa.Array:
    """Return whether values differ; nulls are equal, and NaN differs from NaN, as in pyiceberg."""
    if isinstance(ours, pa.ExtensionArray):
        ours, theirs = ours.storage, theirs.storage
    if pa.types.is_nested(ours.type):
        pairs = zip(ours.to_pylist(), theirs.to_pylist(), strict=True)
        return pa.array([one != other for one, other in pairs], pa.bool_())
    if ours.type != theirs.type:  # of values that are encrypted one by one
        try:
            theirs = theirs.cast(ours.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # its message has the value
            return pc.fill_null(pa.nulls(len(ours), pa.bool_()), True)
    either = pc.xor(pc.is_null(ours), pc.is_null(theirs))
    if pa.types.is_null(ours.type):
        return either
    return pc.or_(either, pc.fill_null(pc.not_equal(ours, theirs), False))

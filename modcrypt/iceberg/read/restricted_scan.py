"""Scan a table as its read restrictions allow: some rows, with masked columns.

The row filter sees unmasked values, and the caller's filters see masked ones. Filters on other
columns skip files and pages as in any scan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression
from pyiceberg.expressions.visitors import bind, extract_field_ids
from pyiceberg.schema import Schema, index_by_id

from modcrypt.errors import UnsupportedFormatError
from modcrypt.iceberg.format.pyiceberg_schemas import schema_of
from modcrypt.iceberg.read.read_restrictions import parse_restrictions
from modcrypt.iceberg.read.row_filter import RowFilter, fit_filter, null_with_parents, parse_filter
from modcrypt.iceberg.read.schema_projection import arrow_schema
from modcrypt.iceberg.read.table_scan import TableScan
from modcrypt.parquet.arrow.column_masks import Mask, check_action, make_mask

if TYPE_CHECKING:
    from modcrypt.iceberg.format.table_metadata import Snapshot
    from modcrypt.iceberg.read.table_walk import Walk


class RestrictedScan:
    """A scan under read restrictions; arguments and errors as of `TableScan`.

    Cells are not decrypted. Raise UnsupportedFormatError if a restriction cannot be applied.
    """

    def __init__(
        self, documents: Sequence[Mapping[str, Any]], walk: Walk, snapshot: Snapshot | None,
        schema_id: int | None, columns: Sequence[str] | None,
        filters: str | BooleanExpression | None,
    ) -> None:  # fmt: skip
        table = schema_of(walk.metadata, schema_id, columns)
        restrictions = parse_restrictions(documents, table)
        nullable = null_with_parents(table)
        split = _split_filter(parse_filter(filters), nullable, restrictions.actions.keys())
        names = [field.name for field in table.fields]
        wanted = names if columns is None else list(columns)
        read = list(dict.fromkeys([*wanted, *split.columns]))
        _check_top_level(table, restrictions.actions.keys(), read)
        pushed = And(restrictions.row_filter, split.pushed)
        self._scan = TableScan(walk, snapshot, schema_id, read, pushed, decrypting=False)
        self._masks = _make_masks(table, restrictions.actions)
        self._filter = RowFilter(nullable, split.after)
        self._needed = [field.name for field in self._filter.schema.fields]
        self.schema = arrow_schema(table.select(*wanted))
        """Schema of the rows."""

    def count(self) -> int:
        """Return the number of rows."""
        return sum(batch.num_rows for batch in self.to_batches())

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows batch by batch."""
        for batch in self._scan.to_batches():
            columns = [
                self._masks[name](column) if name in self._masks else column
                for name, column in zip(batch.schema.names, batch.columns, strict=True)
            ]
            masked = pa.RecordBatch.from_arrays(columns, schema=batch.schema)
            rows = self._filter.apply(masked, masked.select(self._needed))
            if rows.num_rows:
                yield rows.select(self.schema.names)


@dataclass(frozen=True)
class _SplitFilter:
    """A filter of the caller, in two parts that both must be true."""

    pushed: BooleanExpression  # for unmasked rows, because it needs no masked column
    after: BooleanExpression  # for masked rows
    columns: Sequence[str]  # columns that `after` needs


def _split_filter(expression: BooleanExpression, schema: Schema, masked: Any) -> _SplitFilter:
    pushed: list[BooleanExpression] = []
    after: list[BooleanExpression] = []
    columns: dict[str, None] = {}
    for part in _list_conditions(fit_filter(schema, expression)):
        ids = _find_columns(part, schema)
        roots = {_root_of(schema, id_).field_id for id_ in ids}
        if roots.isdisjoint(masked):
            pushed.append(part)
            continue
        if roots != ids:
            raise ValueError("a filter on fields of structs cannot be combined with masked columns")
        after.append(part)
        columns |= dict.fromkeys(str(schema.find_column_name(id_)) for id_ in sorted(ids))
    return _SplitFilter(_all_of(pushed), _all_of(after), list(columns))


def _list_conditions(expression: BooleanExpression) -> Iterator[BooleanExpression]:
    if isinstance(expression, And):
        yield from _list_conditions(expression.left)
        yield from _list_conditions(expression.right)
    else:
        yield expression


def _all_of(parts: Sequence[BooleanExpression]) -> BooleanExpression:
    return And(AlwaysTrue(), AlwaysTrue(), *parts)


def _find_columns(expression: BooleanExpression, schema: Schema) -> set[int]:
    """Return the ids of the columns of an expression; none if it does not fit the schema."""
    # The scan, to which it is then passed, says why it does not fit.
    try:
        return set(extract_field_ids(bind(schema, expression, case_sensitive=True)))
    except (TypeError, ValueError):
        return set()


def _root_of(schema: Schema, id_: int) -> Any:
    """Return the top-level column that a field is in; names, which may have dots, do not tell."""
    return next(
        field
        for field in schema.fields
        if field.field_id == id_ or id_ in index_by_id(field.field_type)
    )


def _check_top_level(schema: Schema, masked: Any, read: Sequence[str]) -> None:
    top = {field.field_id for field in schema.fields}
    known = {id_ for id_ in masked if schema.find_column_name(id_) is not None}
    if known - top:
        raise UnsupportedFormatError(
            "the table's read restrictions cannot be applied: they mask a field in a struct, list "
            "or map"
        )
    inside = {schema.find_field(name).field_id for name in read} - top
    if any(_root_of(schema, id_).field_id in masked for id_ in inside):
        why = "fields of a masked column cannot be selected; select the whole column"
        raise UnsupportedFormatError(why)


def _make_masks(schema: Schema, actions: Mapping[int, str]) -> dict[str, Mask]:
    """Return the masks by column; all actions must be known, also those on other columns."""
    masks = {}
    for field in schema.fields:
        if field.field_id in actions:
            (arrow,) = arrow_schema(Schema(field))
            action = actions[field.field_id]
            masks[field.name] = make_mask(action, arrow.type, nullable=field.optional)
    for action in actions.values():
        check_action(action)
    return masks

"""A filter of rows: of the table's rows, and of those of a file as far as nothing can go wrong.

Iceberg's expressions are pyiceberg's, and mean in a scan what they mean there: a comparison with
null is not true, as in SQL, but `not in` takes nulls in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    BoundEqualTo,
    BoundGreaterThan,
    BoundGreaterThanOrEqual,
    BoundIn,
    BoundIsNull,
    BoundLessThan,
    BoundLessThanOrEqual,
    BoundNotEqualTo,
    BoundNotIn,
    BoundNotNull,
    BoundPredicate,
    Or,
)
from pyiceberg.expressions.visitors import (
    bind,
    extract_field_ids,
    rewrite_not,
    translate_column_names,
)
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.schema import Schema, prune_columns
from pyiceberg.types import FixedType, IcebergType, NestedField, StructType, UUIDType

from modcrypt.iceberg.read.schema_projection import arrow_type, field_id

__all__ = ["RowFilter", "as_expression", "null_with_parents"]


def as_expression(filters: str | BooleanExpression | None) -> BooleanExpression:
    """Give the expression that is meant.

    Raises:
        ValueError: the text is none.
    """
    from pyiceberg.expressions.parser import parse

    if filters is None:
        return AlwaysTrue()
    if not isinstance(filters, str):
        return filters
    try:
        return parse(filters)
    except Exception as error:  # pyparsing's, whose text has the whole grammar
        place = getattr(error, "loc", None)
        where = "" if place is None else f": it stops being one at character {place}"
        raise ValueError(
            f"the filter is no expression{where}; one is 'id > 5 and name is not null'"
        ) from None


def null_with_parents(schema: Schema) -> Schema:
    """Give a schema for filters: no field is required of a struct that may be null.

    To pyiceberg such a field is never null, and `is null` false of it wherever it stands.
    """
    fields = [_within(one, optional=False) for one in schema.fields]
    return Schema(*fields, schema_id=schema.schema_id)


def _within(field: NestedField, *, optional: bool) -> NestedField:
    optional = optional or field.optional
    kind = field.field_type
    if isinstance(kind, StructType):
        kind = StructType(*(_within(one, optional=optional) for one in kind.fields))
    return field.model_copy(update={"field_type": kind, "required": not optional})


class RowFilter:
    """A filter, bound to a schema.

    Args:
        schema: of the table, as `null_with_parents` gives it.
        expression: not bound yet.

    Raises:
        ValueError: the schema lacks one of its columns, or a value does not fit.
    """

    def __init__(self, schema: Schema, expression: BooleanExpression) -> None:
        try:
            bound = bind(schema, rewrite_not(expression), case_sensitive=True)
        except TypeError as error:  # a literal of another type than the column has
            raise ValueError(f"the filter does not fit the table: {error}") from None
        except ValueError as error:
            told = str(error).removesuffix(", case_sensitive=True")
            name = told.removeprefix("Could not find field with name ")
            why = told if name == told else f"it has no column {name!r}"
            raise ValueError(f"the filter does not fit the table: {why}") from None
        self._bound = _zeros_apart(bound)
        ids = extract_field_ids(self._bound)
        self.schema = prune_columns(schema, ids)
        """Of the columns that it needs."""
        self._paths = {one: path for one, path in _paths(self.schema.as_struct()) if one in ids}
        # By id, since names may have dots in them, which pyiceberg takes for fields of structs.
        flat = Schema(*(NestedField(one, f"f{one}", _stored(schema.find_type(one))) for one in ids))
        renamed = translate_column_names(self._bound, flat, case_sensitive=True)
        self._flat = None if self.is_all else expression_to_pyarrow(bind(flat, renamed, True))

    @property
    def is_all(self) -> bool:
        """Whether it is true of every row."""
        return isinstance(self._bound, AlwaysTrue)

    def apply(self, rows: pa.RecordBatch, needed: pa.RecordBatch) -> pa.RecordBatch:
        """Give the rows for which it is true.

        Args:
            rows: of which to choose.
            needed: the same rows, with the columns of `schema`.
        """
        if self._flat is None:
            return rows
        columns = {f"f{one}": _at(needed, path) for one, path in self._paths.items()}
        number = pc.cumulative_sum(pa.repeat(pa.scalar(1), rows.num_rows), start=-1)
        chosen = pa.table({**columns, "row": number}).filter(self._flat).column("row")
        if len(chosen) == rows.num_rows:
            return rows
        return rows.take(chosen.combine_chunks())

    def of_file(self, schema: pa.Schema) -> pc.Expression | None:
        """Give what of it may be asked of a file's statistics.

        Only top-level columns that have the type of the table's: between types a comparison may
        come out differently, and what a file lacks has a value nevertheless.
        """
        return _pushed(self._bound, {field_id(one): one for one in schema})


def _zeros_apart(expression: BooleanExpression) -> BooleanExpression:
    """Compare with zero by itself: PyArrow's sets go by bits, in which 0.0 is another than -0.0."""
    if isinstance(expression, And | Or):
        return type(expression)(_zeros_apart(expression.left), _zeros_apart(expression.right))
    if not isinstance(expression, BoundIn | BoundNotIn):
        return expression
    term, zeros = expression.term, {one for one in expression.literals if _is_zero(one.value)}
    if not zeros:
        return expression
    (zero,), others = zeros, expression.literals - zeros
    if isinstance(expression, BoundIn):
        return Or(BoundEqualTo(term=term, literal=zero), BoundIn(term=term, literals=others))
    # Nulls are in no set, and equal to nothing.
    apart = And(BoundNotEqualTo(term=term, literal=zero), BoundNotIn(term=term, literals=others))
    return Or(BoundIsNull(term=term), apart)


def _is_zero(value: Any) -> bool:
    return isinstance(value, float) and value == 0


_WITHOUT_NANS = (
    BoundEqualTo,
    BoundGreaterThan,
    BoundGreaterThanOrEqual,
    BoundIn,
    BoundIsNull,
    BoundLessThan,
    BoundLessThanOrEqual,
    BoundNotNull,
)
"""Predicates that are false of NaN, or look at nulls alone."""


def _pushed(expression: BooleanExpression, columns: Mapping[Any, pa.Field]) -> pc.Expression | None:
    if isinstance(expression, And | Or):
        left, right = (_pushed(one, columns) for one in (expression.left, expression.right))
        if left is not None and right is not None:
            return left & right if isinstance(expression, And) else left | right
        if isinstance(expression, Or):
            return None
        return right if left is None else left
    if not isinstance(expression, BoundPredicate):
        return None
    wanted = expression.term.ref().field
    found = columns.get(wanted.field_id)
    if found is None or found.type != arrow_type(wanted.field_type):
        return None
    if isinstance(found.type, pa.BaseExtensionType):
        return None
    if pa.types.is_floating(found.type) and not isinstance(expression, _WITHOUT_NANS):
        return None  # statistics leave NaN out, so that it seems not to be there
    renamed = Schema(NestedField(wanted.field_id, found.name, wanted.field_type))
    translated = translate_column_names(expression, renamed, case_sensitive=True)
    return expression_to_pyarrow(bind(renamed, translated, case_sensitive=True))


def _stored(kind: IcebergType) -> IcebergType:
    """Give the type that is compared: PyArrow compares no uuids, but their bytes."""
    return FixedType(16) if isinstance(kind, UUIDType) else kind


def _paths(struct: StructType, before: tuple[int, ...] = ()) -> Iterator[tuple[int, Sequence[int]]]:
    """Give the way to each field of structs, in indexes."""
    for number, one in enumerate(struct.fields):
        yield one.field_id, (*before, number)
        if isinstance(one.field_type, StructType):
            yield from _paths(one.field_type, (*before, number))


def _at(batch: pa.RecordBatch, path: Sequence[int]) -> pa.Array:
    column = batch.column(path[0])
    if len(path) > 1:  # null where one around it is
        column = pc.struct_field(column, list(path[1:]))
    return column.storage if isinstance(column, pa.ExtensionArray) else column

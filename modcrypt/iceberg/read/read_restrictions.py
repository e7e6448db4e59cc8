"""Rows and values that a catalog or policy lets a reader see: Iceberg's read restrictions.

A reader must fail where it cannot apply a restriction (REST catalog spec, `ReadRestrictions`).
Predicates have two values, and comparisons are null-safe (Expressions spec): `not-eq` and `not-in`
are true for null, and the negation of a comparison is true for null and NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg import expressions as ex
from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException, pyarrow_to_schema
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType, NestedField

from modcrypt.errors import LimitError
from modcrypt.iceberg.read.row_filter import RowFilter
from modcrypt.parquet.arrow.column_masks import restriction_error, split_restrictions

MAX_DEPTH = 100
"""Maximum depth of a row filter."""

_TESTS: Mapping[str, Any] = {
    "is-null": (ex.IsNull, ex.NotNull), "not-null": (ex.NotNull, ex.IsNull),
    "is-nan": (ex.IsNaN, ex.NotNaN), "not-nan": (ex.NotNaN, ex.IsNaN),
}  # fmt: skip
"""Tests, and their negations."""

_COMPARISONS: Mapping[str, Any] = {
    "eq": ex.EqualTo, "not-eq": ex.NotEqualTo, "lt": ex.LessThan, "lt-eq": ex.LessThanOrEqual,
    "gt": ex.GreaterThan, "gt-eq": ex.GreaterThanOrEqual, "starts-with": ex.StartsWith,
    "not-starts-with": ex.NotStartsWith, "in": ex.In, "not-in": ex.NotIn,
}  # fmt: skip

_NEGATIONS = {
    "eq": "not-eq", "not-eq": "eq", "lt": "gt-eq", "gt-eq": "lt", "gt": "lt-eq", "lt-eq": "gt",
    "starts-with": "not-starts-with", "not-starts-with": "starts-with", "in": "not-in",
    "not-in": "in",
}  # fmt: skip
_TURNED = {"lt": "gt", "gt": "lt", "lt-eq": "gt-eq", "gt-eq": "lt-eq"}
_TRUE_FOR_NULL = {"not-eq", "not-starts-with", "not-in"}


@dataclass(frozen=True)
class ReadRestrictions:
    """Restrictions for the rows of one schema."""

    row_filter: ex.BooleanExpression  # condition on unmasked rows; others are not read
    actions: Mapping[int, str]  # action on each masked column, by the column's field id


def parse_restrictions(documents: Sequence[Mapping[str, Any]], schema: Schema) -> ReadRestrictions:
    """Return all of some restrictions.

    Raise UnsupportedFormatError if one cannot be applied, and LimitError if a filter is too deep.
    """
    row_filter: ex.BooleanExpression = ex.AlwaysTrue()
    actions: dict[int, str] = {}
    for document in documents:
        condition, projections = split_restrictions(document)
        if condition is not None:
            row_filter = ex.And(row_filter, _FilterParser(schema).parse(condition))
        for id_, action in projections:
            if id_ in actions:
                raise restriction_error(f"field {id_} has two actions")
            actions[id_] = action
    return ReadRestrictions(row_filter, actions)


def bind_row_filter(condition: Any, columns: pa.Schema) -> RowFilter:
    """Return the row filter of restrictions for rows outside of a table.

    `columns` are top-level columns with field ids. Raise UnsupportedFormatError if the filter needs
    others, or a column of a type that Iceberg does not have.
    """
    fields = [field for column in columns for field in _list_fields(column)]
    schema = Schema(*fields)
    restrictions = parse_restrictions([{"required-row-filter": condition}], schema)
    try:
        return RowFilter(schema, restrictions.row_filter)
    except ValueError:  # the message contains values
        raise restriction_error("the row filter does not fit the columns") from None


def _list_fields(column: pa.Field) -> Sequence[NestedField]:
    """Return a column as a field of a schema in a list, empty if Iceberg does not have its type."""
    try:
        return pyarrow_to_schema(pa.schema([column]), format_version=3).fields
    except UnsupportedPyArrowTypeException:
        return ()


class _FilterParser:
    """A parser of the JSON of expressions, in the form of the spec and in its deprecated form."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def parse(self, node: Any, *, negated: bool = False, depth: int = 0) -> ex.BooleanExpression:
        if depth > MAX_DEPTH:
            raise LimitError(f"a read restriction's filter is deeper than {MAX_DEPTH}")
        match _modernize(node):
            case bool(value):
                return ex.AlwaysTrue() if value is not negated else ex.AlwaysFalse()
            case {"type": "true" | "false" as text, **rest} if not rest:
                return self.parse(text == "true", negated=negated)
            case {"type": "not", "child": child, **rest} if not rest:
                return self.parse(child, negated=not negated, depth=depth + 1)
            case {"type": "and" | "or" as kind, "left": left, "right": right, **rest} if not rest:
                sides = [
                    self.parse(side, negated=negated, depth=depth + 1) for side in (left, right)
                ]
                return ex.And(*sides) if (kind == "and") is not negated else ex.Or(*sides)
            case {"type": str(kind), "child": term, **rest} if kind in _TESTS and not rest:
                column, test = self._column(term), _TESTS[kind][negated]
                expression: ex.BooleanExpression = test(term=column)
                is_null = ex.IsNull(term=column)
                return ex.Or(expression, is_null) if test is ex.NotNaN else expression
            case {"type": "in" | "not-in" as kind, "child": term, "values": values, **rest} if (
                not rest
            ):
                return self._compare(kind, term, _literals(values), negated)
            case {"type": str(kind), "left": left, "right": right, **rest} if not rest:
                if isinstance(right, Mapping) and right.get("type") == "reference":
                    kind, left, right = _TURNED.get(kind, kind), right, left
                return self._compare(kind, left, _literal(right), negated)
        raise restriction_error("the row filter has an expression that is not known")

    def _compare(self, kind: str, term: Any, value: Any, negated: bool) -> ex.BooleanExpression:
        if kind not in _COMPARISONS or isinstance(value, set) != kind.endswith("in"):
            raise restriction_error(
                f"the row filter has an expression that is not known: {kind[:100]!r}"
            )
        column = self._column(term)
        done = _NEGATIONS[kind] if negated else kind
        expression: ex.BooleanExpression = _COMPARISONS[done](column, value)
        if done in _TRUE_FOR_NULL or (negated and kind not in _TRUE_FOR_NULL):
            expression = ex.Or(expression, ex.IsNull(term=column))
            if isinstance(self._schema.find_type(column.name), FloatType | DoubleType):
                expression = ex.Or(expression, ex.IsNaN(term=column))
        return expression

    def _column(self, term: Any) -> ex.Reference:
        name: Any = None
        match term:
            case {"type": "reference", "id": id_, **rest} if type(id_) is int and not rest:
                name = self._schema.find_column_name(id_)
            case {"type": "reference", "name": str(text), **rest} if not rest:
                name = text
        if name is None or name not in self._schema._name_to_id:
            raise restriction_error("the row filter has a term that is not a column of the schema")
        return ex.Reference(name)


def _modernize(node: Any) -> Any:
    """Return a predicate in the form of the spec, if it is in the deprecated form."""
    match node:
        case {"type": kind, "term": {"type": "reference", "term": term}, **rest}:
            return _modernize({"type": kind, "term": term, **rest})
        case {"type": kind, "term": str(name), **rest}:
            reference = {"type": "reference", "name": name}
            if "value" in rest:
                return {"type": kind, "left": reference, "right": rest.pop("value"), **rest}
            return {"type": kind, "child": reference, **rest}
    return node


def _literal(node: Any) -> Any:
    match node:
        case {"type": "literal", "value": value}:
            return _literal(value)
        case bool() | int() | str():
            return node
        case float() if not math.isnan(node):
            return node
    raise restriction_error("the row filter has a value that is not a constant")


def _literals(node: Any) -> set[Any]:
    match node:
        case {"type": "literals", "values": list(values)} | list(values):
            return {_literal(value) for value in values}
    raise restriction_error("the row filter has values that are not constants")

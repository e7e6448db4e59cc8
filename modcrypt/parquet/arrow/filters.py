"""Filters for rows: what pruning must know of a condition besides PyArrow's expression.

Tuples in disjunctive normal form show which fields they read, which constants a field must equal,
and how they treat nulls and NaN. PyArrow does not expose the contents of an Expression. Its fields
are found by binding it, and pruning assumes that nulls and NaN may match.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

Filters: TypeAlias = "pc.Expression | Sequence[Any]"
"""Tuples as in pyarrow.parquet (disjunctive normal form), or a pyarrow expression.

A tuple has a column, an operator and a value. A column is a name, or a tuple of names for a field
of a struct. Operators are `=`, `==`, `!=`, `<`, `<=`, `>`, `>=`, `in`, `not in`, and with None for
the value, `is null` and `is not null`.
"""

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "==": operator.eq, "!=": operator.ne, "<": operator.lt,
    "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Predicate:
    """A condition on one field."""

    path: tuple[str, ...]  # names of the field and of the structs around it, outermost first
    nulls_match: bool  # whether a row with a null may match though no row with a number does
    # Whether a row with NaN may match though no row with a number does, or whether the sign of zero
    # matters; bounds cover neither.
    nans_match: bool
    # Constants one of which the field must equal; None if there are others.
    equals: tuple[Any, ...] | None = None


@dataclass(frozen=True, slots=True)
class Filter:
    """A condition for rows."""

    expression: pc.Expression
    # Predicates of which all of one alternative hold for each row that matches; empty if they are
    # not known.
    alternatives: tuple[tuple[Predicate, ...], ...] = ()
    terms: int = 1  # number of comparisons, to estimate the costs

    @property
    def predicates(self) -> Iterator[Predicate]:
        """The predicates of all alternatives."""
        return (predicate for predicates in self.alternatives for predicate in predicates)


def as_filter(filters: Filters | None) -> Filter | None:
    """Return a caller's filter; None for none."""
    if filters is None:
        return None
    if isinstance(filters, pc.Expression):
        return Filter(filters, terms=str(filters).count("("))
    if not isinstance(filters, list | tuple):
        kind = "a string" if isinstance(filters, str) else type(filters).__name__
        raise TypeError(f"filters must be a pyarrow expression or tuples, not {kind}")
    alternatives = [filters] if all(_is_term(part) for part in filters) else filters
    if not filters or not all(terms and all(map(_is_term, terms)) for terms in alternatives):
        raise ValueError(
            'filters must be tuples of a column, an operator and a value: ("a", ">", 1)'
        )
    pairs = [[_read_term(*term) for term in terms] for terms in alternatives]
    each = [reduce(operator.and_, [expression for expression, _ in terms]) for terms in pairs]
    predicates = tuple(tuple(predicate for _, predicate in terms) for terms in pairs)
    return Filter(reduce(operator.or_, each), predicates, sum(map(len, pairs)))


def _is_term(part: Any) -> bool:
    return isinstance(part, list | tuple) and len(part) == 3 and isinstance(part[1], str)


def _read_term(column: Any, how: str, value: Any) -> tuple[pc.Expression, Predicate]:
    path = (column,) if isinstance(column, str) else tuple(column)
    field = pc.field(*path)
    if how in _COMPARISONS:
        value = _narrow_number(value)
        equals = (pa.scalar(value),) if how in ("=", "==") else None
        return _COMPARISONS[how](field, value), Predicate(path, False, how == "!=", equals)
    if how in ("in", "not in"):
        values = value if isinstance(value, pa.Array) else pa.array(list(value))
        if how == "not in":
            return ~field.isin(values), Predicate(path, True, True)
        nulls, nans = values.null_count > 0, _holds_nan_or_zero(values)
        return field.isin(values), Predicate(path, nulls, nans, tuple(values))
    if how == "is null" and value is None:
        return field.is_null(), Predicate(path, True, False)
    if how == "is not null" and value is None:
        return field.is_valid(), Predicate(path, False, False)
    raise ValueError(f"filters: {how!r} is not an operator, or does not take a value")


def _narrow_number(value: Any) -> Any:
    """Convert a number to the narrowest unsigned type that holds it.

    PyArrow converts it to int64, and casts columns of uint64 and decimals to it, whose values may
    not fit.
    """
    if type(value) is not int or value < 0:
        return value
    kinds = (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
    kind = next((kind for kind in kinds if value < 1 << kind.bit_width), None)
    return value if kind is None else pa.scalar(value, kind)


def _holds_nan_or_zero(values: pa.Array) -> bool:
    """Return whether a value is NaN or zero; PyArrow's sets distinguish the two zeros."""
    if not (pa.types.is_floating(values.type) or pa.types.is_integer(values.type)):
        return True
    nan = pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py()
    return bool(nan or pc.any(pc.equal(values, pa.scalar(0, values.type))).as_py())


# --- fields of an expression ---------------------------------------------------------------------


def bind_filter(row_filter: Filter, schema: pa.Schema) -> Filter:
    """Return a filter with its predicates; those of an expression are found by binding it.

    `schema` has all fields that the filter may read. Without predicates, the result reads fields by
    position, or does not fit the schema.
    """
    if row_filter.alternatives:
        return row_filter
    text = str(row_filter.expression)  # It contains the names of all fields that it reads.
    fields = [field for field in schema if field.name in text]
    if "FieldPath(" in text:
        return row_filter
    try:
        _bind(row_filter.expression, fields)
    except pa.ArrowException as error:
        place, _, _ = str(error).partition(" in ")
        if place.startswith("No match for "):
            raise ValueError(f"the filter reads a column that does not exist: {place}") from None
        return row_filter  # The types do not fit, which PyArrow reports when it filters.
    for field in tuple(fields):
        others = [other for other in fields if other is not field]
        if _binds(row_filter.expression, others):
            fields = others
    unknown = tuple(Predicate((field.name,), True, True) for field in fields)
    return Filter(row_filter.expression, (unknown,), row_filter.terms)


def _bind(expression: pc.Expression, fields: Sequence[pa.Field]) -> None:
    ds.Scanner.from_batches(iter(()), schema=pa.schema(fields), filter=expression)


def _binds(expression: pc.Expression, fields: Sequence[pa.Field]) -> bool:
    try:
        _bind(expression, fields)
    except pa.ArrowException:
        return False
    return True

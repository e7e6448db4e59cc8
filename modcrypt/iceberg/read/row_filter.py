"""Filter the rows of a table, and skip row groups of a file where their statistics are reliable.

The expressions are those of pyiceberg, with the meaning that they have there in a scan: a
comparison with null is not true, as in SQL, but `not in` includes nulls.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import expressions as ex
from pyiceberg.expressions.literals import (
    AboveMax,
    BelowMin,
    DecimalLiteral,
    FloatLiteral,
    StringLiteral,
    TimestampLiteral,
)
from pyiceberg.expressions.visitors import (
    bind,
    extract_field_ids,
    rewrite_not,
    translate_column_names,
)
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.schema import Schema, prune_columns
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StructType,
    TimestampNanoType,
    TimestamptzNanoType,
    TimeType,
    UUIDType,
)

from modcrypt.iceberg.read.schema_projection import arrow_type, field_id
from modcrypt.report.suggestions import suggest

_EXAMPLE = "'id > 5 and name is not null'"


def parse_filter(filters: str | ex.BooleanExpression | None) -> ex.BooleanExpression:
    """Return a filter as an expression; raise ValueError if it is not a valid one."""
    from pyiceberg.expressions.parser import parse

    if filters is None:
        return ex.AlwaysTrue()
    if isinstance(filters, ex.BooleanExpression):
        return filters
    if not isinstance(filters, str):
        raise ValueError(f"filters must be a text, such as {_EXAMPLE}, or pyiceberg's expression")
    try:
        return parse(filters)
    except Exception as error:  # pyparsing's, whose text repeats the whole grammar
        place = getattr(error, "loc", None)
        where = "" if place is None else f": error at character {place}"
        why = f"the filter is not an expression{where}; for example: {_EXAMPLE}"
        raise ValueError(why) from None


def match_name(schema: Schema, name: str) -> str:
    """Return the name of a column in the case that a schema has.

    Raise ValueError if the schema lacks the column, or if the names of two differ only by case, of
    which pyiceberg takes the last one.
    """
    ids = {id_ for known, id_ in schema._name_to_id.items() if known.lower() == name.lower()}
    found = [str(schema.find_column_name(id_)) for id_ in sorted(ids)]
    if not found:
        raise ValueError(describe_missing(schema, name))
    if len(found) > 1:
        names = " and ".join(map(repr, found))
        raise ValueError(f"the columns {names} differ only by case; pass case_sensitive=True")
    return found[0]


def match_case(expression: ex.BooleanExpression, schema: Schema) -> ex.BooleanExpression:
    """Return a filter with the names of columns in the case that a schema has.

    Raise ValueError as `match_name`, or if a value does not fit.
    """
    bound = _bind(schema, expression, case_sensitive=False)
    return translate_column_names(bound, schema, case_sensitive=True)


def fit_filter(
    schema: Schema, expression: ex.BooleanExpression, *, case_sensitive: bool = True
) -> ex.BooleanExpression:
    """Return a filter without `not`, whose literals are values of their columns.

    pyiceberg takes a literal beyond the range of a type for the last value of the type, which `in`
    then finds, or for one that all rows satisfy, and so do nulls. It rounds decimals for columns of
    whole numbers, floats for decimals, and times for dates, and refuses decimals with fewer digits
    than a column has. Raise ValueError if the schema lacks a column, or a value does not fit.
    """
    with _as_value_errors(schema, case_sensitive=case_sensitive):
        return _fit(schema, rewrite_not(expression), case_sensitive)


def _fit(
    schema: Schema, expression: ex.BooleanExpression, case_sensitive: bool
) -> ex.BooleanExpression:
    if isinstance(expression, ex.And | ex.Or):
        left, right = expression.left, expression.right
        sides = (_fit(schema, side, case_sensitive) for side in (left, right))
        return type(expression)(*sides)
    term: Any = getattr(expression, "term", None)
    if isinstance(term, ex.Reference):
        _check_column(schema, term.name, case_sensitive)
    if not isinstance(expression, ex.LiteralPredicate | ex.SetPredicate):
        return expression
    kind = term.bind(schema, case_sensitive).ref().field.field_type
    if isinstance(expression, ex.SetPredicate):
        literals = {_as_value(literal, kind) for literal in expression.literals}
        within = {literal for literal in literals if not isinstance(literal, _BEYOND)}
        apart = isinstance(expression, ex.NotIn) and len(within) == 1 < len(expression.literals)
        fitted = type(expression)(term, within)
        return ex.Or(ex.IsNull(term=term), fitted) if apart else fitted  # `!=` leaves out nulls
    literal = _as_value(expression.literal, kind)
    if not isinstance(literal, _BEYOND):
        return type(expression)(term, literal)
    whole = expression.bind(schema, case_sensitive)
    return ex.NotNull(term=term) if isinstance(whole, ex.AlwaysTrue) else whole


def _check_column(schema: Schema, name: str, case_sensitive: bool) -> None:
    """Raise ValueError if a name is none of a column, or of a field in a list or map."""
    if not case_sensitive:
        match_name(schema, name)
    if schema.find_field(name, case_sensitive).field_id not in schema._lazy_id_to_accessor:
        raise ValueError(
            f"{name!r} is in a list or map; filters compare columns and fields of structs"
        )


def _as_value(literal: Any, kind: IcebergType) -> Any:
    """Return a literal in the type of its column; raise TypeError if it is no value of it."""
    if isinstance(kind, TimestampNanoType | TimestamptzNanoType):
        raise TypeError(f"filters do not compare the type {kind}; filter the rows that were read")
    _check_exact(literal, kind)
    if isinstance(kind, DecimalType) and isinstance(literal.value, float):
        literal = DecimalLiteral(Decimal(repr(literal.value)))
    if isinstance(kind, DecimalType) and isinstance(literal.value, Decimal):
        scaled = literal.value.quantize(Decimal((0, (1,), -kind.scale)), context=_EXACT)
        literal = DecimalLiteral(scaled) if scaled == literal.value else literal
    try:
        value = literal.to(DoubleType() if isinstance(kind, FloatType) else kind)
    except TypeError:  # its message names classes
        raise TypeError(f"{literal.value!r} is not a value of the type {kind}") from None
    if isinstance(value, _BEYOND):
        return value
    if isinstance(kind, FloatType):
        return FloatLiteral(_round(value.value))
    if isinstance(kind, IntegerType | LongType) and Decimal(literal.value) % 1:
        raise TypeError(f"{literal.value} is not a whole number, as {kind} is")
    if isinstance(kind, DecimalType) and len(value.value.as_tuple().digits) > kind.precision:
        raise TypeError(f"{value.value} has more digits than {kind}")
    return value


def _check_exact(literal: Any, kind: IcebergType) -> None:
    """Raise TypeError if pyiceberg would take only a part of a literal for a column."""
    value = literal.value
    if isinstance(kind, DecimalType) and isinstance(value, float) and not math.isfinite(value):
        raise TypeError(f"{value} is not a value of {kind}")
    if isinstance(literal, TimestampLiteral) and (
        isinstance(kind, TimeType) or (isinstance(kind, DateType) and value % _DAY)
    ):
        raise TypeError(f"a date with a time is not a value of the type {kind}")
    is_text = isinstance(literal, StringLiteral) and isinstance(kind, TimeType)
    if is_text and not re.fullmatch(r"\d\d:\d\d(:\d\d(\.\d{1,6})?)?", value):
        raise TypeError(f"{value} is not a time such as 12:30:00.000001")


def _round(value: float) -> float:
    """Return the nearest 32-bit float, as PyArrow compares it with rows; it may be infinite."""
    # pyiceberg compares bounds and partitions with the value itself.
    return float(pa.scalar(value).cast(pa.float32()).as_py())


_BEYOND = AboveMax, BelowMin

_DAY = 86_400_000_000  # a day in microseconds

_EXACT = Context(prec=76, traps=[])
"""A context for decimals of Iceberg, which have up to 38 digits; errors become NaN."""


def _bind(
    schema: Schema, expression: ex.BooleanExpression, *, case_sensitive: bool
) -> ex.BooleanExpression:
    fitted = fit_filter(schema, expression, case_sensitive=case_sensitive)
    with _as_value_errors(schema, case_sensitive=case_sensitive):
        return bind(schema, fitted, case_sensitive=case_sensitive)


@contextlib.contextmanager
def _as_value_errors(schema: Schema, *, case_sensitive: bool) -> Iterator[None]:
    try:
        yield
    except (TypeError, OverflowError) as error:  # a literal has another type than its column
        raise ValueError(f"the filter does not fit the table: {error}") from None
    except ValueError as error:
        reason = str(error).removesuffix(f", case_sensitive={case_sensitive}")
        name = reason.removeprefix("Could not find field with name ")
        why = reason if name == reason else describe_missing(schema, name)
        raise ValueError(f"the filter does not fit the table: {why}") from None


def describe_missing(schema: Schema, *names: str) -> str:
    """Return what is wrong with names that are those of no columns of a schema."""
    hint = next(filter(None, (suggest(name, schema._name_to_id) for name in names)), "")
    shown = ", ".join(map(repr, names))
    return f"the table has no column{'s' if names[1:] else ''} {shown}{hint}"


def null_with_parents(schema: Schema) -> Schema:
    """Return a schema for filters, in which no field of a nullable struct is required."""
    # pyiceberg assumes that a required field is never null, and that `is null` is always false for
    # it.
    fields = [_make_optional(field, optional=False) for field in schema.fields]
    return Schema(*fields, schema_id=schema.schema_id)


def _make_optional(field: NestedField, *, optional: bool) -> NestedField:
    optional = optional or field.optional
    kind = field.field_type
    if isinstance(kind, StructType):
        kind = StructType(*(_make_optional(inner, optional=optional) for inner in kind.fields))
    return field.model_copy(update={"field_type": kind, "required": not optional})


class RowFilter:
    """A filter that is bound to a table's schema, the result of `null_with_parents`.

    Raise ValueError if the schema lacks a column of the expression, or a value does not fit.
    """

    def __init__(self, schema: Schema, expression: ex.BooleanExpression) -> None:
        bound = _bind(schema, expression, case_sensitive=True)
        self._bound = _separate_zeros(bound)
        ids = extract_field_ids(self._bound)
        self.schema = prune_columns(schema, ids)
        """Schema of the columns that the filter needs."""
        self._paths = {id_: path for id_, path in _paths(self.schema.as_struct()) if id_ in ids}
        # Names by id: pyiceberg would take a dotted name for a field of a struct. PyArrow cannot
        # compare uuids, only their bytes.
        kinds = {id_: schema.find_type(id_) for id_ in ids}
        flat = Schema(
            *(
                NestedField(id_, f"f{id_}", FixedType(16) if isinstance(kind, UUIDType) else kind)
                for id_, kind in kinds.items()
            )
        )
        renamed = translate_column_names(self._bound, flat, case_sensitive=True)
        self._flat = None if self.is_all else expression_to_pyarrow(bind(flat, renamed, True))

    @property
    def is_all(self) -> bool:
        """True if the filter is true for every row."""
        return isinstance(self._bound, ex.AlwaysTrue)

    def apply(self, rows: pa.RecordBatch, needed: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows for which the filter is true.

        `needed` has the same rows with the columns of `schema`.
        """
        chosen = self._find(rows.num_rows, needed)
        return rows if len(chosen) == rows.num_rows else rows.take(chosen)

    def drop(self, rows: pa.RecordBatch, needed: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that `apply` does not: where the filter is false or null."""
        chosen = self._find(rows.num_rows, needed)
        return rows.filter(pc.invert(pc.is_in(row_numbers(rows.num_rows), value_set=chosen)))

    def _find(self, count: int, needed: pa.RecordBatch) -> pa.Array:
        """Return the numbers of the rows for which the filter is true."""
        numbers = row_numbers(count)
        if self._flat is None:
            return numbers
        columns = {f"f{id_}": _extract(needed, path) for id_, path in self._paths.items()}
        table = pa.table({**columns, "row": numbers}).filter(self._flat)
        return table.column("row").combine_chunks()

    def of_file(self, schema: pa.Schema) -> pc.Expression | None:
        """Return the part of the filter that may be applied to a file's statistics.

        Only top-level columns with the same type as in the table are included: a comparison may
        differ between types, and a column that the file lacks still has a value.
        """
        return _push_down(self._bound, {field_id(column): column for column in schema})


def row_numbers(count: int) -> pa.Array:
    """Return the numbers from 0 to `count`."""
    return pc.cumulative_sum(pa.repeat(pa.scalar(1), count), start=-1)


def _separate_zeros(expression: ex.BooleanExpression) -> ex.BooleanExpression:
    """Compare with zero separately: PyArrow's sets compare bits, in which 0.0 differs from -0.0."""
    if isinstance(expression, ex.And | ex.Or):
        return type(expression)(_separate_zeros(expression.left), _separate_zeros(expression.right))
    if not isinstance(expression, ex.BoundIn | ex.BoundNotIn):
        return expression
    term, literals = expression.term, expression.literals
    zeros = {each for each in literals if isinstance(each.value, float) and each.value == 0}
    if not zeros:
        return expression
    (zero,), others = zeros, literals - zeros
    if isinstance(expression, ex.BoundIn):
        equal = ex.BoundEqualTo(term=term, literal=zero)
        return ex.Or(equal, ex.BoundIn(term=term, literals=others))
    # Nulls are not in any set, and equal nothing.
    apart = ex.BoundNotEqualTo(term=term, literal=zero)
    apart_of_all = ex.And(apart, ex.BoundNotIn(term=term, literals=others))
    return ex.Or(ex.BoundIsNull(term=term), apart_of_all)


_WITHOUT_NANS = (
    ex.BoundEqualTo,
    ex.BoundGreaterThan,
    ex.BoundGreaterThanOrEqual,
    ex.BoundIn,
    ex.BoundIsNull,
    ex.BoundLessThan,
    ex.BoundLessThanOrEqual,
    ex.BoundNotNull,
)
"""Predicates that are false for NaN, or test only for null."""


def _push_down(
    expression: ex.BooleanExpression, columns: Mapping[Any, pa.Field]
) -> pc.Expression | None:
    if isinstance(expression, ex.And | ex.Or):
        left, right = (_push_down(side, columns) for side in (expression.left, expression.right))
        if left is not None and right is not None:
            return left & right if isinstance(expression, ex.And) else left | right
        if isinstance(expression, ex.Or):
            return None
        return right if left is None else left
    if not isinstance(expression, ex.BoundPredicate):
        return None
    wanted = expression.term.ref().field
    column = columns.get(wanted.field_id)
    if column is None or column.type != arrow_type(wanted.field_type):
        return None
    if isinstance(column.type, pa.BaseExtensionType):
        return None
    if pa.types.is_floating(column.type) and not isinstance(expression, _WITHOUT_NANS):
        return None  # statistics ignore NaN, so that it would seem absent
    renamed = Schema(NestedField(wanted.field_id, column.name, wanted.field_type))
    translated = translate_column_names(expression, renamed, case_sensitive=True)
    return expression_to_pyarrow(bind(renamed, translated, case_sensitive=True))


def _paths(struct: StructType, before: tuple[int, ...] = ()) -> Iterator[tuple[int, Sequence[int]]]:
    """Yield each field's id and its path through structs, in indexes."""
    for number, field in enumerate(struct.fields):
        yield field.field_id, (*before, number)
        if isinstance(field.field_type, StructType):
            yield from _paths(field.field_type, (*before, number))


def _extract(batch: pa.RecordBatch, path: Sequence[int]) -> pa.Array:
    column = batch.column(path[0])
    if len(path) > 1:  # null if an enclosing struct is null
        column = pc.struct_field(column, list(path[1:]))
    return column.storage if isinstance(column, pa.ExtensionArray) else column

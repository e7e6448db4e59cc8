"""Filters for rows: what pruning must know of a condition besides PyArrow's expression.

Tuples in disjunctive normal form show which fields they read, which constants a field must equal,
and how they treat nulls and NaN. PyArrow does not expose the contents of an Expression. Its fields
are found by binding it, and pruning assumes that nulls and NaN may match.

Numbers in tuples are compared exactly once the type of their field is known. PyArrow would cast
fields and numbers to a common type, which fails for values that do not fit: uint64 above 2**63,
decimals beside integers, and constants that no value of the field can equal.
"""

from __future__ import annotations

import decimal
import operator
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import reduce
from math import inf, isfinite, nextafter
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import pyarrow as pa

if TYPE_CHECKING:  # takes a third of the time of importing PyArrow
    import pyarrow.compute as pc

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


class Predicate(NamedTuple):
    """A condition on one field."""

    path: tuple[str, ...]  # names of the field and of the structs around it, outermost first
    nulls_match: bool  # whether a row with a null may match though no row with a number does
    # Whether a row with NaN may match though no row with a number does, or whether the sign of zero
    # matters; bounds cover neither.
    nans_match: bool
    # Constants one of which the field must equal; None if there are others.
    equals: tuple[Any, ...] | None = None


class _Term(NamedTuple):
    """A tuple of the caller."""

    path: tuple[str, ...]
    how: str
    value: Any  # for `in` and `not in` an Arrow array


class Filter(NamedTuple):
    """A condition for rows."""

    expression: pc.Expression
    # Predicates of which all of one alternative hold for each row that matches; empty if they are
    # not known.
    alternatives: tuple[tuple[Predicate, ...], ...] = ()
    terms: int = 1  # number of comparisons, to estimate the costs
    # The caller's tuples, by alternative, whose numbers do not have the types of their fields yet.
    tuples: tuple[tuple[_Term, ...], ...] = ()

    @property
    def predicates(self) -> Iterator[Predicate]:
        """The predicates of all alternatives."""
        return (predicate for predicates in self.alternatives for predicate in predicates)


def as_filter(filters: Filters | None) -> Filter | None:
    """Return a caller's filter; None for none."""
    if filters is None:
        return None
    import pyarrow.compute as pc

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
    return _make_filter(tuple(tuple(_read_term(*term) for term in terms) for terms in alternatives))


def fit_filter(row_filter: Filter, schema: pa.Schema) -> Filter:
    """Return a filter whose numbers have the types of the fields that they are compared with.

    Fields that the schema lacks are left as they are.
    """
    return _make_filter(row_filter.tuples, schema) if row_filter.tuples else row_filter


def _make_filter(tuples: tuple[tuple[_Term, ...], ...], schema: pa.Schema | None = None) -> Filter:
    pairs = [[_make_condition(term, schema) for term in terms] for terms in tuples]
    each = [reduce(operator.and_, [expression for expression, _ in terms]) for terms in pairs]
    predicates = tuple(tuple(predicate for _, predicate in terms) for terms in pairs)
    unfitted = tuples if schema is None else ()
    return Filter(reduce(operator.or_, each), predicates, sum(map(len, pairs)), unfitted)


def _is_term(part: Any) -> bool:
    return isinstance(part, list | tuple) and len(part) == 3 and isinstance(part[1], str)


def _read_term(column: Any, how: str, value: Any) -> _Term:
    path = (column,) if isinstance(column, str) else tuple(column)
    is_null_test = how in ("is null", "is not null") and value is None
    if how not in (*_COMPARISONS, "in", "not in") and not is_null_test:
        raise ValueError(f'filters: "{how}" is not a valid operator, or does not take a value')
    if how.endswith("in"):
        if not isinstance(value, Iterable):
            raise TypeError(f'filters: "{how}" takes a list of values')
        return _Term(path, how, _copy_views(_make_array(value)))
    value = _read_null(value)
    return _Term(path, how, _to_nanoseconds(value) if _count_nanoseconds(value) else value)


def _make_condition(term: _Term, schema: pa.Schema | None) -> tuple[pc.Expression, Predicate]:
    import pyarrow.compute as pc

    path, how, value = term
    field, kind = pc.field(*path), _find_type(path, schema)
    if how == "is null":
        return field.is_null(), Predicate(path, True, False)
    if how == "is not null":
        return field.is_valid(), Predicate(path, False, False)
    if isinstance(kind, pa.BaseExtensionType):
        value = _unwrap(value, kind, ".".join(path))
    if kind is not None:
        field, kind = _make_comparable(field, kind)
    if kind is not None and pa.types.is_nested(kind):
        raise ValueError(
            f"filters: column {'.'.join(path)} has the type {kind}, which is not compared; a "
            "tuple of names is a field of a struct"
        )
    make = _make_comparison if how in _COMPARISONS else _make_set_test
    return make(field, _Term(path, how, value), kind)


def _make_comparison(
    field: pc.Expression, term: _Term, kind: pa.DataType | None
) -> tuple[pc.Expression, Predicate]:
    import pyarrow.compute as pc

    path, how, value = term
    if kind == pa.null():
        return pc.scalar(False), Predicate(path, False, False)
    number = _as_number(value, kind) if kind is not None and _is_number(kind) else None
    if number is not None:
        return _compare_number(field, path, how, number, kind)
    if kind is not None and isinstance(value, pa.Scalar):
        value = _copy_views(value)  # a schema to filter by has none
    value = _narrow_number(value)
    equals = (pa.scalar(value),) if how in ("=", "==") else None
    return _COMPARISONS[how](field, value), Predicate(path, False, how == "!=", equals)


def _make_set_test(
    field: pc.Expression, term: _Term, kind: pa.DataType | None
) -> tuple[pc.Expression, Predicate]:
    import pyarrow.compute as pc

    path, how, values = term
    if kind is not None and _is_number(kind):
        values = _fit_values(values, kind)
    if pa.null() in (kind, values.type):  # nulls have no type, nor have empty sets
        isin = field.is_null() if values.null_count else pc.scalar(False)
    else:
        isin = field.isin(values)
    if how == "not in":
        return ~isin, Predicate(path, True, True)
    nulls, nans = values.null_count > 0, _holds_nan_or_zero(values)
    return isin, Predicate(path, nulls, nans, tuple(values))


def _make_comparable(field: pc.Expression, kind: pa.DataType) -> tuple[pc.Expression, pa.DataType]:
    """Return a field and its type after casts from types that PyArrow does not compare."""
    if pa.types.is_dictionary(kind):  # PyArrow compares its values
        kind = kind.value_type
    if kind == pa.bool8():  # any number but 0 is true
        return field.cast(pa.int8()).cast(pa.bool_()), pa.bool_()
    compared = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    if compared == pa.float16():
        compared = pa.float64()
    elif pa.types.is_decimal32(kind) or pa.types.is_decimal64(kind):  # sets of them
        compared = pa.decimal128(kind.precision, kind.scale)
    return field if compared == kind else field.cast(compared), compared


def _unwrap(value: Any, kind: pa.BaseExtensionType, name: str) -> Any:
    """Return a value, or the array of a set, as one of an extension type's storage."""
    storage = pa.bool_() if kind == pa.bool8() else kind.storage_type
    if isinstance(value, pa.ExtensionArray):
        return value.storage.cast(storage)
    if isinstance(value, pa.Array):
        unwrapped = [_unwrap(item, kind, name) for item in value.to_pylist()]
        try:
            return pa.array(unwrapped, storage)
        except pa.ArrowException:
            raise ValueError(
                f"filters: column {name} has the type {kind}, unlike the values of a set"
            ) from None
    if isinstance(value, pa.ExtensionScalar):
        return value.value if value.value is None else value.value.cast(storage)
    if isinstance(value, str) and kind == pa.uuid():
        try:
            value = uuid.UUID(value)
        except ValueError:
            raise ValueError(f"filters: column {name} has UUIDs, and the text is none") from None
    return value.bytes if isinstance(value, uuid.UUID) else value


def _make_array(values: Any) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.Array):
        is_dictionary = pa.types.is_dictionary(values.type)
        return values.dictionary_decode() if is_dictionary else values
    # PyArrow mixes no integers of NumPy.
    items = [
        int(v) if isinstance(v, Integral) and not isinstance(v, bool) else v
        for v in map(_read_null, values)
    ]
    try:
        if any(map(_count_nanoseconds, items)):
            items = [None if v is None else _to_nanoseconds(v) for v in items]
        return _make_array(pa.array(items))
    except (OverflowError, pa.ArrowException):
        if not all(v is None or isinstance(v, int | decimal.Decimal) for v in items):
            raise ValueError("filters: the values of a set have no common type") from None
    return pa.array([None if v is None else decimal.Decimal(v) for v in items])


def _read_null(value: Any) -> Any:
    """Return a value of a filter; None for the nulls of pandas, which PyArrow refuses."""
    return None if type(value).__name__ in ("NaTType", "NAType") else value


# --- numbers -------------------------------------------------------------------------------------

_EXACT = decimal.Context(prec=200, rounding=decimal.ROUND_FLOOR)
"""Arithmetic without rounding, except where it is asked for: a decimal has at most 76 digits."""


def _find_type(path: tuple[str, ...], schema: pa.Schema | None) -> pa.DataType | None:
    """Return the type of a field, also within structs; None if the schema lacks it."""
    kind: Any = schema
    for name in path:
        is_group = kind is schema or pa.types.is_struct(kind)
        number = kind.get_field_index(name) if kind is not None and is_group else -1
        if number < 0:
            return None
        kind = kind.field(number).type
    return kind


def _is_number(kind: pa.DataType) -> bool:
    """Return whether a type is one of numbers or times; half floats are none."""
    is_exact = pa.types.is_integer(kind) or pa.types.is_decimal(kind) or _is_time(kind)
    return is_exact or kind in _FLOATS


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_duration(kind))


_FLOATS = (pa.float32(), pa.float64())

_UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}  # nanoseconds of the units of times


def _as_number(value: Any, kind: pa.DataType) -> decimal.Decimal | None:
    """Return the number that a value of the caller is; None if PyArrow compares it as it is."""
    # A timestamp or duration is a number of the units of the type.
    if _is_time(kind):
        return _count_units(value, kind)
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    if isinstance(value, bool):
        return None
    if isinstance(value, Integral):
        return decimal.Decimal(int(value))
    # Floats and decimals are compared as floats: 0.1 is not exactly 0.10.
    if isinstance(value, float) and isfinite(value) and pa.types.is_integer(kind):
        return decimal.Decimal(float(value))
    is_decimal = isinstance(value, decimal.Decimal) and value.is_finite()
    return value if is_decimal and kind not in _FLOATS else None


def _count_units(value: Any, kind: pa.DataType) -> decimal.Decimal | None:
    """Return a time in units of its type; None for what is no time, or in no time zone."""
    if not isinstance(value, pa.Scalar):
        try:
            value = pa.scalar(value)
        except (pa.ArrowException, OverflowError):
            return None
    if not value.is_valid:
        return None
    zone, is_duration = getattr(kind, "tz", None), pa.types.is_duration(kind)
    if pa.types.is_date32(value.type) and zone is None and not is_duration:
        nanoseconds = value.value * 86_400 * 10**9
    elif value.type.id == kind.id and (getattr(value.type, "tz", None) is None) == (zone is None):
        nanoseconds = value.value * _UNITS[value.type.unit]
    else:
        return None
    return _EXACT.divide(decimal.Decimal(nanoseconds), decimal.Decimal(_UNITS[kind.unit]))


def _count_nanoseconds(value: Any) -> int:
    """Return the nanoseconds below microseconds that a time of pandas has, and PyArrow cuts off."""
    rest = getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0)
    return rest if isinstance(rest, int) else 0  # NaT has NaN


def _to_nanoseconds(value: Any) -> pa.Scalar:
    """Return a time, or null, as a scalar of nanoseconds."""
    scalar = pa.scalar(value)
    is_timestamp = pa.types.is_timestamp(scalar.type)
    kind = pa.timestamp("ns", scalar.type.tz) if is_timestamp else pa.duration("ns")
    exact = scalar.cast(kind)
    return pa.scalar(exact.value + _count_nanoseconds(value), kind) if exact.is_valid else exact


def _find_bounds(kind: pa.DataType) -> tuple[decimal.Decimal, decimal.Decimal]:
    if kind in _FLOATS:
        return decimal.Decimal("-Infinity"), decimal.Decimal("Infinity")
    if pa.types.is_decimal(kind):
        most = decimal.Decimal(10**kind.precision - 1).scaleb(-kind.scale, _EXACT)
        return -most, most
    signed = not pa.types.is_unsigned_integer(kind)
    bits = kind.bit_width - signed
    return decimal.Decimal(-(1 << bits) if signed else 0), decimal.Decimal((1 << bits) - 1)


def _round_down(number: decimal.Decimal, kind: pa.DataType) -> decimal.Decimal:
    """Return the greatest value of the type that is not above a number within its bounds."""
    # Floats of both sizes are compared in float64.
    if kind in _FLOATS:
        near = float(number)
        return decimal.Decimal(near if near <= number else nextafter(near, -inf))
    scale = kind.scale if pa.types.is_decimal(kind) else 0
    return number.quantize(decimal.Decimal(1).scaleb(-scale), context=_EXACT)


def _make_scalar(number: decimal.Decimal, kind: pa.DataType) -> pa.Scalar:
    if kind in _FLOATS:
        return pa.scalar(float(number), kind)
    return pa.scalar(number if pa.types.is_decimal(kind) else int(number), kind)


def _compare_number(
    field: pc.Expression, path: tuple[str, ...], how: str, number: decimal.Decimal, kind: Any
) -> tuple[pc.Expression, Predicate]:
    """Return the comparison with a number that the field's type may not be able to hold."""
    import pyarrow.compute as pc

    low, high = _find_bounds(kind)
    if not low <= number <= high:
        fits = how == "!=" or (how[0] == "<" and number > high) or (how[0] == ">" and number < low)
        return field.is_valid() if fits else pc.scalar(False), Predicate(path, False, False)
    floor = _round_down(number, kind)
    scalar = _make_scalar(floor, pa.float64() if kind in _FLOATS else kind)
    if floor == number:
        equals = (scalar,) if how in ("=", "==") else None
        return _COMPARISONS[how](field, scalar), Predicate(path, False, how == "!=", equals)
    if how[0] in "<>":
        between = field <= scalar if how[0] == "<" else field > scalar
    else:
        between = field.is_valid() if how == "!=" else pc.scalar(False)
    return between, Predicate(path, False, how == "!=")


def _fit_values(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return those of the values that a field of the type can have; all if some are no numbers."""
    if values.type == kind:
        return values
    if pa.types.is_integer(values.type) and pa.types.is_integer(kind):
        with suppress(pa.ArrowInvalid):  # some do not fit
            return values.cast(kind)
    numbers = [_as_number(value, kind) for value in values if value.is_valid]
    if None in numbers:
        return values
    low, high = _find_bounds(kind)
    inside = [number for number in numbers if number is not None and low <= number <= high]
    exact = [number for number in inside if _round_down(number, kind) == number]
    scalars = [_make_scalar(number, kind) for number in exact]
    if kind == pa.float32():
        scalars = [scalar for scalar, n in zip(scalars, exact, strict=True) if scalar.as_py() == n]
    nulls = [pa.scalar(None, kind)] if values.null_count else []
    return pa.array(scalars + nulls, kind)


def _narrow_number(value: Any) -> Any:
    """Convert a number to the narrowest unsigned type that holds it."""
    # PyArrow converts it to int64, and casts columns of uint64 and decimals to it, whose values may
    # not fit.
    if type(value) is not int or -(1 << 63) <= value < 0:
        return value
    kinds = (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
    kind = next((kind for kind in kinds if 0 <= value < 1 << kind.bit_width), None)
    return decimal.Decimal(value) if kind is None else pa.scalar(value, kind)


def _holds_nan_or_zero(values: pa.Array) -> bool:
    """Return whether a value is NaN or zero; PyArrow's sets distinguish the two zeros."""
    import pyarrow.compute as pc

    if not (pa.types.is_floating(values.type) or pa.types.is_integer(values.type)):
        return True
    nan = pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py()
    return bool(nan or pc.any(pc.equal(values, pa.scalar(0, values.type))).as_py())


# --- views ---------------------------------------------------------------------------------------

_COPIES = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
"""Types instead of views, which PyArrow 26 neither compares nor filters."""


def _copy_views(values: Any) -> Any:
    """Return an array or scalar without views or half floats, which PyArrow does not compare."""
    copied = pa.float64() if values.type == pa.float16() else _COPIES.get(values.type)
    return values if copied is None else values.cast(copied)


def replace_views(schema: pa.Schema) -> pa.Schema:
    """Return the schema without views."""
    if all(kind.id < pa.lib.Type_LIST for kind in schema.types):  # views and nested types follow
        return schema
    return pa.schema(map(_replace_views_of_field, schema), schema.metadata)


def _replace_views_of_field(field: pa.Field) -> pa.Field:
    kind = _replace_views_of_type(field.type)
    return field if kind == field.type else field.with_type(kind)


def _replace_views_of_type(kind: pa.DataType) -> pa.DataType:
    """Return the type without views; list views stay, whose values PyArrow does not filter."""
    if pa.types.is_struct(kind):
        return pa.struct([_replace_views_of_field(field) for field in kind])
    if pa.types.is_map(kind):
        fields = (_replace_views_of_field(field) for field in (kind.key_field, kind.item_field))
        return pa.map_(*fields, keys_sorted=kind.keys_sorted)
    if pa.types.is_list(kind):
        return pa.list_(_replace_views_of_field(kind.value_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(_replace_views_of_field(kind.value_field))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_replace_views_of_field(kind.value_field), kind.list_size)
    if isinstance(kind, pa.BaseExtensionType):
        storage = _replace_views_of_type(kind.storage_type)
        return kind if storage == kind.storage_type else storage
    return _COPIES.get(kind, kind)


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
        with suppress(pa.ArrowException):
            _bind(row_filter.expression, others)
            fields = others
    unknown = tuple(Predicate((field.name,), True, True) for field in fields)
    return Filter(row_filter.expression, (unknown,), row_filter.terms)


def _bind(expression: pc.Expression, fields: Sequence[pa.Field]) -> None:
    from pyarrow.dataset import Scanner

    Scanner.from_batches(iter(()), schema=pa.schema(fields), filter=expression)

"""Translate a filter into lookups in bloom filters.

A bloom filter proves only that a value is absent. So only equality with constants can be looked up,
and only constants whose plain encoding in the column is certain. For any other condition the
answer is None: every row may match.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from modcrypt.parquet.arrow.filters import Filter, Predicate
from modcrypt.parquet.crypto.bloom_filters import bloom_hash
from modcrypt.parquet.format.idl import ThriftStruct

_MAX_VALUES = 1000
"""Most values of one `is_in` that are looked up: about one in a hundred matches by chance."""

INT32, INT64, FLOAT, DOUBLE, BYTE_ARRAY, FIXED = 1, 2, 4, 5, 6, 7  # Type of the IDL
_UTF8 = 0  # ConvertedType of the IDL

_TEXT = pa.string(), pa.large_string(), pa.string_view()
_BYTES = {kind.id for kind in (*_TEXT, pa.binary(), pa.large_binary(), pa.binary_view())}


@dataclass(frozen=True, slots=True)
class Values:
    """A condition: the column holds at least one of the values with these hashes."""

    column: int
    hashes: list[int]


Probe: TypeAlias = list[list[Values]]  # alternatives, of which all conditions of one must hold


def find_probe(
    row_filter: Filter, columns: Mapping[tuple[str, ...], tuple[int, ThriftStruct]]
) -> Probe | None:
    """Return the conditions that columns must meet for a row to match; None if none is known.

    `columns` has the index and schema element of each column that may be looked up, by its path.
    """
    probe = [
        [values for p in predicates if p.path in columns for values in _hash(p, *columns[p.path])]
        for predicates in row_filter.alternatives
    ]
    return probe if all(probe) else None


def _hash(predicate: Predicate, column: int, element: ThriftStruct) -> Iterator[Values]:
    """Yield the condition of an equality, if the column encodes all its constants in one way."""
    if predicate.equals is None or len(predicate.equals) > _MAX_VALUES:
        return
    plain = [encode_plain_value(scalar, element) for scalar in predicate.equals]
    known = [value for value in plain if value is not None]
    if len(known) == len(plain):
        yield Values(column, [bloom_hash(value) for value in known])


def encode_plain_value(scalar: Any, element: ThriftStruct) -> bytes | None:
    """Encode a constant as the column's only value that equals it; None if that is uncertain."""
    if not scalar.is_valid:
        return None
    if element.type in (INT32, INT64):
        number = _convert_integer(scalar, element)
        size = 4 if element.type == INT32 else 8
        return None if number is None else (number % (1 << 8 * size)).to_bytes(size, "little")
    if element.type in (FLOAT, DOUBLE):
        return _encode_float(scalar, "<f" if element.type == FLOAT else "<d")
    is_bytes = scalar.type.id in _BYTES or pa.types.is_fixed_size_binary(scalar.type)
    if element.type in (BYTE_ARRAY, FIXED) and _holds_bytes(element) and is_bytes:
        value: bytes = scalar.as_buffer().to_pybytes()
        return value if element.type == BYTE_ARRAY or len(value) == element.type_length else None
    return None


def _holds_bytes(element: ThriftStruct) -> bool:
    if element.type == BYTE_ARRAY and element.logicalType is not None:
        return element.logicalType.STRING is not None
    return element.logicalType is None and element.converted_type in (None, _UTF8)


def _encode_float(scalar: Any, format_code: str) -> bytes | None:
    if not pa.types.is_floating(scalar.type) and not pa.types.is_integer(scalar.type):
        return None
    value = scalar.as_py()
    try:
        plain = struct.pack(format_code, value)
    except OverflowError:
        return None
    (back,) = struct.unpack(format_code, plain)
    # 0.0 equals -0.0, and NaN has many bit patterns and equals nothing.
    return plain if back == value and value != 0 and not math.isnan(value) else None


def _convert_integer(scalar: Any, element: ThriftStruct) -> int | None:
    if (kind := _find_integer_type(element)) is None:
        return None
    integers = pa.types.is_integer(kind) and pa.types.is_integer(scalar.type)
    same = scalar.type.id == kind.id and _has_zone(scalar.type) == _has_zone(kind)
    if not integers and not same:
        return None
    try:
        exact = scalar.cast(kind)
    except pa.ArrowException:  # The value is out of range, or finer than the column's unit.
        return None
    value: int = exact.as_py() if integers else exact.value
    return value


def _has_zone(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is not None


# Types by ConvertedType, for files without logical types. Decimals are absent because they have
# more than one encoding.
_CONVERTED = {
    6: pa.date32(), 7: pa.time32("ms"), 8: pa.time64("us"),
    9: pa.timestamp("ms", "UTC"), 10: pa.timestamp("us", "UTC"),
    11: pa.uint8(), 12: pa.uint16(), 13: pa.uint32(), 14: pa.uint64(),
    15: pa.int8(), 16: pa.int16(), 17: pa.int32(), 18: pa.int64(),
}  # fmt: skip
_INTEGERS = {str(kind): kind for kind in _CONVERTED.values() if pa.types.is_integer(kind)}


def _find_integer_type(element: ThriftStruct) -> pa.DataType | None:
    """Return the type of an INT32 or INT64 column that stores each value as one number."""
    if (logical := element.logicalType) is None and element.converted_type is None:
        return pa.int32() if element.type == INT32 else pa.int64()
    if logical is None:
        return _CONVERTED.get(element.converted_type)
    if logical.DATE is not None:
        return pa.date32()
    if logical.INTEGER is not None:
        sign = "" if logical.INTEGER.isSigned else "u"
        return _INTEGERS.get(f"{sign}int{logical.INTEGER.bitWidth}")
    return _find_clock_type(logical)


def _find_clock_type(logical: ThriftStruct) -> pa.DataType | None:
    clock = logical.TIMESTAMP or logical.TIME
    if clock is None:
        return None
    units = {"ms": clock.unit.MILLIS, "us": clock.unit.MICROS, "ns": clock.unit.NANOS}
    unit = next((name for name, member in units.items() if member is not None), None)
    if unit is None:
        return None
    if logical.TIMESTAMP is not None:
        return pa.timestamp(unit, "UTC" if clock.isAdjustedToUTC else None)
    return pa.time32(unit) if unit == "ms" else pa.time64(unit)

"""Conversion between the types of Arrow and Spark: schemas in both directions, and batches.

Spark compares the first batch with its schema, including nullability and names within lists, and
uses the buffers of all other batches unchecked. modcrypt therefore converts what PyArrow reads to
one form: `string` and never `large_string`, timestamps in microseconds and UTC, no dictionaries. It
copies nothing if only names and nullability differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from inspect import signature
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    GeographyType,
    GeometryType,
    MapType,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

# Spark 4.1 has no such argument: its times are in UTC.
_IN_UTC: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
)

_MICROS = pa.timestamp("us")
_MICROS_UTC = pa.timestamp("us", tz="UTC")
_MAX_DIGITS = 38  # limit of decimals in Spark

_SAME = frozenset(
    {
        pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(),
        pa.float64(), pa.string(), pa.binary(), pa.date32(),
    }
)  # fmt: skip
_OTHERS = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
}
_WIDER = {
    pa.int8(): {pa.int16(), pa.int32(), pa.int64(), pa.float64()},
    pa.int16(): {pa.int32(), pa.int64(), pa.float64()},
    pa.int32(): {pa.int64(), pa.float64()},
    pa.float32(): {pa.float64()},
    pa.date32(): {_MICROS},
}
"""Mapping of types to the types that can represent all their values exactly."""

_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}
"""Digits before the point that a decimal needs for all values of a type; as in Spark, 20 for the
last."""


def to_common_schema(own: pa.Schema, parquet: pq.ParquetSchema | None = None) -> pa.Schema:
    """Return the Arrow schema that Spark uses for a file: all fields nullable, as in Spark.

    `own` is the schema as PyArrow reads it. By the Parquet schema, INT96 is Spark's timestamp with
    a time zone, while PyArrow reads it as a timestamp without, and an ENUM is text, not binary.
    Raise ValueError if Spark does not support a type.
    """
    leaves = None
    if parquet is not None:
        leaves = (_leaf_type(parquet.column(n)) for n in range(len(parquet)))
    return pa.schema([pa.field(f.name, _to_common_type(f.type, f.name, leaves)) for f in own])


def _leaf_type(column: pq.ColumnSchema) -> pa.DataType | None:
    """Return the type for a column whose Parquet type says more than PyArrow's; None otherwise."""
    if column.physical_type == "INT96":
        return _MICROS_UTC
    return pa.string() if column.logical_type.type == "ENUM" else None


def _to_common_type(
    kind: pa.DataType, where: str, leaves: Iterator[pa.DataType | None] | None
) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return _to_common_type(kind.storage_type, where, leaves)
    if pt.is_dictionary(kind):
        return _to_common_type(kind.value_type, where, leaves)
    if pt.is_struct(kind):
        inside = (
            pa.field(f.name, _to_common_type(f.type, f"{where}.{f.name}", leaves)) for f in kind
        )
        return pa.struct(list(inside))
    if pt.is_map(kind):
        key = _to_common_type(kind.key_type, f"{where}.key", leaves)
        value = _to_common_type(kind.item_type, f"{where}.value", leaves)
        return pa.map_(pa.field("key", key, nullable=False), pa.field("value", value))
    if any(test(kind) for test in (pt.is_list, pt.is_large_list, pt.is_fixed_size_list)):
        return pa.list_(
            pa.field("element", _to_common_type(kind.value_type, f"{where}.element", leaves))
        )
    known = None if leaves is None else next(leaves)
    return _to_common_leaf(kind, where) if known is None else known


def _to_common_leaf(kind: pa.DataType, where: str) -> pa.DataType:
    if kind in _SAME:
        return kind
    if kind in _OTHERS:
        return _OTHERS[kind]
    if pt.is_timestamp(kind):
        return _MICROS if kind.tz is None else _MICROS_UTC
    if pt.is_time(kind):
        return pa.time64("ns")
    if pt.is_duration(kind):
        return pa.duration("us")
    if pt.is_fixed_size_binary(kind):
        return pa.binary()
    if pt.is_decimal(kind) and kind.precision <= _MAX_DIGITS and 0 <= kind.scale <= kind.precision:
        return pa.decimal128(kind.precision, kind.scale)
    raise ValueError(f"column {where}: Spark does not support {kind}; exclude it with `columns`")


def to_spark_schema(common: pa.Schema) -> StructType:
    """Return Spark's schema for a result of `to_common_schema`."""
    schema: StructType = from_arrow_schema(common, prefer_timestamp_ntz=True)
    return schema


def to_spark_arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark compares batches with."""
    arrow_schema: pa.Schema = to_arrow_schema(schema, **_IN_UTC)
    return pa.schema([field.remove_metadata() for field in arrow_schema])


def to_file_schema(schema: StructType) -> pa.Schema:
    """Return the schema of files for Spark's rows: nullable, as in files that Spark writes.

    Raise ValueError if modcrypt can't write a type to Parquet files.
    """
    for field in schema:
        _check_writable_type(field.dataType, field.name)
    return to_common_schema(to_spark_arrow_schema(schema))


def _check_writable_type(kind: DataType, where: str) -> None:
    if isinstance(kind, StructType):
        for field in kind:
            _check_writable_type(field.dataType, f"{where}.{field.name}")
    elif isinstance(kind, ArrayType):
        _check_writable_type(kind.elementType, f"{where}.element")
    elif isinstance(kind, MapType):
        _check_writable_type(kind.keyType, f"{where}.key")
        _check_writable_type(kind.valueType, f"{where}.value")
    elif isinstance(kind, _UNSUPPORTED):
        raise ValueError(
            f"column {where}: writing {kind.simpleString()} is not supported; cast it first"
        )


_UNSUPPORTED = (
    VariantType,
    GeometryType,
    GeographyType,
    CalendarIntervalType,
    YearMonthIntervalType,
)


def check_types(here: pa.Schema, there: pa.Schema) -> None:
    """Check that the type of each field of a table can represent all values of the file's field.

    `here` is the schema of a file, as `to_common_schema` returns it; `there` is that of the table.
    """
    for field in there:
        index = find_field(here, field.name)
        if index >= 0 and not _fits(here.field(index).type, field.type):
            raise ValueError(
                f"column {field.name} is {here.field(index).type} here, which does not fit "
                f"{field.type} of the table; read these files separately, or exclude the column "
                "with `columns`"
            )


def find_field(fields: Iterable[pa.Field], name: str) -> int:
    """Return the index of a field by its name, regardless of case as in Spark; -1 if absent."""
    names = [field.name for field in fields]
    if name in names:
        return names.index(name)
    found = [index for index, own in enumerate(names) if own.lower() == name.lower()]
    if len(found) > 1:
        raise ValueError(f"column {name}: several fields have this name but for case")
    return found[0] if found else -1


def merge_schemas(schema: pa.Schema, other: pa.Schema) -> pa.Schema:
    """Return a schema with the fields of both, whose types can represent the values of both.

    Raise ValueError if a field has two types of which neither represents the values of the other.
    """
    return pa.schema(_merge_fields(schema, other, ""))


def _merge_fields(
    fields: Iterable[pa.Field], others: Iterable[pa.Field], where: str
) -> list[pa.Field]:
    merged = list(fields)
    for other in others:
        if (index := find_field(merged, other.name)) < 0:
            merged.append(other)
        else:
            own = merged[index]
            kind = _merge_types(own.type, other.type, f"{where}{own.name}")
            merged[index] = pa.field(own.name, kind, own.nullable)
    return merged


def _merge_types(kind: pa.DataType, other: pa.DataType, where: str) -> pa.DataType:
    if pt.is_struct(kind) and pt.is_struct(other):
        return pa.struct(_merge_fields(kind, other, f"{where}."))
    if pt.is_list(kind) and pt.is_list(other):
        inner = _merge_types(kind.value_type, other.value_type, f"{where}.element")
        return pa.list_(kind.value_field.with_type(inner))
    if pt.is_map(kind) and pt.is_map(other):
        inner = _merge_types(kind.item_type, other.item_type, f"{where}.value")
        return pa.map_(kind.key_field, kind.item_field.with_type(inner))
    if _fits(other, kind):
        return kind
    if _fits(kind, other):
        return other
    raise ValueError(
        f"column {where} is {kind} in some files and {other} in others; read these files "
        "separately, or exclude the column with `columns`"
    )


def _fits(here: pa.DataType, there: pa.DataType) -> bool:
    if pt.is_null(here):
        return True
    if pt.is_struct(here) and pt.is_struct(there):
        places = [(find_field(here, field.name), field) for field in there]
        return all(n < 0 or _fits(here.field(n).type, field.type) for n, field in places)
    if pt.is_map(here) and pt.is_map(there):
        keys = _fits(here.key_type, there.key_type)
        return keys and _fits(here.item_type, there.item_type)
    if pt.is_list(here) and pt.is_list(there):
        return _fits(here.value_type, there.value_type)
    if pt.is_decimal(here) and pt.is_decimal(there):
        whole, there_whole = here.precision - here.scale, there.precision - there.scale
        return bool(there_whole >= whole and there.scale >= here.scale)
    if pt.is_decimal(there) and here in _DIGITS:
        return bool(there.precision - there.scale >= _DIGITS[here])
    return bool(here == there) or there in _WIDER.get(here, ())


def conform(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """Convert a batch to a schema that `check_types` has accepted; missing fields become null.

    Raise ValueError if the schema does not allow a null, or a type can't represent a time.
    """
    if batch.schema.equals(target) and all(field.nullable for field in target):
        return batch
    columns = []
    for field in target:
        if (index := find_field(batch.schema, field.name)) < 0:
            column = pa.nulls(batch.num_rows, field.type)
        else:
            column = _conform_array(batch.column(index), field.type, field.name)
        _check_nulls(column, field, field.name)
        columns.append(column)
    if not columns:  # a batch built without columns would lose the number of rows
        return batch.select([])
    return pa.record_batch(columns, schema=target)


def _check_nulls(array: pa.Array, field: pa.Field, where: str) -> None:
    if not field.nullable and array.null_count:
        raise ValueError(f"column {where} has nulls, but the schema says NOT NULL")


def _conform_array(array: pa.Array, kind: pa.DataType, where: str) -> pa.Array:
    if array.type.equals(kind):  # compares nested names and nullability, too
        return array
    if isinstance(array.type, pa.BaseExtensionType):
        return _conform_array(array.storage, kind, where)
    if pt.is_dictionary(array.type):
        return _conform_array(array.dictionary_decode(), kind, where)
    if pt.is_null(array.type):
        return pa.nulls(len(array), kind)
    nested = _NESTED.get(kind.id)
    return _cast_leaf(array, kind, where) if nested is None else nested(array, kind, where)


def _conform_struct(array: Any, kind: Any, where: str) -> pa.Array:
    columns = []
    for field in kind:
        name = f"{where}.{field.name}"
        if (index := find_field(array.type, field.name)) < 0:
            column = pa.nulls(len(array), field.type)
        else:
            column = _conform_array(array.field(index), field.type, name)
        if not field.nullable:  # the children of null structs have undefined values
            _check_nulls(column.filter(array.is_valid()), field, name)
        columns.append(column)
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=mask)


def _conform_list(array: Any, kind: Any, where: str) -> pa.Array:
    if not pt.is_list(array.type):
        array = array.cast(pa.list_(pa.field("element", array.type.value_type)))
    values = _conform_array(array.values, kind.value_type, f"{where}.element")
    if not kind.value_field.nullable:
        _check_nulls(array.flatten(), kind.value_field, f"{where}.element")
    return _replace_children(array, kind, [values])


def _conform_map(array: Any, kind: Any, where: str) -> pa.Array:
    fields = [kind.key_field, kind.item_field]
    both = zip(fields, (array.keys, array.items), strict=True)
    columns = [
        _conform_array(column, field.type, f"{where}.{field.name}") for field, column in both
    ]
    if not kind.item_field.nullable:
        _check_nulls(columns[1], kind.item_field, f"{where}.value")
    return _replace_children(array, kind, [pa.StructArray.from_arrays(columns, fields=fields)])


_NESTED: dict[int, Callable[[Any, Any, str], pa.Array]] = {
    pa.struct([]).id: _conform_struct,
    pa.list_(pa.null()).id: _conform_list,
    pa.map_(pa.string(), pa.null()).id: _conform_map,
}
"""Functions that convert an array to a nested type, by Arrow's id of the type."""


def _replace_children(array: pa.Array, kind: pa.DataType, children: list[pa.Array]) -> pa.Array:
    """Return an array of lists or maps with the same validity and offsets, and other children."""
    own = array.buffers()[:2]
    return pa.Array.from_buffers(kind, len(array), own, array.null_count, array.offset, children)


def _cast_leaf(array: pa.Array, kind: pa.DataType, where: str) -> pa.Array:
    try:
        if pt.is_timestamp(array.type) and array.type.unit == "ns":
            # Spark has microseconds; round down, also before 1970.
            array = pc.floor_temporal(array, unit="microsecond")
        return array.cast(kind)
    except pa.ArrowInvalid:  # its message contains the value
        raise ValueError(
            f"column {where}: {kind} can't represent a value of {array.type}"
        ) from None

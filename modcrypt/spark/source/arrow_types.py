"""Arrow's types and Spark's: schemas both ways, and batches that are exactly what Spark demands.

Spark compares the first batch with its schema, nullability and names inside of lists included, and
takes the buffers of all others as they are. So what PyArrow reads from a file is brought to one
form: `string` and never `large_string`, timestamps in microseconds and UTC, no dictionaries.
Nothing is copied where only names and nullability differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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

__all__ = ["check_types", "conform", "demanded", "in_common", "spark_schema", "written"]

_MICROS = pa.timestamp("us")
_MICROS_UTC = pa.timestamp("us", tz="UTC")
_MAX_DIGITS = 38  # of a decimal in Spark

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
    pa.int8(): {pa.int16(), pa.int32(), pa.int64()},
    pa.int16(): {pa.int32(), pa.int64()},
    pa.int32(): {pa.int64()},
    pa.float32(): {pa.float64()},
}
"""Types to those that have all of their values, exactly."""


# --- schemas -------------------------------------------------------------------------------------


def in_common(own: pa.Schema, parquet: pq.ParquetSchema | None = None) -> pa.Schema:
    """Give the form that Spark has for a schema: all of it nullable, as Spark reads files.

    Args:
        own: as PyArrow reads it from a file.
        parquet: the same in Parquet's terms: INT96 is Spark's timestamp, which has a time zone,
            while PyArrow takes it for one without.

    Raises:
        ValueError: a type that Spark doesn't have.
    """
    leaves = None
    if parquet is not None:
        count = len(parquet)
        leaves = iter([str(parquet.column(n).physical_type) for n in range(count)])
    return pa.schema([pa.field(f.name, _common(f.type, f.name, leaves)) for f in own])


def _common(kind: pa.DataType, where: str, leaves: Iterator[str] | None) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return _common(kind.storage_type, where, leaves)
    if pt.is_dictionary(kind):
        return _common(kind.value_type, where, leaves)
    if pt.is_struct(kind):
        inside = (pa.field(f.name, _common(f.type, f"{where}.{f.name}", leaves)) for f in kind)
        return pa.struct(list(inside))
    if pt.is_map(kind):
        key = _common(kind.key_type, f"{where}.key", leaves)
        value = _common(kind.item_type, f"{where}.value", leaves)
        return pa.map_(pa.field("key", key, nullable=False), pa.field("value", value))
    if _is_list(kind):
        return pa.list_(pa.field("element", _common(kind.value_type, f"{where}.element", leaves)))
    physical = None if leaves is None else next(leaves)
    return _MICROS_UTC if physical == "INT96" else _leaf(kind, where)


def _is_list(kind: pa.DataType) -> bool:
    return any(test(kind) for test in (pt.is_list, pt.is_large_list, pt.is_fixed_size_list))


def _leaf(kind: pa.DataType, where: str) -> pa.DataType:
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
    raise ValueError(f"column {where}: Spark has no type for {kind}; leave it out by `columns`")


def spark_schema(common: pa.Schema) -> StructType:
    """Give Spark's schema of what `in_common` gave."""
    found: StructType = from_arrow_schema(common, prefer_timestamp_ntz=True)
    return found


def demanded(schema: StructType) -> pa.Schema:
    """Give the Arrow schema that Spark compares batches with."""
    found: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return pa.schema([field.remove_metadata() for field in found])


def written(schema: StructType) -> pa.Schema:
    """Give the schema of files for Spark's rows: nullable, as Spark writes its own files.

    Raises:
        ValueError: a type that Parquet files, as modcrypt writes them, can't hold.
    """
    for field in schema:
        _check_written(field.dataType, field.name)
    return in_common(demanded(schema))


def _check_written(kind: DataType, where: str) -> None:
    if isinstance(kind, StructType):
        for field in kind:
            _check_written(field.dataType, f"{where}.{field.name}")
    elif isinstance(kind, ArrayType):
        _check_written(kind.elementType, f"{where}.element")
    elif isinstance(kind, MapType):
        _check_written(kind.keyType, f"{where}.key")
        _check_written(kind.valueType, f"{where}.value")
    elif isinstance(kind, _NOT_WRITTEN):
        raise ValueError(f"column {where}: {kind.simpleString()} is not written; cast it first")


_NOT_WRITTEN = (
    VariantType,
    GeometryType,
    GeographyType,
    CalendarIntervalType,
    YearMonthIntervalType,
)


# --- what a file has, and what is demanded -------------------------------------------------------


def check_types(here: pa.Schema, there: pa.Schema) -> None:
    """Check that each field of both is of a type that the other schema's has all values of.

    Args:
        here: of a file, as `in_common` gave it.
        there: demanded.

    Raises:
        ValueError: it is not: which column, and both types.
    """
    for field in there:
        if field.name in here.names:
            own = here.field(field.name).type
            if not _fits(own, field.type):
                raise ValueError(
                    f"column {field.name} is {own} here, which does not fit {field.type} of the "
                    "table: read these files by themselves, or leave it out by `columns`"
                )


def _fits(here: pa.DataType, there: pa.DataType) -> bool:
    if pt.is_null(here):
        return True
    if pt.is_struct(here) and pt.is_struct(there):
        mine = {field.name: field.type for field in here}
        return all(field.name not in mine or _fits(mine[field.name], field.type) for field in there)
    if pt.is_map(here) and pt.is_map(there):
        keys = _fits(here.key_type, there.key_type)
        return keys and _fits(here.item_type, there.item_type)
    if pt.is_list(here) and pt.is_list(there):
        return _fits(here.value_type, there.value_type)
    if pt.is_decimal(here) and pt.is_decimal(there):
        whole, there_whole = here.precision - here.scale, there.precision - there.scale
        return bool(there_whole >= whole and there.scale >= here.scale)
    return bool(here == there) or there in _WIDER.get(here, ())


# --- batches -------------------------------------------------------------------------------------


def conform(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """Bring a batch to a schema, whose types `check_types` has compared; missing fields are null.

    Raises:
        ValueError: a null where the schema has none, or a time that its type can't hold.
    """
    columns = []
    for field in target:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            column = pa.nulls(batch.num_rows, field.type)
        else:
            column = _array(batch.column(index), field.type, field.name)
        _check_nulls(column, field, field.name)
        columns.append(column)
    if not columns:  # Arrow would lose the number of rows
        return batch.select([])
    return pa.record_batch(columns, schema=target)


def _check_nulls(array: pa.Array, field: pa.Field, where: str) -> None:
    if not field.nullable and array.null_count:
        raise ValueError(f"column {where} has nulls, and the schema says NOT NULL")


def _array(array: pa.Array, kind: pa.DataType, where: str) -> pa.Array:
    """Bring an array to a type."""
    if array.type.equals(kind):  # names and nullability inside of it included
        return array
    if isinstance(array.type, pa.BaseExtensionType):
        return _array(array.storage, kind, where)
    if pt.is_dictionary(array.type):
        return _array(array.dictionary_decode(), kind, where)
    if pt.is_null(array.type):
        return pa.nulls(len(array), kind)
    nested = _NESTED.get(kind.id)
    return _leaf_array(array, kind, where) if nested is None else nested(array, kind, where)


def _struct(array: Any, kind: Any, where: str) -> pa.Array:
    columns = []
    for field in kind:
        name = f"{where}.{field.name}"
        index = array.type.get_field_index(field.name)
        if index < 0:
            column = pa.nulls(len(array), field.type)
        else:
            column = _array(array.field(index), field.type, name)
        if not field.nullable:  # under a null struct there may be anything
            _check_nulls(column.filter(array.is_valid()), field, name)
        columns.append(column)
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=mask)


def _list(array: Any, kind: Any, where: str) -> pa.Array:
    if not pt.is_list(array.type):
        array = array.cast(pa.list_(pa.field("element", array.type.value_type)))
    values = _array(array.values, kind.value_type, f"{where}.element")
    if not kind.value_field.nullable:
        _check_nulls(array.flatten(), kind.value_field, f"{where}.element")
    return _with_children(array, kind, [values])


def _map(array: Any, kind: Any, where: str) -> pa.Array:
    fields = [kind.key_field, kind.item_field]
    both = zip(fields, (array.keys, array.items), strict=True)
    columns = [_array(column, field.type, f"{where}.{field.name}") for field, column in both]
    if not kind.item_field.nullable:
        _check_nulls(columns[1], kind.item_field, f"{where}.value")
    return _with_children(array, kind, [pa.StructArray.from_arrays(columns, fields=fields)])


_NESTED: dict[int, Callable[[Any, Any, str], pa.Array]] = {
    pa.struct([]).id: _struct,
    pa.list_(pa.null()).id: _list,
    pa.map_(pa.string(), pa.null()).id: _map,
}
"""What brings an array to a type of this kind, by Arrow's number of it."""


def _with_children(array: pa.Array, kind: pa.DataType, children: list[pa.Array]) -> pa.Array:
    """Give an array of lists or maps its own validity and offsets, and other values."""
    own = array.buffers()[:2]
    return pa.Array.from_buffers(kind, len(array), own, array.null_count, array.offset, children)


def _leaf_array(array: pa.Array, kind: pa.DataType, where: str) -> pa.Array:
    try:
        if pt.is_timestamp(array.type) and array.type.unit == "ns":
            # Spark has microseconds: the one that a time lies in, before 1970 as well.
            array = pc.floor_temporal(array, unit="microsecond")
        return array.cast(kind)
    except pa.ArrowInvalid:  # its message has the value
        raise ValueError(
            f"column {where}: a value of {array.type} that {kind} can't hold"
        ) from None

"""Project columns of a data file onto the table's current schema, by their field ids.

Spec, "Column Projection" and "Schema Evolution": a file keeps the names, the order and the types of
the schema with which it was written. A field is found by its id. A field that the file lacks has
the partition's value if the partition contains the column unchanged, or its initial default, or is
null.

pyiceberg's own projection turns null lists and maps of structs into empty ones, hence this module.
Its result has one schema for all files: pyiceberg's types, with 32 bits for offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import MappedField, NameMapping
from pyiceberg.types import (
    FixedType,
    IcebergType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
)

from modcrypt.errors import FormatError, LimitError
from modcrypt.iceberg.format.avro_rows import FIELD_ID

Convert = Callable[[pa.Array], pa.Array]

MAX_FILLED = 32 << 20
"""Maximum size in bytes of the values of columns that a file lacks, held at one time.

metadata.json defines their width: `fixed[2000000000]` takes 75 bytes there. Therefore rows are
returned in parts that share one array of each value.
"""

MAX_WIDTH = 256 << 10
"""Maximum size in bytes of a row's filled-in values, each counted once: parts have >= 128 rows.

Shorter parts would take more memory for their columns than for their values.
"""

WIDE = 1024
"""Width in bytes above which the number of filled-in values is limited too, in lists and maps."""

Filled = dict[tuple[pa.DataType, str], pa.Array]
"""Arrays of one repeated value, by type and text of the value, shared by all batches of a scan."""


Values = Mapping[int, pa.DataType]  # types of values that a table stores as cells, by field id


def arrow_schema(schema: Schema, values: Values = MappingProxyType({})) -> pa.Schema:
    """Return the Arrow schema of a table's rows."""
    return pa.schema([_arrow_field(field, values) for field in schema.fields])


def arrow_type(kind: IcebergType, values: Values = MappingProxyType({})) -> pa.DataType:
    """Return the Arrow type of a table's values; raise LimitError if wider than `MAX_FILLED`."""
    if isinstance(kind, FixedType) and len(kind) > MAX_FILLED:
        limit = f"a value exceeds {MAX_FILLED:,} bytes"
        raise LimitError(f"columns of {kind} are not supported: {limit}")
    if isinstance(kind, StructType):
        return pa.struct([_arrow_field(field, values) for field in kind.fields])
    if isinstance(kind, ListType):
        return pa.list_(_arrow_field(kind.element_field))
    if isinstance(kind, MapType):
        return pa.map_(_arrow_field(kind.key_field), _arrow_field(kind.value_field))
    arrow = schema_to_pyarrow(kind, include_field_ids=False)
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(arrow, arrow)


def _arrow_field(field: NestedField, values: Values = MappingProxyType({})) -> pa.Field:
    if (kind := values.get(field.field_id)) is not None:  # an erased value is null
        return pa.field(field.name, kind)
    return pa.field(field.name, arrow_type(field.field_type, values), nullable=field.optional)


def field_id(field: pa.Field) -> int | None:
    """Return the id of a file's field, or None."""
    text = (field.metadata or {}).get(FIELD_ID, b"")
    return int(text) if text.isdigit() and len(text) < 11 else None


def leaf_types(field: pa.Field) -> Iterator[tuple[int, pa.DataType]]:
    """Yield the ids and types of a file's field, or of those in it if it is a struct."""
    if pa.types.is_struct(field.type):
        for part in field.type:
            yield from leaf_types(part)
    elif (id_ := field_id(field)) is not None:
        yield id_, field.type


def with_field_ids(schema: pa.Schema, mapping: NameMapping | None, name: str) -> pa.Schema:
    """Return the schema of a file with field ids: its own, or those of the name mapping.

    Spec, "Column Projection": fields that the mapping does not have are not read.
    """
    if any(field_id(field) is not None for field in schema):
        return schema
    if mapping is None:
        raise FormatError(f"{name}: its fields have no ids, and the table has no name mapping")
    return pa.schema([_with_mapped_ids(field, field.name, mapping.root) for field in schema])


def _with_mapped_ids(field: pa.Field, name: str, known: Iterable[MappedField]) -> pa.Field:
    if (found := next((each for each in known if name in each.names), None)) is None:
        return field
    types = pa.types

    def with_id(child: pa.Field, at: int) -> pa.Field:
        inner = child.name
        if not types.is_struct(field.type):
            inner = ("key", "value")[at] if types.is_map(field.type) else "element"
        return _with_mapped_ids(child, inner, found.fields)

    kind = change_children(field.type, with_id)
    metadata = None if found.field_id is None else {FIELD_ID: str(found.field_id)}
    return pa.field(field.name, kind, field.nullable, metadata)


def change_children(kind: pa.DataType, change: Callable[[pa.Field, int], pa.Field]) -> pa.DataType:
    """Return a type with each field in it changed; the function also gets the field's number."""
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([change(child, at) for at, child in enumerate(kind.fields)])
    if types.is_map(kind):
        return pa.map_(change(kind.key_field, 0), change(kind.item_field, 1))
    if types.is_fixed_size_list(kind):
        return pa.list_(change(kind.value_field, 0), kind.list_size)
    if types.is_large_list(kind):
        return pa.large_list(change(kind.value_field, 0))
    return pa.list_(change(kind.value_field, 0)) if types.is_list(kind) else kind


class Projection:
    """A projection of the rows of one file onto the schema of a table.

    `constants` has values of fields that the file may lack, by their ids. Columns that it lacks are
    in `filled`, which projections share. `values` is as for `arrow_schema`. Raise FormatError if a
    field of the file has a type that its column never had, or a required field is missing; and
    LimitError if the columns that the file lacks are wider than `MAX_WIDTH`.
    """

    def __init__(
        self, schema: pa.Schema, wanted: Schema, constants: Mapping[int, Any], name: str,
        filled: Filled | None = None, values: Values = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self._constants, self._name = constants, name
        self._filled: Filled = {} if filled is None else filled
        self._widths: dict[tuple[pa.DataType, str], int] = {}
        self.schema = arrow_schema(wanted, values)
        self._columns = [
            (None if number is None else schema.field(number).name, convert)
            for number, convert in self._find_fields(wanted.fields, list(schema), self.schema)
        ]

    @property
    def columns(self) -> list[str]:
        """Names of the needed columns of the file."""
        return [name for name, _ in self._columns if name is not None]

    @property
    def at_once(self) -> int:
        """Number of rows that may be returned at once."""
        return MAX_FILLED // max(1, sum(self._widths.values()))

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of the table."""
        arrays = [
            convert(batch.num_rows) if name is None else convert(batch.column(name))
            for name, convert in self._columns
        ]
        if not arrays:  # RecordBatch would lose the number of rows
            return batch.select([])
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _find_fields(
        self, wanted: Iterable[NestedField], source: Sequence[pa.Field], shown: Iterable[pa.Field]
    ) -> Iterator[tuple[int | None, Callable[..., pa.Array]]]:
        """Yield the number of each wanted field in the source, and the function that converts it.

        The number is None for a field that the source lacks; the function then fills it in.
        """
        numbers = {field_id(field): number for number, field in enumerate(source)}
        for field, result in zip(wanted, shown, strict=True):
            if (number := numbers.get(field.field_id)) is None:
                yield None, self._constant(field, result.type)
            else:
                yield number, self._converter(field.field_type, source[number], result.type)

    def _converter(self, wanted: IcebergType, source: pa.Field, shown: pa.DataType) -> Convert:
        if isinstance(wanted, StructType) and pa.types.is_struct(source.type):
            return self._struct(wanted, source.type, shown)
        if isinstance(wanted, ListType) and any(test(source.type) for test in _LISTS):
            return self._list(wanted, source.type, shown)
        if isinstance(wanted, MapType) and pa.types.is_map(source.type):
            return self._map(wanted, source.type, shown)
        if isinstance(wanted, PrimitiveType):
            return self._primitive(source, shown)
        raise self._type_mismatch(source)

    def _struct(self, wanted: StructType, source: pa.DataType, shown: pa.DataType) -> Convert:
        shown_fields = list(shown)
        parts = list(self._find_fields(wanted.fields, list(source), shown_fields))

        def convert_structs(array: pa.Array) -> pa.Array:
            if not parts:  # StructArray would lose the number of values
                valid = _align(array.is_valid())
                return pa.Array.from_buffers(shown, len(array), valid.buffers()[1:])
            arrays = [
                convert(len(array)) if number is None else convert(array.field(number))
                for number, convert in parts
            ]
            return pa.StructArray.from_arrays(arrays, fields=shown_fields, mask=_null_mask(array))

        return convert_structs

    def _list(self, wanted: ListType, source: pa.DataType, shown: pa.DataType) -> Convert:
        self._check_id(source.value_field, wanted.element_id)
        convert = self._converter(wanted.element_type, source.value_field, shown.value_type)
        plain = pa.list_(source.value_field)

        def convert_lists(array: pa.Array) -> pa.Array:
            array = _align(array if array.type == plain else array.cast(plain))
            items, mask = convert(array.values), _null_mask(array)
            return pa.ListArray.from_arrays(array.offsets, items, type=shown, mask=mask)

        return convert_lists

    def _map(self, wanted: MapType, source: pa.DataType, shown: pa.DataType) -> Convert:
        self._check_id(source.key_field, wanted.key_id)
        self._check_id(source.item_field, wanted.value_id)
        key = self._converter(wanted.key_type, source.key_field, shown.key_type)
        item = self._converter(wanted.value_type, source.item_field, shown.item_type)

        def convert_maps(array: pa.Array) -> pa.Array:
            array = _align(array)
            keys, items, mask = key(array.keys), item(array.items), _null_mask(array)
            return pa.MapArray.from_arrays(array.offsets, keys, items, type=shown, mask=mask)

        return convert_maps

    def _primitive(self, source: pa.Field, shown: pa.DataType) -> Convert:
        if source.type == shown:
            return lambda array: array
        stored = source.type
        if not _can_become(_storage_type(stored), _storage_type(shown)):
            raise self._type_mismatch(source)
        finer = pa.types.is_timestamp(stored) and (stored.unit, shown.unit) == ("ns", "us")

        def convert_values(array: pa.Array) -> pa.Array:
            if isinstance(array, pa.ExtensionArray):
                array = array.storage
            if isinstance(shown, pa.BaseExtensionType):
                return pa.ExtensionArray.from_storage(shown, array.cast(shown.storage_type))
            if finer:  # a cast would round times before 1970 up, into another partition
                array = pc.floor_temporal(array, unit="microsecond")
            return array.cast(shown)

        return convert_values

    def _constant(self, field: NestedField, shown: pa.DataType) -> Callable[[int], pa.Array]:
        """Return a function that fills in a field that the file lacks, for a number of rows."""
        value = self._constants.get(field.field_id, field.initial_default)
        if value is None and field.required:
            raise FormatError(f"{self._name}: a required column is not in the file")
        width = _null_width(shown) if value is None else _width(value)
        key = shown, repr(value)  # repr distinguishes 0.0 from -0.0
        self._widths[key] = width
        if sum(self._widths.values()) > MAX_WIDTH:
            raise self._too_wide(MAX_WIDTH)
        if field.field_id in self._constants:  # differs between partitions
            return lambda count: _repeat(value, shown, count)

        def fill(count: int) -> pa.Array:
            if width > WIDE and width * count > MAX_FILLED:
                raise self._too_wide(MAX_FILLED)
            if (known := self._filled.get(key)) is None or len(known) < count:
                known = self._filled[key] = _repeat(value, shown, count)
            return known.slice(0, count)

        return fill

    def _too_wide(self, limit: int) -> LimitError:
        return LimitError(
            f"{self._name}: the columns that the table has and this file lacks would take more "
            f"than {limit:,} bytes: pass columns without the wide ones"
        )

    def _check_id(self, field: pa.Field, wanted: int) -> None:
        if field_id(field) not in (None, wanted):
            raise self._type_mismatch(field)

    def _type_mismatch(self, source: pa.Field) -> FormatError:
        return FormatError(
            f"{self._name}: field {field_id(source)} of the file has the type {source.type}, which "
            "its column never had"
        )


def _repeat(value: Any, shown: pa.DataType, count: int) -> pa.Array:
    if value is None:
        return pa.nulls(count, shown)
    storage = _storage_type(shown)
    values = pa.repeat(pa.scalar(value, storage), count)
    return values if storage == shown else pa.ExtensionArray.from_storage(shown, values)


def _null_width(kind: pa.DataType) -> int:
    """Return the size of a null in bytes."""
    kind = _storage_type(kind)
    if pa.types.is_struct(kind):
        return sum(_null_width(field.type) for field in kind)
    return kind.byte_width if pa.types.is_fixed_size_binary(kind) else _SLOT


def _width(value: Any) -> int:
    """Return the size of a value in bytes."""
    if isinstance(value, str):
        return len(value.encode()) + _SLOT
    return len(value) + _SLOT if isinstance(value, bytes) else _SLOT


_SLOT = 16  # size in bytes of the widest number, or of the offsets of a text


def _align(array: pa.Array) -> pa.Array:
    """Return an array that begins where its buffers begin, because offsets are used directly."""
    return pa.concat_arrays([array]) if array.offset else array


def _null_mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _storage_type(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    return kind.value_type if pa.types.is_dictionary(kind) else kind


_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)

_BYTES: Sequence[Callable[[pa.DataType], bool]] = (
    pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary,
    pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view,
    pa.types.is_binary_view,
)  # fmt: skip

_UTC = ("UTC", "+00:00", "Etc/UTC", "Z")


def _can_become(stored: pa.DataType, shown: pa.DataType) -> bool:
    """Return whether a column of one type may have another type in an older file, or in Arrow."""
    # Spec, "Schema Evolution": int to long, float to double, decimals to more digits of the same
    # scale, date to timestamp, and unknown to anything.
    types: Any = pa.types
    if stored == shown or types.is_null(stored):
        return True
    for is_number in (types.is_integer, types.is_floating):
        if is_number(shown):
            return bool(is_number(stored) and stored.bit_width <= shown.bit_width)
    if types.is_decimal(shown):
        fits = types.is_decimal(stored) and stored.precision <= shown.precision
        return bool(fits and stored.scale == shown.scale)
    if types.is_timestamp(shown):
        if types.is_timestamp(stored):  # timestamps without a zone by older writers are in UTC
            return shown.tz is not None or stored.tz in (None, *_UTC)
        return bool(types.is_date(stored) and shown.tz is None)
    if types.is_time(shown):
        return bool(types.is_time(stored))
    if types.is_fixed_size_binary(shown):
        return bool(types.is_fixed_size_binary(stored) and stored.byte_width == shown.byte_width)
    return all(any(test(kind) for test in _BYTES) for kind in (stored, shown))

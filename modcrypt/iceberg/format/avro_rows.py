"""Convert rows of Avro data files to Arrow columns that carry the field ids of the file's schema.

Spec, "Appendix A: Format-specific Requirements, Avro": ids are in `field-id`, `element-id`,
`key-id` and `value-id`; a map whose keys are not strings is an array of pairs with the logical
type `map`; an optional value is a union with null. `avro_files` returns values without logical
types; this module applies them.
"""

from __future__ import annotations

import decimal
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from modcrypt.errors import FormatError, UnsupportedFormatError
from modcrypt.iceberg.format.avro_schemas import AvroType

FIELD_ID = b"PARQUET:field_id"  # key under which PyArrow stores a field's id

Convert = Callable[[Sequence[Any]], pa.Array]
ConvertRows = Callable[[Sequence[dict[str, Any]]], pa.RecordBatch]

_PLAIN = {
    "null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(),
    "float": pa.float32(), "double": pa.float64(), "bytes": pa.binary(), "string": pa.string(),
}  # fmt: skip
_TIMES = {
    ("int", "date"): pa.date32(),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms"),
    ("long", "timestamp-micros"): pa.timestamp("us"),
    ("long", "timestamp-nanos"): pa.timestamp("ns"),
}
_EXACT = decimal.Context(prec=80)  # more digits than any decimal here has


def plan_columns(row: AvroType, name: str) -> tuple[pa.Schema, ConvertRows]:
    """Return a schema with field ids, and a function that converts rows to a batch of its columns.

    Raise FormatError if the file has no field ids, and UnsupportedFormatError if the file has a
    type that Iceberg does not have.
    """
    kind, convert = _Converters(name).find(row)
    arrow_schema = pa.schema(list(kind))

    def convert_rows(rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
        return pa.RecordBatch.from_struct_array(convert(rows)).cast(arrow_schema)

    return arrow_schema, convert_rows


class _Converters:
    def __init__(self, name: str) -> None:
        self._name = name

    def find(self, avro: AvroType) -> tuple[pa.DataType, Convert]:
        """Return the Arrow type of an Avro type, and a function that converts its values."""
        schema = avro.source
        if isinstance(schema, list):
            return self._unwrap_optional(avro)
        if isinstance(schema, str):
            schema = {"type": schema}
        kind, logical = schema["type"], schema.get("logicalType")
        match kind:
            case "record":
                return self._record(avro)
            case "array" if logical == "map":
                return self._pairs(avro)
            case "array":
                return self._array(avro)
            case "map":
                return self._map(avro)
            case "fixed" | "bytes" | "string":
                return self._text(schema, kind, logical)
            case "enum":
                return pa.string(), _make_converter(pa.string())
            case str() if (kind, logical) in _TIMES:
                return self._time(schema, kind, logical)
        return _PLAIN[kind], _make_converter(_PLAIN[kind])

    def _unwrap_optional(self, union: AvroType) -> tuple[pa.DataType, Convert]:
        others = [branch for branch in union.parts if branch.source != "null"]
        if len(others) != 1 or len(union.parts) > 2:
            raise UnsupportedFormatError(
                f"{self._name}: unions of several types are not supported: Iceberg has none"
            )
        return self.find(others[0])  # every converter accepts nulls

    def _record(self, record: AvroType) -> tuple[pa.DataType, Convert]:
        fields, converts = [], []
        for member, part in zip(record.source["fields"], record.parts, strict=True):
            kind, convert = self.find(part)
            fields.append(self._field(member["name"], kind, member.get("field-id")))
            converts.append((member["name"], convert))
        plain = [pa.field(field.name, field.type) for field in fields]

        def make_structs(values: Sequence[Any]) -> pa.Array:
            parts = [
                convert([None if row is None else row[name] for row in values])
                for name, convert in converts
            ]
            return pa.StructArray.from_arrays(parts, fields=plain, mask=_null_mask(values))

        return pa.struct(fields), make_structs

    def _array(self, array: AvroType) -> tuple[pa.DataType, Convert]:
        kind, convert = self.find(array.parts[0])
        element = self._field("element", kind, array.source.get("element-id"))

        def make_lists(values: Sequence[Any]) -> pa.Array:
            items = convert([item for value in values for item in value or ()])
            return pa.ListArray.from_arrays(_offsets(values), items, mask=_null_mask(values))

        return pa.list_(element), make_lists

    def _map(self, avro: AvroType) -> tuple[pa.DataType, Convert]:
        schema, (kind, convert) = avro.source, self.find(avro.parts[0])
        key = self._field("key", pa.string(), schema.get("key-id")).with_nullable(False)
        value = self._field("value", kind, schema.get("value-id"))

        def make_maps(values: Sequence[Any]) -> pa.Array:
            keys = pa.array([item for value_map in values for item in value_map or ()], pa.string())
            items = convert([item for value_map in values for item in (value_map or {}).values()])
            return _make_maps(values, keys, items)

        return pa.map_(key, value), make_maps

    def _pairs(self, avro: AvroType) -> tuple[pa.DataType, Convert]:
        record = avro.parts[0]
        is_record = isinstance(record.source, dict) and record.source["type"] == "record"
        ends = record.source["fields"] if is_record else []
        if [end["name"] for end in ends] != ["key", "value"]:
            raise FormatError(f"{self._name}: a map in the Avro file lacks keys or values")
        (key_kind, key_of), (value_kind, value_of) = map(self.find, record.parts)
        key = self._field("key", key_kind, ends[0].get("field-id")).with_nullable(False)
        value = self._field("value", value_kind, ends[1].get("field-id"))

        def make_maps(values: Sequence[Any]) -> pa.Array:
            keys = key_of([pair["key"] for pairs in values for pair in pairs or ()])
            items = value_of([pair["value"] for pairs in values for pair in pairs or ()])
            return _make_maps(values, keys, items)

        return pa.map_(key, value), make_maps

    def _text(
        self, schema: dict[str, Any], kind: str, logical: str | None
    ) -> tuple[pa.DataType, Convert]:
        if logical == "decimal" and kind != "string":
            return self._decimal(schema)
        if logical == "uuid" and kind == "string":
            return pa.binary(16), _make_uuids
        arrow_type = pa.binary(schema["size"]) if kind == "fixed" else _PLAIN[kind]
        return arrow_type, _make_converter(arrow_type)

    def _decimal(self, schema: dict[str, Any]) -> tuple[pa.DataType, Convert]:
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if type(precision) is not int or type(scale) is not int or not 0 < precision <= 38:
            raise FormatError(
                f"{self._name}: a decimal in the Avro file has an invalid precision or scale"
            )
        kind = pa.decimal128(precision, scale)

        def make_decimals(values: Sequence[bytes | None]) -> pa.Array:
            return pa.array([v if v is None else read_decimal(v, scale) for v in values], kind)

        return kind, make_decimals

    def _time(self, schema: dict[str, Any], kind: str, logical: Any) -> tuple[pa.DataType, Convert]:
        arrow_type = _TIMES[kind, logical]
        if pa.types.is_timestamp(arrow_type) and schema.get("adjust-to-utc") is True:
            arrow_type = pa.timestamp(arrow_type.unit, "UTC")
        whole = _PLAIN[kind]
        return arrow_type, lambda values: pa.array(values, whole).cast(arrow_type)

    def _field(self, name: str, kind: pa.DataType, field_id: Any) -> pa.Field:
        if type(field_id) is not int:
            raise FormatError(f"{self._name}: fields of the Avro file have no ids")
        return pa.field(name, kind, metadata={FIELD_ID: str(field_id)})


def _make_converter(kind: pa.DataType) -> Convert:
    return lambda values: pa.array(values, kind)


def _null_mask(values: Sequence[Any]) -> pa.Array:
    return pa.array([value is None for value in values], pa.bool_())


def _offsets(values: Sequence[Any]) -> pa.Array:
    reached, offsets = 0, [0]
    for value in values:
        reached += len(value or ())
        offsets.append(reached)
    return pa.array(offsets, pa.int32())


def _make_maps(values: Sequence[Any], keys: pa.Array, items: pa.Array) -> pa.Array:
    return pa.MapArray.from_arrays(_offsets(values), keys, items, mask=_null_mask(values))


def read_decimal(value: bytes, scale: int) -> decimal.Decimal:
    """Return the number that Avro stores as bytes."""
    unscaled = decimal.Decimal(int.from_bytes(value, "big", signed=True))
    return unscaled.scaleb(-scale, _EXACT)


def _make_uuids(values: Sequence[str | None]) -> pa.Array:
    return pa.array([v if v is None else uuid.UUID(v).bytes for v in values], pa.binary(16))

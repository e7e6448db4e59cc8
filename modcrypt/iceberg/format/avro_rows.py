"""Rows of Avro data files as Arrow: columns that carry the field ids of the file's schema.

Spec, "Appendix A: Format-specific Requirements, Avro": ids are in `field-id`, `element-id`,
`key-id` and `value-id`; a map whose keys are no strings is an array of pairs with the logical type
`map`; an optional value is a union with null. Values come without logical types, as `avro_files`
gives them, and become what their logical type says here.
"""

from __future__ import annotations

import decimal
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from modcrypt.errors import FormatError, UnsupportedFormatError

__all__ = ["ColumnsOf", "columns_of"]

FIELD_ID = b"PARQUET:field_id"
"""By which pyarrow keeps a field's id."""

Convert = Callable[[Sequence[Any]], pa.Array]

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


@dataclass(frozen=True, slots=True)
class ColumnsOf:
    """Makes columns of rows.

    Attributes:
        schema: of the columns, with field ids.
        convert: of rows.
    """

    schema: pa.Schema
    convert: Callable[[Sequence[dict[str, Any]]], pa.RecordBatch]


def columns_of(schema: dict[str, Any], name: str) -> ColumnsOf:
    """Give what makes columns of a data file's rows.

    Args:
        schema: of the Avro file, checked already (`avro_files`).
        name: of the file, for messages.

    Raises:
        FormatError: it has no field ids.
        UnsupportedFormatError: a type that Iceberg does not have.
    """
    kind, convert = _Types(name).of(schema, "")
    found = pa.schema(list(kind))

    def batch(rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
        return pa.RecordBatch.from_struct_array(convert(rows)).cast(found)

    return ColumnsOf(found, batch)


class _Types:
    def __init__(self, name: str) -> None:
        self._name = name
        self._known: dict[str, tuple[dict[str, Any], str]] = {}

    def of(self, schema: Any, space: str) -> tuple[pa.DataType, Convert]:
        """Give the Arrow type of an Avro type, and what makes an array of its values."""
        if isinstance(schema, str):
            if schema in _PLAIN:
                return _PLAIN[schema], _plain(_PLAIN[schema])
            known, around = self._known[schema if "." in schema else f"{space}.{schema}"]
            return self.of(known, around)
        if isinstance(schema, list):
            return self._optional(schema, space)
        kind, logical = schema["type"], schema.get("logicalType")
        self._note(schema, space)
        match kind:
            case "record":
                return self._record(schema, _space(schema, space))
            case "array" if logical == "map":
                return self._pairs(schema, space)
            case "array":
                return self._array(schema, space)
            case "map":
                return self._map(schema, space)
            case "fixed" | "bytes" | "string":
                return self._text(schema, kind, logical)
            case "enum":
                return pa.string(), _plain(pa.string())
            case str() if (kind, logical) in _TIMES:
                return self._time(schema, kind, logical)
        return self.of(kind, space)

    def _note(self, schema: dict[str, Any], space: str) -> None:
        if "name" in schema:
            name = str(schema["name"]).rpartition(".")[2]
            self._known[f"{_space(schema, space)}.{name}"] = schema, space

    def _optional(self, union: list[Any], space: str) -> tuple[pa.DataType, Convert]:
        others = [one for one in union if one != "null"]
        if len(others) != 1 or len(union) > 2:
            raise UnsupportedFormatError(f"{self._name}: a union of types, which Iceberg lacks")
        return self.of(others[0], space)  # nulls are let through everywhere

    def _record(self, schema: dict[str, Any], space: str) -> tuple[pa.DataType, Convert]:
        fields, converts = [], []
        for one in schema["fields"]:
            kind, convert = self.of(one["type"], space)
            fields.append(self._field(one["name"], kind, one.get("field-id")))
            converts.append((one["name"], convert))
        plain = [pa.field(one.name, one.type) for one in fields]

        def structs(values: Sequence[Any]) -> pa.Array:
            parts = [
                convert([None if row is None else row[name] for row in values])
                for name, convert in converts
            ]
            return pa.StructArray.from_arrays(parts, fields=plain, mask=_nulls(values))

        return pa.struct(fields), structs

    def _array(self, schema: dict[str, Any], space: str) -> tuple[pa.DataType, Convert]:
        kind, convert = self.of(schema["items"], space)
        element = self._field("element", kind, schema.get("element-id"))

        def lists(values: Sequence[Any]) -> pa.Array:
            items = convert([item for one in values for item in one or ()])
            return pa.ListArray.from_arrays(_offsets(values), items, mask=_nulls(values))

        return pa.list_(element), lists

    def _map(self, schema: dict[str, Any], space: str) -> tuple[pa.DataType, Convert]:
        kind, convert = self.of(schema["values"], space)
        key = self._field("key", pa.string(), schema.get("key-id")).with_nullable(False)
        value = self._field("value", kind, schema.get("value-id"))

        def maps(values: Sequence[Any]) -> pa.Array:
            keys = pa.array([item for one in values for item in one or ()], pa.string())
            items = convert([item for one in values for item in (one or {}).values()])
            return _maps(values, keys, items)

        return pa.map_(key, value), maps

    def _pairs(self, schema: dict[str, Any], space: str) -> tuple[pa.DataType, Convert]:
        record = self._resolved(schema["items"], space)
        ends = record["fields"] if record is not None else []
        if [one["name"] for one in ends] != ["key", "value"]:
            raise FormatError(f"{self._name}: a map in an Avro file without keys and values")
        inner = _space(record, space) if record is not None else space
        (key_kind, key_of), (value_kind, value_of) = (self.of(one["type"], inner) for one in ends)
        key = self._field("key", key_kind, ends[0].get("field-id")).with_nullable(False)
        value = self._field("value", value_kind, ends[1].get("field-id"))

        def maps(values: Sequence[Any]) -> pa.Array:
            keys = key_of([pair["key"] for one in values for pair in one or ()])
            items = value_of([pair["value"] for one in values for pair in one or ()])
            return _maps(values, keys, items)

        return pa.map_(key, value), maps

    def _resolved(self, schema: Any, space: str) -> dict[str, Any] | None:
        """Give a record by its definition or its name."""
        if isinstance(schema, str):
            schema = self._known.get(schema if "." in schema else f"{space}.{schema}", (None,))[0]
        is_record = isinstance(schema, dict) and schema.get("type") == "record"
        return schema if is_record else None

    def _text(
        self, schema: dict[str, Any], kind: str, logical: str | None
    ) -> tuple[pa.DataType, Convert]:
        if logical == "decimal" and kind != "string":
            return self._decimal(schema)
        if logical == "uuid" and kind == "string":
            return pa.binary(16), lambda values: pa.array(map(_uuid, values), pa.binary(16))
        found = pa.binary(schema["size"]) if kind == "fixed" else _PLAIN[kind]
        return found, _plain(found)

    def _decimal(self, schema: dict[str, Any]) -> tuple[pa.DataType, Convert]:
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if type(precision) is not int or type(scale) is not int or not 0 < precision <= 38:
            raise FormatError(f"{self._name}: a decimal in an Avro file that is none")
        kind = pa.decimal128(precision, scale)

        def decimals(values: Sequence[bytes | None]) -> pa.Array:
            return pa.array([_decimal(one, scale) for one in values], kind)

        return kind, decimals

    def _time(self, schema: dict[str, Any], kind: str, logical: Any) -> tuple[pa.DataType, Convert]:
        found = _TIMES[kind, logical]
        if pa.types.is_timestamp(found) and schema.get("adjust-to-utc") is True:
            found = pa.timestamp(found.unit, "UTC")
        whole = _PLAIN[kind]
        return found, lambda values: pa.array(values, whole).cast(found)

    def _field(self, name: str, kind: pa.DataType, field_id: Any) -> pa.Field:
        if type(field_id) is not int:
            raise FormatError(f"{self._name}: an Avro file whose fields have no ids")
        return pa.field(name, kind, metadata={FIELD_ID: str(field_id)})


def _plain(kind: pa.DataType) -> Convert:
    return lambda values: pa.array(values, kind)


def _space(schema: dict[str, Any], around: str) -> str:
    before = str(schema.get("name")).rpartition(".")[0]
    return before or str(schema.get("namespace", around))


def _nulls(values: Sequence[Any]) -> pa.Array:
    return pa.array([one is None for one in values], pa.bool_())


def _offsets(values: Sequence[Any]) -> pa.Array:
    reached, found = 0, [0]
    for one in values:
        reached += len(one or ())
        found.append(reached)
    return pa.array(found, pa.int32())


def _maps(values: Sequence[Any], keys: pa.Array, items: pa.Array) -> pa.Array:
    return pa.MapArray.from_arrays(_offsets(values), keys, items, mask=_nulls(values))


def _decimal(value: bytes | None, scale: int) -> decimal.Decimal | None:
    if value is None:
        return None
    unscaled = decimal.Decimal(int.from_bytes(value, "big", signed=True))
    return unscaled.scaleb(-scale, _EXACT)


def _uuid(value: str | None) -> bytes | None:
    return None if value is None else uuid.UUID(value).bytes

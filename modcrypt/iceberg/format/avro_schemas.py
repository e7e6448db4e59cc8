"""Check the schemas of Avro files before rows are decoded by them.

A checked schema is kept: thousands of manifests have the same one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from modcrypt.errors import FormatError, LimitError

MAX_DEPTH = 64
"""Maximum nesting of types in a schema, and of the JSON that describes it."""

MAX_EMPTY, MAX_PER_BYTE = 256, 16
"""Maximum number of values that a record may have in addition to, and per, its minimum bytes.

Without these limits, records that contain others twice could turn one byte into 2^64 values.
Items of arrays and maps may not have any values without bytes.
"""

MAX_KEPT, MAX_KEPT_SIZE = 64, 64 << 10
"""Maximum number of checked schemas that are kept, and maximum size in bytes of each."""

_LEAST = {
    "null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1
}  # fmt: skip


class AvroType(NamedTuple):
    """A type of a schema that was checked."""

    source: Any  # its definition in the file; a text for a primitive type
    parts: tuple[AvroType, ...]  # types of its fields, items, values or branches, in order
    schema: Any  # the type without logical types and without the names in the file
    least: int  # minimum number of bytes of a value
    values: int = 1  # number of values in it, including those of its fields


class CheckedSchema(NamedTuple):
    """The schema of an Avro file that was checked."""

    text: bytes  # the schema as the file contains it
    parsed: dict[str, Any]  # the same as parsed JSON; shared by files, so nobody may change it
    row: AvroType  # the type of the rows
    found: dict[Any, Any]  # a cache of what readers of manifests find in the schema


_KEPT: dict[bytes, CheckedSchema] = {}


def check_schema(text: bytes, name: str) -> CheckedSchema:
    """Return the schema of an Avro file.

    Raise FormatError if it is malformed or not of records, and LimitError if a few bytes of rows
    could stand for any number of values.
    """
    if (kept := _KEPT.get(text)) is not None:
        return kept
    parsed = _parse_schema(text, name)
    row = _Types(name).simplify(parsed)
    if not row.least:
        raise LimitError(f"{name}: rows of the Avro file take no bytes")
    checked = CheckedSchema(text, parsed, row._replace(schema=_prepare(row.schema, name)), {})
    if len(text) <= MAX_KEPT_SIZE:
        if len(_KEPT) >= MAX_KEPT:
            _KEPT.clear()
        _KEPT[text] = checked
    return checked


def _prepare(schema: Any, name: str) -> Any:
    """Return a schema in the form that fastavro need not prepare again for each block."""
    import fastavro

    try:
        return fastavro.parse_schema(schema)
    except Exception as error:  # fastavro passes on any error
        kind = type(error).__name__
        raise FormatError(f"{name}: the schema of the Avro file is malformed ({kind})") from None


def _parse_schema(data: bytes, name: str) -> dict[str, Any]:
    try:
        schema = json.loads(data)
    except (ValueError, RecursionError):
        schema = None
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise FormatError(f"{name}: rows of the Avro file are not records")
    return schema


class _Types:
    """A checker of schemas that also removes logical types and the names of types.

    A type that contains itself would let a few bytes nest arbitrarily deep, and items of zero bytes
    would let a few bytes stand for any number of values.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._known: dict[str, AvroType] = {}  # types defined so far, by their names in the file

    def simplify(self, schema: Any, space: str = "", depth: int = 0) -> AvroType:
        """Return a checked type, which is within a namespace, and nested in `depth` others."""
        if depth > MAX_DEPTH:
            limit = f"the Avro schema is nested deeper than {MAX_DEPTH} levels"
            raise LimitError(f"{self._name}: {limit}")
        if isinstance(schema, str):
            return self._look_up(schema, space)
        if isinstance(schema, list):
            branches = tuple(self.simplify(branch, space, depth + 1) for branch in schema)
            most = max((branch.values for branch in branches), default=1)
            return AvroType(schema, branches, [branch.schema for branch in branches], 1, most)
        kind = schema.get("type") if isinstance(schema, dict) else None
        match kind:
            case "record":
                return self._simplify_record(schema, space, depth)
            case "array":
                items = self.simplify(schema.get("items"), space, depth + 1)
                self._check_values(items.values, items.least, 0)
                return AvroType(schema, (items,), {"type": "array", "items": items.schema}, 1)
            case "map":
                values = self.simplify(schema.get("values"), space, depth + 1)
                self._check_values(values.values, 1 + values.least, 0)  # a key takes a byte
                return AvroType(schema, (values,), {"type": "map", "values": values.schema}, 1)
            case "fixed":
                size = schema.get("size")
                if type(size) is not int or size < 0:
                    raise self._schema_error()
                return self._define(schema, (), space, {"type": "fixed", "size": size}, size)
            case "enum":
                symbols = schema.get("symbols")
                return self._define(schema, (), space, {"type": "enum", "symbols": symbols}, 1)
            case None:
                raise self._schema_error()
        plain = self.simplify(kind, space, depth + 1)  # with members, such as a logical type
        return plain._replace(source=schema) if isinstance(plain.source, str) else plain

    def _simplify_record(self, schema: dict[str, Any], space: str, depth: int) -> AvroType:
        fields = schema.get("fields")
        if not isinstance(fields, list):
            raise self._schema_error()
        inner, members, least, values = _space(schema, space), [], 0, 1
        parts: list[AvroType] = []
        for field_ in fields:
            if not isinstance(field_, dict) or not isinstance(field_.get("name"), str):
                raise self._schema_error()
            plain = self.simplify(field_.get("type"), inner, depth + 1)
            parts.append(plain)
            members.append({"name": field_["name"], "type": plain.schema})
            least, values = least + plain.least, values + plain.values
        self._check_values(values, least, MAX_EMPTY)
        # Register the record only when it is complete, so that it cannot contain itself.
        record = {"type": "record", "fields": members}
        return self._define(schema, tuple(parts), space, record, least, values)

    def _check_values(self, values: int, least: int, empty: int) -> None:
        if values > empty + MAX_PER_BYTE * least:
            limit = f"{least} bytes of the Avro file may stand for {values} values"
            raise LimitError(f"{self._name}: {limit}")

    def _define(
        self, schema: dict[str, Any], parts: tuple[AvroType, ...], space: str,
        plain: dict[str, Any], least: int, values: int = 1,
    ) -> AvroType:  # fmt: skip
        name = str(schema.get("name")).rpartition(".")[2]
        known = f"t{len(self._known)}"
        defined = AvroType(schema, parts, {**plain, "name": known}, least, values)
        self._known[f"{_space(schema, space)}.{name}"] = defined._replace(schema=known)
        return defined

    def _look_up(self, name: str, space: str) -> AvroType:
        if name in _LEAST:
            return AvroType(name, (), name, _LEAST[name])
        if (known := self._known.get(name if "." in name else f"{space}.{name}")) is None:
            raise self._schema_error()
        return known

    def _schema_error(self) -> FormatError:
        return FormatError(f"{self._name}: the schema of the Avro file is malformed")


def _space(schema: Mapping[str, Any], around: str) -> str:
    """Return the namespace of a named type, which nested types inherit."""
    before = str(schema.get("name")).rpartition(".")[0]
    return before or str(schema.get("namespace", around))

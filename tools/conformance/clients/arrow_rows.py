"""The rows of an Arrow table as tagged values, for clients whose reader returns Arrow data."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyarrow import types

Tagged = Callable[[Any], Any]


def tagged_rows(table: pa.Table) -> dict[str, Any]:
    """Return the fields of a `rows` result."""
    columns = [_tag_column(column) for column in table.columns]
    return {
        "columns": table.column_names,
        "rows": [list(row) for row in zip(*columns, strict=True)] if columns else [],
    }


def _tag_column(column: pa.ChunkedArray) -> list[Any]:
    kind = column.type
    if types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    tag = _or_null(_tagger(kind))
    return [tag(value) for value in _python_values(column)]


def _python_values(column: pa.ChunkedArray) -> list[Any]:
    """Return values; times as integers, which Python's own would round."""
    kind = column.type
    if types.is_timestamp(kind):
        column = column.cast(pa.int64())
    elif types.is_date32(kind):
        column = column.cast(pa.int32())
    elif types.is_string(kind) or types.is_large_string(kind):  # bytes that need not be UTF-8
        column = column.cast(pa.large_binary())
    elif types.is_string_view(kind):
        column = column.cast(pa.binary_view())
    values: list[Any] = column.to_pylist()
    return values


def _or_null(tag: Tagged) -> Tagged:
    return lambda value: None if value is None else tag(value)


def _tagger(kind: pa.DataType) -> Tagged:
    if types.is_boolean(kind):
        return lambda value: {"boolean": value}
    if types.is_integer(kind):
        return lambda value: {str(kind): str(value)}
    if types.is_floating(kind):
        name, code = ("float", ">f") if kind.bit_width == 32 else ("double", ">d")
        return lambda value: {name: struct.pack(code, value).hex()}
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return lambda value: {"string": (value.encode() if isinstance(value, str) else value).hex()}
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return lambda value: {"binary": value.hex()}
    return _other_tagger(kind)


def _other_tagger(kind: pa.DataType) -> Tagged:
    if types.is_date32(kind):
        return lambda value: {"date": str(value)}
    if types.is_timestamp(kind):
        name = f"timestamp[{kind.unit}{',UTC' if kind.tz else ''}]"
        return lambda value: {name: str(value)}
    if types.is_decimal(kind):
        name = f"decimal({kind.precision},{kind.scale})"
        return lambda value: {name: str(int(value.scaleb(kind.scale)))}
    if types.is_struct(kind):
        taggers = [(field.name, _or_null(_tagger(field.type))) for field in kind]
        return lambda value: {"struct": [[name, tag(value[name])] for name, tag in taggers]}
    if types.is_list(kind) or types.is_large_list(kind):
        element = _or_null(_tagger(kind.value_type))
        return lambda value: {"list": [element(item) for item in value]}
    raise NotImplementedError(f"no tag for {kind}")

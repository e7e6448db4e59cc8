"""Rows as text (lines of JSON, CSV) or as the bytes of an Arrow stream.

Values without a JSON type become text: dates and times in ISO 8601, decimals in digits, bytes in
base64, non-finite floats by name. A map becomes a list of objects with key and value.
"""

from __future__ import annotations

import base64
import io
import json
import math
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from modcrypt.cli.output.json_output import dump_line
from modcrypt.errors import FormatError

_is = pa.types
_LISTS = (
    _is.is_list, _is.is_large_list, _is.is_fixed_size_list, _is.is_list_view,
    _is.is_large_list_view,
)  # fmt: skip
_BYTES = (_is.is_binary, _is.is_large_binary, _is.is_fixed_size_binary, _is.is_binary_view)
_AS_TEXT = (_is.is_date, _is.is_time, _is.is_decimal)  # in the text form of Arrow


def validate_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches whose values fit their types, which PyArrow does not check when it reads.

    Raise FormatError if values are malformed, for example text that is not UTF-8.
    """
    for batch in batches:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                column.validate(full=True)
            except pa.ArrowInvalid:  # its message may hold values
                malformed = f"column {name}: malformed values, such as text that is not UTF-8"
            else:
                continue
            raise FormatError(malformed)
        yield batch


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Return the rows of a batch as values for JSON."""
    names, columns = batch.schema.names, map(_to_json_values, batch.columns)
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def _to_json_values(array: pa.Array) -> list[Any]:
    """Return values for JSON; nested values are walked, because Arrow cannot cast all of them."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _extension_values(array)
    if _is.is_dictionary(kind):
        return _to_json_values(array.dictionary_decode())
    if _is.is_struct(kind) and kind.num_fields == 0:
        return [{} if valid else None for valid in array.is_valid().to_pylist()]
    if _is.is_struct(kind):
        names = [field.name for field in kind]
        rows = zip(*map(_to_json_values, array.flatten()), strict=True)
        valid_flags = array.is_valid().to_pylist()
        structs = (dict(zip(names, row, strict=True)) for row in rows)
        return [
            struct if valid else None for struct, valid in zip(structs, valid_flags, strict=True)
        ]
    if _is.is_map(kind):
        fields = [kind.key_field.with_name("key"), kind.item_field.with_name("value")]
        return _list_values(
            array, pa.StructArray.from_arrays([array.keys, array.items], fields=fields)
        )
    if any(test(kind) for test in _LISTS):
        return _list_values(array, array.values)
    return _flat_values(array)


def _list_values(array: pa.Array, values: pa.Array) -> list[Any]:
    """Return lists of a child's values; PyArrow flattens no lists of some extension types."""
    starts, ends = _find_items(array)
    lists = list(zip(array.is_valid().to_pylist(), starts, ends, strict=True))
    low = min((start for valid, start, _ in lists if valid), default=0)
    high = max((end for valid, _, end in lists if valid), default=0)
    items = _to_json_values(values.slice(low, high - low))
    return [items[start - low : end - low] if valid else None for valid, start, end in lists]


def _find_items(array: pa.Array) -> tuple[list[int], list[int]]:
    """Return where the items of each list start and end among the child's values."""
    kind = array.type
    if _is.is_fixed_size_list(kind):
        first, size = array.offset, kind.list_size
        numbers = range(first, first + len(array))
        return [n * size for n in numbers], [(n + 1) * size for n in numbers]
    offsets = array.offsets.to_pylist()
    if _is.is_list_view(kind) or _is.is_large_list_view(kind):
        return offsets, [a + b for a, b in zip(offsets, array.sizes.to_pylist(), strict=True)]
    return offsets[:-1], offsets[1:]


def _extension_values(array: pa.Array) -> list[Any]:
    if array.type == pa.bool8():
        return list(array.storage.cast(pa.bool_()).to_pylist())
    if array.type.extension_name != "arrow.uuid":
        return _to_json_values(array.storage)
    return _map_values(array.storage.to_pylist(), lambda value: str(uuid.UUID(bytes=value)))


def _flat_values(array: pa.Array) -> list[Any]:
    kind = array.type
    if _is.is_timestamp(kind):
        if kind.tz is not None:  # an instant, whose zone may be unknown here
            array = array.cast(pa.timestamp(kind.unit, "UTC"))
        return list(pc.replace_substring(array.cast(pa.string()), " ", "T").to_pylist())
    if _is.is_duration(kind):
        unit = kind.unit
        return _map_values(
            array.cast(pa.int64()).to_pylist(), lambda value: _iso_duration(value, unit)
        )
    if any(test(kind) for test in _AS_TEXT):
        return list(array.cast(pa.string()).to_pylist())
    if any(test(kind) for test in _BYTES):
        return _map_values(array.to_pylist(), lambda value: base64.b64encode(value).decode())
    if _is.is_floating(kind):
        if not _is.is_float64(kind):  # via text: 0.1 must not become 0.10000000149011612
            array = array.cast(pa.float32()).cast(pa.string())
        return _map_values(array.to_pylist(), _number)
    return list(array.to_pylist())


def _map_values(values: list[Any], change: Callable[[Any], Any]) -> list[Any]:
    return [None if value is None else change(value) for value in values]


_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def _iso_duration(value: int, unit: str) -> str:
    digits = _DIGITS[unit]
    whole, rest = divmod(abs(value), 10**digits)
    fraction = f".{rest:0{digits}}" if digits else ""
    return f"{'-' * (value < 0)}PT{whole}{fraction}S"


def _number(value: float | str) -> float | str:
    number = float(value)
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def format_rows(
    form: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch], *, safe: bool = False
) -> Iterator[tuple[bytes, int]]:
    """Yield batches as `"jsonl"`, `"csv"` or `"arrow"`, piece by piece, with the rows in each.

    If `safe`, write text in CSV so that a spreadsheet runs none of it as a formula.
    """
    if form == "csv":
        return _csv_pieces(schema, batches, safe)
    return (_arrow_pieces if form == "arrow" else _json_lines)(schema, batches)


def _json_lines(
    schema: pa.Schema, batches: Iterator[pa.RecordBatch]
) -> Iterator[tuple[bytes, int]]:
    for batch in batches:
        lines = [dump_line(row) + "\n" for row in rows_of(batch)]
        yield "".join(lines).encode(), len(lines)


def _csv_pieces(
    schema: pa.Schema, batches: Iterator[pa.RecordBatch], safe: bool
) -> Iterator[tuple[bytes, int]]:
    from pyarrow import csv

    change = _defuse_formulas if safe else lambda column: column

    def encode(columns: list[pa.Array], header: bool) -> bytes:
        sink = io.BytesIO()
        table = pa.Table.from_arrays(columns, names)
        csv.write_csv(table, sink, csv.WriteOptions(include_header=header))
        return sink.getvalue()

    names = change(pa.array(schema.names, pa.string())).to_pylist()
    yield encode([pa.array([], pa.string())] * len(names), header=True), 0
    for batch in batches:
        columns = [change(_to_csv_column(column)) for column in batch.columns]
        yield encode(columns, header=False), batch.num_rows


_NUMBER_TEXT = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"

# Spreadsheets run text as a formula if it begins so, in ASCII or full width, also after a
# semicolon, a tab or a line end, where they may split cells.
_FORMULA = r"(^|[;\t\r\n])([=+\-@\x{ff1d}\x{ff0b}\x{ff0d}\x{ff20}])"


def _defuse_formulas(column: pa.Array) -> pa.Array:
    """Put an apostrophe before text that a spreadsheet runs as a formula; numbers stay unchanged.

    Columns of other types are returned as they are: only text can be a formula.
    """
    if not (_is.is_string(column.type) or _is.is_large_string(column.type)):
        return column
    changed = pc.replace_substring_regex(column, _FORMULA, r"\1'\2")
    changed = pc.replace_substring_regex(changed, r"^([\t\r\n])", r"'\1")
    return pc.if_else(pc.match_substring_regex(column, _NUMBER_TEXT), column, changed)


_IN_CSV = (
    _is.is_null, _is.is_boolean, _is.is_integer, _is.is_float32, _is.is_float64, _is.is_decimal,
    _is.is_string, _is.is_large_string, _is.is_date, _is.is_time,
)  # fmt: skip


def _to_csv_column(column: pa.Array) -> pa.Array:
    """Return a column of types that CSV supports; nested values become JSON text."""
    kind = column.type
    if any(test(kind) for test in _IN_CSV):
        return column
    if _is.is_dictionary(kind):
        return _to_csv_column(column.dictionary_decode())
    if _is.is_float16(kind):
        return column.cast(pa.float32())
    if kind == pa.bool8():
        return column.storage.cast(pa.bool_())
    if isinstance(kind, pa.BaseExtensionType) and kind != pa.uuid():
        return _to_csv_column(column.storage)
    values = _to_json_values(column)
    if _is.is_nested(kind):
        values = _map_values(values, json.dumps)
    return pa.array(values, pa.string())


def _arrow_pieces(
    schema: pa.Schema, batches: Iterator[pa.RecordBatch]
) -> Iterator[tuple[bytes, int]]:
    sink = io.BytesIO()

    def take_bytes() -> bytes:
        data = sink.getvalue()
        sink.seek(0)
        sink.truncate()
        return data

    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            yield take_bytes(), batch.num_rows
    yield take_bytes(), 0


def is_number(kind: pa.DataType) -> bool:
    """Return whether a table aligns columns of this type to the right."""
    return bool(_is.is_integer(kind) or _is.is_floating(kind) or _is.is_decimal(kind))

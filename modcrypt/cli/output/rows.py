"""Rows as text: cells for people, lines of JSON, CSV; or as the bytes of an Arrow stream.

What JSON has no form for is text: dates and times in ISO 8601, decimals as they are written, bytes
in base64, floats that are no numbers by name. A map is a list of keys and values.
"""

from __future__ import annotations

import base64
import io
import json
import math
import unicodedata
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from modcrypt.cli.output.failures import printable
from modcrypt.errors import FormatError

__all__ = ["aligned", "cell", "checked", "is_number", "json_line", "rows_of", "spelt"]

WIDEST = 40
"""Places that a value takes in a table; longer ones are cut."""

_is = pa.types
_LISTS = (
    _is.is_list, _is.is_large_list, _is.is_fixed_size_list, _is.is_list_view,
    _is.is_large_list_view,
)  # fmt: skip
_BYTES = (_is.is_binary, _is.is_large_binary, _is.is_fixed_size_binary, _is.is_binary_view)
_SPELT = (_is.is_date, _is.is_time, _is.is_decimal)  # as Arrow spells them


def checked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass batches on whose values are what their types say: PyArrow doesn't look when it reads.

    Raises:
        FormatError: they are not, as text that is no UTF-8.
    """
    for batch in batches:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                column.validate(full=True)
            except pa.ArrowInvalid:  # whose text may have values
                malformed = f"column {name}: malformed values, such as text that is no UTF-8"
            else:
                continue
            raise FormatError(malformed)
        yield batch


# --- values --------------------------------------------------------------------------------------


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Give the rows of a batch as what JSON takes."""
    names, columns = batch.schema.names, map(_json, batch.columns)
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def _json(array: pa.Array) -> list[Any]:
    """Give values as what JSON takes. What is nested is walked: not all of it can be cast."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _extended(array)
    if _is.is_dictionary(kind):
        return _json(array.dictionary_decode())
    if _is.is_struct(kind):
        names = [field.name for field in kind]
        rows = zip(*map(_json, array.flatten()), strict=True)
        there = array.is_valid().to_pylist()
        made = (dict(zip(names, row, strict=True)) for row in rows)
        return [one if valid else None for one, valid in zip(made, there, strict=True)]
    if _is.is_map(kind):
        pairs = pa.struct([kind.key_field.with_name("key"), kind.item_field.with_name("value")])
        return _json(array.cast(pa.list_(pairs)))
    if any(test(kind) for test in _LISTS):
        items = iter(_json(array.flatten()))
        lengths = pc.list_value_length(array).to_pylist()
        return [None if length is None else list(islice(items, length)) for length in lengths]
    return _flat(array)


def _extended(array: pa.Array) -> list[Any]:
    if array.type.extension_name != "arrow.uuid":
        return _json(array.storage)
    return _each(array.storage.to_pylist(), lambda value: str(uuid.UUID(bytes=value)))


def _flat(array: pa.Array) -> list[Any]:
    kind = array.type
    if _is.is_timestamp(kind):
        if kind.tz is not None:  # a moment: whatever the zone is called, and whether it is known
            array = array.cast(pa.timestamp(kind.unit, "UTC"))
        return list(pc.replace_substring(array.cast(pa.string()), " ", "T").to_pylist())
    if _is.is_duration(kind):
        unit = kind.unit
        return _each(array.cast(pa.int64()).to_pylist(), lambda value: _iso_duration(value, unit))
    if any(test(kind) for test in _SPELT):
        return list(array.cast(pa.string()).to_pylist())
    if any(test(kind) for test in _BYTES):
        return _each(array.to_pylist(), lambda value: base64.b64encode(value).decode())
    if _is.is_floating(kind):
        if not _is.is_float64(kind):  # by way of text: 0.1 is not to be 0.10000000149011612
            array = array.cast(pa.float32()).cast(pa.string())
        return _each(array.to_pylist(), _number)
    return list(array.to_pylist())


def _each(values: list[Any], change: Callable[[Any], Any]) -> list[Any]:
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


json_line = json.JSONEncoder(allow_nan=False, check_circular=False).encode
"""Spells a row on one line, in ASCII. One encoder for all: making one takes longer than a row."""


# --- whole outputs -------------------------------------------------------------------------------


def spelt(
    form: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch], *, safe: bool = False
) -> Iterator[tuple[bytes, int]]:
    """Spell batches as `"jsonl"`, `"csv"` or `"arrow"`: piece by piece, with the rows in each.

    Args:
        form: The form.
        schema: The schema of the batches.
        batches: The rows.
        safe: Whether to write text in CSV so that a spreadsheet runs none of it as a formula.
    """
    if form == "csv":
        return _csv(schema, batches, safe)
    return (_arrow if form == "arrow" else _json_lines)(schema, batches)


def _json_lines(
    schema: pa.Schema, batches: Iterator[pa.RecordBatch]
) -> Iterator[tuple[bytes, int]]:
    for batch in batches:
        lines = [json_line(row) + "\n" for row in rows_of(batch)]
        yield "".join(lines).encode(), len(lines)


def _csv(
    schema: pa.Schema, batches: Iterator[pa.RecordBatch], safe: bool
) -> Iterator[tuple[bytes, int]]:
    from pyarrow import csv

    change = _without_formulas if safe else lambda column: column
    names = change(pa.array(schema.names, pa.string())).to_pylist()
    for number, batch in enumerate(chain([_empty(schema)], batches)):
        columns = [change(_for_csv(column)) for column in batch.columns]
        sink = io.BytesIO()
        table = pa.Table.from_arrays(columns, names)
        csv.write_csv(table, sink, csv.WriteOptions(include_header=number == 0))
        yield sink.getvalue(), batch.num_rows


_NUMBER_TEXT = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"

# Spreadsheets take text for a formula that begins so, in ASCII or full width; and what follows a
# semicolon, a tab or a line end too, where they split lines at these.
_FORMULA = r"(^|[;\t\r\n])([=+\-@\x{ff1d}\x{ff0b}\x{ff0d}\x{ff20}])"


def _without_formulas(column: pa.Array) -> pa.Array:
    """Put an apostrophe before what a spreadsheet takes for a formula; numbers stay as they are.

    Columns of numbers are none of it: only text can be a formula.
    """
    if not (_is.is_string(column.type) or _is.is_large_string(column.type)):
        return column
    changed = pc.replace_substring_regex(column, _FORMULA, r"\1'\2")
    changed = pc.replace_substring_regex(changed, r"^([\t\r\n])", r"'\1")
    return pc.if_else(pc.match_substring_regex(column, _NUMBER_TEXT), column, changed)


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, one.type) for one in schema], schema=schema)


_IN_CSV = (
    _is.is_null, _is.is_boolean, _is.is_integer, _is.is_float32, _is.is_float64, _is.is_decimal,
    _is.is_string, _is.is_large_string, _is.is_date, _is.is_time,
)  # fmt: skip


def _for_csv(column: pa.Array) -> pa.Array:
    """Give a column as one that CSV has a form for: what is nested as JSON text."""
    kind = column.type
    if any(test(kind) for test in _IN_CSV):
        return column
    if _is.is_dictionary(kind):
        return _for_csv(column.dictionary_decode())
    if _is.is_float16(kind):
        return column.cast(pa.float32())
    values = _json(column)
    if _is.is_nested(kind):
        values = _each(values, json.dumps)
    return pa.array(values, pa.string())


def _arrow(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[bytes, int]]:
    sink = io.BytesIO()

    def taken() -> bytes:
        data = sink.getvalue()
        sink.seek(0)
        sink.truncate()
        return data

    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            yield taken(), batch.num_rows
    yield taken(), 0


# --- a table for people --------------------------------------------------------------------------


def is_number(kind: pa.DataType) -> bool:
    """Tell whether a column is aligned to the right."""
    return bool(_is.is_integer(kind) or _is.is_floating(kind) or _is.is_decimal(kind))


def cell(value: Any) -> str:
    """Spell what `rows_of` gives on one line, cut; text that could be taken for null is quoted."""
    if isinstance(value, str):
        text = value if value not in ("", "null") else f'"{value}"'
    else:
        text = json.dumps(value, ensure_ascii=False)
    return _cut(printable(text[: WIDEST + 1]))


def _cut(text: str) -> str:
    if _places(text) <= WIDEST:
        return text
    while _places(text) >= WIDEST:
        text = text[:-1]
    return text + "…"


def _places(text: str) -> int:
    """Give the places that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(one) in "WF" for one in text)
    return len(text) + wide - sum(unicodedata.combining(one) > 0 for one in text)


def aligned(
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[int] = (),
    width: int | None = None,
) -> tuple[str, int]:
    """Align cells under the names of their columns.

    Args:
        names: of the columns, which hostile files choose.
        rows: cells, as `cell` gives them.
        right: numbers of the columns that are aligned to the right.
        width: places of a line, None for as many as it takes.

    Returns:
        The lines, and how many columns at the end have no room there.
    """
    titles = [cell(name) for name in names]
    columns = list(zip(titles, *rows, strict=True))
    widths = [max(map(_places, column)) for column in columns]
    shown = len(columns)
    while width is not None and shown > 1 and sum(widths[:shown]) + 2 * (shown - 1) > width:
        shown -= 1
    padded = [
        [_padded(one, widths[number], number in right) for one in columns[number]]
        for number in range(shown)
    ]
    lines = ("  ".join(line).rstrip() for line in zip(*padded, strict=True))
    return "\n".join(lines), len(columns) - shown


def _padded(text: str, width: int, right: bool) -> str:
    room = " " * (width - _places(text))
    return room + text if right else text + room

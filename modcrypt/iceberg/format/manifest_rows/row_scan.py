"""Scan rows of Avro: wanted fields become values, and all others are only checked and skipped.

A row of a manifest has about thirty fields and several numbers for each column; a plan needs a few.
mypyc compiles this module from the same source (`make native`): hence `i64`, whose numbers wrap at
64 bits when compiled. Lengths and counts are checked against the bytes that exist before they are
added to a position, so that nothing wraps.

All functions raise IndexError if the bytes end inside a value, FormatError if they are not such a
value, and UnicodeDecodeError if a text is not UTF-8. Types are nested at most `MAX_DEPTH` deep.
"""

from __future__ import annotations

import functools
import re
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from modcrypt.errors import FormatError
from modcrypt.parquet.format.compact import INTERPRETED, read_int

if TYPE_CHECKING:
    from mypy_extensions import i64

# Kinds of types.
NULL: Final = 0
BOOLEAN: Final = 1
NUMBER: Final = 2
FLOAT: Final = 3
DOUBLE: Final = 4
BYTES: Final = 5
STRING: Final = 6
FIXED: Final = 7
ENUM: Final = 8
UNION: Final = 9
RECORD: Final = 10
ARRAY: Final = 11
MAP: Final = 12

MAX_NUMBER: Final = (1 << 63) - 1
"""The greatest number of a row."""

# Arrays of pairs, as manifests have them for each column.
NO_PAIRS: Final = 0
NUMBERS: Final = 1  # of two numbers
TEXTS: Final = 2  # of a number and bytes

_MAX_USUAL: Final = 256  # maximum number of pairs that the interpreter skips by one pattern

_float: Final = Struct("<f")
_double: Final = Struct("<d")


class Node:
    """A type of a row's schema.

    `parts` are its fields, items, values or branches, and `names` those of fields, or the symbols
    of an enum. `size` is that of a fixed in bytes.
    """

    __slots__ = ("is_optional", "is_raw", "kind", "names", "pairs", "parts", "size", "slot")

    def __init__(self, kind: i64, parts: list[Node], names: list[str], size: i64) -> None:
        self.kind: i64 = kind
        self.parts: list[Node] = parts
        self.names: list[str] = names
        self.size: i64 = size
        self.slot: i64 = -1  # where a scan puts the value; -1 for nowhere
        self.is_raw: bool = False  # whether it puts the bytes there that encode the value
        self.is_optional: bool = kind == UNION and bool(parts) and parts[0].kind == NULL
        self.pairs: i64 = _kind_of_pairs(kind, parts)


def _kind_of_pairs(kind: i64, parts: list[Node]) -> i64:
    if kind != ARRAY or parts[0].kind != RECORD or parts[0].names != ["key", "value"]:
        return NO_PAIRS
    key, value = parts[0].parts
    if key.kind != NUMBER:
        return NO_PAIRS
    return NUMBERS if value.kind == NUMBER else TEXTS if value.kind == BYTES else NO_PAIRS


def scan(node: Node, data: bytes, at: i64, values: list[Any]) -> i64:
    """Return the end of the value at `data[at:]`, after its wanted parts were put into `values`."""
    kind = node.kind
    if kind == UNION:
        branch, at = _read_branch(node, data, at)
        return scan(node.parts[branch], data, at, values)
    if node.slot >= 0 and not node.is_raw:
        values[node.slot], at = decode(node, data, at)
        return at
    if kind == RECORD:
        begin = at
        for part in node.parts:
            if part.is_optional and data[at] == 0:
                at += 1
            else:
                at = scan(part, data, at, values)
        if node.is_raw:
            values[node.slot] = data[begin:at]
        return at
    end = _skip(node, data, at, values)
    if node.is_raw:
        values[node.slot] = data[at:end]
    return end


def _skip(node: Node, data: bytes, at: i64, values: list[Any]) -> i64:
    kind = node.kind
    if kind == NUMBER:
        return _skip_number(data, at)
    if kind == ARRAY or kind == MAP:  # noqa: PLR1714, SIM109  # a tuple would be made
        return _skip_items(node, data, at, values)
    if kind == STRING:
        at, end = _span(data, at)
        data[at:end].decode()
        return end
    if kind == BYTES:
        at, end = _span(data, at)
        return end
    if kind == ENUM:
        _symbol, at = decode(node, data, at)
        return at
    return _end_of_fixed(node, data, at)


def _end_of_fixed(node: Node, data: bytes, at: i64) -> i64:
    if node.size > len(data) - at:
        raise FormatError("a value is cut short")
    return at + node.size


def _skip_items(node: Node, data: bytes, at: i64, values: list[Any]) -> i64:
    items = node.parts[0]
    while True:
        count, at = read_count(data, at)
        if count == 0:
            return at
        if node.pairs != NO_PAIRS:
            at = _skip_pairs(data, at, count, node.pairs)
            continue
        for _number in range(count):
            if node.kind == MAP:
                start, at = _span(data, at)
                data[start:at].decode()
            at = scan(items, data, at, values)


def _skip_pairs(data: bytes, at: i64, count: i64, pairs: i64) -> i64:
    if INTERPRETED and count <= _MAX_USUAL:
        match = _usual_pairs(count, pairs).match(data, at)
        if match is not None:
            return match.end()
    for _number in range(count):
        at = at + 1 if data[at] < 128 else _skip_number(data, at)
        if pairs == TEXTS:
            size: i64 = data[at]
            if size & 129 == 0 and size >> 1 < len(data) - at:  # a call takes as long as the rest
                at += 1 + (size >> 1)
            else:
                _start, at = _span(data, at)
        else:
            at = at + 1 if data[at] < 128 else _skip_number(data, at)
    return at


def scan_rows(
    row: Node, partition: Node, data: bytes, at: i64, count: i64, slots: i64,
    partitions: dict[bytes, Any],
) -> tuple[list[list[Any]], i64]:  # fmt: skip
    """Return the wanted values of `count` rows that begin at `data[at:]`, and the rows' end.

    Their `partition` is decoded; `partitions` has those that are known by their bytes, which rows
    share.
    """
    rows: list[list[Any]] = []
    slot = partition.slot
    for _number in range(count):
        values: list[Any] = [None] * slots
        at = scan(row, data, at, values)
        raw: bytes = values[slot]
        if raw not in partitions:
            partitions[raw], _end = decode(partition, raw, 0)
        values[slot] = partitions[raw]
        rows.append(values)
    return rows, at


def all_within(rows: list[list[Any]], slot: i64, most: i64) -> bool:
    """Return whether a number of each row is null, or from 0 to `most`."""
    for values in rows:
        value = values[slot]
        if value is not None:
            number: i64 = value
            if not 0 <= number <= most:
                return False
    return True


@functools.cache
def _usual_pairs(count: int, pairs: int) -> re.Pattern[bytes]:
    """Return a pattern of pairs with numbers of up to 63 bits, and texts of up to 40 bytes."""
    # Its branches begin with different bytes, so that nothing is tried twice.
    number = rb"[\x80-\xff]{0,8}+[\x00-\x7f]"
    texts = (b"\\x%02x.{%d}" % (2 * size, size) for size in dict.fromkeys((8, 4, *range(41))))
    value = number if pairs == NUMBERS else b"(?:%s)" % b"|".join(texts)
    return re.compile(b"(?s:%s%s){%d}" % (number, value, count))


def find_pair(pairs: bytes, wanted: i64, kind: i64) -> Any:
    """Return the value of the last pair with a key in an array of pairs; None if there is none.

    `kind` is that of the pairs.
    """
    found: Any = None
    at: i64 = 0
    while True:
        count, at = read_count(pairs, at)
        if count == 0:
            return found
        for _number in range(count):
            key: i64 = pairs[at]
            if key < 128:  # the call would take as long as the rest
                key = (key >> 1) ^ -(key & 1)
                at += 1
            else:
                key, at = read_int(pairs, at, 64)
            if kind == TEXTS:
                start, at = _span(pairs, at)
                if key == wanted:
                    found = pairs[start:at]
            elif key == wanted:
                found, at = _read_object(pairs, at)
            else:
                at = _skip_number(pairs, at)


def is_missing(values: list[Any], column: i64, counts: i64, partial: list[int]) -> bool:
    """Return whether a column has no value in a file that a comparison can match.

    That is so if one of its `partial` counts, as that of nulls, equals that of all values. `counts`
    and `partial` are slots of pairs.
    """
    for slot in partial:
        pairs = values[slot]
        if pairs:
            count = find_value(pairs, column, NUMBERS)
            if count and find_value(values[counts], column, NUMBERS) == count:
                return True
    return False


def find_value(pairs: Any, column: i64, kind: i64) -> Any:
    """Return the number or bound of a column in pairs, which may be decoded; None without one."""
    if isinstance(pairs, bytes):
        return find_pair(pairs, column, kind)
    found: Any = None
    if pairs is not None:
        for pair in pairs:
            if pair["key"] == column:
                found = pair["value"]
    return found


def find_values(rows: list[list[Any]], slot: i64, column: i64, kind: i64) -> list[Any]:
    """Return what `find_value` returns for the pairs in a slot of each row."""
    return [find_value(values[slot], column, kind) for values in rows]


def decode(node: Node, data: bytes, at: i64) -> tuple[Any, i64]:
    """Return the value at `data[at:]` and its end. A record is a dict, without logical types."""
    kind = node.kind
    if kind == NUMBER:
        return _read_object(data, at)
    if kind == BYTES:
        at, end = _span(data, at)
        return data[at:end], end
    if kind == STRING:
        at, end = _span(data, at)
        return data[at:end].decode(), end
    if kind == UNION:
        branch, at = _read_branch(node, data, at)
        return decode(node.parts[branch], data, at)
    if kind == RECORD:
        return _decode_record(node, data, at)
    if kind == ARRAY:
        return _decode_array(node, data, at)
    if kind == MAP:
        return _decode_map(node, data, at)
    if kind == NULL:
        return None, at
    if kind == ENUM:
        symbol, at = read_int(data, at, 64)
        if not 0 <= symbol < len(node.names):
            raise FormatError("an enum has no such symbol")
        return node.names[symbol], at
    end = _end_of_fixed(node, data, at)
    if kind == FIXED:
        return data[at:end], end
    if kind == BOOLEAN:
        return data[at] != 0, end
    form = _float if kind == FLOAT else _double
    return form.unpack_from(data, at)[0], end


def _read_branch(node: Node, data: bytes, at: i64) -> tuple[i64, i64]:
    branch: i64 = data[at]
    if branch < 128 and branch & 1 == 0:
        branch >>= 1
        at += 1
    else:
        branch, at = read_int(data, at, 64)
    if not 0 <= branch < len(node.parts):
        raise FormatError("a union has no such branch")
    return branch, at


def _decode_record(node: Node, data: bytes, at: i64) -> tuple[Any, i64]:
    record: dict[str, Any] = {}
    for name, part in zip(node.names, node.parts, strict=True):
        record[name], at = decode(part, data, at)
    return record, at


def _decode_array(node: Node, data: bytes, at: i64) -> tuple[Any, i64]:
    found: list[Any] = []
    while True:
        count, at = read_count(data, at)
        if count == 0:
            return found, at
        for _number in range(count):
            item, at = decode(node.parts[0], data, at)
            found.append(item)


def _decode_map(node: Node, data: bytes, at: i64) -> tuple[Any, i64]:
    found: dict[str, Any] = {}
    while True:
        count, at = read_count(data, at)
        if count == 0:
            return found, at
        for _number in range(count):
            start, at = _span(data, at)
            key = data[start:at].decode()
            found[key], at = decode(node.parts[0], data, at)


def _read_object(data: bytes, at: i64) -> tuple[Any, i64]:
    byte: i64 = data[at]
    if byte < 128:  # the call would take as long as the rest in the interpreter
        return (byte >> 1) ^ -(byte & 1), at + 1
    value, at = read_int(data, at, 64)
    return value, at


def _skip_number(data: bytes, at: i64) -> i64:
    begin = at
    while data[at] > 127:
        at += 1
    if at - begin > 8 and (at - begin > 9 or data[at] > 1):
        raise FormatError("a number has more than 64 bits")
    return at + 1


def read_count(data: bytes, at: i64) -> tuple[i64, i64]:
    """Return the number of items in the block at `data[at:]`, and where they begin."""
    count: i64 = data[at]
    if count & 129 == 0:
        count >>= 1
        at += 1
    else:
        count, at = read_int(data, at, 64)
    if count < 0:  # the size of the block follows, which readers may skip
        count = -count
        at = _skip_number(data, at)
    if not 0 <= count <= len(data) - at:  # each item takes at least a byte (see `check_schema`)
        raise FormatError("an array or map claims more items than its bytes can hold")
    return count, at


def _span(data: bytes, at: i64) -> tuple[i64, i64]:
    """Return the start and the end of the bytes whose length is at `data[at:]`."""
    size: i64 = data[at]
    if size < 128 and size & 1 == 0:
        size >>= 1
        at += 1
    else:
        size, at = read_int(data, at, 64)
    if not 0 <= size <= len(data) - at:
        raise FormatError("a length exceeds the bytes that exist")
    return at, at + size

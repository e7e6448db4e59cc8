"""Find without decoding that a Thrift struct has only known fields, spelt as modcrypt does.

Encryption asks this of each footer: compiled, encoding it again takes several times as long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from modcrypt.parquet.format.compact import (
    BINARY,
    BYTE,
    DOUBLE,
    FALSE,
    I16,
    I64,
    LIST,
    STRUCT,
    TRUE,
    StructPlan,
)

if TYPE_CHECKING:
    from mypy_extensions import i64


def end_if_usual(plan: StructPlan, data: bytes, at: i64) -> i64:
    """Return the position after a struct that decodes; 0 unless encoding it gives its bytes again.

    That is certain for known fields in ascending order with ids in the short form, and numbers in
    as few bytes as possible.
    """
    by_id = plan.by_id
    known: i64 = len(by_id)
    field_id: i64 = 0
    while True:
        head: i64 = data[at]
        at += 1
        if head == 0:
            return at
        wire = head & 15
        if head < 16:  # the id follows
            return 0
        field_id += head >> 4
        field = by_id[field_id] if field_id < known else None
        if field is None or (wire != field.wire and not (wire == FALSE and field.wire == TRUE)):
            return 0
        if I16 <= wire <= I64 and data[at] < 128:  # most values take one byte
            at += 1
        elif wire == LIST:
            at = _end_of_list(field.plan, data, at, field.element)
        elif wire not in (TRUE, FALSE):
            at = _end_of_value(field.plan, data, at, wire)
        if at == 0:
            return 0


def _end_of_list(plan: StructPlan | None, data: bytes, at: i64, element: i64) -> i64:
    head: i64 = data[at]
    at += 1
    count = head >> 4
    if count == 15:
        count, at = _read_size(data, at)
        if count < 15:
            return 0
    if head & 15 != element or at == 0:
        return 0
    for _ in range(count):
        at = _end_of_value(plan, data, at, element)
        if at == 0:
            return 0
    return at


def _end_of_value(plan: StructPlan | None, data: bytes, at: i64, wire: i64) -> i64:
    if I16 <= wire <= I64:
        return _read_size(data, at)[1]
    if wire == STRUCT:
        return 0 if plan is None else end_if_usual(plan, data, at)
    if wire == BINARY:
        size, at = _read_size(data, at)
        return at + size if at else 0
    if wire == DOUBLE:
        return at + 8
    return at + 1 if wire == BYTE else 0


def _read_size(data: bytes, at: i64) -> tuple[i64, i64]:
    """Read a varint of any size; return its last bits and the position after it."""
    # The position is 0 if fewer bytes would do.
    byte: i64 = data[at]
    at += 1
    if byte < 128:
        return byte, at
    value = byte & 127
    shift: i64 = 7
    while byte > 127:
        byte = data[at]
        at += 1
        value |= (byte & 127) << (shift & 63)
        shift += 7
    return value, at if byte else 0

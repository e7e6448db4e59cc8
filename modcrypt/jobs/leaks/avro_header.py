"""The names of fields in the header of an Avro file; its rows are not looked at."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from modcrypt.io.sources import Source

MAGIC = b"Obj\x01"

MAX_HEADER = 1 << 20
"""Number of first bytes in which the schema is looked for."""

MAX_ENTRIES = 1000
"""Largest number of members in the header's metadata that are looked at."""

MAX_DEPTH, MAX_NAME = 16, 200
"""Deepest records of which fields are named, and longest name of a field, in characters."""

_MAX_VARINT = 10


def find_fields(source: Source) -> set[tuple[str, ...]]:
    """Return the paths of the fields in an Avro file's schema; none if the header is malformed."""
    head = source.read_at(0, min(source.size, MAX_HEADER))
    try:
        schema = json.loads(_find_schema(head))
    except (ValueError, RecursionError):
        return set()
    return set(_walk_fields(schema))


def _find_schema(head: bytes) -> bytes:
    """Return the text of the schema; raise ValueError if the header is malformed or too long."""
    at, left = len(MAGIC), 0
    for _ in range(MAX_ENTRIES):
        while not left:  # a block of the map begins
            left, at = _read_long(head, at)
            if not left:
                raise ValueError
            if left < 0:  # the size of the block follows
                left, (_, at) = -left, _read_long(head, at)
        key, at = _read_bytes(head, at)
        value, at = _read_bytes(head, at)
        left -= 1
        if key == b"avro.schema":
            return value
    raise ValueError


def _read_bytes(head: bytes, at: int) -> tuple[bytes, int]:
    length, at = _read_long(head, at)
    if not 0 <= length <= len(head) - at:
        raise ValueError
    return head[at : at + length], at + length


def _read_long(head: bytes, at: int) -> tuple[int, int]:
    """Return an integer in zigzag form, seven bits a byte, and where it ends."""
    number = 0
    for index, byte in enumerate(head[at : at + _MAX_VARINT]):
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at + index + 1
    raise ValueError


def _walk_fields(schema: Any) -> Iterator[tuple[str, ...]]:
    """Yield the paths of fields; unions, arrays and maps have no part in a path."""
    pending: list[tuple[tuple[str, ...], Any]] = [((), schema)]
    while pending:
        path, item = pending.pop()
        if isinstance(item, list):
            pending += [(path, branch) for branch in item]
        elif not isinstance(item, dict) or len(path) >= MAX_DEPTH:
            continue
        elif isinstance(fields := item.get("fields"), list):
            for field in fields:
                name = field.get("name") if isinstance(field, dict) else None
                if isinstance(name, str) and len(name) <= MAX_NAME:
                    yield (*path, name)
                    pending.append(((*path, name), field.get("type")))
        else:
            pending += [(path, item.get(part)) for part in ("type", "items", "values")]

"""The columns whose values JSON of table formats and data files repeats; no value is returned."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from typing import Any

from modcrypt.io.sources import Source
from modcrypt.jobs.leaks.exposure import columns_of_folders

MAX_LOG = 64 << 20
"""Largest file of a table log that is read, in bytes; its lines are parsed one by one."""

MAX_LINE = 4 << 20
"""Longest JSON that is parsed at once, in bytes: parsed values take twenty times the memory."""

MAX_NODES = 2_000_000
"""Largest number of members and items visited in a file, so that the time is bounded."""

_BOUNDS = ("minValues", "maxValues", "partitionValues", "partitionValues_parsed")
_PREDICATES = (
    "predicate", "predicates", "condition", "matchedPredicates", "notMatchedPredicates",
    "notMatchedBySourcePredicates",
)  # fmt: skip
_ALL_ROWS: tuple[Any, ...] = ("", "[]", "true", '["true"]', [], None)
"""Predicates without values."""

Columns = set[tuple[str, ...]]


class UnreadError(ValueError):
    """JSON that is too large, too deep or damaged, so that it may have anything."""


def parse_lines(source: Source) -> Iterator[Any]:
    """Yield the values of a file with one in each line, or with one in all.

    Raises:
        UnreadError: The file is too large, or is not JSON.
    """
    if source.size > MAX_LOG:
        raise UnreadError(f"it has more than {MAX_LOG} bytes")
    text = source.read_at(0, source.size)
    if len(text) <= MAX_LINE:
        try:
            whole = _parse(text)
        except UnreadError:  # it has several lines
            pass
        else:
            yield whole
            return
    for line in io.BytesIO(text):
        if line.strip():
            yield _parse(line)


def _parse(text: bytes) -> Any:
    if len(text) > MAX_LINE:
        raise UnreadError(f"it has a line of more than {MAX_LINE} bytes")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise UnreadError("it is not JSON, or nested too deep") from None


class LogColumns:
    """The columns that have values in a table log of Delta, collected from parsed JSON."""

    def __init__(self) -> None:
        self.columns: Columns = set()
        self.anything = False  # whether a predicate is repeated, which may have any value
        self.schema = False
        self._nodes = 0

    def add(self, value: Any) -> None:
        """Add the columns of a value, without recursion."""
        pending = [value]
        while pending:
            self._nodes += 1
            if self._nodes > MAX_NODES:
                raise UnreadError(f"it has more than {MAX_NODES} members")
            item = pending.pop()
            if isinstance(item, list):
                pending += item
            elif isinstance(item, dict):
                pending += [self._enter(str(name), member) for name, member in item.items()]

    def _enter(self, name: str, member: Any) -> Any:
        """Note what a member shows; return what to visit in it."""
        if name in _BOUNDS and isinstance(member, dict):
            self.columns |= set(_leaves(member))
            return None
        if name == "stats" and isinstance(member, str):
            try:
                return json.loads(member)
            except (ValueError, RecursionError):
                raise UnreadError("its statistics are not JSON") from None
        self.schema |= name in ("schemaString", "checkpointSchema")
        if name in _PREDICATES and member not in _ALL_ROWS:
            self.anything = True
        return member


def _leaves(member: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the paths of the values in nested objects, except nulls."""
    pending: list[tuple[tuple[str, ...], Any]] = [((name,), item) for name, item in member.items()]
    while pending:
        path, item = pending.pop()
        if isinstance(item, dict):
            pending += [((*path, name), below) for name, below in item.items()]
        elif item is not None:
            yield path


_PARTITIONS = re.compile(rb'"partitions\.((?:[^"\\]|\\.){1,4096})"\s*:')


def find_summary_columns(metadata: bytes) -> Columns:
    """Return the columns whose partition values the snapshot summaries of Iceberg repeat.

    The text is not parsed: metadata may be long, and members of this name occur only there.
    """
    paths = set(_PARTITIONS.findall(metadata))
    return {column for path in paths for column in columns_of_folders(_unescape(path))}


_KEYS = re.compile(rb'"((?:[^"\\]|\\.){1,1200})"\s*:')  # an escape takes six bytes


def find_names(head: bytes) -> Columns:
    """Return the names of members in the beginning of JSON text."""
    return {(_unescape(key),) for key in set(_KEYS.findall(head))}


def _unescape(text: bytes) -> str:
    """Return a JSON string, given without its quotes, with its escapes replaced."""
    decoded = text.decode("utf-8", "replace")
    try:
        return str(json.loads(f'"{decoded}"', strict=False))
    except ValueError:
        return decoded

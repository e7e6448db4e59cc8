"""The columns whose values JSON of table formats and data files repeats; no value is returned."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from modcrypt.io.sources import Source

MAX_JSON = 64 << 20
"""Largest JSON file read, in bytes: Delta's and Iceberg's are below 10 MB."""

MAX_NODES = 2_000_000
"""Largest number of members and items visited in a file, so that the time is bounded."""

_BOUNDS = ("minValues", "maxValues", "partitionValues", "partitionValues_parsed")
_PREDICATES = ("predicate", "predicates", "condition", "matchedPredicates", "notMatchedPredicates")

Columns = set[tuple[str, ...]]


class UnreadError(ValueError):
    """JSON that is too large, too deep or damaged, so that it may have anything."""


def parse_lines(source: Source) -> Iterator[Any]:
    """Yield the values of a file with one in each line, or with one in all.

    Raises:
        UnreadError: The file is too large, or is not JSON.
    """
    if source.size > MAX_JSON:
        raise UnreadError(f"it has more than {MAX_JSON} bytes")
    text = source.read_at(0, source.size)
    try:
        yield json.loads(text)
        return
    except (ValueError, RecursionError):
        pass
    for line in text.splitlines():
        if line.strip():
            try:
                yield json.loads(line)
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
        self.schema |= name == "schemaString"
        if name in _PREDICATES and member not in ("", "[]", "true", [], None):
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


def find_summary_columns(metadata: Any) -> Columns:
    """Return the columns whose partition values the snapshot summaries of Iceberg repeat."""
    snapshots = metadata.get("snapshots") if isinstance(metadata, dict) else None
    listed = snapshots if isinstance(snapshots, list) else []
    found = [snapshot.get("summary") for snapshot in listed if isinstance(snapshot, dict)]
    summaries: list[dict[str, Any]] = [summary for summary in found if isinstance(summary, dict)]
    names = {
        part.partition("=")[0]
        for summary in summaries
        for key in summary
        if key.startswith("partitions.")
        for part in key.removeprefix("partitions.").split("/")
        if "=" in part
    }
    return {(name,) for name in names}


_KEYS = re.compile(rb'"((?:[^"\\]|\\.){1,200})"\s*:')


def find_names(head: bytes) -> Columns:
    """Return the names of members in the beginning of JSON text."""
    return {(key.decode("utf-8", "replace"),) for key in _KEYS.findall(head)}

"""Changes of JSON documents by the names and numbers that lead to a member."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Change = Callable[[Any], None]
GONE = object()
"""Value of a member that a change removes."""


def alter(members: Mapping[str, Any]) -> Change:
    """Return a change that sets members; a function gets the old value and returns the new one."""

    def change(document: Any) -> None:
        for path, value in members.items():
            _set_member(document, path, value)

    change.__name__ = ", ".join(members)  # of the case
    return change


def _set_member(document: Any, path: str, value: Any) -> None:
    *way, last = (int(part) if part.isdecimal() else part for part in path.split("/"))
    for part in way:
        document = document[part]
    if value is GONE:
        del document[last]
    else:
        document[last] = value(document[last]) if callable(value) else value

"""Suggestions for names of columns that a file does not have."""

from __future__ import annotations

import re

from modcrypt.report.suggestions import suggest

_UNKNOWN = re.compile(
    r"the file does not have these columns: (?P<unknown>.+?); it has (?P<known>.+)"
)


def suggest_columns(message: str) -> str:
    """Return a question for the first misspelt column that a message names; empty for others."""
    match = _UNKNOWN.search(message)
    if match is None:
        return ""
    known = match["known"].split(", ")
    hints = (suggest(name, known) for name in match["unknown"].split(", "))
    return next(filter(None, hints), "")

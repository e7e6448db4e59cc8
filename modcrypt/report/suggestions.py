"""Suggestions for misspelt names."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from modcrypt.errors import printable

MAX_COMPARED = 1000
"""Largest number of known names that are compared: a file may have a million columns."""

MAX_LENGTH = 64
"""Length limit of names that are compared, which takes the square of their length."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Return a question for the known name that resembles another most; empty if none does."""
    import difflib  # not to be loaded without a mistake

    names = [each for each in islice(known, MAX_COMPARED) if len(each) <= MAX_LENGTH]
    close = difflib.get_close_matches(name, names, 1) if len(name) <= MAX_LENGTH else []
    return f"; did you mean {printable(close[0])}?" if close else ""

"""Suggestions for misspelt names."""

from __future__ import annotations

from collections.abc import Iterable

from modcrypt.errors import MAX_NAME, printable


def suggest(name: str, known: Iterable[str]) -> str:
    """Return a question for the known name that resembles another most; empty if none does."""
    import difflib  # not to be loaded without a mistake

    close = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {printable(close[0], MAX_NAME)}?" if close else ""

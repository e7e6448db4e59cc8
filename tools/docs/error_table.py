"""The table of errors of docs/reference/errors.md, from their classes."""

from __future__ import annotations

import inspect

from modcrypt.errors import ERRORS_BY_WORD, ModcryptError
from tools.docs.markdown_table import draw_table


def draw_errors() -> str:
    """Return a table of the public classes, their error codes and what they mean."""
    kinds = {word: kind for word, kind in ERRORS_BY_WORD.items() if kind is not ModcryptError}
    rows = [(f"`{kind.__name__}`", word, _describe(kind)) for word, kind in kinds.items()]
    return draw_table(["Class", "Error code", "Meaning"], rows)


def _describe(kind: type[ModcryptError]) -> str:
    """Return the first paragraph about a class."""
    return " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())

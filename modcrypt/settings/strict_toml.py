"""Parsing TOML with limited nesting, because `tomllib` is slow or fails on deep nesting.

For a dotted key of n parts, `tomllib` takes n² steps; deeply nested arrays and inline tables make
it raise a RecursionError.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

MAX_DEPTH = 8
"""Limit of nested arrays and tables, and of parts of a dotted key; policies need two."""

# An unclosed string extends to the end of the text, where `tomllib` stops, too.
STRING_OR_COMMENT = re.compile(
    r'"""(?:\\.|[^\\])*?(?:"{3,5}|\\?\Z)'
    r"|'''.*?(?:'{3,5}|\Z)"
    r'|"(?:\\.|[^"\\\n])*+"?'
    r"|'[^'\n]*+'"
    r"|\#[^\n]*+",
    re.DOTALL,
)
_BRACKET = re.compile(r"[\[\]{}]")
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{MAX_DEPTH}}}")


def strict_toml(text: str) -> dict[str, Any]:
    """Parse TOML; raise ValueError with only the place of a fault, as `tomllib` may repeat text."""
    bare = STRING_OR_COMMENT.sub("s", text)
    depth = 0
    for bracket in _BRACKET.finditer(bare):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > MAX_DEPTH:
            raise ValueError(f"arrays and tables are nested more than {MAX_DEPTH} deep")
    if _LONG_KEY.search(bare):
        raise ValueError(f"a dotted key has more than {MAX_DEPTH} parts")
    try:
        return tomllib.loads(text)
    except ValueError as error:  # also raised by `int` for a number of thousands of digits
        place = re.search(r"\(at [^()]*\)$", str(error))
        raise ValueError(f"not TOML {place[0] if place else ''}".rstrip()) from None

"""Tables for people: aligned columns of text, as wide as a terminal shows them."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size

from modcrypt.errors import printable

WIDEST = 40
"""Largest width of a value in a table of rows; longer values are cut."""


def format_cell(value: Any) -> str:
    """Return a value of `rows_of` on one line, cut; text that looks like null is quoted."""
    if isinstance(value, str):
        text = value if value not in ("", "null") else f'"{value}"'
    else:
        text = json.dumps(value, ensure_ascii=False)
    text = printable(text[: WIDEST + 1])
    return text if cell_len(text) <= WIDEST else set_cell_size(text, WIDEST - 1).rstrip() + "…"


def align_cells(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[int] = (),
    width: int | None = None,
) -> tuple[str, int]:
    """Align cells under the titles of their columns, all without control characters.

    `right` numbers the columns aligned to the right. Return lines of at most `width`, None for no
    limit, and the number of columns at the end that do not fit.
    """
    columns = list(zip(titles, *rows, strict=True))
    widths = [max(map(cell_len, column)) for column in columns]
    fitting = len(columns)
    while width is not None and fitting > 1 and sum(widths[:fitting]) + 2 * (fitting - 1) > width:
        fitting -= 1
    padded = [
        [_pad(text, widths[number], number in right) for text in columns[number]]
        for number in range(fitting)
    ]
    lines = ("  ".join(line).rstrip() for line in zip(*padded, strict=True))
    return "\n".join(lines), len(columns) - fitting


def _pad(text: str, width: int, right: bool) -> str:
    padding = " " * (width - cell_len(text))
    return padding + text if right else text + padding

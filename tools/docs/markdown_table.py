"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def draw_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table with a row of headings."""
    return "\n".join(map(_draw_row, [head, ["---"] * len(head), *rows]))


def _draw_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

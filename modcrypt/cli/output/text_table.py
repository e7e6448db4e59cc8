"""Tables for people: aligned columns of text, as wide as a terminal shows them."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest
from typing import Any

from rich.cells import cell_len, set_cell_size

from modcrypt.errors import escape_ci_commands, printable

WIDEST = 40  # largest width of a value in a table of rows; longer values are cut


def format_cell(value: Any) -> str:
    """Return a value of `rows_of` on one line, cut; text that looks like null is quoted."""
    if isinstance(value, str):
        text = value if value not in ("", "null") else f'"{value}"'
    else:
        text = json.dumps(value, ensure_ascii=False)
    text = printable(text[: WIDEST + 1])
    return text if cell_len(text) <= WIDEST else set_cell_size(text, WIDEST - 1).rstrip() + "…"


def align_cells(
    titles: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[int] = (),
    width: int | None = None,
) -> tuple[str, int]:  # fmt: skip
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


def wrap_cells(
    titles: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[int] = (), width: int
) -> str:
    """Align cells, and wrap columns of text so that lines fit a width.

    Nothing is cut. Numbers, in columns aligned to the right, are not wrapped.
    """
    natural = [max(map(cell_len, column)) for column in zip(titles, *rows, strict=True)]
    widths = _fit_widths(natural, right, width - 2 * (len(titles) - 1))
    lines: list[str] = []
    for row in (titles, *rows):
        cells = [list(_wrap(text, size)) for text, size in zip(row, widths, strict=True)]
        for parts in zip_longest(*cells, fillvalue=""):
            padded = (_pad(text, widths[n], n in right) for n, text in enumerate(parts))
            lines.append(escape_ci_commands("  ".join(padded).rstrip()))
    return "\n".join(lines)


NARROWEST = 6  # smallest width of a column whose text is wrapped


def _fit_widths(natural: Sequence[int], right: Collection[int], room: int) -> list[int]:
    """Return widths of columns; the widest columns of text share what the others leave."""
    most = max(natural, default=0)

    def capped() -> list[int]:
        return [size if n in right else min(size, most) for n, size in enumerate(natural)]

    while most > NARROWEST and sum(capped()) > room:
        most -= 1
    return capped()


_BREAK = re.compile(r"\S*?[/,;:._=-](?=\S)|\S+|\s+")


def _wrap(text: str, width: int) -> Iterator[str]:
    """Yield the lines of a cell, which end after words or punctuation if possible."""
    line = ""
    for piece in _BREAK.findall(text):
        if line and cell_len(line + piece.rstrip()) > width:
            yield line.rstrip()
            line = ""
        line += piece if line else piece.lstrip()
        while cell_len(line.rstrip()) > width:
            head = set_cell_size(line, width).rstrip() or line[:1]
            yield head
            line = line[len(head) :]
    yield line.rstrip()


def _pad(text: str, width: int, right: bool) -> str:
    padding = " " * (width - cell_len(text))
    return padding + text if right else text + padding

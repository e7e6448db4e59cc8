"""Write the tables of `docs/reference/writers.md` from the table of writers' bugs.

`python -m tools.writer_tables` writes them; a test compares them. In the page, a table lies between
`<!-- writers: NAME -->`, an empty line, and the next one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from modcrypt.parquet.writers.quirk import Quirk, load_table

PAGE = Path(__file__).resolve().parent.parent / "docs/reference/writers.md"

_HEAD = """\
| row | writer | what it writes | harm | modcrypt | `--repair` | source |
|---|---|---|---|---|---|---|"""


def fill_page(page: str) -> str:
    """Return the page with its tables."""
    pattern = re.compile(r"(?<=<!-- writers: )(\w+)( -->\n\n).*?(?=\n\n|\Z)", re.DOTALL)
    return pattern.sub(lambda found: f"{found[1]}{found[2]}{_write_table(found[1])}", page)


def _write_table(table: str) -> str:
    return "\n".join([_HEAD, *map(_write_row, load_table(table))])


def _write_row(quirk: Quirk) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in _list_cells(quirk)) + " |"


def _list_cells(quirk: Quirk) -> Iterator[str]:
    yield f"`{quirk.name}`"
    yield quirk.writer
    yield quirk.fault + ("" if quirk.certain else "; *possible* by the writer's version")
    yield f"**{quirk.harm}** {quirk.risk}".rstrip()
    yield quirk.action
    yield quirk.repair
    yield quirk.source


if __name__ == "__main__":
    PAGE.write_text(fill_page(PAGE.read_text()))

"""The tables of `docs/reference/writers.md`, from the table of writers' bugs."""

from __future__ import annotations

from collections.abc import Iterator

from modcrypt.parquet.writers.quirk import Quirk, load_table
from tools.docs.markdown_table import draw_table

_HEAD = ("row", "writer", "what it writes", "harm", "modcrypt", "`--repair`", "source")


def draw_quirks(table: str) -> str:
    """Return one of the tables; the name of a row is its anchor."""
    return draw_table(_HEAD, [list(_list_cells(quirk)) for quirk in load_table(table)])


def _list_cells(quirk: Quirk) -> Iterator[str]:
    yield f"`{quirk.name}`{{#{quirk.name}}}"
    yield quirk.writer
    yield quirk.fault + ("" if quirk.certain else "; *possible* by the writer's version")
    yield f"**{quirk.harm}** {quirk.risk}".rstrip()
    yield quirk.action
    yield quirk.repair
    yield quirk.source

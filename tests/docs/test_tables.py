"""The website draws every table whose data a page points to."""

from __future__ import annotations

import re

from tests.support.cases import each_case
from tests.support.paths import ROOT
from tools.docs.markdown_table import draw_table
from tools.docs.tables import fill, read_csv

PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "docs").rglob("*.md")
    if "<!-- table:" in path.read_text()
)


@each_case("name", PAGES)
def test_every_table_of_a_page_is_drawn(name: str) -> None:
    drawn = fill((ROOT / name).read_text())
    assert "<!-- table" not in drawn
    for table in re.findall(r"(?:^\|.*\n)+", drawn, re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}
        assert len(widths) == 1, table


@each_case("name", sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.csv")))
def test_every_row_of_a_file_is_on_its_page(name: str) -> None:
    drawn = fill((ROOT / name).with_suffix(".md").read_text())
    cells = {cell for row in read_csv(name) for cell in [*row.values()][1:]}
    assert [cell for cell in sorted(cells) if cell not in drawn] == []


def test_a_cell_may_contain_the_border_of_cells() -> None:
    assert draw_table(["a"], [["x | y"]]) == "| a |\n| --- |\n| x \\| y |"


def test_times_that_are_compared_are_drawn() -> None:
    page = fill((ROOT / "docs/explanation/performance.md").read_text())
    signatures = page.partition("## Signatures")[2].partition("## ")[0]
    assert signatures.count("<rect") == 2 * 6
    assert "282 ms" in signatures
    assert "peer: 151 ms" not in signatures
    assert "peer: unsigned" in signatures
    files = page.partition("## Files, tables")[2].partition("## ")[0]
    assert re.search(r"peer: PyArrow reads it and writes it encrypted.*?>106 ms<", files, re.DOTALL)

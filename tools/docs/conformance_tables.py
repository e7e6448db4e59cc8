"""The tables of docs/reference/conformance.md, from the results of the suite."""

from __future__ import annotations

from collections.abc import Iterator

from tools.conformance import page
from tools.docs.links import ROOT
from tools.docs.markdown_table import draw_table

RESULTS = ROOT / "tools/conformance/results"
HOSTILE = {
    "Reading hostile Parquet files": "hostile Parquet files",
    "Key material (PKMT1)": "hostile key material (PKMT1)",
    "Signatures of writers": "hostile signatures of writers",
    "Seals of datasets and tables": "hostile seals of datasets and tables",
    "AGS1 and Iceberg's key metadata": "hostile AGS1 streams and key metadata",
}
"""Headings of the tables of hostile files, by area."""
SIGNS = {"good": "{}", "mild": "{}", "open": "**{}**", "none": "-"}


def draw_results() -> str:
    """Return the tables of all areas, of writers by readers, and of hostile files."""
    return "\n\n".join(_draw_tables())


def _draw_tables() -> Iterator[str]:
    runs = page.read_runs(RESULTS)
    areas = page.group_rows(runs)
    for area, groups in page.only_rows(areas, valid=True):
        titles = [f"{run['name']} {run['version'].removeprefix('v')}" for run in runs]
        yield _draw(area, ["Cases", *titles], [(row.title, row.tallies) for row in groups])
    rows = [(row["title"], row["tallies"]) for row in page.matrix_rows(RESULTS, runs)]
    names = [run["name"] for run in runs]
    yield _draw("Writers (lines) by readers (columns)", ["Written by", *names], rows)
    for area, groups in page.only_rows(areas, valid=False):
        refused = [(row.title, row.tallies[:1]) for row in groups]
        yield _draw(f"modcrypt: {HOSTILE.get(area, area)}", ["Cases", names[0]], refused)


def _draw(title: str, head: list[str], rows: list[tuple[str, list[page.Tally]]]) -> str:
    cells = [[name, *(SIGNS[t.state].format(t.text) for t in tallies)] for name, tallies in rows]
    return f"### {title}\n\n{draw_table(head, cells)}"

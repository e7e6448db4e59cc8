"""Write the results by feature into docs/reference/conformance.md: `results_table.py FOLDER`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for a run as a script

from tools.conformance import page
from tools.conformance.registry import ROOT

DOCUMENT = ROOT / "docs" / "reference" / "conformance.md"
START = "<!-- tables: python tools/conformance/results_table.py -->\n"
HOSTILE = {
    "Reading hostile Parquet files": "hostile Parquet files",
    "Key material (PKMT1)": "hostile key material (PKMT1)",
    "Signatures of writers": "hostile signatures of writers",
    "Seals of datasets and tables": "hostile seals of datasets and tables",
    "AGS1 and Iceberg's key metadata": "hostile AGS1 streams and key metadata",
}
"""Headings of the tables of hostile files, by area."""
SIGNS = {"good": "{}", "mild": "{}", "open": "**{}**", "none": "-"}


def make_document(folder: Path, before: str) -> str:
    """Return the document with the tables of the results in a folder."""
    head, marker, _ = before.partition(START)
    return head + marker + "\n" + "\n".join(_tables(folder))


def _tables(folder: Path) -> Iterator[str]:
    runs = page.read_runs(folder)
    areas = page.group_rows(runs)
    for area, groups in page.only_rows(areas, valid=True):
        titles = [f"{run['name']} {run['version'].removeprefix('v')}" for run in runs]
        yield from _table(area, "Cases", titles, [(row.title, row.tallies) for row in groups])
    rows = [(row["title"], row["tallies"]) for row in page.matrix_rows(folder, runs)]
    names = [run["name"] for run in runs]
    yield from _table("Writers (lines) by readers (columns)", "Written by", names, rows)
    for area, groups in page.only_rows(areas, valid=False):
        refused = [(row.title, row.tallies[:1]) for row in groups]
        yield from _table(f"modcrypt: {HOSTILE.get(area, area)}", "Cases", names[:1], refused)


def _table(
    title: str, corner: str, columns: list[str], rows: list[tuple[str, list[page.Tally]]]
) -> Iterator[str]:
    yield f"### {title}\n"
    yield f"| {corner} | " + " | ".join(columns) + " |"
    yield "| --- |" + " --- |" * len(columns)
    for name, tallies in rows:
        cells = [SIGNS[tally.state].format(tally.text) for tally in tallies]
        yield f"| {name} | " + " | ".join(cells) + " |"
    yield ""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="results of the runner")
    options = parser.parse_args()
    DOCUMENT.write_text(make_document(options.folder, DOCUMENT.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

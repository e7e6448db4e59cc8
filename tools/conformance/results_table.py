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
SIGNS = {"good": "{}", "mild": "{}", "open": "**{}**", "none": "-"}


def make_document(folder: Path, before: str) -> str:
    """Return the document with the tables of the results in a folder."""
    head, marker, _ = before.partition(START)
    return head + marker + "\n" + "\n".join(_tables(folder)) + "\n"


def _tables(folder: Path) -> Iterator[str]:
    runs = page.read_runs(folder)
    titles = [f"{run['name']} {run['version'].removeprefix('v')}" for run in runs]
    for area, groups in page.group_rows(runs):
        yield f"### {area}\n"
        yield "| Cases | " + " | ".join(titles) + " |"
        yield "| --- |" + " --- |" * len(titles)
        for group in groups:
            cells = [SIGNS[tally.state].format(tally.text) for tally in group.tallies]
            yield f"| {group.title} ({group.severity}) | " + " | ".join(cells) + " |"
        yield ""
    yield "### Writers (lines) by readers (columns)\n"
    yield "| Written by | " + " | ".join(run["name"] for run in runs) + " |"
    yield "| --- |" + " --- |" * len(runs)
    for row in page.matrix_rows(folder, runs):
        cells = [SIGNS[tally.state].format(tally.text) for tally in row["tallies"]]
        yield f"| {row['title']} | " + " | ".join(cells) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="results of the runner")
    options = parser.parse_args()
    DOCUMENT.write_text(make_document(options.folder, DOCUMENT.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Run the attacks of the tamper matrix against modcrypt, and write docs/reference/tamper-matrix.md.

python tools/tamper_matrix.py            run all and write the tables
python tools/tamper_matrix.py --why      also print what modcrypt reported
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from textwrap import wrap

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# After the path: a script's own folder alone is on it.
from tests.support.paths import ROOT
from tests.support.tamper.attacks import ATTACKS
from tests.support.tamper.matrix import Cell, all_readers, run, title

Outcomes = dict[str, dict[str, str]]
"""Outcomes by reader and title of an attack."""

DOCUMENT = ROOT / "docs" / "reference" / "tamper-matrix.md"
START = "<!-- table: python tools/tamper_matrix.py -->\n"
END = "<!-- end of table -->\n"
NOT_TRIED = "n/a: "
LOUD = ("wrong data", "crash", "contacted")
HEADINGS = ("", "Attack", "Keys held")


def run_all(*, why: bool) -> Outcomes:
    """Run all attacks against modcrypt's readers."""
    found: Outcomes = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, reader in all_readers(None).items():
            cells = run(reader, Path(folder) / f"{len(found)}")
            found[name] = {attack: str(cell) for attack, cell in cells.items()}
            if why:
                _print_outcomes(name, cells)
    return found


def _print_outcomes(name: str, outcomes: dict[str, Cell]) -> None:
    for attack, cell in outcomes.items():
        print(f"{name} | {attack} | {cell} | {' '.join(cell.detail.split())[:300]}")


# --- the document ---------------------------------------------------------------------------------


def make_document(outcomes: Outcomes, before: str) -> str:
    """Return the document with the tables of outcomes."""
    head, marker, rest = before.partition(START)
    foot = rest.partition(END)[2]
    return head + marker + "\n" + "\n".join(_lines(outcomes)) + f"\n\n{END}{foot}"


def read_outcomes(document: str) -> Outcomes:
    """Return the outcomes in the tables of a document; those of a run give the same document."""
    rows = [line.strip("| ").split(" | ") for line in document.splitlines() if line[:2] == "| "]
    names = next(row[2:] for row in rows if row[:2] == [*HEADINGS[1:]])
    cells = [row[3:] for row in rows if row[0].isdecimal()]
    return {
        name: {
            title(attack): row[column].strip("*")
            for attack, row in zip(ATTACKS, cells, strict=True)
        }
        for column, name in enumerate(names)
    }


def _lines(outcomes: Outcomes) -> Iterator[str]:
    numbered = enumerate(ATTACKS, 1)
    for group, attacks in groupby(numbered, key=lambda pair: pair[1].group):
        yield f"### {group}\n"
        yield _row(*HEADINGS, *outcomes)
        yield _row(*["---"] * (len(HEADINGS) + len(outcomes)))
        for number, attack in attacks:
            shown = [_spell(found[title(attack)]) for found in outcomes.values()]
            yield _row(str(number), attack.name, attack.who, *shown)
        yield ""
    yield "### What modcrypt lets pass, and what helps\n"
    yield from _limits(outcomes)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _spell(cell: str) -> str:
    return f"**{cell}**" if cell in LOUD else cell


def _limits(outcomes: Outcomes) -> Iterator[str]:
    """Yield for each reason why modcrypt lets attacks pass their numbers, and what helps."""
    passed: dict[str, list[str]] = {}
    for number, attack in enumerate(ATTACKS, 1):
        found = {column[title(attack)] for column in outcomes.values()}
        if any(cell != "detected" and not cell.startswith(NOT_TRIED) for cell in found):
            passed.setdefault(attack.unseen, []).append(str(number))
    for why, numbers in passed.items():
        yield from _wrap(f"- {', '.join(numbers)}: {why}")


def _wrap(item: str) -> Iterator[str]:
    """Yield the lines of a list item: each sentence starts one."""
    for number, sentence in enumerate(re.split(r"(?<=\.) (?=[A-Z`])", item)):
        indent = "  " if number else ""
        yield from wrap(sentence, 100, initial_indent=indent, subsequent_indent="  ")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--why", action="store_true", help="print what modcrypt reported")
    arguments = parser.parse_args()
    DOCUMENT.write_text(make_document(run_all(why=arguments.why), DOCUMENT.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

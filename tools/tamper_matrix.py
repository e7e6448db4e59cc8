"""Run the attacks of the tamper matrix against modcrypt, and write their outcomes.

docs/reference/tamper-matrix.csv has them.

python tools/tamper_matrix.py            run all and write the file
python tools/tamper_matrix.py --why      also print what modcrypt reported
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# After the path: a script's own folder alone is on it.
from tests.support.paths import ROOT
from tests.support.tamper.attacks import ATTACKS
from tests.support.tamper.matrix import Cell, all_readers, run, title

Outcomes = dict[str, dict[str, str]]
"""Outcomes by reader and title of an attack."""

FILE = ROOT / "docs/reference/tamper-matrix.csv"
NOT_TRIED = "n/a: "
REASON = "why it passes, and what helps"


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


# --- the file -------------------------------------------------------------------------------------


def write_outcomes(outcomes: Outcomes) -> str:
    """Return the text of the file: a row for each attack, and why it passes if it does."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(["number", "group", "attack", "keys held", *outcomes, REASON])
    out.writerows(_list_rows(outcomes))
    return text.getvalue()


def _list_rows(outcomes: Outcomes) -> Iterator[list[str]]:
    for number, attack in enumerate(ATTACKS, 1):
        cells = [found[title(attack)] for found in outcomes.values()]
        passes = any(cell != "detected" and not cell.startswith(NOT_TRIED) for cell in cells)
        reason = attack.unseen if passes else ""
        yield [str(number), attack.group, attack.name, attack.who, *cells, reason]


def read_outcomes(text: str) -> Outcomes:
    """Return the outcomes in the text of the file."""
    rows = list(csv.DictReader(io.StringIO(text)))
    return {
        name: {f"{row['group']}: {row['attack']}": row[name] for row in rows}
        for name in [*rows[0]][4:-1]
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--why", action="store_true", help="print what modcrypt reported")
    arguments = parser.parse_args()
    FILE.write_text(write_outcomes(run_all(why=arguments.why)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

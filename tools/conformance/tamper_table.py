"""Write docs/reference/tamper-matrix.md from results: `tamper_table.py FOLDER`.

A cell is the verdict of the suite if the attack is a case that the reader's client declares. The
others are in attacks.json, which `tools/tamper_matrix.py` measures: those of attacks that need
filters, datasets or policies, and of readers that are no clients.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from pathlib import Path
from textwrap import wrap
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for a run as a script

from tools.conformance.registry import ROOT
from tools.conformance.verdicts import CONTACTED, FAIL_OPEN, PASS

Json = dict[str, Any]
Outcomes = dict[str, dict[str, str]]
"""Outcomes by reader and title of an attack."""

DOCUMENT = ROOT / "docs" / "reference" / "tamper-matrix.md"
START = "<!-- table: python tools/conformance/tamper_table.py -->\n"
END = "<!-- end of table -->\n"
ATTACKS = "attacks.json"
CLIENTS = {
    "`read_table`": ("modcrypt", ("parquet", "pkmt1")),
    "PyArrow, keys": ("pyarrow", ("parquet",)),
    "PyArrow, KMS": ("pyarrow", ("pkmt1",)),
    "parquet-java, keys": ("parquet-java", ("parquet",)),
    "parquet-java, KMS": ("parquet-java", ("pkmt1",)),
    "Polars": ("polars", ("parquet",)),
    "DuckDB": ("duckdb", ("parquet",)),
}
"""Clients of the suite, and the formats they stand for, by the matrix's readers."""
OURS = 3
"""The first readers are modcrypt's: reading, decrypting, verifying."""
NOT_TRIED = "n/a: "
LOUD = ("wrong data", "crash", "token sent")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
HEADINGS = ("", "Attack", "Keys held", "Case")


def attack_title(attack: Json) -> str:
    """Return the unique name of an attack."""
    return f"{attack['group']}: {attack['name']}"


# --- outcomes -------------------------------------------------------------------------------------


def case_outcome(folder: Path, reader: str, case: str) -> str | None:
    """Return what the suite has for a reader and a case (`parquet/NAME`), None if nothing."""
    client, formats = CLIENTS.get(reader, ("", ()))
    if case.partition("/")[0] not in formats:
        return None
    verdict = _cases(folder / f"{client}.json").get(f"read/{case}")
    return None if verdict is None else _outcome(verdict)


@cache
def _cases(path: Path) -> Json:
    cases: Json = json.loads(path.read_text()).get("cases", {})
    return cases


def _outcome(verdict: Json) -> str:
    """Return the matrix's word for a verdict.

    A pass without a message is a file that may be accepted: one that names a hostile address.
    """
    kind, detail = verdict.get("failure", verdict["verdict"]), verdict.get("detail", "")
    if kind == PASS:
        return "detected" if detail else "accepted"
    if kind == FAIL_OPEN and verdict.get("intact"):
        return "accepted"
    if kind == FAIL_OPEN:
        return "token sent" if detail == CONTACTED else "wrong data"
    return str(kind)


def read_outcomes(folder: Path) -> Outcomes:
    """Return all cells of the matrix."""
    document = _read(folder)
    return {
        reader: {
            attack_title(attack): _cell(folder, reader, attack, found["outcomes"])
            for attack in document["attacks"]
        }
        for reader, found in document["readers"].items()
    }


def _cell(folder: Path, reader: str, attack: Json, measured: dict[str, str]) -> str:
    return case_outcome(folder, reader, attack["case"]) or measured[attack_title(attack)]


def _read(folder: Path) -> Json:
    document: Json = json.loads((folder / ATTACKS).read_text())
    return document


# --- the document ---------------------------------------------------------------------------------


def make_document(folder: Path, before: str) -> str:
    """Return the document with the tables of the results in a folder."""
    head, marker, rest = before.partition(START)
    foot = rest.partition(END)[2]
    return head + marker + "\n" + "\n".join(_lines(folder)) + f"\n\n{END}{foot}"


def _lines(folder: Path) -> Iterator[str]:
    document, outcomes = _read(folder), read_outcomes(folder)
    cells = [cell for found in outcomes.values() for cell in found.values()]
    reasons = list(dict.fromkeys(cell for cell in cells if cell.startswith(NOT_TRIED)))
    versions = dict.fromkeys(found["version"] for found in document["readers"].values())
    yield f"Run with {', '.join(versions)}.\n"
    numbered = enumerate(document["attacks"], 1)
    for group, attacks in groupby(numbered, key=lambda pair: str(pair[1]["group"])):
        yield f"### {group}\n"
        yield _row(*HEADINGS, *outcomes)
        yield _row(*["---"] * (len(HEADINGS) + len(outcomes)))
        for number, attack in attacks:
            shown = [_spell(found[attack_title(attack)], reasons) for found in outcomes.values()]
            case = attack["case"].partition("/")[2]
            yield _row(str(number), attack["name"], attack["held"], case and f"`{case}`", *shown)
        yield ""
    yield "Why a reader was not tried:\n"
    for letter, reason in zip(LETTERS, reasons, strict=False):
        yield f"- {letter}: {reason.removeprefix(NOT_TRIED)}"
    yield "\n### What modcrypt lets pass, and what helps\n"
    yield from _limits(document["attacks"], list(outcomes.values())[:OURS])


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _spell(cell: str, reasons: list[str]) -> str:
    if cell in reasons:
        return f"n/a ({LETTERS[reasons.index(cell)]})"
    return f"**{cell}**" if cell in LOUD else cell


def _limits(attacks: list[Json], ours: list[dict[str, str]]) -> Iterator[str]:
    """Yield for each reason why modcrypt lets attacks pass their numbers, and what helps."""
    passed: dict[str, list[str]] = {}
    for number, attack in enumerate(attacks, 1):
        found = {column[attack_title(attack)] for column in ours}
        if any(cell != "detected" and not cell.startswith(NOT_TRIED) for cell in found):
            passed.setdefault(attack["unseen"], []).append(str(number))
    for why, numbers in passed.items():
        yield from _wrap(f"- {', '.join(numbers)}: {why}")


def _wrap(item: str) -> Iterator[str]:
    """Yield the lines of a list item: each sentence starts one."""
    for number, sentence in enumerate(re.split(r"(?<=\.) (?=[A-Z`])", item)):
        indent = "  " if number else ""
        yield from wrap(sentence, 100, initial_indent=indent, subsequent_indent="  ")


def write_document(folder: Path) -> None:
    """Write the tables of the results in a folder into the document."""
    DOCUMENT.write_text(make_document(folder, DOCUMENT.read_text()))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="results of the runner, and attacks.json")
    write_document(parser.parse_args().folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())

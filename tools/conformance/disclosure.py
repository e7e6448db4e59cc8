"""Fail if the corpus and results disclose a fault of another implementation.

    python tools/conformance/disclosure.py [FOLDER]

Files that another implementation must refuse are published only if it refuses them with an ordinary
error. PROTOCOL.md states the rule.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for a run as a script

from tools.conformance import corpus
from tools.conformance.corpus import Case
from tools.conformance.expected_failures import read_expected
from tools.conformance.registry import CLIENTS
from tools.conformance.run import ClientRun
from tools.conformance.verdicts import CRASH, FAIL_CLOSED, FAIL_OPEN, NOT_DECLARED, PASS, TIMEOUT

Json = dict[str, Any]
OURS = "modcrypt"
"""The client whose failures this project may publish."""
RESULTS = Path(__file__).with_name("results")
SECRET = (FAIL_OPEN, CRASH, TIMEOUT)
"""Failures that are reported privately, whatever the case demands."""
_EXHAUSTED = re.compile(r"OutOfMemory|MemoryError|bad_alloc|StackOverflow|RecursionError", re.I)
"""Errors of a reader that ran out of memory or stack: no ordinary refusal."""


def is_secret(case: Case, kind: str, detail: str = "") -> bool:
    """Return whether a verdict on another implementation must not be published.

    Args:
        case: The case, for readers or writers.
        kind: The verdict; of an expected failure, the failure.
        detail: What the reader reported.
    """
    if kind in SECRET:
        return True
    refused = kind in (PASS, NOT_DECLARED) and not _EXHAUSTED.search(detail)
    return is_hostile(case) and not refused


def find_secrets(run: ClientRun) -> list[str]:
    """Return the read cases for which the results of a run must not be published."""
    return [
        name
        for name, (case, verdict) in run.verdicts.items()
        if run.entry.name != OURS and case.direction == "read"
        and is_secret(case, verdict.failure or verdict.kind, verdict.detail)
    ]  # fmt: skip


def is_hostile(case: Case) -> bool:
    """Return whether a case has a file that a reader must refuse, or that somebody modified."""
    suspect = case.severity == "security" or case.raw["outcome"] == "refuse"
    return case.direction == "read" and suspect


def find_disclosures(folder: Path, cases: Iterable[Case]) -> Iterator[str]:
    """Yield what the results in a folder say that belongs into a private report."""
    known = {case.id: case for case in cases}
    for path in sorted(folder.glob("*.json")):
        document = json.loads(path.read_text())
        if path.stem == "matrix":
            yield from _matrix_disclosures(document)
        elif path.stem != OURS:
            yield from _run_disclosures(path.stem, document.get("cases", {}), known)


def _run_disclosures(client: str, found: Json, known: dict[str, Case]) -> Iterator[str]:
    for name, verdict in found.items():
        kind = verdict.get("failure") or verdict["verdict"]
        if name not in known:
            yield f"{client}: {name} is no case of spec-vectors"
        elif is_secret(known[name], kind, verdict.get("detail", "")):
            yield f"{client}: {name}: {kind}"


def _matrix_disclosures(matrix: Json) -> Iterator[str]:
    """Yield readers that do worse than refuse what another implementation wrote."""
    for writer, readers in matrix.items():
        for reader, found in readers.items():
            for name, verdict in found.items():
                if reader != OURS and verdict["verdict"] in SECRET:
                    yield f"{reader}: {name} written by {writer}: {verdict['verdict']}"


def find_expected(folder: Path) -> Iterator[str]:
    """Yield expected failures in a folder's lists that are no refusals of valid files."""
    for path in sorted(folder.glob("*.xfails")):
        for entry in read_expected(path):
            if entry.verdict != FAIL_CLOSED:
                yield f"{path.name}: {entry.pattern} {entry.verdict}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=RESULTS, help="results")
    folder = parser.parse_args().folder
    cases = (*corpus.read_cases(), *corpus.write_cases())
    found = [*find_disclosures(folder, cases), *find_expected(CLIENTS)]
    print(*found, sep="\n", end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())

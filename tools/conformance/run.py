"""Run one client against all cases, and all readers against all that was written."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from tools.conformance import corpus
from tools.conformance.client import Abilities, Client
from tools.conformance.contacts import Listener
from tools.conformance.corpus import Case
from tools.conformance.expected_failures import (
    ExpectedFailure,
    apply_expected,
    read_expected,
    unused,
)
from tools.conformance.process import ClientGoneError, ClientTimeoutError
from tools.conformance.reading import run_reads
from tools.conformance.registry import Entry, SkippedError
from tools.conformance.verdicts import FAIL_OPEN, FAILURES, Verdict
from tools.conformance.writing import Written, read_back, run_writes

Verdicts = dict[str, tuple[Case, Verdict]]
Matrix = dict[str, dict[str, dict[str, Verdict]]]
"""Verdicts by writer, reader and scenario."""


@dataclass
class ClientRun:
    """Results of a client; `skipped` is the reason if it did not run."""

    entry: Entry
    skipped: str | None = None
    abilities: Abilities | None = None
    verdicts: Verdicts = field(default_factory=dict)
    files: list[Written] = field(default_factory=list)
    seconds: float = 0.0
    unused: list[str] = field(default_factory=list)

    def unexpected(self) -> Verdicts:
        """Return the failures that nobody expected."""
        return {name: found for name, found in self.verdicts.items() if found[1].kind in FAILURES}

    def counts(self, severity: str) -> Counter[str]:
        """Count the verdicts of cases of a severity."""
        return Counter(
            verdict.kind
            for case, verdict in self.verdicts.values()
            if severity_of(case, verdict) == severity
        )


def severity_of(case: Case, verdict: Verdict) -> str:
    """Return the severity of a verdict; a writer that exposes something is always unsafe."""
    unsafe = case.direction == "write" and FAIL_OPEN in (verdict.kind, verdict.failure)
    return "security" if unsafe else case.severity


def run_client(entry: Entry, work: Path, options: argparse.Namespace) -> ClientRun:
    """Build and run a client; whatever it does becomes a verdict."""
    start = time.monotonic()
    run = ClientRun(entry)
    client = Client(entry.argv(), entry.folder, options.timeout)
    try:
        entry.prepare()
        run.abilities = client.start()
        expected = read_expected(entry.xfails)
        if options.private:
            expected += read_expected(options.private / f"{entry.name}.xfails")
        _run_cases(run, client, work, options, expected)
        run.unused = [] if options.only != "*" else unused(expected)
    except SkippedError as error:
        run.skipped = str(error)
    except (ClientGoneError, ClientTimeoutError, OSError) as error:
        run.skipped = f"it does not start: {error}"
    finally:
        client.close()
    run.seconds = time.monotonic() - start
    return run


def _run_cases(
    run: ClientRun,
    client: Client,
    work: Path,
    options: argparse.Namespace,
    expected: list[ExpectedFailure],
) -> None:
    assert run.abilities is not None
    folder = work / run.entry.name
    (folder / "read").mkdir(parents=True)
    reads = _select(all_read_cases(options.private), options.only)
    writes = _select(corpus.write_cases(), options.only)
    with Listener() as listener:
        found = run_reads(client, run.abilities, reads, folder / "read", listener)
    written, run.files = run_writes(client, run.abilities, writes, folder / "written")
    run.verdicts = {
        name: (case, apply_expected(name, verdict, expected))
        for name, (case, verdict) in (found | written).items()
    }


def all_read_cases(private: Path | None) -> list[Case]:
    """Return the cases for readers, with those of a private folder at the end."""
    return [*corpus.read_cases(), *(corpus.read_cases(private) if private else ())]


def _select(cases: Iterable[Case], only: str) -> list[Case]:
    """Return the cases that match a pattern, and their controls."""
    known = list(cases)
    wanted = [case for case in known if fnmatchcase(case.id, only)]
    controls = {case.control for case in wanted}
    return [case for case in known if case in wanted or case.id in controls]


def read_matrix(runs: list[ClientRun], work: Path, options: argparse.Namespace) -> Matrix:
    """Return how every client reads the files of every other, and its own."""
    found: Matrix = {run.entry.name: {} for run in runs if run.abilities is not None}
    for reader in runs:
        if reader.abilities is None:
            continue
        client = Client(reader.entry.argv(), reader.entry.folder, options.timeout)
        try:
            for writer in runs:
                if writer.abilities is not None:
                    found[writer.entry.name][reader.entry.name] = read_back(
                        client, reader.abilities, writer.files, work / "matrix"
                    )
        finally:
            client.close()
    return found

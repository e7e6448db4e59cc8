"""The file CLIENT.xfails: one expected failure per line, `pattern verdict # reason`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from tools.conformance.verdicts import FAILURES, Verdict


class ExpectationError(ValueError):
    """A file of expected failures that cannot be used."""


@dataclass
class ExpectedFailure:
    """A line; `used` counts the failures that it covers."""

    pattern: str
    verdict: str
    reason: str
    used: int = field(default=0)


def read_expected(path: Path | None) -> list[ExpectedFailure]:
    """Return the entries of a file, none without one.

    Raises:
        ExpectationError: A line has no reason, or names no failure.
    """
    if path is None or not path.exists():
        return []
    lines = path.read_text().splitlines()
    return [_entry(path, line) for line in lines if line.strip() and not line.startswith("#")]


def _entry(path: Path, line: str) -> ExpectedFailure:
    rule, _, reason = line.partition(" # ")
    pattern, _, verdict = rule.strip().partition(" ")
    if not reason.strip():
        raise ExpectationError(f"{path}: {pattern} has no reason; write it after ' # '")
    if verdict.strip() not in FAILURES:
        kinds = ", ".join(FAILURES)
        raise ExpectationError(f"{path}: {pattern}: {verdict!r} is not one of {kinds}")
    return ExpectedFailure(pattern, verdict.strip(), reason.strip())


def apply_expected(case: str, verdict: Verdict, entries: Iterable[ExpectedFailure]) -> Verdict:
    """Return a verdict as an expected failure if a line covers it."""
    for entry in entries:
        if entry.verdict == verdict.kind and fnmatchcase(case, entry.pattern):
            entry.used += 1
            return verdict.expect(entry.reason)
    return verdict


def unused(entries: Iterable[ExpectedFailure]) -> list[str]:
    """Return the patterns that covered no failure: what they excuse no longer happens."""
    return [f"{entry.pattern} {entry.verdict}" for entry in entries if not entry.used]

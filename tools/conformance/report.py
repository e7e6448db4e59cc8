"""Results: JSON files and badges, a JUnit report, and a summary for the terminal."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from tools.conformance.disclosure import OURS, SECRET, is_hostile, is_secret
from tools.conformance.run import ClientRun, Matrix, Verdicts, severity_of
from tools.conformance.verdicts import (
    ALL,
    EXPECTED,
    FAIL_CLOSED,
    FAIL_OPEN,
    FAILURES,
    NOT_DECLARED,
    NOT_JUDGED,
    PASS,
    Verdict,
)

Json = dict[str, Any]
_PATH = re.compile(r"(?<![\w/.])(?:/[\w.@+~-]+)+/([\w.@+~-]+)")
_NUMBER = re.compile(r"0x[0-9a-f]{4,}|(?<=@)[0-9a-f]{6,8}\b|(?<=\()\d{3,}(?=\))|(?<=goroutine )\d+")
_RANDOM = re.compile(r"\b0x[0-9a-f]+\b|\b[0-9a-f]{8,}\b|\b\d+\b", re.IGNORECASE)
MAX_TEXT = 4000
"""Characters of a client's text that are looked at: it may be as long as an answer."""
SHOWN = 240
"""Characters of a detail in results."""
SEVERITIES = ("security", "feature")


def print_summary(runs: list[ClientRun]) -> None:
    """Print a line per client and severity, and every unexpected failure."""
    for run in runs:
        name = run.entry.name
        if run.abilities is None:
            print(f"{name}: skipped: {_printable(run.skipped or '')}")
            continue
        print(f"{name} {_printable(run.abilities.version)} ({run.seconds:.0f} s)")
        for severity in SEVERITIES:
            counts = run.counts(severity)
            shown = ", ".join(f"{counts[kind]} {kind}" for kind in ALL if counts[kind])
            print(f"  {severity}: {shown}")
        for reason, count in _unjudged(run).items():
            print(f"  {count} scenarios {_printable(reason)}")
        for case, (_, verdict) in run.unexpected().items():
            intact = " (rows intact)" if verdict.intact else ""
            print(f"  {verdict.kind}{intact}: {case}: {shorten(verdict.detail)}")
        for pattern in run.unused:
            print(f"  expected, but it did not happen: {pattern}")


def _unjudged(run: ClientRun) -> Counter[str]:
    """Count the scenarios that were not asked for because nobody here can judge them."""
    details = [verdict.detail for _, verdict in run.verdicts.values()]
    return Counter(detail for detail in details if detail.startswith(NOT_JUDGED))


def publish(run: ClientRun) -> ClientRun:
    """Return what may be published of a run.

    The results of another implementation lack scenarios in which its writer exposes something, and
    what it reported about hostile files.
    """
    if run.entry.name == OURS:
        return run
    kept: Verdicts = {}
    for name, (case, verdict) in run.verdicts.items():
        if not is_secret(case, verdict.failure or verdict.kind):
            kept[name] = (case, replace(verdict, detail="") if is_hostile(case) else verdict)
    return replace(run, verdicts=kept)


def print_left_out(runs: list[ClientRun], published: list[ClientRun]) -> None:
    """Print how many scenarios of each client are left out of its results."""
    for run, shown in zip(runs, published, strict=True):
        if count := len(run.verdicts) - len(shown.verdicts):
            print(f"{run.entry.name}: {count} scenarios are left out of the results; report them")


def publish_matrix(matrix: Matrix) -> Matrix:
    """Return the matrix with one verdict for all readers that return no rows of a file."""
    return {
        writer: {
            reader: {
                name: Verdict(FAIL_CLOSED) if verdict.kind in SECRET else verdict
                for name, verdict in found.items()
            }
            for reader, found in readers.items()
        }
        for writer, readers in matrix.items()
    }


def write_results(folder: Path, runs: list[ClientRun], matrix: Matrix) -> None:
    """Write CLIENT.json and CLIENT.badge.json for each client, and matrix.json."""
    folder.mkdir(parents=True, exist_ok=True)
    for run in runs:
        name = run.entry.name
        _write(folder / f"{name}.json", describe_run(run))
        if run.abilities is not None:
            _write(folder / f"{name}.badge.json", badge(run))
    if matrix:
        _write(folder / "matrix.json", {
            writer: {reader: describe_verdicts(found) for reader, found in readers.items()}
            for writer, readers in matrix.items()
        })  # fmt: skip


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def describe_run(run: ClientRun) -> Json:
    """Return a run as JSON."""
    if run.abilities is None:
        return {"client": run.entry.name, "skipped": shorten(run.skipped or "")}
    abilities = run.abilities
    return {
        "client": run.entry.name,
        "name": abilities.name,
        "version": abilities.version,
        "declared": {
            way: {
                "formats": sorted(abilities.formats[way]),
                "features": sorted(abilities.features[way]),
            }
            for way in ("read", "write")
        },
        "counts": {severity: dict(run.counts(severity)) for severity in SEVERITIES},
        "cases": {
            name: {
                "severity": severity_of(case, verdict),
                **describe_verdict(verdict, written=case.direction == "write"),
            }
            for name, (case, verdict) in run.verdicts.items()
            if verdict.kind != NOT_DECLARED
        },
    }


def describe_verdicts(found: dict[str, Verdict]) -> Json:
    """Return the verdicts of what was declared."""
    return {
        case: describe_verdict(verdict, written=True)
        for case, verdict in found.items()
        if verdict.kind != NOT_DECLARED
    }


def shorten(detail: str, *, written: bool = False) -> str:
    """Return the start of a detail in a line, without what differs from run to run.

    Args:
        detail: Text of a client or of the verifier.
        written: Whether the text is about a file that a client wrote; its bytes are random, so
            that numbers in the text may be.
    """
    text = _NUMBER.sub("0", _PATH.sub(r"\1", _printable(detail)))
    return (_RANDOM.sub("#", text) if written else text)[:SHOWN]


def _printable(text: str) -> str:
    """Return a client's text in a line, without characters that change what a terminal shows."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text[:MAX_TEXT].split()))


def describe_verdict(verdict: Verdict, *, written: bool) -> Json:
    """Return the members of a verdict that say something; `written` as for `shorten`."""
    members = {
        "verdict": verdict.kind,
        "failure": verdict.failure,
        "intact": verdict.intact,
        "detail": shorten(verdict.detail, written=written) or None,
        "reason": verdict.reason,
    }
    return {name: value for name, value in members.items() if value is not None}


def badge(run: ClientRun) -> Json:
    """Return a badge in the form of shields.io's endpoint."""
    counts: Counter[str] = Counter()
    for _, verdict in run.verdicts.values():
        counts[verdict.failure or verdict.kind] += 1
    open_cases = counts[FAIL_OPEN]
    ran = sum(counts.values()) - counts[NOT_DECLARED]
    message = f"{counts[PASS]} of {ran} passed" + (f", {open_cases} fail open" * bool(open_cases))
    clean = counts[PASS] == ran
    color = "brightgreen" if clean else "red" if open_cases else "yellow"
    return {"schemaVersion": 1, "label": "PME conformance", "message": message, "color": color}


def write_junit(path: Path, runs: list[ClientRun]) -> None:
    """Write a JUnit report: a suite per client, a case per verdict."""
    root = ET.Element("testsuites")
    for run in runs:
        suite = ET.SubElement(root, "testsuite", name=run.entry.name)
        if run.abilities is None:
            case = ET.SubElement(suite, "testcase", classname=run.entry.name, name="start")
            ET.SubElement(case, "skipped", message=run.skipped or "")
        for name, (_, verdict) in run.verdicts.items():
            case = ET.SubElement(suite, "testcase", classname=run.entry.name, name=name)
            text = _printable(verdict.detail)
            if verdict.kind in FAILURES:
                ET.SubElement(case, "failure", message=verdict.kind).text = text
            elif verdict.kind in (NOT_DECLARED, EXPECTED):
                message = f"{verdict.kind}: {verdict.reason or text}"
                ET.SubElement(case, "skipped", message=message)
        suite.set("tests", str(len(run.verdicts)))
        suite.set("failures", str(len(run.unexpected())))
        suite.set("time", f"{run.seconds:.1f}")
    ET.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)

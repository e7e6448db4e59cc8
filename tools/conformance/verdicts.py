"""Judge the answer of a client to a case."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tools.conformance.corpus import Case
from tools.conformance.rows import row_digest

Json = dict[str, Any]

PASS = "pass"
FAIL_OPEN = "fail-open"
FAIL_CLOSED = "fail-closed"
WRONG_ROWS = "wrong rows"
CRASH = "crash"
TIMEOUT = "timeout"
NOT_DECLARED = "not declared"
EXPECTED = "expected failure"

NOT_JUDGED = "not judged: "
"""Beginning of the detail of a scenario that is not declared because no verifier can run here."""
CONTACTED = "connected to an address that the file names"
FAILURES = (FAIL_OPEN, FAIL_CLOSED, WRONG_ROWS, CRASH, TIMEOUT)
SUBSTITUTIONS = {"plaintext", "aad-prefix", "signature", "writer-signature", "no-key"}
"""Error codes of files in another one's place: that their rows are the same is no comfort."""

ALL = (PASS, *FAILURES, EXPECTED, NOT_DECLARED)


@dataclass(frozen=True)
class Verdict:
    """A verdict and its reason.

    `intact` tells of a fail-open whether the reader nevertheless returned the right rows: it
    ignored modified bytes that cost nothing. `failure` and `reason` are those of an expected
    failure.
    """

    kind: str
    detail: str = ""
    intact: bool | None = None
    failure: str | None = None
    reason: str | None = None

    def expect(self, reason: str) -> Verdict:
        """Return the verdict of a failure that the list of expected failures has."""
        return replace(self, kind=EXPECTED, failure=self.kind, reason=reason)


def judge_read(case: Case, answer: Json, contacted: bool, control: Json | None) -> Verdict:
    """Judge the result of a read; `control` is what the valid case expects."""
    outcome, message = answer["outcome"], answer.get("message", "")
    if contacted:
        return Verdict(FAIL_OPEN, CONTACTED)
    if outcome == "unsupported":
        return Verdict(NOT_DECLARED, message)
    demanded = case.raw.get("outcome")
    if outcome == "error":
        kind = FAIL_CLOSED if demanded == "accept" else PASS
        return Verdict(kind, message)
    if case.raw.get("operation") == "metadata":
        return _judge_metadata(case, answer)
    if demanded == "refuse":
        substituted = case.raw["expect"] in SUBSTITUTIONS
        intact = _matches(control or {}, answer) and not substituted
        return Verdict(FAIL_OPEN, "returned " + describe_answer(answer), intact)
    if answer["outcome"] == "findings":
        return _judge_findings(case, answer)
    if demanded == "either" and _expected(case.raw) is None:
        return Verdict(PASS, describe_answer(answer))
    if not _matches(case.raw, answer):
        return Verdict(WRONG_ROWS, "returned " + describe_answer(answer))
    return Verdict(PASS)


def _judge_metadata(case: Case, answer: Json) -> Verdict:
    if shown := sorted({*answer["columns"]} & {*case.raw["keyless"]}):
        return Verdict(FAIL_OPEN, f"returned metadata of {', '.join(shown)} without the key")
    return Verdict(PASS, f"returned metadata of {', '.join(answer['columns']) or 'no column'}")


def _judge_findings(case: Case, answer: Json) -> Verdict:
    """Judge what a reader found in a folder or table whose seal is valid."""
    expected = {(path, problem) for path, problem in case.raw.get("findings", ())}
    found = {(finding["path"], finding["problem"]) for finding in answer["findings"]}
    if missed := expected - found:
        return Verdict(FAIL_OPEN, f"did not report {_list_findings(missed)}")
    if more := found - expected:
        return Verdict(FAIL_CLOSED, f"reported {_list_findings(more)}")
    return Verdict(PASS)


def _list_findings(findings: set[tuple[str, str]]) -> str:
    return ", ".join(f"{path} as {problem}" for path, problem in sorted(findings))


def _expected(raw: Json) -> Json | None:
    """Return what a case says about rows, bytes or keys."""
    if "hex" in raw:  # key metadata
        return raw if raw["expect"] == "ok" else None
    found: Json | None = raw.get("rows") or raw.get("plaintext")
    return found


def _matches(raw: Json, answer: Json) -> bool:
    expected = _expected(raw)
    if expected is None:
        return False
    if answer["outcome"] == "rows":
        return bool(row_digest(answer["columns"], answer["rows"]) == expected["sha256"])
    if answer["outcome"] == "bytes":
        return all(answer[name] == expected.get(name) for name in ("length", "sha256"))
    if answer["outcome"] == "key":
        # An empty prefix and none are the same, as the format says.
        names = ("key", "file_length")
        same = all(answer[name] == expected.get(name) for name in names)
        return same and (answer["aad_prefix"] or "") == (expected.get("aad_prefix") or "")
    return False


def describe_answer(answer: Json) -> str:
    """Return a short text about a result."""
    if answer["outcome"] == "rows":
        digest = row_digest(answer["columns"], answer["rows"])
        return f"{len(answer['rows'])} rows with digest {digest[:16]}"
    if answer["outcome"] == "bytes":
        return f"{answer['length']} bytes with digest {answer['sha256'][:16]}"
    return str(answer["outcome"])

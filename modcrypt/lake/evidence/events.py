"""The events of the record of evidence, and what a check of the record finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from modcrypt.errors import MAX_NAME, printable
from modcrypt.report.fact_sheet import FactSheet
from modcrypt.report.json_fields import JsonFields

MAX_WORDS = 20
"""Largest number of error codes of a dataset that an event counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetResult(JsonFields):
    """The result of an event in one dataset.

    Attributes:
        dataset: Name of the dataset.
        code: Exit code: 0 if everything was as declared, or is now.
        files: Number of files.
        counts: Number of files by result, such as "encrypted", or by what was found, such as
            "correct".
        findings: Number of findings by error code; the most frequent ones.
    """

    dataset: str
    code: int = 0
    files: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    findings: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, dataset: str, code: int, files: int, counts: Mapping[str, int],
        findings: Mapping[str, int] | None = None,
    ) -> DatasetResult:  # fmt: skip
        """Return a result of limited size, without counts of nothing."""
        return cls(
            dataset=printable(dataset, MAX_NAME), code=code, files=files,
            counts={name: count for name, count in counts.items() if count},
            findings=dict(Counter(findings).most_common(MAX_WORDS)),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedRecord(JsonFields):
    """The content of another record beside the declaration when an event was recorded.

    Attributes:
        name: Name of its file, such as `modcrypt.erased.jsonl`.
        first: Number of the first line that was added since the event began; greater than `lines`
            if none was.
        lines: Number of lines that it had.
        bytes: Number of bytes that it had.
        sha256: SHA-256 of these bytes, in hex.
    """

    name: str
    first: int
    lines: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceEvent(JsonFields):
    """A line of the record of evidence.

    Attributes:
        number: Number of the line, from 1.
        hash: SHA-256 of the line, in hex, which the next line repeats.
        time: Time by the clock of the writer, ISO 8601 in UTC.
        event: "apply", "verify", "shred", "erase" (of subjects), "rotate" (new versions of master
            keys, `keys rotate` of files, or `subjects rotate`) or "leak" (an inventory of what
            compromised keys open).
        phase: "begun" before something changes; "done" or "failed" at its end.
        begun: Number of the line at which it began; None if it has none.
        user: User name of the operating system; a claim of the writer.
        signer: Id of the key of `signed_by` that signed the line; None if none did.
        version: Version of modcrypt.
        declaration: SHA-256 of the declaration with all files that it includes, in hex, as
            `modcrypt trust --print` shows it.
        scope: What limits a verification: "since", "resume" or "parts"; empty without a limit.
        request: Id of the request to erase; empty without one.
        error: Error code of a failure; empty without one.
        keys: Master keys that the event is about: those with new versions, or compromised ones.
        results: What was done or found in each dataset; those with faults first.
        more_datasets: Number of datasets that `results` leaves out.
        records: Other records as they were then, which prove what the event states.
    """

    number: int
    hash: str
    time: str
    event: str
    phase: str
    begun: int | None = None
    user: str = ""
    signer: str | None = None
    version: str
    declaration: str
    scope: str = ""
    request: str = ""
    error: str = ""
    keys: Sequence[str] = ()
    results: Sequence[DatasetResult] = ()
    more_datasets: int = 0
    records: Sequence[LinkedRecord] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceFinding(JsonFields):
    """A fault of the record of evidence.

    Attributes:
        line: Number of the line in the file; None if it concerns no line.
        word: "format", "chain", "signature", "record" or "truncation".
        message: What is wrong, and what it means.
    """

    line: int | None
    word: str
    message: str


@dataclass(frozen=True, kw_only=True, repr=False)
class EvidenceCheck(FactSheet, JsonFields):
    """A record of evidence, and whether it is as it was written.

    Attributes:
        path: Path of the record.
        lines: Number of lines.
        signed: Number of lines with a signature that was checked.
        signers: Ids of the keys that signed them.
        head: `NUMBER:HASH` of the last line; empty without lines.
        findings: Faults, in the order of the lines.
        more_findings: Number of faults that are not listed.
        interrupted: Numbers of lines at which something began whose end is not recorded: it was
            interrupted, or still runs.
        events: The events, newest last.
        more_events: Number of older events that are left out.
    """

    path: str
    lines: int
    signed: int
    signers: Sequence[str]
    head: str
    findings: Sequence[EvidenceFinding]
    more_findings: int = 0
    interrupted: Sequence[int] = ()
    events: Sequence[EvidenceEvent] = ()
    more_events: int = 0

    _first = ("ok",)

    @property
    def ok(self) -> bool:
        """True if the record has no fault."""
        return not self.findings

    def facts(self) -> list[tuple[str, str]]:
        """Return labels and values for people."""
        return [
            ("Record", self.path),
            ("Lines", f"{self.lines:,}"),
            ("Signed", f"{self.signed:,}"),
            ("Faults", f"{len(self.findings) + self.more_findings:,}"),
            ("Head", self.head),
        ]

"""Check the record of evidence: its chain, its signatures, and the records that it names.

Nothing but the files beside the declaration is read. Without signatures, a record that was replaced
as a whole has no fault, and lines that were cut off at the end leave none in any case: compare a
head that is kept elsewhere.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from modcrypt.kms.signing.signing_keys import VerifyingKey, read_verifying_keys
from modcrypt.lake.declarations.declaration import LakeDeclaration
from modcrypt.lake.evidence.events import (
    EvidenceCheck,
    EvidenceEvent,
    EvidenceFinding,
    LinkedRecord,
)
from modcrypt.lake.evidence.evidence_lines import (
    MAX_RECORD,
    START,
    EvidenceLine,
    hash_line,
    parse_line,
    record_path,
)
from modcrypt.lake.evidence.linked_records import list_altered
from modcrypt.lake.record_file import find_signer
from modcrypt.report.text import format_count

MAX_FINDINGS = 100
"""Largest number of faults that are listed; further ones are counted."""

MAX_EVENTS = 500
"""Number of events that a report lists, the newest ones."""


def check_declared(
    declaration: LakeDeclaration, signed_by: Sequence[VerifyingKey] = (), *,
    at_least: str | None = None, events: int | None = None,
) -> EvidenceCheck:  # fmt: skip
    """Check the record beside a declaration, as it declares; see `Lake.read_evidence`.

    `signed_by` replaces the keys that the declaration names.
    """
    declared = () if declaration.evidence is None else declaration.evidence.signed_by
    signers = signed_by or read_verifying_keys(declared)
    return check_evidence(record_path(declaration.path), signers, at_least, events)


def check_evidence(
    path: Path, signers: Collection[VerifyingKey] = (), at_least: str | None = None,
    events: int | None = None,
) -> EvidenceCheck:  # fmt: skip
    """Check a record; without a file it has no lines.

    Args:
        signers: Keys, one of which must have signed each line; none to check no signature.
        at_least: A line that the record must have, `NUMBER` or `NUMBER:HASH`.
        events: Number of events to return, the newest ones; None for all.

    Raises:
        ValueError: `at_least` names no line.
        OSError: The record, or one that it names, cannot be read.
    """
    known = re.fullmatch(r"([1-9][0-9]{0,8})(?::([0-9a-f]{64}))?", at_least or "1")
    if known is None:
        raise ValueError("name a line by NUMBER or NUMBER:HASH, as report --check prints its head")
    check = _Check(signers, deque(maxlen=events))
    with suppress(FileNotFoundError), path.open("rb") as file:
        data = file.read(MAX_RECORD + 1)
        if len(data) > MAX_RECORD:
            check.add(None, "format", f"the record is longer than {MAX_RECORD} bytes")
        for text in data[:MAX_RECORD].splitlines():
            check.add_line(text)
            if check.lines == int(known[1]) and known[2] not in (None, check.hash):
                check.add(check.lines, "chain", "it is not the line with the hash that was given")
    check.compare_records(path.parent)
    if at_least is not None and check.lines < int(known[1]):
        check.add(None, "truncation", f"the record ends before line {known[1]}")
    return EvidenceCheck(
        path=str(path), lines=check.lines, signed=check.signed, signers=sorted(check.signers),
        head=f"{check.lines}:{check.hash}" if check.lines else "",
        findings=tuple(sorted(check.findings, key=lambda finding: finding.line or 0)),
        more_findings=check.total - len(check.findings),
        interrupted=tuple(check.open)[-MAX_FINDINGS:], events=tuple(check.events),
        more_events=check.count - len(check.events),
    )  # fmt: skip


@dataclass
class _Check:
    """The check of a record, line by line."""

    keys: Collection[VerifyingKey]
    events: deque[EvidenceEvent]  # the newest ones
    findings: list[EvidenceFinding] = field(default_factory=list)
    total: int = 0  # number of findings
    lines: int = 0
    count: int = 0  # number of events
    last: int = 0  # number that the line before has
    hash: str = START
    open: dict[int, str] = field(default_factory=dict)  # events that begun, by number
    claims: dict[LinkedRecord, int] = field(default_factory=dict)  # and the lines that have them
    signed: int = 0
    signers: set[str] = field(default_factory=set)

    def add(self, line: int | None, word: str, message: str) -> None:
        """Add a fault, or only count it beyond the limit."""
        self.total += 1
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(EvidenceFinding(line=line, word=word, message=message))

    def add_line(self, text: bytes) -> None:
        """Check a line, and how it follows the one before."""
        before, self.hash = self.hash, hash_line(text)
        self.lines, self.last = self.lines + 1, self.last + 1
        try:
            line = parse_line(text)
        except ValueError as error:
            self.add(self.lines, "format", f"it {error}")
            return
        if line.event.number != self.last:
            found = f"it has the number {line.event.number}, not {self.last}"
            self.add(self.lines, "chain", f"{found}: lines were removed, inserted or moved")
            self.last = line.event.number
        elif line.previous != before:
            found = "it does not have the hash of the line before"
            self.add(self.lines, "chain", f"{found}: that line, or this one, was changed")
        signer = self._find_signer(line) if self.keys else None
        self._add_event(replace(line.event, signer=signer))

    def _find_signer(self, line: EvidenceLine) -> str | None:
        """Return the id of the key that signed a line; add a fault if none did."""
        with suppress(ValueError):
            if (signer := find_signer(line.members, self.keys)) is not None:
                self.signed += 1
                self.signers.add(signer.hex_id)
                return signer.hex_id
        message = "it is not signed, although signed_by requires it"
        if "signature" in line.members:
            message = "no key of signed_by signed it as it is: it was changed, or others signed it"
        self.add(self.lines, "signature", message)
        return None

    def _add_event(self, event: EvidenceEvent) -> None:
        self.count += 1
        self.events.append(event)
        for claim in event.records:
            self.claims.setdefault(replace(claim, first=0), self.lines)
        if event.phase == "begun":
            self.open[event.number] = event.event
        elif event.begun is not None and self.open.pop(event.begun, None) != event.event:
            self.add(self.lines, "chain", f"it ends what did not begin at line {event.begun}")

    def compare_records(self, folder: Path) -> None:
        """Add a fault for each other record that is not as a line names it: the first such line."""
        altered = {claim.name: claim for claim in reversed([*list_altered(folder, self.claims)])}
        for claim in altered.values():
            lines = format_count(claim.lines, "line")
            found = f"{claim.name} no longer begins with the {lines} that it had then"
            self.add(self.claims[claim], "record", f"{found}: it was changed, or removed")

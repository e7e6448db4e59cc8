"""Reports about a lake on its worst day: leaked keys, erased data, failed runs, faults."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from modcrypt.lake.evidence.events import (
    DatasetResult,
    EvidenceCheck,
    EvidenceEvent,
    EvidenceFinding,
    LinkedRecord,
)
from modcrypt.lake.reports.lake_report import LakeReport

Naming = Callable[[str], str]


def digest(text: object) -> str:
    return hashlib.sha256(repr(text).encode()).hexdigest()


def result(
    dataset: str,
    files: int,
    code: int = 0,
    findings: Mapping[str, int] | None = None,
    **counts: int,
) -> DatasetResult:
    return DatasetResult(
        dataset=dataset, files=files, code=code, counts=counts, findings=findings or {}
    )


@dataclass
class Record:
    """A record of evidence to which a test adds events; `name` spells each name in it."""

    name: Naming = str
    events: list[EvidenceEvent] = field(default_factory=list)

    def add(
        self, event: str, phase: str = "done", results: Sequence[DatasetResult] = (), **more: Any
    ) -> int:
        """Add an event, one day after the one before; return the number of its line."""
        number = len(self.events) + 1
        values: dict[str, Any] = {
            "number": number, "hash": digest(number), "event": event, "phase": phase,
            "time": f"2026-{8 + number // 28:02}-{number % 28 + 1:02}T08:11:21+00:00",
            "user": self.name("alice"), "signer": digest("key")[:32], "version": "1.0.0",
            "declaration": digest(number // 7), "results": results, **more,
        }  # fmt: skip
        self.events.append(EvidenceEvent(**values))
        return number

    def check(self, **more: Any) -> EvidenceCheck:
        """Return the record as a report has it."""
        signed = sum(event.signer is not None for event in self.events)
        last = self.events[-1]
        values: dict[str, Any] = {
            "path": self.name("/srv/lake/modcrypt.evidence.jsonl"), "lines": len(self.events),
            "signed": signed, "signers": [digest("key")[:32]], "findings": (),
            "head": f"{last.number}:{last.hash}", "events": self.events, **more,
        }  # fmt: skip
        return EvidenceCheck(**values)


def make_record(name: Naming = str) -> EvidenceCheck:
    """Return a record with every event, every end, and a line that nobody signed."""
    record = Record(name)
    orders, people = name("orders"), name("people")
    begun = record.add("apply", "begun")
    record.add("apply", begun=begun, results=[
        result(orders, 400, encrypted=400), result(people, 1200, encrypted=1200),
    ])  # fmt: skip
    record.add(
        "verify", results=[result(orders, 400, correct=400), result(people, 1200, correct=1200)]
    )
    record.add("rotate", keys=[name("pii")])
    begun = record.add("shred", "begun", request=name("GDPR-2026-117"))
    erased = LinkedRecord(
        name=name("modcrypt.erased.jsonl"), first=1, lines=2, bytes=221, sha256=digest("erased")
    )
    record.add(
        "shred", begun=begun, request=name("GDPR-2026-117"), records=[erased],
        results=[result(people, 2, shredded=2)],
    )  # fmt: skip
    record.add("leak", keys=[name("pii@1")], results=[result(orders, 410, exposed=37)])
    begun = record.add("apply", "begun")
    record.add(
        "apply", "failed", begun=begun, error=name("kms-unavailable"),
        results=[result(orders, 410, 4, renewed=20, failed=17, current=373)],
    )  # fmt: skip
    interrupted = record.add("apply", "begun", user=name("batch"))
    found = {name("tag"): 2, name("plaintext-data"): 14}
    record.add("verify", user=name("batch"), signer=None, results=[
        result(orders, 412, 1, found, correct=395, faults=17, closed=3, strays=1),
        result(people, 1200, correct=1198, erased=2),
    ])  # fmt: skip
    finding = EvidenceFinding(line=9, word=name("chain"), message=name("line 9 was changed"))
    return record.check(interrupted=[interrupted], findings=[finding], more_events=3)


def describe_dataset(name: str, files: int, **states: int) -> dict[str, Any]:
    """Return the row of a dataset."""
    return {
        "dataset": name, "location": f"s3://lake/{name}", "files": files, "states": states,
        "unreadable": {}, "not_verified": 0, "rows": files * 1000, "bytes": files * 12_345_678,
        "encrypted_bytes": files * 12_000_000, "columns": 14, "encrypted_columns": 6, "strays": 0,
        "strict": True, "leaks": [], "seal_faults": [], "waiting": 0, "due_keys": [],
        "erasures": [], "more_erasures": 0, "examined": digest(name), "error": "",
    }  # fmt: skip


def describe_key(name: str, files: Mapping[str, int], **more: Any) -> dict[str, Any]:
    """Return the row of a master key."""
    return {
        "master_key_id": name, "files": files, "versions": ["1", "2"], "keks": 3, "newest": 2,
        "compromised": [], "age_days": 12.3, "key_state": "enabled", **more,
    }  # fmt: skip


def make_worst_report(name: Naming = str, **more: Any) -> LakeReport:
    """Return a report in which every section has something; `name` spells each name in it."""
    orders, people = name("orders"), name("people")
    wrong = ["plaintext"] * 2 + ["compromised"] * 20 + ["rewrapped"] * 17
    findings = [
        {
            "dataset": orders, "file": name(f"day=2026-11-{n:02}/part-{n}.parquet"), "state": state,
            "reason": name("plaintext"), "message": name("it is now plaintext"),
        }
        for n, state in enumerate(wrong)
    ]  # fmt: skip
    leak = {
        "path": name("orders/_metadata"), "kind": name("summary"), "columns": [name("home_ssn")],
        "remedy": name("remove it, or pass --drop-summaries"),
    }  # fmt: skip
    erasures = [
        {
            "partition": {name("tenant"): name("4711")}, "when": "2026-08-07",
            "request": name("GDPR-2026-117"),
        },
        {
            "files": [name("tenant=12/part-0.parquet")], "columns": [name("mail")],
            "when": "2026-08-01",
        },
    ]  # fmt: skip
    datasets = [
        describe_dataset(orders, 412, declared=373, compromised=20, rewrapped=17, plaintext=2) | {
            "not_verified": 39, "strays": 4, "waiting": 3, "due_keys": [name("pii")],
            "leaks": [leak], "seal_faults": [f"seal {name('x')}"],
        },
        describe_dataset(people, 1200, declared=1198, erased=2) | {"erasures": erasures},
        describe_dataset(name("readings"), 0) | {"error": name("no such bucket")},
    ]  # fmt: skip
    values: dict[str, Any] = {
        "lake": name("/srv/lake/modcrypt.toml"), "time": "2026-11-29T20:20:01+00:00",
        "version": "1.0.0", "digest": digest("lake"), "datasets": datasets, "findings": findings,
        "keys": [
            describe_key(name("footer"), {orders: 412, people: 1198}),
            describe_key(name("pii"), {orders: 373}, compromised=[name("pii@1")]),
            describe_key(name("old"), {orders: 39}, key_state="disabled", age_days=1400.2),
            describe_key(name("hsm/readings-eu-north-1"), {}, key_state="unknown", age_days=None),
        ],
        "drift": [{"dataset": orders, "state": "plaintext", "before": 0, "now": 2}],
        "more_findings": 7, "evidence": make_record(name), **more,
    }  # fmt: skip
    return LakeReport(**values)

"""A report about a lake: coverage, keys, their ages, drift since the last report, and findings."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from modcrypt import __version__
from modcrypt.lake.evidence.events import EvidenceCheck
from modcrypt.lake.files.file_states import DECLARED, EXPOSED, STATES
from modcrypt.lake.files.key_choice import KeyChoice
from modcrypt.lake.key_ages import KeyAges
from modcrypt.lake.reports.report_page import draw_report
from modcrypt.lake.status import DatasetStatus
from modcrypt.report.fact_sheet import FactSheet
from modcrypt.report.json_fields import json_fields

SCHEMA = "modcrypt.lake.report/1"  # the name and version of the JSON form

MAX_FILES = 1000
"""Maximum number of files that a report lists; further ones are counted."""


@dataclass(frozen=True, kw_only=True, repr=False)
class LakeReport(FactSheet):
    """A report about a lake.

    Attributes:
        lake: Path of the declaration.
        time: Time of the report, ISO 8601 in UTC.
        version: Version of modcrypt.
        digest: Digest of the declaration.
        datasets: Coverage of each dataset: files, states, rows, bytes and columns, and a digest of
            what was examined.
        keys: Master keys: number of files by dataset, and age of the newest version in days.
        findings: Files that are not as declared; at most `MAX_FILES`.
        more_findings: Number of such files that are not listed.
        drift: Changes of the numbers of files by dataset and state since the last report; None if
            there was none.
        evidence: The record of evidence with its newest events; None if nothing is recorded.
    """

    lake: str
    time: str
    version: str
    digest: str
    datasets: Sequence[Mapping[str, Any]]
    keys: Sequence[Mapping[str, Any]]
    findings: Sequence[Mapping[str, Any]]
    more_findings: int
    drift: Sequence[Mapping[str, Any]] | None
    evidence: EvidenceCheck | None = None

    def fields(self) -> dict[str, Any]:
        """Return the report as values for JSON."""
        return {"schema": SCHEMA, **json_fields(self)}

    def facts(self) -> list[tuple[str, str]]:
        """Return labels and values for people: the lake, and counts."""
        files = sum(row["files"] for row in self.datasets)
        findings = len(self.findings) + self.more_findings
        return [
            ("Lake", self.lake),
            ("Time", self.time),
            ("Datasets", f"{len(self.datasets):,}"),
            ("Files", f"{files:,}"),
            ("Master keys", f"{len(self.keys):,}"),
            ("Not as declared", f"{findings:,}"),
        ]

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the numbers of files by dataset and state, for the drift of the next report."""
        return {row["dataset"]: dict(row["states"]) for row in self.datasets}

    @property
    def is_exposed(self) -> bool:
        """True if a compromised master key opens, or may open, a file."""
        return any(row["states"].get(state) for row in self.datasets for state in EXPOSED)

    def to_html(self, links: Mapping[tuple[str, str], str] | None = None) -> str:
        """Return the report as one self-contained page.

        Args:
            links: Addresses of the pages of files, by dataset and path, to which findings lead.

        Raises:
            ModuleNotFoundError: The extra `modcrypt[html]` is not installed.
        """
        return draw_report(self, links or {})


def make_report(
    statuses: Sequence[DatasetStatus], ages: KeyAges, *, lake: str, digest: str,
    before: Mapping[str, Mapping[str, int]] | None = None, evidence: EvidenceCheck | None = None,
    compromised: Sequence[KeyChoice] = (),
) -> LakeReport:  # fmt: skip
    """Return the report about datasets with a status, and about keys with their ages.

    `before` is the result of `LakeReport.counts` of the last report, `evidence` the record of
    evidence, and `compromised` the keys that the declaration calls compromised.
    """
    wrong = (
        {"dataset": status.dataset.name, **file.fields()}
        for status in statuses
        for file in status.files
        if not file.is_declared
    )
    findings = list(islice(wrong, MAX_FILES))
    count = sum(len(s.files) - sum(s.totals.states[n] for n in DECLARED) for s in statuses)
    datasets = [_describe_dataset(status) for status in statuses]
    return LakeReport(
        lake=lake, time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        version=__version__, digest=digest, datasets=datasets,
        keys=_describe_keys(statuses, ages, compromised), findings=findings,
        more_findings=count - len(findings),
        drift=None if before is None else list(_find_drift(datasets, before)), evidence=evidence,
    )  # fmt: skip


def _describe_dataset(status: DatasetStatus) -> dict[str, Any]:
    examined = hashlib.sha256()
    sums: Counter[str] = Counter()
    columns = encrypted_columns = 0
    for file in status.files:
        examined.update(json.dumps(file.fields(), sort_keys=True).encode())
        sums["rows"] += file.rows or 0
        columns = max(columns, file.columns or 0)
        if file.state not in ("plaintext", "unreadable", "erased"):
            sums["encrypted_bytes"] += file.size
            encrypted_columns = max(encrypted_columns, file.encrypted_columns or 0)
    return {
        "dataset": status.dataset.name,
        "location": status.dataset.location,
        "files": len(status.files),
        "states": status.counts,
        "unreadable": status.reasons,
        "not_verified": status.unverified,
        "rows": sums["rows"],
        "bytes": status.totals.bytes,
        "encrypted_bytes": sums["encrypted_bytes"],
        "columns": columns,
        "encrypted_columns": encrypted_columns,
        "strays": len(status.strays),
        "strict": status.dataset.strict,
        "leaks": [leak.fields() for leak in status.leaks[:MAX_FILES]],
        "seal_faults": list(status.seal_faults),
        "waiting": len(status.waiting),
        "due_keys": list(status.due_keys),
        "erasures": [each.fields() for each in status.dataset.erased[:MAX_FILES]],
        "more_erasures": max(0, len(status.dataset.erased) - MAX_FILES),
        "examined": examined.hexdigest(),
        "error": status.error,
    }


def _describe_keys(
    statuses: Sequence[DatasetStatus], ages: KeyAges, compromised: Sequence[KeyChoice]
) -> list[dict[str, Any]]:
    """Return a row of the matrix of keys and datasets for each master key."""
    files: defaultdict[str, Counter[str]] = defaultdict(Counter)
    versions: defaultdict[str, set[str]] = defaultdict(set)
    keks: defaultdict[str, set[str]] = defaultdict(set)
    for status in statuses:
        combinations = Counter(file.keys for file in status.files)
        for keys, count in combinations.items():
            for master in {key.master_key_id for key in keys if key.master_key_id}:
                files[master][status.dataset.name] += count
            for key in keys:
                versions[key.master_key_id or ""] |= {key.version} if key.version else set()
                keks[key.master_key_id or ""] |= {key.kek_id} if key.kek_id else set()
    return [
        {
            "master_key_id": master,
            "files": dict(files[master]),
            "versions": sorted(versions[master]),
            "keks": len(keks[master]),
            "compromised": [str(each) for each in compromised if each.key == master],
            **_describe_age(master, ages),
        }
        for master in sorted({*files, *(each.key for each in compromised)})
    ]


def _describe_age(master_key_id: str, ages: KeyAges) -> dict[str, Any]:
    master, age = ages.masters.get(master_key_id), ages.age_of(master_key_id)
    if master is None:
        return {"newest": None, "age_days": None, "key_state": "unknown"}
    state = "destroyed" if master.destroyed else "enabled" if master.enabled else "disabled"
    days = None if age is None else round(age / 86400, 1)
    return {"newest": master.version, "age_days": days, "key_state": state}


def _find_drift(
    datasets: Sequence[Mapping[str, Any]], before: Mapping[str, Mapping[str, int]]
) -> Any:
    now = {row["dataset"]: row["states"] for row in datasets}
    for dataset in sorted({*now, *before}):
        for state in STATES:
            old, new = before.get(dataset, {}).get(state, 0), now.get(dataset, {}).get(state, 0)
            if old != new:
                yield {"dataset": dataset, "state": state, "before": old, "now": new}

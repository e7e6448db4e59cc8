"""Results of verifying a dataset against its declaration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from modcrypt.errors import KmsUnavailableError, list_names
from modcrypt.io.addresses import is_url
from modcrypt.jobs.failures import describe_result
from modcrypt.lake.evidence.events import DatasetResult
from modcrypt.parquet.format.findings import Finding, Unauthenticated
from modcrypt.parquet.verify.verification_results import Verification
from modcrypt.report.fact_sheet import DatasetSummary
from modcrypt.report.text import format_count, format_size
from modcrypt.runtime.fork_safety import cached_property

MAX_NOTES = 1000
"""Maximum number of kinds of notes, and of columns in each, that are counted apart."""

POLICY = "policy"  # the error code of a file that is authentic, but not encrypted as declared


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedFile:
    """The verification of a file against the declaration.

    Attributes:
        path: Path inside the dataset.
        verification: What `verify_dataset` found.
        findings: Its faults and warnings, and differences from the declaration.
        missing: Parts that were not opened for want of a key, with the reason.
        erased: Whether the file is declared as erased, and its keys are gone.
    """

    path: str
    verification: Verification
    findings: tuple[Finding, ...]
    missing: tuple[Unauthenticated, ...]
    erased: bool = False

    @property
    def ok(self) -> bool:
        """True if the file has no fault, and every part that needs a key was opened."""
        return not (self.missing or self.faults or self.erased)

    @property
    def faults(self) -> list[Finding]:
        """The faults."""
        return [finding for finding in self.findings if finding.severity == "fault"]


class VerificationTotals:
    """Counts of verified files, made in one pass."""

    def __init__(self, files: Iterable[VerifiedFile]) -> None:
        self.correct = self.closed = self.faults = self.modules = self.bytes = 0
        self.complete = self.unknown = self.rows = self.erased = 0
        self.missing: set[str] = set()  # error codes
        self.limits: dict[tuple[str, str], NoteCount] = {}
        self.not_opened: dict[tuple[str, str], NoteCount] = {}
        for file in files:
            if file.erased:
                self.erased += 1
                continue
            verification = file.verification
            self.correct += file.ok
            self.complete += not file.faults and verification.complete
            self.unknown += verification.num_rows is None
            self.rows += verification.num_rows or 0
            self.closed += bool(file.missing)
            self.faults += len(file.faults)
            self.modules += verification.modules
            self.bytes += verification.authenticated_bytes
            self.missing |= {str(note.word) for note in file.missing}
            _count_notes(self.not_opened, file.missing)
            if not file.faults:
                notes = [note for note in verification.not_authenticated if note.word is None]
                _count_notes(self.limits, notes)


@dataclass(slots=True)
class NoteCount:
    """A part that was not authenticated: its columns, and the number of files."""

    columns: dict[str, None] = field(default_factory=dict)
    files: int = 0


def _count_notes(
    counts: dict[tuple[str, str], NoteCount], notes: Sequence[Unauthenticated]
) -> None:
    seen = set()
    for note in notes:
        key = note.what, note.why
        if key not in counts and len(counts) >= MAX_NOTES:
            key = "other parts", "for other reasons"
        count = counts.setdefault(key, NoteCount())
        if note.path is not None and len(count.columns) < MAX_NOTES:
            count.columns[note.path] = None
        count.files += key not in seen
        seen.add(key)


@dataclass(frozen=True, kw_only=True, repr=False)
class LakeVerification(DatasetSummary):
    """The verification of a dataset against its declaration.

    Attributes:
        dataset: Name of the dataset.
        location: Path or URL of the dataset.
        files: Results of the files, in the order of their paths.
        findings: Findings about the dataset.
        strays: Paths of visible files that `include` does not match.
        skipped: Number of files that were not verified because they have not changed.
        error: Why its files cannot be listed; empty if they can.
        error_code: Exit code for the error.
        version: Text that names the version of a table; empty for datasets of files.
    """

    dataset: str
    location: str
    files: Sequence[VerifiedFile] = ()
    findings: Sequence[Finding] = ()
    strays: Sequence[str] = ()
    skipped: int = 0
    error: str = ""
    error_code: int = 0
    version: str = ""

    @cached_property
    def totals(self) -> VerificationTotals:
        """Counts of the files."""
        return VerificationTotals(self.files)

    @property
    def code(self) -> int:
        """The exit code.

        0: everything is as declared; 1: a fault; 3: a key was refused or is missing; 4: whatever is
        missing is due to an unavailable key service.
        """
        if self.error:
            return self.error_code
        if self.fault_count:
            return 1
        missing = self.totals.missing
        if not missing:
            return 0
        return 4 if missing == {KmsUnavailableError.word} else 3

    @property
    def fault_count(self) -> int:
        """Number of faults of the dataset and its files."""
        return len(self._own_faults) + self.totals.faults

    @property
    def faults(self) -> list[Finding]:
        """The faults of the dataset and its files."""
        return self._own_faults + [fault for file in self.files for fault in file.faults]

    @property
    def _own_faults(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "fault"]

    @property
    def limits(self) -> list[str]:
        """Limits of the format, once each with the number of files."""
        return [text for text, _ in _describe_notes(self.totals.limits)]

    def describe_missing(self) -> list[str]:
        """Return the parts not opened, once for each reason, with their numbers of files."""
        notes = _describe_notes(self.totals.not_opened)
        return [f"Not opened: {text}: {why}" for text, why in notes]

    @property
    def outcome(self) -> DatasetResult:
        """The result for the record of evidence."""
        totals = self.totals
        counts = {
            "correct": totals.correct, "closed": totals.closed, "faults": self.fault_count,
            "erased": totals.erased, "skipped": self.skipped, "strays": len(self.strays),
        }  # fmt: skip
        faults = chain(self._own_faults, (fault for file in self.files for fault in file.faults))
        found = Counter(fault.word for fault in faults)
        return DatasetResult.of(self.dataset, self.code, len(self.files), counts, found)

    def summary(self) -> str:
        """Return the result as one line for people."""
        if self.error:
            return f"{self.dataset}: {self.error}"
        totals = self.totals
        text = f"{totals.correct:,} of {format_count(len(self.files), 'file')} as declared"
        if self.skipped:
            text += f", {self.skipped:,} unchanged and skipped"
        if totals.erased:
            text += f", {totals.erased:,} erased"
        if self.fault_count:
            text += f"; {format_count(self.fault_count, 'fault')}"
        if totals.closed:
            text += f"; {format_count(totals.closed, 'file')} not opened completely"
        size, parts = format_size(totals.bytes), format_count(totals.modules, "page or part")
        return f"{self.dataset}: {text}; {parts} authenticated, {size}"

    def name_of(self, file: VerifiedFile) -> str:
        """Return the path or URL of a file."""
        path = file.path
        if "/" not in self.location or path.startswith("/") or is_url(path):
            return path
        is_dataset = self.location.rpartition("/")[2] == path
        return self.location if is_dataset else f"{self.location.rstrip('/')}/{path}"

    def file_fields(self) -> Iterator[dict[str, Any]]:
        """Yield what `verify` prints about each file, as values for JSON."""
        for file in self.files:
            result = replace(
                file.verification, name=self.name_of(file), findings=tuple(file.findings)
            )
            yield {**describe_result(result), "dataset": self.dataset, "erased": file.erased}

    def fields(self) -> dict[str, Any]:
        """Return the totals that `verify` prints about the dataset, as values for JSON."""
        totals = self.totals
        ok = not (self.fault_count or self.error)
        return {
            "ok": ok, "complete": ok and totals.complete + totals.erased == len(self.files),
            "num_rows": None if totals.unknown else totals.rows, "files": len(self.files),
            "erased": totals.erased, "not_authenticated": [],
            "findings": [finding.fields() for finding in self.findings],
            "dataset": self.dataset, "location": self.location, "code": self.code,
            "skipped": self.skipped, "strays": list(self.strays), "limits": self.limits,
            "error": self.error,
        }  # fmt: skip


def _describe_notes(counts: Mapping[tuple[str, str], NoteCount]) -> Iterator[tuple[str, str]]:
    """Yield parts with their numbers of files, and the reason."""
    for (what, why), count in counts.items():
        name = f"{what} {list_names(count.columns)}".rstrip()
        yield f"{name} ({format_count(count.files, 'file')})", why

"""The totals of a verification of files, here or on Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from modcrypt.cli.output.failures import use_option_names

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.parquet.format.findings import Finding, Unauthenticated
    from modcrypt.parquet.verify.verification_results import Verification

__all__ = ["Totals", "finding_fields"]


@dataclass(frozen=True, kw_only=True)
class Totals:
    """The totals of a verification.

    Attributes:
        files: Number of files.
        num_rows: Number of rows of all files; None if a file does not state it.
        modules: Number of modules authenticated.
        size: Number of bytes authenticated.
        encrypted: Number of encrypted files.
        faults: Number of faults.
        ok: Whether there is no fault.
        complete: Whether there is no fault, and everything is authenticated.
        missing: Error codes of keys that could not be retrieved.
        findings: Findings about the set of files.
        not_authenticated: What could not be verified about the set.
    """

    files: int
    num_rows: int | None
    modules: int
    size: int
    encrypted: int
    faults: int
    ok: bool
    complete: bool
    missing: set[str]
    findings: Sequence[Finding] = ()
    not_authenticated: Sequence[Unauthenticated] = ()

    @classmethod
    def of(cls, files: Sequence[Verification]) -> Totals:
        """Return the totals of files."""
        rows = [file.num_rows for file in files]
        known = [count for count in rows if count is not None]
        return cls(
            files=len(files),
            num_rows=sum(known) if len(known) == len(rows) else None,
            modules=sum(file.modules for file in files),
            size=sum(file.authenticated_bytes for file in files),
            encrypted=sum(file.encrypted for file in files),
            faults=sum(_count_faults(file.findings) for file in files),
            ok=all(file.ok for file in files),
            complete=all(file.complete for file in files),
            missing={note.word for file in files for note in file.not_authenticated if note.word},
        )

    def with_findings(
        self, findings: Sequence[Finding], not_authenticated: Sequence[Unauthenticated] = ()
    ) -> Totals:
        """Return the totals with what a comparison of the files has found."""
        faults = _count_faults(findings)
        return replace(
            self, findings=findings, not_authenticated=not_authenticated,
            faults=self.faults + faults, ok=self.ok and not faults,
            complete=self.complete and not faults and not not_authenticated,
        )  # fmt: skip

    def fields(self) -> dict[str, Any]:
        """Return the totals as values for JSON."""
        return {
            "files": self.files, "ok": self.ok, "complete": self.complete,
            "num_rows": self.num_rows,
            "findings": [finding_fields(finding) for finding in self.findings],
            "not_authenticated": [note.fields() for note in self.not_authenticated],
        }  # fmt: skip


def _count_faults(findings: Iterable[Finding]) -> int:
    return sum(finding.severity == "fault" for finding in findings)


def finding_fields(finding: Finding) -> dict[str, Any]:
    """Return a finding as values for JSON, with the names of options in its message."""
    return {**finding.fields(), "message": use_option_names(finding.message)}

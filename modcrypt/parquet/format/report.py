"""A report about one file: what its checks find, and what they authenticated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modcrypt.errors import ModcryptError
from modcrypt.module_ids import ModuleId
from modcrypt.report.text import format_count

if TYPE_CHECKING:  # reading finds nothing, and making the classes takes 3 ms
    from mypy_extensions import i64

    from modcrypt.parquet.format.byte_map import Region, Severity, State
    from modcrypt.parquet.format.findings import Finding, Unauthenticated

ALWAYS_OPEN = "file crypto metadata"
"""The part that the format leaves unauthenticated in every file with an encrypted footer."""


class Report:
    """The findings about one file: collected and of bounded size, or raised at once.

    Each check exists once and reports here. Reading is strict: the first fault is raised before
    the next byte is used. Verification collects: it reports every fault and goes on.

    Args:
        limit: Maximum number of findings that are listed; further ones are counted.
        regions: Whether to map each byte of the file.
        strict: Whether the first fault is raised.
    """

    def __init__(self, limit: int = 0, *, regions: bool = False, strict: bool = False) -> None:
        self.strict = strict
        self.findings: list[Finding] = []
        self.notes: dict[tuple[str, str | None], Unauthenticated] = {}
        self.regions: list[Region] | None = [] if regions else None
        self.modules: i64 = 0
        self.authenticated: i64 = 0
        self.faults: i64 = 0
        self._limit: i64 = limit
        self._more: dict[Severity, int] = {}  # findings beyond the limit

    def add(self, finding: Finding) -> None:
        """Add a finding, or only count it beyond the limit; a strict report raises faults."""
        if self.strict:
            from modcrypt.parquet.format.findings import raise_first

            raise_first([finding])
        if finding.severity == "warning" and finding in self.findings:
            return  # the same for each row group
        if finding.severity == "fault":
            self.faults += 1
        if len(self.findings) < self._limit:
            self.findings.append(finding)
        else:
            self._more[finding.severity] = self._more.get(finding.severity, 0) + 1

    def add_fault(
        self, word: str, message: str, start: int | None = None, end: int | None = None,
        module: ModuleId | None = None, severity: Severity = "fault",
    ) -> None:  # fmt: skip
        """Add a finding, by default a fault, given its parts."""
        from modcrypt.parquet.format.findings import Finding

        self.add(
            Finding(
                word=word, message=message, severity=severity, start=start, end=end, module=module
            )
        )

    def add_error(
        self, error: ModcryptError, start: int | None = None, end: int | None = None,
        module: ModuleId | None = None, hint: str = "", severity: Severity = "fault",
    ) -> None:  # fmt: skip
        """Add a finding for an error that was raised; a strict report raises faults again."""
        if self.strict and severity == "fault":
            raise error
        message = f"{error}. {hint}" if hint else str(error)
        self.add_fault(error.word, message, start, end, module, severity)

    def add_warning(
        self, word: str, message: str, start: int | None = None, end: int | None = None
    ) -> None:
        """Add a warning: something odd that breaks no rule."""
        self.add_fault(word, message, start, end, severity="warning")

    def add_note(
        self, what: str, path: str | None, why: str, word: str | None = None, *,
        by_design: bool = False,
    ) -> None:  # fmt: skip
        """Add a note about what was not authenticated, once for each column."""
        if not self.strict:
            from modcrypt.parquet.format.findings import Unauthenticated

            note = Unauthenticated(what=what, path=path, why=why, word=word, by_design=by_design)
            self.notes.setdefault((what, path), note)

    def count_verified(self, size: int) -> None:
        """Count a module whose tag was verified."""
        self.modules += 1
        self.authenticated += size

    def add_region(
        self, start: int, end: int, kind: str, state: State, *, key: str | None = None
    ) -> None:
        """Add a region to the byte map, if one was requested."""
        if self.regions is not None and end > start:
            from modcrypt.parquet.format.byte_map import Region

            self.regions.append(Region(start=start, end=end, kind=kind, state=state, key=key))

    def finish(self, where: str) -> list[Finding]:
        """Return all findings, after appending one that counts those beyond the limit."""
        if not self._more:
            return self.findings
        from modcrypt.parquet.format.findings import Finding

        for severity in sorted(self._more):
            words = [listed.word for listed in self.findings if listed.severity == severity]
            word = words[-1] if words else "integrity"
            more = format_count(self._more[severity], "more " + severity)
            message = f"{more} in {where}, not listed"
            self.findings.append(Finding(word=word, message=message, severity=severity))
        self._more = {}
        return self.findings

    def merge(self, part: Report, where: str) -> None:
        """Add the contents of a report about a part of the file."""
        for finding in part.finish(where):
            self.add(finding)
        for place, note in part.notes.items():
            self.notes.setdefault(place, note)
        if self.regions is not None and part.regions is not None:
            self.regions += part.regions
        self.modules += part.modules
        self.authenticated += part.authenticated

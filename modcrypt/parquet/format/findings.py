"""Findings about a file or a set of files, and what was not authenticated.

A finding states a fault or a warning and its place. Data that could not be authenticated is not a
finding, but is always reported.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from modcrypt.errors import (
    ERRORS_BY_WORD,
    IntegrityError,
    KeyNotFoundError,
    ModcryptError,
    TagMismatchError,
    list_names,
)
from modcrypt.module_ids import ModuleId
from modcrypt.parquet.format.byte_map import Region, Severity, State
from modcrypt.report.json_fields import JsonFields
from modcrypt.report.text import format_count

MAX_FINDINGS = 1000
"""Maximum number of findings reported per file; further ones are counted."""

MAX_CHUNK_FINDINGS = 12
"""Maximum number of findings reported per column chunk: a wrong key would give two per page."""

ALWAYS_OPEN = "file crypto metadata"
"""The part that the format leaves unauthenticated in every file with an encrypted footer."""

FILE = "file"
"""The error code for files that could not be read, so that nothing is known about them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(JsonFields):
    """A violated rule (a fault), or something unusual that violates none (a warning).

    Attributes:
        word: Error code, one of those in `modcrypt.errors`; or "file" if the file system refused
            access.
        message: What was found, where, and what it means.
        severity: "fault" or "warning".
        start, end: Range of bytes [start, end) in question; None if the finding is not about bytes.
        module: Address of the module; None if the finding is not about a module.
    """

    word: str
    message: str
    severity: Severity = "fault"
    start: int | None = None
    end: int | None = None
    module: ModuleId | None = None

    def error(self) -> ModcryptError | OSError:
        """Return the finding as the error that reading the file would raise."""
        if self.word == FILE:
            return OSError(self.message)
        kind = ERRORS_BY_WORD.get(self.word, IntegrityError)
        if kind is TagMismatchError:
            error: ModcryptError = TagMismatchError(self.module)
            error.args = (self.message,)
            return error
        if kind is KeyNotFoundError:
            return KeyNotFoundError(self.message, None if self.module is None else self.module.path)
        return kind(self.message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unauthenticated(JsonFields):
    """A part that was not authenticated, so that alterations of it go unnoticed.

    Attributes:
        what: "file", "footer", "file crypto metadata", "column", "pages", "levels", "bytes",
            "rows", "files", "parts" or "writer".
        path: Dotted name of the column; None for the file.
        why: Reason in words.
        word: Error code of why there is no key, such as "denied", "disabled", "unavailable" or
            "no-key"; None where a key is not the reason.
        by_design: Whether no key could authenticate it: the format leaves it open, or the caller's
            policy leaves the column in plaintext.
    """

    what: str
    path: str | None
    why: str
    word: str | None = None
    by_design: bool = False


class Folded(NamedTuple):
    """Parts that were not authenticated for the same reason.

    `what` is the kind of the parts, with names of their columns. `files` is the number of files
    affected, 0 for a set of files, or if they have no names.
    """

    what: str
    why: str
    files: int


def fold(notes: Iterable[tuple[str | None, Unauthenticated]]) -> list[Folded]:
    """Group the parts that were not authenticated, their columns and files, by reason.

    Each note has the file's name, or None.
    """
    groups: dict[tuple[str, str], tuple[dict[str, None], set[str]]] = {}
    for name, note in notes:
        paths, names = groups.setdefault((note.what, note.why), ({}, set()))
        paths |= {} if note.path is None else {note.path: None}
        names |= set() if name is None else {name}
    return [
        Folded(f"{what} {list_names(paths)}".rstrip(), why, len(names))
        for (what, why), (paths, names) in groups.items()
    ]


def raise_first(findings: Iterable[Finding]) -> None:
    """Raise the first fault, if there is one, as an error."""
    for finding in findings:
        if finding.severity == "fault":
            raise finding.error()


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
        self.modules = self.authenticated = self.faults = 0
        self._limit = limit
        self._more: dict[Severity, int] = {"fault": 0, "warning": 0}

    def add(self, finding: Finding) -> None:
        """Add a finding, or only count it beyond the limit; a strict report raises faults."""
        if self.strict:
            raise_first([finding])
        if finding.severity == "warning" and finding in self.findings:
            return  # the same for each row group
        self.faults += finding.severity == "fault"
        if len(self.findings) < self._limit:
            self.findings.append(finding)
        else:
            self._more[finding.severity] += 1

    def add_fault(
        self, word: str, message: str, start: int | None = None, end: int | None = None,
        module: ModuleId | None = None, severity: Severity = "fault",
    ) -> None:  # fmt: skip
        """Add a finding, by default a fault, given its parts."""
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
            self.regions.append(Region(start=start, end=end, kind=kind, state=state, key=key))

    def finish(self, where: str) -> list[Finding]:
        """Return all findings, after appending one that counts those beyond the limit."""
        for severity, count in self._more.items():
            if count:
                words = [listed.word for listed in self.findings if listed.severity == severity]
                word = words[-1] if words else "integrity"
                message = f"{format_count(count, 'more ' + severity)} in {where}, not listed"
                self.findings.append(Finding(word=word, message=message, severity=severity))
        self._more = {"fault": 0, "warning": 0}
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

"""Results of verifying a file or a set of files: findings, and what was not authenticated.

A finding states a fault or a warning and its place. Data that could not be authenticated is not a
finding, but is always reported.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from modcrypt import errors
from modcrypt.aad import ModuleId
from modcrypt.errors import KeyNotFoundError, ModcryptError, TagMismatchError, list_names
from modcrypt.parquet.format.byte_map import Region, Severity, State
from modcrypt.report.sizes import format_count

__all__ = [
    "DatasetVerification",
    "Finding",
    "Report",
    "Unauthenticated",
    "Verification",
    "fold",
]

MAX_FINDINGS = 1000
"""Maximum number of findings reported per file; further ones are counted."""

MAX_CHUNK_FINDINGS = 12
"""Maximum number of findings reported per column chunk: a wrong key would give two per page."""

ALWAYS_OPEN = "file crypto metadata"
"""The part that the format leaves unauthenticated in every file with an encrypted footer."""

FILE = "file"
"""The error code for files that could not be read, so that nothing is known about them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
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

    def fields(self) -> dict[str, Any]:
        """Return the finding as values that JSON can represent."""
        module = None
        if self.module is not None:
            kind = self.module.type.name.lower().replace("_", " ")
            module = asdict(self.module) | {"type": kind}
        return {
            "word": self.word, "message": self.message, "severity": self.severity,
            "start": self.start, "end": self.end, "module": module,
        }  # fmt: skip

    def error(self) -> ModcryptError | OSError:
        """Return the finding as the error that reading the file would raise."""
        if self.word == FILE:
            return OSError(self.message)
        kind = _KINDS.get(self.word, errors.IntegrityError)
        if kind is TagMismatchError:
            error: ModcryptError = TagMismatchError(self.module)
            error.args = (self.message,)
            return error
        if kind is KeyNotFoundError:
            return KeyNotFoundError(self.message, None if self.module is None else self.module.path)
        return kind(self.message)


_KINDS: dict[str, type[ModcryptError]] = {
    kind.word: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, ModcryptError)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unauthenticated:
    """A part that was not authenticated, so that alterations of it go unnoticed.

    Attributes:
        what: "file", "footer", "file crypto metadata", "column", "pages", "levels", "bytes",
            "rows", "files" or "parts".
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

    def fields(self) -> dict[str, Any]:
        """Return the part as values that JSON can represent."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The result of `verify_parquet` for a file.

    Attributes:
        name: Name of the file.
        size: Size of the file in bytes.
        encrypted: Whether any part of the file is encrypted, according to its footer.
        footer_mode: "encrypted", "plaintext" (signed or not), or "none" if there is no readable
            footer.
        algorithm: Algorithm that the file names; None if it names none.
        num_rows: Number of rows that the footer declares; None if the footer could not be read.
        row_groups: Number of row groups; 0 if the footer could not be read.
        columns: Dotted names of the columns.
        modules: Number of tags and signatures verified.
        authenticated_bytes: Stored size of these modules in bytes.
        findings: Findings in the order of the file.
        not_authenticated: Parts for which no tag was verified, with the reason.
        regions: Map of all bytes of the file; empty unless requested.
    """

    name: str
    size: int
    encrypted: bool
    footer_mode: Literal["encrypted", "plaintext", "none"]
    algorithm: str | None
    num_rows: int | None
    row_groups: int
    columns: tuple[str, ...]
    modules: int
    authenticated_bytes: int
    findings: tuple[Finding, ...]
    not_authenticated: tuple[Unauthenticated, ...]
    regions: tuple[Region, ...] = field(default=(), repr=False)

    @property
    def ok(self) -> bool:
        """Whether there is no fault; warnings and unauthenticated parts do not count."""
        return not any(finding.severity == "fault" for finding in self.findings)

    @property
    def complete(self) -> bool:
        """Whether there is no fault, and tags or signatures authenticate the whole file.

        Parts that are open by design do not count: file crypto metadata, which holds only what the
        tags depend on and what identifies keys, and columns that the caller's policy leaves in
        plaintext.
        """
        return self.ok and all(note.by_design for note in self.not_authenticated)

    def fields(self) -> dict[str, Any]:
        """Return the result as values that JSON can represent."""
        return {
            "name": self.name, "size": self.size, "ok": self.ok, "complete": self.complete,
            "encrypted": self.encrypted, "footer_mode": self.footer_mode,
            "algorithm": self.algorithm, "num_rows": self.num_rows, "row_groups": self.row_groups,
            "columns": list(self.columns), "modules": self.modules,
            "authenticated_bytes": self.authenticated_bytes,
            "findings": [finding.fields() for finding in self.findings],
            "not_authenticated": [note.fields() for note in self.not_authenticated],
            "regions": [region.fields() for region in self.regions],
        }  # fmt: skip

    def raise_for_faults(self) -> None:
        """Raise the first fault as the error that reading the file would raise.

        Raises:
            ModcryptError: There is a fault.
            OSError: The file could not be read.
        """
        raise_first(self.findings)

    def to_html(self) -> str:
        """Return a self-contained HTML page that draws the file, if `regions` were requested."""
        from modcrypt.parquet.verify.file_drawing import draw

        return draw(
            title=self.name.rpartition("/")[2],  # the page is sent to others, who need no path
            facts=self.facts(),
            columns=self.columns,
            row_groups=self.row_groups,
            size=self.size,
            regions=self.regions,
            findings=self.findings,
            notes=[
                (f"Not authenticated: {folded.what}", folded.why)
                for folded in fold((None, note) for note in self.not_authenticated)
            ],
        )

    def facts(self) -> list[tuple[str, str]]:
        """Return labels and values for people: properties of the file, and the result."""
        faults = sum(finding.severity == "fault" for finding in self.findings)
        warnings = len(self.findings) - faults
        counts = [format_count(faults, "fault"), format_count(warnings, "warning")]
        rows = "unknown" if self.num_rows is None else f"{self.num_rows:,}"
        return [
            ("Result", ", ".join(counts) if self.findings else "no findings"),
            ("Everything authenticated", "yes" if self.complete else "no"),
            ("Encrypted", "yes" if self.encrypted else "no"),
            ("Footer", self.footer_mode),
            ("Algorithm", self.algorithm or "none"),
            ("Size", f"{self.size:,} bytes"),
            ("Rows", rows),
            ("Row groups", f"{self.row_groups:,}"),
            ("Columns", f"{len(self.columns):,}"),
            ("Modules verified", f"{self.modules:,}, {self.authenticated_bytes:,} bytes"),
        ]


@dataclass(frozen=True, kw_only=True)
class DatasetVerification:
    """The result of `verify_dataset` for a set of files.

    Attributes:
        files: Result of each file, in the order of their paths.
        findings: Findings about the set: missing, duplicate, foreign, exchanged or copied parts.
        not_authenticated: What could not be verified about the set, with the reason.
    """

    files: tuple[Verification, ...]
    findings: tuple[Finding, ...]
    not_authenticated: tuple[Unauthenticated, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there is no fault in the set or in any file."""
        in_set = any(finding.severity == "fault" for finding in self.findings)
        return not in_set and all(file.ok for file in self.files)

    @property
    def complete(self) -> bool:
        """Whether there is no fault, and every file and the set are fully authenticated."""
        return self.ok and not self.not_authenticated and all(file.complete for file in self.files)

    @property
    def num_rows(self) -> int | None:
        """Number of rows of all files; None if a footer could not be read."""
        counts = [file.num_rows for file in self.files]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    def fields(self) -> dict[str, Any]:
        """Return the result as values that JSON can represent."""
        return {
            "ok": self.ok,
            "complete": self.complete,
            "num_rows": self.num_rows,
            "findings": [finding.fields() for finding in self.findings],
            "not_authenticated": [note.fields() for note in self.not_authenticated],
            "files": [file.fields() for file in self.files],
        }

    def raise_for_faults(self) -> None:
        """Raise the first fault: those of the set come before those of its files.

        Raises:
            ModcryptError: There is a fault.
            OSError: A file could not be read.
        """
        raise_first(self.findings)
        for file in self.files:
            file.raise_for_faults()


class Folded(NamedTuple):
    """Parts that were not authenticated for the same reason.

    Attributes:
        what: Kind of the parts, and names of their columns.
        why: Reason in words.
        files: Number of files affected; 0 for a set of files, or if they have no names.
    """

    what: str
    why: str
    files: int


def fold(notes: Iterable[tuple[str | None, Unauthenticated]]) -> list[Folded]:
    """Return what was not authenticated, with columns and files grouped by reason.

    Args:
        notes: File names, or None, and what was not authenticated in these files.
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
    """A collection of what verifying a chunk or a file finds, of bounded size for any file."""

    def __init__(self, limit: int, *, regions: bool) -> None:
        self.findings: list[Finding] = []
        self.notes: dict[tuple[str, str | None], Unauthenticated] = {}
        self.regions: list[Region] | None = [] if regions else None
        self.modules = self.authenticated = 0
        self._limit = limit
        self._more: dict[Severity, int] = {"fault": 0, "warning": 0}

    def add(self, finding: Finding) -> None:
        """Add a finding, or only count it beyond the limit."""
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
        module: ModuleId | None = None, hint: str = "",
    ) -> None:  # fmt: skip
        """Add a fault for an error that was raised."""
        message = f"{error}. {hint}" if hint else str(error)
        self.add_fault(error.word, message, start, end, module)

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
        note = Unauthenticated(what=what, path=path, why=why, word=word, by_design=by_design)
        self.notes.setdefault((what, path), note)

    def count_verified(self, size: int) -> None:
        """Count a module whose tag was verified."""
        self.modules += 1
        self.authenticated += size

    def add_region(
        self, start: int, end: int, kind: str, state: State, *,
        place: tuple[int, int, int | None, str] | None = None, key: str | None = None,
    ) -> None:  # fmt: skip
        """Add a region to the byte map, if one was requested."""
        if self.regions is None or end <= start:
            return
        row_group, column, page, path = place or (None, None, None, None)
        self.regions.append(
            Region(
                start=start, end=end, kind=kind, state=state,
                row_group=row_group, column=column, page=page, path=path, key=key,
            )
        )  # fmt: skip

    def finish(self, where: str) -> list[Finding]:
        """Return all findings, after appending one that counts those beyond the limit."""
        for severity, count in self._more.items():
            if count:
                last = next(
                    (listed for listed in reversed(self.findings) if listed.severity == severity),
                    None,
                )
                word = "integrity" if last is None else last.word
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

"""What verifying a file or a set of files finds, and what it could not say: plain values.

A finding says where and what; what was not authenticated is no finding, but is always told.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from modcrypt import errors
from modcrypt.aad import ModuleId
from modcrypt.errors import KeyNotFoundError, ModcryptError, TagMismatchError
from modcrypt.parquet.format.byte_map import Region, Severity, State

__all__ = [
    "DatasetVerification",
    "Finding",
    "Report",
    "Unauthenticated",
    "Verification",
    "fold",
    "list_names",
]

MAX_FINDINGS = 1000
"""Most findings told of one file; what goes beyond is counted."""

MAX_CHUNK_FINDINGS = 12
"""Most findings told of one column chunk: a wrong key would give two for each of its pages."""

MAX_NAMES = 20
"""Most columns named in one line."""

ALWAYS_OPEN = "file crypto metadata"
"""What the format leaves unauthenticated in every file with an encrypted footer."""

FILE = "file"
"""The word for what the file system refused: whether the file is whole is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is not as it must be (a fault), or not as it should be (a warning).

    Attributes:
        word: its kind, one of the words of `modcrypt.errors`; or "file" where the file system
            refused.
        message: what was found, where, and what it means.
        severity: "fault" or "warning".
        start, end: the bytes [start, end) that were looked at; None where it is about no bytes.
        module: the address of the module, where it is about one.
    """

    word: str
    message: str
    severity: Severity = "fault"
    start: int | None = None
    end: int | None = None
    module: ModuleId | None = None

    def fields(self) -> dict[str, Any]:
        """Give it as what JSON takes."""
        module = None
        if self.module is not None:
            kind = self.module.type.name.lower().replace("_", " ")
            module = asdict(self.module) | {"type": kind}
        return {
            "word": self.word, "message": self.message, "severity": self.severity,
            "start": self.start, "end": self.end, "module": module,
        }  # fmt: skip

    def error(self) -> ModcryptError | OSError:
        """Give it as the error that reading the file would raise."""
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
    """What was not authenticated, so that an alteration of it would not have been noticed.

    Attributes:
        what: "file", "footer", "file crypto metadata", "column", "pages", "levels", "bytes",
            "rows" or "parts".
        path: dotted name of the column it is about, None for the file.
        why: the reason, in words.
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
        """Give it as what JSON takes."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What `verify_parquet` says of a file.

    Attributes:
        name: of the file.
        size: of the file, in bytes.
        encrypted: whether any of it is encrypted, as far as it says.
        footer_mode: "encrypted", "plaintext" (whether signed or not), or "none" where there is no
            footer to be read.
        algorithm: as the file names it; None where it names none.
        num_rows: as the footer says; None where the footer could not be read.
        row_groups: how many; 0 where the footer could not be read.
        columns: dotted names.
        modules: how many tags, and signatures, were verified.
        authenticated_bytes: bytes of these modules, as they are stored.
        findings: in the order of the file.
        not_authenticated: what no tag was verified for, and why.
        regions: what each byte of the file is, where that was asked for.
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
        """Whether there is no fault; warnings, and what was not authenticated, aside."""
        return not any(finding.severity == "fault" for finding in self.findings)

    @property
    def complete(self) -> bool:
        """Whether there is no fault, and a tag or signature stands for all of the file.

        What is open by design doesn't count: file crypto metadata, which holds nothing but what the
        tags depend on and what keys are found by, and columns that the caller's policy leaves in
        plaintext.
        """
        return self.ok and all(one.by_design for one in self.not_authenticated)

    def fields(self) -> dict[str, Any]:
        """Give it as what JSON takes."""
        return {
            "name": self.name, "size": self.size, "ok": self.ok, "complete": self.complete,
            "encrypted": self.encrypted, "footer_mode": self.footer_mode,
            "algorithm": self.algorithm, "num_rows": self.num_rows, "row_groups": self.row_groups,
            "columns": list(self.columns), "modules": self.modules,
            "authenticated_bytes": self.authenticated_bytes,
            "findings": [finding.fields() for finding in self.findings],
            "not_authenticated": [one.fields() for one in self.not_authenticated],
            "regions": [region.fields() for region in self.regions],
        }  # fmt: skip

    def raise_for_faults(self) -> None:
        """Raise the first fault as the error that reading the file would raise.

        Raises:
            ModcryptError: there is one.
        """
        raise_first(self.findings)

    def to_html(self) -> str:
        """Draw the file and the findings as one self-contained page; best with `regions`."""
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
                (f"Not authenticated: {one.what}", one.why)
                for one in fold((None, note) for note in self.not_authenticated)
            ],
        )

    def facts(self) -> list[tuple[str, str]]:
        """Give labels and values for people: what is known of the file, and how it was found."""
        faults = sum(finding.severity == "fault" for finding in self.findings)
        warnings = len(self.findings) - faults
        found = [_counted(faults, "fault"), _counted(warnings, "warning")]
        rows = "unknown" if self.num_rows is None else f"{self.num_rows:,}"
        return [
            ("Result", ", ".join(found) if self.findings else "no findings"),
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
    """What `verify_dataset` says of a set of files.

    Attributes:
        files: of each file, in the order of their paths.
        findings: about the set: parts that are missing, there twice, foreign or exchanged, copies.
        not_authenticated: what could not be said of the set.
    """

    files: tuple[Verification, ...]
    findings: tuple[Finding, ...]
    not_authenticated: tuple[Unauthenticated, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there is no fault, in the set and in every file."""
        in_set = any(finding.severity == "fault" for finding in self.findings)
        return not in_set and all(file.ok for file in self.files)

    @property
    def complete(self) -> bool:
        """Whether there is no fault, and all of every file, and of the set, was authenticated."""
        return self.ok and not self.not_authenticated and all(file.complete for file in self.files)

    @property
    def num_rows(self) -> int | None:
        """Rows of all files, None where a footer could not be read."""
        counts = [file.num_rows for file in self.files]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    def fields(self) -> dict[str, Any]:
        """Give it as what JSON takes."""
        return {
            "ok": self.ok,
            "complete": self.complete,
            "num_rows": self.num_rows,
            "findings": [finding.fields() for finding in self.findings],
            "not_authenticated": [one.fields() for one in self.not_authenticated],
            "files": [file.fields() for file in self.files],
        }

    def raise_for_faults(self) -> None:
        """Raise the first fault, of the set before those of its files.

        Raises:
            ModcryptError: there is one.
            OSError: a file could not be read.
        """
        raise_first(self.findings)
        for file in self.files:
            file.raise_for_faults()


class Folded(NamedTuple):
    """Parts that were not authenticated for one reason.

    Attributes:
        what: What, and of which columns.
        why: The reason, in words.
        files: Number of files it is about; 0 for a set of files, or where they have no names.
    """

    what: str
    why: str
    files: int


def fold(notes: Iterable[tuple[str | None, Unauthenticated]]) -> list[Folded]:
    """Return what was not authenticated, with columns and files of one reason together.

    Args:
        notes: Notes, and the names of their files.
    """
    found: dict[tuple[str, str], tuple[dict[str, None], set[str]]] = {}
    for name, note in notes:
        paths, names = found.setdefault((note.what, note.why), ({}, set()))
        paths |= {} if note.path is None else {note.path: None}
        names |= set() if name is None else {name}
    return [
        Folded(f"{what} {list_names(list(paths), MAX_NAMES)}".rstrip(), why, len(names))
        for (what, why), (paths, names) in found.items()
    ]


def list_names(names: Sequence[str], most: int) -> str:
    """Return names for a message: the first ones, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def raise_first(findings: Iterable[Finding]) -> None:
    """Raise the first fault as an error."""
    for finding in findings:
        if finding.severity == "fault":
            raise finding.error()


class Report:
    """What was found so far, of a chunk or a file: bounded, whatever the file holds."""

    def __init__(self, limit: int, *, regions: bool) -> None:
        self.findings: list[Finding] = []
        self.notes: dict[tuple[str, str | None], Unauthenticated] = {}
        self.regions: list[Region] | None = [] if regions else None
        self.modules = self.authenticated = 0
        self._limit = limit
        self._more: dict[Severity, int] = {"fault": 0, "warning": 0}

    def add(self, finding: Finding) -> None:
        """Take a finding, or only count it where there are many."""
        if len(self.findings) < self._limit:
            self.findings.append(finding)
        else:
            self._more[finding.severity] += 1

    def fault(
        self, word: str, message: str, start: int | None = None, end: int | None = None,
        module: ModuleId | None = None, severity: Severity = "fault",
    ) -> None:  # fmt: skip
        """Take a finding by its parts."""
        self.add(
            Finding(
                word=word, message=message, severity=severity, start=start, end=end, module=module
            )
        )

    def error(
        self, error: ModcryptError, start: int | None = None, end: int | None = None,
        module: ModuleId | None = None, hint: str = "",
    ) -> None:  # fmt: skip
        """Take what was raised for a fault."""
        message = f"{error}. {hint}" if hint else str(error)
        self.fault(error.word, message, start, end, module)

    def warn(
        self, word: str, message: str, start: int | None = None, end: int | None = None
    ) -> None:
        """Take what is odd, but breaks no rule."""
        self.fault(word, message, start, end, severity="warning")

    def note(
        self, what: str, path: str | None, why: str, word: str | None = None, *,
        by_design: bool = False,
    ) -> None:  # fmt: skip
        """Say what was not authenticated, once for each column."""
        note = Unauthenticated(what=what, path=path, why=why, word=word, by_design=by_design)
        self.notes.setdefault((what, path), note)

    def verified(self, size: int) -> None:
        """Count a module whose tag was verified."""
        self.modules += 1
        self.authenticated += size

    def region(
        self, start: int, end: int, kind: str, state: State, *,
        place: tuple[int, int, int | None, str] | None = None, key: str | None = None,
    ) -> None:  # fmt: skip
        """Say what some bytes are, where that is asked for."""
        if self.regions is None or end <= start:
            return
        row_group, column, page, path = place or (None, None, None, None)
        self.regions.append(
            Region(
                start=start, end=end, kind=kind, state=state,
                row_group=row_group, column=column, page=page, path=path, key=key,
            )
        )  # fmt: skip

    def closed(self, where: str) -> list[Finding]:
        """Give the findings, and how many more there were."""
        for severity, count in self._more.items():
            if count:
                last = next(
                    (one for one in reversed(self.findings) if one.severity == severity), None
                )
                word = "integrity" if last is None else last.word
                message = f"{_counted(count, 'more ' + severity)} in {where}, not listed"
                self.findings.append(Finding(word=word, message=message, severity=severity))
        self._more = {"fault": 0, "warning": 0}
        return self.findings

    def merge(self, part: Report, where: str) -> None:
        """Take over what was found in a part of the file."""
        for finding in part.closed(where):
            self.add(finding)
        for place, note in part.notes.items():
            self.notes.setdefault(place, note)
        if self.regions is not None and part.regions is not None:
            self.regions += part.regions
        self.modules += part.modules
        self.authenticated += part.authenticated

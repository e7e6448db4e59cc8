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
from modcrypt.parquet.format.byte_map import Severity
from modcrypt.report.json_fields import JsonFields

MAX_FINDINGS = 1000
"""Maximum number of findings reported per file; further ones are counted."""

MAX_CHUNK_FINDINGS = 12
"""Maximum number of findings reported per column chunk: a wrong key would give two per page."""

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

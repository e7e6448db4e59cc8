"""Findings of verifying a table, and facts about its files and keys: plain values without keys.

A finding has the location of its file. A fault is a violation of the format or a failed check; a
warning is something unusual, or something that could not be checked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from modcrypt.ags1.layout import DEFAULT_BLOCK_LENGTH
from modcrypt.errors import KeyMaterialError, KeyRetrievalError, ModcryptError, PlaintextError
from modcrypt.io.threads import check_threads, usable_cores
from modcrypt.parquet.format.findings import ALWAYS_OPEN, FILE, Finding, Report

ORPHAN = "orphan"
"""Error code for a file that nothing reaches."""

UNREACHED = "unreached"
"""Error code for an orphan so old that no running write can still commit it."""

UNSIGNED = "table metadata"
STATISTICS = "statistics"
ORPHANS = "orphans"
OPEN_PARTS = (ALWAYS_OPEN, UNSIGNED, STATISTICS, ORPHANS)
"""Parts that the format encrypts in no table, or that do not belong to the table."""

MAX_JOBS = 8
"""Default maximum number of files read concurrently."""

MAX_TABLE_FINDINGS = 10_000
"""Maximum number of findings listed per table; further ones are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFinding(Finding):
    """A finding about a file of a table, or about the table.

    Attributes:
        location: Location of the file in the table; None if the finding is about the table.
    """

    location: str | None = None

    @classmethod
    def of(cls, finding: Finding, location: str | None) -> TableFinding:
        """Return a finding about a file of the table, with the location of the file."""
        if isinstance(finding, TableFinding):
            return finding
        return cls(
            **{name: getattr(finding, name) for name in Finding.__slots__}, location=location
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedTableFile:
    """A verified file that a snapshot reaches.

    Attributes:
        kind: `manifest list`, `manifest`, `delete manifest`, `data`, `position deletes`, `equality
            deletes` or `deletion vectors`.
        location: Location of the file in the table.
        size: Size in bytes according to the manifest or list that names it; None if unknown.
        records: Number of rows or deleted rows according to its manifest; None for manifests.
        encrypted: Whether the file has key metadata.
        tags: Number of tags verified.
        ok: Whether the file has no fault.
    """

    kind: str
    location: str
    size: int | None
    records: int | None
    encrypted: bool
    tags: int
    ok: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TableKek:
    """A KEK of the table.

    Attributes:
        id: Id of the KEK.
        master_key_id: Id of the master key that wraps the KEK.
        created_ms, age_days: Creation time and age according to the KEK's metadata.
        store: `table` or `key store`.
        scope: Files that the KEK is for; empty for the whole table.
        current: Whether the newest version of the master key wraps the KEK; None for unknown.
        files: Number of data and delete files whose key metadata the KEK encrypts.
    """

    id: str
    master_key_id: str
    created_ms: int
    age_days: int
    store: str
    scope: str
    current: bool | None
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedKek(TableKek):
    """A verified KEK.

    Attributes:
        manifest_lists: Number of manifest lists whose key metadata the KEK encrypts.
        opened: Whether the key service unwrapped the KEK; None if it was not called.
    """

    manifest_lists: int
    opened: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StrayFile:
    """A file in the table's folder that nothing reaches.

    Attributes:
        path: Path of the file.
        size: Size in bytes.
        age_days: Days since the last change; None if the file system does not report it.
        state: `encrypted`, `plaintext` or `unknown`, judged by its first bytes.
        temporary: Whether it is a temporary file of an interrupted modcrypt write.
    """

    path: str
    size: int
    age_days: float | None
    state: str
    temporary: bool


def choose_jobs(jobs: int | None) -> int:
    """Return how many files to read concurrently: `jobs`, or a default; raise below 1."""
    check_threads(jobs, "jobs")
    return min(usable_cores(), MAX_JOBS) if jobs is None else jobs


def add_up(progress: Callable[[int], None] | None) -> Callable[[int], None]:
    """Return a function that reports the sum of the sizes with which it is called."""
    sizes = [0]

    def add(size: int) -> None:
        sizes[0] += size
        if progress is not None:
            progress(sizes[0])

    return add


class TableReport(Report):
    """A collector of findings about a file or a table, bounded in size."""

    def __init__(self) -> None:
        super().__init__(MAX_TABLE_FINDINGS)
        self._refusals: set[str] = set()
        # UUIDs of other tables by the paths of metadata.json files in the table's folder: all of
        # them, because findings are limited.
        self.other_tables: dict[str, str] = {}
        # Paths of metadata.json files in the folder with a newer state of the table: all of them.
        self.newer_versions: set[str] = set()

    def add(self, finding: Finding) -> None:
        """Add a finding, but only the first of equal refusals of the key service."""
        if finding.severity == "warning" and finding.word in _REFUSALS:
            if finding.message in self._refusals:
                return
            self._refusals.add(finding.message)
        super().add(finding)

    def note(
        self, word: str, message: str, location: str | None = None, *, warning: bool = False
    ) -> None:
        """Add a finding."""
        severity: Any = "warning" if warning else "fault"
        self.add(TableFinding(word=word, message=message, severity=severity, location=location))

    def add_failure(
        self, error: ModcryptError | OSError, location: str, *, lost: bool = False
    ) -> None:
        """Add an error that occurred while reading a file.

        A refusal of the key service is not a fault of the table: it is a warning, and the file is
        noted as not authenticated. It is a fault if the table itself should have the key (`lost`).
        """
        if isinstance(error, OSError):
            reason = error.strerror or type(error).__name__
            self.note(FILE, f"the file could not be read: {reason}", location)
        elif is_refusal(error) and not lost:
            self.note(error.word, str(error), location, warning=True)
        else:
            self.note(error.word, str(error), location)
        self.add_note("file", location, "it could not be read")

    def add_plaintext(self, location: str, *, expected: bool) -> None:
        """Add a plaintext file that the caller accepts; a warning in an encrypted table."""
        if not expected:
            message = "the file of an encrypted table is in plaintext"
            self.note(PlaintextError.word, message, location, warning=True)
        self.add_note("file", location, "it is in plaintext")

    def check_block_length(self, length: int | None, location: str) -> None:
        """Check the block length of an AGS1 file, which the tag of one block does not cover."""
        if length not in (None, DEFAULT_BLOCK_LENGTH):
            self.note(
                "format",
                f"its header has a block length of {length} bytes, but Iceberg's Java supports "
                f"only {DEFAULT_BLOCK_LENGTH}: the file was altered, or is of another writer",
                location,
            )

    def all_findings(self) -> tuple[TableFinding, ...]:
        """Return the findings, with the number of those beyond the limit."""
        return tuple(TableFinding.of(finding, None) for finding in self.finish("the table"))


_REFUSALS = ("key", "no-key", "denied", "disabled", "unavailable")


def is_refusal(error: ModcryptError | OSError) -> bool:
    """Return whether an error is an unavailable key, which is not a fault of the table."""
    return isinstance(error, KeyRetrievalError) and not isinstance(error, KeyMaterialError)

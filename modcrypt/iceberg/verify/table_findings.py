"""Findings of verifying a table, and facts about its files and keys: plain values without keys.

A finding has the location of its file. A fault is a violation of the format or a failed check; a
warning is something unusual, or something that could not be checked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from modcrypt.errors import KeyMaterialError, KeyRetrievalError, ModcryptError
from modcrypt.io.threads import check_threads, usable_cores
from modcrypt.parquet.format.findings import Finding
from modcrypt.parquet.format.report import ALWAYS_OPEN

ORPHAN = "orphan"  # error code for a file that nothing reaches
UNREACHED = "unreached"  # error code for an orphan so old that no running write can still commit it
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


REFUSALS = ("key", "no-key", "denied", "disabled", "unavailable")
"""Error codes of keys that are not available."""


def is_refusal(error: ModcryptError | OSError) -> bool:
    """Return whether an error is an unavailable key, which is not a fault of the table."""
    return isinstance(error, KeyRetrievalError) and not isinstance(error, KeyMaterialError)

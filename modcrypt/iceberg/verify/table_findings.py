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
    """A finding about a file of a table, or about the table."""

    # Location of the file in the table; None if the finding is about the table.
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
    """A verified file that a snapshot reaches."""

    # `manifest list`, `manifest`, `delete manifest`, `data`, `position deletes`, `equality deletes`
    # or `deletion vectors`.
    kind: str
    location: str  # location of the file in the table
    # Size in bytes according to the manifest or list that names it; None if unknown.
    size: int | None
    # Number of rows or deleted rows according to its manifest; None for manifests.
    records: int | None
    encrypted: bool  # whether the file has key metadata
    tags: int  # number of tags verified
    ok: bool  # whether the file has no fault


@dataclass(frozen=True, slots=True, kw_only=True)
class TableKek:
    """A KEK of the table."""

    id: str  # id of the KEK
    master_key_id: str  # id of the master key that wraps the KEK
    # Creation time and age according to the KEK's metadata.
    created_ms: int
    age_days: int
    store: str  # `table` or `key store`
    scope: str  # files that the KEK is for; empty for the whole table
    # Whether the newest version of the master key wraps the KEK; None for unknown.
    current: bool | None
    files: int  # number of data and delete files whose key metadata the KEK encrypts


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedKek(TableKek):
    """A verified KEK."""

    manifest_lists: int  # number of manifest lists whose key metadata the KEK encrypts
    opened: bool | None  # whether the key service unwrapped the KEK; None if it was not called


@dataclass(frozen=True, slots=True, kw_only=True)
class StrayFile:
    """A file in the table's folder that nothing reaches."""

    path: str  # path of the file
    size: int  # size in bytes
    age_days: float | None  # days since the last change; None if the file system does not report it
    state: str  # `encrypted`, `plaintext` or `unknown`, judged by its first bytes
    temporary: bool  # whether it is a temporary file of an interrupted modcrypt write


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

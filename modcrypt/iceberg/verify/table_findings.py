"""What verifying a table finds: plain values, without any key.

Findings are those of files, with the file's location: a fault says that something is not as it
must be, a warning that something is not as it should be, or could not be told.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from modcrypt.ags1.layout import DEFAULT_BLOCK_LENGTH
from modcrypt.errors import (
    KeyMaterialError,
    KeyRetrievalError,
    ModcryptError,
    PlaintextError,
)
from modcrypt.parquet.verify.findings import (
    ALWAYS_OPEN,
    FILE,
    Finding,
    Unauthenticated,
    raise_first,
)
from modcrypt.report.page import counted

__all__ = [
    "CheckedKek",
    "CheckedTableFile",
    "StrayFile",
    "TableFinding",
    "TableReport",
    "TableVerification",
    "is_refusal",
]

ORPHAN = "orphan"
"""The word for a file that nothing reaches."""

UNSIGNED = "table metadata"
STATISTICS = "statistics"
ORPHANS = "orphans"
_OPEN = (ALWAYS_OPEN, UNSIGNED, STATISTICS, ORPHANS)
"""What the formats seal in no table, or is none of it."""

MAX_TABLE_FINDINGS = 10_000
"""Most findings told of one table; what goes beyond is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFinding(Finding):
    """A finding, and the file that it is about.

    Attributes:
        location: of the file, as the table names it; None where it is about the table.
    """

    location: str | None = None

    def fields(self) -> dict[str, Any]:
        """Give it as what JSON takes."""
        return {**Finding.fields(self), "location": self.location}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedTableFile:
    """A file that a snapshot reaches, and how it was found.

    Attributes:
        kind: `manifest list`, `manifest`, `delete manifest`, `data`, `position deletes`, `equality
            deletes` or `deletion vectors`.
        location: as the table names it.
        size: bytes, as what names it says; None where that could not be read.
        records: rows or deleted rows, as what names it says; None of manifests.
        encrypted: whether it has key metadata.
        tags: how many were verified.
        ok: whether there is no fault about it.
    """

    kind: str
    location: str
    size: int | None
    records: int | None
    encrypted: bool
    tags: int
    ok: bool

    def fields(self) -> dict[str, Any]:
        """Give it as what JSON takes."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedKek:
    """A KEK of the table.

    Attributes:
        id, master_key_id: its own, and that of the master key that wraps it.
        created_ms, age_days: when it was made, as it says.
        store: `table` or `key store`.
        scope: which files it is for; empty for the whole table.
        current: whether the newest version of the master key wraps it; None for unknown.
        manifest_lists, files: how many it seals the key metadata of.
        opened: whether the key service unwrapped it; None if it was not asked.
    """

    id: str
    master_key_id: str
    created_ms: int
    age_days: int
    store: str
    scope: str
    current: bool | None
    manifest_lists: int
    files: int
    opened: bool | None

    def fields(self) -> dict[str, Any]:
        """Give it as what JSON takes."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class StrayFile:
    """A file in the table's folder that nothing reaches.

    Attributes:
        path: where it is.
        size: bytes.
        age_days: since it was changed; None where the file system doesn't tell.
        state: `encrypted`, `plaintext` or `unknown`, by its first bytes.
        temporary: it is what an interrupted write of modcrypt left.
    """

    path: str
    size: int
    age_days: float | None
    state: str
    temporary: bool

    def fields(self) -> dict[str, Any]:
        """Give it as what JSON takes."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class TableVerification:
    """What `verify_table` says of a table.

    Attributes:
        name: of its metadata.json.
        location, uuid: of the table.
        master_key_id: of the master key that it says to be under.
        snapshots: ids of those that were looked at.
        all_snapshots: whether these are all that it has.
        files: that they reach, each once.
        keks: the KEKs of the table.
        unused_keys: ids of `encryption-keys` that nothing uses.
        orphans: files in its folder that nothing reaches; None where that can't be told.
        findings: faults and warnings.
        not_authenticated: what no tag was verified for, and why.
    """

    name: str
    location: str
    uuid: str
    master_key_id: str | None
    snapshots: tuple[int, ...]
    all_snapshots: bool
    files: tuple[CheckedTableFile, ...] = field(repr=False)
    keks: tuple[CheckedKek, ...] = field(repr=False)
    unused_keys: tuple[str, ...] = field(repr=False)
    orphans: tuple[StrayFile, ...] | None = field(repr=False)
    findings: tuple[TableFinding, ...]
    not_authenticated: tuple[Unauthenticated, ...]

    @property
    def ok(self) -> bool:
        """Whether there is no fault; warnings, and what was not authenticated, aside."""
        return not any(one.severity == "fault" for one in self.findings)

    @property
    def complete(self) -> bool:
        """Whether there is no fault, and a tag stands for all that the table's format seals.

        metadata.json and statistics files, which it seals in no table, don't count.
        """
        return self.ok and not self.gaps

    @property
    def gaps(self) -> tuple[Unauthenticated, ...]:
        """Parts that the format encrypts, and that were not authenticated."""
        return tuple(one for one in self.not_authenticated if one.what not in _OPEN)

    @property
    def limits(self) -> tuple[Unauthenticated, ...]:
        """Parts that the format authenticates in no table."""
        return tuple(one for one in self.not_authenticated if one.what in _OPEN)

    @property
    def tags(self) -> int:
        """How many were verified."""
        return sum(one.tags for one in self.files)

    @property
    def bytes(self) -> int:
        """Of all files that were reached, as what names them says."""
        return sum(one.size or 0 for one in self.files)

    def fields(self) -> dict[str, Any]:
        """Give it as what JSON takes."""
        return {
            "name": self.name,
            "location": self.location,
            "uuid": self.uuid,
            "ok": self.ok,
            "complete": self.complete,
            "master_key_id": self.master_key_id,
            "snapshots": list(self.snapshots),
            "all_snapshots": self.all_snapshots,
            "tags": self.tags,
            "bytes": self.bytes,
            "findings": [one.fields() for one in self.findings],
            "not_authenticated": [one.fields() for one in self.not_authenticated],
            "files": [one.fields() for one in self.files],
            "keks": [one.fields() for one in self.keks],
            "unused_keys": list(self.unused_keys),
            "orphans": None if self.orphans is None else [one.fields() for one in self.orphans],
        }

    def raise_for_faults(self) -> None:
        """Raise the first fault as the error that reading the table would raise.

        Raises:
            ModcryptError: there is one.
            OSError: a file could not be read.
        """
        raise_first(self.findings)

    def facts(self) -> list[tuple[str, str]]:
        """Give labels and values for people."""
        faults = sum(one.severity == "fault" for one in self.findings)
        warnings = len(self.findings) - faults
        kinds = [one.kind for one in self.files]
        manifests = sum("manifest" in kind for kind in kinds) - kinds.count("manifest list")
        result = [counted(faults, "fault"), counted(warnings, "warning")]
        return [
            ("Result", ", ".join(result) if self.findings else "no findings"),
            ("Everything authenticated", "yes" if self.complete else "no"),
            ("Snapshots", f"{len(self.snapshots):,}" + ("" if self.all_snapshots else ", not all")),
            ("Manifest lists", f"{kinds.count('manifest list'):,}"),
            ("Manifests", f"{manifests:,}"),
            ("Data and delete files", f"{sum('manifest' not in kind for kind in kinds):,}"),
            ("Tags verified", f"{self.tags:,}, in {self.bytes:,} bytes"),
            ("Master key", self.master_key_id or "none"),
            ("KEKs", f"{len(self.keks):,}"),
            ("Unused keys", f"{len(self.unused_keys):,}"),
            ("Orphans", "not looked for" if self.orphans is None else f"{len(self.orphans):,}"),
        ]

    def to_html(self) -> str:
        """Give it as one self-contained page, without any script."""
        from modcrypt.iceberg.verify.verification_page import draw_verification

        return draw_verification(self)


class TableReport:
    """What was found so far, of a file or of the table: bounded, whatever there is."""

    def __init__(self) -> None:
        self.findings: list[TableFinding] = []
        self.notes: dict[tuple[str, str | None], str] = {}
        self._more = 0
        self._more_faults = 0
        self._refusals: set[str] = set()

    def tell(
        self, word: str, message: str, location: str | None = None, *, warning: bool = False
    ) -> None:
        """Take a finding by its parts."""
        severity: Any = "warning" if warning else "fault"
        self.add(TableFinding(word=word, message=message, severity=severity, location=location))

    def add(self, finding: TableFinding) -> None:
        """Take a finding, or only count it where there are many."""
        if len(self.findings) < MAX_TABLE_FINDINGS:
            self.findings.append(finding)
        elif finding.severity == "fault":
            self._more_faults += 1
        else:
            self._more += 1

    def failed(self, error: ModcryptError | OSError, location: str, *, lost: bool = False) -> None:
        """Take what reading a file ran into.

        What a key service refuses is no fault of the table: it is a warning, and what was not
        looked at is told.

        Args:
            error: that was raised.
            location: of the file.
            lost: the key that is missing is one that the table itself should have.
        """
        if isinstance(error, OSError):
            reason = error.strerror or type(error).__name__
            self.tell(FILE, f"the file could not be read: {reason}", location)
        elif is_refusal(error) and not lost:
            self.tell(error.word, str(error), location, warning=True)
        else:
            self.tell(error.word, str(error), location)
        self.note("file", location, "it could not be read")

    def plain(self, location: str, *, expected: bool) -> None:
        """Take a file in plaintext, which the caller accepts; of an encrypted table it is odd."""
        if not expected:
            message = "it is in plaintext in an encrypted table"
            self.tell(PlaintextError.word, message, location, warning=True)
        self.note("file", location, "it is in plaintext")

    def block_length(self, length: int | None, location: str) -> None:
        """Take the block length of an AGS1 file, which no tag of a single block stands for."""
        if length not in (None, DEFAULT_BLOCK_LENGTH):
            self.tell(
                "format",
                f"its header says that blocks have {length} bytes: Iceberg's Java writes and reads "
                f"{DEFAULT_BLOCK_LENGTH} alone, so that it was altered or another writer's",
                location,
            )

    def note(self, what: str, path: str | None, why: str) -> None:
        """Say what was not authenticated."""
        self.notes.setdefault((what, path), why)

    def merge(self, other: TableReport) -> None:
        """Take over what was found elsewhere; of refusals in the same words, the first."""
        for finding in other.findings:
            if finding.severity == "warning" and finding.word in _REFUSALS:
                if finding.message in self._refusals:
                    continue
                self._refusals.add(finding.message)
            self.add(finding)
        for (what, path), why in other.notes.items():
            self.note(what, path, why)

    def closed(self) -> tuple[TableFinding, ...]:
        """Give the findings, and how many more there were."""
        for count, warning in ((self._more_faults, False), (self._more, True)):
            if count:
                kind = "warning" if warning else "fault"
                self.findings.append(
                    TableFinding(
                        word="integrity",
                        message=f"{counted(count, 'more ' + kind)}, not listed",
                        severity="warning" if warning else "fault",
                    )
                )
        return tuple(self.findings)

    def unauthenticated(self) -> tuple[Unauthenticated, ...]:
        """Give what was not authenticated."""
        return tuple(
            Unauthenticated(what=what, path=path, why=why)
            for (what, path), why in self.notes.items()
        )

    @property
    def faults(self) -> int:
        """How many faults there are."""
        return self._more_faults + sum(one.severity == "fault" for one in self.findings)


_REFUSALS = ("key", "no-key", "denied", "disabled", "unavailable")


def is_refusal(error: ModcryptError | OSError) -> bool:
    """Whether a key could not be had, which says nothing of the table."""
    return isinstance(error, KeyRetrievalError) and not isinstance(error, KeyMaterialError)

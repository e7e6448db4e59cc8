"""The result of verifying a table: plain values without keys."""

from __future__ import annotations

from dataclasses import dataclass, field

from modcrypt.iceberg.verify.table_findings import (
    OPEN_PARTS,
    CheckedKek,
    CheckedTableFile,
    StrayFile,
    TableFinding,
)
from modcrypt.parquet.format.findings import Unauthenticated
from modcrypt.parquet.verify.verification_results import VerificationResult


@dataclass(frozen=True, kw_only=True, repr=False)
class TableVerification(VerificationResult):
    """The result of `verify_table`.

    Attributes:
        name: Name of the metadata.json.
        location, uuid: Location and UUID of the table.
        master_key_id: Id of the table's master key according to its metadata.json.
        snapshots: Ids of the verified snapshots.
        all_snapshots: Whether these are all snapshots of the table.
        files: Files that the snapshots reach, each once.
        keks: KEKs of the table.
        unused_keys: Ids of `encryption-keys` that nothing uses.
        orphans: Files in the table's folder that nothing reaches; None if not determined.
        findings: Faults and warnings.
        not_authenticated: Parts for which no tag was verified, with the reason.
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

    _first = ("ok", "complete", "tags", "bytes")

    @property
    def complete(self) -> bool:
        """True if there is no fault, and tags of all parts that the format encrypts are verified.

        metadata.json and statistics files, which the format never encrypts, do not count.
        """
        return self.ok and not self.gaps

    def to_html(self) -> str:
        """Return the page about the table; see `modcrypt.report.render_html`."""
        from modcrypt.report.html import format_name, group_notes, render

        gaps, limits = (
            group_notes((f"{note.what}: {note.path or 'the table'}", note.why) for note in notes)
            for notes in (self.gaps, self.limits)
        )
        title = f"Verification of {format_name(self.location)}"
        return render("table_verification.html", title=title, result=self, gaps=gaps, limits=limits)

    @property
    def gaps(self) -> tuple[Unauthenticated, ...]:
        """Parts that the format encrypts, but that were not authenticated."""
        return tuple(note for note in self.not_authenticated if note.what not in OPEN_PARTS)

    @property
    def limits(self) -> tuple[Unauthenticated, ...]:
        """Parts that the format authenticates in no table."""
        return tuple(note for note in self.not_authenticated if note.what in OPEN_PARTS)

    @property
    def tags(self) -> int:
        """Number of tags verified."""
        return sum(file.tags for file in self.files)

    @property
    def bytes(self) -> int:
        """Total size of all files reached, according to the manifests and lists that name them."""
        return sum(file.size or 0 for file in self.files)

    def facts(self) -> list[tuple[str, str]]:
        """Return labels and values for display."""
        kinds = [file.kind for file in self.files]
        manifests = sum("manifest" in kind for kind in kinds) - kinds.count("manifest list")
        return [
            *self._result_facts(self.findings, complete=self.complete),
            ("Snapshots", f"{len(self.snapshots):,}" + ("" if self.all_snapshots else ", not all")),
            ("Manifest lists", f"{kinds.count('manifest list'):,}"),
            ("Manifests", f"{manifests:,}"),
            ("Data and delete files", f"{sum('manifest' not in kind for kind in kinds):,}"),
            ("Tags verified", f"{self.tags:,}, in {self.bytes:,} bytes"),
            ("Master key", self.master_key_id or "none"),
            ("KEKs", f"{len(self.keks):,}"),
            ("Unused keys", f"{len(self.unused_keys):,}"),
            ("Orphans", "not checked" if self.orphans is None else f"{len(self.orphans):,}"),
        ]

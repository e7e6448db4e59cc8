"""Results of verifying a file or a set of files: findings, and what was not authenticated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from modcrypt.parquet.format.byte_map import Region
from modcrypt.parquet.format.findings import Finding, Unauthenticated, fold, raise_first
from modcrypt.parquet.writers.quirk import FoundQuirk
from modcrypt.report.fact_sheet import FactSheet
from modcrypt.report.json_fields import JsonFields
from modcrypt.report.text import format_count


class VerificationResult(FactSheet, JsonFields):
    """The members that the results of verifying files and tables share."""

    findings: Sequence[Finding]

    @property
    def ok(self) -> bool:
        """True if there is no fault; warnings and unauthenticated parts do not count."""
        return not any(finding.severity == "fault" for finding in self.findings)

    def raise_for_faults(self) -> None:
        """Raise the first fault as the error that reading would raise.

        Raises:
            ModcryptError: There is a fault.
            OSError: A file could not be read.
        """
        raise_first(self.findings)

    def _result_facts(
        self, findings: Sequence[Finding], *, complete: bool
    ) -> list[tuple[str, str]]:
        faults = sum(finding.severity == "fault" for finding in findings)
        warnings = len(findings) - faults
        counts = f"{format_count(faults, 'fault')}, {format_count(warnings, 'warning')}"
        return [
            ("Result", counts if findings else "no findings"),
            ("Everything authenticated", "yes" if complete else "no"),
        ]


@dataclass(frozen=True, kw_only=True, repr=False)
class Verification(VerificationResult):
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
        quirks: Bugs of the writer by the evidence in the file; in an encrypted file, they are
            looked for if there are findings, in what keys have opened.
        signed_by: Id of the required verifying key whose signature is valid; None without one.
    """

    name: str
    size: int = 0
    encrypted: bool = False
    footer_mode: Literal["encrypted", "plaintext", "none"] = "none"
    algorithm: str | None = None
    num_rows: int | None = None
    row_groups: int = 0
    columns: tuple[str, ...] = ()
    modules: int = 0
    authenticated_bytes: int = 0
    findings: tuple[Finding, ...]
    not_authenticated: tuple[Unauthenticated, ...]
    regions: tuple[Region, ...] = field(default=(), repr=False)
    signed_by: str | None = None
    quirks: tuple[FoundQuirk, ...] = ()

    _first = ("ok", "complete")

    @property
    def complete(self) -> bool:
        """True if there is no fault, and tags or signatures authenticate the whole file.

        Parts that the format does not authenticate do not count: file crypto metadata, which holds
        only what the tags depend on and what identifies keys, and columns that the caller's policy
        leaves in plaintext.
        """
        return self.ok and all(note.by_design for note in self.not_authenticated)

    def to_html(self) -> str:
        """Return the page that draws the file; see `modcrypt.report.render_html`."""
        from modcrypt.parquet.verify.file_drawing import draw
        from modcrypt.report.html import format_name

        folded = fold((None, note) for note in self.not_authenticated)
        return draw(
            title=format_name(self.name), facts=self.facts(), columns=self.columns,
            row_groups=self.row_groups, size=self.size, regions=self.regions,
            findings=self.findings,
            notes=[
                *((f"Not authenticated: {note.what}", note.why) for note in folded),
                *(("Bug of the writer", str(quirk)) for quirk in self.quirks),
            ],
        )  # fmt: skip

    def facts(self) -> list[tuple[str, str]]:
        """Return labels and values for people: properties of the file, and the result."""
        rows = "unknown" if self.num_rows is None else f"{self.num_rows:,}"
        return [
            *self._result_facts(self.findings, complete=self.complete),
            ("Encrypted", "yes" if self.encrypted else "no"),
            ("Footer", self.footer_mode),
            ("Algorithm", self.algorithm or "none"),
            *([("Signed by", self.signed_by)] if self.signed_by else []),
            ("Size", f"{self.size:,} bytes"),
            ("Rows", rows),
            ("Row groups", f"{self.row_groups:,}"),
            ("Columns", f"{len(self.columns):,}"),
            ("Pages and parts verified", f"{self.modules:,}, {self.authenticated_bytes:,} bytes"),
        ]


@dataclass(frozen=True, kw_only=True, repr=False)
class DatasetVerification(VerificationResult):
    """The result of `verify_dataset` for a set of files.

    Attributes:
        files: Result of each file, in the order of their paths.
        findings: Findings about the set: missing, duplicate, foreign, exchanged or copied parts.
        not_authenticated: What could not be verified about the set, with the reason.
    """

    files: tuple[Verification, ...]
    findings: tuple[Finding, ...]
    not_authenticated: tuple[Unauthenticated, ...] = ()

    _first = ("ok", "complete", "num_rows")

    @property
    def ok(self) -> bool:
        """True if there is no fault in the set or in any file."""
        return super().ok and all(file.ok for file in self.files)

    @property
    def complete(self) -> bool:
        """True if there is no fault, and every file and the set are fully authenticated."""
        return self.ok and not self.not_authenticated and all(file.complete for file in self.files)

    @property
    def num_rows(self) -> int | None:
        """Number of rows of all files; None if a footer could not be read."""
        counts = [file.num_rows for file in self.files]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    def facts(self) -> list[tuple[str, str]]:
        """Return labels and values for people: the result, and the counts of the set."""
        rows = "unknown" if self.num_rows is None else f"{self.num_rows:,}"
        faulty = sum(not file.ok for file in self.files)
        findings = [*self.findings, *(found for file in self.files for found in file.findings)]
        return [
            *self._result_facts(findings, complete=self.complete),
            ("Files", f"{len(self.files):,}, {faulty:,} with faults"),
            ("Rows", rows),
        ]

    def raise_for_faults(self) -> None:
        """Raise the first fault: those of the set come before those of its files."""
        super().raise_for_faults()
        for file in self.files:
            file.raise_for_faults()

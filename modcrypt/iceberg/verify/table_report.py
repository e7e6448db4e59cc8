"""A report about a table or a part of it."""

from __future__ import annotations

from typing import Any

from modcrypt.ags1.layout import DEFAULT_BLOCK_LENGTH
from modcrypt.errors import ModcryptError, PlaintextError
from modcrypt.iceberg.verify.table_findings import (
    MAX_TABLE_FINDINGS,
    REFUSALS,
    TableFinding,
    is_refusal,
)
from modcrypt.parquet.format.findings import FILE, Finding
from modcrypt.parquet.format.report import Report


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
        if finding.severity == "warning" and finding.word in REFUSALS:
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

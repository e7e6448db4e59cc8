"""The kinds of faults that the verification of a table finds."""

from __future__ import annotations

from modcrypt.iceberg import IcebergTable, verify_table


def fault_words(table: IcebergTable) -> set[str]:
    """Return the error codes of the faults of a table."""
    return {found.word for found in verify_table(table).findings if found.severity == "fault"}

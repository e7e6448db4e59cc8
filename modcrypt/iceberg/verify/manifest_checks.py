"""Check manifest lists and manifests against what names them, for `verify_table`."""

from __future__ import annotations

from modcrypt.errors import FormatError
from modcrypt.iceberg.format.manifest_headers import find_misplacements, find_redefinitions
from modcrypt.iceberg.format.manifest_rows.file_entries import ADDED, DELETED, EXISTING
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.read.inventory import ReachedList, ReachedManifest, ReachedTable
from modcrypt.iceberg.verify.table_report import TableReport


def check_table(reached: ReachedTable, metadata: TableMetadata, report: TableReport) -> None:
    """Check a manifest list or manifest that was read."""
    if isinstance(reached, ReachedList):
        _check_list(reached, report)
    elif isinstance(reached, ReachedManifest):
        _check_manifest(reached, metadata, report)


def _check_list(reached: ReachedList, report: TableReport) -> None:
    """Check a manifest list against its snapshots, which its encrypted header names."""
    for snapshot in reached.snapshots:
        for name in ("snapshot-id", "sequence-number"):
            if name not in reached.header:
                report.add_note("snapshot", reached.location, f"its header has no {name}")
        for what in find_misplacements(reached.header, snapshot):
            report.note("integrity", what, reached.location)
        numbers = (each.manifest.sequence_number for each in reached.manifests)
        if newer := sum(number > snapshot.sequence_number for number in numbers):
            message = f"{newer} of its manifests are newer than snapshot {snapshot.id}"
            report.note("integrity", message, reached.location)


_STATUSES = ((ADDED, "added"), (EXISTING, "existing"), (DELETED, "deleted"))


def _check_manifest(reached: ReachedManifest, metadata: TableMetadata, report: TableReport) -> None:
    _check_counts(reached, report)
    try:
        for what in find_redefinitions(reached.header, metadata):
            report.note("integrity", what, reached.location)
    except FormatError as error:
        report.note(error.word, str(error))


def _check_counts(reached: ReachedManifest, report: TableReport) -> None:
    """Check the counts in a manifest list against the entries of a manifest."""
    row = reached.manifest.row
    for status, name in _STATUSES:
        counted = reached.counts.get(status, (0, 0))
        for number, what in zip(counted, ("files", "rows"), strict=True):
            listed = row.get(f"{name}_{what}_count")
            if listed is not None and listed != number:
                message = f"it has {number} {name} {what}, but the manifest list says {listed}"
                report.note("truncation", message, reached.location)

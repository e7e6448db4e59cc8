"""Check manifest lists and manifests against what names them, for `verify_table`."""

from __future__ import annotations

from modcrypt.errors import FormatError
from modcrypt.iceberg.format.manifest_headers import misplaced, redefined
from modcrypt.iceberg.format.manifests import ADDED, DELETED, EXISTING
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.read.inventory import ReachedList, ReachedManifest
from modcrypt.iceberg.verify.table_findings import TableReport

__all__ = ["check_list", "check_manifest"]


def check_list(one: ReachedList, report: TableReport) -> None:
    """Hold a manifest list against its snapshots: its header, which is sealed, names its own."""
    for snapshot in one.snapshots:
        for name in ("snapshot-id", "sequence-number"):
            if name not in one.header:
                report.note("snapshot", one.location, f"it does not say its {name}")
        for what in misplaced(one.header, snapshot):
            report.tell("integrity", what, one.location)
        newer = [m for m in one.manifests if m.manifest.sequence_number > snapshot.sequence_number]
        if newer:
            report.tell(
                "integrity",
                f"{len(newer)} of its manifests are newer than snapshot {snapshot.id}",
                one.location,
            )


_STATUSES = ((ADDED, "added"), (EXISTING, "existing"), (DELETED, "deleted"))


def check_manifest(one: ReachedManifest, metadata: TableMetadata, report: TableReport) -> None:
    """Hold a manifest against what its manifest list and metadata.json say of it."""
    _check_counts(one, report)
    try:
        for what in redefined(one.header, metadata):
            report.tell("integrity", what, one.manifest.location)
    except FormatError as error:
        report.tell(error.word, str(error))


def _check_counts(one: ReachedManifest, report: TableReport) -> None:
    """Hold what a manifest list says of a manifest against its entries."""
    row = one.manifest.row
    for status, name in _STATUSES:
        found = one.counts.get(status, (0, 0))
        for number, what in zip(found, ("files", "rows"), strict=True):
            said = row.get(f"{name}_{what}_count")
            if said is not None and said != number:
                report.tell(
                    "truncation",
                    f"it has {number} {name} {what}, the manifest list says {said}",
                    one.manifest.location,
                )

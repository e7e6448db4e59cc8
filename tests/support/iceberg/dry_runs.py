"""What a rotation did, compared with what its dry run said."""

from __future__ import annotations

from dataclasses import replace

from modcrypt.iceberg.rotate.table_rotation import TableRotation


def as_planned(done: TableRotation, planned: TableRotation) -> TableRotation:
    """Give what was done with what a dry run can't tell in its place."""
    return replace(
        done, dry_run=True, committed=False, table=planned.table, seconds=planned.seconds,
        older_versions=planned.older_versions,
    )  # fmt: skip

"""Comparison of a rotation with its dry run."""

from __future__ import annotations

from dataclasses import replace

from modcrypt.iceberg.rotate.rotation_report import TableRotation


def with_planned_values(done: TableRotation, planned: TableRotation) -> TableRotation:
    """Return a result in which values that a dry run can't know come from the dry run."""
    return replace(
        done, dry_run=True, committed=False, table=planned.table, seconds=planned.seconds,
        older_versions=planned.older_versions, proved=planned.proved,
    )  # fmt: skip

"""Commits of others that come first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from modcrypt.iceberg import IcebergTable
from modcrypt.iceberg.format.table_metadata import TableMetadata


def with_rival_commits(table: IcebergTable, act: Callable[[], object], times: int) -> IcebergTable:
    """Return a table that another writer commits to just before each of its first commits."""
    real, left = table.versions, [times]

    class Slow:
        is_remote, merges = False, real.merges

        def current(self) -> Any:
            return real.current()

        def read(self, known: TableMetadata | None = None) -> Any:
            return real.read(known)

        def check_writable(self) -> None:
            real.check_writable()

        def commit(self, base: Any, metadata: TableMetadata) -> Any:
            if left[0]:
                left[0] -= 1
                act()
            return real.commit(base, metadata)

    return replace(table, versions=Slow())

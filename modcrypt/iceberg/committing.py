"""A table's next version: made of the current one, and made again if somebody else was faster."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from modcrypt.errors import CommitConflictError
from modcrypt.iceberg.table_metadata import TableMetadata

if TYPE_CHECKING:
    from modcrypt.iceberg.table import IcebergTable

__all__ = ["Make", "commit", "successor"]

Make: TypeAlias = "Callable[[IcebergTable], TableMetadata]"
"""Makes of a version of the table the metadata of the next one; may write files that it names."""

ATTEMPTS = 4


def commit(table: IcebergTable, make: Make, *, attempts: int = ATTEMPTS) -> IcebergTable:
    """Commit a change: all of it, or nothing.

    Args:
        table: the version that the caller has seen; the change is made of the current one.
        make: called again, with a newer version, when somebody else has committed meanwhile. It
            raises what is to stop that, as a `CommitConflictError` where the other's change and
            this one don't go together.
        attempts: how often.

    Returns:
        The table at its new version.

    Raises:
        CommitConflictError: somebody else was faster every time.
        ModcryptError, OSError: what `make` raises, and from the file system; the table is as it
            was.
    """
    for left in reversed(range(attempts)):
        table = table.refreshed()
        new = successor(make(table), of=table)
        try:
            return table.at(table.versions.commit(table.place, new))
        except CommitConflictError:
            if not left:
                raise
    raise AssertionError("attempts is 1 or more")


def successor(new: TableMetadata, *, of: IcebergTable) -> TableMetadata:
    """Give metadata the time of a next version, and the log in which the one before it stands."""
    base = of.metadata
    before = int(base.document.get("last-updated-ms") or 0)
    location = of.walk.locations.location(of.place) or of.place.path
    log = [*(new.document.get("metadata-log") or [])]
    log.append({"timestamp-ms": before, "metadata-file": location})
    kept = int(base.properties.get("write.metadata.previous-versions-max", "100"))
    now = max(int(time.time() * 1000), before + 1)
    return new.edited(metadata_log=log[max(0, len(log) - kept) :], last_updated_ms=now)

"""A table's next version: made of the current one, and made again if somebody else was faster."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from modcrypt.errors import CommitConflictError, ModcryptError
from modcrypt.iceberg.format.table_metadata import TableMetadata

if TYPE_CHECKING:
    from modcrypt.iceberg.tables.table import IcebergTable
    from modcrypt.io.storage import Place

__all__ = ["Make", "commit", "successor", "surely_failed"]

Make: TypeAlias = "Callable[[IcebergTable], TableMetadata]"
"""Makes of a version of the table the metadata of the next one; may write files that it names."""

ATTEMPTS = 5
"""How often a commit is tried (Iceberg's `commit.retry.num-retries` is 4)."""

FIRST_PAUSE = 0.1
"""Seconds before the second attempt at most; before each further one twice as long."""


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
    conflict: CommitConflictError | None = None
    for left in reversed(range(attempts)):
        try:
            table = table.refreshed()
        except ModcryptError as error:
            raise error from conflict  # by which `surely_failed` knows
        table.metadata.check_members()
        new = _made(table, make)
        try:
            if new is None:
                raise CommitConflictError(
                    f"{table.place.path}: somebody else has committed, and dropped the history"
                )
            place = table.versions.commit(table.place, new)
        except CommitConflictError as error:
            if not left:
                raise
            conflict = error
        else:  # what is committed isn't read again: that could fail
            metadata = TableMetadata(new.encode(), place.path)
            through = table.walk.through(metadata)
            return replace(table, metadata=metadata, place=place, walk=through)
        pause = FIRST_PAUSE * 2 ** (attempts - 1 - left)
        time.sleep(random.uniform(0.5, 1) * pause)  # noqa: S311  # a pause is no secret
    raise AssertionError("attempts is 1 or more")


def _made(table: IcebergTable, make: Make) -> TableMetadata | None:
    """Make the next version; None if it can't be, since others have dropped what it is made of."""
    try:
        return successor(make(table), of=table)
    except FileNotFoundError:
        if table.versions.current() == table.place:
            raise
        return None


def surely_failed(error: BaseException, table: IcebergTable, offered: Place | None) -> bool:
    """Tell whether a commit that ended with an error surely came to nothing.

    An error may come after the commit, or leave open whether a catalog has taken it, or a store,
    which goes on with what it was asked for when nobody waits for the answer any more. That the
    current version doesn't have what was committed tells nothing: others may have gone on from it,
    and have dropped its snapshot and kept its files.

    Args:
        error: that ended it.
        table: any version of it.
        offered: the place of the version that was to be followed, once all was made of it; None
            before that.

    Raises:
        ModcryptError, OSError: the current version can't be told.
    """
    if offered is None or isinstance(error, CommitConflictError):
        return True
    if isinstance(error.__cause__, CommitConflictError):  # after which the table was refused
        return True
    refused = isinstance(error, ModcryptError | ValueError)  # before a store was asked, or after
    return (refused or offered.filesystem is None) and table.versions.current() == offered


def successor(new: TableMetadata, *, of: IcebergTable) -> TableMetadata:
    """Give metadata the time of a next version, and the log in which the one before it stands."""
    base = of.metadata
    before = int(base.document.get("last-updated-ms") or 0)
    location = of.walk.locations.location(of.place) or of.place.path
    log = [*(new.document.get("metadata-log") or [])]
    log.append({"timestamp-ms": before, "metadata-file": location})
    # One at least, as in Java: by that a writer sees that others have gone on from his version.
    kept = max(1, base.number("write.metadata.previous-versions-max", 100))
    now = max(int(time.time() * 1000), before + 1)
    return new.edited(metadata_log=log[max(0, len(log) - kept) :], last_updated_ms=now)

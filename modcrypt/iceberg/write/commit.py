"""Commit a table's next version, and retry on the newer version if another writer was faster."""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from modcrypt.errors import CommitConflictError, ModcryptError
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.format.table_versions import CurrentVersion, Versions
from modcrypt.iceberg.read.table_version import TableVersion
from modcrypt.iceberg.write.merged_commits import check_merged
from modcrypt.iceberg.write.new_files import NewFiles
from modcrypt.iceberg.write.removed_versions import remove_unlogged_versions
from modcrypt.iceberg.write.table_sealing import (
    Sealing,
    begin_sealing,
    check_alone,
    find_foreign,
    seal_commit,
)
from modcrypt.io.places import Place

Table = TypeVar("Table", bound=TableVersion)

Make: TypeAlias = Callable[[Table], TableMetadata]
"""Returns the metadata of the version after the given one; may write files that it names."""

ATTEMPTS = 5
"""Default number of attempts to commit (Iceberg's `commit.retry.num-retries` is 4)."""

FIRST_PAUSE = 0.1
"""Default of the maximum seconds before the second attempt; doubled before each further one."""

MAX_RETRIES = 1000
"""Limit of `commit.retry.num-retries`, which anyone who can write metadata.json can set."""

LONGEST_PAUSE = 600
"""Limit of `commit.retry.max-wait-ms` in seconds, for the same reason."""


@dataclass(frozen=True)
class Retries:
    """The attempts to commit that a table's properties allow, with Java's names and defaults."""

    attempts: int
    min_pause: float  # maximum seconds before the second attempt; doubled before each further one
    max_pause: float  # limit of that
    timeout: float  # seconds after which no further attempt begins

    @classmethod
    def of(cls, metadata: TableMetadata) -> Retries:
        """Return the attempts for a table; raise FormatError if a property is not a number."""
        retries = metadata.number("commit.retry.num-retries", ATTEMPTS - 1)
        waits = [
            metadata.number(f"commit.retry.{name}-ms", otherwise) / 1000
            for name, otherwise in (
                ("min-wait", int(FIRST_PAUSE * 1000)), ("max-wait", 60_000),
                ("total-timeout", 1_800_000),
            )
        ]  # fmt: skip
        low, high, timeout = (max(0.0, seconds) for seconds in waits)
        attempts = 1 + min(max(retries, 0), MAX_RETRIES)
        return cls(attempts, low, min(high, LONGEST_PAUSE), timeout)

    def pause(self, failed: int) -> float:
        """Return the seconds to wait after a number of failed attempts, of random length."""
        longest = min(self.min_pause * 2.0 ** min(failed - 1, 30), self.max_pause)
        return random.uniform(0.5, 1) * longest  # noqa: S311  # it need not be unpredictable


def latest(table: Table) -> Table:
    """Return the current version of a table; read it only if it is another than `table`."""
    newest = table if table.versions.current() == table.place else table.refreshed()
    newest.metadata.check_members()
    return newest


def commit(
    table: Table,
    make: Make[Table],
    *,
    files: NewFiles | None = None,
    keep_versions: bool = False,
) -> Table:
    """Commit a change completely or not at all; return the table at its new version.

    Args:
        table: The version that the caller has seen; the change is applied to the current version.
        make: Function that makes the next version. It is called again with a newer version when
            another writer has committed in the meantime. It raises to stop the retries, for
            example a `CommitConflictError` where the two changes are incompatible.
        files: Files that `make` writes. Those of an attempt are removed before the next.
        keep_versions: Whether the caller needs the versions that the log no longer names; by
            default, the table's properties may have them deleted.

    Raises:
        CommitConflictError: Another writer committed first at every attempt that the table's
            properties (`commit.retry.*`) allow.
        ModcryptError, OSError: `make` or the file system failed; the table is unchanged.
        IntegrityError: The table was opened with a key that signs; it is changed, and could not be
            sealed, as the message says.
    """
    files = files or NewFiles(table.walk.locations)
    table.resolver.masters.proof.restart()
    try:
        before, new, sealing = _commit(table, make, files, Retries.of(table.metadata))
        files.finish()
    except BaseException as error:
        with contextlib.suppress(Exception):  # then the outcome is unknown
            if _has_certainly_failed(error, table, files.offered):
                files.offered = None
        raise
    seal_commit(new, sealing)
    if not keep_versions:
        remove_unlogged_versions(before, new)
    return new


def _commit(
    table: Table, make: Make[Table], files: NewFiles, retries: Retries
) -> tuple[Table, Table, Sealing | None]:
    """Commit a change; return the version before, the new one, and the seal that it has to get."""
    conflict: CommitConflictError | None = None
    deadline = time.monotonic() + retries.timeout
    table.versions.check_writable()
    for attempt in itertools.count(1):
        try:
            table = table.refreshed()
            sealing = begin_sealing(table)
        except (ModcryptError, ValueError) as error:
            raise error from conflict  # `_has_certainly_failed` looks at the cause
        table.metadata.check_members()
        try:
            files.begin_attempt()
            new = _make_successor(table, make)
            files.offered = table.place
            done = CurrentVersion(*table.versions.commit(table.place, new))
            foreign = None
            if table.versions.merges:
                done = check_merged(table, new, done)
                foreign = find_foreign(done.metadata, new, table.place)
            if sealing is not None:
                check_alone(done.metadata, foreign)
        except CommitConflictError as error:
            if attempt >= retries.attempts or time.monotonic() >= deadline:
                raise
            conflict = error
        else:  # use the committed metadata: reading it again could fail
            after = table.with_metadata(_accepted(done.metadata, new, table), done.place)
            after = replace(after, own_commits=() if foreign else table.next_commits())
            return table, after, sealing
        time.sleep(retries.pause(attempt))
    raise AssertionError("the loop ends with a commit or an error")


def _accepted(committed: TableMetadata, sent: TableMetadata, table: TableVersion) -> TableMetadata:
    """Return the committed metadata, or what was sent if a server has merged another master key.

    The table then refuses that key when it reads the next version, unless its reader expects it.
    """
    same = committed.master_key_id == sent.master_key_id
    return committed if same or table.expected.master_key_ids is not None else sent


def _make_successor(table: Table, make: Make[Table]) -> TableMetadata:
    try:
        return successor(make(table), of=table)
    except FileNotFoundError:
        if table.versions.current() == table.place:
            raise
        raise CommitConflictError(
            f"{table.place.path}: another writer has committed and dropped the history"
        ) from None


def _has_certainly_failed(error: BaseException, table: TableVersion, offered: Place | None) -> bool:
    """Return whether a commit that ended with an error certainly did not take effect.

    The error may come after the commit. It may also leave open whether a catalog or an object
    store has applied the commit: a store can complete a request after the client stops waiting.
    A current version without the committed snapshot proves nothing: other writers may have
    continued from the commit, dropped its snapshot and kept its files.

    `table` is any version of the table. `offered` is the place of the version that the commit
    follows, once all its files are written, and None before that. Raise if the current version
    cannot be determined.
    """
    if offered is None or isinstance(error, CommitConflictError):
        return True
    if isinstance(error.__cause__, CommitConflictError):  # after which the table was refused
        return True
    answered = is_answered(error, offered, table.versions)
    return answered and table.versions.current() == offered


def is_answered(error: BaseException, place: Place, versions: Versions) -> bool:
    """Return whether no request to create a version can be under way after an error.

    `place` is any place in the table's file system.
    """
    # modcrypt raises these before it calls a store, or after the store has answered.
    refused = isinstance(error, ModcryptError | ValueError)
    return refused or (place.filesystem is None and not versions.is_remote)


def successor(new: TableMetadata, *, of: TableVersion) -> TableMetadata:
    """Return metadata with the time of a next version and with its predecessor in the log."""
    base = of.metadata
    before = int(base.document.get("last-updated-ms") or 0)
    location = of.walk.locations.location(of.place) or of.place.path
    log = [*(new.document.get("metadata-log") or [])]
    log.append({"timestamp-ms": before, "metadata-file": location})
    # At least one, as in Java: it shows a writer that others have continued from its version.
    max_logged = max(1, base.number("write.metadata.previous-versions-max", 100))
    now = max(int(time.time() * 1000), before + 1)
    return new.with_members(metadata_log=log[max(0, len(log) - max_logged) :], last_updated_ms=now)

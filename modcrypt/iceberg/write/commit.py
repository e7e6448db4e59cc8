"""Commit a table's next version, and retry on the newer version if another writer was faster.

All changes of a table take these steps, each of which leaves a table that readers can open:

    1. read the current version, which must follow the one that the caller has seen; with a signing
       key, check that all it has may be sealed
    2. make the next version: its files are noted, then written, and nothing names them yet. After a
       crash the table is as before, with orphan files.
    3. commit it, completely or not at all. If another writer was faster, the files of the attempt
       are removed, and 1 follows. After any other failure they stay, unless the version was
       certainly not committed: a request that has failed here may still be carried out.
    4. where a server has merged the commit with others, settle it (`check_merged`)
    5. remove the files that the version does not use
    6. seal the version. After a crash before it, readers who require seals refuse the table until
       its owner has looked at the change, and accepted it.
    7. delete older metadata.json files, if the table's properties want that: last, as nothing may
       go before the new version is certain
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import random
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from modcrypt.errors import CommitConflictError, IntegrityError, ModcryptError
from modcrypt.iceberg.format.table_metadata import PURGED, Snapshot, TableMetadata
from modcrypt.iceberg.format.table_versions import CurrentVersion, Versions
from modcrypt.iceberg.read.table_version import TableVersion
from modcrypt.iceberg.write.new_files import NewFiles
from modcrypt.iceberg.write.removed_versions import remove_unlogged_versions
from modcrypt.iceberg.write.snapshot_writing import MAIN
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
"""Default number of attempts to commit (Iceberg's `commit.retry.num-retries` is 4), and number of
those to settle a merged commit while others change the table."""

FIRST_PAUSE = 0.1
"""Default of the maximum seconds before the second attempt; doubled before each further one."""

MAX_RETRIES = 1000
"""Limit of `commit.retry.num-retries`, which anyone who can write metadata.json can set."""

LONGEST_PAUSE = 600  # limit of `commit.retry.max-wait-ms` in seconds, for the same reason


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
    table: Table, make: Make[Table], *, files: NewFiles | None = None, keep_versions: bool = False
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
        except (ModcryptError, ValueError, OSError) as error:
            raise error from conflict  # `_has_certainly_failed` looks at the cause
        table.metadata.check_members()
        _check_not_purged(table)
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
            same = done.metadata.master_key_id == new.master_key_id
            # If a server has merged another master key, the table is to refuse that key when it
            # reads the next version, unless its reader expects it.
            accepted = same or table.expected.master_key_ids is not None
            after = table.with_metadata(done.metadata if accepted else new, done.place)
            after = replace(after, own_commits=() if foreign else table.next_commits())
            return table, after, sealing
        time.sleep(retries.pause(attempt))
    raise AssertionError("the loop ends with a commit or an error")


def _check_not_purged(table: TableVersion) -> None:
    """Raise FileNotFoundError if a purge has ended the table, and may be deleting its files."""
    if PURGED in table.metadata.properties:
        why = "the table is being purged: purge it again if that was interrupted"
        raise FileNotFoundError(errno.ENOENT, why, table.place.full_name)


def _make_successor(table: Table, make: Make[Table]) -> TableMetadata:
    try:
        return successor(make(table), of=table)
    except FileNotFoundError:
        if table.versions.current() == table.place:
            raise
        raise CommitConflictError(
            f"{table.place.address}: another writer has committed and dropped the history"
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
    if isinstance(error.__cause__, CommitConflictError):  # the table was then refused, or gone
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


#
# A REST catalog compares branches, but no master key. So it accepts a snapshot that was written
# before another writer rotated the table to another master key, and readers refuse its KEK.


def check_merged(table: TableVersion, sent: TableMetadata, done: CurrentVersion) -> CurrentVersion:
    """Return a committed version; settle a new snapshot that is under another master key.

    Its KEK moves to the table's master key if the caller expects that, and so do KEKs that the
    commit has dropped and others need. Otherwise the snapshot is undone. `table` is the version
    that the commit followed, and `sent` what was committed. Raise CommitConflictError if the
    snapshot was undone; and IntegrityError if it could not be undone, or others may have built on
    it, because they have changed the table since.
    """
    known = {snapshot.id for snapshot in table.metadata.snapshots}
    new = [snapshot for snapshot in sent.snapshots if snapshot.id not in known]
    ids = {snapshot.id for snapshot in new}
    dropped = table.metadata.keys.keys() - sent.keys.keys()
    for _ in range(ATTEMPTS):
        there = [snapshot for snapshot in new if snapshot in done.metadata.snapshots]
        is_expected = done.metadata.master_key_id in (table.expected.master_key_ids or ())
        restored = dropped.intersection(_list_former_keks(done.metadata)) if is_expected else ()
        if not restored and all(_has_its_key(done.metadata, snapshot) for snapshot in there):
            return done
        if is_expected:
            settled = _with_moved_keks(done.metadata, table)
        elif _named(done.metadata, ids) == _named(sent, ids):
            settled = _without(done.metadata, ids, table.metadata)
        else:
            break
        place = done.place
        try:
            done = CurrentVersion(*table.versions.commit(place, settled))
        except CommitConflictError:
            done = table.versions.read()
            continue
        if is_expected:
            continue
        why = f"{place.address}: another writer has rotated the master key"
        # A branch may begin at the snapshot; all that follows it has a higher number.
        newest = max(old.sequence_number for old in new)
        follow = [old for old in settled.snapshots if old.sequence_number > newest]
        if follow or find_foreign(done.metadata, settled, place):
            raise IntegrityError(
                f"{why}, and changed the table while the commit was undone: repeat the change; its "
                "first files stay, and are orphans if nothing needs them"
            )
        raise CommitConflictError(why)
    keys = done.metadata.keys
    is_single = any(old.key_id in keys and keys[old.key_id].is_single for old in new)
    raise IntegrityError(
        f"{done.place.address}: snapshot {', '.join(map(str, sorted(ids)))} was committed, and its "
        "key is not under the table's master key, which another writer has rotated at the same "
        f"time: do not repeat the change, but rotate {'kek' if is_single else 'mek'} with both "
        "master keys in master_key_ids"
    )


def _named(metadata: TableMetadata, ids: Collection[int]) -> dict[str, int]:
    """Return the branches and tags that name one of these snapshots."""
    refs = {name: ref["snapshot-id"] for name, ref in metadata.refs.items()}
    return {name: id_ for name, id_ in refs.items() if id_ in ids}


def _with_moved_keks(metadata: TableMetadata, table: TableVersion) -> TableMetadata:
    """Return a version all of whose KEKs are under its master key."""
    masters, target = table.resolver.masters, metadata.master_key_id or ""
    keys = dict(metadata.keys)
    for id_ in metadata.kek_ids():
        kek = table.resolver.find(id_, metadata)
        if kek.wrapped is not None and kek.master_key_id != target:
            wrapped = masters.move(kek.wrapped, kek.master_key_id, target, kek.id)
            keys[id_] = replace(kek, master_key_id=target, wrapped=wrapped).entry()
    return metadata.with_keys(keys.values())


def _list_former_keks(metadata: TableMetadata) -> list[str]:
    """Return the ids of KEKs that are under another master key than the table's."""
    keys, master = metadata.keys, metadata.master_key_id
    return [id_ for id_ in metadata.kek_ids() if keys[id_].encrypted_by != master]


def _has_its_key(metadata: TableMetadata, snapshot: Snapshot) -> bool:
    """Return whether the KEK of a snapshot is under the table's master key, or in a key store."""
    if (entry := metadata.keys.get(snapshot.key_id or "")) is None:
        return True
    kek = metadata.keys.get(entry.encrypted_by)
    master = entry.encrypted_by if entry.is_single else kek and kek.encrypted_by
    return master in (None, metadata.master_key_id)


def _without(metadata: TableMetadata, ids: Collection[int], base: TableMetadata) -> TableMetadata:
    """Return a version without new snapshots and the KEKs that came with them.

    The commit has carried all KEKs of `base`: unused ones under another master key are dropped.
    """
    entries = {snapshot.key_id for snapshot in metadata.snapshots if snapshot.id in ids}
    keys = {id_: key for id_, key in metadata.keys.items() if id_ not in entries}
    sealing = {key.encrypted_by for key in keys.values()}
    former = set(_list_former_keks(metadata))
    moved = _named(metadata, ids)
    refs = {name: ref for name, ref in metadata.refs.items() if name not in moved}
    refs |= {name: base.refs[name] for name in moved if name in base.refs}
    before = base if MAIN in moved else metadata
    return metadata.with_keys(
        (key for id_, key in keys.items() if id_ not in former - sealing),
        snapshots=[old.document for old in metadata.snapshots if old.id not in ids],
        refs=refs,
        current_snapshot_id=before.document.get("current-snapshot-id"),
    )

"""Restore keys that snapshots of a table need and its metadata has lost (apache/iceberg#17989).

Iceberg's Java 1.11 commits snapshots without their keys when commits collide, and engines that had
the table open bring back an older state of its keys. Older metadata.json files may still have the
keys. A key from there counts only if it decrypts the snapshot's manifest list: nothing signs the
file, but a KEK of the table's master key authenticates the key. A KEK under another master key
proves nothing, unless the caller expects that master key: anyone could have wrapped it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyMaterialError,
    KeyNotFoundError,
    ModcryptError,
    list_names,
)
from modcrypt.iceberg.format.table_metadata import STATISTICS, EncryptedKey, Snapshot, TableMetadata
from modcrypt.iceberg.format.table_versions import read_metadata
from modcrypt.iceberg.keys.wrapping_keys import IcebergKey
from modcrypt.iceberg.read.table_version import metadata_files
from modcrypt.iceberg.rotate.manifests.wrapped_in_manifests import lost_keys
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.iceberg.write.commit import commit, latest
from modcrypt.iceberg.write.snapshot_writing import MAIN, ancestors, names_any
from modcrypt.report.json_fields import JsonFields


@dataclass(frozen=True, kw_only=True)
class Repaired(JsonFields):
    """The result of `repair_table`: what was restored or dropped, or in a dry run would be.

    Attributes:
        table: The table at its new version; unchanged in a dry run or without changes.
        dry_run: Whether it was a dry run, which changes nothing.
        restored: Ids of keys that were found in older metadata.json files.
        lost: Ids of the snapshots whose keys were not found: nobody can read them.
        dropped: Whether the lost snapshots were dropped.
        newest_intact: Id of the newest snapshot with all keys, to which a table goes back whose
            current snapshot is lost: one that has been current, if one is left; None without one.
    """

    table: IcebergTable = field(repr=False)
    dry_run: bool = False
    restored: tuple[str, ...] = ()
    lost: tuple[int, ...] = ()
    dropped: bool = False
    newest_intact: int | None = None

    _without = ("table",)


def repair_table(
    table: IcebergTable, *, drop_lost: bool = False, dry_run: bool = False
) -> Repaired:
    """Restore keys that are lost, or open nothing, from older metadata.json files of the table.

    Args:
        table: Any version of the table; the current version is repaired.
        drop_lost: Whether to drop snapshots whose keys cannot be found. If the current snapshot is
            one of them, the table goes back to the newest intact one: rows that came later are
            lost.
        dry_run: Whether to change nothing and only return what would be done.

    Raises:
        KeyNotFoundError: `drop_lost` is set, and no snapshot is intact.
        KeyMaterialError: An older metadata.json has a lost KEK under another master key, and the
            table was opened without `master_key_ids`.
        CommitConflictError: Another writer committed first at every attempt.
        ModcryptError, OSError: The table cannot be read, or the commit failed.
    """
    before = latest(table)
    result, new = _plan(before, drop_lost)
    if dry_run or new is None:
        return replace(result, table=table, dry_run=dry_run)

    def next_version(current: IcebergTable) -> TableMetadata:
        nonlocal result
        result, changed = _plan(current, drop_lost)
        return changed or current.metadata

    repaired = commit(before, next_version)  # it sets `result` at each attempt
    return replace(result, table=repaired)


def _plan(table: IcebergTable, drop_lost: bool) -> tuple[Repaired, TableMetadata | None]:
    """Return the possible repairs, and the metadata with them; None if nothing changes."""
    metadata = table.metadata
    wrong, refused = _find_wrong_keks(table)
    if not (missing := {*lost_keys(table), *wrong, *refused}):
        return Repaired(table=table), None
    table = _without(table, missing)
    restored = _find_lost(table)
    new = metadata
    if restored:
        # A KEK that opens nothing stays if no other was found: nothing else is known of it.
        new = metadata.with_keys({**metadata.keys, **{k.id: k for k in restored}}.values())
    found = {entry.id for entry in restored}
    lost = _lost_snapshots(_without(table.with_metadata(new), missing - found))
    newest = _newest(metadata, [each for each in metadata.snapshots if each not in lost])
    result = Repaired(
        table=table,
        restored=tuple(entry.id for entry in restored),
        lost=tuple(snapshot.id for snapshot in lost),
        dropped=drop_lost and bool(lost),
        newest_intact=None if newest is None else newest.id,
    )
    if result.dropped:
        if refused - found:
            raise KeyAccessDeniedError(
                f"{metadata.name}: the key service refuses keys of the table that others may be "
                f"granted ({list_names(sorted(refused - found))}); nothing was dropped"
            )
        if newest is None:
            raise KeyNotFoundError(f"{metadata.name}: no snapshot of the table has all its keys")
        new = _drop(new, {snapshot.id for snapshot in lost}, newest)
    return result, None if new is metadata else new


def _newest(metadata: TableMetadata, intact: Sequence[Snapshot]) -> Snapshot | None:
    """Return the newest intact snapshot, only as a last resort with the rows of another branch."""
    known, current = {old.id: old for old in metadata.snapshots}, metadata.current
    # The snapshots that are or have been current: the branch main's.
    former = set() if current is None else {old.id for old in ancestors(current.id, known)}
    on_main = [snapshot for snapshot in intact if snapshot.id in former]
    return max(on_main or intact, key=lambda snapshot: snapshot.sequence_number, default=None)


def _lost_snapshots(table: IcebergTable) -> list[Snapshot]:
    """Return the snapshots whose own key, or the KEK of it, is missing."""
    ids, keys = set(lost_keys(table)), table.metadata.keys
    return [
        snapshot
        for snapshot in table.metadata.snapshots
        if snapshot.key_id in ids
        or (snapshot.key_id in keys and keys[snapshot.key_id].encrypted_by in ids)
    ]


def _find_wrong_keks(table: IcebergTable) -> tuple[set[str], set[str]]:
    """Return the ids of KEKs that do not open, and of those that this caller is refused."""
    # The key service may have wrapped another key, so each KEK has to decrypt an entry.
    metadata, resolver = table.metadata, table.resolver
    wrong, refused, seen = set[str](), set[str](), set[str]()
    for entry in metadata.keys.values():
        id_ = entry.encrypted_by
        if entry.is_single or id_ not in metadata.keys or id_ in seen:
            continue
        seen.add(id_)
        into = refused  # also if it is under an unexpected master key
        try:
            kek = resolver.find(id_, metadata)
            into = wrong
            resolver.open_key(kek).decrypt(entry.encrypted)
        except KeyMaterialError:
            into.add(id_)
        except (KeyAccessDeniedError, KeyNotFoundError):
            refused.add(id_)
    return wrong, refused


def _without(table: IcebergTable, ids: Collection[str]) -> IcebergTable:
    """Return the table as if it did not have some keys."""
    metadata = table.metadata
    keys = [entry for id_, entry in metadata.keys.items() if id_ not in ids]
    return (
        table if len(keys) == len(metadata.keys) else table.with_metadata(metadata.with_keys(keys))
    )


class _DoubtfulKeyError(KeyMaterialError):
    """A KEK in an older version is under a master key that only an unsigned file names."""


def _find_lost(table: IcebergTable) -> list[EncryptedKey]:
    """Return entries from older versions that decrypt manifest lists of snapshots without keys.

    Raise KeyMaterialError if only a KEK under a master key that may be unexpected is found.
    """
    found: dict[str, EncryptedKey] = {}
    doubtful: _DoubtfulKeyError | None = None
    now = table
    for older in _older_versions(table):
        for snapshot in _lost_snapshots(now):
            # Second, without the table's entry, which may be under a KEK that opens nothing.
            for trial in (now, _without(now, {snapshot.key_id or ""})):
                try:
                    found |= _entries_for(trial, snapshot, older)
                    break
                except _DoubtfulKeyError as error:
                    doubtful = error
                except (ModcryptError, OSError):
                    continue
        keys = {**table.metadata.keys, **found}
        now = table.with_metadata(table.metadata.with_keys(keys.values()))
        if not _lost_snapshots(now):
            return list(found.values())
    if doubtful is not None:
        raise doubtful
    return list(found.values())


def _older_versions(table: IcebergTable) -> Iterator[TableMetadata]:
    """Yield the other versions of the table in its folder, the newest first."""
    for name in reversed(metadata_files(table)):
        place = table.place.beside(name)
        with contextlib.suppress(ModcryptError, OSError):
            older = read_metadata(place) if place != table.place else table.metadata
            if older.uuid == table.metadata.uuid and older is not table.metadata:
                yield older


def _entries_for(
    table: IcebergTable, snapshot: Snapshot, older: TableMetadata
) -> dict[str, EncryptedKey]:
    """Return the missing entries of a snapshot, which decrypt its manifest list.

    Raise ModcryptError or OSError if the older version does not have them, or they are wrong.
    """
    metadata = table.metadata
    entry = metadata.keys.get(snapshot.key_id or "") or older.keys.get(snapshot.key_id or "")
    if entry is None:
        raise KeyNotFoundError(f"{older.name}: the key of snapshot {snapshot.id} is not here")
    missing = {entry.id: entry} if entry.id not in metadata.keys else {}
    if not entry.is_single and entry.encrypted_by not in table.resolver.keks(metadata):
        if (kek := older.keys.get(entry.encrypted_by)) is None:
            raise KeyNotFoundError(f"{older.name}: the KEK of key {entry.id} is not here")
        missing[kek.id] = _wrap_for(table, IcebergKey.of(kek))
    restored = metadata.with_keys([*metadata.keys.values(), *missing.values()])
    table.with_metadata(restored).walk.manifests(snapshot)
    return missing


def _wrap_for(table: IcebergTable, kek: IcebergKey) -> EncryptedKey:
    """Return a KEK under the table's master key, which may have changed since.

    Raise KeyMaterialError if the KEK is under a master key that the caller does not expect.
    """
    target, masters = table.metadata.master_key_id or "", table.resolver.masters
    if kek.master_key_id != target:
        _check_expected(table, kek)
        assert kek.wrapped is not None  # it is a KEK
        key = masters.unwrap(kek.wrapped, kek.master_key_id, kek.id)
        kek = replace(kek, master_key_id=target, wrapped=masters.wrap(key, target, kek.id))
    return kek.entry()


def _check_expected(table: IcebergTable, kek: IcebergKey) -> None:
    expected, name = table.resolver.master_key_ids, kek.master_key_id
    if expected is None:
        raise _DoubtfulKeyError(
            f"{table.metadata.name}: an older metadata.json has a lost KEK under the master key "
            f"{name!r}: if the table was under it, open the table with master_key_ids="
            f"[{table.metadata.master_key_id!r}, {name!r}]; otherwise with the first alone"
        )
    if name not in expected:
        raise KeyMaterialError(f"the lost KEK {kek.id!r} is under the unexpected {name!r}")


def _drop(metadata: TableMetadata, lost: set[int], newest: Snapshot) -> TableMetadata:
    """Return the metadata without lost snapshots; branches and tags that name them go, too."""
    document = metadata.document
    members: dict[str, Any] = {
        "snapshots": [old.document for old in metadata.snapshots if old.id not in lost],
        "refs": {name: ref for name, ref in metadata.refs.items() if not names_any(ref, lost)},
    }
    for name in STATISTICS:
        if document.get(name):
            stay = [entry for entry in document[name] if not names_any(entry, lost)]
            members[name.replace("-", "_")] = stay
    log = [entry for entry in document.get("snapshot-log") or () if not names_any(entry, lost)]
    if document.get("current-snapshot-id") in lost:
        main = {**metadata.refs.get(MAIN, {}), "snapshot-id": newest.id, "type": "branch"}
        members["refs"] = {**members["refs"], MAIN: main}
        members["current_snapshot_id"] = newest.id
        now = max(int(time.time() * 1000), int(document.get("last-updated-ms") or 0))
        log.append({"timestamp-ms": now, "snapshot-id": newest.id})
    return metadata.with_members(**members, snapshot_log=log)

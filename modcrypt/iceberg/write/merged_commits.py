"""Settle a snapshot whose key no reader of the table would accept.

A REST catalog compares branches, but no master key. So it accepts a snapshot that was written
before another writer rotated the table to another master key, and readers refuse its KEK.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from modcrypt.errors import CommitConflictError, IntegrityError
from modcrypt.iceberg.format.table_metadata import Snapshot, TableMetadata
from modcrypt.iceberg.format.table_versions import CurrentVersion
from modcrypt.iceberg.read.table_version import TableVersion
from modcrypt.iceberg.write.snapshot_writing import MAIN

ATTEMPTS = 5
"""Attempts to settle a snapshot while others change the table."""


def check_merged(table: TableVersion, sent: TableMetadata, done: CurrentVersion) -> CurrentVersion:
    """Return a committed version; settle a new snapshot that is under another master key.

    Its KEK moves to the table's master key if the caller expects that. Otherwise the snapshot is
    undone. `table` is the version that the commit followed, and `sent` what was committed.

    Raises:
        CommitConflictError: The snapshot was undone.
        IntegrityError: It could not be undone, because others have changed the table since.
    """
    known = {snapshot.id for snapshot in table.metadata.snapshots}
    new = [snapshot for snapshot in sent.snapshots if snapshot.id not in known]
    ids = {snapshot.id for snapshot in new}
    for _ in range(ATTEMPTS):
        there = [snapshot for snapshot in new if snapshot in done.metadata.snapshots]
        if all(_has_its_key(done.metadata, snapshot) for snapshot in there):
            return done
        is_expected = done.metadata.master_key_id in (table.expected.master_key_ids or ())
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
        if not is_expected:
            raise CommitConflictError(f"{place.path}: another writer has rotated the master key")
    raise IntegrityError(
        f"{done.place.path}: snapshot {', '.join(map(str, sorted(ids)))} was committed, and its "
        "KEK is not under the table's master key, which another writer has rotated at the same "
        "time: do not repeat the change, but rotate mek with both master keys in master_key_ids"
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


def _has_its_key(metadata: TableMetadata, snapshot: Snapshot) -> bool:
    """Return whether the KEK of a snapshot is under the table's master key, or in a key store."""
    entry = metadata.keys.get(snapshot.key_id or "")
    if entry is None:
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
    former = {id_ for id_ in metadata.kek_ids() if keys[id_].encrypted_by != metadata.master_key_id}
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

"""Settle a snapshot whose key no reader of the table would accept.

A REST catalog compares branches, but no master key. So it accepts a snapshot that was written
before another writer rotated the table to another master key, and readers refuse its KEK.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    before = {snapshot.id for snapshot in table.metadata.snapshots}
    new = next((snapshot for snapshot in sent.snapshots if snapshot.id not in before), None)
    if new is None:
        return done
    branches = [name for name, ref in sent.refs.items() if ref.get("snapshot-id") == new.id]
    for _ in range(ATTEMPTS):
        if new not in done.metadata.snapshots or _has_its_key(done.metadata, new):
            return done
        is_expected = done.metadata.master_key_id in (table.expected.master_key_ids or ())
        if is_expected:
            settled = _with_moved_keks(done.metadata, table)
        elif branches and all(_names(done.metadata, name, new) for name in branches):
            settled = _without(done.metadata, new, table.metadata, branches)
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
        f"{done.place.path}: snapshot {new.id} was committed, and its KEK is not under the table's "
        "master key, which another writer has rotated at the same time: do not repeat the change, "
        "but rotate mek with both master keys in master_key_ids"
    )


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


def _names(metadata: TableMetadata, branch: str, snapshot: Snapshot) -> bool:
    return metadata.refs.get(branch, {}).get("snapshot-id") == snapshot.id


def _without(
    metadata: TableMetadata, new: Snapshot, base: TableMetadata, branches: Sequence[str]
) -> TableMetadata:
    """Return a version without a new snapshot of some branches and the KEKs that came with it.

    The commit has carried all KEKs of `base`: unused ones under another master key are dropped.
    """
    keys = {id_: key for id_, key in metadata.keys.items() if id_ != new.key_id}
    sealing = {key.encrypted_by for key in keys.values()}
    former = {id_ for id_ in metadata.kek_ids() if keys[id_].encrypted_by != metadata.master_key_id}
    refs = {name: ref for name, ref in metadata.refs.items() if name not in branches}
    refs |= {name: base.refs[name] for name in branches if name in base.refs}
    current = {}
    if MAIN in branches:
        current = {"current_snapshot_id": base.document.get("current-snapshot-id")}
    return metadata.with_keys(
        (key for id_, key in keys.items() if id_ not in former - sealing),
        snapshots=[old.document for old in metadata.snapshots if old.id != new.id],
        refs=refs,
        **current,
    )

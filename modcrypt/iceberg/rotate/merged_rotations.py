"""Check a rotation in a REST catalog once it is committed, and finish it if others came between.

The protocol compares branches, but no keys and no master key. So the server accepts two rotations
of one version, which leave KEKs under two master keys, and an append that brings back a KEK which a
rotation has just replaced. Readers refuse a KEK under another master key than the table's.
"""

from __future__ import annotations

from modcrypt.errors import IntegrityError
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.keys.key_resolver import KeyResolver
from modcrypt.iceberg.rotate.dek_rotation import DekRotation
from modcrypt.iceberg.rotate.kek_rotation import KekRotation
from modcrypt.iceberg.rotate.mek_rotation import MekRotation
from modcrypt.iceberg.rotate.rotation_report import with_resolver
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.iceberg.write.commit import ATTEMPTS, commit


def settle_keys(
    table: IcebergTable, rotation: DekRotation | KekRotation | MekRotation, target: str, former: str
) -> IcebergTable:
    """Bring the keys of a table under one master key, and drop KEKs that a rotation has replaced.

    Nothing signs the id of the master key that another writer has put there. So the table goes to
    `target`, the master key of the rotation, unless the caller expects the other one.

    Args:
        table: The version that the rotation has committed.
        rotation: The rotation.
        target, former: Ids of the master keys of the rotation, and of the table before.

    Raises:
        IntegrityError: Another rotation was undone, because its master key is not expected.
        ModcryptError, OSError: The table cannot be read or changed; the rotation was committed.
    """
    committed, undone = table, None
    expected = table.expected.master_key_ids or ()
    table = with_resolver(table, _accept(table.resolver, {target, former}))
    for _ in range(ATTEMPTS):
        current = table.versions.read(table.metadata)
        if current.metadata.uuid != table.metadata.uuid:
            break  # it was dropped, and another table has its name now
        table = table.with_metadata(current.metadata, current.place)
        found = current.metadata.master_key_id
        goal = found if found is not None and found in expected else target
        if _is_settled(table.metadata, goal, rotation):
            break
        undone = found if found != goal else undone
        table = commit(table, _finishing(rotation, table.resolver, goal).next_version)
    if undone is not None:
        raise IntegrityError(
            f"{table.metadata.name}: another rotation moved the table to the master key {undone!r} "
            f"at the same time. It is under {target!r} now: if the other one is right, rotate "
            "to it again"
        )
    return table if table.metadata.master_key_id == committed.metadata.master_key_id else committed


def _accept(resolver: KeyResolver, master_key_ids: set[str]) -> KeyResolver:
    """Return a resolver that accepts these master keys, unless the caller expects certain ones."""
    accepted = resolver.master_key_ids
    return KeyResolver(
        resolver.masters.client, resolver.store, audit=resolver.masters.audit,
        master_key_ids=master_key_ids if accepted is None else accepted,
    )  # fmt: skip


def _is_settled(
    metadata: TableMetadata, goal: str, rotation: DekRotation | KekRotation | MekRotation
) -> bool:
    """Return whether nothing is left to do, or others have moved all keys since."""
    keks = set(metadata.kek_ids())
    masters = {
        key.encrypted_by for id_, key in metadata.keys.items() if id_ in keks or key.is_single
    }
    if not masters <= {metadata.master_key_id}:
        return False
    replaced = rotation.replaced if isinstance(rotation, KekRotation) else set[str]()
    return metadata.master_key_id != goal or keks.isdisjoint(replaced)


def _finishing(
    rotation: DekRotation | KekRotation | MekRotation, resolver: KeyResolver, goal: str
) -> KekRotation | MekRotation:
    if isinstance(rotation, KekRotation):
        rotation.resolver, rotation.new_id = resolver, goal
        return rotation
    return MekRotation(resolver, goal)

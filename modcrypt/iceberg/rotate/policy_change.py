"""Another `KeyPolicy` for a table that is there: one commit, which changes properties alone."""

from __future__ import annotations

from modcrypt.errors import CommitConflictError, PlaintextError
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.keys.key_policies import KEKS_SINCE, SINGLES, KeyPolicy, later_than
from modcrypt.iceberg.rotate.rotation_report import latest
from modcrypt.iceberg.tables.table import IcebergTable
from modcrypt.iceberg.write.commit import commit

__all__ = ["set_policy"]


def set_policy(table: IcebergTable, policy: KeyPolicy) -> IcebergTable:
    """Change how the keys of a table's new files are kept; the key service is not asked.

    Files that are there, and their keys, stay as they are, and readable, until they are rotated:
    `rotate_table(table, "dek")` brings those of the current snapshot under the policy, and
    `expire_history` drops the others.

    Args:
        table: the version that the caller has seen; another policy than that one's isn't replaced.
        policy: that the table is to have.

    Returns:
        The table at its new version; the current one if it has this policy already.

    Raises:
        PlaintextError: the table is not encrypted.
        ValueError: KEKs are to be in a key store, and the table was opened without one.
        CommitConflictError: somebody else has changed the policy, or was faster again and again.
        ModcryptError, OSError: the table can't be read or written; it is as it was.
    """
    seen = KeyPolicy.of(table.metadata)
    if not table.metadata.master_key_id:
        raise PlaintextError(
            f"{table.metadata.name}: the table is not encrypted: encrypt_table makes one of it "
            "that is"
        )
    if policy.store == "key-store" != seen.store and table.walk.resolver.store is None:
        raise ValueError("KEKs are to be kept in a key store: open the table with key_store")
    if KeyPolicy.of((current := latest(table)).metadata) == policy:
        return current

    def next_version(base: IcebergTable) -> TableMetadata:
        metadata = base.metadata
        if KeyPolicy.of(metadata) != seen:
            raise CommitConflictError(
                f"{metadata.name}: somebody else has changed the table's policy: look at it, and "
                "try again"
            )
        told = {**policy.properties(), **_told_of_before(base, seen, policy)}
        return metadata.edited(properties={**metadata.properties, **told})

    return commit(current, next_version)


def _told_of_before(base: IcebergTable, seen: KeyPolicy, policy: KeyPolicy) -> dict[str, str]:
    """Give the properties that tell what keys under the policy of before are left behind."""
    told = {SINGLES: "true"} if seen.wraps_files_singly else {}
    if policy.store != seen.store:
        found, own = base.walk.resolver.keks(base.metadata), base.metadata.keys
        stored = [one for id_, one in found.items() if id_ not in own]
        if stored or seen.store == "key-store":
            told[KEKS_SINCE] = str(later_than(stored))
    return told

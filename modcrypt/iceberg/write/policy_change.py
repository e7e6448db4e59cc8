"""Change the `KeyPolicy` of an existing table with a commit that changes only properties."""

from __future__ import annotations

from modcrypt.errors import CommitConflictError
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.keys.key_policies import (
    KEKS_SINCE,
    SINGLES,
    KeyPolicy,
    next_kek_time,
    require_encrypted,
)
from modcrypt.iceberg.read.table_version import TableVersion
from modcrypt.iceberg.write.commit import Table, commit, latest


def set_policy(table: Table, policy: KeyPolicy) -> Table:
    """Change how the keys of a table's new files are protected; the key service is not called.

    Existing files and their keys are unchanged and readable until they are rotated:
    `rotate_table(table, "dek")` applies the policy to the files of the current snapshot, and
    `expire_history` drops the others.

    Args:
        table: The version that the caller has seen; only its policy is replaced.
        policy: The new policy.

    Returns:
        The table at its new version; the current version if it already has this policy.

    Raises:
        PlaintextError: The table is not encrypted.
        ValueError: The policy stores KEKs in a key store, but the table was opened without one.
        CommitConflictError: Another writer has changed the policy, or committed first at every
            attempt.
        ModcryptError, OSError: The table cannot be read or written; it is unchanged.
    """
    seen = KeyPolicy.of(table.metadata)
    require_encrypted(table.metadata)
    if policy.store == "key-store" != seen.store and table.resolver.store is None:
        raise ValueError("the policy needs a key store; open the table with key_store")
    if KeyPolicy.of((current := latest(table)).metadata) == policy:
        return current

    def next_version(base: TableVersion) -> TableMetadata:
        metadata = base.metadata
        if KeyPolicy.of(metadata) != seen:
            raise CommitConflictError(
                f"{metadata.name}: another writer has changed the table's policy; check the policy "
                "and try again"
            )
        changes = {**policy.properties(), **_legacy_properties(base, seen, policy)}
        return metadata.with_members(properties={**metadata.properties, **changes})

    return commit(current, next_version)


def _legacy_properties(base: TableVersion, seen: KeyPolicy, policy: KeyPolicy) -> dict[str, str]:
    """Return the properties that record which keys of the previous policy remain."""
    properties = {SINGLES: "true"} if seen.wraps_files_singly else {}
    if policy.store != seen.store:
        keks, own = base.resolver.keks(base.metadata), base.metadata.keys
        stored = [kek for id_, kek in keks.items() if id_ not in own]
        if stored or seen.store == "key-store":
            properties[KEKS_SINCE] = str(next_kek_time(stored))
    return properties

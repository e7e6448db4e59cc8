"""The updates of Iceberg's REST API that turn one version of a table's metadata into another.

The server applies them to its current version, which may be newer than the one that they were made
for (REST catalog spec, "CommitTableRequest"). Its requirements see a changed branch, schema or
spec, but no changed key: a rotation can drop a KEK before an append arrives whose files are under
it, or an expiry before a rotation that encrypts an entry under it. Therefore updates that add a
snapshot add all KEKs of its version again, and those that add an entry its KEK; where the server
still has a KEK, it ignores that.
Nor do requirements see a new branch: updates that drop a KEK may come after a snapshot under it.
Therefore they are followed by others that `restore_keks` returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from modcrypt.errors import UnsupportedFormatError
from modcrypt.iceberg.format.table_metadata import POLICY, TableMetadata

Update: TypeAlias = dict[str, Any]

_OF_SERVER = {
    "last-updated-ms", "last-sequence-number", "next-row-id", "snapshot-log", "metadata-log",
    "current-snapshot-id", "last-column-id", "last-partition-id",
}  # fmt: skip
"""Members that the server maintains."""

_OF_UPDATES = {
    "properties", "encryption-keys", "snapshots", "refs", "statistics", "partition-statistics",
}  # fmt: skip
"""Members that `find_updates` compares."""

_ASSERTED = {
    "current-schema-id": "assert-current-schema-id",
    "default-spec-id": "assert-default-spec-id",
    "default-sort-order-id": "assert-default-sort-order-id",
}
"""Requirements that a number in the metadata is unchanged."""


def find_updates(old: TableMetadata, new: TableMetadata) -> list[Update]:
    """Return the updates that turn a version into another.

    Raise UnsupportedFormatError if the API has no update for a difference.
    """
    _check_others(old.document, new.document)
    return [
        *_update_properties(old, new),
        *_update_keys(old, new),
        *_update_snapshots(old, new),
        *_update_refs(old, new),
        *_update_statistics(old.document, new.document, "statistics"),
        *_update_statistics(old.document, new.document, "partition-statistics"),
    ]


def list_requirements(old: TableMetadata, updates: Sequence[Update] = ()) -> list[Update]:
    """Return the requirements that the server's version has the parts which a change relies on.

    A branch that the updates create must not exist.
    """
    created = {update["ref-name"]: _NO_REF for update in updates if "ref-name" in update}
    known: Mapping[str, Any] = {"main": _NO_REF, **created, **old.refs}
    refs = {name: ref["snapshot-id"] for name, ref in known.items()}
    return [
        {"type": "assert-table-uuid", "uuid": old.uuid},
        *(
            {"type": "assert-ref-snapshot-id", "ref": name, "snapshot-id": snapshot}
            for name, snapshot in refs.items()
        ),
        *(
            {"type": kind, member: old.document[member]}
            for member, kind in _ASSERTED.items()
            if type(old.document.get(member)) is int
        ),
    ]


_NO_REF: Mapping[str, Any] = {"snapshot-id": None}  # requires that the branch does not exist


def is_applied(updates: Sequence[Update], metadata: TableMetadata) -> bool:
    """Return whether a version contains what updates change; it may have others' changes, too.

    A key that is only carried may be wrapped otherwise by now. For keys and properties that are
    only removed see `keeps_removed`: others may have added them again.
    """
    snapshots = {snapshot.id for snapshot in metadata.snapshots}
    replaced = {update.get("key-id") for update in updates}
    for update in updates:
        if (action := update["action"]) == "add-encryption-key":
            wanted = update["encryption-key"]
            key = metadata.keys.get(wanted["key-id"])
            if key is None or (wanted["key-id"] in replaced and key.document() != wanted):
                return False
        elif action == "add-snapshot" and update["snapshot"]["snapshot-id"] not in snapshots:
            return False
        elif action == "set-properties":
            if not update["updates"].items() <= metadata.properties.items():
                return False
        elif action == "remove-snapshots" and snapshots.intersection(update["snapshot-ids"]):
            return False
    return True


def keeps_removed(updates: Sequence[Update], metadata: TableMetadata) -> bool:
    """Return whether a version has what updates remove and do not add again.

    That is a key, a property, or a branch or tag.
    """
    added = {update.get("encryption-key", {}).get("key-id") for update in updates}
    left = metadata.keys.keys() - added
    return any(
        not metadata.properties.keys().isdisjoint(update.get("removals", ()))
        or (update["action"] == "remove-encryption-key" and update["key-id"] in left)
        or (update["action"] == "remove-snapshot-ref" and update["ref-name"] in metadata.refs)
        for update in updates
    )


def restore_keks(old: TableMetadata, new: TableMetadata, after: TableMetadata) -> list[Update]:
    """Return updates that add dropped KEKs again which snapshots of others need.

    Manifests do not tell which KEKs they need; so each new snapshot may need all of them.

    Args:
        old, new: The version for which the updates from `old` to `new` were made, and that one.
        after: The version that has them, and perhaps the updates of others.
    """
    known = {snapshot.id for snapshot in new.snapshots}
    needed = {entry.encrypted_by for entry in after.keys.values()}
    if not known.issuperset(snapshot.id for snapshot in after.snapshots):
        needed |= set(old.kek_ids())
    lost = [key for id_, key in old.keys.items() if id_ in needed - after.keys.keys()]
    return [{"action": "add-encryption-key", "encryption-key": key.document()} for key in lost]


def _check_others(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    changed = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
    if others := sorted(changed - _OF_SERVER - _OF_UPDATES):
        raise UnsupportedFormatError(
            f"a REST catalog does not accept changes of {', '.join(others)} from modcrypt"
        )


def _update_properties(old: TableMetadata, new: TableMetadata) -> Iterator[Update]:
    before, after = old.properties, new.properties
    changed = {name: text for name, text in after.items() if before.get(name) != text}
    if any(name.startswith(POLICY) for name in changed):  # halves of two policies do not fit
        changed |= {name: text for name, text in after.items() if name.startswith(POLICY)}
    if changed:
        yield {"action": "set-properties", "updates": changed}
    if removed := sorted(before.keys() - after.keys()):
        yield {"action": "remove-properties", "removals": removed}


def _update_keys(old: TableMetadata, new: TableMetadata) -> Iterator[Update]:
    """Remove changed keys before they are added: the server ignores a known id."""
    for id_, key in old.keys.items():
        if new.keys.get(id_) != key:
            yield {"action": "remove-encryption-key", "key-id": id_}
    carried = set(new.kek_ids()) if _added(old, new) else set[str]()
    carried |= {key.encrypted_by for id_, key in new.keys.items() if old.keys.get(id_) != key}
    for id_, key in new.keys.items():
        if id_ in carried or old.keys.get(id_) != key:
            yield {"action": "add-encryption-key", "encryption-key": key.document()}


def _added(old: TableMetadata, new: TableMetadata) -> list[Mapping[str, Any]]:
    before = {snapshot.id for snapshot in old.snapshots}
    return [snapshot.document for snapshot in new.snapshots if snapshot.id not in before]


def _update_snapshots(old: TableMetadata, new: TableMetadata) -> Iterator[Update]:
    after = {snapshot.id: snapshot.document for snapshot in new.snapshots}
    for snapshot in old.snapshots:
        if after.get(snapshot.id, snapshot.document) != snapshot.document:
            raise UnsupportedFormatError(
                f"a REST catalog cannot change snapshot {snapshot.id}: add another one, and "
                "expire it"
            )
    for document in _added(old, new):
        yield {"action": "add-snapshot", "snapshot": document}
    if removed := [snapshot.id for snapshot in old.snapshots if snapshot.id not in after]:
        yield {"action": "remove-snapshots", "snapshot-ids": removed}


def _update_refs(old: TableMetadata, new: TableMetadata) -> Iterator[Update]:
    for name, ref in new.refs.items():
        if old.refs.get(name) != ref:
            yield {"action": "set-snapshot-ref", "ref-name": name, **ref}
    for name in old.refs.keys() - new.refs.keys():
        yield {"action": "remove-snapshot-ref", "ref-name": name}


def _update_statistics(
    old: Mapping[str, Any], new: Mapping[str, Any], member: str
) -> Iterator[Update]:
    before, after = (
        {entry["snapshot-id"]: entry for entry in document.get(member) or ()}
        for document in (old, new)
    )
    for snapshot, entry in after.items():
        if before.get(snapshot) != entry:
            yield {"action": f"set-{member}", "snapshot-id": snapshot, member: entry}
    for snapshot in before.keys() - after.keys():
        yield {"action": f"remove-{member}", "snapshot-id": snapshot}

"""Updates of the REST API that turn one version of a table into another."""

from __future__ import annotations

import json
from typing import Any

import pytest

from modcrypt.errors import UnsupportedFormatError
from modcrypt.iceberg.format.metadata_updates import (
    find_updates,
    is_applied,
    keeps_removed,
    list_requirements,
    restore_keks,
)
from modcrypt.iceberg.format.table_metadata import TableMetadata


def key(id_: str, by: str, wrapped: str = "AAAA") -> dict[str, Any]:
    return {"key-id": id_, "encrypted-key-metadata": wrapped, "encrypted-by-id": by}


def snapshot(id_: int, key_id: str, **more: Any) -> dict[str, Any]:
    return {
        "snapshot-id": id_, "sequence-number": id_, "timestamp-ms": id_, "key-id": key_id,
        "manifest-list": f"s{id_}.avro", **more,
    }  # fmt: skip


KEK, ENTRY = key("k1", "keyA"), key("e1", "k1")


def metadata(**members: Any) -> TableMetadata:
    document = {
        "format-version": 3, "table-uuid": "u", "location": "l", "current-schema-id": 0,
        "last-sequence-number": 1, "properties": {"encryption.key-id": "keyA"},
        "encryption-keys": [KEK, ENTRY], "snapshots": [snapshot(1, "e1")],
        "refs": {"main": {"snapshot-id": 1, "type": "branch"}},
    }  # fmt: skip
    return TableMetadata(json.dumps(document).encode()).with_members(**members)


def test_nothing_changes_without_a_difference() -> None:
    assert find_updates(metadata(), metadata(last_updated_ms=7, metadata_log=[])) == []


def test_a_new_snapshot_brings_the_keks() -> None:
    new = metadata(
        encryption_keys=[KEK, ENTRY, key("e2", "k1")],
        snapshots=[snapshot(1, "e1"), snapshot(2, "e2")],
        refs={"main": {"snapshot-id": 2, "type": "branch"}},
    )
    assert find_updates(metadata(), new) == [
        {"action": "add-encryption-key", "encryption-key": KEK},
        {"action": "add-encryption-key", "encryption-key": key("e2", "k1")},
        {"action": "add-snapshot", "snapshot": snapshot(2, "e2")},
        {"action": "set-snapshot-ref", "ref-name": "main", "snapshot-id": 2, "type": "branch"},
    ]


def test_a_changed_key_is_removed_before_it_is_added() -> None:
    moved = key("k1", "keyB", "BBBB")
    new = metadata(encryption_keys=[moved, ENTRY], properties={"encryption.key-id": "keyB"})
    updates = find_updates(metadata(), new)
    assert updates == [
        {"action": "set-properties", "updates": {"encryption.key-id": "keyB"}},
        {"action": "remove-encryption-key", "key-id": "k1"},
        {"action": "add-encryption-key", "encryption-key": moved},
    ]
    assert is_applied(updates, new)
    assert not keeps_removed(updates, new)  # it is added again
    assert not is_applied(updates, metadata())
    assert not is_applied(updates, metadata(properties={"encryption.key-id": "keyB"}))


def test_a_changed_entry_brings_its_kek() -> None:
    old = metadata(encryption_keys=[key("k1", "keyA"), key("k2", "keyA"), key("e1", "k1")])
    new = metadata(encryption_keys=[key("k2", "keyA"), key("e1", "k2", "BBBB")])
    assert find_updates(old, new) == [
        {"action": "remove-encryption-key", "key-id": "k1"},
        {"action": "remove-encryption-key", "key-id": "e1"},
        {"action": "add-encryption-key", "encryption-key": key("k2", "keyA")},
        {"action": "add-encryption-key", "encryption-key": key("e1", "k2", "BBBB")},
    ]


def test_dropped_keks_that_others_need_are_added_again() -> None:
    """The manifests of a snapshot may need more KEKs than the entry of its list."""
    other = {**key("k2", "keyA"), "properties": {"KEY_TIMESTAMP": "1"}}
    old, new = metadata(encryption_keys=[KEK, ENTRY, other]), metadata(encryption_keys=[other])
    assert restore_keks(metadata(), metadata(), metadata()) == []
    assert restore_keks(old, new, new) == []
    needed = new.with_members(encryption_keys=[key("e2", "k1")])
    added = [snapshot(1, "e1"), snapshot(2, "e2")]
    for after, keks in ((needed, [KEK]), (needed.with_members(snapshots=added), [KEK, other])):
        updates = restore_keks(old, new, after)
        assert [update["encryption-key"] for update in updates] == keks


def test_a_carried_key_may_be_wrapped_otherwise_by_now() -> None:
    carried = [{"action": "add-encryption-key", "encryption-key": key("k1", "keyA", "CCCC")}]
    assert is_applied(carried, metadata())
    assert not is_applied(carried, metadata(encryption_keys=[]))


def test_snapshots_and_what_names_them_are_removed() -> None:
    statistics = [{"snapshot-id": 1, "statistics-path": "s"}]
    old = metadata(statistics=statistics, refs={"old": {"snapshot-id": 1}}, properties={"a": "b"})
    new = metadata(
        snapshots=[], refs={}, encryption_keys=[], statistics=[], properties={},
        partition_statistics=[{"snapshot-id": 1, "statistics-path": "p"}],
    )  # fmt: skip
    updates = find_updates(old, new)
    assert updates == [
        {"action": "remove-properties", "removals": ["a"]},
        {"action": "remove-encryption-key", "key-id": "k1"},
        {"action": "remove-encryption-key", "key-id": "e1"},
        {"action": "remove-snapshots", "snapshot-ids": [1]},
        {"action": "remove-snapshot-ref", "ref-name": "old"},
        {"action": "remove-statistics", "snapshot-id": 1},
        {
            "action": "set-partition-statistics",
            "snapshot-id": 1,
            "partition-statistics": {"snapshot-id": 1, "statistics-path": "p"},
        },
    ]
    assert not is_applied(updates, old)
    assert not keeps_removed(updates, new)
    left: list[dict[str, Any]] = [
        {"encryption_keys": [key("k1", "keyA", "AAAA")]}, {"properties": {"a": "c"}},
        {"refs": {"old": {"snapshot-id": 1}}},
    ]  # fmt: skip
    for kept in left:
        assert keeps_removed(updates, new.with_members(**kept))


def test_every_branch_and_the_schema_are_required() -> None:
    assert list_requirements(metadata(refs={"b": {"snapshot-id": 1}})) == [
        {"type": "assert-table-uuid", "uuid": "u"},
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None},
        {"type": "assert-ref-snapshot-id", "ref": "b", "snapshot-id": 1},
        {"type": "assert-current-schema-id", "current-schema-id": 0},
    ]
    begun = [{"action": "set-snapshot-ref", "ref-name": name} for name in ("b", "new")]
    assert list_requirements(metadata(refs={"b": {"snapshot-id": 1}}), begun)[2:4] == [
        {"type": "assert-ref-snapshot-id", "ref": "b", "snapshot-id": 1},
        {"type": "assert-ref-snapshot-id", "ref": "new", "snapshot-id": None},
    ]


@pytest.mark.parametrize(
    ("members", "what"),
    [
        ({"snapshots": [snapshot(1, "e1", **{"manifest-list": "other"})]}, "snapshot 1"),
        ({"location": "elsewhere"}, "location"),
        ({"schemas": [{"schema-id": 1}]}, "schemas"),
    ],
)
def test_what_the_protocol_cannot_change_is_refused(members: dict[str, Any], what: str) -> None:
    with pytest.raises(UnsupportedFormatError, match=what):
        find_updates(metadata(), metadata(**members))

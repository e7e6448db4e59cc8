"""metadata.json: read strictly, kept whole, and written again with what was meant to change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modcrypt.errors import FormatError, KeyMaterialError, LimitError, UnsupportedFormatError
from modcrypt.iceberg.format.table_metadata import MAX_KEY_ENTRY, SCOPE, EncryptedKey, TableMetadata
from tests.support.cases import each_case

KEK = {
    "key-id": "kek",
    "encrypted-key-metadata": "AAAA",
    "encrypted-by-id": "keyA",
    "properties": {"KEY_TIMESTAMP": "5"},
}
SNAPSHOT: dict[str, Any] = {
    "snapshot-id": 7,
    "sequence-number": 1,
    "timestamp-ms": 5,
    "manifest-list": "t/metadata/snap-7.avro",
    "key-id": "list",
}
DOCUMENT: dict[str, Any] = {
    "format-version": 3,
    "table-uuid": "8b19a876-2225-48ad-a5f4-1c191de63807",
    "location": "t/",
    "last-sequence-number": 1,
    "properties": {"encryption.key-id": "keyA"},
    "current-snapshot-id": 7,
    "snapshots": [SNAPSHOT],
    "encryption-keys": [
        KEK,
        {"key-id": "list", "encrypted-key-metadata": "AAAA", "encrypted-by-id": "kek"},
    ],
    "from-another-writer": {"kept": [1, 2.5, None, "ü😀"]},
}  # fmt: skip


def read(**members: Any) -> TableMetadata:
    return TableMetadata(json.dumps({**DOCUMENT, **members}).encode())


def test_what_nothing_here_knows_is_written_again() -> None:
    assert json.loads(read().with_members(last_updated_ms=9).encode()) == {
        **DOCUMENT,
        "last-updated-ms": 9,
    }
    metadata = read(**{"encryption-keys": [{**KEK, "from-another-writer": 1}]})
    new = EncryptedKey("list", b"x", "kek")
    added = metadata.with_keys([*metadata.keys.values(), new])
    assert added.document["encryption-keys"] == [
        {**KEK, "from-another-writer": 1}, new.document(),
    ]  # fmt: skip


def test_keks_of_a_scope_come_last_as_java_takes_the_first() -> None:
    scoped = EncryptedKey("p", b"x", "keyA", {"KEY_TIMESTAMP": "1", SCOPE: "partition=a"})
    metadata = read()
    assert list(metadata.with_keys([scoped, *metadata.keys.values()]).keys) == ["kek", "list", "p"]


@each_case(
    ("members", "error"),
    [
        ({"format-version": 4}, UnsupportedFormatError),
        ({"format-version": "3"}, FormatError),
        ({"table-uuid": None}, FormatError),
        ({"location": "\ud800"}, FormatError),
        ({"last-sequence-number": "x"}, FormatError),
        ({"last-sequence-number": 2**63}, FormatError),
        ({"snapshots": {}}, FormatError),
        ({"snapshots": [{**SNAPSHOT, "sequence-number": [1]}]}, FormatError),
        ({"snapshots": [{**SNAPSHOT, "snapshot-id": True}]}, FormatError),
        ({"snapshots": [{**SNAPSHOT, "key-id": 5}]}, FormatError),
        ({"snapshots": [{"manifests": []}]}, UnsupportedFormatError),
        ({"properties": {"a": 1}}, FormatError),
        ({"encryption-keys": [KEK, KEK]}, FormatError),
        ({"encryption-keys": [{"key-id": "k", "encrypted-by-id": "x"}]}, FormatError),
        (
            {"encryption-keys": [{**KEK, "encrypted-key-metadata": "?"}]},
            KeyMaterialError,
        ),
        (
            {"encryption-keys": [{**KEK, "encrypted-key-metadata": "AAAA" * MAX_KEY_ENTRY}]},
            LimitError,
        ),
    ],
)  # fmt: skip
def test_what_is_malformed_is_refused(members: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        read(**members)


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{", b"\xff", b'{"location": 1, "location": 2}', b'{"a": NaN}', b"[" * 9999],
)
def test_what_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match="not table metadata"):
        TableMetadata(data)


def test_nothing_of_a_key_is_shown(t16: Path) -> None:
    metadata = TableMetadata((t16 / "metadata" / "v1.metadata.json").read_bytes())
    entry = next(iter(metadata.keys.values()))
    assert "vIUExj6D" not in repr(metadata) + repr(entry)
    assert repr(entry.encrypted) not in repr(entry)

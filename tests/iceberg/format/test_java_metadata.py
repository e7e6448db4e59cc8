"""The form of table metadata that Iceberg's Java hashes, judged by Java's own writer."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import BucketTransform

from modcrypt.iceberg import expire_history, rotate_table
from modcrypt.iceberg.format.java_metadata import encode_as_java, hash_as_java
from modcrypt.iceberg.format.table_metadata import TableMetadata
from tests.support.iceberg.java_judge import Judge
from tests.support.iceberg.made_tables import make_table

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("tags", pa.list_(pa.string())),
        ("counts", pa.map_(pa.string(), pa.list_(pa.int32()))),
        ("place", pa.struct([("street", pa.string()), ("at", pa.struct([("x", pa.float64())]))])),
    ]
)
SPEC = PartitionSpec(
    PartitionField(source_id=1, field_id=1000, transform=BucketTransform(4), name="id_bucket")
)
PROPERTIES = {"z": "1", "a": 'ü"\\u001b\x1b\x7f/', "m": "é"}


def java_form(java: Judge, folder: Path, document: dict[str, Any]) -> tuple[bytes, bytes]:
    """Return the form of a document by Java, and by modcrypt."""
    path = folder / "metadata" / "v99.metadata.json"
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(json.dumps(document))
    metadata = TableMetadata(path.read_bytes())
    return java.encode(path).encode(), encode_as_java(metadata)


@pytest.fixture
def document(tmp_path: Path) -> dict[str, Any]:
    table = make_table(tmp_path / "t", SCHEMA, partition_spec=SPEC, properties=PROPERTIES)
    rows = pa.table(
        {"id": [1], **{name: pa.nulls(1, SCHEMA.field(name).type) for name in SCHEMA.names[1:]}},
        SCHEMA,
    )
    table = table.append(rows).append(rows)
    table = rotate_table(table, "kek").table.append(rows)
    return expire_history(rotate_table(table, "dek").table).table.append(rows).metadata.document


def test_what_modcrypt_writes(java: Judge, tmp_path: Path, document: dict[str, Any]) -> None:
    by_java, ours = java_form(java, tmp_path, document)
    assert ours == by_java
    assert len(document["snapshots"]) == 2


def test_members_in_another_order_and_unknown_ones(
    java: Judge, tmp_path: Path, document: dict[str, Any]
) -> None:
    def turned(value: Any) -> Any:
        if isinstance(value, list):
            return [turned(element) for element in value]
        if not isinstance(value, dict):
            return value
        return {name: turned(member) for name, member in reversed(value.items())}

    kept = {"properties", "refs"}  # which have Java's order as they are
    other = {
        name: member if name in kept else turned(member)
        for name, member in reversed(document.items())
    }
    for snapshot, original in zip(other["snapshots"], document["snapshots"], strict=True):
        snapshot["summary"] = dict(sorted(original["summary"].items()))
    other |= {"unknown": [1], "location": document["location"] + "/"}
    other["schemas"][0]["identifier-field-ids"] = []
    by_java, ours = java_form(java, tmp_path, other)
    assert ours == by_java


@pytest.mark.parametrize("current", [None, -1])
def test_a_table_without_snapshots(
    java: Judge, tmp_path: Path, document: dict[str, Any], current: int | None
) -> None:
    dropped = {"snapshots", "refs", "snapshot-log", "encryption-keys", "statistics"}
    empty = {name: member for name, member in document.items() if name not in dropped}
    by_java, ours = java_form(java, tmp_path, {**empty, "current-snapshot-id": current})
    assert ours == by_java


def test_the_hash(document: dict[str, Any]) -> None:
    metadata = TableMetadata(json.dumps(document).encode())
    digest = hashlib.sha256(encode_as_java(metadata)).digest()
    assert hash_as_java(metadata) == base64.b64encode(digest).decode()

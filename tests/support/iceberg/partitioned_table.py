"""Tables of two partitions, which modcrypt writes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

from modcrypt.iceberg import IcebergTable, KeyPolicy
from modcrypt.iceberg.keys.key_resolver import KeyStore
from tests.support.iceberg.made_tables import make_table

ROWS = pa.table({"part": ["x", "x", "y"], "id": pa.array([1, 2, 3], pa.int64())})
BY_PART = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "part"))
KINDS = pa.schema([("id", pa.int64()), ("kind", pa.string())])
BY_KIND = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "kind"))


def some(*ids: int) -> pa.Table:
    """Return rows of the two kinds a and b, for a table by kind."""
    return pa.table({"id": ids, "kind": ["ab"[id_ % 2] for id_ in ids]}, schema=KINDS)


def two_appends(folder: Path, given: KeyPolicy, store: KeyStore | None = None) -> IcebergTable:
    """Write a table of two partitions by two commits."""
    made = make_table(folder, ROWS.schema, partition_spec=BY_PART, policy=given, key_store=store)
    return made.append(ROWS).append(ROWS)

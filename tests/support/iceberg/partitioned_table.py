"""A table of two partitions, which modcrypt writes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

from modcrypt.iceberg import IcebergTable, KeyPolicy, create_table
from modcrypt.iceberg.keys.key_resolver import KeyStore
from tests.support.iceberg.sample_kms import SampleKms

ROWS = pa.table({"part": ["x", "x", "y"], "id": pa.array([1, 2, 3], pa.int64())})
BY_PART = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "part"))


def two_appends(folder: Path, given: KeyPolicy, store: KeyStore | None = None) -> IcebergTable:
    """Write a table of two partitions by two commits."""
    made = create_table(
        folder, ROWS.schema, SampleKms(), master_key_id="keyA", partition_spec=BY_PART,
        policy=given, key_store=store,
    )  # fmt: skip
    return made.append(ROWS).append(ROWS)

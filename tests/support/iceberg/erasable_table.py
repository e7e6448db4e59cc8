"""A declared Iceberg table of two partitions, each with KEKs of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

from modcrypt import iceberg
from modcrypt.lake.lake import Lake
from tests.support.cli.program import Answer, run
from tests.support.iceberg.sales import DECLARATION, declare, make_sales

ROWS = pa.table({"part": ["x", "x", "y"], "id": pa.array([1, 2, 3], pa.int64())})
BY_PART = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "part"))
POLICY: dict[str, Any] = {"kek_per": "partition"}


def open_table(folder: Path, **options: Any) -> iceberg.IcebergTable:
    return iceberg.open_table(folder / "sales", f"file:{folder}/lake.keyring", **options)


def make_table(
    folder: Path, *, store: bool = False, rows: pa.Table = ROWS, **policy: Any
) -> iceberg.IcebergTable:
    """Make a keyring, a table of two partitions with two snapshots, and its declaration."""
    more: dict[str, Any] = {}
    declaration = DECLARATION
    if store:
        more["key_store"] = iceberg.FileKeyStore.create(folder / "keks")
        policy["store"] = "key-store"
        declaration += 'key_store = "keks"\n'
    declare(folder, text=declaration)
    chosen = iceberg.KeyPolicy(**{**POLICY, **policy})
    keys = ("sales", "other")
    return make_sales(folder, rows, keys, partition_spec=BY_PART, policy=chosen, **more)[1]


def open_lake(folder: Path) -> Lake:
    return Lake.open(folder / "modcrypt.toml")


def modcrypt(folder: Path, *arguments: str) -> Answer:
    return run(folder, *arguments, env={"MODCRYPT_CONFIG": str(folder / "modcrypt.toml")})


def shred(folder: Path, *more: str) -> Answer:
    return modcrypt(folder, "iceberg", "shred", "sales", "--partition", "part=x", "--yes", *more)

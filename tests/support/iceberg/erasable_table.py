"""A declared Iceberg table of two partitions, each with KEKs of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

import modcrypt as mc
from modcrypt import iceberg
from modcrypt.lake.lake import Lake
from tests.support.cli.program import Answer, run

DECLARATION = """\
kms = "file:lake.keyring"

[dataset.sales]
kind = "iceberg"
location = "sales"
master_key = "sales"
"""
ROWS = pa.table({"part": ["x", "x", "y"], "id": pa.array([1, 2, 3], pa.int64())})
BY_PART = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "part"))
POLICY: dict[str, Any] = {"kek_per": "partition"}


def open_table(folder: Path, **options: Any) -> iceberg.IcebergTable:
    return iceberg.open_table(folder / "sales", f"file:{folder}/lake.keyring", **options)


def make_table(
    folder: Path, *, store: bool = False, rows: pa.Table = ROWS, **policy: Any
) -> iceberg.IcebergTable:
    """Make a keyring, a table of two partitions with two snapshots, and its declaration."""
    keyring = mc.Keyring.create(folder / "lake.keyring", plaintext=True)
    for name in ("sales", "other"):
        keyring.create_key(name)
    more: dict[str, Any] = {}
    declaration = DECLARATION
    if store:
        more["key_store"] = iceberg.FileKeyStore.create(folder / "keks")
        policy["store"] = "key-store"
        declaration += 'key_store = "keks"\n'
    (folder / "modcrypt.toml").write_text(declaration)
    table = iceberg.create_table(
        folder / "sales", rows.schema, f"file:{folder}/lake.keyring", master_key_id="sales",
        partition_spec=BY_PART, policy=iceberg.KeyPolicy(**{**POLICY, **policy}), **more,
    )  # fmt: skip
    return table.append(rows).append(rows)


def open_lake(folder: Path) -> Lake:
    return Lake.open(folder / "modcrypt.toml")


def modcrypt(folder: Path, *arguments: str) -> Answer:
    return run(folder, *arguments, env={"MODCRYPT_CONFIG": str(folder / "modcrypt.toml")})


def shred(folder: Path, *more: str) -> Answer:
    return modcrypt(folder, "iceberg", "shred", "sales", "--partition", "part=x", "--yes", *more)

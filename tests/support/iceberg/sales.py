"""A declared Iceberg table, `sales`, with a keyring that has its master key."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

import modcrypt as mc
from modcrypt import iceberg

DECLARATION = """\
kms = "file:lake.keyring"

[dataset.sales]
kind = "iceberg"
location = "sales"
master_key = "sales"
"""


def make_sales(
    folder: Path, rows: pa.Table, keys: Sequence[str] = ("sales",), **options: Any
) -> tuple[mc.Keyring, iceberg.IcebergTable]:
    """Make a keyring with keys, and a table with two snapshots, each of which adds the rows."""
    keyring = mc.Keyring.create(folder / "lake.keyring", plaintext=True)
    for name in keys:
        keyring.create_key(name)
    how = {"destination": folder / "sales", "master_key_id": "sales", **options}
    where, kms = how.pop("destination"), f"file:{folder}/lake.keyring"
    table = iceberg.create_table(where, rows.schema, kms, **how)
    return keyring, table.append(rows).append(rows)


def declare(folder: Path, more: str = "", text: str = DECLARATION) -> Path:
    """Write a declaration, and return its path."""
    (folder / "modcrypt.toml").write_text(text + more)
    return folder / "modcrypt.toml"

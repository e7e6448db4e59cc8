"""Encrypted Iceberg tables: read, write, verify, and give them other keys.

table = modcrypt.iceberg.open_table("warehouse/orders/metadata/v3.metadata.json", kms)
table.scan(columns=["id"], filters="id > 5")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modcrypt.iceberg.table import IcebergTable, open_table

__all__ = ["IcebergTable", "open_table"]

_ROOM_OF = {
    "IcebergTable": "modcrypt.iceberg.table",
    "open_table": "modcrypt.iceberg.table",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'modcrypt.iceberg' has no attribute {name!r}")
    # A submodule of the same name would be found first, the next time.
    value = globals()[name] = getattr(import_module(_ROOM_OF[name]), name)
    return value

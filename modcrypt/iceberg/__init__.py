"""Encrypted Iceberg tables: read, write, verify, and give them other keys.

table = modcrypt.iceberg.open_table("warehouse/orders/metadata/v3.metadata.json", kms)
table.scan(columns=["id"], filters="id > 5")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modcrypt.iceberg.appending import append
    from modcrypt.iceberg.catalogs import load_table
    from modcrypt.iceberg.creating import create_table
    from modcrypt.iceberg.encrypting import encrypt_table
    from modcrypt.iceberg.expiry import Expired, expire_history
    from modcrypt.iceberg.key_stores import FileKeyStore, SqliteKeyStore
    from modcrypt.iceberg.key_trees import KeyTree, ProtectedFile, key_tree
    from modcrypt.iceberg.policies import KeyPolicy
    from modcrypt.iceberg.policy_change import set_policy
    from modcrypt.iceberg.pruning import Pruned, prune_keys
    from modcrypt.iceberg.resolver import KeyStore
    from modcrypt.iceberg.rotation import rotate_table
    from modcrypt.iceberg.rotation_report import TableRotation
    from modcrypt.iceberg.table import IcebergTable, open_table
    from modcrypt.iceberg.table_findings import TableVerification
    from modcrypt.iceberg.verification import verify_table

__all__ = [
    "Expired",
    "FileKeyStore",
    "IcebergTable",
    "KeyPolicy",
    "KeyStore",
    "KeyTree",
    "ProtectedFile",
    "Pruned",
    "SqliteKeyStore",
    "TableRotation",
    "TableVerification",
    "append",
    "create_table",
    "encrypt_table",
    "expire_history",
    "key_tree",
    "load_table",
    "open_table",
    "prune_keys",
    "rotate_table",
    "set_policy",
    "verify_table",
]

_ROOM_OF = {
    "Expired": "modcrypt.iceberg.expiry",
    "FileKeyStore": "modcrypt.iceberg.key_stores",
    "IcebergTable": "modcrypt.iceberg.table",
    "KeyPolicy": "modcrypt.iceberg.policies",
    "KeyStore": "modcrypt.iceberg.resolver",
    "KeyTree": "modcrypt.iceberg.key_trees",
    "ProtectedFile": "modcrypt.iceberg.key_trees",
    "Pruned": "modcrypt.iceberg.pruning",
    "SqliteKeyStore": "modcrypt.iceberg.key_stores",
    "TableRotation": "modcrypt.iceberg.rotation_report",
    "TableVerification": "modcrypt.iceberg.table_findings",
    "append": "modcrypt.iceberg.appending",
    "create_table": "modcrypt.iceberg.creating",
    "encrypt_table": "modcrypt.iceberg.encrypting",
    "expire_history": "modcrypt.iceberg.expiry",
    "key_tree": "modcrypt.iceberg.key_trees",
    "load_table": "modcrypt.iceberg.catalogs",
    "open_table": "modcrypt.iceberg.table",
    "prune_keys": "modcrypt.iceberg.pruning",
    "rotate_table": "modcrypt.iceberg.rotation",
    "set_policy": "modcrypt.iceberg.policy_change",
    "verify_table": "modcrypt.iceberg.verification",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'modcrypt.iceberg' has no attribute {name!r}")
    # A submodule of the same name would be found first, the next time.
    value = globals()[name] = getattr(import_module(_ROOM_OF[name]), name)
    return value

"""Read, write and verify encrypted Iceberg tables, and rotate their keys.

table = modcrypt.iceberg.open_table("warehouse/orders/metadata/v3.metadata.json", kms)
table.scan(columns=["id"], filters="id > 5")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modcrypt.iceberg.keys.key_policies import KeyPolicy
    from modcrypt.iceberg.keys.key_resolver import KeyStore
    from modcrypt.iceberg.keys.key_stores import FileKeyStore, SqliteKeyStore
    from modcrypt.iceberg.rotate.expiry import Expired, expire_history
    from modcrypt.iceberg.rotate.key_pruning import Pruned, prune_keys
    from modcrypt.iceberg.rotate.policy_change import set_policy
    from modcrypt.iceberg.rotate.rotation_report import TableRotation
    from modcrypt.iceberg.rotate.table_rotation import rotate_table
    from modcrypt.iceberg.tables.catalogs import load_table
    from modcrypt.iceberg.tables.table import IcebergTable, open_table
    from modcrypt.iceberg.tables.table_creation import create_table
    from modcrypt.iceberg.tables.table_encryption import encrypt_table
    from modcrypt.iceberg.verify.key_trees import KeyTree, ProtectedFile, key_tree
    from modcrypt.iceberg.verify.table_findings import TableVerification
    from modcrypt.iceberg.verify.table_verification import verify_table
    from modcrypt.iceberg.write.append import append

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

_MODULE_OF = {
    "Expired": "modcrypt.iceberg.rotate.expiry",
    "FileKeyStore": "modcrypt.iceberg.keys.key_stores",
    "IcebergTable": "modcrypt.iceberg.tables.table",
    "KeyPolicy": "modcrypt.iceberg.keys.key_policies",
    "KeyStore": "modcrypt.iceberg.keys.key_resolver",
    "KeyTree": "modcrypt.iceberg.verify.key_trees",
    "ProtectedFile": "modcrypt.iceberg.verify.key_trees",
    "Pruned": "modcrypt.iceberg.rotate.key_pruning",
    "SqliteKeyStore": "modcrypt.iceberg.keys.key_stores",
    "TableRotation": "modcrypt.iceberg.rotate.rotation_report",
    "TableVerification": "modcrypt.iceberg.verify.table_findings",
    "append": "modcrypt.iceberg.write.append",
    "create_table": "modcrypt.iceberg.tables.table_creation",
    "encrypt_table": "modcrypt.iceberg.tables.table_encryption",
    "expire_history": "modcrypt.iceberg.rotate.expiry",
    "key_tree": "modcrypt.iceberg.verify.key_trees",
    "load_table": "modcrypt.iceberg.tables.catalogs",
    "open_table": "modcrypt.iceberg.tables.table",
    "prune_keys": "modcrypt.iceberg.rotate.key_pruning",
    "rotate_table": "modcrypt.iceberg.rotate.table_rotation",
    "set_policy": "modcrypt.iceberg.rotate.policy_change",
    "verify_table": "modcrypt.iceberg.verify.table_verification",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'modcrypt.iceberg' has no attribute {name!r}")
    # Store the value: otherwise a submodule of the same name would hide it on the next access.
    value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value

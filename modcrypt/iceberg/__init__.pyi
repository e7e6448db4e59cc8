"""The public names of the package, and the modules that define them."""

from modcrypt.iceberg.keys.key_policies import KeyPolicy as KeyPolicy
from modcrypt.iceberg.keys.key_resolver import KeyStore as KeyStore
from modcrypt.iceberg.keys.key_stores import FileKeyStore as FileKeyStore
from modcrypt.iceberg.keys.key_stores import SqliteKeyStore as SqliteKeyStore
from modcrypt.iceberg.rotate.expiry import Expired as Expired
from modcrypt.iceberg.rotate.expiry import expire_history as expire_history
from modcrypt.iceberg.rotate.key_pruning import Pruned as Pruned
from modcrypt.iceberg.rotate.key_pruning import prune_keys as prune_keys
from modcrypt.iceberg.rotate.key_repair import Repaired as Repaired
from modcrypt.iceberg.rotate.key_repair import repair_table as repair_table
from modcrypt.iceberg.rotate.orphan_removal import RemovedOrphans as RemovedOrphans
from modcrypt.iceberg.rotate.orphan_removal import remove_orphan_files as remove_orphan_files
from modcrypt.iceberg.rotate.policy_change import set_policy as set_policy
from modcrypt.iceberg.rotate.rotation_report import TableRotation as TableRotation
from modcrypt.iceberg.rotate.table_rotation import rotate_table as rotate_table
from modcrypt.iceberg.tables.catalogs import load_table as load_table
from modcrypt.iceberg.tables.table import IcebergTable as IcebergTable
from modcrypt.iceberg.tables.table import open_table as open_table
from modcrypt.iceberg.tables.table_creation import create_table as create_table
from modcrypt.iceberg.tables.table_encryption import encrypt_table as encrypt_table
from modcrypt.iceberg.verify.key_trees import KeyTree as KeyTree
from modcrypt.iceberg.verify.key_trees import ProtectedFile as ProtectedFile
from modcrypt.iceberg.verify.key_trees import key_tree as key_tree
from modcrypt.iceberg.verify.table_results import TableVerification as TableVerification
from modcrypt.iceberg.verify.table_verification import verify_table as verify_table
from modcrypt.iceberg.write.append import append as append

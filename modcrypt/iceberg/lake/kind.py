"""Iceberg tables as datasets of a lake: the functions that `modcrypt.lake.table_kind` names."""

from modcrypt.iceberg.lake.declared_table import list_names, open_cell_files, open_declared
from modcrypt.iceberg.lake.table_application import change_table, plan_table
from modcrypt.iceberg.lake.table_check import verify_declared_table
from modcrypt.iceberg.lake.table_status import find_table_status

__all__ = [
    "change_table",
    "find_table_status",
    "list_names",
    "open_cell_files",
    "open_declared",
    "plan_table",
    "verify_declared_table",
]

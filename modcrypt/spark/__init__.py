"""Encrypted tables on Spark: table jobs, Spark's own Parquet on our keys, Java without a system's.

The data source itself is found by its name: `spark.read.format("modcrypt")`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modcrypt.spark.jobs.iceberg_jobs import rotate_table_deks, rotate_table_keks
    from modcrypt.spark.jobs.table_jobs import (
        decrypt_table,
        encrypt_table,
        inspect_table,
        mask_table,
        rekey_table,
        rotate_keys,
        scan_keys,
        share_table,
        verify_table,
    )
    from modcrypt.spark.jvm.java_home import java_home
    from modcrypt.spark.jvm.native_jar import spark_jar
    from modcrypt.spark.jvm.native_parquet import native, native_options
    from modcrypt.spark.settings import Settings

__all__ = [
    "Settings",
    "decrypt_table",
    "encrypt_table",
    "inspect_table",
    "java_home",
    "mask_table",
    "native",
    "native_options",
    "rekey_table",
    "rotate_keys",
    "rotate_table_deks",
    "rotate_table_keks",
    "scan_keys",
    "share_table",
    "spark_jar",
    "verify_table",
]

_ROOM_OF = {
    "Settings": "modcrypt.spark.settings",
    "java_home": "modcrypt.spark.jvm.java_home",
    "native": "modcrypt.spark.jvm.native_parquet",
    "native_options": "modcrypt.spark.jvm.native_parquet",
    "rotate_table_deks": "modcrypt.spark.jobs.iceberg_jobs",
    "rotate_table_keks": "modcrypt.spark.jobs.iceberg_jobs",
    "spark_jar": "modcrypt.spark.jvm.native_jar",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'modcrypt.spark' has no attribute {name!r}")
    room = import_module(_ROOM_OF.get(name, "modcrypt.spark.jobs.table_jobs"))
    # A submodule of the same name would be found first, the next time.
    value = globals()[name] = getattr(room, name)
    return value

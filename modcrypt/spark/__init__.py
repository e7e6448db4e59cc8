"""Encrypted tables on Spark: table jobs, keys for Spark's own Parquet, and a Java for Spark.

Spark finds the data source itself by its name: `spark.read.format("modcrypt")`.
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

_MODULE_OF = {
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
    module = import_module(_MODULE_OF.get(name, "modcrypt.spark.jobs.table_jobs"))
    # Store the value: otherwise a submodule of the same name would be found the next time.
    value = globals()[name] = getattr(module, name)
    return value

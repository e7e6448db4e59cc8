"""The jobs of this package for commands, which find them by an entry point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modcrypt.spark.commands.verify_on_spark import verify_on_spark as verify_files
from modcrypt.spark.jobs.conversion import plan_conversion
from modcrypt.spark.jobs.driver import run_table_job
from modcrypt.spark.jobs.lake_jobs import apply as apply_lake
from modcrypt.spark.jobs.lake_verification import verify as verify_lake
from modcrypt.spark.jobs.shredding import prove_shredded, shred_keys
from modcrypt.spark.jobs.table_jobs import inspect_table, rotate_keys, scan_keys
from modcrypt.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from modcrypt.iceberg.rotate.rotation_report import TableRotation

__all__ = [
    "apply_lake", "inspect_table", "plan_conversion", "prove_shredded", "rotate_iceberg_table",
    "rotate_keys", "run_table_job", "scan_keys", "shred_keys", "spark_session", "verify_files",
    "verify_lake",
]  # fmt: skip


def rotate_iceberg_table(
    spark: SparkSession, what: str, *arguments: Any, **how: Any
) -> TableRotation:
    """Run `rotate_table_deks` or `rotate_table_keks`, which need the extra for Iceberg."""
    from modcrypt.spark.jobs.iceberg_jobs import rotate_table_deks, rotate_table_keks

    rotate = rotate_table_deks if what == "dek" else rotate_table_keks
    return rotate(spark, *arguments, **how)

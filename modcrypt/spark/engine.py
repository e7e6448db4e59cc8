"""Session and jobs of Spark for commands, which find this module by an entry point."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from modcrypt.runtime.extras import missing_extra
from modcrypt.spark.commands.verify_on_spark import verify_on_spark as verify_files
from modcrypt.spark.jobs.conversion import plan_conversion
from modcrypt.spark.jobs.driver import run_table_job
from modcrypt.spark.jobs.lake_jobs import apply as apply_lake
from modcrypt.spark.jobs.lake_jobs import verify as verify_lake
from modcrypt.spark.jobs.shredding import prove_shredded, shred_keys
from modcrypt.spark.jobs.table_jobs import inspect_table, rotate_keys, scan_keys

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from modcrypt.iceberg.rotate.rotation_report import TableRotation

__all__ = [
    "apply_lake", "inspect_table", "plan_conversion", "prove_shredded", "rotate_iceberg_table",
    "rotate_keys", "run_table_job", "scan_keys", "shred_keys", "spark_session", "verify_files",
    "verify_lake",
]  # fmt: skip


_LOOPBACK = "127.0.0.1"


@contextmanager
def spark_session(master: str, name: str, settings: dict[str, str]) -> Iterator[SparkSession]:
    """Start Spark, or connect to a Spark Connect server, and stop the session at the end.

    `master` is as for `spark-submit --master`, or `sc://HOST:PORT` of Spark Connect. `settings` is
    the Spark configuration, used if Spark is started here.

    Raises:
        ModuleNotFoundError: pyspark is not installed.
        OSError: Spark failed.
    """
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
    except ImportError:
        raise missing_extra("Spark", "spark") from None
    try:
        session = _start_session(master, name, settings)
        try:
            yield session
        finally:
            session.stop()
    except (PySparkException, Py4JError) as error:
        message = next(iter(str(error).splitlines()), type(error).__name__)
        raise OSError(errno.EIO, f"Spark failed: {message}") from None


def _start_session(master: str, name: str, settings: dict[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder.appName(name)
    if master.startswith("sc://"):
        connected: SparkSession = builder.remote(master).getOrCreate()
        return connected
    if master.startswith("local"):  # so keep Spark's ports and UI off the network
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
        settings = {"spark.ui.enabled": "false", **settings}
    settings = {"spark.log.level": "ERROR", **settings}
    started: SparkSession = builder.master(master).config(map=settings).getOrCreate()
    return started


def rotate_iceberg_table(
    spark: SparkSession, what: str, *arguments: Any, **how: Any
) -> TableRotation:
    """Run `rotate_table_deks` or `rotate_table_keks`, which need the extra for Iceberg."""
    from modcrypt.spark.jobs.iceberg_jobs import rotate_table_deks, rotate_table_keks

    rotate = rotate_table_deks if what == "dek" else rotate_table_keks
    return rotate(spark, *arguments, **how)

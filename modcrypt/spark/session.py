"""A Spark session for programs that are not started by Spark."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from modcrypt.kms.references import missing_extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    if master.startswith(
        "local"
    ):  # Spark runs on this machine only, so keep its ports and UI off the network
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
        settings = {"spark.ui.enabled": "false", **settings}
    settings = {"spark.log.level": "ERROR", **settings}
    started: SparkSession = builder.master(master).config(map=settings).getOrCreate()
    return started

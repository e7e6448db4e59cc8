"""Archive the classes that Spark's JVM loads, so that later JVMs map them instead of parsing them.

    python -m tests.support.spark.class_archive FILE

`make test-slow` starts about twenty JVMs with Spark, and each spends most of its time on loading
classes; with the archive it takes two thirds of the processor time. A JVM ignores an archive of
other jars.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.support.java.jvm import SHORT_LIVED, why_unavailable

ARCHIVE = Path(sys.prefix) / "spark.jsa"
"""Where `make` puts the archive."""

QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")  # an archive of other jars is worth no warning


def use_archive() -> tuple[str, ...]:
    """Return the options for a JVM that uses the archive, if there is one."""
    return (f"-XX:SharedArchiveFile={ARCHIVE}", *QUIET) if ARCHIVE.exists() else ()


def write_archive(path: Path) -> None:
    """Run queries of the kinds that tests run, and archive the classes that they load."""
    unfinished = path.with_suffix(".new")
    options = [*SHORT_LIVED, *QUIET, f"-XX:ArchiveClassesAtExit={unfinished}"]
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join(options)
    with tempfile.TemporaryDirectory() as folder:
        _run_queries(Path(folder))
    unfinished.rename(path)


def _run_queries(folder: Path) -> None:
    from pyspark.sql import SparkSession

    from tests.support.spark.processes import spark_settings

    settings: dict[str, Any] = dict(spark_settings(folder))
    builder = SparkSession.builder.master("local[2]").config(map=settings)
    spark = builder.getOrCreate()
    rows, copy = str(folder / "rows"), str(folder / "copy")
    table = spark.range(100).selectExpr("id", "id % 7 as day", "cast(id as string) as name")
    table.write.partitionBy("day").parquet(rows)
    read = spark.read.parquet(rows)
    read.filter("id > 3").groupBy("day").count().orderBy("day").collect()
    read.join(read.select("id"), "id").toArrow()
    spark.createDataFrame([(1, "a")], "id int, name string").collect()
    stream = spark.readStream.schema(read.schema).parquet(rows).writeStream.format("parquet")
    stream = stream.option("checkpointLocation", str(folder / "checkpoint"))
    stream.trigger(availableNow=True).start(copy).awaitTermination()
    spark.sparkContext.parallelize(range(4), 2).map(str).collect()
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()  # while it writes the archive


if __name__ == "__main__":
    if reason := why_unavailable():
        print(f"no archive of Spark's classes: {reason}")
    else:
        write_archive(Path(sys.argv[1]))

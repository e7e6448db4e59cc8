"""Spark with Iceberg's own runtime, on a Hive metastore.

Iceberg 1.12 is made for Spark 4.1 at most, which is fetched into the user's cache folder once.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.support.java.iceberg_java import VERSION, Jar, cache_folder, fetch_jars
from tests.support.java.iceberg_java import why_unavailable as why_no_iceberg
from tests.support.spark.processes import Elsewhere

SPARK = "4.1.4"
_SPARK_HASH = "bcbd5e18690cf79d438e97210ad06fb8d451a251bb77becc2b0418868d2acd73"

_JARS = (
    Jar("org.apache.iceberg", "iceberg-spark-runtime-4.1_2.13", VERSION,
        "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82"),
    Jar("org.apache.iceberg", "iceberg-aws-bundle", VERSION,
        "dd7e49ffa4ac9b215bed846581991259e3aec9bb2fa08d6cec029c46cd66d957"),
)  # fmt: skip
_FETCH_SECONDS = 900


@functools.cache
def why_unavailable() -> str | None:
    """Return a reason to skip tests that need Iceberg's Spark; None if it can run."""
    if reason := why_no_iceberg():
        return reason
    try:
        fetch_jars(_JARS, f"iceberg-spark-{VERSION}")
        _spark_folder()
    except (OSError, subprocess.SubprocessError) as error:
        return f"Spark {SPARK} or Iceberg's runtime cannot be fetched: {type(error).__name__}"
    return None


def _spark_folder() -> Path:
    """Return the folder of PySpark's files, fetched if need be."""
    folder = cache_folder(f"pyspark-{SPARK}")
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            wanted = Path(temporary, "wanted.txt")
            wanted.write_text(f"pyspark=={SPARK} --hash=sha256:{_SPARK_HASH}\n")
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
            command += ["--require-hashes", "--target", f"{temporary}/pyspark", "-r", str(wanted)]
            subprocess.run(command, check=True, capture_output=True, timeout=_FETCH_SECONDS)
            Path(temporary, "pyspark").rename(folder)
    return folder


_QUERIES = """
import json, sys
for query in json.loads(sys.argv[1]):
    rows = [row.asDict(recursive=True) for row in spark.sql(query).collect()]
print(json.dumps(rows, default=str))
"""


def aws_kms(endpoint: str) -> dict[str, str]:
    """Return a catalog's settings for AWS KMS by Iceberg's own client."""
    return {
        "encryption.kms-type": "aws",
        "kms.endpoint": endpoint,
        "client.region": "us-east-1",
    }


class IcebergSpark:
    """A running Spark whose catalogs are that of a metastore, each with settings of its own."""

    def __init__(
        self,
        folder: Path,
        metastore: str,
        catalogs: Mapping[str, Mapping[str, str]],
        *,
        jars: Sequence[Path] = (),
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.folder = folder
        common = {
            "type": "hive",
            "uri": metastore,
            "warehouse": f"file:{folder}/warehouse",
            "cache-enabled": "false",
        }
        settings = {
            f"spark.sql.catalog.{catalog}.{name}": value
            for catalog, own in catalogs.items()
            for name, value in {**common, **own}.items()
        }
        settings |= {
            f"spark.sql.catalog.{catalog}": "org.apache.iceberg.spark.SparkCatalog"
            for catalog in catalogs
        }
        extensions = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        jars = [*fetch_jars(_JARS, f"iceberg-spark-{VERSION}"), *jars]
        self._spark = Elsewhere(
            "local[2]",
            folder,
            {
                **settings,
                "spark.sql.extensions": extensions,
                "spark.jars": ",".join(map(str, jars)),
            },
            {"PYTHONPATH": str(_spark_folder()), "AWS_REGION": "us-east-1", **variables},
        )

    def sql(self, *queries: str) -> list[dict[str, Any]]:
        """Run queries; return the rows of the last one."""
        rows: list[dict[str, Any]] = json.loads(self._spark.run(_QUERIES, json.dumps(queries)))
        return rows

    def close(self) -> None:
        """Stop it."""
        self._spark.close()

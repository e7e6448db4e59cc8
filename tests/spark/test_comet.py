"""Spark's own Parquet under Comet, which accelerates Spark and can read Parquet itself.

Comet has a jar for some versions of Spark; the test runs for those.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyspark
import pytest

from modcrypt.kms.keyring.keyring import Keyring
from tests.support.java.jvm import why_unavailable

if _reason := why_unavailable():
    pytest.skip(_reason, allow_module_level=True)

from tests.support.java.central_jars import fetch_jars
from tests.support.spark.native import uri_of
from tests.support.spark.processes import Elsewhere

pytestmark = pytest.mark.slow

COMET = "1.2.0"
SPARK = ".".join(pyspark.__version__.split(".")[:2])

SETTINGS = {
    "spark.plugins": "org.apache.spark.CometPlugin",
    "spark.shuffle.manager": "org.apache.spark.sql.comet.execution.shuffle.CometShuffleManager",
    "spark.comet.sparkToColumnar.enabled": "true",  # also for what Spark has read
    "spark.comet.convert.parquet.enabled": "true",
    "spark.memory.offHeap.enabled": "true",
    "spark.memory.offHeap.size": "512m",
}

UNDER_COMET = """
import sys
import modcrypt.spark
policy, folder = sys.argv[1:]
table, plain = f"{folder}/sealed", f"{folder}/plain"

def ask(session, where):
    frame = session.read.parquet(where).groupBy("part").agg({"id": "sum"})
    rows = sorted(tuple(row) for row in frame.collect())
    return rows, frame._jdf.queryExecution().executedPlan().toString()

rows = spark.range(100).selectExpr("id", "id % 2 AS part", "concat('name-', id) AS name")
rows.write.parquet(plain)
expected, plan = ask(spark, plain)
assert "CometNativeScan" in plan or "CometScan" in plan, plan

checked = spark.newSession()
modcrypt.spark.native(checked, policy=policy)
rows.write.options(**modcrypt.spark.native_options(policy)).parquet(table)
found, plan = ask(checked, table)
assert found == expected
assert "CometNativeScan" not in plan and "CometScan" not in plan, plan
assert "Comet" in plan, plan  # what follows the read
try:
    ask(checked, plain)
except Exception as error:
    assert "plaintext" in str(error), error
else:
    raise AssertionError("a plaintext file was read")

lenient = spark.newSession()
modcrypt.spark.native(lenient, policy=policy, require_encrypted=False)
found, plan = ask(lenient, table)
assert found == expected
assert "CometNativeScan" in plan or "CometScan" in plan, plan
assert ask(lenient, plain)[0] == expected
"""


@pytest.fixture
def comet(tmp_path: Path) -> Iterator[Elsewhere]:
    """Run a Spark with Comet; skip the test if Comet has no jar for this Spark."""
    (tmp_path / "jars").mkdir()
    coordinates = f"org.apache.datafusion:comet-spark-spark{SPARK}_2.13:{COMET}"
    jars = fetch_jars(tmp_path / "jars", coordinates)
    path = ":".join(map(str, jars))
    also = SETTINGS | {f"spark.{who}.extraClassPath": path for who in ("driver", "executor")}
    with closing(Elsewhere("local[2]", tmp_path, also)) as running:
        yield running


def test_spark_reads_and_comet_computes(comet: Elsewhere, ring: Keyring, tmp_path: Path) -> None:
    """All checks hold by default; Comet itself only reads encrypted files if none is lost."""
    policy = tmp_path / "lake.policy"
    policy.write_text(
        f'kms = "{uri_of(ring)}"\nfooter_key = "kf"\ncolumn_keys = {{ kc2 = ["name"] }}\n'
    )
    comet.run(UNDER_COMET, policy, tmp_path)

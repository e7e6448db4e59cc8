"""Spark's own Parquet under Comet, which accelerates Spark and can read Parquet itself.

Comet has a jar for some versions of Spark; the test runs for those.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from modcrypt.kms.keyring.keyring import Keyring
from tests.support.java.jvm import why_unavailable

if _reason := why_unavailable():
    pytest.skip(_reason, allow_module_level=True)

from tests.support.spark.extended_spark import extended_spark, write_policy
from tests.support.spark.processes import Elsewhere

pytestmark = pytest.mark.slow

COMET = "org.apache.datafusion:comet-spark-spark{spark}_2.13:1.2.0"

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
    with extended_spark(tmp_path, COMET, SETTINGS) as running:
        yield running


def test_spark_reads_and_comet_computes(comet: Elsewhere, ring: Keyring, tmp_path: Path) -> None:
    """All checks hold by default; Comet itself only reads encrypted files if none is lost."""
    comet.run(UNDER_COMET, write_policy(ring, tmp_path, "name"), tmp_path)

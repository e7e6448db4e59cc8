"""Delta tables in a session whose Parquet files modcrypt encrypts: which of their parts it reaches.

Delta has jars for some versions of Spark; the tests run for those (`make test-delta`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import modcrypt as mc
from modcrypt.kms.keyring.keyring import Keyring
from tests.support.java.jvm import why_unavailable

if _reason := why_unavailable():
    pytest.skip(_reason, allow_module_level=True)

from modcrypt.kms.settings import Settings
from tests.support.spark.extended_spark import extended_spark, write_policy
from tests.support.spark.processes import Elsewhere

pytestmark = pytest.mark.slow

DELTA = "io.delta:delta-spark_{spark}_2.13:4.4.0"

SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",  # instead of 50 tasks for a log of some lines
}

SECRET = "a-secret-name"


@pytest.fixture(scope="module")
def delta(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elsewhere]:
    """Run a Spark with Delta; skip the tests if Delta has no jar for this Spark."""
    folder = tmp_path_factory.mktemp("delta")
    with extended_spark(folder, DELTA, SETTINGS, owner="io.delta") as running:  # Spark has others
        yield running


def are_encrypted(files: list[Path]) -> bool:
    """Return whether all files are Parquet files with an encrypted footer."""
    assert files
    return {path.read_bytes()[-4:] for path in files} == {b"PARE"}


def data_files(table: Path) -> list[Path]:
    """Return the Parquet files of a table, without those of its log."""
    return [path for path in table.rglob("*.parquet") if "_delta_log" not in path.parts]


def read_log(table: Path) -> str:
    return "".join(path.read_text() for path in sorted((table / "_delta_log").glob("*.json")))


CHANGES = f"""
import sys
import modcrypt.spark
policy, table = sys.argv[1:]
modcrypt.spark.native(spark, policy=policy)
spark.sql(f"CREATE TABLE delta.`{{table}}` (id BIGINT, name STRING) USING delta TBLPROPERTIES "
          "('delta.enableChangeDataFeed' = 'true', 'delta.enableDeletionVectors' = 'false')")
for half in ("range(50)", "range(50, 100)"):
    spark.sql(f"INSERT INTO delta.`{{table}}` SELECT id, '{SECRET}' FROM {{half}}")
spark.sql(f"UPDATE delta.`{{table}}` SET id = id + 1000 WHERE id < 10")
spark.sql(f"DELETE FROM delta.`{{table}}` WHERE id BETWEEN 20 AND 29")
spark.sql(f"MERGE INTO delta.`{{table}}` t USING (SELECT id FROM range(90, 110)) s ON t.id = s.id "
          "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, name) VALUES (s.id, 'new')")
spark.sql(f"OPTIMIZE delta.`{{table}}`")
ids = sorted(row.id for row in spark.read.format("delta").load(table).collect())
expected = [*range(10, 20), *range(30, 90), *range(100, 110), *range(1000, 1010)]
assert ids == expected, ids
"""


def test_data_files_are_encrypted_and_the_log_is_not(
    delta: Elsewhere, ring: Keyring, tmp_path: Path
) -> None:
    policy, table = write_policy(ring, tmp_path, "name"), tmp_path / "t"
    delta.run(CHANGES, policy, table, timeout=900)
    assert are_encrypted(data_files(table))
    assert list((table / "_change_data").glob("*.parquet"))
    files = [path for path in data_files(table) if path.parent.name != "_change_data"]
    settings = Settings(policy=mc.Policy.load(policy))
    assert all(mc.verify_parquet(path, settings.decryption()).ok for path in files)
    assert SECRET not in "".join(path.read_bytes().decode("latin-1") for path in files)
    assert f'\\"name\\":\\"{SECRET}\\"' in read_log(table)  # smallest and largest values


STATISTICS = f"""
import sys
import modcrypt.spark
policy, table = sys.argv[1:]
modcrypt.spark.native(spark, policy=policy)
spark.sql(f"CREATE TABLE delta.`{{table}}` (id BIGINT, name STRING) USING delta TBLPROPERTIES "
          "('delta.dataSkippingStatsColumns' = 'id', 'delta.checkpointInterval' = '2', "
          "'delta.enableDeletionVectors' = 'true')")
for _ in range(3):
    spark.sql(f"INSERT INTO delta.`{{table}}` SELECT id, '{SECRET}' FROM range(10)")
spark.sql(f"DELETE FROM delta.`{{table}}` WHERE id = 3")
assert spark.read.format("delta").load(table).count() == 27
"""


def test_checkpoints_are_encrypted_and_deletion_vectors_are_not(
    delta: Elsewhere, ring: Keyring, tmp_path: Path
) -> None:
    policy, table = write_policy(ring, tmp_path), tmp_path / "t"
    delta.run(STATISTICS, policy, table, timeout=900)
    assert SECRET not in read_log(table)
    assert are_encrypted(list((table / "_delta_log").glob("*.checkpoint*.parquet")))
    (vector,) = table.glob("*.bin")
    assert vector.read_bytes()[:1] == b"\x01"  # the format's version


def test_checkpoints_fail_under_column_keys_and_the_table_goes_on(
    delta: Elsewhere, ring: Keyring, tmp_path: Path
) -> None:
    policy, table = write_policy(ring, tmp_path, "name"), tmp_path / "t"
    delta.run(STATISTICS, policy, table, timeout=900)
    assert not list((table / "_delta_log").glob("*.checkpoint*.parquet"))
    assert are_encrypted(data_files(table))


DROPPED = """
import sys
import modcrypt.spark
policy, table = sys.argv[1:]
modcrypt.spark.native(spark.newSession(), policy=policy)  # sends the jar
options = modcrypt.spark.native_options(policy)
spark.range(10).write.format("delta").options(**options).save(table)
"""


def test_options_of_a_write_are_dropped(delta: Elsewhere, ring: Keyring, tmp_path: Path) -> None:
    """The guide warns of it; if Delta passed them on, the warning could go."""
    policy, table = write_policy(ring, tmp_path), tmp_path / "t"
    delta.run(DROPPED, policy, table, timeout=900)
    assert {path.read_bytes()[-4:] for path in data_files(table)} == {b"PAR1"}

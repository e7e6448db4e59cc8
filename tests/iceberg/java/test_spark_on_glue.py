"""Stock Spark and Iceberg on AWS Glue, as far as moto stands for AWS.

Java 1.12 takes tables of Glue for plaintext, as those of a REST catalog. Its commits and modcrypt's
exclude each other by the versions of the entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
import pytest

from modcrypt.errors import ModcryptError, PlaintextError
from modcrypt.iceberg import rotate_table, verify_table
from tests.support.iceberg.glue_catalog import GlueTable, act_first, answers, glue_server, serve
from tests.support.iceberg.table_changes import CHANGES, ids, rows
from tests.support.object_store import KEY, REGION, SECRET
from tests.support.spark.iceberg_spark import IcebergSpark, why_unavailable

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with glue_server(tmp_path_factory.mktemp("glue")) as uri:
        yield uri


@pytest.fixture(scope="module")
def spark(server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[IcebergSpark]:
    if reason := why_unavailable():
        pytest.skip(reason)
    settings = {
        "type": "glue", "uri": "", "glue.endpoint": GlueTable(server, "").endpoint,
        "client.region": REGION, "io-impl": "org.apache.iceberg.hadoop.HadoopFileIO",
    }  # fmt: skip
    variables = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    folder = tmp_path_factory.mktemp("spark")
    with closing(IcebergSpark(folder, server, {"glue": settings}, variables=variables)) as running:
        yield running


@pytest.fixture
def glue(server: str) -> GlueTable:
    return GlueTable.make(server)


def test_no_key_is_lost_when_spark_changes_a_table(spark: IcebergSpark, glue: GlueTable) -> None:
    before = glue.load().append(rows(1)).append(rows(2))
    spark.sql(
        f"ALTER TABLE glue.{glue.name} ADD COLUMN note string COMMENT 'what it says'",
        f"ALTER TABLE glue.{glue.name} SET TBLPROPERTIES ('a'='b')",
        f"ALTER TABLE glue.{glue.name} CREATE BRANCH other",
    )
    table, entry = glue.load(), glue.entry()
    assert table.metadata.keys == before.metadata.keys
    noted = pa.table({"id": pa.array([3], pa.int64()), "note": ["y"]})
    assert ids(table.append(noted)) == [1, 2, 3]
    assert glue.entry()["StorageDescriptor"] == entry["StorageDescriptor"]  # which Java wrote
    names = {"table_type", "metadata_location", "previous_metadata_location"}
    assert set(glue.entry()["Parameters"]) == set(entry["Parameters"]) == names
    for what in ("mek", "kek", "dek"):
        rotate_table(glue.load(), what)
    CHANGES["expire"](glue.load())
    spark.sql(f"ALTER TABLE glue.{glue.name} DROP BRANCH other")
    assert ids(glue.load()) == [1, 2, 3]
    assert verify_table(glue.load()).ok
    with pytest.raises(AssertionError, match="Cannot decrypt manifest list"):
        spark.sql(f"SELECT * FROM glue.{glue.name}")
    with pytest.raises(AssertionError):
        spark.sql(f"INSERT INTO glue.{glue.name} VALUES (4, 'z')")
    assert ids(glue.load()) == [1, 2, 3]
    spark.sql(f"DROP TABLE glue.{glue.name}")
    with pytest.raises(ValueError, match="the catalog has no table"):
        glue.load()


def test_a_commit_of_spark_in_between_is_kept(spark: IcebergSpark, glue: GlueTable) -> None:
    table = glue.load().append(rows(1))
    change = f"ALTER TABLE glue.{glue.name} SET TBLPROPERTIES ('a'='b')"
    other = act_first(lambda: spark.sql(change))
    with answers(glue.catalog, "UpdateTable", other, serve) as sent:
        table.append(rows(2))
    assert len(sent) == 2
    assert ids(glue.load()) == [1, 2]
    assert glue.load().metadata.properties["a"] == "b"


def test_rows_that_spark_writes_in_plaintext_are_refused(
    spark: IcebergSpark, glue: GlueTable
) -> None:
    spark.sql(f"INSERT INTO glue.{glue.name} VALUES (1)")
    with pytest.raises(PlaintextError):
        glue.load().scan().to_arrow()
    with pytest.raises(ModcryptError):
        glue.load().append(rows(2))

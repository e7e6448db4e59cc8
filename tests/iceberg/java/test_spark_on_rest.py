"""Stock Spark and Iceberg on a REST catalog, as far as released Java supports encryption there.

Java 1.12 takes tables of a REST catalog for plaintext. So Spark can change their schema, spec and
properties, but neither read nor write rows, and must lose no key on the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
import pytest

from modcrypt.errors import ModcryptError, PlaintextError
from modcrypt.iceberg import rotate_table, verify_table
from tests.support.iceberg.rest_catalog import RestTable
from tests.support.iceberg.table_changes import CHANGES, ids, rows
from tests.support.spark.iceberg_spark import IcebergSpark, why_unavailable

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def spark(server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[IcebergSpark]:
    if reason := why_unavailable():
        pytest.skip(reason)
    catalogs = {"rest": {"type": "rest", "uri": server}}
    with closing(IcebergSpark(tmp_path_factory.mktemp("spark"), server, catalogs)) as running:
        yield running


@pytest.fixture
def rest(server: str) -> RestTable:
    return RestTable.make(server)


def test_no_key_is_lost_when_spark_changes_a_table(spark: IcebergSpark, rest: RestTable) -> None:
    before = rest.load().append(rows(1)).append(rows(2))
    spark.sql(
        f"ALTER TABLE rest.{rest.name} ADD COLUMN note string",
        f"ALTER TABLE rest.{rest.name} SET TBLPROPERTIES ('a'='b')",
        f"ALTER TABLE rest.{rest.name} CREATE BRANCH other",
        f"ALTER TABLE rest.{rest.name} ADD PARTITION FIELD bucket(4, id)",
    )
    table = rest.load()
    assert table.metadata.keys == before.metadata.keys
    noted = pa.table({"id": pa.array([3], pa.int64()), "note": ["y"]})
    assert ids(table.append(noted)) == [1, 2, 3]
    for what in ("mek", "kek", "dek"):
        rotate_table(rest.load(), what)
    CHANGES["expire"](rest.load())
    spark.sql(f"ALTER TABLE rest.{rest.name} DROP BRANCH other")
    assert ids(rest.load()) == [1, 2, 3]
    assert verify_table(rest.load()).ok
    with pytest.raises(AssertionError, match="Cannot decrypt manifest list"):
        spark.sql(f"SELECT * FROM rest.{rest.name}")


def test_rows_that_spark_writes_in_plaintext_are_refused(
    spark: IcebergSpark, rest: RestTable
) -> None:
    spark.sql(f"INSERT INTO rest.{rest.name} VALUES (1)")
    with pytest.raises(PlaintextError):
        rest.load().scan().to_arrow()
    with pytest.raises(ModcryptError):
        rest.load().append(rows(2))

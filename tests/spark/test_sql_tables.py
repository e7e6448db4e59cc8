"""Tables that carry their policy, in the session catalog and in a Hive metastore.

Sessions without settings of their own write and read them, and Spark plans their queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import modcrypt as mc
from modcrypt.kms.keyring.keyring import Keyring
from tests.support.java.jvm import why_unavailable
from tests.support.spark.native import uri_of
from tests.support.spark.processes import Elsewhere
from tests.support.spark.sql_tables import SqlTables, change_tables, drop_tables, plan_queries

if _reason := why_unavailable():
    pytest.skip(_reason, allow_module_level=True)

from modcrypt.spark.jvm.native_jar import bring_jar
from modcrypt.spark.jvm.native_parquet import native_sql


@pytest.fixture
def policy_file(ring: Keyring, tmp_path: Path) -> Path:
    path = tmp_path / "lake.policy"
    path.write_text(
        f'kms = "{uri_of(ring)}"\nfooter_key = "kf"\naad_prefix = "lake/{{name}}"\n'
        'column_keys = { kc2 = ["name"] }\n'
    )
    return path


@pytest.fixture
def tables(spark: Any, policy_file: Path, tmp_path: Path) -> Iterator[SqlTables]:
    session = spark.newSession()
    bring_jar(session)
    tables = SqlTables(session, mc.Policy.load(policy_file), tmp_path)
    yield tables
    drop_tables(tables)


def test_tables_are_filled_overwritten_and_read_through_views(tables: SqlTables) -> None:
    change_tables(tables)


def test_queries_are_planned_as_of_any_parquet_table(tables: SqlTables) -> None:
    plan_queries(tables)


@pytest.fixture(scope="module")
def hive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elsewhere]:
    """Start a Spark whose catalog is a Hive metastore."""
    from tests.support.spark.hive_metastore import hive_metastore

    folder = tmp_path_factory.mktemp("hive")
    with hive_metastore(folder) as uri:
        settings = {
            "spark.sql.catalogImplementation": "hive",
            "spark.hadoop.hive.metastore.uris": uri,
        }
        with closing(Elsewhere("local[2]", folder, settings)) as running:
            yield running


_HIVE = """
import sys
from pathlib import Path
import modcrypt as mc
from modcrypt.spark.jvm.native_jar import bring_jar
from tests.support.spark.sql_tables import *

bring_jar(spark)
folder, policy = Path(sys.argv[2]), mc.Policy.load(sys.argv[1])
spark.sql(f"CREATE DATABASE lake LOCATION '{folder / 'lake'}'")
spark.sql("USE lake")
tables = SqlTables(spark, policy, folder)
change_tables(tables)
plan_queries(tables)
change_hive_tables(tables)
another = spark.newSession()
assert another.sql("SELECT count(name) FROM lake.h").first()[0] == ROWS
"""


@pytest.mark.slow
def test_tables_of_a_hive_metastore(hive: Elsewhere, policy_file: Path, tmp_path: Path) -> None:
    hive.run(_HIVE, policy_file, tmp_path)


def test_the_options_are_escaped_for_sql(spark: Any) -> None:
    policy = mc.Policy(footer_key="k'f\\ü", kms="file:/lake.keyring")
    session = spark.newSession()
    session.sql(f"CREATE TABLE escaped (id int) USING parquet OPTIONS {native_sql(policy)}")
    try:
        created = session.sql("DESCRIBE FORMATTED escaped").where("col_name = 'Storage Properties'")
        assert '"footer_key": "k\'f\\\\\\u00fc"' in created.first().data_type
    finally:
        session.sql("DROP TABLE escaped")

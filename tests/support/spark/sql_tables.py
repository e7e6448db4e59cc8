"""Statements of SQL on tables that carry a policy, for the session catalog and for Hive's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import modcrypt as mc
from modcrypt.spark.jvm.native_parquet import native_sql

ROWS = 90


class SqlTables:
    """A session in which tables are made and checked."""

    def __init__(self, session: Any, policy: mc.Policy, folder: Path) -> None:
        self.session, self.policy = session, policy
        self.options = native_sql(policy)
        self.folder = folder
        session.range(ROWS).selectExpr(
            "id", "concat('name-', id) as name", "id % 3 as part"
        ).repartition(1).createOrReplaceTempView("source")

    def run(self, text: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.session.sql(text).collect()]

    def plan(self, text: str) -> str:
        """Return the final plan of a query that has run."""
        frame = self.session.sql(text)
        frame.collect()
        plan = str(frame._jdf.queryExecution().executedPlan().toString())
        return plan.partition("== Initial Plan ==")[0]

    def refuse(self, statement: str, message: str) -> None:
        """Check that a statement fails, for a reason."""
        with pytest.raises(Exception, match=message):
            self.run(statement)

    def check(self, table: str, rows: int) -> None:
        """Check that all of the table's files are encrypted by the policy, and hold its rows."""
        described = self.session.sql(f"DESCRIBE FORMATTED {table}").collect()
        (location,) = (row.data_type for row in described if row.col_name == "Location")
        folder = Path(location.removeprefix("file:"))
        files = [path for path in folder.rglob("*") if path.is_file() and path.name[0] not in "._"]
        decryption = mc.KeyTools.from_policy(self.policy).decryption(self.policy)
        found = [mc.read_table(path, decryption, columns=["id", "name"]) for path in files]
        assert sum(part.num_rows for part in found) == rows
        assert self.run(f"SELECT count(*), count(name) FROM {table}") == [(rows, rows)]


def change_tables(tables: SqlTables) -> None:
    """Create, fill and overwrite a partitioned table, and read it through a view."""
    tables.run(
        f"CREATE TABLE t USING parquet OPTIONS {tables.options} PARTITIONED BY (part) "
        "AS SELECT * FROM source WHERE id < 60"
    )
    tables.check("t", 60)
    tables.run("INSERT INTO t SELECT * FROM source WHERE id >= 60")
    tables.check("t", ROWS)
    tables.run("INSERT OVERWRITE t PARTITION (part = 1) SELECT id, name FROM source WHERE id < 10")
    tables.check("t", 70)
    tables.session.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    tables.run("INSERT OVERWRITE t SELECT * FROM source WHERE part = 2 AND id < 30")
    tables.check("t", 50)
    tables.run("ALTER TABLE t ADD COLUMNS (later int)")
    tables.run("ANALYZE TABLE t COMPUTE STATISTICS FOR COLUMNS id, name")
    tables.run("CREATE VIEW v AS SELECT id, name FROM t WHERE part = 1")
    assert tables.run("SELECT count(*), max(name) FROM v") == [(10, "name-9")]
    tables.run("CREATE TABLE alike LIKE t")
    tables.run("INSERT INTO alike SELECT * FROM t")
    tables.check("alike", 50)
    tables.run("TRUNCATE TABLE alike")
    tables.check("alike", 0)


def plan_queries(tables: SqlTables) -> None:
    """Check that Spark prunes columns, pushes filters, counts without columns, and uses buckets."""
    tables.run(
        f"CREATE TABLE b USING parquet OPTIONS {tables.options} "
        "CLUSTERED BY (id) SORTED BY (id) INTO 2 BUCKETS AS SELECT * FROM source"
    )
    tables.check("b", ROWS)
    counting = tables.plan("SELECT count(*) FROM b")
    assert "AdaptiveSparkPlan isFinalPlan=true" in counting
    assert "ReadSchema: struct<>" in counting
    pruned = tables.plan("SELECT name FROM b WHERE id > 80")
    assert "ReadSchema: struct<id:bigint,name:string>" in pruned
    assert "PushedFilters: [IsNotNull(id), GreaterThan(id,80)]" in pruned
    tables.session.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    joined = tables.plan("SELECT x.name FROM b x JOIN b y ON x.id = y.id")
    assert joined.count("Bucketed: true") == 2
    assert "Exchange" not in joined
    skipping = tables.session.sql("SELECT id FROM b WHERE id > 1000")
    assert skipping.collect() == []
    metrics = skipping._jdf.queryExecution().executedPlan().collectLeaves().head().metrics()
    assert metrics.apply("numOutputRows").value() == 0  # row groups were skipped by statistics


def drop_tables(tables: SqlTables) -> None:
    tables.run("DROP VIEW IF EXISTS v")
    for name in ("t", "alike", "b"):
        tables.run(f"DROP TABLE IF EXISTS {name}")


_SERDE = """ROW FORMAT SERDE 'org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe'
WITH SERDEPROPERTIES {options}
STORED AS INPUTFORMAT 'org.apache.hadoop.hive.ql.io.parquet.MapredParquetInputFormat'
OUTPUTFORMAT 'org.apache.hadoop.hive.ql.io.parquet.MapredParquetOutputFormat'"""


def change_hive_tables(tables: SqlTables) -> None:
    """Fill tables of Hive's own format, and refuse what would leave them in plaintext."""
    tables.session.conf.set("hive.exec.dynamic.partition.mode", "nonstrict")
    tables.run(
        "CREATE TABLE h (id bigint, name string) PARTITIONED BY (part bigint) "
        + _SERDE.format(options=tables.options)
    )
    tables.run("INSERT INTO h SELECT * FROM source")
    tables.check("h", ROWS)
    tables.run("CREATE TABLE later STORED AS PARQUET AS SELECT * FROM source")
    tables.run(f"ALTER TABLE later SET SERDEPROPERTIES {tables.options}")
    tables.refuse("SELECT name FROM later", "on plaintext file")
    tables.run("INSERT OVERWRITE later SELECT * FROM source")
    tables.check("later", ROWS)
    lost = f"CREATE TABLE lost STORED AS PARQUET TBLPROPERTIES {tables.options} AS SELECT 1 AS name"
    tables.refuse(lost, "put all options in OPTIONS")
    tables.session.conf.set("spark.sql.hive.convertMetastoreParquet", "false")
    tables.refuse("SELECT name FROM h", "ParquetCryptoRuntimeException")
    tables.refuse("INSERT INTO h SELECT * FROM source", "ParquetCryptoRuntimeException")
    tables.session.conf.set("spark.sql.hive.convertMetastoreParquet", "true")
    tables.check("h", ROWS)

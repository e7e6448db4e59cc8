"""Make spec-vectors/by-writer/iceberg-spark: encrypted tables of stock Spark on a Hive metastore.

    python -m tests.support.spark.spark_vector FOLDER

Keys and ids are fresh each time, so that the bytes differ; the rows do not. Position delete files
are not among them: Iceberg's Java refuses a key for tables of format version 2, and writes only
deletion vectors in version 3. A metastore refuses changes of columns before others.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from tests.support.iceberg.java_judge import write_kms_jar
from tests.support.iceberg.sample_kms import MASTERS
from tests.support.spark.hive_metastore import hive_metastore
from tests.support.spark.iceberg_spark import IcebergSpark

WAREHOUSE = Path("/tmp/modcrypt-spark-vectors")
"""Folder of the tables while Spark writes them, which their locations name."""

_OPTIONS = (
    "'encryption.key-id'='keyA', 'write.delete.mode'='merge-on-read', "
    "'write.update.mode'='merge-on-read', 'write.metadata.previous-versions-max'='1', "
    "'write.distribution-mode'='none'"
)

ORDERS = (
    "CREATE TABLE {t} (id int, country string, price float, at timestamp) USING iceberg "
    f"PARTITIONED BY (country) TBLPROPERTIES ('format-version'='3', {_OPTIONS})",
    "INSERT INTO {t} SELECT /*+ COALESCE(1) */ id, if(id % 2 = 0, 'NO', 'SE'), id * 1.5, "
    "timestamp '2026-01-01 00:00:00 UTC' FROM range(0, 20)",
    "DELETE FROM {t} WHERE id IN (5, 7)",
    "ALTER TABLE {t} ALTER COLUMN id TYPE bigint",
    "ALTER TABLE {t} RENAME COLUMN price TO amount",
    "ALTER TABLE {t} ADD COLUMN note string",
    "ALTER TABLE {t} ADD PARTITION FIELD bucket(2, id)",
    "INSERT INTO {t} VALUES (5000000000, 'DK', 2.5, timestamp '2026-07-14 12:30:00 UTC', 'late'), "
    "(30, null, null, null, null)",
    "CALL hive.system.rewrite_manifests('shop.orders')",
    "UPDATE {t} SET note = 'changed' WHERE id IN (4, 9)",
    "ALTER TABLE {t} DROP PARTITION FIELD country",
    "DELETE FROM {t} WHERE id = 30",
    "INSERT INTO {t} VALUES (40, 'NO', 1.0, null, null)",
    "CALL hive.system.expire_snapshots(table => 'shop.orders', retain_last => 1, "
    "older_than => timestamp '2100-01-01 00:00:00')",
)
"""Partitions of three specs, a changed schema, and deletion vectors that replace others."""

PEOPLE = (
    "CREATE TABLE {t} (id bigint, name string, tags array<string>, counts map<string, int>, "
    "place struct<street: string, number: int>, salary decimal(9, 2), born date) USING iceberg "
    f"TBLPROPERTIES ('format-version'='3', {_OPTIONS}, 'write.format.default'='parquet')",
    "INSERT INTO {t} VALUES (1, 'Ada', array('a', null), map('x', 1), "
    "named_struct('street', 'Main', 'number', 7), 12.50, date '1815-12-10'), "
    "(2, null, null, null, null, null, null), (3, 'Grace', array(), map(), null, 0, null)",
    "ALTER TABLE {t} SET TBLPROPERTIES ('write.format.default'='avro')",
    "INSERT INTO {t} VALUES (4, 'Alan', array('b'), map('y', null), "
    "named_struct('street', null, 'number', 1), -1, date '1912-06-23'), "
    "(5, 'Edsger', null, null, null, null, null)",
    "DELETE FROM {t} WHERE id IN (3, 5)",
    "ALTER TABLE {t} DROP COLUMN born",
    "ALTER TABLE {t} RENAME COLUMN name TO title",
    "ALTER TABLE {t} ADD COLUMN born timestamp",
    "INSERT INTO {t} VALUES (6, 'Kay', null, null, named_struct('street', 's', 'number', 2), 1, "
    "timestamp '1940-05-17 08:00:00 UTC')",
)
"""Nested types, Parquet and Avro, deletion vectors, and a column dropped and added again."""

TABLES = {"orders": ORDERS, "people": PEOPLE}


def main(out: Path) -> None:
    """Write the tables, and the rows as Spark reads them, to a folder that is not there yet."""
    WAREHOUSE.mkdir()
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            hive_metastore(Path(folder)) as metastore,
            closing(start_spark(Path(folder), metastore)) as spark,
        ):
            spark.sql("CREATE NAMESPACE hive.shop")
            rows = {name: write(spark, name, out) for name in TABLES}
        (out / "rows.json").write_text(json.dumps(rows, indent=1) + "\n")
    finally:
        shutil.rmtree(WAREHOUSE)


def start_spark(folder: Path, metastore: str) -> IcebergSpark:
    """Start Spark with a catalog whose master keys are those of `SampleKms`."""
    write_kms_jar(folder / "kms.jar")
    masters = {f"master.{id_}": key.hex() for id_, key in MASTERS.items()}
    catalogs = {"hive": {"encryption.kms-impl": "Kms", **masters}}
    return IcebergSpark(
        folder, metastore, catalogs, jars=[folder / "kms.jar"], variables={"TZ": "UTC"}
    )


def write(spark: IcebergSpark, name: str, out: Path) -> list[dict[str, object]]:
    """Have Spark write a table; keep its files, and return its rows."""
    table, location = f"hive.shop.{name}", WAREHOUSE / name
    create, *others = TABLES[name]
    spark.sql(f"{create.format(t=table)} LOCATION '{location.as_uri()}'", *(
        query.format(t=table) for query in others
    ))  # fmt: skip
    named = spark.sql(
        f"SELECT file_path AS path FROM {table}.all_files UNION SELECT path FROM "
        f"{table}.all_manifests UNION SELECT manifest_list AS path FROM {table}.snapshots UNION "
        f"SELECT max(file) AS path FROM {table}.metadata_log_entries"
    )
    for row in named:
        inside = Path(row["path"].removeprefix("file:")).relative_to(location)
        target = out / name / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(location / inside, target)
    return spark.sql(f"SELECT * FROM {table} ORDER BY id")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

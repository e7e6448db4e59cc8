"""The catalogs that tables are judged in, and the stock engine that shares each table."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

from modcrypt.iceberg import IcebergTable, create_table
from tests.support.iceberg.hive_catalog import HiveTable
from tests.support.iceberg.java_judge import Judge
from tests.support.iceberg.local_tables import FolderTable, SqlTable
from tests.support.iceberg.rest_catalog import RestTable, rest_server
from tests.support.iceberg.sample_kms import MASTERS, SampleKms
from tests.support.iceberg.table_races import NamedTable
from tests.support.spark.hive_metastore import hive_metastore
from tests.support.spark.iceberg_spark import IcebergSpark
from tests.support.spark.spark_vector import start_spark
from tools.lake_judge.model import Row
from tools.lake_judge.operations import (
    JAVA,
    SCHEMA,
    SPARK,
    SPARK_SCHEMA,
    JavaTable,
    Operation,
    SparkTable,
)

BY_COUNTRY = PartitionSpec(
    PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="country")
)
PROPERTIES = {"write.delete.mode": "merge-on-read", "commit.manifest.min-count-to-merge": "4"}


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A table under judgement.

    Attributes:
        named: How modcrypt, in any process, finds it.
        stock: The table as the stock engine has it.
        operations: What the stock engine can do to it.
        read: Reads all rows of main or of a branch by the stock engine, each with its `_row_id`;
            None for modcrypt alone.
    """

    named: NamedTable
    stock: Any = None
    operations: Sequence[Operation] = ()
    read: Callable[[str | None], list[Row]] | None = None

    def load(self, kms: Any = None) -> IcebergTable:
        """Return the current version, of either master key."""
        return self.named.load(kms, master_key_ids=list(MASTERS))


MakeSubject: TypeAlias = Callable[[], Subject]


@contextmanager
def open_catalog(kind: str, folder: Path) -> Iterator[MakeSubject]:
    """Start what a catalog needs; yield a function that makes a new table in it."""
    with ExitStack() as stack:
        yield _MAKERS[kind](folder, stack)


def _hive(folder: Path, stack: ExitStack) -> MakeSubject:
    """Tables that stock Spark creates and encrypts."""
    uri = stack.enter_context(hive_metastore(folder))
    spark = stack.enter_context(closing(start_spark(_make(folder / "spark"), uri)))
    spark.sql("CREATE NAMESPACE hive.judge")

    def make() -> Subject:
        table = SparkTable(spark, "hive", f"judge.t{uuid.uuid4().hex}")
        properties = {"format-version": "3", "encryption.key-id": "keyA", **PROPERTIES}
        table.sql(
            "CREATE TABLE {t} (id bigint, country string, price double) USING iceberg "
            "PARTITIONED BY (country) TBLPROPERTIES ("
            + ", ".join(f"'{name}'='{value}'" for name, value in properties.items()) + ")"
        )  # fmt: skip
        named = HiveTable(uri, table.name)
        return Subject(named=named, stock=table, operations=SPARK, read=table.read)

    return make


def _rest(folder: Path, stack: ExitStack) -> MakeSubject:
    """Tables whose schema stock Spark changes, and whose rows stock Java reads."""
    uri = stack.enter_context(rest_server(folder))
    java = stack.enter_context(Judge(MASTERS, folder / "judge.log"))
    catalogs = {"rest": {"type": "rest", "uri": uri}}
    running = IcebergSpark(_make(folder / "spark"), uri, catalogs)
    spark = stack.enter_context(closing(running))

    def make() -> Subject:
        named = RestTable.make(uri, SCHEMA, partition_spec=BY_COUNTRY, properties=PROPERTIES)
        table = SparkTable(spark, "rest", named.name)
        read = JavaTable(java, named).read
        return Subject(named=named, stock=table, operations=SPARK_SCHEMA, read=read)

    return make


def _sql(folder: Path, stack: ExitStack) -> MakeSubject:
    """Tables that stock Java reads."""
    java = stack.enter_context(Judge(MASTERS, folder / "judge.log"))
    uri = f"sqlite:///{folder}/catalog.db"

    def make() -> Subject:
        named = SqlTable.make(uri, SCHEMA, partition_spec=BY_COUNTRY, properties=PROPERTIES)
        return Subject(named=named, read=JavaTable(java, named).read)

    return make


def _folder(folder: Path, stack: ExitStack) -> MakeSubject:
    """Tables that stock Java reads and changes."""
    java = stack.enter_context(Judge(MASTERS, folder / "judge.log"))

    def make() -> Subject:
        named = make_folder_subject(folder / uuid.uuid4().hex)
        table = JavaTable(java, named)
        return Subject(named=named, stock=table, operations=JAVA, read=table.read)

    return make


def make_folder_subject(folder: Path) -> FolderTable:
    """Make a table in a folder."""
    create_table(
        folder, SCHEMA, SampleKms(), master_key_id="keyA", partition_spec=BY_COUNTRY,
        properties=PROPERTIES,
    )  # fmt: skip
    return FolderTable(str(folder))


def _make(folder: Path) -> Path:
    folder.mkdir()
    return folder


_MAKERS = {"hive": _hive, "rest": _rest, "sql": _sql, "folder": _folder}
CATALOGS = tuple(_MAKERS)
WITH_SPARK = ("hive", "rest")

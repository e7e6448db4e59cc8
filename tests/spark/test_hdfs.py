"""Tables in Hadoop's own distributed file system: the source, Spark's own Parquet, and a job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

import modcrypt as mc
from modcrypt.errors import FormatError
from modcrypt.iceberg import create_table, load_table
from modcrypt.io.stores import locate
from modcrypt.kms.keyring.keyring import Keyring
from tests.support.java.jvm import why_unavailable

if _reason := why_unavailable():
    pytest.skip(_reason, allow_module_level=True)

from modcrypt.kms.settings import Settings
from modcrypt.spark import encrypt_table, native, verify_table
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.java.hdfs import hdfs_cluster
from tests.support.spark.native import uri_of
from tests.support.spark.processes import Elsewhere

pytest.importorskip("hdfs_native.fsspec")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with hdfs_cluster(tmp_path_factory.mktemp("hdfs")) as url:
        yield url


@pytest.fixture
def policy(ring: Keyring, tmp_path: Path) -> Path:
    path = tmp_path / "lake.policy"
    path.write_text(
        f'kms = "{uri_of(ring)}"\nfooter_key = "kf"\naad_prefix = "t/{{path}}"\n'
        'store_aad_prefix = false\ncolumn_keys = { kc2 = ["name"] }\n'
    )
    return path


def frame_of(spark: Any, start: int) -> Any:
    columns = ("id", "concat('name-', id) as name", "id % 2 as part")
    return spark.range(start, start + 20).selectExpr(*columns).repartition(2)


def names_in(url: str) -> list[str]:
    """Return the paths of all files below a folder, relative to it."""
    store, path = locate(url, None)
    return sorted(found.removeprefix(f"{path}/") for found in store.find(path))


def ids_in(url: str, policy: Path) -> list[int]:
    """Return the ids that modcrypt reads of a table without Spark."""
    settings = Settings(policy=mc.Policy.load(policy))
    ids: list[int] = mc.read_table(url, settings.under(url))["id"].to_pylist()
    return sorted(ids)


def test_the_source_writes_and_reads(spark: Any, hdfs: str, policy: Path) -> None:
    table = f"{hdfs}/lake/source"
    options = {"policy": str(policy)}
    for start in (0, 20):
        write = frame_of(spark, start).write.format("modcrypt").mode("append").options(**options)
        write.option("partitionBy", "part").save(table)
    assert ids_in(table, policy) == list(range(40))
    found = spark.read.format("modcrypt").options(**options).load(table)
    assert found.where("part = 1").agg({"id": "sum"}).first()[0] == sum(range(1, 40, 2))
    write = frame_of(spark, 60).write.format("modcrypt").mode("overwrite").options(**options)
    write.option("partitionBy", "part").save(table)
    assert ids_in(table, policy) == list(range(60, 80))
    assert all(name.startswith("part=") for name in names_in(table))  # no leftovers


def test_sparks_own_parquet_writes_and_reads(spark: Any, hdfs: str, policy: Path) -> None:
    table, session = f"{hdfs}/lake/native", spark.newSession()
    native(session, policy=policy, root=table)
    frame_of(session, 0).write.partitionBy("part").parquet(table)
    assert session.read.parquet(table).where("name = 'name-7'").first()["id"] == 7
    assert ids_in(table, policy) == list(range(20))


def test_a_job_encrypts_a_table_and_another_verifies_it(
    spark: Any, hdfs: str, policy: Path
) -> None:
    plain, table = f"{hdfs}/lake/plain", f"{hdfs}/lake/job"
    frame_of(spark, 0).write.partitionBy("part").parquet(plain)
    settings = Settings(policy=mc.Policy.load(policy))
    report = encrypt_table(spark, plain, table, settings).collect()
    assert {(row.result, row.message) for row in report} == {("encrypted", "")}
    assert all(row.destination.startswith(table) for row in report)
    again = encrypt_table(spark, plain, table, settings).collect()
    assert {row.result for row in again} == {"current"}
    verified = verify_table(spark, table, settings).collect()
    assert {row.result for row in verified} == {"authentic"}
    assert ids_in(table, policy) == list(range(20))


def test_files_appear_complete_and_are_replaced_on_request_only(hdfs: str) -> None:
    key = bytes(range(16))
    path = f"{hdfs}/lake/one/x"
    encryption = mc.FileEncryptionProperties(footer_key=key)
    decryption = mc.FileDecryptionProperties(footer_key=key)
    for number in (1, 2):
        mc.write_table(pa.table({"a": [number]}), path, encryption, overwrite=True)
        assert mc.read_table(path, decryption)["a"].to_pylist() == [number]
    with pytest.raises(FileExistsError):
        mc.write_table(pa.table({"a": [3]}), path, encryption, overwrite=False)
    with pytest.raises(FileNotFoundError, match=f"{hdfs}/lake/nowhere") as caught:
        mc.read_table(f"{hdfs}/lake/nowhere", decryption)
    assert "java" not in str(caught.value)
    assert names_in(f"{hdfs}/lake/one") == ["x"]


# --- mount tables --------------------------------------------------------------------------------

MOUNTS = """\
<configuration>
  <property>
    <name>fs.viewfs.mounttable.everything.link./lake</name>
    <value>{hdfs}/mounted</value>
  </property>
  <property>
    <name>fs.viewfs.mounttable.everything.linkFallback</name>
    <value>{hdfs}/</value>
  </property>
</configuration>
"""

THROUGH_VIEWFS = """
import sys
import modcrypt as mc
import modcrypt.spark
policy, table = sys.argv[1:]
rows = spark.range(20).selectExpr("id", "concat('name-', id) AS name")
rows.write.format("modcrypt").mode("append").option("policy", policy).save(table)

modcrypt.spark.native(spark, policy=policy, root=table)
assert spark.read.parquet(table).agg({"id": "sum"}).first()[0] == 190
rows.write.mode("append").parquet(table)
assert spark.read.format("modcrypt").option("policy", policy).load(table).count() == 40

settings = modcrypt.spark.Settings(policy=mc.Policy.load(policy))
report = modcrypt.spark.verify_table(spark, table, settings).collect()
assert {row.result for row in report} == {"authentic"}, report
"""


def test_viewfs_is_resolved_by_the_mount_table(hdfs: str, policy: Path, tmp_path: Path) -> None:
    """Python and the JVM find the mount table in Hadoop's configuration."""
    (tmp_path / "core-site.xml").write_text(MOUNTS.format(hdfs=hdfs))
    variables = {"HADOOP_CONF_DIR": str(tmp_path)}
    with closing(Elsewhere("local[2]", tmp_path, variables=variables)) as elsewhere:
        elsewhere.run(THROUGH_VIEWFS, policy, "viewfs://everything/lake/table")
    assert ids_in(f"{hdfs}/mounted/table", policy) == sorted([*range(20), *range(20)])


def test_a_catalog_names_tables_of_the_configured_cluster_alone(
    hdfs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"{hdfs}/shop")
    catalog.create_namespace("shop")
    rows = pa.table({"v": [1, 2]})
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    site = "<configuration><property><name>fs.defaultFS</name><value>{}</value></property>"
    (tmp_path / "core-site.xml").write_text(site.format(hdfs) + "</configuration>")
    kms, name = SampleKms(), "shop.orders"
    made = create_table(
        None, rows.schema, kms, master_key_id="keyA", catalog=catalog, identifier=name
    )
    made.append(rows)
    assert load_table(catalog, name, kms).scan()["v"].to_pylist() == [1, 2]
    (tmp_path / "core-site.xml").write_text(site.format("hdfs://elsewhere") + "</configuration>")
    with pytest.raises(FormatError, match="clusters of Hadoop's configuration"):
        load_table(catalog, name, kms)
    catalog.close()

"""Spark's own Parquet encryption and our KeyTools, by one key service: folders go both ways.

Spark has PropertiesDrivenCryptoFactory and no KmsClient; that of the tests comes in a jar. Its
master keys are in a static map of the JVM: Spark's configuration holds none.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from tests.support.algorithms import GCM
from tests.support.in_memory import decrypt_with
from tests.support.java.jvm import end_spark_jvm, stop_spark
from tests.support.java.key_tools_java import JavaKeyTools, MemoryKms, format_settings, properties
from tests.support.java.parquet_java import ParquetJava
from tests.support.mask_hash import HASH_KEY, hash_value
from tests.support.pairwise import Case, case_name, pairwise
from tests.support.parquet_parser import footer_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


MASTERS = {
    "kf": b"footer master 16",
    "kc1": b"column master 1!",
    "kc2": b"column master 2, of 32 bytes !!!",
}
OURS = {"kc1": ["id", "address"], "kc2": ["name"]}
THEIRS = "kc1:id,address.zip,address.city;kc2:name"
NAMES = sorted(MASTERS)


def table(rows: int = 300) -> pa.Table:
    numbers = range(rows)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "name": [None if n % 7 == 0 else f"name-{n % 11}" for n in numbers],
            "score": [n * 1.5 for n in numbers],
            "address": [{"zip": f"{n:05}", "city": None if n % 5 == 0 else "Ulm"} for n in numbers],
            "country": [("NO", "DE", "AT")[n % 3] for n in numbers],
        }
    )


class Spark:
    """A Spark session with the key service in it."""

    def __init__(self, session: Any) -> None:  # of py4j's objects no types are known
        self.session = session
        loader = session._jvm.java.lang.Thread.currentThread().getContextClassLoader()
        self._kms = loader.loadClass("MemoryKms").newInstance()

    def knows(self, kms: MemoryKms) -> None:
        """Replace Spark's master keys by those of the Python service."""
        self._kms.reset()
        for name, versions in kms.versions.items():
            for version in versions:
                self._kms.put(name, version)

    def calls(self, operation: str) -> list[str]:
        """Take out which master keys were asked for, for one operation; forget the others."""
        calls = [call.split() for call in self._kms.calls().splitlines()]
        return sorted(words[1] for words in calls if words[0] == operation)

    def write(self, plain: Path, folder: Path, files: int, **settings: object) -> None:
        """Write the rows of a plaintext file anew, encrypted and partitioned."""
        frame = self.session.read.parquet(str(plain)).repartition(files)
        frame.write.options(**format_settings(settings)).partitionBy("country").parquet(str(folder))

    def read(self, folder: Path) -> DataFrame:
        frame: DataFrame = self.session.read.parquet(str(folder))
        return frame

    def rows(self, folder: Path) -> list[dict[str, Any]]:
        columns = table(0).column_names
        rows = self.read(folder).select(columns).collect()
        return [row.asDict(recursive=True) for row in sorted(rows, key=lambda row: row.id)]


@pytest.fixture(scope="module")
def running(java: ParquetJava, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    """Start Spark, which answers to nobody else."""
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    jar = JavaKeyTools.of(java).jar(folder / "kms.jar")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.jars": str(jar),
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder),
        "spark.sql.shuffle.partitions": "2",
        "spark.log.level": "OFF",
        **{f"spark.hadoop.{name}": value for name, value in properties().items()},
    }
    end_spark_jvm()  # of a command that a test ran in this process
    builder: Any = SparkSession.builder
    session = builder.master("local[2]").appName("key tools").config(map=settings).getOrCreate()
    try:
        yield Spark(session)
    finally:
        stop_spark(session)


@pytest.fixture
def kms() -> MemoryKms:
    """Return a new key service."""
    return MemoryKms.of(MASTERS)


@pytest.fixture
def spark(running: Spark, kms: MemoryKms) -> Spark:
    """Return Spark with the same master keys."""
    running.knows(kms)
    return running


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the rows in plaintext."""
    path = tmp_path_factory.mktemp("plain") / "plain.parquet"
    pq.write_table(table(), path)
    return path


MATRIX: dict[str, Any] = {
    "wrapping": ("double", "single"),
    "material": ("internal", "external"),
    "footer": ("encrypted", "plaintext"),
}
CASES = pairwise(**MATRIX)


def spark_settings(case: Mapping[str, Any]) -> dict[str, object]:
    return {
        "footer_key": "kf",
        "column_keys": THEIRS,
        "complete_columns": True,
        "plaintext_footer": case["footer"] == "plaintext",
        "double_wrapping": case["wrapping"] == "double",
        "key_material_store_internally": case["material"] == "internal",
    }


def policy_of(case: Mapping[str, Any], **more: Any) -> mc.Policy:
    return mc.Policy(
        footer_key="kf",
        column_keys=OURS,
        plaintext_footer=case["footer"] == "plaintext",
        double_wrapping=case["wrapping"] == "double",
        internal_key_material=case["material"] == "internal",
        **more,
    )


def check_ours(folder: Path, kms: MemoryKms) -> None:
    found = mc.read_table(folder, mc.KeyTools(kms).decryption()).sort_by("id")
    assert found.select(table(0).column_names).to_pylist() == table().to_pylist()


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_we_read_the_folder_that_spark_wrote(
    spark: Spark, kms: MemoryKms, plain: Path, tmp_path: Path, case: Case
) -> None:
    spark.write(plain, tmp_path / "lake", files=2, **spark_settings(case))
    files = list((tmp_path / "lake").rglob("part-*.parquet"))
    beside = list((tmp_path / "lake").rglob("_KEY_MATERIAL_FOR_part-*.json"))
    assert len(files) == 6
    assert len(beside) == (6 if case["material"] == "external" else 0)

    check_ours(tmp_path / "lake", kms)

    expected = NAMES if case["wrapping"] == "double" else ["kc1"] * 18 + ["kc2"] * 6 + ["kf"] * 6
    assert sorted(name for _, name in kms.calls) == expected
    assert spark.calls("wrap") == expected


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_spark_reads_the_folder_that_we_wrote(
    spark: Spark, kms: MemoryKms, tmp_path: Path, case: Case
) -> None:
    policy = policy_of(case, aad_prefix="lake/{name}")
    encryption = mc.KeyTools(kms).encryption(policy)
    mc.write_dataset(table(), tmp_path / "lake", encryption, partitioning=["country"])
    assert spark.rows(tmp_path / "lake") == table().to_pylist()
    if case["wrapping"] == "double":
        assert sorted(kms.calls) == [("wrap", name) for name in NAMES]
        assert spark.calls("unwrap") == NAMES
    some = spark.read(tmp_path / "lake").where("name = 'name-3' and country = 'NO'")
    expected = [n for n in range(300) if n % 11 == 3 and n % 7 and n % 3 == 0]
    assert sorted(row.id for row in some.select("id").collect()) == expected


@pytest.mark.parametrize("what", ["mek", "kek", "dek"])
@pytest.mark.parametrize("material", ["internal", "external"])
def test_spark_reads_the_folder_of_its_own_that_we_rotated(
    spark: Spark, kms: MemoryKms, plain: Path, tmp_path: Path, material: str, what: str
) -> None:
    case = {**CASES[0], "material": material}
    spark.write(plain, tmp_path / "lake", files=2, **spark_settings(case))
    kms.rotate()
    rotated = mc.jobs.rotate_keys(tmp_path / "lake", mc.KeyTools(kms), what=what)  # type: ignore[arg-type]  # one of three
    assert [file.result for file in rotated] == ["rotated"] * 6
    kms.destroy_old()
    spark.knows(kms)
    assert spark.rows(tmp_path / "lake") == table().to_pylist()
    check_ours(tmp_path / "lake", kms)


def test_spark_reads_the_folder_of_its_own_that_we_masked(
    spark: Spark, kms: MemoryKms, plain: Path, tmp_path: Path
) -> None:
    """Its schema of the file, with types and columns that are not there any more, must not win."""
    rows = pq.read_table(plain).to_pylist()
    lake = tmp_path / "lake"
    spark.write(
        plain, lake, files=2, footer_key="kf", column_keys="kc1:id,address.zip;kc2:name",
        complete_columns=True, plaintext_footer=False, double_wrapping=True,
        key_material_store_internally=True,
    )  # fmt: skip
    files = sorted(lake.rglob("part-*.parquet"))
    for path in files:
        mc.mask_parquet(
            path, path, mc.KeyTools(kms).decryption(), hashed=["id", "address.zip"],
            null=["score", "address.city"], drop=["name"], hash_key=HASH_KEY,
        )  # fmt: skip
        pairs = footer_of(decrypt_with(path, mc.KeyTools(kms), {"algorithm": GCM})).get(5, [])
        assert b"org.apache.spark.sql.parquet.row.metadata" not in [pair[1] for pair in pairs]
    for beside in lake.rglob("*.crc"):
        beside.unlink()
    frame = spark.read(lake)
    assert {field.name: field.dataType.simpleString() for field in frame.schema} == {
        "id": "string",
        "score": "double",
        "address": "struct<zip:string,city:string>",
        "country": "string",
    }
    found = {row.id: row.asDict(recursive=True) for row in frame.collect()}
    assert len(found) == len(rows)
    for row in rows:
        zip_code = row["address"]["zip"]
        assert found[hash_value(row["id"])] == {
            "id": hash_value(row["id"]),
            "score": None,
            "address": {"zip": hash_value(zip_code), "city": None},
            "country": row["country"],
        }
    wanted = hash_value(7)
    assert [row.id for row in frame.where(f"id = '{wanted}'").collect()] == [wanted]


def test_no_configuration_of_spark_holds_a_master_key(spark: Spark) -> None:
    text = str(spark.session.sparkContext.getConf().getAll())
    text += str(list(spark.session._jsc.hadoopConfiguration().iterator()))
    assert "MemoryKms" in text
    for key in MASTERS.values():
        for spelt in (key.decode(), key.hex(), b64encode(key).decode()):
            assert spelt not in text

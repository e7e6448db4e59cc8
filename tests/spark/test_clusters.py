"""modcrypt on a standalone cluster of two workers, whose Python has nothing of it installed.

The guide's examples run there as written, and each way of shipping modcrypt is tried.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import modcrypt as mc
from modcrypt.kms.keyring.keyring import Keyring
from modcrypt.kms.settings import Settings
from tests.support.java.jvm import why_unavailable
from tests.support.object_store import KEY, REGION, SECRET, ObjectStore
from tests.support.paths import ROOT
from tests.support.tables import small_table, write_plain

if _reason := why_unavailable():
    pytest.skip(_reason, allow_module_level=True)

from modcrypt.spark.jvm.native_jar import spark_repository
from modcrypt.spark.shipping import spark_package
from tests.support.java.central_jars import ONLY_CENTRAL
from tests.support.java.hdfs import hadoop_version
from tests.support.spark.native import uri_of
from tests.support.spark.processes import Elsewhere
from tests.support.spark.standalone import BARE_PYTHON, Standalone, standalone_cluster

GUIDE = (ROOT / "docs/how-to/spark.md").read_text()
DRIVER = {"PYSPARK_DRIVER_PYTHON": sys.executable}


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone_cluster(tmp_path_factory.mktemp("standalone")) as running:
        yield running


@pytest.fixture(scope="module")
def deps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("deps") / "deps.zip"
    spark_package(path)
    return path


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the settings with which Spark takes our jar from a Maven repository."""
    folder = tmp_path_factory.mktemp("maven")
    coordinates = spark_repository(folder / "repository")
    return {
        "spark.jars.packages": coordinates,
        "spark.jars.repositories": (folder / "repository").as_uri(),
        "spark.jars.ivy": str(folder / "ivy"),
    }


@pytest.fixture
def policy(ring: Keyring, tmp_path: Path) -> Path:
    path = tmp_path / "lake.policy"
    path.write_text(f'kms = "{uri_of(ring)}"\nfooter_key = "kf"\naad_prefix = "t/{{name}}"\n')
    return path


def archive(deps: Path) -> dict[str, str]:
    """Return the settings with which executors unpack the archive."""
    return {"spark.archives": f"{deps}#deps", "spark.executorEnv.PYTHONPATH": "deps"}


WHERE = """
def places(batches):
    import modcrypt, pyarrow
    yield pyarrow.record_batch({"modcrypt": [modcrypt.__file__], "pyarrow": [pyarrow.__file__]})

found = spark.range(2).repartition(2).mapInArrow(places, "modcrypt string, pyarrow string")
for row in found.collect():
    print("executor", row.modcrypt, row.pyarrow)
"""


def test_the_guide_runs_as_written(standalone: Standalone, deps: Path, tmp_path: Path) -> None:
    """Only the master differs; the executors' Python is bare, and gets all from the archive."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    assert len(blocks) == 6
    script = "\n".join(blocks)
    assert script.count('.master("local[2]")') == 1
    script = script.replace('.master("local[2]")', f'.master("{standalone.master}")')
    (tmp_path / "guide.py").write_text(
        f"import os; os.chdir({str(tmp_path)!r})\n{script}\n{WHERE}\nspark.stop()\n"
    )
    done = standalone.submit(
        "spark-submit", tmp_path / "guide.py",
        settings=archive(deps), variables=DRIVER | {"PYSPARK_PYTHON": BARE_PYTHON},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    places = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("executor")]
    assert len(places) == 2
    assert all("/deps/" in place for row in places for place in row)


SHIPPED = f"""
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
{WHERE}
import modcrypt, modcrypt.spark
folder, policy = sys.argv[1:]
print("driver", modcrypt.__file__)
people = spark.createDataFrame([("Ada", "123-45"), ("Grace", "678-90")], "name string, ssn string")
written = people.write.format("modcrypt").mode("append").option("policy", policy)
written.save(folder + "/source")
modcrypt.spark.native(spark, policy=policy)
print("jars", spark.sparkContext._jsc.sc().listJars().size())
assert spark.read.parquet(folder + "/source").count() == 2
people.write.parquet(folder + "/native")
modcrypt.spark.register_sql(spark, policy=policy)
for name in ("source", "native"):
    verified = spark.sql(f"CALL modcrypt.verify('{{folder}}/{{name}}')").collect()
    assert {{row.result for row in verified}} == {{"authentic"}}
spark.stop()
"""


def test_a_zip_of_modcrypt_alone_and_a_jar_of_a_repository(
    standalone: Standalone, repository: dict[str, str], policy: Path, tmp_path: Path
) -> None:
    """Executors have the dependencies; modcrypt itself comes from `--py-files`."""
    spark_package(tmp_path / "alone.zip", alone=True)
    (tmp_path / "job.py").write_text(SHIPPED)
    done = standalone.submit(
        "spark-submit", "--py-files", tmp_path / "alone.zip", tmp_path / "job.py", tmp_path, policy,
        settings=repository, variables=DRIVER | {"PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-6000:]
    reported = [line.split() for line in done.stdout.splitlines()]
    places = [row[1] for row in reported if row and row[0] in ("driver", "executor")]
    assert len(places) == 3
    assert all("/alone.zip/modcrypt/" in place for place in places)
    assert ["jars", "1"] in reported  # none is compiled if Spark has one


def test_spark_sql_runs_jobs(
    standalone: Standalone,
    deps: Path,
    repository: dict[str, str],
    policy: Path,
    tmp_path: Path,
) -> None:
    """No program in Python is at work, and a driver whose Python lacks modcrypt says so."""
    (tmp_path / "plain").mkdir()
    write_plain(tmp_path / "plain" / "a.parquet", small_table(20))
    catalog = {
        "spark.sql.catalog.modcrypt": "modcrypt.SqlCatalog",
        "spark.sql.catalog.modcrypt.policy": str(policy),
    }
    encrypt = f"CALL modcrypt.encrypt('{tmp_path}/plain', '{tmp_path}/out')"

    def run(driver: str) -> subprocess.CompletedProcess[str]:
        return standalone.submit(
            "spark-sql", "-e", encrypt, settings=archive(deps) | repository | catalog,
            variables={"PYSPARK_DRIVER_PYTHON": driver, "PYSPARK_PYTHON": BARE_PYTHON},
        )  # fmt: skip

    done = run(BARE_PYTHON)
    assert done.returncode != 0
    assert "name a Python that has it in PYSPARK_DRIVER_PYTHON" in done.stderr
    done = run(sys.executable)
    assert done.returncode == 0, done.stderr[-6000:]
    assert "\tencrypted\tfalse\t" in done.stdout
    assert mc.inspect_parquet(tmp_path / "out" / "a.parquet").encrypted


CONNECTED = """
import sys
import modcrypt.spark
folder, policy = sys.argv[1:]
people = spark.createDataFrame([("Ada", "123-45"), ("Grace", "678-90")], "name string, ssn string")
written = people.write.format("modcrypt").mode("append").option("policy", policy)
written.save(folder + "/source")
modcrypt.spark.native(spark, policy=policy)
assert spark.read.parquet(folder + "/source").count() == 2
people.write.parquet(folder + "/native")
spark.sql(f"CREATE TABLE connected USING parquet OPTIONS {modcrypt.spark.native_sql(policy)} "
          f"LOCATION '{folder}/native'")
assert spark.sql("SELECT name FROM connected WHERE ssn = '123-45'").first()[0] == "Ada"
modcrypt.spark.register_sql(spark, policy=policy)
for name in ("source", "native"):
    verified = spark.sql(f"CALL modcrypt.verify('{folder}/{name}')").collect()
    assert {row.result for row in verified} == {"authentic"}
"""


def test_a_client_of_spark_connect(connect: Elsewhere, policy: Path, tmp_path: Path) -> None:
    """The source, Spark's own Parquet, tables and jobs in SQL, by a server with the jar."""
    connect.run(CONNECTED, tmp_path, policy)


def test_a_thread_needs_an_active_session_to_write(
    spark: Any, policy: Path, tmp_path: Path
) -> None:
    """The guide names the cure, as the message is Spark's own."""
    frame = spark.range(3)

    def write() -> None:
        written = frame.write.format("modcrypt").mode("append").option("policy", str(policy))
        written.save(str(tmp_path / "written"))

    def cured() -> None:
        spark.createDataFrame([(1,)], "ready int")
        write()

    with ThreadPoolExecutor(1) as pool, pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
        pool.submit(write).result()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(cured).result()
    decryption = Settings(policy=mc.Policy.load(policy)).under(str(tmp_path / "written"))
    assert mc.read_table(tmp_path / "written", decryption).num_rows == 3


AWS_SDK = "2.35.4"
PARTS_OF_SDK = ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
S3A = {  # the SDK's parts, because its bundle has 600 MB
    "spark.jars.packages": ",".join(
        [f"org.apache.hadoop:hadoop-aws:{hadoop_version()}"]
        + [f"software.amazon.awssdk:{part}:{AWS_SDK}" for part in PARTS_OF_SDK]
    ),
    "spark.jars.excludes": "software.amazon.awssdk:bundle,org.apache.hadoop:hadoop-client-api,"
    "org.apache.hadoop:hadoop-client-runtime",
    "spark.hadoop.fs.s3a.path.style.access": "true",
    "spark.hadoop.fs.s3a.access.key": KEY,
    "spark.hadoop.fs.s3a.secret.key": SECRET,
    "spark.hadoop.fs.s3a.endpoint.region": REGION,
}

IN_S3 = """
import sys
from pyspark.sql import SparkSession
import modcrypt.spark
spark = SparkSession.builder.getOrCreate()
policy, = sys.argv[1:]
people = spark.createDataFrame([("Ada", "123-45"), ("Grace", "678-90")], "name string, ssn string")
modcrypt.spark.native(spark, policy=policy, root="s3a://lake/people")
people.repartition(2).write.partitionBy("name").parquet("s3a://lake/people")
people.write.mode("overwrite").parquet("s3a://lake/people")
again = spark.read.parquet("s3a://lake/people")
assert again.count() == 2
assert again.where("ssn = '123-45'").first()[0] == "Ada"
spark.stop()
"""


def test_hadoops_own_client_of_s3(
    standalone: Standalone, store: ObjectStore, ring: Keyring, tmp_path: Path
) -> None:
    """Spark's own Parquet by a policy, through s3a; modcrypt reads the files through PyArrow."""
    policy = tmp_path / "lake.policy"
    policy.write_text(f'kms = "{uri_of(ring)}"\nfooter_key = "kf"\naad_prefix = "t/{{path}}"\n')
    (tmp_path / "job.py").write_text(IN_S3)
    (tmp_path / "ivy.xml").write_text(ONLY_CENTRAL)
    store.judge().create_bucket(Bucket="lake")
    settings = S3A | {
        "spark.jars.ivySettings": str(tmp_path / "ivy.xml"),
        "spark.jars.ivy": str(tmp_path / "ivy"), "spark.hadoop.fs.s3a.endpoint": store.endpoint,
    }  # fmt: skip
    done = standalone.submit(
        "spark-submit", tmp_path / "job.py", policy,
        settings=settings, variables=DRIVER | {"PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    properties = Settings(policy=mc.Policy.load(policy)).decryption()
    rows = mc.read_table("lake/people", properties, filesystem=store.arrow())
    assert sorted(rows["name"].to_pylist()) == ["Ada", "Grace"]

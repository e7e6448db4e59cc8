"""Writes and jobs on a cluster that loses executors and workers, repeats tasks, and has two jobs.

No row is lost or written twice, and nothing is left behind.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import modcrypt as mc
from modcrypt.kms.keyring.keyring import Keyring
from tests.support.java.jvm import why_unavailable
from tests.support.tables import small_table, write_plain

if _reason := why_unavailable():
    pytest.skip(_reason, allow_module_level=True)

from modcrypt.kms.settings import Settings
from tests.support.spark.native import uri_of
from tests.support.spark.standalone import Standalone, standalone_cluster

pytestmark = pytest.mark.slow

PYTHON = {"PYSPARK_DRIVER_PYTHON": sys.executable, "PYSPARK_PYTHON": sys.executable}
FILES = 300
ROWS = 2_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Standalone]:
    (tmp_path / "cluster").mkdir()
    with standalone_cluster(tmp_path / "cluster", hosts=("127.0.0.1", "127.0.0.2")) as running:
        yield running


@pytest.fixture
def policy(ring: Keyring, tmp_path: Path) -> Path:
    path = tmp_path / "lake.policy"
    path.write_text(f'kms = "{uri_of(ring)}"\nfooter_key = "kf"\naad_prefix = "t/{{path}}"\n')
    return path


def submit(cluster: Standalone, script: str, *arguments: object, **settings: str) -> str:
    """Run a script on the cluster; return the last line that it prints, after warnings."""
    path = cluster.folder / f"job-{time.monotonic_ns()}.py"
    path.write_text(f"import sys\nfrom pyspark.sql import SparkSession\n{script}")
    names = {name.replace("_", "."): value for name, value in settings.items()}
    done = cluster.submit("spark-submit", path, *arguments, settings=names, variables=PYTHON)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout.rstrip().rpartition("\n")[2]


def read_ids(table: Path, policy: Path) -> list[int]:
    settings = Settings(policy=mc.Policy.load(policy))
    ids: list[int] = mc.read_table(table, settings.under(str(table)))["id"].to_pylist()
    return sorted(ids)


def list_leftovers(table: Path) -> list[str]:
    """Return the names in a table's folder that are not those of its files."""
    return sorted(p.name for p in table.rglob("*") if not p.name.endswith(".parquet"))


WRITE = """
import os, signal, time
from pyspark import TaskContext

policy, folder, fault = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()

def parent_of(process):
    with open(f"/proc/{process}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[1])

def suffer(batches):
    yield from batches
    task = TaskContext.get()
    marks = f"{folder}/ran-{task.partitionId()}"
    number = len([name for name in os.listdir(folder) if f"{folder}/{name}".startswith(marks)])
    open(f"{marks}-{number}", "w").close()
    if task.partitionId() != 1 or number:
        return
    executor = parent_of(os.getppid())
    if fault == "executor":
        os.kill(executor, signal.SIGKILL)
    if fault == "worker":
        os.kill(parent_of(executor), signal.SIGKILL)
    time.sleep(60)  # until it is killed

frame = spark.range(0, 4000, 1, 4)
frame = frame.mapInArrow(suffer, frame.schema)
frame.write.format("modcrypt").mode("append").option("policy", policy).save(f"{folder}/t")
spark.stop()
"""

SPECULATION = {
    "spark_speculation": "true",
    "spark_speculation_interval": "100ms",
    "spark_speculation_quantile": "0.1",
    "spark_speculation_multiplier": "1.1",
    "spark_speculation_minTaskRuntime": "1s",
}


@pytest.mark.parametrize("fault", ["executor", "worker", "speculation"])
def test_a_write(cluster: Standalone, policy: Path, tmp_path: Path, fault: str) -> None:
    """The first attempt of a task takes its executor or worker with it, or never ends."""
    more = SPECULATION if fault == "speculation" else {}
    submit(cluster, WRITE, policy, tmp_path, fault, **more)
    assert (tmp_path / "ran-1-1").exists()  # the second attempt
    assert read_ids(tmp_path / "t", policy) == list(range(4000))
    assert len(list((tmp_path / "t").glob("*.parquet"))) == 4
    assert list_leftovers(tmp_path / "t") == []


TOGETHER = """
from concurrent.futures import ThreadPoolExecutor

policy, folder = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()

def write(start):
    spark.createDataFrame([(1,)], "ready int")  # makes the session active in this thread
    frame = spark.range(start, start + 1000, 1, 4)
    frame.write.format("modcrypt").mode("append").option("policy", policy).save(f"{folder}/t")

with ThreadPoolExecutor(3) as pool:
    list(pool.map(write, (0, 1000, 2000)))
spark.stop()
"""


def test_writes_to_one_table_at_once(cluster: Standalone, policy: Path, tmp_path: Path) -> None:
    submit(cluster, TOGETHER, policy, tmp_path)
    assert read_ids(tmp_path / "t", policy) == list(range(3000))
    assert list_leftovers(tmp_path / "t") == []


JOB = """
import json
from collections import Counter
import modcrypt as mc
import modcrypt.spark

policy, table = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
settings = modcrypt.spark.Settings(policy=mc.Policy.load(policy))
report = modcrypt.spark.encrypt_table(spark, table, None, settings, files_per_task=20)
print(json.dumps(Counter(row.result for row in report.collect())))
spark.stop()
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Write a table of many small files in plaintext."""
    folder = tmp_path / "table"
    folder.mkdir()
    write_plain(folder / "0.parquet", small_table(ROWS))
    plain = (folder / "0.parquet").read_bytes()
    for number in range(1, FILES):
        (folder / f"{number}.parquet").write_bytes(plain)
    return folder


def check_table(cluster: Standalone, policy: Path, table: Path) -> None:
    """Check that a further run finds all files encrypted, and that they hold the same rows."""
    assert json.loads(submit(cluster, JOB, policy, table)) == {"current": FILES}
    assert len(list(table.iterdir())) == FILES
    settings = Settings(policy=mc.Policy.load(policy)).under(str(table))
    rows = small_table(ROWS)
    for number in range(0, FILES, 23):
        assert mc.read_table(table / f"{number}.parquet", settings).equals(rows)


def find_processes(cluster: Standalone, kind: str) -> list[int]:
    """Return the ids of the cluster's processes whose command contains a class."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
            folder = os.readlink(path.parent / "cwd")
        except OSError:  # it has ended
            continue
        if kind.encode() in command and folder.startswith(str(cluster.folder)):
            found.append(int(path.parent.name))
    return found


def wait_for_changes(table: Path, before: dict[str, int], least: int) -> None:
    for _ in range(15_000):
        now = {name: (table / name).stat().st_size for name in before}
        if sum(now[name] != size for name, size in before.items()) >= least:
            return
        time.sleep(0.02)
    raise AssertionError("the job does not begin")


@pytest.mark.parametrize(
    "kind", ["executor.CoarseGrainedExecutorBackend", "deploy.worker.Worker"],
    ids=["executor", "worker"],
)  # fmt: skip
def test_a_job(cluster: Standalone, policy: Path, table: Path, kind: str) -> None:
    before = {path.name: path.stat().st_size for path in table.iterdir()}
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(submit, cluster, JOB, policy, table)
        wait_for_changes(table, before, 20)
        os.kill(find_processes(cluster, kind)[0], signal.SIGKILL)
        results = json.loads(running.result())
    # A repeated task finds the files that the lost one has encrypted.
    assert results.pop("encrypted") + results.pop("current", 0) == FILES
    assert not results
    check_table(cluster, policy, table)


REPORT = JOB.replace(
    "print(",
    """
import os, pathlib, signal, time

def is_executor(process):
    try:
        command = (process / "cmdline").read_bytes()
        here = os.readlink(process / "cwd").startswith(os.getcwd())
    except OSError:  # it has ended
        return False
    return here and b"executor.CoarseGrainedExecutorBackend" in command

executors = [path.name for path in pathlib.Path("/proc").glob("[0-9]*") if is_executor(path)]
os.kill(int(executors[0]), signal.SIGKILL)
time.sleep(5)
print(""",
)


def test_a_report_whose_executor_is_lost(cluster: Standalone, policy: Path, table: Path) -> None:
    """Spark cannot make it again without doing the work again."""
    assert json.loads(submit(cluster, REPORT, policy, table)) == {"encrypted": FILES}
    check_table(cluster, policy, table)


def test_two_jobs_on_one_table(cluster: Standalone, policy: Path, table: Path) -> None:
    """Both drivers change the files of one folder; a file is encrypted once."""
    settings = {"spark_cores_max": "1"}
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(submit, cluster, JOB, policy, table, **settings) for _ in range(2)]
        for run in both:
            run.result()
    check_table(cluster, policy, table)

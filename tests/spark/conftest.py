"""Fixtures of the Spark tests: one session with its event log, and processes with other Sparks.

A JVM holds one Spark context, and a process one JVM: what needs other settings runs as a script in
another process. `local-cluster` and Spark Connect have one each, which stays for all such scripts.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import modcrypt as mc
from tests.support.java import iceberg_java
from tests.support.java.jvm import Jvm, end_spark_jvm, stop_spark, why_unavailable
from tests.support.spark.lake import COLUMN, FOOTER, MASTERS, PASSPHRASE, Lake
from tests.support.spark.native import make_ring
from tests.support.spark.processes import Elsewhere, RunPython, spark_environment, spark_settings

if TYPE_CHECKING:
    from tests.support.object_store import ObjectStore


@pytest.fixture(scope="package")
def spark_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the session's files; its event log is in `events`."""
    return tmp_path_factory.mktemp("spark")


@pytest.fixture
def ring(tmp_path: Path) -> mc.Keyring:
    """Create an encrypted keyring for one test; `tests.support.spark.native.uri_of` names it."""
    return make_ring(tmp_path)


@pytest.fixture(scope="package")
def store() -> Iterator[ObjectStore]:
    """Run an object store, which `s3://` leads to in this process and in Spark's."""
    from tests.support.object_store import (  # moto takes a while to load
        KEY,
        REGION,
        SECRET,
        object_store,
    )

    with object_store() as running, pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ENDPOINT_URL": running.endpoint, "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true", "NO_PROXY": "127.0.0.1",
        }.items():  # fmt: skip
            patch.setenv(name, value)
        yield running


@pytest.fixture(scope="package")
def jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of our jar for Spark, which the first process that needs it writes."""
    if reason := why_unavailable():
        pytest.skip(reason)
    from modcrypt.spark.jvm.native_jar import spark_jar

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # all processes of a run share it
    path = folder / "modcrypt-spark.jar"
    with (folder / "jar.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            spark_jar(path)
    return path


@pytest.fixture(scope="package")
def jvm(jar: Path) -> Iterator[Any]:
    """Yield the packages of a small JVM with the jars of Spark, Iceberg and ours, without Spark."""
    more = [] if iceberg_java.why_unavailable() else iceberg_java.iceberg_jars()
    running = Jvm("public class Harness {}", heap="512m", jars=[jar, *more])
    yield running.packages
    running.close()


@pytest.fixture(scope="package")
def spark(spark_folder: Path, store: ObjectStore) -> Iterator[Any]:
    """Start Spark once for all tests of this folder: `local[2]`."""
    if reason := why_unavailable():
        pytest.skip(reason)
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        end_spark_jvm()  # of a command that a test ran in this process
        builder: Any = SparkSession.builder
        settings = spark_settings(spark_folder)
        session = builder.master("local[2]").appName("modcrypt").config(map=settings).getOrCreate()
        try:
            # Commands in this process take this session for theirs, and must not stop it.
            with pytest.MonkeyPatch.context() as kept:
                kept.setattr(SparkSession, "stop", lambda _: None)
                yield session
        finally:
            stop_spark(session)


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elsewhere]:
    """Start a Spark with two executors in processes of their own."""
    if reason := why_unavailable():
        pytest.skip(reason)
    with closing(Elsewhere("local-cluster[2,1,1024]", tmp_path_factory.mktemp("cluster"))) as it:
        yield it


@pytest.fixture(scope="package")
def connect(tmp_path_factory: pytest.TempPathFactory, jar: Path) -> Iterator[Elsewhere]:
    """Start a client of Spark Connect, and its server, which has our jar."""
    for package in ("grpc", "grpc_status", "zstandard"):
        pytest.importorskip(package, reason="Spark Connect needs pyspark[connect]")
    with closing(
        Elsewhere("connect", tmp_path_factory.mktemp("connect"), {"spark.jars": str(jar)})
    ) as it:
        yield it


@pytest.fixture
def run_python(tmp_path: Path) -> RunPython:
    """Run a script in a process of its own, where Spark is not yet running.

    Its arguments are `sys.argv[1:]`; it has `SETTINGS`, a dict as of `spark_settings`.
    """
    if reason := why_unavailable():
        pytest.skip(reason)

    def run(script: str, *arguments: object, timeout: float = 300) -> str:
        path = tmp_path / "script.py"
        path.write_text(f"SETTINGS = {spark_settings(tmp_path / 'spark')!r}\n{script}")
        done = subprocess.run(
            [sys.executable, path, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env=spark_environment(),
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr[-6000:]
        return done.stdout

    return run


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Create a keyring whose passphrase is in a file, a policy, and keys in files."""
    folder = tmp_path_factory.mktemp("lake")
    ring = mc.Keyring.create(folder / "lake.keyring", passphrase=PASSPHRASE)
    for number, name in enumerate(("lake-footer", "lake-pii")):
        ring.create_key(name, value=MASTERS[number])
    for name, secret in (
        ("passphrase", PASSPHRASE),
        ("footer.key", FOOTER),
        ("column.key", COLUMN),
    ):
        (folder / name).write_bytes(secret if name == "passphrase" else secret.hex().encode())
        (folder / name).chmod(0o600)
    (folder / "lake.toml").write_text(
        'kms = "file:lake.keyring?passphrase=file:passphrase"\n'
        'footer_key = "lake-footer"\n'
        'aad_prefix = "people/{name}"\n'
        "[column_keys]\n"
        'lake-pii = ["name", "address"]\n'
    )
    return Lake(folder)

"""What the tests of Spark share: one session with its event log, and processes with another one.

A JVM holds one Spark context, and a process one JVM: what needs other settings runs as a script in
another process. `local-cluster` and Spark Connect have one each, which stays for all such scripts.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

import modcrypt as mc
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from tests.support.java.jvm import stop_spark, why_unavailable

if TYPE_CHECKING:
    from tests.support.object_store import ObjectStore

PASSPHRASE = b"Zx9!kQ2vLw8@mN4p"
MASTERS = (b"spark master key of 32 bytes, 1!", b"spark master key of 32 bytes, 2!")
FOOTER, COLUMN = b"spark footer key", b"spark column key"
SECRETS = (PASSPHRASE, *MASTERS, FOOTER, COLUMN)

RunPython: TypeAlias = Callable[..., str]
"""`run_python(script, *arguments)` gives what a script prints; it fails the test that fails."""


def spark_settings(folder: Path) -> dict[str, str]:
    """Give the settings of a small Spark that answers to nobody else, and logs all it does."""
    for name in ("local", "warehouse", "events"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "America/New_York",  # what is in UTC must not depend on it
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.eventLog.compress": "false",  # the tests search it
        "spark.eventLog.rolling.enabled": "false",
        "spark.pyspark.python": sys.executable,
        "spark.log.level": "OFF",
    }


@pytest.fixture(scope="package")
def spark_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder that the session keeps its files in; its event log is in `events`."""
    return tmp_path_factory.mktemp("spark")


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
def spark(spark_folder: Path, store: ObjectStore) -> Iterator[Any]:
    """Start Spark once for all tests of this folder: `local[2]`."""
    if reason := why_unavailable():
        pytest.skip(reason)
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        builder: Any = SparkSession.builder
        settings = spark_settings(spark_folder)
        session = builder.master("local[2]").appName("modcrypt").config(map=settings).getOrCreate()
        try:
            yield session
        finally:
            stop_spark(session)


_SERVER = """
import contextlib, io, json, os, sys, traceback
from pyspark.sql import SparkSession

if __name__ == "__main__":
    builder = SparkSession.builder.config(map=SETTINGS)
    cluster = sys.argv[1] != "connect"
    spark = (builder.master(sys.argv[1]) if cluster else builder.remote("local[2]")).getOrCreate()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        path, *sys.argv[1:] = json.loads(line)
        scope = {"__name__": "__main__", "spark": spark.newSession() if cluster else spark}
        printed, failure = io.StringIO(), None
        with contextlib.redirect_stdout(printed):
            try:
                exec(compile(open(path).read(), path, "exec"), scope)
            except BaseException:
                failure = traceback.format_exc()
        print(json.dumps([printed.getvalue(), failure]), file=answers, flush=True)
    spark.stop()
"""


class Elsewhere:
    """A process with a Spark that is not `local[2]`; it runs scripts, one after the other.

    Starting one takes longer than most scripts do. A script has `spark`, a session of its own but
    on Spark Connect.
    """

    def __init__(self, where: str, folder: Path) -> None:
        self.folder = folder
        """That of the process: what relative paths are relative to."""
        path = folder / "server.py"
        settings = spark_settings(folder / "spark") | {"spark.executor.memory": "512m"}
        path.write_text(f"SETTINGS = {settings!r}\n{_SERVER}")
        with (folder / "errors").open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, path, where],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder,
                env=spark_environment()
                | {ELSEWHERE_PASSPHRASE: PASSPHRASE.decode()}
                # Else Connect's servers all listen on 15002, and two test processes meet there.
                | ({"SPARK_TESTING": "1"} if where == "connect" else {}),
            )  # fmt: skip

    def run(self, script: str, *arguments: object, timeout: float = 300) -> str:
        """Run a script, whose arguments are `sys.argv[1:]`; give what it prints."""
        path = self.folder / "script.py"
        path.write_text(script)
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        print(json.dumps([str(path), *map(str, arguments)]), file=stdin, flush=True)
        answered = select.select([stdout], [], [], timeout)[0]
        answer = stdout.readline() if answered else ""
        assert answer, f"{'it ended' if answered else 'no end'}: {self.errors[-6000:]}"
        printed, failure = json.loads(answer)
        assert failure is None, f"{failure}{self.errors[-6000:]}"
        return str(printed)

    @property
    def errors(self) -> str:
        """What the process has said on stderr."""
        return (self.folder / "errors").read_text(errors="replace")

    def close(self) -> None:
        """Stop Spark, and the process."""
        try:
            self._process.communicate(timeout=60)
        finally:
            self._process.kill()
            self._process.wait()


ELSEWHERE_PASSPHRASE = "ELSEWHERE_PASSPHRASE"
"""The variable that holds `PASSPHRASE` for a cluster's driver and executors."""


def spark_environment() -> dict[str, str]:
    """Give the environment of a process that starts Spark."""
    return os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elsewhere]:
    """Give Spark with two executors in processes of their own."""
    if reason := why_unavailable():
        pytest.skip(reason)
    with closing(Elsewhere("local-cluster[2,1,1024]", tmp_path_factory.mktemp("cluster"))) as it:
        yield it


@pytest.fixture(scope="package")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elsewhere]:
    """Give a client of Spark Connect, and its server."""
    if reason := why_unavailable():
        pytest.skip(reason)
    for package in ("grpc", "grpc_status", "zstandard"):
        pytest.importorskip(package, reason="Spark Connect needs pyspark[connect]")
    with closing(Elsewhere("connect", tmp_path_factory.mktemp("connect"))) as it:
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


@dataclass(frozen=True)
class Lake:
    """A keyring under a passphrase, keys in files, and the options that lead to both."""

    folder: Path

    @property
    def policy(self) -> Path:
        """The policy, for columns of `tests.support.small_table`."""
        return self.folder / "lake.toml"

    @property
    def by_policy(self) -> dict[str, str]:
        """Options: master keys in a keyring."""
        return {"policy": str(self.policy)}

    @property
    def by_keys(self) -> dict[str, str]:
        """Options: the same columns, by keys in files."""
        columns = dict.fromkeys(("name", "address"), f"file:{self.folder / 'column.key'}")
        return {
            "footerKey": f"file:{self.folder / 'footer.key'}",
            "columnKeys": json.dumps(columns),
        }

    def variant(self, name: str, text: str) -> dict[str, str]:
        """Give the options of another policy: this one's lines, and others."""
        path = self.folder / f"{name}.toml"
        path.write_text(f"{text}\n{self.policy.read_text()}")
        return {"policy": str(path)}

    def open(self, options: Mapping[str, str]) -> FileDecryptionProperties:
        """Give the same keys to modcrypt itself."""
        from modcrypt.spark.source.options import read_options

        return read_options({**options, "path": "."})[0].decryption()


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Make a keyring, whose passphrase is in a file, and a policy; and keys in files."""
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

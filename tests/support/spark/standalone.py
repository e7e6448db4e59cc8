"""A standalone cluster: a master and two workers, in processes of their own on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from tests.support.ports import find_free_port
from tests.support.spark.hive_metastore import wait_for_port
from tests.support.spark.processes import spark_settings

HOME = Path(pyspark.__file__).parent
BARE_PYTHON = str(
    Path(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}")
)
"""A Python with neither modcrypt nor its dependencies."""

_DAEMON = {
    "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}


@dataclass(frozen=True)
class Standalone:
    """A running cluster."""

    master: str
    folder: Path

    def submit(
        self,
        program: str,
        *arguments: object,
        settings: Mapping[str, str],
        variables: Mapping[str, str],
        timeout: float = 600,
    ) -> subprocess.CompletedProcess[str]:
        """Run `spark-submit` or `spark-sql` on the cluster.

        The environment is that of a user who has activated nothing: `variables` names the Pythons.
        """
        given = spark_settings(self.folder / "spark")
        del given["spark.pyspark.python"]  # takes precedence over PYSPARK_PYTHON
        given |= {"spark.executor.memory": "512m", **settings}
        configured = [part for n, v in given.items() for part in ("--conf", f"{n}={v}")]
        command = [HOME / "bin" / program, "--master", self.master, *configured, *arguments]
        return subprocess.run(
            [str(part) for part in command],
            capture_output=True, text=True, check=False, timeout=timeout, cwd=self.folder,
            env=_bare_environment() | {"SPARK_LOCAL_IP": "127.0.0.1", **variables},
        )  # fmt: skip


def _bare_environment() -> dict[str, str]:
    left_out = {"PYTHONPATH", "VIRTUAL_ENV", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"}
    return {name: text for name, text in os.environ.items() if name not in left_out}


@contextmanager
def standalone_cluster(
    folder: Path, hosts: Sequence[str] = ("127.0.0.1", "127.0.0.1")
) -> Iterator[Standalone]:
    """Run a master, and a worker with a core on each host.

    Spark starts the second attempt of a task only on another host than the first.
    """
    port = find_free_port()
    master = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        running = _start(
            stack, folder / "master", "127.0.0.1", "master.Master",
            "--port", port, "--webui-port", 0,
        )  # fmt: skip
        wait_for_port(port, running, folder / "master" / "log")
        for number, host in enumerate(hosts, 1):
            where = folder / f"worker-{number}"
            options = ("--cores", 1, "--memory", "1g", "--work-dir", where, "--webui-port", 0)
            _start(stack, where, host, "worker.Worker", *options, master)
        yield Standalone(master, folder)


def _start(
    stack: ExitStack, folder: Path, host: str, name: str, *options: object
) -> subprocess.Popen[bytes]:
    """Start a daemon of Spark, which ends with the stack."""
    folder.mkdir()
    command: Sequence[object] = (
        HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{name}",
        "--host", host, *options,
    )  # fmt: skip
    log = stack.enter_context((folder / "log").open("wb"))
    process = subprocess.Popen(
        [str(part) for part in command],
        stdout=log, stderr=log, cwd=folder,
        env=_bare_environment() | _DAEMON | {"SPARK_LOCAL_IP": host},
    )  # fmt: skip
    stack.callback(process.wait)
    stack.callback(process.terminate)  # a worker then ends its executors
    return process

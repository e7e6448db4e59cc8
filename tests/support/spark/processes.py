"""Processes with a Spark of their own, and its settings."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from tests.support.spark.lake import PASSPHRASE

RunPython: TypeAlias = Callable[..., str]
"""`run_python(script, *arguments)` returns what a script prints, and raises if it fails."""


def spark_settings(folder: Path) -> dict[str, str]:
    """Return the settings of a small Spark that only this machine reaches, with an event log."""
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
        before = {} if cluster else spark.conf.getAll
        with contextlib.redirect_stdout(printed):
            try:
                exec(compile(open(path).read(), path, "exec"), scope)
            except BaseException:
                failure = traceback.format_exc()
        for name in [] if cluster else spark.conf.getAll.keys() - before.keys():
            spark.conf.unset(name)  # the next script has the same session
        print(json.dumps([printed.getvalue(), failure]), file=answers, flush=True)
    spark.stop()
"""


class Elsewhere:
    """A process with a Spark that is not `local[2]`; it runs scripts, one after the other.

    Starting one takes longer than most scripts do. A script has `spark`, a session of its own but
    on Spark Connect. `also` has further settings, and `variables` those of the environment.
    """

    def __init__(
        self,
        where: str,
        folder: Path,
        also: Mapping[str, str] = MappingProxyType({}),
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.folder = folder
        """That of the process: what relative paths are relative to."""
        path = folder / "server.py"
        settings = spark_settings(folder / "spark") | {"spark.executor.memory": "512m", **also}
        path.write_text(f"SETTINGS = {settings!r}\n{_SERVER}")
        with (folder / "errors").open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, path, where],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder,
                env=spark_environment()
                | {ELSEWHERE_PASSPHRASE: PASSPHRASE.decode(), **variables}
                # Else Connect's servers all listen on 15002, and two test processes meet there.
                | ({"SPARK_TESTING": "1"} if where == "connect" else {}),
            )  # fmt: skip

    def run(self, script: str, *arguments: object, timeout: float = 300) -> str:
        """Run a script with arguments, its `sys.argv[1:]`; return what it prints."""
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
        """The process's stderr so far."""
        return (self.folder / "errors").read_text(errors="replace")

    def close(self) -> None:
        """Stop Spark, and the process."""
        try:
            self._process.communicate(timeout=300)
        finally:
            self._process.kill()
            self._process.wait()


ELSEWHERE_PASSPHRASE = "ELSEWHERE_PASSPHRASE"
"""The variable that holds `PASSPHRASE` for a cluster's driver and executors."""


def spark_environment() -> dict[str, str]:
    """Return the environment of a process that starts Spark."""
    return os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}

"""A Hive metastore of its own process, from the jars inside pyspark; its database is in memory."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from modcrypt.spark.jvm.java_home import java_home
from tests.support.java.jvm import SHORT_LIVED, pyspark_jars
from tests.support.spark.class_archive import QUIET

PATIENCE = 90
"""Seconds until a metastore must answer."""


WITH_LOCKS = {"hive.in.test": "true"}
"""Settings with which a metastore makes the tables of its locks, too, which schemas have."""


@contextmanager
def hive_metastore(folder: Path, more: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run a metastore, with more settings than its own; yield its URI."""
    port = find_free_port()
    settings = {
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:memory:{folder.name};create=true",
        "datanucleus.connectionPoolingType": "HikariCP",
        "datanucleus.schema.autoCreateAll": "true",
        "hive.metastore.schema.verification": "false",
        "hive.metastore.warehouse.dir": str(folder / "warehouse"),
        "hive.metastore.transactional.event.listeners": "",
        "hive.async.log.enabled": "false",
        **(more or {}),
    }
    command = [str(Path(java_home()) / "bin" / "java"), "-Xmx512m", *SHORT_LIVED, *QUIET]
    command += ["-cp", str(pyspark_jars() / "*"), f"-Dderby.system.home={folder}"]
    command += ["org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(port)]
    command += [
        part for name, text in settings.items() for part in ("--hiveconf", f"{name}={text}")
    ]
    with (folder / "metastore.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        wait_for_port(port, process, folder / "metastore.log")
        yield f"thrift://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def find_free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when a process listens; fail if it ends or takes too long."""
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"nothing listens on {port}: {log.read_text(errors='replace')[-3000:]}")

"""A Hive metastore of its own process, from the jars inside pyspark."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from modcrypt.spark.jvm.java_home import java_home
from tests.support.java.jvm import SHORT_LIVED, pyspark_jars
from tests.support.ports import find_free_port
from tests.support.spark.class_archive import QUIET

PATIENCE = 300
"""Seconds until a metastore must answer."""


_LOCKS = """
CREATE TABLE HIVE_LOCKS (HL_LOCK_EXT_ID bigint NOT NULL, HL_LOCK_INT_ID bigint NOT NULL,
  HL_TXNID bigint, HL_DB varchar(128) NOT NULL, HL_TABLE varchar(128), HL_PARTITION varchar(767),
  HL_LOCK_STATE char(1) NOT NULL, HL_LOCK_TYPE char(1) NOT NULL, HL_LAST_HEARTBEAT bigint NOT NULL,
  HL_ACQUIRED_AT bigint, HL_USER varchar(128) NOT NULL, HL_HOST varchar(128) NOT NULL,
  HL_HEARTBEAT_COUNT integer, HL_AGENT_INFO varchar(128), HL_BLOCKEDBY_EXT_ID bigint,
  HL_BLOCKEDBY_INT_ID bigint, PRIMARY KEY (HL_LOCK_EXT_ID, HL_LOCK_INT_ID));
CREATE TABLE NEXT_LOCK_ID (NL_NEXT bigint NOT NULL);
INSERT INTO NEXT_LOCK_ID VALUES (1);
CREATE TABLE AUX_TABLE (MT_KEY1 varchar(128) NOT NULL, MT_KEY2 bigint NOT NULL,
  MT_COMMENT varchar(255), PRIMARY KEY (MT_KEY1, MT_KEY2));
"""
"""The tables of locks, which a metastore's schema has and which it doesn't make by itself."""


@contextmanager
def hive_metastore(folder: Path) -> Iterator[str]:
    """Run a metastore; yield its URI."""
    port = find_free_port()
    database = f"jdbc:derby:{folder / 'metastore'};create=true"
    _make_locks(folder, database)
    settings = {
        "javax.jdo.option.ConnectionURL": database,
        "datanucleus.connectionPoolingType": "HikariCP",
        "datanucleus.schema.autoCreateAll": "true",
        "hive.metastore.schema.verification": "false",
        "hive.metastore.warehouse.dir": str(folder / "warehouse"),
        "hive.metastore.transactional.event.listeners": "",
        "hive.async.log.enabled": "false",
    }
    command = [*_java(folder), "-Xmx512m", "-cp", str(pyspark_jars() / "*")]
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


def _make_locks(folder: Path, database: str) -> None:
    """Make the database, with the tables of locks in it."""
    script = folder / "locks.sql"
    script.write_text(f"CONNECT '{database}';\nCREATE SCHEMA APP;\nSET SCHEMA APP;{_LOCKS}")
    jars = os.pathsep.join(map(str, pyspark_jars().glob("derby*.jar")))
    command = [*_java(folder), "-cp", jars, "org.apache.derby.tools.ij", str(script)]
    subprocess.run(command, check=True, capture_output=True, cwd=folder)


def _java(folder: Path) -> list[str]:
    java = str(Path(java_home()) / "bin" / "java")
    # Nothing has to outlive the test: the database needn't wait for the disk.
    derby = [f"-Dderby.system.home={folder}", "-Dderby.system.durability=test"]
    return [java, *SHORT_LIVED, *QUIET, *derby]


def wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when a process listens; fail if it ends or takes too long."""
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"nothing listens on {port}: {log.read_text(errors='replace')[-3000:]}")

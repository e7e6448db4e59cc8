"""A REST catalog in a process of its own: Iceberg's Java answers, with tables in memory."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyiceberg.catalog.rest import RestCatalog

from tests.support.iceberg.catalog_tables import CatalogTable
from tests.support.iceberg.java_judge import class_path
from tests.support.java.iceberg_java import VERSION, Jar, fetch_jars, java_program
from tests.support.ports import find_free_port
from tests.support.spark.hive_metastore import wait_for_port

JARS = (
    Jar("org.xerial", "sqlite-jdbc", "3.50.3.0",
        "a3f53a2aa15ae9425a9e793bbe9c8e5288febeb4b65ef5c1a4e80d4c2045cf08"),
)  # fmt: skip


@contextmanager
def rest_server(folder: Path) -> Iterator[str]:
    """Run a server whose tables are in a folder; yield its URI."""
    port = find_free_port()
    jars = fetch_jars(JARS, f"iceberg-rest-{VERSION}")
    command = [
        java_program(), "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
        "-Dlog4j2.level=OFF", "-cp", class_path(*jars), "org.apache.iceberg.rest.RestServer",
        str(port), str(folder),
    ]  # fmt: skip
    log = folder / "server.log"
    with log.open("wb") as printed:
        process = subprocess.Popen(command, stdout=printed, stderr=printed)
    try:
        wait_for_port(port, process, log)
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.kill()
        process.wait()


class RestTable(CatalogTable):
    """A table of a server."""

    @property
    def catalog(self) -> RestCatalog:
        return RestCatalog("rest", uri=self.uri)

"""A REST catalog in a process of its own: Iceberg's Java answers, with tables in memory."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.rest import RestCatalog

from modcrypt.iceberg import IcebergTable, create_table, load_table
from tests.support.iceberg.java_judge import class_path
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.java.iceberg_java import VERSION, Jar, fetch_jars, java_program
from tests.support.ports import find_free_port
from tests.support.spark.hive_metastore import wait_for_port

JARS = (
    Jar("org.xerial", "sqlite-jdbc", "3.50.3.0",
        "a3f53a2aa15ae9425a9e793bbe9c8e5288febeb4b65ef5c1a4e80d4c2045cf08"),
)  # fmt: skip
SCHEMA = pa.schema([("id", pa.int64())])


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


@dataclass(frozen=True)
class RestTable:
    """A table of a server."""

    uri: str
    name: str

    @property
    def catalog(self) -> RestCatalog:
        return RestCatalog("rest", uri=self.uri)

    def load(self, kms: Any = None, **options: Any) -> IcebergTable:
        return load_table(self.catalog, self.name, kms or SampleKms(), **options)

    def version(self) -> int:
        """The number of the current version."""
        return int(self.load(master_key_ids=["keyA", "keyB"]).place.name[:5])

    def locks(self) -> list[Any]:
        return []


def make_rest_table(uri: str, schema: pa.Schema = SCHEMA, **options: Any) -> RestTable:
    """Make an encrypted table in a namespace of its own."""
    namespace = f"n{uuid.uuid4().hex[:8]}"
    made = RestTable(uri, f"{namespace}.orders")
    made.catalog.create_namespace(namespace)
    create_table(
        None, schema, SampleKms(), master_key_id="keyA", catalog=made.catalog,
        identifier=made.name, **options,
    )  # fmt: skip
    return made

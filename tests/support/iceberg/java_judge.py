"""Iceberg's own Java, which reads and writes encrypted tables: the judge of ours.

Its program is in the folder `java` here. The first test that needs it has it compiled, by Eclipse's
compiler, which needs no JDK; jars and classes are kept in the user's cache folder, as those of
`tests.support.java.iceberg_java` are. One JVM serves a whole process of tests: a request is a line
of JSON, and so is its answer.

    java.read(metadata, map)                     the rows, as `plain_rows` gives those of a scan
    java.files(metadata)                         manifests, data and delete files; keys by SHA-256
    java.keys(metadata)                          the table's keys, opened; by SHA-256
    java.create(folder, schema, ...)             a table in a folder, with v1.metadata.json
    java.commit(metadata, {"do": "append", "rows": [...]}, ...)   steps, each of them a commit

`metadata` is the path of a metadata.json. What Java refuses raises `JavaError`.
"""

from __future__ import annotations

import datetime
import decimal
import hashlib
import itertools
import json
import os
import subprocess
import tempfile
import threading
import uuid
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from tests.support.java import jvm
from tests.support.java.iceberg_java import (
    VERSION,
    Jar,
    cache_folder,
    fetch_jars,
    iceberg_jars,
    java_program,
)
from tests.support.java.iceberg_java import why_unavailable as why_no_iceberg
from tests.support.java.jvm import JavaError

__all__ = ["JavaError", "Judge", "plain_rows", "why_unavailable"]

JARS = (
    Jar("org.apache.iceberg", "iceberg-data", VERSION,
        "1c53acbfddce3c94695cda22acb8274cb4f23a8cd136d0275927ec8a3f1fa605"),
    Jar("org.apache.iceberg", "iceberg-parquet", VERSION,
        "fba0355f0d54bd68e21170e0e5f05632845d42ba346945017d2156e66297b85f"),
    Jar("org.apache.parquet", "parquet-avro", "1.17.0",
        "a324c216f973f0c5a73c93bf9c1e105264913f97da6b522b43a71f437945d3a6"),
    Jar("org.eclipse.jdt", "ecj", "3.43.0",
        "c786468c65e906498e7e36ece4e0d04c6d3dd34c9a61b34a3a5b512801911a82"),
)  # fmt: skip

LIBRARIES = (
    "aircompressor", "avro", "caffeine", "commons", "hadoop-client", "jackson", "jts-core",
    "parquet", "RoaringBitmap", "slf4j-api", "snappy-java", "zstd-jni",
)  # fmt: skip
"""Of PySpark's 280 jars, in each of which Java would look for each class and resource."""

SOURCES = Path(__file__).parent / "java"
COMPILE_SECONDS = 120
ANSWER_SECONDS = 120


def why_unavailable() -> str | None:
    """Return a reason to skip tests that need Iceberg's Java; None if it can run."""
    if reason := why_no_iceberg():
        return reason
    try:
        _classes()
    except OSError as error:
        return f"there are no jars for Iceberg's Java: {error}"
    except subprocess.SubprocessError as error:
        return f"Iceberg's jars can't be fetched, or its judge not compiled: {error}"
    return None


# --- the program ---------------------------------------------------------------------------------


def _jars() -> list[Path]:
    return [*iceberg_jars(), *fetch_jars(JARS, f"iceberg-judge-{VERSION}")]


def class_path(*more: Path) -> str:
    """Return the class path of the program, and of the libraries that it needs, and `more`."""
    libraries = (jvm.pyspark_jars().glob(f"{name}-*.jar") for name in LIBRARIES)
    path = [*more, _classes(), *_jars(), *itertools.chain.from_iterable(libraries)]
    return os.pathsep.join(map(str, path))


def _classes() -> Path:
    """Return the folder of the compiled program; of several processes, the first one's is kept."""
    sources = sorted(SOURCES.rglob("*.java"))
    digest = hashlib.sha256(VERSION.encode())
    for source in sources:
        digest.update(source.read_bytes())
    folder = cache_folder(f"iceberg-judge-classes-{digest.hexdigest()[:16]}")
    if not folder.exists():
        _compile(sources, folder)
    return folder


def write_kms_jar(path: Path) -> None:
    """Write a jar with the key service of Iceberg's own tests, the class `Kms`, for Spark."""
    with zipfile.ZipFile(path, "w") as jar:
        jar.write(_classes() / "Kms.class", "Kms.class")


def _compile(sources: Sequence[Path], folder: Path) -> None:
    jars = _jars()
    spark = jvm.pyspark_jars()
    libraries = [*jars, *spark.glob("jackson-*.jar"), *spark.glob("slf4j-api-*.jar")]
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        made = Path(temporary, "classes")
        command = [
            java_program(), "-jar", str(jars[-1]), "-17", "-nowarn", "-d", str(made),
            "-classpath", os.pathsep.join(map(str, libraries)), *map(str, sources),
        ]  # fmt: skip
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False
        )
        assert done.returncode == 0, done.stderr
        try:
            made.rename(folder)
        except OSError:
            if not folder.exists():
                raise


class Judge:
    """A running JVM, and a context manager that stops it at the end.

    Args:
        masters: the master keys of the key service, by id.
        log: file for whatever Java prints.
    """

    def __init__(self, masters: Mapping[str, bytes], log: Path) -> None:
        command = [
            java_program(), "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            "-Dlog4j2.level=OFF", "-cp", class_path(), "Judge",
        ]  # fmt: skip
        with log.open("wb") as printed:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=printed
            )
        self.ask("masters", masters={id_: key.hex() for id_, key in masters.items()})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the JVM, which exits after its last request."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(120)

    def ask(self, command: str, **arguments: Any) -> Any:
        """Have a command done.

        Raises:
            JavaError: it failed in Java.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"do": command, **{k: v for k, v in arguments.items() if v is not None}}
        self._process.stdin.write(json.dumps(request, default=as_json).encode() + b"\n")
        self._process.stdin.flush()
        watchdog = threading.Timer(ANSWER_SECONDS, self._process.kill)
        watchdog.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        assert line, f"Java ended, or took longer than {ANSWER_SECONDS} seconds"
        found = json.loads(line)
        if "error" in found:
            raise JavaError([(name, text) for name, text in found["error"]])
        return found["answer"]

    # --- reading ---------------------------------------------------------------------------------

    def read(
        self, metadata: object, location_map: Mapping[str, Any] | None = None, **options: Any
    ) -> list[dict[str, Any]]:
        """Read rows, in the order of `plain_rows`.

        Args:
            metadata: path of a metadata.json.
            location_map: as of `open_table`.
            options: `snapshot`: an id; `ref`: of a branch or tag; `columns`; `filter`, as Iceberg's
                JSON has expressions; `lineage`: True adds `_row_id` and
                `_last_updated_sequence_number`; `key_id`: of the master key, as a catalog says it;
                `generics`: True reads by IcebergGenerics alone, which can't open delete files.
        """
        found = self.ask("read", metadata=str(metadata), map=_map(location_map), **options)
        return sorted(found, key=json.dumps)

    def files(
        self,
        metadata: object,
        location_map: Mapping[str, Any] | None = None,
        snapshot: int | None = None,
    ) -> dict[str, Any]:
        """Return manifests and live files of a snapshot, each with its key metadata, described."""
        found = self.ask("files", metadata=str(metadata), map=_map(location_map), snapshot=snapshot)
        return dict(found)

    def keys(self, metadata: object) -> list[dict[str, Any]]:
        """Return the table's keys: KEKs unwrapped, entries of manifest lists opened."""
        return list(self.ask("keys", metadata=str(metadata)))

    def snapshots(self, metadata: object) -> dict[str, Any]:
        """Return `snapshots`, `refs`, `properties`, `current` and `next_row_id`."""
        return dict(self.ask("snapshots", metadata=str(metadata)))

    def encode(self, metadata: object) -> str:
        """Return the text that Java would write for a metadata.json."""
        return str(self.ask("metadata", metadata=str(metadata)))

    # --- writing ---------------------------------------------------------------------------------

    def create(
        self,
        folder: Path,
        schema: Mapping[str, Any],
        *,
        spec: Mapping[str, Any] | None = None,
        properties: Mapping[str, str | None] | None = None,
        location: str | None = None,
        location_map: Mapping[str, Any] | None = None,
        key_id: str | None = None,
    ) -> Path:
        """Make a table in a folder; by default of format version 3 and under the master key keyA.

        Args:
            folder: of the table.
            schema, spec: as metadata.json has them.
            properties: in the place of the default ones, or besides them; None for none.
            location: that its metadata names; the folder by default.
            location_map: leads from that to the folder.
            key_id: of the master key, if only a catalog says it.

        Returns:
            The path of its metadata.json.
        """
        reported = {"format-version": "3", "encryption.key-id": "keyA", **(properties or {})}
        return self._metadata_path(
            self.ask(
                "create", folder=str(folder), location=location or str(folder), schema=schema,
                spec=spec, properties={k: v for k, v in reported.items() if v is not None},
                map=_map(location_map), key_id=key_id,
            )
        )  # fmt: skip

    def commit(
        self,
        metadata: object,
        *steps: Mapping[str, Any],
        location_map: Mapping[str, Any] | None = None,
        shift_ms: int | None = None,
        key_id: str | None = None,
    ) -> Path:
        """Commit to a table in a folder, step by step.

        Steps, by their `do`: `append`, `overwrite` (`rows`, `format`: parquet or avro, `branch`; a
        `wap` id stages an append), `fast-forward` (`name`, `to`), `cherry-pick` (`snapshot`),
        `delete` (`column`, `values`, `branch`; by deletion vectors, `keyless` with their keys lost,
        or by position deletes in version 2), `delete-equal` (`files`: `by`, `rows`, `columns`,
        `schema`, `spec`, `in`, `format`; and `rows` to add), `delete-files` (`column`, `value`),
        `compact`, `rewrite-manifests`, `expire` (all but the last; `older`: time in ms, `last`: a
        number, None for the table's settings), `publish` (`snapshot`, added with `stage`),
        `schema` (`add`: `[column, type, default]`, `rename`, `drop`, `promote`, `first`),
        `spec` (`add`: `[column, transform, n]`, `remove`), `branch`, `tag` (`name`, `snapshot`),
        `rollback`, `set` (`properties`).

        Args:
            metadata: path of its current metadata.json.
            steps: as above.
            location_map: as of `open_table`.
            shift_ms: what the encryption manager's clock is ahead: KEKs expire after 730 days.
            key_id: of the master key, if only a catalog says it.

        Returns:
            The path of the new metadata.json.
        """
        return self._metadata_path(
            self.ask(
                "commit", metadata=str(metadata), steps=steps, map=_map(location_map),
                shift_ms=shift_ms, key_id=key_id,
            )
        )  # fmt: skip

    @staticmethod
    def _metadata_path(found: Mapping[str, Any]) -> Path:
        return Path(found["metadata"])


def _map(location_map: Mapping[str, Any] | None) -> dict[str, str]:
    return {prefix: str(folder) for prefix, folder in (location_map or {}).items()}


# --- rows that compare ---------------------------------------------------------------------------


def plain_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a scan in the form, and in the order, of those that Java reads."""
    rows = [{name: as_json(value) for name, value in row.items()} for row in table.to_pylist()]
    return sorted(rows, key=json.dumps)


def as_json(value: Any) -> Any:
    """Spell a value as `Values.java` does."""
    if isinstance(value, datetime.datetime):
        moment = value if value.tzinfo is None else value.astimezone(datetime.UTC)
        return moment.isoformat(timespec="microseconds")
    if isinstance(value, datetime.time):
        return value.isoformat(timespec="microseconds")
    if isinstance(value, datetime.date | uuid.UUID):
        return str(value)
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not abs(value) < float("inf"):
        return {"inf": "Infinity", "-inf": "-Infinity"}.get(str(value), "NaN")
    if isinstance(value, dict):
        return {name: as_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    return value

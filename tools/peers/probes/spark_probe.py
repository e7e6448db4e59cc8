"""Spark: `spark.read.parquet` with keys from a class on its class path, and with key tools."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyspark
import steps
from pyspark.sql import SparkSession

SOURCE = Path(__file__).resolve().parent / "spark/Keys.java"
JARS = Path(pyspark.__file__).parent / "jars"
CAUSE = re.compile(r"(?:^|Caused by: )[\w.$]*\.(\w+(?:Exception|Error)): (.*)", re.MULTILINE)
TOOLS: dict[str, Any] = {
    "parquet.crypto.factory.class": (
        "org.apache.parquet.crypto.keytools.PropertiesDrivenCryptoFactory"
    ),
    "parquet.encryption.kms.client.class": "probe.Keys$Kms",
}


def start(classes: str) -> SparkSession:
    """Start Spark with a few settings that keep it small.

    Args:
        classes: Folder of the compiled class.
    """
    settings = {
        "spark.driver.extraClassPath": classes,
        "spark.ui.enabled": "false",
        "spark.sql.parquet.enableVectorizedReader": "true",
        "spark.log.level": "OFF",
    }
    builder = SparkSession.builder.master("local[1]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def read(
    path: str,
    columns: list[str] | None = None,
    *,
    footer_key: bytes | None = None,
    aad_prefix: bytes | None = None,
    column_keys: Mapping[str, bytes] | None = None,
    **options: str,
) -> str:
    """Return the number of rows and columns that Spark reads, every value included."""
    settings = dict(options)
    if footer_key is not None:
        settings |= {"parquet.crypto.factory.class": "probe.Keys", "probe.footer": footer_key.hex()}
        keys = ",".join(f"{name}={key.hex()}" for name, key in (column_keys or {}).items())
        settings |= {"probe.columns": keys} if keys else {}
        settings |= {} if aad_prefix is None else {"probe.prefix": aad_prefix.hex()}
    with causes():
        frame = SPARK.read.options(**settings).parquet(path)
        frame = frame.select(*columns) if columns else frame
        return f"{len(frame.collect())} x {len(frame.columns)}"


def count(path: str) -> str:
    """Return the number of rows without keys."""
    with causes():
        return str(SPARK.read.parquet(path).count())


@contextmanager
def causes() -> Iterator[None]:
    """Raise the last cause of an exception in Java under its own name."""
    try:
        yield
    except Exception as error:
        found = CAUSE.findall(str(error)) or [(type(error).__name__, str(error))]
        kind, text = found[-1]
        raise type(kind, (Exception,), {})(text) from None


with tempfile.TemporaryDirectory() as folder:
    subprocess.run(["javac", "-nowarn", "-cp", f"{JARS}/*", "-d", folder, str(SOURCE)], check=True)
    SPARK = start(folder)
    one_key = partial(
        read, "columns.parquet", footer_key=steps.FOOTER_KEY, column_keys=steps.ONE_COLUMN_KEY
    )
    keys: Any = {"footer_key": steps.FOOTER_KEY, "column_keys": steps.COLUMN_KEYS}
    steps.run(
        steps.keyless_steps(read, count)
        | steps.keyed_steps(read)
        | {
            "key-material: folder, key tools": partial(read, "key-material/", **TOOLS),
            "all-keys: column keys": partial(read, "columns.parquet", **keys),
            "missing-key: other columns": partial(one_key, ["id", "name"]),
            "missing-key: all columns": one_key,
            "plaintext-footer: all keys": partial(read, "plaintext-footer.parquet", **keys),
            "mixed-folder: footer key, plaintext files allowed": partial(
                read, "mixed/", footer_key=steps.FOOTER_KEY, **{"probe.plaintext": "true"}
            ),
        }
    )
    SPARK.stop()

"""parquet-java: `ParquetFileReader` with keys that are given, and with its key tools."""

from __future__ import annotations

import os
from functools import partial

import process
import steps

VERSION = os.environ.get("PARQUET_JAVA", "1.18.1")
BUILD = [
    ["mvn", "--quiet", "--batch-mode", f"-Dparquet={VERSION}", "dependency:copy-dependencies",
     "-DoutputDirectory=jars"],
    ["javac", "-nowarn", "-cp", "jars/*", "-d", "classes", "Reader.java"],
]  # fmt: skip
COMMAND = ["java", "-XX:+UseSerialGC", "-cp", "{build}/classes:{build}/jars/*", "Reader"]
with process.start("parquet_java", BUILD, COMMAND) as read:
    tools = partial(read, how="tools")
    steps.run(
        process.file_steps(read)
        | {
            "key-material: one file, key tools": partial(tools, "key-material/part-0.parquet"),
            "mixed-folder: plaintext file, key tools": partial(tools, "mixed/a.parquet"),
        }
    )

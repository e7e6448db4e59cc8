"""Count the rows of a table in fresh JVMs, for `tools/bench_spark.py`.

The first count of a JVM loads classes and starts its cryptography; later ones are quicker. Each
count runs in plaintext, with modcrypt's factory, and with that of parquet-java on the same files
and by the same client of the key service, so that the part of either can be told.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import modcrypt as mc
from modcrypt.spark import native_options, spark_jar
from modcrypt.spark.session import spark_session
from tools.bench_spark_runs import Bench, now_of_tree, policy_of
from tools.figures import Figure, Row, figure

FILES = 8
COLUMNS = 16
WARM = 12
"""Number of counts after the first one; the median of the last half is that of a warm JVM."""

KINDS = ("plaintext", "modcrypt", "parquet-java")


def counts(bench: Bench) -> Iterator[Row]:
    """Measure the CPU time of the first and of later counts of fresh JVMs."""
    make_tables(bench)
    taken: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    for turn in range(bench.args.repeat):
        for kind in KINDS[:: 1 if turn % 2 else -1]:
            command = [sys.executable, "-m", "tools.bench_spark_counts", kind, str(bench.work)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            taken[kind].append(json.loads(done.stdout))
    for name, choose in (("the first count(*) of a JVM", _first), ("a later one", _later)):
        plain = choose(taken["plaintext"])
        for kind in KINDS[1:]:
            mine = choose(taken[kind])
            yield Row(f"{name}, {kind}; peer plaintext", mine, plain, mine.median / plain.median)


def _first(runs: list[list[float]]) -> Figure:
    return figure([run[0] for run in runs])


def _later(runs: list[list[float]]) -> Figure:
    return figure([statistics.median(run[-WARM // 2 :]) for run in runs])


def make_tables(bench: Bench) -> None:
    """Write a table in plaintext and encrypted, the options to read it, and the jar."""
    work, names = bench.work, [f"c{n:02}" for n in range(COLUMNS)]
    policy = policy_of(bench.settings(*names[:4]))
    encryption = mc.KeyTools.from_policy(policy).encryption(policy)
    table = pa.table({name: np.random.default_rng(0).random(10_000) for name in names})
    for folder in ("counted", "counted.enc"):
        (work / folder).mkdir()
    for number in range(FILES):
        pq.write_table(table, work / "counted" / f"{number}.parquet")
        mc.write_table(table, work / "counted.enc" / f"{number}.parquet", encryption)
    (work / "count.json").write_text(json.dumps(native_options(policy)))
    spark_jar(work / "count.jar")


def read_options(kind: str, work: Path) -> dict[str, str]:
    """Return the options of a read."""
    if kind == "plaintext":
        return {}
    options: dict[str, str] = json.loads((work / "count.json").read_text())
    if kind == "parquet-java":
        crypto = "org.apache.parquet.crypto.keytools.PropertiesDrivenCryptoFactory"
        options["parquet.crypto.factory.class"] = crypto
        options["parquet.encryption.kms.client.class"] = "modcrypt.ModcryptKmsClient"
    return options


def main(kind: str, folder: str) -> None:
    """Print the CPU seconds of each of some counts in a new JVM."""
    work, taken = Path(folder), list[float]()
    settings: dict[str, Any] = {
        "spark.jars": str(work / "count.jar"),
        "spark.log.level": "OFF",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    with spark_session("local[2]", "modcrypt count", settings) as spark:
        reader = spark.read.options(**read_options(kind, work))
        path = str(work / ("counted" if kind == "plaintext" else "counted.enc"))
        spark.range(10).count()  # what every query needs
        for _ in range(1 + WARM):
            started = now_of_tree()
            assert reader.parquet(path).count() == FILES * 10_000
            taken.append((now_of_tree() - started).cpu)
    print(json.dumps(taken))


if __name__ == "__main__":
    main(*sys.argv[1:])

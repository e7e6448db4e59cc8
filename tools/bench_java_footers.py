"""Open files in fresh JVMs with parquet-java, for `tools/bench_spark.py`.

Spark's `count(*)` reads nothing but footers. Encrypted files cost more for the first file of a JVM,
which loads classes, starts Java's cryptography and opens the key service, and a part of each
further one. modcrypt's factory is compared with that of parquet-java on the same files and with the
same client of the key service. Times are CPU times of the thread that opens.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import modcrypt as mc
from modcrypt.spark import native_options, spark_jar
from tests.support.java.jvm import Jvm
from tools.bench_spark_runs import Bench
from tools.figures import Figure, Row, figure

FILES = 200
"""Files that a JVM opens one after another; the last half counts as later ones."""

THEIRS = {
    "parquet.crypto.factory.class": (
        "org.apache.parquet.crypto.keytools.PropertiesDrivenCryptoFactory"
    ),
    "parquet.encryption.kms.client.class": "modcrypt.ModcryptKmsClient",
}

HARNESS = """
import java.lang.management.*;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.HadoopReadOptions;
import org.apache.parquet.crypto.*;
import org.apache.parquet.hadoop.ParquetFileReader;
import org.apache.parquet.hadoop.util.HadoopInputFile;

public class Harness {
  public long open(String file, Map options) throws Exception {
    Configuration settings = new Configuration();
    for (Object name : options.keySet()) settings.set((String) name, (String) options.get(name));
    ThreadMXBean threads = ManagementFactory.getThreadMXBean();
    long before = threads.getCurrentThreadCpuTime();
    Path path = new Path(file);
    HadoopReadOptions.Builder reading = HadoopReadOptions.builder(settings, path);
    Class factory = settings.getClass("parquet.crypto.factory.class", null);
    if (factory != null) {
      DecryptionPropertiesFactory keys = (DecryptionPropertiesFactory) factory.newInstance();
      reading.withDecryption(keys.getFileDecryptionProperties(settings, path));
    }
    HadoopInputFile in = HadoopInputFile.fromPath(path, settings);
    ParquetFileReader reader = ParquetFileReader.open(in, reading.build());
    reader.getRecordCount();
    reader.close();
    return threads.getCurrentThreadCpuTime() - before;
  }
}
"""


def footers(bench: Bench) -> Iterator[Row]:
    """Measure the first and the later files of fresh JVMs."""
    make_files(bench.work / "footers", None)
    spark_jar(bench.work / "footers.jar")
    for name, passphrase in (("a keyring", None), ("a keyring with a passphrase", "bench")):
        options = make_files(bench.work / f"footers {name}", passphrase)
        ours, theirs = (
            [open_files(bench.work, name, options | more) for _ in range(bench.args.repeat)]
            for more in ({}, THEIRS)
        )
        yield from compare(name, ours, theirs)


def compare(name: str, ours: list[list[float]], theirs: list[list[float]]) -> Iterator[Row]:
    """Yield a row about the first files and one about later ones."""
    for what, choose in (("first", _first), ("later", _later)):
        mine, peer = choose(ours), choose(theirs)
        title = f"{what} encrypted file of a JVM, {name}; peer parquet-java's"
        yield Row(title, mine, peer, mine.median / peer.median)


def _first(runs: list[list[float]]) -> Figure:
    return figure([run[0] for run in runs], "ms")


def _later(runs: list[list[float]]) -> Figure:
    return figure([statistics.median(run[FILES // 2 :]) for run in runs], "ms")


def make_files(folder: Path, passphrase: str | None) -> dict[str, str]:
    """Write files of 16 columns, four with keys of their own; return the options to read them."""
    folder.mkdir()
    names = [f"c{n:02}" for n in range(16)]
    table = pa.table({name: np.random.default_rng(0).random(1000) for name in names})
    pq.write_table(table, folder / "plain.parquet")
    how: dict[str, Any] = {"passphrase": passphrase} if passphrase else {"plaintext": True}
    keyring = mc.Keyring.create(folder / "lake.keyring", **how)
    for key in ("footer", "columns"):
        keyring.create_key(key)
    (folder / "passphrase").write_text(passphrase or "")
    query = f"?passphrase=file:{folder}/passphrase" if passphrase else ""
    policy = mc.Policy(
        kms=f"file:{folder}/lake.keyring{query}".replace(" ", "%20"),
        footer_key="footer", column_keys={"columns": names[:4]},
    )  # fmt: skip
    encryption = mc.KeyTools(keyring).encryption(policy)
    for number in range(FILES):
        mc.write_table(table, folder / f"{number}.parquet", encryption)
    return native_options(policy)


def open_files(work: Path, name: str, options: Mapping[str, str]) -> list[float]:
    """Return the milliseconds that each encrypted file takes in a JVM that has opened others."""
    jvm = Jvm(HARNESS, heap="512m", jars=[work / "footers.jar"])
    none, some = (jvm.packages.java.util.HashMap() for _ in range(2))
    for option, value in options.items():
        some.put(option, value)
    for _ in range(FILES):
        jvm.harness.open(f"{work}/footers/plain.parquet", none)
    folder = f"{work}/footers {name}"
    taken = [jvm.harness.open(f"{folder}/{n}.parquet", some) / 1e6 for n in range(FILES)]
    jvm.close()
    return taken

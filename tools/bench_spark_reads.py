"""Reads and writes of tables on Spark, compared with plaintext, for `tools/bench_spark.py`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
from pyspark.sql import functions as F  # noqa: N812  # as everybody does
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

import modcrypt as mc
from modcrypt.spark import Settings, native, native_options
from modcrypt.spark.source.reading import FEWEST_TASKS, Piece, read_pieces
from tools.bench_spark_runs import Bench, cpu_of, cpu_within, plain_files, policy_of
from tools.figures import Figure, Row, within

TABLE_FILES = 8
ONE_COLUMN = "l_extendedprice"


class PlainSource(DataSource):
    """A minimal data source in Python, with which modcrypt's is compared.

    With the option `footerKey`, PyArrow decrypts the files.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the data source."""
        return "plain_arrow"

    def schema(self) -> StructType:
        """Read the schema of the first file."""
        path = plain_files(self.options["path"])[0]
        with pq.ParquetFile(path, decryption_properties=decryption(self.options)) as file:
            return from_arrow_schema(file.schema_arrow)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the columns of a schema."""
        return PlainReader(self.options, schema.names)


def decryption(options: Any) -> Any:
    key = options.get("footerKey")
    return None if key is None else pe.create_decryption_properties(bytes.fromhex(key))


class PlainReader(DataSourceReader):
    """A reader of some files per task; the files have Spark's types, so it casts nothing."""

    def __init__(self, options: Any, columns: list[str]) -> None:
        self._options, self._columns = options, columns

    def partitions(self) -> list[InputPartition]:
        """Divide the files among tasks, a file per task unless the options say otherwise."""
        files = plain_files(self._options["path"])
        share = int(self._options.get("filesPerTask", 1))
        return [InputPartition(files[n : n + share]) for n in range(0, len(files), share)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the files of a task."""
        keys = decryption(self._options)
        for path in partition.value:
            with pq.ParquetFile(path, decryption_properties=keys) as file:
                yield from file.iter_batches(1 << 16, columns=self._columns)


@dataclass(frozen=True)
class Lineitem:
    """TPC-H's table of 16 columns, the same files in plaintext and encrypted."""

    plain: Path
    sealed: Path
    settings: Settings

    @property
    def size(self) -> int:
        """Size of the largest file in bytes: tasks of this size have one file each."""
        return max(path.stat().st_size for path in self.sealed.iterdir())


def lineitem(bench: Bench) -> Lineitem:
    """Make the table, once."""
    plain, sealed = bench.work / "lineitem", bench.work / "lineitem.enc"
    settings = bench.settings("l_extendedprice", "l_discount", "l_tax", "l_comment")
    if not sealed.exists():
        generated = bench.work / "generated"
        command = ("parquet", "-s", f"{bench.args.scale:g}", "--tables=lineitem", "--quiet",
                   f"--parts={TABLE_FILES}", f"--output-dir={generated}")  # fmt: skip
        subprocess.run([Path(sys.executable).with_name("tpchgen-cli"), *command], check=True)
        plain.mkdir()
        sealed.mkdir()
        encryption = settings.encryption()
        for path in sorted((generated / "lineitem").iterdir()):
            pq.write_table(as_spark_has_it(pq.read_table(path)), plain / path.name)
            mc.encrypt_parquet(plain / path.name, sealed / path.name, encryption)
        shutil.rmtree(generated)
    return Lineitem(plain, sealed, settings)


def as_spark_has_it(table: pa.Table) -> pa.Table:
    """Return the table with text as Arrow's `string`, and all columns nullable."""
    types = [
        pa.string() if field.type == pa.string_view() else field.type for field in table.schema
    ]
    return table.cast(pa.schema(list(zip(table.column_names, types, strict=True))))


def consume(frame: Any) -> None:
    """Make Spark read every value."""
    frame.agg(*(F.max(name) for name in frame.columns)).collect()


def source(bench: Bench) -> Iterator[Row]:
    """Measure reads with the data source, and with one for plaintext."""
    table = lineitem(bench)
    bench.spark.dataSource.register(PlainSource)
    policy = str(bench.work / "policy.toml")

    def encrypted(**options: Any) -> Any:
        reader = bench.spark.read.format("modcrypt").option("policy", policy)
        return reader.options(maxSplitBytes=table.size, **options).load(str(table.sealed))

    def plain(columns: str | None = None) -> Any:
        reader = bench.spark.read.format("plain_arrow")
        reader = reader if columns is None else reader.schema(f"{columns} decimal(15,2)")
        return reader.load(str(table.plain))

    t = bench.seconds({
        "sealed": lambda: consume(encrypted()),
        "plain": lambda: consume(plain()),
        "one": lambda: consume(encrypted(columns=ONE_COLUMN)),
        "plain one": lambda: consume(plain(ONE_COLUMN)),
        "count": lambda: encrypted(rowCounts="true").agg(F.sum("rows")).collect(),
    })  # fmt: skip
    rows = sum(pq.read_metadata(path).num_rows for path in table.plain.iterdir())
    name = f"{rows:,} rows x 16; peer Arrow source, plaintext"
    yield within(name, t["sealed"], t["plain"], 1.2)
    yield cpu_within("  its CPU time", t["sealed"], t["plain"], 1.2)
    yield within("  one column; peer all 16 of it", t["one"], t["sealed"], 0.25)
    yield within("  one column; peer Arrow source, plaintext", t["one"], t["plain one"], 1.2)
    yield Row("  rowCounts", t["count"])


def native_reads(bench: Bench) -> Iterator[Row]:
    """Measure reads with Spark's own Parquet, encrypted and in plaintext."""
    table = lineitem(bench)
    session = bench.spark.newSession()
    native(session, policy=policy_of(table.settings))
    sealed = partial(session.read.parquet, str(table.sealed))
    plain = partial(bench.spark.read.parquet, str(table.plain))
    t = bench.seconds({
        "all": lambda: consume(sealed()), "plain all": lambda: consume(plain()),
        "one": lambda: consume(sealed().select(ONE_COLUMN)),
        "plain one": lambda: consume(plain().select(ONE_COLUMN)),
        "count": lambda: sealed().count(), "plain count": lambda: plain().count(),
    })  # fmt: skip
    for name, what in (("all", "all 16 columns"), ("one", "one column"), ("count", "count(*)")):
        yield within(f"{what}; peer Spark, plaintext", t[name], t[f"plain {name}"], 1.15)
        yield cpu_within("  its CPU time", t[name], t[f"plain {name}"], 1.15)


# --- writing -------------------------------------------------------------------------------------


def writes(bench: Bench) -> Iterator[Row]:
    """Measure encrypted writes of the data source and of Spark's own Parquet."""
    table = lineitem(bench)
    options = native_options(policy_of(table.settings))
    native(bench.spark.newSession(), policy=policy_of(table.settings))  # sends the jar
    rows = bench.spark.read.parquet(str(table.plain)).cache()
    rows.count()
    out, policy = str(bench.work / "written"), str(bench.work / "policy.toml")
    ours = rows.write.format("modcrypt").mode("append").option("policy", policy)
    t = bench.seconds({
        "source": lambda: ours.save(out),
        "native": lambda: rows.write.mode("append").options(**options).parquet(out),
        "plain": lambda: rows.write.mode("append").parquet(out),
    }, clean=[Path(out)])  # fmt: skip
    rows.unpersist()
    yield within("data source; peer native, encrypted", t["source"], t["native"], 1.3)
    yield cpu_within("  its CPU time", t["source"], t["native"], 1.3)
    yield within("native, encrypted; peer native, plaintext", t["native"], t["plain"], 1.3)
    yield cpu_within("  its CPU time", t["native"], t["plain"], 1.3)


# --- small files ---------------------------------------------------------------------------------


def small_files(bench: Bench) -> Iterator[Row]:
    """Measure the CPU time of reading each of many small files."""
    count, plain, sealed = bench.args.read_files, bench.work / "tiny", bench.work / "tiny.enc"
    key = "00112233445566778899aabbccddeeff"
    make_small_files(plain, sealed, count, bytes.fromhex(key))
    (bench.work / "tiny.key").write_text(key)
    bench.spark.dataSource.register(PlainSource)

    def load(kind: str, folder: Path, **options: str) -> Any:
        return bench.spark.read.format(kind).options(**options).load(str(folder))

    share = str(-(-count // FEWEST_TASKS))  # the source's own share
    t = bench.seconds({
        "source": lambda: consume(
            load("modcrypt", sealed, footerKey=f"file:{bench.work / 'tiny.key'}")
        ),
        "PyArrow": lambda: consume(load("plain_arrow", sealed, filesPerTask=share, footerKey=key)),
        "plain": lambda: consume(load("plain_arrow", plain, filesPerTask=share)),
        "Spark": lambda: consume(load("parquet", plain)),
    })  # fmt: skip
    name = f"{count:,} files; peer PyArrow in a source, encrypted"
    yield within(name, t["source"], t["PyArrow"], 2)
    for peer, what in (
        ("PyArrow", "PyArrow in a source, encrypted"),
        ("plain", "PyArrow in a source, plaintext"),
        ("Spark", "Spark's own, plaintext"),
    ):
        yield cpu_within(f"  CPU time; peer {what}", t["source"], t[peer], 2)
        yield Row("    of a file", each(t["source"], count), each(t[peer], count))
    yield from small_files_here(bench, plain_files(str(sealed)), key)
    shutil.rmtree(plain)
    shutil.rmtree(sealed)


def small_files_here(bench: Bench, paths: list[str], key: str) -> Iterator[Row]:
    """Measure the same reads in this process: without tasks, and without rows of the JVM."""
    settings = Settings(footer_key=f"file:{bench.work / 'tiny.key'}")
    decryption = mc.FileDecryptionProperties(footer_key=bytes.fromhex(key))
    schema = from_arrow_schema(mc.read_table(paths[0], decryption).schema)
    pieces, arrow = (
        [Piece(path, {}, is_small=True) for path in paths],
        PlainReader({"footerKey": key}, schema.names),
    )
    t = bench.seconds({
        "source": lambda: drain(read_pieces(settings, pieces, schema)),
        "read_table": lambda: drain(mc.read_table(path, decryption) for path in paths),
        "PyArrow": lambda: drain(arrow.read(InputPartition(paths))),
    })  # fmt: skip
    for name, what in (("source", "the source's reader"), ("read_table", "read_table")):
        mine, theirs = each(t[name], len(paths)), each(t["PyArrow"], len(paths))
        ratio = mine.median / theirs.median
        yield Row(f"  without Spark, {what}; peer PyArrow, encrypted", mine, theirs, ratio)


def drain(items: Iterable[object]) -> None:
    """Iterate over items and keep none."""
    deque(items, maxlen=0)


def each(taken: Figure, count: int) -> Figure:
    """Return the CPU time of each of some files."""
    return cpu_of(taken).times(1e3 / count, "ms")


def make_small_files(plain: Path, sealed: Path, count: int, key: bytes) -> None:
    """Write a file of 100 rows and 4 columns many times, in plaintext and encrypted."""
    table = pa.table({
        "id": range(100), "name": [f"name {n}" for n in range(100)],
        "price": [n / 7 for n in range(100)], "flag": [n % 2 == 0 for n in range(100)],
    })  # fmt: skip
    for folder in (plain, sealed):
        folder.mkdir()
    pq.write_table(table, plain / "0.parquet")
    mc.write_table(table, sealed / "0.parquet", mc.FileEncryptionProperties(footer_key=key))
    for folder in (plain, sealed):
        for n in range(1, count):
            shutil.copyfile(folder / "0.parquet", folder / f"{n}.parquet")

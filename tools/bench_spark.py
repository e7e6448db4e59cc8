"""Compare modcrypt on Spark with plaintext, and with the same work without Spark.

    python tools/bench_spark.py                  everything: 200 files of 10 MB, 20,000 of 8 KB
    python tools/bench_spark.py --quick          a fast look: small tables, few files
    python tools/bench_spark.py --only native --json result.json

Each job runs once to warm up (JVM, Python workers, page cache), then in turn with its peer; a
figure is the median [min-max]. Outputs are removed before a timed run, not during it. The ratio is
modcrypt's time over the peer's.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F  # noqa: N812  # as everybody does
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for a run as a script

import modcrypt as mc
from modcrypt.jobs.listing import Folder, list_tables
from modcrypt.spark import (
    Settings,
    encrypt_table,
    java_home,
    native,
    rotate_keys,
    scan_keys,
    verify_table,
)
from modcrypt.spark.session import spark_session
from tools.figures import MIB, Figure, Row, below, figure, line, within

CORES = 2
TABLE_FILES = 8
ONE_COLUMN = "l_extendedprice"
POLICY = """\
kms = "file:lake.keyring?passphrase=file:passphrase"
footer_key = "footer"

[column_keys]
columns = [{columns}]
"""
Job = Callable[[], object]


@dataclass(frozen=True)
class Bench:
    """Settings and inputs that all sections share."""

    spark: Any
    args: argparse.Namespace
    work: Path

    def settings(self, *columns: str) -> Settings:
        """Write a policy with a separate master key for columns; return references to keys."""
        path = self.work / "policy.toml"
        path.write_text(POLICY.format(columns=", ".join(map(json.dumps, columns))))
        return Settings(policy=mc.Policy.load(path))

    def seconds(self, jobs: dict[str, Job], clean: Sequence[Path] = ()) -> dict[str, Figure]:
        """Run the jobs in turn, in alternating order, after a warm-up of each."""
        taken: dict[str, list[float]] = {name: [] for name in jobs}
        order = list(jobs)
        for turn in range(self.args.repeat + 1):
            for name in order:
                for folder in clean:
                    shutil.rmtree(folder, ignore_errors=True)
                gc.collect()
                started = time.perf_counter()
                jobs[name]()
                if turn:
                    taken[name].append(time.perf_counter() - started)
            order.reverse()
        return {name: figure(samples) for name, samples in taken.items()}


def policy_of(settings: Settings) -> mc.Policy:
    assert settings.policy is not None
    return settings.policy


# --- reading -------------------------------------------------------------------------------------


class PlainSource(DataSource):
    """A minimal data source for plaintext Parquet, with which modcrypt's is compared."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the data source."""
        return "plain_arrow"

    def schema(self) -> StructType:
        """Read the schema of the first file."""
        return from_arrow_schema(pq.read_schema(plain_files(self.options["path"])[0]))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the columns of a schema."""
        return PlainReader(self.options["path"], schema.names)


class PlainReader(DataSourceReader):
    """A reader of one file per task; the files have Spark's types, so it casts nothing."""

    def __init__(self, folder: str, columns: list[str]) -> None:
        self._folder, self._columns = folder, columns

    def partitions(self) -> list[InputPartition]:
        """Return a partition for each file."""
        return [InputPartition(path) for path in plain_files(self._folder)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one file."""
        with pq.ParquetFile(partition.value) as file:
            yield from file.iter_batches(1 << 16, columns=self._columns)


def plain_files(folder: str) -> list[str]:
    return sorted(str(path) for path in Path(folder).glob("*.parquet"))


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

    def read_encrypted(**options: Any) -> None:
        reader = bench.spark.read.format("modcrypt").option("policy", policy)
        consume(reader.options(maxSplitBytes=table.size, **options).load(str(table.sealed)))

    def plain(columns: str | None = None) -> None:
        reader = bench.spark.read.format("plain_arrow")
        reader = reader if columns is None else reader.schema(f"{columns} decimal(15,2)")
        consume(reader.load(str(table.plain)))

    t = bench.seconds({
        "sealed": read_encrypted, "plain": plain,
        "one": partial(read_encrypted, columns=ONE_COLUMN), "plain one": partial(plain, ONE_COLUMN),
    })  # fmt: skip
    rows = sum(pq.read_metadata(path).num_rows for path in table.plain.iterdir())
    name = f"{rows:,} rows x 16; peer Arrow source, plaintext"
    yield within(name, t["sealed"], t["plain"], 1.2)
    yield within("  one column; peer all 16 of it", t["one"], t["sealed"], 0.25)
    yield Row("  one column; peer Arrow source, plaintext", t["one"], t["plain one"],
              t["one"].median / t["plain one"].median)  # fmt: skip


def native_reads(bench: Bench) -> Iterator[Row]:
    """Measure reads with Spark's own Parquet, encrypted and in plaintext."""
    table = lineitem(bench)
    session = bench.spark.newSession()
    native(session, policy=policy_of(table.settings))
    t = bench.seconds({
        "sealed": lambda: consume(session.read.parquet(str(table.sealed))),
        "plain": lambda: consume(bench.spark.read.parquet(str(table.plain))),
    })  # fmt: skip
    yield within("all 16 columns; peer Spark, plaintext", t["sealed"], t["plain"], 1.25)


# --- table jobs ----------------------------------------------------------------------------------


def make_files(folder: Path, number: int, size: int) -> list[str]:
    """Write files of random numbers, of about `size` bytes each; return the names of columns."""
    folder.mkdir()
    count = 16 if size > MIB else 4
    names = [f"c{n:02}" for n in range(count)]
    rows = max(1, (size - 400 * count) // (8 * count))
    random = np.random.default_rng(0)
    table = pa.table({name: random.random(rows) for name in names})
    pq.write_table(table, folder / "0.parquet", compression="none", use_dictionary=False)
    for n in range(1, number):
        shutil.copyfile(folder / "0.parquet", folder / f"{n}.parquet")
    return names


def encrypt_here(policy: mc.Policy, names: list[str], destination: str) -> None:
    """Encrypt files in this process."""
    encryption = mc.KeyTools.from_policy(policy).encryption(policy)
    for name in names:
        target = os.path.join(destination, os.path.basename(name))
        mc.encrypt_parquet(name, target, encryption, threads=1)


def encrypt_locally(
    pool: ProcessPoolExecutor, policy: mc.Policy, folder: Path, destination: Path
) -> None:
    """Divide the files of a folder among processes."""
    destination.mkdir()
    names = plain_files(str(folder))
    shares = [names[n::CORES] for n in range(CORES)]
    list(pool.map(encrypt_here, [policy] * CORES, shares, [str(destination)] * CORES))


def encrypting(bench: Bench, folder: Path, settings: Settings) -> dict[str, Figure]:
    """Encrypt a folder on Spark, and in as many processes without it."""
    policy, out = policy_of(settings), bench.work / "out"
    with ProcessPoolExecutor(CORES, multiprocessing.get_context("spawn")) as pool:
        t = bench.seconds(
            {
                "spark": lambda: require_result(encrypt_table(bench.spark, folder, out, settings)),
                "local": lambda: encrypt_locally(pool, policy, folder, out),
            },
            clean=[out],
        )
    shutil.rmtree(out, ignore_errors=True)
    return t


def require_result(report: Any, result: str = "encrypted") -> Any:
    """Exit if a file failed."""
    wrong = report.where(F.col("result") != result).select("path", "result", "message").first()
    if wrong is not None:
        raise SystemExit(f"bench: {wrong.path}: {wrong.result}, not {result}: {wrong.message}")
    return report


def large(bench: Bench) -> Iterator[Row]:
    """Encrypt and verify large files."""
    args = bench.args
    folder, out = bench.work / "large", bench.work / "out"
    settings = bench.settings(*make_files(folder, args.files, int(args.size * 1e6))[:4])
    t = encrypting(bench, folder, settings)
    name = f"encrypt_table, {args.files} files of {args.size:g} MB; peer {CORES} processes"
    yield within(name, t["spark"], t["local"], 1.5)
    total = sum(path.stat().st_size for path in folder.iterdir())
    yield speed("  of it, a core", total, t["spark"])
    require_result(encrypt_table(bench.spark, folder, out, settings))
    verify = bench.seconds(
        {"": lambda: require_result(verify_table(bench.spark, out, settings), "authentic")}
    )
    yield speed("  verify_table, a core", total, verify[""])
    shutil.rmtree(folder)
    shutil.rmtree(out)


def speed(name: str, size: int, taken: Figure) -> Row:
    middle, least, most = (
        size / seconds / CORES / 1e6 for seconds in (taken.median, taken.most, taken.least)
    )
    return Row(name, Figure(middle, least, most, "MB/s"))


def small(bench: Bench) -> Iterator[Row]:
    """Measure the cost of jobs for each small file."""
    args, spark = bench.args, bench.spark
    folder, out = bench.work / "small", bench.work / "out"
    settings = bench.settings(*make_files(folder, args.small_files, args.small_size)[:2])
    t = encrypting(bench, folder, settings)
    yield Row(f"encrypt_table, {args.small_files:,} files of {args.small_size:,} bytes",
              t["spark"], t["local"], t["spark"].median / t["local"].median)  # fmt: skip
    cost = partial(each, args.small_files)
    yield below("  a file and core", cost(t["spark"]), cost(t["local"]), 3)
    report = require_result(encrypt_table(spark, folder, out, settings))
    t = bench.seconds({
        "again": lambda: require_result(encrypt_table(spark, folder, out, settings), "current"),
        "verify": lambda: require_result(verify_table(spark, out, settings), "authentic"),
        "rotate": lambda: rotate_all(bench, out, settings),
        "rows": report.collect,
    })  # fmt: skip
    yield Row("  a file that is done already, a core", cost(t["again"]))
    yield Row("  verify_table, a file and core", cost(t["verify"]))
    yield Row("  rotate_keys, a file and core", cost(t["rotate"]))
    rows = report.toArrow()
    yield Row("  the driver collects a row of the report", micro(t["rows"], rows.num_rows))
    yield Row("  a row of the report", figure([rows.nbytes / rows.num_rows], "bytes"))
    keks = scan_keys(spark, out, settings).select("kek_id").where("kek_id is not null").distinct()
    yield Row("  KEKs in all files (1 a master key and process)", figure([keks.count()], "KEKs"))
    yield from listing(bench, folder)
    shutil.rmtree(folder)
    shutil.rmtree(out)


def rotate_all(bench: Bench, folder: Path, settings: Settings) -> None:
    """Create new versions of the master keys, and rotate all files to them."""
    keyring: Any = keyring_of(bench.work)
    for name in ("footer", "columns"):
        keyring.rotate_key(name)
    require_result(rotate_keys(bench.spark, folder, settings), "rotated")


def each(files: int, taken: Figure) -> Figure:
    """Return milliseconds per file and core."""
    scale = 1e3 * CORES / files
    return Figure(taken.median * scale, taken.least * scale, taken.most * scale, "ms")


def micro(taken: Figure, number: int) -> Figure:
    scale = 1e6 / number
    return Figure(taken.median * scale, taken.least * scale, taken.most * scale, "us")


# --- what the driver does ------------------------------------------------------------------------


def listing(bench: Bench, folder: Path) -> Iterator[Row]:
    """List a folder on the driver."""
    t = bench.seconds({"": lambda: list_tables([Folder.at(folder, None)])})
    tracemalloc.start()
    found = list_tables([Folder.at(folder, None)])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    yield Row("  the driver lists a file", micro(t[""], len(found)))
    yield Row("  memory of the driver for it", figure([peak / len(found)], "bytes"))


def tasks(bench: Bench) -> Iterator[Row]:
    """Measure the cost of Python tasks that do nothing."""
    few, many = 8, bench.args.tasks
    spark = bench.spark

    def nothing(number: int) -> None:
        frame = spark.range(number).repartitionById(number, F.col("id").cast("int"))
        frame.mapInArrow(lambda batches: batches, "id long").localCheckpoint()

    t = bench.seconds({str(number): partial(nothing, number) for number in (few, many)})
    cost = (t[str(many)].median - t[str(few)].median) / (many - few) * 1e3 * CORES
    yield Row(f"a job of {few} empty tasks", t[str(few)])
    yield Row(f"each further one, of {many}, a core", figure([cost], "ms"))


# --- setting up ----------------------------------------------------------------------------------

SECTIONS = {
    "source": ("Reading through the data source", source),
    "native": ("Reading by Spark's own Parquet with our keys", native_reads),
    "large": ("Jobs on large files", large),
    "small": ("Jobs on small files", small),
    "tasks": ("Tasks", tasks),
}
QUICK = {"scale": 0.05, "files": 8, "small_files": 400, "tasks": 64}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scale", type=float, default=1, help="TPC-H scale factor of lineitem")
    parser.add_argument("--files", type=int, default=200, help="large files")
    parser.add_argument("--size", type=float, default=10, help="of each, in MB")
    parser.add_argument("--small-files", type=int, default=20_000)
    parser.add_argument("--small-size", type=int, default=8192, help="of each, in bytes")
    parser.add_argument("--tasks", type=int, default=512, help="empty tasks")
    parser.add_argument("--repeat", type=int, default=3, help="timed runs of each job")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK}")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="figures for programs")
    shared = Path("/dev/shm")
    base = shared if shared.is_dir() else Path(tempfile.gettempdir())
    parser.add_argument("--base", type=Path, default=base, help="folder for the files; on tmpfs")
    first = parser.parse_known_args()[0]
    if first.quick:  # options given explicitly take precedence
        parser.set_defaults(**QUICK)
    return parser.parse_args()


def keyring_of(work: Path) -> Any:
    passphrase = (work / "passphrase").read_text()
    return mc.open_kms(f"file:{work / 'lake.keyring'}", passphrase=passphrase)


def make_keyring(work: Path) -> None:
    (work / "passphrase").write_text("bench")
    keyring = mc.Keyring.create(work / "lake.keyring", passphrase="bench")
    for name in ("footer", "columns"):
        keyring.create_key(name)


def spark_settings(work: Path) -> dict[str, str]:
    return {
        "spark.driver.memory": "4g",
        "spark.local.dir": str(work / "spark"),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.sql.shuffle.partitions": str(CORES),
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
    }


def main() -> None:
    args = arguments()
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")  # not used here
    os.environ["JAVA_HOME"] = java_home()
    print(f"load: {os.getloadavg()[0]:.1f} at the start; {vars(args)}")
    print(
        "\n" + line("figure", "modcrypt", "peer", "ratio", "target", "met", "CPU", "CPU of peer"),
        flush=True,
    )
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=args.base, prefix="modcrypt-bench-spark-") as folder:
        work = Path(folder)
        make_keyring(work)
        with spark_session(f"local[{CORES}]", "modcrypt bench", spark_settings(work)) as spark:
            bench = Bench(spark, args, work)
            for name in args.only:
                title, section = SECTIONS[name]
                print(f"\n{title}", flush=True)
                for row in section(bench):
                    print(row, flush=True)
                    found.append({"section": name} | asdict(row))
    if args.json:
        args.json.write_text(json.dumps({"load": os.getloadavg(), "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Compare modcrypt on Spark with plaintext, and with the same work without Spark.

    python tools/bench_spark.py                  everything: 200 files of 10 MB, 20,000 of 8 KB
    python tools/bench_spark.py --quick          a fast look: small tables, few files
    python tools/bench_spark.py --only native --json result.json

Each job runs once to warm up (JVM, Python workers, page cache), then in turn with its peer; a
figure is the median [min-max]. Outputs are removed before a timed run, not during it. The ratio is
modcrypt's time over the peer's. The last two columns are user and system time of the driver, its
JVM and its Python workers; ratios of CPU time are of their sums.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import tracemalloc
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F  # noqa: N812  # as everybody does

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for a run as a script

import modcrypt as mc
from modcrypt.jobs.listing import Folder, list_tables
from modcrypt.spark import Settings, encrypt_table, java_home, rotate_keys, scan_keys, verify_table
from modcrypt.spark.engine import spark_session
from tools import bench_java_footers, bench_spark_reads
from tools.bench_spark_runs import CORES, Bench, plain_files, policy_of
from tools.figures import MIB, Figure, Row, below, figure, line, within

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
    "source": ("Reading through the data source", bench_spark_reads.source),
    "native": ("Spark's own Parquet with our keys", bench_spark_reads.native_reads),
    "footers": ("Opening files in fresh JVMs", bench_java_footers.footers),
    "writes": ("Writing", bench_spark_reads.writes),
    "files": ("Reading small files", bench_spark_reads.small_files),
    "large": ("Jobs on large files", large),
    "small": ("Jobs on small files", small),
    "tasks": ("Tasks", tasks),
}
QUICK = {"scale": 0.05, "files": 8, "small_files": 400, "read_files": 500, "tasks": 64}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scale", type=float, default=1, help="TPC-H scale factor of lineitem")
    parser.add_argument("--files", type=int, default=200, help="large files")
    parser.add_argument("--size", type=float, default=10, help="of each, in MB")
    parser.add_argument("--small-files", type=int, default=20_000)
    parser.add_argument("--small-size", type=int, default=8192, help="of each, in bytes")
    parser.add_argument("--read-files", type=int, default=10_000, help="small files to read")
    parser.add_argument("--tasks", type=int, default=512, help="empty tasks")
    parser.add_argument("--repeat", type=int, default=3, help="timed runs of each job")
    parser.add_argument("--warm-up", type=int, default=1, help="runs of each job before them")
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
    return mc.kms.open_kms(f"file:{work / 'lake.keyring'}", passphrase=passphrase)


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
    os.environ["PYTHONPATH"] = sys.path[0]  # Spark's workers import the plaintext source
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

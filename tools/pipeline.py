"""Run a pipeline on Spark: encrypt and join tables, rotate their keys, and check the result.

    python tools/pipeline.py                                TPC-H at scale 0.01: pipeline-output/
    python tools/pipeline.py --scale 1 --folder /data/lake  a folder that is new or empty

All files remain in the folder.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb

import modcrypt as mc
from modcrypt.spark import Settings, encrypt_table, java_home, rotate_keys, scan_keys, verify_table
from modcrypt.spark.engine import spark_session

OUTPUT = Path(__file__).resolve().parent.parent / "pipeline-output"
BIN = Path(sys.executable).parent
PARTS = 4
RESULT = "revenue"

# Of each table: master keys, and the columns whose keys they wrap. All others are under `lake`.
TABLES = {
    "customer": {"people": ["c_name", "c_address", "c_phone"]},
    "orders": {"prices": ["o_totalprice"]},
    "lineitem": {"prices": ["l_extendedprice", "l_discount", "l_tax"], "comments": ["l_comment"]},
    RESULT: {"prices": ["revenue"]},
}
PLAIN = [name for name in TABLES if name != RESULT]
MASTER_KEYS = ("lake", "people", "prices", "comments")
ROTATED = "prices"

# Query 3 of TPC-H, without its LIMIT; the same text for Spark and for DuckDB.
QUERY = """\
SELECT l_orderkey, sum(l_extendedprice * (1 - l_discount)) AS revenue, o_orderdate, o_shippriority
FROM customer JOIN orders ON c_custkey = o_custkey JOIN lineitem ON l_orderkey = o_orderkey
WHERE c_mktsegment = 'BUILDING'
  AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1995-03-15'
GROUP BY l_orderkey, o_orderdate, o_shippriority"""

# Spark prunes no columns of a data source in Python: the option does.
COLUMNS = {
    "customer": "c_custkey,c_mktsegment",
    "orders": "o_orderkey,o_custkey,o_orderdate,o_shippriority",
    "lineitem": "l_orderkey,l_extendedprice,l_discount,l_shipdate",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scale", type=float, default=0.01, help="TPC-H scale factor")
    parser.add_argument("--folder", type=Path, help="new or empty; default: pipeline-output/")
    parser.add_argument("--master", default="local[2]", help="Spark's; executors reach the folder")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")  # not used here
    lake = Lake(ready(args.folder))
    print(f"Working in {lake.folder}")

    say("Real input: three tables of TPC-H")
    tables = f"--tables={','.join(PLAIN)}"
    lake.run("tpchgen-cli", "parquet", "-s", f"{args.scale:g}", tables, f"--parts={PARTS}",
             "--output-dir=plain", "--quiet")  # fmt: skip
    for name in PLAIN:
        print(f"{name:9} {lake.size(f'plain/{name}')}")
    make_keys(lake)

    os.environ["JAVA_HOME"] = java_home()
    log = lake.folder / "events"
    log.mkdir()
    settings = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": log.as_uri()}
    settings |= {"spark.sql.shuffle.partitions": "4", "spark.ui.showConsoleProgress": "false"}
    with spark_session(args.master, "modcrypt pipeline", settings) as spark:
        encrypt(spark, lake)
        query(spark, lake)
        rotate(spark, lake)
        verify(spark, lake)
        compare(spark, lake)
    search_event_log(lake)

    say("Summary")
    print("Spark joined encrypted tables and wrote an encrypted result, which equals what DuckDB")
    print("makes of the plaintext. The keys under one master key were rotated, every byte of every")
    print("file was authenticated, and Spark's event log has no key in it.")


class Lake:
    """The folder of the pipeline, and the paths in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, table: str) -> str:
        """Return the folder of an encrypted table."""
        return str(self.folder / "encrypted" / table)

    def policy(self, table: str) -> str:
        """Return the path of a table's policy."""
        return str(self.folder / f"{table}.toml")

    def settings(self, table: str) -> Settings:
        """Return references to a table's keys."""
        return Settings(policy=mc.Policy.load(self.policy(table)))

    def plain(self, table: str) -> str:
        """Return the folder of a plaintext table."""
        return str(self.folder / "plain" / table)

    def keyring(self) -> Any:
        """Open the keyring."""
        passphrase = (self.folder / "passphrase.txt").read_text().strip()
        return mc.kms.open_kms(f"file:{self.folder / 'lake.keyring'}", passphrase=passphrase)

    def size(self, inside: str) -> str:
        """Return the number and size of the files in a folder, as text."""
        files = list((self.folder / inside).rglob("*.parquet"))
        size = sum(file.stat().st_size for file in files)
        return f"{len(files)} files, {size / 2**20:.1f} MiB"

    def run(self, *command: str) -> str:
        """Run a program of the virtual environment, and print the command."""
        print(f"$ {shlex.join(command)}", flush=True)
        done = subprocess.run(
            [BIN / command[0], *command[1:]],
            cwd=self.folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"pipeline: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout


def ready(folder: Path | None) -> Path:
    """Return an empty folder; only the default folder is emptied."""
    if folder is None:
        shutil.rmtree(OUTPUT, ignore_errors=True)
        folder = OUTPUT
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        sys.exit(f"pipeline: {folder} is not empty: pass a new folder")
    return folder.resolve()


# --- the steps -----------------------------------------------------------------------------------


def make_keys(lake: Lake) -> None:
    say("Master keys in a keyring, and a policy for each table")
    passphrase = secrets.token_urlsafe(24)
    fd = os.open(lake.folder / "passphrase.txt", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(f"{passphrase}\n")
    keyring = mc.Keyring.create(lake.folder / "lake.keyring", passphrase=passphrase)
    for master_key in MASTER_KEYS:
        keyring.create_key(master_key)
    for table, columns in TABLES.items():
        lines = [f"{key} = {json.dumps(names)}" for key, names in columns.items()]
        Path(lake.policy(table)).write_text(
            'kms = "file:lake.keyring?passphrase=file:passphrase.txt"  # beside this file\n'
            f'footer_key = "lake"\naad_prefix = "{table}/{{name}}"\n\n[column_keys]\n'
            + "\n".join(lines) + "\n"
        )  # fmt: skip
    print(Path(lake.policy("lineitem")).read_text(), end="")


def encrypt(spark: Any, lake: Lake) -> None:
    say("Files that are there are encrypted page by page: encrypt_table")
    for name in ("customer", "lineitem"):
        started = time.perf_counter()
        report = encrypt_table(spark, lake.plain(name), lake.path(name), lake.settings(name))
        counts = count_results(report, {"encrypted"})
        print(f"{name:9} {counts} in {time.perf_counter() - started:.1f} s")
    say("Rows that Spark has are written encrypted: df.write.format('modcrypt')")
    orders = spark.read.parquet(lake.plain("orders"))
    write(orders, lake, "orders")
    print(f"orders    {lake.size('encrypted/orders')}")


def write(frame: Any, lake: Lake, table: str) -> None:
    writer = frame.write.format("modcrypt").mode("append")
    writer.option("policy", lake.policy(table)).save(lake.path(table))


def query(spark: Any, lake: Lake) -> None:
    say("Query 3 of TPC-H on the encrypted tables, into an encrypted table")
    for name, columns in COLUMNS.items():
        reader = spark.read.format("modcrypt").option("policy", lake.policy(name))
        reader.option("columns", columns).load(lake.path(name)).createOrReplaceTempView(name)
    print(QUERY)
    started = time.perf_counter()
    write(spark.sql(QUERY).coalesce(2), lake, RESULT)
    print(
        f"\n{lake.size(f'encrypted/{RESULT}')} in {time.perf_counter() - started:.1f} s; its best:"
    )
    rows = read(spark, lake, RESULT).orderBy("revenue", ascending=False).limit(3).collect()
    for row in rows:
        print(f"  order {row.l_orderkey:>9,}  {row.revenue:>14,}  {row.o_orderdate}")


def read(spark: Any, lake: Lake, table: str) -> Any:
    reader = spark.read.format("modcrypt").option("policy", lake.policy(table))
    return reader.load(lake.path(table))


def rotate(spark: Any, lake: Lake) -> None:
    say(f"A new version of the master key {ROTATED}, and the keys of all files under it")
    old = next(Path(lake.path("lineitem")).glob("*.parquet"))
    copy = lake.folder / "old-copy" / old.name  # the AAD prefix has the file's name in it
    copy.parent.mkdir()
    shutil.copy(old, copy)
    keyring = lake.keyring()
    keyring.rotate_key(ROTATED)
    for name in TABLES:
        report = rotate_keys(spark, lake.path(name), lake.settings(name))
        print(f"{name:9} {count_results(report, {'rotated', 'current'})}")
    versions = Counter(
        row.version
        for name in TABLES
        for row in scan_keys(spark, lake.path(name), lake.settings(name)).collect()
        if row.master_key_id == ROTATED
    )
    check(set(versions) == {"2"}, f"{versions.total()} keys are under version 2 of {ROTATED}")
    keyring.disable_key(ROTATED, version=1)
    policy = mc.Policy.load(lake.policy("lineitem"))
    fresh = mc.KeyTools.from_policy(policy)  # another one may keep KEKs it was given before
    try:
        mc.read_table(copy, fresh.decryption(policy), columns=["l_tax"])
    except mc.errors.KeyDisabledError as error:
        print(f"An old copy of a file: {error}")
    else:
        sys.exit("pipeline: FAILED: an old copy opens with a disabled version")


def verify(spark: Any, lake: Lake) -> None:
    say("Every module of every file is authenticated: verify_table")
    for name in TABLES:
        rows = verify_table(spark, lake.path(name), lake.settings(name)).collect()
        check({row.result for row in rows} == {"authentic"} and all(row.complete for row in rows),
              f"{name}: {len(rows)} files, {sum(row.modules for row in rows)} modules, "
              f"{sum(row.authenticated_bytes for row in rows):,} bytes")  # fmt: skip


def compare(spark: Any, lake: Lake) -> None:
    say("The result, against DuckDB on the plaintext files")
    with duckdb.connect() as peer:
        for name in PLAIN:
            peer.execute(f"CREATE VIEW {name} AS FROM '{sql(lake.plain(name))}/*.parquet'")
        expected = peer.execute(QUERY).fetchall()
    found = [tuple(row) for row in read(spark, lake, RESULT).collect()]
    check(bool(expected) and sorted(found) == sorted(expected), f"the same {len(found):,} rows")


def sql(path: str) -> str:
    return path.replace("'", "''")


def search_event_log(lake: Lake) -> None:
    say("Spark's event log has no key and no passphrase in it")
    command = ("modcrypt", "doctor", "--json", "--policy", lake.policy("lineitem"),
               "--file", "passphrase.txt", "--spark-event-log", "events")  # fmt: skip
    lake.run(*command)
    passphrase = (lake.folder / "passphrase.txt").read_bytes().strip()
    logs = [file for file in (lake.folder / "events").rglob("*") if file.is_file()]
    check(bool(logs) and not any(passphrase in file.read_bytes() for file in logs),
          f"{len(logs)} files of it were searched")  # fmt: skip


# --- telling -------------------------------------------------------------------------------------


def say(title: str) -> None:
    print(f"\n=== {title}", flush=True)


def count_results(report: Any, good: Iterable[str]) -> str:
    """Count the results of a job; exit if a file failed."""
    rows = report.collect()
    for row in rows:
        if row.failed or row.result not in good:
            sys.exit(f"pipeline: FAILED: {row.path}: {row.result}: {row.message}")
    counts = Counter(row.result for row in rows)
    return ", ".join(f"{number} files {result}" for result, number in sorted(counts.items()))


def check(holds: bool, what: str) -> None:
    if not holds:
        sys.exit(f"pipeline: FAILED: {what}")
    print(f"ok: {what}")


if __name__ == "__main__":
    main()

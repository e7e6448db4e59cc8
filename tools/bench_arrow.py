"""Compare Arrow tables with the encrypted writes and reads of peers, for `tools/bench.py`."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe

import modcrypt as mc
from tools.bench_files import KEY, lineitem
from tools.figures import MIB, Bench, Job, Row, below, figure, within


def arrow_write(bench: Bench) -> Iterator[Row]:
    table = pq.read_table(lineitem(bench)["encrypt"])
    keys = {name: bytes((n + 1,)) * 16 for n, name in enumerate(table.column_names)}
    sealing = mc.FileEncryptionProperties(footer_key=KEY, column_keys=keys)
    explicit = pe.create_encryption_properties(footer_key=KEY)
    out, theirs = bench.scratch / "a", bench.scratch / "b"
    ours = partial(mc.write_table, table, out, sealing)
    t = bench.time({
        "all": ours, "one": partial(ours, threads=1),
        "PyArrow": partial(pq.write_table, table, theirs, encryption_properties=explicit),
        "plain": partial(pq.write_table, table, theirs),
    })  # fmt: skip
    name = f"write_table, {len(keys)} column keys"
    yield within(f"{name}; peer PyArrow, one key", t["all"], t["PyArrow"], 0.65)
    yield within(f"{name}, threads=1; peer PyArrow, one key", t["one"], t["PyArrow"], 1.1)
    yield Row("  PyArrow, not encrypted", None, t["plain"])
    yield from other_writers(bench, table)
    ours()
    opening = mc.FileDecryptionProperties(footer_key=KEY, column_keys=keys)
    mc.decrypt_parquet(out, theirs, opening)
    if not pq.read_table(theirs).equals(table):
        raise SystemExit("reading did not give the table back: these figures mean nothing")


def other_writers(bench: Bench, table: pa.Table) -> Iterator[Row]:
    """Compare with the encrypted writes of Polars and DuckDB, all with one key and Snappy."""
    frame, out, theirs = pl.DataFrame(table), bench.scratch / "a", bench.scratch / "b"
    sealing = mc.FileEncryptionProperties(footer_key=KEY)
    keys = pl.ParquetEncryptionProperties(footer_key=KEY)
    with duckdb_with_key() as database:
        database.register("rows", table)
        t = bench.time({
            "table": partial(mc.write_table, table, out, sealing),
            "frame": partial(mc.write_table, frame, out, sealing),
            "Polars": partial(frame.write_parquet, theirs, compression="snappy", encryption=keys),
            "DuckDB": partial(database.execute, copy_rows(theirs)),
        })  # fmt: skip
    yield within("write_table, a Polars frame; peer Polars", t["frame"], t["Polars"], 1.1)
    for peer in ("Polars", "DuckDB"):
        name = f"write_table, an Arrow table; peer {peer}"
        yield Row(name, t["table"], t[peer], t["table"].median / t[peer].median, "report")


@contextmanager
def duckdb_with_key() -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a database that knows `KEY` as `k`."""
    with duckdb.connect() as database:
        database.execute("SET force_mbedtls_unsafe = 'true'")  # else it writes nothing encrypted
        database.execute(f"PRAGMA add_parquet_key('k', '{KEY.decode()}')")
        yield database


def arrow_read(bench: Bench) -> Iterator[Row]:
    files = lineitem(bench)
    plain, sealed = files["encrypt"], files["decrypt"]
    opening = mc.FileDecryptionProperties(footer_key=KEY)
    explicit = pe.create_decryption_properties(KEY)

    def read_view(read: Callable[[Any], object]) -> None:
        with mc.open_parquet(sealed, opening) as view:
            read(view)

    ours = partial(mc.read_table, sealed, opening)
    theirs = partial(pq.read_table, sealed, decryption_properties=explicit)
    arrow, polars = partial(read_view, pq.read_table), partial(read_view, pl.read_parquet)
    # In pairs: who comes after another pays for the memory that it gives back.
    t = bench.time({"modcrypt": ours, "PyArrow": theirs})
    yield within("read_table; peer PyArrow, encrypted", t["modcrypt"], t["PyArrow"], 1.05)
    t = bench.time({"view": arrow, "PyArrow": theirs})
    yield within(
        "PyArrow through open_parquet; peer PyArrow, encrypted", t["view"], t["PyArrow"], 1.15
    )
    t = bench.time({"view": polars, "Polars": partial(pl.read_parquet, plain)})
    yield within("Polars through open_parquet; peer Polars, plain", t["view"], t["Polars"], 1.3)
    keys = pl.ParquetDecryptionProperties(footer_key=KEY)
    t = bench.time({"view": polars, "Polars": partial(pl.read_parquet, sealed, decryption=keys)})
    yield within("Polars through open_parquet; peer Polars, encrypted", t["view"], t["Polars"], 1)
    yield from duckdb_read(bench, mc.read_table(sealed, opening), ours)
    if not mc.read_table(sealed, opening).equals(pq.read_table(plain)):
        raise SystemExit("read_table did not give the table: these figures mean nothing")


def duckdb_read(bench: Bench, table: pa.Table, ours: Job) -> Iterator[Row]:
    """Compare with DuckDB reading its own file, because each refuses the other's.

    modcrypt needs `aad_file_unique`; DuckDB 2.0 opens one data page of a chunk.
    """
    path = bench.work / "duckdb"
    query = f"FROM read_parquet('{path}', encryption_config={{footer_key: 'k'}})"
    with duckdb_with_key() as database:
        database.register("rows", table)
        database.execute(copy_rows(path))
        t = bench.time({"modcrypt": ours, "DuckDB": lambda: database.sql(query).to_arrow_table()})
    yield within("read_table; peer DuckDB, its own file", t["modcrypt"], t["DuckDB"], 1)


def copy_rows(path: Path) -> str:
    """Return DuckDB's statement that writes the view `rows` with the key `k`."""
    return f"COPY rows TO '{path}' (FORMAT parquet, ENCRYPTION_CONFIG {{footer_key: 'k'}})"


class Watched(io.FileIO):
    """A file that counts the bytes read from it."""

    taken = 0

    def read(self, size: int | None = -1) -> bytes:
        """Read bytes and count them."""
        data = super().read(size)
        self.taken += len(data)
        return data


def arrow_bytes(bench: Bench) -> Iterator[Row]:
    sealed = lineitem(bench)["decrypt"]
    opening = mc.FileDecryptionProperties(footer_key=KEY)
    metadata = mc.ParquetFile(sealed, opening).metadata
    footer = int.from_bytes(sealed.read_bytes()[-8:-4], "little") + 8
    ways: dict[str, Callable[[Watched, str], object]] = {
        "read_table": lambda file, name: mc.read_table(file, opening, columns=[name]),
        "PyArrow through open_parquet": lambda file, name: pq.read_table(
            mc.open_parquet(file, opening), columns=[name]
        ),
    }
    for way, read in ways.items():
        worst = (0.0, 0, 0, "")
        for c in range(metadata.num_columns):
            groups = range(metadata.num_row_groups)
            chunks = sum(metadata.row_group(r).column(c).total_compressed_size for r in groups)
            name = metadata.row_group(0).column(c).path_in_schema
            with Watched(sealed) as file:
                read(file, name)
                worst = max(
                    worst, (file.taken / (chunks + footer), file.taken, chunks + footer, name)
                )
        _, taken, needed, name = worst
        what = f"one of {metadata.num_columns} columns, {way}: the worst, {name}"
        yield within(what, figure([taken / MIB], "MiB"), figure([needed / MIB], "MiB"), 1.05)


# Random integers: what neither a dictionary nor a codec makes smaller takes most memory.
STREAM = """
import os, sys, numpy as np, pyarrow as pa, modcrypt as mc
random = np.random.default_rng(1)
def batch():
    return pa.record_batch({f"c{n}": random.integers(0, 1 << 62, 1 << 16) for n in range(24)})
def peak():
    print(int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1024)
peak()
fed, reported = 0, 0
keys = mc.FileEncryptionProperties(footer_key=bytes.fromhex(sys.argv[1]))
with open(os.devnull, "wb") as nowhere, mc.ParquetWriter(nowhere, batch().schema, keys) as writer:
    while reported < 4:
        new = batch()
        writer.write_batch(new)
        fed += new.nbytes
        if fed // 10**9 > reported:
            reported += 1
            peak()
peak()
"""


def arrow_memory(bench: Bench) -> Iterator[Row]:
    command = [sys.executable, "-c", STREAM, KEY.hex()]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    idle, *grown, end = (figure([float(peak)], "MiB") for peak in done.stdout.split())
    yield below("ParquetWriter fed 4 GB in batches; peer importing modcrypt", end, idle, 1024)
    for gigabytes, peak in enumerate(grown, 1):
        yield Row(f"  after {gigabytes} GB", peak)

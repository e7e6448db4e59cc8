"""Measure filters that choose one row, for `tools/bench.py`.

All figures are CPU time (user and system) of all threads, and peak memory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import modcrypt as mc
from tools.bench_files import KEY
from tools.bench_tiny import measure, peak_memory
from tools.figures import MIB, Bench, Row, below, within

VALUE = 4 << 10
"""Size in bytes of the long values, which do not compress."""

_PEERS = {
    "modcrypt": (
        "import modcrypt, pyarrow.compute as pc; from modcrypt import FileDecryptionProperties as P"
        "; modcrypt.read_table({path!r}, P(footer_key={key!r}), filters=pc.field('id') == 777)"
    ),
    "PyArrow": (
        "import pyarrow.parquet as pq, pyarrow.compute as pc; "
        "pq.read_table({path!r}, filters=pc.field('id') == 777)"
    ),
    "PyArrow, encrypted": (
        "import pyarrow.parquet as pq, pyarrow.compute as pc, pyarrow.parquet.encryption as pe; "
        "pq.ParquetFile({path!r}, decryption_properties=pe.create_decryption_properties({key!r}))"
        ".read().filter(pc.field('id') == 777)"
    ),
}


def filters(bench: Bench) -> Iterator[Row]:
    """Measure one row of a large column chunk, and of many row groups or columns."""
    for index in (True, False):
        yield from large_chunk(bench, index=index)
    shapes = {"1,500 row groups of 5 x 2": (5, 3000, 2), "2,000 columns x 2": (2000, 2, 2)}
    for title, (columns, rows, size) in shapes.items():
        yield from many_chunks(bench, title, columns, rows, size)


def large_chunk(bench: Bench, *, index: bool) -> Iterator[Row]:
    """Measure a row whose place no index shows, beside long values; `scale` x 200 MB of them."""
    rows = int(51_200 * bench.scale)
    kind = "with offset index" if index else "without offset index"
    name = f"long-values-{rows}-{'index' if index else 'bare'}"
    plain = bench.cached_file(name, partial(write_long_values, rows=rows, index=index))
    sealed = bench.work / "long"
    encrypt(plain, sealed)
    keys, wanted = mc.FileDecryptionProperties(footer_key=KEY), pc.field("id") == 777
    t = measure(bench, {
        "modcrypt": partial(mc.read_table, sealed, keys, filters=wanted),
        "PyArrow": partial(pq.read_table, plain, filters=wanted),
        "all": partial(mc.read_table, sealed, keys),
    })  # fmt: skip
    title = f"one row beside {rows * VALUE / MIB:.0f} MiB, {kind}"
    yield within(f"{title}; peer PyArrow, plaintext", t["modcrypt"], t["PyArrow"], 0.1)
    yield Row("  all rows, without a filter", t["all"])
    paths = {"modcrypt": sealed, "PyArrow": plain, "PyArrow, encrypted": sealed}
    peaks = {
        name: peak_memory([sys.executable, "-c", script.format(path=str(paths[name]), key=KEY)])
        for name, script in _PEERS.items()
    }
    yield below("  peak memory; peer PyArrow, plaintext", peaks["modcrypt"], peaks["PyArrow"], 200)
    yield Row("  peak memory of PyArrow, encrypted", None, peaks["PyArrow, encrypted"])


def write_long_values(path: Path, *, rows: int, index: bool) -> None:
    rng = np.random.default_rng(1)
    table = pa.table(
        {
            "id": rng.permutation(rows),
            "long": pa.array([rng.bytes(VALUE) for _ in range(rows)], pa.binary()),
            "number": rng.random(rows),
            "name": [f"name {n % 1000}" for n in range(rows)],
        }
    )
    pq.write_table(table, path, row_group_size=rows, write_page_index=index)


def encrypt(plain: Path, sealed: Path) -> None:
    fresh = mc.FileEncryptionProperties(footer_key=KEY)
    mc.encrypt_parquet(plain, sealed, fresh, overwrite=True)


def many_chunks(bench: Bench, title: str, columns: int, rows: int, size: int) -> Iterator[Row]:
    """Measure a filter and a read of row groups of a few rows."""
    table = pa.table({f"c{n}": pa.array(range(rows), pa.int32()) for n in range(columns)})
    plain, sealed = bench.work / "many-plain", bench.work / "many"
    pq.write_table(table, plain, row_group_size=size)
    encrypt(plain, sealed)
    keys, wanted = mc.FileDecryptionProperties(footer_key=KEY), pc.field("c0") == 1
    t = measure(bench, {
        "filter": partial(mc.read_table, sealed, keys, filters=wanted),
        "read": partial(mc.read_table, sealed, keys),
        "PyArrow filter": partial(pq.read_table, plain, filters=wanted),
        "PyArrow read": lambda: pq.ParquetFile(plain).read(),
    })  # fmt: skip
    for way in ("filter", "read"):
        yield within(f"{title}: {way}; peer PyArrow, plaintext", t[way], t[f"PyArrow {way}"], 1.5)

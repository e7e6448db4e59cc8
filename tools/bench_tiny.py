"""Measure the cost of a start and of tiny files, for `tools/bench.py`.

All figures are CPU time (user and system) of all threads: what users wait for here is Python, and
wall time would measure what else the machine does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe

import modcrypt as mc
from tools.bench_files import KEY
from tools.bench_rekey import verify
from tools.bench_wide import Keys, write_wide
from tools.figures import MIB, Bench, Figure, Job, Row, Sample, below, figure, now, timing, within

ROUNDS = 7
"""Interleaved rounds for one of `--repeat`: differences are small, other work is not."""

SHARE = 0.05
"""CPU seconds of one round of a job, which is repeated until it takes so long."""

_NAMES = (
    "import modcrypt; modcrypt.read_table; modcrypt.write_table; modcrypt.encrypt_parquet; "
    "modcrypt.ParquetFile"
)
_READ = (
    "import modcrypt; from modcrypt import FileDecryptionProperties as P; "
    "modcrypt.read_table({path!r}, P(footer_key={key!r}))"
)
_READ_PYARROW = (
    "import pyarrow.parquet as pq, pyarrow.parquet.encryption as pe; "
    "pq.ParquetFile({path!r}, decryption_properties=pe.create_decryption_properties({key!r}))"
    ".read()"
)


def start(bench: Bench) -> Iterator[Row]:
    """Measure imports, a first read, and the commands that only look."""
    path = bench.work / "start.parquet"
    mc.write_table(tiny_table(), path, mc.FileEncryptionProperties(footer_key=KEY))
    fill = {"path": str(path), "key": KEY}
    python, program = [sys.executable, "-c"], [sys.executable, "-m", "modcrypt"]
    commands = {
        "Python": [*python, "pass"],
        "names": [*python, _NAMES],
        "pyarrow.parquet": [*python, "import pyarrow.parquet"],
        "read": [*python, _READ.format(**fill)],
        "PyArrow read": [*python, _READ_PYARROW.format(**fill)],
        "--version": [*program, "--version"],
        "--help": [*program, "--help"],
        "inspect": [*program, "inspect", str(path)],
    }
    taken: dict[str, list[Sample]] = {name: [] for name in commands}
    for turn in range(ROUNDS * bench.repeat + 1):
        for name, command in commands.items():
            sample = run_process(command)
            if turn:
                taken[name].append(sample)
    cpu = {name: processor_time(samples) for name, samples in taken.items()}
    yield Row("Python alone", None, cpu["Python"])
    pairs = (("names", "pyarrow.parquet", 1.15, 1.2), ("read", "PyArrow read", 1.5, 1.5))
    titles = {"names": "import and first names", "read": "import and a first read, encrypted"}
    for name, peer, most, most_memory in pairs:
        yield within(f"{titles[name]}; peer {peer}", cpu[name], cpu[peer], most)
        ours, theirs = (peak_memory(commands[each]) for each in (name, peer))
        yield within("  its peak memory", ours, theirs, most_memory)
    for name, most in (("--version", 0.03), ("--help", 0.08), ("inspect", 0.25)):
        yield below(f"modcrypt {name}; peer Python alone", cpu[name], cpu["Python"], most)


def run_process(command: list[str]) -> Sample:
    """Return the time that a process took."""
    began = now().wall
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=installed_environment())
    _, process.returncode, usage = os.wait4(process.pid, 0)
    if process.returncode:
        raise RuntimeError(f"{command} failed")
    return Sample(now().wall - began, usage.ru_utime, usage.ru_stime)


def installed_environment() -> dict[str, str]:
    """Return the environment of a process that finds bytecode, as that of an installed wheel."""
    cache = Path(tempfile.gettempdir()) / "modcrypt-bench-bytecode"
    own = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return own | {"PYTHONPYCACHEPREFIX": str(cache)}


def peak_memory(command: list[str]) -> Figure:
    """Return the peak memory of a script, as Linux counts it from the start of its program."""
    script = f"{command[-1]}; print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    found = subprocess.run([*command[:-1], script], check=True, capture_output=True, text=True)
    return figure([int(found.stdout) * 1024 / MIB], "MiB")


def tiny(bench: Bench) -> Iterator[Row]:
    """Measure tiny files and small column chunks."""
    yield from tiny_files(bench)
    for keyed in (False, True):
        yield from small_chunks(bench, keyed=keyed)


def tiny_table() -> pa.Table:
    return pa.table({f"c{n}": np.arange(100) * n for n in range(5)})


def tiny_files(bench: Bench) -> Iterator[Row]:
    """Measure 5 columns of 100 rows."""
    table, plain, sealed = tiny_table(), bench.work / "tiny", bench.work / "tiny-encrypted"
    out, theirs = bench.scratch / "a", bench.scratch / "b"
    keys = mc.FileDecryptionProperties(footer_key=KEY)
    fresh = mc.FileEncryptionProperties(footer_key=KEY)
    pq.write_table(table, plain)
    mc.encrypt_parquet(plain, sealed, fresh)
    memory = plain.read_bytes()
    opening, closing = pe.create_decryption_properties(KEY), pe.create_encryption_properties(KEY)
    t = measure(bench, {
        "read": partial(mc.read_table, sealed, keys),
        "PyArrow read": lambda: pq.ParquetFile(sealed, decryption_properties=opening).read(),
        "decode": lambda: pq.ParquetFile(pa.BufferReader(memory)).read(use_threads=False),
        "encode": lambda: pq.write_table(table, pa.BufferOutputStream()),
        "write": partial(mc.write_table, table, out, fresh),
        "PyArrow write": partial(pq.write_table, table, theirs, encryption_properties=closing),
        "encrypt": partial(mc.encrypt_parquet, plain, out, fresh, overwrite=True),
        "PyArrow encrypt": lambda: pq.write_table(
            pq.ParquetFile(plain).read(), theirs, encryption_properties=closing
        ),
        "decrypt": partial(mc.decrypt_parquet, sealed, out, keys, overwrite=True),
        "PyArrow decrypt": lambda: pq.write_table(
            pq.ParquetFile(sealed, decryption_properties=opening).read(), theirs
        ),
        "verify": partial(verify, sealed, keys),
    })  # fmt: skip
    for way, most, codec in (("read", 0.9, "decode"), ("write", 1.2, "encode")):
        yield within(f"5 x 100: {way}; peer PyArrow, encrypted", t[way], t[f"PyArrow {way}"], most)
        yield Row(f"  of which PyArrow {codec}s plaintext in memory", t[codec])
    for way in ("encrypt", "decrypt"):
        yield Row(f"5 x 100: {way}; peer PyArrow reads, writes", t[way], t[f"PyArrow {way}"])
    yield Row("5 x 100: verify; peer PyArrow reads", t["verify"], t["PyArrow read"])


def small_chunks(bench: Bench, *, keyed: bool) -> Iterator[Row]:
    """Measure 200 columns in 10 row groups of one row, per column chunk."""
    plain = bench.cached_file("wide-200x10-plain", partial(write_wide, 200, 10))
    keys, sealed = Keys(pq.read_schema(plain).names, keyed=keyed), bench.work / "chunks"
    mc.encrypt_parquet(plain, sealed, keys.encryption, overwrite=True)
    frame, out, theirs = pl.read_parquet(plain), bench.scratch / "a", bench.scratch / "b"
    t = measure(bench, {
        "encrypt": partial(mc.encrypt_parquet, plain, out, keys.encryption, overwrite=True),
        "decrypt": partial(mc.decrypt_parquet, sealed, out, keys.decryption, overwrite=True),
        "verify": partial(verify, sealed, keys.decryption),
        "Polars encrypt": partial(
            frame.write_parquet, theirs, row_group_size=1, encryption=keys.polars_encryption
        ),
        "Polars decrypt": partial(pl.read_parquet, sealed, decryption=keys.polars_decryption),
    })  # fmt: skip
    per_chunk = {name: each.times(1e6 / 2000, "us") for name, each in t.items()}
    kind = "a key each" if keyed else "one key"
    for way, peer in (("encrypt", "writes"), ("decrypt", "reads")):
        name = f"200 x 10, {kind}: {way} a column chunk; peer Polars {peer} it encrypted"
        yield within(name, per_chunk[way], per_chunk[f"Polars {way}"], 1)
    name = f"200 x 10, {kind}: verify a column chunk; peer Polars reads it encrypted"
    yield Row(name, per_chunk["verify"], per_chunk["Polars decrypt"])


def measure(bench: Bench, jobs: Mapping[str, Job]) -> dict[str, Figure]:
    """Return the CPU time of each job, by rounds in turn after a warm-up."""
    calls = {name: count_calls(job) for name, job in jobs.items()}
    several: dict[str, Job] = {
        name: partial(repeat, job, calls[name]) for name, job in jobs.items()
    }
    taken = replace(bench, repeat=ROUNDS * bench.repeat).samples(several)
    return {
        name: processor_time(samples).times(1 / calls[name], "s") for name, samples in taken.items()
    }


def count_calls(job: Job) -> int:
    """Return how many calls of a job take `SHARE`."""
    job()
    began = now()
    job()
    return max(1, int(SHARE / max((now() - began).cpu, 1e-4)))


def repeat(job: Callable[[], object], calls: int) -> None:
    for _ in range(calls):
        job()


def processor_time(samples: list[Sample]) -> Figure:
    """Return the CPU time of samples in place of their wall time."""
    return timing([Sample(sample.cpu, sample.user, sample.system) for sample in samples])

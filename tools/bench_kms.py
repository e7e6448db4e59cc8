"""Compare keys from a key service with explicit keys, and rotation with the bare disk."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import modcrypt as mc
from tools.figures import Bench, Figure, Row, below, figure, within

COLUMNS = [f"c{n:02}" for n in range(20)]
MASTER_KEYS = ("footer", "columns")
FILES = 10_000
ROUNDS = 201  # of jobs of some milliseconds


class Counted:
    """A key service's client that counts its calls."""

    def __init__(self, client: Any) -> None:
        self._client, self.calls = client, Counter[str]()
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if name not in ("wrap", "unwrap", "rewrap", "wrap_many"):
            return found

        def count_call(*arguments: Any, **more: Any) -> Any:
            with self._lock:
                self.calls[name] += 1
            return found(*arguments, **more)

        return count_call


@contextmanager
def folder(base: Path) -> Iterator[Path]:
    """Make a temporary folder."""
    where = Path(tempfile.mkdtemp(dir=base, prefix=".bench-"))
    try:
        yield where
    finally:
        shutil.rmtree(where)


def keyring(where: Path) -> Counted:
    """Make an encrypted keyring with two master keys."""
    mc.Keyring.create(where / "keyring", passphrase="bench")
    client: Any = mc.kms.open_kms(f"file:{where / 'keyring'}", passphrase="bench")
    for name in MASTER_KEYS:
        client.create_key(name)
    return Counted(client)


def policy(*, internal: bool = True) -> mc.Policy:
    """Return a policy with separate keys for 20 columns."""
    return mc.Policy(
        footer_key="footer", column_keys={"columns": COLUMNS}, internal_key_material=internal
    )


def explicit_keys() -> mc.FileEncryptionProperties:
    """Return properties with explicit keys."""
    keys = {name: mc.Key.generate() for name in COLUMNS}
    return mc.FileEncryptionProperties(footer_key=mc.Key.generate(), column_keys=keys)


def table(rows: int) -> pa.Table:
    """Return 20 columns of random numbers, 8 bytes each."""
    return pa.table({name: np.random.default_rng(0).random(rows) for name in COLUMNS})


def time_jobs(jobs: dict[str, Callable[[], object]]) -> dict[str, Figure]:
    """Run short jobs in turn, in alternating order."""
    taken: dict[str, list[float]] = {name: [] for name in jobs}
    order = list(jobs)
    for turn in range(ROUNDS + 1):
        order.reverse()
        for name in order:
            started = time.perf_counter()
            jobs[name]()
            if turn:
                taken[name].append(time.perf_counter() - started)
    return {name: figure(samples) for name, samples in taken.items()}


def wrapping(bench: Bench) -> Iterator[Row]:
    """Encrypt a file of 1 MB with a policy, and with fresh explicit keys."""
    for place, base in (("in memory", bench.work), ("on disk", Path.cwd())):
        with folder(base) as where:
            pq.write_table(table(6500), where / "plain", compression="none", use_dictionary=False)
            by_policy = mc.KeyTools(keyring(where)).encryption(policy())
            figures = time_jobs(
                {
                    "given": lambda where=where: mc.encrypt_parquet(  # type: ignore[misc]  # defaults
                        where / "plain", where / "given", explicit_keys()
                    ),
                    "policy": lambda where=where, by=by_policy: mc.encrypt_parquet(  # type: ignore[misc]
                        where / "plain", where / "policy", by
                    ),
                    "making": explicit_keys,
                    "wrapping": lambda by=by_policy: by.for_file(None),  # type: ignore[misc]
                }
            )
        whole, made = figures["given"].median, figures["making"].median
        share = 100 * (figures["wrapping"].median - made) / whole
        yield within(f"1 MB, 20 column keys, {place}", figures["policy"], figures["given"], 1.03)
        yield below(f"  of it, wrapping, {place}", Figure(share, share, share, "%"), figure([0]), 3)


def economy(bench: Bench) -> Iterator[Row]:
    """Count the calls of the key service for 1,000 files, written and read."""
    small = table(50)
    with folder(bench.work) as where:
        client = keyring(where)
        tools = mc.KeyTools(client)
        for number in range(1000):
            mc.write_table(small, where / f"{number}.parquet", tools.encryption(policy()))
        for verb in ("write", "read"):
            if verb == "read":
                client.calls.clear()
                reader = mc.KeyTools(client).decryption()
                for number in range(1000):
                    mc.read_table(where / f"{number}.parquet", reader)
            calls = sum(client.calls.values())
            yield below(
                f"1,000 files under 2 KEKs: calls to {verb}",
                figure([calls], "calls"), figure([0], "calls"), 2,
            )  # fmt: skip


def rotation(bench: Bench) -> Iterator[Row]:
    """Rotate many small files on disk; compare with replacing files of these sizes safely."""
    for internal in (False, True):
        with folder(Path.cwd()) as where:
            client, lake = keyring(where), where / "lake"
            lake.mkdir()
            tools = mc.KeyTools(client)
            encryption = tools.encryption(policy(internal=internal))
            for number in range(FILES):
                mc.write_table(table(50), lake / f"{number}.parquet", encryption)
            for name in MASTER_KEYS:
                client.rotate_key(name)
            replaced = lake.glob("*.parquet" if internal else "_KEY*.json")
            sizes = [path.stat().st_size for path in replaced]
            client.calls.clear()
            started = time.perf_counter()
            done = mc.jobs.rotate_keys(lake, tools)
            taken = figure([time.perf_counter() - started])
            assert {file.result for file in done} == {"rotated"}
            bare = figure([_replace(where / "bare", sizes)])
            kind = "internal" if internal else "external"
            ratio = taken.median / bare.median
            yield Row(f"{FILES:,} files rotated, {kind}; the bare disk", taken, bare, ratio)
            calls = figure([sum(client.calls.values())], "calls")
            yield below("  calls of the key service", calls, figure([0], "calls"), 3)


def _replace(where: Path, sizes: list[int]) -> float:
    """Write, sync and rename files of these sizes, and sync the folder after each."""
    where.mkdir()
    descriptor = os.open(where, os.O_RDONLY)
    started = time.perf_counter()
    for number, size in enumerate(sizes):
        fd = os.open(where / ".tmp", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.write(fd, bytes(size))
        os.fsync(fd)
        os.close(fd)
        os.replace(where / ".tmp", where / str(number))
        os.fsync(descriptor)
    taken = time.perf_counter() - started
    os.close(descriptor)
    return taken

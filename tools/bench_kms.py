"""Keys from a key service against given ones, and rotation against the bare disk: `make bench`.

Everything is measured beside what it is held against, in the same run, interleaved.
"""

from __future__ import annotations

import os
import shutil
import statistics
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

COLUMNS = [f"c{n:02}" for n in range(20)]
MASTER_KEYS = ("footer", "columns")


class Counted:
    """A key service's client that counts its calls."""

    def __init__(self, client: Any) -> None:
        self._client, self.calls = client, Counter[str]()
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if name not in ("wrap", "unwrap", "rewrap", "wrap_many"):
            return found

        def counted(*arguments: Any, **more: Any) -> Any:
            with self._lock:
                self.calls[name] += 1
            return found(*arguments, **more)

        return counted


def table(rows: int) -> pa.Table:
    """Give 20 columns of random numbers: 8 bytes a value, which no codec makes smaller."""
    return pa.table({name: np.random.default_rng(0).random(rows) for name in COLUMNS})


@contextmanager
def keyring(folder: Path) -> Iterator[Counted]:
    """Make a sealed keyring."""
    mc.Keyring.create(folder / "keyring", passphrase="bench")
    client = mc.open_kms(f"file:{folder / 'keyring'}", passphrase="bench")
    for name in MASTER_KEYS:
        client.create_key(name)  # type: ignore[attr-defined]  # a keyring has it
    yield Counted(client)


def policy(*, internal: bool = True) -> mc.Policy:
    """Give 20 columns keys of their own."""
    return mc.Policy(
        footer_key="footer", column_keys={"columns": COLUMNS}, internal_key_material=internal
    )


def explicit() -> mc.FileEncryptionProperties:
    """Give the same with keys that nobody wraps."""
    keys = {name: mc.Key.generate() for name in COLUMNS}
    return mc.FileEncryptionProperties(footer_key=mc.Key.generate(), column_keys=keys)


def paired(one: Callable[[], Any], other: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """Time two things in turn; give the medians of both, in seconds."""
    one()
    other()
    times: tuple[list[float], list[float]] = [], []
    for number in range(rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            started = time.perf_counter()
            (one, other)[which]()
            times[which].append(time.perf_counter() - started)
    return statistics.median(times[0]), statistics.median(times[1])


def wrapping(folder: Path, where: str) -> None:
    """Compare `encrypt_parquet` by a policy with fresh keys that are given, on a file of 1 MB."""
    pq.write_table(table(6500), folder / "plain", compression="none", use_dictionary=False)
    with keyring(folder) as client:
        encryption = mc.KeyTools(client).encryption(policy())
        given, by_policy = paired(
            lambda: mc.encrypt_parquet(folder / "plain", folder / "given", explicit()),
            lambda: mc.encrypt_parquet(folder / "plain", folder / "wrapped", encryption),
            401,
        )
        keys, wrapped = paired(explicit, lambda: encryption.for_file(None), 401)
    print(f"1 MB, 20 column keys, {where}: keys given {given * 1e3:.2f} ms, by policy "
          f"{by_policy * 1e3:.2f} ms: {by_policy / given - 1:+.1%}; making keys "
          f"{keys * 1e6:.0f} us, making and wrapping {wrapped * 1e6:.0f} us: "
          f"wrapping is {(wrapped - keys) / given:.1%} of the whole")  # fmt: skip


def economy(folder: Path) -> None:
    """Count the calls of the key service for 1,000 files, written and read."""
    small = table(50)
    with keyring(folder) as client:
        tools = mc.KeyTools(client)
        for number in range(1000):
            mc.write_table(small, folder / f"part-{number}.parquet", tools.encryption(policy()))
        written = dict(client.calls)
        client.calls.clear()
        reader = mc.KeyTools(client)
        for number in range(1000):
            mc.read_table(folder / f"part-{number}.parquet", reader.decryption())
        print(f"1,000 files x 20 columns under 2 KEKs: calls to write {written}, to read "
              f"{dict(client.calls)}")  # fmt: skip


def rotation(folder: Path, *, internal: bool, files: int = 10_000) -> None:
    """Compare the rotation of many small files with writing, syncing and renaming as much."""
    small = table(50)
    (folder / "lake").mkdir()
    with keyring(folder) as client:
        tools = mc.KeyTools(client)
        encryption = tools.encryption(policy(internal=internal))
        for number in range(files):
            mc.write_table(small, folder / "lake" / f"part-{number}.parquet", encryption)
        for name in MASTER_KEYS:
            client.rotate_key(name)
        pattern = "*.parquet" if internal else "_KEY*.json"
        sizes = [path.stat().st_size for path in (folder / "lake").glob(pattern)]
        client.calls.clear()
        started = time.perf_counter()
        done = mc.rotate_keys(folder / "lake", tools)
        taken = time.perf_counter() - started
        assert {file.result for file in done} == {"rotated"}
        bare = _bare(folder, sizes)
    kind = "internal" if internal else "external"
    print(f"rotation of {files} files, {kind}: {taken:.1f} s, {taken / files * 1e3:.2f} ms each; "
          f"write, fsync, rename, fsync of the folder alone {bare:.1f} s: {taken / bare:.2f} times; "
          f"calls {dict(client.calls)}")  # fmt: skip


def _bare(folder: Path, sizes: list[int]) -> float:
    """Replace files of these sizes as safely, one after the other."""
    where = folder / "bare"
    where.mkdir()
    descriptor = os.open(where, os.O_RDONLY)
    started = time.perf_counter()
    for number, size in enumerate(sizes):
        temporary = where / f".{number}.tmp"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.write(fd, bytes(size))
        os.fsync(fd)
        os.close(fd)
        os.replace(temporary, where / str(number))
        os.fsync(descriptor)
    taken = time.perf_counter() - started
    os.close(descriptor)
    return taken


def main() -> None:
    """Measure all."""
    disk = Path(tempfile.mkdtemp(dir=Path.cwd(), prefix=".bench-"))
    memory = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        for folder, where in ((memory, "in memory"), (disk, "on disk")):
            _in(folder, lambda below, where=where: wrapping(below, where))  # type: ignore[misc]
        _in(memory, economy)
        _in(disk, lambda below: rotation(below, internal=False))
        _in(disk, lambda below: rotation(below, internal=True))
    finally:
        shutil.rmtree(disk)
        shutil.rmtree(memory)


def _in(folder: Path, section: Callable[[Path], None]) -> None:
    below = Path(tempfile.mkdtemp(dir=folder))
    section(below)
    shutil.rmtree(below)


if __name__ == "__main__":
    main()

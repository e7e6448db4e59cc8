"""Compare AGS1 streams with a bare loop over AES, and with Iceberg's Java, for `tools/bench.py`."""

from __future__ import annotations

import io
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from modcrypt import ags1
from tests.support.java.iceberg_java import IcebergJava, why_unavailable
from tools.figures import MIB, Bench, Figure, Row, below, faster, figure

KEY = bytes(range(1, 17))
PREFIX = bytes(16)
SIZE = 512 * MIB
BLOCK = 12 + MIB + 16


class Nowhere(io.RawIOBase):
    """A sink that discards its data."""

    def write(self, data: Any) -> int:
        """Return the size of the data."""
        return len(data)


def bare_encrypt(data: memoryview, first: int, stop: int, room: int = 1) -> None:
    """Seal blocks with one nonce into a reused buffer of `room` blocks; discard the result."""
    seal, out, nonce = AESGCM(KEY).encrypt_into, memoryview(bytearray(room * BLOCK)), bytes(12)
    for n in range(first, stop):
        place = out[n % room * BLOCK :][: MIB + 16]
        seal(nonce, data[n * MIB : (n + 1) * MIB], PREFIX + n.to_bytes(4, "little"), place)


def bare_decrypt(stream: memoryview, first: int, stop: int, room: int = 1) -> None:
    """Open the blocks of a stream into a reused buffer of `room` blocks."""
    unseal, out = AESGCM(KEY).decrypt_into, memoryview(bytearray(room * MIB))
    for n in range(first, stop):
        block = stream[8 + n * BLOCK : 8 + (n + 1) * BLOCK]
        place = out[n % room * MIB :][:MIB]
        unseal(bytes(block[:12]), block[12:], PREFIX + n.to_bytes(4, "little"), place)


def halves(loop: Callable[..., None], data: memoryview, room: int) -> None:
    """Let each of two threads do half of the work."""
    count = SIZE // MIB
    other = threading.Thread(target=loop, args=(data, 0, count // 2, room))
    other.start()
    loop(data, count // 2, count, room)
    other.join()


def write_all(data: memoryview, piece: int, threads: int) -> None:
    nowhere: Any = Nowhere()
    with ags1.Ags1Writer(nowhere, KEY, aad_prefix=PREFIX, threads=threads) as writer:
        for start in range(0, len(data), piece):
            writer.write(data[start : start + piece])


def read_all(stream: Any, piece: int, threads: int) -> None:
    buffer = bytearray(piece)
    length = len(stream)
    with ags1.Ags1Reader(stream, KEY, aad_prefix=PREFIX, length=length, threads=threads) as reader:
        while reader.readinto(buffer):
            pass


def streams(bench: Bench) -> Iterator[Row]:
    data = memoryview(bytearray(os.urandom(MIB) * (SIZE // MIB)))
    sealed = ags1.encrypt(data, KEY, aad_prefix=PREFIX)
    view, count = memoryview(sealed), SIZE // MIB
    ways: dict[str, tuple[Callable[..., None], memoryview, Callable[..., None]]] = {
        "encrypt": (write_all, data, bare_encrypt),
        "decrypt": (read_all, view, bare_decrypt),
    }
    for way, (ours, what, bare) in ways.items():
        t = bench.time({
            "one": partial(ours, what, MIB, 1), "bare": partial(bare, what, 0, count),
            "two": partial(ours, what, 16 * MIB, 2), "one of 16": partial(ours, what, 16 * MIB, 1),
            "bare 2": partial(halves, bare, what, 1), "room": partial(bare, what, 0, count, 8),
            "room 2": partial(halves, bare, what, 8), "64k": partial(ours, what, 64 << 10, 1),
        })  # fmt: skip
        yield faster(f"{way} 512 MiB, threads=1; peer bare loop", t["one"], t["bare"], 0.7)
        name = f"{way} in pieces of 16 MiB, threads=2; peer threads=1"
        yield faster(name, t["two"], t["one of 16"], 1.5)
        bound = t["room"].median / t["room 2"].median
        name = "  its bound, memory: bare loop, 2 x 8 MiB of output; peer one"
        yield Row(name, t["room 2"], t["room"], bound)
        bound = t["bare"].median / t["bare 2"].median
        name = "  bare loop, 2 x 1 MiB of output, in the cache; peer one"
        yield Row(name, t["bare 2"], t["bare"], bound)
        small = t["bare"].median / t["64k"].median
        yield Row(f"  {way} in pieces of 64 KiB, threads=1", t["64k"], t["bare"], small)
    if ags1.decrypt(sealed, KEY, aad_prefix=PREFIX, length=len(sealed)) != data:
        raise SystemExit("opening did not give the data back: these figures mean nothing")


def reads(bench: Bench) -> Iterator[Row]:
    """Measure random reads of 4 KiB, which rarely find their block in the cache."""
    sealed = ags1.encrypt(os.urandom(64 * MIB), KEY)
    path = bench.work / "reads.ags1"
    path.write_bytes(sealed)
    chance = random.Random(1)
    places = [chance.randrange(64 * MIB - 4096) for _ in range(2000)]
    for name, source in (("memory", sealed), ("a file", path)):
        with ags1.Ags1Reader(source, KEY, length=len(sealed)) as reader:
            cold: list[float] = []
            cached: list[float] = []
            for place in places:
                for taken in (cold, cached):
                    start = time.perf_counter()
                    reader.read_at(place, 4096)
                    taken.append((time.perf_counter() - start) * 1e6)
        yield below(f"random read of 4 KiB, from {name}", middle(cold), middle(cold), 100)
        yield Row("  again, from the cache", middle(cached))


def middle(samples: list[float]) -> Figure:
    """Return a median without the extremes, which the machine causes."""
    whole = figure(samples, "us")
    return Figure(whole.median, whole.median, whole.median, "us")


# VmHWM: the most memory that this process had.
PEAK = """
import sys
from modcrypt import ags1
way, path, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
piece = memoryview(bytearray(1 << 16))
key = bytes(range(1, 17))
if way == "writer":
    with ags1.Ags1Writer(path, key) as writer:
        for _ in range(size // len(piece)):
            writer.write(piece)
elif way == "reader":
    with ags1.Ags1Reader(path, key, length=int(sys.argv[4])) as reader:
        while reader.readinto(piece):
            pass
print(int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1024)
"""


def memory(bench: Bench) -> Iterator[Row]:
    path = bench.work / "memory.ags1"

    def peak(way: str, *more: str) -> float:
        size = str(2 << 30)
        command = [sys.executable, "-c", PEAK, way, str(path), size, *more]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    idle = peak("idle")
    for way in ("writer", "reader"):
        more = [str(path.stat().st_size)] if way == "reader" else []
        grown = figure([peak(way, *more) - idle], "MiB")
        name = f"peak of a {way} of 2 GiB beyond the import; peer the import"
        yield below(name, grown, figure([idle], "MiB"), 16)
    path.unlink()


def java(bench: Bench) -> Iterator[Row]:
    """Measure Iceberg's streams in a warmed-up JVM, with the same amount of data in memory."""
    if reason := why_unavailable():
        yield Row(f"(left out: {reason})", None)
        return
    mib = SIZE // MIB
    data = memoryview(bytearray(os.urandom(MIB) * mib))
    sealed = ags1.encrypt(data, KEY, aad_prefix=PREFIX)
    ours: dict[str, Callable[[], None]] = {
        "encrypt": partial(write_all, data, MIB, 1),
        "decrypt": partial(read_all, sealed, MIB, 1),
    }
    taken: dict[str, list[float]] = {way: [] for way in ours}
    theirs: dict[str, list[float]] = {way: [] for way in ours}
    with IcebergJava() as jvm:
        for turn in range(bench.repeat + 1):
            measured = jvm.time_stream(mib, 1, warm_up=0 if turn else 5)
            for way, run in ours.items():
                start = time.perf_counter()
                run()
                if turn:
                    taken[way].append(time.perf_counter() - start)
                    theirs[way] += measured[way]
        random_reads = jvm.time_random_reads(64, 500)
    for way in ours:
        yield faster(
            f"{way} {mib} MiB, threads=1; peer Iceberg's Java",
            figure(taken[way]),
            figure(theirs[way]),
            3,
        )
    yield Row("random read of 4 KiB: Iceberg's Java", None, middle([s * 1e6 for s in random_reads]))

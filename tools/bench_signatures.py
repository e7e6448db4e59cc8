"""Measure what signatures cost: hash functions alone, and whole files with and without them.

python -m tools.bench_signatures FILE.parquet [ROUNDS]

Runs with and without a signature are interleaved. Processor time is that of all threads; the least
of all rounds counts, because other programs only add to it.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import modcrypt as mc

KEY = b"only-for-a-bench"
HASHES = ("sha256", "blake2b", "blake2s", "sha512")


def measure(job: Callable[[], object]) -> tuple[float, float]:
    """Return processor and wall time of a job in milliseconds."""
    wall, processor = time.perf_counter(), time.process_time()
    job()
    return 1000 * (time.process_time() - processor), 1000 * (time.perf_counter() - wall)


def compare(
    name: str, unsigned: Callable[[], object], signed: Callable[[], object], rounds: int
) -> None:
    """Print the least times of two jobs, which take turns."""
    times = [(measure(unsigned), measure(signed)) for _ in range(rounds)]
    before, after = ([min(run[which][at] for run in times) for at in (0, 1)] for which in (0, 1))
    print(
        f"{name:10} processor {before[0]:7.0f} -> {after[0]:7.0f} ms ({after[0] / before[0]:.2f}), "
        f"wall {before[1]:7.0f} -> {after[1]:7.0f} ms ({after[1] / before[1]:.2f})"
    )


def measure_hashes(data: bytes, rounds: int) -> None:
    """Print the speed of the hash functions of `hashlib`."""
    for name in HASHES:
        least = min(measure(lambda: hashlib.new(name, data))[0] for _ in range(rounds))  # noqa: B023
        print(
            f"{name:10} {least:7.0f} ms for {len(data):,} bytes, {len(data) / least / 1e6:.1f} GB/s"
        )


def main() -> None:
    plain, rounds = Path(sys.argv[1]), int([*sys.argv, "5"][2])
    measure_hashes(plain.read_bytes(), rounds)
    writer = mc.SigningKey.generate()
    with tempfile.TemporaryDirectory(dir=plain.parent) as folder:
        out, signed, sealed = (os.path.join(folder, name) for name in ("out", "signed", "sealed"))
        without = mc.FileEncryptionProperties(footer_key=KEY)
        signing = mc.FileEncryptionProperties(footer_key=KEY, signing_key=writer)
        keys = mc.FileDecryptionProperties(footer_key=KEY)
        required = mc.FileDecryptionProperties(footer_key=KEY, signed_by=[writer.verifier])
        mc.encrypt_parquet(plain, sealed, without)
        mc.encrypt_parquet(plain, signed, signing)
        for name, jobs in {
            "encrypt": (lambda: mc.encrypt_parquet(plain, out, without, overwrite=True),
                        lambda: mc.encrypt_parquet(plain, out, signing, overwrite=True)),
            "decrypt": (lambda: mc.decrypt_parquet(sealed, out, keys, overwrite=True),
                        lambda: mc.decrypt_parquet(signed, out, required, overwrite=True)),
            "verify": (lambda: mc.verify_parquet(sealed, keys),
                       lambda: mc.verify_parquet(signed, required)),
            "read": (lambda: mc.read_table(sealed, keys), lambda: mc.read_table(signed, required)),
        }.items():  # fmt: skip
            compare(name, *jobs, rounds)


if __name__ == "__main__":
    main()

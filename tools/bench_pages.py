"""Compare the cost of small pages with bare AES, PyArrow and Polars, for `tools/bench.py`."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe

import modcrypt as mc
from tools.bench_files import KEY, bare_aes, job, page_sizes, plain_pages
from tools.bench_rekey import NEW_KEY, verify
from tools.figures import Bench, Figure, Job, Row, Sample, below, faster, timing

COLUMNS = 8
ROWS = 1 << 17


def small_pages(bench: Bench) -> Iterator[Row]:
    """Encrypt, decrypt, re-key and verify files with pages of 1, 2 and 8 KiB."""
    for kilobytes in (1, 2, 8):
        plain = bench.cached_file(f"pages-{kilobytes}k", partial(write_pages, kilobytes << 10))
        sealed = bench.work / f"pages-{kilobytes}k"
        job("encrypt", plain, sealed)()
        yield page_sizes(plain)
        files = {"encrypt": plain, "decrypt": sealed}
        yield from one_size(bench, files, f"{kilobytes} KiB")
        yield from second_thread(bench, files, f"{kilobytes} KiB")


def write_pages(size: int, path: Path) -> None:
    """Write random integers in uncompressed pages of `size` bytes."""
    random = np.random.default_rng(1)
    table = pa.table({f"c{n}": random.integers(0, 1 << 62, ROWS) for n in range(COLUMNS)})
    pq.write_table(
        table, path, data_page_size=size, write_batch_size=64, use_dictionary=False,
        compression="none",
    )  # fmt: skip


def one_size(bench: Bench, files: dict[str, Path], size: str) -> Iterator[Row]:
    count = len(plain_pages(files["encrypt"]))
    with open(os.devnull, "wb", buffering=0) as nowhere:
        taken = bench.samples(modcrypt_jobs(files, nowhere) | peer_jobs(files))

    def per_page(samples: list[Sample]) -> Figure:
        cpu = timing([Sample(s.cpu, s.user, s.system) for s in samples])
        return cpu.times(1e6 / count, "us")

    def beyond(name: str, aes: str) -> Figure:
        return per_page([ours - bare for ours, bare in zip(taken[name], taken[aes], strict=True)])

    for way in files:
        aes = f"AES {way}"
        name = f"{size} pages: {way}, beyond AES; peer AES"
        yield below(name, beyond(way, aes), per_page(taken[aes]), 10)
    yield Row("  re-key, all", per_page(taken["rekey"]))
    yield Row("  verify, beyond AES", beyond("verify", "AES decrypt"))
    for what in ("write", "read"):
        for peer in ("PyArrow", "Polars"):
            samples = beyond(f"{peer} {what}", f"{peer} {what} plain")
            yield Row(f"  {peer}, encrypted {what} beyond plaintext {what}", None, samples)


def second_thread(bench: Bench, files: dict[str, Path], size: str) -> Iterator[Row]:
    """Compare two threads with one: the page loop holds Python's lock, AES of small pages too."""
    out, keys = bench.scratch / "a", mc.FileDecryptionProperties(footer_key=KEY)
    fresh = mc.FileEncryptionProperties(footer_key=NEW_KEY)
    sealed = files["decrypt"]
    jobs: dict[str, Job] = {}
    for count in (1, 2):
        jobs |= {f"{way} {count}": job(way, files[way], out, threads=count) for way in files}
        jobs[f"re-key {count}"] = partial(mc.rekey_parquet, sealed, out, keys, fresh, threads=count)
        jobs[f"verify {count}"] = partial(mc.verify_parquet, sealed, keys, threads=count)
    taken = bench.time(jobs)
    for way in (*files, "re-key", "verify"):
        two, one = taken[f"{way} 2"], taken[f"{way} 1"]
        yield faster(f"{size} pages: {way}, threads=2; peer threads=1", two, one, 0.9)  # noise


def modcrypt_jobs(files: dict[str, Path], nowhere: io.FileIO) -> dict[str, Job]:
    data, keys = files["decrypt"].read_bytes(), mc.FileDecryptionProperties(footer_key=KEY)
    fresh = mc.FileEncryptionProperties(footer_key=NEW_KEY)
    jobs: dict[str, Job] = {
        "rekey": partial(mc.rekey_parquet, data, nowhere, keys, fresh, threads=1),
        "verify": partial(verify, data, keys),
    }
    for way, source in files.items():
        jobs[way] = job(way, source.read_bytes(), nowhere, threads=1)
        jobs[f"AES {way}"] = bare_aes(way, files, headers=True)
    return jobs


def peer_jobs(files: dict[str, Path]) -> dict[str, Job]:
    """Return what peers do with the same pages; all but Polars' writes have exactly those."""
    plain, sealed = (path.read_bytes() for path in files.values())
    table, frame = pq.read_table(files["encrypt"]), pl.read_parquet(plain)
    size = len(plain) // len(plain_pages(files["encrypt"]))
    arrow_write = partial(
        to_memory, pq.write_table, table, data_page_size=size, write_batch_size=64,
        use_dictionary=False, compression="none",
    )  # fmt: skip
    polars_write = partial(
        to_memory, pl.DataFrame.write_parquet, frame, data_page_size=size,
        compression="uncompressed",
    )  # fmt: skip
    keys, opening = pe.create_encryption_properties(KEY), pe.create_decryption_properties(KEY)
    return {
        "PyArrow write": partial(arrow_write, encryption_properties=keys),
        "PyArrow write plain": arrow_write,
        "Polars write": partial(
            polars_write, encryption=pl.ParquetEncryptionProperties(footer_key=KEY)
        ),
        "Polars write plain": polars_write,
        "PyArrow read": lambda: pq.read_table(
            pa.BufferReader(sealed), decryption_properties=opening
        ),
        "PyArrow read plain": lambda: pq.read_table(pa.BufferReader(plain)),
        "Polars read": partial(
            pl.read_parquet, sealed, decryption=pl.ParquetDecryptionProperties(footer_key=KEY)
        ),
        "Polars read plain": partial(pl.read_parquet, plain),
    }


def to_memory(write: Callable[..., object], rows: object, **options: object) -> None:
    write(rows, io.BytesIO(), **options)

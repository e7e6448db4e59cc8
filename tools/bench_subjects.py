"""Compare values under keys of subjects with bare AES-GCM, and files with them, for `bench.py`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

import modcrypt as mc
from modcrypt.kms.key_tools import KeyTools
from modcrypt.subjects import Subjects, SubjectVault, create_vault
from modcrypt.subjects.cells import CellColumn, find_owners
from tools.bench_files import KEY
from tools.figures import Bench, Figure, Job, Row, Sample, figure, timing, within

SUBJECTS = 100_000
ROWS = 1_000_000
VALUES = 200_000
NAME = "a value of thirty-two bytes {:04}"


def subjects(bench: Bench) -> Iterator[Row]:
    """Encrypt and decrypt values, and read a file of 1 million rows and 100,000 subjects."""
    vault = _make_vault(bench.work)
    yield from _values(bench, vault)
    yield from _files(bench, vault)


def _make_vault(folder: Path) -> SubjectVault:
    for name in ("bench.keyring", "subjects.db", "subjects.db.keks"):
        (folder / name).unlink(missing_ok=True)
    mc.Keyring.create(folder / "bench.keyring", plaintext=True).create_key("people")
    tools = KeyTools(f"file:{folder}/bench.keyring#people")
    return create_vault(str(folder / "subjects.db"), tools, "people")


def _values(bench: Bench, vault: SubjectVault) -> Iterator[Row]:
    texts = pa.array([NAME.format(n % 10_000) for n in range(VALUES)])
    numbers = pa.array([n % 10_000 for n in range(VALUES)])
    column = CellColumn("bench", ("name",), pa.string())
    owners = find_owners(vault, numbers, create=True)
    cells = column.encrypt(texts, owners)
    bare, plain, nonces = AESGCM(bytes(32)), bytes(32), os.urandom(12 * VALUES)
    starts = range(0, 12 * VALUES, 12)
    sealed = [bare.encrypt(nonces[at : at + 12], plain, None) for at in starts]

    def encrypt_bare() -> None:
        for at in starts:
            bare.encrypt(nonces[at : at + 12], plain, None)

    def decrypt_bare() -> None:
        for at, cell in zip(starts, sealed, strict=True):
            bare.decrypt(nonces[at : at + 12], cell, None)

    jobs: dict[str, Job] = {
        "encrypt": partial(column.encrypt, texts, owners), "bare encrypt": encrypt_bare,
        "decrypt": partial(column.decrypt, cells, owners), "bare decrypt": decrypt_bare,
    }  # fmt: skip
    taken = bench.samples(jobs)
    for way in ("encrypt", "decrypt"):
        each, of_bare = (_processor_time(taken[name]) for name in (way, f"bare {way}"))
        ours, peer = (time.times(1e9 / VALUES, "ns") for time in (each, of_bare))
        yield within(f"{way} a value of 32 bytes; peer bare AES-GCM", ours, peer, 2.5)
        rates = figure([VALUES / sample.cpu / 1e6 for sample in taken[way]], "M/s")
        yield Row("  values a second", rates, None, None, ">= 1.5 M/s", rates.median >= 1.5)


def _processor_time(samples: list[Sample]) -> Figure:
    return timing([Sample(sample.cpu, sample.user, sample.system) for sample in samples])


def _files(bench: Bench, vault: SubjectVault) -> Iterator[Row]:
    table = pa.table(
        {
            "customer_id": pa.array([n * 7919 % SUBJECTS for n in range(ROWS)]),
            "name": pa.array([NAME.format(n % 10_000) for n in range(ROWS)]),
            "amount": pa.array([n * 0.25 for n in range(ROWS)]),
        }
    )
    known = Subjects(vault=vault, key="customer_id", columns=["name"], dataset="bench")
    plain, cells = bench.work / "without.parquet", bench.work / "with.parquet"
    mc.write_table(table, plain, KEY)
    mc.write_table(table, cells, KEY, subjects=known)
    read_cells = partial(mc.read_table, cells, KEY, subjects=known)

    def read_first() -> None:
        vault._known = {}
        read_cells()

    def look_up() -> None:
        vault._known = {}
        find_owners(vault, pa.array(range(SUBJECTS)), create=False)

    read: dict[str, Any] = {
        "with": read_first,
        "again": read_cells,
        "other columns": partial(
            mc.read_table, cells, KEY, subjects=known, columns=["customer_id", "amount"]
        ),
        "keys": look_up,
        "without": partial(mc.read_table, plain, KEY),
        "others without": partial(mc.read_table, plain, KEY, columns=["customer_id", "amount"]),
    }
    taken = {name: _processor_time(samples) for name, samples in bench.samples(read).items()}
    yield within("read 1M rows, 100k subjects; peer without", taken["with"], taken["without"], 1.5)
    yield Row("  of this, keys of 100,000 subjects", taken["keys"])
    yield within(
        "  again, with keys in memory; peer without", taken["again"], taken["without"], 1.5
    )
    others = taken["other columns"], taken["others without"]
    yield within("  other columns; peer without", *others, 1.5)

"""Compare re-keying, verifying and inspecting with encrypting, decrypting and PyArrow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe

import modcrypt as mc
from tools.bench_files import KEY, lineitem
from tools.figures import Bench, Row, below, faster, within

NEW_KEY = bytes(range(101, 117))


def rewriting(bench: Bench) -> Iterator[Row]:
    """Re-key and verify one file."""
    plain, sealed = lineitem(bench).values()
    out, again = bench.scratch / "a", bench.scratch / "b"
    encryption = mc.FileEncryptionProperties(footer_key=KEY)
    decryption = mc.FileDecryptionProperties(footer_key=KEY)
    fresh = mc.FileEncryptionProperties(footer_key=NEW_KEY)
    theirs = pe.create_decryption_properties(footer_key=KEY)
    for threads in (None, 1):
        t = bench.time({
            "encrypt": partial(mc.encrypt_parquet, plain, out, encryption, threads=threads),
            "rekey": partial(mc.rekey_parquet, sealed, again, decryption, fresh, threads=threads),
        })  # fmt: skip
        name = "re-key" if threads is None else "re-key, threads=1"
        yield within(f"{name}; peer encrypt_parquet", t["rekey"], t["encrypt"], 1.6)
    t = bench.time({
        "verify": partial(verify, sealed, decryption),
        "decrypt": partial(mc.decrypt_parquet, sealed, out, decryption),
        "PyArrow": partial(pq.read_table, sealed, decryption_properties=theirs),
        "without": partial(verify, sealed, None),
    })  # fmt: skip
    yield faster("verify; peer decrypt_parquet", t["verify"], t["decrypt"], 1)
    yield faster("verify; peer PyArrow reads the file", t["verify"], t["PyArrow"], 10)
    yield Row("verify without keys", t["without"])


def inspecting(bench: Bench) -> Iterator[Row]:
    """Inspect wide files, with keys and without."""
    names = [f"column_{n}" for n in range(bench.columns)]
    keys = {name: os.urandom(16) for name in names}
    footer_key = os.urandom(16)
    for row_groups in (1, 10):
        table = pa.table({name: pa.array(range(10), pa.int32()) for name in names})
        sealed = bench.work / f"wide-{row_groups}"
        encryption = mc.FileEncryptionProperties(footer_key=footer_key, column_keys=keys)
        mc.write_table(table, sealed, encryption, row_group_size=10 // row_groups)
        opening = mc.FileDecryptionProperties(footer_key=footer_key, column_keys=keys)
        t = bench.time({
            "all keys": partial(mc.inspect_parquet, sealed, opening),
            "no key": partial(mc.inspect_parquet, sealed),
            "pages": partial(mc.inspect_parquet, sealed, opening, pages=True),
        })  # fmt: skip
        what = f"inspect {bench.columns:,} columns x {row_groups} row groups"
        if row_groups == 1:
            yield below(f"{what}, a key each", t["all keys"], t["no key"], 1)
        else:
            yield Row(f"{what}, a key each", t["all keys"])
        yield Row("  without a key", t["no key"])
        yield Row("  with every page", t["pages"])


def verify(source: Any, decryption: mc.FileDecryptionProperties | None) -> None:
    """Verify a file that has no faults."""
    report = mc.verify_parquet(source, decryption)
    if not report.ok:
        raise SystemExit(f"an unmodified file has faults: {report.findings}")

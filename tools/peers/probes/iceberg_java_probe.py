"""Iceberg's Java: a scan of an encrypted table, by the program that tests compare modcrypt with."""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path

import steps

import modcrypt as mc

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from tests.support.iceberg.java_judge import Judge
from tests.support.iceberg.sample_kms import MASTERS, SampleKms
from tools.peers.samples import ROWS


def read(judge: Judge, metadata: str, columns: list[str] | None = None) -> str:
    """Return the number of rows and columns that a scan returns."""
    rows = judge.read(metadata, columns=columns)
    return f"{len(rows)} x {len(rows[0])}"


with tempfile.TemporaryDirectory() as folder:
    table = mc.iceberg.create_table(
        Path(folder, "table"), ROWS.schema, SampleKms(), master_key_id="keyA"
    )
    table.append(ROWS)
    metadata = str(max(Path(folder, "table/metadata").glob("*.metadata.json")))
    log = Path(folder, "log")
    with Judge(MASTERS, log) as judge, Judge({"keyB": MASTERS["keyB"]}, log) as other:
        steps.run(
            {
                "encrypted-table: all rows": partial(read, judge, metadata),
                "encrypted-table: one column": partial(read, judge, metadata, ["city"]),
                "encrypted-table: without the master key": partial(read, other, metadata),
            }
        )

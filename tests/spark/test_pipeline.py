"""The pipeline of `tools/pipeline.py` at a small scale, and what it leaves, read by others."""

from __future__ import annotations

import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

import modcrypt as mc
from tests.support.java.jvm import why_unavailable
from tests.support.paths import ROOT

PIPELINE = ROOT / "tools" / "pipeline.py"


# Each task opens the keyring, so its cost is low here; `tests/kms/keyring` checks the full cost.
CHEAP_KEYRING = f"""
import runpy
import modcrypt.kms.keyring.keyring as keyring
keyring.SCRYPT_N = 2**14
runpy.run_path({str(PIPELINE)!r}, run_name="__main__")
"""


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CHEAP_KEYRING, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.slow
def test_the_pipeline_ends_in_a_result_that_pyarrow_opens_and_duckdb_confirms(
    tmp_path: Path,
) -> None:
    if reason := why_unavailable():
        pytest.skip(reason)
    lake = tmp_path / "it's a lake"
    done = run("--scale", 0.002, "--folder", lake)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "An old copy of a file" in done.stdout

    found = read_by_pyarrow(lake, "revenue")
    assert found.num_rows > 0
    with duckdb.connect() as peer:
        expected = peer.execute(
            "SELECT l_orderkey, sum(l_extendedprice * (1 - l_discount)) FROM "
            "read_parquet($1) JOIN read_parquet($2) ON l_orderkey = o_orderkey "
            "JOIN read_parquet($3) ON o_custkey = c_custkey WHERE c_mktsegment = 'BUILDING' "
            "AND o_orderdate < '1995-03-15' AND l_shipdate > '1995-03-15' GROUP BY 1",
            [str(lake / "plain" / name / "*") for name in ("lineitem", "orders", "customer")],
        ).fetchall()
    revenue = dict(
        zip(*(found[name].to_pylist() for name in ("l_orderkey", "revenue")), strict=True)
    )
    assert revenue == {order: Decimal(amount) for order, amount in expected}

    for name in ("customer", "orders", "lineitem"):
        rows = read_by_pyarrow(lake, name)
        plain = pq.read_table(lake / "plain" / name)
        assert sorted(rows.to_pylist(), key=str) == sorted(plain.to_pylist(), key=str)


def read_by_pyarrow(lake: Path, table: str) -> pa.Table:
    """Read an encrypted table by PyArrow's own key tools."""
    passphrase = (lake / "passphrase.txt").read_text().strip()
    client: Any = mc.kms.open_kms(f"file:{lake / 'lake.keyring'}", passphrase=passphrase)
    factory = pe.CryptoFactory(mc.kms.as_pyarrow_client(client))
    files = sorted((lake / "encrypted" / table).rglob("*.parquet"))
    assert files
    parts = []
    for file in files:
        assert file.read_bytes()[:4] == b"PARE"  # a sealed footer
        properties = factory.file_decryption_properties(pe.KmsConnectionConfig())
        parts.append(pq.ParquetFile(file, decryption_properties=properties).read())
    return pa.concat_tables(parts)


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    done = run("--folder", tmp_path)
    assert done.returncode != 0
    assert "is not empty" in done.stderr
    assert os.listdir(tmp_path) == ["mine"]

"""Other readers open files for recipients with explicit keys, whatever the key metadata holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import modcrypt as mc
from tests.support.java.parquet_java import ParquetJava
from tests.support.recipients import explicit_key, identity, write_for
from tests.support.tables import read_with_pyarrow, small_table

ME = identity("hybrid", "mlkem768-x25519")


@pytest.fixture(scope="module")
def crowd() -> list[mc.Identity]:
    """A hundred recipients, whose wraps take 160 KB of the footer."""
    return [ME, *(mc.Identity.generate() for _ in range(99))]


@pytest.fixture(params=[False, True], ids=["encrypted footer", "plaintext footer"])
def path(request: pytest.FixtureRequest, tmp_path: Path, crowd: list[mc.Identity]) -> Path:
    path = tmp_path / "file.parquet"
    options = {"plaintext_footer": request.param, "data_page_v2_levels": "plaintext"}
    path.write_bytes(write_for(*crowd, table=small_table(30), options=options))
    return path


def test_pyarrow_reads_it(path: Path) -> None:
    key = explicit_key(path.read_bytes(), ME)
    assert read_with_pyarrow(path, key) == small_table(30)


def test_polars_reads_it(path: Path) -> None:
    pl: Any = pytest.importorskip("polars")
    properties = pl.ParquetDecryptionProperties(footer_key=explicit_key(path.read_bytes(), ME))
    assert pl.read_parquet(path, decryption=properties).height == 30


def test_parquet_java_reads_it(java: ParquetJava, path: Path) -> None:
    key = explicit_key(path.read_bytes(), ME)
    text = java.read_text(path, footer_key=key, column_keys={})
    assert text.count("\n") == 30

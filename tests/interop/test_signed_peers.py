"""Other readers skip the signature of a file's writer.

Each reads an Ed25519 and an ML-DSA-65 signature, whose list and signature lie in the last field of
the footer. PyArrow does so in `tests/parquet/signatures`.
"""

from __future__ import annotations

from pathlib import Path

import polars
import pyarrow as pa
import pytest

import modcrypt as mc
from tests.support.cases import each_case
from tests.support.java.parquet_java import ParquetJava
from tests.support.keys import COLUMN_KEY, FOOTER_KEY
from tests.support.signing import writer_key

TABLE = pa.table(
    {"id": [n * 37 % 50 for n in range(500)], "name": [f"name {n % 11}" for n in range(500)]}
)
SCHEMES = ("ed25519", "mldsa65")


def write_signed(path: Path, scheme: str, **options: object) -> Path:
    """Write a signed file whose columns are under the footer key unless options say otherwise."""
    encryption = mc.FileEncryptionProperties(
        footer_key=FOOTER_KEY,
        signing_key=writer_key(scheme),
        **options,  # type: ignore[arg-type]
    )
    mc.write_table(TABLE, path, encryption, row_group_size=200, write_page_index=True)
    reader = mc.FileDecryptionProperties(
        footer_key=FOOTER_KEY, column_keys=options.get("column_keys", {}),  # type: ignore[arg-type]
        signed_by=[writer_key(scheme).verifier],
    )  # fmt: skip
    assert mc.verify_parquet(path, reader).ok
    return path


@each_case("scheme", SCHEMES)
def test_duckdb(tmp_path: Path, scheme: str) -> None:
    duckdb = pytest.importorskip("duckdb")
    path = write_signed(tmp_path / "signed.parquet", scheme)
    with duckdb.connect() as connection:
        connection.execute(f"PRAGMA add_parquet_key('k', '{FOOTER_KEY.decode()}')")
        config = "encryption_config={footer_key: 'k'}"
        found = connection.sql(f"FROM read_parquet('{path}', {config})").to_arrow_table()
    assert found.equals(TABLE)


@each_case("scheme", SCHEMES)
def test_polars_reads_the_plaintext_columns(tmp_path: Path, scheme: str) -> None:
    path = write_signed(
        tmp_path / "signed.parquet", scheme, plaintext_footer=True, plaintext_columns=["id"]
    )
    assert polars.read_parquet_schema(path).keys() == {"id", "name"}
    assert polars.read_parquet(path, columns=["id"]).equals(polars.DataFrame(TABLE.select(["id"])))


@each_case("scheme", SCHEMES)
@each_case("footer", [False, True])
def test_parquet_java(java: ParquetJava, tmp_path: Path, scheme: str, footer: bool) -> None:
    path = write_signed(
        tmp_path / "signed.parquet", scheme, plaintext_footer=footer,
        column_keys={"name": COLUMN_KEY},
    )  # fmt: skip
    rows = java.read(path, footer_key=FOOTER_KEY, column_keys={"name": COLUMN_KEY})
    assert rows == TABLE.to_pylist()

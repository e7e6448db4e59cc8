"""What `write_table` and `ParquetWriter` make, as other implementations read it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt.parquet.arrow.writer import ParquetWriter, write_table
from tests.support.cases import each_case
from tests.support.in_memory import decrypt
from tests.support.java.parquet_java import ParquetJava
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.parquet_parser import modules_of
from tests.support.tables import nested_table, small_table, write_plain

SMALL = small_table(60)
KEYS = {"id": COLUMN_KEY, "address.zip": OTHER_KEY, "address.city": OTHER_KEY}
ENCRYPTION: dict[str, Any] = {
    "footer_key": FOOTER_KEY,
    "column_keys": {"id": COLUMN_KEY, "address": OTHER_KEY},
    "data_page_v2_levels": "plaintext",
}
BLOOM = {"bloom_filter_options": {"id": {"ndv": 50, "fpp": 0.05}, "name": {"ndv": 9}}}
OPTIONS: dict[str, dict[str, Any]] = {
    "row groups": {"row_group_size": 3},
    "indexes": {"row_group_size": 7, "write_page_index": True, "max_rows_per_page": 2},
    "bloom filters": {"row_group_size": 7, "write_page_index": True, **BLOOM},
    "V2 and checksums": {
        "row_group_size": 20,
        "data_page_version": "2.0",
        "write_page_checksum": True,
        "compression": "zstd",
    },
}


@each_case("plaintext_footer", [False, True])
@each_case("name", OPTIONS)
def test_parquet_java_reads_what_we_write(
    java: ParquetJava, tmp_path: Path, name: str, plaintext_footer: bool
) -> None:
    """It takes the ordinal in every AAD from the footer, and checks it there."""
    plain = write_plain(tmp_path / "plain", small_table(60), **OPTIONS[name])
    encryption = mc.FileEncryptionProperties(**ENCRYPTION, plaintext_footer=plaintext_footer)
    sealed = tmp_path / "sealed"
    write_table(small_table(60), sealed, encryption, threads=2, **OPTIONS[name])
    how: dict[str, Any] = {"footer_key": FOOTER_KEY, "column_keys": KEYS, "verify_crc": True}
    text = java.read_text(plain, verify_crc=True)
    assert text.count("\n") == 60
    assert java.read_text(sealed, **how) == text
    assert java.column_indexes(sealed, **how) == java.column_indexes(plain)


def test_parquet_java_reads_more_row_groups_than_a_byte_can_number(
    java: ParquetJava, tmp_path: Path
) -> None:
    table = pa.table({"n": range(600), "even": [n % 2 == 0 for n in range(600)]})
    encryption = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, column_keys={"n": COLUMN_KEY})
    with ParquetWriter(tmp_path / "sealed", table.schema, encryption, row_group_size=2) as out:
        for batch in table.to_batches(max_chunksize=7):
            out.write_batch(batch)
    rows = java.read(tmp_path / "sealed", footer_key=FOOTER_KEY, column_keys={"n": COLUMN_KEY})
    assert rows == java.read(write_plain(tmp_path / "plain", table))
    assert len(rows) == 600


@pytest.mark.parametrize("name", OPTIONS)
def test_every_module_is_the_one_that_pyarrow_writes(name: str) -> None:
    """Bloom filters included, which PyArrow puts elsewhere."""
    plain, sealed = io.BytesIO(), io.BytesIO()
    pq.write_table(small_table(60), plain, **OPTIONS[name])
    write_table(small_table(60), sealed, mc.FileEncryptionProperties(**ENCRYPTION), **OPTIONS[name])
    back = decrypt(sealed.getvalue(), footer_key=FOOTER_KEY, column_keys=ENCRYPTION["column_keys"])
    assert modules_of(back) == modules_of(plain.getvalue())


@pytest.mark.parametrize("plaintext_footer", [False, True])
def test_polars_reads_what_we_write(tmp_path: Path, plaintext_footer: bool) -> None:
    """Indexes and bloom filters included, which it prunes by."""
    encryption = mc.FileEncryptionProperties(
        footer_key=FOOTER_KEY, plaintext_footer=plaintext_footer
    )
    path = tmp_path / "sealed"
    write_table(small_table(60), path, encryption, **OPTIONS["bloom filters"])
    keys = pl.ParquetDecryptionProperties(footer_key=FOOTER_KEY)
    expected = pl.from_arrow(small_table(60))
    assert isinstance(expected, pl.DataFrame)
    assert pl.read_parquet(path, decryption=keys).equals(expected)
    scan = pl.scan_parquet(path, decryption=keys)
    assert scan.filter(pl.col("id") == 41).collect().equals(expected[41:42])


def test_readers_of_plaintext_read_it_through_a_view() -> None:
    sealed = io.BytesIO()
    encryption = mc.FileEncryptionProperties(**ENCRYPTION)
    write_table(small_table(60), sealed, encryption, **OPTIONS["bloom filters"])
    keys = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, column_keys=ENCRYPTION["column_keys"])
    with mc.open_parquet(sealed.getvalue(), keys) as view:
        assert pq.read_table(view).equals(SMALL)
        view.seek(0)
        file: Any = view  # Polars takes file objects of any kind, whatever its stubs say
        assert pl.read_parquet(file).to_arrow().cast(SMALL.schema).equals(SMALL)


def test_parquet_java_reads_nested_columns(java: ParquetJava, tmp_path: Path) -> None:
    plain = write_plain(tmp_path / "plain", nested_table(), row_group_size=9)
    encryption = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
    write_table(nested_table(), tmp_path / "sealed", encryption, row_group_size=9)
    text = java.read_text(plain)
    assert java.read_text(tmp_path / "sealed", footer_key=FOOTER_KEY) == text
    assert text.count("\n") == 60

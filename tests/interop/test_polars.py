"""Polars reads what we write, and we read what Polars writes.

Polars 2.1 has Parquet encryption of its own (`read_parquet(decryption=)`,
`write_parquet(encryption=)`): AES_GCM_V1 with keys of 128 and 256 bits, both footer modes,
column keys by leaf path, AAD prefix. It has no AES_GCM_CTR_V1, no 192-bit keys and does not read
parquet-java's layout of data pages V2. Columns that it is given no key for stay plaintext once
another has one.
"""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from tests.support.cases import each_case
from tests.support.in_memory import decrypt, encrypt
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.module_spans import list_modules
from tests.support.pairwise import Case, case_name, pairwise
from tests.support.parquet_parser import modules_of
from tests.support.tables import nested_table, small_table

pl = pytest.importorskip("polars")
if not hasattr(pl, "ParquetDecryptionProperties"):
    pytest.skip("this Polars has no Parquet encryption", allow_module_level=True)

FOOTERS = ("encrypted", "plaintext")
PREFIXES = ("none", "stored", "unstored")
PREFIX = b"employees_23May2018.part0"
KEYS = {16: FOOTER_KEY, 32: bytes(range(1, 33))}
COLUMN_KEYS = {"id": COLUMN_KEY, "address.zip": OTHER_KEY, "address.city": OTHER_KEY}


def properties_of(case: Case) -> dict[str, Any]:
    """The names are the same in Polars and here."""
    return {
        "footer_key": KEYS[case["key_size"]],
        "plaintext_footer": case["footer"] == "plaintext",
        "aad_prefix": None if case["prefix"] == "none" else PREFIX,
        "store_aad_prefix": case["prefix"] == "stored",
        "column_keys": COLUMN_KEYS if case["columns"] else {},
    }


def reader_of(case: Case) -> dict[str, Any]:
    return {
        "footer_key": KEYS[case["key_size"]],
        "column_keys": COLUMN_KEYS if case["columns"] else {},
        "aad_prefix": PREFIX if case["prefix"] == "unstored" else None,
    }


def read(sealed: bytes, **properties: Any) -> Any:
    return pl.read_parquet(sealed, decryption=pl.ParquetDecryptionProperties(**properties))


def pyarrow_file(table: pa.Table, **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


def polars_file(frame: Any, encryption: Any = None, **options: Any) -> bytes:
    out = io.BytesIO()
    frame.write_parquet(out, encryption=encryption, **options)
    return out.getvalue()


ENCRYPTION: dict[str, Any] = {
    "footer": FOOTERS, "prefix": PREFIXES, "key_size": (16, 32), "columns": (False, True),
}  # fmt: skip


@each_case("case", pairwise(
    **ENCRYPTION, version=("1.0", "2.0"), checksum=(False, True), index=(False, True),
    bloom=(False, True), dictionary=(True, False),
    codec=("none", "snappy", "gzip", "brotli", "zstd", "lz4"),
    shape=("small", "empty", "row groups", "pages"),
), ids=case_name)  # fmt: skip
def test_polars_reads_what_we_encrypt(case: Case) -> None:
    table = small_table(60).slice(0, 0 if case["shape"] == "empty" else 60)
    options: dict[str, Any] = {"row groups": {"row_group_size": 7}}.get(case["shape"], {})
    if case["shape"] == "pages":
        options = {"max_rows_per_page": 5, "write_batch_size": 5}
    if case["bloom"]:
        options["bloom_filter_options"] = {"id": {"ndv": 100}}
    plain = pyarrow_file(
        table, data_page_version=case["version"], write_page_checksum=case["checksum"],
        write_page_index=case["index"], use_dictionary=case["dictionary"],
        compression=case["codec"], **options,
    )  # fmt: skip

    sealed = encrypt(plain, **properties_of(case))

    assert read(sealed, **reader_of(case)).equals(pl.from_arrow(table))


@each_case("case", pairwise(
    **ENCRYPTION, codec=("uncompressed", "snappy", "gzip", "brotli", "zstd", "lz4"),
    statistics=(True, "full", False), shape=("small", "empty", "row groups", "pages"),
), ids=case_name)  # fmt: skip
def test_we_decrypt_what_polars_encrypts_to_its_own_plaintext_file(case: Case) -> None:
    frame = pl.from_arrow(small_table(60).slice(0, 0 if case["shape"] == "empty" else 60))
    shapes = {"row groups": {"row_group_size": 7}, "pages": {"data_page_size": 100}}
    options = {
        "compression": case["codec"],
        "statistics": case["statistics"],
        **shapes.get(case["shape"], {}),
    }
    encryption = pl.ParquetEncryptionProperties(**properties_of(case))

    plain = decrypt(polars_file(frame, encryption, **options), **reader_of(case))

    assert pl.read_parquet(plain).equals(frame)
    assert pl.from_arrow(pq.read_table(pa.BufferReader(plain))).equals(frame)
    assert modules_of(plain) == modules_of(polars_file(frame, **options))


@pytest.mark.parametrize("footer", FOOTERS)
def test_nested_values_both_ways(footer: str) -> None:
    frame = pl.from_arrow(nested_table())
    properties = {"footer_key": FOOTER_KEY, "plaintext_footer": footer == "plaintext"}
    sealed = encrypt(polars_file(frame), **properties)
    assert read(sealed, footer_key=FOOTER_KEY).equals(frame)
    theirs = polars_file(frame, pl.ParquetEncryptionProperties(**properties))
    assert pl.read_parquet(decrypt(theirs, footer_key=FOOTER_KEY)).equals(frame)


def test_polars_skips_by_the_statistics_and_page_index_that_we_moved() -> None:
    table = pa.table({"id": range(1000), "s": [f"s{n}" for n in range(1000)]})
    plain = pyarrow_file(
        table, row_group_size=100, max_rows_per_page=10, write_batch_size=10, write_page_index=True
    )
    sealed = encrypt(plain, footer_key=FOOTER_KEY)
    found = (
        pl.scan_parquet(
            io.BytesIO(sealed),
            decryption=pl.ParquetDecryptionProperties(footer_key=FOOTER_KEY),
        )
        .filter(pl.col("id") == 777)
        .collect()
    )
    assert found.to_dicts() == [{"id": 777, "s": "s777"}]


def test_polars_without_keys_reads_the_plaintext_columns_of_our_plaintext_footer() -> None:
    table = small_table()
    sealed = encrypt(
        pyarrow_file(table), footer_key=FOOTER_KEY, plaintext_footer=True,
        column_keys={"name": OTHER_KEY}, plaintext_columns=["id", "tags"],
    )  # fmt: skip
    columns = ["id", "tags"]
    assert pl.read_parquet(sealed, columns=columns).equals(pl.from_arrow(table.select(columns)))
    for column in ("name", "price"):  # under its own key, under the footer key
        with pytest.raises(pl.exceptions.ComputeError, match="encrypted"):
            pl.read_parquet(sealed, columns=[column])


@pytest.mark.parametrize("wrong", [
    {"footer_key": OTHER_KEY},
    {"column_keys": {"id": OTHER_KEY}},
    {"column_keys": {}},
    {"aad_prefix": b"employees_23May2018.part1"},
    {"aad_prefix": None},
])  # fmt: skip
def test_polars_refuses_our_file_with_a_wrong_key_or_prefix(wrong: dict[str, Any]) -> None:
    table = small_table()
    sealed = encrypt(
        pyarrow_file(table), footer_key=FOOTER_KEY, column_keys={"id": COLUMN_KEY},
        aad_prefix=PREFIX, store_aad_prefix=False,
    )  # fmt: skip
    right = {
        "footer_key": FOOTER_KEY,
        "column_keys": {"id": COLUMN_KEY},
        "aad_prefix": PREFIX,
    }
    assert read(sealed, **right).equals(pl.from_arrow(table))
    with pytest.raises(pl.exceptions.ComputeError, match=r"[Ee]ncrypt"):
        read(sealed, **(right | wrong))


@pytest.mark.parametrize(("properties", "message"), [
    ({"encryption_algorithm": "AES_GCM_CTR_V1"}, "AES_GCM_CTR_V1"),
    ({"data_page_v2_levels": "plaintext"}, "Encryption error"),
    ({"footer_key": bytes(range(1, 25))}, "key length: 24"),
])  # fmt: skip
def test_what_polars_does_not_read(properties: dict[str, Any], message: str) -> None:
    properties = {"footer_key": FOOTER_KEY} | properties
    sealed = encrypt(pyarrow_file(small_table(), data_page_version="2.0"), **properties)
    with pytest.raises(pl.exceptions.ComputeError, match=message):
        read(sealed, footer_key=properties["footer_key"])


def test_polars_leaves_columns_without_a_key_in_plaintext() -> None:
    frame = pl.from_arrow(small_table())
    encryption = pl.ParquetEncryptionProperties(footer_key=FOOTER_KEY, column_keys=COLUMN_KEYS)
    sealed = polars_file(frame, encryption, compression="uncompressed")
    assert b"name-10" in sealed
    sealed_columns = {
        span.module.path
        for span in list_modules(
            sealed, mc.FileDecryptionProperties(footer_key=FOOTER_KEY, column_keys=COLUMN_KEYS)
        )
    }
    assert sealed_columns == {None, *COLUMN_KEYS}  # None is the footer

"""DuckDB reads some of what we write; what it writes itself is no PME, and is refused.

Seen in DuckDB 2.0. As a reader: AES_GCM_V1, encrypted footer, no AAD prefix, uniform keys, flat
columns, one data page V1 a chunk, no Bloom filters; what it refuses from us, it refuses from
PyArrow and parquet-java too. As a writer, only with `force_mbedtls_unsafe` or with httpfs loaded:

- FileCryptoMetaData is an AesGcmV1 without `aad_file_unique`, and has no key metadata;
- every module is sealed without any AAD;
- `PageHeader.compressed_page_size` is the page's size without the 32 bytes around it;
- `total_compressed_size` counts modules as they are stored, `total_uncompressed_size` header
  modules as stored and pages plain, as every writer does;
- chunks have no `crypto_metadata`, so the footer looks like that of a plaintext file;
- there are no Bloom filters, although a plaintext file would have them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet.encryption as pe
import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

import modcrypt as mc
from tests.support import forging
from tests.support.cases import each_case
from tests.support.in_memory import encrypt
from tests.support.java.parquet_java import ParquetJava
from tests.support.keys import COLUMN_KEY, FOOTER_KEY
from tests.support.pairwise import Case, case_name, pairwise
from tests.support.parquet_parser import footer_of, thrift_struct
from tests.support.tables import small_table, write_plain

duckdb = pytest.importorskip("duckdb")

KEYS = {16: FOOTER_KEY, 24: b"012345678901234567890123", 32: b"0123456789012345012345678901234x"}


@pytest.fixture
def database() -> Iterator[Any]:
    with duckdb.connect() as connection:
        connection.execute("SET force_mbedtls_unsafe = 'true'")  # else it writes nothing encrypted
        for size, key in KEYS.items():
            connection.execute(f"PRAGMA add_parquet_key('k{size}', '{key.decode()}')")
        yield connection


def read(database: Any, path: Path, key_size: int = 16) -> pa.Table:
    config = f"encryption_config={{footer_key: 'k{key_size}'}}"
    return database.sql(f"FROM read_parquet('{path}', {config})").to_arrow_table()


def flat_table(rows: int = 500) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "name": [None if n % 7 == 0 else f"name-{n % 11}" for n in range(rows)],
            "score": pa.array([n / 8 for n in range(rows)], pa.float64()),
            "flag": [n % 3 == 0 for n in range(rows)],
        }
    )


# --- we write, DuckDB reads ----------------------------------------------------------------------


@each_case("case", pairwise(
    key_size=(16, 24, 32), codec=("none", "snappy", "gzip", "brotli", "zstd", "lz4"),
    dictionary=(True, False), checksum=(True, False), index=(True, False),
    row_group_size=(None, 100), rows=(500, 0),
), ids=case_name)  # fmt: skip
def test_duckdb_reads_what_we_encrypt(database: Any, tmp_path: Path, case: Case) -> None:
    table = flat_table(case["rows"])
    plain = write_plain(
        tmp_path / "plain.parquet", table, compression=case["codec"],
        use_dictionary=case["dictionary"], write_page_checksum=case["checksum"],
        write_page_index=case["index"], row_group_size=case["row_group_size"],
    )  # fmt: skip
    sealed = tmp_path / "sealed.parquet"
    mc.encrypt_parquet(
        plain, sealed, mc.FileEncryptionProperties(footer_key=KEYS[case["key_size"]])
    )
    assert read(database, sealed, case["key_size"]).to_pylist() == table.to_pylist()


def test_duckdb_ignores_what_restores_every_byte(database: Any, tmp_path: Path) -> None:
    plain = write_plain(tmp_path / "plain.parquet", flat_table())
    body, tail, magic = forging.split_tail(plain.read_bytes())
    plain.write_bytes(forging.join_tail(body + b"a writer's padding", tail, magic))
    sealed = tmp_path / "sealed.parquet"
    mc.encrypt_parquet(plain, sealed, mc.FileEncryptionProperties(footer_key=FOOTER_KEY))
    assert read(database, sealed).equals(flat_table())


def test_duckdb_filters_by_the_statistics_that_we_sealed(database: Any, tmp_path: Path) -> None:
    """Filters that leave a part of the rows fail in DuckDB, on PyArrow's files too."""
    ours, theirs = tmp_path / "ours.parquet", tmp_path / "theirs.parquet"
    encryption = pe.create_encryption_properties(footer_key=FOOTER_KEY)
    write_plain(theirs, flat_table(), row_group_size=100, encryption_properties=encryption)
    plain = write_plain(tmp_path / "plain.parquet", flat_table(), row_group_size=100)
    ours.write_bytes(encrypt(plain.read_bytes(), footer_key=FOOTER_KEY))
    for path in (ours, theirs):
        query = f"SELECT id FROM read_parquet('{path}', encryption_config={{footer_key: 'k16'}})"
        assert database.execute(f"{query} WHERE id >= 0").fetchall() == [(n,) for n in range(500)]
        assert database.execute(f"{query} WHERE id > 500").fetchall() == []
        with pytest.raises(duckdb.Error, match="tag"):
            database.execute(f"{query} WHERE id = 333").fetchall()


@pytest.mark.parametrize(("properties", "options", "nested"), [
    ({"plaintext_footer": True}, {}, False),
    ({"aad_prefix": b"prefix"}, {}, False),
    ({"encryption_algorithm": "AES_GCM_CTR_V1"}, {}, False),
    ({"footer_key": COLUMN_KEY}, {}, False),
    ({}, {"max_rows_per_page": 100, "write_batch_size": 100, "use_dictionary": False}, False),
    ({}, {"data_page_version": "2.0"}, False),
    ({}, {}, True),
])  # fmt: skip
def test_what_duckdb_does_not_read_from_us_it_does_not_read_from_pyarrow(
    database: Any, tmp_path: Path, properties: dict[str, Any], options: dict[str, Any], nested: bool
) -> None:
    properties = {"footer_key": FOOTER_KEY} | properties
    table = small_table() if nested else flat_table()
    plain = write_plain(tmp_path / "plain.parquet", table, **options)
    ours, theirs = tmp_path / "ours.parquet", tmp_path / "theirs.parquet"
    ours.write_bytes(encrypt(plain.read_bytes(), **properties))
    write_plain(
        theirs, table, encryption_properties=pe.create_encryption_properties(**properties),
        **options,
    )  # fmt: skip
    for sealed in (ours, theirs):
        with pytest.raises(duckdb.Error):
            read(database, sealed)


def test_duckdb_reads_nobodys_encrypted_bloom_filters(
    database: Any, java: ParquetJava, tmp_path: Path
) -> None:
    plain, sealed = tmp_path / "plain.parquet", tmp_path / "sealed.parquet"
    rows = [{"id": n} for n in range(50)]
    schema = "message m { required int64 id; }"
    for columns, readable in ([], True), (["id"], False):
        java.write(plain, schema, rows, bloom_columns=columns)
        sealed.write_bytes(encrypt(plain.read_bytes(), footer_key=FOOTER_KEY))
        assert java.read(sealed, footer_key=FOOTER_KEY) == rows
        assert duckdb_reads(database, sealed) is readable
        java.write(sealed, schema, rows, bloom_columns=columns, footer_key=FOOTER_KEY)
        assert duckdb_reads(database, sealed) is readable


def duckdb_reads(database: Any, sealed: Path) -> bool:
    try:
        return bool(read(database, sealed).num_rows)
    except duckdb.Error:
        return False


# --- what DuckDB writes --------------------------------------------------------------------------


ROWS = "(SELECT range AS id, 'name-' || range % 10 AS name FROM range(3000))"


def write(database: Any, path: Path, key_size: int = 16, options: str = "") -> bytes:
    """Write a column without a dictionary and one with."""
    config = f"ENCRYPTION_CONFIG {{footer_key: 'k{key_size}'}}"
    database.execute(f"COPY {ROWS} TO '{path}' (FORMAT parquet, {config}{options})")
    return path.read_bytes()


@pytest.mark.parametrize("key_size", [16, 24, 32])
def test_duckdbs_files_are_refused_by_its_name(
    database: Any, tmp_path: Path, key_size: int
) -> None:
    data = write(database, tmp_path / "duckdb.parquet", key_size)
    assert read(database, tmp_path / "duckdb.parquet", key_size).num_rows == 3000
    target = tmp_path / "plain.parquet"
    for prefix in (None, b"prefix"):
        properties = mc.FileDecryptionProperties(footer_key=KEYS[key_size], aad_prefix=prefix)
        with pytest.raises(mc.errors.UnsupportedFormatError, match="DuckDB"):
            mc.decrypt_parquet(data, target, properties)
    assert not target.exists()


def test_duckdbs_refusal_needs_no_key(database: Any, tmp_path: Path) -> None:
    data = write(database, tmp_path / "duckdb.parquet")
    with pytest.raises(mc.errors.UnsupportedFormatError, match="DuckDB"):
        mc.decrypt_parquet(data, tmp_path / "plain.parquet", mc.FileDecryptionProperties())


class DuckDbFile:
    """Opens the modules of a file that DuckDB wrote, with `cryptography` alone."""

    def __init__(self, data: bytes, key: bytes) -> None:
        self.data, self.gcm = data, AESGCM(key)
        size = int.from_bytes(data[-8:-4], "little")
        self.crypto, self.footer_start = thrift_struct(data, len(data) - 8 - size)

    def open(self, at: int, aad: bytes = b"") -> tuple[bytes, int]:
        """Open the module at `at`; return its plaintext and its end."""
        end = at + 4 + int.from_bytes(self.data[at : at + 4], "little")
        return self.gcm.decrypt(self.data[at + 4 : at + 16], self.data[at + 16 : end], aad), end


@pytest.mark.parametrize("version", ["V1", "V2"])
def test_what_bytes_duckdb_writes(database: Any, tmp_path: Path, version: str) -> None:
    data = write(database, tmp_path / "f.parquet", options=f", PARQUET_VERSION {version}")
    file = DuckDbFile(data, FOOTER_KEY)
    assert data[:4] == data[-4:] == b"PARE"
    assert file.crypto == {1: {1: {}}}  # AesGcmV1 with no field set, no key metadata
    footer, end = file.open(file.footer_start)  # without AAD
    assert end == len(data) - 8
    with pytest.raises(InvalidTag):
        file.open(file.footer_start, b"\x00")  # the AAD of a footer without file-unique
    dictionaries = 0
    for row_group in thrift_struct(footer)[0][4]:
        for chunk in row_group[1]:
            assert 8 not in chunk  # crypto_metadata
            md = chunk[3]
            at = start = md.get(11) or md[9]
            plain_size = 0
            while at < start + md[7]:
                raw_header, header_end = file.open(at)
                header = thrift_struct(raw_header)[0]
                body, page_end = file.open(header_end)
                assert header[3] == len(body) == page_end - header_end - 32
                plain_size += header_end - at + header[2]
                dictionaries += header[1] == 2
                at = page_end
            assert at == start + md[7]
            assert plain_size == md[6]
            assert 14 not in md  # bloom_filter_offset
    assert dictionaries == 1
    database.execute(f"COPY {ROWS} TO '{tmp_path / 'plain.parquet'}' (FORMAT parquet)")
    chunks = footer_of((tmp_path / "plain.parquet").read_bytes())[4][0][1]
    assert 14 in chunks[1][3]


def test_duckdb_reads_what_we_decrypt(database: Any, tmp_path: Path) -> None:
    plain = write_plain(tmp_path / "plain.parquet")
    back = tmp_path / "back.parquet"
    sealed = encrypt(plain.read_bytes(), footer_key=FOOTER_KEY)
    mc.decrypt_parquet(sealed, back, mc.FileDecryptionProperties(footer_key=FOOTER_KEY))
    ours, theirs = (database.sql(f"FROM '{path}'").to_arrow_table() for path in (back, plain))
    assert ours.equals(theirs)

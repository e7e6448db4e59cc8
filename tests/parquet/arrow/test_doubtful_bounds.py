"""Bounds of column chunks that leave out values, as Polars wrote them, lose no row.

Polars 1.28 to 2.0 leaves out pages with NaN, and 0.20.31 to 1.36 strings that begin as the bound of
another page. Filters of PyArrow, Polars and DuckDB lose rows of such plaintext files.
"""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import IO, Any, cast

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

import modcrypt as mc
from modcrypt.parquet.format.idl import ThriftStruct, decode, encode
from tests.support import forging
from tests.support.keys import FOOTER_KEY

KEYS = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, require_encrypted=False)
TABLE = pa.table({
    "f": [math.nan if n == 5 else n / 4 for n in range(400)],
    "s": [f"user-{n}" for n in range(400)],
    "i": range(400),
    "t": [{"f": math.nan if n == 5 else n / 4} for n in range(400)],
})  # fmt: skip


def make_polars_file(*, null_count: int = 0) -> bytes:
    """Return a plaintext file with the bounds, flags and name of Polars."""
    plain = forging.plain_file(
        TABLE, write_page_index=True, max_rows_per_page=100, write_batch_size=100,
        use_dictionary=False,
    )  # fmt: skip
    body, footer, magic = forging.split_tail(plain)
    out, metadata = bytearray(body), decode("FileMetaData", footer)[0]
    metadata.created_by = b"Polars"
    floats, texts, _, inner = metadata.row_groups[0].columns
    for chunk in (floats, inner):
        index, _ = decode("ColumnIndex", body, chunk.column_index_offset)
        chunk.meta_data.statistics.min_value = index.min_values[1]
        index.null_pages[0], index.null_counts[0] = True, null_count
        index.min_values[0] = index.max_values[0] = b"\0"
        data = encode(index)
        chunk.column_index_offset, chunk.column_index_length = len(out), len(data)
        out += data
    texts.meta_data.statistics.max_value = b"user-9"
    return forging.join_tail(bytes(out), encode(metadata), magic)


PLAIN = make_polars_file()
FILTERS: list[tuple[list[tuple[str, str, Any]], list[int]]] = [
    ([("f", "<", 2.0)], [0, 1, 2, 3, 4, 6, 7]),
    ([("f", "=", 1.5)], [6]),
    ([("f", "in", [1.5, 50.0])], [6, 200]),
    ([("s", ">", "user-9")], [*range(90, 100)]),
    ([("s", "=", "user-99")], [99]),
    ([("f", "<", 2.0), ("i", ">", 3)], [4, 6, 7]),
]
WRITERS = {
    "encrypted footer": mc.FileEncryptionProperties(footer_key=FOOTER_KEY),
    "plaintext footer": mc.FileEncryptionProperties(footer_key=FOOTER_KEY, plaintext_footer=True),
    "plaintext columns": mc.FileEncryptionProperties(
        footer_key=FOOTER_KEY, plaintext_columns=["f", "s"]
    ),
}


def encrypt(name: str) -> bytes:
    return forging.encrypt_bytes(PLAIN, WRITERS[name])


def rekey(data: bytes) -> bytes:
    out = io.BytesIO()
    mc.rekey_parquet(data, out, KEYS, WRITERS["encrypted footer"])
    return out.getvalue()


@pytest.mark.parametrize("name", ["plaintext", *WRITERS])
def test_no_filter_loses_a_row(name: str) -> None:
    data = PLAIN if name == "plaintext" else encrypt(name)
    for file in (data,) if name == "plaintext" else (data, rekey(data)):
        for filters, rows in FILTERS:
            assert mc.read_table(file, KEYS, filters=filters)["i"].to_pylist() == rows
            found = mc.iter_batches(file, KEYS, filters=filters)
            assert pa.Table.from_batches(found)["i"].to_pylist() == rows
        nested = mc.read_table(file, KEYS, filters=pc.field("t", "f") < 1)
        assert nested["i"].to_pylist() == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["plaintext", *WRITERS])
def test_no_reader_of_a_view_loses_a_row(name: str) -> None:
    data = PLAIN if name == "plaintext" else encrypt(name)
    for filters, rows in FILTERS:
        with mc.open_parquet(data, KEYS) as view:
            assert pq.read_table(view, filters=filters)["i"].to_pylist() == rows
    with mc.open_parquet(data, KEYS) as view:
        found = pl.scan_parquet(cast(IO[bytes], view)).filter(pl.col("f") < 2).collect()
    assert found["i"].to_list() == FILTERS[0][1]


def test_pyarrow_loses_no_row_of_the_encrypted_copy_nor_duckdb_of_a_view(tmp_path: Path) -> None:
    path = tmp_path / "copy.parquet"
    path.write_bytes(encrypt("encrypted footer"))
    opened = pe.create_decryption_properties(FOOTER_KEY)
    for filters, rows in FILTERS:
        found = pq.read_table(path, filters=filters, decryption_properties=opened)
        assert found["i"].to_pylist() == rows
    with mc.open_parquet(path, KEYS) as view:
        (tmp_path / "view.parquet").write_bytes(view.read())
    found = (
        duckdb.connect()
        .execute(f"SELECT i FROM '{tmp_path / 'view.parquet'}' WHERE f < 2")
        .fetchall()
    )
    assert [i for (i,) in found] == FILTERS[0][1]


@pytest.mark.parametrize("name", WRITERS)
def test_decryption_restores_bounds_and_indexes(name: str) -> None:
    for file in (encrypt(name), rekey(encrypt(name))):
        plain = forging.decrypt_bytes(file, KEYS)
        assert claims(plain) == claims(PLAIN)


def claims(plain: bytes) -> list[tuple[ThriftStruct, bytes]]:
    """Return the statistics and the column index of each chunk."""
    chunks = forging.read_plain_footer(plain).row_groups[0].columns
    return [
        (
            chunk.meta_data.statistics,
            plain[chunk.column_index_offset :][: chunk.column_index_length],
        )
        for chunk in chunks
    ]


@pytest.mark.parametrize("name", ["plaintext", *WRITERS])
def test_verify_calls_it_a_quirk_of_polars(name: str) -> None:
    result = mc.verify_parquet(PLAIN if name == "plaintext" else encrypt(name), KEYS)
    assert result.ok
    assert any("Polars" in finding.message for finding in result.findings)


def test_bounds_of_other_writers_prune() -> None:
    """The same file by PyArrow's name is PyArrow's to judge: its chunk bounds are believed."""
    other = forging.edit_plain(PLAIN, lambda md: setattr(md, "created_by", b"parquet-cpp-arrow"))
    filters = [("s", ">", "user-9")]
    wanted = pq.read_table(io.BytesIO(other), filters=filters).num_rows
    assert mc.read_table(other, KEYS, filters=filters).num_rows == wanted == 0

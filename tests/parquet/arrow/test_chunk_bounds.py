"""Bounds of column chunks that leave out values which the chunk's column index shows.

Polars up to 1.36 writes such bounds for strings, and Polars 1.28 to 2.0 for pages with a NaN.
"""

from __future__ import annotations

import io
from typing import IO, Any, cast

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt.parquet.format.idl import ThriftStruct, decode, encode
from tests.support import forging
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY

ROWS = 400
TABLE = pa.table(
    {
        "id": pa.array(range(ROWS), pa.int64()),
        "text": [f"text-{i}" for i in range(ROWS)],
        "number": [float("nan") if i == 5 else float(i) for i in range(ROWS)],
    }
)
OPTIONS: dict[str, Any] = {
    "use_dictionary": False, "write_page_index": True, "store_schema": False,
    "max_rows_per_page": 50, "write_batch_size": 50, "row_group_size": 200,
}  # fmt: skip
READER = mc.FileDecryptionProperties(
    footer_key=FOOTER_KEY, column_keys={"text": COLUMN_KEY}, require_encrypted=False
)
OTHER_READER = mc.FileDecryptionProperties(footer_key=OTHER_KEY)
FILTERS: list[Any] = [
    [("text", ">", "text-9")], [("text", "=", "text-99")], [("text", "in", ["text-5", "text-0"])],
    [("text", "<", "text-1")], [("number", "<", 40.0)], [("number", "=", 7.0)],
    [("number", "in", [7.0, 60.0])], [("number", ">=", 390.0)], [("id", "<", 3)],
]  # fmt: skip


def write_file(created_by: bytes | None = b"Polars") -> bytes:
    """Narrow the bounds of the columns text and number as Polars does."""
    body, tail, magic = forging.split_tail(forging.plain_file(TABLE, **OPTIONS))
    metadata, _ = decode("FileMetaData", tail)
    metadata.created_by = created_by
    for row_group in metadata.row_groups:
        _, text, number = row_group.columns
        statistics = text.meta_data.statistics
        statistics.max = statistics.max_value = statistics.min_value[:5] + b"9"
        statistics.min = statistics.min_value = statistics.max_value
        index = decode("ColumnIndex", body, number.column_index_offset)[0]
        index.null_pages[0] = True
        index.min_values[0] = index.max_values[0] = b""
        statistics = number.meta_data.statistics
        statistics.min = statistics.min_value = index.min_values[1]
        number.column_index_offset, new = len(body), encode(index)
        number.column_index_length = len(new)
        body += new
    return forging.join_tail(body, encode(metadata), magic)


def rekey(file: bytes) -> bytes:
    out = io.BytesIO()
    mc.rekey_parquet(file, out, READER, mc.FileEncryptionProperties(footer_key=OTHER_KEY))
    return out.getvalue()


def count(table: pa.Table, row_filter: Any) -> int:
    rows: int = table.filter(pq.filters_to_expression(row_filter)).num_rows
    return rows


MODES: dict[str, dict[str, Any]] = {
    "one key": {},
    "plaintext footer": {"column_keys": {"text": COLUMN_KEY}, "plaintext_footer": True},
    "plaintext columns": {
        "column_keys": {"text": COLUMN_KEY}, "plaintext_columns": ["id", "number"]
    },
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("created_by", [b"Polars", None])
def test_no_reader_of_an_encrypted_copy_loses_rows(mode: str, created_by: bytes | None) -> None:
    properties = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, **MODES[mode])
    file = forging.encrypt_bytes(write_file(created_by), properties)
    for data, reader in ((file, READER), (rekey(file), OTHER_READER)):
        assert mc.verify_parquet(data, reader).ok
        for row_filter in FILTERS:
            wanted = count(TABLE, row_filter)
            assert mc.read_table(data, reader, filters=row_filter).num_rows == wanted
            with mc.open_parquet(data, reader) as view:
                assert pq.read_table(view, filters=row_filter).num_rows == wanted
        with mc.open_parquet(data, reader) as view:
            frame = pl.scan_parquet(cast("IO[bytes]", view))
            assert frame.filter(pl.col("text") > "text-9").collect().height == 10
            assert frame.filter(pl.col("number") < 40).collect().height == 39


def test_filters_of_a_plaintext_file_of_polars_lose_no_rows() -> None:
    plain = mc.FileDecryptionProperties(require_encrypted=False)
    for row_filter in FILTERS:
        found = mc.read_table(write_file(), plain, filters=row_filter)
        assert found.num_rows == count(TABLE, row_filter)


def test_other_writers_bounds_are_used() -> None:
    plain = mc.FileDecryptionProperties(require_encrypted=False)
    found = mc.read_table(write_file(b"x Polars"), plain, filters=[("text", "=", "text-99")])
    assert found.num_rows == 0


@pytest.mark.parametrize("again", [False, True])
def test_decryption_restores_the_bounds(again: bool) -> None:
    file = forging.encrypt_bytes(write_file(), mc.FileEncryptionProperties(footer_key=FOOTER_KEY))
    back = (
        forging.decrypt_bytes(rekey(file), OTHER_READER)
        if again
        else forging.decrypt_bytes(file, READER)
    )
    assert _statistics(back) == _statistics(write_file())


def _statistics(plain: bytes) -> list[bytes]:
    groups = forging.read_plain_footer(plain).row_groups
    return [encode(chunk.meta_data.statistics) for group in groups for chunk in group.columns]


@pytest.mark.parametrize("value", [b"", b"zz", b"1", b"\xff", b"00" * 3 + b"f"])
def test_a_damaged_note_of_bounds_is_ignored(value: bytes) -> None:
    def change(metadata: ThriftStruct) -> None:
        for row_group in metadata.row_groups:
            for chunk in row_group.columns:
                for pair in chunk.meta_data.key_value_metadata or ():
                    if pair.key == b"modcrypt.statistics":
                        pair.value = value

    writer = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
    file = forging.encrypt_bytes(write_file(), writer, exact=False)
    file = forging.change_footer(file, FOOTER_KEY, change)
    assert mc.read_table(file, READER).num_rows == ROWS
    assert pq.read_table(io.BytesIO(forging.decrypt_bytes(file, READER))).num_rows == ROWS

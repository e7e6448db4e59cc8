"""Indexes and bloom filters that a writer left unencrypted although their column is encrypted.

arrow-rs 60.1 writes bloom filters so. They decide nothing, and everything else works.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import IO, Any, cast

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt.parquet.format.idl import ThriftStruct, decode
from tests.support import forging
from tests.support.keys import FOOTER_KEY

KEYS = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
NEW = mc.FileEncryptionProperties(footer_key=bytes(range(16)))
NEW_KEYS = mc.FileDecryptionProperties(footer_key=bytes(range(16)))
TABLE = pa.table({
    "i": pa.array([n % 50 for n in range(400)], pa.int32()),
    "s": [f"v{n % 50}" for n in range(400)],
    "f": [n / 4 for n in range(400)],
    "l": [[n % 7, None] for n in range(400)],
})  # fmt: skip
PLAIN = forging.plain_file(
    TABLE, write_page_index=True, row_group_size=200, max_rows_per_page=50, write_batch_size=50,
    bloom_filter_options={"i": {"ndv": 50}, "s": {"ndv": 50}, "f": {"ndv": 400}},
)  # fmt: skip
PARTS = ["bloom_filter", "column_index", "offset_index"]


def plain_part(row_group: int, column: int, part: str) -> bytes:
    chunk = forging.read_plain_footer(PLAIN).row_groups[row_group].columns[column]
    owner = chunk.meta_data if part == "bloom_filter" else chunk
    start = getattr(owner, f"{part}_offset")
    return PLAIN[start : start + getattr(owner, f"{part}_length")] if start is not None else b""


def leave_in_clear(part: str, *, length: bool = True, forged: bool = False) -> bytes:
    """Return an encrypted file with these parts of all columns in plaintext."""
    file = forging.open_file(forging.encrypt_bytes(PLAIN, WRITER), FOOTER_KEY)
    for r, row_group in enumerate(file.metadata.row_groups):
        for c, chunk in enumerate(row_group.columns):
            data = plain_part(r, c, part)
            if not data:
                continue
            if forged:
                size = decode("BloomFilterHeader", data)[1]
                data = data[:size] + bytes(len(data) - size)
            _place(chunk, part, len(file.body), len(data) if length else None)
            file.body += data
    return file.seal_footer(FOOTER_KEY)


WRITER = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)


def _place(chunk: ThriftStruct, part: str, offset: int, length: int | None) -> None:
    owner = chunk.meta_data if part == "bloom_filter" else chunk
    setattr(owner, f"{part}_offset", offset)
    setattr(owner, f"{part}_length", length)


FILTERS: list[Any] = [None, [("s", "=", "v3")], [("i", "in", [3, 9])], [("f", ">", 90.0)]]


def check_rows(data: bytes, keys: mc.FileDecryptionProperties) -> None:
    for filters in FILTERS:
        wanted = pq.read_table(io.BytesIO(PLAIN), filters=filters)
        assert mc.read_table(data, keys, filters=filters).equals(wanted)
        with mc.open_parquet(data, keys) as view:
            assert pq.read_table(view, filters=filters).equals(wanted)


@pytest.mark.parametrize("part", PARTS)
def test_a_part_in_clear_decides_nothing(part: str) -> None:
    data = leave_in_clear(part)
    check_rows(data, KEYS)
    with mc.open_parquet(data, KEYS) as view:
        assert pl.read_parquet(cast(IO[bytes], view)).height == 400


@pytest.mark.parametrize("length", [True, False])
def test_a_forged_bloom_filter_in_clear_hides_no_row(length: bool) -> None:
    """Re-keying does not vouch for it either."""
    data, out = leave_in_clear("bloom_filter", length=length, forged=True), io.BytesIO()
    check_rows(data, KEYS)
    mc.rekey_parquet(data, out, KEYS, NEW)
    check_rows(out.getvalue(), NEW_KEYS)
    assert list_parts(out.getvalue(), "bloom filter") == []


def list_parts(data: bytes, kind: str) -> list[str]:
    return [
        region.state
        for region in mc.verify_parquet(data, NEW_KEYS, regions=True).regions
        if region.kind.startswith(kind)
    ]


def test_rewrites_encrypt_a_bloom_filter_in_clear() -> None:
    data = leave_in_clear("bloom_filter")
    rewrites: tuple[Callable[[io.BytesIO], object], ...] = (
        lambda out: mc.rekey_parquet(data, out, KEYS, NEW),
        lambda out: mc.mask_parquet(data, out, KEYS, NEW, null=["l"]),
        lambda out: mc.share_parquet(data, out, KEYS, NEW, ["i", "s", "f"]),
    )
    for rewrite in rewrites:
        out = io.BytesIO()
        rewrite(out)
        assert mc.verify_parquet(out.getvalue(), NEW_KEYS).findings == ()
        assert list_parts(out.getvalue(), "bloom filter") == ["authentic"] * 12
        found = mc.read_table(out.getvalue(), NEW_KEYS, columns=["i"], filters=[("s", "=", "v3")])
        assert found.num_rows == 8


@pytest.mark.parametrize("part", ["column_index", "offset_index"])
def test_rewrites_leave_an_index_in_clear_out(part: str) -> None:
    out = io.BytesIO()
    mc.rekey_parquet(leave_in_clear(part), out, KEYS, NEW)
    assert list_parts(out.getvalue(), part.replace("_", " ")) == []
    check_rows(out.getvalue(), NEW_KEYS)


@pytest.mark.parametrize("part", PARTS)
def test_decryption_leaves_a_part_in_clear_out(part: str) -> None:
    """No tag vouches for it, and readers of the plaintext would trust it."""
    plain = forging.decrypt_bytes(leave_in_clear(part), KEYS)
    assert pq.read_table(io.BytesIO(plain)).equals(TABLE)
    for row_group in forging.read_plain_footer(plain).row_groups:
        for chunk in row_group.columns:
            owner = chunk.meta_data if part == "bloom_filter" else chunk
            assert getattr(owner, f"{part}_offset") is None


@pytest.mark.parametrize("part", PARTS)
def test_verify_and_inspect_name_a_part_in_clear(part: str) -> None:
    """Known writers leave bloom filters in clear; indexes in clear are a fault."""
    data, name = leave_in_clear(part), part.replace("_", " ")
    result = mc.verify_parquet(data, KEYS)
    about = [f for f in result.findings if "is not encrypted although the column is" in f.message]
    assert {f.word for f in about} == {"plaintext"}
    assert {f.severity for f in about} == {"warning" if part == "bloom_filter" else "fault"}
    assert any(name in note.why for note in result.not_authenticated)
    assert result.ok == (part == "bloom_filter")
    assert any(name in leak for leak in mc.inspect_parquet(data, KEYS).leaks)

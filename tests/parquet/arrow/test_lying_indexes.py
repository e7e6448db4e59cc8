"""Filters on files whose indexes lie give the rows that PyArrow gives, which ignores indexes."""

from __future__ import annotations

import datetime as dt
import io
import math
import random
from decimal import Decimal
from typing import IO, Any, cast

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt.parquet.format.idl import ThriftStruct, decode
from tests.support import forging
from tests.support.keys import FOOTER_KEY
from tests.support.lying_indexes import LIES, lie_about_pages
from tests.support.randomness import dice, examples

WRITERS = [
    mc.FileEncryptionProperties(footer_key=FOOTER_KEY),
    mc.FileEncryptionProperties(footer_key=FOOTER_KEY, plaintext_footer=True),
    mc.FileEncryptionProperties(footer_key=FOOTER_KEY, plaintext_columns=["i", "f", "s", "t.x"]),
]
KEYS = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, require_encrypted=False)
OPERATORS = ["=", "!=", "<", "<=", ">", ">=", "in", "not in"]
ROWS = 240


def make_table(rng: random.Random) -> pa.Table:
    """Return a table of many types, sorted or not, with runs of nulls and NaN."""
    at = (
        sorted(rng.choices(range(60), k=ROWS))
        if rng.random() < 0.6
        else rng.choices(range(60), k=ROWS)
    )
    gaps = [rng.random() < 0.1 or 60 <= n < 110 for n in range(ROWS)]
    some = [None if gap else n for gap, n in zip(gaps, at, strict=True)]
    day = dt.date(2026, 1, 1)
    floats = [None if n is None else math.nan if n % 13 == 0 else n / 4 for n in some]
    columns: dict[str, pa.Array] = {
        "r": pa.array(at, pa.int64()),
        "i": pa.array(some, pa.int32()),
        "u": pa.array(some, pa.uint64()),
        "f": pa.array(floats, pa.float64()),
        "h": pa.array(floats, pa.float32()),
        "s": pa.array([None if n is None else f"v{n:03d}" for n in some]),
        "b": pa.array([None if n is None else bytes([n]) * 3 for n in some], pa.binary(3)),
        "d": pa.array([None if n is None else day + dt.timedelta(n) for n in some]),
        "m": pa.array([None if n is None else Decimal(n) / 4 for n in some], pa.decimal128(9, 2)),
        "o": pa.array([None if n is None else n % 2 == 0 for n in some]),
        "t": pa.array(
            [None if n is None else {"x": n} for n in some], pa.struct({"x": pa.int64()})
        ),
        "l": pa.array([None if n is None else [n, None] for n in some], pa.list_(pa.int64())),
    }
    fields = [pa.field(name, c.type, nullable=name != "r") for name, c in columns.items()]
    return pa.table(list(columns.values()), schema=pa.schema(fields))


def make_filter(rng: random.Random, table: pa.Table) -> Any:
    """Return a filter of one or two conditions on any column that filters can read."""
    terms = [_make_term(rng, table) for _ in range(rng.choice((1, 1, 2)))]
    term = terms[0]
    for other in terms[1:]:
        term = term & other if rng.random() < 0.5 else term | other
    return ~term if rng.random() < 0.1 else term


def _make_term(rng: random.Random, table: pa.Table) -> pc.Expression:
    name = rng.choice([n for n in table.column_names if n != "l"])
    field = pc.field("t", "x") if name == "t" else pc.field(name)
    column = pc.struct_field(table[name], "x") if name == "t" else table[name]
    values = [v for v in column.to_pylist() if v is not None and v == v] or [0]
    if rng.random() < 0.15:
        return field.is_null() if rng.random() < 0.5 else field.is_valid()
    kind = rng.choice(OPERATORS)
    if kind.endswith("in"):
        chosen = pa.array(rng.choices(values, k=rng.choice((1, 3))), column.type)
        return ~field.isin(chosen) if kind == "not in" else field.isin(chosen)
    value = pa.scalar(rng.choice(values), column.type)
    if pa.types.is_boolean(column.type) and kind not in ("=", "!="):
        kind = "="
    compare = {"=": "equal", "!=": "not_equal", "<": "less", "<=": "less_equal",
               ">": "greater", ">=": "greater_equal"}[kind]  # fmt: skip
    return getattr(pc, compare)(field, value)


def make_file(rng: random.Random, lies: list[str]) -> tuple[pa.Table, bytes]:
    """Return a table, and a plaintext file of it whose indexes lie."""
    table = make_table(rng)
    options: dict[str, Any] = {
        "write_page_index": True, "max_rows_per_page": rng.choice((7, 16, 50)),
        "write_batch_size": 1, "row_group_size": rng.choice((80, ROWS)),
        "use_dictionary": rng.random() < 0.5, "compression": rng.choice(("none", "zstd")),
        "data_page_version": rng.choice(("1.0", "2.0")),
    }  # fmt: skip
    return table, lie_about_pages(forging.plain_file(table, **options), lies, rng)


def versions(plain: bytes, rng: random.Random) -> dict[str, Any]:
    """Return the file in plaintext, encrypted, re-keyed and as views."""
    first, second = rng.choice(WRITERS), rng.choice(WRITERS)
    sealed, again = forging.encrypt_bytes(plain, first), io.BytesIO()
    mc.rekey_parquet(sealed, again, KEYS, second)
    return {
        "plaintext": plain, "encrypted": sealed, "re-keyed": again.getvalue(),
        "decrypted": forging.decrypt_bytes(again.getvalue(), KEYS),
    }  # fmt: skip


def same(one: pa.Table, other: pa.Table) -> bool:
    """Return whether tables are equal, NaN included."""
    return bool(one.schema.equals(other.schema)) and str(one.to_pylist()) == str(other.to_pylist())


@pytest.mark.seeded
@pytest.mark.parametrize("seed", range(examples(100)))
def test_no_lie_of_an_index_loses_a_row(seed: int) -> None:
    rng = dice(f"lies {seed}")
    names = list(LIES)
    lies = [names[seed % len(names)], *rng.sample(names, rng.choice((0, 0, 1)))]
    table, plain = make_file(rng, lies)
    assert same(pq.read_table(io.BytesIO(plain)), table), "PyArrow reads no index"
    files = versions(plain, rng)
    for _ in range(3):
        expression = make_filter(rng, table)
        wanted = pq.read_table(io.BytesIO(plain), filters=expression)
        for name, data in files.items():
            found = mc.read_table(data, KEYS, filters=expression)
            assert same(found, wanted), (lies, name, str(expression))
        with mc.open_parquet(files["encrypted"], KEYS) as view:
            assert same(pq.read_table(view, filters=expression), wanted)


def test_a_copy_without_the_wrong_index_of_a_plaintext_column_is_decrypted() -> None:
    rng = dice("elsewhere")
    table, plain = make_file(rng, ["a page elsewhere"])
    sealed, again = forging.encrypt_bytes(plain, WRITERS[2]), io.BytesIO()
    assert forging.decrypt_bytes(sealed, KEYS) == plain
    mc.rekey_parquet(sealed, again, KEYS, WRITERS[0])
    data = forging.decrypt_bytes(again.getvalue(), KEYS)
    assert same(pq.read_table(io.BytesIO(data)), table)


@pytest.mark.parametrize("lie", [name for name in LIES if name.startswith("null pages, ")])
def test_no_reader_of_an_encrypted_copy_sees_an_index_that_lies_about_nulls(lie: str) -> None:
    """Decryption restores it, also after re-keying."""
    rng = dice(lie)
    _, plain = make_file(rng, [lie])
    before = _column_indexes(plain)
    for name, data in versions(plain, rng).items():
        if name == "decrypted":
            assert _column_indexes(data) == before
        if name in ("encrypted", "re-keyed"):
            found = mc.verify_parquet(data, KEYS)
            assert found.ok
            assert any("hidden" in finding.message for finding in found.findings)
            assert any(
                "hid column indexes" in quirk for quirk in mc.inspect_parquet(data, KEYS).quirks
            )
            with mc.open_parquet(data, KEYS) as view:
                shown = pq.ParquetFile(view).metadata.row_group(0)
            assert not shown.column(1).has_column_index
            assert shown.column(1).has_offset_index


def _column_indexes(plain: bytes) -> list[bytes]:
    body, footer, _ = forging.split_tail(plain)
    chunks = [c for group in decode("FileMetaData", footer)[0].row_groups for c in group.columns]
    return [
        body[c.column_index_offset : c.column_index_offset + c.column_index_length] for c in chunks
    ]


@pytest.mark.parametrize("optional", [True, False])
def test_a_false_number_of_nulls_in_the_chunk_hides_no_row_of_the_copy(optional: bool) -> None:
    """Its bounds contradict it; without them, the chunk would look like one of nulls."""
    schema = pa.schema([pa.field("k", pa.int64(), nullable=optional)])
    plain = forging.plain_file(
        pa.table({"k": range(400)}, schema=schema), write_page_index=True, max_rows_per_page=100,
        write_batch_size=100, use_dictionary=False,
    )  # fmt: skip

    def lie(metadata: ThriftStruct) -> None:
        metadata.row_groups[0].columns[0].meta_data.statistics.null_count = 400

    plain = forging.edit_plain(plain, lie)
    sealed = forging.encrypt_bytes(plain, WRITERS[0])
    for data in (plain, sealed, versions(plain, dice("nulls"))["re-keyed"]):
        assert mc.read_table(data, KEYS, filters=[("k", "=", 77)]).num_rows == 1
    with mc.open_parquet(sealed, KEYS) as view:
        assert pq.read_table(view, filters=[("k", "=", 77)]).num_rows == 1


def test_a_view_ignores_an_offset_index_that_cannot_be_decoded() -> None:
    """Also where the column index beside it flags a page of nulls."""
    table = pa.table({"f": [None if 100 <= n < 200 else n / 4 for n in range(400)]})
    plain = forging.plain_file(
        table, write_page_index=True, max_rows_per_page=100, write_batch_size=100,
        use_dictionary=False,
    )  # fmt: skip
    chunk = forging.read_plain_footer(plain).row_groups[0].columns[0]
    start, size = chunk.offset_index_offset, chunk.offset_index_length
    for junk in (b"\0", b"U"):
        data = plain[:start] + junk * size + plain[start + size :]
        with mc.open_parquet(data, KEYS) as view:
            assert pl.read_parquet(cast(IO[bytes], view)).height == 400

"""Data pages without values, which PyArrow takes for the end of a column chunk."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
import modcrypt.parquet as drop_in
from modcrypt.parquet.arrow.decoding import DECODER
from modcrypt.parquet.format.idl import decode
from tests.support.cases import each_case
from tests.support.forging import encrypt_bytes, plain_file
from tests.support.keys import FOOTER_KEY
from tests.support.nested_tables import add_empty_pages, random_options, random_table
from tests.support.randomness import dice, examples

KEYS = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
ENCRYPTED = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)


def read_small_buffers(data: bytes) -> pa.Table:
    """Let PyArrow read a view page by page, and each row group alone, for inner dictionaries."""
    file = pq.ParquetFile(mc.open_parquet(data, KEYS), buffer_size=64)
    return pa.concat_tables(file.read_row_group(n) for n in range(file.num_row_groups))


READS: dict[str, Callable[[bytes], pa.Table]] = {
    "read_table": lambda data: mc.read_table(data, KEYS),
    "ParquetFile": lambda data: mc.ParquetFile(data, KEYS).read(),
    "drop-in": lambda data: drop_in.read_table(io.BytesIO(data), decryption_properties=KEYS),
    "view": lambda data: pq.read_table(mc.open_parquet(data, KEYS)),
    "buffered view": read_small_buffers,
}

DUCKDB = duckdb.connect(config={"threads": 1})

SMALL = {"data_page_size": 1, "write_batch_size": 1}
LIST = pa.list_(pa.int64())
TABLES: dict[str, tuple[pa.Table, dict[str, Any]]] = {
    "dictionary": (pa.table({"c": pa.array([[1]], LIST)}), SMALL),
    "three row groups": (
        pa.table({"c": pa.array([None, [], [7]], LIST)}), SMALL | {"row_group_size": 1},
    ),
    "booleans": (
        pa.table({"c": [[n % 3 == 0 for n in range(3000)]]}),
        {"data_page_size": 50, "write_batch_size": 100, "use_dictionary": False},
    ),
    "list in a map": (
        pa.table({"c": pa.array([[("a", [1, 2]), ("b", None)]], pa.map_(pa.string(), LIST))}),
        SMALL,
    ),
    "list in a struct": (pa.table({"n": [1], "c": [{"a": 1, "l": [["x"], []]}]}), SMALL),
}  # fmt: skip


@each_case("name", TABLES)
@each_case("version", ["1.0", "2.0"])
@each_case(("compression", "plaintext"), [("none", ()), ("none", ("c",)), ("zstd", ())])
def test_no_row_is_lost(
    name: str, version: str, compression: str, plaintext: tuple[str, ...], tmp_path: Path
) -> None:
    table, options = TABLES[name]
    if "n" not in table.column_names and plaintext:
        table = table.add_column(0, "n", pa.array(range(table.num_rows)))
    properties = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, plaintext_columns=plaintext)
    options = options | {"data_page_version": version, "compression": compression}
    written = io.BytesIO()
    mc.write_table(table, written, properties, **options)
    assert mc.read_table(written.getvalue(), KEYS).equals(table)
    check_reads(encrypt_bytes(plain_file(table, **options), properties), table, tmp_path)


def check_reads(data: bytes, table: pa.Table, folder: Path) -> None:
    """Check that every reader returns this table."""
    for read in READS.values():
        check_equal(read(data), table)
    batches = list(mc.iter_batches(data, KEYS, batch_size=2))
    check_equal(pa.Table.from_batches(batches, table.schema), table)
    view = folder / "view.parquet"
    view.write_bytes(mc.open_parquet(data, KEYS).read())
    plain = folder / "plain.parquet"
    with plain.open("wb") as out:
        mc.decrypt_parquet(data, out, KEYS)
    assert pl.read_parquet(view).equals(pl.read_parquet(plain))
    assert read_with_duckdb(view) == read_with_duckdb(plain)
    assert len(read_with_duckdb(view)) == table.num_rows


def check_equal(table: pa.Table, expected: pa.Table) -> None:
    assert table.schema == expected.schema
    # `equals` also compares which values the dictionaries inside other types have.
    assert table.to_pylist() == expected.to_pylist()


def read_with_duckdb(path: Path) -> list[Any]:
    return DUCKDB.execute("FROM read_parquet(?)", [str(path)]).fetchall()


def test_filters_limits_and_folders_see_the_rows(tmp_path: Path) -> None:
    table = pa.table({"n": range(6), "c": pa.array([[n] * n for n in range(6)], LIST)})
    data = plain_file(table, row_group_size=1, write_page_index=True, **SMALL)
    for part in "ab":
        (tmp_path / f"{part}.parquet").write_bytes(encrypt_bytes(data, ENCRYPTED))
    assert mc.read_table(tmp_path, KEYS).num_rows == 12
    assert mc.read_table(tmp_path, KEYS, filters=[("n", ">=", 4)]).num_rows == 4
    assert sum(b.num_rows for b in mc.iter_batches(tmp_path, KEYS, limit=8)) == 8
    kept = mc.read_table(tmp_path / "a.parquet", KEYS, filters=[("n", "in", [0, 3, 5])])
    assert kept.equals(table.take([0, 3, 5]))


@each_case(
    ("version", "before", "plaintext"),
    [
        ("1.0", lambda _: 1, ()),
        ("2.0", lambda _: 1, ("c", "flat")),
        ("1.0", lambda n: n % 3, ("c", "flat")),
        ("2.0", lambda n: n % 3, ()),
        ("1.0", lambda n: 2 * (n > 1), ("c", "flat")),
        ("2.0", lambda n: 2 * (n > 1), ()),
    ],
)
def test_empty_pages_anywhere_in_a_chunk_are_hidden(
    version: str, before: Callable[[int], int], plaintext: tuple[str, ...], tmp_path: Path
) -> None:
    table = pa.table(
        {"id": range(9), "flat": [None, *range(8)], "c": pa.array([[n, None] for n in range(9)])}
    )
    options: dict[str, Any] = {"data_page_version": version, "compression": "none"}
    plain = plain_file(table, use_dictionary=["c"], write_page_index=True, **SMALL, **options)
    properties = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, plaintext_columns=plaintext)
    data = encrypt_bytes(add_empty_pages(plain, before), properties)
    check_reads(data, table, tmp_path)
    for limit in range(1, 9):  # needs some pages of the flat columns
        batches = list(mc.iter_batches(data, KEYS, limit=limit, columns=["id", "flat"]))
        assert pa.Table.from_batches(batches).equals(table.select(["id", "flat"])[:limit])
    view = mc.open_parquet(data, KEYS)
    whole = view.read()[: len(data)]
    for size in (17, 100):  # The bytes do not depend on how they are read.
        view = mc.open_parquet(data, KEYS)
        parts = [view.read_at(at, size) for at in range(0, len(whole), size)]
        assert b"".join(parts)[: len(whole)] == whole
    backwards = mc.open_parquet(data, KEYS)
    for at in range(len(whole) - 50, 0, -50):
        backwards.read_at(at, 50)
    assert backwards.read_at(0, len(whole)) == whole


@each_case("version", ["1.0", "2.0"])
@each_case("plaintext", [(), ("c", "flat")])
@each_case("first", ["pages", "indexes"])
def test_the_indexes_of_a_view_do_not_list_hidden_pages(
    version: str, plaintext: tuple[str, ...], first: str
) -> None:
    table = pa.table({"id": range(6), "flat": range(6), "c": pa.array([[n] for n in range(6)])})
    written = plain_file(
        table, compression="none", use_dictionary=False, write_page_index=True,
        data_page_version=version, **SMALL,
    )  # fmt: skip
    plain = add_empty_pages(written, lambda n: n % 3)
    properties = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, plaintext_columns=plaintext)
    view = mc.open_parquet(encrypt_bytes(plain, properties), KEYS)
    size = int.from_bytes(view.read_at(view.size - 8, 4), "little")
    footer, _ = decode("FileMetaData", view.read_at(view.size - 8 - size, size))
    if first == "pages":
        view.read_at(0, view.size)
    for chunk in footer.row_groups[0].columns:
        index = view.read_at(chunk.offset_index_offset, chunk.offset_index_length)
        locations = decode("OffsetIndex", index)[0].page_locations
        assert [location.first_row_index for location in locations] == list(range(6))
        for location in locations:
            page = view.read_at(location.offset, location.compressed_page_size)
            header, end = decode("PageHeader", page)
            assert end + header.compressed_page_size == len(page)
            assert (header.data_page_header or header.data_page_header_v2).num_values == 1


def test_column_indexes_of_a_view_have_as_many_entries_as_pages() -> None:
    table = pa.table({"c": pa.array([[1], [2], [3]], LIST)})
    plain = plain_file(table, write_page_index=True, row_group_size=1, **SMALL)
    for plaintext in ([], ["c"]):
        both = plain if not plaintext else with_other_column(table)
        properties = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, plaintext_columns=plaintext)
        view = mc.open_parquet(encrypt_bytes(both, properties), KEYS)
        size = int.from_bytes(view.read_at(view.size - 8, 4), "little")
        footer, _ = decode("FileMetaData", view.read_at(view.size - 8 - size, size))
        for row_group in footer.row_groups:
            chunk = row_group.columns[-1]
            offsets = view.read_at(chunk.offset_index_offset, chunk.offset_index_length)
            assert len(decode("OffsetIndex", offsets)[0].page_locations) == 1
            data = view.read_at(chunk.column_index_offset, chunk.column_index_length)
            index, _ = decode("ColumnIndex", data)
            assert index.null_pages == [False]
            assert len(index.min_values) == len(index.max_values) == len(index.null_counts) == 1
            assert len(index.definition_level_histograms) == 4


def with_other_column(table: pa.Table) -> bytes:
    more = table.add_column(0, "id", pa.array(range(table.num_rows)))
    return plain_file(more, write_page_index=True, row_group_size=1, **SMALL)


@pytest.mark.seeded
def test_random_nested_tables_are_read_as_they_were_written(tmp_path: Path) -> None:
    for seed in range(examples(60)):
        rng = dice(seed)
        table, options = random_table(rng), random_options(rng)
        plaintext = table.column_names[: rng.choice((0, 0, 1)) and table.num_columns - 1]
        properties = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, plaintext_columns=plaintext)
        try:
            plain = plain_file(table, **options)
        except pa.ArrowIndexError:  # PyArrow writes no empty dictionary inside a list
            continue
        check_reads(encrypt_bytes(plain, properties), table, tmp_path)


def test_an_error_names_the_decoder_and_another_one() -> None:
    inner = pa.field("f", pa.list_(pa.int64(), 2), nullable=False)
    array = pa.array([None, {"f": [1, 2]}], pa.struct([inner]))
    data = encrypt_bytes(plain_file(pa.table({"c": array})), ENCRYPTED)
    with pytest.raises(
        mc.errors.FormatError, match=f"column c.f.list.element: {DECODER} cannot"
    ) as caught:
        mc.read_table(data, KEYS)
    assert "Polars and DuckDB" in str(caught.value)
    assert pl.read_parquet(mc.open_parquet(data, KEYS).read()).height == 2


@pytest.mark.seeded
def test_damaged_pages_beside_empty_ones_give_errors_of_ours() -> None:
    table = pa.table({"x": range(6), "id": range(6), "c": pa.array([[n] for n in range(6)])})
    written = plain_file(
        table, compression="none", use_dictionary=["id"], write_page_index=True, **SMALL
    )
    properties = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, plaintext_columns=["id", "c"])
    data = encrypt_bytes(add_empty_pages(written, lambda n: n % 3), properties)
    reads: list[Callable[[bytes], Any]] = [
        READS["read_table"],
        lambda damaged: mc.open_parquet(damaged, KEYS).read(),
        lambda damaged: list(mc.iter_batches(damaged, KEYS, limit=2, columns=["id"])),
    ]
    for seed in range(examples(300)):
        rng = dice(seed)
        damaged = bytearray(data)
        for _ in range(rng.choice((1, 2, 6))):
            damaged[rng.randrange(4, len(data) - 900)] = rng.choice((0, 0x15, rng.randrange(256)))
        for read in reads:
            with contextlib.suppress(mc.ModcryptError):
                read(bytes(damaged))

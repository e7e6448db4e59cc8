"""The page about writers, and how files like theirs are encrypted, filtered and restored.

Each file is made from one of PyArrow's by the change that makes it like the writer's, or by the
writer itself if it is among the test dependencies. `tests/parquet/writers` has the tests of what is
found in such files.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt.parquet.format.idl import ThriftStruct, decode, encode
from modcrypt.parquet.writers.quirk import TABLES, load_quirks, load_table
from tests.support import forging
from tests.support.cases import each_case
from tests.support.keys import FOOTER_KEY, OTHER_KEY
from tests.support.paths import ROOT
from tools.docs.writer_tables import draw_quirks

PAGE = ROOT / "docs/reference/writers.md"

UNIFORM = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
OTHER = mc.FileEncryptionProperties(footer_key=OTHER_KEY)
READER = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
OTHER_READER = mc.FileDecryptionProperties(footer_key=OTHER_KEY)

TABLE = pa.table(
    {
        "id": pa.array(range(60), pa.int64()),
        "name": [f"name {i % 7}" for i in range(60)],
        "list": [list(range(i % 3)) for i in range(60)],
    }
)
OPTIONS: dict[str, Any] = {"row_group_size": 40, "store_schema": False}


def columns(metadata: ThriftStruct) -> list[ThriftStruct]:
    return [chunk for row_group in metadata.row_groups for chunk in row_group.columns]


def plain_file(table: pa.Table = TABLE, **options: Any) -> bytes:
    return forging.plain_file(table, **(OPTIONS | options))


# --- the writers' files --------------------------------------------------------------------------


def copy_metadata_behind_chunks() -> bytes:
    """Put a copy of each column's metadata behind its pages, where file_offset points."""
    body, tail, magic = forging.split_tail(plain_file())
    metadata, _ = decode("FileMetaData", tail)
    out = bytearray(body[:4])
    for row_group in metadata.row_groups:
        row_group.file_offset = len(out)
        for chunk in row_group.columns:
            md = chunk.meta_data
            start = md.dictionary_page_offset or md.data_page_offset
            move = len(out) - start
            out += body[start : start + md.total_compressed_size]
            md.data_page_offset += move
            if md.dictionary_page_offset:
                md.dictionary_page_offset += move
            chunk.file_offset = len(out)
            out += encode(md)
    return forging.join_tail(bytes(out), encode(metadata), magic)


def change_columns(change: Callable[[ThriftStruct], object]) -> bytes:
    """Change each column chunk that has a dictionary."""

    def change_all(metadata: ThriftStruct) -> None:
        for chunk in columns(metadata):
            assert chunk.meta_data.dictionary_page_offset
            change(chunk)

    return forging.edit_plain(plain_file(), change_all)


def point_into_chunks(chunk: ThriftStruct) -> None:
    chunk.file_offset = chunk.meta_data.data_page_offset


def forget_dictionary_offset(chunk: ThriftStruct) -> None:
    md = chunk.meta_data
    md.data_page_offset, md.dictionary_page_offset = md.dictionary_page_offset, None


def point_data_at_dictionary(chunk: ThriftStruct) -> None:
    chunk.meta_data.data_page_offset = chunk.meta_data.dictionary_page_offset


def write_empty_lists_without_a_type() -> bytes:
    def change(metadata: ThriftStruct) -> None:
        metadata.key_value_metadata = []

    file = forging.edit_plain(plain_file(), change)
    body, tail, magic = forging.split_tail(file)
    assert tail.count(b"\x19\x0c") == 1  # a list of no structs
    return forging.join_tail(body, tail.replace(b"\x19\x0c", b"\x19\x00"), magic)


def write_bounds_of_all_categories() -> bytes:
    """Give pages of nulls the bounds of all categories, as if they had values."""
    names = [f"name {i % 7}" if i < 40 else None for i in range(60)]
    table = TABLE.set_column(1, "name", pa.array(names))
    body, tail, magic = forging.split_tail(plain_file(table, write_page_index=True))
    metadata, _ = decode("FileMetaData", tail)
    chunk = metadata.row_groups[1].columns[1]
    index = decode("ColumnIndex", body, chunk.column_index_offset)[0]
    assert index.null_pages == [True]
    index.null_pages, index.min_values, index.max_values = [False], [b"name 0"], [b"name 6"]
    chunk.column_index_offset, new = len(body), encode(index)
    chunk.column_index_length = len(new)
    return forging.join_tail(body + new, encode(metadata), magic)


@dataclass(frozen=True)
class Case:
    """A writer's file.

    Attributes:
        write: Function that returns the file.
        exact: Whether verification has nothing to report about the encrypted file.
    """

    write: Callable[[], bytes]
    exact: bool = True


CASES = {
    "metadata-copies": Case(copy_metadata_behind_chunks),
    "file-offset": Case(lambda: change_columns(point_into_chunks)),
    "no-dictionary-offset": Case(lambda: change_columns(forget_dictionary_offset)),
    "data-offset-at-dictionary": Case(lambda: change_columns(point_data_at_dictionary)),
    "empty-thrift-lists": Case(write_empty_lists_without_a_type),
    "no-columns": Case(lambda: plain_file(pa.table({}))),
    "categorical-bounds": Case(write_bounds_of_all_categories, exact=False),
}

ENCRYPTED = {
    "ctr-label": "parquet/crypto/test_algorithm_labels.py",
    "clear-bloom-filters": "parquet/verify/test_inspection.py",
    "clear-levels": "parquet/verify/test_inspection.py",
    "padded-modules": "parquet/verify/test_inspection.py",
    "no-aad": "interop/test_duckdb.py",
    "module-types": "parquet/verify/test_inspection.py",
    "empty-prefix": "interop/test_polars.py",
    "reused-properties": "parquet/verify/test_verification.py",
    "uniform-plaintext-footer": "interop/test_key_tools_pyarrow.py",
    "options-ignored": "parquet/datasets/test_aad_prefixes.py",
}
"""Where rows about encrypted files are tested; the others have files in spec-vectors."""


def test_the_page_counts_the_rows_of_the_package() -> None:
    page = PAGE.read_text()
    tables = re.findall(r"^<!-- table: writers (\w+) -->$", page, re.MULTILINE)
    assert tables == [*TABLES]
    harms = re.findall(r"^\| ([a-z ]+) \| .* \| (\d+) \|$", page, re.MULTILINE)
    found = Counter(quirk.harm for quirk in load_quirks().values())
    assert {harm: int(count) for harm, count in harms} == found


def test_the_website_has_an_anchor_for_each_row() -> None:
    drawn = "\n".join(map(draw_quirks, TABLES))
    assert re.findall(r"^\| `[^`]+`\{#(\S+)\} \|", drawn, re.MULTILINE) == [*load_quirks()]


def test_each_row_about_encrypted_files_has_a_test() -> None:
    assert {*ENCRYPTED} == {quirk.name for quirk in load_table("encrypted")}
    assert [name for name in ENCRYPTED.values() if not (ROOT / "tests" / name).exists()] == []
    assert {*CASES} <= {*load_quirks()}


@each_case("name", CASES)
def test_a_writers_file_is_encrypted_and_read(name: str) -> None:
    case = CASES[name]
    plain = case.write()
    table = pq.read_table(io.BytesIO(plain))
    file = forging.encrypt_bytes(plain, UNIFORM)
    again = io.BytesIO()
    mc.rekey_parquet(file, again, READER, OTHER)
    for encrypted, reader in ((file, READER), (again.getvalue(), OTHER_READER)):
        assert mc.read_table(encrypted, reader).equals(table)
        if case.exact:
            assert mc.verify_parquet(encrypted, reader).findings == ()
    with mc.open_parquet(file, READER) as view:
        assert pq.read_table(view, use_threads=False).equals(table)


@each_case("name", CASES)
def test_filters_find_all_rows_of_a_writers_file(name: str) -> None:
    plain = CASES[name].write()
    table = pq.read_table(io.BytesIO(plain))
    if not table.num_columns:
        return
    file = forging.encrypt_bytes(plain, UNIFORM)
    names = table["name"].to_pylist()
    for value in ("name 0", "name 6", "x"):
        found = mc.read_table(file, READER, filters=[("name", "=", value)])
        assert found.num_rows == names.count(value)
    assert mc.read_table(file, READER, filters=[("id", ">", 41)]).num_rows == 18


@each_case("name", CASES)
def test_decryption_restores_a_writers_file(name: str) -> None:
    case = CASES[name]
    plain = case.write()
    back = forging.decrypt_bytes(forging.encrypt_bytes(plain, UNIFORM), READER)
    assert back == plain
    rows = forging.decrypt_bytes(forging.encrypt_bytes(plain, UNIFORM, exact=False), READER)
    assert pq.read_table(io.BytesIO(rows)).equals(pq.read_table(io.BytesIO(plain)))
    back = forging.decrypt_bytes(forging.encrypt_bytes(rows, UNIFORM, exact=False), READER)
    assert back == rows


def test_copies_of_metadata_can_be_left_out() -> None:
    plain = copy_metadata_behind_chunks()
    back = forging.decrypt_bytes(forging.encrypt_bytes(plain, UNIFORM, exact=False), READER)
    assert len(back) < len(plain)
    assert forging.split_tail(back)[0] == forging.split_tail(plain_file())[0]


def test_offsets_are_corrected() -> None:
    right = columns(forging.read_plain_footer(plain_file()))
    for change in (forget_dictionary_offset, point_data_at_dictionary):
        file = forging.encrypt_bytes(change_columns(change), UNIFORM, exact=False)
        back = columns(forging.read_plain_footer(forging.decrypt_bytes(file, READER)))
        for chunk, other in zip(back, right, strict=True):
            assert encode(chunk.meta_data) == encode(other.meta_data)


# --- bounds of old Polars ------------------------------------------------------------------------


@pytest.mark.parametrize("column", ["name", "value"])
def test_rows_beyond_a_chunks_bounds_are_read(column: str) -> None:
    values = pa.array([float(i) for i in range(60)])

    def change(metadata: ThriftStruct) -> None:
        metadata.created_by = b"Polars"
        for chunk in columns(metadata):
            if chunk.meta_data.path_in_schema == [column.encode()]:
                statistics = chunk.meta_data.statistics
                statistics.min_value, statistics.min = statistics.max_value, statistics.max

    table = TABLE.append_column("value", values)
    plain = forging.edit_plain(plain_file(table, use_dictionary=False), change)
    file = forging.encrypt_bytes(plain, UNIFORM)
    assert mc.verify_parquet(file, READER).ok
    assert mc.read_table(file, READER).equals(table)


# --- files that PyArrow does not decode ----------------------------------------------------------


def check_only_other_readers_decode(path: Path) -> None:
    import polars as pl

    file = forging.encrypt_bytes(path.read_bytes(), UNIFORM)
    assert mc.verify_parquet(file, READER).ok
    assert forging.decrypt_bytes(file, READER) is not None
    with pytest.raises(mc.errors.FormatError, match="PyArrow"):
        mc.read_table(file, READER)
    with mc.open_parquet(file, READER) as view:
        assert pl.read_parquet(cast("IO[bytes]", view)).equals(pl.read_parquet(path))


@pytest.mark.parametrize(
    "number", ["(4294967295 - i)::uinteger", "(if(i % 2 = 0, -1, 1) * (2000000000 + i))::integer"]
)
def test_deltas_of_more_than_32_bits_are_left_to_other_readers(number: str, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "deltas.parquet"
    rows = f"select {number} as n from range(200) as r(i)"
    duckdb.sql(f"copy ({rows}) to '{path}' (format parquet, parquet_version v2)")
    check_only_other_readers_decode(path)


def test_integers_of_128_bits_are_left_to_other_readers(tmp_path: Path) -> None:
    pl = pytest.importorskip("polars")
    path = tmp_path / "int128.parquet"
    pl.DataFrame({"n": pl.Series([2**100, None, -1], dtype=pl.Int128)}).write_parquet(path)
    check_only_other_readers_decode(path)

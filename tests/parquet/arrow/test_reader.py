"""Reading encrypted files as Arrow data, judged by what PyArrow reads of the plaintext ones."""

from __future__ import annotations

import datetime as dt
import functools
import gc
import io
import itertools
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import modcrypt as mc
from modcrypt.module_ids import ModuleType
from modcrypt.parquet.format.idl import decode, encode
from tests.support.cases import each_case
from tests.support.forging import (
    SMALL_FILTER,
    change_footer,
    encrypt_bytes,
    module_suffix,
    open_file,
    open_module,
    plain_file,
    seal,
)
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.module_spans import list_modules
from tests.support.open_files import open_files
from tests.support.randomness import examples
from tests.support.shared_vectors import (
    PUBLISHED_COLUMN_KEYS,
    entry_params,
    expected_error,
    keys_of,
    read_published,
    reader_of,
    shared_vectors,
    tampered_reader,
)
from tests.support.watched_source import Watched

f = pc.field
NAN = float("nan")

COLUMN_KEYS = {"name": COLUMN_KEY, "address": OTHER_KEY, "score": COLUMN_KEY}
KEYS = mc.FileDecryptionProperties(
    footer_key=FOOTER_KEY,
    column_keys=COLUMN_KEYS,
    accept_algorithms=["AES_GCM_V1", "AES_GCM_CTR_V1"],
)


@functools.cache
def rich_table(rows: int = 900) -> pa.Table:
    """Return flat and nested columns, nulls, NaN, dictionaries, zones and extension types."""
    n = range(rows)
    start = dt.datetime(2026, 1, 1)
    columns: dict[str, pa.Array] = {
        "id": pa.array(n, pa.int64()),
        "name": pa.array([None if i % 7 == 0 else f"name-{i % 31}" for i in n]),
        "score": pa.array([NAN if i % 11 == 0 else None if i % 5 == 0 else i / 4 for i in n]),
        "price": pa.array([Decimal(i) / 4 for i in n], pa.decimal128(12, 2)),
        "flag": pa.array([i % 3 == 0 for i in n]),
        "day": pa.array([dt.date(2026, 1, 1 + i % 28) for i in n]),
        "at": pa.array(
            [start + dt.timedelta(hours=i) for i in n], pa.timestamp("us", "Asia/Tokyo")
        ),
        "kind": pa.array([f"kind-{i % 4}" for i in n]).dictionary_encode(),
        "long": pa.array([f"long-{i}" for i in n], pa.large_string()),
        "view": pa.array([f"a rather long view {i}" for i in n], pa.string_view()),
        "fixed": pa.array([i.to_bytes(4, "big") for i in n], pa.binary(4)),
        "uuid": pa.array([i.to_bytes(16, "big") for i in n], pa.uuid()),
        "json": pa.array([f'{{"i": {i}}}' for i in n], pa.json_()),
        "address": pa.array(
            [
                None if i % 9 == 0 else {"zip": f"{i:05}", "city": None if i % 4 else "Ulm"}
                for i in n
            ]
        ),
        "tags": pa.array([None if i % 6 == 0 else ["a", "b", None][: i % 4] for i in n]),
        "items": pa.array([[{"k": i, "v": str(j)} for j in range(i % 3)] for i in n]),
        "pairs": pa.array(
            [[(f"k{j}", i) for j in range(i % 3)] for i in n], pa.map_(pa.string(), pa.int64())
        ),
        "a.b": pa.array([i % 10 for i in n], pa.int32()),
        "nothing": pa.nulls(rows),
    }
    fields = [
        pa.field(name, column.type, nullable=name not in ("id", "flag"), metadata={"about": name})
        for name, column in columns.items()
    ]
    schema = pa.schema(fields, metadata={"who": "a test"})
    return pa.Table.from_arrays(list(columns.values()), schema=schema)


COLUMNS = rich_table(60).column_names


class Case(NamedTuple):
    """A file in plaintext and encrypted, in memory."""

    plain: bytes
    sealed: bytes

    def table(self, **how: Any) -> pa.Table:
        """Read the plaintext with PyArrow."""
        return pq.read_table(io.BytesIO(self.plain), **how)


SMALL_PAGES = {
    "row_group_size": 350, "data_page_size": 512, "write_batch_size": 32, "write_page_index": True,
}  # fmt: skip


def case(table: pa.Table | None = None, how: dict[str, Any] | None = None, **options: Any) -> Case:
    """Write a file with PyArrow, encrypt it."""
    table = rich_table() if table is None else table
    plain = plain_file(table, **(SMALL_PAGES | options))
    present = {k: v for k, v in COLUMN_KEYS.items() if k in table.column_names}
    properties: dict[str, Any] = {"footer_key": FOOTER_KEY, "column_keys": present} | (how or {})
    return Case(plain, encrypt_bytes(plain, mc.FileEncryptionProperties(**properties)))


@pytest.fixture(scope="module")
def rich() -> Case:
    return case(
        bloom_filter_options={"id": SMALL_FILTER, "name": SMALL_FILTER, "long": SMALL_FILTER}
    )


@pytest.fixture(scope="module")
def rich_rows(rich: Case) -> pa.Table:
    """Return the columns that filters are tried on, read by PyArrow."""
    return rich.table().drop_columns(["view"])


def check_same(found: pa.Table, wanted: pa.Table) -> None:
    found.validate(full=True)
    assert found.schema.equals(wanted.schema, check_metadata=True)
    assert same(found.unify_dictionaries(), wanted.unify_dictionaries())


def same(found: pa.Table, wanted: pa.Table) -> bool:
    """Compare with NaN equal to NaN, and NaN only."""
    return all(map(same_column, found.columns, wanted.columns)) and found.equals(
        wanted, check_metadata=False
    ) == wanted.equals(wanted)


def same_column(found: pa.ChunkedArray, wanted: pa.ChunkedArray) -> bool:
    if found.type != wanted.type or len(found) != len(wanted):
        return False
    if not pa.types.is_floating(found.type):
        return bool(found.equals(wanted))
    pairs = zip(found.to_pylist(), wanted.to_pylist(), strict=True)
    return all(a == b or (a is not None and b is not None and a != a and b != b) for a, b in pairs)


def in_file_order(columns: Sequence[str], plain: bytes) -> pa.Table:
    """Read columns as PyArrow does, which keeps the file's order, and put them as asked for."""
    found = pq.ParquetFile(io.BytesIO(plain)).read(columns=list(columns))
    first = {
        name if name in found.column_names else name.partition(".")[0]: None for name in columns
    }
    return found.select(list(first))


# --- whole files ---------------------------------------------------------------------------------

FILES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "defaults": ({"row_group_size": 1 << 20, "data_page_size": 1 << 20}, {}),
    "small pages": ({}, {}),
    "many row groups": ({"row_group_size": 20}, {}),
    "data pages V2": ({"data_page_version": "2.0"}, {}),
    "data pages V2 with levels in clear": (
        {"data_page_version": "2.0"},
        {"data_page_v2_levels": "plaintext"},
    ),
    "no dictionaries": ({"use_dictionary": False, "compression": "none"}, {}),
    "page checksums": ({"write_page_checksum": True}, {}),
    "no Arrow schema": ({"store_schema": False}, {}),
    "no statistics": ({"write_statistics": False, "write_page_index": False}, {}),
    "plaintext footer": ({}, {"plaintext_footer": True}),
    "plaintext columns": ({}, {"plaintext_columns": ["id", "tags", "at"]}),
    "CTR": ({}, {"encryption_algorithm": "AES_GCM_CTR_V1"}),
    "CTR with checksums": (
        {"write_page_checksum": True},
        {"encryption_algorithm": "AES_GCM_CTR_V1"},
    ),
    "gzip": ({"compression": "gzip"}, {}),
    "brotli": ({"compression": "brotli"}, {}),
    "lz4": ({"compression": "lz4"}, {}),
    "zstd": ({"compression": "zstd"}, {}),
    "mixed codecs": ({"compression": {"id": "zstd", "name": "gzip"}}, {}),
    "256-bit keys": ({}, {}),
}


@each_case("name", FILES)
def test_a_file_reads_as_pyarrow_reads_the_plaintext(name: str) -> None:
    options, how = FILES[name]
    file = case(how=how, **options)
    wanted = file.table()
    check_same(mc.read_table(file.sealed, KEYS), wanted)
    batches = list(mc.iter_batches(file.sealed, KEYS, batch_size=100))
    assert all(0 < batch.num_rows <= 100 for batch in batches)
    check_same(pa.Table.from_batches(batches), wanted)
    with mc.ParquetFile(file.sealed, KEYS) as reader:
        judge = pq.ParquetFile(io.BytesIO(file.plain))
        assert reader.num_row_groups == judge.num_row_groups
        assert reader.num_rows == judge.metadata.num_rows
        assert reader.schema.equals(judge.schema)
        assert reader.schema_arrow.equals(judge.schema_arrow, check_metadata=True)
        last = reader.num_row_groups - 1
        assert same(reader.read_row_group(last), judge.read_row_group(last))


@pytest.mark.parametrize("threads", [True, False])
def test_threads_or_none_make_no_difference(rich: Case, threads: bool) -> None:
    check_same(mc.read_table(rich.sealed, KEYS, use_threads=threads), rich.table())
    found = mc.iter_batches(rich.sealed, KEYS, use_threads=threads)
    check_same(pa.Table.from_batches(found), rich.table())


@pytest.mark.parametrize("size", [16, 24, 32])
def test_keys_of_all_sizes(size: int) -> None:
    key = bytes(range(1, size + 1))
    file = case(how={"footer_key": key})
    keys = mc.FileDecryptionProperties(footer_key=key, column_keys=COLUMN_KEYS)
    check_same(mc.read_table(file.sealed, keys), file.table())


@pytest.mark.parametrize("table", [
    pa.table({"id": pa.array([], pa.int64()), "name": pa.array([], pa.string())}),
    pa.table({}),
    pa.table({"s": pa.array([], pa.struct({"a": pa.int32()}))}),
], ids=["no rows", "no columns", "no rows of a struct"])  # fmt: skip
@pytest.mark.parametrize("how", [{}, {"plaintext_footer": True}])
def test_files_of_nothing(table: pa.Table, how: dict[str, Any]) -> None:
    file = case(table, how)
    check_same(mc.read_table(file.sealed, KEYS), file.table())
    assert list(mc.iter_batches(file.sealed, KEYS)) == []
    with mc.open_parquet(file.sealed, KEYS) as view:
        check_same(pq.read_table(view), file.table())
    with mc.ParquetFile(file.sealed, KEYS) as reader:
        assert reader.schema_arrow == table.schema
        assert reader.metadata.num_rows == reader.num_rows == 0


@pytest.mark.parametrize("filters", [None, [("n", "=", 3)]])
def test_each_column_without_rows_is_a_chunk(filters: Any) -> None:
    lists = pa.ListArray.from_arrays([0], pa.nulls(0, pa.uuid()))
    table = pa.table({"n": pa.array([], pa.int64()), "ids": lists})
    if filters is not None:
        table = pa.table({"n": [1, 2], "ids": pa.nulls(2, lists.type)})
    file = case(table, {})
    for columns in (None, ["ids"]):
        wanted = pq.read_table(io.BytesIO(file.plain), filters=filters, columns=columns)
        for found in (wanted, mc.read_table(file.sealed, KEYS, filters=filters, columns=columns)):
            assert [column.num_chunks for column in found.columns] == [1] * found.num_columns
            assert found.equals(wanted)


def test_empty_row_groups_between_others() -> None:
    sink = io.BytesIO()
    table = pa.table({"id": pa.array([1, 2, 3])})
    with pq.ParquetWriter(sink, table.schema) as writer:
        for part in (table.slice(0, 0), table, table.slice(0, 0), table, table.slice(0, 0)):
            writer.write_table(part)
    sealed = encrypt_bytes(sink.getvalue(), mc.FileEncryptionProperties(footer_key=FOOTER_KEY))
    judge = pq.ParquetFile(sink)
    with mc.ParquetFile(sealed, KEYS) as reader:
        assert reader.num_row_groups == judge.num_row_groups
        assert reader.read() == judge.read()
        assert reader.read(filters=f("id") == 2)["id"].to_pylist() == [2, 2]
        for r in range(judge.num_row_groups):
            assert reader.read_row_group(r) == judge.read_row_group(r)


def test_pandas_gets_its_index_back() -> None:
    import pandas as pd

    frame = pd.DataFrame({"x": [1, 2], "name": ["a", None]}, index=pd.Index(["p", "q"], name="key"))
    file = case(pa.Table.from_pandas(frame))
    found = mc.read_table(file.sealed, KEYS)
    check_same(found, file.table())
    pd.testing.assert_frame_equal(found.to_pandas(), frame)
    # With fewer columns, what is left must still be a frame to pandas.
    assert list(mc.read_table(file.sealed, KEYS, columns=["x"]).to_pandas()["x"]) == [1, 2]


def test_a_file_that_pyarrow_encrypted() -> None:
    table = rich_table().drop_columns(["view"])
    sink = io.BytesIO()
    properties = pe.create_encryption_properties(footer_key=FOOTER_KEY, aad_prefix=b"a test")
    pq.write_table(table, sink, encryption_properties=properties, row_group_size=300)
    keys = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, aad_prefix=b"a test")
    judge = pe.create_decryption_properties(footer_key=FOOTER_KEY)
    wanted = pq.read_table(pa.BufferReader(sink.getvalue()), decryption_properties=judge)
    check_same(mc.read_table(sink.getvalue(), keys), wanted)
    some = mc.read_table(sink.getvalue(), keys, columns=["tags", "id"], filters=f("id") > 590)
    assert same(some, wanted.filter(f("id") > 590).select(["tags", "id"]))


OPTIONS: list[dict[str, Any]] = [
    {"read_dictionary": ["name"]},
    {"binary_type": pa.large_binary()},
    {"page_checksum_verification": True},
    {"arrow_extensions_enabled": False},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: next(iter(options)))
def test_options_reach_pyarrow(rich: Case, options: dict[str, Any]) -> None:
    assert same(mc.read_table(rich.sealed, KEYS, **options), rich.table(**options))


# --- columns and row groups ----------------------------------------------------------------------

NAMES = [
    *COLUMNS, "address.zip", "address.city", "items.list.element.k", "items.list",
]  # fmt: skip


@settings(max_examples=examples(60))
@given(columns=st.lists(st.sampled_from(NAMES), min_size=1, max_size=6, unique=True))
def test_any_columns_in_any_order(rich: Case, columns: list[str]) -> None:
    found = mc.read_table(rich.sealed, KEYS, columns=columns)
    found.validate(full=True)
    wanted = in_file_order(columns, rich.plain)
    assert found.column_names == wanted.column_names
    assert same(found, wanted)


def test_fields_keep_their_metadata_and_nullability(rich: Case) -> None:
    columns = ["flag", "id", "tags", "uuid"]
    check_same(mc.read_table(rich.sealed, KEYS, columns=columns), rich.table(columns=columns))
    wanted = f("id") == 5
    check_same(
        mc.read_table(rich.sealed, KEYS, columns=columns, filters=wanted),
        rich.table(columns=columns, filters=wanted),
    )


def test_no_columns_leave_the_number_of_rows(rich: Case) -> None:
    assert mc.read_table(rich.sealed, KEYS, columns=[]).shape == (900, 0)
    assert sum(b.num_rows for b in mc.iter_batches(rich.sealed, KEYS, columns=[])) == 900
    some = f("id") < 400
    assert mc.read_table(rich.sealed, KEYS, columns=[], filters=some).shape == (400, 0)


def test_all_unknown_columns_are_named(rich: Case) -> None:
    columns = ["id", "zebra", "address.street", "address", "a"]
    for read in (mc.read_table, mc.iter_batches, mc.open_parquet):
        with pytest.raises(ValueError, match=r"a, address\.street, zebra") as caught:
            read(rich.sealed, KEYS, columns=columns)
        assert not isinstance(caught.value, mc.ModcryptError)


def test_a_string_is_no_list_of_columns(rich: Case) -> None:
    file = case(pa.table({"i": [1], "d": [2], "id": [3]}))
    for read in (mc.read_table, mc.iter_batches, mc.open_parquet):
        with pytest.raises((TypeError, ValueError)):
            read(file.sealed, KEYS, columns="id")
        with pytest.raises((TypeError, ValueError), match=r"must be str|these columns: 0;"):
            read(file.sealed, KEYS, columns=[0])  # type: ignore[list-item]


def test_columns_of_an_iterator_are_read() -> None:
    data = case(pa.table({"i": [1], "d": [2]})).sealed

    def some() -> Any:
        return iter(["i"])

    assert mc.read_table(data, KEYS, columns=some()).column_names == ["i"]
    (batch,) = mc.iter_batches(data, KEYS, columns=some())
    assert batch.schema.names == ["i"]
    with mc.open_parquet(data, KEYS, columns=some()) as view:
        assert pq.read_table(view).column_names == ["i"]


def test_names_with_dots() -> None:
    table = pa.table({"a.b": [1, 2], "a": pa.array([{"c": 1}, {"c": 2}]), "x.y.z": ["p", "q"]})
    file = case(table)
    for columns in (["a.b"], ["x.y.z", "a"], ["a.c"], ["a.b", "a.c"]):
        found = mc.read_table(file.sealed, KEYS, columns=columns)
        assert same(found, in_file_order(columns, file.plain))
    wanted = f("a.b") == 2
    assert mc.read_table(file.sealed, KEYS, filters=wanted) == table.filter(wanted)


@pytest.mark.parametrize("row_groups", [[0], [2], [2, 0], [1, 0, 2], []])
def test_row_groups_in_any_order(rich: Case, row_groups: list[int]) -> None:
    wanted = pq.ParquetFile(io.BytesIO(rich.plain)).read_row_groups(row_groups)
    with mc.ParquetFile(rich.sealed, KEYS) as reader:
        assert same(reader.read(row_groups=row_groups), wanted)
        batches = list(reader.iter_batches(row_groups=row_groups))
        assert same(pa.Table.from_batches(batches, wanted.schema), wanted)
        some = f("id").isin(range(3, 900, 100))
        found = reader.read(["id"], row_groups=row_groups, filters=some)
        assert found["id"].to_pylist() == [i for i in wanted["id"].to_pylist() if i % 100 == 3]


def test_repeated_row_groups_are_repeated_or_refused(rich: Case) -> None:
    """Silently once would be wrong: PyArrow repeats them."""
    wanted = pq.ParquetFile(io.BytesIO(rich.plain)).read_row_groups([1, 1], columns=["id"])
    try:
        found = mc.read_table(rich.sealed, KEYS, row_groups=[1, 1], columns=["id"])
    except ValueError:
        return
    assert found == wanted


@pytest.mark.parametrize("wrong", [[3], [-1], [0, 99], [-4]])
def test_row_groups_that_are_not_there(rich: Case, wrong: list[int]) -> None:
    with pytest.raises(ValueError, match=r"row group .* does not exist"):
        mc.read_table(rich.sealed, KEYS, row_groups=wrong)


# --- filters -------------------------------------------------------------------------------------

FILTERS: list[Any] = [
    f("id") == 444,
    f("id") == 100_000,
    (f("id") > 345) & (f("id") < 355),
    (f("id") < 3) | (f("id") >= 897),
    f("id").isin([1, 351, 702]),
    f("name") == "name-3",
    f("name") == "nobody",
    f("name").is_null(),
    ~(f("name") == "name-3"),
    f("score") > 200,
    ~(f("score") <= 200),
    pc.is_nan(f("score")),
    f("score").is_null(nan_is_null=True),
    f("score").is_valid(),
    f("score") != 1.5,
    f("kind") == "kind-2",
    f("long").isin(["long-1", "long-899"]),
    f("price") == Decimal("2.50"),
    f("day") == dt.date(2026, 1, 5),
    f("at") < pa.scalar(dt.datetime(2026, 1, 1, 5), pa.timestamp("us", "UTC")),
    f("fixed") == pa.scalar((77).to_bytes(4, "big"), pa.binary(4)),
    f("flag"),
    f("address", "zip") == "00123",
    f("address", "city").is_null(),
    f("address").is_null(),
    f("tags").is_null(),
    f("a.b") == 4,
    pc.list_value_length(f("items")) == 2,
    pc.starts_with(f("long"), "long-88"),
    pc.scalar(True),
    pc.scalar(False),
    [("id", "<", 5), ("name", "!=", "name-1")],
    [[("id", "==", 5)], [("name", "in", ["name-1", "name-2"]), ("id", ">", 890)]],
]


@pytest.mark.parametrize(
    "columns", [pytest.param(None, marks=pytest.mark.slow), ["tags", "address"]], ids=str
)
@each_case("wanted", FILTERS, ids=str)
def test_filters_keep_the_rows_that_pyarrow_keeps(
    rich: Case, rich_rows: pa.Table, wanted: Any, columns: list[str] | None
) -> None:
    names = columns or [name for name in COLUMNS if name != "view"]
    found = mc.read_table(rich.sealed, KEYS, columns=names, filters=wanted)
    # Of the table, not of the file: PyArrow takes bounds to hold for NaN as well.
    rows = rich_rows.filter(
        pq.filters_to_expression(wanted) if isinstance(wanted, list) else wanted
    )
    check_same(found, rows.select(names))
    batches = mc.iter_batches(rich.sealed, KEYS, columns=names, filters=wanted, batch_size=64)
    assert same(pa.Table.from_batches(batches, found.schema), found)


def test_a_filter_on_one_part_of_a_struct_gives_out_the_other(rich: Case) -> None:
    wanted = f("address", "zip") == "00124"
    found = mc.read_table(rich.sealed, KEYS, columns=["address.city", "id"], filters=wanted)
    assert found.to_pylist() == [{"address": {"city": "Ulm"}, "id": 124}]


def test_duckdb_finds_the_same_rows(rich: Case, tmp_path: Path) -> None:
    (tmp_path / "plain.parquet").write_bytes(rich.plain)
    query = "select id from read_parquet(?) where name = 'name-3' and price > 100 order by id"
    wanted = duckdb.execute(query, [str(tmp_path / "plain.parquet")]).fetchall()
    condition = (f("name") == "name-3") & (f("price") > Decimal("100.00"))
    found = mc.read_table(rich.sealed, KEYS, columns=["id"], filters=condition)
    assert [(i,) for i in found["id"].to_pylist()] == wanted


def test_a_filter_on_columns_that_are_not_there(rich: Case) -> None:
    with pytest.raises(ValueError, match="zebra"):
        mc.read_table(rich.sealed, KEYS, filters=f("zebra") == 1)


@pytest.mark.parametrize("mode", ["error", "null", "drop"])
def test_a_filter_on_a_column_without_a_key(rich: Case, mode: Any) -> None:
    keys = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, on_missing_key=mode)
    for read in (mc.read_table, mc.iter_batches):
        with pytest.raises(mc.errors.KeyNotFoundError, match="name") as caught:
            read(rich.sealed, keys, columns=["id"], filters=f("name") == "name-1")
        assert caught.value.column == "name"


def test_the_error_about_missing_keys_names_the_first_column() -> None:
    table = pa.table({"a": [1], "b": [2], "c": [3]})
    own = {name: bytes((n,)) * 16 for n, name in enumerate(("b", "c"), 1)}
    sealed = io.BytesIO()
    mc.write_table(
        table, sealed, mc.FileEncryptionProperties(footer_key=FOOTER_KEY, column_keys=own)
    )
    with pytest.raises(mc.errors.KeyNotFoundError, match="b, c") as caught:
        mc.read_table(sealed.getvalue(), mc.FileDecryptionProperties(footer_key=FOOTER_KEY))
    assert caught.value.column == "b"


# --- what is read, and which keys are asked for --------------------------------------------------


TAIL = (64 << 10) + 4
"""Reads that open a file: its end, and the magic at its start."""


def test_a_point_lookup_reads_a_few_pages() -> None:
    rows = 200_000
    table = pa.table({"id": range(rows), "x": pc.random(rows, initializer=1)})
    plain = plain_file(
        table, data_page_size=8 << 10, write_page_index=True, use_dictionary=False,
        compression="none", row_group_size=rows,
    )  # fmt: skip
    sealed = encrypt_bytes(plain, mc.FileEncryptionProperties(footer_key=FOOTER_KEY))
    source = Watched(sealed)
    found = mc.read_table(source, KEYS, filters=f("id") == 123_456)
    assert found == table.slice(123_456, 1)
    assert len(sealed) > 3_000_000
    assert sum(source.taken) < TAIL + 150_000, "indexes and a page of each column"


def test_an_absent_value_reads_no_page_where_there_is_a_bloom_filter() -> None:
    rows = 50_000
    table = pa.table({"id": [f"{(i * 7919) % rows:08}" for i in range(rows)]})
    plain = plain_file(
        table, use_dictionary=False, compression="none", bloom_filter_options={"id": True},
    )  # fmt: skip
    sealed = encrypt_bytes(plain, mc.FileEncryptionProperties(footer_key=FOOTER_KEY))
    pages = [
        span for span in list_modules(sealed, KEYS)
        if span.module.type in (ModuleType.DATA_PAGE, ModuleType.DATA_PAGE_HEADER)
    ]  # fmt: skip
    outside = len(sealed) - sum(span.end - span.start for span in pages)
    source = Watched(sealed)
    assert mc.read_table(source, KEYS, filters=[("id", "=", "00000123x")]).num_rows == 0
    assert sum(source.taken) <= TAIL + outside
    first = pages[0]
    assert not any(source.taken[first.start + 4 : first.end]), "a page was read"
    assert mc.read_table(source, KEYS, filters=f("id") == "00000123").num_rows == 1


def test_one_of_sixteen_columns_reads_its_chunks_and_the_footer() -> None:
    table = pa.table({f"c{n}": pc.random(50_000, initializer=n) for n in range(16)})
    plain = plain_file(table, use_dictionary=False, compression="none", row_group_size=25_000)
    sealed = encrypt_bytes(plain, mc.FileEncryptionProperties(footer_key=FOOTER_KEY))
    source = Watched(sealed)
    with mc.ParquetFile(source, KEYS) as reader:
        opening = sum(source.taken)
        assert reader.read(["c5"]) == table.select(["c5"])
        metadata = reader.metadata
    chunks = sum(metadata.row_group(r).column(5).total_compressed_size for r in range(2))
    assert opening <= TAIL
    assert sum(source.taken) - opening <= 1.05 * chunks


def test_row_groups_are_left_out_by_their_statistics() -> None:
    table = pa.table({"id": range(100_000), "x": pc.random(100_000, initializer=1)})
    plain = plain_file(table, use_dictionary=False, compression="none", row_group_size=5_000)
    sealed = encrypt_bytes(plain, mc.FileEncryptionProperties(footer_key=FOOTER_KEY))
    source = Watched(sealed)
    found = mc.read_table(source, KEYS, filters=f("id") == 52_345)
    assert found == table.slice(52_345, 1)
    assert sum(source.taken) <= TAIL + 1.05 * len(sealed) / 20


def test_opening_a_file_reads_its_end_alone(rich: Case) -> None:
    source = Watched(rich.sealed)
    with mc.ParquetFile(source, KEYS) as reader:
        assert reader.schema_arrow.names == COLUMNS
        assert reader.num_rows == 900
    assert sum(source.taken) <= TAIL


def asking(answers: dict[bytes, bytes]) -> tuple[list[bytes], Callable[[bytes], bytes | None]]:
    asked: list[bytes] = []

    def retrieve(metadata: bytes) -> bytes | None:
        asked.append(metadata)
        return answers.get(metadata)

    return asked, retrieve


RETRIEVABLE = {b"kf": FOOTER_KEY, b"kn": COLUMN_KEY, b"ka": OTHER_KEY, b"ks": COLUMN_KEY}
WITH_METADATA = {
    "footer_key_metadata": b"kf",
    "column_key_metadata": {"name": b"kn", "address": b"ka", "score": b"ks"},
}


def test_keys_are_asked_for_once_and_only_where_they_are_needed() -> None:
    file = case(how=WITH_METADATA)
    asked, retrieve = asking(RETRIEVABLE)
    keys = mc.FileDecryptionProperties(key_retriever=retrieve)
    with mc.ParquetFile(file.sealed, keys) as reader:
        assert asked == [b"kf"]
        assert reader.schema_arrow.names == COLUMNS
        reader.read(["id", "tags"])
        assert asked == [b"kf"]
        reader.read(["address"])  # two leaves, three row groups
        assert asked == [b"kf", b"ka"]
        reader.read(["id"], filters=f("name") == "name-3")
        assert asked == [b"kf", b"ka", b"kn"]
        list(reader.iter_batches(columns=["name", "address.zip"]))
        reader.read_row_group(1, ["address"])
        assert asked == [b"kf", b"ka", b"kn"]
        check_same(reader.read(), file.table())
    assert asked == [b"kf", b"ka", b"kn", b"ks"]


def test_explicit_keys_come_before_the_retriever() -> None:
    file = case(how=WITH_METADATA)
    asked, retrieve = asking(RETRIEVABLE)
    keys = mc.FileDecryptionProperties(
        footer_key=FOOTER_KEY, column_keys={"address": OTHER_KEY}, key_retriever=retrieve
    )
    check_same(mc.read_table(file.sealed, keys), file.table())
    assert asked == [b"kn", b"ks"]


def test_open_parquet_asks_for_the_keys_of_its_columns_alone() -> None:
    file = case(how=WITH_METADATA)
    asked, retrieve = asking({b"kf": FOOTER_KEY, b"kn": COLUMN_KEY})
    keys = mc.FileDecryptionProperties(key_retriever=retrieve)
    with mc.open_parquet(file.sealed, keys, columns=["name", "tags"]) as view:
        assert pq.read_table(view) == file.table(columns=["name", "tags"])
    assert asked == [b"kf", b"kn"]


@pytest.mark.parametrize("failure", [PermissionError("s3cret"), RuntimeError("s3cret")])
def test_what_a_retriever_says_is_not_repeated(failure: Exception) -> None:
    file = case(how=WITH_METADATA)

    def refuse(_: bytes) -> bytes:
        raise failure

    keys = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, key_retriever=refuse)
    with pytest.raises(mc.errors.KeyRetrievalError) as caught:
        mc.read_table(file.sealed, keys)
    assert "s3cret" not in str(caught.value)
    assert isinstance(caught.value, mc.errors.KeyAccessDeniedError) == isinstance(
        failure, PermissionError
    )
    assert mc.read_table(file.sealed, keys, columns=["id"]).num_rows == 900


def test_a_missing_key_is_named_before_a_page_is_read(rich: Case) -> None:
    keys = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, column_keys={"name": COLUMN_KEY})
    source = Watched(rich.sealed)
    for read in (mc.read_table, mc.iter_batches):
        with pytest.raises(
            mc.errors.KeyNotFoundError, match=r"address\.city|address\.zip"
        ) as caught:
            read(source, keys)
        assert caught.value.column in ("address.zip", "address.city", "score")
    assert sum(source.taken) <= TAIL


# --- threads, and closing ------------------------------------------------------------------------


def test_threads_share_a_file(rich: Case) -> None:
    table = rich.table()
    jobs = [(["name"], None), (["address", "id"], None), (["score"], f("id") < 500), (None, None)]

    def work(number: int) -> bool:
        columns, wanted = jobs[number % len(jobs)]
        names = columns or table.column_names
        rows = table if wanted is None else table.drop_columns(["view"]).filter(wanted)
        if number % 2:
            batches = reader.iter_batches(53, columns=columns, filters=wanted)
            found = pa.Table.from_batches(batches)
        else:
            found = reader.read(columns, filters=wanted)
        return same(found, rows.select(names))

    asked, retrieve = asking(RETRIEVABLE)
    file = case(how=WITH_METADATA)
    keys = mc.FileDecryptionProperties(key_retriever=retrieve)
    with mc.ParquetFile(io.BytesIO(file.sealed), keys) as reader, ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(36)))
    assert sorted(asked) == [b"ka", b"kf", b"kn", b"ks"]


def test_one_iterator_after_the_other_may_be_interleaved(rich: Case) -> None:
    with mc.ParquetFile(rich.sealed, KEYS) as reader:
        one, other = (
            reader.iter_batches(50, columns=["id"]),
            reader.iter_batches(50, columns=["id"]),
        )
        pairs = list(itertools.zip_longest(one, other))
        assert all(a == b for a, b in pairs)
        assert sum(a.num_rows for a, _ in pairs) == 900


def test_closing_twice_and_reading_afterwards(rich: Case) -> None:
    reader = mc.ParquetFile(rich.sealed, KEYS)
    batches = reader.iter_batches(10)
    next(batches)
    reader.close()
    reader.close()
    late = reader.iter_batches, reader.read, lambda: reader.read_row_group(0)
    for call in late:
        with pytest.raises(ValueError, match="closed"):
            list(call())


def test_closing_while_others_read_gives_all_or_an_error(rich: Case) -> None:
    for _ in range(5):
        reader = mc.ParquetFile(io.BytesIO(rich.sealed), KEYS)
        started = threading.Barrier(3)

        def read(reader: mc.ParquetFile = reader, started: threading.Barrier = started) -> int:
            started.wait()
            try:
                return sum(batch.num_rows for batch in reader.iter_batches(20))
            except ValueError as error:
                assert "closed" in str(error)  # noqa: PT017  # both ends are right
                return 900

        with ThreadPoolExecutor(2) as pool:
            work = [pool.submit(read) for _ in range(2)]
            started.wait()
            reader.close()
            assert [job.result() for job in work] == [900, 900]


def test_closing_in_the_middle_says_so_or_goes_on(rich: Case) -> None:
    """Batches decrypted before may come; then an error, never a regular end."""
    reader = mc.ParquetFile(rich.sealed, KEYS)
    batches = reader.iter_batches(10, columns=["id"])
    found = [next(batches)]
    reader.close()
    try:
        found += list(batches)
    except ValueError as error:
        assert "closed" in str(error)  # noqa: PT017  # both ends are right
    else:
        assert sum(batch.num_rows for batch in found) == 900


def test_the_caller_keeps_the_file_that_it_opened(rich: Case, tmp_path: Path) -> None:
    path = tmp_path / "sealed"
    path.write_bytes(rich.sealed)
    with path.open("rb") as file:
        assert mc.read_table(file, KEYS, columns=["id"]).num_rows == 900
        assert sum(b.num_rows for b in mc.iter_batches(file, KEYS, columns=["id"])) == 900
        assert not file.closed


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts file descriptors in /proc")
def test_abandoned_batches_leave_no_file_and_no_thread(rich: Case, tmp_path: Path) -> None:
    path = tmp_path / "sealed"
    path.write_bytes(rich.sealed)
    before = set(threading.enumerate())  # those of earlier tests may still be about to end

    def open_now() -> tuple[int, int]:
        gc.collect()
        new = set(threading.enumerate()) - before
        ours = [thread for thread in new if thread.name.startswith("modcrypt")]
        return open_files().count(str(path)), len(ours)

    mc.iter_batches(path, KEYS)
    assert open_now() == (0, 0), "never begun"
    batches = mc.iter_batches(path, KEYS, batch_size=10)
    next(batches)
    del batches
    assert open_now() == (0, 0), "left after a batch"
    with pytest.raises(ValueError, match="zebra"):
        mc.iter_batches(path, KEYS, columns=["zebra"])
    with pytest.raises(mc.errors.KeyNotFoundError):
        mc.iter_batches(path, mc.FileDecryptionProperties(footer_key=FOOTER_KEY))
    assert open_now() == (0, 0), "refused"


def test_batches_keep_memory_bounded() -> None:
    rows, columns = 250_000, 4
    table = pa.table({f"c{n}": pc.random(rows, initializer=n) for n in range(columns)})
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema, compression="none", use_dictionary=False) as writer:
        for _ in range(24):  # 8 MB each
            writer.write_table(table)
    sealed = encrypt_bytes(sink.getvalue(), mc.FileEncryptionProperties(footer_key=FOOTER_KEY))
    del sink
    before, most, seen = pa.total_allocated_bytes(), 0, 0
    for batch in mc.iter_batches(sealed, KEYS):
        seen += batch.num_rows
        most = max(most, pa.total_allocated_bytes() - before)
        del batch
    assert seen == 24 * rows
    assert len(sealed) > 180 << 20
    assert most < 128 << 20, "two lots of 32 MiB, and what PyArrow makes of one"


# --- damage --------------------------------------------------------------------------------------

PAGES = {
    ModuleType.DATA_PAGE, ModuleType.DATA_PAGE_HEADER, ModuleType.DICTIONARY_PAGE,
    ModuleType.DICTIONARY_PAGE_HEADER,
}  # fmt: skip


def damaged_file() -> tuple[bytes, list[Any]]:
    n = range(400)
    table = pa.table({
        "id": pa.array(n, pa.int64()),
        "name": [f"name-{i % 50:03}" for i in n],
        "address": [{"zip": str(i), "city": "Ulm"} for i in n],
    })  # fmt: skip
    blooms = {"id": True, "name": True}
    file = case(
        table, {"plaintext_footer": False}, row_group_size=200, bloom_filter_options=blooms,
        use_dictionary=["name"],
    )  # fmt: skip
    return file.sealed, list(list_modules(file.sealed, KEYS))


def flip_byte(sealed: bytes, at: int) -> bytes:
    out = bytearray(sealed)
    out[at] ^= 1
    return bytes(out)


def test_an_altered_page_fails_with_its_address_and_gives_no_rows() -> None:
    sealed, spans = damaged_file()
    data_pages = [s for s in spans if s.module.type in PAGES and s.module.page is not None]
    others = [s for s in spans if s.module.type in PAGES and s.module.page is None]
    pages = [*others, *data_pages[::3]]
    assert {span.module.type for span in pages} == PAGES
    for span in pages:
        data = flip_byte(sealed, span.end - 1)
        column = span.module.path.partition(".")[0]
        rest = [name for name in ("id", "name", "address") if name != column]
        for read in (
            lambda data=data: mc.read_table(data, KEYS),
            lambda data=data, column=column: mc.read_table(data, KEYS, columns=[column]),
            lambda data=data: mc.open_parquet(data, KEYS).readall(),
        ):
            with pytest.raises(mc.errors.TagMismatchError) as caught:
                read()
            assert caught.value.module == span.module
        assert mc.read_table(data, KEYS, columns=rest).num_rows == 400
        given: list[pa.RecordBatch] = []
        with pytest.raises(mc.errors.TagMismatchError) as caught:
            given.extend(mc.iter_batches(data, KEYS))
        assert caught.value.module == span.module
        other = 1 - span.module.row_group
        assert mc.read_table(data, KEYS, row_groups=[other]).num_rows == 200


@pytest.mark.parametrize("plaintext_footer", [False, True])
def test_any_altered_byte_gives_an_error_of_ours_or_the_same_rows(plaintext_footer: bool) -> None:
    n = range(60)
    table = pa.table({
        "id": pa.array(n, pa.int64()), "name": [f"n{i % 5}" for i in n],
        "address": [{"zip": str(i)} for i in n],
    })  # fmt: skip
    file = case(
        table, {"plaintext_footer": plaintext_footer}, row_group_size=40, data_page_size=64,
        write_batch_size=8, bloom_filter_options={"id": SMALL_FILTER},
    )  # fmt: skip
    wanted = (f("id") == 17) | (f("id") == 55)
    refused = 0
    for at in range(0, len(file.sealed), 61):
        data = flip_byte(file.sealed, at)
        for filters in (None, wanted):
            try:
                found = mc.read_table(data, KEYS, filters=filters)
            except mc.ModcryptError:
                refused += 1
            else:
                assert found == (table if filters is None else table.filter(wanted))
    assert refused > len(file.sealed) // 61, "most bytes matter to one of the two"


def test_an_altered_page_fails_where_single_pages_are_read() -> None:
    sealed, spans = damaged_file()
    wanted = f("id") == 310
    needed = 0
    clean = mc.read_table(sealed, KEYS, filters=wanted)
    for span in (span for span in spans if span.module.type in PAGES):
        data = flip_byte(sealed, span.start + 5)
        try:
            assert mc.read_table(data, KEYS, filters=wanted) == clean
        except mc.errors.TagMismatchError as error:
            assert error.module == span.module  # noqa: PT017  # only some pages are needed
            needed += 1
    assert 0 < needed < len(spans) / 2


@pytest.mark.parametrize(("kind", "wanted"), [
    (ModuleType.COLUMN_INDEX, f("id") == 310),
    (ModuleType.OFFSET_INDEX, f("id") == 310),
    (ModuleType.BLOOM_FILTER_HEADER, [("name", "=", "name-007x")]),
    (ModuleType.BLOOM_FILTER_BITSET, [("name", "=", "name-007x")]),
])  # fmt: skip
def test_an_altered_index_or_filter_fails_when_it_is_asked(kind: ModuleType, wanted: Any) -> None:
    sealed, spans = damaged_file()
    column = "name" if "name" in str(wanted) else "id"
    (span,) = [
        s for s in spans
        if s.module.type == kind and (s.module.row_group, s.module.path) == (1, column)
    ]  # fmt: skip
    data = flip_byte(sealed, span.end - 1)
    with pytest.raises(mc.errors.TagMismatchError) as caught:
        mc.read_table(data, KEYS, filters=wanted)
    assert caught.value.module == span.module
    assert mc.read_table(data, KEYS).num_rows == 400, "without a filter it does not matter"


@pytest.mark.parametrize("plaintext_footer", [False, True])
def test_altered_column_metadata_fails_for_its_column_alone(plaintext_footer: bool) -> None:
    file = case(how={"plaintext_footer": plaintext_footer})

    def alter(metadata: Any) -> None:
        (c,) = [
            c for c, chunk in enumerate(metadata.row_groups[1].columns)
            if chunk.crypto_metadata.ENCRYPTION_WITH_COLUMN_KEY is not None
            and chunk.crypto_metadata.ENCRYPTION_WITH_COLUMN_KEY.path_in_schema == [b"name"]
        ]  # fmt: skip
        chunk = metadata.row_groups[1].columns[c]
        chunk.encrypted_column_metadata = flip_byte(chunk.encrypted_column_metadata, -1)

    data = change_footer(file.sealed, FOOTER_KEY, alter)
    with pytest.raises(
        mc.errors.TagMismatchError, match="column metadata, row group 1, column name"
    ):
        mc.read_table(data, KEYS)
    wanted = file.table().drop_columns(["name"])
    names = wanted.column_names
    check_same(mc.read_table(data, KEYS, columns=names), file.table(columns=names))
    assert mc.read_table(data, KEYS, columns=["name"], row_groups=[0, 2]).num_rows == 550


def test_an_altered_footer_fails_at_once(rich: Case) -> None:
    size = int.from_bytes(rich.sealed[-8:-4], "little")
    data = flip_byte(rich.sealed, len(rich.sealed) - 8 - size // 2)
    for read in (mc.read_table, mc.iter_batches, mc.ParquetFile, mc.open_parquet):
        with pytest.raises(mc.errors.TagMismatchError, match="footer"):
            read(data, KEYS)
    signed = case(how={"plaintext_footer": True}).sealed
    data = flip_byte(signed, len(signed) - 9)
    with pytest.raises(mc.errors.FooterSignatureError):
        mc.read_table(data, KEYS)
    unchecked = mc.FileDecryptionProperties(
        footer_key=FOOTER_KEY, column_keys=COLUMN_KEYS, check_footer_integrity=False
    )
    assert mc.read_table(data, unchecked).num_rows == 900


def test_an_unchecked_plaintext_footer_needs_no_footer_key() -> None:
    plaintext = [name for name in COLUMNS if name not in COLUMN_KEYS]
    file = case(how={"plaintext_footer": True, "plaintext_columns": plaintext})
    keys = mc.FileDecryptionProperties(check_footer_integrity=False)
    check_same(mc.read_table(file.sealed, keys, columns=plaintext), file.table(columns=plaintext))
    with pytest.raises(mc.errors.KeyNotFoundError, match="name"):
        mc.read_table(file.sealed, keys)
    own = mc.FileDecryptionProperties(column_keys=COLUMN_KEYS, check_footer_integrity=False)
    check_same(mc.read_table(file.sealed, own), file.table())


def with_offset_index(sealed: bytes, change: Callable[[Any], object]) -> bytes:
    """Change the offset index of column id, row group 0, as a holder of its key can.

    The new one is put where there is room for it: before the footer.
    """
    file = open_file(sealed, FOOTER_KEY)
    chunk = file.metadata.row_groups[0].columns[0]
    start, size = chunk.offset_index_offset, chunk.offset_index_length
    aad = file.file_aad + module_suffix(7, 0, 0)
    index, _ = decode("OffsetIndex", open_module(FOOTER_KEY, file.body[start : start + size], aad))
    change(index)
    module = seal(FOOTER_KEY, encode(index), aad)
    chunk.offset_index_offset, chunk.offset_index_length = len(file.body), len(module)
    file.body += module
    return file.seal_footer(FOOTER_KEY)


def _rows(*numbers: int) -> Callable[[Any], None]:
    def change(index: Any) -> None:
        for location, row in zip(index.page_locations, numbers, strict=False):
            location.first_row_index = row

    return change


def _offsets(page: int, distance: int) -> Callable[[Any], None]:
    def change(index: Any) -> None:
        index.page_locations[page].offset += distance

    return change


def _cut(index: Any) -> None:
    del index.page_locations[3]


def _double(index: Any) -> None:
    index.page_locations.insert(3, index.page_locations[3])


def _empty(index: Any) -> None:
    index.page_locations.clear()


HOSTILE: dict[str, Callable[[Any], object]] = {
    "rows not from 0": _rows(5),
    "negative row": _rows(-1),
    "rows out of order": _rows(0, 64, 32),
    "rows twice": _rows(0, 32, 32),
    "rows beyond the row group": _rows(0, 1 << 40),
    "rows shifted": _rows(0, 31, 63, 95),
    "page begins late": _offsets(2, 1),
    "page begins early": _offsets(2, -1),
    "page before the file": _offsets(2, -(1 << 40)),
    "page after the file": _offsets(2, 1 << 40),
    "first page late": _offsets(0, 7),
    "page left out": _cut,
    "page twice": _double,
    "no pages": _empty,
}


@each_case("name", HOSTILE)
@each_case("wanted", [f("id") == 100, f("x") == 100], ids=["judged", "fetched"])
def test_a_hostile_offset_index_is_refused(name: str, wanted: pc.Expression) -> None:
    """Or it is not needed, and then no other rows come out."""
    table = pa.table(
        {"id": pa.array(range(300), pa.int64()), "x": pa.array(range(300), pa.int64())}
    )
    file = case(table, use_dictionary=False)
    assert mc.read_table(with_offset_index(file.sealed, lambda _: None), KEYS) == table
    data = with_offset_index(file.sealed, HOSTILE[name])
    try:
        found = mc.read_table(data, KEYS, filters=wanted)
    except mc.errors.FormatError:
        return
    assert found == table.slice(100, 1)


@each_case("rows", [-5, -1, 1 << 40, 1 << 62, 7, 349])
@each_case("wanted", [None, f("id") == 3], ids=["all", "filtered"])
def test_a_hostile_number_of_rows_is_refused(
    rich: Case, rows: int, wanted: pc.Expression | None
) -> None:
    def change(metadata: Any) -> None:
        metadata.row_groups[0].num_rows = rows

    data = change_footer(rich.sealed, FOOTER_KEY, change)
    with pytest.raises(mc.errors.FormatError):
        mc.read_table(data, KEYS, columns=["id", "name"], filters=wanted)


# --- files of other writers ----------------------------------------------------------------------


@each_case(("folder", "entry"), entry_params("entries"))
def test_shared_files_read_as_their_twins(folder: str, entry: dict[str, Any]) -> None:
    root = shared_vectors() / folder
    keys = mc.FileDecryptionProperties(**keys_of(entry["enc"]), **reader_of(entry["enc"]))
    wanted = pq.read_table(root / entry["twin"])
    assert same(mc.read_table(root / entry["file"], keys), wanted)
    some = wanted.column_names[::-2]
    assert same(mc.read_table(root / entry["file"], keys, columns=some), wanted.select(some))


def is_detectable(entry: dict[str, Any]) -> bool:
    """Bodies under CTR have no tag; see interop/test_shared_vectors.py."""
    return bool(entry["expect"] != "undetectable")


@each_case(("folder", "entry"), entry_params("tampered", is_detectable))
def test_shared_tampered_files_are_refused(folder: str, entry: dict[str, Any]) -> None:
    root = shared_vectors() / folder
    keys = mc.FileDecryptionProperties(**tampered_reader(entry))
    path = root / entry["file"]
    if entry["scope"].startswith(("ColumnIndex", "OffsetIndex", "BloomBitset")):
        assert mc.read_table(path, keys).num_rows > 0, "no filter asks for it"
        return
    with pytest.raises(expected_error(entry["tamper"])):
        mc.read_table(path, keys)


def test_a_published_file_reads_without_its_column_keys() -> None:
    keys = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, on_missing_key="null")
    full = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, column_keys=PUBLISHED_COLUMN_KEYS)
    sealed = read_published("encrypt_columns_and_footer")
    found, whole = mc.read_table(sealed, keys), mc.read_table(sealed, full)
    assert found.schema.types == whole.schema.types
    for name in whole.column_names:
        if name in PUBLISHED_COLUMN_KEYS:  # required columns, which may be null now
            assert found[name].null_count == whole.num_rows
            assert found.schema.field(name).nullable
        else:
            assert found[name] == whole[name]


# --- the first rows -------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, 1, 4, 7, 10, 25, 1000])
def test_a_limit_gives_the_first_rows(limit: int, tmp_path: Path) -> None:
    table = pa.table({"a": range(20), "b": [[n] * (n % 3) for n in range(20)]})
    path = tmp_path / "a.parquet"
    properties = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
    mc.write_table(table, path, properties, row_group_size=6, write_page_index=True)
    opening = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
    found = list(mc.iter_batches(path, opening, limit=limit))
    assert pa.Table.from_batches(found, table.schema).equals(table.slice(0, limit))
    filtered = list(mc.iter_batches(path, opening, limit=limit, filters=[("a", ">=", 9)]))
    assert pa.Table.from_batches(filtered, table.schema).equals(table.slice(9, limit))
    folder = list(mc.iter_batches([str(path)] * 2, opening, limit=limit))
    twice = pa.concat_tables([table, table]).slice(0, limit)
    assert pa.Table.from_batches(folder, table.schema).equals(twice)


def test_a_limit_opens_no_page_that_it_does_not_need() -> None:
    """With a page index, an altered page after the first rows stays unseen."""
    table = pa.table({"a": pa.array(range(20_000), pa.int64())})
    out = io.BytesIO()
    options: dict[str, Any] = {
        "use_dictionary": False,
        "data_page_size": 4096,
        "compression": "none",
    }
    properties = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
    mc.write_table(table, out, properties, write_batch_size=512, write_page_index=True, **options)
    opening = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
    data = bytearray(out.getvalue())
    pages = [
        span for span in list_modules(data, opening) if span.module.type is ModuleType.DATA_PAGE
    ]
    data[pages[-1].end - 1] ^= 1
    with mc.ParquetFile(data, opening) as file:
        (batch,) = file.iter_batches(limit=100)
        assert batch.column(0).to_pylist() == list(range(100))
        with pytest.raises(mc.errors.TagMismatchError):
            list(file.iter_batches())


def test_a_negative_limit_is_a_mistake() -> None:
    out = io.BytesIO()
    mc.write_table(pa.table({"a": [1]}), out, mc.FileEncryptionProperties(footer_key=FOOTER_KEY))
    with pytest.raises(ValueError, match="limit must be 0 or more"):
        mc.iter_batches(
            out.getvalue(), mc.FileDecryptionProperties(footer_key=FOOTER_KEY), limit=-1
        )


# --- where PyArrow's filters fail -----------------------------------------------------------------

HARD = pa.table(
    {
        "i": [1, 2, 3, 4],
        "u": pa.array([0, 2**64 - 1, 5, None], pa.uint64()),
        "d": pa.array([Decimal("1.50"), Decimal("5"), None, Decimal("7")], pa.decimal128(10, 2)),
        "s": pa.array(["a", "b", None, "d"], pa.string_view()),
        "b": pa.array([b"a", None, b"c", b"d"], pa.binary_view()),
    }
)


@each_case("pages", [False, True])
@each_case(
    ("filters", "rows"),
    [
        ([("u", "=", 5)], [3]),
        ([("u", ">", 4)], [2, 3]),
        ([("u", "=", 2**64 - 1)], [2]),
        ([[("u", "<", 1)], [("i", ">=", 4)]], [1, 4]),
        ([("d", ">", 5)], [4]),
        ([("d", "=", 5), ("i", "=", 2)], [2]),
        ([("i", "=", 300)], []),
        ([("i", ">", -1), ("i", "<", 2)], [1]),
        ([("i", "in", [1, 4])], [1, 4]),
        ([("s", "=", "b")], [2]),
        ([("b", "!=", b"a")], [3, 4]),
        (pc.field("s") > "a", [2, 4]),
    ],
)
def test_filters_take_unsigned_numbers_decimals_and_views(
    filters: Any, rows: list[int], pages: bool
) -> None:
    out = io.BytesIO()
    mc.write_table(
        HARD, out, mc.FileEncryptionProperties(footer_key=FOOTER_KEY), write_page_index=pages,
        max_rows_per_page=1, write_batch_size=1,
    )  # fmt: skip
    found = mc.read_table(
        out.getvalue(), mc.FileDecryptionProperties(footer_key=FOOTER_KEY), filters=filters
    )
    assert found.to_pylist() == [HARD.to_pylist()[row - 1] for row in rows]
    assert found.schema.equals(HARD.schema)


def test_reading_a_small_file_imports_no_pandas(tmp_path: Path) -> None:
    """PyArrow's datasets import pandas where it is installed: a third of a second, and 60 MB."""
    path, key = tmp_path / "folder" / "f.parquet", tmp_path / "f.key"
    path.parent.mkdir()
    key.write_bytes(FOOTER_KEY)
    mc.write_table(pa.table({"a": [1, 2]}), path, FOOTER_KEY)
    script = (
        "import sys, modcrypt\n"
        "with open(sys.argv[2], 'rb') as file: key = file.read()\n"
        "for where in (sys.argv[1], sys.argv[1].rpartition('/')[0]):\n"
        "    assert modcrypt.read_table(where, key).num_rows == 2\n"
        "assert next(modcrypt.iter_batches(sys.argv[1], key)).num_rows == 2\n"
        "print(sorted({'pandas', 'pyarrow.dataset'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", script, str(path), str(key)]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "[]\n"

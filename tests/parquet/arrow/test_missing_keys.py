"""Columns whose keys are missing: left out, or filled with nulls that every reader understands."""

from __future__ import annotations

import datetime as dt
import functools
import io
from pathlib import Path
from typing import Any, Literal

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt.parquet.format.schema import leaf_paths
from tests.support.cases import each_case, one_in
from tests.support.forging import (
    decrypt_bytes,
    edit_plain,
    encrypt_bytes,
    plain_file,
    read_plain_footer,
    without_repetition_types,
)
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY

f = pc.field

Mode = Literal["error", "drop", "null"]

ROWS = 40


@functools.cache
def table() -> pa.Table:
    """Return required and nullable columns, structs, lists, maps and what is nested in them."""
    n = range(ROWS)
    start = dt.datetime(2026, 1, 1)
    required = pa.StructArray.from_arrays(
        [pa.array(n, pa.int64()), pa.array([str(i) for i in n])],
        fields=[pa.field("u", pa.int64(), nullable=False), pa.field("v", pa.string())],
    )
    columns: dict[str, pa.Array] = {
        "id": pa.array(n, pa.int64()),
        "name": pa.array([None if i % 7 == 0 else f"name-{i}" for i in n]),
        "kind": pa.array([["a", "b", None][i % 3] for i in n]).dictionary_encode(),
        "at": pa.array([start + dt.timedelta(hours=i) for i in n], pa.timestamp("us")),
        "s": pa.array([None if i % 9 == 0 else {"a": i, "b": str(i)} for i in n]),
        "req": required,
        "items": pa.array(
            [None if i % 5 == 0 else [{"x": j, "y": str(j)} for j in range(i % 4)] for i in n]
        ),
        "pairs": pa.array(
            [None if i % 4 == 0 else [(f"k{i % 3}", {"p": i, "q": str(i)})] for i in n],
            pa.map_(pa.string(), pa.struct({"p": pa.int64(), "q": pa.string()})),
        ),
        "deep": pa.array(
            [None if i % 6 == 0 else {"a": {"b": {"c": i, "d": [i, i]}}, "e": i} for i in n]
        ),
        "texts": pa.array([[str(i)] * (i % 3) for i in n], pa.large_list(pa.large_string())),
    }
    fields = [
        pa.field(name, column.type, nullable=name not in ("id", "req"))
        for name, column in columns.items()
    ]
    return pa.Table.from_arrays(list(columns.values()), schema=pa.schema(fields))


PLAIN = plain_file(table(), row_group_size=25, write_page_index=True)
LEAVES = [".".join(path) for path in leaf_paths(read_plain_footer(PLAIN).schema)]
GROUPS = ["s", "req", "items", "pairs", "deep", "deep.a", "deep.a.b", "pairs.key_value.value"]
WHOLE = ["id", "name", "kind", "at", "texts.list.element", "s", "req", "items", "pairs", "deep"]
"""Names that cover a whole top-level field."""


@functools.cache
def values_of(name: str) -> list[Any]:
    """Return the values of a top-level field."""
    values: list[Any] = table()[name].to_pylist()
    return values


@functools.cache
def without(*names: str, plain: bytes = PLAIN, plaintext_footer: bool = False) -> bytes:
    """Encrypt a file whose reader won't have the keys of these columns."""
    keys = dict.fromkeys(names, COLUMN_KEY)
    return encrypt_bytes(
        plain,
        mc.FileEncryptionProperties(
            footer_key=FOOTER_KEY, column_keys=keys, plaintext_footer=plaintext_footer
        ),
    )


def keys(mode: Mode, **more: Any) -> mc.FileDecryptionProperties:
    return mc.FileDecryptionProperties(footer_key=FOOTER_KEY, on_missing_key=mode, **more)


BOTH_KEYS = mc.FileDecryptionProperties(
    footer_key=FOOTER_KEY, column_keys=dict.fromkeys(WHOLE + LEAVES + GROUPS, COLUMN_KEY)
)


def fill_nulls(value: Any, path: tuple[str, ...]) -> Any:
    """Return a value of a top-level field with nulls where a leaf is missing.

    Maps lose all, as half a map has no type.
    """
    if value is None or not path:
        return None
    if isinstance(value, dict):
        return {k: fill_nulls(v, path[1:]) if k == path[0] else v for k, v in value.items()}
    if isinstance(value, list) and path[0] == "list":
        if len(path) == 2 and not (value and isinstance(value[0], dict)):
            return None
        return [fill_nulls(item, path[2:]) for item in value]
    return None


def expected_field(name: str) -> list[Any]:
    """Return a top-level field without one of its leaves or groups.

    Of a group that has no leaf left nobody knows whether it was null.
    """
    top, *rest = {"deep.a.b": "deep.a"}.get(name, name).split(".")
    return [fill_nulls(value, tuple(rest)) for value in values_of(top)]


def names_of(types: list[pa.DataType]) -> list[str]:
    """Spell types without saying what may be null: what is missing must be."""
    return [str(kind).replace(" not null", "") for kind in types]


# --- filled with nulls ---------------------------------------------------------------------------


@each_case("name", [*LEAVES, *GROUPS])
@each_case("footer", ["encrypted", "plaintext"])
def test_read_table_fills_what_is_missing_and_nothing_else(name: str, footer: str) -> None:
    sealed = without(name, plaintext_footer=footer == "plaintext")
    found = mc.read_table(sealed, keys("null"))
    found.validate(full=True)
    original = table()
    top = name.partition(".")[0]
    assert found.column_names == original.column_names
    assert names_of(found.schema.types) == names_of(pq.read_schema(io.BytesIO(PLAIN)).types)
    for other in original.column_names:
        if other != top:
            assert found[other].to_pylist() == values_of(other)
            assert found.schema.field(other).nullable is original.schema.field(other).nullable
    assert found[top].to_pylist() == expected_field(name)


@each_case("name", [*LEAVES, *GROUPS])
def test_filters_and_batches_see_the_same_nulls(name: str) -> None:
    sealed = without(name)
    whole = mc.read_table(sealed, keys("null"))
    batches = mc.iter_batches(sealed, keys("null"), batch_size=7)
    assert pa.Table.from_batches(batches).equals(whole)
    column = "name" if name == "id" else "id"
    wanted = f("name") == "name-13" if name == "id" else f("id") == 13
    found = mc.read_table(sealed, keys("null"), filters=wanted)
    found.validate(full=True)
    assert found.to_pylist() == whole.slice(13, 1).to_pylist()
    top = name.partition(".")[0]
    assert mc.read_table(sealed, keys("null"), columns=[top, column]).equals(
        whole.select([top, column])
    )


@each_case("name", WHOLE)
def test_a_view_and_a_decrypted_file_have_the_column_as_nulls(name: str) -> None:
    sealed = without(name)
    whole = mc.read_table(sealed, keys("null"))
    plain = decrypt_bytes(sealed, keys("null"))
    with mc.open_parquet(sealed, keys("null")) as view:
        viewed = view.readall()
    top = name.partition(".")[0]
    for file in (plain, viewed):
        found = pq.read_table(io.BytesIO(file), page_checksum_verification=True)
        found.validate(full=True)
        assert found[top].null_count == ROWS
        assert found.to_pylist() == whole.to_pylist()
        metadata = pq.ParquetFile(io.BytesIO(file)).metadata
        for r, c in ((r, c) for r in range(2) for c in range(metadata.num_columns)):
            chunk = metadata.row_group(r).column(c)
            if chunk.path_in_schema.partition(".")[0] == top:
                assert chunk.statistics is None or chunk.statistics.null_count is not None
        assert pq.read_table(io.BytesIO(file), filters=f(top).is_null()).num_rows == ROWS
        assert pq.read_table(io.BytesIO(file), filters=f(top).is_valid()).num_rows == 0


@each_case("name", WHOLE)
def test_polars_and_duckdb_read_the_nulls(name: str, tmp_path: Path) -> None:
    top = name.partition(".")[0]
    with mc.open_parquet(without(name), keys("null")) as view:
        data = view.readall()
    frame = pl.read_parquet(data)
    assert frame[top].null_count() == ROWS
    if top != "id":
        assert frame["id"].to_list() == list(range(ROWS))
    (tmp_path / "view.parquet").write_bytes(data)
    path = str(tmp_path / "view.parquet")
    query = f'select count(*), count("{top}"), count(name) from read_parquet(?)'  # names of ours
    (row,) = duckdb.execute(query, [path]).fetchall()
    assert row == (ROWS, 0, 0 if top == "name" else table()["name"].drop_null().length())
    nulls = duckdb.execute(f'select count(*) from read_parquet(?) where "{top}" is null', [path])
    assert nulls.fetchall() == [(ROWS,)]


@each_case("name", WHOLE, quick=one_in(4))
def test_parquet_java_reads_the_nulls(name: str, tmp_path: Path, java: Any) -> None:  # the fixture
    top = name.partition(".")[0]
    with mc.open_parquet(without(name), keys("null")) as view:
        (tmp_path / "view.parquet").write_bytes(view.readall())
    original = table()
    parts = [part.with_nullable(True) for part in original[top].type] if top == "req" else []
    nulls = pa.nulls(ROWS, pa.struct(parts) if parts else original[top].type)
    c = original.column_names.index(top)
    wanted = original.set_column(c, top, nulls)
    pq.write_table(wanted, tmp_path / "nulls.parquet", row_group_size=25)
    seen = java.read_text(tmp_path / "view.parquet", plaintext_ok=True)
    assert seen == java.read_text(tmp_path / "nulls.parquet", plaintext_ok=True)


@each_case("name", [n for n in [*LEAVES, *GROUPS] if n not in WHOLE and "." in n])
def test_a_file_can_not_have_nulls_in_a_part_alone(name: str) -> None:
    top = name.partition(".")[0]
    if [leaf.partition(".")[0] for leaf in LEAVES].count(top) == 1:
        return
    for read in (mc.open_parquet, decrypt_bytes):
        with pytest.raises(mc.errors.KeyNotFoundError, match="drop") as caught:
            read(without(name), keys("null"))
        assert caught.value.column is not None
        assert caught.value.column.startswith(name)


def test_the_view_takes_the_other_columns_when_asked_for_them() -> None:
    with mc.open_parquet(without("s.a"), keys("null"), columns=["id", "s.b"]) as view:
        assert pq.read_table(view).column_names == ["id", "s"]
    with mc.open_parquet(without("s.a"), keys("null"), columns=["id", "s.a"]) as view:
        found = pq.read_table(view)
    assert found.schema.field("s").type == pa.struct({"a": pa.int64()})
    assert found["s"].null_count == ROWS


def test_all_columns_may_be_missing() -> None:
    sealed = without(*table().column_names)
    found = mc.read_table(sealed, keys("null"))
    found.validate(full=True)
    assert found.num_rows == ROWS
    assert all(column.null_count == ROWS for column in found.columns)
    with mc.open_parquet(sealed, keys("null")) as view:
        assert pq.read_table(view).to_pylist() == found.to_pylist()
    with mc.ParquetFile(sealed, keys("null")) as reader:
        assert reader.num_rows == ROWS
        assert reader.metadata.num_rows == ROWS


@each_case("rows", [0, 1, 8, 63, 64, 127, 128, 70_000])
def test_any_number_of_rows(rows: int) -> None:
    plain = plain_file(
        pa.table({"x": pa.array(range(rows), pa.int32()), "y": pa.nulls(rows, "string")})
    )
    sealed = without("x", plain=plain)
    found = mc.read_table(sealed, keys("null"))
    assert found["x"].null_count == found.num_rows == rows
    with mc.open_parquet(sealed, keys("null")) as view:
        assert pq.read_table(view)["x"].null_count == rows
        view.seek(0)
        assert pl.read_parquet(view.readall()).shape == (rows, 2)


def test_no_row_groups() -> None:
    plain = plain_file(table().slice(0, 0))
    for mode in ("null", "drop"):
        found = mc.read_table(without("name", plain=plain), keys(mode))
        assert found.num_rows == 0


def test_a_repeated_column_without_a_list_around_it() -> None:
    """Protocol buffers and old writers: it can't be null, so it is empty."""

    def unwrap(metadata: Any) -> None:
        elements = metadata.schema
        (at,) = [i for i, e in enumerate(elements) if e.name == b"texts"]
        leaf = elements[at + 2]
        leaf.repetition_type, leaf.name = 2, b"texts"
        leaf.logicalType = leaf.converted_type = None
        elements[at : at + 3] = [leaf]
        metadata.key_value_metadata = None
        for row_group in metadata.row_groups:
            for chunk in row_group.columns:
                if chunk.meta_data.path_in_schema[0] == b"texts":
                    chunk.meta_data.path_in_schema = [b"texts"]

    schema = pa.schema(
        {"id": pa.int64(), "texts": pa.list_(pa.field("element", pa.binary(), False))}
    )
    data = pa.table(
        {"id": range(9), "texts": [[b"a"] * (i % 3 + 1) for i in range(9)]}, schema=schema
    )
    wrapped = plain_file(
        data.cast(pa.schema([schema.field("id"), schema.field("texts").with_nullable(False)]))
    )
    plain = edit_plain(wrapped, unwrap)
    assert pq.read_table(io.BytesIO(plain))["texts"].to_pylist() == data["texts"].to_pylist()
    sealed = without("texts", plain=plain)
    found = mc.read_table(sealed, keys("null"))
    found.validate(full=True)
    assert all(not value for value in found["texts"].to_pylist())
    with mc.open_parquet(sealed, keys("null")) as view:
        assert all(not value for value in pq.read_table(view)["texts"].to_pylist())


def test_sorting_goes_no_further_than_the_columns_there() -> None:
    order = [pq.SortingColumn(0), pq.SortingColumn(1), pq.SortingColumn(2)]
    rows = pa.table({"a": [1, 1], "b": [1, 2], "c": [1, 2]})
    plain = plain_file(rows, sorting_columns=order)
    for missing, left in (("a", 0), ("b", 1), ("c", 2)):
        for mode in ("null", "drop"):
            found = decrypt_bytes(without(missing, plain=plain), keys(mode))
            metadata = pq.ParquetFile(io.BytesIO(found)).metadata
            assert len(metadata.row_group(0).sorting_columns or ()) == left


# --- left out ------------------------------------------------------------------------------------


@each_case("name", [*LEAVES, *GROUPS])
def test_dropping_leaves_out_what_is_missing_and_nothing_else(name: str) -> None:
    sealed = without(name)
    found = mc.read_table(sealed, keys("drop"))
    found.validate(full=True)
    top = name.partition(".")[0]
    original = table()
    kept = [n for n in original.column_names if n != top]
    assert [n for n in found.column_names if n != top] == kept
    for other in kept:
        assert found[other].to_pylist() == values_of(other)
    if name in WHOLE or name == top:
        assert top not in found.column_names
    with mc.open_parquet(sealed, keys("drop")) as view:
        assert pq.read_table(view).to_pylist() == found.to_pylist()
    assert pq.read_table(io.BytesIO(decrypt_bytes(sealed, keys("drop")))).equals(found)
    wanted = f("name") == "name-13" if name == "id" else f("id") == 13
    few = mc.read_table(sealed, keys("drop"), filters=wanted)
    assert few.to_pylist() == found.slice(13, 1).to_pylist()


@pytest.mark.parametrize("read", [mc.read_table, mc.open_parquet, mc.iter_batches])
def test_nothing_left_is_an_error_when_dropping(read: Any) -> None:
    with pytest.raises(mc.errors.KeyNotFoundError):
        read(without(*table().column_names), keys("drop"))
    with pytest.raises(mc.errors.KeyNotFoundError):
        read(without("name"), keys("drop"), columns=["name"])


def test_pandas_has_the_frame_without_or_with_nulls() -> None:
    frame = pd.DataFrame({"x": [1, 2], "name": ["a", "b"]}, index=pd.Index(["p", "q"], name="key"))
    plain = plain_file(pa.Table.from_pandas(frame))
    left = mc.read_table(without("name", plain=plain), keys("drop")).to_pandas()
    pd.testing.assert_frame_equal(left, frame[["x"]])
    null = mc.read_table(without("name", plain=plain), keys("null")).to_pandas()
    pd.testing.assert_frame_equal(null[["x"]], frame[["x"]])
    assert null["name"].isna().all()
    without_index = mc.read_table(without("key", plain=plain), keys("drop")).to_pandas()
    assert list(without_index.columns) == ["x", "name"]


# --- an error ------------------------------------------------------------------------------------


@each_case("name", ["id", "s.a", "pairs.key_value.key", "deep"])
@each_case("read", [mc.read_table, mc.open_parquet, mc.iter_batches, decrypt_bytes])
def test_missing_keys_are_an_error_that_names_the_columns(name: str, read: Any) -> None:
    with pytest.raises(mc.errors.KeyNotFoundError, match=name) as caught:
        read(without(name), keys("error"))
    assert caught.value.column is not None
    assert caught.value.column.startswith(name)


def test_only_the_columns_asked_for_need_keys() -> None:
    sealed = without("name", "s.a", "deep")
    found = mc.read_table(sealed, keys("error"), columns=["id", "s.b", "items"])
    assert found["id"].to_pylist() == list(range(ROWS))
    with pytest.raises(mc.errors.KeyNotFoundError, match=r"s\.a"):
        mc.read_table(sealed, keys("error"), columns=["id", "s"])


@pytest.mark.parametrize("mode", ["drop", "null"])
def test_a_wrong_key_is_no_missing_one(mode: Mode) -> None:
    wrong = keys(mode, column_keys={"name": OTHER_KEY})
    for read in (mc.read_table, mc.open_parquet, decrypt_bytes):
        with pytest.raises(mc.errors.TagMismatchError):
            read(without("name"), wrong)


@pytest.mark.parametrize("mode", ["drop", "null"])
def test_a_refused_key_is_no_missing_one(mode: Mode) -> None:
    def refuse(_: bytes) -> bytes:
        raise PermissionError

    properties = mc.FileEncryptionProperties(
        footer_key=FOOTER_KEY,
        column_keys={"name": COLUMN_KEY},
        column_key_metadata={"name": b"kn"},
    )
    sealed = encrypt_bytes(PLAIN, properties)
    with pytest.raises(mc.errors.KeyAccessDeniedError):
        mc.read_table(sealed, keys(mode, key_retriever=refuse))
    unknown = mc.read_table(sealed, keys(mode, key_retriever=lambda _: None))
    assert unknown.num_rows == ROWS


# --- a schema without repetition types -----------------------------------------------------------


@each_case(
    "name, root",
    [
        *((name, None) for name in (*WHOLE, "s.a", "req.u", "deep.a", "pairs.key_value.value.p")),
        *((name, root) for name in ("id", "deep.a") for root in (0, 1, 2)),
    ],
    quick=one_in(2),
)
def test_elements_without_a_repetition_type_are_required(name: str, root: int | None) -> None:
    """hyparquet-writer leaves repetition types out; Arrow C++ and DuckDB take them for required."""
    plain = without_repetition_types(PLAIN, root)
    assert pq.read_table(io.BytesIO(plain)).equals(table())
    sealed = without(name, plain=plain)
    assert mc.read_table(sealed, BOTH_KEYS).equals(table())
    assert mc.verify_parquet(sealed, BOTH_KEYS).ok
    for mode in ("null", "drop"):
        found, usual = (mc.read_table(file, keys(mode)) for file in (sealed, without(name)))
        found.validate(full=True)
        assert found.equals(usual)
        if mode == "null" and name not in WHOLE:
            continue
        found, usual = (
            pq.read_table(io.BytesIO(decrypt_bytes(file, keys(mode))))
            for file in (sealed, without(name))
        )
        found.validate(full=True)
        assert found.equals(usual)


@each_case("name", ["id", "req", "pairs", "texts"])
def test_duckdb_reads_nulls_without_repetition_types(name: str, tmp_path: Path) -> None:
    sealed = without(name, plain=without_repetition_types(PLAIN))
    (tmp_path / "plain.parquet").write_bytes(decrypt_bytes(sealed, keys("null")))
    query = f'select count(*), count("{name}") from read_parquet(?)'
    (row,) = duckdb.execute(query, [str(tmp_path / "plain.parquet")]).fetchall()
    assert row == (ROWS, 0)

"""Columns that are dropped are gone for every reader: PyArrow, pandas' metadata, Spark's schema."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt.parquet.format.idl import ThriftStruct
from tests.support.cases import each_case
from tests.support.forging import change_footer, encrypt_bytes, plain_file
from tests.support.keys import COLUMN_KEY, FOOTER_KEY
from tests.support.tables import small_table, write_plain


def without(table: pa.Table, tmp_path: Path, name: str) -> Path:
    """Encrypt `name` under a key of its own and decrypt without that key."""
    source = write_plain(tmp_path / "plain.parquet", table)
    encrypted = io.BytesIO()
    mc.encrypt_parquet(
        source,
        encrypted,
        mc.FileEncryptionProperties(footer_key=FOOTER_KEY, column_keys={name: COLUMN_KEY}),
    )
    out = tmp_path / "out.parquet"
    properties = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, on_missing_key="drop")
    dropped = mc.decrypt_parquet(encrypted.getvalue(), out, properties)
    assert all(path.startswith(name) for path in dropped)
    assert dropped
    return out


@each_case("name", small_table(1).column_names)
def test_pyarrow_reads_what_is_left(name: str, tmp_path: Path) -> None:
    table = small_table()
    assert pq.read_table(without(table, tmp_path, name)).equals(table.drop_columns([name]))


def test_a_group_may_lose_some_of_its_leaves(tmp_path: Path) -> None:
    left = pq.read_table(without(small_table(), tmp_path, "address.zip"))
    assert left.schema.field("address").type == pa.struct([("city", pa.string())])


def test_a_map_or_list_that_loses_leaves_leaves_other_types_as_they_are(tmp_path: Path) -> None:
    pair = pa.struct([("a", pa.int8()), ("b", pa.uint16())])
    kinds = {
        "map": pa.map_(pa.string(), pair, keys_sorted=True),
        "list": pa.list_(pair),
        "large list": pa.large_list(pair),
        "list view": pa.list_view(pair),
        "large list view": pa.large_list_view(pair),
        "fixed": pa.list_(pair, 1),
    }
    values: dict[str, list[Any]] = {name: [[{"a": 1, "b": 2}], None] for name in kinds}
    values["map"] = [[("k", {"a": 1, "b": 2})], None]
    columns = {name: pa.array(values[name], kind) for name, kind in kinds.items()}
    dictionary = pa.array(["x", "y"]).dictionary_encode()
    table = pa.table({**columns, "dictionary": dictionary, "u": pa.array([1, 2], pa.uint64())})
    data = encrypt_bytes(plain_file(table), mc.FileEncryptionProperties(footer_key=FOOTER_KEY))
    half = pa.struct([("b", pa.uint16())])
    inner = (
        "map.key_value.value.b",
        *(f"{name}.list.element.b" for name in kinds if name != "map"),
    )
    with mc.ParquetFile(data, FOOTER_KEY) as file:
        schema = file.read(["dictionary", "u", "map.key_value.key", *inner]).schema
        assert [schema.field(name).type for name in schema.names[2:]] == [
            pa.map_(pa.string(), half, keys_sorted=True), pa.list_(half), pa.large_list(half),
            pa.list_view(half), pa.large_list_view(half), pa.list_(half, 1),
        ]  # fmt: skip
        assert schema.field("u").type == pa.uint64()
        assert schema.field("dictionary").type == dictionary.type
        for leaf, wanted in ((inner[0], {"value": {"b": 2}}), ("map.key_value.key", {"key": "k"})):
            read = file.read(["dictionary", "u", leaf])
            assert read["map"].to_pylist() == [{"key_value": [wanted]}, None]
            assert read.drop_columns(["map"]).equals(table.select(["dictionary", "u"]))
    for name, entry in (
        ("map.key_value.value", {"key": "k"}),
        ("map.key_value.key", {"value": {"a": 1, "b": 2}}),
    ):
        left = pq.read_table(without(table, tmp_path, name))
        assert left["map"].to_pylist() == [{"key_value": [entry]}, None]
        assert left.drop_columns(["map"]).equals(table.drop_columns(["map"]))


def test_pandas_metadata_and_sort_order_forget_the_column(tmp_path: Path) -> None:
    columns = [{"field_name": name, "name": name} for name in ("id", "name")]
    about = {"index_columns": ["name"], "columns": columns, "pandas_version": "2.0"}
    table = pa.table({"id": [1, 2], "name": ["a", "b"]}).replace_schema_metadata(
        {"pandas": json.dumps(about)}
    )
    source = tmp_path / "sorted.parquet"
    order = [pq.SortingColumn(1), pq.SortingColumn(0)]
    pq.write_table(table, source, sorting_columns=order)
    out = without(pq.read_table(source), tmp_path, "name")
    assert pq.read_table(out).column_names == ["id"]
    for stored in (pq.read_schema(out).metadata, pq.read_metadata(out).metadata):
        pandas = json.loads(stored[b"pandas"])
        assert pandas["index_columns"] == []
        assert [column["name"] for column in pandas["columns"]] == ["id"]


def test_pandas_metadata_without_field_names_forgets_the_column(tmp_path: Path) -> None:
    """Pandas before 0.21, and other writers, name a column once."""
    columns = [{"name": "id"}, {"name": "ssn", "metadata": {"num_categories": 7}}]
    about = {"index_columns": [], "columns": columns, "partition_columns": ["ssn", "id"]}
    table = pa.table({"id": [1], "ssn": ["x"]}).replace_schema_metadata(
        {"pandas": json.dumps(about)}
    )
    out = without(table, tmp_path, "ssn")
    for stored in (pq.read_schema(out).metadata, pq.read_metadata(out).metadata):
        assert b"ssn" not in stored[b"pandas"]
        assert json.loads(stored[b"pandas"])["columns"] == [{"name": "id"}]


def test_sparks_own_schema_goes_because_spark_would_invent_nulls(tmp_path: Path) -> None:
    key = "org.apache.spark.sql.parquet.row.metadata"
    schema = {"type": "struct", "fields": [{"name": "id"}, {"name": "ssn"}]}
    table = pa.table({"id": [1], "ssn": ["x"]}).replace_schema_metadata(
        {key: json.dumps(schema), "other": "kept"}
    )
    metadata = pq.read_metadata(without(table, tmp_path, "ssn")).metadata
    assert key.encode() not in metadata
    assert metadata[b"other"] == b"kept"


def test_geo_metadata_keeps_what_it_says_of_kept_columns(tmp_path: Path) -> None:
    columns = {"shape": {"encoding": "WKB"}, "secret_shape": {"encoding": "WKB"}}
    geo = {"primary_column": "shape", "columns": columns}
    table = pa.table({"shape": [b"x"], "secret_shape": [b"y"]}).replace_schema_metadata(
        {"geo": json.dumps(geo)}
    )
    metadata = pq.read_metadata(without(table, tmp_path, "secret_shape")).metadata
    assert json.loads(metadata[b"geo"])["columns"] == {"shape": {"encoding": "WKB"}}


@pytest.mark.parametrize("bytes_", [b"[" * 200_000, b"{}", b"null", b"\xff"])
def test_an_unreadable_pandas_value_goes(bytes_: bytes, tmp_path: Path) -> None:
    table = pa.table({"id": [1], "ssn": ["x"]}).replace_schema_metadata({"pandas": bytes_})
    out = without(table, tmp_path, "ssn")
    assert b"pandas" not in (pq.read_metadata(out).metadata or {})
    assert b"pandas" not in (pq.read_schema(out).metadata or {})


def test_nothing_left_is_a_missing_key(tmp_path: Path) -> None:
    with pytest.raises(mc.errors.KeyNotFoundError, match="no key for any of the columns"):
        without(pa.table({"only": [1]}), tmp_path, "only")


def test_a_column_that_is_encrypted_in_some_row_groups_only_is_refused(tmp_path: Path) -> None:
    """A holder of the footer key could put plaintext of their own among encrypted chunks."""
    table = pa.table({"id": list(range(10)), "ssn": [str(n) for n in range(10)]})
    source = write_plain(tmp_path / "plain.parquet", table, row_group_size=5)
    encrypted = io.BytesIO()
    keys = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, key_retriever=lambda _: COLUMN_KEY)
    mc.encrypt_parquet(
        source,
        encrypted,
        mc.FileEncryptionProperties(
            footer_key=FOOTER_KEY,
            column_keys={"ssn": COLUMN_KEY},
            column_key_metadata={"ssn": b"k"},
        ),
    )

    def bare(metadata: ThriftStruct) -> None:
        chunk = metadata.row_groups[1].columns[1]
        chunk.crypto_metadata = chunk.encrypted_column_metadata = None

    with pytest.raises(mc.errors.FormatError, match="column ssn: column key in one row group"):
        mc.decrypt_parquet(
            change_footer(encrypted.getvalue(), FOOTER_KEY, bare), io.BytesIO(), keys
        )

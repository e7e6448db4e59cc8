"""The schemas of results are those of PyArrow: empty results, groups without fields, metadata."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
import modcrypt.parquet as drop_in
from modcrypt.parquet.format.framing import MAGIC_PLAINTEXT, close_tail
from modcrypt.parquet.format.idl import decode, encode, new
from tests.support.cases import each_case, one_in
from tests.support.forging import edit_plain, encrypt_bytes, plain_file, split_tail
from tests.support.keys import FOOTER_KEY

KEYS = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
ENCRYPTED = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)

UUID = pa.uuid()
DICTIONARY = pa.dictionary(pa.int32(), pa.string())
TYPES = {
    "struct": pa.struct([("u", UUID)]),
    "list": pa.list_(UUID),
    "large list": pa.large_list(UUID),
    "list of a fixed size": pa.list_(UUID, 2),
    "map": pa.map_(pa.string(), UUID),
    "deep": pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.struct([("u", UUID)]))))])),
    "JSON": pa.struct([("j", pa.json_())]),
    "nested storage": pa.struct([("t", pa.fixed_shape_tensor(pa.int32(), [2]))]),
    "beside a dictionary": pa.struct([("d", DICTIONARY), ("u", UUID)]),
}


@each_case("kind", TYPES)
def test_no_rows_of_extension_types_inside_others_are_an_empty_table(
    kind: str, tmp_path: Path
) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", TYPES[kind])])
    table = pa.Table.from_batches(
        [pa.record_batch([pa.array([1, 2]), pa.nulls(2, TYPES[kind])], schema=schema)]
    )
    data = encrypt_bytes(plain_file(table), ENCRYPTED)
    folder = tmp_path / "data"
    for part in ("a", "b"):
        path = folder / f"k={part}" / "part.parquet"
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
    none: dict[str, Any] = {"filters": [("id", "=", 9)]}
    empty = [
        mc.read_table(data, KEYS, **none),
        mc.read_table(data, KEYS, filters=pa.compute.field("id") > 9, columns=["v", "id"]),
        mc.read_table(data, KEYS, row_groups=[]),
        mc.ParquetFile(data, KEYS).read(**none),
        drop_in.read_table(io.BytesIO(data), decryption_properties=KEYS, **none),
        mc.read_table(folder, KEYS, **none),
        mc.read_table(folder, KEYS, filters=[("k", "=", "c")]),
        drop_in.read_table(folder, decryption_properties=KEYS, **none),
        drop_in.ParquetDataset(folder, decryption_properties=KEYS, **none).read(["v"]),
        pa.RecordBatchReader.from_stream(mc.ParquetFile(without_rows(table), KEYS)).read_all(),
        mc.read_table(without_rows(table), KEYS),
    ]
    for result in empty:
        assert result.num_rows == 0
        assert result.schema.field("v").type == TYPES[kind]
        assert result.validate(full=True) is None
    assert list(mc.iter_batches(data, KEYS, **none)) == []


def without_rows(table: pa.Table) -> bytes:
    out = io.BytesIO()
    mc.write_table(table.slice(0, 0), out, ENCRYPTED)
    return out.getvalue()


# --- groups without fields -----------------------------------------------------------------------


def add_empty_group(data: bytes, place: int, repetition: int) -> bytes:
    """Insert a group without fields as a top-level field of a plaintext file."""
    body, footer, _ = split_tail(data)
    metadata, _ = decode("FileMetaData", footer)
    metadata.schema[0].num_children += 1
    group = new("SchemaElement", name=b"void", repetition_type=repetition, num_children=0)
    metadata.schema.insert(place, group)
    return body + close_tail(encode(metadata), MAGIC_PLAINTEXT)


@each_case(("repetition", "place"), product([0, 1, 2], [1, 2, 3]), quick=one_in(2))
def test_a_group_without_fields_is_shown_as_pyarrow_shows_it(
    repetition: int, place: int, tmp_path: Path
) -> None:
    table = pa.table({"id": range(5), "z": range(5)})
    written = plain_file(table, store_schema=False, row_group_size=2)
    plain = add_empty_group(written, place, repetition)
    data = encrypt_bytes(plain, ENCRYPTED)
    for part in ("a", "b"):
        (tmp_path / f"{part}.parquet").write_bytes(data)
    choices: list[dict[str, Any]] = [
        {}, {"columns": ["void"]}, {"columns": ["z", "void"]}, {"columns": ["id"]},
        {"filters": [("id", ">", 2)]}, {"filters": [("id", ">", 9)]},
        {"columns": ["void"], "filters": [("id", "<", 2)]},
        {"filters": pa.compute.field("void").is_null()},
    ]  # fmt: skip
    for options in choices:
        expected = pq.read_table(io.BytesIO(plain), **options)
        filters, columns = options.get("filters"), options.get("columns")
        assert mc.read_table(data, KEYS, **options).equals(expected)
        assert mc.ParquetFile(data, KEYS).read(columns, filters=filters).equals(expected)
        rows = drop_in.read_table(io.BytesIO(data), decryption_properties=KEYS, **options)
        assert rows.equals(expected)
        assert pq.read_table(mc.open_parquet(data, KEYS), **options).equals(expected)
        assert mc.read_table(tmp_path, KEYS, **options).num_rows == 2 * expected.num_rows
        batches = mc.iter_batches(data, KEYS, batch_size=2, **options)
        assert pa.Table.from_batches(batches, expected.schema).equals(expected)
    theirs, ours = pq.ParquetFile(io.BytesIO(plain)), open_drop_in(data)
    assert ours.schema_arrow == theirs.schema_arrow
    for columns in (None, ["void"], ["void", "z"]):
        assert ours.read(columns).equals(theirs.read(columns))


def open_drop_in(data: bytes) -> Any:
    return drop_in.ParquetFile(io.BytesIO(data), decryption_properties=KEYS)


def test_a_group_without_fields_may_be_the_only_column() -> None:
    plain = add_empty_group(plain_file(pa.table({"id": range(5)}), store_schema=False), 2, 1)
    body, footer, _ = split_tail(plain)
    metadata, _ = decode("FileMetaData", footer)
    metadata.schema = [metadata.schema[0], metadata.schema[2]]
    metadata.schema[0].num_children, metadata.column_orders = 1, None
    metadata.row_groups[0].columns = []
    plain = body + close_tail(encode(metadata), MAGIC_PLAINTEXT)
    data = encrypt_bytes(plain, ENCRYPTED)
    expected = pq.read_table(io.BytesIO(plain))
    assert expected.num_rows == 5
    assert mc.read_table(data, KEYS).equals(expected)
    assert mc.read_table(data, KEYS, columns=["void"]).equals(expected)
    assert pa.Table.from_batches(mc.iter_batches(data, KEYS)).equals(expected)
    assert open_drop_in(data).read().num_rows == 5


# --- metadata ------------------------------------------------------------------------------------


def nested_fields() -> list[pa.Field]:
    return [
        pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "7", "k": "v"}),
        pa.field(
            "s",
            pa.struct([pa.field("a", pa.int32(), metadata={"x": "y"}), pa.field("b", pa.string())]),
            metadata={"about": "a group"},
        ),
        pa.field("u", UUID),
        pa.field("m", pa.map_(pa.string(), pa.int8())),
    ]


def files_with_metadata() -> dict[str, bytes]:
    """Return plaintext files with all kinds of pairs."""
    fields = nested_fields()
    table = pa.Table.from_batches(
        [pa.record_batch([pa.nulls(3, f.type) for f in fields], schema=pa.schema(fields))]
    ).set_column(0, fields[0], pa.array(range(3)))
    frame = pd.DataFrame({"id": range(3), "z": list("abc")}, index=pd.Index([5, 6, 7], name="i"))
    pandas = pa.Table.from_pandas(frame)
    own = {"mine": "1", "geo": json.dumps({"columns": {}, "primary_column": "s"})}
    tables = {
        "none": table, "own": table.replace_schema_metadata(own), "pandas": pandas,
        "both": pandas.replace_schema_metadata({**pandas.schema.metadata, b"mine": b"1"}),
    }  # fmt: skip
    files = {}
    for name, rows in tables.items():
        files[name] = plain_file(rows)
        files[f"{name}, no Arrow schema"] = plain_file(rows, store_schema=False)
        files[f"{name}, pairs beside it"] = add_pairs(files[name])
    return files


def add_pairs(data: bytes) -> bytes:
    body, footer, _ = split_tail(data)
    metadata, _ = decode("FileMetaData", footer)
    metadata.key_value_metadata = [
        *(metadata.key_value_metadata or ()),
        new("KeyValue", key=b"no value"),
        new("KeyValue", key=b"later", value=b"2"),
        new("KeyValue", key=b"org.apache.spark.sql.parquet.row.metadata", value=b"{}"),
    ]
    return body + close_tail(encode(metadata), MAGIC_PLAINTEXT)


FILES = files_with_metadata()


def all_metadata(schema: pa.Schema) -> list[Any]:
    """Return the metadata of a schema, of its fields and of the fields inside these."""
    return [schema.metadata, *(pair for field in schema for pair in _field_metadata(field))]


def _field_metadata(field: pa.Field) -> Iterable[Any]:
    yield field.name, str(field.type), field.nullable, field.metadata
    if pa.types.is_struct(field.type):
        for inner in field.type.fields:
            yield from _field_metadata(inner)


READS: dict[str, Callable[..., Any]] = {
    "read_table": lambda data, **o: mc.read_table(data, KEYS, **o),
    "iter_batches": lambda data, **o: next(mc.iter_batches(data, KEYS, **o)),
    "drop-in": lambda data, **o: drop_in.read_table(
        io.BytesIO(data), decryption_properties=KEYS, **o
    ),
    "view": lambda data, **o: pq.read_table(mc.open_parquet(data, KEYS), **o),
}


@each_case("name", FILES, quick=one_in(2))
@each_case("read", READS)
def test_results_have_the_metadata_that_pyarrow_shows(name: str, read: str) -> None:
    plain, data = FILES[name], encrypt_bytes(FILES[name], ENCRYPTED)
    there = pq.read_schema(io.BytesIO(plain)).names
    for columns in (None, ["id"], ["s", "id"], ["u"], ["m", "z"], []):
        wanted = None if columns is None else [c for c in columns if c in there]
        for filters in (None, [("id", ">", 1)]):
            options = {"columns": wanted, "filters": filters}
            expected = pq.read_table(io.BytesIO(plain), **options)
            result = READS[read](data, **options)
            assert all_metadata(result.schema) == all_metadata(expected.schema), options
            assert result.num_rows == expected.num_rows


@each_case("name", FILES)
def test_the_drop_in_file_has_the_metadata_of_pyarrows(name: str) -> None:
    plain, data = FILES[name], encrypt_bytes(FILES[name], ENCRYPTED)
    for columns in (None, ["id"], ["s.a", "id"], ["z", "id"], []):
        theirs, ours = pq.ParquetFile(io.BytesIO(plain)), open_drop_in(data)
        for method in ("read", "read_row_groups", "iter_batches"):
            arguments = [[0]] if method == "read_row_groups" else []
            expected = getattr(theirs, method)(*arguments, columns=columns)
            result = getattr(ours, method)(*arguments, columns=columns)
            if method == "iter_batches":
                expected, result = next(expected), next(result)
            assert all_metadata(result.schema) == all_metadata(expected.schema), (method, columns)
            assert result.num_rows == expected.num_rows


def test_groups_keep_their_metadata_when_a_part_is_read() -> None:
    data = encrypt_bytes(FILES["own"], ENCRYPTED)
    field = mc.read_table(data, KEYS, columns=["s.a"]).schema.field("s")
    assert field.metadata == {b"about": b"a group"}
    assert field.type.field("a").metadata == {b"x": b"y"}


def test_pairs_about_columns_without_a_key_stay_hidden() -> None:
    encryption = mc.FileEncryptionProperties(
        footer_key=FOOTER_KEY, column_keys={"z": bytes(16)[:15] + b"1"}
    )
    data = encrypt_bytes(FILES["pandas"], encryption)
    keys = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, on_missing_key="drop")
    for table in (
        mc.read_table(data, keys),
        drop_in.ParquetFile(io.BytesIO(data), decryption_properties=keys).read(),
    ):
        about = json.loads(table.schema.metadata[b"pandas"])
        assert "z" not in [column["name"] for column in about["columns"]]
        assert list(table.to_pandas().columns) == ["id"]


@pytest.mark.parametrize("name", ["pandas", "both"])
def test_polars_and_pandas_take_the_results(name: str) -> None:
    table = mc.read_table(encrypt_bytes(FILES[name], ENCRYPTED), KEYS, columns=["z"])
    assert table.to_pandas()["z"].tolist() == ["a", "b", "c"]
    assert len(pl.from_arrow(table)) == 3


def test_a_note_of_encryption_is_no_metadata_of_the_schema() -> None:
    """A plaintext footer has one as a key-value pair, for a file that needs it."""

    def use_unusual_order(metadata: Any) -> None:
        metadata.column_orders = None
        metadata.row_groups, metadata.num_rows = metadata.row_groups[1:], 2

    plain = edit_plain(
        plain_file(pa.table({"n": [1, 2, 3]}), store_schema=False, row_group_size=1),
        use_unusual_order,
    )
    data = encrypt_bytes(
        plain, mc.FileEncryptionProperties(footer_key=FOOTER_KEY, plaintext_footer=True)
    )
    assert b"modcrypt.added" in data
    for schema in (
        mc.read_table(data, KEYS).schema,
        mc.read_table(data, KEYS, filters=[("n", ">", 9)]).schema,
        next(mc.iter_batches(data, KEYS)).schema,
        mc.ParquetFile(data, KEYS).schema_arrow,
    ):
        assert schema.metadata is None

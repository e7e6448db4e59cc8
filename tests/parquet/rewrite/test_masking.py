"""Masked columns: nulls, keyed hashes, or nothing, and no trace of what was there.

Hashes are computed once more here, by `hmac` over texts that stand in the tables below. PyArrow
reads the decrypted files; bytes of theirs are searched for the values that must be gone.
"""

from __future__ import annotations

import base64
import datetime
import functools
import hmac
import io
import json
import subprocess
import sys
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

import modcrypt as mc
from modcrypt.parquet.format.idl import decode, encode
from modcrypt.parquet.format.idl import new as struct
from tests.support import forging
from tests.support.cases import each_case, one_in
from tests.support.forging import plain_file
from tests.support.in_memory import decrypt, encrypt
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.kms.memory_kms import MemoryKms
from tests.support.mask_hash import mask_hash
from tests.support.parquet_parser import footer_of, modules_of
from tests.support.tables import small_table
from tools.verify_pme import verify

HASH_KEY = b"a hash key of 32 bytes, for HMAC"
KEYS: dict[str, Any] = {"footer_key": FOOTER_KEY}
READER = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
GCM, CTR = "AES_GCM_V1", "AES_GCM_CTR_V1"


def hash_text(text: str | bytes | None) -> str | None:
    """Compute the hash of a value from its text."""
    if text is None:
        return None
    data = text.encode() if isinstance(text, str) else text
    return mask_hash(HASH_KEY, data)


def mask_file(sealed: bytes, reader: mc.FileDecryptionProperties = READER, **masks: Any) -> bytes:
    out = io.BytesIO()
    if "hashed" in masks:
        masks = {"hash_key": HASH_KEY} | masks
    mc.mask_parquet(sealed, out, reader, **masks)
    return out.getvalue()


def masked_plain(plain: bytes, **masks: Any) -> bytes:
    """Mask a file on its encrypted way, and give the plaintext of what came out."""
    made = mask_file(encrypt(plain, **KEYS), **masks)
    verify(made, FOOTER_KEY, {})
    return decrypt(made, **KEYS)


def read(plain: bytes) -> pa.Table:
    table = pq.read_table(io.BytesIO(plain))
    table.validate(full=True)
    return table


# --- the text of a value --------------------------------------------------------------------------

DAY = datetime.date(1960, 2, 29)
MOMENT = datetime.datetime(2026, 8, 1, 12, 30, 15)
TEXTS = ["a", None, "", "Ünï\N{SNOWMAN}", "a longer text than a view holds"]
BYTES = [b"a", None, b"", b"\xff\0\xfe", b"more bytes than a view holds"]
FIXED = [b"abc", None, b"\0\0\0"]
IDS = [uuid.UUID(int=1).bytes, None, uuid.UUID(int=2).bytes]
COUNTS = ["1", None, "0", "120", "1"]
COUNTED = [1, None, 0, 120, 1]
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def moments(unit: str, tz: str | None = None) -> pa.Array:
    return pa.array([MOMENT, None, datetime.datetime(1969, 12, 31, 23, 59, 59)]).cast(
        pa.timestamp(unit)
    ).cast(pa.timestamp(unit, tz) if tz else pa.timestamp(unit))  # fmt: skip


MOMENT_TEXTS = ["2026-08-01 12:30:15", None, "1969-12-31 23:59:59"]


#: Values of every type that Parquet holds, and the texts that are hashed.
TYPES: dict[str, tuple[pa.Array, list[Any]]] = {
    **{name: (pa.array(COUNTED, name), COUNTS) for name in INTEGERS},
    "uint64, large": (pa.array([2**64 - 1, None], pa.uint64()), ["18446744073709551615", None]),
    "int64, small": (pa.array([-(2**63), None]), ["-9223372036854775808", None]),
    "bool": (pa.array([True, None, False]), ["true", None, "false"]),
    "float64": (
        pa.array([0.1, None, float("nan"), -0.0, 0.0, float("-inf"), 1e300]),
        ["0.1", None, "nan", "0", "0", "-inf", str(10**300)],
    ),
    "float32": (
        pa.array([0.1, None, float("nan"), -0.0, 0.0], pa.float32()),
        ["0.1", None, "nan", "0", "0"],
    ),
    "float16": (pa.array([1.5, None, -0.0], pa.float16()), ["1.5", None, "0"]),
    "string": (pa.array(TEXTS), TEXTS),
    "large_string": (pa.array(TEXTS, pa.large_string()), TEXTS),
    "string_view": (pa.array(TEXTS, pa.string_view()), TEXTS),
    "binary": (pa.array(BYTES), BYTES),
    "large_binary": (pa.array(BYTES, pa.large_binary()), BYTES),
    "binary_view": (pa.array(BYTES, pa.binary_view()), BYTES),
    "fixed_size_binary": (pa.array(FIXED, pa.binary(3)), FIXED),
    "date32": (pa.array([DAY, None]), ["1960-02-29", None]),
    "date64": (pa.array([DAY, None], pa.date64()), ["1960-02-29", None]),
    "time32[s]": (pa.array([3661, None], pa.time32("s")), ["01:01:01", None]),
    "time32[ms]": (pa.array([3661001, None], pa.time32("ms")), ["01:01:01.001", None]),
    "time64[us]": (pa.array([1, None], pa.time64("us")), ["00:00:00.000001", None]),
    "time64[ns]": (pa.array([1, None], pa.time64("ns")), ["00:00:00.000000001", None]),
    "timestamp[s]": (moments("s"), MOMENT_TEXTS),
    "timestamp[ms]": (moments("ms"), MOMENT_TEXTS),
    "timestamp[us]": (moments("us"), MOMENT_TEXTS),
    "timestamp[ns]": (moments("ns"), MOMENT_TEXTS),
    "timestamp with zone": (moments("us", "Asia/Tokyo"), MOMENT_TEXTS),
    "duration": (pa.array([7, None], pa.duration("us")), ["7", None]),
    "decimal32": (pa.array([Decimal("-1.50"), None], pa.decimal32(7, 2)), ["-1.5", None]),
    "decimal64": (pa.array([Decimal("-1.50"), None], pa.decimal64(15, 2)), ["-1.5", None]),
    "decimal128": (pa.array([Decimal("-1.50"), None], pa.decimal128(30, 2)), ["-1.5", None]),
    "decimal256": (pa.array([Decimal("-1.50"), None], pa.decimal256(60, 2)), ["-1.5", None]),
    "null": (pa.nulls(3), [None] * 3),
    "dictionary": (pa.array(TEXTS).dictionary_encode(), TEXTS),
    "dictionary of int32": (pa.array(COUNTED, pa.int32()).dictionary_encode(), COUNTS),
    "uuid": (pa.array(IDS, pa.uuid()), IDS),
    "json": (
        pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a":1}', None])),
        ['{"a":1}', None],
    ),
    "bool8": (
        pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, None], pa.int8())),
        ["1", None],
    ),
}  # fmt: skip

Placed = tuple[pa.Table, str, Callable[[list[Any]], list[Any]]]


def flat(array: pa.Array) -> Placed:
    return pa.table({"c": array, "id": range(len(array))}), "c", lambda values: values


def pick(array: pa.Array, *index: int) -> pa.Array:
    """Take some values; Arrow's own `take` knows no views."""
    return pa.concat_arrays([array[n : n + 1] for n in index])


def place_required(array: pa.Array) -> Placed:
    array = pick(array, *[n for n, value in enumerate(array) if value.is_valid])
    schema = pa.schema([pa.field("c", array.type, nullable=False)])
    return pa.table([array], schema=schema), "c", lambda v: [x for x in v if x is not None]


def in_group(array: pa.Array) -> Placed:
    """Put it beside another leaf in a group that is null itself in the last row."""
    count = len(array)
    group = pa.StructArray.from_arrays(
        [array, pa.array(range(count))],
        fields=[pa.field("c", array.type), pa.field("other", pa.int64())],
        mask=pa.array([n == count - 1 for n in range(count)]),
    )
    return pa.table({"g": group}), "g.c", lambda values: [
        None if n == count - 1 else {"c": value, "other": n} for n, value in enumerate(values)
    ]  # fmt: skip


def in_list(array: pa.Array) -> Placed:
    """Put it into lists: all values, none, null, the first."""
    values = pa.concat_arrays([array, array[:1]])
    offsets = pa.array([0, len(array), None, len(array), len(values)], pa.int32())
    lists = pa.ListArray.from_arrays(offsets, values)
    return pa.table({"c": lists}), "c.list.element", lambda v: [v, [], None, v[:1]]


def in_fixed_list(array: pa.Array) -> Placed:
    """Put it into pairs, between which a row is null."""
    values = pick(array, 0, 1, 0, 1, 1, 0)
    pairs = pa.FixedSizeListArray.from_arrays(values, 2, mask=pa.array([False, True, False]))
    return pa.table({"c": pairs}), "c.list.element", lambda v: [v[:2], None, [v[1], v[0]]]


def in_map(array: pa.Array) -> Placed:
    keys = pa.array([f"k{n}" for n in range(len(array))])
    offsets = pa.array([0, len(array), None, len(array)], pa.int32())
    maps = pa.MapArray.from_arrays(offsets, keys, array)
    return pa.table({"c": maps}), "c.key_value.value", lambda v: [
        [(f"k{n}", value) for n, value in enumerate(v)], [], None
    ]  # fmt: skip


everywhere = each_case(
    ("name", "place"),
    [
        pytest.param(name, place, id=f"{name}, {place.__name__}")
        for name in TYPES
        for place in (flat, place_required, in_group, in_list, in_fixed_list, in_map)
        if (name, place) != ("null", place_required)  # nothing would be left
    ],
    quick=one_in(5),  # of six places, so that types take turns
)


@everywhere
def test_values_of_every_type_everywhere_become_the_hashes_of_their_texts(
    name: str, place: Callable[[pa.Array], Placed]
) -> None:
    array, texts = TYPES[name]
    table, column, around = place(array)
    plain = plain_file(table)
    found = read(masked_plain(plain, hashed=[column]))
    assert found.column(0).to_pylist() == around([hash_text(text) for text in texts])
    assert found.num_columns == 1 or found.column("id").equals(table.column("id"))
    leaf = found.schema.field(0).type
    assert "string" in str(leaf)
    assert found.schema.field(0).nullable == (place is not place_required)


@everywhere
def test_values_of_every_type_everywhere_become_nulls_of_that_type(
    name: str, place: Callable[[pa.Array], Placed]
) -> None:
    """In a group of their own, so that what is around them must stay."""
    array, texts = TYPES[name]
    inner, column, around = place(array)
    field = inner.schema.field(0)
    group = pa.StructArray.from_arrays(
        [inner.column(0).combine_chunks(), pa.array(range(inner.num_rows))],
        fields=[field, pa.field("beside", pa.int64())],
    )
    plain = plain_file(pa.table({"around": group}))
    before, found = read(plain), read(masked_plain(plain, null=[f"around.{column}"]))
    rows = around([None] * len(texts))
    if place is place_required:
        rows = [None] * inner.num_rows
    assert [row[field.name] for row in found.column(0).to_pylist()] == rows
    assert [row["beside"] for row in found.column(0).to_pylist()] == list(range(len(rows)))
    assert leaf_types(found.schema) == leaf_types(before.schema)


def leaf_types(schema: pa.Schema) -> list[str]:
    """Return the types of the leaves, whether or not they can be null."""
    return str(schema.remove_metadata()).replace(" not null", "").splitlines()


OTHERWISE_STORED: dict[str, dict[str, Any]] = {
    "INT96": {"use_deprecated_int96_timestamps": True},
    "decimals as integers": {"store_decimal_as_integer": True},
    "no Arrow schema": {"store_schema": False},
    "dictionaries, V2, LZ4": {"data_page_version": "2.0", "compression": "lz4"},
    "plain, Brotli": {"use_dictionary": False, "compression": "brotli"},
    "version 1.0": {"version": "1.0"},
}


@pytest.mark.parametrize("how", OTHERWISE_STORED)
def test_however_values_are_stored_hashes_are_the_same(how: str) -> None:
    """And nulls have the physical type that the schema says, which readers rely on."""
    names = ("int32", "string", "decimal32", "decimal128", "timestamp[us]", "date32", "uint32")
    groups = {
        name: pa.StructArray.from_arrays([TYPES[name][0][:2]] * 2, ["a", "b"]) for name in names
    }
    plain = plain_file(pa.table(groups), **OTHERWISE_STORED[how])
    made = masked_plain(
        plain, hashed=[f"{name}.a" for name in names], null=[f"{name}.b" for name in names]
    )
    rows = read(made)
    for name in names:
        texts = TYPES[name][1][:2]
        assert rows.column(name).to_pylist() == [
            {"a": hash_text(text), "b": None} for text in texts
        ]
    file = pq.ParquetFile(io.BytesIO(made))
    before = pq.ParquetFile(io.BytesIO(plain))
    for n in range(len(file.schema)):
        chunk = file.metadata.row_group(0).column(n)
        assert chunk.physical_type == file.schema.column(n).physical_type
        if chunk.path_in_schema.endswith(".b"):
            assert chunk.physical_type == before.schema.column(n).physical_type
            assert file.schema.column(n).logical_type.to_json() == (
                before.schema.column(n).logical_type.to_json()
            )
        else:
            assert file.schema.column(n).logical_type.type == "STRING"


# --- shapes of files ------------------------------------------------------------------------------


def wide_table(rows: int = 60) -> pa.Table:
    """Return small_table with a map, a list of groups and a sorted key."""
    pairs = [[("k", n), ("l", None)][: n % 3] if n % 7 else None for n in range(rows)]
    table = small_table(max(rows, 1)).slice(0, rows)  # types come from values
    return table.append_column("m", pa.array(pairs, pa.map_(pa.string(), pa.int64())))


EVERYTHING: dict[str, Any] = {
    "write_page_index": True,
    "write_page_checksum": True,
    "max_rows_per_page": 5,
    "write_batch_size": 5,
    "bloom_filter_options": {"id": {"ndv": 60}, "name": {"ndv": 9}},
}


def several(*rows: int) -> bytes:
    out, table = io.BytesIO(), wide_table(sum(rows))
    start = 0
    with pq.ParquetWriter(out, table.schema) as writer:
        for count in rows:
            writer.write_table(table.slice(start, count))
            start += count
    return out.getvalue()


SHAPES: dict[str, Callable[[], bytes]] = {
    "one row group": lambda: plain_file(wide_table(), **EVERYTHING),
    "row groups, V2": lambda: plain_file(
        wide_table(), row_group_size=7, data_page_version="2.0", compression="zstd", **EVERYTHING
    ),
    "no rows": lambda: plain_file(wide_table(0), **EVERYTHING),
    "no row groups": lambda: several(),
    "row groups without rows": lambda: several(0, 5, 0, 0, 7, 0),
    "one row": lambda: several(1),
}
MASKS: dict[str, Any] = {
    "null": ["id", "address.city", "flag", "m.key_value.value"],
    "hashed": ["name", "price", "address.zip", "tags"],
    "drop": ["day"],
}


@functools.cache
def plain_of(shape: str) -> bytes:
    return SHAPES[shape]()


@pytest.mark.parametrize("shape", SHAPES)
def test_masks_of_all_kinds_at_once_leave_the_rest_as_it_is(shape: str) -> None:
    plain = plain_of(shape)
    out = io.BytesIO()
    result = mc.mask_parquet(encrypt(plain, **KEYS), out, READER, **MASKS, hash_key=HASH_KEY)
    verify(out.getvalue(), FOOTER_KEY, {})
    made = decrypt(out.getvalue(), **KEYS)
    before, after = read(plain), read(made)
    assert after.column_names == [name for name in before.column_names if name != "day"]
    for old, new in zip(before.to_pylist(), after.to_pylist(), strict=True):
        assert new == masked_row(old)
    assert result.fields() == {
        "resealed": ("score", "m.key_value.key"),
        "kept": (),
        "plaintext": (),
        "nulls": ("id", "flag", "address.city", "m.key_value.value"),
        "hashed": ("name", "price", "address.zip", "tags.list.element"),
        "masked": (),
        "dropped": ("day",),
        "under_footer_key": (),
        "lost_signatures": (),
    }
    # What was not named has the same pages, indexes and bloom filters.
    old, new = modules_of(plain)["parts"], modules_of(made)["parts"]
    kept = {3: 3, 9: 8}  # score and the map's keys: ordinals before and after
    for (r, c), parts in old.items():
        if c in kept:
            assert new[r, kept[c]] == parts


def masked_row(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": None,
        "name": hash_text(row["name"]),
        "price": hash_text(f"{row['price']:.2f}".rstrip("0").rstrip(".")),
        "score": row["score"],
        "flag": None,
        "address": {"zip": hash_text(row["address"]["zip"]), "city": None},
        "tags": [hash_text(tag) for tag in row["tags"]],
        "m": None if row["m"] is None else [(key, None) for key, _ in row["m"]],
    }


@pytest.mark.parametrize(("root", "version"), [(None, "1.0"), (0, "2.0"), (2, "1.0")])
def test_masks_take_elements_without_a_repetition_type_for_required(
    version: str, root: int | None
) -> None:
    """So do Arrow C++ and DuckDB. The masks are those of the file that states the types."""
    fields = [
        field.with_nullable(column.null_count > 0)
        for field, column in zip(wide_table().schema, wide_table().columns, strict=True)
    ]
    table = wide_table().cast(pa.schema(fields))
    inner = [pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.string(), nullable=False)]
    group = pa.array([{"a": n, "b": str(n)} for n in range(60)], pa.struct(inner))
    outer = pa.StructArray.from_arrays([group], fields=[pa.field("g", group.type, nullable=False)])
    for name, array in (("required", group), ("deep", outer)):
        table = table.append_column(pa.field(name, array.type, nullable=False), array)
    usual = plain_file(table, data_page_version=version, row_group_size=25)
    plain = forging.without_repetition_types(usual, root)
    assert read(plain).equals(read(usual))
    for masks in (
        {"null": ["id", "name", "address"]},
        {"null": ["m.key_value.value", "tags", "required.b", "deep.g.a"]},
        {"null": ["required", "deep"], "hashed": ["name", "tags", "address.zip"]},
        {"hashed": ["id", "price", "m.key_value.key", "required.a", "deep.g.b"], "drop": ["day"]},
    ):
        assert read(masked_plain(plain, **masks)).equals(read(masked_plain(usual, **masks)))


def test_whole_fields_of_every_shape_become_null() -> None:
    plain = plain_of("row groups, V2")
    names = read(plain).column_names
    for masks in ({"null": names}, {"null": names[2:], "hashed": ["id"], "drop": ["name"]}):
        found = read(masked_plain(plain, **masks))
        for name in masks["null"]:
            assert found.column(name).null_count == 60
            assert found.schema.field(name).type == read(plain).schema.field(name).type


def test_a_group_in_lists_is_masked_in_part() -> None:
    kind = pa.list_(pa.struct([pa.field("a", pa.int32(), nullable=False), ("b", pa.string())]))
    rows = [[{"a": 1, "b": "x"}, None, {"a": 2, "b": None}], None, [], [{"a": 3, "b": ""}]]
    plain = plain_file(pa.table({"c": pa.array(rows, kind)}))
    nulls = read(masked_plain(plain, null=["c.list.element.a"])).column(0).to_pylist()
    none = {"a": None, "b": None}
    assert nulls == [[none | {"b": "x"}, None, none], None, [], [none | {"b": ""}]]
    hashes = read(masked_plain(plain, hashed=["c"])).column(0).to_pylist()
    assert hashes == [
        [{"a": hash_text("1"), "b": hash_text("x")}, None, {"a": hash_text("2"), "b": None}],
        None,
        [],
        [{"a": hash_text("3"), "b": hash_text("")}],
    ]


def test_keys_of_a_map_may_be_hashed_but_not_null() -> None:
    plain = plain_of("one row group")
    found = read(masked_plain(plain, hashed=["m"])).column("m").to_pylist()
    assert found == [
        None
        if m is None
        else [(hash_text(k), hash_text(None if v is None else str(v))) for k, v in m]
        for m in read(plain).column("m").to_pylist()
    ]
    with pytest.raises(ValueError, match="keys of a map"):
        masked_plain(plain, null=["m.key_value.key"])
    assert read(masked_plain(plain, null=["m"])).column("m").null_count == 60


def test_statistics_of_masked_columns_are_those_of_what_is_there_now() -> None:
    plain = plain_file(small_table(60), row_group_size=7)
    made = masked_plain(plain, hashed=["name"], null=["address.zip"])
    metadata, rows = pq.read_metadata(io.BytesIO(made)), read(made)
    at = 0
    for r in range(metadata.num_row_groups):
        group = metadata.row_group(r)
        names = rows.column("name").slice(at, group.num_rows).drop_null().to_pylist()
        found = {group.column(n).path_in_schema: group.column(n) for n in range(group.num_columns)}
        assert found["name"].statistics.min == min(names)
        assert found["name"].statistics.max == max(names)
        assert found["name"].statistics.null_count == group.num_rows - len(names)
        assert not found["address.zip"].statistics.has_min_max
        assert found["address.zip"].statistics.null_count == group.num_rows
        assert group.total_byte_size == sum(
            chunk.total_uncompressed_size for chunk in found.values()
        )
        at += group.num_rows
    wanted = hash_text("name-3")
    filtered = pq.read_table(io.BytesIO(made), filters=[("name", "==", wanted)])
    assert filtered.column("id").to_pylist() == [n for n in range(60) if n % 11 == 3 and n % 7]


# --- no trace -------------------------------------------------------------------------------------

SPARK = "org.apache.spark.sql.parquet.row.metadata"


def revealing_table() -> pa.Table:
    """Return a table whose metadata repeats values of its columns wherever engines put them."""
    about = {
        "index_columns": ["SECRET_key"],
        "columns": [
            {"name": name, "field_name": name, "pandas_type": "categorical",
             "numpy_type": "int8", "metadata": {"num_categories": "SECRET_count"}}
            for name in ("SECRET_key", "text")
        ],
        "column_indexes": [],
        "attributes": {"note": "SECRET_attribute"},
    }  # fmt: skip
    box = {"encoding": "WKB", "bbox": ["SECRET_box"]}
    geo = {"primary_column": "shape", "columns": {"shape": box, "point": box}}
    labels = {"ml_attr": {"vals": ["SECRET_label"]}}
    spark = {"fields": [{"name": "text", "type": "string", "metadata": labels}]}
    points = [{"x": 1.5, "y": 2.5}] * 3
    return pa.table(
        {
            "id": [1, 2, 3],
            "SECRET_key": pa.array(["SECRET_k1", "SECRET_k2", None]),
            "text": pa.array(["SECRET_t1", "SECRET_t2", None]).dictionary_encode(),
            "shape": pa.array([b"SECRET_s1", b"SECRET_s2", None]),
            "group": pa.array([{"a": "SECRET_a", "b": n} for n in range(3)]),
            "point": pa.array(points),
        },
        metadata={
            "pandas": json.dumps(about), "geo": json.dumps(geo), SPARK: json.dumps(spark),
            "iceberg.schema": "SECRET_iceberg",
        },
    )  # fmt: skip


def footer_texts(plain: bytes) -> bytes:
    """Return the bytes of a file and its decoded Arrow schema."""
    pairs = {pair[1]: pair.get(2, b"") for pair in footer_of(plain).get(5, [])}
    return plain + base64.b64decode(pairs.get(b"ARROW:schema", b""))


def revealing_file() -> bytes:
    plain = plain_file(
        revealing_table(), compression="none", write_page_index=True,
        bloom_filter_options={"text": {"ndv": 3}}, sorting_columns=[pq.SortingColumn(2)],
    )  # fmt: skip

    def tell(metadata: Any) -> None:
        for row_group in metadata.row_groups:
            for chunk in row_group.columns[1:]:
                pair = struct("KeyValue", key=b"SECRET_pair", value=b"SECRET_value")
                chunk.meta_data.key_value_metadata = [pair]

    plain = forging.edit_plain(plain, tell)
    secrets = (
        "k1", "t1", "s1", "a", "box", "count", "label", "iceberg", "pair", "value",
        "attribute",
    )  # fmt: skip
    assert all(f"SECRET_{name}".encode() in footer_texts(plain) for name in secrets)
    return plain


@pytest.mark.parametrize("what", ["null", "hashed", "drop"])
def test_no_trace_of_the_values_is_left(what: str) -> None:
    columns = ["SECRET_key", "text", "shape", "group.a", "point.x"]
    made = masked_plain(revealing_file(), **{what: columns})
    footer = footer_of(made)
    found = footer_texts(made)
    if what != "drop":
        found = found.replace(b"SECRET_key", b"")  # the column's name
    kept = {
        "drop": ["id", "group.b", "point.y"],
    }.get(what, ["id", "SECRET_key", "text", "shape", "group.a", "group.b", "point.x", "point.y"])
    assert [".".join(p.decode() for p in c[3][3]) for c in footer[4][0][1]] == kept
    at = [n for n, name in enumerate(kept) if name in columns]
    for n in at:
        chunk = footer[4][0][1][n]
        assert not {4, 5, 6, 7} & chunk.keys(), "indexes"
        assert not {8, 14, 15, 17} & chunk[3].keys(), "pairs, bloom filter, bounds"
    # group.b and point.y were not named, so what chunks say of them stays.
    rest = found.replace(b"SECRET_pair", b"").replace(b"SECRET_value", b"")
    assert b"SECRET" not in rest
    assert footer[4][0].get(4) in (None, []), "the order of rows"


def test_hashed_columns_leave_no_trace_of_their_types() -> None:
    day = pa.array([DAY, None])
    table = pa.table({"born": day, "g": pa.array([{"born": DAY, "n": 1}] * 2)})
    made = masked_plain(plain_file(table), hashed=["born", "g.born"])
    schema = read(made).schema
    assert schema.field("born").type == pa.string()
    assert schema.field("g").type.field("born").type == pa.string()
    file = pq.ParquetFile(io.BytesIO(made))
    for n in (0, 1):
        column = file.schema.column(n)
        assert (column.physical_type, column.logical_type.type) == ("BYTE_ARRAY", "STRING")
    pairs = {pair[1]: pair[2] for pair in footer_of(made)[5]}
    fields = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(pairs[b"ARROW:schema"])))
    assert "date" not in str(fields)


def test_a_chunk_without_pages_is_not_forgotten() -> None:
    """Where there is nothing to mask, its metadata may still reveal it."""

    def tell(metadata: Any) -> None:
        md = metadata.row_groups[0].columns[1].meta_data
        assert md.total_compressed_size == 0
        md.key_value_metadata = [struct("KeyValue", key=b"SECRET", value=b"SECRET")]
        md.statistics = struct("Statistics", max_value=b"SECRET", min_value=b"SECRET")

    plain = forging.edit_plain(plain_file(pa.table({"id": [1], "flag": [True]}).slice(0, 0)), tell)
    assert b"SECRET" in plain
    for masks in ({"null": ["flag"]}, {"hashed": ["flag"]}):
        assert b"SECRET" not in masked_plain(plain, **masks)


def test_what_arrow_says_of_a_field_goes_with_its_type() -> None:
    field = pa.field("t", pa.uuid(), metadata={"about": "SECRET"})
    table = pa.table([pa.array(IDS, pa.uuid())], schema=pa.schema([field]))
    assert b"SECRET" in footer_texts(plain_file(table))
    found = footer_texts(masked_plain(plain_file(table), hashed=["t"]))
    assert b"SECRET" not in found
    assert b"uuid" not in found


def test_rows_stay_sorted_by_what_stands_before_a_masked_column() -> None:
    table = pa.table({"a": [1, 1, 2], "b": ["x", "y", "z"], "c": [1, 2, 3]})
    order = [pq.SortingColumn(0), pq.SortingColumn(1), pq.SortingColumn(2)]
    plain = plain_file(table, sorting_columns=order)
    for masks in ({"null": ["b"]}, {"hashed": ["b"]}, {"drop": ["b"]}):
        metadata = pq.read_metadata(io.BytesIO(masked_plain(plain, **masks)))
        assert metadata.row_group(0).sorting_columns == (order[0],)
        metadata = pq.read_metadata(io.BytesIO(masked_plain(plain, null=["a"])))
        assert not metadata.row_group(0).sorting_columns


def test_hashes_are_in_the_order_of_texts_whatever_the_values_were_in() -> None:
    """Floats and INT96 may have orders of their own, which no reader knows for text."""
    table = pa.table({"f": [1.5], "t": pa.array([1], pa.timestamp("ns")), "kept": [2.5]})
    plain = plain_file(table, use_deprecated_int96_timestamps=True)
    floats = struct("ColumnOrder", IEEE_754_TOTAL_ORDER=struct("IEEE754TotalOrder"))
    moments = struct("ColumnOrder", INT96_TIMESTAMP_ORDER=struct("Int96TimestampOrder"))
    orders = [floats, moments, floats]
    plain = forging.edit_plain(plain, lambda md: setattr(md, "column_orders", orders))
    made = masked_plain(plain, hashed=["f", "t"])
    assert footer_of(made)[7] == [{1: {}}, {1: {}}, {2: {}}]


@pytest.mark.parametrize("name", ["__filename", "__fragment_index", "", "a.b", "*", "ü"])
def test_columns_may_have_any_name(name: str) -> None:
    plain = plain_file(pa.table({name: ["x", None], "id": [1, 2]}))
    for masks, expected in (({"hashed": [name]}, hash_text("x")), ({"null": [name]}, None)):
        with pq.ParquetFile(io.BytesIO(masked_plain(plain, **masks))) as file:
            assert file.read().column(0).to_pylist() == [expected, None]


def test_neither_the_hash_key_nor_the_data_keys_are_in_the_file() -> None:
    made = mask_file(encrypt(plain_of("one row group"), **KEYS), hashed=["name"])
    plain = decrypt(made, **KEYS)
    for key in (HASH_KEY, FOOTER_KEY):
        for spelt in (key, key.hex().encode(), base64.b64encode(key)):
            assert spelt not in made
            assert spelt not in plain


# --- what the file says of it ---------------------------------------------------------------------

CHECK = mask_hash(HASH_KEY, b"", b"modcrypt mask check v1")[:16]


def note_of(plain: bytes) -> Any:
    """Read the note of a decrypted file, as PyArrow gives it."""
    pairs = pq.read_metadata(io.BytesIO(plain)).metadata or {}
    return json.loads(pairs[b"modcrypt.masked"]) if b"modcrypt.masked" in pairs else None


def test_a_file_says_which_of_its_columns_are_masked_and_not_what_is_gone() -> None:
    made = masked_plain(plain_of("row groups, V2"), **MASKS)
    assert note_of(made) == {
        "null": [["address", "city"], ["flag"], ["id"], ["m", "key_value", "value"]],
        "hashed": [
            {"column": column, "key": CHECK}
            for column in (["address", "zip"], ["name"], ["price"], ["tags", "list", "element"])
        ],
    }
    assert b"day" not in made
    assert note_of(masked_plain(plain_of("one row"), drop=["day"])) is None


def test_masks_of_several_runs_are_reported_together_and_only_of_what_is_there() -> None:
    sealed = encrypt(plain_of("one row group"), **KEYS)
    sealed = mask_file(sealed, hashed=["name", "address"], null=["id"])
    sealed = mask_file(sealed, hashed=["price"], null=["day"], drop=["address.zip", "flag"])
    found = note_of(decrypt(sealed, **KEYS))
    assert found["null"] == [["day"], ["id"]]
    assert [entry["column"] for entry in found["hashed"]] == [
        ["address", "city"],
        ["name"],
        ["price"],
    ]
    assert b"zip" not in decrypt(sealed, **KEYS)
    out = io.BytesIO()
    mc.share_parquet(sealed, out, READER, mc.FileEncryptionProperties(**KEYS), ["price", "score"])
    copy = decrypt(out.getvalue(), **KEYS)
    assert note_of(copy) == {"null": [], "hashed": [{"column": ["price"], "key": CHECK}]}
    out = io.BytesIO()
    mc.rekey_parquet(sealed, out, READER, mc.FileEncryptionProperties(footer_key=OTHER_KEY))
    assert note_of(decrypt(out.getvalue(), footer_key=OTHER_KEY)) == found


def test_columns_left_out_for_want_of_a_key_are_not_named_either() -> None:
    keys = {"column_keys": {"name": COLUMN_KEY}}
    reader = mc.FileDecryptionProperties(**KEYS, **keys)  # type: ignore[arg-type]  # names
    sealed = mask_file(
        encrypt(plain_of("one row"), **KEYS, **keys), reader, hashed=["name", "price"]
    )
    out = io.BytesIO()
    mc.decrypt_parquet(sealed, out, mc.FileDecryptionProperties(**KEYS, on_missing_key="drop"))
    assert note_of(out.getvalue())["hashed"] == [{"column": ["price"], "key": CHECK}]


def test_hashes_are_hashed_again_with_another_key_alone() -> None:
    sealed = mask_file(encrypt(plain_of("one row"), **KEYS), hashed=["name", "address"])
    for again in (["name"], ["price", "address.city"], ["address"]):
        with pytest.raises(ValueError, match=rf"from hashed: {again[-1]}"):
            mask_file(sealed, hashed=again)
    twice = mask_file(sealed, hashed=["name"], hash_key=HASH_KEY[:16])
    with pytest.raises(ValueError, match="from hashed: name"):
        mask_file(twice, hashed=["name"])
    assert len(note_of(decrypt(twice, **KEYS))["hashed"]) == 4


def test_a_note_outside_arrows_schema_is_the_only_one() -> None:
    """PyArrow repeats pairs in its own schema, where nobody would keep them up to date."""
    note = json.dumps({"null": [], "hashed": [{"column": ["b"], "key": CHECK}]})
    table = pa.table({"a": [1], "b": ["x"], "c": [1]}, metadata={"modcrypt.masked": note})
    made = masked_plain(plain_file(table), null=["a"], drop=["b"])
    assert note_of(made) == {"null": [["a"]], "hashed": []}
    assert footer_texts(made).count(b"modcrypt.masked") == 1


@each_case(
    "value",
    ["", "{}", "[]", "[" * 100_000, '{"null": ["id"], "hashed": []}', '{"null": 7, "hashed": []}',
     '{"null": [], "hashed": [{"column": ["id"], "key": "no check"}]}',
     '{"null": [], "hashed": [{"column": [1], "key": "0123456789abcdef"}]}'],
)  # fmt: skip
def test_a_note_that_can_not_be_read_stops_masks_and_nothing_else(value: str) -> None:
    table = pa.table({"id": [1], "name": ["x"]}, metadata={"modcrypt.masked": value})
    sealed = encrypt(plain_file(table), **KEYS)
    with pytest.raises(mc.errors.FormatError, match=r"modcrypt\.masked"):
        mask_file(sealed, null=["id"])
    out = io.BytesIO()
    mc.rekey_parquet(sealed, out, READER, mc.FileEncryptionProperties(**KEYS))
    assert value.encode() in decrypt(out.getvalue(), **KEYS)
    out = io.BytesIO()
    mc.share_parquet(sealed, out, READER, mc.FileEncryptionProperties(**KEYS), ["id"])
    assert b"modcrypt.masked" not in decrypt(out.getvalue(), **KEYS)


# --- keys and modes -------------------------------------------------------------------------------

MODES: dict[str, dict[str, Any]] = {
    "uniform": {},
    "columns": {
        "column_keys": {"name": COLUMN_KEY, "address": OTHER_KEY},
        "footer_key_metadata": b"kf",
        "column_key_metadata": {"name": b"kn", "address": b"ka"},
    },
    "plaintext footer": {
        "column_keys": {"name": COLUMN_KEY},
        "plaintext_footer": True,
        "footer_key_metadata": b"kf",
        "aad_prefix": b"prefix",
    },
    "plaintext columns": {"plaintext_columns": ["id", "tags"], "column_keys": {"name": COLUMN_KEY}},
    "prefix to be supplied": {"aad_prefix": b"prefix", "store_aad_prefix": False},
    "CTR": {"encryption_algorithm": CTR, "aad_prefix": b"prefix"},
    "levels in clear": {"data_page_v2_levels": "plaintext"},
}


def leaf_keys(properties: dict[str, Any], leaves: list[str]) -> dict[str, bytes]:
    keys: dict[str, bytes] = properties.get("column_keys", {})
    return {
        leaf: key
        for leaf in leaves
        for name, key in keys.items()
        if leaf == name or leaf.startswith(f"{name}.")
    }


@pytest.mark.parametrize("name", MODES)
def test_keys_metadata_modes_and_prefix_stay_where_nothing_else_is_said(name: str) -> None:
    properties = KEYS | MODES[name]
    plain = plain_of("row groups, V2")
    sealed = encrypt(plain, **properties)
    prefix = properties.get("aad_prefix")
    reader: dict[str, Any] = KEYS | {
        "column_keys": properties.get("column_keys", {}),
        "aad_prefix": prefix,
        "accept_algorithms": (properties.get("encryption_algorithm", GCM),),
    }

    made = mask_file(sealed, mc.FileDecryptionProperties(**reader), null=["score"], hashed=["name"])

    found = read(decrypt(made, **reader))
    assert found.column("name").to_pylist() == [
        hash_text(v) for v in read(plain)["name"].to_pylist()
    ]
    leaves = [leaf for leaf, _ in describe_encryption(sealed, prefix)["columns"]]
    verify(
        made, FOOTER_KEY, leaf_keys(properties, leaves), prefix,
        accept_algorithms=reader["accept_algorithms"],
    )  # fmt: skip
    assert describe_encryption(made, prefix) == describe_encryption(sealed, prefix)
    unchanged = [leaf for leaf in leaves if leaf not in ("score", "name", "id")]
    assert levels_of(made, properties, leaves, unchanged) == levels_of(
        sealed, properties, leaves, unchanged
    )


def describe_encryption(data: bytes, prefix: bytes | None) -> dict[str, Any]:
    """Explain how a file is encrypted, by its own structs."""
    file = forging.open_file(data, FOOTER_KEY, prefix or b"")
    _, tail, magic = forging.split_tail(data)
    crypto = decode("FileMetaData" if magic == b"PAR1" else "FileCryptoMetaData", tail)[0]
    union = crypto.encryption_algorithm
    algorithm = union.AES_GCM_V1 or union.AES_GCM_CTR_V1
    signed = magic == b"PAR1"
    chunks = file.metadata.row_groups[0].columns
    leaves = [column.path for column in columns_of(data, prefix)]
    return {
        "magic": magic,
        "algorithm": "GCM" if union.AES_GCM_V1 else "CTR",
        "prefix": (algorithm.aad_prefix, algorithm.supply_aad_prefix),
        "footer key": crypto.footer_signing_key_metadata if signed else crypto.key_metadata,
        "columns": [(leaf, key_of(chunk)) for leaf, chunk in zip(leaves, chunks, strict=True)],
    }  # fmt: skip


def columns_of(data: bytes, prefix: bytes | None) -> list[Any]:
    """Return the columns of the schema, as PyArrow names them."""
    metadata = forging.open_file(data, FOOTER_KEY, prefix or b"").metadata
    bare = struct(
        "FileMetaData", version=1, schema=metadata.schema, num_rows=0, row_groups=[],
    )  # fmt: skip
    tail = encode(bare)
    file = pq.ParquetFile(io.BytesIO(forging.join_tail(b"PAR1", tail, b"PAR1")))
    return [file.schema.column(n) for n in range(len(file.schema))]


def key_of(chunk: Any) -> str:
    crypto = chunk.crypto_metadata
    if crypto is None:
        return "plaintext"
    own = crypto.ENCRYPTION_WITH_COLUMN_KEY
    return "footer key" if own is None else f"own {own.key_metadata!r}"


def levels_of(
    data: bytes, properties: dict[str, Any], leaves: list[str], wanted: list[str]
) -> dict[str, set[bool]]:
    """Say for each column whether levels stand in clear before the modules of its pages."""
    algorithms = (properties.get("encryption_algorithm", GCM),)
    modules = verify(
        data, FOOTER_KEY, leaf_keys(properties, leaves), properties.get("aad_prefix"),
        accept_algorithms=algorithms,
    )  # fmt: skip
    found: dict[str, set[bool]] = {leaf: set() for leaf in wanted}
    headers = {(m.row_group, m.column, m.page): m for m in modules if m.type == 4}
    for m in modules:
        if m.type == 2 and m.column is not None and leaves[m.column] in found:
            header = headers[m.row_group, m.column, m.page]
            assert m.offset is not None
            assert header.offset is not None
            found[leaves[m.column]].add(m.offset > header.offset + header.size)
    return found


def test_a_plaintext_file_is_masked_and_encrypted_in_one_pass() -> None:
    plain = plain_of("row groups, V2")
    taken = mc.FileDecryptionProperties(require_encrypted=False)
    out = io.BytesIO()
    new = mc.FileEncryptionProperties(**KEYS)
    mc.mask_parquet(plain, out, taken, new, **MASKS, hash_key=HASH_KEY)
    verify(out.getvalue(), FOOTER_KEY, {})
    found = read(decrypt(out.getvalue(), **KEYS)).to_pylist()
    assert found == [masked_row(row) for row in read(plain).to_pylist()]
    with pytest.raises(ValueError, match="plaintext"):
        mc.mask_parquet(plain, io.BytesIO(), taken, null=["id"])
    with pytest.raises(mc.errors.PlaintextError):
        mc.mask_parquet(plain, io.BytesIO(), READER, new, null=["id"])


@pytest.mark.parametrize("what", ["null", "drop"])
def test_no_key_is_needed_for_what_goes_away_whole(what: str) -> None:
    keys = {"name": COLUMN_KEY, "address": OTHER_KEY}
    sealed = encrypt(plain_of("row groups, V2"), **KEYS, column_keys=keys)
    made = mask_file(sealed, READER, **{what: ["name", "address"]})
    found = read(decrypt(made, **KEYS))
    if what == "drop":
        assert not {"name", "address"} & set(found.column_names)
    else:
        assert found.column("name").null_count == found.column("address").null_count == 60
    for part in ({"null": ["address.zip", "name"]}, {"hashed": ["name", "address"]}):
        with pytest.raises(mc.errors.KeyNotFoundError, match=r"address|name"):
            mask_file(sealed, READER, **part)


def test_a_hashed_column_without_a_key_follows_on_missing_key() -> None:
    sealed = encrypt(plain_of("one row group"), **KEYS, column_keys={"name": COLUMN_KEY})
    for what in ("drop", "null"):
        reader = mc.FileDecryptionProperties(**KEYS, on_missing_key=what)
        out = io.BytesIO()
        result = mc.mask_parquet(sealed, out, reader, hashed=["name", "price"], hash_key=HASH_KEY)
        assert result.hashed == ("price",)
        assert (result.dropped if what == "drop" else result.nulls) == ("name",)


# --- key services ---------------------------------------------------------------------------------

EXTERNAL = mc.Policy(footer_key="kf", column_keys={"kc1": ["name"]}, internal_key_material=False)


def test_references_to_material_beside_the_old_file_are_not_copied(tmp_path: Path) -> None:
    kms, path = MemoryKms(), tmp_path / "a.parquet"
    tools = mc.KeyTools(kms)
    mc.write_table(small_table(), path, tools.encryption(EXTERNAL))
    elsewhere = tmp_path / "b.parquet"
    for destination in (elsewhere, io.BytesIO()):
        with pytest.raises(ValueError, match="stored beside it"):
            mc.mask_parquet(path, destination, tools.decryption(), null=["id"])
    assert not elsewhere.exists()
    mc.mask_parquet(path, elsewhere, tools.decryption(), tools.encryption(EXTERNAL), null=["id"])
    fresh = mc.KeyTools(kms).decryption()
    assert mc.read_table(elsewhere, fresh).column("id").null_count == 50
    mc.mask_parquet(path, path, tools.decryption(), null=["id"])
    assert mc.read_table(path, mc.KeyTools(kms).decryption()).column("id").null_count == 50


def test_internal_material_goes_with_the_file(tmp_path: Path) -> None:
    kms, path = MemoryKms(), tmp_path / "a.parquet"
    tools = mc.KeyTools(kms)
    mc.write_table(small_table(), path, tools.encryption(mc.Policy(footer_key="kf")))
    wraps = sum(call.operation == "wrap" for call in kms.calls)
    mc.mask_parquet(path, tmp_path / "b.parquet", tools.decryption(), null=["id"])
    assert sum(call.operation == "wrap" for call in kms.calls) == wraps
    found = mc.read_table(tmp_path / "b.parquet", mc.KeyTools(kms).decryption())
    assert found.column("id").null_count == 50


# --- refused before anything is written -----------------------------------------------------------

MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "nothing named": ({}, "name columns"),
    "unknown": ({"null": ["no_such", "id"]}, "no_such"),
    "unknown, hashed": ({"hashed": ["address.street"], "hash_key": HASH_KEY}, "address.street"),
    "unknown, dropped": ({"drop": ["no_such"]}, "no_such"),
    "twice": (
        {"null": ["id"], "drop": ["id"]},
        "named more than once in drop, null and hashed: id",
    ),
    "a leaf and its group": (
        {"null": ["address"], "hashed": ["address.zip"], "hash_key": HASH_KEY},
        "named more than once in drop, null and hashed: address.zip",
    ),
    "one string": ({"null": "id"}, "not one string"),
    "no hash key": ({"hashed": ["id"]}, "hash_key"),
    "a short hash key": ({"hashed": ["id"], "hash_key": b"short"}, "16, 24 or 32"),
    "all dropped": ({"drop": small_table(1).column_names}, "all columns"),
    "keys of a map": ({"null": ["m.key_value.key"]}, "keys of a map"),
}


def test_a_name_that_means_two_columns_is_refused() -> None:
    """One of them has a dot; who meant the other would lose this one."""
    table = pa.table({"a.b": ["x"], "a": [{"b": 1}], "c": [1]})
    sealed = encrypt(plain_file(table), **KEYS)
    for masks in ({"null": ["a.b"]}, {"drop": ["c", "a.b"]}, {"hashed": ["a.b"]}):
        with pytest.raises(ValueError, match=r"ambiguous names.*a\.b"):
            mask_file(sealed, READER, **masks)
    found = read(decrypt(mask_file(sealed, READER, drop=["a"]), **KEYS))
    assert found.column_names == ["a.b", "c"]


@each_case("name", MISTAKES)
def test_a_callers_mistake_is_a_valueerror_before_a_key_is_wrapped(
    name: str, tmp_path: Path
) -> None:
    masks, words = MISTAKES[name]
    table = small_table() if name == "all dropped" else wide_table()
    sealed = encrypt(plain_file(table), **KEYS)
    kms = MemoryKms()
    encryption = mc.KeyTools(kms).encryption(mc.Policy(footer_key="kf"))
    out = tmp_path / "out.parquet"
    out.write_bytes(b"old")
    with pytest.raises(ValueError, match=words):
        mc.mask_parquet(sealed, out, READER, encryption, **masks)
    assert kms.calls == []
    assert out.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["out.parquet"]


def test_a_flipped_bit_in_a_masked_column_publishes_nothing(tmp_path: Path) -> None:
    """It is decoded by PyArrow only after its tags have been verified."""
    sealed = bytearray(encrypt(plain_of("one row group"), **KEYS))
    out = tmp_path / "out.parquet"
    pages = [m for m in verify(bytes(sealed), FOOTER_KEY, {}) if m.type == 2 and m.column == 1]
    assert pages[0].offset is not None
    sealed[pages[0].offset + 20] ^= 1
    with pytest.raises(mc.errors.TagMismatchError, match="column name"):
        mc.mask_parquet(bytes(sealed), out, READER, hashed=["name"], hash_key=HASH_KEY)
    assert list(tmp_path.iterdir()) == []


def test_rows_beyond_the_largest_row_group_of_pyarrow_are_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has at most 64 Mi, whatever it is asked for; here, 40."""
    write = pq.write_table

    def least(table: pa.Table, out: Any, **options: Any) -> None:
        write(table, out, **options | {"row_group_size": 40})

    sealed = encrypt(plain_of("one row group"), **KEYS)
    monkeypatch.setattr(pq, "write_table", least)
    with pytest.raises(
        mc.errors.UnsupportedFormatError, match=r"column address\.city.*so many rows"
    ):
        mask_file(sealed, null=["address.city"])


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_what_pyarrow_cannot_decode_is_refused_without_its_words(
    compression: str, tmp_path: Path
) -> None:
    """Its message may hold values; and whose fault it is, no OSError of bytes in memory says."""
    table = pa.table({"t": ["SECRET value"] * 9})
    plain = bytearray(plain_file(table, compression=compression, use_dictionary=False))
    chunk = footer_of(bytes(plain))[4][0][1][0][3]
    end = chunk[9] + chunk[7]
    if compression == "none":  # a length that passes the page
        at = plain.rindex(b"\x0c\0\0\0SECRET", 0, end)
        plain[at : at + 4] = b"\xff\xff\xff\x7f"
    else:
        plain[end - 20 : end] = bytes(20)
    sealed = encrypt(bytes(plain), **KEYS)
    with pytest.raises(mc.ModcryptError, match="column t") as caught:
        mc.mask_parquet(sealed, tmp_path / "out", READER, hashed=["t"], hash_key=HASH_KEY)
    assert "SECRET" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert list(tmp_path.iterdir()) == []


# --- memory ---------------------------------------------------------------------------------------

MEASURED = """
import sys
import modcrypt as mc
def peak():  # in KiB; not ru_maxrss, which a process inherits from the one that started it
    return next(int(line.split()[1]) for line in open("/proc/self/status") if "VmHWM" in line)
key = sys.stdin.buffer.read(16)
reader = mc.FileDecryptionProperties(footer_key=key)
def mask(source):
    mc.mask_parquet(source, source + ".masked", reader, hashed=["n"], hash_key=key[::-1], threads=1)
mask(sys.argv[1])
before = peak()
mask(sys.argv[2])
print(peak() - before)
"""


def test_no_more_than_a_row_group_is_in_memory(tmp_path: Path) -> None:
    """Measured from outside: a file of 14 row groups takes little more than one of two."""
    table = pa.table({"n": range(30_000)})
    paths = []
    for count in (2, 14):
        path = tmp_path / f"{count}.parquet"
        encryption = mc.FileEncryptionProperties(**KEYS)
        with mc.ParquetWriter(path, table.schema, encryption, compression="none") as writer:
            for _ in range(count):
                writer.write_table(table)
        paths.append(str(path))
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *paths], input=FOOTER_KEY, capture_output=True, check=True
    )
    # The hashes of 12 more row groups are 23 MB.
    assert int(done.stdout) < 12_000
    assert Path(paths[1] + ".masked").stat().st_size > 25_000_000


@each_case(
    "arrays",
    [
        [pa.array([10**16]), pa.array([1e16]), pa.array([Decimal(10**16)])],
        [pa.array([0.00001]), pa.array([Decimal("0.0000100")])],
        [pa.array([7], name) for name in INTEGERS]
        + [pa.array([Decimal("7.00")]), pa.array([7.0]), pa.array([7.0], pa.float32())],
        [pa.array([Decimal(text)]) for text in ("7.5", "7.50", "7.5000000")] + [pa.array([7.5])],
        [pa.array([0.0]), pa.array([-0.0]), pa.array([0]), pa.array([Decimal("0.000")])],
        [
            pa.array([1_500], pa.timestamp("ms")),
            pa.array([1_500_000], pa.timestamp("us", "UTC")),
            pa.array([1_500_000_000], pa.timestamp("ns", "Asia/Tokyo")),
        ],
        [pa.array([1_500], pa.time32("ms")), pa.array([1_500_000], pa.time64("us"))],
        [pa.array(["a"]), pa.array([b"a"]), pa.array(["a"]).dictionary_encode()],
    ],
)
def test_equal_values_have_equal_hashes_however_they_are_stored(arrays: list[pa.Array]) -> None:
    found = [
        read(masked_plain(plain_file(pa.table({"c": array})), hashed=["c"])).column("c").to_pylist()
        for array in arrays
    ]
    assert all(column == found[0] for column in found)


def test_decimals_of_many_digits_keep_all_of_them() -> None:
    """Python's decimals have 28 digits where nobody says otherwise."""
    digits = "12345678901234567890123456789012345"
    values = [Decimal(f"{digits}.01"), Decimal(f"{digits}.02"), Decimal(f"{digits}.10")]
    plain = plain_file(pa.table({"c": pa.array(values, pa.decimal128(38, 2))}))
    found = read(masked_plain(plain, hashed=["c"])).column("c").to_pylist()
    assert found == [hash_text(text) for text in (f"{digits}.01", f"{digits}.02", f"{digits}.1")]


# --- the key of the hashes -----------------------------------------------------------------------


def test_a_hash_is_what_the_documents_say() -> None:
    """The recipe of DECISIONS, by PyCA's HKDF."""
    derived = HKDF(SHA256(), 32, None, b"modcrypt mask hash v1").derive(HASH_KEY)
    assert hash_text(b"7") == hmac.digest(derived, b"7", "sha256").hex()


@pytest.mark.parametrize("text", ["", "modcrypt hash key", "modcrypt mask check v1", "\x01"])
def test_no_value_has_the_check_of_the_key_as_its_hash(text: str) -> None:
    sealed = encrypt(plain_file(pa.table({"name": [text]})), footer_key=FOOTER_KEY)
    out = io.BytesIO()
    mc.mask_parquet(sealed, out, FOOTER_READER, hashed=["name"], hash_key=HASH_KEY)
    (value,) = mc.read_table(out.getvalue(), FOOTER_READER)["name"].to_pylist()
    assert value == hash_text(text.encode())
    assert value[:16] != CHECK
    assert value != hmac.digest(HASH_KEY, text.encode(), "sha256").hex()


FOOTER_READER = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
SHARED = {
    "old footer key": FOOTER_KEY,
    "old column key": COLUMN_KEY,
    "new footer key": OTHER_KEY,
    "new column key": OTHER_KEY[::-1],
    "given but unused": bytes(range(16)),
}


@each_case("name", SHARED)
@each_case("dry_run", [False, True])
def test_a_key_of_the_file_makes_no_hashes(name: str, dry_run: bool) -> None:
    sealed = encrypt(
        plain_file(pa.table({"name": ["a"], "own": ["b"]})),
        footer_key=FOOTER_KEY, column_keys={"own": COLUMN_KEY},
    )  # fmt: skip
    retriever = {b"": None}.get
    reader = mc.FileDecryptionProperties(
        footer_key=FOOTER_KEY,
        column_keys={"own": COLUMN_KEY, "other": bytes(range(16))},
        key_retriever=retriever,
    )
    new = mc.FileEncryptionProperties(footer_key=OTHER_KEY, column_keys={"own": OTHER_KEY[::-1]})
    out = io.BytesIO()
    with pytest.raises(ValueError, match="hash_key is also a key of the file"):
        mc.mask_parquet(
            sealed, out, reader, new, hashed=["name"], hash_key=SHARED[name], dry_run=dry_run
        )
    assert not out.getvalue()


def test_names_of_an_iterator_are_masked() -> None:
    """An iterator ends after its first use, and a column may not stay readable for that."""
    sealed = encrypt(plain_file(small_table()), **KEYS)
    for action in ("null", "drop"):
        masks: dict[str, Any] = {action: iter(["name"])}
        masked = mc.read_table(mask_file(sealed, **masks), READER)
        assert "name" not in masked.column_names or masked["name"].null_count == masked.num_rows
    with pytest.raises(ValueError, match="no columns to mask"):
        mask_file(sealed, null=iter([]))
    out = io.BytesIO()
    mc.share_parquet(sealed, out, READER, OTHER_KEY, iter(["name"]))  # type: ignore[arg-type]
    assert mc.read_table(out.getvalue(), OTHER_KEY).column_names == ["name"]

"""A copy for somebody else: the columns that were named, and nothing that reveals the others.

Judged by the bytes of the decrypted copy, by PyArrow, and by `tools/verify_pme.py`.
"""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt.parquet.format.idl import new as struct
from tests.support import forging
from tests.support.cases import each_case
from tests.support.forging import plain_file
from tests.support.in_memory import decrypt, encrypt
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.kms.memory_kms import MemoryKms
from tests.support.parquet_parser import footer_of, modules_of
from tests.support.tables import small_table
from tools.verify_pme import verify

PARTNER_KEY = bytes(range(1, 33))
PARTNER = mc.FileEncryptionProperties(footer_key=PARTNER_KEY)
READER = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
COLUMN_KEYS = {"name": COLUMN_KEY, "address": OTHER_KEY, "tags": OTHER_KEY}
EVERYTHING: dict[str, Any] = {
    "write_page_index": True,
    "write_page_checksum": True,
    "max_rows_per_page": 5,
    "write_batch_size": 5,
    "row_group_size": 20,
    "bloom_filter_options": {"id": {"ndv": 60}, "name": {"ndv": 9}},
}


def share_columns(
    sealed: bytes, columns: list[str], reader: Any = READER, encryption: Any = PARTNER
) -> bytes:
    out = io.BytesIO()
    mc.share_parquet(sealed, out, reader, encryption, columns)
    return out.getvalue()


def open_copy(copy: bytes) -> bytes:
    """Verify a copy by code that is not modcrypt's, and decrypt it."""
    verify(copy, PARTNER_KEY, {})
    return decrypt(copy, footer_key=PARTNER_KEY)


def read(plain: bytes) -> pa.Table:
    table = pq.read_table(io.BytesIO(plain))
    table.validate(full=True)
    return table


# --- what is there --------------------------------------------------------------------------------

SELECTIONS: dict[str, tuple[list[str], dict[str, Any]]] = {
    # What is shared, and what is read: fields by name, with the leaves that are left.
    "one column": (["score"], {"score": None}),
    "the last first": (["tags", "id"], {"id": None, "tags": None}),
    "a part of a group": (["address.zip", "day"], {"day": None, "address": ["zip"]}),
    "a group": (["address"], {"address": None}),
    "a column under a key of its own": (["name"], {"name": None}),
    "all": (small_table(1).column_names, dict.fromkeys(small_table(1).column_names)),
}


@each_case("options", [{}, EVERYTHING, EVERYTHING | {"data_page_version": "2.0"}])
@each_case("name", SELECTIONS)
def test_what_is_shared_is_there_with_all_its_modules(name: str, options: dict[str, Any]) -> None:
    columns, expected = SELECTIONS[name]
    table = small_table(60)
    plain = plain_file(table, **options)
    keys = {"footer_key": FOOTER_KEY, "column_keys": COLUMN_KEYS}
    sealed = encrypt(plain, **keys, aad_prefix=b"our own name of the file")
    out = io.BytesIO()
    reader = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, column_keys=COLUMN_KEYS)
    result = mc.share_parquet(sealed, out, reader, PARTNER, columns)
    found = open_copy(out.getvalue())
    rows = read(found)
    assert rows.column_names == list(expected)
    for field, leaves in expected.items():
        values = table.column(field).to_pylist()
        if leaves is not None:
            values = [{leaf: value[leaf] for leaf in leaves} for value in values]
        assert rows.column(field).to_pylist() == values
    # Pages, indexes and bloom filters are the ones that were there, by the leaves' new ordinals.
    before, after = modules_of(plain), modules_of(found)
    old, new = leaves_of(before["footer"]), leaves_of(after["footer"])
    assert result.resealed == tuple(new)
    assert result.dropped == tuple(leaf for leaf in old if leaf not in new)
    for (r, c), parts in after["parts"].items():
        assert parts == before["parts"][r, old.index(new[c])]
    assert b"our own name" not in out.getvalue()


def leaves_of(footer: dict[int, Any]) -> list[str]:
    chunks = footer[4][0][1]
    return [".".join(part.decode() for part in chunk[3][3]) for chunk in chunks]


def test_the_copy_may_have_keys_of_its_own_by_the_names_that_are_there() -> None:
    sealed = encrypt(plain_file(small_table()), footer_key=FOOTER_KEY)
    encryption = mc.FileEncryptionProperties(
        footer_key=PARTNER_KEY, column_keys={"address.zip": COLUMN_KEY}, plaintext_columns=["id"],
        plaintext_footer=True, aad_prefix=b"theirs",
    )  # fmt: skip
    copy = share_columns(sealed, ["id", "address.zip"], encryption=encryption)
    verify(copy, PARTNER_KEY, {"address.zip": COLUMN_KEY}, b"theirs")
    found = decrypt(
        copy, footer_key=PARTNER_KEY, column_keys={"address.zip": COLUMN_KEY}, aad_prefix=b"theirs"
    )
    assert read(found).column_names == ["id", "address"]
    with pytest.raises(ValueError, match="name"):
        share_columns(
            sealed, ["id"],
            encryption=mc.FileEncryptionProperties(
                footer_key=PARTNER_KEY, column_keys={"name": COLUMN_KEY}
            ),
        )  # fmt: skip


@pytest.mark.parametrize("rows", ["none", "no row groups"])
def test_files_without_rows(rows: str) -> None:
    out = io.BytesIO()
    with pq.ParquetWriter(out, small_table().schema) as writer:
        if rows == "none":
            writer.write_table(small_table().slice(0, 0))
    copy = share_columns(encrypt(out.getvalue(), footer_key=FOOTER_KEY), ["address.city", "id"])
    assert str(read(open_copy(copy)).schema.remove_metadata()) == (
        "id: int64\naddress: struct<city: string>\n  child 0, city: string"
    )


# --- keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("plaintext_footer", [False, True])
def test_no_key_is_needed_nor_asked_for_but_those_of_the_columns(plaintext_footer: bool) -> None:
    table = small_table()
    sealed = encrypt(
        plain_file(table),
        footer_key=FOOTER_KEY,
        column_keys=COLUMN_KEYS,
        footer_key_metadata=b"kf",
        column_key_metadata={name: name.encode() for name in COLUMN_KEYS},
        plaintext_footer=plaintext_footer,
    )
    asked: list[bytes] = []

    def retrieve(metadata: bytes) -> bytes:
        asked.append(metadata)
        return {b"kf": FOOTER_KEY, b"name": COLUMN_KEY}[metadata]

    reader = mc.FileDecryptionProperties(key_retriever=retrieve)
    copy = share_columns(sealed, ["name", "score"], reader)
    assert read(open_copy(copy)).equals(table.select(["name", "score"]))
    assert asked == [b"kf", b"name"]
    with pytest.raises(mc.errors.KeyNotFoundError, match=r"address\.zip"):
        share_columns(sealed, ["address.zip"])


def test_the_partners_key_opens_the_copy_and_nothing_else() -> None:
    sealed = encrypt(plain_file(small_table()), footer_key=FOOTER_KEY)
    copy = share_columns(sealed, ["id", "score"])
    for data, key in ((copy, FOOTER_KEY), (sealed, PARTNER_KEY)):
        with pytest.raises(mc.errors.TagMismatchError):
            decrypt(data, footer_key=key)
    for key in (FOOTER_KEY, PARTNER_KEY):
        assert key not in copy
    aads = [
        forging.open_file(share_columns(sealed, ["id"]), PARTNER_KEY).file_aad,
        forging.open_file(copy, PARTNER_KEY).file_aad,
        forging.open_file(sealed, FOOTER_KEY).file_aad,
    ]
    assert len(set(aads)) == 3, "each file has its own aad_file_unique"


def test_a_key_service_wraps_the_keys_of_the_copy(tmp_path: Path) -> None:
    kms = MemoryKms()
    tools = mc.KeyTools(kms)
    mine = tools.encryption(mc.Policy(footer_key="kf", column_keys={"kc1": ["name"]}))
    source = tmp_path / "a.parquet"
    mc.write_table(small_table(), source, mine)
    kms.denied = {"kc1"}
    theirs = tools.encryption(mc.Policy(footer_key="kc2", internal_key_material=False))
    copy = tmp_path / "b.parquet"
    mc.share_parquet(source, copy, mc.KeyTools(kms).decryption(), theirs, ["id"])
    kms.denied = {"kf", "kc1"}
    found = mc.read_table(copy, mc.KeyTools(kms).decryption())
    assert found.equals(small_table().select(["id"]))
    assert b'"kc1"' not in copy.read_bytes()
    kms.denied, kms.calls = set(), []
    reader = mc.KeyTools(kms).decryption()
    with pytest.raises(ValueError, match="no_such"):
        mc.share_parquet(source, tmp_path / "c.parquet", reader, theirs, ["no_such"])
    assert {call.operation for call in kms.calls} == {"unwrap"}, "to see the footer"
    assert not (tmp_path / "c.parquet").exists()


# --- nothing else ---------------------------------------------------------------------------------


def revealing_file(compression: str = "none") -> bytes:
    """Return a file in which every engine's metadata names a column that is not shared."""
    column: dict[str, Any] = {"pandas_type": "unicode", "numpy_type": "object", "metadata": None}
    about = {
        "index_columns": ["SECRET_index"],
        "column_indexes": [{"name": "SECRET_level", "field_name": None} | column],
        "columns": [
            {"name": name, "field_name": name} | column
            for name in ("keep", "SECRET_column", "SECRET_long_gone")
        ]
        + [{"name": "SECRET_without_field"} | column],
        "attributes": {"about": "SECRET_attribute"},
        "creator": {"library": "pyarrow", "version": "26"},
        "pandas_version": "3.0",
    }
    covering = {"bbox": {"xmin": ["SECRET_box", "xmin"]}}
    geo = {
        "version": "1.1.0",
        "primary_column": "shape",
        "columns": {
            "shape": {"encoding": "WKB", "geometry_types": [], "covering": covering},
            "SECRET_shape": {"encoding": "WKB", "bbox": [1, 2, 3, 4]},
        },
        "SECRET_more": 1,
    }
    field = pa.field("SECRET_column", pa.string(), metadata={"doc": "SECRET_doc"})
    part = pa.struct([pa.field("SECRET_part", pa.string()), pa.field("open", pa.int64())])
    schema = pa.schema(
        [
            pa.field("keep", pa.int64()), field, pa.field("shape", pa.binary()),
            pa.field("SECRET_shape", pa.binary()), pa.field("SECRET_index", pa.string()),
            pa.field("group", part),
        ],
        metadata={
            "pandas": json.dumps(about), "geo": json.dumps(geo),
            "org.apache.spark.sql.parquet.row.metadata": '{"fields": [{"name": "SECRET_column"}]}',
            "iceberg.schema": "SECRET_iceberg", "SECRET_pair": "SECRET_value",
            "parquet.avro.schema": "SECRET_avro",
        },
    )  # fmt: skip
    columns = [
        [1, 2], ["SECRET_a", "SECRET_b"], [b"x", b"y"], [b"SECRET_s", b"t"], ["SECRET_i", "j"],
        [{"SECRET_part": "SECRET_p", "open": n} for n in range(2)],
    ]  # fmt: skip
    table = pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema)
    return plain_file(
        table, compression=compression, write_page_index=True,
        bloom_filter_options={"SECRET_column": {"ndv": 2}},
        sorting_columns=[pq.SortingColumn(0), pq.SortingColumn(1)],
    )  # fmt: skip


def footer_texts(plain: bytes) -> bytes:
    """Return the bytes of a file and its decoded Arrow schema."""
    pairs = {pair[1]: pair.get(2, b"") for pair in footer_of(plain).get(5, [])}
    return plain + base64.b64decode(pairs.get(b"ARROW:schema", b""))


def test_neither_names_nor_values_of_other_columns_are_in_the_copy() -> None:
    plain = revealing_file()
    secrets = (
        "index", "level", "column", "long_gone", "without_field", "attribute", "box", "shape",
        "more", "doc", "part", "iceberg", "pair", "value", "avro", "a", "b", "s", "i", "p",
    )  # fmt: skip
    assert all(f"SECRET_{name}".encode() in footer_texts(plain) for name in secrets)
    sealed = encrypt(plain, footer_key=FOOTER_KEY, aad_prefix=b"SECRET_prefix")
    copy = share_columns(sealed, ["keep", "shape", "group.open"])
    found = open_copy(copy)
    assert b"SECRET" not in footer_texts(found)
    assert b"SECRET" not in copy
    footer = footer_of(found)
    pairs = {pair[1]: pair[2] for pair in footer[5]}
    assert pairs.keys() == {b"ARROW:schema", b"pandas", b"geo"}
    pandas, geo = json.loads(pairs[b"pandas"]), json.loads(pairs[b"geo"])
    assert [column["name"] for column in pandas["columns"]] == ["keep"]
    assert geo["columns"]["shape"]["encoding"] == "WKB"
    assert [s[1] for s in footer[4][0].get(4, [])] == [0], "rows are sorted by `keep`"
    frame = read(found).to_pandas()
    assert list(frame.columns) == ["keep", "shape", "group"]
    assert str(read(found).schema.field("group").type) == "struct<open: int64>"


def test_key_value_pairs_of_others_go_even_where_all_columns_are_shared() -> None:
    plain = revealing_file()
    everything = pq.read_schema(io.BytesIO(plain)).names
    found = open_copy(share_columns(encrypt(plain, footer_key=FOOTER_KEY), everything))
    pairs = {pair[1] for pair in footer_of(found)[5]}
    assert pairs == {b"ARROW:schema", b"pandas", b"geo"}
    for name in ("attribute", "long_gone", "box", "more", "pair", "value", "iceberg", "avro"):
        assert f"SECRET_{name}".encode() not in footer_texts(found)


@each_case("value", [b"", b"no JSON", b"[]", b"[" * 100_000, b"\xff", None])
@each_case("key", [b"pandas", b"geo", b"ARROW:schema"])
def test_pairs_that_cannot_be_understood_go(key: bytes, value: bytes | None) -> None:
    pair = struct("KeyValue", key=key)
    if value is not None:
        pair.value = value
    plain = forging.edit_plain(
        plain_file(small_table(), store_schema=False),
        lambda metadata: setattr(metadata, "key_value_metadata", [pair]),
    )
    for columns in (["id"], small_table(1).column_names):
        found = open_copy(share_columns(encrypt(plain, footer_key=FOOTER_KEY), columns))
        assert 5 not in footer_of(found)


def test_half_a_map_is_shared_as_what_it_is() -> None:
    table = pa.table({"m": pa.array([[("SECRET", 1)], None], pa.map_(pa.string(), pa.int64()))})
    sealed = encrypt(plain_file(table, compression="none"), footer_key=FOOTER_KEY)
    found = open_copy(share_columns(sealed, ["m.key_value.value"]))
    assert b"SECRET" not in footer_texts(found)
    assert read(found).column("m").to_pylist() == [{"key_value": [{"value": 1}]}, None]


# --- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ([], "no columns to share"),
        (["id", "no_such", "address.street"], r"address\.street, no_such"),
        ("id", "not one string"),
    ],
)
def test_names_that_cannot_be_meant_are_refused(columns: Any, words: str, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    with pytest.raises(ValueError, match=words):
        mc.share_parquet(
            encrypt(plain_file(small_table()), footer_key=FOOTER_KEY), out, READER, PARTNER, columns
        )
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_means_two_columns_shares_neither() -> None:
    table = pa.table({"a.b": ["x"], "a": [{"b": 1, "c": 2}]})
    sealed = encrypt(plain_file(table), footer_key=FOOTER_KEY)
    with pytest.raises(ValueError, match=r"ambiguous names.*a\.b"):
        share_columns(sealed, ["a.b"])
    assert read(open_copy(share_columns(sealed, ["a.c"]))).to_pylist() == [{"a": {"c": 2}}]


def test_a_flipped_bit_publishes_nothing(tmp_path: Path) -> None:
    sealed = bytearray(encrypt(plain_file(small_table(), **EVERYTHING), footer_key=FOOTER_KEY))
    out = tmp_path / "out.parquet"
    modules = verify(bytes(sealed), FOOTER_KEY, {})
    for kind in range(2, 10):  # the page, index and bloom filter of a column that is shared
        module = next(m for m in modules if m.type == kind and m.column == 0)
        assert module.offset is not None
        sealed[module.offset + 20] ^= 1
        with pytest.raises(mc.errors.TagMismatchError):
            mc.share_parquet(bytes(sealed), out, READER, PARTNER, ["id"])
        sealed[module.offset + 20] ^= 1
    mc.share_parquet(bytes(sealed), out, READER, PARTNER, ["id"])


def test_a_plaintext_file_is_shared_where_the_caller_takes_those() -> None:
    taken = mc.FileDecryptionProperties(require_encrypted=False)
    found = open_copy(share_columns(revealing_file(), ["keep"], taken))
    assert b"SECRET" not in footer_texts(found)
    assert read(found).column("keep").to_pylist() == [1, 2]

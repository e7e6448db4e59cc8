"""parquet-java reads what we write, and we read what parquet-java writes.

Of data pages V2, parquet-java reads only its own layout, with levels in clear
(`data_page_v2_levels="plaintext"`).
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt.subjects import Subjects
from tests.support import forging
from tests.support.cases import each_case, each_value
from tests.support.java.parquet_java import Column, ParquetJava, ParquetJavaError
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.pairwise import Case, case_name, pairwise
from tests.support.parquet_parser import footer_of, modules_of
from tests.support.sample_vault import SampleVault
from tests.support.tables import SMALL_TABLE_LEAVES, nested_table, small_table, write_plain

ALGORITHMS = ("AES_GCM_V1", "AES_GCM_CTR_V1")
FOOTERS = ("encrypted", "plaintext")
PREFIXES = ("none", "stored", "unstored")
PREFIX = b"employees_23May2018.part0"
KEYS = {16: bytes(range(1, 17)), 24: bytes(range(1, 25)), 32: bytes(range(1, 33))}
SHAPES = ("small", "empty", "row groups", "pages", "nested")

ADDRESS = ("address.zip", "address.city")
#: How columns are encrypted: our column_keys, our plaintext_columns, parquet-java's column keys.
LAYOUTS: dict[str, tuple[dict[str, bytes], list[str], dict[str, bytes]]] = {
    "uniform": ({}, [], {}),
    "columns": ({"id": COLUMN_KEY, "name": OTHER_KEY}, [], {"id": COLUMN_KEY, "name": OTHER_KEY}),
    "mixed": ({"id": COLUMN_KEY}, ["tags", "score"], {"id": COLUMN_KEY}),
    "groups": (
        {"address": COLUMN_KEY, "tags": OTHER_KEY},
        ["id"],
        dict.fromkeys(ADDRESS, COLUMN_KEY) | {"tags.list.element": OTHER_KEY},
    ),
    "every column": (
        dict.fromkeys(("id", "name", "price", "score", "day", "flag", "tags"), COLUMN_KEY)
        | {"address": OTHER_KEY},
        [],
        dict.fromkeys(SMALL_TABLE_LEAVES, COLUMN_KEY) | dict.fromkeys(ADDRESS, OTHER_KEY),
    ),
}
NESTED_LAYOUTS: dict[str, tuple[dict[str, bytes], list[str], dict[str, bytes]]] = {
    "uniform": ({}, [], {}),
    "groups": (
        {"deep": COLUMN_KEY},
        [],
        {
            f"deep.list.element.{leaf}": COLUMN_KEY
            for leaf in ("k", "m.key_value.key", "m.key_value.value.list.element")
        },
    ),
}

# --- we write, parquet-java reads ----------------------------------------------------------------


def pyarrow_source(path: Path, case: Case) -> None:
    table = nested_table() if case["shape"] == "nested" else small_table(60)
    options: dict[str, Any] = {
        "data_page_version": {"v1": "1.0", "v2": "2.0"}[case["version"]],
        "compression": case["codec"],
        "write_page_checksum": case["checksum"],
        "write_page_index": case["index"],
        "use_dictionary": case["dictionary"],
    }
    if case["bloom"]:
        options["bloom_filter_options"] = {"id": {"ndv": 100, "fpp": 0.05}}
    if case["shape"] == "row groups":
        options["row_group_size"] = 7
    if case["shape"] in ("pages", "nested"):
        options |= {"max_rows_per_page": 5, "write_batch_size": 5}
    write_plain(path, table.slice(0, 0) if case["shape"] == "empty" else table, **options)


READING = pairwise(
    layout=list(LAYOUTS), algorithm=ALGORITHMS, footer=FOOTERS, prefix=PREFIXES,
    key_size=(16, 24, 32), version=("v1", "v2"), codec=("none", "snappy", "gzip", "zstd", "lz4"),
    dictionary=(True, False), checksum=(True, False), index=(True, False), bloom=(False, True),
    shape=SHAPES,
)  # fmt: skip


@each_case("case", READING, ids=case_name, quick=each_value)
def test_parquet_java_reads_what_we_encrypt(java: ParquetJava, tmp_path: Path, case: Case) -> None:
    plain, sealed = tmp_path / "plain.parquet", tmp_path / "sealed.parquet"
    pyarrow_source(plain, case)
    layouts = NESTED_LAYOUTS if case["shape"] == "nested" else LAYOUTS
    ours, plaintext, theirs = layouts.get(case["layout"], layouts["groups"])

    mc.encrypt_parquet(plain, sealed, mc.FileEncryptionProperties(
        footer_key=KEYS[case["key_size"]],
        column_keys=ours,
        plaintext_columns=plaintext,
        plaintext_footer=case["footer"] == "plaintext",
        encryption_algorithm=case["algorithm"],
        aad_prefix=None if case["prefix"] == "none" else PREFIX,
        store_aad_prefix=case["prefix"] != "unstored",
        data_page_v2_levels="plaintext",
    ))  # fmt: skip

    how: dict[str, Any] = {"footer_key": KEYS[case["key_size"]], "column_keys": theirs}
    how |= {"verify_crc": True, "aad_prefix": PREFIX if case["prefix"] == "unstored" else None}
    text = java.read_text(plain, verify_crc=True)
    assert java.read_text(sealed, **how) == text
    assert text.count("\n") == (0 if case["shape"] == "empty" else 60)
    assert java.column_indexes(sealed, **how) == java.column_indexes(plain)


def seal(path: Path, plain: Path, **properties: Any) -> Path:
    settings = {"footer_key": FOOTER_KEY, "data_page_v2_levels": "plaintext"} | properties
    mc.encrypt_parquet(plain, path, mc.FileEncryptionProperties(**settings))
    return path


def open_with(path: Path, sealed: Path, **properties: Any) -> Path:
    mc.decrypt_parquet(sealed, path, mc.FileDecryptionProperties(**properties))
    return path


def test_parquet_java_reads_the_columns_beside_cells(java: ParquetJava, tmp_path: Path) -> None:
    table, path = (
        pa.table({"id": [1, 2], "name": ["Ada", None], "amount": [1.5, 2]}),
        tmp_path / "a",
    )
    known = Subjects(vault=SampleVault(), key="id", columns=["name"])
    mc.write_table(table, path, FOOTER_KEY, subjects=known)
    rows = java.read(path, footer_key=FOOTER_KEY)
    assert [(row["id"], row["amount"]) for row in rows] == [(1, 1.5), (2, 2)]
    assert [type(row["name"]) for row in rows] == [bytes, type(None)]
    assert len(rows[0]["name"]) == 28 + len("Ada")


@pytest.mark.parametrize("footer", FOOTERS)
def test_parquet_java_skips_by_the_indexes_and_bloom_filters_that_we_moved(
    java: ParquetJava, tmp_path: Path, footer: str
) -> None:
    numbers = [(n * 7919) % 3000 for n in range(3000)]
    table = pa.table({"id": numbers, "name": [f"n{n}" for n in numbers], "at": range(3000)})
    plain = write_plain(
        tmp_path / "plain.parquet", table, row_group_size=1000, max_rows_per_page=50,
        write_batch_size=50, write_page_index=True, use_dictionary=False,
        bloom_filter_options={"id": {"ndv": 1000}, "name": {"ndv": 1000}},
    )  # fmt: skip
    sealed = seal(
        tmp_path / "sealed.parquet", plain, plaintext_footer=footer == "plaintext",
        column_keys={"id": COLUMN_KEY},
    )  # fmt: skip
    how: dict[str, Any] = {"footer_key": FOOTER_KEY, "column_keys": {"id": COLUMN_KEY}}
    indexes = java.column_indexes(sealed, **how)
    assert indexes == java.column_indexes(plain)
    assert all(indexes[0, "id"].values())  # there is one of each
    assert java.read(sealed, where=("at", 1234), **how) == [
        {"id": numbers[1234], "name": f"n{numbers[1234]}", "at": 1234}
    ]
    assert len(java.read(sealed, where=("name", "n77"), **how)) == 1
    assert java.read(sealed, where=("id", 3001), **how) == []


@pytest.mark.parametrize("layout", ["uniform", "columns"])
def test_parquet_java_does_not_read_sealed_levels_of_data_pages_v2(
    java: ParquetJava, tmp_path: Path, layout: str
) -> None:
    plain = write_plain(tmp_path / "plain.parquet", data_page_version="2.0")
    ours, _, theirs = LAYOUTS[layout]
    how: dict[str, Any] = {"footer_key": FOOTER_KEY, "column_keys": theirs}
    whole = seal(
        tmp_path / "whole.parquet", plain, column_keys=ours, data_page_v2_levels="encrypted"
    )
    apart = seal(tmp_path / "apart.parquet", plain, column_keys=ours)

    with pytest.raises(ParquetJavaError, match=r"[Tt]ag|[Dd]ecrypt"):
        java.read_text(whole, **how)
    assert java.read_text(apart, **how) == java.read_text(plain)


def test_pages_v2_without_levels_are_the_same_in_both_layouts(
    java: ParquetJava, tmp_path: Path
) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    table = pa.table({"id": range(50)}, schema=schema)
    plain = write_plain(tmp_path / "plain.parquet", table, data_page_version="2.0")
    sealed = seal(tmp_path / "sealed.parquet", plain, data_page_v2_levels="encrypted")
    assert java.read_text(sealed, footer_key=FOOTER_KEY) == java.read_text(plain)


@each_case("footer", FOOTERS)
@each_case("wrong", [
    {"footer_key": OTHER_KEY},
    {"column_keys": {"id": OTHER_KEY}},
    {"aad_prefix": b"employees_23May2018.part1"},
    {"aad_prefix": None},
])  # fmt: skip
def test_parquet_java_refuses_our_file_with_a_wrong_key_or_prefix(
    java: ParquetJava, tmp_path: Path, footer: str, wrong: dict[str, Any]
) -> None:
    plain = write_plain(tmp_path / "plain.parquet")
    sealed = seal(
        tmp_path / "sealed.parquet", plain, column_keys={"id": COLUMN_KEY}, aad_prefix=PREFIX,
        store_aad_prefix=False, plaintext_footer=footer == "plaintext",
    )  # fmt: skip
    right: dict[str, Any] = {
        "footer_key": FOOTER_KEY,
        "column_keys": {"id": COLUMN_KEY},
        "aad_prefix": PREFIX,
    }
    assert java.read_text(sealed, **right) == java.read_text(plain)
    with pytest.raises(ParquetJavaError):
        java.read_text(sealed, **(right | wrong))


def test_parquet_java_verifies_the_signature_of_our_plaintext_footer(
    java: ParquetJava, tmp_path: Path
) -> None:
    sealed = seal(
        tmp_path / "sealed.parquet", write_plain(tmp_path / "p.parquet"), plaintext_footer=True
    )
    data = bytearray(sealed.read_bytes())
    data[data.rindex(b"parquet-cpp-arrow")] ^= 1  # in created_by
    sealed.write_bytes(data)
    with pytest.raises(ParquetJavaError, match=r"[Ss]ignature"):
        java.read_text(sealed, footer_key=FOOTER_KEY)


def test_parquet_java_without_the_key_of_a_column_reads_the_others(
    java: ParquetJava, tmp_path: Path
) -> None:
    plain = write_plain(tmp_path / "plain.parquet")
    sealed = seal(tmp_path / "sealed.parquet", plain, column_keys={"address": COLUMN_KEY})
    others = ["id", "name", "price", "score", "day", "flag", "tags"]
    assert java.read_text(sealed, footer_key=FOOTER_KEY, columns=others) == java.read_text(
        plain, columns=others
    )
    with pytest.raises(ParquetJavaError, match="address"):
        java.read_text(sealed, footer_key=FOOTER_KEY, columns=["address.zip"])


def test_parquet_java_without_keys_reads_plaintext_columns_of_our_plaintext_footer(
    java: ParquetJava, tmp_path: Path
) -> None:
    plain = write_plain(tmp_path / "plain.parquet", write_page_index=True)
    sealed = seal(
        tmp_path / "sealed.parquet", plain, plaintext_footer=True, plaintext_columns=["id", "tags"],
        column_keys=dict.fromkeys(("name", "price", "score", "day", "flag", "address"), COLUMN_KEY),
    )  # fmt: skip
    columns = ["id", "tags"]
    assert java.read_text(sealed, columns=columns) == java.read_text(plain, columns=columns)
    with pytest.raises(ParquetJavaError):
        java.read_text(sealed, columns=["name"])


# --- parquet-java writes, we read ----------------------------------------------------------------

SCHEMA = """
message rows {
  required int64 id;
  optional binary name (STRING);
  required double score;
  optional float ratio;
  required boolean flag;
  optional int32 day (DATE);
  required fixed_len_byte_array(5) code;
  optional int96 moment;
  optional group address { required binary zip (STRING); optional binary city (STRING); }
  optional group tags (LIST) { repeated group list { optional binary element (STRING); } }
}
"""
LEAVES = (
    "id", "name", "score", "ratio", "flag", "day", "code", "moment", "address.zip",
    "address.city", "tags.list.element",
)  # fmt: skip


def java_rows(count: int) -> list[dict[str, Any]]:
    return [
        {
            "id": n * 31 % 257,
            "name": None if n % 7 == 0 else f"name-{n % 11}",
            "score": n * 1.5,
            "ratio": None if n % 4 == 0 else n / 8,
            "flag": n % 3 == 0,
            "day": None if n % 5 == 0 else 20_000 + n,
            "code": f"{n:05}".encode(),
            "moment": None if n % 2 == 0 else n.to_bytes(12, "little"),
            "address": None if n % 6 == 0 else {"zip": f"{n:05}", "city": "Ulm" if n % 5 else None},
            "tags": None
            if n % 9 == 0
            else {"list": [{"element": "a"}, {"element": None}][: n % 3]},
        }
        for n in range(count)
    ]


#: parquet-java's column keys, its columns under the footer key, whether the rest is plaintext.
JAVA_LAYOUTS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "columns": {
        "column_keys": {"id": COLUMN_KEY, "address.zip": OTHER_KEY, "tags.list.element": OTHER_KEY}
    },
    "mixed": {"column_keys": {"name": COLUMN_KEY}, "columns_with_footer_key": ["id", "moment"]},
    "complete": {"column_keys": {"address.city": COLUMN_KEY}, "complete_columns": True},
}
WRITING = pairwise(
    layout=list(JAVA_LAYOUTS), algorithm=ALGORITHMS, footer=FOOTERS, prefix=PREFIXES,
    key_size=(16, 24, 32), version=("v1", "v2"),
    codec=("UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD", "LZ4_RAW"), dictionary=(True, False),
    checksum=(True, False), bloom=(False, True), shape=("small", "empty", "row groups", "pages"),
)  # fmt: skip


def java_writer_options(case: Case) -> dict[str, Any]:
    shapes = {
        "row groups": {"row_group_row_count_limit": 13},
        "pages": {"page_row_count_limit": 7},
    }
    return {
        "page_version": case["version"],
        "codec": case["codec"],
        "dictionary": case["dictionary"],
        "page_checksums": case["checksum"],
        "bloom_columns": ["id", "name"] if case["bloom"] else [],
        **shapes.get(case["shape"], {}),
    }


@each_case("case", WRITING, ids=case_name, quick=each_value)
def test_we_decrypt_what_parquet_java_encrypts_to_its_plaintext_twin(
    java: ParquetJava, tmp_path: Path, case: Case
) -> None:
    twin, sealed = tmp_path / "twin.parquet", tmp_path / "sealed.parquet"
    rows, options = java_rows(0 if case["shape"] == "empty" else 50), java_writer_options(case)
    layout, footer_key = JAVA_LAYOUTS[case["layout"]], KEYS[case["key_size"]]
    java.write(twin, SCHEMA, rows, **options)
    java.write(
        sealed, SCHEMA, rows, footer_key=footer_key, algorithm=case["algorithm"],
        plaintext_footer=case["footer"] == "plaintext",
        aad_prefix=None if case["prefix"] == "none" else PREFIX,
        store_aad_prefix=case["prefix"] != "unstored", **layout, **options,
    )  # fmt: skip

    plain = open_with(
        tmp_path / "plain.parquet", sealed, footer_key=footer_key,
        column_keys=layout.get("column_keys", {}), accept_algorithms=[case["algorithm"]],
        aad_prefix=PREFIX if case["prefix"] == "unstored" else None,
    )  # fmt: skip

    assert java.read_text(plain, verify_crc=True) == java.read_text(twin)
    assert java.column_indexes(plain) == java.column_indexes(twin)
    assert pq.read_table(plain).equals(pq.read_table(twin))
    assert modules_of(plain.read_bytes()) == modules_of(twin.read_bytes())


def test_a_key_retriever_gets_parquet_javas_key_metadata(java: ParquetJava, tmp_path: Path) -> None:
    sealed, twin = tmp_path / "sealed.parquet", tmp_path / "twin.parquet"
    keys = {b"kf": FOOTER_KEY, b"\x00\xff kc": COLUMN_KEY, b"k" * 3000: OTHER_KEY}
    java.write(twin, SCHEMA, java_rows(20))
    for plaintext_footer in (False, True):
        java.write(
            sealed, SCHEMA, java_rows(20), footer_key=FOOTER_KEY, footer_key_metadata=b"kf",
            column_keys={"id": COLUMN_KEY, "address.zip": OTHER_KEY},
            column_key_metadata={"id": b"\x00\xff kc", "address.zip": b"k" * 3000},
            plaintext_footer=plaintext_footer,
        )  # fmt: skip
        plain = open_with(tmp_path / "plain.parquet", sealed, key_retriever=keys.get)
        assert java.read_text(plain) == java.read_text(twin)
        with pytest.raises(mc.errors.KeyNotFoundError) as caught:
            open_with(plain, sealed, key_retriever={b"kf": FOOTER_KEY}.get)
        assert caught.value.column == "id"


@pytest.mark.parametrize("footer", FOOTERS)
def test_we_refuse_parquet_javas_file_with_a_wrong_or_missing_prefix(
    java: ParquetJava, tmp_path: Path, footer: str
) -> None:
    sealed, plain = tmp_path / "sealed.parquet", tmp_path / "plain.parquet"
    java.write(
        sealed, SCHEMA, java_rows(5), footer_key=FOOTER_KEY, aad_prefix=PREFIX,
        store_aad_prefix=False, plaintext_footer=footer == "plaintext",
    )  # fmt: skip
    with pytest.raises(mc.errors.AadPrefixError, match="does not store"):
        open_with(plain, sealed, footer_key=FOOTER_KEY)
    with pytest.raises((mc.errors.TagMismatchError, mc.errors.FooterSignatureError)):
        open_with(plain, sealed, footer_key=FOOTER_KEY, aad_prefix=PREFIX + b"x")
    java.write(sealed, SCHEMA, java_rows(5), footer_key=FOOTER_KEY, aad_prefix=PREFIX)
    with pytest.raises(mc.errors.AadPrefixError, match="another"):
        open_with(plain, sealed, footer_key=FOOTER_KEY, aad_prefix=PREFIX + b"x")
    assert not plain.exists()


def test_columns_without_a_key_are_dropped_from_parquet_javas_file(
    java: ParquetJava, tmp_path: Path
) -> None:
    sealed, twin = tmp_path / "sealed.parquet", tmp_path / "twin.parquet"
    keys: dict[Column, bytes] = {**dict.fromkeys(ADDRESS, COLUMN_KEY), "id": OTHER_KEY}
    java.write(twin, SCHEMA, java_rows(40), page_row_count_limit=7)
    java.write(
        sealed, SCHEMA, java_rows(40), footer_key=FOOTER_KEY, column_keys=keys,
        page_row_count_limit=7,
    )  # fmt: skip
    plain = open_with(
        tmp_path / "plain.parquet", sealed, footer_key=FOOTER_KEY, column_keys={"id": OTHER_KEY},
        on_missing_key="drop",
    )  # fmt: skip
    rest = [name for name in LEAVES if not name.startswith("address")]
    assert java.read_text(plain) == java.read_text(twin, columns=rest)


# --- files that parquet-java wrote, through us and back ------------------------------------------


@each_case("case", pairwise(
    layout=("uniform", "columns"), algorithm=ALGORITHMS, footer=FOOTERS, version=("v1", "v2"),
    codec=("UNCOMPRESSED", "ZSTD"), dictionary=(True, False), checksum=(True, False),
    bloom=(False, True), shape=("small", "empty", "row groups", "pages"),
), ids=case_name, quick=each_value)  # fmt: skip
def test_parquet_java_reads_its_own_file_after_we_encrypted_it(
    java: ParquetJava, tmp_path: Path, case: Case
) -> None:
    plain, sealed = tmp_path / "plain.parquet", tmp_path / "sealed.parquet"
    rows = java_rows(0 if case["shape"] == "empty" else 50)
    java.write(plain, SCHEMA, rows, **java_writer_options(case))
    keys = {} if case["layout"] == "uniform" else {"id": COLUMN_KEY, "address": OTHER_KEY}
    java_keys = {"id": COLUMN_KEY, **dict.fromkeys(ADDRESS, OTHER_KEY)} if keys else {}

    seal(
        sealed, plain, column_keys=keys, plaintext_footer=case["footer"] == "plaintext",
        encryption_algorithm=case["algorithm"],
    )  # fmt: skip

    how: dict[str, Any] = {"footer_key": FOOTER_KEY, "column_keys": java_keys, "verify_crc": True}
    assert java.read_text(sealed, **how) == java.read_text(plain)
    assert java.read(sealed, **how) == rows
    assert java.column_indexes(sealed, **how) == java.column_indexes(plain)

    back = io.BytesIO()
    mc.decrypt_parquet(sealed, back, mc.FileDecryptionProperties(
        footer_key=FOOTER_KEY, column_keys=keys, accept_algorithms=[case["algorithm"]]
    ))  # fmt: skip
    assert back.getvalue() == plain.read_bytes()


def test_an_empty_table_has_no_row_group_in_parquet_java_and_one_in_pyarrow(
    java: ParquetJava, tmp_path: Path
) -> None:
    java.write(tmp_path / "java.parquet", SCHEMA, [])
    write_plain(tmp_path / "pyarrow.parquet", small_table().slice(0, 0))
    for name, groups in (("java", 0), ("pyarrow", 1)):
        plain = tmp_path / f"{name}.parquet"
        assert len(footer_of(plain.read_bytes())[4]) == groups
        sealed = seal(tmp_path / "sealed.parquet", plain)
        assert java.read_text(sealed, footer_key=FOOTER_KEY) == ""
        assert pq.read_table(
            open_with(tmp_path / "back.parquet", sealed, footer_key=FOOTER_KEY)
        ).equals(pq.read_table(plain))


@pytest.mark.parametrize("footer", FOOTERS)
def test_parquet_java_reads_chunks_whose_encodings_name_a_dictionary_that_is_not_there(
    java: ParquetJava, tmp_path: Path, footer: str
) -> None:
    """Impala writes such footers, without encoding statistics."""
    plain, sealed = tmp_path / "plain.parquet", tmp_path / "sealed.parquet"

    def like_impala(metadata: Any) -> None:
        for row_group in metadata.row_groups:
            for chunk in row_group.columns:
                chunk.meta_data.encoding_stats = None
                chunk.meta_data.encodings = [2, 3, 0]  # PLAIN_DICTIONARY, RLE, PLAIN

    pq.write_table(small_table(), plain, use_dictionary=["name"], row_group_size=20)
    plain.write_bytes(forging.edit_plain(plain.read_bytes(), like_impala))
    how: dict[str, Any] = {"footer_key": FOOTER_KEY, "column_keys": {"id": COLUMN_KEY}}
    seal(sealed, plain, column_keys={"id": COLUMN_KEY}, plaintext_footer=footer == "plaintext")
    assert java.read_text(sealed, **how) == java.read_text(plain)

    again, keys = tmp_path / "again.parquet", {"id": COLUMN_KEY}
    reader = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, column_keys=keys)
    writer = mc.FileEncryptionProperties(footer_key=OTHER_KEY, column_keys=keys)
    mc.rekey_parquet(sealed, again, reader, writer)
    assert java.read_text(again, **how | {"footer_key": OTHER_KEY}) == java.read_text(plain)


@pytest.mark.parametrize("footer", FOOTERS)
def test_parquet_java_ignores_what_restores_every_byte(
    java: ParquetJava, tmp_path: Path, footer: str
) -> None:
    plain, sealed = tmp_path / "plain.parquet", tmp_path / "sealed.parquet"
    write_plain(plain, small_table())
    body, tail, magic = forging.split_tail(plain.read_bytes())
    plain.write_bytes(forging.join_tail(body + b"a writer's padding", tail, magic))
    seal(sealed, plain, column_keys={"id": COLUMN_KEY}, plaintext_footer=footer == "plaintext")
    how: dict[str, Any] = {"footer_key": FOOTER_KEY, "column_keys": {"id": COLUMN_KEY}}
    assert java.read_text(sealed, **how) == java.read_text(plain)
    reader = mc.FileDecryptionProperties(**how)
    back = io.BytesIO()
    mc.decrypt_parquet(sealed, back, reader)
    assert back.getvalue() == plain.read_bytes()

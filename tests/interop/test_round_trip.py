"""decrypt(encrypt(f)) gives f back byte for byte, for every writer and option."""

from __future__ import annotations

import datetime
import decimal
import io
import itertools
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.cases import each_case
from tests.support.forging import plain_file
from tests.support.in_memory import decrypt, encrypt
from tests.support.java.parquet_java import ParquetJava
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.pairwise import Case, case_name, pairwise
from tests.support.parquet_parser import footer_of, modules_of
from tests.support.randomness import examples
from tests.support.shared_vectors import shared_vectors
from tests.support.tables import nested_table, small_table

PREFIX = b"employees_23May2018.part0"
ALGORITHMS = ("AES_GCM_V1", "AES_GCM_CTR_V1")

MODES: dict[str, Sequence[Any]] = {
    "algorithm": ALGORITHMS, "footer": ("encrypted", "plaintext"),
    "prefix": ("none", "stored", "unstored"), "levels": ("encrypted", "plaintext"),
    "keys": ("uniform", "first column", "first column plaintext"), "metadata": (False, True),
}  # fmt: skip


def modes_of(number: int) -> list[Case]:
    """Return three modes with all values of each axis; how they combine depends on the number."""
    return [
        {
            name: values[(turn + number // place) % len(values)]
            for place, (name, values) in enumerate(MODES.items(), 1)
        }
        for turn in range(3)
    ]


PAIRED_MODES = [mode for number in range(10) for mode in modes_of(number)]


def test_every_value_of_a_mode_meets_every_other() -> None:
    for name, other in itertools.combinations(MODES, 2):
        met = {(mode[name], mode[other]) for mode in PAIRED_MODES}
        assert met == set(itertools.product(MODES[name], MODES[other]))


def there_and_back(plain: bytes, mode: Case, first_column: str) -> bytes:
    keys = {first_column: COLUMN_KEY} if mode["keys"] == "first column" else {}
    sealed = encrypt(
        plain,
        footer_key=FOOTER_KEY,
        column_keys=keys,
        plaintext_columns=[first_column] if mode["keys"] == "first column plaintext" else [],
        footer_key_metadata=b"kf" if mode["metadata"] else None,
        column_key_metadata=dict.fromkeys(keys, b"kc") if mode["metadata"] else {},
        plaintext_footer=mode["footer"] == "plaintext",
        encryption_algorithm=mode["algorithm"],
        aad_prefix=None if mode["prefix"] == "none" else PREFIX,
        store_aad_prefix=mode["prefix"] != "unstored",
        data_page_v2_levels=mode["levels"],
    )
    assert sealed != plain
    return decrypt(
        sealed,
        footer_key=FOOTER_KEY,
        column_keys=keys,
        accept_algorithms=[mode["algorithm"]],
        aad_prefix=None if mode["prefix"] == "none" else PREFIX,
    )


def check_bytes(plain: bytes, modes: Sequence[Case] = ()) -> None:
    first_column = pq.read_schema(io.BytesIO(plain)).names[0]
    for mode in modes or modes_of(zlib.crc32(plain)):
        assert there_and_back(plain, mode, first_column) == plain, mode


# --- PyArrow -------------------------------------------------------------------------------------


def rich_table() -> pa.Table:
    """Return small_table plus types that only some writer options affect."""
    moments = [datetime.datetime(2026, 1, 1) + datetime.timedelta(hours=n) for n in range(60)]
    table = small_table(60)
    extra = {
        "moment": pa.array(moments, pa.timestamp("us")),
        "zoned": pa.array(moments, pa.timestamp("ms", "UTC")),
        "time": pa.array([datetime.time(n % 24, n) for n in range(60)], pa.time64("us")),
        "code": pa.array([f"{n:04}".encode() for n in range(60)], pa.binary(4)),
        "small": pa.array([n % 5 for n in range(60)], pa.int32()),
        "half": pa.array([n / 4 for n in range(60)], pa.float32()),
        "category": pa.array([f"c{n % 3}" for n in range(60)]).dictionary_encode(),
        "nothing": pa.nulls(60),
        "wide": pa.array([decimal.Decimal(n) ** 9 for n in range(60)], pa.decimal256(50, 0)),
        "map": pa.array([[("k", n)] * (n % 3) for n in range(60)], pa.map_(pa.string(), pa.int8())),
    }
    for name, column in extra.items():
        table = table.append_column(name, column)
    return table


CODECS = ("none", "snappy", "gzip", "brotli", "zstd", "lz4")
DELTAS = {
    "id": "DELTA_BINARY_PACKED", "name": "DELTA_BYTE_ARRAY", "code": "BYTE_STREAM_SPLIT",
    "address.zip": "DELTA_LENGTH_BYTE_ARRAY",
}  # fmt: skip
PYARROW_OPTIONS: list[dict[str, Any]] = [
    {},
    *({"compression": codec} for codec in CODECS),
    {"compression": {"id": "zstd", "name": "gzip"}, "compression_level": {"id": 3, "name": 6}},
    {"row_group_size": 7},
    *({"version": version} for version in ("1.0", "2.4", "2.6")),
    {"use_dictionary": False},
    {"use_dictionary": ["name"]},
    {"write_statistics": False},
    {"write_statistics": ["id"]},
    {"use_deprecated_int96_timestamps": True},
    {"coerce_timestamps": "ms", "allow_truncated_timestamps": True},
    {"flavor": "spark"},
    {"use_byte_stream_split": ["score", "half"], "use_dictionary": False},
    {"use_dictionary": False, "column_encoding": DELTAS},
    {"use_dictionary": False, "column_encoding": DELTAS, "data_page_version": "2.0"},
    {"use_compliant_nested_type": False},
    {"dictionary_pagesize_limit": 40, "write_batch_size": 5},
    {"store_schema": False},
    {"sorting_columns": [pq.SortingColumn(0)]},
    {"store_decimal_as_integer": True},
    {"write_time_adjusted_to_utc": True},
    {"bloom_filter_options": {"id": {"ndv": 60}, "name": True, "address.zip": {"fpp": 0.1}}},
    {"use_content_defined_chunking": True},
    {"use_content_defined_chunking": {"min_chunk_size": 64, "max_chunk_size": 256}},
    *(
        {
            "data_page_version": version,
            "write_page_index": index,
            "write_page_checksum": checksum,
            "max_rows_per_page": 5,
            "write_batch_size": 5,
        }
        for version in ("1.0", "2.0")
        for index in (False, True)
        for checksum in (False, True)
    ),
]


def option_names(options: dict[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in options.items())[:80] or "default"


@each_case("options", PYARROW_OPTIONS, ids=option_names)
def test_pyarrows_files_come_back_byte_for_byte(options: dict[str, Any]) -> None:
    check_bytes(plain_file(rich_table(), **options))


@each_case("options", PYARROW_OPTIONS, ids=option_names)
def test_pyarrows_files_without_rows_come_back_byte_for_byte(options: dict[str, Any]) -> None:
    check_bytes(plain_file(rich_table().slice(0, 0), **options))


def test_pyarrows_other_shapes_come_back_byte_for_byte(tmp_path: Path) -> None:
    no_columns = pa.table({"x": [1]}).select([])
    no_groups = tmp_path / "no_groups.parquet"
    pq.ParquetWriter(no_groups, small_table().schema).close()
    with_metadata = small_table().replace_schema_metadata({"owner": "ünï", "empty": ""})
    check_bytes(no_groups.read_bytes())
    check_bytes(plain_file(with_metadata))
    check_bytes(plain_file(nested_table(), max_rows_per_page=5, write_batch_size=5), PAIRED_MODES)
    check_bytes(plain_file(pa.table({"x": pa.array(range(300_000))}), write_page_index=True))
    plain = plain_file(no_columns)
    assert decrypt(encrypt(plain, footer_key=FOOTER_KEY), footer_key=FOOTER_KEY) == plain


# --- other writers -------------------------------------------------------------------------------


@each_case("options", [
    "", "COMPRESSION uncompressed", "COMPRESSION zstd", "COMPRESSION gzip", "COMPRESSION brotli",
    "COMPRESSION lz4_raw", "PARQUET_VERSION v2", "ROW_GROUP_SIZE 2048",
    "BLOOM_FILTER_FALSE_POSITIVE_RATIO 0.001", "DICTIONARY_SIZE_LIMIT 1",
    "KV_METADATA {owner: 'us'}",
])  # fmt: skip
def test_duckdbs_files_come_back_byte_for_byte(tmp_path: Path, options: str) -> None:
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "plain.parquet"
    query = """
        SELECT range AS id, 'name-' || range % 10 AS name, range % 7 = 0 AS flag,
               CASE WHEN range % 5 > 0 THEN range / 8 END AS score,
               [range, NULL, range % 3][: range % 4] AS numbers,
               {'zip': 'z' || range, 'at': TIMESTAMP '2026-01-01' + INTERVAL (range) HOUR} AS place
        FROM range(5000)"""
    with duckdb.connect() as connection:
        more = f", {options}" if options else ""
        for rows in ("", " LIMIT 0"):
            connection.execute(f"COPY ({query}{rows}) TO '{path}' (FORMAT parquet{more})")
            check_bytes(path.read_bytes())


@each_case("options", [
    {}, {"compression": "uncompressed"}, {"compression": "snappy"}, {"compression": "gzip"},
    {"compression": "brotli"}, {"compression": "lz4"}, {"statistics": "full"},
    {"statistics": False}, {"row_group_size": 7}, {"data_page_size": 100},
    {"metadata": {"owner": "us"}},
], ids=option_names)  # fmt: skip
def test_polars_files_come_back_byte_for_byte(options: dict[str, Any]) -> None:
    pl = pytest.importorskip("polars")
    for table in (small_table(60), nested_table()):
        out = io.BytesIO()
        pl.from_arrow(table).write_parquet(out, **options)
        check_bytes(out.getvalue())
    out = io.BytesIO()
    pl.from_arrow(small_table(60)).clear().write_parquet(out, **options)
    check_bytes(out.getvalue())


def test_a_copy_of_a_polars_files_statistics_is_kept_under_lock() -> None:
    pl = pytest.importorskip("polars")
    out = io.BytesIO()
    smallest = "the smallest of all names"
    pl.DataFrame({"name": [smallest, "the tallest of all names"]}).write_parquet(out)
    plain = out.getvalue()
    assert smallest.encode() in behind_the_pages(plain)
    sealed = encrypt(plain, footer_key=FOOTER_KEY)
    assert smallest.encode() not in sealed
    assert decrypt(sealed, footer_key=FOOTER_KEY) == plain


def behind_the_pages(plain: bytes) -> bytes:
    """Return the bytes between the only chunk and its first index."""
    chunk = footer_of(plain)[4][0][1][0]
    start = chunk[3].get(11) or chunk[3][9]
    return plain[start + chunk[3][7] : min(chunk[4], chunk[6])]


JAVA_SCHEMA = """
message rows {
  required int64 id;
  optional binary name (STRING);
  repeated int32 plain_list;
  optional group tags (LIST) { repeated group list { optional binary element (STRING); } }
}
"""


@each_case("case", pairwise(
    version=("v1", "v2"), codec=("UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD", "LZ4_RAW"),
    dictionary=(True, False), checksum=(True, False), bloom=(False, True),
    shape=("plain", "empty", "row groups", "pages"),
), ids=case_name)  # fmt: skip
def test_parquet_javas_files_come_back_byte_for_byte(
    java: ParquetJava, tmp_path: Path, case: Case
) -> None:
    rows = [
        {
            "id": n,
            "name": None if n % 4 == 0 else f"name-{n % 6}",
            "plain_list": list(range(n % 3)),
            "tags": None if n % 5 == 0 else {"list": [{"element": f"t{n}"}, {}][: n % 3]},
        }
        for n in range(0 if case["shape"] == "empty" else 60)
    ]
    path = tmp_path / "plain.parquet"
    java.write(
        path, JAVA_SCHEMA, rows, page_version=case["version"], codec=case["codec"],
        dictionary=case["dictionary"], page_checksums=case["checksum"],
        bloom_columns=["id", "name"] if case["bloom"] else [],
        row_group_row_count_limit=13 if case["shape"] == "row groups" else None,
        page_row_count_limit=7 if case["shape"] == "pages" else None,
    )  # fmt: skip
    check_bytes(path.read_bytes())


def twins() -> list[Any]:
    root = os.environ.get("MODCRYPT_SHARED_VECTORS")
    files = sorted(Path(root).glob("*/twins/*.parquet")) if root else [Path("no folder")]
    return [pytest.param(path, id="/".join(path.parts[-3:])) for path in files]


@each_case("path", twins())
def test_twins_of_parquet_java_spark_and_pyarrow_come_back_byte_for_byte(path: Path) -> None:
    shared_vectors()
    check_bytes(path.read_bytes())


# --- property ------------------------------------------------------------------------------------

SCALARS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint32(), st.integers(0, 2**32 - 1)),
    (pa.bool_(), st.booleans()),
    (pa.float64(), st.floats()),
    (pa.string(), st.text(max_size=20)),
    (pa.large_binary(), st.binary(max_size=40)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.date32(), st.dates()),
    (pa.decimal128(7, 2), st.integers(-(10**6), 10**6).map(lambda n: decimal.Decimal(n) / 100)),
]
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)


@st.composite
def columns(draw: st.DrawFn, rows: int, depth: int = 0) -> pa.Array:
    """Draw a column: scalars, lists and structs, with nulls anywhere."""
    kind, values = draw(st.sampled_from(SCALARS))
    nullable = draw(st.booleans())
    values = st.none() | values if nullable else values
    shape = draw(st.sampled_from(["flat", "flat", "list", "struct", "map"]))
    if shape == "list":
        kind, values = pa.list_(kind), st.lists(values, max_size=4) | st.none()
    elif shape == "struct":
        names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
        kind = pa.struct([(name, kind) for name in names])
        values = st.fixed_dictionaries(dict.fromkeys(names, values)) | st.none()
    elif shape == "map":
        kind = pa.map_(pa.int16(), kind)
        values = st.lists(st.tuples(st.integers(0, 9), values), max_size=3)
    return pa.array(draw(st.lists(values, min_size=rows, max_size=rows)), kind)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    rows = draw(st.integers(0, 30))
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    return pa.table({name: draw(columns(rows)) for name in names})


OPTIONS = st.fixed_dictionaries(
    {
        "compression": st.sampled_from(CODECS),
        "data_page_version": st.sampled_from(["1.0", "2.0"]),
        "use_dictionary": st.booleans(),
        "write_page_index": st.booleans(),
        "write_page_checksum": st.booleans(),
        "row_group_size": st.integers(1, 40),
        "max_rows_per_page": st.integers(1, 20),
        "write_batch_size": st.integers(1, 20),
        "dictionary_pagesize_limit": st.integers(1, 200),
        "version": st.sampled_from(["1.0", "2.6"]),
    }
)
PROPERTIES = st.fixed_dictionaries(
    {
        "footer_key": st.sampled_from([16, 24, 32]).map(lambda size: bytes(range(1, size + 1))),
        "encryption_algorithm": st.sampled_from(ALGORITHMS),
        "plaintext_footer": st.booleans(),
        "aad_prefix": st.none() | st.binary(min_size=1, max_size=20),
        "store_aad_prefix": st.booleans(),
        "data_page_v2_levels": st.sampled_from(["encrypted", "plaintext"]),
    }
)


def reader_of(properties: dict[str, Any]) -> dict[str, Any]:
    names = ("footer_key", "aad_prefix", "column_keys")
    return {name: properties[name] for name in names if properties.get(name)} | {
        "accept_algorithms": [properties["encryption_algorithm"]]
    }


quickly = settings(max_examples=examples(150), suppress_health_check=list(HealthCheck))


@quickly
@given(tables(), OPTIONS, PROPERTIES, st.data())
def test_any_table_with_any_options_and_keys_comes_back_byte_for_byte(
    table: pa.Table, options: dict[str, Any], properties: dict[str, Any], data: st.DataObject
) -> None:
    plain = plain_file(table, **options)
    names = st.lists(st.sampled_from(table.column_names), unique=True)
    keyed, bare = data.draw(names), data.draw(names)
    properties["column_keys"] = dict.fromkeys(keyed, OTHER_KEY)
    properties["plaintext_columns"] = [name for name in bare if name not in keyed]
    sealed = encrypt(plain, **properties)
    assert decrypt(sealed, **reader_of(properties)) == plain


@quickly
@given(tables(), OPTIONS, PROPERTIES)
def test_any_table_that_we_seal_is_read_by_pyarrow_and_shows_no_page(
    table: pa.Table, options: dict[str, Any], properties: dict[str, Any]
) -> None:
    plain = plain_file(table, **options)
    sealed = encrypt(plain, **(properties | {"data_page_v2_levels": "encrypted"}))
    how = {name: properties[name] for name in ("footer_key", "aad_prefix")}
    decryption = pe.create_decryption_properties(**how)
    read = pq.read_table(io.BytesIO(sealed), decryption_properties=decryption)
    assert repr(read.to_pydict()) == repr(table.to_pydict())  # a NaN equals none
    for part in modules_of(plain)["parts"].values():
        assert all(body not in sealed for _, body in part["pages"] if len(body) >= 12)


@quickly
@given(tables(), OPTIONS, PROPERTIES)
def test_any_table_that_pyarrow_seals_is_decrypted_to_its_plaintext_file(
    table: pa.Table, options: dict[str, Any], properties: dict[str, Any]
) -> None:
    del properties["data_page_v2_levels"]
    encryption = pe.create_encryption_properties(**properties)
    plain = decrypt(
        plain_file(table, encryption_properties=encryption, **options), **reader_of(properties)
    )
    ours, theirs = modules_of(plain), modules_of(plain_file(table, **options))
    for row_group in ours["footer"][4]:
        del row_group[7]  # PyArrow writes RowGroup.ordinal into encrypted files alone
    assert ours == theirs


@quickly
@given(tables(), OPTIONS, PROPERTIES, st.data())
def test_columns_dropped_from_any_table_leave_the_others_as_pyarrow_reads_them(
    table: pa.Table, options: dict[str, Any], properties: dict[str, Any], data: st.DataObject
) -> None:
    some = st.lists(st.sampled_from(table.column_names), unique=True)
    dropped = data.draw(some.filter(lambda names: len(names) < table.num_columns))
    properties["column_keys"] = dict.fromkeys(dropped, OTHER_KEY)
    sealed = encrypt(plain_file(table, **options), **properties)
    del properties["column_keys"]
    rest = decrypt(sealed, on_missing_key="drop", **reader_of(properties))
    expected = table.drop_columns(dropped).to_pydict()
    assert repr(pq.read_table(io.BytesIO(rest)).to_pydict()) == repr(expected)

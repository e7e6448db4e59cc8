"""Arrow tables to encrypted Parquet, held against PyArrow's own writer with the same options."""

from __future__ import annotations

import gc
import io
import json
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

import modcrypt as mc
from modcrypt.module_ids import ModuleType
from modcrypt.parquet.arrow import writer
from modcrypt.parquet.arrow.writer import ParquetWriter, write_table
from modcrypt.parquet.convert import encryption_plan
from modcrypt.parquet.convert.encryptor import Encryption
from modcrypt.runtime.code_form import code_form
from tests.support.cases import each_case
from tests.support.forging import decrypt_bytes, encrypt_bytes, plain_file
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.module_spans import list_modules
from tests.support.tables import read_with_pyarrow, small_table
from tests.support.unfinished_files import unfinished_files

UNIFORM = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
READER = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
NUMBERS = pa.schema([("n", pa.int64())])


def numbers(start: int, stop: int) -> pa.Table:
    return pa.table({"n": pa.array(range(start, stop), pa.int64())})


def batch(start: int, stop: int) -> pa.RecordBatch:
    return numbers(start, stop).to_batches()[0]


def write_file(table: pa.Table, encryption: mc.FileEncryptionProperties, **options: Any) -> bytes:
    out = io.BytesIO()
    write_table(table, out, encryption, **options)
    return out.getvalue()


@pytest.mark.parametrize("data_page_version", ["1.0", "2.0"])
def test_nulls_of_structs_count_in_the_dictionaries_in_them(data_page_version: str) -> None:
    """PyArrow does not count them; filters of readers would not find the rows."""
    text = pa.array(["a", None, "b", "a", None, "b"])
    plain = pa.array([False, False, True, True, False, False])
    twice = pa.array([True, False, False, True, False, False])

    def nest(inner: pa.Array) -> pa.Table:
        struct = pa.StructArray.from_arrays([inner, text], ["d", "t"], mask=plain)
        return pa.table({"s": pa.StructArray.from_arrays([struct], ["r"], mask=twice)})

    table = nest(text.dictionary_encode())
    options: dict[str, Any] = {"data_page_version": data_page_version, "write_page_index": True}
    for part, nulls in ((table, 5), (table.slice(2, 3), 3)):
        data = write_file(part, UNIFORM, **options)
        assert mc.verify_parquet(data, READER).ok
        assert mc.read_table(data, READER).to_pylist() == part.to_pylist()
        metadata = pq.read_metadata(io.BytesIO(decrypt_bytes(data, READER)))
        counts = [metadata.row_group(0).column(c).statistics.null_count for c in (0, 1)]
        assert counts == [nulls, nulls]


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_nulls_around_dictionaries_are_found_though_pyarrow_did_not_count_them(
    version: str,
) -> None:
    text = pa.array(["a", "b", "c"]).dictionary_encode()
    struct = pa.StructArray.from_arrays([text], ["d"], mask=pa.array([False, True, False]))
    cases: tuple[dict[str, Any], ...] = ({}, {"row_group_size": 1}, {"max_rows_per_page": 1})
    for options in cases:
        table = pa.table({"s": struct, "l": pa.ListArray.from_arrays([0, 0, 2, 3], struct)})
        options |= {"store_schema": False, "write_page_index": True, "data_page_version": version}
        data = encrypt_bytes(plain_file(table, **options), UNIFORM)
        assert not mc.verify_parquet(data, READER).findings
        for how, value, wanted in (("is null", None, 1), ("not in", ["a"], 2), ("=", "b", 0)):
            rows = mc.read_table(data, READER, filters=[(("s", "d"), how, value)])
            assert rows.num_rows == wanted


def row_group_sizes(path: Path) -> list[int]:
    keys = pe.create_decryption_properties(footer_key=FOOTER_KEY)
    metadata = pq.read_metadata(path, decryption_properties=keys)
    return [metadata.row_group(r).num_rows for r in range(metadata.num_row_groups)]


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()], ids=str)
def test_values_that_dictionaries_repeat_are_written_once(kind: pa.DataType) -> None:
    def nest(values: list[str], indices: list[int | None]) -> list[pa.Array]:
        flat = pa.DictionaryArray.from_arrays(
            pa.array(indices, pa.int8()), pa.array(values, kind), ordered=True
        )
        offsets = pa.array([0, 1, 1, 3, 4], pa.int32())
        return [
            flat,
            pa.StructArray.from_arrays([flat], ["s"]),
            pa.ListArray.from_arrays(offsets, flat),
            pa.LargeListViewArray.from_arrays(pa.array([0, 1, 1, 3]), pa.array([1, 0, 2, 1]), flat),
            pa.FixedSizeListArray.from_arrays(pa.concat_arrays([flat, flat]), 2),
            pa.MapArray.from_arrays(offsets, pa.array([1, 2, 3, 4]), flat),
        ]

    names = list("abcdef")
    repeated = pa.table(nest(["x", "y", "x"], [0, 1, 2, None]), names)
    distinct = pa.table(nest(["x", "y"], [0, 1, 0, None]), names)
    for table in (repeated, pa.concat_tables([distinct, repeated])):
        data = write_file(table, UNIFORM, threads=1)
        read = mc.read_table(data, READER)
        assert read.schema == table.schema
        assert read.to_pylist() == table.to_pylist()
    wanted = plain_file(distinct)
    assert decrypt_bytes(write_file(repeated, UNIFORM), READER) == wanted
    out = io.BytesIO()
    with ParquetWriter(out, repeated.schema, UNIFORM) as writer:
        for part in repeated.to_batches(max_chunksize=2):
            writer.write(part)
    assert len(decrypt_bytes(out.getvalue(), READER)) <= len(wanted)


def test_dictionaries_with_nulls_are_refused_by_name() -> None:
    values = pa.array(["a", "a", None])
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.int8()), values)
    with pytest.raises(pa.ArrowNotImplementedError, match="null encoded in dictionary"):
        write_file(pa.table({"x": column}), UNIFORM)


# --- as PyArrow writes it -------------------------------------------------------------------------


def stamps() -> pa.Table:
    at = pa.array([None if n % 9 == 0 else 1_000_000 * n for n in range(100)], pa.timestamp("us"))
    return pa.table({"at": at, "id": range(100), "spaced name": pa.array(["x", "y"] * 50)})


OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "uncompressed": {"compression": "none"},
    "a codec for each column": {"compression": {"id": "gzip", "name": "zstd", "price": "none"}},
    "level": {"compression": "zstd", "compression_level": 9},
    "dictionary columns": {"use_dictionary": ["name", "day"]},
    "dictionary pages": {"dictionary_pagesize_limit": 64, "write_batch_size": 8},
    "no dictionary": {"use_dictionary": False},
    "small pages": {"data_page_size": 64, "write_batch_size": 4},
    "rows of pages": {"max_rows_per_page": 5},
    "data pages V2": {"data_page_version": "2.0"},
    "page index": {"write_page_index": True, "max_rows_per_page": 5},
    "page checksums": {"write_page_checksum": True},
    "sorted": {"sorting_columns": [pq.SortingColumn(0), pq.SortingColumn(1, descending=True)]},
    "no Arrow schema": {"store_schema": False},
    "some statistics": {"write_statistics": ["id"]},
    "no statistics": {"write_statistics": False},
    "encodings": {
        "use_dictionary": False,
        "column_encoding": {"id": "DELTA_BINARY_PACKED", "name": "DELTA_BYTE_ARRAY"},
    },
    "split streams": {"use_dictionary": False, "use_byte_stream_split": ["score"]},
    "version": {"version": "1.0"},
    "integers for decimals": {"store_decimal_as_integer": True},
    "old lists": {"use_compliant_nested_type": False},
    "chunking": {"use_content_defined_chunking": True},
    "many": {
        "data_page_version": "2.0",
        "write_page_index": True,
        "write_page_checksum": True,
        "compression": "zstd",
        "max_rows_per_page": 7,
    },
}
STAMP_OPTIONS: dict[str, dict[str, Any]] = {
    "Spark": {"flavor": "spark"},
    "int96": {"use_deprecated_int96_timestamps": True},
    "coerced": {"coerce_timestamps": "ms"},
    "coerced and truncated": {"coerce_timestamps": "ms", "allow_truncated_timestamps": True},
    "adjusted to UTC": {"write_time_adjusted_to_utc": True},
    "memory pool": {"memory_pool": pa.system_memory_pool()},
}
CASES: dict[str, tuple[Callable[[], pa.Table], dict[str, Any]]] = {
    **{name: (lambda: small_table(100), options) for name, options in OPTIONS.items()},
    **{name: (stamps, options) for name, options in STAMP_OPTIONS.items()},
}


@each_case("threads", [1, 2])
@each_case("name", CASES)
def test_decrypted_it_is_the_very_file_that_pyarrow_writes(name: str, threads: int) -> None:
    make, options = CASES[name]
    plain = plain_file(make(), row_group_size=30, **options)
    sealed = write_file(make(), UNIFORM, row_group_size=30, threads=threads, **options)
    assert sealed[:4] == sealed[-4:] == b"PARE"
    assert decrypt_bytes(sealed, READER) == plain


@each_case("name", CASES)
def test_pyarrow_reads_the_same_table_with_its_own_decryption(name: str, tmp_path: Path) -> None:
    make, options = CASES[name]
    path = tmp_path / "sealed"
    write_table(make(), path, UNIFORM, row_group_size=30, **options)
    expected = pq.read_table(io.BytesIO(plain_file(make(), row_group_size=30, **options)))
    table = read_with_pyarrow(path, FOOTER_KEY)
    assert table.equals(expected)
    assert table.schema.equals(expected.schema, check_metadata=True)


@each_case("name", CASES)
def test_pyarrow_sees_the_same_footer_in_the_encrypted_file(name: str) -> None:
    make, options = CASES[name]
    plain = pq.read_metadata(io.BytesIO(plain_file(make(), row_group_size=30, **options)))
    keys = pe.create_decryption_properties(footer_key=FOOTER_KEY)
    file = io.BytesIO(write_file(make(), UNIFORM, row_group_size=30, **options))
    ours = pq.read_metadata(file, decryption_properties=keys)
    assert facts(ours) == facts(plain)
    assert ours.num_row_groups == 4


def facts(metadata: pq.FileMetaData) -> dict[str, Any]:
    """Return the content of a footer without sizes and offsets, which encryption changes."""
    moved = {"total_byte_size", "total_compressed_size", "total_uncompressed_size", "file_offset"}

    def without_places(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                k: without_places(v) if not k.endswith("_offset") else v is not None
                for k, v in value.items()
                if k not in moved
            }
        return [without_places(v) for v in value] if isinstance(value, list) else value

    known: dict[str, Any] = without_places(metadata.to_dict())
    known.pop("serialized_size")
    groups = [metadata.row_group(r) for r in range(metadata.num_row_groups)]
    chunks = [group.column(c) for group in groups for c in range(metadata.num_columns)]
    return known | {
        "sorting": [group.sorting_columns for group in groups],
        "page index": [(chunk.has_column_index, chunk.has_offset_index) for chunk in chunks],
        "key-value": metadata.metadata,
    }


BLOOM = {
    "bloom_filter_options": {"id": {"ndv": 100, "fpp": 0.01}, "name": {"ndv": 20, "fpp": 0.05}},
    "write_page_index": True,
}


def test_a_row_group_with_bloom_filters_is_the_very_one_that_pyarrow_writes() -> None:
    sealed = write_file(small_table(100), UNIFORM, **BLOOM)
    assert decrypt_bytes(sealed, READER) == plain_file(small_table(100), **BLOOM)


@pytest.mark.parametrize("plaintext_columns", [(), ("id",)])
def test_bloom_filters_follow_their_row_group_and_all_indexes_stand_before_the_footer(
    plaintext_columns: tuple[str, ...],
) -> None:
    properties = mc.FileEncryptionProperties(
        footer_key=FOOTER_KEY, plaintext_columns=plaintext_columns
    )
    sealed = write_file(small_table(100), properties, row_group_size=30, threads=2, **BLOOM)
    spans = [
        (span.start, span.module.type, span.module.row_group)
        for span in list_modules(sealed, READER)
    ]
    spans.sort()
    *kinds, last = [kind for _, kind, _ in spans]
    assert last is ModuleType.FOOTER
    column_indexes = [n for n, kind in enumerate(kinds) if kind is ModuleType.COLUMN_INDEX]
    offset_indexes = [n for n, kind in enumerate(kinds) if kind is ModuleType.OFFSET_INDEX]
    count = len(kinds)
    both = len(column_indexes) + len(offset_indexes)
    assert len(offset_indexes) == 4 * (9 - len(plaintext_columns))
    assert column_indexes + offset_indexes == list(range(count - both, count))
    before = [row_group for _, _, row_group in spans[: count - both]]
    assert before == sorted(before, key=lambda r: -1 if r is None else r)
    assert set(before) == {0, 1, 2, 3}
    blooms = [r for _, kind, r in spans if kind is ModuleType.BLOOM_FILTER_BITSET]
    assert blooms == [r for r in range(4) for _ in range(2 - len(plaintext_columns))]


# --- tables ---------------------------------------------------------------------------------------


def deep() -> pa.Table:
    item = pa.struct([("k", pa.int32()), ("m", pa.map_(pa.string(), pa.list_(pa.int64())))])
    maps = [None, [], [("a", None)], [("a", []), ("b", [1, None, -2])]]
    values = [
        None if n % 7 == 0 else [{"k": k, "m": maps[(n + k) % 4]} for k in range(n % 5)]
        for n in range(80)
    ]
    return pa.table({"id": range(80), "deep": pa.array(values, pa.list_(item))})


def chunked_table() -> pa.Table:
    words = pa.chunked_array([["a", "b"], [], ["c"] * 50, [None] * 17])
    return pa.table({"word": words, "n": pa.chunked_array([range(40), range(29)])})


def dictionaries() -> pa.Table:
    """Return chunks whose dictionaries differ."""
    chunks = [pa.array(["a", "b", None] * 10), pa.array(["b", "c"] * 15)]
    return pa.table({"word": pa.chunked_array([chunk.dictionary_encode() for chunk in chunks])})


def extensions() -> pa.Table:
    uuids = pa.ExtensionArray.from_storage(
        pa.uuid(), pa.array([bytes([n]) * 16 for n in range(40)], pa.binary(16))
    )
    return pa.table({"id": uuids, "tensor": pa.array(range(40), pa.int32())})


def views() -> pa.Table:
    return pa.table({
        "text": pa.array(["short", "a string that is too long for a view"] * 20, pa.string_view()),
        "large": pa.array(["x", None] * 20, pa.large_string()),
        "nothing": pa.nulls(40),
        "half": pa.array([1.5] * 40, pa.float16()),
    })  # fmt: skip


TABLES: dict[str, Callable[[], pa.Table]] = {
    "nested": deep,
    "chunked": chunked_table,
    "dictionaries": dictionaries,
    "extensions": extensions,
    "views": views,
    "slice": lambda: small_table(300).slice(33, 90),
    "no rows": lambda: small_table(0),
    "no columns": lambda: pa.table({}),
    "rows of no columns": lambda: small_table(9).select([]),
    "metadata": lambda: small_table().replace_schema_metadata({"who": "Ada", "k": "v" * 300}),
}


@each_case("name", TABLES)
def test_a_table_is_written_as_pyarrow_writes_it(name: str, tmp_path: Path) -> None:
    table, path = TABLES[name](), tmp_path / "sealed"
    plain = plain_file(table, row_group_size=25)
    write_table(table, path, UNIFORM, row_group_size=25)
    assert decrypt_bytes(path.read_bytes(), READER) == plain
    theirs = read_with_pyarrow(path, FOOTER_KEY)
    expected = pq.read_table(io.BytesIO(plain))
    assert theirs.equals(expected)
    assert theirs.schema.equals(expected.schema, check_metadata=True)


def test_row_groups_have_pyarrows_sizes_by_default() -> None:
    table = pa.table({"n": pa.array(range((1 << 20) + 5), pa.int32())})
    assert decrypt_bytes(write_file(table, UNIFORM), READER) == plain_file(table)


@each_case("encryption_algorithm", ["AES_GCM_V1", "AES_GCM_CTR_V1"])
@each_case("plaintext_footer", [False, True])
@each_case("levels", ["encrypted", "plaintext"])
def test_every_kind_of_encryption_gives_pyarrows_file_back(
    encryption_algorithm: str, plaintext_footer: bool, levels: Any
) -> None:
    keys = {"address": COLUMN_KEY, "id": OTHER_KEY}
    encryption = mc.FileEncryptionProperties(
        footer_key=FOOTER_KEY,
        column_keys=keys,
        plaintext_columns=["tags"],
        aad_prefix=b"part-7",
        store_aad_prefix=False,
        plaintext_footer=plaintext_footer,
        encryption_algorithm=encryption_algorithm,
        data_page_v2_levels=levels,
    )
    opening = mc.FileDecryptionProperties(
        footer_key=FOOTER_KEY,
        column_keys=keys,
        aad_prefix=b"part-7",
        accept_algorithms=[encryption_algorithm],
    )
    options: dict[str, Any] = {
        "data_page_version": "2.0",
        "write_page_index": True,
        "row_group_size": 20,
    }
    sealed = write_file(small_table(), encryption, **options)
    assert decrypt_bytes(sealed, opening) == plain_file(small_table(), **options)


def test_pyarrow_reads_the_columns_under_keys_of_their_own(tmp_path: Path) -> None:
    """With its key tools: PyArrow has no other way to give column keys."""
    keys = {b"footer": FOOTER_KEY, b"zip": COLUMN_KEY}

    class Kms(pe.KmsClient):  # type: ignore[misc]  # pyarrow ships no types
        def unwrap_key(self, wrapped_key: str, master_key_identifier: str) -> bytes:
            return keys[master_key_identifier.encode()]

    def material(name: str, **more: Any) -> bytes:
        fields = {"keyMaterialType": "PKMT1", "internalStorage": True, "isFooterKey": bool(more)}
        wrapped = {"masterKeyID": name, "wrappedDEK": "", "doubleWrapping": False}
        return json.dumps(fields | more | wrapped).encode()

    path = tmp_path / "sealed"
    encryption = mc.FileEncryptionProperties(
        footer_key=FOOTER_KEY,
        footer_key_metadata=material("footer", kmsInstanceID="K", kmsInstanceURL="K"),
        column_keys={"address.zip": COLUMN_KEY},
        column_key_metadata={"address.zip": material("zip")},
    )
    write_table(small_table(), path, encryption, row_group_size=7)
    tools = pe.CryptoFactory(lambda _: Kms())
    opening = tools.file_decryption_properties(pe.KmsConnectionConfig())
    assert pq.read_table(path, decryption_properties=opening).equals(small_table())


# --- the streaming writer -------------------------------------------------------------------------


def test_tables_are_row_groups_of_their_own_and_batches_are_gathered(tmp_path: Path) -> None:
    path = tmp_path / "sealed"
    with ParquetWriter(path, NUMBERS, UNIFORM, row_group_size=100) as out:
        out.write_table(numbers(0, 230))
        out.write_table(numbers(230, 240))
        for start in range(240, 600, 40):
            out.write_batch(batch(start, start + 40))
        out.write(numbers(600, 620), row_group_size=15)
        out.write(batch(620, 900))
        out.write(batch(900, 901))
        assert not path.exists()
    assert row_group_sizes(path) == [100, 100, 30, 10, 100, 100, 100, 60, 15, 5, 100, 100, 81]
    assert read_with_pyarrow(path, FOOTER_KEY).equals(numbers(0, 901))


def test_no_row_group_has_more_rows_than_pyarrows_limit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert writer.MAX_ROW_GROUP_ROWS == 64 * 1024 * 1024  # as PyArrow documents it
    monkeypatch.setattr(writer, "MAX_ROW_GROUP_ROWS", 30)
    path = tmp_path / "sealed"
    write_table(numbers(0, 70), path, UNIFORM, row_group_size=1000)
    assert row_group_sizes(path) == [30, 30, 10]


def test_a_batch_may_name_its_own_row_group_size(tmp_path: Path) -> None:
    path = tmp_path / "sealed"
    with ParquetWriter(path, NUMBERS, UNIFORM) as out:
        out.write_batch(batch(0, 50), row_group_size=100)
        out.write_batch(batch(50, 60), row_group_size=20)
        out.write_batch(batch(60, 61))
    assert row_group_sizes(path) == [50, 11]
    assert read_with_pyarrow(path, FOOTER_KEY).equals(numbers(0, 61))


def test_batches_are_gathered_up_to_a_limit_of_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(writer, "GATHERED_BYTES", 800)
    path = tmp_path / "sealed"
    with ParquetWriter(path, NUMBERS, UNIFORM) as out:
        for start in range(0, 500, 50):
            out.write_batch(batch(start, start + 50))  # 400 bytes
    assert row_group_sizes(path) == [100] * 5
    assert read_with_pyarrow(path, FOOTER_KEY).equals(numbers(0, 500))


def test_a_few_rows_of_large_batches_do_not_keep_those_in_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(writer, "GATHERED_BYTES", 4 << 20)
    path, large = tmp_path / "sealed", 1 << 17  # rows of 8 bytes: 1 MiB
    before, most = pa.total_allocated_bytes(), 0
    with ParquetWriter(path, NUMBERS, UNIFORM) as out:
        for start in range(100):
            column = pa.compute.add(pa.nulls(large, pa.int64()).fill_null(start), 0)
            out.write_batch(pa.record_batch([column], schema=NUMBERS).slice(start, 2))
            del column
            most = max(most, pa.total_allocated_bytes() - before)
    assert most < 16 << 20
    assert read_with_pyarrow(path, FOOTER_KEY)["n"].to_pylist() == [n // 2 for n in range(200)]
    assert row_group_sizes(path) == [200]


def test_slices_of_one_table_are_gathered_without_copies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pa, "concat_batches", lambda _: pytest.fail("copied"))
    monkeypatch.setattr(writer, "GATHERED_BYTES", 12_000)
    table = numbers(0, 10_000)  # of 80,000 bytes
    with ParquetWriter(tmp_path / "sealed", NUMBERS, UNIFORM) as out:
        for part in table.to_batches(max_chunksize=7):
            out.write_batch(part)
    assert row_group_sizes(tmp_path / "sealed") == [1505] * 6 + [970]
    assert read_with_pyarrow(tmp_path / "sealed", FOOTER_KEY).equals(table)


def test_gathered_batches_may_have_dictionaries_of_their_own(tmp_path: Path) -> None:
    batches = dictionaries().to_batches()
    with ParquetWriter(tmp_path / "sealed", batches[0].schema, UNIFORM) as out:
        for part in batches:
            out.write_batch(part)
    table = read_with_pyarrow(tmp_path / "sealed", FOOTER_KEY)
    assert row_group_sizes(tmp_path / "sealed") == [60]
    assert table["word"].to_pylist() == dictionaries()["word"].to_pylist()


@pytest.mark.parametrize("empty_batches", [0, 3])
def test_a_writer_that_gets_no_rows_gives_pyarrows_file_of_no_row_groups(
    empty_batches: int,
) -> None:
    out, plain = io.BytesIO(), io.BytesIO()
    with ParquetWriter(out, NUMBERS, UNIFORM) as ours:
        for _ in range(empty_batches):
            ours.write_batch(pa.record_batch([pa.array([], pa.int64())], schema=NUMBERS))
    pq.ParquetWriter(plain, NUMBERS).close()
    assert decrypt_bytes(out.getvalue(), READER) == plain.getvalue()


def test_a_stream_of_tables_and_metadata_is_the_very_file_that_pyarrow_writes() -> None:
    def fill(into: Any) -> None:
        into.write_table(numbers(0, 10))
        into.add_key_value_metadata({"a": "1", b"b": b"\xff"})
        into.write_table(numbers(10, 10))
        into.add_key_value_metadata({"a": "2"})
        into.write_table(numbers(10, 50), row_group_size=16)

    out, plain = io.BytesIO(), io.BytesIO()
    with ParquetWriter(out, NUMBERS, UNIFORM, write_page_index=True) as ours:
        fill(ours)
    with pq.ParquetWriter(plain, NUMBERS, write_page_index=True) as theirs:
        fill(theirs)
    assert decrypt_bytes(out.getvalue(), READER) == plain.getvalue()


def test_column_keys_go_by_the_names_in_the_file(tmp_path: Path) -> None:
    """Flavor "spark" replaces blanks."""
    encryption = mc.FileEncryptionProperties(
        footer_key=FOOTER_KEY, column_keys={"spaced name": COLUMN_KEY}
    )
    with pytest.raises(ValueError, match="the file does not have these columns: spaced name"):
        write_table(stamps(), tmp_path / "a", encryption, flavor="spark")
    keys = {"spaced_name": COLUMN_KEY}
    encryption = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, column_keys=keys)
    sealed = write_file(stamps(), encryption, flavor="spark")
    opening = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, column_keys=keys)
    assert decrypt_bytes(sealed, opening) == plain_file(stamps(), flavor="spark")
    assert list(tmp_path.iterdir()) == []


# --- files ----------------------------------------------------------------------------------------


def test_close_publishes_without_a_with_block_and_may_be_repeated(tmp_path: Path) -> None:
    path = tmp_path / "sealed"
    out = ParquetWriter(path, NUMBERS, UNIFORM)
    out.write_table(numbers(0, 9))
    out.close()
    first = path.read_bytes()
    out.close()
    assert path.read_bytes() == first
    assert read_with_pyarrow(path, FOOTER_KEY).equals(numbers(0, 9))


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_writer_that_is_never_closed_publishes_nothing(tmp_path: Path, overwrite: bool) -> None:
    out = ParquetWriter(tmp_path / "sealed", NUMBERS, UNIFORM, overwrite=overwrite, threads=2)
    out.write_table(numbers(0, 9), row_group_size=2)
    assert len(unfinished_files(tmp_path)) == 1
    del out
    gc.collect()
    assert unfinished_files(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


USES: dict[str, Callable[[ParquetWriter], object]] = {
    "write_table": lambda out: out.write_table(numbers(0, 1)),
    "write_batch": lambda out: out.write_batch(batch(0, 1)),
    "write": lambda out: out.write(batch(0, 1)),
    "add_key_value_metadata": lambda out: out.add_key_value_metadata({"a": "b"}),
    "with": lambda out: out.__enter__(),
}


@pytest.mark.parametrize("use", USES)
def test_a_closed_writer_takes_nothing(use: str) -> None:
    out = ParquetWriter(io.BytesIO(), NUMBERS, UNIFORM)
    out.close()
    with pytest.raises(ValueError, match="closed"):
        USES[use](out)


def test_a_destination_may_be_a_file_object_that_stays_open(tmp_path: Path) -> None:
    with open(tmp_path / "file", "wb") as file:
        file.write(b"before")
        write_table(numbers(0, 1000), file, UNIFORM, row_group_size=10, threads=4)
        file.write(b"after")
    data = (tmp_path / "file").read_bytes()
    assert (data[:6], data[-5:]) == (b"before", b"after")
    assert decrypt_bytes(data[6:-5], READER) == plain_file(numbers(0, 1000), row_group_size=10)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_file_object_is_called_in_the_calling_thread(threads: int) -> None:
    callers = set()

    class Noting(io.BytesIO):
        def write(self, data: Any) -> int:
            callers.add(threading.get_ident())
            return super().write(data)

    write_table(numbers(0, 1000), Noting(), UNIFORM, row_group_size=10, threads=threads)
    assert callers == {threading.get_ident()}


def test_overwriting_is_refused_on_request(tmp_path: Path) -> None:
    path = tmp_path / "sealed"
    write_table(numbers(0, 9), path, UNIFORM, overwrite=False)
    with pytest.raises(FileExistsError):
        write_table(numbers(0, 5), path, UNIFORM, overwrite=False)
    late = ParquetWriter(tmp_path / "late", NUMBERS, UNIFORM, overwrite=False)
    late.write_table(numbers(0, 5))
    (tmp_path / "late").write_bytes(b"came first")
    with pytest.raises(FileExistsError):
        late.close()
    for end in (late.close, lambda: late.__exit__(None, None, None)):  # all is not well
        with pytest.raises(ValueError, match="no file was written"):
            end()
    assert (tmp_path / "late").read_bytes() == b"came first"
    assert len(list(tmp_path.iterdir())) == 2
    write_table(numbers(0, 5), path, UNIFORM)
    assert read_with_pyarrow(path, FOOTER_KEY).equals(numbers(0, 5))


def test_a_path_may_lie_in_a_filesystem_of_pyarrow(tmp_path: Path) -> None:
    inside = pa.fs.SubTreeFileSystem(str(tmp_path), pa.fs.LocalFileSystem())
    write_table(numbers(0, 9), "sealed", UNIFORM, filesystem=inside, threads=2)
    assert read_with_pyarrow(tmp_path / "sealed", FOOTER_KEY).equals(numbers(0, 9))
    with pytest.raises(ZeroDivisionError):
        fail_inside(ParquetWriter("other", NUMBERS, UNIFORM, filesystem=inside))
    assert list(tmp_path.iterdir()) == [tmp_path / "sealed"]


def test_plaintext_is_never_on_disk(tmp_path: Path) -> None:
    secret = b"a phrase that stands out"
    schema = pa.schema([("text", pa.string())])
    options: dict[str, Any] = {"compression": "none", "use_dictionary": False}
    rows = pa.table({"text": [secret.decode()] * 50_000})
    seen = 0
    with ParquetWriter(tmp_path / "sealed", schema, UNIFORM, threads=2, **options) as out:
        for _ in range(10):
            out.write_table(rows)
            for data in unfinished_files(tmp_path):
                seen += len(data)
                assert secret not in data
    assert seen > 1 << 20
    assert secret in decrypt_bytes((tmp_path / "sealed").read_bytes(), READER)


# --- failures -------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_encoder_stays() -> Iterator[None]:
    """After every test, threads of the pool must end by themselves."""
    yield
    for thread in threading.enumerate():
        if thread.name.startswith(("modcrypt-encoder", "modcrypt-writer")):
            thread.join(30)
            assert not thread.is_alive(), thread.name


def fail_inside(out: ParquetWriter) -> None:
    with out:
        out.write_table(numbers(0, 5000), row_group_size=100)
        out.write_batch(batch(0, 7))
        raise ZeroDivisionError


LOSSY = pa.table({"at": pa.array([1, 2, 3], pa.timestamp("ns"))})


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("old", [None, b"what was there"])
def test_an_exception_in_the_with_block_leaves_no_file(
    tmp_path: Path, threads: int, old: bytes | None
) -> None:
    path = tmp_path / "sealed"
    if old is not None:
        path.write_bytes(old)
    out = ParquetWriter(path, NUMBERS, UNIFORM, threads=threads)
    with pytest.raises(ZeroDivisionError):
        fail_inside(out)
    assert [p.read_bytes() for p in tmp_path.iterdir()] == ([] if old is None else [old])
    out.close()
    with pytest.raises(ValueError, match="closed"):
        out.write_table(numbers(0, 1))
    assert len(list(tmp_path.iterdir())) == (old is not None)


def test_a_writer_that_failed_holds_no_data() -> None:
    out = ParquetWriter(io.BytesIO(), NUMBERS, UNIFORM, threads=2)
    held = batch(0, 7)
    gone = weakref.ref(held)
    out.write_batch(held)
    del held
    assert gone() is not None
    with pytest.raises(ZeroDivisionError):
        fail_inside(out)
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("place", ["write", "close"])
def test_what_pyarrow_cant_encode_leaves_no_file(
    tmp_path: Path, threads: int, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By PyArrow's own exception, from the calling thread or from another."""
    monkeypatch.setattr(writer, "ENCODED_TOGETHER", 1)
    options: dict[str, Any] = {"coerce_timestamps": "ms", "threads": threads}
    out = ParquetWriter(tmp_path / "sealed", LOSSY.schema, UNIFORM, **options)
    tables = pa.concat_tables([LOSSY] * 10)
    if place == "write":
        with pytest.raises(pa.ArrowInvalid, match="would lose data"):
            out.write_table(tables, row_group_size=1)
    else:
        out.write_batch(LOSSY.to_batches()[0])
        with pytest.raises(pa.ArrowInvalid, match="would lose data"):
            out.close()
    assert list(tmp_path.iterdir()) == []
    for end in (partial(out.write_table, LOSSY), out.close):
        with pytest.raises(ValueError, match="closed"):
            end()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_the_systems_own_error() -> None:
    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_table(numbers(0, 50), Full(), UNIFORM, threads=2)


def test_a_row_group_too_many_is_refused_before_it_is_encoded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(writer, "MAX_ROW_GROUPS", 3)
    write_table(numbers(0, 3), tmp_path / "three", UNIFORM, row_group_size=1)
    with pytest.raises(mc.errors.LimitError, match="at most 3 row groups"):
        write_table(numbers(0, 4), tmp_path / "four", UNIFORM, row_group_size=1)
    assert list(tmp_path.iterdir()) == [tmp_path / "three"]


def test_too_many_row_groups_of_a_table_are_refused_before_the_first_is_encoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched(monkeypatch, lambda: None)
    with pytest.raises(mc.errors.LimitError, match=r"at most 32768 row groups.* would have 32769"):
        write_table(numbers(0, 32_769), io.BytesIO(), UNIFORM, row_group_size=1)
    assert watched.most == 0


@pytest.mark.parametrize("threads", [1, 2])
def test_small_row_groups_are_encoded_together(
    monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    encoded: list[int] = []
    encode = writer._encode

    def note_row_groups(row_groups: Any, *args: Any) -> Any:
        encoded.append(len(row_groups))
        return encode(row_groups, *args)

    monkeypatch.setattr(writer, "_encode", note_row_groups)
    monkeypatch.setattr(writer, "ENCODED_TOGETHER", 8 * 40)  # of five row groups
    out = io.BytesIO()
    with ParquetWriter(out, NUMBERS, UNIFORM, threads=threads) as opened:
        opened.write_table(numbers(0, 96), row_group_size=8)
        for start in range(96, 192, 8):
            opened.write_batch(batch(start, start + 8), row_group_size=8)
    assert sorted(encoded[1:]) == [2, 2, 5, 5, 5, 5]  # before them a footer
    assert decrypt_bytes(out.getvalue(), READER) == plain_file(numbers(0, 192), row_group_size=8)


class Counted:
    """A function of a module, whose calls are counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
        self.calls, self.function = 0, getattr(module, name)
        monkeypatch.setattr(module, name, self)

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.calls += 1
        return self.function(*args, **options)


def test_a_small_table_is_encoded_and_planned_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encodes = Counted(monkeypatch, writer, "_encode")
    footers = Counted(monkeypatch, encryption_plan, "read_plain")
    seen = code_form() != "compiled"  # compiled functions call each other without a look
    opens, looks = Counted(monkeypatch, os, "open"), Counted(monkeypatch, os, "lstat")
    for rows, size in ((100, None), (100, 7), (0, None)):
        for counted in (encodes, footers, opens, looks):
            counted.calls = 0
        write_table(numbers(0, rows), tmp_path / "sealed", UNIFORM, row_group_size=size)
        assert (encodes.calls, footers.calls, opens.calls, looks.calls) == (1, seen, 2, 1)
        plain = plain_file(numbers(0, rows), row_group_size=size)
        assert decrypt_bytes((tmp_path / "sealed").read_bytes(), READER) == plain


def test_a_writer_encodes_a_footer_once_unless_pairs_are_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encodes = Counted(monkeypatch, writer, "_encode")
    for pairs, expected in (({}, 2), ({"a": "b"}, 3)):
        before = encodes.calls
        with ParquetWriter(io.BytesIO(), NUMBERS, UNIFORM) as opened:
            opened.write_table(numbers(0, 10))
            if pairs:
                opened.add_key_value_metadata(pairs)
        assert encodes.calls - before == expected


@pytest.mark.parametrize("threads", [1, 2])
def test_a_page_too_many_leaves_no_file(tmp_path: Path, threads: int) -> None:
    options: dict[str, Any] = {"max_rows_per_page": 1, "write_batch_size": 1, "threads": threads}
    out = ParquetWriter(tmp_path / "sealed", NUMBERS, UNIFORM, **options)
    out.write_table(numbers(0, 10))
    out.write_batch(batch(0, 32_769))
    with pytest.raises(mc.errors.LimitError, match="row group 1, column 0 with 32769 data pages"):
        out.close()
    assert list(tmp_path.iterdir()) == []


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "an unknown option": ({"compresion": "zstd"}, TypeError, "compresion"),
    "a wrong value": ({"version": "3.9"}, ValueError, "3.9"),
    "PyArrow's encryption": ({"encryption_properties": None}, TypeError, "as `encryption`"),
    "a metadata collector": ({"metadata_collector": []}, TypeError, "metadata_collector"),
    "no threads": ({"threads": 0}, ValueError, "threads"),
    "no rows": ({"row_group_size": 0}, ValueError, "row_group_size"),
    "other properties": ({"encryption": READER}, TypeError, "FileDecryptionProperties"),
    "unknown columns": (
        {
            "encryption": mc.FileEncryptionProperties(
                footer_key=FOOTER_KEY, column_keys={"z": COLUMN_KEY, "m": COLUMN_KEY}
            )
        },
        ValueError,
        "not have these columns: m, z; it has n",
    ),
}


@each_case("case", REFUSED)
def test_a_callers_mistake_is_reported_before_there_is_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, case: str
) -> None:
    arguments, error, message = REFUSED[case]
    monkeypatch.setattr("modcrypt.io.buffers.open_sink", lambda *_, **__: pytest.fail("opened"))
    for make in (partial_writer, write_table):
        with pytest.raises(error, match=message):
            make(numbers(0, 1), tmp_path / "sealed", **({"encryption": UNIFORM} | arguments))
    assert list(tmp_path.iterdir()) == []


def partial_writer(table: pa.Table, where: Path, **arguments: Any) -> None:
    ParquetWriter(where, table.schema, **arguments)


@pytest.mark.parametrize("thing", [[1, 2], None, {"n": [1]}, b"PAR1"])
def test_what_is_no_table_is_a_type_error(thing: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"a pyarrow\.Table or provide an Arrow stream.* not \w+$"):
        write_table(thing, tmp_path / "sealed", UNIFORM)
    with ParquetWriter(tmp_path / "sealed", NUMBERS, UNIFORM) as out:
        for write in (out.write, out.write_table, out.write_batch):
            with pytest.raises(TypeError, match="pyarrow"):
                write(thing)
        out.write_table(numbers(0, 3))
    assert read_with_pyarrow(tmp_path / "sealed", FOOTER_KEY).equals(numbers(0, 3))


def test_another_schema_is_refused_and_the_writer_goes_on(tmp_path: Path) -> None:
    other = pa.table({"n": pa.array([1], pa.int32())})
    with ParquetWriter(tmp_path / "sealed", NUMBERS, UNIFORM) as out:
        for write, thing in ((out.write_table, other), (out.write_batch, other.to_batches()[0])):
            with pytest.raises(ValueError, match="int32"):
                write(thing)
        out.write_table(numbers(0, 3).replace_schema_metadata({"more": "metadata"}))
    assert read_with_pyarrow(tmp_path / "sealed", FOOTER_KEY).equals(numbers(0, 3))


# --- threads --------------------------------------------------------------------------------------


def test_any_number_of_threads_gives_the_same_rows_in_order() -> None:
    plain = plain_file(numbers(0, 3000), row_group_size=70)
    for threads in (None, 1, 2, 4, 7):
        sealed = write_file(numbers(0, 3000), UNIFORM, row_group_size=70, threads=threads)
        assert decrypt_bytes(sealed, READER) == plain


class Watched:
    """PyArrow's encoding, observed: what is begun, and how many at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, before: Callable[[], object]) -> None:
        self.lock, self.before = threading.Lock(), before
        self.running = self.most = 0
        self.callers: set[int] = set()
        self.encode = writer._encode
        monkeypatch.setattr(writer, "_encode", self)
        monkeypatch.setattr(writer, "ENCODED_TOGETHER", 1)

    def __call__(self, rows: Any, *args: Any) -> Any:
        if not rows:  # a footer
            return self.encode(rows, *args)
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
            self.callers.add(threading.get_ident())
        try:
            self.before()
            return self.encode(rows, *args)
        finally:
            with self.lock:
                self.running -= 1


@pytest.mark.parametrize("threads", [2, 3])
def test_row_groups_are_encoded_at_once_by_as_many_threads_as_said(
    monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    together = threading.Barrier(threads, timeout=30)  # passed by as many at once only
    watched = Watched(monkeypatch, together.wait)
    write_file(numbers(0, 600), UNIFORM, row_group_size=50, threads=threads)
    assert watched.most == threads
    assert threading.get_ident() not in watched.callers


@pytest.mark.parametrize(("cores", "expected"), [(1, 1), (2, 2), (64, 4)])
def test_by_default_there_are_as_many_threads_as_processors_but_not_many(
    monkeypatch: pytest.MonkeyPatch, cores: int, expected: int
) -> None:
    monkeypatch.setattr(writer, "usable_cores", lambda: cores)
    monkeypatch.setattr(writer, "WORTH_A_THREAD", 0)
    together = threading.Barrier(expected, timeout=30)
    watched = Watched(monkeypatch, together.wait)
    write_file(numbers(0, 600), UNIFORM, row_group_size=50)
    assert watched.most == expected


def test_with_one_thread_all_happens_in_the_calling_one(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, lambda: None)
    before = set(threading.enumerate())
    with ParquetWriter(io.BytesIO(), NUMBERS, UNIFORM, threads=1) as out:
        out.write_table(numbers(0, 3000), row_group_size=200)
        assert set(threading.enumerate()) <= before  # those of earlier tests may end
    assert watched.callers == {threading.get_ident()}


@pytest.mark.parametrize("threads", [2, 4])
def test_few_row_groups_are_in_memory_at_once(
    monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """However slow encoding is: who writes on is held up while `threads + 1` are not sealed."""
    gate = threading.Event()
    Watched(monkeypatch, lambda: gate.wait(30))
    sealed = 0
    add = Encryption.add

    def counting(self: Any, *args: Any, **options: Any) -> None:
        nonlocal sealed
        add(self, *args, **options)
        sealed += 1

    monkeypatch.setattr(Encryption, "add", counting)
    with ParquetWriter(io.BytesIO(), NUMBERS, UNIFORM, threads=threads) as out:
        for _ in range(threads + 1):
            out.write_table(numbers(0, 10))
        assert sealed == 0
        opener = threading.Timer(0.05, gate.set)
        opener.start()
        out.write_table(numbers(0, 10))
        assert gate.is_set()
        for taken in range(threads + 3, 30):
            out.write_table(numbers(0, 10))
            assert taken - sealed <= threads + 1
        opener.join()
    assert sealed == 29

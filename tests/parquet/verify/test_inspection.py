"""Inspection, compared with PyArrow, an independent decoder and files of real writers."""

from __future__ import annotations

import base64
import io
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

import modcrypt as mc
from modcrypt import FileDecryptionProperties, FileEncryptionProperties
from modcrypt.parquet import ModuleType
from modcrypt.parquet.format.idl import ThriftStruct, decode, encode, new, set_fields
from modcrypt.parquet.verify.inspection import ColumnInspection, Inspection, inspect_parquet
from tests.support import forging
from tests.support.cases import each_case, one_in
from tests.support.forging import (
    SMALL_FILTER,
    change_footer,
    edit_crypto,
    encrypt_bytes,
    module_suffix,
    plain_file,
    seal,
)
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.kms.memory_kms import MemoryKms
from tests.support.module_spans import ModuleSpan, list_modules
from tests.support.parquet_parser import footer_of, thrift_struct
from tests.support.paths import ROOT
from tests.support.shared_vectors import (
    entry_params,
    keys_of,
    metadata_bytes,
    reader_of,
    shared_vectors,
)
from tests.support.tables import nested_table, small_table
from tests.support.watched_source import Watched

PREFIX = b"employees_23May2018.part0"
COLUMNS = {"name": COLUMN_KEY, "address": OTHER_KEY}
TABLE = small_table(60)
READER = FileDecryptionProperties(footer_key=FOOTER_KEY, column_keys=COLUMNS)
OPTIONS: dict[str, Any] = {
    "row_group_size": 25,
    "write_page_index": True,
    "bloom_filter_options": {"id": SMALL_FILTER, "name": SMALL_FILTER},
    "max_rows_per_page": 10,
    "write_batch_size": 10,
}


@cache
def plain() -> bytes:
    return plain_file(TABLE, **OPTIONS)


@cache
def encrypt_sample(**properties: Any) -> bytes:
    """Encrypt a table of several row groups, with two columns under keys of their own."""
    given = {"footer_key": FOOTER_KEY, "plaintext_columns": ("day",)} | properties
    return encrypt_bytes(plain(), FileEncryptionProperties(column_keys=COLUMNS, **given))


def reader_with_prefix(aad_prefix: bytes | None) -> FileDecryptionProperties:
    return FileDecryptionProperties(
        footer_key=FOOTER_KEY, column_keys=COLUMNS, aad_prefix=aad_prefix
    )


def is_said(sentences: tuple[str, ...], *words: str) -> bool:
    """Return whether one sentence has all these words."""
    return any(all(word in sentence for word in words) for sentence in sentences)


def column(found: Inspection, path: str) -> ColumnInspection:
    assert found.columns is not None
    (found_column,) = (column for column in found.columns if column.path == path)
    return found_column


def check_regions(found: Inspection) -> None:
    """Each byte is in one region."""
    reached = 0
    for region in found.regions:
        assert region.start == reached
        assert region.end > region.start
        reached = region.end
    assert reached == found.size == sum(region.size for region in found.regions)


def inspect_each_way(
    source: Any, *properties: FileDecryptionProperties | None
) -> Iterator[tuple[FileDecryptionProperties | None, bool, Inspection]]:
    """Inspect with each of the properties, with pages and without; all bytes are accounted for."""
    for reader in properties:
        for pages in (False, True):
            found = inspect_parquet(source, reader, pages=pages)
            check_regions(found)
            json.dumps(found.fields())
            yield reader, pages, found


def kinds(found: Inspection, path: str) -> Counter[tuple[str, str]]:
    return Counter((region.kind, region.state) for region in found.regions if region.path == path)


# --- files of other writers ----------------------------------------------------------------------


def properties_in(entry: dict[str, Any]) -> list[FileDecryptionProperties | None]:
    """No keys, the footer key alone, all keys."""
    reader = keys_of(entry["enc"]) | reader_of(entry["enc"]) | {"accept_algorithms": ["AES_GCM_V1"]}
    alone = {name: value for name, value in reader.items() if name != "column_keys"}
    return [None, FileDecryptionProperties(**alone), FileDecryptionProperties(**reader)]


@each_case(("folder", "entry"), entry_params("entries"), quick=one_in(4))
def test_every_byte_of_every_writers_file_has_its_name(folder: str, entry: dict[str, Any]) -> None:
    path, enc = shared_vectors() / folder / entry["file"], entry["enc"]
    given = properties_in(entry)
    for properties, pages, found in inspect_each_way(path, *given):
        assert found.encrypted
        assert found.footer_mode == enc["footer_mode"]
        assert found.algorithm == enc["algorithm"]
        assert found.footer_authenticated == (properties is not None)
        assert found.stores_aad_prefix == bool(enc["aad_prefix"] and enc["aad_prefix_stored"])
        assert found.needs_aad_prefix == bool(enc["aad_prefix"] and not enc["aad_prefix_stored"])
        prefix_known = found.stores_aad_prefix or (found.needs_aad_prefix and properties)
        assert found.aad_prefix == (enc["aad_prefix"].encode() if prefix_known else None)
        metadata = metadata_bytes(enc["footer_key_metadata"])
        assert found.footer_key.size == len(metadata or b"")
        if properties is given[2]:
            check_all_known(found, path, entry, pages)


def check_all_known(found: Inspection, path: Path, entry: dict[str, Any], pages: bool) -> None:
    """With all keys nothing is hidden, and all is as PyArrow finds it in the decrypted file."""
    assert not found.hidden
    assert not [region for region in found.regions if region.state in ("fault", "locked")]
    assert not [region for region in found.regions if region.kind in ("gap", "modules")]
    assert not [
        region for region in found.regions if pages and region.kind in ("pages", "bloom filter")
    ]
    reader = FileDecryptionProperties(**(keys_of(entry["enc"]) | reader_of(entry["enc"])))
    check_modules(found, list_modules(path, reader), pages)
    out = io.BytesIO()
    mc.decrypt_parquet(path, out, reader)
    check_facts(found, pq.read_metadata(io.BytesIO(out.getvalue())))


def check_modules(found: Inspection, modules: list[ModuleSpan], pages: bool) -> None:
    """Regions begin and end where modules do, and are called like them."""
    in_chunks = [span for span in modules if span.module.type is not ModuleType.FOOTER]
    if pages:
        regions = {
            (region.start, region.end, region.kind, region.page)
            for region in found.regions
            if region.key is not None and region.column is not None
        }
        assert regions == {
            (m.start, m.end, m.module.type.name.lower().replace("_", " "), m.module.page)
            for m in in_chunks
        }
        return
    borders = {border for m in in_chunks for border in (m.start, m.end)}
    own = [
        region for region in found.regions if region.key is not None and region.column is not None
    ]
    assert {border for region in own for border in (region.start, region.end)} <= borders


def check_facts(found: Inspection, judge: pq.FileMetaData) -> None:
    assert found.num_rows == judge.num_rows
    assert found.row_groups == judge.num_row_groups
    assert found.created_by == judge.created_by
    assert found.columns is not None
    assert len(found.columns) == judge.num_columns
    names = {name.decode() for name in judge.metadata or {}}
    assert set(found.key_value_metadata) == names
    for c, column in enumerate(found.columns):
        schema = judge.schema.column(c)
        assert column.path == schema.path
        assert column.physical_type.partition("(")[0] == schema.physical_type
        assert (column.logical_type is None) == (schema.logical_type.type == "NONE")
        chunks = [judge.row_group(r).column(c) for r in range(judge.num_row_groups)]
        assert column.values == sum(chunk.num_values for chunk in chunks)
        codecs = {chunk.compression for chunk in chunks}
        assert (column.codec is None and not chunks) or {column.codec} == codecs


@each_case(("folder", "entry"), entry_params("tampered"), quick=one_in(3))
def test_every_byte_of_tampered_files_has_its_name(folder: str, entry: dict[str, Any]) -> None:
    path = shared_vectors() / folder / entry["file"]
    if "truncate" in entry["tamper"]:
        with pytest.raises(mc.errors.FormatError):
            inspect_parquet(path)
        return
    for _ in inspect_each_way(path, *properties_in(entry)):
        pass


def test_published_files_show_what_their_readme_says() -> None:
    folder = shared_vectors() / "parquet-testing"
    column_keys = {"double_field": COLUMN_KEY, "float_field": OTHER_KEY}
    for path in sorted(folder.glob("*.encrypted")):
        if path.name.startswith("external"):
            continue  # its keys are wrapped, below
        keys = FileDecryptionProperties(
            footer_key=FOOTER_KEY,
            column_keys=column_keys,
            aad_prefix=b"tester" if "disable_aad" in path.name else None,
        )
        for properties, _, found in inspect_each_way(path, None, keys):
            assert found.footer_key.kind == "opaque"
            assert found.algorithm == ("AES_GCM_CTR_V1" if "_ctr" in path.name else "AES_GCM_V1")
            if properties is not None:
                own = {column.path for column in found.columns or () if column.key == "column key"}
                assert own == (set() if "uniform" in path.name else set(column_keys))
                assert all(
                    column.has_key for column in found.columns or () if column.key is not None
                )


def test_external_key_material_is_named_as_such() -> None:
    path = shared_vectors() / "parquet-testing" / "external_key_material_java.parquet.encrypted"
    found = inspect_parquet(path)
    assert found.footer_key.kind == "PKMT1"
    assert found.footer_key.storage == "external"
    assert found.footer_key.reference == "footerKey"
    assert found.footer_key.master_key_id is None
    assert is_said(found.leaks, "key material", "beside")


def test_iceberg_and_spark_files_show_themselves() -> None:
    for path in sorted(shared_vectors().glob("iceberg-table/t16/data/*.parquet")):
        found = inspect_parquet(path, pages=True)
        check_regions(found)
        assert found.needs_aad_prefix
        assert found.columns is None
        assert is_said(found.hidden, "footer is encrypted")
    for path in sorted(shared_vectors().glob("parquet-java/spark/*/part-0.parquet")):
        found = inspect_parquet(path)
        check_regions(found)
        assert found.footer_key.kind == "PKMT1"
        assert found.footer_key.master_key_id == (
            None if found.footer_key.storage == "external" else "kf"
        )


# --- our own files, in every mode ----------------------------------------------------------------


@each_case("plaintext_footer", [False, True], ids=["sealed", "signed"])
@each_case("algorithm", ["AES_GCM_V1", "AES_GCM_CTR_V1"])
@each_case("levels", ["encrypted", "plaintext"])
def test_every_byte_has_its_name_in_every_mode(
    plaintext_footer: bool, algorithm: str, levels: str
) -> None:
    version = "2.0" if levels == "plaintext" else "1.0"
    source = plain_file(nested_table(), **OPTIONS | NESTED, data_page_version=version)
    keys = {"id": COLUMN_KEY, "deep": OTHER_KEY}
    data = encrypt_bytes(
        source,
        FileEncryptionProperties(
            footer_key=FOOTER_KEY, column_keys=keys, plaintext_footer=plaintext_footer,
            encryption_algorithm=algorithm, data_page_v2_levels=levels,  # type: ignore[arg-type]  # one of them
        ),
    )  # fmt: skip
    every = FileDecryptionProperties(footer_key=FOOTER_KEY, column_keys=keys)
    some = FileDecryptionProperties(column_keys={"id": COLUMN_KEY})
    footer = FileDecryptionProperties(footer_key=FOOTER_KEY)
    accepting = FileDecryptionProperties(
        footer_key=FOOTER_KEY, column_keys=keys, accept_algorithms=[algorithm]
    )
    modules = list_modules(data, accepting)
    for properties, pages, found in inspect_each_way(data, None, some, footer, every):
        assert found.algorithm == algorithm
        if properties is every:
            check_modules(found, modules, pages)
            check_facts(found, pq.read_metadata(io.BytesIO(source)))
            bodies = {region.state for region in found.regions if region.kind == "data page"}
            ctr = algorithm == "AES_GCM_CTR_V1"
            assert bodies == ({"unauthenticated" if ctr else "unchecked"} if pages else set())


NESTED = {"bloom_filter_options": {"id": SMALL_FILTER}}


def test_without_keys_a_sealed_footer_hides_all_but_the_framing() -> None:
    data = encrypt_sample(plaintext_columns=())
    for _, pages, found in inspect_each_way(data, None):
        reported = (found.num_rows, found.row_groups, found.columns, found.created_by)
        assert reported == (None, None, None, None)
        assert found.key_value_metadata == ()
        assert not found.footer_authenticated
        assert found.aad_file_unique_size == 8
        modules = [region for region in found.regions if region.kind == "modules"]
        assert {region.state for region in modules} == {"locked"}
        expected = list_modules(data, READER)[:-1]
        if pages:
            assert [(m.start, m.end) for m in modules] == [(m.start, m.end) for m in expected]
        else:
            assert [(m.start, m.end) for m in modules] == [(4, expected[-1].end)]
        assert is_said(found.hidden, f"{len(expected)} modules can be distinguished")


def test_framing_that_a_plaintext_column_breaks_leaves_the_rest_as_one() -> None:
    found = inspect_parquet(encrypt_sample(plaintext_columns=("id",)), pages=True)
    (rest,) = (region for region in found.regions if region.kind == "gap")
    assert rest.start == 4
    assert rest.state == "unchecked"
    assert is_said(found.hidden, f"{rest.size:,} bytes cannot")


def test_without_keys_a_plaintext_footer_shows_places_of_pages_and_indexes() -> None:
    data = encrypt_sample(plaintext_footer=True)
    spans = list_modules(data, READER)
    for _, pages, found in inspect_each_way(data, None):
        if pages:
            expected = {(span.start, span.end) for span in spans if span.module.page is not None}
            locked = [
                region
                for region in found.regions
                if region.page is not None and region.key is not None
            ]
            assert {region.state for region in locked} == {"locked"}
            assert {(region.start, region.end) for region in locked} == expected
        assert {state for _, state in kinds(found, "day")} == {"plaintext"}
        assert {state for _, state in kinds(found, "id")} == {"locked"}
        blooms = [span for span in spans if "BLOOM" in span.module.type.name]
        hidden = [region for region in found.regions if region.kind == "modules"]
        assert {region.state for region in hidden} == {
            "locked"
        }  # the footer names no place of filters
        assert sum(region.size for region in hidden) == sum(
            span.end - span.start for span in blooms
        )
        assert not [region for region in found.regions if region.kind == "gap"]
        (signature,) = (region for region in found.regions if region.kind == "footer signature")
        assert (signature.size, signature.state) == (28, "locked")


def test_keys_of_some_columns_open_those_alone() -> None:
    data = encrypt_sample(plaintext_footer=True)
    some = FileDecryptionProperties(column_keys={"name": COLUMN_KEY})
    for _, pages, found in inspect_each_way(data, some):
        assert not found.footer_authenticated
        assert column(found, "name").has_key is True
        assert column(found, "id").has_key is False
        assert column(found, "address.zip").has_key is False
        assert column(found, "day").has_key is None
        states = {state for _, state in kinds(found, "name")}
        assert states == ({"authentic", "unchecked"} if pages else {"unchecked"})
        assert is_said(found.hidden, "without a key", "id", "address.zip")


def test_a_column_without_key_behind_a_sealed_footer_hides_where_it_lies() -> None:
    data = encrypt_sample()
    footer = FileDecryptionProperties(footer_key=FOOTER_KEY)
    for _, _, found in inspect_each_way(data, footer):
        name = column(found, "name")
        assert name.key == "column key"
        assert name.has_key is False
        assert (name.compressed_size, name.values, name.codec) == (None, None, None)
        hidden = [region for region in found.regions if region.kind == "modules"]
        assert hidden
        assert {region.state for region in hidden} == {"locked"}
        pages = [m for m in list_modules(data, READER) if m.module.path == "name"]
        data_pages = [m for m in pages if "PAGE" in m.module.type.name]
        for module in data_pages:
            assert any(
                region.start <= module.start and module.end <= region.end for region in hidden
            )


def test_a_plaintext_file_is_inspected_too() -> None:
    for _, pages, found in inspect_each_way(plain(), None, READER):
        assert not found.encrypted
        assert found.algorithm is None
        assert not found.hidden
        assert is_said(found.leaks, "Everything")
        assert {region.state for region in found.regions} == {"plaintext"}
        check_facts(found, pq.read_metadata(io.BytesIO(plain())))
        whole = [region for region in found.regions if region.kind == "pages"]
        assert bool(whole) is not pages
    found_pages = [
        region for region in found.regions if (region.kind, region.path) == ("data page", "id")
    ]
    assert len(found_pages) == 3 + 3 + 1  # 25, 25 and 10 rows in pages of 10


def test_types_are_spelt_as_the_specification_does() -> None:
    found = inspect_parquet(encrypt_sample(plaintext_footer=True))
    assert found.columns is not None
    assert {
        column.path: (column.physical_type, column.logical_type) for column in found.columns
    } == {
        "id": ("INT64", None),
        "name": ("BYTE_ARRAY", "STRING"),
        "price": ("FIXED_LEN_BYTE_ARRAY(6)", "DECIMAL(12,2)"),
        "score": ("DOUBLE", None),
        "day": ("INT32", "DATE"),
        "flag": ("BOOLEAN", None),
        "address.zip": ("BYTE_ARRAY", "STRING"),
        "address.city": ("BYTE_ARRAY", "STRING"),
        "tags.list.element": ("BYTE_ARRAY", "STRING"),
    }


def test_more_types_than_those() -> None:
    table = pa.table(
        {
            "small": pa.array([1], pa.int8()),
            "time": pa.array([1], pa.time32("ms")),
            "stamp": pa.array([1], pa.timestamp("us", "UTC")),
            "uuid": pa.array([bytes(16)], pa.uuid()),
        }
    )
    found = inspect_parquet(plain_file(table))
    assert found.columns is not None
    assert [column.logical_type for column in found.columns] == [
        "INT(8,true)", "TIME(false,MILLIS)", "TIMESTAMP(true,MICROS)", "UUID",
    ]  # fmt: skip


def test_files_without_rows() -> None:
    for footer in (False, True):
        properties = FileEncryptionProperties(footer_key=FOOTER_KEY, plaintext_footer=footer)
        empty = encrypt_bytes(plain_file(TABLE.slice(0, 0)), properties)
        none = encrypt_bytes(without_row_groups(plain_file(TABLE.slice(0, 0))), properties)
        for data in (empty, none):
            for _, _, found in inspect_each_way(data, None, READER):
                assert found.num_rows in (0, None)
    assert column(found, "id").key == "hidden"


def without_row_groups(data: bytes) -> bytes:
    def change(metadata: ThriftStruct) -> None:
        metadata.row_groups = []

    return forging.edit_plain(data, change)


# --- leaks ---------------------------------------------------------------------------------------


def test_what_pyarrow_leaves_in_a_plaintext_footer_is_reported() -> None:
    """The judge is a decoder of its own, which sees what a legacy reader sees."""
    out = io.BytesIO()
    properties = pe.create_encryption_properties(footer_key=FOOTER_KEY, plaintext_footer=True)
    options = {name: value for name, value in OPTIONS.items() if "bloom" not in name}
    pq.write_table(TABLE, out, encryption_properties=properties, **options)
    data = out.getvalue()
    chunks = footer_of(data)[4][0][1]
    assert all(16 in chunk[3] and 12 not in chunk[3] for chunk in chunks)  # size, no statistics
    found = inspect_parquet(data)
    assert is_said(found.leaks, "Size statistics", "id", "name")
    assert not is_said(found.leaks, "least and greatest", "in the footer")
    assert is_said(found.leaks, "ARROW:schema")
    assert is_said(found.leaks, "parquet-cpp-arrow version")
    assert is_said(found.leaks, "60 rows in 3 row groups")
    assert "size statistics" in column(found, "id").visible
    assert "statistics" not in column(found, "id").visible
    for word in ("name", "type", "sizes", "values", "codec", "encodings", "places"):
        assert word in column(found, "id").visible
    assert "pages" not in column(found, "id").visible


def test_what_we_leave_in_a_plaintext_footer_is_no_more_than_is_needed() -> None:
    data = encrypt_sample(plaintext_footer=True)
    chunks = {b".".join(c[3][3]): c for c in footer_of(data)[4][0][1]}
    found = inspect_parquet(data)
    assert found.columns is not None
    for column in found.columns:
        fields = chunks[column.path.encode()][3]
        assert ("statistics" in column.visible) == (12 in fields) == (column.path == "day")
        assert ("size statistics" in column.visible) == (16 in fields)
        assert ("bloom filter place" in column.visible) == (14 in fields)
    assert is_said(found.leaks, "Plaintext columns", "day")
    assert not is_said(found.leaks, "Size statistics")


def test_a_sealed_footer_leaks_sizes_key_metadata_and_prefix() -> None:
    data = encrypt_sample(aad_prefix=PREFIX, footer_key_metadata=b"key-7", plaintext_columns=())
    found = inspect_parquet(data)
    assert len(found.leaks) == 3
    assert is_said(found.leaks, "sizes of the file")
    assert is_said(found.leaks, "AAD prefix", PREFIX.decode())
    assert is_said(found.leaks, "1 key, 5 bytes")


def test_bloom_filters_and_indexes_that_a_writer_left_in_clear_are_reported() -> None:
    """Written as arrow-rs does: the filter of an encrypted column as in a plaintext file."""
    source = plain()
    data = with_clear_parts(source, encrypt_sample())
    for _, pages, found in inspect_each_way(data, READER):
        assert is_said(found.leaks, "Unencrypted bloom filters", "name")
        assert is_said(found.leaks, "Unencrypted offset indexes", "name")
        assert not is_said(found.leaks, "Unencrypted column indexes")
        assert {"bloom filter", "offset index"} <= set(column(found, "name").visible)
        assert column(found, "id").visible == ()
        if not pages:
            assert ("bloom filter", "plaintext") in kinds(found, "name")
            assert ("bloom filter", "unchecked") in kinds(found, "id")


def with_clear_parts(source: bytes, data: bytes) -> bytes:
    """Put the plain bloom filter and offset index of a column where the sealed ones were."""
    plain_chunk = footer_of(source)[4][0][1][1]
    md = plain_chunk[3]
    bloom = source[md[14] : md[14] + md[15]]
    index = source[plain_chunk[4] : plain_chunk[4] + plain_chunk[5]]
    modules = list_modules(data, READER)
    spans = {(m.module.type, m.module.row_group, m.module.path): m for m in modules}
    bloom_at = spans[ModuleType.BLOOM_FILTER_HEADER, 0, "name"].start
    index_at = spans[ModuleType.OFFSET_INDEX, 0, "name"].start
    file = forging.open_file(data, FOOTER_KEY)
    body = bytearray(file.body)
    body[bloom_at : bloom_at + len(bloom)] = bloom
    body[index_at : index_at + len(index)] = index
    chunk = file.metadata.row_groups[0].columns[1]
    chunk.offset_index_length = len(index)
    aad = file.file_aad + module_suffix(1, 0, 1)
    opened = forging.open_module(COLUMN_KEY, chunk.encrypted_column_metadata, aad)
    metadata, _ = decode("ColumnMetaData", opened)
    metadata.bloom_filter_length = len(bloom)
    chunk.encrypted_column_metadata = seal(COLUMN_KEY, encode(metadata), aad)
    file.body = bytes(body)
    return file.seal_footer(FOOTER_KEY)


@pytest.mark.parametrize("plaintext_footer", [False, True], ids=["sealed", "signed"])
def test_levels_in_clear_are_reported(plaintext_footer: bool) -> None:
    table = pa.table({"a": pa.array([1, None, 3] * 20), "b": pa.array([[1], [], None] * 20)})
    source = plain_file(table, data_page_version="2.0")
    both: list[Literal["encrypted", "plaintext"]] = ["encrypted", "plaintext"]
    for levels in both:
        data = encrypt_bytes(
            source,
            FileEncryptionProperties(
                footer_key=FOOTER_KEY,
                plaintext_footer=plaintext_footer,
                data_page_v2_levels=levels,
            ),
        )
        reader = FileDecryptionProperties(footer_key=FOOTER_KEY)
        for _, pages, found in inspect_each_way(data, reader):
            clear = levels == "plaintext"
            assert is_said(found.leaks, "Unencrypted levels of data pages V2") is clear
            assert (
                is_said(found.quirks, "encrypted whole", "parquet-java does not read") is not clear
            )
            if pages:
                assert ("levels" in column(found, "b.list.element").visible) is clear
        without = inspect_parquet(data, pages=True)
        check_regions(without)
        if plaintext_footer:
            broken = levels == "plaintext"
            assert is_said(without.leaks, "not a sequence of modules") is broken
            assert kinds(without, "a")["data page", "locked"] == 1


def test_the_key_tools_file_names_its_master_keys_and_no_wrapped_key(tmp_path: Path) -> None:
    kms = MemoryKms()
    policy = mc.Policy(
        footer_key="kf", column_keys={"kc1": ["name"]}, plaintext_columns=["day"],
        plaintext_footer=True,
    )  # fmt: skip
    path = tmp_path / "tools.parquet"
    mc.write_table(TABLE, path, mc.KeyTools(kms).encryption(policy))
    found = inspect_parquet(path)
    assert found.footer_key.kind == "PKMT1"
    assert found.footer_key.master_key_id == "kf"
    assert found.footer_key.double_wrapping
    assert len(bytes.fromhex(found.footer_key.kek_id or "")) == 16
    assert column(found, "name").key_info.master_key_id == "kc1"
    assert is_said(found.leaks, "master keys", "kf, kc1")
    assert {region.key for region in found.regions if region.path == "name"} == {"kc1"}
    check_shows_none_of(found, *wrapped_keys(path.read_bytes()))

    opened = inspect_parquet(path, mc.KeyTools(kms).decryption())
    assert opened.footer_authenticated
    assert column(opened, "name").has_key


def wrapped_keys(data: bytes) -> list[bytes]:
    """Find the wrapped keys in a file's key material."""
    found = []
    for piece in data.split(b'{"keyMaterialType"')[1:]:
        material = json.loads(b'{"keyMaterialType"' + piece[: piece.index(b"}") + 1])
        found += [material["wrappedDEK"].encode(), material["wrappedKEK"].encode()]
    assert found
    return found


# --- quirks --------------------------------------------------------------------------------------


def test_duckdbs_file_is_named_and_shown(tmp_path: Path) -> None:
    """DuckDB 2.0 seals without AAD; the real one writes the file."""
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "duck.parquet"
    with duckdb.connect() as connection:
        connection.execute("SET force_mbedtls_unsafe = 'true'")  # else it writes nothing encrypted
        connection.execute(f"PRAGMA add_parquet_key('k', '{FOOTER_KEY.decode()}')")
        rows = "SELECT range AS id, 'name-' || range % 10 AS name FROM range(30000)"
        config = "FORMAT parquet, ENCRYPTION_CONFIG {footer_key: 'k'}, ROW_GROUP_SIZE 10000"
        connection.execute(f"COPY ({rows}) TO '{path}' ({config})")
    wrong = FileDecryptionProperties(footer_key=OTHER_KEY)
    for properties, pages, found in inspect_each_way(path, None, wrong, READER):
        assert found.writer == "DuckDB"
        assert found.aad_file_unique_size is None
        assert is_said(found.quirks, "no-aad: ", "of DuckDB")
        assert found.footer_authenticated == (properties is READER)
        if properties is READER:
            assert found.num_rows == 30000
            assert found.created_by is not None
            assert found.created_by.startswith("DuckDB version")
            assert [column.path for column in found.columns or ()] == ["id", "name"]
            assert column(found, "id").values == 30000
            names = {kind for kind, _ in kinds(found, "name")}
            pieces = {"dictionary page header", "dictionary page", "data page header", "data page"}
            assert names == (pieces if pages else {"pages"})
        elif properties is wrong:
            assert is_said(found.hidden, "does not authenticate")
    demanded = inspect_parquet(path, reader_with_prefix(PREFIX))
    assert not demanded.footer_authenticated
    assert is_said(demanded.hidden, "AAD prefix is required")


def test_polars_file_is_inspected() -> None:
    pl = pytest.importorskip("polars")
    if not hasattr(pl, "ParquetEncryptionProperties"):
        pytest.skip("this Polars has no Parquet encryption")
    frame = pl.DataFrame({"id": range(100), "name": [f"n{n % 7}" for n in range(100)]})
    for plaintext_footer in (False, True):
        out = io.BytesIO()
        encryption = pl.ParquetEncryptionProperties(
            footer_key=FOOTER_KEY, column_keys={"name": COLUMN_KEY, "id": OTHER_KEY},
            plaintext_footer=plaintext_footer,
        )  # fmt: skip
        frame.write_parquet(out, encryption=encryption)
        reader = FileDecryptionProperties(
            footer_key=FOOTER_KEY, column_keys={"name": COLUMN_KEY, "id": OTHER_KEY}
        )
        for properties, pages, found in inspect_each_way(out.getvalue(), None, reader):
            assert found.writer is not None
            assert "Polars" in found.writer
            if properties is reader:
                assert found.footer_authenticated
                assert not found.hidden
                check_modules(found, list_modules(out.getvalue(), reader), pages)


def test_pyarrows_key_tools_are_seen_with_their_empty_key_metadata() -> None:
    """Arrow C++ writes key metadata of no bytes for what has none."""
    path = shared_vectors() / "pyarrow" / "enc" / "cpp_ctr_pf_v2.parquet"
    found = inspect_parquet(path)
    assert is_said(found.quirks, "empty key metadata", "Arrow C++")
    assert found.writer == "Arrow C++"


def test_parquet_java_pads_its_footers() -> None:
    path = shared_vectors() / "parquet-java" / "enc" / "codec_zstd_v1_plain.parquet"
    entries = {
        entry["file"]: entry
        for entry in json.loads((path.parents[1] / "manifest.json").read_text())["entries"]
    }
    enc = entries["enc/codec_zstd_v1_plain.parquet"]["enc"]
    reader = FileDecryptionProperties(**keys_of(enc))
    tail = path.read_bytes()[:-8]
    crypto, _ = thrift_struct(tail, len(tail) - int.from_bytes(path.read_bytes()[-8:-4], "little"))
    assert crypto[1]  # an algorithm
    found = inspect_parquet(path, reader)
    assert found.writer == "parquet-java"
    assert is_said(found.quirks, "padded-modules: zero bytes", "parquet-java")
    assert not is_said(inspect_parquet(encrypt_sample(), READER).quirks, "zero bytes")


def number_like_go(data: bytes) -> bytes:
    """Seal page headers again with the module types of parquet-go/parquet-go 0.32."""
    keys = {"name": COLUMN_KEY, "address.zip": OTHER_KEY, "address.city": OTHER_KEY}
    file = forging.open_file(data, FOOTER_KEY)
    body = bytearray(file.body)
    for span in list_modules(data, READER):
        module = span.module
        if not module.type.name.endswith("PAGE_HEADER"):
            continue
        assert module.row_group is not None
        assert module.column is not None
        assert module.path is not None
        place = module.row_group, module.column
        key = keys.get(module.path, FOOTER_KEY)
        right = module_suffix(module.type, *place, module.page)
        plain = forging.open_module(key, bytes(body[span.start : span.end]), file.file_aad + right)
        kind = 3 if module.type is ModuleType.DATA_PAGE_HEADER else 5
        wrong = module_suffix(kind, *place, module.page or 0)
        body[span.start : span.end] = seal(key, plain, file.file_aad + wrong)
    file.body = bytes(body)
    return file.seal_footer(FOOTER_KEY)


def test_differently_numbered_module_types_are_named() -> None:
    data = number_like_go(encrypt_sample())
    with pytest.raises(mc.errors.TagMismatchError):
        mc.decrypt_parquet(data, io.BytesIO(), READER)
    right = inspect_parquet(encrypt_sample(), READER, pages=True)
    for _, pages, found in inspect_each_way(data, READER):
        assert is_said(found.quirks, "module-types: ", "numbered", "parquet-go/parquet-go")
        assert not is_said(found.quirks, "Inconsistent")
        if pages:
            assert [(region.start, region.end, region.kind) for region in found.regions] == [
                (region.start, region.end, region.kind) for region in right.regions
            ]
    assert not is_said(right.quirks, "parquet-go")


def test_a_signature_as_parquet_go_makes_it_is_named() -> None:
    """A tag over no bytes, with the footer as additional data."""
    data = encrypt_sample(plaintext_footer=True)
    body, tail, magic = forging.split_tail(data)
    footer, nonce = tail[:-28], os.urandom(12)
    aad = forging.open_file(data, FOOTER_KEY).file_aad + b"\x00" + footer
    signature = nonce + AESGCM(FOOTER_KEY).encrypt(nonce, b"", aad)
    signed = forging.join_tail(body, footer + signature, magic)
    found = inspect_parquet(signed, READER)
    assert not found.footer_authenticated
    assert is_said(found.quirks, "signature is parquet-go/parquet-go's own")
    other = FileDecryptionProperties(footer_key=OTHER_KEY)
    assert not is_said(inspect_parquet(signed, other).quirks, "parquet-go")
    assert not is_said(inspect_parquet(data, other).quirks, "parquet-go")


def test_column_metadata_that_is_not_sealed_is_reported() -> None:
    def change(metadata: ThriftStruct) -> None:
        for row_group in metadata.row_groups:
            row_group.columns[1].encrypted_column_metadata = None
            row_group.columns[1].meta_data = row_group.columns[0].meta_data

    found = inspect_parquet(change_footer(encrypt_sample(), FOOTER_KEY, change), READER)
    assert is_said(found.quirks, "not encrypted with the column's own key", "name")
    assert column(found, "name").has_key is None


def test_what_verification_finds_in_a_footer_is_reported() -> None:
    def mislead(metadata: ThriftStruct) -> None:
        metadata.row_groups[0].columns[1].meta_data.num_values += 1

    def add(metadata: ThriftStruct) -> None:
        metadata.row_groups[0].columns[1].meta_data._unknown = [(99, 8, b"\1x")]

    def mix(metadata: ThriftStruct) -> None:
        metadata.row_groups[1].columns[0].crypto_metadata = None

    data = encrypt_sample(plaintext_footer=True)
    legacy, mixed = "legacy readers differs", "no writer does so"
    for change, words in ((mislead, legacy), (add, legacy), (mix, mixed)):
        for _, _, found in inspect_each_way(change_footer(data, FOOTER_KEY, change), READER):
            assert is_said(found.quirks, "Inconsistent", words)


def relabel(old: str, name: str) -> Callable[[ThriftStruct], None]:
    def change(struct: ThriftStruct) -> None:
        parameters = getattr(struct.encryption_algorithm, old)
        kind = "AesGcmV1" if name == "AES_GCM_V1" else "AesGcmCtrV1"
        algorithm = new(kind, **set_fields(parameters))
        struct.encryption_algorithm = new("EncryptionAlgorithm", **{name: algorithm})

    return change


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_gcm_labels_over_ctr_pages_are_named(compression: str) -> None:
    """As some versions of Arrow C++ wrote them, into plaintext footers."""
    source = plain_file(TABLE, compression=compression)
    data = encrypt_bytes(
        source,
        FileEncryptionProperties(
            footer_key=FOOTER_KEY, column_keys=COLUMNS, plaintext_footer=True,
            encryption_algorithm="AES_GCM_CTR_V1",
        ),
    )  # fmt: skip
    labelled = change_footer(data, FOOTER_KEY, relabel("AES_GCM_CTR_V1", "AES_GCM_V1"))
    for _, _, found in inspect_each_way(labelled, READER):
        assert found.footer_authenticated
        assert is_said(found.quirks, "ctr-label: ", "pages of AES_GCM_CTR_V1", "PyArrow up to 25")
        assert not is_said(found.quirks, "Inconsistent")
    for _, _, found in inspect_each_way(data, READER):
        assert not is_said(found.quirks, "says AES_GCM")


def test_a_forged_ctr_label_is_found_out_by_the_tag_of_a_page() -> None:
    forged = edit_crypto(encrypt_sample(), relabel("AES_GCM_V1", "AES_GCM_CTR_V1"))
    for _, _, found in inspect_each_way(forged, READER):
        assert found.algorithm == "AES_GCM_CTR_V1"
        assert found.footer_authenticated  # nothing protects the label
        assert is_said(found.quirks, "label was forged")


def test_a_stripped_signature_is_named() -> None:
    """PyArrow's key tools and Polars take such a file for plaintext."""
    body, tail, magic = forging.split_tail(encrypt_sample(plaintext_footer=True))
    metadata, _ = decode("FileMetaData", tail)
    metadata.encryption_algorithm = metadata.footer_signing_key_metadata = None
    stripped = forging.join_tail(body, encode(metadata), magic)
    for _, _, found in inspect_each_way(stripped, None, READER):
        assert found.encrypted
        assert found.algorithm is None
        assert not found.footer_authenticated
        assert is_said(found.quirks, "unsigned", "removed")
        assert not [region for region in found.regions if region.kind == "footer signature"]
        assert column(found, "id").key == "footer key"


@pytest.mark.parametrize("size", [10, 0])
def test_a_moved_border_of_the_prefix_is_named(size: int) -> None:
    def move(crypto: ThriftStruct) -> None:
        parameters = crypto.encryption_algorithm.AES_GCM_V1
        whole = parameters.aad_prefix + parameters.aad_file_unique
        border = len(whole) - size
        parameters.aad_prefix, parameters.aad_file_unique = whole[:border], whole[border:]

    moved = edit_crypto(encrypt_sample(aad_prefix=b"part.10"), move)
    for properties in (None, READER):
        found = inspect_parquet(moved, properties)
        assert found.aad_file_unique_size == size
        assert is_said(found.quirks, f"{size} bytes", "moved")
    assert not inspect_parquet(moved, reader_with_prefix(b"part.")).footer_authenticated


def test_ordinals_that_are_missing_or_out_of_order_are_named() -> None:
    def remove(metadata: ThriftStruct) -> None:
        for row_group in metadata.row_groups:
            row_group.ordinal = None

    def reverse(metadata: ThriftStruct) -> None:
        metadata.row_groups = metadata.row_groups[::-1]

    def drop(metadata: ThriftStruct) -> None:
        del metadata.row_groups[0]

    for _, _, found in inspect_each_way(
        change_footer(encrypt_sample(), FOOTER_KEY, remove), READER
    ):
        assert is_said(found.quirks, "3 of 3 row groups have no ordinal")
    for _, _, found in inspect_each_way(
        change_footer(encrypt_sample(), FOOTER_KEY, reverse), READER
    ):
        said = [quirk for quirk in found.quirks if "Inconsistent" in quirk]
        assert len(said) == 2  # modules open by ordinal
        assert all("row groups were reordered or removed" in quirk for quirk in said)
    for _, _, found in inspect_each_way(change_footer(encrypt_sample(), FOOTER_KEY, drop), READER):
        assert is_said(found.quirks, "reordered or removed")
        assert is_said(found.quirks, "rows, but its row groups have")
    assert not is_said(inspect_parquet(encrypt_sample(), READER).quirks, "ordinal")


def test_parts_that_overlap_or_lie_elsewhere_are_reported_and_every_byte_is_still_named() -> None:
    def overlap(metadata: ThriftStruct) -> None:
        chunk = metadata.row_groups[0].columns[4]  # in plaintext
        chunk.meta_data.data_page_offset -= 5
        chunk.meta_data.dictionary_page_offset -= 5

    def away(metadata: ThriftStruct) -> None:
        metadata.row_groups[0].columns[4].meta_data.total_compressed_size = 1 << 40

    for change, word in ((overlap, "inside"), (away, "do not lie between")):
        for _, _, found in inspect_each_way(
            change_footer(encrypt_sample(), FOOTER_KEY, change), READER
        ):
            assert is_said(found.quirks, "Inconsistent", word)


def test_a_part_that_lies_elsewhere_hides_no_other_part_of_its_chunk() -> None:
    def away(metadata: ThriftStruct) -> None:
        metadata.row_groups[0].columns[4].meta_data.total_compressed_size = 1 << 40

    def parts(data: bytes) -> set[str]:
        regions = inspect_parquet(data, READER).regions
        return {region.kind for region in regions if (region.row_group, region.column) == (0, 4)}

    data = encrypt_sample()
    others = parts(data) - {"pages"}
    assert others
    assert parts(change_footer(data, FOOTER_KEY, away)) == others


def test_after_a_damaged_page_header_the_next_pages_are_found() -> None:
    data = bytearray(encrypt_sample())
    (victim,) = (
        span for span in list_modules(bytes(data), READER)
        if span.module.type is ModuleType.DATA_PAGE_HEADER
        and (span.module.row_group, span.module.path, span.module.page) == (0, "score", 1)
    )  # fmt: skip
    data[victim.start + 20] ^= 1
    found = inspect_parquet(bytes(data), READER, pages=True)
    check_regions(found)
    (fault,) = (region for region in found.regions if region.state == "fault")
    assert (fault.start, fault.end) == (victim.start, victim.end)
    assert (fault.kind, fault.path, fault.page) == ("data page header", "score", 1)
    intact = inspect_parquet(encrypt_sample(), READER, pages=True)
    assert len(found.regions) == len(intact.regions)
    assert is_said(found.quirks, "data page header, row group 0, column score, page 1")


# --- keys that do not fit ------------------------------------------------------------------------


@pytest.mark.parametrize("plaintext_footer", [False, True], ids=["sealed", "signed"])
def test_a_wrong_footer_key_is_said_and_the_rest_is_shown(plaintext_footer: bool) -> None:
    data = encrypt_sample(plaintext_footer=plaintext_footer)
    wrong = FileDecryptionProperties(footer_key=OTHER_KEY)
    without = inspect_parquet(data)
    for _, _, found in inspect_each_way(data, wrong):
        assert not found.footer_authenticated
        assert is_said(found.hidden, "does not authenticate with the given key")
        assert found.num_rows == without.num_rows
        assert (found.columns is None) is not plaintext_footer
        if plaintext_footer:
            assert column(found, "id").has_key is False
            assert is_said(found.quirks, "does not open with the given key", "id")


def test_a_wrong_column_key_is_said() -> None:
    wrong = FileDecryptionProperties(
        footer_key=FOOTER_KEY, column_keys={"name": OTHER_KEY, "address": OTHER_KEY}
    )
    for plaintext_footer in (False, True):
        for _, _, found in inspect_each_way(
            encrypt_sample(plaintext_footer=plaintext_footer), wrong
        ):
            assert found.footer_authenticated
            assert column(found, "name").has_key is False
            assert column(found, "address.zip").has_key is True
            assert is_said(found.quirks, "Columns: name.")


def test_what_is_asked_of_the_prefix_counts() -> None:
    stored, supplied = (
        encrypt_sample(aad_prefix=PREFIX),
        encrypt_sample(aad_prefix=PREFIX, store_aad_prefix=False),
    )
    assert inspect_parquet(stored, reader_with_prefix(PREFIX)).footer_authenticated
    assert inspect_parquet(supplied, reader_with_prefix(PREFIX)).aad_prefix == PREFIX
    other = inspect_parquet(stored, reader_with_prefix(b"other"))
    assert not other.footer_authenticated
    assert other.columns is None
    assert other.aad_prefix == PREFIX
    assert is_said(other.hidden, "another AAD prefix")
    missing = inspect_parquet(supplied, READER)
    assert missing.needs_aad_prefix
    assert is_said(missing.hidden, "does not store", "pass aad_prefix")
    refused = FileDecryptionProperties(footer_key=FOOTER_KEY, aad_prefix_verifier=lambda _: False)
    assert is_said(inspect_parquet(stored, refused).hidden, "refuses")


def test_a_retriever_that_fails_is_no_error_of_the_file() -> None:
    data = with_key_metadata()
    asked: list[bytes] = []

    def retrieve(metadata: bytes) -> bytes:
        asked.append(metadata)
        if metadata == b"foot":
            return FOOTER_KEY
        raise mc.errors.KmsUnavailableError("nobody answers")

    found = inspect_parquet(data, FileDecryptionProperties(key_retriever=retrieve))
    assert found.footer_authenticated
    assert column(found, "name").has_key is False
    assert is_said(found.hidden, "nobody answers")
    assert asked == [b"foot", b"nome"]  # and no second column, for which nobody would answer

    def deny_keys(metadata: bytes) -> bytes:
        raise PermissionError

    found = inspect_parquet(data, FileDecryptionProperties(key_retriever=deny_keys))
    assert found.columns is None
    assert is_said(found.hidden, "was denied access")


@cache
def with_key_metadata() -> bytes:
    return encrypt_bytes(
        plain(),
        FileEncryptionProperties(
            footer_key=FOOTER_KEY, column_keys=COLUMNS, footer_key_metadata=b"foot",
            column_key_metadata={"name": b"nome", "address": b"addr"},
        ),
    )  # fmt: skip


# --- sources, and what is no Parquet file --------------------------------------------------------


def test_an_ags1_stream_is_sent_to_its_own_inspection() -> None:
    out = io.BytesIO()
    mc.encrypt_ags1(b"x" * 100, out, FOOTER_KEY)
    with pytest.raises(mc.errors.FormatError, match=r"read it with modcrypt\.ags1"):
        inspect_parquet(out.getvalue())


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1PAR1", b"x" * 100, b"PARE" + bytes(20)])
def test_what_is_no_parquet_file_is_a_format_error(data: bytes) -> None:
    with pytest.raises(mc.errors.FormatError):
        inspect_parquet(data)


def test_a_prefix_by_name_needs_a_name() -> None:
    properties = FileDecryptionProperties(footer_key=FOOTER_KEY, aad_prefix=str.encode)
    with pytest.raises(ValueError, match="name"):
        inspect_parquet(encrypt_sample(), properties)
    with pytest.raises(TypeError):
        inspect_parquet(encrypt_sample(), [FOOTER_KEY])  # type: ignore[arg-type]  # the test


def test_without_pages_no_page_is_read_but_for_the_first_ones_of_one_column() -> None:
    columns = {name: pa.array(range(250_000), pa.int64()) for name in "abcd"}
    data = encrypt_bytes(
        plain_file(pa.table(columns), compression="none", use_dictionary=False),
        FileEncryptionProperties(footer_key=FOOTER_KEY, plaintext_footer=True),
    )
    for properties, most in ((None, 20_000), (READER, 1_200_000)):
        source = Watched(data)
        inspect_parquet(source, properties)
        assert sum(source.taken) < most < len(data)


# --- secrets -------------------------------------------------------------------------------------


def check_shows_none_of(found: Inspection, *secrets: bytes) -> None:
    shown = [
        repr(found),
        json.dumps(found.fields()),
        mc.report.render_html(found),
        str(found.footer_key),
    ]
    shown += [repr(found.columns), repr(found.regions[:50])]
    for secret in secrets:
        spelt = {secret.decode("latin-1"), secret.hex(), repr(secret)[2:-1]}
        spelt |= {base64.b64encode(secret).decode().rstrip("="), repr(list(secret))[1:-1]}
        for text in shown:
            assert not [form for form in spelt if form in text]


def test_no_key_and_no_key_metadata_of_an_unknown_kind_is_shown() -> None:
    standard = mc.ags1.StandardKeyMetadata(key=b"Sk?xW4ce@9MnVt!7").encode()  # holds its key
    secrets = [b"Fk!qZ7wv%h2Tj-16", b"Ck:x8Hd~sGk5Qw=2", b"\x01opaque~metadata", standard]
    footer_key, column_key, opaque, _ = secrets
    for plaintext_footer in (False, True):
        data = encrypt_bytes(
            plain(),
            FileEncryptionProperties(
                footer_key=footer_key, column_keys={"name": column_key},
                footer_key_metadata=standard, column_key_metadata={"name": opaque},
                plaintext_footer=plaintext_footer,
            ),
        )  # fmt: skip
        keys = FileDecryptionProperties(footer_key=footer_key, column_keys={"name": column_key})
        wrong = FileDecryptionProperties(footer_key=column_key, column_keys={"name": footer_key})
        for _, _, found in inspect_each_way(data, None, wrong, keys):
            check_shows_none_of(found, *secrets)
            assert found.footer_key.kind == "opaque"
            assert found.footer_key.size == len(standard)


def test_a_password_in_a_key_services_address_is_not_shown() -> None:
    material = {
        "keyMaterialType": "PKMT1", "internalStorage": True, "isFooterKey": True,
        "kmsInstanceID": "inst", "kmsInstanceURL": "https://user:hunter2@kms.example/x?token=abc",
        "masterKeyID": "kf", "wrappedDEK": "d3JhcHBlZA==", "doubleWrapping": False,
    }  # fmt: skip
    data = encrypt_sample(footer_key_metadata=json.dumps(material).encode())
    found = inspect_parquet(data)
    reported = found.footer_key.kms_instance
    assert reported is not None
    assert "https://kms.example/x" in reported
    assert "never used" in reported
    check_shows_none_of(found, b"hunter2", b"token=abc", b"d3JhcHBlZA==")


# --- hostile bytes -------------------------------------------------------------------------------


@cache
def bases() -> list[bytes]:
    small = plain_file(small_table(6), **OPTIONS | {"max_rows_per_page": 3})
    writer = {"footer_key": FOOTER_KEY, "column_keys": COLUMNS, "plaintext_columns": ["day"]}
    return [
        small,
        encrypt_bytes(small, FileEncryptionProperties(**writer)),  # type: ignore[arg-type]  # as they are
        encrypt_bytes(small, FileEncryptionProperties(**writer, plaintext_footer=True)),  # type: ignore[arg-type]  # as they are
    ]


@given(st.data())
def test_any_bytes_give_an_inspection_or_an_error_of_ours(data: st.DataObject) -> None:
    base = bytearray(data.draw(st.sampled_from(bases())))
    from_end = st.integers(1, min(4000, len(base)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = len(base) - data.draw(from_end) if data.draw(st.booleans()) else 0
        at = max(0, min(len(base) - 1, at or data.draw(st.integers(0, len(base) - 1))))
        base[at] = data.draw(st.integers(0, 255))
    check_survives(bytes(base))


def test_a_length_field_that_reaches_into_the_next_page() -> None:
    data = bytearray(bases()[1])
    regions = inspect_parquet(bytes(data), READER, pages=True).regions
    header, following = [region for region in regions if region.column == 2][::2][:2]
    assert (header.kind, following.kind) == ("dictionary page header", "data page header")
    data[header.start] = following.start - header.start - 4 + 1
    found = inspect_parquet(bytes(data), READER, pages=True)
    check_regions(found)
    (fault,) = (region for region in found.regions if region.state == "fault")
    assert (fault.start, fault.end) == (header.start, following.start)


@given(st.data())
def test_any_footer_behind_its_lock_gives_an_inspection_or_an_error_of_ours(
    data: st.DataObject,
) -> None:
    """Footers changed by who holds the footer key, and sealed or signed again."""
    base = data.draw(st.sampled_from(bases()[1:]))
    file = forging.open_file(base, FOOTER_KEY)
    footer = bytearray(encode(file.metadata))
    for _ in range(data.draw(st.integers(1, 3))):
        footer[data.draw(st.integers(0, len(footer) - 1))] = data.draw(st.integers(0, 255))
    aad = file.file_aad + forging.FOOTER_SUFFIX
    if file.magic == b"PARE":
        tail = file.crypto + seal(FOOTER_KEY, bytes(footer), aad)
    else:
        tail = bytes(footer) + forging.sign(FOOTER_KEY, bytes(footer), aad)
    check_survives(forging.join_tail(file.body, tail, file.magic))


@given(st.binary(max_size=200), st.sampled_from([b"PAR1", b"PARE"]))
def test_any_footer_of_noise_gives_an_inspection_or_an_error_of_ours(
    noise: bytes, magic: bytes
) -> None:
    check_survives(magic + noise + len(noise).to_bytes(4, "little") + magic)


def check_survives(data: bytes) -> None:
    for properties in (None, READER):
        for pages in (False, True):
            try:
                found = inspect_parquet(data, properties, pages=pages)
            except mc.ModcryptError:
                continue
            check_regions(found)
            json.dumps(found.fields())
            mc.report.render_html(found)


@pytest.mark.parametrize("mode", ["encrypted", "plaintext"])
def test_files_that_parquet_go_wrote_are_named(mode: str) -> None:
    """Written by parquet-go/parquet-go 0.32.0; spec-vectors/README.md says what was changed."""
    vectors = ROOT / "spec-vectors/by-writer"
    data = (vectors / f"parquet-go-{mode}-footer.parquet").read_bytes()
    keys = FileDecryptionProperties(
        footer_key=b"0123456789012345", column_keys={"name": b"1234567890123450"}
    )
    found = inspect_parquet(data, keys, pages=True)
    assert found.footer_mode == mode
    assert sum(region.size for region in found.regions) == len(data)
    assert is_said(found.quirks, "parquet-go/parquet-go", "numbered")

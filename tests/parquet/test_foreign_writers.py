"""Files as some writers spell them, unlike PyArrow: every function takes them.

Each is made from a file of PyArrow's by the change that makes it like the writer's.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt.io.places import place_of
from modcrypt.io.sources import open_source
from modcrypt.parquet.format.idl import ThriftStruct, copy, decode, encode
from modcrypt.parquet.rewrite.rekey import rekey_in_place
from tests.support import forging
from tests.support.in_memory import run
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.module_spans import list_modules

TABLE = pa.table({"id": pa.array(range(100), pa.int64()), "name": [str(i % 7) for i in range(100)]})
UNIFORM = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
OTHER = mc.FileEncryptionProperties(footer_key=OTHER_KEY)
READER = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
OTHER_READER = mc.FileDecryptionProperties(footer_key=OTHER_KEY)


def columns(metadata: ThriftStruct) -> list[ThriftStruct]:
    """Return the metadata of all column chunks."""
    return [chunk.meta_data for row_group in metadata.row_groups for chunk in row_group.columns]


def check_everything(sealed: bytes, table: pa.Table = TABLE) -> None:
    """Have every function take an encrypted file, which is under the footer key alone."""
    assert mc.verify_parquet(sealed, READER).ok
    assert not [q for q in mc.inspect_parquet(sealed, READER, pages=True).quirks if "fit" in q]
    assert list_modules(sealed, READER)
    assert mc.read_table(sealed, READER).equals(table)
    with mc.open_parquet(sealed, READER) as view:
        assert pq.read_table(view, use_threads=False).equals(table)
    plain = run(mc.decrypt_parquet, sealed, READER)
    assert pq.read_table(io.BytesIO(plain)).equals(table)
    for copy_, reader in (
        (run(mc.rekey_parquet, sealed, READER, OTHER), OTHER_READER),
        (run(mc.share_parquet, sealed, READER, OTHER, table.column_names), OTHER_READER),
        (run(mc.mask_parquet, sealed, READER, null=table.column_names[:1]), READER),
        (run(mc.mask_parquet, sealed, READER, drop=table.column_names[:1]), READER),
    ):
        assert mc.verify_parquet(copy_, reader).ok
        last = table.column_names[-1]
        assert mc.read_table(copy_, reader)[last].equals(table[last])


def check_round_trips(plain: bytes) -> bytes:
    """Encrypt a file, decrypt it, also after it was re-keyed: the bytes come back."""
    sealed = run(mc.encrypt_parquet, plain, UNIFORM)
    assert run(mc.decrypt_parquet, sealed, READER) == plain
    again = run(mc.rekey_parquet, sealed, READER, OTHER)
    assert run(mc.decrypt_parquet, again, OTHER_READER) == plain
    apart = mc.FileEncryptionProperties(
        footer_key=OTHER_KEY, column_keys={"id": COLUMN_KEY}, plaintext_footer=True
    )
    keys = {"id": COLUMN_KEY}
    reader = mc.FileDecryptionProperties(footer_key=OTHER_KEY, column_keys=keys)
    for file, opener in ((sealed, READER), (again, OTHER_READER)):
        third = run(mc.rekey_parquet, file, opener, apart)
        assert run(mc.decrypt_parquet, third, reader) == plain
    return sealed


# --- parquet-java before 1.14: bloom filters without a length -------------------------------------


def without_bloom_length(metadata: ThriftStruct) -> None:
    for md in columns(metadata):
        md.bloom_filter_length = None


BLOOM: dict[str, Any] = {"bloom_filter_options": {"name": {"ndv": 7}}, "row_group_size": 40}


def test_encrypted_files_without_bloom_filter_lengths_are_taken() -> None:
    sealed = run(mc.encrypt_parquet, forging.plain_file(TABLE, **BLOOM), UNIFORM)
    file = forging.change_footer(sealed, FOOTER_KEY, without_bloom_length)
    check_everything(file)
    modules = [str(span.module) for span in list_modules(file, READER)]
    again = run(mc.rekey_parquet, file, READER, OTHER)
    assert [str(span.module) for span in list_modules(again, OTHER_READER)] == modules
    assert mc.read_table(again, OTHER_READER, filters=[("name", "=", "x")]).num_rows == 0


def test_a_rotation_in_place_takes_bloom_filters_without_a_length(tmp_path: Path) -> None:
    sealed = run(mc.encrypt_parquet, forging.plain_file(TABLE, **BLOOM), UNIFORM)
    path = tmp_path / "file.parquet"
    path.write_bytes(forging.change_footer(sealed, FOOTER_KEY, without_bloom_length))
    place = place_of(path, None)
    assert place is not None
    with open_source(path) as source:
        rekey_in_place(source, place, READER, OTHER)
    assert mc.verify_parquet(path, OTHER_READER).ok
    assert mc.read_table(path, OTHER_READER).equals(TABLE)


def test_plaintext_files_without_bloom_filter_lengths_come_back() -> None:
    plain = forging.edit_plain(forging.plain_file(TABLE, **BLOOM), without_bloom_length)
    check_everything(check_round_trips(plain))


# --- Impala: encodings name a dictionary that is not there ----------------------------------------


def like_impala(metadata: ThriftStruct) -> None:
    for md in columns(metadata):
        md.encoding_stats, md.encodings = None, [2, 3, 0]  # PLAIN_DICTIONARY, RLE, PLAIN


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_chunks_that_only_claim_a_dictionary_get_encoding_statistics(version: str) -> None:
    plain = forging.plain_file(
        TABLE, use_dictionary=["name"], row_group_size=40, data_page_version=version
    )
    file = check_round_trips(forging.edit_plain(plain, like_impala))
    written = columns(forging.open_file(file, FOOTER_KEY).metadata)
    id_stats, name_stats = written[0].encoding_stats, written[1].encoding_stats
    assert [(s.page_type, s.encoding, s.count) for s in id_stats] == [
        (0 if version == "1.0" else 3, 0, 1)
    ]
    assert name_stats is None, "a dictionary is there, and parquet-java finds it by the encodings"
    check_everything(file)
    quirks = " ".join(mc.inspect_parquet(file, READER).quirks)
    assert "Encryption added encoding statistics" in quirks


def test_a_dictionary_that_encodings_do_not_name_gets_encoding_statistics() -> None:
    def change(metadata: ThriftStruct) -> None:
        for md in columns(metadata):
            md.encoding_stats, md.encodings = None, [3, 0]

    file = check_round_trips(forging.edit_plain(forging.plain_file(TABLE), change))
    for md in columns(forging.open_file(file, FOOTER_KEY).metadata):
        assert [s.page_type for s in md.encoding_stats] == [2, 0]


def test_statistics_that_a_file_has_are_not_removed_with_those_that_were_added() -> None:
    def change(metadata: ThriftStruct) -> None:
        md = columns(metadata)[0]
        md.encoding_stats, md.encodings = None, [2, 0]

    plain = forging.edit_plain(forging.plain_file(TABLE, use_dictionary=["name"]), change)
    file = run(mc.encrypt_parquet, plain, UNIFORM)
    back = columns(forging.read_plain_footer(run(mc.decrypt_parquet, file, READER)))
    assert back[1].encoding_stats == columns(forging.read_plain_footer(plain))[1].encoding_stats


def test_inspect_names_encrypted_chunks_that_mislead_parquet_java() -> None:
    plain = forging.plain_file(TABLE, use_dictionary=False)
    sealed = run(mc.encrypt_parquet, plain, UNIFORM)
    file = forging.change_footer(sealed, FOOTER_KEY, like_impala)
    (quirk,) = (q for q in mc.inspect_parquet(file, READER).quirks if "parquet-java" in q)
    assert "Impala" in quirk
    assert quirk.endswith("Columns: id, name.")
    readable = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, plaintext_footer=True)
    file = run(mc.encrypt_parquet, forging.edit_plain(plain, like_impala), readable)
    for reader in (None, READER):  # what a legacy reader sees has no encoding statistics
        assert "opens the first page" not in " ".join(mc.inspect_parquet(file, reader).quirks)


# --- parquet-rs 0.3, and snapshots of parquet-mr --------------------------------------------------


def test_a_footer_that_counts_no_rows_comes_back_and_is_encrypted_with_their_number() -> None:
    def change(metadata: ThriftStruct) -> None:
        metadata.num_rows = 0

    file = check_round_trips(
        forging.edit_plain(forging.plain_file(TABLE, row_group_size=40), change)
    )
    assert forging.open_file(file, FOOTER_KEY).metadata.num_rows == 100
    check_everything(file)


def test_a_plaintext_file_that_counts_no_rows_is_masked_and_encrypted_in_one_pass() -> None:
    def change(metadata: ThriftStruct) -> None:
        metadata.num_rows = 0

    plain = forging.edit_plain(forging.plain_file(TABLE), change)
    lenient = mc.FileDecryptionProperties(require_encrypted=False)
    masked = run(mc.mask_parquet, plain, lenient, UNIFORM, null=["name"])
    assert mc.read_table(masked, READER)["id"].equals(TABLE["id"])


@pytest.mark.parametrize("rows", [1, 99, 101, -1])
def test_a_footer_that_counts_other_rows_is_refused(rows: int) -> None:
    def change(metadata: ThriftStruct) -> None:
        metadata.num_rows = rows

    plain = forging.edit_plain(forging.plain_file(TABLE), change)
    with pytest.raises(mc.errors.FormatError, match="but its row groups have 100"):
        run(mc.encrypt_parquet, plain, UNIFORM)


def test_an_encrypted_footer_that_counts_no_rows_is_refused() -> None:
    def change(metadata: ThriftStruct) -> None:
        metadata.num_rows = 0

    sealed = run(mc.encrypt_parquet, forging.plain_file(TABLE), UNIFORM)
    with pytest.raises(mc.errors.FormatError, match="but its row groups have 100"):
        mc.read_table(forging.change_footer(sealed, FOOTER_KEY, change), READER)


def test_a_field_of_another_type_comes_back() -> None:
    def change(metadata: ThriftStruct) -> None:
        for md in columns(metadata):  # a list where bloom_filter_length has its id
            md._unknown = [(15, 9, b"\x15\x02")]

    plain = forging.edit_plain(forging.plain_file(TABLE), change)
    assert plain.count(b"\x29\x15\x02") == 2
    sealed = run(mc.encrypt_parquet, plain, UNIFORM)
    assert run(mc.decrypt_parquet, sealed, READER) == plain
    check_everything(sealed)


def edit_column_indexes(plain: bytes, change: Callable[[ThriftStruct], object]) -> bytes:
    """Change the column indexes of a file; the new ones stand in front of the footer."""
    body, tail, magic = forging.split_tail(plain)
    metadata, _ = decode("FileMetaData", tail)
    for row_group in metadata.row_groups:
        for chunk in row_group.columns:
            index = decode("ColumnIndex", body, chunk.column_index_offset)[0]
            change(index)
            chunk.column_index_offset, spelt = len(body), encode(index)
            chunk.column_index_length = len(spelt)
            body += spelt
    return forging.join_tail(body, encode(metadata), magic)


def test_null_counts_below_zero_are_unknown() -> None:
    def change(index: ThriftStruct) -> None:
        index.null_counts = [-1 for _ in index.null_pages]

    plain = forging.plain_file(TABLE, write_page_index=True, row_group_size=40)
    plain = edit_column_indexes(plain, change)
    file = run(mc.encrypt_parquet, plain, UNIFORM)
    check_everything(file)
    assert mc.read_table(file, READER, filters=[("id", ">", 97)]).num_rows == 2
    assert mc.read_table(file, READER, filters=[("id", ">", 100)]).num_rows == 0


def test_null_counts_that_are_known_are_still_judged() -> None:
    def change(index: ThriftStruct) -> None:
        index.null_counts = [-1, 3][: len(index.null_pages)] + [0] * (len(index.null_pages) - 2)

    plain = forging.plain_file(
        TABLE, write_page_index=True, max_rows_per_page=20, write_batch_size=20
    )
    plain = edit_column_indexes(plain, change)
    file = run(mc.encrypt_parquet, plain, UNIFORM)
    assert mc.read_table(file, READER).equals(TABLE)
    assert [f for f in mc.verify_parquet(plain).findings if "null" in f.message]
    assert any("hid column indexes" in quirk for quirk in mc.inspect_parquet(file, READER).quirks)


# --- arrow-go: bloom filters that only the metadata for legacy readers places ---------------------


def hide_bloom_filters(data: bytes) -> bytes:
    """Move the places of bloom filters from the encrypted metadata to the plaintext copy."""
    file = forging.open_file(data, FOOTER_KEY)
    for r, row_group in enumerate(file.metadata.row_groups):
        for c, chunk in enumerate(row_group.columns):
            aad = file.file_aad + forging.module_suffix(1, r, c)
            opened = forging.open_module(FOOTER_KEY, chunk.encrypted_column_metadata, aad)
            metadata, _ = decode("ColumnMetaData", opened)
            for field in ("bloom_filter_offset", "bloom_filter_length"):
                setattr(chunk.meta_data, field, getattr(metadata, field))
                setattr(metadata, field, None)
            chunk.encrypted_column_metadata = forging.seal(FOOTER_KEY, encode(metadata), aad)
    return file.seal_footer(FOOTER_KEY)


def test_bloom_filters_that_the_signed_footer_places_are_used() -> None:
    signed = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, plaintext_footer=True)
    sealed = run(mc.encrypt_parquet, forging.plain_file(TABLE, **BLOOM), signed)
    file = hide_bloom_filters(sealed)
    check_everything(file)
    assert mc.verify_parquet(file, READER).modules == mc.verify_parquet(sealed, READER).modules
    plain = pq.ParquetFile(io.BytesIO(run(mc.decrypt_parquet, file, READER)))
    assert plain.metadata.row_group(0).column(1).bloom_filter_offset is not None


def test_places_of_bloom_filters_without_a_verified_signature_are_not_used() -> None:
    signed = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, plaintext_footer=True)
    sealed = run(mc.encrypt_parquet, forging.plain_file(TABLE, **BLOOM), signed)
    reader = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, check_footer_integrity=False)
    plain = pq.ParquetFile(io.BytesIO(run(mc.decrypt_parquet, hide_bloom_filters(sealed), reader)))
    assert plain.metadata.row_group(0).column(1).bloom_filter_offset is None


# --- an element that is itself repeated -----------------------------------------------------------


def write_unannotated_lists() -> bytes:
    """Make lists inside a group without LIST: `repeated int64 values`."""
    required = pa.list_(pa.field("element", pa.int64(), nullable=False))
    inner = [pa.field("values", required, nullable=False), pa.field("n", pa.int64(), False)]
    table = pa.table(
        [pa.array([{"values": [1, 2], "n": 7}, {"values": [], "n": 8}], pa.struct(inner))],
        schema=pa.schema([pa.field("group", pa.struct(inner), nullable=False)]),
    )

    def change(metadata: ThriftStruct) -> None:
        root, group, _, _, element, n = metadata.schema
        leaf = copy(element)
        leaf.name, leaf.repetition_type = b"values", 2
        metadata.schema = [root, group, leaf, n]
        columns(metadata)[0].path_in_schema = [b"group", b"values"]

    plain = forging.plain_file(table, store_schema=False)
    return forging.edit_plain(plain, change)


def test_nulls_in_lists_that_can_hold_none_are_empty_lists() -> None:
    plain = write_unannotated_lists()
    rows = [{"values": [1, 2], "n": 7}, {"values": [], "n": 8}]
    assert pq.read_table(io.BytesIO(plain))["group"].to_pylist() == rows
    file = run(mc.encrypt_parquet, plain, UNIFORM)
    masked = run(mc.mask_parquet, file, READER, null=["group.values"])
    assert mc.verify_parquet(masked, READER).ok
    found = mc.read_table(masked, READER)["group"].to_pylist()
    assert found == [{"values": [], "n": 7}, {"values": [], "n": 8}]


# --- DuckDB up to 0.10.0: data_page_offset without the dictionary's header ------------------------

PLAINTEXT = mc.FileDecryptionProperties(require_encrypted=False)


def forget_dictionary_headers(plain: bytes) -> bytes:
    """Subtract the sizes of dictionary headers from the data_page_offsets, as DuckDB does."""

    def change(metadata: ThriftStruct) -> None:
        for md in columns(metadata):
            if at := md.dictionary_page_offset:
                md.data_page_offset -= decode("PageHeader", plain, at)[1] - at
        metadata.created_by = b"DuckDB"

    return forging.edit_plain(plain, change)


@pytest.mark.parametrize("dictionaries", [["name"], ["id", "name"]])
@pytest.mark.parametrize(("rows", "codec"), [(1, "none"), (100, "none"), (100, "zstd")])
def test_offsets_that_forget_the_dictionarys_header_are_corrected(
    dictionaries: Any, rows: int, codec: str
) -> None:
    table = TABLE.slice(0, rows)
    plain = forget_dictionary_headers(
        forging.plain_file(table, use_dictionary=dictionaries, row_group_size=30, compression=codec)
    )
    assert pq.read_table(io.BytesIO(plain)).equals(table)
    assert mc.read_table(plain, PLAINTEXT).equals(table)
    sealed = run(mc.encrypt_parquet, plain, UNIFORM)
    check_everything(sealed, table)
    assert run(mc.decrypt_parquet, sealed, READER) == plain
    corrected = run(mc.decrypt_parquet, sealed, READER, exact=False)
    restored = forging.read_plain_footer(corrected)
    usual = forging.plain_file(
        table, use_dictionary=dictionaries, row_group_size=30, compression=codec
    )
    wanted = columns(forging.read_plain_footer(usual))
    assert [md.data_page_offset for md in columns(restored)] == [
        md.data_page_offset for md in wanted
    ]
    masked = io.BytesIO()
    mc.mask_parquet(plain, masked, PLAINTEXT, null=["id"], encryption=UNIFORM)
    assert mc.read_table(masked.getvalue(), READER)["name"].equals(table["name"])


def test_a_plaintext_column_keeps_its_offset_and_is_no_fault() -> None:
    plain = forget_dictionary_headers(forging.plain_file(TABLE, row_group_size=30))
    apart = mc.FileEncryptionProperties(
        footer_key=FOOTER_KEY, column_keys={"id": COLUMN_KEY}, plaintext_columns=["name"]
    )
    reader = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, column_keys={"id": COLUMN_KEY})
    sealed = run(mc.encrypt_parquet, plain, apart)
    for data, given in ((plain, PLAINTEXT), (sealed, reader)):
        verified = mc.verify_parquet(data, given)
        assert verified.ok
        warnings = [found.message for found in verified.findings]
        names = [w.split(":")[0] for w in warnings if "DuckDB up to 0.10.0" in w]
        assert names == (["Column id", "Column name"] if data is plain else ["Column name"])
        quirks = mc.inspect_parquet(data, given, pages=True).quirks
        assert [q for q in quirks if q in warnings] == warnings
        assert mc.read_table(data, given).equals(TABLE)
    again = run(mc.rekey_parquet, sealed, reader, UNIFORM)
    check_everything(again)


def test_an_encrypted_chunk_with_such_an_offset_is_refused() -> None:
    """No writer encrypts such a chunk: the offset would be an alteration."""

    def change(metadata: ThriftStruct) -> None:
        for md in columns(metadata):
            md.data_page_offset -= 13

    sealed = run(mc.encrypt_parquet, forging.plain_file(TABLE), UNIFORM)
    forged = forging.change_footer(sealed, FOOTER_KEY, change)
    assert not mc.verify_parquet(forged, READER).ok
    with pytest.raises(mc.errors.FormatError, match="data_page_offset"):
        run(mc.decrypt_parquet, forged, READER)
    with pytest.raises(mc.errors.FormatError, match="data_page_offset"):
        run(mc.rekey_parquet, forged, READER, OTHER)


def test_an_offset_beyond_the_first_data_page_is_refused() -> None:
    def change(metadata: ThriftStruct) -> None:
        for md in columns(metadata):
            md.data_page_offset += 1

    with pytest.raises(mc.errors.FormatError, match="data_page_offset"):
        run(mc.encrypt_parquet, forging.edit_plain(forging.plain_file(TABLE), change), UNIFORM)


# --- data pages V2 of Arrow C++ up to 11 and parquetjs: num_rows of lists ------------------------

LISTS = pa.table(
    {
        "deep": [[[n], [n, n + 1]] if n % 4 else None for n in range(90)],
        "list": [[n, n + 1][: n % 3] for n in range(90)],
        "structs": [[{"a": n}, {"a": None}] for n in range(90)],
        "flat": list(range(90)),
    }
)


def count_values_as_rows(plain: bytes) -> bytes:
    def change(header: ThriftStruct) -> None:
        if header.data_page_header_v2 is not None:
            header.data_page_header_v2.num_rows = header.data_page_header_v2.num_values

    return forging.edit_page_headers(plain, change)


def write_lists(table: pa.Table = LISTS, **options: Any) -> bytes:
    return forging.plain_file(
        table, data_page_version="2.0", row_group_size=40, write_batch_size=5, data_page_size=60,
        **options,
    )  # fmt: skip


@pytest.mark.parametrize("levels", ["encrypted", "plaintext"])
@pytest.mark.parametrize("options", [{}, {"compression": "none"}, {"use_dictionary": False}])
def test_rows_of_lists_that_are_values_are_a_quirk(options: dict[str, Any], levels: Any) -> None:
    plain = count_values_as_rows(write_lists(**options))
    assert pq.read_table(io.BytesIO(plain)).equals(LISTS)
    verified = mc.verify_parquet(plain, PLAINTEXT)
    assert verified.ok
    named = {f.message.split(":")[0] for f in verified.findings if "parquetjs" in f.message}
    lists = ["deep.list.element.list.element", "list.list.element", "structs.list.element.a"]
    assert named == {f"Column {path}" for path in lists}
    assert len(verified.findings) == len(lists)  # not one for each row group
    assert any("parquetjs" in q for q in mc.inspect_parquet(plain, pages=True).quirks)
    encryption = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, data_page_v2_levels=levels)
    sealed = run(mc.encrypt_parquet, plain, encryption)
    check_everything(sealed, LISTS)
    quirky = [f for f in mc.verify_parquet(sealed, READER).findings if "parquetjs" in f.message]
    assert bool(quirky) == (levels == "encrypted")  # else the headers count the rows
    if levels == "encrypted":
        assert run(mc.decrypt_parquet, sealed, READER) == plain


def test_altered_levels_are_found_although_the_writer_counted_values() -> None:
    plain = count_values_as_rows(write_lists(LISTS.select(["list"]), compression="none"))
    encryption = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, data_page_v2_levels="plaintext")
    sealed = bytearray(run(mc.encrypt_parquet, plain, encryption))
    modules = list_modules(bytes(sealed), READER)
    body = next(found for found in modules if found.module.type.name == "DATA_PAGE")
    sealed[body.start + 1] ^= 0xFF  # in the repetition levels
    assert not mc.verify_parquet(bytes(sealed), READER).ok
    with pytest.raises(mc.ModcryptError):
        mc.read_table(bytes(sealed), READER)


@pytest.mark.parametrize("rows", [0, 1, 1000])
def test_other_numbers_of_rows_are_faults(rows: int) -> None:
    def change(header: ThriftStruct) -> None:
        if header.data_page_header_v2 is not None:
            header.data_page_header_v2.num_rows = rows

    plain = forging.edit_page_headers(write_lists(), change)
    assert not mc.verify_parquet(run(mc.encrypt_parquet, plain, UNIFORM), READER).ok


# --- data pages V2 of Arrow C++ before 3.0: compressed, although their headers deny it -----------


LARGE = pa.table(
    {
        "deep": [[[7, n // 900], [7] * 9] if n % 4 else None for n in range(1800)],
        "list": [[7, 7, 7, n // 900] for n in range(1800)],
        "flat": [n // 900 for n in range(1800)],
    }
)


def write_large(codec: str) -> bytes:
    return forging.plain_file(
        LARGE, data_page_version="2.0", row_group_size=700, write_batch_size=100,
        data_page_size=1000, use_dictionary=False, compression=codec,
    )  # fmt: skip


def deny_compression(plain: bytes, created_by: bytes) -> bytes:
    def change(header: ThriftStruct) -> None:
        if header.data_page_header_v2 is not None:
            assert header.data_page_header_v2.is_compressed  # PyArrow 26 leaves some pages as is
            header.data_page_header_v2.is_compressed = False

    def rename(metadata: ThriftStruct) -> None:
        metadata.created_by = created_by

    return forging.edit_plain(forging.edit_page_headers(plain, change), rename)


@pytest.mark.parametrize(
    ("created_by", "codec", "levels"),
    [
        (b"parquet-cpp version 1.5.1-SNAPSHOT", "snappy", "encrypted"),
        (b"parquet-cpp version 1.5.1-SNAPSHOT", "zstd", "plaintext"),
        (b"parquet-cpp", "gzip", "encrypted"),
        (b"parquet-cpp version 0.9 (build 1)", "lz4", "encrypted"),
    ],
)
def test_pages_of_old_arrow_are_compressed_whatever_they_say(
    created_by: bytes, codec: str, levels: Any
) -> None:
    plain = deny_compression(write_large(codec), created_by)
    assert pq.read_table(io.BytesIO(plain)).equals(LARGE)
    assert mc.read_table(plain, PLAINTEXT).equals(LARGE)
    encryption = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, data_page_v2_levels=levels)
    sealed = run(mc.encrypt_parquet, plain, encryption)
    check_everything(sealed, LARGE)
    assert run(mc.decrypt_parquet, sealed, READER) == plain
    masked = run(
        mc.mask_parquet, sealed, READER, hashed=["flat"], null=["list"], hash_key=b"k" * 32
    )
    found = mc.read_table(masked, READER)
    assert found["deep"].equals(LARGE["deep"])
    assert found["list"].null_count == len(LARGE)
    assert mc.read_table(sealed, READER, filters=[("flat", "=", 1)]).equals(LARGE.slice(900))


@pytest.mark.parametrize(
    "created_by",
    [b"parquet-cpp-arrow version 26.0.1", b"Parquet-CPP", b"parquet-cpp version 2.0.0", b""],
)
def test_other_writers_must_say_that_pages_are_compressed(created_by: bytes) -> None:
    plain = deny_compression(write_large("zstd"), created_by)
    with pytest.raises(mc.errors.FormatError, match="an uncompressed page"):
        run(mc.encrypt_parquet, plain, UNIFORM)

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
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.module_spans import list_modules

TABLE = pa.table({"id": pa.array(range(100), pa.int64()), "name": [str(i % 7) for i in range(100)]})
UNIFORM = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
OTHER = mc.FileEncryptionProperties(footer_key=OTHER_KEY)
READER = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
OTHER_READER = mc.FileDecryptionProperties(footer_key=OTHER_KEY)


def run(function: Callable[..., Any], file: bytes, *arguments: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    function(file, out, *arguments, **options)
    return out.getvalue()


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
    with pytest.raises(mc.FormatError, match="but its row groups have 100"):
        run(mc.encrypt_parquet, plain, UNIFORM)


def test_an_encrypted_footer_that_counts_no_rows_is_refused() -> None:
    def change(metadata: ThriftStruct) -> None:
        metadata.num_rows = 0

    sealed = run(mc.encrypt_parquet, forging.plain_file(TABLE), UNIFORM)
    with pytest.raises(mc.FormatError, match="but its row groups have 100"):
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
    report = mc.verify_parquet(file, READER)
    assert mc.read_table(file, READER).equals(TABLE)
    assert [f for f in report.findings if "null" in f.message]


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

"""Thrift fields that modcrypt does not know: who may see them, and which copies keep them.

The files have such fields in every struct, each with the struct's name in it.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt.parquet.format.idl import decode, encode, extension, set_extension
from tests.support import forging
from tests.support.cases import each_case
from tests.support.in_memory import run
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tools import unknown_fields
from tools.unknown_fields import EXTENSION, mark, marker, with_unknown_fields

TABLE = pa.table(
    {
        "id": pa.array(range(8), pa.int64()),
        "name": ["Ann", "Bob"] * 4,
        "when": pa.array([1, None] * 4, pa.timestamp("ms")),
    }
)
UNIFORM = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
READER = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
BOTH_KEYS = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, column_keys={"name": COLUMN_KEY})
NAME_APART: dict[str, Any] = {"footer_key": FOOTER_KEY, "column_keys": {"name": COLUMN_KEY}}

# What is encrypted apart from the footer, with the key of the column that it describes.
OF_PAGES = {"PageHeader", "DataPageHeader", "DictionaryPageHeader"}
OF_INDEXES = {"ColumnIndex", "OffsetIndex", "PageLocation"}
OF_BLOOM_FILTERS = {"BloomFilterHeader", "SplitBlockAlgorithm", "XxHash", "Uncompressed"}
OF_METADATA = {"ColumnMetaData", "Statistics", "SizeStatistics", "PageEncodingStats"}
OF_CHUNKS = OF_PAGES | OF_INDEXES | OF_BLOOM_FILTERS | OF_METADATA


@cache
def source(version: str = "1.0") -> tuple[bytes, frozenset[str]]:
    """Return a plaintext file with unknown fields everywhere, and the structs that have them."""
    plain = forging.plain_file(
        TABLE, row_group_size=4, write_page_index=True, write_page_checksum=True,
        bloom_filter_options={"id": {"ndv": 8}, "name": {"ndv": 2}},
        sorting_columns=[pq.SortingColumn(0)], data_page_version=version,
    )  # fmt: skip
    marked, structs = with_unknown_fields(plain)
    return marked, frozenset(structs)


def structs_in(data: bytes) -> set[str]:
    """Name the structs whose unknown fields stand in some bytes."""
    return {struct for struct in source("1.0")[1] | source("2.0")[1] if marker(struct) in data}


@cache
def encrypt_source(version: str = "1.0") -> bytes:
    return run(mc.encrypt_parquet, source(version)[0], UNIFORM)


def decrypt_file(
    file: bytes, reader: mc.FileDecryptionProperties = READER, **options: Any
) -> bytes:
    return run(mc.decrypt_parquet, file, reader, **options)


def test_the_files_have_unknown_fields_at_every_level() -> None:
    data, structs = source()
    assert pq.read_table(io.BytesIO(data)).equals(TABLE)
    assert structs > OF_CHUNKS | {"FileMetaData", "RowGroup", "ColumnChunk", "SchemaElement"}
    assert structs > {"KeyValue", "SortingColumn", "StringType", "TypeDefinedOrder"}
    assert "DataPageHeaderV2" in source("2.0")[1]
    assert structs_in(data) == structs


# --- where nothing is left out ------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_under_one_key_a_file_comes_back_byte_for_byte(version: str) -> None:
    assert decrypt_file(encrypt_source(version)) == source(version)[0]
    assert structs_in(encrypt_source(version)) == set()


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("extra_id", [-1, -16_384, -32_768])
def test_negative_ids_are_like_other_unknown_ids(
    monkeypatch: pytest.MonkeyPatch, extra_id: int, version: str
) -> None:
    """Databricks' Photon 16.4 writes -16384 in its footer; here every struct has such a field."""
    monkeypatch.setattr(unknown_fields, "UNUSED", extra_id)
    monkeypatch.setattr(unknown_fields, "EXTENSION", extra_id)  # so that no other field follows
    plain, structs = source.__wrapped__(version)
    assert pq.read_table(io.BytesIO(plain)).equals(TABLE)
    assert mc.inspect_parquet(plain).size == len(plain)
    for encryption in (UNIFORM, mc.FileEncryptionProperties(**NAME_APART, plaintext_footer=True)):
        file = run(mc.encrypt_parquet, plain, encryption, keep_unknown_fields=True)
        assert decrypt_file(file, BOTH_KEYS) == plain
        file = run(mc.encrypt_parquet, plain, encryption)
        assert mc.read_table(file, BOTH_KEYS).equals(TABLE)
        assert mc.verify_parquet(file, BOTH_KEYS).ok
        with mc.open_parquet(file, BOTH_KEYS) as view:
            assert pq.read_table(view, use_threads=False).equals(TABLE)
    assert structs > OF_CHUNKS - {"DataPageHeader"}
    masked = run(mc.mask_parquet, run(mc.encrypt_parquet, plain, UNIFORM), READER, null=["name"])
    assert b"<unknown to" not in decrypt_file(masked)


def test_re_keying_under_one_key_keeps_every_byte() -> None:
    other = mc.FileEncryptionProperties(footer_key=OTHER_KEY)
    copy = run(mc.rekey_parquet, encrypt_source(), READER, other)
    assert decrypt_file(copy, mc.FileDecryptionProperties(footer_key=OTHER_KEY)) == source()[0]


@pytest.mark.parametrize(
    ("more", "keys"),
    [({"plaintext_footer": True}, {}), ({"column_keys": {"name": COLUMN_KEY}},) * 2],
)
def test_re_keying_keeps_a_footer_that_others_may_not_see(
    more: dict[str, Any], keys: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """As the extension of Databricks' Photon; what page headers and indexes have is lost."""
    writer = mc.FileEncryptionProperties(footer_key=OTHER_KEY, **more)
    reader = mc.FileDecryptionProperties(footer_key=OTHER_KEY, **keys)
    plain = forging.edit_plain(forging.plain_file(TABLE), lambda f: set_extension(f, b"\0photon"))
    file = run(mc.encrypt_parquet, plain, UNIFORM)
    copy = run(mc.rekey_parquet, file, READER, writer)
    assert b"photon" not in copy
    assert decrypt_file(copy, reader) == plain
    assert caplog.messages == []
    copy = run(mc.rekey_parquet, encrypt_source(), READER, writer)
    assert "will not restore every byte: page headers or indexes have fields" in caplog.text
    back = decrypt_file(copy, reader)
    assert back != source()[0]
    assert pq.read_table(io.BytesIO(back)).equals(TABLE)


def test_readers_of_the_encrypted_file_do_not_find_its_old_extension() -> None:
    # It may repeat offsets, and they are those of the plaintext file.
    data = forging.plain_file(TABLE)
    plain = forging.edit_plain(data, lambda metadata: set_extension(metadata, b"offsets"))
    file = run(mc.encrypt_parquet, plain, UNIFORM)
    note = extension(forging.open_file(file, FOOTER_KEY).metadata)
    assert note is not None
    assert note.startswith(b"offsets")
    assert not note.endswith(b"offsets")
    assert decrypt_file(file) == plain
    view = mc.open_parquet(file, READER).read()
    assert extension(forging.read_plain_footer(view)) is None


@pytest.mark.parametrize("tail", ["of an extension", "of a note"])
def test_an_extension_that_looks_like_a_note_is_only_an_extension(tail: str) -> None:
    data = forging.plain_file(TABLE)
    file = run(mc.encrypt_parquet, data, UNIFORM)
    note = extension(forging.open_file(file, FOOTER_KEY).metadata)
    assert note is not None
    if tail == "of an extension":
        nested = forging.edit_plain(data, lambda metadata: set_extension(metadata, b"theirs"))
        file = run(mc.encrypt_parquet, nested, UNIFORM)
        note = extension(forging.open_file(file, FOOTER_KEY).metadata)
    plain = forging.edit_plain(data, lambda metadata: set_extension(metadata, note))
    assert decrypt_file(run(mc.encrypt_parquet, plain, UNIFORM)) == plain


# --- where columns have other readers than the footer --------------------------------------------


def test_with_column_keys_the_footer_loses_them_and_sealed_modules_keep_theirs() -> None:
    file = run(mc.encrypt_parquet, source()[0], mc.FileEncryptionProperties(**NAME_APART))
    assert structs_in(file) == set()
    metadata = forging.open_file(file, FOOTER_KEY).metadata
    assert structs_in(encode(metadata)) == set()
    assert structs_in(decrypt_file(file, BOTH_KEYS, exact=False)) == OF_CHUNKS
    assert decrypt_file(file, BOTH_KEYS) == source()[0]
    assert mc.read_table(file, BOTH_KEYS).equals(TABLE)


ENCRYPTIONS: dict[str, dict[str, Any]] = {
    "plaintext footer": {"plaintext_footer": True},
    "plaintext footer, column key": {"plaintext_footer": True, "column_keys": {"name": COLUMN_KEY}},
    "plaintext column": {"plaintext_columns": ["id", "name"]},
    "plaintext footer and column": {"plaintext_footer": True, "plaintext_columns": ["id"]},
}


@each_case("options", ENCRYPTIONS.values(), ids=ENCRYPTIONS)
@each_case("version", ["1.0", "2.0"])
def test_nobody_without_a_key_sees_one(options: dict[str, Any], version: str) -> None:
    data, structs = source(version)
    encryption = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, **options)
    reader = BOTH_KEYS if "column_keys" in options else READER
    for file in (
        run(mc.encrypt_parquet, data, encryption),
        run(mc.rekey_parquet, encrypt_source(version), READER, encryption),
    ):
        assert structs_in(file) == set()
        assert mc.verify_parquet(file, reader).ok
        assert mc.read_table(file, reader).equals(TABLE)
    kept = run(mc.encrypt_parquet, data, encryption, keep_unknown_fields=True)
    assert structs_in(kept) or "plaintext_footer" not in options
    assert decrypt_file(kept, reader) == data
    assert structs_in(decrypt_file(kept, reader)) == structs


def test_arrow_tables_are_written_by_the_same_rule() -> None:
    plain = forging.plain_file(TABLE)
    encryption = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, plaintext_columns=["id"])
    out = io.BytesIO()
    mc.write_table(TABLE, out, encryption)
    assert decrypt_file(out.getvalue()) == decrypt_file(run(mc.encrypt_parquet, plain, encryption))


# --- copies that lack something -------------------------------------------------------------------

HASH_KEY = bytes(range(16))
COPIES: dict[str, Callable[..., bytes]] = {
    "share": lambda file, **o: run(mc.share_parquet, file, READER, UNIFORM, ["id", "when"], **o),
    "share all": lambda file, **o: run(
        mc.share_parquet, file, READER, UNIFORM, TABLE.column_names, **o
    ),
    "drop": lambda file, **o: run(mc.mask_parquet, file, READER, drop=["name"], **o),
    "null": lambda file, **o: run(mc.mask_parquet, file, READER, null=["name"], **o),
    "hash": lambda file, **o: run(
        mc.mask_parquet, file, READER, hashed=["name"], hash_key=HASH_KEY, **o
    ),
}


@each_case("name", COPIES)
@each_case("version", ["1.0", "2.0"])
def test_copies_without_some_values_have_none(name: str, version: str) -> None:
    copy = COPIES[name](encrypt_source(version))
    plain = decrypt_file(copy)
    assert structs_in(copy + plain) == set()
    assert mc.verify_parquet(copy, READER).ok
    table = pq.read_table(io.BytesIO(plain))
    assert table.select(["id", "when"]).equals(TABLE.select(["id", "when"]))


@pytest.mark.parametrize("name", COPIES)
def test_copies_of_plaintext_files_have_none(name: str) -> None:
    lenient = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, require_encrypted=False)
    options: dict[str, Any] = {
        "share": {"columns": ["id"]},
        "share all": {"columns": TABLE.column_names},
        "hash": {"hashed": ["name"], "hash_key": HASH_KEY},
    }.get(name, {name: ["name"]})
    function = mc.share_parquet if "columns" in options else mc.mask_parquet
    copy = run(function, source()[0], lenient, UNIFORM, **options)
    assert structs_in(copy + decrypt_file(copy)) == set()


@pytest.mark.parametrize("name", COPIES)
def test_they_stay_on_request(name: str) -> None:
    assert "FileMetaData" in structs_in(
        decrypt_file(COPIES[name](encrypt_source(), keep_unknown_fields=True))
    )


@pytest.mark.parametrize("what", ["drop", "null"])
@pytest.mark.parametrize("plaintext_columns", [(), ("id",)])
def test_decryption_without_all_keys_keeps_none(what: Any, plaintext_columns: Any) -> None:
    encryption = mc.FileEncryptionProperties(**NAME_APART, plaintext_columns=plaintext_columns)
    # Another writer, or the option, left them in.
    file = run(mc.encrypt_parquet, source()[0], encryption, keep_unknown_fields=True)
    reader = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, on_missing_key=what)
    plain = decrypt_file(file, reader)
    assert structs_in(plain) == set()
    assert pq.read_table(io.BytesIO(plain)).column("id").to_pylist() == list(range(8))
    assert structs_in(mc.open_parquet(file, reader).read()) <= OF_CHUNKS - OF_METADATA
    assert "FileMetaData" in structs_in(decrypt_file(file, reader, keep_unknown_fields=True))
    everything = mc.FileDecryptionProperties(
        footer_key=FOOTER_KEY, column_keys={"name": COLUMN_KEY}, on_missing_key=what
    )
    assert decrypt_file(file, everything) == source()[0]


def test_a_copy_of_a_bloom_filter_of_an_unknown_kind_is_refused() -> None:
    """A union can't lose its only member."""
    plain = forging.plain_file(TABLE, bloom_filter_options={"id": {"ndv": 8}})
    at = forging.read_plain_footer(plain).row_groups[0].columns[0].meta_data.bloom_filter_offset
    block, other = b"\x1c\x1c\x00\x00", b"\x1c\x9c\x15\x02\x00\x00"  # with an i32 in it
    assert plain[at : at + 20].count(block) == 3
    grown = plain[:at] + plain[at:].replace(block, other, 1)

    def shift(metadata: Any) -> None:
        md = metadata.row_groups[0].columns[0].meta_data
        md.bloom_filter_length += len(other) - len(block)

    file = run(mc.encrypt_parquet, forging.edit_plain(grown, shift), UNIFORM)
    assert decrypt_file(file) == forging.edit_plain(grown, shift)
    with pytest.raises(mc.errors.UnsupportedFormatError, match="keep_unknown_fields=True"):
        run(mc.share_parquet, file, READER, UNIFORM, ["id"])
    run(mc.share_parquet, file, READER, UNIFORM, ["id"], keep_unknown_fields=True)


def test_crypto_structs_of_the_source_do_not_reach_a_copy() -> None:
    structs: set[str] = set()

    def change(metadata: Any) -> None:
        for chunk in metadata.row_groups[0].columns:
            key = chunk.crypto_metadata.ENCRYPTION_WITH_FOOTER_KEY
            mark(key, structs)

    file = forging.change_footer(
        run(mc.encrypt_parquet, forging.plain_file(TABLE), UNIFORM), FOOTER_KEY, change
    )
    assert structs == {"EncryptionWithFooterKey"}
    copy = run(mc.rekey_parquet, file, READER, UNIFORM)
    (text,) = (marker(name) for name in structs)
    assert text not in encode(forging.open_file(copy, FOOTER_KEY).metadata)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_views_show_no_field_beyond_the_last_id(version: str) -> None:
    """A view lengthens structs by a field after their last one, and 32767 has none after it."""
    with mc.open_parquet(encrypt_source(version), READER) as view:
        data = view.read()
        assert pq.read_table(view, use_threads=False).equals(TABLE)
    assert structs_in(data).isdisjoint(OF_PAGES | OF_INDEXES | OF_BLOOM_FILTERS)
    md = forging.read_plain_footer(data).row_groups[0].columns[0].meta_data
    decode("PageHeader", data, md.dictionary_page_offset)
    decode("BloomFilterHeader", data, md.bloom_filter_offset)


@pytest.mark.parametrize("ids", [(32_753,), (32_751, 32_766), (32_766, 32_767)])
def test_pages_whose_fields_have_the_last_ids_are_read(ids: tuple[int, ...]) -> None:
    plain = source()[0]
    at = forging.read_plain_footer(plain).row_groups[0].columns[1].meta_data.dictionary_page_offset
    header, end = decode("PageHeader", plain, at)
    size = end - at
    text = b"\x02of"
    header._unknown = [(field_id, 8, text) for field_id in ids]
    # A field of as many bytes keeps every offset.
    filler = (20, 8, b"")
    header._unknown.insert(0, filler)
    length = size - len(encode(header)) - 1
    header._unknown[0] = (20, 8, bytes((length,)) + bytes(length))
    changed = plain[:at] + encode(header) + plain[end:]
    assert len(changed) == len(plain)
    file = run(mc.encrypt_parquet, changed, UNIFORM)
    assert decrypt_file(file) == changed
    assert mc.read_table(file, READER).equals(TABLE)


# --- inspect --------------------------------------------------------------------------------------


def leaks(file: bytes, reader: mc.FileDecryptionProperties | None = None) -> list[str]:
    found = mc.inspect_parquet(file, reader, pages=True).leaks
    return [sentence for sentence in found if "modcrypt does not know" in sentence]


def test_inspect_says_which_structs_of_a_readable_footer_have_them() -> None:
    encryption = mc.FileEncryptionProperties(
        footer_key=FOOTER_KEY, plaintext_footer=True, plaintext_columns=["id"]
    )
    assert leaks(run(mc.encrypt_parquet, forging.plain_file(TABLE), encryption)) == []
    kept = run(mc.encrypt_parquet, source()[0], encryption, keep_unknown_fields=True)
    in_columns, in_footer = leaks(kept)
    assert "PageHeader (8 fields)" in in_columns
    assert "ColumnIndex (4 fields)" in in_columns
    assert "ColumnChunk (12 fields)" in in_footer


def test_inspect_names_every_struct() -> None:
    encryption = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, plaintext_footer=True)
    for struct in ("FileMetaData", "RowGroup", "ColumnChunk", "SchemaElement", "SortingColumn"):

        def change(metadata: Any, struct: str = struct) -> None:
            row_group = metadata.row_groups[0]
            value = {
                "FileMetaData": metadata, "RowGroup": row_group,
                "ColumnChunk": row_group.columns[0], "SchemaElement": metadata.schema[1],
                "SortingColumn": row_group.sorting_columns[0],
            }[struct]  # fmt: skip
            value._unknown = [(99, 5, b"\x02")]

        plain = forging.plain_file(TABLE, sorting_columns=[pq.SortingColumn(0)])
        plain = forging.edit_plain(plain, change)
        file = run(mc.encrypt_parquet, plain, encryption, keep_unknown_fields=True)
        (sentence,) = leaks(file)
        assert f": {struct} (1 field)." in sentence


def test_inspect_says_what_the_footer_key_alone_shows() -> None:
    kept = run(
        mc.encrypt_parquet, source()[0], mc.FileEncryptionProperties(**NAME_APART),
        keep_unknown_fields=True,
    )  # fmt: skip
    assert leaks(kept) == []
    (sentence,) = leaks(kept, READER)
    assert "in a footer that the footer key opens" in sentence
    assert "RowGroup (4 fields)" in sentence
    assert leaks(encrypt_source(), READER) == [], "who sees them has the key of every column"


def test_the_extension_is_the_id_that_the_format_reserves() -> None:
    assert EXTENSION == 32_767

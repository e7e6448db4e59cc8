"""Plaintext footers and the note of the fields that encryption adds.

arrow-go, and PyArrow before 23, verify a footer's signature over a footer that they encode again,
without fields that their IDL lacks: each plaintext footer must survive that unchanged.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt.io.sources import MemorySource
from modcrypt.module_ids import GCM_CTR_V1, GCM_V1
from modcrypt.parquet.crypto.footer import mark_absent
from modcrypt.parquet.crypto.footer_keys import new_tail
from modcrypt.parquet.format.idl import decode, encode, extension, set_extension
from tests.support import forging
from tests.support.cases import each_case, one_in
from tests.support.in_memory import run
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.paths import ROOT
from tests.support.tables import small_table
from tests.support.thrift_judge import WRITERS, judge_rewrites
from tools.module_vectors import KEYS

TABLE = small_table(20)
COLUMNS = {"id": COLUMN_KEY, "name": OTHER_KEY}
READER = mc.FileDecryptionProperties(
    footer_key=FOOTER_KEY, column_keys=COLUMNS, accept_algorithms=(GCM_V1, GCM_CTR_V1)
)
OPTIONS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "column keys": {"column_keys": COLUMNS},
    "plaintext column": {"column_keys": COLUMNS, "plaintext_columns": ["score"]},
    "ctr": {"encryption_algorithm": GCM_CTR_V1},
    "prefix": {"aad_prefix": b"table/part"},
    "key metadata": {
        "footer_key_metadata": b"",
        "column_keys": COLUMNS,
        "column_key_metadata": {"id": b"ki", "name": b""},
    },
}


def plaintext_footer(**options: Any) -> mc.FileEncryptionProperties:
    return mc.FileEncryptionProperties(footer_key=FOOTER_KEY, plaintext_footer=True, **options)


WITHOUT_COLUMN_KEYS = mc.FileDecryptionProperties(
    footer_key=FOOTER_KEY, accept_algorithms=(GCM_V1, GCM_CTR_V1)
)


def footer_in(file: bytes) -> bytes:
    """Return the footer that a file's signature covers."""
    return forging.split_tail(file)[1][:-28]


def survives(file: bytes) -> bool:
    footer = footer_in(file)
    assert file.endswith(b"PAR1")
    return judge_rewrites("FileMetaData", footer) == footer


# --- footers that readers encode again -----------------------------------------------------------


@each_case("options", OPTIONS.values(), ids=OPTIONS, quick=one_in(2))
@each_case("writer", WRITERS)
def test_an_encrypted_file_survives_and_comes_back(
    writer: str, options: dict[str, Any], tmp_path: Path
) -> None:
    plain = WRITERS[writer](tmp_path)
    names = pq.read_schema(io.BytesIO(plain)).names
    if "column_keys" in options and not {*COLUMNS, "score"} <= set(names):
        options = {"column_keys": {names[0]: COLUMN_KEY}}
    file = run(mc.encrypt_parquet, plain, plaintext_footer(**options))
    assert survives(file)
    keys = options.get("column_keys", {})
    reader = mc.FileDecryptionProperties(
        footer_key=FOOTER_KEY, column_keys=keys, accept_algorithms=(GCM_V1, GCM_CTR_V1)
    )
    if writer != "polars":  # which leaves bytes between chunks
        assert run(mc.decrypt_parquet, file, reader) == plain
    assert mc.verify_parquet(file, reader).ok
    with mc.open_parquet(file, reader) as view:
        shown = forging.read_plain_footer(view.read())
    chunks = [chunk for row_group in shown.row_groups for chunk in row_group.columns]
    assert [extension(chunk.meta_data) for chunk in chunks] == [None] * len(chunks)


def rotate(file: bytes) -> bytes:
    tail = new_tail(MemorySource(file), READER, lambda old, _: old + b"+")
    assert tail is not None
    return file[: tail.start] + tail.data


MIXED = plaintext_footer(column_keys=COLUMNS, column_key_metadata={"id": b"ki"})
COPIES: dict[str, Callable[[bytes], bytes]] = {
    "rekey": lambda file: run(mc.rekey_parquet, file, READER, plaintext_footer()),
    "share": lambda file: run(
        mc.share_parquet, file, READER, plaintext_footer(), ["name", "score"]
    ),
    "drop": lambda file: run(mc.mask_parquet, file, READER, drop=["id"]),
    "null": lambda file: run(mc.mask_parquet, file, READER, null=["id"]),
    "hash": lambda file: run(
        mc.mask_parquet, file, READER, hashed=["name"], hash_key=bytes(range(16))
    ),
    "rotate": rotate,
}


@each_case("name", COPIES)
@each_case("source", ["a footer of the same kind", "an encrypted footer"])
def test_copies_survive(name: str, source: str) -> None:
    if source == "an encrypted footer" and name not in ("rekey", "share"):
        return  # these keep the kind of the footer
    encryption = MIXED
    if source == "an encrypted footer":
        encryption = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, column_keys=COLUMNS)
    file = run(mc.encrypt_parquet, forging.plain_file(TABLE, row_group_size=8), encryption)
    assert survives(COPIES[name](file))


def write_in_steps(path: Path) -> None:
    with mc.ParquetWriter(path, TABLE.schema, MIXED) as writer:
        for _ in range(3):
            writer.write_table(TABLE)


ARROW_WRITERS: dict[str, Callable[[Path], object]] = {
    "table": lambda path: mc.write_table(TABLE, path, MIXED, row_group_size=7),
    "no rows": lambda path: mc.write_table(TABLE.slice(0, 0), path, MIXED),
    "frame": lambda path: mc.write_table(pl.DataFrame(TABLE), path, MIXED, row_group_size=7),
    "steps": write_in_steps,
    "folder": lambda path: mc.write_dataset(
        TABLE, path.parent, MIXED, basename_template="file-{i}.parquet"
    ),
}


@pytest.mark.parametrize("name", ARROW_WRITERS)
def test_files_of_arrow_tables_survive(name: str, tmp_path: Path) -> None:
    ARROW_WRITERS[name](tmp_path / "file-0.parquet")
    file = (tmp_path / "file-0.parquet").read_bytes()
    assert survives(file)
    if name != "frame":  # Polars numbers row groups itself
        plain = forging.read_plain_footer(run(mc.decrypt_parquet, file, READER))
        assert {row_group.ordinal for row_group in plain.row_groups} == {None}


def test_lists_with_a_long_header_get_the_short_one() -> None:
    plain = forging.plain_file(TABLE)
    encodings = forging.read_plain_footer(plain).row_groups[0].columns[0].meta_data.encodings
    short = bytes((0x19, len(encodings) << 4 | 5))  # field 2 after field 1: a list of i32
    long = bytes((0x19, 0xF5, len(encodings)))
    body, footer, magic = forging.split_tail(plain)
    assert footer.count(short) >= len(TABLE.column_names)
    plain = forging.join_tail(body, footer.replace(short, long), magic)
    assert judge_rewrites("FileMetaData", forging.split_tail(plain)[1]) == footer
    for options in ({}, {"plaintext_columns": ["name"]}):
        assert survives(run(mc.encrypt_parquet, plain, plaintext_footer(**options)))


# --- the note ------------------------------------------------------------------------------------


def test_the_note_is_in_the_first_encrypted_chunk_alone() -> None:
    plain = forging.plain_file(TABLE, row_group_size=5)
    first, *others = TABLE.column_names
    file = run(mc.encrypt_parquet, plain, plaintext_footer(plaintext_columns=[first]))
    metadata = forging.open_file(file, FOOTER_KEY).metadata
    notes = []
    for r, c in itertools.product(range(4), range(1, len(others))):
        encrypted = metadata.row_groups[r].columns[c].encrypted_column_metadata
        aad = forging.open_file(file, FOOTER_KEY).file_aad + forging.module_suffix(1, r, c)
        notes.append(extension(decode("ColumnMetaData", forging.open_module(
            FOOTER_KEY, encrypted, aad))[0]))  # fmt: skip
    assert notes[0] is not None
    assert notes[0].startswith(b"ordinal")
    assert set(notes[1:]) == {None}


def test_an_encrypted_footer_has_the_note() -> None:
    file = run(
        mc.encrypt_parquet,
        forging.plain_file(TABLE),
        mc.FileEncryptionProperties(footer_key=FOOTER_KEY),
    )
    note = extension(forging.open_file(file, FOOTER_KEY).metadata)
    assert note is not None
    assert note.startswith(b"ordinal")


def test_the_note_in_a_plaintext_footer_of_older_files_is_used() -> None:
    """modcrypt before 1.0 wrote it there."""
    vectors = ROOT / "spec-vectors"
    file = (vectors / "by-writer" / "modcrypt-note-in-footer.parquet").read_bytes()
    plain = (vectors / "parquet" / "plain" / "flat.parquet").read_bytes()
    columns = dict.fromkeys(("buyer", "owner", "name", "kind"), KEYS["column-a-128"])
    keys: dict[str, Any] = {
        "footer_key": KEYS["footer-128"],
        "column_keys": columns | {"address": KEYS["column-b-128"]},
    }
    reader = mc.FileDecryptionProperties(**keys)
    assert not survives(file)
    assert run(mc.decrypt_parquet, file, reader) == plain
    encryption = mc.FileEncryptionProperties(**keys, plaintext_footer=True)
    copy = run(mc.rekey_parquet, file, reader, encryption)
    assert survives(copy)
    assert run(mc.decrypt_parquet, copy, reader) == plain
    assert not [leak for leak in mc.inspect_parquet(file, reader).leaks if "does not know" in leak]


@pytest.mark.parametrize("tail", ["of an extension", "of a note"])
def test_an_extension_of_the_first_chunk_comes_back(tail: str) -> None:
    note = b"theirs"
    if tail == "of a note":
        metadata = forging.read_plain_footer(forging.plain_file(TABLE))
        mark_absent(metadata, frozenset({"file_offset"}))
        note = extension(metadata) or b""

    def change(metadata: Any) -> None:
        for chunk in metadata.row_groups[0].columns:
            set_extension(chunk.meta_data, note)

    plain = forging.edit_plain(forging.plain_file(TABLE), change)
    file = run(mc.encrypt_parquet, plain, plaintext_footer())
    assert survives(file)
    assert run(mc.decrypt_parquet, file, WITHOUT_COLUMN_KEYS) == plain


def test_without_the_key_of_its_chunk_the_added_fields_stay() -> None:
    file = run(mc.encrypt_parquet, forging.plain_file(TABLE), plaintext_footer(column_keys=COLUMNS))
    reader = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, on_missing_key="drop")
    plain = run(mc.decrypt_parquet, file, reader)
    assert pq.read_table(io.BytesIO(plain)).equals(TABLE.drop(list(COLUMNS)))
    assert forging.read_plain_footer(plain).row_groups[0].ordinal == 0


def test_a_signed_file_has_no_other_field_that_readers_drop() -> None:
    key = mc.SigningKey.generate()
    file = run(mc.encrypt_parquet, forging.plain_file(TABLE), plaintext_footer(signing_key=key))
    footer = footer_in(file)
    metadata = decode("FileMetaData", footer)[0]
    assert extension(metadata) is not None
    set_extension(metadata, None)
    assert judge_rewrites("FileMetaData", footer) == encode(metadata)
    assert pa.table(mc.read_table(file, WITHOUT_COLUMN_KEYS)).equals(TABLE)


@pytest.mark.parametrize("keep", [False, True])
def test_chunks_with_unknown_fields_show_no_more(keep: bool) -> None:
    plain = (ROOT / "spec-vectors" / "parquet" / "plain" / "unknown-fields.parquet").read_bytes()
    file = run(mc.encrypt_parquet, plain, plaintext_footer(), keep_unknown_fields=keep)
    for row_group in decode("FileMetaData", footer_in(file))[0].row_groups:
        for chunk in row_group.columns:
            assert chunk.encrypted_column_metadata is not None
            assert chunk.meta_data.statistics is None
            assert extension(chunk.meta_data) is None
    if keep:
        assert run(mc.decrypt_parquet, file, WITHOUT_COLUMN_KEYS) == plain

"""Files without rows that are kept for other files of the same schema."""

from __future__ import annotations

import io
from functools import partial
from typing import Any

import pyarrow as pa

import modcrypt as mc
from modcrypt.parquet.arrow.decoding import Decoder
from modcrypt.parquet.arrow.schema_files import SchemaFile, SchemaFiles
from tests.support.keys import FOOTER_KEY

KEYS = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)


def write(table: pa.Table) -> bytes:
    file = io.BytesIO()
    mc.write_table(table, file, mc.FileEncryptionProperties(footer_key=FOOTER_KEY))
    return file.getvalue()


def schema_file(data: bytes, **options: Any) -> object:
    with mc.ParquetFile(data, KEYS, **options) as file:
        return file.open_schema([0])


def test_files_of_one_schema_share_a_file() -> None:
    first, second = (write(pa.table({"a": [n], "b": ["x"]})) for n in range(2))
    assert schema_file(first) is schema_file(second)


def test_other_types_metadata_and_options_have_files_of_their_own() -> None:
    table = pa.table({"a": ["x"]})
    variants = (
        table,
        pa.table({"a": [1]}),
        table.replace_schema_metadata({"by": "us"}),
        table.cast(pa.schema([pa.field("a", pa.string(), nullable=False)])),
    )
    data = [write(variant) for variant in variants]
    files = [*map(schema_file, data), schema_file(data[0], read_dictionary=["a"])]
    assert len({id(file) for file in files}) == len(files)
    for variant, content in zip(variants, data, strict=True):
        assert mc.read_table(content, KEYS).schema.equals(variant.schema, check_metadata=True)


def test_only_the_last_files_are_kept() -> None:
    files = SchemaFiles(16)
    made: list[int] = []

    def make(schema: int) -> SchemaFile:
        made.append(schema)
        return SchemaFile(pa.py_buffer(b""), Decoder("none"))

    for schema in (*range(16), 0, 16, 0, 1):
        files.get(schema, partial(make, schema))
    assert made == [*range(17), 1]


def test_wide_files_are_not_compared() -> None:
    wide = pa.table({f"column {n}": [n] for n in range(300)})
    assert schema_file(write(wide)) is not schema_file(write(wide))
    with mc.ParquetFile(write(wide), KEYS) as file:
        assert file.open_schema([0]) is file.open_schema([0])
        assert file.schema_arrow.equals(wide.schema)

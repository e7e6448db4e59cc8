"""Data files whose rows PyArrow loses."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pytest

import modcrypt as mc
from modcrypt.iceberg.read.data_files import ParquetDataFile, _open_plaintext
from modcrypt.iceberg.read.pyarrow_decryption import open_natively
from modcrypt.io.sources import MemorySource
from modcrypt.keys.metadata import StandardKeyMetadata
from modcrypt.parquet.arrow.decoding import DECODER
from tests.support.forging import plain_file
from tests.support.keys import FOOTER_KEY

KEYS = StandardKeyMetadata(key=FOOTER_KEY, aad_prefix=b"prefix")
TABLE = pa.table({"id": range(3), "c": pa.array([[1], None, [3, 4]], pa.list_(pa.int64()))})
# PyArrow 26.0.1 writes an empty page first, which it takes for the end of the chunk.
SMALL: dict[str, Any] = {"row_group_size": 1, "data_page_size": 1, "write_batch_size": 1}


def test_rows_that_pyarrow_loses_are_read_from_the_plaintext() -> None:
    out = io.BytesIO()
    properties = mc.FileEncryptionProperties(
        footer_key=FOOTER_KEY, aad_prefix=b"prefix", store_aad_prefix=False
    )
    mc.write_table(TABLE, out, properties, **SMALL)
    source = MemorySource(out.getvalue())
    native = open_natively(source, KEYS)
    assert native is not None
    file = ParquetDataFile(native, lambda: _open_plaintext(source, KEYS), None)
    batches = list(file.batches(["c"], None, threads=False))
    assert [batch.start for batch in batches] == [0, 1, 2]
    rows = pa.Table.from_batches([batch.rows for batch in batches])
    assert rows["c"].to_pylist() == TABLE["c"].to_pylist()


def test_a_lost_row_of_a_plaintext_file_is_an_error_that_names_the_decoder() -> None:
    source = MemorySource(plain_file(TABLE, **SMALL))
    file = ParquetDataFile(None, lambda: _open_plaintext(source, None), source)
    with pytest.raises(mc.errors.FormatError, match=f"row group 0: {DECODER} decoded 0 of 1 rows"):
        list(file.batches(["c"], None, threads=False))

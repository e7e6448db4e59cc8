"""Files one of whose columns nobody can read any more."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

import modcrypt as mc
from tests.support.jobs.lake import TABLE, read
from tests.support.kms.rotating_kms import BasicKms, crypto_factory

MASTERS = {"kf": 1, "k1": 1, "k2": 1}


def read_by_pyarrow(path: Path, kms: BasicKms, columns: list[str]) -> pa.Table:
    properties = crypto_factory(kms).file_decryption_properties(
        pe.KmsConnectionConfig(), parquet_file_path=str(path)
    )
    with pq.ParquetFile(path, decryption_properties=properties) as file:
        return file.read(columns=columns)


def check_column_is_gone(
    path: Path, kms: BasicKms, column: str = "name", table: pa.Table = TABLE
) -> None:
    """Read a file with PyArrow and modcrypt: all but one column."""
    rest = [name for name in table.column_names if name != column]
    assert read_by_pyarrow(path, kms, rest).equals(table.select(rest))
    with pytest.raises(OSError, match=r"key"):
        read_by_pyarrow(path, kms, [column])
    with pytest.raises(mc.errors.KeyNotFoundError, match=column):
        read(path, kms)
    for how, names in (("drop", rest), ("null", table.column_names)):
        rows = mc.read_table(path, mc.KeyTools(kms).decryption(on_missing_key=how))
        assert rows.column_names == names
        assert rows.select(rest).equals(table.select(rest))
        assert how == "drop" or rows[column].null_count == len(rows)

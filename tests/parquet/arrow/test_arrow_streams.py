"""Frames and streams of other libraries are written, and files are read as such streams."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import modcrypt as mc
import modcrypt.parquet as mpq
from modcrypt.parquet.arrow.arrow_streams import split_table
from tests.support.cases import each_case
from tests.support.keys import COLUMN_KEY, FOOTER_KEY

ENCRYPTION = mc.FileEncryptionProperties(footer_key=FOOTER_KEY, column_keys={"name": COLUMN_KEY})
KEYS = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, column_keys={"name": COLUMN_KEY})
TABLE = pa.table({"id": [1, 2, 3], "name": ["Ada", None, "Grace"]})


class Stream:
    """A provider of a stream, and of nothing else."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return TABLE.__arrow_c_stream__(requested_schema)


SOURCES: dict[str, Callable[[], Any]] = {
    "pandas": lambda: TABLE.to_pandas(),
    "DuckDB": lambda: duckdb.from_arrow(TABLE),
    "Polars": lambda: pl.DataFrame(TABLE),
    "reader": lambda: TABLE.to_reader(max_chunksize=2),
    "batch": lambda: TABLE.to_batches()[0],
    "stream": Stream,
}
WRITERS: dict[str, Callable[[Any, Path], object]] = {
    "write_table": lambda data, path: mc.write_table(data, path, ENCRYPTION),
    "drop-in": lambda data, path: mpq.write_table(data, path, encryption_properties=ENCRYPTION),
    "write_dataset": lambda data, path: mc.write_dataset(data, path, ENCRYPTION),
    "drop-in dataset": lambda data, path: mpq.write_to_dataset(
        data, path, encryption_properties=ENCRYPTION
    ),
}


@each_case("writer", WRITERS)
@each_case("name", SOURCES)
def test_whatever_provides_a_stream_is_written(name: str, writer: str, tmp_path: Path) -> None:
    WRITERS[writer](SOURCES[name](), tmp_path / "data")
    assert mc.read_table(tmp_path / "data", KEYS).to_pylist() == TABLE.to_pylist()


def test_plaintext_takes_the_same_sources(tmp_path: Path) -> None:
    mpq.write_table(TABLE.to_pandas(), tmp_path / "plain.parquet")
    assert mpq.read_table(tmp_path / "plain.parquet").to_pylist() == TABLE.to_pylist()


def test_the_index_of_a_pandas_frame_comes_back(tmp_path: Path) -> None:
    frame = pd.DataFrame({"name": ["Ada", "Grace"]}, index=pd.Index([7, 9], name="number"))
    mc.write_table(frame, tmp_path / "frame", ENCRYPTION)
    back = mpq.read_pandas(tmp_path / "frame", ["name"], decryption_properties=KEYS).to_pandas()
    pd.testing.assert_frame_equal(back, frame)


def test_a_stream_that_fails_leaves_no_file(tmp_path: Path) -> None:
    def fail() -> Iterator[pa.RecordBatch]:
        yield from TABLE.to_batches()
        raise RuntimeError("no more")

    reader = pa.RecordBatchReader.from_batches(TABLE.schema, fail())
    with pytest.raises(RuntimeError, match="no more"):
        mc.write_table(reader, tmp_path / "half", ENCRYPTION)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_a_stream(tmp_path: Path) -> None:
    mc.write_table(TABLE, tmp_path / "file", ENCRYPTION, row_group_size=2)
    with mc.ParquetFile(tmp_path / "file", KEYS) as file:
        assert pa.table(file).equals(TABLE)
        assert pl.DataFrame(file).equals(pl.DataFrame(TABLE))
    with mpq.ParquetFile(tmp_path / "file", decryption_properties=KEYS) as file:
        assert duckdb.from_arrow(pa.RecordBatchReader.from_stream(file)).count("id").fetchall() == [
            (3,)
        ]


def test_a_stream_of_altered_bytes_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    mc.write_table(TABLE, path, ENCRYPTION)
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    # Only text passes through Arrow's C stream, so that the consumer raises an error of its own.
    with (
        mc.ParquetFile(bytes(data), KEYS) as file,
        pytest.raises(pa.ArrowInvalid, match=r"TagMismatchError: .* the tag does not match"),
    ):
        pa.table(file)


def test_a_stream_needs_the_keys_of_all_columns(tmp_path: Path) -> None:
    mc.write_table(TABLE, tmp_path / "file", ENCRYPTION)
    keys = mc.FileDecryptionProperties(footer_key=FOOTER_KEY)
    with mc.ParquetFile(tmp_path / "file", keys) as file, pytest.raises(mc.errors.KeyNotFoundError):
        pa.table(file)


class LazyRows:
    """A query that is not a table yet, as `polars.LazyFrame`."""

    def collect(self) -> None:
        """Run the query."""


@pytest.mark.parametrize(
    ("data", "method"),
    [(pd.Series([1], name="n"), "to_frame"), (pl.Series([1]), "to_frame"), (LazyRows(), "collect")],
)
def test_data_that_are_not_a_table_yet_name_the_method(data: object, method: str) -> None:
    with pytest.raises(TypeError, match=rf"not \w+; call its {method}\(\) first$"):
        mc.write_table(data, io.BytesIO(), ENCRYPTION)


def test_large_rows_come_in_small_batches() -> None:
    """Also where a few rows are most of a table."""
    texts = ["x" * (100_000 if n > 90 else 1) for n in range(100)]
    for column in (texts, pa.array(texts).dictionary_encode()):
        table = pa.table({"n": range(100), "text": column, "list": [[text] for text in texts]})
        parts = list(split_table(table, 250_000))
        assert pa.Table.from_batches(parts).equals(table)
        assert max(part.nbytes for part in parts) <= 250_000 or isinstance(column, pa.Array)
        assert max(part["list"].nbytes for part in parts) <= 250_000
    assert len(list(split_table(pa.table({"text": texts}), 1))) == 100

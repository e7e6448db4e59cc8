"""Small files are read together if that yields what each of them yields alone."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt.errors import KeyNotFoundError, PlaintextError, TagMismatchError
from modcrypt.parquet.arrow import chunk_loading
from modcrypt.parquet.arrow.parquet_file import ParquetFile
from modcrypt.parquet.arrow.scanning.scan_session import Request
from modcrypt.parquet.arrow.scanning.small_files import SmallFiles
from tests.support import forging
from tests.support.cases import each_case
from tests.support.keys import COLUMN_KEY, FOOTER_KEY

KEYS = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, column_keys={"name": COLUMN_KEY})
TABLE = pa.table({
    "id": pa.array(range(60), pa.int64()),
    "name": [None if n % 7 == 0 else f"name {n}" for n in range(60)],
    "price": [n / 7 for n in range(60)],
    "flag": [n % 2 == 0 for n in range(60)],
    "point": [{"x": n, "y": None if n % 3 else n} for n in range(60)],
    "day": pa.array(range(60), pa.date32()),
})  # fmt: skip


def write(path: Path, table: pa.Table, **options: Any) -> Path:
    encryption = mc.FileEncryptionProperties(
        footer_key=FOOTER_KEY, column_keys={"name": COLUMN_KEY}, plaintext_columns=["flag"]
    )
    mc.write_table(table, path, encryption, **options)
    return path


def start(path: Path, columns: list[str] | None = None) -> SmallFiles:
    """Return what reads files with the schema of this one."""
    with ParquetFile(path, KEYS) as file:
        names = columns or file.schema_arrow.names
        return SmallFiles(file, names, file.types_of(Request(columns=names))[1])


@each_case("columns", [None, ["price", "id"], ["point.y", "name"]])
@each_case("options", [{}, {"row_group_size": 7, "compression": "zstd"}, {"data_page_size": 64}])
def test_files_that_are_joined_have_the_rows_of_each(
    tmp_path: Path, columns: list[str] | None, options: dict[str, Any]
) -> None:
    parts = [TABLE.slice(n * 20, 20) for n in range(3)]
    paths = [write(tmp_path / f"{n}", part, **options) for n, part in enumerate(parts)]
    small = start(paths[0], columns)
    for _ in range(2):  # what was taken is not taken again
        assert all(small.add(str(path), KEYS, None) for path in paths)
        batches = small.take()
        assert batches is not None
        alone = [mc.read_table(path, KEYS, columns=columns) for path in paths]
        assert pa.Table.from_batches(batches) == pa.concat_tables(alone)


def test_files_that_are_joined_are_opened_once_and_decoded_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [write(tmp_path / f"{n}", TABLE) for n in range(20)]
    small, counted = start(paths[0]), Counter[str]()
    for owner, name in ((os, "open"), (os, "pread"), (os, "preadv"), (pq, "ParquetFile")):
        monkeypatch.setattr(owner, name, counting(getattr(owner, name), counted))
    assert all(small.add(str(path), KEYS, None) for path in paths)
    assert len(small.take() or ()) == 1
    # One read has a footer, one the encrypted chunks of a file, and one the chunk in plaintext.
    assert counted == {"open": 20, "pread": 20, "preadv": 40, "ParquetFile": 1}


def counting(function: Callable[..., Any], counted: Counter[str]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        counted[function.__name__] += 1
        return function(*args, **kwargs)

    return call


def change(path: Path, edit: Callable[[Any], None]) -> None:
    path.write_bytes(forging.change_footer(path.read_bytes(), FOOTER_KEY, edit))


def claim(rows: int) -> Callable[[Any], None]:
    def edit(metadata: Any) -> None:
        group = metadata.row_groups[0]
        metadata.num_rows = group.num_rows = rows
        for chunk in group.columns:
            if chunk.meta_data is not None:
                chunk.meta_data.num_values = rows

    return edit


@each_case("rows", [19, 21])
def test_a_file_whose_pages_have_other_numbers_of_values_is_read_alone(
    tmp_path: Path, rows: int
) -> None:
    """Its values, or those that it lacks, would be taken for those of the next file."""
    columns = ["id", "price", "flag"]
    paths = [write(tmp_path / f"{n}", TABLE.slice(n * 20, 20)) for n in range(2)]
    small = start(paths[0], columns)
    change(paths[0], claim(rows))
    assert [small.add(str(path), KEYS, None) for path in paths] == [False, True]
    batches = small.take()
    assert batches is not None
    assert pa.Table.from_batches(batches) == mc.read_table(paths[1], KEYS, columns=columns)


def with_lists(table: pa.Table) -> pa.Table:
    return table.append_column("tags", pa.array([[n] * (n % 3) for n in range(table.num_rows)]))


@each_case(
    "table",
    [
        with_lists(TABLE),  # rows cannot be counted without decoding
        pa.table({"id": range(1 << 15)}),
        pa.table({"id": [1], "text": ["x" * (2 << 20)]}),  # small as stored
        TABLE.slice(0, 0),
    ],
)
def test_other_files_are_read_alone(tmp_path: Path, table: pa.Table) -> None:
    encryption = mc.FileEncryptionProperties(footer_key=FOOTER_KEY)
    path = tmp_path / "file"
    mc.write_table(table, path, encryption, use_dictionary=False)
    small = start(path)
    assert not small.add(str(path), KEYS, None)
    assert mc.read_table(path, KEYS) == table


def test_a_file_of_another_schema_is_read_alone(tmp_path: Path) -> None:
    small = start(write(tmp_path / "0", TABLE))
    for n, other in enumerate((
        TABLE.select(["name", "id", "flag"]),
        TABLE.set_column(0, "id", TABLE["id"].cast(pa.int32())),
        TABLE.replace_schema_metadata({"by": "another"}),
    )):  # fmt: skip
        assert not small.add(str(write(tmp_path / f"{n + 1}", other)), KEYS, None)


def test_files_are_checked_as_those_that_are_read_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "0", TABLE)
    small = start(path)
    data = path.read_bytes()
    for offset, error in ((60, TagMismatchError), (len(data) - 40, TagMismatchError)):
        forging.flip(path, offset)
        with pytest.raises(error):
            small.add(str(path), KEYS, None)
        with pytest.raises(error):
            mc.read_table(path, KEYS)
        path.write_bytes(data)
    wanted = mc.FileDecryptionProperties(
        footer_key=FOOTER_KEY, column_keys={"name": COLUMN_KEY}, require_encrypted=["flag"]
    )
    with pytest.raises(PlaintextError):
        small.add(str(path), wanted, None)
    with pytest.raises(KeyNotFoundError):
        small.add(str(path), mc.FileDecryptionProperties(footer_key=FOOTER_KEY), None)
    nulls = mc.FileDecryptionProperties(footer_key=FOOTER_KEY, on_missing_key="null")
    assert not small.add(str(path), nulls, None)


def test_few_bytes_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(write(tmp_path / "0", TABLE))
    small = start(Path(path))
    count = 0
    while not small.is_full:
        assert small.add(path, KEYS, None)
        count += 1
    assert count * 60 < 1 << 16
    small.take()
    assert not small.is_full
    assert chunk_loading.MAX_JOINED == 1 << 20

"""Snapshots, keys and files of a table, as tables."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from modcrypt.errors import PlaintextError
from modcrypt.iceberg import IcebergTable, open_table
from tests.support.iceberg.builder import Builder, arrow, field, struct
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.iceberg.shared_table import both
from tests.support.shared_vectors import shared_vectors


def test_snapshots(table: IcebergTable) -> None:
    found = table.snapshots()
    assert found.column("snapshot_id").to_pylist() == [1001, 1002, 1003]
    assert found.column("parent_id").to_pylist() == [None, 1001, 1002]
    assert found.column("operation").to_pylist() == ["append", "append", "delete"]
    assert found.column("current").to_pylist() == [False, False, True]
    assert found.column("sequence_number").to_pylist() == [1, 2, 3]
    assert len(set(found.column("key_id").to_pylist())) == 3
    assert len(set(found.column("kek_id").to_pylist())) == 1


def test_keys(table: IcebergTable, kms: SampleKms) -> None:
    found = table.keys()
    assert found.column("kind").to_pylist() == ["KEK", *["manifest list"] * 3]
    assert found.column("encrypted_by").to_pylist()[0] == "keyA"
    assert found.column("snapshots").to_pylist() == [3, 1, 1, 1]
    assert kms.calls == []  # a listing asks for no key


def test_files_are_those_that_java_read(table: IcebergTable, t16: Path) -> None:
    found = table.files().to_pylist()
    kinds = [file["kind"] for file in found]
    assert kinds.count("manifest list") == 1
    assert kinds.count("manifest") == 2
    assert kinds.count("delete manifest") == 1
    assert kinds.count("data") == 4
    assert kinds.count("deletion vector") == 1
    assert all(file["encrypted"] for file in found)
    reported = (shared_vectors() / "iceberg-table" / "t16.java-read.txt").read_text()
    for file in found:
        name = file["location"].rsplit("/", 1)[1]
        if file["kind"] == "data":
            assert name in reported
        if file["bytes"] is not None:
            place = next(t16.rglob(name))
            assert place.stat().st_size == file["bytes"]
    assert table.files(1001).num_rows == 4


def test_listings_show_no_key(table: IcebergTable) -> None:
    reported = (shared_vectors() / "iceberg-table" / "t16.java-read.txt").read_text()
    shown = " ".join(map(str, (table.files().to_pylist(), table.keys().to_pylist())))
    assert "key_metadata" not in shown
    keys = 0
    for word in reported.split():  # Java's text has each file's key metadata in plain hexadecimal
        if len(word) >= 32 and "/" not in word:
            keys += 1
            assert word.rpartition("=")[2] not in shown
    assert keys


def test_listings_of_a_table_without_a_snapshot(tmp_path: Path) -> None:
    builder = Builder(tmp_path, struct(field(1, "id", "long")))
    table = open_table(builder.write(), SampleKms())
    assert table.snapshots().num_rows == 0
    assert table.files().num_rows == 0
    assert table.keys().num_rows == 1


def test_files_of_a_table_in_plaintext(tmp_path: Path) -> None:
    builder = Builder(tmp_path, struct(field(1, "id", "long")), encrypted=False, version=2)
    rows = pa.table([[1]], schema=arrow([(1, "id", pa.int64())]))
    builder.snapshot([builder.manifest([builder.parquet("a.parquet", rows)])])
    table = open_table(builder.write(), SampleKms(), require_encrypted=False)
    assert table.files().column("encrypted").to_pylist() == [False] * 3
    with pytest.raises(PlaintextError):
        open_table(tmp_path, SampleKms())


def test_unknown_snapshots(table: IcebergTable, t16: Path) -> None:
    for which in (7, "nobody"):
        with pytest.raises(ValueError, match="does not exist"):
            table.files(which)
    assert open_table(t16, SampleKms(), location_map=both(t16)).snapshot() is not None

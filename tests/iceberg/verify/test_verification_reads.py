"""What a verification reads, and how often."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from modcrypt.iceberg import create_table, expire_history, verify_table
from modcrypt.iceberg.format import manifests, table_metadata
from modcrypt.iceberg.format.avro_files import AvroRows
from modcrypt.iceberg.format.manifests import FileEntry, ManifestFile, Shorten
from modcrypt.iceberg.read import inventory
from tests.support.iceberg.sample_kms import SampleKms


def test_each_metadata_json_is_parsed_once(
    tmp_path: Path, kms: SampleKms, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create_table(tmp_path / "t", pa.schema([("id", pa.int64())]), kms, master_key_id="keyA")
    for id_ in range(4):
        table = table.append(pa.table({"id": [id_]}))
    parsed, real = Counter[bytes](), table_metadata._parse_document

    def parse(data: bytes, name: str, lists: Any) -> Any:
        parsed[data] += 1
        return real(data, name, lists)

    monkeypatch.setattr(table_metadata, "_parse_document", parse)
    assert verify_table(table).ok
    files = [path.read_bytes() for path in (tmp_path / "t/metadata").glob("*.metadata.json")]
    assert [parsed[data] for data in files if data != Path(table.place.path).read_bytes()] == [
        1
    ] * 4


def test_an_append_parses_only_what_it_changes(
    tmp_path: Path, kms: SampleKms, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create_table(tmp_path / "t", pa.schema([("id", pa.int64())]), kms, master_key_id="keyA")
    table = table.append(pa.table({"id": [1]}))
    parsed, real = list[str](), table_metadata._parse_document

    def parse(data: bytes, name: str, lists: Any) -> Any:
        parsed.append(name)
        return real(data, name, lists)

    monkeypatch.setattr(table_metadata, "_parse_document", parse)
    table.append(pa.table({"id": [2]}))
    assert len(parsed) == 2
    Path(table.place.path).write_bytes(table.metadata.encode() + b"\n")  # other bytes are parsed
    table.refreshed()
    assert len(parsed) == 3


def test_each_row_of_manifest_lists_is_decoded_once(
    tmp_path: Path, kms: SampleKms, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create_table(tmp_path / "t", pa.schema([("id", pa.int64())]), kms, master_key_id="keyA")
    for id_ in range(40):
        table = table.append(pa.table({"id": [id_]}))
    made, real = list[str](), manifests._manifest_file

    def make(row: dict[str, Any], name: str) -> ManifestFile:
        made.append(row["manifest_path"])
        return real(row, name)

    monkeypatch.setattr(manifests, "_manifest_file", make)
    assert verify_table(table, jobs=1).ok
    assert len(made) == len(set(made)) == 40


def test_an_expiry_reads_needed_manifests_once(
    tmp_path: Path, kms: SampleKms, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create_table(tmp_path / "t", pa.schema([("id", pa.int64())]), kms, master_key_id="keyA")
    for id_ in range(3):
        table = table.append(pa.table({"id": [id_]}))
    read, real = Counter[str](), manifests.read_manifest_rows

    def read_rows(avro: AvroRows, manifest: ManifestFile, shorten: Shorten) -> list[FileEntry]:
        read[manifest.location] += 1
        return real(avro, manifest, shorten)

    monkeypatch.setattr(inventory, "read_manifest_rows", read_rows)
    assert len(expire_history(table, dry_run=True).manifest_lists) == 2
    assert sorted(read.values()) == [1, 1, 1]

"""What a verification reads, and how often."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from modcrypt.iceberg import create_table, verify_table
from modcrypt.iceberg.format import table_metadata
from tests.support.iceberg.sample_kms import SampleKms


def test_each_metadata_json_is_parsed_once(
    tmp_path: Path, kms: SampleKms, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create_table(tmp_path / "t", pa.schema([("id", pa.int64())]), kms, master_key_id="keyA")
    for id_ in range(4):
        table = table.append(pa.table({"id": [id_]}))
    parsed, real = Counter[bytes](), table_metadata._parse_document

    def parse(data: bytes, name: str) -> Any:
        parsed[data] += 1
        return real(data, name)

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

    def parse(data: bytes, name: str) -> Any:
        parsed.append(name)
        return real(data, name)

    monkeypatch.setattr(table_metadata, "_parse_document", parse)
    table.append(pa.table({"id": [2]}))
    assert len(parsed) == 2
    Path(table.place.path).write_bytes(table.metadata.encode() + b"\n")  # other bytes are parsed
    table.refreshed()
    assert len(parsed) == 3

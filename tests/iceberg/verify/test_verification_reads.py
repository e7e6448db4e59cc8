"""What a verification reads, and how often."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from modcrypt.iceberg import (
    IcebergTable,
    KeyPolicy,
    expire_history,
    open_table,
    set_policy,
    verify_table,
)
from modcrypt.iceberg.format import manifests, table_metadata
from modcrypt.iceberg.format.avro_files import AvroRows
from modcrypt.iceberg.format.manifest_rows import entry_plan
from modcrypt.iceberg.format.manifest_rows.entry_plan import DATA_FILE, PATH, STATISTICS, Values
from modcrypt.iceberg.format.manifest_rows.file_entries import (
    EXISTING,
    FileEntry,
    ManifestEntries,
    make_short_entry,
)
from modcrypt.iceberg.format.manifest_rows.row_scan import scan_rows
from modcrypt.iceberg.format.manifests import ManifestFile
from modcrypt.iceberg.format.repeated_rows import RepeatedRows
from modcrypt.iceberg.read import inventory
from tests.support.iceberg.made_tables import make_table
from tests.support.iceberg.sample_kms import SampleKms


def test_each_metadata_json_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_table(tmp_path / "t")
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(tmp_path / "t")
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(tmp_path / "t")
    for id_ in range(40):
        table = table.append(pa.table({"id": [id_]}))
    made, real = list[str](), manifests._manifest_file

    def make(row: dict[str, Any], name: str) -> ManifestFile:
        made.append(row["manifest_path"])
        return real(row, name)

    monkeypatch.setattr(manifests, "_manifest_file", make)
    assert verify_table(table, jobs=1).ok
    assert len(made) == len(set(made)) == 40


def test_a_key_service_is_asked_for_several_manifest_lists_at_once(tmp_path: Path) -> None:
    kms = SampleKms()
    table = make_table(tmp_path / "t")
    table = set_policy(table, KeyPolicy(wrapping="single"))
    for id_ in range(4):
        table = table.append(pa.table({"id": [id_]}))
    real, both = kms.unwrap, threading.Barrier(2)

    def unwrap(wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        both.wait(20)
        return real(wrapped, master_key_id, aad=aad)

    kms.unwrap = unwrap  # type: ignore[method-assign]
    read = open_table(tmp_path / "t", kms)
    keys = inventory.Keys(read.walk, {})
    assert inventory.take_inventory(keys, read.metadata.snapshots, 2).is_whole


def test_an_expiry_reads_needed_manifests_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(tmp_path / "t")
    for id_ in range(3):
        table = table.append(pa.table({"id": [id_]}))
    read, real = Counter[str](), manifests.read_manifest_rows

    def read_rows(
        avro: AvroRows, manifest: ManifestFile, *others: Any, **named: Any
    ) -> ManifestEntries:
        read[manifest.location] += 1
        return real(avro, manifest, *others, **named)

    monkeypatch.setattr(inventory, "read_manifest_rows", read_rows)
    assert len(expire_history(table, dry_run=True).manifest_lists) == 2
    assert sorted(read.values()) == [1, 1, 1]


@pytest.fixture
def merged(tmp_path: Path) -> IcebergTable:
    """A table whose manifests were merged again and again."""
    table = make_table(tmp_path / "t", properties={"commit.manifest.min-count-to-merge": "3"})
    for id_ in range(20):
        table = table.append(pa.table({"id": [id_]}))
    return table


def test_an_expiry_decodes_entries_of_merged_manifests_once(
    merged: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    scanned = Counter[str]()

    def scan(*arguments: Any) -> Any:
        rows, end = scan_rows(*arguments)
        scanned.update(values[PATH] for values in rows)
        return rows, end

    monkeypatch.setattr(entry_plan, "scan_rows", scan)
    assert len(expire_history(merged, dry_run=True).manifests) > 10
    assert len(scanned) == 20
    assert max(scanned.values()) <= 4  # as added and as existing, in kept manifests and in others


def test_an_expiry_makes_no_entries_of_needed_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It needs their locations and counts, and decodes neither statistics nor whole rows."""
    table = make_table(tmp_path / "t")
    for id_ in range(3):
        table = table.append(pa.table({"id": [id_]}))
    scanned, made = list[Values](), list[FileEntry]()

    def scan(*arguments: Any) -> Any:
        rows, end = scan_rows(*arguments)
        scanned.extend(rows)
        return rows, end

    def make(*arguments: Any) -> FileEntry:
        made.append(make_short_entry(*arguments))
        return made[-1]

    monkeypatch.setattr(entry_plan, "scan_rows", scan)
    monkeypatch.setattr(manifests, "make_short_entry", make)
    assert len(expire_history(table, dry_run=True).manifest_lists) == 2
    assert len(scanned) == 3
    assert not made
    unread = (DATA_FILE, *STATISTICS.values())
    assert {values[slot] for values in scanned for slot in unread} == {None}


def test_entries_that_manifests_share_are_those_of_each_manifest_alone(
    merged: IcebergTable,
) -> None:
    walk, known, existing = merged.walk, RepeatedRows[Values](), 0
    for snapshot in merged.metadata.snapshots:
        for manifest in walk.manifests(snapshot):
            data = walk.read(manifest.location, walk.manifest_keys(manifest), manifest.length)
            avro = manifests.open_manifest(data, manifest.location)
            entries = manifests.read_manifest_rows(avro, manifest, known=known)
            alone = walk.entries(manifest)
            assert [entry.key_metadata for entry in entries] == [e.key_metadata for e in alone]
            assert [_numbers(entry) for entry in entries] == [_numbers(entry) for entry in alone]
            existing += sum(entry.status == EXISTING for entry in entries)
    assert existing > 20


def _numbers(entry: FileEntry) -> tuple[Any, ...]:
    numbers = (entry.snapshot_id, entry.sequence_number, entry.file_sequence_number)
    return (entry.location, entry.status, entry.spec_id, entry.size, *numbers)

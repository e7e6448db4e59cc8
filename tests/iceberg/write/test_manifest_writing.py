"""Manifests and manifest lists that are written here, held against those that Iceberg's Java wrote.

What is written is opened by `cryptography` alone, and read by fastavro, pyiceberg and Java.
"""

from __future__ import annotations

import decimal
import json
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestContent, ManifestEntryStatus, read_manifest_list
from pyiceberg.manifest import ManifestFile as PyManifestFile

from modcrypt.errors import FormatError
from modcrypt.iceberg import IcebergTable, open_table
from modcrypt.iceberg.format.manifest_rows.file_entries import ADDED, DATA, DELETED, EXISTING
from modcrypt.iceberg.format.manifests import ManifestFile
from modcrypt.iceberg.keys.key_policies import KeyPolicy
from modcrypt.iceberg.write.manifest_writing import (
    PartitionPaths,
    SnapshotFields,
    entry_row,
    first_row_ids,
    write_manifest,
    write_manifest_list,
)
from modcrypt.iceberg.write.new_files import NewFiles
from tests.support.iceberg import builder as table_builder
from tests.support.iceberg.builder import Builder, arrow, field, list_schema, struct
from tests.support.iceberg.built_tables import open_built
from tests.support.iceberg.by_hand import avro, open_ags1, parse_key_metadata, unwrap_entry
from tests.support.iceberg.java_judge import Judge
from tests.support.iceberg.java_tables import partition_spec, schema
from tests.support.iceberg.made_tables import make_table
from tests.support.iceberg.resealed_tables import write_changed_manifest
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.iceberg.writing_keys import writing_key

JSON_MEMBERS = ("avro.schema", "iceberg.schema", "schema", "partition-spec")


def java_manifests(table: IcebergTable, snapshot: int | None = None) -> list[ManifestFile]:
    found = table.metadata.current if snapshot is None else table.metadata.snapshot(snapshot)
    assert found is not None
    return table.walk.manifests(found)


def java_bytes(table: IcebergTable, manifest: ManifestFile) -> bytes:
    return table.walk.read(manifest.location, table.walk.manifest_keys(manifest), manifest.length)


def load(table: IcebergTable, location: str) -> bytes:
    return Path(table.walk.place(location).path).read_bytes()


def assert_same_header(ours: dict[str, Any], javas: dict[str, Any]) -> None:
    assert ours.keys() == javas.keys()
    for name, value in javas.items():
        if name in JSON_MEMBERS:
            assert json.loads(ours[name]) == json.loads(value), name
        else:
            assert ours[name] == value, name
    ours_schema, javas_schema = (json.loads(metadata["avro.schema"]) for metadata in (ours, javas))
    assert [f["name"] for f in ours_schema["fields"]] == [f["name"] for f in javas_schema["fields"]]


def check_written_as_java(table: IcebergTable, manifest: ManifestFile) -> None:
    """Write the rows of a manifest of Java's again, and compare file and row."""
    header, rows = avro(java_bytes(table, manifest))
    made = write_manifest(
        table, manifest.spec_id, table_rows(table, manifest), NewFiles(table.walk.locations),
        content=manifest.content, snapshot_id=manifest.added_snapshot_id,
    )  # fmt: skip
    assert made["manifest_path"].startswith(f"{table.metadata.location}/metadata/")
    data = load(table, made["manifest_path"])
    assert len(data) == made["manifest_length"]
    ours_header, ours_rows = avro(open_ags1(data, made["key_metadata"]()))
    assert_same_header(ours_header, header)
    assert ours_rows == rows
    # The list assigns numbers; place and key are fresh.
    for name, value in manifest.row.items():
        if name in ("sequence_number", "min_sequence_number", "first_row_id"):
            assert made[name] is None
        elif name not in ("manifest_path", "manifest_length", "key_metadata"):
            assert made[name] == value, name


def table_rows(table: IcebergTable, manifest: ManifestFile) -> list[dict[str, Any]]:
    """Return the rows of a manifest as Avro has them, without logical types."""
    return [
        {
            "status": entry.status,
            "snapshot_id": entry.snapshot_id,
            "sequence_number": None,
            "file_sequence_number": None,
            "data_file": dict(entry.file),
        }
        for entry in table.walk.entries(manifest)
    ]


@pytest.mark.parametrize(("snapshot", "which"), [(1001, 0), (1002, 1), (1003, 2)])
def test_a_manifest_is_as_java_writes_it(table: IcebergTable, snapshot: int, which: int) -> None:
    check_written_as_java(table, java_manifests(table, snapshot)[which])


PARTITIONED = schema(
    ("id", "long"), ("name", "string"), ("price", "decimal(9, 2)"), ("day", "date"),
    ("ratio", "double"), ("cost", "decimal(9, 2)"),
)  # fmt: skip
SPEC = partition_spec(
    (1, "bucket[4]", "id_bucket"), (2, "truncate[3]", "na me"), (3, "identity", "price"),
    (4, "month", "month"), (4, "identity", "day"), (6, "identity", "cost"),
)  # fmt: skip
ROWS = [
    {
        "id": n, "name": None if n == 2 else f"name-{n}", "price": f"{n - 3}.25",
        "day": f"2026-0{n + 1}-11", "ratio": n / 4, "cost": None if n == 3 else f"{n}.50",
    }
    for n in range(6)
]  # fmt: skip


def test_a_partitioned_manifest_is_as_java_writes_it(
    java: Judge, kms: SampleKms, tmp_path: Path
) -> None:
    """Names that Avro lacks, decimals of one type twice, bounds, and null values."""
    made = java.create(tmp_path / "t", PARTITIONED, spec=SPEC)
    table = open_table(java.commit(made, {"do": "append", "rows": ROWS}), kms)
    for manifest in java_manifests(table):
        assert manifest.row["partitions"][1]["contains_null"]
        check_written_as_java(table, manifest)


def test_values_of_pyiceberg_and_raw_ones_are_written_alike(
    java: Judge, kms: SampleKms, tmp_path: Path
) -> None:
    made = java.create(tmp_path / "t", PARTITIONED, spec=SPEC)
    table = open_table(java.commit(made, {"do": "append", "rows": ROWS[:1]}), kms)
    (manifest,) = java_manifests(table)
    (row,) = table_rows(table, manifest)
    partition = dict(row["data_file"]["partition"])
    raw = write_manifest(
        table, 0, [row], NewFiles(table.walk.locations), content=DATA, snapshot_id=7
    )
    partition["price"], partition["cost"] = decimal.Decimal("-3.25"), decimal.Decimal("0.50")
    row["data_file"]["partition"] = partition
    other = write_manifest(
        table, 0, [row], NewFiles(table.walk.locations), content=DATA, snapshot_id=7
    )
    plain = [
        avro(open_ags1(load(table, data["manifest_path"]), data["key_metadata"]()))[1]
        for data in (raw, other)
    ]
    assert plain[0] == plain[1]
    assert raw["partitions"] == other["partitions"]
    path = PartitionPaths(table.metadata, 0).path(partition)
    # As Java spells it, but for the space, which is %20 or +.
    (file,) = java.files(table.place.path)["files"]
    assert path.replace("+", "%20") in file["path"].replace("+", "%20")


def test_a_uuid_as_a_partition(kms: SampleKms, tmp_path: Path, java: Judge) -> None:
    value = uuid.UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7")
    made = java.create(
        tmp_path / "t", struct(field(1, "u", "uuid")), spec=partition_spec((1, "identity", "u"))
    )
    made = java.commit(made, {"do": "append", "rows": [{"u": str(value)}]})
    table = open_table(made, kms)
    (manifest,) = java_manifests(table)
    check_written_as_java(table, manifest)
    for spelt in (value, value.bytes):
        assert PartitionPaths(table.metadata, 0).path({"u": spelt}) == f"u={value}"


# --- lists ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("snapshot", [1001, 1002, 1003])
def test_a_manifest_list_is_as_java_writes_it(table: IcebergTable, snapshot: int) -> None:
    found = table.metadata.snapshot(snapshot)
    header, javas = avro(table.walk.read(found.manifest_list, table.walk.list_keys(found)))
    rows = [dict(manifest.row) for manifest in java_manifests(table, snapshot)]
    rows[-1] |= {"sequence_number": None, "min_sequence_number": None, "first_row_id": None}
    fields = SnapshotFields(
        snapshot, found.parent, found.sequence_number, found.document["first-row-id"]
    )
    opened, made = writing_key(table, KeyPolicy.of(table.metadata))
    assert not made
    location, entry, next_row_id = write_manifest_list(
        table, fields, rows, opened, NewFiles(table.walk.locations)
    )
    metadata = table.metadata.with_keys([*table.metadata.keys.values(), entry])
    key = unwrap_entry(metadata.document, entry.id)
    ours_header, ours = avro(open_ags1(load(table, location), key))
    assert_same_header(ours_header, header)
    assert ours == javas
    assert next_row_id == found.document["first-row-id"] + found.document["added-rows"]


def test_row_ids_are_assigned_as_the_spec_has_it(table: IcebergTable) -> None:
    """Spec, "Row lineage example": 1000, 1125, 1225, and 1375 for the next snapshot."""
    model = dict(java_manifests(table, 1001)[0].row)
    names = ("added_rows_count", "existing_rows_count", "first_row_id")
    counts = [(75, 0, 925), (100, 25, None), (0, 100, None), (125, 25, None)]
    rows = [{**model, **dict(zip(names, count, strict=True))} for count in counts]
    opened, _ = writing_key(table, KeyPolicy())
    location, entry, following = write_manifest_list(
        table, SnapshotFields(9, 1003, 4, 1000), rows, opened, NewFiles(table.walk.locations)
    )
    metadata = table.metadata.with_keys([*table.metadata.keys.values(), entry])
    written = avro(open_ags1(load(table, location), unwrap_entry(metadata.document, entry.id)))
    assert [row["first_row_id"] for row in written[1]] == [925, 1000, 1125, 1225]
    assert following == 1375


def test_pyiceberg_reads_what_is_written(table: IcebergTable, tmp_path: Path) -> None:
    """Its own reader of lists and manifests, over the decrypted bytes."""
    opened, _ = writing_key(table, KeyPolicy())
    rows = [manifest.row for manifest in java_manifests(table)]
    location, entry, _ = write_manifest_list(
        table, SnapshotFields(9, 1003, 4, 140), rows, opened, NewFiles(table.walk.locations)
    )
    metadata = table.metadata.with_keys([*table.metadata.keys.values(), entry])
    plain = tmp_path / "list.avro"
    plain.write_bytes(open_ags1(load(table, location), unwrap_entry(metadata.document, entry.id)))
    files, new_files = PyArrowFileIO(), NewFiles(table.walk.locations)
    found = list(read_manifest_list(files.new_input(str(plain))))
    assert [manifest.content for manifest in found] == [
        ManifestContent.DATA, ManifestContent.DATA, ManifestContent.DELETES,
    ]  # fmt: skip
    made = write_manifest(
        table, 0, table_rows(table, java_manifests(table)[0]), new_files, content=DATA,
        snapshot_id=9,
    )  # fmt: skip
    plain.write_bytes(open_ags1(load(table, made["manifest_path"]), made["key_metadata"]()))
    entries = PyManifestFile.from_args(
        manifest_path=str(plain), manifest_length=plain.stat().st_size, partition_spec_id=0,
        content=ManifestContent.DATA, sequence_number=4, added_snapshot_id=9,
    ).fetch_manifest_entry(files)  # fmt: skip
    assert [found.status for found in entries] == [ManifestEntryStatus.ADDED] * 2
    assert [found.data_file.record_count for found in entries] == [50, 20]


# --- entries -------------------------------------------------------------------------------------


def test_counts_and_least_sequence_number(table: IcebergTable) -> None:
    (first, second) = table.walk.entries(java_manifests(table, 1001)[0])
    rows = [
        entry_row(first, status=EXISTING),
        entry_row(second, status=DELETED, snapshot_id=9),
        {**entry_row(second, status=ADDED, snapshot_id=9), "sequence_number": None},
    ]
    rows[0]["sequence_number"] = 5
    made = write_manifest(
        table,
        0,
        rows,
        NewFiles(table.walk.locations),
        content=DATA,
        snapshot_id=9,
        sequence_number=8,
    )
    counted = ("added", "existing", "deleted")
    assert [made[f"{name}_files_count"] for name in counted] == [1, 1, 1]
    assert [made[f"{name}_rows_count"] for name in counted] == [20, 50, 20]
    assert made["min_sequence_number"] == 5  # the deleted one's, 1, doesn't count
    assert made["sequence_number"] == 8
    alone = write_manifest(
        table, 0, rows[2:], NewFiles(table.walk.locations), content=DATA, snapshot_id=9
    )
    assert alone["min_sequence_number"] is None  # the list's


def test_first_row_ids_are_inherited_in_order(table: IcebergTable) -> None:
    manifest = java_manifests(table, 1002)[1]
    entries = table.walk.entries(manifest)
    assert first_row_ids(manifest, entries) == [70, 120]
    row = entry_row(entries[0], status=EXISTING, first_row_id=70)
    assert row["data_file"]["first_row_id"] == 70
    assert row["snapshot_id"] == 1002
    assert row["sequence_number"] == row["file_sequence_number"] == 2


def test_a_rewritten_manifest_differs_in_what_was_changed_alone(table: IcebergTable) -> None:
    manifest = java_manifests(table, 1001)[0]
    header, rows = avro(java_bytes(table, manifest))

    def change(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "data_file": {**row["data_file"], "key_metadata": b"another"}}

    made = write_changed_manifest(table, manifest, change)
    assert made["manifest_path"] != manifest.location
    ours_header, ours = avro(open_ags1(load(table, made["manifest_path"]), made["key_metadata"]()))
    assert_same_header(ours_header, header)
    assert ours == [change(row) for row in rows]
    old = parse_key_metadata(manifest.row["key_metadata"]())
    new = parse_key_metadata(made["key_metadata"]())
    assert old.key != new.key
    assert old.aad_prefix != new.aad_prefix
    fresh = ("manifest_path", "manifest_length", "key_metadata")
    assert {k: v for k, v in made.items() if k not in fresh} == {
        k: v for k, v in manifest.row.items() if k not in fresh
    }


def test_a_spec_that_is_not_there(table: IcebergTable) -> None:
    with pytest.raises(FormatError, match="partition spec 7 does not exist"):
        write_manifest(table, 7, [], NewFiles(table.walk.locations), content=DATA, snapshot_id=9)


def test_a_row_that_does_not_fit_is_refused_before_a_file_is_there(
    table: IcebergTable, t16: Path
) -> None:
    before = sorted(t16.rglob("*"))
    rows = [{"status": ADDED, "data_file": {"file_path": "wh:/t16/data/x", "record_count": 1}}]
    with pytest.raises((TypeError, ValueError)):
        write_manifest(table, 0, rows, NewFiles(table.walk.locations), content=DATA, snapshot_id=9)
    assert sorted(t16.rglob("*")) == before


def test_a_longer_key_where_the_table_says_so(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", pa.schema([("a", pa.int64())]), key_length=32)
    made = write_manifest(table, 0, [], NewFiles(table.walk.locations), content=DATA, snapshot_id=9)
    assert len(parse_key_metadata(made["key_metadata"]()).key) == 32


@pytest.mark.parametrize("counted", [True, False])
def test_manifests_of_a_list_of_version_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, counted: bool
) -> None:
    """Their files stay older than all others; without counts no row ids can be assigned."""
    known = list_schema()
    left = ("content", "sequence_number", "min_sequence_number")
    fields = [
        f
        for f in known["fields"]
        if f["name"] not in left and (counted or "_count" not in f["name"])
    ]
    monkeypatch.setattr(table_builder, "list_schema", lambda: {**known, "fields": fields})
    builder = Builder(tmp_path, struct(field(1, "id", "long")))
    rows = pa.table([[1]], arrow([(1, "id", pa.int64())]))
    builder.snapshot([builder.manifest([builder.parquet("a.parquet", rows)])])
    table = open_built(builder)
    if not counted:
        with pytest.raises(FormatError, match="rewrite the manifests"):
            table.append(pa.table({"id": [2]}))
        return
    table = table.append(pa.table({"id": [2]}))
    assert [m.sequence_number for m in java_manifests(table)] == [2, 0]

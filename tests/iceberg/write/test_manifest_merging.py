"""Small manifests that appends merge, by the table's properties."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform

from modcrypt.errors import FormatError
from modcrypt.iceberg import (
    IcebergTable,
    KeyPolicy,
    create_table,
    expire_history,
    rotate_table,
    verify_table,
)
from modcrypt.iceberg.format.manifest_rows.file_entries import DATA
from modcrypt.iceberg.format.manifests import ManifestFile
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.write.manifest_merging import plan_merges
from tests.support.iceberg.java_judge import Judge, plain_rows
from tests.support.iceberg.sample_kms import SampleKms

SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string())])
BY_P = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p"))
FEW = {"commit.manifest.min-count-to-merge": "3"}


def make_table(folder: Path, kms: SampleKms, **more: Any) -> IcebergTable:
    return create_table(folder / "t", SCHEMA, kms, master_key_id="keyA", **more)


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "p": [f"p{id_ % 2}" for id_ in ids]}, schema=SCHEMA)


def manifests(table: IcebergTable) -> list[ManifestFile]:
    current = table.snapshot()
    assert current is not None
    return table.walk.manifests(current)


def ids(table: IcebergTable) -> list[int]:
    found: list[int] = table.scan()["id"].to_pylist()
    return sorted(found)


def summary(table: IcebergTable) -> tuple[str, str, str]:
    current = table.snapshot()
    assert current is not None
    found = current.document["summary"]
    kept, created, replaced = (
        found[f"manifests-{what}"] for what in ("kept", "created", "replaced")
    )
    return kept, created, replaced


def test_java_reads_merged_manifests(java: Judge, kms: SampleKms, tmp_path: Path) -> None:
    table = make_table(tmp_path, kms, properties=FEW, partition_spec=BY_P)
    counts = []
    for id_ in range(7):
        table = table.append(rows(id_, id_ + 100))
        counts.append(len(manifests(table)))
    assert counts == [1, 2, 1, 2, 1, 2, 1]
    assert summary(table) == ("0", "1", "2")
    assert java.read(table.place.path) == plain_rows(table.scan())
    lineage = java.read(table.place.path, lineage=True)
    assert {row["_row_id"]: row["_last_updated_sequence_number"] for row in lineage} == {
        row_id: 1 + number // 2 for number, row_id in enumerate(sorted(_row_ids(lineage)))
    }
    for snapshot in table.metadata.snapshots:  # older snapshots have the manifests of their time
        assert java.read(table.place.path, snapshot=snapshot.id) == plain_rows(
            table.scan(snapshot.id)
        )
    assert verify_table(table).ok
    java.commit(table.place.path, {"do": "append", "rows": plain_rows(rows(50))})
    table = table.refreshed().append(rows(51))
    assert java.read(table.place.path) == plain_rows(table.scan())


def _row_ids(lineage: list[dict[str, Any]]) -> list[int]:
    found = [row["_row_id"] for row in lineage]
    assert len(set(found)) == len(found)
    return found


def test_row_ids_survive_a_merge(java: Judge, kms: SampleKms, tmp_path: Path) -> None:
    table = make_table(tmp_path, kms, properties=FEW)
    table = table.append(rows(1, 2)).append(rows(3))
    before = {row["id"]: row["_row_id"] for row in java.read(table.place.path, lineage=True)}
    table = table.append(rows(4, 5))
    after = {row["id"]: row["_row_id"] for row in java.read(table.place.path, lineage=True)}
    assert len(manifests(table)) == 1
    assert {id_: after[id_] for id_ in before} == before
    assert len(set(after.values())) == 5


def test_deleted_files_do_not_return(java: Judge, kms: SampleKms, tmp_path: Path) -> None:
    table = make_table(tmp_path, kms, properties=FEW)
    table = table.append(rows(1)).append(rows(2))
    java.commit(table.place.path, {"do": "delete-files", "column": "id", "value": 1})
    table = table.refreshed().append(rows(3))
    assert java.read(table.place.path) == plain_rows(table.scan())
    assert ids(table) == [2, 3]
    assert ids(table.append(rows(4)).append(rows(5))) == [2, 3, 4, 5]


def test_merging_can_be_disabled(kms: SampleKms, tmp_path: Path) -> None:
    off = {**FEW, "commit.manifest-merge.enabled": "false"}
    table = make_table(tmp_path, kms, properties=off)
    for id_ in range(5):
        table = table.append(rows(id_))
    assert len(manifests(table)) == 5
    assert summary(table) == ("4", "1", "0")


@pytest.mark.parametrize("policy", [KeyPolicy(kek_per="partition"), KeyPolicy(wrapping="single")])
def test_wrapped_keys_stay_as_they_are(policy: KeyPolicy, kms: SampleKms, tmp_path: Path) -> None:
    table = make_table(tmp_path, kms, properties=FEW, partition_spec=BY_P, policy=policy)
    for id_ in range(6):
        table = table.append(rows(id_, id_ + 101))
    assert len(manifests(table)) == 2
    for what in ("mek", "kek", "dek"):
        if what == "mek" and policy.wrapping == "single":
            continue
        table = rotate_table(table, what).table
        assert len(ids(table)) == 12
    table = expire_history(table).table
    assert len(ids(table)) == 12
    assert verify_table(table).ok


def test_each_manifest_is_written_with_the_entries_of_the_others(
    kms: SampleKms, tmp_path: Path
) -> None:
    table = make_table(tmp_path, kms, properties=FEW)
    for id_ in range(3):
        table = table.append(rows(id_))
    (merged,) = manifests(table)
    entries = table.walk.entries(merged)
    assert Counter(entry.status for entry in entries) == {0: 2, 1: 1}
    assert sorted(entry.sequence_number or 0 for entry in entries) == [1, 2, 3]
    assert merged.row["min_sequence_number"] == 1
    assert {entry.snapshot_id for entry in entries} == {s.id for s in table.metadata.snapshots}


# --- plans ---------------------------------------------------------------------------------------


def metadata(**properties: str) -> TableMetadata:
    document = (
        '{"format-version":3,"location":"t","table-uuid":"u","properties":{'
        + ",".join(f'"commit.manifest.{name.replace("_", "-")}":"{value}"'
                   for name, value in properties.items())
        + "}}"
    )  # fmt: skip
    return TableMetadata(document.encode())


def row(number: int, length: int, spec_id: int = 0, content: int = DATA) -> ManifestFile:
    return ManifestFile(f"m{number}", length, spec_id, content, 1, 1, None, {})


def test_large_manifests_stay_and_others_are_packed_from_the_oldest() -> None:
    before = [row(number, length) for number, length in enumerate([9, 3, 90, 40, 30, 20, 100])]
    plan = plan_merges(metadata(target_size_bytes="100", min_count_to_merge="3"), 0, before)
    assert [[m.location for m in group] for group in plan.others] == [
        ["m1", "m2"],
        ["m3", "m4", "m5"],
    ]
    assert [m.location for m in plan.kept] == ["m0", "m6"]  # too few, and too large


def test_other_specs_and_manifests_of_deletes_stay() -> None:
    before = [row(0, 1, spec_id=1), row(1, 1, content=1), row(2, 1), row(3, 1)]
    plan = plan_merges(metadata(min_count_to_merge="3"), 0, before)
    assert [m.location for m in plan.with_new] == ["m2", "m3"]
    assert [m.location for m in plan.kept] == ["m0", "m1"]
    assert plan.replaced == 2


def test_the_first_manifest_of_a_table() -> None:
    assert plan_merges(metadata(), 0, []).replaced == 0


def test_a_property_that_is_no_number() -> None:
    with pytest.raises(FormatError, match="target-size-bytes is not a whole number"):
        plan_merges(metadata(target_size_bytes="8MB"), 0, [])

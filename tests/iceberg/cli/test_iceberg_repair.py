"""`modcrypt iceberg admin repair` and `remove-orphans`."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from modcrypt.iceberg import IcebergTable, open_table
from tests.support.iceberg.cli_runs import Run, lines, run
from tests.support.iceberg.made_tables import make_table
from tests.support.iceberg.plaintext_manifests import rewrite_in_plaintext
from tests.support.iceberg.sample_kms import SampleKms

__all__ = ["run"]  # a fixture

SAMPLE = ("--kms", "sample:")


@pytest.fixture
def table(tmp_path: Path) -> IcebergTable:
    made = make_table(tmp_path / "t")
    return made.append(pa.table({"id": [1]})).append(pa.table({"id": [2]}))


def lose_newest_key(table: IcebergTable) -> str:
    lost = table.metadata.snapshots[-1].key_id
    keys = [key for id_, key in table.metadata.keys.items() if id_ != lost]
    table.versions.commit(table.place, table.metadata.with_keys(keys))
    return str(lost)


def test_a_lost_key_is_restored(table: IcebergTable, run: Run) -> None:
    assert run("admin", "repair", *SAMPLE, "t").output == "no key is lost\n"
    lost = lose_newest_key(table)
    assert f"would restore key {lost}" in run("admin", "repair", *SAMPLE, "--dry-run", "t").output
    run("scan", *SAMPLE, "t", code=3)
    (done,) = lines(run("admin", "repair", *SAMPLE, "--json", "t"))
    assert (done["restored"], done["lost"], done["dropped"]) == ([lost], [], False)
    assert len(lines(run("scan", *SAMPLE, "--json", "t"))) == 2


def test_what_cannot_be_restored_is_dropped_on_request(
    table: IcebergTable, run: Run, tmp_path: Path
) -> None:
    lose_newest_key(table)
    for version in (1, 2, 3):
        (tmp_path / f"t/metadata/v{version}.metadata.json").unlink()
    first, second = (snapshot.id for snapshot in table.metadata.snapshots)
    said = run("admin", "repair", *SAMPLE, "t", code=1).output
    assert f"the key of snapshot {second} is not found: left" in said
    assert f"--drop-lost keeps snapshot {first}" in said
    assert (
        f"snapshot {second} is not found: dropped"
        in run("admin", "repair", *SAMPLE, "--drop-lost", "--yes", "t").output
    )
    assert [row["id"] for row in lines(run("scan", *SAMPLE, "--json", "t"))] == [1]


def test_plaintext_manifests_are_encrypted(table: IcebergTable, run: Run) -> None:
    rewrite_in_plaintext(table)
    run("scan", *SAMPLE, "t", code=1)
    said = run("admin", "repair", *SAMPLE, "--dry-run", "t").output
    assert "would be encrypted" in said
    (done,) = lines(run("admin", "repair", *SAMPLE, "--json", "t"))
    assert (len(done["plaintext_manifests"]["manifests"]), done["restored"]) == (1, [])
    assert len(lines(run("scan", *SAMPLE, "--json", "t"))) == 2
    assert run("admin", "repair", *SAMPLE, "t").output == "no key is lost\n"


def test_plaintext_manifests_are_trusted_on_request(table: IcebergTable, run: Run) -> None:
    damaged = rewrite_in_plaintext(table)
    current = damaged.metadata.current
    assert current is not None
    alone = damaged.metadata.with_members(snapshots=[current.document], snapshot_log=[])
    table.versions.commit(damaged.place, alone)
    said = run("admin", "repair", *SAMPLE, "t", code=1).output
    assert "left in plaintext" in said
    assert "nothing vouches for" in said
    assert "--trust-plaintext" in said
    said = run("admin", "repair", *SAMPLE, "--trust-plaintext", "--yes", "t").output
    assert "rotate dek" in said
    assert len(lines(run("scan", *SAMPLE, "--json", "t"))) == 2


def test_orphans_are_removed(table: IcebergTable, run: Run, tmp_path: Path) -> None:
    old, young = tmp_path / "t/data/old.parquet", tmp_path / "t/data/young.parquet"
    for path in (old, young):
        path.write_bytes(b"PARE")
    os.utime(old, (0, 0))
    run("admin", "remove-orphans", *SAMPLE, "t", code=2)
    said = run("admin", "remove-orphans", *SAMPLE, "--dry-run", "t").output
    assert said == f"orphan {old}\n1 file (4 bytes) would be removed; 1 younger file\n"
    (done,) = lines(run("admin", "remove-orphans", *SAMPLE, "--yes", "--json", "t"))
    assert [file["path"] for file in done["files"]] == [str(old)]
    assert (done["size"], done["young"], done["left"]) == (4, 1, [])
    assert not old.exists()
    said = run("admin", "remove-orphans", *SAMPLE, "--yes", "--older-than", "0", "t").output
    assert said == "1 file (4 bytes) removed; 0 younger files\n"
    assert not young.exists()
    assert open_table(tmp_path / "t", SampleKms()).scan().num_rows == 2

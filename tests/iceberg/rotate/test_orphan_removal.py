"""Removing files that no snapshot reaches, and nothing else."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from modcrypt.errors import FormatError, IntegrityError
from modcrypt.iceberg import (
    IcebergTable,
    expire_history,
    open_table,
    remove_orphan_files,
    verify_table,
)
from modcrypt.iceberg.tables.sql_pointer import SqlPointer
from modcrypt.iceberg.verify import table_findings
from tests.support.iceberg.concurrent_commits import check_orphans_of_a_commit
from tests.support.iceberg.local_tables import make_folder_table, make_sql_table
from tests.support.iceberg.made_tables import make_table
from tests.support.iceberg.sample_kms import SampleKms

DAY = 24 * 60 * 60


@pytest.fixture
def table(tmp_path: Path) -> IcebergTable:
    schema = pa.schema([("id", pa.int64())])
    made = make_table(tmp_path / "t", schema)
    return made.append(pa.table({"id": [1]})).append(pa.table({"id": [2]}))


def plant(path: Path, *, days: float, data: bytes = b"AGS1") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    when = time.time() - days * DAY
    os.utime(path, (when, when))
    return path


def test_old_orphans_go(table: IcebergTable, tmp_path: Path) -> None:
    before = {path for path in (tmp_path / "t").rglob("*") if path.is_file()}
    for path in before:
        os.utime(path, (0, 0))  # what the table needs may be of any age
    old = plant(tmp_path / "t/data/a/old.parquet", days=4)
    temporary = plant(tmp_path / "t/data/.modcrypt-0123456789abcdef.tmp", days=4)
    young = plant(tmp_path / "t/data/young.parquet", days=2)
    metadata = plant(tmp_path / "t/metadata/v99-x.metadata.json", days=9, data=b"{}")
    planned = remove_orphan_files(table, dry_run=True)
    assert {Path(file.path) for file in planned.files} == {old, temporary}
    assert planned.young == 1
    assert planned.size == 8
    assert old.exists()
    done = remove_orphan_files(table)
    assert done.files == planned.files
    assert done.left == done.kept == ()
    left = {path for path in (tmp_path / "t").rglob("*") if path.is_file()}
    assert left == {*before, young, metadata}
    assert open_table(tmp_path / "t", SampleKms()).scan().num_rows == 2
    assert remove_orphan_files(table, older_than_days=0).files[0].path == str(young)
    assert verify_table(table.refreshed()).orphans == ()


@pytest.mark.parametrize("make", [make_folder_table, make_sql_table])
def test_the_files_of_a_commit_that_ends_meanwhile_stay(
    tmp_path: Path, make: Callable[[Path], Any]
) -> None:
    check_orphans_of_a_commit(make(tmp_path / "c"))


def test_another_tables_files_stay(table: IcebergTable, tmp_path: Path) -> None:
    other = make_table(tmp_path / "t/data/other", table_schema())
    other = other.append(pa.table({"id": [3]}))
    for path in (tmp_path / "t/data/other").rglob("*"):
        os.utime(path, (0, 0))
    orphan = plant(tmp_path / "t/data/old.parquet", days=4)
    done = remove_orphan_files(table)
    assert [Path(file.path) for file in done.files] == [orphan]
    assert done.kept
    assert other.refreshed().scan().num_rows == 1


def test_files_of_a_table_in_the_same_folder_stay(table: IcebergTable, tmp_path: Path) -> None:
    other = make_table(tmp_path / "o", table_schema())
    orphan = plant(tmp_path / "t/data/old.parquet", days=4)
    name = "00001-12345678-1234-1234-1234-123456789012.metadata.json"
    copy = plant(tmp_path / "t/metadata/v0.metadata.json", days=4, data=other.metadata.encode())
    with pytest.raises(FormatError, match="belongs to another table"):
        remove_orphan_files(table)
    copy.rename(tmp_path / "t" / name)  # not where tables keep them
    assert [file.path for file in remove_orphan_files(table).files] == [str(orphan)]


def test_many_findings_do_not_hide_a_table_in_the_same_folder(
    table: IcebergTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_findings, "MAX_TABLE_FINDINGS", 2)
    other = make_table(tmp_path / "o", table_schema())
    plant(tmp_path / "t/metadata/v0.metadata.json", days=4, data=other.metadata.encode())
    uuid = "12345678-1234-1234-1234-123456789012"
    for number in range(3):
        plant(tmp_path / f"t/metadata/0000{number}-{uuid}.metadata.json", days=4, data=b"{}")
    with pytest.raises(FormatError, match="belongs to another table"):
        remove_orphan_files(table)


def test_a_catalog_that_names_an_older_version_loses_nothing(tmp_path: Path) -> None:
    """Its database was restored from a backup."""
    named = make_sql_table(tmp_path / "c")
    older = named.load().append(pa.table({"id": [1]}))
    newest = older.append(pa.table({"id": [2]}))
    pointer = SqlPointer(named.catalog, *named.name.split("."))
    new, old = (f"file://{each.place.path}" for each in (newest, older))
    assert pointer.swap(new, old, older.metadata)
    for path in Path(newest.place.path).parents[1].rglob("*.*"):
        os.utime(path, (0, 0))
    for dry_run in (True, False):
        with pytest.raises(IntegrityError, match="newer state of the table"):
            remove_orphan_files(named.load(), dry_run=dry_run)
    os.utime(newest.place.path)  # as if its commit were under way
    remove_orphan_files(named.load(), dry_run=True)
    assert pointer.swap(old, new, newest.metadata)
    assert named.load().scan().num_rows == 2
    assert remove_orphan_files(named.load()).files == ()


def test_the_target_of_a_link_to_a_live_file_stays(table: IcebergTable, tmp_path: Path) -> None:
    live = next((tmp_path / "t/data").rglob("*.parquet"))
    target = plant(tmp_path / "t/moved/target.parquet", days=4, data=live.read_bytes())
    live.unlink()
    live.symlink_to(target)
    orphan = plant(tmp_path / "t/data/old.parquet", days=4)
    assert [file.path for file in remove_orphan_files(table).files] == [str(orphan)]
    assert table.scan().num_rows == 2


def test_a_file_in_a_folder_that_is_mapped_elsewhere_stays(
    table: IcebergTable, tmp_path: Path
) -> None:
    folder, location = tmp_path / "t", table.metadata.location
    (folder / "data").rename(folder / "moved")
    hidden = plant(folder / "data/x.parquet", days=4)
    other = plant(folder / "moved/x.parquet", days=0)
    places = {location: str(folder), f"{location}/data": str(folder / "moved")}
    mapped = open_table(folder, SampleKms(), location_map=places)
    assert remove_orphan_files(mapped).kept == (str(hidden),)
    assert other.exists()


def table_schema() -> pa.Schema:
    return pa.schema([("id", pa.int64())])


def test_links_are_not_followed(table: IcebergTable, tmp_path: Path) -> None:
    outside = plant(tmp_path / "outside/x.parquet", days=9)
    (tmp_path / "t/data/link").symlink_to(outside.parent)
    remove_orphan_files(table, older_than_days=0)
    assert outside.exists()


def test_a_table_that_cannot_be_read_loses_nothing(table: IcebergTable, tmp_path: Path) -> None:
    orphan = plant(tmp_path / "t/data/old.parquet", days=4)
    snapshot = table.metadata.current
    assert snapshot is not None
    Path(snapshot.manifest_list.removeprefix("file://")).unlink()
    with pytest.raises(OSError, match="No such file"):
        remove_orphan_files(table)
    assert orphan.exists()
    with pytest.raises(ValueError, match="negative"):
        remove_orphan_files(table, older_than_days=-1)


def test_what_the_writers_would_not_have_written_stays(table: IcebergTable, tmp_path: Path) -> None:
    """Parquet of a Hive table that shares the folder, and files of other programs."""
    parquet = plant(tmp_path / "t/legacy/part-00000.parquet", days=99, data=b"PAR1 rows PAR1")
    plant(tmp_path / "t/legacy/.part-00000.parquet.crc", days=99, data=b"crc")
    plant(tmp_path / "t/data/_SUCCESS", days=99, data=b"")
    ours = [
        plant(tmp_path / "t/data/part-1.parquet", days=99, data=b"PARE"),
        plant(tmp_path / "t/data/.part-1.parquet.crc", days=99, data=b"crc"),
        plant(tmp_path / "t/data/.gone.parquet.crc", days=99, data=b"crc"),
        plant(tmp_path / "t/metadata/m0.avro", days=99, data=b"Obj\x01"),  # Spark's, in plaintext
    ]
    done = remove_orphan_files(table)
    assert {Path(file.path) for file in done.files} == set(ours)
    assert parquet.exists()
    assert len(done.kept) == 3
    assert set(done.rules) == set(done.kept)
    assert set(done.rules.values()) == {"foreign"}
    assert len(remove_orphan_files(table, foreign=True).files) == 3
    assert not parquet.exists()


@pytest.mark.parametrize("value", ["false", "FALSE", "no", ""])
def test_a_table_whose_files_others_may_need_keeps_all(tmp_path: Path, value: str) -> None:
    properties = {"gc.enabled": value}
    made = make_table(tmp_path / "t", table_schema(), properties=properties)
    orphan = plant(tmp_path / "t/data/old.parquet", days=99)
    for dry_run in (True, False):
        with pytest.raises(ValueError, match=r"gc\.enabled.*rule gc\.enabled: set the table"):
            remove_orphan_files(made, dry_run=dry_run)
        with pytest.raises(ValueError, match=r"rule gc\.enabled"):
            expire_history(made, dry_run=dry_run)
    assert orphan.exists()

"""Copies of datasets, such as backups, that still open: findings of `keys impact`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import modcrypt as mc
from modcrypt.lake.lake import Lake
from tests.support.cases import each_case
from tests.support.cli.program import run
from tests.support.iceberg.erasable_table import make_table, open_lake, shred
from tests.support.lake_folder import DECLARATION, make_lake, write_day

FIRST = "day=2026-11-01"
PER_DAY = DECLARATION.replace('"footer"', '"day-{partition.day}"').replace(
    'plaintext_columns = ["country"]\n', ""
)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Make an encrypted lake of two days, each with a master key, and erase the first day."""
    config = make_lake(tmp_path, declaration=PER_DAY)
    for day in ("day-2026-11-01", "day-2026-11-02"):
        mc.Keyring(tmp_path / "lake.keyring").create_key(day)
    Lake.open(config).apply()
    return config


@each_case("inside", ["orders", ".", "renamed"])
def test_a_backup_that_opens_is_a_finding(config: Path, tmp_path: Path, inside: str) -> None:
    backup = tmp_path / "backup"
    shutil.copytree(tmp_path / "orders", backup / inside, dirs_exist_ok=True)
    folder = backup / "renamed" if inside == "renamed" else backup
    Lake.open(config).shred("orders", [FIRST], everything=True)
    here, there = Lake.open(config).impact("day-2026-11-01", copies=[str(folder)])
    assert (here.files, here.not_erased) == (0, [])
    assert (there.place, there.files, there.opened) == (str(folder), 2, 2)
    assert list(there.not_erased) == [f"{FIRST}/part-0.parquet", f"{FIRST}/part-1.parquet"]
    environment = {"MODCRYPT_CONFIG": str(config)}
    command = ("keys", "impact", "day-2026-11-01")
    answer = run(tmp_path, *command, "--copies", str(folder), env=environment)
    assert (answer.returncode, "declared as erased, but open: 2 files" in answer.stdout) == (
        1,
        True,
    )
    answer = run(tmp_path, *command, "--copies", str(folder), "--json", env=environment)
    assert json.loads(answer.stdout.splitlines()[-1])["not_erased"] == list(there.not_erased)
    mc.Keyring(tmp_path / "lake.keyring").destroy_key("day-2026-11-01")
    _, there = Lake.open(config).impact("day-2026-11-01", copies=[str(folder)])
    assert (there.files, there.opened, there.not_erased) == (2, 0, [])
    assert run(tmp_path, *command, "--copies", str(folder), env=environment).returncode == 0


def test_plaintext_of_an_erased_file_is_a_finding(config: Path, tmp_path: Path) -> None:
    (tmp_path / "backup").mkdir()
    write_day(tmp_path / "backup", "2026-11-01", 1)
    Lake.open(config).shred("orders", [FIRST], everything=True)
    _, there = Lake.open(config).impact("pii", copies=[str(tmp_path / "backup")])
    assert list(there.not_erased) == [f"{FIRST}/part-0.parquet"]


def test_a_folder_that_does_not_exist_is_an_error(config: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Lake.open(config).impact("pii", copies=[str(tmp_path / "none")])


def test_what_is_known_of_copies_does_not_change_what_is_known(
    config: Path, tmp_path: Path
) -> None:
    """A plaintext copy does not make the files of the dataset suspicious, nor the reverse."""
    (tmp_path / "backup").mkdir()
    write_day(tmp_path / "backup", "2026-11-01", 2)
    before = Lake.open(config).status()[0].counts
    _, there = Lake.open(config).impact("pii", copies=[str(tmp_path / "backup")])
    assert there.not_erased == []
    assert Lake.open(config).status()[0].counts == before == {"declared": 4}


@each_case("store", [False, True])
def test_a_backup_of_a_table_that_opens_is_a_finding(tmp_path: Path, store: bool) -> None:
    make_table(tmp_path, store=store)
    backup = tmp_path / "backup"
    shutil.copytree(tmp_path / "sales", backup / "sales")
    if store:
        shutil.copy(tmp_path / "keks", backup / "keks")
    assert shred(tmp_path).returncode == 0
    here, there = open_lake(tmp_path).impact("sales", copies=[str(backup)])
    assert (here.not_erased, len(there.not_erased)) == ([], 2)
    assert len(there.snapshots) == 2
    if store:
        (backup / "keks").unlink()
        _, there = open_lake(tmp_path).impact("sales", copies=[str(backup)])
        assert there.not_erased == []


def test_an_older_version_that_still_opens_is_a_finding(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    shutil.copy(table.place.path, tmp_path / "old.json")
    assert shred(tmp_path).returncode == 0
    shutil.copy(tmp_path / "old.json", table.place.path)
    (found,) = open_lake(tmp_path).impact("sales")
    assert len(found.not_erased) == 2

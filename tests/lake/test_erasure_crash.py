"""A shredding in a declared dataset that is killed at each of its steps is reported, and completed.

At no step is a file half erased without a finding: either nothing happened, or what is recorded
and still opens is a fault, until a second run has erased it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import modcrypt as mc
from modcrypt.lake.lake import Lake
from tests.support.cases import each_case
from tests.support.cli.program import run
from tests.support.crash import kill_at_every_step
from tests.support.iceberg.erasable_table import make_table
from tests.support.lake_folder import DECLARATION, make_lake

if sys.platform != "linux":
    pytest.skip("steps are counted by names of Linux", allow_module_level=True)

pytestmark = pytest.mark.slow  # kills a process at each of dozens of steps

FIRST = "day=2026-11-01"
PER_DAY = DECLARATION.replace('"footer"', '"day-{partition.day}"').replace(
    'plaintext_columns = ["country"]\n', ""
)
TENANT = f"shred orders/{FIRST} --master-key {FIRST.replace('=', '-')} --destroy-master-key"
COLUMN = "shred orders --column home_ssn"
REMOVAL = "apply --remove-erased"
ALL = "shred orders --all"
PARTITION = "iceberg shred sales --partition part=x"

SCRIPT = """
from tests.support.cli.program import run

def job(step):
    folder, (command,) = step / lake.name, arguments
    where = ("--kms", "file:lake.keyring") if command.startswith("shred") else ()
    environment = {"MODCRYPT_CONFIG": str(folder / "modcrypt.toml")}
    more = (*where, "--yes", *(() if command.startswith("iceberg") else ("--jobs", "1")))
    return run(folder, *command.split(), *more, env=environment).returncode == 0
"""


def make_encrypted_lake(folder: Path) -> Path:
    config = make_lake(folder, declaration=PER_DAY, days=2, files=2)
    for day in ("day-2026-11-01", "day-2026-11-02"):
        mc.Keyring(folder / "lake.keyring").create_key(day)
    Lake.open(config).apply()
    return config


@each_case("command", [TENANT, COLUMN, REMOVAL])
def test_killed_at_every_step(tmp_path: Path, command: str) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    config = make_encrypted_lake(lake)
    if command == REMOVAL:
        _finish(config, TENANT)
    _kill_at_every_step(lake, command)


def test_a_removal_of_all_files_killed_at_every_step(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    _finish(make_encrypted_lake(lake), ALL)
    _kill_at_every_step(lake, REMOVAL)


@pytest.mark.parametrize("store", [False, True])
def test_the_shredding_of_a_partition_killed_at_every_step(tmp_path: Path, store: bool) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    make_table(lake, store=store)
    _kill_at_every_step(lake, PARTITION)


def _kill_at_every_step(lake: Path, command: str) -> None:
    for folder in kill_at_every_step(SCRIPT, lake, command):
        _check_reported(folder, command)
        _finish(folder / "modcrypt.toml", command)
        (verified,) = Lake.open(folder / "modcrypt.toml").verify()
        assert verified.code == 0


def _check_reported(folder: Path, command: str) -> None:
    """Check that what is erased in part is a fault."""
    lake = Lake.open(folder / "modcrypt.toml")
    (status,), (verified,) = lake.status(), lake.verify()
    counts = status.counts
    recorded = (folder / "modcrypt.erased.jsonl").exists()
    assert counts.keys() <= {"declared", "erased", "not-erased"}, counts
    assert recorded or counts.keys() == {"declared"}
    assert (verified.code == 1) == bool(counts.get("not-erased"))
    assert status.is_declared == (verified.code == 0)
    if recorded and command == COLUMN and verified.code == 0:
        assert lake.dataset("orders").read()["home_ssn"].null_count == 8


def _finish(config: Path, command: str) -> None:
    where = ("--kms", "file:lake.keyring") if command.startswith("shred") else ()
    answer = run(
        config.parent, *command.split(), *where, "--yes", env={"MODCRYPT_CONFIG": str(config)}
    )
    assert answer.returncode == 0, answer.stderr

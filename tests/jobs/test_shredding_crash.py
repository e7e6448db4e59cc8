"""Shredding that is killed, fails or is not alone: a file is readable or shredded, never half."""

from __future__ import annotations

import json
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import modcrypt as mc
from modcrypt.jobs.shredding.file_shredding import ShreddedFile
from modcrypt.jobs.shredding.proof import prove_shredded
from modcrypt.jobs.shredding.removal import shred_keys
from tests.support.crash import every_step, kill_at_every_step, meanwhile, run_together
from tests.support.folder_contents import bytes_of
from tests.support.jobs.lake import (
    NARROW_OTHER,
    NARROW_TABLE,
    STORAGE,
    material_file,
    read,
    results,
)
from tests.support.jobs.lake import write_lake as write_any_lake
from tests.support.jobs.shredded_files import MASTERS, check_column_is_gone
from tests.support.kms.rotating_kms import RotatingKms

if sys.platform != "linux":
    pytest.skip("steps are counted by names of Linux", allow_module_level=True)

pytestmark = pytest.mark.slow  # some kill a process at each of dozens of steps

TABLE, OTHER = NARROW_TABLE, NARROW_OTHER
write_lake = partial(write_any_lake, table=TABLE)


SHREDDING = """
import json
import modcrypt as mc
from tests.support.kms.rotating_kms import RotatingKms

def job(folder):
    tools, criteria = mc.KeyTools(RotatingKms(kf=1, k1=1, k2=1)), json.loads(arguments[0])
    done = mc.jobs.shred_keys(
        folder / "lake", tools, jobs=1, record=folder / "record", **criteria)
    return {file.result for file in done} == {"shredded"}
"""


@STORAGE
@pytest.mark.parametrize("criteria", [{"columns": ["name"]}, {"everything": True}], ids=str)
def test_killed_at_any_step_every_file_is_readable_or_shredded_and_the_run_is_taken_up(
    criteria: dict[str, Any], policy: mc.Policy, tmp_path: Path
) -> None:
    lake, seen = tmp_path / "lake", set()
    write_lake(lake, RotatingKms(**MASTERS), policy, 2)
    for found in kill_at_every_step(SHREDDING, lake, json.dumps(criteria)):
        kms = RotatingKms(**MASTERS)
        readable = {path.name for path in sorted(found.glob("*.parquet")) if is_whole(path, kms)}
        seen.add(len(readable))
        for path in found.glob("*.parquet"):
            if path.name not in readable:
                check_is_shredded(path, kms, criteria)
        visible = {path.name for path in found.iterdir() if not path.name.startswith(".")}
        gone = {file.name for file in lake.iterdir()} - visible
        assert all(name.startswith("_KEY_MATERIAL_FOR_") for name in gone)
        before = bytes_of(found)

        done = shred_keys(found, mc.KeyTools(kms), record=found.parent / "record", **criteria)

        assert set(results(done)) <= {"shredded", "current"}
        after = bytes_of(found)
        for file in done:
            if file.result == "current":
                assert after[file.path] == before[file.path]
            assert "columns" not in criteria or is_gone(Path(file.path), kms)
        # What a killed process has left holds no key that was shredded, but may look as if.
        proof = prove_shredded(found, mc.KeyTools(kms), **criteria)
        assert not proof.still_readable
        unfinished = {
            leftover for leftover in found.iterdir() if leftover.name.startswith(".modcrypt-")
        }
        assert {Path(file.path) for file, _ in proof.unknown} <= unfinished
        for leftover in unfinished:
            leftover.unlink()
        assert prove_shredded(found, mc.KeyTools(kms), **criteria).ok
    assert seen == {0, 1, 2}


def is_whole(path: Path, kms: RotatingKms) -> bool:
    try:
        return bool(read(path, kms).equals(TABLE))
    except mc.ModcryptError:
        return False


def check_is_shredded(path: Path, kms: RotatingKms, criteria: dict[str, Any]) -> None:
    if "columns" in criteria:
        check_column_is_gone(path, kms, table=TABLE)
        return
    with pytest.raises(mc.ModcryptError):
        mc.read_table(path, mc.KeyTools(kms).decryption(on_missing_key="drop"))


# --- a writer at the same time -------------------------------------------------------------------


@STORAGE
@pytest.mark.parametrize("criteria", [{"columns": ["name"]}, {"master_keys": ["k2"]}], ids=str)
def test_a_writer_that_replaces_a_file_at_any_step_loses_nothing(
    criteria: dict[str, Any], policy: mc.Policy, tmp_path: Path
) -> None:
    """The new version is there, as it was written or without what was to be shredded."""

    (prepared,) = write_lake(tmp_path / "lake", RotatingKms(**MASTERS), policy, 1)

    def attempt(step: int) -> list[str]:
        kms = RotatingKms(**MASTERS)
        path = shutil.copytree(prepared.parent, tmp_path / f"{step}") / prepared.name
        failures: list[BaseException] = []

        def replace() -> None:
            try:
                encryption = mc.KeyTools(kms).encryption(policy)
                mc.write_table(OTHER, path, encryption, overwrite=True)
            except mc.errors.KeyMaterialError as error:  # try again, it says
                failures.append(error)

        # Between the last look at the file and the rename there is nothing to be done.
        gap = ("replace",) if policy.internal_key_material else ()
        with meanwhile("modcrypt-job", step, replace, gap) as seen:
            (file,) = shred_keys(path, mc.KeyTools(kms), **criteria)
        replaced = len(seen.steps) > step and not failures
        if not replaced:
            assert file.result == "shredded"
            check_column_is_gone(path, kms, table=TABLE)
        elif file.failed or not is_gone(path, kms):
            assert read(path, kms).equals(OTHER)
        assert not [file.name for file in path.parent.iterdir() if file.name.startswith(".")]
        again = shred_keys(path, mc.KeyTools(kms), **criteria)
        assert set(results(again)) <= {"shredded", "current"}
        rows = mc.read_table(path, mc.KeyTools(kms).decryption(on_missing_key="drop"))
        expected = OTHER if replaced else TABLE
        assert rows.equals(expected.drop_columns(["name"]))
        assert prove_shredded(path.parent, mc.KeyTools(kms), **criteria).ok
        return seen.steps

    assert len(every_step(attempt)) > 5


def is_gone(path: Path, kms: RotatingKms) -> bool:
    rows = mc.read_table(path, mc.KeyTools(kms).decryption(on_missing_key="drop"))
    return "name" not in rows.column_names


@STORAGE
def test_a_shredding_at_any_step_of_a_writer_loses_nothing(
    policy: mc.Policy, tmp_path: Path
) -> None:
    """What it writes is there with all its keys, or was shredded: with its keys or without."""

    (prepared,) = write_lake(tmp_path / "lake", RotatingKms(**MASTERS), policy, 1)

    def attempt(step: int) -> list[str]:
        kms = RotatingKms(**MASTERS)
        path = shutil.copytree(prepared.parent, tmp_path / f"{step}") / prepared.name
        said: list[ShreddedFile] = []

        def shred() -> None:
            said.extend(shred_keys(path, mc.KeyTools(kms), columns=["name"]))

        encryption, expected = mc.KeyTools(kms).encryption(policy), OTHER
        with meanwhile("MainThread", step, shred) as seen:
            try:
                mc.write_table(OTHER, path, encryption, overwrite=True)
            except mc.errors.KeyMaterialError:
                expected = TABLE
        assert {file.result for file in said} <= {"shredded", "current", "file", "key-material"}
        rows = mc.read_table(path, mc.KeyTools(kms).decryption(on_missing_key="drop"))
        rest = [name for name in TABLE.column_names if name != "name"]
        assert rows.select(rest).equals(expected.select(rest))
        again = shred_keys(path, mc.KeyTools(kms), columns=["name"])
        assert set(results(again)) <= {"shredded", "current"}
        proof = prove_shredded(path.parent, mc.KeyTools(kms), columns=["name"])
        assert not proof.still_readable
        return seen.steps

    assert len(every_step(attempt)) > 5


IN_A_PROCESS = """
import json, sys
import modcrypt as mc
from modcrypt.jobs.shredding.removal import shred_keys
from tests.support.kms.rotating_kms import RotatingKms

tools = mc.KeyTools(RotatingKms(kf=1, k1=1, k2=1))
print("ready", flush=True)
sys.stdin.readline()
done = shred_keys(sys.argv[1], tools, columns=[sys.argv[2]], jobs=2)
print(json.dumps([[file.path, file.result] for file in done]))
"""


@STORAGE
def test_processes_that_shred_columns_of_the_same_folder(policy: mc.Policy, tmp_path: Path) -> None:
    kms = RotatingKms(**MASTERS)
    paths = write_lake(tmp_path, kms, policy, 20)
    for said in run_together(IN_A_PROCESS, *((tmp_path, name) for name in ("name", "id", "name"))):
        # A file may have been changed by another process.
        assert {result for _, result in said} <= {"shredded", "current", "file"}
    for column in ("name", "id"):
        done = shred_keys(tmp_path, mc.KeyTools(kms), columns=[column])
        assert set(results(done)) <= {"shredded", "current"}
    proof = prove_shredded(tmp_path, mc.KeyTools(kms), columns=["name", "id"])
    assert proof.ok
    names = {path.name for path in paths} | {material_file(path).name for path in paths}
    assert {path.name for path in tmp_path.iterdir()} <= names
    rows = mc.read_table(tmp_path, mc.KeyTools(kms).decryption(on_missing_key="drop"))
    assert rows.num_rows == 20 * TABLE.num_rows
    assert rows.slice(0, len(TABLE)).equals(TABLE.drop_columns(["name", "id"]))

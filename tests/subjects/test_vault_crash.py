"""Erasures and rotations that are killed at each step: reported, and completed by the next run."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import pytest

import modcrypt as mc
from modcrypt.kms.key_tools import KeyTools
from modcrypt.subjects.vault import SubjectVault, create_vault, open_vault
from tests.support.crash import kill_at_every_step
from tests.support.sample_vault import fingerprints

if sys.platform != "linux":
    pytest.skip("steps are counted by names of Linux", allow_module_level=True)

pytestmark = pytest.mark.slow  # kills a process at each of dozens of steps

SUBJECTS = [b"%d" % number for number in range(60)]

# Each statement of SQL is a step, too: `os.close` of no descriptor stands for it.
SCRIPT = """
import contextlib, os
from modcrypt.subjects import database as module
from modcrypt.subjects.database import Database
from tests.support.cli.program import run

module.BATCH = 7
for name in ("query", "query_each"):
    def step(self, *arguments, real=getattr(Database, name)):
        with contextlib.suppress(OSError):
            os.close(-1)
        return real(self, *arguments)
    setattr(Database, name, step)

def job(step):
    folder, (command,) = step / lake.name, arguments
    return run(folder, *command.split(), "--kms", "file:lake.keyring", "--yes").returncode == 0
"""


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a vault of sixty subjects, the first ten of which are to be erased."""
    folder = tmp_path / "lake"
    folder.mkdir()
    monkeypatch.chdir(folder)
    mc.Keyring.create("lake.keyring", plaintext=True).create_key("people")
    with closing(create_vault("subjects.db", KeyTools("file:lake.keyring"), "people")) as vault:
        fingerprints(vault, vault.references(SUBJECTS), create=True)
    return folder


def open_at(folder: Path) -> SubjectVault:
    return open_vault(str(folder / "subjects.db"), KeyTools(f"file:{folder}/lake.keyring"))


def count_keys(vault: SubjectVault, subjects: list[bytes]) -> int:
    return sum(key is not None for key in fingerprints(vault, vault.references(subjects)))


def test_an_erasure_killed_at_each_step(lake: Path) -> None:
    seen = set()
    command = f"subjects erase {' '.join(map(bytes.decode, SUBJECTS[:10]))} --request GDPR-17"
    for folder in kill_at_every_step(SCRIPT, lake, command, least=30):
        with closing(open_at(folder)) as vault:
            left, status = count_keys(vault, SUBJECTS[:10]), vault.status()
            assert left in (0, 10)
            assert count_keys(vault, SUBJECTS[10:]) == 50
            begun = (folder / "subjects.evidence.jsonl").exists()
            seen.add((left, status["complete"], begun))
            assert status["returned"] == (0 if status["complete"] else 10)
            assert left == 0 or status["complete"]
            vault.erase(vault.references(SUBJECTS[:10]), "GDPR-17")
            assert count_keys(vault, SUBJECTS[:10]) == 0
            status = vault.status()
            assert (status["erased"], status["subjects"], status["complete"]) == (10, 50, True)
    assert {(10, True, False), (10, True, True), (0, False, True), (0, True, True)} <= seen


def test_a_rotation_killed_at_each_step(lake: Path) -> None:
    with closing(open_at(lake)) as vault:
        keys = fingerprints(vault, vault.references(SUBJECTS))
    seen = set()
    for folder in kill_at_every_step(SCRIPT, lake, "subjects rotate", least=30):
        with closing(open_at(folder)) as vault:
            status = vault.status()
            assert fingerprints(vault, vault.references(SUBJECTS)) == keys
            generations = len(vault._keys.keks)
            seen.add((status["complete"], generations))
            (new,) = fingerprints(vault, vault.references([b"new"]), create=True)
            vault.rotate()
            assert len(vault._keys.keks) == 1
            assert vault.status()["complete"]
            assert fingerprints(vault, vault.references([*SUBJECTS, b"new"])) == [*keys, new]
    assert {(True, 1), (False, 2)} <= seen

"""A rotation that is killed between its commit and its seal leaves one of three clear states."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import modcrypt as mc
from modcrypt.errors import IntegrityError
from modcrypt.iceberg import create_table, open_table, rotate_table, seal_table
from tests.support.crash import WRITING, run
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.iceberg.table_changes import ids, rows

if sys.platform != "linux":
    pytest.skip("steps are counted by names of Linux", allow_module_level=True)

pytestmark = pytest.mark.slow  # it kills a process at each of dozens of steps

KILLED_AT_EVERY_STEP = """
import os, shutil, sys
from pathlib import Path
import modcrypt as mc
from modcrypt.iceberg import open_table, rotate_table
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.killed import kill_at_each_step

def copy(folder):
    # Copies of a table have its UUID, so each has a key and a state folder of its own.
    shutil.copy(sys.argv[4], f"{folder}.key")
    shutil.copytree(sys.argv[1], folder)

def rotate(folder):
    key = mc.SigningKey.load(Path(f"{folder}.key"))
    os.environ["XDG_STATE_HOME"] = f"{folder}.state"
    table = open_table(folder, SampleKms(), signed_by=[key.verifier], signing_key=key)
    return rotate_table(table, "mek") is not None

kill_at_each_step(rotate, copy, Path(sys.argv[2]), sys.argv[3].split(","))
"""


def state_after_recovery(folder: Path, writer: mc.SigningKey) -> str:
    """Return what readers see of a table, after checking that its writer can go on from there."""
    os.environ["XDG_STATE_HOME"] = f"{folder}.state"
    by = [writer.verifier]
    newest = open_table(folder, SampleKms())
    state = "old" if newest.place.name == "v2.metadata.json" else "new"
    try:
        found = open_table(folder, SampleKms(), signed_by=by)
    except IntegrityError:
        state = "unsealed"
        with pytest.raises(IntegrityError, match="has committed and not sealed it yet"):
            open_table(folder, SampleKms(), signed_by=by)
        seal_table(newest, writer, signed_by=by, seal_at_least=1, accept=True)
        found = open_table(folder, SampleKms(), signed_by=by, seal_at_least=2)
    assert ids(found) == [1]
    again = open_table(folder, SampleKms(), signed_by=by, signing_key=writer)
    rotate_table(again, "kek")
    assert ids(open_table(folder, SampleKms(), signed_by=by, seal_at_least=2)) == [1]
    return state


def test_killed_at_any_step_the_table_is_as_before_unsealed_or_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # set by each step, and restored at the end
    table = create_table(tmp_path / "t", rows(1).schema, SampleKms(), master_key_id="keyA")
    writer = mc.SigningKey.generate()
    seal_table(table.append(rows(1)), writer)
    writer.save(tmp_path / "writer.key")
    steps = tmp_path / "steps"
    steps.mkdir()
    names = ",".join((*WRITING, "makedirs", "mkdir"))
    process = run(KILLED_AT_EVERY_STEP, tmp_path / "t", steps, names, tmp_path / "writer.key")
    process.communicate(timeout=300)
    assert process.returncode == 0
    folders = [folder for folder in sorted(steps.glob("0*")) if not folder.suffix]
    keys = [mc.SigningKey.load(folder.with_name(f"{folder.name}.key")) for folder in folders]
    states = list(map(state_after_recovery, folders, keys))
    assert states == sorted(states, key=["old", "unsealed", "new"].index)
    assert set(states) == {"old", "unsealed", "new"}

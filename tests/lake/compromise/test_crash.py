"""The answer to a leak, killed at each step: nothing is lost, and nothing exposed seems safe."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import modcrypt as mc
from modcrypt.lake.files.file_states import EXPOSED
from modcrypt.lake.lake import Lake
from tests.support.crash import WRITING, run
from tests.support.lake_folder import DECLARATION, make_lake

pytestmark = pytest.mark.slow  # it kills a process at each of dozens of steps

REPLACED = DECLARATION.replace("\npii =", "\npii2 =") + (
    '\n[dataset.orders.previous]\nmaster_keys = { pii = "pii2" }\n'
)

KILLED_AT_EVERY_STEP = """
import shutil, sys
from pathlib import Path
from modcrypt.lake.lake import Lake
from tests.support.killed import kill_at_each_step

lake, steps, names = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]

def answer(folder):
    (done,) = Lake.open(folder / "modcrypt.toml").apply(jobs=1)
    return done.totals.results == {"renewed": 2}

def copy(step):
    shutil.copytree(lake, step)

print(*kill_at_each_step(answer, copy, steps, names.split(",")))
shutil.rmtree(steps / "first")
"""


def test_an_answer_that_is_killed_is_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, steps = tmp_path / "lake", tmp_path / "steps"
    lake.mkdir()
    config = make_lake(lake, days=1)
    keyring = mc.Keyring(lake / "lake.keyring")
    keyring.create_key("pii2")
    Lake.open(config).apply()
    config.write_text(REPLACED)
    Lake.open(config).apply()  # rewrapped: only the record will tell old data keys
    config.write_text(f'compromised = ["pii"]\n{REPLACED}')
    rows = Lake.open(config).dataset("orders").read().sort_by("id")
    old = {path.name: path.read_bytes() for path in lake.rglob("*.parquet")}

    process = run(KILLED_AT_EVERY_STEP, lake, steps, ",".join(WRITING))
    printed, _ = process.communicate(timeout=600)
    assert process.returncode == 0
    *killed, last = map(int, printed.split())
    assert (last, set(killed)) == (0, {-9})
    assert len(killed) > 30
    for number, folder in enumerate(sorted(steps.iterdir())):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"cache-{number}"))  # it knows nothing
        check_step(folder / "modcrypt.toml", rows, old)
        shutil.rmtree(folder)


def check_step(config: Path, rows: object, old: dict[str, bytes]) -> None:
    """Check that a killed run lost nothing, calls each old file exposed, and is taken up."""
    found = Lake.open(config)
    assert found.dataset("orders").read().sort_by("id").equals(rows)
    for file in found.status()[0].files:
        unchanged = (config.parent / "orders" / file.path).read_bytes() == old[Path(file.path).name]
        assert unchanged == (file.state in EXPOSED), file
    (done,) = found.apply()
    assert done.code == 0
    assert Lake.open(config).status()[0].counts == {"declared": 2}
    assert Lake.open(config).verify()[0].code == 0
    assert Lake.open(config).impact("pii")[0].rewrapped == 0

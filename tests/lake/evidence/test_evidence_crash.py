"""An event that is killed at each of its steps shows in the record of evidence."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from modcrypt.lake.lake import Lake
from tests.support.cases import each_case
from tests.support.crash import kill_at_every_step
from tests.support.evidence import make_recorded_lake

if sys.platform != "linux":
    pytest.skip("steps are counted by names of Linux", allow_module_level=True)

pytestmark = pytest.mark.slow  # kills a process at each of dozens of steps

SCRIPT = """
from modcrypt.lake.lake import Lake

def job(step):
    found = Lake.open(step / lake.name / "modcrypt.toml")
    if arguments == ["apply"]:
        return not any(done.code for done in found.apply(jobs=1))
    done = found.shred("orders", ["day=2026-11-01"], everything=True, jobs=1)
    return len(done) == 2
"""


@each_case("event", ["apply", "shred"])
def test_killed_at_every_step(tmp_path: Path, event: str) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    config = make_recorded_lake(lake)
    before = "plaintext"
    if event == "shred":
        Lake.open(config).apply()
        before = "declared"
    lines = Lake.open(config).read_evidence().lines
    seen = set()
    for folder in kill_at_every_step(SCRIPT, lake, event):
        found = Lake.open(folder / "modcrypt.toml")
        evidence = found.read_evidence()
        assert evidence.ok, evidence.findings
        (status,) = found.status()
        is_changed = set(status.counts) != {before}
        new = evidence.lines - lines
        assert new > 0 or not is_changed, "nothing changes before its record"
        assert evidence.interrupted == ((lines + 1,) if new == 1 else ())
        seen.add((new, is_changed))
        for application in found.apply():
            assert application.code in (0, 1)
        assert found.read_evidence().ok, "the record goes on"
    assert {(0, False), (1, True), (2, True)} <= seen

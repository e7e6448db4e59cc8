"""Cases that run as subtests of one item: none is left out, shares state or fails unseen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = """
import pytest
from tests.support.cases import each_case

@pytest.fixture(params=["p", "q"])
def folder(request, tmp_path):
    (tmp_path / request.param).mkdir()
    yield tmp_path / request.param
    (tmp_path / request.param).rmdir()

@pytest.fixture(autouse=True)
def announce_end():
    yield
    print("ENDED")

@each_case("number", [1, pytest.param(2, id="two")])
@pytest.mark.parametrize("slow", "s")
@each_case(("letter", "other"), [("x", 0), ("y", 0)], ids=["ex", "why"])
def test_product(number, letter, other, slow, folder, monkeypatch):
    monkeypatch.setattr(pytest, "seen", number, raising=False)
    assert (number, letter) != (2, "y")

def test_nothing_stays():
    assert not hasattr(pytest, "seen")

@each_case("number", [1, 2])
def test_skipped(number):
    pytest.skip("why not")

@each_case("number", [1, 2, 3], quick=lambda numbers: numbers[:1])
@each_case("letter", ["x", "y"])
def test_some_are_slow(number, letter):
    pass

@each_case("number", [1], quick=lambda numbers: numbers[:1])
def test_none_is_slow(number):
    pass
"""


def test_every_case_runs_with_fixtures_of_its_own_and_names_itself(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", "-vsc", os.devnull, "-p", "no:cacheprovider",
         "-omarkers=slow", f"--basetemp={tmp_path / 'temporary'}", tmp_path],  # or older ones go
        cwd=Path(__file__).parent.parent, env={**os.environ, "COLUMNS": "200"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    out = answer.stdout
    for label in ("1-ex", "1-why", "two-ex"):
        assert out.count(f"SUBPASSED[{label}]") == 2, out  # for each value of the fixture
    assert out.count("\nSUBFAILED[two-why]") == 2
    for value in ("p", "q"):
        assert f"test_product[{value}-s] - contains 1 failed subtest\n" in out
    for label in ("1-x", "1-y", "2-x", "3-y"):
        assert out.count(f"SUBPASSED[{label}]") == 1, out
    assert "4 failed, 4 passed, 3 skipped, 13 subtests passed" in out
    # For every item, and for its cases.
    assert out.count("ENDED") == 2 * (1 + 4) + 1 + (1 + 2) + (1 + 2) + (1 + 4) + (1 + 1)

"""The scripts in `examples` run, each in a process and a folder of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.cases import each_case
from tests.support.paths import ROOT

PRINTED = {
    "drop_in": "[10115, 22201]\n",
    "pandas_and_duckdb": "[('Ada',)]\n",
    "partner_with_polars": "['name', 'zip']\n",
}


def test_every_example_is_tried() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == PRINTED.keys()


@each_case("name", PRINTED)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    script = ROOT / "examples" / f"{name}.py"
    run = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert (run.returncode, run.stdout) == (0, PRINTED[name]), run.stderr

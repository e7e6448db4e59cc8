"""Runs of the conformance suite's runner."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT

RUNNER = ROOT / "tools" / "conformance"
FAKE = Path(__file__).with_name("fake_client.py")
Json = dict[str, Any]


def run_suite(*arguments: object, python: tuple[str, ...] = (sys.executable,)) -> tuple[int, str]:
    """Run `tools/conformance` and return its exit status and output."""
    command = [*python, str(RUNNER), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    return done.returncode, done.stdout + done.stderr


def copy_fake(behaviour: str, folder: Path) -> str:
    """Copy the client that misbehaves into a folder and return its command."""
    return f"{sys.executable} {shutil.copy(FAKE, folder)} {behaviour}"


def run_fake(behaviour: str, folder: Path, *arguments: object) -> Json:
    """Run the suite with a client that misbehaves and return its verdicts by case."""
    status, output = run_suite(
        "--entrypoint", copy_fake(behaviour, folder), "--name", "fake", "--private", folder,
        "--junit", folder / "junit.xml", *arguments,
    )  # fmt: skip
    assert status == 1, output
    assert "Traceback" not in output
    cases: Json = json.loads((folder / "fake.json").read_text())["cases"]
    return cases

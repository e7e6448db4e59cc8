"""Runs of the conformance suite's runner."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.cli.forked import as_process
from tests.support.paths import ROOT
from tools.conformance import __main__ as runner

RUNNER = ROOT / "tools" / "conformance"
FORKED = f"from {runner.__name__} import main; raise SystemExit(main())"
FAKE = Path(__file__).with_name("fake_client.py")
Json = dict[str, Any]


def run_suite(*arguments: object, python: tuple[str, ...] = ()) -> tuple[int, str]:
    """Run `tools/conformance`, in a fork or with `python`; return its exit status and output."""
    start = (*python, str(RUNNER)) if python else (sys.executable, "-c", FORKED)
    process = as_process([*start, *map(str, arguments)], os.environ, fork=not python)
    done = subprocess.run(**process, capture_output=True, text=True, check=False, cwd=ROOT)
    return done.returncode, done.stdout + done.stderr


def copy_fake(behaviour: str, folder: Path) -> str:
    """Copy the client that misbehaves into a folder and return its command."""
    return f"{sys.executable} -I -S {shutil.copy(FAKE, folder)} {behaviour}"


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

"""Run the steps of a composite GitHub action on this machine, as its runner would.

`uses:` steps are left out and returned: this machine's Python stands in for actions/setup-python.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="pyyaml is not installed")

INPUT = re.compile(r"\$\{\{\s*inputs\.(\w+)\s*\}\}")
BASH = ("bash", "--noprofile", "--norc", "-e", "-o", "pipefail")
"""How a runner starts the script of a step with `shell: bash`."""


@dataclass
class ActionRun:
    """Results of an action: the exit status of the last step, and what was left out."""

    status: int = 0
    output: str = ""
    left_out: list[str] = field(default_factory=list)


def run_action(folder: Path, workspace: Path, given: Mapping[str, str]) -> ActionRun:
    """Run the action of a folder in a workspace until a step fails."""
    action = yaml.safe_load((folder / "action.yml").read_text())
    assert action["runs"]["using"] == "composite"
    inputs = _fill_inputs(action["inputs"], given)
    done = ActionRun()
    for step in action["runs"]["steps"]:
        if "uses" in step:
            done.left_out.append(step["uses"])
        elif done.status == 0:
            _run_step(step, inputs, folder, workspace, done)
    return done


def _fill_inputs(declared: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, str]:
    """Return all inputs; a runner warns of unknown ones, and gives required ones no value."""
    assert {*given} <= {*declared}, "an input that the action does not declare"
    return {name: given.get(name, entry.get("default", "")) for name, entry in declared.items()}


def _run_step(
    step: Mapping[str, Any], inputs: Mapping[str, str], folder: Path, workspace: Path,
    done: ActionRun,
) -> None:  # fmt: skip
    assert step["shell"] == "bash"
    assert "${{" not in step["run"], "an expression within a script is an injection"
    # The lookup fails if an expression names an input that is not declared.
    values = {
        name: INPUT.sub(lambda found: inputs[found[1]], text)
        for name, text in step.get("env", {}).items()
    }
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    more = {"GITHUB_ACTION_PATH": str(folder), "GITHUB_WORKSPACE": str(workspace), "PATH": path}
    found = subprocess.run(
        [*BASH, "-c", step["run"]], cwd=workspace, env=os.environ | more | values, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    done.status = found.returncode
    done.output += found.stdout

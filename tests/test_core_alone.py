"""The core without the packages above it: it starts, and its own tests pass."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import NoReturn

import pytest

from modcrypt.runtime import plugins
from tests.support.paths import ROOT

PLUGINS = ("iceberg", "lake", "spark", "subjects")
TESTS = (  # of what asks for plug-ins, and goes on without them
    "tests/jobs/test_key_scan.py",
    "tests/cli/test_doctor.py",
    "tests/cli/test_recipients.py",
    "tests/cli/test_rewrite.py",
    "tests/cli/test_shred.py",
    "tests/cli/test_tables.py",
)
IMPORTS = """
import importlib, pkgutil
import modcrypt
from modcrypt import *
for module in pkgutil.walk_packages(modcrypt.__path__, "modcrypt."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
encrypt_parquet
print("Lake" in dir())
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout without the plug-ins."""
    copy = tmp_path_factory.mktemp("core")
    shutil.copytree(ROOT / "modcrypt", copy / "modcrypt")  # compiled code, too, as dates stay
    skipped = shutil.ignore_patterns("__pycache__")
    for name in ("tests", "thrift", "spec-vectors", "tools", "docs"):
        shutil.copytree(ROOT / name, copy / name, ignore=skipped)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, copy / name)
    for name in PLUGINS:
        shutil.rmtree(copy / "modcrypt" / name)
    return copy


def run_in(core: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the copy, whose modcrypt comes first."""
    settings = {**os.environ, "PYTHONPATH": str(core)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=core, env=settings, capture_output=True, text=True
    )  # fmt: skip


def test_commands_of_plugins_are_left_out(core: Path) -> None:
    shown = run_in(core, "-m", "modcrypt", "--help").stdout
    assert "\n  encrypt " in shown
    for command in ("iceberg", "status", "spark ", "subjects"):
        assert f"\n  {command}" not in shown
    for command in ("iceberg", "status"):
        assert run_in(core, "-m", "modcrypt", command).returncode == 2
    refused = run_in(core, "-m", "modcrypt", "keys", "scan", "--spark", "local", "--kms",
                     "file:keyring", "pyproject.toml")  # fmt: skip
    assert refused.returncode != 0
    assert "this modcrypt has no spark" in refused.stderr


def test_a_checkout_that_is_not_installed_has_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    def distribution(name: str) -> NoReturn:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(plugins, "distribution", distribution)
    assert plugins.load_all(plugins.COMMANDS) == []
    with pytest.raises(ModuleNotFoundError, match="has no spark"):
        plugins.load(plugins.ENGINES, "spark")


def test_all_modules_and_names_that_are_left_can_be_imported(core: Path) -> None:
    done = run_in(core, "-c", IMPORTS)
    assert (done.stdout, done.returncode) == ("False\n", 0), done.stderr


@pytest.mark.slow
def test_the_tests_of_the_core_pass(core: Path) -> None:
    done = run_in(core, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *TESTS)
    assert done.returncode == 0, done.stdout[-3000:]

"""Import and the core of the library work without the modules that only POSIX systems have."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

CORE = (  # quick ones of what opens, locks and publishes files
    "tests/test_keys.py",
    "tests/test_readme.py",  # whose guides rotate, shred and record
    "tests/ags1/test_writer.py",
    "tests/parquet/datasets/test_aad_prefixes.py",
    "tests/kms/test_key_tools.py",
)
SCRIPT = """
import without_posix
import modcrypt, modcrypt.parquet, modcrypt.iceberg, modcrypt.spark
for package in (modcrypt, modcrypt.parquet, modcrypt.iceberg, modcrypt.spark):
    for name in package.__all__:
        getattr(package, name)
import modcrypt.cli.app
from modcrypt.io import locks
assert locks.fcntl is None and not locks.LOCKS_FOLDERS
"""


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=1800,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests/support'}"},
    )  # fmt: skip


def test_every_public_name_can_be_imported() -> None:
    done = _run("-c", SCRIPT)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow  # these tests run a second time here
def test_the_core_tests_pass() -> None:
    plugin = ("-p", "without_posix", "-p", "no:cacheprovider", "-p", "no:xdist")
    paths = [path for path in CORE if (ROOT / path).exists()]
    done = _run("-m", "pytest", "-q", *plugin, *paths)
    assert done.returncode == 0, done.stdout[-4000:]

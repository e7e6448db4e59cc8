"""PyArrow's own Parquet tests, which its wheel contains, run encrypted through `modcrypt.parquet`.

All its modules run except those of encryption. `pyarrow_suite.toml` lists the reasons of failures.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytestmark = pytest.mark.skipif(
    find_spec("pyarrow.tests") is None, reason="this PyArrow comes without its tests"
)

MODULES = (
    "test_basic", "test_compliant_nested_type", "test_data_types", "test_dataset", "test_datetime",
    "test_metadata", "test_pandas", "test_parquet_file", "test_parquet_writer",
)  # fmt: skip
REASONS = tomllib.loads(Path(__file__).with_name("pyarrow_suite.toml").read_text("utf-8"))
LEAST_SHARE = 0.9


@pytest.mark.slow  # another whole suite
def test_most_tests_of_pyarrow_pass_and_each_failure_has_a_reason(tmp_path: Path) -> None:
    results = tmp_path / "outcomes.json"
    names = [f"pyarrow.tests.parquet.{module}" for module in MODULES]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.pyarrow_suite"]
    command += ["-p", "no:cacheprovider", "-W", "ignore", "-c", os.devnull]
    command += ["--basetemp", str(tmp_path / "files"), "--pyargs", *names]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MODCRYPT_OUTCOMES": str(results)}
    environment.pop("PARQUET_TEST_DATA", None)
    environment["MODCRYPT_LEFT_OUT"] = json.dumps(list(REASONS["not_applicable"]))
    run = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
    )
    assert results.exists(), run.stdout + run.stderr
    outcomes = json.loads(results.read_text())
    failed = {name: entry for name, entry in outcomes.items() if entry["outcome"] == "failed"}
    assert {n: entry["error"] for n, entry in failed.items() if n not in REASONS["fails"]} == {}
    assert REASONS["fails"].keys() == failed.keys()
    through_modcrypt = [entry for entry in outcomes.values() if entry["calls"]]
    passed = sum(entry["outcome"] == "passed" for entry in through_modcrypt)
    ran = sum(entry["outcome"] != "skipped" for entry in through_modcrypt)
    assert ran > 250
    assert passed / ran >= LEAST_SHARE, f"{passed} of {ran}"

"""`modcrypt iceberg`, run in the process of the tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from click.testing import CliRunner, Result

from modcrypt.cli.app import program
from tests.support.iceberg.sample_kms import SampleKms

__all__ = ["Run", "error_line", "lines", "run"]

Run: TypeAlias = Callable[..., Result]
"""`run("scan", ..., code=0)` runs a command, and checks its exit code."""


@pytest.fixture
def run(tmp_path: Path, kms: SampleKms, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in the test's folder; `sample:` is the key service of the shared table."""
    monkeypatch.setattr("modcrypt.kms.references._load_entry_point", lambda scheme: lambda uri: kms)
    monkeypatch.chdir(tmp_path)

    def runs(*arguments: object, code: int = 0) -> Result:
        texts = [str(argument) for argument in arguments]
        result = CliRunner().invoke(program, ["iceberg", *texts])
        assert result.exit_code == code, result.output
        return result

    return runs


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def error_line(result: Result) -> str:
    """Check that a run failed with one line on stderr; return that line."""
    members = ["schema", "error", "message", "module"]
    assert not result.stdout or list(json.loads(result.stdout)) == members
    assert result.stderr.startswith("modcrypt: error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr

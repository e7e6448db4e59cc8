"""Check the answers of commands on folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import Result

from tests.support.cli.program import Answer, check_failure, invoke

LOST_KEYS = "modcrypt: columns that no longer have a key of their own: "


def run_ok(folder: Path, *arguments: str) -> str:
    """Run a command that must succeed, with no stderr except columns that lost their own keys."""
    result = invoke(folder, *arguments)
    said = [line for line in result.stderr.splitlines() if not line.startswith(LOST_KEYS)]
    assert (result.exit_code, said) == (0, [])
    return result.stdout


def check_refusal(result: Result, word: str = "usage", code: int = 2) -> str:
    return check_failure(Answer((), result.exit_code, result.stdout, result.stderr), code, word)


def lines(result: Result) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the JSON lines of the files, and of the totals."""
    *files, totals = [json.loads(line) for line in result.stdout.splitlines()]
    return files, totals

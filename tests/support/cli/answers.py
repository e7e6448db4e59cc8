"""What commands on folders answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import Result

from tests.support.cli.program import Answer, failed, invoke

LOST_KEYS = "modcrypt: columns that no longer have a key of their own: "


def ran(folder: Path, *arguments: str) -> str:
    """Run what succeeds, and says nothing on stderr but which columns lost keys of their own."""
    result = invoke(folder, *arguments)
    said = [line for line in result.stderr.splitlines() if not line.startswith(LOST_KEYS)]
    assert (result.exit_code, said) == (0, [])
    return result.stdout


def refused(result: Result, word: str = "usage", code: int = 2) -> str:
    return failed(Answer((), result.exit_code, result.stdout, result.stderr), code, word)


def lines(result: Result) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Give what --json said of each file, and the totals."""
    *files, totals = [json.loads(line) for line in result.stdout.splitlines()]
    return files, totals

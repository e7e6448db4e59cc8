"""`modcrypt leaks`: rows, JSON and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.cli.answers import run_ok
from tests.support.cli.program import KEY, NAME_KEY, invoke, private
from tests.support.keys import COLUMN_KEY, FOOTER_KEY
from tests.support.tables import small_table, write_plain

KEYS = (*KEY, *NAME_KEY)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with keys, and one encrypted file in `lake`."""
    private(tmp_path / "footer.key", FOOTER_KEY.hex().encode())
    private(tmp_path / "name.key", COLUMN_KEY.hex().encode())
    (tmp_path / "plain").mkdir()
    write_plain(tmp_path / "plain/part.parquet")
    run_ok(tmp_path, "encrypt", *KEYS, "plain", "lake")
    return tmp_path


def test_nothing_found(folder: Path) -> None:
    result = invoke(folder, "leaks", "lake")
    assert (result.exit_code, result.stdout) == (0, "lake: 1 file, 1 encrypted: no leak found\n")


def test_leaks_end_with_exit_code_1(folder: Path) -> None:
    pq.write_metadata(small_table().schema, folder / "lake/_common_metadata")
    result = invoke(folder, "leaks", "lake")
    assert result.exit_code == 1
    assert "parquet-summary" in result.stdout
    lines = invoke(folder, "leaks", "lake", "--json").stdout.splitlines()
    leak, totals = map(json.loads, lines)
    assert (leak["schema"], leak["kind"]) == ("modcrypt.leaks.leak/1", "parquet-summary")
    assert (totals["leaks"], totals["files"], totals["encrypted"]) == (1, 2, 1)


def test_a_plaintext_folder_needs_a_policy(folder: Path) -> None:
    result = invoke(folder, "leaks", "plain")
    assert result.exit_code == 2
    assert "policy" in result.stderr
    (folder / "p.toml").write_text('footer_key = "f"\n')
    result = invoke(folder, "leaks", "--policy", "p.toml", "plain")
    assert result.exit_code == 1
    assert "plaintext-parquet" in result.stdout

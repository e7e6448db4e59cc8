"""`make corpus`: files of real writers pass, and defects of a file or of modcrypt show."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.shared_vectors import shared_vectors
from tools.corpus import __main__ as tool
from tools.corpus import checks

TABLE = pa.table({"id": [1, 2, 3], "score": [0.5, float("nan"), None], "name": ["a", None, "c"]})


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["corpus", *map(str, arguments)])
    return tool.main()


def test_files_of_a_folder_are_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import polars as pl

    pq.write_table(TABLE, tmp_path / "arrow.parquet")
    pl.DataFrame({"id": [1, 2]}).write_parquet(tmp_path / "polars.pq")
    (tmp_path / "none.parquet").write_bytes(b"no Parquet file")
    (tmp_path / "notes.txt").write_bytes(b"ignored")
    results, page = tmp_path / "results.json", tmp_path / "results.html"
    assert run(monkeypatch, tmp_path, "--json", results, "--html", page) == 0
    assert capsys.readouterr().out == "2 ok, 1 refused\n"
    found = {
        result["file"]: result["result"] for result in json.loads(results.read_text())["files"]
    }
    assert found == {"arrow.parquet": "ok", "polars.pq": "ok", "none.parquet": "refused"}
    assert "none.parquet" in page.read_text()
    assert "arrow.parquet" not in page.read_text()


@pytest.mark.parametrize(
    ("check", "result"),
    [
        (lambda _: "other rows", "failed"),
        (lambda _: 1 // 0, "failed"),
        (lambda _: os._exit(3), "crashed"),
        (lambda _: time.sleep(60), "timeout"),
    ],
)
def test_a_defect_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: object, result: str
) -> None:
    pq.write_table(TABLE, tmp_path / "file.parquet")
    monkeypatch.setattr(tool, "CHECKS", {"check": check})
    monkeypatch.setattr(tool, "warm_up", lambda: None)
    results = tmp_path / "results.json"
    assert run(monkeypatch, tmp_path, "--json", results, "--seconds", 2) == 1
    assert json.loads(results.read_text())["counts"] == {result: 1}


def test_not_a_number_equals_itself_and_other_rows_do_not() -> None:
    assert checks.are_equal(TABLE, TABLE.slice(0))
    assert not checks.are_equal(TABLE, TABLE.slice(1))
    assert not checks.are_equal(TABLE, TABLE.rename_columns(["id", "score", "other"]))


@pytest.mark.slow
def test_published_files_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "results.json"
    assert run(monkeypatch, shared_vectors(), "--json", results) == 0
    assert json.loads(results.read_text())["files"]

"""`modcrypt iceberg`, run in the process of the tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

import modcrypt as mc
from modcrypt.cli.app import program
from modcrypt.kms import references
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.iceberg.table_changes import ids, rows

__all__ = ["Run", "check_changes", "check_seals", "error_line", "lines", "run"]

Run: TypeAlias = Callable[..., Result]
"""`run("scan", ..., code=0)` runs a command, and checks its exit code."""


@pytest.fixture
def run(tmp_path: Path, kms: SampleKms, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in the test's folder; `sample:` is the key service of the shared table."""
    find = references._find_opener
    monkeypatch.setattr(
        references, "_find_opener", lambda name: find(name) if name != "sample" else lambda uri: kms
    )
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


def check_changes(run: Run, folder: Path, uri: str, named: Any) -> None:
    """Append to a table of a catalog, and move it to `keyB`."""
    pq.write_table(rows(1, 2), folder / "rows.parquet")
    catalog = ("--kms", "sample:", "--catalog", uri)
    run("append", *catalog, named.name, folder / "rows.parquet")
    run("rotate", "mek", *catalog, "--new-master-key", "keyB", named.name)
    (snapshot,) = lines(run("snapshots", "--catalog", uri, "--json", named.name))
    assert snapshot["operation"] == "append"
    assert ids(named.load()) == [1, 2]


def check_seals(run: Run, folder: Path, uri: str, name: str) -> None:
    """Append to a table of a catalog, rotate and expire it, each time with a new seal."""
    writer = mc.SigningKey.generate()
    writer.save(folder / "writer.key")
    (folder / "writer.pub").write_text(f"{writer.verifier}\n")
    pq.write_table(rows(1), folder / "rows.parquet")
    catalog, new = ("--kms", "sample:", "--catalog", uri), folder / "rows.parquet"
    sign, by = ("--sign", f"file:{folder / 'writer.key'}"), ("--signed-by", folder / "writer.pub")
    run("append", *catalog, *sign, name, new)
    run("append", *catalog, *sign, *by, "--seal-at-least", "1", name, new)
    assert len(lines(run("scan", *catalog, *by, "--seal-at-least", "2", "--json", name))) == 2
    for change in (("append", name, new), ("rotate", "mek", name), ("expire", "--yes", name)):
        verb, *arguments = change
        run(verb, *catalog, *arguments)
        for refused in (("scan", name), ("append", *sign, name, new)):
            why = error_line(run(refused[0], *catalog, *by, *refused[1:], code=1))
            assert "not the version that was sealed" in why
        assert "--accept" in error_line(run("seal", *catalog, *sign, name, code=1))
        run("seal", *catalog, *sign, "--accept", "--yes", name)
    assert lines(run("verify", *catalog, *by, "--seal-at-least", "5", "--strict", "--json", name))
    assert "rolled back" in error_line(
        run("scan", *catalog, *by, "--seal-at-least", "6", name, code=1)
    )
    run("admin", "remove-orphans", *catalog, "--older-than", "0", "--yes", name)
    assert len(lines(run("scan", *catalog, *by, "--json", name))) == 3

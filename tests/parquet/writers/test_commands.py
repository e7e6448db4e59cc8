"""`modcrypt doctor FILE` and `modcrypt encrypt --repair`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli.program import invoke, private
from tests.support.keys import FOOTER_KEY
from tests.support.tables import write_plain
from tools.writer_vectors import FILES, load_file

KEY = ("--key", "file:footer.key")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    private(tmp_path / "footer.key", FOOTER_KEY)
    write_plain(tmp_path / "clean.parquet")
    name = "duckdb-2.0-zeros.parquet"
    (tmp_path / name).write_bytes(load_file(name))
    (tmp_path / "short-chunks.parquet").write_bytes(FILES["short-chunks"]())
    return tmp_path


def checks(folder: Path, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    result = invoke(folder, "doctor", "--json", *arguments)
    assert (result.exit_code, result.stderr) == (code, "")
    found: list[dict[str, Any]] = json.loads(result.stdout)["checks"]
    assert {check["check"] for check in found} <= {"writer"}
    return found


def test_bugs_of_a_plaintext_file_are_explained(folder: Path) -> None:
    found = checks(folder, "duckdb-2.0-zeros.parquet")
    assert [(check["state"], check["bug"]["quirk"]) for check in found] == [("warn", "zero-bounds")]
    assert found[0]["bug"]["count"] == 2
    assert "column z: min_value is +0" in found[0]["message"]
    assert "encrypt --repair writes a minimum of -0" in found[0]["advice"]
    result = invoke(folder, "doctor", "duckdb-2.0-zeros.parquet")
    assert result.stdout.endswith("0 ok, 0 hint, 1 warn, 0 fail\n")
    assert "DuckDB version v2.0.0" in result.stdout
    assert invoke(folder, "doctor", "--strict", "duckdb-2.0-zeros.parquet").exit_code == 1


def test_all_files_of_a_folder_are_examined(folder: Path) -> None:
    found = checks(folder, ".", code=1)
    states = {(check["state"], check["message"].split(": ")[0].split(" (")[0]) for check in found}
    assert {("ok", "clean.parquet"), ("warn", "duckdb-2.0-zeros.parquet")} < {
        (state, Path(name).name) for state, name in states
    }
    failed = [check["message"] for check in found if check["state"] == "fail"]
    assert len(failed) == 1  # no Parquet file
    assert "footer.key" in failed[0]


def test_a_file_that_is_missing_or_damaged_fails(folder: Path) -> None:
    (folder / "damaged.parquet").write_bytes(b"PAR1" + bytes(20) + b"PAR1")
    assert [c["state"] for c in checks(folder, "damaged.parquet", code=1)] == ["fail"]
    assert invoke(folder, "doctor", "missing.parquet").exit_code != 0


def test_an_encrypted_file_is_examined_with_its_keys(folder: Path) -> None:
    name = "duckdb-2.0-zeros.parquet"
    assert invoke(folder, "encrypt", *KEY, name, "e.parquet").exit_code == 0
    (locked,) = checks(folder, "e.parquet")
    assert (locked["state"], locked["advice"]) == ("hint", "pass its keys")
    assert [c["bug"]["quirk"] for c in checks(folder, *KEY, "e.parquet")] == ["zero-bounds"]


def test_repairs_are_reported(folder: Path) -> None:
    name = "short-chunks.parquet"
    assert invoke(folder, "encrypt", *KEY, name, "e.parquet").exit_code == 1
    result = invoke(folder, "encrypt", "--json", "--repair", *KEY, name, "e.parquet")
    assert result.exit_code == 0
    fields = json.loads(result.stdout)
    assert fields["message"] == "repaired: short-chunks"
    assert fields["repaired"][0].startswith("short-chunks: ")
    assert [c["state"] for c in checks(folder, *KEY, "e.parquet")] == ["ok"]
    assert invoke(folder, "decrypt", *KEY, "e.parquet", "back.parquet").exit_code == 0
    assert (folder / "back.parquet").read_bytes() == (folder / name).read_bytes()


def test_verification_lists_the_bugs(folder: Path) -> None:
    result = invoke(folder, "verify", "duckdb-2.0-zeros.parquet")
    assert "Bugs of the writer:\n  zero-bounds: " in result.stdout

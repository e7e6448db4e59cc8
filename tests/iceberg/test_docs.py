"""The examples of docs/how-to/iceberg.md run as they are written, and it names what there is."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from modcrypt.cli.app import program
from modcrypt.iceberg.commands.iceberg_group import iceberg
from modcrypt.runtime.lazy_names import public_names
from tests.support.paths import ROOT

TEXT = (ROOT / "docs/how-to/iceberg.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    examples = blocks("python")
    assert len(examples) == 17
    for block in examples:
        exec(block, names)
    commands = "".join(blocks("console")).replace("\\\n", " ").splitlines()
    assert len(commands) == 29
    monkeypatch.setenv("MODCRYPT_PASSPHRASE", "correct horse battery staple")  # not typed in
    for line in commands:
        prompt, name, *arguments = shlex.split(line)
        assert prompt == "$"
        assert name == "modcrypt"
        result = CliRunner().invoke(program, arguments)
        assert result.exit_code == 0, f"{line}\n{result.output}"
    assert Path("verified.html").exists()
    assert len(Path("shop.csv").read_text().splitlines()) == 1 + 6


def test_every_public_name_and_command_is_named() -> None:
    functions = {name for name in public_names("modcrypt.iceberg") if name.islower()}
    choices = {"FileKeyStore", "KeyPolicy", "KeyStore", "SqliteKeyStore"}
    assert choices <= set(public_names("modcrypt.iceberg"))
    assert {name for name in functions | choices if name not in TEXT} == set()
    assert [name for name in iceberg.commands if f"modcrypt iceberg {name} " not in TEXT] == []

"""The examples of docs/how-to/lake.md run as they are written."""

from __future__ import annotations

import contextlib
import re
import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from modcrypt.lake.declarations.declaration_file import read_content, require_valid
from modcrypt.lake.files.file_states import STATES
from tests.support.cli.program import run
from tests.support.lake_folder import write_day
from tests.support.paths import ROOT

TEXT = (ROOT / "docs/how-to/lake.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def make_folder(folder: Path) -> Path:
    (folder / "passphrase.txt").write_text("correct horse battery staple\n")
    (folder / "passphrase.txt").chmod(0o600)
    write_day(folder, "2026-11-26", 2)
    addresses = pa.table({"country": ["NO"], "address": [{"zip": "0150"}]})
    pq.write_table(addresses, folder / "orders/day=2026-11-26/addresses.parquet")
    declaration, _, _ = blocks("toml")
    (folder / "modcrypt.toml").write_text(declaration)
    return folder


def test_the_console_examples_run(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    for line in "".join(blocks("console")).splitlines():
        _, program, *arguments = shlex.split(line)
        assert program == "modcrypt"
        answer = run(folder, *arguments)
        assert answer.returncode == 0, (line, answer.stdout, answer.stderr)
    assert answer.stdout.splitlines()[-1] == "ok      policy: the file is encrypted as declared"
    with contextlib.chdir(folder):
        (python,) = blocks("python")
        exec(python, {})


def test_the_declarations_that_are_shown_are_valid(tmp_path: Path) -> None:
    config = make_folder(tmp_path) / "modcrypt.toml"
    first, table, more = blocks("toml")
    config.write_text(first + table + more)
    declaration = require_valid(read_content(config))
    orders, sales = declaration.datasets["orders"], declaration.tables["sales"]
    assert (sales.policy, sales.max_kek_age) == ({"kek_per": "day"}, 365 * 86400)
    assert orders.previous.master_keys == {"old-pii": "pii"}
    assert orders.rotation.max_version_age == 365 * 86400


def test_the_table_names_every_state() -> None:
    assert re.findall(r"^\| `([a-z-]+)` \| .* \| .* \|$", TEXT, re.MULTILINE) == list(STATES)

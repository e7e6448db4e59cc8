"""A CI system that logs output of modcrypt finds no command in it, whatever names files have."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pyarrow as pa
import pytest

import modcrypt as mc
from modcrypt.cli.output.json_output import dump_line
from modcrypt.cli.output.text_table import wrap_cells
from modcrypt.errors import printable
from tests.support.cases import each_case, one_in
from tests.support.cli.program import KEY, private, run, to_key
from tests.support.keys import FOOTER_KEY
from tests.support.tables import write_plain

NAMES = (
    "::error::x",
    " ::add-mask::x",
    "a ::notice file=b::x",
    "##[error]x",
    "###vso[task.setvariable variable=a]x",
    "##teamcity[buildStatus]",
)
# As the runners read a line: actions/runner (ActionCommand.cs), azure-pipelines-agent (Command.cs).
COMMAND = re.compile(r"^\s*::.*::|##(vso|teamcity)?\[", re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which files, folders, columns, keys and values have the names of commands."""
    found = tmp_path_factory.mktemp("ci")
    table = pa.table({name: list(NAMES) for name in NAMES})
    for name in NAMES:
        sealing = mc.FileEncryptionProperties(
            footer_key=FOOTER_KEY, footer_key_metadata=name.encode(), aad_prefix=name.encode()
        )
        for inner in ("sealed", name):
            (found / inner).mkdir(exist_ok=True)
            mc.write_table(table, found / inner / f"{name}.parquet", sealing)
        (found / "mixed").mkdir(exist_ok=True)
        write_plain(found / "mixed" / name, table)
        (found / "mixed" / f"{name}.parquet").write_bytes(b"not Parquet")
    private(found / "footer.key", FOOTER_KEY.hex().encode())
    ring = mc.Keyring.create(found / "ring", plaintext=True)
    for name in NAMES:
        ring.create_key(name)
    datasets = (
        f"[dataset.d{n}]\nlocation = {json.dumps(place)}\nfooter_key = {json.dumps(name)}\n"
        for n, name in enumerate(NAMES)
        for place in [("mixed", "sealed", name)[n % 3]]
    )
    (found / "modcrypt.toml").write_text(f'kms = "file:ring"\n{"".join(datasets)}')
    return found


EACH = [
    ("inspect", "{path}"),
    ("inspect", "--modules", "{path}", *KEY),
    ("verify", "{path}", *KEY),
    ("schema", "{path}", *KEY),
    ("schema", "--parquet", "{path}", *KEY),
    ("head", "{path}", *KEY),
    ("cat", "{path}", *KEY, "--format", "jsonl"),
    ("cat", "{path}", *KEY, "--column", "{name}x"),
    ("cat", "{path}x", *KEY),
    ("cat", "{path}", *KEY, "--aad-prefix", "{name}"),
    ("keys", "scan", "{path}"),
    ("decrypt", "{path}", "{name}/none/out", *KEY),
    ("decrypt", "{path}", "{path}", *KEY),
    ("rekey", "{path}", "out", *KEY, "--to", "{path}"),
    ("encrypt", "{path}", "out", "--to", "{name}"),
    ("seals", "verify", "{name}", "--signed-by", "{name}"),
    ("seals", "verify", "{name}", "--signed-by", "{path}"),
    ("cat", "{path}", "--identity", "file:{name}"),
    ("cat", "{path}", "--key", "file:{name}"),
    ("cat", "{path}", "--key", "env:{name}"),
    ("cat", "{path}", "--kms", "file:{name}"),
    ("cat", "{path}", "--policy", "{name}"),
    ("keys", "create", "--kms", "file:ring", "{name}"),
    ("keys", "disable", "--kms", "file:ring", "{name}", "--version", "9"),
    ("status", "--config", "{name}"),
    ("status", "{name}"),
    ("why", "{path}"),
    ("ags1", "inspect", "{path}"),
    ("ags1", "decrypt", "{path}", "out", *KEY),
    ("recipients", "list", "{path}"),
    ("doctor", "--file", "{path}", *KEY),
    ("{name}",),
    ("cat", "--{name}"),
    ("iceberg", "files", "{name}"),
    ("iceberg", "verify", "{name}", "--kms", "file:ring"),
    ("spark", "{name}"),
]
ALL = [
    ("verify", "mixed", "sealed", *KEY),
    ("inspect", "mixed"),
    ("keys", "scan", "mixed", "sealed"),
    ("encrypt", "mixed", "{new}", *KEY),
    ("encrypt", "mixed", "{new}", *KEY, "--dry-run"),
    ("decrypt", "sealed", "{new}", *KEY),
    ("rekey", "sealed", "{new}", *KEY, "--to", "footer.key.toml"),
    ("keys", "list", "--kms", "file:ring"),
    ("status", "--files"),
    ("verify",),
    ("apply", "--dry-run"),
    ("keys", "impact", "{name}"),
    ("recipients", "list", "mixed", "sealed"),
    ("shred", "sealed", "--column", "{name}"),
]


def output_of(folder: Path, *arguments: str) -> str:
    answer = run(folder, *arguments)
    assert answer.returncode != 70, answer
    return answer.stdout + answer.stderr


@each_case(("arguments", "name"), itertools.product(EACH, NAMES), quick=one_in(5))
def test_no_verb_prints_a_command(folder: Path, arguments: tuple[str, ...], name: str) -> None:
    given = [a.format(name=name, path=f"{name}/{name}.parquet") for a in arguments]
    for more in ((), ("--json",)):
        assert not COMMAND.search(output_of(folder, *given, *more))


@each_case("arguments", ALL)
def test_no_verb_on_folders_prints_a_command(
    folder: Path, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    to_key(folder, "footer.key")
    for n, more in enumerate(((), ("--json",))):
        new = str(tmp_path / f"{n}" / NAMES[1])
        given = [a.format(new=new, name=NAMES[n]) for a in arguments]
        assert not COMMAND.search(output_of(folder, *given, *more))


def test_wrapped_tables_and_json_begin_no_command() -> None:
    for name in NAMES:
        for width in range(8, 40):
            assert not COMMAND.search(wrap_cells(["a"], [[f"some/{printable(name)}"]], width=width))
        line = dump_line({name: name})
        assert not COMMAND.search(line)
        assert json.loads(line) == {name: name}


@each_case(
    "text", ["a::b", "s3://a::b", "##", "# [a]", "## vso[", "std::vector", "modcrypt::s3://a"]
)
def test_other_text_stays_as_it_is(text: str) -> None:
    assert printable(text) == text

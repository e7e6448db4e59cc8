"""Help, shell completion and the manual page."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from modcrypt.cli.app import program
from modcrypt.cli.help.first_screen import LEAST, MOST, SCREEN, list_commands, read_first_screen
from modcrypt.cli.help.help_screens import format_screen
from modcrypt.cli.shared_options import parameters_of
from tests.support.cases import each_case
from tests.support.cli.program import import_modules, run, run_program
from tests.support.cli.tree import commands_of
from tools.first_screen import make_file


def test_help_fits_a_screen_and_help_all_has_every_option(tmp_path: Path) -> None:
    wide = {"COLUMNS": "100"}
    for name, command in commands_of(program):
        arguments = name.split()[1:]
        screen = run(tmp_path, *arguments, "--help", env=wide).stdout
        assert screen.count("\n") <= 50, name
        assert screen == run(tmp_path, *arguments, "-h", env=wide).stdout
        everything = run(tmp_path, *arguments, "--help-all", env=wide).stdout
        own = command.params if isinstance(command, click.Group) else parameters_of(command)
        options = [option for option in own if isinstance(option, click.Option)]
        for option in options:
            assert option.hidden or re.search(rf"{option.opts[0]}\b", everything), (name, option)


def test_the_first_screen_of_the_package_is_that_of_the_commands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Path(SCREEN).read_text() == make_file(), "run python -m tools.first_screen"
    settings = program.context_settings
    for columns in range(LEAST, MOST + 2):
        monkeypatch.setenv("COLUMNS", str(columns))
        context = program.context_class(program, info_name="modcrypt", **settings)
        assert read_first_screen() == f"{format_screen(context)}\n"
    monkeypatch.setenv("COLUMNS", str(LEAST - 1))
    assert not read_first_screen()
    sections = program.list_sections(click.Context(program))
    assert [name for name, _ in list_commands()] == [n for s in sections for n in s.commands]


def test_summaries_of_commands_fit_a_terminal_of_80_columns() -> None:
    lines = [line for line in read_first_screen(80).splitlines() if line.startswith("  ")]
    assert [line for line in lines if line.endswith("...")] == []


def test_other_installations_make_their_first_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", ["", "/nonexistent"])
    assert not read_first_screen()
    assert not list_commands()


def test_the_commands_of_other_plug_ins_make_another_first_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "other_plugin-1.0.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text("[console_scripts]\nother = other:run\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert read_first_screen()
    (info / "entry_points.txt").write_text("[modcrypt.commands]\nother = other:add\n")
    assert not read_first_screen()


def test_help_says_where_the_rest_is_if_there_is_more(tmp_path: Path) -> None:
    end = "\nmodcrypt mask --help-all shows everything.\n"
    assert run(tmp_path, "mask", "--help").stdout.endswith(end)
    assert "--help-all" not in run(tmp_path, "man", "--help").stdout


@each_case("group", ["", "ags1", "keys", "iceberg"])
def test_a_group_without_a_command_shows_its_help(group: str, tmp_path: Path) -> None:
    answer = run(tmp_path, *group.split())
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr == run(tmp_path, *group.split(), "--help").stdout


HEAVY = {
    *("pyarrow", "numpy", "thriftpy2", "cryptography", "rich", "fsspec", "modcrypt.ags1"),
    *("boto3", "hvac", "pkcs11", "google.cloud.kms", "azure", "modcrypt.kms.keyring.keyring"),
    *("pyiceberg", "pyspark", "sqlalchemy"),
}
ERRORS = ["", "encrypt x", "ags1", "ags1 cat x", "ags1 encrypt x y", "keys", "keys scan",
          "keys list x"]  # fmt: skip
HELP = ["", *("encrypt", "schema", "head", "cat", "doctor", "ags1", "ags1 encrypt", "keys"),
        *("keys create", "keys rotate", "iceberg", "iceberg scan", "iceberg rotate"),
        "iceberg append"]  # fmt: skip


def test_help_and_usage_errors_import_nothing_heavy() -> None:
    shown = [["--version"], *([*words.split(), "--help"] for words in HELP)]
    codes, loaded = import_modules(*shown, *(words.split() for words in ERRORS))
    assert codes == [0] * len(shown) + [2] * len(ERRORS)
    assert loaded > {"modcrypt.cli.ags1", "modcrypt.cli.keys", "modcrypt.cli.rows.tables"}
    assert loaded > {"modcrypt.cli.doctor", "modcrypt.iceberg.commands.iceberg_group"}
    assert loaded.isdisjoint(HEAVY)


@each_case("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_valid(shell: str, tmp_path: Path) -> None:
    script = run(tmp_path, "completion", shell).stdout
    assert "_MODCRYPT_COMPLETE" in script
    if shutil.which(shell) and shell != "fish":
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


@each_case(
    ("words", "answer"),
    [
        ("modcrypt encr", "plain,encrypt"),
        ("modcrypt keys rot", "plain,rotate"),
        ("modcrypt encrypt --plaintext-f", "plain,--plaintext-footer"),
        ("modcrypt encrypt --algorithm AES_GCM_C", "plain,AES_GCM_CTR_V1"),
        ("modcrypt encrypt ord", "file,ord"),
        ("modcrypt verify --policy la", "file,la"),
    ],
)
def test_words_are_completed(words: str, answer: str, tmp_path: Path) -> None:
    variables = {
        "_MODCRYPT_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    fork = words != "modcrypt encr"  # one real process has what the start itself does
    assert run_program(tmp_path, env=variables, fork=fork).stdout == f"{answer}\n"


def test_the_manual_page_has_every_command_and_option(tmp_path: Path) -> None:
    page = run(tmp_path, "man").stdout
    assert page.startswith(".TH MODCRYPT 1")
    for name, command in commands_of(program):
        if isinstance(command, click.Group):
            continue
        assert f".SS {name}".replace("-", "\\-") in page
        for parameter in parameters_of(command):
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert parameter.opts[0].replace("-", "\\-") in page, (name, parameter.opts)
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    drawn = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww"], input=page, capture_output=True, text=True, check=True
    )
    assert drawn.stderr == ""

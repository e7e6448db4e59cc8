"""Options that many commands share: given before the command or after it, and where they belong."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import click
import pyarrow as pa
import pytest
from click.shell_completion import ShellComplete
from pyarrow.parquet import read_table, write_table

import modcrypt
from modcrypt.cli.app import program
from modcrypt.cli.shared_options import SharedOption, list_shared, parameters_of
from tests.support.cli.program import run
from tests.support.cli.tree import commands_of

KMS = ("--kms", "file:lake.keyring")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    modcrypt.Keyring.create(tmp_path / "lake.keyring", plaintext=True).create_key("footer")
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        (*KMS, "--json", "keys", "list"),
        ("--json", "keys", *KMS, "list"),
        (*KMS, "--json", "keys", "list", *KMS),
        (f"{KMS[0]}={KMS[1]}", "--json", "keys", "--json", "list", "--json"),
    ],
)
def test_a_shared_option_is_given_before_or_after_the_command(
    folder: Path, arguments: tuple[str, ...]
) -> None:
    answer = run(folder, *arguments)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert [key["id"] for key in json.loads(answer.stdout)["keys"]] == ["footer"]


def test_what_is_given_before_is_a_typed_value(folder: Path) -> None:
    """Its source is the command line: it contradicts options as if given after the command."""
    answer = run(folder, *KMS, "--audit", "log", "head", "--key", "file:x.key", "x.parquet")
    assert answer.returncode == 2
    assert "key" in answer.stderr
    answer = run(folder, "--audit", "log", "keys", "scan", ".")
    assert answer.returncode == 2
    assert "--audit: this needs --kms or --policy" in answer.stderr


def test_repeatable_options_add_up(folder: Path) -> None:
    answer = run(folder, "--signed-by", "a.pub", "verify", "--signed-by", "b.pub", *KMS, ".")
    assert answer.returncode == 2
    assert "a.pub" in answer.stderr  # both are read, in this order


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--kms", "env:A", "keys", "list", "--kms", "env:B"),
         "--kms is given twice with different values; pass one"),
        (("--kms", "env:A", "keys", "--kms", "env:B", "list"), "different values"),
        (("--passphrase", "file:a", "keys", "list", "--passphrase", "file:b"),
         "--passphrase is given twice with different values; pass one"),
        (("--kms", "env:A", "leaks", "."), "modcrypt leaks does not use --kms, which is for"),
        (("leaks", "--kms", "env:A", "."), "usage: modcrypt leaks does not use --kms, which is"),
        (("ags1", "encrypt", "--to", "x"), "AGS1 has no recipients; pass --key, or --new-key-"),
        (("--to", "x", "ags1", "encrypt", "a", "b"), "AGS1 has no recipients; pass --key, or"),
        (("--catalog", "x", "keys", "list"), "does not use --catalog, which is for iceberg"),
        (("--catalog", "x", "iceberg", "files", "t"), "more; give it after the command"),
        (("--at-least", "2", "iceberg", "files", "t"), "more; give it after the command"),
        (("rotate", "x"), "modcrypt iceberg rotate or modcrypt subjects rotate?"),
        (("--key", "file:x", "keys", "rotate"), "modcrypt keys rotate has a --key of its own"),
        (("--sign", "file:x", "seals", "create", "."), "seals create has a --sign of its own"),
        (("keys", "list", "--jsn"), "No such option '--jsn'. (Did you mean"),
        (("--jsn", "keys", "list"), "No such option '--jsn'. (Did you mean"),
    ],
)  # fmt: skip
def test_misplaced_options_are_usage_errors(
    folder: Path, arguments: tuple[str, ...], message: str
) -> None:
    answer = run(folder, *arguments)
    assert answer.returncode == 2
    assert message in answer.stderr


def test_two_values_of_an_option_contradict_and_equal_ones_do_not(folder: Path) -> None:
    options = {
        option: name.split()[1:]
        for name, command in commands_of(program)
        for option in parameters_of(command)
        if isinstance(option, click.Option) and not (option.is_flag or option.multiple)
    }
    assert len(options) > 80
    for option, command in options.items():
        answer = run(folder, *command, option.opts[-1], "1", option.opts[-1], "2")
        message = f"{option.opts[0]} is given twice with different values; pass one"
        assert (answer.returncode, message in answer.stderr) == (2, True), (command, answer.stderr)
    for arguments in ((*KMS, *KMS, "keys", "list"), ("keys", *KMS, "list", *KMS, *KMS)):
        assert run(folder, *arguments).returncode == 0
    answer = run(folder, *KMS, "--kms", "env:secret", "keys", "list")
    assert (answer.returncode, "secret" in answer.stderr) == (2, False)


NEEDED = {
    "iceberg rotate": ("mek",), "shred": ("--all",), "iceberg shred": ("--partition", "day=1"),
}  # fmt: skip


def test_a_dry_run_and_its_confirmation_exclude_each_other() -> None:
    """Before anything is read: no path exists."""
    for name, command in commands_of(program):
        names = {parameter.name for parameter in parameters_of(command)}
        if {"yes", "dry_run"} <= names and not isinstance(command, click.Group):
            words = name.removeprefix("modcrypt ")
            kms = ("--kms", "file:absent") if "kms" in names else ()
            more = (*NEEDED.get(words, ()), *kms, "--dry-run", "--yes")
            answer = run(Path(), *words.split(), *more, "absent")
            assert answer.returncode == 2
            assert "--dry-run and --yes exclude each other" in answer.stderr, name


@pytest.mark.parametrize("arguments", [("--json",), ("--json", "keys"), ("keys", "--json")])
def test_a_missing_command_is_a_failure_in_json(folder: Path, arguments: tuple[str, ...]) -> None:
    answer = run(folder, *arguments)
    assert answer.returncode == 2
    failure = json.loads(answer.stdout)
    assert (failure["error"], failure["message"][:15]) == ("usage", "Missing command")


def test_a_path_may_look_like_the_option_for_json(folder: Path) -> None:
    answer = run(folder, "inspect", "--", "--json")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "--json: No such file" in answer.stderr


def test_each_group_has_an_option_once_and_a_command_no_two_of_a_name() -> None:
    declared = Counter[SharedOption]()
    for name, command in commands_of(program):
        names = Counter(name for option in parameters_of(command) for name in option.opts)
        assert [each for each, count in names.items() if count > 1] == [], name
        declared.update(o for o in command.params if isinstance(o, SharedOption))
    assert set(declared) == set(list_shared(program))
    assert max(declared.values()) == 1


def test_help_names_the_shared_options_of_a_command_and_describes_the_usual_ones(
    tmp_path: Path,
) -> None:
    screen = run(tmp_path, "keys", "create", "--help").stdout
    assert "--kms URI  " in screen
    assert screen.endswith(
        "\nAlso: --passphrase\nmodcrypt keys create --help-all shows everything.\n"
    )
    everything = run(tmp_path, "keys", "create", "--help-all").stdout
    assert "--passphrase REF  " in everything
    assert "--passphrase REF  " in run(tmp_path, "--help-all").stdout


def test_shells_complete_shared_options() -> None:
    shell = ShellComplete(program, {}, "modcrypt", "_MODCRYPT_COMPLETE")
    for before in ([], ["keys"], ["keys", "list"], ["--json", "keys", "list"]):
        assert "--kms" in [item.value for item in shell.get_completions(before, "--km")]
    assert [item.value for item in shell.get_completions(["--kms", "x"], "enc")] == ["encrypt"]


# --- references to master keys -------------------------------------------------------------------


def test_a_key_may_be_a_master_key(folder: Path) -> None:
    modcrypt.Keyring(folder / "lake.keyring").create_key("pii")
    write_table(pa.table({"price": [1.5], "shipped": ["a"]}), folder / "plain.parquet")
    keys = ("--key", "file:lake.keyring#footer", "--column-key", "price=file:lake.keyring#pii")
    for verb, source, more in (("encrypt", "plain", "enc"), ("decrypt", "enc", "back")):
        answer = run(folder, verb, *keys, f"{source}.parquet", f"{more}.parquet")
        assert (answer.returncode, answer.stderr) == (0, ""), answer.stderr
    assert read_table(folder / "back.parquet") == read_table(folder / "plain.parquet")
    scanned = run(folder, "keys", "scan", "--json", *KMS, "enc.parquet").stdout.splitlines()
    found = {(line["column"], line["master_key_id"]) for line in map(json.loads, scanned)}
    assert found == {(None, "footer"), ("price", "pii")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--key", "file:ring#a", "--kms", "file:ring"), "--kms: --key names a master key"),
        (("--key", "file:ring#a", "--column-key", "n=file:other#b"), "n=file:KEYRING#ID"),
        (("--key", "file:ring#a", "--column-key", "n=file:n.key"), "--column-master-key n=ID"),
        (("--key", "file:a.key", "--column-key", "n=file:ring#b"), "--column-key n names a master"),
        (("--key", "hcvault://h/transit/keys/a", "--column-key", "n=hcvault://h/transit/keys/b"),
         "pass --kms and --column-master-key n=ID"),
    ],
)  # fmt: skip
def test_keys_of_different_kinds_are_usage_errors(
    folder: Path, arguments: tuple[str, ...], message: str
) -> None:
    write_table(pa.table({"n": [1]}), folder / "plain.parquet")
    for verb in ("encrypt", "decrypt"):
        answer = run(folder, verb, *arguments, "plain.parquet", "out.parquet")
        assert answer.returncode == 2
        assert message in answer.stderr
        assert not (folder / "out.parquet").exists()


def test_other_commands_take_no_master_key_for_a_key(folder: Path) -> None:
    answer = run(folder, "ags1", "cat", "--key", "file:lake.keyring#footer", "lake.keyring")
    assert answer.returncode == 2
    assert "--key names a master key; name its key service by --kms" in answer.stderr

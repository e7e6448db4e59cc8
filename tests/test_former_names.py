"""Names of arguments, attributes and options before they had one spelling on every surface."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import modcrypt as mc
from modcrypt import ags1
from modcrypt.iceberg import create_table
from modcrypt.runtime.former_names import accept_former_names
from modcrypt.runtime.moved_names import MOVED
from tests.support.cases import each_case
from tests.support.cli.answers import check_refusal, run_ok
from tests.support.cli.program import KEY, invoke, private, run
from tests.support.iceberg.made_tables import SCHEMA
from tests.support.iceberg.sample_kms import SampleKms
from tests.support.keys import FOOTER_KEY
from tests.support.tables import write_plain

CTR = "AES_GCM_CTR_V1"
KEYS = "file:lake.keyring"
GENERATE = ("keys", "generate", "--kind", "signing")


def call(function: Any, *arguments: Any, **options: Any) -> Any:
    """Call a function with names that type checkers no longer accept."""
    return function(*arguments, **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    private(tmp_path / "footer.key", FOOTER_KEY.hex().encode())
    write_plain(tmp_path / "plain.parquet")
    return tmp_path


ROUND_TRIP: dict[str, Callable[[Path], Any]] = {
    "encrypt": lambda folder: call(
        mc.encrypt_parquet, folder / "plain.parquet", folder / "sealed.parquet",
        properties=mc.FileEncryptionProperties(footer_key=FOOTER_KEY),
    ),
    "decrypt": lambda folder: call(
        mc.decrypt_parquet, folder / "made.parquet", folder / "again.parquet",
        properties=mc.FileDecryptionProperties(footer_key=FOOTER_KEY),
    ),
    "verify": lambda folder: call(
        mc.verify_parquet, folder / "made.parquet",
        properties=mc.FileDecryptionProperties(footer_key=FOOTER_KEY),
    ),
    "verify-dataset": lambda folder: call(mc.verify_dataset, where=folder / "made.parquet"),
    "scan": lambda folder: [*call(mc.jobs.scan_keys, where=folder / "made.parquet")],
    "recipients": lambda folder: [*call(mc.jobs.list_recipients, where=folder / "made.parquet")],
    "table": lambda folder: call(
        create_table, where=folder / "table", schema=SCHEMA, kms=SampleKms(), master_key_id="keyA"
    ),
    "seal": lambda folder: call(
        mc.jobs.seal_dataset, where=folder, key=mc.SigningKey.generate(), threads=1
    ),
    "properties": lambda folder: call(mc.FileDecryptionProperties, algorithms=[CTR]),
    "settings": lambda folder: call(mc.Settings, algorithms=[CTR]),
}  # fmt: skip


@each_case("name", ROUND_TRIP)
def test_former_arguments_work_and_warn(folder: Path, name: str) -> None:
    mc.encrypt_parquet(
        folder / "plain.parquet", folder / "made.parquet",
        mc.FileEncryptionProperties(footer_key=FOOTER_KEY),
    )  # fmt: skip
    with pytest.warns(DeprecationWarning, match=r"is now called \w+; .* until modcrypt 1\.1"):
        ROUND_TRIP[name](folder)


def test_former_attributes_work_and_warn() -> None:
    reading: Any = mc.FileDecryptionProperties(accept_algorithms=[CTR])
    with pytest.warns(DeprecationWarning, match="the attribute algorithms is now called"):
        assert tuple(reading.algorithms) == (CTR,)


def test_former_functions_and_methods_work_and_warn(tmp_path: Path) -> None:
    key, ring = mc.Key.generate(), mc.Keyring.create(tmp_path / "ring", plaintext=True)
    ring.create_key("lake")
    tools: Any = mc.KeyTools(ring)
    with pytest.warns(
        DeprecationWarning, match=r"ags1\.seal is now called modcrypt\.ags1\.encrypt"
    ):
        stream = call(getattr(ags1, "seal"), b"text", key)  # noqa: B009
    with pytest.warns(
        DeprecationWarning, match=r"ags1\.open is now called modcrypt\.ags1\.decrypt"
    ):
        opened = getattr(ags1, "open")  # noqa: B009
    assert opened(stream, key, length=len(stream)) == b"text"
    metadata = mc.ags1.StandardKeyMetadata(key=bytes(16))
    with pytest.warns(DeprecationWarning, match="is now called encrypt_key_metadata"):
        encrypted = tools.seal_key_metadata(metadata, "lake")
    with pytest.warns(DeprecationWarning, match="is now called decrypt_key_metadata"):
        assert tools.open_key_metadata(encrypted) == metadata
    with pytest.raises(AttributeError, match="no attribute 'close'"):
        getattr(ags1, "close")  # noqa: B009


def test_names_that_moved_into_packages_work_and_warn() -> None:
    for name, package in MOVED.items():
        with pytest.warns(
            DeprecationWarning, match=rf"is now called {package}\.{name}; "
        ) as caught:
            value = getattr(mc, name)
        assert caught[0].filename == __file__
        assert value is getattr(import_module(package), name)
        assert name not in dir(mc)
    with pytest.warns(DeprecationWarning, match=r"now called modcrypt\.errors\.LimitError"):
        exec("from modcrypt import LimitError")


def test_frames_of_settings_hold_no_passphrase() -> None:
    secret = "correct horse battery staple"
    with pytest.raises(TypeError) as caught:
        call(mc.Settings, kms="file:ring", passphrase=secret, absent=1)
    trace = caught.value.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals["__name__"].startswith("modcrypt."):
            assert secret not in repr(trace.tb_frame.f_locals)
        trace = trace.tb_next


def test_both_names_are_an_error() -> None:
    @accept_former_names(where="source")
    def name_of(source: str) -> str:
        return source

    with (
        pytest.warns(DeprecationWarning, match="the argument where"),
        pytest.raises(TypeError, match="pass source, not where as well"),
    ):
        call(name_of, source="lake", where="lake")


def test_the_callers_line_is_named() -> None:
    with pytest.warns(DeprecationWarning, match="is now called") as caught:
        call(mc.FileDecryptionProperties, algorithms=[CTR])
    assert caught[0].filename == __file__


REFERENCES: dict[str, tuple[str, ...]] = {
    "--key-file footer.key": ("encrypt", "plain.parquet", "out"),
    "--key-env TEXT_KEY": ("encrypt", "plain.parquet", "out"),
    "--aad-prefix-hex 6162": ("encrypt", *KEY, "plain.parquet", "out"),
    "--aad-prefix-file me.pub": ("encrypt", *KEY, "plain.parquet", "out"),
    "--hash-key-file=hash.key": ("mask", *KEY, "--hash", "name", "sealed.parquet", "out"),
    "--import-file footer.key": ("keys", "create", "--kms", "file:ring", "new"),
    "--passphrase-env TEXT_KEY": ("keys", "create", "--kms", "file:encrypted", "new"),
    "--recipients-file me.pub": ("encrypt", "plain.parquet", "out"),
    "--identity me.key": ("cat", "mine.parquet"),
    "--sign writer.key": ("encrypt", *KEY, "plain.parquet", "out"),
    "--new-key-file footer.key": ("rekey", *KEY, "sealed.parquet", "out"),
    "--new-plaintext-footer --new-key-env=TEXT_KEY": ("rekey", *KEY, "sealed.parquet", "out"),
    "--new-kms file:ring --new-master-key kf": ("rekey", *KEY, "sealed.parquet", "out"),
    "--new-passphrase-env TEXT_KEY --new-policy locked.toml": (
        "share", *KEY, "--column", "id", "sealed.parquet", "out",
    ),
}  # fmt: skip


@each_case("options", REFERENCES)
def test_former_options_of_references_work_and_warn(folder: Path, options: str) -> None:
    run_ok(folder, "encrypt", *KEY, "plain.parquet", "sealed.parquet")
    mc.Keyring.create(folder / "ring", plaintext=True).create_key("kf")
    if "passphrase-env" in options:
        mc.Keyring.create(folder / "encrypted", passphrase=FOOTER_KEY.hex()).create_key("kf")
    (folder / "locked.toml").write_text('kms = "file:encrypted"\nfooter_key = "kf"\n')
    run_ok(folder, *GENERATE, "writer.key")
    run_ok(folder, "keys", "generate", "--kind", "recipient", "--scheme", "x25519", "me.key")
    run_ok(folder, "encrypt", "--to", "me.pub", "plain.parquet", "mine.parquet")
    private(folder / "hash.key", bytes(range(32)))
    command = REFERENCES[options]
    done = run(folder, *command, *options.split(" "), env={"TEXT_KEY": FOOTER_KEY.hex()})
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("modcrypt: warning: ") == done.stderr.count("modcrypt 1.1") == 1


def test_options_of_reading_files_work_again_without_a_warning(folder: Path) -> None:
    run_ok(folder, *GENERATE, "writer.key")
    signed = ("--aad-prefix", "x", "--sign", "file:writer.key", "--no-store-aad-prefix")
    run_ok(folder, "encrypt", *KEY, *signed, "plain.parquet", "signed.parquet")
    reading = ("--aad-prefix", "x", "--signed-by", "writer.pub", "--threads", "1")
    done = run(folder, "mask", *KEY, "--drop", "id", "signed.parquet", "out", *reading)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr


def test_former_options_work_in_a_recorded_command(folder: Path) -> None:
    run_ok(folder, *GENERATE, "writer.key")
    (folder / "lake").mkdir()
    record = ("seals", "record", "--sign", "file:writer.key", "lake", "--")
    encrypt = ("encrypt", "--key-file", "footer.key", "plain.parquet", "lake/a.parquet")
    assert invoke(folder, *record, *encrypt).exit_code == 0
    rekey = ("rekey", *KEY, "--new-key-file", "footer.key", "--in-place", "lake")
    assert invoke(folder, *record, *rekey).exit_code == 0


def test_a_passphrase_was_a_flag(folder: Path) -> None:
    made = invoke(folder, *GENERATE, "--passphrase", "writer.key")
    assert "--passphrase prompt" in made.stderr
    assert "no terminal" in check_refusal_after_warning(made.stderr)
    secret = check_refusal(invoke(folder, *GENERATE, "--passphrase", "hunter2", "x.key"))
    assert "hunter2" not in secret


def test_a_file_that_is_called_like_a_reference_is_not_taken_for_it(folder: Path) -> None:
    run_ok(folder, "keys", "generate", "--kind", "signing", "writer.key")
    private(folder / "file:writer.key", b"{}")
    private(folder / "pass.key", b"correct horse")
    run_ok(folder, "encrypt", *KEY, "--sign", "file:writer.key", "plain.parquet", "out")
    other = ("--kind", "signing", "--passphrase", "file:pass.key", "other.key")
    run_ok(folder, "keys", "generate", *other)


def test_an_identity_of_the_environment_that_is_not_needed_may_be_missing(folder: Path) -> None:
    identity = {"MODCRYPT_IDENTITY": "missing.key"}
    assert run(folder, "encrypt", *KEY, "plain.parquet", "out", env=identity).returncode == 0
    assert run(folder, "cat", *KEY, "out", env=identity).returncode == 0
    assert run(folder, "cat", "out", env=identity).returncode == 3


def check_refusal_after_warning(stderr: str) -> str:
    warning, error = stderr.splitlines()
    assert warning.startswith("modcrypt: warning: ")
    return error


def test_former_and_present_options_contradict_each_other(folder: Path) -> None:
    (folder / "new.toml").write_text('footer_key = "file:footer.key"\n')
    private(folder / "other.key", bytes(16).hex().encode())
    new = ("--new-key-file", "footer.key", "--to", "new.toml")
    for arguments in (
        ("encrypt", *KEY, "--key-file", "other.key", "plain.parquet", "out"),
        ("rekey", *KEY, *new, "plain.parquet", "out"),
    ):
        result = invoke(folder, *arguments)
        assert (result.exit_code, (folder / "out").exists()) == (2, False)


OPTIONS = {
    "--accept=AES_GCM_CTR_V1": ("verify", *KEY, "--json", "sealed.parquet"),
    "--accept AES_GCM_CTR_V1": ("schema", *KEY, "--json", "sealed.parquet"),
    "--verify-key writer.pub": ("seals", "verify", "--json", "lake"),
    "--threads 2": ("seals", "verify", "--json", "--signed-by", "writer.pub", "lake"),
}


@each_case("option", OPTIONS)
def test_former_options_work_and_warn(folder: Path, option: str) -> None:
    encrypt = ("encrypt", *KEY, "--algorithm", CTR, "plain.parquet", "sealed.parquet")
    assert invoke(folder, *encrypt).exit_code == 0
    (folder / "lake").mkdir()
    (folder / "sealed.parquet").rename(folder / "lake" / "sealed.parquet")
    (folder / "sealed.parquet").hardlink_to(folder / "lake" / "sealed.parquet")
    assert invoke(folder, *GENERATE, "writer.key").exit_code == 0
    assert invoke(folder, "seals", "create", "--sign", "writer.key", "lake").exit_code == 0
    *command, place = OPTIONS[option]
    done = invoke(folder, *command, *option.split(" "), place)
    assert done.exit_code == 0, done.stderr
    former = re.split("[ =]", option)[0]
    assert f"warning: {former} is now called --" in done.stderr
    assert json.loads(done.stdout.splitlines()[-1])


def test_options_that_keep_their_meaning_are_not_renamed(folder: Path) -> None:
    for arguments in (
        ("encrypt", *KEY, "--threads", "1", "plain.parquet", "one.parquet"),
        ("encrypt", *KEY, "--", "plain.parquet", "two.parquet"),
    ):
        assert "is now called" not in invoke(folder, *arguments).stderr
    refused = invoke(folder, "encrypt", *KEY, "--verify-key", "x", "plain.parquet", "three.parquet")
    assert "--verify-key" in check_refusal(refused)


COMMANDS = {
    "seals generate": ("keys generate --kind signing", ("new.key",)),
    "recipients generate": ("keys generate --kind recipient", ("--kind", "x25519", "new.key")),
    "iceberg policy": ("iceberg admin policy", ("table",)),
    "iceberg prune": ("iceberg admin prune", ("--kms", KEYS, "--dry-run", "table")),
    "iceberg repair": ("iceberg admin repair", ("--kms", KEYS, "--dry-run", "table")),
    "iceberg remove-orphans": (
        "iceberg admin remove-orphans", ("--kms", KEYS, "--dry-run", "table"),
    ),
}  # fmt: skip


@each_case("former", COMMANDS)
def test_former_commands_work_and_warn(folder: Path, former: str) -> None:
    present, arguments = COMMANDS[former]
    ring = mc.Keyring.create(folder / "lake.keyring", plaintext=True)
    ring.create_key("lake")
    create_table(folder / "table", SCHEMA, ring, master_key_id="lake")
    done = invoke(folder, *former.split(), *arguments)
    assert done.exit_code == 0, done.stderr
    assert f"modcrypt {former} is now called modcrypt {present}; the former" in done.stderr
    assert invoke(folder, *former.split(), "--help").stdout == (
        invoke(folder, *present.split(), "--help").stdout
    )
    if "x25519" in arguments:
        assert mc.Recipient.load(folder / "new.pub").kind == "x25519"


def test_former_commands_are_found_in_a_recorded_command(folder: Path) -> None:
    (folder / "lake").mkdir()
    assert invoke(folder, *GENERATE, "writer.key").exit_code == 0
    record = ("seals", "record", "--sign", "file:writer.key", "lake", "--")
    done = invoke(folder, *record, "seals", "generate", "b.key")
    assert "modcrypt seals generate is now called" in done.stderr
    assert (folder / "b.pub").exists()

"""The watch over the suite finds keys in each of its channels, and fails the test at fault."""

from __future__ import annotations

import base64
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import modcrypt
from modcrypt.kms.services import environment
from tests.support.cases import each_case
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.paths import ROOT
from tests.support.secret_watch import (
    ALLOWED,
    DELIBERATE,
    KEYS,
    MAX_FILE,
    PIECE,
    WATCH,
    Finding,
    Watch,
    search_leftovers,
)
from tests.support.tables import write_plain

SPELT: dict[str, Callable[[bytes], str | bytes]] = {
    "bytes": bytes,
    "hex": bytes.hex,
    "upper hex": lambda key: key.hex().upper(),
    "spaced hex": lambda key: key.hex(" "),
    "base64": base64.b64encode,
    "urlsafe": base64.urlsafe_b64encode,
    "unpadded": lambda key: base64.b64encode(key).rstrip(b"="),
    "base64 after a byte": lambda key: base64.b64encode(b"\xfb" + key + b"\xfb"),
    "base64 after two": lambda key: base64.urlsafe_b64encode(b"\xfb\xfc" + key + b"\xfb\xfc\xfd"),
    "repr": repr,
    "repr of a dict": lambda key: repr({"key": bytearray(key)}),
    "escapes": lambda key: "".join(f"\\x{byte:02x}" for byte in key),
    "numbers": lambda key: repr(list(key)),
}


@each_case("spelt", SPELT)
@each_case("name", KEYS)
def test_a_key_is_found_however_it_is_spelt(name: str, spelt: str) -> None:
    watch, shown = Watch(), SPELT[spelt](KEYS[name])
    for before in range(8):  # wherever it begins among words of eight bytes
        watch.search("log", "here", shown.rjust(len(shown) + before))
        assert Finding("log", name, "here") in watch.take()


def test_what_is_no_key_is_not_found() -> None:
    watch = Watch()
    for text in ("", "nothing of the kind", b"012345678901234", FOOTER_KEY[::-1], os.urandom(4096)):
        watch.search("log", "here", text)
    for key in KEYS.values():
        watch.search("log", "here", key[:-1])
        watch.search("log", "here", key[1:].hex())
    assert watch.take() == []
    assert watch.searched["log"] == 5 + 2 * len(KEYS)


# --- each channel of the watch that is on --------------------------------------------------------


def log_key(_: Path) -> None:
    logging.getLogger("modcrypt.audit").debug("the key is %s", FOOTER_KEY.hex())


def logged_error(_: Path) -> None:
    try:
        raise RuntimeError(FOOTER_KEY)
    except RuntimeError:
        logging.getLogger("somebody").exception("it failed")


def made_error(_: Path) -> None:
    modcrypt.errors.KeyNotFoundError(f"no key {FOOTER_KEY!r}")


def chained_error(_: Path) -> None:
    def fail() -> None:
        try:
            raise KeyError(FOOTER_KEY)
        except KeyError:
            raise ValueError("it went wrong") from None

    with pytest.raises(ValueError, match="wrong"):
        fail()


def changed_error(_: Path) -> None:
    error = modcrypt.errors.KeyNotFoundError("no key")
    error.args = (base64.b64encode(FOOTER_KEY),)
    with pytest.raises(modcrypt.errors.KeyNotFoundError):
        raise error


def noted_error(_: Path) -> None:
    error = TypeError("wrong")
    error.add_note(FOOTER_KEY.decode())
    with pytest.raises(TypeError):
        raise error


def shown_object(_: Path) -> None:
    key = modcrypt.Key(FOOTER_KEY)
    repr(environment.EnvironmentKms(FOOTER_KEY.hex(), key))


def shown_policy(_: Path) -> None:
    str(modcrypt.Policy(footer_key=FOOTER_KEY.decode()))


def print_from_program(_: Path) -> None:
    code = "import sys; sys.stderr.write(sys.stdin.read())"
    subprocess.run([sys.executable, "-c", code], input=FOOTER_KEY, capture_output=True, check=True)


def print_from_command(_: Path) -> None:
    @click.command()
    def command() -> None:
        click.echo(FOOTER_KEY.hex())

    CliRunner().invoke(command)


def temporary(folder: Path) -> Path:
    path = folder / ".modcrypt-0123456789abcdef.tmp"
    path.write_bytes(bytes(1000) + FOOTER_KEY)
    return path


def publish_by_rename(folder: Path) -> None:
    os.replace(temporary(folder), folder / "a")


def publish_by_link(folder: Path) -> None:
    os.link(path := temporary(folder), folder / "a")
    path.unlink()


def remove_temporary(folder: Path) -> None:
    temporary(folder).unlink()


def remove_with_folder(folder: Path) -> None:
    (folder / "below").mkdir()
    temporary(folder / "below")
    shutil.rmtree(folder / "below")


def an_argument(_: Path) -> None:
    subprocess.run(["true", f"--key={FOOTER_KEY.hex()}"], check=True)


def an_argument_of_python(_: Path) -> None:
    subprocess.run([sys.executable, "-c", "pass", base64.b64encode(FOOTER_KEY)], check=True)


def a_command_line(_: Path) -> None:
    os.system(f"true {FOOTER_KEY.decode()}")


LEAKS: dict[str, list[Callable[[Path], object]]] = {
    "log": [log_key],
    "exception": [logged_error, made_error, chained_error, changed_error, noted_error],
    "repr": [shown_object, shown_policy],
    "output": [print_from_program, print_from_command],
    "temporary": [
        publish_by_rename,
        publish_by_link,
        remove_temporary,
        remove_with_folder,
    ],
    "argument": [an_argument, an_argument_of_python, a_command_line],
}


@each_case(
    ("channel", "leak"), [(channel, leak) for channel, leaks in LEAKS.items() for leak in leaks]
)
def test_a_leak_is_found_in_each_channel(
    channel: str, leak: Callable[[Path], object], tmp_path: Path
) -> None:
    with WATCH.expecting() as found:
        leak(tmp_path)
    assert {(finding.channel, finding.key) for finding in found} == {(channel, "FOOTER_KEY")}


def test_what_a_test_has_printed_is_searched(capfd: pytest.CaptureFixture[str]) -> None:
    with WATCH.expecting() as found:
        print(FOOTER_KEY)
        os.write(2, COLUMN_KEY)
        capfd.readouterr()
    assert [(finding.channel, finding.key) for finding in found] == [
        ("output", "FOOTER_KEY"),
        ("output", "COLUMN_KEY"),
    ]


def test_what_killed_processes_left_is_searched(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    left = temporary(tmp_path / "a" / "b")
    (tmp_path / "a" / "key").write_bytes(OTHER_KEY)  # a caller's own file
    watch = Watch()
    search_leftovers(watch, tmp_path)
    assert watch.take() == [Finding("temporary", "FOOTER_KEY", os.fspath(left))]
    with WATCH.expecting():  # it goes when the session ends, or now
        left.unlink()


def test_only_the_head_of_a_large_temporary_file_is_searched(tmp_path: Path) -> None:
    path = tmp_path / ".modcrypt-0123456789abcdef.tmp"
    for at, expected in ((PIECE - 7, 1), (2 * PIECE - 20, 1), (MAX_FILE - 16, 1), (MAX_FILE, 0)):
        path.write_bytes(bytes(at) + FOOTER_KEY + bytes(9))
        with WATCH.expecting() as found:
            path.unlink()
        assert len(set(found)) == expected


# --- what it passes over -------------------------------------------------------------------------


def test_a_keyring_is_only_let_pass_in_the_clear(tmp_path: Path) -> None:
    with WATCH.expecting() as found:
        modcrypt.Keyring.create(tmp_path / "k", plaintext=True).create_key("kf", value=FOOTER_KEY)
    assert found == []
    watch, clear = Watch(), (tmp_path / "k").read_bytes()
    watch.search("temporary", "here", clear)
    assert watch.take() == []
    for data in (
        json.dumps({**json.loads(clear), "protection": "scrypt"}).encode(),
        clear[:-2],
        clear + clear,
    ):
        watch.search("temporary", "here", data)
        assert [finding.key for finding in watch.take()] == ["FOOTER_KEY"]
    watch.search("output", "here", clear)
    assert [finding.channel for finding in watch.take()] == ["output"]


def test_allowances_say_why_and_are_of_tests_that_are_there() -> None:
    reasons = [allowed.reason for allowed in ALLOWED] + [
        reason for _, reason in DELIBERATE.values()
    ]
    assert all(len(reason) > 20 for reason in reasons)
    text = "".join(path.read_text() for path in ROOT.glob("tests/**/test_*.py"))
    assert [name for name in DELIBERATE if f"def {name}(" not in text] == []


def test_a_test_s_own_program_and_environment_are_not_searched() -> None:
    with WATCH.expecting() as found:
        code = f"key = {FOOTER_KEY!r}"
        environ = {**os.environ, "KEY": FOOTER_KEY.hex()}
        subprocess.run([sys.executable, "-W", "error", "-c", code], env=environ, check=True)
    assert found == []


def test_the_watch_sees_what_modcrypt_does(tmp_path: Path) -> None:
    """Or else it would be quiet for having nothing to look at."""
    before = dict(WATCH.searched)
    write_plain(tmp_path / "plain")
    how = modcrypt.FileEncryptionProperties(footer_key=FOOTER_KEY)
    modcrypt.encrypt_parquet(tmp_path / "plain", tmp_path / "sealed", how)
    assert "REDACTED" in repr(how)
    with pytest.raises(modcrypt.errors.KeyNotFoundError):
        modcrypt.decrypt_parquet(
            tmp_path / "sealed", tmp_path / "back", modcrypt.FileDecryptionProperties()
        )
    ring = modcrypt.Keyring.create(tmp_path / "ring", plaintext=True)
    ring.create_key("kf")
    tools = modcrypt.KeyTools(ring, audit=modcrypt.kms.audit_to_logging())
    tools.encryption(modcrypt.Policy(footer_key="kf")).for_file(None)
    seen = {name: count - before.get(name, 0) for name, count in WATCH.searched.items()}
    assert seen["temporary"] >= 4
    assert seen["exception"] >= 2
    assert seen["repr"] >= 1
    assert seen["log"] >= 1


# --- a session of tests --------------------------------------------------------------------------

CONFTEST = "from tests.support.secret_watch import leftovers, pytest_configure\n"

SESSION = """
import logging, os, pathlib, sys
import pytest
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY

def test_prints():
    print("a", FOOTER_KEY.hex())

def test_logs():
    logging.getLogger("modcrypt.x").debug("%s", COLUMN_KEY)

@pytest.fixture
def loud():
    yield
    sys.stderr.write(OTHER_KEY.decode())

def test_prints_when_it_is_over(loud):
    pass

def test_fails():
    error = RuntimeError(COLUMN_KEY.hex())
    raise error

@pytest.mark.xfail(raises=RuntimeError)
def test_fails_as_it_should():
    raise RuntimeError(COLUMN_KEY.hex())

@pytest.mark.parametrize("key", [FOOTER_KEY])
def test_is_quiet(tmp_path, key):
    (tmp_path / "key").write_bytes(key)

def test_leaves_a_file(tmp_path):
    (tmp_path / ".modcrypt-0123456789abcdef.tmp").write_bytes(FOOTER_KEY)

def test_leaves_another(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    (folder / ".modcrypt-0123456789abcdef.tmp").write_bytes(FOOTER_KEY)
"""


def test_the_test_that_shows_a_key_fails(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(SESSION)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntmp_path_retention_policy = failed\n")
    options = ("-q", "-n", "0", "-rA", "-p", "no:cacheprovider", "--basetemp", tmp_path / "base")
    with WATCH.expecting():  # it repeats what its tests have printed
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, tmp_path],
            env={**os.environ, "PYTHONPATH": os.fspath(ROOT)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        shutil.rmtree(tmp_path / "base")  # before the session that is going on finds it
    assert done.returncode == 1, done.stdout + done.stderr
    for line in (
        "FAILED test_it.py::test_prints - a key is where none should be:",
        "output: FOOTER_KEY in Captured stdout call",
        "FAILED test_it.py::test_logs - a key is where none should be:",
        "log: COLUMN_KEY in a record of the logger modcrypt.x",
        "ERROR test_it.py::test_prints_when_it_is_over - a key is where none should be:",
        "output: OTHER_KEY in Captured stderr teardown",
        "FAILED test_it.py::test_fails - RuntimeError",
        "FAILED test_it.py::test_fails_as_it_should - a key is where none should be:",
        "exception: COLUMN_KEY in what ended call",
        "PASSED test_it.py::test_is_quiet[key]",
        "ERROR test_it.py::test_leaves_a_file - a key is where none should be:",
        "ERROR test_it.py::test_leaves_another - a key is where none should be:",
        "temporary: FOOTER_KEY in ",
    ):
        assert line in done.stdout
    assert "4 failed, 4 passed, 3 errors" in done.stdout

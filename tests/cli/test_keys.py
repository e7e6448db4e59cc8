"""`modcrypt keys`, `--kms` and `--policy` as users meet them: the program, and keyrings."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pty
import shutil
import stat
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

import modcrypt
from tests.support.ags1.standard_streams import decrypt_standard_stream, split_key_metadata
from tests.support.cases import each_case
from tests.support.cli import program
from tests.support.cli.answers import check_refusal, run_ok
from tests.support.cli.forked import as_process
from tests.support.cli.program import (
    SHOW_PROGRESS,
    Answer,
    check_failure,
    environment,
    examples_of,
    invoke,
    private,
    run_on_terminal,
)
from tests.support.folder_contents import names
from tests.support.interrupts import interrupt
from tests.support.keys import COLUMN_KEY, FOOTER_KEY
from tests.support.kms.pyarrow_keyring import ARROW_KMS, FACTORY, LOCAL
from tests.support.pkmt1 import open_base64
from tests.support.sleeps import note_sleeps
from tests.support.tables import small_table, write_plain

PASSPHRASE = "correct horse battery stäple"
RING = ("--kms", "file:lake.keyring")
FOOTER = ("--kms", "file:lake.keyring#footer")
POLICY = """\
kms = "file:lake.keyring"
footer_key = "footer"
plaintext_columns = ["flag"]
aad_prefix = "lake/{name}"
store_aad_prefix = false
internal_key_material = INTERNAL

[column_keys]
pii = ["name", "address"]
"""
DECRYPT = ("decrypt", *RING)


def run(folder: Path, *arguments: str, passphrase: str | None = PASSPHRASE, **more: Any) -> Answer:
    """Run the program without a terminal."""
    given = {} if passphrase is None else {"MODCRYPT_PASSPHRASE": passphrase}
    if "input" not in more:
        more["stdin"] = subprocess.DEVNULL
    env = given | more.pop("env", {})
    # In a session where there is no /dev/tty either.
    return program.run_program(folder, *arguments, env=env, start_new_session=True, **more)


def run_here(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> Answer:
    """Run the command line in this process."""
    return program.run(folder, *arguments, env={"MODCRYPT_PASSPHRASE": PASSPHRASE, **(env or {})})


def check_ok(answer: Answer) -> str:
    """Check that the command succeeded without stderr; return stdout."""
    assert (answer.returncode, answer.stderr) == (0, "")
    return answer.stdout


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A keyring of footer (imported) and pii, made by the program."""
    folder = tmp_path_factory.mktemp("once")
    private(folder / "footer.key", FOOTER_KEY.hex().encode())
    made = check_ok(
        run_here(folder, "keys", "create", *RING, "footer", "--import", "file:footer.key")
    )
    assert made == "created footer, version 1\n"
    value = {"PII_KEY": base64.b64encode(COLUMN_KEY).decode()}
    check_ok(run_here(folder, "keys", "create", *RING, "pii", "--import", "env:PII_KEY", env=value))
    return folder


@pytest.fixture
def folder(tmp_path: Path, once: Path) -> Path:
    """A folder with lake.keyring and plain.parquet."""
    shutil.copy(once / "lake.keyring", tmp_path)
    write_plain(tmp_path / "plain.parquet")
    return tmp_path


@pytest.fixture
def clear(tmp_path: Path) -> Path:
    """The same with a keyring in the clear, for what has nothing to do with passphrases."""
    ring = modcrypt.Keyring.create(tmp_path / "lake.keyring", plaintext=True)
    ring.create_key("footer", value=FOOTER_KEY)
    ring.create_key("pii", value=COLUMN_KEY)
    write_plain(tmp_path / "plain.parquet")
    return tmp_path


def encrypt_file(folder: Path, name: str = "sealed.parquet", *options: str) -> Path:
    options = (*options, "--column-master-key", "name=pii", "plain.parquet", name)
    run_ok(folder, "encrypt", *FOOTER, *options)
    return folder / name


# --- a whole journey -----------------------------------------------------------------------------


@pytest.mark.parametrize("internal", [True, False], ids=["internal", "external"])
def test_files_by_a_policy_from_the_keyring_to_the_end_of_a_key(
    folder: Path, internal: bool
) -> None:
    (folder / "lake.toml").write_text(POLICY.replace("INTERNAL", str(internal).lower()))
    policy, lake = ("--policy", "lake.toml"), folder / "lake"
    lake.mkdir()
    check_ok(run_here(folder, "encrypt", *policy, "plain.parquet", "lake/part-00.parquet"))
    ring = modcrypt.Keyring(folder / "lake.keyring", passphrase=PASSPHRASE)
    tools, how = modcrypt.KeyTools(ring), modcrypt.Policy.load(folder / "lake.toml")
    for number in range(1, 20):
        path = lake / f"part-{number:02}.parquet"
        modcrypt.encrypt_parquet(folder / "plain.parquet", path, tools.encryption(how))

    # Without keys: which master key opens what.
    scanned = check_ok(run(folder, "keys", "scan", "lake/part-00.parquet", passphrase=None))
    storage = "internal" if internal else "external"
    rows = [line.split() for line in scanned.splitlines()[1:]]
    kek = rows[0][4]
    assert len(bytes.fromhex(kek)) == 4
    assert rows[0] == ["lake/part-00.parquet", "(footer)", "footer", "1", kek, storage]
    everything = check_ok(run_here(folder, "keys", "scan", *policy, "lake", "--json"))
    keys = [json.loads(line) for line in everything.splitlines()]
    assert len(keys) == 20 * 4
    assert {(key["column"], key["master_key_id"], key["version"]) for key in keys} == {
        (None, "footer", "1"),
        ("name", "pii", "1"),
        ("address.zip", "pii", "1"),
        ("address.city", "pii", "1"),
    }
    assert {key["storage"] for key in keys} == {storage}

    # There and back; the prefix binds the file to its name.
    check_ok(run_here(folder, "decrypt", *policy, "lake/part-00.parquet", "out.parquet"))
    assert pq.read_table(folder / "out.parquet").equals(small_table())
    shutil.copytree(lake, folder / "old")

    # A second version of the key, and all files under it but a corrupt one.
    data = (lake / "part-07.parquet").read_bytes()
    (lake / "part-07.parquet").write_bytes(data[:-9])
    answer = run_here(folder, "keys", "rotate", *policy, "--key", "footer", "lake")
    assert (answer.returncode, answer.stderr) == (1, "")
    first, titles, failure, summary = answer.stdout.splitlines()
    assert first == "rotated footer, version 2"
    assert titles.split() == ["file", "error", "message"]
    assert failure.split()[:2] == ["lake/part-07.parquet", "format"]
    assert summary == "20 files: 19 rotated, 1 failed; 19 keys"  # pii's are current already
    answer = run_here(folder, "keys", "rotate", *policy, "--what", "kek", "--json", "lake")
    *files, totals = map(json.loads, answer.stdout.splitlines())
    assert answer.returncode == 1
    assert [file["result"] for file in files] == ["rotated"] * 7 + ["format"] + ["rotated"] * 12
    assert (totals["files"], totals["rotated"], totals["failed"]) == (20, 19, 1)
    assert totals["keys"] == 19 * 3
    (lake / "part-07.parquet").write_bytes(data)
    repaired = ("keys", "rotate", *policy, "lake/part-07.parquet")
    assert check_ok(run_here(folder, *repaired)) == "1 file: 1 rotated; 1 key\n"

    # What was wrapped under version 1 opens no more; what was rotated does.
    disable = ("keys", "disable", *policy, "footer", "--version", "1")
    assert check_ok(run_here(folder, *disable)) == "disabled footer, versions up to 1\n"
    old = run_here(folder, "decrypt", *policy, "old/part-00.parquet", "old.parquet")
    assert "version 1 of master key footer is disabled" in check_failure(old, 3, "disabled")
    for name in ("part-00.parquet", "part-07.parquet", "part-19.parquet"):
        out = ("--force", f"lake/{name}", "out.parquet")
        check_ok(run_here(folder, "decrypt", *policy, *out))
        assert pq.read_table(folder / "out.parquet").equals(small_table())
    assert "old.parquet" not in names(folder)


# --- other implementations -----------------------------------------------------------------------


@pytest.mark.parametrize("external", [False, True], ids=["internal", "external"])
@pytest.mark.parametrize("single", [False, True], ids=["double", "single"])
def test_pyarrow_reads_what_the_program_encrypts(clear: Path, external: bool, single: bool) -> None:
    options = ["--external-key-material"] * external + ["--single-wrapping"] * single
    path = encrypt_file(clear, "sealed.parquet", "--plaintext-column", "flag", *options)
    assert (clear / "_KEY_MATERIAL_FOR_sealed.parquet.json").exists() == external
    properties = FACTORY.file_decryption_properties(
        pe.KmsConnectionConfig(), pe.DecryptionConfiguration(), path, LOCAL
    )
    with pq.ParquetFile(path, decryption_properties=properties) as file:
        assert file.read().equals(small_table())


@pytest.mark.parametrize("size", ["16", "32"])
def test_encrypted_key_metadata_opens_after_its_description(clear: Path, size: str) -> None:
    notes = b"first\nsecond\n"
    (clear / "notes.txt").write_bytes(notes)
    new = ("--new-key-metadata", "notes.key", "--key-length", size)
    length = run_ok(clear, "ags1", "encrypt", *new, *FOOTER, "notes.txt", "notes.ags1")
    sealed = (clear / "notes.key").read_bytes()
    assert (sealed.count(b"\n"), sealed[-1:]) == (1, b"\n")
    members = json.loads(sealed)
    assert members.pop("modcryptKeyMetadata") == 1
    assert members.pop("masterKeyID") == "footer"
    kek = ARROW_KMS.unwrap_key(members.pop("wrappedKEK"), "footer")
    assert len(kek) == int(size)  # no weaker than what it wraps
    kek_id = base64.b64decode(members.pop("keyEncryptionKeyID"), validate=True)
    metadata = open_base64(kek, members.pop("wrappedKeyMetadata"), kek_id)
    assert not members
    key, prefix, reported = split_key_metadata(metadata)
    assert (len(key), f"{reported}\n") == (int(size), length)
    assert decrypt_standard_stream((clear / "notes.ags1").read_bytes(), key, prefix) == notes


def test_a_stream_under_encrypted_key_metadata_comes_back(folder: Path) -> None:
    (folder / "notes.txt").write_bytes(b"first\nsecond\n")
    new = ("--new-key-metadata", "notes.key", *RING, "--master-key", "pii", "--json")
    check_ok(run_here(folder, "ags1", "encrypt", *new, "notes.txt", "notes.ags1"))
    assert stat.S_IMODE((folder / "notes.key").stat().st_mode) == 0o600
    (folder / "notes.key").chmod(0o644)  # of what is encrypted nobody is warned
    key = ("--key-metadata-file", "notes.key")
    assert check_ok(run_here(folder, "ags1", "cat", *key, *RING, "notes.ags1")) == "first\nsecond\n"
    check_ok(run_here(folder, "ags1", "decrypt", *key, *RING, "notes.ags1", "again.txt"))
    assert (folder / "again.txt").read_bytes() == b"first\nsecond\n"
    assert "encrypted length" in check_ok(run_here(folder, "ags1", "inspect", "notes.ags1"))
    without = run_here(folder, "ags1", "cat", *key, "notes.ags1")
    assert "--kms" in check_failure(without, 2, "usage")
    check_ok(run_here(folder, "keys", "disable", *RING, "pii"))
    check_failure(run_here(folder, "ags1", "cat", *key, *RING, "notes.ags1"), 3, "disabled")


def test_key_metadata_in_the_clear_does_not_pass_for_encrypted(clear: Path) -> None:
    run_ok(clear, "ags1", "encrypt", "--new-key-metadata", "k", "plain.parquet", "plain.ags1")
    result = invoke(clear, "ags1", "cat", "--key-metadata-file", "k", *RING, "plain.ags1")
    assert "is not encrypted" in check_refusal(result, "key-material", 3)


def test_a_stream_gets_no_file_if_the_key_service_refuses(clear: Path) -> None:
    before = names(clear)
    new = ("--new-key-metadata", "k", *RING, "--master-key", "absent")
    check_refusal(invoke(clear, "ags1", "encrypt", *new, "plain.parquet", "out"), "no-key", 3)
    check_refusal(invoke(clear, "ags1", "encrypt", "--new-key-metadata", "k", *RING, "x", "out"))
    assert names(clear) == before


# --- passphrases ---------------------------------------------------------------------------------


def test_a_passphrase_comes_from_file_variable_and_descriptor(folder: Path) -> None:
    private(folder / "phrase", f"{PASSPHRASE}\r\nsecond line\n".encode())
    listed = ("keys", "list", *RING)
    expected = check_ok(run(folder, *listed, fork=False))
    ways: list[tuple[str, ...]] = [
        ("--passphrase", "file:phrase"),
        ("--passphrase", "env:PHRASE"),
        ("--passphrase", "fd:0"),
    ]
    given: dict[str, Any] = {"passphrase": None, "env": {"PHRASE": PASSPHRASE}}
    for way in ways:
        reported = f"{PASSPHRASE}\n" if way[1] == "fd:0" else ""
        assert check_ok(run(folder, *listed, *way, input=reported, **given)) == expected
    for where in ("env:PHRASE", "file:phrase"):
        uri = f"file:lake.keyring?passphrase={where}#footer"
        assert check_ok(run(folder, "keys", "list", "--kms", uri, **given)) == expected
    # What is given goes before the default.
    check_ok(run(folder, *listed, *ways[1], passphrase="wrong", env={"PHRASE": PASSPHRASE}))


def test_a_new_keyring_takes_its_passphrase_in_the_same_ways(tmp_path: Path) -> None:
    private(tmp_path / "phrase", PASSPHRASE.encode())
    ways: list[tuple[str, tuple[str, ...]]] = [
        ("file:a", ("--passphrase", "file:phrase")),
        ("file:b", ("--passphrase", "fd:0")),
        ("file:c?passphrase=file:phrase", ()),
    ]
    for uri, way in ways:
        create = ("keys", "create", "--kms", uri, *way, "kf")
        check_ok(run(tmp_path, *create, input=PASSPHRASE, passphrase=None))
        path = tmp_path / uri[5]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        (master,) = modcrypt.Keyring(path, passphrase=PASSPHRASE).list_keys()
        assert master.id == "kf"


@pytest.mark.parametrize("key_id", ["", "a\nb", "k" * 1025], ids=["empty", "line", "long"])
def test_an_id_that_no_key_can_have_leaves_no_keyring_behind(tmp_path: Path, key_id: str) -> None:
    create = ("keys", "create", *RING, key_id)
    assert "1 to 1024 printable" in check_refusal(invoke(tmp_path, *create, "--plaintext"))
    # Before anyone is asked for a passphrase.
    assert "printable" in check_failure(run(tmp_path, *create, passphrase=None), 2, "usage")
    assert names(tmp_path) == set()


def test_a_wrong_passphrase_is_3(folder: Path) -> None:
    message = check_failure(
        run(folder, "keys", "list", *RING, passphrase="wrong horse"), 3, "denied"
    )
    assert "passphrase is wrong" in message
    assert "wrong horse" not in message
    unset = ("--kms", "file:lake.keyring?passphrase=env:UNSET")
    assert "UNSET" in check_failure(
        run(folder, "keys", "list", *unset, passphrase=None), 3, "denied"
    )


def test_without_a_passphrase_or_a_terminal_it_says_how_to_give_one(folder: Path) -> None:
    for arguments in (
        ("keys", "list", *RING),
        ("keys", "create", "--kms", "file:new.keyring", "kf"),
        ("encrypt", *FOOTER, "plain.parquet", "out"),
    ):
        message = check_failure(run(folder, *arguments, passphrase=None), 2, "usage")
        for way in ("--passphrase", "terminal", "MODCRYPT_PASSPHRASE"):
            assert way in message
    assert names(folder) == {"lake.keyring", "plain.parquet"}


def test_what_stands_for_a_reference_is_not_repeated(folder: Path) -> None:
    secret = "tr0ub4dor"
    for kind in ("file", "env"):
        for text in (secret, secret * 40):
            answer = run(folder, "keys", "list", *RING, "--passphrase", f"{kind}:{text}")
            assert (answer.returncode, secret in answer.stderr) == (3, False)
    for wrong in (secret, f"fd:{secret}-", f"fiel:{secret}"):
        answer = run(folder, "keys", "list", *RING, f"--passphrase={wrong}")
        assert (answer.returncode, secret in answer.stderr) == (2, False)
    uri = f"file:lake.keyring?passphrase={secret}"
    assert secret not in check_failure(run(folder, "keys", "list", "--kms", uri), 2, "usage")


def test_a_keyring_in_the_clear_is_made_by_choice_alone(tmp_path: Path) -> None:
    create = ("keys", "create", *RING)
    assert run_ok(tmp_path, *create, "--plaintext", "kf") == "created kf, version 1\n"
    assert json.loads((tmp_path / "lake.keyring").read_text())["protection"] == "none"
    run_ok(tmp_path, *create, "--plaintext", "kc")
    assert len(modcrypt.Keyring(tmp_path / "lake.keyring").list_keys()) == 2
    # A passphrase that is given is one that is meant.
    message = check_failure(run(tmp_path, "keys", "list", *RING), 3, "key")
    assert "in plaintext" in message
    assert "MODCRYPT_PASSPHRASE" in message


def test_plaintext_does_not_go_with_an_encrypted_keyring_or_a_passphrase(folder: Path) -> None:
    create = ("keys", "create", *RING, "--plaintext", "kf")
    assert "is encrypted" in check_refusal(invoke(folder, *create))
    assert "--passphrase:" in check_refusal(invoke(folder, *create, "--passphrase", "env:X"))


# --- on a terminal -------------------------------------------------------------------------------

# A terminal of its own, as a login has one.
ON_TERMINAL = "import fcntl, termios; fcntl.ioctl(2, termios.TIOCSCTTY, 0); " + (
    "from modcrypt.cli import run; run()"
)


class Terminal:
    """The program on a terminal, and what is shown there."""

    def __init__(self, folder: Path, *arguments: str, stdin: int | None = None) -> None:
        self.controller, terminal = pty.openpty()
        self.shown = b""
        command = [sys.executable, "-c", ON_TERMINAL, *arguments]
        self.process = subprocess.Popen(
            **as_process(command, environment()), cwd=folder, start_new_session=True,
            stdin=terminal if stdin is None else stdin, stdout=subprocess.PIPE, stderr=terminal,
        )  # fmt: skip
        os.close(terminal)

    def answer(self, prompt: str, text: str, end: str = "\n") -> None:
        """Wait for a prompt, and answer it."""
        while prompt.encode() not in self.shown:
            self.shown += os.read(self.controller, 4096)
        assert not self.echoes()
        assert PASSPHRASE not in Path(f"/proc/{self.process.pid}/cmdline").read_text()
        self.shown = self.shown.partition(prompt.encode())[2]
        os.write(self.controller, f"{text}{end}".encode())

    def echoes(self) -> bool:
        return bool(termios.tcgetattr(self.controller)[3] & termios.ECHO)

    def end(self) -> tuple[int, str, str]:
        """Return exit code, stdout, and what was shown since the last answer."""
        with contextlib.suppress(OSError):  # how Linux says that the other side is closed
            while data := os.read(self.controller, 4096):
                self.shown += data
        os.close(self.controller)
        out, _ = self.process.communicate()
        return self.process.returncode, out.decode(), self.shown.decode()


def test_on_a_terminal_the_passphrase_is_asked_for_without_echo(folder: Path) -> None:
    terminal = Terminal(folder, "keys", "list", *RING, "--json")
    terminal.answer("Passphrase of file:lake.keyring: ", PASSPHRASE)
    code, out, shown = terminal.end()
    assert (code, shown.strip()) == (0, "")
    assert [key["id"] for key in json.loads(out)["keys"]] == ["footer", "pii"]
    terminal = Terminal(folder, "keys", "list", *FOOTER)
    terminal.answer("Passphrase of file:lake.keyring: ", "wrong")
    code, out, shown = terminal.end()
    assert (code, out) == (3, "")
    assert "passphrase is wrong" in shown


def test_a_new_passphrase_is_asked_for_twice(tmp_path: Path) -> None:
    for second, code in (("other", 2), (PASSPHRASE, 0)):
        terminal = Terminal(tmp_path, "keys", "create", *RING, "kf")
        terminal.answer("Passphrase of the new file:lake.keyring: ", PASSPHRASE)
        terminal.answer("Repeat the passphrase: ", second)
        assert terminal.end()[0] == code
        assert (names(tmp_path) == {"lake.keyring"}) == (code == 0)
    assert modcrypt.Keyring(tmp_path / "lake.keyring", passphrase=PASSPHRASE).list_keys()


def test_an_empty_answer_is_2(folder: Path) -> None:
    for text in ("", "\x04"):  # the end of the input
        terminal = Terminal(folder, "keys", "list", *RING)
        terminal.answer("Passphrase of file:lake.keyring: ", text)
        code, _, shown = terminal.end()
        assert (code, "no passphrase" in shown) == (2, True)


def test_ctrl_c_in_place_of_an_answer_gives_the_echo_back(folder: Path) -> None:
    terminal = Terminal(folder, "keys", "list", *RING)
    terminal.answer("Passphrase of file:lake.keyring: ", "half a pass", end="")
    interrupt(terminal.process, lambda: os.write(terminal.controller, b"\x03"))
    assert terminal.echoes()
    code, _, shown = terminal.end()
    assert (code, "half" in shown) == (130, False)


def test_it_is_asked_for_where_standard_input_is_a_pipe(folder: Path) -> None:
    read, write = os.pipe()
    new = ("ags1", "encrypt", "--new-key-metadata", "k", *FOOTER, "-", "notes.ags1")
    terminal = Terminal(folder, *new, stdin=read)
    os.close(read)
    terminal.answer("Passphrase of file:lake.keyring: ", PASSPHRASE)
    os.write(write, b"notes")
    os.close(write)
    assert terminal.end()[:2] == (0, f"{8 + 5 + 28}\n")


def test_rotation_shows_files_and_their_rate_on_a_terminal(clear: Path) -> None:
    (clear / "lake").mkdir()
    for number in range(3):
        encrypt_file(clear, f"lake/{number}.parquet")
    options = ("keys", "rotate", *RING, "--what", "kek", "lake")
    command = [sys.executable, "-c", SHOW_PROGRESS, *options]
    answer, shown = run_on_terminal(clear, command, "stderr", columns=200)
    for part in ("Rotating", "3/3", "files/s"):
        assert part in shown
    assert answer.stdout == b"3 files: 3 rotated; 6 keys\n"


# --- master keys ---------------------------------------------------------------------------------


def test_a_list_reports_all_but_the_values(clear: Path) -> None:
    run_ok(clear, "keys", "rotate", *RING, "--key", "footer")
    run_ok(clear, "keys", "disable", *RING, "footer", "--version", "1", "--json")
    run_ok(clear, "keys", "disable", *RING, "pii")
    titles, footer, pii = run_ok(clear, "keys", "list", *RING).splitlines()
    assert " ".join(titles.split()) == "master key version state created disabled versions"
    assert (footer.split()[:3], footer.split()[4]) == (["footer", "2", "enabled"], "1")
    assert (pii.split()[:3], pii.split()[4]) == (["pii", "1", "disabled"], "-")
    listed = json.loads(run_ok(clear, "keys", "list", *RING, "--json"))["keys"]
    assert [(version["id"], version["version"], version["enabled"]) for version in listed] == [
        ("footer", 2, True),
        ("pii", 1, False),
    ]
    assert listed[0]["disabled_versions"] == [1]
    assert all(version["created"].endswith("Z") for version in listed)


def test_master_keys_are_made_once_and_described_as_json(clear: Path) -> None:
    made = json.loads(run_ok(clear, "keys", "create", *RING, "new", "--json"))
    assert (made["id"], made["version"], made["enabled"]) == ("new", 1, True)
    rotated = json.loads(run_ok(clear, "keys", "rotate", *RING, "--key", "new", "--json"))
    assert (rotated["id"], rotated["version"]) == ("new", 2)
    assert "already" in check_refusal(invoke(clear, "keys", "create", *RING, "new"))


def test_a_destroyed_key_is_gone_for_good(clear: Path) -> None:
    path = encrypt_file(clear)
    destroy = ("keys", "destroy", *RING, "pii")
    assert "--yes" in check_refusal(invoke(clear, *destroy))
    run_ok(clear, *DECRYPT, str(path), "out.parquet")
    assert run_ok(clear, *destroy, "--yes") == "destroyed pii\n"
    assert base64.b64encode(COLUMN_KEY) not in (clear / "lake.keyring").read_bytes()
    result = invoke(clear, *DECRYPT, "--force", str(path), "out.parquet")
    assert "destroyed" in check_refusal(result, "disabled", 3)


def test_destroyed_keys_are_listed_as_destroyed(clear: Path) -> None:
    path = encrypt_file(clear)
    run_ok(clear, "keys", "rotate", *RING, "--key", "footer")
    run_ok(clear, "keys", "destroy", *RING, "footer", "--version", "1", "--yes")
    run_ok(clear, "keys", "destroy", *RING, "pii", "--yes")
    footer, pii = run_ok(clear, "keys", "list", *RING).splitlines()[-2:]
    assert "enabled" in footer
    assert footer.endswith("1 (destroyed)")
    assert " destroyed " in pii
    listed = json.loads(run_ok(clear, "keys", "list", *RING, "--json"))["keys"]
    assert [key["destroyed"] for key in listed] == [False, True]
    assert [key["destroyed_versions"] for key in listed] == [[1], []]
    scanned = invoke(clear, "keys", "scan", *RING, str(path))
    assert scanned.exit_code == 3  # the only file, for want of a key
    assert "version 1 of master key footer is destroyed" in scanned.stderr
    assert "footer (destroyed)" in scanned.stdout
    assert "(destroyed)" not in run_ok(clear, "keys", "scan", str(path))


class NoVersions:
    """A key service that destroys whole keys, and gives nothing back."""

    destroyed = ""
    wrap = unwrap = None

    def destroy_key(self, master_key_id: str) -> None:
        self.destroyed = master_key_id


def test_a_key_of_a_service_without_versions_is_destroyed(
    clear: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = NoVersions()
    monkeypatch.setattr("modcrypt.kms.references._find_opener", lambda scheme: lambda uri: service)
    destroy = ("keys", "destroy", "--kms", "other:x", "pii", "--yes")
    assert "whole keys" in check_refusal(invoke(clear, *destroy, "--version", "1"))
    assert service.destroyed == ""
    assert run_ok(clear, *destroy) == "destroyed pii\n"
    assert service.destroyed == "pii"
    assert json.loads(run_ok(clear, *destroy, "--json"))["destroyed"] is True


def test_what_a_key_service_does_not_offer_is_2(clear: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("LAKE_KEY", FOOTER_KEY.hex())
    env = ("--kms", "env:LAKE_KEY")
    for arguments in (
        ("create", *env, "kf"),
        ("list", *env),
        ("rotate", *env, "--key", "LAKE_KEY"),
        ("disable", *env, "LAKE_KEY"),
        ("destroy", *env, "LAKE_KEY", "--yes"),
    ):
        assert "the service's own tools" in check_refusal(invoke(clear, "keys", *arguments))
    run_ok(clear, "encrypt", *env, "plain.parquet", "sealed.parquet")
    run_ok(clear, "decrypt", *env, "sealed.parquet", "out.parquet")
    assert pq.read_table(clear / "out.parquet").equals(small_table())


# --- encrypt and decrypt -------------------------------------------------------------------------


def test_every_option_beside_a_key_service_reaches_the_file(clear: Path) -> None:
    path = encrypt_file(
        clear,
        "sealed.parquet",
        *("--plaintext-footer", "--plaintext-column", "flag", "--algorithm", "AES_GCM_CTR_V1"),
        *("--aad-prefix", "lake/{name}", "--single-wrapping", "--column-master-key", "address=pii"),
    )
    data = path.read_bytes()
    assert data[:4] == data[-4:] == b"PAR1"
    assert b"lake/sealed.parquet" in data
    assert b'"doubleWrapping":false' in data
    assert pq.read_table(path, columns=["flag"]).equals(small_table().select(["flag"]))
    scan = run_ok(clear, "keys", "scan", str(path), "--json")
    keys = [json.loads(line) for line in scan.splitlines()]
    assert {key["column"] for key in keys} == {None, "name", "address.zip", "address.city"}
    back = (*DECRYPT, str(path), "out.parquet")
    check_refusal(invoke(clear, *back), "unsupported", 5)
    run_ok(
        clear, *back, "--accept-algorithm", "AES_GCM_CTR_V1", "--aad-prefix", "lake/sealed.parquet"
    )
    assert (clear / "out.parquet").read_bytes() == (clear / "plain.parquet").read_bytes()


def test_kms_goes_before_the_key_service_of_a_policy(clear: Path) -> None:
    (clear / "sub").mkdir()
    policy = 'kms = "file:../absent.keyring"\nfooter_key = "footer"\n'
    (clear / "sub" / "lake.toml").write_text(policy)
    options = ("--policy", "sub/lake.toml", "plain.parquet", "sealed.parquet")
    assert "absent.keyring" in check_refusal(invoke(clear, "encrypt", *options), "file")
    run_ok(clear, "encrypt", *RING, *options)
    run_ok(clear, "decrypt", *RING, "--policy", "sub/lake.toml", "sealed.parquet", "out.parquet")
    (clear / "sub" / "lake.toml").write_text('footer_key = "footer"\n')
    assert "--kms" in check_refusal(invoke(clear, "encrypt", *options))


def test_audit_has_every_use_of_a_key(clear: Path) -> None:
    path, audit = str(encrypt_file(clear, "sealed.parquet", "--audit", "a.jsonl")), ("--audit",)
    run_ok(clear, *DECRYPT, "--audit", "b.jsonl", path, "out.parquet")
    run_ok(clear, "inspect", *RING, *audit, "c.jsonl", path)
    run_ok(clear, "keys", "rotate", *RING, "--what", "kek", *audit, "d.jsonl", path)
    reported = {}
    for name in "abcd":
        lines = (clear / f"{name}.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in lines]
        reported[name] = {(e["operation"], e["by"], e["master_key_id"]) for e in events}
        assert all(event["result"] == "ok" for event in events)
    both = ("footer", "pii")
    wraps = {("wrap", by, key) for by in ("kms", "file") for key in both}
    unwraps = {("unwrap", by, key) for by in ("kms", "file") for key in both}
    assert reported["a"] == wraps | {("seal", "file", key) for key in both}
    assert reported["b"] == reported["c"] == unwraps
    assert reported["d"] >= {
        (operation, "kms", key) for operation in ("wrap", "unwrap") for key in both
    }
    assert stat.S_IMODE((clear / "a.jsonl").stat().st_mode) == 0o600


# --- rotation and scan ---------------------------------------------------------------------------


@pytest.fixture
def lake(clear: Path) -> Path:
    """The same with three files in lake."""
    (clear / "lake").mkdir()
    for number in range(3):
        encrypt_file(clear, f"lake/{number}.parquet")
    return clear


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_dry_run_changes_nothing(lake: Path) -> None:
    before = contents(lake / "lake"), (lake / "lake.keyring").read_bytes()
    rotate = ("keys", "rotate", *RING, "--dry-run", "lake")
    assert run_ok(lake, *rotate) == "3 files: 3 current; 0 keys\n"
    assert run_ok(lake, *rotate, "--what", "kek") == "3 files: 3 to rotate; 6 keys\n"
    with_key = invoke(lake, *rotate, "--key", "footer")
    assert with_key.stdout == "3 files: 3 to rotate; 3 keys\n"
    assert with_key.stderr == "modcrypt: would add a version to footer\n"
    assert (contents(lake / "lake"), (lake / "lake.keyring").read_bytes()) == before


def test_files_move_under_another_master_key(lake: Path) -> None:
    run_ok(lake, "keys", "create", *RING, "vault=2")
    rotate = ("keys", "rotate", *RING, "--new-master-key", "footer=pii")
    assert run_ok(lake, *rotate, "lake") == "3 files: 3 rotated; 3 keys\n"
    assert "footer" not in {key["master_key_id"] for key in scan(lake, *RING, "lake")}
    run_ok(lake, "keys", "disable", *RING, "footer")
    run_ok(lake, *DECRYPT, "lake/0.parquet", "out.parquet")


def test_wrapping_is_changed_on_request(lake: Path) -> None:
    rotate = ("keys", "rotate", *RING, "lake")
    assert run_ok(lake, *rotate, "--single-wrapping", "--dry-run").startswith("3 files: 3 ")
    for option in ("--single-wrapping", "--double-wrapping"):
        assert run_ok(lake, *rotate, option) == "3 files: 3 rotated; 6 keys\n"
        assert run_ok(lake, *rotate, option) == "3 files: 3 current; 0 keys\n"
        run_ok(lake, *DECRYPT, "lake/0.parquet", "out.parquet", "--force")
    nothing = invoke(lake, "keys", "rotate", *RING, "--key", "footer", "--double-wrapping")
    assert (nothing.exit_code, "name PATHs" in nothing.stderr) == (2, True)


def test_a_recorded_run_is_taken_up(lake: Path) -> None:
    rotate = ("keys", "rotate", *RING, "--what", "kek", "--record", "run.jsonl", "lake")
    assert run_ok(lake, *rotate) == "3 files: 3 rotated; 6 keys\n"
    encrypt_file(lake, "lake/3.parquet")
    record = lake / "run.jsonl"
    lines = record.read_bytes().splitlines()
    record.write_bytes(b"\n".join(line for line in lines if b'"end"' not in line))  # as if killed
    taken_up = invoke(lake, *rotate[:-1], "--key", "footer", "lake")
    assert taken_up.stdout == "4 files: 1 rotated, 3 current; 2 keys\n"
    assert "no version is added" in taken_up.stderr
    assert run_ok(lake, *rotate) == "4 files: 4 rotated; 8 keys\n"  # a run of its own


def test_a_version_that_was_disabled_is_enabled_again(lake: Path) -> None:
    run_ok(lake, "keys", "rotate", *RING, "--key", "footer")
    run_ok(lake, "keys", "disable", *RING, "footer", "--version", "1")
    assert invoke(lake, *DECRYPT, "lake/0.parquet", "out.parquet").exit_code == 3
    enabled = run_ok(lake, "keys", "enable", *RING, "footer", "--version", "1")
    assert enabled == "enabled footer, version 1\n"
    run_ok(lake, *DECRYPT, "lake/0.parquet", "out.parquet")


def scan(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    lines = run_ok(folder, "keys", "scan", "--json", *arguments).splitlines()
    return [json.loads(line) for line in lines]


def test_a_scan_opens_footers_of_any_algorithm(clear: Path) -> None:
    encrypt_file(clear, "sealed.parquet", "--algorithm", "AES_GCM_CTR_V1")
    result = invoke(clear, "keys", "scan", "--kms", "file:lake.keyring", "sealed.parquet", "--json")
    keys = [json.loads(line) for line in result.stdout.splitlines()]
    assert {key["column"]: key["master_key_id"] for key in keys} == {None: "footer", "name": "pii"}
    (clear / "lake.toml").write_text('kms = "file:lake.keyring"\nfooter_key = "footer"\n')
    strict = invoke(clear, "keys", "scan", "--policy", "lake.toml", "sealed.parquet")
    assert (strict.exit_code, "AES_GCM_CTR_V1" in strict.stderr) == (5, True)


def test_a_scan_reports_what_it_could_not_look_into(lake: Path) -> None:
    shutil.copy(lake / "plain.parquet", lake / "lake" / "4.parquet")
    result = invoke(lake, "keys", "scan", "lake")
    titles, *rows, note = result.stdout.splitlines()
    assert result.exit_code == 1
    assert titles.split() == ["file", "column", "master", "key", "version", "KEK", "storage"]
    assert [row.split()[1] for row in rows] == ["(footer)", "(encrypted)"] * 3
    assert "--kms" in note
    assert result.stderr.startswith("modcrypt: lake/4.parquet is a plaintext file")
    assert result.stderr.count("\n") == 1
    as_json = invoke(lake, "keys", "scan", "lake", "--json")
    assert (as_json.exit_code, as_json.stderr) == (1, "")
    assert json.loads(as_json.stdout.splitlines()[-1])["kind"] == "error"


def test_a_folder_that_is_not_there_is_2(clear: Path) -> None:
    check_refusal(invoke(clear, "keys", "rotate", *RING, "--key", "footer", "absent"), "file")
    assert modcrypt.Keyring(clear / "lake.keyring").list_keys()[0].version == 1
    check_refusal(invoke(clear, "keys", "scan", "absent"), "file")


# --- key services that fail ----------------------------------------------------------------------


def test_a_key_service_that_is_not_there_is_4(
    clear: Path, nobody: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("hvac")
    note_sleeps(monkeypatch)  # between the attempts
    monkeypatch.setenv("VAULT_TOKEN", "t0ken-of-the-test")
    vault = ("--kms", f"hcvault://127.0.0.1:{nobody}/transit/keys/footer?tls=off")
    result = invoke(clear, "encrypt", *vault, "plain.parquet", "out")
    assert "t0ken" not in check_refusal(result, "unavailable", 4)
    assert names(clear) == {"lake.keyring", "plain.parquet"}


def test_a_missing_extra_is_2_and_says_what_to_install(clear: Path) -> None:
    script = "import sys; sys.modules['hvac'] = None; from modcrypt.cli import run; run()"
    answer = subprocess.run(
        [sys.executable, "-c", script, "keys", "list", "--kms", "hcvault://127.0.0.1/transit"],
        cwd=clear, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert 'pip install "modcrypt[vault]"' in check_failure(answer, 2, "usage")


@each_case(
    "arguments",
    [
        ("keys", "list", "--kms", "{}"),
        ("keys", "list", "--kms={}"),
        ("keys", "{}"),
        ("{}",),
        ("keys", "list", "{}"),
        ("keys", "scan", "{}"),
        ("encrypt", "{}", "out"),
        ("decrypt", "plain.parquet", "{}"),
        ("encrypt", *RING, "--master-key", "{}", "plain.parquet", "out"),
    ],
)
@each_case("uri", ["pkcs11:token=lake?pin-value=31415926", "pkcs11:token=lake;pin-value=31415926"])
def test_a_secret_in_a_uri_is_not_repeated(
    clear: Path, arguments: tuple[str, ...], uri: str
) -> None:
    for more in ((), ("--json",)):
        result = invoke(clear, *(argument.format(uri) for argument in arguments), *more)
        assert result.exit_code in (1, 2, 3)
        assert "31415926" not in result.output


# --- options, in process -------------------------------------------------------------------------

COVERED = [
    ("--plaintext-column", "id"),
    ("--plaintext-footer",),
    ("--algorithm", "AES_GCM_V1"),  # though it is the default
    ("--aad-prefix", "x"),
    ("--aad-prefix", "hex:00"),
    ("--aad-prefix", "file:x"),
    ("--aad-prefix", "hex:00", "--no-store-aad-prefix"),
    ("--v2-levels", "plaintext"),
    ("--master-key", "footer"),
    ("--column-master-key", "id=pii"),
    ("--single-wrapping",),
    ("--external-key-material",),
]
EXPLICIT = [
    ("--key", "file:x"),
    ("--key", "env:X"),
    ("--key", "fd:0"),
    ("--column-key", "id=file:x"),
]


@each_case("option", [*COVERED, *EXPLICIT, ("--footer-key-metadata", "x")])
def test_what_a_policy_says_is_not_said_again(clear: Path, option: tuple[str, ...]) -> None:
    (clear / "lake.toml").write_text('kms = "file:lake.keyring"\nfooter_key = "footer"\n')
    files = ("plain.parquet", "out")
    message = check_refusal(invoke(clear, "encrypt", "--policy", "lake.toml", *option, *files))
    assert message.startswith(option[0])
    assert "policy" in message
    assert "out" not in names(clear)


@each_case("option", EXPLICIT)
@each_case("command", ["encrypt", "decrypt", "inspect"])
def test_explicit_keys_and_a_key_service_exclude_each_other(
    clear: Path, command: str, option: tuple[str, ...]
) -> None:
    files = ("plain.parquet", "out")[: 1 if command == "inspect" else 2]
    assert option[0] in check_refusal(invoke(clear, command, *FOOTER, *option, *files))


@each_case(
    ("arguments", "part"),
    [
        (("encrypt", "--master-key", "x", "--single-wrapping", "a", "b"), "--single-wrapping"),
        (("encrypt", "--audit", "x", "a", "b"), "--audit"),
        (("decrypt", "--audit", "x", "a", "b"), "--audit"),
        (("decrypt", "--passphrase", "env:x", "a", "b"), "--kms or --policy"),
        (("encrypt", *RING, "plain.parquet", "b"), "--master-key"),
        (("encrypt", *FOOTER, "--column-master-key", "x", "a", "b"), "NAME=ID"),
        (("encrypt", *FOOTER, "--column-master-key", "x=", "a", "b"), "NAME=ID"),
        (("encrypt", *FOOTER, *["--column-master-key", "x=y"] * 2, "a", "b"), "twice for x"),
        (("encrypt", *FOOTER, "--aad-prefix", "hex:ff", "a", "b"), "UTF-8"),
        (("encrypt", *FOOTER, "--aad-prefix", "{i}", "a", "b"), "aad_prefix"),
        (("encrypt", *FOOTER, "--aad-prefix", "{", "a", "b"), "--aad-prefix supports only"),
        (("encrypt", *FOOTER, "--no-store-aad-prefix", "a", "b"), "--aad-prefix"),
        (("encrypt", *FOOTER, "--column-master-key", "no=pii", "plain.parquet", "b"), "no; it has"),
        (("encrypt", "--kms", "nothing", "a", "b"), "known schemes are aws-kms"),
        (("encrypt", "--kms", "x:y", "--master-key", "k", "a", "b"), "known schemes are aws-kms"),
        (("keys", "list"), "--kms, or --policy"),
        (("keys", "list", "--kms", "env:X", "--passphrase", "env:Y"), "file:PATH"),
        (("keys", "list", *RING, "--passphrase", "env:X", "--passphrase", "fd:0"), "given twice"),
        (("keys", "create", *RING), "Missing argument 'ID'"),
        (("keys", "create", "--kms", "env:X", "--plaintext", "k"), "--plaintext"),
        (("keys", "create", *RING, "k", "--import", "env:X", "--import", "file:y"), "given twice"),
        (("keys", "rotate", *RING), "--key ID"),
        (("keys", "rotate", *RING, "--key", "k", "--what", "kek"), "--what: this needs files"),
        (("keys", "rotate", "."), "--kms, or --policy"),
        (("keys", "rotate", *RING, "--new-master-key", "x", "a"), "OLD=NEW"),
        (("keys", "rotate", *RING, "--what", "all", "a"), "dek"),
        (("keys", "disable", *RING, "footer", "--version", "0"), "x>=1"),
        (("keys", "disable", *RING, "footer", "--version", "1"), "the newest"),
        (("keys", "scan"), "Missing argument 'PATH...'"),
        (("keys", "scan", "--audit", "x", "."), "--kms or --policy"),
        (("keys", "mint"), "No such command 'mint'"),
        (("ags1", "cat", *RING, "x"), "--key-metadata-file"),
        (("ags1", "encrypt", *RING, "--key", "file:x", "a", "b"), "--new-key-metadata"),
        (("ags1", "encrypt", "--master-key", "x", "a", "b"), "--new-key-metadata"),
        (("ags1", "encrypt", "--new-key-metadata", "k", "--master-key", "x", "a", "b"), "--kms"),
        (("ags1", "encrypt", "--passphrase", "fd:0", *RING, "-", "b"), "standard input"),
    ],
)
def test_wrong_options_are_2_and_explained_in_one_line(
    clear: Path, arguments: tuple[str, ...], part: str
) -> None:
    before = contents(clear)
    assert part in check_refusal(invoke(clear, *arguments))
    assert contents(clear) == before


def test_a_wrong_policy_is_2_and_reported_by_its_name(clear: Path) -> None:
    (clear / "lake.toml").write_text('footer_key = "k"\nmaster = 1\n')
    result = invoke(clear, "encrypt", "--policy", "lake.toml", "plain.parquet", "out")
    assert check_refusal(result) == "lake.toml: invalid policy: unknown member master"
    result = invoke(clear, "encrypt", "--policy", "absent.toml", "plain.parquet", "out")
    assert "absent.toml" in check_refusal(result, "file")


def test_the_last_equals_sign_parts_column_and_master_key(clear: Path) -> None:
    write_plain(clear / "plain.parquet", pa.table({"a=b": [1], "c": [2]}))
    options = ("--column-master-key", "a=b=pii", "--plaintext-footer")
    run_ok(clear, "encrypt", *FOOTER, *options, "plain.parquet", "sealed.parquet")
    found = {key["column"]: key["master_key_id"] for key in scan(clear, "sealed.parquet")}
    assert found == {None: "footer", "a=b": "pii"}


# --- help ----------------------------------------------------------------------------------------

SERVICES = {"boto3", "hvac", "pkcs11", "google.cloud.kms", "azure", "modcrypt.kms.keyring.keyring"}


def test_a_keyring_loads_no_other_key_service(clear: Path) -> None:
    script = (
        "import sys, atexit; from modcrypt.cli import run\n"
        "atexit.register(lambda: print('LOADED', *sys.modules))\n"
        "run()"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script, "encrypt", *FOOTER, "plain.parquet", "sealed.parquet"],
        cwd=clear, env=environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    loaded = set(answer.stdout.partition("LOADED ")[2].split())
    assert "modcrypt.kms.keyring.keyring" in loaded
    assert loaded.isdisjoint((SERVICES | {"pyarrow", "fsspec"}) - {"modcrypt.kms.keyring.keyring"})


def test_a_generated_key_opens_files_and_replaces_nothing(tmp_path: Path) -> None:
    write_plain(tmp_path / "plain.parquet")
    made = ("keys", "generate", "--scheme", "aes256", "--json", "new.key")
    assert json.loads(run_ok(tmp_path, *made)) == {
        "schema": "modcrypt.keys.file/1", "key": "new.key", "bits": 256,
    }  # fmt: skip
    assert (tmp_path / "new.key").stat().st_mode & 0o777 == 0o600
    before = (tmp_path / "new.key").read_text()
    assert "exists" in check_refusal(invoke(tmp_path, "keys", "generate", "new.key"))
    assert (tmp_path / "new.key").read_text() == before
    run_ok(tmp_path, "encrypt", "--key", "file:new.key", "plain.parquet", "sealed.parquet")
    assert "id" in run_ok(tmp_path, "schema", "--key", "file:new.key", "sealed.parquet")


@each_case(
    "arguments",
    [
        ("--scheme", "ed25519", "new.key"),
        ("--passphrase", "env:WORD", "new.key"),
        ("--kind", "signing", "--scheme", "aes256", "new.key"),
        ("--kind", "signing", "--scheme", "x25519", "new.key"),
        ("--kind", "recipient", "--scheme", "mldsa65", "new.key"),
        ("--kind", "recipient", "new"),
        ("new.pub",),
    ],
)
def test_options_of_another_kind_of_key_are_refused(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    check_refusal(invoke(tmp_path, "keys", "generate", *arguments))
    assert [*tmp_path.iterdir()] == []


@each_case("command", [None, "create", "list", "rotate", "disable", "enable", "destroy", "scan"])
def test_the_examples_of_the_help_texts_run(tmp_path: Path, command: str | None) -> None:
    """Typed as they stand, in a folder with the files they name."""
    (tmp_path / "lake").mkdir()
    write_plain(tmp_path / "orders.parquet")
    private(tmp_path / "pii.key", COLUMN_KEY)
    if command not in (None, "create"):
        ring = modcrypt.Keyring.create(tmp_path / "lake.keyring", passphrase=PASSPHRASE)
        for name in ("footer", "vault"):
            ring.create_key(name)
        if command in ("disable", "destroy"):
            ring.rotate_key("footer")
        how = modcrypt.KeyTools(ring).encryption(modcrypt.Policy(footer_key="footer"))
        modcrypt.encrypt_parquet(tmp_path / "orders.parquet", tmp_path / "lake/a.parquet", how)
    examples = examples_of(tmp_path, "keys", *([] if command is None else [command]))
    assert examples
    for example in examples:
        check_ok(run_here(tmp_path, *example))


def test_a_prefix_with_the_files_name_is_taken_on_both_ways(lake: Path) -> None:
    prefix = ("--aad-prefix", "people/{name}")
    run_ok(lake, "encrypt", "--kms", f"{RING[1]}#footer", *prefix, "plain.parquet", "named.parquet")
    run_ok(lake, *DECRYPT, *prefix, "named.parquet", "named.out.parquet")
    (lake / "named.parquet").rename(lake / "other.parquet")
    result = invoke(lake, *DECRYPT, *prefix, "other.parquet", "other.out.parquet")
    assert result.exit_code == 1
    assert "aad-prefix" in result.stderr


def test_a_keyring_in_plaintext_that_others_can_read_is_refused(lake: Path) -> None:
    keyring = lake / "lake.keyring"
    keyring.chmod(0o640)
    before = keyring.read_bytes()
    out = str(lake / "out.parquet")
    for arguments in (
        ("keys", "list", *RING), ("keys", "create", *RING, "more"), ("keys", "scan", *RING, "lake"),
        ("shred", *RING, "--all", "--yes", "lake"), ("head", *RING, "lake"),
        ("encrypt", "--kms", "file:lake.keyring#footer", "orders.parquet", out),
        ("encrypt", "--key", "file:lake.keyring#footer", "orders.parquet", out),
    ):  # fmt: skip
        result = invoke(lake, *arguments)
        assert result.exit_code == 2, arguments
        assert "other users can read the keyring" in result.stderr
        assert "chmod 600" in result.stderr
    assert keyring.read_bytes() == before
    assert not Path(out).exists()


def test_a_rotation_that_fails_for_want_of_a_key_alone_says_so(lake: Path) -> None:
    run_ok(lake, "keys", "disable", *RING, "footer")
    assert invoke(lake, "keys", "rotate", *RING, "--what", "kek", "lake").exit_code == 3
    (lake / "lake" / "0.parquet").write_bytes(b"no Parquet")
    assert invoke(lake, "keys", "rotate", *RING, "--what", "kek", "lake").exit_code == 1

"""`modcrypt ags1` as users meet it: the installed program, with files, pipes and signals."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from cryptography.exceptions import InvalidTag

import modcrypt
from modcrypt.cli import app
from tests.support.ags1.standard_streams import (
    FRAME,
    MIB,
    decrypt_standard_stream,
    split_key_metadata,
)
from tests.support.cases import each_case
from tests.support.cli.forked import as_process
from tests.support.cli.program import environment, private, run_on_terminal
from tests.support.folder_contents import names
from tests.support.interrupts import interrupt
from tests.support.keys import FOOTER_KEY, OTHER_KEY
from tests.support.shared_vectors import shared_vectors
from tests.support.unfinished_files import unfinished_files

PROGRAM = Path(sys.executable).with_name("modcrypt")
KEY = ("--key", "file:own.key")
METADATA = ("--key-metadata-file", "notes.key")
NOTES = hashlib.shake_128(b"notes").digest(3 * MIB + 5)
NOTES_LENGTH = 8 + len(NOTES) + 4 * 28

Answer = subprocess.CompletedProcess[bytes]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with notes.txt, four blocks long, and own.key."""
    (tmp_path / "notes.txt").write_bytes(NOTES)
    private(tmp_path / "own.key", FOOTER_KEY)
    return tmp_path


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("once")
    (folder / "notes.txt").write_bytes(NOTES)
    check_ok(
        run_here(folder, "encrypt", "--new-key-metadata", "notes.key", "notes.txt", "notes.ags1")
    )
    return folder


@pytest.fixture
def encrypted_folder(folder: Path, once: Path) -> Path:
    """The same with notes.ags1 under notes.key, which is key metadata."""
    for name in ("notes.ags1", "notes.key"):
        shutil.copy(once / name, folder)
    return folder


def run(
    folder: Path,
    *arguments: str | Path,
    env: dict[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    fork: bool = True,
    **more: Any,
) -> Answer:
    """Run the program in a process of its own, in a fork unless `fork` is false."""
    if "input" not in more and "stdin" not in more:
        more["stdin"] = subprocess.DEVNULL
    if "stdout" not in more:
        more["stdout"] = subprocess.PIPE
    command = [PROGRAM, "ags1", *arguments]
    return subprocess.run(
        **as_process(command, environment(**(env or {})), pass_fds, fork=fork),
        cwd=folder,
        stderr=subprocess.PIPE,
        check=False,
        **more,
    )


def run_here(folder: Path, *arguments: str | Path) -> Answer:
    """Run the command line in this process."""
    with contextlib.chdir(folder):
        result = CliRunner().invoke(
            app.program,
            ["ags1", *map(str, arguments)],
            prog_name="modcrypt",
            catch_exceptions=False,
        )
    return Answer(arguments, result.exit_code, result.stdout_bytes, result.stderr_bytes)


def start(folder: Path, *arguments: str, **more: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        **as_process([PROGRAM, "ags1", *arguments], environment()),
        cwd=folder,
        stderr=subprocess.PIPE,
        **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, **more},
    )


def invoke(folder: Path, *arguments: str) -> Result:
    """Run the command line in this process, where neither pipes nor descriptors matter."""
    with contextlib.chdir(folder):
        return CliRunner().invoke(app.program, ("ags1", *arguments))


def check_refusal(result: Result, code: int, word: str) -> str:
    """Check as `check_failure` does, and that stdout is empty."""
    assert result.stdout == ""
    return check_failure(Answer((), result.exit_code, b"", result.stderr.encode()), code, word)


def check_ok(answer: Answer) -> bytes:
    """Check that the command succeeded without stderr; return stdout."""
    assert (answer.returncode, answer.stderr) == (0, b"")
    out: bytes = answer.stdout
    return out


def check_failure(answer: Answer, code: int, word: str) -> str:
    """Check the exit code and the one line on stderr; return the message."""
    assert answer.returncode == code, answer.stderr
    line = answer.stderr.decode()
    begin = f"modcrypt: error: {word}: "
    assert line.startswith(begin)
    assert line.count("\n") == 1
    return line[len(begin) : -1]


def open_by_metadata(folder: Path, name: str = "notes.key") -> bytes:
    stream = (folder / "notes.ags1").read_bytes()
    key, prefix, length = split_key_metadata((folder / name).read_bytes())
    assert length == len(stream)
    return decrypt_standard_stream(stream, key, prefix)


# --- the main job, judged by others --------------------------------------------------------------


@each_case("size", [16, 24, 32])
@each_case("count", [0, 1, 2 * MIB])
def test_what_the_program_encrypts_opens_after_the_spec(
    folder: Path, size: int, count: int
) -> None:
    key = bytes(range(size))
    private(folder / "own.key", key.hex().encode())
    (folder / "notes.txt").write_bytes(NOTES[:count])
    printed = check_ok(
        run_here(folder, "encrypt", *KEY, "--aad-prefix", "hex:00fF", "notes.txt", "notes.ags1")
    )
    stream = (folder / "notes.ags1").read_bytes()
    assert printed == f"{len(stream)}\n".encode()
    assert decrypt_standard_stream(stream, key, b"\x00\xff") == NOTES[:count]


def options_of(folder: Path, case: dict[str, Any]) -> list[str]:
    """Return the options for key, AAD prefix and trusted length of a case."""
    private(folder / "own.key", case["key"].encode())
    prefix = case["aad_prefix"]
    length = case.get("trusted_length", case.get("file_length"))
    return [
        *KEY,
        *([] if prefix is None else ["--aad-prefix", f"hex:{prefix}"]),
        *("--length", str(length)),
    ]


ACCEPTED = {
    "blocklen_half": "one short block is the same in blocks of any length",
    "odd_trailing_empty_block": "it authenticates",
    "odd_aad_bigendian": "block 0 is spelt the same",
}


def test_tampered_files_of_java_s_are_1_and_leave_nothing(folder: Path) -> None:
    manifest = json.loads((shared_vectors() / "ags1/manifest.json").read_text())
    words = {"format", "tag", "truncation"}
    cases = [case for case in manifest["tampered"] if case["name"] not in ACCEPTED]
    assert len(cases) > 10
    for case in cases:
        path = shared_vectors() / "ags1" / case["file"]
        answer = run_here(folder, "decrypt", *options_of(folder, case), "--json", path, "back.txt")
        assert answer.returncode == 1, case
        assert json.loads(answer.stdout)["error"] in words, case
    assert names(folder) == {"notes.txt", "own.key"}


# --- key metadata --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [None, 16, 24, 32])
def test_fresh_key_metadata_opens_the_stream(folder: Path, size: int | None) -> None:
    option = () if size is None else ("--key-length", str(size))
    files = ("--new-key-metadata", "notes.key", "notes.txt", "notes.ags1")
    answer = run(folder, "encrypt", *option, *files, umask=0)
    assert check_ok(answer) == f"{NOTES_LENGTH}\n".encode()
    assert stat.S_IMODE((folder / "notes.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / "notes.ags1").stat().st_mode) == 0o666
    assert len(split_key_metadata((folder / "notes.key").read_bytes())[0]) == (size or 16)
    assert open_by_metadata(folder) == NOTES
    assert names(folder) == {"notes.txt", "own.key", "notes.key", "notes.ags1"}


def test_decrypt_prints_what_it_wrote(encrypted_folder: Path) -> None:
    key = ("--key-metadata-file", "notes.key")
    answer = run_here(encrypted_folder, "decrypt", *key, "notes.ags1", "again.txt")
    check_ok(answer)
    said = answer.stdout.decode() if isinstance(answer.stdout, bytes) else answer.stdout
    assert said.startswith("decrypted notes.ags1 to again.txt; ")
    answer = run(encrypted_folder, "decrypt", *key, "notes.ags1", "-")
    assert (answer.stdout, answer.stderr) == (NOTES, b"")


@pytest.mark.parametrize("form", ["raw", "hex", "HEX", "base64", "base64 of URLs"])
def test_key_metadata_is_read_raw_and_as_text(encrypted_folder: Path, form: str) -> None:
    raw = (encrypted_folder / "notes.key").read_bytes()
    spelt = {
        "raw": raw,
        "hex": raw.hex().encode() + b"\n",
        "HEX": raw.hex().upper().encode(),
        "base64": base64.b64encode(raw) + b"\r\n",
        "base64 of URLs": base64.urlsafe_b64encode(raw).rstrip(b"="),
    }[form]
    private(encrypted_folder / "notes.key", spelt)
    assert invoke(encrypted_folder, "cat", *METADATA, "notes.ags1").stdout_bytes == NOTES


def test_key_metadata_without_a_length_does_for_writing_and_needs_one_for_reading(
    folder: Path,
) -> None:
    private(folder / "notes.key", b"\1\x20" + FOOTER_KEY + b"\0\0")
    printed = check_ok(run_here(folder, "encrypt", *METADATA, "notes.txt", "notes.ags1"))
    assert decrypt_standard_stream((folder / "notes.ags1").read_bytes(), FOOTER_KEY) == NOTES
    reading = ("cat", *METADATA, "notes.ags1")
    assert "--length" in check_failure(run_here(folder, *reading), 2, "usage")
    assert check_ok(run_here(folder, *reading, "--length", printed.decode().strip())) == NOTES


def test_key_metadata_of_a_written_file_is_not_used_again(encrypted_folder: Path) -> None:
    answer = run_here(encrypted_folder, "encrypt", *METADATA, "notes.txt", "other.ags1")
    assert "--new-key-metadata" in check_failure(answer, 2, "usage")
    assert "other.ags1" not in names(encrypted_folder)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o604])
def test_key_metadata_that_others_can_read_is_refused(encrypted_folder: Path, mode: int) -> None:
    (encrypted_folder / "notes.key").chmod(mode)
    result = invoke(encrypted_folder, "cat", *METADATA, "notes.ags1")
    expected = (0, NOTES) if mode == 0o600 else (2, b"")
    assert (result.exit_code, result.stdout_bytes) == expected
    refusal = f"other users can read the key metadata file notes.key (mode {mode:04o})"
    assert (refusal in result.stderr) == (mode != 0o600)


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: b"\2" + raw[1:],
        lambda raw: raw[:-1],
        lambda raw: raw + b"\n",
        lambda raw: raw.hex().encode()[:-1],
        lambda raw: raw + bytes(5000),
        lambda raw: b"",
    ],
)
def test_damaged_key_metadata_is_3_and_not_shown(encrypted_folder: Path, damage: Any) -> None:
    raw = (encrypted_folder / "notes.key").read_bytes()
    private(encrypted_folder / "notes.key", damage(raw))
    message = check_refusal(
        invoke(encrypted_folder, "cat", *METADATA, "notes.ags1"), 3, "key-material"
    )
    assert "notes.key" in message
    key = split_key_metadata(raw)[0]
    assert not [s for s in (key.hex(), repr(key)[2:-1]) if s[:12] in message]


def test_encrypted_key_metadata_is_under_the_master_key_that_is_expected(folder: Path) -> None:
    ring = modcrypt.Keyring.create(folder / "lake.keyring", plaintext=True)
    for name in ("footer", "other"):
        ring.create_key(name)
    (folder / "lake.toml").write_text('kms = "file:lake.keyring"\nfooter_key = "footer"\n')
    forged = ("--new-key-metadata", "notes.key.enc", "--kms", "file:lake.keyring#other")
    assert invoke(folder, "encrypt", *forged, "notes.txt", "forged.ags1").exit_code == 0
    for service in (("--policy", "lake.toml"), ("--kms", "file:lake.keyring#footer")):
        reading = ("cat", "--key-metadata-file", "notes.key.enc", *service, "forged.ags1")
        message = check_refusal(invoke(folder, *reading), 3, "key-material")
        assert "'other', not under 'footer'; pass --master-key" in message
        assert invoke(folder, *reading, "--master-key", "other").stdout_bytes == NOTES


def test_the_wrong_sort_of_key_metadata_file_is_3(folder: Path) -> None:
    reading = ("cat", "notes.txt", "--key-metadata-file")
    assert "metadata" in check_refusal(invoke(folder, *reading, "absent"), 3, "no-key")
    check_refusal(invoke(folder, *reading, "."), 3, "key-material")


def test_key_metadata_among_the_arguments_is_not_repeated(encrypted_folder: Path) -> None:
    raw = (encrypted_folder / "notes.key").read_bytes()
    spellings = [raw.hex(), base64.b64encode(raw).decode(), base64.urlsafe_b64encode(raw).decode()]
    typed = raw.replace(b"\0", b"").decode("utf-8", "surrogateescape")
    for text in [*spellings, typed, f"\x01 {'[(key)]' * 5}"]:
        for option in ("--key-metadata-file", "--key", "--length", "--aad-prefix-hex", "--x"):
            result = invoke(encrypted_folder, "cat", *KEY, option, text, "notes.ags1", "--json")
            assert result.exit_code in (2, 3)
            assert text not in result.output
            assert repr(text)[1:-1] not in result.output
            assert not [s for s in (raw.hex(), repr(raw)[2:-1]) if s[4:20] in result.output]


# --- replacing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["encrypt", "decrypt"])
def test_a_destination_is_replaced_only_on_request(encrypted_folder: Path, command: str) -> None:
    (encrypted_folder / "dear").write_bytes(b"dear")
    options = (*KEY, "notes.txt") if command == "encrypt" else (*METADATA, "notes.ags1")
    assert "--force" in check_failure(
        run_here(encrypted_folder, command, *options, "dear"), 2, "file"
    )
    assert (encrypted_folder / "dear").read_bytes() == b"dear"
    assert run_here(encrypted_folder, command, *options, "dear", "--force").returncode == 0
    assert (encrypted_folder / "dear").read_bytes()[:4] == (
        b"AGS1" if command == "encrypt" else NOTES[:4]
    )


@pytest.mark.parametrize("there", ["file", "dangling link"])
def test_key_metadata_is_replaced_only_on_request(encrypted_folder: Path, there: str) -> None:
    old = (encrypted_folder / "notes.key").read_bytes()
    if there == "dangling link":
        (encrypted_folder / "notes.key").unlink()
        (encrypted_folder / "notes.key").symlink_to("elsewhere.key")
    again = ("encrypt", "--new-key-metadata", "notes.key", "notes.txt", "more.ags1")
    assert "notes.key: destination exists" in check_failure(
        run_here(encrypted_folder, *again), 2, "file"
    )
    assert "more.ags1" not in names(encrypted_folder)
    check_ok(run_here(encrypted_folder, *again[:-1], "notes.ags1", "--force"))
    assert (encrypted_folder / "notes.key").read_bytes() != old
    assert open_by_metadata(encrypted_folder) == NOTES
    assert (encrypted_folder / "notes.key").is_symlink() == (there == "dangling link")
    assert not [name for name in names(encrypted_folder) if name.endswith((".new", ".tmp"))]


def test_a_replaced_key_file_becomes_private(encrypted_folder: Path) -> None:
    (encrypted_folder / "notes.key").chmod(0o644)
    files = ("--new-key-metadata", "notes.key", "notes.txt", "notes.ags1")
    check_ok(run_here(encrypted_folder, "encrypt", *files, "--force"))
    assert stat.S_IMODE((encrypted_folder / "notes.key").stat().st_mode) == 0o600


def test_what_an_interrupted_run_left_is_not_replaced(encrypted_folder: Path) -> None:
    (encrypted_folder / "notes.key.new").write_bytes(b"the only key")
    files = ("--new-key-metadata", "notes.key", "notes.txt", "notes.ags1")
    message = check_failure(run_here(encrypted_folder, "encrypt", *files, "--force"), 2, "usage")
    assert "notes.key.new" in message
    assert (encrypted_folder / "notes.key.new").read_bytes() == b"the only key"
    assert open_by_metadata(encrypted_folder) == NOTES


@pytest.mark.parametrize("where", ["notes.txt", "./notes.ags1", "-", "/dev/null", "."])
def test_key_metadata_does_not_go_where_something_else_is(
    encrypted_folder: Path, where: str
) -> None:
    files = ("--new-key-metadata", where, "notes.txt", "notes.ags1", "--force")
    assert "--new-key-metadata" in check_failure(
        run_here(encrypted_folder, "encrypt", *files), 2, "usage"
    )
    assert (encrypted_folder / "notes.txt").read_bytes() == NOTES
    assert open_by_metadata(encrypted_folder) == NOTES


def test_a_missing_folder_for_key_metadata_is_known_before_the_work(folder: Path) -> None:
    """Nobody writes into the FIFO, so that what waits for it would never end."""
    os.mkfifo(folder / "fifo")
    files = ("--new-key-metadata", "absent/notes.key", "fifo", "notes.ags1")
    check_failure(run(folder, "encrypt", *files, timeout=30), 2, "file")
    assert names(folder) == {"notes.txt", "own.key", "fifo"}


# --- pipes ---------------------------------------------------------------------------------------


def test_a_pipe_through_both_gives_the_same_again(folder: Path) -> None:
    new = ("--new-key-metadata", "notes.key")
    sent = run(folder, "encrypt", *new, "-", "-", input=NOTES, fork=False)
    assert (sent.returncode, sent.stderr) == (
        0,
        f"modcrypt: encrypted length: {NOTES_LENGTH}\n".encode(),
    )
    (folder / "notes.ags1").write_bytes(sent.stdout)
    assert open_by_metadata(folder) == NOTES
    assert check_ok(run(folder, "decrypt", *METADATA, "-", "-", input=sent.stdout)) == NOTES
    assert check_ok(run(folder, "cat", *METADATA, "-", input=sent.stdout)) == NOTES


def test_bytes_of_the_standard_input_are_taken_as_they_are(folder: Path) -> None:
    data = bytes(range(256)) + b"\r\n\x1a\0\xff\xfe"
    ascii_io = {"PYTHONIOENCODING": "ascii"}
    sent = run(folder, "encrypt", *KEY, "-", "-", input=data, env=ascii_io, fork=False)
    assert decrypt_standard_stream(sent.stdout, FOOTER_KEY) == data


def test_of_a_file_that_is_partly_read_the_rest_is_meant(folder: Path) -> None:
    """As in `(head -1; modcrypt ags1 encrypt - …) < file`."""
    with (folder / "notes.txt").open("rb", buffering=0) as file:
        file.seek(1000)
        sent = run(folder, "encrypt", *KEY, "-", "-", stdin=file)
    assert decrypt_standard_stream(sent.stdout, FOOTER_KEY) == NOTES[1000:]


def test_a_redirected_file_is_checked_before_anything_is_given(encrypted_folder: Path) -> None:
    with (encrypted_folder / "notes.ags1").open("rb") as file:
        assert check_ok(run(encrypted_folder, "cat", *METADATA, "-", stdin=file)) == NOTES
    os.truncate(encrypted_folder / "notes.ags1", NOTES_LENGTH - 1)
    with (encrypted_folder / "notes.ags1").open("rb") as file:
        answer = run(encrypted_folder, "cat", *METADATA, "-", stdin=file)
    check_failure(answer, 1, "truncation")
    assert answer.stdout == b""


def test_a_pipe_as_destination_needs_no_force_and_leaves_stdout_for_the_length(
    folder: Path,
) -> None:
    read, write = os.pipe()
    with os.fdopen(read, "rb") as reader:
        (folder / "notes.txt").write_bytes(NOTES[:1000])
        answer = run(folder, "encrypt", *KEY, "notes.txt", f"/dev/fd/{write}", pass_fds=[write])
        os.close(write)
        assert check_ok(answer) == b"1036\n"
        assert decrypt_standard_stream(reader.read(), FOOTER_KEY) == NOTES[:1000]


def test_on_a_terminal_the_length_is_labelled(folder: Path) -> None:
    command = [str(PROGRAM), "ags1", "encrypt", *KEY, "notes.txt", "notes.ags1"]
    answer, shown = run_on_terminal(folder, command, "stdout")
    assert (answer.returncode, answer.stderr) == (0, b"")
    assert shown.strip() == f"encrypted length: {NOTES_LENGTH}"


def test_a_reader_that_goes_away_ends_it_quietly(encrypted_folder: Path) -> None:
    for command in (("cat", *METADATA, "notes.ags1"), ("decrypt", *METADATA, "notes.ags1", "-")):
        for more in ((), ("--json",)):
            with start(encrypted_folder, *command, *more) as process:
                assert process.stdout is not None
                assert process.stderr is not None
                assert process.stdout.read(10) == NOTES[:10]
                process.stdout.close()
                assert process.stderr.read() == b""
            assert process.returncode == 128 + signal.SIGPIPE


def test_a_closed_standard_input_is_2(encrypted_folder: Path) -> None:
    command = f"{PROGRAM} ags1 cat {' '.join(METADATA)} - <&-"
    answer = subprocess.run(
        ["bash", "-c", command], cwd=encrypted_folder, stderr=subprocess.PIPE, check=False
    )
    assert (answer.returncode, b"is closed" in answer.stderr) == (2, True)


# --- the trusted length --------------------------------------------------------------------------


def encrypt_notes(folder: Path) -> bytes:
    check_ok(run_here(folder, "encrypt", *KEY, "notes.txt", "notes.ags1"))
    return (folder / "notes.ags1").read_bytes()


READING = [("cat", "notes.ags1"), ("decrypt", "notes.ags1", "back.txt")]


def test_without_a_length_it_says_what_to_do(folder: Path) -> None:
    encrypt_notes(folder)
    for command in READING:
        message = check_failure(run_here(folder, *command, *KEY), 2, "usage")
        assert "--length N" in message
        assert "--unverified-length" in message
        assert "UNVERIFIED" not in message
        assert run_here(folder, *command, *KEY, "--length", str(NOTES_LENGTH)).returncode == 0


def test_a_stream_that_lost_its_last_block_passes_only_unverified(folder: Path) -> None:
    (folder / "notes.ags1").write_bytes(encrypt_notes(folder)[: 8 + 3 * FRAME])
    check_failure(
        run_here(folder, "cat", *KEY, "--length", str(NOTES_LENGTH), "notes.ags1"), 1, "truncation"
    )
    assert (
        check_ok(run_here(folder, "cat", *KEY, "--unverified-length", "notes.ags1"))
        == NOTES[: 3 * MIB]
    )


def test_the_length_of_key_metadata_is_not_overruled(encrypted_folder: Path) -> None:
    reading = ("cat", *METADATA, "notes.ags1")
    message = check_failure(run_here(encrypted_folder, *reading, "--length", "36"), 2, "usage")
    assert str(NOTES_LENGTH) in message
    os.truncate(encrypted_folder / "notes.ags1", 8 + FRAME)
    check_failure(run_here(encrypted_folder, *reading, "--unverified-length"), 1, "truncation")


# --- what does not authenticate ------------------------------------------------------------------


@pytest.mark.parametrize("block", [0, 2, 3])
def test_a_flipped_byte_names_its_block_and_nothing_of_it_is_given(
    encrypted_folder: Path, block: int
) -> None:
    data = bytearray((encrypted_folder / "notes.ags1").read_bytes())
    data[8 + block * FRAME + 14] ^= 1
    (encrypted_folder / "notes.ags1").write_bytes(data)
    answer = run_here(encrypted_folder, "cat", *METADATA, "notes.ags1")
    assert check_failure(answer, 1, "tag").startswith(f"block {block}: ")
    assert answer.stdout == NOTES[: block * MIB]
    answer = run_here(encrypted_folder, "decrypt", *METADATA, "--json", "notes.ags1", "back.txt")
    error = json.loads(answer.stdout)
    assert (error["error"], error["module"]) == ("tag", {"type": "block", "block": block})
    assert "back.txt" not in names(encrypted_folder)


def test_a_wrong_key_or_prefix_is_1(folder: Path) -> None:
    check_ok(run_here(folder, "encrypt", *KEY, "--aad-prefix", "a", "notes.txt", "notes.ags1"))
    reading = ("cat", "--length", str(NOTES_LENGTH), "notes.ags1", *KEY)
    assert check_ok(run_here(folder, *reading, "--aad-prefix", "hex:61")) == NOTES
    (folder / "prefix").write_bytes(b"a")
    assert check_ok(run_here(folder, *reading, "--aad-prefix", "file:prefix")) == NOTES
    for prefix in ((), ("--aad-prefix", "b")):
        answer = run_here(folder, *reading, *prefix)
        check_failure(answer, 1, "tag")
        assert answer.stdout == b""
    private(folder / "own.key", OTHER_KEY)
    check_failure(run_here(folder, *reading, "--aad-prefix", "a"), 1, "tag")


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "truncation"),
        (b"AGS1", "truncation"),
        (b"AGS1\0\0\x10\0" + bytes(27), "truncation"),
        (b"AGS1\0\0\0\0" + bytes(28), "format"),
        (b"AGS1\xff\xff\xff\x7f" + bytes(28), "limit"),
        (b"GARBAGE, and more of it, so that it is long enough", "format"),
        (b"Obj\x01" + bytes(50), "plaintext"),
    ],
)
def test_what_is_no_stream_is_1(folder: Path, data: bytes, word: str) -> None:
    (folder / "odd").write_bytes(data)
    check_refusal(
        invoke(folder, "decrypt", *KEY, "--unverified-length", "odd", "back.txt"), 1, word
    )
    check_refusal(invoke(folder, "inspect", "odd"), 1, word)
    assert "back.txt" not in names(folder)


# --- inspect and --json --------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, MIB, 2 * MIB + 7])
def test_inspect_needs_no_key_and_its_sizes_add_up(folder: Path, count: int) -> None:
    (folder / "notes.txt").write_bytes(NOTES[:count])
    stream = encrypt_notes(folder)
    (folder / "own.key").unlink()
    expected = {
        "block_length": MIB,
        "blocks": max(1, -(-count // MIB)),
        "last_block_length": count and (count - 1) % MIB + 1,
        "header_bytes": 8,
        "plaintext_bytes": count,
        "overhead_bytes": len(stream) - 8 - count,
        "encrypted_bytes": len(stream),
        "authenticated": False,
    }
    shown = json.loads(check_ok(run_here(folder, "inspect", "--json", "notes.ags1")))
    assert shown == {"schema": "modcrypt.ags1.inspect/1", "file": "notes.ags1", **expected}
    shown = json.loads(check_ok(run(folder, "inspect", "--json", "-", input=stream)))
    assert shown == {"schema": "modcrypt.ags1.inspect/1", "file": "-", **expected}
    *lines, warning = check_ok(run_here(folder, "inspect", "notes.ags1")).decode().splitlines()
    assert [int(line.split()[-1]) for line in lines] == list(expected.values())[:-1]
    assert "not authenticated" in warning


def test_json_results_have_sizes_and_seconds(folder: Path) -> None:
    files = {"source": "notes.txt", "destination": "notes.ags1"}
    sizes = {"source_bytes": len(NOTES), "destination_bytes": NOTES_LENGTH}
    result = json.loads(check_ok(run_here(folder, "encrypt", *KEY, "--json", *files.values())))
    assert result.pop("seconds") > 0
    schema = {"schema": "modcrypt.ags1.file/1"}
    assert result == {**schema, **files, **sizes, "encrypted_bytes": NOTES_LENGTH}

    files = {"source": "notes.ags1", "destination": "back.txt"}
    sizes = {"source_bytes": NOTES_LENGTH, "destination_bytes": len(NOTES)}
    length = ("--length", str(NOTES_LENGTH), "--json")
    result = json.loads(check_ok(run_here(folder, "decrypt", *KEY, *length, *files.values())))
    assert result.pop("seconds") > 0
    assert result == {**schema, **files, **sizes, "plaintext_bytes": len(NOTES)}


def test_with_the_stream_on_stdout_json_is_on_stderr(encrypted_folder: Path) -> None:
    answer = run_here(encrypted_folder, "cat", *METADATA, "--json", "notes.ags1")
    assert answer.stdout == NOTES
    result = json.loads(answer.stderr)
    assert (result["file"], result["plaintext_bytes"]) == ("notes.ags1", len(NOTES))

    answer = run(encrypted_folder, "encrypt", *KEY, "--json", "-", "-", input=NOTES)
    assert decrypt_standard_stream(answer.stdout, FOOTER_KEY) == NOTES
    result = json.loads(answer.stderr)
    assert result["encrypted_bytes"] == NOTES_LENGTH
    assert (result["source_bytes"], result["destination_bytes"]) == (None, None)

    stream = (encrypted_folder / "notes.ags1").read_bytes()[:-1]
    answer = run(encrypted_folder, "decrypt", *METADATA, "--json", "-", "-", input=stream)
    assert NOTES.startswith(answer.stdout)
    line, error = answer.stderr.decode().splitlines()
    assert json.loads(error)["error"] == "truncation"
    assert line.endswith(json.loads(error)["message"])


# --- wrong arguments -----------------------------------------------------------------------------


@each_case(
    ("arguments", "part"),
    [
        (("encrypt", "notes.txt", "out"), "--new-key-metadata"),
        (("encrypt", *KEY, "notes.txt"), "Missing argument 'DESTINATION'"),
        (("encrypt", *KEY, "--key", "env:X", "notes.txt", "out"), "given twice"),
        (("encrypt", *KEY, "--key-length", "16", "notes.txt", "out"), "--new-key-metadata"),
        (("encrypt", *KEY, "--new-key-metadata", "k", "notes.txt", "out"), "omit other options"),
        (
            ("encrypt", "--aad-prefix", "a", "--new-key-metadata", "k", "notes.txt", "out"),
            "omit other options",
        ),
        (("encrypt", "--new-key-metadata", "k", "--key-length", "15", "-", "out"), "16"),
        (("encrypt", "--key", "fd:0", "-", "out"), "standard input"),
        (("cat", "--key", "fd:0", "-", "--unverified-length"), "standard input"),
        (("cat", "notes.txt"), "--key-metadata-file"),
        (("cat", *KEY, *METADATA, "notes.ags1"), "--key-metadata-file contains the key"),
        (("cat", *METADATA, "--aad-prefix", "x", "notes.ags1"), "--aad-prefix is given"),
        (("cat", *KEY, "--length", "1", "--unverified-length", "x"), "exclude each other"),
        (("cat", *KEY, "--length", "-1", "x"), "x>=0"),
        (("cat", *KEY, "--aad-prefix", "hex:abc", "x"), "hex digits"),
        (("cat", *KEY, "--aad-prefix", "hex:", "x"), "empty"),
        (("cat", *KEY, "--aad-prefix", "hex:61", "--aad-prefix", "a", "x"), "given twice"),
        (("decrypt", *METADATA, "--threads", "0", "notes.ags1", "out"), "x>=1"),
        (("inspect", *KEY, "notes.ags1"), "does not use --key"),
        (("seal",), "No such command 'seal'"),
    ],
)
def test_wrong_options_are_2_and_explained_in_one_line(
    encrypted_folder: Path, arguments: tuple[str, ...], part: str
) -> None:
    before = names(encrypted_folder)
    assert part in check_refusal(invoke(encrypted_folder, *arguments), 2, "usage")
    assert names(encrypted_folder) == before


@pytest.mark.parametrize(
    ("source", "destination"),
    [("absent", "out"), (".", "out"), ("notes.txt", "."), ("notes.txt", "no/out")],
)
def test_paths_that_do_not_do_are_2(folder: Path, source: str, destination: str) -> None:
    before = names(folder)
    files = ("--new-key-metadata", "notes.key", source, destination)
    check_failure(run_here(folder, "encrypt", "--force", *files), 2, "file")
    assert names(folder) == before


# --- crashes -------------------------------------------------------------------------------------

# Ends the program, as kill -9 does, before the nth change of a name in the file system.
KILLED = """
import os, signal, sys
import modcrypt.io.destinations, modcrypt.cli.ags1.ags1_group
left = int(sys.argv.pop(1))
def add_countdown(change):
    def call(*arguments, **more):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return change(*arguments, **more)
    return call
for name in ("link", "replace", "unlink", "rename"):
    setattr(os, name, add_countdown(getattr(os, name)))
from modcrypt.cli import run
run()
"""


def kill_before(folder: Path, change: int, *arguments: str) -> int:
    command = [sys.executable, "-c", KILLED, str(change), "ags1", *arguments]
    process = as_process(command, environment())
    return subprocess.run(**process, cwd=folder, capture_output=True, check=False).returncode


def test_kill_9_never_leaves_a_new_stream_without_its_key(folder: Path) -> None:
    files = ("--new-key-metadata", "notes.key", "notes.txt", "notes.ags1")
    published = 0
    for change in range(20):
        for name in ("notes.key", "notes.ags1"):
            (folder / name).unlink(missing_ok=True)
        code = kill_before(folder, change, "encrypt", *files)
        if "notes.ags1" in names(folder):
            published += 1
            assert open_by_metadata(folder) == NOTES
        elif "notes.key" in names(folder):  # complete, or not there
            assert split_key_metadata((folder / "notes.key").read_bytes())[2] == NOTES_LENGTH
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert change >= 3
    assert published >= 2


def test_kill_9_never_loses_the_key_of_what_is_replaced(folder: Path) -> None:
    """The old stream and its key are there, or the new ones; perhaps as notes.key.new."""
    files = ("--new-key-metadata", "notes.key", "notes.txt", "notes.ags1")
    seen = set()
    for change in range(20):
        (folder / "notes.key.new").unlink(missing_ok=True)
        (folder / "notes.txt").write_bytes(b"old")
        check_ok(run_here(folder, "encrypt", "--force", *files))
        (folder / "notes.txt").write_bytes(b"new")
        code = kill_before(folder, change, "encrypt", "--force", *files)
        stream = (folder / "notes.ags1").read_bytes()
        beside = "notes.key.new" in names(folder)
        keys = [
            split_key_metadata((folder / name).read_bytes())
            for name in ("notes.key", *(["notes.key.new"] if beside else []))
        ]
        texts = set()
        for key, prefix, _ in keys:
            with contextlib.suppress(InvalidTag):  # it is the other stream's
                texts.add(decrypt_standard_stream(stream, key, prefix))
        assert texts in ({b"old"}, {b"new"})
        seen.add((texts.pop(), beside))
        if code == 0:
            break
    assert seen >= {(b"old", False), (b"old", True), (b"new", True), (b"new", False)}


def test_kill_9_in_the_middle_leaves_neither_stream_nor_key(folder: Path) -> None:
    before = names(folder)
    files = ("--new-key-metadata", "notes.key", "-", "notes.ags1")
    with start(folder, "encrypt", *files) as process:
        feed(folder, process)
        process.kill()
    assert names(folder) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_leaves_nothing(folder: Path, number: signal.Signals) -> None:
    before = names(folder)
    files = ("--new-key-metadata", "notes.key", "-", "notes.ags1")
    with start(folder, "encrypt", *files) as process:
        feed(folder, process)
        interrupt(process, lambda: process.send_signal(number))
        assert process.stderr is not None
        message = process.stderr.read().decode()
    assert process.returncode == 128 + number
    assert message == f"modcrypt: error: interrupted: ended by {number.name}\n"
    assert names(folder) == before


def feed(folder: Path, process: subprocess.Popen[bytes]) -> None:
    """Write into the program until some of it has arrived at the destination."""
    assert process.stdin is not None
    for _ in range(100):
        process.stdin.write(NOTES[:MIB])
        if any(unfinished_files(folder, process.pid)):
            return
    pytest.fail("nothing arrived")


@pytest.mark.parametrize("size", [100, 5 * MIB])
@pytest.mark.parametrize("force", [False, True])
def test_a_full_disk_is_74_and_leaves_nothing(folder: Path, size: int, force: bool) -> None:
    """A file size limit stands for the disk: it fails in write(2) too."""
    files = ("--new-key-metadata", "notes.key", "notes.txt", "notes.ags1")
    if force:
        check_ok(run(folder, "encrypt", *files))
        key = (folder / "notes.key").read_bytes()
    (folder / "notes.txt").write_bytes(bytes(size))
    limit = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (99, 99))\n"
        "from modcrypt.cli import run; run()"
    )
    before = names(folder)
    options = (*files, "--force") if force else files
    process = as_process([sys.executable, "-c", limit, "ags1", "encrypt", *options], environment())
    answer = subprocess.run(**process, cwd=folder, capture_output=True, check=False)
    check_failure(answer, 74, "file")
    assert names(folder) == before
    if force:
        assert (folder / "notes.key").read_bytes() == key
        assert open_by_metadata(folder) == NOTES


def test_a_full_device_is_74(encrypted_folder: Path) -> None:
    with open("/dev/full", "wb") as full:
        check_failure(
            run(encrypted_folder, "cat", *METADATA, "notes.ags1", stdout=full), 74, "file"
        )
    check_failure(
        run(encrypted_folder, "decrypt", *METADATA, "notes.ags1", "/dev/full"), 74, "file"
    )


@pytest.mark.parametrize("size", [100, 5 * MIB])
def test_key_metadata_is_kept_where_the_stream_may_have_been_read(folder: Path, size: int) -> None:
    """Of a pipe whose reader went, nobody knows what was read; at the first block, not all."""
    (folder / "notes.txt").write_bytes(bytes(size))
    read, write = os.pipe()
    os.close(read)
    files = ("--new-key-metadata", "notes.key", "notes.txt", "-")
    answer = run(folder, "encrypt", *files, stdout=write)
    os.close(write)
    assert answer.returncode == 128 + signal.SIGPIPE
    kept = b"modcrypt: the key metadata is in "
    assert (kept in answer.stderr, "notes.key" in names(folder)) == (size == 100,) * 2
    assert "notes.ags1" not in names(folder)


# --- help ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [None, "encrypt", "decrypt", "cat", "inspect"])
def test_the_examples_of_the_help_texts_run(
    folder: Path, command: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Typed as they stand into a shell, in a folder with the files they name."""
    (folder / "notes.txt").write_bytes(b"first\nsecond\n")
    if command in ("decrypt", "cat", "inspect"):
        files = ("--new-key-metadata", "notes.key", "notes.txt", "notes.ags1")
        check_ok(run_here(folder, "encrypt", *files))
    passphrase = "examples are not asked for one"
    modcrypt.Keyring.create(folder / "lake.keyring", passphrase=passphrase).create_key("footer")
    kms = ("--kms", "file:lake.keyring#footer")
    path = {"PATH": f"{PROGRAM.parent}:{os.environ['PATH']}", "MODCRYPT_PASSPHRASE": passphrase}
    if command == "decrypt":
        encrypted_folder = (
            "--new-key-metadata",
            "notes.key.enc",
            *kms,
            "notes.txt",
            "notes.kms.ags1",
        )
        check_ok(run(folder, "encrypt", *encrypted_folder, env=path))
    named = [] if command is None else [command]
    text = check_ok(run_here(folder, *named, "--help-all")).decode()
    joined = text.replace("\\\n", " ")
    examples = joined.partition("Example")[2].splitlines()
    lines = [line for line in examples if line.startswith("  ") and "modcrypt " in line]
    assert lines
    monkeypatch.setenv("MODCRYPT_PASSPHRASE", passphrase)
    for line in lines:
        if "|" not in line:
            answer = run_here(folder, *shlex.split(line)[2:])
        else:
            answer = subprocess.run(
                ["bash", "-c", f"set -o pipefail; {line}"],
                cwd=folder, env=environment(**path), capture_output=True, check=False,
            )  # fmt: skip
        assert (answer.returncode, answer.stderr) == (0, b""), line
    if "notes.again.txt" in names(folder):
        assert (folder / "notes.again.txt").read_bytes() == b"first\nsecond\n"

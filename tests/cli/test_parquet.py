"""The command line as users meet it: the installed program, or in this process what it runs."""

from __future__ import annotations

import base64
import errno
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

import modcrypt
from modcrypt import errors
from modcrypt.cli.options.parquet_options import key_references
from modcrypt.cli.output import failures
from modcrypt.cli.shared import end_if_unread
from modcrypt.kms.key_references import read_key
from modcrypt.parquet.format.idl import ThriftStruct
from tests.support.cases import each_case, one_in
from tests.support.cli.forked import as_process
from tests.support.cli.program import (
    KEY,
    NAME_KEY,
    PROGRAM,
    SLOW,
    check_failure,
    environment,
    examples_of,
    invoke,
    private,
    run,
    run_on_terminal,
    run_program,
)
from tests.support.folder_contents import names
from tests.support.forging import edit_plain, flip, plain_file
from tests.support.interrupts import interrupt
from tests.support.keys import COLUMN_KEY, FOOTER_KEY, OTHER_KEY
from tests.support.shared_vectors import shared_vectors
from tests.support.tables import read_with_pyarrow, small_table, write_plain
from tests.support.unfinished_files import unfinished_files

PLAIN_TO_OUT = ("plain.parquet", "out.parquet")
PLAIN_TO_SEALED = ("plain.parquet", "sealed.parquet")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with plain.parquet, footer.key (raw) and name.key (hex)."""
    write_plain(tmp_path / "plain.parquet")
    private(tmp_path / "footer.key", FOOTER_KEY)
    private(tmp_path / "name.key", COLUMN_KEY.hex().encode() + b"\n")
    return tmp_path


@pytest.fixture
def encrypted_folder(folder: Path) -> Path:
    """The same with sealed.parquet, whose column `name` has its own key."""
    assert (
        run(folder, "encrypt", *KEY, *NAME_KEY, "plain.parquet", "sealed.parquet").returncode == 0
    )
    return folder


# --- the main job, judged by others --------------------------------------------------------------


@pytest.mark.parametrize("size", [16, 24, 32])
def test_pyarrow_reads_what_the_program_encrypts(folder: Path, size: int) -> None:
    key = bytes(range(size))
    private(folder / "footer.key", key)
    assert run_program(folder, "encrypt", *KEY, *PLAIN_TO_SEALED, fork=size != 16).returncode == 0
    assert read_with_pyarrow(folder / "sealed.parquet", key).equals(small_table())


def test_the_program_decrypts_what_pyarrow_writes(folder: Path) -> None:
    properties = pe.create_encryption_properties(footer_key=FOOTER_KEY, aad_prefix=b"part-0")
    pq.write_table(small_table(), folder / "sealed.parquet", encryption_properties=properties)
    options = ("--aad-prefix", "part-0", "sealed.parquet", "out.parquet")
    answer = run_program(folder, "decrypt", *KEY, *options, fork=False)
    done = "decrypted sealed.parquet to out.parquet; 3.8 KiB\n"
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, done, "")
    assert pq.read_table(folder / "out.parquet").equals(small_table())


@pytest.mark.parametrize(
    ("file", "options"),
    [
        ("encrypt_columns_and_footer", ()),
        ("encrypt_columns_plaintext_footer", ()),
        ("encrypt_columns_and_footer_aad", ("--aad-prefix", "tester")),
        ("encrypt_columns_and_footer_disable_aad_storage", ("--aad-prefix", "file:prefix")),
        ("encrypt_columns_and_footer_disable_aad_storage", ("--aad-prefix", "hex:746573746572")),
        ("encrypt_columns_and_footer_ctr", ("--accept-algorithm", "AES_GCM_CTR_V1")),
    ],
)
def test_published_files_decrypt(folder: Path, file: str, options: tuple[str, ...]) -> None:
    published = shared_vectors() / "parquet-testing"
    expected = read_with_pyarrow(published / "uniform_encryption.parquet.encrypted", FOOTER_KEY)
    (folder / "prefix").write_bytes(b"tester")
    keys = {"DOUBLE_KEY": COLUMN_KEY.hex(), "FLOAT_KEY": base64.b64encode(OTHER_KEY).decode()}
    answer = run(
        folder,
        *("decrypt", *KEY, *options),
        *("--column-key", "double_field=env:DOUBLE_KEY"),
        *("--column-key", "float_field=env:FLOAT_KEY"),
        *(str(published / f"{file}.parquet.encrypted"), "out.parquet"),
        env=keys,
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    assert pq.read_table(folder / "out.parquet").equals(expected)


def test_every_encrypt_option_reaches_the_file(folder: Path) -> None:
    answer = run(
        folder,
        *("encrypt", *KEY, *NAME_KEY, "--plaintext-footer", "--plaintext-column", "flag"),
        *("--algorithm", "AES_GCM_CTR_V1", "--aad-prefix", "präfix"),
        *("--footer-key-metadata", "kf", "--column-key-metadata", "name=k=n"),
        *("--threads", "2", "plain.parquet", "sealed.parquet"),
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    data = (folder / "sealed.parquet").read_bytes()
    assert data[:4] == data[-4:] == b"PAR1"
    for stored in ("präfix".encode(), b"kf", b"k=n"):
        assert stored in data[-4000:]
    flags = pq.read_table(folder / "sealed.parquet", columns=["flag"])  # by legacy readers too
    assert flags.equals(small_table().select(["flag"]))
    back = ("decrypt", *KEY, *NAME_KEY, "sealed.parquet", "out.parquet")
    check_failure(run(folder, *back), 5, "unsupported")
    assert run(folder, *back, "--accept-algorithm", "AES_GCM_CTR_V1").returncode == 0
    assert (folder / "out.parquet").read_bytes() == (folder / "plain.parquet").read_bytes()


def test_an_aad_prefix_that_is_not_stored_must_be_given(folder: Path) -> None:
    prefix = ("--aad-prefix", "orders/part-0")
    run(
        folder,
        *("encrypt", *KEY, *prefix, "--no-store-aad-prefix"),
        *("plain.parquet", "sealed.parquet"),
    )
    assert b"orders/part-0" not in (folder / "sealed.parquet").read_bytes()
    theirs = read_with_pyarrow(folder / "sealed.parquet", FOOTER_KEY, b"orders/part-0")
    assert theirs.equals(small_table())
    message = check_failure(run(folder, "decrypt", *KEY, "sealed.parquet", "out"), 1, "aad-prefix")
    assert "--aad-prefix" in message
    other = ("--aad-prefix", "orders/part-1")
    check_failure(run(folder, "decrypt", *KEY, *other, "sealed.parquet", "out"), 1, "tag")
    assert run(folder, "decrypt", *KEY, *prefix, "sealed.parquet", "out").returncode == 0


def test_v2_levels_in_plaintext_stay_readable(folder: Path) -> None:
    table = pa.table({"tags": pa.array([["a"], ["b", "c"]] * 400)})
    write_plain(folder / "plain.parquet", table, data_page_version="2.0", compression="none")
    sizes = {}
    for layout in ("encrypted", "plaintext"):
        option = ("--v2-levels", layout, "--force")
        run(folder, "encrypt", *KEY, *option, "plain.parquet", "sealed.parquet")
        sizes[layout] = (folder / "sealed.parquet").read_bytes()
        assert run(folder, "decrypt", *KEY, "--force", "sealed.parquet", "out").returncode == 0
        assert (folder / "out").read_bytes() == (folder / "plain.parquet").read_bytes()
    # 0 0 1 0 0 1 ... packed into bits: the repetition levels of the lists above.
    levels = bytes.fromhex("244992" * 10)
    assert levels in (folder / "plain.parquet").read_bytes()
    assert levels in sizes["plaintext"]
    assert levels not in sizes["encrypted"]


def test_columns_without_a_key_are_filled_with_nulls_on_request(encrypted_folder: Path) -> None:
    null = ("--on-missing-key", "null", "--json")
    done = run(encrypted_folder, "decrypt", *KEY, *null, "sealed.parquet", "out.parquet")
    assert json.loads(done.stdout)["nulls"] == ["name"]
    assert "columns filled with nulls because their key is missing: name" in done.stderr
    read = pq.read_table(encrypted_folder / "out.parquet")
    assert read["name"].null_count == read.num_rows
    assert read.drop_columns(["name"]).equals(small_table().drop_columns(["name"]))


def test_a_signed_footer_can_be_left_unchecked(folder: Path) -> None:
    options = ("--plaintext-footer", "--plaintext-column", "id")
    run(folder, "encrypt", *KEY, *options, "plain.parquet", "sealed.parquet")
    files = ("sealed.parquet", "out.parquet")
    assert "--no-check-footer" in check_failure(run(folder, "decrypt", *files), 3, "no-key")
    unchecked = ("--no-check-footer", "--on-missing-key", "drop")
    assert run(folder, "decrypt", *unchecked, *files).returncode == 0
    assert pq.read_table(folder / "out.parquet").equals(small_table().select(["id"]))


# --- exit codes ----------------------------------------------------------------------------------


def test_a_flipped_byte_is_1_and_names_the_module(encrypted_folder: Path) -> None:
    options = ("--json", *KEY, *NAME_KEY, "sealed.parquet")
    regions = json.loads(run(encrypted_folder, "inspect", "--modules", *options).stdout)["regions"]
    target = next(m for m in regions if m["kind"] == "data page" and m["path"] == "name")
    flip(encrypted_folder / "sealed.parquet", target["start"] + 20)
    before = names(encrypted_folder)
    answer = run(encrypted_folder, "decrypt", *KEY, *NAME_KEY, "sealed.parquet", "out.parquet")
    assert check_failure(answer, 1, "tag").startswith(
        "data page, row group 0, column name, page 0: "
    )
    answer = run(encrypted_folder, "decrypt", *options, "out.parquet")
    error = json.loads(answer.stdout)
    address = {k: target[k] for k in ("row_group", "column", "path", "page")}
    address["type"] = target["kind"]
    assert (answer.returncode, error["error"], error["module"]) == (1, "tag", address)
    assert names(encrypted_folder) == before


def test_urls_do_for_files(folder: Path) -> None:
    pytest.importorskip("fsspec")
    urls = [f"file://{folder}/{name}" for name in PLAIN_TO_OUT]
    answer = run(folder, "encrypt", *KEY, "--json", *urls)
    assert (answer.returncode, answer.stderr) == (0, "")
    result = json.loads(answer.stdout)
    assert [result[k] for k in ("source", "destination", "result")] == [*urls, "encrypted"]
    assert read_with_pyarrow(folder / "out.parquet", FOOTER_KEY).equals(small_table())
    assert json.loads(run(folder, "encrypt", *KEY, "--json", *urls).stdout)["result"] == "current"
    other = run(folder, "encrypt", "--key", "file:name.key", *urls)
    assert "--force" in check_failure(other, 2, "different")


@pytest.mark.parametrize(
    ("source", "destination", "word"),
    [
        ("absent.parquet", "out", "file: absent.parquet: No such file"),
        ("plain.parquet", ".", "usage: "),
        ("plain.parquet", "no/out", "file: no/out: its folder does not exist; create it"),
    ],
)
def test_paths_that_do_not_do_are_2(folder: Path, source: str, destination: str, word: str) -> None:
    before = names(folder)
    word, _, part = word.partition(": ")
    answer = run(folder, "encrypt", *KEY, "--force", source, destination)
    assert part in check_failure(answer, 2, word)
    assert names(folder) == before


def test_an_unknown_column_is_2(folder: Path) -> None:
    answer = run(folder, "encrypt", *KEY, "--plaintext-column", "nmae", "plain.parquet", "out")
    message = check_failure(answer, 2, "usage")
    assert "nmae" in message
    assert "address.zip" in message


def test_a_missing_key_is_3_and_says_how_to_give_it(encrypted_folder: Path) -> None:
    answer = run(encrypted_folder, "decrypt", *KEY, "sealed.parquet", "out.parquet")
    message = check_failure(answer, 3, "no-key")
    assert "column name" in message
    assert "--column-key" in message
    assert "--on-missing-key drop" in message
    message = check_failure(
        run(encrypted_folder, "decrypt", "sealed.parquet", "out.parquet"), 3, "no-key"
    )
    assert "--key" in message


EXPECTED_CODES = {
    errors.ChecksumError: 1,
    errors.FooterSignatureError: 1,
    errors.WriterSignatureError: 1,
    errors.AadPrefixError: 1,
    errors.TruncationError: 1,
    errors.PlaintextError: 1,
    errors.IntegrityError: 1,
    errors.TagMismatchError: 1,
    errors.FormatError: 1,
    errors.LimitError: 1,
    errors.KeyRetrievalError: 3,
    errors.KeyNotFoundError: 3,
    errors.KeyAccessDeniedError: 3,
    errors.KeyDisabledError: 3,
    errors.KeyMaterialError: 3,
    errors.KeyExhaustedError: 3,
    errors.KmsUnavailableError: 4,
    errors.CommitConflictError: 4,
    errors.UnsupportedFormatError: 5,
}


def test_every_error_class_has_its_exit_code() -> None:
    kinds = [getattr(errors, name) for name in errors.__all__ if name != "ModcryptError"]
    assert set(kinds) == EXPECTED_CODES.keys()
    for kind in kinds:
        failure = failures.explain(kind(None), [])
        assert (failure.code, failure.word) == (EXPECTED_CODES[kind], kind.word)


def test_advice_that_is_left_out_leaves_brackets_whole() -> None:
    message = "differs (no key; pass --on-missing-key drop (a b) or c); pass --force to replace it"
    shown = failures.show("file", message, [], {"--force"})
    assert shown == "differs (no key); pass --force to replace it"


def test_a_bug_is_70_and_shows_no_values(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **more: object) -> None:
        raise RuntimeError("plaintext of a page")

    monkeypatch.setattr("modcrypt.parquet.convert.encryptor.encrypt_parquet", fail)
    result = invoke(folder, "encrypt", *KEY, "plain.parquet", "out.parquet")
    assert result.exit_code == 70
    assert "internal: unexpected RuntimeError in tests.cli.test_parquet, line " in result.stderr
    assert "plaintext" not in result.output


# --- --json --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (("encrypt", *KEY, "plain.parquet"), 2, "usage"),
        (("encrypt", *KEY, "plain.parquet", "name.key"), 2, "file"),
        (("decrypt", "plain.parquet", "out"), 1, "plaintext"),
        (("decrypt", "--key", "env:NO_SUCH_KEY", "plain.parquet", "out"), 3, "no-key"),
    ],
)
def test_json_failures_are_json_too(
    folder: Path, arguments: tuple[str, ...], code: int, word: str
) -> None:
    answer = run(folder, *arguments, "--json")
    error = json.loads(answer.stdout)
    assert (answer.returncode, error["error"], error["module"]) == (code, word, None)
    assert answer.stderr == f"modcrypt: error: {word}: {error['message']}\n"


# --- keys ----------------------------------------------------------------------------------------

LONG_KEY = bytes(range(200, 232))
TEXT_FORMS = [
    FOOTER_KEY.hex(),
    FOOTER_KEY.hex().upper() + "\n",
    base64.b64encode(FOOTER_KEY).decode(),
    base64.b64encode(FOOTER_KEY).decode().rstrip("=") + "\r\n",
]


@each_case("text", TEXT_FORMS)
@each_case("way", ["file", "env", "fd"])
def test_a_footer_key_comes_as_text(folder: Path, text: str, way: str) -> None:
    private(folder / "text.key", text.encode())
    with (folder / "text.key").open("rb") as file:
        option = {
            "file": ("--key", "file:text.key"),
            "env": ("--key", "env:TEXT_KEY"),
            "fd": ("--key", f"fd:{file.fileno()}"),
        }[way]
        arguments = ("encrypt", *option, "plain.parquet", "sealed.parquet")
        if way == "fd":
            answer = run_program(folder, *arguments, pass_fds=[file.fileno()])
        else:
            answer = run(folder, *arguments, env={"TEXT_KEY": text} if way == "env" else {})
    assert (answer.returncode, answer.stderr) == (0, "")
    assert read_with_pyarrow(folder / "sealed.parquet", FOOTER_KEY).equals(small_table())


def test_a_raw_key_comes_from_a_pipe(folder: Path) -> None:
    """As in `kms-tool | modcrypt encrypt --key fd:0 ...`."""
    answer = subprocess.run(
        [PROGRAM, "encrypt", "--key", "fd:0", "plain.parquet", "sealed.parquet"],
        cwd=folder, input=LONG_KEY, capture_output=True, check=False,
    )  # fmt: skip
    assert (answer.returncode, answer.stderr) == (0, b"")
    assert read_with_pyarrow(folder / "sealed.parquet", LONG_KEY).equals(small_table())


def test_column_names_may_hold_equals_signs_and_colons(tmp_path: Path) -> None:
    values = {"key": None}
    path = private(tmp_path / "x=y", LONG_KEY)
    found = key_references({**values, "column_key_refs": (f"a=b:c=file:{path}",)})
    assert modcrypt.Settings(**found).keys == (None, {"a=b:c": modcrypt.Key(LONG_KEY)})


def test_a_tilde_in_a_column_key_is_the_home_folder(folder: Path) -> None:
    options = (*KEY, "--column-key", "name=file:~/name.key", "plain.parquet", "out.parquet")
    assert run(folder, "encrypt", *options, env={"HOME": str(folder)}).returncode == 0


@pytest.mark.parametrize("size", [0, 15, 17, 33, 5000])
def test_a_file_without_a_key_is_3(folder: Path, size: int) -> None:
    private(folder / "footer.key", b"\xff" * size)
    answer = run(folder, "encrypt", *KEY, "plain.parquet", "out.parquet")
    assert "footer.key" in check_failure(answer, 3, "key-material")


def test_what_may_be_a_raw_key_or_base64_is_not_guessed(folder: Path) -> None:
    text = base64.b64encode(bytes(range(24)))
    private(folder / "footer.key", text)
    answer = run(folder, "encrypt", *KEY, "plain.parquet", "out.parquet")
    assert "newline" in check_failure(answer, 3, "key-material")
    private(folder / "footer.key", text + b"\n")
    assert run(folder, "encrypt", *KEY, "plain.parquet", "out.parquet").returncode == 0
    assert read_with_pyarrow(folder / "out.parquet", bytes(range(24))).equals(small_table())


def test_a_broken_pipe_of_a_connection_is_no_lost_reader(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **more: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("modcrypt.parquet.convert.encryptor.encrypt_parquet", fail)
    read, write = os.pipe()
    with open(read, "rb"), open(write, "w") as stdout:
        end_if_unread(stdout)
    result = invoke(folder, "encrypt", *KEY, "plain.parquet", "out.parquet")
    assert (result.exit_code, result.stdout) == (74, "")
    assert "the other end of a connection or pipe has closed it" in result.stderr


def test_a_denied_key_file_is_3_for_root_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(modcrypt.errors.KeyAccessDeniedError):
        read_key(f"file:{folder / 'footer.key'}", "footer key")


@pytest.mark.parametrize(("mode", "code"), [(0o600, 0), (0o400, 0), (0o640, 2), (0o604, 2)])
@each_case("name", ["footer.key", "name.key"])
def test_a_key_file_that_others_can_read_is_refused(
    folder: Path, name: str, mode: int, code: int
) -> None:
    (folder / name).chmod(mode)
    answer = run(folder, "encrypt", *KEY, *NAME_KEY, "plain.parquet", "sealed.parquet")
    assert answer.returncode == code
    refusal = f"other users can read the key file {name} (mode {mode:04o})"
    assert (refusal in answer.stderr) == (f"chmod 600 {name}" in answer.stderr) == (code == 2)
    assert (folder / "sealed.parquet").exists() == (code == 0)


def test_a_key_file_of_root_may_be_readable_as_containers_mount_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "footer.key").chmod(0o440)
    monkeypatch.setattr("modcrypt.cli.references._user", lambda: 4711)
    answer = run(folder, "encrypt", *KEY, "plain.parquet", "sealed.parquet")
    assert answer.returncode == 0


def test_one_descriptor_gives_one_key(folder: Path) -> None:
    with (folder / "footer.key").open("rb") as file:
        fd = str(file.fileno())
        answer = run_program(
            folder,
            *("encrypt", "--key", f"fd:{fd}", "--column-key", f"name=fd:{fd}"),
            *("plain.parquet", "out.parquet"),
            pass_fds=[file.fileno()],
        )
    assert "use a separate descriptor" in check_failure(answer, 3, "no-key")


def test_a_terminal_is_not_read_for_keys(folder: Path) -> None:
    controller, terminal = pty.openpty()
    try:
        answer = run_program(
            folder, *("encrypt", "--key", "fd:0", "plain.parquet", "out.parquet"), stdin=terminal
        )
    finally:
        os.close(controller)
        os.close(terminal)
    assert "terminal" in check_failure(answer, 2, "usage")


def spellings(key: bytes) -> Iterator[str]:
    yield key.decode("latin-1")
    yield key.hex()
    yield base64.b64encode(key).decode()
    yield base64.b64encode(key).decode().rstrip("=")
    yield base64.urlsafe_b64encode(key).decode()


SHOWN_KEYS = [key for k in (FOOTER_KEY, bytes(range(65, 89)), LONG_KEY) for key in spellings(k)]


@each_case("text", [k for k in SHOWN_KEYS if k.isprintable()], quick=one_in(3))
@each_case(
    "arguments",
    [
        ("encrypt", "--key", "file:{}", "plain.parquet", "out"),
        ("encrypt", "--key", "env:{}", "plain.parquet", "out"),
        ("encrypt", "--key", "fd:{}", "plain.parquet", "out"),
        ("encrypt", "--key", "{}", "plain.parquet", "out"),
        ("encrypt", "--key={}", "plain.parquet", "out"),
        ("encrypt", "--algorithm", "{}", "plain.parquet", "out"),
        ("encrypt", *KEY, "plain.parquet", "out", "{}"),
        ("encrypt", *KEY, "--column-key", "name={}", "plain.parquet", "out"),
        ("encrypt", *KEY, "--column-key={}", "plain.parquet", "out"),
        ("encrypt", *KEY, "--column-key", "{}=name", "plain.parquet", "out"),
        ("encrypt", *KEY, "--column-key", "name=file:{}", "plain.parquet", "out"),
        ("encrypt", *KEY, "--column-key", "name=env:{}", "plain.parquet", "out"),
        ("encrypt", *KEY, "--column-key", "name=fd:{}", "plain.parquet", "out"),
        ("encrypt", *KEY, "--column-key", "{}=file:name.key", "plain.parquet", "out"),
        ("encrypt", *KEY, "--column-key-metadata", "{}", "plain.parquet", "out"),
        ("encrypt", *KEY, "--plaintext-column", "{}", "plain.parquet", "out"),
        ("{}",),
    ],
)
def test_a_key_among_the_arguments_is_not_repeated(
    folder: Path, arguments: tuple[str, ...], text: str
) -> None:
    for more in ((), ("--json",)):
        result = invoke(folder, *(a.format(text) for a in arguments), *more)
        assert result.exit_code in (2, 3)
        assert text not in result.output


# --- options, in process -------------------------------------------------------------------------


@each_case(
    ("arguments", "part"),
    [
        (("encrypt",), "Missing argument 'SOURCE..."),
        (("encrypt", *KEY, "plain.parquet"), "Missing argument 'DESTINATION'"),
        (("encrypt", "plain.parquet", "out"), "--key, or --kms"),
        (("encrypt", *KEY, "--key", "env:X", "plain.parquet", "out"), "given twice"),
        (("decrypt", *KEY, "--key", "fd:0", "plain.parquet", "out"), "given twice"),
        (("encrypt", "--key", "footer.key", "plain.parquet", "out"), "file:PATH, env:NAME or fd:N"),
        (("encrypt", "--key", "fil:footer.key", "plain.parquet", "out"), "did you mean file:?"),
        (("encrypt", "--key", "https:x", "plain.parquet", "out"), "file:PATH, env:NAME or fd:N"),
        (("encrypt", *KEY, "-", "out"), "pipes"),
        (("encrypt", *KEY, "plain.parquet", "-"), "pipes"),
        (("inspect", *KEY, "-"), "pipes"),
        (("encrypt", *KEY, "--algorithm", "AES", "plain.parquet", "out"), "AES_GCM_CTR_V1"),
        (("decrypt", *KEY, "--accept-algorithm", "AES", "plain.parquet", "out"), "AES_GCM_CTR_V1"),
        (("decrypt", *KEY, "--on-missing-key", "x", "plain.parquet", "out"), "drop"),
        (("encrypt", *KEY, "--threads", "0", "plain.parquet", "out"), "x>=1"),
        (("encrypt", *KEY, "--v2-levels", "x", "plain.parquet", "out"), "plaintext"),
        (("encrypt", *KEY, "--column-key", "name", "plain.parquet", "out"), "NAME=file:PATH"),
        (("encrypt", *KEY, *NAME_KEY, *NAME_KEY, "plain.parquet", "out"), "twice"),
        (("encrypt", *KEY, "--column-key", "name=fd:x", "plain.parquet", "out"), "number"),
        (
            ("encrypt", *KEY, *NAME_KEY, "--plaintext-column", "name", "plain.parquet", "out"),
            "declared plaintext",
        ),
        (("encrypt", *KEY, "--column-key-metadata", "name=k", "plain.parquet", "out"), "NAME=TEXT"),
        (("encrypt", *KEY, "--aad-prefix", "", "plain.parquet", "out"), "empty"),
        (("encrypt", *KEY, "--no-store-aad-prefix", "plain.parquet", "out"), "--aad-prefix"),
        (
            ("decrypt", *KEY, "--aad-prefix", "x", "--aad-prefix", "file:y", "plain.parquet", "o"),
            "given twice",
        ),
        (("decrypt", *KEY, "--aad-prefix", "file:absent", "plain.parquet", "out"), "absent"),
        (("seal",), "No such command 'seal'"),
    ],
)
def test_wrong_options_are_2_and_explained_in_one_line(
    folder: Path, arguments: tuple[str, ...], part: str
) -> None:
    result = invoke(folder, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("modcrypt: error: ")
    assert result.stderr.count("\n") == 1
    assert part in result.stderr
    assert names(folder) == {"plain.parquet", "footer.key", "name.key"}


def test_an_all_zero_key_is_refused(folder: Path) -> None:
    private(folder / "footer.key", bytes(16))
    result = invoke(folder, "encrypt", *KEY, "plain.parquet", "out")
    assert (result.exit_code, "zeros" in result.stderr) == (2, True)


def test_the_longest_column_name_gets_the_key_metadata(folder: Path) -> None:
    table = pa.table({"a": [1], "a=b": [2]})
    write_plain(folder / "plain.parquet", table)
    keys = ("--column-key", "a=file:name.key", "--column-key", "a=b=file:footer.key")
    metadata = ("--column-key-metadata", "a=b=first", "--column-key-metadata", "a=second")
    options = (*KEY, *keys, *metadata, "plain.parquet", "sealed.parquet")
    assert invoke(folder, "encrypt", *options).exit_code == 0
    asked = {}

    def retriever(question: bytes) -> bytes:
        asked[question] = True
        return {b"first": FOOTER_KEY, b"second": COLUMN_KEY}[question]

    properties = modcrypt.FileDecryptionProperties(footer_key=FOOTER_KEY, key_retriever=retriever)
    modcrypt.decrypt_parquet(folder / "sealed.parquet", folder / "out.parquet", properties)
    assert asked.keys() == {b"first", b"second"}
    assert pq.read_table(folder / "out.parquet").equals(table)


def test_hostile_column_names_cannot_forge_lines_or_colours(folder: Path) -> None:
    hostile = "a\nmodcrypt: error: none\x1b[2J"
    write_plain(folder / "plain.parquet", pa.table({hostile: [1, 2]}))
    options = (*KEY, "--column-key", f"{hostile}=file:name.key", "plain.parquet", "sealed.parquet")
    assert run(folder, "encrypt", *options).returncode == 0
    message = check_failure(run(folder, "decrypt", *KEY, "sealed.parquet", "out"), 3, "no-key")
    assert r"a\nmodcrypt: error: none\x1b[2J" in message
    column = ("--column-key", f"{hostile}=file:name.key")
    table = run(folder, "inspect", *KEY, *column, "--modules", "sealed.parquet").stdout
    assert "\x1b" not in table
    assert r"a\nmodcrypt: error: none\x1b[2J" in table
    assert all(line.split()[:1] != ["modcrypt:"] for line in table.splitlines())


# --- help ----------------------------------------------------------------------------------------


def test_the_version_is_the_package_s(tmp_path: Path) -> None:
    expected = f"modcrypt {modcrypt.__version__}\n"
    assert run_program(tmp_path, "--version").stdout == expected


@pytest.mark.parametrize("command", [None, "encrypt", "decrypt", "inspect", "verify"])
def test_the_examples_of_the_help_texts_run(folder: Path, command: str | None) -> None:
    """Typed as they stand into a shell, in a folder with the files they name."""
    orders = pa.table({"price": [1.5, 2.5], "shipped": ["a", "b"], "id": [1, 2]})
    write_plain(folder / "orders.parquet", orders)
    private(folder / "price.key", COLUMN_KEY)
    env = {"MODCRYPT_PASSPHRASE": "examples are not asked for one"}
    if command is not None:
        ring = modcrypt.Keyring.create(
            folder / "lake.keyring", passphrase=env["MODCRYPT_PASSPHRASE"]
        )
        ring.create_key("footer"), ring.create_key("pii")
        policy = 'kms = "file:lake.keyring"\nfooter_key = "footer"\ncolumn_keys.pii = ["price"]\n'
        (folder / "lake.toml").write_text(policy)
    else:
        (folder / "footer.key").unlink()  # the first example makes it
    if command in ("decrypt", "inspect", "verify"):
        options = (*KEY, "--column-key", "price=file:price.key")
        run(folder, "encrypt", *options, "orders.parquet", "orders.enc.parquet")
        options = ("--policy", "lake.toml", "orders.parquet", "orders.kms.parquet")
        assert run(folder, "encrypt", *options, env=env).returncode == 0
        (folder / "lake").mkdir()
        for name in ("lake/0.parquet", "lake/1.parquet"):
            options = ("--policy", "lake.toml", "orders.parquet", name)
            assert run(folder, "encrypt", *options, env=env).returncode == 0
        lake = '[dataset.lake]\nlocation = "lake"\npolicy = "lake.toml"\n'
        (folder / "modcrypt.toml").write_text(f'kms = "file:lake.keyring"\n{lake}')
        env["MODCRYPT_CONFIG"] = "modcrypt.toml"
    examples = examples_of(folder, *([] if command is None else [command]))
    assert len(examples) >= 2
    for example in examples:
        answer = run(folder, *example, env=env)
        note = "modcrypt: columns left out because their key is missing: price\n"
        left_out = note if "drop" in example else ""
        assert (answer.returncode, answer.stderr) == (0, left_out)


def test_without_click_it_says_what_to_install(tmp_path: Path) -> None:
    script = "import sys; sys.modules['click'] = None; from modcrypt.cli import run; run()"
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert 'pip install "modcrypt[cli]"' in check_failure(answer, 2, "usage")


# --- signals and progress ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with plain.parquet of 8 MB in eight row groups, and footer.key."""
    folder = tmp_path_factory.mktemp("large")
    values = np.random.default_rng(1).integers(0, 2**62, 1_000_000)
    table = pa.table({"value": values})
    write_plain(folder / "plain.parquet", table, row_group_size=125_000, use_dictionary=False)
    private(folder / "footer.key", FOOTER_KEY)
    assert run(folder, "encrypt", *KEY, "plain.parquet", "sealed.parquet").returncode == 0
    return folder


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize(
    ("command", "source"), [("encrypt", "plain.parquet"), ("decrypt", "sealed.parquet")]
)
def test_a_signal_half_way_leaves_nothing(
    large: Path, number: signal.Signals, threads: str, command: str, source: str
) -> None:
    before = names(large)
    options = (command, *KEY, "--json", "--threads", threads, source, "out.parquet")
    with subprocess.Popen(
        **as_process([sys.executable, "-c", SLOW, "60", "3600", *options], environment()),
        cwd=large, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        assert any(unfinished_files(large, process.pid))
        interrupt(process, lambda: process.send_signal(number))
        out, err = process.communicate()
    assert process.returncode == 128 + number
    assert err == f"modcrypt: error: interrupted: ended by {number.name}\n"
    assert json.loads(out.splitlines()[-1])["error"] == "interrupted"
    assert names(large) == before


def test_a_second_signal_does_not_interrupt_the_cleaning_up(large: Path) -> None:
    """The impatient second Ctrl-C comes just when the temporary file is to be removed."""
    again = """
import os
unlink = os.unlink
def unlink_late(path):
    os.kill(os.getpid(), 2)
    unlink(path)
os.unlink = unlink_late
"""
    before = names(large)
    options = ("encrypt", *KEY, *PLAIN_TO_OUT)
    command = [sys.executable, "-c", again + SLOW, "60", "3600", *options]
    with subprocess.Popen(
        **as_process(command, environment()),
        cwd=large, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        interrupt(process, lambda: process.send_signal(signal.SIGINT))
    assert process.returncode == 130
    assert names(large) == before


def test_ignored_signals_stay_ignored() -> None:
    script = (
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from modcrypt.cli.output.signals import raise_on_signals; raise_on_signals()\n"
        "print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert answer.stdout == "True\n"


def on_terminal(folder: Path, show_after: str, *options: str, **env: str) -> tuple[str, str]:
    """Encrypt with stderr on a terminal; return what it shows, and stdout."""
    arguments = ("encrypt", *KEY, "--force", "--threads", "1", *options)
    arguments = (*arguments, "plain.parquet", "new.parquet")
    command = [sys.executable, "-c", SLOW, "0", show_after, *arguments]
    answer, shown = run_on_terminal(folder, command, "stderr", env=environment(**env))
    return shown, answer.stdout.decode().replace("writing\n", "")


def test_progress_is_shown_on_a_terminal(large: Path) -> None:
    shown, out = on_terminal(large, "0", "--json")
    assert "Encrypting" in shown
    total = (large / "plain.parquet").stat().st_size / 2**20
    assert f"/{total:.1f} MiB" in shown
    after = shown.rpartition("MiB")[2]
    assert "\x1b[?25h" in after  # the cursor is back
    assert "\x1b[2K" in after  # the line is wiped
    assert json.loads(out)["destination"] == "new.parquet"


DONE = "encrypted plain.parquet to new.parquet; 7.6 MiB\n"


def test_short_work_shows_no_progress(large: Path) -> None:
    assert on_terminal(large, "3600") == ("", DONE)


def test_no_color_turns_progress_off(large: Path) -> None:
    assert on_terminal(large, "0", NO_COLOR="1") == ("", DONE)


def test_without_a_terminal_there_is_no_progress(large: Path) -> None:
    options = ("encrypt", *KEY, "--force", "plain.parquet", "new")
    process = as_process([sys.executable, "-c", SLOW, "0", "0", *options], environment())
    answer = subprocess.run(**process, cwd=large, capture_output=True, text=True, check=True)
    assert answer.stderr == ""


def test_the_module_is_the_program(folder: Path) -> None:
    command = [sys.executable, "-m", "modcrypt", "--version"]
    answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert answer.stdout == run(folder, "--version").stdout


def test_what_encryption_leaves_out_is_a_warning_on_stderr(folder: Path) -> None:
    plain = plain_file(pa.table({"a": range(10)}), write_page_index=True)

    def move(metadata: ThriftStruct) -> None:
        metadata.row_groups[0].columns[0].column_index_offset = 1 << 40

    (folder / "broken.parquet").write_bytes(edit_plain(plain, move))
    answer = run(folder, "encrypt", *KEY, "broken.parquet", "out.parquet")
    assert answer.returncode == 0
    assert "modcrypt: warning: " in answer.stderr
    assert "broken.parquet: ignoring an unusable part: column index" in answer.stderr
    assert run(folder, "verify", *KEY, "out.parquet").returncode == 0

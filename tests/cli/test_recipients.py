"""`modcrypt recipients`, `--to` and `--identity` as users meet them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt
from tests.support.cases import each_case
from tests.support.cli.answers import check_refusal, run_ok
from tests.support.cli.program import invoke, private, run_program, to_key
from tests.support.tables import small_table, write_plain

GENERATE = ("keys", "generate", "--kind", "recipient")
SHORT = ("--scheme", "x25519")
PASSPHRASE = "correct horse battery stäple"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the identities me and you, plain.parquet, and mine.parquet for me."""
    monkeypatch.delenv("MODCRYPT_IDENTITY", raising=False)
    for name in ("me", "you"):
        run_ok(tmp_path, *GENERATE, *SHORT, f"{name}.key")
    write_plain(tmp_path / "plain.parquet")
    run_ok(tmp_path, "encrypt", "--to", "me.pub", "plain.parquet", "mine.parquet")
    return tmp_path


def id_of(folder: Path, name: str) -> str:
    return modcrypt.Recipient.load(folder / f"{name}.pub").hex_id


def read_back(folder: Path, name: str, *options: str) -> pa.Table:
    run_ok(folder, "decrypt", "--force", *options, name, "again.parquet")
    return pq.read_table(folder / "again.parquet")


def test_generate_writes_a_private_and_a_public_file(tmp_path: Path) -> None:
    answer = json.loads(run_ok(tmp_path, *GENERATE, "--json", "me.key"))
    recipient = modcrypt.Recipient.load(tmp_path / "me.pub")
    assert answer == {
        "schema": "modcrypt.recipients.pair/1", "identity": "me.key", "recipient": "me.pub",
        "id": recipient.hex_id,
    }  # fmt: skip
    assert recipient.kind == "mlkem768-x25519"
    assert (tmp_path / "me.key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "me.pub").read_text() == f"{recipient}\n"
    assert modcrypt.Identity.load(tmp_path / "me.key").recipient == recipient


def test_generate_replaces_nothing(folder: Path) -> None:
    before = (folder / "me.key").read_bytes()
    assert "me.key exists" in check_refusal(invoke(folder, *GENERATE, "me.key"))
    (folder / "me.key").unlink()
    assert "me.pub exists" in check_refusal(invoke(folder, *GENERATE, "me.key"))
    assert not (folder / "me.key").exists()
    check_refusal(invoke(folder, *GENERATE, "me.pub"))
    (folder / "me.key").write_bytes(before)


def test_a_partner_opens_a_file_in_another_process(folder: Path) -> None:
    answer = run_program(folder, "head", "--json", "--identity", "file:me.key", "mine.parquet")
    assert answer.returncode == 0
    assert json.loads(answer.stdout.splitlines()[0])["id"] == 0


def test_every_verb_opens_files_with_an_identity(folder: Path) -> None:
    me = ("--identity", "file:me.key")
    assert read_back(folder, "mine.parquet", *me) == small_table()
    assert "authentic" in run_ok(folder, "verify", *me, "mine.parquet")
    assert "1 recipient" in run_ok(folder, "inspect", *me, "mine.parquet")
    assert "id" in run_ok(folder, "schema", *me, "mine.parquet")
    run_ok(folder, "rekey", *me, "--to", "you.pub", "mine.parquet", "yours.parquet")
    assert read_back(folder, "yours.parquet", "--identity", "file:you.key") == small_table()
    run_ok(
        folder, "share", *me, "--to", "you.pub", "--column", "id", "mine.parquet", "id.parquet"
    )  # fmt: skip
    you = ("--identity", "file:you.key")
    assert read_back(folder, "id.parquet", *you) == small_table().select(["id"])
    run_ok(
        folder, "mask", *me, "--drop", "name", "--to", "you.pub", "mine.parquet", "mask.parquet"
    )  # fmt: skip
    assert "name" not in read_back(folder, "mask.parquet", *you).column_names
    message = check_refusal(
        invoke(folder, "mask", *me, "--drop", "name", "mine.parquet", "none.parquet")
    )
    assert "--to" in message


def test_the_environment_names_an_identity_unless_keys_are_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODCRYPT_IDENTITY", "me.key")
    assert read_back(folder, "mine.parquet") == small_table()
    assert "authentic" in run_ok(folder, "verify", "mine.parquet")
    run_ok(folder, "keys", "create", "--kms", "file:k.ring", "--plaintext", "kf")
    check_refusal(invoke(folder, "cat", "--kms", "file:k.ring", "mine.parquet"), "key-material", 3)
    monkeypatch.setenv("MODCRYPT_IDENTITY", "you.key:me.key")
    assert "authentic" in run_ok(folder, "verify", "mine.parquet")


def test_a_wrong_identity_is_named(folder: Path) -> None:
    result = invoke(folder, "cat", "--identity", "file:you.key", "mine.parquet")
    assert id_of(folder, "you") in check_refusal(result, "no-key", 3)
    check_refusal(invoke(folder, "cat", "--identity", "file:none.key", "mine.parquet"), "no-key", 3)
    (folder / "me.key").chmod(0o644)
    message = check_refusal(invoke(folder, "cat", "--identity", "file:me.key", "mine.parquet"))
    assert "chmod 600" in message


def test_a_public_key_is_named_as_what_it_is(folder: Path) -> None:
    result = invoke(folder, "cat", "--identity", "file:me.pub", "mine.parquet")
    assert "me.pub: it is a public key" in check_refusal(result, "key-material", 3)


def test_a_key_of_another_kind_is_named_with_the_command_that_makes_one(folder: Path) -> None:
    (folder / "plain.key").write_bytes(bytes(16))
    (folder / "plain.key").chmod(0o600)
    result = invoke(folder, "cat", "--identity", "file:plain.key", "mine.parquet")
    assert "keys generate --kind recipient" in check_refusal(result, "key-material", 3)
    signing = ("seals", "create", "--sign", "file:plain.key", ".")
    message = check_refusal(invoke(folder, *signing), "key-material", 3)
    assert "contains no signing key; modcrypt keys generate --kind signing" in message


def test_files_of_other_kinds_are_for_ags1(folder: Path) -> None:
    (folder / "notes.txt").write_text("call Ada")
    result = invoke(folder, "encrypt", "--to", "me.pub", "notes.txt", "notes.enc")
    assert "modcrypt ags1 encrypt" in check_refusal(result, "format", 1)


def test_without_keys_the_options_for_them_are_named(folder: Path) -> None:
    message = check_refusal(invoke(folder, "cat", "mine.parquet"), "no-key", 3)
    assert "no --identity of its recipients is given" in message
    private(folder / "footer", b"f" * 16)
    run_ok(folder, "encrypt", "--key", "file:footer", "plain.parquet", "other.parquet")
    message = check_refusal(invoke(folder, "cat", "other.parquet"), "no-key", 3)
    assert "no --key is given, nor --identity, --kms or --policy" in message


@pytest.mark.parametrize("verb", ["cat", "verify", "inspect", "schema", "encrypt --to me.pub"])
def test_an_ags1_file_is_named_as_what_it_is(folder: Path, verb: str) -> None:
    private(folder / "key", b"k" * 16)
    run_ok(folder, "ags1", "encrypt", "--key", "file:key", "plain.parquet", "p.ags1")
    out = ["out"] if verb.startswith("encrypt") else []
    answer = invoke(folder, *verb.split(), "p.ags1", *out)
    assert answer.exit_code == 1
    assert "p.ags1 is an AGS1 stream, not a Parquet file; use modcrypt ags1" in answer.output
    assert "takes files of any kind" not in answer.output


def test_passphrases_come_from_a_file(folder: Path) -> None:
    private(folder / "word", PASSPHRASE.encode())
    run_ok(
        folder,
        "keys",
        "generate",
        "--kind",
        "recipient",
        *SHORT,
        "--passphrase",
        "file:word",
        "third.key",
    )
    run_ok(folder, "encrypt", "--to", "third.pub", "plain.parquet", "third.parquet")
    third = ("--identity", "file:third.key")
    assert read_back(folder, "third.parquet", *third, "--identity-passphrase", "file:word")
    message = check_refusal(invoke(folder, "cat", *third, "third.parquet"))
    assert "--identity-passphrase" in message
    private(folder / "wrong", b"wrong")
    check_refusal(
        invoke(
            folder, "cat", *third, "--identity-passphrase", "file:wrong", "third.parquet"
        ), "denied", 3,
    )  # fmt: skip
    check_refusal(invoke(folder, "cat", "--identity-passphrase", "file:word", "mine.parquet"))


def test_recipients_are_listed_added_and_removed(folder: Path) -> None:
    me, you = id_of(folder, "me"), id_of(folder, "you")
    listed = json.loads(run_ok(folder, "recipients", "list", "--json", "mine.parquet"))
    assert [recipient["id"] for recipient in listed["recipients"]] == [me]
    (folder / "all.txt").write_text((folder / "you.pub").read_text() + "# nobody else\n")
    run_ok(
        folder, "recipients", "add", "--identity", "file:me.key", "--to", "all.txt",
        "mine.parquet",
    )  # fmt: skip
    table = run_ok(folder, "recipients", "list", "mine.parquet")
    assert me in table
    assert you in table
    removal = invoke(
        folder,
        "recipients",
        "remove",
        "--identity",
        "file:me.key",
        "--recipient",
        you,
        "mine.parquet",
    )
    assert removal.exit_code == 0
    assert "may have kept" in removal.stderr
    add = ("recipients", "add", "--identity", "file:me.key", "--to", "you.pub", "mine.parquet")
    run_ok(folder, *add)
    removal = invoke(
        folder, "recipients", "remove", "--json", "--identity", "file:me.key", "--recipient",
        "you.pub", "--to", "me.pub", "mine.parquet",
    )  # fmt: skip
    assert json.loads(removal.stdout)["result"] == "rotated"
    assert "may have kept" not in removal.stderr
    check_refusal(invoke(folder, "cat", "--identity", "file:you.key", "mine.parquet"), "no-key", 3)
    assert invoke(folder, *add[:3], "you.key", *add[4:]).exit_code == 3


def test_either_opens_a_file_of_a_key_service(folder: Path) -> None:
    run_ok(folder, "keys", "create", "--kms", "file:k.ring", "--plaintext", "kf")
    run_ok(
        folder, "encrypt", "--kms", "file:k.ring#kf", "--to", "me.pub", "plain.parquet",
        "both.parquet",
    )  # fmt: skip
    assert read_back(folder, "both.parquet", "--kms", "file:k.ring") == small_table()
    assert read_back(folder, "both.parquet", "--identity", "file:me.key") == small_table()
    both = ("--kms", "file:k.ring", "--identity", "file:you.key")
    assert read_back(folder, "both.parquet", *both) == small_table()
    run_ok(folder, "recipients", "add", *both[:2], "--identity", "file:me.key", "--to", "you.pub",
           "both.parquet")  # fmt: skip
    assert read_back(folder, "both.parquet", "--identity", "file:you.key") == small_table()


def test_folders_are_encrypted_with_their_paths(folder: Path) -> None:
    (folder / "in").mkdir()
    write_plain(folder / "in" / "a.parquet")
    prefix = ("--aad-prefix", "lake/{path}")
    run_ok(folder, "encrypt", *prefix, "--to", "me.pub", "in", "out")
    again = invoke(folder, "encrypt", *prefix, "--to", "me.pub", "in", "out")
    assert "only its recipients can compare it" in again.output
    record = ("--record", "run.jsonl", "--force")
    run_ok(folder, "encrypt", *prefix, "--to", "me.pub", *record, "in", "out")
    answer = run_ok(folder, "encrypt", *prefix, "--to", "me.pub", *record[:2], "in", "out")
    assert "1 current" in answer
    me = ("--identity", "file:me.key", *prefix)
    run_ok(folder, "decrypt", *me, "out", "back")
    assert pq.read_table(folder / "back" / "a.parquet") == small_table()


@each_case("options", [
    ("--to", "me.pub", "--key", "file:me.key"),
    ("--to", "me.pub", "--master-key", "kf"),
    ("--to", "me.pub", "--kms", "file:k.ring#kf", "--external-key-material"),
    ("--to", "plain.parquet"),
    ("--to", "me.key"),
    ("--to", "modcrypt-recipient:x25519:AAAA:0"),
    ("--to", "plain.parquet"),
])  # fmt: skip
def test_contradictions_are_refused(options: tuple[str, ...], folder: Path) -> None:
    result = invoke(folder, "encrypt", *options, "plain.parquet", "none.parquet")
    assert result.exit_code in (2, 3)
    assert not (folder / "none.parquet").exists()
    secret = json.loads((folder / "me.key").read_text())["key"]
    assert secret not in result.output


def test_commands_without_recipients_say_what_is_missing(folder: Path) -> None:
    check_refusal(invoke(folder, "recipients", "add", "--identity", "file:me.key", "mine.parquet"))
    check_refusal(
        invoke(folder, "recipients", "remove", "--identity", "file:me.key", "mine.parquet")
    )
    check_refusal(
        invoke(
            folder, "recipients", "remove", "--identity", "file:me.key", "--recipient", "abc",
            "mine.parquet",
        ), "file", 2,
    )  # fmt: skip


def test_share_writes_explicit_keys_on_request(folder: Path) -> None:
    share = ("share", "--identity", "file:me.key", "--column", "id", "--explicit-keys")
    run_ok(folder, *share, "--to", "you.pub", "mine.parquet", "id.parquet")
    assert (folder / "_EXPLICIT_KEYS_FOR_id.parquet.json").exists()
    private(folder / "next.key", bytes(range(1, 17)))
    result = invoke(folder, *share, *to_key(folder, "next.key"), "mine.parquet", "no.parquet")
    assert "--explicit-keys needs --to" in check_refusal(result)
    assert not (folder / "no.parquet").exists()

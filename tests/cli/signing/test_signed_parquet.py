"""`--sign` and `--signed-by` of the commands for Parquet files."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from tests.support.cli.answers import check_refusal, run_ok
from tests.support.cli.program import invoke, to_key
from tests.support.signing import PEOPLE

KEY = ("--key", "file:footer.key")
VERIFY = ("--signed-by", "writer.pub")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a plaintext file, a footer key, two writers and a signed file."""
    pq.write_table(PEOPLE, tmp_path / "plain.parquet")
    (tmp_path / "footer.key").write_text("00112233445566778899aabbccddeeff")
    (tmp_path / "footer.key").chmod(0o600)
    for name in ("writer", "other"):
        run_ok(tmp_path, "keys", "generate", "--kind", "signing", f"{name}.key")
    run_ok(
        tmp_path, "encrypt", *KEY, "--sign", "file:writer.key", "plain.parquet", "signed.parquet"
    )
    run_ok(tmp_path, "encrypt", *KEY, "plain.parquet", "unsigned.parquet")
    return tmp_path


def test_a_signed_file_is_verified_and_decrypted(folder: Path) -> None:
    text = run_ok(folder, "verify", *KEY, *VERIFY, "signed.parquet")
    assert "signed by" in text
    run_ok(folder, "decrypt", *KEY, *VERIFY, "signed.parquet", "back.parquet")
    assert pq.read_table(folder / "back.parquet").equals(PEOPLE)
    assert "city 5" in run_ok(folder, "cat", *KEY, *VERIFY, "signed.parquet")


@pytest.mark.parametrize("command", ["verify", "decrypt"])
def test_other_files_are_refused(folder: Path, command: str) -> None:
    out = ["out.parquet"] * (command == "decrypt")
    unsigned = invoke(folder, command, *KEY, *VERIFY, "unsigned.parquet", *out)
    assert unsigned.exit_code == 1
    assert "no writer has signed it" in unsigned.stdout + unsigned.stderr
    other = invoke(folder, command, *KEY, "--signed-by", "other.pub", "signed.parquet", *out)
    assert other.exit_code == 1
    assert "signed by another key" in other.stdout + other.stderr
    assert not (folder / "out.parquet").exists()


def test_the_json_of_a_verification_names_the_writer(folder: Path) -> None:
    key = mc.kms.VerifyingKey.load(folder / "writer.pub")
    line = run_ok(folder, "verify", *KEY, *VERIFY, "--json", "signed.parquet")
    assert json.loads(line.splitlines()[0])["signed_by"] == key.hex_id


def test_rekey_signs_again_or_says_that_the_signature_is_dropped(folder: Path) -> None:
    new = to_key(folder, "footer.key")
    dropped = invoke(folder, "rekey", *KEY, *new, "signed.parquet", "dropped.parquet")
    assert "was dropped; pass a signing key" in dropped.stderr
    (folder / "old.toml").write_text('footer_key = "file:footer.key"\nsigned_by = ["writer.pub"]\n')
    old = ("--policy", "old.toml", "--sign", "file:other.key")
    run_ok(folder, "rekey", *old, *new, "signed.parquet", "new.parquet")
    check_refusal(
        invoke(folder, "rekey", *old, *new, "unsigned.parquet", "none.parquet"),
        "writer-signature",
        1,
    )
    run_ok(folder, "verify", *KEY, "--signed-by", "other.pub", "new.parquet")


def test_an_unsigned_destination_is_not_up_to_date(folder: Path) -> None:
    (folder / "in").mkdir()
    (folder / "plain.parquet").rename(folder / "in" / "plain.parquet")
    run_ok(folder, "encrypt", *KEY, "in", "out")
    again = invoke(folder, "encrypt", *KEY, "--sign", "file:writer.key", "in", "out")
    assert again.exit_code != 0 or "1 file" in again.stdout
    assert "signed" in again.stdout + again.stderr


def test_a_set_with_a_file_whose_signature_cannot_be_checked_is_not_verified(folder: Path) -> None:
    """Whoever exchanges a file can name a key that nobody has."""
    (folder / "set").mkdir()
    service = ("--kms", "file:lake.keyring")
    mc.Keyring.create(folder / "lake.keyring", plaintext=True).create_key("footer")
    new = (*service, "--master-key", "footer", "--sign", "file:writer.key")
    run_ok(folder, "encrypt", *new, "plain.parquet", "set/1.parquet")
    run_ok(folder, "verify", *service, *VERIFY, "set")
    foreign = mc.FileEncryptionProperties(footer_key=mc.Key.generate())
    mc.write_table(PEOPLE, folder / "set" / "2.parquet", foreign)
    assert invoke(folder, "verify", *service, "set").exit_code == 0
    assert invoke(folder, "verify", *service, *VERIFY, "set").exit_code == 3


@pytest.mark.parametrize("command", [("verify",), ("decrypt", "--force"), ("cat",)])
def test_a_required_seal_needs_the_key_of_its_writer(
    folder: Path, command: tuple[str, ...]
) -> None:
    mc.Keyring.create(folder / "lake.keyring", plaintext=True).create_key("footer")
    policy = 'kms = "file:lake.keyring"\nfooter_key = "footer"\n'
    (folder / "policy.toml").write_text(policy)
    for keys in (KEY, ("--kms", "file:lake.keyring"), ("--policy", "policy.toml")):
        files = ["signed.parquet", "out.parquet"][: 1 + (command[0] == "decrypt")]
        result = invoke(folder, *command, *keys, "--seal-at-least", "1", *files)
        assert result.exit_code == 2
        assert "--seal-at-least needs --signed-by, or a policy with signed_by" in result.stderr

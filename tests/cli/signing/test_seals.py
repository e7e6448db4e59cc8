"""`modcrypt seals` as writers and readers meet it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import modcrypt
from tests.support.cli.answers import check_refusal, run_ok
from tests.support.cli.program import invoke, private, run_program
from tests.support.kms.key_servers import Bao
from tests.support.tables import write_plain


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with writer.key, writer.pub and the dataset lake."""
    (tmp_path / "lake").mkdir()
    write_plain(tmp_path / "lake" / "a.parquet")
    run_ok(tmp_path, *GENERATE, "writer.key")
    return tmp_path


GENERATE = ("keys", "generate", "--kind", "signing")
VERIFY = ("seals", "verify", "--signed-by", "writer.pub")


def test_a_reader_compares_a_sealed_folder(folder: Path) -> None:
    assert "seal 1: 1 file" in run_ok(
        folder, "seals", "create", "--sign", "file:writer.key", "lake"
    )
    assert "0 differences" in run_program(folder, *VERIFY, "lake").stdout
    (folder / "lake" / "b.parquet").write_bytes(b"foreign")
    result = invoke(folder, *VERIFY, "lake")
    assert result.exit_code == 1
    assert "b.parquet  foreign" in result.stdout
    answer = json.loads(invoke(folder, *VERIFY, "--json", "lake").stdout)
    assert answer["findings"] == [{"path": "b.parquet", "problem": "foreign"}]
    assert answer["ok"] is False


def test_seals_follow_each_other(folder: Path) -> None:
    create = ("seals", "create", "--json", "--sign", "file:writer.key", "lake")
    assert [json.loads(run_ok(folder, *create))["sequence"] for _ in range(2)] == [1, 2]
    run_ok(folder, *VERIFY, "--at-least", "2", "lake")
    refusal = invoke(folder, *VERIFY, "--at-least", "3", "lake")
    assert "rolled back" in check_refusal(refusal, "integrity", 1)


def test_keys_have_passphrases_and_lines(folder: Path) -> None:
    private(folder / "word", b"correct horse battery staple")
    word = ("--passphrase", "file:word")
    run_ok(folder, *GENERATE, "--scheme", "mldsa65", *word, "archive.key")
    sign = ("seals", "create", "--sign", "file:archive.key", "lake")
    check_refusal(invoke(folder, *sign), "denied", 3)
    run_ok(folder, *sign, *word)
    line = str(modcrypt.kms.VerifyingKey.load(folder / "archive.pub"))
    run_ok(folder, "seals", "verify", "--signed-by", line, "lake")
    check_refusal(invoke(folder, *VERIFY, "lake"), "integrity", 1)


def test_nothing_is_replaced_and_a_writer_is_named(folder: Path) -> None:
    assert "exists" in check_refusal(invoke(folder, *GENERATE, "writer.key"))
    check_refusal(invoke(folder, *GENERATE, "writer"))
    assert "--signed-by" in check_refusal(invoke(folder, "seals", "verify", "lake"))
    check_refusal(invoke(folder, *VERIFY, "lake"), "integrity", 1)


def test_the_verifying_key_of_a_file_is_exported(folder: Path) -> None:
    answer = run_ok(folder, "seals", "export", "--json", "file:writer.key", "again.pub")
    assert (folder / "again.pub").read_text() == (folder / "writer.pub").read_text()
    line = modcrypt.kms.VerifyingKey.load(folder / "writer.pub")
    assert json.loads(answer)["id"] == line.hex_id
    assert "exists" in check_refusal(
        invoke(folder, "seals", "export", "file:writer.key", "again.pub")
    )


def test_a_key_of_vault_signs_files_and_folders(
    folder: Path, bao: Bao, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VAULT_TOKEN", bao.root_token)
    key = f"{bao.mount()}/keys/writer"
    bao.judge().write(key, type="ed25519")
    uri = bao.uri(key)
    run_ok(folder, "seals", "export", uri, "vault.pub")
    run_ok(folder, "seals", "create", "--sign", uri, "lake")
    run_ok(folder, "seals", "verify", "--signed-by", "vault.pub", "lake")
    private(folder / "footer.key", b"0123456789abcdef")
    keys = ("--key", "file:footer.key")
    run_ok(folder, "encrypt", *keys, "--sign", uri, "lake/a.parquet", "signed.parquet")
    run_ok(folder, "verify", *keys, "--signed-by", "vault.pub", "signed.parquet")
    private(folder / "word", b"correct horse battery staple")
    for command in (
        ("seals", "create", "--passphrase", "file:word", "--sign", uri, "lake"),
        ("encrypt", *keys, "--sign-passphrase", "file:word", "--sign", uri, "lake/a.parquet", "x"),
    ):
        assert "for a signing key in a file" in check_refusal(invoke(folder, *command))


def test_a_writer_compares_before_sealing_again(folder: Path) -> None:
    sign = ("--sign", "file:writer.key")
    run_ok(folder, "seals", "create", *sign, "lake")
    write_plain(folder / "lake" / "b.parquet")
    write_plain(folder / "lake" / "c.parquet")
    refusal = check_refusal(invoke(folder, "seals", "create", *sign, "lake"), "integrity", 1)
    assert "b.parquet (foreign), c.parquet (foreign)" in refusal
    answer = run_ok(folder, "seals", "add", *sign, "--json", "lake", "lake/b.parquet")
    assert json.loads(answer)["added"] == ["b.parquet"]
    run_ok(folder, "seals", "create", *sign, "--accept", "c.parquet", "lake")
    (folder / "lake" / "b.parquet").unlink()
    assert "1 removed" in run_ok(folder, "seals", "remove", *sign, "lake", "b.parquet")
    run_ok(folder, *VERIFY, "--at-least", "4", "lake")
    log = json.loads(run_ok(folder, "seals", "log", "--signed-by", "writer.pub", "--json", "lake"))
    assert [entry["added"] for entry in log["entries"]] == [["a.parquet"], ["b.parquet"],
                                                            ["c.parquet"], []]  # fmt: skip
    assert "  - b.parquet" in run_ok(folder, "seals", "log", "--signed-by", "writer.pub", "lake")


def test_a_command_is_recorded(folder: Path) -> None:
    run_ok(folder, "seals", "create", "--sign", "file:writer.key", "lake")
    private(folder / "k", b"0123456789012345")
    write_plain(folder / "plain.parquet")
    record = ("seals", "record", "--sign", "file:writer.key", "lake", "--")
    encrypt = ("encrypt", "--key", "file:k", "plain.parquet", "lake/new.parquet")
    result = invoke(folder, *record, *encrypt)
    assert "1 file added or replaced" in result.stderr
    run_ok(folder, *VERIFY, "--at-least", "2", "lake")
    missing = ("encrypt", "--key", "file:k", "missing.parquet", "lake/x.parquet")
    assert invoke(folder, *record, *missing).exit_code == 2
    assert invoke(folder, *record, "encrypt", "--no-such-option").exit_code == 2
    run_ok(folder, *VERIFY, "--at-least", "2", "lake")


def test_writers_change_and_a_witness_countersigns(folder: Path) -> None:
    for name in ("new", "auditor"):
        run_ok(folder, *GENERATE, f"{name}.key")
    run_ok(folder, "seals", "create", "--sign", "file:writer.key", "--valid-days", "30", "lake")
    change = (
        "seals",
        "writers",
        "--sign",
        "file:writer.key",
        "--sign",
        "file:new.key",
        "lake",
        "new.pub",
    )
    assert "seal 2" in run_ok(folder, *change)
    refusal = check_refusal(invoke(folder, "seals", "create", "--sign", "file:writer.key", "lake"))
    assert "has not been allowed to sign since seal number 2" in refusal
    witnessed = (*VERIFY, "--witnessed-by", "auditor.pub", "--witness-store", "audit", "lake")
    check_refusal(invoke(folder, *witnessed), "integrity", 1)
    sign = ("--signed-by", "writer.pub", "--sign", "file:auditor.key", "--store", "audit")
    assert "seal 2: countersigned" in run_ok(folder, "seals", "witness", *sign, "lake")
    run_ok(folder, *witnessed)
    answer = json.loads(run_ok(folder, *VERIFY, "--json", "lake"))
    run_ok(folder, *VERIFY, "--dataset", answer["dataset"], "lake")
    refusal = check_refusal(invoke(folder, *VERIFY, "--dataset", "x", "lake"), "integrity", 1)
    assert "seal number 2 is that of another dataset" in refusal

"""`modcrypt subjects`: the vault on the command line."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import modcrypt as mc
from modcrypt import Lake
from modcrypt.kms.key_tools import KeyTools
from modcrypt.subjects.vault import SubjectVault, open_vault
from tests.support.cli.program import Answer, run
from tests.support.sample_vault import POLICY, fingerprints, make_rows

KMS = ("--kms", "file:lake.keyring")


def subjects(*arguments: str, code: int = 0, stdin: bytes = b"") -> Answer:
    answer = run(Path(), "subjects", *arguments, *KMS, stdin=stdin)
    assert answer.returncode == code, answer.stderr
    return answer


def lines(answer: Answer) -> list[dict[str, Any]]:
    return [json.loads(line) for line in answer.stdout.splitlines()]


def evidence(path: str = "subjects.evidence.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


@pytest.fixture
def filled(vault: SubjectVault) -> SubjectVault:
    """A vault that knows three subjects."""
    fingerprints(vault, vault.references([b"alice", b"4711", b"carol"]), create=True)
    return vault


def test_create_needs_a_master_key(tools: KeyTools) -> None:
    assert "MASTER_KEY" in subjects("create", code=2).stderr
    assert "generation 1: subjects 0" in subjects("create", "people").stdout
    assert "exists" in subjects("create", "people", code=2).stderr
    assert "subjects 0, erased 0" in subjects("status").stdout


def test_erase_ids_of_a_file(filled: SubjectVault) -> None:
    ids, erase = b"alice\r\n\n4711\nalice\n", ("erase", "-", "--request", "GDPR-17")
    refused = subjects(*erase, code=2, stdin=ids).stderr
    assert "makes 2 subjects unreadable for good; pass --yes" in refused
    assert filled.status()["subjects"] == 3
    done = subjects(*erase, "--yes", stdin=ids).stdout
    assert done == "2 erased, 0 erased before, 0 not in the vault\n"
    again = subjects(*erase, "--yes", stdin=ids).stdout
    assert again == "0 erased, 2 erased before, 0 not in the vault\n"
    found = subjects("prove", "-", stdin=ids).stdout.splitlines()
    assert [" erased GDPR-17 20" in line for line in found] == [True, True]
    assert " known" in subjects("prove", "carol", code=1).stdout
    assert "--request" in subjects("erase", "carol", "--yes", code=2).stderr


def test_an_unknown_subject_is_reported(filled: SubjectVault) -> None:
    done = subjects("erase", "alise", "--request", "GDPR-17", "--yes", code=1)
    assert "1 not in the vault" in done.stdout
    assert " unknown" in subjects("prove", "alise", code=1).stdout
    (proof,) = lines(subjects("prove", "alise", "--json", code=1))
    assert (proof["proven"], proof["opened"]) == (False, 0)


def test_evidence_names_no_subject(filled: SubjectVault) -> None:
    subjects("erase", "alice", "--request", "GDPR-17", "--yes")
    subjects("rotate", "--yes")
    begun, done, *rotation = evidence()
    assert (begun["event"], begun["phase"], begun["request"]) == ("erase", "begun", "GDPR-17")
    assert done["results"] == [{"counts": {"erased": 1}, "dataset": "subjects"}]
    assert [line["event"] for line in rotation] == ["rotate", "rotate"]
    assert "alice" not in Path("subjects.evidence.jsonl").read_text()
    (status,) = lines(subjects("status", "--json"))
    assert (status["subjects"], status["erased"]) == (2, 1)


def test_status_checks_the_evidence(filled: SubjectVault) -> None:
    subjects("erase", "alice", "--request", "GDPR-17", "--yes")
    record = Path("subjects.evidence.jsonl")
    record.write_text(record.read_text().replace("GDPR-17", "GDPR-18", 1))
    assert "has faults: line 2: it does not have the hash" in subjects("status", code=1).stdout
    (status,) = lines(subjects("status", "--json", code=1))
    assert (len(status["faults"]), status["complete"]) == (1, True)


def test_the_lake_has_the_evidence(filled: SubjectVault, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("modcrypt.toml").write_text(
        'kms = "file:lake.keyring"\n[evidence]\n[dataset.a]\nlocation = "a"\n'
        'footer_key = "people"\n'
    )
    monkeypatch.setenv("MODCRYPT_CONFIG", "modcrypt.toml")
    run(Path(), "subjects", "erase", "alice", "--request", "GDPR-17", "--yes")
    assert [line["event"] for line in evidence("modcrypt.evidence.jsonl")] == ["erase", "erase"]
    assert not Path("subjects.evidence.jsonl").exists()
    assert run(Path(), "report", "--check").returncode == 0


def test_an_interrupted_erasure_is_reported_and_completed(
    filled: SubjectVault, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SubjectVault, "_remove", stop)
        with pytest.raises(KeyboardInterrupt):
            filled.erase(filled.references([b"alice"]), "{GDPR}")
    shown = subjects("status", code=1).stdout
    assert "1 erased ones have rows: run subjects erase for {GDPR}" in shown
    assert " returned {GDPR}" in subjects("prove", "alice", code=1).stdout
    assert subjects("erase", "--request", "{GDPR}", "--yes").stdout.startswith("1 erased")
    assert subjects("status").returncode == 0


def test_a_key_file_that_is_older_than_the_database_is_reported(filled: SubjectVault) -> None:
    shutil.copy("subjects.db.keks", "backup.keks")
    filled.erase(filled.references([b"alice"]), "GDPR-17")
    shutil.copy("backup.keks", "subjects.db.keks")
    assert "1 keys or erasures are newer than the key file" in subjects("status", code=1).stdout


def test_a_rotation_needs_confirmation(filled: SubjectVault, tools: KeyTools) -> None:
    assert "pass --yes" in subjects("rotate", code=2).stderr
    assert "generation 2: subjects 3" in subjects("rotate", "--yes").stdout
    with closing(open_vault("subjects.db", tools)) as opened:
        assert None not in fingerprints(opened, opened.references([b"alice", b"4711", b"carol"]))


def test_a_key_file_elsewhere(filled: SubjectVault) -> None:
    Path("elsewhere").mkdir()
    Path("subjects.db.keks").rename("elsewhere/keks")
    assert "subjects.db.keks" in subjects("status", code=2).stderr
    subjects("status", "--vault", "subjects.db?keys=elsewhere/keks")


def test_the_policy_names_the_vault(tools: KeyTools) -> None:
    Path("vaults").mkdir()
    Path("people.toml").write_text(
        'kms = "file:lake.keyring"\nfooter_key = "people"\nsubjects = "vaults/own.db"\n'
        'subject_key = "id"\nsubject_columns = ["name"]\n'
    )
    policy = ("--policy", "people.toml")
    subjects("create", "people", *policy)
    assert Path("vaults/own.db").exists()
    assert not Path("subjects.db").exists()
    subjects("erase", "--request", "R", "--yes", *policy)
    assert Path("vaults/own.evidence.jsonl").exists()
    assert "no subject vault" in subjects("status", "--vault", "x.db", *policy, code=2).stderr


@pytest.mark.parametrize("more", ["", 'kms_aad = "ours"\n'])
def test_a_dataset_names_the_vault(tools: KeyTools, more: str) -> None:
    Path("modcrypt.toml").write_text(
        'kms = "file:lake.keyring"\n[dataset.people]\nlocation = "people"\n'
        'footer_key = "people"\nsubjects = "own.db"\nsubject_key = "customer_id"\n'
        f'subject_columns = ["name"]\n{more}'
    )

    def of_dataset(*arguments: str) -> str:
        answer = run(Path(), "subjects", *arguments, "--policy", "modcrypt.toml#people")
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    of_dataset("create", "people")
    dataset = Lake.open("modcrypt.toml").dataset("people")
    dataset.write(make_rows())
    (row, _) = map(json.loads, of_dataset("export", "1", "people").splitlines())
    assert row["row"]["name"] == "Ada"
    of_dataset("erase", "1", "--request", "R", "--yes")
    of_dataset("rotate", "--yes")
    assert "subjects 2, erased 1" in of_dataset("status")
    assert dataset.read().column("name").to_pylist() == [None, "Bob", None, None]


def test_a_declaration_that_may_not_command_prevents_a_creation(tools: KeyTools) -> None:
    Path("modcrypt.toml").write_text(
        'kms = "file:lake.keyring"\n[evidence]\n[dataset.a]\nlocation = "a"\n'
        'footer_key = "people"\n'
    )
    assert "modcrypt trust" in subjects("create", "people", code=2).stderr
    assert not list(Path().glob("subjects.*"))


def test_arguments_are_bytes_of_any_kind(filled: SubjectVault) -> None:
    fingerprints(filled, filled.references([b"\xff"]), create=True)
    (found,) = lines(subjects("prove", os.fsdecode(b"\xff"), "--json", code=1))
    assert found["state"] == "known"
    request = ("--request", os.fsdecode(b"\xff"))
    assert "all printable" in subjects("erase", "carol", *request, "--yes", code=2).stderr


def test_the_text_of_a_uuid_is_also_its_value_in_a_column(tools: KeyTools) -> None:
    """Its bytes may contain line feeds, which no list has."""
    first, second = (uuid.UUID(int=number << 64 | 10) for number in (1, 2))
    Path("people.toml").write_text(POLICY)
    policy = ("--policy", "people.toml")
    subjects("create", "people", *policy)
    storage = pa.array([first.bytes, second.bytes], pa.binary(16))
    ids = pa.ExtensionArray.from_storage(pa.uuid(), storage)
    rows = make_rows().slice(0, 2).set_column(0, "customer_id", ids)
    mc.write_table(rows, "rows.parquet", mc.Settings(policy=mc.Policy.load("people.toml")))
    erase = ("erase", str(first).upper(), "--request", "R", "--yes", *policy)
    assert subjects(*erase).stdout.startswith("1 erased")
    (proof,) = lines(subjects("prove", str(first), "rows.parquet", "--json", *policy))
    assert (proof["proven"], proof["values"]) == (True, 4)
    (found,) = lines(subjects("export", str(second), "rows.parquet", *policy))
    assert found["row"]["name"] == "Bob"
    texts = rows.set_column(0, "customer_id", pa.array([str(second), "x"]))
    mc.write_table(texts, "texts.parquet", mc.Settings(policy=mc.Policy.load("people.toml")))
    files = ("rows.parquet", "texts.parquet")
    both = lines(subjects("export", str(second), *files, *policy))
    assert [line["file"] for line in both] == ["texts.parquet", "rows.parquet"]
    assert " unknown" in subjects("prove", str(uuid.UUID(int=0)), code=1).stdout


@pytest.mark.parametrize("command", [("erase", "--request", "R", "--yes"), ("prove",)])
def test_an_empty_list_proves_nothing(filled: SubjectVault, command: tuple[str, ...]) -> None:
    refused = subjects(*command, "-", code=2, stdin=b"\n")
    assert "stdin has no ids" in refused.stderr


def test_a_rotation_that_another_is_to_end(
    filled: SubjectVault, tools: KeyTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin_another(self: SubjectVault, _after: bytes) -> None:
        if self is filled:
            raise KeyboardInterrupt
        with pytest.raises(KeyboardInterrupt):
            filled.rotate()

    monkeypatch.setattr(SubjectVault, "_rewrap_batch", begin_another)
    shown = subjects("rotate", "--yes", code=1).stdout
    assert "3 keys of an older generation: run subjects rotate" in shown


def test_too_many_ids_are_refused(filled: SubjectVault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modcrypt.subjects.commands.MAX_LIST", 10)
    refused = subjects("erase", "-", "--request", "R", "--yes", code=2, stdin=b"alice\n" * 3)
    assert "reads at most 10 bytes" in refused.stderr
    assert "stands alone" in subjects("erase", "-", "x", "--request", "R", "--yes", code=2).stderr


@pytest.mark.parametrize("place", ["me:secret@db/lake?keys=k", "db/lake?sslpassword=secret&keys=k"])
def test_a_password_is_no_argument(tools: KeyTools, place: str) -> None:
    refused = subjects("status", "--vault", f"postgresql://{place}", code=2)
    assert "PGPASSWORD" in refused.stderr
    assert "secret" not in refused.stderr

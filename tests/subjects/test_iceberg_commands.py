"""`modcrypt iceberg` with a policy that names the vault."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt.iceberg import open_table
from modcrypt.iceberg.write import data_writing
from modcrypt.kms.key_tools import KeyTools
from modcrypt.subjects.vault import SubjectVault
from tests.support.cli.program import run
from tests.support.sample_vault import POLICY, make_rows

ROWS = make_rows()
COLUMNS = 'subject_columns = ["name", "address.*", "tags"]'


def iceberg(*arguments: str, code: int = 0) -> Any:
    answer = run(Path(), "iceberg", *arguments)
    assert answer.returncode == code, answer.stderr
    return answer


def scan(*arguments: str) -> list[dict[str, Any]]:
    answer = iceberg("scan", "people", "--json", *arguments)
    return [json.loads(line) for line in answer.stdout.splitlines()]


@pytest.fixture
def table(vault: SubjectVault, monkeypatch: pytest.MonkeyPatch) -> SubjectVault:
    """A table `people`, which the commands create and fill, and its vault."""
    monkeypatch.delenv("MODCRYPT_KMS", raising=False)
    text = POLICY.replace('subject_columns = ["name", "address.*"]', COLUMNS)
    Path("policy.toml").write_text(text)
    pq.write_table(ROWS, "rows.parquet")
    policy = ("--policy", "policy.toml")
    iceberg("create", "people", "--like", "rows.parquet", "--master-key", "people", *policy)
    iceberg("append", "people", "rows.parquet", *policy)
    return vault


def test_the_commands_write_and_read_values(table: SubjectVault) -> None:
    found = scan("--policy", "policy.toml")
    assert [row["name"] for row in found] == ["Ada", "Bob", "Ada", None]
    assert [row["tags"] for row in found] == [["a", None], [], None, ["b"]]
    assert [row["address"] for row in found] == ROWS["address"].to_pylist()
    stored = open_table("people", KeyTools("file:lake.keyring#people")).scan().to_arrow()
    assert {str(stored.schema.field(name).type) for name in ("name", "tags")} == {"binary"}
    iceberg("rotate", "kek", "people", "--policy", "policy.toml")
    iceberg("verify", "people", "--policy", "policy.toml")
    table.erase(table.references([b"1"]), "R1")
    found = scan("--policy", "policy.toml", "--columns", "name,tags")
    assert found == [
        {"name": None, "tags": None},
        {"name": "Bob", "tags": []},
        {"name": None, "tags": None},
        {"name": None, "tags": ["b"]},
    ]


def test_scans_without_the_vault_say_what_to_pass(table: SubjectVault) -> None:
    answer = iceberg("scan", "people", "--kms", "file:lake.keyring", "--json")
    assert "in column name, address, tags: values encrypted" in answer.stderr
    assert "pass --policy with their vault as subjects" in answer.stderr
    refused = iceberg("append", "people", "rows.parquet", "--kms", "file:lake.keyring", code=1)
    assert "values that are encrypted under the keys" in refused.stderr


def test_the_policy_of_a_dataset_reads_a_table(table: SubjectVault) -> None:
    """The vault of a dataset of a lake; its columns are for writers."""
    Path("modcrypt.toml").write_text(
        'kms = "file:lake.keyring"\n[dataset.files]\nlocation = "files"\nfooter_key = "people"\n'
        'subjects = "subjects.db"\nsubject_key = "customer_id"\nsubject_columns = ["name"]\n'
    )
    found = scan("--policy", "modcrypt.toml#files")
    assert [row["name"] for row in found] == ["Ada", "Bob", "Ada", None]


def test_a_command_needs_a_key_service(table: SubjectVault) -> None:
    assert "--kms" in iceberg("scan", "people", code=2).stderr
    Path("policy.toml").write_text('footer_key = "people"\n')
    refused = iceberg("scan", "people", "--policy", "policy.toml", code=2)
    assert "key service" in refused.stderr


def subjects(*arguments: str, code: int = 0) -> list[dict[str, Any]]:
    answer = run(Path(), "subjects", *arguments, "--policy", "policy.toml", "--json")
    assert answer.returncode == code, answer.stderr
    return [json.loads(line) for line in answer.stdout.splitlines()]


@pytest.mark.parametrize("place", ["people", "lake", "people/metadata/v3.metadata.json"])
def test_a_subject_is_found_in_all_snapshots(table: SubjectVault, place: str) -> None:
    """Also a row that was deleted, once, although a later snapshot has its file, too."""
    open_table("people", KeyTools("file:lake.keyring#people")).delete("customer_id = 2")
    if place == "lake":
        Path("lake").mkdir()
        Path("people").rename("lake/people")
        known = mc.Settings(policy=mc.Policy.load("policy.toml"))
        mc.write_table(ROWS.slice(0, 1), "lake/other.parquet", known)
    (found,) = subjects("export", "2", place)
    assert (found["row"]["name"], found["row"]["tags"]) == ("Bob", [])
    assert {line["row"]["amount"] for line in subjects("export", "1", place)} == {1.5, 3.5}
    (proof,) = subjects("prove", "2", place, code=1)
    assert (proof["opened"], proof["values"]) == (5, 5)
    table.erase(table.references([b"2"]), "R1")
    (proof,) = subjects("prove", "2", place)
    assert (proof["proven"], proof["opened"], proof["values"]) == (True, 0, 5)
    (found,) = subjects("export", "2", place)
    assert (found["row"]["name"], found["erased"][-1]) == (None, "tags")


def test_values_that_another_engine_has_moved_are_found_by_the_policy(
    table: SubjectVault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_writing, "find_notes", lambda _: {})
    open_table("people", KeyTools("file:lake.keyring#people")).delete("customer_id = 2")
    found = subjects("export", "3", "people")
    assert [line["row"]["tags"] for line in found] == [["b"], ["b"]]
    assert found[0]["file"] != found[1]["file"]
    options = ("--kms", "file:lake.keyring#people", "--vault", "subjects.db")
    answer = run(Path(), "subjects", "prove", "3", "people", *options)
    assert answer.returncode == 1
    assert "another engine has rewritten this file" in answer.stderr


def test_metadata_of_a_table_hide_no_other_file_of_its_folder(table: SubjectVault) -> None:
    """Anybody can put an old version beside files; it lists none of them."""
    del table
    Path("plain/metadata").mkdir(parents=True)
    shutil.copy("people/metadata/v1.metadata.json", "plain/metadata")
    mc.write_table(ROWS, "plain/rows.parquet", mc.Settings(policy=mc.Policy.load("policy.toml")))
    assert [line["file"] for line in subjects("export", "2", "plain")] == ["plain/rows.parquet"]
    (proof,) = subjects("prove", "2", "plain", code=1)
    assert not proof["proven"]


def test_a_file_that_is_in_no_table_is_named(table: SubjectVault) -> None:
    answer = run(Path(), "subjects", "prove", "3", "people/data", "--policy", "policy.toml")
    assert "aad-prefix: people/data/" in answer.stderr

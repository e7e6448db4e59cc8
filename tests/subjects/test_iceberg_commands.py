"""`modcrypt iceberg` with a policy that names the vault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from modcrypt.iceberg import open_table
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

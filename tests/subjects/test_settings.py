"""Subjects that policies, Settings and declarations name, with a vault in a database."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt
from modcrypt import Lake, Policy, Settings, SigningKey
from modcrypt.errors import KeyMaterialError, PlaintextError
from modcrypt.kms.key_tools import KeyTools
from modcrypt.subjects import Subjects, SubjectVault
from tests.support.cli.program import run
from tests.support.sample_vault import POLICY, make_rows

PLAIN = 'kms = "file:lake.keyring"\nfooter_key = "people"\n'
LAKE = """
kms = "file:lake.keyring"

[dataset.people]
location = "people"
footer_key = "people"
subjects = "subjects.db"
subject_key = "customer_id"
subject_columns = ["name", "address.*"]
"""


@pytest.fixture
def policy(vault: SubjectVault, tmp_path: Path) -> Policy:
    (tmp_path / "policy.toml").write_text(POLICY)
    return Policy.load("policy.toml")


def test_a_policy_writes_and_reads_cells(policy: Policy) -> None:
    modcrypt.write_table(make_rows(), "a.parquet", policy)
    assert modcrypt.read_table("a.parquet", policy).equals(make_rows())
    only_keys = Settings(kms="file:lake.keyring#people")
    assert modcrypt.read_table("a.parquet", only_keys).schema.field("name").type == pa.binary()
    with_vault = Settings(kms="file:lake.keyring#people", subjects="subjects.db")
    assert modcrypt.read_table("a.parquet", with_vault).equals(make_rows())


def test_each_policy_opens_the_vault_with_its_own_master_keys(policy: Policy) -> None:
    modcrypt.write_table(make_rows(), "a.parquet", policy)
    modcrypt.Keyring("lake.keyring").create_key("other")
    tools = KeyTools("file:lake.keyring")
    for _ in range(2):
        opened = tools.subjects_of(policy)
        refused = tools.subjects_of(dataclasses.replace(policy, footer_key="other"))
        assert isinstance(opened, Subjects)
        assert isinstance(refused, Subjects)
        vault = opened.open_vault()
        assert opened.open_vault() is vault
        with pytest.raises(KeyMaterialError, match="people"):
            refused.open_vault()


def test_tools_and_datasets(policy: Policy, tools: KeyTools) -> None:
    modcrypt.write_dataset(make_rows(), "d", tools.encryption(policy, root="d"))
    assert modcrypt.read_table("d", tools.decryption(policy, root="d")).equals(make_rows())


def test_plaintext_files_are_refused(policy: Policy) -> None:
    pq.write_table(make_rows(), "plain.parquet")
    with pytest.raises(PlaintextError, match="subject_columns"):
        modcrypt.encrypt_parquet("plain.parquet", "a.parquet", policy)
    modcrypt.write_table(make_rows(), "b.parquet", Settings(kms="file:lake.keyring", policy=Policy(
        footer_key="people")))  # fmt: skip
    with pytest.raises(PlaintextError, match="subject_columns"):
        modcrypt.rekey_parquet(
            "b.parquet", "a.parquet", Settings(kms="file:lake.keyring#people"), policy
        )
    assert not Path("a.parquet").exists()


def test_a_lake_declares_subjects(vault: SubjectVault, tmp_path: Path) -> None:
    (tmp_path / "modcrypt.toml").write_text(LAKE)
    dataset = Lake.open("modcrypt.toml").dataset("people")
    dataset.write(make_rows())
    assert dataset.read().equals(make_rows())
    vault.erase(vault.references([b"1"]), "R1")
    assert dataset.read().column("name").to_pylist() == [None, "Bob", None, None]


@pytest.mark.parametrize("in_lake", [False, True])
def test_files_with_cells_may_need_signatures(
    vault: SubjectVault, tmp_path: Path, *, in_lake: bool
) -> None:
    """The key file of the vault has none."""
    run(Path(), "keys", "generate", "--kind", "signing", "writer.key")
    writer, signed = SigningKey.load("writer.key"), 'signed_by = ["writer.pub"]\n'
    if in_lake:
        (tmp_path / "modcrypt.toml").write_text(LAKE + signed)
        dataset = Lake.open("modcrypt.toml", signing_key=writer).dataset("people")
        dataset.write(make_rows())
        assert dataset.read().equals(make_rows())
        return
    (tmp_path / "policy.toml").write_text(POLICY + signed)
    settings = Settings(policy=Policy.load("policy.toml"), signing_key="file:writer.key")
    modcrypt.write_table(make_rows(), "a.parquet", settings)
    assert modcrypt.read_table("a.parquet", settings).equals(make_rows())
    assert run(Path(), "subjects", "status", "--policy", "policy.toml").returncode == 0


def test_failures_are_lines_of_json(policy: Policy) -> None:
    """Also for cells that do not open, whose address is none of a module."""
    modcrypt.write_table(make_rows(), "a.parquet", policy)
    service = Settings(kms="file:lake.keyring#people")
    cells = modcrypt.read_table("a.parquet", service)
    cells = cells.set_column(0, cells.schema.field(0), pa.array([2, 1, 2, 3]))
    modcrypt.write_table(cells, "b.parquet", Settings(policy=Policy.loads(PLAIN)))
    for command in (("subjects", "prove", "1"), ("subjects", "export", "1"), ("cat", "-o", "c")):
        answer = run(Path(), *command, "b.parquet", "--policy", "policy.toml", "--json")
        assert answer.returncode == 1
        failure = json.loads(answer.stdout)
        assert failure["error"] == "tag"
        assert failure["module"] == {"type": "cell", "path": "name"}


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ('subject_key = "customer_id"', "", "subject_columns needs subject_key"),
        ('subjects = "subjects.db"', "", "subject_columns needs subjects"),
        ('subject_columns = ["name", "address.*"]', "", "subject_key needs subject_columns"),
        ('"name", "address.*"', "1", "subject_columns must be"),
    ],
)
def test_incomplete_policies(old: str, new: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        Policy.loads(POLICY.replace(old, new))


def test_subjects_need_a_key_service() -> None:
    with pytest.raises(ValueError, match="subjects need a key service"):
        Settings(footer_key="file:x", subjects="subjects.db")


def export(*arguments: str, stdin: bytes | None = None) -> list[dict[str, Any]]:
    kms = "--kms", "file:lake.keyring"
    answer = run(Path(), "subjects", "export", *arguments, *kms, stdin=stdin)
    assert answer.returncode == 0, answer.stderr
    return [json.loads(line) for line in answer.stdout.splitlines()]


def test_export_prints_all_rows_of_a_person(policy: Policy, vault: SubjectVault) -> None:
    modcrypt.write_table(make_rows(), "a.parquet", policy)
    lines = export("1", "a.parquet")
    assert [line["row"]["name"] for line in lines] == ["Ada", "Ada"]
    assert lines[0]["row"]["address"] == {"street": "0 Main St", "city": "Oslo", "floor": 0}
    assert lines[0]["erased"] == []
    both = export("-", "a.parquet", stdin=b"1\n2\r\n1\n")
    assert [line["row"]["name"] for line in both] == ["Ada", "Ada", "Bob"]
    vault.erase(vault.references([b"1"]), "R1")
    lines = export("1", "a.parquet")
    assert [line["row"]["name"] for line in lines] == [None, None]
    assert lines[0]["erased"] == ["address.city", "address.floor", "address.street", "name"]
    assert lines[0]["row"]["amount"] == 1.5

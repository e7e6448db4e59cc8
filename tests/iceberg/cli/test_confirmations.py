"""Dangerous options and commands ask for a confirmation, and do nothing without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import modcrypt as mc
from modcrypt.cli.app import program
from modcrypt.iceberg import IcebergTable, append, create_table, open_table
from tests.support.cases import each_case
from tests.support.cli.answers import check_refusal
from tests.support.folder_contents import files
from tests.support.iceberg.made_tables import SCHEMA
from tests.support.iceberg.table_changes import rows
from tests.support.paths import ROOT
from tests.support.tables import write_plain

RING = ("--kms", "file:lake.keyring")
TABLE = (*RING, "table")
DANGEROUS = {
    "keys destroy": ("keys", "destroy", *RING, "lake"),
    "expire": ("iceberg", "expire", *TABLE),
    "--drop-refs": ("iceberg", "expire", "--drop-refs", *TABLE),
    "purge": ("iceberg", "purge", *TABLE),
    "--encrypt-plaintext": ("iceberg", "rotate", "dek", "--encrypt-plaintext", *TABLE),
    "remove-orphans": ("iceberg", "admin", "remove-orphans", "--older-than", "0", *TABLE),
    "--foreign": ("iceberg", "admin", "remove-orphans", "--foreign", *TABLE),
    "--drop-lost": ("iceberg", "admin", "repair", "--drop-lost", *TABLE),
    "--trust-plaintext": ("iceberg", "admin", "repair", "--trust-plaintext", *TABLE),
    "--accept": (
        "iceberg",
        "seal",
        "--accept",
        "--sign",
        "file:writer.key",
        *TABLE,
    ),
    "--accept-replaced": ("apply", "--accept-replaced", "--config", "modcrypt.toml"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A keyring, a table of two snapshots whose first one has a tag, and a lake."""
    monkeypatch.chdir(tmp_path)
    ring = mc.Keyring.create("lake.keyring", plaintext=True)
    ring.create_key("lake")
    table = create_table(tmp_path / "table", SCHEMA, ring, master_key_id="lake")
    for number in (1, 2):
        table = append(table, rows(number))
    add_tag(table, "old")
    mc.SigningKey.generate().save("writer.key")
    (tmp_path / "table/data/left.parquet").write_bytes(b"PARE")
    (tmp_path / "data").mkdir()
    write_plain(tmp_path / "data" / "a.parquet")
    (tmp_path / "lake.toml").write_text('footer_key = "lake"\n')
    (tmp_path / "modcrypt.toml").write_text(
        'kms = "file:lake.keyring"\n[dataset.data]\nlocation = "data"\npolicy = "lake.toml"\n'
    )
    return tmp_path


def add_tag(table: IcebergTable, name: str) -> None:
    first = table.metadata.snapshots[0].id
    refs: dict[str, Any] = {**table.metadata.document["refs"]}
    refs[name] = {"snapshot-id": first, "type": "tag"}
    table.versions.commit(table.place, table.metadata.with_members(refs=refs))


def answer(arguments: tuple[str, ...], typed: str, monkeypatch: pytest.MonkeyPatch) -> Result:
    """Run a command on a terminal, on which something is typed."""
    monkeypatch.setattr("modcrypt.cli.shared.is_terminal", lambda stream: True)
    return CliRunner().invoke(program, arguments, input=typed)


@each_case("name", DANGEROUS)
def test_nothing_is_done_without_a_confirmation(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files(folder)
    refused = CliRunner().invoke(program, DANGEROUS[name])
    assert "pass --yes to confirm it" in check_refusal(refused)
    declined = answer(DANGEROUS[name], "n\n", monkeypatch)
    assert declined.exit_code == 2
    assert answer(DANGEROUS[name], "", monkeypatch).exit_code == 2  # the end of the input
    assert declined.stderr.count("Continue? [y/N]") == 1
    assert "not confirmed; nothing was changed" in declined.stderr
    assert files(folder) == before


@each_case("name", DANGEROUS)
def test_a_confirmation_is_an_option_or_an_answer(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = DANGEROUS[name]
    typed = answer(arguments, "y\n" * 2, monkeypatch)
    assert typed.exit_code == 0, typed.stderr


def test_the_documentation_lists_what_needs_a_confirmation() -> None:
    page = (ROOT / "docs/reference/deleting.md").read_text().partition("need a confirmation")[2]
    assert [name for name in DANGEROUS if f"{name}`" not in page] == []


def test_dropped_refs_lose_their_snapshots(folder: Path) -> None:
    expire = ("iceberg", "expire", "--yes", *TABLE)
    kms = mc.kms.open_kms("file:lake.keyring")
    assert CliRunner().invoke(program, expire).exit_code == 0
    assert len(open_table("table", kms).metadata.snapshots) == 2
    assert CliRunner().invoke(program, [*expire, "--drop-refs"]).exit_code == 0
    left = open_table("table", kms).metadata
    assert (len(left.snapshots), {*left.document["refs"]}) == (1, {"main"})

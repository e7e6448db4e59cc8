"""`modcrypt shred` as users meet it: nothing without --yes, and proofs with their exit codes."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

import modcrypt as mc
from modcrypt.cli import app
from modcrypt.cli.shred import shred
from tests.support.cases import each_case
from tests.support.folder_contents import bytes_of
from tests.support.kms.rotating_kms import RotatingKms
from tests.support.ports import find_free_port
from tests.support.sleeps import note_sleeps
from tests.support.tables import small_table

if "shred" not in app.program.commands:
    app.program.add_command(shred)

RING = ("--kms", "file:lake.keyring")
TABLE = small_table()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A keyring in the clear, and a lake of three files, of the tenants t6, t7 and t7."""
    ring = mc.Keyring.create(tmp_path / "lake.keyring", plaintext=True)
    for name in ("t6", "t7", "pii"):
        ring.create_key(name)
    tools = mc.KeyTools(ring)
    (tmp_path / "lake").mkdir()
    for number, (tenant, internal) in enumerate((("t6", True), ("t7", True), ("t7", False))):
        policy = mc.Policy(
            footer_key=tenant, column_keys={"pii": ["name"]}, internal_key_material=internal
        )
        path = tmp_path / "lake" / f"part-{number}.parquet"
        mc.write_table(TABLE, path, tools.encryption(policy))
    return tmp_path


def invoke(folder: Path, *arguments: str) -> Result:
    with contextlib.chdir(folder):
        return CliRunner().invoke(app.program, ("shred", *arguments))


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def rows(folder: Path, number: int, **options: Any) -> pa.Table:
    tools = mc.KeyTools(mc.Keyring(folder / "lake.keyring"))
    path = folder / "lake" / f"part-{number}.parquet"
    return mc.read_table(path, tools.decryption(**options))


# --- what it does --------------------------------------------------------------------------------


def test_without_yes_nothing_is_changed_and_it_says_so(folder: Path) -> None:
    before = bytes_of(folder)
    for more in ((), ("--dry-run",)):
        result = invoke(folder, *RING, "--column", "name", *more, "lake")
        assert result.exit_code == 0
        assert result.stdout == "3 files: 3 to be shredded; 3 keys\n"
        assert result.stderr == "modcrypt: nothing was changed; pass --yes to shred permanently\n"
    ending = ("--master-key", "t7", "--destroy-master-key")
    result = invoke(folder, *RING, *ending, "lake")
    assert "master key t7 would be destroyed" in result.stdout
    assert "2 files: removing the footer key makes the whole file unreadable" in result.stdout
    assert bytes_of(folder) == before


def test_a_column_is_shredded_and_proven(folder: Path) -> None:
    result = invoke(folder, *RING, "--column", "name", "--yes", "--prove", "lake")
    assert (result.exit_code, result.stderr) == (0, "")
    for number in range(3):
        with pytest.raises(mc.errors.KeyNotFoundError):
            rows(folder, number)
        assert rows(folder, number, on_missing_key="drop").equals(TABLE.drop_columns(["name"]))
    assert "3 files: 3 shredded; 3 keys\n" in result.stdout
    assert "Removed keys may survive" in result.stdout
    for path in sorted((folder / "lake").glob("*.parquet")):
        assert hashlib.sha256(path.read_bytes()).hexdigest() in result.stdout
    assert result.stdout.splitlines()[-1] == (
        "Proven: 3 no longer readable, 0 still readable, 0 unknown."
    )
    again = invoke(folder, *RING, "--column", "name", "--yes", "lake")
    assert again.stdout == "3 files: 3 current; 0 keys\n"


def test_a_proof_alone_writes_nothing_and_its_exit_code_says_so(folder: Path) -> None:
    before = bytes_of(folder)
    result = invoke(folder, *RING, "--column", "name", "--prove", "lake")
    assert (result.exit_code, result.stderr) == (1, "")
    assert "NOT proven: 0 no longer readable, 3 still readable, 0 unknown." in result.stdout
    result = invoke(folder, "--all", "--prove", "--json", "lake")  # no key service is asked
    *files, summary = lines(result)
    assert (result.exit_code, summary["ok"], summary["key_service"]) == (1, False, None)
    assert {key["state"] for file in files for key in file["keys"]} == {"unknown"}
    assert bytes_of(folder) == before


def test_json_has_a_line_for_each_file_and_the_totals(folder: Path) -> None:
    result = invoke(folder, *RING, "--column", "name", "--yes", "--prove", "--json", "lake")
    assert (result.exit_code, result.stderr) == (0, "")
    reported = lines(result)
    assert [
        (line["file"], line["result"], line["keys"], line["columns"]) for line in reported[:3]
    ] == [(f"lake/part-{n}.parquet", "shredded", 1, ["name"]) for n in range(3)]
    totals = reported[3]
    assert (totals["files"], totals["shredded"], totals["keys"]) == (3, 3, 3)
    assert totals["dry_run"] is False
    assert [line["keys"][0]["state"] for line in reported[4:7]] == ["gone"] * 3
    proof = reported[7]
    assert (proof["proof"], proof["ok"], proof["files"]) == ("shredded", True, 3)
    assert proof["criteria"] == {"columns": ["name"], "master_keys": [], "everything": False}


def test_a_tenants_files_and_then_its_master_key_go(folder: Path) -> None:
    ending = ("--master-key", "t7", "--destroy-master-key", "--yes")
    result = invoke(folder, *RING, *ending, "--json", "lake")
    assert result.exit_code == 0
    *files, ended, totals = lines(result)
    assert [file["result"] for file in files] == ["current", "shredded", "shredded"]
    assert [file["whole"] for file in files] == [False, True, True]
    assert (ended["result"], ended["master_key_id"]) == ("destroyed", "t7")
    assert totals["whole"] == 2
    assert rows(folder, 0).equals(TABLE)
    for number in (1, 2):
        with pytest.raises(mc.ModcryptError):
            rows(folder, number, on_missing_key="drop")
    states = {key.id: key.enabled for key in mc.Keyring(folder / "lake.keyring").list_keys()}
    assert states == {"t6": True, "pii": True, "t7": False}
    proven = invoke(folder, *RING, "--master-key", "t7", "--prove", "lake")
    assert proven.exit_code == 0


def test_a_partition_goes_without_a_key_service(folder: Path) -> None:
    result = invoke(folder, "--all", "--yes", "--prove", "lake")
    assert result.exit_code == 0
    assert "3 files: 3 shredded; 4 keys, 3 files as a whole" in result.stdout
    assert sorted(path.name for path in (folder / "lake").iterdir()) == [
        f"part-{n}.parquet" for n in range(3)
    ]
    for number in range(3):
        with pytest.raises(mc.ModcryptError):
            rows(folder, number, on_missing_key="drop")


@each_case("selection", [("--column", "name"), ("--master-key", "t7"), ("--all",)])
def test_a_second_run_finds_its_work_done(folder: Path, selection: tuple[str, ...]) -> None:
    invoke(folder, *RING, *selection, "--yes", "lake")
    before = bytes_of(folder)
    result = invoke(folder, *RING, *selection, "--yes", "--json", "lake")
    assert result.exit_code == 0
    *files, totals = lines(result)
    assert {file["result"] for file in files} == {"current"}
    assert (totals["current"], totals["shredded"], totals["failed"]) == (3, 0, 0)
    assert bytes_of(folder) == before


def test_an_interrupted_run_is_taken_up_by_its_record(folder: Path) -> None:
    how = (*RING, "--column", "name", "--yes", "--record", "run.jsonl", "--json")
    assert invoke(folder, *how, "lake/part-1.parquet").exit_code == 0
    result = invoke(folder, *how, "lake")
    assert [line["result"] for line in lines(result)[:3]] == ["shredded", "current", "shredded"]


def test_a_policy_says_which_prefix_files_have(folder: Path) -> None:
    text = 'kms = "file:lake.keyring"\nfooter_key = "t6"\naad_prefix = "lake/{name}"\n'
    text += 'store_aad_prefix = false\n[column_keys]\npii = ["name"]\n'
    (folder / "lake.toml").write_text(text)
    with contextlib.chdir(folder):
        policy = mc.Policy.load("lake.toml")
        mc.write_table(TABLE, "a.parquet", mc.KeyTools.from_policy(policy).encryption(policy))
    how = ("--column", "name", "--yes", "--prove", "a.parquet")
    assert invoke(folder, *RING, *how).exit_code == 1
    result = invoke(folder, "--policy", "lake.toml", *how)
    assert (result.exit_code, result.stderr) == (0, "")


def test_what_is_shredded_is_audited(folder: Path) -> None:
    how = ("--column", "name", "--yes", "--audit", "audit.jsonl")
    assert invoke(folder, *RING, *how, "lake").exit_code == 0
    events = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
    shredded = [event for event in events if event["operation"] == "shred"]
    assert len(shredded) == 3
    assert {event["master_key_id"] for event in shredded} == {"pii"}


# --- what goes wrong -----------------------------------------------------------------------------


def test_files_that_fail_are_listed_and_the_exit_code_is_of_their_reason(folder: Path) -> None:
    result = invoke(folder, *RING, "--column", "score", "--yes", "lake")
    assert result.exit_code == 3
    titles, first, *_, summary = result.stdout.splitlines()
    assert titles.split() == ["file", "result", "message"]
    assert first.startswith(
        "lake/part-0.parquet  key-material  columns encrypted with the footer key: score"
    )
    assert summary == "3 files: 3 failed; 0 keys"
    assert invoke(folder, "--column", "name", "--yes", "lake").exit_code == 3  # no key
    ring = mc.Keyring(folder / "lake.keyring")
    ring.disable_key("t6")
    ring.disable_key("t7")
    result = invoke(folder, *RING, "--column", "name", "--yes", "--json", "lake")
    assert result.exit_code == 3 or {line["result"] for line in lines(result)[:3]} == {"disabled"}
    pq.write_table(TABLE, folder / "plain.parquet")
    result = invoke(folder, "--all", "--yes", "plain.parquet")
    assert result.exit_code == 1
    assert "no keys to shred" in result.stdout


def test_a_column_that_no_file_has_is_reported(folder: Path) -> None:
    result = invoke(folder, *RING, "--column", "name", "--column", "nmae", "--yes", "lake")
    assert result.exit_code == 1
    assert "no file has a column nmae\n" in result.stdout
    result = invoke(folder, *RING, "--column", "nmae", "--json", "lake")
    assert (result.exit_code, lines(result)[-1]["unmet"]) == (1, ["nmae"])
    result = invoke(folder, *RING, "--column", "nmae", "--prove", "lake")
    assert result.exit_code == 1
    assert "No file has a column nmae." in result.stdout


def test_a_key_service_that_is_away_is_4(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("hvac")
    note_sleeps(monkeypatch)
    monkeypatch.setenv("VAULT_TOKEN", "token")
    away = ("--kms", f"hcvault://127.0.0.1:{find_free_port()}/transit?tls=off")
    policy = mc.Policy(footer_key="t7", column_keys={"t7": ["name"]})
    mc.write_table(TABLE, folder / "a.parquet", mc.KeyTools(RotatingKms(t7=1)).encryption(policy))
    for more in (("--column", "name", "--yes"), ("--master-key", "t7", "--prove")):
        result = invoke(folder, *away, *more, "a.parquet")
        assert result.exit_code == 4, result.output


@each_case(
    ("arguments", "message"),
    [
        (("lake",), "one of --column, --master-key and --all"),
        (("--all", "--column", "name", "lake"), "one of --column, --master-key and --all"),
        (("--all", "--destroy-master-key", "lake"), "needs --master-key"),
        (("--master-key", "t7", "--destroy-master-key", "lake"), "--kms or --policy"),
        (("--all", "--audit", "a", "lake"), "--kms or --policy"),
        (("--all", "absent"), "No such file"),
        (("--all",), "PATH"),
        ((*RING, "--column", "", "lake"), "a column name is empty"),
    ],
)
def test_usage(arguments: tuple[str, ...], message: str, folder: Path) -> None:
    before = bytes_of(folder)
    result = invoke(folder, *arguments, *(() if arguments[-1] == "absent" else ("--yes",)))
    assert result.exit_code == 2
    assert message in result.stderr
    assert bytes_of(folder) == before


def test_names_of_columns_and_files_cannot_write_to_the_terminal(folder: Path) -> None:
    table = pa.table({"a\x1b[2Jb": [1], "c": [2]})
    tools = mc.KeyTools(mc.Keyring(folder / "lake.keyring"))
    policy = mc.Policy(footer_key="t6", column_keys={"pii": ["a\x1b[2Jb"]})
    mc.write_table(table, folder / "x\x1b[0m.parquet", tools.encryption(policy))
    for how in (("--all", "--prove"), ("--column", "c", "--yes"), ("--all", "--yes", "--prove")):
        result = invoke(folder, *RING, *how, "x\x1b[0m.parquet")
        assert "\x1b" not in result.output

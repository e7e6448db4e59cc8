"""The states of files, compared with the declaration, and the cache of states."""

from __future__ import annotations

import datetime
import os
import shutil
import stat
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt.lake import examination
from modcrypt.lake.files.file_states import FileState
from modcrypt.lake.files.lake_files import LakeFile
from modcrypt.lake.key_ages import KeyAges
from modcrypt.lake.lake import Lake
from modcrypt.lake.status import DatasetStatus
from tests.support.cases import each_case
from tests.support.cli.program import run
from tests.support.forging import flip
from tests.support.lake_folder import DECLARATION, make_lake, order_table, trust_lake

FIRST = "day=2026-11-01/part-0.parquet"


def status_of(config: Path) -> DatasetStatus:
    (status,) = Lake.open(config).status()
    return status


def state_of(config: Path, path: str = FIRST) -> FileState:
    return next(file for file in status_of(config).files if file.path == path)


def redeclare(config: Path, *changes: tuple[str, str]) -> None:
    text = config.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    config.write_text(text)


# --- states --------------------------------------------------------------------------------------


def test_plaintext_files_are_plaintext_until_they_are_encrypted(tmp_path: Path) -> None:
    config = make_lake(tmp_path)
    assert status_of(config).counts == {"plaintext": 4}
    Lake.open(config).apply()
    status = status_of(config)
    assert status.counts == {"declared": 4}
    assert status.is_declared
    file = status.files[0]
    assert (file.rows, file.columns, file.encrypted_columns) == (2, 4, 3)
    masters = {key.column: (key.master_key_id, key.version) for key in file.keys}
    assert masters == {None: ("footer", "1"), "home_ssn": ("pii", "1"), "mail": ("pii", "1")}


@each_case(
    "old, new, why",
    [
        ('["*_ssn", { pii', '[{ pii', "column home_ssn is encrypted differently"),
        ('["country"]', "[]", "column country is encrypted differently, or not encrypted"),
        (
            'footer_key = "footer"', 'footer_key = "footer"\nplaintext_footer = true',
            "its footer is encrypted",
        ),
        (
            'footer_key = "footer"', 'footer_key = "footer"\ndata_key_length_bits = 256',
            "its footer key has 128 bits, not 256",
        ),
        (
            'footer_key = "footer"', 'footer_key = "footer"\ndouble_wrapping = false',
            "its footer key is not wrapped (single or double) as in the policy",
        ),
    ],
)  # fmt: skip
def test_a_changed_declaration_is_another_policy(
    old: str, new: str, why: str, tmp_path: Path
) -> None:
    config = make_lake(tmp_path, days=1, files=1)
    Lake.open(config).apply()
    redeclare(config, (old, new))
    state = state_of(config)
    assert (state.state, state.reason) == ("other-policy", "")
    assert why in state.message
    Lake.open(config).apply()
    assert status_of(config).counts == {"declared": 1}


def test_a_file_under_another_master_key_is_not_opened(config: Path, tmp_path: Path) -> None:
    mc.Keyring(tmp_path / "lake.keyring").create_key("other")
    tools = mc.KeyTools(f"file:{tmp_path}/lake.keyring")
    policy = mc.Policy(footer_key="other", aad_prefix="orders/{path}")
    encryption = tools.encryption(policy, root=str(tmp_path / "orders"))
    mc.write_table(order_table(), tmp_path / "orders" / FIRST, encryption, overwrite=True)
    state = state_of(config)
    assert (state.state, state.keys[0].master_key_id) == ("other-keys", "other")
    assert "wrapped under master key 'other'" in state.message


def test_swapped_files_are_misplaced(config: Path, tmp_path: Path) -> None:
    first, second = (tmp_path / f"orders/day=2026-11-0{day}/part-0.parquet" for day in (1, 2))
    first.rename(tmp_path / "x")
    second.rename(first)
    (tmp_path / "x").rename(second)
    assert status_of(config).counts == {"declared": 2, "misplaced": 2}


@each_case("how, reason", [("disable_key", "disabled"), ("destroy_key", "destroyed")])
def test_unreadable_files_say_why(how: str, reason: str, tmp_path: Path) -> None:
    config = make_lake(tmp_path, days=1, files=1)
    Lake.open(config).apply()
    assert status_of(config).counts == {"declared": 1}  # cached from now on
    getattr(mc.Keyring(tmp_path / "lake.keyring"), how)("pii")
    status = status_of(config)
    assert (status.counts, status.reasons) == ({"unreadable": 1}, {reason: 1})


def test_a_damaged_file_is_unreadable_and_the_others_are_not(config: Path, tmp_path: Path) -> None:
    path = tmp_path / "orders" / FIRST
    flip(path, path.stat().st_size - 20)
    status = status_of(config)
    assert status.counts == {"declared": 3, "unreadable": 1}
    assert status.reasons == {"tag": 1}
    path.write_bytes(b"no Parquet")
    assert status_of(config).reasons == {"format": 1}


def test_a_stripped_footer_is_no_plaintext_file(config: Path, tmp_path: Path) -> None:
    redeclare(config, ('footer_key = "footer"', 'footer_key = "footer"\nplaintext_footer = true'))
    Lake.open(config).apply()
    path = tmp_path / "orders" / FIRST
    data = path.read_bytes()
    assert data[-4:] == b"PAR1"
    size = int.from_bytes(data[-8:-4], "little")
    bare = data[: -8 - 28] + (size - 28).to_bytes(4, "little") + b"PAR1"
    path.write_bytes(bare)
    assert state_of(config).state == "unreadable"


def test_a_dataset_that_does_not_exist_is_an_error_of_its_own(config: Path, tmp_path: Path) -> None:
    other = '[dataset.none]\nlocation = "none"\nfooter_key = "footer"\n\n'
    redeclare(config, ("[dataset.orders]", f"{other}[dataset.orders]"))
    none, orders = Lake.open(config).status()
    assert (none.error, none.code) == (f"{tmp_path}/none: No such file or directory", 2)
    assert orders.counts == {"declared": 4}
    with pytest.raises(ValueError, match="no dataset order; did you mean orders"):
        Lake.open(config).status("order")


def test_strays_are_listed(config: Path, tmp_path: Path) -> None:
    (tmp_path / "orders" / "notes.txt").write_text("no Parquet")
    (tmp_path / "orders" / "_tmp").write_text("hidden")
    assert status_of(config).strays == ["notes.txt"]


def test_a_name_that_is_not_utf_8_is_a_name(config: Path, tmp_path: Path) -> None:
    name = os.fsencode(tmp_path / "orders") + b"/day=2026-11-01/\xff.parquet"
    pq.write_table(order_table(), tmp_path / "x.parquet")
    os.rename(tmp_path / "x.parquet", name)
    Lake.open(config).apply()
    for _ in range(2):
        assert status_of(config).counts == {"declared": 5}
    assert Lake.open(config).verify()[0].code == 0
    assert status_of(config).unverified == 0


# --- partitions in keys --------------------------------------------------------------------------

TENANTS = """\
kms = "file:lake.keyring"

[dataset.orders]
location = "orders"
partitions = ["tenant"]
footer_key = "tenant-{partition.tenant}"
"""


def test_each_tenant_has_a_master_key(tmp_path: Path) -> None:
    config = make_lake(tmp_path, days=0, declaration=TENANTS)
    for tenant in ("acme", "globex"):
        mc.Keyring(tmp_path / "lake.keyring").create_key(f"tenant-{tenant}")
        (tmp_path / f"orders/tenant={tenant}").mkdir(parents=True)
        pq.write_table(order_table(), tmp_path / f"orders/tenant={tenant}/a.parquet")
    Lake.open(config).apply()
    acme, globex = status_of(config).files
    assert [file.keys[0].master_key_id for file in (acme, globex)] == [
        "tenant-acme", "tenant-globex",
    ]  # fmt: skip
    shutil.copy(tmp_path / "orders/tenant=acme/a.parquet", tmp_path / "orders/tenant=globex/")
    assert [file.state for file in status_of(config).files] == ["declared", "other-keys"]
    (tmp_path / "orders/tenant=acme%2F..").mkdir()
    shutil.copy(tmp_path / "orders/tenant=acme/a.parquet", tmp_path / "orders/tenant=acme%2F..")
    state = state_of(config, "tenant=acme%2F../a.parquet")
    assert state.state == "unreadable"
    assert "cannot be part of a key's name" in state.message


# --- the ages of keys ----------------------------------------------------------------------------


def test_keys_under_older_versions_are_old_once_the_rules_say_so(
    config: Path, tmp_path: Path
) -> None:
    mc.Keyring(tmp_path / "lake.keyring").rotate_key("pii")
    assert status_of(config).counts == {"declared": 4}
    config.write_text(config.read_text() + '\n[dataset.orders.rotation]\nrewrap_after = "0d"\n')
    status = status_of(config)
    assert status.counts == {"old-keys": 4}
    assert status.files[0].message == "under version 1 of pii; the newest is 2"
    redeclare(config, ('"0d"', '"30d"'))
    assert status_of(config).counts == {"declared": 4}
    Lake.open(config).apply()


def test_a_master_key_is_due_for_a_new_version_by_its_age(config: Path) -> None:
    config.write_text(config.read_text() + '\n[dataset.orders.rotation]\nmax_version_age = "90d"\n')
    lake = Lake.open(config)
    assert lake.status()[0].due_keys == []
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=91)
    lake.__dict__["ages"] = KeyAges(lake.client, lambda: later)
    (status,) = lake.status()
    assert status.due_keys == ["footer", "pii"]
    assert not status.is_declared
    assert status.counts == {"declared": 4}


# --- the cache -----------------------------------------------------------------------------------


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the files that are examined from now on."""
    names = []
    run = examination.FooterExamination.run

    def watched(self: examination.FooterExamination, file: LakeFile) -> FileState:
        names.append(file.path)
        return run(self, file)

    monkeypatch.setattr(examination.FooterExamination, "run", watched)
    return names


def test_a_second_status_opens_one_file_for_each_kek(config: Path, opened: list[str]) -> None:
    first = status_of(config)
    assert len(opened) == 4
    opened.clear()
    assert status_of(config).files == first.files
    assert len(opened) == 1  # all files have the same KEKs


def test_a_changed_file_is_examined_again(config: Path, opened: list[str], tmp_path: Path) -> None:
    status_of(config)
    opened.clear()
    os.utime(tmp_path / "orders/day=2026-11-02/part-1.parquet", (1, 1))
    assert status_of(config).counts == {"declared": 4}
    assert sorted(Counter(Path(name).name for name in opened).items()) == [
        ("part-0.parquet", 1), ("part-1.parquet", 1),
    ]  # fmt: skip


def test_another_declaration_uses_no_result_of_the_old_one(config: Path, opened: list[str]) -> None:
    status_of(config)
    opened.clear()
    redeclare(config, ("strict", "strict") if "strict" in DECLARATION else ('["country"]', "[]"))
    assert status_of(config).counts == {"other-policy": 4}
    assert len(opened) == 4


def test_the_cache_is_private_and_holds_no_keys(config: Path, own_lake_cache: Path) -> None:
    status_of(config)
    (path,) = own_lake_cache.rglob("*.sqlite")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    data = path.read_bytes()
    assert b"home_ssn" in data
    assert b"wrapped" not in data
    assert b"DEK" not in data


def test_a_cache_that_cannot_be_used_is_done_without(
    config: Path, own_lake_cache: Path, opened: list[str]
) -> None:
    status_of(config)
    (path,) = own_lake_cache.rglob("*.sqlite")
    path.write_bytes(b"no database")
    opened.clear()
    assert status_of(config).counts == {"declared": 4}
    assert len(opened) == 4
    path.unlink()
    path.touch(0o644)
    path.chmod(0o644)  # others might have written it
    assert status_of(config).counts == {"declared": 4}
    assert path.read_bytes() == b""


def test_the_cache_is_no_proof_of_verification(config: Path, tmp_path: Path) -> None:
    assert status_of(config).unverified == 4
    Lake.open(config).verify()
    assert status_of(config).unverified == 0
    os.utime(tmp_path / "orders" / FIRST, (1, 1))
    assert status_of(config).unverified == 1


def test_a_file_without_a_stamp_is_never_taken_for_an_old_one(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some stores report nothing by which a version of a file is known again."""
    monkeypatch.setattr("modcrypt.lake.files.lake_files.make_stamp", lambda *status: "")
    for _ in range(2):
        assert status_of(config).unverified == 4
        assert Lake.open(config).verify(since="last")[0].skipped == 0


def test_lines_of_json_name_their_schema(config: Path) -> None:
    status = status_of(config)
    totals = status.fields()
    assert totals["schema"] == "modcrypt.lake.status/1"
    assert (totals["files"], totals["states"], totals["not_verified"]) == (4, {"declared": 4}, 4)
    lines = list(status.file_fields())
    assert [line["file"] for line in lines] == [file.path for file in status.files]
    assert lines[0]["keys"][0] == {
        "column": None, "master_key_id": "footer", "version": "1",
        "kek_id": status.files[0].keys[0].kek_id,
    }  # fmt: skip


def test_the_exit_code_says_whether_all_is_as_declared(config: Path, tmp_path: Path) -> None:
    trust_lake(tmp_path)
    assert run(tmp_path, "status", "--exit-code").returncode == 0
    pq.write_table(order_table(), tmp_path / "orders/day=2026-11-01/plain.parquet")
    assert run(tmp_path, "status").returncode == 0
    assert run(tmp_path, "status", "--exit-code").returncode == 1
    assert run(tmp_path, "apply").returncode == 0
    assert run(tmp_path, "status", "--exit-code").returncode == 0
    (tmp_path / "orders/notes.txt").write_text("no Parquet")
    assert run(tmp_path, "status", "--exit-code").returncode == 1

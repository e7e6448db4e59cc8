"""Hostile folders, files and caches; processes that are killed, or run at the same time."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt.lake.lake import Lake
from tests.support.cases import each_case
from tests.support.crash import run as start
from tests.support.lake_folder import make_lake, order_table, write_day

FIRST = "orders/day=2026-11-01/part-0.parquet"

APPLY = """
import sys, modcrypt as mc
(done,) = mc.Lake.open(sys.argv[1]).apply(jobs=2)
print(done.code, done.changed)
"""

# --- folders that a hostile writer names ---------------------------------------------------------

TENANTS = """\
kms = "file:lake.keyring"

[dataset.orders]
location = "orders"
partitions = ["tenant", "day"]
footer_key = "tenant-{partition.tenant}"
aad_prefix = "{partition.tenant}/{partition.day}/{path}"
"""


@each_case(
    "folder",
    [
        "tenant=..%2F..%2Fetc/day=1", "tenant=%2e%2e/day=1", "tenant=a%00b/day=1", "tenant=/day=1",
        "tenant=acme/tenant=globex/day=1", "tenant=a{partition.day}/day=1", "tenant=acme",
        "tenant=a%2Fb/day=1", f"tenant={'a' * 65}/day=1", "tenant=acme%0A/day=1", "tenant=é/day=1",
        "tenant=__HIVE_DEFAULT_PARTITION__/day=1", "tenant=acme/day=2026-11-01%2Fx",
        "TENANT=a/day=1",
    ],
)  # fmt: skip
def test_the_name_of_a_folder_chooses_no_other_key(folder: str, tmp_path: Path) -> None:
    config = make_lake(tmp_path, days=0, declaration=TENANTS)
    path = tmp_path / "orders" / folder / "a.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(order_table(), path)
    before = path.read_bytes()
    lake = Lake.open(config)
    (done,) = lake.apply()
    assert [file.code != 0 for file in done.files] == [True]
    assert path.read_bytes() == before
    assert lake.verify()[0].code == 1
    with pytest.raises((ValueError, mc.ModcryptError)):
        lake.dataset("orders").read()


@each_case("location", ["orders", "orders/*.parquet"])
def test_apply_follows_no_link_out_of_the_dataset(location: str, tmp_path: Path) -> None:
    config = make_lake(tmp_path, days=1, files=1)
    config.write_text(config.read_text().replace('location = "orders"', f'location = "{location}"'))
    if "*" in location:
        config.write_text(config.read_text().replace('include = "*.parquet"\n', ""))
    outside = tmp_path / "outside"
    outside.mkdir()
    pq.write_table(order_table(), outside / "a.parquet")
    before = (outside / "a.parquet").read_bytes()
    (tmp_path / "orders/day=2026-11-09").symlink_to(outside)
    (tmp_path / "orders/b.parquet").symlink_to(outside / "a.parquet")
    (done,) = Lake.open(config).apply()
    assert {file.path: file.result for file in done.files} == {
        "b.parquet": "file", "day=2026-11-01/part-0.parquet": "encrypted",
        "day=2026-11-09/a.parquet": "file",
    }  # fmt: skip
    assert (outside / "a.parquet").read_bytes() == before
    assert sorted(os.listdir(outside)) == ["a.parquet"]


# --- the cache -----------------------------------------------------------------------------------


@pytest.fixture
def verified(tmp_path: Path) -> Path:
    """Return the declaration of a lake that was verified."""
    config = make_lake(tmp_path)
    Lake.open(config).apply()
    Lake.open(config).status()
    assert Lake.open(config).verify()[0].code == 0
    return config


def test_an_altered_file_with_the_old_size_and_time_is_not_verified(verified: Path) -> None:
    path = verified.parent / FIRST
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    with open(path, "r+b") as file:  # the same inode
        file.write(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    (found,) = Lake.open(verified).status()
    assert (found.unverified, found.files[0].verified) == (1, False)
    assert Lake.open(verified).verify(since="last")[0].code == 1
    assert Lake.open(verified).verify(resume=True)[0].code == 1
    assert Lake.open(verified).verify()[0].code == 1


def alter(cache: Path, *statements: str) -> None:
    (path,) = cache.rglob("*.sqlite")
    with sqlite3.connect(path) as database:
        for statement in statements:
            database.execute(statement)
    database.close()


def test_a_forged_cache_hides_nothing_from_verify(verified: Path, own_lake_cache: Path) -> None:
    """It can only be forged by whoever can act as the user; a full `verify` does not use it."""
    path = verified.parent / FIRST
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    (file, *_) = Lake.open(verified).list_files("orders")
    alter(
        own_lake_cache,
        f"UPDATE files SET stamp = '{file.stamp}', state = 'declared'",
        f"UPDATE correct_files SET stamp = '{file.stamp}', time = 9e9",
    )
    assert Lake.open(verified).verify()[0].code == 1
    assert Lake.open(verified).dataset("orders").policies.root.is_folder
    with pytest.raises(mc.ModcryptError):
        Lake.open(verified).dataset("orders").read()


@each_case(
    "statement",
    [
        "UPDATE files SET state = 'nonsense'", "UPDATE files SET size = 'x', rows = X'00'",
        "UPDATE files SET keys = 99", "UPDATE keys SET uses = '[[' || id || ']]'",
        "UPDATE keys SET uses = 'x' || id", "DROP TABLE files", "DROP TABLE correct_files",
        "DROP TABLE keys", "UPDATE correct_files SET time = 'x', stamp = NULL",
    ],
)  # fmt: skip
def test_a_damaged_cache_is_not_believed(
    statement: str, verified: Path, own_lake_cache: Path
) -> None:
    alter(own_lake_cache, statement)
    assert Lake.open(verified).status()[0].counts == {"declared": 4}
    assert Lake.open(verified).verify()[0].code == 0
    assert Lake.open(verified).apply()[0].code == 0


def test_a_cache_in_a_folder_of_others_is_not_used(verified: Path, own_lake_cache: Path) -> None:
    assert Lake.open(verified).status()[0].unverified == 0
    (own_lake_cache / "modcrypt").chmod(0o777)
    assert Lake.open(verified).status()[0].unverified == 4
    (own_lake_cache / "modcrypt").chmod(0o700)
    assert Lake.open(verified).status()[0].unverified == 0


def test_another_included_policy_uses_no_result_of_the_old_one(tmp_path: Path) -> None:
    text = 'kms = "file:lake.keyring"\n\n[dataset.orders]\nlocation = "orders"\npolicy = "p.toml"\n'
    config = make_lake(tmp_path, days=1, declaration=text)
    (tmp_path / "p.toml").write_text('footer_key = "footer"\n')
    Lake.open(config).apply()
    assert Lake.open(config).status()[0].counts == {"declared": 2}
    (tmp_path / "p.toml").write_text('footer_key = "footer"\ndata_key_length_bits = 256\n')
    assert Lake.open(config).status()[0].counts == {"other-policy": 2}


# --- processes -----------------------------------------------------------------------------------


def count_encrypted(folder: Path) -> int:
    """Return how many files of the lake end as encrypted ones do."""
    return sum(path.read_bytes()[-4:] == b"PARE" for path in folder.rglob("*.parquet"))


@pytest.mark.slow
def test_an_apply_that_is_killed_is_taken_up(tmp_path: Path) -> None:
    """Each file stays readable, as plaintext or as declared."""
    config = make_lake(tmp_path, days=4, files=25)
    chance = random.Random(23)
    killed = 0
    for _ in range(20):
        wanted = count_encrypted(tmp_path) + chance.randrange(1, 20)
        with start(APPLY, config) as process:
            while process.poll() is None and count_encrypted(tmp_path) < wanted:
                pass
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                killed += 1
        counts = Lake.open(config).status()[0].counts
        assert set(counts) <= {"plaintext", "declared"}
        assert sum(counts.values()) == 100
        if counts == {"declared": 100}:
            break
    assert killed
    assert Lake.open(config).apply()[0].code == 0
    assert Lake.open(config).verify()[0].code == 0
    assert Lake.open(config).dataset("orders").read().num_rows == 200


def test_two_applies_at_once_do_the_work_once(tmp_path: Path) -> None:
    config = make_lake(tmp_path, days=4, files=2)
    both = [start(APPLY, config) for _ in range(2)]
    results = [process.communicate(timeout=600)[0].split() for process in both]
    assert [code for code, _ in results] == ["0", "0"]
    assert sum(int(changed) for _, changed in results) >= 8
    assert Lake.open(config).verify()[0].code == 0
    assert Lake.open(config).dataset("orders").read().num_rows == 16
    assert Lake.open(config).apply()[0].plan.files == []


def test_a_file_that_changes_during_verification_is_not_noted_as_correct(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from modcrypt.lake.verification.file_check import FileCheck

    config = make_lake(tmp_path, days=1, files=1)
    Lake.open(config).apply()
    verify = FileCheck._verify

    data = bytearray((tmp_path / FIRST).read_bytes())
    data[60] ^= 1

    def alter_afterwards(*arguments: Any, **options: Any) -> object:
        result = verify(*arguments, **options)
        (tmp_path / FIRST).write_bytes(data)
        return result

    monkeypatch.setattr(FileCheck, "_verify", alter_afterwards)
    Lake.open(config).verify()
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert Lake.open(config).status()[0].unverified == 1
    assert Lake.open(config).verify(since="last")[0].code == 1


def test_a_file_added_while_apply_runs_is_left_for_the_next_run(tmp_path: Path) -> None:
    config = make_lake(tmp_path, days=1, files=1)
    (done,) = Lake.open(config).apply(progress=lambda total: write_day(tmp_path, "2026-11-09", 1))
    assert done.code == 0
    assert Lake.open(config).status()[0].counts == {"declared": 1, "plaintext": 1}

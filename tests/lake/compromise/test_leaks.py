"""A leak is a state: what a compromised key opens, and the answer that makes new data keys."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import modcrypt as mc
from modcrypt import iceberg
from modcrypt.lake.applying.application import LakeApplication
from modcrypt.lake.compromise.leak_record import read_record
from modcrypt.lake.files.key_choice import KeyChoice
from modcrypt.lake.lake import Lake
from tests.support.cases import each_case
from tests.support.cli.program import run
from tests.support.iceberg.sales import DECLARATION as SALES
from tests.support.iceberg.sales import make_sales
from tests.support.lake_folder import DECLARATION, make_lake, order_table, trust_lake, write_day

PREVIOUS = '\n[dataset.orders.previous]\nmaster_keys = { pii = "pii2" }\n'


def declare(config: Path, *compromised: str, text: str = DECLARATION) -> Path:
    """Name compromised keys in a declaration."""
    config.write_text(f"compromised = {json.dumps(compromised)}\n{text}")
    return config


def replaced() -> str:
    """Return the declaration with another master key in place of `pii`."""
    return DECLARATION.replace("\npii =", "\npii2 =") + PREVIOUS


def rewrap(config: Path, keyring: mc.Keyring) -> None:
    """Replace pii by pii2 in the declaration and in all files, whose data keys stay."""
    keyring.create_key("pii2")
    config.write_text(replaced())
    apply(config)


def states(config: Path) -> dict[str, int]:
    (status,) = Lake.open(config).status()
    return status.counts


def apply(config: Path, **how: Any) -> LakeApplication:
    (done,) = Lake.open(config).apply(**how)
    return done


def stamps(folder: Path) -> dict[str, tuple[int, bytes]]:
    found = sorted(folder.rglob("*.parquet"))
    return {f"{path.parent.name}/{path.name}": (os.stat(path).st_mtime_ns, path.read_bytes())
            for path in found}  # fmt: skip


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return the declaration of a lake whose files are under version 1 of `pii`."""
    path = make_lake(tmp_path)
    apply(path)
    return path


@pytest.fixture
def keyring(tmp_path: Path) -> mc.Keyring:
    """Return the keyring of the lake."""
    return mc.Keyring(tmp_path / "lake.keyring")


def assert_answered(config: Path, key: str) -> None:
    assert states(config) == {"declared": 4}
    assert [result.code for result in Lake.open(config).verify()] == [0]
    (impact,) = Lake.open(config).impact(key)
    assert (impact.files, impact.rewrapped, impact.hidden) == (0, 0, 0)
    assert apply(config).files == []


def test_a_compromised_version_is_answered_by_new_data_keys_under_a_newer_one(
    config: Path, keyring: mc.Keyring
) -> None:
    keyring.rotate_key("pii")
    declare(config, "pii@1")
    assert states(config) == {"compromised": 4}
    (verified,) = Lake.open(config).verify()
    assert (verified.code, [fault.word for fault in verified.faults]) == (1, ["compromised"])
    before = stamps(config.parent)
    done = apply(config)
    assert (done.code, done.totals.results) == (0, {"renewed": 4})
    after = stamps(config.parent)
    assert all(before[name][1][:60] != after[name][1][:60] for name in before)  # other pages
    assert_answered(config, "pii@1")


def test_a_compromised_key_is_answered_under_another_one(config: Path, keyring: mc.Keyring) -> None:
    keyring.create_key("pii2")
    declare(config, "pii", text=replaced())
    assert states(config) == {"compromised": 4}
    assert apply(config).totals.results == {"renewed": 4}
    assert_answered(config, "pii")
    assert_answered(config, "pii@1")


def test_files_are_written_under_no_compromised_version(
    config: Path, keyring: mc.Keyring, tmp_path: Path
) -> None:
    declare(config, "pii@1")
    more = order_table(1).append_column("day", [["2026-11-03"]])
    write_day(tmp_path / "more", "2026-11-03", 1)
    encrypt, env = ("encrypt", "more/orders", "orders"), {"MODCRYPT_CONFIG": str(config)}
    with pytest.raises(ValueError, match="under the compromised pii@1: add a version"):
        Lake.open(config).dataset("orders").write(more)
    assert "pii@1: add a version" in run(tmp_path, *encrypt, env=env).stdout
    assert states(config) == {"compromised": 4}
    keyring.rotate_key("pii")
    Lake.open(config).dataset("orders").write(more)
    assert run(tmp_path, *encrypt, env=env).returncode == 0
    assert states(config) == {"compromised": 4, "unknown-age": 2}
    assert apply(config).totals.results == {"renewed": 6}


def test_rewrapped_files_keep_their_data_keys_and_are_not_safe(
    config: Path, keyring: mc.Keyring
) -> None:
    keyring.create_key("pii2")
    config.write_text(replaced())
    assert apply(config).totals.results == {"rotated": 4}
    (impact,) = Lake.open(config).impact("pii")
    assert (impact.files, impact.rewrapped) == (0, 4)
    assert "4 files under later keys may keep data keys" in impact.describe()[0]
    declare(config, "pii", text=replaced())
    assert states(config) == {"rewrapped": 4}
    assert apply(config).totals.results == {"renewed": 4}
    assert_answered(config, "pii")


def test_without_any_record_the_age_of_data_keys_is_unknown(
    config: Path, keyring: mc.Keyring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewrap(config, keyring)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other cache"))
    declare(config, "pii", text=replaced())
    assert states(config) == {"unknown-age": 4}
    assert apply(config).totals.results == {"renewed": 4}
    assert_answered(config, "pii")


def test_only_compromised_files_are_read_and_written(tmp_path: Path) -> None:
    text = DECLARATION.replace("\npii =", '\n"pii-{partition.day}" =')
    config = make_lake(tmp_path, days=3, files=3, declaration=text)
    keyring = mc.Keyring(tmp_path / "lake.keyring")
    for day in (1, 2, 3):
        keyring.create_key(f"pii-2026-11-{day:02}")
    apply(config)
    keyring.rotate_key("pii-2026-11-02")
    declare(config, "pii-2026-11-02@1", text=text)
    assert states(config) == {"declared": 6, "compromised": 3}
    before = stamps(tmp_path)
    assert apply(config).totals.results == {"renewed": 3}
    after = stamps(tmp_path)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {f"day=2026-11-02/part-{n}.parquet" for n in range(3)}
    assert states(config) == {"declared": 9}


def test_files_written_since_are_safe_and_restored_ones_are_not(
    config: Path, keyring: mc.Keyring, tmp_path: Path
) -> None:
    part = tmp_path / "orders/day=2026-11-01/part-0.parquet"
    rewrap(config, keyring)
    rewrapped = part.read_bytes()
    declare(config, "pii", text=replaced())
    apply(config)
    write_day(tmp_path, "2026-11-03", 1)
    assert apply(config).totals.results == {"encrypted": 1}
    assert states(config) == {"declared": 5}
    part.write_bytes(rewrapped)  # its data keys are in the record
    assert states(config) == {"rewrapped": 1, "declared": 4}
    assert apply(config).totals.results == {"renewed": 1}
    late = tmp_path / "orders/day=2026-11-03/part-0.parquet"
    record = (tmp_path / "modcrypt.leaks.jsonl").read_text().splitlines()
    started = json.loads(record[-1])["time"]
    os.utime(late, (int(started),) * 2)  # as an object store has it, without fractions
    assert states(config) == {"declared": 5}
    os.utime(late, (started - 0.3,) * 2)
    assert states(config) == {"unknown-age": 1, "declared": 4}
    os.utime(late, (time.time() - 9e5,) * 2)  # of a backup that the inventory did not see
    assert states(config) == {"unknown-age": 1, "declared": 4}
    assert apply(config).totals.results == {"renewed": 1}
    assert states(config) == {"declared": 5}


def test_data_keys_that_were_seen_under_a_compromised_key_are_never_safe(
    config: Path, keyring: mc.Keyring, tmp_path: Path
) -> None:
    """As in a backup that no inventory saw, or after the declaration forgot its former key."""
    rewrap(config, keyring)
    part = tmp_path / "orders/day=2026-11-01/part-0.parquet"
    backup = part.read_bytes()
    part.unlink()
    declare(config, "pii", text=replaced().removesuffix(PREVIOUS))
    assert states(config) == {"rewrapped": 3}
    assert apply(config).totals.results == {"renewed": 3}
    part.write_bytes(backup)
    assert states(config) == {"rewrapped": 1, "declared": 3}
    assert Lake.open(config).impact("pii")[0].rewrapped == 1


def test_a_former_key_may_have_replaced_the_compromised_one(
    config: Path, keyring: mc.Keyring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("pii2", "pii3"):
        keyring.create_key(key)
    config.write_text(replaced())
    apply(config)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other cache"))
    text = replaced().replace('"pii2"', '"pii3", pii2 = "pii3"').replace("\npii2", "\npii3")
    declare(config, "pii", text=text)
    assert states(config) == {"unknown-age": 4}
    assert apply(config).totals.results == {"renewed": 4}
    assert_answered(config, "pii")


def test_records_of_runs_at_the_same_time_are_all_kept(config: Path, keyring: mc.Keyring) -> None:
    keyring.rotate_key("pii")
    declare(config, "pii@1")
    path = config.with_suffix(".leaks.jsonl")
    first, second = read_record(str(config)), read_record(str(config))
    for record, name in ((first, "one"), (second, "two")):
        record.add_inventory(name, [KeyChoice.parse("pii@1")], 1.0, [])
    path.write_text(path.read_text().rstrip("\n"))
    read_record(str(config)).add_inventory("three", [KeyChoice.parse("pii@1")], 1.0, [])
    assert {name for name, _ in read_record(str(config)).started} == {"one", "two", "three"}


def test_files_that_were_closed_during_the_inventory_stay_unknown(
    config: Path, keyring: mc.Keyring, tmp_path: Path
) -> None:
    rewrap(config, keyring)
    part = tmp_path / "orders/day=2026-11-01/part-0.parquet"
    content = part.read_bytes()
    part.write_bytes(b"unreadable")
    declare(config, "pii", text=replaced())
    assert apply(config).totals.results == {"renewed": 3, "refused": 1}
    part.write_bytes(content)
    assert states(config) == {"rewrapped": 1, "declared": 3}
    assert apply(config).totals.results == {"renewed": 1}
    assert states(config) == {"declared": 4}


def test_every_named_master_key_is_tried_before_anything_is_written(tmp_path: Path) -> None:
    text = f'{DECLARATION}\n[dataset.more]\nlocation = "more"\nfooter_key = "foter"\n'
    config = make_lake(tmp_path, declaration=text)
    before = stamps(tmp_path)
    with pytest.raises(mc.errors.KeyNotFoundError, match=r"foter; did you mean footer\?"):
        Lake.open(config).apply()
    assert stamps(tmp_path) == before
    keyring = mc.Keyring(tmp_path / "lake.keyring")
    keyring.create_key("foter")
    keyring.disable_key("pii")
    with pytest.raises(mc.errors.KeyDisabledError):
        Lake.open(config).apply()
    assert stamps(tmp_path) == before


def test_master_keys_of_partitions_are_tried_before_anything_is_written(tmp_path: Path) -> None:
    text = DECLARATION.replace("\npii =", '\n"pii-{partition.day}" =')
    config = make_lake(tmp_path, declaration=text)
    mc.Keyring(tmp_path / "lake.keyring").create_key("pii-2026-11-01")
    before = stamps(tmp_path)
    with pytest.raises(mc.errors.KeyNotFoundError, match="2026-11-02"):
        apply(config)
    assert stamps(tmp_path) == before


def test_a_disabled_compromised_key_leaves_files_that_say_so(
    config: Path, keyring: mc.Keyring
) -> None:
    keyring.create_key("pii2")
    keyring.disable_key("pii")
    declare(config, "pii", text=replaced())
    (status,) = Lake.open(config).status()
    assert status.counts == {"unreadable": 4}
    assert status.files[0].message.endswith("its keys are wrapped under the compromised pii")
    done = apply(config)
    assert (done.code, done.totals.results) == (3, {"refused": 4})
    keyring.enable_key("pii")
    assert apply(config).totals.results == {"renewed": 4}
    assert_answered(config, "pii")


def test_new_files_under_the_compromised_key_are_a_mistake(
    config: Path, keyring: mc.Keyring
) -> None:
    before = stamps(config.parent)
    for key, advice in (("pii@1", "add a version"), ("pii", "name a new master key")):
        declare(config, key)
        assert states(config) == {"compromised": 4}
        with pytest.raises(ValueError, match=f"under the compromised {key}: {advice}"):
            apply(config)
        with pytest.raises(ValueError, match="under the compromised"):
            apply(config, dry_run=True)
    rows = order_table().append_column("day", pa.array(["2026-11-09"] * 2))
    with pytest.raises(ValueError, match="under the compromised pii: name a new"):
        Lake.open(config).dataset("orders").write(rows)
    assert stamps(config.parent) == before
    assert not config.with_suffix(".leaks.jsonl").exists()


def test_unknown_keys_are_mistakes(config: Path) -> None:
    lake = Lake.open(config)
    for key, message in (
        ("pij", "any file knows a key pij; did you mean pii?"),
        ("pii@9", "no file uses version 9 of pii, whose newest version is 1"),
    ):
        with pytest.raises(ValueError, match=message.replace("?", r"\?")):
            lake.impact(key)
        declare(config, key)
        for verb in ("status", "apply", "verify"):
            with pytest.raises(ValueError, match=message.replace("?", r"\?")):
                getattr(Lake.open(config), verb)()


def test_the_command_line_answers_with_exit_codes(config: Path, keyring: mc.Keyring) -> None:
    declare(config, "pii@1")
    trust_lake(folder := config.parent)
    assert run(folder, "keys", "impact", "typo").returncode == 2
    assert run(folder, "apply").returncode == 2
    keyring.rotate_key("pii")
    answer = run(folder, "apply")
    assert answer.stdout == "orders: 4 renewed (0 of 4 files were as declared)\n"
    answer = run(folder, "keys", "impact", "pii@1")
    assert answer.stdout == "orders: the key protects no file\n"
    assert run(folder, "verify").returncode == 0


@pytest.mark.parametrize("line", ["{", "[]", '{"kind": "file", "dataset": "d", "key": "k"}'])
def test_a_damaged_record_is_an_error_with_its_line(config: Path, line: str) -> None:
    declare(config, "pii@1")
    config.with_suffix(".leaks.jsonl").write_text(f"{line}\n")
    with pytest.raises(mc.errors.FormatError, match="line 1 is not a line of a record of leaks"):
        Lake.open(config).status()


def test_a_record_that_others_may_write_is_refused(config: Path) -> None:
    declare(config, "pii@1")
    record = config.with_suffix(".leaks.jsonl")
    record.write_text("")
    record.chmod(0o666)
    with pytest.raises(mc.errors.KeyRetrievalError, match="writable by others"):
        Lake.open(config).status()


def test_the_record_has_no_keys(config: Path, keyring: mc.Keyring) -> None:
    keyring.rotate_key("pii")
    apply(declare(config, "pii@1"))
    lines = list(map(json.loads, config.with_suffix(".leaks.jsonl").read_text().splitlines()))
    assert [line["kind"] for line in lines] == ["file"] * 4 + ["inventory"]
    assert {len(line["data_keys"]) for line in lines[:4]} == {48}  # 3 fingerprints of 8 bytes


# --- Iceberg tables ------------------------------------------------------------------------------


@each_case("of_table", [{}, {"policy": iceberg.KeyPolicy(wrapping="single")}])
def test_a_table_gets_new_keys_and_its_old_snapshots_are_named(
    of_table: dict[str, Any], tmp_path: Path
) -> None:
    keyring, _ = make_sales(tmp_path, pa.table({"id": [1, 2]}), **of_table)
    config = declare(tmp_path / "modcrypt.toml", "sales@1", text=SALES)
    assert states(config) == {"compromised": 7}
    with pytest.raises(ValueError, match="under the compromised sales@1"):
        apply(config)
    keyring.rotate_key("sales")
    done = apply(config)
    assert done.totals.results["renewed"] >= 5, [file.message for file in done.files]
    assert {file.state for file in Lake.open(config).status()[0].files} == {
        "declared", "rewrapped",
    }  # fmt: skip
    done = apply(config)
    assert {file.action for file in done.plan.files} == {"refuse"}
    assert all("modcrypt iceberg expire" in file.why for file in done.plan.files)
    opened = iceberg.open_table(tmp_path / "sales", f"file:{tmp_path}/lake.keyring")
    assert opened.scan().to_arrow().num_rows == 4
    current = opened.snapshot()
    assert current is not None
    iceberg.expire_history(opened, keep=[current.id])
    (status,) = Lake.open(config).status()
    assert status.counts == {"declared": len(status.files)}
    (impact,) = Lake.open(config).impact("sales@1")
    assert (impact.files, impact.rewrapped) == (0, 0)
    (verified,) = Lake.open(config).verify()
    assert (verified.code, verified.faults) == (0, [])


@each_case("wrapping", ["double", "single"])
def test_new_files_of_a_table_get_no_compromised_key(wrapping: Any, tmp_path: Path) -> None:
    rows, policy = pa.table({"id": [1, 2]}), iceberg.KeyPolicy(wrapping=wrapping)
    keyring, _ = make_sales(tmp_path, rows, policy=policy)
    config = declare(tmp_path / "modcrypt.toml", "sales@1", text=SALES)
    sales = Lake.open(config).table("sales")
    for write in (sales.write, sales.open().append, sales.open().overwrite):
        with pytest.raises(ValueError, match="under the compromised sales@1"):
            write(rows)
    old = {file.path for file in Lake.open(config).status()[0].files}
    keyring.rotate_key("sales")
    sales.write(rows)
    new = [f for f in Lake.open(config).status()[0].files if f.rows and f.path not in old]
    assert [{key.version for key in file.keys} for file in new] == [{"2"}]
    assert sales.read().num_rows == 6

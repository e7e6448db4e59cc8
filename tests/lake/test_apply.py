"""`apply` establishes the declared state with the existing jobs, and touches nothing doubtful."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt.jobs import conversion
from modcrypt.lake.applying.application import LakeApplication
from modcrypt.lake.examination import FooterExamination
from modcrypt.lake.lake import Lake
from modcrypt.parquet.datasets.write_notes import NOTES
from tests.support.cases import each_case
from tests.support.cli.program import run
from tests.support.lake_folder import DECLARATION, make_lake, order_table, trust_lake, write_day


def apply(config: Path, **how: Any) -> LakeApplication:
    (done,) = Lake.open(config).apply(**how)
    return done


def states(config: Path) -> dict[str, int]:
    (status,) = Lake.open(config).status()
    return status.counts


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*.parquet")}


def read(config: Path) -> pa.Table:
    folder = config.parent
    tools = mc.KeyTools(f"file:{folder}/lake.keyring", master_key_ids=["footer", "pii", "new"])
    return mc.read_table(folder / "orders", tools.decryption(), partitioning=None)


def test_a_dry_run_plans_and_changes_nothing(tmp_path: Path) -> None:
    config = make_lake(tmp_path)
    before = contents(tmp_path)
    done = apply(config, dry_run=True)
    assert done.summary().startswith("orders: 4 to encrypt; ")
    assert (done.code, done.changed, contents(tmp_path)) == (0, 0, before)


def test_a_second_run_does_nothing_and_says_so(tmp_path: Path) -> None:
    config = make_lake(tmp_path)
    done = apply(config)
    assert done.summary() == "orders: 4 encrypted (0 of 4 files were as declared)"
    before = contents(tmp_path)
    again = apply(config)
    assert again.summary() == "orders: nothing to do (4 of 4 files as declared)"
    assert (again.code, again.files, contents(tmp_path)) == (0, [], before)


def test_only_what_is_new_is_encrypted(tmp_path: Path) -> None:
    config = make_lake(tmp_path)
    apply(config)
    before = contents(tmp_path)
    write_day(tmp_path, "2026-11-03", 3)
    done = apply(config)
    assert done.summary() == "orders: 3 encrypted (4 of 7 files were as declared)"
    after = contents(tmp_path)
    assert {path: after[path] for path in before} == before


def test_the_values_stay_what_they_were(tmp_path: Path) -> None:
    config = make_lake(tmp_path)
    apply(config)
    whole = pa.concat_tables([order_table(2, 0), order_table(2, 2)] * 2)
    assert read(config).equals(whole)


@each_case(
    "old, new",
    [
        ('["country"]', "[]"),
        ("{ pii = true }", '"id"'),
        ('footer_key = "footer"', 'footer_key = "footer"\nplaintext_footer = true'),
        ('footer_key = "footer"', 'footer_key = "footer"\ndata_key_length_bits = 256'),
        ('footer_key = "footer"', 'footer_key = "footer"\ninternal_key_material = false'),
    ],
)
def test_files_under_another_policy_are_rekeyed(old: str, new: str, tmp_path: Path) -> None:
    config = make_lake(tmp_path, days=1)
    apply(config)
    before = read(config)
    config.write_text(config.read_text().replace(old, new))
    done = apply(config)
    assert done.summary() == "orders: 2 rekeyed (0 of 2 files were as declared)"
    assert apply(config).plan.files == []
    assert read(config).equals(before)


def test_a_former_prefix_is_rekeyed_only_if_it_is_declared(tmp_path: Path) -> None:
    config = make_lake(tmp_path, days=1)
    apply(config)
    text = DECLARATION.replace("orders/{path}", "sales/{partition.day}/{path}")
    config.write_text(text)
    done = apply(config)
    assert [file.result for file in done.files] == ["refused", "refused"]
    assert done.code == 1
    previous = '\n[dataset.orders.previous]\naad_prefixes = ["orders/{path}"]\n'
    config.write_text(text + previous)
    assert apply(config).changed == 2
    assert states(config) == {"declared": 2}
    file = tmp_path / "orders/day=2026-11-01/part-0.parquet"
    tools = mc.KeyTools(f"file:{tmp_path}/lake.keyring", master_key_ids=["footer", "pii"])
    with mc.ParquetFile(file, tools.decryption()):
        pass
    assert mc.inspect_parquet(file).aad_prefix == (
        b"sales/2026-11-01/day=2026-11-01/part-0.parquet"
    )


def with_prefix(template: str, *lines: str) -> str:
    """Return the declaration with an AAD prefix, or with none if it is empty, and more lines."""
    line = f'aad_prefix = "{template}"' if template else ""
    return DECLARATION.replace('aad_prefix = "orders/{path}"', "\n".join([line, *lines]))


@pytest.mark.parametrize("footer", ["true", "false"])
@pytest.mark.parametrize("before", ["", "orders/{path}"])
@pytest.mark.parametrize("after", ["sales/{path}", ""])
def test_a_former_prefix_may_be_none_or_not_stored(
    before: str, after: str, footer: str, tmp_path: Path
) -> None:
    lines = [f"plaintext_footer = {footer}", "store_aad_prefix = false" if before else ""]
    config = make_lake(tmp_path, days=1, declaration=with_prefix(before, *lines))
    apply(config)
    now = with_prefix(after, f"plaintext_footer = {footer}")
    config.write_text(now)
    if before == after:
        assert states(config) == {"declared": 2}
        return
    assert set(states(config)) <= {"misplaced", "unreadable"}
    config.write_text(now + f'\n[dataset.orders.previous]\naad_prefixes = ["{before}"]\n')
    assert states(config) == {"other-policy": 2}
    *_, policy = Lake.open(config).why(tmp_path / "orders/day=2026-11-01/part-0.parquet")
    assert (policy.step, policy.ok) == ("policy", False)
    assert "AAD prefix" in policy.text
    assert apply(config).changed == 2
    assert states(config) == {"declared": 2}


@each_case("after", ["new", ""])
@each_case("before", ["old", ""])
def test_keys_move_from_a_former_kms_aad(before: str, after: str, tmp_path: Path) -> None:
    def declare(kms_aad: str, previous: str = "") -> None:
        line = f'kms_aad = "{kms_aad}"\n' if kms_aad else ""
        config.write_text(DECLARATION.replace("include", f"{line}include") + previous)

    config = make_lake(tmp_path, days=1)
    declare(before)
    apply(config)
    declare(after, f'\n[dataset.orders.previous]\nkms_aads = ["x", "{before}"]\n')
    if before != after:
        assert states(config) == {"other-policy": 2}
        assert apply(config).changed == 2
    assert states(config) == {"declared": 2}
    declare(after)
    assert (states(config), Lake.open(config).verify()[0].code) == ({"declared": 2}, 0)


def test_a_moved_file_is_not_one_without_a_prefix(tmp_path: Path) -> None:
    former = '\n[dataset.orders.previous]\naad_prefixes = [""]\n'
    config = make_lake(tmp_path, days=1, declaration=DECLARATION + former)
    apply(config)
    folder = tmp_path / "orders/day=2026-11-01"
    shutil.copy(folder / "part-0.parquet", folder / "part-1.parquet")
    assert states(config) == {"declared": 1, "misplaced": 1}


def test_a_former_algorithm_is_rekeyed_only_if_it_is_declared(tmp_path: Path) -> None:
    ctr = '\nencryption_algorithm = "AES_GCM_CTR_V1"'
    text = DECLARATION.replace('footer_key = "footer"', f'footer_key = "footer"{ctr}')
    config = make_lake(tmp_path, days=1, declaration=text)
    apply(config)
    config.write_text(DECLARATION)
    done = apply(config)
    assert ([file.result for file in done.files], done.code) == (["refused", "refused"], 5)
    config.write_text(
        DECLARATION + '\n[dataset.orders.previous]\nalgorithms = ["AES_GCM_CTR_V1"]\n'
    )
    assert apply(config).changed == 2
    assert states(config) == {"declared": 2}


def test_keys_move_from_previous_master_keys_without_new_pages(tmp_path: Path) -> None:
    config = make_lake(tmp_path, days=1)
    apply(config)
    mc.Keyring(tmp_path / "lake.keyring").create_key("new")
    text = DECLARATION.replace("\npii = [", "\nnew = [")
    config.write_text(text)
    assert states(config) == {"other-keys": 2}
    assert [file.result for file in apply(config).files] == ["refused", "refused"]
    previous = '\n[dataset.orders.previous]\nmaster_keys = { pii = "new" }\n'
    config.write_text(text + previous)
    assert states(config) == {"old-keys": 2}
    done = apply(config)
    assert done.summary() == "orders: 2 rotated (0 of 2 files were as declared)"
    assert states(config) == {"declared": 2}
    config.write_text(text)
    assert states(config) == {"declared": 2}


def test_keys_under_older_versions_are_rotated(tmp_path: Path) -> None:
    text = DECLARATION + '\n[dataset.orders.rotation]\nrewrap_after = "0d"\n'
    config = make_lake(tmp_path, days=1, declaration=text)
    apply(config)
    mc.Keyring(tmp_path / "lake.keyring").rotate_key("pii")
    assert apply(config).summary() == "orders: 2 rotated (0 of 2 files were as declared)"
    assert states(config) == {"declared": 2}
    assert apply(config).plan.files == []


@each_case("previous", ['{ pii = "new", older = "new" }', '{ older = "new", pii = "new" }'])
def test_several_master_keys_may_have_one_successor(previous: str, tmp_path: Path) -> None:
    """Also if a file is already under one of the new master keys, and not yet under another."""
    config = make_lake(tmp_path, days=1)
    keyring = mc.Keyring(tmp_path / "lake.keyring")
    for name in ("older", "new", "main"):
        keyring.create_key(name)
    config.write_text(DECLARATION.replace("pii = [", "older = ["))
    apply(config)
    write_day(tmp_path, "2026-11-02", 2)
    config.write_text(DECLARATION.replace('"footer"', '"main"'))
    Lake.open(config).dataset("orders").write(
        order_table().append_column("day", [["2026-11-03"] * 2])
    )
    text = DECLARATION.replace("pii = [", "new = [").replace('"footer"', '"main"')
    keys = previous.replace("}", ', footer = "main" }')
    config.write_text(f"{text}\n[dataset.orders.previous]\nmaster_keys = {keys}\n")
    before = states(config)
    assert before == {"plaintext": 2, "old-keys": 3}
    assert "policy" not in {fault.word for fault in Lake.open(config).verify()[0].faults}
    assert apply(config).summary().startswith("orders: 2 encrypted, 3 rotated (")
    assert states(config) == {"declared": 5}


@each_case("what", ["mek", "kek", "dek"])
def test_keys_rotate_moves_keys_from_previous_master_keys(what: str, tmp_path: Path) -> None:
    config = make_lake(tmp_path, days=1)
    apply(config)
    mc.Keyring(tmp_path / "lake.keyring").create_key("new")
    previous = '\n[dataset.orders.previous]\nmaster_keys = { pii = "new" }\n'
    config.write_text(DECLARATION.replace("\npii = [", "\nnew = [") + previous)
    trust_lake(tmp_path)
    answer = run(tmp_path, "keys", "rotate", "--what", what, "orders")
    assert (answer.returncode, answer.stdout[:18]) == (0, "2 files: 2 rotated")
    assert states(config) == {"declared": 2}


def test_a_master_key_that_is_too_old_gets_a_version_first(tmp_path: Path) -> None:
    rules = 'max_version_age = "0d"\nrewrap_after = "0d"\n'
    text = f"{DECLARATION}\n[dataset.orders.rotation]\n"
    config = make_lake(tmp_path, days=1, declaration=text)
    apply(config)
    config.write_text(text + rules)
    planned = apply(config, dry_run=True)
    assert planned.plan.new_versions == ["footer", "pii"]
    assert "new versions of footer, pii" in planned.summary()
    done = apply(config)
    assert done.summary() == (
        "orders: 2 rotated, new versions of footer, pii (0 of 2 files were as declared)"
    )
    assert mc.Keyring(tmp_path / "lake.keyring").list_keys()[0].version == 2


def test_files_of_a_source_are_encrypted_into_the_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing in the source is changed or deleted."""
    config = make_lake(tmp_path)
    (tmp_path / "orders").rename(tmp_path / "landing")
    config.write_text(
        DECLARATION.replace('location = "orders"', 'location = "orders"\nsource = "landing"')
    )
    before = contents(tmp_path)
    (status,) = Lake.open(config).status()
    assert status.summary() == "orders: 0 files; 4 waiting in the source"
    with monkeypatch.context() as patch:
        patch.setattr(FooterExamination, "run_waiting", None)  # the cache knows them
        (again,) = Lake.open(config).status()
    assert list(again.waiting) == list(status.waiting)
    assert [fault.word for fault in Lake.open(config).verify()[0].faults] == ["empty"]
    assert apply(config, dry_run=True).summary().startswith("orders: 4 to encrypt; ")
    done = apply(config)
    assert done.summary() == "orders: 4 encrypted (0 of 4 files were as declared)"
    assert {path: contents(tmp_path)[path] for path in before} == before
    assert states(config) == {"declared": 4}
    summary = apply(config).summary()
    assert summary == "orders: nothing to do (4 of 4 files as declared)"
    assert Lake.open(config).verify()[0].code == 0
    shutil.copytree(tmp_path / "landing/day=2026-11-01", tmp_path / "landing/day=2026-11-09")
    assert apply(config).changed == 2
    shutil.copytree(tmp_path / "orders/day=2026-11-01", tmp_path / "landing/day=2026-11-10")
    (status,) = Lake.open(config).status()
    assert "2 waiting in the source, of which apply refuses 2" in status.summary()
    assert {(file.state, file.reason) for file in status.waiting} == {("unreadable", "unsupported")}
    done = apply(config)
    assert done.totals.results == {"refused": 2}
    assert "is encrypted already" in done.files[0].message


def test_a_source_that_changed_does_not_replace_its_copy(tmp_path: Path) -> None:
    config = make_lake(tmp_path, days=1, files=1)
    (tmp_path / "orders").rename(tmp_path / "landing")
    config.write_text(
        DECLARATION.replace('location = "orders"', 'location = "orders"\nsource = "landing"')
    )
    apply(config)
    path = tmp_path / "landing/day=2026-11-01/part-0.parquet"
    pq.write_table(order_table(5), path)
    os.utime(path, (4e9, 4e9))
    planned, done = apply(config, dry_run=True), apply(config)
    assert (planned.plan.totals.actions["refuse"], planned.code) == (1, 2)
    assert ([file.result for file in done.files], done.code) == (["refused"], 2)
    assert "remove the encrypted file" in done.files[0].message
    (tmp_path / "orders/day=2026-11-01/part-0.parquet").unlink()
    assert apply(config).changed == 1


@each_case("prefix", ["{path}", "x/{name}"])
def test_a_dataset_may_be_one_file(prefix: str, tmp_path: Path) -> None:
    config = make_lake(tmp_path, days=0)
    pq.write_table(order_table(), tmp_path / "one day%20.parquet")
    text = '[dataset.one]\nlocation = "one day%20.parquet"\nfooter_key = "footer"\n'
    config.write_text(f'kms = "file:lake.keyring"\n{text}aad_prefix = "{prefix}"\n')
    lake = Lake.open(config)
    assert apply(config).changed == 1
    assert lake.verify()[0].code == 0
    assert all(step.ok for step in lake.why(tmp_path / "one day%20.parquet"))
    assert lake.dataset("one").read().num_rows == 2
    lake.shred("one", everything=True, request="R-1")
    assert states(config) == {"erased": 1}
    assert Lake.open(config).apply(remove_erased=True)[0].code == 0
    assert Lake.open(config).verify()[0].code == 0


# --- what it does not touch ----------------------------------------------------------------------


def test_forged_and_moved_files_are_refused(tmp_path: Path) -> None:
    """Re-keying them would make them look authentic."""
    config = make_lake(tmp_path)
    apply(config)
    mc.Keyring(tmp_path / "lake.keyring").create_key("other")
    tools = mc.KeyTools(f"file:{tmp_path}/lake.keyring")
    policy = mc.Policy(footer_key="other", aad_prefix="orders/{path}")
    forged = tmp_path / "orders/day=2026-11-01/forged.parquet"
    encryption = tools.encryption(policy, root=str(tmp_path / "orders"))
    mc.write_table(order_table(), forged, encryption)
    moved = tmp_path / "orders/day=2026-11-02/copy.parquet"
    shutil.copy(tmp_path / "orders/day=2026-11-01/part-0.parquet", moved)
    before = contents(tmp_path)
    done = apply(config)
    assert {file.path: (file.result, file.code) for file in done.files} == {
        "day=2026-11-01/forged.parquet": ("refused", 3),
        "day=2026-11-02/copy.parquet": ("refused", 1),
    }
    assert (done.code, contents(tmp_path)) == (1, before)


@pytest.mark.parametrize("looked_at", [False, True])
def test_plaintext_that_replaced_an_encrypted_file_is_refused(
    tmp_path: Path, looked_at: bool
) -> None:
    """Whoever can write to the folder could have his own values encrypted in its place."""
    config = make_lake(tmp_path, days=1)
    apply(config)
    if looked_at:
        assert states(config) == {"declared": 2}
    write_day(tmp_path, "2026-11-01", 1)
    for _ in range(2):  # the refusal is no news that makes it acceptable
        done = apply(config)
        assert [(file.path, file.result, file.code) for file in done.files] == [
            ("day=2026-11-01/part-0.parquet", "refused", 1)
        ]
        assert "was encrypted when it was last examined" in done.files[0].message
    config.write_text(config.read_text() + "\n# another declaration\n")
    assert apply(config).code == 1
    assert apply(config, accept_replaced=True).summary() == (
        "orders: 1 encrypted (1 of 2 files were as declared)"
    )
    assert states(config) == {"declared": 2}


def test_an_interrupted_run_is_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_lake(tmp_path)
    run = conversion.Conversion.run
    count = 0

    def fail_later(self: conversion.Conversion, *arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count > 2:
            raise KeyboardInterrupt
        return run(self, *arguments)

    monkeypatch.setattr(conversion.Conversion, "run", fail_later)
    with pytest.raises(KeyboardInterrupt):
        apply(config, jobs=1)
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert states(config) == {"plaintext": 2, "declared": 2}
    assert apply(config).summary() == "orders: 2 encrypted (2 of 4 files were as declared)"


def test_files_of_an_incomplete_write_are_left_alone(tmp_path: Path) -> None:
    config = make_lake(tmp_path, days=1)
    notes = tmp_path / "orders" / NOTES
    notes.mkdir()
    hidden = "day=2026-11-01/part-0.parquet"
    (notes / "job.json").write_text(f'{{"host": "h", "time": 0, "hidden": ["{hidden}"]}}')
    assert [file.path for file in apply(config).files] == ["day=2026-11-01/part-1.parquet"]


def test_the_lines_of_json_count_what_was_done(tmp_path: Path) -> None:
    config = make_lake(tmp_path, days=1)
    *files, totals = apply(config, dry_run=True).fields()
    assert [line["action"] for line in files] == ["encrypt", "encrypt"]
    assert (totals["schema"], totals["encrypt"]) == ("modcrypt.lake.apply/1", 2)
    *files, totals = apply(config).fields()
    assert [line["result"] for line in files] == ["encrypted", "encrypted"]
    assert totals["results"] == {"encrypted": 2}

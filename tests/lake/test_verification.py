"""`verify` against the declaration: what is a fault, what was not opened, and what is neither."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt.lake.lake import Lake
from modcrypt.lake.reports.ci_reports import make_junit, make_sarif
from modcrypt.lake.verification.results import LakeVerification
from tests.support.cases import each_case
from tests.support.forging import flip
from tests.support.kms.memory_kms import MemoryKms
from tests.support.lake_folder import DECLARATION, make_lake, order_table

FIRST = "orders/day=2026-11-01/part-0.parquet"
SECOND = "orders/day=2026-11-02/part-0.parquet"


def verify(config: Path, **how: Any) -> LakeVerification:
    (result,) = Lake.open(config).verify(**how)
    return result


def words(result: LakeVerification) -> dict[str, list[str]]:
    return {
        file.path: [fault.word for fault in file.faults] for file in result.files if file.faults
    }


def test_everything_as_declared_is_correct(config: Path) -> None:
    result = verify(config)
    assert (result.code, result.faults, result.findings) == (0, [], [])
    assert result.summary().startswith("orders: 4 of 4 files as declared; ")
    assert result.limits == ["file crypto metadata (4 files)", "column country (4 files)"]


def test_faults_have_exit_code_1(config: Path, tmp_path: Path) -> None:
    flip(tmp_path / FIRST, 60)
    pq.write_table(order_table(), tmp_path / "orders/day=2026-11-02/stray.parquet")
    result = verify(config)
    assert result.code == 1
    assert words(result) == {
        "day=2026-11-01/part-0.parquet": ["tag"],
        "day=2026-11-02/stray.parquet": ["plaintext"],
    }


def test_swapped_files_are_faults(config: Path, tmp_path: Path) -> None:
    (tmp_path / FIRST).rename(tmp_path / "x")
    (tmp_path / SECOND).rename(tmp_path / FIRST)
    (tmp_path / "x").rename(tmp_path / SECOND)
    result = verify(config)
    assert result.code == 1
    assert set(words(result)) == {
        "day=2026-11-01/part-0.parquet", "day=2026-11-02/part-0.parquet",
    }  # fmt: skip


def test_a_forged_file_is_a_fault(config: Path, tmp_path: Path) -> None:
    """Whoever may wrap under another master key of the same service gets nowhere."""
    mc.Keyring(tmp_path / "lake.keyring").create_key("other")
    tools = mc.KeyTools(f"file:{tmp_path}/lake.keyring")
    policy = mc.Policy(
        footer_key="other", column_keys={"other": ["home_ssn", "mail"]},
        plaintext_columns=["country"], aad_prefix="orders/{path}",
    )  # fmt: skip
    encryption = tools.encryption(policy, root=str(tmp_path / "orders"))
    mc.write_table(order_table(), tmp_path / FIRST, encryption, overwrite=True)
    result = verify(config)
    assert (result.code, words(result)) == (1, {"day=2026-11-01/part-0.parquet": ["key-material"]})


@each_case("key", ["pii", "footer"])
def test_a_refused_key_has_exit_code_3_and_a_reason(key: str, tmp_path: Path) -> None:
    config = make_lake(tmp_path, days=1)
    Lake.open(config).apply()
    mc.Keyring(tmp_path / "lake.keyring").disable_key(key)
    result = verify(config)
    assert (result.code, result.faults) == (3, [])
    assert {part.word for file in result.files for part in file.missing} == {"disabled"}
    assert any(f"master key {key} is disabled" in line for line in result.describe_missing())


def test_an_unavailable_service_has_exit_code_4(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    down = MemoryKms()
    down.unavailable = True
    monkeypatch.setenv("MODCRYPT_KMS_PATIENCE", "0")
    lake = Lake.open(config)
    lake.__dict__["client"] = down
    (result,) = lake.verify()
    assert (result.code, result.faults) == (4, [])
    (status,) = lake.status(jobs=1)
    assert status.reasons == {"unavailable": 4}
    assert down.count() <= 2 * 4 * 4  # attempts of the threads that were under way


def test_an_authentic_file_under_another_policy_is_a_fault(config: Path) -> None:
    config.write_text(DECLARATION.replace('"footer"', '"footer"\nplaintext_footer = true'))
    result = verify(config)
    assert result.code == 1
    assert set(map(tuple, words(result).values())) == {("policy",)}


def test_a_partition_that_fits_no_key_is_a_fault(config: Path, tmp_path: Path) -> None:
    text = DECLARATION.replace('"footer"', '"foote{partition.day}"')
    config.write_text(text)
    odd = tmp_path / "orders/day=r%2F..%2Fx"
    odd.mkdir()
    shutil.copy(tmp_path / FIRST, odd)
    result = verify(config)
    (file,) = (file for file in result.files if "%2F" in file.path)
    assert (result.code, file.faults[0].word) == (1, "policy")
    assert "cannot be part of a key's name" in file.faults[0].message


def test_repeated_prefixes_are_one_line_and_a_fault_only_under_the_path(tmp_path: Path) -> None:
    config = make_lake(tmp_path, declaration=DECLARATION.replace("{path}", "{name}"))
    Lake.open(config).apply()
    result = verify(config)
    assert result.code == 0
    (finding,) = result.findings
    assert (finding.severity, finding.word) == ("warning", "aad-prefix")
    assert "2 AAD prefixes are shared" in finding.message


def test_strays_are_faults_unless_the_declaration_is_not_strict(
    config: Path, tmp_path: Path
) -> None:
    (tmp_path / "orders/notes.txt").write_text("no Parquet")
    result = verify(config)
    assert (result.code, [fault.word for fault in result.faults]) == (1, ["stray"])
    config.write_text(DECLARATION.replace("partitions", "strict = false\npartitions"))
    result = verify(config)
    assert (result.code, result.strays) == (0, ["notes.txt"])


def test_a_file_that_two_datasets_claim_is_a_fault(config: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "orders")
    second = """
[dataset.again]
location = "link/day=2026-11-01"
footer_key = "footer"

[dataset.sales]
kind = "iceberg"
location = "orders/day=2026-11-02"
master_key = "footer"
"""
    config.write_text(DECLARATION + second)
    orders, again, _ = Lake.open(config).verify()
    found = [fault.message for fault in orders.faults if fault.word == "overlap"]
    assert [message.split(" claims")[0] for message in found] == [
        "the dataset again", "the dataset sales",
    ]  # fmt: skip
    assert "day=2026-11-01/part-0.parquet" in found[0]
    assert "overlap" in {fault.word for fault in again.faults}


@each_case("location, include", [("orders", "*.one"), ("orders/day=1", "*"), (".", "*.one")])
def test_files_of_another_dataset_are_not_undeclared(
    location: str, include: str, tmp_path: Path
) -> None:
    """Nor is the declaration with its records; but others are."""
    config = make_lake(tmp_path, days=1, files=1)
    folder = tmp_path / "orders/day=1"
    folder.mkdir()
    pq.write_table(order_table(), folder / "a.one")
    other = f'[dataset.other]\nlocation = "{location}"\ninclude = "{include}"\n'
    config.write_text(f'{DECLARATION}\n{other}footer_key = "footer"\nstrict = false\n')
    lake = Lake.open(config)
    assert lake.apply()[0].code == 0
    (tmp_path / "modcrypt.leaks.jsonl").touch()
    orders, others = lake.status()
    assert (list(orders.strays), orders.leaks) == ([], ())
    top = [path for path in others.strays if not path.startswith(("cache/", "state/"))]
    assert top == (["lake.keyring"] if location == "." else [])
    assert lake.verify("orders")[0].code == 0
    (tmp_path / "orders/b.two").touch()
    assert list(lake.verify("orders")[0].strays) == ["b.two"]


def test_a_dataset_without_files_is_a_fault(tmp_path: Path) -> None:
    config = make_lake(tmp_path)
    config.write_text(
        DECLARATION.replace("*.parquet", "*.none").replace("include", "strict = false\ninclude")
    )
    assert "empty" in {fault.word for fault in verify(config).faults}


def test_status_apply_and_verify_agree_on_the_keys_that_are_due(tmp_path: Path) -> None:
    """Those of partitions, and those that no file needs; none that only a file names."""
    text = DECLARATION.replace('"footer"', '"day-{partition.day}"')
    config = make_lake(tmp_path, days=1, declaration=text)
    keyring = mc.Keyring(tmp_path / "lake.keyring")
    for name in ("day-2026-11-01", "unused", "foreign"):
        keyring.create_key(name)
    Lake.open(config).apply()
    config.write_text(text.replace('"day-{partition.day}"', '"foreign"'))
    Lake.open(config).dataset("orders").write(order_table().append_column("day", [["1"] * 2]))
    rules = 'unused = ["none*"]\n\n[dataset.orders.rotation]\nmax_version_age = "0d"\n'
    config.write_text(text + rules)
    (status,) = Lake.open(config).status()
    assert status.counts == {"declared": 2, "other-keys": 1}
    assert status.due_keys == ["day-2026-11-01", "pii", "unused"]
    due = [fault.message for fault in verify(config).faults if fault.word == "key-age"]
    assert due == ["master keys due for a new version: day-2026-11-01, pii, unused; apply adds it"]
    Lake.open(config).apply()
    versions = {key.id: key.version for key in keyring.list_keys()}
    assert versions == {
        "day-2026-11-01": 2, "pii": 2, "unused": 2, "foreign": 1, "footer": 1
    }  # fmt: skip


def test_previous_keys_are_declared_too(config: Path, tmp_path: Path) -> None:
    mc.Keyring(tmp_path / "lake.keyring").create_key("new")
    text = DECLARATION.replace("\npii = [", "\nnew = [")
    config.write_text(text + '\n[dataset.orders.previous]\nmaster_keys = { pii = "new" }\n')
    assert verify(config).code == 0
    config.write_text(text)
    assert verify(config).code == 1


def test_a_dataset_that_cannot_be_listed_is_an_error(config: Path, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "orders")
    result = verify(config)
    assert (result.code, "No such file" in result.error) == (2, True)


# --- since ---------------------------------------------------------------------------------------


def test_only_changed_files_are_verified_since_the_last_time(config: Path, tmp_path: Path) -> None:
    assert verify(config, since="last").skipped == 0
    assert verify(config, since="last").skipped == 4
    os.utime(tmp_path / FIRST, (1, 1))
    result = verify(config, since="last")
    assert (result.skipped, [file.path for file in result.files]) == (
        3, ["day=2026-11-01/part-0.parquet"],
    )  # fmt: skip


def test_a_file_with_a_fault_is_verified_again(config: Path, tmp_path: Path) -> None:
    flip(tmp_path / FIRST, 60)
    assert verify(config).code == 1
    result = verify(config, since="last")
    assert (result.code, result.skipped) == (1, 3)


def test_a_copy_of_a_skipped_file_is_still_found(tmp_path: Path) -> None:
    config = make_lake(
        tmp_path, declaration=DECLARATION.replace('aad_prefix = "orders/{path}"\n', "")
    )
    Lake.open(config).apply()
    assert verify(config).code == 0
    shutil.copy(tmp_path / FIRST, tmp_path / "orders/day=2026-11-02/copy.parquet")
    result = verify(config, since="last")
    assert (result.code, result.skipped, len(result.files)) == (1, 4, 1)
    assert [finding.word for finding in verify(config).findings] == ["integrity"]


def test_only_files_that_changed_since_a_time_are_verified(config: Path, tmp_path: Path) -> None:
    os.utime(tmp_path / FIRST, (1, 1))
    moment = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
    result = verify(config, since=moment)
    assert (result.skipped, len(result.files)) == (1, 3)


# --- reports for CI systems ----------------------------------------------------------------------


def test_junit_has_a_case_for_each_file(config: Path, tmp_path: Path) -> None:
    pq.write_table(order_table(), tmp_path / "orders/day=2026-11-02/stray.parquet")
    mc.Keyring(tmp_path / "lake.keyring").disable_key("pii")
    root = ET.fromstring(make_junit([verify(config)]))
    (suite,) = root
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors")}
    assert counts == {"tests": "6", "failures": "1", "errors": "4"}
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failed == ["day=2026-11-02/stray.parquet"]
    error = suite[0].find("error")
    assert error is not None
    assert error.get("type") == "disabled"


def test_sarif_has_a_result_for_each_finding(config: Path, tmp_path: Path) -> None:
    flip(tmp_path / FIRST, 60)
    log = json.loads(make_sarif([verify(config)]))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    assert run["tool"]["driver"]["rules"] == [{"id": "tag"}]
    (result,) = run["results"]
    assert (result["ruleId"], result["level"]) == ("tag", "error")
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"].endswith("day%3D2026-11-01/part-0.parquet")
    start = place["region"]["byteOffset"]
    assert start <= 60 < start + place["region"]["byteLength"]


def test_the_lines_of_json_are_those_of_files(config: Path) -> None:
    result = verify(config)
    assert [(line["ok"], line["dataset"]) for line in result.file_fields()] == [
        (True, "orders")
    ] * 4
    totals = result.fields()
    assert (totals["code"], totals["ok"], totals["num_rows"]) == (0, True, 8)

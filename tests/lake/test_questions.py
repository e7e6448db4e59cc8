"""Report, impact and why: what a lake, a key and a file have to say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from tests.support.browser import EVIL
from tests.support.cases import each_case
from tests.support.cli.program import run
from tests.support.lake_folder import DECLARATION, make_lake, order_table, trust_lake, write_day

FIRST = "orders/day=2026-11-01/part-0.parquet"


# --- impact --------------------------------------------------------------------------------------


def impact(config: Path, key: str, **how: Any) -> mc.lake.DatasetImpact:
    (found,) = mc.Lake.open(config).impact(key, **how)
    return found


def test_a_column_key_costs_its_columns(config: Path) -> None:
    found = impact(config, "pii")
    assert (found.files, found.rows, found.footers) == (4, 8, 0)
    assert found.columns == ["home_ssn", "mail"]
    leak, loss = found.describe()[1:]
    assert leak == "  if the key leaks: columns home_ssn, mail can be read and forged"
    assert loss.endswith("columns home_ssn, mail are lost, the others stay readable")


def test_a_footer_key_costs_whole_files(config: Path) -> None:
    found = impact(config, "footer")
    assert (found.files, found.columns, found.footers, found.footer_columns) == (4, [], 4, 1)
    assert found.describe()[-1].endswith("4 files can no longer be opened at all")


def test_versions_and_keks_are_distinguished(config: Path, tmp_path: Path) -> None:
    kek = mc.Lake.open(config).status()[0].files[0].keys[1].kek_id
    assert kek is not None
    assert impact(config, kek).columns == ["home_ssn", "mail"]
    mc.Keyring(tmp_path / "lake.keyring").rotate_key("pii")
    write_day(tmp_path, "2026-11-03", 1)
    mc.Lake.open(config).apply()
    assert impact(config, "pii", version=1).files == 4
    assert impact(config, "pii", version=2).files == 1
    assert impact(config, "pii", version=1).rewrapped == 1


def test_closed_footers_are_unknown(config: Path, tmp_path: Path) -> None:
    mc.Keyring(tmp_path / "lake.keyring").disable_key("footer")
    found = impact(config, "pii")
    assert (found.files, found.hidden) == (0, 4)
    assert "4 files with closed footers" in found.describe()[-1]


def test_a_dataset_that_cannot_be_listed_is_unknown(config: Path, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "orders")
    found = impact(config, "pii")
    assert (found.files, found.code, "No such file" in found.error) == (0, 2, True)
    trust_lake(tmp_path)
    answer = run(tmp_path, "keys", "impact", "pii")
    assert answer.returncode == 2
    assert answer.stdout.startswith("orders: not examined: ")
    assert json.loads(run(tmp_path, "keys", "impact", "pii", "--json").stdout)["error"]


# --- why -----------------------------------------------------------------------------------------


def why(config: Path, path: str = FIRST, column: str | None = None) -> list[mc.lake.KeyStep]:
    return mc.Lake.open(config).why(config.parent / path, column)


def test_why_judges_the_file_that_it_opened(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("modcrypt.lake.examination.open_source_at")
    assert why(config)[-1].text == "the file is encrypted as declared"


def test_every_step_of_a_column_that_opens_is_named(config: Path) -> None:
    steps = why(config, column="home_ssn")
    assert [step.step for step in steps] == [
        "file", "data key", "KEK", "master key", "declaration", "key service", "footer",
        "data key", "KEK", "master key", "declaration", "key service", "column", "policy",
    ]  # fmt: skip
    assert all(step.ok for step in steps)
    assert steps[3].text == "master key footer, version 1 wraps that"
    assert steps[9].text == "master key pii, version 1 wraps that"


def test_columns_without_keys_of_their_own_say_where_they_are(config: Path) -> None:
    texts = {name: why(config, column=name)[-2].text for name in ("id", "country")}
    assert texts == {"id": "id is under the footer key", "country": "country is in plaintext"}
    step = why(config, column="none")[-1]
    assert (step.ok, "the file has no column none; it has id, country" in step.text) == (
        False, True,
    )  # fmt: skip


@each_case(
    "how, key, refused, advice",
    [
        ("disable_key", "pii", "disabled: ", "enable the master key again"),
        ("disable_key", "footer", "disabled: ", "enable the master key again"),
        ("destroy_key", "pii", "destroyed: ", "nothing recovers"),
    ],
)
def test_the_step_that_refuses_is_named(
    how: str, key: str, refused: str, advice: str, tmp_path: Path
) -> None:
    config = make_lake(tmp_path, days=1, files=1)
    mc.Lake.open(config).apply()
    getattr(mc.Keyring(tmp_path / "lake.keyring"), how)(key)
    *before, last = why(config)
    assert all(step.ok for step in before)
    assert (last.step, last.ok) == ("key service", False)
    assert last.text.startswith(refused)
    assert last.advice.startswith(advice)


def test_a_plaintext_file_and_a_moved_one_say_what_would_help(config: Path, tmp_path: Path) -> None:
    write_day(tmp_path, "2026-11-03", 1)
    (step,) = why(config, "orders/day=2026-11-03/part-0.parquet")
    assert (step.ok, step.advice) == (False, "run modcrypt apply to encrypt it")
    shutil.copy(tmp_path / FIRST, tmp_path / "orders/day=2026-11-02/copy.parquet")
    last = why(config, "orders/day=2026-11-02/copy.parquet")[-1]
    assert (last.step, last.ok, last.text[:10]) == ("footer", False, "aad-prefix")


def test_a_key_that_is_not_declared_is_not_requested(config: Path, tmp_path: Path) -> None:
    config.write_text(DECLARATION.replace('"footer"', '"other"'))
    last = why(config)[-1]
    assert (last.step, last.ok) == ("declaration", False)
    assert "the footer is under master key footer, but other is declared" in last.text


def test_a_key_that_is_declared_for_another_use_needs_only_apply(config: Path) -> None:
    config.write_text(DECLARATION.replace('"footer"', '"pii"').replace("pii =", "footer =", 1))
    last = why(config)[-1]
    assert (last.step, last.advice) == ("declaration", "run modcrypt apply to re-key it")
    mc.Lake.open(config).apply()
    assert all(step.ok for step in why(config))


def test_keys_bound_to_another_text_are_not_for_apply(config: Path) -> None:
    config.write_text(DECLARATION.replace("include", 'kms_aad = "other"\ninclude'))
    last = why(config)[-1]
    assert (last.step, last.advice.startswith("restore the kms_aad")) == ("key service", True)


def test_an_erased_column_is_no_mistake(config: Path) -> None:
    mc.Lake.open(config).shred("orders", columns=["home_ssn"])
    steps = why(config)
    assert all(step.ok for step in steps)
    assert "home_ssn is erased" in [step.text for step in steps]
    assert why(config, column="mail")[-1].ok
    refused = [step.text for step in why(config, column="home_ssn") if not step.ok]
    assert refused == ["home_ssn is erased"]


def test_keys_that_readers_accept_are_no_refusal(config: Path, tmp_path: Path) -> None:
    mc.Keyring(tmp_path / "lake.keyring").create_key("new")
    text = DECLARATION.replace("pii = [", "new = [")
    config.write_text(f'{text}\n[dataset.orders.previous]\nmaster_keys = {{ pii = "new" }}\n')
    last = why(config)[-1]
    assert (last.ok, last.advice) == (True, "run modcrypt apply to rotate its keys")
    assert last.text == "its keys are under previous master keys"


def test_an_exposed_file_is_not_as_declared(config: Path, tmp_path: Path) -> None:
    mc.Keyring(tmp_path / "lake.keyring").rotate_key("pii")
    config.write_text(f'compromised = ["pii@1"]\n{DECLARATION}')
    last = why(config)[-1]
    assert (last.step, last.ok) == ("policy", False)
    assert last.text == "its keys are wrapped under the compromised pii@1"
    assert last.advice == "run modcrypt apply to encrypt it under new data keys"
    mc.Lake.open(config).apply()
    assert all(step.ok for step in why(config))


def test_plaintext_that_apply_refuses_needs_a_decision(config: Path, tmp_path: Path) -> None:
    mc.Lake.open(config).status()
    write_day(tmp_path, "2026-11-01", 1)  # in place of an encrypted file
    assert why(config)[-1].advice.endswith("run modcrypt apply --accept-replaced to encrypt it")
    mc.Lake.open(config).apply(accept_replaced=True)
    assert all(step.ok for step in why(config))


def test_of_datasets_in_one_folder_the_pattern_decides(config: Path) -> None:
    archive = '[dataset.archive]\nlocation = "orders/*0.parquet"\nfooter_key = "other"\n'
    config.write_text(f"{DECLARATION.replace('*.parquet', '*1.parquet')}\n{archive}")
    assert "but other is declared" in why(config)[-1].text
    assert why(config, FIRST.replace("0.parquet", "1.parquet"))[-1].ok


def test_a_partition_without_a_master_key_is_named(config: Path) -> None:
    config.write_text(DECLARATION.replace('"footer"', '"day-{partition.day}"'))
    path = "orders/day=__HIVE_DEFAULT_PARTITION__/a.parquet"
    (config.parent / path).parent.mkdir()
    pq.write_table(order_table(), config.parent / path)
    (last,) = why(config, path)
    assert (last.step, last.ok, last.advice) == ("declaration", False, "")
    assert "the file is in no folder day=VALUE" in last.text


def test_a_file_of_no_dataset_is_a_mistake(config: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="belongs to no dataset"):
        mc.Lake.open(config).why(tmp_path / "x.parquet")


@each_case(("path", "message"), [
    ("orders", "is a folder; name a file in it"), ("orders/x", "No such file"),
])  # fmt: skip
def test_what_is_no_file_is_a_mistake(path: str, message: str, config: Path) -> None:
    with pytest.raises(OSError, match=message):
        why(config, path)


# --- report --------------------------------------------------------------------------------------


def test_a_report_covers_datasets_keys_and_findings(config: Path, tmp_path: Path) -> None:
    write_day(tmp_path, "2026-11-03", 1)
    report = mc.Lake.open(config).report()
    (row,) = report.datasets
    assert (row["files"], row["states"]) == (5, {"declared": 4, "plaintext": 1})
    assert (row["rows"], row["encrypted_columns"], row["columns"]) == (10, 3, 4)
    assert [(key["master_key_id"], key["files"]) for key in report.keys] == [
        ("footer", {"orders": 4}), ("pii", {"orders": 4}),
    ]  # fmt: skip
    assert (report.keys[0]["newest"], report.keys[0]["key_state"]) == (1, "enabled")
    assert [file["file"] for file in report.findings] == ["day=2026-11-03/part-0.parquet"]
    json.dumps(report.fields())


def test_a_second_report_names_the_drift(config: Path, tmp_path: Path) -> None:
    assert mc.Lake.open(config).report().drift is None
    assert mc.Lake.open(config).report().drift == []
    write_day(tmp_path, "2026-11-03", 1)
    assert mc.Lake.open(config).report().drift == [
        {"dataset": "orders", "state": "plaintext", "before": 0, "now": 1}
    ]


def test_what_was_examined_has_a_digest(config: Path, tmp_path: Path) -> None:
    first = mc.Lake.open(config).report().datasets[0]["examined"]
    assert mc.Lake.open(config).report().datasets[0]["examined"] == first
    pq.write_table(order_table(3), tmp_path / FIRST)
    assert mc.Lake.open(config).report().datasets[0]["examined"] != first


def test_the_page_holds_what_the_report_does(config: Path, tmp_path: Path) -> None:
    mc.Lake.open(config).report()
    write_day(tmp_path, "2026-11-03", 1)
    page = mc.Lake.open(config).report().to_html()
    assert "1 file not as declared" in page
    assert "day=2026-11-03/part-0.parquet" in page.replace("<wbr>", "")
    assert page.count("<script") == 1  # its own
    assert "Changes since the last report" in page


@pytest.mark.parametrize("evil", EVIL)
def test_a_hostile_name_is_only_text(evil: str, tmp_path: Path) -> None:
    config = make_lake(tmp_path, days=1, files=1)
    name = evil.encode("utf-8", "replace").decode().replace("/", "").replace("\0", "")[:60]
    shutil.copy(tmp_path / FIRST, tmp_path / "orders" / f"{name}.parquet")
    page = mc.Lake.open(config).report().to_html()
    page.encode()
    assert "<img" not in page
    assert page.count("<script") == 1


# --- the commands --------------------------------------------------------------------------------


def test_the_commands_answer(config: Path, tmp_path: Path) -> None:
    trust_lake(tmp_path)
    answer = run(tmp_path, "keys", "impact", "pii")
    assert answer.returncode == 0
    assert "columns home_ssn, mail can be read and forged" in answer.stdout
    answer = run(tmp_path, "keys", "impact", "pii@1", "--version", "2")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "version 2 is given for pii@1; pass one version" in answer.stderr
    (line,) = map(json.loads, run(tmp_path, "keys", "impact", "pii", "--json").stdout.splitlines())
    assert (line["schema"], line["files"]) == ("modcrypt.lake.impact/1", 4)
    answer = run(tmp_path, "why", FIRST, "mail")
    assert answer.returncode == 0
    assert answer.stdout.splitlines()[0].startswith("ok      file: ")
    mc.Keyring(tmp_path / "lake.keyring").disable_key("pii")
    answer = run(tmp_path, "why", FIRST)
    assert answer.returncode == 3
    assert answer.stdout.splitlines()[-2].startswith("REFUSED key service: disabled: ")
    answer = run(tmp_path, "report", "--html", "lake.html", "--json")
    assert answer.returncode == 0
    assert json.loads(answer.stdout)["schema"] == "modcrypt.lake.report/1"
    assert (tmp_path / "lake.html").read_text().startswith("<!DOCTYPE html>")
    assert run(tmp_path, "report", "--html", "lake.html").returncode == 2
    assert run(tmp_path, "report", "--html", "lake.html", "--force").returncode == 0
    assert run(tmp_path, "report").returncode == 2

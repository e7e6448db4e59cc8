"""`status`, `apply` and `verify` of a lake, as users meet them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq

import modcrypt as mc
from tests.support.cases import each_case
from tests.support.cli.program import Answer, check_failure, run, run_program
from tests.support.lake_folder import DECLARATION, order_table, write_day


def test_the_lake_is_found_from_any_folder_below(lake: Path) -> None:
    answer = run(lake / "orders" / "day=2026-11-01", "status")
    assert answer.returncode == 0
    assert answer.stdout == "orders: 4 files: 4 as declared; 4 not verified since last change\n"
    assert answer.stderr == ""


def test_the_program_itself_does_the_same(lake: Path) -> None:
    answer = run_program(lake, "status", "orders", fork=False)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout == "orders: 4 files: 4 as declared; 4 not verified since last change\n"


def test_status_lists_what_is_not_as_declared(lake: Path) -> None:
    write_day(lake, "2026-11-03", 1)
    (lake / "orders/notes.txt").write_text("no Parquet")
    answer = run(lake, "status", "--files")
    first, titles, row, last = answer.stdout.splitlines()
    counts = "5 files: 4 as declared, 1 plaintext; 4 not verified since last change"
    assert first == f"orders: {counts}; 1 undeclared file"
    assert titles.split() == ["file", "state", "reason", "message"]
    assert row.split() == ["day=2026-11-03/part-0.parquet", "plaintext", "-", "-"]
    assert last == "undeclared files: notes.txt"
    answer = run(lake, "status", "--files", "--json")
    lines = [json.loads(line) for line in answer.stdout.splitlines()]
    assert [line["kind"] for line in lines] == ["dataset", *["file"] * 5]
    assert lines[0]["strays"] == ["notes.txt"]


def test_apply_shows_a_plan_and_then_does_it(lake: Path) -> None:
    write_day(lake, "2026-11-03", 1)
    planned = run(lake, "apply", "--dry-run")
    assert "encrypt" in planned.stdout
    assert planned.stdout.splitlines()[-1].startswith("orders: 1 to encrypt; ")
    done = run(lake, "apply", "orders", "--jobs", "2")
    assert done.stdout == "orders: 1 encrypted (4 of 5 files were as declared)\n"
    again = run(lake, "apply")
    assert again.stdout == "orders: nothing to do (5 of 5 files as declared)\n"
    (totals,) = map(json.loads, run(lake, "apply", "--json").stdout.splitlines())
    assert totals["results"] == {}


def test_apply_exits_with_the_code_of_what_it_refused(lake: Path) -> None:
    mc.Keyring(lake / "lake.keyring").disable_key("pii")
    answer = run(lake, "apply")
    assert answer.returncode == 3
    assert "refused" in answer.stdout


# --- verify --------------------------------------------------------------------------------------


def test_verify_without_a_path_verifies_the_lake(lake: Path) -> None:
    answer = run(lake, "verify")
    assert answer.returncode == 0
    assert answer.stdout.splitlines()[0] == (
        "Not authenticated by the format: file crypto metadata (4 files); column country (4 files)"
    )
    assert run(lake, "status").stdout == "orders: 4 files: 4 as declared\n"


def test_no_spelling_of_a_dataset_changes_what_verify_does(lake: Path) -> None:
    for path in ("orders", "./orders", str(lake / "orders"), "modcrypt.toml#orders"):
        assert run(lake, "verify", path).stdout.splitlines()[-1].startswith("orders: 4 of 4 ")
    of_part = run(lake, "verify", "orders/day=2026-11-01/part-0.parquet", "orders")
    assert of_part.stdout.splitlines()[-1].startswith("orders: 4 of 4 ")
    by_keys = run(lake, "verify", "orders", "--kms", "file:lake.keyring", "--strict")
    assert by_keys.stdout.splitlines()[-1].startswith("4 files: authentic")


def test_mistakes_in_the_declaration_do_not_turn_a_dataset_into_a_folder(lake: Path) -> None:
    """A folder of plaintext files has no fault, so a check in CI would pass."""
    (lake / "modcrypt.toml").write_text(DECLARATION.replace("footer_key", "footer"))
    answer = run(lake, "verify", "orders", env={"MODCRYPT_CONFIG": "modcrypt.toml"})
    assert answer.returncode == 2
    assert "footer_key is missing" in answer.stderr
    for path in ("orders", "./orders"):  # it has changed since it was trusted
        assert run(lake, "verify", path).returncode == 2
    assert run(lake, "verify", "orders", "--kms", "file:lake.keyring").returncode == 0


def test_a_dataset_that_is_not_declared_is_a_usage_error(lake: Path) -> None:
    message = check_failure(run(lake, "verify", "order", "--config", "modcrypt.toml"), 2, "usage")
    assert "declares no dataset order; did you mean orders?" in message


def test_options_of_files_are_refused_for_a_lake(lake: Path) -> None:
    for options in (
        ("--strict",), ("--kms", "file:lake.keyring"), ("--glob", "*.x"),
        ("--signed-by", "writer.pub"),
    ):  # fmt: skip
        message = check_failure(run(lake, "verify", *options), 2, "usage")
        start = f"{options[0]}: a lake is verified as its declaration says; remove it"
        assert message.startswith(start)


def test_verify_says_why_a_key_is_missing(lake: Path) -> None:
    mc.Keyring(lake / "lake.keyring").disable_key("pii")
    answer = run(lake, "verify")
    assert answer.returncode == 3
    assert (
        "Not opened: column home_ssn, mail (4 files): its key cannot be used: master key pii is "
        "disabled in the keyring"
    ) in answer.stdout


def test_verify_writes_reports_for_ci_systems(lake: Path) -> None:
    answer = run(lake, "verify", "--junit", "out.xml", "--sarif", "out.sarif")
    assert answer.returncode == 0
    assert b'tests="5"' in (lake / "out.xml").read_bytes()
    assert json.loads((lake / "out.sarif").read_bytes())["runs"][0]["results"] == []


@each_case("option", ["--junit", "--sarif", "--html"])
def test_a_report_that_cannot_be_written_hides_no_fault(option: str, lake: Path) -> None:
    path = "orders/day=2026-11-01/part-0.parquet" if option == "--html" else "orders"
    report = (option, "away/report", "--json")
    answer = run(lake, "verify", path, *report)
    assert answer.returncode == 2
    pq.write_table(order_table(), lake / "orders/day=2026-11-01/part-0.parquet")
    answer = run(lake, "verify", path, *report)
    assert "modcrypt: error: file: away/report" in answer.stderr
    *_, totals, failure = map(json.loads, answer.stdout.splitlines())
    assert (answer.returncode, totals["ok"], failure["error"]) == (1, False, "file")


def test_verify_skips_what_has_not_changed(lake: Path) -> None:
    run(lake, "verify")
    answer = run(lake, "verify", "--since", "last")
    assert "0 of 0 files as declared, 4 unchanged and skipped" in answer.stdout
    assert "4 unchanged" not in run(lake, "verify", "--since", "1d").stdout
    check_failure(run(lake, "verify", "--since", "soon"), 2, "usage")


# --- mistakes ------------------------------------------------------------------------------------


def test_without_a_declaration_nothing_is_done(tmp_path: Path) -> None:
    for verb in ("status", "apply", "verify"):
        message = check_failure(run(tmp_path, verb, "--config", "none.toml"), 2, "file")
        assert "none.toml" in message


def test_all_mistakes_are_shown_at_once(lake: Path) -> None:
    text = DECLARATION.replace("location", "locaton").replace("footer_key", "footer")
    (lake / "modcrypt.toml").write_text(text)
    answer: Answer = run(lake, "status", "--config", str(lake / "modcrypt.toml"))
    assert answer.returncode == 2
    path = lake / "modcrypt.toml"
    assert answer.stderr.splitlines() == [
        f"modcrypt: {path}: line 3: footer_key is missing; set it to the id of a master key",
        f"modcrypt: {path}: line 3: location must be the path or URL of a folder or file",
        f"modcrypt: {path}: line 4: unknown member locaton; did you mean location?",
        f"modcrypt: {path}: line 7: unknown member footer; did you mean footer_key?",
        f"modcrypt: error: usage: {path} has 4 mistakes",
    ]


def test_of_many_mistakes_the_first_are_shown(lake: Path) -> None:
    path = lake / "modcrypt.toml"
    path.write_text(DECLARATION + "".join(f"member{n} = 1\n" for n in range(120)))
    lines = run(lake, "status", "--config", str(path)).stderr.splitlines()
    assert len(lines) == 102
    assert lines[-2:] == [
        f"modcrypt: {path}: and 20 more mistakes",
        f"modcrypt: error: usage: {path} has more than 100 mistakes",
    ]

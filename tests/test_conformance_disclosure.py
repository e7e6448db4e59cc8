"""What the conformance suite publishes of other implementations, and what it keeps private."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.conformance import RUNNER, copy_fake, run_suite
from tools.conformance import corpus, disclosure
from tools.conformance.corpus import Case
from tools.conformance.registry import Entry
from tools.conformance.report import publish, publish_matrix
from tools.conformance.run import ClientRun
from tools.conformance.verdicts import (
    CRASH,
    FAIL_CLOSED,
    FAIL_OPEN,
    FAILURES,
    PASS,
    TIMEOUT,
    WRONG_ROWS,
    Verdict,
)

Json = dict[str, Any]
CASES = {case.id: case for case in (*corpus.read_cases(), *corpus.write_cases())}
HOSTILE, VALID = "read/key-metadata/cut-to-0", "read/key-metadata/key-only"
WRITTEN = "write/parquet/bloom-filter"


def test_nothing_that_is_committed_discloses_a_fault_of_others() -> None:
    command = [sys.executable, str(RUNNER / "disclosure.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert len(CASES) >= 800


@pytest.mark.parametrize("kind", FAILURES)
@pytest.mark.parametrize("expected", [False, True])
def test_any_failure_in_a_hostile_case_is_a_disclosure(
    kind: str, expected: bool, tmp_path: Path
) -> None:
    listed = {"verdict": "expected failure", "failure": kind} if expected else {"verdict": kind}
    document = {"client": "other", "cases": {HOSTILE: listed, VALID: {"verdict": "pass"}}}
    (tmp_path / "other.json").write_text(json.dumps(document))
    found = disclosure.find_disclosures(tmp_path, CASES.values())
    assert list(found) == [f"other: {HOSTILE}: {kind}"]
    shutil.move(tmp_path / "other.json", tmp_path / "modcrypt.json")
    assert list(disclosure.find_disclosures(tmp_path, CASES.values())) == []


@pytest.mark.parametrize(
    ("name", "kind", "detail", "secret"),
    [
        (HOSTILE, PASS, "end of stream", False),
        (HOSTILE, PASS, "java.lang.OutOfMemoryError: Java heap space", True),
        (VALID, FAIL_CLOSED, "no", False),
        (VALID, WRONG_ROWS, "", False),
        (VALID, CRASH, "", True),
        (VALID, TIMEOUT, "", True),
        (WRITTEN, FAIL_CLOSED, "", False),
        (WRITTEN, FAIL_OPEN, "", True),
    ],
)
def test_ordinary_refusals_and_failures_with_valid_files_are_public(
    name: str, kind: str, detail: str, secret: bool
) -> None:
    assert disclosure.is_secret(CASES[name], kind, detail) is secret


def test_results_of_cases_that_left_the_corpus_are_disclosures(tmp_path: Path) -> None:
    gone = {"cases": {"read/parquet/gone": {"verdict": "pass"}}}
    (tmp_path / "other.json").write_text(json.dumps(gone))
    (tmp_path / "matrix.json").write_text(
        json.dumps({"modcrypt": {"other": {WRITTEN: {"verdict": "crash"}}}})
    )
    assert list(disclosure.find_disclosures(tmp_path, CASES.values())) == [
        f"other: {WRITTEN} written by modcrypt: crash",
        "other: read/parquet/gone is no case of spec-vectors",
    ]


def test_lists_of_expected_failures_have_valid_files_alone(tmp_path: Path) -> None:
    (tmp_path / "other.xfails").write_text(f"{VALID} fail-closed # no\n{HOSTILE} fail-open # no\n")
    assert list(disclosure.find_expected(tmp_path)) == [f"other.xfails: {HOSTILE} fail-open"]


# --- what a run writes ----------------------------------------------------------------------------


def test_a_run_with_a_failed_security_case_warns_and_writes_nothing(tmp_path: Path) -> None:
    results = tmp_path / "results"
    status, output = run_suite(
        "--entrypoint", copy_fake("open", tmp_path), "--name", "fake", "--results", results,
        "--junit", tmp_path / "junit.xml", "--only", "read/key-metadata/cut-to-*",
    )  # fmt: skip
    assert status == 1
    assert "warning: fake fails" in output
    assert "security cases; nothing is written" in output
    assert not results.exists()
    assert not (tmp_path / "junit.xml").exists()


def test_a_crash_in_a_valid_case_is_not_written(tmp_path: Path) -> None:
    status, output = run_suite(
        "--entrypoint", copy_fake("crash", tmp_path), "--name", "fake", "--results",
        tmp_path / "results", "--only", VALID,
    )  # fmt: skip
    assert (status, "warning: fake fails 1 security" in output) == (1, True), output
    assert not (tmp_path / "results").exists()


def test_a_failed_security_case_that_is_expected_is_not_written_either(tmp_path: Path) -> None:
    expected = tmp_path / "fake.xfails"
    expected.write_text("read/key-metadata/* fail-open # known\n")
    status, output = run_suite(
        "--entrypoint", copy_fake("open", tmp_path), "--name", "fake", "--xfails", expected,
        "--results", tmp_path / "results", "--only", "read/key-metadata/cut-to-*",
    )  # fmt: skip
    assert (status, "nothing is written" in output) == (1, True)
    assert not (tmp_path / "results").exists()


def test_a_private_run_has_the_cases_of_its_folder_and_writes_there(tmp_path: Path) -> None:
    """The folder's own control, and its own list of expected failures, are used, too."""
    case = CASES[HOSTILE].raw | {"id": "unpublished"}
    (tmp_path / "ags1").mkdir()
    (tmp_path / "ags1" / "key_metadata.json").write_text(json.dumps({"cases": [case]}))
    (tmp_path / "fake.xfails").write_text("read/key-metadata/* fail-open # reported\n")
    status, output = run_suite(
        "--entrypoint", copy_fake("open", tmp_path), "--name", "fake", "--private", tmp_path,
        "--only", "read/key-metadata/unpublished",
    )  # fmt: skip
    assert (status, "warning" in output) == (0, False), output
    found = json.loads((tmp_path / "fake.json").read_text())["cases"]
    assert found == {
        "read/key-metadata/unpublished": {
            "severity": "feature", "verdict": "expected failure", "failure": "fail-open",
            "intact": False, "detail": "returned key", "reason": "reported",
        }
    }  # fmt: skip


def test_private_cases_may_use_files_and_keys_of_the_corpus(tmp_path: Path) -> None:
    names = {"parquet": "gcm-ef-simple", "ags1": "four"}
    for form, name in names.items():
        raw = CASES[f"read/{form}/{name}"].raw | {"id": "mine"}
        (tmp_path / form).mkdir()
        (tmp_path / form / "cases.json").write_text(json.dumps({"cases": [raw]}))
    found = list(corpus.read_cases(tmp_path))
    assert [case.format for case in found] == [*names]
    for case in found:
        assert corpus.read_request(case, tmp_path, 0)["type"] == "read"
        like = CASES[f"read/{case.format}/{names[case.format]}"]
        assert corpus.case_bytes(case) == corpus.case_bytes(like)


def test_private_cases_need_ids_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "ags1").mkdir()
    (tmp_path / "ags1" / "key_metadata.json").write_text(json.dumps({"cases": [CASES[VALID].raw]}))
    status, output = run_suite("--entrypoint", "true", "--private", tmp_path)
    assert (status, "has a case of the same id" in output) == (1, True)


def run_of(name: str, verdicts: dict[str, Verdict]) -> ClientRun:
    found: dict[str, tuple[Case, Verdict]] = {id_: (CASES[id_], v) for id_, v in verdicts.items()}
    return ClientRun(Entry(name, ("true",)), verdicts=found)


def test_published_results_of_others_have_no_exposures_and_no_words_about_hostile_files() -> None:
    verdicts = {
        VALID: Verdict(FAIL_CLOSED, "no"),
        HOSTILE: Verdict(PASS, "offset 7"),
        WRITTEN: Verdict(FAIL_OPEN, "it shows"),
    }
    kept = {name: verdict for name, (_, verdict) in publish(run_of("x", verdicts)).verdicts.items()}
    assert kept == {VALID: Verdict(FAIL_CLOSED, "no"), HOSTILE: Verdict(PASS)}
    ours = run_of("modcrypt", verdicts)
    assert publish(ours) is ours
    assert publish_matrix({"x": {"y": {WRITTEN: Verdict(CRASH, "at 7")}}}) == {
        "x": {"y": {WRITTEN: Verdict(FAIL_CLOSED)}}
    }

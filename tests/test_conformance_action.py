"""The composite action of the conformance suite: its steps, run here with the inputs of a user."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

from tests.support.composite_action import run_action
from tests.support.conformance import RUNNER, copy_fake

EXPECTED = "read/key-metadata/* fail-closed # it reads nothing\n"


def test_the_action_passes_with_the_failures_that_are_expected(tmp_path: Path) -> None:
    (tmp_path / "mine.xfails").write_text(EXPECTED)
    inputs = {"entrypoint": copy_fake("refuses", tmp_path), "name": "mine", "xfails": "mine.xfails"}
    done = run_action(RUNNER, tmp_path, inputs)
    assert done.status == 0, done.output
    assert done.left_out == ["actions/setup-python@ece7cb06caefa5fff74198d8649806c4678c61a1"]
    assert ET.parse(tmp_path / "conformance" / "junit.xml").getroot()[0].get("failures") == "0"
    badge = json.loads((tmp_path / "conformance" / "mine.badge.json").read_text())
    assert badge["color"] == "yellow"


def test_the_action_fails_with_other_failures_and_keeps_the_reports(tmp_path: Path) -> None:
    done = run_action(RUNNER, tmp_path, {"entrypoint": copy_fake("refuses", tmp_path)})
    assert done.status == 1
    assert "fail-closed: read/key-metadata/key-only" in done.output
    suite = ET.parse(tmp_path / "conformance" / "junit.xml").getroot()[0]
    assert suite.get("name") == "client"
    assert int(suite.get("failures") or 0) > 0
    assert (tmp_path / "conformance" / "client.badge.json").exists()


def test_the_action_runs_only_the_cases_that_are_asked_for(tmp_path: Path) -> None:
    inputs = {"entrypoint": copy_fake("refuses", tmp_path), "only": "read/key-metadata/cut-to-*"}
    done = run_action(RUNNER, tmp_path, inputs)
    assert done.status == 0, done.output


def test_the_action_fails_without_a_client(tmp_path: Path) -> None:
    for entrypoint in ("", "./absent"):
        done = run_action(RUNNER, tmp_path, {"entrypoint": entrypoint})
        assert done.status == 1
        assert "Traceback" not in done.output


def test_inputs_are_no_shell_code(tmp_path: Path) -> None:
    inputs = {"entrypoint": "true; touch a $(touch b)", "name": "$(touch c)", "only": "`touch d`"}
    assert run_action(RUNNER, tmp_path, inputs).status == 1
    assert not {path.name for path in tmp_path.iterdir()} & {*"abcd"}

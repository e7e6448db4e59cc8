"""modcrypt against the conformance suite, and the suite against clients that misbehave."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from tools.conformance import corpus, trace
from tools.conformance.expected_failures import read_expected
from tools.conformance.message_schema import InvalidMessageError, check_message
from tools.conformance.process import ClientProcess
from tools.conformance.registry import CLIENTS, ROOT, known_clients
from tools.conformance.rows import canonical_bytes, row_digest
from tools.conformance.verdicts import FAILURES

RUNNER = ROOT / "tools" / "conformance"
Json = dict[str, Any]

FAKE = """
import json, sys, time
behaviour = sys.argv[1]
abilities = {"formats": ["key-metadata"], "features": []}
for line in sys.stdin:
    message = json.loads(line)
    if message["type"] == "stop":
        break
    if message["type"] == "start":
        answer = {"type": "started", "protocol": 1, "name": "fake", "version": "1",
                  "read": abilities, "write": {"formats": [], "features": []}}
    else:
        answer = {"type": "result", "id": message["id"], "outcome": "error", "message": "no"}
        if message["id"].endswith("/key-only"):
            if behaviour == "crash": sys.exit("it hurts")
            if behaviour == "hang": time.sleep(60)
            if behaviour == "noise": print("hello")
            if behaviour == "unknown": answer["outcome"] = "maybe"
            if behaviour == "other": answer["id"] = "read/key-metadata/key-192"
            if behaviour == "wrong":
                answer = {"type": "result", "id": message["id"], "outcome": "key",
                          "key": "00" * 16, "aad_prefix": None, "file_length": None}
        if behaviour == "open":
            answer = {"type": "result", "id": message["id"], "outcome": "key",
                      "key": "00" * 16, "aad_prefix": None, "file_length": None}
    print(json.dumps(answer), flush=True)
"""


def run(*arguments: object, python: tuple[str, ...] = (sys.executable,)) -> tuple[int, str]:
    command = [*python, str(RUNNER), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def modcrypt_results(tmp_path_factory: pytest.TempPathFactory) -> Json:
    folder = tmp_path_factory.mktemp("results")
    status, output = run(
        "modcrypt", "--matrix", "--results", folder, "--junit", folder / "junit.xml"
    )
    assert status == 0, output
    suite = ET.parse(folder / "junit.xml").getroot()[0]
    assert suite.get("failures") == "0"
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


def test_modcrypt_passes_every_case(modcrypt_results: Json) -> None:
    verdicts = {
        name: case["verdict"] for name, case in modcrypt_results["modcrypt"]["cases"].items()
    }
    expected = [case.id for case in (*corpus.read_cases(), *corpus.write_cases())]
    assert {*verdicts} == {*expected}
    assert {name: verdict for name, verdict in verdicts.items() if verdict != "pass"} == {}


def test_modcrypt_reads_all_that_it_writes(modcrypt_results: Json) -> None:
    read_back = modcrypt_results["matrix"]["modcrypt"]["modcrypt"]
    assert read_back
    assert {case["verdict"] for case in read_back.values()} == {"pass"}


@pytest.mark.parametrize(
    ("behaviour", "verdict"),
    [("crash", "crash"), ("hang", "timeout"), ("noise", "crash"), ("unknown", "crash"),
     ("other", "crash"), ("wrong", "wrong rows"), ("refuses", "fail-closed")],
)  # fmt: skip
def test_whatever_a_client_does_is_a_verdict(behaviour: str, verdict: str, tmp_path: Path) -> None:
    found = run_fake(behaviour, tmp_path)
    assert found["read/key-metadata/key-only"]["verdict"] == verdict
    # The run goes on, with a new process if need be.
    assert found["read/key-metadata/cut-to-0"]["verdict"] == "pass"
    assert "read/ags1/empty" not in found  # not declared


def test_accepting_what_must_be_refused_is_fail_open(tmp_path: Path) -> None:
    assert run_fake("open", tmp_path)["read/key-metadata/cut-to-0"]["verdict"] == "fail-open"


def run_fake(behaviour: str, folder: Path) -> Json:
    (folder / "fake.py").write_text(FAKE)
    status, output = run(
        "--entrypoint", f"{sys.executable} {folder}/fake.py {behaviour}", "--name", "fake",
        "--results", folder, "--timeout", 1,
    )  # fmt: skip
    assert status == 1, output
    cases: Json = json.loads((folder / "fake.json").read_text())["cases"]
    return cases


def test_expected_failures_need_reasons_and_must_happen(tmp_path: Path) -> None:
    (tmp_path / "fake.py").write_text(FAKE)
    expected = tmp_path / "fake.xfails"
    arguments = (
        "--entrypoint", f"{sys.executable} {tmp_path}/fake.py refuses", "--name", "fake",
        "--xfails", expected,
    )  # fmt: skip
    expected.write_text("read/key-metadata/* fail-closed # it reads nothing\n")
    assert run(*arguments)[0] == 0
    expected.write_text(expected.read_text() + "read/ags1/* crash # it used to\n")
    status, output = run(*arguments)
    assert (status, "did not happen: read/ags1/*" in output) == (1, True)
    expected.write_text("read/key-metadata/* fail-closed\n")
    with pytest.raises(ValueError, match="has no reason"):
        read_expected(expected)
    expected.write_text("read/key-metadata/* pass # good\n")
    with pytest.raises(ValueError, match="is not one of"):
        read_expected(expected)
    status, output = run(*arguments)
    assert (status, "Traceback" in output, "is not one of" in output) == (1, False, True)


@pytest.mark.parametrize(
    ("option", "value", "fault"),
    [("--only", "read/ags1", "no case matches"), ("--xfails", "/absent", "does not exist")],
)
def test_a_run_that_would_test_nothing_fails(option: str, value: str, fault: str) -> None:
    status, output = run("--entrypoint", "true", option, value)
    assert (status, fault in output) == (1, True), output


def test_a_client_that_waits_for_the_end_of_its_input_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "fake.py").write_text(FAKE + "sys.stdin.read()\n")
    process = ClientProcess([sys.executable, f"{tmp_path}/fake.py", "refuses"], tmp_path)
    process.ask({"type": "start", "protocol": 1}, 20)
    start = time.monotonic()
    process.stop()
    assert time.monotonic() - start < 9


def test_a_client_that_does_not_start_is_named_and_fails_the_run() -> None:
    status, output = run("--entrypoint", "/does/not/exist", "--name", "absent")
    assert "absent: skipped: it does not start" in output
    assert status == 1


def test_one_case_is_shown_with_its_files(tmp_path: Path) -> None:
    for name in ("read/parquet/gcm-ef-simple", "read/pkmt1/single-external", "write/ags1/ags1-mib"):
        command = [sys.executable, str(RUNNER), "--show", name]
        request = json.loads(subprocess.check_output(command, cwd=tmp_path))
        check_message(request, request["type"])
        assert request["id"] == name
    assert len([*(tmp_path / "conformance-case").iterdir()]) == 3  # data, material, plaintext


def test_the_action_runs_a_client(tmp_path: Path) -> None:
    (tmp_path / "fake.py").write_text(FAKE)
    (tmp_path / "mine.xfails").write_text("read/key-metadata/* fail-closed # it reads nothing\n")
    action = (RUNNER / "action.yml").read_text()
    script = textwrap.dedent(action.rpartition("run: |\n")[2])
    for name in re.findall(r"inputs\.(\w+)", action):
        assert f"\n  {name}:\n" in action
    values = {
        "ENTRYPOINT": f"{sys.executable} fake.py refuses", "NAME": "fake", "ONLY": "*",
        "XFAILS": "mine.xfails", "GITHUB_ACTION_PATH": str(RUNNER),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }  # fmt: skip
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=tmp_path, env=os.environ | values, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert ET.parse(tmp_path / "conformance" / "junit.xml").getroot()[0].get("failures") == "0"
    badge = json.loads((tmp_path / "conformance" / "fake.badge.json").read_text())
    assert badge["color"] == "yellow"


def test_the_runner_needs_only_the_standard_library() -> None:
    status, output = run("--help", python=(sys.executable, "-I", "-S"))
    assert (status, "CLIENT" in output) == (0, True), output


def test_every_expected_failure_of_the_list_has_a_reason() -> None:
    for name in known_clients():
        for entry in read_expected(CLIENTS / f"{name}.xfails"):
            assert entry.verdict in FAILURES


def test_every_sentence_is_traced() -> None:
    assert list(trace.problems()) == []


def test_tracing_notices_what_is_gone() -> None:
    sentence = trace.Sentence(
        "pme", "X", "1", "so be it", ("a.py:f",), ("read/x",), frozenset(), ""
    )
    assert list(trace.sentence_problems(sentence)) == [
        "no case matches read/x", "a.py:f does not exist",
    ]  # fmt: skip
    bare = trace.Sentence("pme", "X", "1", "so be it", (), (), frozenset(), "")
    assert "neither check, cases nor reason" in list(trace.sentence_problems(bare))


def test_messages_are_checked() -> None:
    check_message({"type": "start", "protocol": 1}, "start")
    for message, problem in (
        ({"type": "start"}, "lacks protocol"),
        ({"type": "start", "protocol": 2}, "is not 1"),
        ({"type": "start", "protocol": 1, "more": 1}, "unknown member more"),
        ([], "is not of type object"),
    ):
        with pytest.raises(InvalidMessageError, match=problem):
            check_message(message, "start")
    failed = {"type": "result", "id": "x", "outcome": "bytes", "length": True, "sha256": "00"}
    with pytest.raises(InvalidMessageError, match="length is not of type integer"):
        check_message(failed, "result")


def test_the_digest_of_the_readme_is_that_of_its_example() -> None:
    columns = ["id", "name"]
    rows: list[list[Any]] = [[{"int64": "1"}, {"string": "c3a4"}], [{"int64": "2"}, None]]
    readme = (corpus.FOLDER / "README.md").read_text()
    assert canonical_bytes(columns, rows).decode() in readme
    assert row_digest(columns, rows) in readme

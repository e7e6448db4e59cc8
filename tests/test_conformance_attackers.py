"""The conformance suite against clients that misbehave: each gets verdicts, and the run ends."""

from __future__ import annotations

import select
import sys
import time
from pathlib import Path

import pytest

from tests.support.cases import each_case, one_in
from tests.support.conformance import FAKE, run_fake
from tools.conformance import corpus, judge
from tools.conformance.client import MAX_TIMEOUTS, Client
from tools.conformance.process import ClientGoneError, ClientProcess, ClientTimeoutError
from tools.conformance.verdicts import CRASH, FAIL_CLOSED, FAIL_OPEN, FAILURES, TIMEOUT

ASKED = "read/key-metadata/key-only"
NEXT = "read/key-metadata/cut-to-0"


@each_case(
    ("behaviour", "verdict", "detail"),
    [
        ("crash", CRASH, "exit status 1: it hurts"),
        ("half", CRASH, "exit status 3"),
        ("closes", CRASH, "the process ended"),
        ("hang", TIMEOUT, "no answer in time"),
        ("noise", CRASH, "not JSON"),
        ("bytes", CRASH, "not JSON"),
        ("number", CRASH, "not JSON"),
        ("nest", CRASH, "not JSON"),
        ("surrogate", CRASH, "half of a surrogate pair"),
        ("unknown", CRASH, "does not fit the protocol"),
        ("other", CRASH, "the answer is to read/key-metadata/key-192"),
        ("other-kind", CRASH, "answered with rows instead of key"),
        ("twice", CRASH, "output follows the answer"),
        ("flood", CRASH, "the answer is too long"),
        ("flood-lines", CRASH, "output follows the answer"),
        ("flood-errors", CRASH, "exit status 1"),
        ("wrong", "wrong rows", "returned key"),
        ("refuses", FAIL_CLOSED, "no"),
        ("long", FAIL_CLOSED, "x" * 240),
        ("escapes", FAIL_CLOSED, "?[2J?<script>"),
    ],
    quick=one_in(3),
)
def test_whatever_a_client_does_is_a_verdict(
    behaviour: str, verdict: str, detail: str, tmp_path: Path
) -> None:
    found = run_fake(behaviour, tmp_path, "--timeout", 3 if behaviour == "hang" else 20)
    assert found[ASKED]["verdict"] == verdict
    assert detail in found[ASKED]["detail"]
    # The run goes on, with a new process if need be.
    assert found[NEXT]["verdict"] == "pass"
    assert "read/ags1/empty" not in found  # not declared
    assert (tmp_path / "junit.xml").stat().st_size < 200_000
    assert ("last words" in (tmp_path / "junit.xml").read_text()) == (behaviour == "flood-errors")


def test_accepting_what_must_be_refused_is_fail_open(tmp_path: Path) -> None:
    assert run_fake("open", tmp_path)[NEXT]["verdict"] == FAIL_OPEN


def test_a_client_that_cannot_start_again_crashes_in_all_that_is_left(tmp_path: Path) -> None:
    found = run_fake("vanish", tmp_path, "--only", "read/key-metadata/key-*")
    assert len(found) > 5
    assert {case["verdict"] for case in found.values()} == {CRASH}


def test_a_client_that_never_answers_does_not_keep_the_run_from_ending(tmp_path: Path) -> None:
    found = run_fake("deaf", tmp_path, "--timeout", 0.1)
    assert {case["verdict"] for case in found.values()} == {TIMEOUT}
    reported = [case["detail"] for case in found.values()]
    assert reported.count("no answer in time") == MAX_TIMEOUTS


def test_features_that_a_client_lacks_are_failures(tmp_path: Path) -> None:
    found = run_fake("lies", tmp_path)
    assert found["read/parquet/gcm-ef-uniform"]["verdict"] == FAIL_CLOSED
    assert found["write/parquet/ef-uniform"]["verdict"] == FAIL_CLOSED
    assert found["write/key-metadata/key-only"]["verdict"] == FAIL_CLOSED
    # Its refusals of hostile files are worth nothing, as it refuses valid ones.
    assert not [name for name in found if name.startswith("read/parquet/uniform-")]


def test_a_client_that_reads_nothing_does_not_block_the_runner(tmp_path: Path) -> None:
    code = "import time; print('{}', flush=True); time.sleep(60)"
    process = ClientProcess([sys.executable, "-c", code], tmp_path)
    with pytest.raises(ClientTimeoutError):
        process._send({"type": "read", "bytes": "00" * 1_000_000}, time.monotonic() + 0.2)
    assert select.select([process._stdout], [], [], 60)[0]  # Python may begin later than that
    with pytest.raises(ClientGoneError, match="output came before the request"):
        process.ask({"type": "start", "protocol": 1}, 20)
    process.kill()


def test_a_client_that_waits_for_the_end_of_its_input_is_not_waited_for(tmp_path: Path) -> None:
    script = tmp_path / "fake.py"
    script.write_text(FAKE.read_text() + "    sys.stdin.read()\n")
    process = ClientProcess([sys.executable, str(script), "refuses"], tmp_path)
    process.ask({"type": "start", "protocol": 1}, 20)
    process.stop(60)
    assert process._process.returncode == 0  # it has ended by itself


def test_a_command_that_does_not_exist_is_a_client_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(ClientGoneError, match="No such file"):
        Client(["/does/not/exist"], tmp_path).start()


@pytest.mark.parametrize("kind", ["fifo", "link", "folder", "nothing"])
def test_what_is_not_a_file_is_not_opened(kind: str, tmp_path: Path) -> None:
    found = run_fake(f"writes-{kind}", tmp_path, "--only", "write/ags1/*")
    assert {case["detail"] for case in found.values()} == {"out.ags1 is not a file"}
    assert {case["verdict"] for case in found.values()} == {FAIL_CLOSED}


@pytest.mark.parametrize(
    "data", [b"", b"PAR1", b"PARE" * 2, b"PAR1" + b"\x19" * 50_000 + b"P\xc3\0\0PAR1"]
)
def test_files_that_are_none_are_judged(data: bytes, tmp_path: Path) -> None:
    for case in corpus.write_cases():
        if case.format != "key-metadata":
            request = corpus.write_request(case, tmp_path)
            Path(request["path"]).write_bytes(data)
            assert {fault.kind for fault in judge.judge_file(request, Path(request["path"]))} & {
                FAIL_CLOSED, FAIL_OPEN,
            }  # fmt: skip


def test_verdicts_are_of_every_kind_of_failure() -> None:
    assert {CRASH, TIMEOUT, FAIL_CLOSED, FAIL_OPEN, "wrong rows"} == {*FAILURES}

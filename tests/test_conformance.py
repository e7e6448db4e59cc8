"""modcrypt against the conformance suite, and the suite's options, action and lists."""

from __future__ import annotations

import fnmatch
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from tests.support.conformance import RUNNER, copy_fake, run_suite
from tools import case_terms
from tools.conformance import __main__ as conformance
from tools.conformance import corpus, disclosure, registry, trace
from tools.conformance.expected_failures import read_expected
from tools.conformance.message_schema import InvalidMessageError, check_message
from tools.conformance.registry import CLIENTS, Entry, SkippedError, known_clients
from tools.conformance.report import shorten
from tools.conformance.rows import canonical_bytes, row_digest
from tools.conformance.verdicts import FAIL_CLOSED, FAIL_OPEN, FAILURES, PASS, judge_read
from tools.vector_files import BY_NAME, modules

Json = dict[str, Any]
ALL_CASES = (*corpus.read_cases(), *corpus.write_cases())


@pytest.fixture(scope="module")
def modcrypt_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    status, output = run_suite(
        "modcrypt", "--matrix", "--results", folder, "--junit", folder / "junit.xml"
    )
    assert status == 0, output
    suite = ET.parse(folder / "junit.xml").getroot()[0]
    assert suite.get("failures") == "0"
    return folder


@pytest.fixture(scope="module")
def modcrypt_results(modcrypt_folder: Path) -> Json:
    return {path.stem: json.loads(path.read_text()) for path in modcrypt_folder.glob("*.json")}


def test_modcrypt_passes_every_case(modcrypt_results: Json) -> None:
    verdicts = {
        name: case["verdict"] for name, case in modcrypt_results["modcrypt"]["cases"].items()
    }
    expected = [case.id for case in ALL_CASES]
    assert {*verdicts} == {*expected}
    assert {name: verdict for name, verdict in verdicts.items() if verdict != "pass"} == {}


def test_modcrypt_reads_all_that_it_writes(modcrypt_results: Json) -> None:
    read_back = modcrypt_results["matrix"]["modcrypt"]["modcrypt"]
    assert read_back
    assert {case["verdict"] for case in read_back.values()} == {"pass"}


def test_expected_failures_need_reasons_and_must_happen(tmp_path: Path) -> None:
    expected = tmp_path / "fake.xfails"
    arguments = (
        "--entrypoint", copy_fake("refuses", tmp_path), "--name", "fake", "--xfails", expected,
    )  # fmt: skip
    expected.write_text("read/key-metadata/* fail-closed # it reads nothing\n")
    assert run_suite(*arguments)[0] == 0
    expected.write_text(expected.read_text() + "read/ags1/* crash # it used to\n")
    status, output = run_suite(*arguments)
    assert (status, "did not happen: read/ags1/*" in output) == (1, True)
    expected.write_text("read/key-metadata/* fail-closed\n")
    with pytest.raises(ValueError, match="has no reason"):
        read_expected(expected)
    expected.write_text("read/key-metadata/* pass # good\n")
    with pytest.raises(ValueError, match="is not one of"):
        read_expected(expected)
    status, output = run_suite(*arguments)
    assert (status, "Traceback" in output, "is not one of" in output) == (1, False, True)


@pytest.mark.parametrize(
    ("option", "value", "fault"),
    [
        ("--only", "read/ags1", "no case matches"),
        ("--xfails", "/absent", "does not exist"),
        ("--entrypoint", " ", "--entrypoint is empty"),
        ("modcrypt", "polars", "remove modcrypt polars"),
        ("--name", "modcrypt", "pass another name"),
        ("--private", RUNNER / "private", "pass a folder outside of it"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(option: str, value: object, fault: str) -> None:
    status, output = run_suite("--entrypoint", "true", option, value)
    assert (status, fault in output) == (1, True), output


def test_a_client_that_does_not_start_is_named_and_fails_the_run() -> None:
    status, output = run_suite("--entrypoint", "/does/not/exist", "--name", "absent")
    assert "absent: skipped: it does not start" in output
    assert status == 1


def test_expected_failures_of_a_list_are_no_others(tmp_path: Path) -> None:
    """A client of the list has its own file, and a client that is given has none by its name."""
    assert "--xfails belongs to --entrypoint" in run_suite("polars", "--xfails", tmp_path / "x")[1]
    command = copy_fake("refuses", tmp_path)
    status, output = run_suite("--entrypoint", command, "--name", "iceberg-java")
    assert (status, "did not happen" in output) == (1, False), output


def test_a_client_that_is_given_needs_no_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(registry, "CLIENTS", tmp_path)
    command = ["--entrypoint", copy_fake("refuses", tmp_path), "--only", "read/key-metadata/*"]
    monkeypatch.setattr(sys, "argv", ["conformance", *command])
    assert conformance.main() == 1
    assert "fail-closed" in capsys.readouterr().out


def test_a_verifier_that_cannot_be_imported_is_the_reason_for_what_is_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "cryptography"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('no libssl')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    client = copy_fake("writes-file", tmp_path)
    _, output = run_suite("--entrypoint", client, python=(sys.executable,))
    reason = "not judged: the verifier cannot be imported: ImportError: no libssl"
    assert f"6 scenarios {reason}" in output


def test_one_case_is_shown_with_its_files(tmp_path: Path) -> None:
    for name in ("read/parquet/gcm-ef-simple", "read/pkmt1/single-external", "write/ags1/ags1-mib"):
        command = [sys.executable, str(RUNNER), "--show", name]
        request = json.loads(subprocess.check_output(command, cwd=tmp_path))
        check_message(request, request["type"])
        assert request["id"] == name
    assert len([*(tmp_path / "conformance-case").iterdir()]) == 3  # data, material, plaintext


def test_a_sealed_folder_is_shown_without_the_files_of_another_case(tmp_path: Path) -> None:
    cases = {case.name: case for case in corpus.read_cases() if case.format == "seals"}
    for name in ("file-foreign", "as-sealed", "table"):
        request = corpus.read_request(cases[name], tmp_path, 0)
        check_message(request, "read")
        found = [path for path in Path(request["path"]).rglob("*") if path.is_file()]
        files = cases[name].raw.get("files", {"v2.metadata.json"})
        assert len(found) == len(files) + 1


def test_the_runner_needs_only_the_standard_library(tmp_path: Path) -> None:
    (tmp_path / "fake.xfails").write_text("read/key-metadata/* fail-closed # it reads nothing\n")
    status, output = run_suite(
        "--entrypoint", copy_fake("refuses", tmp_path), "--name", "fake",
        "--xfails", tmp_path / "fake.xfails", "--results", tmp_path,
        python=(sys.executable, "-I", "-S"),
    )  # fmt: skip
    assert status == 0, output
    assert (tmp_path / "fake.badge.json").exists()


@pytest.mark.parametrize(
    ("needs", "reason"),
    [
        ({"programs": ("no-such-program",)}, "no-such-program is not installed"),
        ({"packages": ("no_such_package",)}, "the Python package no_such_package is not installed"),
        ({"build": ((sys.executable, "-c", "exit('no')"),)}, "the build failed: no"),
    ],
)
def test_a_client_that_cannot_be_built_is_skipped_with_the_reason(
    needs: Json, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "BUILD", tmp_path)
    with pytest.raises(SkippedError, match=reason):
        Entry("absent", ("true",), **needs).prepare()


@pytest.mark.parametrize("name", known_clients())
def test_a_client_has_less_than_150_lines(name: str) -> None:
    """What clients of a language share is not counted: JOINING.md offers it to everybody."""
    folder = CLIENTS / name.replace("-", "_")
    sources = [
        path for path in folder.rglob("*") if path.suffix in (".go", ".java", ".py", ".rs")
    ] or [folder.with_name(f"{folder.name}_client.py")]
    assert 40 < sum(len(path.read_text().splitlines()) for path in sources) < 150


def test_every_expected_failure_of_the_list_has_a_reason() -> None:
    for name in known_clients():
        for entry in read_expected(CLIENTS / f"{name}.xfails"):
            assert entry.verdict in FAILURES


def test_findings_name_cases_that_exist() -> None:
    text = (RUNNER / "FINDINGS.md").read_text()
    patterns = re.findall(r"`((?:read|write)/[^`\s]+)`", text)
    cases = [case.id for case in ALL_CASES if not disclosure.is_hostile(case)]
    assert [pattern for pattern in patterns if not fnmatch.filter(cases, pattern)] == []


def test_every_sentence_is_traced() -> None:
    assert list(trace.problems()) == []


def test_quotes_are_looked_for_in_a_text() -> None:
    (first, *others) = [sentence for sentence in trace.sentences() if sentence.spec == "ags1"]
    text = f"# AGS1\n\nThe stream **{first.quote}**".replace(" ", "\n")
    missing = [line.partition(":")[0] for line in trace.invented_quotes("ags1", text)]
    assert missing == [sentence.id for sentence in others]


def test_tracing_notices_what_is_gone() -> None:
    sentence = trace.Sentence(
        "pme", "X", "1", "so be it", ("a.py:f",), ("read/x",), frozenset(), ""
    )
    assert list(trace.sentence_problems(sentence)) == [
        "no case matches read/x", "a.py:f does not exist",
    ]  # fmt: skip
    bare = trace.Sentence("pme", "X", "1", "so be it", (), (), frozenset(), "")
    assert "neither check, cases nor reason" in list(trace.sentence_problems(bare))


@pytest.mark.slow
def test_a_second_run_writes_the_same_bytes(modcrypt_folder: Path, tmp_path: Path) -> None:
    """Files that clients write are random, and so is the time that a run takes."""
    assert run_suite("modcrypt", "--matrix", "--results", tmp_path)[0] == 0
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["matrix.json", "modcrypt.badge.json", "modcrypt.json"]
    for name in names:
        assert (tmp_path / name).read_bytes() == (modcrypt_folder / name).read_bytes()


@pytest.mark.parametrize(
    ("detail", "shown"),
    [
        ("length prefix is 1060044496, available is 98", "length prefix is #, available is #"),
        ("Computed: [117, 12], AES_GCM_V1 0xC0ffee", "Computed: [#, #], AES_GCM_V1 #"),
        ("8 rows with digest ab12cd34ef", "# rows with digest #"),
        ("/tmp/x-y/out.parquet: int64", "out.parquet: int64"),
    ],
)
def test_what_is_said_of_random_files_is_shown_without_numbers(detail: str, shown: str) -> None:
    assert shorten(detail, written=True) == shown


def test_what_is_said_of_cases_is_shown_without_addresses() -> None:
    detail = "Node@1a2b3c4d in /tmp/abc/data.parquet at 0x7ffd12, goroutine 17:\n 28 bytes\x1b[1m"
    assert shorten(detail) == "Node@0 in data.parquet at 0, goroutine 0: 28 bytes?[1m"


def test_published_results_have_no_addresses() -> None:
    for path in (RUNNER / "results").glob("*.json"):
        text = path.read_text()
        assert "/tmp/" not in text
        assert not re.search("0x[0-9a-f]{4}|conformance-[a-z0-9_]{8}/", text), path


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
    with pytest.raises(InvalidMessageError, match=r"length is not of type integer$"):
        check_message(failed, "result")
    with pytest.raises(InvalidMessageError, match="of none of rows, metadata, bytes,"):
        check_message({"type": "result", "id": "x", "outcome": "maybe"}, "result")


MISSING = {"path": "day=1/b.parquet", "problem": "missing"}
CHANGED = {"path": "day=1/a.parquet", "problem": "changed"}


@pytest.mark.parametrize(
    ("name", "findings", "verdict"),
    [
        ("file-missing", [MISSING], PASS),
        ("file-missing", [], FAIL_OPEN),
        ("file-missing", [{**MISSING, "problem": "changed"}], FAIL_OPEN),
        ("file-missing", [MISSING, CHANGED], FAIL_CLOSED),
        ("as-sealed", [], PASS),
        ("as-sealed", [CHANGED], FAIL_CLOSED),
        ("rolled-back", [], FAIL_OPEN),
        ("rolled-back", [CHANGED], FAIL_OPEN),
    ],
)
def test_a_reader_of_seals_finds_what_the_case_states(
    name: str, findings: list[Json], verdict: str
) -> None:
    (case,) = (case for case in corpus.read_cases() if case.id == f"read/seals/{name}")
    answer = {"type": "result", "id": case.id, "outcome": "findings", "findings": findings}
    check_message(answer, "result")
    assert judge_read(case, answer, False, None).kind == verdict


def test_faults_of_indexes_and_filters_need_readers_that_open_them() -> None:
    opened = {6: "page-indexes", 7: "page-indexes", 8: "bloom-filters", 9: "bloom-filters"}
    seen = set()
    for case in corpus.read_cases():
        base = Path(str(case.raw.get("file"))).stem
        if case.format != "parquet" or base not in BY_NAME or not case.raw["patches"]:
            continue
        changed = {kind for patch in case.raw["patches"] for kind in changed_types(base, patch)}
        needed = {opened.get(kind, "") for kind in changed}
        if case.raw["outcome"] == "refuse" and "" not in needed:
            assert needed <= case.features, case.id
            seen |= needed
    assert seen == {*opened.values()}


def changed_types(base: str, patch: Json) -> set[int]:
    """Return the types of the modules that a patch changes; 0 stands for bytes of no module."""
    places = patch.get("swap") or [patch["at"]]
    return {
        next((m.type for m in modules(base) if m.offset and m.offset <= at < m.offset + m.size), 0)
        for at in places
    }


def test_the_protocol_lists_every_feature() -> None:
    protocol = (RUNNER / "PROTOCOL.md").read_text()
    text = protocol.partition("### Features")[2].partition("### Reading")[0]
    listed = re.findall(r"^\| `([a-z0-9-]+)` \| (.+) \| (.+) \|$", text, re.MULTILINE)
    read, write = case_terms.FEATURES, case_terms.WRITE_FEATURES
    same = {name: "the same" for name in write if write[name] == read.get(name)}
    expected = {name: (read.get(name, "-"), (write | same).get(name, "-")) for name in read | write}
    assert {name: (reader, writer) for name, reader, writer in listed} == expected


def test_the_digest_of_the_readme_is_that_of_its_example() -> None:
    columns = ["id", "name"]
    rows: list[list[Any]] = [[{"int64": "1"}, {"string": "c3a4"}], [{"int64": "2"}, None]]
    readme = (corpus.FOLDER / "README.md").read_text()
    assert canonical_bytes(columns, rows).decode() in readme
    assert row_digest(columns, rows) in readme

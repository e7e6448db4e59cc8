"""The record of evidence: which events it has, and what happens if it cannot be written."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

import modcrypt as mc
from modcrypt.errors import FormatError, KeyMaterialError, KeyRetrievalError
from modcrypt.lake.declarations.declaration_file import read_content
from modcrypt.lake.evidence import evidence_lines, evidence_writer
from modcrypt.lake.evidence.events import DatasetResult
from modcrypt.lake.evidence.evidence_writer import EvidenceWriter
from modcrypt.lake.lake import Lake
from modcrypt.lake.record_file import append_lines
from tests.support.cases import each_case
from tests.support.cli.program import Answer, run
from tests.support.evidence import (
    RECORD,
    SIGNED,
    make_record,
    make_recorded_lake,
    read_lines,
    with_evidence,
)
from tests.support.lake_folder import DECLARATION, make_lake, write_day
from tests.support.signing import writer_key

PER_DAY = DECLARATION.replace('plaintext_columns = ["country"]\n', "")


def modcrypt(folder: Path, *arguments: str) -> Answer:
    return run(folder, *arguments, env={"MODCRYPT_CONFIG": str(folder / "modcrypt.toml")})


def states(folder: Path) -> dict[str, int]:
    (status,) = Lake.open(folder / "modcrypt.toml").status()
    return status.counts


# --- what is recorded ----------------------------------------------------------------------------


def test_nothing_is_recorded_unless_the_declaration_asks(tmp_path: Path) -> None:
    config = make_lake(tmp_path)
    Lake.open(config).apply()
    Lake.open(config).verify()
    assert not (tmp_path / RECORD).exists()
    assert Lake.open(config).report().evidence is None


def test_apply_verify_and_shred_are_recorded_with_what_they_found(tmp_path: Path) -> None:
    record = make_record(tmp_path)
    found = Lake.open(tmp_path / "modcrypt.toml").read_evidence()
    assert found.ok, found.findings
    events = found.events
    assert [(e.event, e.phase, e.begun) for e in events] == [
        ("apply", "begun", None), ("apply", "done", 1), ("verify", "done", None),
        ("shred", "begun", None), ("shred", "done", 4), ("verify", "done", None),
    ]  # fmt: skip
    assert [e.number for e in events] == [1, 2, 3, 4, 5, 6]
    (applied,), (verified,) = events[1].results, events[5].results
    assert (applied.dataset, applied.code, applied.files) == ("orders", 0, 4)
    assert applied.counts == {"encrypted": 4}
    assert verified.counts == {"correct": 2, "erased": 2}
    assert {e.signer for e in events} == {writer_key().verifier.hex_id}
    assert {e.version for e in events} == {mc.__version__}
    assert {e.declaration for e in events} == {read_content(tmp_path / "modcrypt.toml").digest}
    assert (events[3].request, events[4].request) == ("R-1", "R-1")
    assert found.head == f"6:{hashlib.sha256(record.read_bytes().splitlines()[-1]).hexdigest()}"
    assert max(map(len, record.read_bytes().splitlines())) < 1024


def test_an_erasure_is_linked_to_the_lines_that_prove_it(tmp_path: Path) -> None:
    make_record(tmp_path)
    events = Lake.open(tmp_path / "modcrypt.toml").read_evidence().events
    data = (tmp_path / "modcrypt.erased.jsonl").read_bytes()
    (linked,), (later,) = events[4].records, events[5].records
    assert (linked.name, linked.first, linked.lines) == ("modcrypt.erased.jsonl", 1, 1)
    assert (linked.bytes, linked.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert later.first > later.lines


def test_the_findings_of_a_verification_are_counted_by_their_code(tmp_path: Path) -> None:
    config = make_recorded_lake(tmp_path)
    Lake.open(config).apply()
    write_day(tmp_path, "2026-11-09", 2)
    Lake.open(config).verify()
    (result,) = Lake.open(config).read_evidence().events[-1].results
    assert (result.code, result.counts["faults"], result.findings) == (1, 2, {"plaintext": 2})


@each_case(
    "how, scope",
    [
        ({"since": "last"}, "since"),
        ({"parts": ["day=2026-11-01"], "resume": True}, "resume, parts"),
    ],
)
def test_a_limited_verification_says_so(tmp_path: Path, how: dict[str, Any], scope: str) -> None:
    config = make_recorded_lake(tmp_path)
    Lake.open(config).apply()
    Lake.open(config).verify("orders", **how)
    assert Lake.open(config).read_evidence().events[-1].scope == scope


def test_a_leak_and_new_versions_are_recorded_inside_apply(tmp_path: Path) -> None:
    config = make_recorded_lake(tmp_path)
    Lake.open(config).apply()
    mc.Keyring(tmp_path / "lake.keyring").rotate_key("pii")
    config.write_text('compromised = ["pii@1"]\n' + config.read_text())
    Lake.open(config).apply()
    events = Lake.open(config).read_evidence().events[2:]
    assert [(e.event, e.phase) for e in events] == [
        ("apply", "begun"), ("leak", "done"), ("apply", "done"),
    ]  # fmt: skip
    leak, done = events[1], events[2]
    assert leak.keys == ("pii@1",)
    assert leak.results[0].counts == {"exposed": 4}
    assert (leak.records[0].first, leak.records[0].lines) == (1, 5)
    assert done.results[0].counts == {"renewed": 4}


def test_a_new_version_is_recorded(tmp_path: Path) -> None:
    rotated = DECLARATION + '\n[dataset.orders.rotation]\nmax_version_age = "0d"\n'
    config = make_recorded_lake(tmp_path, declaration=rotated)
    Lake.open(config).apply()
    (event,) = [e for e in Lake.open(config).read_evidence().events if e.event == "rotate"]
    assert set(event.keys) == {"footer", "pii"}


def test_the_command_line_records_what_it_shreds(tmp_path: Path) -> None:
    config = make_recorded_lake(tmp_path, declaration=PER_DAY)
    assert modcrypt(tmp_path, "apply").returncode == 0
    shred = ("shred", "orders/day=2026-11-01", "--all")
    assert modcrypt(tmp_path, *shred).returncode == 0
    assert len(read_lines(tmp_path / RECORD)) == 2, "a dry run is no event"
    assert modcrypt(tmp_path, *shred, "--yes", "--request", "R-2").returncode == 0
    begun, done = Lake.open(config).read_evidence().events[2:]
    assert (begun.phase, done.phase, done.request) == ("begun", "done", "R-2")
    assert (done.results[0].dataset, done.results[0].counts) == ("orders", {"shredded": 2})
    assert done.records[0].lines == 1


def test_the_command_line_records_what_it_rotates(tmp_path: Path) -> None:
    config = make_recorded_lake(tmp_path)
    Lake.open(config).apply()
    before = len(Lake.open(config).read_evidence().events)
    rotate = ("keys", "rotate", "orders", "--what", "dek")
    assert modcrypt(tmp_path, *rotate, "--dry-run").returncode == 0
    assert len(Lake.open(config).read_evidence().events) == before
    assert modcrypt(tmp_path, *rotate).returncode == 0
    begun, done = Lake.open(config).read_evidence().events[before:]
    assert (begun.event, begun.phase) == ("rotate", "begun")
    assert (done.event, done.phase, done.begun) == ("rotate", "done", begun.number)
    (result,) = done.results
    assert (result.dataset, result.code, set(result.counts)) == ("orders", 0, {"rotated"})


def test_plans_are_no_events(tmp_path: Path) -> None:
    config = make_recorded_lake(tmp_path)
    Lake.open(config).apply(dry_run=True)
    Lake.open(config).status()
    Lake.open(config).report()
    Lake.open(config).verify(evidence=False)
    assert modcrypt(tmp_path, "verify", "--no-evidence").returncode == 1
    assert not (tmp_path / RECORD).exists()


def test_who_may_read_the_declaration_may_read_the_record(tmp_path: Path) -> None:
    record = make_record(tmp_path)
    assert (
        stat.S_IMODE(record.stat().st_mode) == (tmp_path / "modcrypt.toml").stat().st_mode & 0o644
    )


def test_no_path_and_no_value_is_recorded(tmp_path: Path) -> None:
    text = make_record(tmp_path).read_text()
    assert "part-0" not in text
    assert "day=" not in text
    assert str(tmp_path) not in text


# --- what fails ----------------------------------------------------------------------------------


def test_a_failure_is_recorded(tmp_path: Path) -> None:
    config = make_recorded_lake(tmp_path)

    def carry_out(plan: Any) -> Any:
        raise KeyRetrievalError("the key service is gone")

    with pytest.raises(KeyRetrievalError, match="gone"):
        Lake.open(config).apply(carry_out=carry_out)
    found = Lake.open(config).read_evidence()
    assert [(e.phase, e.error) for e in found.events] == [("begun", ""), ("failed", "key")]
    assert not found.interrupted


def test_an_interrupt_is_recorded(tmp_path: Path) -> None:
    config = make_recorded_lake(tmp_path)

    def carry_out(plan: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Lake.open(config).apply(carry_out=carry_out)
    assert Lake.open(config).read_evidence().events[-1].error == "interrupted"


def _block(folder: Path) -> None:
    (folder / RECORD).mkdir()


def _open_to_all(folder: Path) -> None:
    (folder / RECORD).touch()
    (folder / RECORD).chmod(0o666)


def _garble(folder: Path) -> None:
    (folder / RECORD).write_text("{}\n")


def _lose_key(folder: Path) -> None:
    (folder / "operator.key").unlink()


UNWRITABLE = {
    "is no file": (_block, OSError, "apply has not begun, because it cannot be recorded"),
    "writable by others": (_open_to_all, KeyRetrievalError, "writable by others"),
    "garbled": (_garble, FormatError, "line 1 of .* is not evidence.*report --check"),
    "no signing key": (_lose_key, KeyRetrievalError, "not begun.*operator.key does not exist"),
}


@each_case("case", list(UNWRITABLE))
def test_what_cannot_be_recorded_does_not_begin(tmp_path: Path, case: str) -> None:
    config = make_recorded_lake(tmp_path)
    break_it, error, message = UNWRITABLE[case]
    break_it(tmp_path)
    with pytest.raises(error, match=message):
        Lake.open(config).apply()
    assert states(tmp_path) == {"plaintext": 4}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_nothing_begins_in_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    config = make_recorded_lake(tmp_path)
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError, match="not begun"):
        Lake.open(config).apply()
    with pytest.raises(PermissionError, match="not begun"):
        Lake.open(config).verify()
    tmp_path.chmod(0o700)
    assert states(tmp_path) == {"plaintext": 4}


def test_verify_looks_for_a_read_only_folder_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_recorded_lake(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(PermissionError, match="verify has not begun"):
        Lake.open(config).verify(check=lambda name, files: pytest.fail("it has begun"))
    assert Lake.open(config).verify(evidence=False)


def test_an_end_that_cannot_be_recorded_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_recorded_lake(tmp_path)
    real: Callable[..., None] = append_lines
    calls: list[Path] = []

    def fail_second(path: Path, *arguments: Any, **options: Any) -> None:
        calls.append(path)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        real(path, *arguments, **options)

    monkeypatch.setattr(evidence_writer, "append_lines", fail_second)
    with pytest.raises(OSError, match="apply has ended, but this could not be recorded: No space"):
        Lake.open(config).apply()
    assert states(tmp_path) == {"declared": 4}
    assert Lake.open(config).read_evidence().interrupted == (1,)


def test_signatures_that_are_required_need_a_key(tmp_path: Path) -> None:
    config = make_recorded_lake(tmp_path, 'signed_by = ["operator.pub"]\n')
    with pytest.raises(ValueError, match=r"requires signed evidence \(evidence.signed_by\)"):
        Lake.open(config).apply()
    with pytest.raises(ValueError, match="requires signed evidence"):
        Lake.open(config, signing_key=writer_key(number=1)).apply()
    assert states(tmp_path) == {"plaintext": 4}
    Lake.open(config, signing_key=writer_key()).apply()
    assert Lake.open(config).read_evidence().signed == 2


def test_an_unsigned_record_is_not_continued_once_signatures_are_required(tmp_path: Path) -> None:
    config = make_recorded_lake(tmp_path, "")
    Lake.open(config).apply()
    config.write_text(with_evidence(SIGNED))
    with pytest.raises(FormatError, match=r"line 2 .* is not signed by a key"):
        Lake.open(config).apply()
    found = Lake.open(config).read_evidence()
    assert [f.word for f in found.findings] == ["signature", "signature"]


def test_the_passphrase_of_the_key_is_a_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_recorded_lake(tmp_path, SIGNED + 'sign_passphrase = "env:OPERATOR"\n')
    (tmp_path / "operator.key").unlink()
    writer_key().save(tmp_path / "operator.key", "correct horse")
    monkeypatch.setenv("OPERATOR", "correct horse")
    Lake.open(config).apply()
    assert Lake.open(config).read_evidence().signed == 2
    config.write_text(with_evidence(SIGNED))
    with pytest.raises(KeyRetrievalError, match=r"not begun.*sign_passphrase"):
        Lake.open(config).apply()


# --- limits --------------------------------------------------------------------------------------


def test_a_record_has_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_recorded_lake(tmp_path, "")
    Lake.open(config).apply()
    monkeypatch.setattr(evidence_writer, "MAX_LINES", 2)
    with pytest.raises(KeyMaterialError, match=r"not begun.*would have more than 2 lines"):
        Lake.open(config).apply()
    monkeypatch.setattr(evidence_writer, "MAX_RECORD", 500)
    with pytest.raises(KeyMaterialError, match="would be longer than 500 bytes"):
        Lake.open(config).apply()


def test_a_line_has_as_many_results_as_fit(tmp_path: Path) -> None:
    config = make_recorded_lake(tmp_path, "")
    declaration = Lake.open(config).declaration
    with EvidenceWriter(declaration).record("verify", begins=False) as results:
        for number in range(3000):
            code, found = int(number == 2999), {f"word-{n}": n + 1 for n in range(40)}
            results.append(DatasetResult.of(f"{number}\n", code, 1, {}, found))
    (line,) = (tmp_path / RECORD).read_bytes().splitlines()
    assert len(line) < evidence_lines.MAX_LINE
    (event,) = Lake.open(config).read_evidence().events
    assert event.results[0].dataset == "2999\\n", "those with faults come first"
    assert event.results[0].findings["word-39"] == 40
    assert len(event.results[0].findings) == 20
    assert len(event.results) + event.more_datasets == 3000


# --- at once -------------------------------------------------------------------------------------


def _append_many(config: str, count: int) -> None:
    writer = EvidenceWriter(Lake.open(config).declaration)
    for _ in range(count):
        writer.add("verify")


def test_two_processes_append_at_once(tmp_path: Path) -> None:
    config = make_recorded_lake(tmp_path)
    context = get_context("fork")
    writers = [context.Process(target=_append_many, args=(config, 25)) for _ in range(2)]
    for process in writers:
        process.start()
    for process in writers:
        process.join()
    assert [process.exitcode for process in writers] == [0, 0]
    found = Lake.open(config).read_evidence()
    assert (found.ok, found.lines, found.signed) == (True, 50, 50)


def test_events_may_overlap(tmp_path: Path) -> None:
    config = make_recorded_lake(tmp_path)
    one, other = (EvidenceWriter(Lake.open(config).declaration) for _ in range(2))
    with one.record("apply"), other.record("apply"):
        pass
    found = Lake.open(config).read_evidence()
    assert [(e.phase, e.begun) for e in found.events] == [
        ("begun", None), ("begun", None), ("done", 2), ("done", 1),
    ]  # fmt: skip
    assert found.ok
    assert not found.interrupted


# --- the declaration -----------------------------------------------------------------------------


@each_case(
    "members, message",
    [
        ("signs = 1\n", "unknown member signs; did you mean sign"),
        ('sign = "operator.key"\n', "name the signing key as file:PATH"),
        ('sign_passphrase = "env:X"\n', "sign_passphrase needs sign"),
        ('signed_by = ["absent.pub"]\n', "absent.pub: No such file"),
        ("sign = 1\n", "sign must be a string"),
    ],
)
def test_mistakes_in_the_declaration(tmp_path: Path, members: str, message: str) -> None:
    config = make_recorded_lake(tmp_path, members)
    assert any(message in str(fault) for fault in read_content(config).faults), [
        *map(str, read_content(config).faults)
    ]


def test_evidence_must_be_a_table(tmp_path: Path) -> None:
    config = make_lake(tmp_path, declaration=f"evidence = true\n{DECLARATION}")
    assert [str(f) for f in read_content(config).faults] == [
        "line 1: evidence must be a table [evidence]"
    ]


def test_keys_need_trust_and_a_pasted_key_is_not_repeated(tmp_path: Path) -> None:
    config = make_recorded_lake(tmp_path)
    commands = read_content(config).commands
    assert any(command.startswith("evidence.sign = file:") for command in commands)
    assert any(command.startswith("evidence.signed_by = ") for command in commands)
    secret = json.loads((tmp_path / "operator.key").read_text())
    pasted = str(secret["key"])
    config.write_text(with_evidence(f"sign = {json.dumps(pasted)}\n"))
    content = read_content(config)
    assert content.declaration is None
    assert pasted not in f"{content.faults}{content.commands}"

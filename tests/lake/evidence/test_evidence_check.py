"""`report --check`: what the chain, the signatures and the named records show."""

from __future__ import annotations

import base64
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from modcrypt.lake.evidence import evidence_check
from modcrypt.lake.evidence.events import EvidenceCheck
from modcrypt.lake.evidence.evidence_check import check_evidence
from modcrypt.lake.evidence.evidence_lines import MAX_LINE, make_line, parse_line
from modcrypt.lake.lake import Lake
from tests.support.cases import each_case
from tests.support.cli.program import Answer, run
from tests.support.evidence import RECORD, SIGNED, make_record, make_recorded_lake
from tests.support.signing import writer_key


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a lake with a signed record of six lines."""
    folder = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        make_record(folder)
    return folder


@pytest.fixture
def lake(recorded: Path, tmp_path: Path) -> Path:
    return shutil.copytree(recorded, tmp_path / "lake")


def modcrypt(folder: Path, *arguments: str) -> Answer:
    return run(folder, *arguments, env={"MODCRYPT_CONFIG": str(folder / "modcrypt.toml")})


def check(folder: Path, *, signed: bool = True, at_least: str | None = None) -> EvidenceCheck:
    keys = [writer_key().verifier] if signed else []
    return check_evidence(folder / RECORD, keys, at_least)


def faults(result: EvidenceCheck) -> list[tuple[int | None, str]]:
    return [(finding.line, finding.word) for finding in result.findings]


# --- altered lines -------------------------------------------------------------------------------

Lines = list[bytes]


def _change(lines: Lines) -> None:
    lines[2] = lines[2].replace(b'"correct": 4', b'"correct": 5')


def _change_and_chain(lines: Lines) -> None:
    """Change a line, and repair all hashes, as one without the signing key can."""
    _change(lines)
    for number in range(3, len(lines)):
        members = json.loads(lines[number])
        members["previous"] = parse_line(lines[number - 1]).event.hash
        lines[number] = json.dumps(members, sort_keys=True).encode()


def _remove(lines: Lines) -> None:
    del lines[2]


def _reorder(lines: Lines) -> None:
    lines[1], lines[2] = lines[2], lines[1]


def _repeat(lines: Lines) -> None:
    lines.insert(3, lines[2])


def _insert(lines: Lines) -> None:
    event = parse_line(lines[2]).event
    lines.insert(3, make_line(event, event.hash, None)[:-1])


def _append_unsigned(lines: Lines) -> None:
    members = {**json.loads(lines[-1]), "number": 7, "previous": parse_line(lines[-1]).event.hash}
    del members["signature"]
    lines.append(json.dumps(members, sort_keys=True).encode())


def _append_of_others(lines: Lines) -> None:
    event = parse_line(lines[-1]).event
    made = make_line(replace(event, number=7), event.hash, writer_key(number=1))
    lines.append(made[:-1])


def _break_signature(lines: Lines) -> None:
    members = json.loads(lines[5])
    signature = bytearray(base64.b64decode(members["signature"]))
    signature[3] ^= 1
    members["signature"] = base64.b64encode(signature).decode()
    lines[5] = json.dumps(members, sort_keys=True).encode()


def _rewrite(lines: Lines) -> None:
    lines[5] = lines[5].replace(b": ", b":", 1)  # the same JSON in other bytes


def _garble(lines: Lines) -> None:
    lines[2] = b"\xff{"


def _repeat_member(lines: Lines) -> None:
    lines[2] = lines[2].replace(b'"number": 3', b'"number": 3, "number": 3')


def _add_member(lines: Lines) -> None:
    lines[2] = json.dumps({**json.loads(lines[2]), "more": 1}, sort_keys=True).encode()


def _mistype(lines: Lines) -> None:
    lines[2] = json.dumps({**json.loads(lines[2]), "number": True}, sort_keys=True).encode()


def _nest(lines: Lines) -> None:
    lines[2] = b'{"schema": ' + b"[" * 15_000 + b"]" * 15_000 + b"}"


def _enlarge(lines: Lines) -> None:
    lines[2] = json.dumps({**json.loads(lines[2]), "number": 1 << 70}, sort_keys=True).encode()


def _halve_character(lines: Lines) -> None:
    lines[2] = json.dumps({**json.loads(lines[2]), "user": "\ud800"}, sort_keys=True).encode()


def _lengthen(lines: Lines) -> None:
    lines[2] = b" " * (MAX_LINE + 1)


def _cut_begin(lines: Lines) -> None:
    del lines[0]


ATTACKS: dict[str, tuple[Callable[[Lines], None], list[tuple[int, str]]]] = {
    "changed": (_change, [(3, "signature"), (4, "chain")]),
    "changed and chained": (_change_and_chain, [(n, "signature") for n in (3, 4, 5, 6)]),
    "removed": (_remove, [(3, "chain")]),
    "reordered": (_reorder, [(2, "chain"), (3, "chain"), (4, "chain")]),
    "repeated": (_repeat, [(4, "chain")]),
    "inserted": (_insert, [(4, "chain"), (4, "signature"), (5, "chain")]),
    "appended without signature": (_append_unsigned, [(7, "signature")]),
    "appended by others": (_append_of_others, [(7, "signature")]),
    "broken signature": (_break_signature, [(6, "signature")]),
    "rewritten": (_rewrite, [(6, "format")]),
    "garbled": (_garble, [(3, "format"), (4, "chain")]),
    "repeated member": (_repeat_member, [(3, "format"), (4, "chain")]),
    "unknown member": (_add_member, [(3, "format"), (4, "chain")]),
    "mistyped": (_mistype, [(3, "format"), (4, "chain")]),
    "nested": (_nest, [(3, "format"), (4, "chain")]),
    "huge number": (_enlarge, [(3, "format"), (4, "chain")]),
    "half a character": (_halve_character, [(3, "format"), (4, "chain")]),
    "long": (_lengthen, [(3, "format"), (4, "chain")]),
    "without the first line": (_cut_begin, [(1, "chain")]),
}


def test_an_intact_record_has_no_fault(lake: Path) -> None:
    found = check(lake)
    assert (found.ok, found.lines, found.signed, found.interrupted) == (True, 6, 6, ())
    assert found.signers == [writer_key().verifier.hex_id]


@each_case("attack", list(ATTACKS))
def test_an_altered_record_has_faults(lake: Path, tmp_path: Path, attack: str) -> None:
    lines = (lake / RECORD).read_bytes().splitlines()
    alter, expected = ATTACKS[attack]
    alter(lines)
    copy = shutil.copytree(lake, tmp_path / attack.replace(" ", "-"))
    (copy / RECORD).write_bytes(b"\n".join(lines) + b"\n")
    found = check(copy)
    assert set(expected) <= set(faults(found)), found.findings
    assert faults(found)[0] == expected[0]


def test_without_keys_only_the_chain_is_checked(lake: Path) -> None:
    lines = (lake / RECORD).read_bytes().splitlines()
    _change_and_chain(lines)
    (lake / RECORD).write_bytes(b"\n".join(lines) + b"\n")
    found = check(lake, signed=False)
    assert (found.ok, found.signed) == (True, 0), "whoever needs no key can make it anew"
    assert {event.signer for event in found.events} == {None}, "an unchecked signer is no signer"


def test_any_changed_byte_is_a_fault(lake: Path) -> None:
    data, dice = (lake / RECORD).read_bytes(), random.Random(7)
    for _ in range(300):
        changed = bytearray(data)
        where = dice.randrange(len(data) - 1)
        changed[where] ^= 1 << dice.randrange(8)
        (lake / RECORD).write_bytes(changed)
        assert not check(lake).ok, where


# --- the end of the record -----------------------------------------------------------------------


def test_lines_that_were_cut_off_are_missed_only_by_a_known_head(lake: Path) -> None:
    head = check(lake).head
    number, name = head.split(":")
    lines = (lake / RECORD).read_bytes().splitlines(keepends=True)
    assert check(lake, at_least=head).ok
    assert check(lake, at_least=number).ok
    (lake / RECORD).write_bytes(b"".join(lines[:-1]))
    assert check(lake).ok
    for least in (head, number):
        assert faults(check(lake, at_least=least)) == [(None, "truncation")]
    (lake / RECORD).write_bytes(b"".join(lines))
    assert faults(check(lake, at_least=f"5:{name}")) == [(5, "chain")]


def test_a_record_that_was_removed_is_missed_by_a_known_head(lake: Path) -> None:
    head = check(lake).head
    (lake / RECORD).unlink()
    assert faults(check(lake, at_least=head)) == [(None, "truncation")]
    answer = modcrypt(lake, "report", "--check")
    assert answer.returncode == 2
    assert "has no line" in answer.stderr


# --- other records -------------------------------------------------------------------------------


def test_other_records_may_grow_but_not_change(lake: Path) -> None:
    erased = lake / "modcrypt.erased.jsonl"
    data = erased.read_bytes()
    erased.write_bytes(data + data.replace(b"R-1", b"R-2"))
    assert check(lake).ok
    for other in (data.replace(b"R-1", b"R-2"), data[:-2], b""):
        erased.write_bytes(other)
        (finding,) = check(lake).findings
        assert (finding.line, finding.word) == (5, "record")
        assert "modcrypt.erased.jsonl" in finding.message
    erased.unlink()
    assert faults(check(lake)) == [(5, "record")]


def test_a_line_names_no_other_files(lake: Path) -> None:
    """A forged line must not make the checker read a file elsewhere, such as a pipe."""
    lines = (lake / RECORD).read_bytes().splitlines()
    for name in ("../../etc/passwd", "/dev/zero", "modcrypt.toml", "x/modcrypt.erased.jsonl", ""):
        members = json.loads(lines[5])
        members["records"][0]["name"] = name
        text = json.dumps(members, sort_keys=True).encode()
        (lake / RECORD).write_bytes(b"\n".join([*lines[:5], text]) + b"\n")
        assert (6, "record") in faults(check(lake))


# --- interruptions -------------------------------------------------------------------------------


def test_an_event_without_an_end_is_named_and_no_fault(lake: Path) -> None:
    lines = (lake / RECORD).read_bytes().splitlines(keepends=True)
    (lake / RECORD).write_bytes(b"".join(lines[:4]))
    found = check(lake)
    assert (found.ok, found.interrupted) == (True, (4,))
    answer = modcrypt(lake, "report", "--check")
    assert answer.returncode == 0
    assert "line 4: began, and no line says that it ended" in answer.stdout


# --- limits --------------------------------------------------------------------------------------


def test_findings_and_events_are_bounded(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (lake / RECORD).write_bytes(b"{}\n" * 250)
    found = check(lake)
    assert (len(found.findings), found.more_findings) == (100, 150)
    monkeypatch.setattr(evidence_check, "MAX_RECORD", 299)
    found = check(lake)
    assert found.lines == 100
    assert faults(found)[0] == (None, "format")


def test_a_report_has_the_newest_events(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modcrypt.lake.lake.MAX_EVENTS", 2)
    report = Lake.open(lake / "modcrypt.toml").report()
    assert report.evidence is not None
    assert [event.number for event in report.evidence.events] == [5, 6]
    assert report.evidence.more_events == 4
    fields = json.loads(json.dumps(report.fields()))["evidence"]
    assert fields["ok"] is True
    assert fields["events"][-1]["results"][0]["counts"] == {"correct": 2, "erased": 2}


# --- the command ---------------------------------------------------------------------------------


def test_the_check_needs_neither_keys_nor_files(lake: Path) -> None:
    for path in lake.iterdir():
        if path.suffix == ".keyring" or path.name == "operator.key":
            path.unlink()
    shutil.rmtree(lake / "orders")
    answer = modcrypt(lake, "report", "--check")
    assert (answer.returncode, answer.stderr) == (0, "")
    by = writer_key().verifier.hex_id
    assert f"6 lines, 6 with a valid signature by {by}; 0 faults" in answer.stdout
    assert f"head {check(lake).head}" in answer.stdout


def test_the_check_as_json(lake: Path) -> None:
    lines = (lake / RECORD).read_bytes().splitlines()
    _change(lines)
    (lake / RECORD).write_bytes(b"\n".join(lines) + b"\n")
    answer = modcrypt(lake, "report", "--check", "--json")
    assert answer.returncode == 1
    fields = json.loads(answer.stdout)
    assert fields["schema"] == "modcrypt.report.check/1"
    words = [finding["word"] for finding in fields["findings"]]
    assert (fields["ok"], words) == (False, ["signature", "chain"])


def test_an_erasure_that_was_altered_does_not_hinder_the_check(lake: Path) -> None:
    (lake / "modcrypt.erased.jsonl").write_text("altered\n")
    assert modcrypt(lake, "status").returncode == 2
    answer = modcrypt(lake, "report", "--check")
    assert answer.returncode == 1
    assert "modcrypt.erased.jsonl no longer begins with the 1 line" in answer.stdout


def test_an_auditor_names_the_keys(lake: Path, tmp_path: Path) -> None:
    (tmp_path / "other.pub").write_text(f"{writer_key(number=1).verifier}\n")
    config = lake / "modcrypt.toml"
    config.write_text(config.read_text().replace('signed_by = ["operator.pub"]\n', ""))
    assert "0 with a valid signature;" in modcrypt(lake, "report", "--check").stdout
    own = modcrypt(lake, "report", "--check", "--signed-by", "operator.pub")
    assert (own.returncode, "6 with a valid signature by" in own.stdout) == (0, True)
    other = modcrypt(lake, "report", "--check", "--signed-by", str(tmp_path / "other.pub"))
    assert other.returncode == 1


@each_case(
    "arguments, message",
    [
        (("--at-least", "3"), "--check"),
        (("--check", "--at-least", "x"), "NUMBER or NUMBER:HASH"),
        (("--check", "--html", "page.html"), "--html"),
        (("--signed-by", "operator.pub", "--json"), "--check"),
    ],
)
def test_arguments(lake: Path, arguments: tuple[str, ...], message: str) -> None:
    answer = modcrypt(lake, "report", *arguments)
    assert answer.returncode == 2
    assert message in answer.stderr


def test_a_key_that_was_replaced_stays_in_signed_by(tmp_path: Path) -> None:
    config = make_recorded_lake(tmp_path)
    Lake.open(config).apply()
    (tmp_path / "operator.key").unlink()
    writer_key(number=1).save(tmp_path / "operator.key")
    (tmp_path / "new.pub").write_text(f"{writer_key(number=1).verifier}\n")
    both = SIGNED.replace('"operator.pub"', '"new.pub", "operator.pub"')
    config.write_text(config.read_text().replace(SIGNED, both))
    Lake.open(config).apply()
    found = Lake.open(config).read_evidence()
    assert (found.ok, found.signed, len(found.signers)) == (True, 4, 2)

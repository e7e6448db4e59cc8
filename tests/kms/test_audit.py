"""The record of what keys are used for: nothing is missing from it, and no key is in it."""

from __future__ import annotations

import base64
import json
import logging
import multiprocessing
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import modcrypt as mc
from modcrypt.errors import KeyRetrievalError
from modcrypt.kms import AuditEvent, audit_to_json_lines, audit_to_logging
from tests.support.cases import each_case
from tests.support.kms.memory_kms import MASTERS, MemoryKms
from tests.support.sleeps import note_sleeps

TABLE = pa.table(
    {"name": ["a", "b"], "ssn": ["c", "d"], "address": [{"zip": "1", "city": "x"}] * 2}
)
POLICY = mc.Policy(footer_key="kf", column_keys={"kc1": ["ssn", "address"], "kc2": ["name"]})
WAYS = {
    f"{wrapping} {storage}": replace(
        POLICY, double_wrapping=wrapping == "double", internal_key_material=storage == "internal"
    )
    for wrapping in ("double", "single")
    for storage in ("internal", "external")
}
each_way = each_case("way", WAYS)

Summary = tuple[str, str, str, tuple[str, ...], str]


def summaries(events: list[AuditEvent]) -> list[Summary]:
    """Return operation, by, master key, columns and result of each event."""
    return [(e.operation, e.by, e.master_key_id, e.columns, e.result) for e in events]


def of_file(events: list[AuditEvent], operation: str) -> dict[tuple[str, ...], AuditEvent]:
    """Return the events of one file's keys, by columns."""
    found = [event for event in events if event.by == "file" and event.operation == operation]
    by_columns = {event.columns: event for event in found}
    assert len(by_columns) == len(found), "an event twice"
    return by_columns


KEYS = {(): "kf", ("ssn",): "kc1", ("address",): "kc1", ("name",): "kc2"}
"""Columns to master keys; the footer key has none."""


# --- what is recorded -----------------------------------------------------------------------------


@each_way
def test_each_wrap_seal_and_unwrap_of_a_file_is_recorded(way: str, tmp_path: Path) -> None:
    policy, events, path = WAYS[way], list[AuditEvent](), str(tmp_path / "a.parquet")
    tools = mc.KeyTools(MemoryKms(), audit=events.append)
    mc.write_table(TABLE, path, tools.encryption(policy))
    for operation in ("wrap", "seal"):
        found = of_file(events, operation)
        assert {columns: event.master_key_id for columns, event in found.items()} == KEYS
        assert {event.file for event in found.values()} == {path}
        assert {event.result for event in found.values()} == {"ok"}
        assert all((event.kek_id is not None) == policy.double_wrapping for event in found.values())
    events.clear()
    assert mc.read_table(path, tools.decryption()).equals(TABLE)
    found = of_file(events, "unwrap")
    assert {columns[0].partition(".")[0] if columns else "" for columns in found} == {
        "",
        "ssn",
        "address",
        "name",
    }
    assert {event.file for event in found.values()} == {path}
    assert {event.result for event in found.values()} == {"ok"}


@each_way
def test_each_call_of_the_service_is_recorded(way: str, tmp_path: Path) -> None:
    events: list[AuditEvent] = []
    kms = MemoryKms(batch=5)
    tools = mc.KeyTools(kms, audit=events.append)
    for name in ("a", "b"):
        mc.write_table(TABLE, tmp_path / name, tools.encryption(WAYS[way]))
        mc.read_table(tmp_path / name, tools.decryption())
    calls = [event for event in events if event.by == "kms"]
    assert [event.master_key_id for event in calls] == [call.master_key_id for call in kms.calls]
    assert [event.count for event in calls] == [call.keys for call in kms.calls]
    for event, call in zip(calls, kms.calls, strict=True):
        assert event.operation == call.operation.removesuffix("_many")
        assert event.file is None
        assert (event.kek_id is not None) == WAYS[way].double_wrapping


def test_the_seals_of_each_key_are_counted(tmp_path: Path) -> None:
    """Judged by the modules that the file has: each was sealed once."""
    events: list[AuditEvent] = []
    tools = mc.KeyTools(MemoryKms(), audit=events.append)
    policy = replace(POLICY, plaintext_columns=("name",), column_keys={"kc1": ["ssn"]})
    mc.write_table(
        TABLE, tmp_path / "a", tools.encryption(policy), row_group_size=1, write_page_index=True
    )
    found = mc.inspect_parquet(tmp_path / "a", tools.decryption(), pages=True)
    paths = [region.path for region in found.regions if region.key is not None]
    counted = {columns: event.count for columns, event in of_file(events, "seal").items()}
    assert paths.count("ssn") == 12
    # Column metadata within the footer, and the footer itself, are no regions of a column.
    assert counted[("ssn",)] == 12 + 2
    assert counted[()] == paths.count("address.zip") + paths.count("address.city") + 1


def test_files_and_times_are_reported(tmp_path: Path) -> None:
    events: list[AuditEvent] = []
    tools = mc.KeyTools(MemoryKms(), audit=events.append)
    before = datetime.now(UTC)
    paths = mc.write_dataset(
        TABLE, tmp_path / "lake", tools.encryption(POLICY), max_rows_per_file=1
    )
    files = {event.file for event in events if event.by == "file"}
    assert files == {str(tmp_path / "lake" / path) for path in paths}
    times = [datetime.fromisoformat(event.time) for event in events]
    assert times == sorted(times)
    assert before <= times[0] <= times[-1] <= datetime.now(UTC)
    assert all(time.utcoffset() == timedelta(0) for time in times)


def test_a_file_object_has_no_name_in_the_record() -> None:
    import io

    events: list[AuditEvent] = []
    tools = mc.KeyTools(MemoryKms(), audit=events.append)
    mc.write_table(TABLE, io.BytesIO(), tools.encryption(POLICY))
    assert {event.file for event in events} == {None}
    assert len(of_file(events, "wrap")) == 4


# --- failures -------------------------------------------------------------------------------------

REFUSALS: dict[str, Callable[[MemoryKms], object]] = {
    "denied": lambda kms: kms.denied.add("kc1"),
    "disabled": lambda kms: kms.disabled.add("kc1"),
    "no-key": lambda kms: kms.masters.pop("kc1"),
    "unavailable": lambda kms: kms.broken.update(kc1=mc.errors.KmsUnavailableError("busy")),
    "key": lambda kms: kms.broken.update(kc1=RuntimeError("odd")),
}


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    note_sleeps(monkeypatch)


@each_way
@each_case("word", REFUSALS)
def test_a_wrap_that_fails_is_recorded_with_file_and_columns(
    way: str, word: str, tmp_path: Path
) -> None:
    events: list[AuditEvent] = []
    kms = MemoryKms(batch=9)
    tools = mc.KeyTools(kms, audit=events.append)
    REFUSALS[word](kms)
    with pytest.raises(mc.errors.KeyRetrievalError):
        mc.write_table(TABLE, tmp_path / "a", tools.encryption(WAYS[way]))
    failed = [event for event in events if event.result != "ok"]
    assert {event.by for event in failed} == {"kms", "file"}
    for event in failed:
        assert (event.operation, event.master_key_id, event.result) == ("wrap", "kc1", word)
    (mine,) = (event for event in failed if event.by == "file")
    assert mine.file == str(tmp_path / "a")
    assert set(mine.columns) == {"ssn", "address"}
    assert os.listdir(tmp_path) == []


UNWRAPPED_OTHERWISE: dict[str, Callable[[MemoryKms], object]] = {
    "key-material": lambda kms: kms.masters.update(kc1=b"another key, yes")
}


@each_way
@each_case("word", REFUSALS | UNWRAPPED_OTHERWISE)
def test_an_unwrap_that_fails_is_recorded_with_file_and_column(
    way: str, word: str, tmp_path: Path
) -> None:
    events: list[AuditEvent] = []
    kms = MemoryKms()
    path = str(tmp_path / "a")
    mc.write_table(TABLE, path, mc.KeyTools(kms).encryption(WAYS[way]))
    tools = mc.KeyTools(kms, audit=events.append)
    (REFUSALS | UNWRAPPED_OTHERWISE)[word](kms)
    with pytest.raises(mc.errors.KeyRetrievalError):
        mc.read_table(path, tools.decryption(), columns=["ssn"])
    failed = [event for event in events if event.result != "ok"]
    assert summaries(failed) == [
        ("unwrap", "kms", "kc1", (), word),
        ("unwrap", "file", "kc1", ("ssn",), word),
    ]
    assert failed[1].file == path


def test_a_column_that_is_left_out_for_want_of_a_key_is_recorded(tmp_path: Path) -> None:
    events: list[AuditEvent] = []
    kms = MemoryKms()
    mc.write_table(TABLE, tmp_path / "a", mc.KeyTools(kms).encryption(POLICY))
    kms.denied.add("kc2")
    tools = mc.KeyTools(kms, audit=events.append)
    mc.read_table(tmp_path / "a", tools.decryption(on_missing_key="drop"))
    assert of_file(events, "unwrap")["name",].result == "denied"


@each_way
def test_what_was_sealed_is_recorded_though_the_file_is_given_up(way: str, tmp_path: Path) -> None:
    events: list[AuditEvent] = []
    tools = mc.KeyTools(MemoryKms(), audit=events.append)
    schema = TABLE.schema
    writer = mc.ParquetWriter(tmp_path / "a", schema, tools.encryption(WAYS[way]), threads=1)
    writer.write_table(TABLE)
    writer.__exit__(KeyError, KeyError("the caller's own"), None)
    seals = of_file(events, "seal")
    assert {columns: event.master_key_id for columns, event in seals.items()} == KEYS
    assert {event.result for event in seals.values()} == {"error"}
    assert seals["ssn",].count > 0
    assert os.listdir(tmp_path) == []


def test_a_rotation_is_recorded_with_the_calls_that_it_makes(tmp_path: Path) -> None:
    events: list[AuditEvent] = []
    kms = MemoryKms(rewrap=True)
    mc.write_table(TABLE, tmp_path / "a", mc.KeyTools(kms).encryption(POLICY))
    kms.calls.clear()
    tools = mc.KeyTools(kms, audit=events.append)
    list(mc.jobs.rotate_keys(tmp_path, tools, what="mek"))
    calls = [event for event in events if event.by == "kms"]
    assert [(event.operation, event.master_key_id) for event in calls] == [
        (call.operation, call.master_key_id) for call in kms.calls
    ]
    assert "rewrap" in {event.operation for event in calls}


# --- an audit that fails --------------------------------------------------------------------------


class FullError(Exception):
    """The audit takes no more."""


def failing_at(number: int) -> tuple[Callable[[AuditEvent], None], list[AuditEvent]]:
    """Return an audit that raises at an event, and the events so far."""
    events: list[AuditEvent] = []

    def record(event: AuditEvent) -> None:
        events.append(event)
        if len(events) == number:
            raise FullError

    return record, events


def events_of_a_write(policy: mc.Policy, folder: Path) -> int:
    events: list[AuditEvent] = []
    tools = mc.KeyTools(MemoryKms(), audit=events.append)
    mc.write_table(TABLE, folder / "count", tools.encryption(policy))
    for path in list(folder.iterdir()):
        path.unlink()
    return len(events)


def writers() -> Iterator[tuple[str, Callable[[Path, Any], None]]]:
    yield "write_table", lambda path, how: mc.write_table(TABLE, path, how)

    def by_batch(path: Path, how: Any) -> None:
        with mc.ParquetWriter(path, TABLE.schema, how) as writer:
            writer.write_table(TABLE)

    yield "ParquetWriter", by_batch

    def encrypt(path: Path, how: Any) -> None:
        import pyarrow.parquet as pq

        plain = pa.BufferOutputStream()
        pq.write_table(TABLE, plain)
        mc.encrypt_parquet(plain.getvalue().to_pybytes(), path, how)

    yield "encrypt_parquet", encrypt

    def dataset(path: Path, how: Any) -> None:
        mc.write_dataset(
            TABLE,
            path.parent,
            how,
            basename_template=path.name + "{i}",
            existing_data_behavior="overwrite_or_ignore",
        )

    yield "write_dataset", dataset


WRITERS = dict(writers())


@each_way
@each_case("writer", WRITERS)
def test_an_audit_that_raises_at_any_event_leaves_no_file(
    way: str, writer: str, tmp_path: Path
) -> None:
    """No use of a key goes unrecorded: what can't be recorded isn't done."""
    policy = WAYS[way]
    count = events_of_a_write(policy, tmp_path)
    assert count >= 11
    for number in range(1, count + 1):
        audit, events = failing_at(number)
        tools = mc.KeyTools(MemoryKms(), audit=audit)
        with pytest.raises(FullError):
            WRITERS[writer](tmp_path / "a", tools.encryption(policy))
        assert os.listdir(tmp_path) == [], events[number - 1]


@each_way
def test_an_audit_that_raises_at_any_event_leaves_the_old_file(way: str, tmp_path: Path) -> None:
    policy, path = WAYS[way], tmp_path / "a"
    count = events_of_a_write(policy, tmp_path)
    reader = mc.KeyTools(MemoryKms())
    mc.write_table(TABLE, path, reader.encryption(policy))
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    for number in range(1, count + 1):
        audit, events = failing_at(number)
        with pytest.raises(FullError):
            mc.write_table(
                TABLE.slice(1), path, mc.KeyTools(MemoryKms(), audit=audit).encryption(policy)
            )
        assert mc.read_table(path, reader.decryption()).equals(TABLE), events[number - 1]
    assert path.read_bytes() == before["a"]
    assert sorted(os.listdir(tmp_path)) == sorted(before)


@each_way
def test_an_audit_that_raises_at_any_event_gives_no_data(way: str, tmp_path: Path) -> None:
    mc.write_table(TABLE, tmp_path / "a", mc.KeyTools(MemoryKms()).encryption(WAYS[way]))
    events: list[AuditEvent] = []
    tools = mc.KeyTools(MemoryKms(), audit=events.append)
    mc.read_table(tmp_path / "a", tools.decryption())
    assert len(events) >= 7
    for number in range(1, len(events) + 1):
        audit, _ = failing_at(number)
        tools = mc.KeyTools(MemoryKms(), audit=audit)
        with pytest.raises((FullError, mc.errors.KeyRetrievalError)) as caught:
            mc.read_table(tmp_path / "a", tools.decryption())
        assert isinstance(caught.value, FullError) or isinstance(caught.value.__cause__, FullError)


# --- where it goes --------------------------------------------------------------------------------

EVENT = AuditEvent(
    operation="wrap", by="file", master_key_id="kf", file="a\nb.parquet", columns=("ä", "c")
)


def test_an_event_is_frozen_and_reports_all_its_fields() -> None:
    with pytest.raises(AttributeError):
        EVENT.result = "ok"  # type: ignore[misc]  # the mistake
    assert set(EVENT.fields()) == {field.name for field in fields(AuditEvent)}
    assert json.loads(json.dumps(EVENT.fields())) == {**EVENT.fields(), "columns": ["ä", "c"]}


def test_json_lines_are_one_line_for_each_event(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    tools = mc.KeyTools(MemoryKms(), audit=audit_to_json_lines(path))
    odd = tmp_path / "a\nb.parquet"
    mc.write_table(TABLE, odd, tools.encryption(POLICY))
    lines = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
    assert len(lines) == 3 + 4 + 4
    assert {line["file"] for line in lines} == {None, str(odd)}
    assert {tuple(line) for line in lines} == {tuple(EVENT.fields())}


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o277])
def test_a_file_of_json_lines_is_its_owners_alone(mask: int, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    old = os.umask(mask)
    try:
        audit_to_json_lines(path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) & ~0o600 == 0


def test_json_lines_are_appended_to_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    for _ in range(3):
        audit_to_json_lines(path)(EVENT)
    assert len(path.read_text().splitlines()) == 3


def test_a_file_that_can_not_be_opened_is_an_oserror_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        audit_to_json_lines(tmp_path / "none" / "audit.jsonl")
    with pytest.raises(IsADirectoryError):
        audit_to_json_lines(tmp_path)


def test_a_record_that_is_cut_short_is_an_oserror(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = audit_to_json_lines(tmp_path / "audit.jsonl")
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, bytes(data)[:10]))
    with pytest.raises(OSError, match=r"audit\.jsonl"):
        audit(EVENT)


def test_json_lines_go_on_where_the_working_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    audit = audit_to_json_lines("audit.jsonl")
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "away")
    audit(EVENT)
    assert len((tmp_path / "audit.jsonl").read_text().splitlines()) == 1


def _write_many(path: str, who: int) -> None:
    audit = audit_to_json_lines(path)
    for n in range(200):
        audit(replace(EVENT, file=f"{who}-{n}-" + "x" * 300))


def test_threads_and_processes_share_a_file_and_no_line_is_torn(tmp_path: Path) -> None:
    path = str(tmp_path / "audit.jsonl")
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_write_many, args=(path, who)) for who in (0, 1)]
    for process in processes:
        process.start()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda who: _write_many(path, who), range(2, 6)))
    for process in processes:
        process.join()
        assert process.exitcode == 0
    files = [json.loads(line)["file"] for line in Path(path).read_text().splitlines()]
    assert len(files) == len(set(files)) == 6 * 200


@each_case(
    ("logger", "name"),
    [("our.own", "our.own"), (logging.getLogger("given"), "given"), (None, "modcrypt.audit")],
)
def test_events_are_logged_failures_as_warnings(
    logger: Any, name: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    audit = audit_to_logging() if logger is None else audit_to_logging(logger)
    kms = MemoryKms()
    tools = mc.KeyTools(kms, audit=audit)
    with caplog.at_level(logging.INFO):
        mc.write_table(TABLE, tmp_path / "a", tools.encryption(POLICY))
        assert {record.levelno for record in caplog.records} == {logging.INFO}
        assert len(caplog.records) == 11
        caplog.clear()
        kms.disabled.add("kf")
        with pytest.raises(mc.errors.KeyDisabledError):
            mc.read_table(tmp_path / "a", tools.decryption())
    mine = [record for record in caplog.records if record.name == name]
    assert mine == caplog.records
    assert [record.levelno for record in mine] == [logging.WARNING] * 2
    for record in mine:
        line = json.loads(record.getMessage())
        assert (line["result"], line["master_key_id"]) == ("disabled", "kf")


def test_a_file_name_does_not_format_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        audit_to_logging()(replace(EVENT, file="%s %(x)d {0}", columns=("%n",)))
    assert json.loads(caplog.records[0].getMessage())["file"] == "%s %(x)d {0}"


# --- no key ---------------------------------------------------------------------------------------


def spellings(key: bytes) -> set[bytes]:
    """Spell a key, and its first half, as programs do that show bytes."""
    found = set()
    for part in (key, key[:9]):
        found |= {part, part.hex().encode(), repr(part)[2:-1].encode()}
        found |= {base64.b64encode(part), base64.urlsafe_b64encode(part)}
        found |= {repr(list(part))[1:-1].encode()}
    return {event.lower() for event in found} | found


@each_way
def test_no_event_holds_a_key_wrapped_or_not(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[bytes] = []

    def learning(cls: type[mc.Key], length: int = 16) -> mc.Key:
        made.append(os.urandom(length))
        return cls(made[-1])

    monkeypatch.setattr(mc.Key, "generate", classmethod(learning))
    kms = MemoryKms(rewrap=True)
    path = tmp_path / "audit.jsonl"
    lines, logged, events = audit_to_json_lines(path), audit_to_logging(), list[AuditEvent]()

    def audit(event: AuditEvent) -> None:
        for sink in (lines, logged, events.append):
            sink(event)

    tools = mc.KeyTools(kms, audit=audit)
    lake = tmp_path / "lake"
    lake.mkdir()
    with caplog.at_level(0):
        mc.write_table(TABLE, lake / "a.parquet", tools.encryption(WAYS[way]))
        mc.read_table(lake / "a.parquet", mc.KeyTools(kms, audit=audit).decryption())
        for what in ("mek", "kek"):
            list(mc.jobs.rotate_keys(lake, tools, what=what))
        kms.denied.add("kc1")
        with pytest.raises(mc.errors.KeyAccessDeniedError):
            mc.read_table(lake / "a.parquet", mc.KeyTools(kms, audit=audit).decryption())
    assert len(made) >= 4
    secrets = {*made, *kms.learned, *MASTERS.values()}
    assert kms.learned <= set(made), "all keys are known to the search"
    shown = path.read_bytes() + repr(events).encode() + caplog.text.encode()
    assert len(shown) > 2000
    for key in secrets:
        for spelling in spellings(key):
            assert spelling not in shown
    wrapped = [
        text
        for file in lake.iterdir()
        for text in _wrapped_keys(file.read_bytes().decode("latin-1").replace('\\"', '"'))
    ]
    assert wrapped
    for text in wrapped:
        assert text.encode() not in shown


def _wrapped_keys(text: str) -> Iterator[str]:
    """Yield the wrapped keys in a file's unencrypted key material."""
    for member in ('"wrappedDEK":"', '"wrappedKEK":"'):
        for part in text.split(member)[1:]:
            yield part.partition('"')[0]


def test_the_search_would_find_a_key() -> None:
    key = bytes(range(65, 81))
    for shown in (key.hex(), repr(key), base64.b64encode(key).decode(), str(list(key))):
        assert any(spelling in shown.encode() for spelling in spellings(key))


# --- a file of events that is not ours alone -----------------------------------------------------


def make_file(path: Path, mode: int, owner: int = -1) -> None:
    path.touch()
    path.chmod(mode)
    os.chown(path, owner, -1)


PLANTED: dict[str, Callable[[Path, Path], object]] = {
    "link": lambda path, victim: path.symlink_to(victim),
    "dangling link": lambda path, victim: path.symlink_to(victim.with_name("none")),
    "hard link": lambda path, victim: path.hardlink_to(victim),
    "writable by others": lambda path, victim: make_file(path, 0o602),
    "writable by the group": lambda path, victim: make_file(path, 0o620),
    "folder": lambda path, victim: path.mkdir(),
    "pipe": lambda path, victim: os.mkfifo(path),
    "of another user": lambda path, victim: make_file(path, 0o600, 12345),
}


@each_case("name", PLANTED)
def test_an_audit_file_that_somebody_planted_is_refused(tmp_path: Path, name: str) -> None:
    if name == "of another user" and os.geteuid() != 0:
        pytest.skip("only root gives files away")
    path, victim = tmp_path / "audit.jsonl", tmp_path / "victim"
    victim.write_text("dear")
    record = audit_to_json_lines(path)
    path.unlink()
    PLANTED[name](path, victim)
    with pytest.raises((OSError, KeyRetrievalError)):
        audit_to_json_lines(path)
    with pytest.raises((OSError, KeyRetrievalError)):  # it was fine when the audit was made
        record(EVENT)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["audit.jsonl", "victim"]
    assert victim.read_text() == "dear"

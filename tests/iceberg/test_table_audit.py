"""Every use of the key service by a table, on record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import modcrypt as mc
from modcrypt.iceberg import IcebergTable, KeyPolicy, open_table, rotate_table, verify_table
from tests.support.iceberg.cli_runs import Run, error_line, run
from tests.support.iceberg.made_tables import make_table
from tests.support.iceberg.partitioned_table import BY_PART, ROWS
from tests.support.iceberg.sample_kms import Refusing, SampleKms

__all__ = ["run"]  # a fixture

Events = list[mc.kms.AuditEvent]


def take_uses(events: Events) -> list[tuple[str, str, str | None, str, int]]:
    """Return the recorded events and clear them."""
    found: list[tuple[str, str, str | None, str, int]] = [
        (event.operation, event.master_key_id, event.kek_id, event.result, event.count)
        for event in events
    ]
    assert {event.by for event in events} <= {"kms"}
    events.clear()
    return found


def open_audited(folder: Path, events: Events, kms: Any = None) -> IcebergTable:
    return open_table(folder, mc.KeyTools(kms or SampleKms(), audit=events.append))


def test_each_use_is_recorded_with_the_kek_that_it_was_for(tmp_path: Path) -> None:
    events: Events = []
    tools = mc.KeyTools(SampleKms(), audit=events.append)
    policy = KeyPolicy(kek_per="partition")
    table = make_table(tmp_path / "t", ROWS.schema, tools, partition_spec=BY_PART, policy=policy)
    trial = [("wrap", "keyA", None, "ok", 1), ("unwrap", "keyA", None, "ok", 1)]
    assert take_uses(events) == trial
    table = table.append(ROWS)
    made = {kek.scope: kek.id for kek in table.walk.resolver.keks(table.metadata).values()}
    found = take_uses(events)
    assert sorted(use for use in found if use[0] == "wrap") == sorted(
        ("wrap", "keyA", id_, "ok", 1) for id_ in made.values()
    )
    assert [use[2] in made.values() for use in found if use[0] == "unwrap"] == [True]  # the proof

    table = open_audited(tmp_path / "t", events)
    assert table.scan(filters="part = 'y'").num_rows == 1
    needed = [made[""], made["partition=part=y"]]
    assert take_uses(events) == [("unwrap", "keyA", id_, "ok", 1) for id_ in needed]

    rotate_table(table, "mek", new_master_key_id="keyB")
    wrapped = [("wrap", "keyB", id_, "ok", 1) for id_ in made.values()]
    unwrapped = [("unwrap", "keyA", id_, "ok", 1) for id_ in made.values()]
    found = take_uses(events)
    assert [use for use in found if use[0] == "wrap"] == wrapped
    assert {use for use in found if use[:2] == ("unwrap", "keyA")} == {*unwrapped}
    proofs = [use[2] for use in found if use[:2] == ("unwrap", "keyB")]
    assert [id_ in made.values() for id_ in proofs] == [True]

    table = open_audited(tmp_path / "t", events)
    table = rotate_table(table, "kek").table
    new = set(table.walk.resolver.keks(table.metadata))
    found = take_uses(events)
    assert {id_ for operation, _, id_, _, _ in found if operation == "wrap"} == new
    unwrapped_ids = {id_ for operation, _, id_, _, _ in found if operation == "unwrap"}
    assert unwrapped_ids > {*made.values()}
    assert len(unwrapped_ids - {*made.values()}) == 1  # the proof of a new one

    assert verify_table(open_audited(tmp_path / "t", events)).ok
    assert {(operation, id_) for operation, _, id_, _, _ in take_uses(events)} == {
        ("unwrap", id_) for id_ in new
    }


def test_data_keys_in_single_wrapping_are_counted(tmp_path: Path) -> None:
    events: Events = []
    tools = mc.KeyTools(SampleKms(), audit=events.append)
    table = make_table(
        tmp_path / "t", ROWS.schema, tools, partition_spec=BY_PART,
        policy=KeyPolicy(wrapping="single", kek_per="files"),
    )  # fmt: skip
    take_uses(events)
    table.append(ROWS)
    proof = ("unwrap", "keyA", None, "ok", 1)
    assert take_uses(events) == [
        ("wrap", "keyA", None, "ok", 2), proof, ("wrap", "keyA", None, "ok", 1)
    ]  # fmt: skip


def test_a_refusal_is_recorded_and_what_can_not_be_recorded_is_not_done(tmp_path: Path) -> None:
    folder, events = tmp_path / "t", Events()
    made = make_table(folder, ROWS.schema).append(ROWS)
    (kek,) = made.metadata.kek_ids()
    with pytest.raises(mc.errors.KeyAccessDeniedError):
        open_audited(folder, events, Refusing("keyA")).scan().to_arrow()
    assert take_uses(events) == [("unwrap", "keyA", kek, "denied", 1)]

    def full(event: mc.kms.AuditEvent) -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        open_table(folder, mc.KeyTools(SampleKms(), audit=full)).scan().to_arrow()


def test_commands_record_what_they_use_in_a_file(run: Run, tmp_path: Path) -> None:
    pq.write_table(ROWS, tmp_path / "rows.parquet")
    audit = ("--kms", "sample:", "--audit", "audit.jsonl")

    def recorded_uses() -> list[tuple[str, str]]:
        file = tmp_path / "audit.jsonl"
        events = [json.loads(line) for line in file.read_text().splitlines()]
        file.unlink()
        return [(event["operation"], event["master_key_id"]) for event in events]

    run("create", *audit, "--master-key", "keyA", "--like", "rows.parquet", "lake/t")
    assert recorded_uses() == [("wrap", "keyA"), ("unwrap", "keyA")]  # on trial
    run("append", *audit, "lake/t", "rows.parquet")
    assert recorded_uses() == [("wrap", "keyA"), ("unwrap", "keyA")]  # the proof
    run("scan", *audit, "lake/t")
    assert recorded_uses() == [("unwrap", "keyA")]
    run("rotate", "kek", *audit, "--new-master-key", "keyB", "lake/t")
    assert sorted(recorded_uses()) == [("unwrap", "keyA"), ("unwrap", "keyB"), ("wrap", "keyB")]
    for command in ("files", "verify", "tree", "prune"):
        run(command, *audit, "lake/t")
    assert set(recorded_uses()) == {("unwrap", "keyB")}
    said = error_line(run("rotate", "dek", *audit, "--spark", "local[1]", "lake/t", code=2))
    assert "--audit" in said

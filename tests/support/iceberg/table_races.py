"""Processes that change one table of a catalog or folder at the same time.

    python -m tests.support.iceberg.table_races ROLE URI TABLE SECONDS

The role is `rotate`, `expire`, or the first of the ids that an appender adds. An appender prints a
line of JSON with the ids of each append that it has committed; the last line of each process is
what it has done.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import pyarrow as pa

from modcrypt.errors import CommitConflictError
from modcrypt.iceberg import (
    IcebergTable,
    expire_history,
    prune_keys,
    remove_orphan_files,
    rotate_table,
    verify_table,
)
from tests.support.iceberg.glue_catalog import GlueTable
from tests.support.iceberg.hive_catalog import HiveTable
from tests.support.iceberg.local_tables import FolderTable, SqlTable
from tests.support.iceberg.rest_catalog import RestTable

NamedTable: TypeAlias = HiveTable | GlueTable | RestTable | SqlTable | FolderTable

ROWS = 5
"""Rows of each append."""

MASTERS = ["keyA", "keyB"]


@dataclass
class Outcome:
    """What a process has done: commits, conflicts that it gave up at, and rows that are there."""

    done: int = 0
    conflicts: int = 0
    acknowledged: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def find_named(uri: str, name: str) -> NamedTable:
    """Return the table of a name in the catalog, or in the folder, at a URI."""
    kinds: Any = {
        "http": RestTable, "thrift": HiveTable, "glue": GlueTable, "sqlite": SqlTable,
    }  # fmt: skip
    table: NamedTable = kinds.get(urlsplit(uri).scheme, FolderTable)(uri, name)
    return table


def start(role: str, named: NamedTable, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", __name__, role, named.uri, named.name, str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> Outcome:
    *_, outcome = _read_lines(process)
    assert process.returncode == 0
    return Outcome(**outcome)


def _read_lines(process: subprocess.Popen[str]) -> list[Any]:
    """Return what an ended process has printed; of one that was killed, its complete lines."""
    printed = process.communicate()[0]
    return [json.loads(line) for line in printed.splitlines(keepends=True) if line.endswith("\n")]


def race(named: NamedTable, seconds: float) -> None:
    """Have two appenders, a rotator and an expirer change a table at once; no row is lost."""
    roles = ("1000000", "2000000", "rotate", "expire")
    outcomes = [finish(process) for process in [start(role, named, seconds) for role in roles]]
    table = named.load(master_key_ids=MASTERS)
    found = table.scan()["id"].to_pylist()
    acknowledged = {row for outcome in outcomes for row in outcome.acknowledged}
    print([(outcome.done, outcome.conflicts) for outcome in outcomes], len(found))
    assert not [outcome.errors for outcome in outcomes if outcome.errors]
    assert all(outcome.done for outcome in outcomes)
    assert sorted(found) == sorted(acknowledged)
    assert verify_table(table).ok


def kill_processes(named: NamedTable, hits: int, seed: int, seconds: float) -> None:
    """Kill an appender and a rotator or expirer until enough kills have hit a change under way.

    They leave a readable table with all rows that were acknowledged, and at most files that nothing
    names, which can be removed, and locks that the next writer releases.
    """
    chance, deadline = random.Random(seed), time.monotonic() + seconds
    kills, hit, orphans, acknowledged = 0, 0, set[str](), set[int]()
    while hit < hits:
        assert time.monotonic() < deadline, f"only {hit} of {kills} kills hit a change under way"
        kills += 1
        processes = [
            start(role, named, 600)
            for role in (str(kills * 1_000_000), ("rotate", "expire")[kills % 2])
        ]
        _await_change(named)
        time.sleep(chance.uniform(0, 0.05))
        for process in processes:
            process.send_signal(signal.SIGKILL)
        for lines in map(_read_lines, processes):
            acknowledged.update(*lines)
        left = _check_killed(named, acknowledged)
        hit += bool(named.locks() or left - orphans)
        orphans |= left
    print(f"{hit} of {kills} kills hit a change under way and left {len(orphans)} orphans")
    outcome = finish(start("900000000", named, 3))
    assert outcome.done
    assert not outcome.errors
    assert not named.locks()
    _remove_orphans(named, acknowledged)


def _await_change(named: NamedTable) -> None:
    """Wait until both processes have got to work, and one of them has just written a file."""
    first = named.version()
    while named.version() < first + 3:
        time.sleep(0.05)
    folder = Path(urlsplit(named.load(master_key_ids=MASTERS).metadata.location).path)
    before = _list_files(folder)
    while _list_files(folder) <= before:
        time.sleep(0.002)


def _list_files(folder: Path) -> set[str]:
    return {name for part in ("data", "metadata") for name in os.listdir(folder / part)}


def _check_killed(named: NamedTable, acknowledged: set[int]) -> set[str]:
    """Check that rows are there once and every file is authentic; return the orphans."""
    table = named.load(master_key_ids=MASTERS)
    ids = table.scan()["id"].to_pylist()
    assert len(ids) == len(set(ids))
    assert acknowledged <= set(ids)
    verified = verify_table(table)
    assert verified.ok
    assert verified.orphans is not None
    return {orphan.path for orphan in verified.orphans}


def _remove_orphans(named: NamedTable, acknowledged: set[int]) -> None:
    """Remove all orphans; a server may have completed a commit whose client was killed since."""
    left = _check_killed(named, acknowledged)
    table = named.load(master_key_ids=MASTERS)
    removed = remove_orphan_files(table, older_than_days=0)
    assert {file.path for file in removed.files} == left
    assert not removed.left
    assert _check_killed(named, acknowledged) == set()


def _rotations() -> Iterator[Callable[[IcebergTable], Any]]:
    while True:
        yield lambda table: rotate_table(table, "mek", new_master_key_id="keyB")
        yield lambda table: rotate_table(table, "kek")
        yield lambda table: rotate_table(table, "mek", new_master_key_id="keyA")
        yield lambda table: rotate_table(table, "dek")
        yield prune_keys


def run(role: str, named: NamedTable, seconds: float) -> Outcome:
    """Change the table again and again until the time is over.

    On a slow machine, the others may win every race until then; after it, nobody is left to win.
    """
    outcome, until, rotations = Outcome(), time.monotonic() + seconds, _rotations()
    following = int(role) if role.isdigit() else 0
    while time.monotonic() < until or not (outcome.done or outcome.errors):
        try:
            table = named.load(master_key_ids=MASTERS)
            if role == "rotate":
                next(rotations)(table)
            elif role == "expire":
                expire_history(table)
                time.sleep(0.5)
            else:
                ids = list(range(following, following + ROWS))
                following += ROWS
                table.append(pa.table({"id": pa.array(ids, pa.int64())}))
                outcome.acknowledged += ids
                print(json.dumps(ids), flush=True)
            outcome.done += 1
        except CommitConflictError:
            outcome.conflicts += 1
        except Exception as error:
            outcome.errors.append(f"{type(error).__name__}: {error}"[:300])
    return outcome


if __name__ == "__main__":
    _role, _uri, _name, _seconds = sys.argv[1:]
    print("started", file=sys.stderr, flush=True)
    print(json.dumps(vars(run(_role, find_named(_uri, _name), float(_seconds)))))

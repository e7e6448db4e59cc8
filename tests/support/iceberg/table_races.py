"""Processes that change one table of a Hive metastore or REST catalog at the same time.

    python -m tests.support.iceberg.table_races ROLE URI TABLE SECONDS

A process prints what it has done, as JSON; the role is `rotate`, `expire`, or the first of the ids
that an appender adds.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

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
from tests.support.iceberg.hive_catalog import HiveTable
from tests.support.iceberg.rest_catalog import RestTable

ROWS = 5
"""Rows of each append."""


@dataclass
class Outcome:
    """What a process has done: commits, conflicts that it gave up at, and rows that are there."""

    done: int = 0
    conflicts: int = 0
    acknowledged: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def start(role: str, named: HiveTable | RestTable, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", __name__, role, named.uri, named.name, str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> Outcome:
    printed = process.communicate()[0]
    assert process.returncode == 0
    return Outcome(**json.loads(printed))


def race(named: HiveTable | RestTable, seconds: float) -> None:
    """Have two appenders, a rotator and an expirer change a table at once; no row is lost."""
    roles = ("1000000", "2000000", "rotate", "expire")
    outcomes = [finish(process) for process in [start(role, named, seconds) for role in roles]]
    table = named.load(master_key_ids=["keyA", "keyB"])
    found = table.scan()["id"].to_pylist()
    acknowledged = {row for outcome in outcomes for row in outcome.acknowledged}
    print([(outcome.done, outcome.conflicts) for outcome in outcomes], len(found))
    assert not [outcome.errors for outcome in outcomes if outcome.errors]
    assert all(outcome.done for outcome in outcomes)
    assert sorted(found) == sorted(acknowledged)
    assert verify_table(table).ok


def kill_processes(named: HiveTable | RestTable, kills: int, seed: int) -> None:
    """Kill an appender and a rotator or expirer at work, again and again.

    They leave a readable table and at most files that nothing names, which can be removed, and
    locks that the next writer releases.
    """
    chance, at_work, orphans = random.Random(seed), 0, set[str]()
    for number in range(kills):
        roles = (str((number + 1) * 1_000_000), ("rotate", "expire")[number % 2])
        processes = [start(role, named, 600) for role in roles]
        first = named.version()
        while named.version() < first + 3:  # both have got to work
            time.sleep(0.05)
        time.sleep(chance.uniform(0, 1))
        for process in processes:
            process.send_signal(signal.SIGKILL)
        for process in processes:
            process.communicate()
        left = _check_killed(named)
        at_work += bool(named.locks() or left - orphans)
        orphans |= left
    print(f"{at_work} of {kills} kills hit a change under way")
    outcome = finish(start("900000000", named, 3))
    assert outcome.done
    assert not outcome.errors
    assert not named.locks()
    _remove_orphans(named)


def _check_killed(named: HiveTable | RestTable) -> set[str]:
    """Check that no row is there twice and every file is authentic; return the orphans."""
    table = named.load(master_key_ids=["keyA", "keyB"])
    ids = table.scan()["id"].to_pylist()
    assert len(ids) == len(set(ids))
    verified = verify_table(table)
    assert verified.ok
    assert verified.orphans is not None
    return {orphan.path for orphan in verified.orphans}


def _remove_orphans(named: HiveTable | RestTable) -> None:
    """Remove all orphans; a server may have completed a commit whose client was killed since."""
    left = _check_killed(named)
    table = named.load(master_key_ids=["keyA", "keyB"])
    removed = remove_orphan_files(table, older_than_days=0)
    assert {file.path for file in removed.files} == left
    assert not removed.left
    assert _check_killed(named) == set()


def _rotations() -> Iterator[Callable[[IcebergTable], Any]]:
    while True:
        yield lambda table: rotate_table(table, "mek", new_master_key_id="keyB")
        yield lambda table: rotate_table(table, "kek")
        yield lambda table: rotate_table(table, "mek", new_master_key_id="keyA")
        yield lambda table: rotate_table(table, "dek")
        yield prune_keys


def run(role: str, named: HiveTable | RestTable, seconds: float) -> Outcome:
    """Change the table again and again until the time is over."""
    outcome, until, rotations = Outcome(), time.monotonic() + seconds, _rotations()
    following = int(role) if role.isdigit() else 0
    while time.monotonic() < until:
        try:
            table = named.load(master_key_ids=["keyA", "keyB"])
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
            outcome.done += 1
        except CommitConflictError:
            outcome.conflicts += 1
        except Exception as error:
            outcome.errors.append(f"{type(error).__name__}: {error}"[:300])
    return outcome


if __name__ == "__main__":
    _role, _uri, _name, _seconds = sys.argv[1:]
    print("started", file=sys.stderr, flush=True)
    _kind = RestTable if _uri.startswith("http") else HiveTable
    print(json.dumps(vars(run(_role, _kind(_uri, _name), float(_seconds)))))

"""Rotation, pruning and expiry that are killed or fail at any step: the table stays readable."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import modcrypt as mc
from modcrypt.iceberg import IcebergTable, rotate_table
from tests.support.cases import each_case
from tests.support.crash import WRITING, run
from tests.support.folder_contents import files
from tests.support.iceberg.by_hand import document, keks
from tests.support.iceberg.resealed_tables import reseal, seal_singly, sealer_under
from tests.support.iceberg.sample_kms import Refusing
from tests.support.iceberg.shared_table import SNAPSHOTS, all_rows, reopen
from tests.support.iceberg.table_changes import act

if sys.platform != "linux":
    pytest.skip("steps are counted by names of Linux", allow_module_level=True)

STEPS = (*WRITING, "makedirs", "mkdir")


def prepare(what: str, table: IcebergTable) -> None:
    """Bring the shared table to where a case begins."""
    if what == "kek":
        reseal(table, sealer_under("partition=a"))
    elif what == "prune":
        made = table.walk.resolver.masters.new_keks("keyA", 16, ["", ""])
        keys = [*(kek.key.entry() for kek in made), *table.metadata.keys.values()]
        table.versions.commit(table.place, table.metadata.with_keys(keys))
    elif what == "expire":
        table = rotate_table(table, "dek").table
        rotate_table(reseal(table, sealer_under("partition=a")), "kek")


KILLED_AT_EVERY_STEP = """
import sys
from functools import partial
from pathlib import Path
from tests.support.iceberg.table_changes import act
from tests.support.killed import copy_folder, kill_at_each_step

for part in sys.argv[3:]:
    what, stride = part.split(":")
    steps, job = Path(sys.argv[1], what), lambda folder: act(what, folder / "t16") is not None
    copy = partial(copy_folder, steps / "t16")
    print(what, *kill_at_each_step(job, copy, steps, sys.argv[2].split(","), int(stride)))
"""

STRIDES = {"mek": 3, "kek": 17, "dek": 37, "prune": 4, "expire": 9}
"""Of so many steps one is tried: all of them take a minute."""


@pytest.mark.slow  # it kills a process at each of dozens of steps
def test_killed_at_any_step_the_table_is_readable_and_the_rest_is_done_the_next_time(
    t16: Path, tmp_path: Path
) -> None:
    rows, older = {}, {}
    for what in STRIDES:
        folder = tmp_path / "steps" / what / "t16"
        shutil.copytree(t16, folder)
        prepare(what, reopen(folder))
        rows[what] = reopen(folder).scan().sort_by("id").to_pylist()
        older[what] = all_rows(reopen(folder))
    reported = [f"{what}:{stride}" for what, stride in STRIDES.items()]
    process = run(KILLED_AT_EVERY_STEP, tmp_path / "steps", ",".join(STEPS), *reported)
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    for line in printed.splitlines():
        what, *ends = line.split()
        *killed, last = map(int, ends)
        assert last == 0
        assert set(killed) == {-9}
        assert len(killed) >= 4
        check_steps(what, tmp_path / "steps" / what, rows[what], older[what])


def check_steps(what: str, steps: Path, rows: list[Any], older: dict[int, list[Any]]) -> None:
    done = {name for name in files(steps / "first" / "t16") if not name.endswith(".tmp")}
    seen = set()
    for folder in sorted(step / "t16" for step in steps.iterdir() if step.name[0].isdigit()):
        found = reopen(folder)
        seen.add(found.place.name)
        assert found.scan().sort_by("id").to_pylist() == rows
        if what != "expire":
            assert all_rows(found) == older
        again = act(what, folder)
        assert again.scan().sort_by("id").to_pylist() == rows
        check(what, folder)
        if what == "expire":
            left = {name for name in files(folder) if not name.endswith(".tmp")}
            assert without_versions(left) == without_versions(done)
    assert len(seen) == 2  # some were killed before the commit, and some after it


def without_versions(names: set[str]) -> set[str]:
    return {name for name in names if not name.endswith(".metadata.json")}


def check(what: str, folder: Path) -> None:
    metadata = document(folder)
    if what in ("mek", "kek"):
        assert reopen(folder, Refusing("keyA")).scan().num_rows == 137
    if what == "prune":
        assert len(keks(metadata)) == 1
    if what == "expire":
        assert [path.name for path in (folder / "metadata").glob("*.json")] == [
            reopen(folder).place.name
        ]


# --- failures ------------------------------------------------------------------------------------


@each_case("what", ["mek", "kek", "dek", "single", "prune"])
@each_case(
    ("name", "error"), [("write", errno.ENOSPC), ("fsync", errno.EIO), ("link", errno.EACCES)]
)
def test_a_disk_that_fails_leaves_the_table_as_it_was(
    what: str, name: str, error: int, t16: Path, table: IcebergTable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if what == "single":
        reseal(table, seal_singly)
        what = "kek"
    else:
        prepare(what, table)
    before = files(t16)
    for after in (0, 1, 3, 4, 6):
        with monkeypatch.context() as patch:
            if not fail_calls(patch, name, error, after, lambda: act(what, t16)):
                break
        assert files(t16) == before
    act(what, t16)
    assert reopen(t16).scan().num_rows == 137


def fail_calls(patch: pytest.MonkeyPatch, name: str, error: int, after: int, work: Any) -> bool:
    """Fail a system call after a number of calls; return whether it came to that."""
    real, calls = getattr(os, name), [0]

    def fail(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] > after and "hint" not in str(arguments):
            raise OSError(error, os.strerror(error))
        return real(*arguments, **options)

    patch.setattr(os, name, fail)
    try:
        work()
    except OSError as raised:
        if raised.errno != error:
            raise
        return True
    return False


@pytest.mark.parametrize(
    ("what", "seal"),
    [
        ("mek", sealer_under("day=2026-01-01")),
        ("kek", sealer_under("day=2026-01-01")),
        ("kek", sealer_under("files")),
        ("kek", seal_singly),
        ("dek", sealer_under("files")),
    ],
)
def test_a_service_that_goes_away_after_any_call_leaves_the_table_as_it_was(
    what: str, seal: Any, t16: Path, table: IcebergTable
) -> None:
    reseal(table, seal)
    before, rows = files(t16), all_rows(reopen(t16))
    for after in range(100):
        kms = Refusing(after=after)
        try:
            act(what, t16, kms)
        except mc.errors.KeyAccessDeniedError:
            assert files(t16) == before
        else:
            break
    assert 1 < after < 100
    assert len(kms.calls) == after
    assert all_rows(reopen(t16)) == rows


@pytest.mark.slow  # its threads retry
def test_two_rotations_at_once_both_come_to_pass(t16: Path, table: IcebergTable) -> None:
    rows, failures = all_rows(table), []
    barrier = threading.Barrier(3)

    def work(what: str) -> None:
        barrier.wait()
        try:
            for _ in range(3):
                act(what, t16)
        except mc.errors.CommitConflictError:
            pass  # the others were faster four times
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(what,)) for what in ("mek", "kek", "dek")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert all_rows(reopen(t16)) == rows
    assert len(keks(document(t16))) == 1
    assert set(SNAPSHOTS) <= {snapshot["snapshot-id"] for snapshot in document(t16)["snapshots"]}

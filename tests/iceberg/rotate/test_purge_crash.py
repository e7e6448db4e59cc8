"""Purges that are killed at any step, or race with writers: what is left can be purged again."""

from __future__ import annotations

import contextlib
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from modcrypt.errors import CommitConflictError, ModcryptError
from modcrypt.iceberg import open_table, purge_table, rotate_table
from tests.support.crash import WRITING, run
from tests.support.iceberg.local_tables import (
    FolderTable,
    SqlTable,
    make_folder_table,
    make_sql_table,
    table_files,
)
from tests.support.iceberg.sample_kms import SampleKms

if sys.platform != "linux":
    pytest.skip("steps are counted by names of Linux", allow_module_level=True)

pytestmark = pytest.mark.slow  # some kill a process at each of dozens of steps

KILLED = """
import sys
from modcrypt.iceberg import purge_table
from tests.support.iceberg.local_tables import FolderTable, SqlTable
from tests.support.killed import kill_at

kind, uri, name, last, names = sys.argv[1:]
named = {"FolderTable": FolderTable, "SqlTable": SqlTable}[kind](uri, name)
table = named.load()
purge_table(table, dry_run=True)  # what is imported on the way is there
kill_at(int(last), names.split(","))
purge_table(table)
"""


@pytest.mark.parametrize("make", [make_folder_table, make_sql_table])
def test_killed_at_any_step_it_can_be_resumed(tmp_path: Path, make: Any) -> None:
    seen, status, last = set[str](), -9, 0
    while status == -9:
        folder = tmp_path / f"{last:03}"
        named = make(folder)
        table = named.load().append(pa.table({"id": [1]})).append(pa.table({"id": [2]}))
        table = rotate_table(table, "kek").table
        process = run(KILLED, type(named).__name__, named.uri, named.name, last, ",".join(WRITING))
        process.communicate(timeout=60)
        status = process.returncode
        assert status in (-9, 0)
        seen.add(check_resumed(named, folder, table.place.path))
        last += 29
    assert seen >= {"whole", "dropped", "gone"}


def check_resumed(named: FolderTable | SqlTable, folder: Path, last: str) -> str:
    """Purge again what is left; return how far the purge had come."""
    with contextlib.suppress(ModcryptError, ValueError, FileNotFoundError):
        assert named.load().scan().num_rows == 2  # before the drop, all is there
        purge_table(named.load())
        assert_purged(folder)
        return "whole"
    if not table_files(folder):
        return "gone"
    known: Any = {"master_key_ids": ["keyA"]}
    if not list(folder.rglob("*.metadata.json")):
        (small,) = table_files(folder)  # all but the hint, or the marker
        Path(small).unlink()
    elif isinstance(named, SqlTable):
        purge_table(open_table(last, SampleKms(), **known), unregistered=True)
    else:
        purge_table(named.load(**known))
    assert_purged(folder)
    return "dropped"


def assert_purged(folder: Path) -> None:
    left = {name for name in table_files(folder) if not name.endswith(".tmp")}
    assert left == set()


@pytest.mark.parametrize("make", [make_folder_table, make_sql_table])
def test_writers_at_the_same_time_leave_nothing_behind(tmp_path: Path, make: Any) -> None:
    for number in range(2):
        folder = tmp_path / str(number)
        named = make(folder)
        ended, gone = list[BaseException](), threading.Event()

        def append(
            named: Any = named, ended: list[BaseException] = ended, gone: threading.Event = gone
        ) -> None:
            try:
                table = named.load()
                for _ in range(200):
                    table = table.append(pa.table({"id": [1]}))
                gone.wait()  # it was quicker than the purge, which now has its turn
                table.append(pa.table({"id": [1]}))
            except (ModcryptError, ValueError, OSError) as error:
                ended.append(error)

        writer = threading.Thread(target=append, daemon=True)
        writer.start()
        while True:
            try:
                done = purge_table(named.load(master_key_ids=["keyA"]))
                break
            except CommitConflictError:
                continue
        gone.set()
        writer.join()
        assert done.left == ()
        assert ended
        assert not list(folder.rglob("*.metadata.json"))
        # A writer whose folder went away does not know whether its commit is there: its files stay.
        assert table_files(folder) == set() or not isinstance(ended[0], CommitConflictError)

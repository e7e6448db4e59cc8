"""Commits of others that come first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from modcrypt.iceberg import IcebergTable, verify_table
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.rotate import orphan_removal
from modcrypt.iceberg.verify import orphan_files
from modcrypt.iceberg.verify.table_findings import StrayFile
from modcrypt.io.places import Place

TIMEOUT = 60
"""Seconds that one thread waits for another."""


def with_rival_commits(table: IcebergTable, act: Callable[[], object], times: int) -> IcebergTable:
    """Return a table that another writer commits to just before each of its first commits."""
    real, left = table.versions, [times]

    class Slow:
        is_remote, merges = False, real.merges

        def current(self) -> Any:
            return real.current()

        def read(self, known: TableMetadata | None = None) -> Any:
            return real.read(known)

        def check_writable(self) -> None:
            real.check_writable()

        def commit(self, base: Any, metadata: TableMetadata) -> Any:
            if left[0]:
                left[0] -= 1
                act()
            return real.commit(base, metadata)

    return replace(table, versions=Slow())


def check_orphans_of_a_commit(named: Any) -> None:
    """Remove orphan files of any age while a commit ends that had written its files before.

    The folder is listed before the commit, which ends before the table is read.
    """
    written, listed, real = threading.Event(), threading.Event(), orphan_files.list_stored

    def append() -> None:
        table = named.load()
        commit = table.versions.commit

        def wait(*arguments: Any) -> Any:
            written.set()
            assert listed.wait(TIMEOUT)
            return commit(*arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(table.versions), "commit", lambda _, *arguments: wait(*arguments))
            table.append(pa.table({"id": pa.array([7], pa.int64())}))

    def list_stored(folder: Place) -> list[StrayFile]:
        assert written.wait(TIMEOUT)
        found = real(folder)
        listed.set()
        writer.result(TIMEOUT)
        return found

    with ThreadPoolExecutor(1) as pool, pytest.MonkeyPatch.context() as patch:
        seen = named.load()
        patch.setattr(orphan_removal, "list_stored", list_stored)
        writer = pool.submit(append)
        done = orphan_removal.remove_orphan_files(seen, older_than_days=0, foreign=True)
    assert [file for file in done.files if file.path.endswith((".parquet", ".avro"))] == []
    assert named.load().scan()["id"].to_pylist() == [7]
    assert verify_table(named.load()).ok

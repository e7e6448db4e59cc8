"""Commits of others that come first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from modcrypt.iceberg import IcebergTable, verify_table
from modcrypt.iceberg.format import table_versions
from modcrypt.iceberg.format.table_metadata import TableMetadata
from modcrypt.iceberg.rotate import orphan_removal
from modcrypt.iceberg.tables import rest_requests
from modcrypt.iceberg.tables.catalog_versions import CatalogVersions
from modcrypt.iceberg.verify import orphan_files
from modcrypt.iceberg.verify.table_findings import StrayFile
from modcrypt.io.places import Place
from tests.support.iceberg.table_changes import CHANGES, ids, rows

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


def check_commits_between(named: Any) -> None:
    """Let another writer begin a branch just before the last step of each change.

    A rotation and an expiry then drop no key that the branch needs.
    """
    named.load().append(rows(1)).append(rows(2))
    for number, change in enumerate(("kek", "expire", "another mek", "append"), start=3):
        table = named.load(master_key_ids=["keyA", "keyB"])
        begin = partial(table.append, rows(number), branch=f"b{number}")
        with pytest.MonkeyPatch.context() as patch:
            _act_before_last_step(patch, table.versions, begin)
            CHANGES[change](table)
    found = named.load()
    assert ids(found) == [1, 2, 9]
    for number in range(3, 7):
        assert sorted(found.scan(f"b{number}")["id"].to_pylist()) == [1, 2, number]
    assert verify_table(found).ok


def _act_before_last_step(patch: pytest.MonkeyPatch, versions: Any, act: Any) -> None:
    """Act once, when the next change of a table is about to be made by a server or file system."""
    owner: Any = table_versions
    name = "_create"
    if isinstance(versions, CatalogVersions):
        owner, name = type(versions._pointer), "swap"
    if versions.merges:
        owner, name = rest_requests, "commit"
    real = getattr(owner, name)

    def step(*arguments: Any) -> Any:
        patch.setattr(owner, name, real)
        act()
        return real(*arguments)

    patch.setattr(owner, name, step)


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

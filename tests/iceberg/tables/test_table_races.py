"""Several processes change a table of each kind at once, and some are killed.

`MODCRYPT_RACE_SECONDS=60 MODCRYPT_RACE_KILLS=30` run the tests for longer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.iceberg.glue_catalog import GlueTable, glue_server
from tests.support.iceberg.hive_catalog import HiveTable
from tests.support.iceberg.local_tables import make_folder_table, make_sql_table
from tests.support.iceberg.rest_catalog import RestTable
from tests.support.iceberg.table_races import NamedTable, kill_processes, race
from tests.support.object_store import object_store

pytestmark = pytest.mark.slow

SECONDS = float(os.environ.get("MODCRYPT_RACE_SECONDS", "4"))
KILLS = int(os.environ.get("MODCRYPT_RACE_KILLS", "3"))
PATIENCE = 60
"""Seconds that a kill that hits a change may take, with those before it that hit none."""


KINDS = ["folder", "sql", "hive", "glue", "rest"]


@pytest.fixture
def named(request: pytest.FixtureRequest, tmp_path: Path) -> NamedTable:
    """Make an encrypted table."""
    if request.param == "hive":
        return HiveTable.make(request.getfixturevalue("metastore"))
    if request.param == "glue":
        return GlueTable.make(request.getfixturevalue("glue"))
    if request.param == "rest":
        return RestTable.make(request.getfixturevalue("server"))
    if request.param == "store":
        return make_folder_table(f"s3://{request.getfixturevalue('bucket')}/t")
    return (make_sql_table if request.param == "sql" else make_folder_table)(tmp_path / "t")


@pytest.fixture
def glue(tmp_path: Path) -> Iterator[str]:
    with glue_server(tmp_path) as uri:
        yield uri


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Start an S3 server for these processes."""
    with object_store() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        store.judge().create_bucket(Bucket="races")
        yield "races"


@pytest.mark.parametrize("named", [*KINDS, "store"], indirect=True)
def test_no_row_is_lost(named: NamedTable) -> None:
    race(named, SECONDS)
    assert named.locks() == []


@pytest.mark.parametrize("named", KINDS, indirect=True)
def test_killed_processes_leave_a_readable_table(named: NamedTable) -> None:
    kill_processes(named, KILLS, 25, KILLS * PATIENCE)

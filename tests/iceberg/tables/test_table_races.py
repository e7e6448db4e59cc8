"""Several processes change a table of each kind at once, and some are killed.

`MODCRYPT_RACE_SECONDS=60 MODCRYPT_RACE_KILLS=30` run the tests for longer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.iceberg.hive_catalog import make_hive_table
from tests.support.iceberg.java_judge import why_unavailable
from tests.support.iceberg.local_tables import make_folder_table, make_sql_table
from tests.support.iceberg.rest_catalog import make_rest_table, rest_server
from tests.support.iceberg.table_races import NamedTable, kill_processes, race
from tests.support.java.jvm import why_unavailable as why_no_java
from tests.support.spark.hive_metastore import hive_metastore

pytestmark = pytest.mark.slow

SECONDS = float(os.environ.get("MODCRYPT_RACE_SECONDS", "10"))
KILLS = int(os.environ.get("MODCRYPT_RACE_KILLS", "4"))
PATIENCE = 60
"""Seconds that a kill that hits a change may take, with those before it that hit none."""


@pytest.fixture(scope="module")
def metastore(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if reason := why_no_java():
        pytest.skip(reason)
    with hive_metastore(tmp_path_factory.mktemp("hive")) as uri:
        yield uri


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if reason := why_unavailable():
        pytest.skip(reason)
    with rest_server(tmp_path_factory.mktemp("rest")) as uri:
        yield uri


@pytest.fixture(params=["folder", "sql", "hive", "rest"])
def named(request: pytest.FixtureRequest, tmp_path: Path) -> NamedTable:
    """Make an encrypted table."""
    if request.param == "hive":
        return make_hive_table(request.getfixturevalue("metastore"))
    if request.param == "rest":
        return make_rest_table(request.getfixturevalue("server"))
    return (make_sql_table if request.param == "sql" else make_folder_table)(tmp_path / "t")


def test_no_row_is_lost(named: NamedTable) -> None:
    race(named, SECONDS)
    assert named.locks() == []


def test_killed_processes_leave_a_readable_table(named: NamedTable) -> None:
    kill_processes(named, KILLS, 25, KILLS * PATIENCE)

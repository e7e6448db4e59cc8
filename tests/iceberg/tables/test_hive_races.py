"""Several processes change a table of a Hive metastore at once, and some are killed."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.iceberg.hive_catalog import make_hive_table
from tests.support.iceberg.table_races import kill_processes, race
from tests.support.java.jvm import why_unavailable
from tests.support.spark.hive_metastore import hive_metastore

if _reason := why_unavailable():
    pytest.skip(_reason, allow_module_level=True)

pytestmark = pytest.mark.slow

SECONDS = float(os.environ.get("MODCRYPT_RACE_SECONDS", "10"))
KILLS = int(os.environ.get("MODCRYPT_RACE_KILLS", "4"))


@pytest.fixture(scope="module")
def metastore(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with hive_metastore(tmp_path_factory.mktemp("hive")) as uri:
        yield uri


def test_no_row_is_lost(metastore: str) -> None:
    hive = make_hive_table(metastore)
    race(hive, SECONDS)
    assert hive.locks() == []


def test_killed_processes_leave_a_readable_table(metastore: str) -> None:
    kill_processes(make_hive_table(metastore), KILLS, 25)

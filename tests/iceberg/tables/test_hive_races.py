"""Several processes change a table of a Hive metastore at once, and some are killed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from modcrypt.iceberg import IcebergTable, remove_orphan_files, verify_table
from tests.support.iceberg.hive_catalog import HiveTable, make_hive_table
from tests.support.iceberg.table_races import finish, race, start
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


def load(hive: HiveTable) -> IcebergTable:
    return hive.load(master_key_ids=["keyA", "keyB"])


def test_no_row_is_lost(metastore: str) -> None:
    hive = make_hive_table(metastore)
    race(hive, SECONDS)
    assert hive.locks() == []


def test_killed_processes_leave_a_readable_table(metastore: str) -> None:
    """At most they leave files that nothing names, and a lock that the next writer releases."""
    hive = make_hive_table(metastore)
    chance, at_work, orphans = random.Random(25), 0, set[str]()
    for number in range(KILLS):
        roles = (str((number + 1) * 1_000_000), ("rotate", "expire")[number % 2])
        processes = [start(role, hive, 600) for role in roles]
        first = hive_version(hive)
        while hive_version(hive) < first + 3:  # both have got to work
            time.sleep(0.05)
        time.sleep(chance.uniform(0, 1))
        for process in processes:
            process.send_signal(signal.SIGKILL)
        for process in processes:
            process.communicate()
        table = load(hive)
        ids = table.scan()["id"].to_pylist()
        assert len(ids) == len(set(ids))
        verified = verify_table(table)
        assert verified.ok
        assert verified.orphans is not None
        left = {orphan.path for orphan in verified.orphans}
        at_work += bool(hive.locks() or left - orphans)
        orphans |= left
    print(f"{at_work} of {KILLS} kills hit a change under way")
    outcome = finish(start("9000000", hive, 3))
    assert outcome.done
    assert not outcome.errors
    assert hive.locks() == []
    removed = remove_orphan_files(load(hive), older_than_days=0)
    assert {file.path for file in removed.files} >= orphans
    assert not removed.left
    assert verify_table(load(hive)).orphans == ()


def hive_version(hive: HiveTable) -> int:
    return int(Path(hive.entry().parameters["metadata_location"]).name[:5])

"""Several processes change a table of a REST catalog at once, and some are killed."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.iceberg.java_judge import why_unavailable
from tests.support.iceberg.rest_catalog import make_rest_table, rest_server
from tests.support.iceberg.table_races import kill_processes, race

if _reason := why_unavailable():
    pytest.skip(_reason, allow_module_level=True)

pytestmark = pytest.mark.slow

SECONDS = float(os.environ.get("MODCRYPT_RACE_SECONDS", "10"))
KILLS = int(os.environ.get("MODCRYPT_RACE_KILLS", "4"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with rest_server(tmp_path_factory.mktemp("rest")) as uri:
        yield uri


def test_no_row_is_lost(server: str) -> None:
    rest = make_rest_table(server)
    race(rest, SECONDS)


def test_killed_processes_leave_a_readable_table(server: str) -> None:
    kill_processes(make_rest_table(server), KILLS, 26)

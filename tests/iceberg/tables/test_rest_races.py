"""Several processes change a table of a REST catalog at once."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from modcrypt.iceberg import verify_table
from tests.support.iceberg.java_judge import why_unavailable
from tests.support.iceberg.rest_catalog import make_rest_table, rest_server
from tests.support.iceberg.table_races import finish, start

if _reason := why_unavailable():
    pytest.skip(_reason, allow_module_level=True)

pytestmark = pytest.mark.slow

SECONDS = float(os.environ.get("MODCRYPT_RACE_SECONDS", "10"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with rest_server(tmp_path_factory.mktemp("rest")) as uri:
        yield uri


def test_no_row_is_lost(server: str) -> None:
    rest = make_rest_table(server)
    roles = ("1000000", "2000000", "rotate", "expire")
    outcomes = [finish(process) for process in [start(role, rest, SECONDS) for role in roles]]
    table = rest.load(master_key_ids=["keyA", "keyB"])
    found = table.scan()["id"].to_pylist()
    acknowledged = {row for outcome in outcomes for row in outcome.acknowledged}
    print([(outcome.done, outcome.conflicts) for outcome in outcomes], len(found))
    assert not [outcome.errors for outcome in outcomes if outcome.errors]
    assert all(outcome.done for outcome in outcomes)
    assert sorted(found) == sorted(acknowledged)
    assert verify_table(table).ok

"""The attempts to commit that a table's properties allow, as in Iceberg's Java."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from modcrypt.errors import CommitConflictError, FormatError
from modcrypt.iceberg import IcebergTable
from modcrypt.iceberg.write import commit as committing
from tests.support.iceberg.made_tables import make_table
from tests.support.sleeps import note_sleeps


class Contended:
    """The versions of a table at which another writer is always faster."""

    is_remote = merges = False

    def __init__(self, table: IcebergTable) -> None:
        self.current, self.read = table.versions.current, table.versions.read
        self.attempts = 0

    def check_writable(self) -> None:
        """Accept all."""

    def commit(self, base: Any, metadata: Any) -> Any:
        self.attempts += 1
        raise CommitConflictError("another writer has committed")


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept = note_sleeps(monkeypatch)
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    return slept


def contend(path: Path, properties: dict[str, str]) -> int:
    """Append to a contended table with these properties; return the number of attempts."""
    table = make_table(path, properties=properties)
    versions = Contended(table)
    with pytest.raises(CommitConflictError):
        dataclasses.replace(table, versions=versions).append(pa.table({"id": [1]}))
    assert not list((path / "data").rglob("*.parquet"))
    return versions.attempts


def test_javas_defaults(tmp_path: Path, pauses: list[float]) -> None:
    assert contend(tmp_path / "t", {}) == 5
    assert pauses == [0.1, 0.2, 0.4, 0.8]


def test_a_tables_own(tmp_path: Path, pauses: list[float]) -> None:
    properties = {
        "commit.retry.num-retries": "3",
        "commit.retry.min-wait-ms": "1000",
        "commit.retry.max-wait-ms": "1500",
    }
    assert contend(tmp_path / "t", properties) == 4
    assert pauses == [1, 1.5, 1.5]
    assert contend(tmp_path / "once", {"commit.retry.num-retries": "0"}) == 1
    assert contend(tmp_path / "brief", {"commit.retry.total-timeout-ms": "0"}) == 1


def test_a_hostile_number_is_limited(tmp_path: Path, pauses: list[float]) -> None:
    properties = {
        "commit.retry.num-retries": "999999999", "commit.retry.max-wait-ms": "9" * 18,
        "commit.retry.min-wait-ms": "9" * 18,
    }  # fmt: skip
    metadata = make_table(tmp_path / "t", properties=properties).metadata
    retries = committing.Retries.of(metadata)
    assert retries.attempts == 1 + committing.MAX_RETRIES
    assert retries.pause(1) == retries.pause(10**6) == committing.LONGEST_PAUSE


def test_what_is_no_number_is_refused(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t", properties={"commit.retry.num-retries": "many"})
    with pytest.raises(FormatError, match=r"commit\.retry\.num-retries is not a whole number"):
        table.append(pa.table({"id": [1]}))

"""A table that Iceberg's Java wrote, and the key service that it was written with."""

from __future__ import annotations

import datetime
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from modcrypt.iceberg import IcebergTable, open_table
from tests.support.iceberg.java_judge import Judge, why_unavailable
from tests.support.iceberg.sample_kms import MASTERS, SampleKms
from tests.support.iceberg.server_fixtures import metastore, server
from tests.support.iceberg.shared_table import both
from tests.support.shared_vectors import shared_vectors

__all__ = ["metastore", "server"]  # fixtures

JUST_MADE = datetime.datetime(2026, 11, 22, tzinfo=datetime.UTC).timestamp()


@pytest.fixture
def kms() -> SampleKms:
    return SampleKms()


@pytest.fixture
def one_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the clock stop before midnight, for tests that count the KEKs of a day."""
    now = time.time
    last = (now() // 86_400 + 1) * 86_400 - 0.001
    monkeypatch.setattr(time, "time", lambda: min(now(), last))


@pytest.fixture
def young_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the clock to a day at which no KEK of stored tables is too old to be used."""
    now = time.time
    start = now()
    monkeypatch.setattr(time, "time", lambda: JUST_MADE + now() - start)


@pytest.fixture
def t16(tmp_path: Path, young_tables: None) -> Path:
    """A copy of the shared table, which tests may change."""
    folder = tmp_path / "t16"
    shutil.copytree(shared_vectors() / "iceberg-table" / "t16", folder)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


@pytest.fixture
def table(t16: Path, kms: SampleKms) -> IcebergTable:
    return open_table(t16, kms, location_map=both(t16))


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    """Run Iceberg's own Java, with the master keys of `SampleKms`."""
    if reason := why_unavailable():
        pytest.skip(reason)
    with Judge(MASTERS, tmp_path_factory.mktemp("java") / "java.log") as running:
        yield running

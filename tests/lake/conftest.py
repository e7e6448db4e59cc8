"""Cache and state folders of their own for each test, and no declaration from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from modcrypt.lake.lake import Lake
from tests.support.lake_folder import leave_environment, make_lake


@pytest.fixture(autouse=True)
def own_lake_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep tests from the user's cache and records of trust."""
    leave_environment(monkeypatch)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    cache = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return cache


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return the declaration of a lake that is as declared."""
    path = make_lake(tmp_path)
    Lake.open(path).apply()
    return path

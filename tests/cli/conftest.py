"""Lakes and ports that tests of commands share."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli.program import run


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a lake whose files are as declared."""
    # The core's own tests run without the package of lakes.
    from tests.support.lake_folder import leave_environment, make_lake, trust_lake

    leave_environment(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    make_lake(tmp_path)
    trust_lake(tmp_path)
    assert run(tmp_path, "apply").returncode == 0
    return tmp_path


@pytest.fixture
def nobody() -> Iterator[int]:
    """Yield a port of the loopback interface at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]

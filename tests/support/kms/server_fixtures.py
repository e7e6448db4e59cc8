"""Key servers as fixtures, and an environment that leads to nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.sleeps import note_sleeps

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.kms.key_servers import Bao, MotoKms


@pytest.fixture(scope="session")
def bao_running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bao]:
    """Run OpenBao as long as the tests do."""
    pytest.importorskip("hvac")
    from tests.support.kms.key_servers import bao_server

    with bao_server(tmp_path_factory.mktemp("bao")) as running:
        yield running


@pytest.fixture
def bao(bao_running: Bao, bare_environment: None) -> Bao:
    """Yield a running, unsealed OpenBao."""
    return bao_running


@pytest.fixture(scope="session")
def moto_running() -> Iterator[MotoKms]:
    """Run moto's AWS KMS as long as the tests do."""
    pytest.importorskip("boto3")
    pytest.importorskip("moto")
    from tests.support.kms.key_servers import kms_server

    with kms_server() as running:
        yield running


@pytest.fixture
def moto(
    moto_running: MotoKms, bare_environment: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MotoKms]:
    """Yield AWS KMS, with an environment that points boto3 at it."""
    for name, value in moto_running.environment.items():
        monkeypatch.setenv(name, value)
    yield moto_running
    moto_running.failing = 0


def clear_environment(patch: pytest.MonkeyPatch) -> None:
    """Remove variables that lead to proxies, servers, tokens and credentials."""
    for name in list(os.environ):
        if name.upper().endswith("_PROXY") or name.startswith(("AWS_", "VAULT_", "BAO_")):
            patch.delenv(name)


@pytest.fixture
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Take out of the environment what leads to proxies, servers, tokens and credentials."""
    clear_environment(monkeypatch)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the seconds that modcrypt waits between attempts, without waiting."""
    return note_sleeps(monkeypatch)

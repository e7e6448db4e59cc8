"""Key servers for the tests of key services in Java."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.kms.json_server import JsonServer, json_server
from tests.support.kms.key_servers import Server


@pytest.fixture
def server() -> Iterator[Server]:
    """Yield a server on loopback whose answers a test determines."""
    running = Server()
    yield running
    running.close()


@pytest.fixture
def json_service() -> Iterator[JsonServer]:
    """Yield a server of JSON on loopback."""
    with json_server() as running:
        yield running

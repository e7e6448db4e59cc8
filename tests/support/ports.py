"""Ports for servers that tests start and that cannot choose one by themselves."""

from __future__ import annotations

import random
import socket

PORTS = range(20_000, 32_000)
"""Ports below those that systems hand out: a server of another test could be given such a port
before the own one listens there, or while it is restarted."""


def find_free_port() -> int:
    """Return a port at which nobody listens."""
    for port in random.SystemRandom().sample(PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("none of a hundred ports is free")

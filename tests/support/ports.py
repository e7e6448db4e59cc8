"""Ports for servers that tests start and that cannot choose one by themselves."""

from __future__ import annotations

import random
import socket

PORTS = range(20_000, 32_000)
"""Ports below those that systems hand out: a server of another test could be given such a port
before the own one listens there, or while it is restarted."""


def find_free_port() -> int:
    """Return a port at which nobody listens, and that no other call in any process returns."""
    for port in random.SystemRandom().sample(PORTS, 100):
        with socket.socket() as probe, socket.socket(type=socket.SOCK_DGRAM) as taken:
            try:
                # No server uses UDP: its port of that number, held until this process ends, shows
                # the other calls that this one is taken, even while no server listens there yet.
                taken.bind(("127.0.0.1", port))
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            taken.detach()
            return port
    raise AssertionError("none of a hundred ports is free")

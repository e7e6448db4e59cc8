"""HTTP sessions of `requests` that limit the size and duration of answers.

The timeout of `requests` applies to each read, so a server that sends a byte now and then, or never
stops sending, could block a caller forever.
"""

from __future__ import annotations

import http.client
import io
import socket
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any

import requests
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

MAX_ANSWER = 4 << 20
"""Size limit of an answer with its headers, in bytes: a list of tens of thousands of keys."""

MAX_SECONDS = 10.0
"""Time limit of an answer in seconds, from the end of the request to the last byte."""


MIN_RATE = 256 << 10
"""Bytes for each of which that arrive an answer with a time of transfer may take a second more."""


@dataclass(frozen=True)
class AnswerLimits:
    """Limits of one answer."""

    size: int  # bytes, headers included
    seconds: float  # from the end of the request to the last byte
    transfer: float | None = None  # seconds from the first byte on; `seconds` then ends there


class UnacceptableAnswerError(Exception):
    """An answer that is longer than its limit, or compressed without a request for that."""


def bounded_session() -> requests.Session:
    """Return a session with limited answers; through a SOCKS proxy, the limits do not apply."""
    session = requests.Session()
    bound_session(session, lambda: AnswerLimits(MAX_ANSWER, MAX_SECONDS))
    return session


def bound_session(session: requests.Session, limits: Callable[[], AnswerLimits]) -> None:
    """Limit the answers that a session gets from now on, whatever adapters it has."""
    session.headers["Accept-Encoding"] = "identity"  # compressed bytes could expand to a gigabyte
    pools = _make_pools(limits)
    for adapter in session.adapters.values():
        _bound_adapter(adapter, pools)


def _bound_adapter(adapter: Any, pools: dict[str, type[HTTPConnectionPool]]) -> None:
    adapter.poolmanager.clear()  # of connections without limits
    adapter.poolmanager.pool_classes_by_scheme = pools
    adapter.proxy_manager.clear()
    make_proxy = type(adapter).proxy_manager_for

    def bounded_proxy(proxy: str, **kwargs: Any) -> Any:
        manager = make_proxy(adapter, proxy, **kwargs)
        if not proxy.lower().startswith("socks"):
            manager.pool_classes_by_scheme = pools
        return manager

    adapter.proxy_manager_for = bounded_proxy


class _Limited(io.RawIOBase):
    """A server's answer with a size limit and a deadline."""

    def __init__(self, file: Any, sock: socket.socket, limits: AnswerLimits) -> None:
        self._file, self._sock, self._limits = file, sock, limits
        self._left, self._deadline = limits.size, monotonic() + limits.seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        remaining = self._deadline - monotonic()
        if remaining <= 0:
            raise TimeoutError("answer incomplete at its deadline")
        if not self._left:
            raise UnacceptableAnswerError(f"the answer is longer than {self._limits.size} bytes")
        self._sock.settimeout(remaining)
        count: int | None = self._file.readinto(memoryview(buffer)[: self._left])
        if self._limits.transfer is not None:  # bytes that have arrived allow more time
            if self._left == self._limits.size:
                self._deadline = monotonic() + self._limits.transfer
            self._deadline += (count or 0) / MIN_RATE
        self._left -= count or 0
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


class _Response(http.client.HTTPResponse):
    limits: Callable[[], AnswerLimits]

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_Limited(self.fp.detach(), sock, type(self).limits()))

    def begin(self) -> None:
        super().begin()
        if self.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
            raise UnacceptableAnswerError("the answer is compressed")


def _make_pools(limits: Callable[[], AnswerLimits]) -> dict[str, type[HTTPConnectionPool]]:
    """Return the classes of a session's pools, whose connections limit their answers."""

    class Response(_Response):
        pass

    class Connection(HTTPConnection):
        response_class = Response

    class TlsConnection(HTTPSConnection):
        response_class = Response

    class Pool(HTTPConnectionPool):
        ConnectionCls = Connection

    class TlsPool(HTTPSConnectionPool):
        ConnectionCls = TlsConnection

    Response.limits = staticmethod(limits)
    return {"http": Pool, "https": TlsPool}

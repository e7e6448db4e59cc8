"""HTTP answers of limited size and time, for `requests`.

The timeout of `requests` is one of each read: a server that sends a byte now and then, or never
stops sending, would keep a caller for ever.
"""

from __future__ import annotations

import http.client
import io
import socket
from time import monotonic
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

__all__ = ["UnacceptableAnswerError", "bounded_session"]

MAX_ANSWER = 4 << 20
"""Bytes of the longest answer, headers included: a list of tens of thousands of keys."""

MAX_SECONDS = 10.0
"""Seconds for a whole answer, from the end of the request to the last byte."""


class UnacceptableAnswerError(Exception):
    """An answer is longer than `MAX_ANSWER`, or compressed although nobody asked for that."""


def bounded_session() -> requests.Session:
    """Return a session whose answers are limited, but for those through a SOCKS proxy."""
    session = requests.Session()
    session.headers["Accept-Encoding"] = "identity"  # a few bytes could expand to a gigabyte
    for scheme in ("https://", "http://"):
        session.mount(scheme, _Adapter())
    return session


class _Limited(io.RawIOBase):
    """A server's answer, limited in bytes and by a deadline."""

    def __init__(self, file: Any, sock: socket.socket) -> None:
        self._file, self._sock = file, sock
        self._left, self._deadline = MAX_ANSWER, monotonic() + MAX_SECONDS

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        remaining = self._deadline - monotonic()
        if remaining <= 0:
            raise TimeoutError(f"no whole answer within {MAX_SECONDS:g} s")
        if not self._left:
            raise UnacceptableAnswerError(f"it is longer than {MAX_ANSWER} bytes")
        self._sock.settimeout(remaining)
        count: int | None = self._file.readinto(memoryview(buffer)[: self._left])
        self._left -= count or 0
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_Limited(self.fp.detach(), sock))

    def begin(self) -> None:
        super().begin()
        if self.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
            raise UnacceptableAnswerError("it is compressed")


class _Connection(HTTPConnection):
    response_class = _Response


class _TlsConnection(HTTPSConnection):
    response_class = _Response


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


_POOLS = {"http": _Pool, "https": _TlsPool}


class _Adapter(HTTPAdapter):
    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **kwargs)
        if not proxy.lower().startswith("socks"):
            manager.pool_classes_by_scheme = _POOLS
        return manager

"""HTTP sessions of `requests` that limit the size and duration of answers.

The timeout of `requests` applies to each read, so a server that sends a byte now and then, or never
stops sending, could block a caller forever.
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

MAX_ANSWER = 4 << 20
"""Size limit of an answer with its headers, in bytes: a list of tens of thousands of keys."""

MAX_SECONDS = 10.0
"""Time limit of an answer in seconds, from the end of the request to the last byte."""


class UnacceptableAnswerError(Exception):
    """An answer that is longer than `MAX_ANSWER`, or compressed without a request for that."""


def bounded_session() -> requests.Session:
    """Return a session with limited answers; through a SOCKS proxy, the limits do not apply."""
    session = requests.Session()
    session.headers["Accept-Encoding"] = "identity"  # compressed bytes could expand to a gigabyte
    for scheme in ("https://", "http://"):
        session.mount(scheme, _Adapter())
    return session


class _Limited(io.RawIOBase):
    """A server's answer with a size limit and a deadline."""

    def __init__(self, file: Any, sock: socket.socket) -> None:
        self._file, self._sock = file, sock
        self._left, self._deadline = MAX_ANSWER, monotonic() + MAX_SECONDS

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        remaining = self._deadline - monotonic()
        if remaining <= 0:
            raise TimeoutError(f"answer incomplete after {MAX_SECONDS:g} s")
        if not self._left:
            raise UnacceptableAnswerError(f"the answer is longer than {MAX_ANSWER} bytes")
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
            raise UnacceptableAnswerError("the answer is compressed")


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

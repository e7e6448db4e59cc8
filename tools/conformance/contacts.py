"""A listener that notes who connects: the key service of an attacker."""

from __future__ import annotations

import socket
import threading
from types import TracebackType

_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Listener:
    """A context manager that listens on a port of this machine."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._count = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Listener:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def take_count(self) -> int:
        """Return the number of connections since the last call."""
        found, self._count = self._count, 0
        return found

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self._count += 1
            with connection:
                try:
                    connection.settimeout(2)
                    connection.recv(4096)
                    connection.sendall(_ANSWER)
                except OSError:
                    pass

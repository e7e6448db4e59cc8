"""An HTTP server on loopback that answers by a function, in JSON; and Google's REST API."""

from __future__ import annotations

import contextlib
import json
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, Any] | tuple[int, Any, Mapping[str, str]]


@dataclass(frozen=True)
class JsonRequest:
    """One request: its path has the query, its headers have names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    port: int = 0  # of the client


@dataclass
class JsonServer:
    """A running server: `requests` is its log.

    An answer is a status, JSON, text or bytes, and headers.
    """

    port: int
    answer: Callable[[JsonRequest], Answer] = lambda request: (404, {})
    requests: list[JsonRequest] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def json_server() -> Iterator[JsonServer]:
    """Run a server on a free port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            port = self.client_address[1]
            request = JsonRequest(self.command, self.path, headers, body, port)
            served.requests.append(request)
            status, content, *more = served.answer(request)
            own = dict(more[0]) if more else {}
            data = content.encode() if isinstance(content, str) else content
            data = data if isinstance(data, bytes) else json.dumps(data).encode()
            self.send_response(status)
            if 300 <= status < 400:
                own.setdefault("Location", f"{served.address}/elsewhere")
            for name, value in {**own, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = handle_any  # noqa: N815 (names of the base class)

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served = JsonServer(server.server_port)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()


class _RefusalError(Exception):
    """A refusal of the stub: its code of gRPC and its text."""


class _Context:
    """The part of gRPC's context that the stub uses."""

    def abort(self, code: Any, text: str) -> None:
        raise _RefusalError(code.name, text)


_STATUS = {"INVALID_ARGUMENT": 400, "FAILED_PRECONDITION": 400, "NOT_FOUND": 404,
           "PERMISSION_DENIED": 403, "UNAUTHENTICATED": 401, "UNAVAILABLE": 503,
           "RESOURCE_EXHAUSTED": 429}  # fmt: skip


def answer_as_google(stub: Any, request: JsonRequest) -> Answer:
    """Answer a request of Cloud KMS's REST API by a `GoogleStub`, in Google's own JSON."""
    from google.cloud import kms_v1

    name, _, verb = request.path.removeprefix("/v1/").rpartition(":")
    operations: dict[str, tuple[Any, Any, Any]] = {
        "encrypt": (kms_v1.EncryptRequest, stub.encrypt, kms_v1.EncryptResponse),
        "decrypt": (kms_v1.DecryptRequest, stub.decrypt, kms_v1.DecryptResponse),
    }
    kind, ask, made = operations[verb]
    asked = kind.from_json(request.body.decode())
    asked.name = name
    try:
        return 200, made.to_json(ask(asked, _Context()), always_print_fields_with_no_presence=False)
    except _RefusalError as refusal:
        code, text = refusal.args
        return _STATUS[code], {"error": {"code": 400, "message": text, "status": code}}


@contextlib.contextmanager
def hanging_up() -> Iterator[int]:
    """Run a server that ends each connection at once; return its port."""

    class Handler(socketserver.BaseRequestHandler):
        pass

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()

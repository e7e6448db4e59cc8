"""An S3 server on the loopback interface, which notes every request and can refuse or delay one."""

from __future__ import annotations

import contextlib
import functools
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import boto3
import fsspec
import pyarrow.fs
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from moto.s3.models import S3Backend, s3_backends
from werkzeug.serving import make_server

from tests.support.aws_models import remember_models

remember_models()

KEY, SECRET, REGION = "nobody", "nothing", "us-east-1"


@dataclass(frozen=True)
class Request:
    """One request, and how many bytes its answer had."""

    method: str
    path: str
    query: str
    range: str | None
    answered: int


@dataclass
class ObjectStore:
    """A running server: `requests` is its log, `hook` sees each request before it is served."""

    port: int = 0
    requests: list[Request] = field(default_factory=list)
    hook: Callable[[str, str, str], bool] = lambda method, path, query: True
    refusal: tuple[str, str] = ("403 Forbidden", "AccessDenied")  # how it refuses

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def storage_options(self) -> dict[str, Any]:
        """Options with which fsspec connects to this store, and nowhere else."""
        client = {"endpoint_url": self.endpoint, "region_name": REGION}
        return {"key": KEY, "secret": SECRET, "client_kwargs": client}

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment with which clients connect to this store."""
        return {
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": REGION,
        }

    def arrow(self) -> pyarrow.fs.S3FileSystem:
        return pyarrow.fs.S3FileSystem(
            access_key=KEY,
            secret_key=SECRET,
            region=REGION,
            scheme="http",
            endpoint_override=f"127.0.0.1:{self.port}",
        )

    def s3fs(self, **options: Any) -> Any:
        options = {**self.storage_options, "skip_instance_cache": True, **options}
        return fsspec.filesystem("s3", **options)

    @functools.cached_property
    def _client(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
        )

    def judge(self) -> Any:
        """Return a client of neither, which all tests share: it takes a while to make one."""
        return self._client

    @contextlib.contextmanager
    def log_requests(self) -> Iterator[list[Request]]:
        """Yield a list that receives the requests made in the block."""
        start, log = len(self.requests), list[Request]()
        try:
            yield log
        finally:
            log += self.requests[start:]

    @contextlib.contextmanager
    def intercept(
        self, hook: Callable[[str, str, str], bool], refusal: tuple[str, str] | None = None
    ) -> Iterator[None]:
        """Call `hook` with method, path and query of each request; False refuses it."""
        before = self.hook, self.refusal
        self.hook, self.refusal = hook, refusal or self.refusal
        try:
            yield
        finally:
            self.hook, self.refusal = before


@dataclass
class _Watching:
    """The WSGI application of the server, and the log."""

    application: Any
    store: ObjectStore
    writes: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        query, byte_range = environ["QUERY_STRING"], environ.get("HTTP_RANGE")
        if self.store.hook(method, path, query):
            # moto looks whether an object exists, and stores it later: two could both be the first,
            # by a PUT or by a POST that completes an upload.
            with self.writes if method in ("PUT", "POST") else contextlib.nullcontext():
                body = b"".join(self.application(environ, start_response))
        else:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            status, code = self.store.refusal
            text = f"<Error><Code>{code}</Code><Message>refused by the test</Message></Error>"
            body = text.encode()
            start_response(status, [("Content-Length", str(len(body)))])
        self.store.requests.append(Request(method, path, query, byte_range, len(body)))
        return [body]


class _Quiet(MotoRequestHandler):
    protocol_version = "HTTP/1.1"  # else each request needs a connection of its own

    def log(self, *_: Any) -> None:
        """Log nothing."""


@contextlib.contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Run an S3 server on a free port."""
    store = ObjectStore()
    application = _Watching(DomainDispatcherApplication(create_backend_app), store)
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=_Quiet)
    store.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, name="object-store", daemon=True)
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        # fsspec keeps file systems by their arguments, not by the environment, which names others.
        fsspec.get_filesystem_class("s3").clear_instance_cache()


class Bucket:
    """A new bucket as the server holds it: requests of the tests themselves would cost most."""

    def __init__(self) -> None:
        self.name = f"bucket-{uuid.uuid4()}"
        self._server.create_bucket(self.name, REGION)

    @property
    def _server(self) -> S3Backend:
        return s3_backends[DEFAULT_ACCOUNT_ID]["aws"]

    def put(self, key: str, data: bytes) -> str:
        self._server.put_object(self.name, key, data)
        return f"{self.name}/{key}"

    def get(self, key: str) -> bytes:
        found = self._server.get_object(self.name, key)
        assert found is not None, f"no object {key}"
        return bytes(found.value)

    def keys(self) -> list[str]:
        """Return the object names, without the folder markers that pyarrow leaves after a move."""
        names: list[str] = list(self._server.get_bucket(self.name).keys)
        return sorted(name for name in names if not name.endswith("/"))

    def uploads(self) -> list[Any]:
        """List the uploads that were begun and neither completed nor aborted."""
        return list(self._server.list_multipart_uploads(self.name).values())

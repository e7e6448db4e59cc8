"""A Glue catalog on moto's server, which compares versions of entries as AWS does.

moto 5.2 ignores the `VersionId` of an update: here it is compared as AWS documents it.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import fsspec
import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ConnectionClosedError
from botocore.httpsession import URLLib3Session
from pyiceberg.catalog.glue import GlueCatalog
from pyiceberg.utils.config import Config

from tests.support.iceberg.catalog_tables import CatalogTable
from tests.support.object_store import KEY, REGION, SECRET, ObjectStore, object_store

Step: TypeAlias = Callable[[Any], AWSResponse | None]
"""The answer to a request; None leaves it to the server."""


@contextlib.contextmanager
def glue_server(folder: Path) -> Iterator[str]:
    """Run a server with tables in a folder; yield the URI by which `GlueTable` finds it."""
    from moto.glue.exceptions import GlueClientError
    from moto.glue.responses import GlueResponse

    real = GlueResponse.update_table

    def update_table(self: Any) -> Any:  # the server serialises the requests that change anything
        database, entry = self.parameters["DatabaseName"], self.parameters["TableInput"]
        now = self.glue_backend.get_table(database, entry["Name"]).as_dict()["VersionId"]
        if self.parameters.get("VersionId") not in {None, now}:
            raise GlueClientError("ConcurrentModificationException", f"the version is {now}")
        return real(self)

    with object_store() as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr(GlueResponse, "update_table", update_table)
        yield f"glue://127.0.0.1:{store.port}{folder}"


class GlueTable(CatalogTable):
    """A table of a Glue catalog, and ways to look at its entry without modcrypt."""

    @property
    def catalog(self) -> GlueCatalog:
        return _shared_catalog(self.uri)

    @property
    def endpoint(self) -> str:
        return f"http://{urlsplit(self.uri).netloc}"

    def entry(self) -> dict[str, Any]:
        database, name = self.name.split(".")
        entry: Any = self.catalog.glue.get_table(DatabaseName=database, Name=name)["Table"]
        return dict(entry)

    def location(self) -> str:
        return str(self.entry()["Parameters"]["metadata_location"])


def _properties(uri: str) -> dict[str, str]:
    return {
        "type": "glue", "glue.endpoint": GlueTable(uri, "").endpoint, "glue.region": REGION,
        "glue.access-key-id": KEY, "glue.secret-access-key": SECRET,
        "warehouse": f"file://{urlsplit(uri).path}",
    }  # fmt: skip


def open_catalog(uri: str) -> GlueCatalog:
    return GlueCatalog("glue", **_properties(uri))


_shared_catalog = functools.cache(open_catalog)
"""A client takes a while to make, and threads may share it."""


def configure(patch: pytest.MonkeyPatch, name: str, uri: str) -> None:
    """Add a catalog to pyiceberg's configuration, where alone a Glue catalog can be named."""
    for key, value in _properties(uri).items():
        variable = key.replace(".", "__").replace("-", "_").upper()
        patch.setenv(f"PYICEBERG_CATALOG__{name.upper()}__{variable}", value)
    patch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # read when imported


def use_store(patch: pytest.MonkeyPatch, uri: str) -> Any:
    """Have this process use the S3 of the same server; return a client of it."""
    store = ObjectStore(port=urlsplit(uri).port or 0)
    for name, value in store.environment.items():
        patch.setenv(name, value)
    # fsspec's cached file systems keep the address of a server that ran before.
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    return store.judge()


# --- answers that tests give instead of the server ---------------------------------------------


def serve(request: Any) -> None:
    """Leave a request to the server."""


def act_first(act: Callable[[], object]) -> Step:
    """Have another writer act between the look at an entry and its change."""

    def step(request: Any) -> None:
        act()

    return step


def lose(request: Any) -> None:
    """Lose a request, or its answer."""
    raise ConnectionClosedError(endpoint_url=request.url)


def serve_and_lose(request: Any) -> None:
    """Have the server carry out a request, and lose the answer."""
    send(request)
    lose(request)


def send(request: Any) -> None:
    """Send a request again, for example one that was lost and arrives late."""
    assert URLLib3Session().send(request).status_code == 200


def refuse(code: str, status: int = 400, message: str = "") -> Step:
    """Answer with an error of Glue."""
    return lambda request: answer(status, json.dumps({"__type": code, "Message": message}).encode())


def answer(status: int, body: bytes) -> AWSResponse:
    raw = SimpleNamespace(stream=lambda: iter([body]))
    return AWSResponse("", status, {}, raw)


@contextlib.contextmanager
def answers(catalog: GlueCatalog, operation: str, *steps: Step) -> Iterator[list[Any]]:
    """Answer requests by one step after the other, the last one again and again.

    Yield a list that receives the requests. The client repeats requests, here without a pause.
    """
    sent, event = list[Any](), f"before-send.glue.{operation}"

    def take_step(request: Any, **_: Any) -> AWSResponse | None:
        sent.append(request)
        return steps[min(len(sent), len(steps)) - 1](request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("botocore.endpoint.time.sleep", lambda seconds: None)
        catalog.glue.meta.events.register(event, take_step)
        try:
            yield sent
        finally:
            catalog.glue.meta.events.unregister(event, take_step)

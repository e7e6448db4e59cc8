"""A hostile REST catalog: endless, slow and compressed answers, and hosts for credentials."""

from __future__ import annotations

import contextlib
import gzip
import json
import pickle
import socket
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from requests.adapters import HTTPAdapter

from modcrypt.errors import FormatError, LimitError
from modcrypt.iceberg.tables import rest_requests
from modcrypt.iceberg.tables.catalog_opening import open_pyiceberg_catalog
from modcrypt.iceberg.tables.catalogs import list_tables, versions_of
from modcrypt.iceberg.tables.rest_stores import EXPIRY
from modcrypt.kms.services.bounded_http import AnswerLimits
from tests.support.cases import each_case
from tests.support.kms.key_servers import LONG, SLOW, Server, whole

METADATA = json.loads(
    new_table_metadata(
        Schema(), UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, "s3://bucket/t"
    ).model_dump_json()
)
OWN = {
    "s3.access-key-id": "AKIDMINE", "s3.secret-access-key": "MYSECRET",
    "s3.session-token": "MYSESSION",
}  # fmt: skip
VENDED = {"s3.access-key-id": "id", "s3.secret-access-key": "key"}


class Catalog(Server):
    """A REST catalog that answers all requests but that for its configuration by `table`."""

    def __init__(self) -> None:
        super().__init__()
        self.overrides: dict[str, str] = {}
        self.table: Any = whole(b"{}")
        self.answer = self._choose

    def _choose(self, peer: socket.socket) -> object:
        if b"/v1/config" not in self.requests[-1].partition(b"\r\n")[0]:
            return self.table(peer)
        configuration = {"defaults": {}, "overrides": self.overrides}
        return whole(json.dumps(configuration).encode())(peer)

    def vend(self, config: dict[str, str]) -> None:
        """Serve a table in S3."""
        location = "s3://bucket/t/metadata/v4.metadata.json"
        answer = {"metadata-location": location, "metadata": METADATA, "config": config}
        self.table = whole(json.dumps(answer).encode())

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def open(self, **properties: str) -> RestCatalog:
        return RestCatalog("c", uri=self.uri, token="SECRET", **properties)


def load(catalog: Any) -> object:
    return versions_of(catalog, "ns.t").current()


@pytest.fixture
def server() -> Iterator[Catalog]:
    made = Catalog()
    yield made
    made.close()


@pytest.fixture
def elsewhere() -> Iterator[Server]:
    made = Server()
    made.answer = lambda peer: peer.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
    yield made
    made.close()


def test_a_compressed_answer_is_not_unpacked(server: Catalog) -> None:
    server.table = whole(gzip.compress(b" " * (2 << 20)), "Content-Encoding: gzip")
    with pytest.raises(LimitError, match="the answer is compressed"):
        load(server.open())
    assert b"Accept-Encoding: identity" in server.requests[-1]
    with pytest.raises(OSError, match="cannot be listed"):
        list(list_tables(server.open(), "ns"))


def test_a_list_that_always_has_a_next_page_ends(
    server: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest_requests, "MAX_PAGES", 5)
    server.table = whole(b'{"identifiers": [], "next-page-token": "more"}')
    with pytest.raises(OSError, match="cannot be listed: LimitError"):
        list(list_tables(server.open(), "ns"))
    assert len(server.requests) == 1 + 5


def test_adapters_of_the_user_are_limited_too(server: Catalog) -> None:
    server.table = whole(gzip.compress(b"{}"), "Content-Encoding: gzip")
    catalog = server.open()
    catalog._session.mount(catalog.uri, HTTPAdapter())
    with pytest.raises(LimitError, match="the answer is compressed"):
        load(catalog)


def test_a_copy_of_a_table_in_another_process_is_limited_too(server: Catalog) -> None:
    server.table = whole(gzip.compress(b"{}"), "Content-Encoding: gzip")
    copy = pickle.loads(pickle.dumps(versions_of(server.open(), "ns.t")))
    with pytest.raises(LimitError, match="the answer is compressed"):
        copy.current()


@each_case("name", LONG)
def test_an_endless_answer_ends_at_its_limit(
    server: Catalog, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest_requests, "LIMITS", AnswerLimits(100_000, 60.0, 60.0))
    server.table = LONG[name]
    with pytest.raises(LimitError, match="longer than 100000 bytes"):
        load(server.open())


@each_case("name", SLOW)
def test_a_slow_answer_ends_in_time(
    server: Catalog, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest_requests, "LIMITS", AnswerLimits(100_000, 0.1, 0.1))
    server.table = SLOW[name]
    with pytest.raises(OSError, match="the REST catalog failed"):
        load(server.open())


TOKEN = '{"access_token": "%s", "token_type": "bearer"}'


@pytest.mark.parametrize(
    ("status", "body"),
    [(200, TOKEN % "TOK\u0141EN"), (200, '{"access": "TOKEN"}'), (200, "TOKEN"), (500, "TOKEN"),
     (400, '{"error": "invalid_client", "error_description": "TOKEN"}')],
)  # fmt: skip
@pytest.mark.parametrize("expired", [401, 419])
def test_a_token_that_cannot_be_renewed(
    server: Catalog, expired: int, status: int, body: str
) -> None:
    token: list[Any] = [200, TOKEN % "first"]

    def answer(peer: socket.socket) -> None:
        asks = server.requests[-1].startswith(b"POST /tokens")
        code, text = token if asks else (expired, "{}")
        data = text.encode()
        start = f"HTTP/1.1 {code} X\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
        peer.sendall(start.encode() + data)

    server.table = answer
    address = {"oauth2-server-uri": f"{server.uri}/tokens"}
    with warnings.catch_warnings(action="ignore"):
        catalog = RestCatalog("c", uri=server.uri, credential="id:SECRET", **address)
    token[:] = status, body
    with pytest.raises(PermissionError, match=r"gave no valid token: [A-Za-z]+Error$"):
        load(catalog)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_takes_no_header_elsewhere(
    server: Catalog, elsewhere: Server, status: int
) -> None:
    answer = f"HTTP/1.1 {status} Moved\r\nLocation: http://localhost:{elsewhere.port}/\r\n"
    server.table = lambda peer: peer.sendall(f"{answer}Content-Length: 0\r\n\r\n".encode())
    with pytest.raises(OSError, match="set uri to the address that it redirects to"):
        load(server.open(**{"header.X-Api-Key": "SECRET"}))
    assert elsewhere.requests == []


@pytest.mark.parametrize("own", [{}, OWN])
@pytest.mark.parametrize("in_configuration", [True, False])
def test_credentials_go_to_no_host_that_the_server_names(
    server: Catalog, elsewhere: Server, monkeypatch: pytest.MonkeyPatch,
    own: dict[str, str], in_configuration: bool,
) -> None:  # fmt: skip
    pytest.importorskip("s3fs")
    for name, value in OWN.items():  # which a client would find by itself
        monkeypatch.setenv(f"AWS_{name[3:].replace('-', '_').upper()}", value)
    named = {"s3.endpoint": f"http://127.0.0.1:{elsewhere.port}", "s3.region": "eu-1"}
    server.overrides = named if in_configuration else {}
    server.vend({} if in_configuration else named)
    with pytest.raises(FormatError, match=r"names 'http://127.* as s3.endpoint without"):
        load(server.open(**own))
    assert elsewhere.requests == []
    server.vend({**named, **VENDED})
    load(server.open(**own))
    assert elsewhere.requests
    assert not any(value.encode() in r for r in elsewhere.requests for value in OWN.values())


def test_credentials_go_to_the_host_that_the_user_names(server: Catalog, elsewhere: Server) -> None:
    pytest.importorskip("s3fs")
    named = {"s3.endpoint": f"http://127.0.0.1:{elsewhere.port}", "s3.region": "eu-1"}
    server.vend(named)
    load(server.open(**named, **OWN))
    assert any(b"AKIDMINE" in request for request in elsewhere.requests)


def test_a_catalog_of_modcrypt_is_limited_from_its_first_request(server: Catalog) -> None:
    server.answer = whole(gzip.compress(b"{}"), "Content-Encoding: gzip")
    with pytest.raises(OSError, match="the answer is compressed"):
        open_pyiceberg_catalog("c", uri=server.uri)
    with pytest.raises(OSError, match="the answer is compressed"):
        open_pyiceberg_catalog(  # which asks for a token
            "c", uri=server.uri, credential="id:secret", **{"oauth2-server-uri": server.uri}
        )
    assert len(server.requests) == 2


def test_a_catalog_of_modcrypt_separates_the_settings_of_user_and_server(
    server: Catalog, elsewhere: Server
) -> None:
    """Even if both name the same host, or the server names another one each time."""
    pytest.importorskip("s3fs")
    named = {"s3.endpoint": f"http://127.0.0.1:{elsewhere.port}", "s3.region": "eu-1"}
    server.vend({})
    server.overrides = named
    catalog = open_pyiceberg_catalog("c", uri=server.uri, **OWN)
    server.overrides = {}
    with pytest.raises(FormatError, match="modcrypt sends yours only to hosts that you name"):
        load(catalog)
    server.overrides = named
    load(open_pyiceberg_catalog("c", uri=server.uri, **named, **OWN))
    assert any(b"AKIDMINE" in request for request in elsewhere.requests)


def test_credentials_are_renewed_before_they_expire(server: Catalog, elsewhere: Server) -> None:
    def vend(id_: str, seconds: int) -> None:
        expiry = str(int((time.time() + seconds) * 1000))
        address = {"s3.endpoint": f"http://127.0.0.1:{elsewhere.port}", "s3.region": "r"}
        server.vend({**VENDED, **address, "s3.access-key-id": id_, EXPIRY: expiry})

    def used() -> str:
        with contextlib.suppress(FileNotFoundError):
            place.filesystem.cat_file("bucket/t/data/1")
        sent = elsewhere.requests[-1].decode(errors="replace")
        return sent.partition("Credential=")[2].partition("/")[0]

    vend("first", 600)
    place = versions_of(server.open(), "ns.t").current()
    assert used() == "first"
    vend("second", 30)
    place = versions_of(server.open(), "ns.t").current()
    vend("third", 3600)
    assert used() == "third"
    asked = len(server.requests)
    assert used() == "third"
    assert len(server.requests) == asked

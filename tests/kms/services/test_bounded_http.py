"""Answers of a hostile or broken Vault: endless, slow, giant, compressed, elsewhere."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from modcrypt.errors import KeyMaterialError, KeyRetrievalError, KmsUnavailableError
from modcrypt.kms import calls as kms
from modcrypt.kms import pacing
from tests.support.cases import each_case

pytest.importorskip("hvac")
pytest.importorskip("azure.keyvault.keys")

from azure.core.credentials import AccessToken
from requests.adapters import HTTPAdapter

from modcrypt.kms.services import bounded_http
from modcrypt.kms.services.azure import AzureKms, open_azure
from modcrypt.kms.services.vault import VaultKms, open_vault
from tests.support.frame_watch import find_secrets
from tests.support.kms.key_servers import LONG, SLOW, Server, whole

TOKEN = "s.Tq8!mZ2#vB5_xL9@"
KEY = b"Wd%6nC1^tF*9kH&3"
WRAPPED = "vault:v1:" + base64.b64encode(bytes(44)).decode()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture
def vault(server: Server, monkeypatch: pytest.MonkeyPatch) -> VaultKms:
    monkeypatch.setattr(bounded_http, "MAX_SECONDS", 60.0)
    monkeypatch.setattr(bounded_http, "MAX_ANSWER", 100_000)
    monkeypatch.setenv("MODCRYPT_KMS_PATIENCE", "0")
    return open_vault(f"hcvault://127.0.0.1:{server.port}/transit?tls=off", token=TOKEN)


def check_refused(vault: VaultKms, kind: type[Exception]) -> None:
    for call in (
        lambda: vault.unwrap(WRAPPED, "key"),
        lambda: vault.wrap(KEY, "key"),
        lambda: vault.list_keys(),
    ):
        with pytest.raises(KeyRetrievalError) as caught:
            call()
        assert type(caught.value) is kind
        for secret in (TOKEN.encode(), KEY):
            assert find_secrets(caught.value, secret) == []


@pytest.mark.parametrize("name", SLOW)
def test_a_slow_answer_ends_in_time(
    vault: VaultKms, server: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_http, "MAX_SECONDS", 0.1)
    server.answer = SLOW[name]
    check_refused(vault, KmsUnavailableError)


@pytest.mark.parametrize("name", LONG)
def test_an_endless_answer_ends_at_its_limit(vault: VaultKms, server: Server, name: str) -> None:
    server.answer = LONG[name]
    check_refused(vault, KeyRetrievalError)
    assert len(server.requests) == 3  # what is too long once is not asked for again


class Credential:
    """A token of Azure's that nobody checks."""

    def get_token(self, *_: str, **__: Any) -> AccessToken:
        return AccessToken(TOKEN, 2**33)


@pytest.fixture
def azure(vault: VaultKms, server: Server, monkeypatch: pytest.MonkeyPatch) -> AzureKms:
    """Return a client of a vault whose requests, otherwise as ever, go to the server."""

    def send(self: HTTPAdapter, request: Any, **options: Any) -> Any:
        request.url = f"http://127.0.0.1:{server.port}/"
        return bounded_send(self, request, **options)

    bounded_send = HTTPAdapter.send
    monkeypatch.setattr(HTTPAdapter, "send", send)
    monkeypatch.setattr("modcrypt.kms.services.azure.DefaultAzureCredential", Credential)
    return open_azure("azure-kms://lake.vault.azure.net")


@each_case("name", [*SLOW, *LONG])
def test_an_answer_of_azure_ends_in_time_and_at_its_limit(
    azure: AzureKms, server: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_http, "MAX_SECONDS", 60.0 if name in LONG else 0.1)
    wrapped = json.dumps({"masterKeyVersion": "1" * 32, "encryptedKey": "AAAA"})
    server.answer = {**SLOW, **LONG}[name]
    for call in (
        lambda: azure.wrap(KEY, "key"),
        lambda: azure.unwrap(wrapped, "key"),
        lambda: azure.is_current(wrapped, "key"),
    ):
        with pytest.raises(KeyRetrievalError) as caught:
            call()
        assert type(caught.value) is (KmsUnavailableError if name in SLOW else KeyRetrievalError)
        for secret in (TOKEN.encode(), KEY):
            assert find_secrets(caught.value, secret) == []


@pytest.mark.parametrize("coding", ["gzip", "deflate", "GZIP", "gzip, gzip"])
def test_a_compressed_answer_is_not_unpacked(vault: VaultKms, server: Server, coding: str) -> None:
    server.answer = whole(gzip.compress(b" " * (2 << 20)), f"Content-Encoding: {coding}")
    check_refused(vault, KeyRetrievalError)
    assert all(b"Accept-Encoding: identity" in request for request in server.requests)


@pytest.mark.parametrize("answer", [
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nabc",
    b'HTTP/1.1 400 Bad\r\nContent-Length: 12\r\n\r\n{"errors":1}',
    b'HTTP/1.1 400 Bad\r\nContent-Length: 28\r\n\r\n{"data":{"batch_results":5}}',
])  # fmt: skip
def test_a_malformed_answer_is_refused(vault: VaultKms, server: Server, answer: bytes) -> None:
    server.answer = lambda peer: peer.sendall(answer)
    with pytest.raises(KeyRetrievalError):
        vault.list_keys()


@pytest.mark.parametrize("body", [
    b"[" * 90_000, b'{"data":' + b"9" * 10_000 + b"}", b"<html>", b"[1]", b"", b"\xff",
    b'{"data":{"plaintext":5,"ciphertext":5,"keys":5}}',
])  # fmt: skip
def test_an_answer_that_is_not_vaults_is_refused(
    vault: VaultKms, server: Server, body: bytes
) -> None:
    server.answer = whole(body)
    for call in (lambda: vault.unwrap(WRAPPED, "key"), lambda: vault.wrap(KEY, "key")):
        with pytest.raises(KeyRetrievalError, match="not a transit engine"):
            call()


def description(**members: Any) -> bytes:
    key = {"latest_version": 3, "min_decryption_version": 1, "soft_deleted": False, **members}
    return json.dumps({"data": key}).encode()


ADMINISTRATION: dict[str, Callable[[VaultKms], object]] = {
    "list": lambda vault: vault.list_keys(),
    "create": lambda vault: vault.create_key("key"),
    "rotate": lambda vault: vault.rotate_key("key"),
    "disable": lambda vault: vault.disable_key("key"),
    "disable version": lambda vault: vault.disable_key("key", 2),
    "destroy": lambda vault: vault.destroy_key("key"),
    "is_current": lambda vault: vault.is_current(WRAPPED, "key"),
}


@each_case("call", ADMINISTRATION)
@each_case("body", [b"", b"<html>", b"null", b"[1]", b"{}", b'{"data":5}'])
def test_a_200_answer_that_is_not_vaults_administers_nothing(
    vault: VaultKms, server: Server, body: bytes, call: str
) -> None:
    server.answer = whole(body)
    with pytest.raises(KeyRetrievalError, match="not a transit engine") as caught:
        ADMINISTRATION[call](vault)
    assert type(caught.value) is KeyRetrievalError
    assert len(server.requests) == 1


@each_case("body", [
    b'{"data":{}}', b'{"data":null}', b'{"data":{"keys":null}}', b'{"data":{"keys":{"key":1}}}',
    b'{"data":{"keys":[1]}}', b'{"data":{"keys":[null,"key"]}}', b'{"data":{"keys":["../key"]}}',
    b'{"data":{"keys":["key"]}}',  # of each key, it is asked for more
])  # fmt: skip
def test_a_list_of_keys_is_one(vault: VaultKms, server: Server, body: bytes) -> None:
    server.answer = whole(body)
    with pytest.raises(KeyRetrievalError, match="not a transit engine"):
        vault.list_keys()


def test_an_engine_without_keys_has_an_empty_list(vault: VaultKms, server: Server) -> None:
    answer = b'HTTP/1.1 404 Not Found\r\nContent-Length: 13\r\n\r\n{"errors":[]}'
    server.answer = lambda peer: peer.sendall(answer)
    assert vault.list_keys() == []


@each_case("members", [
    {"latest_version": None}, {"latest_version": True}, {"latest_version": 0},
    {"latest_version": 2**31}, {"latest_version": 1e3}, {"min_decryption_version": -1},
    {"min_decryption_version": "1"}, {"min_decryption_version": 2**31},
])  # fmt: skip
@each_case("call", ["create", "rotate", "disable", "disable version", "is_current"])
def test_versions_of_a_key_are_numbers_that_it_can_have(
    vault: VaultKms, server: Server, members: dict[str, Any], call: str
) -> None:
    server.answer = whole(description(**members))
    with pytest.raises(KeyRetrievalError, match="not a transit engine"):
        ADMINISTRATION[call](vault)


@pytest.mark.parametrize(
    "made", [True, 2**63, -(2**63), 10**400, "yesterday", {}], ids=lambda made: repr(made)[:9]
)
def test_a_time_that_is_none_is_not_shown(vault: VaultKms, server: Server, made: object) -> None:
    server.answer = whole(description(keys={"3": made}))
    assert vault.rotate_key("key").created is None


@pytest.mark.parametrize("text", [
    "", "vault:v1:AAAA\nBBBB", "vault:v1:", "vault:v0:AAAA", "plain", "vault:v1:" + "A" * 20_000,
    "vault:v1:\u0661AAA",
])  # fmt: skip
def test_what_wrap_returns_is_checked_as_what_unwrap_takes(
    vault: VaultKms, server: Server, text: str
) -> None:
    results = [{"ciphertext": WRAPPED}, {"ciphertext": text}]
    server.answer = whole(
        json.dumps({"data": {"ciphertext": text, "batch_results": results}}).encode()
    )
    with pytest.raises(KeyMaterialError):
        vault.unwrap(text, "key")
    for call in (
        lambda: vault.wrap(KEY, "key"),
        lambda: vault.wrap_many([KEY, KEY], "key"),
        lambda: vault.rewrap(WRAPPED, "key"),
    ):
        with pytest.raises(KeyRetrievalError, match="not a transit engine"):
            call()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_takes_the_token_nowhere(vault: VaultKms, server: Server, status: int) -> None:
    elsewhere = Server()
    answer = f"HTTP/1.1 {status} Moved\r\nConnection: close\r\nLocation: http://127.0.0.1:{elsewhere.port}/\r\n"
    server.answer = lambda peer: peer.sendall(f"{answer}Content-Length: 0\r\n\r\n".encode())
    check_refused(vault, KeyRetrievalError)
    assert elsewhere.requests == []
    elsewhere.close()


def test_a_service_that_takes_long_to_fail_is_not_asked_so_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(pacing, "monotonic", lambda: now[0])
    monkeypatch.setattr(pacing, "FIRST_WAIT", 0.0)
    monkeypatch.setenv("MODCRYPT_KMS_PATIENCE", "20")

    class Slow:
        def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> Any:
            now[0] += 10
            raise KmsUnavailableError("away")

        unwrap: Any = wrap

    with pytest.raises(KmsUnavailableError):
        kms.wrap(Slow(), KEY, "key")
    assert now == [20.0]

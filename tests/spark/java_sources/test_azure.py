"""Azure Key Vault in Java: the stub that Azure's Python client talks to, and token services."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("azure.keyvault.keys")

from modcrypt.kms.services.azure import AzureKms, open_azure
from tests.support.kms.azure_stub import HOST, V1, V2, VaultStub, azure, client_of, rsa_keys, vault
from tests.support.kms.json_server import JsonRequest, JsonServer
from tests.support.kms.key_servers import leaks
from tests.support.spark.java_client import KEYS, JavaError, JavaService

__all__ = ["azure", "rsa_keys", "vault"]  # fixtures

URI = f"azure-kms://{HOST}"
TOKEN, SECRET = "eyJ.hunter2", "Q~hunter3"
ENVIRONMENT = {
    "AZURE_TENANT_ID": "0a-tenant",
    "AZURE_CLIENT_ID": "client",
    "AZURE_CLIENT_SECRET": SECRET,
}
TOKEN_ANSWER = (200, {"access_token": TOKEN, "expires_in": 3599})


def respond(stub: VaultStub, request: JsonRequest) -> tuple[int, Any]:
    """Answer as a vault does after its challenge, or as a token service."""
    path, _, query = request.path.partition("?")
    if not path.startswith("/keys/"):
        return TOKEN_ANSWER
    assert query == "api-version=7.4"
    stub.calls.append((request.method, path))
    if stub.refuse is not None:
        status, body = stub.refuse[:2]
        return status, body
    return stub.respond(request.method, path, request.body)


@pytest.fixture
def clouds(json_service: JsonServer, vault: VaultStub) -> JsonServer:
    """Return a server of both the vault and the token services."""
    json_service.answer = lambda request: respond(vault, request)
    return json_service


Opener = Callable[..., JavaService]


@pytest.fixture
def open_java(jvm: Any, clouds: JsonServer) -> Opener:
    """Return a function that opens the vault in Java."""

    def start(uri: str = URI, aad: bytes = b"", **environment: str) -> JavaService:
        found = {
            "AZURE_AUTHORITY_HOST": clouds.address,
            "AZURE_POD_IDENTITY_AUTHORITY_HOST": clouds.address,
            **(environment or ENVIRONMENT),
        }
        return JavaService(jvm, "AzureKms", uri, aad, found, clouds.address)

    return start


# --- both ways -----------------------------------------------------------------------------------


def test_java_and_python_unwrap_each_others_keys(
    open_java: Opener, vault: VaultStub, azure: AzureKms
) -> None:
    java = open_java(f"{URI}/keys/a")
    for master in ("a", "b"):
        for key in KEYS:
            wrapped = java.wrap(key, master)
            assert azure.unwrap(wrapped, master) == key
            theirs = azure.wrap(key, master)
            assert java.unwrap(theirs, master) == key
            assert wrapped[:60] == theirs[:60]  # format and version
    posts = [path for method, path in vault.calls if method == "POST"]
    assert posts[:4] == ["/keys/a//wrapkey", f"/keys/a/{V2}/unwrapkey"] * 2
    old = json.dumps({"masterKeyVersion": V1, "encryptedKey": json.loads(wrapped)["encryptedKey"]})
    with pytest.raises(JavaError, match="400 BadParameter: the wrapped key does not unwrap"):
        java.unwrap(old, "a")


def test_aes_keys_of_a_managed_hsm_wrap_as_well(jvm: Any, json_service: JsonServer) -> None:
    stub = VaultStub("lake.managedhsm.azure.net", {"k": {V1: bytes(range(32))}})
    json_service.answer = lambda request: respond(stub, request)
    uri = f"azure-kms://{stub.host}?algorithm=A256KW"
    environment = {**ENVIRONMENT, "AZURE_AUTHORITY_HOST": json_service.address}
    java = JavaService(jvm, "AzureKms", uri, b"", environment, json_service.address)
    python = open_azure(uri, client=client_of(stub))
    for key in KEYS:
        assert python.unwrap(java.wrap(key, "k"), "k") == key
        assert java.unwrap(python.wrap(key, "k"), "k") == key
    scope = urllib.parse.parse_qs(json_service.requests[0].body.decode())["scope"]
    assert scope == ["https://managedhsm.azure.net/.default"]


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code", "inner", "match"),
    [
        (401, "Unauthorized", None, "KeyAccessDenied.*does not accept the credentials"),
        (403, "Forbidden", "ForbiddenByPolicy", "KeyAccessDenied.*do not permit the use"),
        (403, "Forbidden", "KeyDisabled", "KeyAccessDenied.*is disabled, expired or not yet"),
        (404, "KeyNotFound", None, "ParquetCrypto.*404 KeyNotFound: the key, or that version"),
        (429, "Throttled", None, "UnavailableException.*answered 429 Throttled"),
        (503, f"{TOKEN} x", None, "UnavailableException.*answered 503$"),
        (400, "BadParameter", SECRET, "ParquetCrypto.*check that the key's type fits"),
        (302, "x", None, "not that of vault lake.vault.azure.net for this key"),
    ],
)
def test_azure_refuses_and_java_says_why(
    open_java: Opener, clouds: JsonServer, vault: VaultStub, status: int, code: str,
    inner: str | None, match: str,
) -> None:  # fmt: skip
    error = {"code": code, "message": f"{TOKEN} {SECRET}", "innererror": {"code": inner}}
    vault.refuse = (status, {"error": error})
    with pytest.raises(JavaError, match=match) as caught:
        open_java().wrap(KEYS[0], "a")
    assert leaks(str(caught.value), TOKEN.encode(), SECRET.encode()) == []
    assert not any(request.path == "/elsewhere" for request in clouds.requests)


KID = f"https://{HOST}/keys/a/{V2}"


@pytest.mark.parametrize(
    "answer",
    [
        [], {}, {"kid": KID}, {"kid": KID, "value": "!"}, {"kid": KID, "value": ""},
        {"kid": KID.replace("/a/", "/b/"), "value": "AAAA"},
        {"kid": KID.replace("lake", "evil"), "value": "AAAA"},
        {"kid": f"https://{HOST}/keys/a/../b/{V2}", "value": "AAAA"},
        {"kid": KID.replace(V2, V1), "value": "AAAA"},
        {"kid": KID, "value": "A" * 20_000},
    ],
)  # fmt: skip
def test_a_foreign_answer_unwraps_nothing(open_java: Opener, vault: VaultStub, answer: Any) -> None:
    java = open_java()
    wrapped = java.wrap(KEYS[0], "a")
    vault.refuse = (200, answer)
    match = "is not that of vault lake.vault.azure.net for this key"
    if isinstance(answer, list) or answer.get("kid") != KID or len(answer) < 2:
        with pytest.raises(JavaError, match=match):
            java.unwrap(wrapped, "a")
    if V1 not in str(answer):
        with pytest.raises(JavaError, match=match):
            java.wrap(KEYS[0], "a")


def test_an_oversized_answer_is_refused(open_java: Opener, vault: VaultStub) -> None:
    vault.refuse = (200, b"x" * ((1 << 20) + 1))
    with pytest.raises(JavaError, match="is longer than 1048576 bytes"):
        open_java().wrap(KEYS[0], "a")


@pytest.mark.parametrize("master", ["../x", "", "a/b", "a?x", "a b", "x" * 128, "a\n", "ä", KID])
def test_a_forged_id_leads_to_no_request(
    open_java: Opener, clouds: JsonServer, master: str
) -> None:
    java = open_java()
    wrapped = json.dumps({"masterKeyVersion": V1, "encryptedKey": "AAAA"})
    for ask in (lambda: java.wrap(KEYS[0], master), lambda: java.unwrap(wrapped, master)):
        with pytest.raises(JavaError, match="consist of letters, digits and -"):
            ask()
    for version in ("../../b/" + V1, "", V1 + "\n", "NO_VERSION"):
        forged = json.dumps({"masterKeyVersion": version, "encryptedKey": "AAAA"})
        with pytest.raises(JavaError, match="the wrapped key for Azure Key Vault is not"):
            java.unwrap(forged, "a")
    assert clouds.requests == []


@pytest.mark.parametrize(
    "uri",
    ["azure-kms://evil.example", "azure-kms://lake.vault.azure.net.evil.example", f"{URI}/keys/",
     f"{URI}:8443", f"{URI}/keys/a/b", f"{URI}#a", f"{URI}?algorithm=RSA1_5", f"{URI}?key=hunter2",
     "azure-kms://u@lake.vault.azure.net"],
)  # fmt: skip
def test_an_invalid_uri_is_refused(open_java: Opener, uri: str) -> None:
    with pytest.raises(JavaError) as caught:
        open_java(uri)
    assert "hunter2" not in str(caught.value)


def test_aad_is_refused(open_java: Opener) -> None:
    with pytest.raises(JavaError, match="Azure Key Vault does not support AAD; remove kms_aad"):
        open_java(aad=b"lake")


# --- credentials ---------------------------------------------------------------------------------


def form_of(request: JsonRequest) -> dict[str, str]:
    return dict(urllib.parse.parse_qsl(request.body.decode(), strict_parsing=True))


def test_a_client_secret_gets_one_token_for_many_keys(
    open_java: Opener, clouds: JsonServer
) -> None:
    java = open_java()
    java.wrap(KEYS[0], "a")
    java.wrap(KEYS[0], "b")
    asked, *others = clouds.requests
    assert (asked.method, asked.path) == ("POST", "/0a-tenant/oauth2/v2.0/token")
    assert form_of(asked) == {
        "grant_type": "client_credentials", "client_id": "client", "client_secret": SECRET,
        "scope": "https://vault.azure.net/.default",
    }  # fmt: skip
    assert [request.headers["authorization"] for request in others] == [f"Bearer {TOKEN}"] * 2


def test_a_workload_identity_gets_a_token_by_its_file(
    open_java: Opener, clouds: JsonServer, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("eyJ.assertion\n")
    environment = {
        **ENVIRONMENT,
        "AZURE_CLIENT_SECRET": "",
        "AZURE_FEDERATED_TOKEN_FILE": str(file),
    }
    open_java(**environment).wrap(KEYS[0], "a")
    form = form_of(clouds.requests[0])
    assert form["client_assertion"] == "eyJ.assertion"
    assert form["client_assertion_type"].endswith(":client-assertion-type:jwt-bearer")
    for content in ("", "two words"):
        file.write_text(content)
        with pytest.raises(JavaError, match=r"KeyAccessDenied.*contains no token"):
            open_java(**environment).wrap(KEYS[0], "a")


@pytest.mark.parametrize("client", ["", "c/1"])
def test_a_managed_identity_gets_a_token_from_the_metadata_service(
    open_java: Opener, clouds: JsonServer, client: str
) -> None:
    open_java(AZURE_CLIENT_ID=client).wrap(KEYS[0], "a")
    asked = clouds.requests[0]
    path, _, query = asked.path.partition("?")
    assert (asked.method, path) == ("GET", "/metadata/identity/oauth2/token")
    assert asked.headers["metadata"] == "true"
    found = dict(urllib.parse.parse_qsl(query, strict_parsing=True))
    named = {"client_id": client} if client else {}
    assert found == {"api-version": "2018-02-01", "resource": "https://vault.azure.net", **named}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"AZURE_TENANT_ID": "../x"}, "AZURE_TENANT_ID is not the id or domain of a tenant"),
        ({"AZURE_AUTHORITY_HOST": "http://login.example"}, "AZURE_AUTHORITY_HOST must be https"),
        ({"AZURE_CLIENT_ID": "", "AZURE_POD_IDENTITY_AUTHORITY_HOST": "http://192.0.2.1"},
         "AZURE_POD_IDENTITY_AUTHORITY_HOST must be https"),
    ],
)  # fmt: skip
def test_addresses_and_tenants_are_checked(
    open_java: Opener, clouds: JsonServer, change: dict[str, str], match: str
) -> None:
    with pytest.raises(JavaError, match=match):
        open_java(**{**ENVIRONMENT, **change}).wrap(KEYS[0], "a")
    assert clouds.requests == []


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        ((401, {"error": "invalid_client", "error_description": SECRET}), "KeyAccessDenied"),
        ((400, {}), "KeyAccessDenied"),
        ((200, {"access_token": "a\r\nb", "expires_in": "9"}), "KeyAccessDenied"),
        ((302, {}), "KeyAccessDenied"),
        ((503, {}), "UnavailableException"),
        ((200, b"x" * ((1 << 20) + 1)), "is longer than 1048576 bytes"),
    ],
)
def test_a_service_that_gives_no_token_is_no_access(
    open_java: Opener, clouds: JsonServer, answer: tuple[int, Any], match: str
) -> None:
    clouds.answer = lambda request: answer
    for environment in (ENVIRONMENT, {"AZURE_CLIENT_ID": ""}):
        with pytest.raises(JavaError, match=match) as caught:
            open_java(**environment).wrap(KEYS[0], "a")
        assert leaks(str(caught.value), SECRET.encode()) == []

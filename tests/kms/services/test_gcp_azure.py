"""Google Cloud KMS and Azure Key Vault: their real clients, and STUBS of the services.

No emulator of either is known, so what is tested is what these stubs do: they really encrypt, so
that a wrong AAD, version or key fails, and answer as the services' documentation has it. How the
services themselves behave is not shown here.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import os
import pickle
import re
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cryptography.hazmat.primitives.keywrap import aes_key_unwrap

from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyDisabledError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
)
from modcrypt.kms import calls as kms
from modcrypt.kms.client import Capabilities, capabilities_of
from modcrypt.kms.references import open_kms
from tests.support.cases import each_case
from tests.support.kms.azure_stub import (
    HOST,
    OAEP,
    V1,
    V2,
    VaultStub,
    azure,
    b64url,
    client_of,
    rsa_keys,
    vault,
)
from tests.support.kms.google_stub import RING, GoogleStub, gcp, google, google_client
from tests.support.sleeps import note_sleeps

grpc = pytest.importorskip("grpc")
kms_v1 = pytest.importorskip("google.cloud.kms_v1")
requests = pytest.importorskip("requests")

# E402: these rooms and stubs need the packages above, which a machine may lack.
import urllib3  # noqa: E402
from azure.core.rest import HttpRequest  # noqa: E402
from google.auth import exceptions as auth_errors  # noqa: E402
from google.auth.credentials import AnonymousCredentials  # noqa: E402

from modcrypt.kms.services import gcp as gcp_module  # noqa: E402
from modcrypt.kms.services.azure import AzureKms, open_azure  # noqa: E402
from modcrypt.kms.services.gcp import GcpKms, crc32c, open_gcp  # noqa: E402

__all__ = ["azure", "gcp", "google", "google_client", "rsa_keys", "vault"]  # fixtures

KEY = bytes(range(0xA0, 0xB0))
SPELLINGS = (KEY.hex(), repr(KEY)[2:-1], base64.b64encode(KEY).decode(),
             base64.urlsafe_b64encode(KEY).decode().rstrip("="))  # fmt: skip

UNTRUSTED = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"  # the text of OpenSSL


def assert_hidden(*shown: object) -> None:
    text = "".join(map(str, shown))
    assert not [spelling for spelling in SPELLINGS if spelling in text]


# --- Google Cloud KMS: a stub of the service -----------------------------------------------------


def test_crc32c_gives_the_published_check_values() -> None:
    assert crc32c(b"") == 0
    assert crc32c(b"123456789") == 0xE3069283
    # RFC 3720, B.4
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E


@pytest.mark.parametrize("aad", [b"", b"table/part-1"])
def test_google_stub_wraps_and_unwraps_by_short_and_full_name(
    gcp: GcpKms, google: GoogleStub, aad: bytes
) -> None:
    full = f"{RING}/cryptoKeys/a"
    assert gcp.default_key == full
    for size in (16, 24, 32):
        key = os.urandom(size)
        wrapped = kms.wrap(gcp, key, full, aad)
        data = base64.b64decode(wrapped, validate=True)
        assert google.keys[full].decrypt(data[:12], data[12:], aad) == key
        assert kms.unwrap(gcp, wrapped, "a", aad) == key
    assert {request.name for request in google.calls} == {full}


def test_google_stub_refuses_other_aad_other_keys_and_altered_bytes(gcp: GcpKms) -> None:
    wrapped = gcp.wrap(KEY, "a", aad=b"right")
    data = base64.b64decode(wrapped)
    altered = base64.b64encode(data[:-1] + bytes([data[-1] ^ 1])).decode()
    for text, name, aad in (
        (wrapped, "a", b"wrong"),
        (wrapped, "a", b""),
        (wrapped, "b", b"right"),
        (altered, "a", b"right"),
    ):
        with pytest.raises(KeyMaterialError, match="does not unwrap under master key"):
            gcp.unwrap(text, name, aad=aad)
    assert gcp.unwrap(wrapped, "a", aad=b"right") == KEY


@pytest.mark.parametrize("text", ["", "=", "not base64!", "A" * 20000, "QUJD\n", "é"])
def test_what_is_no_base64_never_reaches_the_google_stub(
    gcp: GcpKms, google: GoogleStub, text: str
) -> None:
    with pytest.raises(KeyMaterialError, match="is not base64"):
        gcp.unwrap(text, "a")
    assert not google.calls


@each_case(
    "name",
    [
        "projects/evil/locations/europe-west3/keyRings/lake/cryptoKeys/a",
        f"{RING}2/cryptoKeys/a",
        f"{RING}/cryptoKeys/../a",
        f"{RING}/cryptoKeys/a/cryptoKeyVersions/1",
        f"{RING}/cryptoKeys/",
        f"https://evil.example/v1/{RING}/cryptoKeys/a",
        "a/b",
        "a\n",
        "é",
        "",
    ],
)
def test_keys_outside_of_the_ring_are_refused_before_the_google_stub_is_called(
    gcp: GcpKms, google: GoogleStub, name: str
) -> None:
    wrapped = base64.b64encode(bytes(44)).decode()
    with pytest.raises(KeyNotFoundError, match=f"not in key ring {RING}"):
        gcp.unwrap(wrapped, name)
    with pytest.raises(KeyNotFoundError):
        gcp.wrap(KEY, name)
    assert not google.calls


STATUSES = [
    ("NOT_FOUND", KeyNotFoundError),
    ("PERMISSION_DENIED", KeyAccessDeniedError),
    ("UNAUTHENTICATED", KeyAccessDeniedError),
    ("FAILED_PRECONDITION", KeyDisabledError),
    ("UNAVAILABLE", KmsUnavailableError),
    ("DEADLINE_EXCEEDED", KmsUnavailableError),
    ("RESOURCE_EXHAUSTED", KmsUnavailableError),
    ("INTERNAL", KmsUnavailableError),
    ("ABORTED", KmsUnavailableError),
    ("INVALID_ARGUMENT", KeyRetrievalError),
    ("OUT_OF_RANGE", KeyRetrievalError),
]


@each_case(("status", "error"), STATUSES)
def test_each_status_of_the_google_stub_has_its_error(
    gcp: GcpKms, google: GoogleStub, status: str, error: type[KeyRetrievalError]
) -> None:
    wrapped = gcp.wrap(KEY, "a")
    google.refuse = (grpc.StatusCode[status], "because")
    google.calls.clear()
    with pytest.raises(error) as caught:
        gcp.wrap(KEY, "a")
    assert type(caught.value) is error
    assert_hidden(*traceback.format_exception(caught.value))
    with pytest.raises(KeyMaterialError if status == "INVALID_ARGUMENT" else error):
        gcp.unwrap(wrapped, "a")
    assert len(google.calls) == 2  # Google's client retries nothing besides


def test_a_certificate_that_the_google_client_does_not_trust_is_no_outage(
    gcp: GcpKms, google: GoogleStub
) -> None:
    google.refuse = (grpc.StatusCode.UNAVAILABLE, UNTRUSTED)
    with pytest.raises(KeyRetrievalError, match="SSL_ROOTS_FILE") as caught:
        gcp.wrap(KEY, "a")
    assert type(caught.value) is KeyRetrievalError


def test_the_text_of_a_google_stub_that_repeats_the_key_is_not_chained(
    gcp: GcpKms, google: GoogleStub
) -> None:
    echo = f"Invalid value at 'plaintext': {base64.b64encode(KEY).decode()}"
    google.refuse = (grpc.StatusCode.INVALID_ARGUMENT, echo)
    with pytest.raises(KeyRetrievalError) as caught:
        gcp.wrap(KEY, "a")
    assert_hidden(*traceback.format_exception(caught.value))


def damage_ciphertext(answer: Any) -> None:
    if "ciphertext" in answer:
        answer.ciphertext = answer.ciphertext[:-1] + b"\0\0"


def damage_plaintext(answer: Any) -> None:
    if "plaintext" in answer:
        answer.plaintext = bytes(16)


def deny_plaintext_check(answer: Any) -> None:
    if "ciphertext" in answer:
        answer.verified_plaintext_crc32c = False


def deny_aad_check(answer: Any) -> None:
    if "ciphertext" in answer:
        answer.verified_additional_authenticated_data_crc32c = False


@pytest.mark.parametrize(
    ("damage", "wraps"),
    [
        (damage_ciphertext, False),
        (deny_plaintext_check, False),
        (deny_aad_check, False),
        (damage_plaintext, True),
    ],
)
def test_what_the_google_stub_damages_is_noticed_and_asked_for_again(
    gcp: GcpKms,
    google: GoogleStub,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[Any], None],
    wraps: bool,
) -> None:
    wrapped = gcp.wrap(KEY, "a", aad=b"x")
    google.alter = damage
    with pytest.raises(KmsUnavailableError, match="checksum"):
        gcp.unwrap(wrapped, "a", aad=b"x") if wraps else gcp.wrap(KEY, "a", aad=b"x")

    def once(answer: Any) -> None:
        google.alter = lambda answer: None
        damage(answer)

    google.alter = once
    note_sleeps(monkeypatch)
    again = kms.wrap(gcp, KEY, "a", b"x")
    assert kms.unwrap(gcp, again, "a", b"x") == KEY


def test_a_google_stub_that_is_not_there_is_unavailable() -> None:
    from google.cloud.kms_v1.services.key_management_service.transports import (
        KeyManagementServiceGrpcTransport,
    )

    with grpc.insecure_channel("127.0.0.1:1") as channel:
        transport = KeyManagementServiceGrpcTransport(channel=channel)
        client = kms_v1.KeyManagementServiceClient(transport=transport)
        with pytest.raises(KmsUnavailableError):
            open_gcp(f"gcp-kms://{RING}", client=client).wrap(KEY, "a")


def test_an_error_of_googles_login_is_not_chained(
    gcp: GcpKms, google_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds the request for a token, which holds what the token is given for."""

    def fail(**_: Any) -> None:
        request = requests.Request("POST", "https://login.example", data=KEY).prepare()
        cause = requests.ConnectionError("away", request=request)
        raise auth_errors.TransportError(cause) from cause  # type: ignore[no-untyped-call]

    monkeypatch.setattr(google_client, "encrypt", fail)
    monkeypatch.setattr(google_client, "decrypt", fail)
    for action in (lambda: gcp.wrap(KEY, "a"), lambda: gcp.unwrap("QUJD", "a")):
        with pytest.raises(KmsUnavailableError) as caught:
            action()
        assert caught.value.__cause__ is caught.value.__context__ is None


@pytest.mark.parametrize("size", [3 << 20, 5 << 20])
def test_an_answer_of_the_google_stub_has_a_limit(
    google: GoogleStub, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    anonymous = AnonymousCredentials()  # type: ignore[no-untyped-call]

    def open_insecure(*_: Any, options: Any, **__: Any) -> Any:
        return grpc.insecure_channel(google.address, options=options)

    def lengthen(answer: Any) -> None:
        answer.ciphertext = bytes(size)
        answer.ciphertext_crc32c = crc32c(answer.ciphertext)

    monkeypatch.setattr("google.auth.default", lambda **_: (anonymous, "p"))
    monkeypatch.setattr("google.api_core.grpc_helpers.create_channel", open_insecure)
    google.alter = lengthen
    client = open_gcp(f"gcp-kms://{RING}")
    if size < gcp_module.MAX_ANSWER:
        assert len(client.wrap(KEY, "a")) > size  # which `kms.calls` refuses
    else:
        with pytest.raises(KeyRetrievalError, match="answered ResourceExhausted"):
            client.wrap(KEY, "a")


def test_aad_that_google_does_not_take_is_a_value_error(gcp: GcpKms, google: GoogleStub) -> None:
    with pytest.raises(ValueError, match="up to 65536 bytes"):
        gcp.wrap(KEY, "a", aad=bytes(65537))
    assert not google.calls


@each_case(
    "uri",
    [
        "gcp-kms://",
        "gcp-kms://projects/p/locations/l",
        f"gcp-kms://{RING}/",
        f"gcp-kms://{RING}/cryptoKeys/",
        f"gcp-kms://{RING}/cryptoKeys/a/cryptoKeyVersions/1",
        f"gcp-kms://{RING}/cryptoKeys/a b",
        f"gcp-kms://evil.example/{RING}",
        f"gcp-kms://{RING}#a",
        f"gcp-kms://{RING}?endpoint=evil.example",
    ],
)
def test_a_uri_that_names_no_key_ring_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match=r"URI of a key ring is|NAME=VALUE"):
        open_gcp(uri)


def test_without_google_credentials_access_is_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/credentials.json")
    with pytest.raises(KeyAccessDeniedError, match="no default credentials"):
        open_kms(f"gcp-kms://{RING}")


class Kept(logging.Handler):
    """Keeps all that a record holds: Google's client puts requests beside the message."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.shown: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.shown.append(record.getMessage() + repr(vars(record)))


@pytest.fixture
def google_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    kept, logger = Kept(), logging.getLogger("google")
    monkeypatch.setattr(logger, "level", logging.DEBUG)
    monkeypatch.setattr(logger, "handlers", [kept])
    logger.manager._clear_cache()  # type: ignore[attr-defined]  # what setLevel does, and undoes it
    yield kept
    monkeypatch.undo()
    logger.manager._clear_cache()  # type: ignore[attr-defined]


def test_googles_client_logs_no_key_at_debug(
    google_client: Any, google: GoogleStub, google_log: Kept
) -> None:
    """It logs requests and answers as they are, which the first half shows."""
    transport = logging.getLogger(
        "google.cloud.kms_v1.services.key_management_service.transports.grpc"
    )
    filters, transport.filters = transport.filters, []
    google_client.encrypt(name=f"{RING}/cryptoKeys/a", plaintext=KEY)
    transport.filters = filters
    assert any(spelling in "".join(google_log.shown) for spelling in SPELLINGS)
    google_log.shown.clear()

    client = open_gcp(f"gcp-kms://{RING}", client=google_client)
    assert client.unwrap(client.wrap(KEY, "a", aad=b"x"), "a", aad=b"x") == KEY
    assert_hidden(*google_log.shown)
    open_gcp(f"gcp-kms://{RING}", client=google_client)
    assert len(transport.filters) == 1
    transport.debug("something else is logged as before")
    assert "as before" in google_log.shown[-1]


def test_the_google_client_shows_nothing_and_stays_in_its_process(gcp: GcpKms) -> None:
    assert repr(gcp) == f"GcpKms({RING})"
    with pytest.raises(TypeError, match="can't be pickled"):
        pickle.dumps(gcp)
    assert capabilities_of(gcp) == Capabilities(aad=True)


# --- Azure Key Vault: a stub of the service ------------------------------------------------------


@pytest.fixture
def hsm() -> VaultStub:
    return VaultStub("lake.managedhsm.azure.net", {"a": {V1: os.urandom(32)}})


def members(wrapped: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(wrapped)
    assert list(found) == ["masterKeyVersion", "encryptedKey"]
    return found


def test_azure_stub_wraps_by_rsa_and_unwraps_under_the_version_that_wrapped(
    azure: AzureKms, vault: VaultStub, rsa_keys: dict[str, dict[str, Any]]
) -> None:
    assert azure.default_key == "a"
    newest = vault.keys["a"].pop(V2)
    old = kms.wrap(azure, KEY, "a")
    vault.keys["a"][V2] = newest  # rotated
    for size, wrapped in ((16, old), (24, ""), (32, "")):
        key = KEY if wrapped else os.urandom(size)
        text = members(wrapped or kms.wrap(azure, key, "a"))
        version = text["masterKeyVersion"]
        assert version == (V1 if wrapped else V2)
        opened = rsa_keys["a"][version].decrypt(base64.b64decode(text["encryptedKey"]), OAEP)
        assert opened == key
        assert kms.unwrap(azure, json.dumps(text), "a") == key
    assert kms.is_current(azure, old, "a") is False
    assert kms.is_current(azure, kms.rewrap(azure, old, "a"), "a") is True


def test_azure_stub_of_a_managed_hsm_wraps_by_aes_key_wrap(hsm: VaultStub) -> None:
    client = open_azure(f"azure-kms://{hsm.host}?algorithm=A256KW", client=client_of(hsm))
    text = members(client.wrap(KEY, "a"))
    assert text["masterKeyVersion"] == V1
    assert aes_key_unwrap(hsm.keys["a"][V1], base64.b64decode(text["encryptedKey"])) == KEY
    assert client.unwrap(json.dumps(text), "a") == KEY
    assert hsm.calls == [("POST", "/keys/a//wrapkey"), ("POST", f"/keys/a/{V1}/unwrapkey")]
    by_rsa = open_azure(f"azure-kms://{hsm.host}", client=client_of(hsm))
    with pytest.raises(KeyRetrievalError, match="check that the key's type fits") as caught:
        by_rsa.wrap(KEY, "a")
    assert_hidden(*traceback.format_exception(caught.value))


def test_azure_stub_refuses_other_keys_and_altered_bytes(azure: AzureKms, vault: VaultStub) -> None:
    wrapped = azure.wrap(KEY, "a")
    data = base64.b64decode(members(wrapped)["encryptedKey"])
    spoilt = base64.b64encode(data[:-1] + bytes([data[-1] ^ 1])).decode()
    altered = json.dumps({"masterKeyVersion": V2, "encryptedKey": spoilt})
    for text, name in ((wrapped, "b"), (altered, "a")):
        with pytest.raises(KeyMaterialError, match="the wrapped key does not unwrap"):
            azure.unwrap(text, name)
    assert azure.unwrap(wrapped, "a") == KEY
    with pytest.raises(KeyNotFoundError, match="or that version of it, does not exist"):
        azure.unwrap(wrapped.replace(V2, "f" * 32), "a")
    with pytest.raises(KeyNotFoundError):
        azure.wrap(KEY, "nowhere")


@each_case(
    "version",
    ["", "NO_VERSION", V2.upper(), V2 + "0", f"{V2}\n", f"../{V2}", f"{V2[:-1]}/", 7, None, ["x"]],
)
def test_a_version_that_is_none_never_goes_into_an_address(
    azure: AzureKms, vault: VaultStub, version: object
) -> None:
    text = json.dumps({"masterKeyVersion": version, "encryptedKey": "QUJD"})
    with pytest.raises(KeyMaterialError, match="32 hex digits"):
        azure.unwrap(text, "a")
    assert not vault.calls


@each_case(
    "text",
    ["", "{}", "7", "[]", "[" * 15000, json.dumps({"masterKeyVersion": V2}),
     json.dumps({"masterKeyVersion": V2, "encryptedKey": "!"}),
     json.dumps({"masterKeyVersion": V2, "encryptedKey": "QUJD" * 5000})],
)  # fmt: skip
def test_what_is_no_wrapped_key_never_reaches_the_azure_stub(
    azure: AzureKms, vault: VaultStub, text: str
) -> None:
    with pytest.raises(KeyMaterialError, match="the wrapped key for Azure Key Vault is not"):
        azure.unwrap(text, "a")
    assert not vault.calls


@each_case(
    "name", ["", "a/b", "../a", "a?b", "a#b", "é", "x" * 128, "a\n", "https://evil.example/keys/a"]
)
def test_a_name_that_is_none_never_goes_into_an_address(
    azure: AzureKms, vault: VaultStub, name: str
) -> None:
    text = json.dumps({"masterKeyVersion": V2, "encryptedKey": "QUJD"})
    with pytest.raises(KeyNotFoundError, match="letters, digits and -"):
        azure.wrap(KEY, name)
    with pytest.raises(KeyNotFoundError):
        azure.unwrap(text, name)
    assert not vault.calls


def test_azure_binds_no_aad_and_says_so(azure: AzureKms, vault: VaultStub) -> None:
    wrapped = azure.wrap(KEY, "a")
    vault.calls.clear()
    assert not capabilities_of(azure).aad
    with pytest.raises(ValueError, match="not support AAD"):
        azure.wrap(KEY, "a", aad=b"x")
    with pytest.raises(ValueError, match="not support AAD"):
        azure.unwrap(wrapped, "a", aad=b"x")
    assert not vault.calls


def refusal(code: str, inner: str | None = None) -> dict[str, Any]:
    more = {"innererror": {"code": inner}} if inner else {}
    return {"error": {"code": code, "message": "because", **more}}


@each_case(
    ("status", "body", "error", "shown"),
    [
        (404, refusal("KeyNotFound"), KeyNotFoundError, "404 KeyNotFound"),
        (401, {}, KeyAccessDeniedError, "credentials"),
        (403, refusal("Forbidden"), KeyAccessDeniedError, "403 Forbidden"),
        (403, refusal("Forbidden", "KeyDisabled"), KeyDisabledError, "Forbidden KeyDisabled"),
        (403, refusal("Forbidden", "KeyExpired"), KeyDisabledError, "expired or not yet valid"),
        (429, refusal("Throttled"), KmsUnavailableError, "429 Throttled"),
        (408, {}, KmsUnavailableError, "408"),
        (500, {}, KmsUnavailableError, "500"),
        (503, {}, KmsUnavailableError, "503"),
        (409, refusal("<b>not a word"), KeyRetrievalError, "409: "),
    ],
)
def test_each_answer_of_the_azure_stub_has_its_error(
    azure: AzureKms,
    vault: VaultStub,
    status: int,
    body: dict[str, Any],
    error: type[KeyRetrievalError],
    shown: str,
) -> None:
    wrapped = azure.wrap(KEY, "a")
    vault.refuse = (status, body)
    vault.calls.clear()
    for action in (
        lambda: azure.wrap(KEY, "a"),
        lambda: azure.unwrap(wrapped, "a"),
        lambda: azure.is_current(wrapped, "a"),
    ):
        with pytest.raises(error, match=re.escape(shown)) as caught:
            action()
        assert type(caught.value) is error
    assert len(vault.calls) <= 5  # Azure's client retries nothing besides; 401 once, anew


def test_a_key_is_not_sent_on_to_where_the_azure_stub_points(hsm: VaultStub) -> None:
    client = open_azure(f"azure-kms://{hsm.host}?algorithm=A256KW", client=client_of(hsm))
    wrapped = client.wrap(KEY, "a")
    hsm.refuse = (307, {}, {"Location": f"https://{hsm.host}/elsewhere"})
    hsm.calls.clear()
    with pytest.raises(KeyRetrievalError, match="does not describe a key"):
        client.wrap(KEY, "a")
    with pytest.raises(KeyRetrievalError, match="does not describe a key"):
        client.unwrap(wrapped, "a")
    assert not [path for _, path in hsm.calls if path == "/elsewhere"]


@pytest.mark.parametrize("kid", ["https://lake.vault.azure.net/keys/a", "a/" + V2.upper(), None])
def test_an_azure_answer_without_the_keys_version_is_an_error(
    azure: AzureKms, vault: VaultStub, kid: str | None
) -> None:
    """What is wrapped must say what unwraps it."""
    vault.refuse = (200, {"kid": kid, "value": "QUJD"})
    with pytest.raises(KeyRetrievalError, match="returned no key version"):
        azure.wrap(KEY, "a")


@pytest.mark.parametrize("body", [{}, {"kid": "x"}, {"kid": "x", "value": 7},
                                  {"kid": "x", "value": "AA=A"}])  # fmt: skip
def test_an_azure_answer_without_a_key_is_an_error(
    azure: AzureKms, vault: VaultStub, body: dict[str, Any]
) -> None:
    wrapped = azure.wrap(KEY, "a")
    vault.refuse = (200, body)
    with pytest.raises(KeyRetrievalError, match="does not describe a key"):
        azure.unwrap(wrapped, "a")


@each_case("body", [
    None, 5, [1], "x", {}, {"key": 5}, {"key": {}}, {"key": {"kid": 5}}, {"key": {"kid": "x"}},
    {"key": {"kid": f"https://{HOST}/keys/a"}}, {"key": {"kid": f"https://{HOST}/keys/a/b"}},
])  # fmt: skip
def test_an_azure_answer_without_the_newest_version_is_an_error(
    azure: AzureKms, vault: VaultStub, body: Any
) -> None:
    """A version that is none would have every file be rotated, again and again."""
    wrapped = azure.wrap(KEY, "a")
    vault.refuse = (200, body)
    with pytest.raises(KeyRetrievalError, match="does not describe a key"):
        azure.is_current(wrapped, "a")


def test_a_vault_that_can_not_be_reached_is_unavailable(
    azure: AzureKms, vault: VaultStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise requests.ConnectionError("no route")

    monkeypatch.setattr(VaultStub, "send", unreachable)
    with pytest.raises(KmsUnavailableError, match="is unavailable: ServiceRe"):
        azure.wrap(KEY, "a")


@each_case("error", [requests.exceptions.SSLError(UNTRUSTED), OSError("no such bundle")])
def test_a_certificate_that_is_not_trusted_is_no_outage(
    azure: AzureKms, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(VaultStub, "send", fail)
    with pytest.raises(KeyRetrievalError, match="REQUESTS_CA_BUNDLE") as caught:
        azure.wrap(KEY, "a")
    assert type(caught.value) is KeyRetrievalError


@each_case(
    "uri",
    [
        "azure-kms://",
        "azure-kms://evil.example",
        "azure-kms://vault.azure.net",
        "azure-kms://lake.vault.azure.net.evil.example",
        "azure-kms://evil.example/lake.vault.azure.net",
        "azure-kms://user@lake.vault.azure.net",
        "azure-kms://lake.vault.azure.net:444",
        "azure-kms://lakevault.azure.net",
        "azure-kms://lake.vaultxazure.net",
        f"azure-kms://{HOST}/secrets/a",
        f"azure-kms://{HOST}/keys/",
        f"azure-kms://{HOST}/keys/a/{V1}",
        f"azure-kms://{HOST}#a",
    ],
)
def test_a_uri_that_names_no_vault_of_azure_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match="the URI of a vault is"):
        open_azure(uri)


def test_other_algorithms_and_another_vaults_client_are_refused(vault: VaultStub) -> None:
    for algorithm in ("RSA1_5", "RSA-OAEP", ""):
        with pytest.raises(ValueError, match="must be RSA-OAEP-256 or A256KW"):
            open_azure(f"azure-kms://{HOST}?algorithm={algorithm}")
    with pytest.raises(ValueError, match=f"the client is for https://{HOST}"):
        open_azure("azure-kms://other.vault.azure.net", client=client_of(vault))


@pytest.mark.parametrize("domain", ["vault.azure.cn", "vault.usgovcloudapi.net"])
def test_opening_a_vault_calls_no_one(domain: str) -> None:
    client = open_kms(f"azure-kms://lake.{domain}/keys/k")
    assert isinstance(client, AzureKms)
    assert (client.default_key, repr(client)) == ("k", f"AzureKms(lake.{domain}, RSA-OAEP-256)")
    with pytest.raises(TypeError, match="can't be pickled"):
        pickle.dumps(client)


def test_azures_client_logs_no_key_at_debug(
    hsm: VaultStub, caplog: pytest.LogCaptureFixture
) -> None:
    """It logs bodies when it was made with logging_enable, which the last lines show."""
    talkative = client_of(hsm, logging_enable=True)
    client = open_azure(f"azure-kms://{hsm.host}?algorithm=A256KW", client=talkative)
    with caplog.at_level(logging.DEBUG):
        assert client.unwrap(client.wrap(KEY, "a"), "a") == KEY
        assert "/wrapkey" in caplog.text
        assert_hidden(caplog.text, *(vars(record) for record in caplog.records), "the-token")
        assert "the-token" not in caplog.text
        caplog.clear()
        asked = {"alg": "A256KW", "value": b64url(KEY)}
        talkative.send_request(HttpRequest("POST", f"/keys/a/{V1}/wrapkey", json=asked))
        assert any(spelling in caplog.text for spelling in SPELLINGS)


def test_an_azure_error_that_repeats_the_key_is_not_chained(
    azure: AzureKms, vault: VaultStub
) -> None:
    """Azure's exceptions show the whole body of an answer that they don't understand."""
    for status in (400, 403, 500):
        vault.refuse = (status, {"you sent": b64url(KEY)})
        with pytest.raises(KeyRetrievalError) as caught:
            azure.wrap(KEY, "a")
        assert caught.value.__context__ is None
        assert_hidden(*traceback.format_exception(caught.value))


def test_an_azure_answer_that_is_cut_short_is_not_chained(
    hsm: VaultStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = open_azure(f"azure-kms://{hsm.host}?algorithm=A256KW", client=client_of(hsm))
    wrapped = client.wrap(KEY, "a")
    whole = VaultStub.answer

    def cut(request: Any, status: int, body: dict[str, Any], *more: Any) -> Any:
        answer = whole(request, status, body, *more)
        if "value" in body:
            short = io.BytesIO(json.dumps(body).encode()[:-1])
            answer.raw = urllib3.HTTPResponse(short, status=200, preload_content=False)
        return answer

    monkeypatch.setattr(VaultStub, "answer", staticmethod(cut))
    with pytest.raises(KeyRetrievalError, match="answered 200, but not with JSON") as caught:
        client.unwrap(wrapped, "a")
    assert_hidden(*traceback.format_exception(caught.value))

"""Google Cloud KMS in Java: the stub that Python's client talks to, and Google's token services."""

from __future__ import annotations

import base64
import json
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

pytest.importorskip("google.cloud.kms_v1")

from modcrypt.kms.services.gcp import GcpKms
from tests.support.kms.google_stub import RING, GoogleStub, gcp, google, google_client, grpc
from tests.support.kms.json_server import JsonServer, answer_as_google
from tests.support.kms.key_servers import leaks
from tests.support.spark.java_client import KEYS, JavaError, JavaService

__all__ = ["gcp", "google", "google_client"]  # fixtures

URI = f"gcp-kms://{RING}"
TOKEN = "ya29.hunter2"
SECRET = "GOCSPX-hunter3"


@pytest.fixture
def clouds(json_service: JsonServer, google: GoogleStub) -> JsonServer:
    """Return a server of both the key service and Google's services for tokens."""
    json_service.answer = lambda request: (
        answer_as_google(google, request)
        if request.path.startswith("/v1/")
        else (200, {"access_token": TOKEN, "expires_in": 3599, "token_type": "Bearer"})
    )
    return json_service


Opener = Callable[..., JavaService]


@pytest.fixture
def open_java(jvm: Any, clouds: JsonServer) -> Opener:
    """Return a function that opens the service in Java, by default with the metadata server."""

    def start(aad: bytes = b"", uri: str = URI, **environment: str) -> JavaService:
        found = {"GCE_METADATA_HOST": f"127.0.0.1:{clouds.port}", **environment}
        return JavaService(jvm, "GoogleKms", uri, aad, found, clouds.address, clouds.address)

    return start


# --- both ways -----------------------------------------------------------------------------------


@pytest.mark.parametrize("aad", [b"", "lake-ä".encode()])
def test_java_and_python_unwrap_each_others_keys(
    open_java: Opener, google: GoogleStub, gcp: GcpKms, aad: bytes
) -> None:
    java = open_java(aad)
    for master in ("a", f"{RING}/cryptoKeys/b"):
        for key in KEYS:
            assert gcp.unwrap(java.wrap(key, master), master, aad=aad) == key
            assert java.unwrap(gcp.wrap(key, master, aad=aad), master) == key
    ours, theirs = google.calls[0], google.calls[1]
    assert ours.name == theirs.name == f"{RING}/cryptoKeys/a"
    assert ours.additional_authenticated_data == aad
    with pytest.raises(JavaError, match="does not unwrap the key: altered bytes, another master"):
        open_java(b"other").unwrap(java.wrap(KEYS[0], "a"), "a")


def test_keys_travel_with_the_token_and_checksums(
    open_java: Opener, clouds: JsonServer, google: GoogleStub
) -> None:
    java = open_java(b"lake", uri=f"{URI}/cryptoKeys/a")
    java.unwrap(java.wrap(KEYS[0], "a"), "a")
    token, *others = clouds.requests
    assert token.path == "/computeMetadata/v1/instance/service-accounts/default/token"
    assert token.headers["metadata-flavor"] == "Google"
    assert [request.headers["authorization"] for request in others] == [f"Bearer {TOKEN}"] * 2
    assert google.calls[0].plaintext_crc32c > 0
    assert google.calls[0].additional_authenticated_data_crc32c > 0


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "match"),
    [
        ("NOT_FOUND", "ParquetCrypto.*Google Cloud KMS has no master key a"),
        ("FAILED_PRECONDITION", "KeyAccessDenied.*is disabled or destroyed"),
        ("PERMISSION_DENIED", "KeyAccessDenied.*the credentials do not permit"),
        ("UNAUTHENTICATED", "KeyAccessDenied.*the credentials do not permit"),
        ("UNAVAILABLE", "UnavailableException.*answered 503 UNAVAILABLE"),
        ("RESOURCE_EXHAUSTED", "UnavailableException.*answered 429"),
        ("INVALID_ARGUMENT", "ParquetCrypto.*check that its purpose is ENCRYPT_DECRYPT"),
    ],
)
def test_google_refuses_and_java_says_why(
    open_java: Opener, google: GoogleStub, code: str, match: str
) -> None:
    google.refuse = (grpc.StatusCode[code], f"{TOKEN} {KEYS[0].decode()}")
    with pytest.raises(JavaError, match=match) as caught:
        open_java().wrap(KEYS[0], "a")
    assert leaks(str(caught.value), TOKEN.encode(), KEYS[0]) == []


def _set(name: str, value: object) -> Callable[[Any], None]:
    return lambda answer: setattr(answer, name, value)


@pytest.mark.parametrize(
    ("alter", "match"),
    [
        (_set("verified_plaintext_crc32c", False), "UnavailableException.*checksum"),
        (_set("ciphertext_crc32c", 7), "UnavailableException.*checksum"),
        (_set("ciphertext", b"other"), "UnavailableException.*checksum"),
        (_set("name", f"{RING}/cryptoKeys/b/cryptoKeyVersions/1"), "not from Google Cloud KMS for"),
        (_set("name", f"{RING}/cryptoKeys/a/cryptoKeyVersions/../../b"), "not from Google Cloud"),
    ],
)
def test_an_answer_damaged_or_for_another_key_is_not_stored(
    open_java: Opener, google: GoogleStub, alter: Callable[[Any], None], match: str
) -> None:
    google.alter = alter
    with pytest.raises(JavaError, match=match):
        open_java().wrap(KEYS[0], "a")


def test_a_damaged_key_is_not_used(open_java: Opener, google: GoogleStub) -> None:
    java = open_java()
    wrapped = java.wrap(KEYS[0], "a")
    google.alter = _set("plaintext", b"another key.....")
    with pytest.raises(JavaError, match=r"UnavailableException.*checksum"):
        java.unwrap(wrapped, "a")
    for text in ("", "no base64", "A" * 20_000):
        with pytest.raises(JavaError, match="is not base64"):
            java.unwrap(text, "a")


@pytest.mark.parametrize("answer", [(200, b"x" * (1 << 20) + b"x"), (302, {}), (200, [])])
def test_a_foreign_answer_is_refused(
    open_java: Opener, clouds: JsonServer, answer: tuple[int, Any]
) -> None:
    with_token = clouds.answer
    clouds.answer = lambda request: answer if request.path[:4] == "/v1/" else with_token(request)
    with pytest.raises(JavaError, match=r"is longer than 1048576|is not from Google Cloud KMS"):
        open_java().wrap(KEYS[0], "a")
    assert not any(request.path == "/elsewhere" for request in clouds.requests)


@pytest.mark.parametrize(
    "master",
    ["../x", "", "a/../b", "a:decrypt", "a?x", "a b", f"{RING}/cryptoKeys/../b", "x" * 64,
     "projects/evil/locations/l/keyRings/r/cryptoKeys/a",
     f"{RING}/cryptoKeys/a/cryptoKeyVersions/1"],
)  # fmt: skip
def test_a_forged_id_leads_to_no_request(
    open_java: Opener, clouds: JsonServer, master: str
) -> None:
    java = open_java()
    for ask in (lambda: java.wrap(KEYS[0], master), lambda: java.unwrap("AAAA", master)):
        with pytest.raises(JavaError, match="is not in key ring"):
            ask()
    assert clouds.requests == []


@pytest.mark.parametrize(
    "uri",
    ["gcp-kms://projects/p", f"{URI}/cryptoKeys/", f"{URI}/cryptoKeys/a/b", f"{URI}#a",
     f"{URI}?key=hunter2", f"{URI}/cryptoKeys/..", "gcp-kms://evil.example/" + RING],
)  # fmt: skip
def test_an_invalid_uri_is_refused(open_java: Opener, uri: str) -> None:
    with pytest.raises(JavaError) as caught:
        open_java(uri=uri)
    assert "hunter2" not in str(caught.value)


# --- credentials ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def private_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@pytest.fixture
def account(private_key: rsa.RSAPrivateKey) -> dict[str, str]:
    """Return the key file of a service account, which names a token service of a stranger."""
    pem = private_key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return {"type": "service_account", "private_key_id": "k1", "private_key": pem.decode(),
            "client_email": "lake@p-1.iam.gserviceaccount.com",
            "token_uri": "https://evil.example/token"}  # fmt: skip


def write(path: Path, members: dict[str, str]) -> str:
    path.write_text(json.dumps(members))
    return str(path)


def form_of(body: bytes) -> dict[str, str]:
    return dict(urllib.parse.parse_qsl(body.decode(), strict_parsing=True))


def decode(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def test_a_service_account_signs_for_google_only(
    open_java: Opener, clouds: JsonServer, account: dict[str, str],
    private_key: rsa.RSAPrivateKey, tmp_path: Path,
) -> None:  # fmt: skip
    path = write(tmp_path / "account.json", account)
    java = open_java(GOOGLE_APPLICATION_CREDENTIALS=path)
    java.wrap(KEYS[0], "a")
    java.wrap(KEYS[0], "b")
    asked, *others = clouds.requests  # one token for both
    assert (asked.method, asked.path, len(others)) == ("POST", "/token", 2)
    form = form_of(asked.body)
    assert form["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
    head, claims, signature = form["assertion"].split(".")
    private_key.public_key().verify(
        decode(signature), f"{head}.{claims}".encode(), padding.PKCS1v15(), hashes.SHA256()
    )
    assert json.loads(decode(head)) == {"alg": "RS256", "typ": "JWT", "kid": "k1"}
    found = json.loads(decode(claims))
    assert found["aud"] == "https://oauth2.googleapis.com/token"
    assert found["iss"] == account["client_email"]
    assert found["scope"] == "https://www.googleapis.com/auth/cloudkms"
    assert found["exp"] - found["iat"] == 3600


def test_a_user_of_gcloud_gets_a_token_by_a_refresh_token(
    open_java: Opener, clouds: JsonServer, tmp_path: Path
) -> None:
    members = {"type": "authorized_user", "client_id": "id", "client_secret": SECRET,
               "refresh_token": "1//a&b=c"}  # fmt: skip
    write(tmp_path / "application_default_credentials.json", members)
    open_java(CLOUDSDK_CONFIG=str(tmp_path)).wrap(KEYS[0], "a")
    assert form_of(clouds.requests[0].body) == {
        "grant_type": "refresh_token", "client_id": "id", "client_secret": SECRET,
        "refresh_token": "1//a&b=c",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"type": "external_account"}, "are not those of a service account or user"),
        ({"universe_domain": "evil.example"}, "are not those of a service account or user"),
        ({"private_key": f"-----BEGIN PRIVATE KEY-----\n{SECRET}"}, "private_key is missing or"),
        ({"client_email": ""}, "client_email is missing or malformed"),
    ],
)
def test_unusable_credentials_are_no_access(
    open_java: Opener, clouds: JsonServer, account: dict[str, str], tmp_path: Path,
    change: dict[str, str], match: str,
) -> None:  # fmt: skip
    path = write(tmp_path / "account.json", account | change)
    with pytest.raises(JavaError, match=f"KeyAccessDenied.*{match}") as caught:
        open_java(GOOGLE_APPLICATION_CREDENTIALS=path).wrap(KEYS[0], "a")
    assert leaks(str(caught.value), SECRET.encode(), account["private_key"].encode()) == []
    assert clouds.requests == []


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        ((400, {"error": "invalid_grant", "error_description": SECRET}), "KeyAccessDenied"),
        ((200, {"access_token": "a\r\nb", "expires_in": 9}), "KeyAccessDenied"),
        ((200, {"access_token": TOKEN}), "KeyAccessDenied"),
        ((302, {}), "KeyAccessDenied"),
        ((503, {}), "UnavailableException"),
        ((200, b"x" * (1 << 20) + b"x"), "is longer than 1048576 bytes"),
    ],
)
def test_a_service_that_gives_no_token_is_no_access(
    open_java: Opener, clouds: JsonServer, account: dict[str, str], tmp_path: Path,
    answer: tuple[int, Any], match: str,
) -> None:  # fmt: skip
    clouds.answer = lambda request: answer
    path = write(tmp_path / "account.json", account)
    for environment in ({"GOOGLE_APPLICATION_CREDENTIALS": path}, {}):
        with pytest.raises(JavaError, match=match) as caught:
            open_java(**environment).wrap(KEYS[0], "a")
        assert leaks(str(caught.value), SECRET.encode(), TOKEN.encode()) == []


def test_a_token_is_renewed_shortly_before_it_expires(
    open_java: Opener, clouds: JsonServer, google: GoogleStub
) -> None:
    seconds = iter((100, 3600))
    clouds.answer = lambda request: (
        answer_as_google(google, request)
        if request.path.startswith("/v1/")
        else (200, {"access_token": TOKEN, "expires_in": next(seconds)})
    )
    java = open_java()
    for _ in range(3):
        java.wrap(KEYS[0], "a")
    assert sum("computeMetadata" in request.path for request in clouds.requests) == 2

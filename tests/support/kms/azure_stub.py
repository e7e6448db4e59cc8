"""A stub of Azure Key Vault, behind Azure's own client."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap, aes_key_wrap

requests = pytest.importorskip("requests")
azure_keys = pytest.importorskip("azure.keyvault.keys")

# E402: these need the packages above, which a machine may lack.
import urllib3  # noqa: E402
from azure.core.credentials import AccessToken  # noqa: E402
from azure.core.pipeline.transport import RequestsTransport  # noqa: E402
from requests.adapters import BaseAdapter  # noqa: E402

from modcrypt.kms.services.azure import AzureKms, open_azure  # noqa: E402

HOST = "lake.vault.azure.net"
V1, V2 = "1" * 32, "0123456789abcdef" * 2
OAEP = padding.OAEP(padding.MGF1(hashes.SHA256()), hashes.SHA256(), None)


def b64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def from_b64url(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


@dataclass
class VaultStub(BaseAdapter):
    """A vault behind the real client's real transport: RSA keys and, as in an HSM, AES keys."""

    host: str
    keys: dict[str, dict[str, Any]]  # by name, then by version; the last one is the newest
    calls: list[tuple[str, str]] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)
    refuse: tuple[Any, ...] | None = None  # status, body and headers
    disabled: set[str] = field(default_factory=set)  # versions

    # BaseAdapter takes the options by position, too; requests gives them by name.
    def send(self, request: Any, **_: Any) -> Any:  # type: ignore[override]
        assert request.url.startswith(f"https://{self.host}/"), request.url
        path = request.url.removeprefix(f"https://{self.host}").partition("?")[0]
        token = request.headers.get("Authorization")
        if token is None:
            assert not request.body  # nothing is sent before the token's audience is known
            resource = "https://" + self.host.partition(".")[2]
            challenge = f'Bearer authorization="https://login.example/t", resource="{resource}"'
            return self.answer(request, 401, {}, {"WWW-Authenticate": challenge})
        self.tokens.add(token)
        self.calls.append((request.method, path))
        if self.refuse is not None:
            return self.answer(request, *self.refuse)
        return self.answer(request, *self.respond(request.method, path, request.body))

    def respond(self, method: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        _, _, name, *rest = path.rstrip("/").split("/")
        versions = self.keys.get(name)
        if versions and rest == ["versions"]:
            return 200, {"value": self.list_versions(name)}
        version = rest[0] if rest and rest[0] else next(reversed(versions or {"": None}))
        if versions is None or version not in versions:
            return 404, {"error": {"code": "KeyNotFound", "message": f"no {name}/{version}"}}
        if version in self.disabled:
            return 403, {"error": {"code": "Forbidden", "innererror": {"code": "KeyDisabled"}}}
        key, kid = versions[version], f"https://{self.host}/keys/{name}/{version}"
        if method == "GET":
            return 200, {"key": {"kid": kid, **public(key)}, "attributes": {"enabled": True}}
        asked = json.loads(body)
        assert "=" not in asked["value"]  # managed HSMs take padding for bytes
        try:
            given = operate(rest[1], key, asked["alg"], from_b64url(asked["value"]))
        except (ValueError, InvalidUnwrap):
            return 400, {"error": {"code": "BadParameter", "message": "the value is bad"}}
        return 200, {"kid": kid, "value": b64url(given)}

    def list_versions(self, name: str) -> list[dict[str, Any]]:
        """List a key's versions, of which only their times say which is older."""
        return [
            {
                "kid": f"https://{self.host}/keys/{name}/{version}",
                "attributes": {"enabled": version not in self.disabled, "created": 1700000000 + n},
            }
            for n, version in enumerate(self.keys[name])
        ]

    @staticmethod
    def answer(
        request: Any, status: int, body: dict[str, Any], headers: dict[str, str] | None = None
    ) -> Any:
        made = requests.Response()
        made.status_code, made.request, made.url = status, request, request.url
        made.headers.update({"Content-Type": "application/json", **(headers or {})})
        raw = io.BytesIO(json.dumps(body).encode())
        made.raw = urllib3.HTTPResponse(raw, made.headers, status, preload_content=False)
        return made

    def close(self) -> None:
        pass


def public(key: Any) -> dict[str, Any]:
    if isinstance(key, bytes):
        return {"kty": "oct-HSM", "key_ops": ["wrapKey", "unwrapKey"]}
    numbers = key.public_key().public_numbers()
    parts = {name: b64url(value.to_bytes((value.bit_length() + 7) // 8, "big"))
             for name, value in (("n", numbers.n), ("e", numbers.e))}  # fmt: skip
    return {"kty": "RSA", "key_ops": ["wrapKey", "unwrapKey"], **parts}


def operate(operation: str, key: Any, algorithm: str, value: bytes) -> bytes:
    fits = "A256KW" if isinstance(key, bytes) else "RSA-OAEP-256"
    if algorithm != fits:
        raise ValueError(algorithm)
    if isinstance(key, bytes):
        return {"wrapkey": aes_key_wrap, "unwrapkey": aes_key_unwrap}[operation](key, value)
    if operation == "wrapkey":
        return bytes(key.public_key().encrypt(value, OAEP))
    return bytes(key.decrypt(value, OAEP))


class Credential:
    """Issue a token to every caller; the client may send it only to the vault."""

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        assert scopes[0].endswith("azure.net/.default")
        return AccessToken("the-token", 2**33)


def client_of(stub: VaultStub, **options: Any) -> Any:
    """Return Azure's own client connected to the stub."""
    session = requests.Session()
    session.mount("https://", stub)
    transport = RequestsTransport(session=session, session_owner=False)
    return azure_keys.KeyClient(
        f"https://{stub.host}", Credential(), transport=transport, **options
    )


@pytest.fixture(scope="module")
def rsa_keys() -> dict[str, dict[str, Any]]:
    made = [rsa.generate_private_key(65537, 2048) for _ in range(3)]
    return {"a": {V1: made[0], V2: made[1]}, "b": {V2: made[2]}}


@pytest.fixture
def vault(rsa_keys: dict[str, dict[str, Any]]) -> VaultStub:
    return VaultStub(HOST, {name: dict(versions) for name, versions in rsa_keys.items()})


@pytest.fixture
def azure(vault: VaultStub) -> AzureKms:
    return open_azure(f"azure-kms://{HOST}/keys/a", client=client_of(vault))

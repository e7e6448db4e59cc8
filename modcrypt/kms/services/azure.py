"""Azure Key Vault and Managed HSM, by the extra `azure`; tested against a stub only.

    azure-kms://NAME.vault.azure.net                       keys of this vault
    azure-kms://NAME.vault.azure.net/keys/KEY              ... and KEY by default
    azure-kms://NAME.managedhsm.azure.net?algorithm=A256KW AES keys of a managed HSM

A master key is asked for by its name. The vault is always the URI's, and its host one of Azure's;
from a file come a key's name and version alone, and both are held to their form before they go
into an address. What is stored has the form of parquet-java's local wrapping:

    {"masterKeyVersion":"<32 hex digits>","encryptedKey":"<base64>"}

The service's wrapKey takes no AAD. It is called through Azure's KeyClient, never through its
CryptographyClient: that one wraps by itself where it can, with an RSA key even if it is disabled;
and for an AES key, whose value no managed HSM tells, it draws a random one, wraps by that, and
forgets it (seen in azure-keyvault-keys 4.11.3).
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyDisabledError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
)
from modcrypt.kms.client import MAX_WRAPPED, Capabilities
from modcrypt.kms.uris import missing_extra, parse_kms_uri
from modcrypt.tracebacks import hide_frames

try:
    from azure.core import exceptions as azure_errors
    from azure.core.rest import HttpRequest
    from azure.identity import DefaultAzureCredential
    from azure.keyvault.keys import KeyClient
except ModuleNotFoundError as error:
    raise missing_extra("Azure Key Vault", "azure") from error

__all__ = ["AzureKms", "open_azure"]

DOMAINS = ("vault.azure.net", "vault.azure.cn", "vault.usgovcloudapi.net", "managedhsm.azure.net")
"""Where Azure's vaults are."""

ALGORITHMS = ("RSA-OAEP-256", "A256KW")
"""How a vault wraps: by RSA keys, and by AES keys (RFC 3394)."""

_HOST = re.compile(rf"[a-z0-9-]{{1,63}}\.(?:{'|'.join(map(re.escape, DOMAINS))})", re.ASCII)
_NAME = re.compile(r"[0-9A-Za-z-]{1,127}", re.ASCII)
_CODE = re.compile(r"[A-Za-z]{1,40}", re.ASCII)
_VERSION = re.compile(r"[0-9a-f]{32}", re.ASCII)

# Options of Azure's client: `client.py` alone retries; bodies, which hold keys, go to no other
# host, and stay out of the log even of a client that was made with logging_enable.
_EACH_CALL: dict[str, Any] = {
    "retry_total": 0,
    "permit_redirects": False,
    "logging_enable": False,
    "connection_timeout": 10,
    "read_timeout": 20,
}


def open_azure(uri: str, *, client: KeyClient | None = None) -> AzureKms:
    """Give the client of a vault of Azure Key Vault.

    Args:
        uri: as at the head of this room; `algorithm` is RSA-OAEP-256, which is the default, or
            A256KW.
        client: Azure's own client of the same vault; by default one with Azure's default
            credentials.

    Raises:
        ValueError: the URI names no vault of Azure, or another one than the client's.
    """
    parts = parse_kms_uri(uri, frozenset({"algorithm"}))
    host, _, name = parts.location.removeprefix("//").partition("/keys/")
    named = _NAME.fullmatch(name) or "/keys/" not in uri
    if parts.fragment or not named or (client is None and not _HOST.fullmatch(host)):
        raise ValueError(
            "a vault is named by azure-kms://NAME.vault.azure.net, a key in it by /keys/KEY after "
            f"that; hosts end in {', '.join(DOMAINS)}"
        )
    algorithm = parts.query.get("algorithm", "RSA-OAEP-256")
    if algorithm not in ALGORITHMS:
        raise ValueError(f"azure-kms: wraps by {' or '.join(ALGORITHMS)}, not by {algorithm}")
    if client is None:
        client = KeyClient(f"https://{host}", DefaultAzureCredential())
    elif client.vault_url.rstrip("/") != f"https://{host}":
        raise ValueError(f"the URI names vault {host}, the client is one of {client.vault_url}")
    return AzureKms(client, host, algorithm, name or None)


class AzureKms:
    """A vault of Azure Key Vault as a key service."""

    capabilities = Capabilities()

    def __init__(self, client: KeyClient, host: str, algorithm: str, name: str | None) -> None:
        self._client = client
        self._host = host
        self._algorithm = algorithm
        self.default_key = name

    def __repr__(self) -> str:
        return f"AzureKms({self._host}, {self._algorithm})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key service's client can't be pickled: pass its URI instead")

    @hide_frames
    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
        """Wrap a key under the newest version; see `KmsClient.wrap`.

        Raises:
            ValueError: there is AAD, which the service can't bind.
        """
        _refuse_aad(aad)
        name = _checked_name(master_key_id)
        kid, wrapped = self._call(name, "", "wrapkey", key)  # no version: the newest
        version = kid.rpartition("/")[2]
        if not (_VERSION.fullmatch(version) and wrapped):
            raise KeyRetrievalError(
                f"master key {name}: vault {self._host} tells no version of it, or no wrapped key"
            )
        members = {"masterKeyVersion": version, "encryptedKey": base64.b64encode(wrapped).decode()}
        return json.dumps(members, separators=(",", ":"))

    @hide_frames
    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        """Unwrap a key under the version that wrapped it; see `KmsClient.unwrap`.

        Raises:
            ValueError: there is AAD, which the service can't bind.
        """
        _refuse_aad(aad)
        name = _checked_name(master_key_id)
        version, encrypted = _parse(wrapped)
        return self._call(name, version, "unwrapkey", encrypted)[1]

    def is_current(self, wrapped: str, master_key_id: str) -> bool:
        """Tell whether a key is wrapped under the newest version; see `KmsClient`."""
        name = _checked_name(master_key_id)
        version, _ = _parse(wrapped)
        with _translated(name):
            return bool(self._client.get_key(name, **_EACH_CALL).properties.version == version)

    def _call(self, name: str, version: str, operation: str, value: bytes) -> tuple[str, bytes]:
        """Have the service wrap or unwrap; give the full id of the key, and the result."""
        path = f"/keys/{name}/{version}/{operation}"
        asked = {"alg": self._algorithm, "value": _base64url(value)}
        with _translated(name, unwrapping=operation == "unwrapkey"):
            answer = self._client.send_request(HttpRequest("POST", path, json=asked), **_EACH_CALL)
            answer.raise_for_status()
        with contextlib.suppress(ValueError, KeyError, TypeError):  # whose text may hold the key
            members = answer.json()
            return str(members["kid"]), _from_base64url(members["value"])
        raise KeyRetrievalError(f"master key {name}: vault {self._host} answers no JSON of a key")


def _base64url(data: bytes) -> str:
    # Without padding: managed HSMs have been seen to take it for bytes of the key.
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _from_base64url(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def _refuse_aad(aad: bytes) -> None:
    if aad:
        raise ValueError("Azure Key Vault binds a wrapped key to no AAD; use another key service")


def _checked_name(master_key_id: str) -> str:
    if not _NAME.fullmatch(master_key_id):
        raise KeyNotFoundError(
            f"master key {master_key_id}: keys in Azure's vaults are named by letters, digits and -"
        )
    return master_key_id


def _parse(wrapped: str) -> tuple[str, bytes]:
    """Give version and ciphertext of what `wrap` gave.

    Raises:
        KeyMaterialError: it is not of this form.
    """
    with contextlib.suppress(KeyError, TypeError, RecursionError, ValueError):
        members = json.loads(wrapped) if len(wrapped) <= MAX_WRAPPED else {}
        version, encrypted = members["masterKeyVersion"], members["encryptedKey"]
        if _VERSION.fullmatch(version):
            return version, base64.b64decode(encrypted, validate=True)
    raise KeyMaterialError(
        'what Azure Key Vault is to unwrap is no {"masterKeyVersion":"<32 hex digits>",'
        '"encryptedKey":"<base64>"}'
    )


@contextlib.contextmanager
def _translated(master_key_id: str, unwrapping: bool = False) -> Iterator[None]:
    """Turn Azure's errors into ours; those with an answer are not chained: it may hold a key."""
    what = f"master key {master_key_id}: Azure Key Vault"
    try:
        yield
    except azure_errors.HttpResponseError as error:
        raise _refusal(error, what, unwrapping) from None
    except azure_errors.AzureError as error:  # no answer
        raise KmsUnavailableError(f"{what} is unavailable: {type(error).__name__}") from error


def _refusal(
    error: azure_errors.HttpResponseError, what: str, unwrapping: bool
) -> KeyRetrievalError:
    codes = _codes(error)
    status = error.status_code or 0
    answer = f"{what} answers {' '.join([str(status), *sorted(codes)])}"
    if 200 <= status < 300:
        return KeyRetrievalError(f"{answer}, but no JSON")
    if status == 401 or isinstance(error, azure_errors.ClientAuthenticationError):  # or no token
        return KeyAccessDeniedError(f"{what} does not accept the credentials")
    if status == 404:
        return KeyNotFoundError(f"{answer}: there is no such key, or no such version of it")
    if status == 403 and codes & {"KeyDisabled", "KeyExpired", "KeyNotYetValid"}:
        return KeyDisabledError(f"{answer}: the key is disabled, or out of its time")
    if status == 403:
        return KeyAccessDeniedError(f"{answer}: the credentials may not use the key")
    if status in (408, 429) or status >= 500:
        return KmsUnavailableError(answer)
    if status == 400 and unwrapping:
        return KeyMaterialError(
            f"{answer}: it does not unwrap the key: altered bytes, another master key, or another "
            "algorithm"
        )
    return KeyRetrievalError(f"{answer}: does the key's type fit the algorithm?")


def _codes(error: azure_errors.HttpResponseError) -> set[str]:
    """Give the service's own words for an error, if words they are."""
    inner = getattr(error.error, "innererror", None)
    codes = (getattr(error.error, "code", None), inner and inner.get("code"))
    return {code for code in codes if isinstance(code, str) and _CODE.fullmatch(code)}

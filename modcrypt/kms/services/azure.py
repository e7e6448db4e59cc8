"""Azure Key Vault and Managed HSM, with the extra `azure`; tested only against a stub.

    azure-kms://NAME.vault.azure.net                       keys of this vault
    azure-kms://NAME.vault.azure.net/keys/KEY              ... with the default key KEY
    azure-kms://NAME.managedhsm.azure.net?algorithm=A256KW AES keys of a managed HSM

The id of a master key is its name. The vault is always the one in the URI, and its host must be one
of Azure's. A file provides only a key's name and version, and modcrypt checks the form of both
before it builds an address. Files store the format of parquet-java's local wrapping:

    {"masterKeyVersion":"<32 hex digits>","encryptedKey":"<base64>"}

Bare base64, which is what Iceberg tables store of it, unwraps as well: modcrypt tries the newest
version of the key, and then the older ones, which it has the vault list.

The service's wrapKey does not support AAD. modcrypt calls it through Azure's KeyClient and never
through Azure's CryptographyClient. The latter wraps locally if it can, with an RSA key even if that
is disabled. For an AES key, whose value a managed HSM does not release, it generates a random key,
wraps under that, and forgets it (seen in azure-keyvault-keys 4.11.3).
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyDisabledError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
)
from modcrypt.kms.client import Capabilities, UnpicklableClient
from modcrypt.kms.pacing import is_untrusted, make_trust_error, parse_retry_after
from modcrypt.kms.references import parse_kms_uri
from modcrypt.pkmt1.material import MAX_WRAPPED
from modcrypt.runtime.extras import missing_extra
from modcrypt.runtime.tracebacks import hide_frames

try:
    from azure.core import exceptions as azure_errors
    from azure.core.pipeline.transport import RequestsTransport
    from azure.core.rest import HttpRequest
    from azure.identity import DefaultAzureCredential
    from azure.keyvault.keys import KeyClient

    from modcrypt.kms.services.bounded_http import UnacceptableAnswerError, bounded_session
except ModuleNotFoundError as error:
    raise missing_extra("Azure Key Vault", "azure") from error

DOMAINS = ("vault.azure.net", "vault.azure.cn", "vault.usgovcloudapi.net", "managedhsm.azure.net")
"""Domains of Azure's vaults."""

ALGORITHMS = ("RSA-OAEP-256", "A256KW")
"""Wrapping algorithms of a vault: for RSA keys, and for AES keys (RFC 3394)."""

MAX_VERSIONS = 100
"""Maximum number of versions that are tried for a wrapped key that does not name its version."""

_HOST = re.compile(rf"[a-z0-9-]{{1,63}}\.(?:{'|'.join(map(re.escape, DOMAINS))})", re.ASCII)
_NAME = re.compile(r"[0-9A-Za-z-]{1,127}", re.ASCII)
_CODE = re.compile(r"[A-Za-z]{1,40}", re.ASCII)
_VERSION = re.compile(r"[0-9a-f]{32}", re.ASCII)


def _keep_bodies_from_log(response: Any) -> None:
    """Repeat an option that Azure's client forgets when it repeats a request after a challenge."""
    response.context.options["logging_enable"] = False


# Options of Azure's client. Only `client.py` retries. Bodies contain keys, so they go to no other
# host, and do not go to the log, even if the client was created with logging_enable.
_EACH_CALL: dict[str, Any] = {
    "retry_total": 0,
    "permit_redirects": False,
    "logging_enable": False,
    "raw_response_hook": _keep_bodies_from_log,
    "connection_timeout": 10,
    "read_timeout": 20,
}


def open_azure(uri: str, *, client: KeyClient | None = None) -> AzureKms:
    """Return the client of a vault of Azure Key Vault.

    `algorithm` in the URI is RSA-OAEP-256 (the default) or A256KW. `client` is Azure's client of
    the same vault; by default, one with Azure's default credentials. Raise ValueError if the URI
    names no vault of Azure, or another vault than the client's.
    """
    parts = parse_kms_uri(uri, frozenset({"algorithm"}))
    host, _, name = parts.location.removeprefix("//").partition("/keys/")
    named = _NAME.fullmatch(name) or "/keys/" not in uri
    if parts.fragment or not named or (client is None and not _HOST.fullmatch(host)):
        raise ValueError(
            "the URI of a vault is azure-kms://NAME.vault.azure.net, that of a key in it ends in "
            f"/keys/KEY; hosts end in {', '.join(DOMAINS)}"
        )
    algorithm = parts.query.get("algorithm", "RSA-OAEP-256")
    if algorithm not in ALGORITHMS:
        raise ValueError(f"azure-kms: algorithm must be {' or '.join(ALGORITHMS)}, not {algorithm}")
    if client is None:
        # The session limits the size and duration of a whole answer.
        transport = RequestsTransport(session=bounded_session(), session_owner=False)
        client = KeyClient(f"https://{host}", DefaultAzureCredential(), transport=transport)
    elif client.vault_url.rstrip("/") != f"https://{host}":
        raise ValueError(f"the URI names vault {host}, but the client is for {client.vault_url}")
    return AzureKms(client, host, algorithm, name or None)


class AzureKms(UnpicklableClient):
    """A vault of Azure Key Vault as a key service."""

    capabilities = Capabilities()

    def __init__(self, client: KeyClient, host: str, algorithm: str, name: str | None) -> None:
        self._client = client
        self._host = host
        self._algorithm = algorithm
        self.default_key = name

    def __repr__(self) -> str:
        return f"AzureKms({self._host}, {self._algorithm})"

    @hide_frames
    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
        """Wrap a key under the newest version; raise ValueError for any AAD."""
        _refuse_aad(aad)
        name = _check_name(master_key_id)
        kid, wrapped = self._call(name, "", "wrapkey", key)  # no version: the newest
        version = kid.rpartition("/")[2]
        if not (_VERSION.fullmatch(version) and wrapped):
            raise KeyRetrievalError(
                f"master key {name}: vault {self._host} returned no key version or no wrapped key"
            )
        members = {"masterKeyVersion": version, "encryptedKey": base64.b64encode(wrapped).decode()}
        return json.dumps(members, separators=(",", ":"))

    @hide_frames
    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        """Unwrap a key under the version that wrapped it; raise ValueError for any AAD."""
        _refuse_aad(aad)
        name = _check_name(master_key_id)
        version, encrypted = _parse_wrapped(wrapped)
        if version is None:
            return self._unwrap_by_any(name, encrypted)
        return self._call(name, version, "unwrapkey", encrypted)[1]

    def _unwrap_by_any(self, name: str, encrypted: bytes) -> bytes:
        """Unwrap a key under the newest version that unwraps it."""
        try:
            return self._call(name, "", "unwrapkey", encrypted)[1]
        except KeyMaterialError as error:
            refusal = error
        for version in self._list_older_versions(name):
            with contextlib.suppress(KeyMaterialError):
                return self._call(name, version, "unwrapkey", encrypted)[1]
        raise refusal

    def _list_older_versions(self, name: str) -> list[str]:
        """Return the enabled versions of a key without the newest one, the latest first."""
        with _convert_errors(name), contextlib.suppress(AttributeError, TypeError, ValueError):
            listed: Any = self._client.list_properties_of_key_versions(name, **_EACH_CALL)
            versions = list(itertools.islice(listed, MAX_VERSIONS))
            versions.sort(key=lambda version: version.created_on, reverse=True)
            if all(_VERSION.fullmatch(version.version) for version in versions):
                return [version.version for version in versions[1:] if version.enabled]
        raise self._make_answer_error(name)

    @hide_frames  # the client contains a token
    def is_current(self, wrapped: str, master_key_id: str) -> bool:
        """Return whether a key is wrapped under the newest version; see `KmsClient`."""
        name = _check_name(master_key_id)
        version, encrypted = _parse_wrapped(wrapped)
        if version is None:
            with contextlib.suppress(KeyMaterialError):
                return bool(self._call(name, "", "unwrapkey", encrypted))
            return False
        with _convert_errors(name), contextlib.suppress(AttributeError, TypeError, ValueError):
            newest = self._client.get_key(name, **_EACH_CALL).properties.version
            if _VERSION.fullmatch(newest or ""):
                return bool(newest == version)
        raise self._make_answer_error(name)

    def _call(self, name: str, version: str, operation: str, value: bytes) -> tuple[str, bytes]:
        """Call the service to wrap or unwrap; return the full id of the key, and the result."""
        path = f"/keys/{name}/{version}/{operation}"
        # Without padding, because some managed HSMs treat padding as bytes of the key.
        text = base64.urlsafe_b64encode(value).decode().rstrip("=")
        content = {"alg": self._algorithm, "value": text}
        with _convert_errors(name, unwrapping=operation == "unwrapkey"):
            answer = self._client.send_request(
                HttpRequest("POST", path, json=content), **_EACH_CALL
            )
            answer.raise_for_status()
        with contextlib.suppress(ValueError, KeyError, TypeError):  # whose text may contain the key
            members = answer.json()
            padded = members["value"] + "=" * (-len(members["value"]) % 4)
            return str(members["kid"]), base64.b64decode(padded, altchars=b"-_", validate=True)
        raise self._make_answer_error(name)

    def _make_answer_error(self, name: str) -> KeyRetrievalError:
        return KeyRetrievalError(
            f"master key {name}: the answer of vault {self._host} does not describe a key"
        )


def _refuse_aad(aad: bytes) -> None:
    if aad:
        raise ValueError(
            "Azure Key Vault does not support AAD; remove kms_aad, or use another key service"
        )


def _check_name(master_key_id: str) -> str:
    if not _NAME.fullmatch(master_key_id):
        raise KeyNotFoundError(
            f"master key {master_key_id}: names of keys in Azure's vaults consist of letters, "
            "digits and -"
        )
    return master_key_id


def _parse_wrapped(wrapped: str) -> tuple[str | None, bytes]:
    """Return version (None for bare base64) and ciphertext; raise KeyMaterialError if malformed."""
    with contextlib.suppress(KeyError, TypeError, RecursionError, ValueError):
        if 0 < len(wrapped) <= MAX_WRAPPED and not wrapped.startswith("{"):
            return None, base64.b64decode(wrapped, validate=True)
        members = json.loads(wrapped) if len(wrapped) <= MAX_WRAPPED else {}
        version, encrypted = members["masterKeyVersion"], members["encryptedKey"]
        if _VERSION.fullmatch(version):
            return version, base64.b64decode(encrypted, validate=True)
    raise KeyMaterialError(
        'the wrapped key for Azure Key Vault is not {"masterKeyVersion":"<32 hex digits>",'
        '"encryptedKey":"<base64>"}, nor base64'
    )


@contextlib.contextmanager
def _convert_errors(master_key_id: str, unwrapping: bool = False) -> Iterator[None]:
    """Convert Azure's errors without chaining: theirs contain requests, with keys and tokens."""
    what = f"master key {master_key_id}: Azure Key Vault"
    try:
        yield
    except azure_errors.HttpResponseError as error:
        raise _convert_error(error, what, unwrapping) from None
    except azure_errors.AzureError as error:  # no answer
        if is_untrusted(error):
            raise make_trust_error(what, "REQUESTS_CA_BUNDLE") from None
        raise KmsUnavailableError(f"{what} is unavailable: {type(error).__name__}") from None
    except OSError:  # of the file with certificates
        raise make_trust_error(what, "REQUESTS_CA_BUNDLE") from None
    except UnacceptableAnswerError as error:
        raise KeyRetrievalError(f"{what}: invalid answer: {error}") from None


def _convert_error(
    error: azure_errors.HttpResponseError, what: str, unwrapping: bool
) -> KeyRetrievalError:
    inner = getattr(error.error, "innererror", None)
    named = (getattr(error.error, "code", None), inner and inner.get("code"))
    codes = {code for code in named if isinstance(code, str) and _CODE.fullmatch(code)}
    status = error.status_code or 0
    answer = f"{what} answered {' '.join([str(status), *sorted(codes)])}"
    if 200 <= status < 300:
        return KeyRetrievalError(f"{answer}, but not with JSON")
    if status == 401 or isinstance(error, azure_errors.ClientAuthenticationError):  # or no token
        return KeyAccessDeniedError(f"{what} does not accept the credentials")
    if status == 404:
        return KeyNotFoundError(f"{answer}: the key, or that version of it, does not exist")
    if status == 403 and codes & {"KeyDisabled", "KeyExpired", "KeyNotYetValid"}:
        return KeyDisabledError(f"{answer}: the key is disabled, expired or not yet valid")
    if status == 403:
        return KeyAccessDeniedError(f"{answer}: the credentials do not permit the use of the key")
    if status in (408, 429) or status >= 500:
        wait = parse_retry_after(getattr(error.response, "headers", {}))
        return KmsUnavailableError(answer, throttled=status == 429, retry_after=wait)
    if status == 400 and unwrapping:
        return KeyMaterialError(
            f"{answer}: the wrapped key does not unwrap: altered bytes, another master key, or "
            "another algorithm"
        )
    return KeyRetrievalError(f"{answer}: check that the key's type fits the algorithm")

"""HashiCorp Vault and OpenBao: keys of the transit engine, with the extra `vault`.

    hcvault://vault.example:8200/transit              keys of the engine mounted at transit
    hcvault://vault.example:8200/team/transit/keys/K  ... at team/transit, with the default key K
    ...?derived=true                                  AAD derives the key: see below
    ...?namespace=lake&token=file:/run/vault-token    Vault's namespace; place of the token
    hcvault://127.0.0.1:8200/transit?tls=off          no TLS, on the loopback interface only

The token is `token=env:NAME` or `token=file:PATH`, by default VAULT_TOKEN, BAO_TOKEN or
~/.vault-token. modcrypt reads it before each request, so that an agent may renew it. VAULT_CACERT,
BAO_CACERT or VAULT_CAPATH, if set, determine which server certificates are trusted.

The id of a master key is its name. Files store Vault's own text, like that of parquet-java's sample
client:

    vault:v<version>:base64( nonce (12) | ciphertext | tag (16) )

AAD becomes Vault's `associated_data`. Vault's rewrap does not support that, so modcrypt unwraps
such a key and wraps it again. With `derived=true`, AAD becomes the `context` that derives the key
(the master key's id without AAD), and Vault rewraps internally. AAD requires Vault 1.9 or later; an
older version ignores associated data.

Keys of the type ed25519 sign; modcrypt reads their newest public key, and signs with that version.

modcrypt does not follow redirects, because their targets would receive the token.

This module has more than 400 lines because wrapping, key management and the handling of answers are
one client of one HTTP API.
"""

from __future__ import annotations

import base64
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyDisabledError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
)
from modcrypt.io.private_files import read_secret
from modcrypt.keys import Secret
from modcrypt.kms.client import Capabilities, MasterKey, ServiceSigner, UnpicklableClient
from modcrypt.kms.uris import KmsUri, is_loopback, missing_extra, parse_kms_uri
from modcrypt.pkmt1.wrapped_keys import MAX_WRAPPED
from modcrypt.tracebacks import hide_frames

try:
    import hvac
    import requests

    from modcrypt.kms.services.bounded_http import UnacceptableAnswerError, bounded_session
except ModuleNotFoundError as error:
    raise missing_extra("Vault", "vault") from error

MAX_BATCH = 200
"""Largest number of keys in one request."""

MAX_TOKEN = 16 << 10
"""Length limit of a token, in characters."""

TIMEOUT = 10
"""Time limit for a connection in seconds; `bounded_http` limits the answer."""

MAX_VERSIONS = 1 << 20
"""Largest number of versions of one key: one for each hour of a century."""

MAX_TIME = 253402300799
"""Latest time that Python can represent, the end of the year 9999, in seconds since 1970."""

VERSION_LIFETIME = 60
"""Seconds for which a key's newest version is cached."""

_ACTIONS = {"keys": "show or change keys"}
"""What requests do, if the first part of their path is not the verb."""

NO_KEY_TYPE = "modcrypt-creates-no-keys"
"""A key type that Vault does not have. If the token permits it, Vault's encrypt creates a missing
key. With an unknown type it refuses to do so; for an existing key it ignores the type."""

# The names that Vault's routes accept (its GenericNameRegex), but no dots alone, as in paths.
_NAME = re.compile(r"(?=.{1,255}\Z)\w(?:[\w.-]*\w)?", re.ASCII)
_LOCATION = re.compile(
    r"//(?P<host>[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?(?P<path>/.*)",
    re.ASCII,
)
_WRAPPED = re.compile(r"vault:v([1-9][0-9]{0,8}):[A-Za-z0-9+/]+={0,2}", re.ASCII)
_TOKEN = re.compile(r"[!-~]+", re.ASCII)

_QUERY_NAMES = frozenset({"derived", "namespace", "tls", "token"})
_FORM = "hcvault://HOST[:PORT]/MOUNT[/keys/NAME]"


@dataclass(frozen=True)
class _Engine:
    """A transit engine: its address, and the use of its keys."""

    address: str
    loopback: bool
    namespace: str | None
    mount: str
    derived: bool

    def __str__(self) -> str:
        return f"{self.address.partition('://')[2]}/{self.mount}"


@hide_frames
def open_vault(
    uri: str, *, token: str | Callable[[], str] | None = None, client: Any = None
) -> VaultKms:
    """Return a client of a transit engine of Vault or OpenBao; it sends nothing yet.

    `token` may be a function, which is called before each request. `client`, an `hvac.Client` for
    other login methods, determines host, TLS, namespace and token.

    Raises:
        ValueError: The URI has another form, or would send the token without TLS.
        KeyAccessDeniedError: The token is missing.
        OSError: The file with the token cannot be read.
    """
    parts = parse_kms_uri(uri, _QUERY_NAMES)
    engine, name = _parse_location(parts)
    if client is not None:
        if token is not None or "token" in parts.query:
            raise ValueError("hcvault: a client has its own token; remove client or the token")
        return VaultKms(engine, name, client=client)
    if token is not None and "token" in parts.query:
        raise ValueError("hcvault: two tokens: remove token= from the URI or the argument token")
    source = _make_token_source(token, parts.query.get("token"))
    source()  # so that a missing token raises an error now
    return VaultKms(engine, name, token=source)


class VaultKms(UnpicklableClient):
    """A transit engine of Vault or OpenBao as a key service."""

    capabilities = Capabilities(aad=True, rewrap=True, batch=MAX_BATCH)

    def __init__(
        self,
        engine: _Engine,
        default_key: str | None,
        *,
        token: Callable[[], str] | None = None,
        client: Any = None,
    ) -> None:
        self.default_key = default_key
        self._engine = engine
        self._token = token
        self._client = client
        self._own = threading.local()
        self._newest: dict[str, tuple[int | None, float]] = {}
        self._found_derived: set[str] = set()

    def __repr__(self) -> str:
        return f"VaultKms({self._engine})"

    # --- methods of `KmsClient` ------------------------------------------------------------------

    @hide_frames
    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
        """Wrap a key under the newest version, as `KmsClient.wrap`; never create a master key."""
        body = {
            "plaintext": _encode_base64(key),
            "type": NO_KEY_TYPE,
            **self._bind_aad(master_key_id, aad),
        }
        return self._check_wrapped(self._call_transit("encrypt", body, master_key_id, "ciphertext"))

    @hide_frames
    def wrap_many(
        self, keys: Sequence[bytes], master_key_id: str, *, aad: bytes = b""
    ) -> list[str]:
        """Wrap up to 200 keys in one request; raise as `wrap`."""
        bound = self._bind_aad(master_key_id, aad)
        items = [{"plaintext": _encode_base64(key), **bound} for key in keys]
        body = {"batch_input": items, "type": NO_KEY_TYPE}
        if self._engine.derived and items:
            self._demand_derived("encrypt", items[0] | {"type": NO_KEY_TYPE}, master_key_id)
        data = self._ask("post", f"encrypt/{_check_name(master_key_id)}", body, master_key_id)
        results = data.get("batch_results")
        if not isinstance(results, list) or len(results) != len(items):
            raise self._make_answer_error()
        return [
            self._check_wrapped(self._require_member(result, "ciphertext")) for result in results
        ]

    @hide_frames
    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        """Unwrap a key under the version that wrapped it; see `KmsClient.unwrap`."""
        _parse_version(wrapped)
        body = {"ciphertext": wrapped, **self._bind_aad(master_key_id, aad)}
        return self._decode_base64(self._call_transit("decrypt", body, master_key_id, "plaintext"))

    @hide_frames
    def rewrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> str:
        """Rewrap a key under the newest version; see `KmsClient.rewrap`.

        Vault does so internally, unless there is AAD and the key is not a derived one.
        """
        if aad and not self._engine.derived:
            return self.wrap(self.unwrap(wrapped, master_key_id, aad=aad), master_key_id, aad=aad)
        _parse_version(wrapped)
        body = {"ciphertext": wrapped, **self._bind_aad(master_key_id, aad)}
        return self._check_wrapped(self._call_transit("rewrap", body, master_key_id, "ciphertext"))

    def is_current(self, wrapped: str, master_key_id: str) -> bool | None:
        """Return whether the newest version wrapped a key; None if the token may not read that."""
        version = _parse_version(wrapped)
        newest, until = self._newest.get(master_key_id, (None, 0.0))
        if time.monotonic() >= until:
            try:
                newest = self._describe(master_key_id).version
            except KeyAccessDeniedError:
                newest = None
            self._newest[master_key_id] = newest, time.monotonic() + VERSION_LIFETIME
        return None if newest is None else version >= newest

    # --- signing ---------------------------------------------------------------------------------

    def find_signer(self, key_id: str) -> ServiceSigner:
        """Return the newest version of an ed25519 key, which signs; see `client.find_signer`."""
        data = self._read(key_id, "signing key")
        if data is None:
            raise self._make_missing_error(key_id, "signing key")
        if data.get("soft_deleted"):
            raise KeyDisabledError(f"signing key {key_id} is disabled (soft-deleted) in Vault")
        if data.get("type") != "ed25519" or data.get("derived"):
            raise KeyRetrievalError(
                f"signing key {key_id} is not of the type ed25519, or is a derived key; create one "
                f"with `vault write -f {self._engine.mount}/keys/NAME type=ed25519`"
            )
        version = data["latest_version"]
        versions = data.get("keys")
        newest = versions.get(str(version)) if isinstance(versions, dict) else None
        public = self._decode_base64(self._require_member(newest, "public_key"))
        return ServiceSigner(
            scheme="ed25519", public_key=public, sign=partial(self._sign, key_id, version)
        )

    @hide_frames
    def _sign(self, key_id: str, version: int, message: bytes) -> bytes:
        body = {"input": _encode_base64(message), "key_version": version}
        path = f"sign/{_check_name(key_id)}"
        answer = self._ask("post", path, body, key_id, kind="signing key")
        text = self._require_member(answer, "signature")
        prefix = f"vault:v{version}:"
        if not text.startswith(prefix):
            raise self._make_answer_error()
        return self._decode_base64(text.removeprefix(prefix))

    # --- methods of `KeyAdmin` -------------------------------------------------------------------

    def create_key(self, master_key_id: str) -> MasterKey:
        """Create a master key (aes256-gcm96), a derived one if the URI specifies it.

        Raise ValueError if the key exists, or Vault does not accept its name.
        """
        if not _NAME.fullmatch(master_key_id):
            raise ValueError(
                "a key name in Vault consists of letters, digits, _, and . or - in between"
            )
        if self._read(master_key_id) is not None:
            raise ValueError(f"master key {master_key_id} already exists in {self._engine}")
        body = {"type": "aes256-gcm96", "derived": self._engine.derived}
        self._ask("post", f"keys/{master_key_id}", body, master_key_id)
        return self._describe(master_key_id)

    def list_keys(self) -> list[MasterKey]:
        """Return all encryption keys of the engine; unreadable ones by name only."""
        data = self._ask("list", "keys", missing_is_empty=True)
        names = data.get("keys") if data else []
        if not isinstance(names, list) or not all(
            isinstance(name, str) and _NAME.fullmatch(name) for name in names
        ):
            raise self._make_answer_error()
        return [key for name in sorted(names) if (key := self._describe_listed(name)) is not None]

    def rotate_key(self, master_key_id: str) -> MasterKey:
        """Add a version to a master key, which wraps from now on."""
        self._ask("post", f"keys/{_check_name(master_key_id)}/rotate", {}, master_key_id)
        return self._describe_changed(master_key_id)

    def disable_key(self, master_key_id: str, version: int | None = None) -> MasterKey:
        """Disable unwrapping by all versions up to `version`; OpenBao can disable a whole key, too.

        Raises:
            ValueError: The version is less than 1.
            KeyRetrievalError: The version is the newest; or Vault cannot disable a whole key.
        """
        if version is not None and version < 1:
            raise ValueError(f"versions of a key start at 1; there is no version {version}")
        data = self._read(master_key_id)
        if data is None:
            raise self._make_missing_error(master_key_id)
        if version is None:
            self._soft_delete(data, master_key_id)
        elif version >= data["latest_version"]:
            raise KeyRetrievalError(
                f"master key {master_key_id}: version {version} is not older than the newest, "
                f"{data['latest_version']}, which wraps; rotate the key first"
            )
        elif version >= data["min_decryption_version"]:
            body = {"min_decryption_version": version + 1}
            self._ask("post", f"keys/{master_key_id}/config", body, master_key_id)
        return self._describe_changed(master_key_id)

    def destroy_key(self, master_key_id: str) -> None:
        """Destroy a master key; nothing that it wrapped can be read after that."""
        path = f"keys/{_check_name(master_key_id)}"
        self._ask("post", f"{path}/config", {"deletion_allowed": True}, master_key_id)
        self._ask("delete", path, None, master_key_id)
        self._newest.pop(master_key_id, None)
        self._found_derived.discard(master_key_id)

    def _soft_delete(self, data: dict[str, Any], master_key_id: str) -> None:
        if "soft_deleted" not in data:
            raise KeyRetrievalError(
                f"master key {master_key_id}: this Vault version cannot disable a key (OpenBao "
                "can). Remove decrypt and rewrap from the policies of its users; or rotate it and "
                "disable the older versions; or destroy it permanently"
            )
        if not data["soft_deleted"]:
            self._ask("delete", f"keys/{master_key_id}/soft-delete", None, master_key_id)

    def _describe_changed(self, master_key_id: str) -> MasterKey:
        self._newest.pop(master_key_id, None)
        return self._describe(master_key_id)

    def _describe(self, master_key_id: str) -> MasterKey:
        data = self._read(master_key_id)
        if data is None:
            raise self._make_missing_error(master_key_id)
        return _parse_master_key(master_key_id, data)

    def _describe_listed(self, name: str) -> MasterKey | None:
        try:
            data = self._read(name)
        except KeyAccessDeniedError:
            return MasterKey(id=name)
        return (
            _parse_master_key(name, data)
            if data and data.get("supports_encryption", True)
            else None
        )

    def _read(self, key_id: str, kind: str = "master key") -> dict[str, Any] | None:
        """Return Vault's data about a key; None if the key does not exist."""
        path = f"keys/{_check_name(key_id, kind)}"
        data = self._ask("get", path, None, key_id, missing_is_empty=True, kind=kind)
        if not data:
            return None
        if not all(_is_version(data.get(name), least) for name, least in _VERSIONS.items()):
            raise self._make_answer_error()
        return data

    # --- derived keys ----------------------------------------------------------------------------

    def _bind_aad(self, master_key_id: str, aad: bytes) -> dict[str, str]:
        """Return the members of a request that bind a key to AAD."""
        if self._engine.derived:
            return {"context": _encode_base64(aad or _check_name(master_key_id).encode())}
        return {"associated_data": _encode_base64(aad)} if aad else {}

    def _demand_derived(self, verb: str, body: dict[str, Any], master_key_id: str) -> None:
        """Raise if a key is not a derived one, because Vault then ignores the context.

        Vault must refuse the same request without the context. Any token with access to the key
        can see that.
        """
        if master_key_id in self._found_derived:
            return
        bare = {name: value for name, value in body.items() if name != "context"}
        try:
            self._ask("post", f"{verb}/{_check_name(master_key_id)}", bare, master_key_id)
        except _ContextMissingError:
            self._found_derived.add(master_key_id)
            return
        raise KeyRetrievalError(
            f"master key {master_key_id} is not a derived key, so Vault would ignore the AAD; "
            "remove derived=true from the URI, or use a key that was created as a derived key"
        )

    # --- requests to Vault -----------------------------------------------------------------------

    def _call_transit(
        self, verb: str, body: dict[str, Any], master_key_id: str, member: str
    ) -> str:
        path = f"{verb}/{_check_name(master_key_id)}"
        if self._engine.derived:
            self._demand_derived(verb, body, master_key_id)
        return self._require_member(self._ask("post", path, body, master_key_id), member)

    def _ask(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        key_id: str = "",
        missing_is_empty: bool = False,
        kind: str = "master key",
    ) -> dict[str, Any]:
        """Send one request, and return the answer's data.

        `method` is an HTTP method or "list", `path` the path below the engine's mount. With
        `missing_is_empty`, return no data if Vault reports that nothing exists; an answer of status
        200 must then contain data. Messages call the key `kind`.

        Raises:
            KeyRetrievalError: Vault refuses, fails or is unreachable, or the answer is not Vault's.
        """
        status, content = self._send(method, path, body)
        if status == 204:
            return {}
        if status == 200:
            return self._extract_data(content, demanded=missing_is_empty)
        if status == 404 and missing_is_empty and content.get("errors") == []:
            return {}  # the key does not exist; a missing engine would report errors
        verb = path.partition("/")[0]
        raise self._convert_error(status, _extract_errors(content), key_id, verb, kind)

    def _extract_data(self, content: dict[str, Any], *, demanded: bool) -> dict[str, Any]:
        """Return the data of an answer of status 200, which is an object or null in Vault."""
        data = content.get("data", ...)
        if (data is None and not demanded) or (isinstance(data, dict) and (data or not demanded)):
            return data or {}
        raise self._make_answer_error()

    @hide_frames  # frames contain the token
    def _send(
        self, method: str, path: str, body: dict[str, Any] | None
    ) -> tuple[int, dict[str, Any]]:
        """Return the status of Vault's answer, and its JSON object."""
        adapter = self._get_adapter()
        url = f"/v1/{self._engine.mount}/{path}"
        failed: KeyRetrievalError
        try:
            return _split_answer(adapter.request(method, url, json=body, raise_exception=False))
        except UnacceptableAnswerError as error:
            failed = KeyRetrievalError(f"invalid answer from {self._engine}: {error}")
        except RecursionError:  # deeply nested JSON
            failed = self._make_answer_error()
        except requests.exceptions.SSLError:
            failed = KeyRetrievalError(
                f"the TLS certificate of Vault at {self._engine} is not trusted here; set "
                "VAULT_CACERT to the file of its authority"
            )
        except (requests.ConnectionError, requests.Timeout, _CutShort) as error:
            failed = KmsUnavailableError(
                f"Vault at {self._engine} is unavailable: {type(error).__name__}"
            )
        except requests.RequestException as error:
            failed = KeyRetrievalError(
                f"the request to {self._engine} failed with {type(error).__name__}"
            )
        except ValueError:  # from `http.client`: a chunk of negative size
            failed = self._make_answer_error()
        finally:
            if self._token is not None:
                adapter.token = ""  # read again before each request
        raise failed  # outside the handler: the original error contains request, token and key

    def _get_adapter(self) -> Any:
        """Return this thread's connection; a forked process does not share its parent's."""
        if self._token is None:
            return self._client.adapter
        if getattr(self._own, "pid", None) != os.getpid():
            self._own.client, self._own.pid = _connect(self._engine), os.getpid()
        self._own.client.token = self._token()
        return self._own.client.adapter

    def _convert_error(
        self, status: int, texts: list[str], key_id: str, verb: str, kind: str
    ) -> KeyRetrievalError:
        """Convert an answer to an error, which repeats none of Vault's text."""
        text = " ".join(texts)
        what = f"{kind} {key_id}: " if key_id else ""
        if status in (401, 403):
            return KeyAccessDeniedError(
                f"{what}Vault at {self._engine} refuses to {_ACTIONS.get(verb, verb)}: the token "
                "has expired, or its policies do not permit it"
            )
        if status == 404 or any(phrase in text for phrase in _NO_KEY):
            return self._make_missing_error(key_id, kind)
        if status in (412, 429, 472, 473) or status >= 500:
            return KmsUnavailableError(f"{what}Vault at {self._engine} answered {status}")
        if 300 <= status < 400:
            return KeyRetrievalError(
                f"Vault at {self._engine} redirects to another address, which modcrypt does not "
                "follow; use the address of the active node in the URI"
            )
        if status == 400:
            return self._convert_rejection(text, what, verb)
        return KeyRetrievalError(f"{what}Vault at {self._engine} answered {status}")

    def _convert_rejection(self, text: str, what: str, verb: str) -> KeyRetrievalError:
        if "too old" in text:
            return KeyDisabledError(f"{what}the version that wrapped the key is disabled in Vault")
        if "soft-deleted" in text:
            return KeyDisabledError(f"{what}the key is disabled (soft-deleted) in Vault")
        if "missing 'context'" in text:
            return _ContextMissingError(
                f"{what}the key is a derived key; add derived=true to the URI"
            )
        if verb in ("decrypt", "rewrap"):
            return KeyMaterialError(
                f"{what}the wrapped key does not unwrap: altered text, another master key or other "
                "AAD; Vault does not report which"
            )
        return KeyRetrievalError(f"{what}Vault at {self._engine} rejected the request to {verb}")

    def _make_missing_error(self, key_id: str, kind: str = "master key") -> KeyNotFoundError:
        what = f"{kind} {key_id}" if key_id else "transit engine"
        return KeyNotFoundError(f"Vault has no {what} at {self._engine}")

    def _require_member(self, data: Any, name: str) -> str:
        value = data.get(name) if isinstance(data, dict) else None
        if not isinstance(value, str):
            raise self._make_answer_error()
        return value

    @hide_frames
    def _decode_base64(self, text: str) -> bytes:
        try:
            return base64.b64decode(text, validate=True)
        except ValueError:
            failed = self._make_answer_error()
        raise failed  # outside the handler, whose error contains the text

    def _check_wrapped(self, text: str) -> str:
        """Return a wrapped key after the check that `unwrap` will make."""
        try:
            _parse_version(text)
        except KeyMaterialError:
            raise self._make_answer_error() from None
        return text

    def _make_answer_error(self) -> KeyRetrievalError:
        return KeyRetrievalError(f"the server at {self._engine} is not a transit engine of Vault")


class _ContextMissingError(KeyRetrievalError):
    """A request without a context for a derived key."""


_CutShort = requests.exceptions.ChunkedEncodingError
_NO_KEY = ("key not found", "unknown key type", "no existing key")
_VERSIONS = {"latest_version": 1, "min_decryption_version": 0}  # names and minimum values


# --- the parts of a URI --------------------------------------------------------------------------


def _parse_location(parts: KmsUri) -> tuple[_Engine, str | None]:
    """Return the engine that a URI names, and the default key.

    Raises:
        ValueError: The URI has another form. The message does not repeat the URI, which may contain
            a password.
    """
    found = _LOCATION.fullmatch(parts.location)
    if found is None or parts.fragment or int(found["port"] or 0) >= 1 << 16:
        raise ValueError(f"the URI of a Vault engine must have the form {_FORM}")
    host, port = found["host"], found["port"]
    steps = found["path"][1:].split("/")
    name = steps.pop() if len(steps) > 2 and steps[-2] == "keys" else None
    if name is not None:
        steps.pop()
    if not all(_NAME.fullmatch(step) for step in (*steps, *([] if name is None else [name]))):
        raise ValueError(f"in {_FORM}, MOUNT and NAME must be plain names")
    loopback = is_loopback(host)
    tls = _parse_switch(parts.query.get("tls", "on"), "tls", "on", "off")
    if not tls and not loopback:
        raise ValueError(
            "hcvault: tls=off is only for loopback addresses, because it exposes the token"
        )
    address = f"{'https' if tls else 'http'}://{host}{f':{port}' if port else ''}"
    derived = _parse_switch(parts.query.get("derived", "false"), "derived", "true", "false")
    namespace = parts.query.get("namespace") or None
    if namespace and not all(_NAME.fullmatch(step) for step in namespace.strip("/").split("/")):
        raise ValueError("hcvault: namespace= must be plain names with / in between")
    return _Engine(address, loopback, namespace, "/".join(steps), derived), name


def _parse_switch(value: str, name: str, yes: str, no: str) -> bool:
    if value not in (yes, no):
        raise ValueError(f"hcvault: {name} must be {yes} or {no}")
    return value == yes


def _make_token_source(
    given: str | Callable[[], str] | None, place: str | None
) -> Callable[[], str]:
    """Return a function that reads the token again at each call."""
    if given is None:
        return lambda: _check_token(_find_token(place))
    if callable(given):
        return lambda: _check_token(given())
    secret = Secret(given)
    return lambda: _check_token(secret())


def _find_token(place: str | None) -> str:
    if place is None:
        home = Path.home() / ".vault-token"
        fixed = os.environ.get("VAULT_TOKEN") or os.environ.get("BAO_TOKEN")
        return fixed or (_read_token(home) if home.is_file() else "")
    kind, _, name = place.partition(":")
    if kind == "env" and name:
        return os.environ.get(name, "")
    if kind == "file" and name:
        return _read_token(Path(name))
    raise ValueError("hcvault: token= must be env:NAME or file:PATH, never the token itself")


def _read_token(path: Path) -> str:
    return read_secret(path, MAX_TOKEN + 1, "token file").decode("ascii", "replace").strip()


@hide_frames
def _check_token(token: str) -> str:
    """Return a token if it is valid; `requests` would show an invalid one in its error."""
    if not token:
        raise KeyAccessDeniedError(
            "no token for Vault: set VAULT_TOKEN, or name its place in the URI by token=env:NAME "
            "or token=file:PATH"
        )
    if len(token) > MAX_TOKEN or not _TOKEN.fullmatch(token):
        raise KeyAccessDeniedError(
            f"the token for Vault contains spaces, or is longer than {MAX_TOKEN} characters"
        )
    return token


# --- small helpers -------------------------------------------------------------------------------


def _connect(engine: _Engine) -> Any:
    session = bounded_session()
    session.trust_env = not engine.loopback  # no proxy for loopback addresses
    authority = (os.environ.get(n) for n in ("VAULT_CACERT", "BAO_CACERT", "VAULT_CAPATH"))
    session.verify = next(filter(None, authority), True)
    return hvac.Client(
        engine.address,
        token="",  # set before each request
        timeout=TIMEOUT,
        session=session,
        namespace=engine.namespace,
        allow_redirects=False,
    )


def _check_name(key_id: str, kind: str = "master key") -> str:
    """Return a name if it is safe in a path, because it may come from a file."""
    if not _NAME.fullmatch(key_id):
        raise KeyNotFoundError(
            f"{kind} {key_id[:80]!r}: a key name in Vault consists of letters, digits, "
            "_, and . or - in between"
        )
    return key_id


def _parse_version(wrapped: str) -> int:
    found = _WRAPPED.fullmatch(wrapped) if len(wrapped) <= MAX_WRAPPED else None
    if found is None:
        raise KeyMaterialError("the wrapped key for Vault is not vault:v<version>:<base64>")
    return int(found[1])


def _parse_master_key(name: str, data: dict[str, Any]) -> MasterKey:
    newest = data["latest_version"]
    created = data["keys"].get(str(newest)) if isinstance(data.get("keys"), dict) else None
    return MasterKey(
        id=name,
        version=newest,
        enabled=not data.get("soft_deleted"),
        created=_format_time(created),
        disabled_versions=tuple(range(1, min(data["min_decryption_version"], newest + 1))),
    )


def _format_time(seconds: object) -> str | None:
    """Return a time in seconds since 1970 as text; None for other values."""
    if type(seconds) is not int or not 0 <= seconds <= MAX_TIME:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _is_version(number: object, least: int) -> bool:
    return type(number) is int and least <= number <= MAX_VERSIONS


def _encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _split_answer(answer: Any) -> tuple[int, dict[str, Any]]:
    """Split hvac's result, which is the JSON value for status 200 and else the response."""
    status = getattr(answer, "status_code", 200)
    if hasattr(answer, "status_code"):
        try:
            answer = answer.json()
        except ValueError:
            answer = None
    return status, answer if isinstance(answer, dict) else {}


def _extract_errors(content: dict[str, Any]) -> list[str]:
    """Return Vault's error texts, from the whole answer or from the parts of a batch."""
    data = content.get("data")
    results = _as_list(data.get("batch_results")) if isinstance(data, dict) else []
    inner = [result.get("error") for result in results if isinstance(result, dict)]
    return [text for text in (*_as_list(content.get("errors")), *inner) if isinstance(text, str)]


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []

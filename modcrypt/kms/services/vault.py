"""HashiCorp Vault and OpenBao: keys of the transit engine, with the extra `vault`.

    hcvault://vault.example:8200/transit              keys of the engine mounted at transit
    hcvault://vault.example:8200/team/transit/keys/K  ... at team/transit, with the default key K
    ...?derived=true                                  AAD derives the key: see below
    ...?namespace=lake&token=file:/run/vault-token    Vault's namespace; place of the token
    hcvault://127.0.0.1:8200/transit?tls=off          no TLS, on the loopback interface only

The token is `token=env:NAME` or `token=file:PATH`, by default VAULT_TOKEN, BAO_TOKEN or
~/.vault-token. These three go only to the server in VAULT_ADDR or BAO_ADDR, if one is set.
modcrypt reads the token before each request, so that an agent may renew it. VAULT_CACERT,
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
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyDisabledError,
    KeyMaterialError,
    KeyRetrievalError,
)
from modcrypt.kms.client import Capabilities, MasterKey, ServiceSigner, UnpicklableClient
from modcrypt.kms.references import parse_kms_uri
from modcrypt.kms.services.vault_location import (
    NAME,
    Engine,
    check_name,
    make_token_source,
    parse_location,
)
from modcrypt.kms.services.vault_requests import ContextMissingError, TransitRequests, parse_version
from modcrypt.pkmt1.strict_json import encode_base64
from modcrypt.runtime.tracebacks import hide_frames

MAX_BATCH = 200
"""Largest number of keys in one request."""

MAX_VERSIONS = 1 << 20
"""Largest number of versions of one key: one for each hour of a century."""

MAX_TIME = 253402300799
"""Latest time that Python can represent, the end of the year 9999, in seconds since 1970."""

VERSION_LIFETIME = 60  # seconds for which a key's newest version is cached

NO_KEY_TYPE = "modcrypt-creates-no-keys"
"""A key type that Vault does not have. If the token permits it, Vault's encrypt creates a missing
key. With an unknown type it refuses to do so; for an existing key it ignores the type."""


T = TypeVar("T")

_QUERY_NAMES = frozenset({"derived", "namespace", "tls", "token"})
_VERSIONS = {"latest_version": 1, "min_decryption_version": 0}  # names and minimum values


@hide_frames
def open_vault(
    uri: str, *, token: str | Callable[[], str] | None = None, client: Any = None
) -> VaultKms:
    """Return a client of a transit engine of Vault or OpenBao; it sends nothing yet.

    `token` may be a function, which is called before each request. `client`, an `hvac.Client` for
    other login methods, determines host, TLS, namespace and token.

    Raises:
        ValueError: The URI has another form, or would send the token without TLS.
        KeyAccessDeniedError: The token is missing, or is for another server.
        OSError: The file with the token cannot be read.
    """
    parts = parse_kms_uri(uri, _QUERY_NAMES)
    engine, name = parse_location(parts)
    if client is not None:
        if token is not None or "token" in parts.query:
            raise ValueError("hcvault: a client has its own token; remove client or the token")
        return VaultKms(engine, name, client=client)
    if token is not None and "token" in parts.query:
        raise ValueError("hcvault: two tokens: remove token= from the URI or the argument token")
    source = make_token_source(token, parts.query.get("token"), engine.address)
    source()  # so that a missing token raises an error now
    return VaultKms(engine, name, token=source)


class VaultKms(UnpicklableClient):
    """A transit engine of Vault or OpenBao as a key service."""

    capabilities = Capabilities(aad=True, rewrap=True, batch=MAX_BATCH, random_nonces=True)

    def __init__(
        self, engine: Engine, default_key: str | None, *, token: Callable[[], str] | None = None,
        client: Any = None,
    ) -> None:  # fmt: skip
        self.default_key = default_key
        self._engine = engine
        self._transit = TransitRequests(engine, token, client)
        self._newest: dict[str, tuple[int | None, float]] = {}
        self._found_derived: set[str] = set()

    def __repr__(self) -> str:
        return f"VaultKms({self._engine})"

    @hide_frames
    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
        """Wrap a key under the newest version, as `KmsClient.wrap`; never create a master key."""
        body = {"plaintext": encode_base64(key), "type": NO_KEY_TYPE}
        return self._transit.read_wrapped(self._call_transit("encrypt", body, master_key_id, aad))

    @hide_frames
    def wrap_many(
        self, keys: Sequence[bytes], master_key_id: str, *, aad: bytes = b""
    ) -> list[str]:
        """Wrap up to 200 keys in one request; raise as `wrap`."""
        items = [{"plaintext": encode_base64(key)} for key in keys]
        results = self._call_batch("encrypt", items, master_key_id, aad, {"type": NO_KEY_TYPE})
        for place, result in enumerate(results, 1):
            if isinstance(result, KeyRetrievalError):
                raise type(result)(f"key {place} of {len(items)}: {result}")
        return [self._transit.read_wrapped(result) for result in results]

    @hide_frames
    def unwrap_many(
        self, wrapped: Sequence[str], master_key_id: str, *, aad: bytes = b""
    ) -> list[bytes | KeyRetrievalError]:
        """Unwrap up to 200 keys in one request; see `client.unwrap_many`."""
        return self._convert_many("decrypt", wrapped, master_key_id, aad, self._transit.read_key)

    @hide_frames
    def rewrap_many(
        self, wrapped: Sequence[str], master_key_id: str, *, aad: bytes = b""
    ) -> list[str | KeyRetrievalError]:
        """Rewrap up to 200 keys in one request, or in two where `rewrap` needs two."""
        if not aad or self._engine.derived:
            read = self._transit.read_wrapped
            return self._convert_many("rewrap", wrapped, master_key_id, aad, read)
        keys = self.unwrap_many(wrapped, master_key_id, aad=aad)
        good = [key for key in keys if isinstance(key, bytes)]
        fresh = iter(self.wrap_many(good, master_key_id, aad=aad) if good else ())
        return [next(fresh) if isinstance(key, bytes) else key for key in keys]

    def _convert_many(
        self, verb: str, wrapped: Sequence[str], master_key_id: str, aad: bytes,
        convert: Callable[[dict[str, Any]], T],
    ) -> list[T | KeyRetrievalError]:  # fmt: skip
        """Return the answers of one request about wrapped keys; malformed ones are not sent."""
        faults: dict[int, KeyRetrievalError] = {}
        for place, text in enumerate(wrapped):
            try:
                parse_version(text)
            except KeyMaterialError as error:
                faults[place] = error.with_traceback(None)
        items = [{"ciphertext": text} for place, text in enumerate(wrapped) if place not in faults]
        results = iter(self._call_batch(verb, items, master_key_id, aad) if items else ())
        answers = [faults.get(place) or next(results) for place in range(len(wrapped))]
        return [
            answer if isinstance(answer, KeyRetrievalError) else convert(answer)
            for answer in answers
        ]

    def _call_batch(
        self, verb: str, items: list[dict[str, str]], master_key_id: str, aad: bytes,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> list[dict[str, Any] | KeyRetrievalError]:  # fmt: skip
        bound = self._bind_aad(master_key_id, aad)
        items = [{**item, **bound} for item in items]
        path = f"{verb}/{check_name(master_key_id)}"
        if self._engine.derived:
            self._demand_derived(verb, {**items[0], **more}, master_key_id)
        return self._transit.ask_batch(path, items, master_key_id, **more)

    @hide_frames
    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        """Unwrap a key under the version that wrapped it; see `KmsClient.unwrap`."""
        parse_version(wrapped)
        body = {"ciphertext": wrapped}
        return self._transit.read_key(self._call_transit("decrypt", body, master_key_id, aad))

    @hide_frames
    def rewrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> str:
        """Rewrap a key under the newest version; see `KmsClient.rewrap`.

        Vault does so internally, unless there is AAD and the key is not a derived one.
        """
        if aad and not self._engine.derived:
            return self.wrap(self.unwrap(wrapped, master_key_id, aad=aad), master_key_id, aad=aad)
        parse_version(wrapped)
        body = {"ciphertext": wrapped}
        return self._transit.read_wrapped(self._call_transit("rewrap", body, master_key_id, aad))

    def is_current(self, wrapped: str, master_key_id: str) -> bool | None:
        """Return whether the newest version wrapped a key; None if the token may not read that."""
        version = parse_version(wrapped)
        newest, until = self._newest.get(master_key_id, (None, 0.0))
        if time.monotonic() >= until:
            try:
                newest = self._describe(master_key_id).version
            except KeyAccessDeniedError:
                newest = None
            self._newest[master_key_id] = newest, time.monotonic() + VERSION_LIFETIME
        return None if newest is None else version >= newest

    def find_signer(self, key_id: str) -> ServiceSigner:
        """Return the newest version of an ed25519 key, which signs; see `client.find_signer`."""
        if (data := self._read(key_id, "signing key")) is None:
            raise self._transit.make_missing_error(key_id, "signing key")
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
        public = self._transit.decode_base64(self._transit.require_member(newest, "public_key"))
        return ServiceSigner(
            scheme="ed25519", public_key=public, sign=partial(self._sign, key_id, version)
        )

    @hide_frames
    def _sign(self, key_id: str, version: int, message: bytes) -> bytes:
        body = {"input": encode_base64(message), "key_version": version}
        path = f"sign/{check_name(key_id)}"
        answer = self._transit.ask("post", path, body, key_id, kind="signing key")
        text = self._transit.require_member(answer, "signature")
        prefix = f"vault:v{version}:"
        if not text.startswith(prefix):
            raise self._transit.make_answer_error()
        return self._transit.decode_base64(text.removeprefix(prefix))

    def create_key(self, master_key_id: str) -> MasterKey:
        """Create a master key (aes256-gcm96), a derived one if the URI specifies it.

        Raise ValueError if the key exists, or Vault does not accept its name.
        """
        if not NAME.fullmatch(master_key_id):
            raise ValueError(
                "a key name in Vault consists of letters, digits, _, and . or - in between"
            )
        if self._read(master_key_id) is not None:
            raise ValueError(f"master key {master_key_id} already exists in {self._engine}")
        body = {"type": "aes256-gcm96", "derived": self._engine.derived}
        self._transit.ask("post", f"keys/{master_key_id}", body, master_key_id)
        return self._describe(master_key_id)

    def list_keys(self) -> list[MasterKey]:
        """Return all encryption keys of the engine; unreadable ones by name only."""
        listed = self._transit.ask("list", "keys", missing_is_empty=True)
        names = listed.get("keys") if listed else []
        if not isinstance(names, list) or not all(
            isinstance(name, str) and NAME.fullmatch(name) for name in names
        ):
            raise self._transit.make_answer_error()
        keys = []
        for name in sorted(names):
            try:
                data = self._read(name)
            except KeyAccessDeniedError:
                keys.append(MasterKey(id=name))
                continue
            if data is not None and data.get("supports_encryption", True):
                keys.append(_parse_master_key(name, data))
        return keys

    def rotate_key(self, master_key_id: str) -> MasterKey:
        """Add a version to a master key, which wraps from now on."""
        self._transit.ask("post", f"keys/{check_name(master_key_id)}/rotate", {}, master_key_id)
        return self._describe_changed(master_key_id)

    def disable_key(self, master_key_id: str, version: int | None = None) -> MasterKey:
        """Disable unwrapping by all versions up to `version`; OpenBao can disable a whole key, too.

        Raise ValueError if the version is less than 1; and KeyRetrievalError if the version is the
        newest; or Vault cannot disable a whole key.
        """
        if version is not None and version < 1:
            raise ValueError(f"versions of a key start at 1; there is no version {version}")
        if (data := self._read(master_key_id)) is None:
            raise self._transit.make_missing_error(master_key_id)
        if version is None:
            self._soft_delete(data, master_key_id)
        elif version >= data["latest_version"]:
            raise KeyRetrievalError(
                f"master key {master_key_id}: version {version} is not older than the newest, "
                f"{data['latest_version']}, which wraps; rotate the key first"
            )
        elif version >= data["min_decryption_version"]:
            body = {"min_decryption_version": version + 1}
            self._transit.ask("post", f"keys/{master_key_id}/config", body, master_key_id)
        return self._describe_changed(master_key_id)

    def destroy_key(self, master_key_id: str) -> None:
        """Destroy a master key; nothing that it wrapped can be read after that."""
        path = f"keys/{check_name(master_key_id)}"
        self._transit.ask("post", f"{path}/config", {"deletion_allowed": True}, master_key_id)
        self._transit.ask("delete", path, None, master_key_id)
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
            self._transit.ask("delete", f"keys/{master_key_id}/soft-delete", None, master_key_id)

    def _describe_changed(self, master_key_id: str) -> MasterKey:
        self._newest.pop(master_key_id, None)
        return self._describe(master_key_id)

    def _describe(self, master_key_id: str) -> MasterKey:
        if (data := self._read(master_key_id)) is None:
            raise self._transit.make_missing_error(master_key_id)
        return _parse_master_key(master_key_id, data)

    def _read(self, key_id: str, kind: str = "master key") -> dict[str, Any] | None:
        """Return Vault's data about a key; None if the key does not exist."""
        path = f"keys/{check_name(key_id, kind)}"
        data = self._transit.ask("get", path, None, key_id, missing_is_empty=True, kind=kind)
        if not data:
            return None
        for name, least in _VERSIONS.items():
            number = data.get(name)
            if type(number) is not int or not least <= number <= MAX_VERSIONS:
                raise self._transit.make_answer_error()
        return data

    def _bind_aad(self, master_key_id: str, aad: bytes) -> dict[str, str]:
        """Return the members of a request that bind a key to AAD."""
        if self._engine.derived:
            return {"context": encode_base64(aad or check_name(master_key_id).encode())}
        return {"associated_data": encode_base64(aad)} if aad else {}

    def _demand_derived(self, verb: str, body: dict[str, Any], master_key_id: str) -> None:
        """Raise if a key is not a derived one, because Vault then ignores the context."""
        # Vault must refuse the same request without the context. Any token with access to the key
        # can see that.
        if master_key_id in self._found_derived:
            return
        bare = {name: value for name, value in body.items() if name != "context"}
        try:
            self._transit.ask("post", f"{verb}/{check_name(master_key_id)}", bare, master_key_id)
        except ContextMissingError:
            self._found_derived.add(master_key_id)
            return
        raise KeyRetrievalError(
            f"master key {master_key_id} is not a derived key, so Vault would ignore the AAD; "
            "remove derived=true from the URI, or use a key that was created as a derived key"
        )

    def _call_transit(
        self, verb: str, body: dict[str, Any], master_key_id: str, aad: bytes
    ) -> dict[str, Any]:
        body |= self._bind_aad(master_key_id, aad)
        if self._engine.derived:
            self._demand_derived(verb, body, master_key_id)
        path = f"{verb}/{check_name(master_key_id)}"
        return self._transit.ask("post", path, body, master_key_id)


def _parse_master_key(name: str, data: dict[str, Any]) -> MasterKey:
    newest = data["latest_version"]
    times = data.get("keys")
    created: Any = times.get(str(newest)) if isinstance(times, dict) else None
    is_time = type(created) is int and 0 <= created <= MAX_TIME  # seconds since 1970
    return MasterKey(
        id=name,
        version=newest,
        enabled=not data.get("soft_deleted"),
        created=datetime.fromtimestamp(created, UTC).isoformat() if is_time else None,
        disabled_versions=tuple(range(1, min(data["min_decryption_version"], newest + 1))),
    )

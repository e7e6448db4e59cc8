"""HashiCorp Vault and OpenBao: keys of the transit engine, by the extra `vault`.

    hcvault://vault.example:8200/transit              keys of the engine mounted at transit
    hcvault://vault.example:8200/team/transit/keys/K  ... at team/transit, and K by default
    ...?derived=true                                  AAD derives the key: see below
    ...?namespace=lake&token=file:/run/vault-token    Vault's namespace; where the token is
    hcvault://127.0.0.1:8200/transit?tls=off          no TLS: on the loopback interface alone

The token is `token=env:NAME` or `token=file:PATH`, by default VAULT_TOKEN, BAO_TOKEN or
~/.vault-token; it is looked up before each request, so one that an agent renews may change. The
server's certificate is checked against VAULT_CACERT, BAO_CACERT or VAULT_CAPATH, if set.

A master key is asked for by its name. What is stored is Vault's own text, as parquet-java's
sample client has it:

    vault:v<version>:base64( nonce (12) | ciphertext | tag (16) )

AAD is Vault's `associated_data`, which its rewrap can't take: such a key comes out to be wrapped
anew. With `derived=true` AAD is the `context` that derives the key (the master key's id where
there is no AAD), and rewrap happens inside Vault. It takes Vault 1.9 or later: an older one
ignores associated data.

No redirect is followed: it would take the token along.
"""

from __future__ import annotations

import base64
import ipaddress
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyDisabledError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
)
from modcrypt.keys import Secret
from modcrypt.kms.client import MAX_WRAPPED, Capabilities, MasterKey
from modcrypt.kms.private_files import read_secret
from modcrypt.kms.uris import KmsUri, missing_extra, parse_kms_uri
from modcrypt.tracebacks import hide_frames

try:
    import hvac
    import requests

    from modcrypt.kms.services.bounded_http import UnacceptableAnswerError, bounded_session
except ModuleNotFoundError as error:
    raise missing_extra("Vault", "vault") from error

__all__ = ["VaultKms", "open_vault"]

MAX_BATCH = 200
"""Keys that go into one request."""

MAX_TOKEN = 16 << 10
"""Longest token that is taken, in characters."""

TIMEOUT = 10
"""Seconds to wait for a connection; `bounded_http` limits the answer."""

VERSION_LIFETIME = 60
"""Seconds for which a key's newest version is remembered."""

NO_KEY_TYPE = "modcrypt-creates-no-keys"
"""A type of key that Vault lacks. Its encrypt creates a missing key if the token may do so; asked
for one of an unknown type it refuses, and of a key that is there it takes no notice of the type."""

# The names that Vault's routes take (its GenericNameRegex); no dots alone, which are a path's.
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
    """A transit engine: where it is, and how its keys are used."""

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
    """Give the client of a transit engine of Vault or OpenBao. Nothing is sent yet.

    Args:
        uri: as at the head of this room.
        token: Vault's token, or what gives it before each request.
        client: an `hvac.Client`, for other ways to log in; then host, TLS, namespace and token
            are its own.

    Raises:
        ValueError: the URI has another form, or would send the token in the clear.
        KeyAccessDeniedError: there is no token.
        OSError: the file of the token can't be read.
    """
    parts = parse_kms_uri(uri, _QUERY_NAMES)
    engine, name = _parse(parts)
    if client is not None:
        if token is not None or "token" in parts.query:
            raise ValueError("hcvault: a client has its token; give one of the two")
        return VaultKms(engine, name, client=client)
    if token is not None and "token" in parts.query:
        raise ValueError("hcvault: the token is given twice, by the URI and by token=")
    source = _token_source(token, parts.query.get("token"))
    source()  # the lack of one shows now
    return VaultKms(engine, name, token=source)


class VaultKms:
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

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key service's client can't be pickled: pass its URI instead")

    # --- what `KmsClient` asks for ---------------------------------------------------------------

    @hide_frames
    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
        """Wrap a key under the newest version; see `KmsClient.wrap`. No key is created."""
        body = {"plaintext": _base64(key), "type": NO_KEY_TYPE, **self._bound(master_key_id, aad)}
        return self._wrapped(self._transit("encrypt", body, master_key_id, "ciphertext"))

    @hide_frames
    def wrap_many(
        self, keys: Sequence[bytes], master_key_id: str, *, aad: bytes = b""
    ) -> list[str]:
        """Wrap up to 200 keys by one request; raises as `wrap`."""
        bound = self._bound(master_key_id, aad)
        items = [{"plaintext": _base64(key), **bound} for key in keys]
        body = {"batch_input": items, "type": NO_KEY_TYPE}
        if self._engine.derived and items:
            self._demand_derived("encrypt", items[0] | {"type": NO_KEY_TYPE}, master_key_id)
        data = self._ask("post", f"encrypt/{_checked(master_key_id)}", body, master_key_id)
        results = data.get("batch_results")
        if not isinstance(results, list) or len(results) != len(items):
            raise self._unlike_vault()
        return [self._wrapped(self._member(result, "ciphertext")) for result in results]

    @hide_frames
    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        """Unwrap a key under the version that wrapped it; see `KmsClient.unwrap`."""
        _version_of(wrapped)
        body = {"ciphertext": wrapped, **self._bound(master_key_id, aad)}
        plain = self._transit("decrypt", body, master_key_id, "plaintext")
        try:
            return base64.b64decode(plain, validate=True)
        except ValueError:
            failed = self._unlike_vault()
        raise failed

    @hide_frames
    def rewrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> str:
        """Wrap a key anew under the newest version; see `KmsClient.rewrap`.

        Inside Vault, unless there is AAD and the key is not a derived one.
        """
        if aad and not self._engine.derived:
            return self.wrap(self.unwrap(wrapped, master_key_id, aad=aad), master_key_id, aad=aad)
        _version_of(wrapped)
        body = {"ciphertext": wrapped, **self._bound(master_key_id, aad)}
        return self._wrapped(self._transit("rewrap", body, master_key_id, "ciphertext"))

    def is_current(self, wrapped: str, master_key_id: str) -> bool | None:
        """Tell whether the newest version wrapped a key; None if the token may not read that."""
        version = _version_of(wrapped)
        newest, until = self._newest.get(master_key_id, (None, 0.0))
        if time.monotonic() >= until:
            try:
                newest = self._described(master_key_id).version
            except KeyAccessDeniedError:
                newest = None
            self._newest[master_key_id] = newest, time.monotonic() + VERSION_LIFETIME
        return None if newest is None else version >= newest

    # --- what `KeyAdmin` asks for ----------------------------------------------------------------

    def create_key(self, master_key_id: str) -> MasterKey:
        """Make a master key (aes256-gcm96), a derived one if the URI says so.

        Raises:
            ValueError: it is there, or Vault takes no such name.
            KeyRetrievalError: as `KmsClient.wrap`.
        """
        if not _NAME.fullmatch(master_key_id):
            raise ValueError("a key in Vault is named by letters, digits, _, and . or - in between")
        if self._read(master_key_id) is not None:
            raise ValueError(f"master key {master_key_id} is in {self._engine} already")
        body = {"type": "aes256-gcm96", "derived": self._engine.derived}
        self._ask("post", f"keys/{master_key_id}", body, master_key_id)
        return self._described(master_key_id)

    def list_keys(self) -> list[MasterKey]:
        """Give all keys of the engine that encrypt; by name alone where more can't be read."""
        names = self._ask("list", "keys", missing_is_empty=True).get("keys", [])
        if not isinstance(names, list):
            raise self._unlike_vault()
        return [key for name in sorted(names) if (key := self._listed(name)) is not None]

    def rotate_key(self, master_key_id: str) -> MasterKey:
        """Add a version to a master key, which wraps from now on."""
        self._ask("post", f"keys/{_checked(master_key_id)}/rotate", {}, master_key_id)
        return self._changed(master_key_id)

    def disable_key(self, master_key_id: str, version: int | None = None) -> MasterKey:
        """Stop all versions up to `version` from unwrapping; OpenBao stops a whole key, too.

        Raises:
            ValueError: the version is less than 1.
            KeyRetrievalError: it is the newest one; or Vault is to stop a whole key.
        """
        if version is not None and version < 1:
            raise ValueError(f"a key's versions count from 1: there is no {version}")
        data = self._read(master_key_id)
        if data is None:
            raise self._missing(master_key_id)
        if version is None:
            self._soft_delete(data, master_key_id)
        elif version >= data["latest_version"]:
            raise KeyRetrievalError(
                f"master key {master_key_id}: version {version} is not older than its newest, "
                f"{data['latest_version']}, which wraps: rotate it first"
            )
        elif version >= data["min_decryption_version"]:
            body = {"min_decryption_version": version + 1}
            self._ask("post", f"keys/{master_key_id}/config", body, master_key_id)
        return self._changed(master_key_id)

    def destroy_key(self, master_key_id: str) -> None:
        """Destroy a master key: nothing that it wrapped will ever be read again."""
        path = f"keys/{_checked(master_key_id)}"
        self._ask("post", f"{path}/config", {"deletion_allowed": True}, master_key_id)
        self._ask("delete", path, None, master_key_id)
        self._newest.pop(master_key_id, None)
        self._found_derived.discard(master_key_id)

    def _soft_delete(self, data: dict[str, Any], master_key_id: str) -> None:
        if "soft_deleted" not in data:
            raise KeyRetrievalError(
                f"master key {master_key_id}: this Vault stops no whole key. Take decrypt and "
                "rewrap from its users' policies; or rotate it and disable the older versions; or "
                "destroy it for good"
            )
        if not data["soft_deleted"]:
            self._ask("delete", f"keys/{master_key_id}/soft-delete", None, master_key_id)

    def _changed(self, master_key_id: str) -> MasterKey:
        self._newest.pop(master_key_id, None)
        return self._described(master_key_id)

    def _described(self, master_key_id: str) -> MasterKey:
        data = self._read(master_key_id)
        if data is None:
            raise self._missing(master_key_id)
        return _master_key(master_key_id, data)

    def _listed(self, name: str) -> MasterKey | None:
        try:
            data = self._read(name)
        except KeyAccessDeniedError:
            return MasterKey(id=name)
        return _master_key(name, data) if data and data.get("supports_encryption", True) else None

    def _read(self, master_key_id: str) -> dict[str, Any] | None:
        """Give what Vault tells of a key; None if there is no such key."""
        path = f"keys/{_checked(master_key_id)}"
        data = self._ask("get", path, None, master_key_id, missing_is_empty=True)
        if not data:
            return None
        if not all(isinstance(data.get(name), int) for name in _VERSIONS):
            raise self._unlike_vault()
        return data

    # --- derived keys ----------------------------------------------------------------------------

    def _bound(self, master_key_id: str, aad: bytes) -> dict[str, str]:
        """Give the members of a request that bind a key to AAD."""
        if self._engine.derived:
            return {"context": _base64(aad or _checked(master_key_id).encode())}
        return {"associated_data": _base64(aad)} if aad else {}

    def _demand_derived(self, verb: str, body: dict[str, Any], master_key_id: str) -> None:
        """Make sure that the context counts: for a key that isn't a derived one Vault ignores it.

        The same request without it must be refused; any token that may use a key can see that.
        """
        if master_key_id in self._found_derived:
            return
        bare = {name: value for name, value in body.items() if name != "context"}
        try:
            self._ask("post", f"{verb}/{_checked(master_key_id)}", bare, master_key_id)
        except _ContextMissingError:
            self._found_derived.add(master_key_id)
            return
        raise KeyRetrievalError(
            f"master key {master_key_id} is not a derived key: Vault would bind nothing to the "
            "AAD. Leave derived=true out of the URI, or use a key that was created as derived"
        )

    # --- asking Vault ----------------------------------------------------------------------------

    def _transit(self, verb: str, body: dict[str, Any], master_key_id: str, member: str) -> str:
        path = f"{verb}/{_checked(master_key_id)}"
        if self._engine.derived:
            self._demand_derived(verb, body, master_key_id)
        return self._member(self._ask("post", path, body, master_key_id), member)

    def _ask(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        master_key_id: str = "",
        missing_is_empty: bool = False,
    ) -> dict[str, Any]:
        """Send one request; give the answer's data.

        Raises:
            KeyRetrievalError: Vault refuses, fails, or can't be reached.
        """
        status, content = self._send(method, path, body)
        if status in (200, 204):
            data = content.get("data")
            return data if isinstance(data, dict) else {}
        if status == 404 and missing_is_empty and content.get("errors") == []:
            return {}  # no such key; without the engine there are errors
        verb = path.partition("/")[0]
        raise self._refusal(status, _texts(content), master_key_id, verb)

    @hide_frames  # they hold the token
    def _send(
        self, method: str, path: str, body: dict[str, Any] | None
    ) -> tuple[int, dict[str, Any]]:
        """Give the status of Vault's answer, and the object that it is."""
        adapter = self._adapter()
        url = f"/v1/{self._engine.mount}/{path}"
        failed: KeyRetrievalError
        try:
            return _status_and_content(
                adapter.request(method, url, json=body, raise_exception=False)
            )
        except UnacceptableAnswerError as error:
            failed = KeyRetrievalError(f"the answer of {self._engine} is refused: {error}")
        except RecursionError:  # JSON that is nested too deeply
            failed = self._unlike_vault()
        except requests.exceptions.SSLError:
            failed = KeyRetrievalError(
                f"Vault at {self._engine} has no certificate that is trusted here; VAULT_CACERT "
                "names the file of another authority"
            )
        except (requests.ConnectionError, requests.Timeout, _CutShort) as error:
            failed = KmsUnavailableError(
                f"Vault at {self._engine} is unavailable: {type(error).__name__}"
            )
        except requests.RequestException as error:
            failed = KeyRetrievalError(f"asking {self._engine} failed with {type(error).__name__}")
        except ValueError:  # of `http.client`: a chunk of negative size
            failed = self._unlike_vault()
        finally:
            if self._token is not None:
                adapter.token = ""  # looked up before each request
        raise failed  # out here: the error before it carries the request, with token and key

    def _adapter(self) -> Any:
        """Give this thread's connection; a forked process doesn't share its parent's."""
        if self._token is None:
            return self._client.adapter
        if getattr(self._own, "pid", None) != os.getpid():
            self._own.client, self._own.pid = _connect(self._engine), os.getpid()
        self._own.client.token = self._token()
        return self._own.client.adapter

    def _refusal(
        self, status: int, texts: list[str], master_key_id: str, verb: str
    ) -> KeyRetrievalError:
        """Turn an answer into an error; of Vault's own words none is repeated."""
        said = " ".join(texts)
        what = f"master key {master_key_id}: " if master_key_id else ""
        if status in (401, 403):
            return KeyAccessDeniedError(
                f"{what}Vault at {self._engine} refuses to {verb}: the token has expired, or its "
                "policies don't allow it"
            )
        if status == 404 or any(text in said for text in _NO_KEY):
            return self._missing(master_key_id)
        if status in (412, 429, 472, 473) or status >= 500:
            return KmsUnavailableError(f"{what}Vault at {self._engine} answers {status}")
        if 300 <= status < 400:
            return KeyRetrievalError(
                f"Vault at {self._engine} sends us to another address, which is not followed: "
                "name the active node in the URI"
            )
        if status == 400:
            return self._objection(said, what, verb)
        return KeyRetrievalError(f"{what}Vault at {self._engine} answers {status}")

    def _objection(self, said: str, what: str, verb: str) -> KeyRetrievalError:
        if "too old" in said:
            return KeyDisabledError(f"{what}the version that wrapped the key is disabled in Vault")
        if "soft-deleted" in said:
            return KeyDisabledError(f"{what}it is disabled (soft-deleted) in Vault")
        if "missing 'context'" in said:
            return _ContextMissingError(f"{what}it is a derived key: the URI needs derived=true")
        if verb in ("decrypt", "rewrap"):
            return KeyMaterialError(
                f"{what}it does not unwrap the key: altered text, another master key or other AAD; "
                "Vault doesn't tell which"
            )
        return KeyRetrievalError(f"{what}Vault at {self._engine} takes no such request ({verb})")

    def _missing(self, master_key_id: str) -> KeyNotFoundError:
        what = f"master key {master_key_id}" if master_key_id else "transit engine"
        return KeyNotFoundError(f"Vault has no {what} at {self._engine}")

    def _member(self, data: Any, name: str) -> str:
        value = data.get(name) if isinstance(data, dict) else None
        if not isinstance(value, str):
            raise self._unlike_vault()
        return value

    def _wrapped(self, text: str) -> str:
        """Check a wrapped key as `unwrap` will."""
        try:
            _version_of(text)
        except KeyMaterialError:
            raise self._unlike_vault() from None
        return text

    def _unlike_vault(self) -> KeyRetrievalError:
        return KeyRetrievalError(f"what answers at {self._engine} is no transit engine of Vault")


class _ContextMissingError(KeyRetrievalError):
    """A derived key was asked without a context."""


_CutShort = requests.exceptions.ChunkedEncodingError
_NO_KEY = ("key not found", "unknown key type", "no existing key")
_VERSIONS = ("latest_version", "min_decryption_version")


# --- the parts of a URI --------------------------------------------------------------------------


def _parse(parts: KmsUri) -> tuple[_Engine, str | None]:
    """Give the engine that a URI names, and the default key.

    Raises:
        ValueError: it has another form. It isn't repeated: someone may have put a password there.
    """
    found = _LOCATION.fullmatch(parts.location)
    if found is None or parts.fragment or int(found["port"] or 0) >= 1 << 16:
        raise ValueError(f"an engine of Vault is named by {_FORM}")
    host, port = found["host"], found["port"]
    steps = found["path"][1:].split("/")
    name = steps.pop() if len(steps) > 2 and steps[-2] == "keys" else None
    if name is not None:
        steps.pop()
    if not all(_NAME.fullmatch(step) for step in (*steps, *([] if name is None else [name]))):
        raise ValueError(f"an engine of Vault is named by {_FORM}: MOUNT and NAME are plain names")
    loopback = _is_loopback(host)
    tls = _switch(parts.query.get("tls", "on"), "tls", "on", "off")
    if not tls and not loopback:
        raise ValueError("hcvault: tls=off would send the token in the clear; only to loopback")
    address = f"{'https' if tls else 'http'}://{host}{f':{port}' if port else ''}"
    derived = _switch(parts.query.get("derived", "false"), "derived", "true", "false")
    namespace = parts.query.get("namespace") or None
    if namespace and not all(_NAME.fullmatch(step) for step in namespace.strip("/").split("/")):
        raise ValueError("hcvault: namespace= is one or more plain names with / in between")
    return _Engine(address, loopback, namespace, "/".join(steps), derived), name


def _switch(value: str, name: str, yes: str, no: str) -> bool:
    if value not in (yes, no):
        raise ValueError(f"hcvault: {name} is {yes} or {no}")
    return value == yes


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _token_source(given: str | Callable[[], str] | None, place: str | None) -> Callable[[], str]:
    """Give what looks a token up, each time anew."""
    if given is None:
        return lambda: _sound(_found_token(place))
    if callable(given):
        return lambda: _sound(given())
    known = Secret(given)
    return lambda: _sound(known())


def _found_token(place: str | None) -> str:
    if place is None:
        home = Path.home() / ".vault-token"
        fixed = os.environ.get("VAULT_TOKEN") or os.environ.get("BAO_TOKEN")
        return fixed or (_read_token(home) if home.is_file() else "")
    kind, _, name = place.partition(":")
    if kind == "env" and name:
        return os.environ.get(name, "")
    if kind == "file" and name:
        return _read_token(Path(name))
    raise ValueError("hcvault: token= is env:NAME or file:PATH, never the token itself")


def _read_token(path: Path) -> str:
    return read_secret(path, MAX_TOKEN + 1, "token file").decode("ascii", "replace").strip()


@hide_frames
def _sound(token: str) -> str:
    """Give a token that is one: of another `requests` would show the value."""
    if not token:
        raise KeyAccessDeniedError(
            "there is no token for Vault: set VAULT_TOKEN, or name its place in the URI by "
            "token=env:NAME or token=file:PATH"
        )
    if len(token) > MAX_TOKEN or not _TOKEN.fullmatch(token):
        raise KeyAccessDeniedError("what is given as token for Vault is none: spaces, or too long")
    return token


# --- small helpers -------------------------------------------------------------------------------


def _connect(engine: _Engine) -> Any:
    session = bounded_session()
    session.trust_env = not engine.loopback  # no proxy between us and ourselves
    authority = (os.environ.get(n) for n in ("VAULT_CACERT", "BAO_CACERT", "VAULT_CAPATH"))
    session.verify = next(filter(None, authority), True)
    return hvac.Client(
        engine.address,
        token="",  # it comes before each request
        timeout=TIMEOUT,
        session=session,
        namespace=engine.namespace,
        allow_redirects=False,
    )


def _checked(master_key_id: str) -> str:
    """Give a name that is safe in a path: it may come from a file."""
    if not _NAME.fullmatch(master_key_id):
        raise KeyNotFoundError(
            f"master key {master_key_id[:80]!r}: a key in Vault is named by letters, digits, _, "
            "and . or - in between"
        )
    return master_key_id


def _version_of(wrapped: str) -> int:
    found = _WRAPPED.fullmatch(wrapped) if len(wrapped) <= MAX_WRAPPED else None
    if found is None:
        raise KeyMaterialError("what Vault is to unwrap is no vault:v<version>:<base64>")
    return int(found[1])


def _master_key(name: str, data: dict[str, Any]) -> MasterKey:
    newest = data["latest_version"]
    made = data["keys"].get(str(newest)) if isinstance(data.get("keys"), dict) else None
    return MasterKey(
        id=name,
        version=newest,
        enabled=not data.get("soft_deleted"),
        created=datetime.fromtimestamp(made, UTC).isoformat() if isinstance(made, int) else None,
        disabled_versions=tuple(range(1, min(data["min_decryption_version"], newest + 1))),
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _status_and_content(answer: Any) -> tuple[int, dict[str, Any]]:
    """Take apart what hvac gives: with status 200 the JSON value, else the response."""
    status = getattr(answer, "status_code", 200)
    if hasattr(answer, "status_code"):
        try:
            answer = answer.json()
        except ValueError:
            answer = None
    return status, answer if isinstance(answer, dict) else {}


def _texts(content: dict[str, Any]) -> list[str]:
    """Give what Vault says of errors, in the whole or in the parts of a batch."""
    data = content.get("data")
    results = _list(data.get("batch_results")) if isinstance(data, dict) else []
    inner = [one.get("error") for one in results if isinstance(one, dict)]
    return [text for text in (*_list(content.get("errors")), *inner) if isinstance(text, str)]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []

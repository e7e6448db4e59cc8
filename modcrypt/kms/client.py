"""The key service protocol: wrapping and unwrapping keys under master keys of the service.

A client needs two methods, `wrap` and `unwrap`. Some services offer more; for the others, modcrypt
builds the rest from these two. modcrypt retries a call only if the service is unavailable.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, NoReturn, Protocol, TypeVar

from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
    ModcryptError,
)
from modcrypt.key_encoding import KEY_LENGTHS
from modcrypt.keys import KeyLike, as_key, key_bytes
from modcrypt.pkmt1.wrapped_keys import MAX_WRAPPED, is_wrapped_key
from modcrypt.tracebacks import format_origin, hide_frames

ATTEMPTS = 4
"""Number of calls to an unavailable service."""

GIVE_UP_AFTER = 20.0
"""Seconds after which modcrypt stops retrying; a single attempt may take as long."""

FIRST_WAIT = 0.2
"""Seconds before the second attempt; each later wait doubles, minus a random part of up to half."""


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """The abilities of a key service beyond wrapping one key.

    Attributes:
        aad: Whether the service binds a wrapped key to additional authenticated data.
        rewrap: Whether the service rewraps a key under the newest version of its master key
            without releasing the key.
        batch: Largest number of keys that one call of `wrap_many` takes; 1 without that method.
        public_keys: Whether wrapping needs public keys alone, so that a wrapped key proves nothing
            about who wrapped it.
    """

    aad: bool = False
    rewrap: bool = False
    batch: int = 1
    public_keys: bool = False


class KmsClient(Protocol):
    """A key service (KMS) as modcrypt uses it, from any thread.

    modcrypt treats other errors than those below as failures of the client, with these exceptions:
    LookupError means that the master key does not exist; PermissionError, ConnectionError and
    TimeoutError have their usual meaning.

    A client may also have: `capabilities`, and the methods that they promise: `rewrap(wrapped,
    master_key_id, *, aad) -> str` and `wrap_many(keys, master_key_id, *, aad) -> list[str]`;
    `is_current(wrapped, master_key_id) -> bool`, if the service knows whether a key is wrapped
    under the newest version of its master key; `default_key`, the id of the master key in the
    client's URI; the methods of `KeyAdmin`; and `find_signer(key_id) -> ServiceSigner`, if keys of
    the service can sign.
    """

    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
        """Wrap a key of 16, 24 or 32 bytes, and return text that files store unchanged.

        Raises:
            KeyNotFoundError: The master key does not exist.
            KeyAccessDeniedError: The service refuses; `KeyDisabledError` if the key is disabled.
            KmsUnavailableError: The service is unreachable, or asks the caller to wait.
        """

    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        """Return the key that `wrap` wrapped, under the newest or an older version.

        Raises:
            KeyMaterialError: The key does not unwrap: altered bytes, another master key or AAD.
            KeyRetrievalError: As `wrap`.
        """


@dataclass(frozen=True, kw_only=True)
class MasterKey:
    """The public facts about a master key, without its value.

    Attributes:
        id: Id of the master key in requests.
        version: Newest version, which wraps; None if the service does not report it.
        enabled: Whether the master key wraps and unwraps.
        created: Creation time of the newest version, ISO 8601 in UTC; None if the service does not
            report it.
        disabled_versions: Older versions that no longer unwrap, including destroyed ones.
        destroyed: Whether the master key is destroyed or scheduled for destruction, so that nothing
            it wrapped can be read again.
        destroyed_versions: Older versions that are destroyed.
    """

    id: str
    version: int | None = None
    enabled: bool = True
    created: str | None = None
    disabled_versions: tuple[int, ...] = ()
    destroyed: bool = False
    destroyed_versions: tuple[int, ...] = ()


class KeyAdmin(Protocol):
    """A key service whose master keys can be managed through its client."""

    def create_key(self, master_key_id: str) -> MasterKey:
        """Create a master key of 256 bits; raise ValueError if it exists."""

    def list_keys(self) -> list[MasterKey]:
        """Return all master keys, sorted by id."""

    def rotate_key(self, master_key_id: str) -> MasterKey:
        """Add a version, which wraps from now on; older versions still unwrap."""

    def disable_key(self, master_key_id: str, version: int | None = None) -> MasterKey:
        """Disable a master key, or the unwrapping by all versions up to `version`.

        If the service can undo this, `enable_key(master_key_id, version=None)` does.
        """


@dataclass(frozen=True, kw_only=True)
class ServiceSigner:
    """A key that signs inside its key service.

    Attributes:
        scheme: Name of the signature scheme, as in `modcrypt.kms.signing.schemes`.
        public_key: The encoded public key.
        sign: Function that returns the signature of a message; it raises as `KmsClient.wrap`.
    """

    scheme: str
    public_key: bytes
    sign: Callable[[bytes], bytes]


class UnpicklableClient:
    """A base class that keeps clients, which hold credentials or keys, in their process."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} can't be pickled or copied; pass its URI instead")


def capabilities_of(client: KmsClient) -> Capabilities:
    """Return the capabilities that a client declares; none if it declares nothing."""
    found = getattr(client, "capabilities", None)
    return found if isinstance(found, Capabilities) else Capabilities()


# --- calls of a service --------------------------------------------------------------------------


@hide_frames
def wrap(client: KmsClient, key: KeyLike, master_key_id: str, aad: bytes = b"") -> str:
    """Wrap a key; raise as `KmsClient.wrap`, and KeyMaterialError for an invalid answer."""
    raw = key_bytes(as_key(key))
    answer = _call_with_retries(
        lambda: client.wrap(raw, master_key_id, **_pass_aad(aad)), master_key_id
    )
    return _check_wrapped(answer, master_key_id)


@hide_frames
def unwrap(client: KmsClient, wrapped: str, master_key_id: str, aad: bytes = b"") -> bytes:
    """Unwrap a key; raise as `KmsClient.unwrap`."""
    answer = _call_with_retries(
        lambda: client.unwrap(wrapped, master_key_id, **_pass_aad(aad)), master_key_id
    )
    if not isinstance(answer, bytes | bytearray) or len(answer) not in KEY_LENGTHS:
        raise KeyMaterialError(f"master key {master_key_id}: the key service returned no AES key")
    return bytes(answer)


@hide_frames
def wrap_many(
    client: KmsClient, keys: Sequence[KeyLike], master_key_id: str, aad: bytes = b""
) -> list[str]:
    """Wrap keys in as few calls as the service allows; raise as `wrap`."""
    batch = capabilities_of(client).batch
    if batch < 2 or len(keys) < 2:
        return [wrap(client, key, master_key_id, aad) for key in keys]
    many: Any = client
    wrapped: list[str] = []
    for start in range(0, len(keys), batch):
        part = [key_bytes(as_key(key)) for key in keys[start : start + batch]]
        answer = _call_with_retries(
            lambda p=part: many.wrap_many(p, master_key_id, **_pass_aad(aad)),  # type: ignore[misc]
            master_key_id,
        )
        if not isinstance(answer, list) or len(answer) != len(part):
            raise KeyMaterialError(
                f"master key {master_key_id}: wrap_many did not return one wrapped key per key"
            )
        wrapped += (_check_wrapped(text, master_key_id) for text in answer)
    return wrapped


@hide_frames
def rewrap(client: KmsClient, wrapped: str, master_key_id: str, aad: bytes = b"") -> str:
    """Wrap a key under the newest version of its master key; raise as `KmsClient.unwrap`.

    The service rewraps the key internally if it can.
    """
    if not capabilities_of(client).rewrap:
        return wrap(client, unwrap(client, wrapped, master_key_id, aad), master_key_id, aad)
    able: Any = client
    answer = _call_with_retries(
        lambda: able.rewrap(wrapped, master_key_id, **_pass_aad(aad)), master_key_id
    )
    return _check_wrapped(answer, master_key_id)


def is_current(client: KmsClient, wrapped: str, master_key_id: str) -> bool | None:
    """Return whether a key is under its master key's newest version; None if unknown."""
    ask = getattr(client, "is_current", None)
    if ask is None:
        return None
    answer = _call_with_retries(lambda: ask(wrapped, master_key_id), master_key_id)
    return answer if isinstance(answer, bool) else None


@hide_frames
def find_signer(client: KmsClient, key_id: str) -> ServiceSigner:
    """Return the key of a service that signs, whose calls are retried; raise as `KmsClient.wrap`.

    Raises:
        ValueError: The service does not sign.
    """
    find = getattr(client, "find_signer", None)
    if find is None:
        raise ValueError(f"keys of {type(client).__name__} do not sign")
    signer: ServiceSigner = _call_with_retries(lambda: find(key_id), key_id)

    def sign(message: bytes) -> bytes:
        return _call_with_retries(lambda: signer.sign(message), key_id)

    return replace(signer, sign=sign)


def _pass_aad(aad: bytes) -> dict[str, bytes]:
    return {"aad": aad} if aad else {}  # a client without AAD support has no such parameter


def _check_wrapped(answer: object, master_key_id: str) -> str:
    if not is_wrapped_key(answer):
        raise KeyMaterialError(
            f"master key {master_key_id}: the key service returned no wrapped key; expected 1 to "
            f"{MAX_WRAPPED} printable ASCII characters"
        )
    return answer


T = TypeVar("T")


def _call_with_retries(call: Callable[[], T], master_key_id: str) -> T:
    """Call the service, up to `ATTEMPTS` times while it is unavailable."""
    deadline = monotonic() + GIVE_UP_AFTER
    for attempt in range(ATTEMPTS):
        try:
            return _convert_errors(call, master_key_id)
        except KmsUnavailableError:
            if attempt == ATTEMPTS - 1 or monotonic() >= deadline:
                raise
        # Randomness keeps clients that failed together apart. S311: no secret depends on it.
        time.sleep(FIRST_WAIT * 2**attempt * random.uniform(0.5, 1))  # noqa: S311
    raise AssertionError  # the loop returns or raises


def _convert_errors(call: Callable[[], T], master_key_id: str) -> T:
    """Call a client and convert its errors to modcrypt's.

    A client's message may contain anything, even a key. The new error therefore repeats only the
    type, and is not chained.
    """
    try:
        return call()
    except ModcryptError:
        raise
    except Exception as error:
        failure = _convert_error(error, master_key_id)
    raise failure  # outside the handler, which would set the client's error as context


def _convert_error(error: Exception, master_key_id: str) -> KeyRetrievalError:
    kind = type(error).__name__
    if isinstance(error, LookupError):
        return KeyNotFoundError(f"the key service has no master key {master_key_id}")
    if isinstance(error, PermissionError):
        return KeyAccessDeniedError(
            f"the key service refuses the use of master key {master_key_id}"
        )
    if isinstance(error, ConnectionError | TimeoutError):
        return KmsUnavailableError(f"the key service is unavailable: {kind}")
    return KeyRetrievalError(
        f"master key {master_key_id}: the client of the key service failed with "
        f"{kind}{format_origin(error)}"
    )

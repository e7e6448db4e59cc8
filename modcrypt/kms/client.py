"""What a key service does for modcrypt: wrap and unwrap keys under master keys that it keeps.

A client needs two methods, `wrap` and `unwrap`; the others are offered by those services that
have them, and done here by the two where they lack. Only a service that is unavailable is asked
again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol, TypeGuard, TypeVar

from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
    ModcryptError,
)
from modcrypt.keys import KEY_LENGTHS, KeyLike, as_key, key_bytes
from modcrypt.tracebacks import hide_frames

__all__ = [
    "Capabilities",
    "KeyAdmin",
    "KmsClient",
    "MasterKey",
    "capabilities_of",
    "is_current",
    "is_wrapped_key",
    "rewrap",
    "unwrap",
    "wrap",
    "wrap_many",
]

MAX_WRAPPED = 16 << 10
"""Longest wrapped key that is taken from a service or a file, in characters."""

ATTEMPTS = 4
"""How often an unavailable service is asked."""

GIVE_UP_AFTER = 20.0
"""Seconds after which an unavailable service is not asked again: each attempt may take as long."""

FIRST_WAIT = 0.2
"""Seconds before the second attempt; each further wait is twice as long, and up to half less."""


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a key service can do beyond wrapping one key.

    Attributes:
        aad: it binds a wrapped key to additional authenticated data.
        rewrap: it wraps anew under the master key's newest version without giving the key out.
        batch: most keys that one call of `wrap_many` takes; 1 where there is none.
    """

    aad: bool = False
    rewrap: bool = False
    batch: int = 1


class KmsClient(Protocol):
    """A key service (KMS) as modcrypt uses it, from any thread.

    Other errors than those below are taken for its own failure, but for a LookupError, which stands
    for a master key that is not there, PermissionError, ConnectionError and TimeoutError.

    Optional beyond these two: `capabilities`, and what they promise: `rewrap(wrapped,
    master_key_id, *, aad) -> str` and `wrap_many(keys, master_key_id, *, aad) -> list[str]`;
    `is_current(wrapped, master_key_id) -> bool`, where the service can tell whether a key is
    wrapped under the newest version of its master key; `default_key`, the id of the master key
    that the client's URI names; and the methods of `KeyAdmin`.
    """

    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
        """Wrap a key of 16, 24 or 32 bytes; the answer goes into files as it is, as text.

        Raises:
            KeyNotFoundError: there is no such master key.
            KeyAccessDeniedError: the service refuses; `KeyDisabledError` if the key is disabled.
            KmsUnavailableError: it can't be reached, or asks to wait.
        """

    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        """Give the key that `wrap` wrapped, under the newest or an older version.

        Raises:
            KeyMaterialError: it does not unwrap: altered, another master key or other AAD.
            KeyRetrievalError: as `wrap`.
        """


@dataclass(frozen=True, kw_only=True)
class MasterKey:
    """What is known of a master key, without its value.

    Attributes:
        id: by which it is asked for.
        version: the newest one, which wraps; None where the service doesn't tell.
        enabled: whether it wraps and unwraps.
        created: of the newest version, ISO 8601 in UTC; None where the service doesn't tell.
        disabled_versions: older versions that unwrap no more, destroyed ones included.
        destroyed: whether it is gone for good, or scheduled to be, so that nothing that it wrapped
            can be read again.
        destroyed_versions: older versions that are gone for good.
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
        """Make a master key of 256 bits; `ValueError` if it is there."""

    def list_keys(self) -> list[MasterKey]:
        """Give all master keys, by id."""

    def rotate_key(self, master_key_id: str) -> MasterKey:
        """Add a version, which wraps from now on; older ones unwrap as before."""

    def disable_key(self, master_key_id: str, version: int | None = None) -> MasterKey:
        """Stop a master key, or all versions up to `version`, from unwrapping.

        What undoes it, where a service can: `enable_key(master_key_id, version=None)`.
        """


def capabilities_of(client: KmsClient) -> Capabilities:
    """Give what a client says it can do; none of it if it doesn't say."""
    found = getattr(client, "capabilities", None)
    return found if isinstance(found, Capabilities) else Capabilities()


# --- asking a service ----------------------------------------------------------------------------


@hide_frames
def wrap(client: KmsClient, key: KeyLike, master_key_id: str, aad: bytes = b"") -> str:
    """Have a key wrapped; raises as `KmsClient.wrap`, and KeyMaterialError for no answer."""
    raw = key_bytes(as_key(key))
    answer = _asked(lambda: client.wrap(raw, master_key_id, **_aad(aad)), master_key_id)
    return _text(answer, master_key_id)


@hide_frames
def unwrap(client: KmsClient, wrapped: str, master_key_id: str, aad: bytes = b"") -> bytes:
    """Have a key unwrapped; raises as `KmsClient.unwrap`."""
    answer = _asked(lambda: client.unwrap(wrapped, master_key_id, **_aad(aad)), master_key_id)
    if not isinstance(answer, bytes | bytearray) or len(answer) not in KEY_LENGTHS:
        raise KeyMaterialError(
            f"master key {master_key_id}: what the key service unwrapped is no AES key"
        )
    return bytes(answer)


@hide_frames
def wrap_many(
    client: KmsClient, keys: Sequence[KeyLike], master_key_id: str, aad: bytes = b""
) -> list[str]:
    """Have keys wrapped, in as few calls as the service allows; raises as `wrap`."""
    batch = capabilities_of(client).batch
    if batch < 2 or len(keys) < 2:
        return [wrap(client, key, master_key_id, aad) for key in keys]
    many: Any = client
    wrapped: list[str] = []
    for start in range(0, len(keys), batch):
        part = [key_bytes(as_key(key)) for key in keys[start : start + batch]]
        answer = _asked(lambda p=part: many.wrap_many(p, master_key_id, **_aad(aad)), master_key_id)  # type: ignore[misc]
        if not isinstance(answer, list) or len(answer) != len(part):
            raise KeyMaterialError(f"master key {master_key_id}: wrap_many gave no list of keys")
        wrapped += (_text(one, master_key_id) for one in answer)
    return wrapped


@hide_frames
def rewrap(client: KmsClient, wrapped: str, master_key_id: str, aad: bytes = b"") -> str:
    """Have a key wrapped under its master key's newest version; raises as `KmsClient.unwrap`.

    Inside the service, where it can do so.
    """
    if not capabilities_of(client).rewrap:
        return wrap(client, unwrap(client, wrapped, master_key_id, aad), master_key_id, aad)
    able: Any = client
    answer = _asked(lambda: able.rewrap(wrapped, master_key_id, **_aad(aad)), master_key_id)
    return _text(answer, master_key_id)


def is_current(client: KmsClient, wrapped: str, master_key_id: str) -> bool | None:
    """Tell whether a key is wrapped under its master key's newest version; None for unknown."""
    ask = getattr(client, "is_current", None)
    if ask is None:
        return None
    answer = _asked(lambda: ask(wrapped, master_key_id), master_key_id)
    return answer if isinstance(answer, bool) else None


def _aad(aad: bytes) -> dict[str, bytes]:
    return {"aad": aad} if aad else {}  # a client that can't take any isn't given any


def is_wrapped_key(text: object) -> TypeGuard[str]:
    """Return whether a text can be a wrapped key, by the rule that readers of files apply."""
    if not isinstance(text, str) or not 0 < len(text) <= MAX_WRAPPED:
        return False
    return text.isascii() and text.isprintable()


def _text(answer: object, master_key_id: str) -> str:
    if not is_wrapped_key(answer):
        raise KeyMaterialError(
            f"master key {master_key_id}: the key service returned no wrapped key: expected 1 to "
            f"{MAX_WRAPPED} printable ASCII characters"
        )
    return answer


T = TypeVar("T")


def _asked(
    call: Callable[[], T], master_key_id: str, sleep: Callable[[float], None] | None = None
) -> T:
    """Call the service; again, up to `ATTEMPTS` times, where it is unavailable."""
    deadline = monotonic() + GIVE_UP_AFTER
    for attempt in range(ATTEMPTS):
        try:
            return _translated(call, master_key_id)
        except KmsUnavailableError:
            if attempt == ATTEMPTS - 1 or monotonic() >= deadline:
                raise
        # Not all clients that failed together come back together. S311: no secret depends on it.
        (sleep or time.sleep)(FIRST_WAIT * 2**attempt * random.uniform(0.5, 1))  # noqa: S311
    raise AssertionError  # the loop returns or raises


def _translated(call: Callable[[], T], master_key_id: str) -> T:
    """Turn what a client raises into modcrypt's errors.

    Its own message may hold anything, a key among that: only its type is repeated, and the error
    is not chained to it.
    """
    try:
        return call()
    except ModcryptError:
        raise
    except Exception as error:
        failure = _failure(error, master_key_id)
    raise failure  # out here, or its context would be the client's error


def _failure(error: Exception, master_key_id: str) -> KeyRetrievalError:
    kind = type(error).__name__
    if isinstance(error, LookupError):
        return KeyNotFoundError(f"the key service has no master key {master_key_id}")
    if isinstance(error, PermissionError):
        return KeyAccessDeniedError(
            f"the key service refuses the use of master key {master_key_id}"
        )
    if isinstance(error, ConnectionError | TimeoutError):
        return KmsUnavailableError(f"the key service is unavailable: {kind}")
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = ""
    if trace is not None:
        where = f" in {trace.tb_frame.f_globals.get('__name__', '?')}, line {trace.tb_lineno}"
    return KeyRetrievalError(
        f"master key {master_key_id}: the key service's client failed with {kind}{where}"
    )

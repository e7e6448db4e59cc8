"""Calls of a key service through its client, paced and checked.

Each call is repeated while the service is unavailable (`pacing`), its answer is checked, and errors
of a client become modcrypt's without their text, which may contain a key. What a service does not
offer is built from `wrap` and `unwrap`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from modcrypt.errors import (
    KeyAccessDeniedError,
    KeyMaterialError,
    KeyNotFoundError,
    KeyRetrievalError,
    KmsUnavailableError,
    ModcryptError,
)
from modcrypt.io.threads import in_threads
from modcrypt.keys import KeyLike, as_key, key_bytes
from modcrypt.keys.encoding import KEY_LENGTHS
from modcrypt.kms.client import KmsClient, ServiceSigner, capabilities_of
from modcrypt.kms.pacing import pacer_of
from modcrypt.pkmt1.material import MAX_WRAPPED, is_wrapped_key
from modcrypt.runtime.tracebacks import format_origin, hide_frames

THREADS = 16  # number of concurrent calls for many keys to a service without batches
T = TypeVar("T")


@hide_frames
def wrap(client: KmsClient, key: KeyLike, master_key_id: str, aad: bytes = b"") -> str:
    """Wrap a key; raise as `KmsClient.wrap`, and KeyMaterialError for an invalid answer."""
    raw = key_bytes(as_key(key))
    answer = _call(client, lambda: client.wrap(raw, master_key_id, **_pass_aad(aad)), master_key_id)
    return _check_wrapped(answer, master_key_id)


@hide_frames
def unwrap(client: KmsClient, wrapped: str, master_key_id: str, aad: bytes = b"") -> bytes:
    """Unwrap a key; raise as `KmsClient.unwrap`."""
    answer = _call(
        client, lambda: client.unwrap(wrapped, master_key_id, **_pass_aad(aad)), master_key_id
    )
    return _check_key(answer, master_key_id)


@hide_frames
def wrap_many(
    client: KmsClient, keys: Sequence[KeyLike], master_key_id: str, aad: bytes = b""
) -> list[str]:
    """Wrap keys in as few calls as the service allows; raise as `wrap`."""
    if capabilities_of(client).batch < 2 or len(keys) < 2:
        return [wrap(client, key, master_key_id, aad) for key in keys]
    raw = [key_bytes(as_key(key)) for key in keys]
    answers = _call_in_batches(client, "wrap_many", raw, master_key_id, aad)
    return [_check_wrapped(text, master_key_id) for text in answers]


@hide_frames
def unwrap_many(
    client: KmsClient, wrapped: Sequence[str], master_key_id: str, aad: bytes = b""
) -> list[bytes | KeyRetrievalError]:
    """Unwrap keys in as few calls as the service allows, else in threads.

    Return the error of a key in its place, unless the service is unavailable.
    """
    return _call_for_each(
        client, "unwrap_many", wrapped, master_key_id, aad, unwrap, _check_key
    )  # fmt: skip


@hide_frames
def rewrap(client: KmsClient, wrapped: str, master_key_id: str, aad: bytes = b"") -> str:
    """Wrap a key under the newest version of its master key, inside the service if it can.

    Raise as `KmsClient.unwrap`.
    """
    if not capabilities_of(client).rewrap:
        return wrap(client, unwrap(client, wrapped, master_key_id, aad), master_key_id, aad)
    able: Any = client
    answer = _call(
        client, lambda: able.rewrap(wrapped, master_key_id, **_pass_aad(aad)), master_key_id
    )
    return _check_wrapped(answer, master_key_id)


@hide_frames
def rewrap_many(
    client: KmsClient, wrapped: Sequence[str], master_key_id: str, aad: bytes = b""
) -> list[str | KeyRetrievalError]:
    """Wrap keys under the newest version of their master key; return errors as `unwrap_many`."""
    return _call_for_each(
        client, "rewrap_many", wrapped, master_key_id, aad, rewrap, _check_wrapped
    )  # fmt: skip


def can_unwrap_many(client: KmsClient) -> bool:
    """Return whether one call of the service unwraps many keys."""
    return capabilities_of(client).batch > 1 and hasattr(client, "unwrap_many")


def _call_for_each(
    client: KmsClient, method: str, wrapped: Sequence[str], master_key_id: str, aad: bytes,
    call_once: Callable[[KmsClient, str, str, bytes], T], check: Callable[[object, str], T],
) -> list[T | KeyRetrievalError]:  # fmt: skip
    """Call a method for many wrapped keys, or another one for each; return results and errors."""
    if len(wrapped) > 1 and capabilities_of(client).batch > 1 and hasattr(client, method):
        answers = _call_in_batches(client, method, wrapped, master_key_id, aad)
        return [_catch(lambda answer=answer: check(answer, master_key_id)) for answer in answers]  # type: ignore[misc]

    def call(text: str) -> T | KeyRetrievalError:
        return _catch(lambda: call_once(client, text, master_key_id, aad))

    if len(wrapped) < 2:
        return [call(text) for text in wrapped]
    return list(in_threads(call, wrapped, THREADS, "modcrypt-kms"))


def _catch(call: Callable[[], T]) -> T | KeyRetrievalError:
    """Return the result of a call, or its error without frames; raise if unavailable."""
    try:
        return call()
    except KmsUnavailableError:
        raise
    except KeyRetrievalError as error:
        return error.with_traceback(None)


def _call_in_batches(
    client: KmsClient, method: str, items: Sequence[Any], master_key_id: str, aad: bytes
) -> list[Any]:
    """Call a method that takes many keys for parts of them, and return all answers."""
    many: Any = client
    batch = capabilities_of(client).batch
    answers: list[Any] = []
    for start in range(0, len(items), batch):
        part = list(items[start : start + batch])
        # A method that is missing is an error of the client, too.
        answer = _call(
            client,
            lambda p=part: getattr(many, method)(p, master_key_id, **_pass_aad(aad)),  # type: ignore[misc]
            master_key_id,
        )
        if not isinstance(answer, list) or len(answer) != len(part):
            raise KeyMaterialError(
                f"master key {master_key_id}: {method} did not return one result per key"
            )
        answers += answer
    return answers


def is_current(client: KmsClient, wrapped: str, master_key_id: str) -> bool | None:
    """Return whether a key is under its master key's newest version; None if unknown."""
    if (ask := getattr(client, "is_current", None)) is None:
        return None
    answer = _call(client, lambda: ask(wrapped, master_key_id), master_key_id)
    return answer if isinstance(answer, bool) else None


@hide_frames
def find_signer(client: KmsClient, key_id: str) -> ServiceSigner:
    """Return the key of a service that signs, whose calls are retried.

    Raise as `KmsClient.wrap`, and ValueError if the service does not sign.
    """
    if (find := getattr(client, "find_signer", None)) is None:
        raise ValueError(f"keys of {type(client).__name__} do not sign")
    signer: ServiceSigner = _call(client, lambda: find(key_id), key_id)

    def sign(message: bytes) -> bytes:
        return _call(client, lambda: signer.sign(message), key_id)

    return replace(signer, sign=sign)


def _pass_aad(aad: bytes) -> dict[str, bytes]:
    return {"aad": aad} if aad else {}  # a client without AAD support has no such parameter


def _check_wrapped(answer: object, master_key_id: str) -> str:
    if isinstance(answer, KeyRetrievalError):
        raise answer
    if not is_wrapped_key(answer):
        raise KeyMaterialError(
            f"master key {master_key_id}: the key service returned no wrapped key; expected 1 to "
            f"{MAX_WRAPPED} printable ASCII characters"
        )
    return answer


def _check_key(answer: object, master_key_id: str) -> bytes:
    if isinstance(answer, KeyRetrievalError):
        raise answer
    if not isinstance(answer, bytes | bytearray) or len(answer) not in KEY_LENGTHS:
        raise KeyMaterialError(f"master key {master_key_id}: the key service returned no AES key")
    return bytes(answer)


def _call(client: KmsClient, call: Callable[[], T], master_key_id: str) -> T:
    """Call the service at the client's pace, again while it is unavailable."""
    return pacer_of(client).call(lambda: _convert_errors(call, master_key_id))


def _convert_errors(call: Callable[[], T], master_key_id: str) -> T:
    """Call a client and convert its errors to modcrypt's."""
    # A client's message may contain anything, even a key. The new error therefore repeats only the
    # type, and is not chained.
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

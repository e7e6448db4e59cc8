"""Adapters between modcrypt's key services and PyArrow's CryptoFactory, in both directions.

    factory = pe.CryptoFactory(as_pyarrow_client(open_kms("file:keyring.json")))
    kms = from_pyarrow_client(TheirKmsClient(config))

PyArrow's protocol has no AAD and passes nothing about the file. `as_pyarrow_client` therefore binds
the same value to all keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow.parquet.encryption as pe

from modcrypt.errors import KeyMaterialError
from modcrypt.kms import calls as kms
from modcrypt.kms.client import Capabilities, KmsClient, UnpicklableClient, capabilities_of
from modcrypt.runtime.tracebacks import hide_frames


def as_pyarrow_client(
    client: KmsClient, *, aad: bytes = b""
) -> Callable[[pe.KmsConnectionConfig], pe.KmsClient]:
    """Return a client factory for `pe.CryptoFactory`: PyArrow then wraps and unwraps by `client`.

    modcrypt makes the retries and raises the errors: PyArrow passes on a `KeyAccessDeniedError`
    unchanged. The KmsConnectionConfig is ignored, because an address in it may come from a file,
    and so from anyone.

    Args:
        client: Client of the key service, which PyArrow's threads call.
        aad: AAD bound to every key; reading files requires the same AAD.

    Raises:
        ValueError: `client` does not support AAD, and `aad` is not empty.
    """
    if aad and not capabilities_of(client).aad:
        raise ValueError("this key service does not support AAD; remove aad")
    return lambda config: _ForPyArrow(client, aad)


def from_pyarrow_client(client: pe.KmsClient) -> KmsClient:
    """Return a PyArrow KmsClient as a modcrypt `KmsClient`."""
    return _OfPyArrow(client)


class _ForPyArrow(UnpicklableClient, pe.KmsClient):  # type: ignore[misc]  # PyArrow ships no types
    """A modcrypt client with the interface that PyArrow expects."""

    def __init__(self, client: KmsClient, aad: bytes) -> None:
        super().__init__()
        self._client = client
        self._aad = aad

    def __repr__(self) -> str:
        return f"as_pyarrow_client({self._client!r})"

    @hide_frames
    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> str:
        return kms.wrap(self._client, bytes(key_bytes), master_key_identifier, self._aad)

    @hide_frames
    def unwrap_key(self, wrapped_key: str | bytes, master_key_identifier: str) -> bytes:
        wrapped = _decode_wrapped(wrapped_key, master_key_identifier)
        return kms.unwrap(self._client, wrapped, master_key_identifier, self._aad)


class _OfPyArrow(UnpicklableClient):
    """A PyArrow client with the interface that modcrypt expects."""

    capabilities = Capabilities()

    def __init__(self, client: Any) -> None:
        self._client = client

    def __repr__(self) -> str:
        return f"from_pyarrow_client({type(self._client).__name__})"

    @hide_frames
    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
        _refuse_aad(aad)
        return _decode_wrapped(self._client.wrap_key(key, master_key_id), master_key_id)

    @hide_frames
    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        _refuse_aad(aad)
        key: bytes = self._client.unwrap_key(wrapped, master_key_id)
        return key  # `calls.unwrap` checks that it is an AES key


def _refuse_aad(aad: bytes) -> None:
    if aad:
        raise ValueError("PyArrow's key services do not support AAD; remove the AAD")


def _decode_wrapped(wrapped: object, master_key_id: str) -> str:
    """Return a wrapped key as text; PyArrow passes str, and its clients return str or bytes."""
    if isinstance(wrapped, str):
        return wrapped
    try:
        if isinstance(wrapped, bytes):
            return wrapped.decode()
    except UnicodeDecodeError:
        pass
    raise KeyMaterialError(f"master key {master_key_id}: the wrapped key is not UTF-8 text")

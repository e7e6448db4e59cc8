"""Key services for PyArrow's CryptoFactory, and PyArrow's for modcrypt.

    factory = pe.CryptoFactory(as_pyarrow_client(open_kms("file:keyring.json")))
    kms = from_pyarrow_client(TheirKmsClient(config))

PyArrow's protocol has no AAD. It wraps and unwraps without a word about the file, so what
`as_pyarrow_client` binds is one value for all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import pyarrow.parquet.encryption as pe

from modcrypt.errors import KeyMaterialError
from modcrypt.kms import client as kms
from modcrypt.kms.client import Capabilities, KmsClient
from modcrypt.tracebacks import hide_frames

__all__ = ["as_pyarrow_client", "from_pyarrow_client"]


def as_pyarrow_client(
    client: KmsClient, *, aad: bytes = b""
) -> Callable[[pe.KmsConnectionConfig], pe.KmsClient]:
    """Give what `pe.CryptoFactory` takes: PyArrow then wraps and unwraps by `client`.

    Retries and errors are modcrypt's: PyArrow passes a `KeyAccessDeniedError` on as it is. The
    KmsConnectionConfig is not used: an address in it may come from a file, and so from anyone.

    Args:
        client: it is asked from PyArrow's threads.
        aad: bound to every key; files are read with the same.

    Raises:
        ValueError: `client` can't bind AAD, and there is some.
    """
    if aad and not kms.capabilities_of(client).aad:
        raise ValueError("this key service binds a wrapped key to no AAD")
    return lambda config: _ForPyArrow(client, aad)


def from_pyarrow_client(client: pe.KmsClient) -> KmsClient:
    """Give a PyArrow KmsClient as one of modcrypt's."""
    return _OfPyArrow(client)


class _ForPyArrow(pe.KmsClient):  # type: ignore[misc]  # PyArrow ships no types
    """A modcrypt client, as PyArrow asks for one."""

    def __init__(self, client: KmsClient, aad: bytes) -> None:
        super().__init__()
        self._client = client
        self._aad = aad

    def __repr__(self) -> str:
        return f"as_pyarrow_client({self._client!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key service's client can't be pickled: pass its URI instead")

    @hide_frames
    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> str:
        return kms.wrap(self._client, bytes(key_bytes), master_key_identifier, self._aad)

    @hide_frames
    def unwrap_key(self, wrapped_key: str | bytes, master_key_identifier: str) -> bytes:
        wrapped = _text(wrapped_key, master_key_identifier)
        return kms.unwrap(self._client, wrapped, master_key_identifier, self._aad)


class _OfPyArrow:
    """A PyArrow client, as modcrypt asks for one."""

    capabilities = Capabilities()

    def __init__(self, client: Any) -> None:
        self._client = client

    def __repr__(self) -> str:
        return f"from_pyarrow_client({type(self._client).__name__})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key service's client can't be pickled: pass its URI instead")

    @hide_frames
    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
        _refuse_aad(aad)
        return _text(self._client.wrap_key(key, master_key_id), master_key_id)

    @hide_frames
    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        _refuse_aad(aad)
        key: bytes = self._client.unwrap_key(wrapped, master_key_id)
        return key  # which `client.unwrap` holds to an AES key's form


def _refuse_aad(aad: bytes) -> None:
    if aad:
        raise ValueError("PyArrow's key services bind a wrapped key to no AAD")


def _text(wrapped: object, master_key_id: str) -> str:
    """Give a wrapped key as text: PyArrow hands it out as str, its clients as either.

    Raises:
        KeyMaterialError: it is neither, or no UTF-8.
    """
    if isinstance(wrapped, str):
        return wrapped
    try:
        if isinstance(wrapped, bytes):
            return wrapped.decode()
    except UnicodeDecodeError:
        pass
    raise KeyMaterialError(f"master key {master_key_id}: a wrapped key is text")

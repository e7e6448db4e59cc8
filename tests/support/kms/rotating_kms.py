"""A key service in memory whose master keys have versions, for tests of rotation.

Its master keys follow from their ids and versions, so that every process of a test has the same.
Wrapped keys name their version as Vault's do: `vault:v2:...`.
"""

from __future__ import annotations

import base64
import hashlib
import os

import pyarrow.parquet.encryption as pe
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from modcrypt.errors import KeyDisabledError, KeyMaterialError, KeyNotFoundError
from modcrypt.kms import Capabilities
from modcrypt.kms.client import KmsClient
from modcrypt.kms.services.pyarrow_clients import as_pyarrow_client


class BasicKms:
    """Wraps and unwraps, and can do nothing else; counts what it is asked for."""

    def __init__(self, **newest: int) -> None:
        self.newest = newest  # master key id to its newest version
        self.disabled: dict[str, int] = {}  # versions up to this one unwrap no more
        self.denied: set[str] = set()
        self.calls: list[tuple[str, str]] = []  # operation and master key id

    def rotate(self, *master_key_ids: str) -> None:
        """Add a version."""
        for key_id in master_key_ids or tuple(self.newest):
            self.newest[key_id] += 1

    def disable_old(self, *master_key_ids: str) -> None:
        """Disable all versions but the newest."""
        for key_id in master_key_ids or tuple(self.newest):
            self.disabled[key_id] = self.newest[key_id] - 1

    def disable_all(self, *master_key_ids: str) -> None:
        """Disable every version."""
        for key_id in master_key_ids:
            self.disabled[key_id] = self.newest[key_id]

    def count(self, operation: str) -> int:
        """Return the number of calls of an operation."""
        return sum(called == operation for called, _ in self.calls)

    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
        """Wrap under the newest version."""
        self._record_call("wrap", master_key_id)
        return self._wrap_key(key, master_key_id, aad)

    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        """Unwrap under the version that the text names."""
        self._record_call("unwrap", master_key_id)
        return self._unwrap_key(wrapped, master_key_id, aad)

    def _record_call(self, operation: str, master_key_id: str) -> None:
        self.calls.append((operation, master_key_id))
        if master_key_id in self.denied:
            raise PermissionError
        if master_key_id not in self.newest:
            raise KeyNotFoundError(f"no master key {master_key_id}")

    def _wrap_key(self, key: bytes, master_key_id: str, aad: bytes) -> str:
        version, nonce = self.newest[master_key_id], os.urandom(12)
        master = AESGCM(self._master(master_key_id, version))
        block = nonce + master.encrypt(nonce, key, master_key_id.encode() + aad)
        return f"vault:v{version}:{base64.b64encode(block).decode()}"

    def _unwrap_key(self, wrapped: str, master_key_id: str, aad: bytes) -> bytes:
        try:
            _, version, text = wrapped.split(":")
            if int(version[1:]) <= self.disabled.get(master_key_id, 0):
                raise KeyDisabledError(f"version {version} of {master_key_id} is disabled")
            master = AESGCM(self._master(master_key_id, int(version[1:])))
            block = base64.b64decode(text, validate=True)
            return master.decrypt(block[:12], block[12:], master_key_id.encode() + aad)
        except (ValueError, InvalidTag):
            raise KeyMaterialError(f"not wrapped under {master_key_id}") from None

    def _master(self, master_key_id: str, version: int) -> bytes:
        return hashlib.sha256(f"{master_key_id} {version}".encode()).digest()


class RotatingKms(BasicKms):
    """Also reports which keys are wrapped under the newest versions."""

    def is_current(self, wrapped: str, master_key_id: str) -> bool:
        """Compare the version that the text names."""
        self.calls.append(("is_current", master_key_id))
        return wrapped.startswith(f"vault:v{self.newest.get(master_key_id)}:")


class RewrappingKms(RotatingKms):
    """Also wraps anew without giving the key out."""

    capabilities = Capabilities(rewrap=True)

    def rewrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> str:
        """Wrap under the newest version."""
        self._record_call("rewrap", master_key_id)
        return self._wrap_key(self._unwrap_key(wrapped, master_key_id, aad), master_key_id, aad)


def crypto_factory(kms: KmsClient) -> pe.CryptoFactory:
    """Return PyArrow's key tools on a key service."""
    return pe.CryptoFactory(as_pyarrow_client(kms))

"""The key service of Iceberg's own tests."""

from __future__ import annotations

import base64
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MASTERS = {"keyA": b"0123456789012345", "keyB": b"1123456789012345"}


class SampleKms:
    """The key service of Iceberg's own tests: nonce | AES-GCM(master key) | tag, in base64."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
        self.calls.append(("wrap", master_key_id))
        nonce = os.urandom(12)
        sealed = AESGCM(MASTERS[master_key_id]).encrypt(nonce, key, None)
        return base64.b64encode(nonce + sealed).decode()

    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        self.calls.append(("unwrap", master_key_id))
        block = base64.b64decode(wrapped)
        try:
            return AESGCM(MASTERS[master_key_id]).decrypt(block[:12], block[12:], None)
        except InvalidTag:
            raise PermissionError("not wrapped by this master key") from None


class Refusing(SampleKms):
    """Refuses master keys, or every call after a number of them."""

    def __init__(self, *refused: str, after: int | None = None) -> None:
        super().__init__()
        self.refused, self.after = refused, after

    def _check(self, master_key_id: str) -> None:
        if master_key_id in self.refused or (
            self.after is not None and len(self.calls) >= self.after
        ):
            raise PermissionError("refused")

    def wrap(self, key: bytes, master_key_id: str, *, aad: bytes = b"") -> str:
        self._check(master_key_id)
        return super().wrap(key, master_key_id, aad=aad)

    def unwrap(self, wrapped: str, master_key_id: str, *, aad: bytes = b"") -> bytes:
        self._check(master_key_id)
        return super().unwrap(wrapped, master_key_id, aad=aad)

"""PyArrow's key tools on the master keys of a keyring."""

from __future__ import annotations

import base64
import json
import os

import pyarrow.fs as pafs
import pyarrow.parquet.encryption as pe
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tests.support.keys import COLUMN_KEY, FOOTER_KEY

MASTERS = {"footer": FOOTER_KEY, "pii": COLUMN_KEY}


class ArrowKms(pe.KmsClient):  # type: ignore[misc]  # pyarrow ships no types
    """Holds the imported keys; takes LocalWrap's JSON, and gives bare base64."""

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        nonce, aad = os.urandom(12), master_key_identifier.encode()
        sealed = AESGCM(MASTERS[master_key_identifier]).encrypt(nonce, key_bytes, aad)
        return base64.b64encode(nonce + sealed)

    def unwrap_key(self, wrapped_key: str, master_key_identifier: str) -> bytes:
        members = json.loads(wrapped_key)
        assert members.keys() == {"masterKeyVersion", "encryptedKey"}
        block, aad = base64.b64decode(members["encryptedKey"]), master_key_identifier.encode()
        return AESGCM(MASTERS[master_key_identifier]).decrypt(block[:12], block[12:], aad)


FACTORY = pe.CryptoFactory(lambda configuration: ArrowKms())
LOCAL = pafs.LocalFileSystem()

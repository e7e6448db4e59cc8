"""Files encrypted and decrypted in memory."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import modcrypt as mc


def encrypt(plain: bytes, **properties: Any) -> bytes:
    """Encrypt a file in memory."""
    out = io.BytesIO()
    mc.encrypt_parquet(plain, out, mc.FileEncryptionProperties(**properties))
    return out.getvalue()


def decrypt(encrypted: bytes, **properties: Any) -> bytes:
    """Decrypt a file in memory."""
    out = io.BytesIO()
    mc.decrypt_parquet(encrypted, out, mc.FileDecryptionProperties(**properties))
    return out.getvalue()


def decrypt_with(path: Path, tools: mc.KeyTools, case: Any) -> bytes:
    out = io.BytesIO()
    mc.decrypt_parquet(path, out, tools.decryption(accept_algorithms=[case["algorithm"]]))
    return out.getvalue()

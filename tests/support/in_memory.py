"""Files encrypted and decrypted in memory."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import modcrypt as mc


def run(function: Callable[..., Any], file: Any, *arguments: Any, **options: Any) -> bytes:
    """Return what a function that takes a source and a destination writes."""
    out = io.BytesIO()
    function(file, out, *arguments, **options)
    return out.getvalue()


def encrypt(plain: bytes, **properties: Any) -> bytes:
    """Encrypt a file in memory."""
    return run(mc.encrypt_parquet, plain, mc.FileEncryptionProperties(**properties))


def decrypt(encrypted: bytes, **properties: Any) -> bytes:
    """Decrypt a file in memory."""
    return run(mc.decrypt_parquet, encrypted, mc.FileDecryptionProperties(**properties))


def decrypt_with(path: Path, tools: mc.KeyTools, case: Any) -> bytes:
    return run(mc.decrypt_parquet, path, tools.decryption(accept_algorithms=[case["algorithm"]]))

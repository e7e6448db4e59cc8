"""Parquet Modular Encryption in Python: files encrypted module by module.

The names below are imported on first use, so that `import modcrypt` and the command line start
at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modcrypt.aad import ModuleId, ModuleType
    from modcrypt.errors import (
        AadPrefixError,
        ChecksumError,
        FooterSignatureError,
        FormatError,
        IntegrityError,
        KeyAccessDeniedError,
        KeyExhaustedError,
        KeyMaterialError,
        KeyNotFoundError,
        KeyRetrievalError,
        LimitError,
        ModcryptError,
        PlaintextError,
        TagMismatchError,
        TruncationError,
        UnsupportedFormatError,
    )
    from modcrypt.keys import Key, KeyRetriever
    from modcrypt.parquet.decryptor import ModuleSpan, decrypt_parquet, list_modules
    from modcrypt.parquet.encryptor import encrypt_parquet
    from modcrypt.parquet.properties import FileDecryptionProperties, FileEncryptionProperties
    from modcrypt.parquet.view import open_parquet

__version__ = "0.1.0"

__all__ = [
    "AadPrefixError",
    "ChecksumError",
    "FileDecryptionProperties",
    "FileEncryptionProperties",
    "FooterSignatureError",
    "FormatError",
    "IntegrityError",
    "Key",
    "KeyAccessDeniedError",
    "KeyExhaustedError",
    "KeyMaterialError",
    "KeyNotFoundError",
    "KeyRetrievalError",
    "KeyRetriever",
    "LimitError",
    "ModcryptError",
    "ModuleId",
    "ModuleSpan",
    "ModuleType",
    "PlaintextError",
    "TagMismatchError",
    "TruncationError",
    "UnsupportedFormatError",
    "decrypt_parquet",
    "encrypt_parquet",
    "list_modules",
    "open_parquet",
]

_ROOM_OF = {
    "FileDecryptionProperties": "modcrypt.parquet.properties",
    "FileEncryptionProperties": "modcrypt.parquet.properties",
    "Key": "modcrypt.keys",
    "KeyRetriever": "modcrypt.keys",
    "ModuleId": "modcrypt.aad",
    "ModuleSpan": "modcrypt.parquet.decryptor",
    "ModuleType": "modcrypt.aad",
    "decrypt_parquet": "modcrypt.parquet.decryptor",
    "encrypt_parquet": "modcrypt.parquet.encryptor",
    "list_modules": "modcrypt.parquet.decryptor",
    "open_parquet": "modcrypt.parquet.view",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'modcrypt' has no attribute {name!r}")
    room = import_module(_ROOM_OF.get(name, "modcrypt.errors"))
    value = globals()[name] = getattr(room, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

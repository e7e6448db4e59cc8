"""Parquet Modular Encryption and AGS1 in Python: files encrypted module by module.

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

__version__ = "0.1.0"

_ROOMS = {
    "modcrypt.aad": ("ModuleId", "ModuleType"),
    "modcrypt.errors": (
        "AadPrefixError",
        "ChecksumError",
        "FooterSignatureError",
        "FormatError",
        "IntegrityError",
        "KeyAccessDeniedError",
        "KeyExhaustedError",
        "KeyMaterialError",
        "KeyNotFoundError",
        "KeyRetrievalError",
        "LimitError",
        "ModcryptError",
        "PlaintextError",
        "TagMismatchError",
        "TruncationError",
        "UnsupportedFormatError",
    ),
    "modcrypt.keys": ("Key", "KeyRetriever"),
    "modcrypt.parquet.decryptor": ("ModuleSpan", "decrypt_parquet", "list_modules"),
    "modcrypt.parquet.encryptor": ("encrypt_parquet",),
    "modcrypt.parquet.properties": ("FileDecryptionProperties", "FileEncryptionProperties"),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [  # noqa: PLE0604 (the names are strings, from the table above)
    *_ROOM_OF,
]


def __getattr__(name: str) -> object:
    room = _ROOM_OF.get(name)
    if room is None:
        raise AttributeError(f"module 'modcrypt' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(room), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOM_OF})

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
    from modcrypt.parquet.dataset import iter_batches, read_table
    from modcrypt.parquet.dataset_writer import write_dataset
    from modcrypt.parquet.decryptor import ModuleSpan, decrypt_parquet, list_modules
    from modcrypt.parquet.encryptor import encrypt_parquet
    from modcrypt.parquet.properties import FileDecryptionProperties, FileEncryptionProperties
    from modcrypt.parquet.reader import ParquetFile
    from modcrypt.parquet.view import open_parquet
    from modcrypt.parquet.writer import ParquetWriter, write_table

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
    "ParquetFile",
    "ParquetWriter",
    "PlaintextError",
    "TagMismatchError",
    "TruncationError",
    "UnsupportedFormatError",
    "decrypt_parquet",
    "encrypt_parquet",
    "iter_batches",
    "list_modules",
    "open_parquet",
    "read_table",
    "write_dataset",
    "write_table",
]

_ROOM_OF = {
    "FileDecryptionProperties": "modcrypt.parquet.properties",
    "FileEncryptionProperties": "modcrypt.parquet.properties",
    "Key": "modcrypt.keys",
    "KeyRetriever": "modcrypt.keys",
    "ModuleId": "modcrypt.aad",
    "ModuleSpan": "modcrypt.parquet.decryptor",
    "ModuleType": "modcrypt.aad",
    "ParquetFile": "modcrypt.parquet.reader",
    "ParquetWriter": "modcrypt.parquet.writer",
    "decrypt_parquet": "modcrypt.parquet.decryptor",
    "encrypt_parquet": "modcrypt.parquet.encryptor",
    "iter_batches": "modcrypt.parquet.dataset",
    "list_modules": "modcrypt.parquet.decryptor",
    "open_parquet": "modcrypt.parquet.view",
    "read_table": "modcrypt.parquet.dataset",
    "write_dataset": "modcrypt.parquet.dataset_writer",
    "write_table": "modcrypt.parquet.writer",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'modcrypt' has no attribute {name!r}")
    room = import_module(_ROOM_OF.get(name, "modcrypt.errors"))
    value = globals()[name] = getattr(room, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Parquet Modular Encryption and AGS1 in Python: encrypted files for data lakes.

The names below are imported on first use, so that `import modcrypt` and the command line start
at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modcrypt.aad import BlockId, ModuleId, ModuleType
    from modcrypt.ags1.files import Ags1Summary, decrypt_ags1, encrypt_ags1, inspect_ags1
    from modcrypt.ags1.lengths import UNVERIFIED
    from modcrypt.ags1.reader import Ags1Reader
    from modcrypt.ags1.writer import Ags1Writer
    from modcrypt.errors import (
        AadPrefixError,
        ChecksumError,
        FooterSignatureError,
        FormatError,
        IntegrityError,
        KeyAccessDeniedError,
        KeyDisabledError,
        KeyExhaustedError,
        KeyMaterialError,
        KeyNotFoundError,
        KeyRetrievalError,
        KmsUnavailableError,
        LimitError,
        ModcryptError,
        PlaintextError,
        TagMismatchError,
        TruncationError,
        UnsupportedFormatError,
    )
    from modcrypt.key_metadata import StandardKeyMetadata
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
    "UNVERIFIED",
    "AadPrefixError",
    "Ags1Reader",
    "Ags1Summary",
    "Ags1Writer",
    "BlockId",
    "ChecksumError",
    "FileDecryptionProperties",
    "FileEncryptionProperties",
    "FooterSignatureError",
    "FormatError",
    "IntegrityError",
    "Key",
    "KeyAccessDeniedError",
    "KeyDisabledError",
    "KeyExhaustedError",
    "KeyMaterialError",
    "KeyNotFoundError",
    "KeyRetrievalError",
    "KeyRetriever",
    "KmsUnavailableError",
    "LimitError",
    "ModcryptError",
    "ModuleId",
    "ModuleSpan",
    "ModuleType",
    "ParquetFile",
    "ParquetWriter",
    "PlaintextError",
    "StandardKeyMetadata",
    "TagMismatchError",
    "TruncationError",
    "UnsupportedFormatError",
    "decrypt_ags1",
    "decrypt_parquet",
    "encrypt_ags1",
    "encrypt_parquet",
    "inspect_ags1",
    "iter_batches",
    "list_modules",
    "open_parquet",
    "read_table",
    "write_dataset",
    "write_table",
]

_ROOM_OF = {
    "UNVERIFIED": "modcrypt.ags1.lengths",
    "Ags1Reader": "modcrypt.ags1.reader",
    "Ags1Summary": "modcrypt.ags1.files",
    "Ags1Writer": "modcrypt.ags1.writer",
    "BlockId": "modcrypt.aad",
    "FileDecryptionProperties": "modcrypt.parquet.properties",
    "FileEncryptionProperties": "modcrypt.parquet.properties",
    "Key": "modcrypt.keys",
    "KeyRetriever": "modcrypt.keys",
    "ModuleId": "modcrypt.aad",
    "ModuleSpan": "modcrypt.parquet.decryptor",
    "ModuleType": "modcrypt.aad",
    "ParquetFile": "modcrypt.parquet.reader",
    "ParquetWriter": "modcrypt.parquet.writer",
    "StandardKeyMetadata": "modcrypt.key_metadata",
    "decrypt_ags1": "modcrypt.ags1.files",
    "decrypt_parquet": "modcrypt.parquet.decryptor",
    "encrypt_ags1": "modcrypt.ags1.files",
    "encrypt_parquet": "modcrypt.parquet.encryptor",
    "inspect_ags1": "modcrypt.ags1.files",
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

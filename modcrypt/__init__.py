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
        CommitConflictError,
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
    from modcrypt.kms.arrow import as_pyarrow_client, from_pyarrow_client
    from modcrypt.kms.audit import AuditEvent, audit_to_json_lines, audit_to_logging
    from modcrypt.kms.client import Capabilities, KeyAdmin, KmsClient, MasterKey
    from modcrypt.kms.key_tools import KeyTools
    from modcrypt.kms.keyring import Keyring
    from modcrypt.kms.policy import Policy
    from modcrypt.kms.references import open_kms
    from modcrypt.kms.rotation import RotatedFile, rotate_keys
    from modcrypt.kms.scan import ScannedKey, scan_keys
    from modcrypt.kms.shred_proof import KeyProof, Proof, ProvenFile, prove_shredded
    from modcrypt.kms.shredding import ShreddedFile, shred_keys
    from modcrypt.parquet.dataset import iter_batches, read_table
    from modcrypt.parquet.dataset_verification import verify_dataset
    from modcrypt.parquet.dataset_writer import write_dataset
    from modcrypt.parquet.decryptor import ModuleSpan, decrypt_parquet, list_modules
    from modcrypt.parquet.encryptor import encrypt_parquet
    from modcrypt.parquet.findings import (
        DatasetVerification,
        Finding,
        Unauthenticated,
        Verification,
    )
    from modcrypt.parquet.inspection import ColumnInspection, Inspection, inspect_parquet
    from modcrypt.parquet.key_info import KeyInfo
    from modcrypt.parquet.properties import FileDecryptionProperties, FileEncryptionProperties
    from modcrypt.parquet.reader import ParquetFile
    from modcrypt.parquet.rekey import mask_parquet, rekey_parquet, share_parquet
    from modcrypt.parquet.rewriting import Rewritten
    from modcrypt.parquet.verification import verify_parquet
    from modcrypt.parquet.view import open_parquet
    from modcrypt.parquet.writer import ParquetWriter, write_table

__version__ = "0.1.0"

__all__ = [
    "UNVERIFIED",
    "AadPrefixError",
    "Ags1Reader",
    "Ags1Summary",
    "Ags1Writer",
    "AuditEvent",
    "BlockId",
    "Capabilities",
    "ChecksumError",
    "ColumnInspection",
    "CommitConflictError",
    "DatasetVerification",
    "FileDecryptionProperties",
    "FileEncryptionProperties",
    "Finding",
    "FooterSignatureError",
    "FormatError",
    "Inspection",
    "IntegrityError",
    "Key",
    "KeyAccessDeniedError",
    "KeyAdmin",
    "KeyDisabledError",
    "KeyExhaustedError",
    "KeyInfo",
    "KeyMaterialError",
    "KeyNotFoundError",
    "KeyProof",
    "KeyRetrievalError",
    "KeyRetriever",
    "KeyTools",
    "Keyring",
    "KmsClient",
    "KmsUnavailableError",
    "LimitError",
    "MasterKey",
    "ModcryptError",
    "ModuleId",
    "ModuleSpan",
    "ModuleType",
    "ParquetFile",
    "ParquetWriter",
    "PlaintextError",
    "Policy",
    "Proof",
    "ProvenFile",
    "Rewritten",
    "RotatedFile",
    "ScannedKey",
    "ShreddedFile",
    "StandardKeyMetadata",
    "TagMismatchError",
    "TruncationError",
    "Unauthenticated",
    "UnsupportedFormatError",
    "Verification",
    "as_pyarrow_client",
    "audit_to_json_lines",
    "audit_to_logging",
    "decrypt_ags1",
    "decrypt_parquet",
    "encrypt_ags1",
    "encrypt_parquet",
    "from_pyarrow_client",
    "inspect_ags1",
    "inspect_parquet",
    "iter_batches",
    "list_modules",
    "mask_parquet",
    "open_kms",
    "open_parquet",
    "prove_shredded",
    "read_table",
    "rekey_parquet",
    "rotate_keys",
    "scan_keys",
    "share_parquet",
    "shred_keys",
    "verify_dataset",
    "verify_parquet",
    "write_dataset",
    "write_table",
]

_ROOM_OF = {
    "UNVERIFIED": "modcrypt.ags1.lengths",
    "Ags1Reader": "modcrypt.ags1.reader",
    "Ags1Summary": "modcrypt.ags1.files",
    "Ags1Writer": "modcrypt.ags1.writer",
    "AuditEvent": "modcrypt.kms.audit",
    "BlockId": "modcrypt.aad",
    "Capabilities": "modcrypt.kms.client",
    "ColumnInspection": "modcrypt.parquet.inspection",
    "CommitConflictError": "modcrypt.errors",
    "DatasetVerification": "modcrypt.parquet.findings",
    "FileDecryptionProperties": "modcrypt.parquet.properties",
    "FileEncryptionProperties": "modcrypt.parquet.properties",
    "Finding": "modcrypt.parquet.findings",
    "Inspection": "modcrypt.parquet.inspection",
    "Key": "modcrypt.keys",
    "KeyAdmin": "modcrypt.kms.client",
    "KeyInfo": "modcrypt.parquet.key_info",
    "KeyProof": "modcrypt.kms.shred_proof",
    "KeyRetriever": "modcrypt.keys",
    "KeyTools": "modcrypt.kms.key_tools",
    "Keyring": "modcrypt.kms.keyring",
    "KmsClient": "modcrypt.kms.client",
    "MasterKey": "modcrypt.kms.client",
    "ModuleId": "modcrypt.aad",
    "ModuleSpan": "modcrypt.parquet.decryptor",
    "ModuleType": "modcrypt.aad",
    "ParquetFile": "modcrypt.parquet.reader",
    "ParquetWriter": "modcrypt.parquet.writer",
    "Policy": "modcrypt.kms.policy",
    "Proof": "modcrypt.kms.shred_proof",
    "ProvenFile": "modcrypt.kms.shred_proof",
    "Rewritten": "modcrypt.parquet.rewriting",
    "RotatedFile": "modcrypt.kms.rotation",
    "ScannedKey": "modcrypt.kms.scan",
    "ShreddedFile": "modcrypt.kms.shredding",
    "StandardKeyMetadata": "modcrypt.key_metadata",
    "Unauthenticated": "modcrypt.parquet.findings",
    "Verification": "modcrypt.parquet.findings",
    "as_pyarrow_client": "modcrypt.kms.arrow",
    "audit_to_json_lines": "modcrypt.kms.audit",
    "audit_to_logging": "modcrypt.kms.audit",
    "decrypt_ags1": "modcrypt.ags1.files",
    "decrypt_parquet": "modcrypt.parquet.decryptor",
    "encrypt_ags1": "modcrypt.ags1.files",
    "encrypt_parquet": "modcrypt.parquet.encryptor",
    "from_pyarrow_client": "modcrypt.kms.arrow",
    "inspect_ags1": "modcrypt.ags1.files",
    "inspect_parquet": "modcrypt.parquet.inspection",
    "iter_batches": "modcrypt.parquet.dataset",
    "list_modules": "modcrypt.parquet.decryptor",
    "mask_parquet": "modcrypt.parquet.rekey",
    "open_kms": "modcrypt.kms.references",
    "open_parquet": "modcrypt.parquet.view",
    "prove_shredded": "modcrypt.kms.shred_proof",
    "read_table": "modcrypt.parquet.dataset",
    "rekey_parquet": "modcrypt.parquet.rekey",
    "rotate_keys": "modcrypt.kms.rotation",
    "scan_keys": "modcrypt.kms.scan",
    "share_parquet": "modcrypt.parquet.rekey",
    "shred_keys": "modcrypt.kms.shredding",
    "verify_dataset": "modcrypt.parquet.dataset_verification",
    "verify_parquet": "modcrypt.parquet.verification",
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

"""Parquet Modular Encryption and AGS1 in Python: encrypted files for data lakes.

The names below are imported on first use, which keeps `import modcrypt` and the command line fast.
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
    from modcrypt.jobs.key_rotation import RotatedFile, rotate_keys
    from modcrypt.jobs.key_scan import ScannedKey, scan_keys
    from modcrypt.jobs.shredding import ShreddedFile, shred_keys
    from modcrypt.jobs.shredding_proof import KeyProof, Proof, ProvenFile, prove_shredded
    from modcrypt.key_metadata import StandardKeyMetadata
    from modcrypt.keys import Key, KeyRetriever
    from modcrypt.kms.audit import AuditEvent, audit_to_json_lines, audit_to_logging
    from modcrypt.kms.client import Capabilities, KeyAdmin, KmsClient, MasterKey
    from modcrypt.kms.key_tools import KeyTools
    from modcrypt.kms.keyring.keyring import Keyring
    from modcrypt.kms.policy import Policy
    from modcrypt.kms.references import open_kms
    from modcrypt.kms.services.pyarrow_clients import as_pyarrow_client, from_pyarrow_client
    from modcrypt.parquet.arrow.parquet_file import ParquetFile
    from modcrypt.parquet.arrow.view import open_parquet
    from modcrypt.parquet.arrow.writer import ParquetWriter, write_table
    from modcrypt.parquet.convert.decryptor import decrypt_parquet
    from modcrypt.parquet.convert.encryptor import encrypt_parquet
    from modcrypt.parquet.crypto.key_info import KeyInfo
    from modcrypt.parquet.crypto.properties import (
        FileDecryptionProperties,
        FileEncryptionProperties,
    )
    from modcrypt.parquet.datasets.dataset_reader import iter_batches, read_table
    from modcrypt.parquet.datasets.dataset_writer import write_dataset
    from modcrypt.parquet.rewrite.file_rewrite import Rewritten
    from modcrypt.parquet.rewrite.rekey import mask_parquet, rekey_parquet, share_parquet
    from modcrypt.parquet.verify.dataset_verification import verify_dataset
    from modcrypt.parquet.verify.file_verification import verify_parquet
    from modcrypt.parquet.verify.findings import (
        DatasetVerification,
        Finding,
        Unauthenticated,
        Verification,
    )
    from modcrypt.parquet.verify.inspection import ColumnInspection, Inspection, inspect_parquet

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

_MODULE_OF = {
    "UNVERIFIED": "modcrypt.ags1.lengths",
    "Ags1Reader": "modcrypt.ags1.reader",
    "Ags1Summary": "modcrypt.ags1.files",
    "Ags1Writer": "modcrypt.ags1.writer",
    "AuditEvent": "modcrypt.kms.audit",
    "BlockId": "modcrypt.aad",
    "Capabilities": "modcrypt.kms.client",
    "ColumnInspection": "modcrypt.parquet.verify.inspection",
    "CommitConflictError": "modcrypt.errors",
    "DatasetVerification": "modcrypt.parquet.verify.findings",
    "FileDecryptionProperties": "modcrypt.parquet.crypto.properties",
    "FileEncryptionProperties": "modcrypt.parquet.crypto.properties",
    "Finding": "modcrypt.parquet.verify.findings",
    "Inspection": "modcrypt.parquet.verify.inspection",
    "Key": "modcrypt.keys",
    "KeyAdmin": "modcrypt.kms.client",
    "KeyInfo": "modcrypt.parquet.crypto.key_info",
    "KeyProof": "modcrypt.jobs.shredding_proof",
    "KeyRetriever": "modcrypt.keys",
    "KeyTools": "modcrypt.kms.key_tools",
    "Keyring": "modcrypt.kms.keyring.keyring",
    "KmsClient": "modcrypt.kms.client",
    "MasterKey": "modcrypt.kms.client",
    "ModuleId": "modcrypt.aad",
    "ModuleType": "modcrypt.aad",
    "ParquetFile": "modcrypt.parquet.arrow.parquet_file",
    "ParquetWriter": "modcrypt.parquet.arrow.writer",
    "Policy": "modcrypt.kms.policy",
    "Proof": "modcrypt.jobs.shredding_proof",
    "ProvenFile": "modcrypt.jobs.shredding_proof",
    "Rewritten": "modcrypt.parquet.rewrite.file_rewrite",
    "RotatedFile": "modcrypt.jobs.key_rotation",
    "ScannedKey": "modcrypt.jobs.key_scan",
    "ShreddedFile": "modcrypt.jobs.shredding",
    "StandardKeyMetadata": "modcrypt.key_metadata",
    "Unauthenticated": "modcrypt.parquet.verify.findings",
    "Verification": "modcrypt.parquet.verify.findings",
    "as_pyarrow_client": "modcrypt.kms.services.pyarrow_clients",
    "audit_to_json_lines": "modcrypt.kms.audit",
    "audit_to_logging": "modcrypt.kms.audit",
    "decrypt_ags1": "modcrypt.ags1.files",
    "decrypt_parquet": "modcrypt.parquet.convert.decryptor",
    "encrypt_ags1": "modcrypt.ags1.files",
    "encrypt_parquet": "modcrypt.parquet.convert.encryptor",
    "from_pyarrow_client": "modcrypt.kms.services.pyarrow_clients",
    "inspect_ags1": "modcrypt.ags1.files",
    "inspect_parquet": "modcrypt.parquet.verify.inspection",
    "iter_batches": "modcrypt.parquet.datasets.dataset_reader",
    "mask_parquet": "modcrypt.parquet.rewrite.rekey",
    "open_kms": "modcrypt.kms.references",
    "open_parquet": "modcrypt.parquet.arrow.view",
    "prove_shredded": "modcrypt.jobs.shredding_proof",
    "read_table": "modcrypt.parquet.datasets.dataset_reader",
    "rekey_parquet": "modcrypt.parquet.rewrite.rekey",
    "rotate_keys": "modcrypt.jobs.key_rotation",
    "scan_keys": "modcrypt.jobs.key_scan",
    "share_parquet": "modcrypt.parquet.rewrite.rekey",
    "shred_keys": "modcrypt.jobs.shredding",
    "verify_dataset": "modcrypt.parquet.verify.dataset_verification",
    "verify_parquet": "modcrypt.parquet.verify.file_verification",
    "write_dataset": "modcrypt.parquet.datasets.dataset_writer",
    "write_table": "modcrypt.parquet.arrow.writer",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'modcrypt' has no attribute {name!r}")
    module = import_module(_MODULE_OF.get(name, "modcrypt.errors"))
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

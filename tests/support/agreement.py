"""Verifying and reading agree: the one finds no fault exactly where the other succeeds."""

from __future__ import annotations

import io

from modcrypt import FileDecryptionProperties, ModcryptError, decrypt_parquet, verify_parquet
from modcrypt.errors import FooterSignatureError
from modcrypt.parquet import ModuleType
from modcrypt.parquet.format.findings import Finding
from modcrypt.parquet.verify.verification_results import Verification

UNCOMPARED = (
    ModuleType.COLUMN_INDEX, ModuleType.OFFSET_INDEX,
    ModuleType.BLOOM_FILTER_HEADER, ModuleType.BLOOM_FILTER_BITSET,
)  # fmt: skip
"""Modules that decryption opens, but does not compare with the pages."""


def check_agreement(data: bytes, reader: FileDecryptionProperties) -> None:
    """Raise AssertionError unless a file is read exactly if what is read has no fault."""
    checked = verify_parquet(data, reader, threads=1)
    faults = [finding for finding in checked.findings if finding.severity == "fault"]
    failure = _try_to_read(data, reader)
    if failure is not None:
        # A missing key is not a fault of the file: verification reports what it did not check.
        missing = any(note.word == failure.word for note in checked.not_authenticated)
        assert faults or missing, f"reading fails with {failure}, but verification finds nothing"
        return
    read = [fault for fault in faults if not _is_unread(fault, checked)]
    if not reader.check_footer_integrity:
        read = [fault for fault in read if fault.word != FooterSignatureError.word]
    assert not read, f"read in spite of {read[0].message}"


def _try_to_read(data: bytes, reader: FileDecryptionProperties) -> ModcryptError | None:
    try:
        decrypt_parquet(data, io.BytesIO(), reader, threads=1)
    except ModcryptError as error:
        return error
    return None


def _is_unread(fault: Finding, checked: Verification) -> bool:
    """Return whether nothing that is decrypted depends on what is wrong."""
    in_plaintext = [
        note.path for note in checked.not_authenticated if note.why.startswith("it is in plaintext")
    ]
    # Decryption copies the parts of plaintext columns as they are.
    if any(f"column {path}" in fault.message for path in in_plaintext if path is not None):
        return True
    if fault.module is not None and fault.module.type in UNCOMPARED:
        return fault.word == "format"
    return "legacy readers" in fault.message

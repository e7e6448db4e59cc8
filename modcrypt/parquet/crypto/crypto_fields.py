"""The fields that a file states before its footer is authenticated: algorithm, AAD, key metadata.

Anyone who can alter a file can alter them, so they are judged by what the caller accepts.
"""

from __future__ import annotations

from typing import NamedTuple

from modcrypt.errors import AadPrefixError, LimitError, PlaintextError, UnsupportedFormatError
from modcrypt.module_ids import GCM_CTR_V1, GCM_V1
from modcrypt.parquet.crypto.properties import MAX_AAD_SIZE, FileDecryptionProperties
from modcrypt.parquet.format.framing import MAGIC_ENCRYPTED, Tail
from modcrypt.parquet.format.idl import ThriftStruct, decode, decode_some

_SIGNATURE_FIELDS = frozenset({"encryption_algorithm", "footer_signing_key_metadata"})
"""The fields of a plaintext footer that are read before its signature is verified."""

_GIVEN_PREFIX_FITS = (
    "the footer authenticates with the AAD prefix that was given, but the file contradicts it: its "
    "crypto metadata was altered"
)
_EMPTY_PREFIX_FITS = (
    "the footer authenticates without an AAD prefix, but the file, or the caller, has one: it was "
    "added later"
)


class CryptoFields(NamedTuple):
    """The algorithm and the footer key's metadata, and the offset in the tail at which they end.

    In a plaintext footer, which contains them, the offset is that of the footer's end.
    """

    algorithm: ThriftStruct | None  # EncryptionAlgorithm, a union; None for a plaintext file
    key_metadata: bytes | None
    end: int


def read_crypto_fields(tail: Tail) -> CryptoFields:
    """Read the fields that are needed to authenticate the footer, and no others.

    Raise FormatError if the bytes violate the format.
    """
    if tail.magic == MAGIC_ENCRYPTED:
        crypto, end = decode("FileCryptoMetaData", tail.data)
        return CryptoFields(crypto.encryption_algorithm, crypto.key_metadata, end)
    signed, end = decode_some("FileMetaData", tail.data, _SIGNATURE_FIELDS)
    return CryptoFields(signed.encryption_algorithm, signed.footer_signing_key_metadata, end)


def stored_prefix(tail: Tail, name: str) -> bytes | None:
    """Return the AAD prefix that a file stores, or None if it stores none.

    The prefix is not authenticated: use it only to decide which prefix to require. Raise
    PlaintextError if the file is not encrypted, and FormatError if the bytes violate the format.
    """
    union = read_crypto_fields(tail).algorithm
    if union is None:
        raise plaintext_file_error(name)
    struct = union.AES_GCM_V1 or union.AES_GCM_CTR_V1
    return None if struct is None else struct.aad_prefix or None


def plaintext_file_error(name: str) -> PlaintextError:
    """Return the error for a plaintext file."""
    return PlaintextError(f"{name} is a plaintext file where an encrypted one is expected")


def read_algorithm(union: ThriftStruct) -> tuple[str, ThriftStruct]:
    """Return the name of the algorithm that a file declares, and its struct (PME 5.2).

    Raise UnsupportedFormatError if it is neither of the format's two algorithms.
    """
    gcm, ctr = union.AES_GCM_V1, union.AES_GCM_CTR_V1
    if (gcm is None) == (ctr is None):
        raise UnsupportedFormatError("the file names no encryption algorithm that modcrypt knows")
    return (GCM_V1, gcm) if ctr is None else (GCM_CTR_V1, ctr)


def check_algorithm(name: str, properties: FileDecryptionProperties) -> None:
    """Raise unless the caller accepts the algorithm.

    The algorithm of a file with an encrypted footer is not authenticated: an attacker who renames
    AES_GCM_V1 to AES_GCM_CTR_V1 could have GCM pages decrypted without checking their tags (PME
    4.2.2). Raise UnsupportedFormatError if `properties.accept_algorithms` does not contain the
    name.
    """
    if name not in properties.accept_algorithms:
        raise UnsupportedFormatError(
            f"the file declares the algorithm {name}, but only "
            f"{', '.join(properties.accept_algorithms)} is accepted. AES_GCM_CTR_V1 does not "
            "authenticate page bodies, and the name itself can be forged in a file with an "
            f'encrypted footer. If the algorithm is intended, pass accept_algorithms=["{name}"]'
        )


def make_file_aad(struct: ThriftStruct, properties: FileDecryptionProperties) -> bytes:
    """Return the file AAD, AAD prefix and file-unique, after judging both (PME 4.4.1).

    Raises:
        AadPrefixError: The prefix is missing, unused or different, or its border may have moved.
        UnsupportedFormatError: The file has no file-unique.
        LimitError: The prefix or file-unique is too long.
    """
    stored, unique = struct.aad_prefix, struct.aad_file_unique
    given = properties.aad_prefix
    assert not callable(given)  # `bind_to_file` has called it
    if unique is None:
        raise UnsupportedFormatError(
            "the file has no aad_file_unique: DuckDB writes such files without any AAD, so that "
            "no module is bound to its position"
        )
    if len(unique) > MAX_AAD_SIZE or len(stored or b"") > MAX_AAD_SIZE:
        raise LimitError(f"an AAD prefix or aad_file_unique is longer than {MAX_AAD_SIZE} bytes")
    if needs_prefix(struct, given):
        raise AadPrefixError(
            "the file was written with an AAD prefix that it does not store; pass aad_prefix, or "
            "if it belongs to an Iceberg table, read the table with modcrypt.iceberg"
        )
    if given is not None and stored and stored != given:
        # The one given is not shown: a key file may have been named in place of the prefix's.
        shown = repr(stored if len(stored) <= 200 else stored[:200] + b"...")
        raise AadPrefixError(
            f"the file stores another AAD prefix ({shown}) than the one given: it was moved or "
            "exchanged, or root is not its dataset's folder"
        )
    if given and not stored and not struct.supply_aad_prefix:
        raise AadPrefixError("an AAD prefix is given, but the file was written without one")
    verifier = properties.aad_prefix_verifier
    if verifier is not None and not stored:
        raise AadPrefixError("the file stores no AAD prefix that aad_prefix_verifier could check")
    if given is not None or verifier is not None:
        check_border(unique, properties)
    prefix: bytes = stored or given or b""
    return prefix + bytes(unique)


def check_border(unique: bytes, properties: FileDecryptionProperties) -> None:
    """Raise AadPrefixError if bytes may have moved between AAD prefix and file-unique.

    The AAD is their plain concatenation (PME 4.4): if the border moves by one byte, "part.10" and 8
    bytes pass for "part.1" and 9 bytes. Only the length of file-unique gives it away.
    """
    if len(unique) != properties.aad_file_unique_size:
        raise AadPrefixError(
            f"aad_file_unique has {len(unique)} bytes, not {properties.aad_file_unique_size}: "
            "bytes may have been moved between it and the AAD prefix"
        )


def needs_prefix(struct: ThriftStruct, given: object) -> bool:
    """Return whether the file's AAD prefix is neither stored nor given (PME 5.2).

    An empty prefix is a prefix: Polars writes files that readers must supply it for.
    """
    return bool(struct.supply_aad_prefix) and not struct.aad_prefix and given is None


def declared_aad(struct: ThriftStruct, properties: FileDecryptionProperties) -> bytes:
    """Return the file AAD that the file declares, although the caller demands another."""
    given = properties.aad_prefix if struct.supply_aad_prefix else b""
    assert not callable(given)
    return (struct.aad_prefix or given or b"") + bytes(struct.aad_file_unique)


def other_aads(
    struct: ThriftStruct, properties: FileDecryptionProperties
) -> list[tuple[bytes, str]]:
    """Return the file AADs of forged crypto metadata, with the finding to report if one fits."""
    unique, given = bytes(struct.aad_file_unique), properties.aad_prefix
    assert not callable(given)
    aads = [(given + unique, _GIVEN_PREFIX_FITS)] if given else []
    return [*aads, (unique, _EMPTY_PREFIX_FITS)] if given or struct.aad_prefix else aads

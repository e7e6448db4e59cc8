"""Reading and writing of footers in both footer modes, with signature and crypto metadata.

The footer's AAD is `AAD prefix | file-unique | 0x00` in both modes (PME 4.4.2).

This file has more than 400 lines because reading and writing must agree on each detail of a footer.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from modcrypt.aad import ModuleId, ModuleType, module_aad
from modcrypt.aead import TagError
from modcrypt.errors import (
    AadPrefixError,
    FooterSignatureError,
    FormatError,
    KeyNotFoundError,
    LimitError,
    PlaintextError,
    UnsupportedFormatError,
)
from modcrypt.io.sources import Source
from modcrypt.keys import Key
from modcrypt.parquet.crypto.ciphers import ChunkCipher, ColumnKey, FileCipher, find_key
from modcrypt.parquet.crypto.file_identity import FileIdentity
from modcrypt.parquet.crypto.properties import (
    GCM_CTR_V1,
    GCM_V1,
    FileDecryptionProperties,
    FileEncryptionProperties,
    bind_to_file,
)
from modcrypt.parquet.format.framing import (
    MAGIC_ENCRYPTED,
    MAGIC_PLAINTEXT,
    SIGNATURE_SIZE,
    Tail,
    close_tail,
    read_tail,
)
from modcrypt.parquet.format.idl import (
    ThriftStruct,
    copy,
    decode,
    decode_some,
    encode,
    extension,
    new,
    set_extension,
)

__all__ = [
    "FOOTER",
    "SIGNATURE_FIELDS",
    "EncryptedFooter",
    "PlainFooter",
    "build_tail",
    "check_algorithm",
    "file_aad_of",
    "has_encrypted_chunks",
    "mark_absent",
    "open_column_metadata",
    "open_footer",
    "protect_chunk",
    "read_algorithm",
    "read_encrypted",
    "read_plain",
    "stored_prefix",
    "take_mark",
]

FOOTER = ModuleId(ModuleType.FOOTER)

MAX_AAD_SIZE = 64 << 10
"""Longest AAD prefix or file-unique read from a file, in bytes."""

SIGNATURE_FIELDS = frozenset({"encryption_algorithm", "footer_signing_key_metadata"})
"""The fields of a plaintext footer that are read before its signature is verified."""

# The fields that a legacy reader needs to skip an encrypted chunk. The other fields of
# ColumnMetaData (statistics, sizes, bounds, key-value pairs, newer fields) reveal data.
_LEGACY_FIELDS = (
    "type", "encodings", "path_in_schema", "codec", "num_values", "total_uncompressed_size",
    "total_compressed_size", "data_page_offset", "index_page_offset", "dictionary_page_offset",
)  # fmt: skip


# --- plaintext files -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlainFooter:
    """The footer of a plaintext file."""

    metadata: ThriftStruct
    body_end: int


def read_plain(source: Source) -> PlainFooter:
    """Read the footer of a plaintext file.

    Raises:
        UnsupportedFormatError: The file is already encrypted.
        FormatError: The file is not Parquet, or is damaged.
    """
    tail = read_tail(source)
    refusal = f"{source.name} is encrypted already; decrypt it first"
    if tail.magic == MAGIC_ENCRYPTED:
        raise UnsupportedFormatError(refusal)
    metadata, end = decode("FileMetaData", tail.data)
    if metadata.encryption_algorithm is not None or has_encrypted_chunks(metadata):
        raise UnsupportedFormatError(refusal)
    if end != len(tail.data):
        raise FormatError(f"{source.name}: {len(tail.data) - end} bytes follow the footer")
    return PlainFooter(metadata, tail.start)


def has_encrypted_chunks(metadata: ThriftStruct) -> bool:
    """Return whether any chunk of a file has crypto metadata, so that it is encrypted."""
    return any(c.crypto_metadata is not None for rg in metadata.row_groups for c in rg.columns)


# --- reading encrypted files -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EncryptedFooter:
    """A decrypted or verified footer, and the cipher and key for the file's modules."""

    metadata: ThriftStruct
    body_end: int
    cipher: FileCipher
    footer_key: Key | None
    plaintext_footer: bool
    encrypted: bool = True  # False for a plaintext file that the caller accepts
    algorithm: ThriftStruct = None  # AesGcmV1 or AesGcmCtrV1 from the file
    key_metadata: bytes | None = None  # key metadata of the footer key

    @property
    def file_unique(self) -> bytes:
        """The file's `aad_file_unique`."""
        unique: bytes = self.algorithm.aad_file_unique
        return unique

    @property
    def aad_prefix(self) -> bytes | None:
        """The AAD prefix that the file was written with, whether the file stores it or not."""
        file_aad = self.cipher.file_aad
        return file_aad[: len(file_aad) - len(self.file_unique)] or None

    @property
    def absent(self) -> frozenset[str]:
        """Names of the fields that modcrypt added when it encrypted the file, from its note."""
        return take_mark(copy(self.metadata))


def read_encrypted(
    source: Source, properties: FileDecryptionProperties, expected: FileIdentity | None = None
) -> EncryptedFooter:
    """Read, authenticate and decode the footer of an encrypted file.

    Args:
        source: The file.
        properties: Keys and requirements of the caller.
        expected: Version that the file must be; None for any version.

    Raises:
        OSError: The file is another version than `expected`.
        PlaintextError: The file is not encrypted, or its signature was stripped.
        KeyNotFoundError: The footer key is missing.
        AadPrefixError: The AAD prefix is missing, unused or different.
        TagMismatchError, FooterSignatureError: The footer does not authenticate.
        UnsupportedFormatError: The properties do not accept the file's algorithm.
        FormatError: The bytes violate the format.
    """
    tail = read_tail(source)
    if expected is not None:
        expected.check(tail, source)
    return open_footer(tail, bind_to_file(properties, source), source.name)


def open_footer(tail: Tail, properties: FileDecryptionProperties, name: str) -> EncryptedFooter:
    """Authenticate and decode the footer in a file's tail.

    Raises:
        ModcryptError: As for `read_encrypted`.
    """
    if tail.magic == MAGIC_ENCRYPTED:
        return _open_encrypted(tail, properties)
    return _open_signed(tail, properties, name)


def stored_prefix(tail: Tail, name: str) -> bytes | None:
    """Return the AAD prefix that a file stores, or None if it stores none.

    The prefix is not authenticated: use it only to decide which prefix to require.

    Raises:
        PlaintextError: The file is not encrypted.
        FormatError: The bytes violate the format.
    """
    if tail.magic == MAGIC_ENCRYPTED:
        union = decode("FileCryptoMetaData", tail.data)[0].encryption_algorithm
    else:
        union = decode_some("FileMetaData", tail.data, SIGNATURE_FIELDS)[0].encryption_algorithm
    if union is None:
        raise PlaintextError(f"{name} is a plaintext file where an encrypted one is expected")
    struct = _algorithm_struct(union)
    return None if struct is None else struct.aad_prefix or None


def _open_encrypted(tail: Tail, properties: FileDecryptionProperties) -> EncryptedFooter:
    crypto, end = decode("FileCryptoMetaData", tail.data)
    algorithm, file_aad = _accept_algorithm(crypto.encryption_algorithm, properties)
    key = find_key(properties, _footer_key(properties), crypto.key_metadata, "footer key")
    if key is None:
        raise KeyNotFoundError("the footer is encrypted and no footer key is given")
    cipher = FileCipher(file_aad, algorithm)
    footer = cipher.open(key, FOOTER, memoryview(tail.data)[end:], _prefix_hint(properties))
    # parquet-java pads modules before it encrypts them: bytes may follow the struct's STOP.
    metadata, _ = decode("FileMetaData", footer)
    _verify_prefix(crypto.encryption_algorithm, properties)
    return EncryptedFooter(
        metadata,
        tail.start,
        cipher,
        key,
        plaintext_footer=False,
        algorithm=_algorithm_struct(crypto.encryption_algorithm),
        key_metadata=crypto.key_metadata,
    )


def _open_signed(tail: Tail, properties: FileDecryptionProperties, name: str) -> EncryptedFooter:
    # Before the signature is verified, read only the fields that its verification needs.
    crypto, end = decode_some("FileMetaData", tail.data, SIGNATURE_FIELDS)
    if crypto.encryption_algorithm is None:
        if has_encrypted_chunks(decode("FileMetaData", tail.data)[0]):
            raise PlaintextError(
                f"{name} has encrypted columns but an unsigned footer: its encryption algorithm "
                "was removed, perhaps to make readers trust an altered footer"
            )
        prefix = properties.aad_prefix or properties.aad_prefix_verifier
        if properties.require_encrypted is False and prefix is None:
            metadata = decode("FileMetaData", tail.data)[0]
            nothing = FileCipher(b"", GCM_V1)
            return EncryptedFooter(metadata, tail.start, nothing, None, True, False)
        raise PlaintextError(
            f"{name} is a plaintext file where an encrypted one is expected; if that is intended, "
            "pass require_encrypted=False and no AAD prefix to read it"
        )
    if end != len(tail.data) - SIGNATURE_SIZE:
        raise FormatError(
            f"{name}: {len(tail.data) - end} bytes follow the footer, not the "
            f"{SIGNATURE_SIZE} of its signature"
        )
    algorithm, file_aad = _accept_algorithm(crypto.encryption_algorithm, properties)
    cipher = FileCipher(file_aad, algorithm)
    key = find_key(
        properties, _footer_key(properties), crypto.footer_signing_key_metadata, "footer key"
    )
    if properties.check_footer_integrity:
        if key is None:
            raise KeyNotFoundError(
                "the plaintext footer is signed, but no footer key is given to verify it; pass the "
                "footer key, or check_footer_integrity=False to read it unverified"
            )
        _verify_signature(cipher, key, tail.data)
    _verify_prefix(crypto.encryption_algorithm, properties)
    metadata, _ = decode("FileMetaData", tail.data)
    return EncryptedFooter(
        metadata,
        tail.start,
        cipher,
        key,
        plaintext_footer=True,
        algorithm=_algorithm_struct(crypto.encryption_algorithm),
        key_metadata=crypto.footer_signing_key_metadata,
    )


def _algorithm_struct(union: ThriftStruct) -> ThriftStruct:
    return union.AES_GCM_V1 or union.AES_GCM_CTR_V1


def _verify_signature(cipher: FileCipher, key: Key, data: bytes) -> None:
    """Verify the signature over the bytes as read, not over a new encoding (PME 5.5)."""
    try:
        cipher.gcm(key).verify(
            data[:-SIGNATURE_SIZE], data[-SIGNATURE_SIZE:], module_aad(cipher.file_aad, FOOTER)
        )
    except TagError:
        raise FooterSignatureError(
            "the plaintext footer's signature does not match: wrong footer key, wrong AAD prefix "
            "or an altered footer"
        ) from None


def _footer_key(properties: FileDecryptionProperties) -> Key | None:
    key = properties.footer_key
    assert key is None or isinstance(key, Key)
    return key


def _prefix_hint(properties: FileDecryptionProperties) -> str:
    return "" if properties.aad_prefix is None else "The given AAD prefix is part of the AAD"


def _accept_algorithm(
    union: ThriftStruct, properties: FileDecryptionProperties
) -> tuple[str, bytes]:
    """Return the algorithm's name and the file AAD, if the caller accepts both."""
    name, struct = read_algorithm(union)
    check_algorithm(name, properties)
    return name, file_aad_of(struct, properties)


def read_algorithm(union: ThriftStruct) -> tuple[str, ThriftStruct]:
    """Return the name of the algorithm that a file declares, and its struct.

    Raises:
        UnsupportedFormatError: It is neither of the format's two algorithms.
    """
    gcm, ctr = union.AES_GCM_V1, union.AES_GCM_CTR_V1
    if (gcm is None) == (ctr is None):
        raise UnsupportedFormatError("the file names no encryption algorithm that modcrypt knows")
    return (GCM_V1, gcm) if ctr is None else (GCM_CTR_V1, ctr)


def check_algorithm(name: str, properties: FileDecryptionProperties) -> None:
    """Raise unless the caller accepts the algorithm.

    The algorithm of a file with an encrypted footer is not authenticated: an attacker who renames
    AES_GCM_V1 to AES_GCM_CTR_V1 could have GCM pages decrypted without checking their tags.

    Raises:
        UnsupportedFormatError: `properties.algorithms` does not contain the name.
    """
    if name not in properties.algorithms:
        raise UnsupportedFormatError(
            f"the file declares the algorithm {name}, but only "
            f"{', '.join(properties.algorithms)} is accepted. AES_GCM_CTR_V1 does not "
            "authenticate page bodies, and the name itself can be forged in a file with an "
            f'encrypted footer. If the algorithm is intended, pass algorithms=["{name}"]'
        )


def file_aad_of(struct: ThriftStruct, properties: FileDecryptionProperties) -> bytes:
    """Return the file AAD, AAD prefix and file-unique, after checking both against the caller's.

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
    if struct.supply_aad_prefix and not stored and not given:
        raise AadPrefixError(
            "the file was written with an AAD prefix that it does not store; pass aad_prefix"
        )
    if given is not None and stored and stored != given:
        raise AadPrefixError("the file stores another AAD prefix than the one given")
    if given and not stored and not struct.supply_aad_prefix:
        raise AadPrefixError("an AAD prefix is given, but the file was written without one")
    verifier = properties.aad_prefix_verifier
    if verifier is not None and not stored:
        raise AadPrefixError("the file stores no AAD prefix that aad_prefix_verifier could check")
    # The border between prefix and file-unique is not authenticated: if it moves by one byte,
    # "part.10" + 8 bytes passes for "part.1" + 9 bytes.
    checked = given is not None or verifier is not None
    if checked and len(unique) != properties.aad_file_unique_size:
        raise AadPrefixError(
            f"aad_file_unique has {len(unique)} bytes, not {properties.aad_file_unique_size}: "
            "bytes may have been moved between it and the AAD prefix"
        )
    prefix: bytes = stored or given or b""
    return prefix + bytes(unique)


def _verify_prefix(union: ThriftStruct, properties: FileDecryptionProperties) -> None:
    """Raise unless the caller's verifier accepts the stored AAD prefix, authenticated by now."""
    verifier = properties.aad_prefix_verifier
    if verifier is None:
        return
    prefix: bytes = _algorithm_struct(union).aad_prefix
    if verifier(prefix) is not True:
        raise AadPrefixError(
            f"aad_prefix_verifier refuses the file's AAD prefix {prefix[:200]!r}; it must return "
            "True to accept a prefix"
        )


def open_column_metadata(chunk: ThriftStruct, cipher: ChunkCipher) -> ThriftStruct:
    """Decrypt and decode a chunk's ColumnMetaData.

    Raises:
        TagMismatchError, TruncationError: The metadata does not authenticate.
        FormatError: The plaintext is not a ColumnMetaData.
    """
    data = cipher.open(ModuleType.COLUMN_METADATA, chunk.encrypted_column_metadata)
    return decode("ColumnMetaData", data)[0]


# --- writing encrypted files -------------------------------------------------------------------


def protect_chunk(
    chunk: ThriftStruct,
    column: ColumnKey | None,
    cipher: ChunkCipher | None,
    plaintext_footer: bool,
) -> None:
    """Set a chunk's crypto metadata and encrypt its ColumnMetaData where PME 5.3 requires it.

    The metadata is encrypted with a column key always, and with the footer key if the footer is
    plaintext, where it would otherwise be readable. A plaintext footer keeps a stripped copy for
    legacy readers.

    Args:
        chunk: ColumnChunk, which is changed.
        column: Key of the column; None for plaintext.
        cipher: Cipher of the chunk; None for plaintext.
        plaintext_footer: Whether the footer is plaintext.
    """
    if column is None or cipher is None:
        return
    md = chunk.meta_data
    if column.own:
        with_key = new("EncryptionWithColumnKey", path_in_schema=md.path_in_schema)
        if column.metadata is not None:
            with_key.key_metadata = column.metadata
        chunk.crypto_metadata = new("ColumnCryptoMetaData", ENCRYPTION_WITH_COLUMN_KEY=with_key)
    else:
        chunk.crypto_metadata = new(
            "ColumnCryptoMetaData", ENCRYPTION_WITH_FOOTER_KEY=new("EncryptionWithFooterKey")
        )
    if column.own or plaintext_footer:
        chunk.encrypted_column_metadata = cipher.seal(ModuleType.COLUMN_METADATA, encode(md))
        chunk.meta_data = copy(md, keep=_LEGACY_FIELDS) if plaintext_footer else None


def build_tail(
    metadata: ThriftStruct, cipher: FileCipher, properties: FileEncryptionProperties, unique: bytes
) -> bytes:
    """Return the file's last bytes: the encrypted or signed footer, its length and the magic."""
    key = properties.footer_key
    assert isinstance(key, Key)
    algorithm = _algorithm_union(properties, unique)
    if properties.plaintext_footer:
        metadata.encryption_algorithm = algorithm
        if properties.footer_key_metadata is not None:
            metadata.footer_signing_key_metadata = properties.footer_key_metadata
        footer = encode(metadata)
        signature = cipher.gcm(key).sign(footer, module_aad(cipher.file_aad, FOOTER))
        return close_tail(footer + signature, MAGIC_PLAINTEXT)
    crypto = new("FileCryptoMetaData", encryption_algorithm=algorithm)
    if properties.footer_key_metadata is not None:
        crypto.key_metadata = properties.footer_key_metadata
    return close_tail(encode(crypto) + cipher.seal(key, FOOTER, encode(metadata)), MAGIC_ENCRYPTED)


def _algorithm_union(properties: FileEncryptionProperties, unique: bytes) -> ThriftStruct:
    prefix = properties.aad_prefix
    stored = prefix is not None and properties.store_aad_prefix
    fields: dict[str, Any] = {"aad_file_unique": unique}
    if stored:
        fields["aad_prefix"] = prefix
    # Always written, as in parquet-java and Arrow C++.
    fields["supply_aad_prefix"] = prefix is not None and not stored
    name = properties.encryption_algorithm
    struct = new("AesGcmV1" if name == GCM_V1 else "AesGcmCtrV1", **fields)
    return new("EncryptionAlgorithm", **{name: struct})


# --- fields that encryption added ----------------------------------------------------------------

# An encrypted file must have fields that a plaintext file may lack: parquet-java finds no module
# without RowGroup.ordinal. Decryption can restore the file byte for byte only if it knows which
# fields were added. A footer extension lists them: field 32767, which the format reserves for
# binaries that readers skip ("Binary Protocol Extensions"), with a UUID that identifies it.
_MARK = uuid.UUID("0f2b7d0a-8a53-4c1e-9d42-6d6f64637279").bytes

# The same list after an extension that the plaintext file had: its bytes, the names, their length
# in two bytes, and another UUID. The encrypted file's pages have other offsets, so readers must not
# interpret that extension; decryption restores it.
_MARK_BEHIND = uuid.UUID("5b1c9f3e-27d4-4f60-8a1b-6d6f64637279").bytes
_LENGTH_SIZE = 2


def mark_absent(metadata: ThriftStruct, names: frozenset[str]) -> None:
    """Record in the footer that encryption added these fields."""
    own, note = extension(metadata), ",".join(sorted(names)).encode()
    if own is not None:
        note = own + note + len(note).to_bytes(_LENGTH_SIZE, "little") + _MARK_BEHIND
        set_extension(metadata, note)
    elif names:
        set_extension(metadata, note + _MARK)


def take_mark(metadata: ThriftStruct) -> frozenset[str]:
    """Remove the note of `mark_absent` and return its names."""
    note = extension(metadata)
    if note is None or not note.endswith((_MARK, _MARK_BEHIND)):
        return frozenset()
    own, names = None, note[: -len(_MARK)]
    if note.endswith(_MARK_BEHIND):
        length = int.from_bytes(names[-_LENGTH_SIZE:], "little")
        border = max(0, len(names) - _LENGTH_SIZE - length)
        own, names = names[:border], names[border:-_LENGTH_SIZE]
    set_extension(metadata, own)
    return frozenset(names.decode("ascii", "replace").split(",")) - {""}

"""Footers: FileCryptoMetaData, both footer modes, signature, column metadata split and stripped.

The footer's own AAD is `AAD prefix | file-unique | 0x00` in both modes (PME 4.4.2).
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
from modcrypt.io.storage import Source
from modcrypt.keys import Key
from modcrypt.parquet.crypto.ciphers import ChunkCipher, ColumnKey, FileCipher, find_key
from modcrypt.parquet.crypto.file_identity import FileIdentity
from modcrypt.parquet.crypto.properties import (
    GCM_CTR_V1,
    GCM_V1,
    FileDecryptionProperties,
    FileEncryptionProperties,
    bound,
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
    "named_algorithm",
    "open_column_metadata",
    "open_footer",
    "protect_chunk",
    "read_encrypted",
    "read_plain",
    "stored_prefix",
    "take_mark",
]

FOOTER = ModuleId(ModuleType.FOOTER)

MAX_AAD_SIZE = 64 << 10
"""Longest AAD prefix or file-unique read from a file, in bytes."""

SIGNATURE_FIELDS = frozenset({"encryption_algorithm", "footer_signing_key_metadata"})
"""What of a plaintext footer is read before its signature is verified."""

# All that a legacy reader needs to skip an encrypted chunk. What else ColumnMetaData holds
# (statistics, sizes, bounds, key-value pairs, fields of newer writers) tells about the data.
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
        UnsupportedFormatError: the file is encrypted already.
        FormatError: not a Parquet file, or a damaged one.
    """
    tail = read_tail(source)
    again = f"{source.name} is encrypted already; decrypt it first"
    if tail.magic == MAGIC_ENCRYPTED:
        raise UnsupportedFormatError(again)
    metadata, end = decode("FileMetaData", tail.data)
    if metadata.encryption_algorithm is not None or has_encrypted_chunks(metadata):
        raise UnsupportedFormatError(again)
    if end != len(tail.data):
        raise FormatError(f"{source.name}: {len(tail.data) - end} bytes stand after the footer")
    return PlainFooter(metadata, tail.start)


def has_encrypted_chunks(metadata: ThriftStruct) -> bool:
    """Tell whether any chunk of a file says that it is encrypted."""
    return any(c.crypto_metadata is not None for rg in metadata.row_groups for c in rg.columns)


# --- reading encrypted files -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EncryptedFooter:
    """An opened or verified footer and what its file's modules are opened with."""

    metadata: ThriftStruct
    body_end: int
    module_start: int  # of the sealed footer, or of the signed one
    cipher: FileCipher
    footer_key: Key | None
    plaintext_footer: bool
    encrypted: bool = True  # False for a plaintext file, where the caller takes those
    algorithm: ThriftStruct = None  # AesGcmV1 or AesGcmCtrV1, as the file has it
    key_metadata: bytes | None = None  # of the footer key

    @property
    def file_unique(self) -> bytes:
        """The file's `aad_file_unique`."""
        unique: bytes = self.algorithm.aad_file_unique
        return unique

    @property
    def aad_prefix(self) -> bytes | None:
        """The AAD prefix that the file was written with, stored in it or not."""
        file_aad = self.cipher.file_aad
        return file_aad[: len(file_aad) - len(self.file_unique)] or None

    @property
    def absent(self) -> frozenset[str]:
        """Fields that modcrypt added when it encrypted the file, as its note says."""
        return take_mark(copy(self.metadata))


def read_encrypted(
    source: Source, properties: FileDecryptionProperties, expected: FileIdentity | None = None
) -> EncryptedFooter:
    """Read, authenticate and decode the footer of an encrypted file.

    Raises:
        OSError: The file is another version of itself than `expected`.
        PlaintextError: the file is not encrypted, or its signature was stripped.
        KeyNotFoundError: there is no footer key.
        AadPrefixError: the AAD prefix is missing, unused or another one.
        TagMismatchError, FooterSignatureError: the footer does not authenticate.
        UnsupportedFormatError: an algorithm that the properties don't accept.
        FormatError: the bytes break the format.
    """
    tail = read_tail(source)
    if expected is not None:
        expected.check(tail, source)
    return open_footer(tail, bound(properties, source), source.name)


def open_footer(tail: Tail, properties: FileDecryptionProperties, name: str) -> EncryptedFooter:
    """Authenticate and decode the footer in a file's tail; raises as `read_encrypted`."""
    if tail.magic == MAGIC_ENCRYPTED:
        return _open_sealed(tail, properties)
    return _open_signed(tail, properties, name)


def stored_prefix(tail: Tail, name: str) -> bytes | None:
    """Give the AAD prefix that a file says it has, None where it stores none.

    Nothing here is authenticated: it says which prefix to insist on.

    Raises:
        PlaintextError: the file is not encrypted.
        FormatError: the bytes break the format.
    """
    if tail.magic == MAGIC_ENCRYPTED:
        union = decode("FileCryptoMetaData", tail.data)[0].encryption_algorithm
    else:
        union = decode_some("FileMetaData", tail.data, SIGNATURE_FIELDS)[0].encryption_algorithm
    if union is None:
        raise PlaintextError(f"{name} is a plaintext file where an encrypted one is expected")
    struct = _member(union)
    return None if struct is None else struct.aad_prefix or None


def _open_sealed(tail: Tail, properties: FileDecryptionProperties) -> EncryptedFooter:
    crypto, end = decode("FileCryptoMetaData", tail.data)
    algorithm, file_aad = _algorithm(crypto.encryption_algorithm, properties)
    key = find_key(properties, _footer_key(properties), crypto.key_metadata, "footer key")
    if key is None:
        raise KeyNotFoundError("the footer is encrypted and no footer key is given")
    cipher = FileCipher(file_aad, algorithm)
    footer = cipher.open(key, FOOTER, memoryview(tail.data)[end:], _prefix_hint(properties))
    # parquet-java pads the modules that it seals: bytes may follow the struct's STOP.
    metadata, _ = decode("FileMetaData", footer)
    _check_prefix(crypto.encryption_algorithm, properties)
    return EncryptedFooter(
        metadata,
        tail.start,
        tail.start + end,
        cipher,
        key,
        plaintext_footer=False,
        algorithm=_member(crypto.encryption_algorithm),
        key_metadata=crypto.key_metadata,
    )


def _open_signed(tail: Tail, properties: FileDecryptionProperties, name: str) -> EncryptedFooter:
    # Only what the signature needs is read before the signature is verified.
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
            return EncryptedFooter(metadata, tail.start, tail.start, nothing, None, True, False)
        raise PlaintextError(
            f"{name} is a plaintext file where an encrypted one is expected; if that is meant to "
            "be so, require_encrypted=False, without an AAD prefix, reads it"
        )
    if end != len(tail.data) - SIGNATURE_SIZE:
        raise FormatError(
            f"{name}: {len(tail.data) - end} bytes stand after the footer, not the "
            f"{SIGNATURE_SIZE} of its signature"
        )
    algorithm, file_aad = _algorithm(crypto.encryption_algorithm, properties)
    cipher = FileCipher(file_aad, algorithm)
    key = find_key(
        properties, _footer_key(properties), crypto.footer_signing_key_metadata, "footer key"
    )
    if properties.check_footer_integrity:
        if key is None:
            raise KeyNotFoundError(
                "the plaintext footer is signed and no footer key is given to check it with; "
                "check_footer_integrity=False reads it unchecked"
            )
        _verify(cipher, key, tail.data)
    _check_prefix(crypto.encryption_algorithm, properties)
    metadata, _ = decode("FileMetaData", tail.data)
    return EncryptedFooter(
        metadata,
        tail.start,
        tail.start,
        cipher,
        key,
        plaintext_footer=True,
        algorithm=_member(crypto.encryption_algorithm),
        key_metadata=crypto.footer_signing_key_metadata,
    )


def _member(union: ThriftStruct) -> ThriftStruct:
    return union.AES_GCM_V1 or union.AES_GCM_CTR_V1


def _verify(cipher: FileCipher, key: Key, data: bytes) -> None:
    """Check the signature over the bytes as they were read (PME 5.5), never over a new spelling."""
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
    return "" if properties.aad_prefix is None else "The AAD prefix given is part of the AAD"


def _algorithm(union: ThriftStruct, properties: FileDecryptionProperties) -> tuple[str, bytes]:
    """Give the algorithm's name and the file AAD, after the caller's policy."""
    name, struct = named_algorithm(union)
    check_algorithm(name, properties)
    return name, file_aad_of(struct, properties)


def named_algorithm(union: ThriftStruct) -> tuple[str, ThriftStruct]:
    """Give the name of the algorithm that a file says it was written with, and its struct.

    Raises:
        UnsupportedFormatError: it is none of the two.
    """
    gcm, ctr = union.AES_GCM_V1, union.AES_GCM_CTR_V1
    if (gcm is None) == (ctr is None):
        raise UnsupportedFormatError("the file names no encryption algorithm that modcrypt knows")
    return (GCM_V1, gcm) if ctr is None else (GCM_CTR_V1, ctr)


def check_algorithm(name: str, properties: FileDecryptionProperties) -> None:
    """Hold the algorithm's name against the caller's policy.

    The union of an encrypted-footer file is not authenticated: whoever renames AES_GCM_V1 to
    AES_GCM_CTR_V1 would have GCM pages opened without a look at their tags.

    Raises:
        UnsupportedFormatError: it is not among the accepted ones.
    """
    if name not in properties.algorithms:
        raise UnsupportedFormatError(
            f"the file says it was written with {name}, and only "
            f"{', '.join(properties.algorithms)} is accepted. AES_GCM_CTR_V1 does not "
            "authenticate page bodies, and the name itself can be forged in a file with an "
            f'encrypted footer. If the file is meant to be so, pass algorithms=["{name}"]'
        )


def file_aad_of(struct: ThriftStruct, properties: FileDecryptionProperties) -> bytes:
    """Join AAD prefix and file-unique, as far as the file and the caller agree on them.

    Raises:
        AadPrefixError: the prefix is missing, unused or another one, or its border was moved.
        UnsupportedFormatError: there is no file-unique.
        LimitError: one of them is too long.
    """
    stored, unique = struct.aad_prefix, struct.aad_file_unique
    given = properties.aad_prefix
    assert not callable(given)  # `bound` has asked
    if unique is None:
        raise UnsupportedFormatError(
            "the file has no aad_file_unique: DuckDB writes such files, with no AAD at all, which "
            "binds no module to its place"
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
    # The border between prefix and file-unique is not authenticated: moved by two bytes,
    # "part.10" + 8 bytes passes for "part.1" + 9.
    checked = given is not None or verifier is not None
    if checked and len(unique) != properties.aad_file_unique_size:
        raise AadPrefixError(
            f"aad_file_unique has {len(unique)} bytes, not {properties.aad_file_unique_size}: "
            "bytes may have been moved between it and the AAD prefix"
        )
    prefix: bytes = stored or given or b""
    return prefix + bytes(unique)


def _check_prefix(union: ThriftStruct, properties: FileDecryptionProperties) -> None:
    """Let the caller judge the stored AAD prefix, which is authenticated by now."""
    verifier = properties.aad_prefix_verifier
    if verifier is None:
        return
    prefix: bytes = _member(union).aad_prefix
    if verifier(prefix) is not True:
        raise AadPrefixError(
            f"aad_prefix_verifier refuses the file's AAD prefix {prefix[:200]!r}; it accepts one "
            "by returning True"
        )


def open_column_metadata(chunk: ThriftStruct, cipher: ChunkCipher) -> ThriftStruct:
    """Open a chunk's sealed ColumnMetaData.

    Raises:
        TagMismatchError, TruncationError: it does not authenticate.
        FormatError: not a ColumnMetaData.
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
    """Put a chunk's crypto metadata in place and seal its ColumnMetaData where PME 5.3 says so.

    Under a column key always; under the footer key in a plaintext footer, where the metadata
    would be readable otherwise. A plaintext footer keeps a stripped copy for legacy readers.
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
    """Give the file's last bytes: footer sealed or signed, length and magic."""
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
    # Always written, as parquet-java and Arrow C++ do.
    fields["supply_aad_prefix"] = prefix is not None and not stored
    name = properties.encryption_algorithm
    struct = new("AesGcmV1" if name == GCM_V1 else "AesGcmCtrV1", **fields)
    return new("EncryptionAlgorithm", **{name: struct})


# --- what the plaintext file lacked --------------------------------------------------------------

# An encrypted file must have fields that a plaintext one may lack: parquet-java finds no module
# without RowGroup.ordinal. Decryption can only restore the file byte for byte if it knows which
# ones were added, so a footer extension says so: field 32767, which the format reserves for
# binaries that readers skip ("Binary Protocol Extensions"), with a UUID to know it by.
_MARK = uuid.UUID("0f2b7d0a-8a53-4c1e-9d42-6d6f64637279").bytes

# The same behind an extension that the plaintext file had: its bytes, the names, their length in
# two bytes, and another UUID. So no reader takes that extension for one of this file, whose pages
# are elsewhere, and decryption restores it.
_MARK_BEHIND = uuid.UUID("5b1c9f3e-27d4-4f60-8a1b-6d6f64637279").bytes
_LENGTH_SIZE = 2


def mark_absent(metadata: ThriftStruct, names: frozenset[str]) -> None:
    """Note in the footer that encryption added these fields."""
    own, note = extension(metadata), ",".join(sorted(names)).encode()
    if own is not None:
        note = own + note + len(note).to_bytes(_LENGTH_SIZE, "little") + _MARK_BEHIND
        set_extension(metadata, note)
    elif names:
        set_extension(metadata, note + _MARK)


def take_mark(metadata: ThriftStruct) -> frozenset[str]:
    """Remove the note of `mark_absent` and give its names."""
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

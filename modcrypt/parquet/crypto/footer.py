"""Footers: what an open one holds, and how encrypted and signed ones are written.

The footer's AAD is `AAD prefix | file-unique | 0x00` in both footer modes (PME 4.4.2).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

from modcrypt.aad import module_aad
from modcrypt.errors import AadPrefixError, FooterSignatureError, WriterSignatureError
from modcrypt.keys import Key
from modcrypt.module_ids import GCM_V1, ModuleId, ModuleType
from modcrypt.parquet.crypto.ciphers import ChunkCipher, ColumnKey, FileCipher
from modcrypt.parquet.crypto.crypto_fields import CryptoFields
from modcrypt.parquet.crypto.key_lookup import KeyAnswer
from modcrypt.parquet.crypto.properties import FileEncryptionProperties
from modcrypt.parquet.format.chunk_notes import find_added
from modcrypt.parquet.format.framing import MAGIC_ENCRYPTED, MAGIC_PLAINTEXT, Tail, close_tail
from modcrypt.parquet.format.idl import ThriftStruct, copy, encode, extension, new, set_extension
from modcrypt.parquet.format.structs import ColumnChunk

if TYPE_CHECKING:
    from modcrypt.parquet.signatures.signature_block import SignatureBlock
    from modcrypt.parquet.signatures.signers import Signer

FOOTER = ModuleId(ModuleType.FOOTER)

_COLUMN_METADATA: Final = ModuleType.COLUMN_METADATA  # looking it up takes longer than the AAD

# The fields that a legacy reader needs to skip an encrypted chunk. The other fields of
# ColumnMetaData (statistics, sizes, bounds, key-value pairs, newer fields) reveal data.
_LEGACY_FIELDS = (
    "type", "encodings", "path_in_schema", "codec", "num_values", "total_uncompressed_size",
    "total_compressed_size", "data_page_offset", "index_page_offset", "dictionary_page_offset",
)  # fmt: skip


def crypto_metadata(column: ColumnKey | None, path: tuple[str, ...]) -> ThriftStruct | None:
    """Return the ColumnCryptoMetaData of a column's chunks (PME 5.3); None for plaintext."""
    if column is None:
        return None
    if not column.own:
        return _under_footer_key()
    own = new("EncryptionWithColumnKey", path_in_schema=[name.encode() for name in path])
    if column.metadata is not None:
        own.key_metadata = column.metadata
    return new("ColumnCryptoMetaData", ENCRYPTION_WITH_COLUMN_KEY=own)


@cache
def _under_footer_key() -> ThriftStruct:
    return new("ColumnCryptoMetaData", ENCRYPTION_WITH_FOOTER_KEY=new("EncryptionWithFooterKey"))


def protect_metadata(chunk: ColumnChunk, cipher: ChunkCipher, plaintext_footer: bool) -> None:
    """Encrypt a chunk's ColumnMetaData, as PME 5.3 requires it."""
    # It is required with a column key always, and with the footer key if the footer is plaintext,
    # where the metadata would otherwise be readable. A plaintext footer keeps a stripped copy for
    # legacy readers.
    md = chunk.meta_data
    chunk.encrypted_column_metadata = cipher.encrypt(_COLUMN_METADATA, encode(md))
    chunk.meta_data = copy(md, keep=_LEGACY_FIELDS) if plaintext_footer else None


def build_tail(
    metadata: ThriftStruct, cipher: FileCipher, properties: FileEncryptionProperties, unique: bytes,
    hashes: bytes = b"",
) -> bytes:  # fmt: skip
    """Return the file's last bytes: the encrypted or signed footer, its length and the magic.

    The writer signs `hashes`, the list of its parts, if the properties have a signing key.
    """
    key = properties.footer_key
    assert isinstance(key, Key)
    algorithm = _algorithm_union(properties, unique)
    key_metadata = properties.footer_key_metadata
    if callable(key_metadata):
        key_metadata = key_metadata(cipher.file_aad)
    if properties.plaintext_footer:
        metadata.encryption_algorithm = algorithm
        if key_metadata is not None:
            metadata.footer_signing_key_metadata = key_metadata
        footer = encode_footer(metadata, cipher, properties.signing_key, hashes, plaintext=True)
        return close_tail(footer + sign_footer(cipher, key, footer), MAGIC_PLAINTEXT)
    crypto = new("FileCryptoMetaData", encryption_algorithm=algorithm)
    if key_metadata is not None:
        crypto.key_metadata = key_metadata
    footer = encode_footer(metadata, cipher, properties.signing_key, hashes, plaintext=False)
    return close_tail(encode(crypto) + cipher.encrypt(key, FOOTER, footer), MAGIC_ENCRYPTED)


def encode_footer(
    metadata: ThriftStruct, cipher: FileCipher, signing_key: Signer | None, hashes: bytes, *,
    plaintext: bool,
) -> bytes:  # fmt: skip
    """Return an encoded footer, with the writer's signature of `hashes` if there is a key."""
    if signing_key is None:
        return encode(metadata)
    from modcrypt.parquet.signatures.signature_block import SignedContext, encode_signed

    context = SignedContext(cipher.file_aad, cipher.algorithm, plaintext)
    return encode_signed(metadata, hashes, signing_key, context)


def sign_footer(cipher: FileCipher, key: Key, footer: bytes) -> bytes:
    """Return the signature that follows a plaintext footer (PME 5.5)."""
    return cipher.gcm(key).sign(footer, module_aad(cipher.file_aad, FOOTER))


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


# An encrypted file must have fields that a plaintext file may lack: parquet-java finds no module
# without RowGroup.ordinal. Decryption can restore the file byte for byte only if it knows which
# fields were added. An extension lists them: field 32767, which the format reserves for binaries
# that readers skip ("Binary Protocol Extensions"), with a UUID that identifies it. An encrypted
# footer has it; but arrow-go and old Arrow C++ verify the signature of a plaintext footer over the
# fields that they know, so there the metadata of the first encrypted chunk has it.
_MARK = uuid.UUID("0f2b7d0a-8a53-4c1e-9d42-6d6f64637279").bytes

# The same list after an extension that the struct had in the plaintext file: its bytes, the names,
# their length in two bytes, and another UUID. The encrypted file's pages have other offsets, so
# readers must not interpret that extension; decryption restores it.
_MARK_BEHIND = uuid.UUID("5b1c9f3e-27d4-4f60-8a1b-6d6f64637279").bytes
_LENGTH_SIZE = 2


def mark_absent(struct: ThriftStruct, names: frozenset[str]) -> None:
    """Record in a footer, or in a chunk's metadata, that encryption added these fields."""
    own, note = extension(struct), ",".join(sorted(names)).encode()
    if own is not None:
        note = own + note + len(note).to_bytes(_LENGTH_SIZE, "little") + _MARK_BEHIND
        set_extension(struct, note)
    elif names:
        set_extension(struct, note + _MARK)


def take_mark(struct: ThriftStruct) -> frozenset[str]:
    """Remove the note of `mark_absent` and return its names."""
    note = extension(struct)
    if note is None or not note.endswith((_MARK, _MARK_BEHIND)):
        return frozenset()
    own, names = None, note[: -len(_MARK)]
    if note.endswith(_MARK_BEHIND):
        length = int.from_bytes(names[-_LENGTH_SIZE:], "little")
        border = max(0, len(names) - _LENGTH_SIZE - length)
        own, names = names[:border], names[border:-_LENGTH_SIZE]
    set_extension(struct, own)
    return frozenset(names.decode("ascii", "replace").split(",")) - {""}


@dataclass(slots=True)
class Footer:
    """An open footer, and the cipher and key for the file's modules.

    After strict opening, `metadata` is there, and so is `cipher` if the file is encrypted. After
    collecting, modules cannot be located without `metadata`, nor opened while `locked` gives a
    reason.
    """

    tail: Tail
    fields: CryptoFields | None = None  # None if they could not be read
    metadata: ThriftStruct = None  # None if it could not be read
    encrypted: bool = True  # False for a plaintext file
    algorithm: ThriftStruct = None  # AesGcmV1 or AesGcmCtrV1 from the file
    algorithm_name: str | None = None
    key_metadata: bytes | None = None  # key metadata of the footer key
    answer: KeyAnswer = field(default=KeyAnswer(None))  # the footer key, or why there is none
    locked: str = ""  # why modules cannot be opened
    is_verified: bool = False  # whether the footer's tag or signature was verified
    signature_fault: FooterSignatureError | AadPrefixError | None = None
    padding: int = 0  # bytes after the struct inside the footer's module
    start: int = 0  # offset in the file at which the metadata, or its module, begins
    signature: SignatureBlock | None = None  # the writer's signature, verified or not
    signed_by: str | None = None  # id of the required key that made the signature
    signed: memoryview | None = None  # the list of hashes that this key signed
    added: frozenset[str] = frozenset()  # the names of `absent` that a chunk's metadata lists
    _cipher: FileCipher | None = None
    _key_name: str | None = None

    @property
    def cipher(self) -> FileCipher:
        """Cipher for the file's modules."""
        assert self._cipher is not None, self.locked
        return self._cipher

    def accept_cipher(self, cipher: FileCipher | None) -> None:
        """Use a cipher for the file's modules; None opens none of them."""
        self._cipher = cipher

    @property
    def footer_key(self) -> Key | None:
        """Footer key; None if there is none."""
        return self.answer.key

    @property
    def has_cipher(self) -> bool:
        """True if the AAD of the file's modules is known."""
        return self._cipher is not None

    @property
    def plaintext_footer(self) -> bool:
        """True if the footer is plaintext."""
        return self.mode == "plaintext"

    @property
    def mode(self) -> Literal["encrypted", "plaintext", "none"]:
        """The footer mode; "none" if the file is not Parquet."""
        if self.tail.magic == MAGIC_PLAINTEXT:
            return "plaintext"
        return "encrypted" if self.tail.magic == MAGIC_ENCRYPTED else "none"

    @property
    def body_end(self) -> int:
        """Offset in the file at which the modules end."""
        return self.tail.start

    @property
    def inside(self) -> tuple[int, int]:
        """Range of the bytes that hold the metadata."""
        return self.start, self.tail.end

    @property
    def key_name(self) -> str:
        """Name of the footer key for people."""
        from modcrypt.pkmt1.key_info import key_name

        self._key_name = self._key_name or key_name(self.key_metadata, "footer key")
        return self._key_name

    @property
    def file_unique(self) -> bytes:
        """The file's `aad_file_unique`; empty if it has none."""
        unique = None if self.algorithm is None else self.algorithm.aad_file_unique
        return unique or b""

    @property
    def stored_prefix(self) -> bytes | None:
        """AAD prefix that the file stores."""
        return None if self.algorithm is None else self.algorithm.aad_prefix or None

    @property
    def aad_prefix(self) -> bytes | None:
        """The AAD prefix that the file was written with, whether the file stores it or not."""
        file_aad = self.cipher.file_aad
        return file_aad[: len(file_aad) - len(self.file_unique)] or None

    @property
    def absent(self) -> frozenset[str]:
        """Names of the fields that modcrypt added to the file, by the notes that were opened.

        A plaintext footer has one about the module that restores the file; about fields, only in
        files of modcrypt before 1.0. Without an encrypted column, the first chunk has the note in
        the clear. Such pairs in an encrypted footer come from the plaintext file.
        """
        added = self.added | take_mark(copy(self.metadata))
        if not self.plaintext_footer:
            return added
        added |= find_added(self.metadata)
        chunks = self.metadata.row_groups[0].columns if self.metadata.row_groups else ()
        if chunks and chunks[0].meta_data is not None:
            added |= find_added(chunks[0].meta_data)
        return added


def find_key_fault(footer: Footer, column: int | None, key: Key) -> WriterSignatureError | None:
    """Return an error if a key is not the one to which the writer of a signed file committed.

    None stands for the footer key. GCM commits to no key: without this check, key metadata that
    nobody signs could lead to another key, under which the same ciphertext has another plaintext.
    """
    from modcrypt.parquet.signatures.leaf_list import commit_to_key, find_hash, key_place

    assert footer.signed is not None
    known = find_hash(footer.signed, key_place(column))
    if known == commit_to_key(key, footer.cipher.file_aad):
        return None
    what = "footer" if column is None else f"column {column}"
    return WriterSignatureError(f"the key of the {what} is not the one with which it was signed")

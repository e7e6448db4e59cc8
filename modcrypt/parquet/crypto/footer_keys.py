"""Key metadata in footers: listing it without keys, and replacing or removing it.

Key rotation and shredding change only a data file's footer: offsets, pages and their nonces stay.
Key metadata of columns is part of the footer, so an encrypted footer must be encrypted again, and a
plaintext footer signed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from modcrypt.errors import KeyNotFoundError, WriterSignatureError
from modcrypt.io.sources import Source
from modcrypt.parquet.crypto.crypto_fields import plaintext_file_error, read_crypto_fields
from modcrypt.parquet.crypto.footer import FOOTER, Footer, encode_footer, sign_footer
from modcrypt.parquet.crypto.footer_opening import open_footer
from modcrypt.parquet.crypto.properties import FileDecryptionProperties, bind_to_file
from modcrypt.parquet.format.framing import (
    MAGIC_ENCRYPTED,
    MAGIC_PLAINTEXT,
    Tail,
    close_tail,
    read_tail,
)
from modcrypt.parquet.format.idl import ThriftStruct, decode, encode
from modcrypt.parquet.format.modules import check_file_path, check_shape
from modcrypt.parquet.format.schema import leaf_elements
from modcrypt.parquet.signatures.signature_block import take_signature
from modcrypt.parquet.signatures.signers import Signer
from modcrypt.pkmt1.material import SHREDDED

Change = Callable[[bytes, "str | None"], "bytes | None"]
"""A function of the old key metadata and the column (None for the footer key); it returns the new
key metadata, or None to remove it."""


@dataclass(frozen=True, slots=True)
class FooterKey:
    """A key that a file needs according to its footer.

    `column` is a dotted name, None for the footer key. `metadata` is None if the file has none.
    """

    column: str | None
    metadata: bytes | None


def list_key_metadata(
    source: Source, properties: FileDecryptionProperties | None = None
) -> tuple[list[FooterKey], bool]:
    """Return the keys of a file, and whether an encrypted footer may hide those of columns.

    Without properties nothing is authenticated. Raise PlaintextError if the file is not encrypted;
    and ModcryptError if the footer cannot be opened, or the bytes violate the format.
    """
    tail = read_tail(source)
    if properties is not None:
        opened = open_footer(tail, bind_to_file(properties, source), source.name)
        return list(list_footer_keys(opened.metadata, opened.key_metadata)), False
    union, footer, _ = read_crypto_fields(tail)
    if tail.magic == MAGIC_ENCRYPTED:
        return [FooterKey(None, footer)], True
    keys = list(list_footer_keys(decode("FileMetaData", tail.data)[0], footer))
    if union is None and not keys[1:]:
        raise plaintext_file_error(source.name)
    return keys, False


def list_footer_keys(metadata: ThriftStruct, footer: bytes | None) -> Iterator[FooterKey]:
    """Yield the footer key, and each column key once."""
    yield FooterKey(None, footer)
    seen = set()
    for own in _walk_column_keys(metadata):
        key = FooterKey(_column_name(own), own.key_metadata)
        if key not in seen:
            seen.add(key)
            yield key


def _walk_column_keys(metadata: ThriftStruct) -> Iterator[ThriftStruct]:
    for row_group in metadata.row_groups:
        for chunk in row_group.columns:
            crypto = chunk.crypto_metadata
            if crypto is not None and crypto.ENCRYPTION_WITH_COLUMN_KEY is not None:
                yield crypto.ENCRYPTION_WITH_COLUMN_KEY


def _column_name(own: ThriftStruct) -> str:
    return b".".join(own.path_in_schema).decode("utf-8", "replace")


UnderKey: TypeAlias = Literal["plaintext", "footer key", "column key"]


@dataclass(frozen=True, slots=True)
class ColumnUse:
    """The keys that protect a leaf column according to the footer.

    Attributes:
        path: Path of the leaf.
        under: Protection of its chunks: one value; none without row groups; several only in a
            damaged file.
        metadata: Key metadata of its own keys; writers use the same in all row groups.
        bare: Whether a chunk has its own key, but no key metadata.
    """

    path: tuple[str, ...]
    under: frozenset[UnderKey]
    metadata: frozenset[bytes]
    bare: bool

    @property
    def name(self) -> str:
        """Dotted name of the leaf."""
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class KeyUses:
    """The keys that a file needs, and for which parts."""

    encrypted: bool  # whether the file is encrypted; a plaintext file has only `columns`
    has_encrypted_footer: bool  # whether the footer is encrypted
    # The file's `aad_file_unique`, which identifies copies of the file; empty for none.
    unique: bytes
    # Key metadata of the footer key; None if there is none, or it was shredded.
    footer: bytes | None
    # The leaf columns; None if an encrypted footer hides them.
    columns: tuple[ColumnUse, ...] | None
    shredded: bool = False  # whether a mark shows that the footer key's metadata was removed


def key_uses(source: Source, properties: FileDecryptionProperties | None = None) -> KeyUses:
    """Return the keys that a file needs, and for which parts.

    Without properties nothing is authenticated. Raise ModcryptError if the footer cannot be opened,
    or the bytes violate the format.
    """
    tail = read_tail(source)
    union, footer, _ = read_crypto_fields(tail)
    struct = None if union is None else union.AES_GCM_V1 or union.AES_GCM_CTR_V1
    unique = b"" if struct is None else bytes(struct.aad_file_unique or b"")
    has_encrypted_footer, shredded = tail.magic == MAGIC_ENCRYPTED, footer == SHREDDED
    footer = None if shredded else footer
    if has_encrypted_footer and properties is None:
        return KeyUses(True, True, unique, footer, None, shredded)
    if has_encrypted_footer or (properties is not None and union is not None):
        assert properties is not None
        metadata = _open_strictly(tail, source, properties).metadata
    else:
        metadata = decode("FileMetaData", tail.data)[0]
    encrypted = union is not None or any(True for _ in _walk_column_keys(metadata))
    uses = tuple(_list_column_uses(metadata))
    return KeyUses(encrypted, has_encrypted_footer, unique, footer, uses, shredded)


def _list_column_uses(metadata: ThriftStruct) -> Iterator[ColumnUse]:
    leaves = [leaf.path for leaf in leaf_elements(metadata.schema)]
    check_shape(metadata, len(leaves))
    for c, path in enumerate(leaves):
        under: set[UnderKey] = set()
        own: list[bytes | None] = []
        for r, row_group in enumerate(metadata.row_groups):
            check_file_path(row_group.columns[c], r, c)
            if (crypto := row_group.columns[c].crypto_metadata) is None:
                under.add("plaintext")
            elif crypto.ENCRYPTION_WITH_COLUMN_KEY is None:
                under.add("footer key")
            else:
                under.add("column key")
                own.append(crypto.ENCRYPTION_WITH_COLUMN_KEY.key_metadata)
        known = frozenset(key_metadata for key_metadata in own if key_metadata)
        yield ColumnUse(path, frozenset(under), known, not all(own))


@dataclass(frozen=True, slots=True)
class NewTail:
    """The new end of a file, from the offset `start` on.

    `lost_signature` is True if the file was signed by its writer, and no longer is.
    """

    start: int
    data: bytes
    lost_signature: bool = False


def new_tail(
    source: Source, properties: FileDecryptionProperties | None, change: Change,
    signing_key: Signer | None = None,
) -> NewTail | None:  # fmt: skip
    """Return a new tail for a file, with changed key metadata; None if nothing changes.

    `change` is called once for each key metadata. The signature of the writer stays valid if only
    the metadata of the key of an encrypted footer changes. Else `signing_key` signs again what the
    same key had signed, or the signature is dropped.

    The properties open the footer, which is encrypted or signed again. They are None for files
    whose footer key is shredded: the content of an encrypted footer then does not change, and a
    plaintext footer keeps its signature, which no longer matches; nobody has the key to check it.

    Raises:
        KeyNotFoundError: The footer key is missing.
        WriterSignatureError: The key that is to sign did not sign the file.
        ModcryptError: The footer cannot be opened, or `change` failed.
    """
    tail, change_once = read_tail(source), _cache_answers(change)
    if properties is not None and signing_key is not None:
        properties = replace(properties, signed_by=(signing_key.verifier,))
    opened = None if properties is None else _open_strictly(tail, source, properties)
    if tail.magic == MAGIC_ENCRYPTED:
        return _replace_crypto_metadata(tail, opened, change_once, signing_key)
    metadata, end = decode("FileMetaData", tail.data)
    block = take_signature(metadata, tail.data, end)
    old = metadata.footer_signing_key_metadata
    differ = _change_columns(metadata, change_once)
    if old:
        metadata.footer_signing_key_metadata = change_once(old, None)
    if metadata.footer_signing_key_metadata == old and not differ:
        return None
    signature = tail.data[end:]
    if opened is None:
        data = close_tail(encode(metadata) + signature, MAGIC_PLAINTEXT)
        return NewTail(tail.start, data, block is not None)
    if opened.footer_key is None:
        raise KeyNotFoundError("the plaintext footer must be signed again; pass the footer key")
    footer = _encode_again(metadata, opened, signing_key)
    signature = sign_footer(opened.cipher, opened.footer_key, footer)
    lost = block is not None and signing_key is None
    return NewTail(tail.start, close_tail(footer + signature, MAGIC_PLAINTEXT), lost)


def refuse_lost_signature(
    properties: FileDecryptionProperties | None, name: str, *, lost: bool
) -> None:
    """Raise WriterSignatureError if a change drops the signature that the caller requires."""
    if lost and properties is not None and properties.signed_by:
        raise WriterSignatureError(
            f"{name}: the change would drop the signature that signed_by requires; pass the "
            "signing key to sign again, or do not require a signature"
        )


def _encode_again(metadata: ThriftStruct, opened: Footer, signing_key: Signer | None) -> bytes:
    """Return an encoded footer whose parts did not change, signed again by a key that vouched."""
    hashes = b"" if opened.signed is None else bytes(opened.signed)
    return encode_footer(
        metadata, opened.cipher, signing_key, hashes, plaintext=opened.plaintext_footer
    )


def _cache_answers(change: Change) -> Change:
    """Return a function that calls `change` only once for each key metadata."""
    answers: dict[bytes, bytes | None] = {}

    def change_once(metadata: bytes, column: str | None) -> bytes | None:
        if metadata not in answers:
            answers[metadata] = change(metadata, column)
        return answers[metadata]

    return change_once


def _change_columns(metadata: ThriftStruct, change_once: Change) -> bool:
    """Change the key metadata of columns in place; return whether any differs."""
    differ = False
    for own in _walk_column_keys(metadata):
        if old := own.key_metadata:  # Arrow C++ writes empty key metadata if it has none
            own.key_metadata = change_once(old, _column_name(own))
            differ |= own.key_metadata != old
    return differ


def _open_strictly(tail: Tail, source: Source, properties: FileDecryptionProperties) -> Footer:
    """Open a footer with all checks, even if the caller waived some: never re-sign a forgery."""
    strict = replace(properties, check_footer_integrity=True, require_encrypted=True)
    return open_footer(tail, bind_to_file(strict, source), source.name)


def _replace_crypto_metadata(
    tail: Tail, opened: Footer | None, change_once: Change, signing_key: Signer | None
) -> NewTail | None:
    """Return an encrypted footer after changed key metadata; None if nothing changes."""
    differ = opened is not None and _change_columns(opened.metadata, change_once)
    crypto, end = decode("FileCryptoMetaData", tail.data)
    if old := crypto.key_metadata:
        crypto.key_metadata = change_once(old, None)
    if crypto.key_metadata == old and not differ:
        return None
    module, lost = tail.data[end:], False
    if opened is not None and differ:
        assert opened.footer_key is not None
        footer = _encode_again(opened.metadata, opened, signing_key)
        module = opened.cipher.encrypt(opened.footer_key, FOOTER, footer)
        lost = opened.signature is not None and signing_key is None
    return NewTail(tail.start, close_tail(encode(crypto) + module, MAGIC_ENCRYPTED), lost)

"""Key metadata in footers: listing it without keys, and replacing or removing it.

Key rotation and shredding change only a data file's footer: offsets, pages and their nonces stay.
Key metadata of columns is part of the footer, so an encrypted footer must be encrypted again, and a
plaintext footer signed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from modcrypt.aad import module_aad
from modcrypt.errors import AadPrefixError, KeyNotFoundError, PlaintextError
from modcrypt.io.sources import Source
from modcrypt.parquet.crypto.crypto_fields import read_crypto_fields
from modcrypt.parquet.crypto.footer import FOOTER
from modcrypt.parquet.crypto.footer_opening import Footer, open_footer
from modcrypt.parquet.crypto.properties import FileDecryptionProperties, bind_to_file
from modcrypt.parquet.format.framing import (
    MAGIC_ENCRYPTED,
    MAGIC_PLAINTEXT,
    Tail,
    close_tail,
    read_tail,
)
from modcrypt.parquet.format.idl import ThriftStruct, decode, encode
from modcrypt.parquet.format.modules import check_shape
from modcrypt.parquet.format.schema import leaf_elements
from modcrypt.pkmt1.material import SHREDDED

__all__ = [
    "ColumnUse",
    "FooterKey",
    "KeyUses",
    "Layout",
    "check_border",
    "key_uses",
    "layout_of",
    "list_key_metadata",
    "new_tail",
    "unsigned_tail",
]

Change = Callable[[bytes, "str | None"], "bytes | None"]
"""A function of the old key metadata and the column (None for the footer key); it returns the new
key metadata, or None to remove it."""


@dataclass(frozen=True, slots=True)
class FooterKey:
    """A key that a file needs according to its footer.

    Attributes:
        column: Dotted name of the column; None for the footer key.
        metadata: Key metadata that identifies the key; None if the file has none.
    """

    column: str | None
    metadata: bytes | None


def list_key_metadata(
    source: Source, properties: FileDecryptionProperties | None = None
) -> tuple[list[FooterKey], bool]:
    """Return the keys of a file, and whether an encrypted footer may hide those of columns.

    Args:
        source: The file.
        properties: Keys and requirements of the caller; without them nothing is authenticated.

    Raises:
        PlaintextError: The file is not encrypted.
        ModcryptError: As for `read_encrypted`, or the bytes violate the format.
    """
    tail = read_tail(source)
    if properties is not None:
        opened = open_footer(tail, bind_to_file(properties, source), source.name)
        return list(_list_footer_keys(opened.metadata, opened.key_metadata)), False
    union, footer, _ = read_crypto_fields(tail)
    if tail.magic == MAGIC_ENCRYPTED:
        return [FooterKey(None, footer)], True
    keys = list(_list_footer_keys(decode("FileMetaData", tail.data)[0], footer))
    if union is None and not keys[1:]:
        raise PlaintextError(
            f"{source.name} is a plaintext file where an encrypted one is expected"
        )
    return keys, False


def _list_footer_keys(metadata: ThriftStruct, footer: bytes | None) -> Iterator[FooterKey]:
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


# --- use of keys ---------------------------------------------------------------------------------

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
    """The keys that a file needs, and for which parts.

    Attributes:
        encrypted: Whether the file is encrypted; a plaintext file has only `columns`.
        sealed: Whether the footer is encrypted.
        unique: The file's `aad_file_unique`, which identifies copies of the file; empty for none.
        footer: Key metadata of the footer key; None if there is none, or it was shredded.
        columns: The leaf columns; None if an encrypted footer hides them.
        shredded: Whether a mark shows that the footer key's metadata was removed.
    """

    encrypted: bool
    sealed: bool
    unique: bytes
    footer: bytes | None
    columns: tuple[ColumnUse, ...] | None
    shredded: bool = False


def key_uses(source: Source, properties: FileDecryptionProperties | None = None) -> KeyUses:
    """Return the keys that a file needs, and for which parts.

    Args:
        source: The file.
        properties: Keys and requirements of the caller; without them nothing is authenticated.

    Raises:
        ModcryptError: As for `read_encrypted`, or the bytes violate the format.
    """
    tail = read_tail(source)
    union, footer, _ = read_crypto_fields(tail)
    struct = None if union is None else union.AES_GCM_V1 or union.AES_GCM_CTR_V1
    unique = b"" if struct is None else bytes(struct.aad_file_unique or b"")
    sealed, shredded = tail.magic == MAGIC_ENCRYPTED, footer == SHREDDED
    footer = None if shredded else footer
    if sealed and properties is None:
        return KeyUses(True, True, unique, footer, None, shredded)
    if sealed or (properties is not None and union is not None):
        assert properties is not None
        metadata = _open_strictly(tail, source, properties).metadata
    else:
        metadata = decode("FileMetaData", tail.data)[0]
    encrypted = union is not None or any(True for _ in _walk_column_keys(metadata))
    return KeyUses(encrypted, sealed, unique, footer, tuple(_list_column_uses(metadata)), shredded)


def _list_column_uses(metadata: ThriftStruct) -> Iterator[ColumnUse]:
    leaves = [leaf.path for leaf in leaf_elements(metadata.schema)]
    check_shape(metadata, len(leaves))
    for c, path in enumerate(leaves):
        under: set[UnderKey] = set()
        own: list[bytes | None] = []
        for row_group in metadata.row_groups:
            crypto = row_group.columns[c].crypto_metadata
            if crypto is None:
                under.add("plaintext")
            elif crypto.ENCRYPTION_WITH_COLUMN_KEY is None:
                under.add("footer key")
            else:
                under.add("column key")
                own.append(crypto.ENCRYPTION_WITH_COLUMN_KEY.key_metadata)
        known = frozenset(key_metadata for key_metadata in own if key_metadata)
        yield ColumnUse(path, frozenset(under), known, not all(own))


# --- changing key metadata -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Layout:
    """The way in which a file is encrypted, from its authenticated footer."""

    keys: list[FooterKey]
    plaintext_columns: list[str]
    algorithm: str
    plaintext_footer: bool
    aad_prefix: bytes | None
    store_aad_prefix: bool
    key_length: int  # length of the footer key in bytes


def layout_of(source: Source, properties: FileDecryptionProperties) -> Layout:
    """Return how a file is encrypted.

    Raises:
        KeyNotFoundError: The footer key is missing.
        ModcryptError: As for `read_encrypted`.
    """
    tail = read_tail(source)
    opened = _open_strictly(tail, source, properties)
    if opened.footer_key is None:
        raise KeyNotFoundError("no footer key is given")
    check_border(opened, properties)
    leaves = [leaf.path for leaf in leaf_elements(opened.metadata.schema)]
    plain = {
        ".".join(leaves[c])
        for row_group in opened.metadata.row_groups
        for c, chunk in enumerate(row_group.columns)
        if chunk.crypto_metadata is None
    }
    return Layout(
        keys=list(_list_footer_keys(opened.metadata, opened.key_metadata)),
        plaintext_columns=sorted(plain),
        algorithm=opened.cipher.algorithm,
        plaintext_footer=opened.plaintext_footer,
        aad_prefix=opened.aad_prefix,
        store_aad_prefix=bool(opened.algorithm.aad_prefix),
        key_length=len(opened.footer_key),
    )


def check_border(opened: Footer, properties: FileDecryptionProperties) -> None:
    """Raise if the AAD prefix's border may have been moved: a new file would authenticate it.

    Raises:
        AadPrefixError: `aad_file_unique` does not have the expected length.
    """
    size = len(opened.file_unique)
    if size != properties.aad_file_unique_size:
        raise AadPrefixError(
            f"aad_file_unique has {size} bytes, not {properties.aad_file_unique_size}: "
            "bytes may have been moved between it and the AAD prefix"
        )


def new_tail(
    source: Source, properties: FileDecryptionProperties, change: Change
) -> tuple[int, bytes] | None:
    """Return the offset of a file's footer, and a new tail for it with changed key metadata.

    Return None if no key metadata changes.

    Args:
        source: The file.
        properties: Keys that open the footer, which is encrypted or signed again.
        change: Function called once for each key metadata.

    Raises:
        KeyNotFoundError: The footer key is missing.
        ModcryptError: As for `read_encrypted`, or as `change` raises.
    """
    tail = read_tail(source)
    opened = _open_strictly(tail, source, properties)
    change_once = _cache_answers(change)
    columns_differ = _change_columns(opened.metadata, change_once)
    build = _rebuild_signed_tail if opened.plaintext_footer else _rebuild_encrypted_tail
    return build(tail, opened, change_once, columns_differ)


def unsigned_tail(source: Source, change: Change) -> tuple[int, bytes] | None:
    """Return the same as `new_tail`, without using a key: for files whose footer key is shredded.

    The content of an encrypted footer does not change. A plaintext footer keeps its signature,
    which no longer matches: nobody has the key to check it.

    Args:
        source: The file.
        change: Function called once for each key metadata.

    Raises:
        FormatError: The bytes violate the format.
    """
    tail, change_once = read_tail(source), _cache_answers(change)
    if tail.magic == MAGIC_ENCRYPTED:
        return _replace_crypto_metadata(tail, change_once)
    metadata, end = decode("FileMetaData", tail.data)
    old = metadata.footer_signing_key_metadata
    differ = _change_columns(metadata, change_once)
    if old:
        metadata.footer_signing_key_metadata = change_once(old, None)
    if metadata.footer_signing_key_metadata == old and not differ:
        return None
    return tail.start, close_tail(encode(metadata) + tail.data[end:], MAGIC_PLAINTEXT)


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
        old = own.key_metadata
        if old:  # Arrow C++ writes empty key metadata if it has none
            own.key_metadata = change_once(old, _column_name(own))
            differ |= own.key_metadata != old
    return differ


def _open_strictly(tail: Tail, source: Source, properties: FileDecryptionProperties) -> Footer:
    """Open a footer with all checks, even if the caller waived some: never re-sign a forgery."""
    strict = replace(properties, check_footer_integrity=True, require_encrypted=True)
    return open_footer(tail, bind_to_file(strict, source), source.name)


def _rebuild_encrypted_tail(
    tail: Tail, opened: Footer, change_once: Change, columns_differ: bool
) -> tuple[int, bytes] | None:
    if not columns_differ:
        return _replace_crypto_metadata(tail, change_once)
    assert opened.footer_key is not None
    module = opened.cipher.seal(opened.footer_key, FOOTER, encode(opened.metadata))
    return _replace_crypto_metadata(tail, change_once, module)


def _replace_crypto_metadata(
    tail: Tail, change_once: Change, module: bytes | None = None
) -> tuple[int, bytes] | None:
    """Return an encrypted footer after changed key metadata; None if nothing changes."""
    crypto, end = decode("FileCryptoMetaData", tail.data)
    old = crypto.key_metadata
    if old:
        crypto.key_metadata = change_once(old, None)
    if crypto.key_metadata == old and module is None:
        return None
    sealed = tail.data[end:] if module is None else module
    return tail.start, close_tail(encode(crypto) + sealed, MAGIC_ENCRYPTED)


def _rebuild_signed_tail(
    tail: Tail, opened: Footer, change_once: Change, columns_differ: bool
) -> tuple[int, bytes] | None:
    metadata, key = opened.metadata, opened.footer_key
    old = metadata.footer_signing_key_metadata
    if old:
        metadata.footer_signing_key_metadata = change_once(old, None)
    if metadata.footer_signing_key_metadata == old and not columns_differ:
        return None
    if key is None:
        raise KeyNotFoundError("the plaintext footer must be signed again; pass the footer key")
    footer = encode(metadata)
    aad = module_aad(opened.cipher.file_aad, FOOTER)
    signature = opened.cipher.gcm(key).sign(footer, aad)
    return tail.start, close_tail(footer + signature, MAGIC_PLAINTEXT)

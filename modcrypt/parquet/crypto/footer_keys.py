"""The key metadata in a footer: listed without keys, replaced or removed without touching a page.

What rotation and shredding change of a data file is its footer alone: offsets, pages and their
nonces stay. Column keys' metadata lies within a sealed footer, which is sealed anew, and makes a
plaintext footer to be signed anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from modcrypt.aad import module_aad
from modcrypt.errors import AadPrefixError, KeyNotFoundError, PlaintextError
from modcrypt.io.storage import Source
from modcrypt.parquet.crypto.footer import (
    FOOTER,
    SIGNATURE_FIELDS,
    EncryptedFooter,
    open_footer,
)
from modcrypt.parquet.crypto.properties import FileDecryptionProperties, bound
from modcrypt.parquet.format.framing import (
    MAGIC_ENCRYPTED,
    MAGIC_PLAINTEXT,
    Tail,
    close_tail,
    read_tail,
)
from modcrypt.parquet.format.idl import ThriftStruct, decode, decode_some, encode
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
"""Gives the new key metadata for the old one of a column, None for the footer key; None where there
is to be none any more."""


@dataclass(frozen=True, slots=True)
class FooterKey:
    """A key that a file needs, as its footer tells it.

    Attributes:
        column: dotted name; None for the footer key.
        metadata: by which the key is found; None where there is none.
    """

    column: str | None
    metadata: bytes | None


def list_key_metadata(
    source: Source, properties: FileDecryptionProperties | None = None
) -> tuple[list[FooterKey], bool]:
    """List the keys of a file, and say whether those of columns may be hidden in a sealed footer.

    Nothing is authenticated where `properties` are not given.

    Raises:
        PlaintextError: the file is not encrypted.
        ModcryptError: as `read_encrypted`, or the bytes break the format.
    """
    tail = read_tail(source)
    if properties is not None:
        opened = open_footer(tail, bound(properties, source), source.name)
        return list(_all(opened.metadata, _crypto(tail)[1])), False
    union, footer = _crypto(tail)
    if tail.magic == MAGIC_ENCRYPTED:
        return [FooterKey(None, footer)], True
    keys = list(_all(decode("FileMetaData", tail.data)[0], footer))
    if union is None and not keys[1:]:
        raise PlaintextError(
            f"{source.name} is a plaintext file where an encrypted one is expected"
        )
    return keys, False


def _crypto(tail: Tail) -> tuple[ThriftStruct | None, bytes | None]:
    """Give a file's encryption algorithm, and the footer key's metadata."""
    if tail.magic == MAGIC_ENCRYPTED:
        crypto = decode("FileCryptoMetaData", tail.data)[0]
        return crypto.encryption_algorithm, crypto.key_metadata
    signed = decode_some("FileMetaData", tail.data, SIGNATURE_FIELDS)[0]
    return signed.encryption_algorithm, signed.footer_signing_key_metadata


def _all(metadata: ThriftStruct, footer: bytes | None) -> Iterator[FooterKey]:
    """Give the footer key, and each column key once."""
    yield FooterKey(None, footer)
    seen = set()
    for own in _own_keys(metadata):
        key = FooterKey(_name(own), own.key_metadata)
        if key not in seen:
            seen.add(key)
            yield key


def _own_keys(metadata: ThriftStruct) -> Iterator[ThriftStruct]:
    for row_group in metadata.row_groups:
        for chunk in row_group.columns:
            crypto = chunk.crypto_metadata
            if crypto is not None and crypto.ENCRYPTION_WITH_COLUMN_KEY is not None:
                yield crypto.ENCRYPTION_WITH_COLUMN_KEY


def _name(own: ThriftStruct) -> str:
    return b".".join(own.path_in_schema).decode("utf-8", "replace")


# --- which key is for what -----------------------------------------------------------------------

UnderKey: TypeAlias = Literal["plaintext", "footer key", "column key"]


@dataclass(frozen=True, slots=True)
class ColumnUse:
    """Under which keys a leaf column is, as the footer tells it.

    Attributes:
        path: of the leaf.
        under: what its chunks are under: one of them, none where there are no row groups, more in
            a damaged file alone.
        metadata: key metadata of its own keys; a writer gives all row groups the same.
        bare: whether a chunk is under a key of its own that has no key metadata.
    """

    path: tuple[str, ...]
    under: frozenset[UnderKey]
    metadata: frozenset[bytes]
    bare: bool

    @property
    def name(self) -> str:
        """Its dotted name."""
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class KeyUses:
    """Which key a file needs for what.

    Attributes:
        encrypted: False for a plaintext file, which has columns and nothing else.
        sealed: whether the footer is encrypted.
        unique: the file's `aad_file_unique`, by which a copy of it is known; empty for none.
        footer: key metadata of the footer key; None where there is none, or it was shredded.
        columns: None where a sealed footer hides them.
        shredded: whether a mark says that the footer key's metadata was removed.
    """

    encrypted: bool
    sealed: bool
    unique: bytes
    footer: bytes | None
    columns: tuple[ColumnUse, ...] | None
    shredded: bool = False


def key_uses(source: Source, properties: FileDecryptionProperties | None = None) -> KeyUses:
    """Tell which key a file needs for what.

    Nothing is authenticated where `properties` are not given.

    Raises:
        ModcryptError: as `read_encrypted`, or the bytes break the format.
    """
    tail = read_tail(source)
    union, footer = _crypto(tail)
    struct = None if union is None else union.AES_GCM_V1 or union.AES_GCM_CTR_V1
    unique = b"" if struct is None else bytes(struct.aad_file_unique or b"")
    sealed, shredded = tail.magic == MAGIC_ENCRYPTED, footer == SHREDDED
    footer = None if shredded else footer
    if sealed and properties is None:
        return KeyUses(True, True, unique, footer, None, shredded)
    if sealed or (properties is not None and union is not None):
        assert properties is not None
        metadata = _opened_strictly(tail, source, properties).metadata
    else:
        metadata = decode("FileMetaData", tail.data)[0]
    encrypted = union is not None or any(True for _ in _own_keys(metadata))
    return KeyUses(encrypted, sealed, unique, footer, tuple(_uses(metadata)), shredded)


def _uses(metadata: ThriftStruct) -> Iterator[ColumnUse]:
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
        known = frozenset(one for one in own if one)
        yield ColumnUse(path, frozenset(under), known, not all(own))


# --- other key metadata --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Layout:
    """How a file is encrypted, as its authenticated footer says."""

    keys: list[FooterKey]
    plaintext_columns: list[str]
    algorithm: str
    plaintext_footer: bool
    aad_prefix: bytes | None
    store_aad_prefix: bool
    key_length: int  # of the footer key, in bytes


def layout_of(source: Source, properties: FileDecryptionProperties) -> Layout:
    """Say how a file is encrypted.

    Raises:
        KeyNotFoundError: there is no footer key.
        ModcryptError: as `read_encrypted`.
    """
    tail = read_tail(source)
    opened = _opened_strictly(tail, source, properties)
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
        keys=list(_all(opened.metadata, opened.key_metadata)),
        plaintext_columns=sorted(plain),
        algorithm=opened.cipher.algorithm,
        plaintext_footer=opened.plaintext_footer,
        aad_prefix=opened.aad_prefix,
        store_aad_prefix=bool(opened.algorithm.aad_prefix),
        key_length=len(opened.footer_key),
    )


def check_border(opened: EncryptedFooter, properties: FileDecryptionProperties) -> None:
    """Refuse an AAD prefix whose border may have been moved: the new file would take it for true.

    Raises:
        AadPrefixError: `aad_file_unique` has another length than it should.
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
    """Give where a file's footer begins, and the bytes that belong there with other key metadata.

    Args:
        source: the file.
        properties: must open its footer, whatever its mode: it is sealed or signed anew.
        change: called once for each key metadata; where all stay the same, there is no new tail.

    Raises:
        KeyNotFoundError: there is no footer key.
        ModcryptError: as `read_encrypted`, and what `change` raises.
    """
    tail = read_tail(source)
    opened = _opened_strictly(tail, source, properties)
    changed = _once(change)
    columns_differ = _change_columns(opened.metadata, changed)
    build = _signed if opened.plaintext_footer else _sealed
    return build(tail, opened, changed, columns_differ)


def unsigned_tail(source: Source, change: Change) -> tuple[int, bytes] | None:
    """Give what `new_tail` does, without a key: for files whose footer key is to be forgotten.

    Within a sealed footer nothing changes. The signature of a plaintext footer stays, and fits no
    more: nobody is left to check it.

    Raises:
        FormatError: the bytes break the format.
    """
    tail, changed = read_tail(source), _once(change)
    if tail.magic == MAGIC_ENCRYPTED:
        return _sealed_head(tail, changed)
    metadata, end = decode("FileMetaData", tail.data)
    old = metadata.footer_signing_key_metadata
    differ = _change_columns(metadata, changed)
    if old:
        metadata.footer_signing_key_metadata = changed(old, None)
    if metadata.footer_signing_key_metadata == old and not differ:
        return None
    return tail.start, close_tail(encode(metadata) + tail.data[end:], MAGIC_PLAINTEXT)


def _once(change: Change) -> Change:
    """Ask once for each key metadata."""
    answers: dict[bytes, bytes | None] = {}

    def changed(metadata: bytes, column: str | None) -> bytes | None:
        if metadata not in answers:
            answers[metadata] = change(metadata, column)
        return answers[metadata]

    return changed


def _change_columns(metadata: ThriftStruct, changed: Change) -> bool:
    """Change the key metadata of columns in place, and say whether any differs."""
    differ = False
    for own in _own_keys(metadata):
        old = own.key_metadata
        if old:  # Arrow C++ writes key metadata of no bytes where it has none
            own.key_metadata = changed(old, _name(own))
            differ |= own.key_metadata != old
    return differ


def _opened_strictly(
    tail: Tail, source: Source, properties: FileDecryptionProperties
) -> EncryptedFooter:
    """Open a footer, whatever the caller trusts: an altered one must not be signed anew."""
    strict = replace(properties, check_footer_integrity=True, require_encrypted=True)
    return open_footer(tail, bound(strict, source), source.name)


def _sealed(
    tail: Tail, opened: EncryptedFooter, changed: Change, columns_differ: bool
) -> tuple[int, bytes] | None:
    if not columns_differ:
        return _sealed_head(tail, changed)
    assert opened.footer_key is not None
    module = opened.cipher.seal(opened.footer_key, FOOTER, encode(opened.metadata))
    return _sealed_head(tail, changed, module)


def _sealed_head(
    tail: Tail, changed: Change, module: bytes | None = None
) -> tuple[int, bytes] | None:
    """Give a sealed footer with other key metadata before it; None where nothing changes."""
    crypto, end = decode("FileCryptoMetaData", tail.data)
    old = crypto.key_metadata
    if old:
        crypto.key_metadata = changed(old, None)
    if crypto.key_metadata == old and module is None:
        return None
    sealed = tail.data[end:] if module is None else module
    return tail.start, close_tail(encode(crypto) + sealed, MAGIC_ENCRYPTED)


def _signed(
    tail: Tail, opened: EncryptedFooter, changed: Change, columns_differ: bool
) -> tuple[int, bytes] | None:
    metadata, key = opened.metadata, opened.footer_key
    old = metadata.footer_signing_key_metadata
    if old:
        metadata.footer_signing_key_metadata = changed(old, None)
    if metadata.footer_signing_key_metadata == old and not columns_differ:
        return None
    if key is None:
        raise KeyNotFoundError("the plaintext footer must be signed anew, and there is no key")
    footer = encode(metadata)
    aad = module_aad(opened.cipher.file_aad, FOOTER)
    signature = opened.cipher.gcm(key).sign(footer, aad)
    return tail.start, close_tail(footer + signature, MAGIC_PLAINTEXT)

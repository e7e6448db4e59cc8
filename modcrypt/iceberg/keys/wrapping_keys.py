"""Iceberg encryption keys (IEKs), which encrypt the key metadata of a table's files.

An IEK is one of two kinds (design thread "Iceberg Table Encryption", 2021):

    double wrapping   a KEK, generated here and wrapped by a master key (MEK) of the key service:
                      nonce (12) | AES-GCM(KEK, key metadata) | tag (16)
    single wrapping   a master key itself, which wraps each data key (DEK):
                      length of the wrapped DEK (2, big-endian) | wrapped DEK |
                      nonce (12) | AES-GCM(DEK, 0, or 1 and file length (8); AAD prefix) | tag (16)

The AAD binds encrypted key metadata to its key and to the place where it is stored:

    encryption-keys, double      KEY_TIMESTAMP of the KEK, in ASCII: as Iceberg's Java has it
    encryption-keys, single      "modcrypt iceberg manifest list", id of the master key
    a manifest, double           "modcrypt iceberg file", id of the KEK, KEY_TIMESTAMP, scope
    a manifest, single           "modcrypt iceberg file", id of the master key

where each text, except that of the first row, follows its length (4, big-endian). Java writes and
reads only the first row; the others are specific to modcrypt. In single wrapping the DEK itself
authenticates the file length; otherwise truncation of a file would go unnoticed.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, Protocol, Self

from modcrypt.aead import GcmCipher
from modcrypt.errors import KeyMaterialError, TagError
from modcrypt.iceberg.format.table_metadata import SCOPE, EncryptedKey
from modcrypt.keys import Key
from modcrypt.keys.metadata import StandardKeyMetadata
from modcrypt.pkmt1.strict_json import encode_base64
from modcrypt.runtime.fork_safety import cached_property
from modcrypt.runtime.tracebacks import hide_frames

KEY_TIMESTAMP = "KEY_TIMESTAMP"
"""Property of a KEK: its creation time in ms since 1970, as text; bound to what it encrypts."""

TABLE = "modcrypt.table"  # property of a KEK in a key store: the `table-uuid` of its table
_KEY_ID_SIZE = 16
_OF_LIST, _OF_FILE = "modcrypt iceberg manifest list", "modcrypt iceberg file"
_TIMESTAMP = re.compile(r"[0-9]{1,18}")  # Java's long, in ASCII digits only
_MIN_ENCRYPTED = 12 + 1 + 16


def new_key_id() -> str:
    """Return a fresh random id in the form of Iceberg's Java: base64 of 16 bytes."""
    return encode_base64(secrets.token_bytes(_KEY_ID_SIZE))


@dataclass(frozen=True, slots=True)
class IcebergKey:
    """An Iceberg encryption key (IEK) without its plaintext: how to obtain the key that encrypts.

    Raise KeyMaterialError if a KEK has no KEY_TIMESTAMP, or an id is not valid Unicode.
    """

    # Id by which encrypted key metadata names it. In single wrapping, that of the master key.
    id: str
    master_key_id: str  # id of the master key in the key service
    # KEK, wrapped by the master key; None in single wrapping.
    wrapped: bytes | None = field(default=None, repr=False)
    # Properties of a KEK: its KEY_TIMESTAMP and, unless it is for the whole table, its scope.
    properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _utf8(self.id)
        _utf8(self.scope)
        if self.is_double and not _TIMESTAMP.fullmatch(self.properties.get(KEY_TIMESTAMP, "")):
            raise KeyMaterialError(
                f"key {self.id!r} of the table is not a KEK: it has no {KEY_TIMESTAMP} in ms"
            )

    @classmethod
    def single(cls, master_key_id: str) -> Self:
        """Return the IEK that is a master key itself."""
        return cls(master_key_id, master_key_id)

    @classmethod
    def of(cls, entry: EncryptedKey) -> Self:
        """Return the KEK in an `encryption-keys` entry; raise KeyMaterialError if it is none."""
        return cls(entry.id, entry.encrypted_by, entry.encrypted, entry.properties)

    @property
    def is_double(self) -> bool:
        """True if the IEK is a KEK."""
        return self.wrapped is not None

    @property
    def timestamp_ms(self) -> int:
        """The creation time of a KEK, in ms since 1970."""
        return int(self.properties[KEY_TIMESTAMP])

    @property
    def scope(self) -> str:
        """The files that a KEK is for; empty for the whole table."""
        return self.properties.get(SCOPE, "")

    def entry(self) -> EncryptedKey:
        """Return a KEK as an entry of `encryption-keys`."""
        if self.wrapped is None:
            raise ValueError("a master key in single wrapping is not an entry of encryption-keys")
        return EncryptedKey(self.id, self.wrapped, self.master_key_id, self.properties)


class _DataKeyService(Protocol):
    """Calls of the key service in single wrapping; `MasterKeys` has them."""

    def wrap_many(self, keys: Sequence[Key], master_key_id: str) -> list[bytes]: ...

    def unwrap(self, wrapped: bytes, master_key_id: str) -> Key: ...

    def fetch(self, wrapped: Iterable[bytes], master_key_id: str) -> None: ...


@dataclass(frozen=True, eq=False)
class OpenKey:
    """An IEK that is ready to encrypt and decrypt the key metadata of files, in any thread.

    It cannot be pickled or copied: send its `key` instead, and open that in the other process.
    """

    key: IcebergKey
    masters: _DataKeyService = field(repr=False)
    _kek: Key | None = field(default=None, repr=False)

    def __reduce__(self) -> NoReturn:
        raise TypeError("an OpenKey can't be pickled or copied: send its key, and open that there")

    @cached_property
    def _cipher(self) -> GcmCipher:
        assert self._kek is not None
        return GcmCipher(self._kek)

    def encrypt(self, metadata: StandardKeyMetadata, *, in_manifest: bool = False) -> bytes:
        """Encrypt the key metadata of a file. Arguments and errors are those of `encrypt_many`."""
        return self.encrypt_many([metadata], in_manifest=in_manifest)[0]

    @hide_frames
    def encrypt_many(
        self, metadata: Sequence[StandardKeyMetadata], *, in_manifest: bool = False
    ) -> list[bytes]:
        """Encrypt the key metadata of files, each by itself.

        With `in_manifest`, a manifest stores the result; otherwise `encryption-keys` does.

        Raises:
            KeyRetrievalError: In single wrapping: the key service does not wrap the data keys.
            KeyExhaustedError: The KEK has encrypted 2**32 times in this process.
        """
        aad = self._aad(in_manifest)
        if self.key.is_double:
            return [self._cipher.encrypt_block(file.encode(), aad) for file in metadata]
        deks = self.masters.wrap_many([file.key for file in metadata], self.key.master_key_id)
        blocks = [GcmCipher(file.key).encrypt_block(_encode_rest(file), aad) for file in metadata]
        return [
            len(dek).to_bytes(2, "big") + dek + block
            for dek, block in zip(deks, blocks, strict=True)
        ]

    @hide_frames
    def decrypt(self, encrypted: bytes, *, in_manifest: bool = False) -> StandardKeyMetadata:
        """Decrypt the key metadata of a file.

        Raise KeyMaterialError if the data was altered, or belongs to another key or another place;
        and KeyRetrievalError if the key service does not unwrap the data key.
        """
        aad = self._aad(in_manifest)
        if self.key.is_double:
            with _as_key_material_errors(self.key.id):
                return StandardKeyMetadata.decode(self._cipher.decrypt_block(encrypted, aad))
        wrapped = wrapped_part(encrypted)
        dek = self.masters.unwrap(wrapped, self.key.master_key_id)
        with _as_key_material_errors(self.key.id):
            return _decode_rest(
                dek, GcmCipher(dek).decrypt_block(encrypted[2 + len(wrapped) :], aad)
            )

    def _aad(self, in_manifest: bool) -> bytes:
        """Return the AAD of encrypted key metadata, see the top of this module."""
        key = self.key
        if not key.is_double:
            return _build_aad(_OF_FILE if in_manifest else _OF_LIST, key.id)
        timestamp = key.properties[KEY_TIMESTAMP]
        if in_manifest:
            return _build_aad(_OF_FILE, key.id, timestamp, key.scope)
        return timestamp.encode()


def wrapped_part(encrypted: bytes) -> bytes:
    """Return the wrapped DEK of singly wrapped metadata; raise KeyMaterialError if truncated."""
    size = int.from_bytes(encrypted[:2], "big")
    if not size or len(encrypted) < 2 + size + _MIN_ENCRYPTED:
        raise KeyMaterialError("key metadata under a master key is truncated")
    return encrypted[2 : 2 + size]


def _encode_rest(metadata: StandardKeyMetadata) -> bytes:
    """Encode the parts of key metadata other than the key."""
    length = metadata.file_length
    prefix = b"\0" if length is None else b"\1" + length.to_bytes(8, "big", signed=True)
    return prefix + (metadata.aad_prefix or b"")


def _decode_rest(dek: Key, data: bytes) -> StandardKeyMetadata:
    """Reverse `_encode_rest`; raise ValueError for other data."""
    size = {0: 0, 1: 8}.get(data[0]) if data else None
    if size is None or len(data) < 1 + size:
        raise ValueError
    return StandardKeyMetadata(
        key=dek,
        aad_prefix=data[1 + size :] or None,
        file_length=int.from_bytes(data[1:9], "big", signed=True) if size else None,
    )


def _build_aad(*texts: str) -> bytes:
    encoded = [_utf8(text) for text in texts]
    return b"".join(len(data).to_bytes(4, "big") + data for data in encoded)


def _utf8(text: str) -> bytes:
    with contextlib.suppress(UnicodeEncodeError):
        return text.encode()
    raise KeyMaterialError(
        "the id or scope of a key has an unpaired surrogate: it is not valid Unicode"
    )


@contextlib.contextmanager
def _as_key_material_errors(key_id: str) -> Iterator[None]:
    try:
        yield
    except (TagError, ValueError):
        raise KeyMaterialError(
            f"key {key_id!r} of the table does not decrypt the key metadata of a file: it was "
            "altered, or encrypted with another key or for another place"
        ) from None

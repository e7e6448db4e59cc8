"""Iceberg encryption keys (IEK): what the key metadata of a table's files is sealed under.

The one notion has two kinds (design thread "Iceberg Table Encryption", 2021):

    double wrapping   a KEK, made here and wrapped by a master key (MEK) of the key service:
                      nonce (12) | AES-GCM(KEK, key metadata, AAD: its KEY_TIMESTAMP) | tag (16)
    single wrapping   a master key itself, which wraps each data key (DEK):
                      length of the wrapped DEK (2, big-endian) | wrapped DEK |
                      nonce (12) | AES-GCM(DEK, AAD prefix and file length) | tag (16)

The first is what Iceberg's Java writes and reads. The second is this package's own: Java has no
form for it. In it the DEK itself vouches for the length, or a file could be cut short unnoticed.
"""

from __future__ import annotations

import base64
import contextlib
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

from modcrypt.aead import GcmCipher, TagError
from modcrypt.errors import FormatError, KeyMaterialError
from modcrypt.iceberg.table_metadata import EncryptedKey
from modcrypt.key_metadata import StandardKeyMetadata
from modcrypt.keys import Key, as_key, key_bytes
from modcrypt.kms.client import KmsClient, rewrap, unwrap, wrap
from modcrypt.kms.strict_json import from_base64

__all__ = [
    "KEY_TIMESTAMP",
    "SCOPE",
    "IcebergKey",
    "MasterKeys",
    "OpenKey",
    "new_key_id",
]

KEY_TIMESTAMP = "KEY_TIMESTAMP"
"""Property of a KEK: when it was made, in ms since 1970, as text; what it seals is bound to it."""

SCOPE = "modcrypt.scope"
"""Property of a KEK that is not for the whole table: which files it is for."""

_KEY_ID_SIZE = 16
_SINGLE_AAD = b"modcrypt iceberg single wrapping"
_NO_LENGTH = (1 << 64) - 1


def new_key_id() -> str:
    """Give a fresh random id, in the form of Iceberg's Java: base64 of 16 bytes."""
    return base64.b64encode(secrets.token_bytes(_KEY_ID_SIZE)).decode()


@dataclass(frozen=True, slots=True)
class IcebergKey:
    """An Iceberg encryption key (IEK): how to have the key that seals; no key itself.

    Attributes:
        id: by which sealed key metadata names it. In single wrapping, the master key's.
        master_key_id: of the master key in the key service.
        wrapped: the KEK, wrapped by the master key; None in single wrapping.
        properties: of a KEK, its KEY_TIMESTAMP and scope.
    """

    id: str
    master_key_id: str
    wrapped: bytes | None = field(default=None, repr=False)
    properties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def single(cls, master_key_id: str) -> Self:
        """Give the IEK that is a master key itself."""
        return cls(master_key_id, master_key_id)

    @classmethod
    def of(cls, entry: EncryptedKey) -> Self:
        """Give the IEK that an entry of `encryption-keys` is.

        Raises:
            KeyMaterialError: it has no KEY_TIMESTAMP.
        """
        if not entry.properties.get(KEY_TIMESTAMP, "").isdecimal():
            raise KeyMaterialError(
                f"key {entry.id} of the table: no KEK: it has no {KEY_TIMESTAMP}"
            )
        return cls(entry.id, entry.encrypted_by, entry.encrypted, entry.properties)

    @property
    def is_double(self) -> bool:
        """Whether it is a KEK."""
        return self.wrapped is not None

    @property
    def timestamp_ms(self) -> int:
        """When a KEK was made."""
        return int(self.properties[KEY_TIMESTAMP])

    @property
    def scope(self) -> str:
        """Which files a KEK is for; empty for the whole table."""
        return self.properties.get(SCOPE, "")

    def entry(self) -> EncryptedKey:
        """Give a KEK as an entry of `encryption-keys`."""
        if self.wrapped is None:
            raise ValueError("a master key that wraps by itself is no entry of the table's keys")
        return EncryptedKey(self.id, self.wrapped, self.master_key_id, self.properties)


class MasterKeys:
    """The key service, as tables use it: what it wraps is bytes in Iceberg, text in `KmsClient`.

    Iceberg's own clients of AWS and GCP keep the service's bytes, which a `KmsClient` gives in
    base64; text in another form (`vault:v1:...`, a keyring's JSON) is kept as it is.
    """

    def __init__(self, client: KmsClient) -> None:
        self.client = client

    def wrap(self, key: Key, master_key_id: str) -> bytes:
        """Have a key wrapped; raises as `KmsClient.wrap`."""
        return _as_bytes(wrap(self.client, key_bytes(key), master_key_id))

    def unwrap(self, wrapped: bytes, master_key_id: str) -> Key:
        """Have a key unwrapped; raises as `KmsClient.unwrap`."""
        return as_key(unwrap(self.client, _as_text(wrapped), master_key_id))

    def move(self, wrapped: bytes, old_id: str, new_id: str) -> bytes:
        """Have a key wrapped anew, under the newest version of a master key or under another."""
        if old_id == new_id:
            return _as_bytes(rewrap(self.client, _as_text(wrapped), old_id))
        return self.wrap(self.unwrap(wrapped, old_id), new_id)

    def new_kek(
        self, master_key_id: str, length: int, scope: str = "", *, now_ms: int | None = None
    ) -> OpenKey:
        """Make a KEK of `length` bytes, wrapped by a master key; raises as `KmsClient.wrap`."""
        key = Key.generate(length)
        now = int(time.time() * 1000) if now_ms is None else now_ms
        properties = {KEY_TIMESTAMP: str(now), **({SCOPE: scope} if scope else {})}
        wrapped = self.wrap(key, master_key_id)
        return OpenKey(IcebergKey(new_key_id(), master_key_id, wrapped, properties), self, key)

    def opened(self, key: IcebergKey) -> OpenKey:
        """Have a KEK unwrapped; a master key is asked when it is used.

        Raises:
            KeyRetrievalError: the key service does not unwrap it.
        """
        if key.wrapped is None:
            return OpenKey(key, self)
        return OpenKey(key, self, self.unwrap(key.wrapped, key.master_key_id))


@dataclass(frozen=True)
class OpenKey:
    """An IEK that is ready to seal and open the key metadata of files."""

    key: IcebergKey
    masters: MasterKeys = field(repr=False)
    _kek: Key | None = field(default=None, repr=False)

    @cached_property
    def _cipher(self) -> GcmCipher:
        assert self._kek is not None
        return GcmCipher(self._kek)

    def seal(self, metadata: StandardKeyMetadata) -> bytes:
        """Seal the key metadata of a file.

        Raises:
            KeyRetrievalError: the key service does not wrap its key.
        """
        if self._kek is not None:
            return self._cipher.seal_block(metadata.encode(), self._aad())
        wrapped = self.masters.wrap(metadata.key, self.key.master_key_id)
        if len(wrapped) > 0xFFFF:
            raise KeyMaterialError("the wrapped data key is longer than 65535 bytes")
        prefix, length = metadata.aad_prefix, metadata.file_length
        told = (_NO_LENGTH if length is None else length).to_bytes(8, "big") + (prefix or b"")
        sealed = GcmCipher(metadata.key).seal_block(told, _SINGLE_AAD)
        return len(wrapped).to_bytes(2, "big") + wrapped + sealed

    def open(self, sealed: bytes) -> StandardKeyMetadata:
        """Open the key metadata of a file.

        Raises:
            KeyMaterialError: altered, or of another key.
            KeyRetrievalError: the key service does not unwrap it.
        """
        if self._kek is None:
            return self._open_single(sealed)
        with _as_material(self.key.id):
            return StandardKeyMetadata.decode(self._cipher.open_block(sealed, self._aad()))

    def _open_single(self, sealed: bytes) -> StandardKeyMetadata:
        size = int.from_bytes(sealed[:2], "big")
        if len(sealed) < 2 + size + 28 + 8 or not size:
            raise KeyMaterialError("key metadata under a master key: cut short")
        key = self.masters.unwrap(sealed[2 : 2 + size], self.key.master_key_id)
        with _as_material(self.key.id):
            told = GcmCipher(key).open_block(sealed[2 + size :], _SINGLE_AAD)
        length = int.from_bytes(told[:8], "big")
        return StandardKeyMetadata(
            key=key,
            aad_prefix=told[8:] or None,
            file_length=None if length == _NO_LENGTH else length,
        )

    def _aad(self) -> bytes:
        """What binds key metadata to its KEK: the KEY_TIMESTAMP as Java writes it, in ASCII."""
        return self.key.properties[KEY_TIMESTAMP].encode()


@contextlib.contextmanager
def _as_material(key_id: str):  # type: ignore[no-untyped-def]
    try:
        yield
    except (TagError, FormatError, ValueError):  # too short for a block is a ValueError
        raise KeyMaterialError(
            f"the key metadata of a file does not open under key {key_id} of the table: altered "
            "bytes, or sealed under another key"
        ) from None


def _as_bytes(wrapped: str) -> bytes:
    with contextlib.suppress(KeyMaterialError):
        return from_base64(wrapped, "a wrapped key")
    return wrapped.encode()


def _as_text(wrapped: bytes) -> str:
    """Undo `_as_bytes`: bytes of a service are never all printable, but for 1 in 10**17."""
    if wrapped.isascii() and (text := wrapped.decode()).isprintable():
        return text
    return base64.b64encode(wrapped).decode()
